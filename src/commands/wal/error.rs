//! Why reading a log failed or stopped.

use std::io;
use std::path::PathBuf;

use engine::record;
use wal::{Place, Sequence};

/// Why reading failed or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist or cannot be read. Correct the path.
    #[error("read {}", path.display())]
    Unreadable {
        /// The path as given.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is not a log. Correct it.
    #[error(
        "{} is no log: give a data directory, a log directory or one segment",
        path.display()
    )]
    NotALog {
        /// The path as given.
        path: PathBuf,
    },
    /// The range of sequences is empty. Correct it.
    #[error("--to {to} is before --from {from}")]
    Range {
        /// The first sequence wanted.
        from: Sequence,
        /// The last sequence wanted.
        to: Sequence,
    },
    /// The log is damaged, incomplete, or cannot be read.
    #[error("{}", path.display())]
    Log {
        /// The log's directory, or one segment.
        path: PathBuf,
        /// The reason and the place.
        source: wal::Error,
    },
    /// A whole record has content that this version of the program cannot have written.
    #[error("{}: undecodable record at {place}", path.display())]
    Payload {
        /// The log's directory, or one segment.
        path: PathBuf,
        /// Where the record begins.
        place: Place,
        /// The reason that it cannot be decoded.
        source: record::Error,
    },
    /// The output could not be written, for another reason than a closed reader.
    #[error("write the output")]
    Write(#[from] io::Error),
}

impl Error {
    /// Whether the arguments are wrong, not the log.
    pub fn is_about_arguments(&self) -> bool {
        match self {
            Error::Unreadable { .. } | Error::NotALog { .. } | Error::Range { .. } => true,
            Error::Log { source, .. } => matches!(source, wal::Error::Medium { .. }),
            Error::Payload { .. } | Error::Write(_) => false,
        }
    }

    /// Whether the reader of the output has closed it, as `| head` does.
    pub(super) fn is_hang_up(&self) -> bool {
        matches!(self, Error::Write(source) if source.kind() == io::ErrorKind::BrokenPipe)
    }
}
