//! Reading of the cluster. Each call has a time limit, and a part that the caller may not read, or that has no answer, is named.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::{BottlerocketShadow, Step};
use planner::view::{BudgetFacts, CsiNodeFacts, DaemonSetFacts, DaemonSetState, PodFacts, Projection, ShadowFacts};
use tokio::task::JoinSet;

use super::lease::ControllerLease;
use super::{AgentPod, Cluster, Part, Unread};
use crate::call::{earlier_pods, get, if_read, if_there, is_transient, list_each, list_guarded};
use crate::shell::for_cluster;

/// Number of lists of pods at a time.
const AT_ONCE: usize = 8;

/// Number of nodes whose pods are read for a status. More are about to be drained in no usual fleet.
const NODES_WITH_PODS: usize = 32;

/// The answers about the pods of the earlier operator and of this one, and about the Lease of its controller.
pub(crate) struct Components {
    earlier: anyhow::Result<Vec<String>>,
    own: anyhow::Result<BTreeMap<String, PodFacts>>,
    lease: anyhow::Result<ControllerLease>,
    agents: anyhow::Result<Vec<AgentPod>>,
}

impl Components {
    pub(crate) async fn read(client: &Client, namespace: &str) -> Self {
        let (earlier, own, lease, agents) = tokio::join!(
            earlier_pods(client, drop),
            own_pods(client, namespace),
            controller_lease(client, namespace),
            agent_pods(client)
        );
        Self { earlier: earlier.map(|pods| pods.into_keys().collect()), own, lease, agents }
    }
}

impl Cluster {
    /// Reads everything but the pods on the nodes and the budgets.
    pub(crate) async fn read(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let mut cluster = Self { namespace: namespace.to_owned(), ..Self::default() };
        cluster.read_operator(client).await?;
        if let Some(error) = &cluster.unreadable.operator {
            let name = names::OPERATOR_NAME;
            bail!(
                "this version of the plugin cannot read bruo {name} ({error}); a controller of this version cannot either, and decides \
                 nothing until the field is corrected: {}, with --subresource=status for one of status",
                for_cluster(&format!("kubectl edit bruo {name} -n {namespace}"))
            );
        }
        cluster.read_shadows(client).await?;
        cluster.read_nodes(client).await?;
        cluster.add_components(Components::read(client, namespace).await)?;
        Ok(cluster)
    }

    /// Reads the same as far as the caller may, also without the operator's resource and the shadows.
    pub(crate) async fn read_as_allowed(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let mut cluster = Self { namespace: namespace.to_owned(), ..Self::default() };
        let operator = cluster.read_operator(client).await;
        cluster.optional(Part::Operator, operator)?;
        let shadows = cluster.read_shadows(client).await;
        cluster.optional(Part::Shadows, shadows)?;
        cluster.read_nodes(client).await?;
        cluster.add_components(Components::read(client, namespace).await)?;
        Ok(cluster)
    }

    async fn read_operator(&mut self, client: &Client) -> anyhow::Result<()> {
        match get::<DeserializeGuard<BottlerocketUpdateOperator>>(client, &self.namespace, names::OPERATOR_NAME).await?
        {
            Some(DeserializeGuard(Ok(operator))) => self.add_operator(&operator),
            Some(DeserializeGuard(Err(error))) => self.add_unreadable_operator(&error),
            None => {}
        }
        Ok(())
    }

    async fn read_shadows(&mut self, client: &Client) -> anyhow::Result<()> {
        let shadows: Api<BottlerocketShadow> = Api::namespaced(client.clone(), &self.namespace);
        let listed = list_guarded(&shadows, ListParams::default(), |shadow| match shadow {
            Ok(shadow) => self.add_shadow(&shadow),
            Err(error) => self.add_unreadable_shadow(&error),
        });
        if_there(listed.await)?.with_context(|| {
            format!(
                "the cluster has no definition {}: the operator is not installed (docs/install.md)",
                names::SHADOW_DEFINITION
            )
        })
    }

