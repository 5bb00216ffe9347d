//! Flights: what PostgreSQL compares before it writes one, and which of several stands.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::Op;
use jiff::Timestamp;
use serde_json::json;
use ubscore::postgres::database::Database;
use ubscore::postgres::flight::{
    AccountRow, Balance, BalanceRow, Compared, Flight, Found, Journal, Last, Stopped, Wanted,
};
use ubscore::postgres::flight_store::FlightStore;
use ubscore::postgres::store::{Call, External, Failure, Page, Standing, Store, Unfinished};
use ubscore::postgres::{self, Limits};
use ubscore::telemetry::chain;

use crate::harness::{
    LIMITS, Session, Site, Way, block_on, crowd, database, eventually, store_over,
};

const USER: u64 = 1001;
const USDT: AssetId = AssetId(3);
const COIN: i128 = 100_000_000;

fn user(number: u64) -> UserId {
    UserId::new(number).expect("not zero")
}

/// A database with one user and 10 USDT.
fn site() -> Site {
    let site = Site::new();
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    site.sql(&format!(
        "INSERT INTO assets_tb VALUES (3, 'USDT', 8, 1, TRUE, 1, 100000000000); \
         INSERT INTO accounts_tb (user_id) VALUES ({USER}); \
         INSERT INTO balances_tb (user_id, asset_id, available) \
         VALUES ({USER}, 3, 10e8)"
    ));
    site
}

/// The journal of shard 0 for a new incarnation.
fn begin(site: &Site) -> Database {
    begin_within(site, LIMITS)
}

fn begin_within(site: &Site, limits: Limits) -> Database {
    let incarnation = site.begin(&LIMITS, 1).number;
    database(&site.target(), limits, incarnation, 0)
}

/// A store that waits only briefly for a lock.
fn store(site: &Site) -> FlightStore<Database> {
    store_over(brief(site), 1, 64)
}

fn brief(site: &Site) -> Database {
    begin_within(site, Limits { lock_timeout: Duration::from_millis(100), ..LIMITS })
}

/// A journal with another session that runs a statement before each flight.
struct Meddled {
    journal: Database,
    session: Arc<Session>,
    statement: String,
}

impl Journal for Meddled {
    async fn last(&mut self) -> Result<Option<Last>, Failure> {
        self.journal.last().await
    }

    async fn fly(&mut self, flight: &Flight) -> Result<(), Stopped> {
        let (session, statement) = (Arc::clone(&self.session), self.statement.clone());
        let meddle = tokio::task::spawn_blocking(move || session.sql(&statement));
        meddle.await.expect("no panic");
        self.journal.fly(flight).await
    }

    async fn read(&mut self, wanted: &Wanted) -> Result<Found, Failure> {
        self.journal.read(wanted).await
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        self.journal.unfinished(filter).await
    }
}

/// A deposit of one unit from the outside.
fn deposit(number: u64, to: u64) -> Call {
    Call::External(External {
        idem_key: format!("key-{number}"),
        op: Op::ExtDeposit,
        user: user(to),
        asset: USDT,
        amount: Amount::new(1).expect("not zero"),
        actor: "a test".to_owned(),
        order_number: number,
    })
}

fn last(journal: &mut Database) -> Option<Last> {
    block_on(journal.last()).expect("an answer")
}

/// A flight that pays the user one coin of `held`, with the account as it is held.
fn payment(number: u64, attempt: u64, held: Balance, account: AccountRow) -> Flight {
    let after = Balance { available: held.available + COIN, version: held.version + 1, ..held };
    let row = BalanceRow { user: user(USER), asset: USDT, before: Some(held), after: Some(after) };
    let at = Timestamp::UNIX_EPOCH;
    Flight {
        number,
        attempt,
        at,
        accounts: vec![account],
        balances: vec![row],
        ..Flight::default()
    }
}

fn account(status: Option<AccountStatus>) -> AccountRow {
    AccountRow { user: user(USER), before: status, after: status }
}

const HELD: Balance = Balance { available: 10 * COIN, frozen: 0, version: 1 };
const ACTIVE: Option<AccountStatus> = Some(AccountStatus::Active);

