//! Clients of the model: each sends transactions one after the other, repeats a request without an
//! answer, decides or goes away.

use std::sync::Arc;
use std::time::Duration;

use domain::transfer::{Cid, Participant};
use parking_lot::Mutex;

use super::Chance;
use super::time::VirtualClock;
use super::world::{USERS, World};
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::transaction::{Decider, LegPlace, TransactionLeg, TransactionName, TransactionRound};
use crate::transactions::example::{between, place};
use crate::transactions::{TransactionAnswer, Transactions};

/// Transactions of one client.
const TRANSACTIONS: u64 = 4;
/// Repeats of one request.
const REPEATS: usize = 20;

struct Client<'a> {
    world: &'a Arc<Mutex<World>>,
    clock: &'a VirtualClock,
    handle: &'a Mutex<Option<Transactions>>,
    chance: Chance,
}

/// One client, to its end.
pub(super) async fn client(
    number: u64,
    world: &Arc<Mutex<World>>,
    clock: &VirtualClock,
    handle: &Mutex<Option<Transactions>>,
    chance: Chance,
) {
    let mut client = Client { world, clock, handle, chance };
    for index in 0..TRANSACTIONS {
        let tx_id = Cid::new(&format!("{number}-{index}")).expect("a name");
        client.transaction(TransactionName { owner: "model".to_owned(), tx_id }).await;
        client.pause(6_000).await;
    }
    world.lock().clients -= 1;
}

impl Client<'_> {
    async fn pause(&mut self, most_ms: u64) {
        let pause = Duration::from_millis(self.chance.below(most_ms));
        self.clock.wait(pause).await;
    }

    fn legs(&mut self, store: Participant, most: u64) -> Vec<TransactionLeg> {
        let count = self.chance.below(most + 1);
        let one = |chance: &mut Chance| {
            let from = 1 + chance.below(USERS);
            let to = 1 + (from + chance.below(USERS - 1)) % USERS;
            between(place(store, from), place(store, to), 1 + chance.below(300))
        };
        (0..count).map(|_| one(&mut self.chance)).collect()
    }

    /// Legs between the stores, and from and to the outside of both.
    fn crossing_legs(&mut self) -> Vec<TransactionLeg> {
        let (funding, spot) = (Participant::Funding, Participant::Spot);
        let one = |chance: &mut Chance| {
            let (user, other) = (1 + chance.below(USERS), 1 + chance.below(USERS));
            let (from, to) = match chance.below(4) {
                0 => (place(funding, user), place(spot, other)),
                1 => (place(spot, user), place(funding, other)),
                2 => (LegPlace::Outside, place(funding, user)),
                _ => (place(funding, user), LegPlace::Outside),
            };
            between(from, to, 1 + chance.below(300))
        };
        (0..self.chance.below(3)).map(|_| one(&mut self.chance)).collect()
    }

    fn round(&mut self, name: &TransactionName, round: u8, decider: Decider) -> TransactionRound {
        let payload = serde_json::json!({ "round": round });
        let mut legs = self.legs(Participant::Funding, 3);
        legs.extend(self.legs(Participant::Spot, 3));
        legs.extend(self.crossing_legs());
        // Any order: a leg may pass on the money of one that comes behind it in the other store.
        for index in (1..legs.len()).rev() {
            let places = u64::try_from(index).expect("few") + 1;
            let other = self.chance.below(places);
            legs.swap(index, usize::try_from(other).expect("few"));
        }
        let mut services = Vec::new();
        for service in ["coupons", "envelopes"] {
            if self.chance.percent(25) {
                services.push((service.to_owned(), payload.clone()));
            }
        }
        if legs.is_empty() && services.is_empty() {
            services.push(("coupons".to_owned(), payload.clone()));
        }
        let last = (decider == Decider::Last && round == 1).then(|| ("bank".to_owned(), payload));
        TransactionRound {
            name: name.clone(),
            round,
            decider,
            ttl_ms: 1_000 + self.chance.below(20_000),
            legs,
            services,
            last,
            followers: Vec::new(),
            fingerprint: self.chance.u128().to_be_bytes(),
        }
    }

    /// Asks until there is an answer that is no failure of the service.
    async fn insist(
        &mut self,
        ask: impl AsyncFn(Transactions, Duration) -> TransactionAnswer,
    ) -> Option<TransactionAnswer> {
        for _ in 0..REPEATS {
            let handle = self.handle.lock().clone();
            let Some(handle) = handle else {
                self.pause(300).await;
                continue;
            };
            let wait = Duration::from_millis(self.chance.below(5_000));
            let answer = ask(handle, wait).await;
            let row = match &answer {
                Ok(reply) => Some(&reply.row),
                Err(refusal) => refusal.row.as_deref(),
            };
            if let Some(row) = row {
                self.world.lock().answered(row);
            }
            match &answer {
                Err(refusal) if refusal.code.retryable() => self.pause(1_000).await,
                Ok(reply) if !reply.settled => self.pause(500).await,
                _ => return Some(answer),
            }
        }
        None
    }

    async fn transaction(&mut self, name: TransactionName) {
        if self.chance.percent(10) {
            // An abort that comes before its transaction.
            self.abort(&name).await;
        }
        let decider = *self.chance.pick(&Decider::ALL);
        let rounds = match decider {
            Decider::Caller => *self.chance.pick(&[1, 2, 3]),
            Decider::Coordinator | Decider::Last => 1,
        };
        for number in 1..=rounds {
            let round = self.round(&name, number, decider);
            let send = async |handle: Transactions, wait| handle.round(round.clone(), wait).await;
            if self.chance.percent(8) {
                // It goes away without an answer, or aborts meanwhile.
                break;
            }
            if decider == Decider::Caller && self.chance.percent(15) {
                // It does not wait for the answer, and decides all the same.
                let handle = self.handle.lock().clone();
                if let Some(handle) = handle {
                    drop(send(handle, Duration::ZERO).await);
                }
                break;
            }
            self.insist(send).await;
            if self.chance.percent(50) {
                self.pause(2_000).await;
            }
        }
        if decider == Decider::Caller {
            self.decide(&name, rounds).await;
        } else if self.chance.percent(20) {
            self.abort(&name).await;
        }
        let get = async |handle: Transactions, wait| handle.get(name.clone(), wait).await;
        self.insist(get).await;
    }

    async fn abort(&mut self, name: &TransactionName) {
        let abort = async |handle: Transactions, wait| {
            handle.abort(name.clone(), "model".to_owned(), None, wait).await
        };
        self.insist(abort).await;
    }

    async fn decide(&mut self, name: &TransactionName, rounds: u8) {
        match self.chance.below(4) {
            0 => {
                let commit = async |handle: Transactions, wait| {
                    handle.commit(name.clone(), Some(rounds), wait).await
                };
                self.insist(commit).await;
            }
            1 | 2 => {
                let now_ns = self.clock.monotonic_ns();
                let until_ns = now_ns + self.chance.below(10_000) * 1_000_000;
                let commits = self.chance.percent(70);
                let session = (until_ns, commits);
                self.world.lock().sql_commit(now_ns, name, rounds, session);
                if self.chance.percent(50) {
                    self.abort(name).await;
                }
            }
            _ => self.abort(name).await,
        }
    }
}
