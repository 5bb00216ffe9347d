//! How many commands of a venue does UBSCore decide and make durable a second, for a book in this
//! process? How long does one take?
//!
//! Base case: the disk alone. One command at a time cannot be faster than one write and fdatasync,
//! `D50`. Commands that wait together share a sync.
//!
//! `cargo bench --bench hold -- N`: N trades in each part, in the engine of the default
//! configuration. All balances are added up at the end, and the log is replayed.

mod caller;
mod environment;

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use domain::posting::{ALL, Leg, Place, Posting};
use domain::transfer::{Direction, Op};
use engine::ledger::Answer;
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::text::Text;
use engine::venue::{Command, PushError, Reply};
use engine::{Closed, VenueSession, command};
use wal::Identity;

use crate::caller::Caller;
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};

/// Trades of each part.
const TRADES: u64 = 200_000;
/// Commands of the parts with one command at a time.
const ALONE: u64 = 10_000;
/// Uncounted trades before all parts: the spare segment is filled meanwhile.
const WARM_UP: u64 = 20_000;
const VENUE: u32 = 1;
const BASE: u32 = 1;
const QUOTE: u32 = 2;
/// Users that trade with one another; the next one receives the fees.
const TRADERS: u64 = 1_000;
const FEES: u64 = TRADERS + 1;
/// The first balance of each user in each asset, smallest units.
const MONEY: u64 = 1_000_000_000;
/// The most commands without an acknowledgement: below the window of the default configuration.
const UNACKNOWLEDGED_MAX: u64 = 60_000;

fn main() -> anyhow::Result<()> {
    let trades = environment::count(TRADES)?;
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;
    let mut options = caller::options(scratch.path().join("wal"), 4 * (TRADERS + 1));
    let venues = VenuePlaces { holds_max: 1_000_000, venues_max: 8, window: 65_536 };
    options.places = Places { venues, ..options.places };
    let closed = Closed::open(options.clone())?;
    let engine = closed.replay(0, |_| {})?.start(Identity(1), |sync| sync())?;
    let mut caller = Caller::new(engine.handle());
    endow(&mut caller);
    engine.handle().add_venue(VENUE, "book", false)?;
    let mut book = Book::new(engine.handle().open_venue(VENUE, 0, 0)?);
    book.trade(WARM_UP, 0);

    let pairs = book.pairs(trades);
    let whole = book.trade(trades, 0);
    let mixed = book.trade(trades, 3);
    let durable = book.one_at_a_time(ALONE, true);
    let decided = book.one_at_a_time(ALONE, false);
    let records = book.next - 1;
    book.check(&mut caller);
    drop(book);
    engine.stop();
    let began = Instant::now();
    drop(Closed::open(options)?.replay(0, |_| {})?);
    let replay = per_second(records, began.elapsed());

    environment.table(&[("durable, one", &durable), ("decided, one", &decided)])?;
    println!("P1, RESERVE and SETTLE of one leg: {} commands/s", pairs.rate(2));
    println!("P3, whole trades of six legs: {} trades/s", whole.rate(1));
    println!("P3, 3 of 10 orders are cancelled: {} pairs of orders/s", mixed.rate(1));
    println!("P7, replay: {replay} records/s");
    println!("P4, one at a time, durable: {} x D50", ratio(durable.quantile(0.5), environment.d50));
    println!("balances: correct\n");
    environment.judge("P1: at least 1 M commands/s", pairs.rate(2) >= 1_000_000);
    environment.judge("P3: at least 0.3 M trades/s", whole.rate(1) >= 300_000);
    let bound = environment.d50 * 11 / 5;
    environment.judge("P4: p50 at most 2.2 x D50", durable.quantile(0.5) <= bound);
    let within = decided.quantile(0.5) <= 1_000 && decided.quantile(0.99) <= 3_000;
    environment.judge("P6, decided: p50 at most 1 us, p99 3 us", within);
    environment.judge("P7: at least 1.5 M records/s", replay >= 1_500_000);
    Ok(())
}

/// One part.
struct Part {
    count: u64,
    took: Duration,
}

impl Part {
    /// Things a second, of which each counted one has `each`.
    fn rate(&self, each: u64) -> u64 {
        per_second(each * self.count, self.took)
    }
}

/// Registers both assets, and gives every user money in both.
fn endow(caller: &mut Caller) {
    for asset in [BASE, QUOTE] {
        let symbol = Text::EMPTY;
        let command = command::Command::RegisterAsset { asset, precision: 8, symbol };
        assert_eq!(caller.ask(command), Answer::Done);
        for user in 1..=FEES {
            let number = u64::from(asset) * (TRADERS + 2) + user;
            let deposit = Order {
                op: Op::Deposit,
                req_id: number.into(),
                cid: Text::EMPTY,
                user,
                asset,
                amount: MONEY,
                direction: Direction::FundingToSpot,
                order_number: number,
            };
            let answer = caller.ask(command::Command::Order(deposit));
            assert!(matches!(answer, Answer::Decided(_)), "{answer:?}");
        }
    }
}

