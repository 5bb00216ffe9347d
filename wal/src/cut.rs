//! Giving up the end of a log on purpose: the last sound record, the readable records behind it,
//! and the cut.
//!
//! A cut at record n leaves only the records before n. It is the one operation that removes durable
//! records, so it never runs by itself: the caller names n, has copied the files, and holds the
//! lock.
//!
//! # What a crash leaves
//!
//! ```text
//!   mark  -->  segments go, newest first  -->  the last one left is exchanged
//!         -->  (the caller's part)  -->  unmark
//! ```
//!
//! The mark is a file of its own. It is durable before anything else changes and removed after
//! everything else is durable. While it exists no [`Recovery`](crate::Recovery) opens the log:
//! [`Error::Unfinished`] names the record. So a crash at any point leaves the old files, a refusal,
//! or the wanted log; the same cut again finishes it.
//!
//! Even without the mark each moment is a log with a missing end. Segments go one by one from the
//! end. The last remaining one is rewritten under a spare's name and exchanged by a rename.

use crate::error::{Error, Place, out_of_space};
use crate::frame::{
    ALIGNMENT, Frame, HEADER_PAGE, Identity, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Record,
    SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, decode, segment_name, spare_name,
};
use crate::log::SEGMENT_BYTES_MIN;
use crate::medium::{Medium, MediumFile, MediumSource, PAGE_BYTES};
use crate::verdict::{Ending, Torn};
use crate::walk::{Resolution, Step, Walk, list_segments};

/// The mark. It holds the first record that goes, as text.
const MARK: &str = "cut";
/// The mark's name until it is whole: a spare's name, so that a start removes the leftover.
const MARK_UNFINISHED: &str = "spare-cut.tmp";
/// Length of the mark's text: the largest number, and padding up to a multiple of 8.
const MARK_BYTES: usize = 24;
/// Bytes copied or examined in one step.
const WINDOW_BYTES: usize = 256 * 1024;

const _: () = assert!(WINDOW_BYTES >= 2 * RECORD_BYTES_MAX);
const _: () = assert!(MARK_BYTES.is_multiple_of(ALIGNMENT));

/// The state of a log behind its last sound record.
#[derive(Debug)]
pub enum Cause {
    /// The log is sound to its end.
    End,
    /// Bytes that no record and no header claims durable. A start cuts them off by itself, unless a
    /// claim from outside the log covers them.
    Torn(Torn),
    /// A start refuses with this error.
    Damage(Error),
}

/// The end of the sound part of a log.
#[derive(Debug)]
pub struct Stop {
    /// The place, and the first record that cannot be read.
    pub place: Place,
    /// The cause of the stop.
    pub cause: Cause,
}

/// A walk through the sound part of a log that may be damaged. Changes nothing, and needs no lock.
#[derive(Debug)]
pub struct Survey<M: Medium> {
    medium: M,
    /// Numbers of all segments by name, in order.
    numbers: Vec<u64>,
    identity: Option<Identity>,
    /// Through the segments up to the first unsound header; `None` if that is the first segment.
    walk: Option<Walk<M>>,
    /// The error of the first segment that the walk leaves out.
    unsound: Option<Error>,
    stop: Option<Stop>,
}

impl<M: Medium> Survey<M> {
    /// Begins at the first record of the segment that holds `from`; 0 for the first record of the
    /// log.
    ///
    /// `identity`: the caller's knowledge of it, used if no header of the log can be read.
    ///
    /// # Errors
    /// [`Error::Medium`]; [`Error::Missing`]: the log begins behind `from`; [`Error::Order`]: a
    /// file's name is malformed.
    pub fn open(medium: M, from: Sequence, identity: Option<Identity>) -> Result<Self, Error> {
        let numbers = list_segments(&medium)?;
        let (walk, mut unsound) = Walk::open_sound(medium.clone(), &numbers, from)?;
        let mut known = walk.as_ref().map(Walk::identity);
        for &number in &numbers {
            if known.is_none() {
                known = header(&medium, number)?.map(|header| header.identity);
            }
        }
        let stop = match (&walk, numbers.first()) {
            (Some(_), _) => None,
            (None, first) => {
                let file = segment_name(first.copied().unwrap_or(1));
                let place = Place { file, offset: 0, sequence: 1 };
                let cause = unsound.take().map_or(Cause::End, Cause::Damage);
                Some(Stop { place, cause })
            }
        };
        Ok(Self { medium, numbers, identity: known.or(identity), walk, unsound, stop })
    }

    /// The log's identity, from the first readable header, or else from the caller.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Whether the log has no segment.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The last record passed; before the first record, the one before it. 0 if no header is
    /// readable.
    pub fn last(&self) -> Sequence {
        self.walk.as_ref().map_or(0, Walk::last)
    }

