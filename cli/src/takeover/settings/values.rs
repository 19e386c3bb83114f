//! The values of the earlier operator's chart in the files that people have: the values themselves, a HelmRelease, an Argo CD
//! Application, the values of a parent chart, a Helmfile. A file that does not hold all of them is an error: a maintenance window
//! that is overlooked would be lost.

use anyhow::{anyhow, bail};
use serde_json::{Map, Value};

/// Name of the chart.
const CHART: &str = "bottlerocket-update-operator";

/// Keys of the chart, in any release, that other charts hardly have.
const OWN_KEYS: [&str; 11] = [
    "max_concurrent_updates",
    "scheduler_cron_expression",
    "update_window_start",
    "update_window_stop",
    "exclude_from_lb_wait_time_in_sec",
    "apiserver_internal_port",
    "logging_formatter",
    "logging_ansi_enabled",
    "controller_tracing_filter",
    "agent_tracing_filter",
    "apiserver_tracing_filter",
];

/// Keys of the chart that other charts have too; the chart of the shadows has the first two.
const COMMON_KEYS: [&str; 10] = [
    "namespace",
    "apiserver_service_port",
    "image",
    "image_pull_secrets",
    "imagePullSecrets",
    "placement",
    "logging",
    "prometheus",
    "resources",
    "podLabels",
];

/// Keys that Helm or a parent chart reads.
const OTHER_KEYS: [&str; 2] = ["global", "enabled"];

/// Heads that `helm get values` writes before the values.
const HEADS: [&str; 2] = ["USER-SUPPLIED VALUES:", "COMPUTED VALUES:"];

/// The way to the values in force.
const INSTEAD: &str = "helm get values --all RELEASE -n NAMESPACE > FILE writes those in force into one file; without --values, the \
                       command reads the earlier operator's workloads in the cluster";

/// The depth to which charts are looked for in charts.
const DEPTH: usize = 6;

/// The values of the chart.
#[derive(Debug, PartialEq)]
pub(super) struct ChartValues {
    values: Map<String, Value>,
    /// Where they are in the file, with a dot at the end; empty if the file holds nothing else.
    place: String,
}

impl ChartValues {
    /// Returns a value, as text, with its place. One that is null is not set.
    pub(super) fn get(&self, key: &str) -> Option<(String, String)> {
        let value = match self.values.get(key)? {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some((value, format!("{}{key}", self.place)))
    }

    /// Returns true if a parent chart gives them to the chart by its name.
    fn is_named(&self) -> bool {
        self.place.trim_end_matches('.').rsplit('.').next() == Some(CHART)
    }

    /// Returns the keys that are none of the chart's.
    pub(super) fn unknown(&self) -> Vec<String> {
        let known = |key: &&String| is_of_chart(key) || OTHER_KEYS.contains(&key.as_str());
        self.values.keys().filter(|key| !known(key)).map(|key| format!("{}{key}", self.place)).collect()
    }
}

fn is_own(key: &str) -> bool {
    OWN_KEYS.contains(&key)
}

fn is_of_chart(key: &str) -> bool {
    is_own(key) || COMMON_KEYS.contains(&key)
}

/// Values that a file gives to one chart, or to one installation of it.
#[derive(Default)]
struct Given {
    place: String,
    /// True if the file says that it is the earlier operator's chart.
    named: bool,
    values: Map<String, Value>,
    /// The fields that name other places of values.
    elsewhere: Vec<String>,
}

/// Reads the values of the chart from a file.
///
/// # Errors
/// Where they are not in the file, not all of them, or ambiguous, with what to do.
pub(super) fn read(text: &str) -> anyhow::Result<ChartValues> {
    let head = |line: &str| HEADS.contains(&line.trim());
    let text: String = text.lines().skip_while(|line| head(line)).map(|line| format!("{line}\n")).collect();
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("it is no YAML: {error}"))?;
    if documents.len() > 1 {
        let kinds: Vec<&str> = documents.iter().map(kind_of).collect();
        bail!("it has {} documents ({}); leave only the one with the values in it", kinds.len(), kinds.join(", "));
    }
    let Some(document) = documents.pop() else {
        bail!("it holds no values, as helm get values writes it for a release that sets none; {INSTEAD}");
    };
    let Value::Object(document) = document else {
        bail!("it holds {}, and no values of a chart", kind_of(&document));
    };
    locate(given(document)?)
}

