//! Events about transfers, sent to their users.

use serde::Deserialize;

use super::Error;
use super::bound::{Bound, FIVE_MINUTES_MS, bound};
use super::hours::Hours;

/// The section `[events]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Whether events are made and sent.
    pub enabled: bool,
    /// A stream without an event for this long gets a heartbeat, ms.
    pub heartbeat_ms: u64,
    /// The most open streams.
    pub streams_max: usize,
    /// The most open streams of one user.
    pub streams_per_user_max: usize,
    /// The most events that wait for one stream; at more the stream is ended.
    pub queue_max: usize,
    /// How long events and the records of their delivery are kept, hours.
    pub keep_hours: Hours,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            enabled: true,
            heartbeat_ms: 15_000,
            streams_max: 512,
            streams_per_user_max: 4,
            queue_max: 256,
            keep_hours: Hours::from(24.0),
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("events.heartbeat_ms", |c| Some(c.events.heartbeat_ms), 10, FIVE_MINUTES_MS, "ms"),
    bound("events.streams_max", |c| Some(c.events.streams_max as u64), 1, 65_536, "streams"),
    bound("events.streams_per_user_max", |c| Some(c.events.streams_per_user_max as u64), 1, 1_024, "streams"),
    bound("events.queue_max", |c| Some(c.events.queue_max as u64), 1, 65_536, "events"),
];

impl Events {
    /// Checks the keys that are not whole numbers.
    pub(super) fn validate(&self) -> Result<(), Error> {
        self.keep_hours.check("events.keep_hours")
    }
}
