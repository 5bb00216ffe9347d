use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use domain::posting::ALL;
use stream::block::{BackReason, CloseReason, ReadHolds};
use stream::message::Message;
use ubscore::config::auth::{Auth, DEVELOPMENT_SECRET};
use ubscore::config::secret::Secret;
use ubscore::http::auth::{Role, sign};

use super::client::{BTC, Heard, USDT, Venue, open, venue_token};
use super::sessions::{BUYER, COIN, OTHER, SELLER, VENUE, furnish, site};
use crate::harness::{PATIENCE, Server, SetAtEnd, eventually, now_s, replace};

/// The smallest `engine.window`.
const WINDOW: u64 = 64;
/// Much more than one session's part of the smallest ring, and more than one read of the socket.
const CROWD: u64 = 4_000;
/// The smallest segment with venues, bytes.
#[cfg(feature = "crash")]
const SEGMENT_BYTES: u64 = 256 * 1024;
/// Longer than any connection of a test is silent.
const LONG_MS: u64 = 60_000;
/// A test waits for the end of it; a slow disk must not reach it.
const CUT_MS: u64 = 8_000;

fn back(number: u64, reason: BackReason) -> Heard {
    Heard::Back { number, reason }
}

/// A venue that reserves and releases until `ended`, at least 100 times.
fn go_on(venue: &mut Venue, ended: &AtomicBool) {
    let mut number = 0;
    while number < 100 || !ended.load(Ordering::Acquire) {
        venue.reserve(number + 1, SELLER, BTC, COIN);
        venue.release(number + 2, number + 1, ALL);
        venue.succeed([number + 1, number + 2]);
        venue.acknowledge(number + 2);
        number += 2;
    }
}

/// HLD-012, second half. Goal: at a full window one Back comes, then silence until its number comes
/// again behind an acknowledgement; a repeat is answered meanwhile, and another venue goes on.
#[test]
fn a_full_window_stops_only_its_venue() {
    let (site, socket) = patient_site();
    let site = site.with("UBSCORE__ENGINE__WINDOW", WINDOW);
    let server = site.start();
    furnish(&server);
    let (mut venue, begun) = Venue::opened(&socket, VENUE, 0);
    assert_eq!(begun.window, WINDOW);
    let numbers: Vec<u64> = (1..=WINDOW + 5).collect();
    venue.reserve_each(&numbers, BUYER, USDT, 1);
    venue.succeed(1..=WINDOW);
    assert_eq!(venue.hear(), back(WINDOW + 1, BackReason::Window));
    let (mut other, _) = Venue::opened(&socket, OTHER, 0);
    go_on(&mut other, &AtomicBool::new(true));
    venue.reserve(WINDOW + 1, BUYER, USDT, 1);
    assert_eq!(venue.hear(), back(WINDOW + 1, BackReason::Window));
    venue.acknowledge(WINDOW);
    venue.reserve_each(&[WINDOW + 1, WINDOW + 2], BUYER, USDT, 1);
    venue.succeed([WINDOW + 1, WINDOW + 2]);
    server.stop();
    site.assert_verified();
}

