//! Postings by name after their decision: in dumps, statements, snapshots, audits, the list of
//! holds, and in a log that is cut. A service sends them through the Spot adapter, on the data of a
//! stopped server.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use domain::account::{AccountStatus, UserId};
use domain::code::Code;
use domain::posting::{Leg, Place};
use domain::transfer::{Direction, Op, ReqId};
use engine::entry::Entry;
use engine::named::{NamedPosting, TxId};
use engine::order::Order;
use engine::text::Text;
use engine::{Engine, command};
use serde_json::{Value, json};
use ubscore::adapters::spot::{self, Spot};
use ubscore::adapters::{Answer, Outcome, Reason};
use ubscore::clock::{Clock, SystemClock};
use wal::{Directory, Reader};

use crate::harness::{Server, Site, block_on, catalog, copy_files, force, said, snapshots, text};
use crate::postings::{
    COIN, FEES, MAKER, TAKER, USDT, assert_chained, balances, change_a_hold, leg, open, signed,
    statement, stopped, verify,
};

/// An engine on the log of no server, and its adapter.
struct Running {
    engine: Engine,
    spot: Spot,
}

impl Running {
    fn start(data_dir: &Path) -> Running {
        let closed = open(data_dir);
        let identity = closed.identity().unwrap_or(wal::Identity(7));
        let replayed = closed.replay(0, |_| {}).expect("sound");
        let engine = replayed.start(identity, |sync| sync()).expect("started");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let options = spot::Options { timeout: Duration::from_secs(30) };
        let spot = Spot::new(engine.handle(), clock, catalog(), options);
        Running { engine, spot }
    }

    fn ask(&self, op: Op, posting: &NamedPosting) -> Answer {
        let posting = posting.clone();
        block_on(async {
            match op {
                Op::Reserve => self.spot.reserve(posting).await,
                Op::Settle => self.spot.settle(posting).await,
                Op::Release => self.spot.release(posting).await,
                _ => self.spot.post(posting).await,
            }
        })
    }

    fn submit(&self, command: command::Command) {
        let answer = self.engine.handle().submit(command, 1).expect("room");
        block_on(answer).expect("it runs");
    }

    /// The last record states that all before it are durable: a reader counts no others.
    fn stop(self) {
        self.submit(command::Command::Digest);
        self.engine.stop();
    }
}

fn pays(from: u64, to: u64, amount: u64) -> Leg {
    leg(Place::Available(from), Place::Available(to), amount)
}

fn name(transaction: u64) -> ReqId {
    ReqId::new(u128::from(transaction) << 70).expect("not 0")
}

fn posting(transaction: u64, number: u64, round: u8, legs: &[Leg]) -> NamedPosting {
    NamedPosting {
        transaction: name(transaction),
        order_number: number + transaction,
        round,
        tx_id: TxId::new(&format!("pay:{transaction}")).expect("short"),
        user: TAKER,
        legs: legs.iter().copied().collect(),
    }
}

/// The last order number of a site.
fn last_number(site: &Site) -> u64 {
    site.sql_value("SELECT max(order_number) FROM transfers_tb").parse().expect("a number")
}

fn succeeds(answer: Answer) {
    assert_eq!(answer.outcome, Outcome::Success, "{answer:?}");
    assert!(answer.log_sequence.is_some(), "{answer:?}");
}

/// A transaction of two rounds that is settled, an open one, one that is refused and released, and
/// a POST.
fn pay(data_dir: &Path, number: u64) {
    let running = Running::start(data_dir);
    let ask = |op, transaction, round, legs: &[Leg]| {
        running.ask(op, &posting(transaction, number, round, legs))
    };
    let first = [pays(TAKER, MAKER, COIN), pays(MAKER, FEES, COIN / 2)];
    let all = [first[0], first[1], pays(MAKER, FEES, COIN)];
    succeeds(ask(Op::Reserve, 1, 1, &first));
    succeeds(ask(Op::Reserve, 1, 2, &all));
    succeeds(ask(Op::Settle, 1, 2, &all));
    succeeds(ask(Op::Reserve, 2, 1, &[pays(TAKER, FEES, COIN / 4)]));
    let short = ask(Op::Reserve, 3, 1, &[first[0], pays(TAKER, MAKER, 100 * COIN)]);
    assert_eq!(short.outcome, Outcome::ExplicitFail(Code::InsufficientBalance));
    succeeds(ask(Op::Release, 3, 1, &[]));
    succeeds(ask(Op::Post, 4, 1, &[pays(FEES, MAKER, COIN / 1_000)]));
    running.stop();
}

fn dump(data_dir: &Path, words: &[&str]) -> String {
    let mut dump = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    let (code, out, why) =
        said(&dump.args(["wal", "dump"]).arg(data_dir).args(words).output().expect("the binary"));
    assert_eq!(code, 0, "{why}");
    out
}

