//! A child of `serve --dev`: it is started again when it ends, and never outlives this process.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::warn;

/// Between two looks whether the child runs.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks whether a child has ended that should.
const END_LOOK: Duration = Duration::from_millis(20);
/// The most such looks, 3 s. Behind them it is killed.
const END_LOOKS_MAX: u32 = 150;

/// A child that ends when its standard input ends. Dropping this ends it.
pub(super) struct KeptChild {
    ending: Arc<Ending>,
    watch: Option<JoinHandle<()>>,
}

/// Whether the watch over the child ends.
#[derive(Default)]
struct Ending {
    is_over: Mutex<bool>,
    changed: Condvar,
}

impl KeptChild {
    /// Keeps a running child. `name`: for the log. `again`: starts its successor.
    ///
    /// # Errors
    /// The system allows no further thread.
    pub(super) fn keep(
        name: &'static str,
        child: Child,
        again: impl Fn() -> anyhow::Result<Child> + Send + 'static,
    ) -> io::Result<KeptChild> {
        let ending = Arc::<Ending>::default();
        let watched = Arc::clone(&ending);
        let watch = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || watch(name, child, &again, &watched))?;
        Ok(KeptChild { ending, watch: Some(watch) })
    }
}

impl Drop for KeptChild {
    fn drop(&mut self) {
        *self.ending.is_over.lock() = true;
        self.ending.changed.notify_all();
        if let Some(watch) = self.watch.take() {
            // A panic was reported by its thread.
            drop(watch.join());
        }
    }
}

/// Starts a command and reads its lines until `ready` finds something in one. Returns the child
/// with it. Later lines are read and dropped: a full pipe would stop the child.
///
/// # Errors
/// The command does not start, or it ends before.
pub(super) fn started<T>(
    command: &mut Command,
    ready: impl Fn(&str) -> Option<T>,
) -> anyhow::Result<(Child, T)> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // Ctrl-C on a terminal is for this process, which ends the child behind its own stop.
    let mut child = command.process_group(0).spawn()?;
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut said = String::new();
    loop {
        let begin = said.len();
        let count = out.read_line(&mut said)?;
        if let Some(found) = ready(said[begin..].trim()) {
            thread::spawn(move || io::copy(&mut out, &mut io::sink()));
            return Ok((child, found));
        }
        if count == 0 {
            child.kill()?;
            child.wait()?;
            anyhow::bail!("it ended before it was ready; it said {said:?}");
        }
    }
}

/// Starts the child again each time it ends, until the end of this process.
fn watch(
    name: &str,
    mut child: Child,
    again: &impl Fn() -> anyhow::Result<Child>,
    ending: &Ending,
) {
    let mut is_over = ending.is_over.lock();
    while !*is_over {
        ending.changed.wait_for(&mut is_over, LOOK);
        if *is_over || !matches!(child.try_wait(), Ok(Some(_))) {
            continue;
        }
        warn!("{name} has ended, and is started again");
        match again() {
            Ok(next) => child = next,
            Err(error) => warn!(error = format!("{error:#}"), "it does not start; tried again"),
        }
    }
    end(&mut child);
}

/// Ends a child by its standard input, or else by force.
fn end(child: &mut Child) {
    drop(child.stdin.take());
    for _ in 0..END_LOOKS_MAX {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        thread::sleep(END_LOOK);
    }
    // It may have ended meanwhile.
    drop(child.kill());
    drop(child.wait());
}
