//! The limits of one user: per second, per day, and per asset.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::{Direction, State};
use jiff::SignedDuration;
use serde_json::{Value, json};
use ubscore::clock::{Clock, Sleep, SystemClock};
use ubscore::commands::dev;
use ubscore::postgres;
use ubscore::postgres::reads::Reads;
use ubscore::quota::usage::DayMax;
use ubscore::quota::{self, Quotas};
use ubscore::validation::Checked;

use crate::harness::{
    COIN, Reply, Server, Site, Way, assert_refused, block_on, crowd, eventually, now_s, refused,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const SECOND: &str = "UBSCORE__LIMITS__USER_REQUESTS_PER_SECOND_MAX";
const DAY: &str = "UBSCORE__LIMITS__USER_TRANSFERS_PER_DAY_MAX";
const AMOUNTS: &str = "UBSCORE__LIMITS__USER_AMOUNTS_PER_DAY_MAX";
const DAY_S: u64 = 86_400;

/// Waits near midnight, because a test of a day must not run across its end.
fn away_from_midnight() {
    const LONGEST_S: u64 = 50;
    eventually("the next day", || (DAY_S - now_s() % DAY_S > LONGEST_S).then_some(()));
}

/// Asserts a refusal for the day with the seconds until the day ends.
#[track_caller]
fn assert_refused_for_the_day(reply: &Reply, code: &str) {
    assert_refused(reply, 429, code);
    let left_s = DAY_S - now_s() % DAY_S;
    let said: u64 = reply.header("retry-after").expect("a time").parse().expect("seconds");
    // Between the answer and now, some seconds may have passed.
    assert!((left_s..left_s + 30).contains(&said), "{said} s, and it was {left_s} s");
}

/// The parameter of one limit in one of the two headers.
fn standing(reply: &Reply, header: &str, name: &str, parameter: &str) -> Option<String> {
    let items = reply.header(header)?.split(", ");
    let mut of_limit = items.filter(|item| item.split(';').next() == Some(&format!("{name:?}")));
    let mut parameters = of_limit.next()?.split(';').skip(1);
    let value = parameters.find_map(|text| text.strip_prefix(&format!("{parameter}=")))?;
    Some(value.to_owned())
}

/// The rest of a limit.
#[track_caller]
fn left(reply: &Reply, name: &str) -> u64 {
    let left = standing(reply, "ratelimit", name, "r");
    left.unwrap_or_else(|| panic!("{name} is missing: {reply:?}")).parse().expect("a number")
}

fn is_replayed(reply: &Reply) -> bool {
    reply.header("idempotent-replayed") == Some("true")
}

/// Posts until the answer is not a 503.
fn post(server: &Server, user: u64, body: &Value) -> Reply {
    eventually("an answer", || {
        let reply = server.post(user, body);
        (reply.status != 503).then_some(reply)
    })
}

/// The same with a transfer of USDT without a cid. An answer OVERLOADED, or that the day cannot be
/// read, means that nothing was accepted.
fn transfer(server: &Server, user: u64, way: Way, amount: &str) -> Reply {
    post(server, user, &way.body("USDT", amount))
}

fn limited(server: &Server, limit: &str) -> u64 {
    let name = format!("ubscore_http_limited_total{{limit=\"{limit}\"}} ");
    let metrics = server.metrics();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn without_a_limit_no_answer_names_one() {
    let site = Site::new();
    let server = site.start();
    let replies = crowd(20, |_| server.transfer(USER, Way::ToSpot, "1"));
    for reply in replies {
        assert_eq!(reply.status, 200, "{reply:?}");
        assert_eq!((reply.header("ratelimit"), reply.header("ratelimit-policy")), (None, None));
    }
}

/// Goal: of a crowd some are refused, with a time after which they are not. A known cid, a request
/// refused for another reason, and another user are never limited.
#[test]
fn a_caller_that_asks_too_often_in_a_second_learns_when_to_retry() {
    let site = Site::new().with(SECOND, 1);
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "1", "known");
    let first = server.post(USER, &body);
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.header("ratelimit-policy"), Some("\"second\";q=1;w=1"));
    assert_eq!(first.header("ratelimit"), Some("\"second\";r=0;t=1"));

    let replies = crowd(40, |_| server.transfer(USER, Way::ToSpot, "1"));
    let (taken, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|r| r.status == 200);
    assert!(!refused.is_empty(), "40 at once are more than one a second");
    for reply in &refused {
        assert_refused(reply, 429, "RATE_LIMIT_EXCEEDED");
        assert_eq!(reply.json()["retryable"], json!(true));
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert_eq!(left(reply, "second"), 0);
    }
    let count = |count: usize| u64::try_from(count).expect("few");
    assert_eq!(limited(&server, "second"), count(refused.len()));

    for reply in crowd(20, |_| server.post(USER, &body)) {
        assert_eq!((reply.status, is_replayed(&reply)), (200, true), "{reply:?}");
        assert_eq!(reply.req_id(), first.req_id());
    }
    let another = Way::ToSpot.body_with_cid("USDT", "2", "known");
    for reply in crowd(10, |_| server.post(USER, &another)) {
        assert_refused(&reply, 409, "DUPLICATE_REQUEST");
    }
    for reply in crowd(10, |_| server.post(USER, &Way::ToSpot.body("NONE", "1"))) {
        assert_refused(&reply, 400, "INVALID_ASSET");
        assert_eq!(reply.header("ratelimit"), None, "it has not come as far");
    }
    assert_eq!(limited(&server, "second"), count(refused.len()), "those were not limited");
    assert_eq!(server.transfer(OTHER, Way::ToSpot, "1").status, 200, "another user");
    eventually("the next second", || {
        (server.transfer(USER, Way::ToSpot, "1").status == 200).then_some(())
    });
    let of_user = format!("SELECT count(*) FROM transfers WHERE user_id = {USER}");
    assert_eq!(site.sql_value(&of_user), (taken.len() + 2).to_string());
}

