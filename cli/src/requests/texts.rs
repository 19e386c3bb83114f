//! Texts that several commands write.

use jiff::Timestamp;

use crate::advice;

/// Returns the value of a one-shot request that no other request has.
pub(super) fn nonce(now: Timestamp) -> String {
    format!("kubectl-brupop {now:.9}")
}

/// Returns the first of some names, and the number of the others.
pub(super) fn some(names: &[String]) -> String {
    advice::some(names.iter().map(String::as_str), 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_value_fits_its_acknowledgement_and_differs_each_time() {
        let now = Timestamp::now();
        let later = now + jiff::SignedDuration::from_nanos(1);
        assert!(nonce(now).len() <= 64 && nonce(now) != nonce(later), "{}", nonce(now));
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
        assert_eq!(some(&names), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
        assert_eq!(some(&names[..2]), "0, 1");
    }
}
