//! Pods: their processes, volumes, environment, probes and restarts.

use super::*;

#[test]
fn deployment_of_unmapped_image_becomes_ready_and_is_deleted() {
    on_a_node("pretend", async |bed| {
        let labels = json!({"app": "pause"});
        let spec = json!({
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": {"test": "pretend"},
                    "containers": [{"name": "pause", "image": "registry.k8s.io/pause:3.10"}],
                },
            },
        });
        let _: Deployment = bed.create(json!({"metadata": {"name": "pause"}, "spec": spec})).await;
        let deployments: Api<Deployment> = bed.api();
        until("three ready pods", async || {
            let status = deployments.get("pause").await.unwrap().status.unwrap_or_default();
            (status.ready_replicas == Some(3)).then_some(())
        })
        .await;
        let pods = bed.api::<Pod>().list(&ListParams::default()).await.unwrap();
        for pod in &pods {
            assert!(pod.status.as_ref().unwrap().pod_ip.as_deref().unwrap().starts_with("10."));
        }
        assert!(bed.kubelet.processes().is_empty());
        deployments.delete("pause", &DeleteParams::background()).await.unwrap();
        for pod in pods {
            bed.gone(pod.metadata.name.as_deref().unwrap()).await;
        }

        // Behaviour by annotation.
        let containers = json!([{"name": "c", "image": "pause"}]);
        let _: Pod = bed
            .create(json!({
                "metadata": {"name": "odd", "annotations": {"sim/never-ready": "true", "sim/stop-after": "never"}},
                "spec": {"nodeName": bed.node, "containers": containers},
            }))
            .await;
        bed.see("odd", "it runs and is not ready", |p| phase(p) == "Running" && !is_ready(p)).await;
        let healthy = json!({"metadata": {"annotations": {"sim/never-ready": null, "sim/restarts": "4"}}});
        bed.api::<Pod>().patch("odd", &PatchParams::default(), &Patch::Merge(healthy)).await.unwrap();
        bed.see("odd", "it becomes ready after four restarts", |p| is_ready(p) && restarts(p) == 4).await;
        bed.api::<Pod>().delete("odd", &DeleteParams::default().grace_period(1)).await.unwrap();
        let forced = DeleteParams::default().grace_period(0);
        bed.see("odd", "it terminates and does not end", |p| p.metadata.deletion_timestamp.is_some()).await;
        bed.api::<Pod>().delete("odd", &forced).await.unwrap();
        bed.gone("odd").await;
    });
}

