//! The namespaces of Jobs as the leader's Lease records them: the policy may have dropped a hook, or be deleted, before all that its Jobs have
//! prepared is taken back, and the next leader finds these namespaces nowhere else.

use std::collections::BTreeSet;

use k8s_openapi::api::coordination::v1::Lease;

/// Annotation of the Lease: namespaces, with commas between them.
const NAMESPACES_ANNOTATION: &str = "brupop.bottlerocket.aws/job-namespaces";

/// Returns the namespaces that a Lease records.
pub(super) fn recorded(lease: &Lease) -> BTreeSet<String> {
    let names = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NAMESPACES_ANNOTATION));
    let names = names.into_iter().flat_map(|names| names.split(','));
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Has a Lease record these namespaces, and no others.
pub(super) fn record(lease: &mut Lease, namespaces: &BTreeSet<String>) {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    if namespaces.is_empty() {
        annotations.remove(NAMESPACES_ANNOTATION);
    } else {
        let names: Vec<&str> = namespaces.iter().map(String::as_str).collect();
        annotations.insert(NAMESPACES_ANNOTATION.to_owned(), names.join(","));
    }
}
