//! Contents of one stream: the agent's current shadow, then its changes.

use std::time::Duration;

use actix_web::web::Bytes;
use jiff::Timestamp;
use models::resource_version::newer;
use models::time::between;
use models::wire::WatchLine;
use tokio::sync::watch;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until};

use crate::agents::Presence;
use crate::auth::identity::{AgentIdentity, owns};
use crate::refusal::Refusal;
use crate::store::Seen;
use crate::streams::Place;

/// Heartbeat interval of a quiet stream. Agents and the load balancers in between take a minute of silence for the end.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);

/// Reaction of a stream to the known state of the shadow.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// None: nothing that the agent has to know.
    Quiet,
    /// Send this.
    Line(WatchLine),
    /// End: the stream could continue only with an older state. The agent reconnects and starts over.
    SetBack,
}

/// State of one stream.
#[derive(Debug)]
pub(crate) struct Follower {
    agent: AgentIdentity,
    sent: Sent,
    /// The newest state seen: uid and resource version.
    newest: Option<(String, String)>,
    /// The uid of a shadow that is not this agent's, logged once.
    refused: Option<String>,
}

#[derive(Debug, PartialEq)]
enum Sent {
    Nothing,
    Absent,
    Shadow { etag: String },
}

impl Follower {
    pub(crate) fn new(agent: AgentIdentity) -> Self {
        Self { agent, sent: Sent::Nothing, newest: None, refused: None }
    }

    /// Returns the reaction, and the refusal if the shadow is newly found to be another agent's.
    pub(crate) fn follow(&mut self, seen: &Seen) -> (Change, Option<Refusal>) {
        let shadow = match seen {
            // Unknown is not absent: an agent without a shadow may abandon its attempt.
            Seen::Unknown | Seen::Unreadable => return (Change::Quiet, None),
            Seen::Absent => return (self.absent(), None),
            Seen::Present(shadow) => shadow,
        };
        if let Err(refusal) = owns(&self.agent, shadow) {
            let new = self.refused.as_deref() != Some(shadow.uid());
            self.refused = Some(shadow.uid().to_owned());
            // The shadow that was sent is gone, since this one has taken its name. Where nothing was sent, this copy
            // may predate the agent's own node: unknown is not absent.
            let change = if self.sent == Sent::Nothing { Change::Quiet } else { self.absent() };
            return (change, new.then_some(refusal));
        }
        if let Some((uid, newest)) = &self.newest
            && uid == shadow.uid()
            && newer(newest, shadow.resource_version())
        {
            return (Change::SetBack, None);
        }
        self.newest = Some((shadow.uid().to_owned(), shadow.resource_version().to_owned()));
        let sent = Sent::Shadow { etag: shadow.view.etag.clone() };
        if self.sent == sent {
            return (Change::Quiet, None);
        }
        self.sent = sent;
        (Change::Line(WatchLine::Shadow { object: Box::new(shadow.view.clone()) }), None)
    }

    fn absent(&mut self) -> Change {
        if self.sent == Sent::Absent {
            return Change::Quiet;
        }
        self.sent = Sent::Absent;
        Change::Line(WatchLine::Absent)
    }
}

/// Returns the age limit of a stream: a share (0 to 1) between half of the maximum age and all of it, and no longer
/// than the token that it was opened with.
pub(crate) fn age(longest: Duration, share: f64, token_expires: Option<Timestamp>, now: Timestamp) -> Duration {
    let age = longest.mul_f64(0.5 + 0.5 * share.clamp(0.0, 1.0));
    token_expires.map_or(age, |expires| between(now, expires).min(age))
}

/// Conditions that end a stream.
pub(crate) struct Lifetime {
    /// Maximum age.
    pub(crate) age: Duration,
    /// Set at shutdown, to the time at which the last stream ends.
    pub(crate) shutdown: watch::Receiver<Option<Instant>>,
    /// This stream's end until then, as a share of the remaining time (0 to 1).
    pub(crate) turn: f64,
    /// The place among the streams of the node.
    pub(crate) place: Place,
    /// The agent among those that are connected, which it is for as long as this lives.
    pub(crate) _presence: Presence,
}

/// One open stream.
pub(crate) struct AgentStream<F> {
    follower: Follower,
    seen: watch::Receiver<Seen>,
    lifetime: Lifetime,
    leaving: bool,
    ends: Instant,
    /// True to send a line before any event, to show that the stream is open.
    greet: bool,
    heartbeat: Interval,
    /// Called for each shadow that is found to be another agent's.
    on_refusal: F,
}

