//! The certificate authority, the web API's certificate and the key that signs permits: made by the leader, kept in
//! Secrets, their public parts published to the agents, renewed in time, and rotated without a moment at which a client
//! is rejected.
//!
//! [`plan`] decides, purely; [`keeper`] gathers and writes.

#[cfg(test)]
mod cases;
pub mod certificate;
mod facts;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod keeper;
mod material;
mod plan;
mod provided;
#[cfg(test)]
mod simulation;
mod store;

use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;

pub(crate) use material::PermitKey;
use planner::view::{SigningKeys, TlsFacts};
pub(crate) use store::Complete;

pub use keeper::Keeper;
pub use material::MaterialError;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The API server refused.
    #[error("{name} could not be {verb}")]
    Api { name: &'static str, verb: &'static str, source: Box<kube::Error> },
    /// The contents could not be made or serialised.
    #[error("the contents of {name} could not be made")]
    Material { name: &'static str, source: MaterialError },
    /// A conflicting writer reverts the operator's writes again and again.
    #[error("another client writes the same Secrets or the same ConfigMap")]
    Contended,
    #[error(transparent)]
    Lost(#[from] crate::leader::LostLease),
}

impl TlsError {
    /// Returns the message for users. `None` for a conflict with another client, which the next check resolves, and for
    /// a server that cannot be reached, where no message would arrive.
    fn for_users(&self) -> Option<String> {
        match self {
            Self::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) if !matches!(status.code, 409 | 429) => {
                    Some(format!("{self}: {}", status.message))
                }
                _ => None,
            },
            Self::Material { source, .. } => Some(format!("{self}: {source}")),
            Self::Contended => Some(self.to_string()),
            Self::Lost(_) => None,
        }
    }
}

/// Signs permits and statements of settings, and holds the facts about keys for plans. Empty until the leader has its
/// key.
#[derive(Clone, Default)]
pub struct Signer {
    state: Arc<Mutex<SignerState>>,
}

#[derive(Default)]
struct SignerState {
    key: Option<PermitKey>,
    keys: SigningKeys,
    facts: TlsFacts,
}

impl Signer {
    /// Signs, if there is a key.
    pub fn sign(&self, claims: &impl Serialize) -> Option<Result<String, MaterialError>> {
        self.state.lock().key.as_ref().map(|key| key.sign(claims))
    }

    /// Returns the keys that sign, for plans.
    pub fn keys(&self) -> SigningKeys {
        self.state.lock().keys.clone()
    }

    /// Returns the facts for the operator's status.
    pub fn facts(&self) -> TlsFacts {
        self.state.lock().facts.clone()
    }

    fn sign_with(&self, key: Option<PermitKey>) {
        self.state.lock().key = key;
    }

    /// Records the facts, and the keys if they could be read; returns whether they are new.
    fn set_facts(&self, keys: Option<SigningKeys>, facts: TlsFacts) -> bool {
        let mut state = self.state.lock();
        let keys = keys.unwrap_or_else(|| state.keys.clone());
        let news = state.facts != facts || state.keys != keys;
        (state.keys, state.facts) = (keys, facts);
        news
    }
}

#[cfg(test)]
impl Signer {
    pub(crate) fn with_a_new_key() -> Self {
        let signer = Self::default();
        signer.sign_with(PermitKey::make().ok());
        signer
    }

    /// Returns the claims of something signed.
    pub(crate) fn read<T: serde::de::DeserializeOwned + Clone>(&self, jws: &str) -> T {
        self.state.lock().key.as_ref().unwrap().read(jws).unwrap()
    }
}
