//! The view of users with plain kubectl.

use models::names::SYSTEM_NAMESPACE;

use crate::support::{nodes, run};

/// The rows and words of a kubectl table; no column of the operator's resources contains a space.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}

/// The part of a line under a heading.
fn under<'a>(table: &'a str, row: usize, heading: &str) -> &'a str {
    let mut lines = table.lines();
    let head = lines.next().unwrap_or_default();
    let line = lines.nth(row).unwrap_or_default();
    let Some(from) = head.find(heading) else { return "no such column" };
    let width = head[from..]
        .find("   ")
        .map_or(usize::MAX, |end| end + head[from + end..].chars().take_while(|c| *c == ' ').count());
    line.get(from..).map(|rest| rest.get(..width).unwrap_or(rest).trim()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_get_shows_state_of_nodes_and_operator() -> anyhow::Result<()> {
    run(nodes(2), async |ctx| {
        ctx.install().await?;
        ctx.release();
        ctx.updated().await?;
        ctx.until("the operator has counted both nodes", |world| {
            world.operator.as_ref().and_then(|o| o.status.counts.as_ref()).is_some_and(|c| c.current == 2)
        })
        .await?;

        let shadows = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brs"]).await?;
        let table = rows(&shadows);
        assert_eq!(table[0], ["NAME", "STATE", "VERSION", "TARGET", "STEP", "BLOCKED", "LAST", "AGE"], "{shadows}");
        assert_eq!(table.len(), 3, "{shadows}");
        for (row, name) in ["brs-node-1", "brs-node-2"].into_iter().enumerate() {
            let column = |heading| under(&shadows, row, heading);
            assert_eq!(column("NAME"), name, "{shadows}");
            assert_eq!(
                (column("STATE"), column("VERSION"), column("LAST")),
                ("Idle", "1.20.5", "Updated"),
                "{shadows}"
            );
            assert_eq!((column("TARGET"), column("STEP"), column("BLOCKED")), ("", "", ""), "{shadows}");
        }
        let wide = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brs", "-o", "wide"]).await?;
        assert_eq!((under(&wide, 0, "WANTED"), under(&wide, 0, "ATTEMPT")), ("Idle", "1"), "{wide}");

        let operators = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "bruo"]).await?;
        let table = rows(&operators);
        let headings = ["NAME", "ENABLED", "TOTAL", "CURRENT", "UPDATING", "FAILED", "FROZEN", "AGE"];
        assert_eq!(table[0], headings, "{operators}");
        assert_eq!(table[1][..7], ["default", "true", "2", "2", "0", "0", "False"], "{operators}");
        assert_eq!(table.len(), 2, "{operators}");

        // `kubectl get brupop` shows both kinds, and `explain` describes them.
        let both = ctx.kubectl(&["-n", SYSTEM_NAMESPACE, "get", "brupop"]).await?;
        assert!(both.contains("brs-node-1") && both.contains("/default"), "{both}");
        let explained = ctx.kubectl(&["explain", "brs.spec.bootId"]).await?;
        assert!(explained.contains("boot"), "{explained}");
        Ok(())
    })
    .await?;
    Ok(())
}