impl<F: FnMut(Refusal)> AgentStream<F> {
    pub(crate) fn new(follower: Follower, seen: watch::Receiver<Seen>, lifetime: Lifetime, on_refusal: F) -> Self {
        let now = Instant::now();
        let mut heartbeat = interval_at(now + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ends = now + lifetime.age;
        Self { follower, seen, lifetime, leaving: false, ends, greet: true, heartbeat, on_refusal }
    }

    /// Returns the next line; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<WatchLine> {
        loop {
            if !self.leaving
                && let Some(last) = *self.lifetime.shutdown.borrow_and_update()
            {
                self.leaving = true;
                let (now, turn) = (Instant::now(), self.lifetime.turn.clamp(0.0, 1.0));
                self.ends = self.ends.min(now + last.saturating_duration_since(now).mul_f64(turn));
            }
            if Instant::now() >= self.ends {
                return None;
            }
            let seen = self.seen.borrow_and_update().clone();
            let (change, refusal) = self.follower.follow(&seen);
            if let Some(refusal) = refusal {
                (self.on_refusal)(refusal);
            }
            match change {
                Change::Line(line) => {
                    self.greet = false;
                    self.heartbeat.reset();
                    return Some(line);
                }
                Change::SetBack => return None,
                Change::Quiet if std::mem::take(&mut self.greet) => return Some(WatchLine::Heartbeat),
                Change::Quiet => {}
            }
            tokio::select! {
                changed = self.seen.changed() => changed.ok()?,
                // An error means that the server is gone already.
                changed = self.lifetime.shutdown.changed(), if !self.leaving => changed.ok()?,
                _ = &mut self.lifetime.place.displaced => return None,
                _ = self.heartbeat.tick() => return Some(WatchLine::Heartbeat),
                () = sleep_until(self.ends) => return None,
            }
        }
    }

