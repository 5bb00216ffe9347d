//! SIGKILL at each named point of a transaction.

use serde_json::json;
use ubscore::crash::TRANSACTION_POINTS;

use super::desk::{Desk, Service, leg, legs};
use super::followers::{followed, taken};
use super::{A, B, field, part};
use crate::harness::{Endpoint, eventually};

/// RCV-001. Goal: a kill at each point, with both decisions, ends final and conserved, and so does
/// a second kill during the recovery; GTX-015: its follower is told of it if it is DONE. Method:
/// for each point and decision a transaction over both stores and a last participant or a caller;
/// the server is killed there, started with the same point armed, and started again.
#[test]
fn rcv_001_a_kill_at_each_point_ends_final_and_conserved() {
    let bank = Service::start(|_, _| Some(json!({"outcome": "done"})));
    let notices = Endpoint::start(|_| 200);
    let mut desk = Desk::on(followed(&notices), &[("BANK", "last", &bank)]);
    desk.grant();
    let mut reached = Vec::new();
    for commits in [true, false] {
        let answer = if commits {
            json!({"outcome": "done"})
        } else {
            json!({"outcome": "refused", "code": "NO"})
        };
        bank.answers(move |_, _| Some(answer.clone()));
        for (number, point) in TRANSACTION_POINTS.iter().enumerate() {
            let tx_id = format!("{commits}-{number}");
            desk.kill();
            assert!(desk.start_armed(point), "{point}");
            let before = desk.balances();
            if kill_at(&mut desk, point, &tx_id, commits) {
                reached.push((*point, commits));
                // The recovery passes some points too.
                if desk.start_armed(point) {
                    let open = "SELECT count(*) FROM transactions_tb WHERE state NOT IN (40, -20)";
                    eventually("the recovery, or another kill", || {
                        let rests = desk.site().sql_value(open) == "0";
                        (rests || desk.has_ended()).then_some(())
                    });
                }
                desk.start_again();
            }
            desk.rests();
            let row = desk.read(&tx_id);
            let state = row.as_ref().map_or("none", |row| field(row, "state"));
            let moved = desk.changes(&before);
            match state {
                "DONE" => {
                    assert_eq!(moved, [(A, -300, 200), (B, 300, -200)], "{point} {tx_id}");
                    eventually("the follower to be told", || {
                        taken(&notices).contains(&tx_id).then_some(())
                    });
                }
                _ => assert_eq!(moved, [], "{point} {tx_id} {state}"),
            }
            assert!(commits || state != "DONE", "{point} {tx_id}");
        }
    }
    for tx_id in taken(&notices) {
        assert_eq!(desk.read(&tx_id).expect("a transaction")["state"], json!("DONE"));
    }
    for point in TRANSACTION_POINTS {
        assert!(reached.iter().any(|(name, _)| name == point), "{point} is never reached");
    }
    desk.close();
}

/// Sends a transaction until the server dies. Returns whether it has died.
fn kill_at(desk: &mut Desk, point: &str, tx_id: &str, commits: bool) -> bool {
    let both = legs(&[leg("FUNDING", A, B, "3"), leg("SPOT", B, A, "2")]);
    if point == "transaction_after_seal" {
        if !commits {
            return false;
        }
        let body = json!({"round": 1, "decide": "caller", "followers": ["notices"], "legs": both});
        desk.post(&format!("/{tx_id}/prepare"), &body);
        desk.site().sql(&format!("SELECT transaction_commit('shop', '{tx_id}', 1)"));
    } else {
        let body = json!({
            "tx_id": tx_id, "last": part("bank"), "followers": ["notices"], "legs": both,
        });
        desk.try_post("", &body);
    }
    let open = format!(
        "SELECT count(*) FROM transactions_tb WHERE tx_id = '{tx_id}' AND state IN (40, -20)"
    );
    eventually("an end, or a kill", || {
        let is_final = desk.site().sql_value(&open) == "1";
        // These come behind the commit of the end.
        let is_behind = point.ends_with("final") || point.ends_with("stores");
        (desk.has_ended() || is_final && !is_behind).then_some(())
    });
    desk.has_ended()
}
