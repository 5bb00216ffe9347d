//! How many commands of a venue does UBSCore decide and make durable a second, for a book in this
//! process? How long does one take?
//!
//! Base cases, in the same run: the disk alone, `D50`, and orders of transfers at the same place:
//! in batches, one at a time, a question that needs no disk, and a replay.
//!
//! `cargo bench --bench hold -- N`: N trades in each part, in the engine of the default
//! configuration. Decided commands are measured with a core thread that waits busily. All balances
//! are added up at the end of each part.
//!
//! `UBSCORE_BENCH_MINUTES=10 cargo bench --bench hold`: trades without pause for so long, with the
//! default snapshots and an archive command. Do both keep up?

mod caller;
mod crowd;
mod environment;
mod resident;
mod rounds;
mod snapshots;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::Context;
use domain::posting::{ALL, Leg, Place, Posting};
use domain::transfer::{Direction, Op};
use engine::ledger::{Answer, Ledger, Step};
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::snapshot::store::SnapshotStore;
use engine::text::Text;
use engine::venue::{Command, PushError, Reply};
use engine::{Closed, Engine, Options, VenueSession, command};
use ubscore::checkpointer;
use ubscore::config::Config;
use wal::Identity;

use crate::caller::Caller;
use crate::environment::{Environment, Latencies, per_second, ratio, scratch};
use crate::resident::resident;

/// Trades of each part.
const TRADES: u64 = 200_000;
/// The most commands of a part with one command at a time.
const ALONE_MAX: u64 = 10_000;
/// Uncounted trades before a part: the spare segment is filled meanwhile.
const WARM_UP: u64 = 20_000;
/// Holds of the part with many open ones.
const OPEN_HOLDS: usize = 1_000_000;
const BASE: u32 = 1;
const QUOTE: u32 = 2;
/// Users that trade with one another; the next one receives the fees.
const TRADERS: u64 = 1_000;
const FEES: u64 = TRADERS + 1;
/// The first balance of each user in each asset, smallest units.
const MONEY: u64 = 1_000_000_000;
/// The most commands without an acknowledgement: below the window of the default configuration.
const UNACKNOWLEDGED_MAX: u64 = 60_000;
const VENUES: VenuePlaces =
    VenuePlaces { holds_max: OPEN_HOLDS + 100_000, venues_max: 8, window: 65_536 };
/// Replays; the median counts.
const REPLAYS: usize = 3;
/// Trades between two looks at the time in the long form.
const ROUND: u64 = 20_000;

fn main() -> anyhow::Result<()> {
    let trades = environment::count(TRADES)?;
    let scratch = scratch()?;
    let environment = Environment::probe(scratch.path(), None)?;
    match std::env::var("UBSCORE_BENCH_MINUTES") {
        Ok(minutes) => {
            let minutes = minutes.parse().context("UBSCORE_BENCH_MINUTES")?;
            run_long(&environment, scratch.path(), minutes)
        }
        Err(_) => run(&environment, scratch.path(), trades),
    }
}