    /// The next sound record; `None` at the end of the sound part.
    ///
    /// # Errors
    /// [`Error::Medium`]: the disk cannot be read, and the log's content stays unknown.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(frame) = self.advance()? else { return Ok(None) };
        let walk = self.walk.as_mut().expect("it gave the frame");
        Ok(Some(walk.accept(&frame)))
    }

    /// The end of the sound part, after [`Survey::next`] has returned `None`.
    pub fn stop(&self) -> Option<&Stop> {
        self.stop.as_ref()
    }

    fn advance(&mut self) -> Result<Option<Frame>, Error> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        while self.stop.is_none() {
            let resolved = match walk.step() {
                Ok(Step::Record(frame)) => return Ok(Some(frame)),
                Ok(Step::Stop) => walk.resolve(0),
                Err(error) => Err(error),
            };
            let cause = match resolved {
                Ok(Resolution::Read) => continue,
                Ok(Resolution::Ended(ending)) => match (self.unsound.take(), ending) {
                    // The next segment claims nothing only because its header cannot be read.
                    (Some(unsound), _) => Cause::Damage(unsound),
                    (None, Ending::Clean) => Cause::End,
                    (None, Ending::Torn(torn)) => Cause::Torn(torn),
                },
                Err(error @ Error::Medium { .. }) => return Err(error),
                Err(error) => Cause::Damage(error),
            };
            self.stop = Some(Stop { place: walk.place(), cause });
        }
        Ok(None)
    }

    /// Advances until `from` is the next record; returns whether the walk is there now.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn go_before(&mut self, from: Sequence) -> Result<bool, Error> {
        while self.last() + 1 < from {
            if self.next()?.is_none() {
                break;
            }
        }
        Ok(self.last() + 1 == from)
    }

    /// Every readable record from the present place on, with any damage between them.
    pub fn rest(&self) -> Rest<M> {
        let here = self.walk.as_ref().map_or((0, 0), |walk| (walk.header().segment, walk.offset()));
        let numbers = self.numbers.iter().copied().filter(|&number| number >= here.0);
        Rest {
            medium: self.medium.clone(),
            identity: self.identity,
            numbers: numbers.rev().collect(),
            begin: here.1.max(SEGMENT_HEADER_BYTES),
            from: self.last() + 1,
            segment: None,
            buffer: Vec::new(),
        }
    }

    /// The cut that keeps the passed records and nothing else. `None` if no log would be left: no
    /// header is readable, and either the first segment is absent or the identity is unknown.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn cut(&mut self) -> Result<Option<Cut<M>>, Error> {
        let from = self.last() + 1;
        // A sound segment that begins with this record stays: its header cuts the bytes behind the
        // record before.
        self.advance()?;
        let (header, offset, rewrite) = match (&mut self.walk, self.identity) {
            (Some(walk), _) => (*walk.header(), walk.offset(), !walk.nothing_behind()?),
            (None, Some(identity)) if self.numbers.first() == Some(&1) => {
                let source = self.medium.source(&segment_name(1));
                let bytes = source.and_then(|source| source.bytes());
                let bytes = bytes.map_err(|e| Error::medium("read", &segment_name(1), e))?;
                let segment_bytes = bytes.next_multiple_of(PAGE_BYTES).max(SEGMENT_BYTES_MIN);
                (SegmentHeader::genesis(identity, segment_bytes), SEGMENT_HEADER_BYTES, true)
            }
            (None, _) => return Ok(None),
        };
        let removed = self.numbers.iter().copied().filter(|&number| number > header.segment);
        let removed = removed.rev().collect();
        Ok(Some(Cut { medium: self.medium.clone(), from, header, offset, rewrite, removed }))
    }
}

/// The header of a segment, if it is valid.
fn header<M: Medium>(medium: &M, number: u64) -> Result<Option<SegmentHeader>, Error> {
    let name = segment_name(number);
    let mut page = vec![0; HEADER_PAGE];
    let read = medium.source(&name).and_then(|source| source.read(0, &mut page));
    let read = read.map_err(|source| Error::medium("read", &name, source))?;
    let header = SegmentHeader::decode(&page[..read]).ok();
    Ok(header.filter(|header| header.segment == number))
}

/// The readable records of a log behind its sound part: every record with a correct checksum, in
/// segment order. It proves nothing about the bytes between them.
#[derive(Debug)]
pub struct Rest<M: Medium> {
    medium: M,
    identity: Option<Identity>,
    /// Segments still to be examined, the next one last.
    numbers: Vec<u64>,
    /// The first offset to examine in the next segment, in bytes.
    begin: u64,
    /// Earlier records are skipped.
    from: Sequence,
    segment: Option<Piece<M::Source>>,
    buffer: Vec<u8>,
}

