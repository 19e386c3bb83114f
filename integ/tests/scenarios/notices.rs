//! Notices: a rollout with a freeze and with receivers that hang, refuse and have no address, under leaders that are killed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use integ::host::{BootFault, Fault};
use models::condition::ConditionStatus;
use models::names::{NOTICES_SECRET, OPERATOR_NAME, RESUME_ANNOTATION, SYSTEM_NAMESPACE};
use models::operator::{FROZEN, NOTICES_SENT};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::interfere::{poll, signal};
use crate::leaders::{leader, two_controllers};
use crate::plugin::{output_text, plugin};
use crate::support::{ScenarioContext, run, status};

/// A part of the receivers' addresses that no log may have.
const SECRET_PATH: &str = "hook-7f3a";

/// The answer of a receiver.
#[derive(Clone, Copy, Default, PartialEq)]
enum Answer {
    #[default]
    Taken,
    /// It refuses for now.
    Busy,
    /// It sends nothing, and keeps the connection.
    Nothing,
}

/// A receiver of notices.
struct Receiver {
    url: String,
    state: Arc<Mutex<(Answer, Vec<Value>)>>,
    task: JoinHandle<()>,
}

impl Receiver {
    async fn start(answer: Answer) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/{SECRET_PATH}", listener.local_addr()?);
        let state = Arc::new(Mutex::new((answer, Vec::new())));
        let served = state.clone();
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(event) = read(&mut stream).await else { continue };
                let answer = {
                    let mut state = served.lock().unwrap_or_else(PoisonError::into_inner);
                    if state.0 == Answer::Taken {
                        state.1.push(event);
                    }
                    state.0
                };
                let status = match answer {
                    Answer::Taken => "204 No Content",
                    Answer::Busy => "503 Service Unavailable",
                    Answer::Nothing => {
                        open.push(stream);
                        continue;
                    }
                };
                let reply = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        });
        Ok(Self { url, state, task })
    }

    fn answer(&self, answer: Answer) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = answer;
    }

    /// The notices that it has taken, by their ids. The same id is the same event.
    fn taken(&self) -> BTreeMap<String, Value> {
        let taken = self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        let mut by_id = BTreeMap::new();
        for event in taken {
            let id = event["id"].as_str().unwrap_or_default().to_owned();
            let other = by_id.insert(id, event.clone());
            assert!(other.as_ref().is_none_or(|other| *other == event), "one id for {other:?} and {event}");
        }
        by_id
    }

    /// Waits until it has so many notices of an event.
    async fn until(&self, event: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let type_ = format!("aws.bottlerocket.brupop.{event}");
        poll(&format!("{count} notices of {event}"), async || {
            let of: Vec<Value> = self.taken().into_values().filter(|notice| notice["type"] == type_).collect();
            Ok((of.len() >= count).then_some(of))
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads one request and returns its body, if it is a CloudEvent.
async fn read(stream: &mut TcpStream) -> Option<Value> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok())?;
        if body.len() >= length {
            let is_event = head.contains("content-type: application/cloudevents+json");
            return serde_json::from_str(body).ok().filter(|_| is_event);
        }
    }
}

