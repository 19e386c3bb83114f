//! The stand-in against the recording of a real node: `tests/vm/recording.rs` makes it, on the same course. Every difference is in
//! the table of docs/testing.md, with its reason.

use integ::host::Timings;
use integ::node_recording::course::{Course, Machine as CourseMachine, SHELL};
use integ::node_recording::{Difference, compare, read};

use super::*;

/// A simulated host and its kubelet.
struct Simulated {
    host: Host,
    bed: PathBuf,
}

impl CourseMachine for Simulated {
    async fn reboot(&mut self) -> anyhow::Result<()> {
        self.host.foreign_reboot().await;
        Ok(())
    }

    async fn cut_power(&mut self) -> anyhow::Result<()> {
        self.host.power_off();
        Ok(())
    }

    async fn restore_power(&mut self) -> anyhow::Result<()> {
        self.host.power_on();
        Ok(())
    }

    async fn token(&self, pod_uid: &str) -> anyhow::Result<String> {
        let short: String = pod_uid.chars().take(8).collect();
        Ok(std::fs::read_to_string(glob_one(&self.bed.join("k"), &short).join("v/token/t"))?)
    }
}

#[test]
fn stand_in_does_what_a_real_kubelet_was_recorded_to_do() {
    let shared = shared();
    let stand_in = shared.runtime.block_on(async {
        let control_plane = &shared.control_plane;
        let (node, root) = ("node-recorded", control_plane.dir().join("r"));
        let mut options = HostOptions::new(node, &root, semver::Version::new(1, 20, 0), Releases::default());
        // Longer than the grace period of a silent node, as on a real one.
        options.timings = Timings { boot: Duration::from_secs(15), ..Timings::instant() };
        let host = Host::start(options).await.unwrap();
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        let mut options = kubelet_options(control_plane, node, host.machine(), shared.addresses.node(number));
        options.images = Images::new().map(SHELL, "/bin/sh");
        let kubelet = Kubelet::start(options).await.unwrap();
        let mut machine = Simulated { host, bed: control_plane.dir().to_owned() };
        let (client, limit, quiet) = (control_plane.client(), LONG, Duration::from_secs(3));
        let mut course = Course { client, node, machine: &mut machine, limit, quiet };
        let watch = course.watch();
        course.run(&watch).await.unwrap();
        kubelet.stop().await;
        watch.lines()
    });
    let real = read(include_str!("../../testdata/real-node.jsonl")).unwrap();
    let (found, mut known) = (compare(&real, &stand_in), known());
    let rows = found.iter().filter(|difference| !known.contains(difference)).map(row);
    let rows: Vec<String> = rows.collect();
    assert!(rows.is_empty(), "differences that docs/testing.md does not have:\n{}", rows.join("\n"));
    known.retain(|difference| !found.contains(difference));
    let rows: Vec<String> = known.iter().map(row).collect();
    assert!(rows.is_empty(), "docs/testing.md has differences that are none:\n{}", rows.join("\n"));
}

/// The header of the table.
const HEADER: &str = "| step | object | field | real node | stand-in | reason |\n";

fn row(difference: &Difference) -> String {
    let Difference { step, object, field, real, stand_in } = difference;
    format!("| {step} | {object} | {field} | {real} | {stand_in} | |")
}

/// The differences of the table: a row has one or more steps, objects and fields, separated by commas.
fn known() -> Vec<Difference> {
    let (_, table) = include_str!("../../../docs/testing.md").split_once(HEADER).unwrap();
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let mut known = Vec::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [steps, objects, fields, real, stand_in, reason]: [&str; 6] = cells.try_into().unwrap();
        assert!(!reason.is_empty(), "without a reason: {row}");
        for step in steps.split(", ") {
            for object in objects.split(", ") {
                for field in fields.split(", ") {
                    let [step, object, field, real, stand_in] =
                        [step, object, field, real, stand_in].map(str::to_owned);
                    known.push(Difference { step, object, field, real, stand_in });
                }
            }
        }
    }
    known
}
