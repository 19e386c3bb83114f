//! The end of a container, as its status shows it.

use super::*;

pub(super) fn completed(since: Timestamp, container_id: String) -> Ended {
    Ended {
        exit_code: 0,
        signal: None,
        reason: "Completed".to_owned(),
        message: None,
        started: Some(since),
        finished: Timestamp::now(),
        container_id,
    }
}

pub(super) fn ended(status: std::io::Result<ExitStatus>, since: Timestamp, container_id: String) -> Ended {
    let (exit_code, signal, message) = match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => (code, None, None),
            (None, signal) => (128 + signal.unwrap_or_default(), signal, None),
        },
        Err(error) => (255, None, Some(error.to_string())),
    };
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    Ended {
        exit_code,
        signal,
        reason: reason.to_owned(),
        message,
        started: Some(since),
        finished: Timestamp::now(),
        container_id,
    }
}
