//! Shared by all parts of the operator: the custom resources, the wire types of the web API, and the pure rules that
//! more than one part follows. No I/O of any kind.
//!
//! With the feature `crd` the resources are Kubernetes objects with schemas, and the operator's resource is there at all;
//! the agent does without.

#![cfg_attr(
    feature = "crd",
    expect(clippy::duplicated_attributes, reason = "the lint takes the columns of a printed table for one attribute")
)]

pub mod agent_step;
pub mod answer;
pub mod backoff;
pub mod condition;
pub mod domain;
pub mod duration;
pub mod earlier;
pub mod failures;
#[cfg(feature = "crd")]
pub mod history;
pub mod limits;
pub mod listen;
pub mod log;
pub mod names;
#[cfg(feature = "crd")]
pub mod operator;
pub mod pem;
pub mod permit;
pub mod plain;
pub mod reason;
pub mod resource_version;
#[cfg(feature = "crd")]
pub mod schema;
pub mod shadow;
pub mod time;
pub mod wire;
