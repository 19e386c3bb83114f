//! The list of rollouts, and the way from a number to its record.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use anyhow::{Context as _, bail};
use models::condition::true_condition;
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, FROZEN, HistoryRow, RecordedRollout,
};
use models::reason::EndEvent;
use models::shadow::{DRILL_PASSED, UPDATED};
use serde_json::{Value, json};

use crate::page::Page;

pub(super) const NO_ROLLOUTS: &str = "No rollouts are recorded.";

/// The most rollouts that an error lists.
const LISTED: usize = 20;

pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the pages that a record names, each with its number.
pub(super) fn pages_named(record: &Value) -> impl Iterator<Item = (i64, &Value)> {
    (1..).zip(record["status"]["pages"].as_array().into_iter().flatten())
}

fn typed(object: &Value) -> anyhow::Result<BottlerocketRolloutHistory> {
    serde_json::from_value(object.clone()).with_context(|| format!("{} cannot be read by this version", name(object)))
}

/// A record with the rows of its pages.
#[derive(Clone, Debug)]
pub(super) struct Rollout {
    pub(super) name: String,
    pub(super) head: RecordedRollout,
    pub(super) status: BottlerocketRolloutHistoryStatus,
    /// Attempts in the order of the pages.
    pub(super) rows: Vec<HistoryRow>,
    /// Numbers of the pages that were removed.
    pub(super) removed: Vec<i64>,
}

impl Rollout {
    /// Returns the result of an attempt that has succeeded.
    pub(super) fn succeeds(&self) -> &'static str {
        if self.head.drill { DRILL_PASSED } else { UPDATED }
    }

    /// Returns whether an attempt with this result has failed. One that was ended from outside has not.
    pub(super) fn is_failure(&self, result: &str) -> bool {
        let event = if self.head.drill { EndEvent::of_drill(result) } else { EndEvent::of_update(result) };
        event.is_warning()
    }

    pub(super) fn parse(record: &Value, pages: &BTreeMap<i64, Value>) -> anyhow::Result<Self> {
        let head = typed(record)?;
        let mut rows = Vec::new();
        for page in pages.values() {
            rows.extend(typed(page)?.spec.page.map(|page| page.rows).unwrap_or_default());
        }
        let removed = pages_named(record).map(|(number, _)| number).filter(|number| !pages.contains_key(number));
        Ok(Self {
            name: name(record).to_owned(),
            head: head.spec.rollout.with_context(|| format!("{} is no record of a rollout", name(record)))?,
            status: head.status.unwrap_or_default(),
            rows,
            removed: removed.collect(),
        })
    }

    /// Returns true if failures had stopped the rollout when it ended, or stop it now.
    pub(super) fn is_frozen(&self) -> bool {
        true_condition(&self.status.conditions, FROZEN).is_some()
    }

    /// Returns its phase, with `Frozen`.
    pub(super) fn phase(&self) -> String {
        let frozen = if self.is_frozen() { " (Frozen)" } else { "" };
        format!("{}{frozen}", self.status.phase.as_str())
    }
}

/// Returns the record with this number or name.
pub(super) fn find<'a>(records: &'a [Value], id: &str) -> anyhow::Result<&'a Value> {
    let number = |record: &Value| record.pointer("/spec/rollout/number").and_then(Value::as_i64);
    let wanted: Option<i64> = id.parse().ok();
    let found: Vec<&Value> =
        records.iter().filter(|record| name(record) == id || (wanted.is_some() && number(record) == wanted)).collect();
    let describe = |of: &[&Value]| {
        let mut text = String::new();
        for record in of.iter().rev().take(LISTED) {
            let rollout = &record["spec"]["rollout"];
            let field = |field: &str| rollout[field].as_str().unwrap_or("?").to_owned();
            let number = number(record).unwrap_or_default();
            let (version, variant, arch) = (field("version"), field("variant"), field("arch"));
            let _ = write!(text, "\n  {number} {} ({version}, {variant}/{arch})", name(record));
        }
        if of.len() > LISTED {
            let _ = write!(text, "\n  and {} before them", of.len() - LISTED);
        }
        text
    };
    match found[..] {
        [record] => Ok(record),
        [] if records.is_empty() => bail!("there is no rollout {id}: none is recorded"),
        [] => bail!("there is no rollout {id}; recorded are{}", describe(&records.iter().collect::<Vec<_>>())),
        _ => bail!("there are {} rollouts {id}: use the name of one{}", found.len(), describe(&found)),
    }
}

