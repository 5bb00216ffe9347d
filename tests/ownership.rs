//! One log, one database, one process: the rightful writer, and the refusal of every other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::process::Signal;

use crate::harness::{
    Balance, COIN, Planned, Server, Site, Way, assert_kept, crowd, eventually, last_line, post_to,
};

const USER: u64 = 1001;

/// A used site without open transfers, with 100 USDT in Spot.
fn used() -> Site {
    let site = Site::new();
    let server = site.start();
    let reply = server.transfer(USER, Way::ToSpot, "100");
    assert_eq!(reply.status, 200, "{reply:?}");
    site.wait_for_rest();
    server.stop();
    site
}

/// Asserts that a site is as [`used`] left it.
fn assert_untouched(site: &Site) {
    let server = site.start();
    assert_eq!(server.usdt(USER), Balance::at_rest(9_900 * COIN, 100 * COIN));
    assert_eq!(server.transfer(USER, Way::ToFunding, "1").status, 200);
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.stop();
}

fn identity(site: &Site) -> String {
    site.sql_value("SELECT log_identity FROM engine_state")
}

#[test]
fn a_second_process_is_refused_and_the_first_is_named() {
    let site = Site::new();
    let server = site.start();
    let incarnation = "SELECT incarnation FROM engine_state";
    let before = site.sql_value(incarnation);
    for other in [site.clone(), site.with_fresh_database()] {
        let (code, said) = other.start_refused();
        assert_eq!(code, 1, "{said}");
        let pid = server.pid().to_string();
        assert!(last_line(&said).contains(&pid), "process {pid}: {said}");
    }
    assert_eq!(site.sql_value(incarnation), before, "the refused start has touched nothing");
    for way in Way::BOTH {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    server.kill();
    // The lock ends with the process, in any kind of end.
    site.start().stop();
    site.assert_verified();
}

#[test]
fn a_log_of_another_database_is_refused_by_both_names() {
    let (one, other) = (used(), used());
    let mixed = one.with_data_dir(&other.data_dir);
    let (code, said) = mixed.start_refused();
    assert_eq!(code, 70, "{said}");
    for site in [&one, &other] {
        let name = identity(site);
        assert!(last_line(&said).contains(&name), "{name}: {said}");
    }
    assert_untouched(&one);
    assert_untouched(&other);
}

#[test]
fn a_database_that_has_used_a_log_is_not_given_an_empty_one() {
    let site = used();
    let (code, said) = site.with_fresh_data_dir().start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(last_line(&said).contains(&identity(&site)), "{said}");
    assert_untouched(&site);
}

#[test]
fn a_log_that_has_been_used_is_not_given_an_empty_database() {
    let site = used();
    let fresh = site.with_fresh_database();
    let (code, said) = fresh.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(last_line(&said).contains("not a pair"), "{said}");
    assert!(last_line(&said).contains(&identity(&site)), "{said}");
    let made = "SELECT to_regclass('engine_state') IS NOT NULL";
    assert_eq!(fresh.sql_value(made), "f", "nothing was made");
    assert_untouched(&site);
}

/// An unreadable claim must not be read as "no claim": a log that lost records would look whole.
#[test]
fn a_claim_that_cannot_be_read_is_named_and_nothing_is_done() {
    let site = used();
    let claims = site.sql("SELECT shard, flight, durable FROM journal_last");
    site.sql("UPDATE journal_tb SET durable = -7");
    let incarnation = "SELECT incarnation FROM engine_state";
    let before = site.sql_value(incarnation);
    let named = "journal_tb holds what this version cannot read: durable -7";
    let (code, said) = site.start_refused();
    assert_eq!(code, 1, "{said}");
    assert!(last_line(&said).contains(named), "{said}");
    assert_eq!(site.sql_value(incarnation), before);
    for claim in claims {
        site.sql(&format!(
            "UPDATE journal_tb SET durable = {} WHERE shard = {} AND flight = {}",
            claim[2], claim[0], claim[1]
        ));
    }
    assert_untouched(&site);
}

/// Asserts that a superseded server dies at its next write, with the reason in its output, and
/// writes nothing.
fn assert_fenced(site: &Site, mut server: Server, rest: impl Fn() -> Vec<Vec<String>>) {
    let before = rest();
    // The answer may be lost with the process; a success would be wrong.
    for way in Way::BOTH {
        let body = way.body_with_cid("USDT", "7", "superseded");
        if let Ok(reply) = server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)) {
            assert_eq!(reply.status, 503, "{reply:?}");
        }
    }
    let (status, said) = server.wait();
    assert!(status.code().is_some_and(|code| code != 0), "{status}: {said}");
    assert!(last_line(&said).contains("superseded"), "{said}");
    assert!(said.contains("alert=\"fenced\""), "{said}");
    assert_eq!(rest(), before);
    let cid = "SELECT count(*) FROM transfers WHERE cid = 'superseded'";
    assert_eq!(site.sql_value(cid), "0");
}

/// Everything in PostgreSQL about money.
fn money(site: &Site) -> Vec<Vec<String>> {
    let tables = ["transfers_tb", "balances_tb", "transfer_operations", "transfer_history"];
    tables.iter().flat_map(|table| site.sql(&format!("TABLE {table} ORDER BY 1, 2"))).collect()
}

