//! One place of each kind that mutants change, and tests that notice some of them.

/// A size, of which each is a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Size {
    pub height: u32,
    pub width: u32,
    pub unit: u32,
}

/// Has no default.
#[derive(Debug, PartialEq, Eq)]
pub enum Shape {
    Flat,
    High,
}

pub const fn doubled(value: u32) -> u32 {
    value + value
}

pub const LIMIT: u32 = 3 + 4;

pub fn sum(values: &[u32]) -> u32 {
    let (mut at, mut sum) = (0, 0);
    while at < values.len() {
        sum += values[at];
        at += 1;
    }
    sum
}

pub fn odd(values: &[u32]) -> impl Iterator<Item = u32> {
    values.iter().copied().filter(|value| value % 2 == 1)
}

pub fn shape(size: &Size) -> Shape {
    if size.height * 2 < size.width || size.height == 0 { Shape::Flat } else { Shape::High }
}

pub fn size(height: u32) -> Size {
    Size { height, unit: 0, ..Size { width: doubled(height), ..Size::default() } }
}

pub fn word(value: Option<u32>) -> &'static str {
    match value {
        Some(0) => "nothing",
        Some(value) if value > LIMIT && !value.is_multiple_of(2) => "odd",
        Some(_) => "some",
        _ => "unknown",
    }
}

pub fn same(left: Option<u32>, right: Option<u32>) -> bool {
    if let Some(left) = left
        && left != 0
        && let Some(right) = right
    {
        return left - right == 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_all_values() {
        assert_eq!(sum(&[1, 2]), 3);
    }

    #[test]
    fn odd_values_are_left() {
        assert_eq!(odd(&[1, 2, 5]).collect::<Vec<_>>(), [1, 5]);
    }

    #[test]
    fn a_broad_size_is_flat() {
        assert_eq!(shape(&Size { height: 1, width: 5, unit: 0 }), Shape::Flat);
        assert_eq!(shape(&Size { height: 0, width: 0, unit: 0 }), Shape::Flat);
        assert_eq!(shape(&Size { height: 2, width: 2, unit: 0 }), Shape::High);
        assert_eq!(size(1), Size { height: 1, width: 2, unit: 0 });
    }

    #[test]
    fn values_have_words() {
        assert_eq!(["nothing", "odd", "some", "unknown"], [Some(0), Some(9), Some(10), None].map(word));
    }

    #[test]
    fn the_same_values_are_the_same() {
        assert!(same(Some(1), Some(1)));
        assert!(!same(Some(2), Some(1)));
        assert!(!same(Some(1), None));
    }

    #[test]
    fn slow() {
        assert_eq!(word(Some(3)), "never run");
    }
}