/// Goal: a flight is written only if every row is as the process holds it. Method: the same payment
/// with one wrong row at a time, also rows that are only rested on; then the right one.
#[test]
fn a_flight_rests_on_rows_that_are_as_they_are_held() {
    let site = site();
    let mut journal = begin(&site);
    let before = last(&mut journal).expect("ours").number;
    let differs = [
        (
            payment(before + 1, 1, Balance { version: 2, ..HELD }, account(ACTIVE)),
            Compared::Balances,
        ),
        (
            payment(before + 1, 2, Balance { available: COIN, ..HELD }, account(ACTIVE)),
            Compared::Balances,
        ),
        (
            payment(before + 1, 3, Balance { frozen: 1, ..HELD }, account(ACTIVE)),
            Compared::Balances,
        ),
        (payment(before + 1, 4, HELD, account(Some(AccountStatus::Frozen))), Compared::Accounts),
        (payment(before + 1, 5, HELD, account(None)), Compared::Accounts),
    ];
    for (flight, compared) in differs {
        let stopped = block_on(journal.fly(&flight)).expect_err("another row");
        assert!(matches!(stopped, Stopped::Differs(what) if what == compared), "{stopped:?}");
    }
    // A refusal rests on a balance that it does not change, and on one that is absent.
    for before_row in [Some(Balance { version: 9, ..HELD }), None] {
        let mut flight = payment(before + 1, 6, HELD, account(ACTIVE));
        flight.balances[0] = BalanceRow { before: before_row, after: None, ..flight.balances[0] };
        let stopped = block_on(journal.fly(&flight)).expect_err("another row");
        assert!(matches!(stopped, Stopped::Differs(Compared::Balances)), "{stopped:?}");
    }
    let stands = "SELECT available, version FROM balances";
    assert_eq!(site.sql(stands), [["10", "1"]]);
    assert_eq!(last(&mut journal).expect("ours").number, before, "no number is used up");
    block_on(journal.fly(&payment(before + 1, 7, HELD, account(ACTIVE)))).expect("written");
    assert_eq!(site.sql(stands), [["11", "2"]]);
    assert_eq!(last(&mut journal), Some(Last { number: before + 1, attempt: 7 }));
}

/// Goal: a row that another session changes while the flight waits for it is not overwritten.
/// Method: a session changes a balance, or a status, and commits when the flight waits for it.
#[test]
fn a_row_that_changes_while_a_flight_waits_for_it_stays() {
    for (change, compared) in [
        ("balances_tb SET available = 3e8, version = version + 1", Compared::Balances),
        ("accounts_tb SET status = 2", Compared::Accounts),
    ] {
        let site = site();
        let mut journal = begin(&site);
        let number = last(&mut journal).expect("ours").number + 1;
        let disabled = AccountRow { after: Some(AccountStatus::Disabled), ..account(ACTIVE) };
        let flight = payment(number, 1, HELD, disabled);
        let other = site.session();
        other.sql(&format!("BEGIN; UPDATE {change} WHERE user_id = {USER}"));
        let stopped = thread::scope(|scope| {
            let flown = scope.spawn(|| block_on(journal.fly(&flight)));
            eventually("the flight to wait", || {
                let waiting = "SELECT count(*) FROM pg_stat_activity \
                               WHERE datname = current_database() AND wait_event_type = 'Lock'";
                (site.sql_value(waiting) != "0").then_some(())
            });
            other.sql("COMMIT");
            flown.join().expect("no panic").expect_err("another row")
        });
        assert!(matches!(stopped, Stopped::Differs(what) if what == compared), "{stopped:?}");
        let stands = "SELECT available, status FROM balances JOIN accounts_tb USING (user_id)";
        let want = match compared {
            Compared::Balances => ["3", "1"],
            Compared::Accounts
            | Compared::Transfers
            | Compared::Holds
            | Compared::Freezes
            | Compared::Recharges => ["10", "2"],
        };
        assert_eq!(site.sql(stands), [want]);
    }
}

