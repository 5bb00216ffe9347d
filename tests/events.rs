//! The stream of a user's events: each event once, in order, and none missed, across kills and
//! delays.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ubscore::config::auth::{Auth, DEVELOPMENT_SECRET};
use ubscore::config::secret::Secret;
use ubscore::http::auth;

use crate::harness::{
    Follower, Part, Server, SetAtEnd, Site, Way, assert_refused, eventually, now_s, text, token,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;

/// The recorded states of a user's transfers in PostgreSQL: one list per commit, by transfer and in
/// order.
fn committed(site: &Site, user: u64) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let rows = site.sql(&format!(
        "SELECT req_id, array_to_string(states, ' ') FROM transfer_history \
         JOIN transfers_tb USING (req_id) WHERE user_id = {user} AND history_id IS NOT NULL \
         ORDER BY history_id"
    ));
    for row in rows {
        all.entry(row[0].clone()).or_default().push(row[1].clone());
    }
    all
}

/// A state's number, as stored in rows.
fn number(name: &Value) -> String {
    let states = domain::transfer::State::ALL;
    let state = states.into_iter().find(|state| state.name() == name).expect("a state");
    state.number().to_string()
}

/// The states of an event, in the form of [`committed`].
fn states(data: &Value) -> String {
    let names = data["states"].as_array().expect("states");
    names.iter().map(number).collect::<Vec<_>>().join(" ")
}

/// Records an event, unless it was received before.
fn note(received: &mut BTreeMap<String, Vec<String>>, seen: &mut Vec<i64>, id: &str, data: &Value) {
    let id = id.parse().expect("a number");
    if !seen.contains(&id) {
        assert!(seen.last().is_none_or(|last| *last < id), "{id} behind {seen:?}");
        seen.push(id);
        received.entry(text(&data["req_id"]).to_owned()).or_default().push(states(data));
    }
}

/// Goal: a follower receives every commit of their transfers once, in order, and none of another
/// user; GET agrees with each event. Method: transfers of every end while two users follow, with
/// fusion and without.
#[test]
fn every_state_is_sent_once_and_in_order_to_its_user_alone() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        let (mine, theirs) = (server.follow(USER, None), server.follow(OTHER, None));
        assert!(matches!(mine.next(), Part::Position(_)));
        assert_eq!(server.transfer(OTHER, Way::ToSpot, "5").status, 200);
        assert_eq!(server.transfer(USER, Way::ToSpot, "100.5").status, 200);
        assert_eq!(server.transfer(USER, Way::ToFunding, "0.5").status, 200);
        assert_eq!(server.transfer(USER, Way::ToFunding, "7000").status, 422);
        server.set_status(USER, "SPOT", "DISABLED");
        assert_eq!(server.transfer(USER, Way::ToSpot, "7").status, 422);
        server.set_status(USER, "SPOT", "ACTIVE");
        site.wait_for_rest();
        let want = committed(&site, USER);
        let commits: usize = want.values().map(Vec::len).sum();
        assert!(commits >= if fuse { 7 } else { 4 * 3 }, "{want:?}");
        let (mut received, mut seen) = (BTreeMap::new(), Vec::new());
        for _ in 0..commits {
            let (id, data) = mine.transfer();
            note(&mut received, &mut seen, &id, &data);
            assert_eq!(data["user_id"], json!(USER), "{data}");
            let now = server.look(USER, text(&data["req_id"]));
            if data["final"] == json!(true) {
                for (key, value) in data.as_object().expect("an object") {
                    let only_here = ["event_id", "user_id", "at", "states"].contains(&key.as_str());
                    assert!(only_here || now[key] == *value, "{key}: {data} and {now}");
                }
            }
            let passed = now["history"].as_array().expect("a history").iter();
            assert!(passed.clone().any(|passed| passed["state"] == data["state"]), "{data} {now}");
        }
        assert_eq!(received, want);
        let (_, data) = theirs.transfer();
        assert_eq!(data["user_id"], json!(OTHER));
        let of_others =
            |said: &Part| matches!(said, Part::Event { data, .. } if data["user_id"] != OTHER);
        assert!(!theirs.rest().iter().any(of_others));
        assert_eq!(mine.rest(), [], "nothing more");
        // And all later events again, after the first.
        let again = server.follow(USER, Some(&seen[0].to_string()));
        for id in &seen[1..] {
            assert_eq!(again.transfer().0, id.to_string());
        }
        site.assert_in_order(&server);
        let all = site.sql_value("SELECT count(history_id) FROM transfer_history");
        assert_eq!(server.metric("ubscore_events_total").to_string(), all);
    }
}

