//! The place of a log, and the way through it.

use std::fs;
use std::path::{Path, PathBuf};

use engine::entry::Entry;
use wal::{Directory, Ending, Listing, Place, Reader, Record, Sequence, segment_name};

use super::error::Error;
use super::read::Read;
use crate::data_dir;

/// The place of a log.
pub(super) struct Log {
    /// Its directory, or one segment.
    pub(super) path: PathBuf,
    /// The segment's name; `None` for a directory.
    pub(super) file: Option<String>,
    /// The files of the directory; empty for one segment.
    pub(super) listing: Listing,
}

impl Log {
    /// Finds the log at `path`.
    pub(super) fn find(path: &Path) -> Result<Log, Error> {
        let unreadable = |source| Error::Unreadable { path: path.to_owned(), source };
        let not_a_log = || Error::NotALog { path: path.to_owned() };
        let metadata = fs::metadata(path).map_err(unreadable)?;
        if metadata.is_file() {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let name = name.ok_or_else(not_a_log)?;
            // A file with a segment's name is a log, even with a damaged header.
            let named = name.starts_with("segment-") && name.ends_with(".wal");
            let listing = Listing::default();
            let log = Log { path: path.to_owned(), file: Some(name), listing };
            return match log.reader(0) {
                Err(Error::Log { source: wal::Error::Header { .. }, .. }) if !named => {
                    Err(not_a_log())
                }
                _ => Ok(log),
            };
        }
        if !metadata.is_dir() {
            return Err(not_a_log());
        }
        for directory in [path.to_owned(), data_dir::log(path)] {
            if directory.is_dir() {
                let listing = Listing::of(&Directory::at(&directory));
                let mut log = Log { path: directory, file: None, listing: Listing::default() };
                log.listing = listing.map_err(|source| log.refused(source))?;
                if log.listing.has_segments() {
                    return Ok(log);
                }
            }
        }
        Err(not_a_log())
    }

    /// A reader that begins with the record `from`; 0 for the first record.
    pub(super) fn reader(&self, from: Sequence) -> Result<Reader<Directory>, Error> {
        Reader::open_path(&self.path, from).map_err(|source| self.refused(source))
    }

    /// Reads and decodes everything up to the first damage, and counts it in `read`.
    pub(super) fn read_all(
        &self,
        read: &mut Read,
        mut seen: impl FnMut(&Record<'_>, &Entry),
    ) -> Result<Ending, Error> {
        let mut reader = self.reader(0)?;
        read.log = reader.identity();
        let ending = self.read_on(&mut reader, read, &mut seen);
        read.passed = reader.passed();
        read.segments = read.passed.segments + reader.headers().count() as u64;
        ending
    }

    fn read_on(
        &self,
        reader: &mut Reader<Directory>,
        read: &mut Read,
        seen: &mut impl FnMut(&Record<'_>, &Entry),
    ) -> Result<Ending, Error> {
        while let Some(record) = reader.next().map_err(|source| self.refused(source))? {
            let entry = Entry::decode(record.kind, record.payload).map_err(|source| {
                Error::Payload { path: self.path.clone(), place: self.place(&record), source }
            })?;
            read.records += 1;
            read.first.get_or_insert(record.sequence);
            read.last = Some(record.sequence);
            seen(&record, &entry);
        }
        reader.ending().map_err(|source| self.refused(source))
    }

    pub(super) fn refused(&self, source: wal::Error) -> Error {
        Error::Log { path: self.path.clone(), source }
    }

    pub(super) fn place(&self, record: &Record<'_>) -> Place {
        let file = self.file.clone().unwrap_or_else(|| segment_name(record.segment));
        Place { file, offset: record.offset, sequence: record.sequence }
    }
}
