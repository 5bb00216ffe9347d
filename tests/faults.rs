//! Faults of the parts: PostgreSQL killed, frozen, full or cut off at the worst moment, under load.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use ubscore::alert::Alert;

use crate::harness::{
    Passing, Planned, Proxy, Reply, Server, Site, USERS, Way, assert_kept, crowd, endow,
    eventually, plan, post_to, soak_rounds, while_watched,
};

/// Limits so short that a fault ends the waiting calls, and the test meets many faults.
fn impatient(site: Site) -> Site {
    site.with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 1_000)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 200)
        .with("UBSCORE__POSTGRES__CONNECT_TIMEOUT_MS", 2_000)
        .with("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 1_000)
}

/// Runs a load of 240 transfers with cids, and more until there have been `faults` faults. `fault`
/// happens again and again meanwhile, and `end` ends it. Then rest, sums, and every answer
/// unchanged.
fn assert_survived(
    site: &Site,
    server: &Server,
    faults: usize,
    fault: impl Fn() + Sync,
    end: impl FnOnce(),
) {
    const CALLERS: usize = 12;
    let plan = plan(20_000);
    let happened = AtomicUsize::new(0);
    let strike = || {
        fault();
        happened.fetch_add(1, Ordering::Relaxed);
    };
    let replies = while_watched(1, strike, || {
        crowd(CALLERS, |caller| {
            let of_caller = plan.iter().enumerate().skip(caller).step_by(CALLERS);
            let mut replies = Vec::new();
            for (index, planned) in of_caller {
                if index >= 240 {
                    if happened.load(Ordering::Relaxed) >= faults {
                        break;
                    }
                    // All of them are asked again afterwards.
                    thread::sleep(Duration::from_millis(20));
                }
                replies.push((index, server.post(planned.user, &planned.body)));
            }
            replies
        })
    });
    end();
    assert!(happened.load(Ordering::Relaxed) >= faults, "the load was over too soon");
    let mut replies: Vec<_> = replies.into_iter().flatten().collect();
    replies.sort_by_key(|(index, _)| *index);
    let (plan, replies): (Vec<Planned>, Vec<_>) =
        replies.into_iter().map(|(index, reply)| (plan[index].clone(), Some(reply))).unzip();
    eventually("PostgreSQL to be found again", || {
        (server.get(USERS[0], "/api/v1/balances").status == 200).then_some(())
    });
    site.wait_for_rest();
    site.assert_in_order(server);
    assert_kept(server, &plan, &replies);
    site.wait_for_rest();
    site.assert_in_order(server);
}

/// Goal: a PostgreSQL that dies at any moment loses no answered transfer. Method: all its processes
/// killed at once, again and again, and started again, under a load with cids.
#[test]
fn a_postgresql_that_is_killed_loses_nothing() {
    let (site, cluster) = Site::on_its_own_cluster();
    let server = impatient(site.clone()).start();
    endow(&site, &server);
    let kill = || {
        thread::sleep(Duration::from_millis(300));
        cluster.kill();
        thread::sleep(Duration::from_millis(100));
        cluster.restart();
    };
    assert_survived(&site, &server, 2, kill, || ());
}

/// Goal: a PostgreSQL that stops and continues, with the statements already sent to it, does
/// nothing twice. Method: all its processes stopped for longer than any caller waits, under a load
/// with cids.
#[test]
fn a_postgresql_that_freezes_does_nothing_twice() {
    for fuse in [true, false] {
        let (site, cluster) = Site::on_its_own_cluster();
        let site = impatient(site).with("UBSCORE__COORDINATOR__FUSE", fuse);
        let server = site.start();
        endow(&site, &server);
        let freeze = || {
            thread::sleep(Duration::from_millis(200));
            cluster.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(2_500));
            cluster.signal(Signal::CONT);
        };
        assert_survived(&site, &server, 1, freeze, || ());
    }
}

