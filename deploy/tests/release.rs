//! `deploy/release/files.sh`, with images and plugins that are only names and bytes.

#![expect(clippy::unwrap_used, reason = "only tests are here")]

use std::process::{Command, Output};

use serde_json::Value;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const VERSION: &str = env!("CARGO_PKG_VERSION");
const REGISTRY: &str = "registry.example/brupop";
const IMAGES: [&str; 4] = ["brupop-agent", "brupop-apiserver", "brupop-controller", "brupop-aws"];

/// A checkout whose changelog has a section of this version, and the folder of its release.
struct Release {
    folder: tempfile::TempDir,
}

impl Release {
    fn new(changelog: &str) -> Self {
        let release = Self { folder: tempfile::tempdir().unwrap() };
        let mut copy = Command::new("cp");
        copy.current_dir(ROOT).args([
            "-R",
            "--parents",
            "Cargo.toml",
            "deploy/release",
            "deploy/chart",
            "deploy/chart-crds",
            "deploy/manifests",
            "deploy/monitoring",
        ]);
        assert!(copy.arg(release.folder.path()).status().unwrap().success());
        release.write("CHANGELOG.md", changelog);
        for system in ["linux-amd64", "darwin-arm64"] {
            release.write(&format!("files/kubectl-brupop-{system}.tar.gz"), system);
        }
        release.write("files/kubectl-brupop-licenses.txt", "MIT");
        release.digests(&IMAGES);
        release
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.folder.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("files").join(path)).unwrap()
    }

    fn digests(&self, images: &[&str]) {
        let lines: Vec<String> = images.iter().map(|name| format!("{name} sha256:{}\n", "a1".repeat(32))).collect();
        self.write("digests", &lines.concat());
    }

    fn files(&self, version: &str) -> Output {
        let mut command = Command::new("bash");
        command.current_dir(self.folder.path()).env("BRUPOP_DEPLOY", env!("CARGO_BIN_EXE_brupop-deploy"));
        command.args(["deploy/release/files.sh", version, REGISTRY, "digests"]);
        command.args(["https://code.example/brupop/releases/download/v1/", "files"]);
        command.output().unwrap()
    }

    /// Returns the one line of a refusal.
    fn refusal(&self, version: &str) -> String {
        let output = self.files(version);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        error
    }
}

fn changelog() -> String {
    format!("# Changelog\n\n## Unreleased\n\n* later\n\n## {VERSION} (2026-12-01)\n\n* first\n\n## 0.0.9\n\n* before\n")
}

