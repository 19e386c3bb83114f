use kube::client::Body;
use kube::core::Status;

use super::*;

/// A denial of the read-only policy.
const DENIAL: &str = "bottlerocketshadows.brupop.bottlerocket.aws \"brs-migration-trial\" is forbidden: \
     ValidatingAdmissionPolicy 'brupop-earlier-versions' with binding 'brupop-earlier-versions' denied request: versions v1 \
     and v2 of BottlerocketShadow are read-only";

const MISSING_RIGHT: &str = "bottlerocketshadows.brupop.bottlerocket.aws \"brs-a\" is forbidden: User \
     \"system:serviceaccount:brupop-system:brupop-controller\" cannot patch resource \"bottlerocketshadows\" in API group \
     \"brupop.bottlerocket.aws\" in the namespace \"updates\"";

#[test]
fn read_only_is_what_read_only_policy_denies_and_nothing_else() {
    for (answer, expected) in [
        (DENIAL, true),
        ("admission webhook \"validation.gatekeeper.sh\" denied the request: [labels] you must provide labels", false),
        ("admission webhook \"validate.kyverno.svc-fail\" denied the request: policy require-team: denied", false),
        ("x is forbidden: ValidatingAdmissionPolicy 'labels' with binding 'labels' denied request: no label", false),
        ("x is forbidden: exceeded quota: shadows, requested: 1, used: 5, limited: 5", false),
        ("BottlerocketShadow \"brs-migration-trial\" is invalid: spec.state: Unsupported value", false),
    ] {
        assert_eq!(is_of_read_only_policy(answer), expected, "{answer}");
    }
}

#[test]
fn missing_right_is_what_rbac_says_and_never_denial_of_admission() {
    let webhook = "admission webhook \"rights.example.com\" denied the request: ";
    for (code, answer, right) in [
        (403, MISSING_RIGHT.to_owned(), true),
        (403, format!("{webhook}User brupop-controller cannot change shadows"), false),
        (403, format!("{webhook}{MISSING_RIGHT}"), false),
        (403, DENIAL.to_owned(), false),
        (403, format!("{DENIAL}: {MISSING_RIGHT}"), false),
        (422, MISSING_RIGHT.to_owned(), false),
    ] {
        let status = Status { code, message: answer.clone(), ..Status::default() };
        let error = CallError::from(kube::Error::Api(Box::new(status)));
        let seen = match error {
            CallError::MissingRight(message) => (true, message),
            CallError::Refused(message) => (false, message),
            other => panic!("{other:?}"),
        };
        assert_eq!(seen, (right, answer));
    }
}

/// Migrates a shadow of the earlier operator beside these pods. Returns the methods of the calls, and the result.
async fn migrated_beside(pods: &[(&str, &str)]) -> (Vec<String>, Result<bool, CallError>) {
    let (service, mut server) = tower_test::mock::pair::<HttpRequest<Body>, http::Response<Body>>();
    let applier = Applier::of_leader(kube::Client::new(service, "default"));
    let objects = Objects { applier, earlier: EarlierPods::listed(pods) };
    let answers = tokio::spawn(async move {
        let (mut methods, mut attempt) = (Vec::new(), Value::Null);
        while let Some((request, reply)) = server.next_request().await {
            methods.push(request.method().to_string());
            if request.method() == http::Method::PATCH {
                attempt = 0.into();
            }
            let spec = json!({"state": "Idle", "attempt": attempt});
            let object = json!({"metadata": {"name": "brs-a", "resourceVersion": "7"}, "spec": spec});
            reply.send_response(http::Response::new(Body::from(object.to_string().into_bytes())));
        }
        methods
    });
    let key = Key { namespace: "updates".to_owned(), name: "brs-a".to_owned() };
    let versions = vec![("v2".to_owned(), true), ("v3".to_owned(), true)];
    let definition = Definition { versions, storage: "v3".to_owned(), ..Definition::default() };
    let result = objects.migrate(Work::Earlier, &definition, &Policy::in_force(None), &key).await;
    drop(objects);
    (answers.await.unwrap(), result)
}

#[tokio::test]
async fn nothing_is_erased_beside_pod_of_earlier_operator() {
    let (methods, result) = migrated_beside(&[("agent-a", "Running"), ("agent-b", "Succeeded")]).await;
    assert!(matches!(&result, Err(CallError::EarlierPods(pods)) if *pods == ["old/agent-a"]), "{result:?}");
    assert_eq!(methods, ["GET", "GET"]);
    let (methods, result) = migrated_beside(&[("agent-b", "Succeeded"), ("agent-c", "Failed")]).await;
    assert!(matches!(result, Ok(true)), "pods that have ended do not count: {result:?}");
    assert_eq!(methods, ["GET", "GET", "PATCH"]);
}
