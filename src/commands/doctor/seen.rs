//! The observations that the checks judge.

use super::channels::ChannelsSeen;
use super::machine::Machine;
use super::pair::Pair;
use crate::config::Config;
use crate::postgres::settings::Settings;

/// All observations; `None` if one was not possible.
pub(super) struct Seen {
    pub(super) config: Config,
    /// PostgreSQL's settings, or why it was not checked.
    pub(super) postgres: Result<Settings, Unasked>,
    /// The records of log and database about each other; `None` if PostgreSQL was not checked.
    pub(super) pair: Option<Pair>,
    /// Transfers per second in about the last keep time of outcomes; `None` if it is not known.
    pub(super) rate: Option<u64>,
    pub(super) machine: Machine,
    /// The payment channels; `None`: recharges are off.
    pub(super) channels: Option<ChannelsSeen>,
}

/// Why PostgreSQL was not checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unasked {
    /// It is embedded and runs only while the service runs.
    NotRunning,
    /// It cannot be reached, or does not answer.
    Failed(String),
}
