//! The logs of the programs, and the error that ends a program.

use std::fmt;
use std::process::ExitCode;
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

/// Begins the log of a server, on the standard error.
///
/// # Errors
/// A filter that cannot be parsed.
#[cfg(feature = "log")]
pub fn begin(filter: &str, format: LogFormat) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(without_malformed_requests(filter));
    let filter = filter.map_err(|error| format!("--log-filter (RUST_LOG): {error}"))?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // Where the standard error has no reader, the message about that would end the program.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}

/// Returns the filter of a log without the lines of the HTTP library about requests that it cannot read, of which a client can send
/// thousands in a second. One that names the library is left as it is.
pub fn without_malformed_requests(filter: &str) -> String {
    if filter.contains("actix_http") { filter.to_owned() } else { format!("{filter},actix_http::h1::dispatcher=off") }
}

/// Returns the exit code of a program, and gives the error that has ended it to `log`, with its causes in one line. As the result of `main`
/// it would be several lines of text in a log of JSON, with a backtrace where `RUST_BACKTRACE` is set.
pub fn exit_code(ended: Result<(), impl fmt::Display>, log: impl FnOnce(&str)) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_that_ends_a_program_is_logged_once_with_its_causes() {
        struct Failed;
        impl fmt::Display for Failed {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(if f.alternate() { "not connected: no kubeconfig" } else { "not connected" })
            }
        }
        let mut logged = Vec::new();
        for ended in [Ok(()), Err(Failed)] {
            let _ = exit_code(ended, |error| logged.push(error.to_owned()));
        }
        assert_eq!(logged, ["not connected: no kubeconfig"]);
    }

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