/// Goal: without a free connection nothing is promised and nothing is lost. Method: every
/// connection slot but the service's own is taken; its connections are cut, so that it finds no
/// slot; a load meanwhile; the slots are released.
#[test]
fn a_postgresql_without_connections_only_delays() {
    let (site, _cluster) = Site::on_its_own_cluster();
    let site = impatient(site);
    let server = site.start();
    endow(&site, &server);
    let takers = site.with_fresh_database();
    let fault = || {
        site.cut_connections();
        // The number of free slots depends on the order in which the test and the service connect.
        let taken: Vec<_> = std::iter::from_fn(|| takers.try_session()).collect();
        thread::sleep(Duration::from_millis(500));
        assert!(!taken.is_empty(), "all slots are taken by others");
        drop(taken);
        eventually("places again", || takers.try_session());
        thread::sleep(Duration::from_millis(200));
    };
    assert_survived(&site, &server, 1, fault, || ());
}

/// Goal: a commit with a lost answer has happened, and is not done again. Method: a proxy that
/// passes every COMMIT on. For every fifth it ends the connection and drops the answer.
#[test]
fn answers_to_commits_that_are_lost_count_once() {
    for fuse in [true, false] {
        let site = impatient(Site::fused(fuse));
        let server = site.start();
        endow(&site, &server);
        server.stop();
        let (proxy, loses, lost) = Proxy::losing(&site, 5);
        let server = Server::start(site.command_with(&proxy.url));
        loses.store(true, Ordering::Relaxed);
        let wait = || thread::sleep(Duration::from_millis(10));
        assert_survived(&site, &server, 1, wait, || loses.store(false, Ordering::Relaxed));
        let lost = lost.load(Ordering::Relaxed);
        assert!(lost >= 10, "{lost} answers were lost");
    }
}