/// Goal: of two flights of one number the first stands, and a flight without its predecessor is
/// none. Method: a second flight under a number in use, one that leaves a number out, one of an
/// earlier incarnation at the number that it would use next, and one behind it.
#[test]
fn the_key_of_the_journal_is_the_fence() {
    let site = site();
    let mut journal = begin(&site);
    let number = last(&mut journal).expect("ours").number + 1;
    block_on(journal.fly(&payment(number, 1, HELD, account(ACTIVE)))).expect("written");
    let held = Balance { available: 11 * COIN, frozen: 0, version: 2 };
    let again = block_on(journal.fly(&payment(number, 2, held, account(ACTIVE))));
    assert!(matches!(again, Err(Stopped::Number)), "{again:?}");
    let gap = block_on(journal.fly(&payment(number + 2, 3, held, account(ACTIVE))));
    assert!(matches!(gap, Err(Stopped::Predecessor)), "{gap:?}");
    let mut later = begin(&site);
    let stale = block_on(journal.fly(&payment(number + 1, 4, held, account(ACTIVE))));
    assert!(matches!(stale, Err(Stopped::Superseded)), "{stale:?}");
    let behind = block_on(journal.fly(&payment(number + 2, 5, held, account(ACTIVE))));
    assert!(matches!(behind, Err(Stopped::Predecessor)), "{behind:?}");
    assert_eq!(last(&mut journal), None, "another incarnation owns the shard");
    let next = last(&mut later).expect("its own").number + 1;
    assert_eq!(next, number + 2);
    block_on(later.fly(&payment(next, 1, held, account(ACTIVE)))).expect("written");
    assert_eq!(site.sql_value("SELECT available FROM balances"), "12");
}

/// Goal: a balance or a status that is changed by hand is never overwritten, also where a refusal
/// rests on it. Method: a server that holds the rows in memory; both change by SQL between two
/// transfers.
#[test]
fn a_row_that_is_changed_by_hand_is_read_again() {
    // No round of the audit meets the changes.
    let site = Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let server = site.start();
    server.deposit(USER, "USDT", "10");
    server.transfer_committed(USER, Way::ToSpot, "1");
    let book = |available: &str| {
        site.sql(&format!(
            "UPDATE balances_tb SET available = {available}e8 WHERE user_id = {USER} AND asset_id = 3"
        ));
    };
    // Less than the process holds: what would have been accepted is refused.
    book("2");
    let refused = server.transfer(USER, Way::ToSpot, "5");
    assert_eq!((refused.status, &refused.json()["code"]), (422, &json!("INSUFFICIENT_BALANCE")));
    assert_eq!(server.transfer(USER, Way::ToSpot, "2").status, 200);
    // More: what would have been refused is accepted.
    book("6");
    assert_eq!(server.transfer(USER, Way::ToSpot, "6").status, 200);
    site.sql(&format!("UPDATE accounts_tb SET status = 2 WHERE user_id = {USER}"));
    let frozen = server.transfer(USER, Way::ToSpot, "1");
    assert_eq!((frozen.status, &frozen.json()["code"]), (422, &json!("ACCOUNT_FROZEN")));
    site.sql(&format!("UPDATE accounts_tb SET status = 1 WHERE user_id = {USER}"));
    assert_eq!(server.transfer(USER, Way::ToFunding, "3").status, 200);
    let left = format!("SELECT available FROM balances WHERE user_id = {USER} AND asset_id = 3");
    assert_eq!(site.sql_value(&left), "3");
}

