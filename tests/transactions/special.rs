//! Special accounts of Funding: booked at the confirm alone, and below zero if need be.

use std::thread;

use serde_json::{Value, json};
#[cfg(feature = "crash")]
use ubscore::crash::TRANSACTION_POINTS;

use super::desk::{Desk, leg, legs};
use super::{A, B, C, eventually};
#[cfg(feature = "crash")]
use crate::harness::signed_units;
use crate::harness::{Reply, Way, cli, said};

/// An operator makes an account special, or ends that.
pub(super) fn set_special(desk: &Desk, user: u64, special: bool) -> Reply {
    let body = json!({"user_id": user, "asset": "USDT", "special": special, "reason": "fees"});
    desk.server().admin("POST", "/admin/v1/specials", &body)
}

/// The available balance of an account on Funding as operators see it.
pub(super) fn available(desk: &Desk, user: u64) -> String {
    let shown = desk.server().admin_get(&format!("/admin/v1/accounts/{user}")).json();
    let rows = shown["balances"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["asset"] == json!("USDT")).expect("USDT");
    row["funding"]["available"].as_str().expect("a text").to_owned()
}

fn rounds(desk: &Desk, tx_id: &str, from: u64, to: u64, amount: &str) -> Reply {
    let legs = legs(&[leg("FUNDING", from, to, amount)]);
    desk.post(&format!("/{tx_id}/prepare"), &json!({"round": 1, "decide": "caller", "legs": legs}))
}

fn refused(reply: &Reply) -> String {
    reply.refusal().1
}

