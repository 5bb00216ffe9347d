//! The checkpointer: makes snapshots while UBSCore runs, and removes the segments that they
//! replace.
//!
//! ```text
//!   due: DIGEST record --> durable --> newest snapshot + log up to it --> new snapshot, checked
//!        through the ring                                                     |
//!                      older snapshots <--+-- segments <-- archive command <--+
//! ```
//!
//! It has its own thread: UBSCore only appends one record for it. During the fold it holds a second
//! ledger in memory, otherwise none.

mod archive;

use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use engine::command::Command;
use engine::ledger::{Answer, Ledger};
use engine::places::Places;
use engine::record::Kind;
use engine::replay::{self, Replay};
use engine::ring::Overloaded;
use engine::snapshot::store::SnapshotStore;
use engine::snapshot::{self, Snapshot};
use engine::{Covered, Engine, Handle};
use rustix::process::setpriority_process;
use tokio::sync::oneshot;
use tracing::{info, warn};
use wal::{Directory, Reader, Sequence, segment_name};

use crate::alert::{Alert, alert};
use crate::clock::Clock;
use crate::config::Config;
use crate::config::snapshot::Trades;
use crate::data_dir;
use crate::postgres::Superseded;
use crate::stores;
use crate::telemetry::{self, chain};

/// Time between two checks whether a snapshot is due.
const LOOK: Duration = Duration::from_millis(100);
/// Time between two checks for an answer or for the end of a command.
const SHORT_LOOK: Duration = Duration::from_millis(10);
/// Time without a try after a failure.
const PAUSE: Duration = Duration::from_secs(10);
/// If CPU time is short, the scheduler gives this thread a tenth of the share of others.
const NICENESS: i32 = 10;

/// When snapshots are made, and the number kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The log's directory.
    pub log_dir: PathBuf,
    /// The directory of snapshots.
    pub store: SnapshotStore,
    /// The bounds of a ledger.
    pub places: Places,
    /// A snapshot is due after this many records.
    pub every_records: u64,
    /// Or after this many bytes of the log.
    pub every_bytes: u64,
    /// Number of snapshots kept.
    pub keep: usize,
    /// Command run for each closed segment before it is removed; empty: none.
    pub archive_command: String,
    /// The removal of segments with postings, if there is no command.
    pub trades: Trades,
}

impl Options {
    /// The configured options. Creates the directory of snapshots if it is absent.
    ///
    /// # Errors
    /// [`snapshot::Error::Io`].
    pub fn new(config: &Config) -> Result<Options, snapshot::Error> {
        Ok(Options {
            log_dir: data_dir::log(&config.data_dir),
            store: SnapshotStore::create(&data_dir::snapshots(&config.data_dir))?,
            places: stores::places(config),
            every_records: config.snapshot.every_records,
            every_bytes: config.snapshot.every_bytes,
            keep: config.snapshot.keep,
            archive_command: config.snapshot.archive_command.clone(),
            trades: config.snapshot.trades,
        })
    }
}

/// The connections between the checkpointer and the rest of the service.
pub struct Watch {
    /// Records after this one are still needed by another part.
    pub needed_after: Box<dyn Fn() -> Sequence + Send>,
    /// Called with the reason if the log or the snapshots contradict UBSCore.
    pub mismatch: Box<dyn Fn(String) + Send>,
    /// The balances and holds of snapshots that differ from the legs of the log, one sentence each.
    pub differences: Box<dyn Fn() -> Vec<String> + Send>,
}

