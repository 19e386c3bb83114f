use super::*;
use crate::preflight::tests::cluster_with;

fn options() -> InstallOptions {
    let timeout = models::duration::Duration::from_secs(0);
    InstallOptions { registry: None, tag: None, enable: false, dry_run: false, timeout }
}

#[test]
fn definitions_come_first_and_policy_last() {
    let objects = objects(&options()).unwrap();
    assert!(is_definition(&objects[0]) && is_policy(objects.last().unwrap()));
    assert_eq!(objects, deploy::objects(&Options::default()).unwrap(), "the same as the manifests");
}

#[test]
fn deployment_runs_once_all_its_pods_are_of_the_applied_version() {
    let exceeded =
        json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "late"}]);
    let created = json!([{"type": "Progressing", "status": "True", "reason": "NewReplicaSetCreated"}]);
    let denial = "pods \"a\" is forbidden: exceeded quota: b";
    let refused = json!([
        exceeded[0], {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": denial}
    ]);
    let refuses = json!([created[0], refused[1]]);
    let waits = |reason: &str| Rollout::Waits(reason.to_owned());
    let none = json!([]);
    let of = |status: Value| -> Deployment {
        let spec = json!({"replicas": 2, "selector": {}, "template": {}});
        serde_json::from_value(json!({"metadata": {"generation": 2}, "spec": spec, "status": status})).unwrap()
    };
    let late = Rollout::Failed("late".to_owned());
    for (sentence, observed, [all, updated, available], conditions, expected) in [
        ("an unseen change", 1, [2, 2, 2], &none, waits("the change is not observed yet")),
        ("new pods hang beside earlier ones", 2, [3, 1, 2], &created, waits("1 of 2 pods updated")),
        ("all new pods hang", 2, [3, 2, 1], &none, waits("1 pods of an earlier version left")),
        ("new pods that are not available", 2, [2, 2, 1], &none, waits("1 of 2 pods available")),
        ("Kubernetes has waited for long enough", 2, [3, 1, 2], &exceeded, late),
        ("pods are refused", 2, [0; 3], &refuses, waits(&format!("0 of 2 pods updated: {denial}"))),
        ("pods are refused for long", 2, [0; 3], &refused, Rollout::Failed(format!("late: {denial}"))),
        ("all pods run", 2, [2, 2, 2], &none, Rollout::Complete),
    ] {
        let deployment = of(json!({"observedGeneration": observed, "replicas": all, "updatedReplicas": updated,
            "availableReplicas": available, "conditions": conditions}));
        assert_eq!(rollout(&deployment), expected, "{sentence}");
    }
    assert_eq!(rollout(&of(json!({}))), waits("the change is not observed yet"), "no status");
}

#[test]
fn failure_of_before_ends_no_wait_that_changes_nothing() {
    let before = Before { time: "2026-01-01T00:10:00Z".parse().unwrap(), generations: Vec::new() };
    for (sentence, generation, reason, time, expected) in [
        ("given up before, and applied without a change", Some(2), GIVEN_UP, "2026-01-01T00:05:00Z", false),
        ("given up before the same failed again", Some(2), GIVEN_UP, "2026-01-01T00:15:00Z", true),
        ("changed, and given up", Some(1), GIVEN_UP, "2026-01-01T00:15:00Z", true),
        ("created, and given up", None, GIVEN_UP, "2026-01-01T00:15:00Z", true),
        ("changed, and under way", Some(1), "ReplicaSetUpdated", "2026-01-01T00:15:00Z", false),
    ] {
        let condition = json!({"type": "Progressing", "status": "False", "reason": reason, "lastUpdateTime": time});
        let deployment = json!({
            "metadata": {"generation": 2}, "spec": {"selector": {}, "template": {}}, "status": {"conditions": [condition]},
        });
        let deployment: Deployment = serde_json::from_value(deployment).unwrap();
        assert_eq!(before.is_given_up_since(generation, Some(&deployment)), expected, "{sentence}");
    }
    assert!(!before.is_given_up_since(None, None));
}

#[test]
fn agents_have_a_time_of_their_own_within_the_limit() {
    let seconds = Duration::from_secs;
    for (others_run, limit, expected) in [(5, 300, 35), (290, 300, 300), (5, 10, 10)] {
        assert_eq!(agents_until(seconds(others_run), seconds(limit)), seconds(expected), "{others_run} of {limit}");
    }
}