fn run(environment: &Environment, dir: &Path, trades: u64) -> anyhow::Result<()> {
    // First, while this process has little memory to use again.
    let hold_bytes = bytes_of_hold()?;
    let alone = trades.min(ALONE_MAX);
    let orders = Orders::measure(dir, 3 * trades, alone)?;
    let Rates { pairs, whole, trade_bytes, durable } = Rates::measure(dir, trades, alone)?;
    let (mixed, replay) = measure_mix(dir, 2 * trades)?;
    let decided = Decided::measure(dir, alone)?;
    let of_decided = [
        ("P6 decided", &decided.one),
        ("P6 decided, two venues", &decided.two_venues),
        ("P6 decided, 1 M holds", &decided.many_holds),
        ("P6 decided, snapshots", &decided.snapshots),
    ];
    let mut table = vec![
        ("base: order durable, one", &orders.alone),
        ("P4 durable, one", &durable),
        ("base: question", &orders.asked),
    ];
    table.extend(of_decided);
    environment.table(&table)?;
    println!("{} snapshots were made meanwhile", decided.snapshots_made);
    println!("balances: correct\n");

    let (least, most) = (Goal::AtLeast, Goal::AtMost);
    let (one, d50) = (orders.alone.quantile(0.5), environment.d50);
    let (pairs_base, trades_base) = (orders.batched, orders.batched / 3);
    let mut figures = vec![
        Figure::new("P1 RESERVE and SETTLE, commands/s", pairs, least(1_000_000), pairs_base),
        Figure::new("P3 trades of six legs, /s", whole, least(300_000), trades_base),
        Figure::new("P3 pairs of orders, 30 % cancelled, /s", mixed, least(300_000), trades_base),
        Figure::new("P4 durable, one, p50 ns", durable.quantile(0.5), most(one * 11 / 10), one),
        Figure::new("P4 the same by D50", durable.quantile(0.5), most(d50 * 11 / 5), d50),
        Figure::new("P7 a hold in memory, bytes", hold_bytes, most(100), 0),
        Figure::new("P7 log of a whole trade, bytes", trade_bytes, most(512), 3 * orders.bytes),
        Figure::new("P7 replay of that mix, records/s", replay, least(1_500_000), orders.replay),
    ];
    for (what, latencies) in of_decided {
        for (name, quantile, goal) in [("p50 ns", 0.5, 1_000), ("p99 ns", 0.99, 3_000)] {
            let (figure, base) = (latencies.quantile(quantile), orders.asked.quantile(quantile));
            figures.push(Figure::new(&format!("{what}, {name}"), figure, most(goal), base));
        }
    }
    println!("{:<40}{:>12}{:>12}{:>9}{:>12}{:>9}", "", "figure", "goal", "ratio", "base", "ratio");
    figures.iter().for_each(Figure::print);
    println!("\nbase: an order, three for a trade; of P6 a question; by D50 the disk alone\n");
    figures.iter().for_each(|figure| environment.judge(&figure.what, figure.is_reached()));
    Ok(())
}

/// The memory of the table of holds for each hold.
fn bytes_of_hold() -> anyhow::Result<u64> {
    let many = VenuePlaces { holds_max: OPEN_HOLDS, venues_max: 1, window: 1 };
    let none = VenuePlaces { holds_max: 0, ..many };
    Ok(resident_with(many)?.saturating_sub(resident_with(none)?) / OPEN_HOLDS as u64)
}

/// The memory of a ledger with one venue.
fn resident_with(venues: VenuePlaces) -> anyhow::Result<u64> {
    let before = resident()?;
    let mut ledger = Ledger::new(Places { venues, ..Places::of_transfers(1, 1) });
    let name = Text::new("book").context("a name")?;
    let venue = command::Command::AddVenue { id: 1, name, posts: false };
    let Step::Append(entry) = ledger.step(&venue) else { panic!("the first venue") };
    ledger.apply(&entry, 1, 0);
    ledger.prefault();
    ledger.prefault_venues();
    Ok(resident()?.saturating_sub(before))
}

/// The bound of a figure.
#[derive(Clone, Copy)]
enum Goal {
    AtLeast(u64),
    AtMost(u64),
}

/// A row of the table of goals.
struct Figure {
    what: String,
    figure: u64,
    goal: Goal,
    /// The same of the base case, 0 without one.
    base: u64,
}

impl Figure {
    fn new(what: &str, figure: u64, goal: Goal, base: u64) -> Figure {
        Figure { what: what.to_owned(), figure, goal, base }
    }

    fn print(&self) {
        let Figure { what, figure, goal, base } = self;
        let (Goal::AtLeast(bound) | Goal::AtMost(bound)) = *goal;
        print!("{what:<40}{figure:>12}{bound:>12}{:>9}", ratio(*figure, bound));
        match base {
            0 => println!(),
            base => println!("{base:>12}{:>9}", ratio(*figure, *base)),
        }
    }

    fn is_reached(&self) -> bool {
        match self.goal {
            Goal::AtLeast(bound) => self.figure >= bound,
            Goal::AtMost(bound) => self.figure <= bound,
        }
    }
}

/// The base case: orders of transfers.
struct Orders {
    /// Orders per second, in batches.
    batched: u64,
    /// Each one durable before the next.
    alone: Latencies,
    /// Questions to a core thread that waits busily.
    asked: Latencies,
    /// Bytes of the log for one order.
    bytes: u64,
    /// Records per second.
    replay: u64,
}

