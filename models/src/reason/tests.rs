use std::collections::BTreeSet;

use super::*;

#[test]
fn each_failure_reason_has_one_end_whose_word_finds_it() {
    let words: BTreeSet<_> = ENDS.iter().map(|end| end.reason).collect();
    assert_eq!(words.len(), ENDS.len(), "each word once");
    assert!(!words.contains(FailureReason::Unknown.as_str()));
    for end in ENDS {
        assert_eq!(End::of(end.reason), Some(*end));
        assert!(end.failure.is_none_or(|failure| failure.end() == *end), "{end:?}");
        assert!(end.text.ends_with('.') && !end.text.contains("  "), "{end:?}");
    }
    assert_eq!(End::of("EatenByMoths"), None);
}

#[test]
fn end_of_an_update_counts_against_something_exactly_if_it_is_a_failure_and_has_advice_then() {
    for end in ENDS.iter().filter(|end| !end.is_of_drills()) {
        assert_eq!(end.backs_off(), end.event == UpdateFailed, "{end:?}");
    }
    for end in ENDS {
        assert!(!end.event.is_warning() || !end.advice.is_empty(), "{end:?}");
        assert!(!end.is_of_drills() || end.class == Nothing, "{end:?}");
    }
    assert_eq!(EndEvent::of_update("EatenByMoths"), UpdateFailed);
}

#[test]
fn agent_reports_no_end_that_counts_against_nothing_and_of_those_against_the_version_a_boot_alone() {
    let of_agents = || ENDS.iter().filter(|end| end.by_agent);
    assert!(of_agents().all(|end| end.failure.is_some() && end.event == UpdateFailed && end.backs_off()));
    let of_version: Vec<_> = of_agents().filter(|end| end.class == Version).map(|end| end.reason).collect();
    assert_eq!(of_version, ["BootFellBack"]);
}

#[test]
fn boots_and_health_alone_count_against_the_version() {
    let of_version = ENDS.iter().filter(|end| end.class == Version).map(|end| end.reason);
    assert_eq!(of_version.collect::<Vec<_>>(), ["BootFellBack", "NotReadyAfterBoot", "SoakFailed"]);
}

#[test]
fn good_node_without_a_policy_brakes_no_rollout() {
    for (reason, brakes) in
        [(FailureReason::Disabled, false), (FailureReason::HealthUnknown, true), (FailureReason::Held, true)]
    {
        assert_eq!(reason.end().brakes(Proof::Unproven), brakes, "{reason}");
    }
}

#[test]
fn place_of_a_node_follows_from_the_end_and_from_what_its_permit_has_led_to() {
    let all = [Permitted::Nothing, Permitted::OtherVersion, Permitted::Version, Permitted::Reboot];
    for end in ENDS.iter().filter(|end| !end.is_of_drills()) {
        let expected = match (end.reason, end.class) {
            (UPDATED, _) => [Proof::Free, Proof::Free, Proof::Proven, Proof::Unproven],
            (_, Version) => [Proof::Failed; 4],
            _ => [Proof::Free, Proof::Free, Proof::Unproven, Proof::Unproven],
        };
        assert_eq!(all.map(|permitted| end.proof(permitted)), expected, "{}", end.reason);
    }
}

#[test]
fn failure_reasons_serialize_as_displayed_and_unknown_ones_deserialize() {
    for reason in ENDS.iter().filter_map(|end| end.failure) {
        assert_eq!(serde_json::to_string(&reason).unwrap(), format!("\"{reason}\""));
    }
    let newer: FailureReason = serde_json::from_str("\"EatenByMoths\"").unwrap();
    assert_eq!(newer, FailureReason::Unknown);
}
