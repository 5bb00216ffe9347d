//! Disk faults for tests: at a named step the disk refuses, writes too little, is slow, or the
//! process dies.
//!
//! A fault is written `step:effect`. `directory/step:effect` strikes only in the directory of that
//! name, `step:effect@3` only at the third visit. Several are separated by commas.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, kill_process};

/// The steps that can be struck. `write` and `sync_file` are those of files outside the log.
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
enum Effect {
    /// The system refuses with this error number.
    Refused(Errno),
    /// The system writes a part, and then nothing more.
    Short,
    /// The step is done after this delay.
    Slow(Duration),
    /// The process is killed before the step.
    Killed,
}

impl Effect {
    fn parse(text: &str) -> Option<Effect> {
        match text {
            "enospc" => Some(Effect::Refused(Errno::NOSPC)),
            "edquot" => Some(Effect::Refused(Errno::DQUOT)),
            "eio" => Some(Effect::Refused(Errno::IO)),
            "short" => Some(Effect::Short),
            "kill" => Some(Effect::Killed),
            _ => {
                text.strip_prefix("slow")?.parse().ok().map(Duration::from_millis).map(Effect::Slow)
            }
        }
    }
}

#[derive(Debug)]
struct Fault {
    directory: Option<String>,
    step: String,
    effect: Effect,
    /// The visit that it strikes; `None`: all.
    visit: Option<u32>,
    visits: AtomicU32,
}

impl Fault {
    fn parse(text: &str) -> Option<Fault> {
        let (at, effect) = text.split_once(':')?;
        let (directory, step) = match at.split_once('/') {
            Some((directory, step)) => (Some(directory.to_owned()), step),
            None => (None, at),
        };
        let (effect, visit) = match effect.split_once('@') {
            Some((effect, visit)) => (effect, Some(visit.parse().ok()?)),
            None => (effect, None),
        };
        let effect = Effect::parse(effect)?;
        let (step, visits) = (step.to_owned(), AtomicU32::new(0));
        STEPS.contains(&&*step).then_some(Fault { directory, step, effect, visit, visits })
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
    /// Faults strike, and visits count, only while this file exists.
    while_there: Option<PathBuf>,
    /// A later sync of records is then a bug.
    sync_failed: AtomicBool,
}

static FAULTS: OnceLock<Faults> = OnceLock::new();

/// The part of a list of faults that is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a fault")]
pub struct Unknown(String);

/// Arms faults, which strike only while the file `while_there` exists, if one is named.
///
/// # Errors
/// [`Unknown`] with the part of `faults` that is invalid.
pub fn begin(faults: &str, while_there: Option<PathBuf>) -> Result<(), Unknown> {
    let parse = |text: &str| Fault::parse(text).ok_or_else(|| Unknown(text.to_owned()));
    let faults = faults.split(',').map(parse).collect::<Result<_, _>>()?;
    let sync_failed = AtomicBool::new(false);
    FAULTS.set(Faults { faults, while_there, sync_failed }).expect("once");
    Ok(())
}

/// Marks a step in a directory, before it is done.
///
/// # Errors
/// The injected system error; the caller must then skip the step.
pub fn meet(directory: &Path, step: &'static str) -> io::Result<()> {
    debug_assert!(STEPS.contains(&step), "{step} is not in the list of steps");
    let Some(faults) = FAULTS.get() else { return Ok(()) };
    if step == "sync" && faults.sync_failed.load(Ordering::Relaxed) {
        // Linux would report success for pages that it has thrown away.
        report("records were synced again after a failed sync");
        std::process::abort();
    }
    if faults.while_there.as_ref().is_some_and(|path| !path.exists()) {
        return Ok(());
    }
    for fault in faults.faults.iter().filter(|fault| fault.strikes(directory, step)) {
        let error = match fault.effect {
            Effect::Slow(longer) => {
                thread::sleep(longer);
                continue;
            }
            Effect::Killed => {
                // Nothing after this line may run, in no thread: SIGKILL cannot be caught.
                kill_process(getpid(), Signal::KILL).ok();
                continue;
            }
            Effect::Refused(errno) => errno.into(),
            Effect::Short => io::ErrorKind::WriteZero.into(),
        };
        report(&format!("{step} in {directory:?}: {error}"));
        faults.sync_failed.fetch_or(step == "sync", Ordering::Relaxed);
        return Err(error);
    }
    Ok(())
}

/// Writes to stderr. If its reader is gone, the line is dropped.
fn report(effect: &str) {
    writeln!(io::stderr(), "fault: {effect}").ok();
}