impl Orders {
    fn measure(dir: &Path, count: u64, alone_count: u64) -> anyhow::Result<Orders> {
        let options = caller::options(dir.join("orders"), count + alone_count + WARM_UP);
        let engine = start(options.clone())?;
        let mut caller = Caller::new(engine.handle());
        assert_eq!(caller.ask(rounds::asset()), Answer::Done, "the asset");
        let mut handle = engine.handle();
        crowd::batches(&mut handle, WARM_UP, |n| rounds::order(1, n));
        let before = handle.log_bytes();
        let (_, took) = crowd::batches(&mut handle, count, |n| rounds::order(2, n));
        let bytes = (handle.log_bytes() - before) / count;
        let mut alone = Latencies::new();
        for round in 0..alone_count {
            let asked = Instant::now();
            let answer = caller.ask(rounds::order(3, round));
            alone.record(asked.elapsed());
            assert!(matches!(answer, Answer::Decided(_)), "{answer:?}");
        }
        for (user, rounds) in [(1, WARM_UP), (2, count), (3, alone_count)] {
            let after = rounds::balance_after(rounds);
            assert_eq!(rounds::balance(&mut caller, user), Some(after), "user {user}");
        }
        engine.stop();
        let replay = replay(&options)?;
        fs::remove_dir_all(&options.log_dir)?;
        let engine = start(Options { busy: true, ..caller::options(dir.join("asked"), 0) })?;
        let question = |_| command::Command::ReadBalance { user: 1, asset: 1 };
        let asked = crowd::one_at_a_time(&mut engine.handle(), alone_count, question);
        engine.stop();
        Ok(Orders { batched: per_second(count, took), alone, asked, bytes, replay })
    }
}

/// A venue that makes all durable.
struct Rates {
    /// Commands per second.
    pairs: u64,
    /// Trades per second.
    whole: u64,
    /// Bytes of the log for one trade.
    trade_bytes: u64,
    durable: Latencies,
}

impl Rates {
    fn measure(dir: &Path, trades: u64, alone: u64) -> anyhow::Result<Rates> {
        let market = Market::start(venue_options(dir.join("rates"), false), 1)?;
        let mut book = market.book(1)?;
        book.trade(WARM_UP, 0);
        let pairs = book.pairs(trades);
        let before = market.engine.handle().log_bytes();
        let whole = book.trade(trades, 0);
        let trade_bytes = (market.engine.handle().log_bytes() - before) / trades;
        let durable = book.one_at_a_time(alone);
        market.stop(vec![book], 0)?;
        let (pairs, whole) = (per_second(2 * trades, pairs), per_second(trades, whole));
        Ok(Rates { pairs, whole, trade_bytes, durable })
    }
}

/// Pairs of orders per second if 3 of 10 are cancelled, and the replay of their log, records per
/// second.
fn measure_mix(dir: &Path, trades: u64) -> anyhow::Result<(u64, u64)> {
    let market = Market::start(venue_options(dir.join("mix"), false), 1)?;
    let mut book = market.book(1)?;
    book.trade(WARM_UP, 3);
    let took = book.trade(trades, 3);
    let options = market.stop(vec![book], 0)?;
    Ok((per_second(trades, took), replay(&options)?))
}

/// Commands that are decided, without a wait for the disk.
struct Decided {
    one: Latencies,
    two_venues: Latencies,
    many_holds: Latencies,
    snapshots: Latencies,
    snapshots_made: u64,
}

impl Decided {
    fn measure(dir: &Path, count: u64) -> anyhow::Result<Decided> {
        let market = Market::start(venue_options(dir.join("decided"), true), 2)?;
        let mut first = market.book(1)?;
        first.trade(WARM_UP, 0);
        let one = decide(&mut [&mut first], count);
        let mut second = market.book(2)?;
        let two_venues = decide(&mut [&mut first, &mut second], count);
        let (snapshots, snapshots_made) =
            snapshots::beside(&market.engine, &market.options, || {
                decide(&mut [&mut first], count)
            })?;
        first.open_holds(OPEN_HOLDS as u64);
        let many_holds = decide(&mut [&mut first], count);
        market.stop(vec![first, second], OPEN_HOLDS as u64)?;
        Ok(Decided { one, two_venues, many_holds, snapshots, snapshots_made })
    }
}

