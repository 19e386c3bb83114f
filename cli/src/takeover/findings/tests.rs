use k8s_openapi::api::core::v1::{Node, Pod};
use models::earlier;
use serde_json::{Value, json};

use super::*;
use crate::helm::Release;
use crate::marks::Tool;
use crate::takeover::finding::Severity;
use crate::takeover::report;

const NAMESPACE: &str = earlier::NAMESPACE;

fn definition() -> Definition {
    let text = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    Definition {
        versions: text(&["v1", "v2"]),
        served: text(&["v1", "v2"]),
        storage: "v2".to_owned(),
        stored: text(&["v2"]),
        reviews: text(&["v2", "v1"]),
        ..Definition::default()
    }
}

fn definition_of(facts: &mut Facts) -> &mut Definition {
    facts.definition.as_mut().unwrap()
}

fn workload(labels: &Value, meta: &Value) -> Workload {
    let mut deployment = json!({
        "kind": "Deployment", "metadata": meta,
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "registry.example/brupop:v1.4.0"}]},
            },
        },
    });
    deployment["metadata"]["name"] = json!("brupop-controller-deployment");
    deployment["metadata"]["namespace"] = json!(NAMESPACE);
    Workload::of(&deployment).unwrap()
}

fn controller() -> Workload {
    workload(&json!({earlier::COMPONENT_LABEL: "brupop-controller"}), &json!({}))
}

fn pod(component: &str) -> Pod {
    let labels = json!({earlier::COMPONENT_LABEL: component});
    let meta = json!({"namespace": NAMESPACE, "name": format!("{component}-1"), "labels": labels});
    serde_json::from_value(json!({"metadata": meta})).unwrap()
}

fn shadow(node: &str, wanted: &str, reported: &str, failures: u32) -> Shadow {
    Shadow::of(&json!({
        "metadata": {"namespace": NAMESPACE, "name": format!("brs-{node}")},
        "spec": {"state": wanted},
        "status": {"current_state": reported, "crash_count": failures},
    }))
}

