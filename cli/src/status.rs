//! `kubectl brupop status`.

use anyhow::Context as _;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::condition::true_condition;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BLOCKED, BottlerocketShadow, Step};

use crate::page::Page;

/// Reads the cluster and says where everything stands.
pub(crate) async fn status(client: Client, namespace: &str) -> anyhow::Result<Page> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), namespace);
    let shadows: Api<BottlerocketShadow> = Api::namespaced(client, namespace);
    let operator = operators
        .get_opt(names::OPERATOR_NAME)
        .await
        .context("the operator's resource cannot be read; is the operator installed, and may you read it?")?;
    let shadows = shadows.list(&ListParams::default()).await.context("the shadows cannot be read")?;
    Ok(render(operator.as_ref(), &shadows.items))
}

fn render(operator: Option<&BottlerocketUpdateOperator>, shadows: &[BottlerocketShadow]) -> Page {
    let mut page = Page::default();
    match operator {
        None => page.line(format_args!(
            "There is no BottlerocketUpdateOperator named {}: nothing new starts. Create it to start updates.",
            names::OPERATOR_NAME
        )),
        Some(operator) => {
            let status = operator.status.clone().unwrap_or_default();
            if let Some(counts) = status.counts {
                page.line(format_args!(
                    "{} nodes: {} current, {} updating, {} staged, {} blocked, {} failed",
                    counts.total, counts.current, counts.updating, counts.staged, counts.blocked, counts.failed
                ));
            }
            if operator.spec.enabled == Some(false) {
                page.line("Updates are switched off (spec.enabled is false).");
            }
            if let Some(condition) = true_condition(&status.conditions, "Frozen") {
                page.line(format_args!("Frozen: {}", condition.message));
            }
            for waiting in status.waiting {
                page.line(format_args!("  {} wait: {}", waiting.nodes, waiting.reason));
            }
        }
    }
    if shadows.is_empty() {
        page.line(format_args!(
            "No node is under the operator. Label Bottlerocket nodes with {}={}.",
            names::INTERFACE_LABEL,
            names::INTERFACE_VERSION
        ));
        return page;
    }
    page.table(["NODE", "VERSION", "TARGET", "STEP", "WAITS FOR", "LAST"], shadows.iter().map(row));
    page
}

fn row(shadow: &BottlerocketShadow) -> [String; 6] {
    let name = shadow.name_any();
    let status = shadow.status.clone().unwrap_or_default();
    let text = |value: Option<String>| value.unwrap_or_default();
    let blocked = true_condition(&status.conditions, BLOCKED);
    let last = status.controller.record.and_then(|r| r.last);
    [
        names::node_of_shadow(&name).to_owned(),
        text(status.agent.current_version.map(|v| v.to_string())),
        text(shadow.spec.version.as_ref().map(ToString::to_string)),
        status.controller.progress.map_or("Idle", |p| Step::as_str(p.step)).to_owned(),
        text(blocked.map(|c| c.message.clone())),
        text(last.map(|l| if l.message.is_empty() { l.reason } else { format!("{}: {}", l.reason, l.message) })),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_cluster_says_what_to_do_next() {
        let text = render(None, &[]).to_string();
        assert!(text.contains("Create it to start updates"), "{text}");
        assert!(text.contains("bottlerocket.aws/updater-interface-version=2.0.0"), "{text}");
    }

    #[test]
    fn a_blocked_node_says_what_blocks_it_and_a_failed_one_why() {
        let shadow: BottlerocketShadow = serde_json::from_value(serde_json::json!({
            "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow",
            "metadata": {"name": "brs-a"},
            "spec": {"state": "StagedUpdate", "version": "1.20.5", "bootId": "b", "attempt": 2},
            "status": {
                "currentVersion": "1.20.0",
                "conditions": [{"type": "Blocked", "status": "True", "reason": "DrainBlocked",
                    "message": "the PodDisruptionBudget shop/web does not let shop/web-1 go; 1 pod(s) left",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "record": {"failures": 1, "last": {"attempt": 1, "version": "1.20.5", "reason": "PrepareFailed",
                    "message": "no space", "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z"}},
            },
        }))
        .unwrap();
        let text = render(None, &[shadow]).to_string();
        for part in ["a ", "1.20.0", "1.20.5", "Idle", "shop/web does not let shop/web-1 go", "PrepareFailed: no space"]
        {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
    }

    #[test]
    fn nothing_that_a_host_or_an_agent_said_reaches_the_terminal_but_as_text() {
        const HOSTILE: &str = "\u{1b}[2J\r\nok\u{202e}";
        let shadow = serde_json::from_value(serde_json::json!({
            "metadata": {"name": format!("brs-a{HOSTILE}")},
            "spec": {"state": "StagedUpdate", "version": "1.20.5", "bootId": HOSTILE, "attempt": 2},
            "status": {
                "currentVersion": "1.20.0", "variant": HOSTILE, "arch": HOSTILE,
                "failure": {"attempt": 1, "step": "StagedUpdate", "reason": "PrepareFailed", "message": HOSTILE,
                    "time": "2026-01-01T00:00:00Z"},
                "conditions": [{"type": "Blocked", "status": "True", "reason": HOSTILE, "message": HOSTILE,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "record": {"failures": 1, "last": {"attempt": 1, "version": "1.20.5", "reason": HOSTILE,
                    "message": HOSTILE, "started": "2026-01-01T00:00:00Z", "ended": "2026-01-01T00:00:00Z"}},
            },
        }));
        let operator = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "brupop"}, "spec": {},
            "status": {
                "waiting": [{"reason": HOSTILE, "nodes": 1}],
                "conditions": [{"type": "Frozen", "status": "True", "reason": "R", "message": HOSTILE,
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            },
        }));
        let text = render(Some(&operator.unwrap()), &[shadow.unwrap()]).to_string();
        assert_eq!(text.lines().count(), 4, "frozen, what waits, a header and a row: {text:?}");
        assert!(text.lines().all(|line| !line.contains(char::is_control)) && !text.contains('\u{202e}'), "{text:?}");
        assert_eq!(text.matches("[2J  ok").count(), 6, "and all of it is there: {text:?}");
    }
}
