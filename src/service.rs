//! The whole service in a thread of another program, such as a matching engine.
//!
//! ```no_run
//! # use ubscore::{config::Config, service::Service};
//! # fn main() -> anyhow::Result<()> {
//! let config = Config::load(None, Default::default(), false)?;
//! let service = Service::start(config, false)?;
//! service.add_venue(7, "book", false, "our market")?;
//! let mut venue = service.venue(7, 0, 0)?;
//! println!("epoch {}", venue.opened().epoch);
//! drop(venue);
//! service.stop()
//! # }
//! ```
//!
//! **Tell nothing outside of the program that lies above [`VenueSession::durable`].**
//! [`VenueSession::decided`] returns a decision before any sync, and until the sync a power cut
//! takes it back. A book may match with it at once. A customer, another venue or a market data feed
//! must wait until its number is durable.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use anyhow::{Context, bail};
use engine::VenueSession;
use engine::venue::OpenError;
use tokio::sync::oneshot;

use crate::commands::roles::primary::{self, Ready};
use crate::commands::roles::signals::Signals;
use crate::config::Config;
use crate::exit::Exit;
use crate::http::ops;

/// A service in this process: listeners, coordinator, audit and UBSCore, as in `ubscore serve`.
///
/// One service a process, once: its log lines, metrics and alerts are those of the process. It
/// takes no signal but SIGHUP. If it may not go on, because another process has taken over or its
/// disk has failed, it ends the process, as `ubscore serve` does.
pub struct Service {
    ready: Ready,
    /// Its end stops the service.
    stop: oneshot::Sender<()>,
    thread: JoinHandle<anyhow::Result<Exit>>,
}

impl Service {
    /// Starts it, and returns once it serves. `development`: as with `ubscore serve --dev`.
    ///
    /// # Errors
    /// Those of `ubscore serve`; `wal.segment_bytes` is too small for venues, and
    /// `engine.venues_max` is above 0.
    pub fn start(config: Config, development: bool) -> anyhow::Result<Service> {
        if config.engine.venues_max > 0 {
            config.wal.fits_venues().context("load the configuration")?;
        }
        let (stop, stopped) = oneshot::channel();
        let (sender, receiver) = channel();
        let run = move || {
            let ready = |ready| sender.send(ready).context("the program has ended");
            primary::run_until(config, development, || Ok(Signals::Program(stopped)), ready)
        };
        let thread = thread::Builder::new().name("service".to_owned()).spawn(run)?;
        match receiver.recv() {
            Ok(ready) => Ok(Service { ready, stop, thread }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                Ok(Ok(_)) => bail!("the service stopped before it was ready"),
                Err(panic) => std::panic::resume_unwind(panic),
            },
        }
    }

    /// The configuration, the addresses of the listeners, and UBSCore.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Registers a venue, as `PUT /admin/v1/venues/{id}` does, with the actor `program`. A repeat
    /// changes nothing. It waits for a sync and for PostgreSQL.
    ///
    /// `posts`: whether it may move money between available balances. `reason`: for the audit.
    ///
    /// # Errors
    /// Those of PUT; the service has stopped.
    pub fn add_venue(&self, id: u32, name: &str, posts: bool, reason: &str) -> anyhow::Result<()> {
        const STOPPED: &str = "the service has stopped";
        let service = self.ready.service.upgrade().context(STOPPED)?;
        let (runtime, name, reason) = (self.ready.runtime.clone(), name.into(), reason.into());
        let add = move || runtime.block_on(ops::add_venue(&service, id, name, posts, reason));
        Ok(self.ask(add).context(STOPPED)??)
    }

    /// Opens a session of a venue. It waits for a sync, and after a cut of the log for PostgreSQL.
    ///
    /// `epoch`: above the venue's last one; 0: the next one, unless another session is open.
    /// `told`: the highest number with an answer that the venue knows. If the log ends before it,
    /// the service halts, and [`Opened`](engine::venue::Opened) has the log's last number.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn venue(&self, id: u32, epoch: u64, told: u64) -> Result<VenueSession, OpenError> {
        let (ahead, engine) = (Arc::clone(&self.ready.ahead), self.ready.engine.clone());
        let opened = self.ask(move || ahead.open(&engine, id, epoch, told));
        opened.unwrap_or(Err(OpenError::Stopped))
    }

    /// Waits for `work` on a thread of the service: the caller's may be one of an async runtime,
    /// where waits for PostgreSQL panic. `None`: the service has stopped.
    fn ask<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (sender, answer) = channel();
        // The answer is awaited below, until it comes or the work is dropped.
        self.ready.runtime.spawn_blocking(move || drop(sender.send(work())));
        answer.recv().ok()
    }

    /// Stops in order, as SIGTERM stops `ubscore serve`. Sessions get
    /// [`PushError::Stopped`](engine::venue::PushError::Stopped).
    ///
    /// # Errors
    /// A listener broke during the stop.
    pub fn stop(self) -> anyhow::Result<()> {
        drop(self.stop);
        match self.thread.join() {
            Ok(ended) => ended.map(|_| ()),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Story: only a socket of `[stream]` had the segment checked, and a program with venues inside
    /// started with one that cannot hold their reserve.
    #[test]
    fn a_segment_without_room_for_venues_is_refused_by_its_key() {
        let mut config = Config::default();
        config.wal.segment_bytes = 258_048;
        let refused = Service::start(config, true).err().expect("too small for venues");
        let why = format!("{refused:#}");
        assert!(why.contains("wal.segment_bytes = 258048"), "{why}");
    }
}
