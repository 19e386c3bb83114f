//! The texts after a takeover: what is left on nodes, and what to do next.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use models::{earlier, names};
use serde_json::Value;

use super::armed::{armed, disarm, has_node};
use super::record::Record;
use super::steps::{Facts, Phase, node_of_kept};
use crate::helm::{Releases, before_forgetting, find, keep_in_upgrade};
use crate::marks::{NodeState, Tool, not_by_manifest};
use crate::shell::{for_cluster, word};

/// Lists the earlier operator's objects in a namespace.
const LABELLED: &str = "kubectl get serviceaccounts,services,secrets -l app.kubernetes.io/part-of=brupop";

/// Returns what the steps have led to.
pub(super) fn title(facts: &Facts) -> &'static str {
    if facts.phase() != Phase::Absent {
        "the cluster is moved to this operator"
    } else if facts.record.is_empty() {
        "there is no earlier operator in this cluster"
    } else {
        "there is no definition of the shadows, and so no shadow: no back-off is carried over, and it is not known which hosts the earlier \
         operator has asked to reboot. Wait for some minutes before you install this operator"
    }
}

/// Returns all texts, a line each.
pub(super) fn lines(facts: &Facts, releases: &Releases, nodes: &[Node]) -> Vec<String> {
    let record = &facts.record;
    let mut lines = left_on_nodes(facts, nodes);
    lines.extend(releases.unread.iter().map(|sentence| format!("not known: {sentence}")));
    // Helm forgets a release only once no other tool installs it again.
    lines.extend(git_ops(record));
    lines.extend(helm(record, releases));
    lines.extend(record.of_kind("CustomResourceDefinition").next().map(|_| not_by_manifest()));
    lines.extend(rest(record, releases));
    let settings = for_cluster("kubectl brupop takeover settings");
    lines.push(format!(
        "next: install this operator by the commands of docs/install.md, section \"Install\": crds.yaml, then brupop.yaml; or by the \
         charts, section \"With Helm\". No node is updated until you enable it: the policy that is installed has enabled: false \
         (docs/policy.md; {settings} proposes one with the settings of the earlier operator, which belongs in the values of the chart \
         where Helm installs the policy)"
    ));
    if !record.is_empty() {
        lines.push(format!(
            "what the earlier operator had is recorded in the ConfigMaps {}/{}*: keep them until the lines above are done, your \
             policy is applied, and you want no way back any more. {settings}, {} and {} read them",
            names::SYSTEM_NAMESPACE,
            super::record::PREFIX,
            for_cluster("kubectl brupop takeover preflight"),
            for_cluster("kubectl brupop takeover undo")
        ));
    }
    lines
}

fn left_on_nodes(facts: &Facts, nodes: &[Node]) -> Vec<String> {
    let (record, armed) = (&facts.record, armed(facts));
    let uids: BTreeSet<&str> = nodes.iter().filter_map(|node| node.metadata.uid.as_deref()).collect();
    let shadows = record.of_kind("BottlerocketShadow").filter(|kept| has_node(kept, &uids));
    let of_earlier: BTreeSet<&str> = shadows.map(node_of_kept).collect();
    // Without the definition, most shadows were deleted before they were recorded.
    let is_gone = facts.phase() == Phase::Absent;
    let mut lines = Vec::new();
    for node in nodes.iter().map(NodeState::of) {
        let name = &node.name;
        let had_shadow = of_earlier.contains(name.as_str());
        let may_have_had = had_shadow || (is_gone && node.is_labelled());
        let cordon = node.cordon.as_ref().filter(|owners| had_shadow || (may_have_had && owners.are_earlier()));
        if let Some(owners) = cordon {
            let by = if owners.are_earlier() { "probably by the earlier operator" } else { "by another client" };
            let uncordon = for_cluster(&format!("kubectl uncordon {name}"));
            lines.push(format!("left: {name} is cordoned, {by}; if it may be used: {uncordon}"));
        }
        if node.has_earlier_balancer_label(may_have_had) {
            lines.push(format!(
                "left: {name} is out of external load balancers, probably by the earlier operator; to put it back: {}",
                for_cluster(&format!("kubectl label node {name} {}-", names::BALANCER_LABEL))
            ));
        }
        if armed.contains(name) {
            lines.push(format!(
                "left: the host of {name} may be armed and boot another version at its next reboot. Until it has, this \
                 operator leaves it alone; to let it disarm the host, once installed: {}",
                disarm(std::slice::from_ref(name))
            ));
        }
    }
    lines
}

