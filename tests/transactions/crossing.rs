//! Legs between FUNDING and SPOT, and from and to the outside of both.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::desk::{Desk, crossing, leg, legs, place};
use super::{A, B, C};
use crate::harness::{Site, Way, cut_log, eventually, forgetful, repair, signed_units, text};

const APPLY: [&str; 3] = ["--apply", "--reason", "a backup was restored"];

fn funding(user: u64) -> Value {
    place("FUNDING", user)
}

fn spot(user: u64) -> Value {
    place("SPOT", user)
}

fn outside() -> Value {
    json!("OUTSIDE")
}

/// A round that its caller decides.
fn round(all: &[Value]) -> Value {
    json!({"round": 1, "decide": "caller", "ttl_ms": 90_000, "legs": legs(all)})
}

/// User A pays 3 from Funding to B on Spot. B passes 1 of it on to C on Funding, and has 4 apart
/// for A on Funding.
fn both_ways() -> Value {
    round(&[
        crossing(&funding(A), &spot(B), "3"),
        crossing(&spot(B), &funding(C), "1"),
        crossing(&spot(B), &funding(A), "6"),
        leg("SPOT", A, C, "2"),
    ])
}

/// The changes of [`both_ways`].
const BOTH_WAYS: [(u64, i128, i128); 3] = [(A, 300, -200), (B, 0, -400), (C, 100, 200)];

/// The lines of a user's statement, as amount and account, and its verdict.
fn statement(site: &Site, user: u64) -> (Vec<String>, Value) {
    let user = user.to_string();
    let output = site.tool(["statement", "--user", &user, "--format", "json"]).output();
    let out = String::from_utf8(output.expect("the binary").stdout).expect("text");
    let mut lines: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let end = lines.pop().expect("an end");
    let of_legs =
        lines.iter().filter(|line| [json!("SETTLED"), json!("SETTLE")].contains(&line["op"]));
    let said = |line: &Value| format!("{} {}", text(&line["account"]), text(&line["amount"]));
    (of_legs.map(said).collect(), end)
}

/// GTX-002, MLT-008. Goal: legs between the stores are booked in both or in none; the payer's side
/// is apart in its store until then, and statement, dump and balances tell the same legs. Method:
/// both ways at once, by the coordinator, by a caller, and given up; one unit short.
#[test]
fn gtx_002_legs_between_the_stores_are_booked_in_both_or_in_none() {
    let desk = Desk::new();
    let before = desk.balances();
    let mut whole = json!({"tx_id": "whole"});
    whole["legs"] = both_ways()["legs"].clone();
    let reply = desk.post("", &whole);
    assert_eq!(reply.status, 200, "{reply:?}");
    desk.ends("whole", "DONE");
    assert_eq!(desk.changes(&before), BOTH_WAYS);
    let before = desk.balances();
    let reply = desk.post("/given-up/prepare", &both_ways());
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!((desk.frozen(A, "FUNDING"), desk.frozen(B, "SPOT")), (300, 400), "apart");
    assert_eq!((desk.frozen(C, "FUNDING"), desk.frozen(A, "SPOT")), (0, 200), "arriving");
    assert_eq!(desk.post("/given-up/abort", &json!({})).status, 200);
    desk.ends("given-up", "CANCELLED");
    assert_eq!(desk.changes(&before), []);
    assert_eq!(desk.post("/paid/prepare", &both_ways()).status, 200);
    assert_eq!(desk.post("/paid/commit", &json!({})).status, 200);
    desk.ends("paid", "DONE");
    assert_eq!(desk.changes(&before), BOTH_WAYS);
    // A refusal of one store leaves nothing in the other.
    let before = desk.balances();
    let all = desk.balance(B, "SPOT") + 1;
    let short = super::desk::amount(all);
    let rounds = [
        (crossing(&funding(A), &spot(B), "1"), crossing(&spot(B), &funding(A), &short)),
        (crossing(&spot(B), &funding(C), "1"), leg("FUNDING", A, C, "99999")),
    ];
    for (number, (first, second)) in rounds.into_iter().enumerate() {
        let all = if number == 0 { vec![second, first] } else { vec![first, second] };
        let reply = desk.post(&format!("/short-{number}/prepare"), &round(&all));
        assert_eq!(reply.refusal(), (422, "INSUFFICIENT_BALANCE".to_owned()), "{number}");
        assert_eq!(desk.post(&format!("/short-{number}/abort"), &json!({})).status, 200);
    }
    assert_eq!(desk.changes(&before), []);
    desk.rests();
    let (lines, end) = statement(desk.site(), B);
    assert_eq!(end["verdict"], json!("ok"), "{end}");
    assert_eq!(lines, ["SPOT 3", "SPOT -1", "SPOT -6"].repeat(2), "{lines:?}");
    let (lines, end) = statement(desk.site(), A);
    assert_eq!(end["verdict"], json!("ok"), "{end}");
    assert_eq!(lines.iter().filter(|line| **line == "FUNDING 3").count(), 2, "{lines:?}");
    let mut dump = std::process::Command::new(env!("CARGO_BIN_EXE_ubscore"));
    let dump = dump.args(["wal", "dump"]).arg(&desk.site().data_dir).output();
    let dump = String::from_utf8(dump.expect("the binary").stdout).expect("text");
    let line = format!(
        "outside USDT 3 -> user {B}, user {B} USDT 1 -> outside, user {B} USDT 6 -> outside, \
         user {A} USDT 2 -> user {C} SUCCESS"
    );
    let settled = |dumped: &&str| dumped.contains(" SETTLE tx ") && dumped.ends_with(&line);
    assert_eq!(dump.lines().filter(settled).count(), 2, "{dump}");
    desk.close();
}

