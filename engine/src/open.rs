//! From the files to a running engine: open the log, load the newest snapshot, replay, start.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;

use domain::chain::chain;
use tracing::{info, warn};
use wal::{Directory, Identity, Medium, Recovery, Sequence};

use crate::ledger::Ledger;
use crate::notice::LOG_TARGET;
use crate::options::Options;
use crate::replay::{self, Replay};
use crate::running::{Covered, Engine};
use crate::snapshot::store::SnapshotStore;
use crate::snapshot::{self, Snapshot};

/// Chunks of the log that are read before they are replayed.
const CHUNKS_AHEAD: usize = 4;

/// An engine that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log cannot be used.
    #[error("the log in {}", dir.display())]
    Log {
        /// Its directory.
        dir: PathBuf,
        /// The reason.
        #[source]
        source: wal::Error,
    },
    /// A record of the log cannot be replayed.
    #[error("replay of the log")]
    Replay(#[from] replay::Error),
    /// A snapshot with a fault that no damage explains, or an unusable directory.
    #[error("snapshots")]
    Snapshot(#[from] snapshot::Error),
    /// An undamaged snapshot of another log.
    #[error("{} belongs to log {found}, not {expected}", path.display())]
    ForeignSnapshot {
        /// The file.
        path: PathBuf,
        /// The snapshot's log.
        found: Identity,
        /// The log in the data directory.
        expected: Identity,
    },
    /// The log does not hold the record of the newest snapshot: it is an older copy, or a part of
    /// it is missing.
    #[error("{} stands at record {sequence}, which the log does not hold", path.display())]
    SnapshotAhead {
        /// The file.
        path: Box<Path>,
        /// Its record.
        sequence: Sequence,
        /// The error of the log.
        #[source]
        source: wal::Error,
    },
    /// The log's first records are removed, and no snapshot covers them.
    #[error("no usable snapshot stands before the log's first record{}", because(damaged))]
    NoSnapshot {
        /// The faults of the snapshots.
        damaged: Vec<snapshot::Error>,
        /// The error of the log.
        #[source]
        source: wal::Error,
    },
    /// The system gives no thread.
    #[error("start a thread")]
    Thread(#[from] std::io::Error),
}

/// Several reasons in one line.
fn because(reasons: &[snapshot::Error]) -> String {
    reasons.iter().map(|reason| format!("; {}", chain(reason))).collect()
}

/// A locked log that is not read yet.
pub struct Closed {
    options: Options,
    recovery: Recovery<Directory>,
    snapshot: Option<Snapshot>,
}

/// A replayed engine that does not run yet.
pub struct Replayed {
    options: Options,
    recovery: Recovery<Directory>,
    ledger: Ledger,
    /// The record of the loaded snapshot, 0 for none.
    snapshot: Sequence,
    /// Bytes of the records after it.
    log_bytes: u64,
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The last record replayed.
    pub sequence: Sequence,
    /// The number of replayed records.
    pub records: u64,
}

/// Records between two reports of progress.
const PROGRESS_RECORDS: u64 = 4_096;

impl Closed {
    /// Locks the log's directory, chooses the newest undamaged snapshot, and checks the headers of
    /// the segments. An absent directory is made.
    ///
    /// # Errors
    /// [`Error::Log`]: another process holds the lock (named by pid), or the directory is unusable.
    /// [`Error::Snapshot`], [`Error::ForeignSnapshot`], [`Error::SnapshotAhead`],
    /// [`Error::NoSnapshot`]: the log and the snapshots do not fit together.
    pub fn open(options: Options) -> Result<Closed, Error> {
        let failed = |source| Error::Log { dir: options.log_dir.clone(), source };
        let directory = Directory::create(&options.log_dir).map_err(failed)?;
        // The lock comes first: another process may be reading or removing snapshots.
        let lock = directory.lock().map_err(failed)?;
        let choice = SnapshotStore::create(&options.snapshot_dir)?.choose()?;
        for damaged in &choice.damaged {
            warn!(target: LOG_TARGET, error = chain(damaged), "a damaged snapshot is ignored");
        }
        let from = choice.newest.as_ref().map_or(1, |snapshot| snapshot.header.sequence);
        // The record of a snapshot was durable before the snapshot was made.
        let claim = choice.newest.as_ref().map_or(0, |snapshot| snapshot.header.sequence);
        let recovery = Recovery::open_locked(directory, lock, claim, from);
        let snapshot = choice.newest;
        let recovery = match (recovery, &snapshot) {
            (Ok(recovery), _) => recovery,
            (Err(source @ wal::Error::Missing { .. }), Some(snapshot)) => {
                let path = snapshot.path.clone().into_boxed_path();
                let sequence = snapshot.header.sequence;
                return Err(Error::SnapshotAhead { path, sequence, source });
            }
            (Err(source @ wal::Error::Missing { .. }), None) => {
                return Err(Error::NoSnapshot { damaged: choice.damaged, source });
            }
            (Err(source), _) => return Err(failed(source)),
        };
        if let (Some(expected), Some(snapshot)) = (recovery.identity(), &snapshot)
            && snapshot.header.identity != expected
        {
            let (path, found) = (snapshot.path.clone(), snapshot.header.identity);
            return Err(Error::ForeignSnapshot { path, found, expected });
        }
        Ok(Closed { options, recovery, snapshot })
    }

    /// The identity in the log's headers, or else in the snapshot; `None` without both.
    pub fn identity(&self) -> Option<Identity> {
        let snapshot = self.snapshot.as_ref().map(|snapshot| snapshot.header.identity);
        self.recovery.identity().or(snapshot)
    }

    /// Loads the snapshot, and replays the log from its record on.
    ///
    /// `durable_claim` is the highest sequence that a store outside the log has seen durable, 0 for
    /// none. `progress` is called every 4,096 records.
    ///
    /// # Errors
    /// [`Error::Log`]: the log is damaged or incomplete. [`Error::Replay`]: a record does not
    /// follow from those before it. [`Error::Snapshot`], [`Error::SnapshotAhead`]: the snapshot is
    /// not of this log. [`Error::Thread`].
    pub fn replay(
        self,
        durable_claim: Sequence,
        mut progress: impl FnMut(Progress),
    ) -> Result<Replayed, Error> {
        let Closed { options, mut recovery, snapshot } = self;
        recovery.claim(durable_claim);
        let stands_at = snapshot.as_ref().map_or(0, |snapshot| snapshot.header.sequence);
        let mut empty = Ledger::new(options.places);
        empty.prefault();
        let mut replay = Replay::begin(snapshot, empty)?;
        let (mut records, mut log_bytes) = (0, 0);
        let (sender, reads) = sync_channel(CHUNKS_AHEAD);
        let read = thread::scope(|scope| {
            let reader = || replay::read_ahead(&mut recovery, &{ sender });
            let reader = thread::Builder::new()
                .name("replay-read".to_owned())
                .spawn_scoped(scope, reader)?;
            // An error drops `reads`, and the reader ends.
            for read in reads.into_iter().flatten() {
                records += 1;
                log_bytes += read.bytes;
                let sequence = read.sequence;
                replay.take_read(read)?;
                if records % PROGRESS_RECORDS == 0 {
                    progress(Progress { sequence, records });
                }
            }
            Ok::<_, Error>(reader.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })?;
        match (read, replay.unconfirmed()) {
            (Ok(()), None) => {}
            (Ok(()), Some(_)) => unreachable!("the snapshot's record is claimed durable"),
            (Err(source), Some(snapshot)) => {
                let path = snapshot.path.clone().into_boxed_path();
                let sequence = snapshot.header.sequence;
                return Err(Error::SnapshotAhead { path, sequence, source });
            }
            (Err(source), None) => return Err(Error::Log { dir: options.log_dir, source }),
        }
        let ledger = replay.finish()?;
        assert!(ledger.sequence() >= stands_at, "the log ends before its snapshot");
        let (sequence, outcomes) = (ledger.sequence(), ledger.outcome_count());
        info!(target: LOG_TARGET, snapshot = stands_at, records, sequence, outcomes, "log replayed");
        Ok(Replayed { options, recovery, ledger, snapshot: stands_at, log_bytes })
    }
}

impl Replayed {
    /// The ledger after the last record.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Opens a fresh segment and starts the threads.
    ///
    /// `around_sync` gets one sync of the log and calls it once. It may measure the time: the
    /// engine has no clock. It runs on the sync thread, or on the core thread for a command without
    /// company: never on both at once.
    ///
    /// # Errors
    /// [`Error::Log`]: the segment cannot be made. [`Error::Thread`]: see there.
    pub fn start(
        self,
        identity: Identity,
        around_sync: impl FnMut(&mut dyn FnMut()) + Send + 'static,
    ) -> Result<Engine, Error> {
        let Replayed { options, recovery, mut ledger, snapshot, log_bytes } = self;
        ledger.prefault_venues();
        ledger.keep_for_ends(options.ends_kept);
        let wal_options = wal::Options {
            segment_bytes: options.segment_bytes,
            spares_ready: options.spares_ready,
        };
        let (log, report) = recovery
            .start(identity, wal_options)
            .map_err(|source| Error::Log { dir: options.log_dir.clone(), source })?;
        if let wal::Ending::Torn(torn) = &report.ending {
            let (place, bytes, records) = (&torn.place, torn.bytes, torn.records);
            warn!(target: LOG_TARGET, %place, bytes, records, "the log's end is torn and was never acknowledged: it is cut off");
        }
        let covered = Covered { identity, snapshot, log_bytes };
        Ok(Engine::spawn(options, ledger, log, covered, around_sync)?)
    }
}