/// Trades with the default snapshots and an archive command. Prints the lag of both, minute by
/// minute.
fn run_long(environment: &Environment, dir: &Path, minutes: u64) -> anyhow::Result<()> {
    let market = Market::start(venue_options(dir.join("long"), false), 1)?;
    let mut book = market.book(1)?;
    let config = Config::default().snapshot;
    // Each segment is copied over the one before: all bytes are written, and the disk stays free.
    let archive = dir.join("archived");
    let options = checkpointer::Options {
        log_dir: market.options.log_dir.clone(),
        store: SnapshotStore::create(&market.options.snapshot_dir)?,
        places: market.options.places,
        every_records: config.every_records,
        every_bytes: config.every_bytes,
        keep: config.keep,
        archive_command: format!("cp \"%p\" {0} && sync {0}", archive.display()),
        trades: config.trades,
    };
    println!(
        "\n{:<8}{:>12}{:>24}{:>12}",
        "minute", "trades/s", "records in no snapshot", "segments"
    );
    let lags = snapshots::with_checkpointer(&market.engine, options, |_| {
        (1..=minutes)
            .map(|minute| {
                let (done, lag) = watched(&market, || book.trade_for(Duration::from_secs(60)));
                let (rate, Lag { records, segments }) = (done / 60, lag);
                println!("{minute:<8}{rate:>12}{records:>24}{segments:>12}");
                lag
            })
            .collect::<Vec<_>>()
    })?;
    assert!(archive.is_file(), "no segment was archived");
    market.stop(vec![book], 0)?;
    println!("balances: correct\n");
    let (early, late) = lags.split_at(lags.len().div_ceil(2));
    let keeps_up = |of: fn(&Lag) -> u64| {
        let most = |lags: &[Lag]| lags.iter().map(of).max().unwrap_or(0);
        most(late) <= most(early) * 3 / 2
    };
    let goal = "P3, long: the lag of snapshots at most 1.5 x in the second half";
    environment.judge(goal, keeps_up(|lag| lag.records));
    let goal = "P3, long: the segments at most 1.5 x in the second half";
    environment.judge(goal, keeps_up(|lag| lag.segments));
    Ok(())
}

/// The most of a minute.
#[derive(Clone, Copy, Default)]
struct Lag {
    /// Durable records that no snapshot holds.
    records: u64,
    /// Segments in the directory of the log.
    segments: u64,
}

/// Runs a step, and looks once a second at snapshots and segments.
fn watched<T>(market: &Market, work: impl FnOnce() -> T) -> (T, Lag) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut lag = Lag::default();
            while !done.load(Ordering::Relaxed) {
                let covered = names(&market.options.snapshot_dir, ".snap");
                let covered = covered.iter().filter_map(|name| number_in(name)).max();
                let records = market.engine.handle().durable() - covered.unwrap_or(0);
                let segments = names(&market.options.log_dir, ".wal").len() as u64;
                lag.records = lag.records.max(records);
                lag.segments = lag.segments.max(segments);
                thread::sleep(Duration::from_secs(1));
            }
            lag
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, watcher.join().expect("a panic is the bench's"))
    })
}

/// The names of the files with this end.
fn names(directory: &Path, end: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the engine's directory").map_while(Result::ok);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.ends_with(end)).collect()
}

/// The number in a snapshot's name.
fn number_in(name: &str) -> Option<u64> {
    u64::from_str_radix(name.strip_prefix("snapshot-")?.strip_suffix(".snap")?, 16).ok()
}

fn venue_options(log_dir: PathBuf, busy: bool) -> Options {
    let mut options = caller::options(log_dir, 4 * (TRADERS + 1));
    options.places = Places { venues: VENUES, ..options.places };
    Options { busy, ..options }
}

fn start(options: Options) -> anyhow::Result<Engine> {
    Ok(Closed::open(options)?.replay(0, |_| {})?.start(Identity(1), |sync| sync())?)
}

/// Records per second of a start with this log, the memory of the ledger included.
fn replay(options: &Options) -> anyhow::Result<u64> {
    let mut rates = Vec::new();
    for _ in 0..REPLAYS {
        let began = Instant::now();
        let replayed = Closed::open(options.clone())?.replay(0, |_| {})?;
        rates.push(per_second(replayed.ledger().sequence(), began.elapsed()));
    }
    rates.sort_unstable();
    Ok(rates[REPLAYS / 2])
}