/// Goal: all transfers of a day are counted, with any end, and only they are. The limit comes after
/// every other check but the balance, holds across kills, and ends with the day of PostgreSQL's
/// stamps.
#[test]
fn a_day_holds_so_many_transfers_and_survives_a_kill() {
    away_from_midnight();
    let site = Site::new().with(DAY, 3);
    let server = site.start();
    let body = Way::ToSpot.body_with_cid("USDT", "1", "known");
    let first = post(&server, USER, &body);
    assert_eq!((first.status, left(&first, "day")), (200, 2), "{first:?}");
    assert_eq!(first.header("ratelimit-policy"), Some("\"day\";q=3;w=86400"));
    let again = post(&server, USER, &body);
    assert_eq!((again.status, is_replayed(&again)), (200, true), "{again:?}");
    assert_refused(&transfer(&server, USER, Way::ToSpot, "-1"), 400, "INVALID_AMOUNT");
    let failed = transfer(&server, USER, Way::ToSpot, "1000000");
    assert_refused(&failed, 422, "INSUFFICIENT_BALANCE");
    assert_eq!(left(&failed, "day"), 1, "what is accepted counts");
    let third = transfer(&server, USER, Way::ToFunding, "1");
    assert_eq!((third.status, left(&third, "day")), (200, 0), "{third:?}");

    let all_used = |server: &Server| {
        let refused = transfer(server, USER, Way::ToSpot, "1");
        assert_refused_for_the_day(&refused, "DAILY_LIMIT_EXCEEDED");
        assert_eq!((&refused.json()["retryable"], left(&refused, "day")), (&json!(true), 0));
        let unheard = Way::ToSpot.body_with_cid("USDT", "1", "unheard");
        assert_refused_for_the_day(&post(server, USER, &unheard), "DAILY_LIMIT_EXCEEDED");
        let poor = transfer(server, USER, Way::ToSpot, "1000000");
        assert_refused_for_the_day(&poor, "DAILY_LIMIT_EXCEEDED");
        let again = post(server, USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (200, true), "{again:?}");
        assert_eq!(again.req_id(), first.req_id());
        let another = Way::ToSpot.body_with_cid("USDT", "2", "known");
        assert_refused(&post(server, USER, &another), 409, "DUPLICATE_REQUEST");
        for (body, status, code) in [
            (Way::ToSpot.body("USDT", "0"), 400, "INVALID_AMOUNT"),
            (Way::ToSpot.body("SUSP", "1"), 422, "ASSET_SUSPENDED"),
            (
                json!({"from": "SPOT", "to": "SPOT", "asset": "USDT", "amount": "1"}),
                400,
                "SAME_ACCOUNT",
            ),
        ] {
            assert_refused(&post(server, USER, &body), status, code);
        }
    };
    all_used(&server);
    assert_eq!(limited(&server, "day"), 3);
    let other = transfer(&server, OTHER, Way::ToSpot, "1");
    assert_eq!((other.status, left(&other, "day")), (200, 2), "another user");
    server.kill();

    let server = site.start();
    all_used(&server);
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    assert_refused(&server.transfer(USER, Way::ToSpot, "1"), 503, "SERVICE_HALTED");
    let resumed = server.resume("a test");
    assert_eq!(resumed.status, 200, "{resumed:?}");
    let other = transfer(&server, OTHER, Way::ToSpot, "1");
    assert_eq!((other.status, left(&other, "day")), (200, 1), "{other:?}");
    site.wait_for_rest();
    server.kill();

    // Yesterday's transfers do not count.
    site.sql("UPDATE transfers_tb SET created_at = created_at - interval '1 day'");
    let server = site.start();
    let reply = transfer(&server, USER, Way::ToSpot, "1");
    assert_eq!((reply.status, left(&reply, "day")), (200, 2), "{reply:?}");
    site.assert_conserved(&server);
}

