//! The schema of the operator's resource on a real API server: refused, accepted and dropped fields.

use anyhow::{Context, ensure};
use integ::control_plane::ControlPlane;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client};
use models::duration::Duration;
use models::names::{GROUP, SYSTEM_NAMESPACE};
use models::operator::{BOUNDS, BottlerocketUpdateOperator, Bound};
use models::schema::UNDECLARED;
use semver::VersionReq;
use serde_json::{Value, json};

use super::{expect, kubectl, manifest, operator_apply, until};

const SHARE: Option<&str> = Some("write a count from 1 to 10000, or a percentage from 1% to 100%");
const PATTERN: Option<&str> = Some("should match");
const TOO_LONG: Option<&str> = Some("Too long");
const TOO_MANY: Option<&str> = Some("must have at most");
const REQUIRED: Option<&str> = Some("Required value");
const DUPLICATE: Option<&str> = Some("duplicate entries");
const ENUMERATION: Option<&str> = Some("Unsupported value");
const SOAK: Option<&str> = Some("write a duration from 1s to 24h");
const VALUES: Option<&str> = Some("In and NotIn want values, Exists and DoesNotExist take none");
const TOGETHER: Option<&str> = Some("write before and job.before together");
const AFTER: Option<&str> = Some("after awaits an answer, which job.after has to give");
const BEYOND: Option<&str> = Some("write a duration from");
const CREDENTIALS: Option<&str> =
    Some("write no user name and no password here, but into the Secret brupop-prometheus");
const ACCEPTED: Option<&str> = None;

fn object(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "brupop.bottlerocket.aws/v1", "kind": "BottlerocketUpdateOperator", "metadata": {"name": name},
        "spec": spec,
    })
}

fn api(client: Client) -> Api<BottlerocketUpdateOperator> {
    Api::namespaced(client, SYSTEM_NAMESPACE)
}

/// Specs, each with the reason of its refusal, if any.
fn specs() -> Vec<(Value, Option<&'static str>)> {
    let mut specs = vec![
        (json!({}), ACCEPTED),
        (json!({"enabled": false, "labelNodes": true}), ACCEPTED),
        (json!({"storageMigration": "Manual"}), ACCEPTED),
        (json!({"storageMigration": "Never"}), ENUMERATION),
        (json!({"hooks": [{"name": "a", "before": {}, "job": {"namespace": "b", "before": "c"}}]}), ACCEPTED),
        (json!({"hooks": [{"name": "a", "job": {"namespace": "b", "after": "c", "runOnNode": true}}]}), ACCEPTED),
        (json!({"hooks": [{"name": "a", "before": {}, "job": {"namespace": "b", "after": "c"}}]}), TOGETHER),
        (json!({"hooks": [{"name": "a", "job": {"namespace": "b", "before": "c"}}]}), TOGETHER),
        (json!({"hooks": [{"name": "a", "before": {}, "after": {}, "job": {"namespace": "b", "before": "c"}}]}), AFTER),
        (
            json!({"hooks": [{"name": "a", "job": {"namespace": "b"}}]}),
            Some("name a PodTemplate: before, after or both"),
        ),
        (
            json!({"hooks": [{"name": "aws-autoscaling", "job": {"namespace": "b", "after": "c"}}]}),
            Some("aws-autoscaling takes no job"),
        ),
        (json!({"hooks": [{"name": "aws-autoscaling", "after": {}}]}), ACCEPTED),
        (json!({"hooks": [{"name": "a", "job": {"after": "c"}}]}), REQUIRED),
        (json!({"hooks": [{"name": "a", "job": {"namespace": "b", "after": "C"}}]}), PATTERN),
        (json!({"revisionHistoryLimit": 0}), ACCEPTED),
        (json!({"revisionHistoryLimit": 100}), ACCEPTED),
        (json!({"revisionHistoryLimit": -1}), Some("greater than or equal to 0")),
        (json!({"revisionHistoryLimit": 101}), Some("less than or equal to 100")),
        (json!({"enabled": "no"}), Some("enabled")),
        (json!({"failurePolicy": {"maxFailures": 0}}), Some("greater than or equal to 1")),
        (json!({"failurePolicy": {"maxFailures": 64}}), ACCEPTED),
        (json!({"failurePolicy": {"maxFailures": 65}}), Some("less than or equal to 64")),
        (json!({"failurePolicy": {"maxFailures": 3, "backOff": "90s"}}), ACCEPTED),
        (json!({"drain": {"timeout": "5d"}}), PATTERN),
        (json!({"drain": {"timeout": "1h30m", "atDeadline": "Release"}}), ACCEPTED),
        (json!({"drain": {"atDeadline": "Explode"}}), ENUMERATION),
        (json!({"deadlines": {"stage": "1h", "reboot": "20m", "return": "10m"}}), ACCEPTED),
        (json!({"deadlines": {"return": "-1s"}}), PATTERN),
        (json!({"drain": {"atDeadline": "Force", "barePods": "Evict", "emptyDir": "Refuse"}}), ACCEPTED),
        (json!({"drain": {"gracePeriod": "30s", "waitForVolumes": true}}), ACCEPTED),
        (json!({"drain": {"barePods": "Ignore"}}), ENUMERATION),
        (json!({"drain": {"gracePeriod": "soon"}}), PATTERN),
        (json!({"loadBalancer": {"leaveBeforeDrain": "60s"}, "autoscaler": {"protect": false}}), ACCEPTED),
        (json!({"loadBalancer": {}, "autoscaler": {}}), ACCEPTED),
        (json!({"autoscaling": {"aws": {"mode": "SuspendReplaceUnhealthy"}}}), ACCEPTED),
        (json!({"autoscaling": {"aws": {"mode": "Detach"}}}), ENUMERATION),
        (json!({"autoscaling": {"aws": {}}}), Some("spec.autoscaling.aws.mode: Required value")),
        (json!({"maxUnavalable": 1}), Some(UNDECLARED)),
    ];
    specs.extend(shares());
    specs.extend(versions());
    specs.extend(schedules());
    specs.extend(health());
    specs.extend(groups());
    specs.extend(BOUNDS.iter().flat_map(bounds));
    specs
}