/// Why there is no new snapshot, or why old files cannot be removed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The process is ending.
    #[error("stopped")]
    Stopped,
    /// UBSCore has no room for the record; retried later.
    #[error("UBSCore is overloaded")]
    Overloaded,
    #[error("read the log in {}", dir.display())]
    Log {
        dir: PathBuf,
        #[source]
        source: wal::Error,
    },
    /// The log does not lead to UBSCore's state.
    #[error("fold the log")]
    Replay(#[from] replay::Error),
    #[error("the log ends before the digest that UBSCore wrote after record {0}")]
    NoDigest(Sequence),
    #[error("snapshots")]
    Snapshot(#[from] snapshot::Error),
    #[error("archive a segment")]
    Archive(#[from] archive::Error),
}

impl Error {
    /// Whether the log or the snapshots disagree with UBSCore, which no full disk explains.
    fn is_mismatch(&self) -> bool {
        match self {
            Error::Stopped | Error::Overloaded | Error::Log { .. } | Error::Archive(_) => false,
            Error::Replay(_) | Error::NoDigest(_) => true,
            Error::Snapshot(error) => !error.is_damage(),
        }
    }
}

/// A request for a snapshot at once.
#[derive(Clone, Debug)]
pub struct Requests(SyncSender<()>);

impl Requests {
    /// Requests a snapshot that includes every answer before this call. Returns before it is made.
    pub fn ask(&self) {
        // Full: a request is pending already, and its snapshot begins after this moment.
        self.0.try_send(()).ok();
    }
}

/// The running thread; [`Checkpointer::stop`] ends it.
pub struct Checkpointer {
    stop: Arc<AtomicBool>,
    requests: Requests,
}

impl Checkpointer {
    /// Starts it for a running engine.
    ///
    /// # Errors
    /// The system cannot start the thread.
    pub fn start(
        options: Options,
        engine: &Engine,
        clock: Arc<dyn Clock>,
        watch: Watch,
    ) -> io::Result<(Checkpointer, impl Future<Output = Result<(), Superseded>> + use<>)> {
        assert!(options.keep > 0, "the log is removed below the oldest snapshot kept");
        assert!(options.every_records > 0 && options.every_bytes > 0, "or one is always due");
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, requests) = sync_channel(1);
        let Covered { identity, snapshot, log_bytes } = engine.covered();
        let work = Work {
            options,
            clock,
            watch,
            engine: engine.handle(),
            identity,
            stop: Arc::clone(&stop),
            last: snapshot,
            bytes_before: log_bytes,
            bytes_covered: 0,
            archived: 0,
            without_postings: 0,
            held_at: None,
        };
        let (done, ended) = oneshot::channel::<()>();
        engine.spawn_beside("snapshot", move || {
            work.run(&requests);
            // After a failure nothing waits for the thread.
            done.send(()).ok();
        })?;
        let ended = async move {
            match ended.await {
                Ok(()) => Ok(()),
                // The thread has panicked. Its guard ends the process, with its own exit code.
                Err(_) => pending().await,
            }
        };
        Ok((Checkpointer { stop, requests: Requests(sender) }, ended))
    }

    /// A handle to request a snapshot.
    pub fn requests(&self) -> Requests {
        self.requests.clone()
    }

    /// Makes the thread end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread from its longest sleep.
        self.requests.ask();
    }
}

/// The state of the thread.
struct Work {
    options: Options,
    clock: Arc<dyn Clock>,
    watch: Watch,
    engine: Handle,
    identity: wal::Identity,
    stop: Arc<AtomicBool>,
    /// The sequence of the last snapshot; 0 for none.
    last: Sequence,
    /// Bytes of the log after the last snapshot at the start of the process.
    bytes_before: u64,
    /// Bytes of the log up to the last snapshot that were appended since the start.
    bytes_covered: u64,
    /// Number of the last segment that was archived.
    archived: u64,
    /// Number of the last segment that was found to have no posting.
    without_postings: u64,
    /// The record that another part needs, if only this keeps segments.
    held_at: Option<Sequence>,
}

