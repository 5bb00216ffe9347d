//! The way through the segments, record by record, in constant memory. Recovery, which owns the
//! log, and the reader, which does not, share it.

use std::collections::VecDeque;
use std::io;

use crate::error::{Claim, Error, Place};
use crate::frame::{
    ALIGNMENT, Frame, HEADER_PAGE, HeaderFault, Identity, Name, RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, decode,
    segment_name,
};
use crate::medium::{Medium, MediumSource};
use crate::verdict::{Decision, Ending, Successor, Tail, Torn, decide};

/// Bytes read at a time.
const WINDOW_BYTES: usize = 256 * 1024;

const _: () = assert!(WINDOW_BYTES >= 2 * RECORD_BYTES_MAX);

/// One segment's name and header, checked against each other and against the segment before.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    name: String,
    header: SegmentHeader,
    file_bytes: u64,
}

/// The content at the walk's place.
pub(crate) enum Step {
    /// The next record, checked in full.
    Record(Frame),
    /// Anything else.
    Stop,
}

/// The meaning of a stop.
pub(crate) enum Resolution {
    /// There is more to read.
    Read,
    /// The data end here.
    Ended(Ending),
}

/// The remains in the segments that a walk has passed, beside their records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Segments passed to their ends.
    pub segments: u64,
    /// Those with a tail that an earlier recovery has cut off: the next header names the record
    /// before the tail as the last.
    pub cut_tails: u64,
    /// Bytes in these tails, each up to the last that is not zero.
    pub cut_bytes: u64,
    /// Valid records in these tails, never acknowledged.
    pub cut_records: u64,
    /// Segments shorter than their headers say, without a lost record.
    pub short_segments: u64,
}

/// The content of a log's directory, by names alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Numbers of the segments, in order.
    pub(crate) numbers: Vec<u64>,
    /// The first name that is shaped like a segment's, but invalid.
    malformed: Option<String>,
    /// Spares, which recovery ignores and a start removes.
    pub spares: u64,
    /// Names that do not belong to the log; all code ignores them.
    pub unknown: u64,
}

impl Listing {
    /// Reads and sorts every name.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn of<M: Medium>(medium: &M) -> Result<Self, Error> {
        let names =
            medium.list().map_err(|source| Error::medium("list", "the directory", source))?;
        let mut listing = Self::default();
        for name in names {
            match Name::parse(&name) {
                Name::Segment(number) => listing.numbers.push(number),
                Name::Malformed => listing.malformed = listing.malformed.max(Some(name)),
                Name::Spare => listing.spares += 1,
                Name::Lock => {}
                Name::Other => listing.unknown += 1,
            }
        }
        listing.numbers.sort_unstable();
        Ok(listing)
    }

    /// Whether any name is, or only looks like, a segment's.
    pub fn has_segments(&self) -> bool {
        !self.numbers.is_empty() || self.malformed.is_some()
    }
}

/// A walk through the segments.
#[derive(Debug)]
pub(crate) struct Walk<M: Medium> {
    medium: M,
    /// The walk's segment and the known later ones, in order, without gaps, never empty.
    segments: VecDeque<Listed>,
    /// Segments passed without a record since [`Walk::forget_skipped`].
    skipped: Vec<SegmentHeader>,
    passed: Passed,
    source: M::Source,
    seed: u32,
    /// Where the next record is expected, in bytes.
    offset: u64,
    /// Its sequence.
    sequence_next: Sequence,
    /// CRC of the record before it.
    chain: u32,
    buffer: Vec<u8>,
    /// The file's offset of the buffer's first byte.
    buffer_offset: u64,
}

/// Numbers of the segments in the directory, in order.
///
/// # Errors
/// [`Error::Medium`]; [`Error::Order`] for a malformed name; [`Error::Missing`] for a gap.
pub(crate) fn list_segments<M: Medium>(medium: &M) -> Result<Vec<u64>, Error> {
    let Listing { numbers, malformed, .. } = Listing::of(medium)?;
    match malformed {
        Some(file) => Err(Error::Order { place: Place { file, offset: 0, sequence: 0 } }),
        None => Ok(numbers),
    }
}

