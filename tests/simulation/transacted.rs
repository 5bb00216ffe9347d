//! The model of PostgreSQL's tables of transactions: each statement of their store, the decision of
//! a caller in a session of its own, and the crash that takes back a commit without a sync.
//! [`super::compared`] compares it with the real ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::code::Code;
use domain::transfer::{Participant, ReqId};
use jiff::Timestamp;
use ubscore::postgres::transactions::{
    Accepted, BranchMove, Landed, MoveResult, RoundAccept, TransactionError, TransactionMove,
};
use ubscore::transaction::{
    Branch, BranchState, Decider, Party, ROUNDS_MAX, TransactionName, TransactionPassage,
    TransactionRow, TransactionState,
};

use super::postgres::Postgres;
use super::special::{agrees, funding_legs, special_places};
use super::world::Bug;

type Done<T> = Result<T, TransactionError>;

/// A row with the fingerprints of its rounds.
#[derive(Clone, Debug)]
struct Kept {
    row: TransactionRow,
    fingerprints: BTreeMap<u8, [u8; 16]>,
}

/// A caller's session that holds a row.
#[derive(Debug)]
struct HeldBy {
    role: String,
    /// The decision that takes effect with its COMMIT; `None`: it was decided before.
    decided: Option<TransactionRow>,
}

/// The tables.
#[derive(Debug, Default)]
pub(super) struct Transacted {
    /// By order number.
    rows: BTreeMap<u64, Kept>,
    names: BTreeMap<TransactionName, u64>,
    ids: BTreeMap<ReqId, u64>,
    /// The sessions that hold a row.
    sessions: BTreeMap<u64, HeldBy>,
    /// Transactions with a row of the caller's own, written in the same commit.
    business: BTreeSet<TransactionName>,
    /// Rows before a commit that no sync has covered yet.
    unsynced: Vec<TransactionRow>,
    /// Rows that were written since the last look.
    written: Vec<TransactionRow>,
}

impl Transacted {
    /// The row with this name.
    pub(super) fn find(&self, name: &TransactionName) -> Option<&TransactionRow> {
        let number = self.names.get(name)?;
        self.rows.get(number).map(|kept| &kept.row)
    }

    /// The row with this id, as text.
    pub(super) fn with_id(&self, id: &str) -> Option<&TransactionRow> {
        self.all().find(|row| row.id.to_string() == id)
    }

    /// All rows, by order number.
    pub(super) fn all(&self) -> impl Iterator<Item = &TransactionRow> {
        self.rows.values().map(|kept| &kept.row)
    }

    /// Whether nothing is unfinished or held.
    pub(super) fn rests(&self) -> bool {
        self.sessions.is_empty() && self.all().all(|row| row.state.is_terminal())
    }

    /// Whether a session holds the row.
    pub(super) fn is_held(&self, name: &TransactionName) -> bool {
        self.names.get(name).is_some_and(|number| self.sessions.contains_key(number))
    }

    /// Transactions with a row of the caller's own.
    pub(super) fn business(&self) -> &BTreeSet<TransactionName> {
        &self.business
    }

    /// A commit was synced, and with it every commit before.
    pub(super) fn synced(&mut self) {
        self.unsynced.clear();
    }

    /// The rows that were written since the last call.
    pub(super) fn take_written(&mut self) -> Vec<TransactionRow> {
        std::mem::take(&mut self.written)
    }

    fn set(&mut self, kept: Kept) {
        let row = &kept.row;
        self.names.insert(row.name.clone(), row.order_number);
        self.ids.insert(row.id, row.order_number);
        self.written.push(row.clone());
        self.rows.insert(row.order_number, kept);
    }

