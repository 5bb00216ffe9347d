use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use domain::code::Code;
use domain::posting::{ALL, Leg, Place};
use rustix::process::Signal;
use serde_json::json;
use stream::block::{BackReason, CloseReason};
use stream::message::Message;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::client::{BTC, Heard, USDT, Venue, leg, open, venue_token};
use crate::harness::{
    Certificate, PATIENCE, Server, SetAtEnd, Site, Way, eventually, said, soak_connections, token,
};

pub(super) const VENUE: u32 = 7;
pub(super) const OTHER: u32 = 8;
pub(super) const BUYER: u64 = 3_001;
pub(super) const SELLER: u64 = 3_002;
pub(super) const FEES: u64 = 3_003;
/// Commands with more answers than a socket holds.
const SLOW: u64 = 12_000;
/// One coin, smallest units.
pub(super) const COIN: u64 = 100_000_000;

/// A site with a socket for venues.
pub(super) fn site() -> (Site, PathBuf) {
    let site = Site::new();
    let socket = site.fresh_path("stream");
    (site.with("UBSCORE__STREAM__SOCKET", socket.display()), socket)
}

/// Registers the venues and gives their users Spot money: 1,000 USDT, 10 BTC.
pub(super) fn furnish(server: &Server) {
    for venue in [VENUE, OTHER] {
        let body = json!({"name": format!("book {venue}"), "reason": "a test"});
        let reply = server.admin("PUT", &format!("/admin/v1/venues/{venue}"), &body);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    for (user, asset, amount) in
        [(BUYER, "USDT", "1000"), (SELLER, "BTC", "10"), (FEES, "USDT", "1"), (FEES, "BTC", "1")]
    {
        server.deposit(user, asset, amount);
        let reply = server.post_ended(user, &Way::ToSpot.body_with_cid(asset, amount, asset));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

/// A trade of one coin at 50: both sides, both fees, and the rest of each hold.
pub(super) fn trade(bid: u64, ask: u64) -> [Leg; 6] {
    let [buyer, seller, fees] = [BUYER, SELLER, FEES].map(Place::Available);
    let btc = |from, to, amount| Leg { asset: BTC, ..leg(from, to, amount) };
    [
        leg(Place::Hold(bid), seller, 50 * COIN),
        btc(Place::Hold(ask), buyer, COIN),
        leg(seller, fees, COIN / 10),
        btc(buyer, fees, COIN / 1_000),
        leg(Place::Hold(bid), buyer, ALL),
        btc(Place::Hold(ask), seller, ALL),
    ]
}

/// MLT-005, of numbers. Goal: one trade as the schema describes it. Method: two RESERVEs and one
/// SETTLE of six legs, sent at once; then balances, holds, repeats, and the ends of a session that
/// repeats wrongly.
#[test]
fn a_trade_of_six_legs_is_booked_and_each_repeat_is_answered_alike() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let mode = fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let (mut venue, begun) = Venue::opened(&socket, VENUE, 0);
    assert_eq!((begun.epoch, begun.last, begun.acknowledged), (1, 0, 0));
    assert_eq!(venue.holds(), []);
    let send = |venue: &mut Venue| {
        venue.reserve(1, BUYER, USDT, 55 * COIN);
        venue.reserve(2, SELLER, BTC, 2 * COIN);
        venue.settle(3, &trade(1, 2));
        venue.reserve(4, BUYER, USDT, 10_000 * COIN);
        venue.reserve(5, BUYER, USDT, 7 * COIN);
    };
    send(&mut venue);
    let answers: Vec<_> = (1..=5).map(|number| venue.answer(number)).collect();
    let codes: Vec<_> = answers.iter().map(|(code, ..)| *code).collect();
    assert_eq!(codes, [None, None, None, Some(Code::InsufficientBalance), None]);
    assert!(answers.is_sorted_by_key(|(.., record)| *record), "{answers:?}");
    assert_eq!(venue.holds(), [(5, 7 * COIN)]);
    let coin = u128::from(COIN);
    assert_eq!(venue.balance(BUYER, USDT), (943 * coin, 7 * coin));
    assert_eq!(venue.balance(BUYER, BTC), (coin - coin / 1_000, 0));
    assert_eq!(venue.balance(SELLER, USDT), (50 * coin - coin / 10, 0));
    assert_eq!(venue.balance(SELLER, BTC), (9 * coin, 0));
    assert_eq!(venue.balance(FEES, USDT), (coin + coin / 10, 0));

    send(&mut venue);
    let again: Vec<_> = (1..=5).map(|number| venue.answer(number)).collect();
    assert_eq!(again, answers);
    venue.acknowledge(4);
    venue.release(6, 5, ALL);
    venue.succeed([6]);
    venue.release(6, 5, 1);
    assert_eq!(venue.rest(), [Heard::Close(CloseReason::Violation)]);
    server.says("alert=\"protocol_violation\"");

    let (mut venue, begun) = Venue::opened(&socket, VENUE, 6);
    assert_eq!((begun.epoch, begun.last, begun.acknowledged), (2, 6, 4));
    venue.reserve(4, BUYER, USDT, 10_000 * COIN);
    assert_eq!(venue.rest(), [Heard::Close(CloseReason::Forgotten)]);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 6);
    venue.acknowledge(7);
    assert_eq!(venue.rest(), [Heard::Close(CloseReason::Violation)]);
    server.stop();
}

/// HLD-011, second half. Goal: behind a gap nothing is decided until the missing number comes, and
/// there is one Back a break.
#[test]
fn a_gap_decides_nothing_and_is_told_once() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    venue.reserve(1, BUYER, USDT, COIN);
    for number in 3..50 {
        venue.reserve(number, BUYER, USDT, COIN);
    }
    venue.succeed([1]);
    assert_eq!(venue.hear(), Heard::Back { number: 2, reason: BackReason::Gap });
    venue.reserve(60, BUYER, USDT, COIN);
    for number in 2..5 {
        venue.reserve(number, BUYER, USDT, COIN);
    }
    venue.succeed(2..5);
    let all: Vec<_> = (1..5).map(|number| (number, COIN)).collect();
    assert_eq!(venue.holds(), all);
    // The silence has ended with the break.
    venue.reserve(9, BUYER, USDT, COIN);
    assert_eq!(venue.hear(), Heard::Back { number: 5, reason: BackReason::Gap });
}

