//! The process and its surroundings: signals, the service manager, the limit of open files.

use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing::warn;

/// Files that the process may have open, if the system allows it: connections, segments,
/// PostgreSQL.
pub const OPEN_FILES: u64 = 65_536;

/// The signals that stop the process in order.
pub enum Signals {
    /// Of a process of its own.
    Process {
        /// SIGTERM.
        terminate: Signal,
        /// SIGINT.
        interrupt: Signal,
    },
    /// Of a thread in another program: its sender is dropped, or sends.
    Program(oneshot::Receiver<()>),
}

impl Signals {
    /// Installs the handlers. From here on the two signals do not end the process.
    ///
    /// # Errors
    /// The system allows no handler.
    pub fn new() -> std::io::Result<Signals> {
        Ok(Signals::Process {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal; returns its name.
    pub async fn next(&mut self) -> &'static str {
        match self {
            Signals::Process { terminate, interrupt } => tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            },
            Signals::Program(stop) => {
                // Both of its ends mean the same.
                drop(stop.await);
                "stop"
            }
        }
    }
}

/// The signal after which keys and certificates are read again.
///
/// # Errors
/// The system allows no handler.
pub fn hangups() -> std::io::Result<Signal> {
    signal(SignalKind::hangup())
}

/// Reports a state to the service manager, if it has asked for reports (`Type=notify`).
///
/// An embedded PostgreSQL reports its own state to the same socket. Managers listen to the main
/// process alone.
pub fn notify_manager(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        warn!(%error, "the service manager cannot be notified");
    }
}

/// Raises the limit of open files to [`OPEN_FILES`], or as far as the system allows.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = OPEN_FILES.min(limit.maximum.unwrap_or(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            warn!(%error, "the limit of open files stays low");
        }
    }
}
