//! The session of a book in the process of ubscore: the same frames, without a socket.
//!
//! A thread moves them. An answer leaves it only once it is durable: the book prints all that it
//! hears. A book that matches on [`VenueSession::decided`] at once must not print before that.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use anyhow::Context;
use bytes::BytesMut;
use crossbeam::channel::{Receiver, Sender, unbounded};
use engine::VenueSession;
use engine::venue::{Command, PushError, Reason, Reply};
use stream::block::{Answer, Back, BackReason, Balance, HoldRow, HoldsPart, NO_LEG, Opened};
use stream::frame::cutter;
use stream::message::{HOLDS_MAX, Message};
use tokio_util::codec::Decoder;
use ubscore::config::{Config, Overrides};
use ubscore::service::Service;

use crate::door::Lost;

/// Starts ubscore in this process, and adds the venue.
pub(crate) fn start(venue: u32) -> anyhow::Result<Service> {
    let config = Config::load(None, Overrides::default(), true)?;
    let service = Service::start(config, true)?;
    service.add_venue(venue, "book", false, "the book starts")?;
    Ok(service)
}

/// The sending end of an embedded session. Its end ends the session.
pub(crate) struct Desk {
    frames: Sender<BytesMut>,
    clerk: Thread,
}

/// Wakes the thread that moves the frames.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Desk {
    pub(crate) fn open(
        session: VenueSession,
    ) -> anyhow::Result<(Desk, Receiver<BytesMut>, Opened)> {
        let state = session.opened();
        let opened = Opened {
            epoch: state.epoch.into(),
            last: state.last.into(),
            acknowledged: state.acknowledged.into(),
            durable: state.durable.into(),
            log: state.log_identity.0.into(),
            window: state.window.into(),
        };
        let ((frames, input), (output, heard)) = (unbounded(), unbounded());
        let thread = thread::Builder::new().name("desk".to_owned());
        let thread = thread.spawn(move || work(session, &input, &output)).context("a thread")?;
        Ok((Desk { frames, clerk: thread.thread().clone() }, heard, opened))
    }

    pub(crate) fn send(&mut self, frames: &[u8]) -> anyhow::Result<()> {
        let (mut buffer, mut cutter) = (BytesMut::from(frames), cutter());
        while let Some(frame) = cutter.decode(&mut buffer)? {
            self.frames.send(frame).map_err(|_| Lost("the session has ended"))?;
        }
        self.clerk.unpark();
        Ok(())
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // The thread finds its input without a sender.
        self.frames = unbounded().0;
        self.clerk.unpark();
    }
}

/// Moves frames until the session or the book ends.
fn work(mut session: VenueSession, input: &Receiver<BytesMut>, output: &Sender<BytesMut>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut replies, mut stalled) = (VecDeque::new(), None);
    loop {
        // Before the look, so that no reply between the look and the wait is missed.
        session.wake(&waker);
        while let Some(reply) = session.decided() {
            replies.push_back(reply);
        }
        let durable = session.durable();
        while let Some(reply) = replies.front().copied() {
            match reply {
                Reply::Answer { number, .. } if number > durable => break,
                Reply::Close { .. } => return,
                reply => say_reply(output, reply),
            }
            replies.pop_front();
        }
        if session.fenced() {
            return;
        }
        if stalled.is_none() {
            stalled = match input.try_recv() {
                Ok(frame) => take(&mut session, output, &frame),
                Err(error) if error.is_disconnected() => return,
                Err(_) => {
                    thread::park();
                    continue;
                }
            };
        }
        if let Some((number, command)) = stalled.take() {
            match session.push(number, &command) {
                Ok(()) => {}
                Err(PushError::Full) => {
                    stalled = Some((number, command));
                    thread::yield_now();
                }
                Err(PushError::Fenced | PushError::Stopped) => return,
            }
        }
    }
}

/// Takes one message. Returns a command.
fn take(
    session: &mut VenueSession,
    output: &Sender<BytesMut>,
    frame: &[u8],
) -> Option<(u64, Command)> {
    let message = Message::read(frame).ok()?;
    match message {
        Message::Acknowledge(up_to) => session.acknowledge(up_to.number.get()).ok()?,
        Message::ReadHolds(read) => {
            let holds = session.holds(read.after.get()).ok()?;
            let row = |row: &engine::venue::HoldRow| HoldRow {
                number: row.number.into(),
                reference: row.reference.into(),
                user: row.user.into(),
                remaining: row.remaining.into(),
                record: row.record.into(),
                asset: row.asset.into(),
            };
            let rows: Vec<HoldRow> = holds.holds.iter().map(row).collect();
            let parts = rows.len().div_ceil(HOLDS_MAX).max(1);
            for part in 0..parts {
                let end = rows.len().min((part + 1) * HOLDS_MAX);
                let follows = u8::from(part + 1 < parts);
                let head = HoldsPart { position: holds.position.into(), follows };
                say(output, &Message::Holds(&head, &rows[part * HOLDS_MAX..end]));
            }
        }
        Message::ReadBalance(read) => {
            let row = session.balance(read.user.get(), read.asset.get()).ok()?;
            say(
                output,
                &Message::Balance(&Balance {
                    available: row.available.unwrap_or(0).into(),
                    held: row.held.into(),
                    position: row.position.into(),
                }),
            );
        }
        _ => {}
    }
    ubscore::stream::command(&message)
}

fn say_reply(output: &Sender<BytesMut>, reply: Reply) {
    match reply {
        Reply::Answer { number, code, leg, record } => {
            let (code, leg) = code.map_or((0, NO_LEG), |code| (code as u16, leg));
            let (number, record, code) = (number.into(), record.into(), code.into());
            say(output, &Message::Answer(&Answer { number, record, code, leg }));
        }
        Reply::Back { number, reason, after_ms } => {
            let reason = match reason {
                Reason::Gap => BackReason::Gap,
                Reason::Window => BackReason::Window,
                Reason::Halted => BackReason::Halted,
                Reason::NoRoom => BackReason::NoRoom,
            } as u8;
            let (number, after_ms) = (number.into(), after_ms.into());
            say(output, &Message::Back(&Back { number, after_ms, reason }));
        }
        Reply::Close { .. } => unreachable!("it ends the session"),
    }
}

fn say(output: &Sender<BytesMut>, message: &Message<'_>) {
    let mut bytes = BytesMut::new();
    message.append_to(&mut bytes);
    // The cutter drops the length, and the book may have ended.
    drop(output.send(bytes.split_off(4)));
}