    /// Records the answers about the components.
    pub(crate) fn add_components(&mut self, read: Components) -> anyhow::Result<()> {
        self.add_component(Part::EarlierPods, read.earlier, |cluster, pods| {
            cluster.earlier_pods = pods.unwrap_or_default();
        })?;
        self.add_component(Part::OwnPods, read.own, |cluster, own| cluster.own = own)?;
        self.add_component(Part::Lease, read.lease, |cluster, lease| cluster.lease = lease)?;
        self.add_component(Part::AgentPods, read.agents, |cluster, agents| cluster.agents = agents)
    }

    /// Records one of them. One that was read before stays as it was while there is no answer.
    fn add_component<T>(
        &mut self,
        part: Part,
        answer: anyhow::Result<T>,
        set: fn(&mut Self, Option<T>),
    ) -> anyhow::Result<()> {
        if self.known.contains(&part) && answer.as_ref().is_err_and(is_transient) {
            return Ok(());
        }
        let read = self.optional(part, answer)?;
        set(self, read);
        Ok(())
    }

    /// Reads everything that the plan of the present moment depends on: with the pods of the nodes whose pods the
    /// controller watches now, and of `others`.
    pub(crate) async fn read_now(
        client: &Client,
        namespace: &str,
        others: impl FnOnce(&Self) -> BTreeSet<String>,
    ) -> anyhow::Result<Self> {
        let mut cluster = Self::read(client, namespace).await?;
        let mut nodes: BTreeSet<String> =
            cluster.plan(crate::clock::now()).1.pods.into_iter().take(NODES_WITH_PODS).collect();
        nodes.extend(others(&cluster));
        if !nodes.is_empty() {
            cluster.read_pods(client, Some(nodes)).await?;
        }
        if cluster.shadows.values().any(is_compared) {
            cluster.read_on_nodes(client).await?;
        }
        Ok(cluster)
    }

    /// Reads what a node that is verified has to have again, and that neither its Node nor its pods show.
    async fn read_on_nodes(&mut self, client: &Client) -> anyhow::Result<()> {
        let (csi_nodes, daemon_sets) = tokio::join!(by_key::<CsiNodeFacts>(client), by_key::<DaemonSetFacts>(client));
        self.csi_nodes = self.optional(Part::CsiNodes, csi_nodes)?;
        self.daemon_sets = self.optional(Part::DaemonSets, daemon_sets)?;
        Ok(())
    }

    async fn read_nodes(&mut self, client: &Client) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        self.nodes = Some(BTreeMap::new());
        let listed = list_guarded(&nodes, ListParams::default(), |node| match node {
            Ok(node) => self.add_node(&node),
            Err(error) => self.add_unreadable_node(&error),
        });
        let listed = listed.await;
        if self.optional(Part::Nodes, listed)?.is_none() {
            self.nodes = None;
        }
        Ok(())
    }

    /// Reads the pods on these nodes, each by a list of its own, or on all nodes by one list, and all budgets. Their DaemonSets
    /// are taken to exist: the controller reads each, and its findings are in the condition `Blocked`.
    pub(crate) async fn read_pods(&mut self, client: &Client, of: Option<BTreeSet<String>>) -> anyhow::Result<()> {
        let pods = async {
            match of {
                Some(nodes) => pods_of(client, nodes).await,
                None => all_pods(client).await,
            }
        };
        // Together, so that an API server that hangs delays the output once.
        let budgets = facts::<BudgetFacts>(Api::all(client.clone()), ListParams::default());
        let (budgets, pods) = tokio::join!(budgets, pods);
        self.budgets = self.optional(Part::Budgets, budgets)?.unwrap_or_default();
        if let Some(mut pods) = self.optional(Part::Pods, pods)? {
            self.pods.append(&mut pods);
        }
        Ok(())
    }

    /// Returns what was read; `None` if the caller may not read it, or if it has no answer now: then the reason is noted.
    fn optional<T>(&mut self, part: Part, answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        let is_unanswered = answer.as_ref().is_err_and(is_transient);
        let note = |reason| drop(self.unread.insert(part, Unread { reason, is_unanswered }));
        let read = if_read(answer, note)?;
        if read.is_some() {
            self.unread.remove(&part);
            self.known.insert(part);
        }
        Ok(read)
    }
}

