use std::collections::BTreeSet;

use serde_json::json;

use super::super::preview::{all, assume, own_shadow};
use super::super::undo;
use super::*;

fn live(kept: Value) -> Live {
    Live { kept, uid: "u".to_owned(), version: "1".to_owned(), deleting: false }
}

fn workload(kind: &str, name: &str, component: &str) -> Live {
    live(json!({
        "apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, "namespace": "old"},
        "spec": {"template": {"metadata": {"labels": {earlier::COMPONENT_LABEL: component}}}},
    }))
}

fn shadow(node: &str, wanted: &str, crashes: u32) -> Live {
    live(json!({
        "apiVersion": "brupop.bottlerocket.aws/v2", "kind": "BottlerocketShadow",
        "metadata": {"name": format!("brs-{node}"), "namespace": "old", "uid": "u"},
        "spec": {"state": wanted}, "status": {"current_state": "Idle", "crash_count": crashes},
    }))
}

fn node(name: &str, labelled: bool) -> (String, NodeFacts) {
    (name.to_owned(), NodeFacts { name: name.to_owned(), uid: "n".to_owned(), labelled, ..NodeFacts::default() })
}

fn definition(versions: &[&str], storage: &str, stored: &[&str], conversion: &Value) -> Definition {
    let owned = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect();
    let declared: Vec<Value> = versions.iter().map(|name| json!({"name": name, "storage": *name == storage})).collect();
    Definition {
        live: live(json!({
            "kind": "CustomResourceDefinition", "metadata": {"name": "d"},
            "spec": {"conversion": conversion, "versions": declared},
        })),
        versions: owned(versions),
        storage: storage.to_owned(),
        stored: owned(stored),
        ..Definition::default()
    }
}

fn definition_of(facts: &mut Facts) -> &mut Definition {
    facts.definition.as_mut().unwrap()
}

/// The definition of the first releases with one.
fn v1() -> Definition {
    definition(&["v1"], "v1", &["v1"], &json!({"strategy": "None"}))
}

fn agent(name: &str) -> Live {
    workload("DaemonSet", name, "agent")
}

/// Shadows of this operator that the controller has written to.
fn touched() -> Vec<Live> {
    ["a", "b"].map(|node| own_shadow(node, &json!({"record": {}}))).into()
}

fn webhook() -> Value {
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v2", "v1"]}})
}

/// A cluster with a running earlier operator: two nodes, one of them in back-off, and a shadow without a node.
pub(in crate::swap) fn running() -> Facts {
    Facts {
        now: "2026-01-02T00:00:00Z".parse().unwrap(),
        namespace: false,
        record: Record::default(),
        definition: Some(definition(&["v1", "v2"], "v2", &["v1", "v2"], &webhook())),
        workloads: vec![
            workload("Deployment", "brupop-apiserver", "apiserver"),
            workload("Deployment", "brupop-controller-deployment", "brupop-controller"),
            agent("brupop-agent"),
        ],
        pods: vec!["old/brupop-agent-1 on a".to_owned()],
        nodes: BTreeMap::from([node("a", true), node("b", true), node("c", false)]),
        earlier: Ok(vec![
            shadow("a", "Idle", 0),
            shadow("b", "Idle", 3),
            shadow("c", "Idle", 1),
            shadow("gone", "Idle", 0),
        ]),
        unsettled: Vec::new(),
        installed: false,
        own: None,
        read_only: ReadOnly::default(),
        rechecked: false,
    }
}

