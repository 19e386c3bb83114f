//! Runs the tool on a small package, whose mutants end in each way. It needs cargo-mutants.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

#[test]
fn mutants_of_the_sample_end_as_they_should() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sample");
    let output = Command::new(env!("CARGO_BIN_EXE_mutants"))
        .arg("--root")
        .arg(&root)
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("CARGO_BUILD_BUILD_DIR")
        .output()?;
    // Fewer than 95 % are caught.
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let mut found = String::new();
    for end in ["caught", "missed", "timeout", "unviable", "not-tried"] {
        let list = std::fs::read_to_string(target.join(format!("mutants/{end}.txt")))?;
        list.lines().try_for_each(|line| writeln!(found, "{end} {line}"))?;
    }
    let expected = root.join("expected.txt");
    if std::env::var_os("WRITE_EXPECTED").is_some() {
        std::fs::write(&expected, &found)?;
    }
    assert_eq!(found, std::fs::read_to_string(&expected)?);
    Ok(())
}
