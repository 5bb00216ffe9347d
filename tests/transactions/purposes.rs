//! Freezes of purposes, by operators and in transactions, on both accounts.

use serde_json::{Value, json};
#[cfg(feature = "crash")]
use ubscore::crash::TRANSACTION_POINTS;

use super::desk::{Desk, legs};
use super::{A, B, C};
use crate::harness::{Reply, Site, cli, said};

/// A desk with two purposes: operators unfreeze one, the service `shop` the other.
fn desk() -> Desk {
    Desk::on(Site::new().with("UBSCORE__HOLDS__PURPOSES", "DISPUTE=1,ESCROW=2:shop"), &[])
}

/// The place of a user that is available, or frozen for a purpose.
fn place(store: &str, user: u64, purpose: Option<&str>) -> Value {
    let mut place = json!({"account": store, "user_id": user});
    if let Some(purpose) = purpose {
        place["purpose"] = json!(purpose);
    }
    place
}

fn moves(from: Value, to: Value, amount: &str) -> Value {
    json!({"from": from, "to": to, "asset": "USDT", "amount": amount})
}

fn freezes(store: &str, user: u64, purpose: &str, amount: &str) -> Value {
    moves(place(store, user, None), place(store, user, Some(purpose)), amount)
}

fn unfreezes(store: &str, user: u64, purpose: &str, amount: &str) -> Value {
    moves(place(store, user, Some(purpose)), place(store, user, None), amount)
}

/// The body of an operator's freeze or unfreeze.
fn body(store: &str, user: u64, amount: &str, purpose: &str, idem_key: &str) -> Value {
    json!({"account": store, "user_id": user, "asset": "USDT", "amount": amount,
           "purpose": purpose, "idem_key": idem_key, "reason": "case 17"})
}

/// An operator's freeze or unfreeze.
fn ask(desk: &Desk, word: &str, body: &Value) -> Reply {
    desk.server().admin("POST", &format!("/admin/v1/{word}s"), body)
}

fn done(desk: &Desk, word: &str, body: &Value) {
    let reply = ask(desk, word, body);
    // Both stores have booked; the row may say so a moment later.
    assert_eq!(reply.status, 200, "{word} {body}: {reply:?}");
}

fn code(reply: &Reply) -> String {
    reply.refusal().1
}

/// HLD-009. Goal: freezes of one purpose are one amount on either account, unfrozen no further than
/// it, with any other purpose beside it; a status does not count where money is unfrozen. Each is
/// done once. Method: an operator's commands, repeats and wrong ones; then everything that counts.
#[test]
fn hld_009_freezes_of_a_purpose_are_one_amount_on_either_account() {
    let desk = desk();
    for store in ["FUNDING", "SPOT"] {
        let before = desk.balances();
        let key = |name: &str| format!("{store}-{name}");
        let one = body(store, A, "0.30", "DISPUTE", &key("1"));
        done(&desk, "freeze", &one);
        done(&desk, "freeze", &body(store, A, "0.15", "DISPUTE", &key("2")));
        let again = ask(&desk, "freeze", &one);
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{again:?}");
        assert_eq!(desk.frozen(A, store), 45);
        let other = body(store, A, "0.31", "DISPUTE", &key("1"));
        assert_eq!(ask(&desk, "freeze", &other).refusal(), (409, "IDEM_KEY_CONFLICT".to_owned()));
        // Of another purpose, by a transaction of the service.
        let escrow = json!({"tx_id": key("escrow"), "legs": [freezes(store, A, "ESCROW", "0.50")]});
        assert_eq!(desk.post("", &escrow).status, 200);
        assert_eq!(desk.frozen(A, store), 95);
        for (word, amount, purpose, want) in [
            ("unfreeze", "0.46", "DISPUTE", "INSUFFICIENT_FROZEN"),
            ("unfreeze", "0.01", "LOAN", "INVALID_POSTING"),
            ("unfreeze", "0.01", "ESCROW", "FORBIDDEN"),
            ("freeze", "1000000", "DISPUTE", "INSUFFICIENT_BALANCE"),
            ("freeze", "0", "DISPUTE", "INVALID_POSTING"),
        ] {
            let body = body(store, A, amount, purpose, &key(&format!("{word}{amount}{purpose}")));
            assert_eq!(code(&ask(&desk, word, &body)), want, "{body}");
        }
        let theirs =
            json!({"tx_id": key("theirs"), "legs": [unfreezes(store, A, "DISPUTE", "0.01")]});
        assert_eq!(desk.post("", &theirs).refusal(), (403, "FORBIDDEN".to_owned()));
        assert_eq!(desk.changes(&before), [], "a freeze is a part of the balance");
        desk.site().assert_verified();
        desk.server().set_status(A, store, "DISABLED");
        let late = body(store, A, "0.01", "DISPUTE", &key("late"));
        assert_eq!(code(&ask(&desk, "freeze", &late)), "ACCOUNT_DISABLED");
        done(&desk, "unfreeze", &body(store, A, "0.45", "DISPUTE", &key("3")));
        assert_eq!(desk.frozen(A, store), 50);
        desk.server().set_status(A, store, "ACTIVE");
        let escrow = json!({"tx_id": key("out"), "legs": [
            moves(place(store, A, Some("ESCROW")), place(store, B, None), "0.20"),
            unfreezes(store, A, "ESCROW", "0.30"),
        ]});
        assert_eq!(desk.post("", &escrow).status, 200);
        assert_eq!(desk.frozen(A, store), 0);
        let (funding, spot) = if store == "FUNDING" { (20, 0) } else { (0, 20) };
        assert_eq!(desk.changes(&before), [(A, -funding, -spot), (B, funding, spot)]);
    }
    assert_eq!(desk.site().sql_value("SELECT count(*) FROM freezes_tb WHERE amount > 0"), "0");
    let audited = "SELECT count(*) FROM admin_audit WHERE action IN ('freeze', 'unfreeze') \
                   AND reason = 'case 17'";
    assert_ne!(desk.site().sql_value(audited), "0");
    desk.close();
}

