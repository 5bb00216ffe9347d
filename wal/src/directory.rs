//! A directory of real files, mapped for storing and read by `pread`. The crate's only `unsafe`.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{Advice, MmapRaw};

use crate::error::Error;
#[cfg(feature = "shadow")]
use crate::fault::meet;
use crate::frame::LOCK_NAME;
use crate::medium::{Medium, MediumFile, MediumSource, PAGE_BYTES};
#[cfg(feature = "shadow")]
use crate::shadow::{Sync, sync_directory, sync_file};
#[cfg(not(feature = "shadow"))]
use bare::{Sync, meet, sync_directory, sync_file};

/// A page as the length of a buffer.
const PAGE: usize = 4096;

const _: () = assert!(PAGE as u64 == PAGE_BYTES);

/// Mode of each directory and file made here, before the umask: the log names users and amounts.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The kernel's list of locks: one per line, with the pid of its holder and the inode.
const LOCKS: &str = "/proc/locks";

/// Makes a file that only its owner may read and write; an existing file is emptied.
///
/// # Errors
/// The system's error.
pub fn create_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct Directory {
    path: Arc<Path>,
}

impl Directory {
    /// Makes the directory and its parents if they are absent, durably.
    ///
    /// # Errors
    /// [`Error::Medium`].
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let failed = |source| Error::medium("create directory", &path.to_string_lossy(), source);
        let absolute = std::path::absolute(&path).map_err(failed)?;
        let absent: Vec<&Path> =
            absolute.ancestors().take_while(|ancestor| !ancestor.is_dir()).collect();
        for directory in absent.into_iter().rev() {
            DirBuilder::new().mode(DIRECTORY_MODE).create(directory).map_err(failed)?;
            if let Some(parent) = directory.parent() {
                File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
            }
        }
        Ok(Self::at(path))
    }

    /// Names a directory without touching it; enough for a [`crate::Reader`].
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into().into() }
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pid of the lock's holder: from its file, or from the kernel's list if that file is gone.
    /// 0: unknown.
    fn holder(&self, directory: &File) -> u32 {
        let written = fs::read_to_string(self.path.join(LOCK_NAME)).unwrap_or_default();
        // Empty between the holder's lock and its write.
        written.trim().parse().ok().or_else(|| listed_holder(directory)).unwrap_or(0)
    }
}

/// The holder of a directory's lock, from the kernel's list.
fn listed_holder(directory: &File) -> Option<u32> {
    let inode = directory.metadata().ok()?.ino().to_string();
    let locks = fs::read_to_string(LOCKS).ok()?;
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, place, ..] = fields[..] else { return None };
        let same = place.rsplit(':').next() == Some(inode.as_str());
        pid.parse().ok().filter(|_| same)
    })
}

/// The lock of a [`Directory`], released on drop.
#[derive(Debug)]
pub struct DirectoryLock {
    // Closing them releases the locks. The file stays: an earlier version locks only the file.
    _directory: File,
    _file: File,
}

impl Medium for Directory {
    type File = MappedFile;
    type Source = File;
    type Lock = DirectoryLock;

    /// Takes an exclusive `flock` on the directory itself and on the file that holds the pid as
    /// text. The lock on the directory survives a removal of that file.
    fn lock(&self) -> Result<DirectoryLock, Error> {
        let failed = |source| Error::medium("lock", LOCK_NAME, source);
        let directory = File::open(&self.path).map_err(failed)?;
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked { pid: self.holder(&directory) });
            }
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(FILE_MODE)
            .open(self.path.join(LOCK_NAME))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(source)) => return Err(failed(source)),
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                file.read_to_string(&mut holder).map_err(failed)?;
                // Empty between the holder's lock and its write: 0 means unknown.
                return Err(Error::Locked { pid: holder.trim().parse().unwrap_or(0) });
            }
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(DirectoryLock { _directory: directory, _file: file })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        // A name that is not UTF-8 does not belong to the log.
        fs::read_dir(&self.path)?
            .filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose())
            .collect()
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<MappedFile> {
        meet(&self.path, "create")?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(FILE_MODE)
            .open(self.path.join(name))?;
        file.set_len(bytes)?;
        MappedFile::new(file)
    }

    fn open(&self, name: &str) -> io::Result<MappedFile> {
        MappedFile::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?)
    }

    fn source(&self, name: &str) -> io::Result<File> {
        File::open(self.path.join(name))
    }

    fn settle(&self, name: &str) -> io::Result<()> {
        meet(&self.path, "settle")?;
        let file = File::open(self.path.join(name))?;
        sync_file(&file, 0..file.metadata()?.len(), Sync::Settle, || file.sync_all())?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        meet(&self.path, "rename")?;
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        meet(&self.path, "rename")?;
        let (from, to) = (self.path.join(from), self.path.join(to));
        match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            // The file system does not know the flag.
            Err(rustix::io::Errno::INVAL) if to.try_exists()? => {
                Err(io::ErrorKind::AlreadyExists.into())
            }
            Err(rustix::io::Errno::INVAL) => fs::rename(from, to),
            renamed => Ok(renamed?),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        meet(&self.path, "remove")?;
        fs::remove_file(self.path.join(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        meet(&self.path, "sync_directory")?;
        sync_directory(&self.path, || File::open(&self.path)?.sync_all())
    }
}

impl MediumSource for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

/// A file mapped shared and writable.
///
/// Stores are atomic words, so that the core may store in one page while the sync thread stores the
/// header in another. The kernel serves the same pages to every reader of the file.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    map: MmapRaw,
}

