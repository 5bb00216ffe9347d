//! The soak: the real server under mixed load, killed again and again, with its PostgreSQL, by
//! chance.
//!
//! A round has callers without pauses, an operator, and a striker. The operator closes accounts,
//! opens them and tops them up while transfers are refused and retried. The striker takes
//! PostgreSQL away in one of several ways. SIGKILL ends the round at a random answer. Unanswered
//! requests are sent again in the next round, with their cids, as by a client.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use ubscore::entropy::{Entropy, SystemEntropy};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Cluster, Planned, Random, Reply, Request, Server, Site, Strike, USERS, Way, endow,
    external, forgetful, post_to, send, soak_rounds, token,
};

/// Concurrent callers, each with one transfer in progress at a time.
const CALLERS: usize = 64;
/// The kill comes after fewer answers than this.
const ANSWERS_MAX: usize = 400;
/// Or after this time, if no answers come.
const ROUND_MAX: Duration = Duration::from_secs(3);
/// Answers of earlier rounds that are requested again after each kill.
const SAMPLE: usize = 60;

/// Transfers by state.
const STATES: &str = "SELECT state, count(*) FROM transfers GROUP BY state ORDER BY state";

/// A soak of one site.
struct Soak {
    site: Site,
    cluster: Arc<Cluster>,
    random: Random,
    /// The final answers.
    answers: Vec<(Planned, Reply)>,
    /// The requests without a final answer.
    unanswered: Vec<Planned>,
    /// At each kill: transfers with waiting callers, and the open ones in PostgreSQL.
    in_flight: Vec<(usize, usize)>,
    strikes: BTreeMap<Strike, usize>,
    compared: usize,
    /// Whether an answered code stays: false for a code in a lost log.
    codes_stay: bool,
}

