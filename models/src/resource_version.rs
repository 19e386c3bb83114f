//! Resource versions. Those of one resource are compared by length, then by their characters (KEP-5504).

/// Maximum number of digits, more than any cluster counts to.
const LONGEST: usize = 40;

/// Returns true if version `a` is newer than `b`.
pub fn newer(a: &str, b: &str) -> bool {
    (a.len(), a) > (b.len(), b)
}

/// Returns true if a text from outside is a resource version: a positive integer of reasonable length.
pub fn is_valid(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_versions_compare_numerically() {
        for (older, newest) in
            [("9", "10"), ("10", "11"), ("11", "12"), ("", "1"), ("999999999999999999999", "1000000000000000000000")]
        {
            assert!(newer(newest, older) && !newer(older, newest), "{older} and {newest}");
        }
        assert!(!newer("11", "11"));
    }

    #[test]
    fn resource_version_must_be_positive_integer() {
        for (text, valid) in [
            ("120", true),
            (&*"9".repeat(40), true),
            (&*"9".repeat(41), false),
            ("", false),
            ("0", false),
            ("012", false),
            ("-1", false),
            ("1a", false),
            ("٣", false),
            (" 1", false),
        ] {
            assert_eq!(is_valid(text), valid, "{text:?}");
        }
    }
}
