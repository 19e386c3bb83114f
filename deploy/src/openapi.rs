//! The description of the web API (OpenAPI 3.1): the calls by hand, the bodies from the types that both sides use.

use anyhow::Context;
use models::wire::{AgentStatus, Problem, ShadowView, WatchLine};
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The description of the web API.
///
/// # Errors
/// If the calls cannot be read, or a type's schema cannot be written as JSON.
pub fn description() -> anyhow::Result<Value> {
    let mut description: Value =
        serde_saphyr::from_str(include_str!("../api/calls.yaml")).context("deploy/api/calls.yaml cannot be read")?;
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    generator.subschema_for::<ShadowView>();
    generator.subschema_for::<AgentStatus>();
    generator.subschema_for::<WatchLine>();
    generator.subschema_for::<Problem>();
    description["components"]["schemas"] = serde_json::to_value(generator.take_definitions(true))?;
    Ok(description)
}
