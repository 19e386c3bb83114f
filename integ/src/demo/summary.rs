//! Summary of the demo: figures, and the checks of everything that it promises.

use comfy_table::{Table, presets};
use jiff::Timestamp;
use models::shadow::Step;
use semver::Version;

use super::table::End;
use super::{SHOP, say};
use crate::bed::TestCluster;
use crate::control_plane::audit::Record;
use crate::oracle::{Field, History, Verdict, requests_by_user, service_account};

/// Measurements of a run.
pub(super) struct Run {
    pub(super) released: Timestamp,
    pub(super) ended: Timestamp,
    pub(super) host_calls: usize,
    pub(super) workload_ready: bool,
    pub(super) agents: Agents,
    pub(super) audit: Vec<Record>,
}

/// The agents as processes, over the whole rollout.
#[derive(Default)]
pub(super) struct Agents {
    /// Largest resident set of any agent at any time, KiB.
    resident: u64,
    /// Largest private memory seen of any agent, KiB.
    private: u64,
    /// Size of the program's file, bytes.
    file: u64,
    /// True for the program that ships (`make agent`).
    shipped: bool,
}

/// Most that an agent may use: KiB resident, bytes on disk.
const RESIDENT_LIMIT: u64 = 6 * 1024;
const FILE_LIMIT: u64 = 4 * 1024 * 1024;

fn field(status: &str, name: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

impl Agents {
    /// Measures the agents' processes.
    pub(super) fn sample(&mut self, bed: &TestCluster) {
        for process in bed.processes_of(deploy::Component::Agent) {
            // A process that has just ended has no such lines.
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid)).unwrap_or_default();
            self.resident = self.resident.max(field(&status, "VmHWM:"));
            self.private = self.private.max(field(&status, "RssAnon:"));
            if self.file == 0
                && let Ok(path) = std::fs::read_link(format!("/proc/{}/exe", process.pid))
            {
                self.shipped = path.components().any(|c| c.as_os_str() == "shipped");
                self.file = std::fs::metadata(&path).map_or(0, |m| m.len());
            }
        }
    }

    /// Returns true if any agent was measured.
    fn seen(&self) -> bool {
        self.resident > 0 && self.file > 0
    }

    /// Returns true if the agents stayed within their limits. Only the program that ships is measured.
    fn within_limits(&self) -> bool {
        !self.shipped || (self.resident <= RESIDENT_LIMIT && self.file <= FILE_LIMIT)
    }
}

/// Prints the figures.
pub(super) fn print(run: &Run, history: &History, target: &Version) {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header([
        "NODE",
        "FROM",
        "TO",
        "DRAINED s",
        "TOTAL s",
        "PODS MOVED",
        "RESULT",
    ]);
    let attempts = history.attempts();
    for attempt in &attempts {
        let total = attempt.ended.unwrap_or(run.ended).duration_since(attempt.started);
        table.add_row([
            attempt.node.clone(),
            attempt.from.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string),
            attempt.to.to_string(),
            format!("{:.2}", attempt.drained.as_secs_f64()),
            format!("{:.2}", total.as_secs_f64()),
            attempt.pods_moved.to_string(),
            attempt.result.clone().unwrap_or_else(|| "under way".to_owned()),
        ]);
    }
    let end = history.end();
    for (name, node) in &end.nodes {
        if attempts.iter().any(|attempt| attempt.node == *name) {
            continue;
        }
        let current = end.shadow_of(node).and_then(|shadow| shadow.status.agent.current_version.clone());
        table.add_row([
            name.clone(),
            current.map_or_else(|| "?".to_owned(), |version| version.to_string()),
            target.to_string(),
            String::new(),
            String::new(),
            String::new(),
            "not begun".to_owned(),
        ]);
    }
    say(&format!("\n{table}"));
    let span = run.ended.duration_since(run.released).as_secs_f64();
    say(&format!("Release {target} to the last node idle on it: {span:.1} s"));
    let parts = requests_by_user(&run.audit, run.released, run.ended);
    let of = |namespace: &str, name: &str| {
        parts.get(&service_account(namespace, name)).map_or(0, |by| by.values().sum::<usize>())
    };
    let (system, agents) = (models::names::SYSTEM_NAMESPACE, models::names::AGENT_NAMESPACE);
    let (controller, apiserver) = (of(system, models::names::CONTROLLER), of(system, models::names::APISERVER));
    let agent = of(agents, models::names::AGENT);
    say(&format!(
        "Kubernetes API requests: {} (controller {controller}, web API {apiserver}, agents {agent}); host API calls: {}",
        controller + apiserver + agent,
        run.host_calls
    ));
    let build =
        if run.agents.shipped { "as shipped" } else { "a debug build; `make demo` measures the one that ships" };
    say(&format!(
        "Largest agent: {:.1} MiB resident at its peak ({:.1} private), program {:.1} MiB ({build})",
        run.agents.resident as f64 / 1024.0,
        run.agents.private as f64 / 1024.0,
        run.agents.file as f64 / 1048576.0
    ));
}

/// Checks everything that the demo promises and prints what held.
pub(super) fn held(
    run: &Run,
    history: &History,
    verdict: &Verdict,
    target: &Version,
    end: &End,
    expects_freeze: bool,
) -> bool {
    let world = history.end();
    let on_target = world.shadows.values().filter(|s| s.status.agent.current_version.as_ref() == Some(target)).count();
    let schedulable = world.nodes.values().all(|n| !n.claimed() && !n.fields.contains_key(&Field::Unschedulable));
    let idle = world.shadows.values().all(|s| s.step().is_none_or(|s| s == Step::Staged));
    let reached = if expects_freeze {
        (*end == End::Frozen, "the failed boot froze the rollout and every node was released".to_owned())
    } else {
        (*end == End::Updated && on_target == world.nodes.len(), format!("every node is on {target}"))
    };
    let shortfalls = history.shortfalls(SHOP);
    let checks = [
        reached,
        (schedulable && idle, "every node is schedulable and idle".to_owned()),
        (run.workload_ready, "every pod of the workload is Ready".to_owned()),
        (shortfalls.is_empty(), "the workload's budget was kept at every revision of the server's history".to_owned()),
        (
            verdict.violations.is_empty(),
            format!("the safety properties held at each of {} changes", verdict.stats.changes),
        ),
        if run.agents.seen() && !run.agents.shipped {
            (true, "agents were measured; a debug build says nothing about their limits".to_owned())
        } else {
            (
                run.agents.seen() && run.agents.within_limits(),
                "the agent stays within 6 MiB resident and 4 MiB on disk".to_owned(),
            )
        },
    ];
    say("");
    for (holds, text) in &checks {
        say(&format!("  {} {text}", if *holds { "ok  " } else { "FAIL" }));
    }
    for violation in &verdict.violations {
        say(&format!("       {violation}"));
    }
    for shortfall in &shortfalls {
        say(&format!("       {shortfall:?}"));
    }
    checks.iter().all(|(holds, _)| *holds)
}
