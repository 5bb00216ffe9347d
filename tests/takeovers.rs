//! Take-overs: flights of two incarnations at one journal, and flights of unknown end.
//!
//! The stores are those of production, over a real PostgreSQL. A proxy cuts the connection of a
//! shard, or delays its bytes.

mod by_hand;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::{Decision, Direction, Intent, Op, ReqId, State};
use rustix::process::Signal;
use ubscore::postgres::database::Database;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::incarnation::ORDER_NUMBER_BITS;
use ubscore::postgres::store::{
    Call, External, Failure, FundingPart, Reply, Standing, Store, TransitionPath,
};
use ubscore::postgres::{self, Address, Limits};

use crate::harness::{
    Balance, COIN, LIMITS, Passing, Planned, Proxy, Site, Speaker, Way, block_on, database,
    eventually, last_line, place, post_to, signed_units, soak_rounds, store_over,
};

/// Take-overs that `make test` runs; `make soak` runs [`SOAKED`].
const TESTED: usize = 14;
const SOAKED: usize = 1_000;
/// Users 1 to 8; the shard of each is its remainder.
const SHARDS: u32 = 2;
const USERS: u64 = 8;
/// The most users in the memory of a store.
const USERS_HELD: usize = 16;
const USDT: AssetId = AssetId(3);
const STANDING: Standing = Standing { durable: 0, open_from: 0 };

/// Locks the rows of all users of shard 0, until the session rolls back.
const HOLD: &str = "BEGIN; SELECT FROM balances_tb WHERE user_id % 2 = 0 FOR UPDATE";

/// A database with eight users and no money.
fn site() -> Site {
    let site = Site::new();
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    site.sql(&format!(
        "INSERT INTO assets_tb VALUES (3, 'USDT', 8, 1, TRUE, 1, 100000000000); \
         INSERT INTO accounts_tb (user_id) SELECT n FROM generate_series(1, {USERS}) n; \
         INSERT INTO balances_tb (user_id, asset_id, available) \
         SELECT n, 3, 0 FROM generate_series(1, {USERS}) n"
    ));
    site
}

/// Takes the next incarnation.
fn begin(site: &Site) -> u64 {
    site.begin(&LIMITS, SHARDS).number
}

fn store(target: &Address, limits: Limits, incarnation: u64, shard: u32) -> FlightStore<Database> {
    store_over(database(target, limits, incarnation, shard), incarnation, USERS_HELD)
}

fn coins(count: u64) -> Amount {
    Amount::new(count * u64::try_from(COIN).expect("small")).expect("not zero")
}

/// Money from outside, or to the outside.
fn external(op: Op, user: u64, count: u64, idem_key: &str, order_number: u64) -> Call {
    Call::External(External {
        idem_key: idem_key.to_owned(),
        op,
        user: UserId::new(user).expect("not zero"),
        asset: USDT,
        amount: coins(count),
        actor: "a test".to_owned(),
        order_number,
    })
}

/// A transfer of one coin to Spot, up to the question to UBSCore.
fn accept(user: u64, order_number: u64) -> Call {
    let intent = Intent {
        req_id: ReqId::new(order_number.into()).expect("not zero"),
        cid: None,
        user: UserId::new(user).expect("not zero"),
        asset: USDT,
        amount: coins(1),
        direction: Direction::FundingToSpot,
        order_number,
    };
    let funding = FundingPart {
        op: Op::Withdraw,
        on_success: vec![State::SourceDone, State::TargetPending],
        on_refused: vec![State::Failed],
        refuse: false,
    };
    let path = vec![State::Init, State::SourcePending];
    let transition = TransitionPath { path, funding: Some(funding) };
    Call::Accept { intent, fingerprint: "FUNDING:SPOT:USDT:1".to_owned(), transition }
}

/// Waits until `count` sessions of the site wait for locks of this kind.
fn wait_for_waiting(site: &Site, kinds: &str, count: usize) {
    let session = site.session();
    let waiting = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() \
         AND wait_event_type = 'Lock' AND wait_event IN ({kinds})"
    );
    eventually("a session that waits", || {
        (session.sql(&waiting)[0][0].parse::<usize>().expect("a number") >= count).then_some(())
    });
}

