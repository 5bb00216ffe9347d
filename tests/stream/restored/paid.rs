//! Transactions of a venue's users, under a log that is cut behind some of both.

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use super::*;
use crate::harness::{Request, send, text, token};

/// A user that no venue knows.
const PAYER: u64 = 3_004;

fn ask(server: &Server, method: &str, path: &str, body: Option<&Value>) -> Reply {
    let token = token(1, Owner::new("shop").map(Role::Service));
    let path = format!("/api/v1/transactions{path}");
    send(server.http, &Request { body, ..Request::new(&token, method, &path) }).expect("an answer")
}

fn is(server: &Server, tx_id: &str, state: &str) {
    eventually(&format!("{tx_id} to be {state}"), || {
        let row = ask(server, "GET", &format!("/{tx_id}"), None).json();
        (text(&row["state"]) == state).then_some(())
    });
}

fn prepare(server: &Server, tx_id: &str, (from, to, amount): (u64, u64, &str)) {
    let place = |user: u64| json!({"account": "SPOT", "user_id": user});
    let leg = json!({"from": place(from), "to": place(to), "asset": "USDT", "amount": amount});
    let body = json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": [leg]});
    let reply = ask(server, "POST", &format!("/{tx_id}/prepare"), Some(&body));
    assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
}

fn end(server: &Server, tx_id: &str, word: &str, state: &str) {
    let reply = ask(server, "POST", &format!("/{tx_id}/{word}"), Some(&json!({})));
    assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
    is(server, tx_id, state);
}

fn pay(server: &Server, tx_id: &str, leg: (u64, u64, &str)) {
    prepare(server, tx_id, leg);
    end(server, tx_id, "commit", "DONE");
}

/// Asserts that a repair decides exactly these postings again.
fn assert_again(done: &str, wanted: &[(&str, &str)]) {
    for (tx_id, word) in wanted {
        let line = format!("tx_id {tx_id}: have its {word} on Spot decided again");
        assert!(done.contains(&line), "{line}: {done}");
    }
    assert_eq!(done.matches("on Spot decided again").count(), wanted.len(), "{done}");
}

/// RCV-007. Goal: after a cut under a venue and transactions of its users, the money that a
/// transaction brings is there for the numbers that the venue sends again, and the money that one
/// takes is not taken before a number that had it first. All balances are those from before.
/// Method: lost are a release; an order of a user without one before, its end, and a payment by
/// that user; an order for that payment and its end, and a payment by that order's user; an order
/// of the payee, and an open round. Each repair decides only the next ones, and one without the
/// venues in between decides none.
#[test]
fn rcv_007_transactions_are_decided_again_around_the_venues() {
    let (site, socket) = site();
    let site = site.with("UBSCORE__TRANSACTIONS__TICK_MS", 50);
    let server = site.start();
    furnish(&server);
    server.deposit(PAYER, "USDT", "3000");
    moves(&server, PAYER, Way::ToSpot, "USDT", "3000", "first");
    prepare(&server, "dropped", (BUYER, SELLER, "900"));
    let (mut venue, _) = opened(&socket, VENUE, 0);
    venue.reserve(1, BUYER, USDT, 55 * COIN);
    let (code, _, kept) = venue.answer(1);
    assert_eq!(code, None);
    end(&server, "dropped", "abort", "CANCELLED");
    let sent = |venue: &mut Venue, number| match number {
        2 => venue.reserve(2, PAYER, USDT, 3_000 * COIN),
        3 => venue.release(3, 2, 3_000 * COIN),
        4 => venue.reserve(4, BUYER, USDT, 2_900 * COIN),
        5 => venue.release(5, 4, 2_900 * COIN),
        _ => venue.reserve(6, FEES, USDT, 50 * COIN),
    };
    let send = |venue: &mut Venue, numbers: std::ops::RangeInclusive<u64>| {
        for number in numbers {
            sent(venue, number);
            venue.succeed([number]);
        }
    };
    send(&mut venue, 2..=3);
    pay(&server, "paid", (PAYER, BUYER, "2000"));
    send(&mut venue, 4..=5);
    pay(&server, "spent", (BUYER, FEES, "100"));
    send(&mut venue, 6..=6);
    prepare(&server, "open", (BUYER, FEES, "10"));
    site.wait_for_rest();
    let before = balances(&server);
    server.kill();
    cut_log(&site, kept + 1);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 6);
    assert_eq!(last, 1);
    sent(&mut venue, 2);
    assert_eq!(venue.hear(), halted(2));
    assert_eq!(opened(&socket, OTHER, 0).1, 0);
    server.stop();
    assert_again(&repaired(&site, &APPLY), &[("dropped", "RELEASE")]);
    assert_again(&repaired(&site, &APPLY), &[]);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 6);
    assert_eq!(last, 1);
    send(&mut venue, 2..=3);
    sent(&mut venue, 4);
    assert_eq!(venue.hear(), halted(4), "its money comes with a payment");
    server.stop();
    assert_again(&repaired(&site, &APPLY), &[("paid", "RESERVE"), ("paid", "SETTLE")]);
    assert_again(&repaired(&site, &APPLY), &[]);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 6);
    assert_eq!(last, 3);
    send(&mut venue, 4..=5);
    sent(&mut venue, 6);
    assert_eq!(venue.hear(), halted(6), "its money comes with a payment");
    waits_for(&server, &["venue 7 has answers up to 6, and the log ends with 5"]);
    server.stop();
    let done = repaired(&site, &APPLY);
    assert_again(&done, &[("spent", "RESERVE"), ("spent", "SETTLE")]);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 6);
    assert_eq!(last, 5);
    send(&mut venue, 6..=6);
    server.stop();
    let done = repaired(&site, &APPLY);
    assert_again(&done, &[("open", "RESERVE")]);
    assert!(!done.contains("waits"), "{done}");

    let server = site.start();
    let resumed = server.resume("all are there");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    assert_eq!(balances(&server), before);
    for (tx_id, state) in [("dropped", "CANCELLED"), ("paid", "DONE"), ("spent", "DONE")] {
        is(&server, tx_id, state);
    }
    end(&server, "open", "commit", "DONE");
    adds_up(&server);
    server.stop();
    site.assert_verified();
}
