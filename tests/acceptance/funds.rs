//! FND-001 to FND-003, FND-005 and FND-006. FND-004 needs the named points of `crashes`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use domain::transfer::Op;
use rustix::process::Signal;
use serde_json::json;

use super::{
    GIFT, OTHER, ROLLS_BACK, SUCCEEDS, USER, after, assert_passed, funding_operations, impatient,
    recorded_operations, start_endowed, start_given, stored_state, success, wait_for_state,
    wait_for_tries,
};
use crate::harness::{
    Balance, COIN, Server, Site, Way, assert_refused, crowd, eventually, while_watched,
};

/// Goal: the source pays once, for any number of requests. Method: eight clients post one cid
/// repeatedly, SIGKILL during it, and all of them again after the restart.
#[test]
fn fnd_001_a_source_that_is_asked_many_times_pays_once() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = Site::fused(fuse);
            let mut server = start_endowed(&site);
            let before = server.usdt(USER);
            let body = way.body_with_cid("USDT", "30", "spent");
            let answered = AtomicUsize::new(0);
            let post = |server: &Server| {
                server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body))
            };
            crowd(8, |_| {
                while post(&server).is_ok() {
                    if answered.fetch_add(1, Ordering::SeqCst) == 12 {
                        server.signal(Signal::KILL);
                    }
                }
            });
            server.wait();
            let server = site.start();
            let replies = crowd(8, |_| post(&server).expect("an answer"));
            let req_id = replies[0].req_id();
            for reply in &replies {
                assert_eq!((reply.status, reply.req_id()), (200, req_id.clone()), "{reply:?}");
            }
            site.wait_for_rest();
            match way {
                Way::ToSpot => assert_eq!(funding_operations(&site, &req_id), ["1:1"]),
                Way::ToFunding => {
                    assert_eq!(recorded_operations(&site, &req_id), [success("WITHDRAW")]);
                }
            }
            assert_eq!(server.usdt(USER), after(before, way, 30 * COIN));
            site.assert_in_order(&server);
        }
    }
}

#[test]
fn fnd_002_a_target_that_refuses_gives_the_source_its_money_back() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = Site::fused(fuse);
            let server = start_endowed(&site);
            let before = server.usdt(USER);
            server.set_status(USER, way.accounts().1, "DISABLED");
            let read = || assert_eq!(server.usdt(USER).sum(), before.sum());
            let reply = while_watched(1, read, || server.transfer(USER, way, "12"));
            assert_refused(&reply, 422, "ACCOUNT_DISABLED");
            site.wait_for_rest();
            assert_passed(&server, USER, &reply.req_id(), &ROLLS_BACK);
            assert_eq!(server.usdt(USER), before);
            site.assert_in_order(&server);
        }
    }
}

/// Goal: while its target does not answer, the money stays visible until it arrives, also after the
/// process dies.
#[test]
fn fnd_002_a_target_that_does_not_answer_is_asked_until_the_money_is_there() {
    for fuse in [true, false] {
        let site = impatient(fuse);
        let server = start_endowed(&site);
        let before = server.usdt(USER);
        let hold = site.hold_decision(Op::Deposit);
        let req_id = server.transfer_held(&site, USER, Way::ToFunding, "12");
        let spot = before.spot.map(|units| units - 12 * COIN);
        let on_the_way =
            Balance { spot, in_flight: i128::try_from(12 * COIN).expect("small"), ..before };
        wait_for_tries(&server, 2);
        assert_eq!(server.usdt(USER), on_the_way);
        server.kill();
        site.cut_connections();
        let server = site.start();
        wait_for_tries(&server, 2);
        assert_eq!(server.usdt(USER), on_the_way);
        hold.release();
        site.wait_for_rest();
        assert_passed(&server, USER, &req_id, &SUCCEEDS);
        assert_eq!(server.usdt(USER), after(before, Way::ToFunding, 12 * COIN));
        site.assert_in_order(&server);
    }
}