/// Goal: a client that resumes from its last id misses nothing, though the server is killed during
/// a load. Method: users transfer without a pause; the server is killed and started again; one
/// stream after the other; at the end PostgreSQL's own history.
#[test]
fn a_stream_that_is_gone_on_with_after_a_kill_misses_nothing() {
    let site = Site::new();
    let (mut received, mut seen) = (BTreeMap::new(), Vec::new());
    let mut last = "0".to_owned();
    for _ in 0..3 {
        let server = site.start();
        let done = AtomicBool::new(false);
        let answers = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for user in [USER, OTHER] {
                let (server, done, answers) = (&server, &done, &answers);
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        let body = Way::ToSpot.body("USDT", "0.01");
                        let path = "/api/v1/internal_transfer";
                        // The server dies during some of them.
                        let answered = server.try_ask(user, "POST", path, Some(&body)).is_ok();
                        answers.lock().expect("no panic").push(answered);
                    }
                });
            }
            let load = SetAtEnd(&done);
            let stream = server.follow(USER, Some(&last));
            for _ in 0..30 {
                let (id, data) = stream.transfer();
                note(&mut received, &mut seen, &id, &data);
                last = id;
            }
            server.signal(rustix::process::Signal::KILL);
            drop(load);
            // Events that were on their way count as well.
            loop {
                match stream.next() {
                    Part::Event { id, data, kind } if kind == "transfer" => {
                        note(&mut received, &mut seen, &id, &data);
                        last = id;
                    }
                    Part::End { .. } => break,
                    _ => {}
                }
            }
        });
        assert!(answers.lock().expect("no panic").contains(&true));
        drop(server);
    }
    let server = site.start();
    site.wait_for_rest();
    let want = committed(&site, USER);
    let stream = server.follow(USER, Some(&last));
    while received != want {
        let (id, data) = stream.transfer();
        note(&mut received, &mut seen, &id, &data);
    }
    site.assert_in_order(&server);
}

/// Goal: no event with a smaller id appears after a reader has passed it. Method: a session has
/// written history, with the smallest number, and not committed. Later events arrive meanwhile. The
/// reader resumes after them, and receives the first one once it is committed.
#[test]
fn ids_follow_what_is_visible_and_not_what_was_begun() {
    let site = Site::new();
    let server = site.start();
    let first = server.transfer(USER, Way::ToSpot, "1").req_id();
    let stream = server.follow(USER, Some("0"));
    while stream.transfer().1["final"] != json!(true) {}
    let late = site.session();
    late.sql("BEGIN");
    let held = late.sql(&format!(
        "INSERT INTO transfer_history (req_id, states, attempt, actor, reason) \
         VALUES ('{first}', '{{40}}', 7, 'test', 'late') RETURNING history_id"
    ));
    let held: i64 = held[0][0].parse().expect("a number");
    let mut last = String::new();
    for _ in 0..3 {
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        loop {
            let (id, data) = stream.transfer();
            last = id;
            if data["final"] == json!(true) {
                break;
            }
        }
    }
    let later = "SELECT max(history_id) FROM events_tb";
    assert!(site.sql_value(later).parse::<i64>().expect("a number") > held);
    drop(stream);
    server.kill();
    // The next process knows only the committed rows.
    let server = site.start();
    let stream = server.follow(USER, Some(&last));
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    while stream.transfer().1["final"] != json!(true) {}
    let low: i64 = site.sql_value("SELECT low_water FROM events_cursor").parse().expect("a number");
    assert!(low < held, "{low} has passed {held}, which may still come");
    late.sql("COMMIT");
    let (id, data) = stream.transfer();
    assert_eq!((text(&data["req_id"]), &data["state"]), (first.as_str(), &json!("COMMITTED")));
    assert!(id.parse::<i64>().expect("a number") > last.parse::<i64>().expect("a number"));
    eventually("the low water to rise", || {
        let low: i64 = site.sql_value("SELECT low_water FROM events_cursor").parse().ok()?;
        (low >= held).then_some(())
    });
    let twice = "SELECT count(*) FROM (SELECT history_id FROM events_tb GROUP BY 1 HAVING count(*) > 1) AS t";
    assert_eq!(site.sql_value(twice), "0");
}

