//! Each step of an instance and of a group, and what must not happen.

use super::*;

const SETTLE: Duration = Duration::from_secs(60);
const BEFORE: &str = "BeforeDrain/1/100";

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// A world of two groups, in which a test changes something. Every instance is looked up, as AWS would show it.
struct World {
    mode: Option<AwsMode>,
    nodes: BTreeMap<String, Node>,
    record: BTreeMap<String, Entry>,
    instances: BTreeMap<String, Option<Instance>>,
    groups: BTreeMap<String, Option<Group>>,
    held: BTreeSet<String>,
    refused: BTreeSet<String>,
    resumed: BTreeSet<String>,
    now: Timestamp,
}

impl World {
    /// Nodes `a` and `b` in group `web`, and `c` in none.
    fn new(mode: AwsMode) -> Self {
        let node = |name: &str| Node {
            name: name.into(),
            uid: format!("uid-{name}"),
            version: "1".into(),
            instance: Ok(format!("i-{name}")),
            ready: true,
            request: None,
            answer: None,
        };
        let instance = || Some(Instance { group: "web".into(), state: "InService".into(), unhealthy: false });
        let none = |found: &str| (found != "c").then(instance).flatten();
        Self {
            mode: Some(mode),
            nodes: ["a", "b", "c"].map(|name| (name.to_owned(), node(name))).into(),
            record: BTreeMap::new(),
            instances: ["a", "b", "c"].map(|name| (format!("i-{name}"), none(name))).into(),
            groups: [("web".to_owned(), Some(Group { min: 1, desired: 3, suspended: false }))].into(),
            held: BTreeSet::new(),
            refused: BTreeSet::new(),
            resumed: BTreeSet::new(),
            now: t(0),
        }
    }

    /// The same, in which node `a` is updated and what was to be done is done.
    fn prepared(mode: AwsMode) -> Self {
        let mut world = Self::new(mode);
        world.request("a", BEFORE);
        world.node("a").answer = Some(BEFORE.into());
        world.enter("a", -600);
        match mode {
            AwsMode::Standby => world.instance("a").state = "Standby".into(),
            AwsMode::SuspendReplaceUnhealthy => world.group().suspended = true,
        }
        world
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap()
    }

    fn request(&mut self, name: &str, request: &str) {
        self.node(name).request = Some(request.into());
    }

    fn instance(&mut self, name: &str) -> &mut Instance {
        self.instances.get_mut(&format!("i-{name}")).unwrap().as_mut().unwrap()
    }

    fn group(&mut self) -> &mut Group {
        self.groups.get_mut("web").unwrap().as_mut().unwrap()
    }

    fn entry(&self, name: &str, since: i64) -> Entry {
        Entry { group: "web".into(), mode: self.mode.unwrap(), node: name.into(), since: t(since) }
    }

    fn enter(&mut self, name: &str, since: i64) {
        self.record.insert(format!("i-{name}"), self.entry(name, since));
    }

    /// Returns what is decided, each step in a few words.
    fn decide(&self) -> Vec<String> {
        let actions = decide(&Snapshot {
            mode: self.mode,
            nodes: &self.nodes,
            record: &self.record,
            instances: &self.instances,
            groups: &self.groups,
            held: &self.held,
            refused: &self.refused,
            resumed: &self.resumed,
            settle: SETTLE,
            now: self.now,
        });
        let text = |action| match action {
            Action::Answer { node, text, .. } => {
                format!("answer {node} {}", text.unwrap_or_default()).trim().to_owned()
            }
            Action::Record { instance, entry: Some(entry) } => {
                assert_eq!(entry.since, self.now);
                format!("record {instance} {:?}", entry.mode)
            }
            Action::Record { instance, entry: None } => format!("forget {instance}"),
            Action::Call(Call::EnterStandby { instance, .. }) => format!("enter {instance}"),
            Action::Call(Call::ExitStandby { instance, .. }) => format!("exit {instance}"),
            Action::Call(Call::Suspend { group, .. }) => format!("suspend {group}"),
            Action::Call(Call::Resume { group, instances }) => format!("resume {group} {}", instances.join(" ")),
            Action::Call(Call::SetHealthy { instance, .. }) => format!("healthy {instance}"),
        };
        actions.into_iter().map(text).collect()
    }

    fn to_read(&self) -> Vec<String> {
        instances_to_read(self.mode, &self.nodes, &self.record)
    }
}

const MODES: [AwsMode; 2] = [AwsMode::Standby, AwsMode::SuspendReplaceUnhealthy];

#[test]
fn nothing_is_done_or_read_without_a_request() {
    for mode in MODES {
        let world = World::new(mode);
        assert!(world.decide().is_empty() && world.to_read().is_empty(), "{:?}", world.decide());
    }
}

#[test]
fn instance_is_recorded_then_in_standby_then_answered() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    assert_eq!((world.to_read(), world.decide()), (vec!["i-a".to_owned()], vec!["record i-a Standby".to_owned()]));
    world.enter("a", 0);
    assert_eq!(world.decide(), ["enter i-a"]);
    world.held.insert("i-a".into());
    assert!(world.decide().is_empty(), "its call is under way");
    world.held.clear();
    world.now = t(16);
    assert_eq!(world.decide(), ["record i-a Standby"], "the record is renewed before a late call");
    world.instance("a").state = "EnteringStandby".into();
    assert!(world.decide().is_empty());
    world.instance("a").state = "Standby".into();
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")]);
    world.node("a").answer = Some(BEFORE.into());
    assert!(world.decide().is_empty() && world.to_read().is_empty(), "nothing to do while it is updated");
}

