//! Notices: a rollout with a freeze and with receivers that hang, refuse and have no address, under a leader that is killed.

use std::path::Path;

use integ::oracle::ClusterState;
use models::condition::ConditionStatus;
use models::names::{RESUME_ANNOTATION, TEST_NOTICES_ANNOTATION};
use models::operator::{FROZEN, NOTICES_SENT};
use serde_json::json;

use crate::bed::{Answer, Boot, ControllerOptions, NEW, Receiver, ScriptedCluster};

crate::cases![notices_of_frozen_rollout_survive_killed_leader_and_hanging_receiver];

/// A part of the receivers' addresses that no log may have.
const SECRET_PATH: &str = "hook-7f3a";

/// A controller that reads the receivers' addresses here.
fn controller(identity: &str, addresses: &Path) -> ControllerOptions {
    let arguments = vec![format!("--notices-dir={}", addresses.display())];
    ControllerOptions { identity: identity.to_owned(), arguments, ..ControllerOptions::default() }
}

/// A policy with these receivers.
fn receivers(names: &[&str]) -> serde_json::Value {
    let receivers: Vec<_> =
        names.iter().map(|name| json!({"name": name, "format": "CloudEvents", "urlKey": name})).collect();
    json!({"notices": {"receivers": receivers}, "failurePolicy": {"backOff": "1s"}})
}

async fn notices_of_frozen_rollout_survive_killed_leader_and_hanging_receiver(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    let good = Receiver::start(SECRET_PATH, Answer::Busy).await?;
    let hanging = Receiver::start(SECRET_PATH, Answer::Nothing).await?;
    let addresses = tempfile::tempdir()?;
    for (name, receiver) in [("good", &good), ("hanging", &hanging)] {
        std::fs::write(addresses.path().join(name), &receiver.url)?;
    }
    let policy = receivers(&["good", "hanging", "forgotten"]);
    cluster.start_with(2, policy, &controller("controller-1", addresses.path())).await?;
    let problem = cluster.until_operator(NOTICES_SENT, ConditionStatus::False).await?;
    assert_eq!(problem.reason, "ReceiverUnusable");
    assert!(problem.message.contains("forgotten cannot be used: the Secret brupop-notices"), "{}", problem.message);

    cluster.fleet.script("node-1", |behaviour| behaviour.boot = Boot::FallsBack);
    cluster.fleet.release(NEW);
    cluster.until_operator(FROZEN, ConditionStatus::True).await?;
    let waiting = |world: &ClusterState| world.status().notices.map(|notices| notices.pending).unwrap_or_default();
    let world = cluster
        .until("both notices wait", |world| {
            let waiting = waiting(world);
            ["RolloutStarted", "Frozen"].iter().all(|event| waiting.iter().any(|notice| notice.event == *event))
        })
        .await?;
    assert!(waiting(&world).iter().all(|notice| notice.receivers.len() == 3), "{:#?}", waiting(&world));
    assert!(good.taken().is_empty());

    cluster.controller()?.kill();
    cluster.free_lease().await?;
    cluster.start_controller(&controller("controller-2", addresses.path()))?;
    good.answer(Answer::Taken);
    let frozen = good.until("Frozen", 1).await?;
    good.until("RolloutStarted", 1).await?;
    assert_eq!(frozen[0]["data"]["nodes"], json!(["node-1"]));
    assert_eq!(frozen[0]["data"]["command"], "kubectl brupop status");
    let cause = frozen[0]["data"]["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("BootFellBack on node-1") && !cause.contains("kubectl"), "{cause}");

    cluster.fleet.script("node-1", |behaviour| behaviour.boot = Boot::Runs);
    cluster.request(RESUME_ANNOTATION, "now").await?;
    cluster.until_operator(FROZEN, ConditionStatus::False).await?;
    cluster.updated().await?;
    // The first record was stopped by the resume, the second one completed.
    let ended = good.until("RolloutEnded", 2).await?;
    for phase in ["(Stopped)", "(Completed)"] {
        assert!(ended.iter().any(|event| event["data"]["cause"].to_string().contains(phase)), "{phase}: {ended:#?}");
    }
    good.until("RolloutStarted", 2).await?;
    cluster
        .until("nothing waits for the receiver that answers", |world| {
            waiting(world).iter().all(|notice| !notice.receivers.iter().any(|name| name == "good"))
        })
        .await?;
    assert_eq!(good.taken().len(), 5, "each event has one id: {:#?}", good.taken());
    assert!(hanging.taken().is_empty());

    cluster.policy(&receivers(&["good"])).await?;
    cluster.request(TEST_NOTICES_ANNOTATION, "1").await?;
    good.until("Test", 1).await?;
    for controller in cluster.controllers() {
        assert!(!controller.log().contains(SECRET_PATH), "the log of {} has an address", controller.identity());
    }
    let updated = cluster.recorder.so_far()?.attempts().iter().filter(|attempt| attempt.updated()).count();
    assert_eq!(updated, 2);
    Ok(())
}
