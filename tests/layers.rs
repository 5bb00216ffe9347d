//! Every layer checks for itself: each is called directly with input that the layer above it would
//! have refused.
//!
//! A name, a user and an amount cannot be wrong above UBSCore: `ReqId`, `UserId` and `Amount` have
//! no such values. All other faults are tried at each layer. UBSCore reads plain numbers, so it
//! gets all faults.

use std::sync::Arc;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::{Asset, AssetId, AssetStatus};
use domain::code::Code;
use domain::shortage::{Capacity, Shortage, Vacancy};
use domain::transfer::{Cid, Decision, Direction, Intent, Op, ReqId};
use engine::command::Command;
use engine::ledger::Answer as EngineAnswer;
use engine::order::Order;
use engine::text::Text;
use engine::{Closed, Engine};
use ubscore::adapters::funding::Funding;
use ubscore::adapters::spot::{self, Spot};
use ubscore::adapters::{Adapter, Answer, Ask, Outcome, Reason};
use ubscore::clock::{Clock, SystemClock};
use ubscore::commands::dev;
use ubscore::coordinator::{Coordinator, Options, Parts, Request};
use ubscore::entropy::{Entropy, SystemEntropy};
use ubscore::gate::Gate;
use ubscore::postgres::database::Database;
use ubscore::postgres::flight::{EventIds, Told};
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::incarnation::Incarnation;
use ubscore::postgres::{self};
use ubscore::task::Tasks;
use ubscore::validation::Checked;

use crate::harness::{LIMITS, Site, block_on, catalog, database, small_engine, store_over};

const USER: u64 = 1001;
const USDT: u32 = 3;
const UNKNOWN_ASSET: u32 = 99;

fn begin(site: &Site) -> Incarnation {
    site.begin(&LIMITS, 2)
}

fn store(site: &Site, incarnation: &Incarnation, shard: u32) -> FlightStore<Database> {
    let journal = database(&site.target(), LIMITS, incarnation.number, shard);
    store_over(journal, incarnation.number, 1_024)
}

/// The Funding adapter of a fresh database, with 10 USDT for the user, and its incarnation.
pub(crate) fn funding(site: &Site) -> (Funding<FlightStore<Database>>, Incarnation) {
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    site.sql(&format!(
        "INSERT INTO assets_tb VALUES (3, 'USDT', 8, 1, TRUE, 1, 100000000000); \
         INSERT INTO accounts_tb (user_id) VALUES ({USER}); \
         INSERT INTO balances_tb (user_id, asset_id, available) VALUES ({USER}, {USDT}, 10e8)"
    ));
    let incarnation = begin(site);
    (Funding::new(store(site, &incarnation, 0), catalog()), incarnation)
}

/// A running UBSCore with the development assets.
pub(crate) fn engine(site: &Site) -> (Engine, Spot) {
    std::fs::create_dir_all(&site.data_dir).expect("a directory");
    let closed = Closed::open(small_engine(&site.data_dir)).expect("a log");
    let engine = closed
        .replay(0, |_| {})
        .expect("empty")
        .start(wal::Identity(7), |sync| sync())
        .expect("an engine");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let options = spot::Options { timeout: Duration::from_secs(30) };
    let spot = Spot::new(engine.handle(), clock, catalog(), options);
    for asset in dev::assets() {
        block_on(spot.register(&asset)).expect("registered");
    }
    (engine, spot)
}

/// An operation of a transfer of 4 USDT.
pub(crate) fn ask(op: Op, req_id: u128) -> Ask {
    let intent = Intent {
        req_id: ReqId::new(req_id).expect("not zero"),
        cid: None,
        user: UserId::new(USER).expect("in range"),
        asset: AssetId(USDT),
        amount: Amount::new(400_000_000).expect("not zero"),
        direction: Direction::FundingToSpot,
        order_number: 1,
    };
    Ask { op, intent }
}