/// Goal: without room in the log a RESERVE is told NO_ROOM and uses no number, a RELEASE is decided
/// in its place, and the venue goes on once there is room. Method: no space for the next segment.
#[cfg(feature = "crash")]
#[test]
fn without_room_in_the_log_new_work_waits_and_ends_do_not() {
    let (site, socket) = patient_site();
    let broken = site.fresh_path("broken");
    let site = site
        .with("UBSCORE__WAL__SEGMENT_BYTES", SEGMENT_BYTES)
        .with("UBSCORE_FAULT", "fill:enospc")
        .with("UBSCORE_FAULT_WHILE", broken.display());
    let server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    fs::write(&broken, "").expect("written");
    let (mut next, batch) = (1, 500);
    let full = 'filled: loop {
        let numbers: Vec<u64> = (next..next + batch).collect();
        venue.reserve_each(&numbers, BUYER, USDT, 1);
        for number in numbers {
            match venue.hear() {
                Heard::Answer { number: answered, code: None, .. } if answered == number => {}
                heard => {
                    assert_eq!(heard, back(number, BackReason::NoRoom));
                    break 'filled number;
                }
            }
        }
        next += batch;
    };
    assert!(full > batch, "{full}");
    venue.reserve(full, BUYER, USDT, 1);
    assert_eq!(venue.hear(), back(full, BackReason::NoRoom));
    // Another command takes the number.
    venue.release(full, 1, ALL);
    venue.succeed([full]);
    fs::remove_file(&broken).expect("removed");
    eventually("room again", || {
        venue.reserve(full + 1, BUYER, USDT, 1);
        match venue.hear() {
            Heard::Answer { number, code: None, .. } if number == full + 1 => Some(()),
            heard => {
                assert_eq!(heard, back(full + 1, BackReason::NoRoom));
                thread::sleep(Duration::from_millis(20));
                None
            }
        }
    });
    server.stop();
    site.assert_verified();
}

/// Goal: a session with its whole part of the ring waits without reading, loses nothing, and stops
/// no other venue. Method: the smallest ring, and thousands of commands at once.
#[test]
fn a_full_part_of_the_ring_makes_only_its_session_wait() {
    let (site, socket) = patient_site();
    let site =
        site.with("UBSCORE__ENGINE__RING_SLOTS", 64).with("UBSCORE__ENGINE__IN_FLIGHT_MAX", 32);
    let server = site.start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    let (mut other, _) = Venue::opened(&socket, OTHER, 0);
    let answered = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| go_on(&mut other, &answered));
        let end = SetAtEnd(&answered);
        let mut writer = Venue::on(venue.stream.try_clone().expect("a descriptor"));
        let numbers: Vec<u64> = (1..=CROWD).collect();
        let write = scope.spawn(move || writer.reserve_each(&numbers, BUYER, USDT, 1));
        venue.succeed(1..=CROWD);
        write.join().expect("written");
        drop(end);
    });
    assert_eq!(venue.balance(BUYER, USDT).1, u128::from(CROWD));
    server.stop();
    site.assert_verified();
}

/// HLD-018, the greedy one. Goal: a venue that asks and reads nothing stops only itself, and is
/// cut. Method: reads of many holds until the connection ends, beside a venue that goes on.
#[test]
fn a_venue_that_asks_and_does_not_read_is_cut() {
    let (site, socket) = site();
    let site = site.with("UBSCORE__STREAM__SILENCE_MS", CUT_MS);
    let server = site.start();
    furnish(&server);
    let (mut greedy, _) = Venue::opened(&socket, VENUE, 0);
    let numbers: Vec<u64> = (1..=300).collect();
    greedy.reserve_each(&numbers, BUYER, USDT, 1);
    greedy.succeed(1..=300);
    let (mut other, _) = Venue::opened(&socket, OTHER, 0);
    let cut = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| go_on(&mut other, &cut));
        let end = SetAtEnd(&cut);
        greedy.stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        let mut asks = bytes::BytesMut::new();
        for _ in 0..1_000 {
            Message::ReadHolds(&ReadHolds { after: 0.into() }).append_to(&mut asks);
        }
        let ended = loop {
            if let Err(error) = greedy.stream.write_all(&asks) {
                break error;
            }
        };
        assert_ne!(ended.kind(), std::io::ErrorKind::WouldBlock, "it was not cut");
        drop(end);
    });
    let (_, begun) = Venue::opened(&socket, VENUE, 300);
    assert_eq!(begun.last, 300);
}

/// A token of a venue, good for `ttl`.
fn short_token(venue: u32, ttl: Duration) -> String {
    let auth = Auth { secret: Some(Secret::new(DEVELOPMENT_SECRET)), ..Auth::default() };
    sign(&auth, 9_100, Some(Role::Venue(venue)), ttl, now_s()).expect("a token")
}

