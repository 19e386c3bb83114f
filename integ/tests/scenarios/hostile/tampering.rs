//! The false statements of a compromised web API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use models::shadow::{Armed, ArmedPhase, HostPolicy, HostState};
use models::wire::{AgentStatus, ShadowView};

use super::server::{ReportHandling, Tampering, locked};
use crate::interfere::poll;

/// State that a compromised web API shares with the scenario.
pub(super) type Shared<T> = Arc<Mutex<T>>;

/// Withholds permits, and stores them.
#[derive(Clone, Default)]
pub(super) struct WithheldPermits {
    withheld_from: Shared<Option<String>>,
    seen: Shared<Vec<(String, ShadowView)>>,
}

impl WithheldPermits {
    pub(super) fn withhold_from(&self, node: Option<&str>) {
        *locked(&self.withheld_from) = node.map(str::to_owned);
    }

    /// The views with different permits for a node.
    pub(super) fn of(&self, node: &str) -> Vec<ShadowView> {
        let mut views: Vec<ShadowView> = Vec::new();
        for (of, view) in locked(&self.seen).iter() {
            if of == node && !views.iter().any(|seen| seen.spec.permit == view.spec.permit) {
                views.push(view.clone());
            }
        }
        views
    }

    pub(super) async fn until(&self, node: &str, count: usize) -> anyhow::Result<Vec<ShadowView>> {
        poll(&format!("{node} is given {count} permits"), async || {
            let views = self.of(node);
            Ok((views.len() >= count).then_some(views))
        })
        .await
    }
}

impl Tampering for WithheldPermits {
    fn view(&mut self, node: &str, view: ShadowView) -> Option<ShadowView> {
        if view.spec.permit.is_some() {
            locked(&self.seen).push((node.to_owned(), view.clone()));
        }
        let withheld = view.spec.permit.is_some() && locked(&self.withheld_from).as_deref() == Some(node);
        (!withheld).then_some(view)
    }
}

/// Acknowledges the agents' reports that they are about to arm, without writing them to the cluster.
#[derive(Clone, Default)]
pub(super) struct FalseAcknowledgement {
    acknowledged: Shared<BTreeSet<String>>,
}

impl FalseAcknowledgement {
    /// Waits until an agent has requested a permit, and got the false acknowledgement.
    pub(super) async fn until_acknowledged(&self, node: &str) -> anyhow::Result<()> {
        poll(&format!("{node} asks"), async || Ok(locked(&self.acknowledged).contains(node).then_some(()))).await
    }
}

impl Tampering for FalseAcknowledgement {
    fn report(&mut self, node: &str, report: &AgentStatus) -> ReportHandling {
        if report.report.armed.is_none() {
            return ReportHandling::Forward;
        }
        locked(&self.acknowledged).insert(node.to_owned());
        ReportHandling::Discard
    }
}

/// Lets an agent act on its permit, and hides that it does.
#[derive(Clone, Default)]
pub(super) struct HiddenActivation(pub(super) Shared<bool>);

impl Tampering for HiddenActivation {
    fn report(&mut self, _: &str, report: &AgentStatus) -> ReportHandling {
        let acts = report.report.armed.as_ref().is_some_and(|armed| armed.phase == ArmedPhase::Activated);
        *locked(&self.0) |= acts;
        // From then on only its own reports pass.
        if *locked(&self.0) { ReportHandling::Discard } else { ReportHandling::Forward }
    }
}

/// Replaces the agent's nonce by its own, and shows the agent the permit for it as one for the agent's.
#[derive(Default)]
pub(super) struct ForgedNonce {
    /// The nonce of each agent.
    made: BTreeMap<String, String>,
}

pub(super) const FORGED_NONCE: &str = "AAAAAAAAAAAAAAAAAAAAAA";

impl Tampering for ForgedNonce {
    fn view(&mut self, node: &str, mut view: ShadowView) -> Option<ShadowView> {
        if let (Some(permit), Some(made)) = (&mut view.spec.permit, self.made.get(node)) {
            permit.nonce.clone_from(made);
        }
        Some(view)
    }

    fn report(&mut self, node: &str, report: &AgentStatus) -> ReportHandling {
        let Some(armed) = &report.report.armed else { return ReportHandling::Forward };
        self.made.insert(node.to_owned(), armed.nonce.clone());
        let mut forged = report.clone();
        forged.report.armed = Some(Armed { nonce: FORGED_NONCE.to_owned(), ..armed.clone() });
        ReportHandling::Replace(Box::new(forged))
    }
}

/// Withholds the controller's settings for hosts from their agents, and stores them.
#[derive(Clone, Default)]
pub(super) struct WithheldSettings(Shared<BTreeMap<String, HostPolicy>>);

impl WithheldSettings {
    /// The controller's settings for a node, with its signature.
    pub(super) async fn of(&self, node: &str) -> anyhow::Result<HostPolicy> {
        let what = format!("the controller asks something of the settings of {node}");
        poll(&what, async || Ok(locked(&self.0).get(node).cloned())).await
    }
}

impl Tampering for WithheldSettings {
    fn view(&mut self, node: &str, mut view: ShadowView) -> Option<ShadowView> {
        if let Some(host) = view.spec.host.take_if(|host| host.asks_settings()) {
            locked(&self.0).insert(node.to_owned(), host);
        }
        Some(view)
    }
}

/// Reports images as staged that are not.
#[derive(Default)]
pub(super) struct FalseStaging {
    /// The nodes with the desired state to stage, which do not get it.
    ordered: BTreeSet<String>,
}

impl Tampering for FalseStaging {
    fn view(&mut self, node: &str, mut view: ShadowView) -> Option<ShadowView> {
        // The agents are kept from staging: they are shown no desired state but the last one.
        if view.spec.state == HostState::StagedUpdate {
            self.ordered.insert(node.to_owned());
            view.spec.state = HostState::Idle;
            view.spec.version = None;
        }
        Some(view)
    }

    fn report(&mut self, node: &str, report: &AgentStatus) -> ReportHandling {
        if !self.ordered.contains(node) || report.report.failure.is_some() {
            return ReportHandling::Forward;
        }
        let mut forged = report.clone();
        forged.report.state = Some(HostState::StagedUpdate);
        ReportHandling::Replace(Box::new(forged))
    }
}

/// Shows each shadow with the highest possible generation and resource version.
pub(super) struct ForgedGeneration;

impl Tampering for ForgedGeneration {
    fn view(&mut self, _node: &str, mut view: ShadowView) -> Option<ShadowView> {
        view.metadata.generation = i64::MAX;
        view.metadata.resource_version = "9".repeat(40);
        "made up".clone_into(&mut view.etag);
        Some(view)
    }
}
