//! The plugin's own scenarios: one cluster that is walked through with the commands that read, and one with those that write. Each
//! step is a function that an error names, and begins with what the steps before it have left.

mod broken;
mod drill;
mod planned;
mod refusals;
mod rollout;
mod screens;
mod settings;
mod snapshots;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use integ::bed::Programs;
use integ::oracle::Expectations;
use models::names::{HOLD_ANNOTATION, OPERATOR_NAME, SYSTEM_NAMESPACE};
use serde_json::{Value, json};
use tokio::process::Command;

use self::snapshots::until_reason;
use crate::commands::{output_text, plugin, plugin_in, shell};
use crate::interfere::{poll, unblock};
use crate::support::{LIMIT, NEW, ScenarioContext, is_released, is_updated, nodes, run_expecting, status};

/// Exit codes of the plugin.
const OK: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const UNACKNOWLEDGED: i32 = 3;
const FROZEN: i32 = 4;
const LATE: i32 = 6;
const NOT_PASSED: i32 = 7;

/// Runs steps on a cluster of so many nodes. An error names its step.
macro_rules! walk {
    ($nodes:literal; $($step:path),+ $(,)?) => {{
        // The operator is uninstalled at the end.
        let expectations = Expectations { max_unavailable: Some(1), nothing_left: false };
        run_expecting(nodes($nodes), expectations, async |ctx| {
            let mut walk = Walk { ctx, user: None, taken: BTreeMap::new() };
            let steps = async |w: &mut Walk<'_>| {
                $($step(w).await.context(concat!("step ", stringify!($step)))?;)+
                Ok(())
            };
            let outcome: Result<()> = steps(&mut walk).await;
            let compared = walk.compare();
            outcome.and(compared)
        })
        .await?;
        Ok(())
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_commands_tell_what_is_so_until_the_installation_is_damaged() -> Result<()> {
    walk!(
        3;
        screens::before_installation,
        screens::all_is_well,
        refusals::refused_commands_name_the_missing_right_and_write_nothing,
        screens::updates_are_disabled,
        screens::one_node_is_drained_and_one_is_held,
        screens::one_node_waits_for_its_turn,
        refusals::user_with_fewer_rights_sees_less,
        screens::watch_goes_on_with_the_api_server_and_ends_with_the_rollout,
        screens::all_nodes_are_updated,
        screens::kubectl_shows_state_of_nodes_and_operator,
        planned::plan_knows_updates_that_were_recorded,
        planned::plan_has_the_order_of_the_rollout_that_follows,
        broken::rollout_is_frozen,
        broken::installation_is_damaged,
        broken::bundle_has_all_that_helps_and_no_secret,
        broken::definition_of_another_operators_objects_stays,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_commands_do_what_they_say_until_the_operator_is_uninstalled() -> Result<()> {
    walk!(
        2;
        settings::installation_leaves_existing_policy_alone,
        settings::settings_are_changed_and_dry_runs_change_none,
        drill::nothing_runs_on_the_nodes,
        drill::refusing_budget_is_named_and_no_pod_is_moved,
        drill::evictions_move_pods_and_the_node_is_released,
        drill::drill_by_annotation_ends_with_a_release_or_a_hold,
        rollout::pause_and_resume_beside_another_field_manager,
        rollout::blocked_node_is_released_and_canary_step_approved,
        rollout::failures_are_resolved_by_name,
        rollout::failed_version_is_quarantined,
        rollout::earlier_version_is_pinned,
        rollout::released_node_is_drained_after_the_other_one,
        rollout::node_that_is_held_during_its_drain_stays_cordoned,
        rollout::hold_ends_at_its_time,
        settings::operator_is_uninstalled,
    )
}

/// A cluster that is walked through.
struct Walk<'a> {
    ctx: &'a mut ScenarioContext,
    /// The user that runs the plugin where a line names none; without one, an administrator.
    user: Option<&'static str>,
    /// The snapshots, by the names of their files.
    taken: BTreeMap<&'static str, String>,
}

impl Deref for Walk<'_> {
    type Target = ScenarioContext;

    fn deref(&self) -> &ScenarioContext {
        self.ctx
    }
}

impl DerefMut for Walk<'_> {
    fn deref_mut(&mut self) -> &mut ScenarioContext {
        self.ctx
    }
}

impl Walk<'_> {
    /// Runs the plugin in a terminal of so many columns.
    async fn run(&self, line: &str, columns: usize, colour: &str) -> Result<Output> {
        let mut arguments: Vec<&str> = line.split_whitespace().collect();
        if let Some(user) = self.user.filter(|_| !line.contains(" --as ")) {
            arguments.extend(["--as", user]);
        }
        if !colour.is_empty() {
            arguments.extend(["--color", colour]);
        }
        plugin_in(self.bed.control_plane.kubeconfig(), columns, &arguments).await
    }

    /// Runs the plugin, and asserts its exit code and parts of its output.
    async fn exits(&self, line: &str, code: i32, parts: &[&str]) -> Result<String> {
        let output = self.run(line, 120, "").await?;
        let text = output_text(&output);
        ensure!(output.status.code() == Some(code), "{line}: exit code {:?}: {text}", output.status.code());
        for part in parts {
            ensure!(text.contains(part), "{line}: no '{part}' in: {text}");
        }
        Ok(text)
    }

    async fn ok(&self, line: &str, parts: &[&str]) -> Result<String> {
        self.exits(line, OK, parts).await
    }

    async fn fails(&self, line: &str, parts: &[&str]) -> Result<()> {
        self.exits(line, FAILED, parts).await.map(drop)
    }

    /// Runs the plugin, and returns what it prints as JSON.
    async fn json(&self, line: &str) -> Result<Value> {
        let output = self.run(&format!("{line} -o json"), 120, "").await?;
        serde_json::from_slice(&output.stdout).with_context(|| format!("{line}: {}", output_text(&output)))
    }

    /// Applies objects as an administrator.
    async fn apply(&self, objects: &str) -> Result<()> {
        shell(self, &format!("kubectl apply -f - <<'END'\n{objects}\nEND")).await.map(drop)
    }

    /// Annotates a node with a hold: `=REASON` sets it, and `-` removes it.
    async fn hold(&self, node: &str, value: &str) -> Result<()> {
        self.kubectl(&["annotate", "node", node, &format!("{HOLD_ANNOTATION}{value}")]).await.map(drop)
    }

    /// The parts of the operator's resource that users write: spec and its annotations.
    async fn written(&self) -> Result<[Value; 2]> {
        let resource = self.policies().get(OPERATOR_NAME).await?;
        Ok([resource.data["spec"].clone(), json!(resource.metadata.annotations)])
    }

    /// A path in a folder of this test cluster alone.
    fn path(&self, name: &str) -> String {
        self.bed.control_plane.dir().join(name).display().to_string()
    }

    /// Writes a file there, and returns its path.
    fn file(&self, name: &str, content: &str) -> Result<String> {
        std::fs::write(self.path(name), content)?;
        Ok(self.path(name))
    }
}
