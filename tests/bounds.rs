//! The bounds of Funding's journal: its bytes, and the transfers that stay open.

use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use ubscore::alert::Alert;

use crate::alerts;
use crate::harness::{Part, Server, Site, Way, assert_refused, eventually};

const USER: u64 = 1001;
/// The least bound of the journal, bytes.
const BYTES_MAX: u64 = 1 << 20;
/// The last rows of a shard, which are never deleted and not counted.
const SPARE: u64 = 1_000;

/// A site with the least journal, and without webhooks the deletion looks often.
fn bounded(site: Site) -> Site {
    site.with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__JOURNAL__BYTES_MAX", BYTES_MAX)
        .with("UBSCORE__WEBHOOKS__DEAD_KEEP_HOURS", 0.001)
}

/// Adds rows without entries to the shard of the worker, each of `bytes`.
fn lengthen(site: &Site, rows: u64, bytes: u64) {
    site.sql(&format!(
        "INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, open_from, \
                                 event_first, bytes, event_count, entries) \
         SELECT shard, flight + n, incarnation, attempt + n, at, durable, open_from, \
                event_first + event_count, bytes + {bytes} * n, 0, '' \
           FROM journal_last CROSS JOIN generate_series(1, {rows}) AS n WHERE shard = 0"
    ));
}

fn counted(site: &Site) -> u64 {
    site.sql_value(&format!("SELECT journal_bytes({SPARE})")).parse().expect("a number")
}

/// The first row of the worker's shard.
fn first(site: &Site) -> u64 {
    let first = "SELECT min(flight) FROM journal_tb WHERE shard = 0";
    site.sql_value(first).parse().expect("a number")
}

