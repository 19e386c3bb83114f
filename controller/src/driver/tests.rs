use std::collections::BTreeSet;

use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use planner::plan::{Action, Evictions, Plan};
use planner::view::{ClusterView, NodeFacts, NodeView, ShadowFacts};
use planner::wait::Wait;
use watches::Sink as _;

use super::retry::Target;
use super::send::{COUNTS_WAIT, GATHERING, STATUS_PERIOD};
use super::*;
use crate::apply::{ApplyError, Evicted, Learned};
use crate::cache::Cache;
use crate::eviction::Meaning;

fn list<P: planner::view::Projection>(cache: &Cache<P>) {
    cache.take(0, Event::Init);
    cache.take(0, Event::InitDone);
}

type Server = tower_test::mock::Handle<http::Request<kube::client::Body>, http::Response<kube::client::Body>>;

/// Returns the driver of a leader with nothing to do, and the cache of its nodes.
fn driver() -> (Driver, Cache<NodeFacts>) {
    let (driver, nodes, _) = driver_and_server();
    (driver, nodes)
}

fn driver_and_server() -> (Driver, Cache<NodeFacts>, Server) {
    let (service, server) =
        tower_test::mock::pair::<http::Request<kube::client::Body>, http::Response<kube::client::Body>>();
    let client = kube::Client::new(service, "default");
    let applier = Applier::of_leader(client);
    let (caches, failures) = (applier.caches.clone(), &applier.metrics.watch_errors);
    list(&caches.nodes);
    list(&caches.shadows);
    list(&caches.operator);
    list(&caches.budgets);
    let nodes = caches.nodes.clone();
    let pods = || {
        let cache = Cache::new(caches.changed.clone(), failures);
        list(&cache);
        cache
    };
    let peers = Peers { identity: "me".into(), pods: pods(), agents: pods() };
    let earlier = EarlierPods::new(&caches.changed, failures);
    earlier.0.iter().for_each(list);
    let expressions = Expressions::start(applier.clone(), Default::default());
    let notices = Notices::start(applier.clone(), None);
    let parts = Parts {
        peers,
        earlier,
        reading: Reading::default(),
        expressions,
        migration: crate::migrate::Progress::default(),
        history: crate::history::History::default(),
        awaited: Awaited::default(),
        notices,
        own_node: None,
        leader_since: Clock::default().now(),
    };
    (Driver::new(applier, parts), nodes, server)
}

#[tokio::test(start_paused = true)]
async fn policy_change_for_large_fleet_delays_no_eviction_and_limits_writes() {
    let (mut driver, _, mut server) = driver_and_server();
    let (mut view, mut actions) = (ClusterView::default(), BTreeMap::new());
    for number in 0..=5000 {
        let name = format!("node-{number:04}");
        let facts = NodeFacts { name: name.clone(), ..NodeFacts::default() };
        let shadow = Some(Box::new(ShadowFacts { node: name.clone(), ..ShadowFacts::default() }));
        view.nodes.insert(name.clone(), NodeView { facts, shadow, ..NodeView::default() });
        actions.insert(name, Action::Spec { spec: Box::default() });
    }
    let pod = planner::plan::Eviction { namespace: "shop".into(), name: "web".into(), uid: "u".into() };
    let evictions = Evictions { pods: vec![pod], grace: None, delete: false, dry_run: false };
    let plan = || Plan { actions: actions.clone(), ..Plan::default() };
    driver.act(&view, &mut plan());
    driver.evict(BTreeMap::from([("node-5000".to_owned(), evictions)]), Clock::default().now());
    let mut unanswered = Vec::new();
    // The clock moves on as soon as nothing else is to be done.
    while let Ok(Some((request, reply))) = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await {
        unanswered.push((request.uri().path().to_owned(), reply));
    }
    let evictions = unanswered.iter().filter(|(path, _)| path.ends_with("/eviction")).count();
    assert_eq!((evictions, unanswered.len()), (1, 1 + crate::writes::AT_A_TIME));
    // The next one begins when one has ended.
    let (_, reply) =
        unanswered.iter().position(|(path, _)| path.contains("brs-")).map(|at| unanswered.remove(at)).unwrap();
    reply.send_response(http::Response::builder().status(409).body(kube::client::Body::empty()).unwrap());
    let ended = driver.ended.1.recv().await.unwrap();
    let Ended::Write(Target::Node(done), _) = &ended else { panic!("the node's action has ended") };
    let done = done.clone();
    driver.record(ended);
    let busy = actions.keys().filter(|name| !driver.writes.is_free(&Target::Node((*name).clone())));
    view.busy.extend(busy.cloned());
    view.busy.insert(done);
    driver.act(&view, &mut plan());
    let next = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await;
    // The reply is kept: a dropped one is a lost answer, after which the node is read again.
    assert!(matches!(next, Ok(Some(_))));
    let another = tokio::time::timeout(Duration::from_secs(1), server.next_request()).await;
    assert!(another.is_err(), "more than {} at a time", crate::writes::AT_A_TIME);
}

