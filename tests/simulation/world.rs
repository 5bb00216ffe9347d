//! One run: clients, an operator, one process after the other, and a supervisor that strikes where
//! the seed demands.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::account::{AccountStatus, UserId};
use domain::amount::{Amount, PRECISION_MAX};
use domain::asset::{Asset, AssetId, AssetStatus, Catalog};
use domain::code::Code;
use domain::transfer::{Cid, Direction, Intent, Op, ReqId};
use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use ubscore::adapters::funding::Funding;
use ubscore::clock::Clock;
use ubscore::coordinator::{
    Accepted, Coordinator, Options, Parts, Request, Settled, Submitted, TransactionNumbers,
};
use ubscore::entropy::Entropy;
use ubscore::gate::Gate;
use ubscore::postgres::flight::EventIds;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::store::{External, Transfer, fingerprint};
use ubscore::task::{Failed, Tasks};
use ubscore::transactions::{self, TransactionParts, Transactions};
use ubscore::validation::Checked;
use wal::memory::Memory;

use super::callers::TransactionCaller;
use super::chance::Chance;
use super::holder::Holder;
use super::journal::{Connection, Streams};
use super::law::{Broken, Law, Side};
use super::link::TransactionLink;
use super::parties::{Services, WorldParties};
use super::postgres::Postgres;
use super::process::{Life, Process, ProcessClock};
use super::spot::{Spot, SpotModel};
use super::time::Time;

/// Users that a store holds in memory: fewer than there are, so that it forgets some.
const USERS_HELD: usize = 4;

/// The one asset.
pub(super) const ASSET: AssetId = AssetId(1);
/// The end of the faults; clients still active then are left alone.
const FAULTS_END: Duration = Duration::from_secs(20);
/// Within this time after the last fault everything must be terminal.
const REST: Duration = Duration::from_secs(60);
/// After this time a strike that has met no point hits anyway.
const ARMED: Duration = Duration::from_millis(150);

/// Intended bugs of the shims, to test the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A refund finds the outcome of its withdraw under the same req_id and takes it for its own.
    RefundByReqIdOnly,
    /// A refusal is answered and not recorded.
    RefusalNotRecorded,
    /// A participant that does not answer counts as one that has refused.
    CompensateOnTimeout,
    /// UBSCore answers after it has applied, not after it has synced.
    AnsweredBeforeSync,
    /// A COMMIT that became a ROLLBACK counts as a COMMIT.
    CommitIgnored,
    /// PostgreSQL checks whether an operation is recorded, and does not record it.
    SelectWithoutInsert,
    /// The incarnation is not compared.
    FenceUnchecked,
    /// A flight that was given up may commit after a later one.
    LateFlightCommitted,
    /// The watermark passes transfers that have not ended.
    ForgottenEarly,
    /// A refund into an account that is not active is refused, and recorded so.
    RefundRefused,
    /// A second accept with a user's cid makes a second transfer.
    CidForgotten,
    /// A status is answered and forgotten.
    StatusIgnored,
    /// A sync returns before the disk has written.
    SyncTooSoon,
    /// UBSCore finds nothing recorded for any query.
    QueryBlind,
    /// An operator's refusal is answered though a success is recorded.
    ResolveOverrules,
    /// An external operation is answered before its record is in the log.
    ExternalUnrecorded,
    /// A leg of a transaction from or to the outside is answered without its record in the log.
    OutsideUnrecorded,
    /// A deposit without a place for its account is not decided, and its money stays in flight.
    PlaceUndecided,
    /// A flight commits under any free number, whether or not its predecessor is in the journal.
    PredecessorUnchecked,
    /// The deletion of old rows of the journal takes a shard's last row.
    JournalEndDeleted,
    /// The deletion of old rows of the journal leaves some of them.
    JournalHole,
    /// A balance is written without a comparison of its row.
    BalanceUnchecked,
    /// A flight of unknown end counts as rolled back because its row is absent.
    AbsenceTrusted,
    /// A flight counts as committed when it is sent.
    AnsweredBeforeJournal,
    /// Money that is set apart stays available too.
    HoldStaysAvailable,
    /// A hold that was released is settled.
    SettledBehindRelease,
    /// A repeat of a Settle finds no hold, and settles again.
    RepeatSettlesTwice,
    /// To abort a transaction that is not there writes nothing.
    AbortByAbsence,
    /// A caller's commit does not look at the branches.
    UntriedCommitted,
    /// A decision compares no state, and passes a row that a session holds.
    DecisionUnlocked,
    /// Money that arrives with a transaction can be used before its end.
    ArrivingAvailable,
    /// The writes of transactions do not compare the incarnation.
    TransactionsUnfenced,
    /// A caller's decision counts as sealed once it is read.
    SealIgnored,
    /// Money that is set apart out of a freeze stays in it too.
    FreezeStays,
    /// An operator ends a special account that a transaction names.
    SpecialUnsetNamed,
    /// A round is accepted without a look at its special accounts.
    SpecialUnchecked,
}

