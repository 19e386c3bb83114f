//! Resumption of an interrupted stream. The agent names the newest state that it has seen, from any replica; a replica
//! that is behind it waits, or sends the agent elsewhere, rather than show an older state.

use std::time::Duration;

use models::resource_version::newer;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::auth::identity::{AgentIdentity, owns};
use crate::cluster::{CallError, Cluster};
use crate::store::{Seen, Store};
use crate::write::{AccessError, live};

/// Returns true if a replica's state is older than the version that an agent has seen, or may be.
fn is_behind(seen: &Seen, from: &str) -> bool {
    match seen {
        Seen::Present(shadow) => newer(from, shadow.resource_version()),
        // Absence has no version: the shadow may be deleted, or not yet known here.
        Seen::Absent | Seen::Unknown => true,
        // Nothing is sent of it as long as that lasts.
        Seen::Unreadable => false,
    }
}

/// A stream that cannot be resumed here now.
#[derive(Debug)]
pub(crate) enum ResumeError {
    /// This replica stays behind.
    Behind,
    /// The cluster did not answer.
    Call(CallError),
}

/// Waits until this replica can resume from a state, for up to `limit` before it calls the cluster.
pub(crate) async fn resume(
    cluster: &Cluster,
    store: &Store,
    agent: &AgentIdentity,
    seen: &mut watch::Receiver<Seen>,
    from: &str,
    limit: Duration,
) -> Result<(), ResumeError> {
    let ready = |seen: &Seen| *seen == Seen::Absent || !is_behind(seen, from);
    // The result of the wait is read below. The sender cannot be gone: the store holds it.
    let _ = timeout(limit, seen.wait_for(ready)).await.is_ok();
    if !is_behind(&seen.borrow(), from) {
        return Ok(());
    }
    match live(cluster, store, agent).await {
        // The cluster itself was restored from a backup, and the state that the agent has seen never existed.
        Ok(shadow) if newer(from, shadow.resource_version()) => Ok(()),
        // The live read has updated the copy, if there is one.
        Ok(_) if is_behind(&seen.borrow(), from) => Err(ResumeError::Behind),
        Ok(_) => Ok(()),
        Err(AccessError::NoShadow) if *seen.borrow() == Seen::Absent => Ok(()),
        Err(AccessError::NoShadow) => Err(ResumeError::Behind),
        // The stream reports the refusal until it changes. But an older copy would still be shown as the agent's own.
        Err(AccessError::Refused(_)) => match &*seen.borrow() {
            Seen::Present(copy) if owns(agent, copy).is_ok() => Err(ResumeError::Behind),
            Seen::Present(_) | Seen::Absent | Seen::Unknown | Seen::Unreadable => Ok(()),
        },
        Err(AccessError::Call(error)) => Err(ResumeError::Call(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::*;
    use crate::auth::identity::tests::agent;
    use crate::cluster::tests::{Fake, failure, fake};
    use crate::shadow::tests::{shadow, stored};
    use crate::store::tests::store;

    const LIMIT: Duration = Duration::from_secs(2);

    fn at(resource_version: u64) -> String {
        resource_version.to_string()
    }

    fn idle(resource_version: u64) -> Value {
        stored("u", resource_version, 1, json!({"state": "Idle"}))
    }

    /// A cluster that gives each read the same answer.
    fn cluster(object: Option<Value>) -> Fake {
        fake(move |_| object.clone().map_or_else(|| failure(404, "NotFound"), |object| (200, object)))
    }

    async fn resumed(fake: &Fake, store: &Store, from: u64) -> Result<(), ResumeError> {
        let mut seen = store.subscribe("brs-a");
        resume(&fake.cluster, store, &agent(), &mut seen, &at(from), LIMIT).await
    }

    #[test]
    fn replica_counts_as_behind_unless_known_to_be_current() {
        let present = |version| Seen::Present(Arc::new(shadow("u", version, 1, json!({}))));
        for (seen, behind) in [
            (present(11), false),
            (present(10), false),
            (present(9), true),
            (Seen::Absent, true),
            (Seen::Unknown, true),
            (Seen::Unreadable, false),
        ] {
            assert_eq!(is_behind(&seen, &at(10)), behind, "{seen:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn current_replica_resumes_stream_without_live_read() {
        let (fake, store) = (cluster(None), store(vec![idle(10)]));
        resumed(&fake, &store, 9).await.unwrap();
        resumed(&fake, &store, 10).await.unwrap();
        assert!(fake.requests().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn replica_behind_waits_for_its_watch() {
        let (fake, store) = (cluster(None), store(vec![idle(10)]));
        let mut seen = store.subscribe("brs-a");
        let (agent, from) = (agent(), at(11));
        let waits = resume(&fake.cluster, &store, &agent, &mut seen, &from, LIMIT);
        let arrives = async {
            tokio::time::sleep(LIMIT / 2).await;
            let event = serde_json::from_value(idle(12)).unwrap();
            store.observe(kube::runtime::watcher::Event::Apply(event));
        };
        let (result, ()) = tokio::join!(waits, arrives);
        result.unwrap();
        assert!(fake.requests().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn replica_with_broken_watch_reads_live() {
        let (fake, store) = (cluster(Some(idle(12))), store(vec![idle(10)]));
        resumed(&fake, &store, 11).await.unwrap();
        assert_eq!(fake.requests().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn replica_missing_existing_shadow_rejects_resume() {
        let (fake, store) = (cluster(Some(idle(12))), store(vec![]));
        let began = Instant::now();
        assert!(matches!(resumed(&fake, &store, 11).await, Err(ResumeError::Behind)));
        assert_eq!(began.elapsed(), Duration::ZERO, "there is nothing to wait for");
    }

    #[tokio::test(start_paused = true)]
    async fn resume_accepts_deleted_shadow_only_if_replica_knows_deletion() {
        resumed(&cluster(None), &store(vec![]), 11).await.unwrap();
        let result = resumed(&cluster(None), &store(vec![idle(10)]), 11).await;
        assert!(matches!(result, Err(ResumeError::Behind)));
    }

    #[tokio::test(start_paused = true)]
    async fn shadow_that_changed_owner_is_not_served_from_stale_cache() {
        let mut anothers = stored("v", 12, 1, json!({"state": "Idle"}));
        anothers["metadata"]["ownerReferences"][0]["uid"] = json!("node-2");
        let result = resumed(&cluster(Some(anothers.clone())), &store(vec![idle(10)]), 11).await;
        assert!(matches!(result, Err(ResumeError::Behind)), "the copy is from before");
        let mut older = anothers.clone();
        older["metadata"]["resourceVersion"] = json!("10");
        let result = resumed(&cluster(Some(anothers)), &store(vec![older]), 11).await;
        assert!(result.is_ok(), "the copy knows it too");
    }

    #[tokio::test(start_paused = true)]
    async fn resume_accepts_cluster_restored_to_older_version() {
        resumed(&cluster(Some(idle(10))), &store(vec![idle(10)]), 99).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn resume_fails_while_api_server_is_unavailable() {
        let fake = fake(|_| failure(503, "ServiceUnavailable"));
        assert!(matches!(resumed(&fake, &store(vec![idle(10)]), 11).await, Err(ResumeError::Call(_))));
    }
}
