//! UBSCore in virtual time: the production core, ledger and log over a medium in memory, without
//! their threads.
//!
//! Timers replace the ring, the core thread and the sync thread. An order takes its time to the
//! core, which decides and appends. A sync comes a little later and releases the answers of all
//! records that it covers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use domain::account::AccountStatus;
use domain::code::Code;
use domain::form::{Form, check_form};
use domain::hold::HoldKey;
use domain::shortage::{Capacity, Vacancy};
use domain::transfer::{Decision, ExternalOperation, Op, ReqId};
use engine::command::Command;
use engine::core::{Core, VENUES_SEGMENT_BYTES_MIN};
use engine::entry::Entry;
use engine::external::External;
use engine::ledger::{Answer as CoreAnswer, Ledger, Step};
use engine::named::{Named, NamedPosting};
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::recorded::Recorded;
use engine::replay::Replay;
use engine::text::Text;
use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use ubscore::adapters::{Adapter, Answer, Ask, Outcome, Reason, Route};
use wal::memory::Memory;
use wal::{Identity, Log, Options, Progress, Reader, Recovery, Sequence};

use super::law::Side;
use super::process::{Life, Process};
use super::world::{ASSET, Bug, Point, World};

/// A coordinator's time limit for an answer.
const TIMEOUT: Duration = Duration::from_millis(40);
/// Holds of transactions and freezes: more than are there at once.
const HOLDS_MAX: usize = 128;
/// The smallest, so that runs roll.
const SEGMENT_BYTES: u64 = 16 * 1024;

type Released = (Sequence, oneshot::Sender<CoreAnswer>, CoreAnswer);

struct Machine {
    core: Core<Memory>,
    syncer: wal::Syncer<Memory>,
    preparer: wal::Preparer<Memory>,
    durable: wal::Durable,
    /// Reads the durable records, for the judge.
    reader: Reader<Memory>,
    waiting: VecDeque<Released>,
    sync_coming: bool,
}

/// The Spot participant of one process.
pub(super) struct SpotModel {
    world: Arc<World>,
    process: Arc<Process>,
    machine: Mutex<Machine>,
}

/// A command on its way to the core.
#[derive(Clone, Debug)]
enum Errand {
    Command(Command),
    /// A posting by name.
    Named(Op, Box<NamedPosting>),
}

/// The fate of an order on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    AnswerLost,
    Late,
    Doubled,
    Overloaded,
    NetworkError,
}

impl SpotModel {
    /// Replays the log on `medium` and opens it for appending. `claim`: the durable sequence known
    /// to PostgreSQL.
    pub(super) fn start(
        world: &Arc<World>,
        process: &Arc<Process>,
        medium: Memory,
        (claim, watermark): (Sequence, u64),
        externals: &[ExternalOperation],
    ) -> Arc<SpotModel> {
        let places = Places::of_transfers(world.plan.accounts_max, world.plan.outcomes_max);
        // Postings by name take places of holds.
        let venues = VenuePlaces { holds_max: HOLDS_MAX, ..VenuePlaces::NONE };
        let places = if world.plan.deals > 0 { Places { venues, ..places } } else { places };
        let mut recovery = Recovery::open(medium.clone(), claim, 1).expect("no damage");
        let mut replay = Replay::begin(None, Ledger::new(places)).expect("nothing to load");
        let mut records = 0;
        let mut law = world.law.lock();
        while let Some(record) = recovery.next().expect("no damage") {
            records += 1;
            law.logged(&record);
            replay.take(&record).expect("what it has written");
        }
        law.recovered(records);
        drop(law);
        let segment_bytes =
            if world.plan.deals > 0 { VENUES_SEGMENT_BYTES_MIN } else { SEGMENT_BYTES };
        let options = Options { segment_bytes, spares_ready: 1 };
        let (log, _) = recovery.start(Identity(7), options).expect("space");
        let Log { writer, syncer, preparer, durable } = log;
        let core = Core::new(replay.finish().expect("what it has written"), writer);
        let reader = Reader::open(medium, records + 1).expect("the log just opened");
        let (waiting, sync_coming) = (VecDeque::new(), false);
        let machine = Machine { core, syncer, preparer, durable, reader, waiting, sync_coming };
        let (world, process) = (Arc::clone(world), Arc::clone(process));
        let spot = SpotModel { world, process, machine: Mutex::new(machine) };
        {
            let machine = &mut *spot.machine.lock();
            let symbol = Text::new("USDT").expect("short");
            let learn = Command::RegisterAsset { asset: ASSET.0, precision: 6, symbol };
            machine.core.decide(&learn, spot.world.time.now_ns());
            // Like a real start: a process may have died between the commit of an external
            // operation and its record.
            let log_watermark = machine.core.ledger().watermark();
            for external in externals.iter().filter(|one| one.order_number >= log_watermark) {
                let record = Command::External(External::new(external));
                machine.core.decide(&record, spot.world.time.now_ns());
            }
            let raise = Command::RaiseWatermark { order_number: watermark };
            machine.core.decide(&raise, spot.world.time.now_ns());
            spot.sync(machine);
        }
        spot.show_balances();
        Arc::new(spot)
    }

