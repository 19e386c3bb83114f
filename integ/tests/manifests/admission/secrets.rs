//! Secrets: the controller may write those that it makes, none of which can become a token.

use anyhow::Context as _;
use integ::control_plane::ControlPlane;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use models::names::{
    CA_SECRET, CONTROLLER, HISTORY_KEY_SECRET, NOTICES_SECRET, PERMIT_KEY_SECRET, PROMETHEUS_SECRET, SERVING_SECRET,
    SYSTEM_NAMESPACE,
};
use serde_json::{Value, json};

use super::{client_of, expect, tried};

const POLICY: (&str, &str) = ("brupop-controller-secrets", "brupop.yaml");
const TOKEN: &str = "kubernetes.io/service-account-token";
const TLS: &str = "kubernetes.io/tls";

/// The refusals, by a part of their messages.
const NAMES: &str = "writes no other Secrets";
const TYPES: &str = "writes Secrets of the types";
const TOKENS: &str = "a token put into a Secret";

pub(crate) async fn controller_may_write_only_its_secrets(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let admin: Api<Secret> = Api::namespaced(control_plane.client(), SYSTEM_NAMESPACE);
    let secrets: Api<Secret> = Api::namespaced(client_of(control_plane, CONTROLLER).await?, SYSTEM_NAMESPACE);
    let account = json!({"kubernetes.io/service-account.name": CONTROLLER});
    let named = |name: &str, annotations: &Value| json!({"name": name, "annotations": annotations});
    let forgeries = [
        ("a lasting token under a name that it may read", (TOKEN, named(CA_SECRET, &account)), TYPES),
        ("an Opaque Secret that names an account", ("Opaque", named(CA_SECRET, &account)), TOKENS),
        ("a type that is not its own", ("example.com/other", named(CA_SECRET, &json!({}))), TYPES),
        ("receivers of notices", ("Opaque", named(NOTICES_SECRET, &json!({}))), NAMES),
        ("credentials for Prometheus", ("Opaque", named(PROMETHEUS_SECRET, &json!({}))), NAMES),
        ("a name that the API server completes", ("Opaque", json!({"generateName": CA_SECRET})), NAMES),
    ];
    let attempt = async |(type_, metadata): &(&'static str, Value)| create(&secrets, type_, metadata).await;
    tried(control_plane, POLICY, &forgeries, attempt).await?;

    for name in [CA_SECRET, SERVING_SECRET, PERMIT_KEY_SECRET, HISTORY_KEY_SECRET] {
        let type_ = if name == SERVING_SECRET { TLS } else { "Opaque" };
        create(&secrets, type_, &json!({"name": name})).await.with_context(|| name.to_owned())?;
    }
    let mut held = admin.create(&PostParams::default(), &secret("Opaque", &json!({"name": CA_SECRET}))?).await?;
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    held.metadata.labels = Some([("renewed".to_owned(), "1".to_owned())].into());
    secrets.replace(CA_SECRET, &dry, &held).await.context("a renewal")?;
    held.metadata.annotations = Some([("kubernetes.io/service-account.name".to_owned(), CONTROLLER.to_owned())].into());
    expect("an account named by a renewal", secrets.replace(CA_SECRET, &dry, &held).await, Some(TOKENS))?;
    admin.delete(CA_SECRET, &DeleteParams::default()).await?;
    Ok(())
}

/// Creates a Secret, as a dry run.
async fn create(secrets: &Api<Secret>, type_: &str, metadata: &Value) -> kube::Result<Secret> {
    let secret = secret(type_, metadata).map_err(kube::Error::SerdeError)?;
    secrets.create(&PostParams { dry_run: true, ..PostParams::default() }, &secret).await
}

fn secret(type_: &str, metadata: &Value) -> serde_json::Result<Secret> {
    let data = if type_ == TLS { json!({"tls.crt": "YQ==", "tls.key": "YQ=="}) } else { json!({}) };
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": type_, "data": data,
    }))
}
