//! Tests on the real binaries, each with its own control plane.

use std::os::unix::fs::PermissionsExt;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use super::*;

/// Ends a test that would hang; no test measures time.
const LONG: Duration = Duration::from_secs(240);

/// Waits until something is seen.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(Instant::now() < deadline, "not seen: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn node(name: &str) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(name.to_owned());
    node
}

fn config_map(name: &str) -> ConfigMap {
    let mut map = ConfigMap::default();
    map.metadata.name = Some(name.to_owned());
    map
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("no answer of the server: {other}"),
    }
}

#[tokio::test]
async fn control_plane_starts_schedules_pods_and_cleans_up() {
    let bed = ControlPlane::start(Options::default()).await.unwrap();
    let dir = bed.dir().to_owned();
    assert!(dir.as_os_str().len() < 30, "{}", dir.display());
    assert_eq!(dir.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        let data = entry.metadata().unwrap();
        if data.is_file() {
            let mode = data.permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} is {mode:o}", entry.path().display());
        }
    }

    let client = bed.client();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "37"));

    // Tokens: signed with an elliptic-curve key, for an audience.
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": ["tests"]}})).unwrap();
    let token = accounts.create_token_request("default", &PostParams::default(), &request).await.unwrap();
    assert_eq!(token.status.unwrap().token.unwrap().split('.').count(), 3);

    // The scheduler binds a pod to a ready node.
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("a")).await.unwrap();
    let ready = json!({"status": {
        "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "capacity": {"cpu": "4", "memory": "8Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady",
            "lastHeartbeatTime": jiff::Timestamp::now(), "lastTransitionTime": jiff::Timestamp::now()}],
    }});
    nodes.patch_status("a", &PatchParams::default(), &Patch::Strategic(ready)).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "p"},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]},
    }))
    .unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let bound = until("the pod on a node", async || pods.get("p").await.unwrap().spec?.node_name).await;
    assert_eq!(bound, "a");

    // A member of two groups has the rights of both; an unknown user has none.
    let two = bed.client_as("anybody", &["some", "system:masters"]).unwrap();
    Api::<Node>::all(two).list(&ListParams::default()).await.unwrap();
    let none = bed.client_as("anybody", &[]).unwrap();
    let refused = Api::<Node>::all(none).list(&ListParams::default()).await.unwrap_err();
    assert_eq!(code(&refused), 403, "{refused}");

    // kubectl, with nothing but the kubeconfig.
    let output = bed.kubectl_command().args(["get", "nodes", "-o", "name"]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "node/a\n");

    let marked = processes_of(&dir).unwrap();
    assert_eq!(marked.len(), 4, "{marked:?}");
    bed.stop().await.unwrap();
    assert!(!dir.exists());
    assert_eq!(processes_of(&dir).unwrap(), Vec::<u32>::new());
}

#[tokio::test]
async fn audit_log_records_user_request_and_preconditions_also_after_a_restart() {
    let mut bed = ControlPlane::start(Options::default()).await.unwrap();
    let mut reader = bed.audit();
    reader.read().unwrap();
    let client = bed.client();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node("a")).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    nodes.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let kubelet = bed.client_as("system:node:a", &["system:nodes"]).unwrap();
    let patch = Patch::Merge(json!({"status": {"nodeInfo": {"bootID": "x"}}}));
    Api::<Node>::all(kubelet).patch_status("a", &PatchParams::default(), &patch).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let delete = DeleteParams::default()
        .preconditions(kube::api::Preconditions { uid: Some("the-uid".to_owned()), resource_version: None });
    assert!(pods.delete("missing", &delete).await.is_err());
    assert!(pods.evict("missing", &EvictParams::default()).await.is_err());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    maps.create(&PostParams::default(), &config_map("m")).await.unwrap();

    let mut records = Vec::new();
    until("the last write", async || {
        records.extend(reader.read().unwrap());
        records.iter().any(|record| record.name == "m").then_some(())
    })
    .await;
    let find = |verb: &str, what: &str, user: &str| {
        audit::requests(&records)
            .find(|record| record.verb == verb && record.what() == what && record.user == user)
            .unwrap_or_else(|| panic!("no {verb} of {what} by {user} in {records:#?}"))
    };
    let cordon = find("patch", "nodes", "admin");
    assert_eq!(cordon.request.as_ref().unwrap()["spec"]["unschedulable"], true);
    assert_eq!(cordon.response.as_ref().unwrap()["metadata"]["name"], "a");
    assert_eq!((cordon.code, cordon.succeeded()), (200, true));
    let status = find("patch", "nodes/status", "system:node:a");
    assert_eq!((status.request.is_none(), status.response.is_none()), (true, true));
    let eviction = find("create", "pods/eviction", "admin");
    assert_eq!((eviction.code, eviction.request.is_some()), (404, true));
    assert_eq!((eviction.namespace.as_str(), eviction.name.as_str()), ("default", "missing"));
    let delete = find("delete", "pods", "admin");
    let body = delete.request.as_ref().unwrap();
    assert_eq!(body["preconditions"]["uid"], "the-uid");
    assert!(find("create", "configmaps", "admin").request.is_none());

    // The control plane's own reads and heartbeats are not recorded.
    let noise = records
        .iter()
        .find(|record| record.user.starts_with("system:kube-") && (!record.is_write() || record.resource == "leases"));
    assert_eq!(noise, None);
    // The server that follows has the same address and data, the controllers reconnect, and the audit log continues.
    let url = bed.url().to_owned();
    bed.kill_apiserver().await.unwrap();
    assert!(maps.get("m").await.is_err());
    bed.restart_apiserver().await.unwrap();
    assert_eq!(bed.url(), url);
    until("the map, by a client from before", async || maps.get("m").await.ok()).await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let later = json!({"metadata": {"name": "later"}});
    namespaces.create(&PostParams::default(), &serde_json::from_value(later).unwrap()).await.unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client, "later");
    until("the ServiceAccount of a namespace made later", async || accounts.get_opt("default").await.unwrap()).await;
    until("its creation in the log", async || {
        let records = reader.read().unwrap();
        records.iter().any(|record| record.verb == "create" && record.resource == "namespaces").then_some(())
    })
    .await;

    // A drop ends everything as well.
    let dir = bed.dir().to_owned();
    let mut pod = Command::new("sleep");
    pod.arg("1000");
    let mut pod = marked(&mut pod, &dir).spawn().unwrap();
    assert_eq!(processes_of(&dir).unwrap().len(), 5);
    drop(bed);
    assert!(!dir.exists());
    assert_eq!(processes_of(&dir).unwrap(), Vec::<u32>::new());
    assert!(!pod.wait().await.unwrap().success());
}

