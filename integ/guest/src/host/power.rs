//! Lifecycle of the machine: boot, run, shut down, lose power, stay down.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use tokio::sync::{mpsc, oneshot};

use crate::machine::Power;

use super::core::Core;
use super::disk::SetName;
use super::faults::BootFault;
use super::log::{EventKind, ShutdownBy};
use super::server::{Server, Stop};

/// External actions on the machine.
#[derive(Debug)]
pub(super) enum Order {
    /// Shut down gracefully and boot again.
    Reboot(ShutdownBy),
    /// The power fails and comes back. The sender is notified when the machine is down.
    PowerLoss(oneshot::Sender<()>),
    /// The power is cut.
    Off,
    /// The power is restored.
    On,
    /// The API server restarts. The sender is notified when it listens again.
    RestartApi(Stop, oneshot::Sender<()>),
}

/// The step after the machine went down.
enum Next {
    Boot,
    StayDown,
}

/// Runs the machine, right after its first boot, until the task is aborted.
pub(super) async fn run(core: Arc<Core>, server: Server, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut server = Guard(Some(server));
    loop {
        let mut next = up(&core, &mut server, &mut orders).await;
        let expected = core.lock().disk.next();
        loop {
            match next {
                Next::StayDown => {
                    while !matches!(orders.recv().await, Some(Order::On) | None) {}
                    next = Next::Boot;
                }
                Next::Boot => match boot(&core, &mut orders).await {
                    Some(again) => next = again,
                    None => match come_up(&core, expected) {
                        Ok(started) => {
                            server.0 = Some(started);
                            break;
                        }
                        Err(error) => {
                            tracing::error!(
                                error = format!("{error:#}"),
                                host = core.options.name,
                                "the host cannot boot"
                            );
                            next = Next::StayDown;
                        }
                    },
                },
            }
        }
    }
}

/// Ends the server with the task that owns it.
struct Guard(Option<Server>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(server) = &self.0 {
            server.abort();
        }
    }
}

/// Runs the machine until something ends that.
async fn up(core: &Arc<Core>, server: &mut Guard, orders: &mut mpsc::UnboundedReceiver<Order>) -> Next {
    loop {
        let order = orders.recv().await;
        match order {
            Some(Order::Reboot(by)) => return shut_down(core, server, orders, by).await,
            Some(Order::PowerLoss(done)) => {
                core.note(EventKind::PowerLoss);
                go_down(core, server, Stop::Killed).await;
                let _ = done.send(());
                return Next::Boot;
            }
            Some(Order::Off) => {
                core.note(EventKind::PowerLoss);
                go_down(core, server, Stop::Killed).await;
                return Next::StayDown;
            }
            Some(Order::On) => {}
            Some(Order::RestartApi(how, done)) => {
                restart_api(core, server, how).await;
                let _ = done.send(());
            }
            // Every handle is gone: nothing can happen to this machine any more.
            None => std::future::pending().await,
        }
    }
}

/// Shuts down gracefully: the kubelet may delay it up to the limit; the power can still fail.
async fn shut_down(
    core: &Arc<Core>,
    server: &mut Guard,
    orders: &mut mpsc::UnboundedReceiver<Order>,
    by: ShutdownBy,
) -> Next {
    core.lock().shutting_down = true;
    // A release that came too late for an earlier shutdown does not count for this one.
    let _ = core.shutdown_released.notified().now_or_never();
    core.note(EventKind::ShutdownOrdered { by });
    core.machine.send_modify(|machine| machine.power = Power::ShuttingDown);
    let delayable = core.machine_taken.load(Ordering::Acquire);
    let limit = if delayable { core.options.shutdown_limit } else { Duration::ZERO };
    let released = async {
        // The shutdown continues either way.
        let _ = tokio::time::timeout(limit, core.shutdown_released.notified()).await;
    };
    let finished = async { tokio::join!(released, tokio::time::sleep(core.options.timings.shutdown)) };
    tokio::pin!(finished);
    loop {
        tokio::select! {
            biased;
            order = orders.recv() => match order {
                Some(Order::PowerLoss(done)) => {
                    core.note(EventKind::PowerLoss);
                    go_down(core, server, Stop::Killed).await;
                    let _ = done.send(());
                    return Next::Boot;
                }
                Some(Order::Off) => {
                    core.note(EventKind::PowerLoss);
                    go_down(core, server, Stop::Killed).await;
                    return Next::StayDown;
                }
                Some(Order::RestartApi(_, done)) => {
                    let _ = done.send(());
                }
                Some(Order::Reboot(_) | Order::On) => {}
                None => std::future::pending().await,
            },
            _ = &mut finished => {
                go_down(core, server, Stop::Clean).await;
                return Next::Boot;
            }
        }
    }
}

