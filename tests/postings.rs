//! Postings of venues after their decision: in dumps, statements, snapshots, audits, and in a log
//! that is cut. The venue runs in this process, on the data of a stopped server.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use domain::posting::{ALL, Leg, Place, Posting};
use domain::transfer::{Direction, Op};
use engine::entry::Entry;
use engine::fact::{FACT_BYTES_MAX, Fact, HoldFact};
use engine::order::Order;
use engine::places::{Places, VenuePlaces};
use engine::snapshot::Snapshot;
use engine::text::Text;
use engine::venue::{Command as Numbered, Reply};
use engine::{Closed, command};
use serde_json::Value;
use wal::{Directory, Reader, Recovery};

use crate::harness::{
    Server, Site, USERS, Way, block_on, copy_files, endow, eventually, force, said, segments,
    small_engine, snapshots, text, units,
};

pub(crate) const USDT: u32 = 3;
pub(crate) const COIN: u64 = 100_000_000;
pub(crate) const TAKER: u64 = USERS[0];
pub(crate) const MAKER: u64 = USERS[1];
pub(crate) const FEES: u64 = USERS[2];
/// The venue of all tests.
const VENUE: u32 = 1;

pub(crate) fn leg(from: Place, to: Place, amount: u64) -> Leg {
    Leg { from, to, asset: USDT, amount }
}

fn reserve(user: u64, amount: u64) -> Numbered {
    Numbered::Reserve { reference: 70, user, asset: USDT, amount, onto: 0 }
}

fn settle(legs: &[Leg]) -> Numbered {
    Numbered::Settle { reference: 71, legs: legs.iter().copied().collect::<Posting>() }
}

fn post(legs: &[Leg]) -> Numbered {
    Numbered::Post { reference: 0, legs: legs.iter().copied().collect::<Posting>() }
}

fn release(hold: u64) -> Numbered {
    Numbered::Release { reference: 0, hold, amount: ALL }
}

pub(crate) fn options(data_dir: &Path) -> engine::Options {
    let venues = VenuePlaces { holds_max: 64, venues_max: 8, window: 64 };
    let places = Places { venues, ..Places::of_transfers(64, 1_024) };
    engine::Options { places, ..small_engine(data_dir) }
}

/// Locks a log. A child process that another test starts may hold a copy of the lock for a moment.
pub(crate) fn open(data_dir: &Path) -> Closed {
    eventually("the lock of the log", || match Closed::open(options(data_dir)) {
        Err(engine::Error::Log { source: wal::Error::Locked { .. }, .. }) => None,
        opened => Some(opened.expect("a log")),
    })
}

/// Runs a session of the venue on a log that no server uses: the commands go on from the last
/// number. Returns the number of those that succeeded.
fn venue(data_dir: &Path, commands: &[Numbered]) -> usize {
    let closed = open(data_dir);
    let identity = closed.identity().unwrap_or(wal::Identity(7));
    let replayed = closed.replay(0, |_| {}).expect("sound");
    let engine = replayed.start(identity, |sync| sync()).expect("started");
    let handle = engine.handle();
    handle.add_venue(VENUE, "book", true).expect("added");
    let mut session = handle.open_venue(VENUE, 0, 0).expect("opened");
    let last = session.opened().last;
    for (number, command) in (last + 1..).zip(commands) {
        session.push(number, command).expect("few");
    }
    let (mut done, mut answered) = (0, 0);
    while answered < commands.len() {
        match session.decided() {
            Some(Reply::Answer { code, .. }) => {
                answered += 1;
                done += usize::from(code.is_none());
            }
            Some(other) => panic!("{other:?}"),
            None => thread::yield_now(),
        }
    }
    while session.durable() < last + commands.len() as u64 {
        thread::yield_now();
    }
    // Its header states that all records before it are durable: a reader counts no others.
    let digest = engine.handle().submit(command::Command::Digest, 1).expect("room");
    block_on(digest).expect("it runs");
    drop(session);
    engine.stop();
    done
}

/// A site with the money of [`endow`], half of the taker's and the maker's on Spot, and no server.
pub(crate) fn stopped(site: Site) -> Site {
    let server = site.start();
    endow(&site, &server);
    for user in [TAKER, MAKER, FEES] {
        assert_eq!(server.transfer(user, Way::ToSpot, "3").status, 200);
    }
    site.wait_for_rest();
    server.stop();
    site
}

