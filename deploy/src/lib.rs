//! The installation as data: custom resource definitions, rights, workloads and the default policy.
//!
//! The manifests that users apply, the reference of the resources and all other installations use this data, so that a
//! test of one is a test of all.

mod admission;
mod agent;
mod apiserver;
mod aws;
mod budget;
mod chart;
mod controller;
pub mod crds;
pub mod files;
mod installation;
pub mod monitoring;
mod namespaces;
mod network;
mod object;
pub mod openapi;
mod options;
mod pod;
mod policy;
pub mod reference;
mod rights;
pub mod takeover;
pub mod waiting;
pub mod yaml;

pub use installation::{everything, force, jobs, objects};
pub use options::{COMMAND, Component, Options, image};
