//! A session of a venue: from Open to Close.
//!
//! The commands of one read go to UBSCore with one wake-up, and the answers of each sync leave in
//! one write. Neither waits for the other: one task looks at both directions, and each has its own
//! buffer.
//!
//! ```text
//!   socket --> input --> cutter --> publish    (all of one read, then one look at the replies)
//!                                    | UBSCore
//!   socket <-- output <-- durable <-- decided
//! ```
//!
//! A question waits for UBSCore on another thread. Meanwhile the frames behind it wait, and answers
//! of earlier commands, Backs and Alive leave.
//!
//! The output is bounded: if a venue reads nothing, its session takes no further frame, and ends
//! after `stream.silence_ms`.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::VenueSession;
use engine::venue::{AckError, Command, Ending, OpenError, PushError, Reason, Reply};
use metrics::Histogram;
use stream::block::{Answer, Back, BackReason, CloseReason, NO_LEG};
use stream::message::{Malformed, Message};
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::info;

use super::connection::Connection;
use super::question::{Asking, Question};
use super::{Right, SessionParts, Stopped};
use crate::alert::{Alert, alert_about};
use crate::clock::Sleep;
use crate::telemetry;

/// After so long without a message, Alive is sent.
const ALIVE_AFTER: Duration = Duration::from_secs(1);

/// Bytes of an Answer's frame.
const ANSWER_BYTES: usize = 34;

/// Unwritten bytes beside the answers of a full window, from which on nothing is read. A venue that
/// asks for more than it reads waits for itself.
const UNWRITTEN_BYTES_MAX: usize = 1 << 20;

/// The least time between two looks at a session's token.
const TOKEN_LOOK: Duration = Duration::from_millis(500);

/// How a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// With a last message.
    Close(CloseReason),
    /// Without one: the venue has hung up.
    HungUp,
}

/// The result of a look at the input.
enum Input {
    /// More to push.
    Progress,
    /// Nothing until the task is woken.
    Waiting,
}

/// A number that was pushed and has no reply yet.
#[derive(Clone, Copy)]
struct Asked {
    number: u64,
    /// When it was read, monotonic ns.
    read_ns: u64,
}

/// The answers in the output to the commands of one read.
struct Writing {
    /// When the commands were read, monotonic ns.
    read_ns: u64,
    /// When the first of these answers was put there, monotonic ns.
    put_ns: u64,
    /// The byte after the last answer, counted from the connection's first.
    end: u64,
}

