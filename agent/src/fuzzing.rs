//! The fuzz targets: each parser of outside input, and the invariants that hold for any input. The unit tests run them over
//! the inputs that are kept (`fuzz/`), the fuzzer over its own; no program contains them.

use jiff::Timestamp;
use models::permit::PermitClaims;
use models::shadow::{FoundSettings, HostPolicy, HostState};
use models::wire::{AgentStatus, WatchLine};
use semver::Version;
use serde_json::Value;

use crate::desired_state::{AttemptId, DesiredState};
use crate::host::settings::HostSettings;
use crate::host::types::{OsInfo, UpdateState, UpdateStatus};
use crate::memory::Memory;
use crate::report::{Finding, HostCondition, build, differs};
use crate::server::{Buffer, problem_text};
use crate::settings::{RequestedSettings, decide};
use crate::situation::Facts;
use crate::statement::{node_uid, open};

/// A target: its name, and what is run over an input.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("host_replies", host_replies),
    ("stream_lines", stream_lines),
    ("problem_bodies", problem_bodies),
    ("statements", statements),
    ("host_settings", host_settings),
];

/// Maximum lengths that the shadow's schema accepts; a longer text would have every report rejected.
const LONGEST_VERSION: usize = 64;

fn desired() -> DesiredState {
    DesiredState {
        attempt: AttemptId { uid: "s".into(), attempt: 1 },
        state: HostState::StagedUpdate,
        version: Some(Version::new(1, 20, 5)),
        boot_id: Some("b".into()),
    }
}

/// `GET /os` and `GET /updates/status`: any answer of the host can be reported.
fn host_replies(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let os = OsInfo::read(&value).or_else(|| OsInfo::read(value.get("os")?));
    let os = os.unwrap_or(OsInfo { version: Version::new(1, 20, 0), variant: String::new(), arch: String::new() });
    let status = UpdateStatus::read(&value);
    let mut memory = Memory { requested_refresh: true, ..Memory::default() };
    if let Some(status) = &status {
        memory.learn(status, &desired());
        if memory.prepared.is_some() {
            assert_eq!(status.state, UpdateState::Staged, "an image is trusted that is not staged");
            assert_eq!(status.staged_version(), Some(&Version::new(1, 20, 5)), "another image is trusted");
        }
    }
    let facts = Facts { os, boot_id: "b".into(), status };
    let condition = HostCondition::unsupported("x".repeat(5000));
    let report = |stored: &AgentStatus| {
        build(stored, 1, &facts, &memory, &Finding::AtRest(HostState::Idle), &condition, Timestamp::MIN)
    };
    let first = report(&AgentStatus::default());
    assert!(!differs(&first, &report(&first)), "a report of the same is another one");
    let updates = first.report.updates.clone().unwrap_or_default();
    let versions =
        updates.available_versions.iter().chain(&updates.chosen_version).chain(&first.report.current_version);
    for version in versions {
        assert!(version.to_string().len() <= LONGEST_VERSION, "a version that no schema takes: {version}");
        let largest = version.major.max(version.minor).max(version.patch);
        assert!(largest < 1_000_000_000_000_000_000, "a version that no schema takes: {version}");
    }
    assert!(updates.available_versions.len() <= 64);
    assert!(updates.refresh_failure.as_ref().is_none_or(|text| text.chars().count() <= 1024));
    assert!(first.report.variant.as_ref().is_none_or(|text| text.chars().count() <= 64));
    assert!(first.report.arch.as_ref().is_none_or(|text| text.chars().count() <= 32));
    let texts = [updates.refresh_failure, first.report.variant, first.report.arch];
    assert!(!texts.iter().flatten().any(|text| text.contains(char::is_control)), "a control character: {texts:?}");
}

/// The lines of the stream: the same however the bytes are split, and each is a known line, an unknown line, or not
/// understood.
fn stream_lines(data: &[u8]) {
    let lines = |piece: usize| {
        let mut buffer = Buffer::default();
        let mut lines = Vec::new();
        for piece in data.chunks(piece) {
            if buffer.push(piece).is_err() {
                break;
            }
            while let Some(line) = buffer.line() {
                assert!(!line.contains(&b'\n'), "a line of two lines");
                lines.push(line);
            }
        }
        lines
    };
    let whole = lines(data.len().max(1));
    let piece = usize::from(data.first().copied().unwrap_or(1)).max(1);
    assert_eq!(whole, lines(piece), "lines depend on the pieces that they arrive in");
    for line in whole {
        if let Ok(line) = serde_json::from_slice::<WatchLine>(&line) {
            let written = serde_json::to_vec(&line).unwrap_or_default();
            let read = serde_json::from_slice::<WatchLine>(&written).ok();
            assert!(
                matches!(line, WatchLine::Unknown) || read == Some(line),
                "what was read cannot be written and read"
            );
        }
    }
}

/// The body of a refusal: what is logged of it is short.
fn problem_bodies(data: &[u8]) {
    assert!(problem_text(reqwest::StatusCode::BAD_REQUEST, data).chars().count() <= 512);
}

/// Statements, their keys, and the agent's own token: a statement without the signature of a trusted key is never
/// accepted.
fn statements(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (jws, keys) = text.split_once('\n').unwrap_or((&text, ""));
    // A client that can choose the keys can sign; so the keys are another client's here, or none.
    for keys in [keys, KEYS] {
        let own = keys != KEYS;
        let read = open::<PermitClaims>(jws, keys);
        assert!(own || read.is_err(), "a forged statement is accepted");
    }
    if let Some(uid) = node_uid(&text) {
        assert!(!uid.is_empty());
    }
}

/// A public key whose private key does not exist.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"k1","alg":"ES256",
    "x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

/// `GET /settings`: a decision never replaces anything but a default, and can be reported.
fn host_settings(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let Some(now) = HostSettings::read(&value) else { return };
    let policies = [
        HostPolicy::default(),
        HostPolicy { version_lock: Some("1.20.5".into()), ignore_waves: Some(true), ..HostPolicy::default() },
    ];
    for policy in policies {
        let Ok(requested) = RequestedSettings::of(&policy) else { continue };
        let decision = decide(&requested, &now, &FoundSettings::default());
        if decision.change.version_lock.is_some() {
            assert!(
                now.version_lock.as_deref().is_none_or(|lock| lock == "latest"),
                "another client's lock is replaced"
            );
        }
        if decision.change.ignore_waves.is_some() {
            assert!(now.ignore_waves != Some(true), "another client's setting is replaced");
        }
        for text in [&decision.record.version_lock, &decision.record.conflicting_lock].into_iter().flatten() {
            assert!(text.chars().count() <= 64, "a lock that no schema takes: {text}");
        }
    }
}

#[cfg(test)]
#[path = "../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn stored_fuzz_inputs_satisfy_all_invariants() {
    seeds::hold("agent", TARGETS);
}
