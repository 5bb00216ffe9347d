//! The acceptance ids of the specification. Each id has one or more tests, named by the id;
//! `acceptance.md` is the list.
//!
//! They check the whole program as an auditor would. The corners of each subject are in the other
//! files.

use serde_json::Value;
use ubscore::config::alert::Alert as AlertConfig;

use crate::harness::{Balance, COIN, Reply, Server, Site, Way, eventually};
use crate::http;

/// INV: no transfer, however it ends, makes or loses money.
mod conservation;

/// ATK: malicious requests.
mod attacks;

/// BAL: rules of balances and account statuses.
mod balances;

/// FSM: the states that a transfer passes, and the states in which it stays.
mod states;

/// CRA and the crash of FND: SIGKILL at named points.
#[cfg(feature = "crash")]
mod crashes;

/// CON: several callers at once.
mod concurrency;

/// IDP: the same request twice.
mod idempotency;

/// FND: the ways in which funds are stolen, lost or made.
mod funds;

/// MON: alerts that call an operator.
mod monitoring;

/// No user that a start gives money to: such a start would wait for rows that a test has locked.
const USER: u64 = 1003;
const OTHER: u64 = 1004;
/// The first balance of each user, in Funding.
const GIFT: u128 = 10_000 * COIN;

const SUCCEEDS: [&str; 5] =
    ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMMITTED"];
const FAILS: [&str; 3] = ["INIT", "SOURCE_PENDING", "FAILED"];
const ROLLS_BACK: [&str; 6] =
    ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMPENSATING", "ROLLED_BACK"];

/// A server where both users have their money in Funding.
fn start_given(site: &Site) -> Server {
    let server = site.start();
    for user in [USER, OTHER] {
        server.deposit(user, "USDT", "10000");
    }
    server
}

/// The same with 50 of it in Spot.
fn start_endowed(site: &Site) -> Server {
    let server = start_given(site);
    for user in [USER, OTHER] {
        server.transfer_accepted(user, Way::ToSpot, "50");
    }
    site.wait_for_rest();
    server
}

/// A balance after `units` have moved one way.
fn after(before: Balance, way: Way, units: u128) -> Balance {
    let (funding, spot) = (before.funding.expect("some"), before.spot.expect("some"));
    let (funding, spot) = match way {
        Way::ToSpot => (funding - units, spot + units),
        Way::ToFunding => (funding + units, spot - units),
    };
    Balance { funding: Some(funding), spot: Some(spot), ..before }
}

/// The number of a transfer's state in PostgreSQL.
fn stored_state(site: &Site, req_id: &str) -> String {
    site.sql_value(&format!("SELECT state FROM transfers WHERE req_id = '{req_id}'"))
}

/// Waits until PostgreSQL has a transfer in a state.
fn wait_for_state(site: &Site, req_id: &str, state: &str) {
    eventually(state, || (stored_state(site, req_id) == state).then_some(()));
}

/// Funding's operations of a transfer and their outcomes, as `op:outcome` (1 withdraw, 2 deposit, 3
/// refund; 1 success, 2 refused).
fn funding_operations(site: &Site, req_id: &str) -> Vec<String> {
    let rows = site.sql(&format!(
        "SELECT op || ':' || outcome FROM transfer_operations WHERE req_id = '{req_id}' ORDER BY op"
    ));
    rows.into_iter().map(|row| row[0].clone()).collect()
}

/// UBSCore's records of a transfer, as operation and outcome, in the order of the log.
fn recorded_operations(site: &Site, req_id: &str) -> Vec<(String, String)> {
    let mut dump = std::process::Command::new(env!("CARGO_BIN_EXE_ubscore"));
    dump.args(["wal", "dump", "--format", "json", "--req-id", req_id]).arg(&site.data_dir);
    let output = dump.output().expect("the binary");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).expect("text");
    let record = |line: &str| {
        let json: Value = serde_json::from_str(line).expect("JSON");
        let field = |name: &str| json[name].as_str().expect("a text").to_owned();
        (field("op"), field("outcome"))
    };
    lines.lines().map(record).collect()
}

/// One successful operation in UBSCore's log.
fn success(op: &str) -> (String, String) {
    (op.to_owned(), "SUCCESS".to_owned())
}

/// Asserts that a transfer has passed exactly these states and rests in the last.
#[track_caller]
fn assert_passed(server: &Server, user: u64, req_id: &str, states: &[&str]) -> Value {
    let transfer = server.look(user, req_id);
    assert_eq!(http::history(&transfer), states, "{transfer}");
    assert_eq!(transfer["state"].as_str(), states.last().copied(), "{transfer}");
    transfer
}

/// How many answers have this status.
fn count_of(replies: &[Reply], status: u16) -> usize {
    replies.iter().filter(|reply| reply.status == status).count()
}

/// How often a server has logged that a call is blocked. It logs this once per try.
fn tries(server: &Server) -> usize {
    server.said().matches("blocked; others go on").count()
}

/// Waits until a server has made `more` further tries.
fn wait_for_tries(server: &Server, more: usize) {
    let before = tries(server);
    eventually("more tries", || (tries(server) >= before + more).then_some(()));
}

/// A site with short limits: for a lock, until the next try, and until the answer.
fn impatient(fuse: bool) -> Site {
    Site::fused(fuse)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50)
}

/// The default time after which a transfer counts as stuck.
fn stuck_ms_by_default() -> u64 {
    AlertConfig::default().stuck_ms
}
