//! Nodes: shutdown, reboot, power, deletion, and the rights of a kubelet.

use super::*;

#[test]
fn pod_deleted_by_force_is_killed_at_once() {
    on_a_node("grace", async |bed| {
        let deaf = "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done";
        bed.pod("forced", json!({"terminationGracePeriodSeconds": 600, "containers": [shell(deaf)]})).await;
        bed.logged("forced", "up").await;
        bed.api::<Pod>().delete("forced", &DeleteParams::default().grace_period(0)).await.unwrap();
        until("its process is gone", async || bed.kubelet.processes().is_empty().then_some(())).await;
    });
}

#[test]
fn graceful_reboot_ends_pods_and_changes_boot_id() {
    on_a_node("reboot", async |bed| {
        let polite = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.05; done";
        let critical = json!({"priorityClassName": "system-node-critical", "containers": [shell(polite)]});
        bed.pod("critical", critical).await;
        bed.pod("process", json!({"containers": [shell(polite)]})).await;
        let failing = polite.replace("exit 0", "exit 1");
        bed.pod("failing", json!({"containers": [shell(&failing)]})).await;
        bed.logged("failing", "up").await;
        bed.pod("pretended", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        bed.logged("critical", "up").await;
        bed.logged("process", "up").await;
        bed.see("pretended", "it is ready", is_ready).await;

        bed.power.send_replace(machine_state(Power::ShuttingDown, 1));
        bed.released.notified().await;
        bed.node("the node says that it shuts down", |n| {
            node_condition(n, "Ready") == Some(("False".to_owned(), "node is shutting down".to_owned()))
        })
        .await;
        for name in ["critical", "process", "pretended", "failing"] {
            let ended = if name == "failing" { "Failed" } else { "Succeeded" };
            let pod = bed.see(name, "it has ended", |p| phase(p) == ended).await;
            assert_eq!(condition(&pod, "Ready").as_deref(), Some("False"));
            assert_eq!(condition(&pod, "DisruptionTarget").as_deref(), Some("True"));
            assert_eq!(pod.status.unwrap().reason.as_deref(), (ended == "Failed").then_some("Terminated"));
        }
        assert!(bed.log("process", "c").ends_with("asked\n"));
        bed.pod("late", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        let pod = bed.see("late", "it is refused", |p| phase(p) == "Failed").await;
        assert_eq!(pod.status.unwrap().reason.as_deref(), Some("NodeShutdown"));

        bed.power.send_replace(machine_state(Power::Down, 1));
        until("nothing runs", async || bed.kubelet.processes().is_empty().then_some(())).await;
        bed.pod("next", json!({"containers": [shell("echo up; sleep 100")]})).await;
        bed.power.send_replace(machine_state(Power::Up, 2));
        let node = bed
            .node("the node is back in its new boot", |n| {
                let info = n.status.as_ref().and_then(|s| s.node_info.as_ref());
                info.is_some_and(|i| i.boot_id == "boot-2")
                    && node_condition(n, "Ready").is_some_and(|(status, _)| status == "True")
            })
            .await;
        assert_eq!(node.status.unwrap().node_info.unwrap().os_image, "Bottlerocket OS 1.20.2");
        bed.see("next", "a pod bound meanwhile runs", is_ready).await;
        assert_eq!(phase(&bed.api::<Pod>().get("process").await.unwrap()), "Succeeded");
        assert_eq!(bed.kubelet.processes().len(), 1);
    });
}

#[test]
fn node_of_paused_kubelet_is_unknown_until_resumed() {
    on_a_node("hangs", async |bed| {
        bed.pod("p", json!({"containers": [{"name": "c", "image": "pause"}]})).await;
        bed.see("p", "it is ready", is_ready).await;
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
        let lease = until("a lease", async || leases.get_opt(&bed.node).await.unwrap()).await;
        assert_eq!(lease.metadata.owner_references.unwrap()[0].kind, "Node");
        bed.kubelet.pause();
        bed.node("it is unknown", |n| node_condition(n, "Ready").is_some_and(|(status, _)| status == "Unknown")).await;
        bed.see("p", "its pod is not ready", |p| !is_ready(p)).await;
        bed.kubelet.resume();
        bed.node("it is ready", |n| node_condition(n, "Ready").is_some_and(|(status, _)| status == "True")).await;
        bed.see("p", "its pod is ready again", is_ready).await;
    });
}

#[test]
fn deleted_node_is_recreated_only_when_kubelet_registers() {
    on_a_node("deleted", async |bed| {
        let nodes: Api<Node> = Api::all(bed.client.clone());
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
        let first = bed.node("it stands", |_| true).await;
        until("a lease", async || leases.get_opt(&bed.node).await.unwrap()).await;
        nodes.delete(&bed.node, &DeleteParams::default()).await.unwrap();
        until("its lease is collected", async || leases.get_opt(&bed.node).await.unwrap().is_none().then_some(()))
            .await;
        assert!(nodes.get_opt(&bed.node).await.unwrap().is_none());
        bed.kubelet.register().await.unwrap();
        let second = bed.node("it stands", |_| true).await;
        assert_ne!(first.metadata.uid, second.metadata.uid);
        assert_eq!(second.metadata.labels.unwrap()["test"], "deleted");
    });
}

#[test]
fn kubelet_has_only_node_permissions() {
    on_a_node("restricted", async |bed| {
        let refused = |error: kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
        let other: Node = object(json!({"metadata": {"name": "node-of-another"}}));
        let nodes: Api<Node> = Api::all(bed.client.clone());
        nodes.create(&PostParams::default(), &other).await.unwrap();
        let own: Api<Node> = Api::all(bed.node_client.clone());
        let patch = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
        assert!(refused(own.patch("node-of-another", &PatchParams::default(), &patch).await.unwrap_err()));
        assert!(own.patch(&bed.node, &PatchParams::default(), &patch).await.is_ok());
        let _: Secret = bed.create(json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}})).await;
        let secrets: Api<Secret> = Api::namespaced(bed.node_client.clone(), &bed.namespace);
        assert!(refused(secrets.get("s").await.unwrap_err()));
        let all: Api<Pod> = Api::all(bed.node_client.clone());
        assert!(refused(all.list(&ListParams::default()).await.unwrap_err()));
        nodes.delete("node-of-another", &DeleteParams::default()).await.unwrap();
    });
}

