//! Moments in the custom resources: the API server accepts only what every program of the operator can read.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use models::names;
use serde_json::{Value, json};

use super::expect;
use super::lists::{nested, sample};

/// Values that a schema with the format of a moment alone lets pass.
const UNREADABLE: [&str; 6] = [
    "9999-12-31T23:59:59Z",
    "2026-11-28T20:00:00Zgarbage",
    "2026-11-28T20:00:00+99:99",
    "2026-11-28T20:00:00.1234567890123Z",
    "2026-11-28 20:00:00Z",
    "2026-02-30T20:00:00Z",
];

/// Values at the edges of the schema.
const EDGES: [&str; 6] = [
    "0000-01-01T00:00:00Z",
    "8999-12-31T23:59:59.999999999Z",
    "0000-01-01T00:00:00+14:59",
    "8999-12-31T23:59:59-14:59",
    "2024-02-29T23:59:59.1Z",
    "2026-11-28T20:00:00+00:00",
];

pub(super) async fn moments_that_no_program_can_read_are_refused(client: Client) -> anyhow::Result<()> {
    const NAMESPACE: &str = "moments";
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
    for definition in deploy::crds::all()? {
        let kind = definition["spec"]["names"]["kind"].as_str().context("a definition without a kind")?;
        let version = &definition["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        // All have the same schema, which the unit tests of the definitions check.
        let path = moment(&schema["properties"]["status"], vec!["status"]).context("a status without a moment")?;
        let resource = GroupVersionKind::gvk(names::GROUP, version["name"].as_str().context("no name")?, kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&resource));
        let body = |part: Value| {
            let mut body = part;
            body["apiVersion"] = resource.api_version().into();
            body["kind"] = kind.into();
            body["metadata"] = json!({"name": names::OPERATOR_NAME});
            body
        };
        let params = PatchParams::apply("moments").force();
        let mut spec = json!({"spec": sample(&schema["properties"]["spec"], "", 0)});
        let rollout = &schema["properties"]["spec"]["properties"]["rollout"];
        if rollout.is_object() {
            spec["spec"]["rollout"] = sample(rollout, "", 0);
        }
        api.patch(names::OPERATOR_NAME, &params, &Patch::Apply(body(spec))).await.context(kind.to_owned())?;
        let write = async |moment: &str| {
            let status = body(nested(schema, &path, &moment.into()));
            api.patch_status(names::OPERATOR_NAME, &params, &Patch::Apply(status)).await
        };
        for moment in UNREADABLE {
            let what = format!("{kind} {path:?}: {moment}");
            expect(&what, write(moment).await, Some("Invalid value"))?;
        }
        for moment in EDGES {
            write(moment).await.with_context(|| format!("{kind} {path:?}: {moment}"))?;
            ensure!(moment.parse::<jiff::Timestamp>().is_ok(), "{moment} cannot be read");
        }
    }
    Ok(())
}

/// The path of the first moment in a schema.
fn moment<'a>(schema: &'a Value, path: Vec<&'a str>) -> Option<Vec<&'a str>> {
    if schema["format"] == "date-time" {
        return Some(path);
    }
    let below = |name: &'a str, schema: &'a Value| moment(schema, path.iter().copied().chain([name]).collect());
    if schema["type"] == "array" {
        return below("[]", &schema["items"]);
    }
    schema["properties"].as_object()?.iter().find_map(|(name, schema)| below(name, schema))
}
