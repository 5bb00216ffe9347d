//! Transactions of a crowd over both stores, a participant and callers' own rows, beside transfers
//! and the trades of a venue, while the server is killed again and again, and PostgreSQL as well.
//!
//! A round has callers without pauses and readers of balances and totals. In most rounds a
//! striker takes PostgreSQL away in one of several ways. SIGKILL ends the round at a random moment;
//! in a third of the rounds the recovery is killed as well. Then every caller asks until it knows
//! the end of its transaction, and everything is compared.

mod bank;
mod market;
mod order;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use ubscore::entropy::{Entropy, SystemEntropy};
use ubscore::http::auth::Role;

use self::bank::Bank;
use self::market::Market;
use self::order::{Caller, Course, Order, Told};
use crate::harness::{
    ADMIN, Balance, Cluster, Passing, Planned, Proxy, Random, Reply, Request, Server, SetAtEnd,
    Site, Speaker, Strike, Way, crowd, eventually, post_to, send, soak_rounds, text, token, units,
};

/// The users that pay each other; none of them has money of development.
const MOVERS: [u64; 4] = [2_001, 2_002, 2_003, 2_004];
/// A user with holds and transfers, but without a transaction that is done: its sum never changes.
const STILL: u64 = 2_005;
const USERS: [u64; 5] = [MOVERS[0], MOVERS[1], MOVERS[2], MOVERS[3], STILL];
const ASSETS: [&str; 2] = ["USDT", "BTC"];
/// The money of each user of each asset, and the part of it that begins on Spot.
const GIVEN: (&str, &str) = ("5.5", "2");

/// Concurrent callers of transactions, each with one at a time.
const CALLERS: usize = 12;
/// The same of transfers.
const MOVING: usize = 4;
/// The kill comes after fewer answers than this.
const ANSWERS_MAX: usize = 200;
/// Or after this time, if no answers come.
const ROUND_MAX: Duration = Duration::from_secs(2);
/// Transactions of earlier rounds that are asked for again after each kill.
const SAMPLE: usize = 15;
/// Threads that ask again.
const ASKERS: usize = 8;

const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";

/// The fault of PostgreSQL in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Of(Strike),
    /// Unreachable for a while.
    Away,
    /// Connections end in place of answers, among them those to commits.
    Lossy,
}

/// The faults of the rounds, in turn.
const FAULTS: [Fault; 12] = [
    Fault::Of(Strike::Nothing),
    Fault::Lossy,
    Fault::Of(Strike::Cut),
    Fault::Of(Strike::Nothing),
    Fault::Of(Strike::Kill),
    Fault::Of(Strike::Nothing),
    Fault::Away,
    Fault::Of(Strike::Nothing),
    Fault::Of(Strike::Freeze),
    Fault::Lossy,
    Fault::Of(Strike::Nothing),
    Fault::Of(Strike::KillBoth),
];

/// A site, its participant, and all that its callers were told.
struct Payments {
    site: Site,
    cluster: Arc<Cluster>,
    proxy: Proxy,
    loses: Arc<AtomicBool>,
    lost: Arc<AtomicUsize>,
    bank: Bank,
    /// A venue that trades the money of the same users.
    market: Mutex<Market>,
    random: Arc<Random>,
    orders: Vec<(Order, Told)>,
    transfers: Vec<(Planned, Reply)>,
    faults: BTreeMap<Fault, usize>,
    reads: AtomicUsize,
    compared: usize,
}

/// A transaction as PostgreSQL has it: its state, and the states of its branches by round.
#[derive(Debug, Default)]
struct Stored {
    state: i16,
    rounds: BTreeMap<u64, Vec<(String, i16)>>,
}

