//! The engine's reports to its process. The engine has no alerts, no webhook and no exit code.

/// The target of the engine's log lines: operators filter by it.
pub(crate) const LOG_TARGET: &str = "ubscore::engine";

/// An event that the process must act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// The log's disk has no space for the next segment, with the reason. The engine tries again.
    NoSpace(&'a str),
    /// The log's disk failed, with the reason. [`Notice::Dead`] follows from the same thread.
    LogFailed(&'a str),
    /// A thread of the engine has ended, with the reason. Nothing is answered any more: the
    /// process must end. The engine aborts it if the function returns, and in any case after
    /// [`LAST_WORDS`](crate::LAST_WORDS).
    Dead(&'a str),
}

/// Takes each [`Notice`]. It runs on the engine's own threads, so it must not block for long.
pub type Notify = fn(Notice<'_>);
