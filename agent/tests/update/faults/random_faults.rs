//! Hours of random fault injection: faults of host, socket and web API, power losses, desired states that change and
//! are withdrawn, and an agent that is ended and killed in between.
//!
//! Invariants: it never panics, it never calls without pause, and each permit yields at most one armed image and one
//! reboot. Once the faults end, an update succeeds.

use std::collections::HashSet;

use integ::host::{BootFault, Command, Fault, HostOptions, RebootFault, Transport, Worker};
use integ::machine::Power;
use models::permit::RehearsalClaims;
use models::shadow::HostState;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};
use semver::Version;

use super::*;
use crate::bench::web::{WebFault, WriteFault};
use crate::bench::{Bench, NEW};

/// Names the seed of a run to repeat.
pub(super) const SEED: &str = "BRUPOP_SEED";

/// Number of runs, and the length of each.
const RUNS: u64 = 3;
const SPAN: Duration = Duration::from_secs(2 * 3600);

/// Maximum cost of an hour with any faults: two calls or requests a second.
const CALLS: u64 = 7_200;
const TRAFFIC: u64 = 7_200;
const LINES: u64 = 60_000;

/// Environment of the agent.
struct RandomRun<'a> {
    bench: Bench,
    rng: StdRng,
    counts: &'a Counts,
    agent: Option<InProcessAgent>,
    /// The boot in which it runs.
    runs_in: String,
    /// Time of its next start.
    starts: Instant,
    attempt: i64,
    /// The answered nonces, and the number of the host's events when each was.
    permits: Vec<usize>,
    answered: HashSet<String>,
    /// The next release.
    release: u64,
}

impl<'a> RandomRun<'a> {
    async fn new(seed: u64, counts: &'a Counts) -> Self {
        // The agent lives on while its host goes down.
        let slow = |options: &mut HostOptions| options.timings.shutdown = Duration::from_secs(20);
        let bench = Bench::stopped(slow).await;
        bench.web.create();
        let runs_in = bench.boot();
        Self {
            bench,
            rng: StdRng::seed_from_u64(seed),
            counts,
            agent: None,
            runs_in,
            starts: Instant::now(),
            attempt: 0,
            permits: Vec::new(),
            answered: HashSet::new(),
            release: NEW.patch,
        }
    }

    /// Acts as a kubelet: restarts the agent some seconds after it ended, and ends it with its machine.
    async fn kubelet(&mut self) {
        let boot = self.bench.boot();
        if boot != self.runs_in {
            self.runs_in = boot;
            self.stop(true).await;
        }
        if self.agent.as_ref().is_some_and(InProcessAgent::has_ended)
            && let Some(agent) = self.agent.take()
        {
            let ended = agent.end().await;
            assert!(ended.is_err(), "an agent that no one asked to end ends with an error");
            self.starts = Instant::now() + MINUTE / 6;
        }
        if self.agent.is_none() && Instant::now() >= self.starts {
            self.agent = Some(InProcessAgent::start(&self.bench));
        }
    }

    async fn stop(&mut self, kill: bool) {
        let Some(agent) = self.agent.take() else { return };
        let calls = self.counts.calls();
        if agent.has_ended() || !kill {
            let _ = agent.end().await;
        } else {
            agent.kill().await;
        }
        settle(30).await;
        assert_eq!(self.counts.calls(), calls, "no call to the host after its end");
        self.starts = Instant::now() + Duration::from_secs(self.rng.random_range(0..20));
    }

    /// Acts as a controller: desired states in rising order, at most one permit for each nonce, and a withdrawal now
    /// and then.
    fn controller(&mut self) {
        let view = self.bench.web.view();
        let report = &view.status.report;
        let acknowledged = report.observed_generation == Some(view.metadata.generation);
        let failed = report.failure.as_ref().is_some_and(|failure| failure.attempt == view.spec.attempt);
        let changes_its_mind = self.rng.random_bool(0.03);
        match view.spec.state {
            HostState::Idle if acknowledged || changes_its_mind => self.begin(),
            HostState::Idle => {}
            HostState::Unknown => self.bench.withdraw(),
            _ if failed || changes_its_mind => self.bench.withdraw(),
            HostState::StagedUpdate if acknowledged && report.state == Some(HostState::StagedUpdate) => {
                self.bench.request_reboot();
            }
            HostState::RebootedIntoUpdate if acknowledged && report.state == Some(HostState::RebootedIntoUpdate) => {
                self.bench.withdraw();
            }
            HostState::RehearsedUpdate if acknowledged && report.state == Some(HostState::RehearsedUpdate) => {
                self.bench.withdraw();
            }
            HostState::RebootedIntoUpdate => self.issue_permit(),
            HostState::RehearsedUpdate => self.issue_rehearsal_permit(),
            HostState::StagedUpdate => {}
        }
    }

