//! Mapping from container images to local programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The table from image references to local programs. A container whose image is not in it is not run: it is only
/// reported as Running and Ready.
#[derive(Clone, Debug, Default)]
pub struct Images {
    /// The entry point of each image.
    images: BTreeMap<String, PathBuf>,
}

impl Images {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the image `reference` to the entry point `program`.
    #[must_use]
    pub fn map(mut self, reference: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        self.images.insert(reference.into(), program.into());
        self
    }

    /// Merges another table into this one.
    #[must_use]
    pub fn with(mut self, other: Self) -> Self {
        self.images.extend(other.images);
        self
    }

    /// Returns true if containers of the image `reference` run as processes.
    pub fn contains(&self, reference: &str) -> bool {
        self.images.contains_key(reference)
    }

    /// The program and arguments that a container of image `reference` with this `command` and these `args` runs.
    pub(crate) fn command_line(
        &self,
        reference: &str,
        command: &[String],
        args: &[String],
    ) -> Option<(PathBuf, Vec<String>)> {
        let entrypoint = self.images.get(reference)?;
        let Some((first, rest)) = command.split_first() else {
            return Some((entrypoint.clone(), args.to_vec()));
        };
        let rest = rest.iter().chain(args).cloned().collect();
        Some((program(entrypoint, first), rest))
    }
}

/// Returns the program for a path or name: an absolute path is a path inside the image, so it is the image's program; another
/// bare name (`sh`) is looked up on the machine of the test bed.
fn program(entrypoint: &Path, named: &str) -> PathBuf {
    let is_entrypoint = entrypoint.file_name().is_some_and(|name| name == named);
    if is_entrypoint || Path::new(named).is_absolute() { entrypoint.to_owned() } else { PathBuf::from(named) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(images: &Images, command: &[&str], args: &[&str]) -> (PathBuf, Vec<String>) {
        let strings = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        images.command_line("agent:1", &strings(command), &strings(args)).unwrap()
    }

    #[test]
    fn container_command_is_mapped_to_local_program() {
        let images = Images::new().map("agent:1", "/build/agent");
        assert_eq!(line(&images, &[], &["-v"]), ("/build/agent".into(), vec!["-v".into()]));
        assert_eq!(line(&images, &["/usr/bin/brupop-agent", "-a"], &["-b"]).0, PathBuf::from("/build/agent"));
        assert_eq!(line(&images, &["/usr/bin/brupop-agent", "-a"], &["-b"]).1, ["-a", "-b"]);
        assert_eq!(line(&images, &["sh", "-c"], &[]).0, PathBuf::from("sh"));
        assert!(images.command_line("other:1", &[], &[]).is_none());
    }
}
