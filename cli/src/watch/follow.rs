//! The objects of a cluster, kept up to date by watches.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::anyhow;
use futures::stream::{BoxStream, SelectAll};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use models::names;
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;

use crate::call::{code, failure};
use crate::cluster::{Cluster, Part};

#[derive(Clone, Debug)]
pub(super) enum Object {
    Operator(Box<BottlerocketUpdateOperator>),
    Shadow(Box<BottlerocketShadow>),
    Node(Box<Node>),
    Unreadable(Kind, Box<InvalidObject>),
}

impl Object {
    fn name(&self) -> String {
        match self {
            Self::Unreadable(_, error) => error.metadata.name.clone().unwrap_or_default(),
            Self::Operator(operator) => operator.name_any(),
            Self::Shadow(shadow) => shadow.name_any(),
            Self::Node(node) => node.name_any(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Operator,
    Shadow,
    Node,
}

impl Kind {
    /// The resource, as errors and messages name it.
    pub(super) const fn resource(self) -> &'static str {
        match self {
            Self::Operator => "bottlerocketupdateoperators",
            Self::Shadow => "bottlerocketshadows",
            Self::Node => "nodes",
        }
    }
}

/// An event of a watch, or its failure.
pub(super) type Change = (Kind, watcher::Result<Event<Object>>);

pub(super) type Watches = SelectAll<BoxStream<'static, Change>>;

/// Begins the watches of what `cluster` could read.
pub(super) fn watches(client: &Client, cluster: &Cluster) -> Watches {
    let config = watcher::Config::default;
    let only = config().fields(&format!("metadata.name={}", names::OPERATOR_NAME));
    let operators: Api<DeserializeGuard<BottlerocketUpdateOperator>> =
        Api::namespaced(client.clone(), &cluster.namespace);
    let shadows: Api<DeserializeGuard<BottlerocketShadow>> = Api::namespaced(client.clone(), &cluster.namespace);
    let mut watches = SelectAll::new();
    watches.push(watch(operators, only, Kind::Operator, |operator| Object::Operator(Box::new(operator))));
    watches.push(watch(shadows, config(), Kind::Shadow, |shadow| Object::Shadow(Box::new(shadow))));
    if cluster.nodes.is_some() {
        let nodes: Api<DeserializeGuard<Node>> = Api::all(client.clone());
        watches.push(watch(nodes, config(), Kind::Node, |node| Object::Node(Box::new(node))));
    }
    watches
}

fn watch<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    kind: Kind,
    read: fn(K) -> Object,
) -> BoxStream<'static, Change>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let wrap = move |guard: DeserializeGuard<K>| match guard.0 {
        Ok(object) => read(object),
        Err(error) => Object::Unreadable(kind, Box::new(error)),
    };
    let event = move |event| match event {
        Event::Apply(object) => Event::Apply(wrap(object)),
        Event::Delete(object) => Event::Delete(wrap(object)),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(wrap(object)),
        Event::InitDone => Event::InitDone,
    };
    watcher::watcher(api, config).default_backoff().map_ok(event).map(move |event| (kind, event)).boxed()
}

#[derive(Debug, Default)]
pub(super) struct Follow {
    /// The objects of a list that is being read.
    listed: Vec<(Kind, BTreeSet<String>)>,
    /// The kinds whose watch has failed, and was not resumed since.
    lost: BTreeSet<Kind>,
    /// True if a watch has failed that would be resumed without an event until something changes.
    silent: bool,
    /// True if it is an error that the user may not read nodes.
    needs_nodes: bool,
}

impl Follow {
    /// Returns the state of watches that begin. `needs_nodes`: it is an error that the user may not read nodes.
    pub(super) fn new(needs_nodes: bool) -> Self {
        Self { needs_nodes, ..Self::default() }
    }

    /// Takes in a change. Returns what there is to say about the connection.
    ///
    /// # Errors
    /// The user may not watch what is required.
    pub(super) fn take(&mut self, cluster: &mut Cluster, (kind, event): Change) -> anyhow::Result<Option<String>> {
        match event {
            Ok(event) => {
                // Each try of a list begins with an event of its own.
                let works = !matches!(event, Event::Init);
                self.apply(cluster, kind, event);
                let again = works && self.lost.remove(&kind) && self.lost.is_empty();
                Ok(again.then(|| "connected again".to_owned()))
            }
            Err(error) => self.failed(cluster, kind, error),
        }
    }

