//! One run: users, operators and two channels, one process after the other, and a supervisor that
//! ends them. All faults end at a time; then everything must come to rest.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use domain::account::UserId;
use domain::amount::{Amount, PRECISION_MAX};
use domain::asset::{Asset, AssetId, AssetStatus, Catalog};
use futures_util::FutureExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use ubscore::channels::ChannelLimits;
use ubscore::postgres::flight::{Flight, Stopped};
use ubscore::recharge::ReturnId;
use ubscore::recharge::answers::ChannelDoubt;
use ubscore::recharge::proof::ProofKeys;
use ubscore::recharge::terms::{ChannelTerms, PaymentRule, RechargePolicy};
use ubscore::till::step::Pace;

use super::bank::{Bank, CHANNELS, CURRENCY, limits_of};
use super::desk::Shop;
use super::judge::Judge;
use super::people;
use super::tables::Tables;
use crate::simulation::chance::Chance;
use crate::simulation::law::Broken;
use crate::simulation::time::Time;

/// The asset of both channels.
pub(super) const ASSET: AssetId = AssetId(4);
/// Decimals of the asset.
pub(super) const PRECISION: u8 = 6;
/// Smallest units of one minor unit.
pub(super) const UNITS_OF_MINOR: u64 = 10_000;
/// The users.
const USERS: u64 = 3;
/// 2026-01-01, microseconds since the Unix epoch.
const EPOCH_US: i64 = 1_767_225_600_000_000;
/// For so long a process waits for a channel.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// Everything must rest so long behind the last fault.
const REST: Duration = Duration::from_hours(6);

/// Intended bugs, of the process or of its tables. Each must be found by a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// A callback is marked as seen in another store before its payment is committed.
    DedupeBeforeCommit,
    /// A channel is told success before the commit.
    SuccessFirst,
    /// A payment is matched with its order by the channel's number.
    MatchByTradeNo,
    /// An order is closed here before its channel has closed it.
    CloseHereFirst,
    /// The answer to a close ends an order, without the question behind it.
    CloseAnswerEnds,
    /// An order with a wish to be closed is created again.
    CreateBehindWish,
    /// The till carries out an old decision on a new version of its row.
    OldVersion,
    /// A create is sent before its try is written.
    TryAfterCall,
    /// A hint is taken for a payment.
    CreditOnHint,
    /// The price is credited, and not the part that arrives.
    GrossCredited,
    /// A second payment is decided on an old row of its order, and credited.
    SecondCredited,
    /// A refund without an answer counts as refused.
    ReleaseOnUnknown,
    /// A refund that takes long counts as refused.
    ReleaseOnTimeout,
    /// A refund that was accepted counts as done.
    DoneOnAccepted,
    /// Each try of a return has a number of its own at the channel.
    NewReturnNumber,
    /// A refund is sent before its try is written.
    SendAfterCall,
    /// A taking that is told again is booked again.
    TakenTwice,
    /// A receivable is ended again by a repeat.
    ReceivableEndedTwice,
}

impl Planted {
    /// Every planted bug.
    pub(super) const ALL: [Planted; 18] = [
        Planted::DedupeBeforeCommit,
        Planted::SuccessFirst,
        Planted::MatchByTradeNo,
        Planted::CloseHereFirst,
        Planted::CloseAnswerEnds,
        Planted::CreateBehindWish,
        Planted::OldVersion,
        Planted::TryAfterCall,
        Planted::CreditOnHint,
        Planted::GrossCredited,
        Planted::SecondCredited,
        Planted::ReleaseOnUnknown,
        Planted::ReleaseOnTimeout,
        Planted::DoneOnAccepted,
        Planted::NewReturnNumber,
        Planted::SendAfterCall,
        Planted::TakenTwice,
        Planted::ReceivableEndedTwice,
    ];

