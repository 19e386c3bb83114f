//! Renderings of the charts: that of the default values is the manifest, and each value changes what it names.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use deploy::monitoring::{dashboard_map, pod_monitor, prometheus_rule};
use models::names::SYSTEM_NAMESPACE;
use serde_json::{Value, json};

use crate::helm::{DEFINITIONS, Helm, OPERATOR, Objects, ROOT, manifest, objects};

/// A rendering without the annotation by which Helm keeps an object, which so many have.
fn without_keep(mut rendered: Objects, expected: usize) -> anyhow::Result<Objects> {
    let mut kept = 0;
    for object in rendered.values_mut() {
        if object["metadata"]["annotations"] == json!({"helm.sh/resource-policy": "keep"}) {
            object["metadata"].as_object_mut().context("no metadata")?.remove("annotations");
            kept += 1;
        }
    }
    ensure!(kept == expected, "{kept} objects are kept, not {expected}");
    Ok(rendered)
}

#[tokio::test]
async fn default_rendering_is_the_manifest() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let whole = json!({"namespaces": {"system": {"create": true}}});
    assert_eq!(without_keep(helm.render(OPERATOR, &whole).await?, 3)?, manifest("brupop.yaml")?);
    let mut without_namespace = manifest("brupop.yaml")?;
    without_namespace.remove("Namespace brupop-system");
    assert_eq!(without_keep(helm.render(OPERATOR, &json!({})).await?, 2)?, without_namespace);

    let definitions = manifest("crds.yaml")?;
    assert_eq!(helm.render(DEFINITIONS, &json!({"keep": false})).await?, definitions);
    assert_eq!(without_keep(helm.render(DEFINITIONS, &json!({})).await?, definitions.len())?, definitions);

    // The right to delete pods is the other manifest.
    let forced = helm.render(OPERATOR, &json!({"rbac": {"forceDrain": true}})).await?;
    for (id, object) in manifest("force.yaml")? {
        assert_eq!(forced.get(&id), Some(&object));
    }
    assert_eq!(forced.len(), without_namespace.len() + 2);

    // So is the hook for AWS.
    let with_hook = helm.render(OPERATOR, &json!({"aws": {"enabled": true}})).await?;
    let hook = manifest("aws.yaml")?;
    for (id, object) in &hook {
        assert_eq!(with_hook.get(id), Some(object), "{id}");
    }
    assert_eq!(with_hook.len(), without_namespace.len() + hook.len());

    // The policies for Jobs of hooks are one more manifest, and what is granted in a namespace is the example.
    let templates = ["noout-set", "noout-unset", "silence-start", "silence-end"];
    let jobs = json!({"hooks": {"jobs": [{"namespace": "brupop-hooks", "templates": templates}]}});
    let with_jobs = without_keep(helm.render(OPERATOR, &jobs).await?, 4)?;
    let mut expected = manifest("jobs.yaml")?;
    expected.extend(objects(&std::fs::read_to_string(Path::new(ROOT).join("examples/hooks/jobs-rights.yaml"))?)?);
    for (id, object) in &expected {
        assert_eq!(with_jobs.get(id), Some(object), "{id}");
    }
    assert_eq!(with_jobs.len(), without_namespace.len() + expected.len());
    Ok(())
}

#[tokio::test]
async fn charts_pass_lint_and_package() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    for chart in [OPERATOR, DEFINITIONS] {
        helm.line(&format!("lint --strict --namespace {SYSTEM_NAMESPACE} {chart}")).await?;
    }
    Ok(())
}

/// Names of objects and beginnings of places, for short.
const SHORT: [(&str, &str); 8] = [
    ("CONTROLLER", "Deployment brupop-system/brupop-controller"),
    ("APISERVER", "Deployment brupop-system/brupop-apiserver"),
    ("AGENT", "DaemonSet brupop-agents/brupop-agent"),
    ("HOOK", "Deployment brupop-system/brupop-aws"),
    ("POLICY", "BottlerocketUpdateOperator brupop-system/default"),
    ("CONTAINER", "/spec/template/spec/containers/0"),
    ("POD/", "/spec/template/spec/"),
    ("META", "/spec/template/metadata"),
];

fn whole(name: &str) -> String {
    let begins = SHORT.iter().find(|(short, _)| name.starts_with(short));
    begins.map_or_else(|| name.to_owned(), |(short, long)| name.replacen(short, long, 1))
}

/// An object, the place in it that a value changes, and what is there then.
type Change = (String, String, Value);

