//! Account statements: every unit that has moved, in order, with any part of the log removed.

use std::collections::BTreeMap;
use std::process::Output;

use serde_json::Value;

use crate::harness::{Server, Site, Way, crowd, eventually, force, segments, text, units};

/// A user without money from the first start.
const USER: u64 = 77;

/// The exit code, stdout, and stderr.
fn statement(site: &Site, words: &[&str]) -> (Option<i32>, String, String) {
    let user = USER.to_string();
    let words = [&["statement", "--user", &*user], words].concat();
    let Output { status, stdout, stderr } = site.tool(&words).output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Its objects: movements, balances by asset, and the end.
fn objects(site: &Site, words: &[&str]) -> (Vec<Value>, BTreeMap<String, Value>, Value) {
    let (code, out, why) = statement(site, &[&["--format", "json"], words].concat());
    assert_eq!(code, Some(0), "{out}{why}");
    let mut objects: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let end = objects.pop().expect("an end");
    assert_eq!((text(&end["kind"]), text(&end["verdict"])), ("end", "ok"));
    let (movements, sums): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object["kind"] == "movement");
    let sums = sums.into_iter().map(|sum| (text(&sum["asset"]).to_owned(), sum)).collect();
    (movements, sums, end)
}

/// Signed smallest units.
fn signed(text: &str) -> i128 {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    sign * i128::try_from(units(digits)).expect("few")
}

/// Asserts that each account's balance follows from the one before, and is never negative.
fn assert_chained(movements: &[Value]) {
    let mut balances = BTreeMap::<(&str, &str), i128>::new();
    for movement in movements {
        let account = (text(&movement["account"]), text(&movement["asset"]));
        let balance = balances.entry(account).or_default();
        *balance += signed(text(&movement["amount"]));
        assert_eq!(signed(text(&movement["balance"])), *balance, "{movement}");
        assert!(*balance >= 0, "{movement}");
    }
}

/// A transfer with each kind of end, many at once, and external money both ways.
fn live(server: &Server) {
    server.deposit(USER, "USDT", "1000");
    server.deposit(USER, "BTC", "2");
    for (way, amount) in [(Way::ToSpot, "100.5"), (Way::ToFunding, "40")] {
        assert_eq!(server.transfer(USER, way, amount).status, 200);
    }
    assert_eq!(server.transfer(USER, Way::ToFunding, "5000").status, 422);
    server.set_status(USER, "SPOT", "DISABLED");
    assert_eq!(server.transfer(USER, Way::ToSpot, "7").status, 422);
    server.set_status(USER, "SPOT", "ACTIVE");
    server.set_status(USER, "FUNDING", "DISABLED");
    assert_eq!(server.transfer(USER, Way::ToFunding, "3").status, 422);
    server.set_status(USER, "FUNDING", "ACTIVE");
    let way = |index| if index % 2 == 0 { Way::ToSpot } else { Way::ToFunding };
    crowd(40, |index| server.transfer(USER, way(index), "1"));
}

/// Goal: the statement has every movement of both stores, adds up, and arrives at the service's
/// balances, both with the whole log and after its first part has gone. Method: a transfer with
/// each kind of end and a crowd of them; statements with a running server, with half of the log
/// removed behind a snapshot, and without a server.
#[test]
fn a_statement_has_every_movement_of_both_stores() {
    let site =
        Site::new().with("UBSCORE__SNAPSHOT__KEEP", 1).with("UBSCORE__CONSERVATION__EVERY_MS", 100);
    let mut server = site.start();
    live(&server);
    site.wait_for_rest();
    let want = server.usdt(USER);
    let assert_complete = || {
        let (movements, sums, end) = objects(&site, &[]);
        assert_chained(&movements);
        let closing = &sums["USDT"]["closing"];
        assert_eq!(units(text(&closing["funding"])), want.funding.expect("an account"));
        assert_eq!(units(text(&closing["spot"])), want.spot.expect("an account"));
        assert_eq!(text(&closing["in_flight"]), "0");
        assert_eq!(text(&sums["BTC"]["closing"]["funding"]), "2");
        assert_eq!(end["newer_on_spot"], 0);
        movements
    };
    let before = assert_complete();
    let spot = before.iter().filter(|movement| movement["account"] == "SPOT");
    assert!(spot.clone().all(|movement| movement["log_sequence"].is_u64()), "{before:?}");
    let refunds: Vec<_> = before.iter().filter(|movement| movement["op"] == "REFUND").collect();
    assert_eq!(refunds.len(), 2, "{refunds:?}");

    // Every start begins a segment, which lies behind the snapshots before it.
    for _ in 0..3 {
        assert_eq!(server.transfer(1002, Way::ToSpot, "1").status, 200);
        force(&site, &server);
        server.kill();
        server = site.start();
    }
    force(&site, &server);
    eventually("the log to lose its first part", || (segments(&site)[0].0 > 1).then_some(()));
    let after = assert_complete();
    let places = |movements: &[Value]| -> Vec<String> {
        let place =
            |m: &Value| format!("{} {} {} {}", m["account"], m["op"], m["reference"], m["amount"]);
        let mut places: Vec<_> = movements.iter().map(place).collect();
        places.sort();
        places
    };
    assert_eq!(places(&after), places(&before));
    server.kill();
    assert_eq!(places(&assert_complete()), places(&before));
}

