//! A directory in memory that models a power cut: the medium of a simulation.
//!
//! It loses only unsynced bytes, in the units of a disk, and fails on demand.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::medium::{Medium, MediumFile, MediumSource, PAGE_BYTES};

/// A disk writes this many bytes or nothing.
const SECTOR_BYTES: usize = 512;

/// A future failure, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A sync of a file fails, and its pages then count as clean, as on Linux.
    Sync,
    /// A sync of the directory fails.
    SyncDirectory,
    /// A rename fails and changes nothing.
    Rename,
    /// A read fails.
    Read,
    /// A pre-fault fails.
    Prefault,
}

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    state: Arc<Mutex<State>>,
}

/// A file's bytes, shared by all its names and handles.
type SharedContent = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct State {
    /// The names that a reader of the directory sees.
    names: BTreeMap<String, SharedContent>,
    /// The names that survive a power cut.
    names_durable: BTreeMap<String, SharedContent>,
    faults: VecDeque<Fault>,
    /// Operations that still succeed; `None`: no limit.
    operations_left: Option<u64>,
    space_bytes: Option<u64>,
    locked: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    /// The bytes that a reader of the file sees: the page cache.
    cached: Vec<u8>,
    /// The bytes on the disk.
    durable: Vec<u8>,
    /// Pages with cached bytes that are not on the disk yet.
    dirty: BTreeSet<u64>,
    /// Bytes with space on the disk.
    filled: u64,
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let start = index(offset);
        self.cached[start..start + bytes.len()].copy_from_slice(bytes);
        if !bytes.is_empty() {
            let last = offset + bytes.len() as u64 - 1;
            self.dirty.extend(offset / PAGE_BYTES..=last / PAGE_BYTES);
        }
    }

    /// Writes the page to the disk. `choose` decides sector by sector.
    fn persist(&mut self, page: u64, choose: &mut dyn FnMut() -> bool) {
        let start = index(page * PAGE_BYTES);
        let end = (start + index(PAGE_BYTES)).min(self.cached.len());
        if self.durable.len() < end {
            self.durable.resize(end, 0);
        }
        for at in (start..end).step_by(SECTOR_BYTES) {
            let sector = at..(at + SECTOR_BYTES).min(end);
            if self.cached[sector.clone()] != self.durable[sector.clone()] && choose() {
                self.durable[sector.clone()].copy_from_slice(&self.cached[sector]);
            }
        }
    }

    fn sync(&mut self, range: Range<u64>) {
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        let dirty: Vec<u64> = self.dirty.range(pages).copied().collect();
        for page in dirty {
            self.persist(page, &mut || true);
            self.dirty.remove(&page);
        }
    }

    /// Drops the dirty marks without writing, as Linux does after a failed write-back.
    fn sync_failed(&mut self, range: Range<u64>) {
        let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
        self.dirty.retain(|page| !pages.contains(page));
    }
}

/// The file as it is after a power cut.
fn crashed(content: &Content, choose: &mut dyn FnMut() -> bool) -> Content {
    let mut content = content.clone();
    for page in std::mem::take(&mut content.dirty) {
        content.persist(page, choose);
    }
    content.cached.clone_from(&content.durable);
    content
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("a file in memory fits the address space")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock has failed the test already; the bytes stay valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Counts one operation and fails it if its fault is next in line.
    fn operate(&mut self, fault: Option<Fault>) -> io::Result<()> {
        match &mut self.operations_left {
            Some(0) => return Err(io::Error::other("the simulated process has stopped")),
            Some(left) => *left -= 1,
            None => {}
        }
        if fault.is_some() && self.faults.front().copied() == fault {
            self.faults.pop_front();
            return Err(io::Error::other("injected failure"));
        }
        Ok(())
    }

    fn find(&self, name: &str) -> io::Result<&SharedContent> {
        self.names.get(name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, name))
    }
}