/// Takes the machine down: the socket is gone (or dead), and everything in memory is lost.
async fn go_down(core: &Core, server: &mut Guard, how: Stop) {
    core.machine.send_modify(|machine| machine.power = Power::Down);
    if let Some(server) = server.0.take() {
        server.stop(core, how).await;
    }
    {
        let state = &mut *core.lock();
        core.kill_worker(state);
        state.dispatcher.forget();
        state.settings.forget_pending();
        state.boots += 1;
    }
    core.note(EventKind::Down);
}

/// Boots, from GRUB to the mark of a good boot. `None`: booted. A loss of power on the way costs a new image its try.
async fn boot(core: &Core, orders: &mut mpsc::UnboundedReceiver<Order>) -> Option<Next> {
    loop {
        let (good, fault) = {
            let state = &mut *core.lock();
            let Some(_) = state.disk.boot() else {
                tracing::error!(host = core.options.name, "no partition set of this host boots any more");
                return Some(Next::StayDown);
            };
            let taken = state.disk.active_set();
            let (proven, whole) = (taken.successful, taken.version.is_some());
            let fault = state.script.boot(proven);
            (whole && fault.is_none(), fault)
        };
        if fault == Some(BootFault::NeverComesBack) {
            return Some(Next::StayDown);
        }
        let finished = tokio::time::sleep(core.options.timings.boot);
        tokio::pin!(finished);
        loop {
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Order::PowerLoss(done)) => {
                        core.note(EventKind::PowerLoss);
                        let _ = done.send(());
                        return Some(Next::Boot);
                    }
                    Some(Order::Off) => return Some(Next::StayDown),
                    Some(Order::RestartApi(_, done)) => {
                        let _ = done.send(());
                    }
                    Some(Order::Reboot(_) | Order::On) => {}
                    None => std::future::pending().await,
                },
                () = &mut finished => break,
            }
        }
        if good {
            return None;
        }
    }
}

/// Finishes a good boot: files and socket first, then the state that the machine is up.
pub(super) fn come_up(core: &Arc<Core>, expected: Option<SetName>) -> anyhow::Result<Server> {
    let boot_id = new_boot_id();
    let (version, fell_back) = {
        let state = &mut *core.lock();
        state.disk.mark_successful_boot();
        state.effective = state.settings.committed().clone();
        state.shutting_down = false;
        (core.running(state), expected.is_some_and(|set| set != state.disk.active))
    };
    let options = &core.options;
    let pretty_name = options.pretty_name(&version);
    let os_release = format!(
        "NAME=Bottlerocket\nID=bottlerocket\nVERSION=\"{version} ({variant})\"\nPRETTY_NAME=\"{pretty_name}\"\n\
         VARIANT_ID={variant}\nVERSION_ID={version}\nBUILD_ID={build_id}\n",
        variant = options.variant,
        build_id = options.build_id,
    );
    write(&options.root, "proc/sys/kernel/random/boot_id", &format!("{boot_id}\n"))?;
    write(&options.root, "etc/os-release", &os_release)?;
    write(&options.root, "usr/lib/os-release", &os_release)?;
    std::fs::create_dir_all(options.root.join("run")).context("making run/")?;
    core.machine.send_modify(|machine| {
        machine.boot_id.clone_from(&boot_id);
        machine.os_image = pretty_name;
    });
    core.note(EventKind::Booted { boot_id, version, fell_back });
    let server = Server::start(core.clone())?;
    core.machine.send_modify(|machine| machine.power = Power::Up);
    Ok(server)
}

/// Restarts the API server; by systemd's default this ends a running command.
async fn restart_api(core: &Arc<Core>, server: &mut Guard, how: Stop) {
    if let Some(server) = server.0.take() {
        server.stop(core, how).await;
    }
    core.kill_worker(&mut core.lock());
    tokio::time::sleep(core.options.timings.api_restart).await;
    match Server::start(core.clone()) {
        Ok(started) => server.0 = Some(started),
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), host = core.options.name, "the API server cannot start");
        }
    }
}

/// Writes a temporary file and renames it: a reader sees the old file or the new one.
fn write(root: &Path, path: &str, content: &str) -> anyhow::Result<()> {
    let path = root.join(path);
    let folder = path.parent().context("a file has a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let fresh = path.with_extension("new");
    std::fs::write(&fresh, content).with_context(|| format!("writing {}", fresh.display()))?;
    std::fs::rename(&fresh, &path).with_context(|| format!("writing {}", path.display()))
}

/// A random UUID, as the kernel makes one.
fn new_boot_id() -> String {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text += &format!("{byte:02x}");
    }
    text
}