impl Work {
    fn run(mut self, requests: &Receiver<()>) {
        // A snapshot takes seconds and can wait: if CPUs are few, serving threads come first.
        if let Err(error) = setpriority_process(None, NICENESS) {
            warn!(%error, "cannot lower the priority of snapshots; they compete with orders");
        }
        let mut wanted = false;
        // An earlier process may have left files to remove.
        let mut lingering = true;
        let (mut not_before_ns, mut crowded_since_ns) = (0, None);
        while !self.stopped() {
            match requests.recv_timeout(LOOK) {
                Ok(()) => wanted = true,
                Err(RecvTimeoutError::Timeout) => {}
                // The other end is dropped: the process is ending.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.stopped() || self.clock.monotonic_ns() < not_before_ns {
                continue;
            }
            let mut ended = Vec::new();
            // Removal first, because the next snapshot may lack the space.
            if lingering {
                ended.push(self.let_go().map(|all| lingering = !all));
            }
            if wanted || self.is_due() {
                let made = self.snapshot();
                if made.is_ok() {
                    (wanted, lingering, crowded_since_ns) = (false, true, None);
                }
                ended.push(made);
            }
            for error in ended.into_iter().filter_map(Result::err) {
                let now_ns = self.clock.monotonic_ns();
                let pause_ns = u64::try_from(PAUSE.as_nanos()).expect("seconds");
                match error {
                    Error::Stopped => return,
                    // UBSCore may have room soon.
                    Error::Overloaded
                        if now_ns - *crowded_since_ns.get_or_insert(now_ns) < pause_ns => {}
                    error => {
                        self.tell(&error);
                        not_before_ns = now_ns + pause_ns;
                    }
                }
            }
        }
    }

    fn tell(&self, error: &Error) {
        let why = chain(error);
        if error.is_mismatch() {
            // First the halt: to name the differences takes as long as to read the whole log.
            (self.watch.mismatch)(why.clone());
            let named = (self.watch.differences)();
            let all: Vec<String> = std::iter::once(why).chain(named).collect();
            alert(Alert::SnapshotMismatch, format_args!("{}", all.join("; ")));
        } else {
            alert(Alert::SnapshotFailed, format_args!("{why}; it is retried"));
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn is_due(&self) -> bool {
        let records = self.engine.durable().saturating_sub(self.last);
        records >= self.options.every_records || self.bytes() >= self.options.every_bytes
    }

    /// Bytes of the log after the last snapshot.
    fn bytes(&self) -> u64 {
        self.bytes_before + self.engine.log_bytes() - self.bytes_covered
    }

    /// Makes a snapshot of all records that are durable now.
    fn snapshot(&mut self) -> Result<(), Error> {
        let began = self.clock.monotonic_ns();
        let bytes_now = self.engine.log_bytes();
        let after = self.engine.appended();
        self.write_digest()?;
        let ledger = self.fold(after)?;
        let go_on = || !self.stopped();
        let added = self.options.store.add(self.identity, ledger, self.options.places, go_on)?;
        let Snapshot { path, bytes, header } = added.ok_or(Error::Stopped)?;
        assert!(header.sequence > after, "the snapshot holds every record that was appended");
        assert!(header.sequence > self.last, "a snapshot never goes back");
        (self.last, self.held_at) = (header.sequence, None);
        (self.bytes_before, self.bytes_covered) = (0, bytes_now);
        let took = Duration::from_nanos(self.clock.monotonic_ns() - began);
        telemetry::snapshot(took, bytes, header.sequence, self.clock.now_s());
        let (path, sequence, facts) = (path.display(), header.sequence, header.facts);
        info!(%path, sequence, facts, bytes, "snapshot made");
        Ok(())
    }

    /// Makes UBSCore append the digest of its state, and waits until the record is durable.
    fn write_digest(&mut self) -> Result<(), Error> {
        let pending = self.engine.submit(Command::Digest, self.clock.now_ns());
        let mut pending = pin!(pending.map_err(|Overloaded| Error::Overloaded)?);
        loop {
            // The thread polls, so it needs no waker.
            match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(Answer::Done)) => return Ok(()),
                Poll::Ready(Ok(Answer::Overloaded)) => return Err(Error::Overloaded),
                Poll::Ready(Ok(other)) => unreachable!("a digest is answered {other:?}"),
                Poll::Ready(Err(_)) => return Err(Error::Stopped),
                Poll::Pending if self.stopped() => return Err(Error::Stopped),
                Poll::Pending => thread::sleep(SHORT_LOOK),
            }
        }
    }

