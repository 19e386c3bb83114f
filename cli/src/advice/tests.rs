use planner::wait::{gone, not_ready};
use serde_json::{Value, json};

use super::*;
use crate::cluster::testing::{cluster, idle, node, now, operator, progress, shadow};
use crate::shell::testing::with_context;

/// The shadow of a node that runs 1.20.5.
fn updated(name: &str, progress: &Value) -> Value {
    let mut status = idle();
    (status["currentVersion"], status["progress"]) = (json!("1.20.5"), progress.clone());
    shadow(name, status)
}

/// A rollout of it whose updates have ended so, each as a reason names it.
fn rollout(ends: &[&str]) -> Value {
    let end = |end: &&str| {
        let (node, reason) = end.trim_end_matches(')').split_once(" (").unwrap();
        let proof = if reason == "DrainTimedOut" { "Free" } else { "Unproven" };
        json!({"node": node, "proof": proof, "reason": reason})
    };
    let row: Vec<Value> = ends.iter().map(end).collect();
    let nodes: Vec<&Value> = row.iter().filter(|end| end["proof"] != "Free").collect();
    json!({"version": "1.20.5", "started": "2026-01-01T00:00:00Z", "stepsPassed": 0, "ledger": {"nodes": nodes, "row": row}})
}

#[test]
fn command_for_the_default_namespace_names_it_where_another_one_was_chosen() {
    assert_eq!(command(names::SYSTEM_NAMESPACE, "uninstall"), "kubectl brupop uninstall");
    crate::shell::keep([], Some("ops"));
    assert_eq!(command(names::SYSTEM_NAMESPACE, "uninstall"), "kubectl brupop uninstall -n brupop-system");
    assert_eq!(command("ops", "status"), "kubectl brupop status -n ops");
    crate::shell::keep([], None);
}

#[test]
fn logs_are_those_of_all_replicas() {
    let cluster = cluster(Some(operator(&json!({}), &json!({}))), vec![], vec![]);
    let logs = "kubectl logs -n brupop-system -l app.kubernetes.io/component=brupop-controller --prefix --tail=200";
    assert_eq!(cluster.commands("a", &Wait::NoShadow), [logs]);
    assert_eq!(cluster.recorded_commands("a", "ActionFails"), [logs]);
    // brupop-aws has one replica.
    let of_one = |line: &&str| {
        let one = ["deployment/brupop-controller", "deployment/brupop-apiserver", "logs deploy/"];
        line.contains(" logs") && one.iter().any(|one| line.contains(one))
    };
    for folder in ["docs/runbook", "cli/src", "cli/src/doctor", "cli/src/swap", "cli/src/uninstall"] {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        let paths = std::fs::read_dir(format!("{root}/{folder}")).unwrap().map(|entry| entry.unwrap().path());
        for path in paths.filter(|path| path.is_file()) {
            let page = std::fs::read_to_string(&path).unwrap();
            assert_eq!(page.lines().find(of_one), None, "{}", path.display());
        }
    }
}

/// A user who copies a block has not read what is below it.
#[test]
fn blocks_on_pages_of_alerts_let_no_rollout_go_on_or_stop() {
    let changes = ["approve", "pause", "resume", "retry", "release", "quarantine"];
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbook")).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("Brupop")) {
            continue;
        }
        let page = std::fs::read_to_string(&path).unwrap();
        for line in page.split("```").skip(1).step_by(2).flat_map(str::lines) {
            let command = line.trim().strip_prefix("kubectl brupop ").and_then(|rest| rest.split(' ').next());
            assert!(command.is_none_or(|command| !changes.contains(&command)), "{}: {line}", path.display());
        }
    }
}

/// A user copies a block whole: a command that changes something comes after its condition, and alone.
#[test]
fn block_of_the_runbook_that_reads_changes_nothing() {
    let verbs = ["apply", "cordon", "delete", "drain", "edit", "label", "patch", "scale", "uncordon"];
    let of_plugin = ["approve", "hold", "pause", "pin", "quarantine", "release", "resume", "retry", "unhold"];
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/runbook")).unwrap() {
        let path = entry.unwrap().path();
        let page = std::fs::read_to_string(&path).unwrap();
        for block in page.split("```").skip(1).step_by(2) {
            let commands = block.lines().filter_map(|line| line.trim().strip_prefix("kubectl "));
            let (mut reads, mut writes, mut requests) = (0_usize, 0_usize, 0_usize);
            for command in commands {
                let mut words = command.split(' ');
                let verb = words.next().unwrap_or_default();
                let request = words.next().filter(|_| verb == "brupop" && !command.contains("--dry-run"));
                if verbs.contains(&verb) {
                    writes += 1;
                } else if request.is_some_and(|request| of_plugin.contains(&request)) {
                    requests += 1;
                } else {
                    reads += 1;
                }
            }
            let (at, is_one) = (path.display(), writes + requests.min(1) <= 1);
            assert!(is_one && (reads == 0 || writes + requests == 0), "{at}:{block}");
        }
    }
}

