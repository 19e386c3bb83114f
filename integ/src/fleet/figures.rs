//! The figures of a run: rows, charts and tables of its section.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::bench::{Bench, Measured, Phase, Turns};
use super::metrics::median_bound;
use super::outcome::Outcome;
use super::page::Section;
use super::requests::{Part, RequestKind};
use crate::bed::Programs;

/// Names of the operator's programs.
const CONTROLLER: &str = "brupop-controller";
const WEB_API: &str = "brupop-apiserver";

/// Limits of the issue that asked for the bench.
const MOST_REQUESTS: &str = "30";
const MOST_CONTROLLER: &str = "150 MiB";
const MOST_WEB_API: &str = "200 MiB";
const MOST_TURN: &str = "20 ms";
const MOST_STATUS: &str = "256 KiB";
const MOST_PEAK: &str = "3";
const MOST_STREAMS: &str = "10 s";
const MOST_MAKESPAN: &str = "1.1";

const KIBIBYTE: f64 = 1024.0;

/// Returns the section of a run.
pub(super) fn section(bench: &Bench, measured: &Measured) -> Section {
    let options = &bench.options;
    let text = format!(
        "{}\n\nHosts: download {} s, reboot {} s. Soak {} s. A pod is Ready {} s after it is bound, and ends within {} s. {} Deployments of {} \
         pods, each with a PodDisruptionBudget of {} %. {} agents. Kubelets {} when their hosts shut down.",
        machine(),
        options.download,
        options.reboot,
        options.soak,
        options.pod_start,
        options.pod_end,
        if options.pods_per_node == 0 { 0 } else { options.workload().0 },
        options.workload().1,
        options.budget,
        options.agents(),
        if options.abrupt { "notice nothing" } else { "end their pods" }
    );
    let mut section = Section::new(options.run(), options.title(), text);
    add_start(&mut section, measured);
    add_idle(&mut section, bench, measured);
    if let Some((phase, before, after)) = &measured.rollout {
        add_rollout(&mut section, bench, phase, measured);
        section.row("a turn of the controller in the rollout, at the median", MOST_TURN, turn(before, after));
        add_requests(&mut section, bench, phase);
        add_charts(&mut section, bench, phase);
    }
    if let Some(outcome) = &measured.outcome {
        add_outcome(&mut section, outcome);
    }
    add_faults(&mut section, bench, measured);
    section
}

fn add_start(section: &mut Section, measured: &Measured) {
    section.row("all Nodes registered after", "", seconds(measured.registered));
    section.row("all agents have reported after another", "", seconds(measured.reported));
    if let Some(workload) = measured.workload {
        section.row("all pods of the workload Ready after", "", seconds(workload));
    }
}

fn add_idle(section: &mut Section, bench: &Bench, measured: &Measured) {
    let phase = &measured.idle;
    let table = bench.requests.table(phase.from.at, phase.to.at);
    let minutes = phase.seconds() / 60.0;
    let all: usize = table.values().sum();
    section.row("idle: requests to the API server a minute", "", format!("{:.1}", all as f64 / minutes));
    let (leader, web_api) = memory(bench, phase);
    section.row("idle: resident memory of a controller, the larger one", MOST_CONTROLLER, leader);
    section.row("idle: resident memory of the web API, all replicas", MOST_WEB_API, web_api);
    section.row(
        "idle: a turn of the controller, at the median",
        MOST_TURN,
        turn(&measured.idle_turns.0, &measured.idle_turns.1),
    );
    section.row("idle: processors used by the run, and idle", "", processors(bench, phase));
    section.details += "Requests of the idle fleet a minute:\n\n";
    section.details += &requests_table(&table, minutes);
}

