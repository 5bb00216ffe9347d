//! The session of a venue: numbered commands go in, replies come out.

use std::task::Waker;

use crate::venue::{AckError, BalanceRow, Command, Holds, OpenError, Opened, PushError, Reply};

/// An open session of a venue. Dropping it ends the session; what it has pushed is still decided.
pub struct VenueSession {
    opened: Opened,
    time_ns: u64,
}

impl VenueSession {
    /// The state of the venue right after the Open.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Sets the time of the commands pushed from now on, ns since the Unix epoch: the engine has no
    /// clock.
    pub fn at(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
    }

    /// Sends one command. It never waits. Each command pushed has one reply, except the ones after
    /// a [`Reply::Back`] or a [`Reply::Close`].
    ///
    /// # Errors
    /// [`PushError`]: nothing was sent.
    pub fn push(&mut self, number: u64, command: &Command) -> Result<(), PushError> {
        let _ = (number, command);
        Err(PushError::Stopped)
    }

    /// The next reply, in the order of the pushes, before any sync. `None`: none is there yet.
    pub fn decided(&mut self) -> Option<Reply> {
        None
    }

    /// The number up to which all answers are durable, as far as [`VenueSession::decided`] has
    /// returned them.
    pub fn durable(&mut self) -> u64 {
        self.opened.durable
    }

    /// Acknowledges all answers up to a number: they are forgotten. It is recorded with the next
    /// command.
    ///
    /// # Errors
    /// [`AckError`]: nothing is acknowledged.
    pub fn acknowledge(&mut self, number: u64) -> Result<(), AckError> {
        Err(AckError::NotAnswered(number))
    }

    /// Holds with numbers above `after`, at most 256. It waits for the core thread and for a sync.
    ///
    /// # Errors
    /// [`OpenError::Stopped`], [`OpenError::NoRoom`].
    pub fn holds(&mut self, after: u64) -> Result<Holds, OpenError> {
        let _ = after;
        Err(OpenError::Stopped)
    }

    /// One balance. It waits for the core thread and for a sync.
    ///
    /// # Errors
    /// [`OpenError::Stopped`], [`OpenError::NoRoom`].
    pub fn balance(&mut self, user: u64, asset: u32) -> Result<BalanceRow, OpenError> {
        let _ = (user, asset);
        Err(OpenError::Stopped)
    }

    /// Wakes `waker` once when a reply comes without a sync (Back, Close, a repeat), when
    /// [`VenueSession::durable`] may have risen, or when the session is fenced. Register, look
    /// again, and only then wait.
    pub fn wake(&self, waker: &Waker) {
        let _ = waker;
    }

    /// Whether a newer session is open, or the venue is closed.
    pub fn fenced(&self) -> bool {
        false
    }
}
