//! Findings: what is wrong with an installation, and what to do next. Pure functions of the facts.

use k8s_openapi::api::apps::v1::DaemonSet;
use models::names;
use models::time::between;

use super::facts::Facts;
use super::finding::{Finding, NAMED, Severity};
use super::{aws, fleet, jobs, objects};
use crate::advice::{logs_of, pods, refused_pods, some};
use crate::clock::{moment, span};
use crate::cluster::{ControllerLease, NO_LEADER, STALE};
use crate::install::holds_up_agents;

/// Time before the end of a certificate at which it is reported: its successor should have been published by then.
const EXPIRES_SOON: std::time::Duration = std::time::Duration::from_secs(7 * 86_400);

/// Offset of a clock that is reported.
const OFFSET: std::time::Duration = std::time::Duration::from_secs(5);

/// Returns all findings, the most important first.
pub(super) fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    found.extend(facts.outdated.clone().map(|text| Finding::error("KubernetesTooOld", text)));
    if let Some((namespace, others)) = &facts.elsewhere {
        found.push(no_operator(namespace, others.as_deref()));
    }
    objects::check(&facts.objects, &mut found);
    agents(facts, &mut found);
    web_api(facts, &mut found);
    certificates(facts, &mut found);
    clocks(facts, &mut found);
    if let Some(cluster) = &facts.cluster {
        fleet::check(cluster, facts.read_at, &mut found);
        if let Some(hook) = &facts.aws {
            aws::check(hook, cluster, &mut found);
        }
    }
    jobs::check(&facts.missing_for_jobs, &mut found);
    objects::next_steps(&facts.objects, &mut found);
    found.sort_by_key(|finding| finding.severity);
    found
}

fn no_operator(namespace: &str, others: Option<&[String]>) -> Finding {
    let (others, next) = match others {
        None => ("; which other namespaces have one could not be read".to_owned(), Vec::new()),
        Some([]) => (", nor in any other".to_owned(), vec!["kubectl brupop preflight -n brupop-system".to_owned()]),
        Some(others) => (
            format!("; there is one in {}", some(others, NAMED)),
            others.iter().take(NAMED).map(|name| format!("kubectl brupop doctor -n {name}")).collect(),
        ),
    };
    let message = format!("there is no operator in this namespace{others}");
    Finding::error("NoOperator", message).of(format!("namespace/{namespace}")).next(next)
}

/// Nodes that are not Ready while the agents are replaced.
fn agents(facts: &Facts, found: &mut Vec<Finding>) {
    let set = facts.objects.iter().find(|object| object.wanted["kind"] == "DaemonSet");
    let set = set.and_then(|set| serde_json::from_value::<DaemonSet>(set.found.clone()?).ok());
    let nodes = facts.cluster.iter().filter_map(|cluster| cluster.nodes.as_ref()).flat_map(|nodes| nodes.values());
    let away: Vec<&str> = nodes.filter(|node| node.labelled && !node.ready).map(|node| node.name.as_str()).collect();
    if let Some(first) = away.first().filter(|_| set.is_some_and(|set| holds_up_agents(&set, away.len()))) {
        let message = "it is not Ready while the agents are replaced, and Kubernetes replaces no further one until such nodes are back or deleted";
        let next = [
            format!("kubectl describe node {first}"),
            format!("kubectl delete node {first}  # if it is gone for good"),
        ];
        found.push(Finding::warning("AgentsNotReplaced", message).of_nodes(away).next(next));
    }
}

fn web_api(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.endpoints == Some(0) {
        let namespace = &facts.namespace;
        let message = "the Service has no ready endpoint, so that no agent can report";
        found.push(
            Finding::error("NoEndpoints", message).of(format!("service/{namespace}/{}", names::APISERVER)).next([
                pods(namespace, names::APISERVER),
                refused_pods(namespace),
                logs_of(namespace, names::APISERVER),
            ]),
        );
    }
}

fn certificates(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(trust) = &facts.trust else { return };
    let object = || format!("configmap/{}/{}", names::AGENT_NAMESPACE, names::TRUST_CONFIG_MAP);
    let logs = || logs_of(&facts.namespace, names::CONTROLLER);
    if trust.iter().any(Option::is_none) {
        let message = "it has a block that is no certificate, which agents cannot read";
        found.push(Finding::error("CertificateUnreadable", message).of(object()).next([logs()]));
    }
    let now = facts.read_at;
    let valid = || trust.iter().flatten().filter(|certificate| certificate.from <= now && now < certificate.until);
    match valid().map(|certificate| certificate.until).max() {
        None => {
            let message = "it has no valid certificate authority, so that no agent can verify the web API";
            found.push(Finding::error("NoAuthority", message).of(object()).next([logs()]));
        }
        Some(until) if between(now, until) < EXPIRES_SOON => {
            let message =
                format!("the last certificate authority expires {}, and has no successor", moment(until, now));
            found.push(Finding::warning("AuthorityExpires", message).of(object()).next([logs()]));
        }
        Some(until) => {
            let message = format!("the certificate authority is valid until {}", moment(until, now));
            found.push(Finding::new(Severity::Note, "AuthorityValid", message).of(object()));
        }
    }
}

/// Compares the local clock with those that have written Leases.
fn clocks(facts: &Facts, found: &mut Vec<Finding>) {
    let now = facts.read_at;
    let ready = |name: &str| {
        let nodes = facts.cluster.as_ref().and_then(|cluster| cluster.nodes.as_ref());
        nodes.is_some_and(|nodes| nodes.get(name).is_some_and(|node| node.ready))
    };
    let (mut ahead, mut behind, mut compared) = (Vec::new(), Vec::new(), 0);
    for (name, at) in facts.node_renewed.iter().filter(|(name, _)| ready(name)) {
        compared += 1;
        if between(now, *at) >= OFFSET {
            ahead.push(name.as_str());
        } else if between(*at, now) >= STALE {
            behind.push(name.as_str());
        }
    }
    for (nodes, what) in [(ahead, "ahead of"), (behind, "behind")] {
        if nodes.is_empty() {
            continue;
        }
        // One wrong clock is more likely than many that agree.
        if compared > 1 && nodes.len() * 2 > compared {
            let opposite = if what == "behind" { "ahead of" } else { "behind" };
            let message = format!("the clock of this computer is {opposite} that of {} nodes", nodes.len());
            let next = "date -u  # compare it with the time on another computer".to_owned();
            found.push(Finding::warning("LocalClock", message).next([next]));
            continue;
        }
        let message = format!(
            "by its Lease, the clock of the node is {what} that of this computer by {} or more",
            if what == "behind" { span(STALE) } else { span(OFFSET) }
        );
        let next = nodes.first().map(|name| format!("kubectl describe node {name}"));
        found.push(Finding::warning("NodeClock", message).of_nodes(nodes).next(next));
    }
    if let Some(lease) = &facts.lease {
        leader(&facts.namespace, lease, found);
    }
}

fn leader(namespace: &str, lease: &ControllerLease, found: &mut Vec<Finding>) {
    let object = || format!("lease/{namespace}/{}", names::CONTROLLER);
    let ahead = lease.renewed.map(|renewed| between(lease.read, renewed)).unwrap_or_default();
    if let Some(message) = lease.trouble() {
        let next = [pods(namespace, names::CONTROLLER), refused_pods(namespace)];
        found.push(Finding::error(NO_LEADER, message).of(object()).next(next));
    } else if ahead >= OFFSET {
        let message = format!("the clock of the controller is ahead of that of this computer by {}", span(ahead));
        found.push(Finding::warning("ControllerClock", message).of(object()));
    }
}