/// An engine with money of all users, and with venues.
struct Market {
    options: Options,
    engine: Engine,
}

impl Market {
    fn start(options: Options, venues: u32) -> anyhow::Result<Market> {
        let engine = start(options.clone())?;
        endow(&mut Caller::new(engine.handle()));
        for id in 1..=venues {
            engine.handle().add_venue(id, "book", false)?;
        }
        Ok(Market { options, engine })
    }

    fn book(&self, venue: u32) -> anyhow::Result<Book> {
        Ok(Book::new(self.engine.handle().open_venue(venue, 0, 0)?))
    }

    /// Checks all balances, and ends the engine. `held`: units in holds that are left.
    fn stop(self, books: Vec<Book>, held: u64) -> anyhow::Result<Options> {
        drop(books);
        let mut caller = Caller::new(self.engine.handle());
        let mut all_held = 0;
        for asset in [BASE, QUOTE] {
            let mut sum = 0;
            for user in 1..=FEES {
                match caller.ask(command::Command::ReadBalance { user, asset }) {
                    Answer::Balance { available: Some(available), held, .. } => {
                        sum += available + held;
                        all_held += held;
                    }
                    other => panic!("user {user}: {other:?}"),
                }
            }
            assert_eq!(sum, u128::from(MONEY) * u128::from(FEES), "asset {asset}");
        }
        assert_eq!(all_held, u128::from(held), "held");
        self.engine.stop();
        Ok(self.options)
    }
}

/// RESERVE and RELEASE in turns, by each book in turn, each behind the end of the one before.
/// Latencies of decisions.
fn decide(books: &mut [&mut Book], count: u64) -> Latencies {
    let mut latencies = Latencies::new();
    for round in 0..count / 2 {
        let place = usize::try_from(round).expect("64 bits") % books.len();
        let book = &mut *books[place];
        let hold = book.next;
        let release = Command::Release { reference: round, hold, amount: ALL };
        for command in [reserve(1, QUOTE, 50), release] {
            let sent = Instant::now();
            book.push(&command);
            while !book.take_decided() {
                std::hint::spin_loop();
            }
            latencies.record(sent.elapsed());
            book.flush();
        }
    }
    latencies
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

    /// Takes one reply, if there is one.
    fn take_decided(&mut self) -> bool {
        let reply = self.session.decided();
        let success = matches!(reply, None | Some(Reply::Answer { code: None, .. }));
        assert!(success, "{reply:?}");
        reply.is_some()
    }

    /// Returns whether anything has come, or has become durable.
    fn take_ready(&mut self) -> bool {
        let mut any = false;
        while self.take_decided() {
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
    fn pairs(&mut self, count: u64) -> Duration {
        let began = Instant::now();
        for round in 0..count {
            let (payer, payee) = traders(round);
            let hold = self.push(&reserve(payer, QUOTE, 50));
            let legs = [leg(Place::Hold(hold), payee, QUOTE, 50)].into_iter().collect();
            self.push(&Command::Settle { reference: round, legs });
        }
        self.flush();
        began.elapsed()
    }

    /// Two orders and their trade; `cancels` of ten pairs of orders are cancelled instead.
    fn trade(&mut self, count: u64, cancels: u64) -> Duration {
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
        began.elapsed()
    }

    /// Pairs of orders, of which 3 of 10 are cancelled; returns their number.
    fn trade_for(&mut self, length: Duration) -> u64 {
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < length {
            self.trade(ROUND, 3);
            done += ROUND;
        }
        done
    }

    /// Holds that stay.
    fn open_holds(&mut self, count: u64) {
        for round in 0..count {
            self.push(&reserve(1 + round % TRADERS, QUOTE, 1));
        }
        self.flush();
    }

    /// RESERVE and RELEASE in turns, each behind the durable answer of the one before.
    fn one_at_a_time(&mut self, count: u64) -> Latencies {
        let mut latencies = Latencies::new();
        let mut hold = 0;
        for round in 0..count {
            let command = match round % 2 {
                0 => reserve(1, QUOTE, 50),
                _ => Command::Release { reference: round, hold, amount: ALL },
            };
            let sent = Instant::now();
            hold = self.push(&command);
            self.flush();
            latencies.record(sent.elapsed());
        }
        latencies
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
