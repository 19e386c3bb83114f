//! The events of a course.

/// An event on a node, by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Agent(usize),
    Down(usize),
    Up(usize),
    /// Node, and serial and template of the pod.
    PodEnds(usize, u32, u32),
    PodReady(usize, u32, u32),
    /// A pod of this template on a node that is not under the operator.
    PodReadyElsewhere(u32),
}
