//! Payments of a crowd while everything fails by chance: nodes that die, stand still and are cut
//! off from PostgreSQL and the chain, endpoints that lie, a chain that reorganizes and forgets.
//!
//! A round has clients without pauses, a thread of faults for each node, and one for the chain.
//! Then all is well again, every row is final, and the chain, the rows, the feed and the answers to
//! the clients are compared.

/// The clients and their answers.
mod clients;

/// The nodes, their ways and their faults.
mod seats;

/// The chain and its faults.
mod weather;

/// The comparison behind each round.
mod verdict;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use alloy_primitives::Address;
use ubscore::entropy::{Entropy, SystemEntropy};

use self::clients::{Asked, SoakFeed};
use self::seats::SoakSeat;
use super::place::{Party, Place};
use crate::harness::{ACCOUNTS, FIRST_BASE_FEE, PATIENCE, Random, SetAtEnd, soak_minutes};

/// The signers.
const SIGNERS: [Address; 4] = [ACCOUNTS[0], ACCOUNTS[1], ACCOUNTS[2], ACCOUNTS[3]];
const NODES: [&str; 3] = ["txm-a", "txm-b", "txm-c"];
const CLIENTS: usize = 8;
/// The blocks on top of a final one. A reorganization is not deeper than one less.
const REQUIRED: u64 = 4;

/// One database and its chain, the nodes, and all answers.
struct Soak {
    /// Before the place: its nodes end first.
    seats: Vec<SoakSeat>,
    place: Place,
    random: Random,
    /// Of earlier rounds and of this one.
    requests: Mutex<Vec<Asked>>,
    feed: Mutex<SoakFeed>,
    /// Held by each start of a node: no fault of all nodes hits one.
    starts: RwLock<()>,
    /// The faults by name, how often each.
    faults: Mutex<BTreeMap<String, usize>>,
    /// Set at the end of the faults of a round.
    is_calm: AtomicBool,
    /// Rows that a person had to release, with the time of the last try.
    released: Mutex<BTreeMap<String, Instant>>,
    /// The words of nodes that have ended.
    words: Mutex<String>,
}

impl Soak {
    /// With nodes that have an honest endpoint beside their own one, or not.
    fn new(seed: u64, has_second: bool) -> Soak {
        let required = REQUIRED.to_string();
        let place = Place::with_signers(
            SIGNERS.len(),
            &[
                ("CONFIRMATIONS__REQUIRED", &required),
                ("CHAIN__TIMEOUT_MS", "1000"),
                ("NONCE__STATE_TIMEOUT_MS", "500"),
                ("RELEASE_BLIND_MS", "1500"),
                ("SHUTDOWN_TIMEOUT_MS", "2000"),
                ("CONFIRMATIONS__STALE_RECEIPT_TIMEOUT_MS", "1000"),
            ],
        );
        let first = place.node("txm-first", &[]);
        SIGNERS.iter().for_each(|signer| place.add(&first, *signer));
        first.stop();
        let seats = NODES.map(|name| SoakSeat::new(&place, name, has_second)).into();
        Soak {
            place,
            seats,
            random: Random::new(seed),
            requests: Mutex::default(),
            feed: Mutex::default(),
            starts: RwLock::default(),
            faults: Mutex::default(),
            is_calm: AtomicBool::new(false),
            released: Mutex::default(),
            words: Mutex::default(),
        }
    }

    fn counts(&self, fault: impl Into<String>) {
        *self.faults.lock().expect("no panic").entry(fault.into()).or_default() += 1;
    }

    fn goes_on(&self) -> bool {
        !self.is_calm.load(Ordering::Relaxed)
    }

    /// Load and faults for so long; then calm, and the comparison.
    fn round(&self, number: usize, length: Duration) {
        self.is_calm.store(false, Ordering::Relaxed);
        let soak = self;
        thread::scope(|scope| {
            let _calm = SetAtEnd(&soak.is_calm);
            for seat in &soak.seats {
                scope.spawn(move || soak.trouble(seat));
            }
            for client in 0..CLIENTS {
                scope.spawn(move || soak.shop(&format!("{number}-{client}")));
            }
            scope.spawn(move || soak.change_weather());
            scope.spawn(move || soak.follow_feed());
            let began = Instant::now();
            while began.elapsed() < length {
                thread::sleep(Duration::from_millis(20));
            }
        });
        self.calm();
        self.compare();
        self.clients_see_the_end();
    }

