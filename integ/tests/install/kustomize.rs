//! The kustomization beside the manifests: as it is it has their objects, and the overlay of `docs/install.md` replaces the images.
//! The commands of that section are tried with all others of the documentation.

use std::path::Path;

use anyhow::{Context as _, ensure};
use integ::control_plane::ControlPlane;
use integ::pages;

use crate::helm::{ROOT, kubectl, manifest, objects};

pub(crate) async fn overlay_replaces_images(control_plane: &ControlPlane) -> anyhow::Result<()> {
    let mut all = manifest("crds.yaml")?;
    all.extend(manifest("brupop.yaml")?);
    ensure!(objects(&kubectl(control_plane, &["kustomize", "deploy/manifests"]).await?)? == all, "other objects");

    // The overlay is beside the base, as its path has it.
    let folder = tempfile::tempdir()?;
    let overlay = folder.path().join("overlay");
    std::fs::create_dir(&overlay)?;
    std::os::unix::fs::symlink(Path::new(ROOT).canonicalize()?.join("deploy"), folder.path().join("deploy"))?;
    std::fs::write(overlay.join("kustomization.yaml"), pages::yaml("docs/install.md", "With kustomize")?)?;
    let overlay = overlay.to_str().context("a path of text")?;
    let built = objects(&kubectl(control_plane, &["kustomize", overlay]).await?)?;
    ensure!(built.keys().eq(all.keys()), "{:?}", built.keys());
    let digest = format!("registry.example/brupop/brupop-controller@sha256:{}", "0".repeat(64));
    for (workload, image, replicas) in [
        ("DaemonSet brupop-agents/brupop-agent", "registry.example/brupop/brupop-agent:v0.1.0", None),
        ("Deployment brupop-system/brupop-apiserver", "registry.example/brupop/brupop-apiserver:v0.1.0", Some(2)),
        ("Deployment brupop-system/brupop-controller", digest.as_str(), Some(2)),
    ] {
        let spec = &built[workload]["spec"];
        let found = (&spec["template"]["spec"]["containers"][0]["image"], spec["replicas"].as_i64());
        ensure!(found.0 == image && found.1 == replicas, "{workload}: {found:?}");
    }
    Ok(())
}