/// See the module.
pub(super) struct Session<S> {
    parts: Arc<SessionParts>,
    connection: Connection<S>,
    right: Right,
    /// When the token was last checked, monotonic ns.
    checked_ns: u64,
    /// When the frames in hand were read, monotonic ns.
    read_ns: u64,
    engine: VenueSession,
    /// Nothing more is taken from the venue before its reply.
    asking: Option<Asking>,
    asked: VecDeque<Asked>,
    /// Behind a Back: the number that must come next. All others are dropped.
    wanted: Option<u64>,
    /// A command that found UBSCore's queue full. Nothing is read meanwhile.
    stalled: Option<(u64, Command)>,
    /// Answers that may not be durable yet, and Backs behind them. Each with the time at which its
    /// command was read, monotonic ns.
    replies: VecDeque<(Reply, u64)>,
    writing: VecDeque<Writing>,
    /// See [`telemetry::stream_times`].
    times: Histogram,
    /// See [`telemetry::stream_writes`].
    writes: Histogram,
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
        right: Right,
        engine: VenueSession,
        stopped: Stopped,
    ) -> Session<S> {
        let opened = engine.opened();
        let window = usize::try_from(opened.window).unwrap_or(usize::MAX);
        let answered = opened.last;
        let timer = parts.clock.sleep(ALIVE_AFTER);
        let (checked_ns, read_ns) = (parts.clock.monotonic_ns(), connection.read_ns);
        Session {
            parts,
            connection,
            right,
            checked_ns,
            read_ns,
            engine,
            asking: None,
            asked: VecDeque::new(),
            wanted: None,
            stalled: None,
            replies: VecDeque::new(),
            writing: VecDeque::new(),
            times: telemetry::stream_times(),
            writes: telemetry::stream_writes(),
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
        poll_fn(|context| self.poll(context)).await;
        let (venue, end) = (self.right.venue, self.end);
        info!(venue, ?end, answered = self.answered, "the session of a venue has ended");
        // Before the connection: a venue that hears its end may open again at once.
        drop(self.engine);
        (self.end != Some(End::HungUp)).then_some(self.connection)
    }

    /// Goes on in both directions until neither can. Ready at the session's end.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Before the first look, so that no reply between the look and the wait is missed.
        self.engine.wake(context.waker());
        loop {
            if !self.draining && self.stopped.as_mut().poll(context).is_ready() {
                self.draining = true;
            }
            let now_ns = self.parts.clock.monotonic_ns();
            // Before the input: a venue that never pauses must not pass it.
            self.check_right(now_ns);
            self.take_said(context);
            self.take_replies();
            self.take_end();
            match self.connection.poll_write(context) {
                Poll::Ready(Ok(())) if self.closed => return Poll::Ready(()),
                Poll::Ready(Ok(())) | Poll::Pending => self.time_answers(),
                Poll::Ready(Err(_)) => return self.hung_up(),
            }
            match self.poll_input(context) {
                Input::Progress => continue,
                Input::Waiting if self.take_end() => continue,
                Input::Waiting => {}
            }
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

    fn hung_up(&mut self) -> Poll<()> {
        self.end = Some(End::HungUp);
        Poll::Ready(())
    }

    /// Moves durable replies into the output.
    fn take_replies(&mut self) {
        if self.closed {
            return;
        }
        while let Some(reply) = self.engine.decided() {
            self.note(reply);
        }
        let durable = self.engine.durable();
        while let Some((reply, read_ns)) = self.replies.front().copied() {
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
                    let end = self.connection.sent_bytes();
                    match self.writing.back_mut() {
                        Some(writing) if writing.read_ns == read_ns => writing.end = end,
                        _ => {
                            let put_ns = self.parts.clock.monotonic_ns();
                            self.writing.push_back(Writing { read_ns, put_ns, end });
                        }
                    }
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
        if self.engine.fenced() {
            self.close_at_once(CloseReason::Fenced);
        }
    }

    /// Notes the time of the answers that were written.
    fn time_answers(&mut self) {
        let written = self.connection.written_bytes();
        while let Some(writing) = self.writing.pop_front_if(|writing| writing.end <= written) {
            let now_ns = self.parts.clock.monotonic_ns();
            self.times.record(since(now_ns, writing.read_ns).as_secs_f64());
            self.writes.record(since(now_ns, writing.put_ns).as_secs_f64());
        }
    }

    /// Keeps a reply, and counts the pushed numbers that have none.
    fn note(&mut self, reply: Reply) {
        let asked = self.asked.pop_front();
        match reply {
            Reply::Answer { number, .. } => {
                let asked = asked.map(|asked| asked.number);
                debug_assert_eq!(asked, Some(number), "replies come in the order of the pushes");
            }
            Reply::Back { number, .. } => {
                // Up to this number, if it was pushed meanwhile, UBSCore drops all higher ones. It
                // still answers repeats.
                let again = self.asked.iter().position(|asked| asked.number == number);
                let mut left = again.unwrap_or(self.asked.len());
                self.asked.retain(|asked| {
                    let is_before = left > 0;
                    left = left.saturating_sub(1);
                    !is_before || asked.number < number
                });
                self.wanted = again.is_none().then_some(number);
            }
            // The answers before it still become durable, and leave.
            Reply::Close { number, reason } => return self.end_for(number, reason),
        }
        self.replies.push_back((reply, asked.map_or(self.read_ns, |asked| asked.read_ns)));
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
        self.drop_waiting();
        self.end = Some(End::Close(reason));
    }

    /// Drops the question and the command that wait.
    fn drop_waiting(&mut self) {
        self.asking = None;
        self.stalled = None;
    }

    fn alert_violation(&self, what: fmt::Arguments<'_>) {
        let venue = self.right.venue;
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
            self.drop_waiting();
        }
    }

    /// Puts the last message into the output once every reply stands there. Returns whether it did.
    fn take_end(&mut self) -> bool {
        let replied = self.asked.is_empty() && self.replies.is_empty();
        let taken = self.stalled.is_none() && self.asking.is_none();
        if self.closed || !replied || !taken || self.end.is_none() {
            return false;
        }
        if let Some(End::Close(reason)) = self.end {
            self.connection.send_close(reason);
        }
        self.closed = true;
        true
    }

    /// Publishes the frames that were read, wakes UBSCore once for all of them, then reads once.
    fn poll_input(&mut self, context: &mut Context<'_>) -> Input {
        let question = self.take_frames();
        self.engine.ring();
        if let Some(question) = question {
            let (reader, clock) = (self.engine.reader(), Arc::clone(&self.parts.clock));
            self.asking = Some(Box::pin(question.ask(reader, clock)));
            // It is looked at first, so that its end wakes the task.
            return Input::Progress;
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
                self.read_ns = self.connection.read_ns;
                let now_ns = self.parts.clock.now_ns();
                self.engine.at(now_ns);
                Input::Progress
            }
            Poll::Pending => Input::Waiting,
        }
    }

    /// Takes frames up to a question, as long as the output has room for their replies.
    fn take_frames(&mut self) -> Option<Question> {
        if let Some((number, command)) = self.stalled.take() {
            self.publish(number, command);
        }
        while self.listens() {
            match self.connection.frame() {
                Ok(Some(frame)) => {
                    if let Some(question) = self.take_frame(&frame) {
                        return Some(question);
                    }
                }
                // At a stop these were the last ones.
                Ok(None) if self.draining => self.close(End::Close(CloseReason::Stopping)),
                Ok(None) => break,
                Err(Malformed) => self.close(End::Close(CloseReason::Malformed)),
            }
        }
        None
    }

    /// Whether more is taken from the venue.
    fn listens(&self) -> bool {
        let waiting = self.connection.unwritten() + self.replies.len() * ANSWER_BYTES;
        let waits = self.stalled.is_some() || self.asking.is_some();
        self.end.is_none() && !waits && waiting <= self.unwritten_max
    }

    /// Takes one frame. Returns a question that the session must wait for.
    fn take_frame(&mut self, frame: &[u8]) -> Option<Question> {
        let message = Message::read(frame);
        if let Some((number, command)) = message.ok().as_ref().and_then(super::command) {
            self.publish(number, command);
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

    fn publish(&mut self, number: u64, command: Command) {
        if self.wanted.is_some_and(|wanted| wanted != number) {
            return;
        }
        match self.engine.publish(number, &command) {
            Ok(()) => {
                self.wanted = None;
                self.asked.push_back(Asked { number, read_ns: self.read_ns });
            }
            Err(PushError::Full) => self.stalled = Some((number, command)),
            Err(PushError::Fenced) => self.close_at_once(CloseReason::Fenced),
            Err(PushError::Stopped) => self.close_at_once(CloseReason::Stopping),
        }
    }

    fn acknowledge(&mut self, number: u64) {
        let taken = match number <= self.answered {
            true => self.engine.acknowledge(number),
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

    /// Puts the reply to a question into the output.
    fn take_said(&mut self, context: &mut Context<'_>) {
        let Some(asking) = &mut self.asking else { return };
        let Poll::Ready(said) = asking.as_mut().poll(context) else { return };
        // It includes every command before it, so all of them are durable: their answers are first.
        self.take_replies();
        // If one of them has ended the session, there is no question any more.
        if self.asking.take().is_none() {
            return;
        }
        match said {
            Ok(said) => said.send(&mut self.connection),
            Err(OpenError::Fenced { .. }) => self.close_at_once(CloseReason::Fenced),
            Err(_) => self.close_at_once(CloseReason::Stopping),
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

    /// Ends the session if its token has ended, or its key is no longer trusted.
    fn check_right(&mut self, now_ns: u64) {
        if self.end.is_some() || since(now_ns, self.checked_ns) < TOKEN_LOOK {
            return;
        }
        self.checked_ns = now_ns;
        if !self.right.stands(&self.parts) {
            self.close(End::Close(CloseReason::Unauthorized));
        }
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

#[cfg(test)]
pub(super) mod tests {
    use std::future::pending;
    use std::ops::RangeInclusive;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use bytes::BytesMut;
    use domain::transfer::{Direction, Op};
    use engine::command;
    use engine::notice::Notice;
    use engine::order::Order;
    use engine::places::{Places, VenuePlaces};
    use engine::text::Text;
    use engine::{Closed, Engine};
    use parking_lot::Mutex;
    use stream::block::{ReadHolds, Reserve};
    use stream::frame::cutter;
    use tempfile::{TempDir, tempdir};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio_util::codec::{Decoder, LengthDelimitedCodec};
    use wal::Identity;

    use super::super::Options;
    use super::super::ahead;
    use super::*;
    use crate::clock::{Clock, NS_PER_S, SystemClock};
    use crate::config::auth::{Auth, DEVELOPMENT_SECRET};
    use crate::config::secret::Secret;
    use crate::http::auth::{Role, Verifier, sign};

    const USD: u32 = 2;
    const VENUE: u32 = 1;
    const WINDOW: usize = 1_000;
    /// Bytes that the connection holds in each direction.
    const PIPE_BYTES: usize = 1 << 16;
    /// More than the bytes of one reply to ReadHolds.
    const HOLDS_BYTES: usize = 1 << 14;
    const HOUR: Duration = Duration::from_secs(3_600);

    pub(in crate::stream) fn engine(dir: &Path) -> Engine {
        let venues = VenuePlaces { holds_max: 1_000, venues_max: 1, window: WINDOW };
        let options = engine::Options {
            log_dir: dir.join("wal"),
            snapshot_dir: dir.join("snapshots"),
            segment_bytes: 1 << 20,
            spares_ready: 1,
            busy: false,
            cpu: None,
            ring_slots: 4_096,
            in_flight_max: 64,
            places: Places { accounts_max: 100, outcomes_max: 100, venues },
            ends_kept: 0,
            idle_mark: Duration::from_millis(1),
            now: || 7,
            notify: |notice: Notice<'_>| match notice {
                Notice::Dead(why) => panic!("{why}"),
                Notice::NoSpace(_) | Notice::LogFailed(_) => {}
            },
        };
        let closed = Closed::open(options).expect("a directory");
        let replayed = closed.replay(0, |_| {}).expect("sound");
        replayed.start(Identity(9), |sync| sync()).expect("started")
    }

    /// The machine's clock, ahead by the time that a test adds.
    struct FastClock {
        clock: SystemClock,
        by_ns: AtomicU64,
    }

    impl Clock for FastClock {
        fn now_ns(&self) -> u64 {
            self.clock.now_ns() + self.by_ns.load(Ordering::Relaxed)
        }

        fn monotonic_ns(&self) -> u64 {
            self.clock.monotonic_ns() + self.by_ns.load(Ordering::Relaxed)
        }

        fn sleep(&self, duration: Duration) -> Sleep {
            self.clock.sleep(duration)
        }
    }

    /// An engine with a venue, a user with 1,000 USD, and an open session of the venue.
    struct Market {
        _dir: TempDir,
        engine: Engine,
        clock: Arc<FastClock>,
        venue: DuplexStream,
        cutter: LengthDelimitedCodec,
        input: BytesMut,
    }

    impl Market {
        async fn new() -> (Market, Session<DuplexStream>) {
            let dir = tempdir().expect("a directory");
            let engine = engine(dir.path());
            let mut handle = engine.handle();
            handle.add_venue(VENUE, "book", false).expect("a place");
            let deposit = Order {
                op: Op::Deposit,
                req_id: 1,
                cid: Text::EMPTY,
                user: 1,
                asset: USD,
                amount: 1_000,
                direction: Direction::FundingToSpot,
                order_number: 1,
            };
            let symbol = Text::new("USD").expect("short");
            for command in [
                command::Command::RegisterAsset { asset: USD, precision: 2, symbol },
                command::Command::Order(deposit),
            ] {
                handle.submit(command, 7).expect("room").await.expect("answered");
            }
            let auth = Auth { secret: Some(Secret::new(DEVELOPMENT_SECRET)), ..Auth::default() };
            let fast = FastClock { clock: SystemClock::new(), by_ns: AtomicU64::new(0) };
            let fast = Arc::new(fast);
            let clock = Arc::clone(&fast) as Arc<dyn Clock>;
            let role = Some(Role::Venue(VENUE));
            let token = sign(&auth, 1, role, HOUR, clock.now_s()).expect("a token");
            let silent = Arc::new(AtomicBool::new(false));
            let (venue, ours) = duplex(PIPE_BYTES);
            let connection = Connection::new(ours, Arc::clone(&clock), Arc::clone(&silent));
            let opened = handle.open_venue(VENUE, 0, 0).expect("open");
            let ahead = ahead::Ahead::new(
                Box::new(|why| panic!("{why}")),
                Box::new(|_, _| true),
                Box::new(|| false),
            );
            let parts = Arc::new(SessionParts {
                engine: Mutex::new(handle),
                verifier: Arc::new(Verifier::new(&auth).expect("a secret")),
                clock,
                options: Options { connections_max: 1, silence: HOUR },
                ahead: Arc::new(ahead),
                silent,
            });
            let right = Right { venue: VENUE, bearer: format!("Bearer {token}") };
            let session = Session::new(parts, connection, right, opened, Box::pin(pending()));
            let (cutter, input) = (cutter(), BytesMut::new());
            (Market { _dir: dir, engine, clock: fast, venue, cutter, input }, session)
        }

        async fn send(&mut self, bytes: &[u8]) {
            self.venue.write_all(bytes).await.expect("sent");
        }

        /// The next message but Alive: the number of an answer, or 0 for the end of a read.
        async fn hear(&mut self) -> u64 {
            loop {
                while let Some(frame) = self.cutter.decode(&mut self.input).expect("a frame") {
                    match Message::read(&frame).expect("a message") {
                        Message::Answer(answer) => return answer.number.get(),
                        Message::Holds(part, _) if part.follows == 0 => return 0,
                        Message::Holds(..) | Message::Alive => {}
                        other => panic!("{other:?}"),
                    }
                }
                let count = self.venue.read_buf(&mut self.input).await.expect("a connection");
                assert!(count > 0, "the session has ended");
            }
        }
    }

    fn reserves(numbers: RangeInclusive<u64>) -> BytesMut {
        let mut bytes = BytesMut::new();
        for number in numbers {
            let reserve = Reserve {
                number: number.into(),
                reference: number.into(),
                user: 1.into(),
                amount: 1.into(),
                onto: 0.into(),
                asset: USD.into(),
            };
            Message::Reserve(&reserve).append_to(&mut bytes);
        }
        bytes
    }

    fn reads(count: usize) -> BytesMut {
        let mut bytes = BytesMut::new();
        for _ in 0..count {
            Message::ReadHolds(&ReadHolds { after: 0.into() }).append_to(&mut bytes);
        }
        bytes
    }

    /// Looks at the session once, as its task does.
    async fn look(session: &mut Session<DuplexStream>) -> Poll<()> {
        poll_fn(|context| Poll::Ready(session.poll(context))).await
    }

    /// Story: the reads of one buffer were all answered into the output, 35 MB for 64 KiB. Goal: if
    /// a venue reads nothing, its session takes no further frame, and goes on when it reads.
    #[tokio::test]
    async fn replies_to_a_venue_that_reads_nothing_are_bounded() {
        const READS: usize = 1_500;
        let (mut market, mut session) = Market::new().await;
        market.send(&reserves(1..=300)).await;
        while session.answered < 300 {
            assert!(look(&mut session).await.is_pending());
            tokio::task::yield_now().await;
        }
        for number in 1..=300 {
            assert_eq!(market.hear().await, number);
        }
        market.send(&reads(READS)).await;
        loop {
            assert!(look(&mut session).await.is_pending());
            let unwritten = session.connection.unwritten();
            assert!(unwritten <= session.unwritten_max + HOLDS_BYTES, "{unwritten} bytes");
            if session.asking.is_none() && !session.listens() {
                break;
            }
            tokio::task::yield_now().await;
        }
        assert!(session.connection.unwritten() > session.unwritten_max, "all was read");
        let read = async {
            for _ in 0..READS {
                assert_eq!(market.hear().await, 0);
            }
            market.venue.shutdown().await.expect("an end");
        };
        let (ended, ()) = tokio::join!(session.run(), read);
        assert!(ended.is_none(), "it has hung up");
        market.engine.stop();
    }

    /// Goal: a venue that never pauses does not outlive its token.
    #[tokio::test]
    async fn a_busy_session_ends_with_its_token() {
        let (mut market, mut session) = Market::new().await;
        market.send(&reads(100)).await;
        for _ in 0..10 {
            assert!(look(&mut session).await.is_pending());
            tokio::task::yield_now().await;
        }
        let ahead_ns = u64::try_from(2 * HOUR.as_nanos()).expect("small");
        market.clock.by_ns.store(ahead_ns, Ordering::Relaxed);
        while look(&mut session).await.is_pending() {
            assert!(session.end.is_some(), "it asks on");
            tokio::task::yield_now().await;
        }
        assert_eq!(session.end, Some(End::Close(CloseReason::Unauthorized)));
        market.engine.stop();
    }

    /// Story: the reply to a read overtook the answers of the commands before it.
    #[tokio::test]
    async fn a_read_is_answered_behind_the_commands_before_it() {
        let (mut market, session) = Market::new().await;
        let mut sent = reserves(1..=50);
        sent.extend_from_slice(&reads(1));
        sent.extend_from_slice(&reserves(51..=60));
        market.send(&sent).await;
        let hear = async {
            for number in (1..=50).chain([0]).chain(51..=60) {
                assert_eq!(market.hear().await, number);
            }
            market.venue.shutdown().await.expect("an end");
        };
        let (ended, ()) = tokio::join!(session.run(), hear);
        assert!(ended.is_none(), "it has hung up");
        market.engine.stop();
    }

    /// Story: a read stopped its session until UBSCore had answered it. Goal: the answers of
    /// earlier commands and Alive leave while a read waits; the commands behind it wait. Method:
    /// one thread for waits, which the test keeps.
    #[test]
    fn answers_and_alive_leave_while_a_read_waits() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.max_blocking_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let (mut market, mut session) = Market::new().await;
            let (go_on, kept) = std::sync::mpsc::channel::<()>();
            let keeper = tokio::task::spawn_blocking(move || kept.recv().is_ok());
            let mut sent = reserves(1..=50);
            sent.extend_from_slice(&reads(1));
            sent.extend_from_slice(&reserves(51..=60));
            market.send(&sent).await;
            while session.answered < 50 {
                assert!(look(&mut session).await.is_pending());
                tokio::task::yield_now().await;
            }
            for number in 1..=50 {
                assert_eq!(market.hear().await, number);
            }
            assert!(session.asking.is_some(), "the read does not wait");
            let alive_at = session.connection.sent_ns;
            market.clock.by_ns.store(2 * NS_PER_S, Ordering::Relaxed);
            assert!(look(&mut session).await.is_pending());
            assert!(session.connection.sent_ns > alive_at, "no Alive");
            assert_eq!(session.answered, 50, "a command has passed the read");
            drop(go_on);
            keeper.await.expect("no panic");
            let hear = async {
                for number in [0].into_iter().chain(51..=60) {
                    assert_eq!(market.hear().await, number);
                }
                market.venue.shutdown().await.expect("an end");
            };
            let (ended, ()) = tokio::join!(session.run(), hear);
            assert!(ended.is_none(), "it has hung up");
            market.engine.stop();
        });
    }
}
