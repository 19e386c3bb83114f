//! Jobs of hooks as objects: written, and read.

use std::fmt::Write as _;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::error_boundary::InvalidObject;
use models::names::{
    HOOK_LABEL, JOB_AFTER_ANNOTATION, JOB_ATTEMPT_ANNOTATION, JOB_NODE_ANNOTATION, JOB_NUMBER_ANNOTATION,
    JOB_PHASE_ANNOTATION, JOB_REQUEST_ANNOTATION, JOB_VERSION_ANNOTATION, POD_TEMPLATE_LABEL,
};
use models::plain::cut;
use planner::hooks::is_open;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::decide::{NewRun, Phase, Run, State};

/// Time for which an ended Job and the logs of its pods are kept, in seconds.
pub(super) const KEPT: i32 = 3600;

/// Number of further pods after the first failed one. With the Job controller's pauses before them, of 10 and 20 seconds, a check that refuses
/// has its answer within most timeouts.
const RETRIES: i32 = 2;

/// The longest part of a hook's name in the name of a Job, which may have 63 characters.
const HOOK_LENGTH: usize = 40;

/// The longest reason, in characters: with the request it is shorter than what is read of an answer.
const REASON_LENGTH: usize = 400;

/// The name of a Job. The same one has the same name, so that no leader creates it twice.
fn name(new: &NewRun) -> String {
    let NewRun { hook, node, attempt, number, phase, .. } = new;
    let hash = Sha256::digest(format!("{hook}\n{node}\n{attempt}\n{number}\n{}", phase.as_str()));
    let mut name = format!("{}-", hook.chars().take(HOOK_LENGTH).collect::<String>());
    for byte in hash.iter().take(8) {
        _ = write!(name, "{byte:02x}");
    }
    name
}

/// Returns the Job, with the `template` of a PodTemplate. The spec of its pods is that of the template: what they are to know is in
/// annotations, which the template puts into their environment. It has no owner: the garbage collector would delete it, and with it the record of
/// what was prepared, with a Node or a PodTemplate.
pub(super) fn job(new: &NewRun, version: &str, template: &Value) -> Value {
    let number = new.number.to_string();
    let mut annotations = json!({
        JOB_NODE_ANNOTATION: new.node, JOB_VERSION_ANNOTATION: version, JOB_ATTEMPT_ANNOTATION: new.attempt,
        JOB_PHASE_ANNOTATION: new.phase.as_str(), JOB_NUMBER_ANNOTATION: number,
    });
    let mut pod = template.clone();
    for (name, value) in annotations.as_object().into_iter().flatten() {
        pod["metadata"]["annotations"][name] = value.clone();
    }
    pod["metadata"]["labels"][HOOK_LABEL] = new.hook.clone().into();
    if new.on_node {
        pod["spec"]["nodeName"] = new.node.clone().into();
    }
    for (name, value) in [(JOB_REQUEST_ANNOTATION, &new.request), (JOB_AFTER_ANNOTATION, &new.after)] {
        if let Some(value) = value {
            annotations[name] = value.clone().into();
        }
    }
    let mut spec =
        json!({"backoffLimit": RETRIES, "activeDeadlineSeconds": new.limit.as_secs().max(1), "template": pod});
    if new.phase == Phase::After {
        spec["ttlSecondsAfterFinished"] = KEPT.into();
    }
    let labels = json!({HOOK_LABEL: new.hook, POD_TEMPLATE_LABEL: new.template});
    let metadata = json!({"name": name(new), "namespace": new.namespace, "labels": labels, "annotations": annotations});
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
}

/// Returns the node of a Job that [`run`] cannot read; `None` if it is not one of a hook. The annotations of its pods cannot be edited.
pub(super) fn node(found: &Result<Job, InvalidObject>) -> Option<String> {
    let of = |meta: &ObjectMeta| meta.annotations.as_ref()?.get(JOB_NODE_ANNOTATION).cloned();
    let job = match found {
        Ok(job) => job,
        Err(invalid) => return of(&invalid.metadata),
    };
    let pods = job.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    pods.and_then(of).or_else(|| of(&job.metadata))
}