/// Two orders, a trade with a fee, an end of an order, a refusal, and an open order of the taker.
fn trade(data_dir: &Path) {
    let [taker, maker, fees] = [TAKER, MAKER, FEES].map(Place::Available);
    let commands = [
        reserve(TAKER, 2 * COIN),
        reserve(MAKER, COIN),
        settle(&[
            leg(Place::Hold(1), maker, COIN),
            leg(Place::Hold(2), taker, COIN / 2),
            leg(maker, fees, COIN / 100),
            leg(Place::Hold(1), taker, ALL),
        ]),
        release(2),
        settle(&[leg(Place::Hold(1), maker, COIN)]),
        reserve(TAKER, COIN / 4),
        post(&[leg(fees, maker, COIN / 1_000)]),
    ];
    assert_eq!(venue(data_dir, &commands), commands.len() - 1);
}

pub(crate) fn verify(site: &Site) -> (i32, String, String) {
    said(&site.tool(["verify"]).output().expect("the binary"))
}

/// Every change of a user's Spot balance by a posting, by user and in order: units.
///
/// It adds up the legs of a dump as a reader of its JSON would.
fn changes(dumps: &[&Path]) -> BTreeMap<u64, Vec<i128>> {
    let mut owners = BTreeMap::<u64, u64>::new();
    let mut changes = BTreeMap::<u64, Vec<i128>>::new();
    let mut next = 0;
    for path in dumps {
        let mut dump = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        dump.args(["wal", "dump", "--format", "json"]).arg(path);
        let (code, out, why) = said(&dump.output().expect("the binary"));
        assert_eq!(code, 0, "{why}");
        for line in out.lines() {
            let record: Value = serde_json::from_str(line).expect("JSON");
            let sequence = record["sequence"].as_u64().expect("small");
            if sequence < next || record["kind"] != "POSTING" || record["outcome"] != "SUCCESS" {
                continue;
            }
            next = sequence + 1;
            for leg in record["legs"].as_array().expect("legs") {
                let [from, to] = [&leg["from"], &leg["to"]];
                if let (Some(user), Some(hold)) = (from["user"].as_u64(), to["hold"].as_u64()) {
                    owners.insert(hold, user);
                }
                let owner = |place: &Value| {
                    place["user"].as_u64().unwrap_or_else(|| {
                        owners[&place["hold"].as_u64().expect("a user or a hold")]
                    })
                };
                let (payer, payee) = (owner(from), owner(to));
                let moved = i128::from(leg["amount_units"].as_u64().expect("small"));
                if payer != payee {
                    changes.entry(payer).or_default().push(-moved);
                    changes.entry(payee).or_default().push(moved);
                }
            }
        }
    }
    changes
}

/// The movements of a user's statement, and its closing Spot balance.
pub(crate) fn statement(site: &Site, user: u64, words: &[&str]) -> (Vec<Value>, u128) {
    let user = user.to_string();
    let words = [&["statement", "--format", "json", "--user", &user], words].concat();
    let (code, out, why) = said(&site.tool(&words).output().expect("the binary"));
    assert_eq!(code, 0, "{out}{why}");
    let objects = out.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let (movements, rest): (Vec<_>, Vec<_>) =
        objects.partition(|object| object["kind"] == "movement");
    let usdt = rest.iter().find(|object| object["asset"] == "USDT").expect("USDT");
    (movements, units(text(&usdt["closing"]["spot"])))
}

pub(crate) fn signed(text: &str) -> i128 {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    sign * i128::try_from(units(digits)).expect("few")
}

/// Asserts that each balance follows from the one before.
pub(crate) fn assert_chained(movements: &[Value]) {
    let mut balances = BTreeMap::<(&str, &str), i128>::new();
    for movement in movements {
        let account = (text(&movement["account"]), text(&movement["asset"]));
        let balance = balances.entry(account).or_default();
        *balance += signed(text(&movement["amount"]));
        assert_eq!(signed(text(&movement["balance"])), *balance, "{movement}");
    }
}

fn is_posting(movement: &Value) -> bool {
    ["SETTLE", "POST", "RESERVE", "RELEASE"].contains(&text(&movement["op"]))
}

/// All Spot balances of the log, with what is held.
pub(crate) fn balances(data_dir: &Path) -> BTreeMap<u64, u128> {
    let replayed = open(data_dir).replay(0, |_| {});
    let balances = replayed.expect("sound").ledger().balances();
    balances.into_iter().filter(|row| row.1 == USDT).map(|row| (row.0, row.2)).collect()
}

