//! Opening a log: read everything, decide the end by the table, continue in a fresh segment.

use crate::cut;
use crate::error::{Error, Place};
use crate::frame::{
    Frame, Identity, NUMBER_MAX, Name, Record, SegmentHeader, Sequence, segment_name,
};
use crate::log::{Log, Options, Start};
use crate::medium::Medium;
use crate::verdict::Ending;
use crate::walk::{Resolution, Step, Walk, list_segments};

/// The result of opening the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The last record; 0 if there is none. It is durable, and so is everything before it.
    pub last: Sequence,
    /// Records read and checked, including those before the first requested one.
    pub records: u64,
    /// How the data ended; a torn end has been cut off.
    pub ending: Ending,
    /// Number of the segment for new records.
    pub segment: u64,
    /// Whether that segment existed already, empty.
    pub reused: bool,
}

/// A log being opened, which is always a recovery: replay every record by [`Recovery::next`], then
/// call [`Recovery::start`].
///
/// Changes nothing durable before `start`, which removes old spares and makes or reuses one
/// segment. A crash at any point leaves a log that recovers to the same records.
#[derive(Debug)]
pub struct Recovery<M: Medium> {
    medium: M,
    lock: M::Lock,
    /// `None` if there is no segment.
    walk: Option<Walk<M>>,
    known_durable: Sequence,
    from: Sequence,
    records: u64,
    ending: Option<Ending>,
}

impl<M: Medium> Recovery<M> {
    /// Locks the directory, makes its content durable, and checks every segment's header.
    ///
    /// `known_durable`: the highest sequence that is claimed durable outside the log; 0 for none.
    /// `from`: the first record wanted, 0 or 1 for all; whole segments before it are not read. A
    /// caller that wants record n has everything up to n-1 from elsewhere (a snapshot), so `from`
    /// is a claim too.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Unfinished`], [`Error::Medium`], and every error of a header.
    pub fn open(medium: M, known_durable: Sequence, from: Sequence) -> Result<Self, Error> {
        let lock = medium.lock()?;
        Self::open_locked(medium, lock, known_durable, from)
    }

    /// The same under the caller's lock, so that the caller can find `from` while no other process
    /// writes.
    ///
    /// # Errors
    /// Those of [`Recovery::open`], except [`Error::Locked`].
    pub fn open_locked(
        medium: M,
        lock: M::Lock,
        known_durable: Sequence,
        from: Sequence,
    ) -> Result<Self, Error> {
        // Before anything is concluded from the files, or made durable.
        if let Some(from) = cut::unfinished(&medium)? {
            return Err(Error::Unfinished { from });
        }
        let numbers = list_segments(&medium)?;
        // The process before us may have died between a rename and its sync, or with records in the
        // page cache only. The bytes that we read and build upon must be on the disk first.
        medium
            .sync_directory()
            .map_err(|source| Error::Sync { file: "the directory".to_owned(), source })?;
        if let Some(&newest) = numbers.last() {
            let name = segment_name(newest);
            medium.settle(&name).map_err(|source| Error::Sync { file: name, source })?;
        }
        let walk = Walk::open(medium.clone(), &numbers, from.max(1))?;
        let known_durable = known_durable.max(from.saturating_sub(1));
        Ok(Self { medium, lock, walk, known_durable, from, records: 0, ending: None })
    }

    /// Adds a claim that became known after opening: `known_durable` as in [`Recovery::open`].
    pub fn claim(&mut self, known_durable: Sequence) {
        self.known_durable = self.known_durable.max(known_durable);
    }

    /// The log's identity; `None` if the directory holds no log.
    pub fn identity(&self) -> Option<Identity> {
        self.walk.as_ref().map(Walk::identity)
    }