impl Bug {
    pub(super) const ALL: [Bug; 36] = [
        Bug::RefundByReqIdOnly,
        Bug::RefusalNotRecorded,
        Bug::CompensateOnTimeout,
        Bug::AnsweredBeforeSync,
        Bug::CommitIgnored,
        Bug::SelectWithoutInsert,
        Bug::FenceUnchecked,
        Bug::LateFlightCommitted,
        Bug::ForgottenEarly,
        Bug::RefundRefused,
        Bug::CidForgotten,
        Bug::StatusIgnored,
        Bug::SyncTooSoon,
        Bug::QueryBlind,
        Bug::ResolveOverrules,
        Bug::ExternalUnrecorded,
        Bug::OutsideUnrecorded,
        Bug::PlaceUndecided,
        Bug::PredecessorUnchecked,
        Bug::JournalEndDeleted,
        Bug::JournalHole,
        Bug::BalanceUnchecked,
        Bug::AbsenceTrusted,
        Bug::AnsweredBeforeJournal,
        Bug::HoldStaysAvailable,
        Bug::SettledBehindRelease,
        Bug::RepeatSettlesTwice,
        Bug::AbortByAbsence,
        Bug::UntriedCommitted,
        Bug::DecisionUnlocked,
        Bug::ArrivingAvailable,
        Bug::TransactionsUnfenced,
        Bug::SealIgnored,
        Bug::FreezeStays,
        Bug::SpecialUnsetNamed,
        Bug::SpecialUnchecked,
    ];

    /// Whether it shows in a world with transactions only.
    pub(super) fn needs_transactions(self) -> bool {
        matches!(
            self,
            Bug::AbortByAbsence
                | Bug::UntriedCommitted
                | Bug::DecisionUnlocked
                | Bug::ArrivingAvailable
                | Bug::TransactionsUnfenced
                | Bug::SealIgnored
                | Bug::FreezeStays
                | Bug::SpecialUnsetNamed
                | Bug::SpecialUnchecked
        )
    }
}

/// The points at which a strike may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    FlightArrived,
    FlightDone,
    Decided,
    Synced,
    Answered,
}

const POINTS: [Point; 5] =
    [Point::FlightArrived, Point::FlightDone, Point::Decided, Point::Synced, Point::Answered];

/// The kinds of strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Strike {
    /// The process is killed; the page cache survives.
    Kill,
    /// The machine loses power: any unsynced sector may be lost.
    PowerCut,
    /// PostgreSQL crashes: messages under way are carried out or not.
    ServerCrash,
    /// The process is stopped for a while.
    Stop,
    /// The process is stopped, another takes its place and its disk, and the first continues.
    Supersede,
    /// Another takes its place while it runs.
    Usurp,
    /// The gate is closed for a while.
    Halt,
    /// The disk is full for a while.
    DiskFull,
}

pub(super) const STRIKES: [Strike; 8] = [
    Strike::Kill,
    Strike::PowerCut,
    Strike::ServerCrash,
    Strike::Stop,
    Strike::Supersede,
    Strike::Usurp,
    Strike::Halt,
    Strike::DiskFull,
];

/// The seed's decisions before the run begins.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) bug: Option<Bug>,
    /// Workers of each process; one if the gate is closed, since tokio wakes several watchers in
    /// any order.
    shards: u32,
    fuse: bool,
    batch_max: usize,
    pub(super) users: u64,
    clients: u64,
    errands: u64,
    pub(super) travel_us_max: u64,
    pub(super) sync_us_max: u64,
    pub(super) postgres_fault_one_in: u64,
    pub(super) spot_fault_one_in: u64,
    pub(super) accounts_max: usize,
    pub(super) outcomes_max: usize,
    statuses: u64,
    /// How often operators retry or resolve a transfer.
    attentions: u64,
    /// How often another session changes a balance.
    changes_from_outside: u64,
    /// Transactions over holds of Funding.
    pub(super) transactions: u64,
    /// Transactions of each caller over both stores and services, made by the production worker.
    pub(super) deals: u64,
    /// The rows of the journal that each shard keeps.
    journal_kept: u64,
    /// The flights after which a transfer is listed by number.
    open_flights: u64,
    watermark_every_ms: u64,
    /// How long an outcome is kept before the watermark may pass it.
    keep: Duration,
    accept_wait: Duration,
    backoff_base_ms: u64,
    strikes: Vec<(Duration, Point, Strike)>,
}

impl Plan {
    fn new(chance: &mut Chance, bug: Option<Bug>) -> Plan {
        let mut strikes = Vec::new();
        let mut at = Duration::ZERO;
        // Some come so fast that they hit the process that recovers from the one before.
        let (count, apart_ms) =
            chance.pick(&[(0, 1), (1, 300), (3, 400), (6, 600), (8, 200), (12, 30)]);
        for _ in 0..count {
            at += Duration::from_millis(chance.between(1, apart_ms));
            strikes.push((at, chance.pick(&POINTS), chance.pick(&STRIKES)));
        }
        let halts = strikes.iter().any(|(.., strike)| *strike == Strike::Halt);
        let shards = if halts { 1 } else { chance.pick(&[1, 2, 3]) };
        Plan {
            bug,
            shards,
            fuse: chance.one_in(2),
            batch_max: chance.pick(&[1, 3, 16]),
            users: chance.between(1, 3),
            clients: chance.between(2, 5),
            errands: chance.between(3, 8),
            travel_us_max: chance.pick(&[300, 2_000, 12_000]),
            // The last is longer than any caller waits for an answer.
            sync_us_max: chance.pick(&[100, 1_000, 8_000, 150_000]),
            postgres_fault_one_in: chance.pick(&[0, 3, 8, 20]),
            spot_fault_one_in: chance.pick(&[0, 3, 8, 20]),
            accounts_max: 8,
            outcomes_max: chance.pick(&[50, 80, 1_000]),
            statuses: chance.pick(&[0, 3, 10]),
            attentions: 0,
            changes_from_outside: 0,
            transactions: 0,
            deals: 0,
            journal_kept: 0,
            open_flights: 0,
            watermark_every_ms: chance.pick(&[5, 50, 200, 1_000]),
            keep: Duration::from_millis(chance.pick(&[0, 0, 800])),
            // The first is shorter than a flight may take: an unknown accept is given up.
            accept_wait: Duration::from_millis(chance.pick(&[30, 250])),
            backoff_base_ms: chance.pick(&[4, 100]),
            strikes,
        }
    }
}

