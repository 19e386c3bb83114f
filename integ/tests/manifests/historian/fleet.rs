//! A namespace with the operator's resource and shadows as the planner writes them, and the leaders that keep its history.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use controller::cache::Reading;
use controller::caches::Caches;
use controller::history::{Historian, History};
use controller::metrics::Metrics;
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{DynamicObject, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use models::history::{
    BottlerocketRolloutHistory, BottlerocketRolloutHistoryStatus, HistoryPage, HistoryRow, RECORD_AUDIENCE,
    RecordClaims, RecordedRevision, RecordedRollout, RolloutPhase, page_digest, page_name, record_digest, record_name,
};
use models::names::{self, OPERATOR_NAME};
use models::operator::{BottlerocketUpdateOperator, RolloutRecord};
use models::shadow::{BottlerocketShadow, DrainedPod, PodMove, RECORDED_RUNNING, RolloutResult, UPDATED};
use planner::signature::signed_by;
use semver::Version;
use serde_json::{Value, json};

use crate::leaders::{Lead, Leaders, Write};
use crate::until;

pub(super) const VARIANT: &str = "aws-k8s-1.37";
pub(super) const ARCH: &str = "x86_64";
const OLD: Version = Version::new(1, 20, 4);
pub(super) const NEW: Version = Version::new(1, 20, 5);

/// Identity of a result: the uid of the Node and the number of the attempt.
pub(super) type Id = (String, i64);

/// A time so many minutes ago.
pub(super) fn ago(minutes: i64) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default() - SignedDuration::from_mins(minutes)
}

/// The uid of a Node.
pub(super) fn uid(node: &str) -> String {
    format!("uid-of-{node}")
}

/// A pod with names as long as they are in large clusters.
fn pod(number: usize) -> DrainedPod {
    let id = u64::try_from(number).unwrap_or_default();
    DrainedPod {
        namespace: "checkout-production".into(),
        name: format!("payment-gateway-worker-{id:010x}-{:05x}", id % 0xf_ffff),
        uid: format!("{id:08x}-5f1c-4d2e-9a3b-{id:012x}"),
        ip: Some(format!("10.128.{}.{}", number / 250 % 250, number % 250)),
        owner: Some("Deployment/payment-gateway-worker".into()),
        budgets: vec!["payment-gateway-worker".into()],
        services: vec!["payment-gateway-worker".into(), "payment-gateway-worker-metrics".into()],
        moved: Some(PodMove::Evicted),
    }
}

/// The result of an attempt that ended so many minutes ago.
pub(super) fn result(rollout: i64, attempt: i64, minutes: i64, pods: usize) -> RolloutResult {
    let running = |pod: DrainedPod| format!("{}/{}", pod.namespace, pod.name);
    RolloutResult {
        rollout,
        step: 0,
        attempt,
        from: Some(OLD),
        to: NEW,
        drill: None,
        result: UPDATED.into(),
        message: String::new(),
        started: ago(minutes + 9),
        drain_started: Some(ago(minutes + 8)),
        drain_ended: Some(ago(minutes + 6)),
        soak_started: Some(ago(minutes + 2)),
        ended: ago(minutes),
        boot_before: "1b6f0a0e-62d8-4e0a-a7f5-7d1d7f0d8d11".into(),
        boot_after: "c3f9d0aa-7f0e-4a3b-8f7f-3f0f6a1f2b22".into(),
        pods: (0..pods).map(pod).collect(),
        running: (pods..2 * pods).take(RECORDED_RUNNING).map(pod).map(running).collect(),
    }
}

/// A namespace with its leaders.
pub(super) struct Fleet {
    pub(super) client: Client,
    pub(super) namespace: String,
    /// The uid of the operator's resource.
    pub(super) operator: String,
    pub(super) leaders: Leaders,
}

/// A leader with caches of its own. It ends when it is dropped.
pub(super) struct Leader {
    pub(super) lead: Lead,
    pub(super) caches: Caches,
    pub(super) history: History,
}

/// An ended record, verified.
pub(super) struct Verified {
    pub(super) key: String,
    pub(super) status: BottlerocketRolloutHistoryStatus,
    pub(super) rows: Vec<Id>,
}

