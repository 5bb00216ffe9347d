//! Keys and certificates that change while the service runs: their files are read again and again.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tracing::{error, info};

use crate::clock::Clock;
use crate::telemetry::chain;

/// A value that is read from files, and read again.
pub trait Rotating: Send + Sync + 'static {
    /// Its name, for the log.
    fn name(&self) -> String;

    /// Reads the files (blocks) and puts their content in force. Returns whether it has changed.
    ///
    /// # Errors
    /// The files hold nothing usable. The earlier content stays in force.
    fn reload(&self) -> Result<bool, Box<dyn Error + Send + Sync>>;
}

/// Reloads every part each `every`, and at once on SIGHUP. Never ends.
pub async fn keep(
    parts: Vec<Arc<dyn Rotating>>,
    every: Duration,
    clock: Arc<dyn Clock>,
    mut hangups: Signal,
) {
    // The last error of each part: logged once, not every few seconds.
    let mut wrong: Vec<Option<String>> = vec![None; parts.len()];
    loop {
        debug_assert_eq!(parts.len(), wrong.len(), "one error for each part");
        let requested = tokio::select! {
            () = clock.sleep(every) => false,
            hangup = hangups.recv() => hangup.is_some(),
        };
        for (part, wrong) in parts.iter().zip(&mut wrong) {
            let (name, reading) = (part.name(), Arc::clone(part));
            // A file may lie on a disk that does not answer.
            let reloaded = tokio::task::spawn_blocking(move || reading.reload()).await;
            match reloaded.unwrap_or_else(|panicked| Err(panicked.into())) {
                Ok(changed) => {
                    if changed || requested || wrong.is_some() {
                        info!(name, changed, "read again");
                    }
                    *wrong = None;
                }
                Err(why) => {
                    let why = chain(why.as_ref());
                    if requested || wrong.as_ref() != Some(&why) {
                        error!(name, why, "not read again; the earlier content stays in force");
                    }
                    *wrong = Some(why);
                }
            }
        }
    }
}