impl Memory {
    /// An empty directory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power and returns the directory that the restarted machine finds. The old directory
    /// and its handles stay as they are, without effect on the new one.
    ///
    /// `choose` is called once for every unsynced sector and every unsynced name, in a fixed order:
    /// true if it reached the disk.
    pub fn crash(&self, mut choose: impl FnMut() -> bool) -> Self {
        let state = lock(&self.state);
        let mut names = BTreeMap::new();
        let all: BTreeSet<&String> = state.names.keys().chain(state.names_durable.keys()).collect();
        for name in all {
            let (visible, durable) = (state.names.get(name), state.names_durable.get(name));
            let same = match (visible, durable) {
                (Some(visible), Some(durable)) => Arc::ptr_eq(visible, durable),
                _ => false,
            };
            let kept = if same || choose() { visible } else { durable };
            if let Some(content) = kept {
                let content = crashed(&lock(content), &mut choose);
                names.insert(name.clone(), Arc::new(Mutex::new(content)));
            }
        }
        let state = State {
            names_durable: names.clone(),
            names,
            space_bytes: state.space_bytes,
            ..State::default()
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Kills the process. The page cache survives, so all stored bytes are still there, synced or
    /// not. The old directory and its handles have no effect on the new one.
    pub fn kill(&self) -> Self {
        let state = lock(&self.state);
        let mut copies: Vec<(SharedContent, SharedContent)> = Vec::new();
        let mut copy = |names: &BTreeMap<String, SharedContent>| {
            let mut copied = BTreeMap::new();
            for (name, content) in names {
                let known = copies.iter().find(|(from, _)| Arc::ptr_eq(from, content));
                let to = match known {
                    Some((_, to)) => to.clone(),
                    None => {
                        let to = Arc::new(Mutex::new(lock(content).clone()));
                        copies.push((content.clone(), to.clone()));
                        to
                    }
                };
                copied.insert(name.clone(), to);
            }
            copied
        };
        let state = State {
            names: copy(&state.names),
            names_durable: copy(&state.names_durable),
            space_bytes: state.space_bytes,
            ..State::default()
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Writes some dirty pages back, as the kernel may at any time; they stay dirty. `choose` is
    /// called once for every sector.
    pub fn write_back(&self, mut choose: impl FnMut() -> bool) {
        for content in lock(&self.state).names.values() {
            let mut content = lock(content);
            for page in content.dirty.clone() {
                content.persist(page, &mut choose);
            }
        }
    }

    /// Fails the next operation of the fault's kind. Several faults queue, first in, first out.
    pub fn fail(&self, fault: Fault) {
        lock(&self.state).faults.push_back(fault);
    }

    /// Lets `operations` more operations succeed and fails every later one, as if the process had
    /// died there. Stores are not operations; after the stop they are lost.
    pub fn stop_after(&self, operations: u64) {
        let left = &mut lock(&self.state).operations_left;
        // A later call must not revive a stopped process.
        *left = Some(left.map_or(operations, |left| left.min(operations)));
    }

    /// Limits the space for filled files; `None` lifts the limit.
    pub fn limit_space(&self, bytes: Option<u64>) {
        lock(&self.state).space_bytes = bytes;
    }

    /// The bytes of a file as a reader sees them; `None` if there is no such file.
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        lock(&self.state).names.get(name).map(|content| lock(content).cached.clone())
    }

    /// Puts a durable file there and replaces one of the same name: for deliberate damage.
    pub fn put(&self, name: &str, bytes: Vec<u8>) {
        let filled = bytes.len() as u64;
        let content =
            Content { cached: bytes.clone(), durable: bytes, dirty: BTreeSet::new(), filled };
        let content = Arc::new(Mutex::new(content));
        let mut state = lock(&self.state);
        state.names.insert(name.to_owned(), content.clone());
        state.names_durable.insert(name.to_owned(), content);
    }
}

/// The lock of a [`Memory`], released on drop.
#[derive(Debug)]
pub struct MemoryLock {
    locked: Arc<AtomicBool>,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.locked.store(false, Ordering::Release);
    }
}

/// A file of a [`Memory`].
#[derive(Debug)]
pub struct MemoryFile {
    state: Arc<Mutex<State>>,
    content: SharedContent,
}

impl Medium for Memory {
    type File = MemoryFile;
    type Source = MemoryFile;
    type Lock = MemoryLock;

    fn lock(&self) -> Result<MemoryLock, Error> {
        let locked = lock(&self.state).locked.clone();
        if locked.swap(true, Ordering::Acquire) {
            return Err(Error::Locked { pid: std::process::id() });
        }
        Ok(MemoryLock { locked })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut state = lock(&self.state);
        state.operate(None)?;
        Ok(state.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<MemoryFile> {
        let mut state = lock(&self.state);
        state.operate(None)?;
        let content = Content { cached: vec![0; index(bytes)], ..Content::default() };
        let content = Arc::new(Mutex::new(content));
        state.names.insert(name.to_owned(), content.clone());
        Ok(MemoryFile { state: self.state.clone(), content })
    }

    fn open(&self, name: &str) -> io::Result<MemoryFile> {
        let mut state = lock(&self.state);
        state.operate(None)?;
        Ok(MemoryFile { state: self.state.clone(), content: state.find(name)?.clone() })
    }

    fn source(&self, name: &str) -> io::Result<MemoryFile> {
        self.open(name)
    }

    fn settle(&self, name: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        let content = state.find(name)?.clone();
        let mut content = lock(&content);
        if let Err(error) = state.operate(Some(Fault::Sync)) {
            content.sync_failed(0..u64::MAX);
            return Err(error);
        }
        content.sync(0..u64::MAX);
        content.cached = content.durable.clone();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate(Some(Fault::Rename))?;
        let content = state.find(from)?.clone();
        state.names.remove(from);
        state.names.insert(to.to_owned(), content);
        Ok(())
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        if lock(&self.state).names.contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate(None)?;
        state.find(name)?;
        state.names.remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate(Some(Fault::SyncDirectory))?;
        state.names_durable = state.names.clone();
        Ok(())
    }
}

impl MediumFile for MemoryFile {
    fn bytes(&self) -> u64 {
        lock(&self.content).cached.len() as u64
    }

    fn fill(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = lock(&self.state);
        state.operate(None)?;
        let used: u64 = state.names.values().map(|content| lock(content).filled).sum();
        if state.space_bytes.is_some_and(|space| used + (range.end - range.start) > space) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut content = lock(&self.content);
        content.filled += range.end - range.start;
        let zeros = vec![0; index(range.end - range.start)];
        content.write(range.start, &zeros);
        content.sync(range);
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(8) && bytes.len().is_multiple_of(8), "offset {offset}");
        if lock(&self.state).operations_left == Some(0) {
            return;
        }
        let mut content = lock(&self.content);
        let end = offset + bytes.len() as u64;
        assert!(end <= content.filled, "store up to {end} of {} filled", content.filled);
        content.write(offset, bytes);
    }

    fn store_release(&self, offset: u64, word: u64) {
        self.store(offset, &word.to_le_bytes());
    }

    fn sync(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = lock(&self.state);
        let mut content = lock(&self.content);
        if let Err(error) = state.operate(Some(Fault::Sync)) {
            content.sync_failed(range);
            return Err(error);
        }
        content.sync(range);
        Ok(())
    }

    fn prefault(&self, range: Range<u64>) -> io::Result<()> {
        assert!(range.end <= lock(&self.content).filled, "{range:?}");
        lock(&self.state).operate(Some(Fault::Prefault))
    }
}

impl MediumSource for MemoryFile {
    fn bytes(&self) -> io::Result<u64> {
        Ok(lock(&self.content).cached.len() as u64)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        lock(&self.state).operate(Some(Fault::Read))?;
        let content = lock(&self.content);
        let start = index(offset).min(content.cached.len());
        let bytes = buffer.len().min(content.cached.len() - start);
        buffer[..bytes].copy_from_slice(&content.cached[start..start + bytes]);
        Ok(bytes)
    }
}