    /// The server crashes: sessions end without a COMMIT, and commits without a sync are lost if
    /// `loses` says so. Returns the rows as they are again.
    pub(super) fn crash(&mut self, mut loses: impl FnMut() -> bool) -> Vec<TransactionRow> {
        self.sessions.clear();
        let mut lost = Vec::new();
        // The log is lost from a point on: a commit that stays covers those before it.
        let unsynced = std::mem::take(&mut self.unsynced).into_iter().rev();
        for before in unsynced.take_while(|_| loses()) {
            self.business.remove(&before.name);
            let kept = self.rows.get_mut(&before.order_number).expect("it was written");
            kept.row = before.clone();
            lost.push(before);
        }
        lost
    }

    /// The lowest number that the watermark may not pass: of a transaction that a store has not
    /// ended, or that they have ended for less than `keep`. The time of the last change counts: the
    /// watermark waits no shorter than it must.
    pub(super) fn low(&self, from: u64, now: Timestamp, keep: Duration) -> u64 {
        let keep = i128::try_from(keep.as_nanos()).expect("seconds");
        let holds = |row: &&TransactionRow| {
            let age = now.as_nanosecond() - row.updated_at.as_nanosecond();
            !row.state.is_terminal() && !row.stores_ended || (0..keep).contains(&age)
        };
        let rows = self.rows.range(from..).map(|(_, kept)| &kept.row);
        rows.filter(holds).map(|row| row.order_number).min().unwrap_or(u64::MAX)
    }
}

/// The place of a branch in its row.
fn place(branch: &Branch) -> (u8, u8, String) {
    let rank = match branch.party {
        Party::Store(Participant::Funding) => 0,
        Party::Store(Participant::Spot) => 1,
        Party::Service(_) if !branch.last => 2,
        Party::Service(_) => 3,
    };
    (branch.round, rank, branch.party.name().to_owned())
}

/// A time as PostgreSQL keeps it.
fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).expect("it is one")
}

fn passage(
    state: TransactionState,
    at: Timestamp,
    by: &str,
    reason: Option<&String>,
) -> TransactionPassage {
    let (state, by, reason) = (state.name().to_owned(), by.to_owned(), reason.cloned());
    TransactionPassage { state, at: micros(at), by, reason }
}

fn refused<T>(what: &str) -> Done<T> {
    Err(TransactionError::Refused(what.to_owned()))
}

/// A row without rounds.
fn fresh(accept: &RoundAccept, state: TransactionState) -> TransactionRow {
    let at = micros(accept.at);
    TransactionRow {
        id: accept.id,
        order_number: accept.order_number,
        name: accept.round.name.clone(),
        state,
        decider: accept.round.decider,
        decided_by: None,
        expires_at: at + Duration::from_millis(accept.round.ttl_ms),
        rounds: 0,
        code: None,
        detail: None,
        sealed: false,
        stores_ended: false,
        branches: Vec::new(),
        history: Vec::new(),
        created_at: at,
        updated_at: at,
    }
}

impl Postgres {
    /// Whether this incarnation writes.
    fn fences(&self, incarnation: u64, bug: Option<Bug>) -> Done<()> {
        match incarnation == self.incarnation || bug == Some(Bug::TransactionsUnfenced) {
            true => Ok(()),
            false => Err(TransactionError::Superseded),
        }
    }

