//! The time of a case: the machine's, plus what the script has let pass.

use std::time::{Duration, Instant};

use controller::clock::{Reading, TimeSource};
use futures::future::BoxFuture;
use http::{Request, Response, header};
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};
use jiff::{SignedDuration, Timestamp};
use kube::client::Body;
use models::time::{after, signed};
use tokio::sync::watch;

/// The time of a case. Clones share it.
#[derive(Clone)]
pub(crate) struct Time(watch::Sender<Duration>);

impl Time {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Duration::ZERO))
    }

    /// The time that the script has let pass.
    fn passed(&self) -> Duration {
        *self.0.borrow()
    }

    /// The time now.
    pub(crate) fn now(&self) -> Timestamp {
        after(Timestamp::now(), self.passed())
    }

    pub(super) fn pass(&self, span: Duration) {
        self.0.send_modify(|passed| *passed += span);
    }

    /// Completes at the next step of time.
    pub(super) fn steps(&self) -> watch::Receiver<Duration> {
        self.0.subscribe()
    }

    /// The clocks of a machine whose wall clock is wrong by `skew`.
    pub(crate) fn machine(&self, skew: SignedDuration) -> ScriptedMachine {
        ScriptedMachine { time: self.clone(), skew }
    }

    /// The same client of an API server whose clock shows this time.
    pub(super) fn dated(&self, client: kube::Client) -> kube::Client {
        let namespace = client.default_namespace().to_owned();
        let time = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, time) = (client.clone(), time.clone());
            async move {
                let mut response = client.send(request).await?;
                time.shift(&mut response);
                Ok::<_, kube::Error>(response)
            }
        });
        kube::Client::new(service, namespace)
    }

    fn shift<B>(&self, response: &mut Response<B>) {
        let Some(date) = response.headers().get(header::DATE).and_then(|date| date.to_str().ok()) else { return };
        let Ok(date) = DateTimeParser::new().parse_timestamp(date) else { return };
        let shifted = DateTimePrinter::new().timestamp_to_rfc9110_string(&after(date, self.passed()));
        if let Some(shifted) = shifted.ok().and_then(|text| text.parse().ok()) {
            response.headers_mut().insert(header::DATE, shifted);
        }
    }
}

/// The clocks of a controller's machine.
pub(crate) struct ScriptedMachine {
    time: Time,
    skew: SignedDuration,
}

impl TimeSource for ScriptedMachine {
    fn read(&self) -> Reading {
        let passed = self.time.passed();
        Reading { local: after(Timestamp::now(), signed(passed) + self.skew), at: Instant::now() + passed }
    }

    fn stepped(&self) -> BoxFuture<'static, ()> {
        let mut steps = self.time.steps();
        Box::pin(async move {
            let _ = steps.changed().await;
        })
    }
}