impl<M: Medium> Walk<M> {
    /// A walk through the segments `numbers` that begins with the segment of the record `from`; 0
    /// for the first segment.
    ///
    /// Returns `None` if there is no segment. Checks every header before it reads any record.
    pub(crate) fn open(medium: M, numbers: &[u64], from: Sequence) -> Result<Option<Self>, Error> {
        let mut segments: VecDeque<Listed> = VecDeque::with_capacity(numbers.len());
        for &number in numbers {
            let listed = load(&medium, &segment_name(number), Some(number), segments.back())?;
            segments.push_back(listed);
        }
        Self::begin_at(medium, segments, from)
    }

    /// The same through the segments before the first unsound header, with that header's error.
    ///
    /// # Errors
    /// [`Error::Medium`]; [`Error::Missing`] if the log begins behind `from`.
    pub(crate) fn open_sound(
        medium: M,
        numbers: &[u64],
        from: Sequence,
    ) -> Result<(Option<Self>, Option<Error>), Error> {
        let mut segments: VecDeque<Listed> = VecDeque::with_capacity(numbers.len());
        let mut unsound = None;
        for &number in numbers {
            match load(&medium, &segment_name(number), Some(number), segments.back()) {
                Ok(listed) => segments.push_back(listed),
                Err(error @ Error::Medium { .. }) => return Err(error),
                Err(error) => {
                    unsound = Some(error);
                    break;
                }
            }
        }
        Ok((Self::begin_at(medium, segments, from)?, unsound))
    }

    /// A walk that begins with the segment of the record `from`; `None` if there is no segment.
    fn begin_at(
        medium: M,
        mut segments: VecDeque<Listed>,
        from: Sequence,
    ) -> Result<Option<Self>, Error> {
        let Some(first) = segments.front() else { return Ok(None) };
        if from > 0 && from < first.header.first() {
            let file = segment_name(first.header.segment - 1);
            let place = Place { file, offset: 0, sequence: first.header.predecessor_last };
            return Err(Error::Missing { place });
        }
        let behind = segments.partition_point(|listed| listed.header.first() <= from);
        segments.drain(..behind.saturating_sub(1));
        Self::begin(medium, segments).map(Some)
    }

    /// A walk through one file of any name.
    pub(crate) fn open_file(medium: M, name: &str) -> Result<Self, Error> {
        let segments = VecDeque::from([load(&medium, name, None, None)?]);
        Self::begin(medium, segments)
    }

    fn begin(medium: M, segments: VecDeque<Listed>) -> Result<Self, Error> {
        let Listed { name, header, .. } = segments.front().expect("never empty");
        let source = medium.source(name).map_err(|source| Error::medium("open", name, source))?;
        Ok(Self {
            source,
            seed: header.identity.seed(header.segment),
            offset: SEGMENT_HEADER_BYTES,
            sequence_next: header.first(),
            chain: header.predecessor_chain,
            buffer: Vec::with_capacity(WINDOW_BYTES),
            buffer_offset: 0,
            medium,
            segments,
            skipped: Vec::new(),
            passed: Passed::default(),
        })
    }

    /// Finds segments that have been named since; for a live log.
    pub(crate) fn refresh(&mut self) -> Result<(), Error> {
        let known = self.segments.back().expect("never empty").header.segment;
        let numbers = list_segments(&self.medium)?;
        for number in numbers.into_iter().filter(|&number| number > known) {
            let listed =
                load(&self.medium, &segment_name(number), Some(number), self.segments.back())?;
            self.segments.push_back(listed);
        }
        Ok(())
    }

    /// The header of the walk's segment.
    pub(crate) fn header(&self) -> &SegmentHeader {
        &self.here().header
    }

    fn here(&self) -> &Listed {
        self.segments.front().expect("never empty")
    }

    pub(crate) fn identity(&self) -> Identity {
        self.header().identity
    }

    /// The remains that the walk has passed.
    pub(crate) fn passed(&self) -> Passed {
        self.passed
    }