    /// `transaction_flight`, with the answers of its store: moves and then rounds, in one commit.
    pub(super) fn fly_transactions(
        &mut self,
        incarnation: u64,
        (moves, accepts): (&[TransactionMove], &[RoundAccept]),
        at: Timestamp,
        bug: Option<Bug>,
    ) -> Done<Landed> {
        if accepts.iter().any(is_in_form) {
            self.fences(incarnation, bug)?;
        }
        let moved = match moves.is_empty() {
            true => Vec::new(),
            false => self.record_moves(incarnation, moves, at, bug)?,
        };
        // New transactions are written first, together.
        let mut new = BTreeMap::new();
        for (place, accept) in accepts.iter().enumerate() {
            if accept.round.round == 1 && self.transacted.find(&accept.round.name).is_none() {
                let accepted = self.accept_round(incarnation, accept, bug);
                if matches!(accepted, Ok(Accepted::Taken { .. })) {
                    new.insert(place, accepted);
                }
            }
        }
        let mut accepted = Vec::with_capacity(accepts.len());
        for (place, accept) in accepts.iter().enumerate() {
            let new = new.remove(&place);
            accepted.push((
                new.is_some(),
                new.unwrap_or_else(|| self.accept_round(incarnation, accept, bug)),
            ));
        }
        // Rows of old ones are read behind the commit.
        for (accept, (_, accepted)) in accepts.iter().zip(&mut accepted).filter(|(_, one)| !one.0) {
            let there = self.transacted.find(&accept.round.name);
            match accepted {
                Ok(Accepted::Taken { row, .. } | Accepted::Refused { row: Some(row), .. }) => {
                    **row = there.expect("rows are never deleted").clone();
                }
                Ok(Accepted::Refused { row: None, .. }) | Err(_) => {}
            }
        }
        Ok(Landed { moved, accepted: accepted.into_iter().map(|one| one.1).collect() })
    }

    /// `transaction_accept`, with the answers of its store.
    fn accept_round(
        &mut self,
        incarnation: u64,
        accept: &RoundAccept,
        bug: Option<Bug>,
    ) -> Done<Accepted> {
        let round = &accept.round;
        let no = |code, row: Option<TransactionRow>| {
            let (detail, row) = ("the model".to_owned(), row.map(Box::new));
            Ok(Accepted::Refused { code, detail, row })
        };
        if !is_in_form(accept) {
            return no(Code::InvalidRequest, None);
        }
        self.fences(incarnation, bug)?;
        let branches = round.branches();
        let there = self.transacted.names.get(&round.name).copied();
        let Some(number) = there else {
            if round.round != 1 {
                return no(Code::InvalidRequest, None);
            }
            if !self.special_stands(accept, bug) {
                return no(Code::Overloaded, None);
            }
            let tables = &self.transacted;
            let taken = tables.rows.contains_key(&accept.order_number);
            if accept.order_number < self.watermark || taken || tables.ids.contains_key(&accept.id)
            {
                return refused("the number is of no use");
            }
            let mut row = fresh(accept, TransactionState::Open);
            row.history.push(passage(row.state, accept.at, &round.name.owner, None));
            return Ok(self.with_round(row, accept, branches));
        };
        let Kept { row, fingerprints } = self.transacted.rows[&number].clone();
        if let Some(known) = fingerprints.get(&round.round) {
            return match *known == round.fingerprint {
                true => Ok(Accepted::Taken { row: Box::new(row), replayed: true }),
                false => no(Code::TxIdConflict, Some(row)),
            };
        }
        let is_trying = row.branches.iter().any(|branch| branch.state == BranchState::Trying);
        let code = match row.state {
            _ if self.transacted.sessions.contains_key(&number) => Code::Overloaded,
            TransactionState::Aborted | TransactionState::Cancelled => match row.code {
                Some(Code::TransactionExpired) => Code::TransactionExpired,
                _ => Code::TransactionAborted,
            },
            TransactionState::Open if row.decider != Decider::Caller => Code::InvalidRequest,
            TransactionState::Open if row.rounds + 1 != round.round => Code::InvalidRequest,
            TransactionState::Open if is_trying => Code::TransactionUntried,
            TransactionState::Open if !self.special_stands(accept, bug) => Code::Overloaded,
            TransactionState::Open if !special_agrees(&row, &branches) => Code::Overloaded,
            TransactionState::Open => return Ok(self.with_round(row, accept, branches)),
            _ => Code::TransactionDecided,
        };
        no(code, Some(row))
    }

    /// `special_stands`.
    fn special_stands(&self, accept: &RoundAccept, bug: Option<Bug>) -> bool {
        let named = special_places(&accept.round.legs);
        bug == Some(Bug::SpecialUnchecked) || named.iter().all(|key| self.special.contains(key))
    }