/// The watch of the pods may have been dead since before the reboot, although it shows pods.
#[tokio::test(start_paused = true)]
async fn lease_is_known_only_once_the_pods_that_are_to_be_read_with_it_are() {
    let facts = NodeFacts { name: "a".into(), ..NodeFacts::default() };
    let node = NodeView { facts, ..NodeView::default() };
    let view = ClusterView { nodes: BTreeMap::from([("a".to_owned(), node)]), ..ClusterView::default() };
    let answer = |body: &serde_json::Value| http::Response::new(body.to_string().into_bytes().into());
    for (pods, answers, is_known) in [(false, false, true), (true, true, true), (true, false, false)] {
        let (mut driver, _, mut server) = driver_and_server();
        driver.watch_pods(&BTreeSet::from(["a".to_owned()]));
        let (_, _dead) = server.next_request().await.unwrap();
        let actions = BTreeMap::from([("a".to_owned(), Action::ReadLease { pods })]);
        driver.act(&view, &mut Plan { actions, ..Plan::default() });
        let (began, mut unanswered) = (Instant::now(), Vec::new());
        let ended = loop {
            tokio::select! {
                ended = driver.ended.1.recv() => break ended.unwrap(),
                request = server.next_request() => {
                    let (request, reply) = request.unwrap();
                    let query = request.uri().query().unwrap_or_default();
                    if request.uri().path().contains("/leases/") {
                        reply.send_response(answer(&serde_json::json!({"metadata": {"name": "a"}})));
                    } else if answers && !query.contains("watch=") {
                        let metadata = serde_json::json!({"resourceVersion": "7"});
                        reply.send_response(answer(&serde_json::json!({"metadata": metadata, "items": []})));
                    } else {
                        unanswered.push(reply);
                    }
                }
            }
        };
        let Ended::Write(_, result) = ended else { panic!("the node's action has ended") };
        let case = format!("pods are read: {pods}, which is answered: {answers}: {result:?}");
        assert_eq!(result.is_ok_and(|learned| learned.lease.is_some()), is_known, "{case}");
        assert_eq!(began.elapsed() < Duration::from_secs(15), is_known, "{case}");
    }
}

#[tokio::test]
async fn hand_over_ends_leader_and_stop_takes_precedence() {
    for (stopped, end) in [(false, End::HandedOver), (true, End::Stopped)] {
        let (mut driver, _) = driver();
        let (_stop, stop) = watch::channel(stopped);
        driver.handing_over = true;
        let ended = tokio::time::timeout(Duration::from_secs(60), driver.run(&Calls::default(), stop)).await;
        assert_eq!(ended, Ok(end));
    }
}

fn take<P: planner::view::Projection>(cache: &Cache<P>, object: serde_json::Value) {
    cache.take(0, Event::Apply(DeserializeGuard(Ok(serde_json::from_value(object).unwrap()))));
}

/// Puts the operator's resource into its cache, at this version and with this status.
fn take_operator(driver: &Driver, version: &str, status: &serde_json::Value) {
    let metadata = serde_json::json!({"name": models::names::OPERATOR_NAME, "uid": "op", "resourceVersion": version});
    take(&driver.applier.caches.operator, serde_json::json!({"metadata": metadata, "spec": {}, "status": status}));
}

