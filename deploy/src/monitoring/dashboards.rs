//! Grafana dashboards: the fleet, a rollout, the nodes that need attention, and the operator itself.

use serde_json::{Value, json};

/// Grafana's version of the format; later ones read it.
const SCHEMA: i32 = 39;

const WIDTH: usize = 24;

#[derive(Clone, Copy)]
enum Kind {
    /// The present value in large digits.
    Stat,
    /// The course of a value.
    Graph,
    /// The course of parts that add up.
    Stack,
    /// The present values, one in each row.
    Table,
}

struct Panel {
    kind: Kind,
    title: &'static str,
    /// Of 24.
    width: usize,
    /// Grafana's name of the unit.
    unit: &'static str,
    about: &'static str,
    /// Query and legend.
    queries: &'static [(&'static str, &'static str)],
}

const fn panel(
    kind: Kind,
    title: &'static str,
    width: usize,
    unit: &'static str,
    about: &'static str,
    queries: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { kind, title, width, unit, about, queries }
}

use Kind::{Graph, Stack, Stat, Table};

const FLEET: &[Panel] = &[
    panel(
        Stat,
        "Nodes",
        4,
        "short",
        "Nodes under the operator.",
        &[(r#"max(brupop_controller_nodes_by_state{state="total"})"#, "")],
    ),
    panel(
        Stat,
        "Up to date",
        4,
        "short",
        "Nodes that are what the policy makes of them.",
        &[(r#"max(brupop_controller_nodes_by_state{state="current"})"#, "")],
    ),
    panel(
        Stat,
        "Behind",
        4,
        "short",
        "Nodes that run an earlier version than the policy lets them take.",
        &[("max(brupop_controller_nodes_behind)", "")],
    ),
    panel(
        Stat,
        "Versions behind",
        4,
        "short",
        "Offered versions that are later than the one of the node that is furthest behind.",
        &[("max(brupop_controller_versions_behind)", "")],
    ),
    panel(
        Stat,
        "Failed",
        4,
        "short",
        "Nodes whose last update failed and is still wanted. A version that fails freezes the rollout instead.",
        &[(r#"max(brupop_controller_nodes_by_state{state="failed"})"#, "")],
    ),
    panel(
        Stat,
        "Silent agents",
        4,
        "short",
        "Ready nodes whose agent is not heard.",
        &[(r#"sum(brupop_controller_agents{state="Silent"})"#, "")],
    ),
    panel(
        Stack,
        "Nodes by version",
        12,
        "short",
        "Versions that nodes run.",
        &[("sum by (version) (brupop_controller_nodes)", "{{version}}")],
    ),
    panel(
        Stack,
        "Nodes by step",
        12,
        "short",
        "Steps of updates; Idle is a node without one.",
        &[("sum by (step) (brupop_controller_nodes)", "{{step}}")],
    ),
    panel(
        Graph,
        "Within the target of freshness",
        12,
        "percentunit",
        "Share of the nodes that are not behind for longer than spec.freshness.target.",
        &[("max(brupop_controller_freshness_ratio)", "share")],
    ),
    panel(
        Graph,
        "Longest time behind",
        12,
        "s",
        "Time for which a node has run an earlier version than it may take; 0 while none does.",
        &[
            ("time() - min(brupop_controller_behind_since_timestamp_seconds) or vector(0)", "longest"),
            ("max(brupop_controller_freshness_target_seconds)", "target"),
        ],
    ),
];

const ROLLOUT: &[Panel] = &[
    panel(Stat, "Updates enabled", 4, "bool_yes_no", "spec.enabled.", &[("max(brupop_controller_enabled)", "")]),
    panel(
        Stat,
        "Window open",
        4,
        "bool_yes_no",
        "The schedule of all nodes; node groups may have their own.",
        &[("max(brupop_controller_window_open)", "")],
    ),
    panel(
        Stat,
        "Next window",
        4,
        "s",
        "Time until the schedule opens; 0 while it is open, or if no window is in sight.",
        &[("min(brupop_controller_next_window_timestamp_seconds) - time() or vector(0)", "")],
    ),
    panel(
        Stat,
        "Frozen",
        4,
        "bool_yes_no",
        "Failures have stopped the rollout.",
        &[("max(brupop_controller_frozen)", "")],
    ),
    panel(
        Stat,
        "Braked",
        4,
        "bool_yes_no",
        "Updates that ended without a proof have braked a rollout.",
        &[("max(brupop_controller_braked)", "")],
    ),
    panel(
        Stat,
        "Awaits approval",
        4,
        "bool_yes_no",
        "A canary step waits for a user.",
        &[("max(brupop_controller_awaiting_approval)", "")],
    ),
    panel(
        Stat,
        "Estimated time left",
        4,
        "s",
        "Until the last running rollout is completed, by its course so far; 0 while none runs.",
        &[("max(brupop_controller_estimated_completion_timestamp_seconds) - time() or vector(0)", "")],
    ),
    panel(
        Graph,
        "Slots",
        12,
        "short",
        "Nodes out of service for updates, and how many may be.",
        &[("max(brupop_controller_slots_in_use)", "in use"), ("max(brupop_controller_slots_limit)", "limit")],
    ),
    panel(
        Graph,
        "Ended attempts",
        12,
        "short",
        "Attempts that ended within the last hour, by result.",
        &[("sum by (result) (increase(brupop_controller_updates_total[1h])) > 0 or vector(0)", "{{result}}")],
    ),
    panel(
        Graph,
        "Duration of steps",
        12,
        "s",
        "Median of the last six hours.",
        &[(
            "histogram_quantile(0.5, sum by (le, step) (increase(brupop_controller_step_duration_seconds_bucket[6h])))",
            "{{step}}",
        )],
    ),
    panel(
        Graph,
        "Duration of drains",
        12,
        "s",
        "Of the last six hours; drains that ended with all pods gone.",
        &[
            (
                "histogram_quantile(0.5, sum by (le) (increase(brupop_controller_drain_duration_seconds_bucket[6h])))",
                "median",
            ),
            (
                "histogram_quantile(0.95, sum by (le) (increase(brupop_controller_drain_duration_seconds_bucket[6h])))",
                "95 %",
            ),
        ],
    ),
];

const NODES: &[Panel] = &[
    panel(
        Stack,
        "Why nodes wait",
        16,
        "short",
        "docs/waiting.md explains each reason; kubectl brupop status names the nodes.",
        &[("sum by (reason) (brupop_controller_nodes_waiting) or vector(0)", "{{reason}}")],
    ),
    panel(
        Table,
        "Longest wait by reason",
        8,
        "s",
        "Time for which a node has waited for this reason.",
        &[("time() - min by (reason) (brupop_controller_waiting_since_timestamp_seconds) or vector(0)", "{{reason}}")],
    ),
    panel(
        Stack,
        "Agents",
        12,
        "short",
        "Connected agents receive the web API's stream; those of nodes that are not Ready are counted apart.",
        &[("sum by (state) (brupop_controller_agents)", "{{state}}")],
    ),
    panel(
        Stat,
        "Longest silence",
        12,
        "s",
        "Time since the agent that has been silent for the longest time was heard; 0 while none is.",
        &[("time() - min(brupop_controller_agent_silent_since_timestamp_seconds) or vector(0)", "")],
    ),
    panel(
        Stack,
        "Hosts",
        12,
        "short",
        "Nodes by the reason of HostReachable, which their agents report.",
        &[("sum by (reason) (brupop_controller_hosts)", "{{reason}}")],
    ),
    panel(
        Graph,
        "Changes of steps",
        12,
        "short",
        "Within the last hour.",
        &[("sum by (to) (increase(brupop_controller_transitions_total[1h]))", "to {{to}}")],
    ),
];

const OPERATOR: &[Panel] = &[
    panel(Stat, "Leader", 4, "short", "One controller leads.", &[("sum(brupop_controller_leader)", "")]),
    panel(Stat, "Controllers", 4, "short", "That are scraped.", &[("count(brupop_controller_leader)", "")]),
    panel(Stat, "Web API Ready", 4, "bool_yes_no", "", &[("max(brupop_controller_web_api_ready)", "")]),
    panel(Stat, "Open streams", 4, "short", "Each agent has one.", &[("sum(brupop_apiserver_streams)", "")]),
    panel(Stat, "Policy invalid", 4, "bool_yes_no", "", &[("max(brupop_controller_policy_degraded)", "")]),
    panel(
        Table,
        "Certificates expire in",
        4,
        "s",
        "",
        &[(
            "min by (certificate) (brupop_controller_certificate_expiry_timestamp_seconds) - time()",
            "{{certificate}}",
        )],
    ),
    panel(
        Graph,
        "Age of the last plan",
        8,
        "s",
        "The leader makes one at least every 30 s.",
        &[("max(brupop_controller_turn_age_seconds)", "age")],
    ),
    panel(
        Graph,
        "Oldest call to the API server",
        8,
        "s",
        "",
        &[("max by (kind) (brupop_controller_call_age_seconds)", "{{kind}}")],
    ),
    panel(
        Graph,
        "Failed writes",
        8,
        "short",
        "Within an hour; an occasional 409 is normal.",
        &[("sum by (code) (increase(brupop_controller_rejected_writes_total[1h]))", "{{code}}")],
    ),
    panel(
        Graph,
        "Requests to the web API",
        8,
        "reqps",
        "",
        &[("sum by (code) (rate(brupop_apiserver_requests_total[5m]))", "{{code}}")],
    ),
    panel(
        Graph,
        "Refused requests",
        8,
        "short",
        "Within an hour, by reason.",
        &[("sum by (reason) (increase(brupop_apiserver_refusals_total[1h]))", "{{reason}}")],
    ),
    panel(Graph, "Agents by version", 8, "short", "", &[("sum by (version) (brupop_apiserver_agents)", "{{version}}")]),
    panel(
        Graph,
        "Memory",
        12,
        "bytes",
        "",
        &[(r#"max by (job, pod) (process_resident_memory_bytes{job=~"brupop-.+"})"#, "{{pod}}")],
    ),
    panel(
        Graph,
        "CPU",
        12,
        "short",
        "Cores.",
        &[(r#"sum by (job, pod) (rate(process_cpu_seconds_total{job=~"brupop-.+"}[5m]))"#, "{{pod}}")],
    ),
    panel(
        Table,
        "Builds",
        24,
        "short",
        "",
        &[("count by (program, version) (brupop_build_info)", "{{program}} {{version}}")],
    ),
];

/// The dashboards, by name.
pub fn dashboards() -> Vec<(&'static str, Value)> {
    [
        ("fleet", "Fleet", FLEET),
        ("rollout", "Rollout", ROLLOUT),
        ("nodes", "Nodes", NODES),
        ("operator", "Operator", OPERATOR),
    ]
    .into_iter()
    .map(|(name, title, panels)| (name, dashboard(name, title, panels)))
    .collect()
}

/// The queries of a dashboard.
pub fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect()
}

fn dashboard(name: &str, title: &str, panels: &[Panel]) -> Value {
    let (mut x, mut y, mut row) = (0, 0, 0);
    let mut placed = Vec::new();
    for (id, panel) in (1..).zip(panels) {
        let height = if matches!(panel.kind, Stat) { 4 } else { 8 };
        if x + panel.width > WIDTH {
            (x, y, row) = (0, y + row, 0);
        }
        placed.push(panel_json(id, panel, [panel.width, height, x, y]));
        (x, row) = (x + panel.width, row.max(height));
    }
    let source = json!({
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus",
        "current": {}, "hide": 0, "refresh": 1,
    });
    json!({
        "uid": format!("brupop-{name}"), "title": format!("Bottlerocket updates / {title}"), "tags": ["bottlerocket", "brupop"],
        "schemaVersion": SCHEMA, "editable": true, "refresh": "1m", "time": {"from": "now-24h", "to": "now"},
        "links": [{"type": "dashboards", "title": "Bottlerocket updates", "tags": ["brupop"], "asDropdown": true, "keepTime": true}],
        "templating": {"list": [source]}, "panels": placed,
    })
}

fn panel_json(id: usize, panel: &Panel, [w, h, x, y]: [usize; 4]) -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let present = matches!(panel.kind, Stat | Table);
    let targets: Vec<Value> = panel
        .queries
        .iter()
        .zip('A'..)
        .map(|((query, legend), id)| {
            json!({
                "refId": id.to_string(), "datasource": source, "expr": query, "legendFormat": legend,
                "instant": present, "range": !present,
            })
        })
        .collect();
    let kind = match panel.kind {
        Stat => "stat",
        Graph | Stack => "timeseries",
        Table => "bargauge",
    };
    let mut defaults = json!({"unit": panel.unit});
    if matches!(panel.kind, Stack) {
        defaults["custom"] = json!({"stacking": {"mode": "normal"}, "fillOpacity": 30});
    }
    let options = match panel.kind {
        Stat | Table => {
            json!({"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal", "colorMode": "none"})
        }
        Graph | Stack => {
            json!({"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}})
        }
    };
    json!({
        "id": id, "type": kind, "title": panel.title, "description": panel.about, "datasource": source,
        "gridPos": {"w": w, "h": h, "x": x, "y": y}, "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn panels_do_not_overlap_and_each_has_a_title_and_a_query() {
        for (name, dashboard) in dashboards() {
            let mut taken = BTreeSet::new();
            for panel in dashboard["panels"].as_array().unwrap() {
                let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
                for cell in (at("x")..at("x") + at("w")).flat_map(|x| (at("y")..at("y") + at("h")).map(move |y| (x, y)))
                {
                    assert!(cell.0 < 24 && taken.insert(cell), "{name}: {} at {cell:?}", panel["title"]);
                }
                assert!(
                    !panel["title"].as_str().unwrap().is_empty() && !panel["targets"].as_array().unwrap().is_empty()
                );
            }
        }
    }
}
