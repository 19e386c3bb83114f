//! Digests.

use sha2::{Digest as _, Sha256};

/// Returns a digest in hexadecimal digits.
pub(crate) fn sha256(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}
