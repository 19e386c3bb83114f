//! A server that speaks the API of AWS (moto), and the health check of EC2 Auto Scaling, which moto does not play.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hyper::StatusCode;
use hyper::body::Bytes;
use integ::control_plane::marked;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use models::names::{SYSTEM_NAMESPACE, node_of_shadow};
use models::shadow::{BottlerocketShadow, Step};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::proxy::{Fault, State, serve};
use crate::interfere::poll;
use crate::support::ScenarioContext;

/// The group of most scenarios.
pub(super) const GROUP: &str = "web";

/// Between two health checks; a reboot takes longer.
const BETWEEN_CHECKS: Duration = Duration::from_millis(250);

/// A group, as AWS shows it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) desired: String,
    pub(super) suspended: BTreeSet<String>,
    /// State and health of each instance, such as `InService Healthy`.
    pub(super) instances: BTreeMap<String, String>,
}

/// The servers. Dropping it ends them.
pub(super) struct Aws {
    _moto: Child,
    client: reqwest::Client,
    url: String,
    /// Address of the proxy, for the program.
    pub(super) endpoint: String,
    state: Arc<Mutex<State>>,
    /// Instances that the health check has had replaced.
    terminated: Arc<Mutex<Vec<String>>>,
    tasks: JoinSet<()>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The contents of the elements of this name.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    xml.split(&open).skip(1).filter_map(|rest| rest.split(&close).next()).collect()
}

/// Sends a call to moto. The signature is not verified there; the service is read from its scope.
pub(super) async fn send(
    client: &reqwest::Client,
    url: &str,
    service: &str,
    body: String,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let scope = format!(
        "AWS4-HMAC-SHA256 Credential=test/20260101/eu-central-1/{service}/aws4_request, SignedHeaders=host, Signature=0"
    );
    let request = client.post(url).header("authorization", scope);
    let answer = request.header("content-type", "application/x-www-form-urlencoded").body(body).send().await?;
    Ok((answer.status(), answer.bytes().await?))
}

