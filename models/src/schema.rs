//! Schemas of types that are not ours, as the API server is to check them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Stands for [`semver::Version`] in a schema. What the API server lets pass has to parse: one object that does not would
/// keep a reader of all of them from reading any.
pub struct VersionText;

impl JsonSchema for VersionText {
    fn schema_name() -> Cow<'static, str> {
        "Version".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 64,
            "pattern": VERSION,
        })
    }
}

/// semver.org's own expression, without capture groups, and with numbers that fit 64 bits.
const VERSION: &str = "^(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\
    (-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?\
    (\\+[0-9a-zA-Z-]+(\\.[0-9a-zA-Z-]+)*)?$";
