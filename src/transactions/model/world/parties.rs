//! Funding, Spot and services of the model. Each records its decision with its effect.

use std::sync::Arc;
use std::time::Duration;

use domain::account::AccountStatus;
use domain::code::Code;
use domain::hold::{HoldAccount, HoldDecided, HoldOrder, decide};
use domain::transfer::Decision;
use parking_lot::Mutex;

use super::super::Chance;
use super::super::time::VirtualClock;
use super::{Bug, Holder, ServiceRecord, World, shares};
use crate::clock::Clock;
use crate::transaction::TransactionVerdict;
use crate::transactions::branches::{Branches, Heard, ServiceWord, SpotWord};
use crate::transactions::step::Word;

/// The parties, with their faults.
pub(in crate::transactions::model) struct ModelBranches {
    world: Arc<Mutex<World>>,
    clock: VirtualClock,
    chance: Mutex<Chance>,
    /// This service is dead while the model has faults.
    dead: Option<&'static str>,
}

impl ModelBranches {
    pub(in crate::transactions::model) fn new(
        world: &Arc<Mutex<World>>,
        clock: &VirtualClock,
        seed: u64,
    ) -> ModelBranches {
        let mut chance = Chance::new(seed);
        let dead = *chance.pick(&[None, Some("coupons"), Some("envelopes")]);
        let (world, clock, chance) = (Arc::clone(world), clock.clone(), Mutex::new(chance));
        ModelBranches { world, clock, chance, dead }
    }

    /// Carries out a call, with a fault in some cases.
    async fn call(&self, call: impl FnOnce(&mut World) -> Heard + Send + 'static) -> Heard {
        let (latency, fault, late) = {
            let mut chance = self.chance.lock();
            (chance.below(60), chance.below(100), chance.below(8_000))
        };
        self.clock.wait(Duration::from_millis(latency)).await;
        let now_ns = self.clock.monotonic_ns();
        let mut world = self.world.lock();
        world.pass(now_ns);
        let fault = if world.calm { 100 } else { fault };
        let unknown = || Heard::Unknown { why: "a fault".to_owned() };
        match fault {
            0..6 => unknown(),
            6..12 => {
                call(&mut world);
                unknown()
            }
            12..18 => {
                let due_ns = now_ns + late * 1_000_000;
                world.late.push((due_ns, Box::new(move |world| drop(call(world)))));
                unknown()
            }
            18..21 => {
                drop(world);
                panic!("a fault before the call")
            }
            21..24 => {
                call(&mut world);
                drop(world);
                panic!("a fault behind the call")
            }
            _ => call(&mut world),
        }
    }
}

impl Branches for ModelBranches {
    async fn hold(&self, order: HoldOrder) -> Heard {
        self.world.lock().check_asked(order.order_number);
        self.call(move |world| world.hold(&order)).await
    }

    async fn spot(&self, word: SpotWord) -> Heard {
        self.world.lock().check_asked(word.order_number);
        self.call(move |world| world.spot(&word)).await
    }

    async fn service(&self, word: ServiceWord) -> Heard {
        let chance = self.chance.lock().below(100);
        let is_end = matches!(word.word, Word::Confirm | Word::Cancel);
        if is_end && self.dead == Some(word.name.as_str()) && !self.world.lock().calm {
            self.clock.wait(Duration::from_millis(chance)).await;
            return Heard::Unknown { why: "it is dead".to_owned() };
        }
        self.call(move |world| world.service(&word, chance < 15)).await
    }
}

impl World {
    fn hold(&mut self, order: &HoldOrder) -> Heard {
        let holder = (order.user.number(), order.asset.0);
        let available = self.funding.get(&holder).copied().unwrap_or_default();
        let account = HoldAccount { status: Some(AccountStatus::Active), available };
        match decide(self.holds.get(&order.key), order, account) {
            Ok(HoldDecided::Told(decision)) => heard(decision),
            Ok(HoldDecided::Recorded { decision, hold, available, .. }) => {
                self.holds.insert(order.key.clone(), hold);
                // A flight books the outside as operations of its own.
                let (deposited, withdrawn) = order.act.outside();
                let change = available + i128::from(deposited) - i128::from(withdrawn);
                let balance = self.funding.entry(holder).or_default();
                *balance = balance.checked_add_signed(change).expect("judged by the rule");
                heard(decision)
            }
            Err(violation) => {
                self.broke(format!("{order:?}: {violation}"));
                Heard::Unknown { why: violation.to_string() }
            }
        }
    }

