//! The fuzzer's seeds and findings as plain tests: `fuzz/seeds` and `fuzz/crashes`.

#[path = "../../fuzz/src/both.rs"]
mod both;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn targets() -> impl Iterator<Item = &'static models::FuzzTarget> {
    let parts = [agent::fuzzing::TARGETS, apiserver::fuzzing::TARGETS, controller::fuzzing::TARGETS];
    parts.into_iter().chain([both::TARGETS]).flatten()
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

/// The files of a folder; none if it does not exist.
fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[test]
fn every_reader_of_what_comes_from_outside_holds_for_all_inputs_that_are_kept() {
    for (name, run) in targets() {
        let seeds = files(&folder().join("seeds").join(name));
        assert!(!seeds.is_empty(), "{name} has nothing to start from");
        for file in seeds.into_iter().chain(files(&folder().join("crashes").join(name))) {
            // Shown with a failure.
            println!("{}", file.display());
            let input = std::fs::read(&file).unwrap();
            run(&input);
            // Also truncated, where parsers of text end up.
            for length in 0..input.len().min(600) {
                run(&input[..length]);
            }
        }
    }
}

#[test]
fn the_fuzzer_runs_every_target() {
    let names: BTreeSet<String> = targets().map(|(name, _)| (*name).to_owned()).collect();
    let seeds = files(&folder().join("seeds"));
    let seeds: BTreeSet<String> =
        seeds.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    assert_eq!(names, seeds, "the targets are the folders of seeds");
}