/// The same of a transfer in which Funding decides the operation, with its row.
pub(crate) fn ask_funding(site: &Site, op: Op, req_id: u128) -> Ask {
    let direction = match op {
        Op::Deposit => Direction::SpotToFunding,
        _ => Direction::FundingToSpot,
    };
    written(
        site,
        changed(&ask(op, req_id), |intent| {
            intent.direction = direction;
            intent.order_number = u64::try_from(req_id).expect("few");
        }),
    )
}

/// Writes the row of a transfer, if there is none.
fn written(site: &Site, ask: Ask) -> Ask {
    let Intent { req_id, user, asset, amount, direction, order_number, .. } = &ask.intent;
    let (way, amount) = (*direction as u8, amount.units());
    site.sql(&format!(
        "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state) \
         VALUES ({order_number}, ulid_uuid('{req_id}'), {user}, {}, {amount}, {way}, 10) ON CONFLICT DO NOTHING",
        asset.0
    ));
    ask
}

/// The same with another amount, asset or user.
fn changed(ask: &Ask, change: impl Fn(&mut Intent)) -> Ask {
    let mut changed = ask.clone();
    change(&mut changed.intent);
    changed
}

fn others(ask: &Ask) -> [Ask; 3] {
    [
        changed(ask, |intent| intent.amount = Amount::new(400_000_001).expect("not zero")),
        changed(ask, |intent| intent.asset = AssetId(1)),
        changed(ask, |intent| intent.user = UserId::new(1002).expect("in range")),
    ]
}

pub(crate) fn outcome(adapter: &impl Adapter, ask: Ask) -> Outcome {
    let answers: Vec<Answer> = block_on(adapter.ask(vec![ask]));
    assert_eq!(answers.len(), 1);
    answers[0].outcome
}

/// The refusals that both adapters must make themselves.
fn refuses_bad_asks(adapter: &impl Adapter) {
    let unknown = changed(&ask(Op::Withdraw, 900), |intent| intent.asset = AssetId(UNKNOWN_ASSET));
    assert_eq!(adapter.check(&unknown), Err(Code::InvalidAsset));
    assert_eq!(outcome(adapter, unknown), Outcome::Unknown(Reason::Malformed));
    for op in [Op::ExtDeposit, Op::ExtWithdraw] {
        assert_eq!(adapter.check(&ask(op, 901)), Err(Code::InvalidRequest));
        assert_eq!(outcome(adapter, ask(op, 901)), Outcome::Unknown(Reason::Malformed));
    }
    for req_id in [900, 901] {
        let nothing = block_on(adapter.query(ReqId::new(req_id).expect("not zero"), Op::Withdraw));
        assert_eq!(nothing.outcome, Outcome::Unknown(Reason::NotRecorded));
    }
}

/// The operator's refusal on both adapters. It is recorded once and is final for the operation. An
/// earlier record stands, and a refund is never refused.
fn refuses_for_an_operator(adapter: &impl Adapter, ask: impl Fn(Op, u128) -> Ask) {
    let refuse = |ask: Ask| block_on(adapter.refuse(vec![ask]))[0].outcome;
    let resolved = Outcome::ExplicitFail(Code::ResolvedByOperator);
    let violation = Outcome::Unknown(Reason::Violation);
    for (op, number) in [(Op::Deposit, 700), (Op::Withdraw, 701)] {
        let late = ask(op, number);
        assert_eq!(refuse(late.clone()), resolved);
        for _ in 0..2 {
            assert_eq!(outcome(adapter, late.clone()), resolved);
            assert_eq!(refuse(late.clone()), resolved);
        }
        let query = block_on(adapter.query(late.intent.req_id, op));
        assert_eq!(query.outcome, resolved);
        for other in others(&late) {
            assert_eq!(refuse(other), violation);
        }
    }
    assert_eq!(outcome(adapter, ask(Op::Deposit, 702)), Outcome::Success);
    assert_eq!(refuse(ask(Op::Deposit, 702)), Outcome::Success);
    assert_eq!(outcome(adapter, ask(Op::Withdraw, 703)), Outcome::Success);
    assert_eq!(refuse(ask(Op::Withdraw, 703)), Outcome::Success);
    // A refund is not refused: neither for a refused withdraw, nor for a recorded one, nor before
    // any request.
    for number in [701, 703, 704] {
        assert_eq!(refuse(ask(Op::Refund, number)), violation, "{number}");
    }
    assert_eq!(outcome(adapter, ask(Op::Refund, 701)), violation);
    assert_eq!(outcome(adapter, ask(Op::Refund, 703)), Outcome::Success);
    assert_eq!(refuse(ask(Op::ExtDeposit, 705)), Outcome::Unknown(Reason::Malformed));
}