/// HLD-013 at the socket. Goal: once the newer epoch is answered, the older session changes nothing
/// and is closed; an operator closes a venue for good.
#[test]
fn a_newer_epoch_and_a_closed_venue_end_a_session() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (mut old, _) = Venue::opened(&socket, VENUE, 0);
    old.reserve(1, BUYER, USDT, COIN);
    old.succeed([1]);
    let open_with = |epoch| {
        let mut session = Venue::connect(&socket);
        session.send(&Message::Open(&open(VENUE, epoch, 1, &venue_token(VENUE))));
        (session.hear(), session)
    };
    // No epoch is given, and a session is open.
    assert_eq!(open_with(0).0, Heard::Close(CloseReason::Fenced));
    assert_eq!(open_with(1).0, Heard::Close(CloseReason::Fenced));
    let (heard, mut new) = open_with(5);
    let Heard::Opened(begun) = heard else { panic!("{heard:?}") };
    assert_eq!((begun.epoch, begun.last), (5, 1));
    assert_eq!(old.rest(), [Heard::Close(CloseReason::Fenced)]);
    new.reserve(2, BUYER, USDT, COIN);
    new.succeed([2]);
    assert_eq!(open_with(5).0, Heard::Close(CloseReason::Fenced));

    let reason = json!({"reason": "a test"});
    let path = format!("/admin/v1/venues/{VENUE}");
    assert_eq!(server.admin("POST", &format!("{path}/close"), &reason).status, 200);
    assert_eq!(new.rest(), [Heard::Close(CloseReason::Fenced)]);
    assert_eq!(open_with(6).0, Heard::Close(CloseReason::Closed));
    assert_eq!(server.admin("POST", &format!("{path}/open"), &reason).status, 200);
    assert!(matches!(open_with(6).0, Heard::Opened(_)));
}