/// Durations at the bounds of a field, and beyond them.
fn bounds(bound: &Bound) -> Vec<(Value, Option<&'static str>)> {
    let Bound { min, max, .. } = *bound;
    let beyond = |duration: Duration| Duration(duration.0 + std::time::Duration::from_millis(1));
    let mut specs = Vec::new();
    for place in bound.places() {
        for (duration, refusal) in [(min, ACCEPTED), (max, ACCEPTED), (beyond(max), BEYOND)] {
            specs.push((with(&place, &duration), refusal));
        }
        if min > Duration::ZERO {
            specs.push((with(&place, &Duration::ZERO), BEYOND));
        }
    }
    specs
}

/// Returns a spec with this duration at a path, and what is required beside it.
fn with(path: &str, duration: &Duration) -> Value {
    path.rsplit('.').fold(json!(duration), |value, name| {
        let Some(list) = name.strip_suffix("[]") else {
            return match name {
                "prometheus" => json!({name: merged(json!({"url": "http://a"}), value)}),
                _ => json!({name: value}),
            };
        };
        let required = match list {
            "windows" => json!({"cron": "0 2 * * *"}),
            "canary" => json!({"nodes": 1}),
            "nodeGroups" => json!({"name": "a", "selector": {}}),
            _ => json!({"name": "a"}),
        };
        json!({list: [merged(required, value)]})
    })
}

fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