    fn with_round(
        &mut self,
        mut row: TransactionRow,
        accept: &RoundAccept,
        branches: Vec<Branch>,
    ) -> Accepted {
        let RoundAccept { round, at, .. } = accept;
        (row.rounds, row.updated_at) = (round.round, micros(*at));
        row.branches.extend(branches);
        row.branches.sort_by_cached_key(place);
        let known = self.transacted.rows.get(&row.order_number);
        let mut fingerprints = known.map(|kept| kept.fingerprints.clone()).unwrap_or_default();
        fingerprints.insert(round.round, round.fingerprint);
        self.transacted.set(Kept { row: row.clone(), fingerprints });
        self.transacted.synced();
        Accepted::Taken { row: Box::new(row), replayed: false }
    }

    /// `transaction_record`: all moves in one commit.
    fn record_moves(
        &mut self,
        incarnation: u64,
        moves: &[TransactionMove],
        at: Timestamp,
        bug: Option<Bug>,
    ) -> Done<Vec<MoveResult>> {
        self.fences(incarnation, bug)?;
        let unlocked = bug == Some(Bug::DecisionUnlocked);
        if let Some(twice) = moves.iter().find(|moved| self.fits_twice(moves, moved)) {
            return refused(&format!("two moves of {} in one commit", twice.id));
        }
        let mut written: BTreeMap<u64, Kept> = BTreeMap::new();
        let mut results = Vec::new();
        for moved in moves {
            let number = self.transacted.ids.get(&moved.id).copied();
            let held = number.and_then(|number| self.transacted.sessions.get(&number));
            if let Some(HeldBy { role, .. }) = held.filter(|_| !unlocked) {
                results.push(MoveResult::Held(role.clone()));
                continue;
            }
            let kept = number.and_then(|number| self.transacted.rows.get(&number).cloned());
            let Some(Kept { mut row, fingerprints }) = kept else {
                results.push(MoveResult::Changed);
                continue;
            };
            if unlocked && row.state != moved.from && !row.state.is_terminal() {
                row.state = moved.from;
            }
            let result = carry_out(&mut row, moved, micros(at))?;
            if result == MoveResult::Moved {
                written.insert(row.order_number, Kept { row, fingerprints });
            }
            results.push(result);
        }
        written.into_values().for_each(|kept| self.transacted.set(kept));
        self.transacted.synced();
        Ok(results)
    }

    /// Whether this move fits its row, and another one of the same transaction too.
    fn fits_twice(&self, moves: &[TransactionMove], moved: &TransactionMove) -> bool {
        let Some(number) = self.transacted.ids.get(&moved.id) else { return false };
        let row = &self.transacted.rows[number].row;
        let same = moves.iter().filter(|other| other.id == moved.id && fits(row, other));
        !self.transacted.sessions.contains_key(number) && same.count() > 1
    }

    /// `transaction_cancel_unknown`, and the row under the name.
    pub(super) fn cancel_unknown(
        &mut self,
        incarnation: u64,
        accept: &RoundAccept,
        (by, reason): (&str, Option<&str>),
        bug: Option<Bug>,
    ) -> Done<TransactionRow> {
        self.fences(incarnation, bug)?;
        if let Some(row) = self.transacted.find(&accept.round.name) {
            // Its insert meets a row that a session is changing, and waits too long.
            let session = self.transacted.sessions.get(&row.order_number);
            return match session.is_some_and(|session| session.decided.is_some()) {
                true => refused("lock timeout"),
                false => Ok(row.clone()),
            };
        }
        let tables = &self.transacted;
        let taken = tables.rows.contains_key(&accept.order_number);
        if accept.order_number < self.watermark || taken || tables.ids.contains_key(&accept.id) {
            return refused("the number is of no use");
        }
        let mut row = fresh(accept, TransactionState::Cancelled);
        let reason = reason.map(str::to_owned);
        (row.decided_by, row.sealed) = (Some(by.to_owned()), true);
        (row.code, row.detail) = (Some(Code::TransactionAborted), reason);
        for state in [TransactionState::Aborted, TransactionState::Cancelled] {
            row.history.push(passage(state, accept.at, by, row.detail.as_ref()));
        }
        if bug != Some(Bug::AbortByAbsence) {
            self.transacted.set(Kept { row: row.clone(), fingerprints: BTreeMap::new() });
            self.transacted.synced();
        }
        Ok(row)
    }