/// Restarts and snapshots until the log has lost its first segments.
fn lose_the_first_part(site: &Site, first: u64) -> Server {
    let mut server = site.start();
    loop {
        assert_eq!(server.transfer(FEES, Way::ToSpot, "0.01").status, 200);
        site.wait_for_rest();
        force(site, &server);
        if segments(site)[0].0 > first {
            return server;
        }
        // Every start begins a segment, which lies behind the snapshots before it.
        server.kill();
        server = site.start();
        force(site, &server);
        eventually("the audit to have read the log", || {
            let read: u64 =
                site.sql_value("SELECT log_sequence FROM audit_state").parse().expect("a number");
            (read + 1 >= snapshots(site)[0].0).then_some(())
        });
    }
}

/// Goal: statement, dump and balances tell the same legs, over an archived and removed segment.
/// Method: a trade; statements and the legs of a dump, before and after the segment with the trade
/// is archived and removed; without the archive, the closing balances stay.
#[test]
fn mlt_008_statement_dump_and_balances_tell_the_same_legs() {
    let site = Site::new()
        .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
        .with("UBSCORE__SNAPSHOT__KEEP", 1)
        .with("UBSCORE__CONSERVATION__EVERY_MS", 100);
    let archive = site.fresh_path("archive");
    fs::create_dir(&archive).expect("made");
    let command = format!("cp %p {}/%f", archive.display());
    let site = stopped(site.with("UBSCORE__SNAPSHOT__ARCHIVE_COMMAND", command));
    trade(&site.data_dir);
    let users = [TAKER, MAKER, FEES];
    let whole = users.map(|user| statement(&site, user, &["--holds"]));
    let owned = balances(&site.data_dir);
    let legs = changes(&[&site.data_dir]);
    for (user, (movements, closing)) in users.into_iter().zip(&whole) {
        assert_chained(movements);
        assert_eq!(*closing, owned[&user], "{movements:?}");
        let told = movements.iter().filter(|one| is_posting(one));
        let told = told.map(|one| signed(text(&one["amount"]))).filter(|units| *units != 0);
        assert_eq!(told.collect::<Vec<_>>(), legs[&user], "user {user}");
        let held: i128 = movements.iter().map(|one| signed(text(&one["held"]))).sum();
        assert_eq!(held, if user == TAKER { i128::from(COIN / 4) } else { 0 });
    }
    let (without, _) = statement(&site, TAKER, &[]);
    assert!(without.iter().all(|one| one["op"] != "RESERVE" && one["op"] != "RELEASE"));
    assert_eq!(without.len() + 3, whole[0].0.len(), "two RESERVEs, and the rest of an order");

    let posted = Reader::<Directory>::open_path(&site.log_dir(), 0).expect("a log");
    let newest = posted.headers().last().map(|head| head.segment).expect("segments");
    let server = lose_the_first_part(&site, newest);
    assert_eq!(site.sql_value("SELECT posted FROM engine_state"), "t");
    let archived = archive.to_str().expect("text");
    for (user, (before, closing)) in users.into_iter().zip(&whole) {
        let (after, closing_after) = statement(&site, user, &["--holds", "--archive", archived]);
        let postings = |movements: &[Value]| -> Vec<Value> {
            movements.iter().filter(|one| is_posting(one)).cloned().collect()
        };
        assert_chained(&after);
        assert_eq!(postings(&after), postings(before));
        let (short, closing_short) = statement(&site, user, &[]);
        assert_chained(&short);
        let earlier: Vec<_> = short.iter().filter(|one| one["op"] == "EARLIER").collect();
        assert_eq!(earlier.len(), 1, "{short:?}");
        assert_eq!(signed(text(&earlier[0]["amount"])), legs[&user].iter().sum::<i128>());
        assert_eq!(closing_short, closing_after);
        if user != FEES {
            assert_eq!(closing_after, *closing);
        }
    }
    assert_eq!(changes(&[&archive, &site.data_dir]), legs);
    assert_eq!(verify(&site).0, 0);
    server.stop();
}