    /// Headers of the walk's segment and of the known later ones, in order.
    pub(crate) fn headers(&self) -> impl Iterator<Item = &SegmentHeader> {
        self.segments.iter().map(|listed| &listed.header)
    }

    /// Headers of the segments passed without a record since [`Walk::forget_skipped`], in order. A
    /// start that died within its first record leaves such a segment.
    pub(crate) fn skipped(&self) -> &[SegmentHeader] {
        &self.skipped
    }

    /// Forgets the segments passed without a record in them.
    pub(crate) fn forget_skipped(&mut self) {
        self.skipped.clear();
    }

    /// The last record read, or the last before the walk began.
    pub(crate) fn last(&self) -> Sequence {
        self.sequence_next - 1
    }

    /// Its CRC.
    pub(crate) fn chain(&self) -> u32 {
        self.chain
    }

    /// The walk's offset in its segment, in bytes.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether the segment has its whole length, and only zeros from here on.
    pub(crate) fn nothing_behind(&mut self) -> Result<bool, Error> {
        Ok(self.examine()?.tail == Tail::Zeros)
    }

    /// Whether the walk is right behind a header.
    pub(crate) fn at_first(&self) -> bool {
        self.offset == SEGMENT_HEADER_BYTES
    }

    /// Reads at the walk's place. A record stays until it is accepted.
    pub(crate) fn step(&mut self) -> Result<Step, Error> {
        // A successor that names a record as the last ends the segment, with any bytes behind it.
        let sealed = self.successor().is_some_and(|next| next.predecessor_last <= self.last());
        if sealed {
            return Ok(Step::Stop);
        }
        match self.record_here()? {
            Some(frame) if frame.version_known() => Ok(Step::Record(frame)),
            Some(frame) => {
                Err(Error::Version { place: self.place(), found: u32::from(frame.version) })
            }
            None => Ok(Step::Stop),
        }
    }

