//! Kills, restarts and lost connections: nothing is made, nothing is lost, and no answer is taken
//! back.

#[cfg(feature = "crash")]
use std::os::unix::process::ExitStatusExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use domain::transfer::Op;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{
    Balance, COIN, Server, Site, USERS, Way, assert_kept, crowd, endow, eventually, plan, post_to,
    while_watched,
};

const USER: u64 = USERS[0];

#[test]
fn a_restart_replays_balances_transfers_and_statuses() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        endow(&site, &server);
        let failed = server.transfer(USER, Way::ToFunding, "999");
        server.set_status(USERS[1], "SPOT", "FROZEN");
        let plan = plan(12);
        let answered: Vec<_> = plan
            .iter()
            .filter(|planned| planned.user != USERS[1])
            .map(|planned| server.post(planned.user, &planned.body))
            .collect();
        site.wait_for_rest();
        let balances = |server: &Server| USERS.map(|user| server.balances(user));
        let before = balances(&server);
        let transfers = |server: &Server| -> Vec<Value> {
            answered
                .iter()
                .zip(plan.iter().filter(|planned| planned.user != USERS[1]))
                .map(|(reply, planned)| server.look(planned.user, &reply.req_id()))
                .collect()
        };
        let transfers_before = transfers(&server);
        let mut server = Some(server);
        for ending in [Server::stop, Server::kill, Server::kill] {
            ending(server.take().expect("one runs"));
            let restarted = site.start();
            assert_eq!(balances(&restarted), before);
            assert_eq!(transfers(&restarted), transfers_before);
            let frozen = restarted.transfer(USERS[1], Way::ToFunding, "1");
            assert_eq!(frozen.refusal(), (422, "ACCOUNT_FROZEN".to_owned()));
            let seen = restarted.look(USER, &failed.req_id());
            assert_eq!(seen["state"], json!("FAILED"), "{seen}");
            site.assert_in_order(&restarted);
            server = Some(restarted);
        }
    }
}

/// Goal: no kill makes or loses money or takes an answer back. Method: 200 transfers of four users,
/// both ways, at once; SIGKILL after a number of answers; restart; wait for rest; add everything
/// up; post every cid again.
#[test]
fn a_kill_amid_two_hundred_transfers_conserves_every_unit() {
    for (fuse, kill_after) in [(true, 20), (false, 90)] {
        let plan = plan(200);
        // If the machine was paused, the kill may come too late to hit a transfer.
        let (site, replies) = eventually("a kill that hits something", || {
            // Small segments, so that the log rolls during the test.
            let site = Site::fused(fuse).with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16);
            let server = site.start();
            endow(&site, &server);
            let answered = Mutex::new(0);
            let killed = Mutex::new(Some(server));
            let http = killed.lock().expect("not poisoned").as_ref().expect("runs").http;
            let replies = crowd(plan.len(), |index| {
                let planned = &plan[index];
                let reply = post_to(http, planned);
                if reply.is_some() {
                    let mut answered = answered.lock().expect("not poisoned");
                    *answered += 1;
                    if *answered == kill_after {
                        killed.lock().expect("not poisoned").take().expect("once").kill();
                    }
                }
                reply
            });
            replies.iter().any(Option::is_none).then_some((site, replies))
        });
        let server = site.start();
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &replies);
        site.wait_for_rest();
        site.assert_in_order(&server);
        // And once more from the log alone.
        server.kill();
        let server = site.start();
        site.assert_in_order(&server);
    }
}

