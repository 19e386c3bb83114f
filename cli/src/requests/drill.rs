//! `kubectl brupop drill`: rehearses an update on a node, and shows how it went.

use std::cell::RefCell;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use jiff::Timestamp;
use kube::Client;
use models::condition::true_condition;
use models::duration::Duration;
use models::names::DRILL_ANNOTATION;
use models::shadow::{BLOCKED, BottlerocketShadow, DOWNLOAD, DRILL_PASSED, DrillResult, EVICT};
use models::time::between;
use planner::phase::Phase;

use super::attempt::progress;
use super::nodes::{find_managed, node_of};
use super::texts::{command, nonce, recorded};
use crate::advice;
use crate::page::{Page, print_line};
use crate::terminal::Format;
use crate::write::{Decision, DryRunOption, Object, Outcome, State, WaitOption, all};

/// Exit code of a drill that did not pass.
const NOT_PASSED: u8 = 7;

#[derive(Debug, Args)]
pub(crate) struct DrillOptions {
    /// Name of the node.
    #[arg(value_name = "NODE")]
    node: String,
    /// Evict the pods of the node, within their PodDisruptionBudgets. Default: the API server is only asked about each pod.
    #[arg(long)]
    evict: bool,
    /// Have the host download the update that policy has for it, if there is one. It is not armed.
    #[arg(long)]
    download: bool,
    #[command(flatten)]
    dry: DryRunOption,
    #[command(flatten)]
    wait: WaitOption,
    /// Time to wait for that, e.g. 90s or 2h. The drill goes on after it.
    #[arg(long, default_value = "1h")]
    timeout: Duration,
    /// `json` for programs: the result of the drill.
    #[arg(long, short, value_parser = Format::only([Format::Json]))]
    output: Option<Format>,
}

fn request(options: &DrillOptions, now: Timestamp) -> String {
    let mut words = vec![nonce(now)];
    words.extend(options.evict.then(|| EVICT.to_owned()));
    words.extend(options.download.then(|| DOWNLOAD.to_owned()));
    words.join(" ")
}

fn decide(shadow: &BottlerocketShadow, request: &str) -> Decision {
    if progress(shadow).is_some_and(|progress| progress.drill.is_some()) {
        let release = command(shadow, &format!("release {}", node_of(shadow)));
        return Decision::Nothing(format!("a drill of it is under way; to end it: {release}"));
    }
    Decision::annotate(DRILL_ANNOTATION, request, "asked to begin a drill")
}

/// Returns the result of the drill that was requested, once it has ended and the node is released.
fn result<'a>(shadow: &'a BottlerocketShadow, request: &str) -> Option<&'a DrillResult> {
    let controller = &shadow.status.as_ref()?.controller;
    let found = controller.record.as_ref()?.drill.as_ref().filter(|found| found.drill.request == request)?;
    let releases = controller.progress.as_ref().is_some_and(|progress| Some(progress.attempt) == found.attempt);
    (!releases).then_some(found)
}

/// Returns what the drill waits for.
fn pending(shadow: &BottlerocketShadow, request: &str) -> String {
    let conditions = shadow.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let blocked = true_condition(conditions, BLOCKED)
        .map(|blocked| format!(": {}", recorded(shadow, &node_of(shadow), &blocked.message)));
    let Some(progress) = progress(shadow) else {
        return format!(
            "for the controller to begin the drill, which it does while fewer than maxUnavailable others wait for their slots; \
             whether one leads: {}",
            command(shadow, "status")
        );
    };
    if progress.drill.as_ref().is_none_or(|drill| drill.request != request) {
        return format!("its attempt under way ends first ({})", progress.step.as_str());
    }
    let unknown = "a step that this version of the plugin does not know";
    let step = Phase::of_step(progress.step).map_or(unknown, |phase| (phase.awaits)(progress.mode()));
    format!("{step} ({}){}", progress.step.as_str(), blocked.unwrap_or_default())
}

