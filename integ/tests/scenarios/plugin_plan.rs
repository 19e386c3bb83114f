//! `kubectl brupop plan`, held against the rollout that then happens.

use std::path::PathBuf;

use anyhow::Context as _;
use kube::Api;
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperator;
use models::shadow::Step;
use semver::Version;
use serde_json::{Value, json};

use crate::crashes::PATIENCE;
use crate::history::until_recorded;
use crate::plugin::{output_text, plugin};
use crate::support::{NEW, ScenarioContext, nodes, run};

/// Exit code of a plan that is not as it has to be.
const LATE: i32 = 6;

/// Runs `plan` with these arguments. Returns its JSON.
async fn plan(ctx: &ScenarioContext, arguments: &[&str]) -> anyhow::Result<(Value, Option<i32>)> {
    let all: Vec<&str> = ["plan", "-o", "json"].iter().chain(arguments).copied().collect();
    let output = plugin(ctx, &all).await?;
    let value = serde_json::from_slice(&output.stdout).with_context(|| output_text(&output))?;
    Ok((value, output.status.code()))
}

/// Writes the present policy with a change into a file.
async fn policy_file(ctx: &ScenarioContext, name: &str, change: impl FnOnce(&mut Value)) -> anyhow::Result<String> {
    let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
    let mut spec = serde_json::to_value(operators.get(OPERATOR_NAME).await?.spec)?;
    change(&mut spec);
    let path = folder(ctx).join(name);
    std::fs::write(&path, json!({"spec": spec}).to_string())?;
    Ok(path.display().to_string())
}

/// A folder of this test cluster alone.
fn folder(ctx: &ScenarioContext) -> PathBuf {
    ctx.bed.control_plane.dir().to_owned()
}

/// Returns what a command prints, without its line breaks.
fn words(output: &std::process::Output) -> String {
    output_text(output).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn names(plan: &Value) -> Vec<String> {
    let nodes = plan["nodes"].as_array().into_iter().flatten();
    nodes
        .filter(|node| node["place"].is_number())
        .map(|node| node["name"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_has_the_order_of_the_rollout_that_follows() -> anyhow::Result<()> {
    let next = Version::new(1, 20, 6);
    let mut planned = Value::Null;
    let ending = run(nodes(6), async |ctx| {
        ctx.shop(3).await?;
        ctx.install().await?;
        ctx.reported().await?;
        ctx.release();
        ctx.bed.wait_updated(&NEW, PATIENCE).await?;
        until_recorded(ctx, 1).await?;

        ctx.policy(&json!({"enabled": false})).await?;
        ctx.bed.releases.publish(next.clone());
        ctx.until("all hosts offer the next release", |world| {
            let offers = world.shadows.values().filter_map(|shadow| shadow.status.agent.updates.as_ref());
            offers.filter(|updates| updates.chosen_version.as_ref() == Some(&next)).count() == 6
        })
        .await?;
        let (present, code) = plan(ctx, &[]).await?;
        assert_eq!((names(&present), code), (vec![], Some(LATE)), "updates are disabled: {present}");
        assert_eq!(present["summary"]["behind"][0]["reason"], "Disabled", "{present}");

        let enabled = policy_file(ctx, "enabled.json", |spec| spec["enabled"] = json!(true)).await?;
        let (other, code) = plan(ctx, &["--policy", &enabled]).await?;
        assert_eq!(code, Some(0), "{other}");
        assert_eq!(other["observedUpdates"], 6, "{other}");
        let (late, code) = plan(ctx, &["--policy", &enabled, "--by", "2020-01-01"]).await?;
        let finding = late["findings"][0].as_str().unwrap_or_default();
        assert!(code == Some(LATE) && finding.contains("misses 2020-01-01"), "{late}");

        let dump = folder(ctx).join("dump.json").display().to_string();
        let dumped = plugin(ctx, &["plan", "--dump", &dump]).await?;
        assert!(dumped.status.success(), "{}", output_text(&dumped));
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&dump)?.permissions());
        assert_eq!(mode & 0o777, 0o600, "only its owner may read the dump");
        let both = plugin(ctx, &["plan", "--dump", &dump, "-o", "json"]).await?;
        assert_eq!(both.status.code(), Some(2), "a dump has no output for programs: {}", output_text(&both));
        let (offline, _) = plan(ctx, &["--from-dump", &dump, "--policy", &enabled]).await?;
        assert_eq!(names(&offline), names(&other), "offline");
        let shown = plugin(ctx, &["plan", "--from-dump", &dump, "--policy", &enabled]).await?;
        let text = output_text(&shown);
        assert!(text.contains("PRESENT POLICY") && text.contains("6 of 6 nodes (all)"), "{text}");

        // Two images are downloaded at a time, and the first one that is there gets the slot: only from nodes that have
        // theirs is the order certain.
        let opens = (jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).hour() + 12) % 24;
        let closed = json!({"windows": [{"cron": format!("0 {opens} * * *"), "duration": "1h"}]});
        ctx.policy(&json!({"enabled": true, "schedule": closed, "strategy": {"preStage": {}}})).await?;
        ctx.until("all nodes have their image", |world| {
            world.shadows.values().filter(|shadow| shadow.step() == Some(Step::Staged)).count() == 6
        })
        .await?;
        let open = policy_file(ctx, "open.json", |spec| spec["schedule"] = Value::Null).await?;
        let (staged, code) = plan(ctx, &["--policy", &open]).await?;
        assert_eq!((code, names(&staged).len()), (Some(0), 6), "{staged}");
        planned = staged;
        ctx.until("the completion is expected in the next window", |world| {
            let rollouts = world.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
            let estimate = rollouts.filter(|rollout| rollout.version == next).find_map(|r| r.estimated_completion);
            estimate.is_some_and(|estimate| estimate.at.to_zoned(jiff::tz::TimeZone::UTC).hour() == opens)
        })
        .await?;
        let shown = words(&plugin(ctx, &["status"]).await?);
        assert!(shown.contains("completion expected at"), "{shown}");
        ctx.policy(&json!({"schedule": null})).await?;
        ctx.bed.wait_updated(&next, PATIENCE).await?;
        until_recorded(ctx, 2).await?;
        let record = words(&plugin(ctx, &["history", "2", "-o", "wide"]).await?);
        // By some hours: nothing is known of a window that a user opens.
        assert!(
            record.contains("First estimate") && record.contains("s before the range of the first estimate"),
            "{record}"
        );
        Ok(())
    })
    .await?;
    let attempts = ending.history.attempts();
    let mut second: Vec<_> = attempts.iter().filter(|attempt| attempt.to == next).collect();
    // With one node at a time, the order of their ends is that of their drains.
    second.sort_by_key(|attempt| attempt.ended);
    let happened: Vec<String> = second.iter().map(|attempt| attempt.node.clone()).collect();
    assert_eq!(happened, names(&planned), "the order");
    Ok(())
}
