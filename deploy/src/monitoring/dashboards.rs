//! Grafana dashboards: the fleet, a rollout, the nodes that need attention, and the operator itself.

use serde_json::Value;

/// Names and files of the dashboards.
pub const DASHBOARDS: [(&str, &str); 4] = [
    ("fleet", include_str!("../../monitoring/dashboards/fleet.json")),
    ("rollout", include_str!("../../monitoring/dashboards/rollout.json")),
    ("nodes", include_str!("../../monitoring/dashboards/nodes.json")),
    ("operator", include_str!("../../monitoring/dashboards/operator.json")),
];

/// The queries of a dashboard.
///
/// # Errors
/// If it is not JSON.
pub fn expressions(dashboard: &str) -> anyhow::Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(dashboard)?;
    let panels = dashboard["panels"].as_array().into_iter().flatten();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    Ok(targets.filter_map(|target| Some(target["expr"].as_str()?.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn panels_do_not_overlap_and_each_has_a_title_and_a_query() {
        for (name, dashboard) in DASHBOARDS {
            let dashboard: Value = serde_json::from_str(dashboard).unwrap();
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