#[test]
fn manifests_of_a_release_name_every_image_by_its_digest_and_the_plugin_is_found_by_krew() {
    let release = Release::new(&changelog());
    let output = release.files(VERSION);
    assert!(output.status.success(), "{output:?}");
    let manifest = release.read("brupop.yaml") + &release.read("aws.yaml");
    let images: Vec<&str> = manifest.lines().filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    assert_eq!(images.len(), IMAGES.len());
    for name in IMAGES {
        let image = format!("{REGISTRY}/{name}:v{VERSION}@sha256:{}", "a1".repeat(32));
        assert!(images.contains(&image.as_str()), "{images:?} without {image}");
    }
    assert!(release.read("crds.yaml").contains("kind: CustomResourceDefinition"));
    assert_eq!(release.read("notes.md").trim(), "* first");
    let krew: Value = serde_saphyr::from_str(&release.read("krew.yaml")).unwrap();
    assert_eq!(krew["spec"]["homepage"], "https://code.example/brupop");
    let sums = release.read("SHA256SUMS");
    let platforms = krew["spec"]["platforms"].as_array().unwrap();
    let systems: Vec<String> = platforms
        .iter()
        .map(|platform| {
            let uri = platform["uri"].as_str().unwrap();
            let file = uri.strip_prefix("https://code.example/brupop/releases/download/v1/").unwrap();
            assert!(sums.contains(&format!("{}  {file}\n", platform["sha256"].as_str().unwrap())), "{sums}{platform}");
            let labels = &platform["selector"]["matchLabels"];
            format!("{}/{}", labels["os"].as_str().unwrap(), labels["arch"].as_str().unwrap())
        })
        .collect();
    assert_eq!(systems, ["darwin/arm64", "linux/amd64"]);
    let mut check = Command::new("sha256sum");
    check.args(["--check", "--quiet", "SHA256SUMS"]).current_dir(release.folder.path().join("files"));
    assert!(check.status().unwrap().success());
    assert_eq!(sums.lines().count(), 14);

    // The packages of the charts name the same images.
    let unpacked = |path: &str| {
        let mut tar = Command::new("tar");
        tar.args(["-xzOf", &format!("files/{}", path.split_once(' ').unwrap().0), path.split_once(' ').unwrap().1]);
        let output = tar.current_dir(release.folder.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        serde_saphyr::from_str::<Value>(&String::from_utf8(output.stdout).unwrap()).unwrap()
    };
    let values = unpacked(&format!("brupop-{VERSION}.tgz brupop/values.yaml"));
    assert_eq!(values["image"]["registry"], REGISTRY);
    assert_eq!(values["image"]["digestsOf"], format!("v{VERSION}"));
    let pages = format!("https://code.example/brupop/blob/v{VERSION}/docs/runbook");
    assert_eq!(values["monitoring"]["prometheusRule"]["runbook"], pages);
    let alerts = release.read("prometheusrule.yaml");
    assert!(
        alerts
            .lines()
            .filter(|line| line.contains("runbook_url: "))
            .all(|line| line.contains(&format!("{pages}/Brupop"))),
        "{alerts}"
    );
    assert!(alerts.contains(&pages));
    for part in ["agent", "apiserver", "controller", "aws"] {
        assert_eq!(values["image"]["digests"][part], format!("sha256:{}", "a1".repeat(32)), "{part}");
    }
    assert_eq!(unpacked(&format!("brupop-crds-{VERSION}.tgz brupop-crds/Chart.yaml"))["version"], VERSION);
}

#[test]
fn release_without_its_version_changelog_or_a_digest_is_refused() {
    let release = Release::new(&changelog());
    // The version is checked without any file, too.
    for (version, code) in [(VERSION, 0), ("9.9.9", 1)] {
        let mut check = Command::new("bash");
        check.current_dir(release.folder.path()).args(["deploy/release/files.sh", version]);
        assert_eq!(check.output().unwrap().status.code(), Some(code), "{version}");
    }
    assert!(!release.folder.path().join("files/notes.md").exists());
    assert!(release.refusal("9.9.9").contains(&format!("Cargo.toml has version {VERSION}")));
    release.digests(&[IMAGES[0], IMAGES[1], IMAGES[3]]);
    assert!(release.refusal(VERSION).contains("lacks the digest of: registry.example/brupop/brupop-controller"));
    release.write("digests", "brupop-agent sha256:abc\n");
    assert!(release.refusal(VERSION).contains("the digest of brupop-agent is not sha256:"));
    let empty = format!("## Unreleased\n\n* later\n\n## {VERSION}\n\n## 0.0.9\n\n* before\n");
    assert!(Release::new(&empty).refusal(VERSION).contains(&format!("no section \"## {VERSION}\"")));
    let release = Release::new(&changelog());
    for system in ["linux-amd64", "darwin-arm64"] {
        std::fs::remove_file(release.folder.path().join(format!("files/kubectl-brupop-{system}.tar.gz"))).unwrap();
    }
    assert!(release.refusal(VERSION).contains("kubectl-brupop-OS-ARCH.tar.gz"));
    let release = Release::new(&changelog());
    std::fs::remove_file(release.folder.path().join("files/kubectl-brupop-licenses.txt")).unwrap();
    assert!(release.refusal(VERSION).contains("kubectl-brupop-licenses.txt"));
}