#[test]
fn daemon_set_pod_recovers_from_power_loss_in_apiserver_outage() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut control_plane = ControlPlane::start(Options::default()).await.unwrap();
        let client = control_plane.client();
        let root = control_plane.dir().join("h");
        let version = semver::Version::new(1, 20, 0);
        let host = Host::start(HostOptions::new("node-1", &root, version, Releases::default())).await.unwrap();
        let addresses = Addresses::claim().unwrap();
        let mut options = kubelet_options(&control_plane, "node-1", host.machine(), addresses.node(1));
        options.images = Images::new().map("sh:1", "/bin/sh");
        let kubelet = Kubelet::start(options).await.unwrap();
        let mut container = shell("trap 'exit 0' TERM; test -S $SOCKET && cat $BOOT; while :; do sleep 0.05; done");
        container["env"] = json!([
            {"name": "SOCKET", "value": "/run/api.sock"},
            {"name": "BOOT", "value": "/proc/sys/kernel/random/boot_id"},
        ]);
        container["volumeMounts"] = json!([{"name": "socket", "mountPath": "/run/api.sock"}]);
        let template = json!({
            "metadata": {"labels": {"app": "agent"}},
            "spec": {
                "priorityClassName": "system-node-critical",
                "containers": [container],
                "volumes": [{"name": "socket", "hostPath": {"path": "/run/api.sock", "type": "Socket"}}],
            },
        });
        let daemon = json!({
            "metadata": {"name": "agent"},
            "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": template},
        });
        let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), "kube-system");
        daemons.create(&PostParams::default(), &object(daemon)).await.unwrap();
        // The daemon runs as one ready pod whose process has seen the socket and the host's current boot.
        let runs = async || {
            let boot = host.snapshot().boot_id;
            let api: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
            let pods = api.list(&ListParams::default()).await.ok()?.items;
            let live: Vec<&Pod> = pods.iter().filter(|p| is_ready(p)).collect();
            let process = kubelet.processes().into_iter().next()?;
            let log = kubelet.log_file("kube-system", &process.pod, "c")?;
            let last = std::fs::read_to_string(log).ok()?.lines().last()?.to_owned();
            let name = (live.len() == 1).then(|| live[0].metadata.name.clone())??;
            (last == boot && name == process.pod).then_some(name)
        };
        let pod = until("the daemon runs", runs).await;
        control_plane.kill_apiserver().await.unwrap();
        let boot = host.snapshot().boot_id;
        host.power_off();
        until("nothing runs", async || kubelet.processes().is_empty().then_some(())).await;
        host.power_on();
        host.booted_after(&boot).await;
        control_plane.restart_apiserver().await.unwrap();
        assert_eq!(until("the same pod runs in the new boot", runs).await, pod);
        kubelet.stop().await;
        control_plane.stop().await.unwrap();
    });
}
