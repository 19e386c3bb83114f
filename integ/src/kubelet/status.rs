//! A pod's status, computed from the states of its containers.

use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use serde_json::{Value, json};

/// The end of a container's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) exit_code: i32,
    pub(crate) signal: Option<i32>,
    pub(crate) reason: String,
    pub(crate) message: Option<String>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
    pub(crate) container_id: String,
}

/// State of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ContainerPhase {
    Waiting { reason: String, message: Option<String> },
    Running { since: Timestamp },
    Ended(Ended),
}

impl ContainerPhase {
    pub(crate) fn waiting(reason: &str, message: Option<String>) -> Self {
        Self::Waiting { reason: reason.to_owned(), message }
    }
}

/// One container as its status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ContainerView {
    pub(crate) name: String,
    pub(crate) image: String,
    pub(crate) doing: ContainerPhase,
    pub(crate) last: Option<Ended>,
    pub(crate) restarts: u32,
    pub(crate) ready: bool,
    pub(crate) container_id: String,
}

impl ContainerView {
    /// The container waits. If it has ended, that end becomes its last one.
    pub(crate) fn wait(&mut self, reason: &str, message: Option<String>) {
        if let ContainerPhase::Ended(ended) = &self.doing {
            self.last = Some(ended.clone());
        }
        self.doing = ContainerPhase::waiting(reason, message);
    }

    /// The container runs. If it has ended, that end becomes its last one.
    pub(crate) fn run(&mut self, since: Timestamp) {
        if let ContainerPhase::Ended(ended) = &self.doing {
            self.last = Some(ended.clone());
        }
        self.doing = ContainerPhase::Running { since };
    }
}

/// The reason of an end that was not observed, because the machine lost its power.
pub(crate) const LOST: &str = "Unknown";

/// A phase that the kubelet sets itself, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) phase: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
    pub(crate) disruption: bool,
}

/// The verdict on pods ended by a graceful node shutdown.
pub(crate) const SHUT_DOWN: Verdict = Verdict {
    phase: "Failed",
    reason: "Terminated",
    message: "Pod was terminated in response to imminent node shutdown.",
    disruption: true,
};

/// The verdict on a pod that is bound to a node that shuts down.
pub(crate) const REJECTED: Verdict = Verdict {
    phase: "Failed",
    reason: "NodeShutdown",
    message: "Pod was rejected as the node is shutting down.",
    disruption: false,
};

/// Input of a status.
pub(crate) struct StatusInput<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) containers: &'a [ContainerView],
    pub(crate) start_time: Timestamp,
    pub(crate) pod_ip: Option<Ipv4Addr>,
    pub(crate) host_ip: Ipv4Addr,
    pub(crate) verdict: Option<&'a Verdict>,
    /// True while the pod is ending, so that ended containers are not restarted.
    pub(crate) ending: bool,
}

/// The status as a strategic merge patch that touches only the kubelet's fields. `conditions` are those already
/// reported; a transition time changes only with the status.
pub(crate) fn status_patch(input: &StatusInput<'_>, conditions: &[PodCondition], now: Timestamp) -> Value {
    let containers = input.containers;
    let ended = phase(input);
    // A pod that completes when its node shuts down has succeeded: only its condition shows the shutdown.
    let verdict = input.verdict.filter(|v| !(v.disruption && ended == "Succeeded"));
    let phase = verdict.map_or(ended, |v| v.phase);
    let finished = phase == "Succeeded" || phase == "Failed";
    let unready: Vec<&str> = containers.iter().filter(|c| !c.ready).map(|c| c.name.as_str()).collect();
    let all_ready = unready.is_empty() && !containers.is_empty() && !finished;
    let why_not = match (all_ready, finished) {
        (true, _) => (None, None),
        (false, true) if phase == "Succeeded" => (Some("PodCompleted"), None),
        (false, true) => (Some("PodFailed"), None),
        (false, false) => {
            (Some("ContainersNotReady"), Some(format!("containers with unready status: [{}]", unready.join(" "))))
        }
    };
    let sandbox = has_sandbox(containers) && !finished;
    let no_sandbox = (Some("PodSandboxNotReady"), Some("pod sandbox is not ready".to_owned()));
    let completed = ((phase == "Succeeded").then_some("PodCompleted"), None);
    let condition =
        |kind: &str, holds: bool, why: (_, Option<String>)| condition(input, conditions, now, kind, holds, why);
    let mut reported = vec![
        condition("PodReadyToStartContainers", sandbox, if sandbox { (None, None) } else { no_sandbox }),
        condition("Initialized", true, completed),
        condition("ContainersReady", all_ready, why_not.clone()),
        condition("Ready", all_ready && gates_pass(input.pod, conditions), why_not),
    ];
    if let Some(verdict) = input.verdict.filter(|v| v.disruption) {
        let why = (Some("TerminationByKubelet"), Some(verdict.message.to_owned()));
        reported.push(condition("DisruptionTarget", true, why));
    }
    let generation = input.pod.metadata.generation;
    let host_ip = input.host_ip.to_string();
    let mut status = json!({
        "phase": phase,
        "reason": verdict.map(|v| v.reason),
        "message": verdict.map(|v| v.message),
        "observedGeneration": generation,
        "startTime": stamp(input.start_time),
        "hostIP": host_ip,
        "hostIPs": [{"$patch": "replace"}, {"ip": host_ip}],
        "conditions": reported,
        "containerStatuses": containers.iter().map(container_status).collect::<Vec<_>>(),
    });
    if let Some(ip) = input.pod_ip {
        status["podIP"] = json!(ip.to_string());
        status["podIPs"] = json!([{"$patch": "replace"}, {"ip": ip.to_string()}]);
    }
    json!({"metadata": {"uid": input.pod.metadata.uid}, "status": status})
}

