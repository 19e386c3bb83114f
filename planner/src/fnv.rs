//! FNV, for short texts that tell values apart. Equal hashes prove nothing: 32 bits collide.

/// Returns FNV-1, 32 bits. (Not FNV-1a, which most libraries mean.)
pub(crate) fn fnv1(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}
