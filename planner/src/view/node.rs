//! A Node, as far as decisions about updates go.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use models::names;
use models::plain::cut;

use crate::annotations::Misunderstood;
use crate::claims::{ClaimField, ClaimFields};
use crate::hold::Hold;

/// The longest variant and architecture that a record has. The kubelet may write longer ones into its Node.
pub(crate) const VARIANT_LENGTH: usize = 64;
pub(crate) const ARCH_LENGTH: usize = 32;

/// A Node, as far as decisions about updates go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    pub name: String,
    /// The uid: a node re-created under its name is another node.
    pub uid: String,
    /// The time at which it was created: one that is registered again is new.
    pub created: Option<Timestamp>,
    /// The version of the object that these facts were read from. Heartbeats change it, so it wakes no loop.
    pub resource_version: String,
    /// True if it carries the label that puts it under the operator.
    pub labelled: bool,
    /// The labels. Shared, since a view is created again for each plan.
    pub labels: Arc<BTreeMap<String, String>>,
    /// A shortage on its kubelet: the type of a condition such as `DiskPressure`, where one is true.
    pub pressure: Option<String>,
    /// Time since which it has had it, while it has.
    pub pressure_since: Option<Timestamp>,
    /// Time since which it has had none, while it has none; `None` also where the API server does not show it.
    pub no_pressure_since: Option<Timestamp>,
    /// True if its kubelet reports it Ready.
    pub ready: bool,
    /// Time since which it has been Ready, while it is; `None` also where the API server does not show it.
    pub ready_since: Option<Timestamp>,
    /// Time since which it has not been Ready, while it is not.
    pub not_ready_since: Option<Timestamp>,
    /// True if it is not Ready, and has not been since it was created.
    pub joining: bool,
    /// Time since which it has been cordoned, while it is.
    pub cordoned_since: Option<Timestamp>,
    /// The taint of the autoscaler or user that is removing it.
    pub removed_by: Option<String>,
    /// The boot id that its kubelet reports.
    pub boot_id: String,
    /// The machine, as its cloud names it; `None` where nothing names it.
    pub provider_id: Option<String>,
    /// The kubelet's name of the operating system, with the version in it.
    pub os_image: String,
    pub unschedulable: bool,
    /// The hold that a user has set. In a view, one whose time is over is none.
    pub hold: Option<Hold>,
    /// Time of the last write of the annotation of its hold.
    pub held_since: Option<Timestamp>,
    /// Annotations that are meant as requests and are not understood as they are written.
    pub misunderstood: Vec<Misunderstood>,
    /// The claims of the operator by field ownership, perhaps shared with others.
    pub claims: ClaimFields,
    /// Time at which they were claimed, or last changed, by the API server's clock.
    pub claimed_since: Option<Timestamp>,
    /// Fields of the same set that others have set.
    pub set_by_others: ClaimFields,
    /// Fields of that set with another value than the operator would set.
    pub set_otherwise: ClaimFields,
    /// Fields with the operator's value and without an owner, as after a reset of managedFields.
    pub unowned: ClaimFields,
    /// The request to hooks that its annotation has.
    pub hook_request: Option<String>,
    /// The answers of hooks, by their name. Other controllers write them.
    pub hook_answers: BTreeMap<String, String>,
    /// Allocatable quantities of its devices (extended resources), CPU, memory, ephemeral storage and huge pages, without those that are 0.
    pub allocatable: Arc<BTreeMap<String, String>>,
    /// Taints with the effect `NoSchedule` or `NoExecute`, but those of `node.kubernetes.io`, each as `key:effect`.
    pub taints: Vec<String>,
    /// Number of volumes attached to it, as known to its kubelet and the attach controller.
    pub volumes: usize,
    pub deleting: bool,
}

