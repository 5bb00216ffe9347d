//! Special accounts of Funding: booked at the confirm alone, and below zero if need be.

use std::thread;

use serde_json::{Value, json};

use super::desk::{Desk, leg, legs};
use super::{A, B, C, eventually};
use crate::harness::Reply;

/// An operator makes an account special, or ends that.
fn set_special(desk: &Desk, user: u64, special: bool) -> Reply {
    let body = json!({"user_id": user, "asset": "USDT", "special": special, "reason": "fees"});
    desk.server().admin("POST", "/admin/v1/specials", &body)
}

/// The available balance of an account on Funding as operators see it.
fn available(desk: &Desk, user: u64) -> String {
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

/// GTX-014. Goal: a special account is not set apart, goes below zero at the confirm with an alert,
/// and 64 transactions on it at once do not wait for each other. Nothing else takes a balance below
/// zero, and it stays special while it is below zero or named. Method: as the goal says, with a kill
/// behind it, and all that counts money.
#[test]
fn gtx_014_a_special_account_goes_below_zero_and_64_transactions_share_it() {
    let mut desk = Desk::new();
    let unknown = set_special(&desk, 999_999, true);
    assert_eq!(unknown.status, 404, "{unknown:?}");
    // The account of A is emptied, so that each unit below is below zero.
    let all = available(&desk, A);
    let body = json!({"tx_id": "empty", "legs": legs(&[leg("FUNDING", A, B, &all)])});
    assert_eq!(desk.post("", &body).status, 200);
    desk.ends("empty", "DONE");
    let short = rounds(&desk, "short", A, C, "0.01");
    assert_eq!(refused(&short), "INSUFFICIENT_BALANCE", "it is not special");
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
    let withdrawal = json!({"user_id": A, "asset": "USDT", "amount": "0.01", "idem_key": "w"});
    let reply = desk.server().admin("POST", "/admin/v1/withdrawals", &withdrawal);
    assert_eq!(reply.json()["code"], json!("INSUFFICIENT_BALANCE"), "{reply:?}");
    desk.site().assert_verified();
    // What is below zero is so behind a kill, and can be paid further and aborted.
    desk.kill();
    desk.start();
    assert_eq!(available(&desk, A), "-0.8");
    assert_eq!(rounds(&desk, "more", A, B, "1").status, 200);
    assert_eq!(desk.post("/more/abort", &json!({})).status, 200);
    desk.ends("more", "CANCELLED");
    assert_eq!(available(&desk, A), "-0.8");
    let listed = desk.server().admin_get("/admin/v1/specials").json();
    let want = json!([{"user_id": A, "asset": "USDT", "available": "-0.8"}]);
    assert_eq!(listed["specials"], want);
    // Money that comes in is not set apart either.
    let body: Value = json!({"tx_id": "back", "legs": legs(&[leg("FUNDING", B, A, "1")])});
    assert_eq!(desk.post("", &body).status, 200);
    desk.ends("back", "DONE");
    assert_eq!(available(&desk, A), "0.2");
    assert_eq!(set_special(&desk, A, false).status, 200);
    let plain = rounds(&desk, "plain", A, C, "0.21");
    assert_eq!(refused(&plain), "INSUFFICIENT_BALANCE", "it is special no longer");
    let audited = "SELECT count(*) FROM admin_audit WHERE action = 'account special'";
    assert_eq!(desk.site().sql_value(audited), "2");
    desk.close();
}
