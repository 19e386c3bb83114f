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
fn failed_refresh_sets_idle_and_keeps_update_lists() {
    let mut bench = Bench::in_state(UpdateState::Available);
    bench.run(Command::Refresh, failed()).unwrap();
    assert_eq!(bench.status().update_state, UpdateState::Idle);
    assert_eq!(bench.status().chosen_update, Some(image("1.20.5")));
    assert_eq!(bench.status().available_updates.len(), 1);
    assert_eq!(bench.run(Command::Prepare, done()), Err(Refusal::NotAllowed));
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
fn refresh_may_clear_chosen_update_of_staged_host() {
    let mut bench = Bench::in_state(UpdateState::Staged);
    bench.run(Command::Refresh, found(None)).unwrap();
    assert_eq!(bench.status().update_state, UpdateState::Staged);
    assert_eq!(bench.run(Command::Prepare, done()), Err(Refusal::NoChosenUpdate));
    bench.run(Command::Activate, done()).unwrap();
    let staged = bench.status().staging_partition.as_ref().unwrap();
    assert_eq!((&staged.image, staged.next_to_boot), (&image("1.20.5"), true));
    assert!(!bench.status().active_partition.as_ref().unwrap().next_to_boot);
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

#[test]
fn vanished_worker_keeps_status_and_releases_lock() {
    let mut bench = Bench::in_state(UpdateState::Available);
    let before = bench.status().clone();
    bench.run(Command::Prepare, Ending::Unrecorded).unwrap();
    assert_eq!(bench.dispatcher.read(), Ok(&before));
}

#[test]
fn running_command_locks_status_and_other_commands() {
    let mut bench = Bench::in_state(UpdateState::Available);
    bench.dispatcher.begin(Command::Prepare, || UpdateStatus::fresh(image("1.20.0"), true)).unwrap();
    assert_eq!(bench.dispatcher.read(), Err(Unreadable::Locked));
    for command in Command::ALL {
        assert_eq!(bench.run(command, done()), Err(Refusal::LockHeld));
    }
}

#[test]
fn refused_command_creates_status_file() {
    let mut bench = Bench { dispatcher: Dispatcher::default(), second: 0 };
    assert_eq!(bench.dispatcher.read(), Err(Unreadable::Uninitialized));
    assert_eq!(bench.run(Command::Activate, done()), Err(Refusal::NotAllowed));
    assert_eq!(bench.dispatcher.read(), Ok(&UpdateStatus::fresh(image("1.20.0"), true)));
}
