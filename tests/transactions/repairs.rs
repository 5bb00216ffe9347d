//! Repairs of transactions that were torn at a named point, or while their last participant was
//! asked; and repairs that are killed.

use serde_json::{Value, json};
use ubscore::crash::{REPAIR_POINTS, ROWS_POINTS};

use super::desk::{Desk, Service};
use super::lost::{APPLY, both, end, prepare, spot};
use super::{A, B, C, part};
use crate::harness::{Site, cut_log, eventually, repair};

const NOTHING: &str = "planned transfers=0 left=0\n";

/// A repair that leaves nothing. Returns its output.
fn repaired(site: &Site, arguments: &[&str]) -> String {
    let (code, out, why) = repair(site, arguments);
    assert_eq!(code, Some(0), "{out}{why}");
    assert!(out.contains(" left=0"), "{out}");
    out
}

/// Both stores once more.
fn twin(site: &Site) -> Site {
    let copy = site.with_copied_database().with_fresh_data_dir();
    site.copy_data(&copy);
    copy
}

/// RCV-005. Goal: a transaction that Spot has settled, while PostgreSQL does not know that Funding
/// has tried it, ends: Spot's part stays booked, nothing stays apart on Funding, and Funding's legs
/// are named for people. Method: the server dies before Funding is asked, and before its answer is
/// recorded; the database of that moment is restored behind the end.
#[test]
fn rcv_005_a_round_that_funding_has_lost_is_named_for_people() {
    for point in ["transaction_after_accept", "transaction_after_ask"] {
        let mut desk = Desk::new();
        let before = desk.balances();
        desk.kill();
        assert!(desk.start_armed(point), "{point}");
        desk.try_post("/torn/prepare", &both());
        eventually("the kill", || desk.has_ended().then_some(()));
        desk.wait_for_end();
        let restored = desk.site().with_copied_database();
        let branches = "SELECT participant, state FROM transaction_branches ORDER BY 1";
        assert_eq!(restored.sql(branches), [["FUNDING", "10"], ["SPOT", "10"]], "{point}");
        desk.start();
        prepare(&desk, "torn", &both());
        end(&desk, "torn", "commit", "DONE");
        assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
        desk.kill();

        let planned = repaired(&restored, &["--plan"]);
        let done = repaired(&restored, &APPLY);
        for out in [planned, done] {
            assert!(out.contains("tx_id torn: move it to COMMITTED"), "{point}: {out}");
            let looks: Vec<_> = out.lines().filter(|line| line.starts_with("look ")).collect();
            let [look] = looks[..] else { panic!("{point}: {out}") };
            for part in ["book 300000000 ", &format!("from {A} to {B} by hand")] {
                assert!(look.contains(part), "{point}: {look}");
            }
        }
        assert_eq!(repaired(&restored, &["--plan"]), NOTHING, "{point}");
        desk.moves_to(restored);
        desk.ends("torn", "DONE");
        assert_eq!(desk.changes(&before), [(A, 0, 200), (B, 0, -200)], "{point}");
        desk.close();
    }
}

/// RCV-005. Goal: a transaction that is restored while its last participant is asked ends as the
/// log proves; without a proof it ends by the participant's answer. Method: the database of the
/// question is restored behind a commit, a refusal, and silence.
#[test]
fn rcv_005_a_restored_question_to_the_last_participant_ends_as_it_did() {
    let [yes, no, mute] = [(); 3].map(|()| Service::start(|_, _| None));
    let services = [("YES", "last", &yes), ("NO", "last", &no), ("MUTE", "last", &mute)];
    let mut desk = Desk::with(&services);
    let before = desk.balances();
    for (tx_id, last) in [("paid", "yes"), ("dropped", "no"), ("kept", "mute")] {
        let mut body: Value = json!({"tx_id": tx_id, "last": part(last), "wait_ms": 100});
        body["legs"] = both()["legs"].clone();
        desk.post("", &body);
        desk.is(tx_id, "DECIDING");
    }
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    yes.answers(|_, _| Some(json!({"outcome": "done"})));
    desk.ends("paid", "DONE");
    no.answers(|_, _| Some(json!({"outcome": "refused", "code": "NO"})));
    desk.ends("dropped", "CANCELLED");
    desk.kill();

    let planned = repaired(&restored, &["--plan"]);
    for line in ["tx_id paid: move it to COMMITTED", "tx_id dropped: move it to ABORTED"] {
        assert!(planned.contains(line), "{line}: {planned}");
    }
    assert!(!planned.contains("tx_id kept:"), "{planned}");
    let done = repaired(&restored, &APPLY);
    assert!(done.ends_with("repaired transfers=0 transactions=2 left=0\n"), "{done}");
    assert_eq!(repaired(&restored, &["--plan"]), NOTHING);
    // A cancel of a commit that was refused is done.
    no.answers(|action, _| (action == "cancel").then(|| json!({"outcome": "done"})));
    mute.answers(|_, _| Some(json!({"outcome": "done"})));
    desk.moves_to(restored);
    for (tx_id, state) in [("paid", "DONE"), ("dropped", "CANCELLED"), ("kept", "DONE")] {
        desk.ends(tx_id, state);
    }
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    desk.close();
}

