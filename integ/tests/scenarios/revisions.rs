//! The revisions of the policy: which are kept, whose they are, and which node has which.

use integ::bed::TestClusterOptions;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::Api;
use kube::api::ListParams;
use models::names::{OPERATOR_LABEL, OPERATOR_NAME, REVISION_LABEL, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperator;
use models::shadow::BottlerocketShadow;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::interfere::{poll, signal};
use crate::leaders::{leader, two_controllers};
use crate::plugin::{output_text, plugin};
use crate::policy::create_policy;
use crate::support::{OLD, ScenarioContext, run};

/// The number, the target and the name of a revision.
type Kept = (i64, String, String);

fn kept(revision: &ControllerRevision) -> Kept {
    let target = revision.data.0["target"].as_str().unwrap_or_default().to_owned();
    (revision.revision.unwrap_or_default(), target, revision.metadata.name.clone().unwrap_or_default())
}

async fn revisions(ctx: &ScenarioContext) -> anyhow::Result<Vec<ControllerRevision>> {
    let api: Api<ControllerRevision> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let selector = format!("{OPERATOR_LABEL}={OPERATOR_NAME}");
    Ok(api.list(&ListParams::default().labels(&selector)).await?.items)
}

/// Has the controller create a revision, renumber the one before it, and delete the other.
pub(crate) async fn change_and_trim(ctx: &ScenarioContext) -> anyhow::Result<()> {
    let until = async |what: &str, number: usize| {
        poll(what, async || Ok((revisions(ctx).await?.len() == number).then_some(()))).await
    };
    ctx.policy(&json!({"version": {"exclude": ["9.9.9"]}})).await?;
    until("there are two revisions", 2).await?;
    ctx.policy(&json!({"version": {"exclude": null}, "revisionHistoryLimit": 0})).await?;
    until("one is left", 1).await
}

async fn shadows(ctx: &ScenarioContext) -> anyhow::Result<Vec<BottlerocketShadow>> {
    let api: Api<BottlerocketShadow> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    Ok(api.list(&ListParams::default()).await?.items)
}

/// Waits until exactly these revisions are kept, by number and target, all owned by the operator's resource, and the last
/// one is that of the status and of every node. Returns them.
async fn until_kept(ctx: &ScenarioContext, what: &str, expected: &[(i64, &str)]) -> anyhow::Result<Vec<Kept>> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    poll(what, async || {
        let (found, shadows) = (revisions(ctx).await?, shadows(ctx).await?);
        let Some(operator) = operators.get_opt(OPERATOR_NAME).await? else { return Ok(None) };
        let uid = operator.metadata.uid.unwrap_or_default();
        let owned = |r: &ControllerRevision| r.metadata.owner_references.iter().flatten().any(|o| o.uid == uid);
        let mut all: Vec<_> = found.iter().map(kept).collect();
        all.sort();
        let numbers: Vec<_> = all.iter().map(|(number, target, _)| (*number, target.as_str())).collect();
        let last = all.last().map(|(_, _, name)| name.clone());
        let status = operator.status.unwrap_or_default();
        let followed = status.update_revision == last && status.current_revision == last;
        let label = |shadow: &BottlerocketShadow| shadow.metadata.labels.as_ref()?.get(REVISION_LABEL).cloned();
        let labelled = shadows.len() == ctx.bed.members.len() && shadows.iter().all(|shadow| label(shadow) == last);
        Ok((numbers == expected && found.iter().all(owned) && followed && labelled).then_some(all))
    })
    .await
}

async fn target(ctx: &ScenarioContext, target: &str) -> anyhow::Result<()> {
    ctx.policy(&json!({"version": {"target": target}})).await
}

/// The generations of the shadows: they rise with every change of `spec`.
async fn generations(ctx: &ScenarioContext) -> anyhow::Result<Vec<Option<i64>>> {
    Ok(shadows(ctx).await?.iter().map(|shadow| shadow.metadata.generation).collect())
}

/// Returns what the plugin prints. It has to succeed.
async fn printed(ctx: &ScenarioContext, arguments: &[&str]) -> anyhow::Result<String> {
    let output = plugin(ctx, arguments).await?;
    let text = output_text(&output);
    anyhow::ensure!(output.status.success(), "{arguments:?}: {text}");
    Ok(text)
}

