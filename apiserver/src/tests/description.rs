//! The server against its published description, `docs/openapi.yaml`: each answer is a described one, with the
//! described media type, headers and body.

use std::collections::BTreeSet;

use http::Method;
use serde_json::{Value, json};

use super::*;

struct Description(Value);

impl Description {
    fn read() -> Self {
        Self(serde_saphyr::from_str(include_str!("../../../docs/openapi.yaml")).unwrap())
    }

    fn operation(&self, path: &str, method: &Method) -> Option<&Value> {
        self.0["paths"].get(path)?.get(method.as_str().to_ascii_lowercase())
    }

    /// Every described answer, as path, method and status.
    fn answers(&self) -> BTreeSet<(String, String, u16)> {
        let mut all = BTreeSet::new();
        for (path, item) in self.0["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap().iter().filter(|(key, _)| *key != "parameters") {
                for code in operation["responses"].as_object().unwrap().keys() {
                    all.insert((path.clone(), method.to_ascii_uppercase(), code.parse().unwrap()));
                }
            }
        }
        all
    }

    fn assert_valid(&self, schema: &Value, instance: &Value) {
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> =
            validator.iter_errors(instance).map(|error| format!("{error} at {}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?} in {instance:#}");
    }

    /// Checks an answer against the description of its operation.
    async fn assert_described(&self, operation: &Value, response: reqwest::Response) -> u16 {
        let status = response.status().as_u16();
        let described = &operation["responses"][status.to_string()];
        assert!(described.is_object(), "{status} is not described");
        for (name, header) in described["headers"].as_object().into_iter().flatten() {
            let given = response.headers().get(name);
            assert!(given.is_some() || header["required"] != true, "{status} lacks {name}");
            if let (Some(given), Some(value)) = (given, header["schema"].get("const")) {
                assert_eq!(given.to_str().unwrap(), value.as_str().unwrap());
            }
        }
        let media = response.headers()["content-type"].to_str().unwrap().to_owned();
        let content = &described["content"][&media];
        assert!(content.is_object(), "{status} has the media type {media}: {described:#}");
        if media == NDJSON {
            let line = Lines { response, rest: Vec::new() }.next().await.unwrap();
            self.assert_valid(&content["schema"]["contentSchema"], &serde_json::to_value(line).unwrap());
        } else {
            let body: Value = response.json().await.unwrap();
            self.assert_valid(&content["schema"], &body);
        }
        status
    }
}

/// A request, as far as it differs from a valid one.
#[derive(Default)]
struct Call {
    token: Option<&'static str>,
    query: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Option<String>,
}

const SHADOW: &str = "/v1/nodes/{node}/shadow";
const WATCH: &str = "/v1/nodes/{node}/shadow/watch";
const STATUS: &str = "/v1/nodes/{node}/shadow/status";

async fn send(server: &Server, method: &Method, path: &str, call: Call) -> reqwest::Response {
    let url = format!("https://localhost:{}{}{}", server.api.port(), path.replace("{node}", "a"), call.query);
    let mut request = server.client.request(method.clone(), url).bearer_auth(call.token.unwrap_or("agent-a"));
    for (name, value) in call.headers {
        request = request.header(name, value);
    }
    if let Some(body) = call.body {
        request = request.body(body);
    }
    request.send().await.unwrap()
}

