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
         JOIN transfers USING (req_id) WHERE user_id = {user} ORDER BY event_id"
    ));
    for row in rows {
        all.entry(row[0].clone()).or_default().push(row[1].clone());
    }
    all
}

/// A state's number, as stored in rows.
fn state_number(name: &Value) -> String {
    let states = domain::transfer::State::ALL;
    let state = states.into_iter().find(|state| state.name() == name).expect("a state");
    state.number().to_string()
}

/// The states of an event, in the form of [`committed`].
fn states(data: &Value) -> String {
    let names = data["states"].as_array().expect("states");
    names.iter().map(state_number).collect::<Vec<_>>().join(" ")
}

/// The id of an event.
fn number(id: &str) -> i64 {
    id.parse().expect("a number")
}

/// Records an event, unless it was received before.
fn note(received: &mut BTreeMap<String, Vec<String>>, seen: &mut Vec<i64>, id: &str, data: &Value) {
    let id = number(id);
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
        let all = site.sql_value("SELECT count(*) FROM transfer_history");
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

/// Goal: no event of a user with a smaller id appears after a reader has passed it, although ids of
/// all users come from one counter. Method: the commit of one user's flight is held, while others
/// with greater ids are committed; the first user's stream continues from its last event, over a
/// kill.
#[test]
fn ids_of_a_user_rise_while_another_flight_is_held() {
    let site = Site::new();
    let server = site.start();
    let stream = server.follow(USER, Some("0"));
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    let mut last = stream.transfer().0;
    while stream.transfer().1["final"] != json!(true) {}
    let hold = site.hold("INSERT ON transfers_tb", &format!("NEW.user_id = {USER}"));
    thread::scope(|scope| {
        let held = scope.spawn(|| server.transfer(USER, Way::ToSpot, "2"));
        site.wait_for_held();
        let others = server.follow(OTHER, None);
        assert_eq!(server.transfer(OTHER, Way::ToSpot, "1").status, 200);
        let greater = number(&others.transfer().0);
        hold.release();
        let answered = held.join().expect("no panic");
        assert!([200, 202].contains(&answered.status), "{answered:?}");
        let (id, data) = stream.transfer();
        assert!(number(&last) < number(&id), "{last}, then {data}");
        // It was put together before the other one.
        assert!(number(&id) < greater, "{id} and {greater}");
        last = id;
    });
    server.kill();
    let server = site.start();
    site.wait_for_rest();
    let again = server.follow(USER, Some(&last));
    let (id, data) = again.transfer();
    assert!(number(&last) < number(&id), "{last}, then {data}");
    assert_eq!(data["final"], json!(true));
}

/// Goal: a flight that is committed but not sent is read once by a stream that comes back. Method:
/// a kill between the commit and the streams, at each of the first flights.
#[cfg(feature = "crash")]
#[test]
fn a_kill_between_the_commit_and_the_streams_loses_no_event() {
    let site = Site::new();
    site.start().stop();
    let (mut received, mut seen) = (BTreeMap::new(), Vec::new());
    let mut last = "0".to_owned();
    for visit in 1..=4 {
        let [point] = ubscore::crash::EVENT_POINTS else { panic!("one point") };
        let armed = site.clone().with("UBSCORE_CRASH", format!("{point}={visit}"));
        let mut server = armed.start();
        let stream = server.follow(USER, Some(&last));
        let path = "/api/v1/internal_transfer";
        while server.try_ask(USER, "POST", path, Some(&Way::ToSpot.body("USDT", "1"))).is_ok() {}
        server.wait();
        while let Some((id, data)) = stream.transfer_or_end() {
            note(&mut received, &mut seen, &id, &data);
            last = id;
        }
        assert_ne!(received, committed(&site, USER), "the last flight was not sent");
    }
    let server = site.start();
    site.wait_for_rest();
    let (want, stream) = (committed(&site, USER), server.follow(USER, Some(&last)));
    while received != want {
        let (id, data) = stream.transfer();
        note(&mut received, &mut seen, &id, &data);
    }
    site.assert_in_order(&server);
}

/// Goal: a stream that comes back misses nothing and gets nothing twice if users have other shards
/// meanwhile, and if another process has taken over. Method: starts with other numbers of shards,
/// each on a copy of the log beside its stopped predecessor, with transfers under way.
#[test]
fn a_stream_goes_on_over_take_overs_with_other_numbers_of_shards() {
    const USERS: [u64; 3] = [1001, 1002, 1003];
    let mut site = Site::new();
    let mut followed = USERS.map(|_| (BTreeMap::new(), Vec::new(), "0".to_owned()));
    let mut before: Option<Server> = None;
    for shards in [4, 1, 3, 2] {
        let next = match &before {
            None => site.clone(),
            Some(server) => {
                server.signal(rustix::process::Signal::STOP);
                let next = site.with_fresh_data_dir();
                site.copy_data(&next);
                next
            }
        };
        site = next.with("UBSCORE__COORDINATOR__SHARDS", shards);
        let server = site.start();
        if let Some(before) = before.take() {
            before.kill();
        }
        server.deposit(USERS[2], "USDT", "2");
        for (user, (received, seen, last)) in USERS.iter().zip(&mut followed) {
            let stream = server.follow(*user, Some(last));
            for way in Way::BOTH {
                assert_eq!(server.transfer(*user, way, "1").status, 200);
            }
            // The last event is left for the next stream.
            let want: usize = committed(&site, *user).values().map(Vec::len).sum();
            while seen.len() + 1 < want {
                let (id, data) = stream.transfer();
                note(received, seen, &id, &data);
                *last = id;
            }
        }
        server.transfer_accepted(USERS[0], Way::ToSpot, "1");
        before = Some(server);
    }
    let server = before.expect("the last one");
    site.wait_for_rest();
    for (user, (mut received, mut seen, last)) in USERS.into_iter().zip(followed) {
        let (want, stream) = (committed(&site, user), server.follow(user, Some(&last)));
        while received != want {
            let (id, data) = stream.transfer();
            assert!(!seen.contains(&number(&id)), "{id} comes twice");
            note(&mut received, &mut seen, &id, &data);
        }
    }
}

/// The shortest allowed time limit of a request.
fn short_requests() -> Site {
    Site::new()
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 2_000)
        .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 6_100)
}

