//! The engine's threads end the process when they panic or when the log's disk fails: a ring
//! without its reader would hang for ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use domain::chain::chain;
use parking_lot::Mutex;

use crate::notice::{Notice, Notify};

/// The longest time that a dying process has for its last words. It is aborted afterwards.
pub const LAST_WORDS: Duration = Duration::from_secs(2);

/// Starts a thread. Its panic ends the process, also in debug builds.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn guarded(
    name: &str,
    log: &wal::Durable,
    notify: Notify,
    body: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let log = log.clone();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The state that panicked is never used again.
        if catch_unwind(AssertUnwindSafe(body)).is_err() {
            end_soon();
            let _ending = ENDING.lock();
            // A thread may panic because another thread's sync has failed. This one must not end
            // the process before the alert about the disk is raised.
            if log.poisoned() {
                notify(Notice::LogFailed("the log failed under the engine"));
            }
            die("a thread of the engine panicked", notify);
        }
    })
}

/// Ends the process if the log has failed: a log with a failed disk is never written to again.
pub(crate) fn stop_on_failure(what: &str, result: Result<(), wal::Error>, notify: Notify) {
    if let Err(failure) = result {
        end_soon();
        let _ending = ENDING.lock();
        let why = format!("{what}: {}", chain(&failure));
        notify(Notice::LogFailed(&why));
        die(&why, notify);
    }
}

/// Held by the first dying thread until the process is gone. Two threads find a dead log at once,
/// and a repeated alert is dropped: the second thread would end the process before the first has
/// sent its alert.
static ENDING: Mutex<()> = Mutex::new(());

/// Ends the process: by the function that takes the notices, or else by an abort.
fn die(why: &str, notify: Notify) -> ! {
    notify(Notice::Dead(why));
    std::process::abort()
}

/// Aborts the process after [`LAST_WORDS`], even if its last words are not written: a reader of
/// stderr that stands still must not keep alive a process that must not answer.
pub fn end_soon() {
    let end = || {
        thread::sleep(LAST_WORDS);
        std::process::abort();
    };
    // Without this thread the last words can still end the process.
    thread::Builder::new().name("end".to_owned()).spawn(end).ok();
}
