//! The format of the programs' logs.

use std::fmt;
use std::str::FromStr;

/// The format of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each entry.
    Text,
    /// A JSON object for each entry, in one line.
    Json,
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("'{text}' is no log format: write text or json")),
        }
    }
}

/// Returns the filter of a log without the lines of the HTTP library about requests that it cannot read, of which a client can send
/// thousands in a second. One that names the library is left as it is.
pub fn without_malformed_requests(filter: &str) -> String {
    if filter.contains("actix_http") { filter.to_owned() } else { format!("{filter},actix_http::h1::dispatcher=off") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_malformed_requests_are_left_out_unless_a_filter_names_their_library() {
        assert_eq!(without_malformed_requests("info"), "info,actix_http::h1::dispatcher=off");
        assert_eq!(without_malformed_requests("info,actix_http=debug"), "info,actix_http=debug");
    }

    #[test]
    fn log_format_round_trips_and_error_lists_valid_formats() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let error = "JSON".parse::<LogFormat>().unwrap_err();
        assert_eq!(error, "'JSON' is no log format: write text or json");
    }
}