#[test]
fn commands_in_texts_of_the_controller_are_for_the_chosen_cluster_and_namespace() {
    let mut cluster = cluster(None, vec![], vec![]);
    cluster.namespace = "ops".to_owned();
    let (approval, nodes) = ("7/1/unproven".to_owned(), vec!["b (HookTimedOut)".to_owned()]);
    let earlier = Wait::EarlierOperatorRunning { pods: vec!["a/b".to_owned()], count: 1 };
    for (wait, end) in [
        (Wait::StepUnproven { step: 1, approval, nodes }, "by kubectl brupop retry NODE -n ops --context c"),
        (Wait::StepFailed { step: 1, nodes: vec![] }, "nodes have failed on the version"),
        (
            Wait::Braked { count: 3, fallen: 0, nodes: vec![], until: None, trial: Some("a".to_owned()) },
            "a is tried alone",
        ),
        (Wait::HostArmedByOther, "let the operator disarm it"),
        (earlier, ": kubectl brupop takeover preflight -n ops --context c"),
        (Wait::AgentNotReady, "app.kubernetes.io/component=brupop-agent --context c"),
    ] {
        let text = with_context("c", || cluster.filled(&wait.to_string(), "a"));
        assert!(text.ends_with(end), "{text}");
    }
}

#[test]
fn command_that_goes_on_without_evidence_says_so_and_comes_last() {
    let known = json!({"version": "1.20.5", "variant": "aws-k8s-1.37", "arch": "x86_64", "firstSeen": "2026-01-01T00:00:00Z",
        "failed": ["b"], "quarantined": {"reason": "BootFellBack", "nodes": ["b"], "since": "2026-01-01T00:00:00Z"}});
    let ends = "b (HookTimedOut)";
    let operator = operator(&json!({}), &json!({"versions": [known], "activeRollouts": [rollout(&[ends])]}));
    let (shadows, nodes) = (vec![updated("b", &Value::Null)], ["a", "b"].map(|name| node(name, &json!({}))).to_vec());
    let cluster = cluster(Some(operator), shadows, nodes);
    let version: semver::Version = "1.20.5".parse().unwrap();
    let (approval, nodes) = ("7/1".to_owned(), vec![ends.to_owned()]);
    let braked = |until| Wait::Braked { count: 3, fallen: 0, nodes: nodes.clone(), until, trial: None };
    let (skip, resume) = ("brupop quarantine 1.20.5", "brupop resume --failures 1.20.5");
    let (unproven, accept) =
        (Wait::StepUnproven { step: 1, approval, nodes: nodes.clone() }, "brupop approve 1 --rollout 7 --unproven");
    for (wait, expected) in [
        (Wait::Frozen { version: version.clone() }, [skip, resume]),
        (Wait::Quarantined { version }, [skip, resume]),
        (unproven, ["brupop retry b", accept]),
        (braked(None), ["brupop retry b", resume]),
        (braked(Some(now())), [resume, ""]),
        (Wait::StepFailed { step: 1, nodes: nodes.clone() }, [resume, ""]),
        (Wait::BackOff { until: now(), reason: "x".to_owned(), unproven: None }, ["brupop retry a", ""]),
        (Wait::HostArmedByOther, ["brupop retry a", ""]),
        (Wait::Cordoned, ["uncordon a", ""]),
        (Wait::AttemptsExhausted, ["delete brs brs-a -n brupop-system", ""]),
    ] {
        let commands = cluster.commands("a", &wait);
        let expected: Vec<&str> = expected.into_iter().filter(|command| !command.is_empty()).collect();
        assert_eq!(commands.len(), expected.len(), "{wait:?}: {commands:?}");
        for (command, expected) in commands.iter().zip(expected) {
            let (before, note) = command.split_once("  # ").unwrap_or_default();
            assert!(before == format!("kubectl {expected}") && !note.is_empty(), "{wait:?}: {commands:?}");
        }
    }
}