/// Changes the amount of a snapshot's hold, with a right checksum. Returns the hold.
pub(crate) fn change_a_hold(path: &Path) -> HoldFact {
    let snapshot = Snapshot::open(path).expect("sound");
    let mut bytes = fs::read(path).expect("there")[..64].to_vec();
    let (mut digest, mut changed) = (0_u128, None);
    for fact in snapshot.facts().expect("readable") {
        let mut fact = fact.expect("readable");
        if let (Fact::Hold(hold), None) = (&mut fact, &changed) {
            hold.amount += 1;
            changed = Some(*hold);
        }
        digest = digest.wrapping_add(fact.digest());
        let mut buffer = [0; FACT_BYTES_MAX];
        let (tag, length) = fact.encode(&mut buffer);
        bytes.push(tag);
        bytes.extend_from_slice(&buffer[..length]);
    }
    bytes[48..64].copy_from_slice(&digest.to_le_bytes());
    let crc = crc32fast::hash(&bytes);
    bytes.extend(crc.to_le_bytes());
    fs::write(path, bytes).expect("written");
    changed.expect("a hold")
}

/// Goal: a hold that was changed in a snapshot is found and named: by `verify`, by a running
/// service, which halts, and by a start, which refuses. Method: the newest snapshot of a log with
/// an open hold is changed by one unit, with its digest and its checksum.
#[test]
fn hld_015_a_hold_edited_in_a_snapshot_is_found_and_named() {
    let site = stopped(Site::new());
    trade(&site.data_dir);
    let server = site.start();
    assert_eq!(verify(&site).0, 0);
    force(&site, &server);
    let hold = change_a_hold(&snapshots(&site)[0].1);
    let name = format!("hold {VENUE}:{}", hold.number);
    let (code, out, why) = verify(&site);
    assert_eq!(code, 1, "{out}{why}");
    for want in [&*name, &format!("user {TAKER}"), "USDT", "0.25000001", "difference 0.00000001"] {
        assert!(out.contains(want), "{want} is not in {out}{why}");
    }
    // A new snapshot would be folded from this one.
    let reply =
        server.admin("POST", "/admin/v1/snapshot", &serde_json::json!({"reason": "a test"}));
    assert_eq!(reply.status, 202, "{reply:?}");
    let halted = || server.said().lines().find(|line| line.contains(&name)).map(str::to_owned);
    let alert = eventually("the alert to name the hold", halted);
    assert!(alert.contains(&format!("user {TAKER}")), "{alert}");
    eventually("the halt", || {
        (site.sql_value("SELECT halted FROM engine_state") == "t").then_some(())
    });
    server.kill();
    let (code, why) = site.start_refused();
    assert_ne!(code, 0);
    assert!(why.contains(&format!("user {TAKER}")) && why.contains("held"), "{why}");
}

/// Goal: postings of the only copy are not removed, unless an operator says so. Method: without an
/// archive command the segment with the trade stays, `serve` and `doctor` warn; with `discard` it
/// goes.
#[test]
fn segments_with_postings_stay_without_an_archive() {
    let site = stopped(
        Site::new().with("UBSCORE__SNAPSHOT__KEEP", 1).with("UBSCORE__CONSERVATION__EVERY_MS", 100),
    );
    trade(&site.data_dir);
    let mut reader = Reader::<Directory>::open_path(&site.log_dir(), 0).expect("a log");
    let mut first = None;
    while let Some(record) = reader.next().expect("sound") {
        if record.kind == 12 {
            first.get_or_insert(record.segment);
        }
    }
    let first = first.expect("a posting");
    let server = lose_the_first_part(&site, segments(&site)[0].0);
    assert!(server.said().contains("no archive command"), "{}", server.said());
    let doctor = |site: &Site| said(&site.tool(["doctor"]).output().expect("the binary")).1;
    assert!(doctor(&site).contains("warn  trades"), "{}", doctor(&site));
    server.kill();
    for _ in 0..2 {
        let server = site.start();
        assert_eq!(server.transfer(FEES, Way::ToSpot, "0.01").status, 200);
        site.wait_for_rest();
        force(&site, &server);
        server.kill();
    }
    assert_eq!(segments(&site)[0].0, first, "the first segment with a posting stays");
    let site = site.with("UBSCORE__SNAPSHOT__TRADES", "discard");
    let server = lose_the_first_part(&site, first);
    assert!(!server.said().contains("no archive command"), "{}", server.said());
    assert!(doctor(&site).contains("ok    trades"), "{}", doctor(&site));
    assert_eq!(verify(&site).0, 0);
}

