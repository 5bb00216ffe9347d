//! Recharges of a crowd while everything fails by chance: the channels in each of their ways, their
//! process, the server and its PostgreSQL.
//!
//! A round has payers without pauses, an operator that gives money back, and a weather that changes
//! the faults of the channels. SIGKILL ends it at a random moment. Then the channels are well
//! again, every order is ended, and everything here is compared with the channels' own books.

/// The comparison with the books of the channels.
mod books;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use ubscore::entropy::{Entropy, SystemEntropy};
use ubscore::http::auth::Role;

use crate::harness::{
    ADMIN, Cluster, Door, Random, Recharging, Reply, Request, Server, SetAtEnd, Site, Strike,
    recharge, send, soak_minutes, text, token,
};

/// Payers, each a user with one order at a time.
const USERS: [u64; 8] = [3_001, 3_002, 3_003, 3_004, 3_005, 3_006, 3_007, 3_008];
const CHANNELS: [&str; 2] = ["wechat", "card"];
/// The kill comes after fewer answers to payers than this.
const ANSWERS_MAX: usize = 150;
/// Or after this time, if no answers come.
const ROUND_MAX: Duration = Duration::from_secs(6);
/// The states of an order, in the order in which it passes them.
const STATES: [&str; 4] = ["INIT", "PAYING", "PAID", "CLOSED"];
/// Alerts that would be false here: no order is lost, no money is taken, nothing is stuck.
const FALSE_ALARMS: [&str; 6] = [
    "recharge_contradiction",
    "recharge_unmatched",
    "recharge_stuck",
    "conservation_violated",
    "balance_changed_outside",
    "transfer_stuck",
];

/// The faults of answers: half of the time there is none. The last one takes a minute to heal,
/// since cards repeat a stored failure, and is for the long form alone.
const ANSWERS: [Option<&str>; 14] = [
    None,
    None,
    None,
    None,
    None,
    None,
    None,
    Some("away"),
    Some("busy"),
    Some("rubbish"),
    Some("unsigned"),
    Some("changed"),
    Some("half"),
    Some("error"),
];
/// The faults of callbacks.
const CALLBACKS: [Option<&str>; 13] = [
    None,
    None,
    None,
    None,
    Some("drop"),
    Some("hold"),
    Some("repeat"),
    Some("reorder"),
    Some("forge_body"),
    Some("forge_key"),
    Some("forge_time"),
    Some("forge_serial"),
    Some("probe"),
];

/// The plan of a payer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Plan {
    Pays,
    PaysTwice,
    PaysLess,
    Cancels,
    CancelsAndPays,
    Leaves,
}

impl Plan {
    fn drawn(random: &Random) -> Plan {
        match random.below(20) {
            0..10 => Plan::Pays,
            10..12 => Plan::PaysTwice,
            12..14 => Plan::PaysLess,
            14..16 => Plan::Cancels,
            16..18 => Plan::CancelsAndPays,
            _ => Plan::Leaves,
        }
    }
}

/// An order of a payer, and the last answer about it.
struct Order {
    user: u64,
    body: Value,
    plan: Plan,
    told: Option<Value>,
}

impl Order {
    fn id(&self) -> Option<&str> {
        self.told.as_ref().map(|told| text(&told["recharge_id"]))
    }

    /// No answer takes an earlier one back.
    fn sees(&mut self, now: Value) {
        let rank = |order: &Value| STATES.iter().position(|state| order["state"] == json!(state));
        if let Some(before) = &self.told {
            assert_eq!(now["recharge_id"], before["recharge_id"], "{now} after {before}");
            assert!(rank(&now) >= rank(before), "{now} after {before}");
            let is_final = before["state"] == json!("PAID") || before["state"] == json!("CLOSED");
            assert!(!is_final || now["state"] == before["state"], "{now} after {before}");
        }
        assert!(rank(&now).is_some(), "{now}");
        self.told = Some(now);
    }

    /// Posts it. Returns whether it has an answer.
    fn post(&mut self, server: &Server) -> bool {
        let body = self.body.clone();
        let reply = known(server.try_ask(self.user, "POST", "/api/v1/recharge", Some(&body)).ok());
        let Some(reply) = reply else { return false };
        assert!([200, 201, 202].contains(&reply.status), "{reply:?}");
        self.sees(reply.json());
        true
    }

    fn look(&mut self, server: &Server) -> bool {
        let path = format!("/api/v1/recharge/{}", self.id().expect("answered"));
        let Some(reply) = known(server.try_ask(self.user, "GET", &path, None).ok()) else {
            return false;
        };
        assert_eq!(reply.status, 200, "{reply:?}");
        self.sees(reply.json());
        true
    }

    fn is(&self, state: &str) -> bool {
        self.told.as_ref().is_some_and(|told| told["state"] == json!(state))
    }

    fn cancel(&mut self, server: &Server) {
        let path = format!("/api/v1/recharge/{}/cancel", self.id().expect("answered"));
        if let Some(reply) = known(server.try_ask(self.user, "POST", &path, None).ok()) {
            assert!([200, 202, 409].contains(&reply.status), "{reply:?}");
        }
    }
}

