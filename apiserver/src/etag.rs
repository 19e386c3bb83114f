//! The etag of a shadow in its agent's view: a digest of uid, generation and agent status.
//!
//! The controller status is left out on purpose: a change of it must not refuse an agent's report. Every replica of one
//! version computes the same etag for the same object.

use models::wire::AgentStatus;
use sha2::{Digest, Sha256};

/// Number of hexadecimal digits of an etag: enough that two states of one shadow never share one.
const LENGTH: usize = 32;

/// Returns the etag for a state of a shadow.
///
/// # Errors
///
/// Returns an error if the status cannot be written as JSON, which the types exclude.
pub(crate) fn etag(uid: &str, generation: i64, status: &AgentStatus) -> Result<String, serde_json::Error> {
    let mut status = status.clone();
    // The API server may order a list of two writers in any way.
    status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    let mut status = serde_json::to_value(&status)?;
    // Whatever order the JSON library keeps.
    status.sort_all_objects();
    let mut etag = format!("{:x}", Sha256::digest(format!("{uid}\n{generation}\n{status}")));
    etag.truncate(LENGTH);
    Ok(etag)
}

/// Returns the etags in an `If-Match` header, without their quotes. Weak ones match nothing (RFC 9110, 13.1.1).
pub(crate) fn parse_if_match(header: &str) -> Vec<&str> {
    header
        .split(',')
        .map(str::trim)
        .filter(|tag| !tag.is_empty() && !tag.starts_with("W/"))
        .map(|tag| tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or(tag))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(text: &str) -> AgentStatus {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn etag_is_independent_of_serialization() {
        let a = status(r#"{"state": "Idle", "currentVersion": "1.20.0", "updates": {"chosenVersion": "1.20.5"}}"#);
        let b = status(
            r#"{"updates": {"availableVersions": [], "chosenVersion": "1.20.5"}, "currentVersion": "1.20.0", "state": "Idle", "failure": null}"#,
        );
        assert_eq!(etag("u", 3, &a).unwrap(), etag("u", 3, &b).unwrap());
    }

    #[test]
    fn etag_changes_with_uid_generation_and_agent_status() {
        let a = status(r#"{"state": "Idle"}"#);
        let base = etag("u", 3, &a).unwrap();
        assert_ne!(base, etag("v", 3, &a).unwrap());
        assert_ne!(base, etag("u", 4, &a).unwrap());
        assert_ne!(base, etag("u", 3, &status(r#"{"state": "StagedUpdate"}"#)).unwrap());
        assert_ne!(base, etag("u", 3, &status(r#"{"state": "Idle", "observedGeneration": 3}"#)).unwrap());
    }

    /// Pinned: a replica of the next patch release has to agree with this one while both serve.
    #[test]
    fn etag_of_empty_report_is_stable() {
        let text = format!("{:x}", Sha256::digest(b"uid\n1\n{}"));
        assert_eq!(etag("uid", 1, &AgentStatus::default()).unwrap(), text[..32]);
    }

    #[test]
    fn if_match_accepts_quoted_and_bare_but_not_weak_etags() {
        assert_eq!(parse_if_match("\"ab\""), ["ab"]);
        assert_eq!(parse_if_match("ab"), ["ab"]);
        assert_eq!(parse_if_match("\"ab\", W/\"cd\" , ef"), ["ab", "ef"]);
        assert!(parse_if_match(" , ").is_empty());
    }
}