#[tokio::test]
async fn responses_match_and_cover_openapi_description() {
    let description = Description::read();
    let cluster = cluster();
    let server = Server::start(&cluster).await;
    let mut had = BTreeSet::new();
    let mut call = async |path: &str, method: Method, call: Call| {
        let operation = description.operation(path, &method).unwrap_or_else(|| panic!("{method} {path}"));
        let status = description.assert_described(operation, send(&server, &method, path, call).await).await;
        had.insert((path.to_owned(), method.to_string(), status));
        status
    };
    let large = || vec![("x-padding", "x".repeat(17 * 1024))];
    let tagged = |etag: &str| vec![("if-match", etag.to_owned()), ("content-type", "application/json".to_owned())];
    let of = |token| Call { token: Some(token), ..Call::default() };

    for path in [SHADOW, WATCH] {
        assert_eq!(call(path, Method::GET, Call::default()).await, 200);
        assert_eq!(call(path, Method::GET, of("garbage")).await, 401);
        assert_eq!(call(path, Method::GET, of("agent-b")).await, 403);
        assert_eq!(call(path, Method::GET, Call { headers: large(), ..Call::default() }).await, 431);
    }
    assert_eq!(call(SHADOW, Method::GET, Call { query: "?fresh=true", ..Call::default() }).await, 200);
    assert_eq!(call(SHADOW, Method::GET, Call { query: "?fresh=maybe", ..Call::default() }).await, 400);
    assert_eq!(call(WATCH, Method::GET, Call { query: "?resourceVersion=100", ..Call::default() }).await, 200);
    assert_eq!(call(WATCH, Method::GET, Call { query: "?resourceVersion=x", ..Call::default() }).await, 400);

    let report = json!({
        "state": "StagedUpdate", "observedGeneration": 1,
        "conditions": [{
            "type": "HostReachable", "status": "True", "reason": "Answered", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    let schema = &description.0["paths"][STATUS]["put"]["requestBody"]["content"]["application/json"]["schema"];
    description.assert_valid(schema, &report);
    let put = |headers, body: &str| Call { headers, body: Some(body.to_owned()), ..Call::default() };
    let view = server.get("/v1/nodes/a/shadow", "agent-a").await.json::<ShadowView>().await.unwrap();
    let now = format!("\"{}\"", view.etag);
    for (headers, body, status) in [
        (tagged(&now), report.to_string(), 200),
        (tagged(&now), report.to_string(), 412),
        (tagged(&now), "{".to_owned(), 400),
        (vec![], report.to_string(), 428),
        (vec![("if-match", now.clone()), ("content-type", "text/plain".into())], report.to_string(), 415),
        (tagged(&now), json!({"spec": {}}).to_string(), 422),
        (tagged(&now), " ".repeat(65 * 1024), 413),
        (large(), report.to_string(), 431),
    ] {
        assert_eq!(call(STATUS, Method::PUT, put(headers, &body)).await, status, "{body:.80}");
    }
    assert_eq!(call(STATUS, Method::PUT, of("garbage")).await, 401);
    assert_eq!(call(STATUS, Method::PUT, of("agent-b")).await, 403);
    cluster.change(|object| *object = None);
    let mut gone = 0;
    while gone != 404 {
        gone = call(SHADOW, Method::GET, Call { query: "?fresh=true", ..Call::default() }).await;
    }
    assert_eq!(call(STATUS, Method::PUT, put(tagged(&now), &report.to_string())).await, 404);
    for _ in 0..100 {
        call(STATUS, Method::PUT, Call::default()).await;
    }
    // Frequent requests are refused for their rate; the answers are checked below.
    for path in [SHADOW, WATCH] {
        for _ in 0..1_000 {
            if call(path, Method::GET, of("garbage")).await == 429 {
                break;
            }
        }
    }
    server.stop().await;

    // Answers that take an outage, time, another method or another path. Each has its own test: those about outages are
    // in `outages.rs`, that of a slow body in `unauthenticated.rs`, and the others below.
    let elsewhere = [404, 405, 408, 500, 503];
    let missing: Vec<_> =
        description.answers().into_iter().filter(|a| !had.contains(a) && !elsewhere.contains(&a.2)).collect();
    assert_eq!(missing, []);
}

#[tokio::test]
async fn undescribed_methods_return_405_and_undescribed_paths_404() {
    let description = Description::read();
    let server = Server::start(&cluster()).await;
    for path in [SHADOW, WATCH, STATUS] {
        for method in [Method::GET, Method::PUT, Method::POST, Method::PATCH, Method::DELETE] {
            if description.operation(path, &method).is_some() {
                continue;
            }
            let response = send(&server, &method, path, Call::default()).await;
            let allowed: Method = response.headers()["allow"].to_str().unwrap().parse().unwrap();
            let operation = description.operation(path, &allowed).unwrap();
            assert_eq!(description.assert_described(operation, response).await, 405, "{method} {path}");
        }
    }
    for path in
        ["/", "/v1", "/v1/nodes", "/v1/nodes/{node}", "/v1/nodes/{node}/shadow/", "/v2/nodes/{node}/shadow", "/metrics"]
    {
        assert_eq!(
            problem(send(&server, &Method::GET, path, Call::default()).await).await,
            (404, "not-found".into()),
            "{path}"
        );
    }
    server.stop().await;
}