/// Goal: the process may die at any named point, and the transfer still ends once, with its money
/// on one side. Method: each point, each way, fused and not, at the first and the second visit of
/// the transfer. The point is armed by the environment; one transfer; wait for the death by
/// SIGKILL; restart without the point; wait for rest; add up.
#[cfg(feature = "crash")]
#[test]
fn a_death_at_every_named_point_is_recovered_from() {
    for fuse in [true, false] {
        // A mark of the idle log would be a visit that is not part of the transfer.
        let site = Site::fused(fuse).with("UBSCORE__ENGINE__IDLE_MARK_MS", 10_000);
        let mut server = site.start();
        endow(&site, &server);
        for &point in ubscore::crash::POINTS {
            let mut visit = 1;
            for (way, further) in
                [(Way::ToSpot, 0), (Way::ToFunding, 0), (Way::ToSpot, 1), (Way::ToFunding, 1)]
            {
                server.kill();
                let mut dying = start_alive(&site, point, &mut visit, further);
                let cid = format!("{point}-{way:?}-{further}");
                let body = way.body_with_cid("USDT", "0.25", &cid);
                // It may die before, during or after its answer.
                drop(dying.try_ask(USER, "POST", "/api/v1/internal_transfer", Some(&body)));
                if further > 0 {
                    // Not every transfer visits the point twice.
                    eventually("death or rest", || {
                        (dying.has_ended() || site.is_at_rest()).then_some(())
                    });
                    dying.signal_if_alive(Signal::KILL);
                }
                let (status, said) = dying.wait();
                assert_eq!(status.signal(), Some(9), "{cid}, visit {visit}: {status} {said}");

                server = site.start();
                site.wait_for_rest();
                site.assert_in_order(&server);
                let reply = server.post(USER, &body);
                assert_eq!(reply.status, 200, "{cid}: {reply:?}");
                site.wait_for_rest();
                let names = "SELECT count(*), min(state) FROM transfers WHERE cid = ";
                let rows = site.sql(&format!("{names}'{cid}'"));
                assert_eq!(rows, [["1".to_owned(), "40".to_owned()]], "{cid}");
                site.assert_in_order(&server);
            }
        }
    }
}

/// Starts with a point armed at the first visit from `visit` on that the start itself survives,
/// plus `further` visits. A start visits points too: it asks in commits of its own whether the
/// development money has been given.
#[cfg(feature = "crash")]
pub(crate) fn start_alive(site: &Site, point: &str, visit: &mut u32, further: u32) -> Server {
    start_alive_with(site, &site.url(), point, visit, further)
}

/// The same with another address of PostgreSQL.
#[cfg(feature = "crash")]
pub(crate) fn start_alive_with(
    site: &Site,
    postgres: &str,
    point: &str,
    visit: &mut u32,
    further: u32,
) -> Server {
    /// A start visits a point at most once per gift and once per asset.
    const VISITS_MAX: u32 = 12;
    while *visit <= VISITS_MAX {
        let armed = site.clone().with("UBSCORE_CRASH", format!("{point}={}", *visit + further));
        if let Ok(server) = Server::try_start(armed.command_with(postgres)) {
            return server;
        }
        *visit += 1;
    }
    panic!("{point}: no start survives {VISITS_MAX} visits");
}

/// Goal: a connection that breaks at any moment loses nothing. Method: every connection of the
/// server is ended again and again under a load with cids and readers; then rest, sums, and every
/// answer unchanged.
#[test]
fn connections_cut_under_load_lose_nothing() {
    for fuse in [true, false] {
        let site = Site::fused(fuse).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 2_000);
        let server = site.start();
        endow(&site, &server);
        let plan = plan(120);
        let cut = || {
            site.cut_connections();
            thread::yield_now();
        };
        let replies = while_watched(1, cut, || {
            crowd(plan.len(), |index| {
                let planned = &plan[index];
                Some(server.post(planned.user, &planned.body))
            })
        });
        eventually("PostgreSQL to be found again", || {
            (server.get(USER, "/api/v1/balances").status == 200).then_some(())
        });
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &replies);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: a commit without a timely answer may still happen, late, and must not happen twice.
/// Method: every connection's process in PostgreSQL is stopped again and again, longer than the
/// server waits, and then continues with the statements already sent; a load with cids meanwhile;
/// rest, sums, every answer unchanged.
#[test]
fn commits_that_hang_and_come_late_count_once() {
    /// Longer than the limit of a flight below.
    const STOPPED: Duration = Duration::from_millis(900);
    for fuse in [true, false] {
        let site = Site::fused(fuse)
            .with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 400)
            .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 300)
            .with("UBSCORE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT_MS", 400)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500);
        let server = site.start();
        endow(&site, &server);
        let plan = plan(48);
        let hang = || {
            let pids = site.connection_pids();
            let signal = |signal| {
                for &pid in &pids {
                    // The process may have ended by itself.
                    rustix::process::kill_process(pid, signal).ok();
                }
            };
            signal(Signal::STOP);
            thread::sleep(STOPPED);
            signal(Signal::CONT);
            thread::yield_now();
        };
        let replies = while_watched(1, hang, || {
            crowd(8, |caller| {
                let of_caller = plan.iter().enumerate().skip(caller).step_by(8);
                of_caller
                    .map(|(index, planned)| (index, server.post(planned.user, &planned.body)))
                    .collect::<Vec<_>>()
            })
        });
        let mut answered = vec![None; plan.len()];
        for (index, reply) in replies.into_iter().flatten() {
            answered[index] = Some(reply);
        }
        eventually("PostgreSQL to be found again", || {
            (server.get(USER, "/api/v1/balances").status == 200).then_some(())
        });
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &answered);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}

