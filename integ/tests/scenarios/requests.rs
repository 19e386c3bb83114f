//! The cost of the operator: requests to the API server, and calls of the host API. Counted, not measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::ensure;
use deploy::Component;
use integ::control_plane::audit::{Record, Stage, requests};
use integ::host::{Event, EventKind, Timings};
use integ::oracle::{Shadow, service_account, settled_audit};
use jiff::Timestamp;
use models::names::{AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, SYSTEM_NAMESPACE};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::{NEW, SHOP, ScenarioContext, nodes, run, shadow_of};

/// Requests by component, verb and resource.
type Table = BTreeMap<(&'static str, String, String), usize>;

/// The component of the operator that made a request.
fn part(record: &Record) -> Option<&'static str> {
    [
        ("controller", service_account(SYSTEM_NAMESPACE, CONTROLLER)),
        ("web API", service_account(SYSTEM_NAMESPACE, APISERVER)),
        ("agent", service_account(AGENT_NAMESPACE, AGENT)),
    ]
    .into_iter()
    .find_map(|(part, user)| (record.user == user).then_some(part))
}

/// The whole audit log of the API server so far.
async fn recorded(ctx: &ScenarioContext) -> anyhow::Result<Vec<Record>> {
    settled_audit(&mut ctx.bed.control_plane.audit(), &ctx.bed.client).await
}

/// The operator's requests to the API server since `from`.
async fn requests_since(ctx: &ScenarioContext, from: Timestamp) -> anyhow::Result<Vec<Record>> {
    let all = recorded(ctx).await?;
    Ok(requests(&all).filter(|r| r.received > from && part(r).is_some()).cloned().collect())
}

/// Number of watches of a resource that a component of the operator has open at the end of a log.
fn open_watches(records: &[Record], by: &str, what: &str) -> usize {
    let ended: BTreeSet<&str> =
        records.iter().filter(|r| r.stage == Stage::ResponseComplete).map(|r| r.audit_id.as_str()).collect();
    let open = |r: &&Record| r.stage == Stage::ResponseStarted && !ended.contains(r.audit_id.as_str());
    let watches = records.iter().filter(|r| part(r) == Some(by) && r.verb == "watch" && r.what() == what);
    watches.filter(open).count()
}

fn table(records: &[Record]) -> Table {
    let mut table = Table::new();
    for record in records {
        let Some(part) = part(record) else { continue };
        let what = if record.resource.is_empty() { record.uri.clone() } else { record.what() };
        *table.entry((part, record.verb.clone(), what)).or_default() += 1;
    }
    table
}

/// Number of writes of the operator's status that changed its slots, and of those that changed its counts alone.
fn slot_writes(records: &[Record]) -> (usize, usize) {
    let mut before = Value::Null;
    let (mut slots, mut counts) = (0, 0);
    for record in records.iter().filter(|r| r.what() == "bottlerocketupdateoperators/status") {
        let now = record.request.as_ref().map(|request| request["status"]["slots"].clone()).unwrap_or_default();
        if now == before {
            counts += 1;
        } else {
            slots += 1;
        }
        before = now;
    }
    (slots, counts)
}

/// The number of the controller's Events that an updated node waits for its pods.
fn settling_events(records: &[Record]) -> usize {
    let events = records.iter().filter(|r| part(r) == Some("controller") && r.what() == "events");
    events.filter(|r| r.request.as_ref().is_some_and(|event| event["reason"] == "Settling")).count()
}

fn print(title: &str, table: &Table) {
    let mut text = format!("{title}: {} in all\n", table.values().sum::<usize>());
    for ((part, verb, what), count) in table {
        let _ = writeln!(text, "  {count:>3}  {part:<10} {verb:<7} {what}");
    }
    println!("{text}");
}

