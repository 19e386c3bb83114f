//! A Bottlerocket host: simulated in the process of a test, or served by `brupop-guest` in a virtual machine.

pub mod host;
pub mod machine;