fn name(next: &Next) -> String {
    let text = |object: &Value| {
        // The policy and its binding have the same name.
        let is_policy = object["kind"].as_str().unwrap().starts_with("ValidatingAdmissionPolicy");
        let text = if is_policy { &object["kind"] } else { &object["metadata"]["name"] };
        text.as_str().unwrap().to_owned()
    };
    match next {
        Next::Act(Step::CreateNamespace) => "namespace".to_owned(),
        Next::Act(Step::Keep(objects)) => format!("keep {}", objects.len()),
        Next::Act(Step::Create(object)) => format!("create {}", text(object)),
        Next::Act(Step::Delete(object)) => format!("delete {}", text(&object.kept)),
        Next::Act(Step::SetConversion(conversion)) => {
            format!("conversion {}", conversion["strategy"].as_str().unwrap())
        }
        Next::Act(Step::ServeAllVersions) => "v1 v2 v3".to_owned(),
        Next::Act(Step::CreateShadows(nodes)) => {
            format!("create {}", nodes.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>().join(" "))
        }
        Next::Act(Step::WriteRecords(nodes)) => {
            let all: Vec<String> =
                nodes.iter().map(|(node, _, record)| format!("{node} {}", record.failures)).collect();
            format!("record {}", all.join(" "))
        }
        Next::Act(Step::DeleteShadows(shadows)) => format!("delete {} shadows", shadows.len()),
        Next::Act(Step::PruneStoredVersions(versions)) => format!("prune {}", versions.join(" ")),
        Next::Act(Step::DeleteOwnShadows(shadows)) => format!("delete {} own shadows", shadows.len()),
        Next::Act(Step::StoreEarlierVersion(versions)) => format!("{} versions", versions.as_array().unwrap().len()),
        Next::Act(Step::RestoreShadows(shadows)) => format!("restore {} shadows", shadows.len()),
        Next::Act(Step::RestoreDefinition(_)) => "definition".to_owned(),
        Next::Act(Step::ServeOwnVersion) => "v3".to_owned(),
        Next::Wait(waiting) => format!("wait {waiting:?}").chars().take_while(|c| *c != '(').collect(),
        Next::Blocked(_) => "blocked".to_owned(),
        Next::Done => "done".to_owned(),
    }
}

const SWAP: [&str; 21] = [
    "namespace",
    "keep 4",
    "delete brupop-agent",
    "delete brupop-controller-deployment",
    "delete brupop-apiserver",
    "wait Pods",
    "create ValidatingAdmissionPolicy",
    "create ValidatingAdmissionPolicyBinding",
    "wait ReadOnly",
    "keep 4",
    "conversion None",
    "v1 v2 v3",
    "create a b",
    "record b 3",
    "delete 4 shadows",
    "wait Recheck",
    "prune v3",
    "v3",
    "delete ValidatingAdmissionPolicyBinding",
    "delete ValidatingAdmissionPolicy",
    "done",
];

fn names(all: &[Next]) -> Vec<String> {
    all.iter().map(name).collect()
}

#[test]
fn takeover_takes_its_steps_in_order_and_goes_on_from_any_of_them() {
    let mut facts = running();
    for done in 0..SWAP.len() {
        assert_eq!(names(&all(facts.clone(), next)), SWAP[done..], "after {done} steps");
        let step = next(&facts);
        assume(&mut facts, &step);
    }
}

/// Checks that nothing of a takeover is left.
fn assert_restored(restored: &Facts, sentence: &str) {
    let original = running();
    let ids = |facts: &Facts| facts.workloads.iter().map(Live::id).collect::<BTreeSet<_>>();
    assert_eq!(ids(restored), ids(&original), "{sentence}");
    let kept = |facts: &Facts| facts.definition.as_ref().unwrap().live.kept.clone();
    assert_eq!(kept(restored), kept(&original), "{sentence}");
    assert_eq!(restored.read_only, original.read_only, "{sentence}");
    let shadows = |facts: &Facts| {
        let all = facts.earlier.iter().flatten().map(|live| earlier::at_version(&live.kept, "v2").to_string());
        all.collect::<BTreeSet<_>>()
    };
    assert_eq!(shadows(restored), shadows(&original), "{sentence}");
    assert!(restored.own.iter().flatten().next().is_none() && restored.record.is_empty(), "{sentence}");
}

#[test]
fn undo_restores_everything_until_v3_alone_is_served_and_can_be_interrupted() {
    let mut facts = running();
    for step in SWAP {
        if facts.phase() == Phase::Ours {
            assert_eq!(names(&all(facts.clone(), undo::next)), ["blocked"], "before {step}");
        } else {
            let back = all(facts.clone(), undo::next);
            assert_eq!(names(&back).last().unwrap(), "done", "before {step}: {back:?}");
            let mut restored = facts.clone();
            for (done, undone) in back.iter().enumerate() {
                let sentence = format!("before {step}, {done} steps back");
                let forward = all(restored.clone(), next);
                assert_eq!(names(&forward).last().unwrap(), "done", "{sentence}: {forward:?}");
                assume(&mut restored, undone);
            }
            assert_restored(&restored, &format!("before {step}"));
        }
        let step = next(&facts);
        assume(&mut facts, &step);
    }
}

/// A sentence, the change of the facts, and the next step of an undo after it.
type Change = (&'static str, fn(&mut Facts), &'static str);

