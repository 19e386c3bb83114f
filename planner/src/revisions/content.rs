//! The content of a revision: the part of the policy that decides what nodes become, and its stored form.
//!
//! `docs/revisions.md` lists each field of the policy as in or out.

use std::collections::BTreeSet;

use models::operator::BottlerocketUpdateOperatorStatus;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::policy::{Exclusion, Policy, Target};

/// The newest form of `data` that is read, and the one that is written. A field that is added raises it, and the reader of
/// each earlier form stays.
const FORM: u64 = 1;

/// Comparators, and how `data` spells them. The API server compares the bytes of `data` at every write, after an encoder
/// that escapes `<` and `>`: a revision that held them as they are could never be changed again, not even adopted.
const SPELLED: [(&str, &str); 4] = [(">=", "ge "), ("<=", "le "), (">", "gt "), ("<", "lt ")];

/// The part of a policy that decides what nodes become, each field in one spelling. Two policies that are written
/// differently and mean the same have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionContent {
    target: String,
    exclude: BTreeSet<String>,
    ignore_waves: bool,
}

/// Form 1 of `data`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Form1 {
    #[serde(rename = "form")]
    _form: u64,
    target: Option<String>,
    #[serde(default)]
    exclude: Vec<String>,
    #[serde(default)]
    ignore_waves: bool,
}

fn spelled(text: &str) -> String {
    SPELLED.iter().fold(text.to_owned(), |text, (sign, word)| text.replace(sign, word))
}

/// Reads a target or an exclusion of `data`.
fn versions<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    // The versions alone: one may end like the word of a comparator.
    let (versions, kind) = text.split_at(text.find(Exclusion::ON).unwrap_or(text.len()));
    let text = SPELLED.iter().fold(versions.to_owned(), |text, (sign, word)| text.replace(word, sign)) + kind;
    parse(&text).map_err(|error| format!("'{text}' names no versions: {error}"))
}

impl RevisionContent {
    pub fn of(policy: &Policy) -> Self {
        Self::new(&policy.target, &policy.exclude, policy.ignore_waves)
    }

    fn new(target: &Target, exclude: &[Exclusion], ignore_waves: bool) -> Self {
        let exclude = exclude.iter().map(Exclusion::normalized).collect();
        Self { target: target.normalized(), exclude, ignore_waves }
    }

    /// Reads the `data` of a revision, in any form that was ever written.
    ///
    /// # Errors
    /// The form is a newer one, or the content cannot be decoded: such a revision equals no other.
    pub fn read(data: &Value) -> Result<Self, String> {
        match data.get("form").and_then(Value::as_u64) {
            Some(FORM) => {
                let Form1 { target, exclude, ignore_waves, .. } =
                    Form1::deserialize(data).map_err(|error| error.to_string())?;
                let target = match target.as_deref() {
                    None | Some("latest") => Target::Latest,
                    Some(text) => versions(text, Target::parse)?,
                };
                let exclude =
                    exclude.iter().map(|text| versions(text, Exclusion::parse)).collect::<Result<Vec<_>, _>>()?;
                Ok(Self::new(&target, &exclude, ignore_waves))
            }
            Some(form) => Err(format!("its form {form} is not known to this version of the operator ({FORM})")),
            None => Err("it names no form".to_owned()),
        }
    }

    /// Returns the stored form: compact, keys in order, nothing but integers, booleans, plain strings and lists of them,
    /// and none of the characters that the API server would escape.
    pub fn data(&self) -> Value {
        let exclude: Vec<String> = self.exclude.iter().map(|text| spelled(text)).collect();
        json!({"exclude": exclude, "form": FORM, "ignoreWaves": self.ignore_waves, "target": spelled(&self.target)})
    }

    /// Returns the fields of `spec.version` that have this content, for a merge patch. A field with its default is removed,
    /// and the other fields stay as they are.
    pub fn version_patch(&self) -> Value {
        let Self { target, exclude, ignore_waves } = self;
        json!({
            "target": target,
            "exclude": Some(exclude).filter(|exclude| !exclude.is_empty()),
            "ignoreWaves": Some(ignore_waves).filter(|ignore| **ignore),
        })
    }

    /// Returns what it changes in an earlier content, a line for each field. Versions that nodes may take again come first.
    pub fn changes_from(&self, before: &Self) -> Vec<String> {
        let entries = |what: &str, of: &BTreeSet<String>, without: &BTreeSet<String>| {
            let found: Vec<&str> = of.difference(without).map(String::as_str).collect();
            (!found.is_empty()).then(|| format!("{what}: {}", found.join("; ")))
        };
        let target = || format!("target: {}, before {}", self.target, before.target);
        let waves = || format!("ignoreWaves: {}, before {}", self.ignore_waves, before.ignore_waves);
        let lines = [
            entries("not excluded any more", &before.exclude, &self.exclude),
            entries("excluded", &self.exclude, &before.exclude),
            (self.target != before.target).then(target),
            (self.ignore_waves != before.ignore_waves).then(waves),
        ];
        lines.into_iter().flatten().collect()
    }

    /// Returns whether it may lead a node to an earlier version than it runs.
    pub fn leads_down(&self) -> bool {
        self.target != Target::Latest.normalized()
    }
}

/// Returns true if the policy makes the same of nodes as the one that was last recorded as in force: its revision is still
/// the same.
pub(crate) fn is_in_force(recorded: &BottlerocketUpdateOperatorStatus, policy: &Policy) -> bool {
    let spec = recorded.policy_in_force.as_deref().and_then(|text| serde_json::from_str(text).ok());
    let in_force = spec.and_then(|spec| Policy::from_spec(&spec).ok());
    in_force.is_some_and(|in_force| RevisionContent::of(&in_force) == RevisionContent::of(policy))
}

#[cfg(test)]
mod tests;