/// Lists revisions 2 (`old`) and 3, and returns to the one before the last.
async fn history_and_undo(ctx: &ScenarioContext, old: &str) -> anyhow::Result<Vec<Kept>> {
    let listed = printed(ctx, &["history"]).await?;
    // The rollouts follow after an empty line.
    let lines = listed.lines().skip(1).take_while(|line| !line.trim().is_empty());
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    assert!(matches!(&rows[..], [two, three] if two[0] == "2" && two[2] == old && three[0] == "3"), "{listed}");
    let one = printed(ctx, &["history", "--revision", "3"]).await?;
    assert!(one.starts_with("revision 3 ") && !one.contains(old), "{one}");

    let undone = printed(ctx, &["undo"]).await?;
    assert!(undone.contains("rolled back to revision 2"), "{undone}");
    let kept = until_kept(ctx, "the one before the last is the fourth now", &[(3, "latest"), (4, old)]).await?;
    let again = printed(ctx, &["undo", "--to-revision", "4"]).await?;
    assert!(again.contains("skipped rollback") && again.contains("revision 4"), "{again}");
    Ok(kept)
}

async fn deletes_orphan_and_creates_again(ctx: &ScenarioContext, now: &str) -> anyhow::Result<()> {
    let before = revisions(ctx).await?;
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "bruo", OPERATOR_NAME, "--cascade=orphan"]).await?;
    poll("the revisions have no owner", async || {
        let owners = |r: &ControllerRevision| r.metadata.owner_references.as_ref().is_none_or(Vec::is_empty);
        let found = revisions(ctx).await?;
        Ok((found.len() == before.len() && found.iter().all(owners)).then_some(()))
    })
    .await?;
    let mut version = TestClusterOptions::default().policy["version"].clone();
    version["target"] = json!(now);
    create_policy(ctx, &json!({"version": version})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_of_policy_are_kept_and_nodes_that_follow_are_only_labelled() -> anyhow::Result<()> {
    let old = OLD.to_string();
    let ending = run(two_controllers(2), async |ctx| {
        ctx.install().await?;
        let first = until_kept(ctx, "the first revision is made, and both nodes have it", &[(1, "latest")]).await?;

        target(ctx, &old).await?;
        until_kept(ctx, "a changed target is the second revision", &[(1, "latest"), (2, &old)]).await?;

        target(ctx, "latest").await?;
        let back = until_kept(ctx, "the first one is the third now", &[(2, &old), (3, "latest")]).await?;
        assert_eq!(back[1].2, first[0].2, "its name stays");

        let undone = history_and_undo(ctx, &old).await?;
        assert_eq!(undone[1].2, back[0].2, "its name stays");
        let there = printed(ctx, &["undo", "--to-revision", "3"]).await?;
        assert!(there.contains("rolled back to revision 3") && there.contains("moves no node"), "{there}");
        let back = until_kept(ctx, "the named one is the fifth now", &[(4, &old), (5, "latest")]).await?;

        for (_, _, name) in &back {
            ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "label", "controllerrevision", name, "example.com/a=b"]).await?;
            ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "controllerrevision", name, "example.com/a=b"]).await?;
        }

        let orders = generations(ctx).await?;
        // The one of the policy last: else it would be made again beside the other.
        let (before, last) = (&back[0].2, &back[1].2);
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "delete", "controllerrevision", before, last]).await?;
        until_kept(ctx, "a history deleted by hand begins again", &[(1, "latest")]).await?;
        assert_eq!(generations(ctx).await?, orders, "a label is nothing new to an agent");

        let leads = leader(ctx).await?;
        target(ctx, &old).await?;
        signal(std::slice::from_ref(&leads), Signal::SIGKILL);
        let two =
            until_kept(ctx, "a leader killed in between leaves one revision of each", &[(1, "latest"), (2, &old)])
                .await?;

        deletes_orphan_and_creates_again(ctx, &old).await?;
        let adopted = until_kept(ctx, "a new resource adopts what is orphaned", &[(1, "latest"), (2, &old)]).await?;
        assert_eq!(adopted, two);

        ctx.policy(&json!({"revisionHistoryLimit": 0})).await?;
        until_kept(ctx, "with a limit of 0 the live one is kept", &[(2, &old)]).await?;
        Ok(())
    })
    .await?;
    assert_eq!(ending.verdict.stats.reboots, 0);
    assert!(ending.history.attempts().is_empty(), "{:#?}", ending.history.attempts());
    let mut cordoned = false;
    ending.history.replay(|_, _, world| cordoned |= world.nodes.values().any(|node| node.claimed()));
    assert!(!cordoned, "no node was ever claimed");
    Ok(())
}
