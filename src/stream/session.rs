//! A session of a venue: from Open to Close.
//!
//! Commands go to UBSCore as they come, and the answers of each sync leave in one write. Neither
//! waits for the other: one task looks at both directions, and each has its own buffer.
//!
//! ```text
//!   socket --> input --> cutter --> push    (all of one read, then one look at the replies)
//!                                    | UBSCore
//!   socket <-- output <-- durable <-- decided
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::VenueSession;
use engine::venue::{
    AckError, BalanceRow, Command, Ending, Holds, OpenError, PushError, Reason, Reply,
};
use stream::block::{Answer, Back, BackReason, Balance, CloseReason, HoldRow, HoldsPart, NO_LEG};
use stream::message::{HOLDS_MAX, Malformed, Message};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::info;

use super::connection::Connection;
use super::{SessionParts, Stopped};
use crate::alert::{Alert, alert_about};
use crate::clock::Sleep;

/// After so long without a message, Alive is sent.
const ALIVE_AFTER: Duration = Duration::from_secs(1);

/// Bytes of an Answer's frame.
const ANSWER_BYTES: usize = 34;

/// Unwritten bytes beside the answers of a full window, from which on nothing is read. A venue that
/// asks for more than it reads waits for itself.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With a last message.
    Close(CloseReason),
    /// Without one: the venue has hung up.
    HungUp,
}

/// The pause before a question that found UBSCore's queue full is repeated.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// The result of a look at the input.
enum Input {
    /// More to push.
    Progress,
    /// A question; it keeps its place among the commands.
    Ask(Question),
    /// Nothing until the task is woken.
    Waiting,
}

/// A question that waits for UBSCore.
#[derive(Clone, Copy)]
enum Question {
    Holds { after: u64 },
    Balance { user: u64, asset: u32 },
}

/// The reply to a question.
enum Said {
    Holds(Holds),
    Balance(BalanceRow),
}

/// See the module.
pub(super) struct Session<S> {
    parts: Arc<SessionParts>,
    connection: Connection<S>,
    /// The venue's number.
    venue: u32,
    /// `None` while a question waits on another thread.
    engine: Option<VenueSession>,
    /// Numbers that were pushed and have no reply yet.
    asked: VecDeque<u64>,
    /// Behind a Back: the number that must come next. All others are dropped.
    wanted: Option<u64>,
    /// A command that found UBSCore's queue full. Nothing is read meanwhile.
    stalled: Option<(u64, Command)>,
    /// Answers that may not be durable yet, and Backs behind them.
    replies: VecDeque<Reply>,
    /// The highest number with an answer that was put into the output.
    answered: u64,
    /// Unwritten bytes from which on nothing is read.
    unwritten_max: usize,
    /// Set once nothing more is read.
    end: Option<End>,
    /// The last message is in the output.
    closed: bool,
    /// Resolves when the stop begins.
    stopped: Stopped,
    /// The stop has begun: the frames that were read are the last ones.
    draining: bool,
    /// Wakes the session for the next of its deadlines.
    timer: Sleep,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// A session right after its Open, which is durable.
    pub(super) fn new(
        parts: Arc<SessionParts>,
        connection: Connection<S>,
        venue: u32,
        engine: VenueSession,
        stopped: Stopped,
    ) -> Session<S> {
        let opened = engine.opened();
        let window = usize::try_from(opened.window).unwrap_or(usize::MAX);
        let answered = opened.last;
        let timer = parts.clock.sleep(ALIVE_AFTER);
        Session {
            parts,
            connection,
            venue,
            engine: Some(engine),
            asked: VecDeque::new(),
            wanted: None,
            stalled: None,
            replies: VecDeque::new(),
            answered,
            unwritten_max: window.saturating_mul(ANSWER_BYTES).saturating_add(UNWRITTEN_BYTES_MAX),
            end: None,
            closed: false,
            stopped,
            draining: false,
            timer,
        }
    }