/// Returns the steps of a drill that it came to, each with its beginning and how long it took.
fn steps(found: &DrillResult) -> Vec<[String; 3]> {
    let drain = if found.drill.evict { "Drain" } else { "Drain (dry run)" };
    let prepare = if found.drill.download { "Download and wait for a slot" } else { "Wait for the agent and a slot" };
    let begun = [
        (prepare, Some(found.started)),
        (drain, found.drain_started),
        ("Rehearsal permit", found.drain_ended),
        ("Soak", found.soak_started),
    ];
    let begun: Vec<(&str, Timestamp)> = begun.into_iter().filter_map(|(name, at)| Some((name, at?))).collect();
    let ends = begun.iter().skip(1).map(|(_, at)| *at).chain([found.ended]);
    let row = |((name, at), end): (&(&str, Timestamp), Timestamp)| {
        [(*name).to_owned(), format!("{at:.0}"), format!("{}s", between(*at, end).as_secs())]
    };
    begun.iter().zip(ends).map(row).collect()
}

pub(crate) fn text(node: &str, found: &DrillResult) -> Page {
    let mut page = Page::default();
    let drain = if found.drill.evict { "with evictions" } else { "without evictions" };
    page.line(format_args!("Drill of {node}, {drain}: {}", found.result));
    page.line(&found.message);
    if found.attempt.is_some() {
        page.line("");
        page.table(["STEP", "BEGUN", "TOOK"], steps(found));
    }
    if !found.drill.refused.is_empty() {
        page.line("");
        let refused = found.drill.refused.iter();
        let rows = refused.map(|pod| [pod.pod.clone(), pod.budget.clone().unwrap_or_default(), pod.message.clone()]);
        page.table(["REFUSED POD", "BUDGET", "ANSWER"], rows);
    }
    page
}

