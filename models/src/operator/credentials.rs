//! User names and passwords in the URL of a policy. The schema refuses them; one that was stored under an earlier schema is not
//! used, and left out of what the operator and the plugin write.

use serde_json::Value;

/// Returns the text without the user information (`user:password@`) of the URLs in it. JSON stays JSON.
pub fn without_user_information(text: &str) -> String {
    let ends = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\\' | '<' | '>');
    let (mut kept, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("://") {
        let slashes = rest[at + 1..].find(|c| c != '/').unwrap_or(rest.len() - at - 1);
        let (before, url) = rest.split_at(at + 1 + slashes);
        kept.push_str(before);
        let authority = &url[..url.find(ends).unwrap_or(url.len())];
        rest = &url[authority.rfind('@').map_or(0, |at| at + 1)..];
    }
    kept + rest
}

/// Returns a URL without its user information, also where that has characters that end a URL within a text.
pub fn url_without_user_information(url: &str) -> String {
    let slashes = url.find("://").map_or(0, |at| at + 1);
    let begin = url[slashes..].find(|c| !matches!(c, '/' | '\\')).map_or(url.len(), |at| slashes + at);
    let end = url[begin..].find(['/', '?', '#']).map_or(url.len(), |at| begin + at);
    let host = url[begin..end].rfind('@').map_or(begin, |at| begin + at + 1);
    format!("{}{}", &url[..begin], &url[host..])
}

/// Returns a policy (`spec` as JSON) for records, without the user information of its URL.
pub fn without_credentials(policy: String) -> String {
    if !policy.contains('@') {
        return policy;
    }
    let Ok(mut spec) = serde_json::from_str::<Value>(&policy) else { return policy };
    let Some(Value::String(url)) = spec.pointer_mut("/prometheus/url") else { return policy };
    *url = url_without_user_information(url);
    spec.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_information_of_urls_is_left_out() {
        for (text, expected) in [
            ("http://me:secret@p:9090/x?a=b", "http://p:9090/x?a=b"),
            ("https://secret@p", "https://p"),
            ("http://me:sec@ret@p#f", "http://p#f"),
            ("http:///me:secret@p", "http:///p"),
            ("http://p/@a?b=c@d", "http://p/@a?b=c@d"),
            ("http://p:9090", "http://p:9090"),
            ("a@b://", "a@b://"),
            ("http://me:secret@a http://b me@c http://me:secret@d", "http://a http://b me@c http://d"),
            (r#"{"url":"http://me:secret@p","mail":"me@p"}"#, r#"{"url":"http://p","mail":"me@p"}"#),
            (
                r#""{\"url\":\"http://me:secret@p\",\"mail\":\"me@p\"}""#,
                r#""{\"url\":\"http://p\",\"mail\":\"me@p\"}""#,
            ),
            (r#"["://", "a@b"]"#, r#"["://", "a@b"]"#),
        ] {
            assert_eq!(without_user_information(text), expected);
        }
    }

    #[test]
    fn user_information_with_any_characters_is_left_out_of_a_url() {
        for (url, expected) in [
            ("http://me:secret@p:9090/x?a=b@c", "http://p:9090/x?a=b@c"),
            (r#"http://me:"se<cr et"@p"#, "http://p"),
            (r"http://\me:secret@p/x", r"http://\p/x"),
            ("http://p/@a", "http://p/@a"),
            ("http://", "http://"),
            ("p", "p"),
        ] {
            assert_eq!(url_without_user_information(url), expected);
        }
    }

    #[test]
    fn recorded_policy_has_no_credentials_and_its_queries_are_unchanged() {
        let policy = |url: &str| {
            let query = r#"probe_success{instance=~"http://.*@.*"} == 0"#;
            let expressions = serde_json::json!([{"name": "probes", "query": query}]);
            serde_json::json!({"health": {"before": {"expressions": expressions}}, "prometheus": {"url": url}})
                .to_string()
        };
        assert_eq!(without_credentials(policy("http://me:secret@p")), policy("http://p"));
        for other in [policy("http://p"), "{}".to_owned(), "no JSON http://a@b".to_owned()] {
            assert_eq!(without_credentials(other.clone()), other);
        }
    }
}
