//! A tar archive, compressed with gzip.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

pub(super) struct Archive<W: Write> {
    out: tar::Builder<GzEncoder<W>>,
    /// Folder that everything is in.
    folder: String,
    time: Timestamp,
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W, folder: &str, time: Timestamp) -> Self {
        let out = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        Self { out, folder: folder.to_owned(), time }
    }

    pub(super) fn add(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(u64::try_from(self.time.as_second()).unwrap_or_default());
        self.out.append_data(&mut header, format!("{}/{path}", self.folder), content)
    }

    /// Ends the archive, and returns what it was written to.
    pub(super) fn end(self) -> io::Result<W> {
        self.out.into_inner()?.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_read_by_tar() {
        let file = std::env::temp_dir().join(format!("brupop-archive-{}.tar.gz", std::process::id()));
        let long = format!("logs/{}/{}.log", "n".repeat(120), "p".repeat(253));
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
}
