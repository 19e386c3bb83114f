//! The keys of rollouts.

use std::collections::HashSet;

use models::operator::{ActiveRollout, KnownVersion};
use semver::Version;

use crate::view::NodeView;

/// A version for one kind of host: variant, architecture, version.
pub(crate) type Key = (String, String, Version);

/// Nodes that are to have a version and have not begun, each by its uid, with that version.
pub(super) type Targets<'a> = HashSet<(&'a str, &'a Version)>;

pub(crate) fn of_known(known: &KnownVersion) -> Key {
    (known.variant.clone(), known.arch.clone(), known.version.clone())
}

/// The key of a rollout, as a node and its version name it.
pub(crate) type KeyRef<'a> = (&'a str, &'a str, &'a Version);

/// Returns the variant and the architecture of a node: in a view, those that its Node names; empty while its agent has not reported.
pub(crate) fn kind(node: &NodeView) -> (&str, &str) {
    let agent = node.shadow.as_ref().map(|shadow| &shadow.status.agent);
    let variant = agent.and_then(|agent| agent.variant.as_deref());
    (variant.unwrap_or_default(), agent.and_then(|agent| agent.arch.as_deref()).unwrap_or_default())
}

/// Returns the variant and the architecture of a node, also while its agent has not reported, as far as the Node names them.
pub(crate) fn kind_by_node(node: &NodeView) -> (&str, &str) {
    let (variant, arch) = kind(node);
    (node.facts.variant().unwrap_or(variant), node.facts.arch().unwrap_or(arch))
}

/// Returns whether a node is of the variant and architecture of a rollout.
pub(crate) fn is_member(node: &NodeView, rollout: &ActiveRollout) -> bool {
    kind(node) == (rollout.variant.as_str(), rollout.arch.as_str())
}

/// Returns whether a node whose agent has not reported, or whose shadow cannot be read, may be of that variant and architecture.
pub(crate) fn may_be_member(node: &NodeView, rollout: &ActiveRollout) -> bool {
    let facts = &node.facts;
    kind(node) == ("", "")
        && (facts.bottlerocket() || facts.os_image.is_empty())
        && facts.variant().is_none_or(|variant| variant == rollout.variant)
        && facts.arch().is_none_or(|arch| arch == rollout.arch)
}

/// The rollout that takes a node to a version: each variant and architecture has its own.
pub(crate) fn key<'a>(node: &'a NodeView, version: &'a Version) -> KeyRef<'a> {
    let (variant, arch) = kind(node);
    (variant, arch, version)
}

/// Returns the same key, for comparisons with those of nodes.
pub(crate) fn borrowed((variant, arch, version): &Key) -> KeyRef<'_> {
    (variant, arch, version)
}

/// Returns the key of a rollout: its variant, architecture and version.
pub fn key_of(rollout: &ActiveRollout) -> Key {
    (rollout.variant.clone(), rollout.arch.clone(), rollout.version.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{NEW, node, rollout};
    use crate::view::NodeFacts;

    #[test]
    fn node_whose_agent_has_not_reported_may_be_of_each_kind_that_its_node_does_not_contradict() {
        type Change = fn(&mut NodeFacts);
        fn arch(facts: &mut NodeFacts, arch: &str) {
            facts.labels = Arc::new([("kubernetes.io/arch".to_owned(), arch.to_owned())].into());
        }
        let case = |sentence: &str, may: bool, change: Change| {
            let mut node = node("a");
            node.shadow = None;
            change(&mut node.facts);
            assert_eq!(may_be_member(&node, &rollout(NEW)), may, "{sentence}");
        };
        case("its Node names the variant", true, |_| {});
        case("its Node names another variant", false, |facts| facts.os_image = facts.os_image.replace("1.37", "1.38"));
        case("its Node names the architecture", true, |facts| arch(facts, "amd64"));
        case("its Node names another architecture", false, |facts| arch(facts, "arm64"));
        case("its kubelet has named nothing yet", true, |facts| facts.os_image.clear());
        case("it runs another system", false, |facts| facts.os_image = "Ubuntu 24.04".to_owned());
    }
}
