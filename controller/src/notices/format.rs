//! The bodies of notices.

use models::names;
use models::operator::{Notice, NoticeFormat, NoticeReceiver};
use serde_json::json;

/// Prefix of the types of CloudEvents.
const TYPE_PREFIX: &str = "aws.bottlerocket.brupop.";

/// Returns the content type and the body of a notice from the operator of a namespace. The name of its receiver, which users choose, is in
/// it: several clusters may share a channel.
pub(super) fn body(receiver: &NoticeReceiver, namespace: &str, notice: &Notice) -> (&'static str, Vec<u8>) {
    let command = if namespace == names::SYSTEM_NAMESPACE {
        notice.command.clone()
    } else {
        format!("{} -n {namespace}", notice.command)
    };
    match receiver.format {
        NoticeFormat::CloudEvents => {
            let Notice { id, event, time, subject, nodes, cause, deadline, .. } = notice;
            let event = json!({
                "specversion": "1.0",
                "id": id,
                "source": format!(
                    "/apis/brupop.bottlerocket.aws/v1/namespaces/{namespace}/bottlerocketupdateoperators/{}",
                    names::OPERATOR_NAME
                ),
                "type": format!("{TYPE_PREFIX}{event}"),
                "subject": subject,
                "time": time,
                "datacontenttype": "application/json",
                "data": {
                    "receiver": receiver.name,
                    "nodes": nodes,
                    "cause": cause,
                    "deadline": deadline,
                    "command": command,
                },
            });
            ("application/cloudevents+json", event.to_string().into_bytes())
        }
        NoticeFormat::Slack => {
            let text = slack(&receiver.name, notice, &command);
            ("application/json", json!({"text": text}).to_string().into_bytes())
        }
    }
}

fn slack(receiver: &str, notice: &Notice, command: &str) -> String {
    let head = format!("[{}] *{}* ({})", escaped(receiver), words(&notice.event), escaped(&notice.subject));
    let mut lines = vec![head, escaped(&notice.cause)];
    if !notice.nodes.is_empty() {
        lines.push(format!("Nodes: {}", escaped(&notice.nodes.join(", "))));
    }
    lines.extend(notice.deadline.map(|deadline| format!("Deadline: {deadline:.0}")));
    lines.push(format!("`{}`", escaped(command)));
    lines.join("\n")
}

/// Returns an event's word as words: `RolloutStarted` as `Rollout started`.
fn words(event: &str) -> String {
    let mut words = String::new();
    for c in event.chars() {
        if c.is_ascii_uppercase() && !words.is_empty() {
            words.push(' ');
            words.push(c.to_ascii_lowercase());
        } else {
            words.push(c);
        }
    }
    escaped(&words)
}

/// Returns text as Slack requires it. Nothing else in it is a control sequence.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
