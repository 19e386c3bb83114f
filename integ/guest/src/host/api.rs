//! Routes of the host's API server: the effect of each request and the exact text of its response.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};

use super::core::{Core, Job, State};
use super::faults::RebootFault;
use super::settings::SettingsTree;
use super::state::{Command, Refusal, Unreadable};

/// Largest JSON body accepted, in bytes.
pub(super) const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// Longest name of a transaction, which is a file name.
const LONGEST_TRANSACTION: usize = 255;

/// A request, read completely.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query, as sent.
    pub(super) target: String,
    pub(super) content_type: Option<String>,
    pub(super) body: Vec<u8>,
    /// Length announced by the head, if any.
    pub(super) announced: Option<usize>,
}

impl Request {
    /// Returns true if the request is answered without its body: an action takes none, and one that is too long is
    /// refused.
    pub(super) fn needs_no_body(&self) -> bool {
        self.target.starts_with("/actions/") || self.announced.is_some_and(|length| length > BODY_LIMIT)
    }
}

/// A response. A 204 has neither a body nor a length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) content_type: Option<&'static str>,
    pub(super) body: Vec<u8>,
}

/// Action that follows the response.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Nothing,
    /// A command was accepted.
    CarryOut(Job),
    /// The machine shuts down after the response is sent, or without one.
    Reboot {
        reply_cut: bool,
    },
}

impl Response {
    pub(super) fn no_content() -> Self {
        Self { status: 204, content_type: None, body: Vec::new() }
    }

    /// An error of the API itself: plain text without a content type.
    pub(super) fn error(status: u16, text: impl Into<String>) -> Self {
        Self { status, content_type: None, body: text.into().into_bytes() }
    }

    fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self { status: 200, content_type: Some("application/json"), body },
            Err(error) => Self::error(500, error.to_string()),
        }
    }

    /// An error of the framework around the API, with a content type.
    fn extractor(status: u16, text: String) -> Self {
        Self { content_type: Some("text/plain; charset=utf-8"), ..Self::error(status, text) }
    }
}

/// Answers one request. Changes that take time or end the machine are left to the caller.
pub(super) fn answer(core: &Arc<Core>, request: &Request) -> (Response, Then) {
    let (path, query) = match request.target.split_once('?') {
        Some((path, query)) => (path, parse_query(query)),
        None => (request.target.as_str(), BTreeMap::new()),
    };
    let state = &mut *core.lock();
    let transaction = match query.get("tx") {
        None => "default",
        Some(name) if name.len() > LONGEST_TRANSACTION => {
            return (Response::error(500, "File name too long (os error 36)"), Then::Nothing);
        }
        Some(name) if !name.is_ascii() || name.contains('"') => {
            return (Response::error(400, format!("Invalid transaction name '{name}'")), Then::Nothing);
        }
        Some(name) => name.as_str(),
    };
    let response = match (request.method.as_str(), path) {
        ("GET", "/os") => os(core, state, query.get("prefix")),
        ("GET", "/settings") => settings(state, query.get("keys"), query.get("prefix")),
        ("PATCH", "/settings") => json_body::<SettingsTree>(request).map_or_else(
            |error| error,
            |tree| {
                state.settings.stage(transaction, tree.updates.unwrap_or_default());
                Response::no_content()
            },
        ),
        ("POST", "/tx/commit") => commit(state, transaction).map_or_else(|error| error, |keys| Response::json(&keys)),
        ("POST", "/tx/commit_and_apply") => commit(state, transaction).map_or_else(
            |error| error,
            |keys| start_applier(core, state).map_or_else(|error| error, |()| Response::json(&keys)),
        ),
        ("POST", "/tx/apply") => match query.get("keys") {
            Some(keys) if keys.is_empty() => empty_input("keys"),
            _ => start_applier(core, state).map_or_else(|error| error, |()| Response::no_content()),
        },
        ("GET", "/tx") => Response::json(&state.settings.pending(transaction)),
        ("DELETE", "/tx") => Response::json(&state.settings.delete(transaction)),
        ("GET", "/tx/list") => Response::json(&state.settings.transactions()),
        ("GET", "/updates/status") => update_status(state),
        ("POST", "/actions/reboot") => return reboot(core, state),
        ("POST", action) => {
            let Some(command) = Command::ALL.into_iter().find(|command| command.path() == action) else {
                return (Response::error(404, ""), Then::Nothing);
            };
            match core.begin(state, command) {
                Ok(job) => return (Response::no_content(), Then::CarryOut(job)),
                Err(refusal) => refused(refusal),
            }
        }
        _ => Response::error(404, ""),
    };
    (response, Then::Nothing)
}

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::LockHeld => Response::error(423, "Update lock held"),
        Refusal::NotAllowed => Response::error(409, "Update action not allowed according to update state"),
        Refusal::NoChosenUpdate => Response::error(404, "Previously chosen Update no longer exists"),
        Refusal::NoStagedImage => Response::error(404, "No update image applied to staging partition"),
    }
}