/// Counts and percentages, in each field that takes them.
fn shares() -> Vec<(Value, Option<&'static str>)> {
    let mut specs = Vec::new();
    for (share, refusal) in [
        (json!(1), ACCEPTED),
        (json!(10_000), ACCEPTED),
        (json!("1%"), ACCEPTED),
        (json!("100%"), ACCEPTED),
        (json!(0), SHARE),
        (json!(-1), SHARE),
        (json!(10_001), SHARE),
        (json!("0%"), SHARE),
        (json!("101%"), SHARE),
        (json!("05%"), SHARE),
        (json!("3"), SHARE),
        (json!("%"), SHARE),
        (json!("9999%9999%"), TOO_LONG),
    ] {
        specs.extend([
            (json!({"maxUnavailable": share}), refusal),
            (json!({"strategy": {"canary": [{"nodes": share}]}}), refusal),
            (json!({"strategy": {"preStage": {"maxConcurrent": share}}}), refusal),
            (json!({"health": {"before": {"maxUnhealthyNodes": share}}}), refusal),
            (json!({"nodeGroups": [{"name": "a", "selector": {}, "maxUnavailable": share}]}), refusal),
        ]);
    }
    specs.extend([
        (json!({"strategy": {"canary": [{"soak": "1h"}]}}), REQUIRED),
        (json!({"strategy": {"canary": [{"nodes": 1, "soak": "0s", "approval": "Automatic"}]}}), ACCEPTED),
        (
            json!({"strategy": {"canary": [{"nodes": 1, "soak": "1h"}, {"nodes": "50%", "approval": "Manual"}]}}),
            ACCEPTED,
        ),
        (json!({"strategy": {"canary": [{"nodes": 1, "approval": "Maybe"}]}}), ENUMERATION),
        (json!({"strategy": {"canary": [{"nodes": 1, "soak": "soon"}]}}), PATTERN),
        (json!({"strategy": {"canary": vec![json!({"nodes": 1}); 16]}}), ACCEPTED),
        (json!({"strategy": {"canary": vec![json!({"nodes": 1}); 17]}}), TOO_MANY),
        (json!({"strategy": {"preStage": {}, "oneZoneAtATime": true}}), ACCEPTED),
    ]);
    specs
}

fn versions() -> Vec<(Value, Option<&'static str>)> {
    let mut specs = Vec::new();
    let targets = "latest; 1.20.5; 1.20.5-rc.1+build.7; =1.20.5; 1.20; 1; ~1.20; ^1.20.3; 1.20.*; 1.x; v1.20.5; v1.20; \
                   >=v1.20, <v1.23; >=1.20.0, <1.21.0; >=1.20.0,<1.21.0; >= 1.20.0 , < 1.21.0; >1, <=2.0.0-beta.1";
    for target in targets.split("; ") {
        let known = VersionReq::parse(&target.replace('v', ""));
        assert!(target == "latest" || known.is_ok(), "{target}");
        specs.push((json!({"version": {"target": target}}), ACCEPTED));
        let refusal = if target == "latest" { PATTERN } else { ACCEPTED };
        specs.push((json!({"version": {"exclude": [target]}}), refusal));
    }
    let targets =
        "newest; Latest; V1.20.5; vv1.20.5; latest, 1.20.5; *; 1.20.5 1.20.6; 1.20.5,; >; =>1.20; 1.20 || 1.21";
    for target in targets.split("; ").chain(["", "1.2\n", " 1.20.5"]) {
        specs.push((json!({"version": {"target": target}}), PATTERN));
        specs.push((json!({"version": {"exclude": ["1.20.4", target]}}), PATTERN));
    }
    specs.extend([
        (json!({"version": {"target": format!("1.20.5-{}", "a".repeat(300))}}), TOO_LONG),
        (json!({"version": {"exclude": vec!["1.20.5"; 64]}}), ACCEPTED),
        (json!({"version": {"exclude": ["1.20.5 on aws-k8s-1.37/x86_64", ">=1.20, <1.23  on metal-k8s-1.37/aarch64"]}}), ACCEPTED),
        (json!({"version": {"exclude": ["1.20.5 on x86_64"]}}), PATTERN),
        (json!({"version": {"exclude": ["1.20.5 on aws-k8s-1.37/x86_64/b"]}}), PATTERN),
        (json!({"version": {"exclude": ["1.20.5 on AWS/x86_64"]}}), PATTERN),
        (json!({"version": {"exclude": ["on aws-k8s-1.37/x86_64"]}}), PATTERN),
        (json!({"version": {"target": "1.20.5 on aws-k8s-1.37/x86_64"}}), PATTERN),
        (json!({"version": {"exclude": vec!["1.20.5"; 65]}}), TOO_MANY),
        (json!({"version": {"minimumAge": "72h", "ignoreWaves": true, "refreshInterval": "6h"}}), ACCEPTED),
        (json!({"version": {"minimumAge": "3d"}}), PATTERN),
        (json!({"version": {"minimumAge": "0s"}}), ACCEPTED),
    ]);
    specs
}