impl Aws {
    /// Starts the servers, and creates [`GROUP`] with this minimum and number of instances, several types of them, two zones,
    /// and the process suspended that keeps these equal.
    pub(super) async fn start(ctx: &ScenarioContext, minimum: usize, size: usize) -> anyhow::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/moto/get.sh");
        let found = Command::new(script).output().await.with_context(|| format!("cannot run {script}"))?;
        ensure!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        let port = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
        let mut moto = Command::new(String::from_utf8(found.stdout)?.trim());
        moto.args(["-H", "127.0.0.1", "-p", &port.to_string()]).stdin(Stdio::null()).stdout(Stdio::null());
        let moto = marked(&mut moto, ctx.bed.control_plane.dir()).stderr(Stdio::null()).kill_on_drop(true).spawn()?;
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(120)).build()?;
        let url = format!("http://127.0.0.1:{port}/");
        poll("moto serves", async || Ok(client.get(&url).send().await.ok())).await?;
        let (state, mut tasks) = (Arc::<Mutex<State>>::default(), JoinSet::new());
        let address = serve(&mut tasks, client.clone(), url.clone(), state.clone()).await?;
        let endpoint = format!("http://{address}");
        let aws = Self { _moto: moto, client, url, endpoint, state, terminated: Arc::default(), tasks };
        aws.call("ec2", "Action=CreateLaunchTemplate&LaunchTemplateName=node&LaunchTemplateData.ImageId=ami-12c6146b&LaunchTemplateData.InstanceType=m5.large").await?;
        let template = "MixedInstancesPolicy.LaunchTemplate";
        let kinds = format!(
            "{template}.LaunchTemplateSpecification.LaunchTemplateName=node&{template}.LaunchTemplateSpecification.Version=1&{template}.Overrides.member.1.InstanceType=m5.large&{template}.Overrides.member.2.InstanceType=m5a.large"
        );
        aws.scaling(&format!("Action=CreateAutoScalingGroup&AutoScalingGroupName={GROUP}&MinSize={minimum}&MaxSize=9&DesiredCapacity={size}&{kinds}&AvailabilityZones.member.1=eu-central-1a&AvailabilityZones.member.2=eu-central-1b")).await?;
        aws.scaling(&format!(
            "Action=SuspendProcesses&AutoScalingGroupName={GROUP}&ScalingProcesses.member.1=AZRebalance"
        ))
        .await?;
        Ok(aws)
    }

    async fn call(&self, service: &str, parameters: &str) -> anyhow::Result<String> {
        let version = if service == "ec2" { "2016-11-15" } else { "2011-01-01" };
        let (status, body) = send(&self.client, &self.url, service, format!("{parameters}&Version={version}")).await?;
        let text = String::from_utf8(body.to_vec())?;
        ensure!(status.is_success(), "{parameters}: {status} {text}");
        Ok(text)
    }

    /// Calls EC2 Auto Scaling as the group's owner does.
    pub(super) async fn scaling(&self, parameters: &str) -> anyhow::Result<String> {
        self.call("autoscaling", parameters).await
    }

    /// Reads [`GROUP`].
    pub(super) async fn group(&self) -> anyhow::Result<Group> {
        let xml =
            self.scaling(&format!("Action=DescribeAutoScalingGroups&AutoScalingGroupNames.member.1={GROUP}")).await?;
        let one =
            |xml: &str, name: &str| elements(xml, name).first().map(|text| (*text).to_owned()).unwrap_or_default();
        let instance = |rest: &str| {
            let id = rest.split('<').next().unwrap_or_default().to_owned();
            (id, format!("{} {}", one(rest, "LifecycleState"), one(rest, "HealthStatus")))
        };
        Ok(Group {
            desired: one(&xml, "DesiredCapacity"),
            suspended: elements(&xml, "ProcessName").into_iter().map(str::to_owned).collect(),
            instances: xml.split("<InstanceId>").skip(1).map(instance).collect(),
        })
    }

    /// Gives each node an instance of [`GROUP`], and the nodes that are left over one without a group.
    pub(super) async fn provide(&self, ctx: &ScenarioContext) -> anyhow::Result<BTreeMap<String, String>> {
        let mut ids = self.group().await?.instances.into_keys();
        let mut nodes = BTreeMap::new();
        for (number, member) in ctx.bed.members.iter().enumerate() {
            let id = ids.next().unwrap_or_else(|| format!("i-{number:017x}"));
            let patch = format!(r#"{{"spec":{{"providerID":"aws:///eu-central-1a/{id}"}}}}"#);
            ctx.kubectl(&["patch", "node", &member.name, "-p", &patch]).await?;
            nodes.insert(member.name.clone(), id);
        }
        Ok(nodes)
    }

    /// Plays the health check of EC2 Auto Scaling from now on: an instance in service whose host reboots, or whose Node is not
    /// Ready, is marked unhealthy, and an unhealthy one in service is replaced, unless the process that does so is suspended.
    pub(super) fn check_health(&mut self, ctx: &ScenarioContext, nodes: &BTreeMap<String, String>) {
        let shadows: Api<BottlerocketShadow> = Api::namespaced(ctx.bed.client.clone(), SYSTEM_NAMESPACE);
        let objects: Api<Node> = Api::all(ctx.bed.client.clone());
        let (nodes, client, url) = (nodes.clone(), self.client.clone(), self.url.clone());
        let terminated = self.terminated.clone();
        let checker = Checker { client, url };
        self.tasks.spawn(async move {
            loop {
                let rebooting = |shadow: &&BottlerocketShadow| {
                    let progress = shadow.status.as_ref().and_then(|status| status.controller.progress.as_ref());
                    progress.is_some_and(|progress| progress.step == Step::Rebooting)
                };
                let away = |node: &&Node| {
                    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
                    !conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
                };
                let mut down = BTreeSet::new();
                if let Ok(list) = shadows.list(&Default::default()).await {
                    down.extend(list.iter().filter(rebooting).map(|s| node_of_shadow(&s.name_any()).to_owned()));
                }
                if let Ok(list) = objects.list(&Default::default()).await {
                    down.extend(list.iter().filter(away).map(ResourceExt::name_any));
                }
                let down: Vec<_> = down.iter().filter_map(|name| nodes.get(name).cloned()).collect();
                if let Ok(replaced) = checker.round(&down).await {
                    locked(&terminated).extend(replaced);
                }
                tokio::time::sleep(BETWEEN_CHECKS).await;
            }
        });
    }

    /// The instances that the health check has had replaced.
    pub(super) fn terminated(&self) -> Vec<String> {
        locked(&self.terminated).clone()
    }

    /// The calls of the program so far.
    pub(super) fn calls(&self) -> Vec<String> {
        locked(&self.state).calls.clone()
    }

    /// Counts calls and reads from now on.
    pub(super) fn forget_calls(&self) {
        let mut state = locked(&self.state);
        state.calls.clear();
        state.reads.clear();
    }

    /// The shortest time between two reads of the program.
    pub(super) fn reads_every(&self) -> Option<Duration> {
        let reads = locked(&self.state).reads.clone();
        reads.windows(2).map(|pair| pair[1] - pair[0]).min()
    }

    /// Waits until the program has called this action so often.
    pub(super) async fn called(&self, action: &str, times: usize) -> anyhow::Result<()> {
        poll(&format!("{times} calls of {action}"), async || {
            Ok((self.calls().iter().filter(|call| *call == action).count() >= times).then_some(()))
        })
        .await
    }

    /// Has the next calls of an action fail; with 0, none.
    pub(super) fn fail(&self, action: &'static str, fault: Fault, times: usize) {
        self.fail_for(action, "", fault, times);
    }

    /// The same for calls that name this instance.
    pub(super) fn fail_for(&self, action: &'static str, name: &str, fault: Fault, times: usize) {
        locked(&self.state).faults.insert(action, (fault, name.to_owned(), times));
    }
}

/// The health check's own view.
struct Checker {
    client: reqwest::Client,
    url: String,
}

impl Checker {
    async fn call(&self, parameters: &str) -> anyhow::Result<String> {
        let (_, body) =
            send(&self.client, &self.url, "autoscaling", format!("{parameters}&Version=2011-01-01")).await?;
        Ok(String::from_utf8(body.to_vec())?)
    }

    async fn round(&self, down: &[String]) -> anyhow::Result<Vec<String>> {
        let mut replaced = Vec::new();
        let xml = self.call("Action=DescribeAutoScalingGroups").await?;
        let replaces = !elements(&xml, "ProcessName").contains(&"ReplaceUnhealthy");
        for rest in xml.split("<InstanceId>").skip(1) {
            let id = rest.split('<').next().unwrap_or_default().to_owned();
            if elements(rest, "LifecycleState").first() != Some(&"InService") {
                continue;
            }
            if down.contains(&id) {
                self.call(&format!("Action=SetInstanceHealth&InstanceId={id}&HealthStatus=Unhealthy")).await?;
            }
            let unhealthy = down.contains(&id) || elements(rest, "HealthStatus").first() == Some(&"Unhealthy");
            if unhealthy && replaces {
                self.call(&format!(
                    "Action=TerminateInstanceInAutoScalingGroup&InstanceId={id}&ShouldDecrementDesiredCapacity=false"
                ))
                .await?;
                replaced.push(id);
            }
        }
        Ok(replaced)
    }
}
