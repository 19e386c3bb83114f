//! The domain of the cluster, as flags and the chart's value have it.

/// Pattern of the domain.
pub const PATTERN: &str = "^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$";

/// Reads a domain that matches [`PATTERN`]. The names of a certificate are compared in lower case: one with a capital letter
/// would never be found in it, and the certificate issued for ever.
///
/// # Errors
/// If it does not match, with what was given.
pub fn parse(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    if text.starts_with(is_plain) && text.ends_with(is_plain) && text.chars().all(|c| is_plain(c) || "-.".contains(c)) {
        return Ok(text.to_owned());
    }
    Err(format!("'{text}' is no domain: write lower-case letters, digits, '-' and '.', such as cluster.local"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn domain_is_in_lower_case_and_begins_and_ends_with_letter_or_digit() {
        for (text, is_domain) in [
            ("cluster.local", true),
            ("a", true),
            ("k8s-1.corp.example", true),
            ("Corp.Example", false),
            ("corp.example.", false),
            (".corp", false),
            ("-corp", false),
            ("corp_1.example", false),
            ("corp.example:443", false),
            ("bücher.example", false),
            ("", false),
        ] {
            assert_eq!(parse(text).ok().as_deref(), is_domain.then_some(text), "{text}");
        }
    }
}
