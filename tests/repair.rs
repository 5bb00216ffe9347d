//! The repair: the transfers that a restored database has lost come back from the log, and only
//! proven ones.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::harness::{
    Balance, COIN, Endpoint, Part, Reply, Server, Site, Way, eventually, repair, text,
};

const USER: u64 = 1001;

const APPLY: [&str; 3] = ["--apply", "--reason", "a backup was restored"];

/// A site with some money on both sides, stopped; and the same with a copy of its database, as a
/// backup.
fn backed_up(site: Site) -> (Site, Site) {
    let server = site.start();
    server.deposit(USER, "USDT", "10000");
    assert_eq!(server.transfer(USER, Way::ToSpot, "50").status, 200);
    site.wait_for_rest();
    server.stop();
    let restored = site.with_copied_database();
    (site, restored)
}

fn post(server: &Server, way: Way, amount: &str, cid: &str) -> Reply {
    server.post(USER, &way.body_with_cid("USDT", amount, cid))
}

/// A transfer of each kind of end, by way, amount and cid, with its answer.
fn one_of_each_end(site: &Site, server: &Server) -> Vec<(Value, Reply)> {
    let mut all = Vec::new();
    let mut one = |way: Way, amount: &str, cid: &str, status: u16| {
        let body = way.body_with_cid("USDT", amount, cid);
        let reply = server.post(USER, &body);
        assert_eq!(reply.status, status, "{reply:?}");
        all.push((body, reply));
    };
    one(Way::ToSpot, "2", "there", 200);
    one(Way::ToFunding, "3", "back", 200);
    one(Way::ToFunding, "9999", "too-much", 422);
    server.set_status(USER, "SPOT", "DISABLED");
    one(Way::ToSpot, "4", "there-refunded", 422);
    server.set_status(USER, "SPOT", "ACTIVE");
    server.set_status(USER, "FUNDING", "DISABLED");
    one(Way::ToFunding, "5", "back-refunded", 422);
    server.set_status(USER, "FUNDING", "ACTIVE");
    site.wait_for_rest();
    all
}

/// Goal: after a restored backup the log brings back every lost transfer, with its end, its cid and
/// its money, and streams and webhooks get an event of each. Method: a transfer of each kind of end
/// after a copy of the database was made; the copy replaces the database; the plan, the repair, and
/// a start; the same balances and the same answers.
#[test]
fn what_a_restored_database_has_lost_is_repaired_from_the_log() {
    for fuse in [true, false] {
        let endpoint = Endpoint::start(|_| 200);
        let site = Site::fused(fuse).with("UBSCORE__WEBHOOKS__URL", endpoint.url()).with(
            "UBSCORE__WEBHOOKS__SECRET",
            "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=",
        );
        let (site, restored) = backed_up(site);
        let server = site.start();
        let Part::Position(last) = server.follow(USER, None).next() else { panic!("no position") };
        let lost = one_of_each_end(&site, &server);
        let balance = server.usdt(USER);
        assert_eq!(balance, Balance::at_rest(19_951 * COIN, 49 * COIN));
        // A running service is only read, not repaired.
        let (code, planned, why) = repair(&restored, &["--plan"]);
        assert_eq!(code, Some(0), "{planned}{why}");
        assert_eq!(planned.matches("would    transfer ").count(), lost.len(), "{planned}");
        assert!(planned.ends_with("planned transfers=5 left=0\n"), "{planned}");
        let (code, _, why) = repair(&restored, &APPLY);
        assert!(code == Some(2) && why.contains(&server.pid().to_string()), "{code:?} {why}");
        server.kill();

        let (code, said) = restored.start_refused();
        assert_eq!(code, 70, "{said}");
        assert!(lost.iter().all(|(_, reply)| said.contains(&reply.req_id())), "{said}");
        let (_, planned, _) = repair(&restored, &["--plan"]);
        let (code, done, why) = repair(&restored, &APPLY);
        assert_eq!(code, Some(0), "{done}{why}");
        assert_eq!(done.replace("done  ", "would ").replace("repaired", "planned"), planned);
        let server = restored.start();
        assert_eq!(server.ready(), 200, "{}", server.said());
        restored.wait_for_rest();
        assert_eq!(server.usdt(USER), balance);
        let (stream, mut missed) = (server.follow(USER, Some(&last)), BTreeSet::new());
        missed.extend(lost.iter().map(|(_, reply)| reply.req_id()));
        while !missed.is_empty() {
            let (id, data) = stream.transfer();
            missed.remove(text(&data["req_id"]));
            eventually("its delivery", || {
                endpoint.delivered().iter().any(|delivery| delivery.id == id).then_some(())
            });
        }
        for (body, before) in &lost {
            let again = server.post(USER, body);
            assert_eq!((again.status, again.req_id()), (before.status, before.req_id()));
            assert_eq!(again.json()["state"], before.json()["state"], "{again:?}");
        }
        assert_eq!(
            restored.sql_value("SELECT count(*) FROM admin_audit WHERE action = 'repair' AND subject <> 'PostgreSQL'"),
            "5"
        );
        // New transfers have order numbers of their own.
        assert_eq!(post(&server, Way::ToSpot, "1", "new").status, 200);
        restored.wait_for_rest();
        restored.assert_in_order(&server);
        let (code, done, _) = repair(&restored, &["--plan"]);
        assert_eq!((code, &*done), (Some(0), "planned transfers=0 left=0\n"));
    }
}