/// Puts node `a` into its cache, and its shadow with this step and the desired state that belongs to it.
fn take_node_in(driver: &Driver, nodes: &Cache<NodeFacts>, step: &str) {
    let desired = match step {
        "Releasing" => serde_json::json!({"state": "Idle", "attempt": 1}),
        "Draining" => serde_json::json!({"state": "StagedUpdate", "attempt": 1, "version": "1.20.5", "bootId": "b"}),
        _ => serde_json::json!({"state": "StagedUpdate", "attempt": 1}),
    };
    take(
        nodes,
        serde_json::json!({"metadata": {"name": "a", "uid": "node-1", "resourceVersion": "5", "labels": {
            models::names::INTERFACE_LABEL: models::names::INTERFACE_VERSION}}}),
    );
    let shadow = serde_json::json!({
        "metadata": {"name": "brs-a", "uid": "shadow-1", "resourceVersion": "6", "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "node-1"}]},
        "spec": desired,
        "status": {"progress": {"step": step, "since": "2026-01-01T00:00:00Z",
            "started": "2026-01-01T00:00:00Z", "attempt": 1, "bootId": "b", "version": "1.20.5", "disruptive": true}}});
    take(&driver.applier.caches.shadows, shadow);
}

fn evictions(pods: &[&str]) -> BTreeMap<String, Evictions> {
    let pod = |name: &&str| planner::plan::Eviction {
        namespace: "shop".into(),
        name: (*name).into(),
        uid: format!("uid-{name}"),
    };
    let pods = pods.iter().map(pod).collect();
    BTreeMap::from([("a".to_owned(), Evictions { pods, grace: None, delete: false, dry_run: false })])
}

fn refusal(pod: &str, request: u64) -> Evicted {
    Evicted {
        node: "a".into(),
        namespace: "shop".into(),
        uid: format!("uid-{pod}"),
        request,
        means: Meaning::Blocked { budget: Some("web".into()), retry: Duration::from_secs(5) },
        message: String::new(),
    }
}

#[tokio::test]
async fn evictions_in_flight_do_not_make_node_busy_and_end_with_drain() {
    let (mut driver, nodes) = driver();
    take_node_in(&driver, &nodes, "Draining");
    let now = Clock::default().now();
    driver.evict(evictions(&["first", "second"]), now);
    let view = driver.view(now);
    assert!(view.busy.is_empty());
    assert_eq!(view.nodes["a"].in_flight.keys().collect::<Vec<_>>(), ["uid-first", "uid-second"]);
    // An answered request leaves the answer alone, and a replaced request leaves none.
    driver.record_eviction(refusal("first", 1));
    driver.record_eviction(refusal("second", 1));
    let view = driver.view(now);
    assert_eq!(view.nodes["a"].in_flight.keys().collect::<Vec<_>>(), ["uid-second"]);
    assert_eq!(view.nodes["a"].blocked.keys().collect::<Vec<_>>(), ["uid-first"]);
    list(&driver.applier.caches.shadows);
    take_node_in(&driver, &nodes, "Releasing");
    assert!(driver.view(now).nodes["a"].in_flight.is_empty());
    driver.record_eviction(refusal("second", 2));
    assert_eq!(driver.view(now).nodes["a"].blocked.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn stopped_leader_waits_for_eviction_responses() {
    let (mut driver, nodes, mut server) = driver_and_server();
    take_node_in(&driver, &nodes, "Draining");
    driver.evict(evictions(&["web"]), Clock::default().now());
    let (request, reply) = server.next_request().await.unwrap();
    assert!(request.uri().path().ends_with("/eviction"));
    let (_stop, stop) = watch::channel(true);
    let calls = Calls::default();
    let mut run = std::pin::pin!(driver.run(&calls, stop));
    let early = tokio::time::timeout(Duration::from_secs(10), run.as_mut()).await;
    assert!(early.is_err(), "an eviction that is cut off may cost its budget two minutes");
    let body = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string();
    reply.send_response(http::Response::builder().status(201).body(body.into_bytes().into()).unwrap());
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), run).await, Ok(End::Stopped));
}

#[tokio::test]
async fn eviction_of_long_refused_pod_is_retried_less_often() {
    let seconds = jiff::SignedDuration::from_secs;
    for (refused, pause) in [(0, 5), (60, 30), (600, 60)] {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Draining");
        let now = Clock::default().now();
        driver.evict(evictions(&["web"]), now - seconds(refused));
        driver.record_eviction(refusal("web", 1));
        let retry_at = driver.view(now).nodes["a"].blocked["uid-web"].retry_at;
        assert!(retry_at >= now + seconds(pause), "after {refused} s: {retry_at}, at {now}");
    }
}