/// The agent's reports, write by write, to explain a surplus.
fn reports(records: &[Record]) -> Vec<String> {
    let describe = |record: &Record| {
        let agent = &record.request.as_ref()?["status"];
        let armed = agent["armed"]["phase"].as_str().unwrap_or("nothing armed");
        let reach = agent["conditions"].as_array().into_iter().flatten().map(|c| c["reason"].as_str().unwrap_or("-"));
        Some(format!(
            "{} {}: {}, of generation {}, {armed}, runs {}, is offered {}, {}, {}",
            record.received,
            record.code,
            agent["state"],
            agent["observedGeneration"],
            agent["currentVersion"],
            agent["updates"]["chosenVersion"],
            agent["failure"]["reason"],
            reach.collect::<Vec<_>>().join(" "),
        ))
    };
    let writes = records.iter().filter(|r| part(r) == Some("web API") && r.what() == "bottlerocketshadows/status");
    writes.filter_map(describe).collect()
}

/// The controller's writes of the attempt and of the operator's status, and its Events, one by one, to explain a surplus.
fn course(records: &[Record]) -> Vec<String> {
    let describe = |record: &Record| {
        let body = record.request.as_ref()?;
        let status = &body["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let reasons: Vec<_> = conditions.filter_map(|condition| condition["reason"].as_str()).collect();
        let drain = status["drain"]["pods"].as_array().map_or(0, Vec::len);
        let (step, event) = (&status["progress"]["step"], &body["reason"]);
        Some(format!("{} {}: {step}, {drain} pods, {reasons:?}, {event}", record.received, record.what()))
    };
    let kinds = ["bottlerocketshadows/status", "bottlerocketupdateoperators/status", "events"];
    let shown = |record: &&Record| kinds.contains(&record.what().as_str());
    records.iter().filter(|record| part(record) == Some("controller")).filter(shown).filter_map(describe).collect()
}

/// Duration of a watch before its client opens it again, in seconds.
const WATCH_LASTS: u64 = 290;

/// Interval at which a leader renews its lease, in seconds.
const RENEWS: u64 = 6;

/// Ensures this of a cluster with two labelled nodes and two controllers, in which nothing has happened since it was installed.
pub(crate) async fn idle_cluster_causes_only_lease_writes_and_open_watches(
    ctx: &ScenarioContext,
    installed: Timestamp,
) -> anyhow::Result<()> {
    // A standby that starts lists all objects.
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=240s"]).await?;
    ctx.until("the operator has counted both nodes", |world| {
        world.operator.as_ref().and_then(|o| o.status.counts.as_ref()).is_some_and(|c| c.current == 2)
    })
    .await?;
    // First two renewals of the Lease, until requests that are under way have ended: the first may come at once, and between the two is more
    // than the second by which counts of the fleet may be delayed. Then several, while the hosts check for updates each second.
    ctx.renewals(2).await?;
    let from = Timestamp::now();
    let refreshes = refreshes(ctx);
    ctx.renewals(3).await?;
    ensure!(self::refreshes(ctx) > refreshes, "the hosts did not check for updates meanwhile");
    let (until, all) = (Timestamp::now(), recorded(ctx).await?);
    let idle = requests(&all).filter(|record| record.received > from && part(record).is_some()).cloned();
    let (writes, reads): (Vec<_>, Vec<_>) = idle.partition(Record::is_write);
    let (writes, reads) = (table(&writes), table(&reads));
    print("Writes of an idle cluster", &writes);
    print("Reads of an idle cluster", &reads);
    // A TokenReview is a query in the form of a write: nothing is stored.
    let stored: Table = writes.into_iter().filter(|((_, _, what), _)| what != "tokenreviews").collect();
    let lease = ("controller", "update".to_owned(), "leases".to_owned());
    ensure!(stored.keys().eq([&lease]), "{stored:#?}");
    let seconds = |from: Timestamp| u64::try_from(until.duration_since(from).as_secs());
    let renewed = seconds(from)? / RENEWS + 2;
    ensure!((3..=renewed).contains(&(stored[&lease] as u64)), "{stored:?} where {renewed} are allowed");

    // Everything else is known through open watches. One that has reached its duration is opened again.
    let renewals = if seconds(installed)? < WATCH_LASTS { 0 } else { 4 };
    for ((part, verb, what), made) in &reads {
        let allowed = if verb == "watch" { renewals } else { 0 };
        ensure!(*made as u64 <= allowed, "{part}: {verb} {what}: {made} where {allowed} are allowed");
    }
    let open = open_watches(&all, "web API", "bottlerocketshadows");
    ensure!(open == 1, "{open} watches by one replica, for two agents");
    Ok(())
}

/// Number of the hosts' checks for updates.
fn refreshes(ctx: &ScenarioContext) -> usize {
    ctx.bed.members.iter().flat_map(|m| m.host.log()).filter(|e| is_call(e, "refresh-updates")).count()
}

fn is_call(event: &Event, of: &str) -> bool {
    matches!(&event.kind, EventKind::Call { path, .. } if path.contains(of))
}

/// The nodes of a rollout whose requests are all counted.
const ROLLOUT: [&str; 3] = ["node-2", "node-3", "node-4"];

/// The most requests of that rollout for each of its nodes, with its history, its counts and the change of the policy.
const IN_ALL: usize = 31;

#[tokio::test(flavor = "multi_thread")]
async fn whole_rollout_of_three_nodes_under_a_budget_stays_within_its_limit() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.labelled = false;
    options.policy["enabled"] = json!(false);
    run(options, async |ctx| {
        only_the_switch_holds(ctx, &ROLLOUT, 1).await?;
        let (from, checks) = (Timestamp::now(), refreshes(ctx));
        ctx.policy(&json!({"enabled": true})).await?;
        ctx.until("all nodes are updated, and the record of the rollout has ended", |world| {
            let updated = |node: &&str| world.is_updated(node, &NEW);
            ROLLOUT.iter().all(updated)
                && world.operator.as_ref().is_some_and(|o| {
                    let mut records = o.status.active_rollouts.iter().filter_map(|rollout| rollout.record.as_ref());
                    o.status.slots.is_empty() && records.all(|record| record.ended.is_some())
                })
        })
        .await?;
        ctx.renewals(1).await?;
        let asked = requests_since(ctx, from).await?;
        println!("The controller's writes:\n  {}", course(&asked).join("\n  "));
        // A write that met another client's is made again; no renewal of the lease belongs to the rollout.
        let refused = |r: &Record| r.code == 409 || (r.what() == "pods/eviction" && r.code == 429);
        let (refused, made): (Vec<_>, Vec<_>) = asked.into_iter().filter(|r| r.what() != "leases").partition(refused);
        print("Refused, for a conflict or by the budget", &table(&refused));
        let whole = table(&made);
        print("Requests for the whole rollout", &whole);
        let count = |what: &str| made.iter().filter(|r| r.what() == what).count();
        let settling = settling_events(&made);
        let (slots, counts) = slot_writes(&made);
        // One write of slots at the begin, one before each permit, and one at each end, with the next one that is given. Where
        // the pods of the next node are read more slowly, that is another one.
        let together = 1 + 2 * ROLLOUT.len();
        assert!(slots <= 3 * ROLLOUT.len(), "{slots} writes of slots");
        // The report of a host's check in its first minute, and the label where that comes after the end of the attempt; what a slow
        // machine adds: more reviews than one after each boot, counts, writes of slots; reads after a conflict.
        let allowed = IN_ALL * ROLLOUT.len()
            + 2 * (refreshes(ctx) - checks)
            + count("tokenreviews").saturating_sub(ROLLOUT.len())
            + counts.saturating_sub(1)
            + slots.saturating_sub(together)
            + 3 * settling
            + refused.len();
        let all: usize = whole.values().sum();
        assert!(all <= allowed, "{all} requests where {allowed} are allowed: {whole:#?}");
        Ok(())
    })
    .await?;
    Ok(())
}

