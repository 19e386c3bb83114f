//! The values of the earlier operator's chart in the files that people have: the values themselves, a HelmRelease, an Argo CD
//! Application, the values of a parent chart, a Helmfile. A file that does not hold all of them is an error, as is one that
//! installs another chart than the released one, which has values of its own: a maintenance window that is overlooked would be
//! lost.

use anyhow::{anyhow, bail};
use serde_json::{Map, Value};

const CHART: &str = "bottlerocket-update-operator";

/// The settings that this operator has an equivalent of: the key of the chart, and the environment variable that the chart makes of its
/// value. A patch of the manifests may set the variable too.
pub(super) const SETTINGS: [(&str, &str); 5] = [
    ("max_concurrent_updates", "MAX_CONCURRENT_UPDATE"),
    (SCHEDULE, "SCHEDULER_CRON_EXPRESSION"),
    ("update_window_start", "UPDATE_WINDOW_START"),
    ("update_window_stop", "UPDATE_WINDOW_STOP"),
    ("exclude_from_lb_wait_time_in_sec", "EXCLUDE_FROM_LB_WAIT_TIME_IN_SEC"),
];

/// Other keys of the chart, in any release, that other charts hardly have.
const OWN_KEYS: [&str; 6] = [
    "apiserver_internal_port",
    "logging_formatter",
    "logging_ansi_enabled",
    "controller_tracing_filter",
    "agent_tracing_filter",
    "apiserver_tracing_filter",
];

const SCHEDULE: &str = "scheduler_cron_expression";

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

#[derive(Debug, PartialEq)]
pub(super) struct ChartValues {
    values: Map<String, Value>,
    /// Where they are in the file; empty if the file holds nothing else.
    place: String,
    /// True if they are a part of a plain file, which is then one for a parent chart.
    of_parent: bool,
}

impl ChartValues {
    /// Returns a value, as text, with its place. One that is null is not set.
    pub(super) fn get(&self, key: &str) -> Option<(String, String)> {
        let value = match self.values.get(key)? {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        Some((value, inner(&self.place, key)))
    }

    /// Returns true if a parent chart gives them to the chart by its name.
    fn is_named(&self) -> bool {
        self.place.rsplit('.').next() == Some(CHART)
    }

    /// Returns a sentence about a schedule that the file cannot show, if there may be one.
    pub(super) fn unseen(&self) -> Option<String> {
        // The output of `helm get values --all` has the key, also where the chart sets it.
        (self.of_parent && self.get(SCHEDULE).is_none()).then(|| {
            format!(
                "the file is one for a parent chart and has no {}: if that chart sets it, it was not seen; helm get values --all \
                 RELEASE writes the values in force",
                inner(&self.place, SCHEDULE)
            )
        })
    }

    /// Returns the keys that are none of the chart's.
    pub(super) fn unknown(&self) -> Vec<String> {
        let known = |key: &&String| is_of_chart(key) || OTHER_KEYS.contains(&key.as_str());
        self.values.keys().filter(|key| !known(key)).map(|key| inner(&self.place, key)).collect()
    }
}

fn is_own(key: &str) -> bool {
    SETTINGS.iter().any(|(own, _)| *own == key) || OWN_KEYS.contains(&key)
}

fn is_of_chart(key: &str) -> bool {
    is_own(key) || COMMON_KEYS.contains(&key)
}

/// The chart that values are for, as the file has it.
#[derive(Default)]
enum Chart {
    /// A file of values does not name it.
    #[default]
    Unnamed,
    /// The earlier operator's, as it was released.
    Earlier,
    /// Any other, or a copy, by its name and place: its own values may set what the file does not.
    Other(String),
}

impl Chart {
    /// `released` is false for a chart that is kept in a folder: it may be a copy with values of its own.
    fn of(place: &str, name: Option<&str>, released: bool) -> Self {
        match name {
            Some(name) if released && is_chart(name) => Self::Earlier,
            Some(name) => Self::Other(format!("the chart {name:?} ({place})")),
            None => Self::Other(format!("a chart that is not named at {place}")),
        }
    }

