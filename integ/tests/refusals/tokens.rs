//! Tokens other than that of the attacked node's agent.

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use k8s_openapi::api::core::v1::Pod;
use models::names::{AGENT, AGENT_NAMESPACE, APISERVER, CONTROLLER, SYSTEM_NAMESPACE, TOKEN_AUDIENCE};
use serde_json::{Value, json};

use crate::cases;
use crate::deleted_objects::create_pod_on_node;
use crate::raw::Request;
use crate::refusal_test::{FORBIDDEN, OTHER_NODE, RefusalTest, TARGET_NODE, UNAUTHORIZED, agent_pod, token};

cases![
    request_without_token_is_refused,
    token_of_other_client_is_refused,
    token_with_other_audience_time_or_issuer_is_refused,
    token_that_the_cluster_did_not_sign_is_refused,
    malformed_token_is_refused,
];

/// A sentence about a token, the token, the refusal and its reason in the log.
type Row = (&'static str, String, (u16, &'static str), &'static str);

async fn all_refused(refusal_test: &RefusalTest, rows: Vec<Row>) -> anyhow::Result<()> {
    for (sentence, token, expected, reason) in rows {
        refusal_test.assert_token_refused(&token, expected, reason).await.context(sentence)?;
    }
    Ok(())
}

async fn request_without_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let own = &refusal_test.own;
    refusal_test.assert_refused_everywhere(|request| request, UNAUTHORIZED, "NoToken").await?;
    let in_other_scheme = |request: Request| request.header("Authorization", format!("Basic {own}"));
    refusal_test
        .assert_refused_everywhere(in_other_scheme, UNAUTHORIZED, "NoToken")
        .await
        .context("in another scheme")?;
    let in_query = |mut request: Request| {
        request.path = format!("{}?access_token={own}&token={own}", request.path);
        request
    };
    refusal_test.assert_refused_everywhere(in_query, UNAUTHORIZED, "NoToken").await.context("in the query")
}

/// A token for the web API.
async fn token_of(
    refusal_test: &RefusalTest,
    namespace: &str,
    account: &str,
    pod: Option<&Pod>,
) -> anyhow::Result<String> {
    token(&refusal_test.bed, namespace, account, TOKEN_AUDIENCE, pod).await
}

async fn token_of_other_client_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let bed = &refusal_test.bed;
    let others = refusal_test.agents_token(OTHER_NODE).await?;
    let name = agent_pod(bed, TARGET_NODE).await?.metadata.name.unwrap_or_default();
    let elsewhere = create_pod_on_node(bed, "elsewhere", AGENT, &name, TARGET_NODE).await?;
    let elsewhere = token_of(refusal_test, "elsewhere", AGENT, Some(&elsewhere)).await?;
    let neighbour = create_pod_on_node(bed, AGENT_NAMESPACE, "neighbour", "neighbour", TARGET_NODE).await?;
    let neighbour = token_of(refusal_test, AGENT_NAMESPACE, "neighbour", Some(&neighbour)).await?;
    let unbound = token_of(refusal_test, AGENT_NAMESPACE, AGENT, None).await?;
    let web_api = token_of(refusal_test, SYSTEM_NAMESPACE, APISERVER, None).await?;
    let controller = token_of(refusal_test, SYSTEM_NAMESPACE, CONTROLLER, None).await?;
    let rows = vec![
        ("an agent on another node", others.clone(), FORBIDDEN, "OtherNode"),
        ("a pod of that name in another namespace", elsewhere, FORBIDDEN, "OtherAccount"),
        ("another account on the same node", neighbour, FORBIDDEN, "OtherAccount"),
        ("the agents' account, without a pod", unbound, FORBIDDEN, "NoPod"),
        ("the web API", web_api, FORBIDDEN, "OtherAccount"),
        ("the controller", controller, FORBIDDEN, "OtherAccount"),
    ];
    all_refused(refusal_test, rows).await?;
    let user = format!("system:serviceaccount:{AGENT_NAMESPACE}:{AGENT}");
    let impersonates = |request: Request| {
        request
            .bearer(&others)
            .header("Impersonate-User", &user)
            .header("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", TARGET_NODE)
            .header("X-Remote-User", &user)
            .header("X-Remote-Extra-authentication.kubernetes.io%2Fnode-name", TARGET_NODE)
            .header("X-Forwarded-For", "127.0.0.1")
    };
    refusal_test
        .assert_refused_everywhere(impersonates, FORBIDDEN, "OtherNode")
        .await
        .context("an agent that impersonates another one")
}

/// The agent's own token with its times shifted by so many hours, signed with the cluster's key.
fn shifted(refusal_test: &RefusalTest, hours: i64) -> anyhow::Result<String> {
    refusal_test.signed_with(|claims| {
        for time in ["exp", "nbf", "iat"] {
            claims[time] = json!(claims[time].as_i64().unwrap_or_default() + hours * 3600);
        }
    })
}

/// The same of another issuer. Only the API server knows which issuers it accepts.
fn of_other_issuer(refusal_test: &RefusalTest) -> anyhow::Result<String> {
    refusal_test.signed_with(|claims| claims["iss"] = json!("https://elsewhere.invalid"))
}

