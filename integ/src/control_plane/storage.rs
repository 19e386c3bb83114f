//! The objects as etcd has stored them: the API server shows each in the version that is requested, and not in the one that
//! it is stored in.

use anyhow::Context as _;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::ControlPlane;

impl ControlPlane {
    /// Returns the stored custom resource of this group, plural, namespace and name.
    pub async fn stored(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.etcd_call("range", &json!({"key": key(path)})).await?;
        let bytes = answer["kvs"][0]["value"].as_str().with_context(|| format!("etcd has no {path}"))?;
        Ok(serde_json::from_slice(&BASE64_STANDARD.decode(bytes)?)?)
    }

    /// Stores a custom resource past the API server, as a restored backup does.
    pub async fn store(&self, path: &str, object: &Value) -> anyhow::Result<()> {
        let value = BASE64_STANDARD.encode(object.to_string());
        self.etcd_call("put", &json!({"key": key(path), "value": value})).await?;
        Ok(())
    }

    async fn etcd_call(&self, call: &str, body: &Value) -> anyhow::Result<Value> {
        let request = self.probes.etcd.post(format!("http://etcd/v3/kv/{call}")).body(body.to_string());
        let answer = request.send().await?.error_for_status()?.bytes().await?;
        Ok(serde_json::from_slice(&answer)?)
    }
}

fn key(path: &str) -> String {
    BASE64_STANDARD.encode(format!("/registry/{path}"))
}
