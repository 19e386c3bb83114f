//! The facts that the checks of an installation need, read with the rights of the caller. What may not be read, or has no answer, is
//! noted, and its checks are left out.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use models::names;
use models::operator::{AtDeadline, BottlerocketUpdateOperator};
use planner::policy::{GroupPolicy, Policy};
use serde_json::Value;
use tokio::time::Instant;

use super::aws;
use super::certificate::{self, Certificate};
use super::jobs;
use crate::call::{call, get, get_one, if_read, if_there, is_transient, list_everywhere, list_in, node_leases};
use crate::cluster::{Cluster, ControllerLease, Part};
use crate::install::is_definition;
use crate::page::progress;

/// Time after which the progress is shown.
const QUIET: Duration = Duration::from_secs(1);

/// Number of readings without an answer after which another one is an error: each takes up to half a minute, and there are dozens.
const UNANSWERED: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Installed {
    /// The object that this version installs.
    pub(super) wanted: Value,
    /// The object in the cluster; `None` if it does not exist.
    pub(super) found: Option<Value>,
}

#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) namespace: String,
    /// The reason why the cluster's version is too old, if it is.
    pub(super) outdated: Option<String>,
    /// Empty if it could not be read.
    pub(super) version: String,
    /// The objects of the installation, as far as they could be read.
    pub(super) objects: Vec<Installed>,
    /// Fleet and policy; `None` while the definitions do not exist, and if they could not be read.
    pub(super) cluster: Option<Cluster>,
    /// The namespace, if it has no operator, and the namespaces that have one, as far as that may be read. Nothing more is
    /// read then.
    pub(super) elsewhere: Option<(String, Option<Vec<String>>)>,
    /// The hook for EC2 Auto Scaling groups; `None` if it could not be read.
    pub(super) aws: Option<aws::Hook>,
    /// The objects that Jobs of hooks need and that do not exist, as far as they could be read.
    pub(super) missing_for_jobs: Vec<jobs::Needed>,
    /// Number of ready addresses of the web API's Service; `None` if that could not be read.
    pub(super) endpoints: Option<usize>,
    /// The certificates that agents trust, `None` for a block that is none; absent if they could not be read.
    pub(super) trust: Option<Vec<Option<Certificate>>>,
    /// The Lease of the controller; `None` if it could not be read.
    pub(super) lease: Option<ControllerLease>,
    /// Time at which the kubelet of each node last renewed its Lease, by the node's own clock.
    pub(super) node_renewed: BTreeMap<String, Timestamp>,
    /// The time of these readings, by the local clock.
    pub(super) read_at: Timestamp,
    pub(super) not_read: Vec<String>,
    /// Number of readings that had no answer.
    pub(super) unanswered: usize,
}

impl Facts {
    /// Returns what was read; notes what may not be, or has no answer.
    fn optional<T>(&mut self, answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
        if answer.as_ref().is_err_and(is_transient) {
            self.unanswered += 1;
            if self.unanswered > UNANSWERED {
                return answer.map(Some);
            }
        }
        if_read(answer, |reason| self.note(reason))
    }

    /// Notes why a part is left out, once.
    fn note(&mut self, sentence: String) {
        if !self.not_read.contains(&sentence) {
            self.not_read.push(sentence);
        }
    }
}

pub(super) async fn read(client: &Client, namespace: &str) -> anyhow::Result<Facts> {
    let mut facts = Facts { namespace: namespace.to_owned(), ..Facts::default() };
    let began = Instant::now();
    let show = |what: &str| {
        if began.elapsed() >= QUIET {
            progress(format_args!("reading {what} ..."));
        }
    };
    let version = call("get /version", client.apiserver_version()).await;
    // It is answered without etcd: an API server that does not is away.
    let version = if version.as_ref().is_err_and(is_transient) { Some(version?) } else { facts.optional(version)? };
    if let Some(version) = version {
        facts.outdated = crate::preflight::outdated(&version);
        facts.version = version.git_version;
    }
    for wanted in deploy::objects(&deploy::Options::default())? {
        // Of what is installed in another namespace, the definitions alone are the same.
        if namespace == names::SYSTEM_NAMESPACE || is_definition(&wanted) {
            show("the objects of the installation");
            facts.add_object(client, wanted).await?;
        }
    }
    show("the fleet");
    if facts.has_definitions() {
        let mut cluster = Cluster::read_as_allowed(client, namespace).await?;
        show("the pods and their budgets");
        cluster.read_pods(client, None).await?;
        for unread in cluster.unread.values() {
            facts.note(unread.reason.clone());
            facts.unanswered += usize::from(unread.is_unanswered);
        }
        let seen = ![Part::Operator, Part::Shadows].iter().any(|part| cluster.unread.contains_key(part));
        if seen && cluster.has_no_operator() && !facts.has_workloads() {
            let operators = operators(client).await;
            let others = facts.optional(operators)?;
            // In the namespace of the manifests, an operator that is in no other is incomplete, or not installed yet.
            if namespace != names::SYSTEM_NAMESPACE || others.as_ref().is_some_and(|others| !others.is_empty()) {
                facts.elsewhere = Some((namespace.to_owned(), others));
                facts.objects.clear();
                facts.read_at = crate::clock::now();
                return Ok(facts);
            }
        }
        facts.lease.clone_from(&cluster.lease);
        facts.cluster = Some(cluster).filter(|_| seen);
    }
    let hook = aws::read(client, namespace).await;
    facts.aws = facts.optional(hook)?;
    for wanted in facts.optional_objects()? {
        facts.add_object(client, wanted).await?;
    }
    facts.read_jobs(client).await?;
    show("certificates, Leases and endpoints");
    let params = ListParams::default().labels(&format!("kubernetes.io/service-name={}", names::APISERVER));
    let slices = list_in::<EndpointSlice>(client, namespace, params).await;
    facts.endpoints = facts.optional(slices)?.map(|slices| slices.iter().map(ready_addresses).sum());
    let map = get::<ConfigMap>(client, names::AGENT_NAMESPACE, names::TRUST_CONFIG_MAP).await;
    facts.trust = facts.optional(map)?.map(|map| {
        let text = map.and_then(|map| map.data?.remove(names::TRUST_CA_KEY)).unwrap_or_default();
        certificate::read(&text)
    });
    let leases = node_leases(client).await;
    // The lists take time, and the last reading is compared with the clock.
    facts.read_at = crate::clock::now();
    let leases = facts.optional(leases)?.unwrap_or_default();
    facts.node_renewed = leases.iter().filter_map(|lease| Some((lease.name_any(), renewed(lease)?))).collect();
    Ok(facts)
}

