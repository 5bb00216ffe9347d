//! Bounds: places, the reach of a wrong clock, the limits of a day.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{
    COIN, Endpoint, Server, Site, Way, assert_refused, crowd, eventually, forgetful, logged, now_s,
    wait_for_all_below, watermark,
};

const USER: u64 = 1001;

/// Stamps transfers with these cids like a clock that is ahead by `ahead`.
fn stamp_ahead(site: &Site, cid_prefix: &str, ahead: &str) {
    site.sql(&format!(
        "CREATE FUNCTION stamp_ahead() RETURNS TRIGGER LANGUAGE plpgsql AS $$ \
         BEGIN \
           NEW.updated_at := clock_timestamp() + interval '{ahead}'; \
           IF TG_OP = 'INSERT' THEN NEW.created_at := NEW.updated_at; END IF; \
           RETURN NEW; \
         END $$; \
         CREATE TRIGGER stamp_ahead BEFORE INSERT OR UPDATE ON transfers_tb FOR EACH ROW \
         WHEN (NEW.cid LIKE '{cid_prefix}%') EXECUTE FUNCTION stamp_ahead()"
    ));
}

/// Posts until the answer is not 503.
fn post(server: &Server, user: u64, body: &Value) -> crate::harness::Reply {
    eventually("an answer", || {
        let reply = server.post(user, body);
        (reply.status != 503).then_some(reply)
    })
}

/// Goal: transfers that ended while PostgreSQL's clock was a year ahead do not delay the watermark.
/// Method: a trigger stamps three of them so; the watermark passes them, also with a kill between,
/// and the alert names the stamps.
#[test]
fn f04_a_clock_that_was_ahead_does_not_hold_the_watermark() {
    let site = forgetful(Site::new());
    let server = site.start();
    stamp_ahead(&site, "ahead", "1 year");
    for number in 0..3 {
        let body = Way::ToSpot.body_with_cid("USDT", "1", &format!("ahead-{number}"));
        assert_eq!(server.post(USER, &body).status, 200);
    }
    assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 200);
    site.wait_for_rest();
    server.says("alert=\"clock_ahead\"");
    server.kill();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    wait_for_all_below(&site);
    assert_eq!(logged(&site), Some(watermark(&site)));
    let ahead = "SELECT count(*) FROM transfers WHERE updated_at > clock_timestamp()";
    assert_eq!(site.sql_value(ahead), "3");
    site.assert_in_order(&server);
}

/// Goal: rows of the journal from a time when a clock was a year ahead are deleted like others, and
/// none too soon. Method: their stamps are moved a year ahead; they stay until processes have lived
/// for the keep time, and then go.
#[test]
fn f04_events_of_a_clock_that_was_ahead_are_purged() {
    let site = Site::new().with("UBSCORE__EVENTS__KEEP_HOURS", 0.000_05);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    server.stop();
    site.sql("UPDATE journal_tb SET at = at + interval '1 year'");
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    // The service leaves more rows.
    let trim = |keep_ms: u32| {
        let old = format!(
            "SELECT COALESCE(max(event_id) + 1, 0) FROM events_sightings, watermark_clock \
              WHERE seen_ms <= before_ms + lived_ms - {keep_ms}"
        );
        site.sql_value(&format!("SELECT journal_trim(({old}), 0, 0, 1000)"))
    };
    assert_eq!(trim(3_600_000), "0", "no process has lived for an hour");
    let ahead = "SELECT count(*) FROM journal_tb WHERE at > clock_timestamp() AND event_count > 0";
    assert_ne!(site.sql_value(ahead), "0");
    eventually("the deletion of the rows", || {
        trim(180);
        (site.sql_value(ahead) == "0").then_some(())
    });
    let shards = "SELECT count(*) FROM journal_last";
    assert_ne!(site.sql_value(shards), "0", "the last row of each shard stays");
    server.stop();
}

/// Goal: a delivery with a next try that was set while PostgreSQL's clock was a year ahead is tried
/// now. Method: its endpoint refuses, its turn is moved a year ahead, and the endpoint takes it.
#[test]
fn f04_a_delivery_of_a_clock_that_was_ahead_is_tried() {
    let refuse = Arc::new(AtomicBool::new(true));
    let refusing = Arc::clone(&refuse);
    let endpoint =
        Endpoint::start(move |_| if refusing.load(Ordering::Relaxed) { 503 } else { 200 });
    let site = Site::new()
        .with("UBSCORE__WEBHOOKS__URL", endpoint.url())
        .with("UBSCORE__WEBHOOKS__SECRET", "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=")
        .with("UBSCORE__WEBHOOKS__BACKOFF_BASE_MS", 10)
        .with("UBSCORE__WEBHOOKS__BACKOFF_CAP_MS", 100);
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    eventually("a refused try", || (!endpoint.delivered().is_empty()).then_some(()));
    server.kill();
    site.sql(
        "UPDATE webhook_deliveries SET next_at = next_at + interval '1 year' WHERE next_at IS NOT NULL",
    );
    refuse.store(false, Ordering::Relaxed);
    let server = site.start();
    let open = "SELECT count(*) FROM webhook_deliveries WHERE status = 1";
    eventually("every delivery", || (site.sql_value(open) == "0").then_some(()));
    server.stop();
}

