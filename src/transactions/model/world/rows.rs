//! PostgreSQL of the model: rows, one commit a call, and the sessions of callers.

use std::sync::Arc;
use std::time::Duration;

use domain::code::Code;
use domain::transfer::ReqId;
use jiff::Timestamp;
use parking_lot::Mutex;

use super::super::Chance;
use super::super::time::VirtualClock;
use super::{Bug, World};
use crate::clock::Clock;
use crate::postgres::transactions::{
    Accepted, Found, Landed, MoveResult, RoundAccept, TransactionError, TransactionMove,
    TransactionStore, UnfinishedPage,
};
use crate::transaction::{
    BranchState, Decider, TransactionName, TransactionPassage, TransactionRow, TransactionState,
    TransactionVerdict,
};
use crate::transactions::apply;
use crate::transactions::rounds::is_used_up;
use crate::transactions::step::is_tried;

/// The store, with its faults.
pub(in crate::transactions::model) struct ModelStore {
    world: Arc<Mutex<World>>,
    clock: VirtualClock,
    incarnation: u64,
    chance: Chance,
}

impl ModelStore {
    pub(in crate::transactions::model) fn new(
        world: &Arc<Mutex<World>>,
        clock: &VirtualClock,
        incarnation: u64,
        seed: u64,
    ) -> ModelStore {
        let (world, clock) = (Arc::clone(world), clock.clone());
        ModelStore { world, clock, incarnation, chance: Chance::new(seed) }
    }

    async fn call<T: 'static>(
        &mut self,
        call: impl FnOnce(&mut World) -> T + Send + 'static,
    ) -> Result<T, TransactionError> {
        let (latency, fault) = (self.chance.below(20), self.chance.below(100));
        let late = self.chance.below(4_000);
        self.clock.wait(Duration::from_millis(latency)).await;
        let now_ns = self.clock.monotonic_ns();
        let mut world = self.world.lock();
        world.pass(now_ns);
        if world.incarnation != self.incarnation {
            return Err(TransactionError::Superseded);
        }
        let unknown = || Err(TransactionError::Unknown("a fault".to_owned()));
        match if world.calm { 100 } else { fault } {
            0..4 => Err(TransactionError::Refused("a fault".to_owned())),
            4..8 => unknown(),
            8..13 => {
                call(&mut world);
                match world.has(Bug::WrittenIsRefused) {
                    true => Err(TransactionError::Refused("a fault".to_owned())),
                    false => unknown(),
                }
            }
            13..17 => {
                let incarnation = self.incarnation;
                let call = move |world: &mut World| {
                    // The fence.
                    if world.incarnation == incarnation {
                        call(world);
                    }
                };
                world.late.push((now_ns + late * 1_000_000, Box::new(call)));
                unknown()
            }
            _ => Ok(call(&mut world)),
        }
    }
}

impl TransactionStore for ModelStore {
    async fn flight(
        &mut self,
        moves: &[TransactionMove],
        accepts: &[&RoundAccept],
        at: Timestamp,
    ) -> Result<Landed, TransactionError> {
        let (moves, accepts) = (moves.to_vec(), accepts.iter().map(|one| (*one).clone()));
        let accepts: Vec<RoundAccept> = accepts.collect();
        // The rows behind the flight cannot be read.
        let lost = self.chance.percent(3);
        self.call(move |world| {
            let moved = moves.iter().map(|moved| world.record(moved, at)).collect();
            let accept = |accept: &RoundAccept| {
                let accepted = world.accept(accept);
                let unknown = || TransactionError::Unknown("a fault".to_owned());
                if lost && !world.calm { Err(unknown()) } else { Ok(accepted) }
            };
            Landed { moved, accepted: accepts.iter().map(accept).collect() }
        })
        .await
    }

    async fn cancel_unknown(
        &mut self,
        accept: &RoundAccept,
        by: &str,
        reason: Option<&str>,
    ) -> Result<TransactionRow, TransactionError> {
        let (accept, by, reason) = (accept.clone(), by.to_owned(), reason.map(str::to_owned));
        self.call(move |world| world.cancel_unknown(&accept, &by, reason)).await
    }

    async fn find_all(
        &mut self,
        names: &[&TransactionName],
    ) -> Result<Vec<Found>, TransactionError> {
        let names: Vec<TransactionName> = names.iter().map(|name| (*name).clone()).collect();
        self.call(move |world| {
            let find = |name| world.names.get(name).and_then(|id| world.rows.get(id).cloned());
            names.iter().map(|name| Ok(find(name))).collect()
        })
        .await
    }

    async fn unfinished(
        &mut self,
        above: u64,
        limit: usize,
    ) -> Result<UnfinishedPage, TransactionError> {
        self.call(move |world| {
            let open = |row: &&TransactionRow| !row.state.is_terminal() && row.order_number > above;
            let mut rows: Vec<_> = world.rows.values().filter(open).cloned().collect();
            rows.sort_by_key(|row| row.order_number);
            rows.truncate(limit);
            let next = rows.last().map(|row| row.order_number).filter(|_| rows.len() == limit);
            UnfinishedPage { rows, unreadable: Vec::new(), next }
        })
        .await
    }

    async fn decided(&mut self) -> Result<Vec<ReqId>, TransactionError> {
        self.call(|world| {
            let decided =
                |row: &&TransactionRow| row.state == TransactionState::Committed && !row.sealed;
            world.rows.values().filter(decided).map(|row| row.id).collect()
        })
        .await
    }
}