#[test]
fn process_has_environment_and_volumes_of_its_pod() {
    on_a_node("sees", async |bed| {
        let _: ConfigMap = bed.create(json!({"metadata": {"name": "config"}, "data": {"word": "first"}})).await;
        let _: Secret = bed.create(json!({"metadata": {"name": "secret"}, "stringData": {"key": "hush"}})).await;
        let socket = bed.root.join("run/api.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut container = shell(
            "echo name=$NAME ns=$NS node=$NODE label=$LABEL ip=$POD_IP at=$AT secret=$SECRET none=[$NONE]; \
             echo arg=$0; echo kube=$KUBECONFIG proxy=$HTTPS_PROXY; echo boot=$(cat $BOOT); \
             test -S $SOCKET && echo socket; test -d $OPTIONAL && echo optional; echo token=$(cat $TOKEN/t)=; \
             echo low=$(cat $LOW/uid); while :; do echo word=$(cat $CONFIG/word); sleep 0.1; done",
        );
        container["args"].as_array_mut().unwrap().push(json!("--x=/etc/c/word"));
        container["env"] = json!([
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "NS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "AT", "value": "$(POD_IP):80"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k", "optional": true}}},
            {"name": "BOOT", "value": "/proc/sys/kernel/random/boot_id"},
            {"name": "SOCKET", "value": "/run/api.sock"},
            {"name": "OPTIONAL", "value": "/etc/optional"},
            {"name": "TOKEN", "value": "/var/run/token"},
            {"name": "LOW", "value": "/etc/low"},
            {"name": "CONFIG", "value": "/etc/c"},
        ]);
        container["volumeMounts"] = json!([
            {"name": "config", "mountPath": "/etc/c"},
            {"name": "optional", "mountPath": "/etc/optional"},
            {"name": "socket", "mountPath": "/run/api.sock"},
            {"name": "token", "mountPath": "/var/run/token"},
            {"name": "low", "mountPath": "/etc/low"},
        ]);
        let token = json!({"serviceAccountToken": {"path": "t", "audience": "tests", "expirationSeconds": 600}});
        let spec = json!({
            "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [
                {"name": "config", "configMap": {"name": "config"}},
                {"name": "optional", "configMap": {"name": "absent", "optional": true}},
                {"name": "socket", "hostPath": {"path": "/run/api.sock", "type": "Socket"}},
                {"name": "token", "projected": {"sources": [token]}},
                {"name": "low", "downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
            ],
        });
        let pod = bed.pod("p", spec).await;
        let log = bed.logged("p", "word=first").await;
        let uid = pod.metadata.uid.clone().unwrap();
        let ready = bed.see("p", "the pod is ready", is_ready).await;
        let ip = ready.status.unwrap().pod_ip.unwrap().replacen("10.", "127.", 1);
        let node = &bed.node;
        let expected = format!("name=p ns=sees node={node} label=p ip={ip} at={ip}:80 secret=hush none=[]");
        for expected in [&expected, "boot=boot-1", "\nsocket\n", "\noptional\n", &format!("low={uid}")] {
            assert!(log.contains(expected), "{expected:?} not in {log}");
        }
        let proxy = shared().proxy.url();
        assert!(log.contains(&format!("kube= proxy={proxy}\n")), "{log}");
        let arg = log.lines().find_map(|l| l.strip_prefix("arg=--x=")).unwrap();
        assert!(arg.ends_with("/v/config/word"), "{arg}");

        // The token names its audience, account and node, and is valid for its own audience only.
        let token = log.lines().find_map(|l| l.strip_prefix("token=")).unwrap().trim_end_matches('=');
        let reviews: Api<TokenReview> = Api::all(bed.client.clone());
        let review =
            |audience: &str| object(json!({"metadata": {}, "spec": {"token": token, "audiences": [audience]}}));
        let seen = reviews.create(&PostParams::default(), &review("tests")).await.unwrap().status.unwrap();
        assert_eq!(seen.authenticated, Some(true), "{seen:?}");
        let user = seen.user.unwrap();
        assert_eq!(user.username.as_deref(), Some("system:serviceaccount:sees:default"));
        let extra = user.extra.unwrap();
        assert_eq!(extra["authentication.kubernetes.io/node-name"].join(" "), bed.node);
        assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [uid]);
        let seen = reviews.create(&PostParams::default(), &review("another")).await.unwrap().status.unwrap();
        assert_ne!(seen.authenticated, Some(true));

        let second = Patch::Merge(json!({"data": {"word": "second"}}));
        bed.api::<ConfigMap>().patch("config", &PatchParams::default(), &second).await.unwrap();
        bed.logged("p", "word=second").await;

        let processes = bed.kubelet.processes();
        assert_eq!(processes.len(), 1);
        assert_eq!((processes[0].pod.as_str(), processes[0].container.as_str()), ("p", "c"));
        bed.api::<Pod>().delete("p", &DeleteParams::default()).await.unwrap();
        bed.gone("p").await;
        assert!(bed.kubelet.processes().is_empty());
    });
}

#[test]
fn pod_with_service_account_token_gets_working_kubeconfig() {
    on_a_node("kubeconfig", async |bed| {
        let script = "cat $KUBECONFIG; echo; echo proxy=[$HTTPS_PROXY]; sleep 100";
        bed.pod("p", json!({"terminationGracePeriodSeconds": 0, "containers": [shell(script)]})).await;
        let log = bed.logged("p", "proxy=[]").await;
        let config: kube::config::Kubeconfig = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert!(config.auth_infos[0].auth_info.as_ref().unwrap().token_file.is_some());
        let config = kube::Config::from_custom_kubeconfig(config, &Default::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let refused = Api::<Secret>::namespaced(client, "kubeconfig").list(&ListParams::default()).await.unwrap_err();
        let message = refused.to_string();
        assert!(message.contains("system:serviceaccount:kubeconfig:default"), "{message}");
    });
}

#[test]
fn pod_waits_for_missing_volumes_and_environment_sources() {
    on_a_node("waits", async |bed| {
        let mut container = shell("cat $F; sleep 100");
        container["env"] = json!([
            {"name": "F", "value": "/c/word"},
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}},
        ]);
        container["volumeMounts"] = json!([{"name": "config", "mountPath": "/c"}]);
        let spec = json!({
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "config", "configMap": {"name": "late"}}],
        });
        bed.pod("p", spec).await;
        bed.see("p", "it waits for its volume", |p| waits_for(p).as_deref() == Some("ContainerCreating")).await;
        let _: ConfigMap = bed.create(json!({"metadata": {"name": "late"}, "data": {"word": "there"}})).await;
        let reason = "CreateContainerConfigError";
        bed.see("p", "it waits for its environment", |p| waits_for(p).as_deref() == Some(reason)).await;
        let _: Secret = bed.create(json!({"metadata": {"name": "late"}, "stringData": {"k": "v"}})).await;
        bed.see("p", "it runs", is_ready).await;
        bed.logged("p", "there").await;
    });
}