/// Story: the relay used a snapshot's end as the number of the next transaction. The two differ
/// while transactions newer than the last ended one are under way. Method: in an idle service a
/// session takes a number, and the relay looks several times; the session's commit still arrives as
/// an event.
#[test]
fn a_long_transaction_of_an_idle_service_is_sent_once_it_commits() {
    let site = Site::new();
    let server = site.start();
    let first = server.transfer(USER, Way::ToSpot, "1").req_id();
    let stream = server.follow(USER, Some("0"));
    while stream.transfer().1["final"] != json!(true) {}
    let late = site.session();
    late.sql("BEGIN");
    late.sql(&format!(
        "INSERT INTO transfer_history (req_id, states, attempt, actor, reason) \
         VALUES ('{first}', '{{40}}', 7, 'test', 'late')"
    ));
    // The relay looks every five seconds by itself, and every half second while a transaction is
    // open.
    thread::sleep(Duration::from_secs(7));
    late.sql("COMMIT");
    let (_, data) = stream.transfer();
    assert_eq!((text(&data["req_id"]), &data["states"]), (first.as_str(), &json!(["COMMITTED"])));
}

/// The shortest allowed time limit of a request.
fn short_requests() -> Site {
    Site::new()
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 2_000)
        .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 6_100)
}

/// Goal: a client that does not read is cut off, uses a bounded amount of memory, and does not
/// delay other readers. Method: tens of thousands of events for one user with two streams; one of
/// the streams is never read.
#[test]
fn a_client_that_does_not_read_is_cut_off_and_the_others_are_served() {
    const EVENTS: usize = 30_000;
    let site = short_requests();
    let server = site.start();
    let req_id = server.transfer(USER, Way::ToSpot, "1").req_id();
    site.wait_for_rest();
    let reader = server.follow(USER, Some("0"));
    while reader.transfer().1["final"] != json!(true) {}
    let stuck = Follower::ask(server.http, &token(USER, None), None);
    eventually("both streams", || (server.metric("ubscore_event_streams") == 2).then_some(()));
    site.sql(&format!(
        "INSERT INTO transfer_history (req_id, states, attempt, actor) \
         SELECT '{req_id}', '{{40}}', 0, 'test' FROM generate_series(1, {EVENTS})"
    ));
    let mut before = 0;
    for _ in 0..EVENTS {
        let id = reader.transfer().0.parse::<i64>().expect("a number");
        assert!(before < id);
        before = id;
    }
    eventually("the other one to be cut off", || {
        (server.metric("ubscore_event_streams") == 1).then_some(())
    });
    drop(stuck);
    let later = server.transfer_committed(USER, Way::ToSpot, "1");
    while reader.transfer().1["req_id"] != json!(later) {}
}

#[test]
fn a_quiet_stream_gets_signs_of_life_and_no_time_out_ends_it() {
    let site = short_requests()
        .with("UBSCORE__EVENTS__HEARTBEAT_MS", 50)
        .with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 1_000);
    let server = site.start();
    let stream = server.follow(USER, None);
    assert!(matches!(stream.next(), Part::Position(_)));
    for _ in 0..100 {
        assert_eq!(stream.next(), Part::Beat);
    }
    server.transfer_accepted(USER, Way::ToSpot, "1");
    assert_eq!(stream.transfer().1["state"], json!("TARGET_PENDING"));
}

