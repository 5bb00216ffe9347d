//! An open log: what its three threads share, and its options.

use std::sync::Arc;

#[cfg(not(all(loom, test)))]
use crossbeam::queue::ArrayQueue;

use crate::error::{Error, out_of_space};
use crate::frame::{
    RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, segment_name, spare_name,
};
use crate::marks::{Marks, Rolls, Segment, Spares, name_segment};
use crate::medium::{Medium, MediumFile, PAGE_BYTES};
#[cfg(all(loom, test))]
use crate::model::ArrayQueue;
use crate::preparer::{PREFAULT_AHEAD_BYTES, Preparer};
use crate::syncer::Syncer;
use crate::writer::Writer;

/// Shortest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 16 * 1024;

/// Longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1024 * 1024 * 1024;

/// Most spares kept ready.
pub const SPARES_READY_MAX: u64 = 16;

/// Rolls that may wait for one sync. At the bound the writer returns [`Error::Full`] until the
/// syncer has caught up.
const ROLLS_MAX: usize = 8;

const _: () = assert!(SEGMENT_BYTES_MIN >= SEGMENT_HEADER_BYTES + RECORD_BYTES_MAX as u64);

/// The layout of new segments. Existing segments keep their length.
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
    /// For the thread that waits for the disk. Threads may hand it to one another, under a lock.
    pub syncer: Syncer<M>,
    /// For the thread that makes room ahead of the writer.
    pub preparer: Preparer<M>,
    /// For all readers: the log's marks.
    pub durable: Durable,
}

/// The log's marks. Clones read the same log.
#[derive(Clone, Debug)]
pub struct Durable {
    pub(crate) marks: Arc<Marks>,
}

impl Durable {
    /// The last record appended; a crash may lose it.
    #[inline]
    pub fn appended(&self) -> Sequence {
        self.marks.appended()
    }

    /// The last record that no crash can lose.
    #[inline]
    pub fn durable(&self) -> Sequence {
        self.marks.durable()
    }

    /// Whether the log is dead: a sync or a preparation has failed.
    #[inline]
    pub fn poisoned(&self) -> bool {
        self.marks.poisoned()
    }
}

/// The start position of a log: everything up to `last` is read, valid and durable.
pub(crate) struct Start<M: Medium> {
    pub(crate) medium: M,
    pub(crate) lock: M::Lock,
    pub(crate) options: Options,
    /// Header of the segment to append to.
    pub(crate) header: SegmentHeader,
    /// Whether that segment exists already and holds no record.
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
            preparer: Preparer::new(
                marks.clone(),
                spares,
                medium,
                options.segment_bytes,
                (segment, ahead),
                lock,
            ),
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
    // This replaces an empty last segment.
    name_segment(medium, &file, header, M::rename)
        .map_err(|source| Error::medium("name", &segment_name(header.segment), source))?;
    Ok(file)
}