#[test]
fn both_adapters_record_an_operators_refusal_once() {
    let site = Site::new();
    let (funding, _) = funding(&site);
    refuses_for_an_operator(&funding, |op, number| ask_funding(&site, op, number));
    assert_eq!(site.sql_value("SELECT available FROM balances"), "14");
    let (engine, spot) = engine(&site);
    refuses_for_an_operator(&spot, ask);
    drop(spot);
    engine.stop();
}

/// Goal: Funding decides once for each transfer and operation, refuses wrong requests, and accepts
/// no write of a superseded process. Method: the adapter over a real database, without API and
/// coordinator.
#[test]
fn funding_decides_once_and_checks_for_itself() {
    let site = Site::new();
    let (funding, _) = funding(&site);
    let balance = || site.sql_value("SELECT available FROM balances");
    refuses_bad_asks(&funding);
    let ask = |op, number| ask_funding(&site, op, number);

    let withdraw = ask(Op::Withdraw, 1);
    for _ in 0..2 {
        assert_eq!(outcome(&funding, withdraw.clone()), Outcome::Success);
        assert_eq!(balance(), "6");
    }
    for other in others(&withdraw) {
        assert_eq!(outcome(&funding, other), Outcome::Unknown(Reason::Violation));
    }
    // A refund has the withdraw's name and is not a repeat of it.
    for other in others(&ask(Op::Refund, 1)) {
        assert_eq!(outcome(&funding, other), Outcome::Unknown(Reason::Violation));
    }
    assert_eq!(outcome(&funding, ask(Op::Refund, 2)), Outcome::Unknown(Reason::Violation));
    assert_eq!(balance(), "6");
    for _ in 0..2 {
        assert_eq!(outcome(&funding, ask(Op::Refund, 1)), Outcome::Success);
        assert_eq!(balance(), "10");
    }
    let query = block_on(funding.query(ReqId::new(1).expect("not zero"), Op::Refund));
    assert_eq!(query.outcome, Outcome::Success);

    // A recorded refusal is final: the money arrives later, and the decision stays.
    let large = written(
        &site,
        changed(&self::ask(Op::Withdraw, 3), |intent| {
            intent.amount = Amount::new(1_000_000_001).expect("not zero");
            intent.order_number = 3;
        }),
    );
    let refused = Outcome::ExplicitFail(Code::InsufficientBalance);
    assert_eq!(outcome(&funding, large.clone()), refused);
    assert_eq!(outcome(&funding, ask(Op::Deposit, 4)), Outcome::Success);
    assert_eq!(outcome(&funding, large), refused);
    assert_eq!(balance(), "14");
    // A refused withdraw cannot be refunded.
    let refund = changed(&ask(Op::Refund, 3), |intent| {
        intent.amount = Amount::new(1_000_000_001).expect("not zero");
    });
    assert_eq!(outcome(&funding, refund), Outcome::Unknown(Reason::Violation));

    for (status, op, want) in [
        (2, Op::Withdraw, Outcome::ExplicitFail(Code::AccountFrozen)),
        (2, Op::Deposit, Outcome::Success),
        (3, Op::Withdraw, Outcome::ExplicitFail(Code::AccountDisabled)),
        (3, Op::Deposit, Outcome::ExplicitFail(Code::AccountDisabled)),
    ] {
        site.sql(&format!("UPDATE accounts_tb SET status = {status}"));
        let number = 10 + u128::from(op == Op::Deposit) + 2 * u128::from(status == 3);
        assert_eq!(outcome(&funding, ask(op, number)), want, "{status} {op:?}");
    }
    site.sql("DELETE FROM accounts_tb");
    let gone = outcome(&funding, ask(Op::Withdraw, 20));
    assert_eq!(gone, Outcome::ExplicitFail(Code::SourceAccountNotFound));
    let gone = outcome(&funding, ask(Op::Deposit, 21));
    assert_eq!(gone, Outcome::ExplicitFail(Code::TargetAccountNotFound));
    assert_eq!(balance(), "18");
}

