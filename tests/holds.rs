//! Holds of Funding: acts and repeats on a real PostgreSQL, and the view of users and operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::code::Code;
use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::transfer::{Decision, Op};
use serde_json::{Value, json};
use ubscore::postgres::database::Database;
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::incarnation::ORDER_NUMBER_BITS;
use ubscore::postgres::store::{Call, External, Failure, Reply, Standing, Store};
use ubscore::postgres::{self, Address, Limits};

use crate::harness::{
    Flights, LIMITS, Passing, Proxy, Server, Site, Speaker, Way, block_on, database, external,
    store_over, tells_of_a_commit, text, units,
};

const PAYER: u64 = 1001;
const PAYEE: u64 = 1002;
const USDT: AssetId = AssetId(3);
const COIN: u64 = 100_000_000;
/// The order numbers of transactions: above each watermark of a test.
const NUMBER: u64 = 1 << 60;

/// The order of a hold of `user`. The key has the user, as that of a transaction has.
fn order(name: &str, user: u64, act: HoldAct) -> HoldOrder {
    HoldOrder {
        key: HoldKey::new(&format!("{name}:{user}:3")).expect("a key"),
        order_number: NUMBER,
        user: UserId::new(user).expect("not zero"),
        asset: USDT,
        purpose: 0,
        special: false,
        act,
        outside_numbers: [0, 0],
    }
}

fn pays(round: u8, coins: u64) -> HoldAct {
    HoldAct::Set { round, amount: coins * COIN, pays: true, paid: false }
}

fn is_paid(round: u8) -> HoldAct {
    HoldAct::Set { round, amount: 0, pays: false, paid: true }
}

fn settle(taken: u64, brought: u64) -> HoldAct {
    HoldAct::settle(taken * COIN, brought * COIN)
}

/// One act, and the reply to it.
fn act(store: &mut FlightStore<Database>, order: HoldOrder) -> Reply {
    let replies = block_on(store.commit(Standing::default(), &[Call::Hold(order)]));
    replies.expect("committed").pop().expect("one reply")
}

const DONE: Reply = Reply::Hold(Decision::Success);

fn refused(code: Code) -> Reply {
    Reply::Hold(Decision::Refused(code))
}

/// A store of the next incarnation.
fn store(site: &Site) -> FlightStore<Database> {
    let incarnation = site.begin(&LIMITS, 1).number;
    let limits = Limits { lock_timeout: Duration::from_millis(500), ..LIMITS };
    store_over(database(&site.target(), limits, incarnation, 0), incarnation, 64)
}

/// A database with two users, and 10 USDT of the first one.
fn site() -> Site {
    let site = Site::new();
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    site.sql(&format!(
        "INSERT INTO assets_tb VALUES (3, 'USDT', 8, 1, TRUE, 1, 100000000000); \
         INSERT INTO accounts_tb (user_id) VALUES ({PAYER}), ({PAYEE}); \
         INSERT INTO balances_tb (user_id, asset_id, available) VALUES ({PAYER}, 3, 10e8)"
    ));
    site
}

fn balances(site: &Site) -> Vec<String> {
    let rows = site.sql(
        "SELECT user_id, available, frozen, version FROM balances WHERE asset_id = 3 ORDER BY 1",
    );
    rows.into_iter().map(|row| row.join(" ")).collect()
}