#[tokio::test]
async fn pause_after_refusal_grows_only_while_the_request_and_its_cause_stay_the_same() {
    let ten_minutes = jiff::SignedDuration::from_secs(600);
    let budget = || Meaning::Blocked { budget: Some("web".into()), retry: Duration::from_secs(5) };
    let fails = || Meaning::Retry(Duration::from_secs(1));
    for (sentence, refused, delete, then, soon) in [
        ("a budget refuses it again", budget(), false, budget(), false),
        ("it fails again", fails(), false, fails(), false),
        ("it fails once after the refusals of a budget", budget(), false, fails(), true),
        ("a budget refuses it after it has failed", fails(), false, budget(), true),
        ("its deletion fails after its eviction", fails(), true, fails(), true),
        ("its deletion fails after a budget has refused its eviction", budget(), true, fails(), true),
    ] {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Draining");
        let now = Clock::default().now();
        driver.evict(evictions(&["web"]), now - ten_minutes);
        driver.record_eviction(Evicted { means: refused, ..refusal("web", 1) });
        let mut again = evictions(&["web"]);
        again.get_mut("a").unwrap().delete = delete;
        driver.evict(again, now);
        driver.record_eviction(Evicted { means: then, ..refusal("web", 2) });
        let last = driver.view(now).nodes["a"].blocked["uid-web"].clone();
        assert_eq!(last.retry_at < now + jiff::SignedDuration::from_secs(15), soon, "{sentence}: {last:?}, at {now}");
        assert_eq!(last.since, now - ten_minutes, "{sentence}: users see since when it does not leave");
    }
}

#[tokio::test]
async fn denials_in_a_row_count_from_the_first_one_and_are_retried_often() {
    let (mut driver, nodes) = driver();
    take_node_in(&driver, &nodes, "Draining");
    let now = Clock::default().now();
    // A budget has refused it for long.
    driver.evict(evictions(&["web"]), now - jiff::SignedDuration::from_secs(3600));
    let mut request = 0;
    let mut answer = |means: Meaning| {
        request += 1;
        driver.record_eviction(Evicted { means, ..refusal("web", request) });
        let now = Clock::default().now();
        let last = driver.view(now).nodes["a"].blocked["uid-web"].clone();
        driver.evict(evictions(&["web"]), now);
        last
    };
    let budget = || Meaning::Blocked { budget: Some("web".into()), retry: Duration::from_secs(5) };
    assert_eq!(answer(budget()).denied_since, None);
    let first = answer(Meaning::Denied);
    let second = answer(Meaning::Denied);
    assert!(first.denied_since >= Some(now) && second.denied_since == first.denied_since, "{first:?} {second:?}");
    let pause = second.retry_at - second.denied_since.unwrap();
    assert!(pause.get_seconds() < 10, "not as for a pod that a budget has refused for an hour: {second:?}");
    assert_eq!(answer(budget()).denied_since, None);
    assert!(answer(Meaning::Denied).denied_since >= first.denied_since);
}

#[tokio::test]
async fn refused_eviction_is_retried_at_once_if_pdb_already_allows_it() {
    let budget = |version: &str, allowed: i32| {
        serde_json::json!({"metadata": {"namespace": "shop", "name": "web", "resourceVersion": version},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 2, "desiredHealthy": 2, "expectedPods": 3}})
    };
    for (sentence, meanwhile, now_due) in [
        ("the budget is as it was before the eviction", vec![], false),
        ("it has counted the eviction before", vec![budget("8", 0)], false),
        ("it lets another go already", vec![budget("8", 0), budget("9", 1)], true),
    ] {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, "Draining");
        take(&driver.applier.caches.budgets, budget("7", 1));
        let now = Clock::default().now();
        driver.view(now);
        driver.evict(evictions(&["first", "second"]), now);
        for change in meanwhile {
            take(&driver.applier.caches.budgets, change);
        }
        driver.record_eviction(refusal("second", 2));
        let blocked = &driver.view(now).nodes["a"].blocked["uid-second"];
        assert_eq!(blocked.retry_at <= now, now_due, "{sentence}: {blocked:?}");
    }
}

