//! `kubectl brupop preflight`: reports what prevents an installation, and changes nothing.

use anyhow::{Context as _, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::version::Info;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use models::names;
use serde_json::Value;

use crate::call::{call, get, get_metadata, get_one};
use crate::helm::{release_of, upgrade_of};
use crate::images::{image_of, newer, own_tag, version};
use crate::page::print_line;
use crate::shell::{for_cluster, word};
use crate::uninstall::{CONTAINERS, api, check_elsewhere, check_namespace, is_marked, is_one_of};

/// Minor version of Kubernetes 1 from which tokens name their node.
const MINOR: u32 = 32;

/// The field manager of `kubectl apply --server-side`, with which the manifests are applied. The manifests own what is
/// written under it.
pub(crate) const KUBECTL: &str = "kubectl";

/// The Deployments that every installation has.
const DEPLOYMENTS: [&str; 2] = [names::CONTROLLER, names::APISERVER];

/// Returns the reason why a version of Kubernetes is too old, if it is.
pub(crate) fn outdated(version: &Info) -> Option<String> {
    let minor: String = version.minor.chars().take_while(char::is_ascii_digit).collect();
    let old = version.major == "1" && minor.parse::<u32>().is_ok_and(|minor| minor < MINOR);
    old.then(|| format!("Kubernetes 1.{MINOR} or later is needed; this is {}", version.git_version))
}

/// Returns the reason why objects are left to Helm, if one is of a release. With equal values an apply is no conflict, and makes this plugin an
/// owner beside Helm: each later `helm upgrade` is refused then. `what` begins the sentence, and `objects` names them, as kubectl takes them.
/// Helm upgrades an operator that is installed, and installs one that is not.
fn left_to_helm<'a>(
    what: &str,
    objects: &str,
    is_installed: bool,
    found: impl IntoIterator<Item = &'a ObjectMeta>,
) -> Option<String> {
    let found = found.into_iter().find_map(|meta| Some((release_of(meta)?, upgrade_of(meta)?)));
    let ((release, namespace), upgrade) = found?;
    let (release, namespace) = (word(&release), word(&namespace));
    let (next, section) = if is_installed {
        (upgrade, "Upgrade")
    } else {
        (for_cluster(&format!("helm install brupop CHART -n {namespace}")), "With Helm")
    };
    Some(format!(
        "{what} of the Helm release {release} in the namespace {namespace}: {next} (docs/install.md, \"{section}\"). If Helm has forgotten the \
         release ({}): {}",
        for_cluster(&format!("helm list -n {namespace}")),
        for_cluster(&format!("kubectl annotate {objects} meta.helm.sh/release-name-"))
    ))
}

