//! `kubectl brupop preflight`: reports what prevents an installation, and changes nothing.

use anyhow::{Context as _, bail};
use deploy::Component;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use models::names;

use crate::call::{call, if_there};
use crate::helm::{release_of, upgrade_of};
use crate::page::print_line;
use crate::shell::{for_cluster, word};
use crate::uninstall::{check_elsewhere, check_namespace, is_marked};

/// Minor version of Kubernetes 1 from which tokens name their node.
const MINOR: u32 = 32;

/// The field manager of `kubectl apply --server-side`, with which the manifests are applied. The manifests own what is
/// written under it.
pub(crate) const KUBECTL: &str = "kubectl";

/// Returns the reason why a version of Kubernetes is too old, if it is.
pub(crate) fn outdated(version: &Info) -> Option<String> {
    let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    let old = version.major == "1" && minor.parse::<u32>().is_ok_and(|minor| minor < MINOR);
    old.then(|| format!("Kubernetes 1.{MINOR} or later is needed; this is {}", version.git_version))
}

/// Returns the reason why objects are left to Helm, if one is of a release. With equal values an apply is no conflict, and makes this plugin an
/// owner beside Helm: each later `helm upgrade` is refused then. `objects` names them, as kubectl takes them.
fn left_to_helm<'a>(objects: &str, found: impl IntoIterator<Item = &'a ObjectMeta>) -> Option<String> {
    let found = found.into_iter().find_map(|meta| Some((release_of(meta)?, upgrade_of(meta)?)));
    let ((release, namespace), upgrade) = found?;
    let (release, namespace) = (word(&release), word(&namespace));
    Some(format!(
        "the operator is of the Helm release {release} in the namespace {namespace}: {upgrade} (docs/install.md, \"Upgrade\"). If Helm has \
         forgotten the release ({}): {}",
        for_cluster(&format!("helm list -n {namespace}")),
        for_cluster(&format!("kubectl annotate {objects} meta.helm.sh/release-name-"))
    ))
}

/// The same for the Deployments that every installation has.
async fn deployments_left_to_helm(client: Client) -> anyhow::Result<Option<String>> {
    let deployments: Api<Deployment> = Api::namespaced(client, names::SYSTEM_NAMESPACE);
    let right = format!("get deployments in {}", names::SYSTEM_NAMESPACE);
    let components = [Component::Controller.name(), Component::Apiserver.name()];
    let mut found = Vec::new();
    for name in components {
        found.extend(if_there(call(&right, deployments.get_metadata(name)).await)?);
    }
    let objects = format!("deployments {} -n {}", components.join(" "), names::SYSTEM_NAMESPACE);
    Ok(left_to_helm(&objects, found.iter().map(|found| &found.metadata)))
}

/// Checks the cluster.
pub(crate) async fn preflight(client: Client, namespace: &str) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    problems.extend(check_namespace(namespace).err().map(|error| error.to_string()));
    let version = call("get /version", client.apiserver_version()).await?;
    problems.extend(outdated(&version));
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut of_releases = Vec::new();
    for wanted in deploy::crds::all()? {
        let name = wanted["metadata"]["name"].as_str().context("a definition without a name")?;
        let found = call("get customresourcedefinitions", definitions.get_opt(name)).await?;
        if let Some(found) = found.as_ref().filter(|found| !is_marked(&found.metadata)) {
            let versions: Vec<&str> = found.spec.versions.iter().map(|version| version.name.as_str()).collect();
            problems.push(format!(
                "the definition {name} (versions {}) is another operator's, probably the earlier bottlerocket-update-operator's: \
                 first move it and its shadows to this operator with {} (docs/install.md, \"Over the earlier operator\")",
                versions.join(", "),
                for_cluster("kubectl brupop takeover swap")
            ));
            continue;
        }
        // After a takeover, the definition of the shadows may name a release of the earlier operator.
        let found = found.filter(|found| name != names::SHADOW_DEFINITION && release_of(&found.metadata).is_some());
        if let Some(found) = found {
            of_releases.push((name.to_owned(), found.metadata));
            continue;
        }
        let dry = PatchParams { dry_run: true, ..PatchParams::apply(KUBECTL) };
        let patch = Patch::Apply(&wanted);
        if let Err(error) = call("patch customresourcedefinitions", definitions.patch(name, &dry, &patch)).await {
            problems.push(format!("the API server refuses the definition {name}: {error:#}"));
        }
    }
    let definitions: Vec<&str> = of_releases.iter().map(|(name, _)| name.as_str()).collect();
    let definitions = format!("customresourcedefinitions {}", definitions.join(" "));
    problems.extend(left_to_helm(&definitions, of_releases.iter().map(|(_, meta)| meta)));
    problems.extend(check_elsewhere(&client, &deploy::everything()?).await.err().map(|error| format!("{error:#}")));
    problems.extend(deployments_left_to_helm(client).await?);
    if !problems.is_empty() {
        bail!("the operator cannot be installed, and nothing was changed:\n  {}", problems.join("\n  "));
    }
    print_line("nothing prevents the installation of the operator");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_of_a_helm_release_are_left_to_helm() {
        let release = json!({"meta.helm.sh/release-name": "platform", "meta.helm.sh/release-namespace": "ops"});
        let flux = json!({"helm.toolkit.fluxcd.io/name": "brupop", "helm.toolkit.fluxcd.io/namespace": "flux-system"});
        for (sentence, metadata, upgrade) in [
            ("of a release", json!({"annotations": release}), Some("helm upgrade platform CHART -n ops")),
            (
                "of a release that Flux keeps",
                json!({"annotations": release, "labels": flux}),
                Some("kubectl edit helmrelease brupop -n flux-system"),
            ),
            ("of kubectl", json!({"annotations": {"a": "b"}}), None),
            (
                "of a release that was forgotten, without its annotation",
                json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}),
                None,
            ),
        ] {
            let metas: [ObjectMeta; 2] = [ObjectMeta::default(), serde_json::from_value(metadata).unwrap()];
            let reason = left_to_helm("deployments a b -n c", &metas);
            assert_eq!(reason.is_some(), upgrade.is_some(), "{sentence}: {reason:?}");
            for part in
                upgrade.into_iter().chain(["release platform in the namespace ops", "annotate deployments a b -n c "])
            {
                assert!(reason.as_ref().is_none_or(|reason| reason.contains(part)), "{sentence}: {reason:?}");
            }
        }
    }
}