    fn is_earlier(&self) -> bool {
        matches!(self, Self::Earlier)
    }
}

/// Values that a file gives to one chart, or to one installation of it.
#[derive(Default)]
struct Given {
    place: String,
    chart: Chart,
    values: Map<String, Value>,
    /// The fields that name other places of values.
    elsewhere: Vec<String>,
}

impl Given {
    /// Returns the values with at least one key for which `is_key` holds, at any depth.
    fn charts(&self, is_key: fn(&str) -> bool) -> Vec<ChartValues> {
        charts(&self.values, &self.place, DEPTH, is_key)
    }
}

/// Reads the values of the chart from a file.
///
/// # Errors
/// Where they are not in the file, not all of them, or ambiguous, with what to do.
pub(super) fn read(text: &str) -> anyhow::Result<ChartValues> {
    let head = |line: &str| HEADS.contains(&line.trim());
    let text: String = text.lines().skip_while(|line| head(line)).map(|line| format!("{line}\n")).collect();
    let mut documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|error| anyhow!("it is no YAML: {error}; {INSTEAD}"))?;
    if documents.len() > 1 {
        let kinds: Vec<&str> = documents.iter().map(kind_of).collect();
        bail!("it has {} documents ({}); leave only the one with the values in it", kinds.len(), kinds.join(", "));
    }
    let Some(document) = documents.pop() else {
        bail!("it holds no values, as helm get values writes it for a release that sets none; {INSTEAD}");
    };
    let Value::Object(document) = document else {
        bail!("it holds {}, and no values of a chart; {INSTEAD}", kind_of(&document));
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

fn given(document: Map<String, Value>) -> anyhow::Result<Vec<Given>> {
    let text = |key: &str| document.get(key).and_then(Value::as_str);
    let spec = document.get("spec");
    match (text("apiVersion"), text("kind"), spec) {
        // A patch may leave out its apiVersion.
        (_, Some("HelmRelease"), Some(spec)) => {
            refuse_environment(spec)?;
            Ok(vec![of_helm_release(spec)])
        }
        (_, Some("Application"), Some(spec)) => {
            refuse_environment(spec)?;
            of_application(spec)
        }
        (Some(_), Some(kind), _) => bail!(
            "it is a {kind}; of the kinds of Kubernetes, values are read from HelmRelease and Application (Argo CD) alone, and from \
             their spec; {INSTEAD}"
        ),
        _ if document.get("releases").is_some_and(Value::is_array) => {
            refuse_environment(&document["releases"])?;
            Ok(of_helmfile(&document))
        }
        _ => Ok(vec![Given { values: document, ..Given::default() }]),
    }
}

/// Refuses a resource that patches the environment of the workloads: that is no value of a chart.
fn refuse_environment(spec: &Value) -> anyhow::Result<()> {
    let text = spec.to_string();
    match SETTINGS.iter().find(|(_, name)| text.contains(*name)) {
        Some((_, name)) => bail!(
            "it sets {name}, an environment variable and no value of the chart; without --values, the command reads the \
             environment of the earlier operator's workloads in the cluster"
        ),
        None => Ok(()),
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
    let chart = &spec["chart"]["spec"];
    let mut elsewhere = set_fields(spec, "spec", &["valuesFrom"]);
    elsewhere.extend(set_fields(chart, "spec.chart.spec", &["valuesFiles", "valuesFile"]));
    Given {
        place: "spec.values".to_owned(),
        // The other kinds of sources have charts in folders; the objects that spec.chartRef may name are not in the file.
        chart: Chart::of(
            "spec.chart.spec.chart",
            chart["chart"].as_str(),
            chart["sourceRef"]["kind"].as_str() == Some("HelmRepository"),
        ),
        values: map(&spec["values"]),
        elsewhere,
    }
}

fn of_application(spec: &Value) -> anyhow::Result<Vec<Given>> {
    let sources = spec["sources"].as_array().into_iter().flatten().enumerate();
    let sources = sources.map(|(index, source)| (format!("spec.sources[{index}]"), source));
    let one = Some(("spec.source".to_owned(), &spec["source"])).filter(|(_, source)| source.is_object());
    one.into_iter().chain(sources).map(|(place, source)| of_source(&place, source)).collect()
}

fn of_source(place: &str, source: &Value) -> anyhow::Result<Given> {
    let chart = match (source["chart"].as_str(), source["path"].as_str()) {
        (Some(name), _) => Chart::of(&format!("{place}.chart"), Some(name), true),
        (None, path) => {
            let released = source["repoURL"].as_str().is_some_and(is_repository);
            Chart::of(&format!("{place}.path"), path, released)
        }
    };
    let mut elsewhere = set_fields(source, place, &["plugin"]);
    let (helm, place) = (&source["helm"], format!("{place}.helm"));
    elsewhere.extend(set_fields(helm, &place, &["valueFiles", "fileParameters"]));
    // Argo CD prefers parameters to valuesObject, and that to values, which it then ignores.
    let mut values = match (&helm["valuesObject"], &helm["values"]) {
        (Value::Object(values), _) if !values.is_empty() => values.clone(),
        (_, Value::String(text)) => {
            let values: Value = serde_saphyr::from_str(text)
                .map_err(|error| anyhow!("{place}.values is no YAML: {error}; {INSTEAD}"))?;
            map(&values)
        }
        (_, other) => {
            if is_set(other) {
                elsewhere.push(format!("{place}.values"));
            }
            Map::new()
        }
    };
    elsewhere.extend(set_all(&mut values, &helm["parameters"], &format!("{place}.parameters")));
    Ok(Given { place, chart, values, elsewhere })
}

/// Returns true for the address of the earlier operator's repository, which has its chart in a folder.
fn is_repository(url: &str) -> bool {
    let url = url.trim_end_matches('/').trim_end_matches(".git");
    ["https://", "ssh://git@", "git@"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme)?.strip_prefix("github.com"))
        .is_some_and(|path| path.trim_start_matches(['/', ':']) == format!("bottlerocket-os/{CHART}"))
}

fn of_helmfile(document: &Map<String, Value>) -> Vec<Given> {
    let list = |key: &str| document.get(key).and_then(Value::as_array).into_iter().flatten();
    let repositories: Vec<&str> = list("repositories").filter_map(|repository| repository["name"].as_str()).collect();
    let releases = list("releases").enumerate();
    releases.map(|(index, release)| of_release(&format!("releases[{index}]"), release, &repositories)).collect()
}

/// Returns what a Helmfile gives to one release. A chart of no repository in the file may be a folder.
fn of_release(place: &str, release: &Value, repositories: &[&str]) -> Given {
    let released = |name: &str| {
        name.starts_with("oci://") || name.split_once('/').is_some_and(|(first, _)| repositories.contains(&first))
    };
    let name = release["chart"].as_str();
    let fields = [
        "valuesTemplate",
        "setTemplate",
        "setString",
        "setStringTemplate",
        "secrets",
        "inherit",
        "strategicMergePatches",
        "jsonPatches",
        "transformers",
    ];
    let mut given = Given {
        place: format!("{place}.values"),
        chart: Chart::of(&format!("{place}.chart"), name, name.is_some_and(released)),
        elsewhere: set_fields(release, place, &fields),
        ..Given::default()
    };
    match &release["values"] {
        Value::Array(all) => {
            for (number, values) in all.iter().enumerate() {
                match values {
                    Value::Object(values) => merge(&mut given.values, values),
                    _ => given.elsewhere.push(format!("{}[{number}]", given.place)),
                }
            }
        }
        other if is_set(other) => given.elsewhere.push(given.place.clone()),
        _ => {}
    }
    let unread = set_all(&mut given.values, &release["set"], &format!("{place}.set"));
    given.elsewhere.extend(unread);
    given
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

/// Sets values by their paths, as `--set` of Helm does. Returns the places of those that are not written out in the file.
fn set_all(into: &mut Map<String, Value>, parameters: &Value, place: &str) -> Vec<String> {
    let Value::Array(parameters) = parameters else {
        return if is_set(parameters) { vec![place.to_owned()] } else { Vec::new() };
    };
    let mut elsewhere = Vec::new();
    for (index, parameter) in parameters.iter().enumerate() {
        // A Helmfile also knows `file` and `values`.
        let (Some(name), false) = (parameter["name"].as_str(), parameter["value"].is_null()) else {
            elsewhere.push(format!("{place}[{index}]"));
            continue;
        };
        // A dot in a key is written with a backslash, and the element of a list in brackets.
        let name = name.replace("\\.", "\u{0}");
        let keys = name.split('.').map(|key| key.split('[').next().unwrap_or_default().replace('\u{0}', "."));
        let value = keys
            .rev()
            .fold(parameter["value"].clone(), |value, key| Value::Object([(key, value)].into_iter().collect()));
        merge(into, &map(&value));
    }
    elsewhere
}

/// Returns the values of the chart among all that a file gives.
fn locate(all: Vec<Given>) -> anyhow::Result<ChartValues> {
    let is_candidate = |given: &Given| given.chart.is_earlier() || !given.charts(is_own).is_empty();
    let preferred: [&dyn Fn(&Given) -> bool; 2] = [&is_candidate, &|given| !given.elsewhere.is_empty()];
    let preferred = preferred.into_iter().find(|preferred| all.iter().any(preferred));
    let given =
        one(all.into_iter().filter(|given| preferred.is_none_or(|preferred| preferred(given))), |given| &given.place)?;
    let given = given.unwrap_or_default();
    refuse_elsewhere(&given)?;
    let mut found = given.charts(is_own);
    if found.is_empty() {
        // Where no key is the chart's alone, its name decides.
        found = given.charts(is_of_chart);
        found.retain(|values| values.is_named() || values.place == given.place);
        if found.iter().any(ChartValues::is_named) {
            found.retain(ChartValues::is_named);
        }
        found.retain(|values| given.chart.is_earlier() || values.is_named() || values.unknown().is_empty());
    }
    let found = one(found, |values| &values.place)?.ok_or_else(|| no_values(&given))?;
    let is_part = found.place != given.place;
    if is_part && given.chart.is_earlier() {
        bail!(
            "{} is not where the chart {CHART} reads its values: they have no effect there, or the chart is a parent of the \
             same name, whose own values are not in it; {INSTEAD}",
            found.place
        );
    }
    Ok(ChartValues { of_parent: is_part, ..found })
}

/// Refuses values of which others are elsewhere: in files, in other objects, or in the chart that they are for.
fn refuse_elsewhere(given: &Given) -> anyhow::Result<()> {
    let mut reasons = Vec::new();
    if !given.elsewhere.is_empty() {
        let verb = if given.elsewhere.len() > 1 { "name" } else { "names" };
        reasons.push(format!("{} {verb} values that are not in it", given.elsewhere.join(" and ")));
    }
    if let Chart::Other(chart) = &given.chart {
        reasons.push(format!("{chart} may have values of its own for the earlier operator, which are not in it"));
    }
    if reasons.is_empty() { Ok(()) } else { bail!("{}; {INSTEAD}", reasons.join("; ")) }
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
        SETTINGS.map(|(key, _)| key).join(", ")
    )
}

/// Returns the place of a key of the values at a place.
fn inner(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// Returns the values with at least one key for which `is_key` holds: those at a place, and those in them to a depth.
fn charts(values: &Map<String, Value>, place: &str, depth: usize, is_key: fn(&str) -> bool) -> Vec<ChartValues> {
    let maps = values.iter().filter_map(|(key, value)| Some((key, value.as_object().filter(|_| depth > 0)?)));
    let of_map = |(key, values): (&String, &Map<String, Value>)| charts(values, &inner(place, key), depth - 1, is_key);
    let mut found: Vec<ChartValues> = maps.flat_map(of_map).collect();
    if values.keys().any(|key| is_key(key)) {
        found.push(ChartValues { values: values.clone(), place: place.to_owned(), of_parent: false });
    }
    found
}

#[cfg(test)]
mod tests;