#[test]
fn a_part_of_a_statement_begins_where_the_one_before_ends() {
    let site = Site::new();
    let server = site.start();
    live(&server);
    site.wait_for_rest();
    server.stop();
    let (movements, sums, _) = objects(&site, &["--asset", "USDT"]);
    assert!(movements.iter().all(|movement| movement["asset"] == "USDT"), "{movements:?}");
    assert_eq!(sums.len(), 1);
    let middle = text(&movements[movements.len() / 2]["at"]).to_owned();
    let (first, early, _) = objects(&site, &["--asset", "USDT", "--until", &middle]);
    let (second, late, _) = objects(&site, &["--asset", "USDT", "--since", &middle]);
    assert_eq!([first, second].concat(), movements);
    assert_eq!(early["USDT"]["closing"], late["USDT"]["opening"]);
    assert_eq!(late["USDT"]["closing"], sums["USDT"]["closing"]);
    let nothing = objects(&site, &["--since", "2999-01-01"]);
    assert_eq!(nothing.0, [] as [Value; 0]);
    assert_eq!(nothing.1["BTC"]["closing"]["funding"], "2");
}

#[test]
fn a_statement_is_text_and_csv_as_well() {
    let site = Site::new();
    let server = site.start();
    server.deposit(USER, "USDT", "10");
    let req_id = server.transfer(USER, Way::ToSpot, "2.5").req_id();
    site.wait_for_rest();
    server.stop();
    let (code, out, _) = statement(&site, &[]);
    assert_eq!(code, Some(0));
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][1..6], ["FUNDING", "EXT_DEPOSIT", "USDT", "10", "10"]);
    assert_eq!(lines[1][1..], ["FUNDING", "WITHDRAW", "USDT", "-2.5", "7.5", &req_id]);
    assert_eq!(lines[2][1..], ["SPOT", "DEPOSIT", "USDT", "2.5", "2.5", &req_id]);
    assert_eq!(lines[3], ["USDT", "opening", "funding=0", "spot=0", "in_flight=0"]);
    assert_eq!(lines[4], ["USDT", "closing", "funding=7.5", "spot=2.5", "in_flight=0"]);
    assert_eq!(lines[5], ["ok", "user=77", "movements=3", "newer_on_spot=0"]);
    let (code, out, _) = statement(&site, &["--format", "csv"]);
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((code, lines.len()), (Some(0), 4));
    assert_eq!(lines[0], "at,account,op,asset,amount,balance,reference,log_sequence,held");
    assert!(lines[2].ends_with(&format!(",FUNDING,WITHDRAW,USDT,-2.5,7.5,{req_id},,0")), "{out}");
}

/// A statement must not add up a wrong balance as if it were right.
#[test]
fn a_statement_that_does_not_add_up_says_so() {
    let site = Site::new();
    let server = site.start();
    server.deposit(USER, "USDT", "10");
    server.stop();
    site.sql(&format!("UPDATE balances_tb SET available = 11e8 WHERE user_id = {USER}"));
    let (code, out, why) = statement(&site, &[]);
    assert_eq!(code, Some(1));
    assert!(last(&out).starts_with("mismatch "), "{out}");
    let want = "mismatch: user 77, USDT: Funding is 1 more than its operations (11 against 10)";
    assert_eq!(why.lines().next(), Some(want), "{why}");
    let (code, _, why) = statement(&site, &["--asset", "NONE"]);
    assert_eq!((code, why.trim()), (Some(2), "error: there is no asset NONE"));
}

fn last(text: &str) -> &str {
    text.lines().last().unwrap_or("")
}