/// Goal: the journal has a bound. Method: rows without entries fill half of it, and then more than
/// it: the alert comes, and rows are deleted long before their time, and no more of them than
/// needed; a stream that comes back is told of the gap. The last rows alone refuse nothing.
#[test]
fn a_journal_that_fills_is_said_and_loses_its_oldest_rows() {
    let (site, webhook) = alerts::site();
    let site = bounded(site);
    let server = site.start();
    let stream = server.follow(USER, Some("0"));
    assert!(matches!(stream.next(), Part::Position(_)));
    server.transfer_committed(USER, Way::ToSpot, "1");
    let (known, _) = stream.transfer();
    drop(stream);
    site.wait_for_rest();
    server.stop();
    let wrong = "SELECT count(*) FROM journal_tb j JOIN journal_tb b \
                     ON b.shard = j.shard AND b.flight = j.flight - 1 \
                  WHERE j.bytes <> b.bytes + 128 + pg_column_size(b.entries)";
    assert_eq!(site.sql_value(wrong), "0", "a running sum");
    assert_eq!(site.sql_value("SELECT sum(bytes) FROM journal_tb WHERE flight = 1"), "0");

    // Rows that are never deleted: the journal may have any length.
    lengthen(&site, SPARE / 2, BYTES_MAX);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    assert_eq!(counted(&site), 0);
    site.wait_for_rest();
    alerts::assert_only(&server, &[]);
    server.stop();
    site.sql("UPDATE journal_tb SET bytes = flight WHERE shard = 0");

    lengthen(&site, SPARE + 700, 1_000);
    let server = site.start();
    alerts::assert_raised(&server, &webhook, Alert::JournalFilling);
    alerts::assert_only(&server, &[Alert::JournalFilling]);
    assert_eq!(first(&site), 1, "nothing is deleted");
    let stream = server.follow(USER, Some(&known));
    assert_eq!(stream.transfer().1["state"], json!("COMMITTED"));
    drop(stream);
    server.stop();

    lengthen(&site, 1_000, 1_000);
    let server = site.start();
    eventually("the deletion", || (counted(&site) <= BYTES_MAX).then_some(()));
    assert!(counted(&site) > 0, "only the oldest ones");
    assert!(first(&site) > 1);
    let stream = server.follow(USER, Some(&known));
    let (_, kind, _) = stream.event();
    assert_eq!(kind, "gap");
    drop(stream);
    server.transfer_committed(USER, Way::ToSpot, "1");
    assert!(server.metric("ubscore_journal_bytes") > 0);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: no row is deleted before the audit and the webhooks have it. New work is refused instead,
/// open transfers end, and new work goes on once rows may go. Method: the last folded flight, or
/// the cursor of the webhooks, is put back, and the rows are beyond the bound; one transfer is
/// parked.
#[test]
fn a_journal_that_cannot_be_deleted_refuses_new_work() {
    for (hold, release) in [
        (
            "CREATE TABLE kept AS SELECT * FROM audit_folded; UPDATE audit_folded SET flight = 0",
            "UPDATE audit_folded f SET flight = k.flight FROM kept k WHERE f.shard = k.shard; \
             DROP TABLE kept",
        ),
        ("INSERT INTO webhook_cursor VALUES (0, 0)", "DELETE FROM webhook_cursor"),
    ] {
        let (site, webhook) = alerts::site();
        // The deletion looks often.
        let site = bounded(site)
            .with("UBSCORE__EVENTS__KEEP_HOURS", 0.03)
            .with("UBSCORE__WEBHOOKS__DEAD_KEEP_HOURS", 24)
            .with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
        let server = site.start();
        for user in [USER, USER + 1] {
            server.transfer_committed(user, Way::ToSpot, "5");
        }
        site.wait_for_rest();
        server.stop();
        lengthen(&site, SPARE + 500, 100);
        let server = site.start();
        let held = site.lock_usdt(&[USER]);
        assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 202);
        let before = first(&site);
        site.sql(&format!(
            "{hold}; UPDATE journal_tb SET bytes = bytes + {} \
                      WHERE shard = 0 AND flight > {before} + 1",
            2 * BYTES_MAX
        ));
        eventually("a refusal", || {
            let reply = server.transfer(USER + 1, Way::ToSpot, "1");
            // On a machine that stands still a statement may be late: that is another refusal.
            let is_late = reply.status == 503 && reply.json()["code"] == "SYSTEM_ERROR";
            (reply.status != 200 && !is_late).then(|| {
                assert_refused(&reply, 503, "OVERLOADED");
                assert_eq!(reply.json()["reason"], "journal");
            })
        });
        alerts::assert_raised(&server, &webhook, Alert::NotTakingTransfers);
        assert_eq!((server.ready(), first(&site)), (503, before), "{hold}");
        held.sql("ROLLBACK");
        site.wait_for_rest();
        assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "OVERLOADED");
        site.sql(release);
        eventually("room", || {
            (server.transfer(USER + 1, Way::ToSpot, "1").status == 200).then_some(())
        });
        assert!(first(&site) > before);
        assert_eq!(server.ready(), 200);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: a transfer that stays open is listed by number, the next start finds it again,
/// and too many of them refuse new work of their worker alone. Method: PostgreSQL refuses the
/// end of one transfer; the server is killed, and begins with other numbers of shards.
#[test]
fn an_old_transfer_is_listed_and_found_again() {
    let (site, webhook) = alerts::site();
    let site = site
        .with("UBSCORE__JOURNAL__OPEN_FLIGHTS", 2)
        .with("UBSCORE__OUTCOMES__EVICT_EVERY_MS", 20)
        .with("UBSCORE__COORDINATOR__PARKED_MAX", 1)
        .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 100);
    let shards = |shards: u32| site.clone().with("UBSCORE__COORDINATOR__SHARDS", shards);
    let mut server = shards(2).start();
    for user in USER..=USER + 3 {
        server.deposit(user, "USDT", "100");
    }
    site.sql(
        "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS \
           $$ BEGIN RAISE EXCEPTION 'refused by a test'; END $$; \
         CREATE TRIGGER refuse BEFORE UPDATE ON transfers_tb FOR EACH ROW \
         WHEN (NEW.cid = 'stuck' AND NEW.state = 40) EXECUTE FUNCTION refuse()",
    );
    let stuck = Way::ToSpot.body_with_cid("USDT", "1", "stuck");
    assert!(server.post(USER, &stuck).status < 300);
    let is_refused = |server: &Server, user: u64| {
        let reply = server.transfer(user, Way::ToSpot, "0.1");
        assert!(reply.status < 300 || reply.json()["reason"] == "parked", "{reply:?}");
        reply.status >= 300
    };
    // Its worker has every second user.
    eventually("the refusal", || is_refused(&server, USER + 2).then_some(()));
    let raised = alerts::assert_raised(&server, &webhook, Alert::ParkedFull);
    let said = raised["message"].as_str().expect("text");
    assert!(said.contains("are open for more than journal.open_flights flights"), "{said}");
    assert!(!is_refused(&server, USER + 1), "another worker");
    let listed = || {
        site.sql_value(
            "SELECT count(*) FROM watermark_open JOIN transfers_tb \
                 ON open_old = ARRAY[order_number] AND open_from > order_number AND cid = 'stuck'",
        )
    };
    eventually("its number in the list", || (listed() == "1").then_some(()));
    for (count, other) in [(3, USER + 1), (1, USER), (2, USER + 1)] {
        server.kill();
        server = shards(count).start();
        assert!(is_refused(&server, USER + u64::from(count)), "{count} shards");
        assert_eq!(is_refused(&server, other), count == 1, "{count} shards");
        assert_eq!(listed(), "1", "{count} shards");
    }
    site.sql("DROP TRIGGER refuse ON transfers_tb");
    site.wait_for_rest();
    eventually("new work", || (!is_refused(&server, USER + 2)).then_some(()));
    eventually("an empty list", || {
        (site.sql_value("SELECT open_old FROM watermark_open") == "{}").then_some(())
    });
    site.assert_in_order(&server);
}

/// Goal: the table of bounds is complete and true. Method: each row has the default of
/// `config/ubscore.toml`, and each key there that ends in `_max` and is a number has a row.
#[test]
fn the_table_of_bounds_has_each_bound_with_its_default() {
    let read = |path: &str| {
        fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).expect("a file")
    };
    let text = read("docs/operating.md");
    let table = text.split("## Bounds\n").nth(1).expect("the chapter");
    let table = table.split("\n## ").next().expect("a first part");
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let mut said: BTreeMap<&str, &str> = rows.collect();
    let defaults: toml::Table = read("config/ubscore.toml").parse().expect("TOML");
    let mut keys: Vec<(String, &toml::Value)> = Vec::new();
    for (section, below) in
        defaults.iter().filter_map(|(name, keys)| Some((name, keys.as_table()?)))
    {
        for (key, value) in below {
            keys.push((format!("{section}.{key}"), value));
            // The sections below [txm].
            for (key_below, value) in value.as_table().into_iter().flatten() {
                keys.push((format!("{section}.{key}.{key_below}"), value));
            }
        }
    }
    for (name, value) in keys.iter().filter(|(_, value)| value.is_integer()) {
        let row = said.remove(name.as_str());
        assert!(row.is_some() || !name.ends_with("_max"), "{name} has no row");
        let is_said = row.is_none_or(|row| row.starts_with(&format!("{value} ")));
        assert!(is_said, "{name} is {value}, and not {row:?}");
    }
    let absent = ["http.connections_per_address_max"];
    assert_eq!(said.into_keys().collect::<Vec<_>>(), absent);
}
