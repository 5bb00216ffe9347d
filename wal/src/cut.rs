//! Giving up the end of a log on purpose: where it stops to be sound, what can still be read behind, and the cut.
//!
//! A cut at record n leaves the records before n, and nothing behind them. It is the one step that takes durable records
//! away, so nothing here happens by itself: the caller has to name n, has copied the files, and holds the lock.
//!
//! # What a crash leaves
//!
//! ```text
//!   mark  -->  segments go, newest first  -->  the last one left is exchanged  -->  (the caller's part)  -->  unmark
//! ```
//!
//! The mark is a file of its own, durable before anything else changes and gone after everything else is durable. While it
//! is there no [`Recovery`](crate::Recovery) opens the log: [`Error::Unfinished`] names the record. So whatever dies in
//! between, a start finds the old files, or a refusal, or the log that was wanted; and the same cut again finishes it.
//! Even without the mark each moment is a log whose end is missing: segments go one by one from the end, and the last one
//! left is written anew under a spare's name and exchanged by a rename.

use crate::error::{Error, Place};
use crate::frame::{
    ALIGNMENT, Frame, HEADER_PAGE, Identity, RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Record,
    SEGMENT_HEADER_BYTES, SegmentHeader, Sequence, decode, segment_name, spare_name,
};
use crate::log::SEGMENT_BYTES_MIN;
use crate::medium::{Medium, MediumFile, MediumSource, PAGE_BYTES};
use crate::recover::{Ending, Torn, genesis};
use crate::walk::{Resolution, Step, Walk, list_segments};

/// The mark. It holds the first record that goes, as text.
const MARK: &str = "cut";
/// What it is called until it is whole: a spare's name, so that a start removes what was left.
const MARK_UNFINISHED: &str = "spare-cut.tmp";
/// Length of the text in it: the largest number, and room up to a multiple of 8.
const MARK_BYTES: usize = 24;
/// Bytes copied or looked at in one step.
const WINDOW_BYTES: usize = 256 * 1024;

const _: () = assert!(WINDOW_BYTES >= 2 * RECORD_BYTES_MAX);
const _: () = assert!(MARK_BYTES.is_multiple_of(ALIGNMENT));

/// Why a log is not sound behind its last sound record.
#[derive(Debug)]
pub enum Cause {
    /// It is: nothing is there.
    End,
    /// Something that no record and no header claims to have been durable. A start cuts it off by itself, unless something
    /// outside the log claims it.
    Torn(Torn),
    /// A start refuses with this.
    Damage(Error),
}

/// Where a log stops to be sound.
#[derive(Debug)]
pub struct Stop {
    /// The place, and the first record that cannot be read.
    pub place: Place,
    /// Why.
    pub cause: Cause,
}

/// A walk through a log that may be damaged, as far as it is sound. Changes nothing, and needs no lock.
#[derive(Debug)]
pub struct Survey<M: Medium> {
    medium: M,
    /// Of every segment's name there is, in order.
    numbers: Vec<u64>,
    identity: Option<Identity>,
    /// Through the segments up to the first whose header is not sound; none where that is the first one.
    walk: Option<Walk<M>>,
    /// Why the first one is not that the walk leaves out.
    unsound: Option<Error>,
    stop: Option<Stop>,
}

impl<M: Medium> Survey<M> {
    /// Begins at the first record of the segment that holds `from`; 0 for the first there is.
    ///
    /// `identity`: what the caller knows of it, for a log none of whose headers can be read.
    ///
    /// # Errors
    /// [`Error::Medium`]; [`Error::Missing`]: the log begins behind `from`; [`Error::Order`]: a file's name is malformed.
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

    /// The log's identity, by any header that can be read, or else by the caller.
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }

    /// Whether there is a segment at all.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The last record passed; before the first, the one before it. 0 where no header can be read.
    pub fn last(&self) -> Sequence {
        self.walk.as_ref().map_or(0, Walk::last)
    }

    /// The next sound record; none where the log stops to be sound.
    ///
    /// # Errors
    /// [`Error::Medium`]: the disk cannot be read, and nothing is known of what is there.
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(frame) = self.advance()? else { return Ok(None) };
        let walk = self.walk.as_mut().expect("it gave the frame");
        Ok(Some(walk.accept(&frame)))
    }

    /// Where the log stops to be sound, once [`Survey::next`] has answered none.
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

    /// Goes on until `from` is the next record; whether that is where it stands now.
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

    /// Every record that can still be read from the present place on, whatever is damaged between them.
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

    /// The cut that leaves what has been passed, and nothing else. None where nothing would be left to go on with: no header
    /// can be read, and either the log does not begin with its first segment or nobody knows its identity.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn cut(&mut self) -> Result<Option<Cut<M>>, Error> {
        let from = self.last() + 1;
        // A sound segment that begins with this record stays: its header cuts whatever stands behind the record before.
        self.advance()?;
        let (header, offset, rewrite) = match (&mut self.walk, self.identity) {
            (Some(walk), _) => (*walk.header(), walk.offset(), !walk.nothing_behind()?),
            (None, Some(identity)) if self.numbers.first() == Some(&1) => {
                let source = self.medium.source(&segment_name(1));
                let bytes = source.and_then(|source| source.bytes());
                let bytes = bytes.map_err(|e| Error::medium("read", &segment_name(1), e))?;
                let segment_bytes = bytes.next_multiple_of(PAGE_BYTES).max(SEGMENT_BYTES_MIN);
                (genesis(identity, segment_bytes), SEGMENT_HEADER_BYTES, true)
            }
            (None, _) => return Ok(None),
        };
        let removed = self.numbers.iter().copied().filter(|&number| number > header.segment);
        let removed = removed.rev().collect();
        Ok(Some(Cut { medium: self.medium.clone(), from, header, offset, rewrite, removed }))
    }
}

