//! Reads while flights are out: sums are exact, and no state steps back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::transfer::State;
use serde_json::Value;

use crate::harness::{
    COIN, Planned, Reply, Server, Site, Way, crowd, eventually, post_to, soak_rounds, split_mix,
    text, units,
};

/// Reads and clients of `make test`, and of `make soak`.
const TESTED: (usize, usize) = (400, 40);
const SOAKED: (usize, usize) = (12_000, 1_000);
/// Nine of ten clients are of the first user; the users are of two shards.
const USERS: [u64; 2] = [1001, 1002];
const GIFT: u128 = 10_000 * COIN;
/// The states in an order that no transfer goes back in. All final states are last.
const STATES: [&str; 5] =
    ["INIT", "SOURCE_PENDING", "SOURCE_DONE", "TARGET_PENDING", "COMPENSATING"];
const FINAL: [&str; 3] = ["COMMITTED", "FAILED", "ROLLED_BACK"];
/// The name of every other state in the answer to a POST.
const PENDING: &str = "PENDING";

fn is_final(state: &str) -> bool {
    FINAL.contains(&state)
}

/// How far each transfer was when an answer about it came, over all clients.
#[derive(Default)]
struct Seen(Mutex<BTreeMap<String, String>>);

impl Seen {
    fn before(&self) -> BTreeMap<String, String> {
        self.0.lock().expect("not poisoned").clone()
    }

    fn has_ended(&self, req_id: &str) -> bool {
        let seen = self.0.lock().expect("not poisoned");
        seen.get(req_id).is_some_and(|state| is_final(state))
    }

    /// Asserts that an answer is not behind one that came before its request.
    fn add(&self, before: &BTreeMap<String, String>, transfer: &Value, what: &str) {
        let (req_id, state) = (text(&transfer["req_id"]), text(&transfer["state"]));
        let place = |state: &str| STATES.iter().position(|other| *other == state);
        let is_behind = |earlier: &str| match (place(earlier), place(state)) {
            (None, _) => earlier != state,
            (Some(earlier), now) => now.is_some_and(|now| now < earlier),
        };
        if state == PENDING {
            let ended = before.get(req_id).filter(|earlier| is_final(earlier));
            assert_eq!(ended, None, "{what}: {req_id} is {state}");
            return;
        }
        if let Some(earlier) = before.get(req_id) {
            assert!(!is_behind(earlier), "{what}: {req_id} is {state} after {earlier}");
        }
        let mut seen = self.0.lock().expect("not poisoned");
        let known = seen.entry(req_id.to_owned()).or_insert_with(|| state.to_owned());
        // Answers to requests at the same time come in any order.
        if !is_behind(known) {
            state.clone_into(known);
        }
        let both = [known.as_str(), state].map(is_final);
        assert!(both != [true, true] || known == state, "{what}: {req_id} is {known} and {state}");
    }
}

/// One client: a transfer, and reads until it has ended; then the next.
struct Client<'a> {
    server: &'a Server,
    seen: &'a Seen,
    reads: &'a AtomicUsize,
    user: u64,
    random: u64,
}