/// Creates the Secret with these addresses and sets a policy with a receiver for each, and one without an address.
async fn configure(ctx: &ScenarioContext, receivers: &[(&str, &Receiver)]) -> anyhow::Result<()> {
    let literals: Vec<String> =
        receivers.iter().map(|(name, receiver)| format!("--from-literal={name}={}", receiver.url)).collect();
    let create = ["-n", SYSTEM_NAMESPACE, "create", "secret", "generic", NOTICES_SECRET];
    ctx.kubectl(&create.into_iter().chain(literals.iter().map(String::as_str)).collect::<Vec<_>>()).await?;
    let names = receivers.iter().map(|(name, _)| *name).chain(["forgotten"]);
    let receivers: Vec<_> = names.map(|name| json!({"name": name, "format": "CloudEvents", "urlKey": name})).collect();
    ctx.policy(&json!({"notices": {"receivers": receivers}})).await?;
    let problem = ctx.until_operator(NOTICES_SENT, ConditionStatus::False).await?;
    assert_eq!(problem.reason, "ReceiverUnusable");
    assert!(problem.message.contains("forgotten: the Secret brupop-notices"), "{}", problem.message);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn notices_of_frozen_rollout_survive_killed_leader_and_hanging_receiver() -> anyhow::Result<()> {
    let good = Receiver::start(Answer::Busy).await?;
    let hanging = Receiver::start(Answer::Nothing).await?;
    let mut options = two_controllers(2);
    options.policy["failurePolicy"] = json!({"backOff": "1s"});
    let ending = run(options, async |ctx| {
        ctx.install().await?;
        configure(ctx, &[("good", &good), ("hanging", &hanging)]).await?;
        ctx.bed.member("node-1")?.host.script(Fault::boot(BootFault::NewImageFails));
        ctx.release();
        ctx.until_operator(FROZEN, ConditionStatus::True).await?;
        let events =
            |world: &_| status(world).notices.map(|n| n.pending.into_iter().map(|n| n.event).collect::<Vec<_>>());
        let world = ctx
            .until("both notices wait", |world| {
                events(world)
                    .is_some_and(|events| ["RolloutStarted", "Frozen"].iter().all(|e| events.iter().any(|is| is == e)))
            })
            .await?;
        assert!(status(&world).notices.unwrap_or_default().pending.iter().all(|n| n.receivers.len() == 3));
        assert!(good.taken().is_empty());

        let old = leader(ctx).await?;
        signal(std::slice::from_ref(&old), Signal::SIGKILL);
        good.answer(Answer::Taken);
        let frozen = good.until("Frozen", 1).await?;
        good.until("RolloutStarted", 1).await?;
        assert_eq!(frozen[0]["data"]["nodes"], json!(["node-1"]));
        assert_eq!(frozen[0]["data"]["command"], "kubectl brupop resume --failures 1.20.5");
        let cause = frozen[0]["data"]["cause"].as_str().unwrap_or_default();
        assert!(cause.contains("BootFellBack on node-1") && !cause.contains("kubectl"), "{cause}");

        let resume = format!("{RESUME_ANNOTATION}=now");
        ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "annotate", "bruo", OPERATOR_NAME, &resume]).await?;
        ctx.updated().await?;
        // The first record was stopped by the resume, the second one completed.
        let ended = good.until("RolloutEnded", 2).await?;
        let phases: BTreeSet<_> = ["Stopped", "Completed"]
            .into_iter()
            .filter(|phase| ended.iter().any(|e| e["data"]["cause"].to_string().contains(&format!("({phase})"))))
            .collect();
        assert_eq!(phases.len(), 2, "{ended:?}");
        good.until("RolloutStarted", 2).await?;
        ctx.until("nothing waits for the receiver that answers", |world| {
            let pending = status(world).notices.unwrap_or_default().pending;
            pending.iter().all(|notice| !notice.receivers.iter().any(|name| name == "good"))
        })
        .await?;
        let count = |event: &str| good.taken().values().filter(|e| e["type"].to_string().contains(event)).count();
        let counts = ["RolloutStarted", "Frozen", "RolloutEnded"].map(count);
        assert_eq!((counts, good.taken().len()), ([2, 1, 2], 5), "each event has one id: {:#?}", good.taken());
        assert!(hanging.taken().is_empty());

        let alone = json!([{"name": "good", "format": "CloudEvents", "urlKey": "good", "events": ["Frozen"]}]);
        ctx.policy(&json!({"notices": {"receivers": alone}})).await?;
        let tested = plugin(ctx, &["test-notices"]).await?;
        let text = output_text(&tested);
        assert!(tested.status.success() && text.contains("the notice was taken by good"), "{text}");
        good.until("Test", 1).await?;
        for log in ctx.bed.log_files() {
            let text = std::fs::read_to_string(&log)?;
            assert!(!text.contains(SECRET_PATH), "{} has an address", log.display());
        }
        Ok(())
    })
    .await?;
    let updated = ending.history.attempts().iter().filter(|attempt| attempt.updated()).count();
    assert_eq!(updated, 2);
    Ok(())
}
