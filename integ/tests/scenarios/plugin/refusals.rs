//! The plugin with the rights of several users: each command either works or names the right that is missing, and what is
//! done next.

use super::*;

/// The binding of a role to the user of the same name.
const BINDING: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: USER, namespace: brupop-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: USER}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: USER}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: USER, namespace: brupop-system}
rules:
";

/// The rights of the user `bound`: everything of the operator in its namespace, and nothing else.
const BOUND: &str = r#"- {apiGroups: [brupop.bottlerocket.aws], resources: ["*"], verbs: ["*"]}
- {apiGroups: [apps], resources: [controllerrevisions], verbs: [list]}"#;

/// The rights of the user `reader`: to read the objects of the operator in its namespace.
const READER: &str = r#"- {apiGroups: [brupop.bottlerocket.aws], resources: ["*"], verbs: [get, list]}"#;

/// Gives a user these rights in the operator's namespace, and no others.
async fn grant(w: &Walk<'_>, user: &str, rules: &str) -> Result<()> {
    w.apply(&(BINDING.replace("USER", user) + rules)).await
}

/// The outcome of a command.
enum Outcome {
    Works,
    /// It lacks this right.
    Needs(&'static str),
}

use Outcome::{Needs, Works};

const PATCH_OPERATOR: &str = "patch bottlerocketupdateoperators in brupop-system";
const GET_DEFINITIONS: &str = "get customresourcedefinitions";
const LIST_DEPLOYMENTS: &str = "list deployments in all namespaces";

/// Commands, and what comes of each for the users `viewer` and `bound`.
const COMMANDS: &[(&str, Outcome, Outcome)] = &[
    ("status", Works, Works),
    ("explain node-1", Works, Works),
    ("watch --until=completed", Works, Needs("list nodes")),
    ("doctor", Works, Works),
    ("plan", Works, Needs("list nodes")),
    ("history", Works, Works),
    ("history --verify", Needs(""), Needs("get configmaps brupop-history-keys in brupop-system")),
    ("pause", Needs(PATCH_OPERATOR), Works),
    ("resume", Works, Works),
    ("hold node-1", Needs("patch nodes"), Needs("get nodes")),
    ("unhold node-1", Works, Needs("get nodes")),
    ("retry node-1", Works, Needs("get nodes")),
    ("release node-1", Works, Needs("get nodes")),
    ("quarantine 1.99.0", Needs(PATCH_OPERATOR), Works),
    ("pin 1.20.5", Needs(PATCH_OPERATOR), Needs("list nodes")),
    ("test-notices", Needs(""), Needs("")),
    ("preflight", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("install", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("uninstall --dry-run", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("uninstall --yes", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("takeover preflight", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("takeover settings", Needs(LIST_DEPLOYMENTS), Needs(LIST_DEPLOYMENTS)),
    ("takeover watch --once", Needs(LIST_DEPLOYMENTS), Needs(LIST_DEPLOYMENTS)),
    ("takeover swap --dry-run", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
    ("takeover undo --dry-run", Needs(GET_DEFINITIONS), Needs(GET_DEFINITIONS)),
];

/// Runs a command as a user, and checks what comes of it. Returns its output.
async fn checked(w: &Walk<'_>, line: &str, user: &str, expected: &Outcome) -> Result<String> {
    let output = w.run(&format!("{line} --as {user}"), 120, "").await?;
    let (printed, errors) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    let all = format!("{line} of {user}: {:?}\n{printed}---\n{errors}", output.status.code());
    let Needs(right) = expected else {
        ensure!(output.status.success(), "{all}");
        return Ok(printed);
    };
    ensure!(output.status.code() == Some(FAILED), "{all}");
    // Without a record there is nothing to verify, and without receivers nothing to send.
    if !right.is_empty() {
        ensure!(errors.contains(&format!("you need the right to {right}")), "{all}");
        ensure!(errors.contains("the API server answers 403") && errors.contains("(docs/plugin.md, Rights)"), "{all}");
        // The first steps of a takeover are listed with all rights that they need.
        ensure!(printed.is_empty() || printed.starts_with("you need these rights too"), "{all}");
    }
    Ok(errors)
}

/// The first YAML block of docs/plugin.md that contains a text.
fn example(of: &str) -> Result<String> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/plugin.md"))?;
    let block =
        page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).find(|block| block.contains(of));
    Ok(block.with_context(|| format!("docs/plugin.md has no YAML with {of}"))?.to_owned())
}

/// Applies the documented roles of users, and a binding for a user who may only read.
pub(super) async fn grant_documented_rights(w: &Walk<'_>) -> Result<()> {
    let binding = "\n---\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: viewer}\n\
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: brupop-view}\n\
        subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]";
    w.apply(&(example("kind: ClusterRole")? + binding)).await
}

pub(super) async fn refused_commands_name_the_missing_right_and_write_nothing(w: &mut Walk<'_>) -> Result<()> {
    let w = &*w;
    grant_documented_rights(w).await?;
    grant(w, "bound", BOUND).await?;
    let before = w.written().await?;
    for (line, viewer, _) in COMMANDS {
        checked(w, line, "viewer", viewer).await?;
    }
    ensure!(w.written().await? == before, "something was written");
    for (line, _, bound) in COMMANDS {
        checked(w, line, "bound", bound).await?;
    }
    // A user with the right has written another revision of the policy, which only that user may undo.
    poll("the quarantine is a revision", async || {
        Ok(plugin(w, &["undo", "--dry-run"]).await?.status.success().then_some(()))
    })
    .await?;
    checked(w, "undo", "viewer", &Needs(PATCH_OPERATOR)).await?;
    checked(w, "undo", "bound", &Works).await?;
    ensure!(w.written().await?[0]["version"]["exclude"].is_null(), "the quarantine is still there");
    poll("the policy without the quarantine is revision 3", async || {
        let text = w.ok("history", &[]).await?;
        Ok(text.lines().any(|line| line.trim_start().starts_with("3 ")).then_some(()))
    })
    .await?;
    w.hold("node-1", "=").await?;
    checked(w, "unhold node-1", "viewer", &Needs("patch nodes")).await?;
    w.hold("node-1", "-").await?;

    // The checks of an installation go on, and name every right.
    let all = [
        "get bottlerocketupdateoperators in brupop-system",
        "list bottlerocketshadows in brupop-system",
        "get customresourcedefinitions",
        "list nodes",
        "list pods in all namespaces",
        "get configmaps in brupop-agents",
        "list leases in kube-node-lease",
    ];
    let of_bound = ["get customresourcedefinitions", "list nodes", "list leases in kube-node-lease"];
    for (user, rights, result) in [("guest", all.as_slice(), "Kubernetes v"), ("bound", &of_bound, "the policy")] {
        let text = checked(w, "doctor", user, &Works).await?;
        for right in rights {
            ensure!(text.contains(&format!("Not read:  you need the right to {right}\n")), "{right}: {text}");
        }
        ensure!(text.contains(result) && text.contains("not all could be read"), "{text}");
    }
    let text = checked(w, "doctor -n nowhere", "bound", &Works).await?;
    ensure!(text.contains("you need the right to get bottlerocketupdateoperators in nowhere\n"), "{text}");
    Ok(())
}

/// The missing rights are named.
pub(super) async fn user_with_fewer_rights_sees_less(w: &mut Walk<'_>) -> Result<()> {
    grant(w, "reader", READER).await?;
    let parts = ["Not read:  you need the right to list nodes", "DrainBlocked", "node-1", "node-2"];
    w.ok("status --as reader", &parts).await?;
    w.ok("explain node-2 --as reader", &["DrainBlocked", "Not read:"]).await?;
    w.fails("watch --as reader", &["you need the right to watch bottlerocket"]).await?;
    let right = "you need the right to get bottlerocketupdateoperators in brupop-system";
    for command in ["status", "explain node-1", "watch"] {
        w.fails(&format!("{command} --as guest"), &[right]).await?;
    }
    let words = shell(w, "BRUPOP_COMPLETE=kubectl kubectl-brupop -- kubectl-brupop explain node-").await?;
    ensure!(words == "node-1\nnode-2\nnode-3\n:4\n", "{words}");
    Ok(())
}