/// Every transaction and its branches.
fn rows(site: &Site) -> Vec<Vec<String>> {
    let rows = "SELECT tx_id, t.state, rounds, t.code, participant, round, b.state, legs::text \
                FROM transactions_tb t LEFT JOIN transaction_branches b USING (transaction_id) \
                ORDER BY tx_id, participant, round";
    site.sql(rows)
}

/// RCV-005. Goal: a repair of a restored PostgreSQL that is killed anywhere ends as one that is
/// not. Method: SIGKILL at each of its points on twins of both stores; then the same again.
#[test]
fn rcv_005_a_killed_repair_of_rows_goes_on() {
    let mut desk = Desk::new();
    let before = desk.balances();
    for tx_id in ["paid", "dropped"] {
        prepare(&desk, tx_id, &both());
    }
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    end(&desk, "paid", "commit", "DONE");
    end(&desk, "dropped", "abort", "CANCELLED");
    prepare(&desk, "new-paid", &spot("1"));
    end(&desk, "new-paid", "commit", "DONE");
    prepare(&desk, "new-open", &spot("8"));
    desk.kill();
    let whole = twin(&restored);
    repaired(&whole, &APPLY);
    let want = rows(&whole);
    assert_eq!(want.iter().filter(|row| row[4] == "SPOT").count(), 4, "{want:?}");
    let mut last = whole;
    for point in ROWS_POINTS {
        let site = twin(&restored);
        let (code, out, why) = repair(&site.clone().with("UBSCORE_CRASH", point), &APPLY);
        assert_eq!(code, None, "{point}: {out}{why}");
        repaired(&site, &APPLY);
        assert_eq!(rows(&site), want, "{point}");
        assert_eq!(repaired(&site, &["--plan"]), NOTHING, "{point}");
        last = site;
    }
    desk.moves_to(last);
    for (tx_id, state) in [("paid", "DONE"), ("dropped", "CANCELLED")] {
        desk.ends(tx_id, state);
    }
    desk.rests();
    assert_eq!(desk.changes(&before), [(A, -300, 100), (B, 300, -200), (C, 0, 100)]);
    desk.close();
}

/// RCV-005. Goal: a repair of a cut log that is killed anywhere, also between the RESERVE and the
/// SETTLE of one transaction, ends as one that is not. Method: SIGKILL at each of its points and
/// before each of its steps on twins; then the same again.
#[test]
fn rcv_005_a_killed_repair_of_postings_goes_on() {
    let mut desk = Desk::new();
    let before = desk.balances();
    prepare(&desk, "dropped", &both());
    let kept = "SELECT max(log_sequence) + 1 FROM transaction_branches";
    let from = desk.site().sql_value(kept).parse().expect("a record");
    prepare(&desk, "paid", &both());
    prepare(&desk, "kept", &both());
    end(&desk, "paid", "commit", "DONE");
    end(&desk, "dropped", "abort", "CANCELLED");
    desk.kill();
    cut_log(desk.site(), from);
    let planned = repaired(desk.site(), &["--plan"]);
    let steps = planned.matches(" on Spot decided again").count();
    assert_eq!(steps, 4, "{planned}");
    let points = REPAIR_POINTS.iter().map(|point| (*point).to_owned());
    let each = (1..=steps).map(|visit| format!("repair_before_step={visit}"));
    let mut last = None;
    for point in points.chain(each) {
        let site = twin(desk.site());
        let (code, out, why) = repair(&site.clone().with("UBSCORE_CRASH", &point), &APPLY);
        assert_eq!(code, None, "{point}: {out}{why}");
        repaired(&site, &APPLY);
        assert_eq!(repaired(&site, &["--plan"]), NOTHING, "{point}");
        site.assert_verified();
        last = Some(site);
    }
    desk.moves_to_halted(last.expect("a point"));
    assert_eq!(desk.server().resume("repaired").status, 200);
    end(&desk, "kept", "commit", "DONE");
    assert_eq!(desk.changes(&before), [(A, -600, 400), (B, 600, -400)]);
    desk.close();
}

/// Story: the branches of a repair stayed written when its row was decided meanwhile. Goal: then
/// nothing of the repair stays, and it says so. Method: a trigger passes over the decision of the
/// repair, as another hand would that was first.
#[test]
fn a_repair_of_a_row_that_is_decided_meanwhile_leaves_it_alone() {
    let mut desk = Desk::new();
    prepare(&desk, "paid", &both());
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    end(&desk, "paid", "commit", "DONE");
    desk.kill();
    restored.sql(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; \
         CREATE TRIGGER skip BEFORE UPDATE ON transactions_tb FOR EACH ROW \
           WHEN (NEW.decided_by = 'repair') EXECUTE FUNCTION skip()",
    );
    let before = rows(&restored);
    let (code, out, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(1), "{out}{why}");
    assert!(out.contains("already used") && out.contains(" left=1"), "{out}");
    assert_eq!(rows(&restored), before);
    restored.sql("DROP TRIGGER skip ON transactions_tb");
    repaired(&restored, &APPLY);
    let states: Vec<_> = rows(&restored).into_iter().map(|row| row[6].clone()).collect();
    assert_eq!(states, ["20", "40"], "Funding is confirmed by the service");
}