/// The named Helm release of an object: name and namespace.
fn release(object: &Value) -> Option<(String, String)> {
    Tool::all_of_kept(object).into_iter().find_map(Tool::release)
}

/// Returns the commands that make Helm forget a release, or keep the definition in its upgrade, if one holds the definition: its uninstallation
/// would delete the definition, and with it every shadow of this operator.
fn helm(record: &Record, releases: &Releases) -> Option<String> {
    let (name, _) = record.of_kind("CustomResourceDefinition").find_map(release)?;
    Some(format!(
        "BEFORE any helm uninstall: the Helm release {name}, {}, holds the definition of the shadows, and its uninstallation \
         would delete the definition with every shadow of this operator. {}: {}",
        releases.place(&name),
        before_forgetting(&format!("annotate the definition ({})", keep_in_upgrade())),
        releases.forget(&name).join("; ")
    ))
}

/// Returns how the remaining objects of the earlier operator are removed.
fn rest(record: &Record, releases: &Releases) -> Option<String> {
    let workloads = || record.of_kind("Deployment").chain(record.of_kind("DaemonSet"));
    let namespace = workloads().find_map(|workload| workload["metadata"]["namespace"].as_str())?;
    let definition = record.of_kind("CustomResourceDefinition").find_map(release);
    let release = workloads().find_map(release).filter(|release| Some(release) != definition.as_ref());
    // Other programs may be in any other namespace.
    let with_namespace = if namespace == earlier::NAMESPACE {
        let delete = for_cluster(&format!("kubectl delete namespace {namespace}"));
        format!("; if nothing else is in it: {delete}")
    } else {
        let list = for_cluster(&format!("{LABELLED} -n {namespace}"));
        format!("; then look for its remaining objects in {namespace}: {list}")
    };
    if let Some(command) = release.as_ref().and_then(|(name, _)| releases.uninstall(name)) {
        return Some(format!("then remove the rest of the earlier operator: {command}{with_namespace}"));
    }
    let forgotten =
        release.map_or_else(String::new, |(name, _)| format!(", as Helm has no record of its release {name}"));
    Some(format!(
        "then remove the rest of the earlier operator{forgotten}: its ClusterRoles and ClusterRoleBindings ({}) and its PriorityClass, \
         which has no label ({}){with_namespace}",
        for_cluster("kubectl get clusterroles,clusterrolebindings -l app.kubernetes.io/part-of=brupop"),
        for_cluster(&format!("kubectl delete priorityclass {} --ignore-not-found", earlier::PRIORITY_CLASS))
    ))
}