    fn failed(&mut self, cluster: &mut Cluster, kind: Kind, error: watcher::Error) -> anyhow::Result<Option<String>> {
        let within = if kind == Kind::Node { String::new() } else { format!(" in {}", cluster.namespace) };
        let right = |verb: &str| format!("{verb} {}{within}", kind.resource());
        if let watcher::Error::WatchError(status) = &error
            && status.code == 410
        {
            return Ok(Some(format!("the watch of {} has expired: they are listed again", kind.resource())));
        }
        let resumes = matches!(error, watcher::Error::WatchStartFailed(_) | watcher::Error::WatchFailed(_));
        let error = match error {
            watcher::Error::InitialListFailed(error) => failure(&right("list"), error),
            watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
                failure(&right("watch"), error)
            }
            watcher::Error::WatchError(status) => failure(&right("watch"), kube::Error::Api(status)),
            watcher::Error::NoResourceVersion => anyhow!("{} cannot be watched", kind.resource()),
        };
        if code(&error) == Some(403) {
            if kind != Kind::Node || self.needs_nodes {
                return Err(error);
            }
            // They stay as they were read.
            cluster.note_unread(Part::Nodes, error.to_string());
            return Ok(None);
        }
        self.silent |= resumes;
        let first = self.lost.is_empty();
        self.lost.insert(kind);
        Ok(first.then(|| format!("connection lost: {error:#}; trying again")))
    }

    /// Returns whether the watches have to begin again with a list, which shows that the connection is back, also where nothing
    /// changes. The answer is true once for each failure.
    pub(super) fn begins_again(&mut self) -> bool {
        std::mem::take(&mut self.silent)
    }

    /// Returns whether a watch has failed and was not resumed since.
    pub(super) fn is_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    fn apply(&mut self, cluster: &mut Cluster, kind: Kind, event: Event<Object>) {
        match event {
            Event::Init => {
                self.listed.retain(|(other, _)| *other != kind);
                self.listed.push((kind, BTreeSet::new()));
            }
            Event::InitApply(object) => {
                if let Some((_, names)) = self.listed.iter_mut().find(|(other, _)| *other == kind) {
                    names.insert(object.name());
                }
                insert(cluster, &object);
            }
            Event::InitDone => {
                if let Some(index) = self.listed.iter().position(|(other, _)| *other == kind) {
                    let (_, names) = self.listed.swap_remove(index);
                    retain(cluster, kind, &names);
                }
            }
            Event::Apply(object) => insert(cluster, &object),
            Event::Delete(object) => remove(cluster, &object),
        }
    }
}

fn insert(cluster: &mut Cluster, object: &Object) {
    match object {
        Object::Operator(operator) => cluster.add_operator(operator),
        Object::Shadow(shadow) => cluster.add_shadow(shadow),
        Object::Node(node) => cluster.add_node(node),
        Object::Unreadable(Kind::Operator, error) => cluster.add_unreadable_operator(error),
        Object::Unreadable(Kind::Shadow, error) => cluster.add_unreadable_shadow(error),
        Object::Unreadable(Kind::Node, error) => cluster.add_unreadable_node(error),
    }
}

fn remove(cluster: &mut Cluster, object: &Object) {
    let name = object.name();
    match object {
        Object::Operator(_) | Object::Unreadable(Kind::Operator, _) => {
            (cluster.operator, cluster.unreadable.operator) = (None, None);
        }
        Object::Shadow(_) | Object::Unreadable(Kind::Shadow, _) => {
            let node = names::node_of_shadow(&name);
            cluster.shadows.remove(node);
            cluster.unreadable.shadows.remove(node);
        }
        Object::Node(_) | Object::Unreadable(Kind::Node, _) => {
            cluster.nodes.iter_mut().for_each(|nodes| drop(nodes.remove(&name)));
            cluster.unreadable.nodes.remove(&name);
        }
    }
}

/// Removes the objects that a list does not have any more.
fn retain(cluster: &mut Cluster, kind: Kind, listed: &BTreeSet<String>) {
    match kind {
        Kind::Operator if listed.is_empty() => (cluster.operator, cluster.unreadable.operator) = (None, None),
        Kind::Operator => {}
        Kind::Shadow => {
            cluster.shadows.retain(|node, _| listed.contains(&names::shadow_name(node)));
            cluster.unreadable.shadows.retain(|node, _| listed.contains(&names::shadow_name(node)));
        }
        Kind::Node => {
            cluster.nodes.iter_mut().for_each(|nodes| nodes.retain(|name, _| listed.contains(name)));
            cluster.unreadable.nodes.retain(|name, _| listed.contains(name));
        }
    }
}
