//! `kubectl brupop history` and `undo`: the revisions of the policy, and the record of each rollout.

mod durations;
mod html;
mod read;
mod revisions;
mod rollouts;
mod show;
#[cfg(test)]
mod testing;
mod verify;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::connect::ConnectOptions;
use crate::files::{read_text, write_text};
use crate::page::{Page, print_line, warn};
use crate::terminal::Format;
pub(crate) use durations::last_updates;
use read::{Bundle, Source};
use revisions::Revisions;
pub(crate) use revisions::{UndoOptions, undo};

#[derive(Debug, Args)]
pub(crate) struct HistoryOptions {
    /// Rollout to show: its number, or the name of its record. Default: revisions and rollouts are listed.
    rollout: Option<String>,
    /// Show the content of this revision of the policy.
    #[arg(long, conflicts_with_all = ["rollout", "verify", "export", "bundle"])]
    revision: Option<i64>,
    /// `wide` for text in full, `json` or `yaml` for programs: the revisions and rollouts, or the record and the pages of
    /// one rollout as a List.
    #[arg(long, short, value_enum, conflicts_with_all = ["verify", "export", "html"])]
    output: Option<Format>,
    /// Verify the signatures of all records, or of one, and the digests of their pages. Exits with 0 only if all is well.
    /// Verification compares with published keys: their thumbprints are printed, to be compared with those that you
    /// keep elsewhere, or use --keys.
    #[arg(long, conflicts_with = "html")]
    verify: bool,
    /// File with the public keys to verify with, instead of those in the cluster or in the bundle: a JWKS, the ConfigMap
    /// brupop-history-keys as JSON, or a bundle.
    #[arg(long, value_name = "FILE", requires = "verify")]
    keys: Option<PathBuf>,
    /// Write all records, or one, with their pages and the public keys into this file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["verify", "html"])]
    export: Option<PathBuf>,
    /// Read this bundle (see --export) and no cluster. The keys in a bundle prove only that it is consistent, since its
    /// author can put any key in: compare their thumbprints, or use --keys.
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// Write one rollout as a page for browsers into this file. The page needs no network.
    #[arg(long, value_name = "FILE", requires = "rollout")]
    html: Option<PathBuf>,
}

fn read_json(path: &Path) -> anyhow::Result<Value> {
    serde_json::from_str(&read_text(path)?).with_context(|| format!("{} is no JSON", path.display()))
}

/// Lists the revisions of the policy, and below them the rollouts.
async fn list(source: &Source<'_>, options: &HistoryOptions) -> anyhow::Result<Page> {
    let revisions = match source {
        Source::Cluster { client, namespace } => Some(Revisions::read(client, namespace).await),
        Source::Bundle(_) => None,
    };
    let records = match options.revision {
        Some(_) => None,
        None => Some(source.records().await),
    };
    // Rollouts outlive the operator's resource, and some users may read one half alone.
    let (revisions, records) = match (revisions, records) {
        (Some(Err(error)), Some(Ok(records))) => {
            warn(format_args!("revisions are not listed: {error:#}"));
            (None, Some(records))
        }
        (Some(Ok(revisions)), Some(Err(error))) => {
            warn(format_args!("rollouts are not listed: {error:#}"));
            (Some(revisions), None)
        }
        (revisions, records) => (revisions.transpose()?, records.transpose()?),
    };
    if let Some(format) = options.output.and_then(Format::for_programs) {
        let shown = revisions.map(|revisions| revisions.for_programs(options.revision)).transpose()?;
        if options.revision.is_some() {
            return format.page(&json!({"revisions": shown}));
        }
        // Null: not readable.
        let value = json!({
            "revisions": shown,
            "rollouts": records.map(|records| rollouts::for_programs(&records)),
        });
        return format.page(&value);
    }
    let mut page = Page::of_width(Format::width(options.output));
    if let Some(revisions) = revisions {
        revisions.add(&mut page, options.revision)?;
        if records.is_some() {
            page.line("");
        }
    }
    if let Some(records) = records {
        rollouts::table(&mut page, &records);
    }
    page.cut_note();
    Ok(page)
}

/// Carries out `history`. A bundle needs no cluster.
pub(crate) async fn history(connect: &ConnectOptions, namespace: &str, options: &HistoryOptions) -> anyhow::Result<()> {
    let client;
    let source = match &options.bundle {
        Some(path) => Source::Bundle(Bundle::parse(read_json(path)?)?),
        None => {
            client = connect.client().await?;
            Source::Cluster { client: &client, namespace }
        }
    };
    let only = options.rollout.as_deref();
    if options.verify {
        let keys = match &options.keys {
            Some(path) => {
                let keys = read::keys_in(&read_json(path)?);
                ensure!(
                    keys.values().any(|key| key["kty"].is_string()),
                    "{} has no keys: a JWKS, the ConfigMap brupop-history-keys as JSON, or a bundle is needed",
                    path.display()
                );
                keys
            }
            None => source.keys().await?,
        };
        let report = verify::verify(&source, only, &keys).await?;
        report.page.print()?;
        ensure!(report.findings == 0, "the history does not verify; findings: {}", report.findings);
        ensure!(report.records > 0, "nothing was verified: there is no record");
        return Ok(());
    }
    if let Some(path) = &options.export {
        let bundle = source.export(only).await?;
        write_text(path, &serde_json::to_string(&bundle).context("the bundle is no JSON")?)?;
        print_line(format_args!(
            "{}: records: {}, pages: {}, keys: {}",
            path.display(),
            bundle.records.len(),
            bundle.pages.len(),
            bundle.keys.len()
        ));
        return Ok(());
    }
    let Some(id) = only else { return list(&source, options).await?.print() };
    let records = source.records().await?;
    let record = rollouts::find(&records, id)?;
    let pages = source.pages(record).await?;
    if let Some(format) = options.output.and_then(Format::for_programs) {
        let items: Vec<&Value> = std::iter::once(record).chain(pages.values()).collect();
        return format.page(&json!({"apiVersion": "v1", "kind": "List", "items": items}))?.print();
    }
    let rollout = rollouts::Rollout::parse(record, &pages)?;
    match &options.html {
        Some(path) => {
            write_text(path, &html::page(&rollout)?)?;
            print_line(format_args!("{}: rollout {}, attempts: {}", path.display(), id, rollout.rows.len()));
            Ok(())
        }
        None => show::text(&rollout, Format::width(options.output)).print(),
    }
}
