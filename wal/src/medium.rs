//! The seam between the log and what holds its bytes: [`Directory`](crate::Directory) in
//! production, [`Memory`](crate::memory::Memory) in a simulation.

use std::fmt::Debug;
use std::io;
use std::ops::Range;

use crate::error::Error;

/// Stores and syncs go by pages of this many bytes.
pub const PAGE_BYTES: u64 = 4096;

/// One directory of files.
///
/// A name made or changed here is durable only after [`Medium::sync_directory`]; bytes only after a
/// sync of their file.
pub trait Medium: Clone + Debug + Send + Sync + 'static {
    /// A file open for storing.
    type File: MediumFile;
    /// A file open for reading.
    type Source: MediumSource;
    /// Held while the log is open.
    type Lock: Debug + Send + Sync;

    /// Takes the directory for this process until the lock is dropped.
    ///
    /// # Errors
    /// [`Error::Locked`] with the holder's pid; [`Error::Medium`].
    fn lock(&self) -> Result<Self::Lock, Error>;

    /// Names in the directory, in any order.
    ///
    /// # Errors
    /// Whatever the system says.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of `bytes` bytes, replacing one of the same name. It must be filled before
    /// anything is stored in it.
    ///
    /// # Errors
    /// Whatever the system says.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a filled file for storing.
    ///
    /// # Errors
    /// Whatever the system says.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Whatever the system says.
    fn source(&self, name: &str) -> io::Result<Self::Source>;

    /// Makes the file durable, then drops its cached pages, so that the next read sees the disk.
    ///
    /// # Errors
    /// Whatever the system says.
    fn settle(&self, name: &str) -> io::Result<()>;

    /// Renames a file.
    ///
    /// # Errors
    /// Whatever the system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Renames a file to a name that no file has.
    ///
    /// # Errors
    /// `AlreadyExists`: a file has that name; nothing changed. Otherwise whatever the system says.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Handles that are still open go on working.
    ///
    /// # Errors
    /// Whatever the system says.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes every name in the directory durable.
    ///
    /// # Errors
    /// Whatever the system says.
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
    /// Whatever the system says; `StorageFull` where space ran out.
    fn fill(&self, range: Range<u64>) -> io::Result<()>;

    /// Stores bytes; offset and length are multiples of 8. Takes no system call and cannot fail.
    fn store(&self, offset: u64, bytes: &[u8]);

    /// Stores one little-endian word at a multiple of 8, after every store before it: whoever reads
    /// the word from the file also reads those.
    fn store_release(&self, offset: u64, word: u64);

    /// Makes the pages that `range` touches durable.
    ///
    /// # Errors
    /// Whatever the system says, once: the pages are in an unknown state then, and never to be
    /// synced again.
    fn sync(&self, range: Range<u64>) -> io::Result<()>;

    /// Prepares the pages that `range` touches for stores, so that those do not fault.
    ///
    /// # Errors
    /// Whatever the system says.
    fn prefault(&self, range: Range<u64>) -> io::Result<()>;
}

/// A file open for reading.
pub trait MediumSource: Debug + Send + Sync + 'static {
    /// Length of the file, in bytes.
    ///
    /// # Errors
    /// Whatever the system says.
    fn bytes(&self) -> io::Result<u64>;

    /// Reads at `offset` into `buffer`; returns how many bytes, less than asked only at the end.
    ///
    /// # Errors
    /// Whatever the system says.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}