/// Reads a Job; `None` if it is not one of a hook, or its annotations were edited.
pub(super) fn run(job: &Job) -> Option<Run> {
    let (meta, spec) = (&job.metadata, job.spec.as_ref()?);
    let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name)).cloned();
    let phase = annotation(JOB_PHASE_ANNOTATION)?;
    let phase = [Phase::Before, Phase::After].into_iter().find(|known| known.as_str() == phase)?;
    let on_node = spec.template.spec.as_ref().is_some_and(|pod| pod.node_name.is_some());
    let (state, message) = state(job);
    Some(Run {
        name: meta.name.clone()?,
        namespace: meta.namespace.clone()?,
        uid: meta.uid.clone()?,
        resource_version: meta.resource_version.clone()?,
        hook: meta.labels.as_ref()?.get(HOOK_LABEL)?.clone(),
        node: annotation(JOB_NODE_ANNOTATION)?,
        version: annotation(JOB_VERSION_ANNOTATION).unwrap_or_default(),
        attempt: annotation(JOB_ATTEMPT_ANNOTATION)?,
        request: annotation(JOB_REQUEST_ANNOTATION),
        number: annotation(JOB_NUMBER_ANNOTATION)?.parse().ok()?,
        phase,
        on_node,
        after: annotation(JOB_AFTER_ANNOTATION),
        open: is_open(job),
        state,
        message,
    })
}

/// The state of a Job, with the message of its end.
fn state(job: &Job) -> (State, String) {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    for condition in conditions.filter(|condition| condition.status == "True") {
        let message = condition.message.clone().unwrap_or_default();
        match condition.type_.as_str() {
            // The first one also while a pod on a dead node does not end.
            "SuccessCriteriaMet" | "Complete" => return (State::Complete, message),
            "Failed" => {
                let at = condition.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
                let is_late = condition.reason.as_deref() == Some("DeadlineExceeded");
                return (if is_late { State::TimedOut(at) } else { State::Failed(at) }, message);
            }
            // As `FailureTarget`: the pods are still being ended.
            _ => {}
        }
    }
    (State::Running, String::new())
}

