//! The plugin with the rights of two users, one that may only read and one that is bound to the operator's namespace: each
//! command either works or names the right that is missing, and what is done next.

use anyhow::ensure;
use models::names::{HOLD_ANNOTATION, OPERATOR_NAME, SYSTEM_NAMESPACE};
use serde_json::Value;

use crate::interfere::poll;
use crate::plugin::{plugin, shell};
use crate::plugin_writes::grant_documented_rights;
use crate::support::{ScenarioContext, nodes, run};

/// The rights of the user `bound`: everything of the operator in its namespace, and nothing else.
const BOUND: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: bound, namespace: brupop-system}
rules:
- {apiGroups: [brupop.bottlerocket.aws], resources: ["*"], verbs: ["*"]}
- {apiGroups: [apps], resources: [controllerrevisions], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: bound, namespace: brupop-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: bound}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: bound}]
"#;

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
    ("watch --until=completed", Works, Works),
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
async fn checked(ctx: &ScenarioContext, line: &str, user: &str, expected: &Outcome) -> anyhow::Result<String> {
    let arguments: Vec<&str> = line.split(' ').chain(["--as", user]).collect();
    let output = plugin(ctx, &arguments).await?;
    let (printed, errors) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    let all = format!("{line} of {user}: {:?}\n{printed}---\n{errors}", output.status.code());
    let Needs(right) = expected else {
        ensure!(output.status.success(), "{all}");
        return Ok(printed);
    };
    ensure!(output.status.code() == Some(1), "{all}");
    // Without a record there is nothing to verify, and without receivers nothing to send.
    if !right.is_empty() {
        ensure!(errors.contains(&format!("you need the right to {right}")), "{all}");
        ensure!(errors.contains("the API server answers 403") && errors.contains("(docs/plugin.md, Rights)"), "{all}");
        // The first steps of a takeover are listed with all rights that they need.
        ensure!(printed.is_empty() || printed.starts_with("you need these rights too"), "{all}");
    }
    Ok(errors)
}

/// The spec of the operator's resource.
async fn spec(ctx: &ScenarioContext) -> anyhow::Result<Value> {
    let text = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "bruo", OPERATOR_NAME, "-o", "json"]).await?;
    Ok(serde_json::from_str::<Value>(&text)?["spec"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_commands_name_the_missing_right_and_write_nothing() -> anyhow::Result<()> {
    run(nodes(1), async |ctx| {
        ctx.install().await?;
        grant_documented_rights(ctx).await?;
        shell(ctx, &format!("kubectl apply -f - <<'END'\n{BOUND}END")).await?;
        let before = spec(ctx).await?;
        for (line, viewer, _) in COMMANDS {
            checked(ctx, line, "viewer", viewer).await?;
        }
        ensure!(spec(ctx).await? == before, "something was written");
        for (line, _, bound) in COMMANDS {
            checked(ctx, line, "bound", bound).await?;
        }
        // A user with the right has written another revision of the policy, which only that user may undo.
        poll("the quarantine is a revision", async || {
            Ok(plugin(ctx, &["undo", "--dry-run"]).await?.status.success().then_some(()))
        })
        .await?;
        checked(ctx, "undo", "viewer", &Needs(PATCH_OPERATOR)).await?;
        checked(ctx, "undo", "bound", &Works).await?;
        ensure!(spec(ctx).await?["version"]["exclude"].is_null(), "the quarantine is still there");
        ctx.kubectl(&["annotate", "node", "node-1", &format!("{HOLD_ANNOTATION}=")]).await?;
        checked(ctx, "unhold node-1", "viewer", &Needs("patch nodes")).await?;
        ctx.kubectl(&["annotate", "node", "node-1", &format!("{HOLD_ANNOTATION}-")]).await?;

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
            let text = checked(ctx, "doctor", user, &Works).await?;
            for right in rights {
                ensure!(text.contains(&format!("Not read:  you need the right to {right}\n")), "{right}: {text}");
            }
            ensure!(text.contains(result) && text.contains("not all could be read"), "{text}");
        }
        let text = checked(ctx, "doctor -n nowhere", "bound", &Works).await?;
        ensure!(text.contains("you need the right to get bottlerocketupdateoperators in nowhere\n"), "{text}");
        Ok(())
    })
    .await?;
    Ok(())
}
