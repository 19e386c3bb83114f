//! The tools that installed the earlier operator: each may delete or apply its objects again.

use std::collections::BTreeSet;

use models::names::SHADOW_DEFINITION as DEFINITION;

use crate::helm::{Releases, before_forgetting, keep_in_upgrade};
use crate::marks::{Tool, not_by_manifest};
use crate::shell::{for_cluster, word};
use crate::takeover::facts::Facts;
use crate::takeover::finding::{Finding, Severity};

/// Adds what to do about each tool.
pub(super) fn findings(facts: &Facts, found: &mut Vec<Finding>) {
    let ours = facts.definition.as_ref().is_some_and(|definition| definition.ours);
    if facts.definition.is_some() && !ours {
        let rest = "The end of takeover swap has the commands that remove the rest of the earlier operator";
        found.push(Finding::note("ManifestHoldsDefinition", format!("{}. {rest}", not_by_manifest())));
    }
    // From the takeover on, no other tool can apply the definition, and Helm still deletes it while it knows the release.
    let acts = |tool: &&Tool| match tool {
        Tool::Helm { release, .. } if ours => release.as_ref().is_some_and(|name| facts.releases.may_have(name)),
        Tool::Helm { .. } | Tool::ArgoCd { .. } | Tool::Flux { .. } => !ours,
    };
    let mut of_definition: Vec<&Tool> = facts.tools_of_definition().iter().filter(acts).collect();
    // Helm forgets a release only once no other tool installs it again.
    of_definition.sort_by_key(|tool| matches!(tool, Tool::Helm { .. }));
    let of_workloads: BTreeSet<&Tool> = facts.workloads.iter().flat_map(|workload| &workload.tools).collect();
    for tool in &of_definition {
        found.push(match tool {
            Tool::Helm { release, namespace } => {
                let finding =
                    helm_definition(&facts.releases, release.as_deref(), namespace, of_workloads.contains(tool));
                // Without the right to search all namespaces, it would never end.
                match release {
                    Some(name) if ours && facts.releases.is_only_unsearched(name) => {
                        Finding { severity: Severity::Note, ..finding }
                    }
                    _ => finding,
                }
            }
            Tool::ArgoCd { application } => argo_definition(application),
            Tool::Flux { kind, name, namespace } => flux_definition(kind, name, namespace),
        });
    }
    // A release that holds the definition too is never to be uninstalled.
    let with_definition = |tool: &Tool| {
        of_definition.contains(&tool)
            || (matches!(tool, Tool::Helm { .. }) && facts.tools_of_definition().contains(tool))
    };
    for tool in of_workloads.into_iter().filter(|tool| !with_definition(tool)) {
        found.push(match tool {
            Tool::Helm { release, namespace } => helm_workloads(&facts.releases, release.as_deref(), namespace),
            Tool::ArgoCd { application } => Finding::first(
                "ArgoCdOwnsWorkloads",
                format!(
                    "the Argo CD application {application} applies the workloads of the earlier operator: it would start \
                     them again beside this operator. Switch off its automatic sync, and remove its source after the takeover"
                ),
            )
            .run([argo_suspend(application)]),
            Tool::Flux { kind, name, namespace } => Finding::first(
                "FluxOwnsWorkloads",
                format!(
                    "the Flux {kind} {namespace}/{name} applies the workloads of the earlier operator: it would start them \
                     again beside this operator. Suspend it, and remove its source after the takeover"
                ),
            )
            .run([flux_suspend(kind, name, namespace)]),
        });
    }
}

fn helm_definition(releases: &Releases, release: Option<&str>, namespace: &str, with_workloads: bool) -> Finding {
    let Some(release) = release else {
        return Finding::first(
            "HelmOwnsDefinition",
            format!(
                "Helm manages the definition {DEFINITION}, which does not name its release: find the release with {}, and do \
                 not uninstall it. That would delete the definition, and every shadow of this operator with it",
                for_cluster("helm list -A")
            ),
        );
    };
    let rest = if with_workloads {
        ". The release holds the earlier operator's workloads as well: the takeover deletes these, and once Helm has forgotten the \
         release, its other objects have to be deleted by hand"
    } else {
        ""
    };
    Finding::first(
        "HelmOwnsDefinition",
        format!(
            "the Helm release {namespace}/{release}, {}, holds the definition {DEFINITION}: uninstalling it, now or at any \
             later time, deletes the definition, and every shadow of this operator with it. No annotation on the definition \
             prevents that. Do not uninstall it. {}{rest}",
            releases.place(release),
            before_forgetting("annotate the definition with helm.sh/resource-policy=keep")
        ),
    )
    .run([format!("{}   # if it has other parts", keep_in_upgrade())])
    .run(releases.forget(release).into_iter().map(|command| format!("{command}   # if it has none")))
}

fn helm_workloads(releases: &Releases, release: Option<&str>, namespace: &str) -> Finding {
    let place = release.map_or_else(String::new, |name| format!(", {},", releases.place(name)));
    let command = release.and_then(|name| releases.uninstall(name));
    let release = release.unwrap_or("RELEASE");
    let after = if command.is_some() {
        "and uninstall it after the takeover".to_owned()
    } else {
        let list = for_cluster("helm list -A");
        format!("and uninstall it after the takeover if {list} shows it, or delete its objects")
    };
    Finding::note(
        "HelmOwnsWorkloads",
        format!(
            "the Helm release {namespace}/{release}{place} holds the workloads of the earlier operator and not the definition. Do \
             not upgrade it any more, {after}"
        ),
    )
    .run(command.map(|command| format!("{command}   # after the takeover")))
}

fn argo_definition(application: &str) -> Finding {
    Finding::first(
        "ArgoCdOwnsDefinition",
        format!(
            "the Argo CD application {application} applies the definition {DEFINITION}: the API server refuses that once v3 is \
             stored, and the application stays out of sync. If it prunes the definition, or is deleted, every shadow of this \
             operator goes with it. Switch off its automatic sync, keep the definition from being deleted, and remove its source \
             after the takeover"
        ),
    )
    .run([
        argo_suspend(application),
        format!("kubectl annotate crd {DEFINITION} argocd.argoproj.io/sync-options=Prune=false,Delete=false --overwrite"),
    ])
}

fn argo_suspend(application: &str) -> String {
    format!("argocd app set {} --sync-policy none", word(application))
}

fn flux_definition(kind: &str, name: &str, namespace: &str) -> Finding {
    let keep = match kind {
        "kustomization" => {
            Some(format!("kubectl annotate crd {DEFINITION} kustomize.toolkit.fluxcd.io/prune=disabled --overwrite"))
        }
        _ => None,
    };
    let text = if keep.is_some() {
        "Suspend it, and then keep the definition from being deleted: while it is not suspended, it removes an annotation that kubectl \
         has set. Resume it once its source is without the earlier operator, after the takeover"
    } else {
        "Suspend it, and leave it suspended until the HelmRelease itself is deleted, or has a chart without the earlier operator: \
         otherwise its deletion uninstalls its Helm release, and so may the failure of installing one again that Helm has forgotten"
    };
    Finding::first(
        "FluxOwnsDefinition",
        format!(
            "the Flux {kind} {namespace}/{name} applies the definition {DEFINITION}: the API server refuses that once v3 is \
             stored, and it is not Ready any more. If it prunes the definition, every shadow of this operator goes with it. {text}"
        ),
    )
    .run(std::iter::once(flux_suspend(kind, name, namespace)).chain(keep))
}

fn flux_suspend(kind: &str, name: &str, namespace: &str) -> String {
    format!("flux suspend {kind} {} -n {}", word(name), word(namespace))
}
