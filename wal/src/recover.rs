//! Opening a log: read everything, decide by table what the end means, go on in a fresh segment.

use crate::cut;
use crate::error::{Error, Place};
use crate::frame::{
    Frame, Identity, NUMBER_MAX, Name, Record, SegmentHeader, Sequence, segment_name,
};
use crate::log::{Log, Options, Start};
use crate::medium::Medium;
use crate::walk::{Resolution, Step, Walk, list_segments};

/// What the next segment's header says of the place where reading stopped. Sequence n is the one
/// due there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Successor {
    /// There is no next segment.
    None,
    /// It names n-1 as the last record before it.
    Here,
    /// It names n or a later one.
    Ahead,
    /// It names one before n-1.
    Behind,
}

/// What stands from the place where reading stopped to the end of its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    Zeros,
    /// Something, and first of all not the record n.
    Bytes,
    /// Less than the header promises.
    Short,
    /// The record n, whole: a live writer came by, or the next segment's header is not to be
    /// believed.
    Record,
}

/// What a stop means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// There is more to read here.
    Read,
    /// This tail ends, or was cut before; go on in the next segment.
    Continue,
    /// The data end here, and nothing is amiss.
    Clean,
    /// The data end here; what follows was never acknowledged and is cut off.
    Cut,
    /// A durable record is gone: refuse.
    Damaged,
    /// The segments contradict each other: refuse.
    OutOfOrder,
}

/// The table. `claimed`: the caller or a valid record behind the stop says n durable.
///
/// Only the newest segment can be torn. A header exists only once its predecessor's last record is
/// durable, so a segment that has a successor is whole up to the record its successor names, and
/// what stands behind that record was cut by an earlier recovery. For the same reason a cut removes
/// nothing: the header of the fresh segment, which names n-1, is the cut.
pub(crate) const fn decide(successor: Successor, tail: Tail, claimed: bool) -> Decision {
    match (successor, tail, claimed) {
        (Successor::None | Successor::Ahead, Tail::Record, _) => Decision::Read,
        (Successor::Here, Tail::Zeros | Tail::Bytes | Tail::Short, _) => Decision::Continue,
        (Successor::Ahead, Tail::Zeros | Tail::Bytes | Tail::Short, _) => Decision::Damaged,
        // Valid records that the successor does not know of: two histories have been mixed.
        (Successor::Here, Tail::Record, _) | (Successor::Behind, _, _) => Decision::OutOfOrder,
        (Successor::None, Tail::Zeros, false) => Decision::Clean,
        (Successor::None, Tail::Bytes, false) => Decision::Cut,
        (Successor::None, Tail::Zeros | Tail::Bytes, true) => Decision::Damaged,
        // A segment has its full length before it has its name; no crash makes it shorter.
        (Successor::None, Tail::Short, _) => Decision::Damaged,
    }
}

/// How the data of a log end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Behind the last record there is nothing.
    Clean,
    /// Behind the last record there is something that was never acknowledged.
    Torn(Torn),
}

/// What a crash left behind the last record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where it begins, and the sequence that would have been due.
    pub place: Place,
    /// Its length in bytes, up to the last that is not zero.
    pub bytes: u64,
    /// Valid records in it: written, but behind a hole, and never acknowledged.
    pub records: u64,
}

/// What opening the log has found and done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The last record; 0 if there is none. It is durable, and so is everything before it.
    pub last: Sequence,
    /// Records read and checked, those before the asked-for first one included.
    pub records: u64,
    /// How the data ended; a torn end has been cut off.
    pub ending: Ending,
    /// Number of the segment that is appended to from now on.
    pub segment: u64,
    /// Whether that segment stood there already, empty.
    pub reused: bool,
}

/// A log being opened, which is always a recovery: replay every record by [`Recovery::next`], then
/// [`Recovery::start`].
///
/// Changes nothing that is durable before `start`; there it removes old spares and makes or reuses
/// one segment. A crash at any point leaves a log that recovers to the same records.
#[derive(Debug)]
pub struct Recovery<M: Medium> {
    medium: M,
    lock: M::Lock,
    /// None if there is no segment.
    walk: Option<Walk<M>>,
    known_durable: Sequence,
    from: Sequence,
    records: u64,
    ending: Option<Ending>,
}

impl<M: Medium> Recovery<M> {
    /// Locks the directory, makes what it holds durable, and checks every segment's header.
    ///
    /// `known_durable`: the highest sequence that anyone outside claims durable; 0 for none.
    /// `from`: the first record wanted, 0 or 1 for all; whole segments before it are not read. Who
    /// wants record n has everything up to n-1 from elsewhere (a snapshot), so that is a claim too.
    ///
    /// # Errors
    /// [`Error::Locked`], [`Error::Unfinished`], [`Error::Medium`], and every refusal that headers can give.
    pub fn open(medium: M, known_durable: Sequence, from: Sequence) -> Result<Self, Error> {
        let lock = medium.lock()?;
        Self::open_locked(medium, lock, known_durable, from)
    }

