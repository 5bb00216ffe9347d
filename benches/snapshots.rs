//! Snapshots that are made beside the measured work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use engine::Engine;
use engine::snapshot::store::SnapshotStore;
use ubscore::checkpointer::{self, Checkpointer};
use ubscore::clock::SystemClock;
use ubscore::config::snapshot::Trades;

/// Pause between two requests for a snapshot.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// The options of snapshots on request only, of which one is kept.
fn on_request(options: &engine::Options) -> anyhow::Result<checkpointer::Options> {
    Ok(checkpointer::Options {
        log_dir: options.log_dir.clone(),
        store: SnapshotStore::create(&options.snapshot_dir)?,
        places: options.places,
        every_records: u64::MAX,
        every_bytes: u64::MAX,
        keep: 1,
        archive_command: String::new(),
        trades: Trades::Keep,
    })
}

/// Runs a step with a checkpointer of these options.
pub(crate) fn with_checkpointer<T>(
    engine: &Engine,
    options: checkpointer::Options,
    work: impl FnOnce(&Checkpointer) -> T,
) -> anyhow::Result<T> {
    let watch = checkpointer::Watch {
        needed_after: Box::new(|| u64::MAX / 2),
        mismatch: Box::new(|why| panic!("{why}")),
        differences: Box::new(Vec::new),
    };
    let (checkpointer, ended) =
        Checkpointer::start(options, engine, Arc::new(SystemClock::new()), watch)?;
    let done = work(&checkpointer);
    checkpointer.stop();
    tokio::runtime::Builder::new_current_thread().build()?.block_on(ended)?;
    Ok(done)
}

/// Runs a step while snapshots are taken one after the other; returns their number.
pub(crate) fn beside<T>(
    engine: &Engine,
    options: &engine::Options,
    work: impl FnOnce() -> T,
) -> anyhow::Result<(T, u64)> {
    let options = on_request(options)?;
    let store = options.store.clone();
    let done = AtomicBool::new(false);
    with_checkpointer(engine, options, |checkpointer| {
        thread::scope(|scope| {
            let counter = scope.spawn(|| {
                let (mut last, mut count) = (None, 0);
                while !done.load(Ordering::Relaxed) {
                    checkpointer.requests().ask();
                    thread::sleep(ASK_PAUSE);
                    let newest =
                        store.choose().ok().and_then(|choice| Some(choice.newest?.header.sequence));
                    count += u64::from(newest != last);
                    last = newest;
                }
                count
            });
            let result = work();
            done.store(true, Ordering::Relaxed);
            (result, counter.join().expect("a panic is the bench's"))
        })
    })
}