    fn spot(&mut self, word: &SpotWord) -> Heard {
        let late = self.has(Bug::LateReserve);
        let mut reserve = self.reserves.remove(&word.transaction).unwrap_or_default();
        let answer = match word.word {
            Word::Try => match (reserve.end, reserve.rounds.get(&word.round)) {
                (Some(_), _) if !late => Heard::refused(Code::TransactionAborted),
                (None, Some(true)) => Heard::done(),
                (None, Some(false)) => Heard::refused(Code::InsufficientBalance),
                // New, or the planted bug: it is carried out behind an end.
                (_, _) => {
                    let shares = shares(&word.legs);
                    let lacking = |(holder, (apart, _)): (&Holder, &(u128, u128))| {
                        let has = reserve.apart.get(holder).copied().unwrap_or_default();
                        (*holder, apart.saturating_sub(has))
                    };
                    let lacking: Vec<_> = shares.iter().map(lacking).collect();
                    let can = lacking.iter().all(|(holder, amount)| {
                        self.spot.get(holder).copied().unwrap_or_default() >= *amount
                    });
                    reserve.rounds.insert(word.round, can);
                    if can {
                        for (holder, amount) in lacking {
                            *self.spot.entry(holder).or_default() -= amount;
                            *reserve.apart.entry(holder).or_default() += amount;
                        }
                        Heard::done()
                    } else {
                        Heard::refused(Code::InsufficientBalance)
                    }
                }
            },
            Word::Confirm => match reserve.end {
                Some(TransactionVerdict::Commit) => Heard::done(),
                Some(TransactionVerdict::Abort) => {
                    self.broke(format!("SETTLE behind RELEASE: {word:?}"));
                    Heard::Unknown { why: "a violation".to_owned() }
                }
                None => {
                    for (holder, (apart, arriving)) in shares(&word.legs) {
                        let has = reserve.apart.remove(&holder).unwrap_or_default();
                        if has != apart {
                            self.broke(format!("SETTLE of {apart}, apart {has}: {word:?}"));
                        }
                        *self.spot.entry(holder).or_default() += arriving;
                    }
                    reserve.end = Some(TransactionVerdict::Commit);
                    Heard::done()
                }
            },
            Word::Cancel => match reserve.end {
                Some(TransactionVerdict::Abort) => Heard::done(),
                Some(TransactionVerdict::Commit) => {
                    self.broke(format!("RELEASE behind SETTLE: {word:?}"));
                    Heard::Unknown { why: "a violation".to_owned() }
                }
                None => {
                    for (holder, amount) in std::mem::take(&mut reserve.apart) {
                        *self.spot.entry(holder).or_default() += amount;
                    }
                    reserve.end = Some(TransactionVerdict::Abort);
                    Heard::done()
                }
            },
            Word::SetBack | Word::Commit => {
                self.broke(format!("no word for Spot: {word:?}"));
                Heard::Unknown { why: "a violation".to_owned() }
            }
        };
        self.reserves.insert(word.transaction, reserve);
        answer
    }

    /// `refuses`: it has a reason to, if it has not decided.
    fn service(&mut self, word: &ServiceWord, refuses: bool) -> Heard {
        use ServiceRecord::{Cancelled, Confirmed, Refused, Tried};
        let record = self.services.get(&word.branch_id).copied();
        let refused = || Heard::Refused {
            code: Code::ParticipantRefused,
            leg: None,
            participant_code: Some("NO".to_owned()),
        };
        let late = self.has(Bug::LateTry);
        let (next, answer) = match (word.word, record) {
            (Word::Try, Some(Cancelled)) if !late => (Cancelled, refused()),
            (Word::Try, None | Some(Cancelled)) if refuses => (Refused, refused()),
            (Word::Try, None | Some(Cancelled)) => (Tried, Heard::done()),
            (Word::Try, Some(Refused)) => (Refused, refused()),
            (Word::Try, Some(record)) => (record, Heard::done()),
            (Word::Confirm, Some(Tried | Confirmed)) => (Confirmed, Heard::done()),
            (Word::Cancel, Some(Tried | Cancelled) | None) => (Cancelled, Heard::done()),
            (Word::Cancel, Some(Refused)) => (Refused, Heard::done()),
            (Word::Commit, None) if refuses => (Refused, refused()),
            (Word::Commit, None | Some(Confirmed)) => (Confirmed, Heard::done()),
            (Word::Commit, Some(Refused)) => (Refused, refused()),
            (_, record) => {
                self.broke(format!("{word:?} behind {record:?}"));
                return Heard::Unknown { why: "a violation".to_owned() };
            }
        };
        self.services.insert(word.branch_id.clone(), next);
        answer
    }
}

fn heard(decision: Decision) -> Heard {
    match decision {
        Decision::Success => Heard::done(),
        Decision::Refused(code) => Heard::refused(code),
    }
}
