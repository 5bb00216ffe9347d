//! The session of a venue: numbered commands go in, replies come out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use crate::line::{Line, Told};
use crate::reader::VenueReader;
use crate::ring::{Overloaded, Publisher};
use crate::shared::Shared;
use crate::venue::{AckError, BalanceRow, Command, Holds, OpenError, Opened, PushError, Reply};

/// An open session of a venue. Dropping it ends the session; commands already pushed are still
/// decided.
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
    /// The core thread was not woken since a publish.
    unrung: bool,
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
            unrung: false,
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
        let published = self.publish(number, command);
        self.ring();
        published
    }

    /// Sends one command and does not wake UBSCore: call [`VenueSession::ring`] after the last one
    /// of several, and before waiting where one is refused. Otherwise as [`VenueSession::push`].
    ///
    /// # Errors
    /// [`PushError`]: nothing was sent.
    pub fn publish(&mut self, number: u64, command: &Command) -> Result<(), PushError> {
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
                self.unrung = true;
                Ok(())
            }
            Err(Overloaded) => {
                streams.give_back(cell);
                Err(PushError::Full)
            }
        }
    }

    /// Wakes UBSCore if commands were published since the last call.
    pub fn ring(&mut self) {
        if std::mem::take(&mut self.unrung) {
            self.publisher.wake();
        }
    }

    /// The next reply, in the order of the pushes, before any sync. `None`: none is there yet.
    pub fn decided(&mut self) -> Option<Reply> {
        self.pass_durable();
        loop {
            let told = self.line.replies.take()?;
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

    /// Reads beside this session. Each includes the commands published before it.
    pub fn reader(&self) -> VenueReader {
        let (line, shared) = (Arc::clone(&self.line), Arc::clone(&self.shared));
        VenueReader::new(line, self.publisher.clone(), shared, self.now)
    }

    /// As [`VenueReader::holds`].
    ///
    /// # Errors
    /// As [`VenueReader::holds`].
    pub fn holds(&mut self, after: u64) -> Result<Holds, OpenError> {
        self.reader().holds(after)
    }

    /// As [`VenueReader::balance`].
    ///
    /// # Errors
    /// As [`VenueReader::balance`].
    pub fn balance(&mut self, user: u64, asset: u32) -> Result<BalanceRow, OpenError> {
        self.reader().balance(user, asset)
    }

    /// Wakes `waker` once when a reply comes without a sync (Back, Close, a repeat), when
    /// [`VenueSession::durable`] may have risen, or when the session is fenced or stopped.
    /// Register, look again, and only then wait.
    pub fn wake(&self, waker: &Waker) {
        self.line.replies.register(waker);
    }

    /// Whether the engine has stopped. Ask before [`VenueSession::decided`]: what that returns
    /// afterwards is the last and is durable, and a number without a reply was not decided.
    pub fn stopped(&self) -> bool {
        self.shared.released.load(Ordering::Acquire)
    }

    /// Whether a newer session is open, or the venue is closed.
    pub fn fenced(&self) -> bool {
        self.line.replies.fenced()
    }
}

impl Drop for VenueSession {
    fn drop(&mut self) {
        self.ring();
        self.shared.streams.remove(&self.line);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;
    use std::thread;
    use std::time::{Duration, Instant};

    use domain::code::Code;
    use domain::posting::{ALL, Leg, Place};
    use domain::transfer::{Direction, Op};
    use tempfile::tempdir;
    use wal::Identity;

    use super::*;
    use crate::command;
    use crate::ledger::Answer;
    use crate::notice::Notice;
    use crate::open::Closed;
    use crate::options::Options;
    use crate::order::Order;
    use crate::places::{Places, VenuePlaces};
    use crate::ring::Work;
    use crate::running::{Engine, Handle};
    use crate::text::Text;
    use crate::venue::{Ending, Reason, VenueHalt, legs};
    use crate::wait::wait;

    const USD: u32 = 2;
    const WINDOW: usize = 100;
    /// The longest wait for a thread. Only a failing test takes it.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn options(dir: &Path) -> Options {
        let venues = VenuePlaces { holds_max: 1_000, venues_max: 2, window: WINDOW };
        Options {
            log_dir: dir.join("wal"),
            snapshot_dir: dir.join("snapshots"),
            segment_bytes: 1 << 20,
            spares_ready: 1,
            busy: false,
            cpu: None,
            ring_slots: 64,
            in_flight_max: 32,
            places: Places { accounts_max: 1_000, outcomes_max: 100, venues },
            ends_kept: 0,
            idle_mark: Duration::from_millis(1),
            now: || 7,
            notify: |notice: Notice<'_>| match notice {
                Notice::Dead(why) => panic!("{why}"),
                Notice::NoSpace(_) | Notice::LogFailed(_) => {}
            },
        }
    }

    fn start(dir: &Path) -> Engine {
        let closed = Closed::open(options(dir)).expect("a directory");
        let identity = closed.identity().unwrap_or(Identity(9));
        closed.replay(0, |_| {}).expect("sound").start(identity, |sync| sync()).expect("started")
    }

    /// An engine with venue 1, and user 1 with 1,000 USD.
    fn market(dir: &Path) -> (Engine, Handle) {
        let engine = start(dir);
        let mut handle = engine.handle();
        handle.add_venue(1, "book", true).expect("a place");
        let symbol = Text::new("USD").expect("short");
        for command in [
            command::Command::RegisterAsset { asset: USD, precision: 2, symbol },
            command::Command::Order(deposit(1)),
        ] {
            let pending = handle.submit(command, 7);
            wait(pending, &handle.shared()).expect("answered");
        }
        (engine, handle)
    }

    /// 1,000 USD for user 1.
    fn deposit(number: u64) -> Order {
        Order {
            op: Op::Deposit,
            req_id: number.into(),
            cid: Text::EMPTY,
            user: 1,
            asset: USD,
            amount: 1_000,
            direction: Direction::FundingToSpot,
            order_number: number,
        }
    }

    fn reserve(amount: u64) -> Command {
        Command::Reserve { reference: 0, user: 1, asset: USD, amount, onto: 0 }
    }

    fn release(hold: u64) -> Command {
        Command::Release { reference: 0, hold, amount: ALL }
    }

    fn comes<T>(mut look: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "it does not come");
            thread::yield_now();
        }
    }

    fn reply(session: &mut VenueSession) -> Reply {
        comes(|| session.decided())
    }

    fn answer(session: &mut VenueSession, number: u64, command: &Command) -> Option<Code> {
        comes(|| match session.push(number, command) {
            Ok(()) => Some(()),
            Err(PushError::Full) => None,
            Err(error) => panic!("{error}"),
        });
        match reply(session) {
            Reply::Answer { number: answered, code, .. } if answered == number => code,
            other => panic!("{other:?}"),
        }
    }

    /// HLD-011. Goal: a session reserves, releases and reads; after a restart a repeat is told the
    /// same, and the next session goes on.
    #[test]
    fn a_session_goes_on_after_a_restart() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let mut session = handle.open_venue(1, 1, 0).expect("open");
        let opened = *session.opened();
        let want = (1, 0, 0, WINDOW as u64, Identity(9), 0);
        let Opened { epoch, last, acknowledged, window, log_identity, durable } = opened;
        assert_eq!((epoch, last, acknowledged, window, log_identity, durable), want);
        assert_eq!(answer(&mut session, 1, &reserve(400)), None);
        assert_eq!(answer(&mut session, 2, &reserve(700)), Some(Code::InsufficientBalance));
        comes(|| (session.durable() == 2).then_some(()));
        let BalanceRow { available, held, .. } = session.balance(1, USD).expect("read");
        assert_eq!((available, held), (Some(600), 400));
        let holds = session.holds(0).expect("read");
        assert_eq!((holds.holds.len(), holds.next), (1, None));
        assert_eq!((holds.holds[0].number, holds.holds[0].remaining), (1, 400));
        drop(session);
        drop(handle);
        engine.stop();

        let engine = start(dir.path());
        let handle = engine.handle();
        let ahead = handle.open_venue(1, 2, 3).err();
        assert_eq!(ahead, Some(OpenError::AheadOfLog { told: 3, last: 2 }));
        let mut session = handle.open_venue(1, 2, 2).expect("open");
        assert_eq!((session.opened().last, session.opened().durable), (2, 2));
        assert_eq!(answer(&mut session, 2, &reserve(700)), Some(Code::InsufficientBalance));
        assert_eq!(answer(&mut session, 1, &reserve(400)), None);
        assert_eq!(session.acknowledge(3), Err(AckError::NotAnswered(3)));
        assert_eq!(session.acknowledge(1), Ok(()));
        assert_eq!(answer(&mut session, 3, &release(1)), None);
        session.push(1, &reserve(400)).expect("sent");
        let forgotten = Reply::Close { number: 1, reason: Ending::Forgotten };
        assert_eq!(reply(&mut session), forgotten);
        assert_eq!(session.push(4, &release(1)), Err(PushError::Fenced));
        let mut session = handle.open_venue(1, 3, 3).expect("open");
        session.push(3, &release(9)).expect("sent");
        assert_eq!(reply(&mut session), Reply::Close { number: 3, reason: Ending::Violation });
        drop(session);
        engine.stop();
        let stopped = handle.open_venue(1, 4, 0).err();
        assert!(matches!(stopped, Some(OpenError::Stopped)), "{stopped:?}");
    }

    /// HLD-013. Goal: of two callers with one epoch exactly one gets the session, and commands of
    /// an older one change nothing.
    #[test]
    fn one_session_of_an_epoch_is_open_and_older_ones_are_shut_out() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let (barrier, open) = (Barrier::new(2), AtomicUsize::new(0));
        for epoch in 1..20 {
            let sessions: Vec<_> = thread::scope(|scope| {
                let open_one = || {
                    let handle = handle.clone();
                    barrier.wait();
                    handle.open_venue(1, epoch, 0)
                };
                let threads = [scope.spawn(open_one), scope.spawn(open_one)];
                threads.map(|thread| thread.join().expect("no panic")).into_iter().collect()
            });
            let (mut open_ones, mut refused) = (0, 0);
            for session in &sessions {
                match session {
                    Ok(_) => open_ones += 1,
                    Err(error) => {
                        assert_eq!(*error, OpenError::Fenced { epoch });
                        refused += 1;
                    }
                }
            }
            assert_eq!((open_ones, refused), (1, 1));
            open.fetch_add(open_ones, Ordering::Relaxed);
        }
        let mut old = handle.open_venue(1, 30, 0).expect("open");
        assert_eq!(handle.open_venue(1, 0, 0).err(), Some(OpenError::Busy));
        assert_eq!(answer(&mut old, 1, &reserve(10)), None);
        let mut new = handle.open_venue(1, 31, 1).expect("open");
        assert_eq!(old.push(2, &reserve(10)), Err(PushError::Fenced));
        assert_eq!(answer(&mut new, 2, &reserve(20)), None);
        let page = new.holds(0).expect("read");
        assert_eq!(page.holds.len(), 2);
        // A read that the old session has sent before it was shut out does not touch the page.
        assert_eq!(old.holds(0), Err(OpenError::Fenced { epoch: 30 }));
        let late = old.reader().ask(|ticket| Work::Holds { ticket, venue: 1, epoch: 30, after: 2 });
        assert_eq!(late, Ok(Answer::Done));
        assert_eq!(*new.line.holds.lock(), page);
        handle.close_venue(1).expect("registered");
        assert!(new.fenced());
        assert_eq!(new.push(3, &release(1)), Err(PushError::Fenced));
        assert_eq!(handle.open_venue(1, 32, 2).err(), Some(OpenError::Closed));
        handle.reopen_venue(1).expect("registered");
        // A command that passed the check before the close is not decided after the reopening.
        let cell = new.shared.streams.take().expect("a free one");
        new.shared.streams.cell(cell).lock().fill(1, 3, &release(1));
        new.publisher.publish_numbered(1, 31, cell, 7).expect("room");
        new.publisher.wake();
        drop((old, new));
        let session = handle.open_venue(1, 0, 2).expect("open");
        assert_eq!((session.opened().epoch, session.opened().last), (32, 2));
        engine.stop();
    }

    /// Goal: what a session has pushed before it was dropped is decided, also if nothing of it was
    /// taken by then.
    #[test]
    fn commands_of_a_dropped_session_are_decided() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        for round in 0..50 {
            let mut session = handle.open_venue(1, 0, 2 * round).expect("open");
            assert_eq!(session.opened().last, 2 * round);
            session.push(2 * round + 1, &reserve(1)).expect("sent");
            session.push(2 * round + 2, &release(2 * round + 1)).expect("sent");
        }
        assert_eq!(handle.open_venue(1, 0, 100).expect("open").opened().last, 100);
        comes(|| (handle.holds() == 0).then_some(()));
        engine.stop();
    }

    /// HLD-012, HLD-016. Goal: a gap, a halt and a full window use no number; each tells one Back,
    /// and later commands are dropped.
    #[test]
    fn what_cannot_be_decided_is_told_once_and_uses_no_number() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let mut session = handle.open_venue(1, 1, 0).expect("open");
        for number in [5, 6, 7] {
            session.push(number, &reserve(1)).expect("sent");
        }
        let back = |number, reason, after_ms| Reply::Back { number, reason, after_ms };
        assert_eq!(reply(&mut session), back(1, Reason::Gap, 0));
        assert_eq!(answer(&mut session, 1, &reserve(1)), None);
        assert_eq!(session.decided(), None, "what followed the gap is dropped");
        handle.halt_venues(VenueHalt::On);
        for number in [2, 3] {
            session.push(number, &reserve(1)).expect("sent");
        }
        assert_eq!(reply(&mut session), back(2, Reason::Halted, 1_000));
        assert_eq!(answer(&mut session, 1, &reserve(1)), None, "a repeat is answered");
        session.push(2, &reserve(1)).expect("sent");
        assert_eq!(reply(&mut session), back(2, Reason::Halted, 1_000));
        handle.halt_venues(VenueHalt::Off);
        let full = WINDOW as u64;
        for number in 2..=full {
            assert_eq!(answer(&mut session, number, &reserve(1)), None);
        }
        session.push(full + 1, &reserve(1)).expect("sent");
        assert_eq!(reply(&mut session), back(full + 1, Reason::Window, 0));
        session.acknowledge(1).expect("answered");
        assert_eq!(answer(&mut session, full + 1, &reserve(1)), None);
        // Another venue is not stopped by it.
        handle.add_venue(2, "other", false).expect("a place");
        let mut other = handle.open_venue(2, 1, 0).expect("open");
        assert_eq!(answer(&mut other, 1, &reserve(1)), None);
        assert_eq!(handle.holds(), WINDOW + 2);
        drop((session, other));
        engine.stop();
    }

    /// Goal: one wake-up is enough for several commands, and dropping the session is one. Method:
    /// the core thread sleeps for an hour unless it is woken, and nothing else wakes it once the
    /// log is marked.
    #[test]
    fn published_commands_wait_for_one_wake_up() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let mut session = handle.open_venue(1, 1, 0).expect("open");
        let shared = handle.shared();
        comes(|| (shared.marked.load(Ordering::Relaxed) == shared.log.appended()).then_some(()));
        for number in 1..=10 {
            session.publish(number, &reserve(1)).expect("sent");
        }
        session.ring();
        for number in 1..=10 {
            let answered = reply(&mut session);
            assert!(matches!(answered, Reply::Answer { number: n, .. } if n == number));
        }
        session.publish(11, &reserve(1)).expect("sent");
        drop(session);
        comes(|| (handle.holds() == 11).then_some(()));
        engine.stop();
    }

    /// RCV-007, in the engine. Goal: in the halt after a cut, the numbers up to the last answer
    /// that the session has named are decided, without a refusal that later money may avert. All
    /// others, and all in any other halt, are answered with Back and use no number.
    #[test]
    fn after_a_cut_lost_numbers_are_decided_and_no_others() {
        let dir = tempdir().expect("a directory");
        let (engine, mut handle) = market(dir.path());
        handle.halt_venues(VenueHalt::Lost);
        let ahead = OpenError::AheadOfLog { told: 5, last: 0 };
        assert_eq!(handle.open_venue(1, 1, 5).err(), Some(ahead));
        let mut session = handle.open_venue_ahead(1, 1, 5).expect("open");
        assert_eq!((session.opened().last, session.opened().durable), (0, 0));
        let stopped = |session: &mut VenueSession, number, command: &Command| {
            session.push(number, command).expect("sent");
            let back = Reply::Back { number, reason: Reason::Halted, after_ms: 1_000 };
            assert_eq!(reply(session), back);
        };
        assert_eq!(answer(&mut session, 1, &reserve(400)), None);
        // A success before the cut, by money that is not there yet.
        stopped(&mut session, 2, &reserve(700));
        stopped(&mut session, 2, &reserve(700));
        // A refusal before the cut.
        assert_eq!(answer(&mut session, 2, &reserve(0)), Some(Code::InvalidPosting));
        stopped(&mut session, 3, &reserve(700));
        handle.halt_venues(VenueHalt::On);
        stopped(&mut session, 3, &release(1));
        handle.halt_venues(VenueHalt::Lost);
        let pending = handle.submit(command::Command::Order(deposit(2)), 7);
        wait(pending, &handle.shared()).expect("answered");
        assert_eq!(answer(&mut session, 3, &reserve(700)), None);
        drop(session);

        // It has lost a part of its journal, or is an older instance.
        let mut session = handle.open_venue_ahead(1, 2, 4).expect("open");
        assert_eq!(session.opened().last, 3);
        assert_eq!(answer(&mut session, 4, &release(1)), None);
        stopped(&mut session, 5, &release(3));
        let mut session = handle.open_venue_ahead(1, 3, 5).expect("open");
        assert_eq!(answer(&mut session, 5, &release(3)), None);
        stopped(&mut session, 6, &reserve(1));
        // A venue without answers, one that lacks none, and one without its former right to POST
        // and without an asset.
        handle.add_venue(2, "other", false).expect("a place");
        let mut other = handle.open_venue(2, 1, 0).expect("open");
        stopped(&mut other, 1, &reserve(1));
        let mut other = handle.open_venue_ahead(2, 2, 1).expect("open");
        let (from, to) = (Place::Available(1), Place::Available(2));
        let pay = Leg { from, to, asset: USD, amount: 1 };
        let post = Command::Post { reference: 0, legs: legs([pay]) };
        let no_asset = Command::Reserve { reference: 0, user: 1, asset: 9, amount: 1, onto: 0 };
        for command in [post, no_asset] {
            stopped(&mut other, 1, &command);
        }
        let mut session = handle.open_venue(1, 4, 5).expect("open");
        stopped(&mut session, 6, &reserve(1));
        handle.halt_venues(VenueHalt::Off);
        assert_eq!(answer(&mut session, 6, &reserve(9_999)), Some(Code::InsufficientBalance));
        assert_eq!(answer(&mut other, 1, &reserve(1)), None);
        drop((session, other));
        engine.stop();
    }

    /// Goal: a stop wakes a session that waits. Method: it looks again only when it was woken.
    #[test]
    fn a_stop_wakes_a_session() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let mut session = handle.open_venue(1, 1, 0).expect("open");
        assert_eq!(answer(&mut session, 1, &reserve(1)), None);
        assert!(!session.stopped());
        let rung = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&rung));
        thread::scope(|scope| {
            scope.spawn(|| engine.stop());
            loop {
                let before = rung.0.load(Ordering::Relaxed);
                session.wake(&waker);
                if session.stopped() {
                    break;
                }
                comes(|| (rung.0.load(Ordering::Relaxed) > before).then_some(()));
            }
        });
        assert_eq!((session.decided(), session.durable()), (None, 1));
        assert_eq!(session.push(2, &reserve(1)), Err(PushError::Stopped));
    }

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Count>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Goal: a session that keeps its part of the ring full gets every answer in order, durable in
    /// the end, and its waker rings.
    #[test]
    fn a_crowd_of_commands_is_answered_in_order() {
        let dir = tempdir().expect("a directory");
        let (engine, handle) = market(dir.path());
        let mut session = handle.open_venue(1, 1, 0).expect("open");
        let rung = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&rung));
        let (mut pushed, mut answered) = (0, 0);
        let mut full = 0;
        while answered < 5_000 {
            session.wake(&waker);
            while pushed < 5_000 && pushed < answered + 90 {
                let next = pushed + 1;
                let command = match next % 2 {
                    1 => reserve(5),
                    _ => Command::Settle {
                        reference: next,
                        legs: legs([Leg {
                            from: Place::Hold(next - 1),
                            to: Place::Available(1),
                            asset: USD,
                            amount: ALL,
                        }]),
                    },
                };
                match session.push(next, &command) {
                    Ok(()) => pushed = next,
                    Err(PushError::Full) => {
                        full += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            while let Some(reply) = session.decided() {
                let Reply::Answer { number, code, .. } = reply else { panic!("{reply:?}") };
                assert_eq!((number, code), (answered + 1, None));
                answered = number;
                session.acknowledge(number).expect("answered");
                assert!(session.durable() <= answered);
            }
        }
        assert!(full > 0, "its part of the ring was never full");
        comes(|| (session.durable() == answered).then_some(()));
        comes(|| (rung.0.load(Ordering::Relaxed) > 0).then_some(()));
        assert_eq!(handle.holds(), 0);
        drop(session);
        engine.stop();
    }
}
