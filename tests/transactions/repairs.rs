//! Repairs of transactions that were torn at a named point, or while their last participant was
//! asked; and repairs that are killed.

use serde_json::{Value, json};
use ubscore::crash::{REPAIR_POINTS, ROWS_POINTS};

use super::desk::{Desk, Service, crossing, leg, legs, place};
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

/// A desk without a server, and a database of the moment at which the server died at `point`
/// with this round of `torn`. Its branches in the database are TRYING.
fn torn(mut desk: Desk, point: &str, body: &Value) -> (Desk, Site) {
    assert!(desk.start_armed(point), "{point}");
    desk.try_post("/torn/prepare", body);
    eventually("the kill", || desk.has_ended().then_some(()));
    desk.wait_for_end();
    let restored = desk.site().with_copied_database();
    let branches = "SELECT participant, state FROM transaction_branches \
                     WHERE round = (SELECT max(round) FROM transaction_branches) ORDER BY 1";
    assert_eq!(restored.sql(branches), [["FUNDING", "10"], ["SPOT", "10"]], "{point}");
    desk.start();
    (desk, restored)
}

/// The plan and the repair of a database that ends `torn`. Returns the lines for people.
fn ended(restored: &Site) -> Vec<String> {
    let planned = repaired(restored, &["--plan"]);
    let done = repaired(restored, &APPLY);
    let looks = [planned, done].map(|out| {
        assert!(out.contains("tx_id torn: move it to COMMITTED"), "{out}");
        out.lines().filter(|line| line.starts_with("look ")).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(repaired(restored, &["--plan"]), NOTHING);
    let [planned, done] = looks;
    assert_eq!(planned, done);
    done
}

/// RCV-005. Goal: a transaction that Spot has settled, while PostgreSQL does not know that Funding
/// has tried it, ends. If all holds of the round are apart, it ends as decided. Otherwise Spot's
/// part stays booked, nothing stays apart on Funding, and Funding's legs are named for people.
/// Method: the server dies before Funding is asked, and before its answer is recorded; the database
/// of that moment is restored behind the end, also with one hold that differs.
#[test]
fn rcv_005_a_round_that_funding_has_lost_ends_as_far_as_its_holds_prove_it() {
    let (asked, not_asked) = ("transaction_after_ask", "transaction_after_accept");
    let differs = "UPDATE funding_holds SET paid = NOT paid WHERE amount = 0";
    for (point, change, booked) in [(asked, "", 3), (asked, differs, 0), (not_asked, "", 0)] {
        let mut desk = Desk::new();
        let before = desk.balances();
        desk.kill();
        let (mut desk, restored) = torn(desk, point, &both());
        prepare(&desk, "torn", &both());
        end(&desk, "torn", "commit", "DONE");
        assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
        desk.kill();
        let held = "SELECT count(*) FROM funding_holds WHERE state = 10";
        assert_eq!(restored.sql_value(held), if point == asked { "2" } else { "0" });
        restored.sql(change);
        let looks = ended(&restored);
        match (booked, &looks[..]) {
            (0, [look]) => {
                for part in ["book 300000000 ", &format!("from {A} to {B} by hand")] {
                    assert!(look.contains(part), "{point}: {look}");
                }
            }
            (3, []) => {}
            _ => panic!("{point} {change}: {looks:?}"),
        }
        desk.moves_to(restored);
        desk.ends("torn", "DONE");
        let moved = desk.changes(&before);
        assert_eq!(moved, [(A, -100 * booked, 200), (B, 100 * booked, -200)], "{point} {change}");
        desk.close();
    }
}

/// RCV-005. Goal: what a round has apart on Funding that Spot has refused is set back, and the
/// rounds before it are booked, though PostgreSQL knows neither answer. Method: as above, with a
/// second round of a user that the first one has apart too.
#[test]
fn rcv_005_a_refused_round_that_funding_has_lost_is_set_back() {
    let mut desk = Desk::new();
    let before = desk.balances();
    prepare(&desk, "torn", &both());
    desk.kill();
    let second = json!({"round": 2, "legs": legs(&[
        leg("FUNDING", A, B, "5"), leg("SPOT", B, A, "5000"),
    ])});
    let (mut desk, restored) = torn(desk, "transaction_after_ask", &second);
    let refused = desk.post("/torn/prepare", &second).refusal();
    assert_eq!(refused, (422, "INSUFFICIENT_BALANCE".to_owned()));
    end(&desk, "torn", "commit", "DONE");
    desk.kill();
    assert_eq!(ended(&restored), Vec::<String>::new());
    desk.moves_to(restored);
    desk.ends("torn", "DONE");
    assert_eq!(desk.changes(&before), [(A, -300, 200), (B, 300, -200)]);
    desk.close();
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

/// RCV-005. Goal: a repair hides no sum of transactions that it does not explain. Method: a leg
/// between the stores is undecided in a restored database; then money from outside is planted in
/// the sums of its asset and of another one.
#[test]
fn rcv_005_a_repair_hides_no_sum_that_it_does_not_explain() {
    let mut desk = Desk::new();
    let crossed = crossing(&place("FUNDING", A), &place("SPOT", B), "3");
    let round = json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(&[crossed])});
    prepare(&desk, "paid", &round);
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    end(&desk, "paid", "commit", "DONE");
    desk.kill();
    let planned = repaired(&restored, &["--plan"]);
    assert!(planned.contains("tx_id paid: move it to COMMITTED"), "{planned}");
    assert!(!planned.contains("transactions have brought"), "{planned}");
    for (symbol, units) in [("USDT", 5), ("BTC", 7)] {
        restored.sql(&format!(
            "INSERT INTO watermark_totals AS t (user_id, asset_id, transaction_deposited) \
             SELECT {A}, asset_id, {units} FROM assets_tb WHERE symbol = '{symbol}' \
             ON CONFLICT (user_id, asset_id) \
             DO UPDATE SET transaction_deposited = t.transaction_deposited + {units}"
        ));
    }
    for arguments in [&["--plan"][..], &APPLY] {
        let (code, out, why) = repair(&restored, arguments);
        assert_eq!(code, Some(1), "{out}{why}");
        for (asset, units) in [("USDT", -5), ("BTC", -7)] {
            let sum = format!("transactions have brought {units} smallest units more");
            let is_it = |line: &&str| line.starts_with("left") && line.contains(asset);
            let found = out.lines().filter(is_it).filter(|line| line.contains(&sum)).count();
            assert_eq!(found, 1, "{asset}: {out}");
        }
    }
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
