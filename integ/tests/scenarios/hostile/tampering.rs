//! The false statements of a compromised web API.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use models::shadow::{ArmedPhase, HostPolicy};
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
