//! Feeds one target with bytes: the one that `BRUPOP_FUZZ` names. The invariants are in
//! `fuzzing` of each crate, and in `both`.

#![no_main]

mod both;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

fn target() -> fn(&[u8]) {
    let wanted = std::env::var("BRUPOP_FUZZ").unwrap_or_default();
    let all = [agent::fuzzing::TARGETS, apiserver::fuzzing::TARGETS, controller::fuzzing::TARGETS, both::TARGETS];
    let found = all.into_iter().flatten().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("BRUPOP_FUZZ names no target: '{wanted}'")).1
}

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(|data: &[u8]| TARGET.get_or_init(target)(data));
