//! Writes of the operator's components: by server-side apply, with a precondition on what the decision was based on, or
//! as one of a closed list.
//!
//! A write based on an outdated state has to fail, by the uid or the resourceVersion that it carries. The API server's
//! log shows that it does.

use serde_json::Value;

use super::accounts;
use crate::control_plane::audit::{Record, requests};

/// A kind of write.
#[derive(Clone, Copy, Debug)]
struct ListedWrite {
    verb: &'static str,
    resource: &'static str,
    /// Fields that the body of each has to contain.
    guards: &'static [&'static str],
    why: &'static str,
}

const UID: &str = "/metadata/uid";
const VERSION: &str = "/metadata/resourceVersion";

const fn listed_write(
    verb: &'static str,
    resource: &'static str,
    guards: &'static [&'static str],
    why: &'static str,
) -> ListedWrite {
    ListedWrite { verb, resource, guards, why }
}

/// Writes by server-side apply.
const APPLIES: &[ListedWrite] = &[
    listed_write(
        "patch",
        "nodes",
        &[UID, VERSION],
        "claims and the label: an apply without the uid would create a deleted Node again",
    ),
    listed_write(
        "patch",
        "bottlerocketshadows",
        &[UID, VERSION],
        "orders and permits, each on the state that it was decided on",
    ),
    listed_write(
        "patch",
        "bottlerocketshadows/status",
        &[VERSION],
        "agent status or controller status; the server ignores a uid here",
    ),
    listed_write(
        "patch",
        "bottlerocketupdateoperators/status",
        &[VERSION],
        "slots: the client that wins this write has the budget",
    ),
    listed_write("patch", "bottlerocketrollouthistories/status", &[VERSION], "the course of a rollout, by one leader"),
    listed_write("patch", "configmaps", &[VERSION], "what agents trust: two leaders would undo each other's"),
];

/// Resource that an apply may create, if a client has deleted it: then there is no version that it could carry.
const MADE_BY_APPLY: &str = "configmaps";

/// Resource whose objects are migrated by other writes than applies, and are otherwise applied.
const MIGRATED: &str = "bottlerocketshadows";

/// All other writes.
const OTHERS: &[ListedWrite] = &[
    listed_write("create", "bottlerocketshadows", &[], "an apply would create one again that was just deleted"),
    listed_write("delete", "bottlerocketshadows", &["/preconditions/uid"], "this very shadow"),
    listed_write("create", "pods/eviction", &["/deleteOptions/preconditions/uid"], "this very pod"),
    listed_write("delete", "pods", &["/preconditions/uid"], "this very pod, where policy says Force"),
    listed_write(
        "patch",
        "bottlerocketshadows/status",
        &[VERSION],
        "the end of an attempt of which another client owns fields",
    ),
    listed_write(
        "patch",
        "nodes",
        &[VERSION],
        "claims without a recorded owner, the request to hooks, and the answers by Jobs",
    ),
    listed_write("create", "jobs", &[], "a race for a name has one winner"),
    listed_write("patch", "jobs", &[UID, VERSION], "the time after which an ended Job is deleted"),
    listed_write("patch", MIGRATED, &[VERSION], "migration: the object that was read"),
    listed_write(
        "patch",
        "customresourcedefinitions/status",
        &[UID, VERSION],
        "migration: objects were checked under it",
    ),
    listed_write("create", "leases", &[], "a race for it has one winner"),
    listed_write("update", "leases", &[VERSION], "so has this one"),
    listed_write("create", "controllerrevisions", &[], "a race for a name has one winner"),
    listed_write(
        "patch",
        "controllerrevisions",
        &[UID, VERSION],
        "number or owner alone: an apply would have to repeat the bytes of the content",
    ),
    listed_write("delete", "controllerrevisions", &["/preconditions/uid"], "this very revision"),
    listed_write("create", "bottlerocketrollouthistories", &[], "a race for a name has one winner"),
    listed_write("delete", "bottlerocketrollouthistories", &["/preconditions/uid"], "this very record or page"),
    // Their bodies are not logged, so their guards cannot be checked here.
    listed_write("create", "secrets", &[], "a race for it has one winner"),
    listed_write("update", "secrets", &[], "carries the version that was read"),
    listed_write("create", "events", &[], "nothing is decided by it"),
    listed_write("patch", "events", &[], "the count of an Event of the operator"),
    listed_write("create", "tokenreviews", &[], "a question in the shape of a write"),
];

/// The writes of the operator's components that do not follow the rules, each as a sentence.
pub fn unlisted(audit: &[Record]) -> Vec<String> {
    let accounts = accounts();
    let ours = requests(audit).filter(|record| record.is_write() && accounts.contains(&record.user));
    // A request that failed before its body was read (an API server going down, say) had no effect.
    let read = ours.filter(|record| record.succeeded() || record.request.is_some());
    let mut wrong: Vec<String> = read.filter_map(violation).collect();
    wrong.sort_unstable();
    wrong.dedup();
    wrong
}