#[tokio::test]
async fn leader_waits_for_all_caches_before_deciding() {
    let (mut driver, nodes) = driver();
    take_node_in(&driver, &nodes, "Staged");
    let slot = serde_json::json!({"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"});
    take_operator(&driver, "7", &serde_json::json!({"slots": [slot]}));
    driver.parts.reading = Reading::default().of(&driver.applier.caches.budgets);
    assert_eq!(driver.turn(), None);
    assert!(!driver.writing() && driver.retracting.is_none());
    driver.parts.reading = Reading::default();
    driver.turn();
    assert!(driver.writing());
}

#[tokio::test]
async fn jobs_of_hooks_know_the_waits_of_the_last_plan_alone() {
    let (mut driver, _) = driver();
    take_operator(&driver, "7", &serde_json::json!({}));
    let wait = Wait::AwaitingHook { hooks: vec!["ceph".into()], request: String::new(), until: Timestamp::MAX };
    let earlier = BTreeMap::from([("a".to_owned(), wait), ("b".to_owned(), Wait::UpToDate)]);
    driver.parts.awaited.change(|waits| *waits = awaited(&earlier));
    assert_eq!(driver.parts.awaited.facts().into_keys().collect::<Vec<_>>(), ["a"]);
    driver.turn();
    assert_eq!(driver.parts.awaited.facts(), BTreeMap::new());
}

#[tokio::test]
async fn removed_slot_stays_retracted_until_operator_resource_changes() {
    let slot = serde_json::json!({"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"});
    let slots = serde_json::json!({"slots": [slot]});
    let (mut driver, _) = driver();
    // The previous leader may be about to remove the slots that the first read shows.
    take_operator(&driver, "6", &slots);
    let now = Clock::default().now();
    assert_eq!(driver.view(now).slots().count(), 0);
    take_operator(&driver, "7", &slots);
    let view = driver.view(now);
    assert_eq!(view.slots().count(), 1);
    let without = |view: &ClusterView| {
        let mut status = view.operator.as_ref().unwrap().status.clone();
        status.slots.clear();
        Plan { slots: Some(Vec::new()), status: Some(status), ..Plan::default() }
    };
    driver.write_operator(&view, &without(&view));
    let sent = driver.view(now);
    assert!(sent.retracted.contains("node-1") && sent.slots().count() == 0, "{:?}", sent.retracted);
    // The result of this write is unknown.
    driver.record_write(Target::Operator, Err(ApplyError::NoKey));
    assert_eq!(driver.view(now).slots().count(), 0);
    // A further write that removes nothing does not settle the first one.
    driver.writes = WriteStates::default();
    let mut counts = without(&view);
    counts.slots = Some(view.operator.as_ref().unwrap().status.slots.clone());
    counts.status.as_mut().unwrap().slots = counts.slots.clone().unwrap();
    counts.status.as_mut().unwrap().observed_generation = Some(5);
    driver.write_operator(&view, &counts);
    assert_eq!(driver.view(now).slots().count(), 0);
    // The resource has changed: it records the slots, and no write for the version before it can arrive any more.
    take_operator(&driver, "8", &slots);
    assert_eq!(driver.view(now).slots().count(), 1);
}

