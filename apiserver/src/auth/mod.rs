//! Who asks, and whether the answer is theirs.
//!
//! A token is taken from the header ([`token`]), held against the cluster's public keys ([`keys`], [`ring`]), judged by the
//! cluster ([`review`]), and what the cluster says about it is held against the node in the path and the shadow
//! ([`identity`]).

pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod review;
pub(crate) mod ring;
pub(crate) mod token;

use crate::problem::Kind;

/// Why a request is refused: one fixed word each, for the log and the metric. The client is told less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// No `Authorization: Bearer`.
    NoToken,
    /// Something that cannot be a token.
    MalformedToken,
    /// The cluster did not sign the token.
    Forged,
    /// The cluster publishes no key of the name that the token gives.
    UnknownKey,
    /// The token has expired, or never says when it does.
    Expired,
    /// The token is for a later time.
    NotYetValid,
    /// The cluster does not know the token, or not for our audience, or no more.
    NotAuthenticated,
    /// The token is not for us: it says so, or the cluster does not confirm our audience.
    WrongAudience,
    /// A token of another service account.
    OtherAccount,
    /// A token that is not bound to a pod.
    NoPod,
    /// A token that does not say which node its pod runs on.
    NoNode,
    /// A token of another node's agent.
    OtherNode,
    /// The node has been deleted and created again: token and shadow name different Nodes.
    AgentTokenForOldNode,
    /// The shadow does not name its Node, so it is no one's.
    ShadowWithoutNode,
    /// So many tokens from this source were refused that no further one is looked at for now.
    TooManyRefusals,
    /// The node's agent reports more often than any update needs.
    TooManyReports,
    /// The node's agent sends more tokens than kubelet gives it.
    TooManyTokens,
    /// The node's agent reads, or opens streams, more often than any update needs.
    TooManyReads,
}

impl Refusal {
    pub(crate) const ALL: [Self; 18] = [
        Self::NoToken,
        Self::MalformedToken,
        Self::Forged,
        Self::UnknownKey,
        Self::Expired,
        Self::NotYetValid,
        Self::NotAuthenticated,
        Self::WrongAudience,
        Self::OtherAccount,
        Self::NoPod,
        Self::NoNode,
        Self::OtherNode,
        Self::AgentTokenForOldNode,
        Self::ShadowWithoutNode,
        Self::TooManyRefusals,
        Self::TooManyReports,
        Self::TooManyReads,
        Self::TooManyTokens,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::NoToken => "NoToken",
            Self::MalformedToken => "MalformedToken",
            Self::Forged => "Forged",
            Self::UnknownKey => "UnknownKey",
            Self::Expired => "Expired",
            Self::NotYetValid => "NotYetValid",
            Self::NotAuthenticated => "NotAuthenticated",
            Self::WrongAudience => "WrongAudience",
            Self::OtherAccount => "OtherAccount",
            Self::NoPod => "NoPod",
            Self::NoNode => "NoNode",
            Self::OtherNode => "OtherNode",
            Self::AgentTokenForOldNode => "AgentTokenForOldNode",
            Self::ShadowWithoutNode => "ShadowWithoutNode",
            Self::TooManyRefusals => "TooManyRefusals",
            Self::TooManyReports => "TooManyReports",
            Self::TooManyReads => "TooManyReads",
            Self::TooManyTokens => "TooManyTokens",
        }
    }

    /// What the client is told: the same for all that is wrong with a token.
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Self::NoToken
            | Self::MalformedToken
            | Self::Forged
            | Self::UnknownKey
            | Self::Expired
            | Self::NotYetValid
            | Self::NotAuthenticated
            | Self::WrongAudience => Kind::Unauthorized,
            Self::OtherAccount | Self::NoPod | Self::NoNode | Self::OtherNode => Kind::Forbidden,
            Self::AgentTokenForOldNode => Kind::AgentTokenForOldNode,
            Self::ShadowWithoutNode => Kind::NoShadow,
            Self::TooManyRefusals | Self::TooManyReports | Self::TooManyReads | Self::TooManyTokens => {
                Kind::TooManyRequests
            }
        }
    }
}