/// MLT-005. Goal: each bad frame of the table ends its session as the table says, and the commands
/// before it are answered. Method: one session a case, with a sound command before it.
#[test]
fn a_bad_frame_ends_the_session_behind_the_answers() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let frame = |template: u16, version: u16, encoding: u16, block: &[u8]| {
        let length = u32::try_from(14 + block.len()).expect("short");
        let block_length = u16::try_from(block.len()).expect("short");
        let mut bytes = Vec::from(length.to_be_bytes());
        bytes.extend(encoding.to_be_bytes());
        for number in [block_length, template, 1, version] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(block);
        bytes
    };
    let sbe = 0xEB50;
    let mut second = bytes::BytesMut::new();
    Message::Open(&open(VENUE, 9, 0, &venue_token(VENUE))).append_to(&mut second);
    let cases: [(&str, Vec<u8>); 9] = [
        ("an unknown template", frame(16, 1, sbe, &[])),
        ("ubscore's own message", frame(15, 1, sbe, &[1])),
        ("another version", frame(14, 2, sbe, &[])),
        ("another encoding", frame(14, 1, 0x50EB, &[])),
        ("a block too short", frame(7, 1, sbe, &[0; 7])),
        ("a block too long", frame(7, 1, sbe, &[0; 9])),
        ("a frame above 1,024 bytes", vec![0, 0, 4, 1]),
        ("a length below its own", vec![0, 0, 0, 3]),
        ("a second Open", second.to_vec()),
    ];
    let mut number = 0;
    for (what, bytes) in &cases {
        let (mut venue, begun) = Venue::opened(&socket, VENUE, number);
        assert_eq!(begun.last, number, "{what}");
        number += 1;
        venue.reserve(number, BUYER, USDT, COIN);
        venue.send_bytes(bytes);
        venue.succeed([number]);
        assert_eq!(venue.rest(), [Heard::Close(CloseReason::Malformed)], "{what}");
    }
    for (what, bytes) in &cases[..8] {
        let mut venue = Venue::connect(&socket);
        venue.send_bytes(bytes);
        assert_eq!(venue.rest(), [Heard::Close(CloseReason::Malformed)], "{what}, first");
    }
    let mut venue = Venue::connect(&socket);
    venue.reserve(number + 1, BUYER, USDT, COIN);
    assert_eq!(venue.rest(), [Heard::Close(CloseReason::Malformed)]);
    for bad in ["", "no token", &venue_token(OTHER), &token(BUYER, None)] {
        let mut venue = Venue::connect(&socket);
        venue.send(&Message::Open(&open(VENUE, 0, 0, bad)));
        assert_eq!(venue.rest(), [Heard::Close(CloseReason::Unauthorized)], "{bad:?}");
    }
    let mut unknown = Venue::connect(&socket);
    unknown.send(&Message::Open(&open(99, 0, 0, &venue_token(99))));
    assert_eq!(unknown.rest(), [Heard::Close(CloseReason::Unauthorized)]);
    // The token of a venue opens nothing else.
    let reply = crate::harness::send(
        server.http,
        &crate::harness::Request::new(&venue_token(VENUE), "GET", "/api/v1/balances"),
    );
    assert_eq!(reply.expect("an answer").status, 403);
}

/// MLT-005. The postings that no venue may send, each decided and recorded as refused.
#[test]
fn a_malformed_body_is_refused_under_its_number() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    venue.reserve(1, BUYER, USDT, 10 * COIN);
    let [buyer, seller, hold] = [Place::Available(BUYER), Place::Available(SELLER), Place::Hold(1)];
    let sound = leg(hold, seller, COIN);
    let cases: [&[Leg]; 7] = [
        &[],
        &[sound; 17],
        &[leg(hold, hold, COIN)],
        &[leg(hold, seller, 0)],
        &[leg(buyer, seller, ALL)],
        &[leg(hold, Place::Outside, COIN)],
        &[leg(buyer, seller, COIN)],
    ];
    for (number, legs) in (2..).zip(cases) {
        venue.settle(number, legs);
    }
    venue.succeed([1]);
    for (number, legs) in (2..).zip(cases) {
        assert_eq!(venue.answer(number).0, Some(Code::InvalidPosting), "{legs:?}");
    }
    assert_eq!(venue.holds(), [(1, 10 * COIN)]);
}

