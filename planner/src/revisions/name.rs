//! Names of revisions, formed as Kubernetes forms those of its own ControllerRevisions (`pkg/controller/history`
//! there): FNV-1 over the content and the collision count, in an alphabet that spells no words.
//!
//! A name never decides whether two revisions are equal: 32 bits collide.

use crate::fnv::fnv1;

/// Kubernetes' alphabet for generated names: no vowels, and nothing that resembles another character.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Length to which the operator's name is cut: with the hash, a name is the value of a label (63 characters).
const PREFIX: usize = 52;

/// Returns the end of a name: the hash as a decimal number, each digit in the alphabet. Without a collision, no count is
/// hashed.
pub(super) fn hash(data: &str, collisions: Option<i32>) -> String {
    let count = collisions.map(|count| count.to_string()).unwrap_or_default();
    let sum = fnv1(data.bytes().chain(count.bytes())).to_string();
    sum.bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

pub(super) fn name(operator: &str, hash: &str) -> String {
    let prefix: String = operator.chars().take(PREFIX).collect();
    format!("{}-{hash}", prefix.trim_end_matches(['-', '.']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_hash_equals_kubernetes_controller_revision_hash() {
        for (data, collisions, expected) in [
            ("{}", None, "5894b84845"),
            ("{}", Some(0), "cccc864bc"),
            ("{}", Some(1), "cccc864bb"),
            ("{}", Some(2), "cccc864b9"),
            ("", None, "65bb57b6b5"),
        ] {
            assert_eq!(hash(data, collisions), expected, "{data:?} {collisions:?}");
        }
    }

    #[test]
    fn revision_name_is_a_label_value() {
        assert_eq!(name("default", "65bb57b6b5"), "default-65bb57b6b5");
        assert_ne!(name("default", "65bb57b6b5"), name("other", "65bb57b6b5"), "of two operators");
        for operator in ["a".repeat(253), format!("{}-.{}", "a".repeat(50), "b".repeat(200))] {
            let name = name(&operator, "65bb57b6b5");
            assert!(name.len() <= 63 && !name.contains("-.") && !name.contains("--"), "{name}");
        }
    }
}
