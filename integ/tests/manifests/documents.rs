//! Every command and every YAML of the documentation. Blocks of commands run in a shell whose programs are stand-ins
//! (`documents/stand-in.sh`): kubectl is the real one with dry runs on a real API server, and the plugin and the generator of
//! the manifests are those of this build. YAML is applied by a dry run, and policies are also read as the controller reads
//! them. A block that belongs to no class fails.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::{StreamExt as _, stream};
use integ::bed::Programs;
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

const STAND_IN: &str = include_str!("documents/stand-in.sh");

/// Longest run of a block.
const LIMIT: Duration = Duration::from_secs(300);

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

/// Words for what readers fill in, and what the test fills in.
const PLACEHOLDERS: [(&str, &str); 13] = [
    ("NODE", "n1"),
    ("OTHER", "n2"),
    ("NAMESPACE", "default"),
    ("MONITORING", "monitoring"),
    ("OVERLAY", "deploy/manifests"),
    ("POD-OF-THE-AGENT", "agent"),
    ("POD", "web-0"),
    ("RELEASE", "release"),
    ("REGISTRY", "registry.example"),
    ("TAG", "v1"),
    ("FILE", "file"),
    ("ROLLOUT", "1"),
    ("VERSION", "1.20.5"),
];

/// Programs that are real, and change nothing outside of the folder of their block.
const TOOLS: [&str; 11] = ["bash", "cat", "chmod", "cp", "date", "mkdir", "mktemp", "sed", "sort", "tr", "true"];

/// Programs with a stand-in that tries the command.
const TRIED: [&str; 5] = ["kubectl", "kubectl-brupop", "make", "cargo", "grep"];

/// Programs that are not run here: they need a registry, root or a host, or have tests of their own.
const NOT_TRIED: [&str; 8] = ["aws", "crane", "skopeo", "tar", "apt-get", "rustup", "apiclient", "helm"];

/// Environment variable with a folder of definitions of other projects, whose objects are then tried as well.
const DEFINITIONS: &str = "BRUPOP_DEFINITIONS";

/// API groups of other projects, whose definitions are not installed here. A page that shows one says that it was not tried.
const OTHER_PROJECTS: [&str; 6] = [
    "cert-manager.io",
    "argoproj.io",
    "kustomize.toolkit.fluxcd.io",
    "helm.toolkit.fluxcd.io",
    "karpenter.sh",
    "monitoring.coreos.com",
];

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
    let mut spans = BTreeSet::new();
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(root().canonicalize()?)?.display().to_string();
        spans.extend(read(&name, &text, &mut blocks)?);
    }
    blocks.extend(examples()?);
    ensure!(blocks.len() > 50 && spans.len() > 50, "{} blocks and {} commands in text", blocks.len(), spans.len());

    let control_plane = ControlPlane::start(Options::default()).await?;
    super::install(&control_plane).await?;
    create_objects(&control_plane).await?;
    super::kubectl(&control_plane, &["create", "namespace", "brupop-hooks"]).await?;
    if let Ok(definitions) = std::env::var(DEFINITIONS) {
        super::kubectl(&control_plane, &["apply", "--server-side", "-f", &definitions]).await?;
        super::kubectl(&control_plane, &["wait", "--for=condition=Established", "-f", &definitions]).await?;
        super::kubectl(&control_plane, &["create", "namespace", "argocd"]).await?;
        super::kubectl(&control_plane, &["create", "namespace", "flux-system"]).await?;
    }
    let folder = tempfile::tempdir()?;
    let shell = Shell::new(&control_plane, folder.path())?;
    let tries = blocks.iter().map(|block| (format!("{}:{}", block.page, block.line), Some(block), ""));
    let tries = tries.chain(spans.iter().map(|(page, span)| (page.clone(), None, span.as_str())));
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
    control_plane.stop().await
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