#[tokio::test(start_paused = true)]
async fn counts_wait_for_another_write_and_anything_else_for_a_second() {
    let (mut driver, _) = driver();
    let progressing = serde_json::json!({"type": "Progressing", "status": "True", "reason": "Updating", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    take_operator(&driver, "7", &serde_json::json!({"conditions": [progressing]}));
    let view = driver.view(Clock::default().now());
    let status = &view.operator.as_ref().unwrap().status;
    let counts = models::operator::Counts { staged: 1, ..Default::default() };
    let counted = models::operator::BottlerocketUpdateOperatorStatus { counts: Some(counts), ..status.clone() };
    let counts = Plan { status: Some(counted.clone()), ..Plan::default() };
    let due = Instant::now() + COUNTS_WAIT;
    assert_eq!(driver.write_operator(&view, &counts), Some(due));
    tokio::time::advance(COUNTS_WAIT - Duration::from_secs(1)).await;
    assert_eq!(driver.write_operator(&view, &counts), Some(due), "since they changed first");
    assert!(!driver.writing());
    let with_slots = Plan { slots: Some(Vec::new()), ..counts.clone() };
    assert_eq!(driver.write_operator(&view, &with_slots), None);
    assert!(driver.writing(), "slots take them along");
    driver.writes = WriteStates::default();
    assert_eq!(driver.write_operator(&view, &counts), Some(Instant::now() + COUNTS_WAIT), "changed again");
    let seen = models::operator::BottlerocketUpdateOperatorStatus { observed_generation: Some(2), ..counted };
    let seen = Plan { status: Some(seen), ..Plan::default() };
    assert_eq!(driver.write_operator(&view, &seen), Some(Instant::now() + STATUS_PERIOD));
    tokio::time::advance(STATUS_PERIOD).await;
    assert_eq!(driver.write_operator(&view, &seen), None);
    assert!(driver.writing());
    driver.writes = WriteStates::default();
    driver.write_operator(&view, &counts);
    tokio::time::advance(STATUS_PERIOD * 2).await;
    let due = Some(Instant::now() + GATHERING);
    assert_eq!(driver.write_operator(&view, &seen), due, "perhaps a slot comes with it");
}

#[tokio::test]
async fn new_leader_keeps_only_slots_of_started_drains() {
    for (step, begun) in [("Staging", false), ("Staged", false), ("Draining", true), ("Verifying", true)] {
        let (mut driver, nodes) = driver();
        take_node_in(&driver, &nodes, step);
        let slot = serde_json::json!({"uid": "node-1", "node": "a", "since": "2026-01-01T00:00:00Z"});
        take_operator(&driver, "7", &serde_json::json!({"slots": [slot]}));
        assert_eq!(driver.view(Clock::default().now()).slots().count(), usize::from(begun), "{step}");
    }
}

#[tokio::test]
async fn observed_duration_of_release_follows_monotonic_clock() {
    let (mut driver, nodes) = driver();
    take_node_in(&driver, &nodes, "Releasing");
    // However often it checks in between, and whatever the clock shows.
    let now = Clock::default().now();
    assert_eq!(driver.view(now).nodes["a"].observed_for, Duration::ZERO);
    for milliseconds in [2, 4] {
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(driver.view(now).nodes["a"].observed_for >= Duration::from_millis(milliseconds));
    }
}

#[tokio::test]
async fn back_off_of_a_pdb_goes_on_while_no_pod_is_watched_and_ends_when_the_pdb_is_deleted() {
    let (mut driver, _) = driver();
    let now = Clock::default().now();
    let back_off =
        serde_json::json!({"budget": "shop/web", "revision": "pdb-1/2", "times": 2, "last": now, "until": now});
    take_operator(&driver, "7", &serde_json::json!({"budgetBackOffs": [back_off]}));
    let budget = |version: &str| {
        serde_json::json!({"metadata": {"namespace": "shop", "name": "web", "uid": "pdb-1", "generation": 2,
            "resourceVersion": version}})
    };
    let planned = |driver: &mut Driver| {
        let view = driver.view(now);
        let plan = planner::plan::plan(&view, &Policy::in_force(view.operator.as_ref()), now);
        plan.status.unwrap().budget_back_offs.len()
    };
    take(&driver.applier.caches.budgets, budget("7"));
    assert_eq!(planned(&mut driver), 1);
    let deleted = Event::Delete(DeserializeGuard(Ok(serde_json::from_value(budget("8")).unwrap())));
    driver.applier.caches.budgets.take(0, deleted);
    assert_eq!(planned(&mut driver), 0);
}

/// An action failed, then the shadow was removed (its node has lost the label, or was created again without it).
#[tokio::test]
async fn pause_of_removed_node_causes_no_busy_wakeups() {
    let (mut driver, nodes) = driver();
    take(&nodes, serde_json::json!({"metadata": {"name": "a", "uid": "node-1", "resourceVersion": "5"}}));
    // An earlier action about it failed, and the pause after that is over.
    driver.writes.end(Target::Node("a".into()), Some(&ApplyError::NoKey), Instant::now() - Duration::from_secs(1));
    let mut in_the_past = 0;
    for _ in 0..100 {
        let Wake { time, moment } = driver.turn().unwrap_or_default();
        if moment.is_some_and(|wake| wake <= Instant::now()) || time.is_some_and(|wake| wake <= Timestamp::now()) {
            in_the_past += 1;
        }
    }
    assert_eq!(in_the_past, 0, "turns that want to be followed by another one at once");
}

#[tokio::test]
async fn failing_action_is_remembered_since_its_first_failure_until_it_succeeds_or_its_step_is_over() {
    let (mut driver, nodes) = driver();
    take_node_in(&driver, &nodes, "Draining");
    let fails = |driver: &mut Driver, status: bool, error| {
        driver.memory.entry("a".into()).or_default().writes_status = status;
        driver.record_write(Target::Node("a".into()), error);
    };
    let seen = |driver: &mut Driver| driver.view(Clock::default().now()).nodes["a"].failing.clone();
    fails(&mut driver, false, Err(ApplyError::NoKey));
    let first = seen(&mut driver).unwrap();
    assert!(first.error.contains("signing key"), "{}", first.error);
    fails(&mut driver, false, Err(ApplyError::NoEffect("a field")));
    let again = seen(&mut driver).unwrap();
    assert_eq!(again.since, first.since);
    assert!(again.error.contains("a field"), "{}", again.error);
    fails(&mut driver, false, Err(ApplyError::Late));
    let again = seen(&mut driver).unwrap();
    assert_eq!(again.since, first.since);
    assert!(again.error.contains("did not finish within"), "{}", again.error);
    fails(&mut driver, true, Ok(Learned::default()));
    assert!(seen(&mut driver).is_some(), "the status could be written");
    for passing in [ApplyError::Changed("the shadow"), ApplyError::NoPermit("a pod is left".into())] {
        fails(&mut driver, false, Err(passing));
        assert_eq!(seen(&mut driver), Some(again.clone()));
    }
    fails(&mut driver, true, Err(ApplyError::NoKey));
    assert_eq!(seen(&mut driver), Some(again.clone()), "the write that was to show it");
    fails(&mut driver, false, Ok(Learned::default()));
    assert_eq!(seen(&mut driver), None);
    fails(&mut driver, false, Err(ApplyError::NoKey));
    let view = driver.view(Clock::default().now());
    driver.act(&view, &mut Plan::default());
    assert!(seen(&mut driver).is_some(), "it waits for its next try");
    driver.writes = WriteStates::default();
    let view = driver.view(Clock::default().now());
    driver.act(&view, &mut Plan::default());
    assert_eq!(seen(&mut driver), None, "it is not due any more");
    fails(&mut driver, false, Err(ApplyError::NoKey));
    list(&driver.applier.caches.shadows);
    take_node_in(&driver, &nodes, "Releasing");
    assert_eq!(seen(&mut driver), None, "of an earlier step");
}

#[tokio::test]
async fn failing_write_of_revisions_or_status_is_remembered_since_its_first_failure_until_it_succeeds_or_is_not_due() {
    for target in [Target::History, Target::Operator] {
        let (mut driver, _) = driver();
        take_operator(&driver, "7", &serde_json::json!({}));
        let of_history = target == Target::History;
        let ends = |driver: &mut Driver, result| driver.record_write(target.clone(), result);
        let seen = |driver: &mut Driver| {
            let view = driver.view(Clock::default().now());
            let (history, status) = (view.revisions_failing, view.status_failing);
            let (failing, other) = if of_history { (history, status) } else { (status, history) };
            assert_eq!(other, None, "{target:?} is another write");
            failing
        };
        ends(&mut driver, Err(ApplyError::Changed("the operator's resource")));
        assert_eq!(seen(&mut driver), None, "a conflict is none");
        ends(&mut driver, Err(ApplyError::NoKey));
        let first = seen(&mut driver).unwrap();
        ends(&mut driver, Err(ApplyError::Late));
        let again = seen(&mut driver).unwrap();
        assert_eq!(again.since, first.since);
        assert!(again.error.contains("did not finish within"), "{}", again.error);
        ends(&mut driver, Ok(Learned::default()));
        assert_eq!(seen(&mut driver), None);
        ends(&mut driver, Err(ApplyError::NoKey));
        let view = driver.view(Clock::default().now());
        let status = view.operator.as_ref().map(|operator| operator.status.clone());
        driver.write_history(&view, Vec::new());
        driver.write_operator(&view, &Plan { status, ..Plan::default() });
        assert_eq!(seen(&mut driver), None, "{target:?} is not due");
    }
}
