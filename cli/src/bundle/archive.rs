//! A tar archive (POSIX ustar), compressed with gzip.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

/// Size of a block of an archive.
const BLOCK: usize = 512;

/// Longest name of a file, and longest path before it.
const NAME: usize = 100;
const PREFIX: usize = 155;

/// An archive that is being written.
pub(super) struct Archive<W: Write> {
    out: GzEncoder<W>,
    /// Folder that everything is in.
    folder: String,
    time: Timestamp,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W, folder: &str, time: Timestamp) -> Self {
        Self { out: GzEncoder::new(out, Compression::default()), folder: folder.to_owned(), time }
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = format!("{}/{path}", self.folder);
        self.out.write_all(&header(&path, content.len(), self.time))?;
        self.out.write_all(content)?;
        let rest = content.len() % BLOCK;
        self.out.write_all(&[0; BLOCK][..if rest == 0 { 0 } else { BLOCK - rest }])
    }

    /// Ends the archive, and returns what it was written to.
    pub(super) fn end(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.finish()
    }
}

/// Returns name and prefix of a path. A part that is too long is cut.
fn split(path: &str) -> (&str, &str) {
    if path.len() <= NAME {
        return (path, "");
    }
    let fits = |at: &usize| *at <= PREFIX && path.len() - at - 1 <= NAME;
    let at = path.match_indices('/').map(|(at, _)| at).find(fits);
    let cut = |text: &'_ str, longest: usize| (0..=longest.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    match at {
        Some(at) => (&path[at + 1..], &path[..at]),
        None => (&path[..cut(path, NAME).unwrap_or(0)], ""),
    }
}

fn header(path: &str, size: usize, time: Timestamp) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    let (name, prefix) = split(path);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{:011o}\0", time.as_second().max(0)).as_bytes());
    // The checksum counts as spaces while it is computed.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_read_by_tar() {
        let file = std::env::temp_dir().join(format!("brupop-archive-{}.tar.gz", std::process::id()));
        let long = format!("logs/{}/{}.log", "n".repeat(120), "p".repeat(60));
        let mut archive = Archive::new(std::fs::File::create(&file).unwrap(), "folder", Timestamp::UNIX_EPOCH);
        archive.add("a.txt", b"content").unwrap();
        archive.add("empty", b"").unwrap();
        archive.add(&long, &[b'x'; 1024]).unwrap();
        archive.end().unwrap();
        let tar = |arguments: &[&str]| {
            let output = std::process::Command::new("tar").args(arguments).arg("-f").arg(&file).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        assert_eq!(tar(&["-tz"]), format!("folder/a.txt\nfolder/empty\nfolder/{long}\n"));
        let output = std::process::Command::new("tar").arg("-xzOf").arg(&file).arg("folder/a.txt").output().unwrap();
        assert_eq!(output.stdout, b"content");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn names_fit_their_fields() {
        let name = |path: &str| {
            let (name, prefix) = split(path);
            assert!(name.len() <= NAME && prefix.len() <= PREFIX, "{path}");
            (name.len(), prefix.len())
        };
        assert_eq!(name(&format!("{}/{}", "a".repeat(150), "b".repeat(90))), (90, 150));
        assert_eq!(name(&"a".repeat(300)), (100, 0));
        assert_eq!(name("short"), (5, 0));
    }
}