/// A Deployment by its name; `None` if it does not exist.
pub(crate) type Deployed = (&'static str, Option<Deployment>);

/// Reads the Deployments that every installation has.
pub(crate) async fn deployments(client: &Client) -> anyhow::Result<Vec<Deployed>> {
    let mut all = Vec::new();
    for name in DEPLOYMENTS {
        all.push((name, get::<Deployment>(client, names::SYSTEM_NAMESPACE, name).await?));
    }
    Ok(all)
}

/// Returns why this plugin installs nothing over the operator, if that is of a later version: an apply would remove
/// from definitions, roles and admission policies what the running programs need.
fn older_than(objects: &[Value], deployed: &[Deployed]) -> Option<String> {
    let images = deployed.iter().filter_map(|(name, found)| {
        let is_it = |object: &&Value| object["kind"] == "Deployment" && object["metadata"]["name"] == *name;
        let found = serde_json::to_value(found.as_ref()?).ok()?;
        image_of(objects.iter().find(is_it)?, &found).map(str::to_owned)
    });
    let images: Vec<String> = images.collect();
    let newest = newer(images.iter().map(String::as_str))?;
    let own = own_tag();
    Some(format!(
        "the operator is of {newest} and this plugin of {own}, whose definitions, roles and admission policies lack what {newest} needs: \
         run the command with the plugin of {newest}. To return to {own}: docs/upgrade.md, \"Go back\""
    ))
}

/// Returns an error for a tag of another version than this plugin's: the images would get the definitions, roles and
/// arguments of this one. A tag that names no version is not compared.
pub(crate) fn check_tag(tag: &str) -> anyhow::Result<()> {
    let own = own_tag();
    if version(tag).is_some_and(|other| version(&own) != Some(other)) {
        bail!(
            "--tag {tag} is of another version than this plugin, {own}, which installs the definitions, roles and arguments of its own: run the \
             command with the plugin of {tag}. To return to an earlier version: docs/upgrade.md, \"Go back\""
        );
    }
    Ok(())
}

/// Returns an error if images that run are from a registry and none is given: without it, nodes would not find those that are installed over
/// them. A release is left to Helm.
pub(crate) fn check_registry(deployed: &[Deployed], given: Option<&str>) -> anyhow::Result<()> {
    for (name, found) in deployed.iter().filter(|_| given.is_none()) {
        let found = found.iter().filter(|found| release_of(&found.metadata).is_none());
        let pods = found.filter_map(|found| found.spec.template.spec.as_ref());
        let images = pods.flat_map(|pod| &pod.containers).filter_map(|container| container.image.as_deref());
        let mut own = images
            .filter_map(|image| image.rsplit_once('/'))
            .filter(|(_, image)| image.split([':', '@']).next() == Some(*name));
        if let Some((registry, _)) = own.next() {
            bail!(
                "the images of the operator are from the registry {registry}, and without --registry they would be from none: run the command \
                 with --registry {}. For nodes that have the images, and for other options: docs/install.md, \"Upgrade\"",
                word(registry)
            );
        }
    }
    Ok(())
}

/// Returns the namespaces and definitions that are being deleted, each as a reason: what is in one, or of one, cannot be created.
async fn being_deleted(client: &Client, objects: &[Value]) -> anyhow::Result<Vec<String>> {
    let mut reasons = Vec::new();
    for object in objects.iter().filter(|object| is_one_of(object, &CONTAINERS)) {
        let (api, resource, name) = api(client, object)?;
        if get_metadata(&api, &name).await?.is_some_and(|meta| meta.deletion_timestamp.is_some()) {
            let id = deploy::yaml::id(object);
            let get = for_cluster(&format!("kubectl get {resource} {name} -o yaml"));
            reasons.push(format!("{id} is being deleted; its conditions say what keeps it: {get}"));
        }
    }
    Ok(reasons)
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
        let found = get_one(&definitions, name).await?;
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
    let everything = deploy::everything()?;
    let deployed = deployments(&client).await?;
    let elsewhere = check_elsewhere(&client, &everything).await.err().map(|error| format!("{error:#}"));
    let definitions: Vec<&str> = of_releases.iter().map(|(name, _)| name.as_str()).collect();
    let named = format!("customresourcedefinitions {}", definitions.join(" "));
    let is_installed = deployed.iter().any(|(_, found)| found.is_some()) || elsewhere.is_some();
    let metas = of_releases.iter().map(|(_, meta)| meta);
    problems.extend(left_to_helm("the definitions are", &named, is_installed, metas));
    problems.extend(being_deleted(&client, &everything).await?);
    problems.extend(elsewhere);
    let named = format!("deployments {} -n {}", DEPLOYMENTS.join(" "), names::SYSTEM_NAMESPACE);
    let metas = deployed.iter().filter_map(|(_, found)| Some(&found.as_ref()?.metadata));
    problems.extend(left_to_helm("the operator is", &named, true, metas));
    problems.extend(older_than(&everything, &deployed));
    if !problems.is_empty() {
        bail!("the operator cannot be installed, and nothing was changed:\n  {}", problems.join("\n  "));
    }
    print_line("nothing prevents the installation of the operator");
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::uninstall::testing::Server;

    /// A cluster with the definitions of this version, and with the controller, whose pods have a container of a user's too.
    pub(crate) fn cluster_with(image: &str) -> Server {
        let server = Server::default();
        server.add("/version", json!({"major": "1", "minor": "40", "gitVersion": "v1.40.0"}));
        for mut object in deploy::everything().unwrap() {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            if object["kind"] == "CustomResourceDefinition" {
                server.add(&format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"), object);
            } else if object["kind"] == "Deployment" && name == names::CONTROLLER {
                let containers = &mut object["spec"]["template"]["spec"]["containers"];
                containers[0]["image"] = image.into();
                containers.as_array_mut().unwrap().push(json!({"name": "proxy", "image": "proxy:v99.0.0"}));
                server.add(&format!("/apis/apps/v1/namespaces/brupop-system/deployments/{name}"), object);
            }
        }
        server
    }

    #[tokio::test]
    async fn operator_that_is_newer_than_the_plugin_is_not_installed_over() {
        let own = own_tag();
        for (sentence, tag, refused) in [
            ("this version", format!(":{own}"), false),
            ("this version for one architecture", format!(":{own}-arm64"), false),
            ("an earlier version", ":v0.0.9".to_owned(), false),
            ("a candidate of this version", format!(":{own}-rc.1"), false),
            ("a later version", ":v9.0.0".to_owned(), true),
            ("a later version, as a release names it", ":v9.0.0@sha256:0".to_owned(), true),
            ("a digest", "@sha256:0".to_owned(), false),
            ("a tag of the user's own", ":stable".to_owned(), false),
            ("a date", ":v2026.1.1".to_owned(), false),
        ] {
            let client = cluster_with(&format!("registry.example:5000/brupop/brupop-controller{tag}")).client();
            let checked = preflight(client, names::SYSTEM_NAMESPACE).await;
            assert_eq!(checked.is_err(), refused, "{sentence}: {checked:?}");
            if let Err(error) = checked {
                let error = error.to_string();
                assert!(error.contains("with the plugin of v9.0.0"), "{sentence}: {error}");
            }
        }
    }

    #[tokio::test]
    async fn namespace_that_is_being_deleted_prevents_an_installation() {
        let own = format!("brupop-controller:{}", own_tag());
        for (sentence, deleted, refused) in
            [("it exists", Value::Null, false), ("it ends", json!("2026-01-01T00:00:00Z"), true)]
        {
            let server = cluster_with(&own);
            let meta = json!({"name": names::AGENT_NAMESPACE, "deletionTimestamp": deleted});
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": meta});
            server.add("/api/v1/namespaces/brupop-agents", namespace);
            let checked = preflight(server.client(), names::SYSTEM_NAMESPACE).await.map_err(|error| error.to_string());
            let named = "Namespace brupop-agents is being deleted; ";
            assert_eq!(checked.is_err_and(|error| error.contains(named)), refused, "{sentence}");
        }
    }

    #[test]
    fn tag_of_another_version_than_the_plugin_is_refused() {
        let own = own_tag();
        let [own_architecture, candidate] = ["arm64", "rc.1"].map(|suffix| format!("{own}-{suffix}"));
        for (tag, refused) in [
            (own.as_str(), false),
            (own_architecture.as_str(), false),
            (candidate.as_str(), true),
            ("v0.0.9", true),
            ("v9.0.0", true),
            ("v9", false),
            ("dev", false),
            ("next", false),
            ("v2026.1.1", false),
        ] {
            assert_eq!(check_tag(tag).is_err(), refused, "{tag}");
        }
    }

    #[test]
    fn registry_of_the_images_that_run_is_not_lost() {
        for (sentence, image, given, refused) in [
            ("from a registry", "r.example:5000/b/brupop-controller:v0.0.9", None, true),
            ("from a registry, by digest", "r.example/brupop-controller@sha256:0", None, true),
            ("the registry is given", "r.example/b/brupop-controller:v0.0.9", Some("r.example/b"), false),
            ("another one is given", "r.example/b/brupop-controller:v0.0.9", Some("other.example"), false),
            ("from none", "brupop-controller:v0.0.9", None, false),
            ("a container of the user's", "r.example/proxy:v1.0.0", None, false),
        ] {
            let of = |annotations: Value| -> Deployment {
                let pod = json!({"containers": [{"name": "controller", "image": image}]});
                let spec = json!({"selector": {}, "template": {"spec": pod}});
                serde_json::from_value(json!({"metadata": {"annotations": annotations}, "spec": spec})).unwrap()
            };
            let deployed = [(names::CONTROLLER, Some(of(json!({})))), (names::APISERVER, None)];
            let checked = check_registry(&deployed, given);
            assert_eq!(checked.is_err(), refused, "{sentence}: {checked:?}");
            let release = json!({"meta.helm.sh/release-name": "a", "meta.helm.sh/release-namespace": "b"});
            let of_helm = [(names::CONTROLLER, Some(of(release)))];
            assert!(check_registry(&of_helm, given).is_ok(), "{sentence}, of a release");
        }
    }

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
            ("of a forgotten release", json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}), None),
        ] {
            let metas: [ObjectMeta; 2] = [ObjectMeta::default(), serde_json::from_value(metadata).unwrap()];
            let reason = left_to_helm("the operator is", "deployments a b -n c", true, &metas);
            assert_eq!(reason.is_some(), upgrade.is_some(), "{sentence}: {reason:?}");
            for part in
                upgrade.into_iter().chain(["release platform in the namespace ops", "annotate deployments a b -n c "])
            {
                assert!(reason.as_ref().is_none_or(|reason| reason.contains(part)), "{sentence}: {reason:?}");
            }
        }
    }

    #[test]
    fn operator_is_installed_by_helm_where_the_definitions_alone_are_of_a_release() {
        let release = json!({"meta.helm.sh/release-name": "brupop-crds", "meta.helm.sh/release-namespace": "ops"});
        let meta: ObjectMeta = serde_json::from_value(json!({"annotations": release})).unwrap();
        let reason = left_to_helm("the definitions are", "customresourcedefinitions a", false, [&meta]).unwrap();
        let expected = "the definitions are of the Helm release brupop-crds in the namespace ops: helm install brupop CHART -n ops (";
        assert!(reason.starts_with(expected), "{reason}");
    }
}