    /// The next record; `None` at the end of the data, which is then known to be sound.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal; [`Error::Medium`]. The log then stays closed.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(frame) = self.advance()? else { return Ok(None) };
        let walk = self.walk.as_mut().expect("it gave the frame");
        Ok(Some(walk.accept(&frame)))
    }

    /// The next wanted record's frame, not yet accepted.
    fn advance(&mut self) -> Result<Option<Frame>, Error> {
        let Some(walk) = &mut self.walk else {
            if self.known_durable > 0 {
                let place = Place { file: segment_name(1), offset: 0, sequence: 1 };
                return Err(Error::Missing { place });
            }
            self.ending = Some(Ending::Clean);
            return Ok(None);
        };
        while self.ending.is_none() {
            match walk.step()? {
                Step::Record(frame) => {
                    self.records += 1;
                    if frame.sequence >= self.from {
                        return Ok(Some(frame));
                    }
                    walk.accept(&frame);
                }
                Step::Stop => match walk.resolve(self.known_durable)? {
                    Resolution::Read => {}
                    Resolution::Ended(ending) => self.ending = Some(ending),
                },
            }
        }
        Ok(None)
    }

    /// Reads the remaining records, and opens the log for appending behind them.
    ///
    /// `identity`: the log's; for an empty directory the caller's choice, drawn at random.
    ///
    /// # Errors
    /// Those of [`Recovery::next`]; [`Error::Foreign`] if the log has another identity;
    /// [`Error::Option`]; [`Error::Space`]; [`Error::Medium`].
    pub fn start(
        mut self,
        identity: Identity,
        options: Options,
    ) -> Result<(Log<M>, Report), Error> {
        options.check()?;
        while self.next()?.is_some() {}
        let ending = self.ending.expect("the loop above has reached the end");
        if let Some(walk) = &self.walk
            && walk.identity() != identity
        {
            let file = segment_name(walk.header().segment);
            let place = Place { file, offset: 0, sequence: walk.header().first() };
            return Err(Error::Foreign { place, found: walk.identity(), expected: identity });
        }
        // No successor is possible: the next segment or record would have no number.
        if let Some(walk) = &self.walk
            && (walk.header().segment == NUMBER_MAX || walk.last() == NUMBER_MAX)
        {
            let file = segment_name(walk.header().segment);
            let place = Place { file, offset: 0, sequence: walk.last() };
            return Err(Error::Order { place });
        }
        remove_spares(&self.medium)?;

        let (header, reuse) = match &self.walk {
            // The last segment holds only a header, which names the right predecessor.
            Some(walk) if walk.at_first() && ending == Ending::Clean => (*walk.header(), true),
            Some(walk) => (follower(walk, options), false),
            None => (SegmentHeader::genesis(identity, options.segment_bytes), false),
        };
        if reuse {
            // Reading has filled the page cache again, by units larger than a page.
            let name = segment_name(header.segment);
            self.medium.settle(&name).map_err(|source| Error::Sync { file: name, source })?;
        }
        // The refusals above must have caught a claimed record that was not read.
        let last = header.predecessor_last;
        assert!(last >= self.known_durable, "{last} read, {} durable", self.known_durable);
        let report =
            Report { last, records: self.records, ending, segment: header.segment, reused: reuse };
        let start = Start { medium: self.medium, lock: self.lock, options, header, reuse };
        Ok((start.log()?, report))
    }
}

/// Header of the segment after the last record of `walk`. It cuts off any bytes behind that record.
fn follower<M: Medium>(walk: &Walk<M>, options: Options) -> SegmentHeader {
    SegmentHeader {
        identity: walk.identity(),
        segment: walk.header().segment + 1,
        predecessor_last: walk.last(),
        predecessor_chain: walk.chain(),
        segment_bytes: options.segment_bytes,
    }
}

/// Removes the spares of an earlier process. Their content was never called durable.
fn remove_spares<M: Medium>(medium: &M) -> Result<(), Error> {
    let names = medium.list().map_err(|source| Error::medium("list", "the directory", source))?;
    for name in names.iter().filter(|name| Name::parse(name) == Name::Spare) {
        medium.remove(name).map_err(|source| Error::medium("remove", name, source))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Fields, RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES, encode};
    use crate::log::SEGMENT_BYTES_MIN;
    use crate::memory::Memory;

    const OPTIONS: Options = Options { segment_bytes: SEGMENT_BYTES_MIN, spares_ready: 1 };

    /// Opens a log with one segment of this number, which holds this one record.
    fn opened(segment: u64, sequence: Sequence) -> Result<Report, Error> {
        let identity = Identity(1);
        let (predecessor_chain, segment_bytes) = (identity.chain_first(), SEGMENT_BYTES_MIN);
        let predecessor_last = sequence - 1;
        let header =
            SegmentHeader { identity, segment, predecessor_last, predecessor_chain, segment_bytes };
        let mut bytes = header.encode();
        let mut buffer = [0; RECORD_BYTES_MAX];
        let fields = Fields { sequence, chain: predecessor_chain, kind: 0, time_ns: 0, durable: 0 };
        let (length, _) = encode(&mut buffer, identity.seed(segment), fields, &[]);
        bytes.extend_from_slice(&buffer[..length]);
        bytes.resize(usize::try_from(SEGMENT_BYTES_MIN).expect("short"), 0);
        assert!(bytes.len() as u64 > SEGMENT_HEADER_BYTES);
        let medium = Memory::new();
        medium.put(&segment_name(segment), bytes);
        Recovery::open(medium, 0, sequence)?.start(identity, OPTIONS).map(|(_, report)| report)
    }

    /// Found by a seed of a fuzz target: a segment or a record with the largest number opened, and
    /// its successor would have had number 0.
    #[test]
    fn what_has_no_number_after_it_is_refused() {
        assert_eq!(opened(NUMBER_MAX - 1, 7).expect("one more").segment, NUMBER_MAX);
        assert_eq!(opened(7, NUMBER_MAX - 1).expect("one more").last, NUMBER_MAX - 1);
        for (segment, sequence) in [(NUMBER_MAX, 7), (7, NUMBER_MAX)] {
            let refused = opened(segment, sequence);
            assert!(matches!(refused, Err(Error::Order { .. })), "{refused:?}");
        }
        for (segment, sequence) in [(u64::MAX, 7), (7, u64::MAX)] {
            let refused = opened(segment, sequence);
            assert!(matches!(refused, Err(Error::Header { .. })), "{refused:?}");
        }
    }
}
