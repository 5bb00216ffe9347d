use std::collections::BTreeSet;
use std::path::Path;

use domain::code::Code;
use domain::posting::ALL;
use serde_json::{Value, json};
use stream::block::CloseReason;
use stream::message::Message;
use ubscore::config::snapshot::KEEPS_POSTINGS;
use ubscore::http::auth::Role;

use super::client::{BTC, Heard, USDT, Venue, open, venue_token};
use super::sessions::{BUYER, COIN, OTHER, SELLER, VENUE, furnish, site};
use crate::harness::{
    Cluster, Reply, Request, Server, Site, Way, assert_refused, cli, eventually, said, send, text,
    token,
};

const MAKER: u64 = 9_001;
const APPROVER: u64 = 9_002;

/// `ubscore` as an operator of this server: exit code, stdout and stderr.
fn on(server: &Server, line: &str, more: &[&str]) -> (i32, String, String) {
    let ops = format!("http://{}", server.ops);
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.extend(["--ops", &ops, "--dev", "--as", "77"]);
    arguments.extend(more);
    said(&cli(&arguments))
}

const WHY: &[&str] = &["--reason", "the book is gone"];

/// Three holds of a venue and one of another: 63 USDT of the buyer, 2 BTC of the seller.
fn reserve(socket: &Path) -> Venue {
    let (mut venue, _) = Venue::opened(socket, VENUE, 0);
    venue.reserve(1, BUYER, USDT, 55 * COIN);
    venue.reserve(2, SELLER, BTC, 2 * COIN);
    venue.reserve(3, BUYER, USDT, 7 * COIN);
    venue.succeed(1..=3);
    let (mut other, _) = Venue::opened(socket, OTHER, 0);
    other.reserve(1, BUYER, USDT, COIN);
    other.succeed([1]);
    venue
}

/// The names of the holds that a query finds, over all pages.
fn holds(server: &Server, query: &str) -> Vec<String> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    loop {
        let reply = server.admin_get(&format!("/admin/v1/holds?{query}{cursor}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        let json = reply.json();
        let rows = json["holds"].as_array().expect("an array");
        found.extend(rows.iter().map(|hold| text(&hold["id"]).to_owned()));
        match json["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => {
                found.sort();
                return found;
            }
        }
    }
}

/// Available and frozen USDT of the buyer on Spot, as the buyer reads them.
fn spot(server: &Server) -> (String, String) {
    let json = server.get(BUYER, "/api/v1/balances").json();
    let rows = json["balances"].as_array().expect("an array");
    let usdt = rows.iter().find(|row| row["asset"] == json!("USDT")).expect("a row");
    let of = |key: &str| text(&usdt["spot"][key]).to_owned();
    (of("available"), of("frozen"))
}

fn pair(available: &str, frozen: &str) -> (String, String) {
    (available.to_owned(), frozen.to_owned())
}

/// Both stores agree, account by account and in total.
pub(super) fn adds_up(server: &Server) {
    let report = server.admin_get("/admin/v1/conservation").json();
    assert_eq!(report["ok"], json!(true), "{report}");
    let totals = server.admin_get("/admin/v1/totals").json();
    for asset in totals["assets"].as_array().expect("an array") {
        assert_eq!(asset["difference"], json!("0"), "{totals}");
    }
}

fn verified(site: &Site) {
    let output = site.verify().output().expect("the binary");
    assert!(output.status.success(), "{output:?}");
}