/// Goal: each act is decided once and recorded with its effect; a repeat is told the same and
/// changes nothing. Method: two rounds of a transaction, a refusal, a set-back, late rounds, both
/// ends, each once more; the rows of balances and holds.
#[test]
fn an_act_on_a_hold_is_decided_once() {
    let site = site();
    let mut store = store(&site);
    let twice = |store: &mut FlightStore<Database>, order: HoldOrder, want: Reply| {
        for _ in 0..2 {
            assert_eq!(act(store, order.clone()), want, "{order:?}");
        }
    };
    twice(&mut store, order("t1", PAYER, pays(1, 4)), DONE);
    assert_eq!(balances(&site), ["1001 6 4 2"]);
    twice(&mut store, order("t1", PAYER, pays(3, 11)), refused(Code::InsufficientBalance));
    twice(&mut store, order("t1", PAYER, pays(2, 1)), refused(Code::TransactionDecided));
    twice(&mut store, order("t1", PAYER, pays(4, 3)), DONE);
    twice(&mut store, order("t1", PAYEE, is_paid(1)), DONE);
    assert_eq!(balances(&site), ["1001 7 3 3"]);
    twice(&mut store, order("t1", PAYER, settle(3, 0)), DONE);
    twice(&mut store, order("t1", PAYEE, settle(0, 3)), DONE);
    assert_eq!(balances(&site), ["1001 7 0 4", "1002 3 0 1"]);
    twice(&mut store, order("t1", PAYER, pays(5, 1)), refused(Code::TransactionAborted));
    // An early cancel, and its late try.
    twice(&mut store, order("t2", PAYER, HoldAct::Release), DONE);
    twice(&mut store, order("t2", PAYER, pays(1, 1)), refused(Code::TransactionAborted));
    // Released with money in it.
    twice(&mut store, order("t3", PAYER, pays(1, 7)), DONE);
    twice(&mut store, order("t3", PAYER, HoldAct::Release), DONE);
    assert_eq!(balances(&site)[0], "1001 7 0 6");
    for broken in [
        order("t1", PAYER, HoldAct::Release),
        order("t1", PAYER, settle(3, 1)),
        order("t2", PAYER, settle(0, 0)),
        HoldOrder { order_number: NUMBER + 1, ..order("t3", PAYER, HoldAct::Release) },
    ] {
        let said = block_on(store.commit(Standing::default(), &[Call::Hold(broken)]));
        assert!(matches!(said, Err(Failure::Refused { violation: true, .. })), "{said:?}");
    }
    let rows = site.sql(
        "SELECT hold_key, amount, state, round, round_code, taken, brought FROM holds ORDER BY 1",
    );
    let rows: Vec<String> = rows.into_iter().map(|row| row.join(" ")).collect();
    assert_eq!(
        rows,
        [
            "t1:1001:3 3 40 4  3 0",
            "t1:1002:3 0 40 1  0 3",
            "t2:1001:3 0 -20 0  0 0",
            "t3:1001:3 7 -20 1  0 0"
        ]
    );
}

/// Goal: PostgreSQL refuses each change that would break a hold, by any session. Method: statements
/// on ended and open holds; then the deletion below a watermark, which leaves open holds and those
/// that a statement shows.
#[test]
fn an_ended_hold_stands_and_an_empty_one_leaves_below_the_watermark() {
    let site = site();
    let mut store = store(&site);
    for (name, acts) in [
        ("settled", &[pays(1, 1), settle(1, 0)][..]),
        ("released", &[pays(1, 1), HoldAct::Release]),
        ("open", &[pays(1, 1)]),
    ] {
        for one in acts {
            assert_eq!(act(&mut store, order(name, PAYER, *one)), DONE);
        }
    }
    let session = site.session();
    for statement in [
        "UPDATE funding_holds SET amount = 9 WHERE state = 40",
        "UPDATE funding_holds SET state = 10 WHERE state = -20",
        "UPDATE funding_holds SET user_id = 9 WHERE state = 10",
        "UPDATE funding_holds SET round = 0 WHERE state = 10",
        "DELETE FROM funding_holds WHERE state = -20",
    ] {
        assert_eq!(session.sql_refused(statement), "UB003", "{statement}");
    }
    assert_eq!(site.sql_value("SELECT holds_trim(10)"), "0", "above the watermark");
    site.sql(&format!("UPDATE engine_state SET watermark = {}", NUMBER + 1));
    assert_eq!(site.sql_value("SELECT holds_trim(10)"), "1");
    let left = site.sql_value("SELECT string_agg(hold_key, ' ' ORDER BY hold_key) FROM holds");
    assert_eq!(left, "open:1001:3 settled:1001:3");
    // A late try of a deleted hold is below the watermark.
    let late = Call::Hold(order("released", PAYER, pays(1, 1)));
    let said = block_on(store.commit(Standing::default(), &[late]));
    assert!(matches!(said, Err(Failure::Refused { violation: true, .. })), "{said:?}");
}