/// MLT-008, HLD-008, HLD-015, of services. Goal: statement, dump, snapshot and balances tell the
/// same legs, `verify` adds them up and finds an edited hold, and no operator releases a hold.
#[test]
fn statement_dump_and_balances_tell_the_legs_of_transactions() {
    let site = stopped(Site::new());
    let before = balances(&site.data_dir);
    pay(&site.data_dir, last_number(&site));
    let after = balances(&site.data_dir);
    let change = |user| i128::try_from(after[&user]).expect("few") - before[&user] as i128;
    let unit = i128::from(COIN);
    assert_eq!(change(TAKER), -unit);
    assert_eq!(change(MAKER), -unit / 2 + unit / 1_000);
    assert_eq!(change(FEES), unit + unit / 2 - unit / 1_000);
    for user in [TAKER, MAKER, FEES] {
        let (movements, closing) = statement(&site, user, &["--holds"]);
        assert_chained(&movements);
        assert_eq!(closing, after[&user], "{movements:?}");
        let of_service =
            movements.iter().filter(|one| text(&one["reference"]).starts_with("transaction "));
        let told: i128 = of_service.clone().map(|one| signed(text(&one["amount"]))).sum();
        assert_eq!(told, change(user), "user {user}");
        let held: i128 = of_service.map(|one| signed(text(&one["held"]))).sum();
        assert_eq!(held, if user == TAKER { unit / 4 } else { 0 });
    }
    let lines = dump(&site.data_dir, &["--tx-id", "pay:1"]);
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let settle = format!("POSTING SETTLE tx {} round 2 tx_id pay:1 user {TAKER} USDT 1", name(1));
    assert!(lines.contains(&settle), "{lines}");
    assert_only_rowless(&verify(&site));

    let server = site.start();
    force(&site, &server);
    assert_only_rowless(&verify(&site));
    check_holds(&server);
    server.stop();
    let path = snapshots(&site)[0].1.clone();
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    inspect.args(["snapshot", "inspect"]).arg(&path);
    let (code, out, why) = said(&inspect.output().expect("the binary"));
    assert_eq!(code, 0, "{why}");
    assert!(out.contains(" holds=1 postings=7 "), "{out}");

    // An edited hold is found and named.
    let hold = change_a_hold(&path);
    let (code, out, why) = verify(&site);
    assert_eq!(code, 1, "{out}{why}");
    let named = format!("hold {}:{}:{}", name(2), hold.user, hold.asset);
    assert!(out.contains(&named) && out.contains("0.25000001"), "{named} is not in {out}{why}");
}

/// The postings of this test have no rows in PostgreSQL. `verify` names each, and nothing else.
fn assert_only_rowless((code, out, why): &(i32, String, String)) {
    assert_eq!(*code, 1, "{out}{why}");
    let mut findings = out.lines().filter(|line| line.starts_with("transaction "));
    assert!(findings.all(|line| line.ends_with("PostgreSQL has no such transaction")), "{out}");
    assert!(out.contains("mismatch mismatches=7 "), "{out}{why}");
}

/// The hold of a transaction is listed and shown, and ends only with its transaction.
fn check_holds(server: &Server) {
    let id = format!("{}:{TAKER}:{USDT}", name(2));
    let listed = server.admin_get(&format!("/admin/v1/holds?user={TAKER}")).json();
    let [hold] = &listed["holds"].as_array().expect("holds")[..] else { panic!("{listed}") };
    let usdt = |row: &&Value| row["asset"] == "USDT";
    let rows = listed["balances"].as_array().expect("balances");
    let balance = rows.iter().find(usdt).expect("USDT");
    assert_eq!((&balance["held"], &balance["exact"]), (&json!("0.25"), &json!(true)));
    for (field, want) in [
        ("id", json!(id)),
        ("transaction", json!(name(2).to_string())),
        ("venue", Value::Null),
        ("purpose", Value::Null),
        ("amount", json!("0.25")),
    ] {
        assert_eq!(hold[field], want, "{field}");
    }
    let shown = server.admin_get(&format!("/admin/v1/holds/{id}")).json();
    assert_eq!(&shown, hold);
    let gone = server.admin_get(&format!("/admin/v1/holds/{}:{MAKER}:{USDT}", name(2)));
    assert_eq!(gone.status, 422, "{gone:?}");
    let path = format!("/admin/v1/holds/{id}/release");
    let refused = server.admin("POST", &path, &json!({"reason": "a test"}));
    assert_eq!(refused.status, 400, "{refused:?}");
    assert!(refused.json().to_string().contains("transaction abort"), "{refused:?}");
}