/// HLD-017. Goal: an operator finds, shows and releases holds of a closed venue, and is refused on
/// an open one; the venue's numbers stay its own, and its late end of such a hold is refused.
#[test]
fn an_operator_releases_holds_of_a_closed_venue_only() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let mut venue = reserve(&socket);
    assert_eq!(spot(&server), pair("937", "63"));

    let all = ["7:1", "7:2", "7:3", "8:1"].map(str::to_owned);
    for (query, want) in [
        ("", &all[..]),
        ("limit=1", &all),
        ("venue=7", &all[..3]),
        ("venue=8&user=3001", &all[3..]),
        ("asset=BTC", &all[1..2]),
        ("older_ms=3600000", &[]),
        ("purpose=1", &[]),
    ] {
        assert_eq!(holds(&server, query), want, "{query}");
    }
    let of_seller = server.admin_get(&format!("/admin/v1/holds?user={SELLER}")).json();
    assert_eq!(of_seller["holds"][0]["amount"], json!("2"), "{of_seller}");
    let balance = json!([{"asset": "BTC", "available": "8", "held": "2", "exact": true}]);
    assert_eq!(of_seller["balances"], balance);
    for bad in ["user=0", "asset=NONE", "venue=0", "purpose=65536", "older_ms=-1", "limit=0", "x=1"]
    {
        let reply = server.admin_get(&format!("/admin/v1/holds?{bad}"));
        assert_eq!(reply.status, 400, "{bad}: {reply:?}");
    }

    let why = json!({"reason": "a test"});
    let path = "/admin/v1/holds/7:1/release";
    assert_refused(&server.admin("POST", path, &why), 409, "INVALID_REQUEST");
    let viewer = token(MAKER, Some(Role::Viewer));
    let body = Request { body: Some(&why), ..Request::new(&viewer, "POST", path) };
    assert_refused(&send(server.ops, &body).expect("an answer"), 403, "FORBIDDEN");
    let (code, _, err) = on(&server, "hold release 7:1", WHY);
    assert_eq!(code, 1, "{err}");
    assert_eq!(spot(&server), pair("937", "63"));

    let (code, out, err) = on(&server, "venue close 7", WHY);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(venue.rest().last(), Some(&Heard::Close(CloseReason::Fenced)));
    let (_, out, _) = on(&server, "venue list", &[]);
    assert!(out.lines().any(|line| line.starts_with("7 ") && line.contains("closed")), "{out}");
    let (code, out, _) = on(&server, "hold show 7:1", &[]);
    assert!(code == 0 && out.contains("55") && out.contains("USDT"), "{out}");
    let (_, out, _) = on(&server, "hold list --user 3001 --older 1h --format json", &[]);
    let balance: Value = serde_json::from_str(out.trim_end()).expect("one line");
    assert_eq!((&balance["held"], &balance["exact"]), (&json!("63"), &json!(true)));

    let (code, out, err) = on(&server, "hold release 7:1", WHY);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(out, "released: 7:1, 55 USDT to user 3001\n");
    assert_eq!(spot(&server), pair("992", "8"));
    let (code, _, err) = on(&server, "hold release 7:1", WHY);
    assert!(code == 1 && err.contains("HOLD_NOT_FOUND"), "{err}");
    let by = "SELECT actor, subject, reason FROM admin_audit WHERE action = 'hold release' LIMIT 1";
    assert_eq!(site.sql(by), [["admin/77", "7:1", "the book is gone"]]);
    let (code, out, err) = on(&server, "hold release --venue 7 --all", WHY);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert_eq!(out.lines().count(), 2, "{out}");
    assert_eq!(holds(&server, ""), all[3..]);
    adds_up(&server);

    let (code, _, err) = on(&server, "venue open 7", WHY);
    assert_eq!(code, 0, "{err}");
    let (mut venue, begun) = Venue::opened(&socket, VENUE, 3);
    assert_eq!((begun.epoch, begun.last), (2, 3));
    venue.release(4, 1, ALL);
    assert_eq!(venue.answer(4).0, Some(Code::HoldNotFound));
    server.says("alert=\"settle_refused\"");
    assert_eq!(server.metric("ubscore_postings_total{op=\"RELEASE\",result=\"refused\"}"), 1);
    assert_eq!(server.metric("ubscore_holds"), 1);
    assert_eq!(server.metric("ubscore_held{asset=\"USDT\"}"), 1);
    assert_eq!(server.metric("ubscore_venue_number{venue=\"7\"}"), 4);
    server.stop();
    verified(&site);
    let server = site.start();
    assert_eq!((holds(&server, ""), spot(&server)), (all[3..].to_vec(), pair("999", "1")));
    server.stop();
}