/// Adds nodes with [`PODS`] pods each, whose budget lets so many go at a time, and waits until only the switch of the policy
/// holds their update. From then on hosts check for updates once an hour, so that only the update is counted.
async fn only_the_switch_holds(ctx: &mut ScenarioContext, nodes: &[&str], at_a_time: usize) -> anyhow::Result<()> {
    // The operator itself runs on node-1, which has no label.
    ctx.bed.install().await?;
    ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "rollout", "status", "deployment", "--timeout=240s"]).await?;
    ctx.kubectl(&["cordon", "node-1"]).await?;
    ctx.bed.options.labelled = true;
    for node in nodes {
        ctx.bed.add_node(node).await?;
    }
    ctx.shop_with(PODS * nodes.len(), json!({"maxUnavailable": at_a_time})).await?;
    ctx.kubectl(&["uncordon", "node-1"]).await?;
    ctx.release();
    let offered =
        |shadow: &Shadow| shadow.status.agent.updates.as_ref().is_some_and(|u| u.chosen_version.as_ref() == Some(&NEW));
    let held = i64::try_from(nodes.len())?;
    ctx.until("the update is known and only the switch holds it", |world| {
        nodes.iter().all(|node| shadow_of(world, node).is_some_and(offered))
            && world
                .operator
                .as_ref()
                .is_some_and(|o| o.status.waiting.iter().any(|w| w.reason == "Disabled" && w.nodes == held))
    })
    .await?;
    ctx.policy(&json!({"version": {"refreshInterval": "1h"}})).await?;
    let noted = |shadow: &Shadow| {
        let interval = shadow.spec.host.as_ref().and_then(|h| h.refresh_interval);
        interval.is_some_and(|i| i.0.as_secs() == 3600) && shadow.status.agent.observed_generation >= Some(2)
    };
    ctx.until("the agents have taken note", |world| nodes.iter().all(|node| shadow_of(world, node).is_some_and(noted)))
        .await?;
    ctx.renewals(1).await?;
    Ok(())
}

