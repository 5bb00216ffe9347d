//! Events posted to an endpoint: signed, at least once, in order per transfer, including every
//! refusal of the endpoint.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use serde_json::json;
use ubscore::events::webhooks::ENDPOINT;

use crate::harness::{
    Delivered, Endpoint, Part, Server, Site, Way, assert_refused, cli, eventually, repair, said,
    split_mix, text,
};

const USER: u64 = 1001;
/// "an endpoint's secret, 32 bytes.." in base64.
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

/// Events below it are older than a keep time of 360 ms.
const LAST_SEEN: &str = "(SELECT COALESCE(max(event_id) + 1, 0) FROM events_sightings, watermark_clock \
     WHERE seen_ms <= before_ms + lived_ms - 360)";

/// A site with a webhook endpoint and short timeouts.
fn site(endpoint: &Endpoint) -> Site {
    site_of(Site::new(), endpoint)
}

fn site_of(site: Site, endpoint: &Endpoint) -> Site {
    site.with("UBSCORE__WEBHOOKS__URL", endpoint.url())
        .with("UBSCORE__WEBHOOKS__SECRET", SECRET)
        .with("UBSCORE__WEBHOOKS__BACKOFF_BASE_MS", 10)
        .with("UBSCORE__WEBHOOKS__BACKOFF_CAP_MS", 100)
        .with("UBSCORE__WEBHOOKS__TIMEOUT_MS", 30_000)
}

/// The number of events, and the number of delivered ones.
fn all_delivered(site: &Site) -> Option<()> {
    let rows = site.sql(
        "SELECT (SELECT count(*) FROM transfer_history), \
                (SELECT count(*) FROM webhook_deliveries WHERE status = 2)",
    );
    (rows[0][0] == rows[0][1]).then_some(())
}

/// Asserts that each transfer's events came in order: none before the one ahead of it was taken or
/// given up.
fn assert_in_order(delivered: &[Delivered]) {
    let mut by_transfer: BTreeMap<String, Vec<&Delivered>> = BTreeMap::new();
    for delivery in delivered {
        by_transfer.entry(delivery.req_id()).or_default().push(delivery);
    }
    for deliveries in by_transfer.values() {
        let number = |delivery: &Delivered| delivery.id.parse::<i64>().expect("a number");
        for pair in deliveries.windows(2) {
            let (one, next) = (pair[0], pair[1]);
            assert!(number(one) <= number(next), "{one:?} and then {next:?}");
            assert!(one.status == 200 || one.id == next.id, "{one:?} was passed over: {next:?}");
        }
    }
}

/// Goal: a delivery equals the stream's event, with a stable id and a signature that a receiver can
/// check. Method: the check of Standard Webhooks' own library, independent of the sender's code;
/// and a changed body.
#[test]
fn a_delivery_is_signed_and_says_what_a_stream_says() {
    let endpoint = Endpoint::start(|_| 200);
    let site = site(&endpoint);
    let server = site.start();
    let stream = server.follow(USER, None);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1.5").status, 200);
    let streamed: BTreeMap<String, _> = [stream.transfer(), stream.transfer()].into();
    eventually("both events", || (endpoint.delivered().len() >= 2).then_some(()));
    let verifier = standardwebhooks::Webhook::new(SECRET).expect("a secret");
    for delivery in endpoint.delivered() {
        assert_eq!(delivery.json(), streamed[&delivery.id]);
        let mut headers = hyper::HeaderMap::new();
        for (name, value) in [
            ("webhook-id", &delivery.id),
            ("webhook-timestamp", &delivery.timestamp),
            ("webhook-signature", &delivery.signature),
        ] {
            headers.insert(name, value.parse().expect("a header's value"));
        }
        verifier.verify(delivery.body.as_bytes(), &headers).expect("rightly signed");
        let other = delivery.body.replace("1.5", "9.5");
        assert!(verifier.verify(other.as_bytes(), &headers).is_err());
    }
    eventually("the record of the deliveries", || all_delivered(&site));
    assert_in_order(&endpoint.delivered());
    eventually("the deliveries in the metrics", || {
        let counted = "ubscore_webhook_deliveries_total{outcome=\"delivered\"}";
        (server.metric(counted) == 2).then_some(())
    });
}