    /// The law that it breaks.
    pub(super) fn law(self) -> &'static str {
        use Planted::*;
        match self {
            DedupeBeforeCommit | SuccessFirst => "RL4 durable before success is told",
            MatchByTradeNo => "RL1 a payment belongs to the order that it names",
            CloseHereFirst => "RL5 closed only where the channel takes no more",
            CloseAnswerEnds => "RL5 closed only where nothing is paid",
            CreateBehindWish | OldVersion => "RL10 no create behind the wish",
            TryAfterCall | SendAfterCall => "RL10 a try is durable before its call",
            CreditOnHint | GrossCredited => "RL2 a payment is what its channel says",
            SecondCredited => "RL1 one credit an order",
            ReleaseOnUnknown | ReleaseOnTimeout => "RL5 a hold is released on a refusal alone",
            DoneOnAccepted => "RL5 a return is done by the channel's word",
            NewReturnNumber => "RL5 a return has one number at its channel",
            TakenTwice => "RL1 a taking is booked once",
            ReceivableEndedTwice => "RL8 a receivable is ended once",
        }
    }

    /// Whether its rows are read as they once were, and written without a look at the present ones.
    pub(super) fn reads_old(self) -> bool {
        use Planted::*;
        matches!(self, SecondCredited | TakenTwice | ReceivableEndedTwice)
    }
}

/// The choices of a seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) policy: RechargePolicy,
    pub(super) freezes: bool,
    pub(super) pace: Pace,
    /// The life of an unpaid order.
    pub(super) life: Duration,
    pub(super) close_after: Duration,
    pub(super) orders: u64,
    pub(super) faults_end: Duration,
    /// One message to a store or channel in so many fails; 0: none.
    pub(super) fault_one_in: u64,
    /// The process dies at one point in so many; 0: at none.
    pub(super) strike_one_in: u64,
    /// Channels send no message at all: the till alone finds payments.
    pub(super) silent: bool,
    /// A close may be promised and not kept.
    pub(super) lies: bool,
}

impl Plan {
    fn new(chance: &mut Chance) -> Plan {
        use PaymentRule::*;
        let policy = RechargePolicy {
            differing: chance.pick(&[Hold, Hold, Credit]),
            duplicate: chance.pick(&[Return, Return, Hold]),
            late: chance.pick(&[Credit, Credit, Return, Hold]),
        };
        let query_after = Duration::from_secs(chance.between(3, 15));
        let query_cap = Duration::from_secs(chance.between(20, 300));
        let silent = chance.one_in(8);
        Plan {
            policy,
            freezes: chance.one_in(2),
            pace: Pace { query_after, query_cap },
            life: Duration::from_secs(chance.between(30, 600)),
            close_after: Duration::from_secs(chance.between(0, 60)),
            orders: chance.between(2, 7),
            faults_end: Duration::from_secs(chance.between(300, 1_500)),
            fault_one_in: chance.pick(&[0, 60, 20, 8]),
            strike_one_in: chance.pick(&[0, 200, 80, 40]),
            silent,
            lies: !silent && chance.one_in(3),
        }
    }
}

/// Everything that has one order of events.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) tables: Tables,
    pub(super) bank: Bank,
    pub(super) judge: Judge,
    /// External operations with a record in UBSCore's log, by key.
    pub(super) log: BTreeSet<String>,
}

/// See the head of this file.
pub(super) struct Sim {
    pub(super) time: Arc<Time>,
    pub(super) plan: Plan,
    pub(super) planted: Option<Planted>,
    pub(super) state: Mutex<State>,
    /// Of [`Planted::DedupeBeforeCommit`]: it outlives the process.
    pub(super) seen: Mutex<BTreeSet<String>>,
    /// Messages of channels that were not taken yet.
    pub(super) letters: AtomicU64,
    chance: Mutex<Chance>,
    shop: Mutex<Option<Arc<Shop>>>,
    died: Notify,
    quiet: AtomicBool,
    steps: Option<Mutex<Vec<String>>>,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) tally: BTreeMap<&'static str, u64>,
    pub(super) judged: Result<(), Broken>,
    /// Only if they were asked for.
    pub(super) steps: Vec<String>,
}

/// The fate of a call of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallFate {
    Answers,
    Away,
    AnswerLost,
    Late,
}