    fn begin(&mut self) {
        self.attempt += 1;
        if self.rng.random_bool(0.1) {
            let attempt = self.attempt;
            self.bench.web.change_spec(|spec| {
                spec.state = HostState::Unknown;
                spec.attempt = attempt;
            });
            return;
        }
        if self.rng.random_bool(0.15) {
            let (attempt, boot) = (self.attempt, self.bench.boot());
            let version = self.bench.host.snapshot().running_version;
            self.bench.web.change_spec(|spec| {
                (spec.state, spec.version, spec.attempt) = (HostState::RehearsedUpdate, Some(version), attempt);
                spec.boot_id = Some(boot);
            });
            return;
        }
        let newest = Version::new(1, 20, self.release);
        if self.bench.host.snapshot().running_version == newest {
            self.release += 1;
            self.bench.releases.publish(Version::new(1, 20, self.release));
        }
        self.bench.stage_version(self.attempt, Version::new(1, 20, self.release));
    }

    fn issue_permit(&mut self) {
        let view = self.bench.web.view();
        let Some(armed) = &view.status.report.armed else { return };
        let asks = armed.attempt == view.spec.attempt && Some(&armed.boot_id) == view.spec.boot_id.as_ref();
        if asks && self.rng.random_bool(0.7) && self.answered.insert(armed.nonce.clone()) {
            self.permits.push(self.bench.host.log().len());
            self.bench.issue_permit(&self.bench.claims(&view));
        }
    }

    /// Answers the request of a drill. It counts as no permit, by which a host may be armed or rebooted.
    fn issue_rehearsal_permit(&mut self) {
        let view = self.bench.web.view();
        let Some(request) = view.status.report.rehearsal.as_ref().filter(|r| r.attempt == view.spec.attempt) else {
            return;
        };
        if self.rng.random_bool(0.7) && self.answered.insert(request.nonce.clone()) {
            let claims = self.bench.claims_with(&view, &request.nonce);
            self.bench.issue(&request.nonce, &RehearsalClaims::of(claims));
        }
    }

    /// Injects a fault.
    async fn inject_random_fault(&mut self) {
        let times = *[1, 1, 2, 5, 30].choose(&mut self.rng).unwrap();
        let command = *[Command::Refresh, Command::Prepare, Command::Activate, Command::Deactivate]
            .choose(&mut self.rng)
            .unwrap();
        let host = &self.bench.host;
        match self.rng.random_range(0..15) {
            0..=3 => {
                let transport = match self.rng.random_range(0..9) {
                    0 => Transport::LostBefore,
                    1 => Transport::LostAfter,
                    2 => Transport::CutReply,
                    3 => Transport::Slow(Duration::from_secs(self.rng.random_range(1..30))),
                    4 => Transport::Garbage,
                    5 => Transport::Status(423, String::new()),
                    6 => Transport::Status(409, "no".into()),
                    7 => Transport::Status(500, "no".into()),
                    _ => Transport::Status(503, String::new()),
                };
                let (method, path) =
                    *[("*", "/"), ("GET", "/updates"), ("POST", "/actions"), ("POST", "/actions/reboot")]
                        .choose(&mut self.rng)
                        .unwrap();
                host.script(Fault::request(method, path, transport).times(times));
            }
            4 => host.script(Fault::connection().times(times)),
            5 | 6 => {
                let worker = match self.rng.random_range(0..7) {
                    0 => Worker::Exits { status: 1, stderr: "no space".into(), overwrote: self.rng.random_bool(0.5) },
                    1 => Worker::Killed { signal: 9 },
                    2 => Worker::Vanishes,
                    3 => Worker::BadConfig,
                    4 => Worker::WritesNothing,
                    5 => Worker::LosesRecord,
                    _ => Worker::Writes(Version::new(1, 19, 0)),
                };
                host.script(Fault::command(command, worker).times(times.min(5)));
            }
            7 => {
                let seconds = self.rng.random_range(1..400);
                host.script(Fault::slow(command, Duration::from_secs(seconds)));
            }
            8 => host.script(Fault::reboot(if self.rng.random_bool(0.5) {
                RebootFault::ReplyCut
            } else {
                RebootFault::Refused { stderr: "an inhibitor".into() }
            })),
            9 => host.script(Fault::boot(BootFault::NewImageFails)),
            10 => {
                // The request to the machine is carried out while time passes.
                let (host, clean) = (host.clone(), self.rng.random_bool(0.5));
                tokio::spawn(async move { host.restart_api(clean).await });
            }
            11 => {
                let (host, foreign) = (host.clone(), self.rng.random_bool(0.5));
                tokio::spawn(
                    async move { if foreign { host.foreign_reboot().await } else { host.power_loss().await } },
                );
            }
            12 => {
                let web_fault = *[
                    WebFault::Down,
                    WebFault::Unresponsive,
                    WebFault::Rejects("503 Service Unavailable"),
                    WebFault::Rejects("401 Unauthorized"),
                    WebFault::InvalidJson,
                    WebFault::ShortStreams,
                    WebFault::ResponsesLost,
                    WebFault::DropsConditions,
                    WebFault::UnknownLines,
                ]
                .choose(&mut self.rng)
                .unwrap();
                self.bench.web.web_fault(web_fault);
            }
            13 => {
                for _ in 0..times {
                    let fault = if self.rng.random_bool(0.5) { WriteFault::ResponseLost } else { WriteFault::Refused };
                    self.bench.web.fault(fault);
                }
            }
            _ => {
                let kill = self.rng.random_bool(0.5);
                self.stop(kill).await;
            }
        }
    }