/// Goal: in a crowd exactly as many as the limit are accepted, and two requests with the same cid
/// get the same answer.
#[test]
fn a_crowd_gets_exactly_what_the_day_holds() {
    away_from_midnight();
    let site = Site::new().with(DAY, 7).with(AMOUNTS, "BTC=1");
    let server = site.start();
    let replies = crowd(50, |index| {
        let cid = format!("crowd-{}", index % 25);
        post(&server, USER, &Way::ToSpot.body_with_cid("USDT", "1", &cid))
    });
    let mut answers: BTreeMap<usize, BTreeSet<Option<String>>> = BTreeMap::new();
    for (index, reply) in replies.iter().enumerate() {
        let accepted = (reply.status == 200).then(|| reply.req_id());
        if accepted.is_none() {
            assert_refused_for_the_day(reply, "DAILY_LIMIT_EXCEEDED");
        }
        answers.entry(index % 25).or_default().insert(accepted);
    }
    assert!(answers.values().all(|ids| ids.len() == 1), "{answers:?}");
    assert_eq!(answers.values().filter(|ids| !ids.contains(&None)).count(), 7);
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "7");

    // Of 50 that ask for a tenth each, ten get it.
    let site = Site::new().with(AMOUNTS, "BTC=1");
    let server = site.start();
    let replies = crowd(50, |_| post(&server, USER, &Way::ToSpot.body("BTC", "0.1")));
    let accepted = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(accepted, 10);
    assert_eq!(site.sql_value("SELECT trim_scale(sum(amount)) FROM transfers"), "1");
    for reply in replies.iter().filter(|reply| reply.status != 200) {
        assert_refused_for_the_day(reply, "DAILY_AMOUNT_EXCEEDED");
    }
    assert_eq!(limited(&server, "amount"), 40);
    site.assert_conserved(&server);
}

