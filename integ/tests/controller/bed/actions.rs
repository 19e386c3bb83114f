//! More that cases do to a cluster, and more questions about it.

use anyhow::Context as _;
use integ::bed::merge;
use integ::bed::workload;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use models::condition::{Condition, ConditionStatus};
use models::names::{OPERATOR_NAME, SYSTEM_NAMESPACE};
use models::operator::BottlerocketUpdateOperator;
use serde_json::{Value, json};

use super::{ControllerProcess, LIMIT, ScriptedCluster};

/// Name of the pod of the web API.
const WEB_API_POD: &str = "brupop-apiserver-1";

/// Asks again and again until there is a result.
pub(crate) async fn poll<T>(
    what: &str,
    mut question: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let found = async {
        loop {
            if let Some(found) = question().await? {
                return anyhow::Ok(found);
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, found).await.with_context(|| format!("not within {LIMIT:?}: {what}"))?
}

impl ScriptedCluster {
    /// The operator's resources.
    pub(crate) fn operators(&self) -> Api<BottlerocketUpdateOperator> {
        Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE)
    }

    /// Deletes the policy.
    pub(crate) async fn delete_policy(&self, params: &DeleteParams) -> anyhow::Result<()> {
        self.operators().delete(OPERATOR_NAME, params).await?;
        Ok(())
    }

    /// Changes the operator's resource by a merge patch, under the name of a field manager.
    pub(crate) async fn patch_operator(&self, manager: &str, patch: Value) -> anyhow::Result<()> {
        let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        self.operators().patch(OPERATOR_NAME, &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Waits until the operator's resource has a condition, true or false, and returns it.
    pub(crate) async fn until_operator(&self, type_: &str, status: ConditionStatus) -> anyhow::Result<Condition> {
        let what = format!("the operator's resource says {type_}={status:?}");
        let world =
            self.until(&what, |world| world.operator_condition(type_).is_some_and(|c| c.status == status)).await?;
        world.operator_condition(type_).cloned().context("just seen")
    }

    /// All controllers, in the order of their start.
    pub(crate) fn controllers(&mut self) -> &mut [ControllerProcess] {
        &mut self.controllers
    }

    /// Waits until the controller that was started last has filled its caches.
    pub(crate) async fn until_ready(&mut self) -> anyhow::Result<()> {
        let url = format!("http://{}/readyz", self.controller()?.plain);
        let client = reqwest::Client::builder().no_proxy().build()?;
        poll("the controller is ready", async || {
            let answer = client.get(&url).send().await;
            Ok(answer.is_ok_and(|answer| answer.status().is_success()).then_some(()))
        })
        .await
    }

    /// Waits until a metric of the controller that was started last has this value.
    pub(crate) async fn until_metric(&mut self, series: &str, value: f64) -> anyhow::Result<()> {
        poll(&format!("{series} is {value}"), async || Ok((self.metric(series).await? == Some(value)).then_some(())))
            .await
    }

    /// The value of a metric of the controller that was started last.
    pub(crate) async fn metric(&mut self, series: &str) -> anyhow::Result<Option<f64>> {
        let text = self.metrics().await?;
        let value = text.lines().find_map(|line| line.strip_prefix(&format!("brupop_controller_{series} ")));
        Ok(value.map(str::parse).transpose()?)
    }

    /// The pod of the web API.
    pub(super) fn web_api_pod(&self) -> Value {
        let mut pod = self.stage.templates.apiserver["spec"]["template"].clone();
        let metadata = json!({"name": WEB_API_POD, "namespace": SYSTEM_NAMESPACE});
        let elsewhere = json!({"nodeName": "elsewhere"});
        merge(&mut pod, &json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": elsewhere}));
        pod
    }

    /// Deletes the pod of the web API: no agent can report.
    pub(crate) async fn stop_web_api(&self) -> anyhow::Result<()> {
        self.fleet.connect_agents(false);
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM_NAMESPACE);
        pods.delete(WEB_API_POD, &DeleteParams::default()).await?;
        poll("the web API has no pod", async || Ok(pods.get_opt(WEB_API_POD).await?.is_none().then_some(()))).await
    }

    /// Creates the pod of the web API again.
    pub(crate) async fn start_web_api(&self) -> anyhow::Result<()> {
        workload::apply(&self.client, vec![self.web_api_pod()]).await?;
        self.fleet.connect_agents(true);
        Ok(())
    }
}

impl super::Fleet {
    /// Connects the agents to the web API, or cuts them off.
    fn connect_agents(&self, reached: bool) {
        self.change(|state| state.web_api_down = !reached);
    }
}