pub(super) fn users() -> impl Iterator<Item = UserId> {
    (1..=USERS).map(|number| UserId::new(number).expect("not 0"))
}

pub(super) fn catalog() -> Catalog {
    let one = Amount::new(1).expect("not 0");
    const { assert!(PRECISION <= PRECISION_MAX) };
    Catalog::new([Asset {
        id: ASSET,
        symbol: CURRENCY.to_owned(),
        precision: PRECISION,
        status: AssetStatus::Active,
        transfer_enabled: true,
        transfer_min: one,
        transfer_max: Amount::new(u64::MAX >> 1).expect("not 0"),
    }])
}

/// The keys of proofs of this deployment.
pub(super) fn proofs() -> ProofKeys {
    ProofKeys::new("live", b"a secret of the simulation", None)
}

/// One run. `steps`: whether they are kept.
pub(super) fn run(seed: u64, planted: Option<Planted>, steps: bool) -> Run {
    let mut chance = Chance::new(seed);
    let plan = Plan::new(&mut chance.fork());
    let sim = Arc::new(Sim {
        time: Arc::default(),
        plan,
        planted,
        state: Mutex::default(),
        seen: Mutex::default(),
        letters: AtomicU64::new(0),
        chance: Mutex::new(chance),
        shop: Mutex::default(),
        died: Notify::new(),
        quiet: AtomicBool::new(false),
        steps: steps.then(Mutex::default),
    });
    sim.trace(|| format!("{:?}", sim.plan));
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        sim.time.run(Arc::clone(&sim).live());
    }));
    if let Err(panicked) = lived {
        sim.breach("nothing panics", text_of(panicked.as_ref()));
    }
    *sim.shop.lock() = None;
    let state = sim.state.lock();
    let judged = state.judge.broken().map_or(Ok(()), |broken| Err(broken.clone()));
    let steps = sim.steps.as_ref().map_or_else(Vec::new, |steps| steps.lock().clone());
    Run { tally: state.judge.tally.clone(), judged, steps }
}

