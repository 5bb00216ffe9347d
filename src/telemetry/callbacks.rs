//! The counters of the listener of payment channels.

use metrics::{Counter, Unit, describe_counter};

/// Counter: callbacks of payment channels that were answered, by `channel`, and by `outcome`:
/// success, foreign, missing, contradiction, later, busy, or the reason of a rejection.
pub const CALLBACKS_TOTAL: &str = "ubscore_callbacks_total";

/// Counts an answered callback. `channel`: a name of the configuration.
pub fn callback(channel: &str, outcome: &'static str) {
    counter(channel, outcome).increment(1);
}

/// Makes the counter visible before the first callback.
pub fn expect_callbacks(channel: &str, outcome: &'static str) {
    counter(channel, outcome).increment(0);
}

fn counter(channel: &str, outcome: &'static str) -> Counter {
    metrics::counter!(CALLBACKS_TOTAL, "channel" => channel.to_owned(), "outcome" => outcome)
}

/// Registers the help and the unit of each.
pub(super) fn describe() {
    describe_counter!(CALLBACKS_TOTAL, Unit::Count, "Callbacks of payment channels.");
}