/// Goal: held money counts in every balance and sum. Method: transfers of the same users around
/// open holds, a snapshot, a restart, a comparison of both stores at each step.
#[test]
fn open_holds_count_in_balances_totals_and_the_audit() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let _venue = reserve(&socket);
    for way in [Way::ToFunding, Way::ToSpot] {
        let (from, _) = way.accounts();
        let reply = server.post_ended(BUYER, &way.body_with_cid("USDT", "937", from));
        assert_eq!(reply.status, 200, "{reply:?}");
        adds_up(&server);
    }
    let more =
        server.post_ended(BUYER, &Way::ToFunding.body_with_cid("USDT", "937.00000001", "more"));
    assert_refused(&more, 422, "INSUFFICIENT_BALANCE");
    let shown = server.admin_get(&format!("/admin/v1/accounts/{BUYER}")).json();
    let rows = shown["balances"].as_array().expect("an array");
    let usdt = rows.iter().find(|row| row["asset"] == json!("USDT")).expect("a row");
    assert_eq!(usdt["spot"], json!({"available": "937", "frozen": "63"}));
    let taken = server.admin("POST", "/admin/v1/snapshot", &json!({"reason": "a test"}));
    assert!([200, 202].contains(&taken.status), "{taken:?}");
    adds_up(&server);
    let output = site.tool(["statement", "--user", &BUYER.to_string()]).output();
    let output = output.expect("the binary");
    assert!(output.status.success(), "{output:?}");
    server.stop();
    verified(&site);
    let server = site.start();
    assert_eq!(spot(&server), pair("937", "63"));
    adds_up(&server);
    server.stop();
}

/// Goal: with `hold` in `approval.required` a release waits for another operator, happens once, and
/// is not even asked for at an open venue.
#[test]
fn a_release_waits_for_another_operator() {
    let (site, socket) = site();
    let server = site.with("UBSCORE__APPROVAL__REQUIRED", "hold").start();
    furnish(&server);
    let _venue = reserve(&socket);
    let why = json!({"reason": "a test"});
    let post = |actor: u64, path: &str| -> Reply {
        let token = token(actor, Some(Role::Admin));
        let request = Request { body: Some(&why), ..Request::new(&token, "POST", path) };
        send(server.ops, &request).expect("an answer")
    };
    let release = "/admin/v1/holds/7:1/release";
    assert_refused(&post(MAKER, release), 409, "INVALID_REQUEST");
    assert_eq!(post(MAKER, "/admin/v1/venues/7/close").status, 200);
    let asked = [post(MAKER, release), post(MAKER, release)];
    let names: BTreeSet<String> = asked
        .iter()
        .map(|reply| {
            assert_eq!(reply.status, 202, "{reply:?}");
            let json = reply.json();
            let fields = [text(&json["action"]), text(&json["subject"])];
            assert_eq!(fields, ["hold", "7:1"]);
            text(&json["approval_id"]).to_owned()
        })
        .collect();
    assert_eq!(names.len(), 1, "a repeat has the same approval");
    let approve = format!("/admin/v1/approvals/{}/approve", names.first().expect("one"));
    assert_refused(&post(MAKER, &approve), 403, "FORBIDDEN");
    assert_eq!(spot(&server), pair("937", "63"));
    let approved = post(APPROVER, &approve);
    assert_eq!(approved.status, 200, "{approved:?}");
    assert_eq!(approved.json()["amount"], json!("55"));
    assert_eq!(spot(&server), pair("992", "8"));
    let (code, out, err) = on(&server, "hold release --venue 7 --all", WHY);
    assert_eq!((code, out.matches("approval approve").count()), (3, 2), "{out}{err}");
    adds_up(&server);
    server.stop();
}

/// Goal: an old hold and a venue that does not acknowledge are reported.
#[test]
fn an_old_hold_and_a_full_window_are_reported() {
    let (site, socket) = site();
    let server = site
        .with("UBSCORE__ALERT__HOLD_STUCK_MS", 1)
        .with("UBSCORE__ENGINE__WINDOW", WINDOW)
        .start();
    furnish(&server);
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    for number in 1..=WINDOW {
        venue.reserve(number, BUYER, USDT, 1);
    }
    venue.succeed(1..=WINDOW);
    server.says("alert=\"hold_stuck\"");
    server.says("alert=\"venue_behind\"");
    let unacknowledged = server.metric("ubscore_venue_unacknowledged{venue=\"7\"}");
    assert_eq!(unacknowledged, WINDOW);
    // The session has been silent for too long meanwhile.
    let (mut venue, _) = Venue::opened(&socket, VENUE, WINDOW);
    venue.acknowledge(WINDOW);
    venue.reserve(WINDOW + 1, BUYER, USDT, 1);
    venue.succeed([WINDOW + 1]);
    eventually("it has caught up", || {
        (server.metric("ubscore_venue_unacknowledged{venue=\"7\"}") == 1).then_some(())
    });
    server.stop();
}

