//! Fault injection on a host.

use std::time::Duration;

use semver::Version;

use super::state::Command;

/// One injected fault, and the number of times that it occurs. Faults of the same operation take effect in the order in
/// which they were added.
#[derive(Clone, Debug)]
pub struct Fault {
    at: At,
    /// The number of matching operations before it.
    after: u32,
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

/// End of a command's worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// Success.
    Succeeds,
    /// updog exits with an error.
    Exits {
        /// Exit code.
        status: i32,
        /// Standard error.
        stderr: String,
        /// For a prepare: the inactive set was already being overwritten. Its image is lost and it cannot be armed.
        overwrote: bool,
    },
    /// updog is killed; a prepare has overwritten a part of the inactive set.
    Killed {
        /// The signal's number.
        signal: i32,
    },
    /// The worker itself dies: no record, the lock is free.
    Vanishes,
    /// The worker dies after its work and before the record of it: the disk has changed, the status has not.
    LosesRecord,
    /// The worker holds the lock until the machine (or the API server) goes down.
    NeverEnds,
    /// The worker runs until [`super::Host::release_command`], then succeeds.
    Waits,
    /// A refresh whose updog succeeds, but whose configuration cannot be used: the list is new, state and choice stay.
    BadConfig,
    /// A prepare that writes this version, whatever was chosen.
    Writes(Version),
    /// A prepare that finds nothing to do.
    WritesNothing,
}

/// Fault of a reboot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RebootFault {
    /// Refused: 500 with this standard error.
    Refused {
        /// Standard error of `systemctl`.
        stderr: String,
    },
    /// The machine reboots but the response is lost.
    ReplyCut,
    /// The machine reboots, and the shutdown ends the command that requested it: 500 with the signal's number.
    Terminated,
}

/// Fault of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootFault {
    /// The next boot of an image not marked successful fails, so that GRUB takes the old one after it.
    NewImageFails,
    /// The next boot never ends. The machine stays down until it is powered on again.
    NeverComesBack,
}

/// Fault between client and API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// The connection is closed after the request was read; nothing is done.
    LostBefore,
    /// The request is carried out, then the connection is closed without a response.
    LostAfter,
    /// The request is carried out and half of the response arrives.
    CutReply,
    /// The server (all of it: it has one worker) takes this long.
    Slow(Duration),
    /// The request is carried out; the response is 200 with a body that is not JSON.
    Garbage,
    /// Nothing is done; the response is this status with this body.
    Status(u16, String),
    /// The request is carried out; the response is this status with this body.
    StatusAfter(u16, String),
    /// Nothing is done and nothing answered: the connection stays open until the client closes it.
    HeldBefore,
    /// The request is carried out and not answered: the connection stays open until the client closes it.
    HeldAfter,
    /// The request is carried out and answered; then the API server is killed and restarts, unless the machine reboots.
    RestartAfter,
}

impl Fault {
    fn new(at: At) -> Self {
        Self { at, after: 0, times: 1 }
    }

    /// Sets the end of the next command of this kind.
    pub fn command(command: Command, worker: Worker) -> Self {
        Self::new(At::Command { command, delay: None, worker })
    }

    /// Lets the next command of this kind fail with exit code 1; a prepare has overwritten a part of the inactive set.
    pub fn fails(command: Command, stderr: impl Into<String>) -> Self {
        Self::command(command, Worker::Exits { status: 1, stderr: stderr.into(), overwrote: true })
    }

    /// Lets the next command of this kind take this long and succeed.
    pub fn slow(command: Command, delay: Duration) -> Self {
        Self::command(command, Worker::Succeeds).delayed(delay)
    }

    /// Injects a fault into the next `POST /actions/reboot`.
    pub fn reboot(fault: RebootFault) -> Self {
        Self::new(At::Reboot(fault))
    }

    /// Injects a fault into the next boot.
    pub fn boot(fault: BootFault) -> Self {
        Self::new(At::Boot(fault))
    }

    /// Injects a fault into the next request of this method with this path prefix. `*` is any method.
    pub fn request(method: impl Into<String>, path: impl Into<String>, transport: Transport) -> Self {
        Self::new(At::Request { method: method.into(), path: path.into(), transport })
    }

    /// Closes the next connection as soon as it is accepted: the nearest thing to a refusal by permissions that can be
    /// shown to a client with all rights; [`super::Host::restart_api`] shows a refused connection.
    pub fn connection() -> Self {
        Self::new(At::Connection)
    }

    /// Lets the next commit with apply fail to start the applier: 500, **and the settings are committed all the same**,
    /// but never reach the tools in this boot.
    pub fn applier(message: impl Into<String>) -> Self {
        Self::new(At::Applier(message.into()))
    }

    /// Sets the duration of a command.
    #[must_use]
    pub fn delayed(mut self, by: Duration) -> Self {
        if let At::Command { delay, .. } = &mut self.at {
            *delay = Some(by);
        }
        self
    }

    /// Lets so many matching operations pass before the fault. Only for one without others of the same operation.
    #[must_use]
    pub fn after(mut self, operations: u32) -> Self {
        self.after = operations;
        self
    }

    /// Sets the number of times that the fault occurs.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }
}

/// The pending faults.
#[derive(Debug, Default)]
pub(super) struct Script(Vec<Fault>);

impl Script {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn add(&mut self, fault: Fault) {
        if fault.times > 0 {
            self.0.push(fault);
        }
    }

    /// Takes the first fault that `pick` accepts.
    fn take<T>(&mut self, mut pick: impl FnMut(&At) -> Option<T>) -> Option<T> {
        let (index, taken) = self.0.iter().enumerate().find_map(|(index, fault)| Some((index, pick(&fault.at)?)))?;
        if let Some(fault) = self.0.get_mut(index) {
            if fault.after > 0 {
                fault.after -= 1;
                return None;
            }
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

    /// The fault of the next boot, of an image that is marked successful (`proven`) or not.
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