/// Moves an amount at once.
fn pays(desk: &Desk, tx_id: &str, from: u64, to: u64, amount: &str) {
    let body = json!({"tx_id": tx_id, "legs": legs(&[leg("FUNDING", from, to, amount)])});
    let reply = desk.post("", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    desk.ends(tx_id, "DONE");
}

/// Ends a transaction, so that no age is waited for.
fn abort(desk: &Desk, tx_id: &str) {
    assert_eq!(desk.post(&format!("/{tx_id}/abort"), &json!({})).status, 200);
    desk.ends(tx_id, "CANCELLED");
}

/// The account of A without any money, so that each unit that it pays is below zero.
fn empty(desk: &Desk) {
    pays(desk, "empty", A, B, &available(desk, A));
    assert_eq!(available(desk, A), "0");
}

/// GTX-014. Goal: a special account is not set apart, goes below zero at the confirm with an alert,
/// and 64 transactions on it at once do not wait for each other. Nothing else takes a balance below
/// zero, and it stays special while it is below zero or named. Method: as the goal says, with a
/// kill behind it, and all that counts money.
#[test]
fn gtx_014_a_special_account_goes_below_zero_and_64_transactions_share_it() {
    let mut desk = Desk::new();
    let unknown = set_special(&desk, 999_999, true);
    assert_eq!(unknown.status, 404, "{unknown:?}");
    empty(&desk);
    let short = rounds(&desk, "short", A, C, "0.01");
    assert_eq!(refused(&short), "INSUFFICIENT_BALANCE", "it is not special");
    abort(&desk, "short");
    for _ in 0..2 {
        assert_eq!(set_special(&desk, A, true).status, 200);
    }
    // 64 are tried at once: none waits for the end of another one.
    let names: Vec<String> = (0..64).map(|number| format!("fee-{number}")).collect();
    let each = |ask: &(dyn Fn(usize, &str) -> Reply + Sync)| {
        thread::scope(|scope| {
            for (number, tx_id) in names.iter().enumerate() {
                scope.spawn(move || {
                    eventually(&format!("an answer to {tx_id}"), || {
                        let reply = ask(number, tx_id);
                        (reply.status == 200).then_some(())
                    });
                });
            }
        });
    };
    each(&|number, tx_id| match number % 4 {
        0 => rounds(&desk, tx_id, B, A, "0.01"),
        _ => rounds(&desk, tx_id, A, C, "0.02"),
    });
    assert_eq!((available(&desk, A).as_str(), desk.frozen(A, "FUNDING")), ("0", 0));
    assert_eq!(desk.frozen(B, "FUNDING"), 16, "its payers are set apart");
    let named = set_special(&desk, A, false);
    assert_eq!(named.status, 409, "{named:?}");
    each(&|_, tx_id| desk.post(&format!("/{tx_id}/commit"), &json!({"rounds": 1})));
    for tx_id in &names {
        desk.ends(tx_id, "DONE");
    }
    assert_eq!(available(&desk, A), "-0.8");
    desk.server().says("alert=\"special_negative\"");
    assert_eq!(desk.total("difference"), "0");
    assert_eq!(set_special(&desk, A, false).status, 409, "it is below zero");
    let body = |idem_key: &str| json!({"user_id": A, "asset": "USDT", "amount": "0.01", "idem_key": idem_key});
    let reply = desk.server().admin("POST", "/admin/v1/withdrawals", &body("w"));
    assert_eq!(reply.json()["code"], json!("INSUFFICIENT_BALANCE"), "{reply:?}");
    let reply = desk.server().transfer_ended(A, Way::ToSpot, "0.01");
    assert_eq!(refused(&reply), "INSUFFICIENT_BALANCE", "{reply:?}");
    let reply = desk.server().admin("POST", "/admin/v1/deposits", &body("d"));
    assert_eq!(reply.json()["balance_after"], json!("-0.79"), "{reply:?}");
    assert_eq!(available(&desk, A), "-0.79");
    pays(&desk, "again", A, B, "0.01");
    desk.site().assert_verified();
    let user = A.to_string();
    let statement = desk.site().tool(["statement", "--user", &user]).output().expect("the binary");
    let (code, out, err) = said(&statement);
    assert!(code == 0 && out.contains("-0.8"), "{out}{err}");
    // It stays below zero behind a kill, and can pay further, and be aborted.
    desk.kill();
    desk.start();
    assert_eq!(available(&desk, A), "-0.8");
    assert_eq!(rounds(&desk, "more", A, B, "1").status, 200);
    abort(&desk, "more");
    assert_eq!(available(&desk, A), "-0.8");
    let listed = desk.server().admin_get("/admin/v1/specials").json();
    let want = json!([{"user_id": A, "asset": "USDT", "available": "-0.8"}]);
    assert_eq!(listed["specials"], want);
    // Money that comes in is not set apart either.
    pays(&desk, "back", B, A, "1");
    assert_eq!(available(&desk, A), "0.2");
    assert_eq!(set_special(&desk, A, false).status, 200);
    let plain = rounds(&desk, "plain", A, C, "0.21");
    assert_eq!(refused(&plain), "INSUFFICIENT_BALANCE", "it is special no longer");
    abort(&desk, "plain");
    let audited = "SELECT count(*) FROM admin_audit WHERE action = 'account special'";
    assert_eq!(desk.site().sql_value(audited), "2");
    // The money from outside leaves again.
    let out = json!({"user_id": A, "asset": "USDT", "amount": "0.01", "idem_key": "out"});
    assert_eq!(desk.server().admin("POST", "/admin/v1/withdrawals", &out).status, 200);
    desk.close();
}

/// GTX-014. Goal: a place is special, or it is not, as the first round of its transaction has it,
/// over a change by an operator and a kill; an account stays special while a transaction names it.
/// Method: one transaction from before the change, one behind it, and a second round of each.
#[test]
fn gtx_014_a_place_stays_as_its_first_round_has_it() {
    let mut desk = Desk::new();
    empty(&desk);
    let round = |desk: &Desk, tx_id: &str, round: u8, leg: Value| {
        let body = json!({"round": round, "legs": legs(&[leg])});
        desk.post(&format!("/{tx_id}/prepare"), &body)
    };
    let funding = |from: u64, to: u64, amount: &str| leg("FUNDING", from, to, amount);
    assert_eq!(round(&desk, "plain", 1, funding(B, A, "1")).status, 200);
    assert_eq!(set_special(&desk, A, true).status, 200);
    let short = round(&desk, "plain", 2, funding(A, C, "1.01"));
    assert_eq!(refused(&short), "INSUFFICIENT_BALANCE", "it was plain at the first round");
    assert_eq!(round(&desk, "plain", 3, funding(A, C, "1")).status, 200);
    assert_eq!(round(&desk, "special", 1, funding(A, C, "2")).status, 200);
    let named = set_special(&desk, A, false);
    assert!(named.status == 409 && named.body.contains("not over"), "{named:?}");
    assert_eq!(desk.post("/plain/commit", &json!({"rounds": 3})).status, 200);
    desk.ends("plain", "DONE");
    assert_eq!(available(&desk, A), "0");
    desk.kill();
    desk.start();
    assert_eq!(set_special(&desk, A, false).status, 409, "`special` is not over");
    assert_eq!(round(&desk, "special", 2, funding(A, B, "1")).status, 200);
    assert_eq!(desk.frozen(A, "FUNDING"), 0);
    abort(&desk, "special");
    assert_eq!(set_special(&desk, A, false).status, 200);
    let late = round(&desk, "late", 1, funding(A, C, "0.01"));
    assert_eq!(refused(&late), "INSUFFICIENT_BALANCE");
    abort(&desk, "late");
    desk.close();
}

/// GTX-014. Goal: a special account may have no balance yet, and is kept by the command line.
#[test]
fn gtx_014_an_operator_keeps_special_accounts_by_the_command_line() {
    const FRESH: u64 = 7_007;
    let desk = Desk::new();
    let user = FRESH.to_string();
    let run = |arguments: &[&str]| {
        let ops = format!("http://{}", desk.server().ops);
        let rest = ["--ops", &ops, "--dev", "--as", "77"];
        said(&cli(&[&["account"][..], arguments, &rest[..]].concat()))
    };
    assert_eq!(run(&["specials"]).1, "no special accounts\n");
    let special =
        |more: &[&str]| run(&[&["special", &user, "USDT", "--reason", "fees"][..], more].concat());
    let (code, _, err) = special(&[]);
    assert!(code != 0 && err.contains("has no account"), "{err}");
    // It has an account by its BTC, and no USDT.
    desk.server().deposit(FRESH, "BTC", "1");
    let (code, out, err) = special(&[]);
    assert_eq!((code, out.as_str()), (0, "USDT of 7007 on FUNDING: special\n"), "{err}");
    pays(&desk, "fee", FRESH, A, "0.25");
    let (_, out, _) = run(&["specials"]);
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words, ["USER", "ASSET", "AVAILABLE", "7007", "USDT", "-0.25"]);
    let (code, _, err) = special(&["--off"]);
    assert!(code != 0 && err.contains("below zero"), "{err}");
    pays(&desk, "back", A, FRESH, "0.25");
    assert_eq!(special(&["--off"]).0, 0);
    assert_eq!(desk.total("difference"), "0");
    desk.close();
}

