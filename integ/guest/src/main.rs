//! `brupop-guest`: in a virtual machine of a test, what Bottlerocket's boot loader and API server are on a node.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use guest::host::guest::{Guest, GuestOptions, flags};
use guest::host::{Disk, EventKind, HostOptions, Releases};
use semver::Version;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::broadcast::error::RecvError;

/// Interval of looking for new images in the repository.
const LOOK: Duration = Duration::from_secs(1);

/// The disk's boot flags, and the host's update API, of a node in a virtual machine.
#[derive(Debug, Parser)]
#[command(name = "brupop-guest", version)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make the file of a disk whose set A was installed with a version
    Init {
        /// The file to write
        #[arg(long, value_name = "FILE")]
        flags: PathBuf,
        /// The version on set A
        #[arg(long)]
        version: Version,
    },
    /// Choose the set to boot, spend one of its tries, and print A or B
    Boot(Device),
    /// Mark the running set successful: the end of a good boot
    MarkSuccessful(Device),
    /// Serve the host's update API until SIGTERM
    Serve(Box<Serve>),
}

#[derive(Debug, Args)]
struct Device {
    /// The device with the boot flags
    #[arg(long, value_name = "DEVICE")]
    flags: PathBuf,
}

#[derive(Debug, Args)]
struct Serve {
    #[command(flatten)]
    device: Device,
    /// The folder of the update repository: each image is a file VERSION.img, which may appear later
    #[arg(long, value_name = "FOLDER")]
    releases: PathBuf,
    /// The API's socket
    #[arg(long, value_name = "PATH", default_value = "/run/api.sock")]
    socket: PathBuf,
    /// The group that may connect to the socket
    #[arg(long, value_name = "GID", default_value_t = 274)]
    socket_gid: u32,
    /// The root device of set A
    #[arg(long, value_name = "DEVICE")]
    root_a: PathBuf,
    /// The root device of set B
    #[arg(long, value_name = "DEVICE")]
    root_b: PathBuf,
    /// The folder for settings and status, on a file system that survives a reboot
    #[arg(long, value_name = "FOLDER")]
    state: PathBuf,
    /// The name of the node
    #[arg(long)]
    name: String,
    /// The place of a new machine in the waves
    #[arg(long, default_value_t = 42, value_parser = clap::value_parser!(u32).range(0..2048))]
    seed: u32,
    /// The variant of its images
    #[arg(long, default_value = "aws-k8s-1.37")]
    variant: String,
    /// The architecture of its images
    #[arg(long, default_value = std::env::consts::ARCH)]
    arch: String,
    /// The command that reboots the machine, its words separated by spaces
    #[arg(long, value_name = "COMMAND", default_value = "systemctl reboot")]
    reboot_command: String,
    /// A file or terminal to which each event is written as a line of JSON
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// The file with the boot id
    #[arg(long, value_name = "FILE", default_value = "/proc/sys/kernel/random/boot_id")]
    boot_id: PathBuf,
}

impl From<Serve> for GuestOptions {
    fn from(serve: Serve) -> Self {
        // Version and releases are those of the disk and of the folder.
        let mut host = HostOptions::new(serve.name, "/", Version::new(0, 0, 0), Releases::default());
        host = host.seed(serve.seed);
        host.socket = serve.socket;
        host.variant = serve.variant;
        host.arch = serve.arch;
        Self {
            host,
            flags: serve.device.flags,
            releases: serve.releases,
            root_a: serve.root_a,
            root_b: serve.root_b,
            state: serve.state,
            boot_id: serve.boot_id,
            reboot: serve.reboot_command.split_whitespace().map(str::to_owned).collect(),
            socket_group: serve.socket_gid,
        }
    }
}

fn main() -> ExitCode {
    let Cli { action } = Cli::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).with_target(false).init();
    match run(action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("brupop-guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(action: Action) -> anyhow::Result<()> {
    match action {
        Action::Init { flags: path, version } => flags::create(&path, &Disk::installed(version)),
        Action::Boot(device) => {
            println!("{:?}", flags::boot(&device.flags)?);
            Ok(())
        }
        Action::MarkSuccessful(device) => flags::mark_successful(&device.flags),
        Action::Serve(options) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context("starting the runtime")?;
            let events = options.events.clone();
            let served = runtime.block_on(serve((*options).into(), events.as_deref()));
            // An image that is being written ends with the process, as on a host whose API server is restarted.
            runtime.shutdown_background();
            served
        }
    }
}

async fn serve(options: GuestOptions, events: Option<&Path>) -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupted = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let open = |path: &Path| {
        let opened = File::options().append(true).create(true).open(path);
        opened.with_context(|| format!("opening {}", path.display()))
    };
    let mut file = events.map(open).transpose()?;
    let socket = options.host.socket.display().to_string();
    let guest = Guest::start(options)?;
    let mut live = guest.subscribe();
    let now = guest.snapshot();
    tracing::info!(version = %now.running_version, boot_id = now.boot_id, socket, "host API served");
    let mut written = 0;
    let mut look = tokio::time::interval(LOOK);
    loop {
        for event in guest.events().into_iter().skip(written) {
            written += 1;
            if let Some(file) = &mut file {
                let line = serde_json::to_string(&event)? + "\n";
                file.write_all(line.as_bytes()).context("writing an event")?;
            }
            log(event.kind);
        }
        tokio::select! {
            // The new events are read above.
            event = live.recv() => if matches!(event, Err(RecvError::Closed)) { break },
            _ = look.tick() => guest.look_for_releases()?,
            _ = terminated.recv() => break,
            _ = interrupted.recv() => break,
        }
    }
    guest.stop().await;
    tracing::info!("host API stopped");
    Ok(())
}

fn log(event: EventKind) {
    let text = |version: Option<Version>| version.map(|version| version.to_string());
    match event {
        EventKind::Call { method, path, status, body } => {
            tracing::info!(method, path, status, body, "request answered");
        }
        EventKind::CommandFinished { command, ok, version } => {
            tracing::info!(%command, ok, version = text(version), "command finished");
        }
        EventKind::Armed { version } => tracing::info!(%version, "image armed"),
        EventKind::Disarmed => tracing::info!("image disarmed"),
        // The machine's power is not in this process.
        EventKind::ShutdownOrdered { .. } | EventKind::PowerLoss | EventKind::Down | EventKind::Booted { .. } => {}
    }
}
