//! The watermark: the outcomes that may be forgotten, the time for it, and their totals.

use std::thread;
use std::time::{Duration, Instant};

#[cfg(feature = "crash")]
use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use crate::harness::{
    COIN, Reply, Server, Site, Way, crowd, eventually, forgetful, logged, repair, text,
    wait_for_all_below, watermark, while_watched,
};

const USERS: [u64; 4] = [1001, 1002, 1003, 1004];
const USER: u64 = USERS[0];
const STAYING: u64 = 1_009;

/// Longer than that.
const LONGER_THAN_KEEP: Duration = Duration::from_millis(800);

fn number(site: &Site, statement: &str) -> u64 {
    site.sql_value(statement).parse().expect("a number")
}

/// The order number of a cid's transfer.
fn order_number(site: &Site, cid: &str) -> u64 {
    number(site, &format!("SELECT order_number FROM transfers WHERE cid = '{cid}'"))
}

/// Asserts that the totals are the sums of all rows below the watermark, beside any concurrent
/// work; and that totals and the rows above add up to the Funding balances.
fn assert_totals(site: &Site) {
    let wrong = site.sql(
        "WITH state AS (SELECT * FROM engine_state), \
         below AS (SELECT * FROM transfers_tb, state WHERE order_number < state.watermark), \
         rows AS ( \
           SELECT user_id, asset_id, amount AS fw, 0 AS fd, 0 AS fr, 0 AS sw, 0 AS sd, 0 AS sr, 0 AS ed, 0 AS ew \
             FROM below WHERE direction = 1 AND state IN (40, -30) \
           UNION ALL SELECT user_id, asset_id, 0, amount, 0, 0, 0, 0, 0, 0 FROM below WHERE direction = 2 AND state = 40 \
           UNION ALL SELECT user_id, asset_id, 0, 0, amount, 0, 0, 0, 0, 0 FROM below WHERE direction = 1 AND state = -30 \
           UNION ALL SELECT user_id, asset_id, 0, 0, 0, amount, 0, 0, 0, 0 FROM below WHERE direction = 2 AND state IN (40, -30) \
           UNION ALL SELECT user_id, asset_id, 0, 0, 0, 0, amount, 0, 0, 0 FROM below WHERE direction = 1 AND state = 40 \
           UNION ALL SELECT user_id, asset_id, 0, 0, 0, 0, 0, amount, 0, 0 FROM below WHERE direction = 2 AND state = -30 \
           UNION ALL SELECT user_id, asset_id, 0, 0, 0, 0, 0, 0, CASE op WHEN 4 THEN amount ELSE 0 END, CASE op WHEN 5 THEN amount ELSE 0 END \
             FROM external_operations, state WHERE order_number < state.watermark AND code IS NULL), \
         sums AS (SELECT user_id, asset_id, sum(fw) fw, sum(fd) fd, sum(fr) fr, sum(sw) sw, sum(sd) sd, sum(sr) sr, \
                         sum(ed) ed, sum(ew) ew FROM rows GROUP BY 1, 2) \
         SELECT user_id, asset_id, sums, totals FROM sums FULL JOIN watermark_totals AS totals USING (user_id, asset_id) \
          WHERE (fw, fd, fr, sw, sd, sr, ed, ew) IS DISTINCT FROM \
                (funding_withdrawn, funding_deposited, funding_refunded, spot_withdrawn, spot_deposited, spot_refunded, \
                 external_deposited, external_withdrawn)",
    );
    assert_eq!(wrong, Vec::<Vec<String>>::new(), "user, asset, rows, totals");
    let wrong = site.sql(
        "WITH state AS (SELECT * FROM engine_state), \
         moves AS ( \
           SELECT user_id, asset_id, funding_deposited + funding_refunded + external_deposited \
                                     - funding_withdrawn - external_withdrawn AS amount FROM watermark_totals \
           UNION ALL SELECT o.user_id, o.asset_id, CASE op WHEN 1 THEN -o.amount ELSE o.amount END \
             FROM transfer_decisions o, state \
            WHERE code IS NULL AND o.order_number >= state.watermark \
           UNION ALL SELECT user_id, asset_id, CASE op WHEN 5 THEN -amount ELSE amount END \
             FROM external_operations, state WHERE code IS NULL AND order_number >= state.watermark), \
         sums AS (SELECT user_id, asset_id, sum(amount) AS amount FROM moves GROUP BY 1, 2) \
         SELECT user_id, asset_id, amount, available FROM sums FULL JOIN balances_tb USING (user_id, asset_id) \
          WHERE COALESCE(amount, 0) <> COALESCE(available, 0)",
    );
    assert_eq!(wrong, Vec::<Vec<String>>::new(), "user, asset, sum, balance");
}