impl Fleet {
    pub(super) async fn new(client: &Client, namespace: &str) -> anyhow::Result<Self> {
        let meta = |name: &str| ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let created = Namespace { metadata: meta(namespace), ..Namespace::default() };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &created).await?;
        let operator = BottlerocketUpdateOperator::new(OPERATOR_NAME, Default::default());
        let operators: Api<BottlerocketUpdateOperator> = Api::namespaced(client.clone(), namespace);
        let operator = operators.create(&PostParams::default(), &operator).await?;
        Ok(Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
            operator: operator.metadata.uid.context("a uid")?,
            leaders: Leaders::new(client, namespace),
        })
    }

    pub(super) fn api<K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>>(&self) -> Api<K>
    where
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Sets limits of the history.
    pub(super) async fn limits(&self, limits: Value) -> anyhow::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"rolloutHistory": limits}}));
        self.api::<BottlerocketUpdateOperator>().patch(OPERATOR_NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Has the operator's status name one rollout, as the planner does.
    pub(super) async fn rollout(&self, number: i64, phase: RolloutPhase) -> anyhow::Result<()> {
        let ended = (phase != RolloutPhase::Running).then(|| ago(0));
        let revision = RecordedRevision { name: "default-5d8f".into(), number: 3 };
        let record =
            RolloutRecord { number, begun: ago(60), first: None, revision, phase, ended, first_estimate: None };
        let active = json!({
            "version": NEW, "variant": VARIANT, "arch": ARCH, "started": ago(60), "stepsPassed": 0, "record": record,
        });
        let patch = Patch::Merge(json!({"status": {"activeRollouts": [active]}}));
        self.api::<BottlerocketUpdateOperator>().patch_status(OPERATOR_NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Creates the shadow of a node, with what its agent reports.
    pub(super) async fn node(&self, node: &str) -> anyhow::Result<()> {
        let shadow = BottlerocketShadow::of_node(&self.namespace, node, &uid(node), None);
        self.api().create(&PostParams::default(), &shadow).await?;
        let status = json!({"variant": VARIANT, "arch": ARCH, "currentVersion": NEW});
        self.shadow_status(names::AGENT_MANAGER, node, &status).await
    }

    /// Puts results on the shadow of a node.
    pub(super) async fn results(&self, node: &str, results: &[RolloutResult]) -> anyhow::Result<()> {
        self.shadow_status(names::CONTROLLER_MANAGER, node, &json!({"results": results})).await
    }

    async fn shadow_status(&self, manager: &str, node: &str, status: &Value) -> anyhow::Result<()> {
        let name = names::shadow_name(node);
        let body = json!({
            "apiVersion": "brupop.bottlerocket.aws/v3", "kind": "BottlerocketShadow", "metadata": {"name": name},
            "status": status,
        });
        let params = PatchParams::apply(manager).force();
        self.api::<BottlerocketShadow>().patch_status(&name, &params, &Patch::Apply(body)).await?;
        Ok(())
    }

    /// Returns the number of the results on shadows that no page holds.
    pub(super) async fn waiting(&self) -> anyhow::Result<usize> {
        let shadows = self.api::<BottlerocketShadow>().list(&ListParams::default()).await?.items;
        let pages = self.api::<BottlerocketRolloutHistory>().list(&ListParams::default()).await?.items;
        let rows = pages.iter().filter_map(|object| object.spec.page.as_ref()).flat_map(|page| &page.rows);
        let held: BTreeSet<_> = rows.map(planner::history::row_id).collect();
        let results = shadows.iter().filter_map(|shadow| {
            let owner = shadow.metadata.owner_references.as_ref()?.first()?.uid.clone();
            Some(shadow.status.as_ref()?.controller.results.iter().map(move |result| (owner.clone(), result.attempt)))
        });
        Ok(results.flatten().filter(|id| !held.contains(id)).count())
    }

    /// Starts the next leader, which is ended after so many writes.
    pub(super) async fn lead(&mut self, writes: usize) -> anyhow::Result<Leader> {
        let mut lead = self.leaders.lead(writes).await?;
        let (caches, history) = (Caches::new(&Metrics::new()?.watch_errors), History::default());
        let everything = watcher::Config::default;
        lead.tasks.spawn(caches.shadows.run(self.api(), everything()));
        lead.tasks.spawn(caches.operator.run(self.api(), everything()));
        lead.tasks.spawn(caches.history.run_metadata(self.api(), everything()));
        let applier = lead.applier(&self.namespace, caches.clone())?;
        let reading = Reading::default().of(&caches.shadows).of(&caches.operator);
        lead.tasks.spawn(Historian::new(applier, history.clone(), reading).run());
        Ok(Leader { lead, caches, history })
    }

    /// Has leaders go on, each ended after so many writes, until it is so. Returns their number.
    pub(super) async fn led_until(
        &mut self,
        writes: usize,
        mut condition: impl AsyncFnMut(&Self) -> anyhow::Result<bool>,
    ) -> anyhow::Result<usize> {
        for number in 1..100 {
            let mut leader = self.lead(writes).await?;
            let deadline = tokio::time::Instant::now() + Duration::from_secs(300);
            while !*leader.lead.killed.borrow_and_update() {
                if condition(self).await? {
                    return Ok(number);
                }
                ensure!(tokio::time::Instant::now() < deadline, "no end: {:?}", self.written());
                let _killed = tokio::time::timeout(Duration::from_millis(50), leader.lead.killed.changed()).await;
            }
        }
        anyhow::bail!("no leader comes to an end: {:?}", self.written())
    }

    /// Returns the writes of all leaders.
    pub(super) fn written(&self) -> Vec<Write> {
        self.leaders.written()
    }

    /// Waits until the record of this number has ended.
    pub(super) async fn until_ended(&self, number: i64) -> anyhow::Result<()> {
        until(&format!("the end of rollout {number}"), async || self.has_ended(number).await).await
    }

    pub(super) async fn has_ended(&self, number: i64) -> anyhow::Result<bool> {
        let found = self.record(number).await?.and_then(|record| record.status);
        Ok(found.is_some_and(|status| status.phase != RolloutPhase::Running))
    }

    /// Returns the record of the operator's rollout of this number.
    pub(super) async fn record(&self, number: i64) -> anyhow::Result<Option<BottlerocketRolloutHistory>> {
        let only = ListParams::default().labels(&format!("{}={}", names::HISTORY_LABEL, names::RECORD));
        let records = self.api::<BottlerocketRolloutHistory>().list(&only).await?.items;
        let own = |rollout: &RecordedRollout| rollout.number == number && rollout.operator.uid == self.operator;
        Ok(records.into_iter().find(|record| record.spec.rollout.as_ref().is_some_and(own)))
    }

    /// Returns the names of all objects of the history.
    pub(super) async fn objects(&self) -> anyhow::Result<BTreeSet<String>> {
        let all = self.api::<BottlerocketRolloutHistory>().list_metadata(&ListParams::default()).await?.items;
        Ok(all.iter().map(ResourceExt::name_any).collect())
    }

    /// Returns the number, the largest and the whole size of the objects of the history, as they are stored. No page is larger
    /// than its annotation says.
    pub(super) async fn sizes(&self) -> anyhow::Result<(usize, usize, usize)> {
        let (mut count, mut largest, mut whole) = (0, 0, 0);
        for name in self.objects().await? {
            let object = self.api::<BottlerocketRolloutHistory>().get(&name).await?;
            let size = serde_json::to_vec(&object)?.len();
            let noted =
                object.annotations().get(names::BYTES_ANNOTATION).map_or(Ok(usize::MAX), |noted| noted.parse())?;
            ensure!(size <= noted, "{name} has {size} bytes, not {noted}");
            (count, largest, whole) = (count + 1, largest.max(size), whole + size);
        }
        Ok((count, largest, whole))
    }

    /// Returns the public keys by their ids.
    pub(super) async fn keys(&self) -> anyhow::Result<std::collections::BTreeMap<String, String>> {
        let map = self.api::<ConfigMap>().get_opt(names::HISTORY_KEYS).await?;
        Ok(map.and_then(|map| map.data).unwrap_or_default())
    }

    /// Returns the Secret with the key.
    pub(super) async fn secret(&self) -> anyhow::Result<Secret> {
        Ok(self.api::<Secret>().get(names::HISTORY_KEY_SECRET).await?)
    }

    /// Checks the record of this number, which is completed.
    pub(super) async fn completed(&self, number: i64) -> anyhow::Result<Verified> {
        let record = self.record(number).await?.context("no record")?;
        self.verify(&record.name_any(), RolloutPhase::Completed).await
    }

    /// Checks an ended record and its pages as a reader does that has the public keys.
    pub(super) async fn verify(&self, name: &str, phase: RolloutPhase) -> anyhow::Result<Verified> {
        let resource = ApiResource::erase::<BottlerocketRolloutHistory>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let record = api.get(name).await?.data;
        let status: BottlerocketRolloutHistoryStatus = serde_json::from_value(record["status"].clone())?;
        ensure!(status.phase == phase && status.ended.is_some(), "{status:?}");

        let signature = status.signature.as_deref().context("not signed")?;
        let key = signed_by(signature).context("it names no key")?;
        let published = self.keys().await?;
        let jwk: Jwk = serde_json::from_str(published.get(&key).context("its key is not published")?)?;
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[RECORD_AUDIENCE]);
        validation.required_spec_claims = ["aud".to_owned()].into();
        validation.validate_exp = false;
        let claims =
            jsonwebtoken::decode::<RecordClaims>(signature, &DecodingKey::from_jwk(&jwk)?, &validation)?.claims;
        let digest = record_digest(&record["spec"], &record["status"])?;
        ensure!((claims.record, claims.digest) == (name.to_owned(), digest), "the signature is another record's");

        let of_record = ListParams::default().labels(&format!(
            "{}={name},{}={}",
            names::RECORD_LABEL,
            names::HISTORY_LABEL,
            names::PAGE
        ));
        let found = api.list_metadata(&of_record).await?.items.len();
        ensure!(found == status.pages.len(), "{found} pages for {}", status.pages.len());
        let (mut rows, mut pods) = (Vec::new(), 0);
        for (number, summary) in (1..).zip(&status.pages) {
            let spec = api.get(&page_name(name, number)).await?.data["spec"].take();
            ensure!(page_digest(&spec)? == summary.digest, "the digest of page {number}");
            let page: HistoryPage = serde_json::from_value(spec["page"].clone())?;
            let counted = page.rows.iter().map(|row| row.result.pods.len()).sum::<usize>();
            ensure!((summary.nodes, summary.pods) == (i64::try_from(page.rows.len())?, i64::try_from(counted)?));
            rows.extend(page.rows.iter().map(planner::history::row_id));
            pods += counted;
        }
        ensure!((status.nodes, status.pods) == (i64::try_from(rows.len())?, i64::try_from(pods)?), "{status:?}");
        rows.sort();
        Ok(Verified { key, status, rows })
    }

    /// Creates a record, and pages of it with one row of so many pods each, as a leader of earlier has left them.
    pub(super) async fn recorded(
        &self,
        number: i64,
        operator: &str,
        status: BottlerocketRolloutHistoryStatus,
        pages: i64,
        pods: usize,
    ) -> anyhow::Result<String> {
        let rollout: RecordedRollout = serde_json::from_value(json!({
            "number": number, "operator": {"namespace": self.namespace, "name": OPERATOR_NAME, "uid": operator},
            "revision": {"name": "", "number": 0}, "variant": VARIANT, "arch": ARCH, "version": NEW, "begun": ago(60),
            "policy": "",
        }))?;
        let name = record_name(&rollout);
        let label = |kind: &str| json!({names::HISTORY_LABEL: kind, names::RECORD_LABEL: name});
        let object = |meta: Value, spec: Value| {
            let (api_version, kind) = ("brupop.bottlerocket.aws/v1", "BottlerocketRolloutHistory");
            serde_json::from_value::<BottlerocketRolloutHistory>(
                json!({"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}),
            )
        };
        let api = self.api::<BottlerocketRolloutHistory>();
        let meta = json!({"name": name, "labels": label(names::RECORD)});
        let record = object(meta, json!({"record": name, "rollout": rollout}))?;
        let record = api.create(&PostParams::default(), &record).await?;
        let mut status = status;
        for number in 1..=pages {
            let node = format!("{name}-{number}");
            let row = HistoryRow { uid: uid(&node), node, result: result(number, 1, 60, pods) };
            let page = HistoryPage { number, rows: vec![row] };
            let size = serde_json::to_vec(&page)?.len();
            let meta = json!({
                "name": page_name(&name, number), "labels": label(names::PAGE),
                "annotations": {names::BYTES_ANNOTATION: size.to_string()},
                "ownerReferences": [{"apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketRolloutHistory",
                    "name": name, "uid": record.uid()}],
            });
            let page_object = object(meta, json!({"record": name, "page": page}))?;
            let written = api.create(&PostParams::default(), &page_object).await?;
            let summary = planner::history::summary(&page, page_digest(&written.spec)?, size);
            status.nodes += summary.nodes;
            status.pods += summary.pods;
            status.pages.push(summary);
        }
        let patch = Patch::Merge(json!({"status": status}));
        api.patch_status(&name, &PatchParams::default(), &patch).await?;
        Ok(name)
    }
}