/// The coordinator of a process.
pub(super) type Coordinating = Coordinator<Spot, Funding<FlightStore<Connection>>>;

/// A process that takes requests.
pub(super) struct Serving {
    process: Arc<Process>,
    pub(super) coordinator: Arc<Coordinating>,
    /// The handle of the worker of transactions, and the numbers that it has in use.
    pub(super) transactions: Option<Transactions>,
    numbers: Option<TransactionNumbers>,
    spot: Arc<SpotModel>,
    /// The gate of the coordinator, and that of the worker of transactions: tokio wakes several
    /// watchers of one in any order.
    gates: [Arc<Gate>; 2],
    disk: Memory,
}

/// The counts of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Transfers by last state.
    pub(super) endings: BTreeMap<i16, u64>,
    pub(super) strikes: BTreeMap<Strike, u64>,
    /// Transactions that have ended, by last state.
    pub(super) transactions: BTreeMap<i16, u64>,
    /// Transfers that operators have ended.
    pub(super) resolved: u64,
    /// Calls and orders that met a fault on their way.
    pub(super) faults: u64,
    pub(super) events: u64,
    pub(super) virtual_ms: u64,
    /// A digest of every event, in order, with its time.
    pub(super) digest: u64,
}

#[derive(Debug, Default)]
struct Trace {
    verbose: bool,
    events: u64,
    digest: u64,
    strikes: BTreeMap<Strike, u64>,
}

/// The state of a run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) time: Arc<Time>,
    pub(super) law: Mutex<Law>,
    pub(super) postgres: Mutex<Postgres>,
    /// The services that take part in transactions.
    pub(super) services: Mutex<Services>,
    chance: Mutex<Chance>,
    trace: Mutex<Trace>,
    faulty: AtomicBool,
    faults: AtomicU64,
    armed: Mutex<Option<(Point, Strike)>>,
    struck: Mutex<Option<Strike>>,
    serving: Mutex<Option<Arc<Serving>>>,
    catalog: Arc<ArcSwap<Catalog>>,
}

/// The transactions of each caller in a world. Few worlds have them, and they take long.
fn deals(seed: u64) -> u64 {
    Chance::new(seed.rotate_left(48) ^ 0xdea1).pick(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 5])
}

/// Whether a world has transactions of callers.
pub(super) fn has_deals(seed: u64) -> bool {
    deals(seed) > 0
}

/// Runs one seed to its end, or to the first broken law.
pub(super) fn run(seed: u64, bug: Option<Bug>, verbose: bool) -> (Tally, Result<(), Broken>) {
    let mut chance = Chance::new(seed);
    // Separate from the rest, so that seeds without them keep their events.
    let mut attending = Chance::new(!seed);
    let attentions = attending.pick(&[0, 0, 4, 12]);
    // With one account, the first deposits of two users race for it.
    let accounts_max = attending.pick(&[8, 8, 2, 1]);
    let changes_from_outside = attending.pick(&[0, 0, 0, 6]);
    let journal_kept = attending.pick(&[1, 2, 1_000]);
    let rest = Plan::new(&mut chance, bug);
    let open_flights = Chance::new(seed.rotate_left(32)).pick(&[5, 20, 100_000]);
    let mut holding = Chance::new(seed.rotate_left(16) ^ 0x5eed);
    let transactions = holding.pick(&[0, 0, 3, 8]);
    let deals = deals(seed);
    // A transaction without a place on Spot is asked about until its age ends it.
    let accounts_max = if deals > 0 { 8 } else { accounts_max };
    let plan = Plan {
        attentions,
        accounts_max,
        deals,
        changes_from_outside,
        transactions,
        journal_kept,
        open_flights,
        ..rest
    };
    if verbose {
        println!("seed {seed}: {plan:?}");
    }
    let world = Arc::new(World {
        plan,
        time: Arc::default(),
        law: Mutex::default(),
        postgres: Mutex::new(Postgres::new()),
        services: Mutex::default(),
        chance: Mutex::new(chance),
        trace: Mutex::new(Trace { verbose, ..Trace::default() }),
        faulty: AtomicBool::new(true),
        faults: AtomicU64::new(0),
        armed: Mutex::default(),
        struck: Mutex::default(),
        serving: Mutex::default(),
        catalog: Arc::new(ArcSwap::from_pointee(Catalog::new([asset()]))),
    });
    let time = Arc::clone(&world.time);
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        time.run(Arc::clone(&world).live(attending, holding));
    }));
    if let Err(panicked) = lived {
        world.law.lock().panicked(panicked.as_ref());
    }
    // The remains of a crash are not examined any more.
    *world.serving.lock() = None;
    let trace = world.trace.lock();
    let law = world.law.lock();
    let tally = Tally {
        endings: law.endings(),
        strikes: trace.strikes.clone(),
        transactions: law.transactions_ended(),
        resolved: law.resolved(),
        faults: world.faults.load(Ordering::Relaxed),
        events: trace.events,
        virtual_ms: time.now_ns() / 1_000_000,
        digest: trace.digest,
    };
    (tally, law.broken().map_or(Ok(()), |broken| Err(broken.clone())))
}

fn asset() -> Asset {
    Asset {
        id: ASSET,
        symbol: "USDT".to_owned(),
        precision: PRECISION_MAX,
        status: AssetStatus::Active,
        transfer_enabled: true,
        transfer_min: Amount::new(1).expect("not 0"),
        transfer_max: Amount::new(1_000_000).expect("not 0"),
    }
}

