//! Reasons to refuse a request.

/// Reason to refuse a request: one fixed word each, for the log and the metric. The client gets less detail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
pub(crate) enum Refusal {
    /// No `Authorization: Bearer`.
    NoToken,
    /// Something that cannot be a token.
    MalformedToken,
    /// The cluster did not sign the token.
    Forged,
    /// The cluster publishes no key with the token's key id.
    UnknownKey,
    /// The token has expired, or has no expiry.
    Expired,
    /// The token is not valid yet.
    NotYetValid,
    /// The cluster does not accept the token, or not for this audience, or no longer.
    NotAuthenticated,
    /// The token is for another audience: its claims name another one, or the cluster does not confirm this one.
    WrongAudience,
    /// A token of another service account.
    OtherAccount,
    /// A token that is not bound to a pod.
    NoPod,
    /// A token that does not name the node of its pod.
    NoNode,
    /// A token of another node's agent.
    OtherNode,
    /// The node has been deleted and created again: token and shadow name different Nodes.
    AgentTokenForOldNode,
    /// The shadow does not name its Node, so it belongs to no agent.
    ShadowWithoutNode,
    /// So many tokens from this source were refused that no further one is checked for now.
    TooManyRefusals,
    /// The node's agent reports more often than any update needs.
    TooManyReports,
    /// The node's agent sends more tokens than kubelet gives it.
    TooManyTokens,
    /// The node's agent reads, or opens streams, more often than any update needs.
    TooManyReads,
}
