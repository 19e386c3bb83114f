use std::collections::HashSet;

use super::*;

fn all() -> Vec<Situation> {
    [false, true].into_iter().flat_map(all_with).collect()
}

fn all_with(perhaps_armed: bool) -> Vec<Situation> {
    let mut out = Vec::new();
    for desired in [Desired::Idle, Desired::Stage, Desired::Reboot, Desired::Rehearse, Desired::Unknown] {
        for failed in [false, true] {
            for boot in [Boot::Same, Boot::Other] {
                for image in [Image::Nothing, Image::Staged, Image::Doubtful, Image::Ready] {
                    for armed_by in [ArmedBy::ThisAttempt, ArmedBy::OlderAttempt, ArmedBy::Other] {
                        for may_disarm in [false, true] {
                            for mark in [Mark::Activated, Mark::Not] {
                                for running in [Running::Wanted, Running::Old, Running::Third] {
                                    out.push(Situation {
                                        desired,
                                        failed,
                                        boot,
                                        image,
                                        perhaps_armed,
                                        armed_by,
                                        may_disarm,
                                        mark,
                                        running,
                                    });
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    out
}

#[test]
fn step_table_covers_all_situations_and_uses_all_rows() {
    let mut used = HashSet::new();
    for situation in all() {
        let row = TABLE.iter().position(|row| row.fits(&situation));
        used.insert(row.unwrap_or_else(|| panic!("no row for {situation:?}")));
    }
    let dead: Vec<_> = (0..TABLE.len()).filter(|i| !used.contains(i)).map(|i| TABLE[i]).collect();
    assert!(dead.is_empty(), "{dead:?}");
}

#[test]
fn host_is_armed_only_for_current_reboot_request_with_staged_image() {
    for s in all() {
        if matches!(step(&s), Step::Arm) {
            assert!(
                s.desired == Desired::Reboot && !s.failed && s.boot == Boot::Same && s.image == Image::Staged,
                "{s:?}"
            );
        }
        if matches!(step(&s), Step::RebootArmed) {
            assert!(
                s.desired == Desired::Reboot && !s.failed && s.boot == Boot::Same && s.armed_by == ArmedBy::ThisAttempt,
                "{s:?}"
            );
        }
    }
}

#[test]
fn rehearsal_neither_arms_nor_reboots_nor_is_taken_for_an_update() {
    for s in all() {
        let step = step(&s);
        let allowed = |step| matches!(step, Step::Rehearse | Step::Rest | Step::Deactivate | Step::Fail(_));
        assert!(s.desired != Desired::Rehearse || allowed(step), "{s:?}: {step:?}");
        assert!(
            step != Step::Rehearse || (s.desired == Desired::Rehearse && !s.failed && s.boot == Boot::Same),
            "{s:?}"
        );
    }
}

#[test]
fn foreign_activation_is_disarmed_only_when_idle_and_permitted_by_user() {
    for s in all() {
        if s.image == Image::Ready && s.armed_by == ArmedBy::Other {
            let disarms = step(&s) == Step::Deactivate;
            assert_eq!(disarms, s.desired == Desired::Idle && s.may_disarm, "{s:?}");
        }
    }
}

#[test]
fn disarm_annotation_affects_only_foreign_activation_when_idle() {
    for s in all() {
        let theirs = s.desired == Desired::Idle && s.image == Image::Ready && s.armed_by == ArmedBy::Other;
        if s.may_disarm && !theirs {
            assert_eq!(step(&s), step(&Situation { may_disarm: false, ..s }), "{s:?}");
        }
    }
}

#[test]
fn own_activation_is_disarmed_when_desired_state_is_idle() {
    for s in all() {
        if s.desired == Desired::Idle && s.image == Image::Ready && s.armed_by != ArmedBy::Other {
            assert_eq!(step(&s), Step::Deactivate, "{s:?}");
        }
    }
}

#[test]
fn idle_and_staged_are_not_reported_while_disk_may_be_armed() {
    for s in all().into_iter().filter(|s| s.perhaps_armed) {
        let reached = matches!(step(&s), Step::Reached(HostState::Idle | HostState::StagedUpdate));
        assert!(!reached, "{s:?}");
    }
}

#[test]
fn image_is_armed_at_most_once_per_attempt() {
    for s in all().into_iter().filter(|s| s.mark == Mark::Activated) {
        assert_ne!(step(&s), Step::Arm, "{s:?}");
    }
}

#[test]
fn boot_fell_back_requires_activation_by_this_attempt_and_new_boot() {
    for s in all() {
        if step(&s) == Step::Fail(FailureReason::BootFellBack) {
            assert!(s.mark == Mark::Activated && s.running == Running::Old && s.boot == Boot::Other, "{s:?}");
        }
    }
}