/// Story: a PostgreSQL hung with open connections. A round of the audit waited for it and never
/// raised its alert. A halt waited as well and was never answered.
#[test]
fn a_postgresql_that_hangs_silences_neither_the_alarm_nor_a_halt() {
    let (site, cluster) = Site::on_its_own_cluster();
    let site =
        site.with("UBSCORE__CONSERVATION__EVERY_MS", 50).with("UBSCORE__ALERT__STUCK_MS", 300);
    let server = site.start();
    assert_eq!(server.transfer(USERS[0], Way::ToSpot, "1").status, 200);
    site.wait_for_rest();
    cluster.signal(Signal::STOP);
    let alarm = format!("alert=\"{}\"", Alert::ConservationStalled.name());
    server.says(&alarm);
    let reason = serde_json::json!({"reason": "PostgreSQL hangs"});
    let halted = server.admin("POST", "/admin/v1/halt", &reason);
    cluster.signal(Signal::CONT);
    assert_eq!(halted.status, 200, "{halted:?}");
    let halted = halted.json();
    assert_eq!((&halted["in_data_dir"], &halted["in_postgres"]), (&true.into(), &false.into()));
    eventually("the resume", || {
        (server.admin("POST", "/admin/v1/resume", &reason).status == 200).then_some(())
    });
    assert_eq!(server.transfer(USERS[0], Way::ToFunding, "1").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: transactions that an asynchronous replica lacked are found, named and repaired. Method:
/// only the first PostgreSQL has a transfer each way under way, and it dies; an earlier copy of its
/// files takes its place.
#[test]
fn what_a_promoted_replica_lacks_is_found_and_repaired() {
    let (site, cluster) = Site::on_its_own_cluster();
    let site = site.with("UBSCORE__CONSERVATION__EVERY_MS", 50);
    let server = site.start();
    endow(&site, &server);
    let replica = cluster.copy_files();
    let lost = Way::BOTH.map(|way| server.transfer(USERS[0], way, "0.5"));
    site.wait_for_rest();
    let balances = server.balances(USERS[0]);
    cluster.kill();
    cluster.take_over(&replica);
    eventually("the halt", || (server.ready() == 503).then_some(()));
    eventually("every transfer to be named", || {
        lost.iter().all(|reply| server.has_named(reply)).then_some(())
    });
    server.kill();
    let (code, done, why) = crate::harness::repair(&site, &["--apply", "--reason", "a fail-over"]);
    assert_eq!(code, Some(0), "{done}{why}");
    let server = site.start();
    let resume = serde_json::json!({ "reason": "repaired" });
    if server.ready() == 503 {
        assert_eq!(server.admin("POST", "/admin/v1/resume", &resume).status, 200);
    }
    site.wait_for_rest();
    assert_eq!(server.balances(USERS[0]), balances);
    site.assert_in_order(&server);
}

/// Runs a load with cids, and `absence` in its middle; returns the executed part of the plan, and
/// the answers.
fn load_around(server: &Server, absence: impl FnOnce()) -> (Vec<Planned>, Vec<Option<Reply>>) {
    /// Transfers done before PostgreSQL is lost, and after it has returned.
    const DONE: usize = 60;
    const CALLERS: usize = 12;
    let mut plan = plan(20_000);
    let (next, done, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let replies = Mutex::new(Vec::new());
    let post = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let reply = post_to(server.http, plan.get(index).expect("enough for any load"));
        done.fetch_add(
            usize::from(reply.as_ref().is_some_and(|r| r.status == 200)),
            Ordering::Relaxed,
        );
        replies.lock().expect("not poisoned").push((index, reply));
    };
    let more = |what: &str| {
        let goal = done.load(Ordering::Relaxed) + DONE;
        eventually(what, || (done.load(Ordering::Relaxed) >= goal).then_some(()));
    };
    while_watched(
        CALLERS,
        || {
            if !over.load(Ordering::Relaxed) {
                post();
            }
        },
        || {
            more("transfers before");
            absence();
            more("transfers after");
            over.store(true, Ordering::Relaxed);
        },
    );
    let asked = next.into_inner();
    let mut answered = vec![None; asked];
    for (index, reply) in replies.into_inner().expect("not poisoned") {
        answered[index] = reply;
    }
    plan.truncate(asked);
    (plan, answered)
}

/// Goal: a PostgreSQL that is away for longer than any caller waits loses nothing, and is
/// reconnected at once. Method: its processes stopped, its connections refused, or all data sent to
/// it lost, under a load with cids. In `make soak` for 60 s and with the limits of production. Then
/// rest, sums, every answer unchanged. The time from its return to the first answer is printed.
#[test]
fn a_postgresql_that_is_away_for_long_loses_nothing() {
    let soak = soak_rounds().is_some();
    let away = Duration::from_secs(if soak { 60 } else { 2 });
    crowd(3, |manner| {
        let (site, cluster) = Site::on_its_own_cluster();
        let site = match soak {
            true => site
                .with("UBSCORE__COORDINATOR__BACKOFF_BASE_MS", 100)
                .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 30_000),
            false => impatient(site).with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500),
        };
        site.start().stop();
        let swallows = Arc::new(AtomicBool::new(false));
        let swallowing = Arc::clone(&swallows);
        let proxy = Proxy::start(&site, move |_, _| match swallowing.load(Ordering::Relaxed) {
            true => Passing::Nothing,
            false => Passing::All,
        });
        let come_back = || {
            proxy.come_back();
            swallows.store(false, Ordering::Relaxed);
        };
        let server = Server::start(site.command_with(&proxy.url));
        endow(&site, &server);
        let (name, go, come): (_, &dyn Fn(), &dyn Fn()) = match manner {
            0 => ("frozen", &|| cluster.signal(Signal::STOP), &|| cluster.signal(Signal::CONT)),
            1 => ("refused", &|| proxy.refuse(), &come_back),
            _ => ("swallowed", &|| swallows.store(true, Ordering::Relaxed), &come_back),
        };
        let (plan, replies) = load_around(&server, || {
            go();
            thread::sleep(away);
            come();
            let began = Instant::now();
            let mut tries = 0;
            eventually("an answer", || {
                tries += 1;
                let reply = server.transfer(USERS[0], Way::BOTH[tries % 2], "0.00000001");
                (reply.status == 200).then_some(())
            });
            println!("{name} for {away:?}: answered {:?} after its return", began.elapsed());
        });
        assert!(replies.iter().all(Option::is_some), "{name}: every caller is answered");
        for reply in replies.iter().flatten() {
            assert!([200, 202, 503].contains(&reply.status), "{name}: {reply:?}");
        }
        site.wait_for_rest();
        site.assert_in_order(&server);
        assert_kept(&server, &plan, &replies);
        site.wait_for_rest();
        site.assert_in_order(&server);
        println!("{name}: {} transfers asked for, nothing lost", plan.len());
    });
}
