//! The schema of moments in the custom resources.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// A moment of a status, as all programs of the operator can read it. The format of the schema alone lets more pass:
/// a value with which its whole object, and each list that it is in, could not be read.
pub struct Moment;

/// Fractions have up to nine digits. Days that a month lacks are refused by the format.
const PATTERN: &str = "^[0-8][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$";

impl JsonSchema for Moment {
    fn schema_name() -> Cow<'static, str> {
        "Moment".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "format": "date-time", "maxLength": 35, "pattern": PATTERN})
    }
}