/// Goal: a transfer accepted while PostgreSQL's clock was a day ahead does not disable the limit of
/// the real day. Method: the limit is 5; one of them is stamped a day ahead, then 20 more are
/// posted, and again after a kill.
#[test]
fn f15_a_clock_that_was_a_day_ahead_leaves_the_limits_of_the_day() {
    const LONGEST_S: u64 = 50;
    eventually("the next day", || (86_400 - now_s() % 86_400 > LONGEST_S).then_some(()));
    let site = Site::new().with("UBSCORE__LIMITS__USER_TRANSFERS_PER_DAY_MAX", 5);
    let mut server = site.start();
    stamp_ahead(&site, "ahead", "1 day");
    let body = Way::ToSpot.body_with_cid("USDT", "1", "ahead");
    assert_eq!(post(&server, USER, &body).status, 200);
    let mut accepted = 0;
    for round in 0..2 {
        for number in 0..10 {
            let cid = format!("today-{round}-{number}");
            let reply = post(&server, USER, &Way::ToSpot.body_with_cid("USDT", "1", &cid));
            match reply.status {
                200 => accepted += 1,
                _ => assert_refused(&reply, 429, "DAILY_LIMIT_EXCEEDED"),
            }
        }
        // The first one counts by the process's own clock until the restart, then by its stamp.
        assert_eq!(accepted, 4 + round, "round {round}");
        site.wait_for_rest();
        server.kill();
        server = site.start();
    }
    let today = "SELECT count(*) FROM transfers WHERE created_at <= clock_timestamp()";
    assert_eq!(json!(site.sql_value(today)), json!("5"));
    site.assert_conserved(&server);
}

/// Goal: a full table of accounts takes no money that it cannot place, and stops neither other
/// users nor an operator. Method: 64 accounts; new users until one is refused, and a transfer that
/// loses its place while its accept waits.
#[test]
fn f05_a_full_table_of_accounts_refuses_before_money_moves_and_refunds_after() {
    const FIRST: u64 = 5_000;
    const LATE: u64 = 6_000;
    let site = Site::new().with("UBSCORE__ENGINE__ACCOUNTS_MAX", 64);
    let server = site.start();
    let taken = (FIRST..FIRST + 70)
        .take_while(|&user| {
            server.deposit(user, "USDT", "10");
            let reply = server.transfer(user, Way::ToSpot, "10");
            assert!(reply.status == 200 || reply.status == 503, "{reply:?}");
            reply.status == 200
        })
        .count();
    assert_eq!(taken, 64, "each account is used");
    let refused = FIRST + taken as u64;
    let reply = server.transfer(refused, Way::ToSpot, "10");
    assert_refused(&reply, 503, "OVERLOADED");
    let none = format!("SELECT count(*) FROM transfers WHERE user_id = {refused}");
    assert_eq!(site.sql_value(&none), "0", "nothing was accepted");
    assert_eq!(server.transfer(FIRST, Way::ToFunding, "10").status, 200);
    assert_eq!(server.transfer(FIRST, Way::ToSpot, "10").status, 200, "it has its account");
    assert_eq!(server.metric("ubscore_accounts"), taken as u64);
    assert_eq!(server.metric("ubscore_accounts_max"), 64);
    server.kill();

    // Its place is taken while its accept waits; freezing still finds places.
    let site = site.with("UBSCORE__ENGINE__ACCOUNTS_MAX", 96).with("UBSCORE__ALERT__REPEAT_MS", 10);
    let server = site.start();
    server.deposit(LATE, "USDT", "10");
    let hold = site.hold("INSERT ON transfers_tb", &format!("NEW.user_id = {LATE}"));
    let reply = std::thread::scope(|scope| {
        let late = scope
            .spawn(|| server.post_ended(LATE, &Way::ToSpot.body_with_cid("USDT", "10", "late")));
        site.wait_for_held();
        for user in 7_000..7_000 + 96 - taken as u64 {
            server.set_status(user, "SPOT", "FROZEN");
        }
        server.says("alert=\"places_low\"");
        assert_eq!(server.metric("ubscore_accounts"), 96);
        server.set_status(8_000, "SPOT", "DISABLED");
        hold.release();
        late.join().expect("no panic")
    });
    assert_refused(&reply, 422, "OVERLOADED");
    assert_eq!(reply.json()["state"], json!("ROLLED_BACK"));
    assert_eq!(server.balances(LATE)["USDT"].sum(), 10 * COIN);
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.kill();

    // The refusal is in the log: with any number of places it stays one.
    let site = site.with("UBSCORE__ENGINE__ACCOUNTS_MAX", 10_000);
    let server = site.start();
    let again = server.post(LATE, &Way::ToSpot.body_with_cid("USDT", "10", "late"));
    assert_refused(&again, 422, "OVERLOADED");
    assert_eq!(server.transfer(LATE, Way::ToSpot, "10").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: refusals cost their user nothing and take places in the outcome map for a day, and still
/// all users with money are served. Method: users without accounts post until they are refused
/// beforehand; one with money continues, both ways.
#[test]
fn f10_free_refusals_leave_a_share_of_the_outcome_map_to_users_with_money() {
    let site = Site::new().with("UBSCORE__ENGINE__OUTCOMES_MAX", 1_024);
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
    let free = crowd(8, |caller| {
        let user = 9_000 + caller as u64;
        (0..1_024)
            .take_while(|_| {
                let reply = server.transfer(user, Way::ToFunding, "1");
                match reply.status {
                    422 => assert_refused(&reply, 422, "SOURCE_ACCOUNT_NOT_FOUND"),
                    _ => assert_refused(&reply, 503, "OVERLOADED"),
                }
                reply.status == 422
            })
            .count()
    });
    let free: usize = free.into_iter().sum();
    assert!((512..960).contains(&free), "{free} refusals are held");
    for _ in 0..10 {
        assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 200);
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    }
    assert_refused(&server.transfer(9_000, Way::ToFunding, "1"), 503, "OVERLOADED");
    // A user with an account and too little money is not one of them either.
    assert_refused(&server.transfer(USER, Way::ToFunding, "1000"), 503, "OVERLOADED");
    site.wait_for_rest();
    site.assert_in_order(&server);
}