/// GTX-013. Goal: a recharge only has arriving, a payout only apart, and both count as external,
/// below the watermark too. No service may, unless the configuration names it. Method: a recharge
/// and a payout of the same amount, looked at in between.
#[test]
fn gtx_013_recharge_and_payout_count_as_external() {
    let site = forgetful(Site::new()).with("UBSCORE__TRANSACTIONS__OUTSIDE_OWNERS", "shop,other");
    let desk = Desk::on(site, &[]);
    let number = |field: &str| -> f64 { desk.total(field).parse().expect("a number") };
    let came = || number("deposited") - number("withdrawn");
    let made = || (desk.total("difference"), desk.total("transactions"));
    let none = || ("0".to_owned(), "0".to_owned());
    let (begun, before) = (came(), desk.balances());
    let recharge = round(&[crossing(&outside(), &funding(A), "7")]);
    let payout = round(&[crossing(&funding(B), &outside(), "7")]);
    for body in [&recharge, &payout] {
        let reply = desk.ask("stranger", "POST", "/tx/prepare", Some(body));
        assert_eq!(reply.refusal(), (400, "INVALID_REQUEST".to_owned()), "{reply:?}");
        assert!(reply.body.contains("outside_owners"), "{reply:?}");
    }
    for leg in [crossing(&outside(), &spot(A), "7"), crossing(&spot(B), &outside(), "7")] {
        let reply = desk.post("/tx/prepare", &round(&[leg]));
        assert_eq!(reply.refusal(), (400, "INVALID_REQUEST".to_owned()), "{reply:?}");
    }
    assert_eq!(desk.post("/recharge/prepare", &recharge).status, 200);
    assert_eq!(desk.post("/payout/prepare", &payout).status, 200);
    assert_eq!((desk.frozen(A, "FUNDING"), desk.frozen(B, "FUNDING")), (0, 700));
    assert_eq!((desk.changes(&before), made()), (vec![(B, 0, 0); 0], none()));
    assert_eq!(desk.post("/recharge/commit", &json!({})).status, 200);
    desk.ends("recharge", "DONE");
    assert_eq!(desk.changes(&before), [(A, 700, 0)]);
    eventually("the totals with the recharge", || (came() == begun + 7.0).then_some(()));
    assert_eq!(made(), none());
    assert_eq!(desk.post("/payout/commit", &json!({})).status, 200);
    desk.ends("payout", "DONE");
    assert_eq!(desk.changes(&before), [(A, 700, 0), (B, -700, 0)]);
    let apart = "SELECT string_agg(amount || '+' || taken + brought || '+' || deposited || '-' \
                                   || withdrawn, ' ' ORDER BY order_number) \
                 FROM funding_holds WHERE state = 40";
    assert_eq!(desk.site().sql_value(apart), "0+0+700000000-0 700000000+0+0-700000000");
    // A payout that is refused, and one through Spot.
    let reply = desk.post("/poor/prepare", &round(&[crossing(&funding(B), &outside(), "99999")]));
    assert_eq!(reply.refusal(), (422, "INSUFFICIENT_BALANCE".to_owned()), "{reply:?}");
    desk.post("/poor/abort", &json!({}));
    let through = round(&[
        crossing(&outside(), &funding(C), "2"),
        crossing(&funding(C), &spot(A), "2"),
        crossing(&spot(A), &funding(B), "2"),
        crossing(&funding(B), &outside(), "2"),
    ]);
    let before = desk.balances();
    assert_eq!(desk.post("/through/prepare", &through).status, 200);
    assert_eq!(desk.frozen(B, "FUNDING"), 0, "it has 2 arriving");
    assert_eq!(desk.post("/through/commit", &json!({})).status, 200);
    desk.ends("through", "DONE");
    assert_eq!(desk.changes(&before), []);
    let below = "SELECT count(*) FROM external_operations, engine_state \
                  WHERE idem_key LIKE 'tx/%' AND order_number < watermark";
    eventually("the watermark to pass them", || {
        desk.server().transfer_ended(A, Way::ToSpot, "0.01");
        (desk.site().sql_value(below) == "4").then_some(())
    });
    let counted = "SELECT sum(transaction_deposited + transaction_withdrawn) FROM watermark_totals";
    assert_eq!(desk.site().sql_value(counted), "0", "the external operations have it");
    desk.site().wait_for_rest();
    // Two reads: the totals are read from time to time.
    eventually("the totals of both", || (came() == begun).then_some(()));
    assert_eq!(made(), none());
    let (_, end) = statement(desk.site(), A);
    assert_eq!(end["verdict"], json!("ok"), "{end}");
    desk.close();
}

