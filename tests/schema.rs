//! PostgreSQL's own rules about transfers, compared with the code and the specification.

use domain::account::AccountStatus;
use domain::code::Code;
use domain::transfer::{Claim, Decision, Direction, Event, Op, Participant, State};

use ubscore::transaction::{BranchState, TransactionState};

use crate::harness::{Session, Site};

/// The whole schema, held against one committed file.
pub(crate) mod committed;

/// Functions and triggers, applied at a start.
mod functions;

/// The views for people.
mod people;

/// Every state that can follow `state` after any number of transitions.
fn reachable(state: State) -> Vec<State> {
    let mut found = Vec::new();
    let mut next = vec![state];
    while let Some(state) = next.pop() {
        for event in [Event::Proceed, Event::Success, Event::ExplicitFail] {
            if let Some(state) = state.next(event).filter(|state| !found.contains(state)) {
                found.push(state);
                next.push(state);
            }
        }
    }
    found
}

/// Goal: PostgreSQL admits the reachable pairs of the transition table, and no others. Method: all
/// 64 pairs, through the function and on a row.
#[test]
fn postgresql_admits_the_transitive_closure_of_the_table() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    session.sql(
        "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state) \
         VALUES (1, gen_random_uuid(), 1, 3, 1, 1, 0)",
    );
    for old in State::ALL {
        for new in State::ALL {
            let admitted = reachable(old).contains(&new);
            let (from, to) = (old.number(), new.number());
            let asked = format!("SELECT transfer_state_admits({from}::smallint, {to}::smallint)");
            let want = if admitted { "t" } else { "f" };
            assert_eq!(session.sql(&asked), [[want.to_owned()]], "{old:?} {new:?}");

            session.sql(&format!(
                "ALTER TABLE transfers_tb DISABLE TRIGGER USER; \
                 UPDATE transfers_tb SET state = {from}; \
                 ALTER TABLE transfers_tb ENABLE TRIGGER USER"
            ));
            let update = format!("UPDATE transfers_tb SET state = {to}");
            if admitted || old == new {
                session.sql(&update);
            } else {
                assert_eq!(session.sql_refused(&update), "UB003", "{old:?} {new:?}");
            }
        }
        assert_eq!(reachable(old).is_empty(), old.is_terminal(), "{old:?}");
    }
}

/// Every state that can follow by these steps, after any number of them.
fn closure<S: Copy + PartialEq + 'static>(state: S, nexts: impl Fn(S) -> &'static [S]) -> Vec<S> {
    let (mut found, mut left) = (Vec::new(), vec![state]);
    while let Some(state) = left.pop() {
        for next in nexts(state) {
            if !found.contains(next) {
                found.push(*next);
                left.push(*next);
            }
        }
    }
    found
}

/// Goal: the same of transactions and of their branches, with the names of their states. Method:
/// all pairs, through the functions.
#[test]
fn postgresql_admits_the_transitive_closure_of_the_tables_of_transactions() {
    let site = committed::fresh();
    let session = site.session();
    let asked = |call: String| session.sql(&format!("SELECT {call}"))[0][0].clone();
    for old in TransactionState::ALL {
        let from = old.number();
        assert_eq!(asked(format!("transaction_state_name({from}::smallint)")), old.name());
        for new in TransactionState::ALL {
            let to = new.number();
            let want = closure(old, TransactionState::nexts).contains(&new);
            let call = format!("transaction_state_admits({from}::smallint, {to}::smallint)");
            assert_eq!(asked(call) == "t", want, "{old:?} {new:?}");
        }
    }
    for old in BranchState::ALL {
        let from = old.number();
        assert_eq!(asked(format!("branch_state_name({from}::smallint)")), old.name());
        for new in BranchState::ALL {
            let to = new.number();
            let want = closure(old, BranchState::nexts).contains(&new);
            let call = format!("branch_state_admits({from}::smallint, {to}::smallint)");
            assert_eq!(asked(call) == "t", want, "{old:?} {new:?}");
        }
    }
}