#[test]
fn failing_container_enters_crash_loop_back_off() {
    on_a_node("crash", async |bed| {
        bed.pod("p", json!({"terminationGracePeriodSeconds": 0, "containers": [shell("echo run; exit 3")]})).await;
        let pod = bed
            .see("p", "it backs off after three restarts", |p| {
                restarts(p) >= 3 && waits_for(p).as_deref() == Some("CrashLoopBackOff")
            })
            .await;
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 3);
        assert!(bed.log("p", "c").lines().count() >= 4);

        let once = json!({"restartPolicy": "Never", "containers": [shell("exit 0")]});
        bed.pod("once", once).await;
        bed.see("once", "it succeeds", |p| phase(p) == "Succeeded").await;
        let once = json!({"restartPolicy": "Never", "containers": [shell("kill -9 $$$$")]});
        bed.pod("killed", once).await;
        let pod = bed.see("killed", "it fails", |p| phase(p) == "Failed").await;
        let status = pod.status.unwrap().container_statuses.unwrap().remove(0);
        assert_eq!(status.state.unwrap().terminated.unwrap().exit_code, 137);
    });
}

#[test]
fn probes_control_readiness_restarts_and_service_endpoints() {
    on_a_node("probes", async |bed| {
        let http = |path: &str| json!({"path": path, "port": "web"});
        let mut container = web();
        container["startupProbe"] = json!({"tcpSocket": {"port": 8443}, "periodSeconds": 1, "failureThreshold": 30});
        container["readinessProbe"] = json!({"httpGet": http("/healthz"), "periodSeconds": 1, "failureThreshold": 1});
        let spec = |container: Value| {
            let volumes = json!([{"name": "state", "emptyDir": {}}]);
            json!({"terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes})
        };
        bed.pod("a", spec(container)).await;
        let service = json!({
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "a"}, "ports": [{"name": "web", "port": 443, "targetPort": "web"}]},
        });
        let _: Service = bed.create(service).await;
        let pod = bed.see("a", "it is ready", is_ready).await;
        let target = "web.probes.svc:443";
        until("the Service answers by name", async || through_proxy(target).await.filter(|a| a.ends_with("\r\n\r\na")))
            .await;
        assert_eq!(through_proxy("absent.probes.svc:443").await, None);
        assert_eq!(through_proxy("web.probes.svc:444").await, None);
        assert_eq!(through_proxy("127.0.0.1:1").await, None);

        let short: String = pod.metadata.uid.unwrap().chars().take(8).collect();
        let state = glob_one(&shared().control_plane.dir().join("k"), &short).join("v/state");
        std::fs::write(state.join("sick"), "").unwrap();
        bed.see("a", "it is not ready", |p| !is_ready(p)).await;
        until("the Service has no endpoint", async || through_proxy(target).await.is_none().then_some(())).await;
        std::fs::remove_file(state.join("sick")).unwrap();
        bed.see("a", "it is ready again", is_ready).await;
        until("the Service answers again", async || through_proxy(target).await).await;

        let mut container = web();
        container["livenessProbe"] = json!({"httpGet": http("/healthz"), "periodSeconds": 1, "failureThreshold": 1});
        let pod = bed.pod("b", spec(container)).await;
        bed.see("b", "it is ready", is_ready).await;
        let short: String = pod.metadata.uid.unwrap().chars().take(8).collect();
        let state = glob_one(&shared().control_plane.dir().join("k"), &short).join("v/state");
        std::fs::write(state.join("sick"), "").unwrap();
        bed.see("b", "it was restarted", |p| restarts(p) >= 1).await;

        let mut container = shell("sleep 0.3; touch $D/file; sleep 100");
        container["env"] = json!([{"name": "D", "value": "/d"}]);
        container["volumeMounts"] = json!([{"name": "state", "mountPath": "/d"}]);
        container["readinessProbe"] = json!({"exec": {"command": ["test", "-f", "/d/file"]}});
        bed.pod("c", spec(container)).await;
        bed.see("c", "a command finds it ready", is_ready).await;
    });
}