    /// Moves past the record that the last step found, and lends it.
    pub(crate) fn accept(&mut self, frame: &Frame) -> Record<'_> {
        assert_eq!(frame.sequence, self.sequence_next, "accepted out of turn");
        debug_assert_eq!(frame.chain, self.chain, "record {} of another chain", frame.sequence);
        let offset = self.offset;
        let start = usize::try_from(offset - self.buffer_offset).expect("it lies in the buffer");
        let payload = start + RECORD_HEADER_BYTES;
        self.offset += frame.bytes() as u64;
        self.sequence_next += 1;
        self.chain = frame.crc;
        Record {
            sequence: frame.sequence,
            durable: frame.durable,
            time_ns: frame.time_ns,
            kind: frame.kind,
            payload: &self.buffer[payload..payload + frame.payload],
            segment: self.segments[0].header.segment,
            offset,
            bytes: frame.bytes() as u64,
        }
    }

    /// Whether no record has been begun at the walk's place. The check is cheap, and does not prove
    /// a clean end.
    pub(crate) fn blank(&mut self) -> Result<bool, Error> {
        self.forget();
        let window = self.window(self.offset, ALIGNMENT)?;
        Ok(window.iter().take(ALIGNMENT).all(|&byte| byte == 0))
    }

    /// Decides the meaning of a stop, by the table; enters the next segment if the table says so.
    ///
    /// `known_durable`: the highest record that the caller knows durable; 0 for none.
    pub(crate) fn resolve(&mut self, known_durable: Sequence) -> Result<Resolution, Error> {
        let last = self.last();
        let successor = match self.successor() {
            None => Successor::None,
            Some(next) if next.predecessor_last == last => Successor::Here,
            Some(next) if next.predecessor_last > last => Successor::Ahead,
            Some(_) => Successor::Behind,
        };
        let found = self.examine()?;
        let caller = (known_durable > last).then_some(Claim::Caller(known_durable));
        let claim = found.claim.or(caller);
        match decide(successor, found.tail, claim.is_some()) {
            Decision::Read => Ok(Resolution::Read),
            Decision::Continue => {
                self.passed.segments += 1;
                self.passed.cut_tails += u64::from(found.bytes > 0);
                self.passed.cut_bytes += found.bytes;
                self.passed.cut_records += found.records;
                self.passed.short_segments += u64::from(found.tail == Tail::Short);
                self.enter_next()?;
                Ok(Resolution::Read)
            }
            Decision::Clean => Ok(Resolution::Ended(Ending::Clean)),
            Decision::Cut => Ok(Resolution::Ended(Ending::Torn(Torn {
                place: self.place(),
                bytes: found.bytes,
                records: found.records,
            }))),
            Decision::Damaged => {
                let header = self.successor().map(|next| Claim::Header {
                    segment: next.segment,
                    last: next.predecessor_last,
                });
                // A cut file explains the other claims too, so it is named first.
                let length = (found.tail == Tail::Short)
                    .then(|| Claim::Length { bytes: self.header().segment_bytes });
                let claim = length.or(header).or(claim).expect("the table asks for a claim");
                Err(Error::Damaged { place: self.place(), claim })
            }
            Decision::OutOfOrder => Err(Error::Order { place: self.place() }),
        }
    }

    fn enter_next(&mut self) -> Result<(), Error> {
        let next = &self.segments[1];
        let place = || Place { file: next.name.clone(), offset: 0, sequence: self.sequence_next };
        if next.header.predecessor_chain != self.chain {
            return Err(Error::Chain { place: place() });
        }
        assert_eq!(next.header.predecessor_last, self.last(), "entered with records unread");
        self.source = self.medium.source(&next.name).map_err(|source| match source.kind() {
            // Removed since it was listed, with unread records.
            io::ErrorKind::NotFound => Error::Missing { place: place() },
            _ => Error::medium("open", &next.name, source),
        })?;
        self.seed = next.header.identity.seed(next.header.segment);
        let left = self.segments.pop_front().expect("there is a next one");
        if self.offset == SEGMENT_HEADER_BYTES {
            self.skipped.push(left.header);
        }
        self.offset = SEGMENT_HEADER_BYTES;
        self.forget();
        Ok(())
    }

    /// Examines everything from the walk's place to the end of the segment, 8 bytes a step.
    fn examine(&mut self) -> Result<Found, Error> {
        let expected = self.sequence_next;
        let mut found = Found { tail: Tail::Zeros, bytes: 0, records: 0, claim: None };
        let mut claimed = 0;
        let mut at = self.offset;
        let limit = self.limit();
        self.forget();
        while at < limit {
            let seed = self.seed;
            let window = self.window(at, RECORD_BYTES_MAX)?;
            let (words, rest) = window.as_chunks::<ALIGNMENT>();
            // A length is never 0, so no record begins with a word of zeros.
            let zeros = words.iter().take_while(|word| **word == [0; ALIGNMENT]).count();
            if zeros > 0 {
                at += (zeros * ALIGNMENT) as u64;
                continue;
            }
            if words.is_empty() && rest.iter().all(|&byte| byte == 0) {
                break;
            }
            let frame = decode(window, seed)
                .filter(|frame| frame.sequence >= expected && frame.durable < frame.sequence);
            let length = match frame {
                Some(frame) => {
                    found.records += 1;
                    if frame.durable >= expected && frame.durable > claimed {
                        claimed = frame.durable;
                        found.claim = Some(Claim::Record {
                            sequence: frame.sequence,
                            durable: frame.durable,
                        });
                    }
                    frame.bytes()
                }
                None => ALIGNMENT,
            };
            at = (at + length as u64).min(limit);
            found.tail = Tail::Bytes;
            found.bytes = at - self.offset;
        }
        if limit < self.header().segment_bytes {
            found.tail = Tail::Short;
        }
        // Last, and from the file again. A live writer may have stored the record during the
        // search; then the bytes found behind this place are no evidence against it.
        self.forget();
        if self.record_here()?.is_some() {
            found.tail = Tail::Record;
        }
        Ok(found)
    }

    /// The valid record due at the walk's place, in any version.
    fn record_here(&mut self) -> Result<Option<Frame>, Error> {
        let (seed, sequence, chain) = (self.seed, self.sequence_next, self.chain);
        let window = self.window(self.offset, RECORD_BYTES_MAX)?;
        Ok(decode(window, seed).filter(|frame| {
            frame.sequence == sequence && frame.chain == chain && frame.durable < sequence
        }))
    }

    /// Whether a later segment is known.
    pub(crate) fn has_successor(&self) -> bool {
        self.successor().is_some()
    }

    fn successor(&self) -> Option<&SegmentHeader> {
        self.segments.get(1).map(|listed| &listed.header)
    }

    /// The walk's place, and the record due there.
    pub(crate) fn place(&self) -> Place {
        let file = self.here().name.clone();
        Place { file, offset: self.offset, sequence: self.sequence_next }
    }

    /// The end of the segment's bytes.
    fn limit(&self) -> u64 {
        let listed = self.here();
        listed.header.segment_bytes.min(listed.file_bytes)
    }

    /// Empties the buffer, so that the next window comes from the file.
    pub(crate) fn forget(&mut self) {
        self.buffer.clear();
    }

    /// The segment's bytes from `at`: at least `wanted`, fewer only at the segment's end.
    fn window(&mut self, at: u64, wanted: usize) -> Result<&[u8], Error> {
        let limit = self.limit();
        let rest = limit.saturating_sub(at);
        let buffered = self.buffer_offset..self.buffer_offset + self.buffer.len() as u64;
        if at < buffered.start || at + rest.min(wanted as u64) > buffered.end {
            let bytes = usize::try_from(rest).unwrap_or(usize::MAX).min(WINDOW_BYTES);
            self.buffer.resize(bytes, 0);
            self.buffer_offset = at;
            let read = self.source.read(at, &mut self.buffer).and_then(|read| {
                if read == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            });
            if let Err(source) = read {
                self.forget();
                return Err(Error::medium("read", &self.here().name, source));
            }
        }
        let start = usize::try_from(at - self.buffer_offset).expect("it lies in the buffer");
        Ok(self.buffer.get(start..).unwrap_or_default())
    }
}

