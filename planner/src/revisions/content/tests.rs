use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResourceExt;
use models::operator::{BottlerocketUpdateOperator, BottlerocketUpdateOperatorSpec};

use super::*;

/// Ways to write a target or an exclusion.
const VERSIONS: [&str; 15] = [
    "1.20.5",
    "v1.20.5-rc.1",
    "1.20.5-alpha.lt",
    "1.20",
    "1",
    "1.20.*",
    "=1.20",
    ">=1.20, <1.23",
    ">1.20",
    "<=1.22",
    "<1.20.5",
    "~1.20.3",
    "^1.20",
    ">= v1.20.1,<=1.22.0-beta",
    "1.20, <1.20.5",
];

fn content(spec: Value) -> RevisionContent {
    let spec: BottlerocketUpdateOperatorSpec = serde_json::from_value(spec).unwrap();
    RevisionContent::of(&Policy::from_spec(&spec).unwrap())
}

fn data(spec: Value) -> String {
    content(spec).data().to_string()
}

#[test]
fn revision_data_is_canonical() {
    for (spec, expected) in [
        (json!({}), r#"{"exclude":[],"form":1,"ignoreWaves":false,"target":"latest"}"#),
        (
            json!({"version": {"target": "<1.23, >=1.20", "exclude": ["1.21", "v1.20.3"], "ignoreWaves": true}}),
            r#"{"exclude":["1.20.3","=1.21"],"form":1,"ignoreWaves":true,"target":"ge 1.20, lt 1.23"}"#,
        ),
        (
            json!({"version": {"exclude": ["<1.23, >=1.20  on aws-k8s-1.37/x86_64", "v1.20.3"]}}),
            r#"{"exclude":["1.20.3","ge 1.20, lt 1.23 on aws-k8s-1.37/x86_64"],"form":1,"ignoreWaves":false,"target":"latest"}"#,
        ),
    ] {
        assert_eq!(data(spec), expected);
    }
}

#[test]
fn changes_between_revisions_are_a_line_for_each_field_and_lifted_exclusions_come_first() {
    let of = |target: &str, exclude: &[&str], waves: bool| {
        content(json!({"version": {"target": target, "exclude": exclude, "ignoreWaves": waves}}))
    };
    let (before, after) = (of("1.20.5", &["1.20.1", "1.20.4"], false), of("latest", &["1.20.1", "1.19.0"], true));
    let changes = [
        "not excluded any more: 1.20.4",
        "excluded: 1.19.0",
        "target: latest, before 1.20.5",
        "ignoreWaves: true, before false",
    ];
    assert_eq!(after.changes_from(&before), changes);
    assert!(before.changes_from(&before).is_empty());
}

#[test]
fn revision_data_never_has_characters_that_api_server_escapes() {
    for text in VERSIONS {
        let data = data(json!({"version": {"target": text, "exclude": VERSIONS}}));
        assert!(data.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{data}");
        assert!(!data.contains(['<', '>', '&', '\\']), "{data}");
        // As Go's encoder writes it: nothing between tokens.
        assert!(!data.contains("\": ") && !data.contains("\", \"") && !data.contains("{ "), "{data}");
    }
}

#[test]
fn revision_data_reads_as_content_it_was_written_of() {
    for text in VERSIONS {
        let spec = json!({"version": {"target": text, "exclude": [text], "ignoreWaves": true}});
        let written = content(spec.clone());
        assert_eq!(RevisionContent::read(&written.data()), Ok(written.clone()), "{text}");
        let mut undone = spec;
        undone["version"] = written.version_patch();
        assert_eq!(content(undone), written, "{text}: the policy that an undo writes");
        let of_kind = content(json!({"version": {"exclude": [format!("{text} on aws-k8s-1.37/x86_64")]}}));
        assert_eq!(RevisionContent::read(&of_kind.data()), Ok(of_kind.clone()), "{text}, of one kind");
        let undone = json!({"version": of_kind.version_patch()});
        assert_eq!(content(undone), of_kind, "{text}: an undo keeps the kind");
        assert_ne!(of_kind, content(json!({"version": {"exclude": [text]}})), "{text}: of one kind is not of all");
    }
}

#[test]
fn revision_equality_is_of_meaning() {
    let latest = content(json!({}));
    let range = content(json!({"version": {"target": ">=1.20, <1.23"}}));
    for (sentence, data, equal_to) in [
        ("defaults that are not spelled out", json!({"form": 1}), Some(&latest)),
        ("the defaults", json!({"form": 1, "target": "latest", "exclude": [], "ignoreWaves": false}), Some(&latest)),
        ("parts of a range in another order", json!({"form": 1, "target": "lt 1.23,ge 1.20"}), Some(&range)),
        ("comparators as they are", json!({"form": 1, "target": ">=1.20, <1.23"}), Some(&range)),
        ("another range", json!({"form": 1, "target": "ge 1.20, le 1.23"}), None),
        ("waves ignored", json!({"form": 1, "ignoreWaves": true}), None),
        ("a version excluded", json!({"form": 1, "exclude": ["1.20.1"]}), None),
    ] {
        let read = RevisionContent::read(&data).unwrap();
        assert_eq!([&latest, &range].into_iter().find(|other| **other == read), equal_to, "{sentence}");
    }
    let excluded = |list: &[&str]| content(json!({"version": {"exclude": list}}));
    assert_eq!(excluded(&["1.20.3", "1.20.1", "1.20.3"]), excluded(&["1.20.1", "1.20.3"]), "exclusions in any order");
}

#[test]
fn revision_of_newer_form_or_unknown_content_is_unreadable() {
    for (sentence, data, cause) in [
        ("a newer form", json!({"form": 2, "target": "latest"}), "form 2"),
        ("an unknown field", json!({"form": 1, "zones": []}), "zones"),
        ("a field of another type", json!({"form": 1, "ignoreWaves": "yes"}), "yes"),
        ("no versions", json!({"form": 1, "target": "newest"}), "'newest' names no versions"),
        ("an exclusion of all", json!({"form": 1, "exclude": ["latest"]}), "'latest' names no versions"),
        ("no form", json!({}), "no form"),
        ("a form that is no whole number", json!({"form": 1.0}), "no form"),
    ] {
        let error = RevisionContent::read(&data).unwrap_err();
        assert!(error.contains(cause), "{sentence}: {error}");
    }
}

/// The rows of the table of `docs/revisions.md`: each field of `spec`, and whether a revision has it.
fn documented() -> BTreeMap<String, bool> {
    let page = include_str!("../../../../docs/revisions.md");
    let (_, rest) = page.split_once("<!-- fields:begin -->\n").unwrap();
    let (table, _) = rest.split_once("<!-- fields:end -->").unwrap();
    let row = |line: &str| {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        assert!(matches!(cells[2], "in" | "out") && !cells[3].is_empty(), "{line}");
        (cells[1].trim_matches('`').to_owned(), cells[2] == "in")
    };
    table.lines().skip(2).map(row).collect()
}

#[test]
fn documented_fields_of_revision_are_all_fields_of_policy() {
    let definition = serde_json::to_value(BottlerocketUpdateOperator::crd()).unwrap();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let rows: BTreeSet<String> = documented().into_keys().collect();
    let mut fields = BTreeSet::new();
    for (field, schema) in spec.as_object().unwrap() {
        // A field with rows for its own fields has one for each of them.
        if rows.iter().any(|row| row.starts_with(&format!("{field}."))) {
            fields.extend(schema["properties"].as_object().unwrap().keys().map(|inner| format!("{field}.{inner}")));
        } else {
            fields.insert(field.clone());
        }
    }
    assert_eq!(rows, fields, "docs/revisions.md");
}

#[test]
fn revision_changes_with_documented_fields_and_no_others() {
    let soak = json!({"after": {"soak": "5m"}});
    let examples = [
        ("enabled", json!(false)),
        ("version.target", json!("1.20.5")),
        ("version.exclude", json!(["1.20.1"])),
        ("version.ignoreWaves", json!(true)),
        ("version.minimumAge", json!("24h")),
        ("version.refreshInterval", json!("2h")),
        ("version.urgent", json!({"from": "1.20.6", "reason": "CVE", "until": "2026-12-01T00:00:00Z"})),
        ("maxUnavailable", json!(5)),
        ("ignoreUnavailableAfter", json!("2h")),
        ("schedule", json!({"windows": [{"cron": "0 3 * * *", "duration": "1h"}]})),
        ("strategy", json!({"canary": [{"nodes": 1}], "oneZoneAtATime": true})),
        ("drain", json!({"timeout": "5m"})),
        ("loadBalancer", json!({"leaveBeforeDrain": "10s"})),
        ("autoscaler", json!({"protect": false})),
        ("autoscaling", json!({"aws": {"mode": "Standby"}})),
        ("hooks", json!([{"name": "ceph", "before": {}}])),
        ("notices", json!({"receivers": [{"name": "chat", "format": "Slack", "urlKey": "chat"}]})),
        ("health", soak.clone()),
        ("prometheus", json!({"url": "http://prometheus:9090"})),
        ("freshness", json!({"target": "336h"})),
        ("failurePolicy", json!({"maxFailures": 3})),
        ("deadlines", json!({"stage": "10m"})),
        ("nodeGroups", json!([{"name": "web", "selector": {}, "health": soak}])),
        ("labelNodes", json!(true)),
        ("storageMigration", json!("Manual")),
        ("revisionHistoryLimit", json!(0)),
        ("rolloutHistory", json!({"records": 0})),
    ];
    let default = content(json!({}));
    let changes = examples.map(|(field, value)| {
        let spec = match field.split_once('.') {
            Some((outer, inner)) => json!({outer: {inner: value}}),
            None => json!({field: value}),
        };
        (field.to_owned(), content(spec) != default)
    });
    assert_eq!(BTreeMap::from(changes), documented());
}
