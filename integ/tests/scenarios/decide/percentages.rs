//! Budgets in percent, over groups and zones.

use std::collections::BTreeSet;

use integ::oracle::{ClusterState, Expectations, Field};
use models::names::ZONE_LABEL;
use models::shadow::Step;
use serde_json::json;

use super::windows::{closed_schedule, open_schedule};
use crate::support::{nodes, run_expecting, step_of};

/// The nodes with their zones, and true for those in the group `db`.
const FLEET: [(&str, &str, bool); 6] = [
    ("node-1", "a", true),
    ("node-2", "a", true),
    ("node-3", "a", false),
    ("node-4", "a", false),
    ("node-5", "b", true),
    ("node-6", "b", false),
];

/// The values of a label over the nodes that are out of service because of the operator.
fn label_values_out_of_service(world: &ClusterState, label: &str) -> Vec<String> {
    let out = world.out_of_service();
    let nodes = world.nodes.values().filter(|node| out.contains_key(&node.uid));
    nodes.filter_map(|node| node.fields.get(&Field::Label(label.to_owned())).cloned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn percentages_round_down_and_only_one_zone_is_out_of_service() -> anyhow::Result<()> {
    let mut options = nodes(FLEET.len());
    // Of six nodes 2.94, of three 1.98.
    options.policy["maxUnavailable"] = json!("49%");
    options.policy["nodeGroups"] =
        json!([{"name": "db", "selector": {"matchLabels": {"tier": "db"}}, "maxUnavailable": "66%"}]);
    options.policy["strategy"] = json!({"oneZoneAtATime": true, "preStage": {}});
    options.policy["schedule"] = closed_schedule();
    let expectations = Expectations { max_unavailable: Some(2), nothing_left: true };
    let ending = run_expecting(options, expectations, async |ctx| {
        for (node, zone, db) in FLEET {
            let tier = if db { "db" } else { "web" };
            ctx.kubectl(&["label", "node", node, &format!("{ZONE_LABEL}={zone}"), &format!("tier={tier}")]).await?;
        }
        ctx.install().await?;
        ctx.release();
        // Where all are staged, all wait for a slot at once.
        ctx.until("all nodes have their image", |world| {
            FLEET.iter().all(|(node, ..)| step_of(world, node) == Some(Step::Staged))
        })
        .await?;
        ctx.policy(&json!({"schedule": open_schedule()})).await?;
        ctx.updated().await?;
        Ok(())
    })
    .await?;

    let mut pairs = BTreeSet::new();
    ending.history.replay(|change, _, world| {
        let zones = label_values_out_of_service(world, ZONE_LABEL);
        let mut tiers = label_values_out_of_service(world, "tier");
        let at = format!("at {}: {:?}", change.revision, world.out_of_service());
        assert!(zones.len() <= 2, "more than all may {at}");
        assert!(tiers.iter().filter(|tier| *tier == "db").count() <= 1, "more than the group may {at}");
        assert!(zones.iter().collect::<BTreeSet<_>>().len() <= 1, "two zones {at}");
        if zones.len() == 2 {
            tiers.sort();
            pairs.insert((zones[0].clone(), tiers));
        }
    });
    assert!(!pairs.is_empty(), "as many nodes as may be are out at once");
    assert!(pairs.iter().any(|(_, tiers)| *tiers == ["db", "web"]), "a full group gives way to the others: {pairs:?}");
    assert_eq!(ending.history.max_out_of_service(), 2);
    assert_eq!(ending.verdict.stats.reboots, FLEET.len());
    Ok(())
}