/// Money on both sides for all users, without open transfers.
fn endow(site: &Site, server: &Server) {
    for user in USERS {
        server.deposit(user, "USDT", "1000");
        let reply = server.transfer(user, Way::ToSpot, "500");
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    site.wait_for_rest();
}

/// One transfer of a load: its user, the body with its cid, and its answer.
struct Answered {
    user: u64,
    body: Value,
    reply: Option<Reply>,
}

/// A load of `count` transfers, both ways, some of them refused.
fn load(server: &Server, generation: usize, count: usize) -> Vec<Answered> {
    const CALLERS: usize = 8;
    let answers = crowd(CALLERS, |caller| {
        let of_caller = (0..count).skip(caller).step_by(CALLERS);
        let post = |index: usize| {
            let user = USERS[index % USERS.len()];
            let way = Way::BOTH[index / USERS.len() % 2];
            let amount = if index % 11 == 10 { "100000" } else { "0.01" };
            let cid = format!("generation-{generation}-{index}");
            let body = way.body_with_cid("USDT", amount, &cid);
            let reply = server.try_ask(user, "POST", "/api/v1/internal_transfer", Some(&body));
            Answered { user, body, reply: reply.ok() }
        };
        of_caller.map(post).collect::<Vec<_>>()
    });
    answers.into_iter().flatten().collect()
}

/// Asserts that each cid still leads to its transfer, and that a final answer is repeated.
fn assert_remembered(server: &Server, answers: &[Answered]) {
    const CALLERS: usize = 4;
    crowd(CALLERS, |caller| {
        for answer in answers.iter().skip(caller).step_by(CALLERS) {
            assert_one_remembered(server, answer);
        }
    });
}

fn assert_one_remembered(server: &Server, answer: &Answered) {
    let Answered { user, body, reply } = answer;
    let now = server.post(*user, body);
    assert!(now.status == 200 || now.status == 422, "{body}: {now:?}");
    let again = server.post(*user, body);
    assert_eq!(again.header("idempotent-replayed"), Some("true"), "{body}");
    assert_eq!(again.req_id(), now.req_id(), "{body}");
    if let Some(reply) = reply.as_ref().filter(|reply| [200, 422].contains(&reply.status)) {
        assert_eq!(reply.status, now.status, "{body}: {reply:?} {now:?}");
        for field in ["req_id", "state", "code"] {
            assert_eq!(reply.json()[field], now.json()[field], "{body}");
        }
    }
    let seen = server.look(*user, &now.req_id());
    assert_eq!(seen["state"], json!(if now.status == 200 { "COMMITTED" } else { "FAILED" }));
}

/// Goal: ten generations of outcomes come and go, and all sums hold throughout. Method: rounds of
/// load beside reads of balances. Each round takes about a third of the places of the outcome map.
/// There are kills between the rounds, and once PostgreSQL is away for longer than outcomes are
/// kept. After each round the watermark passes everything, UBSCore remembers no outcome, and the
/// totals are the sums of the rows.
#[test]
fn ten_generations_come_and_go_and_every_unit_and_cid_stays() {
    const GENERATIONS: usize = 10;
    const COUNT: usize = 240;
    let site = forgetful(Site::new()).with("UBSCORE__ENGINE__OUTCOMES_MAX", 1_024);
    let mut server = site.start();
    endow(&site, &server);
    let want = USERS.map(|user| server.usdt(user).sum());
    let mut all = Vec::new();
    let mut before = 0;
    for generation in 0..GENERATIONS {
        let look = || {
            for (user, want) in USERS.iter().zip(want) {
                // If the machine stood still for longer than outcomes are kept, there is no answer.
                let reply = server.get(*user, "/api/v1/balances");
                match reply.status {
                    200 => assert_eq!(reply.balances()["USDT"].sum(), want, "{reply:?}"),
                    status => assert_eq!(status, 503, "{reply:?}"),
                }
            }
        };
        all.extend(while_watched(1, look, || load(&server, generation, COUNT)));
        if generation % 3 == 1 {
            server.kill();
            server = site.start();
        }
        if generation == 4 {
            site.admit_connections(false);
            thread::sleep(LONGER_THAN_KEEP);
            site.admit_connections(true);
            eventually("PostgreSQL to be found again", || {
                (server.get(USER, "/api/v1/balances").status == 200).then_some(())
            });
        }
        assert_totals(&site);
        site.wait_for_rest();
        wait_for_all_below(&site);
        assert!(watermark(&site) > before, "generation {generation}");
        before = watermark(&site);
        assert_totals(&site);
        site.assert_in_order(&server);
        eventually("the gauges", || {
            let metrics = server.admin("GET", "/metrics", &Value::Null).body;
            let served = |line: &str| metrics.lines().any(|other| other == line);
            let stands = format!("ubscore_watermark {}", watermark(&site));
            (served(&stands) && served("ubscore_outcomes 0")).then_some(())
        });
    }
    server.kill();
    let server = site.start();
    assert_eq!(logged(&site), Some(watermark(&site)));
    assert_remembered(&server, &all);
    site.wait_for_rest();
    site.assert_in_order(&server);
    assert_totals(&site);
}

/// Goal: the watermark never passes an open transfer. Method: PostgreSQL refuses one transfer's
/// final write for a while, so that it stays open; load, kill and restart around it; then the write
/// is admitted.
#[test]
fn a_transfer_that_is_not_over_is_never_passed() {
    for fuse in [true, false] {
        let site = forgetful(Site::fused(fuse));
        let server = site.start();
        endow(&site, &server);
        site.sql(
            "CREATE FUNCTION stay() RETURNS TRIGGER LANGUAGE plpgsql AS $$ \
             BEGIN RAISE EXCEPTION 'stays' USING ERRCODE = '55P03'; END $$; \
             CREATE TRIGGER stay BEFORE UPDATE OF state ON transfers_tb FOR EACH ROW \
             WHEN (NEW.cid = 'stays' AND NEW.state = 40) EXECUTE FUNCTION stay()",
        );
        let body = Way::ToSpot.body_with_cid("USDT", "7", "stays");
        // It has a user of its own, because the user's other calls wait behind it.
        server.deposit(STAYING, "USDT", "10");
        let reply = server.post(STAYING, &body);
        assert_eq!(reply.json()["state"], json!("COMMITTED"), "UBSCore has decided: {reply:?}");
        let stays = order_number(&site, "stays");
        let mut all = load(&server, 0, 24);
        eventually("the watermark before it", || (watermark(&site) == stays).then_some(()));
        server.kill();
        let server = site.start();
        all.extend(load(&server, 1, 24));
        // Enough rounds to have passed it several times.
        let sightings = "SELECT max(order_number) FROM watermark_sightings";
        let seen = number(&site, sightings);
        assert!(seen <= stays, "{seen} {stays}");
        let lived = number(&site, "SELECT before_ms + lived_ms FROM watermark_clock");
        eventually("three times the keep time", || {
            let now = number(&site, "SELECT before_ms + lived_ms FROM watermark_clock");
            assert_eq!(watermark(&site), stays);
            (now > lived + 1_100).then_some(())
        });
        assert_eq!(number(&site, sightings), stays);
        assert_totals(&site);
        assert_eq!(
            server.look(STAYING, text(&reply.json()["req_id"]))["state"],
            json!("COMMITTED")
        );
        site.sql("DROP TRIGGER stay ON transfers_tb");
        site.wait_for_rest();
        wait_for_all_below(&site);
        assert_totals(&site);
        assert_remembered(&server, &all);
        site.assert_in_order(&server);
        server.stop();
    }
}

/// Goal: no stamp advances the watermark. Method: the keep time is an hour, and rows are stamped a
/// year ago (the clock ran back) or in a year (it ran ahead); the watermark stays until the process
/// has lived through that hour.
#[test]
fn a_stepped_clock_never_advances_the_watermark() {
    let site = forgetful(Site::new()).with("UBSCORE__OUTCOMES__KEEP_HOURS", 1);
    let server = site.start();
    endow(&site, &server);
    let before = watermark(&site);
    let all = load(&server, 1, 16);
    site.wait_for_rest();
    site.sql(
        "UPDATE transfers_tb SET updated_at = updated_at \
             + (CASE order_number % 2 WHEN 0 THEN 1 ELSE -1 END) * interval '1 year'",
    );
    let lived = "SELECT lived_ms FROM watermark_clock";
    let now = number(&site, lived);
    eventually("some rounds", || (number(&site, lived) > now + 500).then_some(()));
    assert_eq!(watermark(&site), before);
    assert_remembered(&server, &all);
    site.assert_in_order(&server);
}

/// Goal: a read of balances that takes longer than outcomes are kept is refused, not wrong. Method:
/// the read waits for a table, while the watermark passes the read's assumed oldest order.
#[test]
fn a_read_that_is_overtaken_by_the_watermark_is_refused() {
    let site = forgetful(Site::new())
        .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 60_000)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 60_000);
    let server = site.start();
    endow(&site, &server);
    wait_for_all_below(&site);
    let before = watermark(&site);
    let lock = site.session();
    lock.sql("BEGIN; LOCK TABLE accounts_tb IN ACCESS EXCLUSIVE MODE");
    let reply = thread::scope(|scope| {
        let read = scope.spawn(|| server.get(USER, "/api/v1/balances"));
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted \
                       AND relation = 'accounts_tb'::regclass";
        let session = site.session();
        eventually("the read to wait", || (session.sql(waiting)[0][0] != "0").then_some(()));
        // As after one more transfer. A real one would wait for the table too.
        session.sql(&format!("UPDATE engine_state SET watermark = {}", before + 1));
        let stands = Some(watermark(&site));
        eventually("the log's watermark", || (logged(&site) >= stands).then_some(()));
        lock.sql("COMMIT");
        read.join().expect("no panic")
    });
    assert_eq!(reply.status, 503, "{reply:?}");
    // The next incarnation gives out higher numbers.
    server.stop();
    let server = site.start();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: only time that a process has lived through counts, over restarts, and a lost answer counts