#[test]
fn funding_of_a_superseded_process_is_fenced() {
    let site = Site::new();
    let (old, _) = funding(&site);
    let ask = |op, number| ask_funding(&site, op, number);
    assert_eq!(outcome(&old, ask(Op::Withdraw, 1)), Outcome::Success);
    let successor = begin(&site);
    let fenced = Outcome::Unknown(Reason::Fenced);
    assert_eq!(outcome(&old, ask(Op::Withdraw, 2)), fenced);
    // Even a repeat is fenced: a superseded process gets no outcome.
    assert_eq!(outcome(&old, ask(Op::Withdraw, 1)), fenced);
    let new = Funding::new(store(&site, &successor, 0), catalog());
    assert_eq!(outcome(&new, ask(Op::Withdraw, 1)), Outcome::Success);
    assert_eq!(site.sql_value("SELECT available FROM balances"), "6");
    assert_eq!(site.sql_value("SELECT count(*) FROM transfer_operations"), "1");
}

/// A shard that the journal does not know gives no right to write.
#[test]
fn funding_without_a_shard_writes_nothing() {
    let site = Site::new();
    let (_, incarnation) = funding(&site);
    let ask = |op, number| ask_funding(&site, op, number);
    let stranger = Funding::new(store(&site, &incarnation, 63), catalog());
    assert_eq!(outcome(&stranger, ask(Op::Withdraw, 1)), Outcome::NetworkError);
    assert_eq!(site.sql_value("SELECT available FROM balances"), "10");
}

/// Goal: the same for Spot, over a running UBSCore and its log.
#[test]
fn spot_decides_once_and_checks_for_itself() {
    let site = Site::new();
    let (engine, spot) = engine(&site);
    let user = UserId::new(USER).expect("in range");
    let balance = || block_on(spot.balance(user, AssetId(USDT))).expect("answered").available;
    refuses_bad_asks(&spot);
    assert_eq!(balance(), None);

    let refused = |code| Outcome::ExplicitFail(code);
    assert_eq!(outcome(&spot, ask(Op::Withdraw, 1)), refused(Code::SourceAccountNotFound));
    let deposit = ask(Op::Deposit, 2);
    for _ in 0..2 {
        assert_eq!(outcome(&spot, deposit.clone()), Outcome::Success);
        assert_eq!(balance(), Some(400_000_000));
    }
    for other in others(&deposit) {
        assert_eq!(outcome(&spot, other), Outcome::Unknown(Reason::Violation));
    }
    // The account exists now; the refusal stays.
    assert_eq!(outcome(&spot, ask(Op::Withdraw, 1)), refused(Code::SourceAccountNotFound));
    assert_eq!(outcome(&spot, ask(Op::Refund, 1)), Outcome::Unknown(Reason::Violation));
    assert_eq!(outcome(&spot, ask(Op::Withdraw, 3)), Outcome::Success);
    assert_eq!(outcome(&spot, ask(Op::Withdraw, 4)), refused(Code::InsufficientBalance));
    block_on(spot.set_status(user, AccountStatus::Disabled)).expect("set");
    for _ in 0..2 {
        assert_eq!(outcome(&spot, ask(Op::Refund, 3)), Outcome::Success);
        assert_eq!(balance(), Some(400_000_000));
    }
    for other in others(&ask(Op::Refund, 3)) {
        assert_eq!(outcome(&spot, other), Outcome::Unknown(Reason::Violation));
    }
    assert_eq!(outcome(&spot, ask(Op::Deposit, 5)), refused(Code::AccountDisabled));
    assert_eq!(outcome(&spot, ask(Op::Withdraw, 6)), refused(Code::AccountDisabled));
    // An asset keeps its name and its precision for ever.
    let renamed = Asset { symbol: "TETHER".to_owned(), ..dev::assets()[2].clone() };
    block_on(spot.register(&renamed)).expect_err("a violation");
    assert_eq!(balance(), Some(400_000_000));
    drop(spot);
    engine.stop();
}

