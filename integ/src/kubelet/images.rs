//! Mapping from container images to local programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The table from image references to local programs. A container whose image is not in it is not run: it is only
/// reported as Running and Ready.
#[derive(Clone, Debug, Default)]
pub struct Images {
    images: BTreeMap<String, Image>,
}

#[derive(Clone, Debug)]
struct Image {
    entrypoint: PathBuf,
    programs: BTreeMap<String, PathBuf>,
}

impl Images {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Maps the image `reference` to the entry point `program`.
    #[must_use]
    pub fn map(mut self, reference: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        let image = Image { entrypoint: program.into(), programs: BTreeMap::new() };
        self.images.insert(reference.into(), image);
        self
    }

    /// Adds `program` to the image `reference` under the file name `name`, for a `command` of that name.
    #[must_use]
    pub fn map_program(
        mut self,
        reference: impl Into<String>,
        name: impl Into<String>,
        program: impl Into<PathBuf>,
    ) -> Self {
        let program = program.into();
        let image = self
            .images
            .entry(reference.into())
            .or_insert_with(|| Image { entrypoint: program.clone(), programs: BTreeMap::new() });
        image.programs.insert(name.into(), program);
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
        let image = self.images.get(reference)?;
        let Some((first, rest)) = command.split_first() else {
            return Some((image.entrypoint.clone(), args.to_vec()));
        };
        let rest = rest.iter().chain(args).cloned().collect();
        Some((image.program(first), rest))
    }
}

impl Image {
    /// Returns the program for a path or name: an absolute path is a path inside the image, so it is a program of the
    /// image; a bare name that the image does not have (`sh`) is looked up on the machine of the test bed.
    fn program(&self, named: &str) -> PathBuf {
        let path = Path::new(named);
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or(named);
        if let Some(program) = self.programs.get(name) {
            return program.clone();
        }
        let is_entrypoint = self.entrypoint.file_name().and_then(|n| n.to_str()) == Some(name);
        if is_entrypoint || path.is_absolute() { self.entrypoint.clone() } else { PathBuf::from(named) }
    }
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
        let images = Images::new().map("agent:1", "/build/agent").map_program("agent:1", "tool", "/build/tool");
        assert_eq!(line(&images, &[], &["-v"]), ("/build/agent".into(), vec!["-v".into()]));
        assert_eq!(line(&images, &["/usr/bin/brupop-agent", "-a"], &["-b"]).0, PathBuf::from("/build/agent"));
        assert_eq!(line(&images, &["/usr/bin/brupop-agent", "-a"], &["-b"]).1, ["-a", "-b"]);
        assert_eq!(line(&images, &["/opt/tool"], &[]).0, PathBuf::from("/build/tool"));
        assert_eq!(line(&images, &["sh", "-c"], &[]).0, PathBuf::from("sh"));
        assert!(images.command_line("other:1", &[], &[]).is_none());
    }
}