/// Goal: one lock time-out names the calls of every held row, and no other call. Method: of four
/// users, another session holds the balance of one and the account of another; each gets a deposit,
/// and the first a change of status too.
#[test]
fn a_lock_time_out_names_every_call_that_meets_a_held_row() {
    let site = site();
    let users: Vec<u64> = (USER..USER + 4).collect();
    let mut store = store(&site);
    let first: Vec<Call> = (1..).zip(&users).map(|(n, user)| deposit(n, *user)).collect();
    block_on(store.commit(Standing::default(), &first)).expect("each user has its rows");
    let held = site.session();
    held.sql(&format!(
        "BEGIN; SELECT FROM balances_tb WHERE user_id = {} FOR UPDATE; \
         SELECT FROM accounts_tb WHERE user_id = {} FOR UPDATE",
        users[1], users[3]
    ));
    let mut calls: Vec<Call> = (5..).zip(&users).map(|(n, user)| deposit(n, *user)).collect();
    calls.push(Call::SetFundingStatus {
        user: user(users[3]),
        status: AccountStatus::Frozen,
        actor: "a test".to_owned(),
        reason: "a lock".to_owned(),
    });
    let blocked = block_on(store.commit(Standing::default(), &calls));
    let Err(Failure::Blocked { indices, .. }) = blocked else { panic!("{blocked:?}") };
    assert_eq!(indices, [1, 3, 4]);
    let others = [calls[0].clone(), calls[2].clone()];
    block_on(store.commit(Standing::default(), &others)).expect("the others go on at once");
    held.sql("ROLLBACK");
    block_on(store.commit(Standing::default(), &calls)).expect("the rows are free");
}

/// Goal: a lock on a table blocks the batch as a whole, and the error names the session that holds
/// it. Method: a report locks a table that a flight writes, and then one that only the search for
/// held rows reads too.
#[test]
fn a_lock_on_a_table_blames_no_call_and_names_its_session() {
    let site = site();
    let mut store = store(&site);
    let calls = [deposit(1, USER), deposit(2, USER + 1)];
    let report = site.session();
    report.sql("SET application_name = 'a report'");
    let pid = report.sql("SELECT pg_backend_pid()")[0][0].clone();
    for lock in ["balances_tb IN SHARE MODE", "transfers_tb IN ACCESS EXCLUSIVE MODE"] {
        report.sql(&format!("BEGIN; LOCK TABLE {lock}"));
        // The look at the blockers may come too late for one wait.
        eventually("the session to be named", || {
            let blocked = block_on(store.commit(Standing::default(), &calls));
            let Err(Failure::Retry(source)) = blocked else { panic!("{blocked:?}") };
            let said = chain(source.as_ref());
            let named = format!("pid {pid} (\"a report\", idle in transaction, query started at ");
            (said.contains(&named) && said.contains("lock timeout")).then_some(())
        });
        report.sql("ROLLBACK");
    }
    block_on(store.commit(Standing::default(), &calls)).expect("the tables are free");
}

/// Goal: a key that another session inserts stops only the call that needs it. Method: a session
/// inserts an account and does not commit; one of two deposits opens the same account.
#[test]
fn a_key_that_another_session_inserts_is_found_by_smaller_flights() {
    let site = site();
    let mut store = store(&site);
    let calls = [deposit(1, USER), deposit(2, USER + 1)];
    let other = site.session();
    other.sql(&format!("BEGIN; INSERT INTO accounts_tb (user_id) VALUES ({})", USER + 1));
    let both = block_on(store.commit(Standing::default(), &calls));
    assert!(matches!(both, Err(Failure::Split(_))), "{both:?}");
    block_on(store.commit(Standing::default(), &calls[..1])).expect("it needs another key");
    let alone = block_on(store.commit(Standing::default(), &calls[1..]));
    assert!(
        matches!(&alone, Err(Failure::Blocked { indices, .. }) if *indices == [0]),
        "{alone:?}"
    );
    other.sql("COMMIT");
    block_on(store.commit(Standing::default(), &calls[1..])).expect("the account is there");
}