impl Payments {
    fn new(fuse: bool, seed: u64) -> Payments {
        let (site, cluster) = Site::on_its_own_cluster();
        let bank = Bank::start(seed);
        let secret = site.fresh_path("secret");
        std::fs::write(&secret, SECRET).expect("written");
        let socket = site.fresh_path("stream");
        let mut site = site
            .with("UBSCORE__COORDINATOR__FUSE", fuse)
            .with("UBSCORE__STREAM__SOCKET", socket.display())
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 18)
            .with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 1_000)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 500)
            .with("UBSCORE__TRANSACTIONS__TICK_MS", 50)
            .with("UBSCORE__TRANSACTIONS__PARTICIPANT_TIMEOUT_MS", 1_000);
        for (name, kind) in [("COUPONS", "veto"), ("BANK", "last")] {
            let key = |key: &str| format!("UBSCORE__PARTICIPANTS__{name}__{key}");
            site = site.with(&key("URL"), bank.url()).with(&key("KIND"), kind);
            site = site.with(&key("SECRET_FILE"), secret.display());
        }
        let random = Arc::new(Random::new(seed));
        let (loses, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let proxy = {
            let (random, loses, lost) =
                (Arc::clone(&random), Arc::clone(&loses), Arc::clone(&lost));
            Proxy::start(&site, move |speaker, _| {
                let loses = speaker == Speaker::Server && loses.load(Ordering::Relaxed);
                if !loses || !random.once_in(60) {
                    return Passing::All;
                }
                lost.fetch_add(1, Ordering::Relaxed);
                Passing::Cut(0)
            })
        };
        Payments {
            site,
            cluster,
            proxy,
            loses,
            lost,
            bank,
            market: Mutex::new(Market::new(&socket)),
            random,
            orders: Vec::new(),
            transfers: Vec::new(),
            faults: BTreeMap::new(),
            reads: AtomicUsize::new(0),
            compared: 0,
        }
    }

    fn start(&self) -> Server {
        Server::start(self.site.command_with(&self.proxy.url))
    }

    /// The first start: money for all users, the callers' table, and their right to commit.
    fn open(&self) -> Server {
        let server = self.start();
        let (given, on_spot) = GIVEN;
        for user in USERS {
            for asset in ASSETS {
                server.deposit(user, asset, given);
                let body = Way::ToSpot.body_with_cid(asset, on_spot, &format!("first-{asset}"));
                assert_eq!(server.post_ended(user, &body).status, 200);
            }
        }
        Market::register(&server);
        self.site.sql(
            "CREATE TABLE orders (tx_id TEXT PRIMARY KEY); \
             INSERT INTO transaction_grants (role_name, owner) VALUES (session_user, 'shop')",
        );
        server
    }

    fn caller<'a>(&'a self, server: &Server) -> Caller<'a> {
        Caller { http: server.http, site: &self.site, random: &self.random }
    }

    fn strike(&self, fault: Fault, dead: &AtomicBool) {
        match fault {
            Fault::Of(strike) => strike.hit(&self.site, &self.cluster, &self.random, dead),
            Fault::Away => {
                self.random.pause(400);
                self.proxy.refuse();
                self.random.pause(1_500);
                self.proxy.come_back();
            }
            Fault::Lossy => self.loses.store(true, Ordering::Relaxed),
        }
    }

    /// One transfer of any user, mostly small.
    fn planned(&self, cid: &str) -> Planned {
        let user = USERS[self.random.below(USERS.len())];
        let amount = format!("0.{:08}", 1 + self.random.below(30_000_000));
        let asset = ASSETS[self.random.below(ASSETS.len())];
        Planned { user, body: Way::BOTH[self.random.below(2)].body_with_cid(asset, &amount, cid) }
    }

    /// GTX-020: each total adds up, and so does the balance of the user that is never paid.
    fn read(&self, server: &Server) {
        let admin = token(ADMIN, Some(Role::Admin));
        let totals = send(server.ops, &Request::new(&admin, "GET", "/admin/v1/totals"));
        if let Some(reply) = totals.ok().filter(|reply| reply.status == 200) {
            assert_totals(&reply.json());
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        let balances = server.try_ask(STILL, "GET", "/api/v1/balances", None);
        if let Some(reply) = balances.ok().filter(|reply| reply.status == 200) {
            let balances = reply.balances();
            for asset in ASSETS {
                assert_eq!(balances[asset].sum(), units(GIVEN.0), "{asset}: {reply:?}");
            }
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Load until the kill; returns the transactions with a caller that does not know their end.
    fn load_and_kill(&mut self, round: usize, server: Server, fault: Fault) -> Vec<Order> {
        let kill_at = self.random.below(ANSWERS_MAX);
        let (answered, dead) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (told, open, moved) =
            (Mutex::new(Vec::new()), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let payments = &*self;
        thread::scope(|scope| {
            let _dead = SetAtEnd(&dead);
            let (answered, dead, server) = (&answered, &dead, &server);
            let (told, open, moved) = (&told, &open, &moved);
            for thread in 0..CALLERS {
                scope.spawn(move || {
                    let caller = payments.caller(server);
                    for number in 0.. {
                        let order =
                            Order::drawn(format!("{round}-{thread}-{number}"), &payments.random);
                        match caller.drive(&order) {
                            Some(end) => told.lock().expect("no panic").push((order, end)),
                            None => open.lock().expect("no panic").push(order),
                        }
                        answered.fetch_add(1, Ordering::Relaxed);
                        if dead.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            for thread in 0..MOVING {
                scope.spawn(move || {
                    for number in 0.. {
                        let planned = payments.planned(&format!("{round}-{thread}-{number}"));
                        match post_to(server.http, &planned) {
                            Some(reply) if [200, 202, 422].contains(&reply.status) => {
                                moved.lock().expect("no panic").push((planned, reply));
                            }
                            Some(reply) if reply.status != 503 => panic!("{reply:?}"),
                            _ => {}
                        }
                        if dead.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            scope.spawn(move || {
                payments.market.lock().expect("no panic").trade(&payments.random, dead);
            });
            scope.spawn(move || payments.strike(fault, dead));
            scope.spawn(move || {
                while !dead.load(Ordering::Relaxed) {
                    payments.read(server);
                }
            });
            let began = Instant::now();
            while answered.load(Ordering::Relaxed) < kill_at && began.elapsed() < ROUND_MAX {
                thread::sleep(Duration::from_millis(1));
            }
            server.signal(Signal::KILL);
        });
        server.kill();
        self.loses.store(false, Ordering::Relaxed);
        self.orders.append(&mut told.into_inner().expect("no panic"));
        self.transfers.append(&mut moved.into_inner().expect("no panic"));
        open.into_inner().expect("no panic")
    }

    /// Starts the server, and in a third of the rounds kills the recovery first.
    fn recover(&self) -> Server {
        let server = self.start();
        if !self.random.once_in(3) {
            return server;
        }
        self.random.pause(300);
        server.kill();
        self.start()
    }

    /// Every caller asks until it knows the end.
    fn finish(&mut self, server: &Server, open: Vec<Order>) {
        let ends = crowd(ASKERS, |asker| {
            let caller = self.caller(server);
            let mine = open.iter().skip(asker).step_by(ASKERS);
            let end = |order: &Order| {
                let told = eventually(&format!("the end of {order:?}"), || caller.drive(order));
                (order.clone(), told)
            };
            mine.map(end).collect::<Vec<_>>()
        });
        self.orders.extend(ends.into_iter().flatten());
    }

    /// No transaction is unfinished, and the venue has ended its holds. Then nothing is held.
    fn wait_for_rest(&self, server: &Server) {
        const OPEN: &str = "SELECT tx_id, state FROM transactions_tb WHERE state NOT IN (40, -20)";
        const HELD: &str = "SELECT hold_key, state FROM funding_holds WHERE state = 10";
        for unfinished in [OPEN, HELD] {
            let mut rows = Vec::new();
            let began = Instant::now();
            eventually("rest", || {
                rows = self.site.sql(unfinished);
                assert!(began.elapsed() < Duration::from_secs(90), "no rest: {rows:?}");
                rows.is_empty().then_some(())
            });
        }
        self.market.lock().expect("no panic").rest(server);
        self.site.wait_for_rest();
        let holds = server.admin_get("/admin/v1/holds").json();
        assert_eq!(holds["holds"].as_array().map(Vec::len), Some(0), "{holds}");
    }

    /// Every transaction of the last round and some of those before are told the same again.
    fn assert_told(&mut self, server: &Server, since: usize) {
        let earlier = (0..SAMPLE.min(since)).map(|_| self.random.below(since));
        let looked: Vec<usize> = earlier.chain(since..self.orders.len()).collect();
        crowd(ASKERS, |asker| {
            let caller = self.caller(server);
            for index in looked.iter().skip(asker).step_by(ASKERS) {
                let (order, first) = &self.orders[*index];
                let now = eventually("the end again", || caller.drive(order));
                let end = |told: &Told| (told.committed, told.transaction_id.clone());
                assert_eq!(end(&now), end(first), "{order:?}");
                // With several requests, the first refusal is told.
                if matches!(order.course, Course::Coordinator | Course::Last(_)) {
                    assert_eq!(now.code, first.code, "{order:?}");
                }
            }
        });
        self.compared += looked.len();
    }

    /// The same of transfers.
    fn assert_moved(&mut self, server: &Server, since: usize) {
        for (planned, first) in &self.transfers[since..] {
            let refused_at_once = first.status == 422 && first.json().get("req_id").is_none();
            if refused_at_once {
                continue;
            }
            let now = server.post_ended(planned.user, &planned.body);
            let fields: &[&str] =
                if first.status == 202 { &["req_id"] } else { &["req_id", "state", "code"] };
            for field in fields {
                assert_eq!(now.json()[field], first.json()[field], "{now:?} after {first:?}");
            }
        }
        self.compared += self.transfers.len() - since;
    }

    /// A caller's row and its transaction are committed both or neither, at any time.
    fn assert_rows(&self) {
        let torn = "SELECT o.tx_id AS of_caller, t.tx_id, t.state, t.decided_by FROM orders o \
             FULL JOIN (SELECT * FROM transactions_tb \
                         WHERE state IN (30, 40) AND decided_by = 'caller:' || session_user) t \
               ON o.tx_id = t.tx_id WHERE o.tx_id IS NULL OR t.tx_id IS NULL";
        assert_eq!(self.site.sql(torn), Vec::<Vec<String>>::new());
    }

    fn stored(&self) -> BTreeMap<String, Stored> {
        let mut all: BTreeMap<String, Stored> = BTreeMap::new();
        for row in self.site.sql(
            "SELECT t.tx_id, t.state, b.round, b.participant, b.state FROM transactions_tb t \
             LEFT JOIN transaction_branches b USING (transaction_id)",
        ) {
            let stored = all.entry(row[0].clone()).or_default();
            stored.state = row[1].parse().expect("a state");
            if let Ok(round) = row[2].parse() {
                let branch = (row[3].clone(), row[4].parse().expect("a state"));
                stored.rounds.entry(round).or_default().push(branch);
            }
        }
        all
    }

    /// Each transaction is all or nothing; returns the legs that are booked.
    fn assert_whole(&self) -> Vec<&order::Leg> {
        let stored = self.stored();
        assert_eq!(stored.len(), self.orders.len(), "transactions without a caller");
        let mut booked = Vec::new();
        for (order, told) in &self.orders {
            let Some(row) = stored.get(&order.tx_id) else { panic!("{order:?} is lost") };
            let want = if told.committed { 40 } else { -20 };
            assert_eq!(row.state, want, "{order:?} {told:?} {row:?}");
            assert!(!told.committed || row.rounds.len() == order.rounds.len(), "{order:?} {row:?}");
            let mut any = false;
            for (round, branches) in &row.rounds {
                let is = |wanted: &[i16]| branches.iter().all(|(_, state)| wanted.contains(state));
                let confirmed = is(&[40]);
                assert!(confirmed && told.committed || is(&[-10, -20]), "{order:?} {row:?}");
                let index = usize::try_from(*round).expect("small") - 1;
                if confirmed {
                    any = true;
                    booked.extend(&order.rounds[index]);
                }
                self.assert_participant(order, *round, confirmed);
            }
            assert_eq!(any, told.committed, "{order:?} {row:?}");
        }
        booked
    }

    fn assert_participant(&self, order: &Order, round: u64, confirmed: bool) {
        let entry = self.bank.entry(&order.tx_id, round);
        let index = usize::try_from(round).expect("small") - 1;
        if order.vetoes[index].is_some() {
            assert_eq!(entry.confirmed, confirmed, "{order:?} {entry:?}");
            let apart = entry.tried == Some(true) && !entry.confirmed && !entry.cancelled;
            assert!(!apart, "{order:?} {entry:?}");
        }
        if matches!(order.course, Course::Last(_)) {
            assert_eq!(entry.committed == Some(true), confirmed, "{order:?} {entry:?}");
        }
    }

    /// Each balance on each side is the given one, with all transfers, and with `legs`.
    fn assert_balances(&self, server: &Server, legs: &[&order::Leg]) {
        let moved: BTreeMap<String, i128> = self
            .site
            .sql(
                "SELECT user_id, symbol, direction, sum(amount) FROM transfers \
                 JOIN assets_tb USING (asset_id) WHERE state = 40 GROUP BY 1, 2, 3",
            )
            .into_iter()
            .map(|row| (row[..3].join(" "), signed(&row[3])))
            .collect();
        let mut sums = BTreeMap::new();
        for user in USERS {
            let reply = server.get(user, "/api/v1/balances");
            for row in reply.json()["balances"].as_array().expect("a list") {
                for store in ["funding", "spot"] {
                    assert_eq!(units(text(&row[store]["frozen"])), 0, "{user} {row}");
                }
            }
            for asset in ASSETS {
                let way = |way: u8| moved.get(&format!("{user} {asset} {way}")).unwrap_or(&0);
                let there = way(1) - way(2);
                let booked = |store: &str| -> i128 {
                    let part = |leg: &&&order::Leg| leg.asset == asset;
                    let units = |leg: &&order::Leg| i128::try_from(leg.units).expect("small");
                    let mine = |leg: &&order::Leg| {
                        let came = leg.to == user && leg.to_store == store;
                        let gone = leg.from == user && leg.store == store;
                        units(leg) * (i128::from(came) - i128::from(gone))
                    };
                    legs.iter().filter(part).map(mine).sum()
                };
                let Balance { funding, spot, in_flight } = reply.balances()[asset];
                let now = |units: Option<u128>| i128::try_from(units.unwrap_or(0)).expect("small");
                let traded = self.market.lock().expect("no panic").traded(user, asset);
                let on_spot = there + booked("SPOT") + traded;
                let want = (signed(GIVEN.0) - there + booked("FUNDING"), on_spot);
                assert_eq!((now(funding), now(spot)), want, "{user} {asset}");
                assert_eq!(in_flight, 0, "{user} {asset}");
                *sums.entry(asset).or_insert(0) += now(funding) + now(spot);
            }
        }
        for asset in ASSETS {
            assert_eq!(sums[asset], signed(GIVEN.0) * USERS.len() as i128, "{asset}");
        }
    }

    fn round(&mut self, round: usize, server: Server, fault: Fault) -> Server {
        *self.faults.entry(fault).or_default() += 1;
        let (since, moved) = (self.orders.len(), self.transfers.len());
        let open = self.load_and_kill(round, server, fault);
        self.assert_rows();
        let unfinished = "SELECT count(*) FROM transactions_tb WHERE state NOT IN (40, -20)";
        println!(
            "kill {round}: PostgreSQL {fault:?}; {} told, {} waited for; {} under way",
            self.orders.len() - since,
            open.len(),
            self.site.sql_value(unfinished),
        );
        let server = self.recover();
        self.assert_rows();
        self.finish(&server, open);
        self.wait_for_rest(&server);
        self.assert_rows();
        self.assert_told(&server, since);
        self.assert_moved(&server, moved);
        self.wait_for_rest(&server);
        self.assert_rows();
        self.bank.assert_in_order();
        self.assert_balances(&server, &self.assert_whole());
        self.site.assert_verified();
        assert_eq!(self.site.sql_value("SELECT halted FROM engine_state"), "f");
        server
    }
}

/// Each asset: both stores and the money in flight are the deposits less the withdrawals. No
/// transaction has made or lost money, whichever of its stores has booked.
fn assert_totals(body: &Value) {
    for row in body["assets"].as_array().expect("a list") {
        let number = |field: &str| signed(text(&row[field]));
        let there = number("funding") + number("spot") + number("in_flight");
        let came = number("deposited") - number("withdrawn");
        let made = (number("difference"), number("transactions"));
        assert_eq!((made, there), ((0, 0), came), "{row}");
    }
}

/// A decimal text with or without a sign, as smallest units.
fn signed(text: &str) -> i128 {
    let (digits, sign) = text.strip_prefix('-').map_or((text, 1), |digits| (digits, -1));
    sign * i128::try_from(units(digits)).expect("small")
}

/// GTX-003, GTX-020, RCV-004. Goal: with a crowd of transactions, each of them is all or nothing
/// in both stores, at its participant and in its caller's table, after any death at any time: of
/// the server, its recovery, PostgreSQL, or the answers of its commits. No told end changes, and
/// every read of the totals adds up. Method: rounds as above, fused and not. `make soak
/// FAMILY=transactions` runs more rounds.
#[test]
fn gtx_003_kills_under_a_crowd_of_transactions_leave_each_whole() {
    /// Rounds of one site: its data grow, and are compared whole after each.
    const SITE_KILLS: usize = 50;
    let kills = soak_rounds().unwrap_or(12);
    let seed = SystemEntropy::default().u64();
    println!("seed {seed}");
    let (mut left, mut compared, mut reads, mut lost, mut trades) = (kills, 0, 0, 0, 0);
    let mut faults: BTreeMap<Fault, usize> = BTreeMap::new();
    let mut ends: BTreeMap<(Course, bool), usize> = BTreeMap::new();
    for number in 0.. {
        let rounds = left.min(SITE_KILLS).min(kills.div_ceil(2));
        if rounds == 0 {
            break;
        }
        let first = kills - left;
        left -= rounds;
        let fuse = number % 2 == 0;
        println!("site {number}, transitions share commits: {fuse}");
        let mut payments = Payments::new(fuse, seed.wrapping_add(number));
        let mut server = payments.open();
        for round in 0..rounds {
            server = payments.round(round, server, FAULTS[(first + round) % FAULTS.len()]);
        }
        server.stop();
        payments.site.assert_verified();
        for (fault, count) in payments.faults {
            *faults.entry(fault).or_default() += count;
        }
        for (order, told) in &payments.orders {
            *ends.entry((order.course, told.committed)).or_default() += 1;
        }
        compared += payments.compared;
        reads += payments.reads.into_inner();
        lost += payments.lost.load(Ordering::Relaxed);
        trades += payments.market.into_inner().expect("no panic").trades;
    }
    println!("{kills} kills; PostgreSQL meanwhile {faults:?}; {lost} answers of it lost");
    println!("transactions by course and commit {ends:?}");
    println!("{trades} trades of a venue on the same balances");
    println!("{reads} reads added up; {compared} answers asked for again; 0 violations");
    if soak_rounds().is_some() {
        return;
    }
    assert!(trades > 0, "the venue has never traded");
    assert!(ends.keys().any(|(_, committed)| *committed), "{ends:?}");
    assert!(ends.keys().any(|(_, committed)| !*committed), "{ends:?}");
}
