//! Commands whose output has no reader.

use std::process::{Command, Stdio};

#[test]
fn command_ends_with_its_exit_code_where_its_output_has_no_reader() {
    // The file is missing: the error is the only output.
    for (arguments, code) in [(&["simulate", "-f", "/no-such-file"][..], 1), (&["completion", "bash"][..], 0)] {
        let closed = || std::io::pipe().unwrap().1;
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-brupop"));
        command.args(arguments).stdin(Stdio::null()).stdout(closed()).stderr(closed());
        let status = command.status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}: {status}");
    }
}