/// Goal: a damaged row of the journal takes no event away, and stops none behind it. Method: all
/// flights are to be collected again, and the entries of each are spoiled; the repair does not
/// bring them back.
#[test]
fn a_damaged_row_of_the_journal_loses_no_event() {
    let endpoint = Endpoint::start(|_| 200);
    let site = site(&endpoint);
    let server = site.start();
    for way in Way::BOTH {
        assert_eq!(server.transfer(USER, way, "1.5").status, 200);
    }
    site.wait_for_rest();
    eventually("every delivery", || all_delivered(&site));
    server.stop();
    let first: Vec<String> = endpoint.delivered().into_iter().map(|one| one.id).collect();
    site.sql(
        "UPDATE journal_tb SET entries = '\\x00' || entries WHERE length(entries) > 0; \
         UPDATE webhook_cursor SET flight = 0; DELETE FROM webhook_deliveries",
    );
    let (code, done, why) = repair(&site, &["--apply", "--reason", "a disk was bad"]);
    assert_eq!(code, Some(0), "{done}{why}");
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    eventually("every delivery again", || all_delivered(&site));
    server.says("events are read from the transfers");
    server.says("alert=\"journal_damaged\"");
    server.says("the journal of Funding is damaged: shard ");
    let all: Vec<String> = endpoint.delivered().into_iter().map(|one| one.id).collect();
    let again = &all[first.len()..];
    assert!(first.iter().all(|id| again.contains(id)), "{first:?} and then {again:?}");
    assert!(again.len() > first.len(), "and those behind them");
}

/// Goal: each transfer's events come in order, and every one in the end, in spite of the endpoint's
/// faults. Method: an endpoint that refuses, redirects or hangs up by chance; the server is killed
/// again and again.
#[test]
fn each_transfer_is_delivered_in_order_to_an_endpoint_that_fails_at_random_by_a_server_that_dies() {
    let seed = Arc::new(AtomicU64::new(11));
    let chance = Arc::clone(&seed);
    let endpoint = Endpoint::start(move |_| {
        let mut state = chance.fetch_add(1, Ordering::Relaxed);
        match split_mix(&mut state) % 6 {
            0 => 500,
            1 => 302,
            2 => 0,
            _ => 200,
        }
    });
    let site = site(&endpoint).with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 1_000);
    for _ in 0..3 {
        let server = site.start();
        for _ in 0..10 {
            server.transfer_accepted(USER, Way::ToSpot, "0.1");
        }
        server.kill();
    }
    let server = site.start();
    site.wait_for_rest();
    eventually("all deliveries", || all_delivered(&site));
    let delivered = endpoint.delivered();
    let mut by_transfer: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for delivery in delivered.iter().filter(|delivery| delivery.status == 200) {
        let id = delivery.id.parse().expect("a number");
        by_transfer.entry(delivery.req_id()).or_default().push(id);
    }
    assert_eq!(by_transfer.len(), 30);
    for ids in by_transfer.values() {
        // A delivery that was taken but not recorded comes again, and nothing before it.
        assert!(ids.is_sorted(), "{ids:?}");
    }
    assert!(delivered.iter().any(|delivery| delivery.status == 302));
    site.assert_in_order(&server);
}