/// nothing twice. Method: PostgreSQL's own function, with possible times of processes.
#[test]
fn sightings_ripen_by_lived_time_over_restarts() {
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    session.sql(
        "DELETE FROM watermark_sightings; UPDATE watermark_clock SET incarnation = 0, before_ms = 0, lived_ms = 0; \
         UPDATE engine_state SET incarnation = 5",
    );
    let observe = |incarnation: u64, number: &str, lived_ms: u64| {
        let call = format!("SELECT watermark_observe({incarnation}, {number}, {lived_ms}, 1000)");
        session.sql(&call)[0][0].parse::<u64>().expect("a number")
    };
    for (incarnation, number, lived_ms, ripe) in [
        (5, "100", 0, 0),
        (5, "200", 500, 0),
        // A repeat, and a late call.
        (5, "200", 500, 0),
        (5, "150", 100, 0),
        (5, "NULL", 999, 0),
        (5, "NULL", 1_000, 100),
        (5, "NULL", 1_000, 100),
    ] {
        assert_eq!(observe(incarnation, number, lived_ms), ripe, "{number} at {lived_ms}");
    }
    session.sql("UPDATE engine_state SET incarnation = 6");
    let old = "SELECT watermark_observe(5, 900, 9000, 1000)";
    assert_eq!(session.sql_refused(old), "UB001");
    for (number, lived_ms, ripe) in
        [("300", 0, 100), ("NULL", 499, 100), ("NULL", 500, 200), ("NULL", 999, 200)]
    {
        assert_eq!(observe(6, number, lived_ms), ripe, "{number} at {lived_ms}");
    }
    session.sql("UPDATE engine_state SET incarnation = 8");
    assert_eq!(observe(8, "NULL", 0), 200);
    assert_eq!(observe(8, "NULL", 1), 300);
    // After any number of calls the table stays small.
    for step in 0..3_000 {
        observe(8, &format!("{}", 1_000 + step), 1 + step);
    }
    let count = session.sql("SELECT count(*) FROM watermark_sightings")[0][0].clone();
    assert!(count.parse::<u64>().expect("a number") < 400, "{count}");
}

