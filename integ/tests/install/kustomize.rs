//! The kustomization beside the manifests: as it is it has their objects, and the overlay of `docs/install.md` is accepted by
//! a real API server and replaces the images.

use std::path::Path;

use anyhow::{Context as _, ensure};
use integ::control_plane::{ControlPlane, Options};
use integ::pages;
use models::names::SYSTEM_NAMESPACE;

use crate::helm::{ROOT, kubectl, manifest, objects};

#[tokio::test(flavor = "multi_thread")]
async fn overlay_replaces_images() -> anyhow::Result<()> {
    let control_plane = ControlPlane::start(Options::default()).await?;
    let mut all = manifest("crds.yaml")?;
    all.extend(manifest("brupop.yaml")?);
    assert_eq!(objects(&kubectl(&control_plane, &["kustomize", "deploy/manifests"]).await?)?, all);

    // The overlay is beside a copy of the base, as its path has it.
    let folder = tempfile::tempdir()?;
    let (base, overlay) = (folder.path().join("deploy/manifests"), folder.path().join("overlay"));
    std::fs::create_dir_all(&base)?;
    std::fs::create_dir(&overlay)?;
    for name in ["kustomization.yaml", "crds.yaml", "brupop.yaml"] {
        std::fs::copy(Path::new(ROOT).join("deploy/manifests").join(name), base.join(name))?;
    }
    std::fs::write(overlay.join("kustomization.yaml"), pages::yaml("docs/install.md", "With kustomize")?)?;
    for line in pages::commands("docs/install.md", "With kustomize")? {
        let line = line.replace("OVERLAY", overlay.to_str().context("a path of text")?);
        for command in line.split(" && ") {
            let arguments: Vec<&str> = command.split(' ').collect();
            ensure!(arguments[0] == "kubectl", "{command}");
            kubectl(&control_plane, &arguments[1..]).await?;
        }
    }

    let images = "custom-columns=:.metadata.name,:.spec.template.spec.containers[*].image,:.spec.replicas";
    let found = kubectl(&control_plane, &["get", "deployments,daemonsets", "-A", "--no-headers", "-o", images]).await?;
    let mut found: Vec<Vec<&str>> = found.lines().map(|line| line.split_whitespace().collect()).collect();
    found.sort();
    let digest = format!("registry.example/brupop/brupop-controller@sha256:{}", "0".repeat(64));
    assert_eq!(
        found,
        [
            vec!["brupop-agent", "registry.example/brupop/brupop-agent:v0.1.0", "<none>"],
            vec!["brupop-apiserver", "registry.example/brupop/brupop-apiserver:v0.1.0", "2"],
            vec!["brupop-controller", &digest, "2"],
        ]
    );
    let enabled = ["get", "bruo", "default", "-n", SYSTEM_NAMESPACE, "-o", "jsonpath={.spec.enabled}"];
    assert_eq!(kubectl(&control_plane, &enabled).await?, "false");
    control_plane.stop().await
}
