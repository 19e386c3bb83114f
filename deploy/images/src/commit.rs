//! The commit that the programs are built from.

use std::path::Path;

use anyhow::Context as _;

use crate::process::output;

/// Time of the images without a commit: 2026-01-01T00:00:00Z, in seconds since 1970.
const FIXED_EPOCH: u64 = 1_767_225_600;

/// A commit of the project's git repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The digits of the commit, with `-dirty` where files were changed since.
    pub revision: String,
    /// Seconds since 1970.
    pub epoch: u64,
}

impl Commit {
    /// Reads the commit of a checkout with git.
    pub fn of(root: &Path) -> anyhow::Result<Self> {
        let git = |arguments: &[&str]| output(root, "git", arguments);
        // The sources can have been unpacked in a folder of another project.
        let prefix = git(&["rev-parse", "--show-prefix"])?;
        anyhow::ensure!(prefix.trim().is_empty(), "the next git repository is that of a folder above");
        let epoch = git(&["log", "-1", "--no-show-signature", "--format=%ct"])?;
        Ok(Self {
            revision: git(&["describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"])?.trim().to_owned(),
            epoch: epoch.trim().parse().with_context(|| format!("git log printed the time {epoch:?}"))?,
        })
    }
}

/// Returns revision and time of the images. What is not given is read with git; where that fails, there is a warning.
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
    use crate::process::command;

    fn git(folder: &Path, arguments: &[&str]) {
        let mut git = command(folder, "git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@b.example"]).args(arguments);
        // Nothing of the user's configuration.
        git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let done = git.env("GIT_COMMITTER_DATE", "@1900000000 +0000").output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    #[test]
    fn commit_of_checkout_is_found() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]);
        std::fs::write(folder.path().join("a"), "1").unwrap();
        git(folder.path(), &["add", "a"]);
        git(folder.path(), &["commit", "--quiet", "--message", "a", "--date", "@1800000000 +0000"]);
        let clean = Commit::of(folder.path()).unwrap();
        assert!(clean.revision.len() == 40 && clean.epoch == 1_900_000_000, "{clean:?}");
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
    fn repository_of_a_hook_is_left_alone() {
        let (hook, test) = (tempfile::tempdir().unwrap(), "commit::tests::commit_of_checkout_is_found");
        git(hook.path(), &["init", "--quiet"]);
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", test]).env("GIT_DIR", hook.path().join(".git"));
        let done = again.env("GIT_WORK_TREE", hook.path()).env("GIT_INDEX_FILE", hook.path().join("index")).output();
        let done = done.unwrap();
        assert!(done.status.success() && String::from_utf8_lossy(&done.stdout).contains("1 passed"), "{done:?}");
        assert!(Commit::of(hook.path()).is_err() && !hook.path().join("index").exists());
    }

    #[test]
    fn sources_without_repository_get_the_fixed_time_and_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let (revision, epoch, warning) = origin(folder.path(), None, None);
        assert_eq!((revision, epoch), (None, FIXED_EPOCH));
        let time = jiff::Timestamp::from_second(FIXED_EPOCH.cast_signed()).unwrap();
        assert_eq!(time.to_string(), "2026-01-01T00:00:00Z", "as the warning says");
        let warning = warning.unwrap();
        assert!(warning.contains("REVISION") && warning.contains("(cause: "), "{warning}");
        assert!(!warning.contains('\n'), "{warning}");
        let (revision, epoch, warning) = origin(folder.path(), None, Some(5));
        assert_eq!((revision, epoch), (None, 5));
        assert!(warning.is_some_and(|warning| warning.contains("the time SOURCE_DATE_EPOCH")));
    }
}
