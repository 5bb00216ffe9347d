//! The parts that the three threads of a log share: marks, segments, and the queues between them.

use std::sync::atomic::Ordering;
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(not(all(loom, test)))]
use crossbeam::queue::ArrayQueue;
use crossbeam::utils::CachePadded;
#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU64};

use crate::frame::{SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, segment_name, spare_name};
use crate::medium::{Medium, MediumFile};
#[cfg(all(loom, test))]
use crate::model::{ArrayQueue, release};

/// The marks that the threads share.
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
    /// Number of the writer's segment.
    segment: AtomicU64,
}

#[derive(Debug)]
struct SyncerMarks {
    durable: AtomicU64,
    poisoned: AtomicBool,
}

/// The marks that also order other stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Appended,
    Durable,
    End,
}

/// The ordering of a mark's store: a thread that sees the mark sees all earlier stores. A model may
/// weaken one, to show that its absence is noticed.
#[cfg(not(all(loom, test)))]
#[inline]
const fn release(_: Mark) -> Ordering {
    Ordering::Release
}

impl Marks {
    pub(crate) fn new(last: Sequence, segment: u64) -> Self {
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
        // Acquire: a thread that sees a record appended also sees its bytes, its segment's end and
        // its roll.
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

    /// Held from a change of the directory until its sync has succeeded or the log is dead. The
    /// kernel reports a directory's failure once, to one thread. Without this lock the other thread
    /// would take its own names for durable.
    pub(crate) fn names(&self) -> MutexGuard<'_, ()> {
        // It guards no value, so a panic cannot leave one half made.
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

/// The writer has entered another segment; the syncer has to name it.
#[derive(Debug)]
pub(crate) struct Roll<F> {
    pub(crate) segment: Arc<Segment<F>>,
    /// Where the records of the segment before end, in bytes.
    pub(crate) predecessor_end: u64,
    pub(crate) predecessor_last: Sequence,
    pub(crate) predecessor_chain: u32,
}

/// Ready spares on their way from the preparer to the writer, in number order.
pub(crate) type Spares<F> = Arc<ArrayQueue<Arc<Segment<F>>>>;

/// Rolls on their way from the writer to the syncer.
pub(crate) type Rolls<F> = Arc<ArrayQueue<Roll<F>>>;

/// Turns a spare into a segment, durably, by `rename`. Before it, the predecessor's last record
/// must be durable.
pub(crate) fn name_segment<M: Medium>(
    medium: &M,
    file: &M::File,
    header: &SegmentHeader,
    rename: impl Fn(&M, &str, &str) -> std::io::Result<()>,
) -> std::io::Result<()> {
    assert_eq!(file.bytes(), header.segment_bytes, "segment {}", header.segment);
    file.store(0, &header.encode());
    // Before the rename: a file with a segment's name has a whole header after any crash.
    file.sync(0..SEGMENT_HEADER_BYTES)?;
    rename(medium, &spare_name(header.segment), &segment_name(header.segment))?;
    medium.sync_directory()
}
