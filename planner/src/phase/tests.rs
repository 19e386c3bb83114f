//! The list of phases.

use super::*;

const MODES: [Mode; 6] = [
    Mode::Update,
    Mode::Drill { evict: false, download: false },
    Mode::Drill { evict: false, download: true },
    Mode::Drill { evict: true, download: false },
    Mode::Drill { evict: true, download: true },
    Mode::Verification,
];

#[test]
fn each_step_has_one_phase_in_the_order_in_which_attempts_pass_them() {
    let steps: Vec<_> = PHASES.iter().map(|phase| phase.step).collect();
    assert_eq!(steps, Step::ALL);
    assert!(steps.is_sorted_by_key(|step| step.place()), "{steps:?}");
    assert!(Phase::of_step(Step::Unknown).is_none());
}

#[test]
fn drills_have_all_phases_but_those_of_a_rebooted_node_and_verifications_those_of_a_node_that_is_back() {
    let path = |mode| Phase::path(mode).map(|phase| phase.step).collect::<Vec<_>>();
    let update = path(Mode::Update);
    assert_eq!(update.len(), PHASES.len() - 1, "all but the one that ends an attempt early");
    for mode in MODES.iter().filter(|mode| mode.is_drill()) {
        let without: Vec<_> = update.iter().copied().filter(|step| step.place() != Place::Booted).collect();
        assert_eq!(path(*mode), without, "{mode:?}");
    }
    assert_eq!(path(Mode::Verification), [Step::Verifying, Step::AfterUpdate]);
}

#[test]
fn what_takes_a_node_out_of_service_is_backed_and_claimed_until_the_node_is_back() {
    for phase in PHASES {
        let out = matches!(phase.step.place(), Place::Leaving | Place::Away | Place::Booted);
        assert_eq!(phase.claims != Claims::Nothing, out, "{:?}", phase.step);
        let back = phase.step.place() == Place::Back;
        assert_eq!(phase.backing != Backing::Nothing, out || back, "{:?}", phase.step);
    }
}

#[test]
fn texts_of_phases_are_clauses_that_others_put_into_sentences() {
    for (phase, mode) in PHASES.iter().flat_map(|phase| MODES.map(|mode| (phase, mode))) {
        for text in [(phase.holds)(mode), (phase.awaits)(mode), (phase.late)(mode), (phase.log)(mode)] {
            assert!(!text.is_empty() && !text.ends_with('.'), "{:?} of {mode:?}: {text}", phase.step);
        }
    }
}

#[test]
fn step_of_the_next_version_is_a_row_and_a_file_beside_its_name_and_the_phase_before_it() {
    // The patch is built, and its programs are tested beside these: `integ/next`.
    let patch = include_str!("../../../integ/next/next.patch");
    let files = patch.split("diff --git a/").filter(|diff| diff.contains("Planning"));
    let names: Vec<_> = files.filter_map(|diff| diff.split(' ').next()).collect();
    let expected = [
        "models/src/shadow/controller.rs",
        "planner/src/phase/mod.rs",
        "planner/src/phase/planning.rs",
        "planner/src/phase/waiting.rs",
    ];
    assert_eq!(names, expected);
}