/// Goal: a transfer that moved nothing leaves its amount free for others, at once and after a kill;
/// no other transfer does. Method: more than the limit is refused by either source and by a target,
/// before successful transfers use up the limit.
#[test]
fn a_day_holds_so_much_of_an_asset_not_counting_what_failed() {
    away_from_midnight();
    let site = Site::new().with(AMOUNTS, "USDT=15000, ETH=1");
    let server = site.start();
    for (way, code) in
        [(Way::ToSpot, "INSUFFICIENT_BALANCE"), (Way::ToFunding, "SOURCE_ACCOUNT_NOT_FOUND")]
    {
        let reply = transfer(&server, USER, way, "12000");
        assert_refused(&reply, 422, code);
        assert_eq!(left(&reply, "day-USDT"), 300_000_000_000, "as it stood when it was accepted");
        let policy = "\"day-USDT\";q=1500000000000;qu=\"smallest-units\";w=86400";
        assert_eq!(reply.header("ratelimit-policy"), Some(policy));
    }
    // Rolled back, twice.
    server.set_status(OTHER, "SPOT", "DISABLED");
    for _ in 0..2 {
        let reply = transfer(&server, OTHER, Way::ToSpot, "9000");
        assert_refused(&reply, 422, "ACCOUNT_DISABLED");
        assert_eq!(reply.json()["state"], json!("ROLLED_BACK"));
    }
    let too_much = transfer(&server, USER, Way::ToSpot, "15000.00000001");
    assert_refused_for_the_day(&too_much, "DAILY_AMOUNT_EXCEEDED");
    assert_eq!(too_much.json()["retryable"], json!(false), "more than any day's");
    assert_eq!(left(&too_much, "day-USDT"), 1_500_000_000_000, "nothing has moved");
    let body = Way::ToSpot.body_with_cid("USDT", "9000", "known");
    assert_eq!(post(&server, USER, &body).status, 200);
    assert_eq!(transfer(&server, USER, Way::ToFunding, "6000").status, 200, "both ways together");

    let all_used = |server: &Server| {
        let refused = transfer(server, USER, Way::ToSpot, "0.00000001");
        assert_refused_for_the_day(&refused, "DAILY_AMOUNT_EXCEEDED");
        assert_eq!((&refused.json()["retryable"], left(&refused, "day-USDT")), (&json!(true), 0));
        let again = post(server, USER, &body);
        assert_eq!((again.status, is_replayed(&again)), (200, true), "{again:?}");
        let reply = post(server, USER, &Way::ToSpot.body("BTC", "0.00000001"));
        assert_eq!((reply.status, reply.header("ratelimit")), (200, None), "not limited");
        let eth = post(server, USER, &Way::ToSpot.body("ETH", "1"));
        assert_refused(&eth, 422, "INSUFFICIENT_BALANCE");
    };
    all_used(&server);
    site.wait_for_rest();
    server.kill();
    let server = site.start();
    all_used(&server);
    let other = transfer(&server, OTHER, Way::ToFunding, "15000");
    assert_refused(&other, 422, "ACCOUNT_DISABLED");
    site.wait_for_rest();
    assert_eq!(server.usdt(USER).sum(), 10_000 * COIN);
    site.assert_in_order(&server);
}

