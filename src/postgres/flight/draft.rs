//! The decisions of a batch: from calls, and the rows that they rest on, to a flight and replies.
//!
//! Nothing here does I/O. The calls are decided in the order in which they are given, each on the
//! rows that the calls before it leave.

mod bonuses;
mod burden;
mod operations;
mod outside;
mod recharges;
mod returns;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::{SignedDuration, Timestamp};
use wal::Sequence;

use self::recharges::Desk;
use super::memory::Memory;
use super::recharged::{RechargeKey, RechargeRows};
use super::{
    AccountRow, Acted, Audited, Balance, BalanceRow, Decided, Deferred, Flight, Found, FreezeRow,
    HoldRow, Key, Moved, Operation, Passed, Wanted, Written,
};
use crate::postgres::store::{Call, External, Reply, Sought, Transfer, TransitionPath};
use domain::account::{AccountStatus, UserId};
use domain::amount::Amount;
use domain::asset::{AssetId, Catalog};
use domain::code::Code;
use domain::hold::{self, Hold, HoldAccount, HoldAct, HoldDecided, HoldKey, HoldOrder, HoldState};
use domain::transfer::{Cid, Decision, Intent, Op, Participant, ReqId, State};

/// Rows that were read for one batch, beyond accounts and balances.
#[derive(Debug, Default)]
pub struct Known {
    /// Every row that the calls name is read first. A batch begins without it: a row is new, and a
    /// transfer stands where its worker holds it. If PostgreSQL refuses that, it is decided anew.
    pub careful: bool,
    transfers: HashMap<ReqId, Transfer>,
    cids: HashMap<(UserId, Cid), ReqId>,
    externals: HashMap<String, Decided>,
    holds: HashMap<HoldKey, Hold>,
    recharges: RechargeRows,
    freezes: HashMap<(UserId, AssetId, u16), u128>,
    unreadable: BTreeMap<Key, String>,
    read: BTreeSet<Key>,
}

impl Known {
    /// Nothing, as carefully as before: the rows have changed.
    pub fn forgotten(&self) -> Known {
        Known { careful: self.careful, ..Known::default() }
    }

    /// Learns rows.
    pub fn learn(&mut self, wanted: &Wanted, found: Found) {
        self.read.extend(wanted.transfers.iter().map(|req_id| Key::ReqId(*req_id)));
        self.read.extend(wanted.cids.iter().map(|(user, cid)| Key::Cid(*user, cid.clone())));
        self.read.extend(wanted.externals.iter().map(|key| Key::External(key.clone())));
        self.read.extend(wanted.holds.iter().map(|key| Key::Hold(key.clone())));
        let freezes = wanted.freezes.iter();
        self.read
            .extend(freezes.map(|(user, asset, purpose)| Key::Freeze(*user, *asset, *purpose)));
        self.holds.extend(found.holds);
        self.recharges.extend(found.recharges);
        self.freezes.extend(found.freezes);
        for transfer in found.transfers {
            let intent = &transfer.intent;
            if let Some(cid) = &intent.cid {
                self.cids.insert((intent.user, cid.clone()), intent.req_id);
            }
            self.transfers.insert(intent.req_id, transfer);
        }
        for row in found.externals {
            self.externals.insert(row.external.idem_key.clone(), row);
        }
        self.unreadable.extend(found.unreadable);
    }

    /// The transfer that is sought.
    pub fn sought(&self, sought: &Sought) -> Reply {
        let (key, req_id) = match sought {
            Sought::ReqId(req_id) => (Key::ReqId(*req_id), Some(*req_id)),
            Sought::Cid(user, cid) => {
                let named = self.cids.get(&(*user, cid.clone())).copied();
                (Key::Cid(*user, cid.clone()), named)
            }
        };
        if let Some(why) = self.unreadable.get(&key) {
            return Reply::Unreadable(why.clone());
        }
        let found = req_id.and_then(|req_id| self.transfers.get(&req_id));
        Reply::Found(found.map(|transfer| Box::new(transfer.clone())))
    }

    /// The decision that is recorded for an operation.
    pub fn decision(&self, req_id: ReqId, op: Op) -> Reply {
        let transfer = self.transfers.get(&req_id);
        match self.unreadable.get(&Key::ReqId(req_id)) {
            Some(why) => Reply::Unreadable(why.clone()),
            None => Reply::Operation(transfer.and_then(|transfer| transfer.on_funding(op))),
        }
    }

