//! `kubectl brupop simulate`: the rollout of a described fleet in virtual time.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Args;
use jiff::Timestamp;
use models::operator::BottlerocketUpdateOperatorSpec;
use planner::simulation::{Description, Scenario};
use serde_json::{Value, json};

use crate::files::{read_text, write_text};
use crate::forecast::{self, LATE, html, report, summary::Summary};
use crate::page::Page;
use crate::shell::for_cluster;
use crate::terminal::Format;

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
    /// `wide` for text in full, `json` or `yaml` for programs.
    #[arg(long, short, value_enum)]
    output: Option<Format>,
    /// Write the course with the median duration as a page for browsers into this file. The page needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn read(path: &Path) -> anyhow::Result<Value> {
    serde_saphyr::from_str(&read_text(path)?).with_context(|| format!("{} is neither YAML nor JSON", path.display()))
}

/// Reads the `spec` of an operator's resource from a file that has it alone or in the whole resource.
pub(crate) fn read_policy(path: &Path) -> anyhow::Result<Value> {
    let value = read(path)?;
    Ok(value.get("spec").cloned().unwrap_or(value))
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
        bail!("unknown field {field}: {} lists the fields", for_cluster("kubectl explain bruo.spec"));
    }
    Ok(spec)
}

/// Reads a description. An error has the line, and shows it.
fn description(text: &str) -> anyhow::Result<Description> {
    let description = serde_saphyr::from_str(text)?;
    let value: Value = serde_saphyr::from_str(text)?;
    if let Some(policy) = value.get("policy").filter(|policy| !policy.is_null()) {
        parse_policy(policy).context("policy")?;
    }
    Ok(description)
}

fn scenario(options: &SimulateOptions, now: Timestamp) -> anyhow::Result<Scenario> {
    let file = || format!("{} cannot be simulated", options.file.display());
    let mut description = description(&read_text(&options.file)?).with_context(file)?;
    if let Some(path) = &options.policy {
        let policy = || format!("{} is no policy", path.display());
        description.policy = parse_policy(&read_policy(path)?).with_context(policy)?;
    }
    description.scenario(now).with_context(file)
}

/// Simulates a described fleet. The exit code is that of `plan`.
pub(crate) fn run(options: &SimulateOptions) -> anyhow::Result<ExitCode> {
    let scenario = scenario(options, crate::clock::now())?;
    let courses = forecast::courses(&scenario, options.seed, options.courses)?;
    let (summary, median) = Summary::of(&scenario, &courses);
    if let (Some(path), Some(course)) = (&options.html, courses.get(median)) {
        write_text(path, &html::page("Simulated rollout", &scenario, course, &summary)?)?;
    }
    let findings = report::findings(&scenario, &courses, &summary);
    let code = if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(LATE) };
    let text = |width| {
        let mut page = Page::of_width(width);
        report::add(&mut page, &summary);
        page.cut_note();
        report::add_findings(&mut page, &findings);
        page
    };
    Format::show(options.output, &json!({"summary": summary, "findings": findings}), text)?.print()?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLEET: &str = "nodes:\n- count: 3\n  version: 1.20.0\nversions: [1.20.5]\n";

    #[test]
    fn invalid_field_of_description_is_named_with_its_line() {
        for (from, to, parts) in [
            ("version: 1.20.0", "version: \"1.20\"", ["line 3", "version: \"1.20\""]),
            ("count: 3", "count: -3", ["line 2", "count: -3"]),
            ("count: 3", "cuont: 3", ["line 2", "cuont"]),
            ("[1.20.5]", "[]", ["versions:", "such as [1.20.5]"]),
            ("versions: [1.20.5]", "versions: [1.20.5]\npolicy: {maxUnavalable: 2}", ["policy", "spec.maxUnavalable"]),
        ] {
            let found = description(&FLEET.replacen(from, to, 1));
            let found = found.and_then(|found| Ok(found.scenario(Timestamp::UNIX_EPOCH)?));
            let error = format!("{:#}", found.unwrap_err());
            assert!(parts.iter().all(|part| error.contains(part)), "{to}: {error}");
        }
    }

    /// Simulates a fleet whose failures have this effect.
    fn simulated(failures: &str, width: usize) -> (Vec<String>, String) {
        let text = format!("{FLEET}start: 2026-01-01T00:00:00Z\nhorizon: 24h\nfailures: {failures}\n");
        let scenario = description(&text).unwrap().scenario(Timestamp::UNIX_EPOCH).unwrap();
        let courses = forecast::courses(&scenario, 1, 3).unwrap();
        let (summary, _) = Summary::of(&scenario, &courses);
        let findings = report::findings(&scenario, &courses, &summary);
        let mut page = Page::of_width(Some(width));
        report::add(&mut page, &summary);
        page.cut_note();
        report::add_findings(&mut page, &findings);
        (findings, page.to_string())
    }

    #[test]
    fn simulation_that_freezes_has_findings_and_fits_the_terminal() {
        assert_eq!(simulated("[]", 80).0, Vec::<String>::new());
        let (findings, _) = simulated("[{effect: DoesNotBoot}]", 80);
        for part in ["3 nodes are not updated", "failures of 1.20.5 freeze the rollout in 3 of 3 courses"] {
            assert!(findings.iter().any(|finding| finding.contains(part)), "{part}: {findings:?}");
        }
        for width in [40, 80, 200] {
            let (_, text) = simulated("[{effect: DoesNotBoot}]", width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
        }
    }

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
