//! Each step of an instance and of a group once what was done is to be taken back.

use super::*;

#[test]
fn taken_back_after_the_update_and_without_request_node_or_mode() {
    for mode in MODES {
        let back = if mode == AwsMode::Standby { "exit i-a" } else { "resume web i-a" };
        let change = |change: fn(&mut World)| {
            let mut world = World::prepared(mode);
            change(&mut world);
            (world.to_read(), world.decide())
        };
        let expected = (vec!["i-a".to_owned()], vec![back.to_owned()]);
        assert_eq!(change(|world| world.request("a", "AfterUpdate/1/100")), expected);
        assert_eq!(change(|world| world.node("a").request = None), expected);
        assert_eq!(change(|world| drop(world.nodes.remove("a"))), expected);
        let other_instance = |world: &mut World| world.node("a").instance = Ok("i-other".into());
        assert_eq!(change(other_instance), expected, "a Node of the same name with another instance");
        let refused = |world: &mut World| world.node("a").answer = Some(format!("{BEFORE} Refused: denied"));
        assert_eq!(change(refused), expected, "refused after it was recorded");
        let changed_mode = |world: &mut World| {
            world.policy.mode = world.policy.mode.map(|mode| if mode == MODES[0] { MODES[1] } else { MODES[0] });
            world.request("a", "AfterUpdate/1/100");
        };
        assert_eq!(change(changed_mode), expected, "as it was entered");
        let no_mode = |world: &mut World| {
            world.policy.mode = None;
            world.node("a").request = None;
        };
        assert_eq!(change(no_mode), expected);
        let ready_without_slot = |world: &mut World| world.node("a").backing = Backing::Missing;
        assert_eq!(change(ready_without_slot), expected, "it is back, or the request is not the operator's");
        let after_without_slot = |world: &mut World| {
            world.node("a").backing = Backing::Missing;
            world.request("a", "AfterUpdate/1/100");
        };
        assert_eq!(change(after_without_slot), expected);
        let unknown = |world: &mut World| world.node("a").backing = Backing::Unknown;
        assert!(change(unknown).1.is_empty(), "as after the operator's resource was made again");
        // A policy that changes in the middle changes nothing for a node that is prepared.
        assert!(change(|world| world.policy.mode = None).1.is_empty());
    }
}

/// The operator frees the slot of a host that is not back from its reboot in time, and leaves the request while it may still reboot.
#[test]
fn host_that_may_still_reboot_keeps_what_was_done_without_its_slot() {
    for mode in MODES {
        let mut world = World::prepared(mode);
        let back = if mode == AwsMode::Standby { "exit i-a" } else { "resume web i-a" };
        world.node("a").backing = Backing::Missing;
        let mut at = |ready: bool, since: i64| {
            (world.node("a").ready, world.node("a").since) = (ready, Some(t(since)));
            (world.to_read(), world.decide())
        };
        let taken_back = (vec!["i-a".to_owned()], vec![back.to_owned()]);
        assert_eq!(at(false, -1), (vec![], vec![]), "just not Ready");
        assert_eq!(at(false, -1500), (vec![], vec![]), "as long as a reboot may take");
        assert_eq!(at(false, -1501), taken_back, "lost");
        assert_eq!(at(true, -1), taken_back, "back");
        world.node("a").ready = false;
        world.node("a").request = None;
        assert_eq!((world.to_read(), world.decide()), taken_back, "the attempt is over");
    }
}

#[test]
fn what_was_done_for_a_node_that_cannot_be_read_stays() {
    for mode in MODES {
        let mut world = World::prepared(mode);
        world.nodes.remove("a");
        world.unreadable.insert("a".into());
        assert!(world.decide().is_empty() && world.to_read().is_empty(), "{:?}", world.decide());
    }
}

#[test]
fn nothing_begins_for_a_host_that_is_not_ready_without_a_slot() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("a", BEFORE);
        (world.node("a").backing, world.node("a").ready, world.node("a").since) =
            (Backing::Missing, false, Some(t(-1)));
        assert!(world.decide().is_empty() && world.to_read().is_empty(), "{:?}", world.decide());
        world.enter("a", 0);
        assert!(world.decide().is_empty() && world.to_read().is_empty(), "recorded: {:?}", world.decide());
    }
}

#[test]
fn after_update_is_answered_once_the_instance_is_forgotten() {
    let mut world = World::prepared(AwsMode::Standby);
    world.request("a", "AfterUpdate/1/100");
    for state in ["Pending", "Pending:Wait", "Pending:Proceed", "EnteringStandby"] {
        world.instance("a").state = state.into();
        assert!(world.decide().is_empty(), "{state}");
    }
    world.instance("a").state = "InService".into();
    assert_eq!(world.decide(), ["forget i-a"]);
    world.record.clear();
    assert_eq!(world.decide(), ["answer a AfterUpdate/1/100"]);
    world.node("a").answer = Some("AfterUpdate/1/100".into());
    assert!(world.decide().is_empty());
    world.node("a").request = None;
    assert_eq!(world.decide(), ["answer a"], "the answer is removed");
}

#[test]
fn instance_that_may_still_enter_standby_is_not_forgotten() {
    let mut world = World::new(AwsMode::Standby);
    world.enter("a", -59);
    assert!(world.decide().is_empty());
    world.now = t(1);
    assert_eq!(world.decide(), ["forget i-a"]);
    world.instance("a").state = "Standby".into();
    assert_eq!(world.decide(), ["exit i-a"]);
    world.held.insert("i-a".into());
    assert!(world.decide().is_empty());
    world.leaving.insert("i-a".into());
    assert!(world.decide().is_empty(), "its call is under way, or AWS does not show it yet");
    world.instance("a").state = "InService".into();
    assert_eq!(world.decide(), ["forget i-a"], "it is back");
}

