//! The state of the cluster that a case sees.

use std::borrow::Cow;
use std::collections::BTreeMap;

use integ::oracle::{ClusterState, Field, Node, Pod, Shadow};
use models::condition::{Condition, true_condition};
use models::shadow::{BLOCKED, DrainStatus, Step};

/// The state that a case sees.
pub(crate) struct CaseState<'a> {
    pub(crate) world: Cow<'a, ClusterState>,
    pub(crate) name: String,
    pub(crate) namespace: String,
}

impl CaseState<'_> {
    /// The node under test.
    pub(crate) fn node(&self) -> &Node {
        &self.world.nodes[&self.name]
    }

    /// The shadow of the node.
    pub(crate) fn shadow(&self) -> Option<&Shadow> {
        self.world.shadow_of(self.world.nodes.get(&self.name)?).map(AsRef::as_ref)
    }

    /// Returns true if the node has a slot.
    pub(crate) fn has_slot(&self) -> bool {
        let mut slots = self.world.operator.iter().flat_map(|operator| &operator.status.slots);
        slots.any(|slot| slot.node == self.name)
    }

    /// The step of the attempt under way.
    pub(crate) fn step(&self) -> Option<Step> {
        self.shadow()?.step()
    }

    /// The recorded drain.
    pub(crate) fn drain(&self) -> Option<&DrainStatus> {
        self.shadow()?.status.controller.drain.as_ref()
    }

    /// Returns true if there is a shadow without an attempt under way, and nothing of the operator on the node.
    pub(crate) fn is_released(&self) -> bool {
        self.shadow().is_none_or(|shadow| shadow.step().is_none()) && !self.node().claimed()
    }

    pub(crate) fn cordoned(&self) -> bool {
        self.node().fields.contains_key(&Field::Unschedulable)
    }

    /// Pods of the case's namespace with the label `app: <name>`, terminating ones included.
    pub(crate) fn pods_of(&self, name: &str) -> Vec<&Pod> {
        let in_namespace = self.world.pods.values().filter(|pod| pod.namespace == self.namespace);
        in_namespace.filter(|pod| pod.labels.get("app").is_some_and(|app| app == name)).map(AsRef::as_ref).collect()
    }

    /// The pods among them that are on the node under test.
    pub(crate) fn pods_on_node(&self, name: &str) -> Vec<&Pod> {
        self.pods_of(name).into_iter().filter(|pod| pod.node.as_deref() == Some(self.name.as_str())).collect()
    }

    /// Their uids.
    pub(crate) fn uids_on_node(&self, name: &str) -> Vec<String> {
        self.pods_on_node(name).into_iter().map(|pod| pod.uid.clone()).collect()
    }

    /// Reason and message of the last attempt's end.
    pub(crate) fn last(&self) -> Option<(String, String)> {
        let record = self.shadow()?.status.controller.record.as_ref()?;
        record.last.as_ref().map(|last| (last.reason.clone(), last.message.clone()))
    }

    /// A condition of the shadow that is true.
    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        true_condition(&self.shadow()?.status.conditions, type_)
    }

    /// Returns true if the failure counts against the version.
    pub(crate) fn is_charged(&self) -> bool {
        let record = self.shadow().and_then(|shadow| shadow.status.controller.record.as_ref());
        record.is_some_and(|record| !record.version_failures.is_empty())
    }

    /// Values of labels and annotations of the node.
    pub(crate) fn field(&self, field: &Field) -> Option<&str> {
        self.node().fields.get(field).map(String::as_str)
    }

    pub(crate) fn describe(&self) -> String {
        let pods: BTreeMap<_, _> = self
            .world
            .pods
            .values()
            .filter(|pod| pod.namespace == self.namespace)
            .map(|pod| (&pod.name, (&pod.node, pod.ready, pod.terminating)))
            .collect();
        format!(
            "{} is at {:?}, last {:?}, blocked {:?}; drain {:?}; pods {pods:?}; order {:?}; agent {:?}",
            self.name,
            self.step(),
            self.last(),
            self.condition(BLOCKED),
            self.drain(),
            self.shadow().map(|shadow| &shadow.spec),
            self.shadow().map(|shadow| &shadow.status.agent),
        )
    }
}