/// Goal: the part apart of a balance is not lost if the flight that sets it apart begins the
/// balance. Method: money from the outside and a Set, and money of a Settle and a Set, each pair in
/// one flight of a user without an account; the reads and the audit; a release of the part.
#[test]
fn a_balance_is_begun_and_set_apart_in_one_flight() {
    const FROM_OUTSIDE: u64 = 5001;
    const FROM_PAYER: u64 = 5002;
    let site = Site::new();
    site.start().stop();
    let incarnation = site.begin(&LIMITS, 1).number;
    let journal = database(&site.target(), LIMITS, incarnation, 0);
    let mut acting = store_over(journal, incarnation, 64);
    assert_eq!(act(&mut acting, order("t1", PAYER, pays(1, 100))), DONE);
    assert_eq!(act(&mut acting, order("t1", PAYER, settle(100, 0))), DONE);
    let brought = Call::External(External {
        idem_key: "from-the-outside".to_owned(),
        op: Op::ExtDeposit,
        user: UserId::new(FROM_OUTSIDE).expect("not zero"),
        asset: USDT,
        amount: Amount::new(100 * COIN).expect("not zero"),
        actor: "a test".to_owned(),
        order_number: (incarnation << ORDER_NUMBER_BITS) + 1,
    });
    let settled = Call::Hold(order("t1", FROM_PAYER, settle(0, 100)));
    for (brings, user) in [(brought, FROM_OUTSIDE), (settled, FROM_PAYER)] {
        let calls = [brings, Call::Hold(order("t2", user, pays(1, 40)))];
        let replies = block_on(acting.commit(Standing::default(), &calls)).expect("committed");
        assert_eq!(replies[1], DONE, "{replies:?}");
    }
    let apart = ["5001 60 40 1", "5002 60 40 1"];
    assert!(balances(&site).ends_with(&apart.map(str::to_owned)), "{:?}", balances(&site));
    let server = site.start();
    for user in [FROM_OUTSIDE, FROM_PAYER] {
        assert_eq!(funding(&server, user), ("60".to_owned(), "40".to_owned()));
    }
    assert_eq!(totals(&server), ("0".to_owned(), "0".to_owned()));
    site.assert_verified();
    server.stop();
    assert_eq!(act(&mut store(&site), order("t2", FROM_OUTSIDE, HoldAct::Release)), DONE);
    assert_eq!(act(&mut store(&site), order("t2", FROM_PAYER, settle(40, 0))), DONE);
    let ended = ["5001 100 0 2", "5002 60 0 2"];
    assert!(balances(&site).ends_with(&ended.map(str::to_owned)), "{:?}", balances(&site));
}

/// GTX-013. Goal: money of a Settle from and to the outside is booked once, with its operations in
/// the same flight. Method: a Settle and its repeat with other numbers; one of a hold with a row
/// that a repair has restored, money included; a repeat of one that an earlier version has settled.
#[test]
fn a_settle_with_the_outside_has_its_operations_in_its_flight() {
    let site = site();
    let numbers = [(1 << ORDER_NUMBER_BITS) + 1, (1 << ORDER_NUMBER_BITS) + 2];
    let crosses = |name: &str, taken: u64, deposited: u64, withdrawn: u64, first: u64| {
        let [taken, deposited, withdrawn] = [taken, deposited, withdrawn].map(|sum| sum * COIN);
        let act = HoldAct::Settle { taken, brought: 0, deposited, withdrawn, passed: 0 };
        let outside_numbers = numbers.map(|number| number + first);
        HoldOrder { outside_numbers, ..order(name, PAYER, act) }
    };
    let told = |reply: Reply| -> Vec<(String, u64, u64)> {
        let Reply::Settled(operations) = reply else { panic!("{reply:?}") };
        let coin = u128::from(COIN);
        let of = operations.iter().map(|one| {
            let after = u64::try_from(one.balance_after / coin).expect("small");
            (one.idem_key.as_str().to_owned(), one.order_number, after)
        });
        of.collect()
    };
    let mut first = store(&site);
    assert_eq!(act(&mut first, order("t1", PAYER, pays(1, 4))), DONE);
    let both = [("tx/t1:1001:3/in", numbers[0], 12), ("tx/t1:1001:3/out", numbers[1], 8)];
    let both = both.map(|(key, number, after)| (key.to_owned(), number, after));
    for again in [0, 10] {
        assert_eq!(told(act(&mut first, crosses("t1", 1, 2, 3, again))), both);
        assert_eq!(balances(&site), ["1001 8 0 3"]);
    }
    assert_eq!(act(&mut first, order("t2", PAYER, pays(1, 4))), DONE);
    site.sql(
        "INSERT INTO external_operations (order_number, user_id, amount, asset_id, op, \
                                          balance_after, idem_key) \
         VALUES (77, 1001, 3e8, 3, 5, 5e8, 'tx/t2:1001:3/out'); \
         UPDATE balances_tb SET available = available - 3e8, version = version + 1",
    );
    let mut second = store(&site);
    let restored = [("tx/t2:1001:3/out".to_owned(), 77, 5)];
    assert_eq!(told(act(&mut second, crosses("t2", 1, 0, 3, 20))), restored);
    assert_eq!(balances(&site), ["1001 4 0 6"]);
    assert_eq!(act(&mut second, order("t3", PAYER, pays(1, 1))), DONE);
    assert_eq!(act(&mut second, order("t3", PAYER, settle(1, 0))), DONE);
    assert_eq!(act(&mut second, crosses("t3", 0, 0, 1, 30)), DONE);
    assert_eq!(balances(&site), ["1001 3 0 8"]);
    let rows = "SELECT string_agg(idem_key, ' ' ORDER BY idem_key) FROM external_operations";
    let keys = "tx/t1:1001:3/in tx/t1:1001:3/out tx/t2:1001:3/out";
    assert_eq!(site.sql_value(rows), keys);
}

