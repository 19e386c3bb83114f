//! The description of the web API (OpenAPI 3.1): the calls by hand, the bodies from the types that both sides use.

use models::wire::{AgentStatus, NDJSON, PROBLEM_JSON, Problem, ShadowView, WatchLine};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// Version of the interface. It rises with each change of it; the first number is the one in the paths.
const VERSION: &str = "1.0.0";

const JSON: &str = "application/json";

/// The description of the web API.
///
/// # Errors
/// If a type's schema cannot be written as JSON.
pub fn description() -> anyhow::Result<Value> {
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
    let schemas = serde_json::to_value(generator.take_definitions(true))?;
    Ok(json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Bottlerocket update operator: the web API",
            "version": VERSION,
            "summary": "Each node's agent reads and follows the shadow of its own node, and reports the agent status.",
            "description": "Both sides ignore fields and lines that they do not know. docs/web-api.md says what an agent may assume.",
            "license": {"name": "Apache-2.0 OR MIT", "identifier": "Apache-2.0 OR MIT"},
        },
        "security": [{"agent": []}],
        "paths": {
            "/v1/nodes/{node}/shadow": {"parameters": [node()], "get": get_shadow()},
            "/v1/nodes/{node}/shadow/watch": {"parameters": [node()], "get": watch_shadow()},
            "/v1/nodes/{node}/shadow/status": {"parameters": [node()], "put": put_status()},
        },
        "components": {
            "securitySchemes": {
                "agent": {
                    "type": "http", "scheme": "bearer", "bearerFormat": "JWT",
                    "description": "The projected token of the agent's pod, made for the audience brupop-apiserver.",
                },
            },
            "schemas": schemas,
        },
    }))
}

fn node() -> Value {
    json!({
        "name": "node", "in": "path", "required": true,
        "description": "Name of the Node that the agent's pod runs on.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 253},
    })
}

fn reference(type_: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{type_}")})
}

fn etag() -> Value {
    json!({"ETag": {"required": true, "description": "The view's etag, in quotes.", "schema": {"type": "string"}}})
}

fn view(description: &str) -> Value {
    json!({"description": description, "headers": etag(), "content": {JSON: {"schema": reference("ShadowView")}}})
}

fn problem(description: &str) -> Value {
    json!({"description": description, "content": {PROBLEM_JSON: {"schema": reference("Problem")}}})
}

fn problem_with_wait(description: &str) -> Value {
    let mut answer = problem(description);
    answer["headers"] = json!({
        "Retry-After": {"description": "Seconds after which to come back.", "schema": {"type": "integer", "minimum": 1}},
    });
    answer
}

/// The responses of a call: its own, and those that any call may get.
fn answers<const N: usize>(own: [(&str, Value); N]) -> Value {
    let common = json!({
        "400": problem("The request cannot be read."),
        "401": {
            "description": "The request carries no valid token. All such answers are the same.",
            "headers": {"WWW-Authenticate": {"required": true, "schema": {"const": "Bearer"}}},
            "content": {PROBLEM_JSON: {"schema": reference("Problem")}},
        },
        "403": problem("The token is valid, but of another account or node; or of a Node that was deleted and created again."),
        "404": problem("The node has no shadow, or there is no such path."),
        "405": problem("Another method; Allow names the one that there is."),
        "408": problem("The request did not arrive in time."),
        "429": problem_with_wait("Too many refused tokens from this source, or too many tokens, reads, streams or reports of this node."),
        "431": problem("Path, query and headers together are larger than 16 KiB."),
        "500": problem("The install lacks a permission, or the shadow cannot be read by this version."),
        "503": problem_with_wait("The cluster did not answer, or this replica cannot serve the call now."),
    });
    let own = own.into_iter().map(|(code, answer)| (code.to_owned(), answer));
    Value::Object(own.chain(common.as_object().cloned().unwrap_or_default()).collect())
}

fn get_shadow() -> Value {
    json!({
        "operationId": "getShadow",
        "summary": "The shadow as its agent sees it.",
        "parameters": [{
            "name": "fresh", "in": "query",
            "description": "Whether to read past this replica's copy.",
            "schema": {"type": "boolean", "default": false},
        }],
        "responses": answers([("200", view("The shadow."))]),
    })
}

fn watch_shadow() -> Value {
    json!({
        "operationId": "watchShadow",
        "summary": "The shadow, now and as it changes, one JSON object a line.",
        "parameters": [{
            "name": "resourceVersion", "in": "query",
            "description": "The newest metadata.resourceVersion that the agent has seen. A replica that is behind it waits, and answers 503 if it stays behind.",
            "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,39}$"},
        }],
        "responses": answers([(
            "200",
            json!({
                "description": "A stream of lines, each a WatchLine. It ends at a random age.",
                "content": {NDJSON: {"schema": {
                    "type": "string", "contentMediaType": NDJSON, "contentSchema": reference("WatchLine"),
                }}},
            }),
        )]),
    })
}

fn put_status() -> Value {
    json!({
        "operationId": "putStatus",
        "summary": "Reports: replaces the agent status.",
        "parameters": [{
            "name": "If-Match", "in": "header", "required": true,
            "description": "The etag of the view that the report builds on.",
            "schema": {"type": "string", "minLength": 1},
        }],
        "requestBody": {
            "required": true,
            "description": "At most 64 KiB. Fields that the server does not know are dropped and counted.",
            "content": {JSON: {"schema": reference("AgentStatus")}},
        },
        "responses": answers([
            ("200", view("The cluster holds the report, in this state.")),
            ("412", view("The report builds on another state than the cluster's, which is this one.")),
            ("413", problem("The body is larger than 64 KiB.")),
            ("415", problem("The body is not application/json.")),
            ("422", problem("The body writes what is not the agent's, or the schema of the cluster refuses a field.")),
            ("428", problem("There is no If-Match, or it names any state.")),
        ]),
    })
}