/// GTX-014. Goal: a kill between the accept and the confirm, and behind it, books a special place
/// once or not at all. Method: a kill at each point of a payment from an empty account; the
/// balance below zero, and everything that counts.
#[cfg(feature = "crash")]
#[test]
fn gtx_014_a_kill_between_accept_and_confirm_books_once_or_not_at_all() {
    let mut desk = Desk::new();
    empty(&desk);
    assert_eq!(set_special(&desk, A, true).status, 200);
    let (mut owed, mut reached) = (0, Vec::new());
    let both = legs(&[leg("FUNDING", A, B, "0.03"), leg("FUNDING", C, A, "0.01")]);
    for point in TRANSACTION_POINTS {
        desk.kill();
        assert!(desk.start_armed(point), "{point}");
        desk.try_post("", &json!({"tx_id": point, "legs": both}));
        let open = format!(
            "SELECT count(*) FROM transactions_tb WHERE tx_id = '{point}' AND state IN (40, -20)"
        );
        eventually("an end, or a kill", || {
            let is_final = desk.site().sql_value(&open) == "1";
            // These come behind the commit of the end.
            let is_behind = point.ends_with("final") || point.ends_with("stores");
            (desk.has_ended() || is_final && !is_behind).then_some(())
        });
        if desk.has_ended() {
            reached.push(*point);
        }
        desk.start_again();
        let row = desk.read(point).map(|_| desk.ended(point));
        if row.is_some_and(|row| row["state"] == json!("DONE")) {
            owed += 2;
        }
        assert_eq!(signed_units(&available(&desk, A)), -owed * 1_000_000, "{point}");
        assert_eq!(desk.frozen(A, "FUNDING"), 0, "{point}");
        assert_eq!(desk.total("difference"), "0", "{point}");
        desk.site().assert_verified();
    }
    for point in ["after_accept", "after_tried", "after_committed", "after_stores", "after_final"] {
        let point = format!("transaction_{point}");
        assert!(reached.contains(&point.as_str()), "{point} is never reached: {reached:?}");
    }
    assert!(owed > 0, "one was booked");
    pays(&desk, "back", B, A, &format!("0.{owed:02}"));
    assert_eq!(set_special(&desk, A, false).status, 200);
    desk.close();
}
