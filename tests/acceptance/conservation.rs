//! INV-001 to INV-004.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::json;

use super::{OTHER, USER, after, start_endowed};
use crate::harness::{Balance, Server, Site, Way, assert_refused, crowd, eventually};

#[test]
fn inv_001_a_transfer_keeps_the_sum() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let before = server.usdt(USER);
            assert_eq!(server.transfer(USER, way, "12.34567891").status, 200);
            site.wait_for_rest();
            let now = server.usdt(USER);
            assert_eq!(now.sum(), before.sum());
            assert_eq!(now, after(before, way, 1_234_567_891));
        }
        site.assert_in_order(&server);
    }
}

#[test]
fn inv_002_a_failed_transfer_leaves_the_source_as_it_was() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let before = server.balances(USER);
            let reply = server.transfer(USER, way, "10000");
            assert_refused(&reply, 422, "INSUFFICIENT_BALANCE");
            assert_eq!(reply.json()["state"], json!("FAILED"));
            assert_eq!(server.balances(USER), before);
        }
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

#[test]
fn inv_003_a_rollback_restores_the_source_whole() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = start_endowed(&site);
        for way in Way::BOTH {
            let before = server.balances(USER);
            let (_, target) = way.accounts();
            server.set_status(USER, target, "DISABLED");
            let reply = server.transfer(USER, way, "12.34567891");
            assert_refused(&reply, 422, "ACCOUNT_DISABLED");
            assert_eq!(reply.json()["state"], json!("ROLLED_BACK"));
            site.wait_for_rest();
            assert_eq!(server.balances(USER), before);
            server.set_status(USER, target, "ACTIVE");
        }
        site.assert_in_order(&server);
    }
}

/// Goal: after a crash every account has the right balance. Method: forty transfers of two users,
/// both ways, at once; SIGKILL after the fifteenth answer; restart; compare every balance of every
/// user and asset, and every answer.
#[test]
fn inv_004_a_crash_keeps_the_sum_of_every_account() {
    for fuse in [true, false] {
        let sums = |server: &Server| {
            [USER, OTHER].map(|user| -> BTreeMap<String, u128> {
                let sum = |(asset, balance): (String, Balance)| (asset, balance.sum());
                server.balances(user).into_iter().map(sum).collect()
            })
        };
        // If the machine was paused, the kill may come too late to hit a transfer.
        let (site, before, replies) = eventually("a kill that hits something", || {
            let site = Site::fused(fuse);
            let mut server = start_endowed(&site);
            let before = sums(&server);
            let answered = AtomicUsize::new(0);
            let replies = crowd(40, |index| {
                let user = [USER, OTHER][index % 2];
                let body = Way::BOTH[index / 2 % 2].body("USDT", &format!("0.{:08}", index + 1));
                let reply = server.try_ask(user, "POST", "/api/v1/internal_transfer", Some(&body));
                if reply.is_ok() && answered.fetch_add(1, Ordering::SeqCst) + 1 == 15 {
                    server.signal(Signal::KILL);
                }
                reply.ok().map(|reply| (user, reply))
            });
            server.wait();
            replies.iter().any(Option::is_none).then_some((site, before, replies))
        });
        let server = site.start();
        site.wait_for_rest();
        assert_eq!(sums(&server), before);
        for (user, reply) in replies.into_iter().flatten().filter(|(_, reply)| reply.status == 200)
        {
            assert_eq!(server.look(user, &reply.req_id())["state"], json!("COMMITTED"));
        }
        site.assert_in_order(&server);
    }
}