#[test]
fn undo_stores_earlier_version_before_it_restores_shadows() {
    assert_eq!(
        names(&all(before("v3"), undo::next)),
        [
            "delete 2 own shadows",
            "3 versions",
            "delete ValidatingAdmissionPolicyBinding",
            "delete ValidatingAdmissionPolicy",
            "wait Stored",
            "restore 4 shadows",
            "prune v2",
            "definition",
            "create brupop-apiserver",
            "create brupop-agent",
            "create brupop-controller-deployment",
            "delete brupop-takeover-1",
            "delete brupop-takeover-2",
            "done",
        ]
    );
    let cases: [Change; 6] = [
        ("this operator runs", |f| f.installed = true, "blocked"),
        ("the earlier one was started again", |f| f.workloads = vec![agent("brupop-agent")], "delete brupop-agent"),
        ("a pod of it is left", |f| f.pods = vec!["p".into()], "wait Pods"),
        ("v3 is not served", |f| f.own = None, "wait Served"),
        ("shadows unreadable", |f| (f.own, f.earlier) = (None, Err("500".into())), "wait Shadows"),
        ("a definition that is deleted", |f| definition_of(f).live.deleting = true, "blocked"),
    ];
    for (sentence, change, expected) in cases {
        let mut facts = before("v3");
        change(&mut facts);
        assert_eq!(name(&undo::next(&facts)), expected, "{sentence}");
    }
    let mut other = running();
    definition_of(&mut other).versions.push("v9".into());
    assert_eq!(name(&undo::next(&other)), "blocked", "another definition");
    let mut replaced = before("v3");
    let mut owned = shadow("a", "Idle", 0).kept;
    owned["metadata"]["ownerReferences"] = json!([{"kind": "Node", "name": "a", "uid": "replaced"}]);
    replaced.record.add(&[owned]);
    let steps = names(&all(replaced, undo::next));
    assert!(steps.contains(&"restore 3 shadows".to_owned()), "the node of one is gone: {steps:?}");
}

#[test]
fn way_back_after_a_complete_swap_names_the_hosts_that_may_still_be_armed() {
    let at = |node: &str, wanted: &str| {
        let mut shadow = shadow(node, wanted, 0);
        shadow.kept["status"]["current_version"] = json!("1.20.0");
        shadow
    };
    let armed = "StagedAndPerformedUpdate";
    let mut replaced = at("replaced", armed);
    replaced.kept["metadata"]["ownerReferences"] = json!([{"kind": "Node", "name": "replaced", "uid": "before"}]);
    let mut facts = running();
    let nodes = [("armed", "1.20.0"), ("odd", "?"), ("rebooted", "1.20.5"), ("idle", "1.20.0"), ("replaced", "1.20.0")];
    facts.nodes = nodes
        .map(|(name, version)| {
            let (name, node) = node(name, true);
            (name, NodeFacts { os_image: format!("Bottlerocket OS {version} (aws-k8s-1.37)"), ..node })
        })
        .into();
    facts.earlier = Ok(vec![
        at("armed", armed),
        at("odd", armed),
        at("rebooted", armed),
        at("idle", "Idle"),
        replaced,
        at("gone", armed),
    ]);
    while next(&facts) != Next::Done {
        let step = next(&facts);
        assume(&mut facts, &step);
    }
    let Next::Blocked(reason) = undo::next(&facts) else { panic!("it is complete") };
    assert!(reason.contains("To go back: first reboot or disarm the hosts"), "{reason}");
    assert!(
        reason.contains("found nothing armed: armed, odd (to let this operator disarm them, once installed"),
        "{reason}"
    );
    let command = "kubectl annotate bottlerocketshadows.v3.brupop.bottlerocket.aws brs-armed brs-odd -n brupop-system";
    assert!(reason.contains(command), "{reason}");

    let none = Value::Null;
    let report = |node: &str, status: &str, reason: &str, armed: &Value| {
        let condition = json!({"type": "HostReachable", "status": status, "reason": reason});
        own_shadow(node, &json!({"conditions": [condition], "armed": armed}))
    };
    let mut elsewhere = report("odd", "True", "Answered", &none);
    elsewhere.kept["metadata"]["namespace"] = json!("elsewhere");
    for (sentence, own, hosts) in [
        ("nothing is armed", report("odd", "True", "Answered", &none), "armed"),
        ("armed by another client", report("odd", "True", "HostArmedByOther", &none), "armed, odd"),
        ("not disarmed", report("odd", "True", "DeactivateFailed", &none), "armed, odd"),
        ("armed by this operator", report("odd", "True", "Answered", &json!({"attempt": 1})), "armed, odd"),
        ("an agent that is not heard", report("odd", "Unknown", "AgentNotReady", &none), "armed, odd"),
        ("no report yet", own_shadow("odd", &none), "armed, odd"),
        ("another node", report("idle", "True", "Answered", &none), "armed, odd"),
        ("another namespace", elsewhere, "armed, odd"),
    ] {
        facts.own = Some(vec![own]);
        let Next::Blocked(reason) = undo::next(&facts) else { panic!("it is complete") };
        assert!(reason.contains(&format!("found nothing armed: {hosts} (to let")), "{sentence}: {reason}");
    }
    facts.own = Some(["armed", "odd"].map(|node| report(node, "True", "Answered", &none)).into());
    let Next::Blocked(reason) = undo::next(&facts) else { panic!("it is complete") };
    assert!(reason.contains("To go back: save the ConfigMaps") && !reason.contains("reboot"), "{reason}");
    facts.own = None;

    facts.nodes.retain(|name, _| !matches!(name.as_str(), "armed" | "odd"));
    let Next::Blocked(reason) = undo::next(&facts) else { panic!("it is complete") };
    assert!(reason.contains("To go back: save the ConfigMaps") && !reason.contains("reboot"), "{reason}");
}

