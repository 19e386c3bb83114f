//! Every list of the custom resources, written by two field managers at once: of a list with keys both keep their items,
//! any other list has one owner, which the refusal names.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use models::names;
use serde_json::{Value, json};

use super::samples::{nested, sample};
use super::{expect, on_shared};

/// The two managers.
const MANAGERS: [&str; 2] = ["first-manager", "second-manager"];

/// A list in a schema: the fields that lead to it, `[]` for an item of a list around it.
struct List<'a> {
    path: Vec<&'a str>,
    schema: &'a Value,
}

#[test]
fn lists_are_shared_or_owned_as_their_type_says() -> anyhow::Result<()> {
    on_shared(async |control_plane| {
        let client = control_plane.client();
        let mut number = 0;
        for definition in deploy::crds::all()? {
            let kind = definition["spec"]["names"]["kind"].as_str().context("a definition without a kind")?;
            let version = &definition["spec"]["versions"][0];
            let schema = &version["schema"]["openAPIV3Schema"];
            let mut lists = Vec::new();
            collect(schema, &mut Vec::new(), &mut lists);
            ensure!(lists.len() > 5, "{kind} has only {} lists", lists.len());
            let resource = GroupVersionKind::gvk(names::GROUP, version["name"].as_str().context("no name")?, kind);
            for list in lists {
                number += 1;
                let checked = check(&client, &resource, schema, &list, number).await;
                checked.with_context(|| format!("{kind} {:?}", list.path))?;
            }
        }
        Ok(())
    })
}

fn collect<'a>(schema: &'a Value, path: &mut Vec<&'a str>, found: &mut Vec<List<'a>>) {
    if schema["type"] == "array" {
        found.push(List { path: path.clone(), schema });
        path.push("[]");
        collect(&schema["items"], path, found);
        path.pop();
    }
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name);
        collect(child, path, found);
        path.pop();
    }
}

async fn check(
    client: &Client,
    kind: &GroupVersionKind,
    schema: &Value,
    list: &List<'_>,
    number: usize,
) -> anyhow::Result<()> {
    let namespace = format!("list-{number}");
    let object: Namespace = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &ApiResource::from_gvk(kind));
    let in_status = list.path[0] == "status";
    // A page of the history is named after its record.
    let name = if list.path.contains(&"page") { "default-p001" } else { names::OPERATOR_NAME };
    let apply = async |manager: &str, with: Option<usize>| {
        let params = PatchParams::apply(manager);
        let mut body = match with {
            Some(seed) => {
                let item = sample(&list.schema["items"], "", seed);
                nested(schema, &list.path, &json!([item]))
            }
            None => json!({}),
        };
        body["apiVersion"] = kind.api_version().into();
        body["kind"] = kind.kind.clone().into();
        body["metadata"] = json!({"name": name});
        if in_status {
            return api.patch_status(name, &params, &Patch::Apply(body)).await;
        }
        api.patch(name, &params, &Patch::Apply(body)).await
    };
    if in_status {
        let mut spec = sample(&schema["properties"]["spec"], "", 0);
        let rollout = &schema["properties"]["spec"]["properties"]["rollout"];
        if rollout.is_object() {
            spec["rollout"] = sample(rollout, "", 0);
        }
        let body = json!({
            "apiVersion": kind.api_version(), "kind": kind.kind, "metadata": {"name": name}, "spec": spec,
        });
        api.patch(name, &PatchParams::apply("creator"), &Patch::Apply(body)).await?;
    }
    apply(MANAGERS[0], Some(0)).await.context("the first manager")?;
    let second = apply(MANAGERS[1], Some(1)).await;
    if list.schema["x-kubernetes-list-type"] != "map" {
        return expect("the second manager", second, Some(&format!("conflict with \"{}\"", MANAGERS[0])));
    }
    let both = second.context("the second manager")?;
    ensure!(items(&both.data, &list.path) == 2, "one manager replaced the other's item: {:?}", both.data);
    let left = apply(MANAGERS[0], None).await.context("the first manager leaves its item out")?;
    ensure!(items(&left.data, &list.path) == 1, "the item of one manager alone has to stay: {:?}", left.data);
    Ok(())
}

/// Number of items of the list at a path, in the first item of each list around it.
fn items(object: &Value, path: &[&str]) -> usize {
    let list = path.iter().fold(object, |value, name| if *name == "[]" { &value[0] } else { &value[*name] });
    list.as_array().map_or(0, Vec::len)
}
