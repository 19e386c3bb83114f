//! The oracle's verdict.

use std::fmt;

/// The checked properties: those of the safety section of the design, and two that users see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    /// Never more nodes out of service because of the operator than the budget allows.
    S1,
    /// A host reboots only for its own node uid, boot id and current attempt.
    S2,
    /// Never with an evictable pod still on it.
    S3,
    /// No cordon, label or annotation that another client recorded is removed or changed.
    S4,
    /// No agent writes another node's shadow; agent status and controller status are written only by their owners.
    S5,
    /// A pod is evicted only under the uid that was seen on that node.
    S6,
    /// Never activate another version than the target version.
    S7,
    /// After the failure budget no new node starts.
    S8,
    /// A released node is not rebooted by the operator.
    S9,
    /// No drain begins before the awaited hooks have answered.
    S11,
    /// Never more nodes taken to a version than the places of canary steps passed and due; one alone until it is proven.
    S12,
    /// A pod that blocks a drain is named.
    L3,
    /// The operator violates no PodDisruptionBudget.
    BudgetRespected,
    /// At the end no node carries a claim of the operator, and no slot is taken.
    NoClaimLeft,
}

impl Property {
    /// The requirement as a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::S1 => "never more nodes out of service because of the operator than the budget allows",
            Self::S2 => "a host reboots only for its own node uid, boot id and current attempt",
            Self::S3 => "never with an evictable pod still on it",
            Self::S4 => "nothing that another client recorded on a node is removed or changed",
            Self::S5 => {
                "an agent's report concerns its own host only, and agent status and controller status are each written by their owner"
            }
            Self::S6 => "a pod is evicted only under the uid that was seen on that node",
            Self::S7 => "never activate another version than the desired one",
            Self::S8 => "after the failure budget no new node starts",
            Self::S9 => "a released node is not rebooted by the operator",
            Self::S11 => "no drain begins before the awaited hooks have answered",
            Self::S12 => {
                "no more nodes are taken to a version than its canary steps have places, and one alone until it is proven"
            }
            Self::L3 => "a pod that blocks a drain is named in the shadow",
            Self::BudgetRespected => "no PodDisruptionBudget is violated by the operator",
            Self::NoClaimLeft => "at the end no node carries a claim of the operator",
        }
    }
}

/// A violation of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Property.
    pub property: Property,
    /// Revision in the history, if known.
    pub revision: Option<u64>,
    /// Node, if it concerns one.
    pub node: Option<String>,
    /// Description.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.property, self.property.sentence())?;
        if let Some(revision) = self.revision {
            write!(f, " at revision {revision}")?;
        }
        if let Some(node) = &self.node {
            write!(f, ", node {node}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Amount of evidence. A verdict without evidence is worthless, so scenarios check these figures, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Changes in the history.
    pub changes: usize,
    /// Changes of Nodes and shadows whose writer the audit log does not name. Kubelets' reports of their nodes are
    /// among them.
    pub unattributed: usize,
    /// Largest number of nodes that the operator had out of service at one time.
    pub out_of_service: usize,
    /// Permits issued.
    pub permits: usize,
    /// Reboots requested through the hosts' API.
    pub reboots: usize,
    /// Images armed through the host API.
    pub arms: usize,
    /// Evictions by the operator that the API server carried out.
    pub evictions: usize,
    /// Changes of Nodes by the operator.
    pub node_writes: usize,
}

/// The oracle's verdict on a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// All violations.
    pub violations: Vec<Violation>,
    /// Amount of evidence.
    pub stats: Stats,
}

impl Verdict {
    /// Fails with a list of the violations, if there are any.
    ///
    /// # Errors
    /// That list.
    pub fn ensure_safe(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.violations.is_empty(), "{self}");
        Ok(())
    }

    /// Returns true if a property was violated.
    pub fn violates(&self, property: Property) -> bool {
        self.violations.iter().any(|violation| violation.property == property)
    }

    pub(super) fn report(&mut self, property: Property, revision: Option<u64>, node: Option<&str>, text: String) {
        self.violations.push(Violation { property, revision, node: node.map(str::to_owned), text });
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { changes, unattributed: _, out_of_service, permits, reboots, arms, evictions, node_writes: _ } =
            &self.stats;
        match self.violations.len() {
            0 => write!(f, "no safety property was violated")?,
            1 => write!(f, "1 violation")?,
            many => write!(f, "{many} violations")?,
        }
        write!(
            f,
            " ({changes} changes; {permits} permits, {arms} images armed, {reboots} reboots, {evictions} evictions; \
             at most {out_of_service} out of service at a time)"
        )?;
        self.violations.iter().try_for_each(|violation| write!(f, "\n  {violation}"))
    }
}
