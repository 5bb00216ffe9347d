//! Ends by operators: a branch that can never be reached, and a last participant that is to decide.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use ubscore::http::auth::Role;

use super::desk::{Desk, Service, leg, legs};
use super::{A, B, field, part};
use crate::harness::{ADMIN, Reply, Request, cli, eventually, said, send, text, token};

/// Posts as an operator.
fn post(desk: &Desk, actor: u64, path: &str, body: &Value) -> Reply {
    let token = token(actor, Some(Role::Admin));
    let request = Request { body: Some(body), ..Request::new(&token, "POST", path) };
    send(desk.server().ops, &request).expect("an answer")
}

/// The id of a transaction.
fn id_of(desk: &Desk, tx_id: &str) -> String {
    text(&desk.read(tx_id).expect("a row")["transaction_id"]).to_owned()
}

fn abandon(desk: &Desk, id: &str, participant: &str, did: Option<&str>) -> Reply {
    let mut body = json!({"participant": participant, "round": 1, "reason": "it is gone"});
    if let Some(did) = did {
        body["did"] = json!(did);
    }
    post(desk, ADMIN, &format!("/admin/v1/transactions/{id}/abandon"), &body)
}

fn approve(desk: &Desk, actor: u64, asked: &Reply) -> Reply {
    assert_eq!(asked.status, 202, "{asked:?}");
    let id = text(&asked.json()["approval_id"]).to_owned();
    let path = format!("/admin/v1/approvals/{id}/approve");
    post(desk, actor, &path, &json!({"reason": "seen"}))
}

