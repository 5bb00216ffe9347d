//! An open log: what its three threads share, and its options.

use std::sync::atomic::Ordering;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(not(all(loom, test)))]
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU64};

use crate::error::Error;
use crate::frame::{
    RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, segment_name, spare_name,
};
use crate::medium::{Medium, MediumFile, PAGE_BYTES};
#[cfg(all(loom, test))]
use crate::model::{ArrayQueue, release};
use crate::preparer::{PREFAULT_AHEAD_BYTES, Preparer};
use crate::syncer::Syncer;
use crate::writer::Writer;

/// Shortest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 16 * 1024;

/// Longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Most spares kept ready.
pub const SPARES_READY_MAX: u64 = 16;

/// Rolls that may wait for one sync. At the bound the writer answers [`Error::Full`] until the
/// syncer has caught up.
const ROLLS_MAX: usize = 8;

const _: () = assert!(SEGMENT_BYTES_MIN >= SEGMENT_HEADER_BYTES + RECORD_BYTES_MAX as u64);

/// How a log is laid out from now on. Segments that exist keep their length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length of a new segment in bytes, a multiple of 4096;
    /// [`SEGMENT_BYTES_MIN`]..=[`SEGMENT_BYTES_MAX`].
    pub segment_bytes: u64,
    /// Spare segments the [`Preparer`] keeps ready; 1..=[`SPARES_READY_MAX`].
    pub spares_ready: usize,
}

impl Default for Options {
    /// 64 MiB (a second of records at half a million a second) and two spares.
    fn default() -> Self {
        Self { segment_bytes: 64 * 1024 * 1024, spares_ready: 2 }
    }
}

impl Options {
    /// Checks every option against its range.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let whole = self.segment_bytes.is_multiple_of(PAGE_BYTES);
        if !whole || !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            return Err(Error::Option {
                name: "segment_bytes",
                value: self.segment_bytes,
                minimum: SEGMENT_BYTES_MIN,
                maximum: SEGMENT_BYTES_MAX,
            });
        }
        let spares = self.spares_ready as u64;
        if !(1..=SPARES_READY_MAX).contains(&spares) {
            return Err(Error::Option {
                name: "spares_ready",
                value: spares,
                minimum: 1,
                maximum: SPARES_READY_MAX,
            });
        }
        Ok(())
    }
}

/// An open log. Its parts go to three threads, or stay on one; none of them starts a thread.
///
/// The directory stays locked until writer, syncer and preparer are all dropped.
#[derive(Debug)]
pub struct Log<M: Medium> {
    /// For the thread that decides: appends, never waits.
    pub writer: Writer<M>,
    /// For the thread that waits for the disk.
    pub syncer: Syncer<M>,
    /// For the thread that makes room ahead of the writer.
    pub preparer: Preparer<M>,
    /// For everyone: how far the log has come.
    pub durable: Durable,
}

/// How far the log has come. Clones watch the same log.
#[derive(Clone, Debug)]
pub struct Durable {
    pub(crate) marks: Arc<Marks>,
}

impl Durable {
    /// The last record appended; a crash may take it back.
    pub fn appended(&self) -> Sequence {
        self.marks.appended()
    }

    /// The last record that no crash takes back.
    pub fn durable(&self) -> Sequence {
        self.marks.durable()
    }

    /// Whether the log is dead: a sync or a preparation has failed.
    pub fn poisoned(&self) -> bool {
        self.marks.poisoned()
    }
}

/// The marks by which the threads see each other.
#[derive(Debug)]
pub(crate) struct Marks {
    by_writer: CachePadded<WriterMarks>,
    by_syncer: CachePadded<SyncerMarks>,
    /// See [`Marks::names`].
    names: Mutex<()>,
}

#[derive(Debug)]
struct WriterMarks {
    appended: AtomicU64,
    /// Number of the segment the writer is in.
    segment: AtomicU64,
}

#[derive(Debug)]
struct SyncerMarks {
    durable: AtomicU64,
    poisoned: AtomicBool,
}

/// The marks that carry more than their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Appended,
    Durable,
    End,
}

/// How a mark is stored: whoever sees it sees everything stored before it. A model may weaken one, to see that it is
/// missed.
#[cfg(not(all(loom, test)))]
#[inline]
const fn release(_: Mark) -> Ordering {
    Ordering::Release
}

impl Marks {
    fn new(last: Sequence, segment: u64) -> Self {
        Self {
            by_writer: CachePadded::new(WriterMarks {
                appended: AtomicU64::new(last),
                segment: AtomicU64::new(segment),
            }),
            by_syncer: CachePadded::new(SyncerMarks {
                durable: AtomicU64::new(last),
                poisoned: AtomicBool::new(false),
            }),
            names: Mutex::new(()),
        }
    }

    pub(crate) fn appended(&self) -> Sequence {
        // Acquire: who sees a record appended also sees its bytes, its segment's end and its roll.
        self.by_writer.appended.load(Ordering::Acquire)
    }

    pub(crate) fn publish_appended(&self, sequence: Sequence) {
        self.by_writer.appended.store(sequence, release(Mark::Appended));
    }

    pub(crate) fn durable(&self) -> Sequence {
        self.by_syncer.durable.load(Ordering::Acquire)
    }

    pub(crate) fn publish_durable(&self, sequence: Sequence) {
        self.by_syncer.durable.store(sequence, release(Mark::Durable));
    }

    pub(crate) fn segment(&self) -> u64 {
        self.by_writer.segment.load(Ordering::Acquire)
    }