    /// Lets time pass, with a kubelet and a controller at work.
    async fn run_for(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            pass(Duration::from_secs(1)).await;
            self.kubelet().await;
            self.assert_withdrawn_is_disarmed();
            self.controller();
        }
    }

    /// Once a withdrawn desired state is acknowledged and nothing is reported as armed, no boot takes another image.
    fn assert_withdrawn_is_disarmed(&self) {
        let (view, host) = (self.bench.web.view(), self.bench.host.snapshot());
        let report = &view.status.report;
        let withdrawn = view.spec.state == HostState::Idle
            && report.observed_generation == Some(view.metadata.generation)
            && report.state == Some(HostState::Idle)
            && report.armed.is_none()
            && report.boot_id.as_ref() == Some(&host.boot_id);
        if withdrawn && host.power == Power::Up {
            assert_eq!(host.disk.next(), Some(host.disk.active), "armed after it was withdrawn: {view:#?}");
        }
    }

    /// Each permit yielded at most one armed image and one reboot, and none came without a permit.
    fn assert_one_reboot_per_permit(&self) {
        let log = self.bench.host.log();
        let mut ends: Vec<usize> = self.permits.clone();
        ends.push(log.len());
        let before = &log[..ends[0]];
        assert_eq!((arms(before), reboots(before)), (0, 0), "before any permit");
        for (number, span) in ends.windows(2).enumerate() {
            let after = &log[span[0]..span[1]];
            assert!(arms(after) <= 1, "permit {number} armed the host {} times", arms(after));
            assert!(reboots(after) <= 1, "permit {number} rebooted the host {} times", reboots(after));
        }
    }
}

async fn run(seed: u64, counts: &Counts) {
    let mut run = RandomRun::new(seed, counts).await;
    let began = Instant::now();
    let mut hour = (began, 0, 0, 0);
    while began.elapsed() < SPAN {
        let pause = Duration::from_secs(run.rng.random_range(1..180));
        run.run_for(pause).await;
        if run.rng.random_bool(0.4) {
            run.bench.web.web_fault(WebFault::None);
        }
        run.inject_random_fault().await;
        if hour.0.elapsed() >= HOUR - 3 * MINUTE {
            let now = (Instant::now(), counts.calls(), run.bench.web.traffic(), counts.lines());
            let (calls, traffic, lines) = (now.1 - hour.1, now.2 - hour.2, now.3 - hour.3);
            println!("seed {seed}: {calls} calls, {traffic} connections and requests, {lines} lines in an hour");
            assert!(calls <= CALLS && traffic <= TRAFFIC && lines <= LINES, "seed {seed}: hot");
            hour = now;
        }
    }
    run.assert_one_reboot_per_permit();
    // The faults are over: an update succeeds, if not at once.
    run.bench.host.clear_faults();
    run.bench.host.release_command();
    run.bench.web.web_fault(WebFault::None);
    while run.bench.web.remove_write_fault() {}
    run.release += 1;
    let wanted = Version::new(1, 20, run.release);
    run.bench.releases.publish(wanted.clone());
    let end = Instant::now() + 2 * HOUR;
    while run.bench.web.view().status.report.current_version.is_none_or(|version| version < wanted) {
        assert!(Instant::now() < end, "seed {seed}: it does not heal: {:#?}", run.bench.web.view());
        run.run_for(Duration::from_secs(10)).await;
    }
    run.assert_one_reboot_per_permit();
    println!(
        "seed {seed}: {} attempts, {} permits, {} reboots",
        run.attempt,
        run.permits.len(),
        reboots(&run.bench.host.log())
    );
    run.stop(false).await;
}

#[test]
fn random_faults_cause_no_repeated_action_and_update_succeeds_afterwards() {
    let seeds = match std::env::var(SEED) {
        Ok(text) => vec![text.parse().unwrap()],
        Err(_) => (0..RUNS).map(|_| rand::random()).collect(),
    };
    for seed in seeds {
        println!("{SEED}={seed} repeats this run");
        simulate(async |counts| run(seed, counts).await);
    }
}
