//! Every command and every YAML of the documentation. Blocks of commands run in a shell whose programs are stand-ins
//! (`documents/stand-in.sh`): kubectl and helm are the real ones with dry runs on a real API server, and the plugin and the
//! generator of the manifests are those of this build. Fields that a command reads have to exist. YAML is applied by a dry
//! run, that of other projects with their definitions, and policies are also read as the controller reads them. A block
//! that belongs to no class fails.

mod fields;
mod shell;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use futures::{StreamExt as _, stream};
use integ::control_plane::{ControlPlane, Options};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::Api;
use kube::api::{Patch, PostParams};
use models::names::{AGENT_NAMESPACE, CONTROLLER, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperatorSpec;
use models::shadow::BottlerocketShadow;
use planner::policy::Policy;
use serde_json::{Value, json};

use self::shell::{Shell, program_of};

/// Blocks and spans that are tried at a time.
const AT_ONCE: usize = 4;

/// A class of blocks, by the info string of their fences.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Class {
    /// Commands of a shell.
    Commands,
    /// Objects, or the beginning of one.
    Objects,
    /// Policies of another system: their form alone is checked.
    Json,
    /// Output, messages and drawings: nothing to try.
    Text,
}

const CLASSES: [(&str, Class); 6] = [
    ("sh", Class::Commands),
    ("zsh", Class::Commands),
    ("fish", Class::Commands),
    ("yaml", Class::Objects),
    ("json", Class::Json),
    ("text", Class::Text),
];

/// API groups of other projects. A page that shows an object of one says that the project itself was not tried.
const OTHER_PROJECTS: [&str; 5] =
    ["cert-manager.io", "argoproj.io", "kustomize.toolkit.fluxcd.io", "karpenter.sh", "monitoring.coreos.com"];

/// Commands in a sentence are those of these programs.
const IN_TEXT: [&str; 2] = ["kubectl ", "helm "];

/// Commands that the test refuses, each with a part of the error.
const REFUSED: [(&str, &str); 5] = [
    ("kubectl get brs brs-n1 -n brupop-system -o jsonpath='{.status.host.set}'", "field \"set\" does not exist"),
    (
        "helm upgrade brupop deploy/chart --namespace brupop-system --set policy.enable=true",
        "additional properties 'enable' not allowed",
    ),
    ("helm install brupop deploy/chart --namespace brupop-system --values-file FILE", "unknown flag: --values-file"),
    ("helm uninstall brupop --namespace brupop-system --now", "unknown flag: --now"),
    ("helm uninstall operator --namespace brupop-system", "not found"),
];

/// An object of another project with a field that its definition lacks.
const UNKNOWN_FIELD: &str = "apiVersion: cert-manager.io/v1\nkind: Certificate\nmetadata: {name: a}\n\
    spec: {secretName: a, secret: b, issuerRef: {name: c}}\n";

/// A fenced block.
struct Block {
    page: String,
    line: usize,
    info: String,
    text: String,
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_and_yaml_of_documentation_are_accepted() -> anyhow::Result<()> {
    let mut blocks = Vec::new();
    // A command that several pages have is tried once.
    let mut spans = BTreeMap::new();
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(root().canonicalize()?)?.display().to_string();
        spans.extend(read(&name, &text, &mut blocks)?.into_iter().map(|span| (span, name.clone())));
    }
    blocks.extend(examples()?);
    ensure!(blocks.len() > 50 && spans.len() > 50, "{} blocks and {} commands in text", blocks.len(), spans.len());