/// Returns what to do about each GitOps tool that has a part of the earlier operator in its source.
fn git_ops(record: &Record) -> Vec<String> {
    let definition: Vec<&Value> = record.of_kind("CustomResourceDefinition").collect();
    let of_definition: Vec<Tool> = definition.iter().copied().flat_map(Tool::all_of_kept).collect();
    let all: BTreeSet<Tool> = record.tools().into_iter().collect();
    let sentence = |tool: &Tool| {
        let title = match tool {
            Tool::Helm { .. } => return None,
            Tool::ArgoCd { application } => format!("the Argo CD application {application}"),
            Tool::Flux { kind, name, namespace } => format!("the Flux {kind} {namespace}/{name}"),
        };
        Some(if !of_definition.contains(tool) {
            format!(
                "{title} has workloads of the earlier operator: remove them from its source before you resume it, or it starts them \
                 again beside this operator"
            )
        } else if let Tool::Flux { kind: "helmrelease", name, namespace } = tool {
            let shown = definition.iter().copied().find_map(release);
            let shown = shown.map_or_else(String::new, |(name, _)| format!(" ({} shows nothing)", find(&name)));
            format!(
                "{title} holds the definition: leave it suspended until the HelmRelease itself is deleted, or has a chart without the \
                 earlier operator. Otherwise it would install a release again that Helm has forgotten, which fails, and may clean up by \
                 an uninstallation, which deletes the definition with every shadow of this operator. If the release has no other parts, \
                 remove it from its source once Helm has forgotten the release{shown}, and then: {}",
                for_cluster(&format!("kubectl delete helmrelease {} -n {}", word(name), word(namespace)))
            )
        } else {
            format!(
                "{title} has the definition: remove the earlier operator from its source before you resume it, and leave the annotation \
                 on the definition that keeps it from being deleted"
            )
        })
    };
    all.iter().filter_map(sentence).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::steps::tests::running;
    use super::*;
    use crate::helm::Release;

    fn node(name: &str, mut meta: Value, spec: &Value) -> Node {
        meta["name"] = json!(name);
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap()
    }

    fn owned_by(manager: &str, fields: &Value) -> Value {
        json!({"managedFields": [{
            "manager": manager, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": fields,
        }]})
    }

    /// The lines where nothing is left on nodes.
    fn lines_of(record: &Record, releases: &Releases) -> Vec<String> {
        lines(&Facts { record: record.clone(), ..running() }, releases, &[])
    }

    #[test]
    fn next_step_says_what_the_installed_policy_does() {
        let manifest = include_str!("../../../deploy/manifests/brupop.yaml");
        let policy = manifest.split("\n---\n").find(|document| document.contains("kind: BottlerocketUpdateOperator"));
        assert!(policy.unwrap().contains("\n  enabled: false\n"));
        let lines = lines_of(&Record::default(), &Releases::default());
        for part in ["has enabled: false", "belongs in the values of the chart where Helm installs the policy"] {
            assert!(lines.last().unwrap().contains(part), "{lines:?}");
        }
    }

    #[test]
    fn everything_that_is_left_on_a_node_is_named_with_the_command_that_removes_it() {
        let cordoned = |manager: &str| {
            let fields = json!({"f:spec": {"f:unschedulable": {}}});
            node("a", owned_by(manager, &fields), &json!({"unschedulable": true}))
        };
        let labelled = |manager: &str| {
            let label = format!("f:{}", names::BALANCER_LABEL);
            let mut meta = owned_by(manager, &json!({"f:metadata": {"f:labels": {label: {}}}}));
            meta["labels"] = json!({names::BALANCER_LABEL: "True"});
            node("a", meta, &json!({}))
        };
        let shadow_of = |uid: &str| {
            let owners = json!([{"kind": "Node", "name": "a", "uid": uid}]);
            let meta = json!({"name": "brs-a", "namespace": "old", "ownerReferences": owners});
            json!({"kind": "BottlerocketShadow", "metadata": meta})
        };
        let mut claimed = cordoned(names::CONTROLLER_MANAGER);
        claimed.metadata.managed_fields.as_mut().unwrap()[0].operation = Some("Apply".to_owned());
        let (own, other) = ("probably by the earlier", "by another client");
        for (sentence, mut node, owner, expected) in [
            ("a cordon of its own", cordoned("unknown"), Some("n"), own),
            ("a cordon of kubectl", cordoned("kubectl"), Some("n"), other),
            ("a cordon of this operator", claimed, Some("n"), ""),
            ("a cordon of a node that it never had", cordoned("unknown"), None, ""),
            ("a cordon of a node that has replaced its node", cordoned("unknown"), Some("gone"), ""),
            ("a label of its own", labelled("unknown"), Some("n"), "exclude-from-external-load-balancers-"),
            ("a label of kubectl", labelled("kubectl"), Some("n"), ""),
            ("a label of a node that it never had", labelled("unknown"), None, ""),
            ("a label of a node that has replaced its node", labelled("unknown"), Some("gone"), ""),
            ("nothing", node("a", json!({}), &json!({})), Some("n"), ""),
        ] {
            node.metadata.uid = Some("n".to_owned());
            let mut record = Record::default();
            record.add(owner.map(shadow_of).as_slice());
            let lines = left_on_nodes(&Facts { record, ..running() }, &[node]);
            match expected {
                "" => assert!(lines.is_empty(), "{sentence}: {lines:?}"),
                words => assert!(lines.len() == 1 && lines[0].contains(words), "{sentence}: {lines:?}"),
            }
        }
    }

    #[test]
    fn cordon_is_named_also_where_the_definition_was_deleted_with_every_shadow() {
        let cordoned = |manager: &str, labels: &Value| {
            let mut meta = owned_by(manager, &json!({"f:spec": {"f:unschedulable": {}}}));
            meta["labels"] = labels.clone();
            node("a", meta, &json!({"unschedulable": true}))
        };
        let (gone, labelled) =
            (Facts { definition: None, ..running() }, json!({names::INTERFACE_LABEL: names::INTERFACE_VERSION}));
        for (sentence, node, facts, is_named) in [
            ("labelled", cordoned("unknown", &labelled), &gone, true),
            ("labelled, by another client", cordoned("kubectl", &labelled), &gone, false),
            ("never under updates", cordoned("unknown", &json!({})), &gone, false),
            ("with the definition", cordoned("unknown", &labelled), &running(), false),
        ] {
            let text = lines(facts, &Releases::default(), &[node]).join("\n");
            assert_eq!(text.contains("left: a is cordoned"), is_named, "{sentence}: {text}");
        }
        assert_eq!(title(&gone), "there is no earlier operator in this cluster");
        let mut recorded = gone;
        recorded.record.assume_map(&[json!({"kind": "Deployment", "metadata": {"name": "x", "namespace": "old"}})]);
        assert!(title(&recorded).contains("Wait for some minutes before you install"), "{}", title(&recorded));
        assert_eq!(title(&running()), "the cluster is moved to this operator");
    }

    #[test]
    fn host_that_may_be_armed_is_named_until_it_has_booted_another_version() {
        let staged = |name: &str| {
            json!({
                "kind": "BottlerocketShadow", "metadata": {"name": names::shadow_name(name), "namespace": "old"},
                "spec": {"state": "StagedAndPerformedUpdate"}, "status": {"current_version": "1.20.0"},
            })
        };
        let mut facts = running();
        facts.record.add(&["a", "b"].map(staged));
        facts.nodes.get_mut("b").unwrap().os_image = "Bottlerocket OS 1.20.5 (aws-k8s-1.37)".to_owned();
        let nodes = ["a", "b"].map(|name| node(name, json!({}), &json!({})));
        let text = lines(&facts, &Releases::default(), &nodes).join("\n");
        assert!(text.contains("left: the host of a may be armed") && !text.contains("the host of b"), "{text}");
        assert!(text.contains(&disarm(&["a".to_owned()])), "{text}");
    }

    #[test]
    fn helm_is_to_forget_the_release_with_the_definition_and_may_uninstall_another() {
        let object = |kind: &str, release: Option<&str>| {
            let mut object = json!({"kind": kind, "metadata": {"name": "x", "namespace": "old"}});
            if let Some(release) = release {
                object["metadata"]["annotations"] =
                    json!({"meta.helm.sh/release-name": release, "meta.helm.sh/release-namespace": "old"});
            }
            object
        };
        // Flux keeps the records in the namespace of its HelmReleases, and the objects name the one that they are in.
        let found = ["shadow", "operator", "one"].map(|name| Release {
            name: name.to_owned(),
            namespace: "flux-system".to_owned(),
            ..Release::default()
        });
        let releases = Releases { found: found.into(), ..Releases::default() };
        for (definition, workload, forgets, uninstalls) in [
            (None, None, false, false),
            (Some("shadow"), None, true, false),
            (Some("shadow"), Some("operator"), true, true),
            (Some("one"), Some("one"), true, false),
            (None, Some("operator"), false, true),
        ] {
            let mut record = Record::default();
            record.assume_map(&[object("CustomResourceDefinition", definition), object("Deployment", workload)]);
            let text = lines_of(&record, &releases).join("\n");
            assert_eq!(text.contains("kubectl delete secret -n flux-system -l owner=helm,name="), forgets, "{text}");
            assert_eq!(text.contains(": helm uninstall operator -n flux-system"), uninstalls, "{text}");
            // Helm removes its own; it has no label by which it could be found.
            let class = text.contains("kubectl delete priorityclass brupop-controller-high-priority");
            assert_eq!(class, text.contains("get clusterroles"), "{text}");
            assert!(class != uninstalls && !text.contains("priorityclasses"), "{text}");
            assert!(text.contains("remaining objects in old") && text.contains("next: install"), "{text}");
            let forgotten = lines_of(&record, &Releases::default()).join("\n");
            assert!(!forgotten.contains(": helm uninstall operator"), "{forgotten}");
            assert_eq!(forgotten.contains("no record of its release operator"), uninstalls, "{forgotten}");
            assert!(!text.contains("delete namespace"), "other programs may be in it: {text}");
        }
    }

    #[test]
    fn record_is_to_be_kept_until_no_command_reads_it_with_and_without_helm() {
        let of_helm = json!({"name": "x", "annotations": {"meta.helm.sh/release-name": "r"}});
        for meta in [json!({"name": "x"}), of_helm] {
            let mut record = Record::default();
            record.assume_map(&[json!({"kind": "CustomResourceDefinition", "metadata": meta})]);
            let text = lines_of(&record, &Releases::default()).join("\n");
            let kept = "brupop-takeover-*: keep them until the lines above are done, your policy is applied, and you want no way \
                        back any more. kubectl brupop takeover settings, kubectl brupop takeover preflight and kubectl brupop \
                        takeover undo read them";
            assert!(text.ends_with(kept), "{text}");
        }
    }

    /// A definition that a HelmRelease of Flux has installed.
    fn definition_of_flux() -> Record {
        let mut record = Record::default();
        let meta = json!({
            "name": "x",
            "labels": {"helm.toolkit.fluxcd.io/name": "x", "helm.toolkit.fluxcd.io/namespace": "flux-system"},
            "annotations": {"meta.helm.sh/release-name": "r", "meta.helm.sh/release-namespace": "old"},
        });
        record.add(&[json!({"kind": "CustomResourceDefinition", "metadata": meta})]);
        record
    }

    #[test]
    fn release_without_a_known_record_is_to_be_looked_for_before_it_is_forgotten() {
        let record = definition_of_flux();
        let unread = vec!["the records of the Helm release r in old".to_owned()];
        for (unread, place) in [
            (vec![], "the Helm release r, of which no Secret in any namespace is a record"),
            (unread, "the Helm release r, of which the record could not be read"),
        ] {
            let refused = !unread.is_empty();
            let releases = Releases { unread, ..Releases::default() };
            let text = lines_of(&record, &releases).join("\n");
            assert!(text.contains(place), "{text}");
            assert!(text.contains("deletes nothing else: kubectl get secret -A -l owner=helm,name=r\n"), "{text}");
            assert!(text.contains("(kubectl get secret -A -l owner=helm,name=r shows nothing)"), "{text}");
            assert_eq!(text.contains("not known: the records of the Helm release r in old"), refused, "{text}");
        }
    }

    #[test]
    fn helm_forgets_a_release_after_each_tool_that_installs_it_and_never_one_with_other_parts() {
        let record = definition_of_flux();
        let text = lines_of(&record, &Releases::default()).join("\n");
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part} is missing in:\n{text}"));
        let order = [
            "the Flux helmrelease flux-system/x holds the definition: leave it suspended until the HelmRelease itself is deleted",
            ": kubectl delete helmrelease x -n flux-system\n",
            "BEFORE any helm uninstall: the Helm release r",
            "If the release has other parts than the earlier operator, do not let Helm forget it: annotate the definition (kubectl \
             annotate crd bottlerocketshadows.brupop.bottlerocket.aws helm.sh/resource-policy=keep --overwrite)",
            "Otherwise first take the release out of all that installs it, without an uninstallation: Terraform, Pulumi",
            "so have them forget it before (docs/takeover.md; Terraform: terraform state rm ADDRESS)",
            "Then let Helm forget it",
        ]
        .map(at);
        assert!(order.is_sorted(), "{text}");
    }

    #[test]
    fn manifest_of_the_earlier_operator_is_not_to_be_deleted_whichever_tool_has_installed_it() {
        for annotations in [
            json!({}),
            json!({"meta.helm.sh/release-name": "r"}),
            json!({"argocd.argoproj.io/tracking-id": "app:apiextensions.k8s.io/CustomResourceDefinition:/x"}),
        ] {
            let mut record = Record::default();
            let meta = json!({"name": "x", "annotations": annotations});
            record.add(&[json!({"kind": "CustomResourceDefinition", "metadata": meta})]);
            let text = lines_of(&record, &Releases::default()).join("\n");
            let advice = "do not delete the earlier operator by its manifest or a kustomization, with kubectl delete -f or -k: the \
                          definition bottlerocketshadows.brupop.bottlerocket.aws is in it";
            assert!(text.contains(advice), "{text}");
        }
    }

    #[test]
    fn each_git_ops_tool_is_named_once_by_the_part_that_it_has() {
        let argo = |name: &str| json!({"argocd.argoproj.io/instance": name});
        let flux = |tool: &str| {
            let key = |part: &str| format!("{tool}.toolkit.fluxcd.io/{part}");
            json!({key("name"): "x", key("namespace"): "flux-system"})
        };
        for (definition, workloads, expected) in [
            (json!({}), json!({}), vec![]),
            (argo("a"), argo("a"), vec!["the Argo CD application a has the definition"]),
            (
                argo("a"),
                argo("b"),
                vec!["the Argo CD application a has the definition", "the Argo CD application b has workloads"],
            ),
            (json!({}), flux("kustomize"), vec!["the Flux kustomization flux-system/x has workloads"]),
            (json!({}), flux("helm"), vec!["the Flux helmrelease flux-system/x has workloads"]),
            (flux("helm"), flux("helm"), vec!["the Flux helmrelease flux-system/x holds the definition"]),
        ] {
            let object = |kind: &str, labels: &Value| {
                let meta = json!({"name": "x", "namespace": "old", "labels": labels});
                json!({"kind": kind, "metadata": meta})
            };
            let mut record = Record::default();
            record.add(&[
                object("CustomResourceDefinition", &definition),
                object("Deployment", &workloads),
                object("DaemonSet", &workloads),
            ]);
            let found = git_ops(&record);
            assert_eq!(found.len(), expected.len(), "{found:#?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
            }
        }
    }

    #[test]
    fn only_default_namespace_is_named_for_deletion_and_git_ops_tools_for_their_source() {
        let mut record = Record::default();
        let meta = json!({"name": "x", "labels": {"argocd.argoproj.io/instance": "updates"}});
        record.add(&[
            json!({"kind": "CustomResourceDefinition", "metadata": meta}),
            json!({"kind": "Deployment", "metadata": {"name": "x", "namespace": earlier::NAMESPACE}}),
        ]);
        let text = lines_of(&record, &Releases::default()).join("\n");
        assert!(text.contains("if nothing else is in it: kubectl delete namespace brupop-bottlerocket-aws"), "{text}");
        assert!(
            text.contains("application updates has the definition: remove the earlier operator from its"),
            "{text}"
        );
    }
}