/// The segment under examination.
#[derive(Debug)]
struct Piece<S> {
    number: u64,
    name: String,
    source: S,
    seed: u32,
    /// Length of the file, in bytes.
    bytes: u64,
    at: u64,
    /// The file's offset of the buffer's first byte.
    buffer_offset: u64,
    /// The last record it can hold: a recovery cut off the bytes behind it.
    last: Sequence,
}

impl<M: Medium> Rest<M> {
    /// The next readable record.
    ///
    /// # Errors
    /// [`Error::Medium`].
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some((frame, offset)) = self.find()? else { return Ok(None) };
        let piece = self.segment.as_ref().expect("it gave the frame");
        let start = usize::try_from(offset - piece.buffer_offset).expect("it lies in the buffer");
        let payload = start + RECORD_HEADER_BYTES;
        Ok(Some(Record {
            sequence: frame.sequence,
            durable: frame.durable,
            time_ns: frame.time_ns,
            kind: frame.kind,
            payload: &self.buffer[payload..payload + frame.payload],
            segment: piece.number,
            offset,
            bytes: frame.bytes() as u64,
        }))
    }

    fn find(&mut self) -> Result<Option<(Frame, u64)>, Error> {
        let Some(identity) = self.identity else { return Ok(None) };
        loop {
            let Some(piece) = &mut self.segment else {
                let Some(number) = self.numbers.pop() else { return Ok(None) };
                self.segment = Some(self.open(identity, number)?);
                self.begin = SEGMENT_HEADER_BYTES;
                self.buffer.clear();
                continue;
            };
            if piece.at >= piece.bytes {
                self.segment = None;
                continue;
            }
            let rest = usize::try_from(piece.bytes - piece.at).unwrap_or(usize::MAX);
            let behind = piece.buffer_offset + self.buffer.len() as u64;
            if piece.at + rest.min(RECORD_BYTES_MAX) as u64 > behind || self.buffer.is_empty() {
                self.buffer.resize(rest.min(WINDOW_BYTES), 0);
                piece.buffer_offset = piece.at;
                let read = piece.source.read(piece.at, &mut self.buffer);
                let read = read.map_err(|error| Error::medium("read", &piece.name, error))?;
                self.buffer.truncate(read);
                if read == 0 {
                    self.segment = None;
                    continue;
                }
            }
            let start = usize::try_from(piece.at - piece.buffer_offset).expect("in the buffer");
            let known = self.from..=piece.last;
            let frame = decode(&self.buffer[start..], piece.seed)
                .filter(|frame| known.contains(&frame.sequence) && frame.version_known());
            let at = piece.at;
            match frame {
                Some(frame) => {
                    piece.at += frame.bytes() as u64;
                    return Ok(Some((frame, at)));
                }
                None => piece.at += ALIGNMENT as u64,
            }
        }
    }

    fn open(&self, identity: Identity, number: u64) -> Result<Piece<M::Source>, Error> {
        let name = segment_name(number);
        let failed = |error| Error::medium("read", &name, error);
        let source = self.medium.source(&name).map_err(failed)?;
        let bytes = source.bytes().map_err(failed)?;
        let last = match self.numbers.last() {
            Some(&next) if next == number + 1 => header(&self.medium, next)?
                .filter(|next| next.identity == identity)
                .map_or(Sequence::MAX, |next| next.predecessor_last),
            _ => Sequence::MAX,
        };
        let (seed, at) = (identity.seed(number), self.begin);
        Ok(Piece { number, name, source, seed, bytes, at, buffer_offset: 0, last })
    }
}

/// A planned cut that is not made yet.
#[derive(Debug)]
pub struct Cut<M: Medium> {
    medium: M,
    /// The first record that goes.
    from: Sequence,
    /// Header of the segment that becomes the last one.
    header: SegmentHeader,
    /// Where its records end, in bytes.
    offset: u64,
    /// Whether the bytes behind are more than zeros.
    rewrite: bool,
    /// Segments that go, newest first.
    removed: Vec<u64>,
}

impl<M: Medium> Cut<M> {
    /// The first record that goes.
    pub fn from(&self) -> Sequence {
        self.from
    }

    /// Names of the files that are changed or removed, oldest first; empty if the log ends there
    /// already.
    pub fn files(&self) -> Vec<String> {
        let rewritten = self.rewrite.then_some(self.header.segment);
        rewritten.into_iter().chain(self.removed.iter().rev().copied()).map(segment_name).collect()
    }