impl NodeFacts {
    /// Returns whether the operator claims anything of it.
    pub fn claimed(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Returns the claims of the operator that are in effect.
    pub fn claims_in_effect(&self) -> ClaimFields {
        let uncordoned = if self.unschedulable { ClaimFields::default() } else { ClaimFields::CORDON };
        self.claims.without(uncordoned)
    }

    /// Returns whether a user holds it.
    pub fn held(&self) -> bool {
        self.hold.is_some()
    }

    /// Returns the facts at this time: without a hold whose time is over.
    #[must_use]
    pub fn at(self, now: Timestamp) -> Self {
        Self { hold: self.hold.filter(|hold| !hold.is_over(now)), ..self }
    }

    /// Returns whether it is Ready and under no pressure.
    pub fn is_well(&self) -> bool {
        self.ready && self.pressure.is_none()
    }

    /// Returns the time since which it has been well, while it is; `None` also where the API server does not show it.
    pub fn well_since(&self) -> Option<Timestamp> {
        let ready_since = self.ready_since.filter(|_| self.is_well())?;
        Some(self.no_pressure_since.map_or(ready_since, |since| since.max(ready_since)))
    }

    /// Returns the time since which it has not been well, while it is not; `None` also where the API server does not show it.
    pub fn ill_since(&self) -> Option<Timestamp> {
        let not_ready = self.not_ready_since.filter(|_| !self.ready);
        [not_ready, self.pressure_since].into_iter().flatten().min()
    }

    /// Returns whether it is cordoned, and not by the operator.
    pub fn cordoned_by_others(&self) -> bool {
        self.unschedulable && !self.claims.has(ClaimField::Cordon)
    }

    /// Returns whether it is a node of the control plane.
    pub fn control_plane(&self) -> bool {
        self.labels.contains_key(names::CONTROL_PLANE_LABEL)
    }

    /// Returns the zone; nodes without one are a zone together.
    pub fn zone(&self) -> &str {
        self.labels.get(names::ZONE_LABEL).map_or("", String::as_str)
    }

    /// Returns the priority of its update: higher comes first.
    pub fn priority(&self) -> i64 {
        self.labels.get(names::PRIORITY_LABEL).and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// Returns whether its operating system is Bottlerocket.
    pub fn bottlerocket(&self) -> bool {
        self.os_image.starts_with("Bottlerocket OS")
    }

    /// Returns whether the operator labels it where policy lets it: it runs Bottlerocket and has no label. Another value keeps it out.
    pub fn lacks_label(&self) -> bool {
        self.bottlerocket() && !self.labels.contains_key(names::INTERFACE_LABEL) && !self.deleting
    }

    /// Returns the variant in the name of the operating system, e.g. `aws-k8s-1.37` of `Bottlerocket OS 1.20.5 (aws-k8s-1.37)`.
    pub fn variant(&self) -> Option<&str> {
        let (_, rest) = self.os_image.rsplit_once('(')?;
        rest.split_once(')').map(|(variant, _)| variant)
    }

    /// Returns the architecture as hosts name it: Kubernetes has names of its own for the two that Bottlerocket runs on.
    pub fn arch(&self) -> Option<&str> {
        let arch = self.labels.get("kubernetes.io/arch").map(String::as_str)?;
        Some(match arch {
            "amd64" => "x86_64",
            "arm64" => "aarch64",
            other => other,
        })
    }

    /// Replaces the variant and the architecture that the agent has reported by those that the Node names.
    pub fn correct_kind(&self, variant: Option<&mut String>, arch: Option<&mut String>) {
        let (of_variant, of_arch) = (self.variant(), self.arch());
        for (reported, named, length) in [(variant, of_variant, VARIANT_LENGTH), (arch, of_arch, ARCH_LENGTH)] {
            if let (Some(reported), Some(named)) = (reported, named)
                && reported.as_str() != named
            {
                *reported = cut(named, length);
            }
        }
    }

    /// Returns the version in the name of the operating system, e.g. `1.20.5` of
    /// `Bottlerocket OS 1.20.5 (aws-k8s-1.37)`.
    pub fn os_version(&self) -> Option<semver::Version> {
        self.os_image.split_whitespace().find_map(|word| semver::Version::parse(word.trim_start_matches('v')).ok())
    }
}
