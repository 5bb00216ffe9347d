//! Commits of PostgreSQL and syncs of UBSCore before the answer to a transaction.

use serde_json::{Value, json};

use super::desk::{Desk, Service, leg, legs};
use super::{A, B, part};
use crate::harness::Site;

/// Measurements of each row. The median counts: the service has commits of its own now and then.
const TIMES: usize = 7;
/// Keeps the id of each transaction of PostgreSQL that writes any table.
const KEEP_COMMITS: &str = "CREATE TABLE commits (id xid8 PRIMARY KEY); \
    CREATE FUNCTION keep_commit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      INSERT INTO commits VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING; RETURN NULL; \
    END $$; \
    DO $$ DECLARE name text; BEGIN \
      FOR name IN SELECT tablename FROM pg_tables \
                   WHERE schemaname = 'public' AND tablename <> 'commits' LOOP \
        EXECUTE format('CREATE TRIGGER keep_commit AFTER INSERT OR UPDATE OR DELETE ON %I \
                        FOR EACH STATEMENT EXECUTE FUNCTION keep_commit()', name); \
      END LOOP; \
    END $$";

/// Refuses what follows an answer, while there is a row in `blocked`: nothing of it is counted.
const BLOCK: &str = "CREATE TABLE blocked (); \
    CREATE FUNCTION block() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
      IF EXISTS (SELECT FROM blocked) THEN RAISE EXCEPTION 'it is being counted'; END IF; \
      RETURN NEW; END $$; \
    CREATE TRIGGER block BEFORE UPDATE ON transaction_branches FOR EACH ROW \
      WHEN (NEW.state = 40 AND NEW.participant IN ('FUNDING', 'SPOT')) \
      EXECUTE FUNCTION block()";

/// Commits that write, and syncs.
type Counts = (u64, u64);

fn count(desk: &Desk) -> Counts {
    let commits = desk.site().sql_value("SELECT count(*) FROM commits");
    let syncs = desk.server().metric("ubscore_wal_sync_seconds_count");
    (commits.parse().expect("a number"), syncs)
}

/// The counts of a step up to its answer, one measurement.
fn counted(desk: &Desk, step: impl FnOnce()) -> Counts {
    desk.site().sql("INSERT INTO blocked DEFAULT VALUES");
    let before = count(desk);
    step();
    let after = count(desk);
    desk.site().sql("DELETE FROM blocked");
    (after.0 - before.0, after.1 - before.1)
}

fn median(measured: &[Counts]) -> Counts {
    let middle = |mut values: Vec<u64>| {
        values.sort_unstable();
        values[values.len() / 2]
    };
    let (commits, syncs): (Vec<u64>, Vec<u64>) = measured.iter().copied().unzip();
    (middle(commits), middle(syncs))
}

/// The table of `docs/transactions.md`: commits and syncs of a row.
fn documented(row: &str) -> Counts {
    let text = include_str!("../../docs/transactions.md");
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let cells = text.lines().map(cells).find(|cells| cells.len() == 4 && cells[0] == row);
    let cells = cells.unwrap_or_else(|| panic!("the document has no row {row:?}"));
    (cells[1].parse().expect("commits"), cells[2].parse().expect("syncs"))
}

fn body(kind: &str, tx_id: &str) -> Value {
    let funding = leg("FUNDING", A, B, "0.01");
    let spot = leg("SPOT", B, A, "0.01");
    let mut body = json!({"tx_id": tx_id});
    body["legs"] = match kind {
        "FUNDING" => legs(&[funding]),
        "SPOT" => legs(&[spot]),
        _ => legs(&[funding, spot]),
    };
    match kind {
        "veto" => body["participants"] = json!([part("coupons")]),
        "last" => body["last"] = part("bank"),
        _ => {}
    }
    body
}

/// GTX-001. Goal: each kind of transaction takes the commits and syncs before its answer that the
/// document says. Method: PostgreSQL's and UBSCore's own counters around each one, on a quiet
/// server with one shard, some times; what follows the answer is refused until it is counted.
#[test]
fn gtx_001_each_kind_takes_the_commits_and_syncs_of_the_document() {
    let done = || Some(json!({"outcome": "done"}));
    let coupons = Service::start(move |_, _| done());
    let bank = Service::start(move |_, _| done());
    // The mark of an idle log takes a sync too.
    let site = Site::new()
        .with("UBSCORE__COORDINATOR__SHARDS", 1)
        .with("UBSCORE__ENGINE__IDLE_MARK_MS", 10_000);
    let desk = Desk::on(site, &[("COUPONS", "veto", &coupons), ("BANK", "last", &bank)]);
    desk.grant();
    desk.site().sql(KEEP_COMMITS);
    desk.site().sql(BLOCK);
    let mut wrong = Vec::new();
    let mut compare = |row: &str, measured: &[Counts]| {
        let (found, wanted) = (median(measured), documented(row));
        if found != wanted {
            wrong.push(format!("{row}: {found:?}, not {wanted:?}; measured {measured:?}"));
        }
    };
    for (kind, row) in [
        ("FUNDING", "FUNDING"),
        ("SPOT", "SPOT"),
        ("both", "FUNDING, SPOT"),
        ("veto", "FUNDING, SPOT, a participant with a veto"),
        ("last", "FUNDING, SPOT, a last participant"),
    ] {
        let mut measured = Vec::new();
        for number in 0..TIMES {
            let tx_id = format!("{kind}-{number}");
            let body = body(kind, &tx_id);
            measured.push(counted(&desk, || {
                let reply = desk.post("", &body);
                assert_eq!(reply.status, 200, "{reply:?}");
            }));
            desk.ends(&tx_id, "DONE");
        }
        compare(row, &measured);
    }
    let (mut prepares, mut commits, mut of_sql) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..2 * TIMES {
        let tx_id = format!("caller-{number}");
        let round = json!({"round": 1, "decide": "caller", "legs": body("both", "")["legs"]});
        prepares.push(counted(&desk, || {
            assert_eq!(desk.post(&format!("/{tx_id}/prepare"), &round).status, 200, "{tx_id}");
        }));
        let is_sql = number % 2 == 1;
        let ended = counted(&desk, || {
            if is_sql {
                desk.site().sql(&format!("SELECT transaction_commit('shop', '{tx_id}', 1)"));
            }
            assert_eq!(desk.post(&format!("/{tx_id}/commit"), &json!({})).status, 200, "{tx_id}");
        });
        if is_sql { &mut of_sql } else { &mut commits }.push(ended);
        desk.ends(&tx_id, "DONE");
    }
    compare("FUNDING, SPOT, the caller decides: prepare", &prepares);
    compare("the same: commit over HTTP", &commits);
    compare("the same: commit in SQL, with the caller's own", &of_sql);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    desk.close();
}