/// Adds the blocks of a page, and returns its commands in text, each with its page.
fn read(page: &str, text: &str, blocks: &mut Vec<Block>) -> anyhow::Result<Vec<(String, String)>> {
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
    let spans = prose.split('`').skip(1).step_by(2).filter(|span| span.starts_with("kubectl ") && !span.contains('…'));
    let words = spans.map(|span| {
        let mut words: Vec<&str> = span.split_whitespace().collect();
        // An option may lack its value in a sentence.
        words.pop_if(|word| word.starts_with('-') && word.len() == 2);
        (page.to_owned(), words.join(" "))
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

/// A shell in which commands of the documentation are tried.
struct Shell<'a> {
    control_plane: &'a ControlPlane,
    folder: &'a Path,
    plugin: PathBuf,
}

impl<'a> Shell<'a> {
    fn new(control_plane: &'a ControlPlane, folder: &'a Path) -> anyhow::Result<Self> {
        let programs = folder.join("programs");
        std::fs::create_dir(&programs)?;
        let stand_in = folder.join("stand-in");
        std::fs::write(&stand_in, STAND_IN)?;
        std::fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for name in TRIED.iter().chain(&NOT_TRIED) {
            symlink(&stand_in, programs.join(name))?;
        }
        for name in TOOLS {
            symlink(tool(name)?, programs.join(name))?;
        }
        Ok(Self { control_plane, folder, plugin: Programs::find()?.plugin })
    }

    /// Tries a block by its class.
    async fn try_block(&self, number: usize, block: &Block) -> anyhow::Result<()> {
        let class = CLASSES.iter().find(|(info, _)| *info == block.info).map(|(_, class)| *class);
        match class.with_context(|| format!("'{}' is no class of blocks: see CLASSES", block.info))? {
            Class::Commands => self.run(number, &block.text).await,
            Class::Objects => self.apply(number, block).await,
            Class::Json => serde_json::from_str::<Value>(&block.text).map(drop).context("not JSON"),
            Class::Text => {
                let is_command =
                    |line: &&str| ["kubectl ", "make ", "cargo "].iter().any(|word| line.starts_with(word));
                let command = block.text.lines().find(is_command);
                command.map_or(Ok(()), |command| bail!("a command in a block of text: {command}"))
            }
        }
    }

    /// Runs commands in a folder of their own.
    async fn run(&self, number: usize, commands: &str) -> anyhow::Result<()> {
        let folder = self.folder.join(number.to_string());
        std::fs::create_dir_all(folder.join(".local/bin"))?;
        for name in ["deploy", "examples"] {
            symlink(root().canonicalize()?.join(name), folder.join(name))?;
        }
        // Scripts of other shells are not read as those of bash.
        let source = "source() { cat \"${1:-/dev/stdin}\" >/dev/null; }";
        let commands = filled_in(commands);
        let mut command = tokio::process::Command::new(tool("bash")?);
        command
            .args(["-euo", "pipefail", "-c", &format!("{source}\n{commands}")])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .env_clear();
        command.env("PATH", self.folder.join("programs")).env("HOME", &folder).env("ROOT", root().canonicalize()?);
        command.env("KUBECTL", self.control_plane.kubectl_command().as_std().get_program());
        command.env("OTHER_PROJECTS", OTHER_PROJECTS.join("|"));
        command.env("KUBECONFIG", self.control_plane.kubeconfig()).env("KUBERC", "off");
        command.env("KUBECACHEDIR", self.folder.join("cache")).env("REAL_GREP", tool("grep")?);
        command.env("PLUGIN", &self.plugin).env("DEPLOY", self.plugin.with_file_name("brupop-deploy"));
        let run = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let output = run.with_context(|| format!("not over in {LIMIT:?}: {commands}"))??;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{commands}\n{}\n{errors}", output.status);
        Ok(())
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
                if std::env::var_os(DEFINITIONS).is_none() {
                    continue;
                }
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

/// Commands with what a reader fills in.
fn filled_in(commands: &str) -> String {
    let is_word = |c: char| c.is_ascii_uppercase() || c == '-' || c == '_';
    let mut filled = String::new();
    let mut rest = commands;
    while let Some(start) = rest.find(|c: char| c.is_ascii_uppercase()) {
        let (before, word) = rest.split_at(start);
        let (word, after) = word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()));
        let (bare, dash) = word.strip_suffix('-').map_or((word, ""), |bare| (bare, "-"));
        // `brs-NODE` is filled in, `--from-FILE` is; `updater-NODES` and `xNODE` are other words.
        let is_whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric())
            && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '=');
        let value = PLACEHOLDERS.iter().find(|(name, _)| *name == bare && is_whole).map_or(bare, |(_, value)| value);
        filled += &format!("{before}{value}{dash}");
        rest = after;
    }
    filled + rest
}

/// Path of a program of the machine.
fn tool(name: &str) -> anyhow::Result<PathBuf> {
    let folders = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(name));
    folders.into_iter().find(|path| path.exists()).with_context(|| format!("the program {name} is missing"))
}