/// An answer that is one: `None`, if the server dies or cannot say yet.
fn known(reply: Option<Reply>) -> Option<Reply> {
    reply.filter(|reply| ![500, 503].contains(&reply.status))
}

/// A site, its channels, and all that its payers were told.
struct Soak {
    desk: Recharging,
    cluster: Arc<Cluster>,
    door: Door,
    random: Random,
    /// Of earlier rounds and of this one.
    orders: Mutex<Vec<Order>>,
    /// Orders of earlier rounds, which are all compared.
    compared: usize,
    strikes: BTreeMap<Strike, usize>,
    /// Payments that were told a second time, since no callback, query or bill came.
    told_again: usize,
    keys: usize,
    is_long: bool,
}

impl Soak {
    fn new(fuse: bool, seed: u64, is_long: bool) -> Soak {
        let (site, cluster) = Site::on_its_own_cluster();
        let (desk, door) = Recharging::on(site).behind_a_door();
        let site = desk
            .site
            .with("UBSCORE__COORDINATOR__FUSE", fuse)
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 18)
            .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 1_000)
            .with("UBSCORE__CONSERVATION__EVERY_MS", 500)
            .with("UBSCORE__RECHARGE__CREATE_WAIT_MS", 300)
            .with("UBSCORE__RECHARGE__CALL_TIMEOUT_MS", 1_000)
            .with("UBSCORE__RECHARGE__QUERY_CAP_MS", 2_000)
            .with("UBSCORE__RECHARGE__USER_OPEN_MAX", 1_000)
            .with("UBSCORE__RECHARGE__USER_CREATES_PER_MINUTE_MAX", 10_000);
        Soak {
            desk: Recharging { site, sim: desk.sim },
            cluster,
            door,
            random: Random::new(seed),
            orders: Mutex::default(),
            compared: 0,
            strikes: BTreeMap::new(),
            told_again: 0,
            keys: 0,
            is_long,
        }
    }

    fn start(&self) -> Server {
        let server = self.desk.site.start();
        self.door.leads_to(Some(&server));
        server
    }

    /// A payer makes an order, and does as it has planned.
    fn shop(&self, server: &Server, user: u64, key: &str) {
        let random = &self.random;
        let channel = CHANNELS[random.below(2)];
        let amount = format!("{}.{:02}", 1 + random.below(400), random.below(100));
        let mut body = recharge(&amount, channel, key);
        if random.once_in(4) {
            body["to"] = json!("SPOT");
        }
        let mut order = Order { user, body, plan: Plan::drawn(random), told: None };
        if order.post(server) {
            for _ in 0..3 {
                if order.is("INIT") {
                    random.pause(300);
                    order.look(server);
                }
            }
            self.act(&mut order, server);
        }
        self.orders.lock().expect("no panic").push(order);
    }

    fn act(&self, order: &mut Order, server: &Server) {
        let id = order.id().expect("answered").to_owned();
        let pay = |how: Value| drop(self.desk.sim.try_ask("POST", &format!("/pay/{id}"), &how));
        match order.plan {
            Plan::Pays => pay(json!({})),
            Plan::PaysTwice => pay(json!({"times": 2})),
            Plan::PaysLess => pay(json!({"amount": 50})),
            // An order that no payer was told of cannot end before its channel's own end.
            Plan::Cancels | Plan::CancelsAndPays if order.is("PAYING") => {
                order.cancel(server);
                if order.plan == Plan::CancelsAndPays {
                    self.random.pause(50);
                    pay(json!({"late": true}));
                }
            }
            Plan::Cancels | Plan::CancelsAndPays | Plan::Leaves => {}
        }
        order.look(server);
    }

    /// An operator gives a part of a payment back.
    fn operate(&self, server: &Server, key: &str) {
        let paid = {
            let orders = self.orders.lock().expect("no panic");
            let paid: Vec<&Order> = orders.iter().filter(|order| order.is("PAID")).collect();
            let chosen = (!paid.is_empty()).then(|| paid[self.random.below(paid.len())]);
            chosen.and_then(Order::id).map(str::to_owned)
        };
        if let Some(id) = paid {
            let body = json!({"amount": "0.5", "idem_key": key, "reason": "soak"});
            let reply = admin(server, "POST", &format!("recharges/{id}/refund"), &body);
            // Its user may have moved the money on, or it went back before.
            let may_be = reply.is_none_or(|reply| [200, 409, 422].contains(&reply.status));
            assert!(may_be, "{id}");
        }
        self.random.pause(120);
    }

    /// Other faults of the channels, or a death of their process.
    fn change_weather(&self) {
        let random = &self.random;
        if random.once_in(25) {
            self.desk.sim.dies_and_returns();
        }
        let faults = json!({
            "answer": ANSWERS[random.below(ANSWERS.len() - usize::from(!self.is_long))],
            "lost": random.once_in(2),
            "lie_about_close": random.once_in(3),
            "callbacks": CALLBACKS[random.below(CALLBACKS.len())],
        });
        self.desk.sim.faults(&faults);
        random.pause(400);
    }

    /// Load until the kill.
    fn load_and_kill(&mut self, round: usize, server: Server) {
        let strike = Strike::ALL[self.random.below(Strike::ALL.len())];
        *self.strikes.entry(strike).or_default() += 1;
        // A serial that nothing knows is asked for once a minute.
        if self.is_long && self.random.once_in(3) {
            self.keys += 1;
            self.desk.sim.done("POST", "/sim/keys", &json!({"kind": "certificate"}));
        }
        let (answered, dead) = (AtomicUsize::new(0), AtomicBool::new(false));
        let kill_at = self.random.below(ANSWERS_MAX);
        let soak = &*self;
        thread::scope(|scope| {
            let _dead = SetAtEnd(&dead);
            let (answered, dead, server) = (&answered, &dead, &server);
            let goes_on = move || !dead.load(Ordering::Relaxed);
            for user in USERS {
                scope.spawn(move || {
                    for number in 0.. {
                        soak.shop(server, user, &format!("{round}-{number}"));
                        answered.fetch_add(1, Ordering::Relaxed);
                        if !goes_on() {
                            return;
                        }
                    }
                });
            }
            scope.spawn(move || {
                for number in 0.. {
                    soak.operate(server, &format!("refund-{round}-{number}"));
                    if !goes_on() {
                        return;
                    }
                }
            });
            scope.spawn(move || {
                while goes_on() {
                    soak.change_weather();
                }
            });
            scope.spawn(move || strike.hit(&soak.desk.site, &soak.cluster, &soak.random, dead));
            let began = Instant::now();
            while answered.load(Ordering::Relaxed) < kill_at && began.elapsed() < ROUND_MAX {
                thread::sleep(Duration::from_millis(1));
            }
            server.signal(Signal::KILL);
            self.door.leads_to(None);
        });
        assert_quiet(&server);
        server.kill();
        let made = self.orders.get_mut().expect("no panic").len() - self.compared;
        println!("kill {round}: PostgreSQL {strike:?}, {made} orders");
    }

    /// One round. Returns the next process, with everything ended and compared.
    fn round(&mut self, round: usize, server: Server) -> Server {
        self.load_and_kill(round, server);
        let mut server = self.start();
        if self.random.once_in(3) {
            self.random.pause(500);
            server.kill();
            self.door.leads_to(None);
            server = self.start();
        }
        self.desk.sim.faults(&json!({}));
        self.end_all(&server);
        self.compare(&server);
        assert_quiet(&server);
        assert_eq!(self.desk.site.sql_value("SELECT halted FROM engine_state"), "f");
        server
    }
}