/// Has a branch abandoned by two operators.
fn abandoned(desk: &Desk, tx_id: &str, participant: &str, did: Option<&str>) {
    let id = id_of(desk, tx_id);
    let asked = abandon(desk, &id, participant, did);
    let own = approve(desk, ADMIN, &asked);
    assert_eq!(own.status, 403, "{own:?}");
    let reply = approve(desk, ADMIN + 1, &asked);
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn both() -> Value {
    legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")])
}

/// The text of a history.
fn history(row: &Value) -> String {
    row["history"].to_string()
}

/// Goal: two operators end the branch of a service that is gone, by the decision of its
/// transaction, and never one of a store. Method: a participant without ends; a committed and an
/// aborted transaction; refused requests; a repeat; the command.
#[test]
fn two_operators_end_a_branch_by_the_decision_of_its_transaction() {
    let silent = |action: &str, _| (action == "try").then(|| json!({"outcome": "done"}));
    let coupons = Service::start(silent);
    let desk = Desk::with(&[("COUPONS", "veto", &coupons)]);
    let before = desk.balances();
    let body = json!({"round": 1, "decide": "caller", "ttl_ms": 90_000,
                      "participants": [part("coupons")], "legs": both()});
    for tx_id in ["committed", "aborted", "by-command"] {
        assert_eq!(desk.post(&format!("/{tx_id}/prepare"), &body).status, 200);
    }
    let id = id_of(&desk, "committed");
    let open = abandon(&desk, &id, "coupons", None);
    assert_eq!(open.refusal(), (409, "NOT_RESOLVABLE".to_owned()), "{open:?}");
    for (tx_id, word) in [("committed", "commit"), ("aborted", "abort"), ("by-command", "commit")] {
        desk.post(&format!("/{tx_id}/{word}"), &json!({"wait_ms": 100}));
    }
    eventually("a question for its confirm", || {
        coupons.asked().iter().any(|action| action == "confirm").then_some(())
    });
    for (participant, did) in [
        ("FUNDING", None),
        ("SPOT", None),
        ("stranger", None),
        ("coupons", Some("committed")),
        ("coupons", Some("slept")),
    ] {
        let reply = abandon(&desk, &id, participant, did);
        assert_eq!(reply.refusal(), (400, "INVALID_REQUEST".to_owned()), "{participant}");
    }
    abandoned(&desk, "committed", "coupons", None);
    let row = desk.ends("committed", "DONE");
    for part in ["coupons:1", "abandoned by admin/9001", "approved by admin/9002", "it is gone"] {
        assert!(history(&row).contains(part), "{part}: {row}");
    }
    abandoned(&desk, "aborted", "coupons", None);
    desk.ends("aborted", "CANCELLED");
    let again = abandon(&desk, &id, "coupons", None);
    assert_eq!(again.status, 200, "{again:?}");

    let branch = format!("{}:coupons:1", id_of(&desk, "by-command"));
    let ops = format!("http://{}", desk.server().ops);
    let operator = ["--reason", "it is gone", "--ops", &ops, "--dev"];
    let (code, out, err) =
        said(&cli(&[&["transaction", "abandon", &branch][..], &operator].concat()));
    assert_eq!(code, 3, "{out}{err}");
    let pending = out.split_once("approval approve ").and_then(|(_, rest)| rest.get(..26));
    let pending = pending.unwrap_or_else(|| panic!("an approval: {out}"));
    let path = format!("/admin/v1/approvals/{pending}/approve");
    let approved = post(&desk, ADMIN + 1, &path, &json!({"reason": "seen"}));
    assert_eq!(approved.status, 200, "{approved:?}");
    desk.ends("by-command", "DONE");
    let rows = "SELECT count(*) FROM admin_audit WHERE action = 'branch abandon coupons:1'";
    assert_eq!(desk.site().sql_value(rows), "3");
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    desk.close();
}

/// Goal: in DECIDING the word of two operators about the last participant decides. Method: a silent
/// bank; without their statement, with either one; another statement while one waits.
#[test]
fn the_word_of_two_operators_decides_for_a_last_participant() {
    let bank = Service::start(|_, _| None);
    let desk = Desk::with(&[("BANK", "last", &bank)]);
    let before = desk.balances();
    for tx_id in ["paid", "unpaid"] {
        let body = json!({"tx_id": tx_id, "last": part("bank"), "wait_ms": 100, "legs": both()});
        assert_eq!(desk.post("", &body).status, 202);
        desk.is(tx_id, "DECIDING");
    }
    let id = id_of(&desk, "paid");
    let unstated = abandon(&desk, &id, "bank", None);
    assert_eq!(unstated.refusal(), (400, "INVALID_REQUEST".to_owned()), "{unstated:?}");
    assert_eq!(abandon(&desk, &id, "bank", Some("committed")).status, 202);
    assert_eq!(abandon(&desk, &id, "bank", Some("refused")).status, 409);
    abandoned(&desk, "paid", "bank", Some("committed"));
    let row = desk.ends("paid", "DONE");
    assert!(field(&row, "decided_by").contains("approved by admin/9002"), "{row}");
    assert!(history(&row).contains("has committed, abandoned by"), "{row}");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    let before = desk.balances();
    abandoned(&desk, "unpaid", "bank", Some("refused"));
    let row = desk.ends("unpaid", "CANCELLED");
    assert_eq!(row["code"], json!("PARTICIPANT_REFUSED"), "{row}");
    assert_eq!(desk.changes(&before), []);
    desk.close();
}

/// Goal: `resolve` has a last participant refuse unless it has decided, and takes its own word.
/// Method: a bank that answers no commit before it is asked to cancel: one that has committed, and
/// one that has not.
#[test]
fn resolve_takes_the_word_of_the_last_participant() {
    for committed in [true, false] {
        let asked = Arc::new(AtomicBool::new(false));
        let canceled = Arc::clone(&asked);
        let bank = Service::start(move |action, _| {
            if action == "cancel" {
                canceled.store(true, Ordering::SeqCst);
                return Some(json!({"outcome": "done"}));
            }
            let answer = match committed {
                true => json!({"outcome": "done"}),
                false => json!({"outcome": "refused", "code": "CANCELED"}),
            };
            canceled.load(Ordering::SeqCst).then_some(answer)
        });
        let desk = Desk::with(&[("BANK", "last", &bank)]);
        let before = desk.balances();
        let body =
            json!({"tx_id": "resolved", "last": part("bank"), "wait_ms": 100, "legs": both()});
        assert_eq!(desk.post("", &body).status, 202);
        desk.is("resolved", "DECIDING");
        let path = format!("/admin/v1/transactions/{}/resolve", id_of(&desk, "resolved"));
        let why = json!({"reason": "the caller waits"});
        let reply = post(&desk, ADMIN, &path, &why);
        assert_eq!(reply.status, 200, "{reply:?}");
        let (state, moved) = match committed {
            true => ("DONE", vec![(A, -300, 200), (B, 300, -200)]),
            false => ("CANCELLED", vec![]),
        };
        let row = desk.ends("resolved", state);
        assert_eq!(field(&row, "decided_by"), "bank", "{row}");
        assert_eq!(bank.asked().iter().filter(|action| *action == "cancel").count(), 1);
        assert_eq!(desk.changes(&before), moved);
        let late = post(&desk, ADMIN, &path, &why);
        assert_eq!(late.refusal(), (409, "NOT_RESOLVABLE".to_owned()), "{late:?}");
        desk.close();
    }
}