/// A rebuild from PostgreSQL alone would lose the trades.
#[test]
fn a_log_with_venues_is_not_rebuilt_from_postgresql() {
    let site = stopped(Site::new());
    trade(&site.data_dir);
    site.start().stop();
    fs::rename(site.log_dir(), site.fresh_path("lost")).expect("moved");
    let words = ["engine", "adopt", "--apply", "--reason", "the disk is gone"];
    let (code, out, why) = said(&site.tool(words).output().expect("the binary"));
    assert_eq!(code, 2, "{out}{why}");
    assert!(why.contains("venues have moved Spot") && why.contains("archive"), "{why}");
    assert_eq!(segments(&site), [], "nothing was made");
}

/// Goal: a log that is cut at every byte of a record of 16 legs has all of them or none. Method:
/// the bytes from there on are zeros, as after a power cut; the log is replayed.
#[test]
fn mlt_004_a_cut_log_has_all_legs_or_none() {
    let data = tempfile::tempdir().expect("a directory");
    let place = Place::Available;
    let engine =
        open(data.path()).replay(0, |_| {}).expect("empty").start(wal::Identity(7), |sync| sync());
    let engine = engine.expect("started");
    let symbol = Text::new("USDT").expect("short");
    let mut commands = vec![command::Command::RegisterAsset { asset: USDT, precision: 8, symbol }];
    commands.extend((1..=8).map(|user| {
        let (op, direction, cid) = (Op::Deposit, Direction::FundingToSpot, Text::EMPTY);
        let (req_id, asset, amount, order_number) = (user.into(), USDT, COIN, user);
        let order = Order { op, req_id, cid, user, asset, amount, direction, order_number };
        command::Command::Order(order)
    }));
    for command in commands {
        let answer = engine.handle().submit(command, 1).expect("room");
        block_on(answer).expect("it runs");
    }
    engine.stop();
    let before = balances(data.path());
    // Two rounds over eight users: each leg moves another amount.
    let legs: Vec<Leg> = (0..16)
        .map(|index| leg(place(index % 8 + 1), place((index + 1) % 8 + 1), 10 + index * index))
        .collect();
    assert_eq!(venue(data.path(), &[post(&legs)]), 1);
    let after = balances(data.path());
    assert_ne!(before, after);

    let mut reader = Reader::<Directory>::open_path(&data.path().join("wal"), 0).expect("a log");
    let mut found = None;
    while let Some(record) = reader.next().expect("sound") {
        if let Ok(Entry::Posting(posted)) = Entry::decode(record.kind, record.payload) {
            assert_eq!((posted.op, posted.legs.len()), (Op::Post, 16));
            found = Some((record.segment, record.offset, record.bytes));
        }
    }
    let (segment, offset, length) = found.expect("the posting");
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
        assert_eq!(&balances(cut.path()), want, "cut after {kept} of {length} bytes");
    }
}

/// RCV-010. Goal: a record of a later kind and a fact of a later tag are refused by name, and
/// nothing is changed. Method: one more record of the next free kind; a snapshot with the next free
/// tag and a right checksum.
#[test]
fn rcv_010_later_records_and_facts_are_refused_by_name() {
    let site = stopped(Site::new());
    let server = site.start();
    force(&site, &server);
    server.stop();
    let (_, path) = snapshots(&site).remove(0);
    let before = fs::read(&path).expect("there");
    let mut later = before.clone();
    later[64] = 15;
    let end = later.len() - 4;
    let crc = crc32fast::hash(&later[..end]);
    later[end..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &later).expect("written");
    let (code, why) = site.start_refused();
    assert_eq!(code, 70, "{why}");
    assert!(why.contains("fact tag holds 15"), "{why}");
    fs::write(&path, before).expect("written");

    let directory = Directory::create(site.log_dir()).expect("there");
    let recovery = Recovery::open(directory, 0, 0).expect("a log");
    let identity = recovery.identity().expect("it has segments");
    let options = wal::Options { segment_bytes: 1 << 20, spares_ready: 1 };
    let (mut log, _) = recovery.start(identity, options).expect("started");
    log.writer.append(14, 1, &[7; 16]).expect("room");
    log.syncer.sync().expect("synced");
    drop(log);
    let (code, why) = site.start_refused();
    assert_eq!(code, 70, "{why}");
    assert!(why.contains("unknown record kind 14"), "{why}");
    let mut dump = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    dump.args(["wal", "dump", "--limit", "1000"]).arg(&site.data_dir);
    let (_, out, _) = said(&dump.output().expect("the binary"));
    assert!(out.contains("RAW    kind=14"), "{out}");
}