/// Goal: PostgreSQL itself raises only the allowed values, and refuses lower ones. Method: its
/// functions, called with a broken caller's arguments.
#[test]
fn postgresql_holds_the_watermark_by_itself() {
    let site = Site::new();
    let server = site.start();
    endow(&site, &server);
    assert_eq!(server.transfer(USER, Way::ToFunding, "1000000").status, 422);
    site.wait_for_rest();
    server.stop();
    let session = site.session();
    session.sql("UPDATE engine_state SET incarnation = 50");
    let last = number(&site, "SELECT max(order_number) FROM transfers");
    let raise = |incarnation: u64, target: u64, keep_ms: u64, rows: u32| {
        format!(
            "SELECT o_watermark, o_more FROM watermark_raise({incarnation}, {target}, {keep_ms}, {rows})"
        )
    };
    assert_eq!(session.sql_refused(&raise(49, last, 0, 10)), "UB001");
    // During a halt no outcome is forgotten.
    session.sql("UPDATE engine_state SET halted = TRUE");
    let state = "SELECT watermark FROM engine_state";
    let before = session.sql(state);
    session.sql(&raise(50, last + 1, 0, 10));
    assert_eq!(session.sql(state), before);
    session.sql("UPDATE engine_state SET halted = FALSE");
    // Not old enough by the server's clock.
    let first = number(&site, "SELECT min(order_number) FROM transfers");
    assert_eq!(session.sql(&raise(50, last + 1, 3_600_000, 10))[0][0], first.to_string());
    // A page at a time, and never back.
    let mut pages = 0;
    loop {
        let row = session.sql(&raise(50, last + 1, 0, 2))[0].clone();
        assert_totals(&site);
        pages += 1;
        if row[1] == "f" {
            assert_eq!(row[0], (last + 1).to_string());
            break;
        }
    }
    assert!(pages > 2, "{pages}");
    assert_eq!(session.sql(&raise(50, first, 0, 10))[0][0], (last + 1).to_string());
    assert_eq!(watermark(&site), last + 1);
    let totals = "SELECT sum(spot_deposited) FROM watermark_totals";
    assert_eq!(session.sql(totals)[0][0], "200000000000");
    // A flight with a number below it writes nothing.
    let late = "SELECT flight_guard(1, 1, 0, 0, 0, 0, 0, 0, 0, 0)";
    assert_eq!(session.sql_refused(late), "UB003");
    // No lock of a process that goes on delays it.
    let batch = site.session();
    batch.sql("BEGIN; SELECT 1 FROM engine_state WHERE incarnation = 50 FOR KEY SHARE");
    assert_eq!(session.sql(&raise(50, last + 2, 0, 10))[0][0], (last + 2).to_string());
    batch.sql("COMMIT");
    assert_totals(&site);
    site.assert_verified();
}

