//! A copy of a log up to one record, made from a log that may be alive: for a backup.
//!
//! It copies the records that a [`Reader`] has checked. Segments keep their names, headers and
//! lengths, and records their places. Behind the last record of a segment there are zeros, even
//! where a crash has left other bytes in the original. So the copy equals a log after a crash right
//! behind its last record, and nothing in it is torn.

use std::fs::File;
use std::io::{self, BufWriter, Write};

use crate::directory::Directory;
use crate::error::Error;
use crate::frame::{
    Fields, PAYLOAD_BYTES_MAX, RECORD_BYTES_MAX, Record, SEGMENT_HEADER_BYTES, SegmentHeader,
    Sequence, encode, segment_name,
};
use crate::medium::Medium;
use crate::reader::Reader;

/// Bytes written at a time.
const BUFFER_BYTES: usize = 256 * 1024;

/// An unfinished copy. If it is dropped before [`Copier::finish`], its files are not a log.
#[derive(Debug)]
pub struct Copier {
    directory: Directory,
    current: Option<Segment>,
    /// First record copied; 0 while there is none.
    first: Sequence,
    /// Last record copied; 0 while there is none.
    last: Sequence,
    names: Vec<String>,
}

/// A finished copy, durable with its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// First record; 0 for none.
    pub first: Sequence,
    /// Last record; 0 for none.
    pub last: Sequence,
    /// Files of the segments, in order.
    pub names: Vec<String>,
}

/// The segment that is being written.
#[derive(Debug)]
struct Segment {
    name: String,
    header: SegmentHeader,
    file: BufWriter<File>,
    /// The place of the next record, in bytes.
    offset: u64,
    /// CRC of the record before it.
    chain: u32,
}

impl Copier {
    /// Makes the directory of the copy if it is absent. It must hold no segment.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn create(directory: Directory) -> Result<Copier, Error> {
        let directory = Directory::create(directory.path())?;
        Ok(Copier { directory, current: None, first: 0, last: 0, names: Vec::new() })
    }

    /// Copies the next records of `reader`, up to and including the record `until`. Returns the
    /// last record copied: an earlier one if the log has no more yet.
    ///
    /// Every call takes the same reader, and the first call takes an unread one.
    ///
    /// # Errors
    /// Those of [`Reader::next`]; [`Error::Medium`] of the copy.
    pub fn copy(
        &mut self,
        reader: &mut Reader<Directory>,
        until: Sequence,
    ) -> Result<Sequence, Error> {
        let mut bytes_of = Vec::with_capacity(PAYLOAD_BYTES_MAX);
        while self.last < until {
            let Some(record) = reader.next()? else { break };
            let Record { sequence, durable, time_ns, kind, payload, segment, offset, bytes } =
                record;
            // The reader lends the record, and is asked for headers before the record is written:
            // copy it.
            bytes_of.clear();
            bytes_of.extend_from_slice(payload);
            let payload = &*bytes_of;
            self.go_to(reader, segment)?;
            let current = self.current.as_mut().expect("every record has a header before it");
            let record =
                Record { sequence, durable, time_ns, kind, payload, segment, offset, bytes };
            current.put(&record)?;
            assert!(self.last == 0 || sequence == self.last + 1, "{sequence} after {}", self.last);
            if self.first == 0 {
                self.first = sequence;
            }
            self.last = sequence;
        }
        Ok(self.last)
    }

    /// The first record copied; 0 while there is none.
    pub fn first(&self) -> Sequence {
        self.first
    }

    /// Begins the segment `number`, after the earlier ones without a record.
    fn go_to(&mut self, reader: &mut Reader<Directory>, number: u64) -> Result<(), Error> {
        let after = self.current.as_ref().map_or(0, |segment| segment.header.segment);
        if after == number {
            return Ok(());
        }
        // A segment with a torn first record holds none, and the next one still follows it.
        let headers = reader.skipped().iter().chain(reader.headers());
        for header in headers.filter(|head| head.segment > after && head.segment <= number) {
            self.begin(*header)?;
        }
        reader.forget_skipped();
        Ok(())
    }

    fn begin(&mut self, header: SegmentHeader) -> Result<(), Error> {
        self.end_segment()?;
        let segment = Segment::create(&self.directory, header)?;
        self.names.push(segment.name.clone());
        self.current = Some(segment);
        Ok(())
    }

    fn end_segment(&mut self) -> Result<(), Error> {
        self.current.take().map_or(Ok(()), Segment::finish)
    }

    /// Makes the copy durable. A log without a record is copied as its first segment.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn finish(mut self, reader: &Reader<Directory>) -> Result<Copied, Error> {
        if self.current.is_none()
            && let Some(header) = reader.headers().next()
        {
            self.begin(*header)?;
        }
        self.end_segment()?;
        let path = self.directory.path().to_string_lossy();
        self.directory
            .sync_directory()
            .map_err(|source| Error::medium("sync directory", &path, source))?;
        let Copier { first, last, names, .. } = self;
        Ok(Copied { first, last, names })
    }
}

impl Segment {
    fn create(directory: &Directory, header: SegmentHeader) -> Result<Segment, Error> {
        let name = segment_name(header.segment);
        let written = || {
            let file = File::create_new(directory.path().join(&name))?;
            let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
            file.write_all(&header.encode())?;
            Ok(file)
        };
        let file = written().map_err(|source| Error::medium("write", &name, source))?;
        let (offset, chain) = (SEGMENT_HEADER_BYTES, header.predecessor_chain);
        Ok(Segment { name, header, file, offset, chain })
    }

    fn put(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let Record { sequence, durable, time_ns, kind, payload, offset, bytes, .. } = *record;
        assert_eq!(offset, self.offset, "{}: record {sequence}", self.name);
        let mut buffer = [0; RECORD_BYTES_MAX];
        let fields = Fields { sequence, chain: self.chain, kind, time_ns, durable };
        let seed = self.header.identity.seed(self.header.segment);
        let (length, crc) = encode(&mut buffer, seed, fields, payload);
        assert_eq!(length as u64, bytes, "{}: record {sequence}", self.name);
        self.file
            .write_all(&buffer[..length])
            .map_err(|source| Error::medium("write", &self.name, source))?;
        (self.offset, self.chain) = (offset + bytes, crc);
        Ok(())
    }

    /// Fills the rest with zeros and makes it durable.
    fn finish(self) -> Result<(), Error> {
        let Segment { name, header, file, .. } = self;
        let finish = || -> io::Result<()> {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            // Zeros that take no space: nothing stores into a copy.
            file.set_len(header.segment_bytes)?;
            file.sync_all()
        };
        finish().map_err(|source| Error::medium("write", &name, source))
    }
}