/// The reason of a failed Job: the last line of what the last failed container has left as its message, or else why the last pod has failed, as one
/// that the kubelet has rejected or evicted, or else the Job controller's message.
pub(super) fn reason(message: &str, pods: &[Pod]) -> String {
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref());
    let containers = statuses.flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let states = containers.flat_map(|container| container.state.iter().chain(&container.last_state));
    let ended = states.filter_map(|state| state.terminated.as_ref()).filter(|ended| ended.exit_code != 0);
    let said = ended.filter_map(|ended| {
        let line = ended.message.as_ref()?.lines().rfind(|line| !line.trim().is_empty())?;
        Some((ended.finished_at.as_ref().map(|time| time.0), line.trim()))
    });
    let last = said.max_by_key(|(at, _)| *at).map(|(_, line)| line);
    let of_pods = pods.iter().filter_map(|pod| {
        let status = pod.status.as_ref().filter(|status| status.phase.as_deref() == Some("Failed"))?;
        let mut texts = [&status.message, &status.reason].into_iter().filter_map(|text| text.as_deref().map(str::trim));
        let text = texts.find(|text| !text.is_empty())?;
        Some((pod.metadata.creation_timestamp.as_ref().map(|time| time.0), text))
    });
    let of_pod = || of_pods.max_by_key(|(at, _)| *at).map(|(_, text)| text);
    cut(last.or_else(of_pod).unwrap_or(message), REASON_LENGTH)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn new(phase: Phase) -> NewRun {
        NewRun {
            hook: "ceph".into(),
            node: "node-1".into(),
            version: None,
            attempt: "7/1800000000".into(),
            request: (phase == Phase::Before).then(|| "BeforeDrain/7/1800000000".into()),
            number: 2,
            phase,
            namespace: "rook-ceph".into(),
            template: "noout-set".into(),
            after: (phase == Phase::Before).then(|| "noout-unset".into()),
            on_node: phase == Phase::After,
            limit: Duration::from_mins(30),
        }
    }

    /// As the API server and the Job controller complete it.
    fn stored(mut job: Value, conditions: &Value) -> Job {
        job["metadata"]["uid"] = "u".into();
        job["metadata"]["resourceVersion"] = "5".into();
        job["status"] = json!({"conditions": conditions});
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn job_has_the_spec_of_its_template_and_is_read_as_it_was_written() {
        let template = json!({
            "metadata": {"labels": {"app": "ceph"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}], "fieldOfALaterVersion": 1},
        });
        let before = job(&new(Phase::Before), "1.20.5", &template);
        let pod = &before["spec"]["template"];
        assert_eq!(pod["spec"], template["spec"]);
        assert_eq!(pod["metadata"]["labels"], json!({"app": "ceph", HOOK_LABEL: "ceph"}));
        assert_eq!(pod["metadata"]["annotations"][JOB_VERSION_ANNOTATION], "1.20.5");
        let read = run(&stored(before, &json!([]))).unwrap();
        let found = (read.hook.as_str(), read.node.as_str(), read.attempt.as_str(), read.number, read.phase);
        assert_eq!(found, ("ceph", "node-1", "7/1800000000", 2, Phase::Before));
        assert!(read.open && !read.on_node && read.after.as_deref() == Some("noout-unset"), "{read:?}");
        assert_eq!(read.request.as_deref(), Some("BeforeDrain/7/1800000000"));

        let after = job(&new(Phase::After), "1.20.5", &template);
        assert_eq!(after["spec"]["template"]["spec"]["nodeName"], "node-1");
        let read = run(&stored(after.clone(), &json!([]))).unwrap();
        assert!(!read.open && read.on_node && read.after.is_none() && read.request.is_none(), "{read:?}");
        let others = job(&NewRun { number: 3, ..new(Phase::After) }, "1.20.5", &template);
        assert_ne!(after["metadata"]["name"], others["metadata"]["name"]);
    }

    #[test]
    fn node_of_a_job_is_known_whatever_is_edited() {
        type Edit = fn(&mut Value);
        let edited = |edit: Edit| {
            let mut before = job(&new(Phase::Before), "1.20.5", &json!({}));
            edit(&mut before["metadata"]["annotations"]);
            stored(before, &json!([]))
        };
        let cases: [(&str, Edit); 2] = [
            ("no annotation", |annotations| *annotations = json!({})),
            ("another number", |annotations| annotations[JOB_NUMBER_ANNOTATION] = "two".into()),
        ];
        for (sentence, edit) in cases {
            let job = edited(edit);
            assert_eq!((run(&job), node(&Ok(job)).as_deref()), (None, Some("node-1")), "{sentence}");
        }
        let metadata = ObjectMeta {
            annotations: Some([(JOB_NODE_ANNOTATION.to_owned(), "node-1".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let invalid = InvalidObject { error: "invalid type".to_owned(), metadata };
        assert_eq!(node(&Err(invalid)).as_deref(), Some("node-1"));
        assert_eq!(node(&Ok(Job::default())), None, "of another controller");
    }

    #[test]
    fn job_has_ended_when_its_last_condition_says_so() {
        let condition = |type_: &str, status: &str| json!([{"type": type_, "status": status, "message": "m"}]);
        let before = || job(&new(Phase::Before), "", &json!({}));
        let of = |conditions: Value| run(&stored(before(), &conditions)).unwrap().state;
        for type_ in ["Complete", "SuccessCriteriaMet"] {
            assert_eq!(of(condition(type_, "True")), State::Complete, "{type_}");
        }
        assert_eq!(of(condition("Failed", "True")), State::Failed(Timestamp::UNIX_EPOCH));
        let late = json!([{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]);
        assert_eq!(of(late), State::TimedOut(Timestamp::UNIX_EPOCH));
        for (type_, status) in [("Complete", "False"), ("FailureTarget", "True"), ("SuccessCriteriaMet", "False")] {
            assert_eq!(of(condition(type_, status)), State::Running, "{type_}");
        }
    }

    #[test]
    fn reason_is_the_last_line_of_the_last_failed_container_or_else_that_of_a_failed_pod_or_of_the_job() {
        let pod = |message: Option<&str>, code: i32, finished: &str| -> Pod {
            let ended = json!({"exitCode": code, "finishedAt": finished, "message": message});
            let container = json!({
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": ended},
            });
            serde_json::from_value(json!({"status": {"containerStatuses": [container]}})).unwrap()
        };
        let ended = |phase: &str, reason: Option<&str>, message: Option<&str>, created: &str| -> Pod {
            let status = json!({"phase": phase, "reason": reason, "message": message});
            serde_json::from_value(json!({"metadata": {"creationTimestamp": created}, "status": status})).unwrap()
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z");
        let (evicted, rejected) = (
            || ended("Failed", Some("Evicted"), Some("The node was low on resource: memory."), early),
            || ended("Failed", Some("OutOfcpu"), None, late),
        );
        for (sentence, pods, expected) in [
            ("no pod", vec![], "gave up"),
            ("no message", vec![pod(None, 1, early)], "gave up"),
            ("a message", vec![pod(Some("one\nHEALTH_WARN\n"), 1, early)], "HEALTH_WARN"),
            ("two pods", vec![pod(Some("late"), 1, late), pod(Some("early"), 1, early)], "late"),
            ("one that has succeeded", vec![pod(Some("good"), 0, late), pod(Some("bad"), 1, early)], "bad"),
            ("an evicted pod", vec![pod(None, 1, late), evicted()], "The node was low on resource: memory."),
            ("a rejected pod, the last", vec![rejected(), evicted()], "OutOfcpu"),
            ("a container with a message", vec![rejected(), pod(Some("HEALTH_WARN"), 1, early)], "HEALTH_WARN"),
            ("a pod that has not failed", vec![ended("Succeeded", Some("other"), None, late)], "gave up"),
        ] {
            assert_eq!(reason("gave up", &pods), expected, "{sentence}");
        }
    }
}