/// Returns the optional objects that a policy requires: the role for the deletion of pods and its binding, where it has
/// `atDeadline: Force`.
pub(super) fn required_by(policy: &Policy) -> Vec<Value> {
    let forces = |group: &GroupPolicy| group.drain.at_deadline == AtDeadline::Force;
    let required = forces(&policy.all) || policy.groups.iter().any(|group| forces(&group.policy));
    if required { deploy::force() } else { Vec::new() }
}

/// Returns the namespaces with an operator's resource; none has one while its definition does not exist.
async fn operators(client: &Client) -> anyhow::Result<Vec<String>> {
    let all: Option<Vec<BottlerocketUpdateOperator>> = if_there(list_everywhere(client, ListParams::default()).await)?;
    Ok(all.iter().flatten().filter_map(|operator| operator.metadata.namespace.clone()).collect())
}

impl Facts {
    /// Reads an object of the installation; that it, or its kind, does not exist is a fact too.
    async fn add_object(&mut self, client: &Client, wanted: Value) -> anyhow::Result<()> {
        let (api, _, name) = crate::uninstall::api(client, &wanted)?;
        if let Some(found) = self.optional(get_one(&api, &name).await)? {
            let found = found.map(|object| serde_json::to_value(object).unwrap_or_default());
            self.objects.push(Installed { wanted, found });
        }
        Ok(())
    }

    /// Looks for the objects that Jobs of hooks need.
    async fn read_jobs(&mut self, client: &Client) -> anyhow::Result<()> {
        let needed = self.cluster.as_ref().map(|cluster| jobs::needed(&cluster.policy()));
        for needed in needed.unwrap_or_default() {
            let exists = jobs::exists(client, &needed).await;
            if self.optional(exists)? == Some(false) {
                self.missing_for_jobs.push(needed);
            }
        }
        Ok(())
    }

    /// Returns the optional objects that have to be there: those that the policy requires, and those of the hook for AWS where it is
    /// installed.
    pub(super) fn optional_objects(&self) -> anyhow::Result<Vec<Value>> {
        if self.namespace != names::SYSTEM_NAMESPACE {
            return Ok(Vec::new());
        }
        let mut objects = self.cluster.as_ref().map(|cluster| required_by(&cluster.policy())).unwrap_or_default();
        if self.aws.as_ref().is_some_and(|hook| hook.ready.is_some()) {
            let is_of_hook = |object: &Value| object["metadata"]["name"] == names::AWS;
            objects.extend(deploy::everything()?.into_iter().filter(is_of_hook));
        }
        Ok(objects)
    }

    /// Returns whether a Deployment of the operator exists in the namespace of the manifests, as far as that is known.
    fn has_workloads(&self) -> bool {
        self.objects.iter().any(|object| object.wanted["kind"] == "Deployment" && object.found.is_some())
    }

    /// Returns whether the definition of the shadows exists, as far as that is known.
    fn has_definitions(&self) -> bool {
        let shadows = |object: &&Installed| object.wanted["metadata"]["name"] == names::SHADOW_DEFINITION;
        self.objects.iter().find(shadows).is_none_or(|object| object.found.is_some())
    }
}

fn renewed(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

fn ready_addresses(slice: &EndpointSlice) -> usize {
    let ready = |conditions: &Option<k8s_openapi::api::discovery::v1::EndpointConditions>| {
        conditions.as_ref().is_none_or(|conditions| conditions.ready != Some(false))
    };
    slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| ready(&endpoint.conditions))
        .map(|endpoint| endpoint.addresses.len())
        .sum()
}