/// The header of a segment, if it is one.
fn header<M: Medium>(medium: &M, number: u64) -> Result<Option<SegmentHeader>, Error> {
    let name = segment_name(number);
    let mut page = vec![0; HEADER_PAGE];
    let read = medium.source(&name).and_then(|source| source.read(0, &mut page));
    let read = read.map_err(|source| Error::medium("read", &name, source))?;
    let header = SegmentHeader::decode(&page[..read]).ok();
    Ok(header.filter(|header| header.segment == number))
}

/// What can still be read of a log behind the place where it stops to be sound: every record whose checksum fits, in the
/// order of the segments. It proves nothing about what stood between them.
#[derive(Debug)]
pub struct Rest<M: Medium> {
    medium: M,
    identity: Option<Identity>,
    /// Segments that are still to be looked at, the next one last.
    numbers: Vec<u64>,
    /// Where to begin in the next segment, in bytes.
    begin: u64,
    /// Records before it are no concern.
    from: Sequence,
    segment: Option<Piece<M::Source>>,
    buffer: Vec<u8>,
}

/// A segment that is being looked at.
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
    /// The last record it can hold: what stands behind was cut off by a recovery.
    last: Sequence,
}

impl<M: Medium> Rest<M> {
    /// The next record that can be read.
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

/// A cut that has been thought through and not been made.
#[derive(Debug)]
pub struct Cut<M: Medium> {
    medium: M,
    /// The first record that goes.
    from: Sequence,
    /// Of the segment that is the last from then on.
    header: SegmentHeader,
    /// Where its records end, in bytes.
    offset: u64,
    /// Whether anything but zeros stands behind.
    rewrite: bool,
    /// Segments that go, newest first.
    removed: Vec<u64>,
}

impl<M: Medium> Cut<M> {
    /// The first record that goes.
    pub fn from(&self) -> Sequence {
        self.from
    }

    /// Names of the files that are changed or removed, oldest first; none where the log ends there already.
    pub fn files(&self) -> Vec<String> {
        let rewritten = self.rewrite.then_some(self.header.segment);
        rewritten.into_iter().chain(self.removed.iter().rev().copied()).map(segment_name).collect()
    }

    /// Marks the log and makes the cut. No [`Recovery`](crate::Recovery) opens it until [`finish`].
    ///
    /// # Errors
    /// [`Error::Medium`], [`Error::Space`]: the same cut again goes on from there.
    pub fn carry_out(&self, _lock: &M::Lock) -> Result<(), Error> {
        mark(&self.medium, self.from)?;
        for &number in &self.removed {
            let name = segment_name(number);
            self.medium.remove(&name).map_err(|error| Error::medium("remove", &name, error))?;
            sync_directory(&self.medium)?;
        }
        if self.rewrite { self.exchange() } else { Ok(()) }
    }

    /// Puts a segment with the same records, and zeros behind them, in the place of the last one.
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

/// The first record that goes by a cut that has begun and not been finished; none where there is no such cut. 0 where its
/// mark cannot be understood.
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

/// Lets the log be opened again: once everything that belongs to the cut is durable, in the log and outside.
///
/// # Errors
/// [`Error::Medium`].
pub fn finish<M: Medium>(medium: &M, _lock: &M::Lock) -> Result<(), Error> {
    // What a crash before us has left undone in the directory's cache must not come behind the mark's end.
    sync_directory(medium)?;
    if unfinished(medium)?.is_some() {
        medium.remove(MARK).map_err(|error| Error::medium("remove", MARK, error))?;
        sync_directory(medium)?;
    }
    Ok(())
}

fn mark<M: Medium>(medium: &M, from: Sequence) -> Result<(), Error> {
    let file = filled(medium, MARK_UNFINISHED, PAGE_BYTES)?;
    file.store(0, format!("{from:<width$}\n", width = MARK_BYTES - 1).as_bytes());
    file.sync(0..PAGE_BYTES).map_err(|error| Error::medium("sync", MARK_UNFINISHED, error))?;
    drop(file);
    let renamed = medium.rename(MARK_UNFINISHED, MARK);
    renamed.map_err(|error| Error::medium("rename", MARK_UNFINISHED, error))?;
    sync_directory(medium)
}

/// A file of zeros.
fn filled<M: Medium>(medium: &M, name: &str, bytes: u64) -> Result<M::File, Error> {
    let file = medium.create(name, bytes).and_then(|file| file.fill(0..bytes).map(|()| file));
    file.map_err(|source| match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Error::Space { file: name.to_owned(), source }
        }
        _ => Error::medium("write", name, source),
    })
}

fn sync_directory<M: Medium>(medium: &M) -> Result<(), Error> {
    medium.sync_directory().map_err(|error| Error::medium("sync", "the directory", error))
}