#[test]
fn instance_that_is_gone_is_forgotten() {
    for mode in MODES {
        for change in [
            |world: &mut World| drop(world.instances.insert("i-a".into(), None)),
            |world: &mut World| world.instance("a").state = "Terminating".into(),
        ] {
            let mut world = World::prepared(mode);
            world.nodes.remove("a");
            change(&mut world);
            let expected = if mode == AwsMode::Standby { "forget i-a" } else { "resume web i-a" };
            assert_eq!(world.decide(), [expected]);
        }
    }
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.nodes.remove("a");
    world.groups.insert("web".into(), None);
    assert_eq!(world.decide(), ["forget i-a"], "the group was deleted");
}

#[test]
fn group_is_resumed_with_its_last_node() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.request("b", "BeforeDrain/1/200");
    assert_eq!(world.decide(), ["record i-b SuspendReplaceUnhealthy"], "suspended by this program");
    world.enter("b", 0);
    world.request("a", "AfterUpdate/1/100");
    assert_eq!(world.decide(), ["suspend web b", "forget i-a"]);
    world.node("b").answer = Some("BeforeDrain/1/200".into());
    assert_eq!(world.decide(), ["forget i-a"]);
    world.node("b").request = None;
    assert_eq!(world.decide(), ["resume web i-a i-b"]);
    world.held.insert("web".into());
    assert!(world.decide().is_empty());
}

#[test]
fn process_that_another_client_resumed_is_left_to_it() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.node("a").request = None;
    world.group().suspended = false;
    assert_eq!(world.decide(), ["forget i-a"]);
    world.enter("a", -59);
    assert_eq!(world.decide(), ["resume web i-a"], "a call may be under way");
}

#[test]
fn instance_marked_unhealthy_by_its_reboot_is_set_healthy_first() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", "AfterUpdate/1/100");
    world.instance("a").unhealthy = true;
    assert_eq!(world.decide(), ["healthy i-a"]);
    world.node("a").ready = false;
    assert_eq!(world.decide(), ["resume web i-a"], "a node that did not come back is replaced");
    world.node("a").ready = true;
    world.request("b", BEFORE);
    world.node("b").answer = Some(BEFORE.into());
    world.enter("b", 0);
    assert_eq!(world.decide(), ["healthy i-a"], "also while others are updated");
}

#[test]
fn unhealthy_instances_are_set_healthy_at_once_and_keep_no_other_waiting() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.enter("b", -600);
    world.instances.insert("i-c".into(), world.instances["i-a"].clone());
    world.enter("c", -600);
    for name in ["a", "b", "c"] {
        world.request(name, "AfterUpdate/1/100");
        world.instance(name).unhealthy = name != "c";
    }
    assert_eq!(world.decide(), ["healthy i-a", "healthy i-b", "forget i-c"]);
    for (free, calls) in [(1, &["healthy i-a", "forget i-c"][..]), (0, &["forget i-c"])] {
        world.free = free;
        assert_eq!(world.decide(), calls, "others are under way");
    }
    world.free = 10;
    world.held.insert("web".into());
    assert_eq!(world.decide(), ["healthy i-a", "healthy i-b"], "whatever holds the group");
    world.held = ["i-a".into()].into();
    assert_eq!(world.decide(), ["healthy i-b", "forget i-c"]);
    world.instance("a").unhealthy = false;
    world.instance("b").unhealthy = false;
    assert_eq!(world.decide(), ["forget i-b", "forget i-c"], "the health check of the group may not have seen i-a yet");
    world.record.retain(|id, _| id == "i-a");
    for name in ["b", "c"] {
        world.node(name).request = None;
    }
    assert!(world.decide().is_empty());
    world.held.clear();
    assert_eq!(world.decide(), ["resume web i-a"]);
}

#[test]
fn instance_that_stays_unhealthy_is_given_up() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", "AfterUpdate/1/100");
    world.instance("a").unhealthy = true;
    world.given_up.insert("i-a".into());
    assert_eq!(world.decide(), ["resume web i-a"]);
    world.held.insert("i-a".into());
    assert!(world.decide().is_empty(), "AWS may not show the last time yet");
    world.held.clear();
    world.group().suspended = false;
    assert_eq!(world.decide(), ["forget i-a"]);
}

#[test]
fn process_that_was_just_resumed_is_no_other_clients() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.node("a").request = None;
    world.held.insert("web".into());
    world.request("b", BEFORE);
    assert!(world.decide().is_empty(), "while the process is resumed");
    world.held.clear();
    let decided = world.decide();
    assert!(decided.contains(&"record i-b SuspendReplaceUnhealthy".to_owned()), "AWS still shows it: {decided:?}");
}

#[test]
fn host_that_does_not_come_back_is_left_to_its_group() {
    for mode in MODES {
        let mut world = World::prepared(mode);
        let back = if mode == AwsMode::Standby { "exit i-a" } else { "resume web i-a" };
        let mut at = |ready: bool, since: Option<i64>| {
            (world.node("a").ready, world.node("a").since) = (ready, since.map(t));
            (world.to_read(), world.decide())
        };
        assert_eq!(at(false, Some(-1500)), (vec![], vec![]), "as long as a reboot may take");
        assert_eq!(at(true, Some(-1501)), (vec![], vec![]));
        assert_eq!(at(false, None), (vec![], vec![]), "not known");
        assert_eq!(at(false, Some(-1501)), (vec!["i-a".to_owned()], vec![back.to_owned()]));
        world.policy.reboot = Duration::from_mins(30);
        assert!(world.decide().is_empty());
        world.policy.reboot = Duration::from_mins(25);
        world.record.clear();
        assert!(world.decide().is_empty(), "its request and its answer stay");
    }
}