/// Goal: if an engine was killed between its record and PostgreSQL's mark, the answer is the same
/// before and after. Method: a lock on the rows blocks the marks, so that UBSCore's record is the
/// only proof of the answer; kill.
#[test]
fn an_answer_that_only_the_log_proves_survives_a_kill() {
    let site = Site::new();
    let server = site.start();
    // The withdraw's commit makes the row; its mark comes with a later batch, which the lock below
    // blocks.
    let body = Way::ToSpot.body_with_cid("USDT", "40", "proof");
    let held = site.hold("UPDATE OF state ON transfers_tb", "NEW.state = 40");
    let reply = server.post(USER, &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(site.sql_value("SELECT state FROM transfers WHERE cid = 'proof'"), "30");
    // No read returns an earlier state than the answer.
    assert_eq!(server.look(USER, &reply.req_id())["state"], json!("COMMITTED"));
    let want = Balance::at_rest(9_960 * COIN, 40 * COIN);
    assert_eq!(server.usdt(USER), want);
    server.kill();
    held.release();
    let server = site.start();
    assert_eq!(server.post(USER, &body).json(), reply.json());
    assert_eq!(server.usdt(USER), want);
    site.wait_for_rest();
    assert_eq!(site.sql_value("SELECT state FROM transfers WHERE cid = 'proof'"), "40");
    site.assert_in_order(&server);
}

/// Story: a transfer of a development user waited for a lock in Funding when the process died.
/// Every later start then failed at the gift queued behind it.
#[test]
fn a_start_gets_past_a_transfer_that_waits_for_a_lock() {
    let site = Site::new()
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 100)
        .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 50);
    let server = site.start();
    server.transfer_accepted(USER, Way::ToSpot, "5");
    site.wait_for_rest();
    let held = site.hold_decision(Op::Deposit);
    server.transfer_accepted(USER, Way::ToFunding, "3");
    site.wait_for_held();
    server.kill();
    let server = site.start();
    held.release();
    site.wait_for_rest();
    assert_eq!(server.usdt(USER), Balance::at_rest(9_998 * COIN, 2 * COIN));
    site.assert_in_order(&server);
}

/// Story: a shipper of log lines died, and the next failed write of a line ended the server.
#[test]
fn a_server_whose_log_nobody_reads_goes_on() {
    let site = Site::new();
    let server = Server::start_unheard(site.command());
    for way in Way::BOTH {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
    server.stop();
}

/// Goal: an orderly stop finishes the accepted transfers, or leaves them where the next start
/// continues. Method: SIGTERM during a load with cids; exit 0; restart; rest; sums; every answer
/// unchanged.
#[test]
fn a_stop_amid_a_load_keeps_every_answer() {
    for fuse in [true, false] {
        let site = Site::fused(fuse);
        let server = site.start();
        endow(&site, &server);
        let plan = plan(80);
        let answered = AtomicUsize::new(0);
        let replies = crowd(plan.len(), |index| {
            let reply = post_to(server.http, &plan[index]);
            if reply.is_some() && answered.fetch_add(1, Ordering::Relaxed) == 10 {
                server.signal(Signal::TERM);
            }
            reply
        });
        let mut server = server;
        let (status, said) = server.wait();
        assert_eq!(status.code(), Some(0), "{said}");
        let server = site.start();
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &replies);
        site.wait_for_rest();
        site.assert_in_order(&server);
    }
}