/// Goal: a client with an unusable id gets a gap, and never a silent stream. Method: an id that was
/// never given; one older than the kept events; and one of a database that was put back to an
/// earlier state, where the id is never given again.
#[test]
fn an_id_that_is_not_here_is_answered_by_a_gap() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let gap = |server: &Server, id: &str| {
        let stream = server.follow(USER, Some(id));
        let (at, kind, data) = stream.event();
        assert_eq!((kind.as_str(), &data["after"]), ("gap", &json!(id)), "{data}");
        assert_eq!(
            (&data["last"], &data["read"]),
            (&json!(at), &json!("/api/v1/internal_transfers"))
        );
        (at, stream)
    };
    let (_, stream) = gap(&server, "4611686018427387904");
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let (known, _) = stream.transfer();
    drop(stream);
    site.wait_for_rest();
    server.stop();

    let brief = site.clone().with("UBSCORE__EVENTS__KEEP_HOURS", 0.000_05);
    let server = brief.start();
    eventually("old events to go", || {
        (site.sql_value("SELECT count(*) FROM events_tb") == "0").then_some(())
    });
    let (last, stream) = gap(&server, &known);
    drop(stream);
    // The last id of the removed events is a valid place to resume from.
    let stream = server.follow(USER, Some(&last));
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    assert_eq!(stream.transfer().1["state"], json!("TARGET_PENDING"));
    drop(stream);
    site.wait_for_rest();
    server.stop();

    let earlier = site.with_copied_database();
    let flights = fs::read(site.flights()).expect("written by the stop");
    let server = site.start();
    let stream = server.follow(USER, None);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let (later, _) = stream.transfer();
    drop(stream);
    server.kill();
    // With the file of that time: a start would miss an answered flight otherwise.
    fs::write(site.flights(), flights).expect("written");
    let server = earlier.start();
    let (last, stream) = gap(&server, &later);
    let req_id = earlier.sql_value("SELECT req_id FROM transfers_tb LIMIT 1");
    earlier.sql(&format!(
        "INSERT INTO transfer_history (req_id, states, attempt, actor) \
         VALUES ('{req_id}', '{{40}}', 0, 'test')"
    ));
    let (id, _) = stream.transfer();
    let number = |text: &str| text.parse::<i64>().expect("a number");
    assert!(number(&last) != number(&later) && number(&later) < number(&id), "{last} {later} {id}");
}

#[test]
fn a_stop_ends_streams_in_order_and_does_not_wait_for_them() {
    let site = Site::new().with("UBSCORE__HTTP__SHUTDOWN_TIMEOUT_MS", 60_000);
    let server = site.start();
    let stream = server.follow(USER, None);
    assert!(matches!(stream.next(), Part::Position(_)));
    server.stop();
    let (_, kind, data) = stream.event();
    assert_eq!((kind.as_str(), data), ("end", json!({"reason": "stopping"})));
    assert_eq!(stream.next(), Part::End { clean: true });
}

#[test]
fn a_stream_ends_with_its_token() {
    let server = Site::new().start();
    let auth = Auth { secret: Some(Secret::new(DEVELOPMENT_SECRET)), ..Auth::default() };
    let brief = auth::sign(&auth, USER, None, Duration::from_secs(1), now_s()).expect("a token");
    let stream = Follower::open(server.http, &brief, None);
    let (_, kind, data) = stream.event();
    assert_eq!((kind.as_str(), data), ("end", json!({"reason": "token_expired"})));
    assert_eq!(stream.next(), Part::End { clean: true });
}

#[test]
fn streams_are_bounded_by_user_and_in_all_and_places_are_given_again() {
    let site = Site::new()
        .with("UBSCORE__EVENTS__STREAMS_MAX", 3)
        .with("UBSCORE__EVENTS__STREAMS_PER_USER_MAX", 2);
    let server = site.start();
    let held = [server.follow(USER, None), server.follow(USER, None)];
    let refused = |user| {
        let reply = server.get(user, "/api/v1/events");
        assert_refused(&reply, 503, "OVERLOADED");
        assert_eq!(reply.header("retry-after"), Some("1"), "{reply:?}");
    };
    refused(USER);
    let other = server.follow(OTHER, None);
    refused(OTHER);
    drop(held);
    eventually("the places", || (server.metric("ubscore_event_streams") == 1).then_some(()));
    let again = server.follow(USER, None);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    again.transfer();
    drop(other);
}

#[test]
fn a_stream_is_refused_without_a_token_with_a_bad_id_and_where_there_are_none() {
    let site = Site::new();
    let server = site.start();
    for path in ["?after=x", "?after=", "?after=-1", "?from=1"] {
        assert_refused(&server.get(USER, &format!("/api/v1/events{path}")), 400, "INVALID_REQUEST");
    }
    let reply =
        crate::harness::send_text(server.http, "GET", "/api/v1/events", "", "").expect("an answer");
    assert_refused(&reply, 401, "UNAUTHORIZED");
    assert_refused(&server.ask(USER, "POST", "/api/v1/events", None), 405, "METHOD_NOT_ALLOWED");
    server.stop();
    let server = site.with("UBSCORE__EVENTS__ENABLED", false).start();
    assert_refused(&server.get(USER, "/api/v1/events"), 404, "NOT_FOUND");
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
}