    /// The unfinished rows above a number.
    pub(super) fn unfinished_transactions(&self, above: u64, limit: usize) -> Vec<TransactionRow> {
        let rows = self.transacted.rows.range(above.saturating_add(1)..);
        let open = rows.map(|(_, kept)| &kept.row).filter(|row| !row.state.is_terminal());
        open.take(limit).cloned().collect()
    }

    /// Decisions of callers that no move has sealed.
    pub(super) fn unsealed(&self) -> Vec<ReqId> {
        let decided =
            |row: &&TransactionRow| row.state == TransactionState::Committed && !row.sealed;
        self.transacted.all().filter(decided).map(|row| row.id).collect()
    }

    /// `transaction_commit` in a session of `role`, which holds the row until its end.
    ///
    /// # Errors
    /// The SQLSTATE; the session holds nothing.
    pub(super) fn sql_commit(
        &mut self,
        role: &str,
        name: &TransactionName,
        rounds: u8,
        bug: Option<Bug>,
    ) -> Result<(), &'static str> {
        let Some(row) = self.transacted.find(name) else { return Err("UB012") };
        let number = row.order_number;
        assert!(!self.transacted.sessions.contains_key(&number), "it would wait");
        let blind = bug == Some(Bug::UntriedCommitted);
        let decided = match row.state {
            TransactionState::Aborted | TransactionState::Cancelled => return Err("UB010"),
            _ if row.decider != Decider::Caller || row.rounds != rounds => return Err("UB011"),
            TransactionState::Committed | TransactionState::Done => None,
            _ if !is_tried(row) && !blind => return Err("UB011"),
            _ => {
                let by = format!("caller:{role}");
                let mut after = row.clone();
                after.history.push(passage(TransactionState::Committed, self.now, &by, None));
                (after.state, after.updated_at) = (TransactionState::Committed, micros(self.now));
                after.decided_by = Some(by);
                Some(after)
            }
        };
        self.transacted.sessions.insert(number, HeldBy { role: role.to_owned(), decided });
        Ok(())
    }

    /// Ends the session that holds this row, if the server still has it. `sync`: its COMMIT waits
    /// for the disk. Returns whether it was there.
    pub(super) fn end_session(&mut self, name: &TransactionName, commit: bool, sync: bool) -> bool {
        let Some(number) = self.transacted.names.get(name).copied() else { return false };
        let Some(HeldBy { decided, .. }) = self.transacted.sessions.remove(&number) else {
            return false;
        };
        if !commit {
            return true;
        }
        self.transacted.business.insert(name.clone());
        let Kept { row: before, fingerprints } = self.transacted.rows[&number].clone();
        if let Some(row) = decided {
            self.transacted.set(Kept { row, fingerprints });
            self.transacted.unsynced.push(before);
        }
        if sync {
            self.transacted.synced();
        }
        true
    }
}

/// `special_agrees`.
fn special_agrees(row: &TransactionRow, branches: &[Branch]) -> bool {
    let funding = Party::Store(Participant::Funding);
    let new = branches.iter().filter(|branch| branch.party == funding);
    let all: Vec<_> = funding_legs(row).chain(new.flat_map(|branch| &branch.legs)).collect();
    agrees(all.into_iter())
}

/// Whether a round can be written at all.
fn is_in_form(accept: &RoundAccept) -> bool {
    (1..=ROUNDS_MAX).contains(&accept.round.round) && !accept.round.branches().is_empty()
}

