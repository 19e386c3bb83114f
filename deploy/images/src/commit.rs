//! The commit that the programs are built from.

use std::path::Path;

use anyhow::Context as _;

use crate::process::output;

/// Time of the images without a commit: 2026-01-01T00:00:00Z, in seconds since 1970.
pub const FIXED_EPOCH: u64 = 1_767_225_600;

/// A commit, as git knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The digits of the commit, with `-dirty` where files were changed since.
    pub revision: String,
    /// Seconds since 1970.
    pub epoch: u64,
}

impl Commit {
    /// Asks git for the commit of a checkout.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let git = |arguments: &[&str]| output(root, "git", arguments);
        // The sources can have been unpacked in a folder of another project.
        let prefix = git(&["rev-parse", "--show-prefix"])?;
        anyhow::ensure!(prefix.trim().is_empty(), "the next git repository is that of a folder above");
        let epoch = git(&["log", "-1", "--format=%ct"])?;
        Ok(Self {
            revision: git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])?.trim().to_owned(),
            epoch: epoch.trim().parse().with_context(|| format!("git log printed the time {epoch:?}"))?,
        })
    }
}

/// Returns revision and time of the images, and a warning where one of them is asked of git and git does not answer.
pub fn origin(root: &Path, revision: Option<String>, epoch: Option<u64>) -> (Option<String>, u64, Option<String>) {
    if let (Some(_), Some(epoch)) = (&revision, epoch) {
        return (revision, epoch, None);
    }
    match Commit::of(root) {
        Ok(commit) => (Some(revision.unwrap_or(commit.revision)), epoch.unwrap_or(commit.epoch), None),
        Err(cause) => {
            // git gives its advice on lines of its own.
            let cause = format!("{cause:#}").split_whitespace().collect::<Vec<_>>().join(" ");
            let label = if revision.is_some() { "" } else { " no revision and" };
            let time = if epoch.is_some() { "the time SOURCE_DATE_EPOCH" } else { "the time 2026-01-01T00:00:00Z" };
            let warning = format!(
                "warning: the images get{label} {time}, because the commit is not known: build where git can read the \
                 repository, or set REVISION and SOURCE_DATE_EPOCH (cause: {cause})"
            );
            (revision, epoch.unwrap_or(FIXED_EPOCH), Some(warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, arguments: &[&str]) {
        let identity = ["-c", "user.name=a", "-c", "user.email=a@b.example", "-c", "commit.gpgsign=false"];
        output(folder, "git", &[&identity[..], arguments].concat()).unwrap();
    }

    #[test]
    fn commit_of_checkout_is_found() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]);
        std::fs::write(folder.path().join("a"), "1").unwrap();
        git(folder.path(), &["add", "a"]);
        git(folder.path(), &["commit", "--quiet", "--message", "a", "--date", "@1800000000 +0000"]);
        let clean = Commit::of(folder.path()).unwrap();
        assert!(clean.revision.len() == 40 && clean.epoch > FIXED_EPOCH, "{clean:?}");
        std::fs::write(folder.path().join("a"), "2").unwrap();
        let expected = format!("{}-dirty", clean.revision);
        assert_eq!(origin(folder.path(), None, None), (Some(expected), clean.epoch, None));
        assert_eq!(origin(folder.path(), Some("b".into()), Some(1)), (Some("b".into()), 1, None));

        let below = folder.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let (revision, _, warning) = origin(&below, None, None);
        assert!(revision.is_none() && warning.is_some_and(|warning| warning.contains("a folder above")));
    }

    #[test]
    fn sources_without_repository_get_the_fixed_time_and_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let (revision, epoch, warning) = origin(folder.path(), None, None);
        assert_eq!((revision, epoch), (None, FIXED_EPOCH));
        let warning = warning.unwrap();
        assert!(warning.contains("REVISION") && warning.contains("(cause: git rev-parse"), "{warning}");
        assert!(!warning.contains('\n'), "{warning}");
        let (revision, epoch, warning) = origin(folder.path(), None, Some(5));
        assert_eq!((revision, epoch), (None, 5));
        assert!(warning.is_some_and(|warning| warning.contains("the time SOURCE_DATE_EPOCH")));
    }

    #[test]
    fn fixed_time_is_what_the_warning_says() {
        let time = jiff::Timestamp::from_second(FIXED_EPOCH.cast_signed()).unwrap();
        assert_eq!(time.to_string(), "2026-01-01T00:00:00Z");
    }
}
