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
/// takes is not taken before. All balances are those from before. Method: lost are a release, a
/// payment by a user that no venue knows, an order for both, a payment by that order's user, an
/// order of its payee, and an open round. Each repair decides only the next ones.
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
    pay(&server, "paid", (PAYER, BUYER, "2000"));
    venue.reserve(2, BUYER, USDT, 2_500 * COIN);
    venue.succeed([2]);
    pay(&server, "spent", (BUYER, FEES, "100"));
    venue.reserve(3, FEES, USDT, 50 * COIN);
    venue.succeed([3]);
    prepare(&server, "open", (BUYER, FEES, "10"));
    site.wait_for_rest();
    let before = balances(&server);
    server.kill();
    cut_log(&site, kept + 1);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 3);
    assert_eq!(last, 1);
    venue.reserve(2, BUYER, USDT, 2_500 * COIN);
    assert_eq!(venue.hear(), halted(2));
    assert_eq!(opened(&socket, OTHER, 0).1, 0);
    server.stop();
    let done = repaired(&site, &APPLY);
    assert_again(&done, &[("dropped", "RELEASE"), ("paid", "RESERVE"), ("paid", "SETTLE")]);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 3);
    assert_eq!(last, 1);
    venue.reserve(2, BUYER, USDT, 2_500 * COIN);
    venue.succeed([2]);
    venue.reserve(3, FEES, USDT, 50 * COIN);
    assert_eq!(venue.hear(), halted(3), "its money comes with a payment");
    waits_for(&server, &["venue 7 has answers up to 3, and the log ends with 2"]);
    server.stop();
    let done = repaired(&site, &APPLY);
    assert_again(&done, &[("spent", "RESERVE"), ("spent", "SETTLE")]);

    let server = site.start();
    let (mut venue, last) = opened(&socket, VENUE, 3);
    assert_eq!(last, 2);
    venue.reserve(3, FEES, USDT, 50 * COIN);
    venue.succeed([3]);
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