impl World {
    pub(super) fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock()
    }

    pub(super) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        self.chance().pick(choices)
    }

    /// Whether a fault happens now.
    pub(super) fn fault(&self, one_in: u64) -> bool {
        let fault = self.faulty.load(Ordering::Relaxed) && self.chance().one_in(one_in);
        self.faults.fetch_add(u64::from(fault), Ordering::Relaxed);
        fault
    }

    pub(super) fn trace(&self, what: fmt::Arguments<'_>) {
        let now_ns = self.time.now_ns();
        let mut trace = self.trace.lock();
        let line = what.to_string();
        if trace.verbose {
            println!("{:>9}.{:03} {line}", now_ns / 1_000_000, now_ns / 1_000 % 1_000);
        }
        trace.events += 1;
        let text = line.as_bytes();
        let hash = xxhash_rust::xxh3::xxh3_64_with_seed(text, trace.digest ^ now_ns);
        trace.digest = hash;
    }

    /// Starts a task of its own. A panic in it is a broken law like any other.
    pub(super) fn spawn(
        self: &Arc<World>,
        doing: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let world = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(panicked) = AssertUnwindSafe(doing).catch_unwind().await {
                world.law.lock().panicked(panicked.as_ref());
            }
        })
    }

    fn serving_now(&self) -> Option<Arc<Serving>> {
        self.serving.lock().clone()
    }

    /// A task is at `point`: hits with the strike armed for it.
    pub(super) fn point(&self, point: Point) {
        let strike = {
            let mut armed = self.armed.lock();
            match *armed {
                Some((at, strike)) if at == point => {
                    *armed = None;
                    strike
                }
                Some(_) | None => return,
            }
        };
        self.strike(strike);
    }

    /// The immediate effect of a strike; the supervisor does the rest.
    fn strike(&self, strike: Strike) {
        let Some(serving) = self.serving_now() else { return };
        self.trace(format_args!("--- {strike:?}"));
        *self.trace.lock().strikes.entry(strike).or_default() += 1;
        match strike {
            Strike::Kill | Strike::PowerCut => serving.process.set(Life::Dead),
            Strike::Stop | Strike::Supersede => serving.process.set(Life::Stopped),
            Strike::Usurp => {}
            Strike::Halt => serving.gates.iter().for_each(|gate| gate.close()),
            Strike::DiskFull => serving.disk.limit_space(Some(0)),
            Strike::ServerCrash => {
                let lost = {
                    let mut postgres = self.postgres.lock();
                    postgres.up = false;
                    postgres.lives += 1;
                    postgres.transacted.crash(|| self.chance().one_in(2))
                };
                let mut law = self.law.lock();
                lost.iter().for_each(|before| law.transaction_lost(before));
            }
        }
        *self.struck.lock() = Some(strike);
    }

    /// Starts a process on the contents of a disk.
    fn start(self: &Arc<World>, disk: Memory) {
        let (number, claim, watermark, open) = self.postgres.lock().begin(self.plan.shards + 1);
        self.trace(format_args!("--- incarnation {number} begins"));
        self.law.lock().begun(number);
        let ahead_ns = self.chance().below(3_000_000_000);
        let process = Process::new(number, Arc::clone(&self.time), ahead_ns);
        let externals = self.postgres.lock().externals();
        let spot = SpotModel::start(self, &process, disk.clone(), (claim, watermark), &externals);
        let clock: Arc<dyn Clock> = Arc::new(ProcessClock(Arc::clone(&process)));
        let events = Arc::new(EventIds::new(number));
        let store = |shard| {
            let journal = Connection::new(Arc::clone(self), Arc::clone(&process), shard);
            let (catalog, clock, events) =
                (Arc::clone(&self.catalog), Arc::clone(&clock), Arc::clone(&events));
            let told = Arc::new(Streams { world: Arc::clone(self), incarnation: number, shard });
            FlightStore::new(journal, catalog, clock, events, told, USERS_HELD)
        };
        let gates = [(); 2].map(|()| Arc::new(Gate::new(false)));
        let [durable, capacity, vacancy] = [(); 3].map(|()| Arc::clone(&spot));
        let parts = Parts {
            spot: Arc::new(Spot(Arc::clone(&spot))),
            funding: Arc::new(Funding::new(store(self.plan.shards), Arc::clone(&self.catalog))),
            clock: Arc::clone(&clock),
            options: Options {
                fuse: self.plan.fuse,
                queue_max: 32,
                batch_max: self.plan.batch_max,
                active_max: 32,
                parked_max: 4,
                open_flights: self.plan.open_flights,
                parked_calls_max: 3,
                backoff_base_ms: self.plan.backoff_base_ms,
                backoff_cap_ms: 400,
                stale_ms: 1_500,
                stuck_ms: 60_000,
                accept_wait: self.plan.accept_wait,
                clean_wait: Duration::ZERO,
                kept: self.plan.outcomes_max / 8,
            },
            incarnation: number,
            watermark,
            open,
            durable: Arc::new(move || durable.durable()),
            capacity: Arc::new(move || capacity.capacity()),
            vacancy: Arc::new(move || vacancy.vacancy()),
            gate: Arc::clone(&gates[0]),
            halt: Arc::new(|reason| panic!("halted: {reason}")),
            clean: None,
        };
        let stores = (0..self.plan.shards).map(store).collect();
        let mut chance = self.chance().fork();
        let entropy = || -> Box<dyn Entropy> { Box::new(chance.fork()) };
        let mut tasks = Tasks::default();
        let coordinator = Arc::new(Coordinator::start(parts, stores, entropy, &mut tasks));
        let parts = (Arc::clone(&process), Arc::clone(&coordinator), Arc::clone(&spot));
        let begun = (self.plan.deals > 0)
            .then(|| self.begin_transactions(parts, (&clock, &gates[1]), &mut tasks));
        let (transactions, numbers) = begun.unzip();
        let world = Arc::clone(self);
        let of_tasks = Arc::clone(&process);
        self.spawn(async move {
            // A worker ends by itself when the world drops its coordinator.
            let failed = loop {
                match tasks.failed().await {
                    Failed::Ended { .. } => {}
                    failed => break failed,
                }
            };
            world.trace(format_args!("process {} ends: {failed}", of_tasks.number));
            if let Failed::Broken { source, .. } = failed {
                world.law.lock().breach("no worker breaks", source.to_string());
            }
            of_tasks.set(Life::Dead);
        });
        let serving = Serving { process, coordinator, transactions, numbers, spot, gates, disk };
        let serving = Arc::new(serving);
        self.spawn(Arc::clone(self).keep_watermark(Arc::clone(&serving)));
        *self.serving.lock() = Some(serving);
    }

    /// Starts the production worker of transactions of a process.
    fn begin_transactions(
        self: &Arc<World>,
        parts: (Arc<Process>, Arc<Coordinating>, Arc<SpotModel>),
        (clock, gate): (&Arc<dyn Clock>, &Arc<Gate>),
        tasks: &mut Tasks,
    ) -> (Transactions, TransactionNumbers) {
        let (process, coordinator, spot) = parts;
        let (handle, inbox) = Transactions::new(32);
        let numbers = coordinator.transaction_numbers();
        let of_shortage = Arc::clone(&coordinator);
        let (world, of_link) = (Arc::clone(self), Arc::clone(&process));
        let of_special = Arc::clone(self);
        let branches = WorldParties { world, process, coordinator, spot };
        // Each draw is a statement: the lock of the numbers ends with it.
        let entropy = Box::new(self.chance().fork());
        let jitter = Box::new(self.chance().fork());
        let tick = Duration::from_millis(self.pick(&[30, 150, 600]));
        let parts = TransactionParts {
            branches: Arc::new(branches),
            clock: Arc::clone(clock),
            entropy,
            gate: Arc::clone(gate),
            numbers: numbers.clone(),
            shortage: Arc::new(move || of_shortage.shortage()),
            special: Arc::new(move |user, asset| of_special.knows_special(user, asset)),
            told: Arc::new(|_| {}),
            silent: Arc::default(),
            options: transactions::Options {
                tick,
                active_max: 32,
                fuse: self.plan.fuse,
                backoff_base_ms: self.plan.backoff_base_ms,
                backoff_cap_ms: 400,
                stuck_ms: 60_000,
                accept_wait: Duration::from_millis(250),
            },
        };
        let store = TransactionLink::new(Arc::clone(self), of_link);
        transactions::start(parts, store, jitter, inbox, tasks);
        (handle, numbers)
    }

    /// The work of `coordinator::watermark` with a real PostgreSQL, with the same promises of the
    /// workers.
    async fn keep_watermark(self: Arc<World>, serving: Arc<Serving>) {
        loop {
            self.time.sleep(Duration::from_millis(self.plan.watermark_every_ms)).await;
            serving.process.awake().await;
            let users = (1..=self.plan.users).map(user);
            let low = users.map(|user| serving.coordinator.order_number_low(user)).min();
            let over = serving.numbers.as_ref().map(|numbers| numbers.over().unwrap_or(0));
            let low = low.map(|low| low.min(over.unwrap_or(u64::MAX)));
            let open = serving.coordinator.open_transfers();
            let travel = self.chance().micros(50, self.plan.travel_us_max);
            self.time.sleep(travel).await;
            if serving.gates[0].is_closed() || !self.postgres.lock().up {
                continue;
            }
            let raised = {
                let (number, low) = (serving.process.number, low.unwrap_or(0));
                let mut postgres = self.postgres.lock();
                postgres.set_time(self.time.now_ns());
                postgres.trim(self.plan.journal_kept, self.plan.bug);
                open.into_iter().for_each(|open| postgres.note_open(number, open));
                postgres.raise_watermark(number, low, self.plan.keep, self.plan.bug)
            };
            let Some(watermark) = raised else { return };
            self.law.lock().watermark(watermark);
            serving.process.awake().await;
            serving.spot.raise_watermark(watermark).await;
            if self.chance().one_in(3) {
                serving.spot.mark();
            }
        }
    }

    /// The whole run.
    async fn live(self: Arc<World>, mut attending: Chance, mut holding: Chance) {
        if self.plan.deals > 0 {
            self.open_special();
        }
        self.start(Memory::new());
        let mut busy: Vec<JoinHandle<()>> = Vec::new();
        for number in 0..self.plan.clients {
            let chance = self.chance().fork();
            let client = Client { world: Arc::clone(&self), number, chance, known: Vec::new() };
            busy.push(self.spawn(client.live()));
        }
        let chance = self.chance().fork();
        busy.push(self.spawn(Arc::clone(&self).operate(chance)));
        let outside = attending.fork();
        if self.plan.attentions > 0 {
            busy.push(self.spawn(Arc::clone(&self).attend(attending)));
        }
        if self.plan.changes_from_outside > 0 {
            busy.push(self.spawn(Arc::clone(&self).change_from_outside(outside)));
        }
        for _ in 0..if self.plan.transactions > 0 { 2 } else { 0 } {
            let holder = Holder { world: Arc::clone(&self), chance: holding.fork() };
            busy.push(self.spawn(holder.live(u64::try_from(busy.len()).expect("few"))));
        }
        for number in 0..if self.plan.deals > 0 { 3 } else { 0 } {
            let caller = TransactionCaller { world: Arc::clone(&self), chance: holding.fork() };
            busy.push(self.spawn(caller.live(number)));
        }
        if self.plan.deals > 0 {
            busy.push(self.spawn(Arc::clone(&self).keep_special(holding.fork())));
        }
        let mut strikes = self.plan.strikes.clone().into_iter().peekable();
        let mut armed_until = Duration::ZERO;
        while busy.iter().any(|task| !task.is_finished()) && self.now() < FAULTS_END {
            self.time.sleep(Duration::from_millis(2)).await;
            if self.law.lock().broken().is_some() {
                return;
            }
            let struck = self.struck.lock().take();
            if let Some(strike) = struck {
                self.recover(strike).await;
                continue;
            }
            self.replace_if_dead().await;
            let late = { *self.armed.lock() }.filter(|_| self.now() >= armed_until);
            if let Some((_, strike)) = late {
                *self.armed.lock() = None;
                self.strike(strike);
            } else if let Some((_, point, strike)) =
                strikes.next_if(|(at, ..)| *at <= self.now() && self.armed.lock().is_none())
            {
                *self.armed.lock() = Some((point, strike));
                armed_until = self.now() + ARMED;
            }
        }
        *self.armed.lock() = None;
        let struck = self.struck.lock().take();
        if let Some(strike) = struck {
            self.recover(strike).await;
        }
        self.faulty.store(false, Ordering::Relaxed);
        self.trace(format_args!("--- no more faults"));
        let end = self.now() + REST;
        // Late messages may still arrive, and everything must be at rest after them.
        self.time.sleep(Duration::from_secs(2)).await;
        let at_rest = || {
            let postgres = self.postgres.lock();
            let law = self.law.lock();
            postgres.all_terminal()
                && postgres.transacted.rests()
                && law.has_recorded(&postgres.externals())
                && law.has_sent()
        };
        while self.now() < end && !at_rest() {
            self.replace_if_dead().await;
            self.time.sleep(Duration::from_millis(20)).await;
        }
        self.replace_if_dead().await;
        self.judge();
    }

    /// The last check of both stores: as they are, and as they would be after a power cut.
    fn judge(self: &Arc<World>) {
        let serving = self.serving_now().expect("a process always serves");
        serving.spot.mark();
        serving.spot.show_balances();
        let states = {
            let postgres = self.postgres.lock();
            postgres.show_balances(&mut self.law.lock());
            postgres.states()
        };
        let externals = self.postgres.lock().externals();
        let business = self.postgres.lock().transacted.business().clone();
        self.law.lock().transactions_at_rest(&business);
        self.law.lock().rest(&states);
        self.law.lock().externals_at_rest(&externals);
        let sent = self.law.lock().has_sent();
        self.law.lock().claim(sent, "every committed flight is sent", String::new);
        serving.process.set(Life::Dead);
        let disk = serving.disk.crash(|| false);
        let process = Process::new(0, Arc::clone(&self.time), 0);
        let durable = self.law.lock().log_len();
        SpotModel::start(self, &process, disk, (durable, 0), &[]);
    }

    fn now(&self) -> Duration {
        Duration::from_nanos(self.time.now_ns())
    }

    /// Replaces a process that has found that it may not continue, and ended.
    async fn replace_if_dead(self: &Arc<World>) {
        let serving = self.serving_now().expect("a process always serves");
        if serving.process.life() == Life::Dead {
            self.nap(1, 50).await;
            self.start(serving.disk.kill());
        }
    }

    async fn nap(&self, low_ms: u64, high_ms: u64) {
        let nap = self.chance().micros(low_ms * 1_000, high_ms * 1_000);
        self.time.sleep(nap).await;
    }

    async fn recover(self: &Arc<World>, strike: Strike) {
        let serving = self.serving_now().expect("a process always serves");
        match strike {
            Strike::Kill => {
                self.nap(1, 100).await;
                self.start(serving.disk.kill());
            }
            Strike::PowerCut => {
                self.nap(1, 100).await;
                let disk = self.cut_power(&serving.disk);
                self.start(disk);
            }
            Strike::ServerCrash => {
                self.nap(1, 400).await;
                self.postgres.lock().up = true;
            }
            Strike::Stop => {
                self.nap(1, 500).await;
                serving.process.set(Life::Running);
            }
            Strike::Supersede | Strike::Usurp => {
                self.nap(1, 100).await;
                let killed = self.chance().one_in(2);
                let disk = match killed {
                    true => serving.disk.kill(),
                    false => self.cut_power(&serving.disk),
                };
                // One log, one process: a process that opens a disk takes it away from the earlier
                // one.
                serving.disk.stop_after(0);
                self.start(disk);
                if strike == Strike::Supersede {
                    let (world, process) = (Arc::clone(self), Arc::clone(&serving.process));
                    self.spawn(async move {
                        world.nap(1, 1_500).await;
                        world.trace(format_args!("process {} is back", process.number));
                        process.set(Life::Running);
                    });
                }
            }
            Strike::Halt => {
                self.nap(1, 500).await;
                serving.gates.iter().for_each(|gate| gate.open());
            }
            Strike::DiskFull => {
                self.nap(1, 2_000).await;
                serving.disk.limit_space(None);
            }
        }
    }

    fn cut_power(&self, disk: &Memory) -> Memory {
        let mut chance = self.chance().fork();
        disk.crash(|| chance.one_in(2))
    }

    /// The process that takes requests; waits for one.
    pub(super) async fn service(&self) -> Arc<Serving> {
        loop {
            if let Some(serving) = self.serving_now()
                && serving.process.life() != Life::Dead
            {
                return serving;
            }
            self.time.sleep(Duration::from_millis(7)).await;
        }
    }

    /// The result within `limit_ms`, for a caller outside.
    pub(super) async fn within<T>(
        &self,
        limit_ms: u64,
        doing: impl Future<Output = T>,
    ) -> Option<T> {
        let limit = self.time.sleep(Duration::from_millis(limit_ms));
        tokio::select! {
            biased;
            come = doing => Some(come),
            () = limit => None,
        }
    }

    /// The operator: freezes, disables and activates accounts on both sides.
    async fn operate(self: Arc<World>, mut chance: Chance) {
        use AccountStatus::{Active, Disabled, Frozen};
        for _ in 0..self.plan.statuses {
            self.time.sleep(chance.micros(1_000, 120_000)).await;
            let number = chance.between(1, self.plan.users);
            let status = chance.pick(&[Active, Active, Frozen, Disabled, Disabled]);
            let side = chance.pick(&[Side::Funding, Side::Spot]);
            let serving = self.service().await;
            self.law.lock().status_begun(side, number);
            let answered = match side {
                Side::Spot => {
                    let set = serving.spot.set_status(number, status);
                    self.within(400, set).await == Some(true)
                }
                Side::Funding => {
                    let (actor, reason) = ("operator".to_owned(), "a test".to_owned());
                    let set =
                        serving.coordinator.set_funding_status(user(number), status, actor, reason);
                    matches!(self.within(400, set).await, Some(Ok(())))
                }
            };
            self.trace(format_args!("{side:?} of {number}: {status:?}, answered {answered}"));
            if answered {
                self.law.lock().status_answered(side, number, status);
            }
        }
    }
}

