//! Rows that other sessions change between two flights.

use domain::amount::{Amount, UNITS_MAX};
use domain::transfer::{Decision, Op, ReqId, State};
use ubscore::postgres::incarnation::ORDER_NUMBER_BITS;
use ubscore::postgres::store::{Call, External, Failure, Reply, Store, Transfer, TransitionPath};

use super::{STANDING, USERS_HELD, accept, begin, external, site, store};
use crate::harness::{LIMITS, block_on};

/// A change of one row between two flights, and the flight after it.
struct Case {
    name: &'static str,
    /// SQL; `$` is the user.
    change: &'static str,
    /// EXT_DEPOSIT or EXT_WITHDRAW, and coins.
    then: (Op, u64),
    /// The code of the refusal, "" for a success.
    code: &'static str,
    /// Available, frozen, version and status afterwards.
    rows: [&'static str; 4],
}

/// Before each change a user has 11 coins at version 2, and an active account. The process holds
/// both in memory.
const CASES: [Case; 12] = [
    Case {
        name: "a balance is raised",
        change: "UPDATE balances_tb SET available = 50e8 WHERE user_id = $",
        then: (Op::ExtWithdraw, 20),
        code: "",
        rows: ["30", "0", "3", "1"],
    },
    Case {
        name: "a balance is lowered",
        change: "UPDATE balances_tb SET available = 5e8, version = version + 1 WHERE user_id = $",
        then: (Op::ExtWithdraw, 8),
        code: "INSUFFICIENT_BALANCE",
        rows: ["5", "0", "3", "1"],
    },
    Case {
        name: "a version is raised and the balance stays",
        change: "UPDATE balances_tb SET version = 90 WHERE user_id = $",
        then: (Op::ExtWithdraw, 1),
        code: "",
        rows: ["10", "0", "91", "1"],
    },
    Case {
        name: "a version is raised under a refusal",
        change: "UPDATE balances_tb SET available = 12e8, version = 90 WHERE user_id = $",
        then: (Op::ExtWithdraw, 20),
        code: "INSUFFICIENT_BALANCE",
        rows: ["12", "0", "90", "1"],
    },
    Case {
        name: "money is set apart",
        change: "UPDATE balances_tb SET available = 8e8, frozen = 3e8 WHERE user_id = $",
        then: (Op::ExtDeposit, 1),
        code: "",
        rows: ["9", "3", "3", "1"],
    },
    Case {
        name: "frozen money alone is changed",
        change: "UPDATE balances_tb SET frozen = 3e8 WHERE user_id = $",
        then: (Op::ExtWithdraw, 11),
        code: "",
        rows: ["0", "3", "3", "1"],
    },
    Case {
        name: "a balance is deleted before a deposit",
        change: "DELETE FROM balances_tb WHERE user_id = $",
        then: (Op::ExtDeposit, 4),
        code: "",
        rows: ["4", "0", "1", "1"],
    },
    Case {
        name: "a balance is deleted before a withdrawal",
        change: "DELETE FROM balances_tb WHERE user_id = $",
        then: (Op::ExtWithdraw, 4),
        code: "INSUFFICIENT_BALANCE",
        rows: ["", "", "", "1"],
    },
    Case {
        name: "an account is frozen",
        change: "UPDATE accounts_tb SET status = 2 WHERE user_id = $",
        then: (Op::ExtWithdraw, 1),
        code: "ACCOUNT_FROZEN",
        rows: ["11", "0", "2", "2"],
    },
    Case {
        name: "an account is frozen under a refusal for the balance",
        change: "UPDATE accounts_tb SET status = 2 WHERE user_id = $",
        then: (Op::ExtWithdraw, 20),
        code: "ACCOUNT_FROZEN",
        rows: ["11", "0", "2", "2"],
    },
    Case {
        name: "an account is disabled before a deposit",
        change: "UPDATE accounts_tb SET status = 3 WHERE user_id = $",
        then: (Op::ExtDeposit, 1),
        code: "ACCOUNT_DISABLED",
        rows: ["11", "0", "2", "3"],
    },
    Case {
        name: "an account is deleted",
        change: "DELETE FROM balances_tb WHERE user_id = $; \
                 DELETE FROM accounts_tb WHERE user_id = $",
        then: (Op::ExtWithdraw, 1),
        code: "SOURCE_ACCOUNT_NOT_FOUND",
        rows: ["", "", "", ""],
    },
];

/// Goal: a row that is changed by hand between two flights is never overwritten, also where only a
/// refusal rests on it. Method: each change of a balance or an account, against a store that holds
/// the rows as they were.
#[test]
fn a_row_changed_between_two_flights_is_never_overwritten() {
    let site = site();
    let incarnation = begin(&site);
    let mut store = store(&site.target(), LIMITS, incarnation, 0);
    let numbers = incarnation << ORDER_NUMBER_BITS;
    for (place, case) in (1..).zip(CASES) {
        let Case { name, change, then: (op, count), code, rows } = case;
        let (user, number) = (100 + place, numbers + 10 * place);
        site.sql(&format!(
            "INSERT INTO accounts_tb (user_id) VALUES ({user}); \
             INSERT INTO balances_tb (user_id, asset_id, available) VALUES ({user}, 3, 10e8)"
        ));
        let first = external(Op::ExtDeposit, user, 1, &format!("first-{place}"), number);
        block_on(store.commit(STANDING, &[first])).expect("committed");
        site.sql(&change.replace('$', &user.to_string()));
        let then = external(op, user, count, &format!("then-{place}"), number + 1);
        let replies = block_on(store.commit(STANDING, &[then])).expect("committed");
        let [Reply::External { decision, .. }] = replies.as_slice() else { panic!("{replies:?}") };
        assert_eq!(decision.code().map_or("", |code| code.name()), code, "{name}");
        let stands = format!(
            "SELECT available, frozen, version, status \
             FROM (SELECT {user} AS user_id) u LEFT JOIN accounts_tb USING (user_id) \
             LEFT JOIN balances USING (user_id)"
        );
        assert_eq!(site.sql(&stands), [rows], "{name}");
    }
}

/// Goal: an account, a balance or a transfer that another session makes, ends or deletes is never
/// overwritten either. Method: rows that the store holds as absent appear; a transfer is ended, or
/// deleted, before its next step.
#[test]
fn a_row_that_appears_or_ends_between_two_flights_is_never_overwritten() {
    let site = site();
    let incarnation = begin(&site);
    let mut store = store(&site.target(), LIMITS, incarnation, 0);
    let numbers = incarnation << ORDER_NUMBER_BITS;
    let mut fly = |calls: &[Call]| block_on(store.commit(STANDING, calls));
    let withdrawal = |key: &str, number| external(Op::ExtWithdraw, 100, 5, key, numbers + number);
    let refused = fly(&[withdrawal("absent", 1)]).expect("committed");
    let is_refused = |replies: &[Reply]| {
        matches!(replies, [Reply::External { decision: Decision::Refused(_), .. }])
    };
    assert!(is_refused(&refused), "{refused:?}");
    site.sql("INSERT INTO accounts_tb (user_id) VALUES (100)");
    let refused = fly(&[withdrawal("no balance", 2)]).expect("committed");
    assert!(is_refused(&refused), "{refused:?}");
    site.sql("INSERT INTO balances_tb (user_id, asset_id, available) VALUES (100, 3, 7e8)");
    let paid = fly(&[withdrawal("there", 3)]).expect("committed");
    assert!(!is_refused(&paid), "{paid:?}");
    assert_eq!(site.sql_value("SELECT available FROM balances WHERE user_id = 100"), "2");

    let first = external(Op::ExtDeposit, 2, 9, "first", numbers + 10);
    let accepted = fly(&[first, accept(2, numbers + 11), accept(2, numbers + 12)]);
    let accepted = accepted.expect("committed");
    let [_, Reply::Transfer(one), Reply::Transfer(other)] = accepted.as_slice() else {
        panic!("{accepted:?}")
    };
    let step = |transfer: &Transfer| {
        let path = vec![State::Compensating];
        let transition = TransitionPath { path, funding: None };
        let (code, log_sequence, attempt) = (None, None, 0);
        let transfer = Box::new(transfer.clone());
        Call::Step { transfer, transition, code, log_sequence, attempt }
    };
    let name = |req_id: ReqId| format!("req_id = ulid_uuid('{req_id}')");
    site.sql(&format!("UPDATE transfers_tb SET state = 40 WHERE {}", name(one.intent.req_id)));
    let stands = fly(&[step(one)]).expect("committed");
    let [Reply::Transfer(stands)] = stands.as_slice() else { panic!("{stands:?}") };
    assert_eq!(stands.state, State::Committed, "the row's state is answered");
    site.sql(&format!(
        "ALTER TABLE transfers_tb DISABLE TRIGGER USER; \
         DELETE FROM transfers_tb WHERE {}; ALTER TABLE transfers_tb ENABLE TRIGGER USER",
        name(other.intent.req_id)
    ));
    let gone = fly(&[step(other)]);
    assert!(gone.is_err(), "{gone:?}");
    let states = "SELECT state FROM transfers";
    assert_eq!(site.sql(states), [["40"]], "no row is made or moved");
}

/// Goal: an amount that a balance cannot hold changes nothing and blocks only itself, and the
/// largest amounts are exact. Method: a balance just below the limit of its column; the largest
/// amount twice, the second time in a flight with another user's deposit.
#[test]
fn a_balance_at_its_limit_takes_what_fits_and_no_more() {
    const LIMIT: &str = "99999999999999999999999999999999999999";
    let site = site();
    let incarnation = begin(&site);
    let mut store = store(&site.target(), LIMITS, incarnation, 0);
    let numbers = incarnation << ORDER_NUMBER_BITS;
    let largest = UNITS_MAX;
    site.sql(&format!(
        "UPDATE balances_tb SET available = {LIMIT} - {largest} \
         WHERE user_id = 2"
    ));
    let call = |op, user, key: &str, number| match external(op, user, 1, key, numbers + number) {
        Call::External(external) => {
            Call::External(External { amount: Amount::new(largest).expect("not zero"), ..external })
        }
        call => call,
    };
    let mut fly = |calls: &[Call]| block_on(store.commit(STANDING, calls));
    let row = || site.sql_value("SELECT available FROM balances_tb WHERE user_id = 2");
    fly(&[call(Op::ExtDeposit, 2, "fits", 1)]).expect("committed");
    assert_eq!(row(), LIMIT);
    let more = call(Op::ExtDeposit, 2, "more", 2);
    let other = call(Op::ExtDeposit, 4, "other", 3);
    let both = fly(&[more.clone(), other.clone()]);
    assert!(matches!(both, Err(Failure::Refused { index: 0, violation: false, .. })), "{both:?}");
    let refused = fly(&[more]);
    assert!(matches!(refused, Err(Failure::Refused { violation: false, .. })), "{refused:?}");
    assert_eq!(row(), LIMIT);
    fly(&[other]).expect("committed");
    for number in 0..2 {
        fly(&[call(Op::ExtWithdraw, 2, &format!("back-{number}"), 4 + number)]).expect("committed");
    }
    let left = format!("SELECT sum(available) = {LIMIT} - {largest} FROM balances_tb");
    assert_eq!(site.sql_value(&left), "t");
}

/// Goal: more users at work than the memory holds cost reads and no money. Method: flights of three
/// times as many users, in and out.
#[test]
fn more_users_than_the_memory_holds_are_exact() {
    let site = site();
    let incarnation = begin(&site);
    let mut store = store(&site.target(), LIMITS, incarnation, 0);
    let numbers = incarnation << ORDER_NUMBER_BITS;
    let users = 3 * USERS_HELD as u64;
    for (round, op, count) in
        [(0, Op::ExtDeposit, 5), (1, Op::ExtWithdraw, 3), (2, Op::ExtDeposit, 1)]
    {
        let call = |user| {
            let place = round * users + user;
            external(op, 100 + user, count, &format!("key-{place}"), numbers + place)
        };
        let calls: Vec<Call> = (1..=users).map(call).collect();
        for part in calls.chunks(USERS_HELD * 2) {
            block_on(store.commit(STANDING, part)).expect("committed");
        }
    }
    let sums = "SELECT available, version, count(*) FROM balances WHERE user_id > 100 \
                GROUP BY available, version";
    assert_eq!(site.sql(sums), [["3", "3", &users.to_string()]]);
}