fn update_status(state: &State) -> Response {
    match state.dispatcher.read() {
        Ok(status) => Response::json(status),
        Err(Unreadable::Locked) => Response::error(
            423,
            "Unable to obtain shared lock for reading update status: Resource temporarily unavailable (os error 11)",
        ),
        Err(Unreadable::Uninitialized) => {
            Response::error(404, "Update status is uninitialized, refresh-updates to initialize it")
        }
    }
}

fn reboot(core: &Core, state: &mut State) -> (Response, Then) {
    let failure = |code: i32, stderr: &str| {
        Response::error(500, format!("Failed to reboot, exit code: {code}, stderr: {stderr}"))
    };
    let failed = |stderr: &str| (failure(1, stderr), Then::Nothing);
    if state.shutting_down {
        return failed("Call to Reboot failed: There's already a shutdown or sleep operation in progress\n");
    }
    let reply_cut = match state.script.reboot() {
        Some(RebootFault::Refused { stderr }) => return failed(&stderr),
        Some(RebootFault::Terminated) => {
            state.shutting_down = true;
            return (failure(15, ""), Then::Reboot { reply_cut: false });
        }
        Some(RebootFault::ReplyCut) => true,
        None => false,
    };
    if let Some(Err(refused)) = core.hardware.as_ref().map(|hardware| hardware.reboot()) {
        return (failure(refused.code, &refused.stderr), Then::Nothing);
    }
    state.shutting_down = true;
    (Response::no_content(), Then::Reboot { reply_cut })
}

fn os(core: &Core, state: &State, prefix: Option<&String>) -> Response {
    let version = core.running(state);
    let options = &core.options;
    let whole = [
        ("arch", options.arch.clone()),
        ("build_id", options.build_id.clone()),
        ("pretty_name", options.pretty_name(&version)),
        ("variant_id", options.variant.clone()),
        ("version_id", version.to_string()),
    ];
    let prefix = match prefix.map(String::as_str) {
        None => "os.",
        Some("") => return empty_input("prefix"),
        Some(prefix) if prefix.starts_with("os") => prefix,
        Some(prefix) => &format!("os.{prefix}"),
    };
    let fields: Map<String, Value> = whole
        .into_iter()
        .filter(|(name, _)| format!("os.{name}").starts_with(prefix))
        .map(|(name, value)| (name.to_owned(), Value::String(value)))
        .collect();
    Response::json(&fields)
}

fn settings(state: &State, keys: Option<&String>, prefix: Option<&String>) -> Response {
    match (keys, prefix) {
        (Some(keys), _) if keys.is_empty() => empty_input("keys"),
        (Some(keys), _) if !keys.split(',').all(is_key) => Response::error(400, format!("Invalid key in '{keys}'")),
        // A table is a folder of the data store.
        (Some(keys), _) if keys.split(',').any(|key| matches!(key, "settings" | "settings.updates")) => {
            Response::error(500, "Is a directory (os error 21)")
        }
        (Some(keys), _) => Response::json(&state.settings.at(keys)),
        (None, Some(prefix)) if prefix.is_empty() => empty_input("prefix"),
        (None, Some(prefix)) => Response::json(&state.settings.under(prefix)),
        (None, None) => state
            .settings
            .whole()
            .map_or_else(|| Response::error(404, "Found no 'settings' in datastore"), |tree| Response::json(&tree)),
    }
}

/// Returns true for a well-formed key: segments of letters, digits, `-` and `_`, separated by dots.
fn is_key(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    text.split('.').all(|segment| !segment.is_empty() && segment.bytes().all(allowed))
}

fn commit(state: &mut State, transaction: &str) -> Result<Vec<String>, Response> {
    state.settings.commit(transaction).ok_or_else(|| Response::error(422, "Tried to commit with no pending changes"))
}

fn start_applier(core: &Arc<Core>, state: &mut State) -> Result<(), Response> {
    if let Some(message) = state.script.applier() {
        return Err(Response::error(500, format!("Unable to start config applier: {message} ")));
    }
    core.apply_settings(state);
    Ok(())
}

fn empty_input(name: &str) -> Response {
    Response::error(400, format!("Input '{name}' cannot be empty"))
}

fn json_body<T: serde::de::DeserializeOwned>(request: &Request) -> Result<T, Response> {
    if !request.content_type.as_deref().is_some_and(is_json) {
        return Err(Response::extractor(400, "Content type error".to_owned()));
    }
    let length = request.announced.unwrap_or(request.body.len());
    if length > BODY_LIMIT {
        let text = format!("JSON payload ({length} bytes) is larger than allowed (limit: {BODY_LIMIT} bytes).");
        return Err(Response::extractor(413, text));
    }
    serde_json::from_slice(&request.body)
        .map_err(|error| Response::extractor(400, format!("Json deserialize error: {error}")))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    matches!(essence.as_str(), "application/json" | "text/json")
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decode(name), percent_decode(value))
        })
        .collect()
}

fn percent_decode(text: &str) -> String {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: Vec<u8> = bytes.by_ref().take(2).collect();
                let code = std::str::from_utf8(&digits).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
                code.unwrap_or(b'%')
            }
            other => other,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}