/// Returns whether a node is verified that has to have CSI drivers and pods of DaemonSets again.
fn is_compared(shadow: &ShadowFacts) -> bool {
    let report = &shadow.status.controller;
    let verified = report.progress.as_ref().is_some_and(|progress| progress.step == Step::Verifying);
    let before = report.record.as_ref().and_then(|record| record.before.as_ref());
    verified && before.is_some_and(|before| !(before.csi_drivers.is_empty() && before.daemon_sets.is_empty()))
}

/// Lists all objects of a kind, and keeps the facts about each by its key.
async fn by_key<P: Projection>(client: &Client) -> anyhow::Result<BTreeMap<String, P>> {
    let (api, mut all) = (Api::<P::Object>::all(client.clone()), BTreeMap::new());
    let each = |object: P::Object| {
        all.extend(P::project(&object).map(|facts| (P::key_of(kube::Resource::meta(&object)), facts)));
    };
    list_each(&api, ListParams::default(), each).await?;
    Ok(all)
}

/// Lists objects, and keeps the facts about each.
async fn facts<P: Projection>(api: Api<P::Object>, params: ListParams) -> anyhow::Result<Vec<P>> {
    let mut all = Vec::new();
    list_each(&api, params, |object| all.extend(P::project(&object))).await?;
    Ok(all)
}

fn sort_by_node(pods: Vec<PodFacts>, by_node: &mut BTreeMap<String, Vec<PodFacts>>) {
    for pod in pods.into_iter().filter(|pod| !pod.node.is_empty()) {
        let pod = PodFacts { daemon_set_state: DaemonSetState::There, ..pod };
        by_node.entry(pod.node.clone()).or_default().push(pod);
    }
}

async fn all_pods(client: &Client) -> anyhow::Result<BTreeMap<String, Vec<PodFacts>>> {
    let mut by_node = BTreeMap::new();
    sort_by_node(facts(Api::all(client.clone()), ListParams::default()).await?, &mut by_node);
    Ok(by_node)
}

/// Reads the pods on these nodes. Their DaemonSets are taken to exist.
pub(crate) async fn pods_of(
    client: &Client,
    nodes: BTreeSet<String>,
) -> anyhow::Result<BTreeMap<String, Vec<PodFacts>>> {
    let mut by_node: BTreeMap<String, Vec<PodFacts>> = nodes.iter().map(|node| (node.clone(), Vec::new())).collect();
    let (mut nodes, mut reading) = (nodes.into_iter(), JoinSet::new());
    loop {
        while reading.len() < AT_ONCE
            && let Some(node) = nodes.next()
        {
            let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
            reading.spawn(facts(Api::all(client.clone()), params));
        }
        match reading.join_next().await {
            Some(found) => sort_by_node(found??, &mut by_node),
            None => return Ok(by_node),
        }
    }
}

async fn own_pods(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, PodFacts>> {
    let selector = format!("{} in ({}, {})", names::COMPONENT_LABEL, names::CONTROLLER, names::APISERVER);
    let params = ListParams::default().labels(&selector);
    let pods: Vec<PodFacts> = facts(Api::namespaced(client.clone(), namespace), params).await?;
    Ok(pods.into_iter().map(|pod| (pod.name.clone(), pod)).collect())
}

async fn controller_lease(client: &Client, namespace: &str) -> anyhow::Result<ControllerLease> {
    let lease: Option<Lease> = get(client, namespace, names::CONTROLLER).await?;
    Ok(ControllerLease::of(lease, crate::clock::now()))
}

async fn agent_pods(client: &Client) -> anyhow::Result<Vec<AgentPod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
    let params = ListParams::default().labels(&format!("{}={}", names::COMPONENT_LABEL, names::AGENT));
    let mut agents = Vec::new();
    list_each(&pods, params, |pod| agents.push(AgentPod::of(&pod))).await?;
    Ok(agents)
}