/// HLD-018. Goal: broken, half-closed, silent and slow connections neither panic nor leak, and
/// another venue is answered meanwhile. Method: 1,000 connections of six kinds beside a venue that
/// reserves and releases, in `make soak FAMILY=trades` 10,000; afterwards the process has as many
/// files open as before.
#[test]
fn a_thousand_broken_connections_stop_no_other_venue() {
    let (site, socket) = site();
    let site = site.with("UBSCORE__STREAM__CONNECTIONS_MAX", 64);
    let server = site.start();
    furnish(&server);
    let files = || fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("a process").count();
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    let before = files();
    let broken = AtomicBool::new(false);
    thread::scope(|scope| {
        let steady = scope.spawn(|| {
            let mut number = 0;
            while number < 100 || !broken.load(Ordering::Acquire) {
                venue.reserve(number + 1, BUYER, USDT, COIN);
                venue.release(number + 2, number + 1, ALL);
                venue.succeed([number + 1, number + 2]);
                venue.acknowledge(number + 2);
                number += 2;
            }
        });
        let end = SetAtEnd(&broken);
        // It sends and never reads: its answers fill the socket, and it is cut in the end.
        let (mut slow, _) = Venue::opened(&socket, OTHER, 0);
        for number in 1..=SLOW {
            slow.reserve(number, SELLER, BTC, 1);
        }
        let mut kept = Vec::new();
        for round in 0..soak_connections().unwrap_or(1_000) {
            let mut connection = Venue::connect(&socket);
            // A connection that made place for another cannot be written to.
            let sent = match round % 6 {
                0 => connection.stream.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"),
                1 => connection.stream.write_all(&[0, 0, 0, 200, 0xEB, 0x50, 1]),
                2 => connection.stream.write_all(&[0xff; 5_000]),
                3 => connection.stream.shutdown(std::net::Shutdown::Write),
                4 => Ok(()),
                _ => connection.stream.write_all(&[0, 0, 0, 4].repeat(300)),
            };
            drop(sent);
            kept.push(connection);
            if kept.len() > 200 {
                kept.drain(..150);
            }
        }
        drop(end);
        steady.join().expect("the steady venue");
        drop((slow, kept));
    });
    eventually("as many open files as before", || (files() <= before).then_some(()));
    assert!(!server.said().contains("panicked"), "{}", server.said());
    let (_, begun) = Venue::opened(&socket, OTHER, 0);
    assert_eq!(begun.last, SLOW);
}

/// HLD-011, first half. Goal: SIGKILL takes back no answer, and every repeat gets the same one.
/// Method: rounds of commands without a wait, a kill amid the answers, and a new session that sends
/// everything from the first unacknowledged number on.
#[test]
fn a_kill_takes_back_no_answer_and_repeats_are_answered_alike() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let mut server = server;
    let mut answered = BTreeMap::new();
    let (mut log, mut sent) = (None, 0);
    for round in 1..=3_usize {
        let told = answered.keys().last().copied().unwrap_or(0);
        let (mut venue, begun) = Venue::opened(&socket, VENUE, told);
        assert!(begun.last >= told, "an answer was taken back: {begun:?}, {told}");
        assert!(begun.last <= sent, "{begun:?}");
        assert_eq!(*log.get_or_insert(begun.log), begun.log);
        assert_eq!(begun.acknowledged, 0);
        sent = begun.last + 400;
        for number in 1..=sent {
            venue.reserve(number, BUYER, USDT, number);
        }
        // The kill comes behind some answers of this round, and the rest may be lost.
        let heard = begun.last + 100 * round as u64;
        for number in 1..=heard {
            let answer = venue.answer(number);
            let before = answered.insert(number, answer);
            assert_eq!(before.unwrap_or(answer), answer, "number {number}");
        }
        server.kill();
        for heard in venue.rest() {
            if let Heard::Answer { number, code, leg, record } = heard {
                answered.insert(number, (code, leg, record));
            }
        }
        server = site.start();
    }
    let told = answered.keys().last().copied().expect("some");
    let (mut venue, begun) = Venue::opened(&socket, VENUE, told);
    let wanted: Vec<_> = (1..=begun.last).map(|number| (number, number)).collect();
    assert_eq!(venue.holds(), wanted);
    let held: u64 = (1..=begun.last).sum();
    let coin = u128::from(COIN);
    let held = u128::from(held);
    assert_eq!(venue.balance(BUYER, USDT), (1_000 * coin - held, held));
}