fn kind_of(value: &Value) -> &str {
    match value {
        Value::Object(object) => object.get("kind").and_then(Value::as_str).unwrap_or("values"),
        Value::Array(_) => "a list",
        _ => "text",
    }
}

/// Returns all values that a file gives.
fn given(document: Map<String, Value>) -> anyhow::Result<Vec<Given>> {
    let text = |key: &str| document.get(key).and_then(Value::as_str);
    match (text("apiVersion"), text("kind")) {
        (Some(_), Some("HelmRelease")) => Ok(vec![of_helm_release(&document["spec"])]),
        (Some(_), Some("Application")) => of_application(&document["spec"]),
        (Some(_), Some(kind)) => bail!(
            "it is a {kind}; of the kinds of Kubernetes, values are read from HelmRelease and Application (Argo CD) alone; {INSTEAD}"
        ),
        _ if document.get("releases").is_some_and(Value::is_array) => Ok(of_helmfile(&document["releases"])),
        _ => Ok(vec![Given { values: document, ..Given::default() }]),
    }
}

/// Returns true for a field with something in it.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    }
}

/// Returns those of the fields that are set, each with its place.
fn set_fields(object: &Value, place: &str, fields: &[&str]) -> Vec<String> {
    fields.iter().filter(|field| is_set(&object[**field])).map(|field| format!("{place}.{field}")).collect()
}

