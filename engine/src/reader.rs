//! Reads of a venue's session, beside the session.

use std::sync::Arc;

use crate::command;
use crate::ledger::Answer;
use crate::line::Line;
use crate::ring::{Overloaded, Pending, Publisher, Work};
use crate::shared::Shared;
use crate::venue::{BalanceRow, Holds, OpenError};
use crate::wait::wait;

/// Reads for an open session on another thread, while the session goes on with its commands and
/// replies. A read includes each command that was published before it. One read of holds at a time.
pub struct VenueReader {
    line: Arc<Line>,
    publisher: Publisher,
    shared: Arc<Shared>,
    now: fn() -> u64,
}

impl VenueReader {
    pub(crate) fn new(
        line: Arc<Line>,
        publisher: Publisher,
        shared: Arc<Shared>,
        now: fn() -> u64,
    ) -> VenueReader {
        VenueReader { line, publisher, shared, now }
    }

    /// Holds with numbers above `after`, at most 256. It waits for the core thread and for a sync:
    /// not for a task of an async runtime.
    ///
    /// # Errors
    /// [`OpenError::Fenced`], [`OpenError::Stopped`], [`OpenError::NoRoom`].
    pub fn holds(&mut self, after: u64) -> Result<Holds, OpenError> {
        let Line { venue, epoch, .. } = *self.line;
        if self.line.replies.fenced() {
            return Err(OpenError::Fenced { epoch });
        }
        self.ask(|ticket| Work::Holds { ticket, venue, epoch, after })?;
        // A newer session may have come meanwhile: nothing was read then.
        if self.line.replies.fenced() {
            return Err(OpenError::Fenced { epoch });
        }
        Ok(self.line.holds.lock().clone())
    }

    /// One balance. It waits as [`VenueReader::holds`].
    ///
    /// # Errors
    /// [`OpenError::Stopped`], [`OpenError::NoRoom`].
    pub fn balance(&mut self, user: u64, asset: u32) -> Result<BalanceRow, OpenError> {
        let command = command::Command::ReadBalance { user, asset };
        match self.ask(|ticket| Work::Asked { ticket, command })? {
            Answer::Balance { available, held, sequence } => {
                Ok(BalanceRow { available, held, position: sequence })
            }
            other => unreachable!("a balance is answered {other:?}"),
        }
    }

    pub(crate) fn ask(&mut self, work: impl Fn(u32) -> Work) -> Result<Answer, OpenError> {
        let pending: Result<Pending, Overloaded> = self.publisher.publish_asked((self.now)(), work);
        self.publisher.wake();
        wait(pending, &self.shared)
    }
}
