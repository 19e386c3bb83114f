//! What crashes, stalls and reboots by others do to an update.