const NOTHING: u8 = 0;
/// The server never reads the flight.
const FLIGHT: u8 = 1;
/// The flight is committed, and its answer is lost.
const ANSWER: u8 = 2;
/// Set as soon as a flight has begun.
const BEGUN: u8 = 0x80;

/// A proxy that loses the next flight, or the answer to it.
fn lossy_proxy(site: &Site, loses: &Arc<AtomicU8>) -> Proxy {
    let (loses, flights) = (Arc::clone(loses), Flights::default());
    Proxy::start(site, move |speaker, bytes| {
        if speaker == Speaker::Client && flights.is_sent(bytes) {
            loses.fetch_or(BEGUN, Ordering::SeqCst);
        }
        let now = loses.load(Ordering::SeqCst);
        match (now & !BEGUN, speaker) {
            _ if now & BEGUN == 0 => Passing::All,
            (FLIGHT, _) => Passing::Cut(0),
            (ANSWER, Speaker::Server) if tells_of_a_commit(bytes) => Passing::Cut(0),
            _ => Passing::All,
        }
    })
}

/// Goal: an act of unknown end is decided once, and its repeat is told. Method: each kind of act,
/// with its flight lost, and with the answer to it lost; then the same act again. The versions of
/// the balances count the flights that have changed them.
#[test]
fn an_act_of_unknown_end_is_not_decided_twice() {
    for lost in [FLIGHT, ANSWER] {
        let site = site();
        let loses = Arc::new(AtomicU8::new(NOTHING));
        let proxy = lossy_proxy(&site, &loses);
        let proxied = Address::parse(&proxy.url).expect("our own URL");
        let incarnation = site.begin(&LIMITS, 1).number;
        let journal = database(&proxied, LIMITS, incarnation, 0);
        let mut store = store_over(journal, incarnation, 64);
        for (order, want) in [
            (order("t1", PAYER, pays(1, 4)), DONE),
            (order("t1", PAYER, pays(3, 11)), refused(Code::InsufficientBalance)),
            (order("t1", PAYER, pays(4, 3)), DONE),
            (order("t1", PAYEE, is_paid(1)), DONE),
            (order("t1", PAYER, settle(3, 0)), DONE),
            (order("t1", PAYEE, settle(0, 3)), DONE),
            (order("t2", PAYER, pays(1, 5)), DONE),
            (order("t2", PAYER, HoldAct::Release), DONE),
        ] {
            loses.store(lost, Ordering::SeqCst);
            let said = block_on(store.commit(Standing::default(), &[Call::Hold(order.clone())]));
            assert!(matches!(said, Err(Failure::Unknown(_))), "{order:?}: {said:?}");
            loses.store(NOTHING, Ordering::SeqCst);
            assert_eq!(act(&mut store, order.clone()), want, "{order:?}");
        }
        assert_eq!(balances(&site), ["1001 7 0 6", "1002 3 0 1"]);
    }
}

fn funding(server: &Server, user: u64) -> (String, String) {
    let body = server.get(user, "/api/v1/balances?asset=USDT").json();
    let funding = &body["balances"][0]["funding"];
    (text(&funding["available"]).to_owned(), text(&funding["frozen"]).to_owned())
}