    /// Runs to the session's end. Returns the connection if its last message can still be read.
    pub(super) async fn run(mut self) -> Option<Connection<S>> {
        while let Some(question) = poll_fn(|context| self.poll(context)).await {
            self.ask(question).await;
        }
        let (venue, end) = (self.venue, self.end);
        info!(venue, ?end, answered = self.answered, "the session of a venue has ended");
        (self.end != Some(End::HungUp)).then_some(self.connection)
    }

    /// Goes on in both directions until neither can. Ready with a question, or with `None` at the
    /// session's end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Question>> {
        // Before the first look, so that no reply between the look and the wait is missed.
        self.engine().wake(context.waker());
        loop {
            if !self.draining && self.stopped.as_mut().poll(context).is_ready() {
                self.draining = true;
            }
            self.take_replies();
            self.take_end();
            match self.connection.poll_write(context) {
                Poll::Ready(Ok(())) if self.closed => return Poll::Ready(None),
                Poll::Ready(Ok(())) | Poll::Pending => {}
                Poll::Ready(Err(_)) => return self.hung_up(),
            }
            match self.poll_input(context) {
                Input::Progress => continue,
                Input::Ask(question) => return Poll::Ready(Some(question)),
                Input::Waiting if self.take_end() => continue,
                Input::Waiting => {}
            }
            let now_ns = self.parts.clock.monotonic_ns();
            if self.is_stuck(now_ns) {
                return self.hung_up();
            }
            if self.keep_alive(now_ns) {
                continue;
            }
            if self.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.timer = self.parts.clock.sleep(self.due(now_ns));
        }
    }

    fn hung_up(&mut self) -> Poll<Option<Question>> {
        self.end = Some(End::HungUp);
        Poll::Ready(None)
    }

    fn engine(&mut self) -> &mut VenueSession {
        self.engine.as_mut().expect("no question waits")
    }

    /// Moves durable replies into the output.
    fn take_replies(&mut self) {
        if self.closed {
            return;
        }
        while let Some(reply) = self.engine().decided() {
            self.note(reply);
        }
        let durable = self.engine().durable();
        while let Some(reply) = self.replies.front().copied() {
            match reply {
                Reply::Answer { number, .. } if number > durable => break,
                Reply::Answer { number, code, leg, record } => {
                    let (code, leg) = code.map_or((0, NO_LEG), |code| (code as u16, leg));
                    let answer = Answer {
                        number: number.into(),
                        record: record.into(),
                        code: code.into(),
                        leg,
                    };
                    self.connection.send(&Message::Answer(&answer));
                    self.answered = self.answered.max(number);
                }
                Reply::Back { number, reason, after_ms } => {
                    let reason = back_reason(reason) as u8;
                    let back = Back { number: number.into(), after_ms: after_ms.into(), reason };
                    self.connection.send(&Message::Back(&back));
                }
                Reply::Close { .. } => unreachable!("it is noted, and not kept"),
            }
            self.replies.pop_front();
        }
        if self.engine().fenced() {
            self.close_at_once(CloseReason::Fenced);
        }
    }

    /// Keeps a reply, and counts the pushed numbers that have none.
    fn note(&mut self, reply: Reply) {
        match reply {
            Reply::Answer { number, .. } => {
                let asked = self.asked.pop_front();
                debug_assert_eq!(asked, Some(number), "replies come in the order of the pushes");
            }
            Reply::Back { number, .. } => {
                // Up to this number, if it was pushed meanwhile, UBSCore drops all higher ones. It
                // still answers repeats.
                self.asked.pop_front();
                let again = self.asked.iter().position(|asked| *asked == number);
                let mut left = again.unwrap_or(self.asked.len());
                self.asked.retain(|asked| {
                    let is_before = left > 0;
                    left = left.saturating_sub(1);
                    !is_before || *asked < number
                });
                self.wanted = again.is_none().then_some(number);
            }
            // The answers before it still become durable, and leave.
            Reply::Close { number, reason } => return self.end_for(number, reason),
        }
        self.replies.push_back(reply);
    }

    /// Ends the session as the reply to a command.
    fn end_for(&mut self, number: u64, reason: Ending) {
        let reason = match reason {
            Ending::Violation => {
                self.alert_violation(format_args!("number {number} came with another body"));
                CloseReason::Violation
            }
            Ending::Forgotten => CloseReason::Forgotten,
        };
        self.asked.clear();
        self.stalled = None;
        self.end = Some(End::Close(reason));
    }

    fn alert_violation(&self, what: fmt::Arguments<'_>) {
        let venue = self.venue;
        let about = format_args!("venue {venue}: {what}");
        alert_about(Alert::ProtocolViolation, &format_args!("venue {venue}"), about);
    }

    /// Ends the session once everything that was pushed is answered.
    fn close(&mut self, end: End) {
        self.end.get_or_insert(end);
    }

    /// Ends the session now: no further reply comes.
    fn close_at_once(&mut self, reason: CloseReason) {
        if !self.closed {
            self.end = Some(End::Close(reason));
            self.asked.clear();
            self.replies.clear();
            self.stalled = None;
        }
    }

    /// Puts the last message into the output once every reply stands there. Returns whether it did.
    fn take_end(&mut self) -> bool {
        let replied = self.asked.is_empty() && self.replies.is_empty() && self.stalled.is_none();
        if self.closed || !replied || self.end.is_none() {
            return false;
        }
        if let Some(End::Close(reason)) = self.end {
            self.connection.send_close(reason);
        }
        self.closed = true;
        true
    }

    /// Pushes the frames that were read, then reads once.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Input {
        if let Some((number, command)) = self.stalled.take() {
            self.push(number, command);
        }
        while self.end.is_none() && self.stalled.is_none() {
            match self.connection.frame() {
                Ok(Some(frame)) => {
                    if let Some(question) = self.take_frame(&frame) {
                        return Input::Ask(question);
                    }
                }
                Ok(None) => break,
                Err(Malformed) => self.close(End::Close(CloseReason::Malformed)),
            }
        }
        if self.draining && self.stalled.is_none() {
            self.close(End::Close(CloseReason::Stopping));
        }
        if !self.listens() {
            return Input::Waiting;
        }
        match self.connection.poll_read(context) {
            Poll::Ready(Ok(0) | Err(_)) => {
                self.close(End::HungUp);
                Input::Waiting
            }
            Poll::Ready(Ok(_)) => {
                let now_ns = self.parts.clock.now_ns();
                self.engine().at(now_ns);
                Input::Progress
            }
            Poll::Pending => Input::Waiting,
        }
    }

    /// Whether more is read.
    fn listens(&self) -> bool {
        let takes_answers = self.connection.unwritten() <= self.unwritten_max;
        self.end.is_none() && self.stalled.is_none() && takes_answers
    }

    /// Takes one frame. Returns a question that the session must wait for.
    fn take_frame(&mut self, frame: &[u8]) -> Option<Question> {
        let message = Message::read(frame);
        if let Some((number, command)) = message.ok().as_ref().and_then(super::command) {
            self.push(number, command);
            return None;
        }
        match message {
            Ok(Message::Acknowledge(acknowledge)) => self.acknowledge(acknowledge.number.get()),
            Ok(Message::ReadHolds(read)) => {
                return Some(Question::Holds { after: read.after.get() });
            }
            Ok(Message::ReadBalance(read)) => {
                return Some(Question::Balance { user: read.user.get(), asset: read.asset.get() });
            }
            Ok(Message::Alive) => {}
            // Those of ubscore, a second Open, or none of the schema.
            Ok(_) | Err(Malformed) => self.close(End::Close(CloseReason::Malformed)),
        }
        None
    }

    fn push(&mut self, number: u64, command: Command) {
        if self.wanted.is_some_and(|wanted| wanted != number) {
            return;
        }
        match self.engine().push(number, &command) {
            Ok(()) => {
                self.wanted = None;
                self.asked.push_back(number);
            }
            Err(PushError::Full) => self.stalled = Some((number, command)),
            Err(PushError::Fenced) => self.close_at_once(CloseReason::Fenced),
            Err(PushError::Stopped) => self.close_at_once(CloseReason::Stopping),
        }
    }

    fn acknowledge(&mut self, number: u64) {
        let taken = match number <= self.answered {
            true => self.engine().acknowledge(number),
            false => Err(AckError::NotAnswered(number)),
        };
        match taken {
            Ok(()) => {}
            Err(AckError::NotAnswered(number)) => {
                self.alert_violation(format_args!("{number} is acknowledged and was not answered"));
                self.close(End::Close(CloseReason::Violation));
            }
            Err(AckError::Fenced) => self.close_at_once(CloseReason::Fenced),
        }
    }

    /// Asks UBSCore on another thread: the answer waits for a sync.
    async fn ask(&mut self, question: Question) {
        let mut engine = self.engine.take().expect("one question at a time");
        let said = loop {
            let asked = move || {
                let said = match question {
                    Question::Holds { after } => engine.holds(after).map(Said::Holds),
                    Question::Balance { user, asset } => {
                        engine.balance(user, asset).map(Said::Balance)
                    }
                };
                (engine, said)
            };
            let (returned, said) = tokio::task::spawn_blocking(asked).await.expect("no panic");
            engine = returned;
            match said {
                Err(OpenError::NoRoom(_)) => self.parts.clock.sleep(ASK_PAUSE).await,
                said => break said,
            }
        };
        self.engine = Some(engine);
        match said {
            Ok(Said::Holds(holds)) => self.send_holds(&holds),
            Ok(Said::Balance(row)) => {
                let balance = Balance {
                    available: row.available.unwrap_or(0).into(),
                    held: row.held.into(),
                    position: row.position.into(),
                };
                self.connection.send(&Message::Balance(&balance));
            }
            Err(_) => self.close_at_once(CloseReason::Stopping),
        }
    }

    fn send_holds(&mut self, holds: &Holds) {
        let row = |hold: &engine::venue::HoldRow| HoldRow {
            number: hold.number.into(),
            reference: hold.reference.into(),
            user: hold.user.into(),
            remaining: hold.remaining.into(),
            record: hold.record.into(),
            asset: hold.asset.into(),
        };
        let rows: Vec<HoldRow> = holds.holds.iter().map(row).collect();
        let mut chunks = rows.chunks(HOLDS_MAX).peekable();
        loop {
            let rows = chunks.next().unwrap_or(&[]);
            let follows = u8::from(chunks.peek().is_some());
            let part = HoldsPart { position: holds.position.into(), follows };
            self.connection.send(&Message::Holds(&part, rows));
            if follows == 0 {
                return;
            }
        }
    }

    /// Whether the venue has read nothing for too long.
    fn is_stuck(&self, now_ns: u64) -> bool {
        let waiting = self.connection.unwritten() > 0;
        waiting && since(now_ns, self.connection.moved_ns) >= self.parts.options.silence
    }

    /// Ends a session that is silent for too long, and sends Alive in time. Returns whether it did
    /// either.
    fn keep_alive(&mut self, now_ns: u64) -> bool {
        if !self.listens() {
            // The silence is ours.
            self.connection.read_ns = now_ns;
        } else if since(now_ns, self.connection.read_ns) >= self.parts.options.silence {
            self.close(End::Close(CloseReason::Silent));
            return true;
        }
        let quiet = !self.closed && self.connection.unwritten() == 0;
        let due = quiet && since(now_ns, self.connection.sent_ns) >= ALIVE_AFTER;
        if due {
            self.connection.send(&Message::Alive);
        }
        due
    }

    /// The time to the next deadline. It is looked at each second in any case.
    fn due(&self, now_ns: u64) -> Duration {
        let alive = match self.connection.unwritten() {
            0 => ALIVE_AFTER.saturating_sub(since(now_ns, self.connection.sent_ns)),
            _ => ALIVE_AFTER,
        };
        let silence = self.parts.options.silence;
        let silent = silence.saturating_sub(since(now_ns, self.connection.read_ns));
        alive.min(silent).max(Duration::from_millis(1))
    }
}

fn since(now_ns: u64, then_ns: u64) -> Duration {
    Duration::from_nanos(now_ns.saturating_sub(then_ns))
}

fn back_reason(reason: Reason) -> BackReason {
    match reason {
        Reason::Gap => BackReason::Gap,
        Reason::Window => BackReason::Window,
        Reason::Halted => BackReason::Halted,
        Reason::NoRoom => BackReason::NoRoom,
    }
}
