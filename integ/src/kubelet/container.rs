//! One container: its process, probes and restarts; for an image without a local program, a simulation.

mod ended;
mod exec;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use models::backoff::{Backoff, Delays};
use nix::sys::signal::Signal;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::ended::{completed, ended};
use self::exec::Inside;
use super::env::{EnvError, Mounts, expand, kubeconfig, variables};
use super::pod::PodShared;
use super::probes::{Exec, Target};
use super::process::{Launch, PodProcess, signal_group};
use super::status::{ContainerPhase, ContainerView, Ended, restart_policy};

/// First and longest back-off of a container that keeps ending: much shorter than the real kubelet's 10 s to 5 min, of
/// the same shape.
const BACKOFF: Delays = (Duration::from_millis(200), Duration::from_secs(10));
/// Run time of a container after which its back-off is reset.
const GOOD_RUN: Duration = Duration::from_secs(10);
/// Delay before a container is retried that could not be created, for example without its ConfigMap.
const RETRY: Duration = Duration::from_millis(300);
/// Default time that a simulated container takes to end.
const PRETENDED_STOP: Duration = Duration::from_millis(300);
/// The ServiceAccount admission plugin's mount of the token, in pods that may use the API.
const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The annotations by which a scenario controls simulated containers.
pub(crate) const READY_AFTER: &str = "sim/ready-after";
pub(crate) const NEVER_READY: &str = "sim/never-ready";
pub(crate) const STOP_AFTER: &str = "sim/stop-after";
pub(crate) const RESTARTS: &str = "sim/restarts";

/// One container of a pod.
#[derive(Clone)]
pub(crate) struct ContainerTask {
    pub(crate) pod: Arc<PodShared>,
    pub(crate) index: usize,
    pub(crate) spec: Container,
}

/// The environment of one run of a container; probes run in the same one.
struct Surroundings {
    image: String,
    env: Vec<(String, String)>,
    mounts: Mounts,
    directory: PathBuf,
}

impl ContainerTask {
    /// Runs the container until the pod has to stop, or until it has ended for good.
    pub(crate) async fn run(self) {
        if self.pod.ctx.options.images.contains(self.spec.image.as_deref().unwrap_or_default()) {
            self.run_process().await;
        } else {
            self.simulate_container().await;
        }
    }

    fn update(&self, change: impl FnOnce(&mut ContainerView)) {
        self.pod.update(self.index, change);
    }

