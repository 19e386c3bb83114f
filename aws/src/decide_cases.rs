//! Each step of an instance and of a group before the drain, and what must not happen.

use super::*;

#[path = "decide_leaving_cases.rs"]
mod leaving;

const SETTLE: Duration = Duration::from_secs(60);
const BEFORE: &str = "BeforeDrain/1/100";

fn t(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

#[test]
fn call_is_logged_by_the_name_that_aws_has_for_it_with_what_it_concerns() {
    let [group, instance, node] = ["web", "i-a", "a"].map(str::to_owned);
    for (call, text) in [
        (
            Call::EnterStandby { group: group.clone(), instance: instance.clone(), node: node.clone() },
            "EnterStandby of instance i-a (node a) in Auto Scaling group web",
        ),
        (
            Call::Suspend { group: group.clone(), nodes: vec![node, "b".into()] },
            "SuspendProcesses (ReplaceUnhealthy) of Auto Scaling group web for a, b",
        ),
        (
            Call::Resume { group: group.clone(), instances: vec![instance.clone()] },
            "ResumeProcesses (ReplaceUnhealthy) of Auto Scaling group web for i-a",
        ),
        (Call::ExitStandby { group, instance }, "ExitStandby of instance i-a in Auto Scaling group web"),
        (Call::SetHealthy { instance: "i-b".into() }, "SetInstanceHealth (Healthy) of instance i-b"),
    ] {
        assert_eq!(call.to_string(), text);
    }
}

/// A world of two groups, in which a test changes something. Every instance is looked up, as AWS would show it.
struct World {
    policy: Policy,
    nodes: BTreeMap<String, Node>,
    unreadable: BTreeSet<String>,
    record: BTreeMap<String, Entry>,
    instances: BTreeMap<String, Option<Instance>>,
    groups: BTreeMap<String, Option<Group>>,
    held: BTreeSet<String>,
    leaving: BTreeSet<String>,
    free: usize,
    given_up: BTreeSet<String>,
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
            since: Some(t(-100_000)),
            request: None,
            answer: None,
            backing: Backing::Slot,
        };
        let instance = || Some(Instance { group: "web".into(), state: "InService".into(), unhealthy: false });
        let none = |found: &str| (found != "c").then(instance).flatten();
        Self {
            policy: Policy { mode: Some(mode), reboot: Duration::from_mins(25) },
            nodes: ["a", "b", "c"].map(|name| (name.to_owned(), node(name))).into(),
            unreadable: BTreeSet::new(),
            record: BTreeMap::new(),
            instances: ["a", "b", "c"].map(|name| (format!("i-{name}"), none(name))).into(),
            groups: [("web".to_owned(), Some(Group { min: 1, desired: 3, suspended: false, balanced_zones: 0 }))]
                .into(),
            held: BTreeSet::new(),
            leaving: BTreeSet::new(),
            free: 10,
            given_up: BTreeSet::new(),
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
        Entry { group: "web".into(), mode: self.policy.mode.unwrap(), node: name.into(), since: t(since) }
    }

    fn enter(&mut self, name: &str, since: i64) {
        self.record.insert(format!("i-{name}"), self.entry(name, since));
    }

    /// Returns what is decided, each step in a few words.
    fn decide(&self) -> Vec<String> {
        let actions = decide(&Snapshot {
            policy: self.policy,
            nodes: &self.nodes,
            unreadable: &self.unreadable,
            record: &self.record,
            instances: &self.instances,
            groups: &self.groups,
            held: &self.held,
            leaving: &self.leaving,
            free: self.free,
            given_up: &self.given_up,
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
            Action::Call(Call::Suspend { group, nodes }) => format!("suspend {group} {}", nodes.join(" ")),
            Action::Call(Call::Resume { group, instances }) => format!("resume {group} {}", instances.join(" ")),
            Action::Call(Call::SetHealthy { instance }) => format!("healthy {instance}"),
        };
        actions.into_iter().map(text).collect()
    }

    fn to_read(&self) -> Vec<String> {
        instances_to_read(self.policy, (&self.nodes, &self.unreadable), &self.record, self.now)
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
    world.now = t(11);
    assert_eq!(world.decide(), ["enter i-a"], "an admission webhook that hangs has delayed the write of the record");
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
    assert_eq!(world.decide(), ["suspend web a"]);
    world.group().suspended = true;
    assert_eq!(world.decide(), ["suspend web a"], "what AWS shows may be old");
    world.now = t(16);
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"]);
    world.held.insert("web".into());
    assert!(world.decide().is_empty());
}

#[test]
fn mode_that_changes_on_the_way_in_is_the_recorded_one() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("a", BEFORE);
        world.enter("a", 0);
        let step = if mode == AwsMode::Standby { "enter i-a" } else { "suspend web a" };
        for other in [None, Some(AwsMode::Standby), Some(AwsMode::SuspendReplaceUnhealthy)] {
            world.policy.mode = other;
            assert_eq!((world.to_read().len(), world.decide()), (1, vec![step.to_owned()]), "{other:?}");
        }
    }
}