/// Sends Alive until the session ends. Returns the last message.
fn last_heard(venue: &mut Venue) -> Option<Heard> {
    let mut last = None;
    loop {
        match venue.try_hear() {
            Ok(Some(Some(heard))) => last = Some(heard),
            // The connection may have ended meanwhile.
            Ok(Some(None)) => drop(venue.stream.write_all(&alive())),
            Ok(None) | Err(_) => return last,
        }
    }
}

fn alive() -> bytes::BytesMut {
    let mut bytes = bytes::BytesMut::new();
    Message::Alive.append_to(&mut bytes);
    bytes
}

fn patient_site() -> (crate::harness::Site, std::path::PathBuf) {
    let (site, socket) = site();
    (site.with("UBSCORE__STREAM__SILENCE_MS", LONG_MS), socket)
}

/// Opens a session with a token that ends soon. On a slow machine it may end too soon.
fn opened_shortly(server: &Server, socket: &std::path::Path) -> Venue {
    let mut ttl_s = 2;
    eventually("an Open in time", || {
        let mut venue = Venue::connect(socket);
        let token = short_token(VENUE, Duration::from_secs(ttl_s));
        ttl_s += 1;
        venue.send(&Message::Open(&open(VENUE, 0, 0, &token)));
        match venue.hear() {
            Heard::Opened(_) => Some(venue),
            heard => {
                assert_eq!(heard, Heard::Close(CloseReason::Unauthorized), "{}", server.said());
                None
            }
        }
    })
}

/// Goal: a session does not outlive its token, also if its venue is not silent.
#[test]
fn a_session_ends_with_its_token() {
    let (site, socket) = patient_site();
    let server = site.with("UBSCORE__AUTH__LEEWAY_S", 0).start();
    furnish(&server);
    let mut venue = opened_shortly(&server, &socket);
    assert_eq!(last_heard(&mut venue), Some(Heard::Close(CloseReason::Unauthorized)));
    let (_, begun) = Venue::opened(&socket, VENUE, 0);
    assert_eq!(begun.epoch, 2, "a new token opens again");
}

/// Goal: a session does not outlive the key of its token. Method: the secret is replaced.
#[test]
fn a_session_ends_with_the_key_of_its_token() {
    let (site, socket) = patient_site();
    let file = site.fresh_path("secret");
    fs::write(&file, "the first secret of the operators, long enough").expect("written");
    let first = Auth {
        secret: Some(Secret::new("the first secret of the operators, long enough")),
        ..Auth::default()
    };
    let hour = Duration::from_secs(3_600);
    let token = |role| sign(&first, 9_100, Some(role), hour, now_s()).expect("a token");
    let server = site
        .with("UBSCORE__AUTH__SECRET_FILE", file.display())
        .with("UBSCORE__RELOAD__EVERY_MS", 100)
        .start();
    let admin = token(Role::Admin);
    let body = serde_json::json!({"name": "book", "reason": "a test"});
    let path = format!("/admin/v1/venues/{VENUE}");
    let add = crate::harness::Request {
        body: Some(&body),
        ..crate::harness::Request::new(&admin, "PUT", &path)
    };
    assert_eq!(crate::harness::send(server.ops, &add).expect("an answer").status, 200);
    let mut venue = Venue::connect(&socket);
    venue.send(&Message::Open(&open(VENUE, 0, 0, &token(Role::Venue(VENUE)))));
    assert!(matches!(venue.hear(), Heard::Opened(_)));
    assert_eq!(venue.balance(BUYER, USDT), (0, 0));
    replace(&file, "another secret of the operators, long enough too");
    assert_eq!(last_heard(&mut venue), Some(Heard::Close(CloseReason::Unauthorized)));
    let mut stranger = Venue::connect(&socket);
    stranger.send(&Message::Open(&open(VENUE, 0, 0, &venue_token(VENUE))));
    assert_eq!(stranger.rest(), [Heard::Close(CloseReason::Unauthorized)]);
}