/// The rows of `values.txt`: values, with what they change.
fn rows() -> anyhow::Result<Vec<(Value, Vec<Change>)>> {
    let mut known = manifest("brupop.yaml")?;
    for object in [pod_monitor(), prometheus_rule()?, dashboard_map()] {
        known.insert(deploy::yaml::id(&object), object);
    }
    let digest = format!("sha256:{}", "a".repeat(64));
    let text = include_str!("values.txt").replace("DIGEST", &digest).replace("VERSION", env!("CARGO_PKG_VERSION"));
    let mut rows: Vec<(Value, Vec<Change>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if line.starts_with('{') {
            rows.push((serde_json::from_str(line).with_context(|| line.to_owned())?, Vec::new()));
            continue;
        }
        let cells: Vec<&str> = line.splitn(3, " | ").collect();
        let [object, place, is] = cells[..] else { bail!("{line}") };
        let is = match is.strip_prefix("as ").and_then(|other| other.rsplit_once(' ')) {
            Some((id, place)) => known.get(id).and_then(|object| object.pointer(&whole(place))).cloned(),
            None => serde_json::from_str(is).ok(),
        };
        let is = is.with_context(|| line.to_owned())?;
        rows.last_mut().context("no values")?.1.push((whole(object), whole(place), is));
    }
    Ok(rows)
}

#[tokio::test]
async fn each_value_changes_what_it_names() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    for (values, expected) in rows()? {
        let rendered = helm.render(OPERATOR, &values).await?;
        for (object, place, is) in expected {
            let mut found =
                rendered.get(&object).and_then(|object| object.pointer(&place)).cloned().unwrap_or_default();
            if object.contains(" hosts/brupop-agent") && !found.is_null() {
                // Nothing in the agent's pod names its namespace.
                ensure!(!found.to_string().contains("brupop-agents"), "{found}");
            }
            found.sort_all_objects();
            let mut is = is;
            is.sort_all_objects();
            ensure!(found == is, "{values}: {object} {place} is {found}, not {is}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn nothing_names_a_namespace_that_values_replace() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let file = helm.values(&json!({"namespaces": {"agents": {"name": "hosts"}}}))?;
    let text = helm.line(&format!("template brupop {OPERATOR} -n updates -f {file}")).await?;
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    for name in ["brupop-system", "brupop-agents"] {
        let lines: Vec<&&str> = code.iter().filter(|line| line.contains(name)).collect();
        ensure!(lines.is_empty(), "{lines:?}");
    }
    ensure!(code.iter().any(|line| line.contains("https://brupop-apiserver.updates.svc")), "{text}");
    Ok(())
}

#[tokio::test]
async fn invalid_values_are_refused_with_place_and_reason() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let digest = format!("sha256:{}", "a".repeat(64));
    let text = include_str!("refused.txt").replace("DIGEST", &digest);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let [values, place, reason] = cells[..] else { bail!("{line}") };
        let file = helm.values(&serde_json::from_str(values)?)?;
        let error = helm.refused(&format!("template brupop {OPERATOR} -n {SYSTEM_NAMESPACE} -f {file}")).await?;
        ensure!(error.contains(place) && error.contains(reason), "{values}: {error}");
    }
    let error = helm.refused(&format!("template brupop {OPERATOR}")).await?;
    ensure!(error.contains("a namespace of its own, not default"), "{error}");
    let error = helm.refused(&format!("template brupop {DEFINITIONS} --set keep=no")).await?;
    ensure!(error.contains("/keep") && error.contains("want boolean"), "{error}");
    Ok(())
}

#[tokio::test]
async fn another_chart_may_have_the_charts_as_dependencies_with_the_customary_condition() -> anyhow::Result<()> {
    let helm = Helm::find(None).await?;
    let folder = tempfile::tempdir()?;
    let charts = folder.path().join("charts");
    std::fs::create_dir(&charts)?;
    let mut dependencies = Vec::new();
    for (name, chart) in [("brupop", OPERATOR), ("brupop-crds", DEFINITIONS)] {
        std::os::unix::fs::symlink(Path::new(ROOT).join(chart).canonicalize()?, charts.join(name))?;
        dependencies.push(json!({"name": name, "version": ">=0.0.0-0", "condition": format!("{name}.enabled")}));
    }
    let chart = json!({"apiVersion": "v2", "name": "umbrella", "version": "0.0.1", "dependencies": dependencies});
    std::fs::write(folder.path().join("Chart.yaml"), chart.to_string())?;
    let umbrella = folder.path().to_str().context("a path of text")?;
    let whole = helm.render(umbrella, &json!({"brupop": {"enabled": true}, "brupop-crds": {"enabled": true}})).await?;
    let operator = helm.render(OPERATOR, &json!({})).await?;
    let definitions = helm.render(DEFINITIONS, &json!({})).await?;
    assert_eq!(whole.len(), operator.len() + definitions.len());
    let without =
        helm.render(umbrella, &json!({"brupop": {"enabled": false}, "brupop-crds": {"enabled": true}})).await?;
    assert_eq!(without, definitions);
    Ok(())
}