pub(super) async fn drill(client: &Client, namespace: &str, options: &DrillOptions) -> anyhow::Result<ExitCode> {
    let found = find_managed(client, namespace, std::slice::from_ref(&options.node)).await?;
    let (name, shadow) = found.into_iter().next().context("there is no such node")?;
    let request = request(options, crate::clock::now());
    let object = Object::shadow(client, namespace, &name);
    let dry_run = options.dry.dry_run;
    let outcome = object.write(shadow, dry_run, |shadow| Ok(decide(shadow, &request))).await?;
    match &outcome {
        Outcome::Nothing(reason) => bail!("{name}: {reason}"),
        Outcome::Written(..) if options.wait.wait => {}
        Outcome::Dry(_) | Outcome::Written(..) => {
            print_line(outcome.sentence(&object.id, dry_run));
            return Ok(ExitCode::SUCCESS);
        }
    }
    let ended = RefCell::new(None);
    let check = async |_: &()| {
        let shadow = Object::shadow(client, namespace, &name).read().await?.context("its shadow is gone")?;
        Ok(match result(&shadow, &request) {
            Some(found) => {
                *ended.borrow_mut() = Some(found.clone());
                State::Done(String::new())
            }
            None => State::Pending(format!("{name}: {}", pending(&shadow, &request))),
        })
    };
    let failed = all(options.timeout.0, &advice::command(namespace, "status"), vec![()], check, |(), _| {}).await;
    if let Some(((), error)) = failed.into_iter().next() {
        return Err(error);
    }
    let found = ended.into_inner().ok_or_else(|| anyhow!("the result of the drill is not known"))?;
    Format::show(options.output, &found, |_| text(&name, &found))?.print()?;
    Ok(if found.result == DRILL_PASSED { ExitCode::SUCCESS } else { ExitCode::from(NOT_PASSED) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::attempt::testing::{at, shadow};
    use super::super::operator::testing::{condition, nothing, patch};
    use super::*;

    fn options(evict: bool, download: bool) -> DrillOptions {
        let (dry, timeout) = (DryRunOption::default(), Duration(std::time::Duration::from_secs(1)));
        DrillOptions { node: "a".into(), evict, download, dry, wait: WaitOption { wait: true }, timeout, output: None }
    }

    fn found(more: &Value) -> Value {
        let mut found = json!({
            "request": "r", "attempt": 1, "version": "1.20.0", "result": "Passed", "message": "all well",
            "started": "2026-01-01T00:00:00Z", "drainStarted": "2026-01-01T00:00:10Z",
            "drainEnded": "2026-01-01T00:00:12Z", "soakStarted": "2026-01-01T00:00:15Z",
            "ended": "2026-01-01T00:01:15Z", "pods": 2,
        });
        found.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        found
    }

    #[test]
    fn request_carries_its_options_and_fits_its_acknowledgement() {
        let now = crate::clock::now();
        for (evict, download) in [(false, false), (true, false), (false, true), (true, true)] {
            let request = request(&options(evict, download), now);
            let drill = models::shadow::Drill::of(&request);
            assert_eq!((drill.evict, drill.download), (evict, download), "{request}");
            assert!(request.len() <= 64, "{request}");
        }
    }

    #[test]
    fn drill_is_requested_unless_one_is_under_way() {
        let expected = json!({"metadata": {"annotations": {DRILL_ANNOTATION: "r"}}});
        assert_eq!(patch(decide(&shadow(&json!({})), "r")), expected);
        assert_eq!(patch(decide(&shadow(&json!({"progress": at("Draining")})), "r")), expected);
        let mut progress = at("Draining");
        progress["drill"] = json!({"request": "earlier"});
        let mut drilled = shadow(&json!({"progress": progress}));
        drilled.metadata.namespace = Some("ops".to_owned());
        let reason = nothing(decide(&drilled, "r"));
        assert!(reason.ends_with("under way; to end it: kubectl brupop release a -n ops"), "{reason}");
    }

    #[test]
    fn wait_names_the_step_and_ends_with_the_result_of_this_request_once_the_node_is_released() {
        let mut progress = at("Staged");
        progress["drill"] = json!({"request": "r"});
        let blocked = json!([condition(BLOCKED, "Queued", "b comes first")]);
        let waiting = shadow(&json!({"progress": progress, "conditions": blocked}));
        assert_eq!(result(&waiting, "r"), None);
        assert_eq!(pending(&waiting, "r"), "its slot (Staged): b comes first");
        let update = shadow(&json!({"progress": at("Draining")}));
        assert!(pending(&update, "r").contains("attempt under way ends first (Draining)"));
        assert!(pending(&shadow(&json!({})), "r").contains("controller to begin"));
        let ended = json!({"failures": 0, "drill": found(&json!({}))});
        let mut releasing = at("Releasing");
        releasing["drill"] = json!({"request": "r"});
        assert_eq!(result(&shadow(&json!({"progress": releasing, "record": ended})), "r"), None);
        assert_eq!(result(&shadow(&json!({"record": ended})), "another"), None);
        assert_eq!(result(&shadow(&json!({"record": ended})), "r").unwrap().result, "Passed");
        // The next attempt of the node may be under way already.
        let mut next = at("Staging");
        next["attempt"] = json!(2);
        assert!(result(&shadow(&json!({"progress": next, "record": ended})), "r").is_some());
    }

    #[test]
    fn result_shows_each_step_with_its_time_and_each_refused_pod_with_its_budget() {
        let read = |more: Value| serde_json::from_value::<DrillResult>(found(&more)).unwrap();
        let passed = text("a", &read(json!({}))).to_string();
        for part in [
            "Drill of a, without evictions: Passed",
            "all well",
            "Drain (dry run)",
            "2026-01-01T00:00:10Z",
            "Rehearsal permit",
            "Soak",
            "60s",
        ] {
            assert!(passed.contains(part), "{part}: {passed}");
        }
        assert!(!passed.contains("REFUSED"), "{passed}");
        let refused =
            json!([{"pod": "shop/web-1", "budget": "shop/web", "message": "not now", "since": "2026-01-01T00:00:10Z"}]);
        let refused =
            text("a", &read(json!({"evict": true, "result": "EvictionsRefused", "refused": refused}))).to_string();
        for part in ["with evictions: EvictionsRefused", "shop/web-1", "shop/web", "not now"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        let mut early = read(json!({"result": "WindowClosed"}));
        (early.attempt, early.drain_started, early.drain_ended, early.soak_started) = (None, None, None, None);
        assert!(!text("a", &early).to_string().contains("STEP"));
        early.attempt = Some(2);
        let text = text("a", &early).to_string();
        assert!(text.contains("75s") && !text.contains("Soak"), "{text}");
    }
}