/// The state of a pod on a scripted node: all its containers are in the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptedPod {
    /// The containers are being created.
    Creating,
    /// The containers run, after so many restarts.
    Running {
        /// True if its probes succeed.
        ready: bool,
        /// Number of restarts: each after an end with exit code 255, as after a loss of power.
        restarts: u32,
    },
    /// The containers have ended with a loss of power, and run again soon.
    Lost {
        /// Number of restarts so far.
        restarts: u32,
    },
    /// It has completed because it was terminated.
    Terminated,
    /// It has completed because its node shut down gracefully.
    ShutDown,
}

/// The status of a pod in that state, as a strategic merge patch.
pub fn scripted_status(pod: &Pod, state: ScriptedPod, host_ip: Ipv4Addr, now: Timestamp) -> Value {
    let end = |exit_code: i32, reason: &str| Ended {
        exit_code,
        signal: None,
        reason: reason.to_owned(),
        message: None,
        started: None,
        finished: now,
        container_id: "scripted://1".to_owned(),
    };
    let (doing, last, restarts, ready) = match state {
        ScriptedPod::Creating => (ContainerPhase::waiting("ContainerCreating", None), None, 0, false),
        ScriptedPod::Running { ready, restarts } => {
            (ContainerPhase::Running { since: now }, (restarts > 0).then(|| end(255, LOST)), restarts, ready)
        }
        ScriptedPod::Lost { restarts } => (ContainerPhase::Ended(end(255, LOST)), None, restarts, false),
        ScriptedPod::Terminated | ScriptedPod::ShutDown => (ContainerPhase::Ended(end(0, "Completed")), None, 0, false),
    };
    let shut_down = state == ScriptedPod::ShutDown;
    let created = state != ScriptedPod::Creating;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let containers = containers.map(|container| ContainerView {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        doing: doing.clone(),
        last: last.clone(),
        restarts,
        ready,
        container_id: if created { "scripted://1".to_owned() } else { String::new() },
    });
    let containers: Vec<_> = containers.collect();
    let status = pod.status.as_ref();
    let input = StatusInput {
        pod,
        containers: &containers,
        start_time: status.and_then(|status| status.start_time.as_ref()).map_or(now, |time| time.0),
        pod_ip: created.then_some(host_ip),
        host_ip,
        verdict: shut_down.then_some(&SHUT_DOWN),
        ending: shut_down || pod.metadata.deletion_timestamp.is_some(),
    };
    let known = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    status_patch(&input, known, now)
}