/// Goal: a client that does not read is cut off, uses a bounded amount of memory, and does not
/// delay other readers. Method: transfers of one user with two streams, until the one that is never
/// read is cut off.
#[test]
fn a_client_that_does_not_read_is_cut_off_and_the_others_are_served() {
    // Long cids fill the buffers of the connection sooner.
    let cid = |caller: usize, count: u32| format!("{caller:0>32}-{count:0>31}");
    let site = short_requests().with("UBSCORE__EVENTS__QUEUE_MAX", 16);
    let server = site.start();
    let reader = server.follow(USER, Some("0"));
    assert!(matches!(reader.next(), Part::Position(_)));
    let stuck = Follower::ask(server.http, &token(USER, None), None);
    eventually("both streams", || (server.metric("ubscore_event_streams") == 2).then_some(()));
    let done = AtomicBool::new(false);
    let mut before = 0;
    thread::scope(|scope| {
        let load = SetAtEnd(&done);
        for caller in 0..16 {
            let (server, done) = (&server, &done);
            scope.spawn(move || {
                let mut count = 0;
                while !done.load(Ordering::Relaxed) {
                    let body = Way::BOTH[count as usize % 2];
                    let body = body.body_with_cid("USDT", "0.01", &cid(caller, count));
                    server.post(USER, &body);
                    count += 1;
                }
            });
        }
        let began = std::time::Instant::now();
        while server.metric("ubscore_event_streams") == 2 {
            assert!(began.elapsed() < crate::harness::PATIENCE, "it is not cut off");
            for _ in 0..100 {
                let id = number(&reader.transfer().0);
                assert!(before < id);
                before = id;
            }
        }
        drop(load);
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

    let server = site.start();
    // As the service deletes them, but that it leaves more rows.
    let (all, trim) = (i64::MAX, "SELECT journal_trim");
    let left =
        format!("SELECT count(*) FROM journal_tb WHERE event_count > 0 AND event_first <= {known}");
    eventually("the deletion of the event", || {
        site.sql(&format!("{trim}({all}, {all}, 1, 1000)"));
        (site.sql_value(&left) == "0").then_some(())
    });
    let (last, stream) = gap(&server, &known);
    gap(&server, "0");
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
    let (last, _) = gap(&server, &later);
    assert!(number(&last) < number(&later), "{last} and {later}");
    let incarnation: i64 =
        earlier.sql_value("SELECT incarnation FROM engine_state").parse().expect("a number");
    assert!(number(&later) < incarnation << 40, "its events have greater ids");
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