/// Goal: the target is credited once, for any number of deposit requests. Method: COMMITTED cannot
/// be written, so the deposit is requested again after each SIGKILL and start, and after each cut
/// of the connection.
#[test]
fn fnd_003_a_target_that_is_asked_many_times_is_credited_once() {
    for fuse in [true, false] {
        for way in Way::BOTH {
            let site = impatient(fuse);
            let mut server = start_endowed(&site);
            let before = server.usdt(USER);
            let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
            let req_id = server.transfer_held(&site, USER, way, "12");
            for round in 0..4 {
                site.wait_for_held();
                match round % 2 {
                    0 => assert_ne!(site.cut_connections(), 0),
                    _ => {
                        server.kill();
                        site.cut_connections();
                        server = site.start();
                    }
                }
            }
            hold.release();
            site.wait_for_rest();
            assert_passed(&server, USER, &req_id, &SUCCEEDS);
            match way {
                Way::ToSpot => {
                    assert_eq!(recorded_operations(&site, &req_id), [success("DEPOSIT")]);
                }
                Way::ToFunding => assert_eq!(funding_operations(&site, &req_id), ["2:1"]),
            }
            assert_eq!(server.usdt(USER), after(before, way, 12 * COIN));
            site.assert_in_order(&server);
        }
    }
}

/// Goal: a source that has paid without a state in PostgreSQL is not an inconsistency: the log's
/// record and the key make up for the state. Method: SOURCE_DONE cannot be written; SIGKILL;
/// `ubscore verify` on both stores; start; SOURCE_DONE can be written again.
#[test]
fn fnd_005_a_log_that_is_ahead_of_the_state_is_caught_up_with() {
    for fuse in [true, false] {
        let site = impatient(fuse);
        let server = start_endowed(&site);
        let before = server.usdt(USER);
        let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state > 10");
        let req_id = server.transfer_held(&site, USER, Way::ToFunding, "12");
        site.wait_for_held();
        server.kill();
        site.cut_connections();
        assert_eq!(stored_state(&site, &req_id), "10");
        assert_eq!(recorded_operations(&site, &req_id), [success("WITHDRAW")]);
        assert_eq!(funding_operations(&site, &req_id), Vec::<String>::new());
        site.assert_verified();

        let server = site.start();
        let transfer = server.look(USER, &req_id);
        assert_eq!(transfer["funds_at"], json!("in_flight"), "{transfer}");
        assert_eq!(u128::try_from(server.usdt(USER).in_flight), Ok(12 * COIN));
        hold.release();
        site.wait_for_rest();
        assert_passed(&server, USER, &req_id, &SUCCEEDS);
        assert_eq!(recorded_operations(&site, &req_id), [success("WITHDRAW")], "and not again");
        assert_eq!(server.usdt(USER), after(before, Way::ToFunding, 12 * COIN));
        site.assert_in_order(&server);
    }
}

/// The same for a refusal by the target that only the log has recorded.
#[test]
fn fnd_005_a_refusal_that_only_the_log_knows_is_caught_up_with() {
    for fuse in [true, false] {
        let site = impatient(fuse);
        let server = start_endowed(&site);
        let before = server.usdt(USER);
        server.set_status(USER, "SPOT", "DISABLED");
        let hold = site.hold("UPDATE OF state ON transfers_tb", "NEW.state < 0");
        let req_id = server.transfer_held(&site, USER, Way::ToSpot, "12");
        wait_for_state(&site, &req_id, "30");
        site.wait_for_held();
        server.kill();
        site.cut_connections();
        assert_eq!(stored_state(&site, &req_id), "30");
        let refusal = [("DEPOSIT".to_owned(), "ACCOUNT_DISABLED".to_owned())];
        assert_eq!(recorded_operations(&site, &req_id), refusal);
        site.assert_verified();

        let server = site.start();
        // The refusal stands, though the account is open by now.
        server.set_status(USER, "SPOT", "ACTIVE");
        hold.release();
        site.wait_for_rest();
        assert_passed(&server, USER, &req_id, &ROLLS_BACK);
        assert_eq!(recorded_operations(&site, &req_id), refusal);
        assert_eq!(server.usdt(USER), before);
        site.assert_in_order(&server);
    }
}