impl MappedFile {
    fn new(file: File) -> io::Result<Self> {
        let map = MmapRaw::map_raw(&file)?;
        // No read-ahead on a fault: it would fill the page cache by large folios, and a sync writes
        // whole folios.
        map.advise(Advice::Random)?;
        Ok(Self { file, map })
    }

    fn word(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "offset {offset}");
        let offset = usize::try_from(offset).expect("a mapped file fits the address space");
        assert!(offset + 8 <= self.map.len(), "offset {offset} of {}", self.map.len());
        // SAFETY: The word lies inside the map (asserted above), and the map lives as long as
        // `self`. It is aligned: the map begins at a page and the offset is a multiple of 8. Every
        // access by this process goes through this function, so all are atomic. The file is filled
        // before the first store, so no store can meet a hole for which the disk has no space.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().add(offset).cast()) }
    }

    fn range(&self, range: Range<u64>) -> (usize, usize) {
        assert!(range.start < range.end && range.end <= self.map.len() as u64, "{range:?}");
        let start = usize::try_from(range.start).expect("a mapped file fits the address space");
        let end = usize::try_from(range.end).expect("a mapped file fits the address space");
        (start, end - start)
    }
}

impl MediumFile for MappedFile {
    fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    fn fill(&self, range: Range<u64>) -> io::Result<()> {
        assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
        // One page per write: the page cache keeps the write's size as its unit, and a later sync
        // of one record would write the whole unit.
        let met = meet(Path::new(""), "fill");
        // A failing fill has written half of its pages.
        let pages = (range.end - range.start) / PAGE_BYTES / if met.is_ok() { 1 } else { 2 };
        for offset in (range.start..).step_by(PAGE).take(usize::try_from(pages).expect("few")) {
            self.file.write_all_at(&[0; PAGE], offset)?;
        }
        met?;
        sync_file(&self.file, range, Sync::Fill, || self.file.sync_all())
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty(), "length {}", bytes.len());
        for (word, offset) in words.iter().zip((offset..).step_by(8)) {
            self.word(offset).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
    }

    fn store_release(&self, offset: u64, word: u64) {
        self.word(offset).store(word.to_le(), Ordering::Release);
    }

    fn sync(&self, range: Range<u64>) -> io::Result<()> {
        meet(Path::new(""), "sync")?;
        let (start, length) = self.range(range.clone());
        let pages = range.start / PAGE_BYTES * PAGE_BYTES..range.end.next_multiple_of(PAGE_BYTES);
        let pages = pages.start..pages.end.min(self.bytes());
        sync_file(&self.file, pages, Sync::Range, || self.map.flush_range(start, length))
    }

    fn prefault(&self, range: Range<u64>) -> io::Result<()> {
        meet(Path::new(""), "prefault")?;
        let (start, length) = self.range(range);
        match self.map.advise_range(Advice::PopulateWrite, start, length) {
            // A kernel before 5.14 does not know the advice: stores fault then, and are still
            // correct.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }
}

/// Stand-ins without the `shadow` feature: each sync runs as it is, and no step meets a fault.
#[cfg(not(feature = "shadow"))]
mod bare {
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::path::Path;

    pub(super) enum Sync {
        Range,
        Settle,
        Fill,
    }

    pub(super) fn meet(_: &Path, _: &'static str) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn sync_file(
        _: &File,
        _: Range<u64>,
        _: Sync,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        sync()
    }

    pub(super) fn sync_directory(
        _: &Path,
        sync: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        sync()
    }
}
