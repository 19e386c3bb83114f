//! An image as an OCI layout in an archive (the OCI image specification, version 1.1).

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::digest::sha256;
use crate::layer::{Layer, archive};

/// User and group of the programs, as in the manifests: nothing in the images belongs to them.
pub const USER: &str = "65532:65532";

/// Properties that an image shows.
pub(crate) struct Image<'a> {
    pub(crate) name: &'a str,
    pub(crate) title: &'a str,
    pub(crate) version: &'a str,
    /// SPDX expression with the licenses of everything in the image.
    pub(crate) licenses: &'a str,
    pub(crate) revision: Option<&'a str>,
    pub(crate) created: &'a str,
    pub(crate) architecture: &'a str,
    /// Full name with registry and tag.
    pub(crate) reference: &'a str,
    pub(crate) tag: &'a str,
}

/// Content, and what refers to it.
struct Blob {
    media_type: &'static str,
    content: Vec<u8>,
}

impl Blob {
    fn json(media_type: &'static str, value: &Value) -> Self {
        Self { media_type, content: value.to_string().into_bytes() }
    }

    fn descriptor(&self) -> Value {
        let digest = format!("sha256:{}", sha256(&self.content));
        json!({"mediaType": self.media_type, "digest": digest, "size": self.content.len()})
    }
}

/// The blobs of an image, the manifest last, and its index.
pub(crate) struct Layout {
    blobs: [Blob; 3],
    index: Value,
}

impl Image<'_> {
    pub(crate) fn layout(&self, layer: &Layer) -> anyhow::Result<Layout> {
        let labels = self.labels();
        let config = Blob::json(
            "application/vnd.oci.image.config.v1+json",
            &json!({
                "created": self.created,
                "architecture": self.architecture,
                "os": "linux",
                "config": {"User": USER, "Entrypoint": [format!("/{}", self.name)], "WorkingDir": "/", "Labels": labels},
                "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.diff_id)]},
                "history": [{"created": self.created, "created_by": "make images"}],
            }),
        );
        let layer =
            Blob { media_type: "application/vnd.oci.image.layer.v1.tar+gzip", content: layer.compressed.clone() };
        let manifest = Blob::json(
            "application/vnd.oci.image.manifest.v1+json",
            &json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config.descriptor(),
                "layers": [layer.descriptor()],
                "annotations": labels,
            }),
        );
        let mut entry = manifest.descriptor();
        entry["platform"] = json!({"architecture": self.architecture, "os": "linux"});
        // The first is what containerd names the image by, the second what other tools do.
        entry["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.tag,
        });
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry],
        });
        Ok(Layout { blobs: [layer, config, manifest], index })
    }

    fn labels(&self) -> Value {
        let key = |name: &str| format!("org.opencontainers.image.{name}");
        let mut labels = json!({
            key("title"): self.name,
            key("description"): self.title,
            key("version"): self.version,
            key("licenses"): self.licenses,
            key("created"): self.created,
        });
        if let Some(revision) = self.revision {
            labels[key("revision")] = revision.into();
        }
        labels
    }
}

impl Layout {
    /// Returns the digest of the manifest.
    pub(crate) fn digest(&self) -> String {
        let [.., manifest] = &self.blobs;
        format!("sha256:{}", sha256(&manifest.content))
    }

    /// Returns the bytes of all blobs.
    pub(crate) fn size(&self) -> usize {
        self.blobs.iter().map(|blob| blob.content.len()).sum()
    }

    /// Writes the archive, in place of an older one.
    pub(crate) fn write(&self, path: &Path, epoch: u64) -> anyhow::Result<()> {
        let (version, index) = (json!({"imageLayoutVersion": "1.0.0"}).to_string(), self.index.to_string());
        let names = self.blobs.each_ref().map(|blob| format!("blobs/sha256/{}", sha256(&blob.content)));
        let mut files = vec![("oci-layout", 0o644, version.as_bytes()), ("index.json", 0o644, index.as_bytes())];
        files.extend(self.blobs.iter().zip(&names).map(|(blob, name)| (name.as_str(), 0o644, &blob.content[..])));
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).with_context(|| format!("{} cannot be created", folder.display()))?;
        std::fs::write(path, archive(epoch, &files)?).with_context(|| format!("{} cannot be written", path.display()))
    }
}