/// Goal: a batch that PostgreSQL has carried out in part takes effect whole or not at all. Method:
/// one worker. A row in the middle of the batch waits for a lock. The rows before it are written
/// and not committed. Then the connection is cut; for the next batch the process is killed as well.
#[test]
fn fnd_006_a_batch_that_is_cut_in_the_middle_leaves_nothing() {
    const POSTS: usize = 6;
    for fuse in [true, false] {
        let site = Site::fused(fuse)
            .with("UBSCORE__COORDINATOR__SHARDS", 1)
            .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 50_000)
            .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 50_000)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50_000)
            .with("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", 60_000);
        let mut server = start_given(&site);
        // The very first row waits, and then the first one of a batch behind half of the posts.
        let rows = "set_config('test.rows', (COALESCE(NULLIF(current_setting('test.rows', true), \
                    ''), '0')::int + 1)::text, true)::int";
        let waits = format!("{rows} > {} OR (SELECT last_value FROM begun) = 1", POSTS / 2);
        let hold = site.hold("INSERT ON transfers_tb", &waits);
        let user = |index: usize| if index < POSTS / 2 { USER } else { OTHER };
        let body =
            |index: usize| Way::ToSpot.body_with_cid("USDT", "100", &format!("batch-{index}"));
        let post = |server: &Server, index: usize| {
            let body = body(index);
            server.try_ask(user(index), "POST", "/api/v1/internal_transfer", Some(&body))
        };
        let (running, post) = (&server, &post);
        // Every row that was ever begun takes a number, also a row that was rolled back. By its
        // name, the trigger comes before that of the lock.
        site.sql(
            "CREATE SEQUENCE begun; \
             CREATE FUNCTION count_begun() RETURNS TRIGGER LANGUAGE plpgsql AS $$ \
             BEGIN PERFORM nextval('begun'); RETURN NEW; END $$; \
             CREATE TRIGGER a_begun BEFORE INSERT ON transfers_tb \
             FOR EACH ROW EXECUTE FUNCTION count_begun()",
        );
        let begun = || -> usize {
            let last = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM begun";
            site.sql_value(last).parse().expect("a number")
        };
        thread::scope(|scope| {
            let first = scope.spawn(move || post(running, POSTS - 1));
            site.wait_for_held();
            let others: Vec<_> =
                (0..POSTS - 1).map(|index| scope.spawn(move || post(running, index))).collect();
            for _ in 0..2 {
                // More than half of the transfers: the next batch is in its middle. A transfer
                // that came too late for one batch is in the next.
                eventually("a batch of both", || {
                    let before = begun();
                    assert_ne!(site.cut_connections(), 0);
                    eventually("a batch", || (begun() > before).then_some(()));
                    site.wait_for_held();
                    (begun() > before + POSTS / 2).then_some(())
                });
                assert_nothing_there(&site);
            }
            running.signal(Signal::KILL);
            for thread in others.into_iter().chain([first]) {
                thread.join().expect("no panic").expect_err("no client was answered");
            }
        });
        server.wait();
        site.cut_connections();
        assert_nothing_there(&site);
        hold.release();

        let server = site.start();
        site.assert_in_order(&server);
        for user in [USER, OTHER] {
            assert_eq!(server.usdt(user).funding, Some(GIFT));
        }
        let replies = crowd(POSTS, |index| post(&server, index).expect("an answer"));
        assert!(replies.iter().all(|reply| reply.status == 200), "{replies:?}");
        site.wait_for_rest();
        for user in [USER, OTHER] {
            assert_eq!(server.usdt(user), Balance::at_rest(GIFT - 300 * COIN, 300 * COIN));
        }
        site.assert_in_order(&server);
    }
}

/// Asserts that no part of any transfer is in PostgreSQL.
fn assert_nothing_there(site: &Site) {
    for table in ["transfers_tb", "transfer_operations", "transfer_history"] {
        assert_eq!(site.sql_value(&format!("SELECT count(*) FROM {table}")), "0", "{table}");
    }
    let balances = "SELECT DISTINCT available FROM balances WHERE asset_id = 3";
    assert_eq!(site.sql(balances), [["10000".to_owned()]]);
}
