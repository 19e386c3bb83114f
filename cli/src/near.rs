//! Names that are like a mistyped one.

/// Number of names that are returned.
const NAMED: usize = 3;

/// Returns the names that are most like one.
pub(crate) fn near<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let limit = 2.max(name.chars().count() / 4);
    let mut near: Vec<(usize, &str)> = names
        .filter_map(|other| {
            let part = !name.is_empty() && other.contains(name);
            let distance = if part { 0 } else { distance(name, other) };
            (distance <= limit).then_some((distance, other))
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(NAMED).map(|(_, name)| name).collect()
}

/// Returns the number of characters to insert, remove or replace between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, of_a) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, of_b) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(of_a != *of_b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[b.len()]
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

    #[test]
    fn distance_of_names_counts_edits() {
        for (a, b, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ab", 1),
            ("", "ab", 2),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
