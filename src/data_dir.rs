//! The data directory: the paths in it, its lock, and the mark of a restore that is not finished.
//!
//! ```text
//!   DATA_DIR/wal/         segments and spares of the log; the lock is on this directory
//!   DATA_DIR/snapshots/   snapshots of UBSCore
//!   DATA_DIR/restoring    exists while a restore is not finished
//! ```
//!
//! Beside them lie the flag that halts ([`crate::audit::halt`]), the record of the last server
//! ([`crate::audit::failover`]), the answered flights ([`crate::postgres::flights`]) and the
//! embedded PostgreSQL.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use wal::{Directory, DirectoryLock, Medium};

/// Directory of the log, in a data directory and in a backup.
pub const LOG_DIRECTORY: &str = "wal";
/// Directory of the snapshots, in a data directory and in a backup.
pub const SNAPSHOT_DIRECTORY: &str = "snapshots";
/// File that exists from the begin of a restore to its end.
const RESTORE_MARK: &str = "restoring";

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The data directory may hold half a backup. No command but `restore` may use it.
    #[error("a restore into {} is not finished: run the same `ubscore restore` again", .0.display())]
    UnfinishedRestore(PathBuf),
    /// The names in a directory, or the bytes of a file, may not be durable.
    #[error("sync {}", path.display())]
    Sync {
        /// The directory or file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The log's directory.
pub fn log(data_dir: &Path) -> PathBuf {
    data_dir.join(LOG_DIRECTORY)
}

/// The directory of snapshots.
pub fn snapshots(data_dir: &Path) -> PathBuf {
    data_dir.join(SNAPSHOT_DIRECTORY)
}

/// The mark of an unfinished restore.
pub fn restore_mark(data_dir: &Path) -> PathBuf {
    data_dir.join(RESTORE_MARK)
}

/// Creates the log's directory if it is absent, and locks it. No service and no repair starts until
/// the lock is dropped.
///
/// # Errors
/// [`wal::Error::Locked`]: another process holds it; [`wal::Error::Medium`].
pub fn create_and_lock(data_dir: &Path) -> Result<DirectoryLock, wal::Error> {
    Directory::create(log(data_dir))?.lock()
}

/// The same, without creating anything.
///
/// # Errors
/// As [`create_and_lock`]; [`wal::Error::Medium`] if there is no log.
pub fn lock(data_dir: &Path) -> Result<DirectoryLock, wal::Error> {
    Directory::at(log(data_dir)).lock()
}

/// Refuses a data directory in which a restore has begun and not ended.
///
/// # Errors
/// [`Error::UnfinishedRestore`], or [`Error::Sync`].
pub fn refuse_unfinished_restore(data_dir: &Path) -> Result<(), Error> {
    if restore_mark(data_dir).exists() {
        return Err(Error::UnfinishedRestore(data_dir.to_owned()));
    }
    // The mark may be removed but not durably. It must not reappear after the next command has
    // changed the data.
    sync(data_dir)
}

/// Makes the bytes of a file, or the names in a directory, durable.
///
/// # Errors
/// [`Error::Sync`].
pub fn sync(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|source| Error::Sync { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;

    #[test]
    fn a_data_directory_has_one_lock() {
        let directory = tempdir().expect("a temporary directory");
        lock(directory.path()).expect_err("nothing is created");
        let held = create_and_lock(directory.path()).expect("the lock is free");
        assert!(matches!(lock(directory.path()), Err(wal::Error::Locked { .. })));
        drop(held);
        lock(directory.path()).expect("the lock is free again");
    }

    #[test]
    fn an_unfinished_restore_is_refused() {
        let directory = tempdir().expect("a temporary directory");
        refuse_unfinished_restore(directory.path()).expect("no restore has begun");
        std::fs::write(restore_mark(directory.path()), "{}").expect("written");
        let refused = refuse_unfinished_restore(directory.path());
        assert!(matches!(refused, Err(Error::UnfinishedRestore(_))), "{refused:?}");
    }
}