/// The pods on the node that is updated.
const PODS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn node_update_stays_within_request_and_host_call_limits() -> anyhow::Result<()> {
    let mut options = nodes(1);
    options.labelled = false;
    options.policy["enabled"] = json!(false);
    // The agent finds the host busy with the download once.
    options.timings = Timings { prepare: Duration::from_secs(3), ..Timings::instant() };
    run(options, async move |ctx| {
        only_the_switch_holds(ctx, &["node-2"], PODS).await?;
        let (from, clock) = (Timestamp::now(), Instant::now());
        let host = &ctx.bed.member("node-2")?.host;
        let events = host.log().len();

        ctx.policy(&json!({"enabled": true})).await?;
        ctx.until("node-2 is updated and its slot is free", |world| {
            shadow_of(world, "node-2").is_some_and(|s| {
                s.status.agent.current_version == Some(NEW)
                    && s.step().is_none()
                    && s.status.agent.observed_generation > Some(3)
            }) && !world.nodes["node-2"].claimed()
                && world.operator.as_ref().is_some_and(|o| {
                    o.status.slots.is_empty() && o.status.counts.as_ref().is_some_and(|c| c.current == 1)
                })
        })
        .await?;
        ctx.renewals(1).await?;
        let took = clock.elapsed();

        // Another client's write may come between a read and a write: the conflict and the read after it are not
        // counted.
        let asked = requests_since(ctx, from).await?;
        println!("The agent's reports:\n  {}", reports(&asked).join("\n  "));
        println!("The controller's writes:\n  {}", course(&asked).join("\n  "));
        let (refused, records): (Vec<_>, Vec<_>) = asked.into_iter().partition(|record| record.code == 409);
        let held_back = |record: &&Record| record.what() == "pods/eviction" && record.code == 429;
        assert_eq!(records.iter().filter(held_back).count(), 0, "evictions that the budget refused");
        let whole = table(&records);
        print("Requests for the update of one node with three pods", &whole);
        print("Refused for a conflict, and made again", &table(&refused));
        let calls: Vec<_> = host.log()[events..]
            .iter()
            .filter_map(|e| match &e.kind {
                EventKind::Call { method, path, status, .. } => Some(format!("{method} {path} {status:?}")),
                _ => None,
            })
            .collect();
        println!("Host calls: {}\n  {}", calls.len(), calls.join("\n  "));

        // A host that has rebooted checks for updates at a random time of its first minute: meanwhile, or later. It takes
        // three calls, and a report of the result.
        let checks = calls.iter().filter(|call| call.contains("refresh-updates")).count();
        assert!(checks <= 1, "{calls:#?}");

        let count = |part: &str, verb: &str, what: &str| {
            whole.iter().filter(|((p, v, w), _)| *p == part && v == verb && w == what).map(|(_, n)| n).sum::<usize>()
        };
        let shadow = "bottlerocketshadows";
        let (slots, counts) = slot_writes(&records);
        // A review counts for half a minute: on a slow machine the update outlasts more than one.
        let reviews = usize::try_from(took.as_secs() / 30)?;
        // A report that met a conflict is made again, and what has changed since then may be another one.
        let status = format!("{shadow}/status");
        let reports_again = refused.iter().filter(|r| part(r) == Some("web API") && r.what() == status).count();
        // On a slow machine the pods of the node are Ready only after the soak, which is said once, with an Event.
        let settling = settling_events(&records);
        assert!(settling <= 1, "{whole:#?}");
        let bounds = [
            // Where the host has checked for updates after the end of the attempt, the label of the revision follows by itself.
            ("desired states and the permit", count("controller", "patch", shadow), 4 + checks),
            ("the controller status", count("controller", "patch", &status), 5 + settling),
            ("the agent status", count("web API", "patch", &status), 5 + checks + reports_again),
            // Given, marked before the permit, and taken away.
            ("slots", slots, 3),
            // The protection from autoscalers ends last, once the node is verified.
            ("claim, release and its end", count("controller", "patch", "nodes"), 3),
            ("the last read of the Node", count("controller", "get", "nodes"), 1),
            ("evictions", count("controller", "create", "pods/eviction"), PODS),
            // The watch brings the pods that there are, and is opened again at the end of the soak. They are listed for the live check before the
            // permit alone.
            ("reads of pods", count("controller", "list", "pods"), 1),
            ("watches of pods", count("controller", "watch", "pods"), 2 + settling),
            ("TokenReviews", count("web API", "create", "tokenreviews"), 2 + reviews),
            ("Events", count("controller", "create", "events") + count("controller", "patch", "events"), 2 + settling),
        ];
        for (what, made, allowed) in bounds {
            assert!(made <= allowed, "{what}: {made} requests, {allowed} allowed\n{whole:#?}");
        }
        let known: usize = bounds.iter().map(|(_, made, _)| made).sum();
        assert!(known <= 30 + 2 * checks + reviews + reports_again + 3 * settling, "{known} requests");
        let about_history = |what: &str| what.starts_with("bottlerocketrollouthistories");
        let history = whole.iter().filter(|((part, _, what), _)| *part == "controller" && about_history(what));
        let history: usize = history.map(|(_, made)| made).sum();
        let aside = [
            // When updates are enabled, at their end, and every 10 s in between where no slot is written.
            ("counts of the fleet", counts, usize::try_from(took.as_secs() / 10)? + 3),
            ("reads after a conflict", count("web API", "get", shadow), refused.len()),
            // A node is read again where the removal of its result from the shadow met one.
            ("reads of shadows after a conflict", count("controller", "list", shadow), refused.len()),
            ("reads of Nodes after a conflict", count("controller", "list", "nodes"), refused.len()),
            ("the lease", count("controller", "update", "leases"), usize::MAX),
            // After a soak of a second, each second until the kubelet has renewed its own twice.
            (
                "signs of life of the kubelet",
                count("controller", "get", "leases"),
                2 + usize::try_from(took.as_secs())?,
            ),
            // The workload's own, and those of the operator's Deployments.
            ("reads of ReplicaSets", count("controller", "get", "replicasets"), 3),
            // Of a whole rollout: its record and its beginning, a page, and the end. That updates were enabled goes with them.
            ("the history", history, 4),
        ];
        for (what, made, allowed) in aside {
            assert!(made <= allowed, "{what}: {made} requests, {allowed} allowed\n{whole:#?}");
        }
        let all: usize = whole.values().sum();
        let named = known + aside.iter().map(|(_, made, _)| made).sum::<usize>();
        assert_eq!(all, named, "nothing else was asked: {whole:#?}");
        assert_eq!(ctx.bed.processes_of(Component::Agent).len(), 1);
        assert!(calls.len() <= 12 + 3 * checks, "{} host calls: {calls:#?}", calls.len());
        ctx.shop_is_ready(PODS).await?;
        assert!(ctx.bed.recorder.so_far()?.end().pods.values().all(|p| p.namespace != SHOP || p.ready));
        Ok(())
    })
    .await?;
    Ok(())
}