/// A labelled node; `extra` is merged into its metadata. It is cordoned if `manager` is given.
fn node(name: &str, manager: Option<&str>, extra: Value) -> NodeState {
    let mut node = json!({
        "metadata": {"name": name, "uid": name, "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION}},
        "spec": {"unschedulable": manager.is_some()},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    if let Some(manager) = manager {
        node["metadata"]["managedFields"] =
            json!([{"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}]);
    }
    if let (Value::Object(meta), Value::Object(extra)) = (&mut node["metadata"], extra) {
        meta.extend(extra);
    }
    NodeState::of(&serde_json::from_value::<Node>(node).unwrap())
}

/// An idle install without anything to do.
fn idle() -> Facts {
    Facts {
        definition: Some(definition()),
        conversion: Conversion::Answers,
        workloads: vec![controller()],
        pods: vec![pod("brupop-controller")],
        shadows: vec![shadow("a", "Idle", "Idle", 0)],
        nodes: vec![node("a", None, json!({}))],
        ..Facts::default()
    }
}

/// All findings but the note that each definition of the earlier operator has.
fn of(facts: &Facts) -> Vec<(Severity, &'static str)> {
    let found = findings(facts).into_iter().filter(|finding| finding.reason != "ManifestHoldsDefinition");
    found.map(|finding| (finding.severity, finding.reason)).collect()
}

fn only(facts: &Facts, reason: &str) -> Finding {
    let found = findings(facts).into_iter().find(|finding| finding.reason == reason);
    found.unwrap_or_else(|| panic!("{reason}: {:?}", of(facts)))
}

/// A sentence, the change of the facts, and the findings.
type Case<'a> = (&'a str, &'a dyn Fn(&mut Facts), Vec<(Severity, &'a str)>);

#[test]
fn each_fact_has_its_finding() {
    use Severity::{Blocks, First, Note};
    let fails = || Conversion::Fails("no endpoints".into());
    let monitored = || shadow("a", "MonitoringUpdate", "RebootedIntoUpdate", 0);
    let about_to_reboot = || shadow("a", "RebootedIntoUpdate", "StagedAndPerformedUpdate", 0);
    let cases: [Case<'_>; 23] = [
        ("an idle install", &|_| {}, vec![]),
        ("nothing", &|f| *f = Facts::default(), vec![(Note, "NothingFound")]),
        ("an old cluster", &|f| f.outdated = Some("old".into()), vec![(Blocks, "KubernetesTooOld")]),
        (
            "the releases 0.1",
            &|f| {
                let workloads = vec![workload(&json!({"update-operator": "agent"}), &json!({}))];
                *f = Facts { workloads, ..Facts::default() };
            },
            vec![(Note, "NoDefinition"), (Note, "FirstReleases")],
        ),
        ("another definition", &|f| definition_of(f).versions.push("v4".into()), vec![(Blocks, "UnknownVersions")]),
        ("a deleted definition", &|f| definition_of(f).live.deleting = true, vec![(Blocks, "DefinitionIsDeleted")]),
        ("in a takeover", &|f| definition_of(f).versions.push("v3".into()), vec![(Note, "TakeoverBegun")]),
        ("after a takeover", &|f| definition_of(f).versions = vec!["v3".into()], vec![(Note, "TakenOver")]),
        ("a dead webhook", &|f| f.conversion = fails(), vec![(Note, "WebhookDoesNotAnswer")]),
        ("a pod without a workload", &|f| f.pods.push(pod("agent")), vec![(Blocks, "PodsWithoutWorkload")]),
        (
            "a shadow that cannot be read",
            &|f| (f.shadows, f.unreadable) = (vec![], vec![format!("{NAMESPACE}/brs-a")]),
            vec![(Blocks, "ShadowsUnreadable")],
        ),
        ("a node under way", &|f| f.shadows = vec![monitored()], vec![(First, "UpdatesUnderWay")]),
        (
            "a node about to reboot",
            &|f| f.shadows = vec![about_to_reboot()],
            vec![(First, "UpdatesUnderWay"), (First, "MayReboot"), (Note, "MayBeArmed")],
        ),
        ("a node that failed", &|f| f.shadows = vec![shadow("a", "Idle", "Idle", 2)], vec![(Note, "MayBeArmed")]),
        ("without a node", &|f| f.shadows.push(shadow("gone", "Idle", "Idle", 0)), vec![(Note, "ShadowsWithoutNode")]),
        ("without a shadow", &|f| f.nodes.push(node("new", None, json!({}))), vec![(First, "NodesWithoutShadow")]),
        ("a missing right", &|f| f.missing_rights = vec!["list pods".into()], vec![(First, "RightsMissing")]),
        ("a node that is down", &|f| f.nodes[0].ready = false, vec![(First, "NodesNotReady")]),
        ("the same without the label", &|f| (f.nodes[0].ready, f.nodes[0].interface) = (false, None), vec![]),
        ("the same after its operator", &|f| (f.nodes[0].ready, f.workloads, f.pods) = (false, vec![], vec![]), vec![]),
        (
            "the same, about to reboot",
            &|f| {
                (f.nodes[0].ready, f.workloads, f.pods) = (false, vec![], vec![]);
                f.shadows = vec![about_to_reboot()];
            },
            vec![(First, "UpdatesUnderWay"), (First, "MayReboot"), (First, "NodesNotReady"), (Note, "MayBeArmed")],
        ),
        (
            "a cordon without an old shadow",
            &|f| f.nodes.push(node("b", Some("unknown"), json!({"labels": {}}))),
            vec![(Note, "CordonsOfOthers")],
        ),
        (
            "a node of the releases 0.1",
            &|f| f.nodes.push(node("b", None, json!({"labels": {names::INTERFACE_LABEL: "1.0.0"}}))),
            vec![(Note, "OtherInterfaceVersion")],
        ),
    ];
    for (sentence, change, expected) in cases {
        let mut facts = idle();
        change(&mut facts);
        assert_eq!(of(&facts), expected, "{sentence}");
        assert!(findings(&facts).iter().all(|finding| !finding.text.contains("<names>")), "{sentence}");
    }
}

#[test]
fn release_is_recognized_by_definition_and_labels() {
    let with = |change: &dyn Fn(&mut Definition)| {
        let mut facts = idle();
        change(definition_of(&mut facts));
        generation(&facts)
    };
    assert_eq!(with(&|_| {}), Some("1.1.0 or later"));
    assert_eq!(with(&|d| d.reviews = vec!["v1".into(), "v2".into()]), Some("0.2.2 or 1.0.0"));
    assert_eq!(with(&|d| d.reviews.clear()), Some("0.2.2 or later"));
    assert_eq!(with(&|d| d.versions = vec!["v1".into()]), Some("0.2.0 or 0.2.1"));
    assert_eq!(with(&|d| d.ours = true), None);
    let first = workload(&json!({"update-operator": "agent"}), &json!({}));
    assert_eq!(generation(&Facts { workloads: vec![first], ..Facts::default() }), Some("0.1"));
}

#[test]
fn cordons_are_attributed_with_command_to_end_them() {
    let mut facts = idle();
    facts.nodes = vec![
        node("a", Some("unknown"), json!({})),
        node("b", Some("unknown"), json!({})),
        node("c", Some("kubectl"), json!({})),
        node("d", Some("unknown"), json!({})),
    ];
    let under_way = shadow("b", "RebootedIntoUpdate", "RebootedIntoUpdate", 0);
    facts.shadows = vec![shadow("a", "Idle", "Idle", 0), under_way, shadow("c", "Idle", "Idle", 0)];
    let own = only(&facts, "CordonsOfEarlierOperator");
    assert!(own.text.contains("a, b (no update is under way on a)."), "{}", own.text);
    assert_eq!(own.run, ["kubectl uncordon a", "kubectl uncordon b"]);
    let others = only(&facts, "CordonsOfOthers");
    assert!(others.text.contains("c (kubectl), d (unknown)"), "{}", others.text);
    assert!(unknown(&facts).iter().any(|sentence| sentence.contains("field manager unknown")));
}

#[test]
fn cordon_of_this_operator_is_no_finding() {
    let mut facts = idle();
    let entry = json!({
        "manager": names::CONTROLLER_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
    });
    facts.nodes = vec![node("a", Some(names::CONTROLLER_MANAGER), json!({"managedFields": [entry]}))];
    assert_eq!(of(&facts), []);
}

#[test]
fn cordon_without_a_name_on_a_labelled_node_is_the_earlier_operators_where_its_definition_was_deleted() {
    let mut facts = idle();
    (facts.definition, facts.shadows) = (None, vec![]);
    facts.nodes = vec![
        node("a", Some("unknown"), json!({})),
        node("b", Some("unknown"), json!({"labels": {}})),
        node("c", Some("kubectl"), json!({})),
    ];
    let own = only(&facts, "CordonsOfEarlierOperator");
    assert!(own.text.contains("operator's: a. They stay"), "what is under way is not known: {}", own.text);
    assert!(only(&facts, "CordonsOfOthers").text.contains("b (unknown), c (kubectl)"));
    assert!(only(&facts, "NoDefinition").text.contains("it waits for none of them"));
}

#[test]
fn what_earlier_operator_has_left_on_a_node_is_known_after_the_swap_by_the_record() {
    let owned = |path: Value| json!([{"manager": "unknown", "operation": "Update", "fieldsV1": path}]);
    let balancer = format!("f:{}", names::BALANCER_LABEL);
    let fields = json!({"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:labels": {balancer: {}}}});
    let labels = json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION, names::BALANCER_LABEL: "True"});
    let left = json!({"labels": labels, "managedFields": owned(fields)});
    let mut facts = idle();
    (facts.workloads, facts.pods, facts.shadows) = (vec![], vec![], vec![]);
    let definition = definition_of(&mut facts);
    (definition.versions, definition.ours) = (vec!["v3".into()], true);
    facts.nodes = vec![node("a", Some("unknown"), left.clone()), node("b", Some("unknown"), left)];
    let other = Shadow::of(&json!({"metadata": {"namespace": NAMESPACE, "name": "brs-b",
        "ownerReferences": [{"kind": "Node", "name": "b", "uid": "an earlier node of this name"}]}}));
    facts.recorded = vec![shadow("a", "Idle", "Idle", 0), other];
    assert_eq!(only(&facts, "CordonsOfEarlierOperator").run, ["kubectl uncordon a"]);
    assert!(only(&facts, "CordonsOfOthers").text.contains("b (unknown)"));
    let label = only(&facts, "BalancerLabelsOfEarlierOperator");
    assert_eq!(label.run, [format!("kubectl label node a {}-", names::BALANCER_LABEL)]);
}

#[test]
fn nodes_that_come_under_updates_with_the_takeover_are_to_be_answered_first() {
    let mut facts = idle();
    facts.nodes.push(node("new", None, json!({})));
    let found = only(&facts, "NodesWithoutShadow");
    assert!(found.severity == Severity::First && found.text.contains("without a shadow: new; "), "{found:?}");
    assert_eq!(found.run, ["kubectl label node new bottlerocket.aws/updater-interface-version-"]);
}

#[test]
fn labels_left_on_nodes_have_command_to_remove_them() {
    let mut facts = idle();
    let balancer = json!({
        "labels": {names::INTERFACE_LABEL: names::INTERFACE_VERSION, names::BALANCER_LABEL: "True"},
        "managedFields": [{"manager": "unknown", "operation": "Update", "fieldsV1":
            {"f:metadata": {"f:labels": {(format!("f:{}", names::BALANCER_LABEL)): {}}}}}],
    });
    facts.nodes = vec![node("a", None, balancer)];
    let label = only(&facts, "BalancerLabelsOfEarlierOperator");
    assert_eq!(label.run, ["kubectl label node a node.kubernetes.io/exclude-from-external-load-balancers-"]);
}

#[test]
fn owner_of_definition_has_consequence_and_command() {
    let helm = |release: &str| Tool::Helm { release: Some(release.into()), namespace: "ns".into() };
    let argo = || Tool::ArgoCd { application: "brupop".into() };
    let flux = |kind| Tool::Flux { kind, name: "brupop".into(), namespace: "flux-system".into() };
    let keep = |annotation: &str| format!("kubectl annotate crd {DEFINITION} {annotation} --overwrite");
    let by_argo = vec![
        "argocd app set brupop --sync-policy none".to_owned(),
        keep("argocd.argoproj.io/sync-options=Prune=false,Delete=false"),
    ];
    let by_flux = vec![
        "flux suspend kustomization brupop -n flux-system".to_owned(),
        keep("kustomize.toolkit.fluxcd.io/prune=disabled"),
    ];
    let of_release = vec!["flux suspend helmrelease brupop -n flux-system".to_owned()];
    let record = |name: &str| {
        let keep = format!("{}   # if it has other parts", keep("helm.sh/resource-policy=keep"));
        vec![keep, format!("kubectl get secret -A -l owner=helm,name={name}   # if it has none")]
    };
    let unnamed = Tool::Helm { release: None, namespace: "ns".into() };
    let uninstalled =
        "uninstalling it, now or at any later time, deletes the definition, and every shadow of this operator";
    let goes = "every shadow of this operator goes with it";
    let uninstalls = "leave it suspended until the HelmRelease itself is deleted";
    for (tool, reason, sentence, commands) in [
        (helm("shadow"), "HelmOwnsDefinition", uninstalled, record("shadow")),
        (helm("x; rm"), "HelmOwnsDefinition", "x; rm", record("'x; rm'")),
        (unnamed, "HelmOwnsDefinition", "helm list -A", vec![]),
        (argo(), "ArgoCdOwnsDefinition", goes, by_argo),
        (flux("kustomization"), "FluxOwnsDefinition", goes, by_flux),
        (flux("helmrelease"), "FluxOwnsDefinition", uninstalls, of_release),
    ] {
        let mut facts = idle();
        definition_of(&mut facts).tools = vec![tool];
        let finding = only(&facts, reason);
        assert!(finding.severity == Severity::First && finding.text.contains(sentence), "{finding:?}");
        assert_eq!(finding.run, commands);
        // Flux removes what kubectl has set, so that the sequence counts.
        let is_annotated_last = finding.text.contains("Suspend it, and then keep the definition from being deleted");
        assert_eq!(is_annotated_last, finding.text.contains("Flux kustomization"), "{finding:?}");
        definition_of(&mut facts).ours = true;
        assert_eq!(of(&facts), [], "this operator's definition");
    }
    for (tool, reason, severity) in [
        (helm("shadow"), "HelmOwnsWorkloads", Severity::Note),
        (argo(), "ArgoCdOwnsWorkloads", Severity::First),
        (flux("kustomization"), "FluxOwnsWorkloads", Severity::First),
    ] {
        let mut facts = idle();
        facts.workloads[0].tools = vec![tool.clone()];
        assert_eq!(of(&facts), [(severity, reason)]);
        // One finding for a tool that holds both.
        definition_of(&mut facts).tools = vec![tool];
        assert_eq!(of(&facts).len(), 1);
    }
}

#[test]
fn release_with_the_definition_is_named_where_it_is_recorded_and_for_as_long_as_it_is() {
    let helm = || Tool::Helm { release: Some("shadow".into()), namespace: "ns".into() };
    let flux = || Tool::Flux { kind: "helmrelease", name: "brupop".into(), namespace: "flux-system".into() };
    let recorded = |facts: &mut Facts| {
        facts.releases.found =
            vec![Release { name: "shadow".into(), namespace: "flux-system".into(), ..Release::default() }];
    };
    let ours = |facts: &mut Facts| {
        facts.recorded_tools = facts.definition.as_ref().unwrap().tools.clone();
        let definition = definition_of(facts);
        // Of a chart of this operator, which is no danger.
        let own = Tool::Helm { release: Some("brupop-crds".into()), namespace: names::SYSTEM_NAMESPACE.into() };
        (definition.ours, definition.tools) = (true, vec![own]);
    };
    let delete = "kubectl delete secret -n flux-system -l owner=helm,name=shadow";
    let find = "kubectl get secret -A -l owner=helm,name=shadow";
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Facts), Option<&'a str>);
    let cases: [Case<'_>; 6] = [
        ("recorded by Flux", &recorded, Some(delete)),
        ("no record was found", &|_| {}, Some(find)),
        (
            "recorded, after the takeover has begun",
            &|facts| {
                recorded(facts);
                ours(facts);
            },
            Some(delete),
        ),
        ("forgotten, after the takeover has begun", &ours, None),
        (
            "not known, after the takeover has begun",
            &|facts| {
                facts.releases.unread = vec!["the records".into()];
                facts.releases.named_unread = true;
                ours(facts);
            },
            Some(find),
        ),
        (
            "forgotten, after the takeover has begun, with workloads that run again",
            &|facts| {
                ours(facts);
                facts.workloads[0].tools = vec![helm()];
            },
            None,
        ),
    ];
    for (sentence, change, command) in cases {
        let mut facts = idle();
        definition_of(&mut facts).tools = vec![helm(), flux()];
        change(&mut facts);
        let found = findings(&facts);
        let commands = found.iter().filter(|f| f.reason == "HelmOwnsDefinition").flat_map(|f| &f.run);
        let commands: Vec<&str> = commands.filter_map(|line| line.strip_suffix("   # if it has none")).collect();
        assert_eq!(commands, Vec::from_iter(command), "{sentence}");
        assert!(
            !found.iter().any(|finding| finding.reason == "HelmOwnsWorkloads"),
            "{sentence}: it is not to be uninstalled"
        );
    }
    let mut facts = idle();
    facts.workloads[0].tools = vec![helm(), flux()];
    let forgotten = only(&facts, "HelmOwnsWorkloads");
    assert!(forgotten.run.is_empty() && forgotten.text.contains("if helm list -A shows it"), "{forgotten:?}");
    recorded(&mut facts);
    let uninstall = "helm uninstall shadow -n flux-system   # after the takeover";
    assert_eq!(only(&facts, "HelmOwnsWorkloads").run, [uninstall]);
    // Without the right to search all namespaces, nothing more can be found out.
    for (begun, named_unread, severity) in
        [(false, false, Severity::First), (true, true, Severity::First), (true, false, Severity::Note)]
    {
        let mut facts = idle();
        definition_of(&mut facts).tools = vec![helm(), flux()];
        facts.releases.unread = vec!["the records".into()];
        facts.releases.named_unread = named_unread;
        if begun {
            ours(&mut facts);
        }
        let found = findings(&facts);
        let finding = found.iter().find(|finding| finding.reason == "HelmOwnsDefinition").unwrap();
        assert_eq!(finding.severity, severity, "begun: {begun}, {finding:?}");
    }
}

