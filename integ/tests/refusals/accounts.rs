//! The access that an agent's tokens give to the cluster's own API.

use anyhow::ensure;
use models::names::{AGENT, AGENT_NAMESPACE, CA_SECRET, PERMIT_KEY_SECRET, SERVING_SECRET, SYSTEM_NAMESPACE};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::cases;
use crate::refusal_test::{RefusalTest, TARGET_NODE, token};

cases![api_server_refuses_web_api_token_of_agent, agent_account_has_no_api_server_permissions,];

fn shadow(rest: &str) -> String {
    format!(
        "/apis/brupop.bottlerocket.aws/v3/namespaces/{SYSTEM_NAMESPACE}/bottlerocketshadows/brs-{TARGET_NODE}{rest}"
    )
}

/// Read and write requests for all relevant objects.
fn api_requests() -> Vec<(Method, String, Option<Value>)> {
    let label = json!({"metadata": {"labels": {"x": "y"}}});
    vec![
        (Method::GET, shadow(""), None),
        (Method::PATCH, shadow(""), Some(json!({"spec": {"state": "RebootedIntoUpdate"}}))),
        (Method::PATCH, shadow("/status"), Some(json!({"status": {"state": "RebootedIntoUpdate"}}))),
        (Method::DELETE, shadow(""), None),
        (Method::GET, "/api/v1/nodes".into(), None),
        (Method::GET, format!("/api/v1/nodes/{TARGET_NODE}"), None),
        (Method::PATCH, format!("/api/v1/nodes/{TARGET_NODE}"), Some(label)),
        (Method::GET, "/api/v1/pods".into(), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{CA_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{PERMIT_KEY_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/{SERVING_SECRET}"), None),
        (Method::GET, format!("/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"), None),
    ]
}

/// Sends all of these requests with a token, and checks the status of each answer.
async fn assert_all_answered(refusal_test: &RefusalTest, token: &str, expected: u16) -> anyhow::Result<()> {
    let control_plane = &refusal_test.bed.control_plane;
    let ca = reqwest::Certificate::from_pem(control_plane.ca_pem().as_bytes())?;
    let client = Client::builder().no_proxy().tls_certs_only([ca]).build()?;
    for (method, path, body) in api_requests() {
        let mut request = client.request(method.clone(), format!("{}{path}", control_plane.url())).bearer_auth(token);
        if let Some(body) = body {
            request = request.header("Content-Type", "application/merge-patch+json").body(body.to_string());
        }
        let status = request.send().await?.status().as_u16();
        ensure!(status == expected, "{method} {path}: {status}");
    }
    Ok(())
}

async fn api_server_refuses_web_api_token_of_agent(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    assert_all_answered(refusal_test, &refusal_test.own, 401).await
}

async fn agent_account_has_no_api_server_permissions(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let issuer = RefusalTest::claims(&refusal_test.own)?["iss"].as_str().unwrap_or_default().to_owned();
    let token = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, &issuer, None).await?;
    assert_all_answered(refusal_test, &token, 403).await
}