fn schedules() -> Vec<(Value, Option<&'static str>)> {
    let mut specs = Vec::new();
    let mut all = |schedule: &Value, refusal| {
        specs.push((json!({"schedule": schedule}), refusal));
        specs.push((json!({"nodeGroups": [{"name": "a", "selector": {}, "schedule": schedule}]}), refusal));
    };
    let window = |key: &str, value: Value| {
        let mut window = json!({"cron": "0 2 * * 1-5", "duration": "4h"});
        window[key] = value;
        json!({"windows": [window]})
    };
    // The schema does not check the meaning: of the last one, there is none.
    let crons = "* * * * *; 0 2 * * 1-5; 0,30 2-5 * * *; */15 0-23/2 1,15 * *; 0 2 ? * MON-FRI; 0 2 * jan,DEC sun; \
                 0 2 L * *; 0 2 15W * ?; 0 2 * * TUE#2; 0 2 * * 5L; 0  2  *  *  *; 61 25 30 2 8";
    crons.split("; ").for_each(|cron| all(&window("cron", json!(cron)), ACCEPTED));
    let crons = "0 2 * *; 0 0 2 * * *; @daily; 0 2 * * +1; 0 2 * * 1;2; every night at two";
    for cron in crons.split("; ").chain(["", "0 2 * * * ", "0 2 * *\n*"]) {
        all(&window("cron", json!(cron)), PATTERN);
    }
    all(&window("cron", json!(format!("{} 2 * * *", "0,".repeat(100)))), TOO_LONG);
    for zone in ["UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "Mars/Base"] {
        all(&window("timeZone", json!(zone)), ACCEPTED);
        all(&json!({"blackouts": [{"from": "2026-12-24", "timeZone": zone}]}), ACCEPTED);
    }
    for zone in ["", "+01:00", "Europe/", "../etc/localtime", "Europe/Berlin ", "a/b/c/d"] {
        all(&window("timeZone", json!(zone)), PATTERN);
        all(&json!({"blackouts": [{"from": "2026-12-24", "timeZone": zone}]}), PATTERN);
    }
    for (days, refusal) in [
        (json!({"from": "2026-12-24"}), ACCEPTED),
        (json!({"from": "2026-12-24", "to": "2026-12-24"}), ACCEPTED),
        (json!({"from": "2026-12-24", "to": "2027-01-06"}), ACCEPTED),
        // That the day does not exist is found by the controller.
        (json!({"from": "2026-02-30"}), ACCEPTED),
        (json!({"from": "2026-12-24", "to": "2026-12-23"}), Some("a blackout ends on the day it begins, or later")),
        (json!({"from": "2026-12-32"}), PATTERN),
        (json!({"from": "2026-13-01"}), PATTERN),
        (json!({"from": "2026-00-10"}), PATTERN),
        (json!({"from": "24.12.2026"}), PATTERN),
        (json!({"from": "2026-12-24T00:00:00Z"}), TOO_LONG),
        (json!({"from": "2026-12-24", "to": "2027-1-6"}), PATTERN),
        (json!({"to": "2026-12-24"}), REQUIRED),
    ] {
        all(&json!({"blackouts": [days]}), refusal);
    }
    all(&json!({"windows": [{"cron": "0 2 * * *"}]}), REQUIRED);
    all(&json!({"windows": [{"duration": "4h"}]}), REQUIRED);
    all(&window("duration", json!("4 hours")), PATTERN);
    all(&json!({"stopStartingBefore": "30m"}), ACCEPTED);
    all(&json!({"stopStartingBefore": "half an hour"}), PATTERN);
    let many = |count: usize| vec![json!({"cron": "0 2 * * *", "duration": "4h"}); count];
    all(&json!({"windows": many(32)}), ACCEPTED);
    all(&json!({"windows": many(33)}), TOO_MANY);
    all(&json!({"blackouts": vec![json!({"from": "2026-12-24"}); 64]}), ACCEPTED);
    all(&json!({"blackouts": vec![json!({"from": "2026-12-24"}); 65]}), TOO_MANY);
    specs
}