fn add_rollout(section: &mut Section, bench: &Bench, phase: &Phase, measured: &Measured) {
    let makespan = bench.options.makespan();
    let limit = makespan.limit().as_secs_f64();
    section.row("makespan, as a multiple of its limit", MOST_MAKESPAN, format!("{:.3}", phase.seconds() / limit));
    section.row("makespan", "", format!("{:.1} s", phase.seconds()));
    section.row("its limit", "", format!("{limit:.1} s: {makespan}"));
    section.row("processors: used by the run, and idle", "", processors(bench, phase));
    let (leader, web_api) = memory(bench, phase);
    section.row("resident memory of a controller, at most", MOST_CONTROLLER, leader);
    section.row("resident memory of the web API, all replicas, at most", MOST_WEB_API, web_api);
    let status = bench.course.largest_status(phase.from.instant) as f64 / KIBIBYTE;
    section.row("size of the operator's status, at most", MOST_STATUS, format!("{status:.1} KiB"));
    let reboots = &measured.report;
    section.row(
        "reboots of a host, on average and at most",
        "1",
        format!("{:.3}, {}", reboots.reboots as f64 / bench.options.nodes as f64, reboots.most_reboots),
    );
    let _ = write!(
        section.details,
        "\nDuration of each step in seconds, at the median and at most:\n\n| step | median | most |\n| --- | --- | --- |\n"
    );
    for (step, median, most) in bench.course.durations(phase.from.instant) {
        let _ = writeln!(section.details, "| {step} | {median:.1} | {most:.1} |");
    }
    let _ = writeln!(section.details, "\nCondition `Healthy` of the shadows at the end: {}.", bench.course.healthy());
    section.details += "\nProcessor time of each program in the rollout, in seconds: ";
    let times = bench.samples.processor_times(phase.from.instant, phase.to.instant);
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by(|one, other| other.1.total_cmp(&one.1));
    let times: Vec<_> = times.iter().map(|(program, seconds)| format!("{program} {seconds:.1}")).collect();
    section.details += &format!("{}.\n", times.join(", "));
    let calls: usize = reboots.calls.values().sum();
    let _ = writeln!(
        section.details,
        "\nCalls of a host's API from its start to the end of the rollout: {:.1}. Requests of kubelets that were repeated, and agents that ended: {}.",
        calls as f64 / bench.options.nodes as f64,
        reboots.failures
    );
}

fn add_requests(section: &mut Section, bench: &Bench, phase: &Phase) {
    let table = bench.requests.table(phase.from.at, phase.to.at);
    let nodes = bench.options.nodes as f64;
    let all: usize = table.values().sum();
    let refused: usize = table.iter().filter(|(kind, _)| kind.error == Some(429)).map(|(_, count)| count).sum();
    section.row(
        "requests of a node's update, all of the rollout's",
        MOST_REQUESTS,
        format!("{:.1}", all as f64 / nodes),
    );
    section.row("of them evictions that a budget refused", "", format!("{:.2}", refused as f64 / nodes));
    let evictions = table
        .iter()
        .filter(|(kind, _)| kind.what == "pods/eviction" && kind.error.is_none())
        .map(|(_, count)| count)
        .sum::<usize>();
    section.row("of them evictions that were accepted", "", format!("{:.2}", evictions as f64 / nodes));
    section.row(
        "requests of a node's update without evictions",
        "27",
        format!("{:.1}", (all - refused - evictions) as f64 / nodes),
    );
    section.details += "\nRequests of the rollout, for each node:\n\n";
    section.details += &requests_table(&table, nodes);
}

fn requests_table(table: &BTreeMap<RequestKind, usize>, divisor: f64) -> String {
    let mut text = "| request | by | answer | number |\n| --- | --- | --- | --- |\n".to_owned();
    for (RequestKind { part, verb, what, error }, count) in table {
        let answer = error.map_or_else(|| "–".to_owned(), |code| code.to_string());
        let _ = writeln!(text, "| `{verb} {what}` | {} | {answer} | {:.2} |", part.name(), *count as f64 / divisor);
    }
    text
}

fn add_charts(section: &mut Section, bench: &Bench, phase: &Phase) {
    let (from, to) = (phase.from, phase.to);
    let requests = |part| bench.requests.per_second(from.at, to.at, Some(part));
    section.chart(
        "requests",
        "Requests to the API server a second, in the rollout",
        vec![("controller", requests(Part::Controller)), ("web API", requests(Part::WebApi))],
        &[],
    );
    let memory = |program: &str, largest: bool| {
        let all = bench.samples.memory(program, from.instant, to.instant);
        all.into_iter().map(|(one, all)| if largest { one } else { all }).collect::<Vec<_>>()
    };
    section.chart(
        "memory",
        "Resident memory in MiB, in the rollout",
        vec![("controller", memory(CONTROLLER, true)), ("web API, all", memory(WEB_API, false))],
        &[],
    );
    let slots = bench.course.slots(from.instant, to.instant);
    section.chart("slots", "Nodes with a slot, in the rollout", vec![("slots", slots)], &[]);
}

