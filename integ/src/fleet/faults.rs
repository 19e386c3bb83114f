//! An outage of the API server, and the end of a replica of the web API, under a fleet.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use deploy::Component;
use jiff::Timestamp;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::sleep;

use super::cluster::FleetCluster;
use super::metrics::Metrics;
use super::requests::Requests;

/// Time after an outage in which requests are counted.
const RECOVERY: Duration = Duration::from_secs(90);

/// Time before an outage for comparison.
const BEFORE: Duration = Duration::from_secs(20);

/// Requests in a second of an idle fleet, at most.
const QUIET: f64 = 2.0;

/// Number of quiet seconds after which a recovery is over.
const LULL: usize = 10;

/// Longest wait until all streams are open again.
const STREAMS: Duration = Duration::from_secs(120);

const POLL: Duration = Duration::from_millis(200);

/// Requests to the API server around an outage of it.
#[derive(Clone, Debug)]
pub(super) struct OutageResult {
    /// Begin of the record.
    pub from: Timestamp,
    /// End of the record.
    pub to: Timestamp,
    /// End of the outage.
    pub back: Timestamp,
    /// Requests in each second since the end of the outage.
    pub recovery: Vec<f64>,
}

impl OutageResult {
    /// Most requests in one second of the recovery, mean of its seconds, and their number. The recovery ends where few requests
    /// follow for a while.
    pub(super) fn peak(&self) -> (f64, f64, usize) {
        let peak = self.recovery.iter().copied().fold(0.0, f64::max);
        let first = self.recovery.iter().position(|count| *count > 0.0).unwrap_or_default();
        let active = &self.recovery[first..];
        let is_quiet = |counts: &[f64]| counts.iter().all(|count| *count <= QUIET);
        let seconds = active.windows(LULL).position(is_quiet).unwrap_or(active.len());
        let mean = active[..seconds].iter().sum::<f64>() / seconds.max(1) as f64;
        (peak, mean, seconds)
    }
}

/// Stops the API server for a time.
pub(super) async fn outage(
    cluster: &mut FleetCluster,
    requests: &Requests,
    duration: Duration,
) -> anyhow::Result<OutageResult> {
    let from = Timestamp::now();
    sleep(BEFORE).await;
    cluster.control_plane.kill_apiserver().await?;
    sleep(duration).await;
    cluster.control_plane.restart_apiserver().await?;
    let back = Timestamp::now();
    sleep(RECOVERY).await;
    let to = Timestamp::now();
    requests.read()?;
    Ok(OutageResult { from, to, back, recovery: requests.per_second(back, to, None) })
}

/// Streams around the end of a replica of the web API.
#[derive(Clone, Copy, Debug)]
pub(super) struct KillResult {
    /// Open streams before, of all replicas.
    pub before: f64,
    /// Streams that ended with it.
    pub lost: f64,
    /// Time until as many were open again.
    pub back_after: Duration,
}

/// Kills a process of the web API, and waits until as many streams are open as before.
pub(super) async fn kill_web_api(cluster: &FleetCluster) -> anyhow::Result<KillResult> {
    let metrics = Metrics::new()?;
    let (_, urls) = cluster.metrics().await?;
    let before = streams(&metrics, &urls).await;
    let process = cluster.processes_of(Component::Apiserver).into_iter().next().context("no web API runs")?;
    kill(Pid::from_raw(process.pid.try_into()?), Signal::SIGKILL)?;
    let began = Instant::now();
    let mut least = before;
    loop {
        let now = streams(&metrics, &urls).await;
        least = least.min(now);
        if now >= before && least < before {
            return Ok(KillResult { before, lost: before - least, back_after: began.elapsed() });
        }
        ensure!(began.elapsed() < STREAMS, "{now} of {before} streams are open");
        sleep(POLL).await;
    }
}

/// Open streams of all replicas that answer.
async fn streams(metrics: &Metrics, urls: &[String]) -> f64 {
    let mut sum = 0.0;
    for url in urls {
        if let Ok(text) = metrics.read(url).await {
            sum += text.sum("brupop_apiserver_streams").unwrap_or_default();
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peak_is_compared_with_the_seconds_before_the_fleet_is_quiet() {
        let (from, back, to) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
        let result = |recovery| OutageResult { from, to, back, recovery }.peak();
        let quiet = [1.0; 20];
        assert_eq!(result([&[0.0, 30.0, 0.0, 30.0][..], &quiet].concat()), (30.0, 20.0, 3));
        assert_eq!(result(vec![8.0, 4.0, 4.0, 4.0]), (8.0, 5.0, 4), "it never is");
    }
}
