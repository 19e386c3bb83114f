//! Drains after one that pods have kept from its end: these go first and alone, so that no other pod leaves in vain once more.

use models::shadow::Record;
use serde_json::json;

use super::guarded::{asked, drain_after, drain_of, leaves, pod_of, record, settle};
use crate::fixtures::*;
use crate::hold::Hold;
use crate::policy::Policy;
use crate::view::{Blocked, ClusterView, PodFacts};

/// The next drain of node `a`, with these pods on it, after an attempt has ended.
fn next_drain(ended: &ClusterView, on_node: Vec<PodFacts>) -> (ClusterView, Policy) {
    let record = Record { drain_blockers: record(ended).drain_blockers.clone(), ..Record::default() };
    drain_after(Some(record), json!({}), on_node, vec![])
}

/// Sets the answer to the eviction of a pod of node `a`.
fn answered(view: &mut ClusterView, uid: &str, answer: Blocked) {
    view.nodes.get_mut("a").unwrap().blocked = [(uid.to_owned(), answer)].into();
}

#[test]
fn pod_that_did_not_leave_is_evicted_first_and_alone_in_the_next_attempt() {
    let on_node = || ["db-0", "job-0", "web-0"].map(|name| pod_of("app", name)).to_vec();
    let denied = Blocked { denied_since: Some(t(1)), ..answer(None, 1, false) };
    for (sentence, first_answer, ends, reason) in [
        ("a webhook denies it", denied, 61, "DrainRefused"),
        ("a webhook does not work", answer(None, 1, false), 1800, "DrainTimedOut"),
        ("its budget refuses it", answer(Some("shop/job"), 1, false), 1800, "DrainTimedOut"),
    ] {
        let (mut view, policy) = drain_of(json!({}), on_node(), vec![]);
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["db-0", "job-0", "web-0"], "{sentence}");
        answered(&mut view, "job-0", first_answer);
        leaves(&mut view, "db-0");
        leaves(&mut view, "web-0");
        settle(&mut view, &policy, ends);
        assert_eq!(record(&view).last.as_ref().unwrap().reason, reason, "{sentence}");

        let (mut view, policy) = next_drain(&view, on_node());
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["job-0"], "{sentence}");
        let mut moved = view.clone();
        leaves(&mut moved, "job-0");
        assert_eq!(asked(&settle(&mut moved, &policy, 2)), ["db-0", "web-0"], "{sentence}: it has left");

        // Another end says nothing about it.
        view.nodes.get_mut("a").unwrap().facts.hold = Some(Hold::default());
        settle(&mut view, &policy, 3);
        assert_eq!(record(&view).last.as_ref().unwrap().reason, "Held", "{sentence}");
        let (mut view, policy) = next_drain(&view, on_node());
        assert_eq!(asked(&settle(&mut view, &policy, 1)), ["job-0"], "{sentence}: in the third attempt too");
    }
}

/// A budget lets such pods go one after the other.
#[test]
fn pod_that_its_budget_refuses_is_not_remembered_where_the_denial_of_another_one_ends_the_drain_early() {
    for (sentence, denied_since, ends, remembered) in [
        ("a minute after the denial", 1, 61, vec!["job-0"]),
        ("at the deadline, for which the budget has refused it", 1790, 1800, vec!["job-0", "web-0"]),
    ] {
        let on_node = ["job-0", "web-0"].map(|name| pod_of("app", name)).to_vec();
        let (mut view, policy) = drain_of(json!({}), on_node, vec![]);
        settle(&mut view, &policy, 1);
        let denied = Blocked { denied_since: Some(t(denied_since)), ..answer(None, denied_since, false) };
        let refused = answer(Some("shop/web"), 1, false);
        view.nodes.get_mut("a").unwrap().blocked = [("job-0".to_owned(), denied), ("web-0".to_owned(), refused)].into();
        settle(&mut view, &policy, ends);
        assert_eq!(record(&view).last.as_ref().unwrap().reason, "DrainRefused", "{sentence}");
        assert_eq!(record(&view).drain_blockers, remembered, "{sentence}");
    }
}

/// The template of its owner names the node.
#[test]
fn pods_of_an_owner_whose_pods_came_back_are_evicted_first_and_alone_in_the_next_attempt() {
    let pinned = |name: &str| PodFacts { controller_uid: Some("pin".into()), ..pod_of("pin", name) };
    let web = || pod_of("web", "web-0");
    let (mut view, policy) = drain_of(json!({}), vec![pinned("pin-0"), web()], vec![]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)), ["pin-0", "web-0"]);
    for (second, name) in [(2, "pin-1"), (3, "pin-2"), (4, "pin-3")] {
        view.nodes.get_mut("a").unwrap().pods = Some(vec![pinned(name)]);
        settle(&mut view, &policy, second);
    }
    assert_eq!(record(&view).last.as_ref().unwrap().reason, "PodsReturn");

    let (mut view, policy) = next_drain(&view, vec![pinned("pin-3"), web()]);
    assert_eq!(asked(&settle(&mut view, &policy, 1)), ["pin-3"]);
    let mut leaving = PodFacts { terminating: true, ends_by: Some(t(30)), ..pinned("pin-3") };
    for (second, name) in [(2, "pin-4"), (3, "pin-5")] {
        view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving, pinned(name), web()]);
        assert_eq!(asked(&settle(&mut view, &policy, second)), [name]);
        leaving = PodFacts { terminating: true, ends_by: Some(t(30)), ..pinned(name) };
    }
    view.nodes.get_mut("a").unwrap().pods = Some(vec![leaving, pinned("pin-6"), web()]);
    settle(&mut view, &policy, 4);
    assert_eq!(record(&view).last.as_ref().unwrap().reason, "PodsReturn");
    assert_eq!(record(&view).drain_blockers, ["pin"]);
}
