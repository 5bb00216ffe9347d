//! The seam between the log and its storage: [`Directory`](crate::Directory) in production,
//! [`Memory`](crate::memory::Memory) in a simulation.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

use crate::error::Error;

/// Stores and syncs go by pages of this many bytes.
pub const PAGE_BYTES: u64 = 4096;

/// One directory of files.
///
/// A new or changed name is durable only after [`Medium::sync_directory`]; bytes only after a sync
/// of their file.
pub trait Medium: Clone + Debug + Send + Sync + 'static {
    /// A file open for storing.
    type File: MediumFile;
    /// A file open for reading.
    type Source: MediumSource;
    /// The lock of an open log.
    type Lock: Debug + Send + Sync;

    /// Takes the directory for this process until the lock is dropped.
    ///
    /// # Errors
    /// [`Error::Locked`] with the holder's pid; [`Error::Medium`].
    fn lock(&self) -> Result<Self::Lock, Error>;

    /// Names in the directory, in any order.
    ///
    /// # Errors
    /// The system's error.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of `bytes` bytes, replacing one of the same name. It must be filled before
    /// anything is stored in it.
    ///
    /// # Errors
    /// The system's error.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a filled file for storing.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// The system's error.
    fn source(&self, name: &str) -> io::Result<Self::Source>;

    /// Makes the file durable, then drops its cached pages, so that the next read sees the disk.
    ///
    /// # Errors
    /// The system's error.
    fn settle(&self, name: &str) -> io::Result<()>;

    /// Renames a file.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Renames a file to a name that no file has.
    ///
    /// # Errors
    /// `AlreadyExists`: a file has that name; nothing changed. Otherwise the system's error.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Open handles keep working.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes every name in the directory durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync_directory(&self) -> io::Result<()>;
}

/// A file open for storing. All offsets are in bytes from its start.
pub trait MediumFile: Debug + Send + Sync + 'static {
    /// Length of the file, in bytes.
    fn bytes(&self) -> u64;

    /// Writes zeros over `range` (multiples of [`PAGE_BYTES`]) and makes them durable. After that a
    /// store in the range cannot run out of space.
    ///
    /// # Errors
    /// The system's error; `StorageFull` if space ran out.
    fn fill(&self, range: Range<u64>) -> io::Result<()>;

    /// Stores bytes; offset and length are multiples of 8. Takes no system call and cannot fail.
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Stores one little-endian word at a multiple of 8, after every store before it: a reader that
    /// sees the word in the file also sees those stores.
    fn store_release(&self, offset: u64, word: u64);

    /// Makes the pages that `range` touches durable.
    ///
    /// # Errors
    /// The system's error, once. The pages are then in an unknown state; never sync them again.
    fn sync(&self, range: Range<u64>) -> io::Result<()>;

    /// Prepares the pages that `range` touches for stores, so that those do not fault.
    ///
    /// # Errors
    /// The system's error.
    fn prefault(&self, range: Range<u64>) -> io::Result<()>;
}

/// A file open for reading.
pub trait MediumSource: Debug + Send + Sync + 'static {
    /// Length of the file, in bytes.
    ///
    /// # Errors
    /// The system's error.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at `offset` into `buffer`; returns the bytes read, fewer than requested only at the
    /// end.
    ///
    /// # Errors
    /// The system's error.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}