/// GTX-012. Goal: arriving money is frozen, and frozen and arriving money is unfrozen, in one
/// transaction, to the unit; an abort leaves nothing of it. Method: on each
/// account the same legs, one unit too many and exact; in rounds, aborted and committed.
#[test]
fn gtx_012_what_arrives_is_frozen_and_unfrozen_to_the_unit() {
    let desk = desk();
    for store in ["FUNDING", "SPOT"] {
        let before = desk.balances();
        let key = |name: &str| format!("{store}-{name}");
        let first = json!({"tx_id": key("first"), "legs": [freezes(store, B, "ESCROW", "0.20")]});
        assert_eq!(desk.post("", &first).status, 200);
        // B gets 1, freezes it, and pays 1.20 out of the purpose.
        let chain = |amount: &str| {
            legs(&[
                moves(place(store, A, None), place(store, B, None), "1"),
                freezes(store, B, "ESCROW", "1"),
                moves(place(store, B, Some("ESCROW")), place(store, C, None), amount),
            ])
        };
        let legs_of = |amount: &str| chain(amount).as_array().expect("legs").clone();
        let more = json!({"tx_id": key("more"), "legs": chain("1.21")});
        assert_eq!(code(&desk.post("", &more)), "INSUFFICIENT_FROZEN");
        assert_eq!((desk.frozen(B, store), desk.frozen(A, store)), (20, 0));
        for (tx_id, end) in [("aborted", "abort"), ("whole", "commit")] {
            for (round, leg) in (1..).zip(legs_of("1.20")) {
                let mut body = json!({"round": round, "legs": [leg]});
                if round == 1 {
                    body["decide"] = json!("caller");
                }
                let reply = desk.post(&format!("/{}/prepare", key(tx_id)), &body);
                assert_eq!(reply.status, 200, "{tx_id} {round}: {reply:?}");
            }
            assert_eq!((desk.frozen(A, store), desk.frozen(B, store)), (100, 20), "apart");
            let mut body = json!({});
            if end == "commit" {
                body["rounds"] = json!(3);
            }
            let reply = desk.post(&format!("/{}/{end}", key(tx_id)), &body);
            assert_eq!(reply.status, 200, "{reply:?}");
            if end == "abort" {
                desk.ends(&key(tx_id), "CANCELLED");
                assert_eq!((desk.frozen(A, store), desk.frozen(B, store)), (0, 20));
                assert_eq!(desk.changes(&before), []);
            }
        }
        desk.ends(&key("whole"), "DONE");
        assert_eq!((desk.frozen(A, store), desk.frozen(B, store)), (0, 0));
        let one =
            |funding: i128, spot: i128| if store == "FUNDING" { (funding, 0) } else { (0, spot) };
        let by = |user, cents| {
            let (funding, spot) = one(cents, cents);
            (user, funding, spot)
        };
        assert_eq!(desk.changes(&before), [by(A, -100), by(B, -20), by(C, 120)]);
    }
    // From a purpose of one user into a purpose of another one, money passes an available balance.
    let between = json!({"tx_id": "between", "legs": [moves(
        place("FUNDING", A, Some("ESCROW")), place("FUNDING", B, Some("ESCROW")), "1")]});
    assert_eq!(desk.post("", &between).refusal(), (400, "INVALID_POSTING".to_owned()));
    desk.close();
}