    async fn run_process(&self) {
        let mut stop = self.pod.stop.subscribe();
        let mut backoff = Backoff::default();
        let mut first = true;
        loop {
            tokio::select! {
                () = self.pod.ctx.may_act() => {}
                () = stopped(&mut stop) => return,
            }
            if stop.borrow().is_some() {
                return;
            }
            let pause = match self.launch(!first) {
                Err(error) => {
                    let reason =
                        if error.is::<EnvError>() { "CreateContainerConfigError" } else { "RunContainerError" };
                    let message = format!("{error:#}");
                    self.pod.ctx.event(&self.pod.current(), "Warning", "Failed", &format!("Error: {message}"));
                    self.update(|v| v.wait(reason, Some(message)));
                    RETRY
                }
                Ok((child, surroundings)) => {
                    first = false;
                    let began = Instant::now();
                    let ended = self.supervise_process(child, surroundings).await;
                    let success = ended.exit_code == 0;
                    self.update(|v| {
                        v.doing = ContainerPhase::Ended(ended);
                        v.ready = false;
                    });
                    if stop.borrow().is_some() || !self.restarts(success) {
                        return;
                    }
                    if began.elapsed() >= GOOD_RUN {
                        backoff.reset();
                    }
                    let pause = backoff.next_delay(BACKOFF);
                    self.back_off(pause);
                    pause
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    fn back_off(&self, pause: Duration) {
        let pod = self.pod.current();
        let name = &self.spec.name;
        let message = format!(
            "back-off {}ms restarting failed container={name} pod={}_{}",
            pause.as_millis(),
            pod.metadata.name.as_deref().unwrap_or_default(),
            pod.metadata.namespace.as_deref().unwrap_or_default(),
        );
        if pause > BACKOFF.0 {
            self.pod.ctx.event(&pod, "Warning", "BackOff", &message);
        }
        self.update(|v| {
            if let ContainerPhase::Ended(_) = &v.doing {
                v.wait("CrashLoopBackOff", Some(message));
            }
        });
    }

    fn restarts(&self, success: bool) -> bool {
        let pod = self.pod.current();
        match restart_policy(&pod) {
            "Never" => false,
            "OnFailure" => !success,
            _ => true,
        }
    }

    fn launch(&self, again: bool) -> Result<(Child, Surroundings)> {
        let pod = self.pod.current();
        if again {
            self.pod.volumes.bind_host_paths()?;
        }
        let surroundings = self.surroundings(&pod)?;
        let (program, args) = self.command_line(&surroundings)?;
        let meta = &pod.metadata;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let log = self.pod.ctx.log_path(&text(&meta.namespace), &text(&meta.name), &self.spec.name);
        if let Some(parent) = log.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let (env, directory) = (surroundings.env.clone(), surroundings.directory.clone());
        let launch = Launch { program, args, env, directory, log: Some(log) };
        let who = PodProcess {
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            uid: text(&meta.uid),
            container: self.spec.name.clone(),
            pid: 0,
            image: surroundings.image.clone(),
        };
        let ctx = &self.pod.ctx;
        let child = ctx.processes.start(&ctx.options.bed, &launch, who)?;
        let id = format!("sim://{:016x}{:016x}", rand::random::<u64>(), rand::random::<u64>());
        self.update(|v| {
            if again {
                v.restarts += 1;
            }
            v.run(Timestamp::now());
            v.container_id = id;
            v.ready = self.spec.readiness_probe.is_none();
        });
        Ok((child, surroundings))
    }

    fn surroundings(&self, pod: &Pod) -> Result<Surroundings> {
        let ctx = &self.pod.ctx;
        let directory = self.pod.directory.clone();
        let (home, tmp) = (directory.join("home"), directory.join("tmp"));
        std::fs::create_dir_all(&home)?;
        std::fs::create_dir_all(&tmp)?;
        let implicit = [("/proc".to_owned(), ctx.options.machine.root().join("proc"))];
        let mounts = self.pod.volumes.mounts(&self.spec, &implicit);
        let own = variables(pod, &self.spec, self.pod.pod_ip)?;

        let mut env: Vec<(String, String)> = Vec::new();
        let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
        for name in ["PATH", "RUST_BACKTRACE"] {
            if let Ok(value) = std::env::var(name) {
                set(name, value);
            }
        }
        set("HOSTNAME", pod.metadata.name.clone().unwrap_or_default());
        set("HOME", home.display().to_string());
        set("TMPDIR", tmp.display().to_string());
        // All pods of this machine have one address.
        set("BRUPOP_CONNECTIONS_PER_SOURCE", "0".to_owned());
        if let Some(token) = mounts.real(&format!("{TOKEN_MOUNT}/token")) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let text = kubeconfig(&ctx.options.api_url, &ctx.options.api_ca_file, &token, namespace);
            let path = directory.join("kubeconfig");
            std::fs::write(&path, text)?;
            set("KUBECONFIG", path.display().to_string());
        } else if let Some(proxy) = &ctx.options.https_proxy {
            // Only for pods that do not use the API: Kubernetes clients would use the proxy for that, too.
            set("HTTPS_PROXY", proxy.clone());
            set("NO_PROXY", "127.0.0.0/8,localhost".to_owned());
        }
        env.extend(own.into_iter().map(|(k, v)| {
            let value = mounts.rewrite(&v);
            (k, value)
        }));
        let image = self.spec.image.clone().unwrap_or_default();
        Ok(Surroundings { image, env, mounts, directory })
    }

    fn command_line(&self, surroundings: &Surroundings) -> Result<(PathBuf, Vec<String>)> {
        let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
            words.iter().flatten().map(|w| expand(w, |name| surroundings.var(name))).collect()
        };
        let command = expanded(&self.spec.command);
        let args = expanded(&self.spec.args);
        let images = &self.pod.ctx.options.images;
        let (program, args) =
            images.command_line(&surroundings.image, &command, &args).context("the image has no local program")?;
        let args = args.iter().map(|a| surroundings.mounts.rewrite(a)).collect();
        Ok((program, args))
    }

    /// Follows a process to its end.
    async fn supervise_process(&self, mut child: Child, surroundings: Surroundings) -> Ended {
        let since = Timestamp::now();
        let mut stop = self.pod.stop.subscribe();
        let deadline = stop.clone();
        let (dead, mut found_dead) = mpsc::channel(1);
        let mut probes = JoinSet::new();
        probes.spawn(self.clone().probe(surroundings, dead));
        let processes = &self.pod.ctx.processes;
        let status = tokio::select! {
            status = processes.wait(&mut child) => status,
            () = stopped(&mut stop) => self.end(&mut child, deadline).await,
            Some(why) = found_dead.recv() => {
                let pod = self.pod.current();
                let name = &self.spec.name;
                self.pod.ctx.event(&pod, "Warning", "Unhealthy", &why);
                self.pod.ctx.event(&pod, "Normal", "Killing", &format!("Container {name} failed, will be restarted"));
                let grace = grace_period(&pod);
                let (sender, receiver) = watch::channel(Some(Instant::now() + grace));
                let status = self.end(&mut child, receiver).await;
                drop(sender);
                status
            }
        };
        let id = self.pod.view(self.index).map(|v| v.container_id).unwrap_or_default();
        ended(status, since, id)
    }

    /// Terminates a process, and kills it at the deadline, which may move closer meanwhile.
    async fn end(
        &self,
        child: &mut Child,
        mut deadline: watch::Receiver<Option<Instant>>,
    ) -> std::io::Result<ExitStatus> {
        let processes = &self.pod.ctx.processes;
        let pid = child.id();
        if let Some(pid) = pid {
            signal_group(pid, Signal::SIGTERM);
        }
        tokio::select! {
            status = processes.wait(child) => status,
            () = passed(&mut deadline) => {
                if let Some(pid) = pid {
                    signal_group(pid, Signal::SIGKILL);
                }
                processes.wait(child).await
            }
        }
    }

    /// Runs the probes; the first message on `dead` is the reason to restart the container.
    async fn probe(self, surroundings: Surroundings, dead: mpsc::Sender<String>) {
        let target = Target { http: self.pod.ctx.http.clone(), pod_ip: self.pod.pod_ip, container: self.spec.clone() };
        let inside = Inside { task: &self, surroundings: &surroundings };
        let readiness = async {
            let Some(probe) = &self.spec.readiness_probe else { return };
            let report = |ready: bool, why: &str| {
                if !ready {
                    let pod = self.pod.current();
                    self.pod.ctx.event(&pod, "Warning", "Unhealthy", &format!("Readiness probe failed: {why}"));
                }
                self.update(|v| v.ready = ready);
            };
            target.follow_readiness(probe, &inside, report).await;
        };
        let liveness = async {
            let Some(probe) = &self.spec.liveness_probe else { return };
            let why = target.until_dead(probe, &inside).await;
            self.pod.ctx.may_act().await;
            let _ = dead.send(format!("Liveness probe failed: {why}")).await;
        };
        tokio::join!(readiness, liveness);
    }

    /// Reports a container as its pod's annotations say, without running anything.
    async fn simulate_container(&self) {
        let mut stop = self.pod.stop.subscribe();
        let mut pods = self.pod.pod.clone();
        let since = Timestamp::now();
        self.update(|v| {
            v.run(since);
            v.container_id = format!("sim://{:016x}", rand::random::<u64>());
        });
        let ready_at = annotation(&self.pod.current(), READY_AFTER)
            .map_or(Some(Duration::ZERO), |after| parse_duration(&after))
            .map(|after| Instant::now() + after);
        loop {
            let pod = pods.borrow_and_update().clone();
            let due = ready_at.is_some_and(|at| Instant::now() >= at);
            let ready = due && annotation(&pod, NEVER_READY).is_none_or(|v| v == "false");
            let restarts = annotation(&pod, RESTARTS).and_then(|r| r.parse().ok());
            self.update(|v| {
                v.ready = ready;
                let before = v.restarts;
                v.restarts = restarts.unwrap_or(before);
                if v.restarts > before {
                    v.last = Some(completed(Timestamp::now(), v.container_id.clone()));
                }
            });
            tokio::select! {
                () = stopped(&mut stop) => break,
                changed = pods.changed() => if changed.is_err() { break },
                () = sleep_until(ready_at.unwrap_or_else(Instant::now)), if ready_at.is_some() && !due => {}
            }
        }
        let mut deadline = stop.clone();
        match annotation(&self.pod.current(), STOP_AFTER).as_deref().map(parse_duration) {
            None => {
                let _ = timeout(PRETENDED_STOP, passed(&mut deadline)).await;
            }
            // Unlike a real container, a stuck volume can keep a pod terminating past its grace period.
            Some(after) => {
                let last = after.map(|after| Instant::now() + after);
                while !self.pod.is_cut_short() {
                    tokio::select! {
                        () = sleep_until(last.unwrap_or_else(Instant::now)), if last.is_some() => break,
                        changed = stop.changed() => if changed.is_err() { break },
                    }
                }
            }
        }
        self.update(|v| {
            v.doing = ContainerPhase::Ended(completed(since, v.container_id.clone()));
            v.ready = false;
        });
    }
}

impl Surroundings {
    fn var(&self, name: &str) -> Option<String> {
        self.env.iter().rev().find(|(k, _)| k == name).map(|(_, v)| v.clone())
    }
}

/// Waits until the pod is to stop.
async fn stopped(stop: &mut watch::Receiver<Option<Instant>>) {
    let _ = stop.wait_for(Option::is_some).await;
}

/// Waits until the deadline has passed, also if it moves.
async fn passed(deadline: &mut watch::Receiver<Option<Instant>>) {
    loop {
        let at = *deadline.borrow_and_update();
        let Some(at) = at else { return std::future::pending().await };
        tokio::select! {
            () = sleep_until(at) => return,
            changed = deadline.changed() => if changed.is_err() {
                return sleep_until(at).await;
            },
        }
    }
}

/// The pod's own grace period.
pub(crate) fn grace_period(pod: &Pod) -> Duration {
    let seconds = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(30);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

fn annotation(pod: &Pod, name: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(name).cloned()
}

/// Parses `500ms`, `2s`, `1m`; `None` for anything else (`never`).
fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match &text[digits.len()..] {
        "ms" => Some(Duration::from_millis(number)),
        "" | "s" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_secs(number * 60)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