impl World {
    /// The operator at night: retries transfers at once, or resolves them, with or without need.
    async fn attend(self: Arc<World>, mut chance: Chance) {
        for _ in 0..self.plan.attentions {
            self.time.sleep(chance.micros(1_000, 120_000)).await;
            // Mostly one that is under way.
            let (open, ended): (Vec<_>, Vec<_>) = {
                let states = self.postgres.lock().states();
                let open = |state: &i16| matches!(state, 0 | 10 | 20 | 30 | -20);
                states.into_iter().partition(|(_, state)| open(state))
            };
            let from = if open.is_empty() || chance.one_in(6) { ended } else { open };
            if from.is_empty() {
                continue;
            }
            let (number, _) = chance.pick(&from);
            let Some(transfer) = self.postgres.lock().read(number) else { continue };
            let Intent { user, req_id, .. } = transfer.intent;
            let tries = chance.pick(&[1, 1, 3]);
            let resolve = !chance.one_in(4);
            for _ in 0..tries {
                let serving = self.service().await;
                if resolve {
                    self.resolve(&serving, user, req_id).await;
                } else {
                    let retried = serving.coordinator.retry(user, req_id);
                    self.within(400, retried).await;
                }
                self.time.sleep(chance.micros(100, 40_000)).await;
            }
        }
    }