    pub(super) fn durable(&self) -> Sequence {
        self.machine.lock().durable.durable()
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.machine.lock().core.capacity()
    }

    pub(super) fn vacancy(&self) -> Vacancy {
        let machine = self.machine.lock();
        let ledger = machine.core.ledger();
        Vacancy {
            outcomes: ledger.places_left(),
            accounts: ledger.accounts_left(),
            balances: ledger.balances_left(),
        }
    }

    pub(super) fn show_balances(&self) {
        let machine = self.machine.lock();
        if machine.durable.durable() < machine.core.ledger().sequence() {
            // The judge adds up the durable records.
            return;
        }
        let mut law = self.world.law.lock();
        for (user, asset, units) in machine.core.ledger().balances() {
            let units = i128::try_from(units).expect("a sum of amounts");
            law.balance(Side::Spot, user, asset, units);
        }
    }

    /// Sets a status. Statuses keep their order, as on the ring.
    pub(super) async fn set_status(
        self: &Arc<SpotModel>,
        user: u64,
        status: AccountStatus,
    ) -> bool {
        self.process.awake().await;
        let answer = self.decide(&Command::SetStatus { user, status });
        matches!(self.process.within(TIMEOUT, answer).await, Some(Ok(CoreAnswer::Done)))
    }

    pub(super) async fn raise_watermark(self: &Arc<SpotModel>, order_number: u64) {
        let answer = self.decide(&Command::RaiseWatermark { order_number });
        self.process.within(TIMEOUT, answer).await;
    }

    /// The answer to a posting by name, `None` if none came in time.
    pub(super) async fn post(
        self: &Arc<SpotModel>,
        op: Op,
        posting: NamedPosting,
    ) -> Option<CoreAnswer> {
        self.bring(Errand::Named(op, Box::new(posting))).await.ok()
    }

    fn decide(self: &Arc<SpotModel>, command: &Command) -> oneshot::Receiver<CoreAnswer> {
        self.take(&Errand::Command(*command))
    }

