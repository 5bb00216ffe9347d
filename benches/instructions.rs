//! How many instructions do the parts of UBSCore take? Callgrind counts them, so that neither the
//! machine nor its load matters.
//!
//! Base case: a known order, which is only looked up.
//!
//! `make instructions`: needs valgrind, and gungraun's runner of the version in Cargo.lock.

#![expect(missing_docs, reason = "what gungraun's macros make has none")]

use std::hint::black_box;

use domain::transfer::{Direction, Op};
use engine::command::Command;
use engine::entry::Entry;
use engine::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, Ledger, Step};
use engine::order::Order;
use engine::places::Places;
use engine::record::PAYLOAD_BYTES_MAX;
use engine::text::Text;
use gungraun::{library_benchmark, library_benchmark_group, main};
use wal::memory::Memory;
use wal::{Identity, Log, Recovery, Writer};

/// Users, each with one deposit.
const USERS: u64 = 10_000;

fn order(number: u64, op: Op) -> Command {
    let (asset, amount, direction) = (1, 1_000, Direction::FundingToSpot);
    let (req_id, user) = (u128::from(number), number % USERS + 1);
    let cid = Text::new("0123456789abcdef").expect("short");
    Command::Order(Order { op, req_id, cid, user, asset, amount, direction, order_number: number })
}

fn decide(ledger: &mut Ledger, command: &Command) -> Answer {
    ledger.expect(command.order().into_iter());
    match ledger.step(command) {
        Step::Append(entry) => ledger.apply(&entry, ledger.sequence() + 1, 0),
        Step::Known(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn filled(command: Command) -> (Ledger, Command) {
    let mut ledger = Ledger::new(Places::of_transfers(20_000, 40_000));
    decide(&mut ledger, &Command::RegisterAsset { asset: 1, precision: 8, symbol: Text::EMPTY });
    for number in 0..USERS {
        decide(&mut ledger, &order(number, Op::Deposit));
        ledger.forget(FORGET_LOOKS, FORGET_LEAVES);
    }
    (ledger, command)
}

// Decides and applies.
#[library_benchmark]
#[bench::known(args = (order(7, Op::Deposit)), setup = filled)]
#[bench::deposit(args = (order(USERS, Op::Deposit)), setup = filled)]
#[bench::withdraw(args = (order(USERS, Op::Withdraw)), setup = filled)]
#[bench::query(args = (Command::Query { req_id: 7, op: Op::Deposit }), setup = filled)]
fn apply((mut ledger, command): (Ledger, Command)) -> (Ledger, Answer) {
    let answer = decide(&mut ledger, black_box(&command));
    // Returned, so that the freeing of its memory is not counted.
    (ledger, answer)
}

fn decided() -> Entry {
    let (ledger, command) = filled(order(USERS, Op::Deposit));
    match ledger.step(&command) {
        Step::Append(entry) => entry,
        other => panic!("{other:?}"),
    }
}

#[library_benchmark]
#[bench::order(decided())]
fn encode(entry: Entry) -> (usize, [u8; PAYLOAD_BYTES_MAX]) {
    let mut payload = [0; PAYLOAD_BYTES_MAX];
    (black_box(&entry).encode(&mut payload), payload)
}

fn written(bytes: usize) -> (Writer<Memory>, Vec<u8>) {
    let recovery = Recovery::open(Memory::new(), 0, 0).expect("no log");
    let options = wal::Options { segment_bytes: 1 << 20, spares_ready: 1 };
    let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
    let Log { mut writer, .. } = log;
    writer.append(1, 0, b"first").expect("room");
    (writer, vec![7; bytes])
}

// Encodes, checks and stores one record, in memory instead of on a disk.
#[library_benchmark]
#[bench::of_120_bytes(written(120))]
fn append((mut writer, payload): (Writer<Memory>, Vec<u8>)) -> (Writer<Memory>, Vec<u8>) {
    writer.append(1, 7, black_box(&payload)).expect("room");
    (writer, payload)
}

library_benchmark_group!(name = core, benchmarks = [apply, encode, append]);

main!(library_benchmark_groups = core);
