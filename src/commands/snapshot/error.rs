//! Why a snapshot could not be read, or why it must not be used.

use std::io;
use std::path::PathBuf;

use engine::snapshot;

/// Why a snapshot could not be read, or why it must not be used.
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
    /// The path is not a snapshot. Correct it.
    #[error(
        "{} holds no snapshot: give a data directory, a directory of snapshots or one of them",
        path.display()
    )]
    NoSnapshot {
        /// The path as given.
        path: PathBuf,
    },
    /// A snapshot must not be used.
    #[error(transparent)]
    Snapshot(#[from] snapshot::Error),
    /// The output could not be written, for another reason than a closed reader.
    #[error("write the output")]
    Write(#[from] io::Error),
}

impl Error {
    /// Whether the arguments are wrong, not the snapshot.
    pub fn is_about_arguments(&self) -> bool {
        match self {
            Error::Unreadable { .. } | Error::NoSnapshot { .. } => true,
            Error::Snapshot(error) => matches!(error, snapshot::Error::Io { .. }),
            Error::Write(_) => false,
        }
    }
}