/// Adds the list of the rollouts, the newest last.
pub(super) fn table(page: &mut Page, records: &[Value]) {
    if records.is_empty() {
        page.line(NO_ROLLOUTS);
        return;
    }
    let rows = records.iter().map(|record| match Rollout::parse(record, &BTreeMap::new()) {
        Ok(rollout) => [
            rollout.head.number.to_string(),
            if rollout.head.drill {
                format!("{} (drill)", rollout.head.version)
            } else {
                rollout.head.version.to_string()
            },
            format!("{}/{}", rollout.head.variant, rollout.head.arch),
            rollout.phase(),
            rollout.head.begun.to_string(),
            rollout.status.ended.map(|at| at.to_string()).unwrap_or_default(),
            rollout.status.nodes.to_string(),
            rollout.status.pods.to_string(),
        ],
        Err(error) => {
            let mut cells: [String; 8] = Default::default();
            (cells[0], cells[3]) = ("?".to_owned(), format!("{error:#}"));
            cells
        }
    });
    page.table(["ROLLOUT", "VERSION", "VARIANT/ARCH", "PHASE", "BEGUN", "ENDED", "NODES", "PODS"], rows);
}

/// Returns the rollouts for programs: records without pages and policy.
pub(super) fn for_programs(records: &[Value]) -> Value {
    let row = |record: &Value| {
        let (rollout, status) = (&record["spec"]["rollout"], &record["status"]);
        let frozen = Rollout::parse(record, &BTreeMap::new()).map(|rollout| rollout.is_frozen()).ok();
        json!({
            "name": name(record), "number": rollout["number"], "version": rollout["version"], "variant": rollout["variant"],
            "arch": rollout["arch"], "begun": rollout["begun"], "phase": status["phase"], "ended": status["ended"],
            "drill": rollout["drill"].as_bool().unwrap_or(false), "frozen": frozen, "nodes": status["nodes"], "pods": status["pods"],
        })
    };
    records.iter().map(row).collect()
}

/// Returns the canary steps of the rows in their order: 1, 2, and then 0, which is after the last one.
pub(super) fn steps(rows: &[HistoryRow]) -> Vec<i64> {
    let steps: BTreeSet<i64> = rows.iter().map(|row| row.result.step).collect();
    let (last, numbered): (Vec<i64>, Vec<i64>) = steps.into_iter().partition(|step| *step == 0);
    numbered.into_iter().chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{record, rollout};
    use super::*;

    #[test]
    fn rollout_is_found_by_number_and_by_name_of_its_record() {
        let records = [record(&rollout(6, "1.20.5"), &[]), record(&rollout(7, "1.21.0"), &[])];
        assert_eq!(find(&records, "7").unwrap(), &records[1]);
        assert_eq!(find(&records, name(&records[0])).unwrap(), &records[0]);
    }

    #[test]
    fn unknown_or_ambiguous_number_is_an_error_that_lists_the_rollouts() {
        let records = [record(&rollout(7, "1.20.5"), &[]), record(&rollout(7, "1.21.0"), &[])];
        let error = find(&records, "7").unwrap_err().to_string();
        for part in ["there are 2 rollouts 7", name(&records[0]), name(&records[1]), "1.21.0"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let error = find(&records, "8").unwrap_err().to_string();
        assert!(error.contains("no rollout 8") && error.contains(name(&records[0])), "{error}");
        assert!(find(&[], "8").unwrap_err().to_string().contains("none is recorded"));
    }

    #[test]
    fn list_of_rollouts_marks_a_frozen_one_and_names_an_unreadable_one() {
        let mut frozen = record(&rollout(7, "1.21.0"), &[]);
        frozen["status"]["conditions"] = json!([crate::cluster::testing::condition("Frozen", "F", "")]);
        let mut unreadable = record(&rollout(8, "1.21.0"), &[]);
        unreadable["spec"]["rollout"]["begun"] = json!("yesterday");
        let mut page = Page::default();
        table(&mut page, &[frozen, unreadable]);
        let text = page.to_string();
        for part in ["ROLLOUT", "aws-k8s-1.37/x86_64", "(Frozen)", "cannot be read by this version"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let mut empty = Page::default();
        table(&mut empty, &[]);
        assert_eq!(empty.to_string().trim(), NO_ROLLOUTS);
    }
}