/// Goal: PostgreSQL admits a change of state exactly if the new state keeps every claim of the old
/// one and adds a claim, or is the next state without a decision. Method: all 64 pairs.
#[test]
fn postgresql_admits_the_changes_of_state_that_keep_every_claim() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    for old in State::ALL {
        for new in State::ALL {
            let claims = |state: State| Op::OF_TRANSFER.map(|op| state.claim(op));
            let pairs = claims(old).into_iter().zip(claims(new));
            let kept = pairs.into_iter().all(|(a, b)| a == Claim::Undecided || a == b);
            let further = claims(old) != claims(new) || old.next(Event::Proceed) == Some(new);
            let want = if kept && further { "t" } else { "f" };
            let (from, to) = (old.number(), new.number());
            let asked = format!("SELECT transfer_state_admits({from}::smallint, {to}::smallint)");
            assert_eq!(session.sql(&asked), [[want.to_owned()]], "{old:?} {new:?}");
        }
    }
}

/// Goal: PostgreSQL and Rust add up the same operations of Spot below the watermark. Method: every
/// direction and state, asked of the function.
#[test]
fn postgresql_counts_the_operations_of_spot_that_a_terminal_state_claims() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    for direction in Direction::ALL {
        for state in State::ALL {
            let decided = state.decided_at(direction, Participant::Spot);
            let succeeded = decided.filter(|(_, claim)| *claim == Claim::Succeeded);
            let ops =
                succeeded.filter(|_| state.is_terminal()).map(|(op, _)| op.number().to_string());
            let want = format!("{{{}}}", ops.collect::<Vec<_>>().join(","));
            let (kind, number) = (direction as u8, state.number());
            let asked =
                format!("SELECT spot_operations({kind}::smallint, {number}::smallint)::text");
            assert_eq!(session.sql(&asked), [[want]], "{direction:?} {state:?}");
        }
    }
}

/// Every status of an account, and none.
const STATUSES: [Option<AccountStatus>; 4] =
    [None, Some(AccountStatus::Active), Some(AccountStatus::Frozen), Some(AccountStatus::Disabled)];
/// The amount of each operation, in smallest units of USDT.
const UNITS: u64 = 1_000_000_000;

/// A new user with an account of this status and a balance.
fn user(session: &Session, number: u64, status: Option<AccountStatus>, units: u64) -> u64 {
    let user = 5_000_000 + number;
    if let Some(status) = status {
        let status = status as u8;
        session
            .sql(&format!("INSERT INTO accounts_tb (user_id, status) VALUES ({user}, {status})"));
    }
    session.sql(&format!(
        "INSERT INTO balances_tb (user_id, asset_id, available) VALUES ({user}, 3, {units})"
    ));
    user
}

/// The Funding balance of a user, smallest units.
fn units(session: &Session, user: u64) -> i128 {
    let asked = format!("SELECT available FROM balances_tb WHERE user_id = {user}");
    session.sql(&asked)[0][0].parse().expect("a number")
}

/// The verdict as PostgreSQL writes it: the code of a refusal, or nothing.
fn written(verdict: Result<(), Code>) -> String {
    verdict.map_or_else(|code| code.name().to_owned(), |()| String::new())
}

/// Goal: Rust and PostgreSQL give one verdict for every operation of a transfer, account status and
/// balance. Method: every cell with an account of its own, enough money or one unit less, decided
/// by the functions that decided before the process did; the balance afterwards is the row's
/// effect.
#[test]
fn rust_and_postgresql_give_one_verdict_in_every_cell() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    session.sql(include_str!("schema/judge.sql"));
    let mut cells = 0;
    for op in Op::OF_TRANSFER {
        for status in STATUSES {
            for held in [UNITS, UNITS - 1] {
                cells += 1;
                let user = user(&session, cells, status, held);
                let (number, name) = (op.number(), format!("{cells:032}"));
                let way = if op == Op::Deposit { 2 } else { 1 };
                let withdrawn = op.row().undoes.map_or("NULL", |_| "now()");
                session.sql(&format!(
                    "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, \
                       state, funding_at) \
                     VALUES ({cells}, '{name}', {user}, 3, {UNITS}, {way}, 10, {withdrawn})"
                ));
                let decided = format!(
                    "SELECT COALESCE(code_name(funding_operate('{name}', {number}::smallint)), '')"
                );
                let verdict = op.verdict(Participant::Funding, status, held >= UNITS);
                let cell = format!("{op} {status:?} {held}");
                assert_eq!(session.sql(&decided), [[written(verdict)]], "{cell}");
                let decision = verdict.map_or_else(Decision::Refused, |()| Decision::Success);
                let after = i128::from(held) + op.effect(decision, UNITS);
                assert_eq!(units(&session, user), after, "{cell}");
            }
        }
    }
    assert_eq!(cells, 24);
}

