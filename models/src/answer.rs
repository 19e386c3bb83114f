//! The texts of the Kubernetes API server's answers.

/// Returns true for an answer that names a missing right: of RBAC, or to a role or binding whose rights the client does not
/// have itself. The text of an admission check is free, and may read like one. Quotas and namespaces that are being
/// deleted refuse with the same code, 403.
pub fn is_of_rbac(answer: &str) -> bool {
    const RIGHTS: [&str; 2] = ["is forbidden: User \"", "is attempting to grant RBAC permissions not currently held"];
    const ADMISSION: [&str; 2] = ["denied the request", "denied request"];
    let has = |texts: [&str; 2]| texts.iter().any(|text| answer.contains(text));
    has(RIGHTS) && !has(ADMISSION)
}