fn health() -> Vec<(Value, Option<&'static str>)> {
    let mut specs = Vec::new();
    let mut all = |health: &Value, refusal| {
        specs.push((json!({"health": health}), refusal));
        specs.push((json!({"nodeGroups": [{"name": "a", "selector": {}, "health": health}]}), refusal));
    };
    for (soak, refusal) in [
        ("1s", ACCEPTED),
        ("1ms", SOAK),
        ("1h0m", ACCEPTED),
        ("0s", SOAK),
        ("0h0m0s0ms", SOAK),
        ("000000000s", SOAK),
        ("1d", PATTERN),
        // Longer than the server can count.
        ("999999999h", Some("rule")),
    ] {
        all(&json!({"after": {"soak": soak}}), refusal);
    }
    let expression = |name: &str, query: &str| json!({"name": name, "query": query});
    for side in ["before", "after"] {
        let with = |expressions: Value| json!({side: {"expressions": expressions}});
        all(
            &with(json!([expression("errors", "up == 0"), expression("latency", "up{node=\"$node\"} == 0")])),
            ACCEPTED,
        );
        all(&with(json!([expression("errors", "up == 0"), expression("errors", "up == 1")])), DUPLICATE);
        all(&with(json!([expression("", "up == 0")])), Some("at least 1 chars"));
        all(&with(json!([expression("errors", "")])), Some("at least 1 chars"));
        all(&with(json!([expression(&"a".repeat(64), "up == 0")])), TOO_LONG);
        all(&with(json!([expression("errors", &"a".repeat(2049))])), TOO_LONG);
        all(&with(json!([{"name": "errors"}])), REQUIRED);
        all(&with((0..17).map(|i| expression(&i.to_string(), "up == 0")).collect()), TOO_MANY);
        object_checks(side).into_iter().for_each(|(health, refusal)| all(&health, refusal));
    }
    all(&json!({"before": {"podsReady": true}, "after": {"podsReady": false, "timeout": "20m"}}), ACCEPTED);
    for (url, refusal) in [
        ("http://prometheus.monitoring.svc:9090", ACCEPTED),
        ("https://prometheus.example/prefix?tenant=a", ACCEPTED),
        ("http://me:secret@prometheus:9090", CREDENTIALS),
        ("https://secret@prometheus", CREDENTIALS),
        ("http:///me:secret@prometheus", CREDENTIALS),
        // No URL at all, but a password.
        ("http://me:sec/ret@prometheus", CREDENTIALS),
        ("http://prometheus/%40me", ACCEPTED),
        ("prometheus:9090", PATTERN),
        ("ftp://prometheus", PATTERN),
        ("http://", PATTERN),
        ("http://a b", PATTERN),
        ("", PATTERN),
    ] {
        specs.push((json!({"prometheus": {"url": url}}), refusal));
    }
    specs.extend([
        (json!({"prometheus": {"timeout": "10s"}}), REQUIRED),
        (json!({"prometheus": {"url": "http://a", "timeout": "10s", "interval": "1m"}}), ACCEPTED),
        (json!({"prometheus": {"url": format!("http://{}", "a".repeat(512))}}), TOO_LONG),
    ]);
    specs
}

