//! `kubectl brupop status`.

mod freshness;
mod html;
mod report;
mod shape;
mod text;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use kube::Client;

use crate::cluster::Cluster;
use crate::files::write_text;
use crate::page::Page;
use crate::terminal::{self, Format};

pub(crate) use report::{NOT_KNOWN, due, no_leader, not_known, report, unreached};
pub(crate) use shape::{IDLE, LastResult, NodeReport, Problem, Report, SilentAgent};
pub(crate) use text::{Look, NOT_READ, render};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// One screen, with every text in full.
    Wide,
    Json,
    Yaml,
    /// The names of the nodes that are listed.
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct StatusOptions {
    /// List all nodes, also where there are many.
    #[arg(long)]
    all: bool,
    /// Show every text in full, however wide the rows become: the same as -o wide.
    #[arg(long)]
    wide: bool,
    /// `wide` for text in full, `json` or `yaml` for programs (docs/plugin.md), `name` for the names of the listed nodes.
    #[arg(long, short, value_enum)]
    output: Option<Output>,
    /// Write the state as a page for browsers into this file, or without a file to the standard output. It has all nodes, and needs no
    /// network.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["all", "wide", "output"])]
    html: Option<Option<PathBuf>>,
}

pub(crate) async fn status(client: &Client, namespace: &str, options: &StatusOptions) -> anyhow::Result<Page> {
    let cluster = Cluster::read_now(client, namespace, |_| BTreeSet::new()).await?;
    let report = report(&cluster, crate::clock::now());
    if let Some(file) = &options.html {
        return in_browser(&report, file.as_deref());
    }
    let wide = options.wide || options.output == Some(Output::Wide);
    let look = Look { width: (!wide).then(terminal::width), all: options.all, is_live: false };
    shown(&report, options.output, look)
}

/// Writes the page for browsers into a file, or returns it for the standard output.
fn in_browser(report: &Report, file: Option<&Path>) -> anyhow::Result<Page> {
    let (html, mut page) = (html::page(report)?, Page::default());
    match file {
        Some(path) => {
            write_text(path, &html)?;
            page.line(format_args!("{}: nodes: {}", path.display(), report.nodes.len()));
        }
        None => page.text(&html),
    }
    Ok(page)
}

fn shown(report: &Report, output: Option<Output>, look: Look) -> anyhow::Result<Page> {
    match output {
        None | Some(Output::Wide) => Ok(render(report, look)),
        Some(Output::Json) => Format::Json.page(report),
        Some(Output::Yaml) => Format::Yaml.page(report),
        Some(Output::Name) => {
            let mut page = Page::default();
            for node in text::listed(&report.nodes, look.all) {
                page.line(format_args!("node/{}", node.name));
            }
            Ok(page)
        }
    }
}

#[cfg(test)]
mod tests;
