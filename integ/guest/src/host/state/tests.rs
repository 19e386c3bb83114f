use super::*;

fn image(version: &str) -> UpdateImage {
    UpdateImage {
        arch: "x86_64".to_owned(),
        version: Version::parse(version).unwrap(),
        variant: "aws-k8s-1.30".to_owned(),
    }
}

fn found(chosen: Option<&str>) -> Ending {
    Ending::Succeeded {
        stderr: String::new(),
        found: Some(Found {
            available: chosen.map(|version| Version::parse(version).unwrap()).into_iter().collect(),
            chosen: Some(chosen.map(image)),
        }),
    }
}

fn done() -> Ending {
    Ending::Succeeded { stderr: String::new(), found: None }
}

fn failed() -> Ending {
    Ending::Failed { exit_status: 1, stderr: "boom\n".to_owned() }
}

struct Bench {
    dispatcher: Dispatcher,
    second: i64,
}

impl Bench {
    fn in_state(state: UpdateState) -> Self {
        let mut bench = Self { dispatcher: Dispatcher::default(), second: 0 };
        let way: &[(Command, Ending)] = match state {
            UpdateState::Idle => &[(Command::Refresh, found(None))],
            UpdateState::Available => &[(Command::Refresh, found(Some("1.20.5")))],
            UpdateState::Staged => &[(Command::Refresh, found(Some("1.20.5"))), (Command::Prepare, done())],
            UpdateState::Ready => {
                &[(Command::Refresh, found(Some("1.20.5"))), (Command::Prepare, done()), (Command::Activate, done())]
            }
        };
        for (command, ending) in way {
            bench.run(*command, ending.clone()).unwrap();
        }
        assert_eq!(bench.status().update_state, state);
        bench
    }

    fn run(&mut self, command: Command, ending: Ending) -> Result<(), Refusal> {
        self.dispatcher.begin(command, || UpdateStatus::fresh(image("1.20.0"), true))?;
        self.second += 1;
        self.dispatcher.end(ending, Timestamp::from_second(self.second).unwrap());
        Ok(())
    }

    fn status(&self) -> &UpdateStatus {
        self.dispatcher.peek().unwrap()
    }
}

#[test]
fn commands_follow_state_transition_table() {
    use {Command as C, Refusal::NotAllowed, UpdateState as S};
    let table = [
        (C::Refresh, [Ok(S::Available), Ok(S::Available), Ok(S::Staged), Ok(S::Ready)]),
        (C::Prepare, [Err(NotAllowed), Ok(S::Staged), Ok(S::Staged), Err(NotAllowed)]),
        (C::Activate, [Err(NotAllowed), Err(NotAllowed), Ok(S::Ready), Err(NotAllowed)]),
        (C::Deactivate, [Err(NotAllowed), Err(NotAllowed), Err(NotAllowed), Ok(S::Staged)]),
    ];
    for (command, row) in table {
        for (state, expected) in [S::Idle, S::Available, S::Staged, S::Ready].into_iter().zip(row) {
            let mut bench = Bench::in_state(state);
            let before = bench.status().most_recent_command.clone();
            let ending = if command == C::Refresh { found(Some("1.20.5")) } else { done() };
            let got = bench.run(command, ending).map(|()| bench.status().update_state);
            assert_eq!(got, expected, "{command} in {state:?}");
            if expected.is_err() {
                assert_eq!(bench.status().most_recent_command, before, "{command} in {state:?}");
            }
        }
    }
}

#[test]
fn failed_command_other_than_refresh_changes_only_command_record() {
    use {Command as C, UpdateState as S};
    for (command, state) in
        [(C::Prepare, S::Available), (C::Prepare, S::Staged), (C::Activate, S::Staged), (C::Deactivate, S::Ready)]
    {
        let mut bench = Bench::in_state(state);
        let mut expected = bench.status().clone();
        bench.run(command, failed()).unwrap();
        expected.most_recent_command = bench.status().most_recent_command.clone();
        assert_eq!(*bench.status(), expected);
        assert_eq!(bench.status().most_recent_command.as_ref().unwrap().cmd_status, CommandStatus::Failed);
    }
}

#[test]
fn failed_refresh_keeps_staged_and_ready_states() {
    for state in [UpdateState::Staged, UpdateState::Ready] {
        let mut bench = Bench::in_state(state);
        bench.run(Command::Refresh, failed()).unwrap();
        assert_eq!(bench.status().update_state, state);
    }
}

#[test]
fn refresh_with_invalid_output_is_recorded_as_success_without_changes() {
    let mut bench = Bench::in_state(UpdateState::Available);
    let mut expected = bench.status().clone();
    bench.run(Command::Refresh, done()).unwrap();
    assert_ne!(bench.status().most_recent_command, expected.most_recent_command);
    assert_eq!(bench.status().most_recent_command.as_ref().unwrap().cmd_status, CommandStatus::Success);
    expected.most_recent_command = bench.status().most_recent_command.clone();
    assert_eq!(*bench.status(), expected);
}
