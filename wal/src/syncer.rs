//! Making records durable: sync, name what was rolled into, publish.

use std::io;
use std::sync::Arc;

use crate::error::Error;
use crate::frame::{Identity, SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, segment_name};
use crate::log::{Marks, Roll, Rolls, Segment, name_segment};
use crate::medium::{Medium, MediumFile, PAGE_BYTES};

/// Makes records durable: for one thread, which waits for the disk here.
#[derive(Debug)]
pub struct Syncer<M: Medium> {
    marks: Arc<Marks>,
    rolls: Rolls<M::File>,
    medium: M,
    identity: Identity,
    segment: Arc<Segment<M::File>>,
    /// Up to where the segment is durable, in bytes.
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
    /// Syncs only the pages that records were stored in since the last call; does nothing if there
    /// are none. Records appended while it runs may or may not be covered, as the mark says.
    ///
    /// # Errors
    /// [`Error::Sync`], [`Error::Prepare`]: the disk's state is unknown. [`Error::Poisoned`]: for ever
    /// after.
    pub fn sync(&mut self) -> Result<Sequence, Error> {
        if self.marks.poisoned() {
            return Err(Error::Poisoned);
        }
        let appended = self.marks.appended();
        if appended == self.marks.durable() {
            return Ok(appended);
        }
        match self.sync_rolls() {
            Ok(()) => {
                self.marks.publish_durable(appended);
                self.prefault()?;
                Ok(appended)
            }
            Err(source) => {
                // Never again: Linux reports a failed write-back once and then calls the pages
                // clean, so a second try would succeed and mean nothing.
                self.marks.poison();
                Err(Error::Sync { file: segment_name(self.segment.number), source })
            }
        }
    }

    /// Every roll that precedes what the caller has seen appended is in the queue.
    fn sync_rolls(&mut self) -> io::Result<()> {
        while let Some(roll) = self.rolls.pop() {
            self.follow(roll)?;
        }
        // Read after `appended`, so it covers that record, if it is in this segment. It may be in the last one, synced
        // already: a roll can be seen before the record that it made room for, and then this segment is empty.
        self.sync_segment(self.segment.end())
    }

    /// Seals the segment and names its successor. A crash before the directory's sync loses the
    /// successor as a whole, and with it only records that were never called durable.
    fn follow(&mut self, roll: Roll<M::File>) -> io::Result<()> {
        // First, because the successor's header claims its predecessor's last record durable.
        self.sync_segment(roll.predecessor_end)?;
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

    /// A sync leaves its pages write-protected. Takes the fault of the next store here, where it
    /// costs the writer nothing.
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
        if self.synced < end {
            let pages = self.synced / PAGE_BYTES * PAGE_BYTES;
            self.segment.file.sync(pages..end)?;
            self.synced = end;
        }
        Ok(())
    }
}