#[test]
fn every_table_and_column_of_the_specification_is_there() {
    let site = Site::new();
    site.start().stop();
    for (table, columns) in [
        (
            "assets_tb",
            "asset_id symbol precision status internal_transfer_enabled min_transfer_amount \
             max_transfer_amount",
        ),
        ("accounts_tb", "user_id status"),
        ("balances_tb", "user_id asset_id available frozen version"),
        (
            "transfers_tb",
            "req_id cid user_id asset_id amount direction \
             state code error_message attempts next_retry_at order_number log_sequence \
             created_at updated_at funding_at funding_code funding_after refund_at refund_after history",
        ),
        ("transfer_history", "req_id states at attempt actor reason event_id"),
        ("transfer_operations", "req_id op outcome code user_id asset_id amount balance_after at"),
        (
            "journal_tb",
            "shard flight incarnation attempt at durable open_from event_first bytes event_count entries",
        ),
        ("engine_state", "log_identity incarnation halted watermark"),
        ("transactions_tb", "transaction_id owner tx_id state decide sealed history"),
        ("transaction_branches", "transaction_id participant round state fingerprint legs payload"),
        ("transaction_grants", "role_name owner"),
        ("admin_audit", "actor reason"),
        ("refinery_schema_history", "version"),
    ] {
        let there = site.sql(&format!(
            "SELECT column_name FROM information_schema.columns WHERE table_name = '{table}'"
        ));
        for column in columns.split_whitespace() {
            assert!(there.iter().any(|row| row[0] == column), "{table}.{column}: {there:?}");
        }
    }
    // It would make every state change a non-HOT update.
    let indexes = "SELECT indexdef FROM pg_indexes WHERE tablename = 'transfers_tb'";
    for index in site.sql(indexes) {
        assert!(!index[0].contains("state"), "{index:?}");
    }
}

/// Goal: each search for a cid uses its index, with its user and without. Method: every such
/// statement, as in the functions and the reads, explained over many transfers; one user has most
/// of them and one cid is common; and no other index contains cids.
#[test]
fn a_cid_is_found_by_its_index_with_its_user_and_without() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    session.sql(
        "INSERT INTO transfers_tb (order_number, req_id, cid, user_id, asset_id, amount, direction, \
           state) \
         SELECT n, lpad(n::text, 32, '0')::uuid, \
           CASE WHEN n % 3 = 0 THEN NULL WHEN n % 5 = 0 THEN 'common' ELSE 'cid-' || n END, \
           CASE WHEN n % 5 = 0 THEN n ELSE n % 7 + 1 END, 3, 1, 1, -10 \
         FROM generate_series(1, 60000) AS n; \
         ANALYZE transfers_tb",
    );
    let given = "unnest(array_fill(gen_random_uuid(), '{2}'), '{cid-1,cid-2}'::varchar[], '{2,3}'::bigint[]) \
                 WITH ORDINALITY AS a (req_id, cid, user_id, place)";
    for statement in [
        "SELECT * FROM transfers_tb WHERE user_id = 2 AND cid = 'cid-1'".to_owned(),
        "SELECT * FROM transfers_tb WHERE user_id = 2 AND order_number < 9000 AND order_number >= 0 \
         AND cid = ('cid-1') ORDER BY order_number DESC LIMIT 50"
            .to_owned(),
        format!(
            "SELECT EXISTS (SELECT FROM transfers_tb t WHERE t.user_id = a.user_id AND t.cid = a.cid) \
             FROM {given}"
        ),
        format!(
            "SELECT t.* FROM {given} CROSS JOIN LATERAL (\
               SELECT * FROM transfers_tb WHERE a.cid IS NULL AND req_id = a.req_id \
               UNION ALL SELECT * FROM transfers_tb WHERE user_id = a.user_id AND cid = a.cid\
             ) AS t ORDER BY a.place"
        ),
        "SELECT * FROM (SELECT * FROM transfers_tb WHERE cid = 'cid-1' OFFSET 0) AS t \
         WHERE order_number < 9000 ORDER BY order_number DESC LIMIT 100"
            .to_owned(),
    ] {
        let plan: Vec<String> = session
            .sql(&format!("EXPLAIN (COSTS OFF) {statement}"))
            .into_iter()
            .map(|row| row[0].clone())
            .collect();
        let plan = plan.join("\n");
        assert!(plan.contains("transfers_tb_cid_user_id_key"), "{statement}\n{plan}");
        assert!(!plan.contains("Seq Scan"), "{statement}\n{plan}");
    }
    let of_cids = "SELECT indexname FROM pg_indexes WHERE tablename = 'transfers_tb' AND indexdef LIKE '%cid%'";
    assert_eq!(site.sql(of_cids), [["transfers_tb_cid_user_id_key".to_owned()]]);
}