/// The bytes between a stop and the end of its segment.
struct Found {
    tail: Tail,
    /// From the stop to the last byte that is not zero.
    bytes: u64,
    /// Valid records among them.
    records: u64,
    /// The strongest claim that the record due at the stop was durable.
    claim: Option<Claim>,
}

/// Reads and checks one header.
///
/// `number`: the number in the file's name, if it has one. `before`: the segment before, if any.
fn load<M: Medium>(
    medium: &M,
    name: &str,
    number: Option<u64>,
    before: Option<&Listed>,
) -> Result<Listed, Error> {
    let failed = |source| Error::medium("read", name, source);
    let source = medium.source(name).map_err(failed)?;
    let file_bytes = source.bytes().map_err(failed)?;
    let mut page = vec![0; HEADER_PAGE];
    let read = source.read(0, &mut page).map_err(failed)?;
    let sequence = before.map_or(1, |before| before.header.first());
    let place = || Place { file: name.to_owned(), offset: 0, sequence };

    let header = match SegmentHeader::decode(&page[..read]) {
        Ok(header) if file_bytes <= header.segment_bytes => header,
        Ok(_) | Err(HeaderFault::Bad) => {
            return Err(Error::Header { place: place(), file_bytes });
        }
        Err(HeaderFault::Version(found)) => return Err(Error::Version { place: place(), found }),
    };
    if let Some(before) = before {
        let expected = before.header.identity;
        if header.identity != expected {
            return Err(Error::Foreign { place: place(), found: header.identity, expected });
        }
        if let Some(number) = number
            && number != before.header.segment + 1
        {
            let file = segment_name(before.header.segment + 1);
            let sequence = header.predecessor_last;
            return Err(Error::Missing { place: Place { file, offset: 0, sequence } });
        }
        if header.predecessor_last < before.header.predecessor_last {
            return Err(Error::Order { place: place() });
        }
    }
    let first =
        header.predecessor_last == 0 && header.predecessor_chain == header.identity.chain_first();
    if number.is_some_and(|number| number != header.segment) || (header.segment == 1 && !first) {
        return Err(Error::Order { place: place() });
    }
    Ok(Listed { name: name.to_owned(), header, file_bytes })
}
