//! Making records durable: sync, name the entered segments, publish.

use std::io;
use std::sync::Arc;

use crate::error::Error;
use crate::frame::{Identity, SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, segment_name};
use crate::marks::{Marks, Roll, Rolls, Segment, name_segment};
use crate::medium::{Medium, MediumFile, PAGE_BYTES};

/// Makes records durable: for one thread at a time, which waits for the disk here.
#[derive(Debug)]
pub struct Syncer<M: Medium> {
    marks: Arc<Marks>,
    rolls: Rolls<M::File>,
    medium: M,
    identity: Identity,
    segment: Arc<Segment<M::File>>,
    /// The segment is durable up to here, in bytes.
    synced: u64,
    _lock: Arc<M::Lock>,
}

impl<M: Medium> Syncer<M> {
    pub(crate) fn new(
        marks: Arc<Marks>,
        rolls: Rolls<M::File>,
        medium: M,
        identity: Identity,
        segment: Arc<Segment<M::File>>,
        lock: Arc<M::Lock>,
    ) -> Self {
        let synced = SEGMENT_HEADER_BYTES;
        Self { marks, rolls, medium, identity, segment, synced, _lock: lock }
    }

    /// Makes everything appended so far durable and publishes the mark; returns it.
    ///
    /// Syncs only the pages with records stored since the last call; does nothing if there are
    /// none. Records appended during the sync may or may not be covered, as the mark shows.
    ///
    /// # Errors
    /// [`Error::Sync`], [`Error::Prepare`]: the disk's state is unknown. Every later call returns
    /// [`Error::Poisoned`].
    pub fn sync(&mut self) -> Result<Sequence, Error> {
        if self.marks.poisoned() {
            return Err(Error::Poisoned);
        }
        let (appended, durable) = (self.marks.appended(), self.marks.durable());
        if appended == durable {
            return Ok(appended);
        }
        assert!(durable < appended, "durable {durable}, appended {appended}");
        match self.sync_rolls() {
            Ok(()) => {
                self.marks.publish_durable(appended);
                self.prefault()?;
                Ok(appended)
            }
            Err(source) => {
                // Never again: Linux reports a failed write-back once and then marks the pages
                // clean, so a second try would succeed without effect.
                self.marks.poison();
                Err(Error::Sync { file: segment_name(self.segment.number), source })
            }
        }
    }

    /// Every roll before the last record seen appended is in the queue.
    fn sync_rolls(&mut self) -> io::Result<()> {
        while let Some(roll) = self.rolls.pop() {
            self.follow(roll)?;
        }
        // Read after `appended`, so the end covers that record if the record is in this segment.
        // The record may also be in the previous segment, which is synced already: a roll can be
        // visible before the first record behind it, and then this segment is empty.
        self.sync_segment(self.segment.end())
    }

    /// Seals the segment and names its successor. A crash before the directory's sync loses the
    /// successor as a whole, and with it only records that were never called durable.
    fn follow(&mut self, roll: Roll<M::File>) -> io::Result<()> {
        // First, because the successor's header claims its predecessor's last record durable.
        self.sync_segment(roll.predecessor_end)?;
        assert_eq!(roll.segment.number, self.segment.number + 1, "rolls come in order");
        self.segment = roll.segment;
        self.synced = SEGMENT_HEADER_BYTES;
        let header = SegmentHeader {
            identity: self.identity,
            segment: self.segment.number,
            predecessor_last: roll.predecessor_last,
            predecessor_chain: roll.predecessor_chain,
            segment_bytes: self.segment.bytes,
        };
        let _names = self.marks.names();
        if self.marks.poisoned() {
            return Err(io::Error::other("a sync of the directory has failed meanwhile"));
        }
        // A file of that name would be a segment of another process.
        name_segment(&self.medium, &self.segment.file, &header, M::rename_new)
            .inspect_err(|_| self.marks.poison())
    }

    /// A sync leaves its pages write-protected. This takes the fault of the next store here, so
    /// that the writer does not pay for it.
    fn prefault(&mut self) -> Result<(), Error> {
        let page = self.synced / PAGE_BYTES * PAGE_BYTES;
        if page == self.segment.bytes {
            return Ok(());
        }
        self.segment.file.prefault(page..page + PAGE_BYTES).map_err(|source| {
            self.marks.poison();
            Error::Prepare { file: segment_name(self.segment.number), source }
        })
    }

    fn sync_segment(&mut self, end: u64) -> io::Result<()> {
        assert!(self.synced <= end, "synced {}, end {end}", self.synced);
        assert!(end <= self.segment.bytes, "end {end} of {}", self.segment.bytes);
        if self.synced < end {
            let pages = self.synced / PAGE_BYTES * PAGE_BYTES;
            self.segment.file.sync(pages..end)?;
            self.synced = end;
        }
        Ok(())
    }
}
