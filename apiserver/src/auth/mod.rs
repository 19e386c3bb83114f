//! Authentication and authorization of requests.
//!
//! A token is taken from the header ([`token`]), checked with the cluster's public keys ([`keys`], [`ring`]), reviewed
//! by the cluster ([`review`]), and the result is checked against the node in the path and the shadow ([`identity`]).

pub(crate) mod identity;
pub(crate) mod keys;
pub(crate) mod review;
pub(crate) mod ring;
pub(crate) mod token;