    /// The decision that is recorded for an external operation.
    pub fn external(&self, external: &External) -> Reply {
        match self.unreadable.get(&Key::External(external.idem_key.clone())) {
            Some(why) => Reply::Unreadable(why.clone()),
            None => match self.externals.get(&external.idem_key) {
                Some(decided) => external_reply(decided, external),
                None => Reply::Found(None),
            },
        }
    }
}

impl Known {
    /// The decision that is recorded for an act on a hold. An act that breaks the rules has none.
    pub fn hold(&self, order: &HoldOrder) -> Reply {
        if let Some(why) = self.unreadable.get(&Key::Hold(order.key.clone())) {
            return Reply::Unreadable(why.clone());
        }
        let recorded = self.holds.get(&order.key).map(|hold| hold::recorded(hold, order));
        match recorded {
            Some(Ok(Some(decision))) => self.told(order, decision),
            Some(Ok(None) | Err(_)) | None => Reply::Found(None),
        }
    }

    /// A hold as it was read; `None`: there is none.
    pub fn held(&self, key: &HoldKey) -> Option<&Hold> {
        self.holds.get(key)
    }

    /// A freeze as it was read, smallest units; `None`: there is none.
    pub fn frozen(&self, user: UserId, asset: AssetId, purpose: u16) -> Option<u128> {
        self.freezes.get(&(user, asset, purpose)).copied()
    }
}

/// A call that cannot be part of any flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    /// Which call of the batch.
    pub index: usize,
    /// Whether it breaks a rule of the protocol.
    pub violation: bool,
    /// The reason.
    pub what: String,
}

/// The reply to a call, or the reads that answer it once the flight is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Decided.
    Reply(Reply),
    /// To be read behind the flight, so that the answer includes it.
    Read,
}

/// The rows that must be read before `calls` can be decided.
pub fn wanted(calls: &[Call], memory: &Memory, known: &Known) -> Wanted {
    let mut rows = Rows::default();
    for call in calls {
        match call {
            Call::Accept { intent, transition, .. } => {
                if known.careful {
                    rows.transfers.insert(intent.req_id);
                    rows.cids.extend(intent.cid.clone().map(|cid| (intent.user, cid)));
                }
                rows.of_transition(intent, transition);
            }
            Call::Step { transfer, transition, .. } => {
                if known.careful {
                    rows.transfers.insert(transfer.intent.req_id);
                }
                rows.of_transition(&transfer.intent, transition);
            }
            Call::Operate { intent, .. } => {
                rows.transfers.insert(intent.req_id);
                rows.of_funding(intent.user, intent.asset);
            }
            Call::External(external) => {
                if known.careful {
                    rows.externals.insert(external.idem_key.clone());
                }
                rows.of_funding(external.user, external.asset);
            }
            // Its decision rests on its row.
            Call::Hold(order) => {
                rows.holds.insert(order.key.clone());
                rows.externals.extend(outside::keys(order));
                rows.of_funding(order.user, order.asset);
                if order.purpose != 0 {
                    rows.freezes.insert((order.user, order.asset, order.purpose));
                }
            }
            Call::Recharge(call) => recharges::wanted(call, known, &mut rows),
            Call::SetFundingStatus { user, .. } => drop(rows.accounts.insert(*user)),
            Call::Defer { .. }
            | Call::QueryOperation { .. }
            | Call::Find(_)
            | Call::FindExternal(_)
            | Call::FindHold(_)
            | Call::FindRecharge(_) => {}
        }
    }
    let mut wanted = rows.wanted();
    let is_read = |key: Key| known.unreadable.contains_key(&key);
    wanted.accounts.retain(|user| memory.account(*user).is_none() && !is_read(Key::Account(*user)));
    wanted.balances.retain(|(user, asset)| {
        memory.balance(*user, *asset).is_none() && !is_read(Key::Balance(*user, *asset))
    });
    wanted.transfers.retain(|req_id| !known.read.contains(&Key::ReqId(*req_id)));
    wanted.cids.retain(|(user, cid)| !known.read.contains(&Key::Cid(*user, cid.clone())));
    wanted.externals.retain(|key| !known.read.contains(&Key::External(key.clone())));
    wanted.holds.retain(|key| !known.read.contains(&Key::Hold(key.clone())));
    wanted.freezes.retain(|(user, asset, purpose)| {
        !known.read.contains(&Key::Freeze(*user, *asset, *purpose))
    });
    wanted
        .recharges
        .retain(|key| !known.recharges.read.contains(key) && !is_read(Key::Recharge(key.clone())));
    wanted
}