#[test]
fn helm_forgets_a_release_after_each_tool_that_installs_it_and_never_one_with_other_parts() {
    let mut facts = idle();
    definition_of(&mut facts).tools = vec![
        Tool::Helm { release: Some("shadow".into()), namespace: "ns".into() },
        Tool::Flux { kind: "helmrelease", name: "brupop".into(), namespace: "flux-system".into() },
    ];
    let reasons: Vec<&str> = of(&facts).into_iter().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, ["FluxOwnsDefinition", "HelmOwnsDefinition"]);
    let text = only(&facts, "HelmOwnsDefinition").text;
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is missing in:\n{text}"));
    let order = [
        "If the release has other parts than the earlier operator, do not let Helm forget it",
        "Otherwise first take the release out of all that installs it, without an uninstallation: Terraform, Pulumi",
        "so have them forget it before (docs/takeover.md; Terraform: terraform state rm ADDRESS)",
        "Then let Helm forget it",
    ]
    .map(at);
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn manifest_is_not_to_be_deleted_where_the_definition_is_not_this_operators() {
    let named = |facts: &Facts| findings(facts).iter().any(|finding| finding.reason == "ManifestHoldsDefinition");
    let mut facts = idle();
    let note = only(&facts, "ManifestHoldsDefinition");
    assert!(note.severity == Severity::Note && note.text.contains("with kubectl delete -f or -k"), "{note:?}");
    assert!(note.text.contains("Terraform: terraform state rm ADDRESS"), "{note:?}");
    definition_of(&mut facts).ours = true;
    assert!(!named(&facts) && !named(&Facts::default()));
}

