//! Replays the exchanges recorded from a real Bottlerocket API server against the simulated host.
//!
//! The recording was made with a stand-in for updog: the repository holds 1.20.5, 1.20.4 and 1.20.0, updog prints
//! `Starting update` without the version, and some commands were made to fail. This test injects the same faults.

use std::collections::BTreeMap;
use std::time::Duration;

use integ::host::{
    BootFault, Command, Fault, Host, HostOptions, RebootFault, Releases, UpdatesSettings, Updog, Worker, client,
};
use semver::Version;
use serde::Deserialize;
use serde_json::Value;

const RECORDING: &str = include_str!("../testdata/host-api-golden.jsonl");

#[derive(Debug, Deserialize)]
struct Exchange {
    note: String,
    method: String,
    path: String,
    req: Option<String>,
    status_line: String,
    headers: BTreeMap<String, String>,
    body: String,
}

fn patch(number: u64) -> Version {
    Version::new(1, 20, number)
}

/// Injects the faults of the recording before this exchange.
fn script(host: &Host, exchange: &Exchange) {
    let exits = |command, stderr: &str| {
        host.script(Fault::command(command, Worker::Exits { status: 1, stderr: stderr.to_owned(), overwrote: false }));
    };
    match exchange.note.as_str() {
        "refresh (slow)" => host.script(Fault::command(Command::Refresh, Worker::Waits)),
        "Available" => host.release_command(),
        "prepare fails" => exits(Command::Prepare, "Metadata error: boom\n"),
        "prepare killed by signal 9" => {
            host.script(Fault::command(Command::Prepare, Worker::Killed { signal: 9 }));
        }
        "activate fails" => exits(Command::Activate, ""),
        "refresh fails in Available" => exits(Command::Refresh, ""),
        "reboot refused" => {
            host.script(Fault::reboot(RebootFault::Refused { stderr: "Operation inhibited by test\n".to_owned() }));
            host.script(Fault::boot(BootFault::NewImageFails));
        }
        _ => {}
    }
}

/// A body with the timestamp of its command blanked, and that timestamp's length.
fn without_timestamp(body: &str) -> (String, usize) {
    let Ok(json) = serde_json::from_str::<Value>(body) else { return (body.to_owned(), 0) };
    match json.pointer("/most_recent_command/timestamp").and_then(Value::as_str) {
        Some(timestamp) => (body.replace(timestamp, "…"), timestamp.len()),
        None => (body.to_owned(), 0),
    }
}

fn comparable_headers(headers: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        // The recording omits the date; the length is compared apart from the timestamp's.
        .filter(|(name, _)| !matches!(*name, "date" | "content-length"))
        .collect()
}

#[tokio::test]
async fn simulated_host_replays_recorded_exchanges() {
    let folder = tempfile::tempdir().unwrap();
    let releases = Releases::of([5, 4, 0].map(patch));
    let mut options = HostOptions::new("golden", folder.path(), patch(0), releases);
    options.variant = "aws-k8s-1.30".to_owned();
    options.settings = UpdatesSettings::default();
    options.updog = Updog::Terse;
    let host = Host::start(options).await.unwrap();

    let mut replayed = 0;
    for line in RECORDING.lines() {
        let exchange: Exchange = serde_json::from_str(line).unwrap();
        let at = format!("exchange {}, {}", replayed + 1, exchange.note);
        script(&host, &exchange);
        let boot = host.snapshot().boot_id;
        let reply = client::call(&host.socket(), &exchange.method, &exchange.path, exchange.req.as_deref())
            .await
            .unwrap_or_else(|error| panic!("{at}: {error:#}"));

        assert_eq!(reply.status_line, exchange.status_line, "{at}");
        assert_eq!(comparable_headers(&reply.headers), comparable_headers(&exchange.headers), "{at}");
        let (body, stamp) = without_timestamp(&reply.body);
        let (recorded, recorded_stamp) = without_timestamp(&exchange.body);
        assert_eq!(body, recorded, "{at}");
        let length = |headers: &BTreeMap<String, String>| {
            headers.get("content-length").map(|length| length.parse::<usize>().unwrap())
        };
        assert_eq!(length(&reply.headers).unwrap_or(0), reply.body.len(), "{at}");
        assert_eq!(
            length(&reply.headers).map(|length| length - stamp),
            length(&exchange.headers).map(|length| length - recorded_stamp),
            "{at}"
        );

        if exchange.path == "/actions/reboot" && reply.status == 204 {
            tokio::time::timeout(Duration::from_secs(30), host.booted_after(&boot)).await.unwrap();
        }
        replayed += 1;
    }
    assert_eq!(replayed, 71);
}
