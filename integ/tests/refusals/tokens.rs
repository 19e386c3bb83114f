//! Tokens other than that of the attacked node's agent.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use models::names::{AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, SYSTEM_NAMESPACE, TOKEN_AUDIENCE};
use serde_json::{Value, json};

use crate::cases;
use crate::deleted_objects::create_pod_on_node;
use crate::refusal_test::{FORBIDDEN, OTHER_NODE, RefusalTest, TARGET_NODE, UNAUTHORIZED, agent_pod, token};

cases![
    request_without_token_is_refused,
    token_of_agent_on_other_node_is_refused,
    token_of_pod_in_other_namespace_is_refused,
    token_of_other_account_on_same_node_is_refused,
    token_without_pod_binding_is_refused,
    token_of_web_api_is_refused,
    token_of_controller_is_refused,
    token_with_api_server_audience_is_refused,
    token_with_other_audience_is_refused,
    expired_token_is_refused,
    token_not_yet_valid_is_refused,
    token_of_other_issuer_is_refused,
    malformed_token_is_refused,
    oversized_token_is_refused,
    empty_token_is_refused,
    unsigned_token_is_refused,
    token_with_truncated_signature_is_refused,
    self_signed_token_with_cluster_key_id_is_refused,
    self_signed_token_with_unknown_key_id_is_refused,
    token_signed_with_public_key_as_hmac_secret_is_refused,
    token_with_altered_claims_is_refused,
    token_of_nonexistent_pod_is_refused,
    duplicate_authorization_headers_are_refused,
    token_in_other_authentication_scheme_is_refused,
    token_in_query_string_is_refused,
    impersonation_headers_are_ignored,
    token_with_invalid_utf8_is_refused,
];

async fn request_without_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    refusal_test.assert_refused_everywhere(|request| request, UNAUTHORIZED, "NoToken").await
}

async fn token_of_agent_on_other_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    refusal_test.assert_token_refused(&refusal_test.agents_token(OTHER_NODE).await?, FORBIDDEN, "OtherNode").await
}

async fn token_of_pod_in_other_namespace_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let name = agent_pod(&refusal_test.bed, TARGET_NODE).await?.metadata.name.unwrap_or_default();
    let pod = create_pod_on_node(&refusal_test.bed, "elsewhere", AGENT, &name, TARGET_NODE).await?;
    let token = token(&refusal_test.bed, "elsewhere", AGENT, TOKEN_AUDIENCE, Some(&pod)).await?;
    refusal_test.assert_token_refused(&token, FORBIDDEN, "OtherAccount").await
}

async fn token_of_other_account_on_same_node_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let pod = create_pod_on_node(&refusal_test.bed, AGENT_NAMESPACE, "neighbour", "neighbour", TARGET_NODE).await?;
    let token = token(&refusal_test.bed, AGENT_NAMESPACE, "neighbour", TOKEN_AUDIENCE, Some(&pod)).await?;
    refusal_test.assert_token_refused(&token, FORBIDDEN, "OtherAccount").await
}

async fn token_without_pod_binding_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, TOKEN_AUDIENCE, None).await?;
    refusal_test.assert_token_refused(&token, FORBIDDEN, "NoPod").await
}

async fn token_of_web_api_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = token(&refusal_test.bed, SYSTEM_NAMESPACE, APISERVER, TOKEN_AUDIENCE, None).await?;
    refusal_test.assert_token_refused(&token, FORBIDDEN, "OtherAccount").await
}

async fn token_of_controller_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = token(&refusal_test.bed, SYSTEM_NAMESPACE, CONTROLLER, TOKEN_AUDIENCE, None).await?;
    refusal_test.assert_token_refused(&token, FORBIDDEN, "OtherAccount").await
}

async fn token_with_api_server_audience_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let issuer = RefusalTest::claims(&refusal_test.own)?["iss"].as_str().unwrap_or_default().to_owned();
    let pod = agent_pod(&refusal_test.bed, TARGET_NODE).await?;
    let token = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, &issuer, Some(&pod)).await?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "WrongAudience").await
}

async fn token_with_other_audience_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let pod = agent_pod(&refusal_test.bed, TARGET_NODE).await?;
    let token = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, "other-audience", Some(&pod)).await?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "WrongAudience").await
}

/// Shifts the times of a token by seconds.
fn shifted(claims: &mut Value, seconds: i64) {
    for time in ["exp", "nbf", "iat"] {
        claims[time] = json!(claims[time].as_i64().unwrap_or_default() + seconds);
    }
}

async fn expired_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = refusal_test.signed_with(|claims| shifted(claims, -24 * 3600))?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "Expired").await
}

async fn token_not_yet_valid_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = refusal_test.signed_with(|claims| shifted(claims, 24 * 3600))?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "NotYetValid").await
}

async fn token_of_other_issuer_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    // Signed with the cluster's own key: only the API server knows which issuers it accepts.
    let token = refusal_test.signed_with(|claims| claims["iss"] = json!("https://elsewhere.invalid"))?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "NotAuthenticated").await?;
    // Without the signature, the issuer in a token does not help.
    let (head, _) = token.rsplit_once('.').context("a token has three parts")?;
    refusal_test.assert_token_refused(&format!("{head}.{}", "A".repeat(342)), UNAUTHORIZED, "Forged").await
}