#[test]
fn agents_are_counted_as_running_where_they_are_updated_and_ready() {
    for (sentence, observed, updated, ready, expected) in [
        ("a change that its controller has not seen", 1, 3, 3, Some("the change is not observed yet")),
        ("earlier ones run", 2, 1, 3, Some("of 3 nodes, updated on 1, Ready on 3")),
        ("one node is down", 2, 3, 2, Some("of 3 nodes, updated on 3, Ready on 2")),
        ("all run", 2, 3, 3, None),
    ] {
        let status = json!({
            "observedGeneration": observed, "desiredNumberScheduled": 3, "updatedNumberScheduled": updated,
            "numberReady": ready, "currentNumberScheduled": 3, "numberMisscheduled": 0,
        });
        let spec = json!({"selector": {}, "template": {}});
        let set = json!({"metadata": {"generation": 2}, "spec": spec, "status": status});
        let set: DaemonSet = serde_json::from_value(set).unwrap();
        assert_eq!(agents_of(&set), (3, expected.map(str::to_owned)), "{sentence}");
    }
}

#[test]
fn nodes_that_are_not_ready_hold_up_the_agents_of_others_where_they_use_up_what_may_be_unavailable() {
    for (sentence, most, nodes, updated, away, expected) in [
        ("one of a small fleet", json!("10%"), 3, 1, 1, true),
        ("one of a fleet in which two may be", json!("10%"), 11, 1, 1, false),
        ("two of it", json!("10%"), 11, 1, 2, true),
        ("none", json!("10%"), 3, 1, 0, false),
        ("one, and all agents are replaced", json!("10%"), 3, 3, 1, false),
        ("one where two may be", json!(2), 3, 1, 1, false),
        ("one where Kubernetes has its default", Value::Null, 3, 1, 1, true),
    ] {
        let status = json!({
            "desiredNumberScheduled": nodes, "updatedNumberScheduled": updated,
            "numberReady": 0, "currentNumberScheduled": nodes, "numberMisscheduled": 0,
        });
        let strategy = json!({"rollingUpdate": {"maxUnavailable": most}});
        let spec = json!({"selector": {}, "template": {}, "updateStrategy": strategy});
        let set: DaemonSet = serde_json::from_value(json!({"metadata": {}, "spec": spec, "status": status})).unwrap();
        assert_eq!(holds_up_agents(&set, away), expected, "{sentence}");
    }
}

#[tokio::test]
async fn nothing_is_applied_where_operator_or_tag_is_of_another_version() {
    for (image, tag, refusal) in [
        ("brupop-controller:v9.0.0", None, "the operator cannot be installed, and nothing was changed:"),
        ("brupop-controller", Some("v9.0.0"), "--tag v9.0.0 is of another version"),
        ("brupop-controller", Some("dev"), "cannot apply Namespace"),
    ] {
        let options = InstallOptions { tag: tag.map(str::to_owned), ..options() };
        let client = cluster_with(image).client();
        let error = install(client, names::SYSTEM_NAMESPACE, &options).await.unwrap_err().to_string();
        assert!(error.starts_with(refusal), "{image}, {tag:?}: {error}");
    }
}

#[tokio::test]
async fn dry_run_shows_that_a_policy_which_exists_stays_as_it_is() {
    let objects = objects(&options()).unwrap();
    let policy = "BottlerocketUpdateOperator brupop-system/default";
    for (exists, expected) in [(false, "(dry run)"), (true, "exists and stays as it is")] {
        let server = cluster_with("brupop-controller");
        if exists {
            let path = "/apis/brupop.bottlerocket.aws/v1/namespaces/brupop-system/bottlerocketupdateoperators/default";
            server.add(path, objects.last().unwrap().clone());
        }
        let lines = listed(&server.client(), &objects).await.unwrap();
        assert_eq!(lines.last().unwrap(), &format!("{policy} {expected}"));
        assert!(lines.iter().rev().skip(1).all(|line| line.ends_with(" (dry run)")), "{lines:?}");
    }
}

#[test]
fn images_and_switch_follow_options() {
    let options = InstallOptions {
        registry: Some("registry.example/brupop".to_owned()),
        tag: Some("v9".to_owned()),
        enable: true,
        ..options()
    };
    let objects = objects(&options).unwrap();
    let text = serde_json::to_string(&objects).unwrap();
    assert_eq!(text.matches("\"image\":\"registry.example/brupop/").count(), text.matches("\"image\":").count());
    assert!(text.contains(":v9\""));
    assert_eq!(objects.last().unwrap()["spec"]["enabled"], true);
}