impl World {
    fn accept(&mut self, accept: &RoundAccept) -> Accepted {
        let round = &accept.round;
        let refused = |code, row: Option<TransactionRow>| Accepted::Refused {
            code,
            detail: "the model".to_owned(),
            row: row.map(Box::new),
        };
        let id = match self.names.get(&round.name) {
            Some(id) => *id,
            None if round.round != 1 => return refused(Code::InvalidRequest, None),
            None => {
                let row = fresh(accept, TransactionState::Open);
                self.names.insert(round.name.clone(), accept.id);
                self.rows.insert(accept.id, row);
                accept.id
            }
        };
        let row = self.rows.get_mut(&id).expect("named");
        if let Some(known) = self.fingerprints.get(&(id, round.round)) {
            return match *known == round.fingerprint {
                true => Accepted::Taken { row: Box::new(row.clone()), replayed: true },
                false => refused(Code::TxIdConflict, Some(row.clone())),
            };
        }
        match row.state.verdict() {
            Some(TransactionVerdict::Abort) => {
                return refused(Code::TransactionAborted, Some(row.clone()));
            }
            Some(TransactionVerdict::Commit) => {
                return refused(Code::TransactionDecided, Some(row.clone()));
            }
            None => {}
        }
        if row.state == TransactionState::Deciding {
            return refused(Code::TransactionDecided, Some(row.clone()));
        }
        if round.round != row.rounds + 1 {
            return refused(Code::InvalidRequest, Some(row.clone()));
        }
        let is_ready = (1..=row.rounds).all(|round| {
            is_used_up(row, round) || crate::transactions::step::is_round_tried(row, round)
        });
        if !is_ready || self.held.contains_key(&id) {
            return refused(Code::TransactionUntried, Some(row.clone()));
        }
        row.rounds = round.round;
        row.branches.extend(round.branches());
        self.fingerprints.insert((id, round.round), round.fingerprint);
        Accepted::Taken { row: Box::new(row.clone()), replayed: false }
    }

    fn record(&mut self, moved: &TransactionMove, at: Timestamp) -> MoveResult {
        if self.held.contains_key(&moved.id) {
            return MoveResult::Held("the caller".to_owned());
        }
        let (no_lock, forgets_end) = (self.has(Bug::NoLock), self.has(Bug::EndNotNoted));
        let Some(row) = self.rows.get_mut(&moved.id) else { return MoveResult::Changed };
        if no_lock && row.state != moved.from && !row.state.is_terminal() {
            row.state = moved.from;
        }
        let fits = moved.branches.iter().all(|passage| {
            row.branches.iter().any(|branch| {
                (&branch.party, branch.round, branch.state)
                    == (&passage.party, passage.round, passage.from)
            })
        });
        if (row.state, row.rounds) != (moved.from, moved.rounds) || !fits {
            return MoveResult::Changed;
        }
        apply::whole(row, moved, at);
        row.stores_ended &= !forgets_end;
        MoveResult::Moved
    }

    fn cancel_unknown(
        &mut self,
        accept: &RoundAccept,
        by: &str,
        reason: Option<String>,
    ) -> TransactionRow {
        if let Some(id) = self.names.get(&accept.round.name) {
            return self.rows[id].clone();
        }
        let mut row = fresh(accept, TransactionState::Cancelled);
        (row.decided_by, row.sealed) = (Some(by.to_owned()), true);
        (row.code, row.detail) = (Some(Code::TransactionAborted), reason);
        if !self.has(Bug::AbortByAbsence) {
            self.names.insert(accept.round.name.clone(), accept.id);
            self.rows.insert(accept.id, row.clone());
        }
        row
    }

    /// A session of the caller calls `transaction_commit`, and holds the row until `until_ns`.
    /// `commits`: whether it commits then. Returns whether the call succeeded.
    pub(in crate::transactions::model) fn sql_commit(
        &mut self,
        now_ns: u64,
        name: &TransactionName,
        rounds: u8,
        (until_ns, commits): (u64, bool),
    ) -> bool {
        self.pass(now_ns);
        let Some(row) = self.names.get(name).and_then(|id| self.rows.get(id)) else {
            return false;
        };
        let may = row.state == TransactionState::Open && row.decider == Decider::Caller;
        let tried = self.has(Bug::UntriedCommit) || (is_tried(row) && row.rounds == rounds);
        let some = row.branches.iter().any(|branch| branch.state == BranchState::Tried);
        if !may || !tried || !some || self.held.contains_key(&row.id) {
            return false;
        }
        self.held.insert(row.id, (until_ns, commits));
        true
    }

    /// Ends the sessions that are due.
    pub(super) fn end_sessions(&mut self, now_ns: u64) {
        let due = |(_, (until_ns, _)): &(&ReqId, &(u64, bool))| *until_ns <= now_ns;
        let ending: Vec<_> = self.held.iter().filter(due).map(|(id, (_, c))| (*id, *c)).collect();
        for (id, commits) in ending {
            self.held.remove(&id);
            let row = self.rows.get_mut(&id).expect("held");
            if commits {
                row.state = TransactionState::Committed;
                row.decided_by = Some("caller:model".to_owned());
                row.history.push(TransactionPassage {
                    state: row.state.name().to_owned(),
                    at: row.updated_at,
                    by: "caller:model".to_owned(),
                    reason: None,
                });
                let name = row.name.clone();
                self.told(&name, TransactionState::Committed);
            }
        }
    }
}

/// A row without rounds.
fn fresh(accept: &RoundAccept, state: TransactionState) -> TransactionRow {
    let ttl = Duration::from_millis(accept.round.ttl_ms);
    TransactionRow {
        id: accept.id,
        order_number: accept.order_number,
        name: accept.round.name.clone(),
        state,
        decider: accept.round.decider,
        decided_by: None,
        expires_at: accept.at + ttl,
        rounds: 0,
        code: None,
        detail: None,
        sealed: false,
        stores_ended: false,
        branches: Vec::new(),
        history: Vec::new(),
        created_at: accept.at,
        updated_at: accept.at,
    }
}