fn text_of(panicked: &(dyn std::any::Any + Send)) -> String {
    let text = panicked.downcast_ref::<String>().cloned();
    text.or_else(|| panicked.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

impl Sim {
    pub(super) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.time.now_ns())
    }

    /// The time of everything, as exact as PostgreSQL keeps it.
    pub(super) fn now(&self) -> Timestamp {
        let us = i64::try_from(self.time.now_ns() / 1_000).expect("a run of hours");
        Timestamp::from_microsecond(EPOCH_US + us).expect("in 2026")
    }

    pub(super) fn trace(&self, what: impl FnOnce() -> String) {
        if let Some(steps) = &self.steps {
            let at = self.elapsed().as_secs_f64();
            steps.lock().push(format!("{at:10.3} {}", what()));
        }
    }

    pub(super) async fn sleep_ms(&self, low: u64, high: u64) {
        let pause = self.chance.lock().micros(low * 1_000, high * 1_000);
        self.time.sleep(pause).await;
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::Relaxed)
    }

    pub(super) fn one_in(&self, n: u64) -> bool {
        self.chance.lock().one_in(n)
    }

    /// True once in `n` times, as long as there are faults.
    pub(super) fn odd(&self, n: u64) -> bool {
        self.one_in(n) && !self.is_quiet()
    }

    /// Whether this message fails.
    pub(super) fn fails(&self) -> bool {
        self.odd(self.plan.fault_one_in)
    }

    /// Whether the process dies here.
    pub(super) fn strikes(&self) -> bool {
        self.odd(self.plan.strike_one_in)
    }

    pub(super) fn between(&self, low: u64, high: u64) -> u64 {
        self.chance.lock().between(low, high)
    }

    pub(super) fn pick<T: Copy>(&self, choices: &[T]) -> T {
        self.chance.lock().pick(choices)
    }

    pub(super) fn random(&self) -> u64 {
        self.chance.lock().draw()
    }

    pub(super) fn wide(&self) -> u128 {
        u128::from(self.random()) << 64 | u128::from(self.random())
    }

    pub(super) fn now_ns(&self) -> u64 {
        u64::try_from(EPOCH_US).expect("above 0") * 1_000 + self.time.now_ns()
    }

    pub(super) fn return_id(&self) -> ReturnId {
        ReturnId::generate(self.now_ns(), self.wide())
    }

    pub(super) fn terms(&self, channel: &str) -> Arc<ChannelTerms> {
        let (name, currency) = (channel.to_owned(), CURRENCY.to_owned());
        Arc::new(ChannelTerms { name, asset: ASSET, currency, minor_digits: 2 })
    }

    pub(super) fn limits(&self, channel: &str) -> ChannelLimits {
        limits_of(channel, self.plan.close_after)
    }

    pub(super) fn breach(&self, law: &'static str, what: String) {
        self.trace(|| format!("BROKEN {law}: {what}"));
        self.state.lock().judge.breach(law, what);
    }

    /// Work that may not panic unseen.
    pub(super) fn guarded(
        self: &Arc<Sim>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let sim = Arc::clone(self);
        AssertUnwindSafe(work).catch_unwind().map(move |end| {
            if let Err(panicked) = end {
                sim.breach("nothing panics", text_of(panicked.as_ref()));
            }
        })
    }

    /// Begins a task of the world, which outlives each process.
    pub(super) fn spawn(self: &Arc<Sim>, work: impl Future<Output = ()> + Send + 'static) {
        drop(tokio::spawn(self.guarded(work)));
    }

    /// Carries out a flight, and shows it to the judge.
    pub(super) fn fly(&self, incarnation: u64, shard: u32, flight: &Flight) -> Result<(), Stopped> {
        let mut state = self.state.lock();
        let now = self.now();
        let State { tables, bank, judge, .. } = &mut *state;
        let done = tables.fly(incarnation, shard, flight, self.planted);
        self.trace(|| {
            let rows = &flight.recharged;
            let end = match &done {
                Ok(()) => "commits".to_owned(),
                Err(stopped) => format!("fails: {stopped:?}"),
            };
            let moves: Vec<String> = rows
                .movements
                .iter()
                .map(|row| {
                    format!("{} {}>{} {}", row.key, row.debit, row.credit, row.amount.units())
                })
                .collect();
            format!(
                "flight {incarnation}/{shard}/{} {end}: {moves:?} {:?} {:?} {:?} {:?}",
                flight.number, rows.orders, rows.payments, rows.returns, rows.receivables
            )
        });
        if done.is_ok() {
            bank.advance(now);
            judge.committed(flight, bank, now);
        }
        done
    }

    /// Does something at the channels, and sends the messages that follow from it.
    pub(super) fn bank<R>(self: &Arc<Sim>, work: impl FnOnce(&mut Bank, Timestamp) -> R) -> R {
        let (end, outbox) = {
            let mut state = self.state.lock();
            let now = self.now();
            state.bank.advance(now);
            let end = work(&mut state.bank, now);
            (end, state.bank.take_outbox())
        };
        for (channel, notice) in outbox {
            self.trace(|| format!("{channel} has a message: {notice:?}"));
            if !self.plan.silent {
                self.letters.fetch_add(1, Ordering::Relaxed);
                self.spawn(people::deliver(Arc::clone(self), channel, notice));
            }
        }
        end
    }

    /// Calls a channel from a process. The call may be carried out without an answer, or long
    /// behind the process's patience.
    pub(super) async fn ask<R: Send + 'static + std::fmt::Debug>(
        self: &Arc<Sim>,
        work: impl FnOnce(&mut Bank, Timestamp) -> R + Send + 'static,
        doubt: impl FnOnce(ChannelDoubt) -> R,
    ) -> R {
        use CallFate::*;
        let fate = match self.fails() {
            false => Answers,
            true => self.pick(&[Away, AnswerLost, AnswerLost, Late]),
        };
        let (answer, answered) = oneshot::channel();
        let sim = Arc::clone(self);
        self.spawn(async move {
            match fate {
                Late => sim.sleep_ms(5_000, 120_000).await,
                _ => sim.sleep_ms(2, 300).await,
            }
            if fate == Away {
                return;
            }
            let end = sim.bank(work);
            sim.trace(|| format!("a channel ({fate:?}): {end:?}"));
            sim.sleep_ms(2, 100).await;
            if fate == Answers {
                drop(answer.send(end));
            }
        });
        let patience = self.time.sleep(CALL_LIMIT);
        tokio::select! {
            biased;
            end = answered => end.unwrap_or_else(|_| doubt(ChannelDoubt::Status(503))),
            () = patience => doubt(ChannelDoubt::Unanswered("no answer".to_owned())),
        }
    }

    /// Has work done in the process of now; `None`: there is none, or it dies meanwhile.
    pub(super) async fn at_shop<T: Send + 'static, W: Future<Output = T> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Shop>) -> W,
    ) -> Option<T> {
        let shop = self.shop.lock().clone()?;
        let (end, ended) = oneshot::channel();
        let doing = work(Arc::clone(&shop));
        shop.spawn(async move { drop(end.send(doing.await)) });
        drop(shop);
        ended.await.ok()
    }

    /// Ends the process of this incarnation.
    pub(super) fn kill(&self, incarnation: u64) {
        let mut shop = self.shop.lock();
        if let Some(dying) = shop.take_if(|shop| shop.incarnation == incarnation) {
            drop(shop);
            self.state.lock().judge.note("deaths");
            dying.die();
            self.died.notify_one();
        }
    }

    fn open_shop(self: &Arc<Sim>) {
        if self.shop.lock().is_none() {
            let shop = Shop::begin(self);
            self.trace(|| format!("process {} begins", shop.incarnation));
            shop.spawn(Arc::clone(&shop).mind());
            *self.shop.lock() = Some(shop);
        }
    }

    fn is_broken(&self) -> bool {
        self.state.lock().judge.broken().is_some()
    }

    async fn live(self: Arc<Sim>) {
        self.open_shop();
        people::begin(&self);
        while self.elapsed() < self.plan.faults_end && !self.is_broken() {
            let pause = Duration::from_secs(self.between(20, 200));
            let now = self.elapsed();
            let pause = pause.min(self.plan.faults_end.saturating_sub(now));
            tokio::select! {
                biased;
                () = self.died.notified() => {
                    self.sleep_ms(100, 40_000).await;
                    self.open_shop();
                }
                () = self.time.sleep(pause) => {
                    let incarnation = self.shop.lock().as_ref().map(|shop| shop.incarnation);
                    if let Some(incarnation) = incarnation.filter(|_| self.strikes()) {
                        self.kill(incarnation);
                    }
                }
            }
        }
        self.quiet.store(true, Ordering::Relaxed);
        self.trace(|| "all faults end".to_owned());
        self.open_shop();
        let over = self.elapsed() + REST;
        // Calls and flights that were late have arrived by then.
        self.time.sleep(Duration::from_secs(150)).await;
        while !self.is_broken() && !self.rests() {
            if self.elapsed() > over {
                let state = self.state.lock();
                let tables = &state.tables;
                let what = format!("{:?} {:?}", tables.orders, tables.returns);
                drop(state);
                self.breach("everything comes to rest", what);
            }
            self.time.sleep(Duration::from_secs(30)).await;
        }
        // The last answers and records.
        self.time.sleep(Duration::from_secs(30)).await;
        let mut state = self.state.lock();
        let State { tables, bank, judge, log } = &mut *state;
        if judge.broken().is_none() {
            judge.end(tables, bank, log, !self.plan.silent);
        }
        drop(state);
        let shop = self.shop.lock().take();
        if let Some(shop) = shop {
            shop.die();
        }
    }

    fn rests(self: &Arc<Sim>) -> bool {
        self.bank(|_, _| ());
        let state = self.state.lock();
        let letters = self.letters.load(Ordering::Relaxed);
        state.tables.next_due().is_none() && state.bank.rests() && letters == 0
    }
}

/// The channel of a number.
pub(super) fn channel_of(number: u64) -> &'static str {
    CHANNELS[usize::try_from(number % 2).expect("one of two")]
}