    /// A person with SQL, who gives money in the middle of everything.
    async fn change_from_outside(self: Arc<World>, mut chance: Chance) {
        for _ in 0..self.plan.changes_from_outside {
            self.time.sleep(chance.micros(1_000, 120_000)).await;
            let (number, units) = (chance.between(1, self.plan.users), chance.between(1, 9));
            self.trace(format_args!("{units} to user {number} from outside"));
            let mut postgres = self.postgres.lock();
            if postgres.up {
                postgres.change_from_outside(number, ASSET.0, units, &mut self.law.lock());
            }
        }
    }

    async fn resolve(&self, serving: &Serving, user: UserId, req_id: ReqId) {
        let number = req_id.number();
        self.law.lock().resolve_begun(number);
        let answer = self.within(400, serving.coordinator.resolve(user, req_id)).await;
        let read = match answer {
            Some(Ok(progress)) => progress.borrow().clone(),
            Some(Err(rejection)) => {
                self.trace(format_args!("resolve {req_id}: {rejection:?}"));
                if !rejection.unknown {
                    self.law.lock().resolve_denied(number);
                }
                return;
            }
            None => return,
        };
        // Settled, like every other read.
        let Some(Ok(Settled { transfer, .. })) =
            self.within(400, serving.coordinator.settled(read)).await
        else {
            return;
        };
        self.trace(format_args!("resolve {req_id}: {} {:?}", transfer.state.name(), transfer.code));
        let by_operator = transfer.code == Some(Code::ResolvedByOperator);
        self.law.lock().resolve_answered(number, transfer.state.number(), by_operator);
        self.point(Point::Answered);
    }
}

