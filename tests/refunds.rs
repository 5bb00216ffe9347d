//! Targets that refuse: the source gets its money back, to the unit, in any later state of the
//! source.

use domain::transfer::Op;
use serde_json::{Value, json};

use crate::harness::{Reply, Server, Site, Way, assert_refused};

const USER: u64 = 1001;

/// A server with USDT in both accounts.
fn start(site: &Site) -> Server {
    let server = site.start();
    server.deposit(USER, "USDT", "0.00000007");
    server.transfer_accepted(USER, Way::ToSpot, "50.00000003");
    site.wait_for_rest();
    server
}

/// Asserts that a transfer was rolled back with the target's code, and that its history shows it.
fn assert_rolled_back(site: &Site, server: &Server, reply: &Reply, code: &str) {
    assert_refused(reply, 422, code);
    assert_eq!(reply.json()["state"], json!("ROLLED_BACK"), "{reply:?}");
    site.wait_for_rest();
    let transfer = server.look(USER, &reply.req_id());
    let states: Vec<&Value> =
        transfer["history"].as_array().expect("an array").iter().map(|p| &p["state"]).collect();
    let want =
        ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMPENSATING", "ROLLED_BACK"];
    assert_eq!(states, want);
    assert_eq!(transfer["error"]["code"], json!(code));
    assert_eq!((&transfer["funds_at"], &transfer["final"]), (&json!("source"), &json!(true)));
}

#[test]
fn a_disabled_target_gives_the_source_its_money_back() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start(&site);
        for (way, target) in [(Way::ToSpot, "SPOT"), (Way::ToFunding, "FUNDING")] {
            let before = server.usdt(USER);
            server.set_status(USER, target, "DISABLED");
            let body = way.body_with_cid("USDT", "12.00000001", &format!("{way:?}"));
            let reply = server.post(USER, &body);
            assert_rolled_back(&site, &server, &reply, "ACCOUNT_DISABLED");
            assert_eq!(server.usdt(USER), before);
            // It stays so when the target is open again, and a new transfer is a new one.
            server.set_status(USER, target, "ACTIVE");
            let again = server.post(USER, &body);
            assert_eq!((again.status, again.req_id()), (422, reply.req_id()), "{again:?}");
            assert_eq!(again.json()["state"], json!("ROLLED_BACK"));
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            assert_eq!(server.transfer(USER, way, "1").status, 200);
            site.wait_for_rest();
            site.assert_in_order(&server);
        }
        // And it is all in the log.
        server.kill();
        let server = site.start();
        site.assert_in_order(&server);
    }
}

/// A frozen target takes money in.
#[test]
fn a_frozen_target_is_credited() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start(&site);
        for (way, target) in [(Way::ToSpot, "SPOT"), (Way::ToFunding, "FUNDING")] {
            server.set_status(USER, target, "FROZEN");
            let reply = server.transfer(USER, way, "1");
            assert_eq!(reply.status, 200, "{reply:?}");
            server.set_status(USER, target, "ACTIVE");
        }
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

#[test]
fn a_funding_account_that_is_gone_gives_spot_its_money_back() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start(&site);
        let before = server.usdt(USER);
        site.sql(&format!("DELETE FROM accounts_tb WHERE user_id = {USER}"));
        let reply = server.transfer(USER, Way::ToFunding, "12.00000001");
        assert_rolled_back(&site, &server, &reply, "TARGET_ACCOUNT_NOT_FOUND");
        site.sql(&format!("INSERT INTO accounts_tb (user_id) VALUES ({USER})"));
        assert_eq!(server.usdt(USER), before);
        site.assert_in_order(&server);
    }
}

/// Goal: a refund is never refused because of the source's later state. Method: a lock in
/// PostgreSQL blocks the refund, the source is frozen or disabled, the lock is released.
#[test]
fn a_refund_reaches_a_source_that_was_closed_meanwhile() {
    for fuse in [true, false] {
        for status in ["FROZEN", "DISABLED"] {
            for way in Way::BOTH {
                let site = Site::fused(fuse).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
                let server = start(&site);
                let before = server.usdt(USER);
                let (source, target) = way.accounts();
                server.set_status(USER, target, "DISABLED");
                let held = match way {
                    Way::ToSpot => site.hold_decision(Op::Refund),
                    Way::ToFunding => {
                        site.hold("UPDATE OF state ON transfers_tb", "NEW.state = -20")
                    }
                };
                let body = way.body_with_cid("USDT", "12.00000001", "held");
                let reply = server.post_pending(USER, &body);
                site.wait_for_held();
                assert_eq!(server.usdt(USER).in_flight, 1_200_000_001);
                match source {
                    // Its worker waits for the lock too, so this does not go through the worker.
                    "FUNDING" => {
                        let number = if status == "FROZEN" { 2 } else { 3 };
                        site.sql(&format!(
                            "UPDATE accounts_tb SET status = {number} WHERE user_id = {USER}"
                        ));
                    }
                    _ => server.set_status(USER, source, status),
                }
                held.release();
                site.wait_for_rest();
                let seen = server.look(USER, &reply.req_id());
                assert_eq!(seen["state"], json!("ROLLED_BACK"), "{seen}");
                assert_eq!(seen["error"]["code"], json!("ACCOUNT_DISABLED"), "{seen}");
                assert_eq!(server.usdt(USER), before);
                site.assert_in_order(&server);
            }
        }
    }
}

/// Goal: a refund survives the death of the process. Method: blocked as above, SIGKILL, restart.
#[test]
fn a_refund_that_was_under_way_is_finished_by_the_next_start() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = Site::fused(fuse).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
            let server = start(&site);
            let before = server.usdt(USER);
            server.set_status(USER, way.accounts().1, "DISABLED");
            let held = site.hold("UPDATE OF state ON transfers_tb", "NEW.state IN (-20, -30)");
            let body = way.body_with_cid("USDT", "12.00000001", "held");
            let reply = server.post_pending(USER, &body);
            site.wait_for_held();
            server.kill();
            held.release();
            let server = site.start();
            site.wait_for_rest();
            let seen = server.look(USER, &reply.req_id());
            assert_eq!(seen["state"], json!("ROLLED_BACK"), "{seen}");
            assert_eq!(server.usdt(USER), before);
            site.assert_in_order(&server);
        }
    }
}