/// The rows that answer the reading calls of a batch.
pub fn wanted_behind(calls: &[Call]) -> Wanted {
    let mut rows = Rows::default();
    for call in calls {
        match call {
            Call::QueryOperation { req_id, .. } | Call::Find(Sought::ReqId(req_id)) => {
                rows.transfers.insert(*req_id);
            }
            Call::Find(Sought::Cid(user, cid)) => drop(rows.cids.insert((*user, cid.clone()))),
            Call::FindExternal(external) => {
                rows.externals.insert(external.idem_key.clone());
            }
            Call::FindHold(order) => {
                rows.holds.insert(order.key.clone());
                rows.externals.extend(outside::keys(order));
            }
            Call::FindRecharge(call) => recharges::wanted_behind(call, &mut rows),
            Call::Accept { .. }
            | Call::Step { .. }
            | Call::Defer { .. }
            | Call::Operate { .. }
            | Call::External(_)
            | Call::Hold(_)
            | Call::Recharge(_)
            | Call::SetFundingStatus { .. } => {}
        }
    }
    rows.wanted()
}

/// [`Wanted`] with each row once.
#[derive(Default)]
struct Rows {
    accounts: BTreeSet<UserId>,
    balances: BTreeSet<(UserId, AssetId)>,
    transfers: BTreeSet<ReqId>,
    cids: BTreeSet<(UserId, Cid)>,
    externals: BTreeSet<String>,
    holds: BTreeSet<HoldKey>,
    recharges: BTreeSet<RechargeKey>,
    freezes: BTreeSet<(UserId, AssetId, u16)>,
}

impl Rows {
    fn of_transition(&mut self, intent: &Intent, transition: &TransitionPath) {
        if transition.funding.is_some() {
            self.of_funding(intent.user, intent.asset);
        }
    }

    fn of_funding(&mut self, user: UserId, asset: AssetId) {
        self.accounts.insert(user);
        self.balances.insert((user, asset));
    }

    fn wanted(self) -> Wanted {
        Wanted {
            accounts: self.accounts.into_iter().collect(),
            balances: self.balances.into_iter().collect(),
            transfers: self.transfers.into_iter().collect(),
            cids: self.cids.into_iter().collect(),
            externals: self.externals.into_iter().collect(),
            holds: self.holds.into_iter().collect(),
            recharges: self.recharges.into_iter().collect(),
            freezes: self.freezes.into_iter().collect(),
        }
    }
}

/// A flight under construction.
pub struct Draft<'a> {
    memory: &'a Memory,
    known: &'a Known,
    catalog: &'a Catalog,
    flight: Flight,
    accounts: BTreeMap<UserId, AccountRow>,
    balances: BTreeMap<(UserId, AssetId), BalanceRow>,
    /// Transfers that this flight writes: their places, and their names by cid.
    written: HashMap<ReqId, Place>,
    cids: HashMap<(UserId, Cid), ReqId>,
    deferred: BTreeMap<ReqId, Deferred>,
    /// External operations that this flight decides.
    externals: HashMap<String, usize>,
    /// Holds that this flight writes.
    holds: BTreeMap<HoldKey, HoldRow>,
    /// Rows of recharges that this flight writes.
    desk: Desk,
    /// Freezes that its decisions rest on.
    freezes: BTreeMap<(UserId, AssetId, u16), FreezeRow>,
}

/// Where a flight has a transfer.
#[derive(Clone, Copy)]
enum Place {
    Accepted(usize),
    Moved(usize),
}

/// Why a call cannot be decided; [`Objection`] without its index.
struct Objected {
    violation: bool,
    what: String,
}

fn violation(what: String) -> Objected {
    Objected { violation: true, what }
}