/// The lines of the statement of a user on Funding that are no deposits, and its verdict.
fn statement(site: &Site, user: u64) -> (Vec<String>, String) {
    let user = user.to_string();
    let output = site.tool(["statement", "--user", &user, "--format", "json"]).output();
    let output = output.expect("the binary");
    let out = String::from_utf8(output.stdout).expect("text");
    let mut lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let end = lines.pop().expect("an end");
    let of_holds = lines.iter().filter(|line| line["op"] == json!("SETTLED"));
    let said = |line: &Value| format!("{} {}", text(&line["amount"]), text(&line["reference"]));
    (of_holds.map(said).collect(), end.to_string())
}

/// The sum of the settled holds, and the difference, of USDT.
fn totals(server: &Server) -> (String, String) {
    let totals = server.admin_get("/admin/v1/totals").json();
    let assets = totals["assets"].as_array().expect("an array");
    let row = assets.iter().find(|row| row["asset"] == json!("USDT")).expect("USDT");
    (text(&row["transactions"]).to_owned(), text(&row["difference"]).to_owned())
}

/// Goal: money apart is `frozen`, can be neither withdrawn nor transferred, and is no line of a
/// statement. A settled hold is one line, and every read adds up, also between the two Settles of a
/// transaction. Method: acts by the store while the service rests; then everything that counts
/// Funding. An open hold outlives a start.
#[test]
fn gtx_010_money_apart_is_frozen_and_neither_withdrawn_nor_transferred() {
    let site = Site::new();
    let server = site.start();
    let (before, none) = funding(&server, PAYER);
    assert_eq!((before.as_str(), none.as_str()), ("10000", "0"));
    server.stop();
    assert_eq!(act(&mut store(&site), order("t1", PAYER, pays(1, 9_990))), DONE);
    let server = site.start();
    assert_eq!(funding(&server, PAYER), ("10".to_owned(), "9990".to_owned()));
    let refused = server.transfer(PAYER, Way::ToSpot, "11");
    assert_eq!(refused.refusal().1, "INSUFFICIENT_BALANCE");
    let body = external(PAYER, "USDT", "11", "too-much");
    let withdrawn = server.admin("POST", "/admin/v1/withdrawals", &body);
    assert_eq!(withdrawn.json()["outcome"], json!("REFUSED"), "{withdrawn:?}");
    assert_eq!(server.transfer(PAYER, Way::ToSpot, "4").status, 200);
    site.wait_for_rest();
    let (lines, end) = statement(&site, PAYER);
    assert_eq!(lines, Vec::<String>::new());
    assert!(end.contains("\"verdict\":\"ok\""), "{end}");
    assert_eq!(totals(&server), ("0".to_owned(), "0".to_owned()));
    site.assert_in_order(&server);
    server.stop();
    // The first of two Settles.
    assert_eq!(act(&mut store(&site), order("t1", PAYER, settle(9_990, 0))), DONE);
    let server = site.start();
    assert_eq!(funding(&server, PAYER), ("6".to_owned(), "0".to_owned()));
    assert_eq!(totals(&server), ("-9990".to_owned(), "0".to_owned()));
    server.stop();
    assert_eq!(act(&mut store(&site), order("t1", PAYEE, settle(0, 9_990))), DONE);
    let server = site.start();
    assert_eq!(totals(&server), ("0".to_owned(), "0".to_owned()));
    for (user, line) in [
        (PAYER, "-9990 t1:1001:3 taken 9990 brought 0"),
        (PAYEE, "9990 t1:1002:3 taken 0 brought 9990"),
    ] {
        let (lines, end) = statement(&site, user);
        assert_eq!(lines, [line]);
        assert!(end.contains("\"verdict\":\"ok\""), "{end}");
    }
    assert_eq!(server.usdt(PAYEE).funding, Some(units("19990")));
    site.assert_verified();
    let dump = site.tool(["journal", "dump", "--shard", "0"]).output().expect("the binary");
    let dump = String::from_utf8(dump.stdout).expect("text");
    for line in [
        "hold t1:1001:3 SET USDT available -9990 frozen 9990",
        "hold t1:1001:3 SETTLE USDT available 0 frozen -9990",
        "hold t1:1002:3 SETTLE USDT available 9990 frozen 0",
    ] {
        assert!(dump.contains(line), "{line}: {dump}");
    }
    server.stop();
}