/// Goal: while the last accept of the day has an unknown outcome, no other transfer gets its place,
/// and no caller is refused for the day. Method: an accept hangs in its own commit and its client
/// gets an unknown outcome. Once the connection is also cut, so that the accept needs a later try
/// of the worker.
#[test]
fn an_accept_that_is_not_known_keeps_its_place() {
    for cut in [false, true] {
        away_from_midnight();
        let site = Site::new()
            .with(DAY, 1)
            .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 60_000)
            .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 60_000);
        let server = site.start();
        let held = site.lock_usdt(&[USER]);
        eventually("an accept that is not known", || {
            let replies = crowd(3, |_| server.transfer(USER, Way::ToSpot, "1"));
            // OVERLOADED; on a slow machine even before they could wait.
            assert!(replies.iter().all(|reply| reply.status == 503), "{replies:?}");
            let unknown = |reply: &&Reply| reply.json()["outcome"] == json!("unknown");
            let unknown = replies.iter().filter(unknown).count();
            assert!(unknown <= 1, "{replies:?}");
            (unknown == 1).then_some(())
        });
        if cut {
            site.cut_connections();
        }
        held.sql("ROLLBACK");
        let last = transfer(&server, USER, Way::ToSpot, "2");
        // The unknown accept was made or was given up; in either case the day has one transfer.
        if last.status != 200 {
            assert_refused_for_the_day(&last, "DAILY_LIMIT_EXCEEDED");
        }
        let next = transfer(&server, USER, Way::ToSpot, "3");
        assert_refused_for_the_day(&next, "DAILY_LIMIT_EXCEEDED");
        site.wait_for_rest();
        assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "1");
        site.assert_in_order(&server);
        server.kill();
        let server = site.start();
        let next = transfer(&server, USER, Way::ToSpot, "3");
        assert_refused_for_the_day(&next, "DAILY_LIMIT_EXCEEDED");
    }
}

/// Goal: no kill under load lets a day exceed its limit. Method: a crowd asks for more than the
/// limit, the server is killed during it and started again, three times.
#[test]
fn kills_under_load_give_no_day_more_than_it_holds() {
    away_from_midnight();
    let site = Site::new().with(DAY, 40).with(AMOUNTS, "USDT=30");
    for round in 1..=3u64 {
        let server = site.start();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // It ends when the server does.
                scope.spawn(|| {
                    let path = "/api/v1/internal_transfer";
                    let body = Way::ToSpot.body("USDT", "1");
                    while server.try_ask(USER, "POST", path, Some(&body)).is_ok() {}
                });
            }
            let session = site.session();
            eventually("some of the crowd", || {
                let count = session.sql("SELECT count(*) FROM transfers");
                let count: u64 = count[0][0].parse().expect("a number");
                (count >= (8 * round).min(30)).then_some(())
            });
            server.signal(rustix::process::Signal::KILL);
        });
        drop(server);
    }
    let server = site.start();
    site.wait_for_rest();
    let reply = eventually("the end of the day's amount", || {
        let reply = server.transfer(USER, Way::ToSpot, "1");
        (![200, 503].contains(&reply.status)).then_some(reply)
    });
    assert_refused_for_the_day(&reply, "DAILY_AMOUNT_EXCEEDED");
    assert_eq!(site.sql_value("SELECT trim_scale(sum(amount)) FROM transfers"), "30");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// A clock with a settable lead over the machine's, seconds.
struct Ahead(SystemClock, AtomicU64);

impl Clock for Ahead {
    fn now_ns(&self) -> u64 {
        self.0.now_ns() + self.1.load(Ordering::Relaxed) * 1_000_000_000
    }
    fn monotonic_ns(&self) -> u64 {
        self.0.monotonic_ns()
    }
    fn sleep(&self, duration: Duration) -> Sleep {
        self.0.sleep(duration)
    }
}