/// A wait for a row or a key of another transaction.
const ROW: &str = "'transactionid', 'tuple'";
/// A wait for a table.
const TABLE: &str = "'relation'";

/// One shard of one incarnation, under load.
struct Worker {
    store: FlightStore<Database>,
    incarnation: u64,
    shard: u32,
    flights: u64,
    /// The idempotency keys of its answered flights.
    answered: Vec<String>,
}

impl Worker {
    fn new(target: &Address, incarnation: u64, shard: u32) -> Worker {
        let store = store(target, LIMITS, incarnation, shard);
        Worker { store, incarnation, shard, flights: 0, answered: Vec::new() }
    }

    /// Three coins come in, and one sets out for Spot. Returns whether the process may continue.
    fn fly(&mut self) -> bool {
        self.flights += 1;
        let Worker { incarnation, shard, flights, .. } = *self;
        let idem_key = format!("{incarnation}-{shard}-{flights}");
        let user = 2 * (flights % (USERS / 2)) + 2 - u64::from(shard);
        let number = (incarnation << ORDER_NUMBER_BITS) + 4 * flights + 2 * u64::from(shard);
        let deposit = external(Op::ExtDeposit, user, 3, &idem_key, number);
        match block_on(self.store.commit(STANDING, &[deposit, accept(user, number + 1)])) {
            Ok(_) => self.answered.push(idem_key),
            Err(Failure::Fenced) => return false,
            Err(Failure::Refused { source, .. }) => panic!("refused: {source}"),
            // Nothing of it is asked again.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
        true
    }
}

/// The workers of an incarnation. The connection of shard 0 leads through the proxy.
fn workers(site: &Site, proxy: &Proxy, incarnation: u64) -> [Worker; 2] {
    let proxied = Address::parse(&proxy.url).expect("our own URL");
    [Worker::new(&proxied, incarnation, 0), Worker::new(&site.target(), incarnation, 1)]
}

/// The place of the old shard 0 when its successor takes over. Shard 1 is always at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Frozen {
    /// At work as well.
    Nowhere,
    /// Before a flight, until the successor has flown.
    Before,
    /// Inside its statement, which waits for a row until the successor waits for the statement.
    Inside,
    /// The same, and its connection is cut.
    InsideAndCut,
    /// The same, and the empty flight under the same number waits behind the first one.
    InsideAndReplaced,
    /// At the begin of its statement, which waits for the successor's fence.
    AtTheFence,
    /// At work, while the journal is vacuumed without a pause.
    BesideAVacuum,
}

impl Frozen {
    const ALL: [Frozen; 7] = [
        Frozen::Nowhere,
        Frozen::Before,
        Frozen::Inside,
        Frozen::InsideAndCut,
        Frozen::InsideAndReplaced,
        Frozen::AtTheFence,
        Frozen::BesideAVacuum,
    ];
}