fn violation(record: &Record) -> Option<String> {
    let what = record.what();
    let describe =
        |wrong: &str| Some(format!("{}: {} {what}: {wrong}: {:?}", record.user, record.verb, record.request));
    let (list, kind) = if is_apply(record) { (APPLIES, "apply") } else { (OTHERS, "other write") };
    let listed = list.iter().find(|write| write.verb == record.verb && write.resource == what);
    let otherwise =
        |_: &&ListedWrite| is_apply(record) || what != MIGRATED || record.verb != "patch" || migrates(record);
    let Some(listed) = listed.filter(otherwise) else {
        return describe(&format!("this {kind} is not on the list"));
    };
    let made = what == MADE_BY_APPLY && (record.code == 201 || !record.succeeded());
    if made && is_apply(record) {
        return None;
    }
    let body = record.request.as_ref();
    let at = |guard: &str| match body? {
        Value::Array(operations) => operations.iter().find(|operation| operation["path"] == guard)?.get("value"),
        body => body.pointer(guard),
    };
    let holds = |guard: &str| at(guard).and_then(Value::as_str).is_some_and(|g| !g.is_empty());
    let missing = listed.guards.iter().find(|guard| !holds(guard))?;
    describe(&format!("{missing} is missing ({})", listed.why))
}

/// Returns true for a write of the storage migrator: one of metadata alone, or one that replaces all of an object, its
/// ownership too.
fn migrates(record: &Record) -> bool {
    let metadata = |operation: &Value| operation["path"].as_str().is_some_and(|path| path.starts_with("/metadata/"));
    match &record.request {
        Some(Value::Array(operations)) => operations.iter().all(metadata),
        Some(body) => {
            // An apply names its version.
            body["apiVersion"].is_null()
                && body["status"].is_null()
                && (body["spec"].is_null() || body["metadata"]["managedFields"] == serde_json::json!([{}]))
        }
        None => false,
    }
}