/// Changes one ConfigMap `times` times and returns its revision before the first change.
async fn history(maps: &Api<ConfigMap>, times: usize) -> String {
    let made = maps.create(&PostParams::default(), &config_map("h")).await.unwrap();
    for number in 0..times {
        let patch = Patch::Merge(json!({"data": {"number": number.to_string()}}));
        maps.patch("h", &PatchParams::default(), &patch).await.unwrap();
    }
    made.metadata.resource_version.unwrap()
}

async fn first_events(maps: &Api<ConfigMap>, from: &str, count: usize) -> Result<Vec<String>, u16> {
    let parameters = WatchParams::default().fields("metadata.name=h");
    let mut stream = maps.watch(&parameters, from).await.unwrap().boxed();
    let mut seen = Vec::new();
    while seen.len() < count {
        match stream.try_next().await {
            Ok(Some(WatchEvent::Modified(map))) => {
                seen.push(map.data.unwrap_or_default()["number"].clone());
            }
            Ok(Some(WatchEvent::Error(status))) => return Err(status.code),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    Ok(seen)
}

#[tokio::test]
async fn without_watch_cache_all_events_are_watchable_after_restart() {
    let options = Options { watch_cache: false, ..Options::default() };
    let mut bed = ControlPlane::start(options).await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bed.client(), "default");
    let from = history(&maps, 300).await;
    bed.restart_apiserver().await.unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(bed.client(), "default");
    let seen = first_events(&maps, &from, 300).await.unwrap();
    let expected: Vec<String> = (0..300).map(|number| number.to_string()).collect();
    assert_eq!(seen, expected);
}

/// Environment variable with the file into which the program below writes the folder of its test cluster.
const BED_FILE: &str = "BRUPOP_TEST_BED_FILE";

#[tokio::test]
#[ignore = "run by the test that kills it"]
async fn control_plane_process_to_kill() {
    let bed_file = std::env::var_os(BED_FILE).unwrap();
    let bed = ControlPlane::start(Options::default()).await.unwrap();
    let mut pod = Command::new("sh");
    pod.args(["-c", "trap '' TERM; kill -s STOP $$; exec sleep 1000"]);
    marked(&mut pod, bed.dir()).spawn().unwrap();
    let written = PathBuf::from(&bed_file).with_extension("part");
    std::fs::write(&written, bed.dir().to_str().unwrap()).unwrap();
    std::fs::rename(&written, &bed_file).unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn killed_test_program_leaves_no_processes_or_directory() {
    let folder = tempfile::tempdir().unwrap();
    let bed_file = folder.path().join("bed");
    let test = module_path!().split_once("::").unwrap().1.to_owned() + "::control_plane_process_to_kill";
    let mut program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &test, "--ignored"])
        .env(BED_FILE, &bed_file)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let dir = until("the bed of the other program", async || {
        assert!(program.try_wait().unwrap().is_none(), "it ended by itself");
        std::fs::read_to_string(&bed_file).ok().map(PathBuf::from)
    })
    .await;
    assert!(dir.exists());
    assert_eq!(processes_of(&dir).unwrap().len(), 5);
    program.start_kill().unwrap();
    program.wait().await.unwrap();
    until("no process of the bed", async || processes_of(&dir).unwrap().is_empty().then_some(())).await;
    until("no folder of the bed", async || (!dir.exists()).then_some(())).await;
}
