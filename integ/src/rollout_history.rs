//! The recorded history of rollouts, as tests read it and compare it with a run.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use kube::api::ListParams;
use kube::{Api, Client};
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, EntryKind, HistoryRow, LARGEST_OBJECT,
    RecordedRollout, RolloutPhase, page_digest, record_name,
};
use models::names::SYSTEM_NAMESPACE;
use models::shadow::{PodMove, UPDATED};
use semver::Version;

use crate::oracle::{Attempt, History};

/// A record with its pages.
#[derive(Debug)]
pub struct Recorded {
    /// Name of the record.
    pub name: String,
    /// The rollout that it is about.
    pub rollout: RecordedRollout,
    /// The status.
    pub status: BottlerocketRolloutHistoryStatus,
    /// The rows of all its pages.
    pub rows: Vec<HistoryRow>,
}

impl Recorded {
    /// The kinds of its entries, in their order.
    pub fn kinds(&self) -> Vec<EntryKind> {
        self.status.entries.iter().map(|entry| entry.kind).collect()
    }

    /// The field manager of the first entry of a kind.
    pub fn manager(&self, kind: EntryKind) -> Option<&str> {
        self.status.entries.iter().find(|entry| entry.kind == kind)?.field_manager.as_deref()
    }
}

/// The objects of the history.
pub fn objects(client: &Client) -> Api<BottlerocketRolloutHistory> {
    Api::namespaced(client.clone(), SYSTEM_NAMESPACE)
}

/// Returns all records by their numbers.
///
/// # Errors
/// When the API server does not answer, an object is too large, or a page is not the one that its record names.
pub async fn recorded(client: &Client) -> anyhow::Result<Vec<Recorded>> {
    let objects = objects(client).list(&ListParams::default()).await?.items;
    let mut all = Vec::new();
    for object in &objects {
        let size = serde_json::to_vec(object)?.len();
        ensure!(i64::try_from(size)? <= LARGEST_OBJECT, "{size} bytes");
        let Some(rollout) = object.spec.rollout.clone() else { continue };
        let name = object.metadata.name.clone().context("a name")?;
        ensure!(name == record_name(&rollout), "{name}");
        let status = object.status.clone().unwrap_or_default();
        let mut rows = Vec::new();
        for (number, summary) in (1..).zip(&status.pages) {
            let of = |page: &&BottlerocketRolloutHistory| {
                page.spec.record == name && page.spec.page.as_ref().is_some_and(|page| page.number == number)
            };
            let page = objects.iter().find(of).with_context(|| format!("page {number} of {name}"))?;
            ensure!(page_digest(&page.spec)? == summary.digest, "the digest of page {number} of {name}");
            rows.extend(page.spec.page.iter().flat_map(|page| page.rows.clone()));
        }
        all.push(Recorded { name, rollout, status, rows });
    }
    all.sort_by_key(|recorded| recorded.rollout.number);
    Ok(all)
}

/// Returns the records if they have exactly these phases, in the order of their numbers.
///
/// # Errors
/// As of [`recorded`].
pub async fn with_phases(client: &Client, phases: &[RolloutPhase]) -> anyhow::Result<Option<Vec<Recorded>>> {
    let all = recorded(client).await?;
    let found: Vec<_> = all.iter().map(|recorded| recorded.status.phase).collect();
    Ok((found == phases).then_some(all))
}

/// Facts about an attempt that both the oracle and the history know.
type Compared = (String, i64, Option<Version>, Version, Option<String>, usize);

/// Checks that the rows are the attempts that the oracle saw, each with its boots, and with its pods, those in `shop` of the
/// Deployment, the budget and the Service `web`. `boots` are those of each host, in their order.
///
/// # Errors
/// When they differ.
pub fn ensure_rows_equal_run(
    rows: &[HistoryRow],
    history: &History,
    boots: &BTreeMap<String, Vec<String>>,
    shop: &str,
) -> anyhow::Result<()> {
    let oracle =
        |a: &Attempt| (a.node.clone(), a.attempt, a.from.clone(), a.to.clone(), a.result.clone(), a.pods_moved);
    let in_history = |row: &HistoryRow| {
        let r = &row.result;
        (row.node.clone(), r.attempt, r.from.clone(), r.to.clone(), Some(r.result.clone()), r.pods.len())
    };
    let mut expected: Vec<Compared> = history.attempts().iter().map(oracle).collect();
    let mut found: Vec<Compared> = rows.iter().map(in_history).collect();
    expected.sort();
    found.sort();
    ensure!(found == expected, "the history has {found:#?}, the oracle saw {expected:#?}");
    let mut pods = BTreeMap::new();
    history.replay(|_, _, world| {
        pods.extend(world.pods.values().map(|pod| (pod.uid.clone(), (pod.node.clone(), pod.name.clone()))));
    });
    for row in rows {
        let order = boots.get(&row.node).with_context(|| format!("no boots of {}", row.node))?;
        let place = |boot: &String| order.iter().position(|known| known == boot);
        let (before, after) = (place(&row.result.boot_before), place(&row.result.boot_after));
        if row.result.result == UPDATED {
            ensure!(before.is_some() && before < after, "{row:?} of {order:?}");
            let times = [row.result.drain_started, row.result.drain_ended, row.result.soak_started];
            ensure!(times.iter().all(Option::is_some) && times.is_sorted(), "{row:?}");
        }
        for pod in row.result.pods.iter() {
            let seen = pods.get(&pod.uid).map(|(node, name)| (node.as_deref(), name));
            ensure!(seen == Some((Some(row.node.as_str()), &pod.name)), "the oracle saw {seen:?}: {pod:?}");
            ensure!(pod.ip.is_some() && pod.moved == Some(PodMove::Evicted), "{pod:?}");
            // Those of the operator itself are moved, too.
            if pod.namespace == shop {
                ensure!(pod.owner.as_deref() == Some("Deployment/web"), "{pod:?}");
                ensure!(pod.budgets[..] == ["web"] && pod.services[..] == ["web"], "{pod:?}");
            }
        }
    }
    Ok(())
}