/// GTX-020. Goal: every read of the totals adds up while legs between the stores move, and no round
/// of the audit alarms. Method: some threads with transactions both ways and from outside, beside
/// a thread that reads; the audit at once again.
#[test]
fn gtx_020_reads_add_up_while_legs_cross() {
    let site = Site::new()
        .with("UBSCORE__CONSERVATION__EVERY_MS", 10)
        .with("UBSCORE__TRANSACTIONS__OUTSIDE_OWNERS", "shop");
    let desk = Desk::on(site, &[]);
    let before = desk.balances();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (desk, over) = (&desk, &over);
        let reader = scope.spawn(move || {
            let mut reads = 0;
            while !over.load(Ordering::Relaxed) {
                let made = (desk.total("difference"), desk.total("transactions"));
                assert_eq!(made, ("0".to_owned(), "0".to_owned()));
                reads += 1;
            }
            reads
        });
        let movers: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn(move || {
                    for number in 0..15 {
                        let tx_id = format!("cross-{thread}-{number}");
                        let all = [
                            crossing(&funding(A), &spot(B), "0.03"),
                            crossing(&spot(B), &funding(C), "0.02"),
                            crossing(&outside(), &funding(C), "0.01"),
                            crossing(&funding(C), &outside(), "0.01"),
                        ];
                        let reply = desk.post(&format!("/{tx_id}/prepare"), &round(&all));
                        assert_eq!(reply.status, 200, "{tx_id}: {reply:?}");
                        let word = if number % 3 == 0 { "abort" } else { "commit" };
                        let reply = desk.post(&format!("/{tx_id}/{word}"), &json!({}));
                        assert!(reply.status < 300, "{tx_id}: {reply:?}");
                    }
                })
            })
            .collect();
        for mover in movers {
            mover.join().expect("no panic");
        }
        over.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("no panic") > 0);
    });
    desk.rests();
    assert_eq!(desk.changes(&before), [(A, -120, 0), (B, 0, 40), (C, 80, 0)]);
    assert!(!desk.server().said().contains("conservation_violated"), "{}", desk.server().said());
    desk.close();
}

