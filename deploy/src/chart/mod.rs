//! The Helm charts, generated from the objects of the manifests: what a value decides is a template expression, all else
//! is what the manifests have.
//!
//! ```text
//!  objects ──► places: which value decides what ──► template: YAML with expressions ──► deploy/chart/templates
//!     │
//!     └──────► values: default, type, purpose ────► values.yaml, values.schema.json, docs/chart-values.md
//! ```
//!
//! The custom resource definitions have a chart of their own. Helm looks all kinds of a chart up before it installs any
//! of it, so a chart cannot have both a definition and an object of it; and a rollback of the operator must not roll its
//! definitions back.

mod places;
mod template;
mod values;

use serde_json::Value;

use crate::options::{COMMAND, Options};
use crate::{
    admission, agent, apiserver, aws, controller, crds, monitoring, namespaces, network, policy, rights, yaml,
};
use places::Fills;

/// The hook for AWS is rendered under this condition.
const AWS: &str = ".Values.aws.enabled";

/// A document is rendered under this condition, or always.
type Condition = Option<&'static str>;

/// All generated files of both charts: the path from the repository's root, and the content.
///
/// # Errors
/// If one cannot be generated.
pub(crate) fn files() -> anyhow::Result<Vec<(String, String)>> {
    let options = Options::default();
    let always = |objects: Vec<Value>| -> Vec<(Condition, Value)> { objects.into_iter().map(|o| (None, o)).collect() };
    let when = |condition: &'static str, objects: Vec<Value>| -> Vec<(Condition, Value)> {
        objects.into_iter().map(|object| (Some(condition), object)).collect()
    };
    let [system, agents] = namespaces::all();
    let namespaces = [
        when(".Values.namespaces.system.create", vec![system]),
        when(".Values.namespaces.agents.create", vec![agents]),
    ];
    let rights = [
        always(rights::accounts_and_roles()),
        when(".Values.rbac.aggregateRoles", rights::aggregated()),
        when(".Values.rbac.forceDrain", rights::force()),
    ];
    // The rights to Jobs, and the bindings of their policy, are in jobs.yaml: as many as there are namespaces and templates.
    let limits = [always(admission::all()?), when(".Values.hooks.jobs", admission::jobs().into())];
    let hook_for_aws = [
        when(AWS, rights::aws()),
        when(AWS, admission::aws().into()),
        when("and .Values.aws.enabled .Values.networkPolicy.enabled", vec![network::aws()]),
        when(AWS, vec![aws::deployment(&options)]),
    ];
    let mut files: Vec<_> = [
        ("deploy/chart/Chart.yaml", metadata(OPERATOR)),
        ("deploy/chart/values.yaml", values::yaml(&values::of_operator()?)?),
        ("deploy/chart/values.schema.json", values::schema(&values::of_operator()?)?),
        ("deploy/chart/templates/namespaces.yaml", templates(namespaces.concat())?),
        ("deploy/chart/templates/rights.yaml", templates(rights.concat())?),
        ("deploy/chart/templates/admission.yaml", templates(limits.concat())?),
        (
            "deploy/chart/templates/network.yaml",
            templates(when(".Values.networkPolicy.enabled", network::all().into()))?,
        ),
        ("deploy/chart/templates/apiserver.yaml", templates(always(apiserver::all(&options).into()))?),
        ("deploy/chart/templates/controller.yaml", templates(always(controller::all(&options).into()))?),
        ("deploy/chart/templates/agent.yaml", templates(always(vec![agent::daemon_set(&options)]))?),
        ("deploy/chart/templates/aws.yaml", templates(hook_for_aws.concat())?),
        ("deploy/chart/templates/policy.yaml", templates(when(".Values.policy.create", vec![policy::default()]))?),
        (
            "deploy/chart/templates/podmonitor.yaml",
            templates(when(".Values.monitoring.podMonitor.enabled", vec![monitoring::pod_monitor()]))?,
        ),
        ("deploy/chart/files/alerts.yaml", monitoring::ALERTS.to_owned()),
        ("deploy/chart-crds/Chart.yaml", metadata(DEFINITIONS)),
        ("deploy/chart-crds/values.yaml", values::yaml(&values::of_definitions())?),
        ("deploy/chart-crds/values.schema.json", values::schema(&values::of_definitions())?),
        ("deploy/chart-crds/templates/crds.yaml", templates(always(crds::all()?))?),
        ("docs/chart-values.md", values::page(&values::of_operator()?, &values::of_definitions())?),
    ]
    .map(|(name, content)| (name.to_owned(), content))
    .into();
    // Not templates: Helm would evaluate the braces of their own.
    for (name, dashboard) in monitoring::DASHBOARDS {
        files.push((format!("deploy/chart/files/dashboards/{name}.json"), dashboard.to_owned()));
    }
    Ok(files)
}