    /// The ledger at the first DIGEST record after `after`: the newest snapshot plus the log from
    /// there.
    fn fold(&self, after: Sequence) -> Result<Ledger, Error> {
        let failed = |source| Error::Log { dir: self.options.log_dir.clone(), source };
        let snapshot = self.options.store.choose()?.newest;
        let from = snapshot.as_ref().map_or(1, |snapshot| snapshot.header.sequence);
        let mut replay = Replay::begin(snapshot, Ledger::new(self.options.places))?;
        let directory = Directory::at(&self.options.log_dir);
        let mut reader = Reader::open(directory, from).map_err(failed)?;
        while let Some(record) = reader.next().map_err(failed)? {
            if self.stopped() {
                return Err(Error::Stopped);
            }
            replay.take(&record)?;
            // The requested digest or an earlier one. Both are durable, because the requested one
            // is.
            if record.sequence > after && record.kind == Kind::Digest as u8 {
                return Ok(replay.finish()?);
            }
        }
        Err(Error::NoDigest(after))
    }

    /// Removes old snapshots, and the segments below the oldest snapshot kept, each after it was
    /// archived. Without an archive command a segment with postings stays: see [`Trades`]. Files
    /// that are still needed stay. Returns whether nothing is left to remove.
    fn let_go(&mut self) -> Result<bool, Error> {
        let needed = (self.watch.needed_after)() + 1;
        if self.held_at == Some(needed) {
            return Ok(false);
        }
        let Some(oldest) = self.options.store.prune(self.identity, self.options.keep)? else {
            return Ok(true);
        };
        let (all, oldest) = (oldest <= needed, oldest.min(needed));
        self.held_at = (!all).then_some(needed);
        let archives = !self.options.archive_command.is_empty();
        if !archives && self.options.trades == Trades::Discard {
            self.engine.remove_before(oldest);
            return Ok(all);
        }
        let log_dir = &self.options.log_dir;
        let failed = |source| Error::Log { dir: log_dir.clone(), source };
        let reader = Reader::open(Directory::at(log_dir), 0).map_err(failed)?;
        let segments: Vec<_> = reader.headers().map(|head| (head.segment, head.first())).collect();
        for pair in segments.windows(2) {
            let [(segment, _), (_, next_first)] = *pair else { unreachable!("windows of two") };
            if next_first > oldest {
                break;
            }
            debug_assert!(next_first <= needed, "no record that another part needs is removed");
            if !archives {
                if segment > self.without_postings && self.has_posting(segment)? {
                    // It stays, and so do all later ones: a log has no gap.
                    return Ok(all);
                }
                self.without_postings = segment;
                self.engine.remove_before(next_first);
                continue;
            }
            // The segment may be archived already but not yet removed.
            if segment > self.archived {
                let archived =
                    archive::run(&self.options.archive_command, log_dir, segment, &|| {
                        self.stopped()
                    });
                match archived {
                    Err(archive::Error::Stopped) => return Err(Error::Stopped),
                    archived => archived?,
                }
                self.archived = segment;
            }
            self.engine.remove_before(next_first);
        }
        Ok(all)
    }

    /// Whether a closed segment has a posting of a venue.
    fn has_posting(&self, segment: u64) -> Result<bool, Error> {
        let Options { log_dir, .. } = &self.options;
        let failed = |source| Error::Log { dir: log_dir.clone(), source };
        let mut reader =
            Reader::open_path(&log_dir.join(segment_name(segment)), 0).map_err(failed)?;
        while let Some(record) = reader.next().map_err(failed)? {
            if record.kind == Kind::Posting as u8 {
                return Ok(true);
            }
            if self.stopped() {
                return Err(Error::Stopped);
            }
        }
        Ok(false)
    }
}