    pub(crate) fn publish_segment(&self, number: u64) {
        self.by_writer.segment.store(number, Ordering::Release);
    }

    pub(crate) fn poisoned(&self) -> bool {
        self.by_syncer.poisoned.load(Ordering::Acquire)
    }

    /// Held from a change of the directory until its sync has succeeded or the log is dead. A directory's failure is told
    /// once: to one thread, while the other would be told that its own names are durable.
    pub(crate) fn names(&self) -> MutexGuard<'_, ()> {
        // It guards no value that a panic could have left half made.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn poison(&self) {
        self.by_syncer.poisoned.store(true, Ordering::Release);
    }
}

/// A segment that is open for storing: current, spare, or sealed and not yet unmapped.
#[derive(Debug)]
pub(crate) struct Segment<F> {
    pub(crate) number: u64,
    pub(crate) file: F,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Where its records end, in bytes.
    end: AtomicU64,
}

impl<F: MediumFile> Segment<F> {
    pub(crate) fn new(number: u64, file: F) -> Self {
        let bytes = file.bytes();
        Self { number, file, bytes, end: AtomicU64::new(SEGMENT_HEADER_BYTES) }
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn publish_end(&self, end: u64) {
        self.end.store(end, release(Mark::End));
    }
}

/// The writer has gone on into another segment; the syncer has to name it.
#[derive(Debug)]
pub(crate) struct Roll<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// Where the records of the segment before end, in bytes.
    pub(crate) predecessor_end: u64,
    pub(crate) predecessor_last: Sequence,
    pub(crate) predecessor_chain: u32,
}

/// Ready spares on their way from the preparer to the writer, in order of their numbers.
pub(crate) type Spares<F> = Arc<ArrayQueue<Arc<Segment<F>>>>;

/// Rolls on their way from the writer to the syncer.
pub(crate) type Rolls<F> = Arc<ArrayQueue<Roll<F>>>;

/// Where a log stands when it starts: everything up to `last` is read, valid and durable.
pub(crate) struct Start<M: Medium> {
    pub(crate) medium: M,
    pub(crate) lock: M::Lock,
    pub(crate) options: Options,
    /// Header of the segment to append to.
    pub(crate) header: SegmentHeader,
    /// Whether that segment stands already, and holds no record.
    pub(crate) reuse: bool,
}

impl<M: Medium> Start<M> {
    /// Makes or opens the segment, and hands out the log's parts.
    pub(crate) fn log(self) -> Result<Log<M>, Error> {
        let Self { medium, lock, options, header, reuse } = self;
        let name = segment_name(header.segment);
        let file = if reuse {
            medium.open(&name).map_err(|source| Error::medium("open", &name, source))?
        } else {
            create_segment(&medium, &header)?
        };
        let segment = Arc::new(Segment::new(header.segment, file));
        let ahead = segment.bytes.min(SEGMENT_HEADER_BYTES + PREFAULT_AHEAD_BYTES);
        segment
            .file
            .prefault(SEGMENT_HEADER_BYTES..ahead)
            .map_err(|source| Error::Prepare { file: name, source })?;

        let lock = Arc::new(lock);
        let marks = Arc::new(Marks::new(header.predecessor_last, header.segment));
        let spares: Spares<M::File> = Arc::new(ArrayQueue::new(options.spares_ready));
        let rolls: Rolls<M::File> = Arc::new(ArrayQueue::new(ROLLS_MAX));
        Ok(Log {
            writer: Writer::new(
                marks.clone(),
                spares.clone(),
                rolls.clone(),
                segment.clone(),
                header,
                options.segment_bytes,
                lock.clone(),
            ),
            syncer: Syncer::new(
                marks.clone(),
                rolls,
                medium.clone(),
                header.identity,
                segment.clone(),
                lock.clone(),
            ),
            preparer: Preparer::new(marks.clone(), spares, medium, options, (segment, ahead), lock),
            durable: Durable { marks },
        })
    }
}

/// Makes a segment that is durable under its name, header and all.
///
/// A crash before the end leaves a spare, which the next start removes, or the finished segment.
fn create_segment<M: Medium>(medium: &M, header: &SegmentHeader) -> Result<M::File, Error> {
    let spare = spare_name(header.segment);
    let failed = |source: std::io::Error| {
        if out_of_space(&source) {
            Error::Space { file: spare.clone(), source }
        } else {
            Error::medium("create", &spare, source)
        }
    };
    let file = medium.create(&spare, header.segment_bytes).map_err(failed)?;
    file.fill(0..header.segment_bytes).map_err(failed)?;
    // An empty last segment is replaced.
    name_segment(medium, &file, header, M::rename)
        .map_err(|source| Error::medium("name", &segment_name(header.segment), source))?;
    Ok(file)
}

/// Turns a spare into a segment, durably, by `rename`. Its predecessor's last record must be durable.
pub(crate) fn name_segment<M: Medium>(
    medium: &M,
    file: &M::File,
    header: &SegmentHeader,
    rename: impl Fn(&M, &str, &str) -> std::io::Result<()>,
) -> std::io::Result<()> {
    file.store(0, &header.encode());
    // Before the rename: a file under a segment's name has a whole header, whatever crashes.
    file.sync(0..SEGMENT_HEADER_BYTES)?;
    rename(medium, &spare_name(header.segment), &segment_name(header.segment))?;
    medium.sync_directory()
}

/// Whether space, which may come back, is all that is missing.
pub(crate) fn out_of_space(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