#[test]
fn report_shows_findings_by_severity_and_what_is_not_known() {
    let mut facts = idle();
    facts.shadows = vec![shadow("a", "RebootedIntoUpdate", "StagedAndPerformedUpdate", 0)];
    facts.pods.push(pod("agent"));
    facts.unread.push("the Helm releases in x: you need the right to list secrets in x".to_owned());
    let found = findings(&facts);
    let text = report::page(&facts, &found, None).to_string();
    let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is missing in:\n{text}"));
    let order = [
        "Earlier operator: release 1.1.0 or later, image tags: v1.4.0",
        "Workloads: Deployment brupop-bottlerocket-aws/brupop-controller-deployment; 2 pod(s)",
        "Definition: versions v1, v2, stored in v2 now",
        "Shadows: 1; under way: a; may reboot: a",
        "Prevents the takeover:",
        "kubectl delete pod -n brupop-bottlerocket-aws agent-1",
        "Before the takeover:",
        "To know:",
        "Not known:",
        "you need the right to list secrets in x",
        "which hosts are armed",
    ]
    .map(at);
    assert!(order.is_sorted(), "{text}");
    let json = report::json(&facts, &found);
    assert_eq!((&json["blocked"], &json["shadows"]["mayReboot"]), (&json!(true), &json!(["a"])));
    assert_eq!(json["findings"][0]["reason"], "PodsWithoutWorkload");
}
