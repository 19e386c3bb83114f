//! Records, pages and keys for tests.

use std::collections::BTreeMap;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use models::history::{
    RECORD_AUDIENCE, RecordClaims, RecordedRollout, page_digest, page_name, record_digest, record_name,
};
use models::names;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

pub(super) fn rollout(number: i64, version: &str) -> RecordedRollout {
    serde_json::from_value(json!({
        "number": number, "operator": {"namespace": "ns", "name": "default", "uid": "uid-1"},
        "revision": {"name": "default-x", "number": 3}, "variant": "aws-k8s-1.37", "arch": "x86_64", "version": version,
        "from": [{"version": "1.20.0", "nodes": 2}], "begun": "2026-01-01T10:00:00Z",
        "steps": [{"nodes": 1, "soak": "10m", "approval": "Manual"}, {"nodes": "10%"}], "policy": "{}",
    }))
    .unwrap()
}

fn metadata(name: &str, record: &str, label: &str) -> Value {
    json!({"name": name, "namespace": "ns", "labels": {names::HISTORY_LABEL: label, names::RECORD_LABEL: record}})
}

pub(super) fn row(node: &str, result: &str) -> Value {
    json!({
        "node": node, "uid": format!("uid-{node}"), "rollout": 7, "step": 1, "attempt": 1, "from": "1.20.0", "to": "1.21.0",
        "result": result, "message": "a message", "started": "2026-01-01T10:00:00Z", "drainStarted": "2026-01-01T10:01:00Z",
        "drainEnded": "2026-01-01T10:03:00Z", "soakStarted": "2026-01-01T10:05:00Z", "ended": "2026-01-01T10:06:05Z",
        "bootBefore": "0b5f1111-2222", "bootAfter": "7c331111-2222",
        "pods": [
            {"namespace": "shop", "name": format!("web-{node}"), "uid": "p1", "owner": "Deployment/web", "budgets": ["web"],
             "services": ["web", "web-internal"], "moved": "Evicted"},
            {"namespace": "shop", "name": format!("db-{node}"), "uid": "p2", "owner": "StatefulSet/db", "moved": "LeftToReboot"},
        ],
        "running": ["shop/web-2"],
    })
}

pub(super) fn page(record: &str, number: i64, rows: &[Value]) -> Value {
    json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketRolloutHistory",
        "metadata": metadata(&page_name(record, number), record, names::PAGE),
        "spec": {"record": record, "page": {"number": number, "rows": rows}},
    })
}

/// A running record of these pages.
pub(super) fn record(rollout: &RecordedRollout, pages: &[Value]) -> Value {
    let name = record_name(rollout);
    let summaries: Vec<Value> = pages
        .iter()
        .map(|page| {
            let rows = page["spec"]["page"]["rows"].as_array().unwrap();
            let pods: usize = rows.iter().map(|row| row["pods"].as_array().unwrap().len()).sum();
            json!({"digest": page_digest(&page["spec"]).unwrap(), "nodes": rows.len(), "pods": pods, "bytes": 1})
        })
        .collect();
    let sum = |field: &str| summaries.iter().map(|summary| summary[field].as_i64().unwrap()).sum::<i64>();
    json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketRolloutHistory",
        "metadata": metadata(&name, &name, names::RECORD),
        "spec": {"record": name, "rollout": rollout},
        "status": {
            "phase": "Running", "nodes": sum("nodes"), "pods": sum("pods"), "pages": summaries,
            "entries": [
                {"time": "2026-01-01T10:00:00Z", "kind": "Begun"},
                {"time": "2026-01-01T10:30:00Z", "kind": "Approved", "step": 1, "fieldManager": "kubectl-edit", "message": "step 1"},
            ],
        },
    })
}

/// A key that signs records.
pub(super) struct Signer {
    pub(super) id: String,
    key: EncodingKey,
    pub(super) jwk: Value,
}

impl Signer {
    pub(super) fn new() -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let id =
            Sha256::digest(pair.public_key_raw()).iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        let key = EncodingKey::from_ec_der(&pair.serialize_der());
        let mut jwk = Jwk::from_encoding_key(&key, Algorithm::ES256).unwrap();
        jwk.common.key_id = Some(id.clone());
        Self { id, key, jwk: serde_json::to_value(jwk).unwrap() }
    }

    pub(super) fn published(&self) -> BTreeMap<String, Value> {
        [(self.id.clone(), self.jwk.clone())].into()
    }

    pub(super) fn sign(&self, claims: &RecordClaims) -> String {
        let header = Header { kid: Some(self.id.clone()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.key).unwrap()
    }

    /// Ends a record and signs it.
    pub(super) fn end(&self, mut record: Value) -> Value {
        record["status"]["phase"] = json!("Completed");
        record["status"]["ended"] = json!("2026-01-01T12:00:00Z");
        let claims = RecordClaims {
            aud: RECORD_AUDIENCE.to_owned(),
            record: record["metadata"]["name"].as_str().unwrap().to_owned(),
            digest: record_digest(&record["spec"], &record["status"]).unwrap(),
        };
        record["status"]["signature"] = json!(self.sign(&claims));
        record
    }
}
