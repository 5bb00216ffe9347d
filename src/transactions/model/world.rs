//! The durable world of the model: rows, holds, balances, and the records of services. It outlives
//! each process.

mod parties;
mod rows;

use std::collections::BTreeMap;

use domain::hold::{Hold, HoldKey};
use domain::posting::{Breakdown, Leg, Place};
use domain::transfer::ReqId;

use super::is_service;
use crate::transaction::{
    Branch, BranchState, LegPlace, Party, TransactionName, TransactionRow, TransactionState,
    TransactionVerdict,
};
use crate::transactions::rounds::is_used_up;
use domain::transfer::Participant;

pub(super) use self::parties::ModelBranches;
pub(super) use self::rows::ModelStore;

/// The first broken law of a run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct BrokenLaw(String);

/// A bug that is planted in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// To abort a name that nothing stands under writes nothing.
    AbortByAbsence,
    /// SQL's commit does not look at the branches.
    UntriedCommit,
    /// A decision does not compare the state of the row.
    NoLock,
    /// A service tries behind its cancel.
    LateTry,
    /// Spot reserves behind its release.
    LateReserve,
    /// A failure behind a write is told as a refusal of the write.
    WrittenIsRefused,
    /// The row does not keep that both stores have ended.
    EndNotNoted,
}

impl Bug {
    pub(super) const ALL: [Bug; 7] = [
        Bug::AbortByAbsence,
        Bug::UntriedCommit,
        Bug::NoLock,
        Bug::LateTry,
        Bug::LateReserve,
        Bug::WrittenIsRefused,
        Bug::EndNotNoted,
    ];
}

/// A user and an asset.
pub(super) type Holder = (u64, u32);

/// One transaction at Spot.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserve {
    rounds: BTreeMap<u8, bool>,
    apart: BTreeMap<Holder, u128>,
    end: Option<TransactionVerdict>,
}

/// A branch at its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServiceRecord {
    Tried,
    Refused,
    Confirmed,
    Cancelled,
}

pub(super) struct World {
    pub(super) bug: Option<Bug>,
    incarnation: u64,
    pub(super) calm: bool,
    /// Clients that have not ended.
    pub(super) clients: u64,
    pub(super) rows: BTreeMap<ReqId, TransactionRow>,
    names: BTreeMap<TransactionName, ReqId>,
    fingerprints: BTreeMap<(ReqId, u8), [u8; 16]>,
    /// Until when a session holds a row, ns, and whether it commits then.
    held: BTreeMap<ReqId, (u64, bool)>,
    holds: BTreeMap<HoldKey, Hold>,
    funding: BTreeMap<Holder, u128>,
    spot: BTreeMap<Holder, u128>,
    reserves: BTreeMap<ReqId, Reserve>,
    services: BTreeMap<String, ServiceRecord>,
    /// The watermark may be here, of any process so far: the stores know nothing below it.
    passed: u64,
    /// The first broken law.
    broken: Option<String>,
    /// Names with an abort that was answered as done.
    told_aborted: Vec<TransactionName>,
    told_committed: Vec<TransactionName>,
    /// Effects of calls that were given up, by time, ns.
    late: Vec<(u64, LateCall)>,
}

/// The effect of a call that was given up.
type LateCall = Box<dyn FnOnce(&mut World) + Send>;

/// Users of the model.
pub(super) const USERS: u64 = 6;
/// Units of each user on each store.
const UNITS: u128 = 1_000;

impl World {
    pub(super) fn new(bug: Option<Bug>) -> World {
        let start: BTreeMap<Holder, u128> = (1..=USERS).map(|user| ((user, 3), UNITS)).collect();
        World {
            bug,
            incarnation: 0,
            calm: false,
            clients: 0,
            rows: BTreeMap::new(),
            names: BTreeMap::new(),
            fingerprints: BTreeMap::new(),
            held: BTreeMap::new(),
            holds: BTreeMap::new(),
            funding: start.clone(),
            spot: start,
            reserves: BTreeMap::new(),
            services: BTreeMap::new(),
            passed: 0,
            broken: None,
            told_aborted: Vec::new(),
            told_committed: Vec::new(),
            late: Vec::new(),
        }
    }

