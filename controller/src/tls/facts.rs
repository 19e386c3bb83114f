//! The input of the plan of keys and certificates, and its result.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

pub(super) use super::certificate::Id;

/// A certificate authority. The rules go by its id and its times.
pub(super) type Authority = super::certificate::Certificate;

/// An authority that issues nothing any more, or nothing of the operator, and stays published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) authority: Authority,
    /// The end at the earliest; `None`: as long as it is provided.
    pub(super) until: Option<Timestamp>,
}

/// The Secret of the authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Authorities {
    /// The one that issues, or is about to.
    pub(super) newest: Option<Authority>,
    /// The one before it, with its key, while it may have to issue something.
    pub(super) before: Option<Authority>,
    pub(super) kept: Vec<Kept>,
    /// The last request for a rotation that was begun.
    pub(super) carried: Option<String>,
}

/// The certificate in the web API's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) id: Id,
    /// The issuer, of the authorities that are known or published.
    pub(super) issuer: Option<Id>,
    /// True if a server can use it for agents: it has their names, and the key beside it belongs to it.
    pub(super) usable: bool,
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
    /// The time of issue, which is later: certificates are backdated.
    pub(super) issued: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The operator.
    Managed,
    /// Another client, with these authorities; `None`: the contents cannot be used.
    Provided(Option<Vec<Authority>>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificates {
    pub(super) source: Source,
    pub(super) authorities: Authorities,
    pub(super) leaf: Option<Leaf>,
    /// The published authorities that no Secret names.
    pub(super) foreign: Vec<Authority>,
    /// The value of the annotation that requests a rotation, if that is still to be begun.
    pub(super) requested: Option<String>,
}

/// The facts about the signing keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signing {
    pub(super) newest: Option<Id>,
    /// The one before it, as long as anything that it signed is valid.
    pub(super) before: Option<Id>,
    /// As [`Certificates::requested`].
    pub(super) requested: Option<String>,
    /// The keys of the statements in shadows.
    pub(super) statements: BTreeSet<Id>,
}

/// The contents that the agents can read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) authorities: BTreeSet<Id>,
    pub(super) keys: BTreeSet<Id>,
    /// The time since which each has been there without a break.
    pub(super) since: BTreeMap<Id, Timestamp>,
}

impl Published {
    /// Returns the time since which it has been published, if it is.
    pub(super) fn since_of(&self, id: &Id) -> Option<Timestamp> {
        let published = self.authorities.contains(id) || self.keys.contains(id);
        self.since.get(id).copied().filter(|_| published)
    }
}

/// The input of the rules. A part that cannot be read is absent, and its published contents stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) certificates: Option<Certificates>,
    pub(super) signing: Option<Signing>,
    pub(super) published: Published,
    /// Time for which this process has observed the published contents, and the certificate in the web API's Secret,
    /// without a break and by its monotonic clock.
    pub(super) observed_for: BTreeMap<Id, SignedDuration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    Certificates,
    Signing,
    /// The published contents of both.
    Trust,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Write {
    /// Make an authority. The newest one becomes the one before.
    MakeAuthority {
        /// The request that it carries out.
        carried: Option<String>,
        /// The authorities that are kept besides.
        kept: Vec<Kept>,
    },
    /// Write the authorities in this arrangement. None of them is new but those that were provided or published.
    Arrange(Authorities),
    /// Have an authority issue a serving certificate.
    Issue(Id),
    /// Make a signing key. The newest one becomes the one before.
    MakeKey {
        /// The request that it carries out.
        carried: Option<String>,
    },
    /// Remove the key before the newest one.
    DropKey,
    Publish(Published),
}

impl Write {
    pub(super) const fn subject(&self) -> Subject {
        match self {
            Self::MakeAuthority { .. } | Self::Arrange(_) | Self::Issue(_) => Subject::Certificates,
            Self::MakeKey { .. } | Self::DropKey => Subject::Signing,
            Self::Publish(_) => Subject::Trust,
        }
    }

    /// Returns the line of the log after the write.
    pub(super) const fn text(&self) -> &'static str {
        match self {
            Self::MakeAuthority { .. } => "a new authority for certificates was made",
            Self::Arrange(_) => "the authorities for certificates were replaced or removed",
            Self::Issue(_) => "a serving certificate was issued",
            Self::MakeKey { .. } => "a new key for permits was made",
            Self::DropKey => "the previous key for permits was removed",
            Self::Publish(_) => "the authorities and keys that agents trust were published",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::IntoStaticStr)]
pub(super) enum Phase {
    #[default]
    Steady,
    /// The new one is being published, and kubelets have time to pick it up.
    Publishing,
    /// The new one is known everywhere and is being taken into use.
    Switching,
    /// The new one is in use; the old one is still published.
    Retiring,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// The writes that are due. After the first one everything is checked again; where it is refused, those about
    /// another subject do not depend on it.
    pub(super) writes: Vec<Write>,
    pub(super) signer: Option<Id>,
    /// The time of the next check if nothing changes.
    pub(super) wake: Option<Timestamp>,
    pub(super) certificates: Phase,
    pub(super) signing: Phase,
}