async fn token_with_other_audience_time_or_issuer_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let issuer = RefusalTest::claims(&refusal_test.own)?["iss"].as_str().unwrap_or_default().to_owned();
    let pod = agent_pod(&refusal_test.bed, TARGET_NODE).await?;
    let for_api_server = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, &issuer, Some(&pod)).await?;
    let for_other = token(&refusal_test.bed, AGENT_NAMESPACE, AGENT, "other-audience", Some(&pod)).await?;
    let of_no_pod = refusal_test.signed_with(|claims| {
        claims["kubernetes.io"]["pod"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    })?;
    let rows = vec![
        ("for the API server", for_api_server, UNAUTHORIZED, "WrongAudience"),
        ("for another server", for_other, UNAUTHORIZED, "WrongAudience"),
        ("expired", shifted(refusal_test, -24)?, UNAUTHORIZED, "Expired"),
        ("not valid yet", shifted(refusal_test, 24)?, UNAUTHORIZED, "NotYetValid"),
        ("of another issuer", of_other_issuer(refusal_test)?, UNAUTHORIZED, "NotAuthenticated"),
        ("of a pod that does not exist", of_no_pod, UNAUTHORIZED, "NotAuthenticated"),
    ];
    all_refused(refusal_test, rows).await
}

/// The agent's own claims, signed with another key.
fn signed_by(refusal_test: &RefusalTest, header: &Header, key: &EncodingKey) -> anyhow::Result<String> {
    Ok(jsonwebtoken::encode(header, &RefusalTest::claims(&refusal_test.own)?, key)?)
}

async fn token_that_the_cluster_did_not_sign_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let others = refusal_test.agents_token(OTHER_NODE).await?;
    let (head, _) = others.split_once('.').context("a token has three parts")?;
    let (_, others_signature) = others.rsplit_once('.').context("a token has three parts")?;
    let (signed, signature) = refusal_test.own.rsplit_once('.').context("a token has three parts")?;
    let (_, payload) = signed.split_once('.').context("a token has three parts")?;
    let foreign = of_other_issuer(refusal_test)?;
    let (foreign, _) = foreign.rsplit_once('.').context("a token has three parts")?;
    let id = RefusalTest::header(&refusal_test.own)?.kid;
    let with_id = |kid: Option<String>, algorithm| Header { kid, ..Header::new(algorithm) };
    let own_key = EncodingKey::from_ec_der(&rcgen::KeyPair::generate()?.serialize_der());
    let public = std::fs::read(refusal_test.bed.control_plane.service_account_key_file().with_extension("pub"))?;
    let secret = EncodingKey::from_secret(&public);
    let under_its_id = signed_by(refusal_test, &with_id(id.clone(), Algorithm::ES256), &own_key)?;
    let without_id = signed_by(refusal_test, &with_id(None, Algorithm::ES256), &own_key)?;
    let by_public_key = signed_by(refusal_test, &with_id(id, Algorithm::HS256), &secret)?;
    let rows = vec![
        ("half of the signature", format!("{signed}.{}", &signature[..signature.len() / 2]), UNAUTHORIZED, "Forged"),
        ("another key, under the id of the cluster's", under_its_id, UNAUTHORIZED, "Forged"),
        ("another key, without an id", without_id, UNAUTHORIZED, "UnknownKey"),
        ("the public key as a secret", by_public_key, UNAUTHORIZED, "Forged"),
        ("the claims of another token", format!("{head}.{payload}.{others_signature}"), UNAUTHORIZED, "Forged"),
        ("another issuer, and no signature", format!("{foreign}.{}", "A".repeat(342)), UNAUTHORIZED, "Forged"),
    ];
    all_refused(refusal_test, rows).await
}

async fn malformed_token_is_refused(refusal_test: &RefusalTest) -> anyhow::Result<()> {
    let own = &refusal_test.own;
    let header: Value = json!({"alg": "none", "kid": RefusalTest::header(own)?.kid, "typ": "JWT"});
    let header = URL_SAFE_NO_PAD.encode(header.to_string());
    let unsigned = format!("{header}.{}.", own.split('.').nth(1).unwrap_or_default());
    let rows = vec![
        ("a word", "x".to_owned(), UNAUTHORIZED, "MalformedToken"),
        ("three empty objects", "e30.e30.e30".to_owned(), UNAUTHORIZED, "MalformedToken"),
        ("unsigned", unsigned, UNAUTHORIZED, "MalformedToken"),
        ("too long", format!("{own}.{}", "A".repeat(8 * 1024)), UNAUTHORIZED, "MalformedToken"),
    ];
    all_refused(refusal_test, rows).await?;
    // A head that is too large is refused before its token is read.
    refusal_test.assert_large_token_refused(&"A".repeat(64 * 1024)).await?;
    let not_utf8 = [b"Bearer ".as_slice(), &[0xff, 0xfe, 0x80], own.as_bytes()].concat();
    for (sentence, header) in [("empty", b"Bearer ".to_vec()), ("not UTF-8", not_utf8)] {
        let with_header = |request: Request| request.header("Authorization", &header);
        refusal_test.assert_refused_everywhere(with_header, UNAUTHORIZED, "MalformedToken").await.context(sentence)?;
    }
    let twice = |request: Request| request.bearer(own).bearer(own);
    refusal_test.assert_refused_everywhere(twice, UNAUTHORIZED, "MalformedToken").await.context("two tokens")
}