    /// The core thread takes a command. The answer comes once it is durable.
    fn take(self: &Arc<SpotModel>, errand: &Errand) -> oneshot::Receiver<CoreAnswer> {
        let (answer_to, answer) = oneshot::channel();
        let mut machine = self.machine.lock();
        if machine.durable.poisoned() {
            // The process has ended and cannot answer.
            self.process.set(Life::Dead);
            return answer;
        }
        let bug = self.world.plan.bug;
        let now_ns = self.world.time.now_ns();
        let (reply, after) = match errand {
            Errand::Command(Command::Query { .. }) if bug == Some(Bug::QueryBlind) => {
                hand_over(answer_to, CoreAnswer::Query(None));
                return answer;
            }
            Errand::Command(command) => {
                if let Some(reply) = planted(&machine.core, command, bug) {
                    hand_over(answer_to, reply);
                    return answer;
                }
                machine.core.decide(command, now_ns)
            }
            Errand::Named(op, posting) => machine.core.name(&mut Named::new(*op, posting), now_ns),
        };
        self.world.trace(format_args!(
            "core {}: {} -> {}, record {after}",
            self.process.number,
            brief_errand(errand),
            brief_answer(&reply),
        ));
        if bug == Some(Bug::AnsweredBeforeSync) {
            hand_over(answer_to, reply);
        } else {
            machine.waiting.push_back((after, answer_to, reply));
        }
        if !machine.sync_coming {
            machine.sync_coming = true;
            let (spot, delay) = (Arc::clone(self), self.world.plan.sync_us_max);
            let delay = self.world.chance().micros(20, delay);
            self.world.spawn(async move {
                spot.world.point(Point::Decided);
                spot.world.time.sleep(delay).await;
                spot.process.awake().await;
                spot.sync(&mut spot.machine.lock());
                spot.world.point(Point::Synced);
            });
        }
        answer
    }

    /// The sync thread: makes the appended records durable, shows them to the judge, and releases
    /// the answers.
    fn sync(&self, machine: &mut Machine) {
        machine.sync_coming = false;
        let too_soon = self.world.plan.bug == Some(Bug::SyncTooSoon);
        let synced = match too_soon && self.world.chance().one_in(2) {
            true => Ok(machine.durable.appended()),
            false => machine.syncer.sync(),
        };
        while !machine.durable.poisoned() && matches!(machine.preparer.tick(), Ok(Progress::Busy)) {
        }
        let (Ok(durable), false) = (synced, machine.durable.poisoned()) else {
            // Another process has the disk now. A process without a log ends.
            self.world.trace(format_args!("process {} has lost its log", self.process.number));
            self.process.set(Life::Dead);
            return;
        };
        let mut law = self.world.law.lock();
        while law.log_len() < durable {
            let record = machine.reader.next().expect("no damage").expect("it is durable");
            law.logged(&record);
        }
        drop(law);
        while machine.waiting.front().is_some_and(|(after, ..)| *after <= durable) {
            let (_, answer_to, answer) = machine.waiting.pop_front().expect("looked at");
            hand_over(answer_to, answer);
        }
    }

    /// Appends a mark, as an idle core does.
    pub(super) fn mark(&self) {
        let machine = &mut *self.machine.lock();
        if !machine.sync_coming && !machine.durable.poisoned() {
            machine.core.mark();
            self.sync(machine);
        }
    }

    /// The fate and the answer of one order, as the command made by `command`.
    async fn one(self: &Arc<SpotModel>, ask: &Ask, command: fn(Order) -> Command) -> Answer {
        if self.check(ask).is_err() {
            return Answer::without_record(Outcome::Unknown(Reason::Malformed));
        }
        self.carry(command(Order::new(&ask.intent, ask.op))).await
    }

    /// The fate and the answer of one command on its way to the core and back.
    async fn carry(self: &Arc<SpotModel>, command: Command) -> Answer {
        self.bring(Errand::Command(command)).await.map_or_else(|unknown| unknown, read)
    }