/// RCV-006. Goal: a row with other legs on Spot than the SETTLE in the log halts, and is named.
/// Method: the amount of a leg between the stores is changed by hand.
#[test]
fn rcv_006_a_planted_leg_of_a_transaction_is_named_and_halts() {
    let desk = Desk::new();
    assert_eq!(desk.post("/paid/prepare", &both_ways()).status, 200);
    assert_eq!(desk.post("/paid/commit", &json!({})).status, 200);
    desk.ends("paid", "DONE");
    let change = |from: &str, to: &str| {
        desk.site().sql(&format!(
            "SET session_replication_role = replica; \
             UPDATE transaction_branches SET legs = replace(legs::text, '{from}', '{to}')::jsonb \
              WHERE participant = 'SPOT'"
        ));
    };
    change("300000000", "300000001");
    let server = desk.server();
    eventually("a halt", || (server.ready() == 503).then_some(()));
    assert!(server.said().contains("other legs on Spot"), "{}", server.said());
    change("300000001", "300000000");
    assert_eq!(server.resume("undone").status, 200);
    desk.close();
}

/// RCV-005. Goal: legs between the stores that a restored PostgreSQL lacks, or has undecided, are
/// settled as the log proves; the other side of a leg that is lost for good counts as external
/// until an operator books it. Method: a copy of the database between the prepare and the
/// commit of one, and before another; the log goes on.
#[test]
fn rcv_005_a_restored_database_gets_legs_that_crossed() {
    let mut desk = Desk::new();
    assert_eq!(desk.post("/paid/prepare", &both_ways()).status, 200);
    desk.kill();
    let restored = desk.site().with_copied_database();
    desk.start();
    let before = desk.balances();
    assert_eq!(desk.post("/paid/commit", &json!({})).status, 200);
    desk.ends("paid", "DONE");
    let new = round(&[crossing(&funding(A), &spot(B), "1")]);
    assert_eq!(desk.post("/new/prepare", &new).status, 200);
    assert_eq!(desk.post("/new/commit", &json!({})).status, 200);
    desk.ends("new", "DONE");
    desk.kill();
    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 transactions=2 left=0\n"), "{done}");
    let look = format!("to user {B}, and Funding has lost the other side");
    assert!(done.contains(&look), "{done}");
    desk.moves_to(restored);
    desk.ends("paid", "DONE");
    let [a, b, c] = BOTH_WAYS;
    assert_eq!(desk.changes(&before), [a, (B, b.1, b.2 + 100), c], "A has not paid the last one");
    let made = || (desk.total("difference"), desk.total("transactions"));
    assert_eq!(made(), ("0".to_owned(), "0".to_owned()));
    let body = crate::harness::external(A, "USDT", "1", "by-hand");
    let reply = desk.server().admin("POST", "/admin/v1/withdrawals", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(made(), ("0".to_owned(), "0".to_owned()));
    desk.close();
}

/// RCV-005. Goal: a cut log has legs that crossed decided again as PostgreSQL proves. Method: a cut
/// before RESERVE and SETTLE of a paid one, and before the RESERVE of an open one.
#[test]
fn rcv_005_a_cut_log_gets_legs_that_crossed() {
    let mut desk = Desk::new();
    let before = desk.balances();
    let kept = round(&[crossing(&spot(B), &funding(C), "1")]);
    assert_eq!(desk.post("/first/prepare", &kept).status, 200);
    let from = "SELECT max(log_sequence) + 1 FROM transaction_branches";
    let from = desk.site().sql_value(from).parse().expect("a record");
    assert_eq!(desk.post("/paid/prepare", &both_ways()).status, 200);
    assert_eq!(desk.post("/open/prepare", &both_ways()).status, 200);
    assert_eq!(desk.post("/paid/commit", &json!({})).status, 200);
    desk.ends("paid", "DONE");
    desk.kill();
    cut_log(desk.site(), from);
    let (code, done, why) = repair(desk.site(), &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=0 transactions=2 left=0\n"), "{done}");
    desk.start();
    assert_eq!(desk.server().resume("repaired").status, 200);
    for tx_id in ["open", "first"] {
        assert_eq!(desk.post(&format!("/{tx_id}/commit"), &json!({})).status, 200);
        desk.ends(tx_id, "DONE");
    }
    let twice = BOTH_WAYS.map(|(user, funding, spot)| (user, 2 * funding, 2 * spot));
    let [a, b, c] = twice;
    assert_eq!(desk.changes(&before), [a, (B, b.1, b.2 - 100), (C, c.1 + 100, c.2)]);
    desk.close();
}

/// RCV-001, GTX-020. Goal: a death between the SETTLE of Spot and the Settle of Funding loses
/// nothing: the money is in flight meanwhile, below zero if it came to Spot first, and `verify`
/// finds nothing. No user has more or less before it is whole. Method: Funding waits for a row
/// while Spot books; a kill, and an end of the session that waits; the reads of a halted start; a
/// resume.
#[test]
fn rcv_001_a_death_between_the_two_settles_leaves_the_money_in_flight() {
    for (number, (all, in_flight, moved)) in [
        (vec![crossing(&funding(A), &spot(B), "3")], "-3", vec![(A, -300, 0), (B, 0, 300)]),
        (vec![crossing(&spot(B), &funding(A), "3")], "3", vec![(A, 300, 0), (B, 0, -300)]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut desk = Desk::new();
        let tx_id = format!("half-{number}");
        let before = desk.balances();
        assert_eq!(desk.post(&format!("/{tx_id}/prepare"), &round(&all)).status, 200);
        let apart = desk.balance(B, "SPOT");
        let lock = desk.site().lock_usdt(&[A]);
        let reply = desk.post(&format!("/{tx_id}/commit"), &json!({"wait_ms": 50}));
        assert_eq!(reply.status, 202, "{reply:?}");
        let booked =
            || desk.frozen(B, "SPOT") == 0 && (number == 1 || desk.balance(B, "SPOT") > apart);
        eventually("Spot to book", || booked().then_some(()));
        desk.kill();
        // Its statement would be carried out behind the lock.
        desk.site().sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
              WHERE wait_event_type = 'Lock' AND datname = current_database()",
        );
        lock.sql("ROLLBACK");
        let branches = "SELECT string_agg(participant || state, ' ' ORDER BY participant) \
                        FROM transaction_branches";
        assert_eq!(desk.site().sql_value(branches), "FUNDING20 SPOT20");
        desk.site().assert_verified();
        std::fs::write(desk.site().data_dir.join("halted"), "a look\n").expect("written");
        desk.start();
        assert_eq!(desk.site().sql_value(branches), "FUNDING20 SPOT20", "it is halted");
        let fields = ["in_flight", "difference", "transactions"].map(|field| desk.total(field));
        assert_eq!(fields, [in_flight, "0", "0"], "{all:?}");
        let half = desk.balances();
        assert_eq!(half[&B].in_flight, signed_units(in_flight), "{half:?}");
        for (user, was) in &before {
            assert_eq!(half[user].sum(), was.sum(), "{user}: {half:?}");
        }
        assert_eq!(desk.server().resume("seen").status, 200);
        desk.ends(&tx_id, "DONE");
        assert_eq!(desk.changes(&before), moved);
        desk.close();
    }
}
