//! The input of a simulation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rand::Rng as _;
use rand::rngs::StdRng;
use semver::Version;
use serde::Deserialize;

use super::host::Host;
use crate::policy::Policy;
use crate::view::{BudgetFacts, ClusterView, NodeView, PodFacts};

/// A duration that differs from case to case.
#[derive(Clone, Debug, PartialEq)]
pub enum Span {
    /// Always the same.
    Fixed(Duration),
    /// Any between these, each as likely.
    Between(Duration, Duration),
    /// One of those that were observed, each as likely. None of them: no time at all.
    Observed(Vec<Duration>),
}

impl Span {
    /// Returns a span in seconds.
    pub const fn seconds(from: u64, to: u64) -> Self {
        Self::Between(Duration::from_secs(from), Duration::from_secs(to))
    }

    pub(super) fn draw(&self, rng: &mut StdRng) -> SignedDuration {
        let drawn = match self {
            Self::Fixed(duration) => *duration,
            Self::Between(from, to) if from < to => rng.random_range(*from..=*to),
            Self::Between(from, _) => *from,
            Self::Observed(all) if all.is_empty() => Duration::ZERO,
            Self::Observed(all) => all[rng.random_range(0..all.len())],
        };
        SignedDuration::try_from(drawn).unwrap_or(SignedDuration::MAX)
    }
}

/// Returns a time without its fraction of a second: courses count in whole seconds from their beginning.
pub(super) fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// Durations of what hosts and agents do.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// Reaction of an agent to a new desired state.
    pub agent: Span,
    /// Download and verification of an image.
    pub download: Span,
    /// From the requested reboot to the moment at which the host is down.
    pub shutdown: Span,
    /// From then to the moment at which the Node is Ready again.
    pub boot: Span,
}

impl Default for Times {
    /// Durations of common hosts, where nothing better is known.
    fn default() -> Self {
        Self {
            agent: Span::seconds(1, 3),
            download: Span::seconds(20, 90),
            shutdown: Span::seconds(3, 30),
            boot: Span::seconds(30, 120),
        }
    }
}

/// The effect of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum FaultEffect {
    /// The image cannot be downloaded.
    DownloadFails,
    /// The host falls back to the version before.
    DoesNotBoot,
    /// The Node does not become Ready again.
    NeverReady,
    /// The pods on the node do not become Ready.
    PodsNotReady,
    /// The node comes back without its devices.
    DevicesMissing,
    /// The hooks refuse.
    HooksRefuse,
    /// The hooks do not answer.
    HooksSilent,
    /// The agent does not request its reboot permit.
    NoPermitRequested,
}

/// Failures of attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The version that fails; `None` for any.
    pub version: Option<Version>,
    pub effect: FaultEffect,
    /// The share of attempts that fail so, from 0 to 1.
    pub rate: f64,
    /// The nodes that it hits: indices of [`Scenario::members`]. Empty for all.
    pub members: BTreeSet<usize>,
}

/// Pods that are alike: replicas of one workload, or one pod of a real cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct PodTemplate {
    /// The facts that they share. `node` is not used; `name` and `uid` are the beginning of each pod's own, and those of
    /// a pod that exists.
    pub facts: PodFacts,
    /// From its eviction to its end.
    pub leaves: Span,
    /// From its end to the moment at which its replacement on another node is Ready; `None` if it is not replaced.
    pub replaced: Option<Span>,
}

impl PodTemplate {
    /// Returns whether the pod was running and not Ready at the beginning: neither it nor its replacement becomes Ready.
    pub(super) fn stays_unhealthy(&self) -> bool {
        !self.facts.ready && !self.facts.pending
    }
}

/// A node of the fleet.
#[derive(Clone, Debug)]
pub struct Member {
    pub node: Arc<NodeView>,
    /// The name, where the view is shared by nodes that are alike; `None` if it is the view's own.
    pub name: Option<String>,
    pub host: Host,
    /// The versions that the host may have, newest first.
    pub offered: Arc<[Version]>,
    /// The pods on it: indices of [`Scenario::pods`].
    pub pods: Vec<u32>,
}

impl Member {
    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.node.facts.name)
    }

    /// Returns its view, at the beginning.
    pub(super) fn view(&self) -> NodeView {
        let mut view = NodeView::clone(&self.node);
        // Observed in its state for a long time, so that the clock that plans get decides.
        view.observed_for = Duration::from_hours(1000);
        view.pods = None;
        if let Some(name) = &self.name {
            view.facts.name.clone_from(name);
            view.facts.uid = format!("uid-{name}");
            if let Some(shadow) = &mut view.shadow {
                shadow.node.clone_from(name);
                shadow.uid = format!("shadow-{name}");
                shadow.owner_uid = Some(view.facts.uid.clone());
            }
        }
        view
    }
}

/// A fleet, its policy and its workloads.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The view without its nodes: the operator's resource, the leader's node and so on.
    pub base: ClusterView,
    pub policy: Policy,
    /// The time at which the simulation begins.
    pub start: Timestamp,
    /// The longest time that it simulates.
    pub horizon: SignedDuration,
    pub members: Vec<Member>,
    pub pods: Vec<PodTemplate>,
    pub budgets: Vec<BudgetFacts>,
    pub times: Times,
    pub faults: Vec<Fault>,
    /// Pods that end at the beginning, whose replacements become Ready elsewhere: indices of [`Scenario::pods`].
    pub arriving: Vec<u32>,
    /// Pods that start at the beginning, each with the index of its node.
    pub starting: Vec<(usize, u32)>,
    /// The number of nodes that take pods and are not under the operator.
    pub elsewhere: usize,
    /// True if all nodes are in the view of each plan, and each is planned in each turn. It is slower, and a test compares.
    pub exhaustive: bool,
}
