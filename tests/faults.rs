//! Faults of the parts: PostgreSQL killed, frozen, full or cut off in the worst moment, under load.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::crash::{Planned, USERS, assert_kept, endow, plan, post_to};
use crate::harness::{Reply, Server, Site, Way, crowd, eventually, soak_rounds, while_watched};

/// Limits so short that a fault ends what waits for it, and the test sees many.
fn impatient(site: Site) -> Site {
    site.with("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 1_000)
        .with("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 200)
        .with("UBSCORE__POSTGRES__CONNECT_TIMEOUT_MS", 500)
        .with("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 1_000)
}

/// Runs a load with cids while `fault` happens again and again, which `end` ends; then rest, sums, and every answer as it
/// was told.
fn assert_survived(
    site: &Site,
    server: &Server,
    transfers: usize,
    fault: impl Fn() + Sync,
    end: impl FnOnce(),
) {
    let plan = plan(transfers);
    let replies = while_watched(1, fault, || {
        crowd(12, |caller| {
            let of_caller = plan.iter().enumerate().skip(caller).step_by(12);
            let post = |(index, planned): (usize, &crate::crash::Planned)| {
                (index, server.post(planned.user, &planned.body))
            };
            of_caller.map(post).collect::<Vec<_>>()
        })
    });
    end();
    let mut told = vec![None; plan.len()];
    for (index, reply) in replies.into_iter().flatten() {
        told[index] = Some(reply);
    }
    eventually("PostgreSQL to be found again", || {
        (server.get(USERS[0], "/api/v1/balances").status == 200).then_some(())
    });
    site.wait_for_rest();
    site.assert_books(server);
    assert_kept(server, &plan, &told);
    site.wait_for_rest();
    site.assert_books(server);
}

/// Goal: a PostgreSQL that dies at any moment loses nothing that was answered. Method: all its processes killed at once,
/// again and again, and started again, under a load with cids.
#[test]
fn a_postgresql_that_is_killed_loses_nothing() {
    let (site, cluster) = Site::on_its_own_cluster();
    let server = impatient(site.clone()).start();
    endow(&site, &server);
    let kills = AtomicUsize::new(0);
    let kill = || {
        thread::sleep(Duration::from_millis(300));
        cluster.kill();
        thread::sleep(Duration::from_millis(100));
        cluster.restart();
        kills.fetch_add(1, Ordering::Relaxed);
    };
    assert_survived(&site, &server, 1_500, kill, || ());
    assert!(kills.load(Ordering::Relaxed) >= 2, "the load was over too soon");
}

/// Goal: a PostgreSQL that stands still and goes on, with whatever was sent to it, does nothing twice. Method: all its
/// processes stopped for longer than anybody waits for them, under a load with cids.
#[test]
fn a_postgresql_that_freezes_does_nothing_twice() {
    for fuse in [true, false] {
        let (site, cluster) = Site::on_its_own_cluster();
        let site = impatient(site).with("UBSCORE__COORDINATOR__FUSE", fuse);
        let server = site.start();
        endow(&site, &server);
        let freezes = AtomicUsize::new(0);
        let freeze = || {
            thread::sleep(Duration::from_millis(200));
            cluster.signal(Signal::STOP);
            thread::sleep(Duration::from_millis(2_500));
            cluster.signal(Signal::CONT);
            freezes.fetch_add(1, Ordering::Relaxed);
        };
        assert_survived(&site, &server, 240, freeze, || ());
        assert!(freezes.load(Ordering::Relaxed) >= 1, "the load was over too soon");
    }
}

/// Goal: without a free connection nothing is promised and nothing is lost. Method: every place but the service's own taken;
/// its connections cut, so that it finds none; a load meanwhile; the places given back.
#[test]
fn a_postgresql_without_connections_only_delays() {
    let (site, _cluster) = Site::on_its_own_cluster();
    let site = impatient(site);
    let server = site.start();
    endow(&site, &server);
    let takers = site.with_fresh_database();
    let fault = || {
        site.cut_connections();
        // As many as there are: who comes first of us and the service is chance.
        let taken: Vec<_> = std::iter::from_fn(|| takers.try_session()).collect();
        thread::sleep(Duration::from_millis(500));
        assert!(!taken.is_empty(), "somebody else has them all");
        drop(taken);
        thread::sleep(Duration::from_millis(200));
    };
    assert_survived(&site, &server, 240, fault, || ());
}

/// Stands between a server and PostgreSQL: loses the answer to every `nth` COMMIT, with its connection, or is away.
pub(crate) struct Proxy {
    pub(crate) loses: Arc<AtomicBool>,
    lost: Arc<AtomicUsize>,
    away: Arc<Mutex<Absence>>,
    pub(crate) url: String,
}

/// What lies between a server and PostgreSQL.
#[derive(Default)]
struct Absence {
    /// Connections are closed as they come.
    refuses: bool,
    /// What clients send is lost, and nothing comes back.
    swallows: bool,
    /// Both ends of every connection that was made.
    ends: Vec<UnixStream>,
}

impl Absence {
    fn cut(&mut self) {
        for end in self.ends.drain(..) {
            // It may be closed already.
            end.shutdown(std::net::Shutdown::Both).ok();
        }
    }
}

impl Proxy {
    pub(crate) fn start(site: &Site, nth: usize) -> Proxy {
        let url = site.url();
        let (_, rest) = url.split_once("host=").expect("a socket");
        let (behind, _) = rest.split_once('&').expect("a user");
        // Below 107 bytes, as a socket's path must be.
        let directory = tempfile::Builder::new().prefix("ubproxy").tempdir().expect("a directory");
        let directory = directory.keep();
        let socket = |directory: &Path| directory.join(".s.PGSQL.5432");
        let listener = UnixListener::bind(socket(&directory)).expect("a socket");
        let (lost, commits) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let loses = Arc::new(AtomicBool::new(false));
        let away: Arc<Mutex<Absence>> = Arc::default();
        let absence = Arc::clone(&away);
        let active = Arc::clone(&loses);
        let front = url.replacen(behind, directory.to_str().expect("text"), 1);
        let (behind, counter) = (socket(Path::new(behind)), Arc::clone(&lost));
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&behind)) else {
                    continue;
                };
                let (commits, lost, active) =
                    (Arc::clone(&commits), Arc::clone(&counter), Arc::clone(&active));
                let mut held = absence.lock().expect("not poisoned");
                held.ends.extend([&client, &server].map(|end| end.try_clone().expect("a handle")));
                if held.refuses {
                    held.cut();
                }
                drop(held);
                let absence = Arc::clone(&absence);
                thread::spawn(move || {
                    let swallows = move || absence.lock().expect("not poisoned").swallows;
                    pump(client, server, swallows, |answer| {
                        let commits =
                            commits.fetch_add(count(answer, b"COMMIT\0"), Ordering::Relaxed);
                        let cut = active.load(Ordering::Relaxed)
                            && count(answer, b"COMMIT\0") > 0
                            && commits % nth == nth - 1;
                        lost.fetch_add(usize::from(cut), Ordering::Relaxed);
                        !cut
                    })
                });
            }
        });
        Proxy { loses, lost, away, url: front }
    }

    /// Closes every connection, and each new one, until [`Proxy::come_back`].
    fn refuse(&self) {
        let mut away = self.away.lock().expect("not poisoned");
        away.refuses = true;
        away.cut();
    }

    /// Loses what is sent, until [`Proxy::come_back`].
    fn swallow(&self) {
        self.away.lock().expect("not poisoned").swallows = true;
    }

    /// What was open is closed; new connections are passed on.
    fn come_back(&self) {
        let mut away = self.away.lock().expect("not poisoned");
        away.cut();
        (away.refuses, away.swallows) = (false, false);
    }
}

