//! Names that are like a mistyped one.

/// Number of names that are returned.
const NAMED: usize = 3;

/// Returns the names that are most like one.
pub(crate) fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = 2.max(name.chars().count() / 4);
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|other| {
            let part = !name.is_empty() && other.contains(name);
            let distance = if part { 0 } else { strsim::levenshtein(name, other) };
            (distance <= limit).then_some((distance, other))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(NAMED).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_are_recognized() {
        let names = ["ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal", "worker-a"];
        for (name, expected) in [
            ("ip-10-0-0-1", vec!["ip-10-0-0-1.ec2.internal"]),
            ("ip-10-0-0-3.ec2.internal", vec!["ip-10-0-0-1.ec2.internal", "ip-10-0-0-2.ec2.internal"]),
            ("wroker-a", vec!["worker-a"]),
            ("elsewhere", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(near(name, names.into_iter()), expected, "{name}");
        }
    }
}