impl<'a> Draft<'a> {
    /// An empty flight without a number. Everything of [`wanted`] must be in `memory` and `known`.
    pub fn new(
        memory: &'a Memory,
        known: &'a Known,
        catalog: &'a Catalog,
        at: Timestamp,
    ) -> Draft<'a> {
        Draft {
            memory,
            known,
            catalog,
            flight: Flight { at, ..Flight::default() },
            accounts: BTreeMap::new(),
            balances: BTreeMap::new(),
            written: HashMap::new(),
            cids: HashMap::new(),
            deferred: BTreeMap::new(),
            externals: HashMap::new(),
            holds: BTreeMap::new(),
            desk: Desk::default(),
            freezes: BTreeMap::new(),
        }
    }

    /// Decides all calls, in their order. Returns the flight and an answer for each.
    ///
    /// # Errors
    /// [`Objection`]: one call cannot be part of it.
    pub fn decide(mut self, calls: &[Call]) -> Result<(Flight, Vec<Answer>), Objection> {
        let mut answers = Vec::with_capacity(calls.len());
        for (index, call) in calls.iter().enumerate() {
            let answer = self.call(call);
            answers.push(answer.map_err(|Objected { violation, what }| Objection {
                index,
                violation,
                what,
            })?);
        }
        self.flight.deferred = self.deferred.into_values().collect();
        self.flight.accounts = self.accounts.into_values().collect();
        self.flight.balances = self.balances.into_values().collect();
        self.flight.holds = self.holds.into_values().collect();
        self.flight.recharged = self.desk.into_rows();
        // A freeze without a row that stays without one is not written.
        let is_row = |row: &FreezeRow| row.before.is_some() || row.after > 0;
        self.flight.freezes = self.freezes.into_values().filter(is_row).collect();
        assert_eq!(answers.len(), calls.len(), "an answer for each call");
        assert!(self.flight.balances.is_sorted_by_key(|row| (row.user, row.asset)));
        Ok((self.flight, answers))
    }

    fn call(&mut self, call: &Call) -> Result<Answer, Objected> {
        Ok(Answer::Reply(match call {
            Call::Accept { intent, fingerprint, transition } => {
                self.accept(intent, fingerprint, transition)?
            }
            Call::Step { transfer, transition, code, log_sequence, attempt } => {
                self.step(transfer, transition, *code, *log_sequence, *attempt)?
            }
            Call::Defer { req_id, state, retry_count, delay_ms, .. } => {
                let delay =
                    SignedDuration::from_millis(i64::try_from(*delay_ms).unwrap_or(i64::MAX));
                // A time that no clock reaches is as late as one can say.
                let next_retry_at = self.flight.at.saturating_add(delay).unwrap_or(Timestamp::MAX);
                // As PostgreSQL's INTEGER keeps it.
                let retry_count = (*retry_count).min(i32::MAX.unsigned_abs());
                let (req_id, state) = (*req_id, *state);
                self.defer(Deferred { req_id, state, retry_count, next_retry_at });
                Reply::Done
            }
            Call::Operate { op, intent, refuse } => {
                Reply::Operation(Some(self.operate_alone(*op, *refuse, intent)?))
            }
            Call::External(external) => self.external(external)?,
            Call::Hold(order) => self.hold(order)?,
            Call::Recharge(call) => self.recharge(call)?,
            Call::SetFundingStatus { user, status, actor, reason } => {
                self.readable(&Key::Account(*user))?;
                self.account(*user).after = Some(*status);
                self.flight.audited.push(Audited {
                    actor: actor.clone(),
                    action: "account status",
                    subject: format!("{user} FUNDING"),
                    detail: (*status as u8).to_string(),
                    reason: reason.clone(),
                });
                Reply::Done
            }
            Call::QueryOperation { .. }
            | Call::Find(_)
            | Call::FindExternal(_)
            | Call::FindHold(_)
            | Call::FindRecharge(_) => {
                return Ok(Answer::Read);
            }
        }))
    }

    fn accept(
        &mut self,
        intent: &Intent,
        fingerprint: &str,
        transition: &TransitionPath,
    ) -> Result<Reply, Objected> {
        if let Some(earlier) = self.earlier(intent) {
            return Ok(earlier);
        }
        let Some(&reached) = transition.path.last() else {
            return Err(Objected { violation: false, what: "an accept without a state".into() });
        };
        let transfer =
            Transfer::new(intent.clone(), fingerprint.to_owned(), reached, self.flight.at);
        let written = self.pass(transfer, transition, None, 0)?;
        let transfer = Box::new(written.transfer.clone());
        self.written.insert(intent.req_id, Place::Accepted(self.flight.accepted.len()));
        self.cids.extend(intent.cid.clone().map(|cid| ((intent.user, cid), intent.req_id)));
        self.flight.accepted.push(written);
        Ok(Reply::Transfer(transfer))
    }

    /// The transfer that already has this name, or this user's cid.
    fn earlier(&self, intent: &Intent) -> Option<Reply> {
        let known = self.known;
        let cid = intent.cid.clone().map(|cid| (intent.user, cid));
        if let Some(transfer) = self.current(intent.req_id) {
            return Some(Reply::Transfer(Box::new(transfer)));
        }
        let why = known.unreadable.get(&Key::ReqId(intent.req_id));
        let why = why.or_else(|| {
            let (user, cid) = cid.clone()?;
            known.unreadable.get(&Key::Cid(user, cid))
        });
        if let Some(why) = why {
            return Some(Reply::Unreadable(why.clone()));
        }
        let cid = cid?;
        let named = self.cids.get(&cid).or_else(|| known.cids.get(&cid))?;
        Some(Reply::Transfer(Box::new(self.current(*named)?)))
    }

    /// A transfer as this flight has it so far, or as it was read.
    fn current(&self, req_id: ReqId) -> Option<Transfer> {
        if let Some(place) = self.written.get(&req_id) {
            return Some(self.at(*place).transfer.clone());
        }
        let mut transfer = self.known.transfers.get(&req_id)?.clone();
        if let Some(deferred) = self.deferred.get(&req_id)
            && deferred.state == transfer.state
        {
            transfer.retry_count = deferred.retry_count;
        }
        Some(transfer)
    }

    fn at(&self, place: Place) -> &Written {
        match place {
            Place::Accepted(place) => &self.flight.accepted[place],
            Place::Moved(place) => &self.flight.moved[place].to,
        }
    }

    fn at_mut(&mut self, place: Place) -> &mut Written {
        match place {
            Place::Accepted(place) => &mut self.flight.accepted[place],
            Place::Moved(place) => &mut self.flight.moved[place].to,
        }
    }

    fn defer(&mut self, deferred: Deferred) {
        match self.written.get(&deferred.req_id).copied() {
            None => drop(self.deferred.insert(deferred.req_id, deferred)),
            Some(place) => {
                let written = self.at_mut(place);
                if written.transfer.state == deferred.state {
                    written.transfer.retry_count = deferred.retry_count;
                    written.next_retry_at = Some(deferred.next_retry_at);
                    if let Place::Moved(place) = place {
                        self.flight.moved[place].tries = true;
                    }
                }
            }
        }
    }

    fn step(
        &mut self,
        held: &Transfer,
        transition: &TransitionPath,
        code: Option<Code>,
        log_sequence: Option<Sequence>,
        attempt: u32,
    ) -> Result<Reply, Objected> {
        let req_id = held.intent.req_id;
        let place = self.written.get(&req_id).copied();
        let mut transfer = held.clone();
        if self.known.careful || place.is_some() {
            if let Some(why) = self.known.unreadable.get(&Key::ReqId(req_id)) {
                return Ok(Reply::Unreadable(why.clone()));
            }
            match self.current(req_id) {
                None => return Err(violation(format!("there is no transfer {req_id}"))),
                Some(found) if found.state != held.state => {
                    return Ok(Reply::Transfer(Box::new(found)));
                }
                Some(found) if found.intent != held.intent => {
                    return Err(violation(format!("transfer {req_id} has another body")));
                }
                Some(found) => transfer = found,
            }
        } else if transition.funding.iter().any(|part| transfer.on_funding(part.op).is_some()) {
            let what = format!("a decision of {req_id} must be read before a state rests on it");
            return Err(Objected { violation: false, what });
        }
        let from = transfer.state;
        transfer.log_sequence = log_sequence.or(transfer.log_sequence);
        let to = self.pass(transfer, transition, code, attempt)?;
        let transfer = Box::new(to.transfer.clone());
        // A move ends the wait for a next try.
        self.deferred.remove(&req_id);
        self.write(from, to, true);
        Ok(Reply::Transfer(transfer))
    }

    /// Adds to the row of a transfer that was `from` here before this flight.
    fn write(&mut self, from: State, to: Written, tries: bool) {
        let req_id = to.transfer.intent.req_id;
        let Some(place) = self.written.get(&req_id).copied() else {
            self.written.insert(req_id, Place::Moved(self.flight.moved.len()));
            return self.flight.moved.push(Moved { from, to, tries });
        };
        let row = self.at_mut(place);
        row.transfer = to.transfer;
        row.passed.extend(to.passed);
        row.operations.extend(to.operations);
        if tries {
            row.next_retry_at = to.next_retry_at;
            if let Place::Moved(place) = place {
                self.flight.moved[place].tries = true;
            }
        }
    }

    /// Takes a transfer through the states of a transition, with Funding's part.
    fn pass(
        &mut self,
        mut transfer: Transfer,
        transition: &TransitionPath,
        code: Option<Code>,
        attempt: u32,
    ) -> Result<Written, Objected> {
        let req_id = transfer.intent.req_id;
        let mut states = transition.path.clone();
        let (mut refused, mut operations) = (None, Vec::new());
        if let Some(part) = &transition.funding {
            let done = self.operate(part.op, part.refuse, &mut transfer)?;
            refused = transfer.on_funding(part.op).and_then(Decision::code);
            operations.extend(done);
            states.extend(if refused.is_none() { &part.on_success } else { &part.on_refused });
        }
        let Some(&state) = states.last() else {
            return Err(Objected { violation: false, what: format!("no state for {req_id}") });
        };
        if transfer.state != state && !transfer.state.leads_to(state) {
            let from = transfer.state.name();
            let what = format!("transfer {req_id} cannot go from {from} to {}", state.name());
            return Err(violation(what));
        }
        transfer.state = state;
        transfer.code = transfer.code.or(code).or(refused);
        transfer.retry_count = 0;
        transfer.updated_at = self.flight.at;
        let passed = vec![Passed { states, attempt, reason: code.or(refused) }];
        Ok(Written { transfer, next_retry_at: None, passed, operations })
    }

    /// Decides an operation without a change of state.
    fn operate_alone(
        &mut self,
        op: Op,
        refuse: bool,
        intent: &Intent,
    ) -> Result<Decision, Objected> {
        let req_id = intent.req_id;
        self.readable(&Key::ReqId(req_id))?;
        let mut transfer = match self.current(req_id) {
            None => return Err(violation(format!("there is no transfer {req_id}"))),
            Some(found) if found.intent != *intent => {
                return Err(violation(format!("transfer {req_id} has another body")));
            }
            Some(found) => found,
        };
        if let Some(done) = self.operate(op, refuse, &mut transfer)? {
            let from = transfer.state;
            transfer.updated_at = self.flight.at;
            // One statement writes a row once.
            let deferred = self.deferred.remove(&req_id).filter(|deferred| deferred.state == from);
            let next_retry_at = deferred.as_ref().map(|deferred| deferred.next_retry_at);
            let (passed, operations) = (Vec::new(), vec![done]);
            let to = Written { transfer: transfer.clone(), next_retry_at, passed, operations };
            self.write(from, to, deferred.is_some());
        }
        Ok(transfer.on_funding(op).expect("decided above"))
    }

    /// Decides an operation of a transfer, once: `None` if it has been decided. The transfer has
    /// the decision.
    fn operate(
        &mut self,
        op: Op,
        refuse: bool,
        transfer: &mut Transfer,
    ) -> Result<Option<Operation>, Objected> {
        let Intent { req_id, user, asset, amount, direction, .. } = transfer.intent;
        let of_transfer = op.place_in_transfer().is_some();
        if !of_transfer || op.participant(direction) != Participant::Funding {
            return Err(violation(format!("{op} of {req_id} is not on Funding")));
        }
        if refuse && !op.row().refusable {
            return Err(violation(format!("{op} of {req_id} is never refused")));
        }
        if transfer.on_funding(op).is_some() {
            return Ok(None);
        }
        if let Some(undone) = op.row().undoes
            && transfer.on_funding(undone) != Some(Decision::Success)
        {
            return Err(violation(format!("{op} of {req_id}, which has no {undone}")));
        }
        let (decision, balance_after) = match refuse {
            true => (Decision::Refused(Code::ResolvedByOperator), None),
            false => self.book(op, user, asset, amount)?,
        };
        transfer.decided(op, decision);
        Ok(Some(Operation { op, decision, balance_after }))
    }

    /// Objects to a row that cannot be read.
    fn readable(&self, key: &Key) -> Result<(), Objected> {
        match self.known.unreadable.get(key) {
            Some(why) => Err(Objected { violation: false, what: why.clone() }),
            None => Ok(()),
        }
    }

    /// Decides by account and balance, and books a success. Returns the balance afterwards.
    fn book(
        &mut self,
        op: Op,
        user: UserId,
        asset: AssetId,
        amount: Amount,
    ) -> Result<(Decision, Option<i128>), Objected> {
        let units = u128::from(amount.units());
        self.readable(&Key::Account(user))?;
        self.readable(&Key::Balance(user, asset))?;
        let status = self.account(user).after;
        let enough = self.free(user, asset) >= units;
        if op.takes() && status.is_some() {
            // Also a refusal rests on the balance.
            self.balance(user, asset);
        }
        if let Err(code) = op.verdict(Participant::Funding, status, enough) {
            return Ok((Decision::Refused(code), None));
        }
        let available = self.available(user, asset);
        let effect = op.effect(Decision::Success, amount.units());
        let Some(after) = available.checked_add(effect).filter(|after| fits(*after)) else {
            let what = format!("{op} of {units} units does not fit the balance {available}");
            return Err(Objected { violation: false, what });
        };
        if op.row().side == domain::transfer::op::Side::Outside && status.is_none() {
            // The first deposit makes the account.
            self.account(user).after = Some(AccountStatus::Active);
        }
        let row = self.balance(user, asset);
        let frozen = row.after.or(row.before).map_or(0, |stands| stands.frozen);
        let version = row.before.map_or(0, |before| before.version) + 1;
        row.after = Some(Balance { available: after, frozen, version });
        Ok((Decision::Success, Some(after.saturating_add(signed(frozen)))))
    }

    /// Decides an act on a hold, once.
    fn hold(&mut self, order: &HoldOrder) -> Result<Reply, Objected> {
        let HoldOrder { key, user, asset, act, purpose, .. } = order;
        let (user, asset, purpose) = (*user, *asset, *purpose);
        if let Some(why) = self.known.unreadable.get(&Key::Hold(key.clone())) {
            return Ok(Reply::Unreadable(why.clone()));
        }
        self.readable(&Key::Account(user))?;
        self.readable(&Key::Balance(user, asset))?;
        self.readable(&Key::Freeze(user, asset, purpose))?;
        if self.catalog.by_id(asset).is_none() {
            return Err(violation(format!("hold {key}: there is no asset {}", asset.0)));
        }
        let recorded = self.known.holds.get(key).copied();
        let stands = self.holds.get(key).map(|row| row.after).or(recorded);
        let status = match self.accounts.get(&user) {
            Some(row) => row.after,
            None => self.memory.account(user).expect("read before the decision"),
        };
        let available = match purpose {
            0 => self.free(user, asset),
            _ => self.frozen_for(user, asset, purpose),
        };
        let account = HoldAccount { status, available };
        let decided = hold::decide(stands.as_ref(), order, account);
        let decided = decided.map_err(|broken| violation(format!("hold {key}: {broken}")))?;
        let (decision, after, available, freeze, frozen, opens) = match decided {
            HoldDecided::Told(decision) => return Ok(self.settled(order, decision)),
            HoldDecided::Recorded { decision, hold, available, freeze, frozen, opens } => {
                (decision, hold, available, freeze, frozen, opens)
            }
        };
        if purpose != 0 {
            self.freeze(order, freeze)?;
        }
        if let HoldAct::Set { .. } = act {
            // Also a refusal rests on them.
            self.account(user);
            self.balance(user, asset);
        }
        if opens {
            self.account(user).after = Some(AccountStatus::Active);
        }
        // Only the end of a special place takes a balance below zero, or further below it. A step
        // of an act may: the place may have become special behind its first round.
        let least = if order.special { i128::MIN } else { self.available(user, asset).min(0) };
        let deposit = self.cross(order, Op::ExtDeposit)?;
        let sum = self.set_apart(order, available, frozen)?;
        let settled_after = (after.state == HoldState::Settled).then_some(sum);
        let row = HoldRow { key: key.clone(), before: recorded, after, settled_after };
        self.holds.insert(key.clone(), row);
        let withdrawal = self.cross(order, Op::ExtWithdraw)?;
        let left = self.available(user, asset);
        if left < least {
            let what = format!("hold {key}: {left} would be left, and {least} is the least");
            return Err(Objected { violation: false, what });
        }
        let order = order.clone();
        self.flight.acts.push(Acted { order, decision, available, frozen });
        let operations: Vec<_> = deposit.into_iter().chain(withdrawal).collect();
        Ok(if operations.is_empty() { Reply::Hold(decision) } else { Reply::Settled(operations) })
    }

    /// Changes the freeze of a hold's purpose, which the flight rests on from now on.
    fn freeze(&mut self, order: &HoldOrder, change: i128) -> Result<(), Objected> {
        let HoldOrder { ref key, user, asset, purpose, .. } = *order;
        let before = self.known.frozen(user, asset, purpose);
        let stands = self.frozen_for(user, asset, purpose);
        let Some(after) = stands.checked_add_signed(change) else {
            let what = format!("hold {key}: {change} does not fit the {stands} that are frozen");
            return Err(Objected { violation: false, what });
        };
        let row = FreezeRow { user, asset, purpose, before, after };
        self.freezes.insert((user, asset, purpose), row);
        Ok(())
    }

    /// The freeze of a purpose as this flight has it so far, smallest units.
    fn frozen_for(&self, user: UserId, asset: AssetId, purpose: u16) -> u128 {
        let here = self.freezes.get(&(user, asset, purpose)).map(|row| row.after);
        here.or_else(|| self.known.frozen(user, asset, purpose)).unwrap_or(0)
    }

    /// Changes a balance by an act on a hold. Returns its sum afterwards.
    fn set_apart(
        &mut self,
        order: &HoldOrder,
        available: i128,
        frozen: i128,
    ) -> Result<i128, Objected> {
        let row = self.balance(order.user, order.asset);
        let none = Balance { available: 0, frozen: 0, version: 0 };
        let stands = row.after.or(row.before).unwrap_or(none);
        if (available, frozen) == (0, 0) {
            return Ok(stands.available.saturating_add(signed(stands.frozen)));
        }
        let after = stands.available.checked_add(available).filter(|after| fits(*after));
        let Some((after, apart)) = after.zip(stands.frozen.checked_add_signed(frozen)) else {
            let (key, stands) = (&order.key, (stands.available, stands.frozen));
            let what = format!("hold {key}: {available} and {frozen} do not fit {stands:?}");
            return Err(Objected { violation: false, what });
        };
        let version = row.before.map_or(0, |before| before.version) + 1;
        row.after = Some(Balance { available: after, frozen: apart, version });
        Ok(after.saturating_add(signed(apart)))
    }

    fn external(&mut self, external: &External) -> Result<Reply, Objected> {
        let key = Key::External(external.idem_key.clone());
        if let Some(why) = self.known.unreadable.get(&key) {
            return Ok(Reply::Unreadable(why.clone()));
        }
        let here = self.externals.get(&external.idem_key);
        let here = here.map(|place| &self.flight.externals[*place]);
        if let Some(decided) = here.or_else(|| self.known.externals.get(&external.idem_key)) {
            return Ok(external_reply(decided, external));
        }
        let External { op, user, asset, amount, .. } = *external;
        let (decision, balance_after) = self.book(op, user, asset, amount)?;
        let precision = precision(self.catalog, asset);
        let outcome = decision.code().map_or("SUCCESS", Code::name);
        self.flight.audited.push(Audited {
            actor: external.actor.clone(),
            action: if op.takes() { "withdrawal" } else { "deposit" },
            subject: user.to_string(),
            detail: format!(
                "asset {} amount {} idem_key {} outcome {outcome}",
                asset.0,
                amount.text(precision),
                external.idem_key
            ),
            reason: "external".to_owned(),
        });
        let decided = Decided { external: external.clone(), decision, balance_after };
        let reply = external_reply(&decided, external);
        self.externals.insert(external.idem_key.clone(), self.flight.externals.len());
        self.flight.externals.push(decided);
        Ok(reply)
    }

    /// The row of an account, which the flight rests on from now on.
    fn account(&mut self, user: UserId) -> &mut AccountRow {
        let memory = self.memory;
        self.accounts.entry(user).or_insert_with(|| {
            let before = memory.account(user).expect("read before the decision");
            AccountRow { user, before, after: before }
        })
    }

    /// The row of a balance, which the flight rests on from now on.
    fn balance(&mut self, user: UserId, asset: AssetId) -> &mut BalanceRow {
        let memory = self.memory;
        self.balances.entry((user, asset)).or_insert_with(|| {
            let before = memory.balance(user, asset).expect("read before the decision");
            BalanceRow { user, asset, before, after: None }
        })
    }

    /// The amount that can be taken, smallest units: 0 of a special balance below zero.
    fn free(&self, user: UserId, asset: AssetId) -> u128 {
        u128::try_from(self.available(user, asset)).unwrap_or(0)
    }

    /// The available balance as this flight has it so far, smallest units.
    fn available(&self, user: UserId, asset: AssetId) -> i128 {
        let before = match self.balances.get(&(user, asset)) {
            Some(row) => row.after.or(row.before),
            None => self.memory.balance(user, asset).expect("read before the decision"),
        };
        before.map_or(0, |balance| balance.available)
    }
}

/// Whether a balance fits its column.
fn fits(units: i128) -> bool {
    units.unsigned_abs() < 10_u128.pow(38)
}

/// A frozen part fits its column, and so an i128. Its sum with a balance may fit neither; then
/// PostgreSQL refuses it.
fn signed(frozen: u128) -> i128 {
    i128::try_from(frozen).expect("below 10^38")
}

fn precision(catalog: &Catalog, asset: AssetId) -> u8 {
    catalog.by_id(asset).expect("checked at accept; assets are never removed").precision
}

fn external_reply(decided: &Decided, asked: &External) -> Reply {
    let body = |external: &External| (external.op, external.user, external.asset, external.amount);
    Reply::External {
        decision: decided.decision,
        balance_after: decided.balance_after,
        conflict: body(&decided.external) != body(asked),
        order_number: decided.external.order_number,
    }
}
