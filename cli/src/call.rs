//! Calls to the API server, each with a time limit and with an error that names the missing right.

use std::any::TypeId;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::serde::de::DeserializeOwned;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::Client;
use kube::api::{Api, ListParams, Request};
use kube::client::AuthError;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DeserializeGuard, ObjectList};
use models::answer::is_of_rbac;
use models::{earlier, limits, names};
use planner::view::{EarlierPod, Projection as _};

use crate::page::warn;
use crate::shell::for_cluster;

/// Time limit of one call.
const LIMIT: Duration = limits::WRITE;

/// Number of objects in one page of a list.
const PAGE: u32 = 500;

/// The namespace of the Leases of kubelets.
pub(crate) const NODE_LEASES: &str = "kube-node-lease";

/// The objects that were left out with a warning: a wait reads the same ones again and again.
static LEFT_OUT: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

#[derive(Debug, thiserror::Error)]
#[error("the API server answers {code}: {message}{}", grant(*.is_of_right))]
struct Refusal {
    code: u16,
    message: String,
    /// True if the user lacks the right.
    is_of_right: bool,
}

const fn grant(is_of_right: bool) -> &'static str {
    if is_of_right { "; an administrator can grant it (docs/plugin.md, Rights)" } else { "" }
}

/// Returns whether a call changes nothing, by the right that it needs.
fn only_reads(right: &str) -> bool {
    ["get ", "list ", "watch "].iter().any(|verb| right.starts_with(verb))
}

#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s; run the command again{}", LIMIT.as_secs(), .goes_on)]
struct NoAnswer {
    goes_on: &'static str,
}

impl NoAnswer {
    /// Returns the error of a call, by the right that it needs. Only what writes goes on.
    fn to(right: &str) -> Self {
        Self { goes_on: if only_reads(right) { "" } else { ": it goes on from there" } }
    }
}

/// Returns true if the API server was not reached.
fn is_unreached(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref() {
        // Where the credential plugin has failed, another try would ask the user, or the identity provider, once more.
        Some(kube::Error::Service(inner)) => !inner.is::<AuthError>(),
        Some(kube::Error::HyperError(_)) => true,
        _ => false,
    })
}

/// Returns true if the same call may succeed later: there was no answer, or the API server had an error of its own or too many requests.
pub(crate) fn is_transient(error: &anyhow::Error) -> bool {
    is_unreached(error) || error.is::<NoAnswer>() || code(error).is_some_and(|code| code == 429 || code >= 500)
}

/// Returns what was read in a wait. If the call failed and may succeed later, returns what `instead` makes of its
/// error.
pub(crate) fn or_waiting<T>(answer: anyhow::Result<T>, instead: impl FnOnce(&anyhow::Error) -> T) -> anyhow::Result<T> {
    match answer {
        Err(error) if is_transient(&error) => Ok(instead(&error)),
        answer => answer,
    }
}

/// Adds the URL of the API server to an error for the reason that it cannot be reached. One that is slow was found.
pub(crate) fn name_server(error: anyhow::Error, server: &impl fmt::Display) -> anyhow::Error {
    if !is_unreached(&error) {
        return error;
    }
    error.context(format!("the API server {server} cannot be reached: check the kubeconfig and --context"))
}

/// Waits for the answer to a request. `right` is what the user needs to be allowed, as verb and resource.
pub(crate) async fn call<T>(right: &str, request: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    match tokio::time::timeout(LIMIT, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failure(right, error)),
        Err(_) => Err(anyhow!(NoAnswer::to(right)).context(format!("cannot {right}"))),
    }
}

/// Returns the error of a request. `right` is what the user needs to be allowed.
pub(crate) fn failure(right: &str, error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => {
            // No admission check is made of a call that only reads.
            let is_of_right = status.code == 403 && (only_reads(right) || is_of_rbac(&status.message));
            let what = if is_of_right { "you need the right to" } else { "cannot" };
            let refusal = Refusal { code: status.code, message: status.message, is_of_right };
            anyhow!(refusal).context(format!("{what} {right}"))
        }
        error @ kube::Error::SerdeError(_) => {
            let doctor = for_cluster("kubectl brupop doctor");
            anyhow!(error)
                .context(format!("cannot {right}: this version of the plugin cannot read the answer ({doctor})"))
        }
        error => anyhow!(error).context(format!("cannot {right}")),
    }
}

/// Returns the code with which the API server refused a call.
pub(crate) fn code(error: &anyhow::Error) -> Option<u16> {
    error.downcast_ref::<Refusal>().map(|refusal| refusal.code)
}

/// Returns whether an answer came that this version of the plugin cannot read.
pub(crate) fn is_unreadable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(kube::Error::SerdeError(_))))
}

