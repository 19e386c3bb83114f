//! The pods of a fleet: one watch of all of them, from which each node's kubelet starts and ends its own.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use models::names::{AGENT, COMPONENT_LABEL};
use tokio::time::sleep;

use super::kubelets::{FleetNode, Kubelets};
use super::spec::FleetSpec;
use crate::kubelet::{ScriptedPod, scripted_status};
use crate::machine::Power;

/// A step of a pod that its kubelet takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PodStep {
    /// It was bound: its containers start.
    Start,
    /// The node controller took it for not Ready while its node was; it is Ready.
    Ready,
    /// It was deleted: its containers end.
    End,
}

/// Returns true if the pod's condition says that it is Ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns true if the pod has ended for good.
pub(super) fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the next step of a pod.
fn next_step(pod: &Pod) -> Option<PodStep> {
    let status = pod.status.as_ref();
    if pod.metadata.deletion_timestamp.is_some() {
        return Some(PodStep::End);
    }
    if is_finished(pod) {
        return None;
    }
    match status.and_then(|status| status.container_statuses.as_ref()) {
        None => Some(PodStep::Start),
        Some(_) => (!is_ready(pod)).then_some(PodStep::Ready),
    }
}

impl Kubelets {
    /// Follows all pods that are bound to a node.
    pub(super) async fn follow_pods(self: Arc<Self>) {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let bound = watcher::Config::default().fields("spec.nodeName!=");
        let mut events = Box::pin(watcher(pods, bound).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(pod) | Event::InitApply(pod)) => self.see(pod),
                Ok(Event::Delete(pod)) => self.forget(&pod),
                Ok(Event::Init | Event::InitDone) => {}
                Err(error) => tracing::debug!(%error, "the watch of pods ended"),
            }
        }
    }

    /// Returns the pod's node, and whether the pod is that of its agent.
    fn node_of(&self, pod: &Pod) -> Option<(Arc<FleetNode>, bool)> {
        let node = self.nodes.get(pod.spec.as_ref()?.node_name.as_ref()?)?;
        Some((node.clone(), pod.labels().get(COMPONENT_LABEL).is_some_and(|component| component == AGENT)))
    }

    fn see(self: &Arc<Self>, mut pod: Pod) {
        let Some((node, is_agent)) = self.node_of(&pod) else { return };
        pod.metadata.managed_fields = None;
        if is_agent {
            node.agent_pod.send_replace(Some(Arc::new(pod)));
            return;
        }
        let (Some(step), Some(uid)) = (next_step(&pod), pod.uid()) else { return };
        if !self.steps.lock().insert((uid.clone(), step)) {
            return;
        }
        let kubelets = self.clone();
        tokio::spawn(async move {
            kubelets.take_step(&node, &pod, step).await;
            kubelets.steps.lock().remove(&(uid, step));
        });
    }

    fn forget(&self, pod: &Pod) {
        let Some((node, true)) = self.node_of(pod) else { return };
        node.agent_pod.send_if_modified(|known| {
            let same = known.as_ref().is_some_and(|known| known.uid() == pod.uid());
            if same {
                *known = None;
            }
            same
        });
    }

    async fn take_step(&self, node: &FleetNode, pod: &Pod, step: PodStep) {
        sleep(match step {
            PodStep::Start => self.spec.start,
            PodStep::Ready => Duration::ZERO,
            PodStep::End => self.spec.termination,
        })
        .await;
        // The sender lives as long as the host.
        let _ = node.host.machine().state().wait_for(|machine| machine.power == Power::Up).await;
        match step {
            PodStep::Start | PodStep::Ready => {
                self.post_pod(node, pod, ScriptedPod::Running { ready: true, restarts: 0 }).await;
            }
            PodStep::End => self.delete_pod(pod).await,
        }
    }

    /// Writes the status of a pod.
    pub(super) async fn post_pod(&self, node: &FleetNode, pod: &Pod, state: ScriptedPod) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let status = scripted_status(pod, state, FleetSpec::address(node.number), Timestamp::now());
        let (name, params, patch) = (pod.name_any(), PatchParams::default(), Patch::Strategic(status));
        self.repeat(|| api.patch_status(&name, &params, &patch)).await;
    }

    /// Deletes a pod whose containers have ended.
    pub(super) async fn delete_pod(&self, pod: &Pod) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        let name = pod.name_any();
        self.repeat(|| api.delete(&name, &params)).await;
    }
}