#[test]
fn dry_run_of_undo_names_each_stored_version_once() {
    // Before that step, the version that was stored first is among the stored ones still.
    for step in ["prune v3", "v3"] {
        let steps = names(&all(before(step), undo::next));
        assert!(steps.contains(&"prune v2".to_owned()), "{steps:?}");
    }
}

#[test]
fn undo_creates_the_api_server_first() {
    assert_eq!(
        names(&all(before("v1 v2 v3"), undo::next)),
        [
            "delete ValidatingAdmissionPolicyBinding",
            "delete ValidatingAdmissionPolicy",
            "conversion Webhook",
            "create brupop-apiserver",
            "create brupop-agent",
            "create brupop-controller-deployment",
            "delete brupop-takeover-1",
            "delete brupop-takeover-2",
            "done",
        ]
    );
}

/// A cluster right before the step with this name.
fn before(step: &str) -> Facts {
    let mut facts = running();
    while name(&next(&facts)) != step {
        let step = next(&facts);
        assert!(!matches!(step, Next::Done | Next::Blocked(_)), "{step:?}");
        assume(&mut facts, &step);
    }
    facts
}

/// A sentence, the step before which the facts are changed, the change, and the step that is next then.
type Case = (&'static str, &'static str, fn(&mut Facts), &'static str);

fn check(cases: &[Case]) {
    for (sentence, step, change, expected) in cases {
        let mut facts = before(step);
        change(&mut facts);
        assert_eq!(name(&next(&facts)), *expected, "{sentence}");
    }
}

#[test]
fn earlier_operator_that_is_not_as_expected_is_stopped_kept_or_waited_for() {
    check(&[
        ("shadows unreadable at first", "keep 4", |f| f.earlier = Err("429".into()), "keep 4"),
        ("shadows unreadable", "conversion None", |f| f.earlier = Err("429".into()), "conversion None"),
        ("without a webhook", "v1 v2 v3", |f| f.earlier = Err("500".into()), "wait Shadows"),
        ("a host that may reboot", "conversion None", |f| f.unsettled = vec!["a".into()], "wait Nodes"),
        ("a changed shadow", "conversion None", |f| f.earlier = Ok(vec![shadow("a", "Idle", 9)]), "keep 1"),
        ("a workload again", "v1 v2 v3", |f| f.workloads = vec![agent("brupop-agent")], "delete brupop-agent"),
        ("a new workload", "prune v3", |f| f.workloads = vec![agent("other")], "keep 1"),
        ("a pod late", "prune v3", |f| f.pods = vec!["p".into()], "wait Pods"),
        ("v1 alone", "namespace", |f| f.definition = Some(v1()), "namespace"),
        ("this operator runs", "v1 v2 v3", |f| f.installed = true, "blocked"),
        ("the namespace was deleted", "prune v3", |f| f.namespace = false, "namespace"),
        ("another definition", "namespace", |f| definition_of(f).versions.push("v9".into()), "blocked"),
    ]);
}

#[test]
fn takeover_does_not_begin_where_it_would_lose_the_definition_or_mix_up_shadows() {
    check(&[
        ("a definition that is deleted", "namespace", |f| definition_of(f).live.deleting = true, "blocked"),
        ("Argo CD may delete it", "namespace", |f| mark(f, "labels", ARGO, "updates"), "blocked"),
        ("Argo CD late", "prune v3", |f| mark(f, "labels", ARGO, "x"), "prune v3"),
        ("Flux may delete it", "namespace", |f| mark(f, "labels", FLUX, "updates"), "blocked"),
        ("Flux is kept from it", "namespace", flux_that_keeps_it, "namespace"),
        ("Argo CD is kept from it", "namespace", argo_cd_that_keeps_it, "namespace"),
        ("the earlier operator in the namespace of this one", "namespace", in_the_namespace_of_this_one, "blocked"),
    ]);
}

const ARGO: &str = "argocd.argoproj.io/instance";
const FLUX: &str = "kustomize.toolkit.fluxcd.io/name";

/// Gives the definition a label or an annotation.
fn mark(facts: &mut Facts, part: &str, key: &str, value: &str) {
    definition_of(facts).live.kept["metadata"][part][key] = value.into();
}

fn in_the_namespace_of_this_one(facts: &mut Facts) {
    facts.workloads[0].kept["metadata"]["namespace"] = json!(names::SYSTEM_NAMESPACE);
}

fn flux_that_keeps_it(facts: &mut Facts) {
    mark(facts, "labels", FLUX, "updates");
    mark(facts, "annotations", "kustomize.toolkit.fluxcd.io/prune", "disabled");
}

fn argo_cd_that_keeps_it(facts: &mut Facts) {
    mark(facts, "annotations", "argocd.argoproj.io/tracking-id", "updates:x");
    mark(facts, "annotations", "argocd.argoproj.io/sync-options", "Prune=false,Delete=false");
}

#[test]
fn other_writers_during_the_swap_lose_nothing() {
    let (policy, binding) = ("create ValidatingAdmissionPolicy", "create ValidatingAdmissionPolicyBinding");
    check(&[
        ("a policy deleted late", "create a b", |f| f.read_only.policy = None, policy),
        ("a binding deleted late", "create a b", |f| f.read_only.binding = None, binding),
        ("a policy not enforced", "delete 4 shadows", |f| f.read_only.enforced = false, "wait ReadOnly"),
        ("v3 not served", "create a b", |f| f.own = None, "wait Served"),
        ("a late shadow", "prune v3", |f| f.earlier = Ok(vec![shadow("late", "Idle", 0)]), "keep 1"),
        ("pruned too early", "delete 4 shadows", |f| definition_of(f).stored = vec!["v3".into()], "delete 4 shadows"),
        ("pruned after all", "prune v3", |f| definition_of(f).stored = vec!["v3".into()], "v3"),
        ("a deleted node", "create a b", |f| f.nodes.retain(|name, _| name != "a"), "create b"),
        ("a record of the controller", "record b 3", |f| f.own = Some(touched()), "delete 4 shadows"),
    ]);
}

#[test]
fn releases_without_a_webhook_or_a_definition_are_taken_over_too() {
    let mut first = running();
    first.definition = None;
    first.earlier = Ok(Vec::new());
    let expected = [&["namespace", "keep 3"][..], &SWAP[2..6], &["done"]].concat();
    assert_eq!(names(&all(first, next)), expected, "0.1 has no definition");

    let mut v1 = running();
    v1.definition = Some(self::v1());
    let steps = names(&all(v1, next));
    assert!(!steps.iter().any(|step| step.starts_with("conversion")), "{steps:?}");
    assert_eq!(steps[1], "keep 4", "the definition too");
    assert_eq!(steps.last().unwrap(), "done");
}

#[test]
fn unreadable_shadows_are_read_once_the_conversion_is_replaced() {
    let mut facts = before("keep 4");
    while name(&next(&facts)) != "wait Pods" {
        let step = next(&facts);
        assume(&mut facts, &step);
    }
    assume(&mut facts, &Next::Wait(Waiting::Pods(Vec::new())));
    facts.earlier = Err("429".to_owned());
    assert_eq!(name(&next(&facts)), "conversion None");
    assume(&mut facts, &Next::Act(Step::SetConversion(json!({"strategy": "None"}))));
    facts.earlier = running().earlier;
    assert_eq!(
        names(&all(facts, next))[..2],
        ["create ValidatingAdmissionPolicy", "create ValidatingAdmissionPolicyBinding"]
    );
}