/// UBSCore itself, by plain numbers without types.
#[test]
fn ubscore_checks_plain_numbers_for_itself() {
    let site = Site::new();
    let (engine, spot) = engine(&site);
    assert_eq!(outcome(&spot, ask(Op::Deposit, 1)), Outcome::Success);
    let mut handle = engine.handle();
    let good = Order {
        op: Op::Withdraw,
        req_id: 50,
        cid: Text::new("").expect("short"),
        user: USER,
        asset: USDT,
        amount: 1,
        direction: Direction::SpotToFunding,
        order_number: 1,
    };
    let mut answer = |order: Order| {
        let pending = handle.submit(Command::Order(order), 1).expect("room");
        block_on(async { pending.await.expect("answered") })
    };
    for (bad, code) in [
        (Order { req_id: 51, user: 0, ..good }, Code::InvalidRequest),
        (Order { req_id: 52, user: u64::MAX, ..good }, Code::InvalidRequest),
        (Order { req_id: 53, asset: UNKNOWN_ASSET, ..good }, Code::InvalidAsset),
        (Order { req_id: 54, amount: 0, ..good }, Code::InvalidAmount),
        (Order { req_id: 55, amount: 0, op: Op::Deposit, ..good }, Code::InvalidAmount),
        (Order { req_id: 56, amount: u64::MAX, ..good }, Code::InsufficientBalance),
    ] {
        match answer(bad) {
            EngineAnswer::Decided(recorded) => {
                assert_eq!(recorded.decision, Decision::Refused(code), "{bad:?}");
            }
            other => panic!("{bad:?}: {other:?}"),
        }
    }
    for op in [Op::ExtDeposit, Op::ExtWithdraw, Op::Refund] {
        let answer = answer(Order { req_id: 57, op, ..good });
        assert!(matches!(answer, EngineAnswer::Violation(_)), "{op:?}: {answer:?}");
    }
    let user = UserId::new(USER).expect("in range");
    let balance = block_on(spot.balance(user, AssetId(USDT))).expect("answered");
    assert_eq!(balance.available, Some(400_000_000));
    drop((handle, spot));
    engine.stop();
}

/// A coordinator with one worker over a real database and a running UBSCore.
pub(crate) fn coordinator(
    site: &Site,
) -> (Coordinator<Spot, Funding<FlightStore<Database>>>, Tasks, Engine) {
    coordinator_heard(site, Arc::new(()))
}

