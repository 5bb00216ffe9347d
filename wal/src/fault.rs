//! Faults of the disk, for tests: at a named step the disk refuses, writes too little, is slow, or is where the process dies.
//!
//! A fault is written `step:what`. `directory/step:what` strikes in the directory of that name only, `step:what@3` at the
//! third visit only. Several are separated by commas.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// What can be struck. `write` and `sync_file` are those of files that are not the log's.
const STEPS: &[&str] = &[
    "create",
    "fill",
    "sync",
    "prefault",
    "settle",
    "rename",
    "remove",
    "sync_directory",
    "write",
    "sync_file",
];

#[derive(Clone, Copy, Debug)]
enum What {
    /// The system refuses with this number.
    Refused(Errno),
    /// The system writes a part, and then nothing more.
    Short,
    /// It is done, so much later.
    Slow(Duration),
    /// The process is killed before it is done.
    Killed,
}

impl What {
    fn parse(text: &str) -> Option<What> {
        match text {
            "enospc" => Some(What::Refused(Errno::NOSPC)),
            "edquot" => Some(What::Refused(Errno::DQUOT)),
            "eio" => Some(What::Refused(Errno::IO)),
            "short" => Some(What::Short),
            "kill" => Some(What::Killed),
            _ => text.strip_prefix("slow")?.parse().ok().map(Duration::from_millis).map(What::Slow),
        }
    }
}

#[derive(Debug)]
struct Fault {
    directory: Option<String>,
    step: String,
    what: What,
    /// The visit that it strikes; all where there is none.
    visit: Option<u32>,
    visits: AtomicU32,
}

impl Fault {
    fn parse(text: &str) -> Option<Fault> {
        let (at, what) = text.split_once(':')?;
        let (directory, step) = match at.split_once('/') {
            Some((directory, step)) => (Some(directory.to_owned()), step),
            None => (None, at),
        };
        let (what, visit) = match what.split_once('@') {
            Some((what, visit)) => (what, Some(visit.parse().ok()?)),
            None => (what, None),
        };
        let what = What::parse(what)?;
        let (step, visits) = (step.to_owned(), AtomicU32::new(0));
        STEPS.contains(&&*step).then_some(Fault { directory, step, what, visit, visits })
    }

    fn strikes(&self, directory: &Path, step: &str) -> bool {
        let here = |name: &String| directory.file_name().is_some_and(|here| here == &**name);
        self.step == step
            && self.directory.as_ref().is_none_or(here)
            && self
                .visit
                .is_none_or(|visit| self.visits.fetch_add(1, Ordering::Relaxed) + 1 == visit)
    }
}

#[derive(Debug)]
struct Faults {
    faults: Vec<Fault>,
    /// They strike, and visits count, only while this file is there.
    while_there: Option<PathBuf>,
    /// No sync of records may follow.
    sync_failed: AtomicBool,
}

static FAULTS: OnceLock<Faults> = OnceLock::new();

/// Arms faults, which strike only while the file `while_there` is there, if one is named.
///
/// # Errors
/// The part of `faults` that is no fault.
pub fn begin(faults: &str, while_there: Option<PathBuf>) -> Result<(), String> {
    let parse = |text: &str| Fault::parse(text).ok_or_else(|| format!("{text:?} is no fault"));
    let faults = faults.split(',').map(parse).collect::<Result<_, _>>()?;
    let sync_failed = AtomicBool::new(false);
    FAULTS.set(Faults { faults, while_there, sync_failed }).expect("once");
    Ok(())
}

/// A step in a directory, before it is done.
///
/// # Errors
/// What the system is to have said; nothing is to be done then.
pub fn meet(directory: &Path, step: &'static str) -> io::Result<()> {
    debug_assert!(STEPS.contains(&step), "{step} is not in the list of steps");
    let Some(faults) = FAULTS.get() else { return Ok(()) };
    if step == "sync" && faults.sync_failed.load(Ordering::Relaxed) {
        // Linux would say that all is well, of pages it has thrown away.
        say("records are synced again after a failed sync");
        std::process::abort();
    }
    if faults.while_there.as_ref().is_some_and(|path| !path.exists()) {
        return Ok(());
    }
    for fault in faults.faults.iter().filter(|fault| fault.strikes(directory, step)) {
        let error = match fault.what {
            What::Slow(longer) => {
                thread::sleep(longer);
                continue;
            }
            What::Killed => {
                // Nothing after this line may run, in no thread: SIGKILL cannot be caught.
                kill_process(getpid(), Signal::KILL).ok();
                continue;
            }
            What::Refused(errno) => errno.into(),
            What::Short => io::ErrorKind::WriteZero.into(),
        };
        say(&format!("{step} in {directory:?}: {error}"));
        faults.sync_failed.fetch_or(step == "sync", Ordering::Relaxed);
        return Err(error);
    }
    Ok(())
}

/// With nobody at the other end, nobody wants to know.
fn say(what: &str) {
    writeln!(io::stderr(), "fault: {what}").ok();
}
