//! The node in another boot, until it is Ready on the target version.

pub(super) use super::boot::after_reboot as decide;
