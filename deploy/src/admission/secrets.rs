//! Secrets of the controller. A rule of RBAC cannot name an object that is to be created, so that the right to create Secrets
//! is the right to one of any name and type: one of the type `kubernetes.io/service-account-token` is filled with a token
//! of its account that does not expire. Under a name that the controller may read, and that is free, as `brupop-ca` is
//! where the certificate is provided, a stolen token would so become a lasting one.

use models::names::{CA_SECRET, CONTROLLER, HISTORY_KEY_SECRET, PERMIT_KEY_SECRET, SERVING_SECRET};
use serde_json::{Value, json};

use super::limits::{Limits, list, validation};

/// The Secrets that the controller makes.
const NAMES: [&str; 4] = [CA_SECRET, SERVING_SECRET, PERMIT_KEY_SECRET, HISTORY_KEY_SECRET];

/// The types that they have.
const TYPES: [&str; 2] = ["Opaque", "kubernetes.io/tls"];

/// Annotation of a Secret: the service account whose token Kubernetes puts into it.
const TOKEN_OF: &str = "kubernetes.io/service-account.name";

/// The policy of the controller.
pub(super) fn of_controller() -> [Value; 2] {
    let part = "the controller";
    let annotations = "object.metadata.?annotations.orValue({})";
    let limits = Limits {
        name: "brupop-controller-secrets",
        account: CONTROLLER,
        part,
        rule: json!({
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"], "operations": ["CREATE", "UPDATE"],
            "scope": "*",
        }),
        variables: Vec::new(),
        validations: vec![
            validation(
                &format!("object.metadata.name in {}", list(&NAMES)),
                part,
                &format!("writes no other Secrets than {}", NAMES.join(", ")),
            ),
            validation(
                &format!("object.?type.orValue('') in {}", list(&TYPES)),
                part,
                &format!("writes Secrets of the types {} alone", TYPES.join(" and ")),
            ),
            validation(
                &format!("!('{TOKEN_OF}' in {annotations})"),
                part,
                &format!("may not have a token put into a Secret: annotation {TOKEN_OF}"),
            ),
        ],
    };
    limits.objects()
}