    let control_plane = ControlPlane::start(Options::default()).await?;
    super::install(&control_plane).await?;
    create_objects(&control_plane).await?;
    super::kubectl(&control_plane, &["create", "namespace", "brupop-hooks"]).await?;
    integ::tools::install_definitions(&control_plane).await?;
    for namespace in ["argocd", "flux-system"] {
        super::kubectl(&control_plane, &["create", "namespace", namespace]).await?;
    }
    let folder = tempfile::tempdir()?;
    let shell = Shell::new(&control_plane, folder.path()).await?;
    create_releases(&control_plane, folder.path()).await?;
    let tries = blocks.iter().map(|block| (format!("{}:{}", block.page, block.line), Some(block), ""));
    let tries = tries.chain(spans.iter().map(|(span, page)| (page.clone(), None, span.as_str())));
    let shell = &shell;
    let results = stream::iter(tries.enumerate()).map(|(number, (place, block, span))| async move {
        let result = match block {
            Some(block) => shell.try_block(number, block).await,
            // A command in a sentence may lack what it needs, such as the name of a node: its words and options are tried.
            None => shell.run(number, &format!("{span} --help")).await,
        };
        result.err().map(|error| format!("{place}: {error:#}"))
    });
    let failures: Vec<String> = results.buffer_unordered(AT_ONCE).filter_map(std::future::ready).collect().await;
    ensure!(failures.is_empty(), "{} of the documentation's blocks:\n{}", failures.len(), failures.join("\n"));
    for (number, (command, expected)) in REFUSED.into_iter().enumerate() {
        let result = shell.run(usize::MAX - number, command).await;
        let error = result.err().with_context(|| format!("{command}: not refused"))?;
        ensure!(format!("{error:#}").contains(expected), "{command}: {error:#}");
    }
    let unknown =
        Block { page: "docs/certificates.md".into(), line: 0, info: "yaml".into(), text: UNKNOWN_FIELD.into() };
    let error = shell.try_block(usize::MAX - REFUSED.len(), &unknown).await.err().context("not refused")?;
    ensure!(format!("{error:#}").contains(".spec.secret: field not declared in schema"), "{error:#}");
    control_plane.stop().await
}