/// Goal: a balance that another session changes again and again is never overwritten, and stops
/// only the calls of its user. Method: two users get a deposit; before each flight a session adds
/// 1 USDT to one of them.
#[test]
fn a_balance_that_keeps_changing_stops_only_the_calls_of_its_user() {
    let site = site();
    let statement = format!(
        "UPDATE balances_tb SET available = available + 1e8, version = version + 1 \
         WHERE user_id = {USER}"
    );
    let session = Arc::new(site.session());
    let mut store = store_over(Meddled { journal: brief(&site), session, statement }, 1, 64);
    let calls = [deposit(1, USER + 1), deposit(2, USER)];
    let blocked = block_on(store.commit(Standing::default(), &calls));
    let Err(Failure::Blocked { indices, changed: true, source }) = blocked else {
        panic!("{blocked:?}")
    };
    assert_eq!(indices, [1]);
    let said = chain(source.as_ref());
    let values = format!(
        "user {USER}, USDT: available 11 frozen 0 version 2, now available 12 frozen 0 version 3"
    );
    assert!(said.contains(&values), "{said}");
    block_on(store.commit(Standing::default(), &calls[..1])).expect("the other user's call");
    let available = format!("SELECT available FROM balances WHERE user_id = {USER}");
    assert_eq!(site.sql_value(&available), "13", "the other session's changes alone");
}

/// Goal: a call that needs a row which cannot be read is refused for that row, without a flight,
/// and uses the row once it is corrected. Method: a status and an amount that this version does not
/// know, one after the other.
#[test]
fn a_row_that_cannot_be_read_refuses_its_calls_and_no_others() {
    let site = site();
    site.sql(
        "ALTER TABLE accounts_tb DROP CONSTRAINT accounts_tb_status_check; \
         ALTER TABLE balances_tb DROP CONSTRAINT balances_special_check",
    );
    let flights = "SELECT max(flight) FROM journal_tb WHERE shard = 0";
    for (number, bad, good, why) in [
        (1, "accounts_tb SET status = 9", "accounts_tb SET status = 1", "status 9"),
        (
            2,
            "balances_tb SET available = -1",
            "balances_tb SET available = 1e8",
            "balance of 1001 in asset 3",
        ),
    ] {
        // A new store reads the row first.
        let mut store = store(&site);
        site.sql(&format!("UPDATE {bad} WHERE user_id = {USER}"));
        let before = site.sql_value(flights);
        let refused = block_on(store.commit(Standing::default(), &[deposit(number, USER)]));
        let Err(Failure::Refused { index: 0, violation: false, source }) = refused else {
            panic!("{refused:?}")
        };
        assert!(chain(source.as_ref()).contains(why), "{source}");
        assert_eq!(site.sql_value(flights), before, "no flight");
        block_on(store.commit(Standing::default(), &[deposit(number + 10, USER + 1)]))
            .expect("another user");
        site.sql(&format!("UPDATE {good} WHERE user_id = {USER}"));
        block_on(store.commit(Standing::default(), &[deposit(number, USER)]))
            .expect("the row is corrected");
    }
}

/// Goal: a call that is blocked and has no row is answered at once, and no more than the configured
/// calls wait behind a transfer that has one. Method: a session holds a balance. A transfer out of
/// it has no row. A transfer into it has one, and a crowd of the same user comes behind it.
#[test]
fn only_a_transfer_with_a_row_waits_for_a_held_balance() {
    let site = Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__COORDINATOR__PARKED_CALLS_MAX", 1)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "10");
    site.wait_for_rest();
    let count = "SELECT count(*) FROM transfers";
    let held = site.lock_usdt(&[USER]);
    let reply = server.transfer(USER, Way::ToSpot, "1");
    assert_eq!((reply.status, &reply.json()["code"]), (503, &json!("SYSTEM_ERROR")), "{reply:?}");
    assert_eq!(reply.json()["outcome"], json!(null), "{reply:?}");
    assert_eq!(site.sql_value(count), "1", "it has no row");
    assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 202);
    eventually("a call that is turned away", || {
        let replies = crowd(6, |_| server.transfer(USER, Way::ToSpot, "1"));
        assert!(replies.iter().all(|reply| reply.status == 503), "{replies:?}");
        replies.iter().any(|reply| reply.json()["reason"] == "parked").then_some(())
    });
    assert_eq!(site.sql_value(count), "2");
    server.transfer_committed(USER + 1, Way::ToSpot, "1");
    held.sql("ROLLBACK");
    site.wait_for_rest();
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    site.assert_in_order(&server);
}