fn count(bytes: &[u8], word: &[u8]) -> usize {
    bytes.windows(word.len()).filter(|window| *window == word).count()
}

/// Passes bytes on, both ways, as long as `pass` lets the server's through; then both ends are closed. Those that come
/// while it `swallows` are lost.
fn pump(
    client: UnixStream,
    server: UnixStream,
    swallows: impl Fn() -> bool + Clone + Send + 'static,
    pass: impl Fn(&[u8]) -> bool,
) {
    let (mut from_client, mut to_server) =
        (client.try_clone().expect("a handle"), server.try_clone().expect("a handle"));
    let loses = swallows.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(length @ 1..) = from_client.read(&mut buffer) {
            if !loses() && to_server.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        to_server.shutdown(std::net::Shutdown::Both).ok();
    });
    let (mut client, mut server) = (client, server);
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        if swallows() {
            continue;
        }
        if !pass(&buffer[..length]) || client.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    for end in [client, server] {
        end.shutdown(std::net::Shutdown::Both).ok();
    }
}

/// Goal: a commit whose answer is lost has happened, and is not done again. Method: a proxy that passes every COMMIT on, and
/// ends the connection instead of passing on the answer to every fifth.
#[test]
fn answers_to_commits_that_are_lost_count_once() {
    for fuse in [true, false] {
        let site = impatient(Site::fused(fuse));
        let server = site.start();
        endow(&site, &server);
        server.stop();
        let proxy = Proxy::start(&site, 5);
        let server = Server::start(site.command_with(&proxy.url));
        let before = proxy.lost.load(Ordering::Relaxed);
        proxy.loses.store(true, Ordering::Relaxed);
        let wait = || thread::sleep(Duration::from_millis(10));
        assert_survived(&site, &server, 240, wait, || proxy.loses.store(false, Ordering::Relaxed));
        let lost = proxy.lost.load(Ordering::Relaxed) - before;
        assert!(lost >= 10, "{lost} answers were lost");
    }
}

