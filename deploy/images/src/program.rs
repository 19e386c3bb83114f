//! The program of an image.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use object::LittleEndian;
use object::elf;
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};

/// A static program for Linux.
#[derive(Clone, Debug)]
pub struct Program {
    /// Content of the file.
    pub bytes: Vec<u8>,
    /// Architecture, as images name it: `amd64` or `arm64`.
    pub architecture: &'static str,
}

impl Program {
    /// Reads a program, which has to be static: an image holds no libraries and no loader.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("{shown} cannot be read: run `make release` first"))?;
        let architecture = inspect(&bytes).with_context(|| format!("{shown} cannot be the program of an image"))?;
        Ok(Self { bytes, architecture })
    }

    /// The Rust compiler's name for the target that the program was built for.
    pub(crate) fn triple(&self) -> &'static str {
        if self.architecture == "arm64" { "aarch64-unknown-linux-gnu" } else { "x86_64-unknown-linux-gnu" }
    }

    /// Checks that none of these folders occurs in the program.
    pub fn names_none_of(&self, folders: &[PathBuf]) -> anyhow::Result<()> {
        for folder in folders {
            let begin = [folder.as_os_str().as_encoded_bytes(), b"/"].concat();
            let found = self.bytes.windows(begin.len()).any(|part| part == begin);
            anyhow::ensure!(!found, "the program names the folder {}: build it with `make release`", folder.display());
        }
        Ok(())
    }
}

fn inspect(bytes: &[u8]) -> anyhow::Result<&'static str> {
    let header = elf::FileHeader64::<LittleEndian>::parse(bytes)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, bytes)? {
        anyhow::ensure!(segment.p_type(endian) != elf::PT_INTERP, "it needs a loader: build it with `make release`");
        let entries = segment.dynamic(endian, bytes)?.unwrap_or_default();
        let needs = entries.iter().any(|entry| entry.tag(endian) == elf::DT_NEEDED);
        anyhow::ensure!(!needs, "it needs shared libraries: build it with `make release`");
    }
    match header.e_machine(endian) {
        elf::EM_X86_64 => Ok("amd64"),
        elf::EM_AARCH64 => Ok("arm64"),
        other => anyhow::bail!("its machine is {other:?}, and images are made for x86_64 and aarch64"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_program_is_refused() {
        let error = Program::read(&std::env::current_exe().unwrap()).unwrap_err();
        assert!(format!("{error:#}").contains("needs a loader"), "{error:#}");
    }

    #[test]
    fn file_that_is_no_program_is_refused() {
        assert!(Program::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))).is_err());
    }

    #[test]
    fn folder_in_a_program_is_an_error() {
        let program = Program { bytes: b"at /home/me/project/src/main.rs:1".to_vec(), architecture: "amd64" };
        assert!(program.names_none_of(&["/home/you".into()]).is_ok());
        assert!(program.names_none_of(&["/home/you".into(), "/home/me/project".into()]).is_err());
    }
}
