//! Budgets in percent, over groups and zones.

use std::collections::BTreeSet;

use integ::oracle::{ClusterState, Field};
use models::names::ZONE_LABEL;
use models::shadow::Step;
use serde_json::json;

use crate::bed::{ControllerOptions, NEW, ScriptedCluster, closed_schedule, open_schedule};

crate::cases![percentages_round_down_and_only_one_zone_is_out_of_service];

/// The nodes with their zones and groups.
const FLEET: [(&str, &str, &str); 6] = [
    ("node-1", "a", "db"),
    ("node-2", "a", "db"),
    ("node-3", "a", "web"),
    ("node-4", "a", "web"),
    ("node-5", "b", "db"),
    ("node-6", "b", "web"),
];

/// The values of a label over the nodes that are out of service because of the operator.
fn label_values_out_of_service(world: &ClusterState, label: &str) -> Vec<String> {
    let out = world.out_of_service();
    let nodes = world.nodes.values().filter(|node| out.contains_key(&node.uid));
    nodes.filter_map(|node| node.fields.get(&Field::Label(label.to_owned())).cloned()).collect()
}

async fn percentages_round_down_and_only_one_zone_is_out_of_service(
    cluster: &mut ScriptedCluster,
) -> anyhow::Result<()> {
    cluster.expectations.max_unavailable = Some(2);
    for (node, zone, tier) in FLEET {
        cluster.add_node(node, &[(ZONE_LABEL, zone), ("tier", tier)]).await?;
    }
    let db = json!({"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": "66%"});
    // Of six nodes 2.94, of three 1.98.
    let policy = json!({
        "maxUnavailable": "49%",
        "nodeGroups": [db],
        "strategy": {"oneZoneAtATime": true, "preStage": {}},
        "schedule": closed_schedule(&cluster.time),
    });
    cluster.create_policy(policy).await?;
    cluster.start_controller(&ControllerOptions::default())?;
    cluster.reported().await?;
    cluster.fleet.release(NEW);
    // Where all are staged, all wait for a slot at once.
    cluster
        .until("all are staged", |world| FLEET.iter().all(|(node, ..)| world.step(node) == Some(Step::Staged)))
        .await?;
    cluster.policy(&json!({"schedule": open_schedule()})).await?;
    cluster.updated().await?;

    let mut pairs = BTreeSet::new();
    let history = cluster.recorder.so_far()?;
    history.replay(|change, _, world| {
        let zones = label_values_out_of_service(world, ZONE_LABEL);
        let mut tiers = label_values_out_of_service(world, "tier");
        let at = format!("at {}: {:?}", change.revision, world.out_of_service());
        assert!(zones.len() <= 2, "more than all may {at}");
        assert!(tiers.iter().filter(|tier| *tier == "db").count() <= 1, "more than the group may {at}");
        assert!(zones.iter().collect::<BTreeSet<_>>().len() <= 1, "two zones {at}");
        if zones.len() == 2 {
            tiers.sort();
            pairs.insert(tiers);
        }
    });
    assert!(pairs.iter().any(|tiers| *tiers == ["db", "web"]), "a full group gives way to the others: {pairs:?}");
    assert_eq!(history.max_out_of_service(), 2);
    assert_eq!(cluster.verdict().await?.stats.reboots, FLEET.len());
    Ok(())
}