/// Whether a move finds its row as it must be.
fn fits(row: &TransactionRow, moved: &TransactionMove) -> bool {
    let mut branches = moved.branches.iter();
    (row.state, row.rounds) == (moved.from, moved.rounds)
        && branches.all(|passage| {
            index_of(row, passage).is_some_and(|index| row.branches[index].state == passage.from)
        })
}

/// Whether a caller may commit: each round is tried, or ended as a whole and without a service that
/// refused; and one of them is tried.
fn is_tried(row: &TransactionRow) -> bool {
    let mut any = false;
    for round in 1..=row.rounds {
        let here = || row.branches.iter().filter(|branch| branch.round == round);
        let tried = here().all(|branch| branch.state == BranchState::Tried);
        let over =
            |branch: &Branch| matches!(branch.state, BranchState::Refused | BranchState::Cancelled);
        let refused = here().any(|branch| branch.state == BranchState::Refused);
        let service = here().any(|branch| matches!(branch.party, Party::Service(_)));
        if !tried && !here().all(over) || refused && service {
            return false;
        }
        any |= tried;
    }
    any
}

/// Whether a path leads from one state to the other.
fn admits(from: TransactionState, to: TransactionState) -> bool {
    from.nexts().iter().any(|next| *next == to || admits(*next, to))
}

fn index_of(row: &TransactionRow, passage: &BranchMove) -> Option<usize> {
    let named = (&passage.party, passage.round);
    row.branches.iter().position(|branch| (&branch.party, branch.round) == named)
}

/// One move, by the comparisons and the guards of the tables.
fn carry_out(row: &mut TransactionRow, moved: &TransactionMove, at: Timestamp) -> Done<MoveResult> {
    if !fits(row, moved) {
        return Ok(MoveResult::Changed);
    }
    for passage in &moved.branches {
        let index = index_of(row, passage).expect("it fits");
        let branch = &mut row.branches[index];
        let leads = branch.state == passage.to
            || branch.state.nexts().contains(&passage.to)
            || (branch.state, passage.to) == (BranchState::Trying, BranchState::Confirmed);
        if branch.state.is_terminal() || !leads {
            return refused("the branch's guard");
        }
        branch.state = passage.to;
        branch.code = passage.code.or(branch.code);
        branch.leg = passage.leg.or(branch.leg);
        branch.participant_code =
            passage.participant_code.clone().or(branch.participant_code.take());
        branch.log_sequence = passage.log_sequence.or(branch.log_sequence);
    }
    if row.state.is_terminal() || moved.to != row.state && !admits(row.state, moved.to) {
        return refused("the transaction's guard");
    }
    let is_open =
        |branch: &Branch| matches!(branch.party, Party::Store(_)) && !branch.state.is_terminal();
    let ends_stores = moved.stores_ended && !row.stores_ended;
    if ends_stores && row.branches.iter().any(is_open) {
        return refused("the guard of the stores' end");
    }
    if let Some(note) = &moved.note {
        row.history.push(passage(row.state, at, &note.by, Some(&note.text)));
    }
    let was_open = row.state.verdict().is_none();
    let decides = was_open && moved.to.verdict().is_some();
    row.sealed |= decides || moved.seal;
    if !row.sealed && moved.to.is_terminal() {
        return refused("the check of the seal");
    }
    row.stores_ended |= moved.stores_ended;
    let is_decided = moved.to.verdict().is_some();
    if row.stores_ended && !(row.sealed && is_decided) {
        return refused("the check of the stores' end");
    }
    if decides {
        (row.decided_by, row.code) = (Some(moved.by.clone()), moved.code);
    }
    let mut pass = |state| row.history.push(passage(state, at, &moved.by, moved.detail.as_ref()));
    if decides && moved.to.is_terminal() {
        pass(match moved.to {
            TransactionState::Done => TransactionState::Committed,
            _ => TransactionState::Aborted,
        });
    }
    if moved.to != row.state {
        pass(moved.to);
    }
    row.detail = moved.detail.clone().or(row.detail.take());
    (row.state, row.updated_at) = (moved.to, at);
    Ok(MoveResult::Moved)
}
