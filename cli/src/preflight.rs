//! `kubectl brupop preflight`: reports what prevents an installation, and changes nothing.

use anyhow::{Context as _, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};

use crate::call::call;
use crate::page::print_line;
use crate::uninstall::is_marked;

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

/// Checks the cluster.
pub(crate) async fn preflight(client: Client) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let version = call("get /version", client.apiserver_version()).await?;
    problems.extend(outdated(&version));
    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    for wanted in deploy::crds::all()? {
        let name = wanted["metadata"]["name"].as_str().context("a definition without a name")?;
        let found = call("get customresourcedefinitions", definitions.get_opt(name)).await?;
        if let Some(found) = found.filter(|found| !is_marked(&found.metadata)) {
            let versions: Vec<String> = found.spec.versions.into_iter().map(|version| version.name).collect();
            problems.push(format!(
                "the definition {name} (versions {}) is another operator's, probably the earlier bottlerocket-update-operator's: \
                 first move it and its shadows to this operator with kubectl brupop takeover swap (docs/install.md, \"Over \
                 the earlier operator\")",
                versions.join(", ")
            ));
            continue;
        }
        let dry = PatchParams { dry_run: true, ..PatchParams::apply(KUBECTL) };
        let patch = Patch::Apply(&wanted);
        if let Err(error) = call("patch customresourcedefinitions", definitions.patch(name, &dry, &patch)).await {
            problems.push(format!("the API server refuses the definition {name}: {error:#}"));
        }
    }
    if !problems.is_empty() {
        bail!("the operator cannot be installed, and nothing was changed:\n  {}", problems.join("\n  "));
    }
    print_line("nothing prevents the installation of the operator");
    Ok(())
}