    /// A node by chance, if one is there.
    fn some_node(&self) -> Option<Arc<Party>> {
        self.seats[self.random.below(self.seats.len())].node()
    }

    /// All nodes are up, all endpoints honest. Blocks are mined until every row is final.
    fn calm(&self) {
        self.seats.iter().for_each(|seat| seat.is_well(self));
        self.place.chain.set_base_fee(FIRST_BASE_FEE);
        let began = Instant::now();
        loop {
            self.place.chain.mine(1);
            thread::sleep(Duration::from_millis(100));
            let open = self.place.site.sql(
                "SELECT tx_id, signer, nonce, state, sub_state FROM txm.managed_tx \
                 WHERE final_at IS NULL ORDER BY signer, nonce",
            );
            if open.is_empty() {
                return;
            }
            self.release_blocked();
            assert!(
                began.elapsed() < PATIENCE,
                "not final: {open:#?}\n{}",
                self.shown(&open[0][0])
            );
        }
    }

    /// A row as a node shows it.
    fn shown(&self, id: &str) -> String {
        let node = self.seats[0].node().expect("a node");
        format!("{:#}", node.row(id))
    }

    /// An operator has blocked rows sent again: no endpoint would take them, and its alert said so.
    fn release_blocked(&self) {
        let blocked = "SELECT tx_id FROM txm.managed_tx WHERE sub_state = 4 AND final_at IS NULL";
        for id in self.place.site.sql(blocked).into_iter().flatten() {
            let mut released = self.released.lock().expect("no panic");
            let is_early = |at: &Instant| at.elapsed() < Duration::from_secs(2);
            if released.get(&id).is_some_and(is_early) {
                continue;
            }
            released.insert(id.clone(), Instant::now());
            drop(released);
            let is_named = self.has_named("tx_blocked", &id);
            self.counts(if is_named { "a blocked row" } else { "a blocked row without an alert" });
            // The node may be dead, and the row may not be blocked any more.
            if let Some(node) = self.some_node() {
                node.operate(&["tx", "resubmit", &id, "--reason", "a soak"]);
            }
        }
    }

    /// Whether an alert of this name was raised about a row or a signer.
    fn has_named(&self, alert: &str, about: &str) -> bool {
        let alive: String = self.seats.iter().map(SoakSeat::words).collect();
        let dead = self.words.lock().expect("no panic");
        let mut lines = dead.lines().chain(alive.lines());
        lines.any(|line| line.contains(alert) && line.contains(about))
    }
}

/// Goal: chaos for as long as one likes pays each row once or not at all, as the row says; every
/// row is final; the feed is whole; no answer is taken back; no alert is false. Method: rounds as
/// above, with an honest endpoint beside those that lie, and without. `make soak FAMILY=txm
/// MINUTES=60` runs for an hour.
#[test]
fn chaos_of_nodes_and_chain_pays_each_row_once_or_not_at_all() {
    /// Rounds of one place: its data grow, and are compared whole after each.
    const PLACE_ROUNDS: usize = 6;
    let minutes = soak_minutes().map(|minutes| Duration::from_secs(60 * minutes as u64));
    let length = Duration::from_secs(if minutes.is_some() { 20 } else { 10 });
    let (seed, began) = (SystemEntropy::default().u64(), Instant::now());
    println!("seed {seed}");
    let (mut rounds, mut sum) = (0, verdict::SoakSum::default());
    for number in 0.. {
        let is_over = match minutes {
            Some(minutes) => began.elapsed() >= minutes,
            None => number == 2,
        };
        if is_over {
            break;
        }
        let soak = Soak::new(seed.wrapping_add(number), number % 2 == 1);
        let rounds_here = minutes.map_or(1, |_| PLACE_ROUNDS);
        for _ in 0..rounds_here {
            if minutes.is_some_and(|minutes| began.elapsed() >= minutes) {
                break;
            }
            soak.round(rounds, length);
            rounds += 1;
            println!("{:>5} s, round {rounds}: {}", began.elapsed().as_secs(), soak.summary());
        }
        sum.add(&soak);
    }
    sum.print(rounds);
}
