//! Follows the shadow of this node, for ever.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::anyhow;
use models::backoff::{Backoff, Delays, full_jitter};
use models::failures::with_causes;
use models::limits;
use models::wire::WatchLine;
use rand::random;
use tokio::time::{Instant, sleep, timeout};

use crate::alive::Alive;
use crate::failure_log::FailureLog;
use crate::server::Server;
use crate::views::Views;

/// Silence after which the connection counts as dead: three missed heartbeats, which the server sends about every 15 s.
const SILENCE: Duration = Duration::from_secs(45);

/// Age from which the agent leaves a stream. The web API ends it earlier; a server that does not may be one with a
/// stolen key.
const TOO_OLD: Duration = limits::STREAM.saturating_add(Duration::from_mins(2));

/// Delay before reconnecting after a successful stream, as an upper limit.
const RECONNECT: Duration = Duration::from_millis(100);

/// Delay before reconnecting after a failed stream, as upper limits.
const FAILED: Delays = (Duration::from_millis(200), Duration::from_secs(10));

/// Minimum duration of a stream that counts as successful if it broke. A server that crashes at each stream needs a
/// back-off.
const HELD: Duration = Duration::from_secs(5);

/// Minimum duration of a stream that counts as successful if the server ended it properly, as each replica does that
/// leaves its node. While the nodes of the replicas are drained one after the other, streams are this short: an agent that
/// backed off from them would delay the update of its own node. A server that accepts no stream for long needs a back-off
/// too.
const HELD_TO_ITS_END: Duration = Duration::from_secs(1);

/// Returns true if a stream was successful that was open for `held` and `ended` properly, or broke.
fn is_success(held: Duration, ended: bool) -> bool {
    held >= if ended { HELD_TO_ITS_END } else { HELD }
}

/// Returns the delay before the next stream: random, up to a limit that doubles with each failed one.
fn pause(backoff: &mut Backoff, success: bool) -> Duration {
    let limit = if success {
        backoff.reset();
        RECONNECT
    } else {
        backoff.next_delay(FAILED)
    };
    full_jitter(limit, random())
}

/// Follows the shadow and passes each change to `views`; reconnects whenever the stream ends, after a random delay that
/// grows with each failed stream: a fleet that loses its streams at once does not reconnect at once.
pub(crate) async fn follow(server: &Server, views: &Views, alive: &Alive) -> Infallible {
    let (mut backoff, mut log) = (Backoff::default(), FailureLog::default());
    loop {
        let mut opened = None;
        let ended = follow_once(server, views, alive, &mut opened).await;
        let held = opened.map_or(Duration::ZERO, |opened: Instant| opened.elapsed());
        let success = is_success(held, ended.is_ok());
        if success {
            log.succeeded();
        }
        match &ended {
            Ok(()) => tracing::debug!(?held, "the stream ended"),
            // A fleet loses its streams with every roll-out of the web API: only a lasting failure deserves a user's
            // attention.
            Err(error) if backoff.failures() < 3 => tracing::info!(error = with_causes(&**error), "the stream ended"),
            Err(error) => log.failed("the stream ended", &with_causes(&**error)),
        }
        sleep(pause(&mut backoff, success)).await;
    }
}

async fn follow_once(
    server: &Server,
    views: &Views,
    alive: &Alive,
    opened: &mut Option<Instant>,
) -> anyhow::Result<()> {
    let newest = views.opening();
    let mut lines = server.watch(newest.as_ref().map(|view| view.metadata.resource_version.as_str())).await?;
    let began = *opened.insert(Instant::now());
    views.opened();
    tracing::info!("following the shadow");
    loop {
        let line = timeout(SILENCE, lines.next()).await.map_err(|_| anyhow!("the stream fell silent"))??;
        let Some(line) = line else { return Ok(()) };
        // TLS authenticates a server only when a connection begins. By this check, deletion of the authority's Secret
        // revokes it for open streams too.
        if began.elapsed() >= TOO_OLD || server.trusts_others_than(&lines) {
            return Ok(());
        }
        alive.heard();
        match serde_json::from_slice::<WatchLine>(&line) {
            Ok(WatchLine::Shadow { object }) => {
                tracing::debug!(generation = object.metadata.generation, state = ?object.spec.state, "shadow");
                views.streamed(*object);
            }
            Ok(WatchLine::Absent) => {
                tracing::debug!("this node has no shadow");
                views.absent();
            }
            Ok(WatchLine::Heartbeat | WatchLine::Unknown) => {}
            Err(error) => tracing::warn!(error = with_causes(&error), "a line of the stream is not understood"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_resets_after_long_or_properly_ended_stream() {
        let (second, five) = (Duration::from_secs(1), Duration::from_secs(5));
        for (sentence, held, ended, failures) in [
            ("never opened", Duration::ZERO, false, 4),
            ("broke soon", second, false, 4),
            ("broke after it had lasted", five, false, 0),
            ("ended at once", Duration::ZERO, true, 4),
            ("ended after a second", second, true, 0),
        ] {
            let mut backoff = Backoff::after(3);
            pause(&mut backoff, is_success(held, ended));
            assert_eq!(backoff.failures(), failures, "{sentence}");
        }
    }

    #[test]
    fn reconnect_delays_are_spread_uniformly_from_zero() {
        for (failures, success, limit) in [(40, true, 100), (2, false, 800), (40, false, 10_000)] {
            let limit = Duration::from_millis(limit);
            let mut tenths = [0; 10];
            for _ in 0..10_000 {
                let pause = pause(&mut Backoff::after(failures), success);
                assert!(pause <= limit, "{pause:?} after {failures} failures");
                let tenth = (pause.as_secs_f64() / limit.as_secs_f64() * 10.0) as usize;
                tenths[tenth.min(9)] += 1;
            }
            // Each tenth of the span has about a thousand of them.
            assert!(tenths.iter().all(|pauses| (700..1_300).contains(pauses)), "after {failures} failures: {tenths:?}");
        }
    }
}