#[test]
fn process_is_suspended_after_it_was_recorded() {
    let mut world = World::new(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", BEFORE);
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"]);
    world.enter("a", 0);
    assert_eq!(world.decide(), ["suspend web"]);
    world.group().suspended = true;
    assert_eq!(world.decide(), ["suspend web"], "what AWS shows may be old");
    world.now = t(16);
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"]);
    world.held.insert("web".into());
    assert!(world.decide().is_empty());
}

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
            world.mode = world.mode.map(|mode| if mode == MODES[0] { MODES[1] } else { MODES[0] });
            world.request("a", "AfterUpdate/1/100");
        };
        assert_eq!(change(changed_mode), expected, "as it was entered");
        let no_mode = |world: &mut World| {
            world.mode = None;
            world.node("a").request = None;
        };
        assert_eq!(change(no_mode), expected);
        // A policy that changes in the middle changes nothing for a node that is prepared.
        assert!(change(|world| world.mode = None).1.is_empty());
    }
}

#[test]
fn mode_that_changes_on_the_way_in_is_the_recorded_one() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("a", BEFORE);
        world.enter("a", 0);
        let step = if mode == AwsMode::Standby { "enter i-a" } else { "suspend web" };
        for other in [None, Some(AwsMode::Standby), Some(AwsMode::SuspendReplaceUnhealthy)] {
            world.mode = other;
            assert_eq!((world.to_read().len(), world.decide()), (1, vec![step.to_owned()]), "{other:?}");
        }
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
fn nothing_is_decided_about_what_aws_has_not_shown() {
    for mode in MODES {
        for mut world in [World::new(mode), World::prepared(mode)] {
            world.request("a", if world.record.is_empty() { BEFORE } else { "AfterUpdate/1/100" });
            world.groups.clear();
            world.instances.clear();
            assert!(world.decide().is_empty(), "{:?}", world.decide());
        }
    }
}

#[test]
fn minimum_size_refuses_standby_and_nothing_else() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    *world.group() = Group { min: 3, desired: 3, suspended: false };
    let refusal = world.decide().remove(0);
    assert!(refusal.starts_with(&format!("answer a {BEFORE} Refused: Auto Scaling group web has")), "{refusal}");
    assert!(refusal.contains("minimum 3") && refusal.contains("lower the minimum"), "{refusal}");
    world.mode = Some(AwsMode::SuspendReplaceUnhealthy);
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"]);
}

#[test]
fn nodes_of_a_group_wait_for_each_other_at_its_minimum() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    world.request("b", "BeforeDrain/1/200");
    world.group().min = 2;
    assert_eq!(world.decide(), ["record i-a Standby"], "both in one round");
    world.enter("a", 0);
    assert_eq!(world.decide(), ["enter i-a"], "AWS does not show it yet");
    world.instance("a").state = "Standby".into();
    world.group().desired = 2;
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")]);
    world.node("a").answer = Some(BEFORE.into());
    assert!(world.decide().is_empty(), "while the first is in Standby");
    world.record.clear();
    world.group().desired = 3;
    assert_eq!(world.decide(), ["record i-b Standby"]);
}

#[test]
fn process_is_resumed_although_an_instance_cannot_be_set_healthy() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", "AfterUpdate/1/100");
    world.instance("a").unhealthy = true;
    assert_eq!(world.decide(), ["healthy i-a"]);
    world.refused.insert("i-a".into());
    assert_eq!(world.decide(), ["resume web i-a"]);
}

#[test]
fn what_another_client_did_stays() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    world.instance("a").state = "Standby".into();
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")], "and no record, so that it stays in Standby");
    let mut world = World::new(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", BEFORE);
    world.group().suspended = true;
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")], "and no record, so that it stays suspended");
    world.resumed.insert("web".into());
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"], "this program has just resumed it");
}

#[test]
fn group_is_resumed_with_its_last_node() {
    let mut world = World::prepared(AwsMode::SuspendReplaceUnhealthy);
    world.request("b", "BeforeDrain/1/200");
    assert_eq!(world.decide(), ["record i-b SuspendReplaceUnhealthy"], "suspended by this program");
    world.enter("b", 0);
    world.request("a", "AfterUpdate/1/100");
    assert_eq!(world.decide(), ["suspend web", "forget i-a"]);
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
fn nodes_without_a_group_are_answered_with_the_reason() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("c", BEFORE);
        assert_eq!(world.decide(), [format!("answer c {BEFORE}")]);
        world.node("c").instance = Err("it has no spec.providerID".into());
        assert_eq!(world.decide(), [format!("answer c {BEFORE}")]);
        assert!(world.to_read().is_empty());
        world.mode = None;
        assert!(world.decide().is_empty(), "the policy may not have been seen yet");
    }
}

#[test]
fn instance_that_is_not_in_service_is_refused_or_awaited() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    for (state, refused) in [("Pending", false), ("EnteringStandby", false), ("Terminating", true), ("Detaching", true)]
    {
        world.instance("a").state = state.into();
        let decided = world.decide();
        assert_eq!(decided.iter().any(|step| step.contains("Refused: instance i-a")), refused, "{decided:?}");
        assert_eq!(decided.len(), usize::from(refused), "{decided:?}");
    }
}
