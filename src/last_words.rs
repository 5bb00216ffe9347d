//! The end of a process after its engine died: the alert, the last log line and the exit code.

use std::time::Duration;

use engine::notice::Notice;
use tracing::error;

use crate::alert::{self, Alert, alert};
use crate::exit::Exit;
use crate::telemetry::{chain, lines};

/// The longest wait for the webhook at the end of the process. Its lines on stderr take up to a
/// second more, so both fit into [`engine::LAST_WORDS`].
const LAST_ALERT: Duration = Duration::from_millis(500);

/// Acts on a notice of the engine. After [`Notice::Dead`] it does not return.
pub fn notice(notice: Notice<'_>) {
    match notice {
        Notice::NoSpace(why) => alert(Alert::WalSpaceLow, format_args!("{why}")),
        Notice::LogFailed(why) => alert(Alert::WalSyncFailed, format_args!("{why}")),
        Notice::Dead(why) => end(why),
    }
}

/// Writes the last line and ends the process. The engine answers nothing meanwhile: its answers
/// come from the thread that is here, or wait for it.
fn end(why: &str) -> ! {
    error!(target: "ubscore::engine", "{why}");
    last_alert();
    let last = format!("stopped at once: {why}; restart it to recover from what the disk holds");
    lines::last_words("ubscore", &last);
    std::process::exit(Exit::Damage.code().into());
}

/// Ends a process that must not use its stores any more. If the last words take too long, the
/// process is aborted.
pub fn end_at_once(why: &dyn std::error::Error, exit: Exit) -> ! {
    engine::end_soon();
    last_alert();
    lines::last_words("ubscore", &chain(why));
    std::process::exit(exit.code().into());
}

/// Waits until the webhook has the alert that explains the end, within [`engine::LAST_WORDS`].
fn last_alert() {
    alert::flush(LAST_ALERT);
}