/// Goal: a delivery that was taken but not recorded comes again under the same id. Method: a row
/// lock blocks the record; a kill.
#[test]
fn a_kill_between_the_delivery_and_its_note_tells_the_same_again() {
    let endpoint = Endpoint::start(|_| 200);
    let site = site(&endpoint);
    let server = site.start();
    let hold = site.hold("UPDATE OF status ON webhook_deliveries", "NEW.status = 2");
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_held();
    let first = endpoint.delivered();
    assert_eq!(first.len(), 1, "the next one waits: {first:?}");
    server.kill();
    hold.release();
    site.sql("DROP TRIGGER hold ON webhook_deliveries; \
              UPDATE webhook_deliveries SET next_at = NULL WHERE status = 1; UPDATE webhook_deliveries \
              SET status = 1, attempts = 0, ended_at = NULL, next_at = clock_timestamp() WHERE status = 2");
    let server = site.start();
    eventually("all deliveries", || all_delivered(&site));
    let again = endpoint.delivered();
    assert_eq!((&again[1].id, &again[1].body), (&first[0].id, &first[0].body));
    drop(server);
}

/// Goal: an event that is never taken becomes a dead letter after its tries, with back-off between
/// them. It lets the later events of its transfer pass, is listed, and is delivered after an
/// operator's command, which is recorded.
#[test]
fn a_dead_letter_holds_nobody_back_and_is_sent_again_by_an_operator() {
    let refuse = Arc::new(AtomicBool::new(true));
    let refusing = Arc::clone(&refuse);
    let endpoint = Endpoint::start(move |delivery| {
        let first = delivery.json()["final"] == json!(false);
        if first && refusing.load(Ordering::Relaxed) { 503 } else { 200 }
    });
    let site = site(&endpoint).with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 3);
    let server = site.start();
    let req_id = server.transfer(USER, Way::ToSpot, "1").req_id();
    let letters = eventually("a dead letter", || {
        let reply = server.admin_get("/admin/v1/webhooks/dead");
        assert_eq!(reply.status, 200, "{reply:?}");
        let letters = reply.json()["dead"].as_array().expect("letters").clone();
        (!letters.is_empty()).then_some(letters)
    });
    let letter = &letters[0];
    assert_eq!(
        (text(&letter["req_id"]), text(&letter["state"])),
        (req_id.as_str(), "TARGET_PENDING")
    );
    assert_eq!((&letter["attempts"], &letter["error"]), (&json!(3), &json!("it answered 503")));
    eventually("the next one to pass", || {
        endpoint.delivered().iter().any(|delivery| delivery.status == 200).then_some(())
    });
    let tries = endpoint.delivered();
    assert_eq!(tries.iter().filter(|delivery| delivery.status == 503).count(), 3, "{tries:?}");
    assert_eq!(tries.len(), 4, "{tries:?}");

    let event_id = text(&letter["event_id"]);
    let ops = format!("http://{}", server.ops);
    let list = |more: &[&str]| {
        let list = ["webhook", "list", "--dev", "--ops", &ops];
        said(&cli(&[&list, more].concat()))
    };
    let (code, out, _) = list(&[]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains(event_id) && out.contains("it answered 503"), "{out}");
    let (code, out, notes) = list(&["--limit", "1", "--format", "json"]);
    assert_eq!((code, out.lines().count()), (0, 1), "{out}");
    let cursor =
        notes.trim().strip_prefix("there may be more: --cursor ").expect(&notes).to_owned();
    assert_eq!(list(&["--cursor", &cursor]).1, "no dead letters\n");

    refuse.store(false, Ordering::Relaxed);
    let resend =
        ["webhook", "resend", event_id, "--reason", "it is repaired", "--dev", "--ops", &ops];
    // On a busy machine a lock may take longer than the command's timeout.
    let out = eventually("the resend", || {
        let (code, out, _) = said(&cli(&resend));
        (code == 0).then_some(out)
    });
    assert_eq!(out, format!("due now: event {event_id}\n"));
    eventually("all deliveries", || all_delivered(&site));
    let last = endpoint.delivered().pop().expect("a delivery");
    assert_eq!((last.id.as_str(), last.status), (event_id, 200));
    assert_eq!(list(&[]).1, "no dead letters\n");
    let audit = "SELECT actor, subject, reason FROM admin_audit WHERE action = 'webhook resend'";
    let row = ["admin/1", event_id, "it is repaired"].map(str::to_owned);
    assert_eq!(site.sql(audit), [row]);
    let (code, _, why) = said(&cli(&resend));
    assert_eq!(code, 1);
    assert!(why.contains("NOT_FOUND"), "{why}");
    refused_to_others(&server);
}

