//! The script of what goes wrong on a host.

use std::time::Duration;

use semver::Version;

use super::state::Command;

/// One entry of the script: what goes wrong, and how many times. Entries for the same thing take effect in the order in
/// which they were scripted.
#[derive(Clone, Debug)]
pub struct Fault {
    at: At,
    times: u32,
}

#[derive(Clone, Debug)]
enum At {
    Command { command: Command, delay: Option<Duration>, worker: Worker },
    Reboot(RebootFault),
    Boot(BootFault),
    Request { method: String, path: String, transport: Transport },
    Connection,
    Applier(String),
}

/// How the worker of a command ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// As it should.
    Succeeds,
    /// updog exits with an error.
    Exits {
        /// Its exit code.
        status: i32,
        /// Its standard error.
        stderr: String,
        /// For a prepare: the inactive set was already being overwritten. What it held is lost and it cannot be armed.
        overwrote: bool,
    },
    /// updog is killed; a prepare has half overwritten the inactive set.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The worker itself dies: no record, the lock is free.
    Vanishes,
    /// The worker dies after its work was done and before the record of it: the disk has changed, the status has not.
    LosesRecord,
    /// It holds the lock until the machine (or the API server) goes down.
    NeverEnds,
    /// It goes on until [`super::Host::release_command`], then succeeds.
    Waits,
    /// A refresh whose updog succeeds, but whose configuration cannot be used: the list is new, state and choice stay.
    BadConfig,
    /// A prepare that writes this version, whatever was chosen.
    Writes(Version),
    /// A prepare that finds nothing to do.
    WritesNothing,
}

/// What goes wrong with a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebootFault {
    /// It is refused: 500 with this standard error.
    Refused {
        /// What `systemctl` says.
        stderr: String,
    },
    /// The machine reboots but the answer is lost.
    ReplyCut,
    /// The machine reboots, and the shutdown ends the very command that ordered it: 500 with the signal's number.
    Terminated,
}

/// What goes wrong with a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootFault {
    /// The next boot of an image that has not proved itself fails, so that GRUB takes the old one after it.
    NewImageFails,
    /// The next boot never ends. The machine stays down until it is powered on again.
    NeverComesBack,
}

/// What goes wrong between client and API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The connection is closed when the request was read; nothing is done.
    LostBefore,
    /// The request is carried out, then the connection is closed without an answer.
    LostAfter,
    /// The request is carried out and half of the answer arrives.
    CutReply,
    /// The server (all of it: it has one worker) takes this long.
    Slow(Duration),
    /// The request is carried out; the answer is 200 with a body that is not JSON.
    Garbage,
    /// Nothing is done; the answer is this status with this body.
    Status(u16, String),
}

impl Fault {
    fn new(at: At) -> Self {
        Self { at, times: 1 }
    }

    /// The next command of this kind ends like this.
    pub fn command(command: Command, worker: Worker) -> Self {
        Self::new(At::Command { command, delay: None, worker })
    }

    /// The next command of this kind fails with exit code 1; a prepare has half overwritten the inactive set.
    pub fn fails(command: Command, stderr: impl Into<String>) -> Self {
        Self::command(command, Worker::Exits { status: 1, stderr: stderr.into(), overwrote: true })
    }

    /// The next command of this kind takes this long and succeeds.
    pub fn slow(command: Command, delay: Duration) -> Self {
        Self::command(command, Worker::Succeeds).delayed(delay)
    }

    /// The next `POST /actions/reboot` goes wrong.
    pub fn reboot(fault: RebootFault) -> Self {
        Self::new(At::Reboot(fault))
    }

    /// The next boot goes wrong.
    pub fn boot(fault: BootFault) -> Self {
        Self::new(At::Boot(fault))
    }

    /// The next request of this method whose path begins like this goes wrong. `*` is any method.
    pub fn request(method: impl Into<String>, path: impl Into<String>, transport: Transport) -> Self {
        Self::new(At::Request { method: method.into(), path: path.into(), transport })
    }

    /// The next connection is closed as soon as it is accepted. It is the nearest thing to a refusal by permissions that
    /// can be shown to a client with all rights; [`super::Host::restart_api`] shows a refused connection.
    pub fn connection() -> Self {
        Self::new(At::Connection)
    }

    /// The next commit with apply cannot start the applier: 500, **and the settings are committed all the same**, but
    /// never reach the tools in this boot.
    pub fn applier(message: impl Into<String>) -> Self {
        Self::new(At::Applier(message.into()))
    }

    /// For a command: it takes this long.
    #[must_use]
    pub fn delayed(mut self, by: Duration) -> Self {
        if let At::Command { delay, .. } = &mut self.at {
            *delay = Some(by);
        }
        self
    }

    /// It goes wrong this many times.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// The faults that wait for their moment.
#[derive(Debug, Default)]
pub(super) struct Script(Vec<Fault>);

impl Script {
    pub(super) fn add(&mut self, fault: Fault) {
        if fault.times > 0 {
            self.0.push(fault);
        }
    }

    /// Spends the first entry that `pick` wants.
    fn take<T>(&mut self, mut pick: impl FnMut(&At) -> Option<T>) -> Option<T> {
        let (index, taken) = self.0.iter().enumerate().find_map(|(index, fault)| Some((index, pick(&fault.at)?)))?;
        if let Some(fault) = self.0.get_mut(index) {
            fault.times -= 1;
            if fault.times == 0 {
                self.0.remove(index);
            }
        }
        Some(taken)
    }

    pub(super) fn command(&mut self, wanted: Command) -> (Option<Duration>, Worker) {
        self.take(|at| match at {
            At::Command { command, delay, worker } if *command == wanted => Some((*delay, worker.clone())),
            _ => None,
        })
        .unwrap_or((None, Worker::Succeeds))
    }

    pub(super) fn reboot(&mut self) -> Option<RebootFault> {
        self.take(|at| if let At::Reboot(fault) = at { Some(fault.clone()) } else { None })
    }

    /// The fault of the next boot, of an image that has `proven` itself or not.
    pub(super) fn boot(&mut self, proven: bool) -> Option<BootFault> {
        self.take(|at| match at {
            At::Boot(BootFault::NewImageFails) if proven => None,
            At::Boot(fault) => Some(*fault),
            _ => None,
        })
    }

    pub(super) fn request(&mut self, method: &str, path: &str) -> Option<Transport> {
        self.take(|at| match at {
            At::Request { method: wanted, path: start, transport }
                if (wanted == "*" || wanted == method) && path.starts_with(start.as_str()) =>
            {
                Some(transport.clone())
            }
            _ => None,
        })
    }

    pub(super) fn connection(&mut self) -> bool {
        self.take(|at| matches!(at, At::Connection).then_some(())).is_some()
    }

    pub(super) fn applier(&mut self) -> Option<String> {
        self.take(|at| if let At::Applier(message) = at { Some(message.clone()) } else { None })
    }
}
