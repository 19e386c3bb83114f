//! Tokens other than that of the attacked node's agent.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use models::names::{AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, SYSTEM_NAMESPACE, TOKEN_AUDIENCE};
use serde_json::{Value, json};

use crate::cases;
use crate::court::{Court, FORBIDDEN, OTHER, UNAUTHORIZED, WANTED, agent_pod, token};
use crate::gone::pod_on;

cases![
    none,
    of_another_nodes_agent,
    of_a_pod_of_the_same_name_in_another_namespace,
    of_another_account_beside_the_agent_on_the_node,
    of_the_right_account_bound_to_no_pod,
    of_the_web_api_itself,
    of_the_controller,
    for_the_clusters_own_api,
    for_another_client,
    expired,
    of_the_future,
    from_another_issuer,
    garbage,
    giant,
    empty,
    unsigned,
    with_a_signature_cut_short,
    signed_by_the_bearer_under_the_clusters_key_id,
    signed_by_the_bearer_under_a_key_id_of_his_own,
    signed_with_the_public_key_as_a_shared_secret,
    changed_after_it_was_signed,
    signed_by_the_cluster_for_a_pod_that_never_was,
    twice,
    of_another_scheme,
    in_the_query,
    that_impersonates,
    with_bytes_that_are_no_text,
];

async fn none(court: &Court) -> anyhow::Result<()> {
    court.refuses(|request| request, UNAUTHORIZED, "NoToken").await
}

async fn of_another_nodes_agent(court: &Court) -> anyhow::Result<()> {
    court.refuses_token(&court.agents_token(OTHER).await?, FORBIDDEN, "OtherNode").await
}

async fn of_a_pod_of_the_same_name_in_another_namespace(court: &Court) -> anyhow::Result<()> {
    let name = agent_pod(&court.bed, WANTED).await?.metadata.name.unwrap_or_default();
    let pod = pod_on(&court.bed, "elsewhere", AGENT, &name, WANTED).await?;
    let token = token(&court.bed, "elsewhere", AGENT, TOKEN_AUDIENCE, Some(&pod)).await?;
    court.refuses_token(&token, FORBIDDEN, "OtherAccount").await
}

async fn of_another_account_beside_the_agent_on_the_node(court: &Court) -> anyhow::Result<()> {
    let pod = pod_on(&court.bed, AGENT_NAMESPACE, "neighbour", "neighbour", WANTED).await?;
    let token = token(&court.bed, AGENT_NAMESPACE, "neighbour", TOKEN_AUDIENCE, Some(&pod)).await?;
    court.refuses_token(&token, FORBIDDEN, "OtherAccount").await
}

async fn of_the_right_account_bound_to_no_pod(court: &Court) -> anyhow::Result<()> {
    let token = token(&court.bed, AGENT_NAMESPACE, AGENT, TOKEN_AUDIENCE, None).await?;
    court.refuses_token(&token, FORBIDDEN, "NoPod").await
}

async fn of_the_web_api_itself(court: &Court) -> anyhow::Result<()> {
    let token = token(&court.bed, SYSTEM_NAMESPACE, APISERVER, TOKEN_AUDIENCE, None).await?;
    court.refuses_token(&token, FORBIDDEN, "OtherAccount").await
}

async fn of_the_controller(court: &Court) -> anyhow::Result<()> {
    let token = token(&court.bed, SYSTEM_NAMESPACE, CONTROLLER, TOKEN_AUDIENCE, None).await?;
    court.refuses_token(&token, FORBIDDEN, "OtherAccount").await
}

async fn for_the_clusters_own_api(court: &Court) -> anyhow::Result<()> {
    let issuer = Court::claims(&court.own)?["iss"].as_str().unwrap_or_default().to_owned();
    let pod = agent_pod(&court.bed, WANTED).await?;
    let token = token(&court.bed, AGENT_NAMESPACE, AGENT, &issuer, Some(&pod)).await?;
    court.refuses_token(&token, UNAUTHORIZED, "WrongAudience").await
}

async fn for_another_client(court: &Court) -> anyhow::Result<()> {
    let pod = agent_pod(&court.bed, WANTED).await?;
    let token = token(&court.bed, AGENT_NAMESPACE, AGENT, "other-audience", Some(&pod)).await?;
    court.refuses_token(&token, UNAUTHORIZED, "WrongAudience").await
}

/// Shifts the times of a token by seconds.
fn shifted(claims: &mut Value, seconds: i64) {
    for time in ["exp", "nbf", "iat"] {
        claims[time] = json!(claims[time].as_i64().unwrap_or_default() + seconds);
    }
}

async fn expired(court: &Court) -> anyhow::Result<()> {
    let token = court.signed_with(|claims| shifted(claims, -24 * 3600))?;
    court.refuses_token(&token, UNAUTHORIZED, "Expired").await
}

async fn of_the_future(court: &Court) -> anyhow::Result<()> {
    let token = court.signed_with(|claims| shifted(claims, 24 * 3600))?;
    court.refuses_token(&token, UNAUTHORIZED, "NotYetValid").await
}

async fn from_another_issuer(court: &Court) -> anyhow::Result<()> {
    // Signed with the cluster's own key: only the API server knows which issuers it accepts.
    let token = court.signed_with(|claims| claims["iss"] = json!("https://elsewhere.invalid"))?;
    court.refuses_token(&token, UNAUTHORIZED, "NotAuthenticated").await?;
    // Without the signature, the issuer in a token does not help.
    let (head, _) = token.rsplit_once('.').context("a token has three parts")?;
    court.refuses_token(&format!("{head}.{}", "A".repeat(342)), UNAUTHORIZED, "Forged").await
}

