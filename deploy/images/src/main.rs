//! `brupop-images`: writes programs as OCI images.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use images::{Options, pack};

/// Writes each program as an OCI image: an archive that container engines and registries read.
#[derive(Debug, Parser)]
#[command(name = "brupop-images", version, arg_required_else_help = true)]
struct Arguments {
    /// Programs as `make release` builds them.
    #[arg(required = true)]
    programs: Vec<PathBuf>,
    /// Folder for the archives.
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// The repository's root.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// Registry and path in front of the images' names, such as registry.example/brupop.
    #[arg(long)]
    registry: Option<String>,
    /// Tag of the images.
    #[arg(long, default_value = concat!("v", env!("CARGO_PKG_VERSION")))]
    tag: String,
    /// Commit that the programs were built from.
    #[arg(long)]
    revision: Option<String>,
    /// Seconds since 1970 of everything in the images that has a time.
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH", default_value_t = 0)]
    epoch: u64,
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
    let Arguments { programs, output, root, registry, tag, revision, epoch } = arguments;
    let revision = revision.filter(|revision| !revision.is_empty());
    let options = Options { root, output, registry, tag, revision, epoch };
    for program in &programs {
        let image = pack(&options, program)?;
        println!(
            "{}: program {} bytes, download {} bytes, {}\n  {}",
            image.reference,
            image.program,
            image.download,
            image.digest,
            image.archive.display()
        );
    }
    Ok(())
}
