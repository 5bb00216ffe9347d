//! How many instructions do the parts of UBSCore take, and the commands of a venue? Callgrind
//! counts them, so that neither the machine nor its load matters.
//!
//! Base case: a known order, which is only looked up.
//!
//! `make instructions`: needs valgrind, and gungraun's runner of the version in Cargo.lock.

#![expect(missing_docs, reason = "what gungraun's macros make has none")]

use std::hint::black_box;

use domain::posting::{ALL, Leg, Place, Posting};
use domain::transfer::{Decision, Direction, Op};
use engine::command::Command;
use engine::core::{Core, Numbered, Sent};
use engine::entry::Entry;
use engine::ledger::{Answer, FORGET_LEAVES, FORGET_LOOKS, Ledger, Step};
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::posted::Posted;
use engine::record::PAYLOAD_BYTES_MAX;
use engine::text::Text;
use engine::venue::{self, VenueHalt};
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

const VENUE: u32 = 1;
const BASE: u32 = 1;
const QUOTE: u32 = 2;
const FEES: u64 = USERS;

fn reserve(user: u64, asset: u32, amount: u64) -> venue::Command {
    venue::Command::Reserve { reference: 1, user, asset, amount, onto: 0 }
}

/// The trade of the first two holds, user 1's bid and user 2's ask.
fn six_legs() -> venue::Command {
    let leg = |from, payee, asset, amount| Leg { from, to: Place::Available(payee), asset, amount };
    let legs: Posting = [
        leg(Place::Hold(1), 2, QUOTE, 50),
        leg(Place::Hold(2), 1, BASE, 100),
        leg(Place::Available(2), FEES, QUOTE, 1),
        leg(Place::Available(1), FEES, BASE, 1),
        leg(Place::Hold(1), 1, QUOTE, ALL),
        leg(Place::Hold(2), 2, BASE, ALL),
    ]
    .into_iter()
    .collect();
    venue::Command::Settle { reference: 1, legs }
}

fn release() -> venue::Command {
    venue::Command::Release { reference: 1, hold: 1, amount: ALL }
}

/// A core with money of all users, two holds of a venue, and its next command.
fn market(command: venue::Command) -> (Core<Memory>, Box<Posted>) {
    let recovery = Recovery::open(Memory::new(), 0, 0).expect("no log");
    let options = wal::Options { segment_bytes: 4 << 20, spares_ready: 1 };
    let (log, _report) = recovery.start(Identity(1), options).expect("a segment");
    let venues = VenuePlaces { holds_max: 1_000, venues_max: 1, window: 1_000 };
    let places = Places { venues, ..Places::of_transfers(20_000, 40_000) };
    let mut core = Core::new(Ledger::new(places), log.writer);
    for asset in [BASE, QUOTE] {
        core.decide(&Command::RegisterAsset { asset, precision: 8, symbol: Text::EMPTY }, 0);
        for user in 1..=USERS {
            let number = u64::from(asset) * USERS + user;
            let Command::Order(money) = order(number, Op::Deposit) else { unreachable!() };
            core.decide(&Command::Order(Order { user, asset, ..money }), 0);
        }
    }
    let name = Text::new("book").expect("short");
    core.decide(&Command::AddVenue { id: VENUE, name, posts: false }, 0);
    core.decide(&Command::OpenVenue { id: VENUE, epoch: 1, told: 0 }, 0);
    let mut posted = Box::new(Posted::empty());
    for (number, first) in [(1, reserve(1, QUOTE, 55)), (2, reserve(2, BASE, 100))] {
        posted.fill(VENUE, number, &first);
        number_of(&mut core, &mut posted);
    }
    posted.fill(VENUE, 3, &command);
    (core, posted)
}

fn number_of(core: &mut Core<Memory>, posted: &mut Posted) -> Numbered {
    let sent = Sent { epoch: 1, acknowledged: 0, halt: VenueHalt::Off, told: 0 };
    let done = core.number(posted, sent, 7);
    let success = matches!(done, Numbered::Answer(answer) if answer.decision == Decision::Success);
    assert!(success, "{done:?}");
    done
}

// A venue's command from the session to the log: decides, encodes, stores and applies.
#[library_benchmark]
#[bench::reserve(args = (reserve(3, BASE, 100)), setup = market)]
#[bench::settle_six_legs(args = (six_legs()), setup = market)]
#[bench::release(args = (release()), setup = market)]
fn post(
    (mut core, mut posted): (Core<Memory>, Box<Posted>),
) -> (Core<Memory>, Box<Posted>, Numbered) {
    let done = number_of(&mut core, black_box(&mut posted));
    (core, posted, done)
}

library_benchmark_group!(name = core, benchmarks = [apply, encode, append, post]);

main!(library_benchmark_groups = core);
