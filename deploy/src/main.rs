//! `brupop-deploy`: writes and checks the generated files, and prints the installation.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use deploy::{Options, files, reference};

/// Generates the installation: custom resource definitions, rights, workloads, the default policy.
#[derive(Debug, Parser)]
#[command(name = "brupop-deploy", version, arg_required_else_help = true)]
struct Arguments {
    /// Compare the checked-in generated files with newly generated ones; fail if one is stale.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Write the generated files.
    #[arg(long)]
    write: bool,
    /// The repository's root, for --check and --write.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    #[command(subcommand)]
    print: Option<Print>,
}

/// Output instead of files.
#[derive(Debug, Subcommand)]
enum Print {
    /// The custom resource definitions.
    Crds,
    /// Everything that is installed.
    Manifest {
        /// Registry and path in front of the images' names, such as registry.example/brupop.
        #[arg(long)]
        registry: Option<String>,
        /// Tag of the images.
        #[arg(long)]
        tag: Option<String>,
        /// The cluster's domain in lower case, if it is not cluster.local.
        #[arg(long, value_parser = models::domain::parse)]
        cluster_domain: Option<String>,
        /// Format of the programs' logs: `text`, which is the default, or `json`.
        #[arg(long)]
        log_format: Option<models::log::LogFormat>,
        /// A further argument of the controller, such as --serving-certificate=provided; may be given repeatedly.
        #[arg(long, allow_hyphen_values = true)]
        controller_arg: Vec<String>,
        /// Leave the policy out, such as for an upgrade of a cluster whose policy has been changed.
        #[arg(long)]
        without_policy: bool,
    },
    /// The reference of the custom resources.
    Docs,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    if arguments.write {
        for path in files::write(&arguments.root)? {
            println!("wrote {path}");
        }
    }
    if arguments.check {
        files::check(&arguments.root)?;
    }
    match arguments.print {
        None => {}
        Some(Print::Crds) => print!("{}", files::definitions()?),
        Some(Print::Manifest { registry, tag, cluster_domain, log_format, controller_arg, without_policy }) => {
            let controller_args = controller_arg;
            let mut options = Options { registry, cluster_domain, log_format, controller_args, ..Options::default() };
            if let Some(tag) = tag {
                options.tag = tag;
            }
            print!("{}", files::manifest(&options, !without_policy)?);
        }
        Some(Print::Docs) => print!("{}", reference::markdown()?),
    }
    Ok(())
}
