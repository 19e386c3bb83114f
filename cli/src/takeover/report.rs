//! Output of `takeover preflight`: for readers, and as JSON.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::facts::{Conversion, Facts, Workload};
use super::finding::{Finding, NAMED, Severity};
use super::findings::{balancer_labels, cordons, generation, nodes_where, unknown, without_node, without_shadow};
use crate::advice::some;
use crate::marks::NodeState;
use crate::page::{Page, Style, lines_of};

/// Returns the tags of the images, without repetition.
fn tags(facts: &Facts) -> Vec<&str> {
    let tags: BTreeSet<&str> = facts.workloads.iter().flat_map(Workload::tags).collect();
    tags.into_iter().collect()
}

const fn word(conversion: &Conversion) -> &'static str {
    match conversion {
        Conversion::NoWebhook => "None",
        Conversion::Untested => "Untested",
        Conversion::Answers => "Answers",
        Conversion::Fails(_) => "Fails",
    }
}

/// Makes the report for readers.
pub(super) fn page(facts: &Facts, findings: &[Finding], width: Option<usize>) -> Page {
    let mut page = Page::of_width(width);
    let or_none = |text: String| if text.is_empty() { "none".to_owned() } else { text };
    let about = |names: Vec<&str>| or_none(some(names, NAMED));
    if let Some(generation) = generation(facts) {
        page.paragraph(&format!("Earlier operator: release {generation}, image tags: {}", about(tags(facts))));
    }
    let workloads = or_none(some(facts.workloads.iter().map(Workload::id), NAMED));
    page.paragraph(&format!("Workloads: {workloads}; {} pod(s)", facts.pods.len()));
    if let Some(definition) = &facts.definition {
        let conversion = match &facts.conversion {
            Conversion::NoWebhook => "no conversion webhook",
            Conversion::Untested => "a conversion webhook, not tried",
            Conversion::Answers => "a conversion webhook that answers",
            Conversion::Fails(_) => "a conversion webhook that does not answer",
        };
        let versions = format!(
            "Definition: versions {}, stored in {} now, in {} so far, {conversion}",
            definition.versions.join(", "),
            definition.storage,
            or_none(definition.stored.join(", ")),
        );
        page.paragraph(&versions);
        let shadows = format!(
            "Shadows: {}; under way: {}; may reboot: {}; may be armed: {}",
            facts.shadows.len(),
            about(nodes_where(facts, |shadow| shadow.state.is_under_way())),
            about(nodes_where(facts, |shadow| shadow.state.may_reboot())),
            about(nodes_where(facts, |shadow| shadow.state.may_be_armed())),
        );
        page.paragraph(&shadows);
    }
    for (severity, title) in [
        (Severity::Blocks, "Prevents the takeover:"),
        (Severity::First, "Before the takeover:"),
        (Severity::Note, "To know:"),
    ] {
        section(&mut page, title, findings.iter().filter(|finding| finding.severity == severity));
    }
    let unknown = unknown(facts);
    if !unknown.is_empty() {
        page.line("");
        page.line("Not known:");
        for sentence in unknown {
            page.indented("  *", BULLET, Style::Plain, &sentence);
        }
    }
    page
}

/// Column at which the text of a finding begins.
const BULLET: usize = 4;

fn section<'a>(page: &mut Page, title: &str, findings: impl Iterator<Item = &'a Finding>) {
    let mut findings = findings.peekable();
    if findings.peek().is_some() {
        page.line("");
        page.line(title);
    }
    for finding in findings {
        page.indented("  *", BULLET, Style::Plain, &format!("{}.", finding.text));
        for line in finding.run.iter().flat_map(|command| lines_of(command)) {
            page.line(format_args!("      {line}"));
        }
    }
}

/// Makes the report as JSON; docs/takeover.md has its shape.
pub(super) fn json(facts: &Facts, findings: &[Finding]) -> Value {
    let names = |nodes: Vec<&NodeState>| nodes.into_iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    let (own, others) = cordons(facts);
    let workload = |workload: &Workload| {
        json!({
            "kind": workload.kind, "namespace": workload.namespace, "name": workload.name,
            "images": workload.images, "managedBy": workload.tools,
        })
    };
    json!({
        "blocked": findings.iter().any(|finding| finding.severity == Severity::Blocks),
        "operator": {
            "release": generation(facts),
            "imageTags": tags(facts),
            "namespaces": facts.namespaces(),
            "workloads": facts.workloads.iter().map(workload).collect::<Vec<_>>(),
            "pods": facts.pods.len(),
        },
        "definition": facts.definition.as_ref().map(|definition| {
            json!({
                "versions": definition.versions,
                "storageVersion": definition.storage,
                "storedVersions": definition.stored,
                "webhook": word(&facts.conversion),
                "managedBy": definition.tools,
            })
        }),
        "shadows": {
            "total": facts.shadows.len(),
            "underWay": nodes_where(facts, |shadow| shadow.state.is_under_way()),
            "mayReboot": nodes_where(facts, |shadow| shadow.state.may_reboot()),
            "mayBeArmed": nodes_where(facts, |shadow| shadow.state.may_be_armed()),
            "withoutNode": without_node(facts),
            "unreadable": facts.unreadable,
        },
        "nodes": {
            "withoutShadow": without_shadow(facts),
            "cordonsOfEarlierOperator": names(own),
            "cordonsOfOthers": names(others),
            "balancerLabelsOfEarlierOperator": names(balancer_labels(facts)),
        },
        "findings": findings,
        "unknown": unknown(facts),
    })
}