impl AgentPod {
    pub(crate) fn of(pod: &Pod) -> Self {
        let facts = PodFacts::of(pod);
        let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.find(|condition| condition.type_ == "Ready");
        // The API has the end of its grace period. A pod that is being deleted may be Ready until then.
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or_default());
        let deleted = facts.ends_by.map(|end| end.checked_sub(grace).unwrap_or(end));
        Self {
            since: deleted.or_else(|| Some(ready?.last_transition_time.as_ref()?.0)),
            serves: facts.serves(),
            name: facts.name,
            node: facts.node,
            trouble: facts.trouble,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use tokio::time::Instant;

    use super::*;
    use crate::call::failure;
    use crate::cluster::testing::cluster;

    fn answered(code: u16) -> anyhow::Error {
        let status = kube::core::Status::failure("no", "Reason").with_code(code).boxed();
        failure("get leases in brupop-system", kube::Error::Api(status))
    }

    fn components(lease: anyhow::Result<ControllerLease>) -> Components {
        Components { earlier: Ok(vec![]), own: Ok(BTreeMap::new()), lease, agents: Ok(vec![]) }
    }

    #[test]
    fn pods_are_known_without_the_right_to_the_lease_and_while_it_has_no_answer() {
        let unseen = "so that it is not seen whether a controller leads";
        for (code, reason) in [
            (403, "you need the right to get leases in brupop-system"),
            (504, "cannot get leases in brupop-system: the API server answers 504: no"),
        ] {
            let mut cluster = cluster(None, vec![], vec![]);
            cluster.add_components(components(Err(answered(code)))).unwrap();
            assert!(cluster.own.is_some() && cluster.agents.is_some() && cluster.lease.is_none(), "{code}");
            assert_eq!(cluster.not_read(), [format!("{reason}, {unseen}")]);
            assert_eq!(cluster.unread[&Part::Lease].is_unanswered, code == 504, "{code}");
            cluster.add_components(components(Ok(ControllerLease::default()))).unwrap();
            assert!(cluster.not_read().is_empty(), "{code}: it is read later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn parts_without_an_answer_are_waited_for_together() {
        let silent = tower::service_fn(|_: Request<Body>| pending::<Result<Response<Body>, Infallible>>());
        let client = Client::new(silent, "default");
        let (mut cluster, begun) = (cluster(None, vec![], vec![]), Instant::now());
        cluster.read_pods(&client, None).await.unwrap();
        cluster.read_on_nodes(&client).await.unwrap();
        assert_eq!(cluster.not_read().len(), 4);
        assert!(begun.elapsed() < Duration::from_secs(3 * 35), "two time limits: {:?}", begun.elapsed());
    }

    #[test]
    fn component_that_was_read_stays_as_it_was_while_it_has_no_answer() {
        let mut cluster = cluster(None, vec![], vec![]);
        let lease = ControllerLease::of(None, jiff::Timestamp::UNIX_EPOCH);
        cluster.add_components(components(Ok(lease.clone()))).unwrap();
        cluster.add_components(components(Err(answered(504)))).unwrap();
        assert_eq!((cluster.lease.as_ref(), cluster.not_read().len()), (Some(&lease), 0));
        cluster.add_components(components(Err(answered(403)))).unwrap();
        assert_eq!((cluster.lease.as_ref(), cluster.not_read().len()), (None, 1), "the right was taken away");
    }
}