fn map(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn of_helm_release(spec: &Value) -> Given {
    Given {
        place: "spec.values".to_owned(),
        named: spec["chart"]["spec"]["chart"].as_str().is_some_and(is_chart),
        values: map(&spec["values"]),
        elsewhere: set_fields(spec, "spec", &["valuesFrom"]),
    }
}

fn of_application(spec: &Value) -> anyhow::Result<Vec<Given>> {
    let sources = spec["sources"].as_array().into_iter().flatten().enumerate();
    let sources = sources.map(|(index, source)| (format!("spec.sources[{index}]"), source));
    let one = Some(("spec.source".to_owned(), &spec["source"])).filter(|(_, source)| source.is_object());
    one.into_iter().chain(sources).map(|(place, source)| of_source(&place, source)).collect()
}

fn of_source(place: &str, source: &Value) -> anyhow::Result<Given> {
    let (helm, place) = (&source["helm"], format!("{place}.helm"));
    // Argo CD prefers parameters to valuesObject, and that to values, which it then ignores.
    let mut values = match (&helm["valuesObject"], helm["values"].as_str()) {
        (Value::Object(values), _) if !values.is_empty() => values.clone(),
        (_, Some(text)) => {
            let values: Value =
                serde_saphyr::from_str(text).map_err(|error| anyhow!("{place}.values is no YAML: {error}"))?;
            map(&values)
        }
        _ => Map::new(),
    };
    set_all(&mut values, &helm["parameters"]);
    Ok(Given {
        named: ["chart", "path"].iter().any(|field| source[*field].as_str().is_some_and(is_chart)),
        values,
        elsewhere: set_fields(helm, &place, &["valueFiles", "fileParameters"]),
        place,
    })
}

fn of_helmfile(releases: &Value) -> Vec<Given> {
    let releases = releases.as_array().into_iter().flatten().enumerate();
    releases
        .map(|(index, release)| {
            let place = format!("releases[{index}]");
            let mut given = Given {
                named: release["chart"].as_str().is_some_and(is_chart),
                elsewhere: set_fields(release, &place, &["valuesTemplate", "setTemplate", "secrets", "inherit"]),
                ..Given::default()
            };
            for (number, values) in release["values"].as_array().into_iter().flatten().enumerate() {
                match values {
                    Value::Object(values) => merge(&mut given.values, values),
                    _ => given.elsewhere.push(format!("{place}.values[{number}]")),
                }
            }
            set_all(&mut given.values, &release["set"]);
            Given { place: format!("{place}.values"), ..given }
        })
        .collect()
}

/// Returns true for the name, or the path, of the earlier operator's chart.
fn is_chart(name: &str) -> bool {
    name.trim_end_matches('/').rsplit('/').next() == Some(CHART)
}

/// Merges values into others, as Helm does.
fn merge(into: &mut Map<String, Value>, values: &Map<String, Value>) {
    for (key, value) in values {
        match (into.get_mut(key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => merge(old, new),
            _ => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

/// Sets values by their paths, as `--set` of Helm does.
fn set_all(into: &mut Map<String, Value>, parameters: &Value) {
    for parameter in parameters.as_array().into_iter().flatten() {
        let Some(name) = parameter["name"].as_str() else { continue };
        // A dot in a key is written with a backslash, and the element of a list in brackets.
        let name = name.replace("\\.", "\u{0}");
        let keys = name.split('.').map(|key| key.split('[').next().unwrap_or_default().replace('\u{0}', "."));
        let value = keys
            .rev()
            .fold(parameter["value"].clone(), |value, key| Value::Object([(key, value)].into_iter().collect()));
        merge(into, &map(&value));
    }
}

/// Returns the values of the chart among all that a file gives.
fn locate(all: Vec<Given>) -> anyhow::Result<ChartValues> {
    let has_own = |given: &Given| !charts(given, is_own).is_empty();
    let preferred: [&dyn Fn(&Given) -> bool; 3] =
        [&|given| given.named, &has_own, &|given| !given.elsewhere.is_empty()];
    let preferred = preferred.into_iter().find(|preferred| all.iter().any(preferred));
    let given =
        one(all.into_iter().filter(|given| preferred.is_none_or(|preferred| preferred(given))), |given| &given.place)?;
    let given = given.unwrap_or_default();
    if !given.elsewhere.is_empty() {
        let verb = if given.elsewhere.len() > 1 { "name" } else { "names" };
        bail!("{} {verb} values that are not in it; {INSTEAD}", given.elsewhere.join(" and "));
    }
    let mut found = charts(&given, is_own);
    if found.is_empty() {
        // Where no key is the chart's alone, its name decides.
        found = charts(&given, is_of_chart);
        let place = prefix(&given.place);
        found.retain(|values| values.is_named() || values.place == place);
        if found.iter().any(ChartValues::is_named) {
            found.retain(ChartValues::is_named);
        }
        found.retain(|values| given.named || values.is_named() || values.unknown().is_empty());
    }
    one(found, |values| values.place.trim_end_matches('.'))?.ok_or_else(|| no_values(&given))
}

/// Returns the only one, if there is one.
///
/// # Errors
/// If there are more, with their places.
fn one<T>(all: impl IntoIterator<Item = T>, place: fn(&T) -> &str) -> anyhow::Result<Option<T>> {
    let mut all: Vec<T> = all.into_iter().collect();
    if all.len() > 1 {
        let named = |one: &T| if place(one).is_empty() { "its top level".to_owned() } else { place(one).to_owned() };
        let places: Vec<String> = all.iter().map(named).collect();
        bail!(
            "it may have values of the chart in several places: {}; leave only those of one cluster in it",
            places.join(", ")
        );
    }
    Ok(all.pop())
}

fn no_values(given: &Given) -> anyhow::Error {
    let keys: Vec<&str> = given.values.keys().map(String::as_str).collect();
    let found =
        if keys.is_empty() { String::new() } else { format!(": its keys are {}", crate::advice::some(keys, 8)) };
    anyhow!(
        "it has no values of the chart {CHART}{found}. Those about updates are {}. {INSTEAD}",
        OWN_KEYS[..5].join(", ")
    )
}

/// Returns the place of values as the beginning of the places of their keys.
fn prefix(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!("{place}.") }
}

/// Returns the values with at least one key for which `is_key` holds, at any depth.
fn charts(given: &Given, is_key: fn(&str) -> bool) -> Vec<ChartValues> {
    fn walk(
        values: &Map<String, Value>,
        place: String,
        depth: usize,
        is_key: fn(&str) -> bool,
        found: &mut Vec<ChartValues>,
    ) {
        for (key, value) in values {
            if let Value::Object(values) = value
                && depth > 0
            {
                walk(values, format!("{place}{key}."), depth - 1, is_key, found);
            }
        }
        if values.keys().any(|key| is_key(key)) {
            found.push(ChartValues { values: values.clone(), place });
        }
    }
    let mut found = Vec::new();
    walk(&given.values, prefix(&given.place), DEPTH, is_key, &mut found);
    found
}

#[cfg(test)]
mod tests;