/// HLD-016. Goal: halted, a session uses no number, and goes on after the resume without loss; it
/// can be opened, read and acknowledged meanwhile.
#[test]
fn halted_a_session_uses_no_number_and_goes_on_after_the_resume() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    venue.reserve(1, BUYER, USDT, COIN);
    venue.succeed([1]);
    let reason = json!({"reason": "a test"});
    assert_eq!(server.admin("POST", "/admin/v1/halt", &reason).status, 200);
    let halted = Heard::Back { number: 2, reason: BackReason::Halted };
    // The halt reaches the core a moment later.
    eventually("a halted venue", || {
        venue.reserve(2, BUYER, USDT, COIN);
        (venue.hear() == halted).then_some(())
    });
    venue.reserve(3, BUYER, USDT, COIN);
    assert_eq!(venue.holds(), [(1, COIN)], "no message stands between");
    // UBSCore answers a repeat that was on its way with the number of a Back.
    venue.reserve_each(&[2, 1, 3, 2], BUYER, USDT, COIN);
    assert_eq!(venue.hear(), halted);
    match venue.hear() {
        Heard::Answer { number: 1, code: None, .. } => assert_eq!(venue.hear(), halted),
        heard => assert_eq!(heard, halted, "the repeat was read behind the Back"),
    }
    drop(venue);
    let mut venue = Venue::connect(&socket);
    venue.send(&Message::Open(&open(VENUE, 9, 1, &venue_token(VENUE))));
    let Heard::Opened(begun) = venue.hear() else { panic!("not opened") };
    assert_eq!((begun.epoch, begun.last), (9, 1));
    venue.acknowledge(1);
    venue.reserve(2, BUYER, USDT, COIN);
    assert_eq!(venue.hear(), halted);
    assert_eq!(server.resume("a test").status, 200);
    eventually("a venue that goes on", || {
        venue.reserve(2, BUYER, USDT, COIN);
        match venue.hear() {
            Heard::Answer { number: 2, code: None, .. } => Some(()),
            heard => {
                assert_eq!(heard, halted);
                None
            }
        }
    });
    venue.reserve(3, BUYER, USDT, COIN);
    venue.succeed([3]);
    assert_eq!(venue.holds(), [(1, COIN), (2, COIN), (3, COIN)]);
}

/// Goal: a venue with answers that the log lacks halts the service, and learns where the log ends.
#[test]
fn a_venue_ahead_of_the_log_halts() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (mut venue, begun) = Venue::opened(&socket, VENUE, 5);
    assert_eq!(begun.last, 0);
    server.says("alert=\"venue_ahead_of_log\"");
    venue.reserve(1, BUYER, USDT, COIN);
    assert_eq!(venue.hear(), Heard::Back { number: 1, reason: BackReason::Halted });
    eventually("a halt", || (server.ready() == 503).then_some(()));
    // After the resume it sends again, also over another session.
    eventually("a resume", || (server.resume("a test").status == 200).then_some(()));
    let open_with = |epoch, told| {
        let mut session = Venue::connect(&socket);
        session.send(&Message::Open(&open(VENUE, epoch, told, &venue_token(VENUE))));
        (session.hear(), session)
    };
    let (heard, mut venue) = open_with(5, 5);
    assert!(matches!(heard, Heard::Opened(begun) if begun.last == 0), "{heard:?}");
    venue.reserve(1, BUYER, USDT, COIN);
    venue.succeed([1]);
    // More answers than were found before.
    let (heard, mut venue) = open_with(6, 6);
    assert!(matches!(heard, Heard::Opened(begun) if begun.last == 1), "{heard:?}");
    venue.reserve(2, BUYER, USDT, COIN);
    assert_eq!(venue.hear(), Heard::Back { number: 2, reason: BackReason::Halted });
    // Another venue during the halt: its operator reads both.
    Venue::opened(&socket, OTHER, 3);
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "once more"}));
    let reason = halted.json()["reason"].to_string();
    assert!(
        [VENUE, OTHER].iter().all(|id| reason.contains(&format!("venue {id} has"))),
        "{reason}"
    );
}

