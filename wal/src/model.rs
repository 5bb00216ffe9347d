//! The ground below the log while loom tries its interleavings, and the claims to check. Bytes that
//! one thread stores reach another thread only through an ordering of this crate.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use loom::sync::Mutex as LoomMutex;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use crate::error::Error;
use crate::frame::{Identity, PAYLOAD_BYTES_MAX, SEGMENT_HEADER_BYTES, Sequence, record_bytes};
use crate::log::{Log, Options, SEGMENT_BYTES_MIN};
use crate::marks::Mark;
use crate::medium::{Medium, MediumFile, MediumSource};
use crate::recover::Recovery;

thread_local! {
    /// The mark without its release. loom runs all threads of a model on the thread of its test.
    static WEAKENED: Cell<Option<Mark>> = const { Cell::new(None) };
}

pub(crate) fn release(mark: Mark) -> Ordering {
    if WEAKENED.get() == Some(mark) { Ordering::Relaxed } else { Ordering::Release }
}

/// A queue that orders as crossbeam's does.
#[derive(Debug)]
pub(crate) struct ArrayQueue<T> {
    places: usize,
    items: LoomMutex<VecDeque<T>>,
}

impl<T> ArrayQueue<T> {
    pub(crate) fn new(places: usize) -> Self {
        Self { places, items: LoomMutex::new(VecDeque::new()) }
    }

    pub(crate) fn push(&self, item: T) -> Result<(), T> {
        let mut items = self.items.lock().expect("no panic under the lock");
        if items.len() == self.places {
            return Err(item);
        }
        items.push_back(item);
        Ok(())
    }

    pub(crate) fn pop(&self) -> Option<T> {
        self.items.lock().expect("no panic under the lock").pop_front()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.lock().expect("no panic under the lock").len()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len() == self.places
    }
}

/// The stored and the synced length of a file, in bytes. Nothing here orders anything.
#[derive(Debug)]
struct Extent {
    stored: AtomicU64,
    synced: AtomicU64,
}

/// A file that keeps only its [`Extent`].
#[derive(Clone, Debug)]
struct Sheet {
    bytes: u64,
    extent: Arc<Extent>,
}

/// A directory of such files.
#[derive(Clone, Debug, Default)]
struct Drawer {
    names: Arc<Mutex<BTreeMap<String, Sheet>>>,
}

impl Drawer {
    fn names(&self) -> MutexGuard<'_, BTreeMap<String, Sheet>> {
        self.names.lock().expect("no panic under the lock")
    }

    fn get(&self, name: &str) -> io::Result<Sheet> {
        self.names().get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The segment's records are synced up to here.
    fn synced(&self, segment: u64) -> u64 {
        let sheet = self.get(&crate::frame::segment_name(segment)).expect("named");
        sheet.extent.synced.load(Ordering::Relaxed)
    }
}

impl Medium for Drawer {
    type File = Sheet;
    type Source = Sheet;
    type Lock = ();

