//! Names of policies, by their effect on the versions of nodes.
//!
//! Two policies with the same effect have one name, however they are written: the order of exclusions, an explicit
//! default, and the time and manner of updates make no difference. Names are formed as Kubernetes forms those of its
//! ControllerRevisions (`pkg/controller/history` there): FNV-1 over the content and the collision count, in an alphabet
//! that spells no words.

use serde_json::{Value, json};

use super::Policy;
use super::version::Target;

/// Kubernetes' alphabet for generated names: no vowels, and nothing that resembles another character.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns FNV-1, 32 bits. (Not FNV-1a, which most libraries mean.)
fn fnv1(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

/// Returns the end of a name: the hash as a decimal number, each digit in the alphabet.
fn hash(content: &str, collisions: Option<i32>) -> String {
    let probe = collisions.map(|count| count.to_string()).unwrap_or_default();
    let sum = fnv1(content.bytes().chain(probe.bytes())).to_string();
    sum.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// Returns the effect of a policy on the versions of nodes, in one spelling.
fn content(policy: &Policy) -> Value {
    let mut exclude: Vec<String> = policy.exclude.iter().map(Target::normalized).collect();
    exclude.sort();
    exclude.dedup();
    // Versioned, so that a later form of it never passes for this one.
    json!({"exclude": exclude, "form": 1, "ignoreWaves": policy.ignore_waves, "target": policy.target.normalized()})
}

/// Returns the name of a policy's revision.
pub fn name(operator: &str, policy: &Policy) -> String {
    format!("{operator}-{}", hash(&content(policy).to_string(), None))
}

#[cfg(test)]
mod tests {
    use models::operator::BottlerocketUpdateOperatorSpec;

    use super::*;

    #[test]
    fn revision_hash_equals_kubernetes_controller_revision_hash() {
        for (content, collisions, expected) in [
            ("{}", None, "5894b84845"),
            ("{}", Some(0), "cccc864bc"),
            ("{}", Some(1), "cccc864bb"),
            ("{}", Some(2), "cccc864b9"),
            ("", None, "65bb57b6b5"),
        ] {
            assert_eq!(hash(content, collisions), expected, "{content:?} {collisions:?}");
        }
    }

    fn named(spec: Value) -> String {
        let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(spec).unwrap();
        name("default", &Policy::from_spec(&spec).unwrap())
    }

    #[test]
    fn revision_name_changes_only_with_target_exclusions_or_waves() {
        let latest = named(json!({}));
        for (sentence, spec) in [
            ("a default that is spelled out", json!({"version": {"target": "latest", "ignoreWaves": false}})),
            ("how many at a time", json!({"maxUnavailable": 5})),
            (
                "when",
                json!({"version": {"minimumAge": "24h"}, "schedule": {"windows": [{"cron": "0 3 * * *", "duration": "1h"}]}}),
            ),
            ("whether at all", json!({"enabled": false})),
        ] {
            assert_eq!(named(spec), latest, "{sentence}");
        }
        let two = named(json!({"version": {"exclude": ["1.20.1", "1.20.3"]}}));
        assert_eq!(named(json!({"version": {"exclude": ["1.20.3", "1.20.1", "1.20.3"]}})), two, "in another order");
        let others = [
            json!({"version": {"target": "1.20.5"}}),
            json!({"version": {"target": ">=1.20.0, <1.21.0"}}),
            json!({"version": {"ignoreWaves": true}}),
            json!({"version": {"exclude": ["1.20.1"]}}),
        ];
        let mut names: std::collections::BTreeSet<String> = others.into_iter().map(named).collect();
        names.extend([latest, two]);
        assert_eq!(names.len(), 6, "each makes something else of nodes: {names:?}");
    }
}