#[test]
fn command_about_nodes_without_a_proof_is_one_by_which_a_node_of_the_rollout_may_prove_the_version() {
    let hold = |name: &str, value: &str| node(name, &json!({names::HOLD_ANNOTATION: value}));
    let over = hold("e", "until=2020-01-01T00:00:00Z reason=audit");
    let mut nodes = vec![hold("d", "the auditors are here"), over];
    nodes.extend(["b", "f", "g", "h"].map(|name| node(name, &json!({}))));
    let mut away = progress("Releasing", 1);
    (away["permitIssued"], away["disruptive"]) = (json!(true), json!(false));
    let none = Value::Null;
    let on_version = [("b", &none), ("d", &none), ("e", &none), ("f", &away), ("h", &progress("Verifying", 2))];
    let mut shadows = on_version.map(|(name, progress)| updated(name, progress)).to_vec();
    shadows.push(shadow("g", idle()));
    let (retry, unhold) = (&["kubectl brupop retry b  #"][..], &["kubectl brupop unhold d  #"][..]);
    let returns = &["kubectl describe node f", "kubectl delete node f  #"][..];
    let mut cluster = cluster(None, shadows, nodes);
    for (sentence, ends, advised) in [
        ("its hook was silent", &["b (HookTimedOut)"][..], retry),
        ("it has fallen", &["b (NotReady)"], &[]),
        ("it is gone", &["c (HookTimedOut)"], &[]),
        ("one has fallen, and one is gone", &["b (NotReady)", "c (HookTimedOut)"], &[]),
        ("beside one that has fallen", &["c (NotReady)", "b (HookTimedOut)"], retry),
        ("it is held", &["d (Held)"], unhold),
        ("it has fallen, and is held", &["d (NotReady)"], unhold),
        ("its hold is over", &["e (HookTimedOut)"], &["kubectl brupop retry e  #"]),
        ("beside one that is held", &["d (Held)", "b (HookTimedOut)"], retry),
        ("one is held, and one is gone", &["c (HookTimedOut)", "d (Held)"], unhold),
        ("it is not back from its reboot", &["f (RebootTimedOut)"], returns),
        ("beside one that is not back", &["f (RebootTimedOut)", "b (HookTimedOut)"], retry),
        ("it has come back on its previous version", &["g (RebootTimedOut)"], &[]),
        ("it is being verified", &["h (HookTimedOut)"], &[]),
        ("it has never run the version", &["b (DrainTimedOut)"], &[]),
        ("before others that the reason names", &["b (HookTimedOut)", "g (DrainTimedOut)", "h (DrainTimedOut)"], retry),
    ] {
        let status = json!({"activeRollouts": [rollout(ends)]});
        cluster.add_operator(&serde_json::from_value(operator(&json!({}), &status)).unwrap());
        let nodes: Vec<String> = ends.iter().rev().take(2).map(|&end| end.to_owned()).collect();
        let unproven = Wait::StepUnproven { step: 1, approval: "7/1/unproven".to_owned(), nodes: nodes.clone() };
        for wait in [unproven, Wait::Braked { count: 3, fallen: 0, nodes, until: None, trial: None }] {
            let commands = cluster.commands("a", &wait);
            let (_, others) = commands.split_last().unwrap();
            let are = others.iter().zip(advised).all(|(command, expected)| command.starts_with(expected));
            assert!(are && others.len() == advised.len(), "{sentence}: {commands:?}");
        }
    }
}

#[test]
fn command_about_another_node_ends_with_the_name_of_a_node_that_exists() {
    let nodes = ["a", "b"].map(|name| node(name, &json!({}))).to_vec();
    let cluster = cluster(Some(operator(&json!({}), &json!({}))), vec![], nodes);
    let canary = |nodes: &[String]| Wait::CanaryStep {
        step: 1,
        until: None,
        approval: None,
        nodes: nodes.to_vec(),
        none_runs: false,
    };
    let first = |node: String| Wait::FirstNode { node: Some(node), not_back: None };
    let c = || gone("c", now());
    let unwell = Wait::ClusterUnwell { ill: 2, compared: 3, nodes: vec!["c".into(), "b".into()] };
    let unhealthy = Wait::UnhealthyNodes { count: 2, limit: 1, nodes: vec!["c".into(), "b".into()] };
    for (sentence, wait, expected) in [
        ("a canary is under way", canary(&["b".into()]), Some("b")),
        ("a canary is not Ready", canary(&[not_ready("b")]), Some("b")),
        ("the Node of a canary is gone", canary(&[c()]), None),
        ("beside another canary", canary(&[c(), not_ready("b")]), Some("b")),
        ("the first node is under way", first("b".into()), Some("b")),
        ("the Node of the first one is gone", first(c()), None),
        ("nodes are ill, of which one is gone", unwell, Some("b")),
        ("nodes are not Ready, of which one is gone", unhealthy, Some("b")),
        ("a node of the control plane", Wait::ControlPlaneBusy { node: "b".into() }, Some("b")),
        ("one that is gone", Wait::ControlPlaneBusy { node: "c".into() }, None),
        ("a node of another zone", Wait::ZoneBusy { zone: "z".into(), node: "b".into() }, Some("b")),
        ("a node of its group", Wait::GroupFull { group: "g".into(), node: Some("b".into()) }, Some("b")),
    ] {
        let expected: Vec<String> = expected.map(|name| format!("kubectl describe node {name}")).into_iter().collect();
        assert_eq!(cluster.commands("a", &wait), expected, "{sentence}");
    }
    let not_back = Wait::FirstNode { node: None, not_back: Some("b".to_owned()) };
    let expected = ["kubectl describe node b", "kubectl delete node b  # if it is gone for good"];
    assert_eq!(cluster.commands("a", &not_back), expected);
}
