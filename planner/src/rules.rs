//! The rules for pods that would lose something by a drain, and the reasons to refuse one.

use jiff::Timestamp;
use models::operator::PodsAtRisk;

/// The treatment of pods that would lose something by a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Pods without a controller, or with one that is gone, which nothing would create again.
    pub bare_pods: PodsAtRisk,
    /// Pods with an `emptyDir`, whose contents end with them.
    pub empty_dir: PodsAtRisk,
    /// The time: a pod that has ended is not waited for beyond its grace period.
    pub now: Option<Timestamp>,
    /// Pods that are being deleted and had to have ended by then are not waited for any more.
    pub overdue_since: Option<Timestamp>,
    /// True if the reboot ends pods that came back to the node past their budgets, as policy has pods deleted past them at the deadline.
    pub past_budgets: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            bare_pods: PodsAtRisk::Refuse,
            empty_dir: PodsAtRisk::Evict,
            now: None,
            overdue_since: None,
            past_budgets: false,
        }
    }
}

/// The reason why a pod may not be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It has an `emptyDir`.
    EmptyDir,
    /// It has no controller.
    Bare,
    /// The pod's DaemonSet is gone.
    Orphan,
    /// The pod's DaemonSet cannot be read. Only before a drain: during one the pod is left alone.
    Unread,
}
