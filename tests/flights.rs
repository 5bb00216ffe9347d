//! Flights: what PostgreSQL compares before it writes one, and which of several stands.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::account::{AccountStatus, UserId};
use domain::asset::{AssetId, Catalog};
use jiff::Timestamp;
use serde_json::json;
use ubscore::commands::dev;
use ubscore::postgres::database::{Database, Writer};
use ubscore::postgres::flight::{
    AccountRow, Balance, BalanceRow, Compared, Flight, Journal, Last, Stopped,
};
use ubscore::postgres::{self, Limits};

use crate::harness::{Site, Way, block_on, eventually};

const USER: u64 = 1001;
const USDT: AssetId = AssetId(3);
const COIN: u128 = 100_000_000;
const LIMITS: Limits = Limits {
    connect_timeout: Duration::from_secs(30),
    statement_timeout: Duration::from_secs(30),
    lock_timeout: Duration::from_secs(30),
    idle_in_transaction_timeout: Duration::from_secs(30),
};

fn user(number: u64) -> UserId {
    UserId::new(number).expect("not zero")
}

/// A database with one user and 10 USDT.
fn site() -> Site {
    let site = Site::new();
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    site.sql(&format!(
        "INSERT INTO accounts_tb (user_id, account_type) VALUES ({USER}, 1); \
         INSERT INTO balances_tb (user_id, asset_id, account_type, available) \
         VALUES ({USER}, 3, 1, 10)"
    ));
    site
}

/// The journal of shard 0 for a new incarnation.
fn begin(site: &Site) -> Database {
    let incarnation = site.begin(&LIMITS, 1).number;
    let catalog = Arc::new(ArcSwap::from_pointee(Catalog::new(dev::assets())));
    Database::new(site.target(), LIMITS, Writer { incarnation, shard: 0 }, catalog)
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
    let stands = "SELECT available, version FROM balances_tb";
    assert_eq!(site.sql(stands), [["10.00000000", "1"]]);
    assert_eq!(last(&mut journal).expect("ours").number, before, "no number is used up");
    block_on(journal.fly(&payment(before + 1, 7, HELD, account(ACTIVE)))).expect("written");
    assert_eq!(site.sql(stands), [["11.00000000", "2"]]);
    assert_eq!(last(&mut journal), Some(Last { number: before + 1, attempt: 7 }));
}

/// Goal: a row that another session changes while the flight waits for it is not overwritten.
/// Method: a session changes a balance, or a status, and commits when the flight waits for it.
#[test]
fn a_row_that_changes_while_a_flight_waits_for_it_stays() {
    for (change, compared) in [
        ("balances_tb SET available = 3, version = version + 1", Compared::Balances),
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
        let stands = "SELECT available, status FROM balances_tb JOIN accounts_tb USING (user_id)";
        let want = match compared {
            Compared::Balances => ["3.00000000", "1"],
            Compared::Accounts | Compared::Transfers => ["10.00000000", "2"],
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
    assert_eq!(site.sql_value("SELECT available FROM balances_tb"), "12.00000000");
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
            "UPDATE balances_tb SET available = {available} WHERE user_id = {USER} AND asset_id = 3"
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
    let left = format!("SELECT available FROM balances_tb WHERE user_id = {USER} AND asset_id = 3");
    assert_eq!(site.sql_value(&left), "3.00000000");
}
