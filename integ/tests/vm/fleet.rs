//! Two machines and a stand-in in one rollout, with what goes wrong in real fleets: power cuts, restarts of kubelet and
//! containerd, an update of the operator.

use anyhow::Context as _;
use integ::oracle::{ClusterState, Expectations};
use integ::vm::{BOOT, SOON, UPDATED};
use models::names::{AGENT_NAMESPACE, SYSTEM_NAMESPACE};
use models::shadow::Step;
use serde_json::json;

use crate::support::{Scenario, run};

const MANIFEST: &str = include_str!("../../../deploy/manifests/brupop.yaml");

/// The step of a node's attempt.
fn step(world: &ClusterState, node: &str) -> Option<Step> {
    world.shadow_of(world.nodes.get(node)?)?.status.controller.progress.as_ref().map(|progress| progress.step)
}

/// The stand-in.
const STAND_IN: &str = "stand-in";

/// The machines, the one that is drained first.
fn order(world: &ClusterState) -> Option<[&'static str; 2]> {
    let drained = |node: &str| step(world, node) == Some(Step::Draining);
    [["vm-1", "vm-2"], ["vm-2", "vm-1"]].into_iter().find(|order| drained(order[0]))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "it needs virtual machines: make test-vm"]
async fn rollout_survives_power_cuts_restarts_below_the_agent_and_an_update_of_the_operator() -> anyhow::Result<()> {
    let mut second = "";
    let history = run(2, Expectations { max_unavailable: Some(1), nothing_left: true }, async |ctx: &mut Scenario| {
        ctx.cluster.add_stand_in(STAND_IN).await?;
        ctx.shop(3, json!(1)).await?;
        ctx.cluster.install_by_readme().await?;
        ctx.cluster.publish(&UPDATED).await?;

        // Kubelet and containerd restart while the first machine is drained.
        let mut nodes = None;
        ctx.until("a machine is drained", SOON, |world| {
            nodes = order(world);
            nodes.is_some()
        })
        .await?;
        let [first, other] = nodes.context("just seen")?;
        second = other;
        ctx.cluster.guest(first)?.shell("systemctl restart containerd kubelet").await?;
        ctx.until("the first machine is updated", BOOT, |world| world.is_updated(first, &UPDATED)).await?;

        // The power fails while the second one is drained. It comes back on the image that it had.
        ctx.until("the second machine is drained", BOOT, |world| step(world, other) == Some(Step::Draining)).await?;
        let guest = ctx.cluster.guest(other)?;
        guest.cut_power().await?;
        guest.power_on()?;

        // Meanwhile the operator is updated, as docs/install.md says: without the last document, the policy.
        let (manifest, policy) = MANIFEST.rsplit_once("\n---\n").context("the manifest has documents")?;
        anyhow::ensure!(policy.contains("kind: BottlerocketUpdateOperator\n"), "the policy is last: {policy}");
        let current = concat!(":v", env!("CARGO_PKG_VERSION"));
        let next = ctx.cluster.control_plane.dir().join("next.yaml");
        std::fs::write(&next, manifest.replace(current, ":next"))?;
        ctx.cluster.kubectl(&format!("apply --server-side -f {}", next.display())).await?;

        ctx.updated(&UPDATED).await?;
        for (namespace, part) in [
            (SYSTEM_NAMESPACE, "deployment/brupop-controller"),
            (SYSTEM_NAMESPACE, "deployment/brupop-apiserver"),
            (AGENT_NAMESPACE, "daemonset/brupop-agent"),
        ] {
            ctx.cluster.kubectl(&format!("rollout status -n {namespace} {part} --timeout=5m")).await?;
            let image = format!("get {part} -n {namespace} -o jsonpath={{.spec.template.spec.containers[*].image}}");
            let image = ctx.cluster.kubectl(&image).await?;
            anyhow::ensure!(image.ends_with(":next"), "{part}: {image}");
        }
        ctx.shop_is_ready(3).await?;
        Ok(())
    })
    .await?;
    for node in ["vm-1", "vm-2", STAND_IN] {
        let results = history.results(node);
        assert_eq!(results.last(), Some(&(UPDATED, "Updated".to_owned())), "{node}: {results:?}");
    }
    assert!(history.results(second).len() > 1, "the power cut ended an attempt: {:?}", history.results(second));
    Ok(())
}