/// Story: PUT, and so `venue add`, opened a closed venue. Goal: only `venue open` with a reason
/// does.
#[test]
fn only_an_open_with_a_reason_opens_a_closed_venue() {
    let (site, socket) = site();
    let server = site.start();
    furnish(&server);
    let (code, _, err) = on(&server, "venue close 7", WHY);
    assert_eq!(code, 0, "{err}");
    let path = format!("/admin/v1/venues/{VENUE}");
    let body = json!({"name": format!("book {VENUE}"), "reason": "a test"});
    let put = server.admin("PUT", &path, &body);
    assert_eq!((put.status, &put.json()["closed"]), (200, &json!(true)), "{put:?}");
    let (code, out, err) = on(&server, "venue add 7", &["book 7", WHY[0], WHY[1]]);
    assert!(code == 0 && out.starts_with("venue 7: closed"), "{out}{err}");
    let heard = || {
        let mut venue = Venue::connect(&socket);
        venue.send(&Message::Open(&open(VENUE, 0, 0, &venue_token(VENUE))));
        venue.hear()
    };
    assert_eq!(heard(), Heard::Close(CloseReason::Closed));
    let (code, _, err) = on(&server, "venue open 7", &[]);
    assert_eq!(code, 2, "without a reason: {err}");
    assert_eq!(heard(), Heard::Close(CloseReason::Closed));
    let (code, out, err) = on(&server, "venue open 7", WHY);
    assert_eq!((code, out.as_str()), (0, "venue 7: open\n"), "{err}");
    assert!(matches!(heard(), Heard::Opened(_)));
}

/// Goal: the first venue, also if it comes while the service runs, has it warn once that no archive
/// command is set.
#[test]
fn the_first_venue_warns_of_a_missing_archive_command() {
    let (site, _) = site();
    let server = site.start();
    let warnings = |server: &Server| server.said().matches(KEEPS_POSTINGS).count();
    assert_eq!(warnings(&server), 0);
    furnish(&server);
    server.says(KEEPS_POSTINGS);
    assert_eq!(warnings(&server), 1, "two venues, one warning");
    server.stop();
    let server = site.start();
    server.says(KEEPS_POSTINGS);
    server.stop();
    let server = site.elsewhere().with("UBSCORE__SNAPSHOT__TRADES", "discard").start();
    furnish(&server);
    assert_eq!(warnings(&server), 0, "the operator has decided");
    server.stop();
}

/// Story: a replica that lagged was promoted without the mark of the first venue, and the next log
/// could have been rebuilt without the venues' postings. Goal: the mark is set again, behind an
/// alert, by the running process and by a start.
#[test]
fn a_failover_without_the_mark_of_venues_sets_it_again() {
    let (site, cluster) = Site::on_its_own_cluster();
    let server = site.start();
    let replica = cluster.copy_files();
    let body = json!({"name": "book", "reason": "a test"});
    assert_eq!(server.admin("PUT", "/admin/v1/venues/7", &body).status, 200);
    let posted = || site.sql_value("SELECT posted FROM engine_state");
    assert_eq!(posted(), "t");
    cluster.kill();
    Cluster::promote(&replica);
    cluster.take_over(&replica);
    server.says("engine_state.posted");
    eventually("the mark", || (posted() == "t").then_some(()));
    server.stop();
    site.sql("UPDATE engine_state SET posted = FALSE");
    let server = site.start();
    server.says("engine_state.posted");
    assert_eq!(posted(), "t");
    server.stop();
}

/// Answers that a venue may leave without an acknowledgement.
const WINDOW: u64 = 64;