fn add_outcome(section: &mut Section, outcome: &Outcome) {
    let events: usize = outcome.events.values().sum();
    let reasons: Vec<_> = outcome.events.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    section.row("Events of the rollout", "", format!("{events}: {}", reasons.join(", ")));
    let Outcome { records, pages, largest, all, .. } = outcome;
    section.row(
        "history: largest object",
        MOST_STATUS,
        format!("{:.1} KiB, of {records} records and {pages} pages", *largest as f64 / KIBIBYTE),
    );
    section.row("history: all of it", "48 MiB", format!("{:.1} KiB", *all as f64 / KIBIBYTE));
}

fn add_faults(section: &mut Section, bench: &Bench, measured: &Measured) {
    if let Some(kill) = &measured.kill {
        let seen = format!("{:.1} s: {} of {}", kill.back_after.as_secs_f64(), kill.lost, kill.before);
        section.row("a killed replica of the web API: its streams are open again after", MOST_STREAMS, seen);
    }
    let Some(outage) = &measured.outage else { return };
    let (peak, steady, seconds) = outage.peak();
    let ratio = if steady > 0.0 { peak / steady } else { 0.0 };
    section.row(
        format!(
            "outage of the API server of {} s: peak of the requests, as a multiple of the mean",
            bench.options.outage
        ),
        MOST_PEAK,
        format!("{ratio:.1}: {peak:.0} a second, {steady:.1} in the {seconds} s until the fleet was quiet"),
    );
    let _ = write!(section.details, "\nRequests in the {} s after the outage:\n\n", outage.recovery.len());
    section.details += &requests_table(&bench.requests.table(outage.back, outage.to), 1.0);
    let requests = |part| bench.requests.per_second(outage.from, outage.to, Some(part));
    let back = outage.back.duration_since(outage.from).as_secs_f64();
    let began = back - bench.options.outage as f64;
    section.chart(
        "outage",
        "Requests to the API server a second, around an outage of it",
        vec![("controller", requests(Part::Controller)), ("web API", requests(Part::WebApi))],
        &[(began, "outage"), (back, "end")],
    );
}

/// Share of the processors that the processes of the run used, and the share that was idle: other programs may use the rest.
fn processors(bench: &Bench, phase: &Phase) -> String {
    let (from, to) = (phase.from.instant, phase.to.instant);
    format!("{}, {}", percent(bench.samples.used(from, to)), percent(bench.samples.idle(from, to)))
}

/// Largest resident memory of a controller, and of all replicas of the web API.
fn memory(bench: &Bench, phase: &Phase) -> (String, String) {
    let most = |program: &str| {
        let all = bench.samples.memory(program, phase.from.instant, phase.to.instant);
        all.into_iter().fold((0.0_f64, 0.0_f64), |(one, all), it| (one.max(it.0), all.max(it.1)))
    };
    (format!("{:.1} MiB", most(CONTROLLER).0), format!("{:.1} MiB", most(WEB_API).1))
}

/// The bucket in which the median of the turns between two reads is.
fn turn(before: &Turns, after: &Turns) -> String {
    median_bound(before, after)
        .map_or_else(|| "not measured".to_owned(), |bound| format!("at most {:.1} ms", bound * 1_000.0))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Describes the machine, and the build of this program.
fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_once(':')).map_or("unknown", |(_, value)| value.trim()).to_owned()
    };
    let (processors, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let count = processors.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    let total = field(&memory, "MemTotal");
    let total: f64 = total.split(' ').next().and_then(|kilobytes| kilobytes.parse().ok()).unwrap_or_default();
    format!(
        "Machine: {count} processors ({}), {:.0} GiB of memory, Linux {}; the bench itself is a {} build, the controller has {:.1} MB.",
        field(&processors, "model name"),
        total / KIBIBYTE / KIBIBYTE,
        kernel.trim(),
        if cfg!(debug_assertions) { "debug" } else { "release" },
        Programs::find().and_then(|found| Ok(std::fs::metadata(found.controller)?.len())).unwrap_or_default() as f64
            / 1e6
    )
}
