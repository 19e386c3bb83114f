//! The stand-in against the recording of a real node: `tests/vm/recording.rs` makes it, on the same course.

use integ::host::Timings;
use integ::node_recording::course::{Course, Machine as CourseMachine, SHELL};
use integ::node_recording::{compare, read};

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
        let mut options = KubeletOptions::new(
            control_plane.client_as(&format!("system:node:{node}"), &["system:nodes"]).unwrap(),
            control_plane.url(),
            control_plane.ca_file(),
            control_plane.dir(),
            host.machine(),
            shared.addresses.node(number),
        );
        options.images = Images::new().map(SHELL, "/bin/sh");
        let kubelet = Kubelet::start(options).await.unwrap();
        let mut machine = Simulated { host, bed: control_plane.dir().to_owned() };
        let (client, limit, quiet) = (control_plane.client(), LONG, Duration::from_secs(3));
        let lines = Course { client, node, machine: &mut machine, limit, quiet }.run().await.unwrap();
        kubelet.stop().await;
        lines
    });
    if let Some(path) = std::env::var_os("BRUPOP_WRITE_STAND_IN") {
        std::fs::write(path, integ::node_recording::write(&stand_in).unwrap()).unwrap();
    }
    let real = read(include_str!("../../testdata/real-node.jsonl")).unwrap();
    let differences = compare(&real, &stand_in);
    assert!(differences.is_empty(), "{differences:#?}");
}
