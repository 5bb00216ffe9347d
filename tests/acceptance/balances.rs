//! BAL-001 to BAL-005.

use serde_json::json;

use super::{FAILS, GIFT, USER, after, assert_passed, count_of, start_endowed};
use crate::harness::{Balance, COIN, Site, Way, assert_refused, crowd};

/// More by one smallest unit, both ways.
#[test]
fn bal_001_more_than_is_available_is_refused_and_changes_nothing() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        let before = server.balances(USER);
        for (way, amount) in [(Way::ToSpot, "9950.00000001"), (Way::ToFunding, "50.00000001")] {
            let reply = server.transfer(USER, way, amount);
            assert_refused(&reply, 422, "INSUFFICIENT_BALANCE");
            assert_eq!(server.balances(USER), before);
            site.wait_for_rest();
            assert_passed(&server, USER, &reply.req_id(), &FAILS);
        }
        site.assert_in_order(&server);
    }
}

#[test]
fn bal_002_all_that_is_available_leaves_zero() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        assert_eq!(server.transfer(USER, Way::ToSpot, "9950").status, 200);
        assert_eq!(server.usdt(USER), Balance::at_rest(0, GIFT));
        assert_eq!(server.transfer(USER, Way::ToFunding, "10000").status, 200);
        assert_eq!(server.usdt(USER), Balance::at_rest(GIFT, 0));
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

#[test]
fn bal_003_of_two_transfers_at_once_that_need_more_than_there_is_one_succeeds() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for (way, coins) in [(Way::ToSpot, 6_000), (Way::ToFunding, 6_000)] {
            let before = server.usdt(USER);
            let replies = crowd(2, |_| server.transfer(USER, way, &coins.to_string()));
            assert_eq!((count_of(&replies, 200), count_of(&replies, 422)), (1, 1), "{replies:?}");
            let refused = replies.iter().find(|reply| reply.status == 422).expect("one");
            assert_refused(refused, 422, "INSUFFICIENT_BALANCE");
            site.wait_for_rest();
            assert_eq!(server.usdt(USER), after(before, way, coins * COIN));
        }
        site.assert_in_order(&server);
    }
}

/// Asserts that a source in a status pays nothing, on either side, and pays again once it is
/// active.
fn assert_pays_nothing(status: &str, code: &str) {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let before = server.balances(USER);
            let (source, _) = way.accounts();
            server.set_status(USER, source, status);
            let reply = server.transfer(USER, way, "1");
            assert_refused(&reply, 422, code);
            assert_eq!(reply.json()["state"], json!("FAILED"));
            assert_eq!(server.balances(USER), before);
            server.set_status(USER, source, "ACTIVE");
            assert_eq!(server.transfer(USER, way, "1").status, 200);
            site.wait_for_rest();
        }
        site.assert_in_order(&server);
    }
}

#[test]
fn bal_004_a_frozen_account_pays_nothing() {
    assert_pays_nothing("FROZEN", "ACCOUNT_FROZEN");
}

#[test]
fn bal_005_a_disabled_account_pays_nothing() {
    assert_pays_nothing("DISABLED", "ACCOUNT_DISABLED");
}
