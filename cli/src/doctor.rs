//! `kubectl brupop doctor`: checks an installation from end to end, and changes nothing.

mod aws;
mod certificate;
mod facts;
mod finding;
mod findings;
mod fleet;
mod jobs;
mod objects;

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use self::facts::Facts;
use self::finding::{Finding, NAMED, Severity};
use self::findings::findings;
use crate::advice::{counted, some};
use crate::page::{Page, Style};
use crate::shell::for_cluster;
use crate::terminal::Format;

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// `json` or `yaml` for programs; docs/plugin.md describes it.
    #[arg(long, short, value_parser = Format::only([Format::Json, Format::Yaml]))]
    output: Option<Format>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis {
    time: Timestamp,
    /// Version of Kubernetes.
    kubernetes: String,
    checked: Vec<String>,
    findings: Vec<Finding>,
    /// Parts that could not be read, and that were not checked therefore.
    not_read: Vec<String>,
    errors: usize,
    warnings: usize,
}

/// Checks the installation; the exit code is 1 if there is an error.
pub(crate) async fn doctor(client: &Client, namespace: &str, options: &DoctorOptions) -> anyhow::Result<ExitCode> {
    let diagnosis = diagnose(client, namespace).await?;
    Format::show(options.output, &diagnosis, |width| diagnosis.page(width))?.print()?;
    Ok(if diagnosis.errors > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub(crate) async fn diagnose(client: &Client, namespace: &str) -> anyhow::Result<Diagnosis> {
    Ok(Diagnosis::of(&facts::read(client, namespace).await?))
}

impl Diagnosis {
    fn of(facts: &Facts) -> Self {
        let mut findings = findings(facts);
        for command in findings.iter_mut().flat_map(|finding| &mut finding.next) {
            *command = for_cluster(command);
        }
        let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        Self {
            time: facts.read_at,
            kubernetes: facts.version.clone(),
            checked: checked(facts),
            errors: count(Severity::Error),
            warnings: count(Severity::Warning),
            findings,
            not_read: facts.not_read.clone(),
        }
    }

    pub(crate) fn page(&self, width: Option<usize>) -> Page {
        let mut page = Page::of_width(width);
        page.field("Checked:", Style::Plain, &self.checked.join(", "));
        for sentence in &self.not_read {
            page.field("Not read:", Style::Warn, sentence);
        }
        for finding in &self.findings {
            let (label, style) = match finding.severity {
                Severity::Error => ("ERROR", Style::Bad),
                Severity::Warning => ("WARNING", Style::Warn),
                Severity::Note => ("note", Style::Faint),
            };
            let objects = some(&finding.objects, NAMED);
            let about = if objects.is_empty() { String::new() } else { format!("{objects}: ") };
            page.line("");
            page.field(label, style, &format!("{}: {about}{}", finding.reason, finding.message));
            page.commands("", Style::Plain, &finding.next);
        }
        page.line("");
        let (style, result) = match (self.errors, self.warnings) {
            (0, 0) if self.not_read.is_empty() => (Style::Good, "all is well".to_owned()),
            (0, 0) => (Style::Warn, "no error in what was checked; not all could be read".to_owned()),
            (errors, warnings) => {
                let style = if errors > 0 { Style::Bad } else { Style::Warn };
                (style, format!("{errors} error(s), {warnings} warning(s)"))
            }
        };
        page.field("Result:", style, &result);
        page
    }
}

fn checked(facts: &Facts) -> Vec<String> {
    let mut checked = Vec::new();
    if !facts.version.is_empty() {
        checked.push(format!("Kubernetes {}", facts.version));
    }
    if !facts.objects.is_empty() {
        checked.push(format!("{} objects of the installation", facts.objects.len()));
    }
    if facts.endpoints.is_some() {
        checked.push("endpoints of the web API".to_owned());
    }
    if facts.trust.is_some() {
        checked.push("certificate authorities".to_owned());
    }
    if !facts.node_renewed.is_empty() {
        checked.push(format!("clocks of {}", counted(facts.node_renewed.len(), "node")));
    }
    if let Some(cluster) = &facts.cluster {
        checked.push("the policy".to_owned());
        checked.extend(cluster.nodes.as_ref().map(|nodes| counted(nodes.len(), "node")));
        checked.extend(cluster.agents.as_ref().map(|agents| counted(agents.len(), "agent")));
        let pods: usize = cluster.pods.values().map(Vec::len).sum();
        if pods > 0 {
            let budgets = counted(cluster.budgets.len(), "PodDisruptionBudget");
            checked.push(format!("{} under {budgets}", counted(pods, "pod")));
        }
    }
    checked
}

#[cfg(test)]
mod tests;