/// Goal: the watermark passes more transfers in a round than come in the time between two rounds at
/// the best rate. Method: pages of the largest size over 120,000 rows, as a round has them; it
/// prints the rate.
#[test]
fn a_page_of_the_watermark_passes_fifty_thousand_transfers() {
    const ROWS: u64 = 120_000;
    const PAGE: u64 = 50_000;
    let site = Site::new();
    site.start().stop();
    let session = site.session();
    session.sql("UPDATE engine_state SET incarnation = 50, watermark = 49::bigint << 40");
    session.sql(&format!(
        "INSERT INTO transfers_tb (order_number, req_id, user_id, asset_id, amount, direction, state, \
                                   updated_at) \
         SELECT (49::bigint << 40) + n, lpad(n::text, 32, '0')::uuid, 1000 + n % 1000, 3, 3, \
                1 + n % 2, 40, clock_timestamp() - interval '1 hour' \
           FROM generate_series(1, {ROWS}) AS n"
    ));
    let first = (49 << 40) + 1;
    let began = Instant::now();
    for page in 1..=ROWS.div_ceil(PAGE) {
        let raise =
            format!("SELECT o_watermark FROM watermark_raise(50, {}, 60000, {PAGE})", first + ROWS);
        let stands: u64 = session.sql(&raise)[0][0].parse().expect("a number");
        assert_eq!(stands, first + ROWS.min(page * PAGE));
    }
    println!("{ROWS} transfers passed in {:?}", began.elapsed());
    let totals = "SELECT sum(spot_deposited), sum(spot_withdrawn) FROM watermark_totals";
    assert_eq!(session.sql(totals), [["180000", "180000"]]);
}