/// Goal: an unproven transfer is left, named and counted, and does not stop the repair of the rest.
/// Method: lost transfers, one of them with money that has left the restored database since; and a
/// user with a balance changed by hand.
#[test]
fn what_nothing_proves_is_left_to_people() {
    let (site, restored) = backed_up(Site::new());
    let server = site.start();
    server.deposit(USER, "USDT", "100");
    let short = post(&server, Way::ToSpot, "20050", "short");
    let odd = server.transfer(1002, Way::ToSpot, "2");
    assert_eq!((short.status, odd.status), (200, 200));
    assert_eq!(post(&server, Way::ToFunding, "1", "back").status, 200);
    site.wait_for_rest();
    server.kill();
    restored.sql(
        "UPDATE balances_tb SET available = available + 1e8 WHERE user_id = 1002 AND asset_id = 3; \
         INSERT INTO external_operations (order_number, idem_key, op, user_id, asset_id, amount, balance_after) \
         VALUES (7, 'by-hand', 5, 1001, 3, 200e8, 19750e8); \
         UPDATE balances_tb SET available = available - 200e8 WHERE user_id = 1001 AND asset_id = 3",
    );

    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(1), "{done}{why}");
    let line = |word: &str, what: &str| {
        done.lines().any(|line| line.starts_with(word) && line.contains(what))
    };
    assert!(
        line("left", &short.req_id()) && done.contains("insufficient Funding balance"),
        "{done}"
    );
    assert!(line("left", "user 1002, USDT: Funding is 1 more"), "{done}");
    assert!(line("left", &odd.req_id()) && done.contains("does not add up"), "{done}");
    assert!(line("done", "SOURCE_DONE"), "{done}");
    assert!(done.ends_with("repaired transfers=1 external=1 left=3\n"), "{done}");
    let here = "SELECT count(*) FROM transfers WHERE cid = 'short'";
    assert_eq!(restored.sql_value(here), "0");
    // It stays halted.
    let server = restored.start();
    assert_eq!(server.ready(), 503);
    let resumed = server.resume("hope");
    assert_eq!(resumed.status, 503, "{resumed:?}");
    server.says("conservation_violated");
}

/// Goal: the money of one repaired transfer is available for the next. Method: everything goes to
/// Spot, and after the backup back and there again.
#[test]
fn what_one_transfer_brings_another_takes() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "10000").status, 200);
    site.wait_for_rest();
    server.stop();
    let restored = site.with_copied_database();
    let server = site.start();
    for way in [Way::ToFunding, Way::ToSpot, Way::ToFunding, Way::ToSpot] {
        assert_eq!(server.transfer(USER, way, "10000").status, 200);
        site.wait_for_rest();
    }
    server.kill();
    let (code, done, why) = repair(&restored, &APPLY);
    assert_eq!(code, Some(0), "{done}{why}");
    assert!(done.ends_with("repaired transfers=4 left=0\n"), "{done}");
    let server = restored.start();
    assert_eq!(server.usdt(USER), Balance::at_rest(0, 10_000 * COIN));
    restored.assert_in_order(&server);
}

/// Goal: a log repairs its own database and no other. Method: the data directory of another site.
#[test]
fn a_database_of_another_log_is_left_alone() {
    let (site, _) = backed_up(Site::new());
    let (other, _) = backed_up(Site::new());
    let crossed = site.with_data_dir(&other.data_dir);
    let before = crossed.sql("SELECT * FROM engine_state");
    for arguments in [&["--plan"][..], &APPLY] {
        let (code, done, why) = repair(&crossed, arguments);
        assert!(code == Some(2) && why.contains("not a pair"), "{done}{why}");
    }
    let output = crossed.verify().output().expect("the binary");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(crossed.sql("SELECT * FROM engine_state"), before);
}

#[test]
fn a_repair_is_asked_for_in_full() {
    let site = Site::new();
    for (arguments, word) in [
        (&[][..], "--plan"),
        (&["--plan", "--apply", "--reason", "both"], "--apply"),
        (&["--apply"], "--reason"),
        (&["--plan", "--reason", "why"], "--reason"),
    ] {
        let (code, _, why) = repair(&site, arguments);
        assert!(code == Some(2) && why.contains(word), "{arguments:?}: {code:?} {why}");
    }
    let (code, _, why) = repair(&site, &["--plan"]);
    assert!(code == Some(2) && why.contains("there is no log"), "{why}");
}