pub(super) fn user(number: u64) -> UserId {
    UserId::new(number).expect("not 0")
}

/// A client: does one thing after the other, and asks again if no answer comes.
struct Client {
    world: Arc<World>,
    number: u64,
    chance: Chance,
    /// The transfers that it has been answered with.
    known: Vec<ReqId>,
}

impl Client {
    async fn live(mut self) {
        let number = self.number % self.world.plan.users + 1;
        self.external(number, Op::ExtDeposit, "opening", 250).await;
        for errand in 0..self.world.plan.errands {
            let pause = self.chance.micros(0, 60_000);
            self.world.time.sleep(pause).await;
            let name = format!("{}-{errand}", self.number);
            let amount = self.chance.between(1, 60);
            match self.chance.below(10) {
                0 => self.external(number, Op::ExtDeposit, &name, amount).await,
                1 => self.external(number, Op::ExtWithdraw, &name, amount / 4 + 1).await,
                _ => self.transfer(number, name, amount).await,
            }
            if !self.known.is_empty() && self.chance.one_in(2) {
                let req_id = self.chance.pick(&self.known);
                self.get(req_id).await;
            }
        }
    }

    async fn external(&mut self, number: u64, op: Op, name: &str, units: u64) {
        let external = External {
            idem_key: format!("{}-{name}", self.number),
            op,
            user: user(number),
            asset: ASSET,
            amount: Amount::new(units).expect("not 0"),
            actor: "gateway".to_owned(),
            order_number: 0,
        };
        // Whether no try so far can have had an effect.
        let mut clean = true;
        loop {
            let serving = self.world.service().await;
            let call = serving.coordinator.external(external.clone());
            match self.world.within(500, call).await {
                Some(Ok(decided)) => {
                    self.world.law.lock().external_answered(&external.idem_key, decided.decision);
                    // It asks again and gets the same answer.
                    if !self.chance.one_in(4) {
                        return;
                    }
                    clean = false;
                }
                Some(Err(rejection)) if !rejection.unknown => {
                    let done = self.world.postgres.lock().has_external(&external.idem_key);
                    let mut law = self.world.law.lock();
                    law.claim(!(clean && done), "denied is not done", || format!("{external:?}"));
                }
                Some(Err(_)) | None => clean = false,
            }
            let pause = self.chance.micros(1_000, 80_000);
            self.world.time.sleep(pause).await;
        }
    }