/// Goal: the adapter tells a decision, a repeat, a contradiction and an absent record apart, each
/// after it is durable.
#[test]
fn the_spot_adapter_tells_how_a_posting_ended() {
    let data = tempfile::tempdir().expect("a directory");
    let running = Running::start(data.path());
    deposits(&running, 2);
    let unknown = |reason| Answer::without_record(Outcome::Unknown(reason));
    let legs = [pays(1, 2, 10)];
    let reserve = posting(1, 10, 1, &legs);
    let done = running.ask(Op::Reserve, &reserve);
    succeeds(done);
    assert!(running.spot.durable() >= done.log_sequence.expect("recorded"));
    assert_eq!(running.ask(Op::Reserve, &reserve), done, "a repeat");
    let other = posting(1, 10, 1, &[pays(1, 2, 11)]);
    for op in [Op::Reserve, Op::Settle] {
        assert_eq!(running.ask(op, &other), unknown(Reason::Violation));
    }
    let query = |op, round| block_on(running.spot.query_posting(name(1), op, round));
    assert_eq!(query(Op::Reserve, 1), done);
    assert_eq!(query(Op::Reserve, 2), unknown(Reason::NotRecorded));
    let short = posting(1, 10, 2, &[legs[0], pays(1, 2, 100 * COIN)]);
    let refused = running.ask(Op::Reserve, &short);
    assert_eq!(refused.outcome, Outcome::ExplicitFail(Code::InsufficientBalance));
    let leg = |round| block_on(running.spot.failing_leg(name(1), Op::Reserve, round));
    assert_eq!([leg(1), leg(2), leg(3)], [Ok(None), Ok(Some(1)), Ok(None)]);
    let two = UserId::new(2).expect("in range");
    block_on(running.spot.set_status(two, AccountStatus::Disabled)).expect("set");
    let settled = running.ask(Op::Settle, &reserve);
    succeeds(settled);
    assert_eq!(query(Op::Settle, 8), settled);
    assert_eq!(query(Op::Release, 1), unknown(Reason::NotRecorded));
    block_on(running.spot.raise_watermark(1_000)).expect("raised");
    assert_eq!(running.ask(Op::Post, &posting(9, 10, 1, &legs)), unknown(Reason::Forgotten));
    running.stop();
}

fn deposits(running: &Running, users: u64) {
    let symbol = Text::new("USDT").expect("short");
    running.submit(command::Command::RegisterAsset { asset: USDT, precision: 8, symbol });
    for user in 1..=users {
        let (op, direction, cid) = (Op::Deposit, Direction::FundingToSpot, Text::EMPTY);
        let (req_id, asset, amount, order_number) = (user.into(), USDT, COIN, user);
        let order = Order { op, req_id, cid, user, asset, amount, direction, order_number };
        running.submit(command::Command::Order(order));
    }
}

/// MLT-004, of services. Goal: a log that is cut at every byte of a SETTLE of 16 legs has all of
/// them or none. Method: the bytes from there on are zeros, as after a power cut; the log is
/// replayed.
#[test]
fn a_cut_log_has_all_legs_of_a_transaction_or_none() {
    let data = tempfile::tempdir().expect("a directory");
    let running = Running::start(data.path());
    deposits(&running, 8);
    // Two rounds over eight users: each leg moves another amount.
    let legs: Vec<Leg> =
        (0..16).map(|index| pays(index % 8 + 1, (index + 1) % 8 + 1, 10 + index * index)).collect();
    succeeds(running.ask(Op::Reserve, &posting(1, 10, 1, &legs)));
    running.stop();
    let state = |data_dir: &Path| {
        let replayed = open(data_dir).replay(0, |_| {});
        let replayed = replayed.expect("sound");
        (replayed.ledger().balances(), replayed.ledger().hold_count())
    };
    let before = state(data.path());
    let running = Running::start(data.path());
    succeeds(running.ask(Op::Settle, &posting(1, 10, 1, &legs)));
    running.stop();
    let after = state(data.path());
    assert!(before.1 > 0 && after.1 == 0 && before.0 != after.0, "{before:?} {after:?}");

    let mut reader = Reader::<Directory>::open_path(&data.path().join("wal"), 0).expect("a log");
    let mut found = None;
    while let Some(record) = reader.next().expect("sound") {
        if let Ok(Entry::Named(named)) = Entry::decode(record.kind, record.payload)
            && named.op == Op::Settle
        {
            assert_eq!(named.legs.len(), 16);
            found = Some((record.segment, record.offset, record.bytes));
        }
    }
    let (segment, offset, length) = found.expect("the settle");
    let cut = tempfile::tempdir().expect("a directory");
    copy_files(&data.path().join("wal"), &cut.path().join("wal"));
    let path = cut.path().join("wal").join(wal::segment_name(segment));
    let bytes = fs::read(&path).expect("the segment");
    let [start, length] = [offset, length].map(|bytes| usize::try_from(bytes).expect("small"));
    for kept in 0..=length {
        let mut left = bytes.clone();
        left[start + kept..].fill(0);
        fs::write(&path, &left).expect("written");
        // The bytes that the cut takes may be zeros already: then the record is whole.
        let is_whole = left[start..start + length] == bytes[start..start + length];
        let want = if is_whole { &after } else { &before };
        assert_eq!(&state(cut.path()), want, "cut after {kept} of {length} bytes");
    }
}
