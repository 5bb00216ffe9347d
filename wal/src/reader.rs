//! Reading a log without owning it: no lock, no write, no sync.

use std::io;
use std::path::Path;

use crate::directory::Directory;
use crate::error::Error;
use crate::frame::{Frame, Identity, Record, SegmentHeader, Sequence};
use crate::medium::Medium;
use crate::verdict::Ending;
use crate::walk::{Passed, Resolution, Step, Walk, list_segments};

/// A listing of a live directory may miss a file during its rename or removal. Listing again finds
/// it; after this many listings the file counts as missing.
const LISTINGS_MAX: u32 = 4;

/// Records in order, from a live log, a dead log, or a single segment file. Needs constant memory.
///
/// On a live log it sees the appended records, durable or not, but only in named segments. It
/// decides by the same table as recovery.
#[derive(Debug)]
pub struct Reader<M: Medium> {
    /// `None` while there is no segment.
    walk: Option<Walk<M>>,
    medium: M,
    from: Sequence,
    /// Whether to look for later segments; false for a single file.
    grows: bool,
}

impl Reader<Directory> {
    /// Reads a log's directory, or one segment file of any name.
    ///
    /// `from`: the first record wanted; 0 for the first in the log.
    ///
    /// # Errors
    /// Those of [`Reader::open`].
    pub fn open_path(path: &Path, from: Sequence) -> Result<Self, Error> {
        let failed = |source| Error::medium("open", &path.to_string_lossy(), source);
        if path.metadata().map_err(failed)?.is_dir() {
            return Self::open(Directory::at(path), from);
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| failed(io::ErrorKind::InvalidFilename.into()))?;
        let medium = Directory::at(path.parent().unwrap_or(Path::new("")));
        let walk = Some(Walk::open_file(medium.clone(), name)?);
        Ok(Self { walk, medium, from, grows: false })
    }
}

impl<M: Medium> Reader<M> {
    /// Reads a log's directory, which may still be empty.
    ///
    /// `from`: the first record wanted; 0 for the first in the log.
    ///
    /// # Errors
    /// [`Error::Medium`], and every error of a header.
    pub fn open(medium: M, from: Sequence) -> Result<Self, Error> {
        let mut listings = 1;
        loop {
            match open_walk(&medium, from) {
                Ok(walk) => return Ok(Self { walk, medium, from, grows: true }),
                Err(error) if listings < LISTINGS_MAX && passing(&error) => listings += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The log's identity; `None` while there is no segment.
    pub fn identity(&self) -> Option<Identity> {
        self.walk.as_ref().map(Walk::identity)
    }

    /// The remains in the segments passed so far.
    pub fn passed(&self) -> Passed {
        self.walk.as_ref().map(Walk::passed).unwrap_or_default()
    }

    /// Headers of the current segment and of the known later ones, in order.
    pub fn headers(&self) -> impl Iterator<Item = &SegmentHeader> {
        self.walk.iter().flat_map(Walk::headers)
    }

    /// Forgets [`Reader::skipped`].
    pub(crate) fn forget_skipped(&mut self) {
        if let Some(walk) = &mut self.walk {
            walk.forget_skipped();
        }
    }

    /// Headers of the segments passed without a record in them, in order.
    pub(crate) fn skipped(&self) -> &[SegmentHeader] {
        self.walk.as_ref().map_or(&[], Walk::skipped)
    }

    /// The next record; `None` if there is none yet: call again to follow a live log. Never waits.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal of recovery; [`Error::Medium`].
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(frame) = self.advance()? else { return Ok(None) };
        let walk = self.walk.as_mut().expect("it gave the frame");
        Ok(Some(walk.accept(&frame)))
    }

    /// The end of the data; call it after [`Reader::next`] has returned `None`. On a live log a
    /// torn end may be a record that is being written.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal of recovery; [`Error::Medium`].
    pub fn ending(&mut self) -> Result<Ending, Error> {
        let Some(walk) = &mut self.walk else { return Ok(Ending::Clean) };
        if self.grows {
            refresh(walk)?;
        }
        match walk.resolve(0)? {
            // Records were appended since. Up to the place of this reader, nothing is wrong.
            Resolution::Read => Ok(Ending::Clean),
            Resolution::Ended(ending) => Ok(ending),
        }
    }

    fn advance(&mut self) -> Result<Option<Frame>, Error> {
        if self.walk.is_none() {
            self.walk = open_walk(&self.medium, self.from)?;
        }
        let Some(walk) = &mut self.walk else { return Ok(None) };
        loop {
            if let Step::Record(frame) = walk.step()? {
                if frame.sequence >= self.from {
                    return Ok(Some(frame));
                }
                walk.accept(&frame);
                continue;
            }
            // From the file again, before any other check. The buffer may be older than a live
            // writer's stores. If a removal overtakes this reader, it still reads its open file to
            // the end.
            walk.forget();
            if let Step::Record(_) = walk.step()? {
                continue;
            }
            if self.grows {
                refresh(walk)?;
            }
            // Examining reads the rest of the segment: too slow for every look at an idle log's
            // end.
            if !walk.has_successor() && walk.blank()? {
                return Ok(None);
            }
            match walk.resolve(0)? {
                Resolution::Read => {}
                Resolution::Ended(_) => return Ok(None),
            }
        }
    }
}

fn open_walk<M: Medium>(medium: &M, from: Sequence) -> Result<Option<Walk<M>>, Error> {
    let numbers = list_segments(medium)?;
    Walk::open(medium.clone(), &numbers, from)
}

fn refresh<M: Medium>(walk: &mut Walk<M>) -> Result<(), Error> {
    let mut listings = 1;
    loop {
        match walk.refresh() {
            Err(error) if listings < LISTINGS_MAX && passing(&error) => listings += 1,
            done => return done,
        }
    }
}

/// Whether the error may come from a directory that changes during the read.
fn passing(error: &Error) -> bool {
    match error {
        Error::Missing { .. } => true,
        Error::Medium { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}
