//! Keys and certificates that are changed while the service runs: their files are looked at again and again.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{error, info};

use crate::clock::Clock;
use crate::telemetry::chain;

/// Something that is read from files, and read again.
pub trait Rotating: Send + Sync + 'static {
    /// What it is, for the log.
    fn name(&self) -> String;

    /// Reads the files; blocks. What they hold is in force from then on; returns whether that is anything new.
    ///
    /// # Errors
    /// They hold nothing that can be used; what was in force before still is.
    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

/// Has every part reloaded each `every`, and at once where the process is told to; never ends.
pub async fn keep(
    parts: Vec<Arc<dyn Rotating>>,
    every: Duration,
    clock: Arc<dyn Clock>,
    mut hangups: Signal,
) {
    // What was last wrong with each part: it is said once, not every few seconds.
    let mut wrong: Vec<Option<String>> = vec![None; parts.len()];
    loop {
        let told = tokio::select! {
            () = clock.sleep(every) => false,
            hangup = hangups.recv() => hangup.is_some(),
        };
        for (part, wrong) in parts.iter().zip(&mut wrong) {
            let (name, reading) = (part.name(), Arc::clone(part));
            // A file may lie on a disk that does not answer.
            let reloaded = tokio::task::spawn_blocking(move || reading.reload()).await;
            match reloaded.unwrap_or_else(|panicked| Err(panicked.into())) {
                Ok(changed) => {
                    if changed || told || wrong.is_some() {
                        info!(name, changed, "read again");
                    }
                    *wrong = None;
                }
                Err(why) => {
                    let why = chain(why.as_ref());
                    if told || wrong.as_ref() != Some(&why) {
                        error!(name, why, "not read again: what was in force before still is");
                    }
                    *wrong = Some(why);
                }
            }
        }
    }
}