    fn lock(&self) -> Result<(), Error> {
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names().keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Sheet> {
        let extent = Extent { stored: AtomicU64::new(0), synced: AtomicU64::new(0) };
        let sheet = Sheet { bytes, extent: Arc::new(extent) };
        self.names().insert(name.to_owned(), sheet.clone());
        Ok(sheet)
    }

    fn open(&self, name: &str) -> io::Result<Sheet> {
        self.get(name)
    }

    fn source(&self, name: &str) -> io::Result<Sheet> {
        self.get(name)
    }

    fn settle(&self, name: &str) -> io::Result<()> {
        self.get(name).map(drop)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let sheet = self.get(from)?;
        self.names().remove(from);
        self.names().insert(to.to_owned(), sheet);
        Ok(())
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        if self.names().contains_key(to) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.names().remove(name);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        Ok(())
    }
}

impl MediumFile for Sheet {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn fill(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn store(&self, offset: u64, bytes: &[u8]) {
        // The header page is the syncer's, records are the writer's.
        if offset >= SEGMENT_HEADER_BYTES {
            self.extent.stored.store(offset + bytes.len() as u64, Ordering::Relaxed);
        }
    }

    fn store_release(&self, _: u64, _: u64) {}

    fn sync(&self, range: Range<u64>) -> io::Result<()> {
        let end = self.extent.stored.load(Ordering::Relaxed).min(range.end);
        self.extent.synced.store(end, Ordering::Relaxed);
        Ok(())
    }

    fn prefault(&self, _: Range<u64>) -> io::Result<()> {
        Ok(())
    }
}

impl MediumSource for Sheet {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An empty log.
fn log(drawer: &Drawer) -> Log<Drawer> {
    let options = Options { segment_bytes: SEGMENT_BYTES_MIN, spares_ready: 1 };
    let recovery = Recovery::open(drawer.clone(), 0, 0).expect("empty");
    recovery.start(Identity(1), options).expect("a segment").0
}

/// The end of the `count`th record of a segment, all with `payload` bytes.
fn end_of(count: Sequence, payload: usize) -> u64 {
    SEGMENT_HEADER_BYTES + count * record_bytes(payload)
}

fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 10_000;
    builder.check(model);
}

/// A writer appends twice while the syncer syncs twice. Every record that either thread sees called
/// durable must be synced.
fn what_is_called_durable_is_synced() {
    let drawer = Drawer::default();
    let Log { mut writer, mut syncer, durable, .. } = log(&drawer);
    let observed = drawer.clone();
    let thread = thread::spawn(move || {
        for _ in 0..2 {
            writer.append(0, 0, &[]).expect("room");
        }
        let durable = durable.durable();
        if durable > 0 {
            assert!(observed.synced(1) >= end_of(durable, 0), "called durable: {durable}");
        }
    });
    for _ in 0..2 {
        let durable = syncer.sync().expect("no fault");
        assert!(durable == 0 || drawer.synced(1) >= end_of(durable, 0), "synced: {durable}");
    }
    thread.join().expect("appended");
    assert_eq!(syncer.sync().expect("no fault"), 2);
    assert!(drawer.synced(1) >= end_of(2, 0), "not synced in the end");
}

/// Goal: only durable records are called durable. Method: every interleaving of writer and syncer,
/// and every value that the memory model allows to be read.
#[test]
fn loom_what_is_called_durable_is_synced() {
    check(what_is_called_durable_is_synced);
}

#[test]
#[should_panic(expected = "synced: ")]
fn loom_a_weaker_mark_of_what_is_appended_calls_durable_what_is_not_synced() {
    WEAKENED.set(Some(Mark::Appended));
    check(what_is_called_durable_is_synced);
}

#[test]
#[should_panic(expected = "called durable: ")]
fn loom_a_weaker_durable_mark_is_seen_before_the_sync() {
    WEAKENED.set(Some(Mark::Durable));
    check(what_is_called_durable_is_synced);
}

#[test]
#[should_panic(expected = "not synced in the end")]
fn loom_a_weaker_end_of_a_segment_is_synced_before_its_record() {
    WEAKENED.set(Some(Mark::End));
    check(what_is_called_durable_is_synced);
}

/// Goal: a record in the next segment is called durable only after all before it are, and its
/// segment has its name. Method: the append that rolls, against a sync.
#[test]
fn loom_a_roll_is_synced_in_order() {
    check(|| {
        let drawer = Drawer::default();
        let Log { mut writer, mut syncer, mut preparer, .. } = log(&drawer);
        preparer.tick().expect("no fault");
        let full = (SEGMENT_BYTES_MIN - SEGMENT_HEADER_BYTES) / record_bytes(PAYLOAD_BYTES_MAX);
        for _ in 0..full {
            writer.append(0, 0, &[0; PAYLOAD_BYTES_MAX]).expect("room");
        }
        let check = |durable: Sequence| {
            assert!(drawer.synced(1) >= end_of(durable.min(full), PAYLOAD_BYTES_MAX), "{durable}");
            if durable > full {
                assert!(drawer.synced(2) >= end_of(1, PAYLOAD_BYTES_MAX), "{durable}");
            }
        };
        let thread = thread::spawn(move || {
            writer.append(0, 0, &[0; PAYLOAD_BYTES_MAX]).expect("a spare");
        });
        check(syncer.sync().expect("no fault"));
        thread.join().expect("appended");
        assert_eq!(syncer.sync().expect("no fault"), full + 1);
        check(full + 1);
    });
}

/// Goal: two threads may sync in turn: the durable mark never falls, and is never ahead of the
/// synced bytes. Method: the writer's thread syncs its own record if it finds the syncer's lock
/// free, and leaves it to the other thread if not.
#[test]
fn loom_two_threads_sync_in_turn() {
    check(|| {
        let drawer = Drawer::default();
        let Log { mut writer, syncer, durable, .. } = log(&drawer);
        let syncer = Arc::new(LoomMutex::new(syncer));
        let synced = |drawer: &Drawer, durable: Sequence| {
            assert!(durable == 0 || drawer.synced(1) >= end_of(durable, 0), "synced: {durable}");
        };
        let (drawer_there, syncer_there) = (drawer.clone(), Arc::clone(&syncer));
        let thread = thread::spawn(move || {
            let mut before = 0;
            for _ in 0..2 {
                writer.append(0, 0, &[]).expect("room");
                if let Ok(mut syncer) = syncer_there.try_lock() {
                    assert_eq!(syncer.sync().expect("no fault"), writer.appended());
                }
                let now = durable.durable();
                assert!(now >= before, "{now} is durable after {before}");
                synced(&drawer_there, now);
                before = now;
            }
        });
        synced(&drawer, syncer.lock().expect("no panic").sync().expect("no fault"));
        thread.join().expect("appended");
        assert_eq!(syncer.lock().expect("no panic").sync().expect("no fault"), 2);
        synced(&drawer, 2);
    });
}