fn phase(input: &StatusInput<'_>) -> &'static str {
    let (policy, containers) = (restart_policy(input.pod), input.containers);
    let ended = |c: &ContainerView| match &c.doing {
        ContainerPhase::Ended(e) => Some(e.exit_code),
        ContainerPhase::Waiting { .. } | ContainerPhase::Running { .. } => None,
    };
    let codes: Vec<i32> = containers.iter().filter_map(ended).collect();
    let all_ended = codes.len() == containers.len() && !containers.is_empty();
    let final_now = match policy {
        _ if input.ending => all_ended,
        "Never" => all_ended,
        "OnFailure" => all_ended && codes.iter().all(|c| *c == 0),
        _ => false,
    };
    if final_now {
        return if codes.iter().all(|c| *c == 0) { "Succeeded" } else { "Failed" };
    }
    let begun = |c: &ContainerView| !matches!(c.doing, ContainerPhase::Waiting { .. }) || c.last.is_some();
    if !containers.is_empty() && containers.iter().all(begun) { "Running" } else { "Pending" }
}

pub(crate) fn restart_policy(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always")
}

/// Returns true if the pod has come as far as its containers: a real kubelet makes the sandbox after the volumes.
fn has_sandbox(containers: &[ContainerView]) -> bool {
    containers.iter().any(|c| match &c.doing {
        ContainerPhase::Waiting { reason, .. } => reason != "ContainerCreating",
        ContainerPhase::Running { .. } => true,
        ContainerPhase::Ended(ended) => ended.reason != LOST,
    })
}

/// Returns true if all readiness gates, which are conditions of other controllers, are met.
fn gates_pass(pod: &Pod, conditions: &[PodCondition]) -> bool {
    let gates = pod.spec.iter().flat_map(|s| s.readiness_gates.iter().flatten());
    gates.into_iter().all(|gate| conditions.iter().any(|c| c.type_ == gate.condition_type && c.status == "True"))
}

fn condition(
    input: &StatusInput<'_>,
    known: &[PodCondition],
    now: Timestamp,
    kind: &str,
    holds: bool,
    (reason, message): (Option<&str>, Option<String>),
) -> Value {
    let status = if holds { "True" } else { "False" };
    let before = known.iter().find(|c| c.type_ == kind && c.status == status);
    let since = before.and_then(|c| c.last_transition_time.as_ref()).map_or(now, |t| t.0);
    json!({
        "type": kind,
        "status": status,
        "observedGeneration": input.pod.metadata.generation,
        "lastProbeTime": null,
        "lastTransitionTime": stamp(since),
        "reason": reason,
        "message": message,
    })
}

fn container_status(view: &ContainerView) -> Value {
    json!({
        "name": view.name,
        "image": view.image,
        "imageID": if view.container_id.is_empty() { String::new() } else { format!("sim://{}", view.image) },
        "containerID": view.container_id,
        "ready": view.ready,
        "started": matches!(view.doing, ContainerPhase::Running { .. }),
        "restartCount": view.restarts,
        "state": state(&view.doing),
        "lastState": view.last.as_ref().map_or_else(|| json!({}), |e| json!({"terminated": ended(e)})),
    })
}

fn state(doing: &ContainerPhase) -> Value {
    match doing {
        ContainerPhase::Waiting { reason, message } => json!({"waiting": {"reason": reason, "message": message}}),
        ContainerPhase::Running { since } => json!({"running": {"startedAt": stamp(*since)}}),
        ContainerPhase::Ended(how) => json!({"terminated": ended(how)}),
    }
}

fn ended(how: &Ended) -> Value {
    json!({
        "exitCode": how.exit_code,
        "signal": how.signal,
        "reason": how.reason,
        "message": how.message,
        "startedAt": how.started.map(stamp),
        "finishedAt": stamp(how.finished),
        "containerID": how.container_id,
    })
}

/// Formats a time in whole seconds, as Kubernetes stores it; a finer one would look like a change each time it is read
/// back.
fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
            "spec": {"restartPolicy": policy, "containers": [{"name": "c"}]},
        }))
        .unwrap()
    }

    fn view(doing: ContainerPhase, ready: bool) -> ContainerView {
        ContainerView {
            name: "c".into(),
            image: "i".into(),
            doing,
            last: None,
            restarts: 0,
            ready,
            container_id: "x".into(),
        }
    }

    fn exited(exit_code: i32) -> ContainerPhase {
        ContainerPhase::Ended(Ended {
            exit_code,
            signal: None,
            reason: "Error".into(),
            message: None,
            started: None,
            finished: Timestamp::UNIX_EPOCH,
            container_id: "x".into(),
        })
    }

    fn status(policy: &str, doing: ContainerPhase, ready: bool, ending: bool, known: &[PodCondition]) -> Value {
        let input = StatusInput {
            pod: &pod(policy),
            containers: &[view(doing, ready)],
            start_time: Timestamp::UNIX_EPOCH,
            pod_ip: None,
            host_ip: Ipv4Addr::new(10, 1, 1, 1),
            verdict: None,
            ending,
        };
        status_patch(&input, known, Timestamp::UNIX_EPOCH)["status"].clone()
    }

    #[test]
    fn pod_phase_depends_on_restart_policy() {
        for (policy, code, ending, phase) in [
            ("Always", 1, false, "Running"),
            ("Always", 0, true, "Succeeded"),
            ("Always", 143, true, "Failed"),
            ("OnFailure", 0, false, "Succeeded"),
            ("OnFailure", 1, false, "Running"),
            ("Never", 1, false, "Failed"),
        ] {
            assert_eq!(status(policy, exited(code), false, ending, &[])["phase"], phase, "{policy} {code} {ending}");
        }
        let waiting = ContainerPhase::waiting("ContainerCreating", None);
        assert_eq!(status("Always", waiting, false, false, &[])["phase"], "Pending");
    }

    #[test]
    fn unchanged_condition_status_keeps_transition_time() {
        let known = json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]);
        let known: Vec<PodCondition> = serde_json::from_value(known).unwrap();
        let running = ContainerPhase::Running { since: Timestamp::UNIX_EPOCH };
        let status = status("Always", running, true, false, &known);
        let ready = &status["conditions"][3];
        assert_eq!((&ready["type"], &ready["lastTransitionTime"]), (&json!("Ready"), &json!("2020-01-01T00:00:00Z")));
    }
}