/// HLD-009. Goal: a freeze is done once, also behind a kill. Method: for each point of a
/// transaction a freeze; the server is killed there and started again, and the operator repeats the
/// command.
#[cfg(feature = "crash")]
#[test]
fn hld_009_a_freeze_behind_a_kill_is_done_once() {
    let mut desk = desk();
    let mut died = 0;
    for (number, point) in TRANSACTION_POINTS.iter().enumerate() {
        let store = if number % 2 == 0 { "FUNDING" } else { "SPOT" };
        let body = body(store, A, "0.25", "DISPUTE", &format!("kill-{number}"));
        desk.kill();
        assert!(desk.start_armed(point), "{point}");
        let path = "/admin/v1/freezes";
        let token = crate::harness::token(9_001, Some(ubscore::http::auth::Role::Admin));
        let request = crate::harness::Request {
            body: Some(&body),
            ..crate::harness::Request::new(&token, "POST", path)
        };
        let answered = crate::harness::send(desk.server().ops, &request).is_ok();
        died += usize::from(!answered);
        // Also between the settled holds and the row that tells of them.
        desk.ends_armed();
        desk.site().assert_verified();
        desk.start_again();
        crate::harness::eventually("the freeze", || {
            let reply = ask(&desk, "freeze", &body);
            (reply.status == 200).then_some(())
        });
        assert_eq!(desk.frozen(A, store), 25, "{point}");
        done(
            &desk,
            "unfreeze",
            &self::body(store, A, "0.25", "DISPUTE", &format!("back-{number}")),
        );
        desk.rests();
    }
    assert!(died >= 5, "{died} kills");
    desk.close();
}

/// Goal: an operator freezes, sees and unfreezes by the command line.
#[test]
fn an_operator_freezes_by_the_command_line() {
    let desk = desk();
    let run = |arguments: &[&str]| {
        let ops = format!("http://{}", desk.server().ops);
        let rest = ["--ops", &ops, "--dev", "--as", "77"];
        said(&cli(&[&["hold"][..], arguments, &rest[..]].concat()))
    };
    let user = A.to_string();
    let change = |word: &str, amount: &str, key: &str| {
        run(&[
            word,
            "--user",
            &user,
            "--account",
            "FUNDING",
            "--asset",
            "USDT",
            "--amount",
            amount,
            "--purpose",
            "DISPUTE",
            "--idem-key",
            key,
            "--reason",
            "case 17",
        ])
    };
    let (status, out, err) = change("freeze", "2.5", "cli-1");
    assert_eq!(status, 0, "{err}");
    assert!(out.starts_with("freeze: 2.5 USDT of user 1001 on FUNDING for DISPUTE, "), "{out}");
    let (status, out, err) = run(&["freezes", "--user", &user]);
    assert_eq!(status, 0, "{err}");
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words[4..], ["1001", "USDT", "DISPUTE", "2.5"], "{out}");
    let (status, _, err) = change("unfreeze", "2.6", "cli-2");
    assert!(status != 0 && err.contains("INSUFFICIENT_FROZEN"), "{err}");
    assert_eq!(change("unfreeze", "2.5", "cli-3").0, 0);
    assert_eq!(run(&["freezes"]).1, "no freezes\n");
    desk.close();
}
