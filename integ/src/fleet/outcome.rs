//! The state of the cluster after a rollout.

use std::collections::BTreeMap;

use anyhow::ensure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use models::names::{CONTROLLER, INTERFACE_LABEL};
use semver::Version;

use crate::rollout_history;

/// Number of objects of one answer.
const PAGE: u32 = 500;

/// Number of names in an error.
const NAMED: usize = 5;

/// Objects that a rollout leaves.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Events of the controller, by their reason.
    pub events: BTreeMap<String, usize>,
    /// Number of records of rollouts.
    pub records: usize,
    /// Number of pages of the history.
    pub pages: usize,
    /// Size of the history's largest object, in bytes.
    pub largest: usize,
    /// Size of the whole history, in bytes.
    pub all: usize,
}

impl Outcome {
    /// Reads it.
    pub(super) async fn read(client: &Client, from: Timestamp) -> anyhow::Result<Self> {
        let mut outcome = Self::default();
        let mut page = ListParams::default().limit(PAGE);
        let events: Api<Event> = Api::all(client.clone());
        loop {
            let list = events.list(&page).await?;
            for event in &list.items {
                let created = event.metadata.creation_timestamp.as_ref();
                let ours = event.reporting_controller.as_deref() == Some(CONTROLLER);
                if ours && created.is_some_and(|created| created.0.as_second() >= from.as_second()) {
                    *outcome.events.entry(event.reason.clone().unwrap_or_default()).or_default() += 1;
                }
            }
            let Some(next) = list.metadata.continue_.filter(|next| !next.is_empty()) else { break };
            page = page.continue_token(&next);
        }
        for object in rollout_history::objects(client).list(&ListParams::default()).await? {
            let size = serde_json::to_vec(&object)?.len();
            outcome.largest = outcome.largest.max(size);
            outcome.all += size;
            if object.spec.rollout.is_some() {
                outcome.records += 1;
            } else {
                outcome.pages += 1;
            }
        }
        Ok(outcome)
    }
}

/// Checks that all nodes run a version, are Ready, and none is cordoned.
///
/// # Errors
/// Returns an error if one does not, is not, or is.
pub(super) async fn ensure_updated(client: &Client, version: &Version) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().labels(INTERFACE_LABEL)).await?;
    let image = format!("Bottlerocket OS {version} ");
    let (mut earlier, mut cordoned, mut not_ready) = (Vec::new(), Vec::new(), Vec::new());
    for node in &nodes {
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        if spec.and_then(|spec| spec.unschedulable) == Some(true) {
            cordoned.push(node.name_any());
        }
        let info = status.and_then(|status| status.node_info.as_ref());
        if !info.is_some_and(|info| info.os_image.starts_with(&image)) {
            earlier.push(node.name_any());
        }
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        if !conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True") {
            not_ready.push(node.name_any());
        }
    }
    for (names, what) in [(earlier, "do not run the version"), (cordoned, "are cordoned"), (not_ready, "are not Ready")]
    {
        ensure!(names.is_empty(), "{} nodes {what}: {:?}", names.len(), &names[..names.len().min(NAMED)]);
    }
    Ok(())
}
