//! The console's reads: the caller, one user's accounts, transfers by any known detail, and the
//! totals of each asset.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::transfer::Op;
use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Balance, COIN, Reply, Request, Server, Site, Way, assert_refused, cli, crowd,
    eventually, external, force, forgetful, now_s, said, send, text, token, units, while_watched,
};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const NEW: u64 = 5005;
const LIST: &str = "/admin/v1/transfers";
const SESSION: &str = "/admin/v1/session";

fn accounts(server: &Server, user: u64) -> Value {
    let reply = server.admin_get(&format!("/admin/v1/accounts/{user}"));
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// One page of the list: the names, and the next page's cursor.
fn page(server: &Server, query: &str) -> (Vec<String>, Option<String>) {
    let reply = server.admin_get(&format!("{LIST}?{query}"));
    assert_eq!(reply.status, 200, "{query}: {reply:?}");
    let json = reply.json();
    let rows = json["transfers"].as_array().expect("an array");
    let names = rows.iter().map(|row| text(&row["req_id"]).to_owned()).collect();
    (names, json["next_cursor"].as_str().map(str::to_owned))
}

/// All pages, `limit` transfers each.
fn walk(server: &Server, query: &str, limit: usize) -> Vec<String> {
    let (mut names, mut cursor) = (Vec::new(), String::new());
    loop {
        let (found, next) = page(server, &format!("{query}&limit={limit}{cursor}"));
        assert!(found.len() <= limit, "{query}: {found:?}");
        names.extend(found);
        match next {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return names,
        }
    }
}

/// Transfer names in the order in which PostgreSQL returns them.
fn names_by(site: &Site, condition: &str) -> Vec<String> {
    let names = format!("SELECT req_id FROM transfers WHERE {condition}");
    site.sql(&names).into_iter().map(|row| row[0].clone()).collect()
}

#[test]
fn a_session_tells_an_admin_who_and_how_things_are() {
    let site = Site::new()
        .with("UBSCORE__APPROVAL__REQUIRED", "resolve,external")
        .with("UBSCORE__ALERT__STUCK_MS", 12_345);
    let server = site.start();
    let session = |server: &Server| {
        let reply = server.admin_get(SESSION);
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    };
    let answer = session(&server);
    let expires: jiff::Timestamp = text(&answer["expires_at"]).parse().expect("a time");
    assert!(expires.as_second() > i64::try_from(now_s()).expect("a time"), "{answer}");
    let want = json!({
        "user_id": ADMIN, "expires_at": answer["expires_at"], "version": env!("CARGO_PKG_VERSION"),
        "approval_required": ["resolve", "external"], "stuck_ms": 12_345, "halted": null,
        "database": site.database, "development": true, "not_ready": null, "recharges": false,
    });
    assert_eq!(answer, want);
    assert_refused(&server.admin_get(&format!("{SESSION}?x=1")), 400, "INVALID_REQUEST");
    let viewer = token(ADMIN, Some(Role::Viewer));
    let looked = send(server.ops, &Request::new(&viewer, "GET", SESSION)).expect("an answer");
    assert_refused(&looked, 403, "FORBIDDEN");
    let halted = server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"}));
    assert_eq!(halted.status, 200, "{halted:?}");
    assert_eq!(session(&server)["halted"], json!({"reason": "a test"}));
    server.kill();
    assert_eq!(session(&site.start())["halted"], json!({"reason": "a test"}));
}

/// Goal: an operator reads the same balances as the user, and both statuses. Method: a user on both
/// sides, a user on either side only, and a user without accounts.
#[test]
fn a_users_accounts_are_shown_with_their_statuses() {
    let site = Site::new();
    let server = site.start();
    let statuses = |user: u64| {
        let shown = accounts(&server, user);
        assert_eq!(shown["user_id"], json!(user));
        assert_eq!(shown["balances"], server.get(user, "/api/v1/balances").json()["balances"]);
        let rows = shown["accounts"].as_array().expect("an array").clone();
        let types: Vec<&str> = rows.iter().map(|row| text(&row["account_type"])).collect();
        assert_eq!(types, ["FUNDING", "SPOT"]);
        [rows[0]["status"].clone(), rows[1]["status"].clone()]
    };
    assert_eq!(statuses(NEW), [Value::Null, Value::Null]);
    assert_eq!(statuses(USER), [json!("ACTIVE"), Value::Null]);
    assert_eq!(server.transfer(USER, Way::ToSpot, "3").status, 200);
    assert_eq!(statuses(USER), [json!("ACTIVE"), json!("ACTIVE")]);
    server.set_status(USER, "FUNDING", "FROZEN");
    server.set_status(USER, "SPOT", "DISABLED");
    server.set_status(NEW, "SPOT", "FROZEN");
    site.wait_for_rest();
    assert_eq!(statuses(USER), [json!("FROZEN"), json!("DISABLED")]);
    assert_eq!(statuses(NEW), [Value::Null, json!("FROZEN")]);
    for bad in ["0", "-1", "x", "01001", "9223372036854775808", "1001?asset=USDT"] {
        let reply = server.admin_get(&format!("/admin/v1/accounts/{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    site.admit_connections(false);
    assert_refused(&server.admin_get("/admin/v1/accounts/1001"), 503, "SYSTEM_ERROR");
    site.admit_connections(true);
}

/// Goal: a search by cid finds its transfers, for every user and in every state. Method: the same
/// cid of two users in two states, another cid, and a transfer under way; with and without the
/// user; by pages of one.
#[test]
fn a_cid_finds_its_transfers_without_their_user() {
    let site = Site::new();
    let server = site.start();
    let post = |user: u64, way: Way, amount: &str, cid: &str| -> Reply {
        server.post(user, &way.body_with_cid("USDT", amount, cid))
    };
    let own = post(USER, Way::ToSpot, "3", "same:1").req_id();
    let others = post(OTHER, Way::ToFunding, "3", "same:1").req_id();
    post(USER, Way::ToSpot, "4", "same:2");
    site.wait_for_rest();
    let hold = site.hold_decision(Op::Deposit);
    let late = server.post_held(&site, USER, &Way::ToFunding.body_with_cid("USDT", "1", "late"));
    for (query, want) in [
        ("cid=same:1", vec![&others, &own]),
        ("cid=same%3A1", vec![&others, &own]),
        ("cid=same:1&user=1001", vec![&own]),
        ("cid=same:1&user=1002", vec![&others]),
        ("cid=same:1&user=1003", vec![]),
        ("cid=same:1&state=FAILED", vec![&others]),
        ("cid=same:1&state=TARGET_PENDING", vec![]),
        ("cid=same:1&stuck=true", vec![]),
        ("cid=same:1&user=1001&ended=true", vec![&own]),
        ("cid=same", vec![]),
        ("cid=late", vec![&late]),
        ("cid=late&state=FAILED", vec![]),
    ] {
        let want: Vec<String> = want.into_iter().cloned().collect();
        assert_eq!(page(&server, query).0, want, "{query}");
        assert_eq!(walk(&server, query, 1), want, "{query}");
    }
    hold.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: the list holds all transfers of one user, newest first, ended and not ended. Method: each
/// end, and one under way; pages of every size, and another user's transfers in between.
#[test]
fn what_a_user_has_is_listed_with_what_has_ended() {
    let site = Site::new();
    let server = site.start();
    for amount in ["9", "20000", "2"] {
        server.transfer(USER, Way::ToSpot, amount);
        server.transfer(OTHER, Way::ToSpot, amount);
    }
    site.wait_for_rest();
    let hold = site.hold_decision(Op::Deposit);
    let late = server.transfer_held(&site, USER, Way::ToFunding, "1");
    let want = names_by(&site, &format!("user_id = {USER} ORDER BY order_number DESC"));
    assert_eq!((want.len(), &want[0]), (4, &late));
    for limit in 1..=5 {
        assert_eq!(walk(&server, "user=1001&ended=true", limit), want, "{limit}");
    }
    assert_eq!(walk(&server, "user=1001&ended=true&state=FAILED", 1), [want[2].clone()]);
    assert_eq!(walk(&server, "user=1001&ended=false", 1), [late]);
    assert_eq!(walk(&server, &format!("user={NEW}&ended=true"), 1), Vec::<String>::new());
    hold.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: the oldest transfer in flight comes first, and a cursor continues with younger ones.
/// Method: transfers that cannot end, in pages; a transfer that ends in between leaves the list,
/// and none is listed twice.
#[test]
fn what_has_not_ended_is_listed_oldest_first() {
    let site = Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 300);
    let server = site.start();
    // One transfer per user: a user's next call waits behind a blocked one.
    let users = [USER, OTHER, NEW, NEW + 1, NEW + 2];
    for user in users {
        server.deposit(user, "USDT", "10");
        server.transfer_accepted(user, Way::ToSpot, "10");
    }
    site.wait_for_rest();
    let lock = site.lock_usdt(&users);
    for user in users {
        let body = Way::ToFunding.body_with_cid("USDT", "1", "waits");
        // If an accept shares its flight with a call that waits for the lock, it may be given up. A
        // repeat of the same body is answered.
        eventually("it is accepted", || (server.post(user, &body).status == 202).then_some(()));
    }
    let want = names_by(&site, "state NOT IN (40, -10, -30) ORDER BY order_number");
    assert_eq!(want.len(), 5);
    for limit in [1, 2, 5, 100] {
        assert_eq!(walk(&server, "order=oldest", limit), want, "{limit}");
        let of_user = walk(&server, "order=oldest&user=1001", limit);
        assert_eq!(of_user, want[..1], "{limit}");
        let newest: Vec<String> = want.iter().rev().cloned().collect();
        assert_eq!(walk(&server, "order=newest", limit), newest, "{limit}");
    }
    assert_eq!(walk(&server, "order=oldest&stuck=true", 5), Vec::<String>::new());
    let (_, next) = page(&server, "order=oldest&limit=2");
    lock.sql("ROLLBACK");
    site.wait_for_rest();
    let behind = format!("order=oldest&cursor={}", next.expect("a second page"));
    assert_eq!(page(&server, &behind), (vec![], None));
    for bad in [
        "order=oldest&state=COMMITTED",
        "order=oldest&user=1001&ended=true",
        "order=oldest&cid=x",
        "order=up",
        "order=",
        "ended=true",
        "ended=yes&user=1001",
        "ended=true&user=1001&stuck=true",
        "cid=",
        "cid=a%20b",
        "cid=x&cid=x",
    ] {
        let reply = server.admin_get(&format!("{LIST}?{bad}"));
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    site.assert_in_order(&server);
}

/// The same from the command line.
#[test]
fn the_command_line_finds_by_cid_by_user_and_by_age() {
    let site = Site::new();
    let server = site.start();
    let ops = format!("http://{}/", server.ops);
    let list = |more: &[&str]| {
        let mut arguments = vec!["transfer", "list", "--format", "json", "--ops", &ops, "--dev"];
        arguments.extend(more);
        let (code, out, err) = said(&cli(&arguments));
        assert_eq!((code, err.as_str()), (0, ""), "{more:?}");
        let name = |line: &str| {
            let row: Value = serde_json::from_str(line).expect("an object a line");
            text(&row["req_id"]).to_owned()
        };
        out.lines().map(name).collect::<Vec<String>>()
    };
    let mine = server.post(USER, &Way::ToSpot.body_with_cid("USDT", "1", "a:b.c")).req_id();
    let fails = server.transfer(USER, Way::ToSpot, "20000").req_id();
    site.wait_for_rest();
    assert_eq!(list(&["--cid", "a:b.c"]), std::slice::from_ref(&mine));
    assert_eq!(list(&["--user-id", "1001", "--ended"]), [fails, mine]);
    assert_eq!(list(&["--oldest"]), Vec::<String>::new());
    assert_eq!(said(&cli(&["transfer", "list", "--ended", "--dev"])).0, 2, "of which user?");
}

/// Goal: a reader of one transfer can put all its events in one order, regardless of the clocks.
/// Method: a transfer that is refunded. Its history has the order of its states though PostgreSQL's
/// clock went back. Its operations have the order of their decisions though Spot's are read from
/// elsewhere.
#[test]
fn a_transfers_timeline_has_one_order() {
    let site = Site::new().with("UBSCORE__COORDINATOR__FUSE", false);
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "10");
    site.wait_for_rest();
    server.set_status(USER, "FUNDING", "DISABLED");
    let req_id = server.transfer(USER, Way::ToFunding, "4").req_id();
    site.wait_for_rest();
    site.sql(&format!(
        "UPDATE transfers_tb SET history[5].at = (history[5]).at - interval '1 hour' WHERE req_id = ulid_uuid('{req_id}')"
    ));
    let shown = server.admin_get(&format!("{LIST}/{req_id}")).json();
    let column = |list: &str, key: &str| -> Vec<String> {
        let rows = shown[list].as_array().expect("an array");
        rows.iter().map(|row| text(&row[key]).to_owned()).collect()
    };
    let states =
        ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMPENSATING", "ROLLED_BACK"];
    assert_eq!(column("history", "state"), states);
    assert_eq!(column("operations", "op"), ["WITHDRAW", "DEPOSIT", "REFUND"]);
    assert_eq!(column("operations", "account"), ["SPOT", "FUNDING", "SPOT"]);
    assert_eq!(column("operations", "outcome"), ["SUCCESS", "REFUSED", "SUCCESS"]);
    assert_eq!(column("operations", "at").len(), 3);
    for (row, in_log) in
        shown["operations"].as_array().expect("rows").iter().zip([true, false, true])
    {
        assert_eq!(row["log_sequence"].is_u64(), in_log, "{row}");
    }
}

const TOTALS: &str = "/admin/v1/totals";

/// The totals, if they can be read now.
fn try_totals(server: &Server) -> Option<Value> {
    let token = token(ADMIN, Some(Role::Viewer));
    let reply = send(server.ops, &Request::new(&token, "GET", TOTALS)).ok()?;
    if reply.status != 200 {
        assert_eq!(reply.refusal().0, 503, "{reply:?}");
        return None;
    }
    Some(reply.json())
}

/// Totals that were read after this call.
fn totals(server: &Server) -> Value {
    let asked = jiff::Timestamp::now();
    eventually("totals of now", || {
        let totals = try_totals(server)?;
        let at: jiff::Timestamp = text(&totals["at"]).parse().expect("a time");
        (at > asked).then_some(totals)
    })
}

/// The totals of one asset: Funding, Spot, in flight, deposited, withdrawn, in 10^-8; and the
/// difference as text.
fn of_asset(totals: &Value, symbol: &str) -> ([u128; 5], String) {
    let assets = totals["assets"].as_array().expect("an array");
    let row = assets.iter().find(|row| row["asset"] == json!(symbol)).expect("every asset");
    let parts = ["funding", "spot", "in_flight", "deposited", "withdrawn"];
    (parts.map(|part| units(text(&row[part]))), text(&row["difference"]).to_owned())
}

/// Asserts that every asset adds up, and that nothing was made or lost.
fn assert_add_up(totals: &Value) {
    for row in totals["assets"].as_array().expect("an array") {
        let symbol = text(&row["asset"]);
        let ([funding, spot, in_flight, deposited, withdrawn], difference) =
            of_asset(totals, symbol);
        assert_eq!(difference, "0", "{totals}");
        assert_eq!(funding + spot + in_flight + withdrawn, deposited, "{totals}");
    }
}

/// Goal: under any load, no read is off by the smallest unit, and no number is guessed. Method:
/// four clients move two assets of two users both ways, in from outside and out again, with
/// refusals, while accounts open and close so that money is refunded. Totals are read all the time:
/// over a kill, a start that replays, a snapshot, another kill, and a start from the snapshot. Once
/// with every outcome kept, and once with UBSCore evicting outcomes as early as possible.
#[test]
fn totals_add_up_at_every_read_whatever_moves_and_dies() {
    const READS: usize = 5;
    for (site, fuse) in [(Site::new(), false), (forgetful(Site::new()), true)] {
        let site = site
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 20)
            .with("UBSCORE__COORDINATOR__FUSE", fuse);
        let turn = AtomicUsize::new(0);
        let (mut read, mut moved) = (0, 0);
        for round in 0..3 {
            let mut server = site.start();
            let mover = || {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                let user = [USER, OTHER][turn % 2];
                let amount = ["1.00000001", "3", "0.5", "20000", "7"][turn % 5];
                let asset = ["USDT", "BTC"][turn / 2 % 2];
                let (path, body) = match turn % 23 {
                    0 => ("/admin/v1/deposits", external(user, asset, "2", &format!("in-{turn}"))),
                    1 => (
                        "/admin/v1/withdrawals",
                        external(user, asset, "1", &format!("out-{turn}")),
                    ),
                    kind => {
                        let account = ["FUNDING", "SPOT"][turn / 46 % 2];
                        let status = match kind {
                            2 => "DISABLED",
                            6 => "ACTIVE",
                            _ => {
                                let way = Way::BOTH[turn / 4 % 2];
                                let body = way.body(asset, amount);
                                // The server may be dead by now.
                                server
                                    .try_ask(user, "POST", "/api/v1/internal_transfer", Some(&body))
                                    .ok();
                                return;
                            }
                        };
                        let path = format!("/admin/v1/accounts/{user}/{account}/status");
                        let body = json!({"status": status, "reason": "a test"});
                        let token = token(ADMIN, Some(Role::Admin));
                        let request =
                            Request { body: Some(&body), ..Request::new(&token, "PUT", &path) };
                        send(server.ops, &request).ok();
                        return;
                    }
                };
                let token = token(ADMIN, Some(Role::Admin));
                let request = Request { body: Some(&body), ..Request::new(&token, "POST", path) };
                send(server.ops, &request).ok();
            };
            while_watched(4, mover, || {
                for _ in 0..READS {
                    let totals = totals(&server);
                    assert_add_up(&totals);
                    read += 1;
                    let ([_, _, in_flight, ..], _) = of_asset(&totals, "USDT");
                    moved += usize::from(in_flight > 0);
                }
                if round == 1 {
                    force(&site, &server);
                }
                server.signal(Signal::KILL);
            });
            server.wait();
        }
        println!("{read} reads, {moved} of them with something in flight");
        let server = site.start();
        for (user, account) in
            [(USER, "FUNDING"), (USER, "SPOT"), (OTHER, "FUNDING"), (OTHER, "SPOT")]
        {
            server.set_status(user, account, "ACTIVE");
        }
        site.wait_for_rest();
        let totals = totals(&server);
        assert_add_up(&totals);
        for symbol in ["USDT", "BTC"] {
            let all = [USER, OTHER].map(|user| server.balances(user)[symbol]);
            let sum =
                |side: fn(&Balance) -> Option<u128>| all.iter().filter_map(side).sum::<u128>();
            let outside = |op: u8| {
                let outside = format!(
                    "SELECT COALESCE(sum(amount), 0) FROM externals JOIN assets_tb USING (asset_id) \
                     WHERE outcome = 1 AND op = {op} AND symbol = '{symbol}'"
                );
                units(&site.sql_value(&outside))
            };
            let want = [sum(|b| b.funding), sum(|b| b.spot), 0, outside(4), outside(5)];
            assert_eq!(of_asset(&totals, symbol).0, want, "{symbol}");
        }
        site.assert_in_order(&server);
    }
}

/// Goal: money under way is in flight to the unit, and money that UBSCore has already decided is
/// not. Method: Funding's deposit is blocked, and then PostgreSQL's mark of a deposit on Spot.
#[test]
fn totals_tell_what_is_in_flight_by_recorded_operations() {
    let site = Site::new();
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "10");
    site.wait_for_rest();
    // Each step is awaited, because an accept is not yet a step.
    let wait_for_usdt = |want: (u128, u128, u128)| {
        eventually(&format!("Funding, Spot and in flight of {want:?}"), || {
            let totals = totals(&server);
            assert_add_up(&totals);
            let ([funding, spot, in_flight, ..], _) = of_asset(&totals, "USDT");
            ((funding, spot, in_flight) == want).then_some(())
        });
    };
    wait_for_usdt((19_990 * COIN, 10 * COIN, 0));
    let hold = site.hold_decision(Op::Deposit);
    server.transfer_held(&site, USER, Way::ToFunding, "4");
    wait_for_usdt((19_990 * COIN, 6 * COIN, 4 * COIN));
    hold.release();
    site.wait_for_rest();
    site.sql("DROP TRIGGER hold ON transfers_tb");
    wait_for_usdt((19_994 * COIN, 6 * COIN, 0));
    let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
    server.transfer_committed(USER, Way::ToSpot, "5");
    wait_for_usdt((19_989 * COIN, 11 * COIN, 0));
    hold.release();
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: money made or taken outside the service is a difference to the unit, of that asset only; a
/// store that is away is not guessed.
#[test]
fn a_change_behind_the_services_back_is_a_difference_of_just_that() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "10").status, 200);
    site.wait_for_rest();
    for (change, undo, want) in [
        ("+ 7.00000001", "- 7.00000001", "7.00000001"),
        ("- 0.5", "+ 0.5", "-0.5"),
        ("+ 0", "+ 0", "0"),
    ] {
        let set = |change: &str| {
            site.sql(&format!(
                "UPDATE balances_tb SET available = available + 1e8 * ({change}) WHERE user_id = {USER} AND asset_id = 3"
            ));
        };
        set(change);
        let read = totals(&server);
        assert_eq!(of_asset(&read, "USDT").1, want, "{read}");
        assert_eq!(of_asset(&read, "BTC").1, "0", "{read}");
        set(undo);
    }
    // Concurrent callers share one read.
    let at = crowd(20, |_| text(&try_totals(&server).expect("totals")["at"]).to_owned());
    let read: BTreeSet<&String> = at.iter().collect();
    assert!(read.len() <= 10, "{read:?}");
    site.admit_connections(false);
    eventually("PostgreSQL to be missed", || try_totals(&server).is_none().then_some(()));
    assert_refused(&server.admin_get(TOTALS), 503, "SYSTEM_ERROR");
    site.admit_connections(true);
    assert_add_up(&totals(&server));
    assert_refused(&server.admin_get(&format!("{TOTALS}?asset=USDT")), 400, "INVALID_REQUEST");
}
