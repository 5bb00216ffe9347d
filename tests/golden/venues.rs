//! The files of a version with venues: one amid its window, with holds, and a closed one. Freezes
//! on Spot have no door yet.

use std::fs;
use std::path::{Path, PathBuf};

use domain::code::Code;
use domain::posting::{ALL, Leg, Place};
use serde_json::{Value, json};

use super::{HELD, USER, keep, post, told_balances};
use crate::harness::{Server, Site, Way, force};
use crate::stream::client::{BTC, USDT, Venue, leg};

/// The rows that operators read of its venues and holds.
pub(super) const TOLD: &str = "venues.json";
const VENUE: u32 = 7;
const CLOSED: u32 = 8;
/// One coin, smallest units.
const UNITS: u64 = 100_000_000;
/// The last number of the venue, and the last one acknowledged.
const LAST: u64 = 6;
const ACKNOWLEDGED: u64 = 2;

/// The site with a socket for venues.
pub(super) fn with_socket(site: Site) -> (Site, PathBuf) {
    let socket = site.fresh_path("stream");
    let site = site.with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 18);
    (site.with("UBSCORE__STREAM__SOCKET", socket.display()), socket)
}

/// Venues and holds, as operators read them.
fn told(server: &Server) -> Value {
    let [venues, holds] = ["venues", "holds"]
        .map(|path| server.admin_get(&format!("/admin/v1/{path}")).json()[path].clone());
    json!({"venues": venues, "holds": holds})
}

/// The files of a version, written by this one.
pub(super) fn write(folder: &Path) {
    let (site, socket) = with_socket(super::site());
    let site = site.with("UBSCORE__OUTCOMES__KEEP_HOURS", 24);
    let server = site.start();
    let mut answers = Vec::new();
    for (user, asset, amount) in [(USER, "USDT", "1000"), (HELD, "BTC", "10")] {
        server.deposit(user, asset, "2000");
        post(&server, user, Way::ToSpot.body_with_cid(asset, amount, "in"), &mut answers);
    }
    for venue in [VENUE, CLOSED] {
        let body = json!({"name": format!("book {venue}"), "reason": "a test"});
        let reply = server.admin("PUT", &format!("/admin/v1/venues/{venue}"), &body);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let (mut venue, _) = Venue::opened(&socket, VENUE, 0);
    venue.reserve(1, USER, USDT, 55 * UNITS);
    venue.reserve(2, HELD, BTC, 2 * UNITS);
    let to_buyer = Leg { asset: BTC, ..leg(Place::Hold(2), Place::Available(USER), UNITS) };
    venue.settle(3, &[leg(Place::Hold(1), Place::Available(HELD), 50 * UNITS), to_buyer]);
    venue.reserve(4, USER, USDT, 10_000 * UNITS);
    venue.succeed(1..=3);
    assert_eq!(venue.answer(4).0, Some(Code::InsufficientBalance));
    // It takes effect with the next record.
    venue.acknowledge(ACKNOWLEDGED);
    venue.reserve(5, USER, USDT, 7 * UNITS);
    venue.succeed([5]);
    let (mut closed, _) = Venue::opened(&socket, CLOSED, 0);
    closed.reserve(1, USER, USDT, UNITS);
    closed.succeed([1]);
    force(&site, &server);
    venue.release(LAST, 5, UNITS);
    venue.succeed([LAST]);
    let reply = server.admin("POST", "/admin/v1/venues/8/close", &json!({"reason": "a test"}));
    assert_eq!(reply.status, 200, "{reply:?}");
    site.wait_for_rest();
    let balances = json!({
        USER.to_string(): told_balances(&server, USER),
        HELD.to_string(): told_balances(&server, HELD),
    });
    let venues = told(&server);
    server.kill();
    keep(folder, &site, &json!({"answers": answers, "balances": balances}));
    let text = serde_json::to_string_pretty(&venues).expect("JSON");
    fs::write(folder.join(TOLD), text + "\n").expect("written");
}

/// Asserts that venues and holds are those of the version, that a repeat has its answer, and that
/// the venue goes on.
pub(super) fn assert_kept(folder: &Path, server: &Server, socket: &Path) {
    let text = fs::read_to_string(folder.join(TOLD)).expect("text");
    let kept: Value = serde_json::from_str(&text).expect("JSON");
    let mut found = told(server);
    for hold in found["holds"].as_array_mut().expect("an array") {
        // A later field: holds of Funding are in the same list.
        let account = hold.as_object_mut().expect("a hold").remove("account");
        assert_eq!(account, Some(json!("SPOT")));
    }
    assert_eq!(found, kept, "{}", folder.display());
    let (mut venue, begun) = Venue::opened(socket, VENUE, LAST);
    assert_eq!((begun.last, begun.acknowledged), (LAST, ACKNOWLEDGED));
    assert_eq!(venue.holds(), [(1, 5 * UNITS), (2, UNITS), (5, 6 * UNITS)]);
    venue.reserve(4, USER, USDT, 10_000 * UNITS);
    assert_eq!(venue.answer(4).0, Some(Code::InsufficientBalance));
    venue.release(LAST, 5, UNITS);
    venue.release(LAST + 1, 1, ALL);
    venue.succeed([LAST, LAST + 1]);
}

/// Asserts that both stores agree. Postings are no transfers: a balance is not their sum.
pub(super) fn assert_whole(site: &Site, server: &Server) {
    site.assert_verified();
    let report = server.admin_get("/admin/v1/conservation").json();
    assert_eq!(report["ok"], json!(true), "{report}");
}