    /// Returns the next line as bytes.
    pub(crate) async fn next_bytes(&mut self) -> Option<Result<Bytes, serde_json::Error>> {
        let line = self.next().await?;
        Some(serde_json::to_vec(&line).map(|mut bytes| {
            bytes.push(b'\n');
            Bytes::from(bytes)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::auth::identity::tests::agent;
    use crate::metrics::Metrics;
    use crate::shadow::tests::shadow;
    use crate::streams::Streams;

    fn present(uid: &str, resource_version: u64, generation: i64, status: Value) -> Seen {
        Seen::Present(Arc::new(shadow(uid, resource_version, generation, status)))
    }

    fn line(change: Change) -> Option<(String, i64)> {
        match change {
            Change::Line(WatchLine::Shadow { object }) => Some((object.metadata.uid, object.metadata.generation)),
            _ => None,
        }
    }

    #[test]
    fn stream_sends_shadow_first_and_then_only_relevant_changes() {
        let mut follower = Follower::new(agent());
        let mut sent = |seen| line(follower.follow(&seen).0);
        assert_eq!(sent(present("u", 1, 1, json!({"state": "Idle"}))), Some(("u".into(), 1)));
        assert_eq!(sent(present("u", 1, 1, json!({"state": "Idle"}))), None);
        assert_eq!(sent(present("u", 2, 1, json!({"state": "Idle", "record": {"failures": 1}}))), None);
        assert_eq!(sent(present("u", 3, 1, json!({"state": "StagedUpdate"}))), Some(("u".into(), 1)));
        assert_eq!(sent(present("u", 4, 2, json!({"state": "StagedUpdate"}))), Some(("u".into(), 2)));
        assert_eq!(sent(present("v", 5, 2, json!({"state": "StagedUpdate"}))), Some(("v".into(), 2)));
    }

    #[test]
    fn deleted_shadow_is_reported_absent_once_and_successor_is_sent() {
        let mut follower = Follower::new(agent());
        assert_eq!(follower.follow(&Seen::Absent).0, Change::Line(WatchLine::Absent));
        assert_eq!(follower.follow(&Seen::Absent).0, Change::Quiet);
        assert!(line(follower.follow(&present("u", 9, 1, json!({}))).0).is_some());
        assert_eq!(follower.follow(&Seen::Absent).0, Change::Line(WatchLine::Absent));
        assert!(line(follower.follow(&present("v", 10, 1, json!({}))).0).is_some());
    }

    #[test]
    fn unknown_or_unreadable_shadow_is_not_reported_absent() {
        let mut follower = Follower::new(agent());
        assert_eq!(follower.follow(&Seen::Unknown).0, Change::Quiet);
        assert!(line(follower.follow(&present("u", 9, 1, json!({}))).0).is_some());
        assert_eq!(follower.follow(&Seen::Unreadable).0, Change::Quiet);
    }

    #[test]
    fn stream_ends_when_shadow_is_set_back() {
        let mut follower = Follower::new(agent());
        assert!(line(follower.follow(&present("u", 9, 2, json!({}))).0).is_some());
        assert_eq!(follower.follow(&present("u", 8, 1, json!({}))).0, Change::SetBack);
    }

    #[test]
    fn shadow_of_other_node_with_same_name_is_hidden_and_reported_once() {
        let mut other = shadow("u", 1, 1, json!({}));
        other.owner.as_mut().unwrap().uid = "node-2".into();
        let other = Seen::Present(Arc::new(other));
        let mut follower = Follower::new(agent());
        assert_eq!(follower.follow(&other), (Change::Quiet, Some(Refusal::AgentTokenForOldNode)));
        assert_eq!(follower.follow(&other), (Change::Quiet, None));
        let mut follower = Follower::new(agent());
        assert!(line(follower.follow(&present("t", 9, 1, json!({}))).0).is_some());
        let gone = (Change::Line(WatchLine::Absent), Some(Refusal::AgentTokenForOldNode));
        assert_eq!(follower.follow(&other), gone, "what was shown is there no more");
        assert_eq!(follower.follow(&other), (Change::Quiet, None));
    }

    #[test]
    fn stream_age_is_half_to_full_maximum_and_limited_by_token() {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let longest = Duration::from_secs(600);
        assert_eq!(age(longest, 0.0, None, now), Duration::from_secs(300));
        assert_eq!(age(longest, 1.0, None, now), longest);
        let soon = Timestamp::from_second(1_700_000_100).unwrap();
        assert_eq!(age(longest, 1.0, Some(soon), now), Duration::from_secs(100));
        let past = Timestamp::from_second(1_600_000_000).unwrap();
        assert_eq!(age(longest, 1.0, Some(past), now), Duration::ZERO);
    }

    struct Open {
        seen: watch::Sender<Seen>,
        shutdown: watch::Sender<Option<Instant>>,
        stream: AgentStream<fn(Refusal)>,
        streams: Arc<Streams>,
    }

    fn open(first: Seen) -> Open {
        let (seen, shutdown) = (watch::Sender::new(first), watch::Sender::new(None));
        let streams = Streams::new(Metrics::new().unwrap().streams);
        let lifetime = Lifetime {
            age: Duration::from_secs(40),
            shutdown: shutdown.subscribe(),
            turn: 0.5,
            place: streams.enter("a"),
            _presence: Metrics::new().unwrap().agents.enter(None),
        };
        let follower = Follower::new(agent());
        let stream: AgentStream<fn(Refusal)> = AgentStream::new(follower, seen.subscribe(), lifetime, |_| {});
        Open { seen, shutdown, stream, streams }
    }

    #[tokio::test(start_paused = true)]
    async fn idle_stream_sends_heartbeats_and_ends_at_its_age() {
        let mut open = open(Seen::Absent);
        assert_eq!(open.stream.next().await, Some(WatchLine::Absent));
        assert_eq!(open.stream.next().await, Some(WatchLine::Heartbeat));
        assert_eq!(open.stream.next().await, Some(WatchLine::Heartbeat));
        assert_eq!(open.stream.next().await, None);
        assert_eq!(open.streams.count(), 1);
        drop(open.stream);
        assert_eq!(open.streams.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_sends_changes_until_its_turn_in_shutdown() {
        let mut open = open(Seen::Absent);
        assert_eq!(open.stream.next().await, Some(WatchLine::Absent));
        let began = Instant::now();
        open.shutdown.send_replace(Some(began + Duration::from_secs(10)));
        open.seen.send_replace(present("u", 1, 1, json!({})));
        assert!(matches!(open.stream.next().await, Some(WatchLine::Shadow { .. })));
        assert_eq!(open.stream.next().await, None);
        assert_eq!(began.elapsed(), Duration::from_secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_when_displaced_by_newer_streams_of_node() {
        let mut open = open(Seen::Absent);
        assert_eq!(open.stream.next().await, Some(WatchLine::Absent));
        let _newer = (open.streams.enter("a"), open.streams.enter("a"));
        assert_eq!(open.stream.next().await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn stream_sends_changes_as_they_arrive() {
        let mut open = open(Seen::Unknown);
        open.seen.send_replace(present("u", 1, 1, json!({})));
        assert!(matches!(open.stream.next().await, Some(WatchLine::Shadow { .. })));
        open.seen.send_replace(Seen::Absent);
        let bytes = open.stream.next_bytes().await.unwrap().unwrap();
        assert_eq!(bytes, "{\"type\":\"absent\"}\n");
    }
}
