//! The custom resources as the API server serves them. Where the earlier operator's definition is installed, or none
//! is, nothing can be decided: that is reported once, and waited for.

use std::time::Duration;

use kube::Resource;
use kube::discovery::{self, ApiGroup};
use models::backoff::{Backoff, Delays};
use models::condition::{Condition, ConditionStatus, find_condition, set_condition};
use models::names;
use models::operator::DEGRADED;
use models::plain::cut;
use tokio::sync::watch;

use crate::apply::Applier;
use crate::earlier::EarlierPods;
use crate::metrics::Metrics;
use planner::plan::NOT_SERVED;
use planner::view::ClusterView;

/// Deadline for the API server's list of served resources.
const DEADLINE: Duration = Duration::from_secs(10);

/// The first and the longest pause before the API server is queried again.
const PAUSES: Delays = (Duration::from_secs(1), Duration::from_secs(60));

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Served {
    /// Unknown: the API server has not answered yet.
    #[default]
    Unknown,
    /// Served in the version that this program reads and writes.
    Yes,
    /// Not served, for this reason.
    No(String),
}

/// Returns the reason why resource `K` is not served in the version that this program uses.
fn problem<K: Resource<DynamicType = ()>>(group: Option<&ApiGroup>) -> Option<String> {
    let (plural, version) = (K::plural(&()), K::version(&()));
    let served: Vec<&str> = group
        .into_iter()
        .flat_map(|group| group.versions().map(move |version| (group, version)))
        .filter(|(group, version)| group.versioned_resources(version).iter().any(|(r, _)| r.plural == plural))
        .map(|(_, version)| version)
        .collect();
    if served.contains(&version.as_ref()) {
        return None;
    }
    let name = format!("{plural}.{}", names::GROUP);
    Some(if served.is_empty() {
        format!(
            "the API server does not serve {name}: install the definitions: kubectl apply --server-side -f crds.yaml"
        )
    } else {
        format!(
            "the API server serves {name} in {} and not in {version}: the definition is another operator's, probably the \
             earlier bottlerocket-update-operator's. No node is updated; move over with kubectl brupop takeover \
             (docs/install.md)",
            served.join(", ")
        )
    })
}

/// Waits until resource `K` is served, and publishes the known state in `state`. A problem is logged once.
pub async fn wait_until_served<K: Resource<DynamicType = ()>>(
    client: kube::Client,
    metrics: Metrics,
    state: watch::Sender<Served>,
) {
    let mut backoff = Backoff::default();
    let plural = K::plural(&());
    loop {
        let new = match tokio::time::timeout(DEADLINE, discovery::group(&client, names::GROUP)).await {
            Ok(Ok(group)) => problem::<K>(Some(&group)),
            Ok(Err(kube::Error::Discovery(_))) => problem::<K>(None),
            Ok(Err(error)) => Some(format!("the API server does not list what it serves: {error}")),
            Err(_) => Some("the API server does not list what it serves: no answer".to_owned()),
        };
        let new = new.map_or(Served::Yes, Served::No);
        metrics.served(&plural, new == Served::Yes);
        if state.send_replace(new.clone()) != new
            && let Served::No(problem) = &new
        {
            tracing::warn!(resource = %plural, problem, "custom resource not served, waiting for it");
        }
        if new == Served::Yes {
            return;
        }
        tokio::time::sleep(backoff.next_delay(PAUSES)).await;
    }
}

/// Reports in the operator's resource that the shadows are not served, with the pods of the earlier operator if there
/// are any, and returns once they are.
pub async fn report_until_served(applier: &Applier, mut state: watch::Receiver<Served>, earlier: &EarlierPods) {
    let mut changes = applier.caches.changed.subscribe();
    loop {
        let now = state.borrow_and_update().clone();
        let mut retry = None;
        match now {
            Served::Yes => return,
            Served::Unknown => {}
            Served::No(problem) => {
                if let Err(error) = report(applier, &with_earlier_operator(problem, !earlier.names().is_empty())).await
                {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the condition Degraded was not written");
                    retry = Some(PAUSES.1);
                }
            }
        }
        let again = async {
            match retry {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = state.changed() => if ended.is_err() { return },
            _ = changes.changed(), if retry.is_none() => {}
            () = again => {}
        }
    }
}

/// Adds to a problem that the earlier operator is running. Its pods are not named: each that ends would change the text.
fn with_earlier_operator(problem: String, running: bool) -> String {
    if running { format!("{problem}. The earlier operator is running: pods of it exist") } else { problem }
}

async fn report(applier: &Applier, problem: &str) -> Result<(), crate::apply::ApplyError> {
    let Some(operator) = applier.caches.operator.get(names::OPERATOR_NAME) else { return Ok(()) };
    let mut status = operator.status.clone();
    let known = find_condition(&status.conditions, DEGRADED);
    if known.is_some_and(|c| c.status == ConditionStatus::True && c.reason == NOT_SERVED && c.message == problem) {
        return Ok(());
    }
    let condition = Condition {
        type_: DEGRADED.to_owned(),
        status: ConditionStatus::True,
        reason: NOT_SERVED.to_owned(),
        message: cut(problem, 2000),
        last_transition_time: applier.leadership.now(),
        observed_generation: None,
    };
    set_condition(&mut status.conditions, condition);
    let view = ClusterView { operator: Some(operator), ..ClusterView::default() };
    applier.write_operator(&view, &status).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_of_definition_says_when_earlier_operator_is_running() {
        let alone = with_earlier_operator("not served".to_owned(), false);
        let beside = with_earlier_operator("not served".to_owned(), true);
        assert_eq!(alone, "not served");
        assert!(beside.starts_with("not served") && beside.contains("earlier operator is running"), "{beside}");
    }
}
