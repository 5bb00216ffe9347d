//! Funding's journal: the audit reads it in parts, a damaged row is found and named, and rows are
//! deleted only when the audit has them in its totals.

use serde_json::Value;

use ubscore::postgres;

use crate::harness::{LIMITS, Server, Site, Way, block_on, eventually, repair, units};

const USER: u64 = 1001;
/// The rows that one round folds.
const FOLD_ROWS: u64 = 1_000;

/// A site on which no round runs, but those of a start.
fn unwatched() -> Site {
    Site::new().with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000)
}

/// Flights of both directions that no round has folded.
fn history(site: &Site, server: &Server) {
    for (way, amount) in [(Way::ToSpot, "10"), (Way::ToFunding, "3"), (Way::ToSpot, "2")] {
        assert_eq!(server.transfer(USER, way, amount).status, 200);
    }
    server.deposit(USER, "USDT", "2.5");
    site.wait_for_rest();
}

/// The shard of [`USER`], and the last flight of it that is folded.
fn folded(site: &Site) -> (u64, u64) {
    let shard = "SELECT j.shard, COALESCE(max(f.flight), 0) FROM journal_tb j \
                 LEFT JOIN audit_folded f USING (shard) \
                 WHERE length(entries) > 0 AND j.flight > COALESCE(f.flight, 0) \
                 GROUP BY j.shard ORDER BY count(*) DESC LIMIT 1";
    let rows = site.sql(shard);
    let number = |column: usize| rows[0][column].parse().expect("a number");
    (number(0), number(1))
}

/// The first flight behind `folded` with entries.
fn with_entries(site: &Site, shard: u64, folded: u64) -> u64 {
    let first = format!(
        "SELECT min(flight) FROM journal_tb \
         WHERE shard = {shard} AND flight > {folded} AND length(entries) > 0"
    );
    site.sql_value(&first).parse().expect("a number")
}

