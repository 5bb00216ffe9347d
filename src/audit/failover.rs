//! PostgreSQL is another server, or has gone back: the comparison that follows, and the memory of
//! it over a restart.
//!
//! While the process runs, [`crate::postgres::pin`] finds the change and the gate is held. The task
//! of the rounds ([`super::rounds`]) then compares both stores completely, on the new server. Only
//! a clean comparison opens the gate; anything else halts.
//!
//! Over a restart the file [`FILE`] in the data directory keeps the server that the last process
//! saw, and how far. A start that meets another server, or less than that, compares everything
//! before it serves. Answered commits have a file of their own ([`crate::postgres::flights`]), and
//! a start that misses one is refused.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_postgres::Client;
use tracing::{debug, info, warn};

use super::halt::Halt;
use crate::alert::{Alert, alert, alert_about};
use crate::clock::Clock;
use crate::postgres::pin::{Pin, Server, Sight, lsn_text};
use crate::postgres::{self, Address, Limits, Superseded};
use crate::telemetry::chain;

/// The file in the data directory that keeps the last seen server, and its position.
pub const FILE: &str = "postgres-seen.toml";
/// Its name until it is complete.
const FILE_NEW: &str = "postgres-seen.new";
/// Between two looks at the server. A take-over or a change is found within it, even if the service
/// is idle.
const LOOK: Duration = Duration::from_secs(1);
/// Between two syncs of the answered flights. After a power cut, a start knows that much less.
const SYNC: Duration = Duration::from_secs(1);
/// Looks between two writes of the file. A kill in between makes the next start know that much
/// less.
const LOOKS_PER_WRITE: u32 = 5;
/// Writes WAL and nothing else: its commit waits for a standby like any other.
const COVER: &str =
    "SELECT pg_logical_emit_message(TRUE, 'ubscore', 'covers what was committed before')";

/// The server that a process saw last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LastSeen {
    system_identifier: i64,
    timeline: u32,
    /// The highest flushed WAL position, bytes.
    lsn: u64,
}

impl LastSeen {
    /// The present server and position.
    fn now(pin: &Pin) -> LastSeen {
        let (Server { system, timeline }, lsn) = pin.server();
        LastSeen { system_identifier: system, timeline, lsn }
    }