#[test]
fn nothing_is_decided_about_what_aws_has_not_shown() {
    for mode in MODES {
        for mut world in [World::new(mode), World::prepared(mode)] {
            world.request("a", if world.record.is_empty() { BEFORE } else { "AfterUpdate/1/100" });
            world.instances.clear();
            assert!(world.decide().is_empty(), "{:?}", world.decide());
            world.groups.clear();
            assert!(world.decide().is_empty(), "{:?}", world.decide());
        }
    }
}

#[test]
fn minimum_size_refuses_standby_and_nothing_else() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    *world.group() = Group { min: 3, desired: 3, suspended: false, balanced_zones: 0 };
    let refusal = world.decide().remove(0);
    assert!(refusal.starts_with(&format!("answer a {BEFORE} Refused: Auto Scaling group web has")), "{refusal}");
    assert!(refusal.contains("minimum 3") && refusal.contains("lower the minimum"), "{refusal}");
    world.policy.mode = Some(AwsMode::SuspendReplaceUnhealthy);
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
fn what_another_client_did_stays() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    world.instance("a").state = "Standby".into();
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")], "and no record, so that it stays in Standby");
    let mut world = World::new(AwsMode::SuspendReplaceUnhealthy);
    world.request("a", BEFORE);
    world.group().suspended = true;
    assert_eq!(world.decide(), [format!("answer a {BEFORE}")], "and no record, so that it stays suspended");
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
        world.policy.mode = None;
        assert!(world.decide().is_empty(), "the policy may not have been seen yet");
    }
}

#[test]
fn instance_that_leaves_its_group_is_refused_and_one_that_is_on_its_way_is_awaited() {
    for mode in MODES {
        for recorded in [false, true] {
            let mut world = World::new(mode);
            world.request("a", BEFORE);
            if recorded {
                world.enter("a", 0);
            }
            for state in ["Terminating", "Terminating:Wait", "Terminating:Proceed", "Detaching", "Detached"] {
                world.instance("a").state = state.into();
                for held in [false, true] {
                    world.held.clear();
                    world.held.extend(held.then(|| "web".to_owned()));
                    let refusal =
                        format!("answer a {BEFORE} Refused: instance i-a of Auto Scaling group web is {state}");
                    let decided = world.decide();
                    assert!(
                        decided.len() == 1 && decided[0].starts_with(&refusal),
                        "{mode:?}, {recorded}: {decided:?}"
                    );
                }
            }
            world.held.clear();
            // To suspend the process of the group, nothing of the instance is waited for.
            let expected: &[&str] = match (mode, recorded) {
                (AwsMode::Standby, _) => &[],
                (AwsMode::SuspendReplaceUnhealthy, false) => &["record i-a SuspendReplaceUnhealthy"],
                (AwsMode::SuspendReplaceUnhealthy, true) => &["suspend web a"],
            };
            for state in ["Pending", "Pending:Wait", "EnteringStandby"] {
                world.instance("a").state = state.into();
                assert_eq!(world.decide(), expected, "{mode:?}, {recorded}: {state}");
            }
        }
    }
}

#[test]
fn process_is_suspended_once_for_all_nodes_of_a_group() {
    let mut world = World::new(AwsMode::SuspendReplaceUnhealthy);
    for name in ["a", "b"] {
        world.request(name, BEFORE);
        world.enter(name, 0);
    }
    assert_eq!(world.decide(), ["suspend web a b"]);
}

