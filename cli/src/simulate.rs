//! `kubectl brupop simulate`: the rollout of a described fleet in virtual time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use models::operator::BottlerocketUpdateOperatorSpec;
use planner::simulation::{Description, Scenario};
use serde_json::{Value, json};

use crate::forecast::{self, html, report, summary::Summary};
use crate::page::Page;

/// Options of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateOptions {
    /// Description of the fleet, as YAML or JSON: nodes, versions, workloads, times, failures
    /// (examples/simulation.yaml).
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Policy to simulate instead of the one in the description: a BottlerocketUpdateOperator, or its spec, as YAML or
    /// JSON.
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Number of simulated courses. Each has another seed, and so other durations and failures.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    courses: u64,
    /// Seed of the first course. The same seed gives the same course.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `json` or `yaml` for programs.
    #[arg(long, short, value_parser = ["json", "yaml"])]
    output: Option<String>,
    /// Write the course with the median duration as a page for browsers into this file. The page needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Reads a file of YAML or JSON.
pub(crate) fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} is neither YAML nor JSON", path.display()))
}

/// Reads the `spec` of an operator's resource from a file that has it alone or in the whole resource.
pub(crate) fn read_policy(path: &Path) -> anyhow::Result<Value> {
    let value = read(path)?;
    Ok(match value.get("spec") {
        Some(spec) => spec.clone(),
        None => value,
    })
}

/// Returns the path of the first field that is in the input and not in what was read of it.
fn unknown_field(input: &Value, read: &Value, path: &str) -> Option<String> {
    match (input, read) {
        (Value::Object(input), Value::Object(read)) => input.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            let empty = value.is_null() || *value == json!({}) || *value == json!([]);
            match read.get(name) {
                Some(read) => unknown_field(value, read, &path),
                None => (!empty).then_some(path),
            }
        }),
        (Value::Array(input), Value::Array(read)) => {
            let mut pairs = input.iter().zip(read).enumerate();
            pairs.find_map(|(index, (input, read))| unknown_field(input, read, &format!("{path}[{index}]")))
        }
        _ => None,
    }
}

/// Reads a policy. A field that it does not have is an error: the plan would be that of another policy.
pub(crate) fn parse_policy(value: &Value) -> anyhow::Result<BottlerocketUpdateOperatorSpec> {
    let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(value.clone())?;
    if let Some(field) = unknown_field(value, &serde_json::to_value(&spec)?, "spec") {
        bail!("unknown field {field}: kubectl explain bruo.spec lists the fields");
    }
    Ok(spec)
}

fn scenario(options: &SimulateOptions, now: Timestamp) -> anyhow::Result<Scenario> {
    let mut value = read(&options.file)?;
    if let Some(path) = &options.policy {
        value["policy"] = read_policy(path)?;
    }
    let file = || format!("{} cannot be simulated", options.file.display());
    if let Some(policy) = value.get("policy") {
        parse_policy(policy).with_context(file)?;
    }
    let description: Description = serde_json::from_value(value).with_context(file)?;
    description.scenario(now).with_context(file)
}

/// Writes the figures in the chosen format.
pub(crate) fn output(value: &Value, format: &str) -> anyhow::Result<Page> {
    let mut page = Page::default();
    match format {
        "yaml" => page.text(&serde_saphyr::to_string(value).context("the output is no YAML")?),
        _ => page.json(value)?,
    }
    Ok(page)
}

/// Simulates a described fleet.
pub(crate) fn run(options: &SimulateOptions) -> anyhow::Result<Page> {
    let scenario = scenario(options, Timestamp::now())?;
    let courses = forecast::courses(&scenario, options.seed, options.courses)?;
    let (summary, median) = Summary::of(&scenario, &courses);
    if let (Some(path), Some(course)) = (&options.html, courses.get(median)) {
        let text = html::page("Simulated rollout", &scenario, course, &summary)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
    }
    if let Some(format) = &options.output {
        return output(&json!({"summary": summary}), format);
    }
    let mut page = Page::default();
    report::add(&mut page, &summary);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_field_of_policy_is_named() {
        for (policy, field) in [
            (json!({"maxUnavalable": 2}), "spec.maxUnavalable"),
            (json!({"strategy": {"canary": [{"nodes": 1, "sook": "1h"}]}}), "spec.strategy.canary[0].sook"),
        ] {
            let error = parse_policy(&policy).unwrap_err().to_string();
            assert!(error.contains(&format!("unknown field {field}")), "{error}");
        }
        let usual = json!({"maxUnavailable": "10%", "enabled": true, "version": {"target": "latest", "exclude": []}, "nodeGroups": []});
        parse_policy(&usual).unwrap();
    }
}
