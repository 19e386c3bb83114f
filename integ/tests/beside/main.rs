//! The real programs of other projects beside the operator: `make test-beside`. Their builds take half an hour, once, so
//! that neither `make test` nor `make test-all` runs these. What a program needs in settings is on the page about it, from which a
//! scenario reads it.

mod alertmanager;
mod argocd;
#[expect(dead_code, reason = "the scenarios use the rest")]
#[path = "../scenarios/commands.rs"]
mod commands;
mod flux;
mod git;
#[expect(dead_code, reason = "the scenarios use the rest")]
#[path = "../scenarios/interfere.rs"]
mod interfere;
mod karpenter;
mod programs;
mod scripted;
#[expect(dead_code, reason = "the scenarios use the rest")]
#[path = "../scenarios/support.rs"]
mod support;
mod tool;
mod users;