/// Takes over from old workers, which work until they are fenced. Returns the successor's.
fn take_over(site: &Site, proxy: &Proxy, old: &mut [Worker; 2], frozen: Frozen) -> [Worker; 2] {
    let (over, held) = (AtomicBool::new(false), site.session());
    let is_inside =
        matches!(frozen, Frozen::Inside | Frozen::InsideAndCut | Frozen::InsideAndReplaced);
    if is_inside {
        held.sql(HOLD);
    }
    let flown = AtomicU64::new(0);
    thread::scope(|scope| {
        for worker in old {
            let (over, flown) = (&over, &flown);
            scope.spawn(move || {
                while worker.fly() {
                    flown.fetch_add(1, Ordering::SeqCst);
                    while frozen == Frozen::Before
                        && worker.shard == 0
                        && !over.load(Ordering::SeqCst)
                    {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
        if frozen == Frozen::BesideAVacuum {
            scope.spawn(|| {
                let session = site.session();
                while !over.load(Ordering::SeqCst) {
                    session.sql("VACUUM (FREEZE) journal_tb");
                }
            });
        }
        eventually("flights", || (flown.load(Ordering::SeqCst) > 4).then_some(()));
        if is_inside {
            wait_for_waiting(site, ROW, 1);
        }
        match frozen {
            Frozen::InsideAndCut => proxy.refuse(),
            Frozen::InsideAndReplaced => {
                proxy.come_back();
                wait_for_waiting(site, ROW, 2);
            }
            _ => {}
        }
        let begun = match frozen {
            Frozen::AtTheFence => {
                held.sql(
                    "BEGIN; UPDATE engine_state SET incarnation = incarnation + 1; \
                     SELECT journal_fence(incarnation, 0) FROM engine_state",
                );
                wait_for_waiting(site, TABLE, 2);
                held.sql("COMMIT");
                site.sql_value("SELECT incarnation FROM engine_state").parse().expect("a number")
            }
            _ if is_inside => {
                let begun = scope.spawn(|| begin(site));
                wait_for_waiting(site, TABLE, 1);
                held.sql("ROLLBACK");
                begun.join().expect("no panic")
            }
            _ => begin(site),
        };
        if frozen == Frozen::InsideAndCut {
            proxy.come_back();
        }
        // The successor's first flights meet the last ones of the old process.
        let mut new = workers(site, proxy, begun);
        for worker in &mut new {
            while worker.answered.is_empty() {
                assert!(worker.fly(), "incarnation {begun} is the last one");
            }
        }
        over.store(true, Ordering::SeqCst);
        new
    })
}

/// Asserts that numbers have no gap, that no flight stands behind the fence of a later incarnation,
/// and that each flight has moved its money once.
fn assert_fenced(site: &Site, answered: &[String]) {
    let none = Vec::<Vec<String>>::new();
    let gaps = "SELECT shard FROM journal_tb GROUP BY shard \
                HAVING count(*) <> max(flight) - min(flight) + 1";
    assert_eq!(site.sql(gaps), none, "shards with a gap");
    let late = "SELECT * FROM (SELECT shard, flight, incarnation, attempt, lag(incarnation) OVER \
                  (PARTITION BY shard ORDER BY flight) AS before FROM journal_tb) AS j \
                 WHERE before > incarnation OR (before <> incarnation) <> (attempt = 0)";
    assert_eq!(site.sql(late), none, "flights behind a fence");
    let money = "SELECT * FROM (SELECT user_id, available, \
                   3 * (SELECT count(*) FROM externals x WHERE x.user_id = b.user_id) \
                   - (SELECT count(*) FROM transfers t WHERE t.user_id = b.user_id) AS want \
                   FROM balances b) AS b WHERE available <> want";
    assert_eq!(site.sql(money), none, "balances that are not the sum of their operations");
    let flights = "SELECT (SELECT count(*) FROM journal_tb WHERE entries <> ''), \
                     (SELECT count(*) FROM externals), \
                     (SELECT count(*) FROM transfers)";
    let counts = site.sql(flights).remove(0);
    assert!(
        counts.iter().all(|count| *count == counts[0]),
        "flights, deposits, transfers: {counts:?}"
    );
    let keys = answered.join("','");
    let kept = format!("SELECT count(*) FROM external_operations WHERE idem_key IN ('{keys}')");
    assert_eq!(site.sql_value(&kept), answered.len().to_string(), "answered flights");
}

/// Goal: no flight of an old incarnation commits behind its successor's fence, and no money is lost
/// or doubled. Method: take-overs under load, with the old process frozen before, inside and behind
/// its statement; all rows after each ten of them.
#[test]
fn no_flight_passes_the_fence_of_a_successor() {
    let rounds = if soak_rounds().is_some() { SOAKED } else { TESTED };
    let site = site();
    let proxy = Proxy::start(&site, |_, _| Passing::All);
    let mut old = workers(&site, &proxy, begin(&site));
    let mut answered = Vec::new();
    for round in 0..rounds {
        let new = take_over(&site, &proxy, &mut old, Frozen::ALL[round % Frozen::ALL.len()]);
        answered.extend(std::mem::replace(&mut old, new).into_iter().flat_map(|old| old.answered));
        if round % 10 == 9 || round + 1 == rounds {
            assert_fenced(&site, &answered);
            answered.clear();
        }
    }
    println!("{rounds} take-overs, {} flights", site.sql_value("SELECT count(*) FROM journal_tb"));
}

/// The moment at which the first flight, of unknown end for its client, goes on in the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Late {
    /// Before the empty flight under its number is sent.
    Before,
    /// While the empty flight waits for its key.
    Meanwhile,
    /// After the empty flight has committed, and another one behind it.
    After,
}

/// Goal: of a flight of unknown end and its replacement one commits, in either order, and the
/// process follows the one that did. Method: a row lock keeps the first flight inside the server
/// while its connection is cut, or the proxy delays its bytes until the client has given it up.
#[test]
fn a_late_flight_and_its_replacement_never_both_count() {
    for late in [Late::Before, Late::Meanwhile, Late::After] {
        let site = site();
        let (delays, refused) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let proxy = delaying(&site, &delays, &refused);
        // The client gives up a flight that the proxy delays.
        let limit = Duration::from_secs(if late == Late::After { 1 } else { 15 });
        let limits = Limits { statement_timeout: limit, lock_timeout: limit, ..LIMITS };
        let proxied = Address::parse(&proxy.url).expect("our own URL");
        let incarnation = begin(&site);
        let mut store = store(&proxied, limits, incarnation, 0);
        let number = incarnation << ORDER_NUMBER_BITS;
        let deposit = |place: u64, count: u64| {
            external(Op::ExtDeposit, 2, count, &format!("key-{place}"), number + place)
        };
        let mut fly = |call: Call| block_on(store.commit(STANDING, &[call]));
        fly(deposit(1, 1)).expect("committed");
        let held = site.session();
        let lost = thread::scope(|scope| {
            if late == Late::After {
                delays.store(true, Ordering::SeqCst);
                return fly(deposit(2, 10));
            }
            held.sql(HOLD);
            let first = scope.spawn(|| fly(deposit(2, 10)));
            wait_for_waiting(&site, ROW, 1);
            proxy.come_back();
            first.join().expect("no panic")
        });
        assert!(matches!(lost, Err(Failure::Unknown(_))), "{late:?}: {lost:?}");
        let row = "SELECT available FROM balances WHERE user_id = 2";
        let second = thread::scope(|scope| {
            if late == Late::Before {
                held.sql("ROLLBACK");
                eventually("the late commit", || (site.sql_value(row) != "1").then_some(()));
            }
            let second = scope.spawn(|| fly(deposit(3, 100)));
            if late == Late::Meanwhile {
                wait_for_waiting(&site, ROW, 2);
                held.sql("ROLLBACK");
            }
            second.join().expect("no panic")
        });
        let Ok([Reply::External { decision: Decision::Success, balance_after, .. }]) =
            second.as_deref()
        else {
            panic!("{late:?}: {second:?}")
        };
        let stands = late != Late::After;
        let after = if stands { "111" } else { "101" };
        assert_eq!(*balance_after, Some(signed_units(after)), "{late:?}");
        if late == Late::After {
            delays.store(false, Ordering::SeqCst);
            eventually("the refusal", || refused.load(Ordering::SeqCst).then_some(()));
        }
        assert_eq!(site.sql_value(row), after, "{late:?}");
        let Call::External(first) = deposit(2, 10) else { unreachable!("made above") };
        let found = fly(Call::FindExternal(first)).expect("committed");
        assert_eq!(matches!(found[..], [Reply::External { .. }]), stands, "{late:?}: {found:?}");
        // The same key again is one effect.
        fly(deposit(2, 10)).expect("committed");
        assert_eq!(site.sql_value(row), "111", "{late:?}");
        let gaps = "SELECT count(*) = max(flight) FROM journal_tb WHERE shard = 0";
        assert_eq!(site.sql_value(gaps), "t", "{late:?}");
    }
}

/// A proxy that delays the next flight as long as `delays` is set, and notes a refused key.
fn delaying(site: &Site, delays: &Arc<AtomicBool>, refused: &Arc<AtomicBool>) -> Proxy {
    let (delays, refused) = (Arc::clone(delays), Arc::clone(refused));
    let delayed = AtomicBool::new(false);
    Proxy::start(site, move |speaker, bytes| {
        let flies = speaker == Speaker::Client && place(bytes, b"key-2").is_some();
        if flies && delays.load(Ordering::SeqCst) && !delayed.swap(true, Ordering::SeqCst) {
            while delays.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        if speaker == Speaker::Server && place(bytes, b"C23505\0").is_some() {
            refused.store(true, Ordering::SeqCst);
        }
        Passing::All
    })
}

/// Goal: a real process that is frozen inside its statement, until its successor waits for that
/// statement, changes nothing behind the fence and ends. Method: a trigger holds the statement;
/// SIGSTOP; a successor on a copy of the log; the statement goes on; SIGCONT.
#[test]
fn a_process_frozen_inside_its_statement_ends_behind_its_successor() {
    for way in Way::BOTH {
        let site = Site::new();
        let mut old = site.start();
        assert_eq!(old.transfer(1002, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        let hold = site.hold("UPDATE ON balances_tb", "NEW.user_id = 1002");
        let body = way.body_with_cid("USDT", "7", "frozen");
        let successor = site.with_fresh_data_dir();
        let new = thread::scope(|scope| {
            let http = old.http;
            let planned = Planned { user: 1002, body: body.clone() };
            // The answer is lost with the process.
            scope.spawn(move || drop(post_to(http, &planned)));
            site.wait_for_held();
            old.pause();
            site.copy_data(&successor);
            let new = scope.spawn(|| successor.start());
            wait_for_waiting(&site, TABLE, 1);
            hold.release();
            let new = new.join().expect("no panic");
            successor.wait_for_rest();
            old.signal(Signal::CONT);
            new
        });
        let (status, said) = old.wait();
        assert!(!status.success() && last_line(&said).contains("superseded"), "{status}: {said}");
        assert_eq!(new.post(1002, &body).status, 200);
        successor.wait_for_rest();
        let spot = if way == Way::ToSpot { 107 * COIN } else { 93 * COIN };
        assert_eq!(new.usdt(1002), Balance::at_rest(10_000 * COIN - spot, spot));
        successor.assert_in_order(&new);
        let late = "SELECT count(*) FROM (SELECT incarnation < lag(incarnation) OVER \
                    (PARTITION BY shard ORDER BY flight) AS late FROM journal_tb) AS j WHERE late";
        assert_eq!(site.sql_value(late), "0");
    }
}

/// Goal: a running process that misses its last row in the journal moves nothing more. It closes
/// its gate, and neither ends nor asks without end. Method: the row of the last flight is deleted,
/// or given to an earlier incarnation, between two transfers.
#[test]
fn a_journal_that_lacks_the_last_flight_closes_the_gate() {
    for change in ["DELETE FROM journal_tb", "UPDATE journal_tb SET incarnation = incarnation - 1"]
    {
        // No round of the audit meets the change.
        let site = Site::new()
            .with("UBSCORE__COORDINATOR__SHARDS", 1)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500)
            .with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
        let mut server = site.start();
        assert_eq!(server.transfer(1001, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        site.sql(&format!(
            "{change} WHERE shard = 0 \
             AND flight = (SELECT max(flight) FROM journal_tb WHERE shard = 0)"
        ));
        let before = site.sql("TABLE journal_tb ORDER BY shard, flight");
        eventually("the closed gate", || {
            let refused = server.transfer(1001, Way::ToSpot, "1");
            assert_eq!(refused.status, 503, "{change}: {refused:?}");
            let closed = server.said().contains("alert=\"postgres_changed\"");
            (closed && server.ready() == 503).then_some(())
        });
        assert_eq!(server.transfer(1001, Way::ToFunding, "1").status, 503, "{change}");
        assert!(!server.has_ended(), "{change}");
        assert_eq!(site.sql("TABLE journal_tb ORDER BY shard, flight"), before, "{change}");
        assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1", "{change}");
    }
}
