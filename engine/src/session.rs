//! The session of a venue: numbered commands go in, replies come out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use crate::command;
use crate::ledger::Answer;
use crate::line::{Line, Told};
use crate::ring::{Overloaded, Pending, Publisher, Work};
use crate::shared::Shared;
use crate::venue::{AckError, BalanceRow, Command, Holds, OpenError, Opened, PushError, Reply};
use crate::wait::wait;

/// An open session of a venue. Dropping it ends the session; what it has pushed is still decided.
pub struct VenueSession {
    opened: Opened,
    line: Arc<Line>,
    publisher: Publisher,
    shared: Arc<Shared>,
    now: fn() -> u64,
    /// See [`VenueSession::at`].
    time_ns: Option<u64>,
    /// Commands pushed without an end taken by [`VenueSession::decided`].
    pushed: usize,
    /// Answers taken that were not durable yet: number and record, both rising.
    undurable: VecDeque<(u64, wal::Sequence)>,
    durable: u64,
    /// The last number answered.
    answered: u64,
    ended: bool,
}

impl VenueSession {
    /// The session of a line that is added already.
    pub(crate) fn new(
        opened: Opened,
        line: Arc<Line>,
        publisher: Publisher,
        shared: Arc<Shared>,
        now: fn() -> u64,
    ) -> VenueSession {
        let Opened { last, durable, .. } = opened;
        let (time_ns, undurable) = (None, VecDeque::new());
        VenueSession {
            opened,
            line,
            publisher,
            shared,
            now,
            time_ns,
            pushed: 0,
            undurable,
            durable,
            answered: last,
            ended: false,
        }
    }

    /// The state of the venue right after the Open.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Sets the time of the commands pushed from now on, ns since the Unix epoch. Without it each
    /// push reads the clock of [`Options::now`](crate::Options::now).
    pub fn at(&mut self, time_ns: u64) {
        self.time_ns = Some(time_ns);
    }

    /// Sends one command. It never waits. Each command has one reply, except those that are
    /// dropped after a [`Reply::Back`] or a [`Reply::Close`].
    ///
    /// # Errors
    /// [`PushError`]: nothing was sent.
    pub fn push(&mut self, number: u64, command: &Command) -> Result<(), PushError> {
        if self.fenced() || self.ended {
            return Err(PushError::Fenced);
        }
        if self.shared.stop.load(Ordering::Acquire) {
            return Err(PushError::Stopped);
        }
        let streams = &self.shared.streams;
        if self.pushed >= streams.share() {
            return Err(PushError::Full);
        }
        let cell = streams.take().ok_or(PushError::Full)?;
        streams.cell(cell).lock().fill(self.line.venue, number, command);
        let time_ns = self.time_ns.unwrap_or_else(self.now);
        let Line { venue, epoch, .. } = *self.line;
        match self.publisher.publish_numbered(venue, epoch, cell, time_ns) {
            Ok(()) => {
                self.pushed += 1;
                self.publisher.wake();
                Ok(())
            }
            Err(Overloaded) => {
                streams.give_back(cell);
                Err(PushError::Full)
            }
        }
    }

    /// The next reply, in the order of the pushes, before any sync. `None`: none is there yet.
    pub fn decided(&mut self) -> Option<Reply> {
        self.pass_durable();
        loop {
            let told = self.line.replies.pop()?;
            self.pushed -= 1;
            let Told::Reply(reply) = told else { continue };
            match reply {
                Reply::Answer { number, record, .. } if number > self.answered => {
                    self.answered = number;
                    self.undurable.push_back((number, record));
                }
                Reply::Answer { .. } | Reply::Back { .. } => {}
                Reply::Close { .. } => self.ended = true,
            }
            return Some(reply);
        }
    }

    /// The number up to which all answers are durable, as far as [`VenueSession::decided`] has
    /// returned them.
    pub fn durable(&mut self) -> u64 {
        self.pass_durable();
        self.durable
    }

    fn pass_durable(&mut self) {
        if self.undurable.is_empty() {
            return;
        }
        let durable = self.shared.log.durable();
        while let Some(&(number, record)) = self.undurable.front()
            && record <= durable
        {
            self.durable = number;
            self.undurable.pop_front();
        }
    }

    /// Acknowledges all answers up to a number: they are forgotten. It is recorded with the next
    /// command. An earlier number changes nothing.
    ///
    /// # Errors
    /// [`AckError`]: nothing is acknowledged.
    pub fn acknowledge(&mut self, number: u64) -> Result<(), AckError> {
        if number > self.answered {
            return Err(AckError::NotAnswered(number));
        }
        if self.fenced() {
            return Err(AckError::Fenced);
        }
        self.line.acknowledged.fetch_max(number, Ordering::Relaxed);
        Ok(())
    }

    /// Holds with numbers above `after`, at most 256. It waits for the core thread and for a sync:
    /// not for a task of an async runtime.
    ///
    /// # Errors
    /// [`OpenError::Fenced`], [`OpenError::Stopped`], [`OpenError::NoRoom`].
    pub fn holds(&mut self, after: u64) -> Result<Holds, OpenError> {
        let venue = self.line.venue;
        self.ask(|ticket| Work::Holds { ticket, venue, after })?;
        // A newer session may have read into its own line meanwhile.
        if self.fenced() {
            return Err(OpenError::Fenced { epoch: self.opened.epoch });
        }
        Ok(self.line.holds.lock().clone())
    }

    /// One balance. It waits as [`VenueSession::holds`].
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

    fn ask(&mut self, work: impl Fn(u32) -> Work) -> Result<Answer, OpenError> {
        let pending: Result<Pending, Overloaded> = self.publisher.publish_asked((self.now)(), work);
        self.publisher.wake();
        wait(pending, &self.shared)
    }

    /// Wakes `waker` once when a reply comes without a sync (Back, Close, a repeat), when
    /// [`VenueSession::durable`] may have risen, or when the session is fenced. Register, look
    /// again, and only then wait.
    pub fn wake(&self, waker: &Waker) {
        self.line.register(waker);
    }

    /// Whether a newer session is open, or the venue is closed.
    pub fn fenced(&self) -> bool {
        self.line.fenced()
    }
}

impl Drop for VenueSession {
    fn drop(&mut self) {
        self.shared.streams.remove(&self.line);
    }
}