    /// The same under a lock that the caller has taken, to find out where `from` is while nobody else writes.
    ///
    /// # Errors
    /// Those of [`Recovery::open`], but [`Error::Locked`].
    pub fn open_locked(
        medium: M,
        lock: M::Lock,
        known_durable: Sequence,
        from: Sequence,
    ) -> Result<Self, Error> {
        // Before anything is concluded from what is there, or made durable.
        if let Some(from) = cut::unfinished(&medium)? {
            return Err(Error::Unfinished { from });
        }
        let numbers = list_segments(&medium)?;
        // The process before us may have died between a rename and its sync, or with records in the
        // page cache only. What we are about to read and build upon must be on the disk first.
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

    /// The log's identity; none if the directory holds no log.
    pub fn identity(&self) -> Option<Identity> {
        self.walk.as_ref().map(Walk::identity)
    }

    /// The next record; none at the end of the data, which is then known to be sound.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal; [`Error::Medium`]. The log stays closed then.
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

    /// Reads what is left to read, and opens the log for appending behind it.
    ///
    /// `identity`: the log's; for an empty directory the caller's choice, drawn at random.
    ///
    /// # Errors
    /// Those of [`Recovery::next`]; [`Error::Foreign`] if the log's identity is another;
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
        // Nothing could follow: neither a segment nor a record would have a number.
        if let Some(walk) = &self.walk
            && (walk.header().segment == NUMBER_MAX || walk.last() == NUMBER_MAX)
        {
            let file = segment_name(walk.header().segment);
            let place = Place { file, offset: 0, sequence: walk.last() };
            return Err(Error::Order { place });
        }
        remove_spares(&self.medium)?;

        let (header, reuse) = match &self.walk {
            // The last segment holds nothing but a header, which names the right predecessor.
            Some(walk) if walk.at_first() && ending == Ending::Clean => (*walk.header(), true),
            Some(walk) => (follower(walk, options), false),
            None => (genesis(identity, options.segment_bytes), false),
        };
        if reuse {
            // Reading has filled the page cache again, by units larger than a page.
            let name = segment_name(header.segment);
            self.medium.settle(&name).map_err(|source| Error::Sync { file: name, source })?;
        }
        let report = Report {
            last: header.predecessor_last,
            records: self.records,
            ending,
            segment: header.segment,
            reused: reuse,
        };
        let start = Start { medium: self.medium, lock: self.lock, options, header, reuse };
        Ok((start.log()?, report))
    }
}

/// Header of the segment that follows what `walk` has read. It cuts whatever else stands there.
fn follower<M: Medium>(walk: &Walk<M>, options: Options) -> SegmentHeader {
    SegmentHeader {
        identity: walk.identity(),
        segment: walk.header().segment + 1,
        predecessor_last: walk.last(),
        predecessor_chain: walk.chain(),
        segment_bytes: options.segment_bytes,
    }
}

/// Header of a log's first segment.
pub(crate) fn genesis(identity: Identity, segment_bytes: u64) -> SegmentHeader {
    SegmentHeader {
        identity,
        segment: 1,
        predecessor_last: 0,
        predecessor_chain: identity.chain_first(),
        segment_bytes,
    }
}

/// Removes the spares of an earlier process. Whatever they hold was never called durable.
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

    /// What opening a log says whose one segment has this number and holds this one record.
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

    /// Found by a seed of a fuzz target: a segment or a record with the largest number opened, and what was to follow it had number 0.
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

    /// Goal: the table says what the specification's says. Method: every combination is listed here
    /// a second time, from the specification's side.
    #[test]
    fn the_table_follows_the_specification() {
        use Successor as S;
        use Tail as T;
        for claimed in [false, true] {
            for tail in [T::Zeros, T::Bytes, T::Short] {
                assert_eq!(decide(S::Here, tail, claimed), Decision::Continue);
                assert_eq!(decide(S::Ahead, tail, claimed), Decision::Damaged);
                assert_eq!(decide(S::Behind, tail, claimed), Decision::OutOfOrder);
            }
            assert_eq!(decide(S::None, T::Record, claimed), Decision::Read);
            assert_eq!(decide(S::Ahead, T::Record, claimed), Decision::Read);
            assert_eq!(decide(S::Here, T::Record, claimed), Decision::OutOfOrder);
            assert_eq!(decide(S::Behind, T::Record, claimed), Decision::OutOfOrder);
            assert_eq!(decide(S::None, T::Short, claimed), Decision::Damaged);
        }
        assert_eq!(decide(S::None, T::Zeros, false), Decision::Clean);
        assert_eq!(decide(S::None, T::Bytes, false), Decision::Cut);
        assert_eq!(decide(S::None, T::Zeros, true), Decision::Damaged);
        assert_eq!(decide(S::None, T::Bytes, true), Decision::Damaged);
    }
}