    /// A new process.
    pub(super) fn begin(&mut self) -> u64 {
        self.incarnation += 1;
        self.incarnation
    }

    /// No faults from now on.
    pub(super) fn calm(&mut self) {
        self.calm = true;
    }

    /// Carries out late calls, and ends the sessions that hold rows.
    fn pass(&mut self, now_ns: u64) {
        while let Some(index) = self.late.iter().position(|(due_ns, _)| *due_ns <= now_ns) {
            let (_, call) = self.late.remove(index);
            call(self);
        }
        self.end_sessions(now_ns);
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn broke(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(super) fn told(&mut self, name: &TransactionName, state: TransactionState) {
        match state.verdict() {
            Some(TransactionVerdict::Commit) => self.told_committed.push(name.clone()),
            Some(TransactionVerdict::Abort) => self.told_aborted.push(name.clone()),
            None => {}
        }
    }

    /// A caller was answered with this row.
    pub(super) fn answered(&mut self, row: &TransactionRow) {
        let stands = self.rows.get(&row.id);
        let is_sealed = row.sealed && stands.is_some_and(|stands| stands.sealed);
        if row.state == TransactionState::Committed && !is_sealed {
            self.broke(format!("an answer has a commit of {:?} that may be lost", row.name));
        }
        self.told(&row.name, row.state);
    }

    /// `over`: the watermark may pass every number below it.
    pub(super) fn check_numbers(&mut self, over: Option<u64>) {
        let Some(over) = over else { return };
        self.passed = self.passed.max(over);
        let open = |row: &&TransactionRow| {
            !row.state.is_terminal() && !row.stores_ended && row.order_number < over
        };
        if let Some(row) = self.rows.values().find(open) {
            let what = format!("the watermark passes {} with order {}", row.id, row.order_number);
            self.broke(what);
        }
    }

    /// A store is asked about a transaction with this order number.
    fn check_asked(&mut self, order_number: u64) {
        if order_number < self.passed {
            self.broke(format!("a store is asked about {order_number}, below the watermark"));
        }
    }

    pub(super) fn ends(&self) -> BTreeMap<TransactionState, usize> {
        let mut ends = BTreeMap::new();
        for row in self.rows.values() {
            *ends.entry(row.state).or_default() += 1;
        }
        ends
    }

    /// Whether every client has ended, and every transaction.
    pub(super) fn rests(&self) -> bool {
        self.clients == 0 && self.rows.values().all(|row| row.state.is_terminal())
    }

    /// The laws at rest.
    pub(super) fn judge(&mut self) -> Result<(), BrokenLaw> {
        self.pass(u64::MAX);
        if let Some(broken) = &self.broken {
            return Err(BrokenLaw(broken.clone()));
        }
        let (mut funding, mut spot) = (World::new(None).funding, World::new(None).spot);
        for row in self.rows.values() {
            if !row.state.is_terminal() {
                return Err(BrokenLaw(format!("not final: {row:?}")));
            }
            self.judge_branches(row)?;
            if row.state == TransactionState::Done {
                book(row, Participant::Funding, &mut funding);
                book(row, Participant::Spot, &mut spot);
            }
        }
        for (name, id) in &self.names {
            let verdict = self.rows[id].state.verdict();
            let other = match verdict {
                Some(TransactionVerdict::Commit) => &self.told_aborted,
                _ => &self.told_committed,
            };
            if other.contains(name) {
                return Err(BrokenLaw(format!("{name:?} was answered otherwise than {verdict:?}")));
            }
        }
        if let Some(hold) = self.holds.values().find(|hold| hold.apart() > 0) {
            return Err(BrokenLaw(format!("apart on Funding: {hold:?}")));
        }
        let apart = |reserve: &&Reserve| reserve.apart.values().any(|amount| *amount > 0);
        if let Some(reserve) = self.reserves.values().find(apart) {
            return Err(BrokenLaw(format!("apart on Spot: {reserve:?}")));
        }
        if self.funding != funding {
            return Err(BrokenLaw(format!("Funding has {:?}, must be {funding:?}", self.funding)));
        }
        let total = |balances: &BTreeMap<Holder, u128>| balances.values().sum::<u128>();
        let (there, came) = (total(&self.funding) + total(&self.spot), self.came());
        let begun = total(&World::new(None).funding) + total(&World::new(None).spot);
        if i128::try_from(there).ok() != i128::try_from(begun).ok().map(|begun| begun + came) {
            let broken = format!("{there} units in both stores, {begun} before and {came} came");
            return Err(BrokenLaw(broken));
        }
        if self.spot != spot {
            return Err(BrokenLaw(format!("Spot has {:?}, must be {spot:?}", self.spot)));
        }
        Ok(())
    }

    /// Money that transactions have brought from outside of both stores, less all that they took
    /// there.
    fn came(&self) -> i128 {
        let done = self.rows.values().filter(|row| row.state == TransactionState::Done);
        let confirmed = |branch: &&Branch| branch.state == BranchState::Confirmed;
        let branches = done.flat_map(|row| row.branches.iter().filter(confirmed));
        let legs = branches.flat_map(|branch| &branch.legs).map(|leg| match (leg.from, leg.to) {
            (LegPlace::Outside, _) => i128::from(leg.amount),
            (_, LegPlace::Outside) => -i128::from(leg.amount),
            _ => 0,
        });
        legs.sum()
    }

    /// A transaction is booked by all of its parties or by none.
    fn judge_branches(&self, row: &TransactionRow) -> Result<(), BrokenLaw> {
        for branch in &row.branches {
            let is_fit = match (row.state, is_used_up(row, branch.round)) {
                (TransactionState::Done, false) => branch.state == BranchState::Confirmed,
                _ => matches!(branch.state, BranchState::Refused | BranchState::Cancelled),
            };
            if !is_fit {
                return Err(BrokenLaw(format!("{:?} of {:?}", branch, row.state)));
            }
            if !is_service(&branch.party) {
                continue;
            }
            let record = self.services.get(&row.branch_id(branch));
            let is_fit = match branch.state {
                BranchState::Confirmed => record == Some(&ServiceRecord::Confirmed),
                _ => {
                    matches!(record, None | Some(ServiceRecord::Refused | ServiceRecord::Cancelled))
                }
            };
            if !is_fit {
                return Err(BrokenLaw(format!("{:?} is {record:?} at its service", branch)));
            }
        }
        Ok(())
    }
}

/// Books the accepted legs of one store.
fn book(row: &TransactionRow, store: Participant, balances: &mut BTreeMap<Holder, u128>) {
    let party = Party::Store(store);
    for branch in row.branches.iter().filter(|branch| branch.party == party) {
        if branch.state != BranchState::Confirmed {
            continue;
        }
        for leg in &branch.legs {
            let (asset, amount) = (leg.asset.0, u128::from(leg.amount));
            // It may go below zero between two legs: only the end counts.
            if let Some(user) = leg.from.user_in(store) {
                let from = balances.entry((user.number(), asset)).or_default();
                *from = from.wrapping_sub(amount);
            }
            if let Some(user) = leg.to.user_in(store) {
                let to = balances.entry((user.number(), asset)).or_default();
                *to = to.wrapping_add(amount);
            }
        }
    }
}

/// The amounts apart and arriving of each user.
fn shares(legs: &[Leg]) -> BTreeMap<Holder, (u128, u128)> {
    let parts = Breakdown::of(legs, |_| true);
    let share = |part: &domain::posting::Part| match part.place {
        Place::Available(user) => Some(((user, part.asset), (part.apart, part.arriving))),
        _ => None,
    };
    parts.iter().filter_map(share).collect()
}
