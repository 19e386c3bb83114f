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
use crate::cluster::{Cluster, Part, Unread};

/// An object, as a watch has read it.
pub(super) struct Object {
    name: String,
    /// Adds it to the cluster.
    add: Box<dyn FnOnce(&mut Cluster) + Send>,
}

impl Object {
    pub(super) fn new(name: String, add: impl FnOnce(&mut Cluster) + Send + 'static) -> Self {
        Self { name, add: Box::new(add) }
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
    watches.push(watch(operators, only, Kind::Operator, Cluster::add_operator, Cluster::add_unreadable_operator));
    watches.push(watch(shadows, config(), Kind::Shadow, Cluster::add_shadow, Cluster::add_unreadable_shadow));
    if cluster.nodes.is_some() {
        let nodes: Api<DeserializeGuard<Node>> = Api::all(client.clone());
        watches.push(watch(nodes, config(), Kind::Node, Cluster::add_node, Cluster::add_unreadable_node));
    }
    watches
}

fn watch<K>(
    api: Api<DeserializeGuard<K>>,
    config: watcher::Config,
    kind: Kind,
    add: fn(&mut Cluster, &K),
    add_unreadable: fn(&mut Cluster, &InvalidObject),
) -> BoxStream<'static, Change>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned + Send + 'static,
{
    let wrap = move |guard: DeserializeGuard<K>| match guard.0 {
        Ok(object) => Object::new(object.name_any(), move |cluster| add(cluster, &object)),
        Err(error) => {
            let name = error.metadata.name.clone().unwrap_or_default();
            Object::new(name, move |cluster| add_unreadable(cluster, &error))
        }
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

    /// Applies a change. Returns a message about the connection, if there is news of it.
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
            let unread = Unread { reason: error.to_string(), is_unanswered: false };
            cluster.unread.insert(Part::Nodes, unread);
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
                    names.insert(object.name);
                }
                (object.add)(cluster);
            }
            Event::InitDone => {
                if let Some(index) = self.listed.iter().position(|(other, _)| *other == kind) {
                    let (_, names) = self.listed.swap_remove(index);
                    retain(cluster, kind, |name| names.contains(name));
                }
            }
            Event::Apply(object) => (object.add)(cluster),
            Event::Delete(object) => retain(cluster, kind, |name| name != object.name),
        }
    }
}

/// Removes the objects of a kind whose names are not to be kept.
fn retain(cluster: &mut Cluster, kind: Kind, is_kept: impl Fn(&str) -> bool) {
    match kind {
        Kind::Operator if is_kept(names::OPERATOR_NAME) => {}
        Kind::Operator => (cluster.operator, cluster.unreadable.operator) = (None, None),
        Kind::Shadow => {
            cluster.shadows.retain(|node, _| is_kept(&names::shadow_name(node)));
            cluster.unreadable.shadows.retain(|node, _| is_kept(&names::shadow_name(node)));
        }
        Kind::Node => {
            cluster.nodes.iter_mut().for_each(|nodes| nodes.retain(|name, _| is_kept(name)));
            cluster.unreadable.nodes.retain(|name, _| is_kept(name));
        }
    }
}