    /// The core's answer, or the one of a fault.
    async fn bring(self: &Arc<SpotModel>, errand: Errand) -> Result<CoreAnswer, Answer> {
        use Fate::*;
        let fate = match self.world.fault(self.world.plan.spot_fault_one_in) {
            false => Arrives,
            true => self.world.pick(&[
                Lost,
                AnswerLost,
                AnswerLost,
                Late,
                Late,
                Doubled,
                Overloaded,
                NetworkError,
            ]),
        };
        match fate {
            Overloaded => return Err(Answer::without_record(Outcome::Unknown(Reason::Overloaded))),
            NetworkError => return Err(Answer::without_record(Outcome::NetworkError)),
            _ => {}
        }
        let (answer_to, answer) = oneshot::channel();
        let late = TIMEOUT * if fate == Late { 2 } else { 0 };
        let travel = self.world.chance().micros(5, self.world.plan.travel_us_max) + late;
        let deliver = Arc::clone(self).deliver(errand.clone(), travel);
        self.world.spawn(async move {
            let reply = if fate == Lost { None } else { deliver.await };
            match reply {
                Some(reply) if fate != AnswerLost => hand_over(answer_to, reply),
                // The caller gets no sign that the answer is lost.
                Some(_) | None => std::future::pending().await,
            }
        });
        if fate == Doubled {
            let travel = self.world.chance().micros(5, 300_000);
            let twin = Arc::clone(self).deliver(errand, travel);
            self.world.spawn(async move {
                twin.await;
            });
        }
        match self.process.within(TIMEOUT, answer).await {
            Some(Ok(reply)) => Ok(reply),
            Some(Err(_)) | None if self.world.plan.bug == Some(Bug::CompensateOnTimeout) => {
                let refused = Outcome::ExplicitFail(Code::SystemError);
                Err(Answer { outcome: refused, log_sequence: None })
            }
            Some(Err(_)) | None => Err(Answer::without_record(Outcome::Timeout)),
        }
    }

    /// One copy of an order on its way to the core, and the answer.
    async fn deliver(self: Arc<SpotModel>, errand: Errand, travel: Duration) -> Option<CoreAnswer> {
        self.world.time.sleep(travel).await;
        self.process.awake().await;
        let answer = self.take(&errand);
        let reply = answer.await.ok();
        self.process.awake().await;
        reply
    }
}

/// The answer of a core with this bug, made without a decision; `None` if the core answers
/// normally.
fn planted(core: &Core<Memory>, command: &Command, bug: Option<Bug>) -> Option<CoreAnswer> {
    let order = command.order()?;
    let step = core.ledger().step(command);
    if let (
        Some(Bug::ResolveOverrules),
        Command::Refuse { .. },
        Step::Known(CoreAnswer::Decided(known)),
    ) = (bug, command, &step)
    {
        let decision = Decision::Refused(Code::ResolvedByOperator);
        return Some(CoreAnswer::Decided(Recorded { decision, ..*known }));
    }
    let Step::Append(Entry::Order { decision, balance_after, imposed, .. }) = step else {
        return None;
    };
    if bug == Some(Bug::PlaceUndecided) && imposed && matches!(command, Command::Order(_)) {
        return Some(CoreAnswer::Overloaded);
    }
    let by_req_id = bug == Some(Bug::RefundByReqIdOnly) && order.op == Op::Refund;
    let unrecorded =
        bug == Some(Bug::RefusalNotRecorded) && matches!(decision, Decision::Refused(_));
    (by_req_id || unrecorded).then(|| {
        let sequence = core.ledger().sequence();
        CoreAnswer::Decided(Recorded::new(order, decision, balance_after, sequence, 0))
    })
}

/// A send error means that the caller has stopped waiting; the decision stays recorded.
fn hand_over(answer_to: oneshot::Sender<CoreAnswer>, answer: CoreAnswer) {
    answer_to.send(answer).unwrap_or(());
}

fn brief_errand(errand: &Errand) -> String {
    match errand {
        Errand::Command(command) => brief_command(command),
        Errand::Named(op, posting) => {
            let NamedPosting { transaction, round, legs, .. } = &**posting;
            format!("{} {transaction}, round {round}, {} legs", op.name(), legs.len())
        }
    }
}

fn brief_command(command: &Command) -> String {
    match command {
        Command::Order(order) => {
            format!("{} {:026x} of {}", order.op.name(), order.req_id, order.amount)
        }
        Command::Refuse { order, .. } => {
            format!("refuse {} {:026x}", order.op.name(), order.req_id)
        }
        Command::External(external) => {
            let (op, idem_key) = (external.op.name(), external.idem_key.as_str());
            format!("{op} {idem_key} of {}: {:?}", external.amount, external.decision)
        }
        Command::RegisterAsset { asset, .. } => format!("asset {asset}"),
        other => format!("{other:?}"),
    }
}