/// Goal: what an asynchronous replica lacked is found, named and repaired. Method: a transfer each way is under way to
/// nobody but the first PostgreSQL, which dies; a copy of its files from before takes its place.
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
        let said = server.said();
        let named = |reply: &crate::harness::Reply| {
            let alert = |line: &str| {
                line.contains("conservation_violated") && line.contains(&reply.req_id())
            };
            said.lines().any(alert)
        };
        lost.iter().all(named).then_some(())
    });
    server.kill();
    let (code, done, why) = crate::repair::repair(&site, &["--apply", "--reason", "a fail-over"]);
    assert_eq!(code, Some(0), "{done}{why}");
    let server = site.start();
    let resume = serde_json::json!({ "reason": "repaired" });
    if server.ready() == 503 {
        assert_eq!(server.admin("POST", "/admin/v1/resume", &resume).status, 200);
    }
    site.wait_for_rest();
    assert_eq!(server.balances(USERS[0]), balances);
    site.assert_books(&server);
}

/// Runs a load with cids, and in its middle `absence`; returns the plan as far as it went, and the answers.
fn load_around(server: &Server, absence: impl FnOnce()) -> (Vec<Planned>, Vec<Option<Reply>>) {
    /// Transfers done before PostgreSQL goes, and after it has come back.
    const DONE: usize = 60;
    const CALLERS: usize = 12;
    let mut plan = plan(20_000);
    let (next, done, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let told = Mutex::new(Vec::new());
    let post = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        let reply = post_to(server.http, plan.get(index).expect("enough for any load"));
        done.fetch_add(
            usize::from(reply.as_ref().is_some_and(|r| r.status == 200)),
            Ordering::Relaxed,
        );
        told.lock().expect("not poisoned").push((index, reply));
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
    for (index, reply) in told.into_inner().expect("not poisoned") {
        answered[index] = reply;
    }
    plan.truncate(asked);
    (plan, answered)
}

/// Goal: a PostgreSQL that is away for longer than anybody waits loses nothing, and is found again at once. Method: its
/// processes stopped, its connections refused, or all that is sent to it lost, under a load with cids, for 60 s and with
/// the limits of production in `make soak`; rest, sums, every answer as it was told. How long the first answer took
/// after its return is printed.
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
        let proxy = Proxy::start(&site, usize::MAX);
        let server = Server::start(site.command_with(&proxy.url));
        endow(&site, &server);
        let (name, go, come): (_, &dyn Fn(), &dyn Fn()) = match manner {
            0 => ("frozen", &|| cluster.signal(Signal::STOP), &|| cluster.signal(Signal::CONT)),
            1 => ("refused", &|| proxy.refuse(), &|| proxy.come_back()),
            _ => ("swallowed", &|| proxy.swallow(), &|| proxy.come_back()),
        };
        let (plan, told) = load_around(&server, || {
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
        assert!(told.iter().all(Option::is_some), "{name}: everybody is answered");
        for told in told.iter().flatten() {
            assert!([200, 202, 503].contains(&told.status), "{name}: {told:?}");
        }
        site.wait_for_rest();
        site.assert_books(&server);
        assert_kept(&server, &plan, &told);
        site.wait_for_rest();
        site.assert_books(&server);
        println!("{name}: {} transfers asked for, nothing lost", plan.len());
    });
}