/// The versions that pages name, of the projects whose definitions `definitions/get.sh` gets.
#[test]
fn named_versions_of_other_projects_are_those_of_their_definitions() -> anyhow::Result<()> {
    let script = include_str!("../../definitions/get.sh");
    let karpenter = ("sigs.k8s.io/karpenter", "Karpenter");
    let argo_cd = ("github.com/argoproj/argo-cd/v3", "Argo CD");
    let flux = ("github.com/fluxcd/kustomize-controller", "kustomize-controller");
    let cert_manager = ("github.com/cert-manager/cert-manager", "cert-manager");
    let prometheus = ("github.com/prometheus-operator/prometheus-operator", "operator");
    let pages = [
        ("docs/how-to/autoscalers.md", &[karpenter][..]),
        ("docs/how-to/gitops.md", &[argo_cd, flux]),
        ("docs/testing.md", &[karpenter, argo_cd, flux, cert_manager, prometheus]),
    ];
    for (page, projects) in pages {
        let text = std::fs::read_to_string(root().join(page))?;
        for (module, project) in projects {
            let (_, after) = script.split_once(&format!("\n{module} v")).with_context(|| (*module).to_owned())?;
            let named = format!("{project} {}", after.split(' ').next().unwrap_or_default());
            ensure!(text.replace('\n', " ").contains(&named), "{page} does not name {named}");
        }
    }
    Ok(())
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages: all of `docs`, and those in the root of the repository.
fn pages() -> anyhow::Result<Vec<PathBuf>> {
    let root = root().canonicalize()?;
    let mut folders = vec![root.join("docs")];
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|page| root.join(page)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    Ok(pages)
}

/// Adds the blocks of a page, and returns its commands in text.
fn read(page: &str, text: &str, blocks: &mut Vec<Block>) -> anyhow::Result<Vec<String>> {
    let mut prose = String::new();
    let mut open: Option<Block> = None;
    let mut indent = 0;
    for (number, line) in text.lines().enumerate() {
        let unindented = line.trim_start();
        match (&mut open, unindented.strip_prefix("```")) {
            (None, Some(info)) => {
                // integ/src/vm reads README's commands of the installation, whose fence has no info string.
                let info = if info.is_empty() && page == "README.md" { "sh" } else { info };
                indent = line.len() - unindented.len();
                open = Some(Block { page: page.into(), line: number + 1, info: info.into(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => block.text += &format!("{}\n", line.get(indent..).unwrap_or_default()),
            (None, None) => prose += &format!("{line} "),
        }
    }
    ensure!(open.is_none(), "{page}: a block does not end");
    let is_command = |span: &str| IN_TEXT.iter().any(|program| span.starts_with(program));
    let spans = prose.split('`').skip(1).step_by(2).filter(|span| is_command(span) && !span.contains('…'));
    let words = spans.map(|span| {
        let mut words: Vec<&str> = span.split_whitespace().collect();
        // An option may lack its value in a sentence.
        words.pop_if(|word| word.starts_with('-') && word.len() == 2);
        words.join(" ")
    });
    Ok(words.collect())
}

/// The example policies, and the simulation, each as a block.
fn examples() -> anyhow::Result<Vec<Block>> {
    let simulation = "\"$PLUGIN\" simulate -f examples/simulation.yaml --courses 1\n".to_owned();
    let mut blocks = vec![("examples/simulation.yaml".to_owned(), "sh", simulation)];
    for file in std::fs::read_dir(root().join("examples/policies"))? {
        let file = file?;
        let name = format!("examples/policies/{}", file.file_name().display());
        blocks.push((name, "yaml", std::fs::read_to_string(file.path())?));
    }
    Ok(blocks.into_iter().map(|(page, info, text)| Block { page, line: 1, info: info.into(), text }).collect())
}

/// Makes Helm releases of the installation, for the commands of helm. They own no field that an object had before.
async fn create_releases(control_plane: &ControlPlane, folder: &Path) -> anyhow::Result<()> {
    for (release, chart) in [("brupop-crds", "deploy/chart-crds"), ("brupop", "deploy/chart")] {
        let mut helm = tokio::process::Command::new(integ::tools::helm().await?);
        helm.args(["install", release, chart, "--namespace", SYSTEM_NAMESPACE]);
        helm.args(["--take-ownership", "--server-side=false"]).current_dir(root()).kill_on_drop(true);
        for kind in ["CACHE", "CONFIG", "DATA"] {
            helm.env(format!("HELM_{kind}_HOME"), folder.join(kind));
        }
        let output = helm.env("KUBECONFIG", control_plane.kubeconfig()).output().await?;
        ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// Creates what the commands name.
async fn create_objects(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let nodes = Api::<Node>::all(control_plane.client());
    let shadows: Api<BottlerocketShadow> = Api::namespaced(control_plane.client(), SYSTEM_NAMESPACE);
    for name in ["n1", "n2"] {
        let node = serde_json::from_value(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))?;
        nodes.create(&PostParams::default(), &node).await?;
        let shadow = super::shadow(&format!("brs-{name}"), &json!({"spec": {"attempt": 0}}));
        shadows.patch(&format!("brs-{name}"), &super::operator_apply(), &Patch::Apply(&shadow)).await?;
    }
    let namespace = serde_json::from_value(json!({"metadata": {"name": "monitoring"}}))?;
    Api::<Namespace>::all(control_plane.client()).create(&PostParams::default(), &namespace).await?;
    let secrets: Api<Secret> = Api::namespaced(control_plane.client(), SYSTEM_NAMESPACE);
    let secret = serde_json::from_value(json!({"metadata": {"name": "brupop-apiserver-tls"}}))?;
    secrets.create(&PostParams::default(), &secret).await?;
    let leases: Api<Lease> = Api::namespaced(control_plane.client(), SYSTEM_NAMESPACE);
    let lease = serde_json::from_value(json!({"metadata": {"name": CONTROLLER}, "spec": {"holderIdentity": "pod"}}))?;
    leases.create(&PostParams::default(), &lease).await?;
    for (namespace, name) in [("default", "web-0"), (AGENT_NAMESPACE, "agent")] {
        let pods: Api<Pod> = Api::namespaced(control_plane.client(), namespace);
        let spec = json!({"containers": [{"name": "main", "image": "web"}]});
        let pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
        // Refused until the namespace has its service account.
        super::until(name, async || Ok(pods.create(&PostParams::default(), &pod).await.is_ok())).await?;
    }
    Ok(())
}

impl Shell<'_> {
    /// Tries a block by its class.
    async fn try_block(&self, number: usize, block: &Block) -> anyhow::Result<()> {
        let class = CLASSES.iter().find(|(info, _)| *info == block.info).map(|(_, class)| *class);
        match class.with_context(|| format!("'{}' is no class of blocks: see CLASSES", block.info))? {
            Class::Commands => self.run(number, &block.text).await,
            Class::Objects => self.apply(number, block).await,
            Class::Json => serde_json::from_str::<Value>(&block.text).map(drop).context("not JSON"),
            Class::Text => {
                let command = block.text.lines().find(|line| program_of(line).is_some());
                command.map_or(Ok(()), |command| bail!("a command in a block of text: {command}"))
            }
        }
    }

    /// Applies the objects of a block by a dry run.
    async fn apply(&self, number: usize, block: &Block) -> anyhow::Result<()> {
        let text = completed(&block.text);
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).context("not YAML")?;
        if objects.iter().any(|object| object["groups"].is_array()) {
            return metrics_exist(&text);
        }
        let mut known = Vec::new();
        for object in objects {
            let group = object["apiVersion"].as_str().and_then(|version| version.split_once('/')).unwrap_or_default().0;
            if OTHER_PROJECTS.contains(&group) {
                let page = std::fs::read_to_string(root().join(&block.page))?;
                ensure!(page.to_lowercase().contains("not tried"), "the page does not say that {group} was not tried");
            }
            if group == "kustomize.config.k8s.io" {
                let build = format!(
                    "mkdir overlay\ncat >overlay/kustomization.yaml <<'END'\n{object}\nEND\nkubectl kustomize overlay\n"
                );
                self.run(number, &build).await?;
                continue;
            }
            if object["kind"] == "BottlerocketUpdateOperator" {
                let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(object["spec"].clone())?;
                if let Err(errors) = Policy::from_spec(&spec) {
                    bail!("not a policy: {errors:?}");
                }
            }
            known.push(object.to_string());
        }
        if known.is_empty() {
            return Ok(());
        }
        let apply =
            "kubectl apply --server-side --force-conflicts --field-manager=documentation --validate=strict -f -";
        self.run(number, &format!("{apply} <<'END'\n{}\nEND\n", known.join("\n---\n"))).await
    }
}

/// Checks that Prometheus rules name documented metrics.
fn metrics_exist(rules: &str) -> anyhow::Result<()> {
    let documented = ["docs/metrics.md", "docs/web-api.md"].map(|page| std::fs::read_to_string(root().join(page)));
    let [controller, web_api] = documented;
    let documented = format!("{}{}", controller?.replace("| `", "| `brupop_controller_"), web_api?);
    let names =
        rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("brupop_"));
    let unknown: Vec<&str> = names.filter(|name| !documented.contains(&format!("| `{name}`"))).collect();
    ensure!(unknown.is_empty(), "no such metrics: {unknown:?}");
    Ok(())
}

/// The objects of a block, whose beginning is added where only a part of one is shown.
fn completed(text: &str) -> String {
    let missing = match text.split(':').next() {
        Some("spec") => {
            "apiVersion: brupop.bottlerocket.aws/v1\nkind: BottlerocketUpdateOperator\n\
             metadata: {name: default, namespace: brupop-system}\n"
        }
        Some("rules") => "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: shown}\n",
        _ => "",
    };
    format!("{missing}{text}")
}
