//! Installation of the operator: `kubectl apply --server-side` of its manifests, in Rust.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use json_patch::merge;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{ApiCapabilities, ApiResource, Scope, pinned_kind};
use kube::{Client, ResourceExt as _};
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::{ActiveRollout, BottlerocketUpdateOperator, RolloutLedger};
use semver::Version;
use serde_json::{Value, json};

use super::TestClusterOptions;

/// Field manager of the installation.
const MANAGER: &str = "brupop-install";

/// The kind of the simulated nodes.
const VARIANT: &str = "aws-k8s-1.37";
const ARCH: &str = "x86_64";

/// The manifests that users apply, in their order.
const MANIFESTS: [&str; 2] =
    [include_str!("../../../deploy/manifests/crds.yaml"), include_str!("../../../deploy/manifests/brupop.yaml")];

/// Longest wait until a definition is served.
const ESTABLISHED: Duration = Duration::from_secs(120);

/// Installs the operator as a user does: by server-side apply of the manifests.
pub async fn install(client: &Client, options: &TestClusterOptions) -> anyhow::Result<()> {
    let mut known: BTreeMap<String, (ApiResource, ApiCapabilities)> = BTreeMap::new();
    for mut object in objects(&options.deploy)? {
        if options.takeover && deploy::yaml::id(&object) == deploy::yaml::id(&deploy::takeover::definition()?) {
            object = deploy::takeover::definition()?;
        }
        if object["kind"] == "BottlerocketUpdateOperator" {
            if options.policy.is_null() {
                continue;
            }
            // As a user does after the installation.
            object["spec"]["enabled"] = true.into();
            // Scenarios make the same few nodes fail again and again, which would brake a rollout.
            merge(&mut object["spec"], &json!({"failurePolicy": {"maxConsecutiveFailures": 64}}));
            merge(&mut object["spec"], &options.policy);
            apply(client, &mut known, object).await?;
            if let Some(version) = &options.proven {
                prove(client, version).await?;
            }
            continue;
        }
        apply(client, &mut known, object).await?;
    }
    Ok(())
}

/// Records in the policy's status that a node has proven a version, as if it had been updated and were gone.
pub async fn prove(client: &Client, version: &Version) -> anyhow::Result<()> {
    let api: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let begun = ActiveRollout::new(version.clone(), VARIANT.to_owned(), ARCH.to_owned(), Timestamp::now());
    let ledger = RolloutLedger { proven: 1, ..RolloutLedger::default() };
    let rollout = ActiveRollout { ledger: Some(ledger), ..begun };
    let patch = Patch::Merge(json!({"status": {"activeRollouts": [rollout]}}));
    api.patch_status(OPERATOR_NAME, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Returns the checked-in manifests, or generates them where the options require it.
fn objects(options: &deploy::Options) -> anyhow::Result<Vec<Value>> {
    if *options == deploy::Options::default() {
        let mut objects = Vec::new();
        for manifest in MANIFESTS {
            let read: Vec<Value> =
                serde_saphyr::from_multiple(manifest).context("a checked-in manifest cannot be read")?;
            objects.extend(read);
        }
        return Ok(objects);
    }
    deploy::objects(options)
}

pub(super) async fn apply(
    client: &Client,
    known: &mut BTreeMap<String, (ApiResource, ApiCapabilities)>,
    object: Value,
) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object).context("not an object")?;
    let types = object.types.clone().context("an object without a kind")?;
    let gvk = GroupVersionKind::try_from(&types)?;
    let key = format!("{}/{}", types.api_version, types.kind);
    if !known.contains_key(&key) {
        known.insert(key.clone(), served(client, &gvk).await?);
    }
    let (resource, capabilities) = &known[&key];
    let api: Api<DynamicObject> = match (&capabilities.scope, object.namespace()) {
        (Scope::Namespaced, Some(namespace)) => Api::namespaced_with(client.clone(), &namespace, resource),
        (Scope::Namespaced, None) => Api::default_namespaced_with(client.clone(), resource),
        (Scope::Cluster, _) => Api::all_with(client.clone(), resource),
    };
    let name = object.name_any();
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
        .await
        .with_context(|| format!("apply {key} {name}"))?;
    Ok(())
}

/// Waits until a kind is served: a definition that was just applied takes a moment.
async fn served(client: &Client, gvk: &GroupVersionKind) -> anyhow::Result<(ApiResource, ApiCapabilities)> {
    let deadline = tokio::time::Instant::now() + ESTABLISHED;
    loop {
        match pinned_kind(client, gvk).await {
            Ok(found) => return Ok(found),
            Err(error) if tokio::time::Instant::now() > deadline => {
                return Err(error).with_context(|| format!("{gvk:?} is not served"));
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}
