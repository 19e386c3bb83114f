//! Nodes: the controller may write its claims, its request to hooks, the answers of hooks by Jobs and the label of new nodes; the hook
//! for AWS, its answer.

use anyhow::{Context as _, ensure};
use integ::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use models::names::{
    AWS, AWS_HOOK, BALANCER_LABEL, CONTROLLER, CONTROLLER_MANAGER, HOLD_ANNOTATION, HOOK_ANSWER_PREFIX,
    HOOKS_ANNOTATION, INTERFACE_LABEL, INTERFACE_VERSION, LABEL_MANAGER, SCALE_DOWN_ANNOTATION,
};
use planner::claims::{ClaimField, ClaimFields, body, removal};
use planner::hooks;
use serde_json::{Value, json};

use super::{applied_by, client_of, kubectl, manifest, tried, until};

/// A node that carries what others have set. Its value of the operator's label is one that no agent selects.
const NAME: &str = "admission";
/// A node without any label of the operator.
const UNLABELLED: &str = "admission-unlabelled";

/// The policies, and their manifests.
const OF_CONTROLLER: (&str, &str) = ("brupop-controller-nodes", "brupop.yaml");
const OF_AWS: (&str, &str) = (AWS, "aws.yaml");

/// The refusals, by a part of their messages.
const SPEC: &str = "may not change spec of a Node";
const LABELS: &str = "may not change labels of a Node";
const ANNOTATIONS: &str = "may not change annotations of a Node";
const FINALIZERS: &str = "may not change finalizers of a Node";
const OWNERS: &str = "may not change ownerReferences of a Node";

type Forgery = super::Forgery<Patch<Value>>;

pub(crate) async fn node_writes_are_limited_to_own_fields(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let admin: Api<Node> = Api::all(control_plane.client());
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": NAME, "labels": {"pool": "a", INTERFACE_LABEL: "1.0.0"}, "annotations": {"note": "1"},
            "finalizers": ["example.com/stay"],
        },
        "spec": {"taints": [taint("NoSchedule")]},
    });
    let unlabelled = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": UNLABELLED}});
    for node in [node, unlabelled] {
        admin.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    }

    let controller: Api<Node> = Api::all(client_of(control_plane, CONTROLLER).await?);
    let by_controller = async |patch: &Patch<Value>| attempt(&controller, patch).await;
    tried(control_plane, OF_CONTROLLER, &[for_all(), for_controller()].concat(), by_controller).await?;
    controller_makes_its_own_writes(&controller).await?;

    kubectl(control_plane, &["apply", "--server-side", "-f", &manifest("aws.yaml")]).await?;
    let aws: Api<Node> = Api::all(client_of(control_plane, AWS).await?);
    let by_aws = async |patch: &Patch<Value>| attempt(&aws, patch).await;
    tried(control_plane, OF_AWS, &[for_all(), for_aws()].concat(), by_aws).await?;
    for answer in [json!("BeforeDrain/1/5"), Value::Null] {
        let patch = annotated(&format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}"), &answer);
        aws.patch(NAME, &PatchParams::default(), &patch).await.context("the answer of the hook")?;
    }
    kubectl(control_plane, &["delete", "-f", &manifest("aws.yaml")]).await?;

    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    admin.patch(NAME, &PatchParams::default(), &released).await?;
    for node in [NAME, UNLABELLED] {
        admin.delete(node, &DeleteParams::default()).await?;
    }
    Ok(())
}

/// Tries a forgery as a dry run.
async fn attempt(nodes: &Api<Node>, patch: &Patch<Value>) -> kube::Result<Node> {
    let apply = matches!(patch, Patch::Apply(_));
    let field_manager = apply.then(|| CONTROLLER_MANAGER.to_owned());
    let params = PatchParams { dry_run: true, force: apply, field_manager, ..PatchParams::default() };
    nodes.patch(NAME, &params, patch).await
}

/// The writes that neither account may make.
fn for_all() -> Vec<Forgery> {
    let spec = |spec: Value| Patch::Merge(json!({"spec": spec}));
    let metadata = |metadata: Value| Patch::Merge(json!({"metadata": metadata}));
    let evicting = || json!([taint("NoSchedule"), taint("NoExecute")]);
    let applied =
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NAME}, "spec": {"taints": evicting()}});
    let owner =
        json!({"apiVersion": "v1", "kind": "Namespace", "name": "gone", "uid": "4c1fd4d0-0000-4000-8000-000000000000"});
    vec![
        ("a taint that evicts", spec(json!({"taints": evicting()})), SPEC),
        ("a taint that evicts, applied", Patch::Apply(applied), SPEC),
        ("a taint beside the cordon", spec(json!({"unschedulable": true, "taints": evicting()})), SPEC),
        ("a taint changed", spec(json!({"taints": [taint("NoExecute")]})), SPEC),
        ("all taints removed", spec(json!({"taints": null})), SPEC),
        ("the machine named", spec(json!({"providerID": "aws:///a/i-0123456789abcdef0"})), SPEC),
        ("a label added", metadata(json!({"labels": {"example.com/new": "x"}})), LABELS),
        ("a label changed", metadata(json!({"labels": {"pool": "b"}})), LABELS),
        ("a label removed", metadata(json!({"labels": {"pool": null}})), LABELS),
        ("all labels removed", metadata(json!({"labels": null})), LABELS),
        ("a node taken from the operator", metadata(json!({"labels": {INTERFACE_LABEL: null}})), LABELS),
        ("the operator's label changed", metadata(json!({"labels": {INTERFACE_LABEL: INTERFACE_VERSION}})), LABELS),
        ("an annotation added", annotated("example.com/new", &json!("x")), ANNOTATIONS),
        ("an annotation changed", annotated("note", &json!("2")), ANNOTATIONS),
        ("an annotation removed", annotated("note", &Value::Null), ANNOTATIONS),
        ("a user's hold", annotated(HOLD_ANNOTATION, &json!("mine")), ANNOTATIONS),
        ("a finalizer added", metadata(json!({"finalizers": ["example.com/stay", "example.com/more"]})), FINALIZERS),
        ("a finalizer removed", metadata(json!({"finalizers": null})), FINALIZERS),
        (
            "an owner that does not exist, so that the Node is deleted",
            metadata(json!({"ownerReferences": [owner]})),
            OWNERS,
        ),
    ]
}