/// Goal: a stop answers each command that was read, says so, and takes no other session.
#[test]
fn a_stop_answers_each_command_that_was_read() {
    let (site, socket) = site();
    let mut server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    for number in 1..=500 {
        venue.reserve(number, BUYER, USDT, 1);
    }
    venue.succeed(1..=1);
    server.signal(Signal::TERM);
    let mut rest = venue.rest();
    assert_eq!(rest.pop(), Some(Heard::Close(CloseReason::Stopping)));
    let last = rest.len() as u64 + 1;
    for (number, heard) in (2..).zip(&rest) {
        assert!(matches!(heard, Heard::Answer { number: n, .. } if *n == number), "{heard:?}");
    }
    let (status, said) = server.wait();
    assert!(status.success(), "{said}");
    assert!(!socket.exists());
    let server = site.start();
    let (_, begun) = Venue::opened(&socket, VENUE, last);
    assert_eq!(begun.last, last, "each recorded command was answered");
    drop(server);
}

/// Goal: a silent venue is closed, and one that sends Alive is not; ubscore sends Alive.
#[test]
fn silence_ends_a_session_and_alive_keeps_it() {
    let (site, socket) = site();
    let site = site.with("UBSCORE__STREAM__SILENCE_MS", 2_000);
    let server = site.start();
    furnish(&server);
    let mut unopened = Venue::connect(&socket);
    let (mut silent, _) = Venue::opened(&socket, OTHER, 0);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    let mut alive = 0;
    // Each Alive is answered by one, until both others are closed.
    let others = thread::spawn(move || (unopened.rest(), silent.rest()));
    while !others.is_finished() || alive < 3 {
        match venue.try_hear().expect("the connection") {
            Some(None) => alive += 1,
            other => panic!("{other:?}"),
        }
        venue.send(&Message::Alive);
    }
    let closed = [Heard::Close(CloseReason::Silent)];
    let (unopened, silent) = others.join().expect("both ends");
    assert_eq!((&unopened[..], &silent[..]), (&closed[..], &closed[..]));
    venue.reserve(1, BUYER, USDT, COIN);
    venue.succeed([1]);
}

/// Goal: the same session over TCP with TLS.
#[test]
fn a_venue_of_another_machine_comes_over_tls() {
    let (site, socket) = site();
    let certificate = Certificate::issued(&site);
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("an address");
    drop(port);
    let site = site
        .with("UBSCORE__STREAM__LISTEN", address)
        .with("UBSCORE__STREAM__TLS_CERTIFICATE_FILE", certificate.certificate.display())
        .with("UBSCORE__STREAM__TLS_KEY_FILE", certificate.key.display());
    let server = site.start();
    furnish(&server);
    let mut roots = RootCertStore::empty();
    let issuer = CertificateDer::from_pem_file(&certificate.issuer).expect("a certificate");
    roots.add(issuer).expect("an issuer");
    let config = ClientConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    let stream = TcpStream::connect(address).expect("the address");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut venue = Venue::on(StreamOwned::new(tls, stream));
    venue.send(&Message::Open(&open(VENUE, 0, 0, &venue_token(VENUE))));
    assert!(matches!(venue.hear(), Heard::Opened(_)));
    for number in 1..=200 {
        venue.reserve(number, BUYER, USDT, 1);
    }
    venue.succeed(1..=200);
    assert_eq!(venue.holds().len(), 200);
    venue.send_bytes(&[0, 0, 0, 3]);
    assert_eq!(venue.rest(), [Heard::Close(CloseReason::Malformed)]);
    // The same venue on this machine.
    let (_, begun) = Venue::opened(&socket, VENUE, 200);
    assert_eq!(begun.last, 200);
}

/// The example makes its trade, and a second one behind it.
#[test]
fn the_example_makes_a_trade() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    for (round, last) in [(1, 0), (2, 3)] {
        let mut python = Command::new("python3");
        python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/stream.py"));
        python.env("UBSCORE_TOKEN", venue_token(VENUE)).arg("--socket").arg(&socket);
        python.args(["--venue", "7", "--buyer", "3001", "--seller", "3002", "--fees", "3003"]);
        let (code, out, err) = said(&python.output().expect("python3"));
        assert_eq!(code, 0, "{out}{err}");
        assert!(out.contains(&format!("opened: epoch {round}, last {last}, ")), "{out}");
        assert!(out.contains(&format!("answer {}: SUCCESS, record ", last + 3)), "{out}");
    }
    drop(server);
}
