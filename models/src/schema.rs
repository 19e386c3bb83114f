//! Schemas of strings, as the API server is to check them.

use std::borrow::Cow;

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::duration::Duration;
use crate::reason::FailureReason;

pub use schemars::JsonSchema;

/// Part of the API server's answer to an apply with a field that the definition in the cluster lacks, as when the
/// definition is older than the program. The code of the answer is 500, and nothing was written.
pub const UNDECLARED: &str = "field not declared in schema";

/// A [`semver::Version`]. What the API server lets pass has to parse: one object that does not would
/// keep a reader of all of them from reading any.
pub struct VersionText;

/// A version, or a range of versions: parts separated by commas, each a version or its beginning, with or without an
/// operator of [`semver::VersionReq`]; and where it is for one kind of nodes, ` on ` with their variant and architecture.
pub struct ExcludedVersions;

/// `latest`, a version, or a range of versions.
pub struct VersionTarget;

/// The five fields of cron. What they mean is judged by who reads them.
pub struct TimeOfCron;

/// The IANA name of a time zone. Whether there is such a zone is judged by who reads it.
pub struct TimeZone;

/// A word of a status that one part writes and another reads. No enumeration: while two versions of the operator work
/// side by side, a word that only the newer one knows must not make all other fields invalid.
pub struct StatusWord;

/// A day of the calendar.
pub struct Date;

/// A moment with its offset from UTC. Days that no month has are found by who reads it.
pub struct DateTime;

/// A moment of a status, as all programs of the operator can read it. The format of the schema alone lets more pass:
/// a value with which its whole object, and each list that it is in, could not be read. Days that a month lacks are refused by the format.
pub struct Moment;

/// Schemas of types that are written as a string: its pattern, its maximum length in characters, and its format if it has one.
macro_rules! strings {
    ($($type:ident: $pattern:expr, $length:literal $(, $format:literal)?;)+) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", $("format": $format,)? "maxLength": $length, "pattern": $pattern})
            }
        }
    )+};
}

strings! {
    Date: "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$", 10;
    DateTime: "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$", 25;
    Duration: "^([0-9]{1,9}(ms|s|m|h))+$", 32;
    ExcludedVersions: format!("^{COMPARISONS}( +on +[a-z0-9._-]+/[a-z0-9._-]+)?$"), 256;
    FailureReason: WORD, 64;
    Moment: "^[0-8][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-](0[0-9]|1[0-4]):[0-5][0-9])$", 35, "date-time";
    StatusWord: WORD, 64;
    TimeOfCron: "^[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#?-]+){4}$", 128;
    TimeZone: "^[A-Za-z][A-Za-z0-9+_-]*(/[A-Za-z0-9+_-]+){0,2}$", 64;
    VersionTarget: format!("^(latest|{COMPARISONS})$"), 256;
    VersionText: VERSION, 64;
}

/// See [`StatusWord`].
const WORD: &str = "^[A-Z][A-Za-z]*$";

/// Comparisons with versions, of which the later parts may be left out. What they mean is judged by who reads them.
const COMPARISONS: &str =
    "(((=|>|>=|<|<=|~|\\^) *)?v?[0-9][0-9A-Za-z.*+-]*)( *, *((=|>|>=|<|<=|~|\\^) *)?v?[0-9][0-9A-Za-z.*+-]*)*";

/// semver.org's own expression, without capture groups, and with numbers that fit 64 bits.
const VERSION: &str = "^(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\\.(0|[1-9][0-9]{0,17})\
    (-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?\
    (\\+[0-9a-zA-Z-]+(\\.[0-9a-zA-Z-]+)*)?$";
