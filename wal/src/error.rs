//! The errors of a log, and the next step after each.

use std::fmt;
use std::io;

use crate::frame::{Identity, PAYLOAD_BYTES_MAX, SEGMENT_HEADER_BYTES, Sequence};

/// A place in the log: which file, which byte of it, and which record was expected there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// File name inside the log's directory.
    pub file: String,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The sequence expected at the offset; 0 if unknown.
    pub sequence: Sequence,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} offset {} sequence {}", self.file, self.offset, self.sequence)
    }
}

/// The evidence that the unreadable record was once durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The caller of [`crate::Recovery::open`] knows of a durable record up to this sequence.
    Caller(Sequence),
    /// A valid record behind the bad place.
    Record {
        /// The record that claims.
        sequence: Sequence,
        /// Everything up to this sequence was durable when the record was written.
        durable: Sequence,
    },
    /// The header of the next segment, which is written only after its predecessor is durable.
    Header {
        /// Number of the segment whose header claims.
        segment: u64,
        /// The last record that its predecessor must hold.
        last: Sequence,
    },
    /// The file is shorter than its header says. No crash causes that: a segment is filled and
    /// synced before it gets its name.
    Length {
        /// Length that the header promises, in bytes.
        bytes: u64,
    },
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller(durable) => {
                write!(f, "the caller knows that record {durable} was durable")
            }
            Self::Record { sequence, durable } => {
                write!(f, "record {sequence} shows that record {durable} was durable")
            }
            Self::Header { segment, last } => {
                write!(f, "the header of segment {segment} shows that record {last} was durable")
            }
            Self::Length { bytes } => write!(f, "its header gives the file {bytes} bytes"),
        }
    }
}

/// The refusals and failures of the log.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process (or another handle of this one) has the directory open. Stop it first.
    #[error("the log is open in process {pid}")]
    Locked {
        /// The holder's process id; 0 if it has taken the lock but not yet written its id.
        pid: u32,
    },
    /// No prepared space is left; nothing was written. The caller may wait for the
    /// [`crate::Preparer`] or the [`crate::Syncer`] and try again.
    #[error("the log has no prepared space left; retry once a segment is prepared")]
    Full,
    /// The payload is longer than [`crate::PAYLOAD_BYTES_MAX`]; nothing was written.
    #[error("payload of {bytes} bytes exceeds the maximum of {}", PAYLOAD_BYTES_MAX)]
    Payload {
        /// Length of the refused payload.
        bytes: usize,
    },
    /// An option is outside its range. Correct it.
    #[error("option {name} is {value}: outside {minimum}..={maximum}, or no multiple of its unit")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// The refused value.
        value: u64,
        /// Smallest accepted value.
        minimum: u64,
        /// Largest accepted value.
        maximum: u64,
    },
    /// The disk (or quota) is full. The log itself is whole: the caller may continue, and try
    /// again.
    #[error("no disk space to prepare {file}")]
    Space {
        /// The spare that could not be prepared.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A spare could not be prepared or pre-faulted, and space was not the cause. The log is dead:
    /// stop, restart, recover.
    #[error("prepare {file}")]
    Prepare {
        /// The file that was prepared.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// Bytes reached an unknown point of the disk. The log is dead: stop, restart, recover.
    #[error("sync {file}")]
    Sync {
        /// The file that was synced, renamed or made durable in its directory.
        file: String,
        /// The system's error. Linux returns it once and never again.
        source: io::Error,
    },
    /// An earlier sync or preparation failed. The log is dead: stop, restart, recover.
    #[error("the log is dead: an earlier sync or preparation failed")]
    Poisoned,
    /// The medium could not be read, listed or changed while opening. Nothing was decided.
    #[error("{action} {file}")]
    Medium {
        /// The attempted action.
        action: &'static str,
        /// Its file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A record that was durable cannot be read. Restore the file; starting would lose money.
    #[error("damaged at {place}: {claim}")]
    Damaged {
        /// The first place that is not a valid record.
        place: Place,
        /// The evidence that a record was there.
        claim: Claim,
    },
    /// A segment between two others, or before the first needed one, is absent.
    #[error("missing segment: {place}")]
    Missing {
        /// The absent file, and a sequence in it or in a missing one beside it.
        place: Place,
    },
    /// A segment's header page is invalid. No crash causes that: the page is synced before its file
    /// is named.
    #[error("bad segment header at {place}{}", of_bytes(*file_bytes))]
    Header {
        /// The header's place.
        place: Place,
        /// Length of the file in bytes; below a header page if the file itself was cut.
        file_bytes: u64,
    },
    /// A segment or record was written in another version of the format. Use its program.
    #[error("unknown version {found} at {place}")]
    Version {
        /// The place of the version's segment or record.
        place: Place,
        /// The version found there.
        found: u32,
    },
    /// A segment belongs to another log.
    #[error("foreign segment at {place}: it belongs to log {found}, not {expected}")]
    Foreign {
        /// The segment's header.
        place: Place,
        /// The identity found.
        found: Identity,
        /// The identity of the log, or the identity that the caller gave.
        expected: Identity,
    },
    /// A segment's name, number, predecessor or first sequence does not follow from the one before.
    #[error("segment out of order at {place}")]
    Order {
        /// The place that does not follow.
        place: Place,
    },
    /// An operator is giving up a part of the log on purpose, and that was interrupted. Make the
    /// same cut again: it continues from there, and [`crate::cut::finish`] ends it.
    #[error("the log is being cut from record {from} on, and the cut is not finished")]
    Unfinished {
        /// The first record that goes; 0 if the mark cannot be read.
        from: Sequence,
    },
    /// A segment's header names a chain value that is not its predecessor's last CRC: the two come
    /// from different histories of one log.
    #[error("broken chain between segments at {place}")]
    Chain {
        /// The header's place.
        place: Place,
    },
}

/// The part of an error message that depends on the file's length.
fn of_bytes(file_bytes: u64) -> String {
    match file_bytes {
        0 => ": the file is empty".to_owned(),
        1..SEGMENT_HEADER_BYTES => format!(": the file has only {file_bytes} bytes"),
        _ => String::new(),
    }
}

impl Error {
    /// The bad place in the log; `None` if the error is not about the log's content.
    pub fn place(&self) -> Option<&Place> {
        match self {
            Self::Damaged { place, .. }
            | Self::Missing { place }
            | Self::Header { place, .. }
            | Self::Version { place, .. }
            | Self::Foreign { place, .. }
            | Self::Order { place }
            | Self::Chain { place } => Some(place),
            Self::Locked { .. }
            | Self::Full
            | Self::Payload { .. }
            | Self::Option { .. }
            | Self::Space { .. }
            | Self::Prepare { .. }
            | Self::Sync { .. }
            | Self::Poisoned
            | Self::Unfinished { .. }
            | Self::Medium { .. } => None,
        }
    }

    /// Wraps a failure of the medium while opening.
    pub(crate) fn medium(action: &'static str, file: &str, source: io::Error) -> Self {
        Self::Medium { action, file: file.to_owned(), source }
    }
}

/// Whether missing space, which may come back, is the only cause.
pub(crate) fn out_of_space(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded)
}