/// Name and description of the charts.
const OPERATOR: (&str, &str) = (
    "brupop",
    "The Bottlerocket update operator: updates the nodes of a cluster, one budgeted step at a time. Install the chart \
     brupop-crds first.",
);
const DEFINITIONS: (&str, &str) =
    ("brupop-crds", "The custom resource definitions of the Bottlerocket update operator.");

fn metadata((name, description): (&str, &str)) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let tag = Options::default().tag;
    format!(
        "# Generated by `{COMMAND}`; do not edit.\n\
         apiVersion: v2\nname: {name}\ndescription: {description:?}\ntype: application\n\
         version: {version}\nappVersion: {tag}\n# The oldest version that the operator supports, pre-releases of vendors included.\n\
         kubeVersion: \">=1.32.0-0\"\n\
         keywords: [bottlerocket, update, node, operator]\n"
    )
}

/// The template of a file: each object with its values, under its condition.
fn templates(objects: Vec<(Condition, Value)>) -> anyhow::Result<String> {
    let mut text = format!("{{{{- /* Generated by `{COMMAND}`; do not edit. */}}}}\n");
    for (condition, mut object) in objects {
        let reasons = rights::reasons(&object);
        let mut fills = Fills::default();
        places::fill(&mut object, &mut fills)?;
        let document = template::expand(&yaml::document(&object, &reasons)?, &fills)?;
        match condition {
            Some(condition) => text.push_str(&format!("{{{{- if {condition} }}}}\n{document}{{{{- end }}}}\n")),
            None => text.push_str(&document),
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments of each component, and of its probes, that the programs of the first release know; with a value where the
    /// program has to know that too.
    const KNOWN: [(&str, &str); 4] = [
        (
            "agent",
            "--alive-file --boot-id-file --check=alive --check=connected --host-socket --log-filter --log-format --node-name \
             --server-url --token-file --trust-dir",
        ),
        ("apiserver", "--agent-namespace --listen --log-filter --log-format --namespace --plain-listen --tls-dir"),
        (
            "controller",
            "--agent-namespace --cluster-domain --identity --log-filter --log-format --namespace --node-name --notices-dir \
             --plain-listen --prometheus-credentials-dir --serving-certificate=provided",
        ),
        ("aws", "--log-filter --log-format --namespace"),
    ];

    #[test]
    fn pods_that_uncordon_nodes_run_on_cordoned_ones_whatever_tolerations_users_set() {
        let files = files().unwrap();
        for component in ["controller", "apiserver", "aws"] {
            let name = format!("deploy/chart/templates/{component}.yaml");
            let (_, text) = files.iter().find(|(path, _)| *path == name).unwrap();
            let expected = format!(
                "\n      tolerations:\n      - effect: NoSchedule\n        key: node.kubernetes.io/unschedulable\n        operator: Exists\n\
                 \x20     {{{{- range .Values.{component}.tolerations }}}}\n"
            );
            assert!(text.contains(&expected), "{component}: {text}");
        }
        let defaults = values::yaml(&values::of_operator().unwrap()).unwrap();
        assert!(!defaults.contains("unschedulable"), "twice by default: {defaults}");
    }

    #[test]
    fn commands_of_the_notes_name_the_namespace_of_the_release() {
        let notes = include_str!("../../chart/templates/NOTES.txt");
        for command in ["helm upgrade ", "kubectl brupop ", "kubectl get "] {
            assert!(notes.contains(command), "{command}");
            for line in notes.lines().filter(|line| line.contains(command)) {
                assert!(line.contains(" --namespace {{ .Release.Namespace }}"), "{line}");
            }
        }
    }

    /// The templates have the arguments of the manifests, and those of values.
    #[test]
    fn workloads_have_only_arguments_that_programs_of_an_earlier_version_know() {
        let files = files().unwrap();
        for (component, known) in KNOWN {
            let name = format!("deploy/chart/templates/{component}.yaml");
            let (_, text) = files.iter().find(|(path, _)| *path == name).unwrap();
            let is_flag =
                |word: &&str| word.strip_prefix("--").is_some_and(|rest| rest.starts_with(char::is_alphabetic));
            // The first line names the command that writes the file.
            let arguments: Vec<&str> =
                text.lines().skip(1).flat_map(|line| line.split([' ', '"'])).filter(is_flag).collect();
            assert!(arguments.len() >= known.split(' ').count(), "{component}: {arguments:?}");
            let is_known = |argument: &str| {
                let name = argument.split('=').next().unwrap_or_default();
                known.split(' ').any(|known| known == argument || known == name)
            };
            let unknown: Vec<&str> = arguments.into_iter().filter(|argument| !is_known(argument)).collect();
            assert!(
                unknown.is_empty(),
                "{component} has {unknown:?}: a program of an earlier version refuses an argument or a value that it does not \
                 know, and its pods crash where only the images are set back. Make a new setting an environment variable, which \
                 such a program ignores (CONTRIBUTING.md, Add a value to the chart)"
            );
        }
    }
}