impl Soak {
    fn new(fuse: bool, seed: u64) -> Soak {
        let (site, cluster) = Site::on_its_own_cluster();
        // Segments roll and snapshots are taken during the run.
        let site = site
            .with("UBSCORE__COORDINATOR__FUSE", fuse)
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
            .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 1_000)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500);
        Soak {
            site,
            cluster,
            random: Random::new(seed),
            answers: Vec::new(),
            unanswered: Vec::new(),
            in_flight: Vec::new(),
            strikes: BTreeMap::new(),
            compared: 0,
            codes_stay: true,
        }
    }

    /// A new transfer: mostly small, at times above the balance.
    fn planned(&self, cid: &str) -> Planned {
        let random = &self.random;
        let asset = ["USDT", "BTC"][random.below(2)];
        let whole = if random.below(10) == 0 { 1 + random.below(9) } else { 0 };
        let amount = format!("{whole}.{:08}", 1 + random.below(30_000_000));
        let body = Way::BOTH[random.below(2)].body_with_cid(asset, &amount, cid);
        Planned { user: USERS[random.below(USERS.len())], body }
    }

    /// One step of an operator; its effect is read from the rows and balances.
    fn operate(&self, server: &Server, idem_key: &str) {
        let random = &self.random;
        let user = USERS[random.below(USERS.len())];
        let (method, path, body) = match random.below(6) {
            0 => ("POST", "/admin/v1/deposits".into(), external(user, "USDT", "1.5", idem_key)),
            1 => ("POST", "/admin/v1/withdrawals".into(), external(user, "USDT", "1.4", idem_key)),
            _ => {
                let account = ["FUNDING", "SPOT"][random.below(2)];
                let status = ["DISABLED", "FROZEN", "ACTIVE", "ACTIVE"][random.below(4)];
                let path = format!("/admin/v1/accounts/{user}/{account}/status");
                ("PUT", path, json!({"status": status, "reason": "soak"}))
            }
        };
        let token = token(ADMIN, Some(Role::Admin));
        let request = Request { body: Some(&body), ..Request::new(&token, method, &path) };
        // The round's kill may end the server meanwhile.
        drop(send(server.ops, &request));
        random.pause(30);
    }

    /// Load until the kill; returns the transfers with waiting callers at that moment.
    fn load_and_kill(&mut self, round: usize, server: Server, strike: Strike) -> usize {
        let again = std::mem::take(&mut self.unanswered);
        let kill_at = self.random.below(ANSWERS_MAX);
        let (sent, answered, dead) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
        let (answers, unanswered) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let again = Mutex::new(again);
        let soak = &*self;
        let mut in_flight = 0;
        thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (sent, answered, dead) = (&sent, &answered, &dead);
                let (answers, unanswered, again, http) =
                    (&answers, &unanswered, &again, server.http);
                scope.spawn(move || {
                    for number in 0.. {
                        let cid = || soak.planned(&format!("soak-{round}-{caller}-{number}"));
                        let retried = again.lock().expect("not poisoned").pop();
                        let planned = retried.unwrap_or_else(cid);
                        sent.fetch_add(1, Ordering::Relaxed);
                        let reply = post_to(http, &planned);
                        answered.fetch_add(1, Ordering::Relaxed);
                        match reply {
                            Some(reply) if [200, 202, 422].contains(&reply.status) => {
                                answers.lock().expect("not poisoned").push((planned, reply));
                            }
                            Some(reply) if reply.status != 503 => panic!("{reply:?}"),
                            _ => unanswered.lock().expect("not poisoned").push(planned),
                        }
                        if dead.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            scope.spawn(|| strike.hit(&soak.site, &soak.cluster, &soak.random, &dead));
            let (dead, server) = (&dead, &server);
            scope.spawn(move || {
                for number in 0.. {
                    soak.operate(server, &format!("soak-{round}-{number}"));
                    if dead.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let began = Instant::now();
            while answered.load(Ordering::Relaxed) < kill_at && began.elapsed() < ROUND_MAX {
                thread::sleep(Duration::from_millis(1));
            }
            in_flight = sent.load(Ordering::Relaxed) - answered.load(Ordering::Relaxed);
            server.signal(Signal::KILL);
            dead.store(true, Ordering::Relaxed);
        });
        self.unanswered = unanswered.into_inner().expect("not poisoned");
        self.unanswered.append(&mut again.into_inner().expect("not poisoned"));
        self.answers.append(&mut answers.into_inner().expect("not poisoned"));
        server.kill();
        in_flight
    }

    /// Every answer of the last round and some of those before: an ended transfer stays ended.
    fn assert_kept(&mut self, server: &Server, since: usize) {
        let earlier = (0..SAMPLE.min(since)).map(|_| self.random.below(since));
        let looked: Vec<usize> = earlier.chain(since..self.answers.len()).collect();
        for &index in &looked {
            let (planned, first) = &self.answers[index];
            let now = server.post(planned.user, &planned.body);
            let refused_at_once = first.status == 422 && first.json().get("req_id").is_none();
            if refused_at_once {
                // It made no transfer, so the cid may make one now.
                continue;
            }
            let fields: &[&str] = match (first.status, self.codes_stay) {
                (202, _) => &["req_id"],
                (_, true) => &["req_id", "state", "code"],
                (_, false) => &["req_id", "state"],
            };
            for field in fields {
                assert_eq!(now.json()[field], first.json()[field], "{now:?} after {first:?}");
            }
        }
        self.compared += looked.len();
    }

    fn round(&mut self, round: usize, server: Server) -> Server {
        let strike = Strike::ALL[self.random.below(Strike::ALL.len())];
        *self.strikes.entry(strike).or_default() += 1;
        let since = self.answers.len();
        let waited_for = self.load_and_kill(round, server, strike);
        let mut line = format!("kill {round}: PostgreSQL {strike:?}, {waited_for} waited for;");
        let mut under_way = 0;
        for row in self.site.sql(STATES) {
            let (state, count) = (&row[0], &row[1]);
            write!(line, " {state}: {count}").expect("a String");
            if !["40", "-10", "-30"].contains(&state.as_str()) {
                under_way += count.parse::<usize>().expect("a number");
            }
        }
        println!("{line}; {under_way} under way");
        self.in_flight.push((waited_for, under_way));

        let server = self.site.start();
        self.site.wait_for_rest();
        self.site.assert_in_order(&server);
        for user in USERS {
            server.set_status(user, "FUNDING", "ACTIVE");
            server.set_status(user, "SPOT", "ACTIVE");
        }
        self.assert_kept(&server, since);
        server
    }
}

/// The results of all sites of a run.
#[derive(Default)]
struct Sum {
    waited_for: Vec<usize>,
    under_way: Vec<usize>,
    strikes: BTreeMap<Strike, usize>,
    by_state: BTreeMap<String, usize>,
    compared: usize,
}

impl Sum {
    fn add(&mut self, soak: &Soak) {
        self.waited_for.extend(soak.in_flight.iter().map(|(waited_for, _)| waited_for));
        self.under_way.extend(soak.in_flight.iter().map(|(_, under_way)| under_way));
        for (strike, count) in &soak.strikes {
            *self.strikes.entry(*strike).or_default() += count;
        }
        for row in soak.site.sql(STATES) {
            *self.by_state.entry(row[0].clone()).or_default() +=
                row[1].parse::<usize>().expect("a number");
        }
        self.compared += soak.compared;
    }

    fn print(&mut self) {
        for counts in [&mut self.waited_for, &mut self.under_way] {
            counts.sort_unstable();
        }
        let median = |counts: &[usize]| counts[counts.len() / 2];
        println!("{} kills; PostgreSQL meanwhile {:?}", self.waited_for.len(), self.strikes);
        println!(
            "in flight at the kill, median: {} waited for, {} under way in PostgreSQL",
            median(&self.waited_for),
            median(&self.under_way)
        );
        println!("transfers by last state {:?}", self.by_state);
        println!("{} answers asked for again; 0 violations", self.compared);
    }
}

/// Goal: after any death at any time, no unit is made or lost, no answer changes, and no operation
/// runs twice. Method: rounds as above, fused and not. After each kill: restart, rest, `ubscore
/// verify`, all sums, and every answer of the round and a sample of older ones requested again by
/// its cid. The seed is printed; threads and kills remain chance. `make soak` runs more rounds
/// ([`soak_rounds`]), and keeps the output.
#[test]
fn kills_of_the_server_and_of_postgresql_under_load_conserve_every_unit() {
    /// Rounds of one site: its data grow, and are checked whole after each.
    const SITE_KILLS: usize = 50;
    let kills = soak_rounds().unwrap_or(8);
    let seed = SystemEntropy::default().u64();
    println!("seed {seed}");
    let mut sum = Sum::default();
    let mut left = kills;
    for number in 0.. {
        let rounds = left.min(SITE_KILLS).min(kills.div_ceil(2));
        if rounds == 0 {
            break;
        }
        left -= rounds;
        let fuse = number % 2 == 0;
        println!("site {number}, transitions share commits: {fuse}");
        let mut soak = Soak::new(fuse, seed.wrapping_add(number));
        let mut server = soak.site.start();
        endow(&soak.site, &server);
        for round in 0..rounds {
            server = soak.round(round, server);
        }
        soak.site.wait_for_rest();
        soak.site.assert_in_order(&server);
        sum.add(&soak);
        server.stop();
    }
    sum.print();
}

impl Soak {
    /// A round that ends with the log and its snapshots gone, and PostgreSQL alone.
    fn lose_log(&mut self, round: usize, server: Server) -> Server {
        let since = self.answers.len();
        self.load_and_kill(round, server, Strike::Nothing);
        for directory in [self.site.log_dir(), self.site.snapshot_dir()] {
            if directory.is_dir() {
                fs::remove_dir_all(directory).expect("removed");
            }
        }
        let words = ["engine", "adopt", "--apply", "--reason", "the disk is gone"];
        let output = self.site.tool(words).output().expect("the binary");
        let (said, why) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{said}{why}");
        println!(
            "loss {round}: {}",
            said.lines()
                .find(|line| line.starts_with("rebuilt"))
                .expect("a line about the rebuild")
        );
        self.site.assert_verified();
        let server = self.site.start();
        let resumed = server.resume("rebuilt");
        assert_eq!(resumed.status, 200, "{resumed:?}");
        self.site.wait_for_rest();
        self.site.assert_in_order(&server);
        for user in USERS {
            server.set_status(user, "FUNDING", "ACTIVE");
            server.set_status(user, "SPOT", "ACTIVE");
        }
        self.assert_kept(&server, since);
        server
    }
}

/// Goal: a log that is lost at a random moment under load is rebuilt from PostgreSQL, again and
/// again: no unit is made or lost, and no answer changes. Method: the load above, a kill, no log
/// and no snapshot any more; every second site forgets soon, so that most is below the watermark.
#[test]
fn f07_a_log_that_is_lost_under_load_is_rebuilt_each_time() {
    let losses = if soak_rounds().is_some() { 50 } else { 3 };
    let seed = SystemEntropy::default().u64();
    println!("seed {seed}");
    for number in 0..2 {
        let rounds = if number == 0 { losses / 2 } else { losses - losses / 2 };
        let mut soak = Soak::new(number == 0, seed.wrapping_add(number));
        soak.codes_stay = false;
        if number == 1 {
            soak.site = forgetful(soak.site);
        }
        let mut server = soak.site.start();
        endow(&soak.site, &server);
        for round in 0..rounds {
            server = soak.lose_log(round, server);
        }
        soak.site.assert_in_order(&server);
        println!("{} answers asked for again", soak.compared);
        server.stop();
    }
}
