//! FSM-001 to FSM-006: the recorded states of a transfer, with fused transitions and without.

use domain::transfer::Op;
use serde_json::json;

use super::{
    FAILS, ROLLS_BACK, SUCCEEDS, USER, after, assert_passed, funding_operations, impatient,
    recorded_operations, start_endowed, stored_state, success, wait_for_state, wait_for_tries,
};
use crate::harness::{COIN, Site, Way, assert_refused, eventually};

/// A transfer that succeeds. `fused_commits`: the states that each of its commits takes it through
/// when they are fused.
fn succeeds(way: Way, fused_commits: &[&str]) {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        let before = server.usdt(USER);
        let reply = server.transfer(USER, way, "12");
        assert_eq!(reply.status, 200, "{reply:?}");
        site.wait_for_rest();
        let transfer = assert_passed(&server, USER, &reply.req_id(), &SUCCEEDS);
        assert_eq!((&transfer["funds_at"], &transfer["final"]), (&json!("target"), &json!(true)));
        let commits = site.commits(&reply.req_id());
        match fuse {
            true => assert_eq!(commits, fused_commits),
            false => assert_eq!(commits, ["0", "10", "20", "30", "40"]),
        }
        assert_eq!(server.usdt(USER), after(before, way, 12 * COIN));
        site.assert_in_order(&server);
    }
}

#[test]
fn fsm_001_funding_to_spot_passes_every_state() {
    succeeds(Way::ToSpot, &["0 10 20 30", "40"]);
}

#[test]
fn fsm_002_spot_to_funding_passes_every_state() {
    succeeds(Way::ToFunding, &["0 10", "20 30 40"]);
}

#[test]
fn fsm_003_a_source_that_refuses_ends_in_failed() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let reply = server.transfer(USER, way, "20000");
            assert_refused(&reply, 422, "INSUFFICIENT_BALANCE");
            site.wait_for_rest();
            let transfer = assert_passed(&server, USER, &reply.req_id(), &FAILS);
            assert_eq!(transfer["error"]["code"], json!("INSUFFICIENT_BALANCE"), "{transfer}");
            assert_eq!(transfer["funds_at"], json!("source"), "{transfer}");
        }
        site.assert_in_order(&server);
    }
}

#[test]
fn fsm_004_a_target_that_refuses_ends_in_rolled_back() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let (_, target) = way.accounts();
            server.set_status(USER, target, "DISABLED");
            let reply = server.transfer(USER, way, "12");
            assert_refused(&reply, 422, "ACCOUNT_DISABLED");
            site.wait_for_rest();
            let transfer = assert_passed(&server, USER, &reply.req_id(), &ROLLS_BACK);
            assert_eq!(transfer["error"]["code"], json!("ACCOUNT_DISABLED"), "{transfer}");
            assert_eq!(transfer["funds_at"], json!("source"), "{transfer}");
            server.set_status(USER, target, "ACTIVE");
        }
        site.assert_in_order(&server);
    }
}

/// Tries after which an unchanged state counts as stable.
const TRIES: usize = 4;

/// Goal: a target that does not answer is asked again without end, and nothing is compensated
/// meanwhile. Method: Funding's deposit waits for a lock longer than the server does; after several
/// tries the state is the same; the lock is released.
#[test]
fn fsm_005_a_target_that_does_not_answer_is_asked_for_ever() {
    for fuse in [true, false] {
        let site = impatient(fuse);
        let server = start_endowed(&site);
        let before = server.usdt(USER);
        let hold = site.hold_decision(Op::Deposit);
        let reply = server.post_pending(USER, &Way::ToFunding.body_with_cid("USDT", "12", "held"));
        assert_eq!((reply.status, &reply.json()["state"]), (202, &json!("PENDING")), "{reply:?}");
        let req_id = reply.req_id();
        wait_for_state(&site, &req_id, "30");
        wait_for_tries(&server, TRIES);
        assert_eq!(stored_state(&site, &req_id), "30");
        // A restart continues with the stored number of tries.
        eventually("the tries to be stored", || {
            let tries = "SELECT attempts >= 4 AND next_retry_at IS NOT NULL FROM transfers";
            (site.sql_value(&format!("{tries} WHERE req_id = '{req_id}'")) == "t").then_some(())
        });
        let transfer = assert_passed(&server, USER, &req_id, &SUCCEEDS[..4]);
        assert_eq!(transfer["funds_at"], json!("in_flight"), "{transfer}");
        assert_eq!(server.usdt(USER).sum(), before.sum());
        assert_eq!(u128::try_from(server.usdt(USER).in_flight), Ok(12 * COIN));

        hold.release();
        site.wait_for_rest();
        assert_passed(&server, USER, &req_id, &SUCCEEDS);
        assert_eq!(funding_operations(&site, &req_id), ["2:1"]);
        assert_eq!(server.usdt(USER), after(before, Way::ToFunding, 12 * COIN));
        site.assert_in_order(&server);
    }
}

/// The same for a refund: Funding's own, and one of Spot while PostgreSQL
/// cannot write the final state.
#[test]
fn fsm_006_a_refund_that_is_not_answered_is_asked_for_ever() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = impatient(fuse);
            let server = start_endowed(&site);
            let before = server.usdt(USER);
            server.set_status(USER, way.accounts().1, "DISABLED");
            let hold = match way {
                Way::ToSpot => site.hold_decision(Op::Refund),
                Way::ToFunding => site.hold("UPDATE OF state ON transfers_tb", "NEW.state = -30"),
            };
            let req_id = server.transfer_held(&site, USER, way, "12");
            wait_for_state(&site, &req_id, "-20");
            wait_for_tries(&server, TRIES);
            assert_eq!(stored_state(&site, &req_id), "-20");
            if way == Way::ToSpot {
                assert_passed(&server, USER, &req_id, &ROLLS_BACK[..5]);
                assert_eq!(u128::try_from(server.usdt(USER).in_flight), Ok(12 * COIN));
            }
            assert_eq!(server.usdt(USER).sum(), before.sum());

            hold.release();
            site.wait_for_rest();
            assert_passed(&server, USER, &req_id, &ROLLS_BACK);
            match way {
                Way::ToSpot => assert_eq!(funding_operations(&site, &req_id), ["1:1", "3:1"]),
                Way::ToFunding => {
                    let want = [success("WITHDRAW"), success("REFUND")];
                    assert_eq!(recorded_operations(&site, &req_id), want);
                }
            }
            assert_eq!(server.usdt(USER), before);
            site.assert_in_order(&server);
        }
    }
}
