//! The test bed of the operator: a real control plane as local processes, simulated Bottlerocket hosts and kubelets,
//! an oracle that checks the safety properties on the server's own history, and the scenarios and the demo made of them.
//!
//! Users of the operator need nothing of this.

pub mod bed;
pub mod control_plane;
pub mod demo;
pub mod host;
pub mod kubelet;
pub mod machine;
pub mod oracle;
pub mod proxy;
pub mod rights;