#[test]
fn group_that_keeps_its_zones_equal_refuses_standby() {
    let mut world = World::new(AwsMode::Standby);
    world.request("a", BEFORE);
    world.group().balanced_zones = 1;
    assert_eq!(world.decide(), ["record i-a Standby"], "nothing to keep equal");
    world.group().balanced_zones = 3;
    let refusal = world.decide().remove(0);
    let command = "`aws autoscaling suspend-processes --auto-scaling-group-name web --scaling-processes AZRebalance`";
    assert!(refusal.contains("Refused: ") && refusal.contains("3 zones") && refusal.contains(command), "{refusal}");
    world.policy.mode = Some(AwsMode::SuspendReplaceUnhealthy);
    assert_eq!(world.decide(), ["record i-a SuspendReplaceUnhealthy"]);
}

#[test]
fn standby_that_is_being_left_is_no_answer() {
    for recorded in [true, false] {
        let mut world = World::prepared(AwsMode::Standby);
        world.request("a", "BeforeDrain/2/300");
        if !recorded {
            world.record.clear();
        }
        world.held.insert("i-a".into());
        world.leaving.insert("i-a".into());
        assert!(world.decide().is_empty(), "of the attempt before: AWS still shows it");
        world.instance("a").state = "InService".into();
        let expected: &[&str] = if recorded { &[] } else { &["record i-a Standby"] };
        assert_eq!(world.decide(), expected);
        world.instance("a").state = "Standby".into();
        world.leaving.clear();
        assert_eq!(world.decide(), ["answer a BeforeDrain/2/300"], "held by an EnterStandby that AWS shows");
    }
}

#[test]
fn node_that_is_lost_is_not_prepared() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("a", BEFORE);
        (world.node("a").ready, world.node("a").since) = (false, Some(t(-1501)));
        assert!(world.decide().is_empty(), "{:?}", world.decide());
    }
}

#[test]
fn request_without_a_slot_of_the_operator_changes_nothing() {
    for mode in MODES {
        for backing in [Backing::Missing, Backing::Unknown] {
            let mut world = World::new(mode);
            world.request("a", BEFORE);
            world.request("c", BEFORE);
            (world.node("a").backing, world.node("c").backing) = (backing, backing);
            assert!(world.decide().is_empty() && world.to_read().is_empty(), "{backing:?}: {:?}", world.decide());
            world.enter("a", 0);
            let starts = |step: &String| step.starts_with("enter") || step.starts_with("suspend");
            assert!(!world.decide().iter().any(starts), "{backing:?}, recorded: {:?}", world.decide());
            world.record.clear();
            world.node("a").backing = Backing::Slot;
            assert_eq!(world.decide(), [format!("record i-a {mode:?}")], "as soon as its slot is seen");
        }
    }
}

#[test]
fn two_nodes_with_one_instance_are_refused() {
    for mode in MODES {
        let mut world = World::new(mode);
        world.request("a", BEFORE);
        world.node("b").instance = Ok("i-a".into());
        let refusal = world.decide().remove(0);
        let expected = format!("answer a {BEFORE} Refused: the Nodes a, b all name instance i-a in spec.providerID");
        assert!(refusal.starts_with(&expected), "{refusal}");
        // Also where something has been recorded already, which is then taken back.
        world.enter("a", -600);
        assert!(world.decide()[0].starts_with(&expected), "{:?}", world.decide());
        world.node("a").answer = Some(format!("{BEFORE} Refused: the Nodes"));
        assert!(!world.decide().iter().any(|step| step.starts_with("enter") || step.starts_with("suspend")));
        // A prepared instance stays prepared while another Node names it.
        let mut world = World::prepared(mode);
        world.node("b").instance = Ok("i-a".into());
        assert!(world.decide().is_empty(), "{:?}", world.decide());
        // One that is not Ready, and whose kubelet has written its request, does not keep it prepared once the update is over.
        world.node("a").request = None;
        world.request("b", BEFORE);
        (world.node("b").ready, world.node("b").since) = (false, Some(t(-1)));
        for backing in [Backing::Missing, Backing::Unknown] {
            world.node("b").backing = backing;
            let back = if mode == AwsMode::Standby { "exit i-a" } else { "resume web i-a" };
            assert_eq!(world.decide(), [back], "{backing:?}");
        }
    }
}