/// An operator's request; `None`: the server dies, or cannot say yet.
fn admin(server: &Server, method: &str, path: &str, body: &Value) -> Option<Reply> {
    let operator = token(ADMIN, Some(Role::Admin));
    let path = format!("/admin/v1/{path}");
    let request = Request { body: Some(body), ..Request::new(&operator, method, &path) };
    known(send(server.ops, &request).ok())
}

/// No alarm was false.
fn assert_quiet(server: &Server) {
    let said = server.said();
    for line in said.lines() {
        let is_false = FALSE_ALARMS.iter().any(|alarm| line.contains(&format!("\"{alarm}\"")));
        assert!(!is_false, "{line}");
    }
}

/// RCH-038. Goal: chaos for as long as one likes leaves every sum exact, loses no payment, carries
/// none out twice, takes no answer back and raises no false alarm. Method: rounds as above, fused
/// and not. `make soak FAMILY=recharges MINUTES=60` runs for an hour.
#[test]
fn rch_038_chaos_leaves_every_sum_exact_and_raises_no_false_alarm() {
    /// Rounds of one site: its data grow, and are compared whole after each.
    const SITE_ROUNDS: usize = 20;
    const ROUNDS: usize = 4;
    let minutes = soak_minutes().map(|minutes| Duration::from_secs(60 * minutes as u64));
    let (seed, began) = (SystemEntropy::default().u64(), Instant::now());
    println!("seed {seed}");
    let (mut rounds, mut sum) = (0, books::Sum::default());
    let is_over = |rounds: usize| match minutes {
        Some(minutes) => began.elapsed() >= minutes,
        None => rounds == ROUNDS,
    };
    for number in 0.. {
        if is_over(rounds) {
            break;
        }
        let fuse = number % 2 == 0;
        println!("site {number}, transitions share commits: {fuse}");
        let mut soak = Soak::new(fuse, seed.wrapping_add(number), minutes.is_some());
        let mut server = soak.start();
        for _ in 0..SITE_ROUNDS {
            server = soak.round(rounds, server);
            rounds += 1;
            if is_over(rounds) || minutes.is_none() && rounds.is_multiple_of(ROUNDS / 2) {
                break;
            }
        }
        server.stop();
        soak.desk.site.assert_verified();
        sum.add(&soak);
    }
    sum.print(rounds);
}