/// Goal: the day is the one of the clock that stamps the rows, and a transfer belongs to the day of
/// its row. Method: the table itself, with a clock of the test and accepts with chosen stamps.
#[test]
fn the_day_is_the_one_of_the_clock_that_stamps_the_rows() {
    away_from_midnight();
    let site = Site::new();
    site.start().stop();
    let clock = Arc::new(Ahead(SystemClock::new(), AtomicU64::new(0)));
    let asset = dev::assets()[2].clone();
    let catalog = Arc::new(ArcSwap::from_pointee(Catalog::new(dev::assets())));
    let seconds = Duration::from_secs(5);
    let limits = postgres::Limits {
        connect_timeout: seconds,
        statement_timeout: seconds,
        lock_timeout: seconds,
        idle_in_transaction_timeout: seconds,
    };
    let reads = Reads::new(postgres::pool(&site.target(), &limits, 2), catalog);
    let day = DayMax { transfers: Some(2), amounts: [(asset.id, 10)].into() };
    let options = quota::Options { requests_per_second: None, day };
    let quotas = Quotas::new(options, Arc::clone(&clock) as Arc<dyn Clock>);
    let ask = |user, units| {
        let user = UserId::new(user).expect("in range");
        let amount = Amount::new(units).expect("not zero");
        let checked = Checked { direction: Direction::FundingToSpot, asset: asset.clone(), amount };
        // Again while PostgreSQL is too slow to return the day.
        let admitted = eventually("the day", || {
            let admitted = block_on(quotas.admit(&reads, user, &checked, &mut Vec::new()));
            let slow = admitted.as_ref().is_err_and(|refused| refused.code == Code::SystemError);
            (!slow).then_some(admitted)
        });
        admitted.map(|reservation| reservation.expect("days are limited"))
    };
    let refused = |units| ask(USER, units).expect_err("nothing is left");
    let today = jiff::Timestamp::now();
    let tomorrow = today + SignedDuration::from_hours(24);

    let mut first = ask(USER, 8).expect("room");
    first.accept(today);
    assert_eq!(refused(3).code, Code::DailyAmountExceeded);
    drop(ask(USER, 2).expect("room, given back"));
    first.end(State::Committed);
    let mut second = ask(USER, 2).expect("room");
    second.accept(today);
    second.end(State::RolledBack);
    assert_eq!(refused(1).code, Code::DailyLimitExceeded, "it was a transfer all the same");
    // The next day, and back: no sum changes.
    clock.1.store(86_400, Ordering::Relaxed);
    drop(ask(USER, 10).expect("a new day"));
    clock.1.store(0, Ordering::Relaxed);
    assert_eq!(refused(1).code, Code::DailyLimitExceeded);

    // Around midnight both reserve a place; then one row has the new day, and one the old.
    let (early, late) = (ask(OTHER, 1), ask(OTHER, 1));
    let (mut early, mut late) = (early.expect("room"), late.expect("room"));
    late.accept(tomorrow);
    early.accept(today);
    let third = ask(OTHER, 1).expect("one of two was of the day before");
    drop((early, late, third));
}

/// If the day's use is unknown, the request is refused.
#[test]
fn a_day_that_cannot_be_read_is_an_error_of_ours() {
    let site = Site::new().with(DAY, 5);
    let server = site.start();
    assert_eq!(transfer(&server, USER, Way::ToSpot, "1").status, 200);
    site.admit_connections(false);
    assert_refused(&server.transfer(OTHER, Way::ToSpot, "1"), 503, "SYSTEM_ERROR");
    site.admit_connections(true);
    let reply = post(&server, OTHER, &Way::ToSpot.body("USDT", "1"));
    assert_eq!((reply.status, left(&reply, "day")), (200, 4), "{reply:?}");
}

#[test]
fn a_limit_that_cannot_be_is_named_and_stops_the_start() {
    let key = "limits.user_amounts_per_day_max";
    for (name, value, said) in [
        (AMOUNTS, "NONE=1", format!("{key} = NONE=1: must be of an asset that exists")),
        (AMOUNTS, "USDT=0.000000001", format!("{key} = USDT=0.000000001: must be a number")),
        (AMOUNTS, "USDT=0", format!("{key} = USDT=0: must be a number above 0")),
        (AMOUNTS, "USDT", format!("{key}: \"USDT\" is not SYMBOL=AMOUNT")),
        (DAY, "-1", "limits.user_transfers_per_day_max: ".to_owned()),
        (SECOND, "10001", "limits.user_requests_per_second_max = 10001".to_owned()),
    ] {
        let (code, stderr) = refused(Site::new().with(name, value).command());
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(&said), "{said} is not in {stderr}");
    }
}
