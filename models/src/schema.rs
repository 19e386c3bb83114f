//! Schemas of types from other crates, as the API server is to check them.

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

/// Strings that are read with more than a pattern, each a type that represents it in a schema.
macro_rules! texts {
    ($($(#[doc = $doc:literal])+ $name:ident = $pattern:expr, up to $length:literal;)+) => {$(
        $(#[doc = $doc])+
        pub struct $name;

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "maxLength": $length, "pattern": $pattern})
            }
        }
    )+};
}

texts! {
    /// A version, or a range of versions: parts separated by commas, each a version or its beginning, with or without an
    /// operator of [`semver::VersionReq`].
    VersionRange = format!("^{COMPARISONS}$"), up to 256;
    /// `latest`, a version, or a range of versions.
    VersionTarget = format!("^(latest|{COMPARISONS})$"), up to 256;
    /// The five fields of cron. What they mean is judged by who reads them.
    TimeOfCron = "^[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#?-]+){4}$", up to 128;
    /// The IANA name of a time zone. Whether there is such a zone is judged by who reads it.
    TimeZone = "^[A-Za-z][A-Za-z0-9+_-]*(/[A-Za-z0-9+_-]+){0,2}$", up to 64;
    /// A word of a status that one part writes and another reads. No enumeration: while two versions of the operator work
    /// side by side, a word that only the newer one knows must not make all other fields invalid.
    StatusWord = "^[A-Z][A-Za-z]*$", up to 64;
    /// A day of the calendar.
    Date = "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$", up to 10;
}

/// Comparisons with versions, of which the later parts may be left out. What they mean is judged by who reads them.
const COMPARISONS: &str =
    "(((=|>|>=|<|<=|~|\\^) *)?v?[0-9][0-9A-Za-z.*+-]*)( *, *((=|>|>=|<|<=|~|\\^) *)?v?[0-9][0-9A-Za-z.*+-]*)*";

/// semver.org's own expression, without capture groups, and with numbers that fit 64 bits.
const VERSION: &str = "^(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\
    (-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?\
    (\\+[0-9a-zA-Z-]+(\\.[0-9a-zA-Z-]+)*)?$";