/// Goal: a decision of Funding stands. Method: a row for each kind of decision, and each statement
/// that would change, remove or contradict it.
#[test]
fn a_decision_of_funding_is_written_once() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    let row = |number: u8, way: u8, outcome: &str, values: &str| {
        format!(
            "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state, \
               {outcome}) \
             VALUES ({number}, gen_random_uuid(), 1, 3, 1, {way}, 30, {values})"
        )
    };
    let paid = "funding_at, funding_after";
    session.sql(&row(1, 1, paid, "now(), 5"));
    session.sql(&row(2, 2, "funding_at, funding_code", "now(), 23"));
    session.sql(&row(3, 1, &format!("{paid}, refund_at, refund_after"), "now(), 5, now(), 6"));
    for (number, change, state) in [
        (1, "funding_at = NULL, funding_after = NULL", "UB003"),
        (1, "funding_after = 6", "UB003"),
        (1, "funding_code = 22", "UB003"),
        (2, "funding_code = NULL", "UB003"),
        (2, "refund_at = now()", "23514"),
        (3, "refund_at = NULL", "UB003"),
        (3, "refund_after = 7", "UB003"),
    ] {
        let change = format!("UPDATE transfers_tb SET {change} WHERE order_number = {number}");
        assert_eq!(session.sql_refused(&change), state, "{change}");
    }
    session
        .sql("UPDATE transfers_tb SET refund_at = now(), refund_after = 6 WHERE order_number = 1");
    for (way, outcome, values) in
        [(2, "refund_at", "now()"), (1, "refund_at", "now()"), (1, "funding_code", "24")]
    {
        assert_eq!(session.sql_refused(&row(9, way, outcome, values)), "23514", "{outcome}");
    }
}

/// PostgreSQL itself refuses every invalid balance.
#[test]
fn postgresql_refuses_what_may_never_be_in_a_row() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    for (statement, state) in [
        ("UPDATE balances_tb SET available = -1", "23514"),
        ("UPDATE balances_tb SET frozen = -1", "23514"),
        ("UPDATE external_operations SET amount = 1", "UB003"),
        ("INSERT INTO external_operations DEFAULT VALUES", "23502"),
        ("INSERT INTO accounts_tb (user_id) VALUES (1001)", "23505"),
        ("INSERT INTO accounts_tb (user_id) VALUES (0)", "23514"),
        ("INSERT INTO engine_state DEFAULT VALUES", "23505"),
        (
            "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state) \
             VALUES (1, gen_random_uuid(), 1, 3, 0, 1, 0)",
            "23514",
        ),
        (
            "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state) \
             VALUES (1, gen_random_uuid(), 1, 3, 1, 1, 15)",
            "23514",
        ),
    ] {
        assert_eq!(session.sql_refused(statement), state, "{statement}");
    }
}