fn brief_answer(answer: &CoreAnswer) -> String {
    match answer {
        CoreAnswer::Decided(recorded) => {
            format!("{:?} in record {}", recorded.decision, recorded.sequence)
        }
        other => format!("{other:?}"),
    }
}

/// The meaning of a core's answer, as in `adapters::spot`.
fn read(reply: CoreAnswer) -> Answer {
    let unknown = |reason| Answer::without_record(Outcome::Unknown(reason));
    match reply {
        CoreAnswer::Decided(recorded) | CoreAnswer::Query(Some(recorded)) => {
            Answer { outcome: recorded.decision.into(), log_sequence: Some(recorded.sequence) }
        }
        CoreAnswer::Query(None) => unknown(Reason::NotRecorded),
        CoreAnswer::Violation(_) => unknown(Reason::Violation),
        CoreAnswer::Forgotten => unknown(Reason::Forgotten),
        CoreAnswer::Overloaded => unknown(Reason::Overloaded),
        _ => unknown(Reason::Mismatched),
    }
}

/// The Spot adapter as the coordinator holds it.
pub(super) struct Spot(pub(super) Arc<SpotModel>);

impl SpotModel {
    fn check(&self, ask: &Ask) -> Result<(), Code> {
        let intent = &ask.intent;
        check_form(Form {
            req_id: intent.req_id.number(),
            user: intent.user.number(),
            amount: intent.amount.units(),
            asset_known: intent.asset == ASSET,
        })
        .map(|_| ())
    }
}

impl Spot {
    async fn decide(&self, asks: &[Ask], command: fn(Order) -> Command) -> Vec<Answer> {
        self.0.process.awake().await;
        for ask in asks {
            self.0.world.law.lock().asked(ask.intent.req_id.number(), ask.op);
        }
        join_all(asks.iter().map(|ask| self.0.one(ask, command))).await
    }
}

impl Adapter for Spot {
    const ROUTE: Route = Route::Apart;

    fn check(&self, ask: &Ask) -> Result<(), Code> {
        self.0.check(ask)
    }

    async fn foresee(&self, ask: &Ask) -> Result<(), Code> {
        self.0.process.awake().await;
        let answer = self.0.decide(&Command::Foresee(Order::new(&ask.intent, ask.op)));
        match self.0.process.within(TIMEOUT, answer).await {
            Some(Ok(CoreAnswer::Foreseen(foreseen))) => foreseen,
            Some(_) | None => Err(Code::Overloaded),
        }
    }

    async fn ask(&self, asks: Vec<Ask>) -> Vec<Answer> {
        self.decide(&asks, Command::Order).await
    }

    async fn refuse(&self, asks: Vec<Ask>) -> Vec<Answer> {
        let refuse = |order| Command::Refuse { order, code: Code::ResolvedByOperator };
        self.decide(&asks, refuse).await
    }

    async fn record(&self, operations: Vec<ExternalOperation>) -> Vec<Answer> {
        self.0.process.awake().await;
        if self.0.world.plan.bug == Some(Bug::ExternalUnrecorded) {
            let reply = |one: &ExternalOperation| Answer::without_record(one.decision.into());
            return operations.iter().map(reply).collect();
        }
        let lost = self.0.world.plan.bug == Some(Bug::OutsideUnrecorded);
        join_all(operations.iter().map(async |one| {
            match lost && HoldKey::of_external(one.idem_key.as_str()).is_some() {
                true => Answer::without_record(one.decision.into()),
                false => self.0.carry(Command::External(External::new(one))).await,
            }
        }))
        .await
    }

    async fn query(&self, req_id: ReqId, op: Op) -> Answer {
        self.0.process.awake().await;
        let answer = self.0.decide(&Command::Query { req_id: req_id.number(), op });
        match self.0.process.within(TIMEOUT, answer).await {
            Some(Ok(reply)) => read(reply),
            Some(Err(_)) | None => Answer::without_record(Outcome::Timeout),
        }
    }
}
