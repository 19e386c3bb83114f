//! The Lease of the controller: which pod leads, and whether one does.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use models::time::between;

/// Time without a renewal after which a Lease of a kubelet or of the leader is reported: they renew every 10 s and every
/// few seconds.
pub(crate) const STALE: Duration = Duration::from_secs(40);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ControllerLease {
    /// The pod that holds it.
    pub(crate) holder: Option<String>,
    /// Time since which it holds it, by its own clock.
    pub(crate) acquired: Option<Timestamp>,
    /// Time at which the leader last renewed it, by the leader's clock; `None` if it does not exist.
    pub(crate) renewed: Option<Timestamp>,
    /// Time at which it was read, by the local clock: in a `watch`, which reads it once a minute, it grows no older in between.
    pub(crate) read: Timestamp,
}

impl ControllerLease {
    pub(crate) fn of(lease: Option<Lease>, read: Timestamp) -> Self {
        let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
        let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
        let at = |time: Option<MicroTime>| time.map(|time| time.0);
        Self { holder, acquired: at(spec.acquire_time), renewed: at(spec.renew_time), read }
    }

    /// Returns why no controller leads, as a sentence without a full stop; `None` if one does.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self.renewed {
            None => Some("no controller has taken its Lease, so that nothing is done".to_owned()),
            // Without the distance from now: the sentence stays the same until a controller leads.
            Some(renewed) if between(renewed, self.read) >= STALE => Some(format!(
                "by the clock of this computer, no controller has renewed its Lease since {renewed:.0}, so that nothing is done"
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn controller_leads_whose_lease_was_renewed_within_40_seconds_of_its_reading() {
        let read = "2026-01-01T00:10:00Z".parse().unwrap();
        let lease = |spec: Value| -> Lease {
            serde_json::from_value(json!({"metadata": {"name": "l"}, "spec": spec})).unwrap()
        };
        let renewed = |time: &str| Some(lease(json!({"holderIdentity": "a", "renewTime": time})));
        for (sentence, lease, leads) in [
            ("renewed lately", renewed("2026-01-01T00:09:21.000000Z"), true),
            ("renewed by a clock that is ahead", renewed("2026-01-01T00:11:00.000000Z"), true),
            ("not renewed", renewed("2026-01-01T00:09:20.000000Z"), false),
            ("never renewed", Some(lease(json!({"holderIdentity": "a"}))), false),
            ("there is none", None, false),
        ] {
            assert_eq!(ControllerLease::of(lease, read).trouble().is_none(), leads, "{sentence}");
        }
        assert_eq!(ControllerLease::of(Some(lease(json!({"holderIdentity": ""}))), read).holder, None);
    }
}
