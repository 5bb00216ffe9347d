//! Making room ahead of the writer: spares, pre-faulted pages, and the unmapping of sealed
//! segments.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::error::{Error, out_of_space};
use crate::frame::{SEGMENT_HEADER_BYTES, Sequence, segment_name, spare_name};
use crate::marks::{Marks, Segment, Spares};
use crate::medium::{Medium, MediumFile};
use crate::walk::{Walk, list_segments};

/// Pages are pre-faulted this many bytes at a time.
const PREFAULT_STEP_BYTES: u64 = 64 * 1024;

/// Pages are pre-faulted up to this many bytes ahead of the writer: enough for the time between two
/// ticks, and near enough that the kernel has not cleaned them again.
pub(crate) const PREFAULT_AHEAD_BYTES: u64 = 256 * 1024;

/// A spare is filled by this many bytes a tick, each synced: one large sync would delay the syncs
/// of records.
const FILL_STEP_BYTES: u64 = 1024 * 1024;

/// Whether a tick has left work for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything is prepared: tick again in about a millisecond.
    Idle,
    /// More is to be prepared: tick again at once.
    Busy,
}

/// Makes room ahead of the writer: for a helper thread.
#[derive(Debug)]
pub struct Preparer<M: Medium> {
    marks: Arc<Marks>,
    spares: Spares<M::File>,
    medium: M,
    /// Length of a spare, in bytes.
    segment_bytes: u64,
    /// Sealed, current and spare segments, in order, each with its pre-faulted bytes.
    mapped: VecDeque<(Arc<Segment<M::File>>, u64)>,
    /// The unfinished spare, with its filled bytes.
    filling: Option<(M::File, u64)>,
    /// Number of the spare to make next.
    number: u64,
    _lock: Arc<M::Lock>,
}

impl<M: Medium> Preparer<M> {
    pub(crate) fn new(
        marks: Arc<Marks>,
        spares: Spares<M::File>,
        medium: M,
        segment_bytes: u64,
        current: (Arc<Segment<M::File>>, u64),
        lock: Arc<M::Lock>,
    ) -> Self {
        let number = current.0.number + 1;
        Self {
            marks,
            spares,
            medium,
            segment_bytes,
            mapped: VecDeque::from([current]),
            filling: None,
            number,
            _lock: lock,
        }
    }

    /// Does one step: unmaps sealed segments, pre-faults ahead of the writer, and fills up to a
    /// mebibyte of a spare.
    ///
    /// # Errors
    /// [`Error::Space`]: the disk is full; the spare was given up, and the next tick tries anew.
    /// [`Error::Prepare`]: the log is dead. [`Error::Poisoned`]: it was dead already.
    pub fn tick(&mut self) -> Result<Progress, Error> {
        if self.marks.poisoned() {
            return Err(Error::Poisoned);
        }
        self.unmap();
        self.prefault()?;
        if self.spares.is_full() {
            return Ok(Progress::Idle);
        }
        match self.fill() {
            Ok(()) if self.spares.is_full() => Ok(Progress::Idle),
            Ok(()) => Ok(Progress::Busy),
            Err(source) => Err(self.give_up(source)),
        }
    }

    /// Removes the oldest segments without a record from `sequence` on; returns their count. A
    /// later open of the log must ask for records from `sequence` on, or later.
    ///
    /// The current segment stays, and so does every one without a named successor. A crash in
    /// between has removed some of them, oldest first.
    ///
    /// # Errors
    /// [`Error::Medium`], and every error of a header: the log stays alive. [`Error::Sync`]: it is
    /// dead, because a later sync of the directory would not report the names that this one lost.
    /// [`Error::Poisoned`]: it was dead already.
    pub fn remove_before(&mut self, sequence: Sequence) -> Result<u64, Error> {
        let numbers = list_segments(&self.medium)?;
        let Some(walk) = Walk::open(self.medium.clone(), &numbers, 0)? else { return Ok(0) };
        let mut removed = 0;
        for (&number, next) in numbers.iter().zip(walk.headers().skip(1)) {
            if next.first() > sequence {
                break;
            }
            assert_eq!(next.segment, number + 1, "a segment without a named successor stays");
            let name = segment_name(number);
            let _names = self.marks.names();
            if self.marks.poisoned() {
                return Err(Error::Poisoned);
            }
            self.medium.remove(&name).map_err(|source| Error::medium("remove", &name, source))?;
            // Before the next removal: if only the next one survived a crash, it would leave a gap.
            self.medium.sync_directory().map_err(|source| {
                self.marks.poison();
                Error::Sync { file: name, source }
            })?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Drops the mappings that neither writer nor syncer holds any more.
    fn unmap(&mut self) {
        while let Some((segment, _)) = self.mapped.front()
            && Arc::strong_count(segment) == 1
        {
            self.mapped.pop_front();
        }
    }

    fn prefault(&mut self) -> Result<(), Error> {
        let current = self.marks.segment();
        let mut ahead = PREFAULT_AHEAD_BYTES;
        for (segment, prefaulted) in &mut self.mapped {
            if segment.number < current {
                continue;
            }
            let end = segment.end();
            let target = segment.bytes.min(end + ahead);
            ahead -= target - end;
            // The writer has faulted in the pages behind it already.
            *prefaulted = (*prefaulted).max(end / PREFAULT_STEP_BYTES * PREFAULT_STEP_BYTES);
            while *prefaulted < target {
                let step = (*prefaulted + PREFAULT_STEP_BYTES).min(segment.bytes);
                segment.file.prefault(*prefaulted..step).map_err(|source| {
                    self.marks.poison();
                    Error::Prepare { file: segment_name(segment.number), source }
                })?;
                *prefaulted = step;
            }
        }
        Ok(())
    }

    /// Fills the unfinished spare a step further, or begins one.
    fn fill(&mut self) -> io::Result<()> {
        let (file, filled) = match self.filling.take() {
            Some(filling) => filling,
            None => (self.medium.create(&spare_name(self.number), self.segment_bytes)?, 0),
        };
        let step = (filled + FILL_STEP_BYTES).min(self.segment_bytes);
        file.fill(filled..step)?;
        if step < self.segment_bytes {
            self.filling = Some((file, step));
            return Ok(());
        }
        let segment = Arc::new(Segment::new(self.number, file));
        assert_eq!(segment.bytes, self.segment_bytes, "spare {}", self.number);
        self.mapped.push_back((segment.clone(), SEGMENT_HEADER_BYTES));
        assert!(self.spares.push(segment).is_ok(), "only the preparer pushes, and there was room");
        self.number += 1;
        Ok(())
    }

    /// Removes the spare that could not be made, so that its space is free again.
    fn give_up(&mut self, source: io::Error) -> Error {
        let file = spare_name(self.number);
        self.filling = None;
        if !out_of_space(&source) {
            self.marks.poison();
            return Error::Prepare { file, source };
        }
        match self.medium.remove(&file) {
            Err(failure) if failure.kind() != io::ErrorKind::NotFound => {
                self.marks.poison();
                Error::Prepare { file, source: failure }
            }
            // Not found: space ran out before there was a file.
            _ => Error::Space { file, source },
        }
    }
}
