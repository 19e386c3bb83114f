//! The access that the components' tokens give to the cluster's own API.

use anyhow::ensure;
use integ::control_plane::ControlPlane;
use models::names::{
    AGENT, AGENT_NAMESPACE, APISERVER, CA_SECRET, PERMIT_KEY_SECRET, SERVING_SECRET, SYSTEM_NAMESPACE,
};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::cases;
use crate::refusal_test::{RefusalTest, TARGET_NODE, agent_pod, token};

cases![
    api_server_refuses_web_api_token_of_agent,
    agent_account_has_no_api_server_permissions,
    web_api_account_may_not_write_or_delete_shadows,
    web_api_account_may_not_access_nodes_pods_or_secrets,
];

struct ApiServerClient {
    client: Client,
    url: String,
}

impl ApiServerClient {
    fn of(control_plane: &ControlPlane) -> anyhow::Result<Self> {
        let ca = reqwest::Certificate::from_pem(control_plane.ca_pem().as_bytes())?;
        let client = Client::builder().no_proxy().tls_certs_only([ca]).build()?;
        Ok(Self { client, url: control_plane.url().to_owned() })
    }

    async fn request(&self, method: Method, path: &str, token: &str, body: Option<Value>) -> anyhow::Result<u16> {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(token);
        if let Some(body) = body {
            request = request.header("Content-Type", "application/merge-patch+json").body(body.to_string());
        }
        Ok(request.send().await?.status().as_u16())
    }
}

fn shadow(rest: &str) -> String {
    format!(
        "/apis/brupop.bottlerocket.aws/v3/namespaces/{SYSTEM_NAMESPACE}/bottlerocketshadows/brs-{TARGET_NODE}{rest}"
    )
}

/// Read and write requests for all relevant objects.
fn api_requests() -> Vec<(Method, String, Option<Value>)> {
    let patch = || Some(json!({"metadata": {"labels": {"x": "y"}}}));
    vec![
        (Method::GET, shadow(""), None),
        (Method::PATCH, shadow(""), Some(json!({"spec": {"state": "RebootedIntoUpdate"}}))),
        (Method::PATCH, shadow("/status"), Some(json!({"status": {"state": "RebootedIntoUpdate"}}))),
        (Method::DELETE, shadow(""), None),
        (Method::GET, "/api/v1/nodes".into(), None),
        (Method::GET, format!("/api/v1/nodes/{TARGET_NODE}"), None),
        (Method::PATCH, format!("/api/v1/nodes/{TARGET_NODE}"), patch()),
        (Method::GET, "/api/v1/pods".into(), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{CA_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{PERMIT_KEY_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SERVING_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"), None),
    ]
}

async fn api_server_refuses_web_api_token_of_agent(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let cluster = ApiServerClient::of(&refusal_test.bed.control_plane)?;
    for (method, path, body) in api_requests() {
        let status = cluster.request(method.clone(), &path, &refusal_test.own, body).await?;
        ensure!(status == 401, "{method} {path}: {status}");
    }
    Ok(())
}

/// A token of an account for the cluster's own API.
async fn api_server_token(refusal_test: &RefusalTest, namespace: &str, account: &str) -> anyhow::Result<String> {
    let issuer = RefusalTest::claims(&refusal_test.own)?["iss"].as_str().unwrap_or_default().to_owned();
    token(&refusal_test.bed, namespace, account, &issuer, None).await
}

async fn agent_account_has_no_api_server_permissions(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let cluster = ApiServerClient::of(&refusal_test.bed.control_plane)?;
    let token = api_server_token(refusal_test, AGENT_NAMESPACE, AGENT).await?;
    for (method, path, body) in api_requests() {
        let status = cluster.request(method.clone(), &path, &token, body).await?;
        ensure!(status == 403, "{method} {path}: {status}");
    }
    Ok(())
}

async fn web_api_account_may_not_write_or_delete_shadows(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let cluster = ApiServerClient::of(&refusal_test.bed.control_plane)?;
    let token = api_server_token(refusal_test, SYSTEM_NAMESPACE, APISERVER).await?;
    ensure!(cluster.request(Method::GET, &shadow(""), &token, None).await? == 200, "it reads shadows");
    for method in [Method::PATCH, Method::PUT, Method::DELETE] {
        let order = json!({"spec": {"state": "RebootedIntoUpdate", "attempt": 9}});
        let status = cluster.request(method.clone(), &shadow(""), &token, Some(order)).await?;
        ensure!(status == 403, "{method}: {status}");
    }
    // The API server drops the rest of the object in a write to the status, its spec included.
    Ok(())
}

async fn web_api_account_may_not_access_nodes_pods_or_secrets(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let cluster = ApiServerClient::of(&refusal_test.bed.control_plane)?;
    let token = api_server_token(refusal_test, SYSTEM_NAMESPACE, APISERVER).await?;
    for (method, path, body) in api_requests().into_iter().filter(|(_, path, _)| !path.contains("bottlerocketshadows"))
    {
        let status = cluster.request(method.clone(), &path, &token, body).await?;
        ensure!(status == 403, "{method} {path}: {status}");
    }
    let pod = agent_pod(&refusal_test.bed, TARGET_NODE).await?.metadata.name.unwrap_or_default();
    let eviction = format!("/api/v1/namespaces/{AGENT_NAMESPACE}/pods/{pod}/eviction");
    ensure!(cluster.request(Method::POST, &eviction, &token, Some(json!({}))).await? == 403);
    Ok(())
}