fn refused_to_others(server: &Server) {
    let resend = "/admin/v1/webhooks/1/resend";
    assert_refused(&server.admin("POST", resend, &json!({"reason": "x"})), 404, "NOT_FOUND");
    assert_refused(&server.admin("POST", resend, &json!({"reason": ""})), 400, "INVALID_REQUEST");
    for bad in ["?limit=0", "?limit=1001", "?cursor=x", "?from=1"] {
        let reply = server.admin_get(&format!("/admin/v1/webhooks/dead{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
}

/// Goal: an endpoint that hangs or is away delays only itself, and delivered events are deleted in
/// time. Method: it answers no request; transfers and streams go on. It comes back, and a little
/// later only the undelivered events are left.
#[test]
fn an_endpoint_that_is_away_delays_nobody_and_what_it_took_is_forgotten() {
    let status = Arc::new(AtomicU16::new(0));
    let answered = Arc::clone(&status);
    let endpoint = Endpoint::start(move |_| answered.load(Ordering::Relaxed));
    let site = site(&endpoint)
        .with("UBSCORE__EVENTS__KEEP_HOURS", 0.000_1)
        .with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 1_000);
    let server = site.start();
    let stream = server.follow(USER, None);
    for _ in 0..5 {
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        while stream.transfer().1["final"] != json!(true) {}
    }
    eventually("all events in deliveries", || {
        (site.sql_value("SELECT count(*) FROM webhook_deliveries") == "10").then_some(())
    });
    // The service leaves more rows.
    let trim = format!("SELECT journal_trim({LAST_SEEN}, 0, 0, 1000)");
    eventually("the journal to be forgotten before the events are delivered", || {
        (site.sql_value(&trim) != "0").then_some(())
    });
    assert_eq!(site.sql_value("SELECT count(*) FROM webhook_deliveries WHERE status = 2"), "0");
    assert!(site.sql_value("SELECT sum(attempts) FROM webhook_deliveries") != "0");
    status.store(200, Ordering::Relaxed);
    eventually("deliveries to be made and forgotten", || {
        (site.sql_value("SELECT count(*) FROM webhook_deliveries") == "0").then_some(())
    });
    let mut ids: Vec<String> =
        endpoint.delivered().into_iter().filter(|d| d.status == 200).map(|d| d.id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 10);
    assert!(!stream.rest().contains(&Part::End { clean: true }));
    site.assert_in_order(&server);
}

/// Stops a server, and waits until PostgreSQL has counted its reads, which happens when its
/// connections end.
fn stop(site: &Site, server: Server) {
    server.stop();
    site.wait_for_disconnected();
}

/// Goal: new events are found by their key, at any table size: neither a delivery nor a stream
/// reads all events. Method: PostgreSQL's own count of full table reads. A process with every kind
/// of access to events makes as many as one without events.
#[test]
fn what_is_new_is_found_without_reading_what_is_old() {
    let endpoint = Endpoint::start(|_| 200);
    // One round of the audit at each start.
    let site = site(&endpoint).with("UBSCORE__CONSERVATION__EVERY_MS", 3_600_000);
    let read_whole = || {
        let counts = "SELECT seq_scan FROM pg_stat_user_tables \
                      WHERE relname IN ('transfers_tb', 'webhook_deliveries') ORDER BY relname";
        let rows = site.sql(counts);
        [0, 1].map(|table| rows[table][0].parse::<i64>().expect("a number"))
    };
    // The schema's own start reads both.
    stop(&site, site.start());
    let new = read_whole();
    stop(&site, site.start());
    let before = read_whole();
    let server = site.start();
    let stream = server.follow(USER, None);
    for expected in [2, 4, 6] {
        server.transfer_committed(USER, Way::ToSpot, "1");
        stream.transfer();
        stream.transfer();
        eventually("both deliveries", || (endpoint.delivered().len() >= expected).then_some(()));
    }
    drop(stream);
    stop(&site, server);
    let after = read_whole();
    assert_eq!(
        [0, 1].map(|table| after[table] - before[table]),
        [0, 1].map(|table| before[table] - new[table])
    );
}

/// Goal: an endpoint that is gone slows nothing down, however many deliveries are open.
/// Method: table statistics from before the first open delivery, then thousands of them;
/// PostgreSQL's own count of index reads.
#[test]
fn what_an_endpoint_does_not_take_costs_the_others_nothing() {
    let endpoint = Endpoint::start(|_| 200);
    let site = site(&endpoint);
    stop(&site, site.start());
    let deliveries = |first: u32, status: u32, ended_at: &str| {
        site.sql(&format!(
            "INSERT INTO webhook_deliveries (endpoint, event_id, req_id, states, at, status, ended_at) \
             SELECT '{}', n, lpad(n::text, 32, '0')::uuid, '{{40}}', \
                    clock_timestamp(), {status}, {ended_at} FROM generate_series({first}, {first} + 4999) AS n",
            ENDPOINT
        ));
    };
    deliveries(1, 2, "clock_timestamp()");
    site.sql("VACUUM ANALYZE webhook_deliveries");
    deliveries(10_001, 1, "NULL");
    let read = || {
        let count = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes \
                     WHERE relname = 'webhook_deliveries'";
        site.sql_value(count).parse::<u64>().expect("a count")
    };
    let before = read();
    let server = site.start();
    for expected in [2, 4, 6] {
        server.transfer_committed(USER, Way::ToSpot, "1");
        eventually("both deliveries", || (endpoint.delivered().len() >= expected).then_some(()));
    }
    stop(&site, server);
    assert!(read() < before + 1_000, "{} entries were read", read() - before);
}

/// Goal: the endpoint gets the events since it is configured, each once, and none twice over a
/// start with another number of shards. Method: transfers before there is an endpoint, under it,
/// and after it was taken away and given again.
#[test]
fn an_endpoint_gets_the_events_from_its_first_start_on() {
    let endpoint = Endpoint::start(|_| 200);
    let without = Site::new();
    let server = without.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    server.stop();
    let with = |shards: u32| {
        let site = site_of(without.clone(), &endpoint);
        site.with("UBSCORE__COORDINATOR__SHARDS", shards)
    };
    let mut want = Vec::new();
    for shards in [3, 1, 2] {
        let site = with(shards);
        let server = site.start();
        want.push(server.transfer_committed(USER, Way::ToSpot, "1"));
        server.kill();
    }
    let open = "SELECT count(*) FROM webhook_deliveries WHERE status = 1";
    let server = with(2).start();
    let delivered = || endpoint.delivered().iter().map(Delivered::req_id).collect::<Vec<_>>();
    eventually("all deliveries", || {
        let told = delivered();
        let all = want.iter().all(|req_id| told.iter().filter(|told| *told == req_id).count() >= 2);
        (all && without.sql_value(open) == "0").then_some(())
    });
    server.stop();
    let server = without.start();
    server.transfer_committed(USER, Way::ToSpot, "1");
    assert_eq!(without.sql_value("SELECT count(*) FROM webhook_cursor"), "0");
    server.stop();
    let server = with(2).start();
    want.push(server.transfer_committed(USER, Way::ToSpot, "1"));
    eventually("the later deliveries", || (delivered().last() == want.last()).then_some(()));
    let mut told = delivered();
    told.sort();
    told.dedup();
    want.sort();
    assert_eq!(told, want);
    assert_in_order(&endpoint.delivered());
    server.stop();
}
