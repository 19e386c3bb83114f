//! `history ID --html`: one rollout as a page for browsers.

use std::collections::{BTreeSet, HashMap};

use jiff::Timestamp;
use models::history::{HistoryRow, RecordedRollout};
use models::plain::plain;
use models::shadow::{DrainedPod, PodMove};
use serde_json::{Value, json};

use super::rollouts::Rollout;
use super::show::{entries, head, moved, span, title};
use crate::browser::table;
use crate::timeline;

/// Texts that occur often, each stored once.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    places: HashMap<String, usize>,
}

impl Texts {
    fn place(&mut self, text: &str) -> usize {
        let text = plain(text);
        *self.places.entry(text.clone()).or_insert_with(|| {
            self.all.push(text);
            self.all.len() - 1
        })
    }
}

fn pod(pod: &DrainedPod, texts: &mut Texts) -> Value {
    json!([
        texts.place(&pod.namespace),
        plain(&pod.name),
        texts.place(pod.owner.as_deref().unwrap_or_default()),
        texts.place(&pod.budgets.join(", ")),
        texts.place(&pod.services.join(", ")),
        texts.place(pod.moved.map_or("Stayed", PodMove::as_str)),
    ])
}

/// Returns a row as an array: the script has the same order.
fn row(row: &HistoryRow, texts: &mut Texts) -> Value {
    let result = &row.result;
    let at = |time: Option<Timestamp>| time.map(Timestamp::as_second);
    json!([
        plain(&row.node),
        result.attempt,
        result.step,
        texts.place(&result.from.as_ref().map_or("?".to_owned(), ToString::to_string)),
        texts.place(&result.to.to_string()),
        texts.place(&result.result),
        plain(&result.message),
        result.started.as_second(),
        at(result.drain_started),
        at(result.drain_ended),
        at(result.soak_started),
        result.ended.as_second(),
        plain(&result.boot_before),
        plain(&result.boot_after),
        result.pods.iter().map(|of| pod(of, texts)).collect::<Vec<_>>(),
        result.running.iter().map(|running| plain(running)).collect::<Vec<_>>(),
    ])
}

fn data(rollout: &Rollout) -> Value {
    let mut texts = Texts::default();
    let rows: Vec<Value> = rollout.rows.iter().map(|of| row(of, &mut texts)).collect();
    let entries = rollout.status.entries.iter().map(|entry| {
        json!({
            "time": entry.time.as_second(), "kind": entry.kind.as_str(), "step": entry.step,
            "by": entry.field_manager.as_deref().map(plain), "message": plain(&entry.message),
        })
    });
    let results = rollout.rows.iter().map(|row| row.result.result.as_str());
    let withdrawn = results.filter(|result| *result != rollout.succeeds() && !rollout.is_failure(result));
    let withdrawn: BTreeSet<&str> = withdrawn.collect();
    json!({
        "begun": rollout.head.begun.as_second(), "ended": rollout.status.ended.map(Timestamp::as_second),
        "succeeds": rollout.succeeds(), "withdrawn": withdrawn, "entries": entries.collect::<Vec<_>>(),
        "texts": texts.all, "rows": rows,
    })
}

pub(super) fn page(rollout: &Rollout) -> anyhow::Result<String> {
    let nodes = rollout.rows.iter().map(|row| {
        let result = &row.result;
        [
            row.node.clone(),
            result.attempt.to_string(),
            title(rollout, result.step),
            result.started.to_string(),
            span(result.started, result.ended),
            result.result.clone(),
            result.message.clone(),
            moved(row, PodMove::Evicted).to_string(),
            moved(row, PodMove::Forced).to_string(),
            moved(row, PodMove::LeftToReboot).to_string(),
        ]
    });
    let RecordedRollout { number, version, variant, drill, .. } = &rollout.head;
    let what = if *drill { "Drills" } else { "Rollout" };
    let name = format!("{what} {number}: {version} on {variant}");
    let header = ["Time", "Event", "Step", "Field manager", "Message"];
    let attempts =
        ["Node", "Attempt", "Step", "Started", "Took", "Result", "Message", "Evicted", "Forced", "Left to reboot"];
    timeline::render(&timeline::Sheet {
        title: name,
        fields: head(rollout),
        data: data(rollout),
        tables: vec![table("Events", header, entries(rollout)), table("Attempts", attempts, nodes)],
        footer: "All times are UTC. This page is a copy and proves nothing: kubectl brupop history --verify verifies the records."
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::testing::{page as history_page, record, rollout, row as history_row};
    use super::*;
    use crate::timeline::{SCRIPT, TEMPLATE};

    const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\u{202e}'\"&{{script}}";

    #[test]
    fn hostile_names_are_escaped_everywhere() {
        let mut row = history_row(HOSTILE, HOSTILE);
        row["message"] = json!(HOSTILE);
        row["running"] = json!([HOSTILE]);
        for field in ["namespace", "name", "owner"] {
            row["pods"][0][field] = json!(HOSTILE);
        }
        row["pods"][0]["services"] = json!([HOSTILE]);
        row["bootBefore"] = json!(HOSTILE);
        let mut head = rollout(7, "1.21.0");
        head.variant = HOSTILE.to_owned();
        head.revision.name = HOSTILE.to_owned();
        let page = history_page("r", 1, &[row]);
        let mut record = record(&head, std::slice::from_ref(&page));
        record["status"]["entries"][0]["message"] = json!(HOSTILE);
        record["status"]["entries"][0]["fieldManager"] = json!(HOSTILE);
        let rollout = Rollout::parse(&record, &BTreeMap::from([(1, page)])).unwrap();
        let html = super::page(&rollout).unwrap();
        assert!(!html.contains("<img") && !html.contains('\u{202e}'), "a name is markup");
        assert_eq!(html.matches("</script>").count(), TEMPLATE.matches("</script>").count());
        assert_eq!(html.matches(SCRIPT).count(), 1, "what is put in is not filled in turn");
        assert!(html.contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"));
        let start = html.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let text = &html[start..start + html[start..].find("</script>").unwrap()];
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["rows"][0][0], json!(plain(HOSTILE)), "the name itself is not lost");
    }
}