    /// Marks the log and makes the cut. No [`Recovery`](crate::Recovery) opens it until [`finish`].
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Space`]: the same cut again continues from there.
    pub fn carry_out(&self, _lock: &M::Lock) -> Result<(), Error> {
        let kept = SEGMENT_HEADER_BYTES..=self.header.segment_bytes;
        assert!(kept.contains(&self.offset), "offset {} outside {kept:?}", self.offset);
        mark(&self.medium, self.from)?;
        for &number in &self.removed {
            let name = segment_name(number);
            self.medium.remove(&name).map_err(|error| Error::medium("remove", &name, error))?;
            sync_directory(&self.medium)?;
        }
        if self.rewrite { self.exchange() } else { Ok(()) }
    }

    /// Replaces the last segment by one with the same records and zeros behind them.
    fn exchange(&self) -> Result<(), Error> {
        let (name, spare) = (segment_name(self.header.segment), spare_name(self.header.segment));
        let bytes = self.header.segment_bytes;
        let file = filled(&self.medium, &spare, bytes)?;
        file.store(0, &self.header.encode());
        let read = |error| Error::medium("read", &name, error);
        let source = self.medium.source(&name).map_err(read)?;
        let mut buffer = vec![0; WINDOW_BYTES];
        let mut at = SEGMENT_HEADER_BYTES;
        while at < self.offset {
            let length = usize::try_from(self.offset - at).unwrap_or(usize::MAX).min(WINDOW_BYTES);
            let part = &mut buffer[..length];
            let count = source.read(at, part).map_err(read)?;
            if count < length {
                return Err(read(std::io::ErrorKind::UnexpectedEof.into()));
            }
            file.store(at, part);
            at += length as u64;
        }
        file.sync(0..self.offset).map_err(|error| Error::medium("sync", &spare, error))?;
        drop(file);
        self.medium.rename(&spare, &name).map_err(|e| Error::medium("rename", &spare, e))?;
        sync_directory(&self.medium)
    }
}

/// The first record that goes by an unfinished cut; `None` without such a cut. 0 if its mark cannot
/// be parsed.
///
/// # Errors
/// [`Error::Medium`].
pub fn unfinished<M: Medium>(medium: &M) -> Result<Option<Sequence>, Error> {
    let names = medium.list().map_err(|error| Error::medium("list", "the directory", error))?;
    if !names.iter().any(|name| name == MARK) {
        return Ok(None);
    }
    let mut text = [0; MARK_BYTES];
    let read = medium.source(MARK).and_then(|source| source.read(0, &mut text));
    let read = read.map_err(|error| Error::medium("read", MARK, error))?;
    let text = std::str::from_utf8(&text[..read]).unwrap_or("");
    Ok(Some(text.trim().parse().unwrap_or(0)))
}

/// Allows the log to be opened again. Call it after all parts of the cut are durable, in the log
/// and outside.
///
/// # Errors
/// [`Error::Medium`].
pub fn finish<M: Medium>(medium: &M, _lock: &M::Lock) -> Result<(), Error> {
    // A crash may have left directory changes unsynced. They must be durable before the mark goes.
    sync_directory(medium)?;
    if unfinished(medium)?.is_some() {
        medium.remove(MARK).map_err(|error| Error::medium("remove", MARK, error))?;
        sync_directory(medium)?;
    }
    Ok(())
}

fn mark<M: Medium>(medium: &M, from: Sequence) -> Result<(), Error> {
    let file = filled(medium, MARK_UNFINISHED, PAGE_BYTES)?;
    let text = format!("{from:<width$}\n", width = MARK_BYTES - 1);
    assert_eq!(text.len(), MARK_BYTES, "{text:?}");
    file.store(0, text.as_bytes());
    file.sync(0..PAGE_BYTES).map_err(|error| Error::medium("sync", MARK_UNFINISHED, error))?;
    drop(file);
    let renamed = medium.rename(MARK_UNFINISHED, MARK);
    renamed.map_err(|error| Error::medium("rename", MARK_UNFINISHED, error))?;
    sync_directory(medium)
}

/// A file of zeros.
fn filled<M: Medium>(medium: &M, name: &str, bytes: u64) -> Result<M::File, Error> {
    let file = medium.create(name, bytes).and_then(|file| file.fill(0..bytes).map(|()| file));
    file.map_err(|source| {
        if out_of_space(&source) {
            Error::Space { file: name.to_owned(), source }
        } else {
            Error::medium("write", name, source)
        }
    })
}

fn sync_directory<M: Medium>(medium: &M) -> Result<(), Error> {
    medium.sync_directory().map_err(|error| Error::medium("sync", "the directory", error))
}