#[test]
fn a_superseded_process_writes_nothing_more_and_ends() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        assert_eq!(server.transfer(USER, Way::ToSpot, "100").status, 200);
        site.wait_for_rest();
        site.take_over();
        assert_fenced(&site, server, || money(&site));
        let server = site.start();
        assert_eq!(server.usdt(USER), Balance::at_rest(9_900 * COIN, 100 * COIN));
        site.assert_in_order(&server);
    }
}

/// Goal: a process that was stopped and taken for dead cannot write when it comes back. Method:
/// SIGSTOP, a second server on a copy of the log and the same database, transfers there; SIGCONT.
#[test]
fn a_process_that_comes_back_after_its_successor_ends() {
    let site = Site::new();
    let old = site.start();
    assert_eq!(old.transfer(USER, Way::ToSpot, "100").status, 200);
    site.wait_for_rest();
    old.signal(Signal::STOP);
    let successor = site.with_fresh_data_dir();
    site.copy_data(&successor);
    let new = successor.start();
    assert_eq!(new.transfer(USER, Way::ToFunding, "60").status, 200);
    site.wait_for_rest();
    old.signal(Signal::CONT);
    assert_fenced(&site, old, || money(&site));
    assert_eq!(new.usdt(USER), Balance::at_rest(9_960 * COIN, 40 * COIN));
    assert_eq!(new.transfer(USER, Way::ToFunding, "40").status, 200);
    successor.wait_for_rest();
    successor.assert_in_order(&new);
}

/// Goal: a successor takes over under load without a loss. Method: transfers run in a crowd while
/// the incarnation is raised; every transfer answered 200 must exist after the next start, and the
/// sums be exact.
#[test]
fn what_was_answered_before_the_fence_stays_and_the_rest_is_driven_on() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1000").status, 200);
    let replies = crowd(40, |index| {
        if index == 20 {
            site.take_over();
        }
        let body = Way::BOTH[index % 2].body_with_cid("USDT", "3", &format!("fence-{index}"));
        (body.clone(), server.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)).ok())
    });
    drop(server);
    let server = site.start();
    site.wait_for_rest();
    site.assert_in_order(&server);
    for (body, reply) in replies {
        let now = server.post(USER, &body);
        assert_eq!(now.status, 200, "{now:?}");
        if let Some(first) = reply.filter(|first| first.status == 200) {
            assert_eq!(first.json(), now.json());
            assert_eq!(now.header("idempotent-replayed"), Some("true"));
        }
    }
    assert_eq!(server.usdt(USER).in_flight, 0);
    assert_eq!(server.usdt(USER).sum(), 10_000 * COIN);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a process that is paused in the middle of its work and wakes behind a successor undoes
/// nothing and adds nothing, and its late answers are true. Method: SIGSTOP under a load with cids;
/// a successor on a copy of the log drives every transfer to its end; SIGCONT; the end of the old
/// one; every cid at the successor.
#[test]
fn a_process_that_wakes_amid_its_work_changes_nothing() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let mut old = site.start();
        assert_eq!(old.transfer(USER, Way::ToSpot, "1000").status, 200);
        let http = old.http;
        let plan: Vec<_> = (0..400)
            .map(|index| {
                let cid = format!("woken-{index}");
                let body = Way::BOTH[index % 2].body_with_cid("USDT", "0.5", &cid);
                Planned { user: USER, body }
            })
            .collect();
        let (answered, paused) = (AtomicUsize::new(0), AtomicBool::new(false));
        let successor = site.with_fresh_data_dir();
        let (replies, new) = thread::scope(|scope| {
            let load = scope.spawn(|| {
                crowd(12, |caller| {
                    let mut replies = Vec::new();
                    for (index, planned) in plan.iter().enumerate().skip(caller).step_by(12) {
                        let late = paused.load(Ordering::Relaxed);
                        replies.push((index, post_to(http, planned)));
                        answered.fetch_add(1, Ordering::Relaxed);
                        if late {
                            break;
                        }
                    }
                    replies
                })
            });
            eventually("a load", || (answered.load(Ordering::Relaxed) > 40).then_some(()));
            old.pause();
            paused.store(true, Ordering::Relaxed);
            site.copy_data(&successor);
            let new = successor.start();
            successor.wait_for_rest();
            old.signal(Signal::CONT);
            let replies: Vec<_> = load.join().expect("no panic").into_iter().flatten().collect();
            (replies, new)
        });
        let (status, said) = old.wait();
        assert!(status.code().is_some_and(|code| code != 0), "{status}: {said}");
        assert!(last_line(&said).contains("superseded"), "{said}");
        successor.wait_for_rest();
        successor.assert_in_order(&new);
        let mut in_order = vec![None; plan.len()];
        for (index, reply) in replies {
            in_order[index] = reply;
        }
        let asked = in_order.iter().rposition(Option::is_some).expect("an answer") + 1;
        assert_kept(&new, &plan[..asked], &in_order[..asked]);
        successor.wait_for_rest();
        successor.assert_in_order(&new);
    }
}