/// Checks of objects on this side of an update.
fn object_checks(side: &str) -> Vec<(Value, Option<&'static str>)> {
    let check = |change: Value| {
        let mut check = json!({"name": "a", "apiVersion": "apps/v1", "kind": "Deployment", "expression": "self.status.replicas > 0"});
        if let (Some(check), Value::Object(change)) = (check.as_object_mut(), change) {
            check.extend(change);
        }
        check
    };
    let selector = json!({"matchLabels": {"tier": "critical"}});
    let with = |checks: Value| json!({side: {"objects": checks}});
    let one = |change: Value| with(json!([check(change)]));
    vec![
        (one(json!({})), ACCEPTED),
        (one(json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop", "objectName": "a.b"})), ACCEPTED),
        (one(json!({"apiVersion": "ceph.rook.io/v1beta2", "selector": selector})), ACCEPTED),
        (one(json!({"objectName": "a", "selector": selector})), Some("not both")),
        (one(json!({"apiVersion": "apps"})), PATTERN),
        (one(json!({"apiVersion": "apps/v1/x"})), PATTERN),
        (one(json!({"kind": "deployments"})), PATTERN),
        (one(json!({"apiVersion": "v1", "kind": "Secret"})), Some("Secrets are not read for checks")),
        (one(json!({"namespace": "a/b"})), PATTERN),
        (one(json!({"expression": ""})), Some("at least 1 chars")),
        (one(json!({"expression": "a".repeat(1025)})), TOO_LONG),
        (with(json!([{"name": "a", "apiVersion": "v1", "kind": "Pod"}])), REQUIRED),
        (with(json!([check(json!({})), check(json!({}))])), DUPLICATE),
        (with((0..8).map(|i| check(json!({"name": i.to_string()}))).collect()), ACCEPTED),
        (with((0..9).map(|i| check(json!({"name": i.to_string()}))).collect()), TOO_MANY),
    ]
}

fn groups() -> Vec<(Value, Option<&'static str>)> {
    let group = |name: &str, selector: Value| json!({"name": name, "selector": selector});
    let mut specs = vec![
        (json!({"nodeGroups": [group("a", json!({})), group("b", json!({}))]}), ACCEPTED),
        (json!({"nodeGroups": [group("a", json!({})), group("a", json!({}))]}), DUPLICATE),
        (json!({"nodeGroups": [{"selector": {}}]}), Some("omits all key fields")),
        (json!({"nodeGroups": [{"name": "a"}]}), REQUIRED),
        (json!({"nodeGroups": (0..32).map(|i| group(&format!("g{i}"), json!({}))).collect::<Vec<_>>()}), ACCEPTED),
        (json!({"nodeGroups": (0..33).map(|i| group(&format!("g{i}"), json!({}))).collect::<Vec<_>>()}), TOO_MANY),
        (json!({"nodeGroups": [group(&"a".repeat(64), json!({}))]}), TOO_LONG),
    ];
    for name in ["", "A", "a_b", "-a", "a-", "a.b", "a b"] {
        specs.push((json!({"nodeGroups": [group(name, json!({}))]}), PATTERN));
    }
    for name in ["a", "a-1", "1"] {
        specs.push((json!({"nodeGroups": [group(name, json!({}))]}), ACCEPTED));
    }
    let comparison = |operator: &str, values: Option<Value>| {
        let mut requirement = json!({"key": "example.com/tier", "operator": operator});
        if let Some(values) = values {
            requirement["values"] = values;
        }
        json!({"matchExpressions": [requirement]})
    };
    for (selector, refusal) in [
        (json!({"matchLabels": {"tier": "db", "example.com/zone": ""}}), ACCEPTED),
        (json!({"matchLabels": {"tier": "a".repeat(64)}}), TOO_LONG),
        (json!({"matchLabels": {"tier": 1}}), Some("expected string")),
        (
            json!({"matchLabels": (0..17).map(|i| (i.to_string(), json!("a"))).collect::<serde_json::Map<_, _>>()}),
            Some("must have at most 16"),
        ),
        (comparison("In", Some(json!(["db", "web"]))), ACCEPTED),
        (comparison("NotIn", Some(json!(["db"]))), ACCEPTED),
        (comparison("Exists", None), ACCEPTED),
        (comparison("DoesNotExist", None), ACCEPTED),
        (comparison("Exists", Some(json!([]))), ACCEPTED),
        (comparison("In", None), VALUES),
        (comparison("In", Some(json!([]))), VALUES),
        (comparison("NotIn", None), VALUES),
        (comparison("Exists", Some(json!(["db"]))), VALUES),
        (comparison("DoesNotExist", Some(json!(["db"]))), VALUES),
        (comparison("Gt", Some(json!(["5"]))), ENUMERATION),
        (comparison("In", Some(json!(vec!["a"; 65]))), TOO_MANY),
        (json!({"matchExpressions": [{"operator": "Exists"}]}), REQUIRED),
        (json!({"matchExpressions": vec![json!({"key": "tier", "operator": "Exists"}); 17]}), TOO_MANY),
    ] {
        specs.push((json!({"nodeGroups": [group("a", selector)]}), refusal));
    }
    specs
}

pub(super) async fn schema_rejects_invalid_policies(client: Client) -> anyhow::Result<()> {
    let operators = api(client);
    let apply = async |name: &str, spec: &Value| {
        operators.patch(name, &operator_apply().dry_run().force(), &Patch::Apply(&object(name, spec))).await
    };
    expect("another name", apply("other", &json!({"enabled": true})).await, Some("named default"))?;
    let mut wrong = Vec::new();
    for (spec, refusal) in specs() {
        wrong.extend(expect(&spec.to_string(), apply("default", &spec).await, refusal).err().map(|e| format!("{e:#}")));
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The runbook, the web API and the controller know this refusal, whose code is that of a broken server.
    let refused = apply("default", &json!({"maxUnavalable": 1})).await;
    ensure!(matches!(&refused, Err(kube::Error::Api(status)) if status.code == 500), "{refused:?}");
    Ok(())
}

/// Checks the URL that an earlier schema accepted: it keeps no other field, and no status, from being written.
pub(super) async fn stored_url_with_credentials_stops_no_other_write(
    control_plane: &ControlPlane,
) -> anyhow::Result<()> {
    const RULES: &str =
        "/schema/openAPIV3Schema/properties/spec/properties/prometheus/properties/url/x-kubernetes-validations";
    let operators = api(control_plane.client());
    let definitions: Api<CustomResourceDefinition> = Api::all(control_plane.client());
    let earlier = json!([{"op": "remove", "path": format!("/spec/versions/0{RULES}")}]);
    let earlier = Patch::Json::<()>(serde_json::from_value(earlier)?);
    definitions.patch(&format!("bottlerocketupdateoperators.{GROUP}"), &PatchParams::default(), &earlier).await?;
    let write = async |url: &str, dry_run: bool| {
        let spec = json!({"prometheus": {"url": url}});
        let params = PatchParams { dry_run, ..operator_apply().force() };
        operators.patch("default", &params, &Patch::Apply(&object("default", &spec))).await
    };
    let (stored, other) = ("http://me:secret@prometheus:9090", "http://me:other@prometheus:9090");
    until("the earlier schema is in force", async || Ok(write(stored, false).await.is_ok())).await?;
    kubectl(control_plane, &["apply", "--server-side", "--force-conflicts", "-f", &manifest("crds.yaml")]).await?;
    until("the schema is in force", async || Ok(write(other, true).await.is_err())).await?;

    expect("other credentials", write(other, true).await, CREDENTIALS)?;
    expect("the same again", write(stored, false).await, ACCEPTED)?;
    let merge = PatchParams::default();
    for patch in [
        json!({"spec": {"maxUnavailable": 2}}),
        json!({"spec": {"prometheus": {"timeout": "5s"}}}),
        json!({"metadata": {"annotations": {"brupop.bottlerocket.aws/resume": "1"}}}),
    ] {
        operators.patch("default", &merge, &Patch::Merge(&patch)).await.with_context(|| patch.to_string())?;
    }
    let status = json!({"status": {"observedGeneration": 1}});
    operators.patch_status("default", &merge, &Patch::Merge(&status)).await.context("the status")?;
    let undo = json!({
        "metadata": {"annotations": {"brupop.bottlerocket.aws/resume": null}},
        "spec": {"prometheus": null, "maxUnavailable": null},
    });
    operators.patch("default", &merge, &Patch::Merge(&undo)).await?;
    operators.patch_status("default", &merge, &Patch::Merge(&json!({"status": {"observedGeneration": null}}))).await?;
    kubectl(control_plane, &["apply", "--server-side", "--force-conflicts", "-f", &manifest("brupop.yaml")]).await?;
    Ok(())
}

/// Checks misspelt fields: server-side apply and `kubectl` refuse them, other writes drop them.
pub(super) async fn unknown_fields_are_rejected_or_dropped(client: Client) -> anyhow::Result<()> {
    // Untyped, since the Rust type would drop it as well.
    let resource = ApiResource::erase::<BottlerocketUpdateOperator>(&());
    let operators: Api<DynamicObject> = Api::namespaced_with(client, SYSTEM_NAMESPACE, &resource);
    let patch = json!({"spec": {
        "maxUnavalable": 2,
        "schedule": {"window": [], "windows": [{"cron": "0 2 * * *", "duration": "4h", "zone": "UTC"}]},
        "nodeGroups": [{"name": "a", "selector": {"labels": {"tier": "db"}}}],
    }});
    let dry_run = PatchParams { dry_run: true, ..PatchParams::default() };
    let before = operators.get("default").await?.data["spec"].clone();
    let mut after = operators.patch("default", &dry_run, &Patch::Merge(&patch)).await?.data["spec"].clone();
    assert_eq!(after["schedule"].take(), json!({"windows": [{"cron": "0 2 * * *", "duration": "4h"}]}));
    assert_eq!(after["nodeGroups"].take(), json!([{"name": "a", "selector": {}}]));
    assert_eq!(after["maxUnavalable"], Value::Null);
    assert_eq!(after["maxUnavailable"], before["maxUnavailable"]);
    Ok(())
}

/// A spec with a value in every part.
fn full() -> Value {
    let schedule = json!({
        "windows": [{"cron": "0 2 * * *", "duration": "4h"}], "stopStartingBefore": "30m",
        "blackouts": [{"from": "2026-12-24"}],
    });
    let health = json!({
        "before": {"podsReady": true, "maxUnhealthyNodes": 3, "expressions": [{"name": "a", "query": "up == 0"}]},
        "after": {
            "soak": "5m", "expressions": [{"name": "a", "query": "up == 0"}],
            "objects": [{"name": "b", "apiVersion": "v1", "kind": "Pod", "expression": "has(self.spec)"}],
        },
    });
    json!({
        "enabled": true,
        "version": {"target": "1.20.5", "exclude": ["1.20.4"]},
        "schedule": schedule,
        "strategy": {"canary": [{"nodes": 1}], "preStage": {"maxConcurrent": 5}},
        "drain": {"timeout": "5m", "barePods": "Evict"},
        "loadBalancer": {"leaveBeforeDrain": "30s"},
        "autoscaler": {"protect": true},
        "autoscaling": {"aws": {"mode": "Standby"}},
        "hooks": [{"name": "ceph", "before": {"timeout": "5m", "onTimeout": "Continue"}}],
        "notices": {
            "blockedAfter": "5m",
            "receivers": [{"name": "chat", "format": "Slack", "urlKey": "chat", "tokenKey": "token", "events": ["Frozen"]}],
        },
        "health": health,
        "prometheus": {"url": "http://prometheus:9090", "timeout": "5s"},
        "failurePolicy": {"backOff": "5m"},
        "deadlines": {"stage": "5m"},
        "nodeGroups": [{
            "name": "db",
            "selector": {"matchLabels": {"tier": "db"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
            "schedule": schedule, "drain": {"timeout": "5m"}, "health": health,
        }],
    })
}

/// The objects and lists within this one, as JSON pointers, without those in lists, which have required fields.
fn parts(path: &str, value: &Value, found: &mut Vec<String>) {
    let fields = value.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value, true));
    let items = value.as_array().into_iter().flatten().enumerate().map(|(i, value)| (i.to_string(), value, false));
    for (key, value, named) in fields.chain(items) {
        let path = format!("{path}/{key}");
        if named && (value.is_object() || value.is_array()) {
            found.push(path.clone());
        }
        parts(&path, value, found);
    }
}

/// Checks the null that server-side apply of `{}` over fields of the same manager can leave: it is not refused, and the
/// Rust types can read it, since one unreadable object keeps a watch from reading any.
pub(super) async fn emptied_policy_fields_are_accepted_in_server_side_apply(
    control_plane: &ControlPlane,
) -> anyhow::Result<()> {
    let operators = api(control_plane.client());
    let before = operators.get("default").await?.spec;
    let full = full();
    let mut all = Vec::new();
    parts("", &full, &mut all);
    for part in &all {
        operators.patch("default", &operator_apply().force(), &Patch::Apply(&object("default", &full))).await?;
        let mut spec = full.clone();
        if let Some(value) = spec.pointer_mut(part) {
            *value = if value.is_array() { json!([]) } else { json!({}) };
        }
        let applied =
            operators.patch("default", &operator_apply().force(), &Patch::Apply(&object("default", &spec))).await;
        // Without its address, or its mode, it would be useless.
        let refused = match part.as_str() {
            "/prometheus" => Some("spec.prometheus: "),
            "/autoscaling/aws" => Some("spec.autoscaling.aws"),
            _ => None,
        };
        expect(&format!("{part} emptied"), applied, refused)?;
        operators.get("default").await.with_context(|| format!("to be read with {part} emptied"))?;
    }
    let empty = operators.patch("default", &operator_apply(), &Patch::Apply(&object("default", &json!({})))).await?;
    ensure!(
        empty.spec.enabled == Some(false),
        "updates are off without the field, also if it was there: {:?}",
        empty.spec
    );
    kubectl(control_plane, &["apply", "--server-side", "-f", &manifest("brupop.yaml")]).await?;
    assert_eq!(operators.get("default").await?.spec, before);
    Ok(())
}
