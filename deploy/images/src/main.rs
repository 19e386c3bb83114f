//! `brupop-images`: writes programs as OCI images.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use images::{Options, origin, pack, qualified};

/// Writes each program as an OCI image: an archive that container engines and registries read.
#[derive(Debug, Parser)]
#[command(name = "brupop-images", version, arg_required_else_help = true)]
struct Arguments {
    /// Programs as `make images` builds them.
    #[arg(required_unless_present = "check")]
    programs: Vec<PathBuf>,
    /// Check registry and tag, and write nothing.
    #[arg(long, conflicts_with = "programs")]
    check: bool,
    /// Folder for the archives; those of earlier runs are removed.
    #[arg(long, value_name = "FOLDER", default_value = "target/images")]
    output: PathBuf,
    /// The repository's root.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    root: PathBuf,
    /// Registry and path in front of the images' names, such as registry.example/brupop.
    #[arg(long, env = "REGISTRY")]
    registry: Option<String>,
    /// Tag of the images; default: v and the version.
    #[arg(long, env = "TAG")]
    tag: Option<String>,
    /// Commit that the programs were built from; default: the commit of the checkout.
    #[arg(long, env = "REVISION")]
    revision: Option<String>,
    /// Seconds since 1970 of everything in the images that has a time; default: the time of the commit.
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH")]
    epoch: Option<String>,
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
    let Arguments { programs, check, output, root, registry, tag, revision, epoch } = arguments;
    // A variable of make that is empty is one that is not set.
    let given = |option: Option<String>| option.filter(|value| !value.is_empty());
    let (registry, revision, epoch) =
        (given(registry), given(revision), given(epoch).as_deref().map(seconds).transpose()?);
    let tag = given(tag).unwrap_or_else(|| concat!("v", env!("CARGO_PKG_VERSION")).to_owned());
    qualified(registry.as_deref(), "brupop-controller", &tag)?;
    if check {
        return Ok(());
    }
    let (revision, epoch, warning) = origin(&root, revision, epoch);
    if let Some(warning) = warning {
        eprintln!("{warning}");
    }
    remove_archives(&output)?;
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

/// Reads a time in seconds since 1970.
fn seconds(text: &str) -> anyhow::Result<u64> {
    text.parse().with_context(|| format!("SOURCE_DATE_EPOCH or --epoch is in seconds since 1970, and not {text:?}"))
}

/// Removes the archives of earlier runs, which can have other tags, in a folder that need not be there.
fn remove_archives(folder: &Path) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".tar") && (name.starts_with("brupop-") || name.starts_with("kubectl-brupop")) {
            std::fs::remove_file(&path).with_context(|| format!("{} cannot be removed", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_variables_are_unset_and_a_wrong_time_names_its_variable() {
        let arguments = ["brupop-images", "--check", "--registry=", "--tag=", "--revision=", "--epoch="];
        run(Arguments::try_parse_from(arguments).unwrap()).unwrap();
        let wrong = Arguments::try_parse_from(["brupop-images", "--check", "--epoch=now"]).unwrap();
        assert!(run(wrong).unwrap_err().to_string().contains("SOURCE_DATE_EPOCH"));
    }

    #[test]
    fn archives_of_earlier_runs_are_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        remove_archives(&folder.path().join("absent")).unwrap();
        for name in ["brupop-agent.tar", "kubectl-brupop.tar", "mine.tar", "brupop-agent.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        remove_archives(folder.path()).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["brupop-agent.txt", "mine.tar"]);
    }
}