/// Returns the answer to a request for one object; `None` if it, or its kind, does not exist.
pub(crate) fn if_there<T>(answer: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match answer {
        Err(error) if code(&error) == Some(404) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns the answer to a request for a part that a command can do without; `None` if the caller may not make it, or if it has no answer
/// now: then the missing right, or the error, is noted.
pub(crate) fn if_read<T>(answer: anyhow::Result<T>, note: impl FnOnce(String)) -> anyhow::Result<Option<T>> {
    let noted = match &answer {
        Err(error) if code(error) == Some(403) => error.to_string(),
        // The command goes on: its reader has nothing to run again.
        Err(error) if error.is::<NoAnswer>() => format!("{error}: no answer within {} s", LIMIT.as_secs()),
        Err(error) if is_transient(error) => format!("{error:#}"),
        _ => return answer.map(Some),
    };
    note(noted);
    Ok(None)
}

/// Returns the right that a request needs: the verb, the resource, and where it is. Lists alone are made in all namespaces.
pub(crate) fn right<K: Listed>(verb: &str, api: &Api<K>) -> String {
    let resource = api.resource_url().rsplit('/').next().unwrap_or_default();
    let everywhere = verb == "list" && TypeId::of::<K::Scope>() != TypeId::of::<ClusterResourceScope>();
    match api.namespace() {
        Some(namespace) => format!("{verb} {resource} in {namespace}"),
        None if everywhere => format!("{verb} {resource} in all namespaces"),
        None => format!("{verb} {resource}"),
    }
}

/// Reads an object; `None` if it, or its kind, does not exist.
pub(crate) async fn get_one<K: Listed>(api: &Api<K>, name: &str) -> anyhow::Result<Option<K>> {
    if_there(call(&right("get", api), api.get(name)).await)
}

/// Reads the metadata of an object; `None` if it, or its kind, does not exist.
pub(crate) async fn get_metadata<K: Listed>(api: &Api<K>, name: &str) -> anyhow::Result<Option<ObjectMeta>> {
    Ok(if_there(call(&right("get", api), api.get_metadata(name)).await)?.map(|found| found.metadata))
}

/// Reads an object in a namespace; `None` if it, or its kind, does not exist.
pub(crate) async fn get<K: Namespaced>(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<K>> {
    get_one(&Api::namespaced(client.clone(), namespace), name).await
}

pub(crate) async fn list_in<K: Namespaced>(
    client: &Client,
    namespace: &str,
    params: ListParams,
) -> anyhow::Result<Vec<K>> {
    list(&Api::namespaced(client.clone(), namespace), params).await
}

pub(crate) async fn list_everywhere<K: Namespaced>(client: &Client, params: ListParams) -> anyhow::Result<Vec<K>> {
    list(&Api::all(client.clone()), params).await
}

pub(crate) async fn nodes(client: &Client) -> anyhow::Result<Vec<Node>> {
    list(&Api::all(client.clone()), ListParams::default()).await
}

/// Returns an error if the user may not read the nodes.
pub(crate) async fn check_nodes(client: &Client) -> anyhow::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    call(&right("list", &nodes), nodes.list_metadata(&ListParams::default().limit(1))).await.map(drop)
}

/// Lists the Leases that the kubelets renew.
pub(crate) async fn node_leases(client: &Client) -> anyhow::Result<Vec<Lease>> {
    list_in(client, NODE_LEASES, ListParams::default()).await
}

/// Selects what is installed with this operator.
pub(crate) fn installed() -> ListParams {
    ListParams::default().labels(&format!("{}={}", names::APPLICATION_LABEL, names::APPLICATION))
}

/// Lists the pods of this operator.
pub(crate) async fn installed_pods(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let mut found = Vec::new();
    for namespace in [names::SYSTEM_NAMESPACE, names::AGENT_NAMESPACE] {
        found.extend(list_in::<Pod>(client, namespace, installed()).await?);
    }
    Ok(found)
}

/// Lists the pods of the earlier operator that have not ended, by namespace and name, each as what `of` makes of it: there may be
/// one on each node.
pub(crate) async fn earlier_pods<T>(client: &Client, of: impl Fn(Pod) -> T) -> anyhow::Result<BTreeMap<String, T>> {
    let (api, mut found) = (Api::<Pod>::all(client.clone()), BTreeMap::new());
    for selector in earlier::pod_selectors() {
        let params = ListParams::default().labels(&selector);
        let take = |pod: Pod| found.extend(EarlierPod::project(&pod).map(|acting| (acting.title, of(pod))));
        list_each(&api, params, take).await?;
    }
    Ok(found)
}

pub(crate) async fn list<K: Listed>(api: &Api<K>, params: ListParams) -> anyhow::Result<Vec<K>> {
    let mut all = Vec::new();
    list_each(api, params, |object| all.push(object)).await?;
    Ok(all)
}

/// Lists all objects, and passes on each: of thousands of large ones only a page is in memory. One that cannot be read is left out,
/// with one warning.
pub(crate) async fn list_each<K: Listed>(
    api: &Api<K>,
    params: ListParams,
    mut each: impl FnMut(K),
) -> anyhow::Result<()> {
    list_guarded(api, params, |object| match object {
        Ok(object) => each(object),
        Err(InvalidObject { metadata, error }) => {
            let url = api.resource_url();
            let resource = url.rsplit('/').next().unwrap_or_default();
            let (namespace, name) = (metadata.namespace.unwrap_or_default(), metadata.name.unwrap_or_default());
            let id = format!("{url} {namespace}/{name}");
            if LEFT_OUT.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
                warn(format_args!(
                    "{resource}/{name} is left out: this version of the plugin cannot read it ({error})"
                ));
            }
        }
    })
    .await
}

/// Lists all objects, and passes on the metadata of each.
pub(crate) async fn list_metadata<K: Listed>(api: &Api<K>, mut each: impl FnMut(ObjectMeta)) -> anyhow::Result<()> {
    let (right, mut params) = (right("list", api), ListParams::default().limit(PAGE));
    loop {
        let page = call(&right, api.list_metadata(&params)).await?;
        page.items.into_iter().for_each(|object| each(object.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

pub(crate) trait Listed: kube::Resource + Clone + DeserializeOwned + fmt::Debug + 'static {}

impl<K: kube::Resource + Clone + DeserializeOwned + fmt::Debug + 'static> Listed for K {}

/// The kinds whose objects are in namespaces.
pub(crate) trait Namespaced: Listed + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> {}

impl<K: Listed + kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>> Namespaced for K {}

/// Lists all objects, and passes on each, also those that cannot be read.
pub(crate) async fn list_guarded<K: Listed>(
    api: &Api<K>,
    params: ListParams,
    mut each: impl FnMut(Result<K, InvalidObject>),
) -> anyhow::Result<()> {
    let (right, client) = (right("list", api), api.clone().into_client());
    let mut params = params.limit(PAGE);
    loop {
        let request = Request::new(api.resource_url()).list(&params).map_err(kube::Error::BuildRequest);
        let answer = async { client.request::<ObjectList<DeserializeGuard<K>>>(request?).await };
        let page = call(&right, answer).await?;
        page.items.into_iter().for_each(|object| each(object.0));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::api::{ApiResource, DynamicObject};

    use super::*;

    #[tokio::test]
    async fn call_is_made_again_in_a_wait_unless_its_answer_stays_the_same() {
        let answer = |code: u16| {
            let status = kube::core::Status::failure("no", "Reason").with_code(code).boxed();
            failure("get nodes", kube::Error::Api(status))
        };
        let client = kube::Client::try_from(kube::Config::new("https://127.0.0.1:1".parse().unwrap())).unwrap();
        let unreadable = serde_json::from_str::<u8>("x").unwrap_err();
        let login = kube::Error::Service(Box::new(AuthError::ExecPluginFailed));
        for (sentence, error, expected) in [
            ("not reached", call("get /version", client.apiserver_version()).await.unwrap_err(), true),
            ("no answer in time", anyhow!(NoAnswer::to("get nodes")).context("cannot get nodes"), true),
            ("an error of the server", answer(500).context("in a wait"), true),
            ("its load balancer", answer(502), true),
            ("too many requests", answer(429), true),
            ("no valid user", answer(401), false),
            ("no credentials from their plugin", failure("get nodes", login), false),
            ("not allowed", answer(403), false),
            ("gone", answer(404), false),
            ("invalid", answer(422), false),
            ("unreadable", failure("get nodes", kube::Error::SerdeError(unreadable)), false),
            ("of the plugin", anyhow!("its shadow is gone"), false),
        ] {
            assert_eq!(is_transient(&error), expected, "{sentence}: {error:#}");
        }
    }

    #[tokio::test]
    async fn right_of_a_call_names_the_resource_and_where_it_is() {
        let client = kube::Client::try_from(kube::Config::new("http://localhost".parse().unwrap())).unwrap();
        let (in_one, everywhere) = (Api::<Pod>::namespaced(client.clone(), "n"), Api::<Pod>::all(client.clone()));
        let untyped = Api::<DynamicObject>::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
        assert_eq!(right("get", &in_one), "get pods in n");
        assert_eq!(right("list", &in_one), "list pods in n");
        assert_eq!(right("list", &everywhere), "list pods in all namespaces");
        assert_eq!(right("list", &untyped), "list pods in all namespaces");
        assert_eq!(right("get", &untyped), "get pods", "an object of the cluster");
        assert_eq!(right("list", &Api::<Node>::all(client)), "list nodes");
    }

    #[test]
    fn command_of_which_a_call_that_only_reads_has_no_answer_is_not_said_to_go_on() {
        for (right, expected) in [
            ("list nodes", "no answer within 35 s; run the command again"),
            ("patch nodes", "no answer within 35 s; run the command again: it goes on from there"),
        ] {
            assert_eq!(NoAnswer::to(right).to_string(), expected);
        }
    }

    #[test]
    fn right_is_named_as_missing_where_that_is_the_reason_of_a_refusal() {
        let rights = "deployments.apps \"a\" is forbidden: User \"b\" cannot create resource \"deployments\" in API group \"apps\" in the \
                      namespace \"c\"";
        let escalation = "clusterroles.rbac.authorization.k8s.io \"a\" is forbidden: user \"b\" (groups=[\"d\"]) is attempting to grant \
                          RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"delete\"]}";
        let ending = "deployments.apps \"a\" is forbidden: unable to create new content in namespace c because it is being terminated";
        let quota = "deployments.apps \"a\" is forbidden: exceeded quota: d, requested: count/deployments.apps=1, used: 0, limited: 0";
        let webhook = format!("admission webhook \"validation.gatekeeper.sh\" denied the request: {rights}");
        for (sentence, call, answer, expected) in [
            ("RBAC", "create deployments in c", rights, true),
            ("a role with more rights than the user", "apply ClusterRole a", escalation, true),
            ("a namespace that is being deleted", "apply Deployment c/a", ending, false),
            ("a quota", "apply Deployment c/a", quota, false),
            ("an admission check", "apply Deployment c/a", webhook.as_str(), false),
            ("a reading, of which there is no admission check", "list nodes", "no", true),
        ] {
            let status = kube::core::Status::failure(answer, "Forbidden").with_code(403).boxed();
            let text = format!("{:#}", failure(call, kube::Error::Api(status)));
            let what = if expected { "you need the right to" } else { "cannot" };
            assert!(
                text.starts_with(&format!("{what} {call}: the API server answers 403: {answer}")),
                "{sentence}: {text}"
            );
            assert_eq!(
                text.ends_with("an administrator can grant it (docs/plugin.md, Rights)"),
                expected,
                "{sentence}: {text}"
            );
        }
    }

    #[tokio::test]
    async fn error_of_unreachable_server_has_its_url() {
        let config = kube::Config::new("https://127.0.0.1:1".parse().unwrap());
        let url = config.cluster_url.clone();
        let client = kube::Client::try_from(config).unwrap();
        let error = call("get /version", client.apiserver_version()).await.unwrap_err();
        let text = format!("{:#}", name_server(error, &url));
        assert!(text.starts_with("the API server https://127.0.0.1:1/ cannot be reached"), "{text}");
        assert!(text.contains("cannot get /version"), "{text}");
        let status = kube::core::Status::failure("no", "Forbidden").with_code(403).boxed();
        let refused = name_server(failure("list nodes", kube::Error::Api(status)), &url);
        assert_eq!(refused.to_string(), "you need the right to list nodes");
        let login = kube::Error::Service(Box::new(AuthError::ExecPluginFailed));
        assert_eq!(name_server(failure("list nodes", login), &url).to_string(), "cannot list nodes");
        let slow = anyhow!(NoAnswer::to("list nodes")).context("cannot list nodes");
        assert_eq!(name_server(slow, &url).to_string(), "cannot list nodes", "it was reached");
    }

    #[test]
    fn part_that_may_not_be_read_or_has_no_answer_is_noted_and_another_failure_is_an_error() {
        let answer = |code: u16| {
            let status = kube::core::Status::failure("no", "Reason").with_code(code).boxed();
            failure("list nodes", kube::Error::Api(status))
        };
        for (sentence, error, expected) in [
            ("not allowed", answer(403), Some("you need the right to list nodes")),
            ("a slow API server", answer(504), Some("cannot list nodes: the API server answers 504: no")),
            ("too many requests", answer(429), Some("cannot list nodes: the API server answers 429: no")),
            (
                "no answer in time",
                anyhow!(NoAnswer::to("list nodes")).context("cannot list nodes"),
                Some("cannot list nodes: no answer within 35 s"),
            ),
            ("no valid user", answer(401), None),
        ] {
            let mut noted = None;
            let read = if_read::<()>(Err(error), |note| noted = Some(note));
            assert_eq!(noted.as_deref(), expected, "{sentence}");
            assert_eq!(read.ok(), expected.map(|_| None), "{sentence}");
        }
    }
}
