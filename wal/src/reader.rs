//! Reading a log without owning it: no lock, no write, no sync.

use std::io;
use std::path::Path;

use crate::directory::Directory;
use crate::error::Error;
use crate::frame::{Frame, Identity, Record, SegmentHeader, Sequence};
use crate::medium::Medium;
use crate::recover::Ending;
use crate::walk::{Passed, Resolution, Step, Walk, list_segments};

/// A listing of a live directory may miss a file that is just being renamed or removed. Listing
/// again sees it; a file that is still missing after this many times is missing.
const LISTINGS_MAX: u32 = 4;

/// Records in order, from a log that is live, dead, or one file of one. Needs constant memory.
///
/// On a live log it sees what has been appended, durable or not, but only in segments that have
/// been named. It decides by the same table as recovery.
#[derive(Debug)]
pub struct Reader<M: Medium> {
    /// None while there is no segment.
    walk: Option<Walk<M>>,
    medium: M,
    from: Sequence,
    /// Whether to look for segments that are named later; not for a single file.
    grows: bool,
}

impl Reader<Directory> {
    /// Reads a log's directory, or one segment file under whatever name.
    ///
    /// `from`: the first record wanted; 0 for the first there is.
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
    /// Reads a log's directory, which may be empty as yet.
    ///
    /// `from`: the first record wanted; 0 for the first there is.
    ///
    /// # Errors
    /// [`Error::Medium`], and every refusal that headers can give.
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

    /// The log's identity; none while there is no segment.
    pub fn identity(&self) -> Option<Identity> {
        self.walk.as_ref().map(Walk::identity)
    }

    /// What has been left behind in the segments gone through.
    pub fn passed(&self) -> Passed {
        self.walk.as_ref().map(Walk::passed).unwrap_or_default()
    }

    /// Headers of the segment that is read and of those known to follow, in order.
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

    /// The next record; none if there is none as yet: call again to follow a live log. Never waits.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal of recovery; [`Error::Medium`].
    #[expect(clippy::should_implement_trait, reason = "it lends, which an iterator cannot")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Error> {
        let Some(frame) = self.advance()? else { return Ok(None) };
        let walk = self.walk.as_mut().expect("it gave the frame");
        Ok(Some(walk.accept(&frame)))
    }

    /// How the data end, to be asked when [`Reader::next`] has answered none. On a live log a torn
    /// end may be a record that is just being written.
    ///
    /// # Errors
    /// [`Error::Damaged`] and every other refusal of recovery; [`Error::Medium`].
    pub fn ending(&mut self) -> Result<Ending, Error> {
        let Some(walk) = &mut self.walk else { return Ok(Ending::Clean) };
        if self.grows {
            refresh(walk)?;
        }
        match walk.resolve(0)? {
            // Appended since: up to where we have read, nothing is amiss.
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
            // From the file again, before anything else is asked: what is buffered may be older than what a live
            // writer has put here, and who is overtaken by a removal still reads the file that is open to its end.
            walk.forget();
            if let Step::Record(_) = walk.step()? {
                continue;
            }
            if self.grows {
                refresh(walk)?;
            }
            // Examining reads the rest of the segment: not at every look at an idle log's end.
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

/// Whether the error may come from a directory that changes while it is read.
fn passing(error: &Error) -> bool {
    match error {
        Error::Missing { .. } => true,
        Error::Medium { source, .. } => source.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}