/// Goal: a transfer that a restored database has lost and UBSCore has forgotten is found by its
/// records in the log, and repaired from them. Method: transfers both ways after a copy of the
/// database, forgotten; the copy replaces the database.
#[test]
fn what_a_database_has_lost_and_ubscore_has_forgotten_is_found_and_repaired() {
    let site = forgetful(Site::new());
    let server = site.start();
    endow(&site, &server);
    wait_for_all_below(&site);
    server.stop();
    let restored = site.with_copied_database();
    let server = site.start();
    let lost = Way::BOTH.map(|way| server.transfer(USER, way, "2.5"));
    wait_for_all_below(&site);
    let balance = server.usdt(USER);
    server.stop();

    let (code, said) = restored.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(lost.iter().all(|reply| said.contains(&reply.req_id())), "{said}");
    let (code, done, why) = repair(&restored, &["--apply", "--reason", "a backup was restored"]);
    assert_eq!(code, Some(0), "{done}{why}");
    assert_eq!(done.matches("write it again as COMMITTED").count(), 2, "{done}");
    let server = restored.start();
    assert_eq!(server.ready(), 200);
    restored.wait_for_rest();
    assert_eq!(server.usdt(USER), balance);
    wait_for_all_below(&restored);
    restored.assert_in_order(&server);
}

/// A death between the two raises leaves the log's watermark behind PostgreSQL's: the next start
/// raises it.
#[test]
fn a_watermark_that_only_postgresql_has_reaches_the_log_at_the_start() {
    let site = forgetful(Site::new());
    let server = site.start();
    endow(&site, &server);
    wait_for_all_below(&site);
    server.stop();
    let above = watermark(&site) + 1;
    site.sql(&format!("UPDATE engine_state SET watermark = {above}"));
    let server = site.start();
    eventually("the log's watermark", || (logged(&site) >= Some(above)).then_some(()));
    assert_eq!(server.usdt(USER).spot, Some(500 * COIN));
    site.assert_in_order(&server);
}

/// Goal: a death anywhere in the raise loses nothing and leaves the two stores consistent. Method:
/// at each point, before and after PostgreSQL and after the log, at the first and a later visit;
/// restart; the watermark rises again.
#[cfg(feature = "crash")]
#[test]
fn a_death_at_every_point_of_raising_the_watermark_is_recovered_from() {
    let site = forgetful(Site::new());
    let mut server = site.start();
    endow(&site, &server);
    let mut all = Vec::new();
    for (index, &point) in ubscore::crash::WATERMARK_POINTS.iter().enumerate() {
        for visit in 1..=2 {
            server.stop();
            let armed = site.clone().with("UBSCORE_CRASH", format!("{point}={visit}"));
            let (status, said) = match Server::try_start(armed.command()) {
                // It first reads the log's watermark.
                Err(ended) => ended,
                Ok(mut dying) => {
                    let mut generation = 100 * index + 10 * visit;
                    eventually("the server's death", || {
                        if !dying.has_ended() {
                            all.extend(load(&dying, generation, 4));
                            generation += 1;
                        }
                        dying.has_ended().then_some(())
                    });
                    dying.wait()
                }
            };
            assert_eq!(status.signal(), Some(9), "{point}, visit {visit}: {said}");
            server = site.start();
            let logged = logged(&site).unwrap_or(0);
            assert!(logged <= watermark(&site), "{point}: PostgreSQL comes first");
            site.wait_for_rest();
            wait_for_all_below(&site);
            assert_totals(&site);
            site.assert_in_order(&server);
        }
    }
    assert_remembered(&server, &all);
    site.wait_for_rest();
    site.assert_in_order(&server);
}