async fn garbage(court: &Court) -> anyhow::Result<()> {
    for garbage in ["x", "not.a.token", "..", "e30.e30.e30", "null", "eyJhbGciOiJFUzI1NiJ9"] {
        court.refuses_token(garbage, UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn giant(court: &Court) -> anyhow::Result<()> {
    court.refuses_token(&format!("{}.{}", court.own, "A".repeat(8 * 1024)), UNAUTHORIZED, "MalformedToken").await?;
    // A head that is too large is refused before its token is read.
    court.refuses_large(&"A".repeat(64 * 1024)).await
}

async fn empty(court: &Court) -> anyhow::Result<()> {
    for header in ["Bearer", "Bearer ", "Bearer   ", ""] {
        court.refuses(|request| request.header("Authorization", header), UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn unsigned(court: &Court) -> anyhow::Result<()> {
    let payload = court.own.split('.').nth(1).unwrap_or_default();
    let id = Court::header(&court.own)?.kid;
    for algorithm in ["none", "None", "nOnE", ""] {
        let header = URL_SAFE_NO_PAD.encode(json!({"alg": algorithm, "kid": id, "typ": "JWT"}).to_string());
        court.refuses_token(&format!("{header}.{payload}."), UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn with_a_signature_cut_short(court: &Court) -> anyhow::Result<()> {
    let (signed, signature) = court.own.rsplit_once('.').unwrap_or_default();
    for signature in ["", &signature[..signature.len() / 2], &signature[..signature.len() - 1]] {
        court.refuses_token(&format!("{signed}.{signature}"), UNAUTHORIZED, "Forged").await?;
    }
    Ok(())
}

/// The agent's own claims, signed with another key.
fn self_signed(court: &Court, id: Option<String>) -> anyhow::Result<String> {
    let key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate()?.serialize_der());
    let header = Header { kid: id, ..Header::new(Algorithm::ES256) };
    Ok(jsonwebtoken::encode(&header, &Court::claims(&court.own)?, &key)?)
}

async fn signed_by_the_bearer_under_the_clusters_key_id(court: &Court) -> anyhow::Result<()> {
    let token = self_signed(court, Court::header(&court.own)?.kid)?;
    court.refuses_token(&token, UNAUTHORIZED, "Forged").await
}

async fn signed_by_the_bearer_under_a_key_id_of_his_own(court: &Court) -> anyhow::Result<()> {
    for id in [None, Some("mine".to_owned()), Some("../../etc/passwd".to_owned())] {
        court.refuses_token(&self_signed(court, id)?, UNAUTHORIZED, "UnknownKey").await?;
    }
    Ok(())
}

async fn signed_with_the_public_key_as_a_shared_secret(court: &Court) -> anyhow::Result<()> {
    let public = std::fs::read(court.bed.control_plane.service_account_key_file().with_extension("pub"))?;
    let header = Header { kid: Court::header(&court.own)?.kid, ..Header::new(Algorithm::HS256) };
    let token = jsonwebtoken::encode(&header, &Court::claims(&court.own)?, &EncodingKey::from_secret(&public))?;
    court.refuses_token(&token, UNAUTHORIZED, "Forged").await
}

async fn changed_after_it_was_signed(court: &Court) -> anyhow::Result<()> {
    let others = court.agents_token(OTHER).await?;
    let mut parts: Vec<&str> = others.split('.').collect();
    let wanted = court.own.split('.').nth(1).unwrap_or_default();
    parts[1] = wanted;
    court.refuses_token(&parts.join("."), UNAUTHORIZED, "Forged").await
}

async fn signed_by_the_cluster_for_a_pod_that_never_was(court: &Court) -> anyhow::Result<()> {
    let token = court.signed_with(|claims| {
        claims["kubernetes.io"]["pod"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    })?;
    court.refuses_token(&token, UNAUTHORIZED, "NotAuthenticated").await
}

async fn twice(court: &Court) -> anyhow::Result<()> {
    let others = court.agents_token(OTHER).await?;
    for (first, second) in [(&court.own, &others), (&others, &court.own), (&court.own, &court.own)] {
        court.refuses(|request| request.bearer(first).bearer(second), UNAUTHORIZED, "MalformedToken").await?;
    }
    Ok(())
}

async fn of_another_scheme(court: &Court) -> anyhow::Result<()> {
    for scheme in ["Basic", "Token", "Negotiate"] {
        let header = format!("{scheme} {}", court.own);
        court.refuses(|request| request.header("Authorization", &header), UNAUTHORIZED, "NoToken").await?;
    }
    Ok(())
}

async fn in_the_query(court: &Court) -> anyhow::Result<()> {
    let add = |mut request: crate::raw::Request| {
        request.path = format!("{}?access_token={}&token={}", request.path, court.own, court.own);
        request
    };
    court.refuses(add, UNAUTHORIZED, "NoToken").await
}

async fn that_impersonates(court: &Court) -> anyhow::Result<()> {
    let others = court.agents_token(OTHER).await?;
    let user = format!("system:serviceaccount:{AGENT_NAMESPACE}:{AGENT}");
    let dress = |request: crate::raw::Request| {
        request
            .bearer(&others)
            .header("Impersonate-User", &user)
            .header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", WANTED)
            .header("X-Remote-User", &user)
            .header("X-Remote-Extra-authentication.kubernetes.io%2Fnode-name", WANTED)
            .header("X-Forwarded-For", "127.0.0.1")
    };
    court.refuses(dress, FORBIDDEN, "OtherNode").await
}

async fn with_bytes_that_are_no_text(court: &Court) -> anyhow::Result<()> {
    let header = [b"Bearer ".as_slice(), &[0xff, 0xfe, 0x80], court.own.as_bytes()].concat();
    court.refuses(|request| request.header("Authorization", &header), UNAUTHORIZED, "MalformedToken").await
}