/// The venue, on the thread of the bench.
struct Book {
    session: VenueSession,
    waker: Waker,
    next: u64,
    acknowledged: u64,
}

impl Book {
    fn new(session: VenueSession) -> Book {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        Book { session, waker, next: 1, acknowledged: 0 }
    }

    /// Sends a command as soon as there is room. Returns its number.
    fn push(&mut self, command: &Command) -> u64 {
        while self.next - self.acknowledged > UNACKNOWLEDGED_MAX {
            self.take();
        }
        loop {
            match self.session.push(self.next, command) {
                Ok(()) => break,
                Err(PushError::Full) => self.take(),
                Err(error) => panic!("{error}"),
            }
        }
        self.next += 1;
        self.next - 1
    }

    /// Takes the replies that are there, or waits for some.
    fn take(&mut self) {
        if !self.take_ready() {
            self.session.wake(&self.waker);
            if !self.take_ready() {
                thread::park();
            }
        }
    }

    /// Returns whether anything has come, or has become durable.
    fn take_ready(&mut self) -> bool {
        let mut any = false;
        while let Some(reply) = self.session.decided() {
            assert!(matches!(reply, Reply::Answer { code: None, .. }), "{reply:?}");
            any = true;
        }
        let durable = self.session.durable();
        if durable > self.acknowledged {
            self.session.acknowledge(durable).expect("it is answered");
            self.acknowledged = durable;
            any = true;
        }
        any
    }

    /// Waits until everything is durable.
    fn flush(&mut self) {
        while self.session.durable() < self.next - 1 {
            self.take();
        }
    }

    /// A RESERVE, and the SETTLE of all of it in one leg.
    fn pairs(&mut self, count: u64) -> Part {
        let began = Instant::now();
        for round in 0..count {
            let (payer, payee) = traders(round);
            let hold = self.push(&reserve(payer, QUOTE, 50));
            let legs = [leg(Place::Hold(hold), payee, QUOTE, 50)].into_iter().collect();
            self.push(&Command::Settle { reference: round, legs });
        }
        self.flush();
        Part { count, took: began.elapsed() }
    }

    /// Two orders and their trade; `cancels` of ten pairs of orders are cancelled instead.
    fn trade(&mut self, count: u64, cancels: u64) -> Part {
        let began = Instant::now();
        for round in 0..count {
            let (buyer, seller) = traders(round);
            let bid = self.push(&reserve(buyer, QUOTE, 55));
            let ask = self.push(&reserve(seller, BASE, 100));
            if round % 10 < cancels {
                for hold in [bid, ask] {
                    self.push(&Command::Release { reference: round, hold, amount: ALL });
                }
                continue;
            }
            let legs: Posting = [
                leg(Place::Hold(bid), seller, QUOTE, 50),
                leg(Place::Hold(ask), buyer, BASE, 100),
                leg(Place::Available(seller), FEES, QUOTE, 1),
                leg(Place::Available(buyer), FEES, BASE, 1),
                leg(Place::Hold(bid), buyer, QUOTE, ALL),
                leg(Place::Hold(ask), seller, BASE, ALL),
            ]
            .into_iter()
            .collect();
            self.push(&Command::Settle { reference: round, legs });
        }
        self.flush();
        Part { count, took: began.elapsed() }
    }

    /// RESERVE and RELEASE in turns, each behind the end of the one before: durable, which sleeps,
    /// or decided, which does not.
    fn one_at_a_time(&mut self, count: u64, durable: bool) -> Latencies {
        let mut latencies = Latencies::new();
        let mut hold = 0;
        for round in 0..count {
            let command = match round % 2 {
                0 => reserve(1, QUOTE, 50),
                _ => Command::Release { reference: round, hold, amount: ALL },
            };
            let sent = Instant::now();
            let number = self.push(&command);
            if durable {
                self.flush();
            } else {
                while self.session.decided().is_none() {
                    std::hint::spin_loop();
                }
            }
            latencies.record(sent.elapsed());
            if !durable {
                self.flush();
            }
            hold = number;
        }
        latencies
    }

    /// No unit is lost or made, and nothing is held.
    fn check(&mut self, caller: &mut Caller) {
        for asset in [BASE, QUOTE] {
            let sum: u128 = (1..=FEES)
                .map(|user| match caller.ask(command::Command::ReadBalance { user, asset }) {
                    Answer::Balance { available: Some(available), held: 0, .. } => available,
                    other => panic!("user {user}: {other:?}"),
                })
                .sum();
            assert_eq!(sum, u128::from(MONEY) * u128::from(FEES), "asset {asset}");
        }
    }
}

/// Two different users.
fn traders(round: u64) -> (u64, u64) {
    (1 + round % TRADERS, 1 + (round + 1 + round / TRADERS % (TRADERS - 1)) % TRADERS)
}

fn reserve(user: u64, asset: u32, amount: u64) -> Command {
    Command::Reserve { reference: 0, user, asset, amount, onto: 0 }
}

fn leg(from: Place, payee: u64, asset: u32, amount: u64) -> Leg {
    Leg { from, to: Place::Available(payee), asset, amount }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
