//! Callers of transactions over both stores and services: each makes one after the other, repeats a
//! request without an answer, decides by HTTP or in a session of its own, or goes away.

use std::sync::Arc;
use std::time::Duration;

use domain::transfer::{Cid, Participant};
use serde_json::json;
use ubscore::transaction::{
    Decider, LegPlace, TransactionLeg, TransactionName, TransactionRound, TransactionRow,
};
use ubscore::transactions::{TransactionAnswer, Transactions};

use super::chance::Chance;
use super::special::SPECIAL;
use super::world::{ASSET, Serving, World, user};

/// The purpose of all freezes.
const PURPOSE: u16 = 7;
/// Repeats of one request.
const REPEATS: usize = 12;

/// A request that may be repeated.
enum Ask {
    Round(Box<TransactionRound>),
    /// Of this many rounds.
    Commit(Option<u8>),
    Abort,
    Get,
}

impl Ask {
    async fn put(
        &self,
        handle: Transactions,
        name: TransactionName,
        wait: Duration,
    ) -> TransactionAnswer {
        match self {
            Ask::Round(round) => handle.round((**round).clone(), wait).await,
            Ask::Commit(rounds) => handle.commit(name, *rounds, wait).await,
            Ask::Abort => handle.abort(name, "caller".to_owned(), None, wait).await,
            Ask::Get => handle.get(name, wait).await,
        }
    }
}

/// One caller.
pub(super) struct TransactionCaller {
    pub(super) world: Arc<World>,
    pub(super) chance: Chance,
}

impl TransactionCaller {
    /// Makes transactions, one after the other.
    pub(super) async fn live(mut self, number: u64) {
        for nth in 0..self.world.plan.deals {
            self.pause(150).await;
            let tx_id = Cid::new(&format!("{number}-{nth}")).expect("a name");
            self.transact(&TransactionName { owner: "caller".to_owned(), tx_id }).await;
        }
    }

    async fn pause(&mut self, most_ms: u64) {
        let pause = self.chance.micros(0, most_ms * 1_000);
        self.world.time.sleep(pause).await;
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.chance.below(100) < percent
    }

    /// Legs in one store; with `across`, some between the stores. Some freeze and unfreeze. Some on
    /// Funding are from or to a user with a balance that is special at times.
    fn legs(&mut self, store: Participant, across: bool) -> Vec<TransactionLeg> {
        // A single user pays a second one, which has no account.
        let users = self.world.plan.users.max(2);
        let leg = |chance: &mut Chance| {
            let from = chance.between(1, users);
            let to = 1 + (from + chance.below(users - 1)) % users;
            let amount = chance.between(1, 70);
            let other = match store {
                Participant::Funding => Participant::Spot,
                Participant::Spot => Participant::Funding,
            };
            let to_store = if across && chance.one_in(3) { other } else { store };
            let frozen = |of| LegPlace::Frozen { store, user: user(of), purpose: PURPOSE };
            let available = |of| LegPlace::Available { store, user: user(of) };
            let special = store == Participant::Funding && chance.one_in(4);
            let (from, to) = match chance.below(8) {
                fate if special => {
                    let other = LegPlace::Available { store: to_store, user: user(to) };
                    match fate < 5 {
                        true => (available(SPECIAL), other),
                        false => (other, available(SPECIAL)),
                    }
                }
                0 => (available(from), frozen(from)),
                1 if chance.one_in(2) => (frozen(from), available(from)),
                1 => (frozen(from), available(to)),
                _ => (available(from), LegPlace::Available { store: to_store, user: user(to) }),
            };
            TransactionLeg { from, to, asset: ASSET, amount }
        };
        (0..self.chance.below(3)).map(|_| leg(&mut self.chance)).collect()
    }

    fn round(&mut self, name: &TransactionName, round: u8, decider: Decider) -> TransactionRound {
        let across = self.percent(30);
        let mut legs = self.legs(Participant::Funding, across);
        legs.extend(self.legs(Participant::Spot, across));
        let mut services = Vec::new();
        for service in ["coupons", "envelopes"] {
            if self.percent(20) {
                services.push((service.to_owned(), json!({ "agrees": self.percent(85) })));
            }
        }
        if legs.is_empty() && services.is_empty() {
            services.push(("coupons".to_owned(), json!({ "agrees": true })));
        }
        let agrees = json!({ "agrees": self.percent(75) });
        let last = (decider == Decider::Last).then(|| ("bank".to_owned(), agrees));
        TransactionRound {
            name: name.clone(),
            round,
            decider,
            ttl_ms: self.chance.between(200, 4_000),
            legs,
            services,
            last,
            followers: Vec::new(),
            fingerprint: [round; 16],
        }
    }