    async fn transfer(&mut self, number: u64, name: String, units: u64) {
        use Direction::{FundingToSpot, SpotToFunding};
        // More go to Spot, which is empty at first.
        let direction = self.chance.pick(&[FundingToSpot, FundingToSpot, SpotToFunding]);
        let (from, to) = direction.accounts();
        let cid = (!self.chance.one_in(5)).then(|| Cid::new(&name).expect("a cid"));
        let amount = Amount::new(units).expect("not 0");
        let request = || Request {
            user: user(number),
            cid: cid.clone(),
            checked: Checked { direction, asset: asset(), amount },
            fingerprint: fingerprint(from, to, "USDT", &units.to_string()),
            reservation: None,
            pauses: Arc::default(),
        };
        // Without a cid a request may not be repeated.
        let tries = if cid.is_some() { 12 } else { 1 };
        let mut handed_over = Vec::new();
        for _ in 0..tries {
            let serving = self.world.service().await;
            if let Some(cid) = cid.clone().filter(|_| self.chance.one_in(4)) {
                let find = serving.coordinator.find_cid(user(number), cid.clone());
                let found = self.world.within(500, find).await;
                let mut law = self.world.law.lock();
                match found {
                    Some(Ok(Some(found))) => {
                        law.named(number, cid.as_str(), found.intent.req_id.number());
                    }
                    // Requests submitted before must not be accepted any more.
                    Some(Ok(None)) => {
                        for req_id in &handed_over {
                            law.denied(*req_id);
                        }
                    }
                    Some(Err(_)) | None => {}
                }
            }
            match serving.coordinator.submit(request()).await {
                Err(_) => {}
                Ok(Submitted { req_id, reply, quiet }) => {
                    handed_over.push(req_id.number());
                    let patience_ms = self.chance.pick(&[5, 40, 500]);
                    // Half of the users are woken once, as in HTTP, and half at each step.
                    if number.is_multiple_of(2) {
                        self.world.within(patience_ms, quiet).await;
                    }
                    match self.world.within(patience_ms, reply).await {
                        Some(Ok(Ok(accepted))) => {
                            let req_id = accepted.progress.borrow().intent.req_id;
                            if let Some(cid) = &cid {
                                let mut law = self.world.law.lock();
                                law.named(number, cid.as_str(), req_id.number());
                            }
                            self.known.push(req_id);
                            let ended = self.follow(&serving, accepted).await;
                            // It asks again and gets the same answer.
                            if ended && !self.chance.one_in(4) {
                                return;
                            }
                        }
                        Some(Ok(Err(rejection))) if !rejection.unknown => {
                            self.world.law.lock().denied(req_id.number());
                        }
                        Some(Ok(Err(_)) | Err(_)) | None => {}
                    }
                }
            }
            let pause = self.chance.micros(1_000, 80_000);
            self.world.time.sleep(pause).await;
        }
    }

    /// Waits for the end, as a request does; returns whether it has come.
    async fn follow(&mut self, serving: &Serving, accepted: Accepted) -> bool {
        let mut progress = accepted.progress;
        let patience_ms = self.chance.between(5, 1_500);
        let ended = progress.wait_for(|transfer| transfer.state.is_terminal());
        let ended = self.world.within(patience_ms, ended).await.is_some_and(|last| last.is_ok());
        let transfer = progress.borrow().clone();
        if ended {
            self.hear(&transfer);
            return true;
        }
        // The workers of an ending process drop their clients in no fixed order.
        let pause = self.chance.micros(1, 2_000);
        self.world.time.sleep(pause).await;
        self.settled(serving, transfer).await
    }

    /// The answer of a GET of a transfer.
    async fn get(&mut self, req_id: ReqId) {
        let serving = self.world.service().await;
        let row = self.world.postgres.lock().read(req_id.number());
        let pause = self.chance.micros(50, 5_000);
        self.world.time.sleep(pause).await;
        if let Some(transfer) = row {
            self.settled(&serving, transfer).await;
        }
    }

    async fn settled(&mut self, serving: &Serving, transfer: Transfer) -> bool {
        let settled = serving.coordinator.settled(transfer);
        match self.world.within(200, settled).await {
            // Read so long ago that it has ended since and may be forgotten: production knows its
            // own watermark.
            Some(Ok(settled))
                if !settled.transfer.state.is_terminal()
                    && self.world.law.lock().may_be_forgotten(&settled.transfer.intent) =>
            {
                false
            }
            Some(Ok(settled)) => {
                self.hear(&settled.transfer);
                settled.transfer.state.is_terminal()
            }
            Some(Err(_)) | None => false,
        }
    }

    fn hear(&self, transfer: &Transfer) {
        let (req_id, state) = (transfer.intent.req_id, transfer.state);
        self.world.trace(format_args!("client {}: {req_id} {}", self.number, state.name()));
        self.world.law.lock().answered(req_id.number(), state.number());
        self.world.point(Point::Answered);
    }
}
