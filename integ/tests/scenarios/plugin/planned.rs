//! `kubectl brupop plan`, held against the rollout that then happens.

use std::os::unix::fs::PermissionsExt as _;

use jiff::tz::TimeZone;
use models::shadow::Step;
use semver::Version;

use super::*;
use crate::interfere::PATIENCE;

/// The version of the rollout that is planned.
const NEXT: Version = Version::new(1, 20, 6);

/// Runs `plan`, and asserts its exit code. Returns its JSON.
async fn plan(w: &Walk<'_>, options: &str, code: i32) -> Result<Value> {
    let text = w.exits(&format!("plan -o json {options}"), code, &[]).await?;
    serde_json::from_str(&text[..=text.rfind('}').context("JSON")?]).context(text)
}

/// Writes the present policy with a change into a file.
async fn policy_file(w: &Walk<'_>, name: &str, key: &str, value: Value) -> Result<String> {
    let [mut spec, _] = w.written().await?;
    spec[key] = value;
    w.file(name, &json!({"spec": spec}).to_string())
}

/// The nodes that a plan updates, in their order.
fn names(plan: &Value) -> Vec<String> {
    let nodes = plan["nodes"].as_array().into_iter().flatten().filter(|node| node["place"].is_number());
    nodes.map(|node| node["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Returns what a command prints, without its line breaks.
async fn words(w: &Walk<'_>, line: &str) -> Result<String> {
    Ok(w.ok(line, &[]).await?.split_whitespace().collect::<Vec<_>>().join(" "))
}

pub(super) async fn plan_knows_updates_that_were_recorded(w: &mut Walk<'_>) -> Result<()> {
    w.kubectl(&["taint", "nodes", "node-3", "example.com/last-"]).await?;
    w.policy(&json!({"enabled": false, "version": {"target": "latest"}})).await?;
    w.bed.releases.publish(NEXT);
    w.until("all hosts offer the next release", |world| {
        let offers = world.shadows.values().filter_map(|shadow| shadow.status.agent.updates.as_ref());
        offers.filter(|updates| updates.chosen_version.as_ref() == Some(&NEXT)).count() == 3
    })
    .await?;
    let present = plan(w, "", LATE).await?;
    ensure!(names(&present).is_empty(), "updates are disabled: {present}");
    ensure!(present["summary"]["behind"][0]["reason"] == "Disabled", "{present}");

    let enabled = policy_file(w, "enabled.json", "enabled", json!(true)).await?;
    let other = plan(w, &format!("--policy {enabled}"), OK).await?;
    ensure!(other["observedUpdates"] == 3, "{other}");
    let late = plan(w, &format!("--policy {enabled} --by 2020-01-01"), LATE).await?;
    ensure!(late["findings"][0].as_str().unwrap_or_default().contains("misses 2020-01-01"), "{late}");

    let dump = w.path("dump.json");
    w.ok(&format!("plan --dump {dump}"), &[]).await?;
    let mode = std::fs::metadata(&dump)?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "only its owner may read the dump: {mode:o}");
    // A dump has no output for programs.
    w.exits(&format!("plan --dump {dump} -o json"), USAGE, &[]).await?;
    let offline = plan(w, &format!("--from-dump {dump} --policy {enabled}"), OK).await?;
    ensure!(names(&offline) == names(&other), "offline: {offline}");
    let shown = w.run(&format!("plan --from-dump {dump} --policy {enabled}"), 120, "").await?;
    let text = output_text(&shown);
    ensure!(text.contains("PRESENT POLICY") && text.contains("3 of 3 nodes (all)"), "{text}");
    Ok(())
}

pub(super) async fn plan_has_the_order_of_the_rollout_that_follows(w: &mut Walk<'_>) -> Result<()> {
    // Two images are downloaded at a time, and the first one that is there gets the slot: only from nodes that have
    // theirs is the order certain.
    let opens = (jiff::Timestamp::now().to_zoned(TimeZone::UTC).hour() + 12) % 24;
    let closed = json!({"windows": [{"cron": format!("0 {opens} * * *"), "duration": "1h"}]});
    w.policy(&json!({"enabled": true, "schedule": closed, "strategy": {"preStage": {}}})).await?;
    w.until("all nodes have their image", |world| {
        world.shadows.values().filter(|shadow| shadow.step() == Some(Step::Staged)).count() == 3
    })
    .await?;
    let open = policy_file(w, "open.json", "schedule", Value::Null).await?;
    let planned = names(&plan(w, &format!("--policy {open}"), OK).await?);
    ensure!(planned.len() == 3, "{planned:?}");
    w.until("the completion is expected in the next window", |world| {
        let rollouts = world.operator.iter().flat_map(|operator| &operator.status.active_rollouts);
        let estimate = rollouts.filter(|rollout| rollout.version == NEXT).find_map(|r| r.estimated_completion);
        estimate.is_some_and(|estimate| estimate.at.to_zoned(TimeZone::UTC).hour() == opens)
    })
    .await?;
    let shown = words(w, "status").await?;
    ensure!(shown.contains("completion expected at"), "{shown}");
    w.policy(&json!({"schedule": null})).await?;
    let history = w.bed.wait_updated(&NEXT, PATIENCE).await?;
    crate::history::until_recorded(w, 2).await?;
    // By some hours: nothing is known of a window that a user opens.
    let record = words(w, "history 2 -o wide").await?;
    let early = "s before the range of the first estimate";
    ensure!(record.contains("First estimate") && record.contains(early), "{record}");

    // With one node at a time, the order of their ends is that of their drains.
    let mut attempts: Vec<_> = history.attempts().into_iter().filter(|attempt| attempt.to == NEXT).collect();
    attempts.sort_by_key(|attempt| attempt.ended);
    let happened: Vec<String> = attempts.into_iter().map(|attempt| attempt.node).collect();
    ensure!(happened == planned, "the order: {happened:?}, planned: {planned:?}");
    Ok(())
}