async fn malformed_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for token in ["x", "not.a.token", "..", "e30.e30.e30", "null", "eyJhbGciOiJFUzI1NiJ9"] {
        refusal_test.assert_token_refused(token, UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn oversized_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    refusal_test
        .assert_token_refused(&format!("{}.{}", refusal_test.own, "A".repeat(8 * 1024)), UNAUTHORIZED, "MalformedToken")
        .await?;
    // A head that is too large is refused before its token is read.
    refusal_test.assert_large_token_refused(&"A".repeat(64 * 1024)).await
}

async fn empty_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for header in ["Bearer", "Bearer ", "Bearer   ", ""] {
        refusal_test
            .assert_refused_everywhere(
                |request| request.header("Authorization", header),
                UNAUTHORIZED,
                "MalformedToken",
            )
            .await?;
    }
    Ok(())
}

async fn unsigned_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let payload = refusal_test.own.split('.').nth(1).unwrap_or_default();
    let id = RefusalTest::header(&refusal_test.own)?.kid;
    for algorithm in ["none", "None", "nOnE", ""] {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": algorithm, "kid": id, "typ": "JWT"}).to_string());
        refusal_test.assert_token_refused(&format!("{header}.{payload}."), UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn token_with_truncated_signature_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let (signed, signature) = refusal_test.own.rsplit_once('.').unwrap_or_default();
    for signature in ["", &signature[..signature.len() / 2], &signature[..signature.len() - 1]] {
        refusal_test.assert_token_refused(&format!("{signed}.{signature}"), UNAUTHORIZED, "Forged").await?;
    }
    Ok(())
}

/// The agent's own claims, signed with another key.
fn self_signed(refusal_test: &RefusalTest, id: Option<String>) -> anyhow::Result<String> {
    let key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate()?.serialize_der());
    let header = Header { kid: id, ..Header::new(Algorithm::ES256) };
    Ok(jsonwebtoken::encode(&header, &RefusalTest::claims(&refusal_test.own)?, &key)?)
}

async fn self_signed_token_with_cluster_key_id_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = self_signed(refusal_test, RefusalTest::header(&refusal_test.own)?.kid)?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "Forged").await
}

async fn self_signed_token_with_unknown_key_id_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for id in [None, Some("mine".to_owned()), Some("../../etc/passwd".to_owned())] {
        refusal_test.assert_token_refused(&self_signed(refusal_test, id)?, UNAUTHORIZED, "UnknownKey").await?;
    }
    Ok(())
}

async fn token_signed_with_public_key_as_hmac_secret_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let public = std::fs::read(refusal_test.bed.control_plane.service_account_key_file().with_extension("pub"))?;
    let header = Header { kid: RefusalTest::header(&refusal_test.own)?.kid, ..Header::new(Algorithm::HS256) };
    let token =
        jsonwebtoken::encode(&header, &RefusalTest::claims(&refusal_test.own)?, &EncodingKey::from_secret(&public))?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "Forged").await
}

async fn token_with_altered_claims_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let others = refusal_test.agents_token(OTHER_NODE).await?;
    let mut parts: Vec<&str> = others.split('.').collect();
    let wanted = refusal_test.own.split('.').nth(1).unwrap_or_default();
    parts[1] = wanted;
    refusal_test.assert_token_refused(&parts.join("."), UNAUTHORIZED, "Forged").await
}

async fn token_of_nonexistent_pod_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let token = refusal_test.signed_with(|claims| {
        claims["kubernetes.io"]["pod"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    })?;
    refusal_test.assert_token_refused(&token, UNAUTHORIZED, "NotAuthenticated").await
}

async fn duplicate_authorization_headers_are_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let others = refusal_test.agents_token(OTHER_NODE).await?;
    for (first, second) in
        [(&refusal_test.own, &others), (&others, &refusal_test.own), (&refusal_test.own, &refusal_test.own)]
    {
        refusal_test
            .assert_refused_everywhere(|request| request.bearer(first).bearer(second), UNAUTHORIZED, "MalformedToken")
            .await?;
    }
    Ok(())
}

async fn token_in_other_authentication_scheme_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    for scheme in ["Basic", "Token", "Negotiate"] {
        let header = format!("{scheme} {}", refusal_test.own);
        refusal_test
            .assert_refused_everywhere(|request| request.header("Authorization", &header), UNAUTHORIZED, "NoToken")
            .await?;
    }
    Ok(())
}

async fn token_in_query_string_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let add = |mut request: crate::raw::Request| {
        request.path = format!("{}?access_token={}&token={}", request.path, refusal_test.own, refusal_test.own);
        request
    };
    refusal_test.assert_refused_everywhere(add, UNAUTHORIZED, "NoToken").await
}

async fn impersonation_headers_are_ignored(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let others = refusal_test.agents_token(OTHER_NODE).await?;
    let user = format!("system:serviceaccount:{AGENT_NAMESPACE}:{AGENT}");
    let alter_request = |request: crate::raw::Request| {
        request
            .bearer(&others)
            .header("Impersonate-User", &user)
            .header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", TARGET_NODE)
            .header("X-Remote-User", &user)
            .header("X-Remote-Extra-authentication.kubernetes.io%2Fnode-name", TARGET_NODE)
            .header("X-Forwarded-For", "127.0.0.1")
    };
    refusal_test.assert_refused_everywhere(alter_request, FORBIDDEN, "OtherNode").await
}

async fn token_with_invalid_utf8_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let header = [b"Bearer ".as_slice(), &[0xff, 0xfe, 0x80], refusal_test.own.as_bytes()].concat();
    refusal_test
        .assert_refused_everywhere(|request| request.header("Authorization", &header), UNAUTHORIZED, "MalformedToken")
        .await
}
