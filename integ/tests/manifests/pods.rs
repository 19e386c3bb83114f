//! The rights of the operator's pods on their nodes, as the API server admitted them.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodTemplateSpec, Volume};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt as _};
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, NOTICES_SECRET, PROMETHEUS_SECRET, SERVING_SECRET, SYSTEM_NAMESPACE,
    TOKEN_AUDIENCE, TRUST_CONFIG_MAP,
};
use serde_json::{Value, json};

use super::expect;

pub(super) async fn pods_have_only_required_privileges_and_volumes(client: Client) -> anyhow::Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let agents: Api<DaemonSet> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
    let agent = agents.get(AGENT).await?.spec.template;
    let mut system = Vec::new();
    for name in [CONTROLLER, APISERVER] {
        system.push(deployments.get(name).await?.spec.template);
    }
    system_namespace_admits_its_own_pods_and_rejects_agent_pods(&client, &system, &agent).await?;
    for namespace in [SYSTEM_NAMESPACE, AGENT_NAMESPACE] {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&Default::default()).await?;
        ensure!(!pods.items.is_empty(), "no pods in {namespace}");
        for pod in pods {
            is_confined(pod.spec.as_ref().context("a spec")?).with_context(|| pod.name_any())?;
        }
    }
    pods_mount_only_what_they_need(&client).await
}

/// Checks the requirements of each pod, whatever its namespace enforces.
fn is_confined(spec: &PodSpec) -> anyhow::Result<()> {
    for (what, shared) in [
        ("the host's network", spec.host_network),
        ("the host's processes", spec.host_pid),
        ("the host's IPC", spec.host_ipc),
    ] {
        ensure!(shared != Some(true), "shares {what}");
    }
    let pod = serde_json::to_value(&spec.security_context)?;
    ensure!(pod["runAsNonRoot"] == true && pod["runAsUser"].as_i64() > Some(0), "may be root: {pod}");
    ensure!(pod["seccompProfile"] == json!({"type": "RuntimeDefault"}), "{pod}");
    ensure!(spec.init_containers.is_none() && spec.ephemeral_containers.is_none() && spec.containers.len() == 1);
    let container = serde_json::to_value(&spec.containers[0].security_context)?;
    let wanted = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    ensure!(container == wanted, "{container}");
    Ok(())
}

async fn system_namespace_admits_its_own_pods_and_rejects_agent_pods(
    client: &Client,
    system: &[PodTemplateSpec],
    agent: &PodTemplateSpec,
) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let try_out = async |template: &PodTemplateSpec| {
        let mut spec = template.spec.clone();
        if let Some(spec) = &mut spec {
            // The account is another namespace's; the check is about the pod's rights, not its identity.
            (spec.service_account_name, spec.service_account) = (None, None);
        }
        let metadata = ObjectMeta { name: Some("tried-out".into()), ..template.metadata.clone().unwrap_or_default() };
        pods.create(&PostParams { dry_run: true, ..PostParams::default() }, &Pod { metadata, spec, status: None }).await
    };
    for template in system {
        try_out(template).await.context("a pod of the system")?;
    }
    // For the socket and its SELinux type only.
    let refused = try_out(agent).await;
    let text = refused.as_ref().err().map(ToString::to_string).unwrap_or_default();
    expect("the agent's pod among those of the system", refused, Some("violates PodSecurity \"restricted"))?;
    ensure!(text.contains("hostPath") && text.contains("seLinuxOptions"), "{text}");
    for other in ["allowPrivilegeEscalation", "capabilities", "runAsNonRoot", "seccompProfile", "runAsUser"] {
        ensure!(!text.contains(other), "also for {other}: {text}");
    }
    Ok(())
}

/// A volume as data, without its name and file mode.
fn content(volume: &Volume) -> anyhow::Result<Value> {
    let mut content = serde_json::to_value(volume)?;
    let fields = content.as_object_mut().context("a volume is an object")?;
    fields.remove("name");
    for source in fields.values_mut().filter_map(Value::as_object_mut) {
        source.remove("defaultMode");
    }
    Ok(content)
}

/// Checks the volumes of a pod of each component, and the folders of the agent's that it may write to.
async fn pods_mount_only_what_they_need(client: &Client) -> anyhow::Result<()> {
    let secret = |name: &str| json!({"secret": {"secretName": name, "optional": true}});
    let token = json!({"audience": TOKEN_AUDIENCE, "expirationSeconds": 600, "path": "token"});
    let of_agent = vec![
        json!({"hostPath": {"path": "/run/api.sock", "type": "Socket"}}),
        json!({"projected": {"sources": [{"serviceAccountToken": token}]}}),
        json!({"configMap": {"name": TRUST_CONFIG_MAP, "optional": true}}),
        json!({"emptyDir": {"medium": "Memory", "sizeLimit": "64Ki"}}),
    ];
    for (namespace, part, tokens, expected) in [
        (AGENT_NAMESPACE, AGENT, 0, of_agent),
        (SYSTEM_NAMESPACE, APISERVER, 1, vec![secret(SERVING_SECRET)]),
        (SYSTEM_NAMESPACE, CONTROLLER, 1, vec![secret(NOTICES_SECRET), secret(PROMETHEUS_SECRET)]),
    ] {
        let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&Default::default()).await?;
        let found = pods.items.into_iter().find(|pod| pod.name_any().starts_with(part));
        let spec = found.and_then(|pod| pod.spec).with_context(|| format!("no pod of {part}"))?;
        let is_token = |volume: &&Volume| volume.name.starts_with("kube-api-access-");
        let (own, others): (Vec<_>, Vec<_>) = spec.volumes.iter().flatten().partition(is_token);
        let contents = others.into_iter().map(content).collect::<anyhow::Result<Vec<_>>>()?;
        assert_eq!((own.len(), contents), (tokens, expected), "{part}");
        match part {
            AGENT => of_agent_alone(&spec)?,
            CONTROLLER => secrets_of_users_are_where_flags_name_them(&spec)?,
            _ => {}
        }
    }
    Ok(())
}

fn of_agent_alone(spec: &PodSpec) -> anyhow::Result<()> {
    assert_eq!(spec.automount_service_account_token, Some(false));
    let context = serde_json::to_value(&spec.security_context)?;
    assert_eq!(context["supplementalGroups"], json!([274]), "the group of the socket");
    let label = json!({"user": "system_u", "role": "system_r", "type": "control_t", "level": "s0"});
    assert_eq!(context["seLinuxOptions"], label);
    let mounts = spec.containers[0].volume_mounts.iter().flatten().filter(|m| m.read_only != Some(true));
    let written: Vec<&str> = mounts.map(|mount| mount.mount_path.as_str()).collect();
    // The second is the agent's sign of life, for its probes.
    assert_eq!(written, ["/run/api.sock", "/run/brupop"]);
    Ok(())
}

fn secrets_of_users_are_where_flags_name_them(spec: &PodSpec) -> anyhow::Result<()> {
    let container = &spec.containers[0];
    for (flag, secret) in [("--notices-dir=", NOTICES_SECRET), ("--prometheus-credentials-dir=", PROMETHEUS_SECRET)] {
        let folder = container.args.iter().flatten().find_map(|argument| argument.strip_prefix(flag)).context(flag)?;
        let mut mounts = container.volume_mounts.iter().flatten();
        let mount = mounts.find(|mount| mount.mount_path == folder).with_context(|| format!("nothing at {folder}"))?;
        let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name).context("no volume")?;
        let named = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref());
        assert_eq!((mount.read_only, named), (Some(true), Some(secret)));
    }
    Ok(())
}