    fn handle(&self, serving: &Serving) -> Transactions {
        serving.transactions.clone().expect("this world has transactions")
    }

    /// Asks until there is an answer that is no failure of the service.
    async fn insist(&mut self, name: &TransactionName, ask: &Ask) {
        for _ in 0..REPEATS {
            let handle = self.handle(&*self.world.service().await);
            let wait = self.chance.pick(&[0, 40, 400]);
            let asked = ask.put(handle, name.clone(), Duration::from_millis(wait));
            let answer = self.world.within(wait + 400, asked).await;
            // The worker of an ending process drops its callers in no fixed order.
            self.pause(2).await;
            match &answer {
                Some(Ok(reply)) => self.told(&reply.row),
                Some(Err(refusal)) => refusal.row.iter().for_each(|row| self.told(row)),
                None => {}
            }
            match answer {
                Some(Err(refusal)) if refusal.code.retryable() || refusal.unknown => {}
                Some(Ok(reply)) if !reply.settled => {}
                None => {}
                Some(_) => return,
            }
            self.pause(80).await;
        }
    }

    fn told(&self, row: &TransactionRow) {
        let (tx_id, state) = (row.name.tx_id.as_str(), row.state.name());
        self.world.trace(format_args!("caller of {tx_id}: {state}"));
        self.world.law.lock().transaction_told(row);
    }

    async fn transact(&mut self, name: &TransactionName) {
        if self.percent(10) {
            // An abort that comes before its transaction.
            self.insist(name, &Ask::Abort).await;
        }
        let decider = self.chance.pick(&[
            Decider::Caller,
            Decider::Caller,
            Decider::Coordinator,
            Decider::Last,
        ]);
        let rounds = match decider {
            Decider::Caller => self.chance.pick(&[1, 2, 3]),
            Decider::Coordinator | Decider::Last => 1,
        };
        for number in 1..=rounds {
            if self.percent(8) {
                // It goes away, or decides with rounds that were never sent.
                break;
            }
            let round = Ask::Round(Box::new(self.round(name, number, decider)));
            if decider == Decider::Caller && self.percent(15) {
                // It does not wait for the answer, and decides all the same.
                let handle = self.handle(&*self.world.service().await);
                self.world.within(5, round.put(handle, name.clone(), Duration::ZERO)).await;
                self.pause(5).await;
                break;
            }
            self.insist(name, &round).await;
        }
        match decider {
            Decider::Caller => self.decide(name, rounds).await,
            _ if self.percent(20) => self.insist(name, &Ask::Abort).await,
            _ => {}
        }
        self.insist(name, &Ask::Get).await;
    }

    async fn decide(&mut self, name: &TransactionName, rounds: u8) {
        match self.chance.below(5) {
            0 => self.insist(name, &Ask::Commit(Some(rounds))).await,
            1..4 => self.pay(name, rounds).await,
            _ if self.percent(70) => self.insist(name, &Ask::Abort).await,
            // It is not heard of again: its age ends it.
            _ => {}
        }
    }

    /// Writes a row of its own and commits the transaction, in one session.
    async fn pay(&mut self, name: &TransactionName, rounds: u8) {
        let world = Arc::clone(&self.world);
        let begun = {
            let mut postgres = world.postgres.lock();
            let free = postgres.up && !postgres.transacted.is_held(name);
            postgres.set_time(world.time.now_ns());
            free && postgres.sql_commit("shop", name, rounds, world.plan.bug).is_ok()
        };
        if !begun {
            return;
        }
        world.trace(format_args!("a session holds {}", name.tx_id.as_str()));
        if self.percent(30) {
            // Another program of the caller aborts meanwhile.
            let handle = self.handle(&*world.service().await);
            let abort = Ask::Abort.put(handle, name.clone(), Duration::ZERO);
            let answer = world.within(30, abort).await;
            self.pause(2).await;
            if let Some(Ok(reply)) = answer {
                self.told(&reply.row);
            }
        }
        self.pause(120).await;
        let (commits, sync) = (self.percent(80), self.percent(50));
        let written = {
            let mut postgres = world.postgres.lock();
            let there = postgres.end_session(name, commits, sync);
            world.trace(format_args!("its end, commit {commits}, sync {sync}: there {there}"));
            postgres.transacted.take_written()
        };
        for row in written {
            world.law.lock().transaction(&row);
        }
        if self.percent(40) {
            self.insist(name, &Ask::Commit(None)).await;
        }
    }
}