    fn read(data_dir: &Path) -> io::Result<Option<LastSeen>> {
        match fs::read_to_string(data_dir.join(FILE)) {
            Ok(text) => toml::from_str(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Atomic, and durable on return.
    fn write(&self, data_dir: &Path) -> io::Result<()> {
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let new = data_dir.join(FILE_NEW);
        let mut file = wal::create_private(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, data_dir.join(FILE))?;
        File::open(data_dir)?.sync_all()
    }

    /// The difference, for people.
    fn differs(&self, sight: &Sight) -> Option<String> {
        let was = Server { system: self.system_identifier, timeline: self.timeline };
        if was != sight.server {
            return Some(format!("PostgreSQL was {was} and is {}", sight.server));
        }
        let (here, seen) = (lsn_text(sight.lsn), lsn_text(self.lsn));
        (sight.lsn < self.lsn)
            .then(|| format!("PostgreSQL's WAL ends at {here}, and had come to {seen}"))
    }
}

/// The difference for which a start must compare everything, for people. `None`: PostgreSQL is as
/// the last process left it, or no process has left a file.
pub fn difference(data_dir: &Path, sight: &Sight) -> Option<String> {
    match LastSeen::read(data_dir) {
        Ok(seen) => seen.and_then(|seen| seen.differs(sight)),
        Err(error) => Some(format!("{} cannot be read: {error}", data_dir.join(FILE).display())),
    }
}

/// Keeps the present server and position, and the answered flights, for the next start.
pub fn remember(pin: &Pin, data_dir: &Path) {
    pin.sync_flights();
    // The next start must find an unsettled change again.
    if pin.change().is_some() {
        return;
    }
    if let Err(error) = LastSeen::now(pin).write(data_dir) {
        let path = data_dir.join(FILE);
        warn!(%error, path = %path.display(), "a start after a failover would know less");
    }
}

/// Holds the service at every change, and alerts.
pub fn hold_at_changes(pin: &Pin, halt: &Arc<Halt>) {
    let halt = Arc::clone(halt);
    pin.on_change(move |change| {
        halt.hold(change.number(), &change.to_string());
        let what = format_args!("{change}; nothing moves until both stores are compared");
        alert_about(Alert::PostgresChanged, &change.number(), what);
    });
}

/// Alerts that PostgreSQL has lost the mark of a log with venues. The caller sets it again.
pub fn alert_lost_mark() {
    let what =
        "PostgreSQL has lost engine_state.posted, which the first venue sets: it is set again";
    alert_about(Alert::PostgresChanged, &"engine_state.posted", format_args!("{what}"));
}

/// Looks at the server regularly, so that an idle service learns of a change and of a take-over as
/// well. Ends with a take-over.
///
/// # Errors
/// [`Superseded`]: the process must end.
pub async fn watch(
    address: Address,
    limits: Limits,
    pin: Arc<Pin>,
    data_dir: PathBuf,
    clock: Arc<dyn Clock>,
    mut stopping: watch::Receiver<()>,
) -> Result<(), Superseded> {
    let syncs = async {
        loop {
            clock.sleep(SYNC).await;
            let pin = Arc::clone(&pin);
            tokio::task::spawn_blocking(move || pin.sync_flights()).await.ok();
        }
    };
    let pin = Arc::clone(&pin);
    let mut watcher = Watcher { address, limits, pin, clock: Arc::clone(&clock), client: None };
    let (mut superseded, mut doubts) = (watcher.pin.is_superseded(), watcher.pin.doubts());
    let mut written = LastSeen::now(&watcher.pin);
    let work = async {
        for look in 1_u32.. {
            tokio::select! {
                () = clock.sleep(LOOK) => {}
                Ok(()) = doubts.changed() => {}
            }
            if let Err(error) = watcher.look().await {
                // The connection may be in the middle of a statement.
                watcher.client = None;
                debug!(error = chain(&error), "no look at PostgreSQL");
            }
            let seen = LastSeen::now(&watcher.pin);
            if look.is_multiple_of(LOOKS_PER_WRITE) && seen != written {
                let (pin, data_dir) = (Arc::clone(&watcher.pin), data_dir.clone());
                tokio::task::spawn_blocking(move || remember(&pin, &data_dir)).await.ok();
                written = seen;
            }
        }
    };
    tokio::select! {
        biased;
        // The service stops, and drops the sender.
        _ = stopping.changed() => return Ok(()),
        // `work` holds the pin.
        _ = superseded.wait_for(|superseded| *superseded) => {}
        () = work => {}
        () = syncs => {}
    }
    alert(Alert::Fenced, format_args!("the database belongs to another process"));
    Err(Superseded)
}

struct Watcher {
    address: Address,
    limits: Limits,
    pin: Arc<Pin>,
    clock: Arc<dyn Clock>,
    client: Option<Client>,
}

impl Watcher {
    async fn look(&mut self) -> Result<(), postgres::Error> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            Some(_) | None => postgres::connect(&self.address, &self.limits).await?,
        };
        let sight = self.within(Sight::read(&client, Some(&[]))).await?;
        self.pin.note(&sight)?;
        let doubts = *self.pin.doubts().borrow();
        if doubts > self.pin.covered() {
            let covered = async { Ok(client.execute(COVER, &[]).await?) };
            self.within(covered).await?;
            self.pin.cover(doubts);
            info!("a later commit covers the commits with a cancelled wait for a standby");
        }
        self.client = Some(client);
        Ok(())
    }

    /// The answer, or a timeout beyond the limits of the server.
    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, postgres::Error>>,
    ) -> Result<T, postgres::Error> {
        let limit = self.limits.statement_timeout + self.limits.lock_timeout;
        tokio::select! {
            answer = call => answer,
            () = self.clock.sleep(limit) => Err(postgres::Error::Timeout(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight() -> Sight {
        let server = Server { system: 7, timeline: 2 };
        Sight { server, lsn: 1_000, incarnation: 3, last: Vec::new(), missing: Vec::new() }
    }

    fn seen() -> LastSeen {
        LastSeen { system_identifier: 7, timeline: 2, lsn: 1_000 }
    }

    #[test]
    fn a_start_finds_every_way_back_and_nothing_else() {
        assert_eq!(seen().differs(&sight()), None);
        // Another process has begun since, or more has been written.
        let later = Sight { lsn: 2_000, incarnation: 4, ..sight() };
        assert_eq!(seen().differs(&later), None);
        for server in [Server { system: 7, timeline: 3 }, Server { system: 8, timeline: 2 }] {
            let other = Sight { server, ..sight() };
            assert!(seen().differs(&other).expect("another history").contains("timeline 2"));
        }
        assert!(seen().differs(&Sight { lsn: 999, ..sight() }).is_some());
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(LastSeen::read(directory.path()).expect("no file"), None);
        seen().write(directory.path()).expect("written");
        assert_eq!(LastSeen::read(directory.path()).expect("a file"), Some(seen()));
        fs::write(directory.path().join(FILE), "lsn = ").expect("damaged");
        assert!(difference(directory.path(), &sight()).is_some());
    }
}