/// The same. `told` gets its flights.
pub(crate) fn coordinator_heard(
    site: &Site,
    told: Arc<dyn Told>,
) -> (Coordinator<Spot, Funding<FlightStore<Database>>>, Tasks, Engine) {
    let (_, incarnation) = funding(site);
    let (engine, spot) = engine(site);
    let durable = engine.handle();
    let parts = Parts {
        spot: Arc::new(spot),
        funding: Arc::new(Funding::new(store(site, &incarnation, 1), catalog())),
        clock: Arc::new(SystemClock::new()),
        options: Options {
            fuse: true,
            queue_max: 16,
            active_max: 16,
            batch_max: 16,
            parked_max: 16,
            open_flights: 100_000,
            parked_calls_max: 16,
            backoff_base_ms: 10,
            backoff_cap_ms: 100,
            stale_ms: 60_000,
            stuck_ms: 60_000,
            accept_wait: Duration::from_secs(30),
            clean_wait: Duration::ZERO,
            kept: 0,
        },
        incarnation: incarnation.number,
        watermark: incarnation.watermark,
        open: incarnation.open.clone(),
        durable: Arc::new(move || durable.durable()),
        capacity: Arc::new(|| Capacity { transfers: 1_000, bound_by: Shortage::Ring }),
        vacancy: Arc::new(|| Vacancy { outcomes: 2_000, accounts: 1_000, balances: 1_000 }),
        gate: Arc::new(Gate::new(false)),
        halt: Arc::new(|reason| panic!("halted: {reason}")),
        clean: None,
    };
    let entropy = || -> Box<dyn Entropy> { Box::new(SystemEntropy::default()) };
    let journal = database(&site.target(), LIMITS, incarnation.number, 0);
    let (clock, events) = (Arc::new(SystemClock::new()), EventIds::new(incarnation.number));
    let stores = vec![FlightStore::new(journal, catalog(), clock, Arc::new(events), told, 1_024)];
    let mut tasks = Tasks::default();
    let coordinator = block_on(async { Coordinator::start(parts, stores, entropy, &mut tasks) });
    (coordinator, tasks, engine)
}

/// Goal: the coordinator itself refuses a caller that has not come through the API. For a
/// well-formed request it compares the cid with its body as well.
#[test]
fn the_coordinator_checks_for_itself() {
    let site = Site::new();
    let (coordinator, tasks, engine) = coordinator(&site);
    let asset = dev::assets()[2].clone();
    let request = |asset: Asset, cid: &str, units: u64, fingerprint: &str| Request {
        user: UserId::new(USER).expect("in range"),
        cid: Cid::new(cid),
        checked: Checked {
            direction: Direction::FundingToSpot,
            asset,
            amount: Amount::new(units).expect("not zero"),
        },
        fingerprint: fingerprint.to_owned(),
        reservation: None,
        pauses: Arc::default(),
    };
    let unknown = Asset { id: AssetId(UNKNOWN_ASSET), symbol: "NEW".to_owned(), ..asset.clone() };
    assert_eq!(unknown.status, AssetStatus::Active);
    let refused = block_on(coordinator.submit(request(unknown, "one", 1, "FUNDING:SPOT:NEW:1")));
    assert_eq!(refused.map(|_| ()), Err(Code::InvalidAsset.into()));

    let submit = |cid: &str, units: u64, fingerprint: &str| {
        let request = request(asset.clone(), cid, units, fingerprint);
        let submitted = block_on(coordinator.submit(request)).expect("in good form");
        (submitted.req_id, block_on(submitted.reply).expect("an answer"))
    };
    let (req_id, accepted) = submit("one", 100_000_000, "FUNDING:SPOT:USDT:1");
    let mut accepted = accepted.expect("accepted");
    assert!(!accepted.replayed);
    let state = block_on(async {
        let ended = accepted.progress.wait_for(|transfer| transfer.state.is_terminal()).await;
        ended.expect("its worker lives").state
    });
    assert_eq!(state.name(), "COMMITTED");
    let (_, again) = submit("one", 100_000_000, "FUNDING:SPOT:USDT:1");
    let again = again.expect("the same");
    assert!(again.replayed);
    assert_eq!(again.progress.borrow().intent.req_id, req_id);
    let (_, other) = submit("one", 200_000_000, "FUNDING:SPOT:USDT:2");
    assert_eq!(other.expect_err("another body").code, Code::DuplicateRequest);
    assert_eq!(site.sql_value("SELECT available FROM balances"), "9");
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1");
    drop((coordinator, again));
    block_on(tasks.join());
    engine.stop();
}
