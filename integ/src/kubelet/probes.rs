//! Readiness and liveness probes.

use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::time::{sleep, timeout};

use super::address::to_process;

/// Interval for a container that is not ready yet, so that a test does not wait for a probe.
const EAGER: Duration = Duration::from_millis(250);

/// Longest readiness period and initial delay in the test cluster.
const LONGEST: Duration = Duration::from_secs(1);

/// Target of a probe.
pub(crate) struct Target {
    pub(crate) http: reqwest::Client,
    pub(crate) pod_ip: Ipv4Addr,
    pub(crate) container: Container,
}

/// Kind of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeKind {
    Readiness,
    Liveness,
}

/// The times and thresholds of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProbeTiming {
    pub(crate) delay: Duration,
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    pub(crate) successes: u32,
    pub(crate) failures: u32,
}

impl ProbeTiming {
    /// The rhythm of `probe`. A readiness probe runs more often than the spec says, which only makes things quicker; liveness
    /// keeps the spec's times, so that a stalled process lives as long here as in a cluster.
    pub(crate) fn of(probe: &Probe, which: ProbeKind) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
        };
        let delay = seconds(probe.initial_delay_seconds, 0);
        let period = seconds(probe.period_seconds, 10);
        // A readiness probe that starts a program each time is as rare as in a cluster, once its container is ready.
        let quick = which == ProbeKind::Readiness && probe.exec.is_none();
        Self {
            delay: if quick { delay.min(LONGEST) } else { delay },
            period: if quick { period.min(LONGEST) } else { period },
            timeout: seconds(probe.timeout_seconds, 1),
            successes: count(probe.success_threshold, 1),
            failures: count(probe.failure_threshold, 3),
        }
    }

    /// Delay before the next probe.
    pub(crate) fn pause(&self, settled: bool) -> Duration {
        if settled { self.period } else { self.period.min(EAGER) }
    }
}

/// Counts results until a threshold changes the verdict.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProbeCounter {
    streak: u32,
    last: Option<bool>,
}

impl ProbeCounter {
    /// Adds a result; returns the verdict once its threshold is reached.
    pub(crate) fn take(&mut self, success: bool, rhythm: &ProbeTiming) -> Option<bool> {
        self.streak = if self.last == Some(success) { self.streak.saturating_add(1) } else { 1 };
        self.last = Some(success);
        let needed = if success { rhythm.successes } else { rhythm.failures };
        (self.streak >= needed).then_some(success)
    }
}

/// Runs exec probes: implemented by whatever can start processes of the container.
pub(crate) trait Exec {
    /// Runs the command in the container; the error is its output.
    fn exec(&self, command: &[String]) -> impl Future<Output = Result<(), String>> + Send;
}

impl Target {
    /// Runs the probe once.
    pub(crate) async fn ask(&self, probe: &Probe, limit: Duration, exec: &impl Exec) -> Result<(), String> {
        timeout(limit, self.answer(probe, exec)).await.unwrap_or_else(|_| Err("timed out".to_owned()))
    }

    async fn answer(&self, probe: &Probe, exec: &impl Exec) -> Result<(), String> {
        if let Some(action) = &probe.http_get {
            return self.http_get(action).await;
        }
        if let Some(ExecAction { command: Some(command) }) = &probe.exec {
            return exec.exec(command).await;
        }
        Err("this kind of probe is not supported".to_owned())
    }

    async fn http_get(&self, action: &HTTPGetAction) -> Result<(), String> {
        let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
        let (host, port) = (to_process(self.pod_ip), self.port(&action.port).ok_or("no such port")?);
        let path = action.path.as_deref().unwrap_or_default().trim_start_matches('/');
        let answer = self.http.get(format!("{scheme}://{host}:{port}/{path}")).send().await;
        let status = answer.map_err(|e| format!("{e:?}"))?.status().as_u16();
        if (200..400).contains(&status) { Ok(()) } else { Err(format!("HTTP probe failed with statuscode: {status}")) }
    }

    fn port(&self, port: &IntOrString) -> Option<u16> {
        let number = match port {
            IntOrString::Int(number) => *number,
            IntOrString::String(name) => {
                let named = self.container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
                named.map(|p| p.container_port).or_else(|| name.parse().ok())?
            }
        };
        u16::try_from(number).ok()
    }

    /// Probes for ever; reports each change of readiness.
    pub(crate) async fn follow_readiness(&self, probe: &Probe, exec: &impl Exec, mut report: impl FnMut(bool, &str)) {
        let rhythm = ProbeTiming::of(probe, ProbeKind::Readiness);
        sleep(rhythm.delay).await;
        let (mut ready, mut tally) = (false, ProbeCounter::default());
        loop {
            let result = self.ask(probe, rhythm.timeout, exec).await;
            if let Some(verdict) = tally.take(result.is_ok(), &rhythm)
                && verdict != ready
            {
                ready = verdict;
                report(ready, result.err().as_deref().unwrap_or_default());
            }
            sleep(rhythm.pause(ready)).await;
        }
    }

    /// Probes until the container is found dead.
    pub(crate) async fn until_dead(&self, probe: &Probe, exec: &impl Exec) -> String {
        let rhythm = ProbeTiming::of(probe, ProbeKind::Liveness);
        sleep(rhythm.delay).await;
        let mut tally = ProbeCounter::default();
        loop {
            let result = self.ask(probe, rhythm.timeout, exec).await;
            if tally.take(result.is_ok(), &rhythm) == Some(false) {
                return result.err().unwrap_or_default();
            }
            sleep(rhythm.period).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_result_changes_only_after_threshold_of_consecutive_results() {
        let rhythm =
            ProbeTiming { delay: Duration::ZERO, period: LONGEST, timeout: LONGEST, successes: 1, failures: 3 };
        let mut tally = ProbeCounter::default();
        let verdicts: Vec<_> =
            [true, false, false, true, false, false, false].map(|result| tally.take(result, &rhythm)).into();
        assert_eq!(verdicts, [Some(true), None, None, Some(true), None, None, Some(false)]);
    }

    #[test]
    fn readiness_probe_interval_is_shortened_and_liveness_interval_is_kept() {
        let probe = Probe { period_seconds: Some(20), initial_delay_seconds: Some(30), ..Probe::default() };
        assert_eq!(ProbeTiming::of(&probe, ProbeKind::Readiness).period, LONGEST);
        assert_eq!(ProbeTiming::of(&probe, ProbeKind::Readiness).delay, LONGEST);
        assert_eq!(ProbeTiming::of(&probe, ProbeKind::Liveness).period, Duration::from_secs(20));
        assert_eq!(ProbeTiming::of(&probe, ProbeKind::Liveness).delay, Duration::from_secs(30));
    }
}
