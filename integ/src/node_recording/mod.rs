//! The effects of a kubelet on the objects of the API server, as short sequences that two kubelets can be compared by: a real one,
//! in a virtual machine, is recorded in `integ/testdata/real-node.jsonl`, and the stand-in has to do the same.
//!
//! [`course`] takes a node through a fixed course, [`watch`] collects each state of its Node, Lease and pods meanwhile, and
//! [`states`] reduces a state to a few words without times and generated names. A sequence belongs to one field of one
//! object in one step, because the order of two fields' changes may differ between two runs of the same kubelet.

pub mod course;
pub mod states;
pub mod watch;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use self::states::Fields;

/// The sequences of one object in one step: a line of the recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The step of the course.
    pub step: String,
    /// The object, such as `pod web`.
    pub object: String,
    /// The states of each field that changed, or was there for the first time. The first one is that before the step.
    pub fields: BTreeMap<String, Vec<String>>,
}

/// A state of an object that was seen in a step.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The step; empty before the first one.
    pub step: String,
    /// The object.
    pub object: String,
    /// State.
    pub fields: Fields,
}

/// Reduces the states that were seen to sequences.
pub fn sequences(seen: &[Seen]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut last: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    let mut shown: BTreeSet<(String, String)> = BTreeSet::new();
    for state in seen {
        let position = lines.iter().position(|line| line.step == state.step && line.object == state.object);
        let position = position.unwrap_or_else(|| {
            lines.push(Line { step: state.step.clone(), object: state.object.clone(), fields: BTreeMap::new() });
            lines.len() - 1
        });
        for (field, value) in &state.fields {
            let key = (state.object.as_str(), field.as_str());
            let before = last.insert(key, value);
            let states = lines[position].fields.entry(field.clone()).or_default();
            if states.is_empty() {
                states.extend(before.map(str::to_owned));
            }
            if states.last() != Some(value) {
                states.push(value.clone());
            }
        }
    }
    lines.retain(|line| !line.step.is_empty());
    for line in &mut lines {
        let object = line.object.clone();
        line.fields.retain(|field, states| shown.insert((object.clone(), field.clone())) || states.len() > 1);
    }
    lines.retain(|line| !line.fields.is_empty());
    lines
}

/// Writes the lines of a recording.
///
/// # Errors
/// None that is expected: the lines are plain text.
pub fn write(lines: &[Line]) -> anyhow::Result<String> {
    let lines: Result<Vec<String>, _> = lines.iter().map(serde_json::to_string).collect();
    Ok(lines?.join("\n") + "\n")
}

/// Reads a recording.
///
/// # Errors
/// A line is not one of a recording.
pub fn read(text: &str) -> anyhow::Result<Vec<Line>> {
    text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
}

/// A field whose states differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The step of the course.
    pub step: String,
    /// The object.
    pub object: String,
    /// The field.
    pub field: String,
    /// The states on a real node, separated by `→`; empty if there is no change.
    pub real: String,
    /// The same with the stand-in.
    pub stand_in: String,
}

/// Compares two recordings, in the order of the first one.
pub fn compare(real: &[Line], stand_in: &[Line]) -> Vec<Difference> {
    let flat = |lines: &[Line]| -> Vec<((String, String, String), String)> {
        let fields = lines.iter().flat_map(|line| {
            line.fields
                .iter()
                .map(|(field, states)| ((line.step.clone(), line.object.clone(), field.clone()), states.join(" → ")))
        });
        fields.collect()
    };
    let (real, stand_in) = (flat(real), flat(stand_in));
    let (of_real, of_stand_in): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (real.iter().cloned().collect(), stand_in.iter().cloned().collect());
    let only_stand_in = stand_in.iter().filter(|(key, _)| !of_real.contains_key(key));
    let keys = real.iter().chain(only_stand_in).map(|(key, _)| key);
    keys.filter(|key| of_real.get(key) != of_stand_in.get(key))
        .map(|key| {
            let (step, object, field) = key.clone();
            let text = |of: &BTreeMap<_, String>| of.get(key).cloned().unwrap_or_default();
            Difference { step, object, field, real: text(&of_real), stand_in: text(&of_stand_in) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(step: &str, object: &str, fields: &[(&str, &str)]) -> Seen {
        let fields = fields.iter().map(|(field, value)| ((*field).to_owned(), (*value).to_owned())).collect();
        Seen { step: step.to_owned(), object: object.to_owned(), fields }
    }

    fn history() -> Vec<Seen> {
        vec![
            seen("", "pod a", &[("phase", "Pending")]),
            seen("first", "pod a", &[("phase", "Running"), ("ready", "no")]),
            seen("first", "pod a", &[("phase", "Running"), ("ready", "yes")]),
            seen("second", "pod a", &[("phase", "Running"), ("ready", "yes")]),
            seen("second", "pod a", &[("phase", "Failed"), ("ready", "yes")]),
        ]
    }

    #[test]
    fn sequence_begins_before_its_step_and_has_no_repetitions() {
        let lines = sequences(&history());
        let fields = |number: usize| serde_json::to_value(&lines[number].fields).unwrap();
        assert_eq!(fields(0), serde_json::json!({"phase": ["Pending", "Running"], "ready": ["no", "yes"]}));
        assert_eq!(fields(1), serde_json::json!({"phase": ["Running", "Failed"]}));
        assert_eq!(lines.len(), 2);
        assert_eq!(read(&write(&lines).unwrap()).unwrap(), lines);
    }

    #[test]
    fn each_field_that_differs_is_one_difference() {
        let real = sequences(&history());
        assert_eq!(compare(&real, &real), []);
        let mut other = history();
        other.pop();
        other.push(seen("second", "pod b", &[("phase", "Pending")]));
        let differences = compare(&real, &sequences(&other));
        let found: Vec<[&str; 3]> = differences.iter().map(|d| [&*d.object, &*d.real, &*d.stand_in]).collect();
        assert_eq!(found, [["pod a", "Running → Failed", ""], ["pod b", "", "Pending"]]);
    }
}