fn for_controller() -> Vec<Forgery> {
    let both = json!({"metadata": {"labels": {BALANCER_LABEL: "brupop", "pool": "b"}}});
    let answer = annotated(&format!("{HOOK_ANSWER_PREFIX}{AWS_HOOK}"), &json!("BeforeDrain/1/5"));
    vec![
        ("a label beside its own", Patch::Merge(both), LABELS),
        ("the answer of the hook for AWS", answer, ANNOTATIONS),
    ]
}

fn for_aws() -> Vec<Forgery> {
    let balancer = json!({"metadata": {"labels": {BALANCER_LABEL: "brupop"}}});
    vec![
        ("a cordon", Patch::Merge(json!({"spec": {"unschedulable": true}})), SPEC),
        ("the balancer's label", Patch::Merge(balancer), LABELS),
        ("the request to hooks", annotated(HOOKS_ANNOTATION, &json!("BeforeDrain/1/5")), ANNOTATIONS),
        ("the answer of another hook", annotated(&format!("{HOOK_ANSWER_PREFIX}ceph"), &json!("x")), ANNOTATIONS),
        ("an autoscaler's annotation", annotated(SCALE_DOWN_ANNOTATION, &json!("true")), ANNOTATIONS),
    ]
}

/// Makes each write of the controller to Nodes, by its own functions.
async fn controller_makes_its_own_writes(controller: &Api<Node>) -> anyhow::Result<()> {
    let whole: ClaimFields = ClaimField::ALL.into_iter().collect();
    for (what, fields) in [("the claim", whole), ("the release", ClaimFields::default())] {
        let claim = |uid: &str, version: &str| Patch::Apply(body(NAME, uid, version, fields));
        written(controller, &applied_by(CONTROLLER_MANAGER), claim).await.context(what)?;
    }
    // A patch removes the fields that a reset of the owners has left.
    let mut left = body(NAME, "", "", whole);
    left["metadata"] = json!({"labels": left["metadata"]["labels"], "annotations": left["metadata"]["annotations"]});
    let unnamed = PatchParams::default();
    controller.patch(NAME, &unnamed, &Patch::Merge(left)).await.context("the claim by a patch")?;
    let remove = |_: &str, version: &str| Patch::Merge(removal(version, whole));
    let node = written(controller, &unnamed, remove).await.context("the removal")?;
    ensure!(!node.spec.unwrap_or_default().unschedulable.unwrap_or_default(), "the cordon stays");
    for request in [Some("BeforeDrain/1/5"), None] {
        let ask = |uid: &str, version: &str| Patch::Merge(hooks::patch(uid, version, request));
        written(controller, &unnamed, ask).await.context("the request to hooks")?;
        let answer = annotated(&format!("{HOOK_ANSWER_PREFIX}ceph"), &json!(request));
        controller.patch(NAME, &unnamed, &answer).await.context("the answer of a hook by its Job")?;
    }
    let labelled = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": UNLABELLED, "labels": {INTERFACE_LABEL: INTERFACE_VERSION}},
    });
    let dry = PatchParams { dry_run: true, ..PatchParams::apply(LABEL_MANAGER) };
    controller.patch(UNLABELLED, &dry, &Patch::Apply(labelled)).await.context("the label of a new node")?;
    Ok(())
}

/// Writes to the node at its present uid and version, again while the node lifecycle controller is faster.
async fn written(
    nodes: &Api<Node>,
    params: &PatchParams,
    patch: impl Fn(&str, &str) -> Patch<Value>,
) -> anyhow::Result<Node> {
    let mut done = None;
    until("the node is written", async || {
        let meta = nodes.get(NAME).await?.metadata;
        let patch = patch(&meta.uid.unwrap_or_default(), &meta.resource_version.unwrap_or_default());
        done = match nodes.patch(NAME, params, &patch).await {
            Err(kube::Error::Api(status)) if status.code == 409 => None,
            result => Some(result?),
        };
        Ok(done.is_some())
    })
    .await?;
    done.context("not written")
}

fn annotated(name: &str, value: &Value) -> Patch<Value> {
    Patch::Merge(json!({"metadata": {"annotations": {name: value}}}))
}

fn taint(effect: &str) -> Value {
    json!({"key": "example.com/dedicated", "value": "a", "effect": effect})
}