impl Client<'_> {
    /// Lives until there are `reads_max` reads of all clients.
    fn live(&mut self, number: usize, reads_max: usize) {
        for errand in 0.. {
            // One of eight is refused by its source.
            let amount = match split_mix(&mut self.random) % 8 {
                0 => "20000".to_owned(),
                _ => format!("0.{:04}", 1 + split_mix(&mut self.random) % 9_000),
            };
            let way = Way::BOTH[usize::from(split_mix(&mut self.random).is_multiple_of(2))];
            let body = way.body_with_cid("USDT", &amount, &format!("read-{number}-{errand}"));
            let planned = Planned { user: self.user, body };
            let begun = eventually("an accept", || self.post(&planned));
            let req_id = begun.req_id();
            while !self.read(&planned, &req_id) {
                if self.reads.load(Ordering::Relaxed) >= reads_max {
                    return;
                }
            }
            if self.reads.load(Ordering::Relaxed) >= reads_max {
                return;
            }
        }
    }

    /// Posts, for the first time or again; `None` if it was not accepted.
    fn post(&self, planned: &Planned) -> Option<Reply> {
        let before = self.seen.before();
        let reply = post_to(self.server.http, planned).expect("an answer");
        assert!([200, 202, 422, 503].contains(&reply.status), "{reply:?}");
        // An accept of unknown end is answered with its name alone.
        reply.json()["state"].as_str()?;
        self.seen.add(&before, &reply.json(), "POST");
        Some(reply)
    }

    /// A read of any kind. Returns whether the transfer is known to have ended.
    fn read(&mut self, planned: &Planned, req_id: &str) -> bool {
        let before = self.seen.before();
        let answered = match split_mix(&mut self.random) % 12 {
            0..4 => self.get("balances").map(|reply| {
                let balance = reply.balances()["USDT"];
                assert_eq!(balance.sum(), GIFT, "user {}: {balance:?}", self.user);
            }),
            4..6 => self.get("internal_transfers?limit=100").map(|page| {
                for transfer in page.json()["transfers"].as_array().expect("an array") {
                    self.seen.add(&before, transfer, "list");
                }
            }),
            6..8 => self.post(planned).map(|_| ()),
            8 => answered(self.server.admin_get("/admin/v1/totals")).map(|totals| {
                for asset in totals.json()["assets"].as_array().expect("an array") {
                    assert_eq!(units(text(&asset["difference"])), 0, "{totals:?}");
                }
            }),
            _ => self
                .get(&format!("internal_transfer/{req_id}"))
                .map(|reply| self.seen.add(&before, &reply.json(), "GET")),
        };
        self.reads.fetch_add(usize::from(answered.is_some()), Ordering::Relaxed);
        self.seen.has_ended(req_id)
    }

    fn get(&self, path: &str) -> Option<Reply> {
        answered(self.server.get(self.user, &format!("/api/v1/{path}")))
    }
}

/// `None`: a service with too much to do has not answered in time.
fn answered(reply: Reply) -> Option<Reply> {
    assert!([200, 503].contains(&reply.status), "{reply:?}");
    (reply.status == 200).then_some(reply)
}

/// Goal: every read sums exactly, and no answer is behind an earlier one, nor a final state ever
/// another, while a thousand requests of one user are under way. Method: clients that read
/// transfers, lists, balances, totals and replays while their own transfers run both ways.
#[test]
fn concurrent_reads_sum_exactly_and_never_step_back() {
    let (reads_max, clients) = if soak_rounds().is_some() { SOAKED } else { TESTED };
    for fuse in [true, false] {
        let site = Site::fused(fuse)
            .with("UBSCORE__COORDINATOR__SHARDS", 2)
            .with("UBSCORE__HTTP__TRANSFER_WAIT_MS", 0)
            .with("UBSCORE__HTTP__CONNECTIONS_MAX", 4_096);
        let server = site.start();
        for user in USERS {
            server.transfer_accepted(user, Way::ToSpot, "5000");
        }
        site.wait_for_rest();
        let (seen, reads) = (Seen::default(), AtomicUsize::new(0));
        crowd(clients, |number| {
            let user = USERS[usize::from(number % 10 == 9)];
            let (server, seen, reads) = (&server, &seen, &reads);
            let random = number as u64;
            Client { server, seen, reads, user, random }.live(number, reads_max);
        });
        site.wait_for_rest();
        let rows = site.sql("SELECT req_id, state FROM transfers");
        let ends: BTreeMap<_, _> = rows.iter().map(|row| (&row[0], &row[1])).collect();
        for (req_id, state) in seen.before().iter().filter(|(_, state)| is_final(state)) {
            let number = ends.get(req_id).and_then(|number| number.parse().ok());
            assert_eq!(number.and_then(State::from_number).map(State::name), Some(state.as_str()));
        }
        println!("{reads:?} reads of {clients} clients, {} transfers", seen.before().len());
        site.assert_in_order(&server);
    }
}
