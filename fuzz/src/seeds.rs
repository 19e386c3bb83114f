//! Runs targets over the inputs that are kept, as plain tests: `fuzz/seeds` and `fuzz/crashes`.

use std::path::{Path, PathBuf};

/// The files of a folder; none if it does not exist.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Runs the targets of a part over its inputs, whole and truncated, where parsers of text end up.
///
/// # Panics
/// If an invariant does not hold, or if the targets are not the part's folders of seeds.
pub(crate) fn hold(part: &str, targets: &[(&str, impl Fn(&[u8]))]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut seeds: Vec<PathBuf> = files(&folder.join("seeds").join(part));
    seeds.sort();
    let mut names: Vec<&str> = targets.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    let folders: Vec<_> = seeds.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, folders, "the targets are the folders of seeds");
    for (name, run) in targets {
        let kept = files(&folder.join("seeds").join(part).join(name));
        assert!(!kept.is_empty(), "{name} has nothing to start from");
        for file in kept.into_iter().chain(files(&folder.join("crashes").join(name))) {
            // Shown with a failure.
            println!("{}", file.display());
            let read = std::fs::read(&file);
            assert!(read.is_ok(), "{}: {read:?}", file.display());
            let input = read.unwrap_or_default();
            run(&input);
            for length in 0..input.len().min(600) {
                run(&input[..length]);
            }
        }
    }
}