/// Returns true for a server-side apply. The log does not hold the content type of a request: an apply names its
/// manager, has a whole object as its body, and leaves the manager behind as one that applies.
fn is_apply(record: &Record) -> bool {
    if record.verb != "patch" {
        return false;
    }
    let (_, query) = record.uri.split_once('?').unwrap_or_default();
    let manager = query.split('&').find_map(|pair| pair.strip_prefix("fieldManager="));
    let whole = |body: &Value| body["apiVersion"].is_string() && body["kind"].is_string();
    let (Some(manager), Some(true)) = (manager, record.request.as_ref().map(whole)) else { return false };
    let owners = record.response.as_ref().and_then(|object| object.pointer("/metadata/managedFields")?.as_array());
    // A refused request, and one that applied nothing, owns nothing.
    let applies = |entry: &Value| entry["manager"] == manager && entry["operation"] == "Apply";
    let updates = |entry: &Value| entry["manager"] == manager && entry["operation"] == "Update";
    owners.is_none_or(|owners| owners.iter().any(applies) || !owners.iter().any(updates))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::request;
    use super::*;

    const APPLY: &str = "/apis/x?fieldManager=brupop-controller&force=true";

    fn apply(what: &str, metadata: &Value) -> Record {
        let body = json!({"apiVersion": "v1", "kind": "K", "metadata": metadata});
        let owners = json!([{"manager": "brupop-controller", "operation": "Apply"}]);
        let response = json!({"metadata": {"managedFields": owners}});
        request(
            "patch",
            "",
            what,
            "a",
            &json!({"requestURI": APPLY, "requestObject": body, "responseObject": response}),
        )
    }

    fn answered(mut record: Record, code: u16) -> Record {
        record.code = code;
        record
    }

    fn whole() -> Value {
        json!({"name": "a", "uid": "u", "resourceVersion": "7"})
    }

    /// A shadow that is reset, with its ownership.
    fn reset_object() -> Value {
        json!({"metadata": {"resourceVersion": "7", "managedFields": [{}]}, "spec": {"attempt": 0}})
    }

    #[test]
    fn guarded_applies_and_listed_writes_are_accepted() {
        let preconditions = json!({"preconditions": {"uid": "u"}});
        let audit = [
            apply("nodes", &whole()),
            apply("bottlerocketshadows/status", &json!({"name": "a", "resourceVersion": "7"})),
            apply("configmaps", &json!({"name": "a", "resourceVersion": "7"})),
            answered(apply("configmaps", &json!({"name": "a"})), 201),
            answered(apply("configmaps", &json!({"name": "a"})), 409),
            request("delete", "", "pods", "a", &json!({"requestObject": preconditions})),
            request("create", "", "pods/eviction", "a", &json!({"requestObject": {"deleteOptions": preconditions}})),
            request("patch", "", "nodes", "a", &json!({"requestObject": {"metadata": {"resourceVersion": "7"}}})),
            request("update", "", "leases", "a", &json!({"requestObject": {"metadata": {"resourceVersion": "7"}}})),
            request("create", "", "tokenreviews", "", &json!({})),
            request("create", "apps", "controllerrevisions", "a", &json!({})),
            request("patch", "apps", "controllerrevisions", "a", &json!({"requestObject": {"metadata": whole()}})),
            // Steps of a migration.
            request("patch", "", "bottlerocketshadows", "a", &json!({"requestObject": {"metadata": whole()}})),
            request("patch", "", "bottlerocketshadows", "a", &json!({"requestObject": reset_object()})),
            request(
                "patch",
                "",
                "bottlerocketshadows",
                "a",
                &json!({"requestObject": [
                    {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
                    {"op": "add", "path": "/metadata/managedFields", "value": []},
                ]}),
            ),
            request(
                "patch",
                "",
                "customresourcedefinitions/status",
                "a",
                &json!({"requestObject": {"metadata": whole()}}),
            ),
            // Not writes, or not the operator's.
            request("get", "", "nodes", "a", &json!({})),
            request("patch", "", "services", "a", &json!({"user": {"username": "admin"}})),
        ];
        assert_eq!(unlisted(&audit), [""; 0]);
    }

    #[test]
    fn unlisted_write_is_reported() {
        let forced = json!({"requestURI": APPLY, "requestObject": {"spec": {"unschedulable": true}}});
        for write in [
            request("update", "", "nodes", "a", &json!({"requestObject": {"metadata": whole()}})),
            request(
                "patch",
                "",
                "bottlerocketshadows",
                "a",
                &json!({"requestObject": {"metadata": whole(), "spec": {}}}),
            ),
            request("patch", "", "bottlerocketshadows", "a", &json!({"requestObject": [{"path": "/spec/state"}]})),
            request("patch", "", "bottlerocketshadows", "a", &forced),
            request("deletecollection", "", "pods", "", &json!({})),
            request("delete", "", "nodes", "a", &json!({"requestObject": {"preconditions": {"uid": "u"}}})),
            apply("secrets", &whole()),
        ] {
            let found = unlisted(&[write]);
            assert!(found.len() == 1 && found[0].contains("is not on the list"), "{found:?}");
        }
    }

    #[test]
    fn merge_patch_disguised_as_apply_is_detected_by_managed_fields() {
        let owners = json!([{"manager": "brupop-controller", "operation": "Update"}]);
        let mut merge = apply("bottlerocketshadows", &whole());
        merge.response = Some(json!({"metadata": {"managedFields": owners}}));
        assert_eq!(unlisted(&[merge]).len(), 1);
    }

    #[test]
    fn write_without_precondition_is_reported() {
        for (guard, write) in [
            (UID, apply("nodes", &json!({"name": "a", "resourceVersion": "7"}))),
            (VERSION, apply("nodes", &json!({"name": "a", "uid": "u"}))),
            (VERSION, apply("bottlerocketshadows", &json!({"name": "a", "uid": "u"}))),
            (VERSION, apply("bottlerocketshadows/status", &json!({"name": "a", "uid": "u"}))),
            (VERSION, apply("bottlerocketupdateoperators/status", &json!({"name": "a", "resourceVersion": ""}))),
            (VERSION, apply("configmaps", &json!({"name": "a"}))),
            (VERSION, answered(apply("nodes", &json!({"name": "a", "uid": "u"})), 201)),
            (VERSION, request("patch", "", "nodes", "a", &json!({"requestObject": {"metadata": {}}}))),
            (VERSION, request("update", "", "leases", "a", &json!({"requestObject": {"metadata": {}}}))),
            (VERSION, request("patch", "", "bottlerocketshadows", "a", &json!({"requestObject": {"metadata": {}}}))),
            (
                VERSION,
                request("patch", "", "bottlerocketshadows", "a", &json!({"requestObject": [{"path": "/metadata/x"}]})),
            ),
            (
                UID,
                request(
                    "patch",
                    "",
                    "customresourcedefinitions/status",
                    "a",
                    &json!({"requestObject": {"metadata": {"resourceVersion": "7"}}}),
                ),
            ),
            (
                UID,
                request(
                    "patch",
                    "apps",
                    "controllerrevisions",
                    "a",
                    &json!({"requestObject": {"metadata": {"resourceVersion": "7"}}}),
                ),
            ),
            ("/preconditions/uid", request("delete", "apps", "controllerrevisions", "a", &json!({}))),
            ("/preconditions/uid", request("delete", "", "pods", "a", &json!({}))),
            ("/preconditions/uid", request("delete", "", "bottlerocketshadows", "a", &json!({"requestObject": {}}))),
            ("/deleteOptions/preconditions/uid", request("create", "", "pods/eviction", "a", &json!({}))),
        ] {
            let found = unlisted(&[write]);
            assert!(found.len() == 1 && found[0].contains(&format!("{guard} is missing")), "{guard}: {found:?}");
        }
    }
}