/// Goal: a damaged row of the journal is found by `verify` and by a start, is named by shard and
/// flight, and halts. A repair counts everything again and continues behind it; nothing is lost.
/// Method: each damage by SQL on a stopped service, in rows that are not folded.
#[test]
fn a_damaged_row_is_found_named_and_left_behind_by_a_repair() {
    type Damage = fn(&Site, u64, u64) -> (String, u64, &'static str);
    let damages: [Damage; 4] = [
        |site, shard, folded| {
            let flight = with_entries(site, shard, folded);
            let row = format!("shard = {shard} AND flight = {flight}");
            let change = "set_byte(entries, 3, get_byte(entries, 3) # 1)";
            let change = format!("UPDATE journal_tb SET entries = {change} WHERE {row}");
            (change, flight, "the checksum of the entries is wrong")
        },
        |_, shard, folded| {
            let flight = folded + 1;
            let row = format!("shard = {shard} AND flight = {flight}");
            (format!("DELETE FROM journal_tb WHERE {row}"), flight, "are missing")
        },
        |site, shard, folded| {
            let flight = with_entries(site, shard, folded);
            let row = format!("shard = {shard} AND flight = {flight}");
            let change = format!("UPDATE journal_tb SET incarnation = 0 WHERE {row}");
            (change, flight, "incarnation 0 cannot follow")
        },
        |site, shard, _| {
            let last = format!("SELECT max(flight) FROM journal_tb WHERE shard = {shard}");
            let last: u64 = site.sql_value(&last).parse().expect("a number");
            let change = format!(
                "INSERT INTO audit_folded VALUES ({shard}, {}) \
                 ON CONFLICT (shard) DO UPDATE SET flight = EXCLUDED.flight",
                last + 1_000
            );
            (change, last + 1, "has been read before")
        },
    ];
    for damage in damages {
        let site = unwatched();
        let server = site.start();
        history(&site, &server);
        let balance = server.usdt(USER);
        server.stop();
        site.assert_verified();
        let (shard, folded) = folded(&site);
        let (change, flight, fault) = damage(&site, shard, folded);
        site.sql(&change);
        let names = format!("the journal of Funding is damaged: shard {shard}, flight {flight}: ");
        let output = site.verify().output().expect("the binary");
        let said = String::from_utf8_lossy(&output.stdout);
        let found = said.contains(&names) && said.contains(fault);
        assert!(output.status.code() == Some(1) && found, "{change}: {said}");

        let server = site.start();
        eventually("the halt", || (server.ready() == 503).then_some(()));
        // The start has written a row behind the last one.
        let names = format!("the journal of Funding is damaged: shard {shard}, ");
        eventually("the damage", || server.said().contains(&names).then_some(()));
        server.says("conservation_violated");
        server.says("journal_damaged");
        assert_ne!(server.resume("hope").status, 200);
        server.stop();

        let (code, done, why) = repair(&site, &["--apply", "--reason", "a disk was bad"]);
        assert_eq!(code, Some(0), "{done}{why}");
        assert!(done.contains("begin the totals of the audit anew: "), "{done}");
        site.assert_verified();
        let server = site.start();
        assert_eq!(server.resume("repaired").status, 200);
        assert_eq!(server.usdt(USER), balance);
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: a journal that is longer than a part is read in parts, by a start and by `verify`, and
/// balances are compared at the end of it. Method: rows without entries between two transfers, more
/// than two parts of them; a balance that is changed by hand.
#[test]
fn a_long_journal_is_read_in_parts() {
    let site = unwatched();
    let server = site.start();
    history(&site, &server);
    server.stop();
    let (shard, _) = folded(&site);
    let rows = FOLD_ROWS * 5 / 2;
    site.sql(&format!(
        "INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, open_from, \
                                 event_first, bytes, event_count, entries) \
         SELECT shard, flight + n, incarnation, attempt + n, at, durable, open_from, \
                event_first + event_count, bytes + 200 * n, 0, '' \
           FROM journal_last CROSS JOIN generate_series(1, {rows}) AS n WHERE shard = {shard}"
    ));
    let last = format!("SELECT flight FROM journal_last WHERE shard = {shard}");
    let last: u64 = site.sql_value(&last).parse().expect("a number");
    site.assert_verified();
    let change = |sign| {
        format!(
            "UPDATE balances_tb SET available = available {sign} 7e8 WHERE user_id = {USER} AND asset_id = 3"
        )
    };
    site.sql(&change('+'));
    let server = site.start();
    eventually("the halt", || (server.ready() == 503).then_some(()));
    server.says("Funding is 7 more than its operations");
    server.stop();
    site.sql(&change('-'));
    let server = site.start();
    assert_eq!(server.resume("repaired").status, 200);
    let folded = format!("SELECT flight FROM audit_folded WHERE shard = {shard}");
    let folded: u64 = site.sql_value(&folded).parse().expect("a number");
    assert!(folded >= last, "{folded} of {last}");
    site.assert_in_order(&server);
}

/// Goal: only rows that are folded and old are deleted, from the low end, and never the last ones.
/// Method: the function that deletes, with each of its bounds; then `verify`.
#[test]
fn only_folded_and_old_rows_are_deleted() {
    let site = unwatched();
    // The second start folds the rows of the first.
    for _ in 0..2 {
        let server = site.start();
        history(&site, &server);
        server.stop();
    }
    let (shard, folded) = folded(&site);
    let ends = || {
        let ends = format!("SELECT min(flight), max(flight) FROM journal_tb WHERE shard = {shard}");
        let rows = site.sql(&ends);
        [0, 1].map(|column| rows[0][column].parse::<u64>().expect("a number"))
    };
    let [first, last] = ends();
    assert!(first < folded && folded + 1 < last, "{first} {folded} {last}");
    let trim = |event: &str, keep: u64, rows: u64| {
        site.sql(&format!("SELECT journal_trim({event}, {event}, {keep}, {rows})"));
        ends()
    };
    // Every row is younger.
    assert_eq!(trim("-1", 1, 1_000), [first, last]);
    // The last rows stay.
    assert_eq!(trim("9223372036854775807", last, 1_000), [first, last]);
    assert_eq!(trim("9223372036854775807", 1, 1), [first + 1, last]);
    assert_eq!(trim("9223372036854775807", 1, 1_000), [folded + 1, last]);
    site.assert_verified();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// The exit code, the output and the errors of `ubscore journal dump`.
fn dump(site: &Site, words: &[&str]) -> (Option<i32>, String, String) {
    let words = [&["journal", "dump"], words].concat();
    let output = site.tool(words).output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// The rows of a dump that finds nothing wrong.
fn rows(site: &Site, words: &[&str]) -> Vec<Value> {
    let words = [&["--format", "json"], words].concat();
    let (code, rows, why) = dump(site, &words);
    assert_eq!(code, Some(0), "{rows}{why}");
    rows.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect()
}

/// Goal: `journal dump` prints every row with its entries, beside a running service: the amounts
/// are those of the balances, and the ids of events follow one another. Method: all rows as JSON,
/// added up; one row as text.
#[test]
fn a_dump_prints_every_row_with_its_entries() {
    let site = unwatched();
    let server = site.start();
    history(&site, &server);
    let refused = server.transfer(USER, Way::ToSpot, "99999");
    assert_eq!(refused.status, 422);
    site.wait_for_rest();
    let all = rows(&site, &[]);
    let count = site.sql_value("SELECT count(*) FROM journal_tb");
    assert_eq!(all.len().to_string(), count);
    let entries = |row: &Value| row["entries"].as_array().expect("a list").clone();
    let (mut sum, mut events, mut refusals) = (0, 0, 0);
    for row in &all {
        let first: u64 = row["event_first"].as_str().expect("text").parse().expect("a number");
        let mut next = first;
        for entry in entries(row) {
            match entry["kind"].as_str().expect("text") {
                "passed" => {
                    assert_eq!(entry["event_id"], next.to_string(), "{row}");
                    next += 1;
                }
                "posted" if entry["user_id"] == USER && entry["asset"] == "USDT" => {
                    let change = entry["available"].as_str().expect("text");
                    let units = i128::try_from(units(change.trim_start_matches('-')));
                    let units = units.expect("small");
                    sum += if change.starts_with('-') { -units } else { units };
                    refusals += u32::from(entry["code"] == "INSUFFICIENT_BALANCE");
                }
                kind => assert_eq!(kind, "posted"),
            }
        }
        assert_eq!(row["event_count"], next - first, "{row}");
        events += next - first;
    }
    let held = server.usdt(USER).funding.expect("a balance");
    assert_eq!((sum, refusals), (i128::try_from(held).expect("small"), 1));
    let ids = "SELECT COALESCE(sum(cardinality(history)), 0) FROM transfers";
    assert_eq!(events.to_string(), site.sql_value(ids));

    let last = all.iter().rfind(|row| !entries(row).is_empty()).expect("the refusal");
    let (shard, flight) = (last["shard"].to_string(), last["flight"].to_string());
    let one = ["--shard", &shard, "--from", &flight, "--limit", "1"];
    assert_eq!(rows(&site, &one), std::slice::from_ref(last));
    let (code, text, _) = dump(&site, &one);
    assert!(code == Some(0) && text.starts_with(&format!("shard {shard} flight {flight} ")));
    let states = format!("user {USER} passed INIT,SOURCE_PENDING,FAILED event ");
    let posted = format!("user {USER} WITHDRAW USDT available 0 frozen 0 version ");
    assert!(text.contains(&states) && text.contains(&posted), "{text}");
    assert!(text.ends_with(" refused INSUFFICIENT_BALANCE\n"), "{text}");
    let (code, _, why) = dump(&site, &["--shard", "77"]);
    assert!(code == Some(2) && why.contains("the journal has no shard 77"), "{why}");
}

/// Goal: a damaged row and missing ones are printed as such, with the reason and exit code 1, and
/// the rows behind them are printed all the same. Method: a changed byte and a hole, by SQL.
#[test]
fn a_dump_names_damaged_and_missing_rows() {
    let site = unwatched();
    let server = site.start();
    history(&site, &server);
    server.stop();
    let (shard, folded) = folded(&site);
    let bad = with_entries(&site, shard, folded);
    let gone = bad + 1;
    site.sql(&format!(
        "UPDATE journal_tb SET entries = set_byte(entries, 3, get_byte(entries, 3) # 1) \
         WHERE shard = {shard} AND flight = {bad}; \
         DELETE FROM journal_tb WHERE shard = {shard} AND flight = {gone}"
    ));
    let shard = shard.to_string();
    let (code, text, why) = dump(&site, &["--shard", &shard]);
    assert_eq!(code, Some(1), "{text}{why}");
    let faults = [
        "the checksum of the entries is wrong".to_owned(),
        format!("the flights from {gone} to {gone} are missing"),
    ];
    let found: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("  damaged: ")).collect();
    assert_eq!(found, faults, "{text}");
    let last = format!("SELECT max(flight) FROM journal_tb WHERE shard = {shard}");
    let last = format!("shard {shard} flight {} ", site.sql_value(&last));
    assert!(text.contains(&last), "{text}");
    let words = ["--shard", &shard, "--format", "json", "--from", &gone.to_string()];
    let (code, json, _) = dump(&site, &words);
    let first: Value = serde_json::from_str(json.lines().next().expect("a row")).expect("JSON");
    assert_eq!((code, &first["damaged"][0]), (Some(1), &Value::from(&*faults[1])));
}

/// Goal: a stream that comes back reads every transfer that was under way, also one of a user who
/// has another shard since. Method: starts with more and fewer shards; the `open_from` of each row.
#[test]
fn each_shard_begins_at_the_lowest_number_that_any_shard_has_open() {
    let site = Site::new();
    block_on(postgres::migrate(&site.target(), &LIMITS, None)).expect("a schema");
    let open = || -> Vec<(u32, i64)> {
        let rows = site.sql("SELECT shard, open_from FROM journal_last ORDER BY shard");
        let number = |text: &str| text.parse().expect("a number");
        let rows = rows.iter();
        rows.map(|row| (row[0].parse().expect("a shard"), number(&row[1]))).collect()
    };
    site.begin(&LIMITS, 2);
    assert_eq!(open(), [(0, 0), (1, i64::MAX)], "no transfer is in the shard of Funding");
    site.sql("UPDATE journal_tb SET open_from = 9000 + 10 * shard");
    site.begin(&LIMITS, 65);
    let workers = (0..64).map(|shard| (shard, 9000));
    assert_eq!(open(), workers.chain([(64, i64::MAX)]).collect::<Vec<_>>());
    site.begin(&LIMITS, 2);
    let retired = (1..=64).map(|shard| (shard, i64::MAX));
    assert_eq!(open(), [(0, 9000)].into_iter().chain(retired).collect::<Vec<_>>());
    site.take_over();
    assert!(open().iter().all(|(_, open_from)| *open_from == 9000), "a tool knows no workers");
    site.begin(&LIMITS, 3);
    assert_eq!(open()[..3], [(0, 9000), (1, 9000), (2, i64::MAX)]);
}
