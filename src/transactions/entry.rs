//! A transaction in the memory of its worker: the row as it was last read or written, the answers
//! that are not recorded yet, and the callers that wait.

use std::collections::{BTreeMap, BTreeSet};

use domain::code::Code;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::abandon::{Abandoning, Judged};
use super::apply;
use super::ask;
use super::branches::Heard;
use super::handle::{TransactionAnswer, TransactionRefusal, TransactionReply};
use super::step::{
    self, Known, Passage, Question, TransactionStep, Word, abort, commit, decide, is_booked,
    is_round_tried, is_taken_back, is_tried, must_note_ended, unasked,
};
use crate::postgres::transactions::{BranchMove, TransactionMove};
use crate::transaction::{Decider, Party, TransactionRow, TransactionState, TransactionVerdict};

/// The decision that a caller wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To commit exactly these rounds.
    Commit {
        /// `None`: those that were accepted.
        rounds: Option<u8>,
    },
    /// To abort.
    Abort {
        /// The author.
        by: String,
        /// For people.
        reason: Option<String>,
    },
}

/// The thing that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// The round is tried, or refused, or everything has ended.
    Round(u8),
    /// The commit, booked by both stores.
    Commit,
    /// The abort, given back by both stores.
    Abort,
    /// Nothing changes without the caller.
    Rest,
}

/// A caller that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    /// The awaited thing.
    pub(super) want: Want,
    /// Until when, monotonic ns.
    pub(super) until_ns: u64,
    /// Until when it waits for the seal of a decision, monotonic ns.
    pub(super) late_ns: u64,
    /// It was done before.
    pub(super) replayed: bool,
    /// Takes the one answer.
    pub(super) reply: oneshot::Sender<TransactionAnswer>,
}

/// The tries of one question without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tries {
    /// In a row.
    pub(super) count: u32,
    /// The next one, monotonic ns.
    pub(super) due_ns: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Entry {
    /// As it was last read or written.
    pub(super) row: TransactionRow,
    /// See [`Known`].
    pub(super) known: Known,
    /// Answers that are not recorded, oldest first.
    pub(super) heard: Vec<(Question, Heard)>,
    /// How many of them are in the commit under way.
    pub(super) taken: usize,
    /// The row must be read before anything is decided or asked.
    pub(super) stale: bool,
    /// A commit with a move of it is under way.
    pub(super) recording: bool,
    /// The questions under way, one a party and round.
    pub(super) asking: BTreeSet<(Party, u8)>,
    /// Questions without an answer.
    pub(super) tries: BTreeMap<Question, Tries>,
    /// The last failure of a question, for people.
    pub(super) trouble: Option<(Option<Party>, String)>,
    /// The decision that its caller wants.
    pub(super) wish: Option<Wish>,
    /// Operators want to end a branch.
    pub(super) abandoning: Option<Abandoning>,
    /// Operators want the last participant to refuse unless it has decided. It is asked so once.
    pub(super) resolving: bool,
    /// The foreign session that holds the row.
    pub(super) held: Option<String>,
    /// PostgreSQL refused a commit with it: it has commits of its own.
    pub(super) alone: bool,
    /// Those commits in a row, and the next one.
    pub(super) records: Tries,
    /// Since when this process knows it, monotonic ns.
    pub(super) since_ns: u64,
    /// The callers that wait.
    pub(super) waiters: Vec<Waiter>,
}

impl Entry {
    pub(super) fn new(row: TransactionRow, now_ns: u64) -> Entry {
        Entry {
            row,
            known: Known::default(),
            heard: Vec::new(),
            taken: 0,
            stale: false,
            recording: false,
            asking: BTreeSet::new(),
            tries: BTreeMap::new(),
            trouble: None,
            wish: None,
            abandoning: None,
            resolving: false,
            held: None,
            alone: false,
            records: Tries { count: 0, due_ns: 0 },
            since_ns: now_ns,
            waiters: Vec::new(),
        }
    }

    /// The move that is to be recorded now, `None` if there is none. While the service is halted,
    /// only answers are recorded, the end that follows from them, and the seal: it proves a
    /// decision that stands, and moves nothing.
    pub(super) fn proposal(
        &self,
        now: Timestamp,
        halted: bool,
        fuse: bool,
    ) -> Option<TransactionMove> {
        let (mut draft, known, branches) = self.draft();
        let is_answer = !branches.is_empty();
        let mut moved = apply::unmoved(&draft, branches);
        if is_answer && !fuse {
            moved.stores_ended = must_note_ended(&draft, known);
            return Some(moved);
        }
        // Behind the answers: the branch's own one counts more than the word of operators.
        let operators = if halted { None } else { self.end_abandoned(&mut draft, &mut moved) };
        let applied = moved.branches.len();
        for next in self.nexts(&draft, known, now) {
            let is_record = match &next {
                TransactionStep::Pass(passage) => passage.to.is_terminal(),
                TransactionStep::Seal => true,
                _ => false,
            };
            if halted && !is_record {
                continue;
            }
            match next {
                TransactionStep::Ask(_) | TransactionStep::Wait(_) => {}
                TransactionStep::Seal => moved.seal = true,
                TransactionStep::Close(branches) => {
                    moved.branches.extend(branches.into_iter().map(|(p, r)| apply::closed(p, r)));
                }
                TransactionStep::Pass(passage) => {
                    if passage.to == TransactionState::Aborted {
                        let unasked = unasked(&draft).into_iter();
                        moved.branches.extend(unasked.map(|(p, r)| apply::closed(p, r)));
                    }
                    let is_decision = passage.to.verdict() != draft.state.verdict();
                    moved = apply::with(moved, passage);
                    if let (Some(operators), true) = (operators, is_decision) {
                        moved.by.clone_from(operators);
                    }
                }
            }
        }
        for passage in &moved.branches[applied..] {
            apply::branch(&mut draft, passage);
        }
        draft.sealed |= moved.seal;
        if !moved.to.is_terminal() {
            draft.state = moved.to;
        }
        moved.stores_ended = must_note_ended(&draft, known);
        let is_empty = moved.branches.is_empty()
            && moved.from == moved.to
            && !moved.seal
            && !moved.stores_ended;
        (!is_empty).then_some(moved)
    }

    /// The row with the answers that are not recorded, the knowledge then, and their passages.
    fn draft(&self) -> (TransactionRow, Known, Vec<BranchMove>) {
        let (mut draft, mut known, mut branches) = (self.row.clone(), self.known, Vec::new());
        for (question, heard) in &self.heard {
            for passage in ask::moves(&draft, &mut known, question, heard) {
                apply::branch(&mut draft, &passage);
                branches.push(passage);
            }
        }
        (draft, known, branches)
    }

    /// Whether both stores have booked, by their answers. Each has recorded its own; the row, which
    /// shows them, follows. The decision is durable.
    fn is_booked_ahead(&self) -> bool {
        if self.row.state != TransactionState::Committed || self.heard.is_empty() {
            return false;
        }
        let (draft, known, _) = self.draft();
        is_booked(&draft, known)
    }

    /// Whether one store has tried or booked, and the other one is just being asked to: one commit
    /// has the answers of both.
    pub(super) fn is_half_heard(&self) -> bool {
        let is_store = |party: &Party| matches!(party, Party::Store(_));
        let word = match self.row.state {
            TransactionState::Open => Word::Try,
            TransactionState::Committed => Word::Confirm,
            _ => return false,
        };
        let is_first = |(question, heard): &(Question, Heard)| {
            question.word == word
                && is_store(&question.party)
                && matches!(heard, Heard::Done { .. })
        };
        !self.heard.is_empty()
            && self.heard.iter().all(is_first)
            && self.asking.iter().any(|(party, _)| is_store(party))
    }

    /// Adds the branch that operators end to a move, if it can be ended now. Returns the operators.
    fn end_abandoned(
        &self,
        draft: &mut TransactionRow,
        moved: &mut TransactionMove,
    ) -> Option<&String> {
        let abandon = &self.abandoning.as_ref()?.abandon;
        let place = (Party::Service(abandon.participant.clone()), abandon.round);
        // The answer of a last participant that is just being asked counts more. None is asked
        // during the commit of this move, so no answer of its own can come behind it.
        if draft.state == TransactionState::Deciding && self.asking.contains(&place) {
            return None;
        }
        let Ok(Judged::Move(passage)) = abandon.judge(draft) else { return None };
        apply::branch(draft, &passage);
        moved.branches.push(passage);
        moved.note = Some(abandon.note());
        Some(&abandon.by)
    }

    /// The next steps, with the decision that the caller wants.
    pub(super) fn nexts(
        &self,
        row: &TransactionRow,
        known: Known,
        now: Timestamp,
    ) -> Vec<TransactionStep> {
        let mut nexts = decide(row, known, now);
        if self.resolving {
            for next in &mut nexts {
                // Its cancel records a refusal, unless it has decided. The commit behind it tells.
                if let TransactionStep::Ask(question @ Question { word: Word::Commit, .. }) = next {
                    question.word = Word::Cancel;
                }
            }
        }
        let is_ending = |next: &TransactionStep| matches!(next, TransactionStep::Pass(passage) if passage.to == TransactionState::Aborted);
        if row.state != TransactionState::Open || nexts.iter().any(is_ending) {
            return nexts;
        }
        match self.wished(row) {
            Some(passage) => vec![TransactionStep::Pass(passage)],
            None => nexts,
        }
    }

    fn wished(&self, row: &TransactionRow) -> Option<Passage> {
        match self.wish.as_ref()? {
            Wish::Abort { by, reason } => Some(abort(by, Code::TransactionAborted, reason.clone())),
            Wish::Commit { rounds } => may_commit(row, *rounds).ok().map(|()| commit("caller")),
        }
    }

    /// Drops a wish that has been decided, or that no longer can be.
    pub(super) fn settle_wish(&mut self) {
        let is_over = match &self.wish {
            None => return,
            Some(Wish::Abort { .. }) => self.row.state != TransactionState::Open,
            Some(Wish::Commit { rounds }) => may_commit(&self.row, *rounds).is_err(),
        };
        if is_over {
            self.wish = None;
        }
    }

    /// Answers the operators that end a branch, once it is ended or cannot be.
    pub(super) fn settle_abandoning(&mut self, now_ns: u64) {
        let unsettled = self.stale || self.recording;
        let answer = match &self.abandoning {
            None => return,
            // A row that is being changed is no answer before its time.
            Some(word) if unsettled && now_ns < word.until_ns => return,
            Some(_) if unsettled => no_end(true),
            Some(word) => match word.abandon.judge(&self.row) {
                Ok(Judged::Already) => {
                    let row = self.row.clone();
                    Ok(TransactionReply { row, replayed: false, settled: true })
                }
                Ok(Judged::Move(_)) if now_ns < word.until_ns => return,
                Ok(Judged::Move(_)) => no_end(false),
                Err(refusal) => Err(refusal),
            },
        };
        if let Some(word) = self.abandoning.take() {
            // An operator that has hung up is no error.
            drop(word.reply.send(answer));
        }
    }

    /// Answers every caller that need not wait longer. Until the seal is written, none is told a
    /// decision that a crash could take back.
    pub(super) fn answer_waiters(&mut self, now_ns: u64) {
        if self.waiters.is_empty() {
            return;
        }
        let booked = is_booked(&self.row, self.known) || self.is_booked_ahead();
        let (row, known, wish) = (&self.row, self.known, self.wish.as_ref());
        let (unsettled, unproven) = (self.stale || self.recording, is_unproven(row));
        for waiter in std::mem::take(&mut self.waiters) {
            if unproven {
                match waiter.late_ns <= now_ns {
                    true => drop(waiter.reply.send(no_proof())),
                    false => self.waiters.push(waiter),
                }
                continue;
            }
            let is_late = waiter.until_ns <= now_ns;
            // A row that is being changed is no answer before its time.
            let ends = (wish, booked, is_late);
            let found = (!unsettled || is_late).then(|| answer(&waiter, row, known, ends));
            match found.flatten() {
                // A caller that has hung up is no error.
                Some(answer) => drop(waiter.reply.send(answer)),
                None => self.waiters.push(waiter),
            }
        }
    }
}

/// Whether a crash of PostgreSQL may still take back the decision of this row: the caller's session
/// need not have waited for the disk.
pub(super) fn is_unproven(row: &TransactionRow) -> bool {
    row.state == TransactionState::Committed && !row.sealed
}

/// The answer instead of a row with [`is_unproven`].
pub(super) fn no_proof() -> TransactionAnswer {
    let detail = "The decision is not yet proven durable. Ask again.";
    let refusal = TransactionRefusal::because(Code::SystemError, detail);
    Err(TransactionRefusal { unknown: true, ..refusal })
}

/// The end of a branch is not recorded. `unknown`: it may yet be.
fn no_end(unknown: bool) -> TransactionAnswer {
    let detail = "The end of the branch is not recorded yet. Ask again.";
    let refusal = TransactionRefusal::because(Code::SystemError, detail);
    Err(TransactionRefusal { unknown, ..refusal })
}

/// Checks that the caller may commit these rounds of an open transaction.
///
/// # Errors
/// TRANSACTION_UNTRIED.
pub(super) fn may_commit(
    row: &TransactionRow,
    rounds: Option<u8>,
) -> Result<(), TransactionRefusal> {
    let refusal = |detail: String| TransactionRefusal {
        row: Some(Box::new(row.clone())),
        ..TransactionRefusal::because(Code::TransactionUntried, detail)
    };
    if row.state != TransactionState::Open || row.decider != Decider::Caller {
        let decider = row.decider.name();
        return Err(refusal(format!("The decision is not the caller's but the {decider}'s.")));
    }
    if rounds.is_some_and(|rounds| rounds != row.rounds) {
        return Err(refusal(format!("{} rounds are accepted.", row.rounds)));
    }
    match is_tried(row) {
        true => Ok(()),
        false => Err(refusal("A round is not tried yet.".to_owned())),
    }
}

/// The refusal that an aborted transaction, or a refused round, has for its callers.
fn refusal(row: &TransactionRow, code: Option<Code>, detail: Option<String>) -> TransactionAnswer {
    Err(TransactionRefusal {
        code: code.unwrap_or(Code::TransactionAborted),
        detail,
        row: Some(Box::new(row.clone())),
        unknown: false,
    })
}

/// The answer to a waiting caller, `None`: not yet. `booked`: both stores have carried the decision
/// out. `is_late`: it waits no longer.
pub(super) fn answer(
    waiter: &Waiter,
    row: &TransactionRow,
    known: Known,
    (wish, booked, is_late): (Option<&Wish>, bool, bool),
) -> Option<TransactionAnswer> {
    let reply = |settled| {
        let (row, replayed) = (row.clone(), waiter.replayed);
        Some(Ok(TransactionReply { row, replayed, settled }))
    };
    let otherwise = || if is_late { reply(false) } else { None };
    let verdict = row.state.verdict();
    match (waiter.want, verdict) {
        (Want::Round(_) | Want::Commit, Some(TransactionVerdict::Abort)) => {
            let of_abort = || refusal(row, row.code, row.detail.clone());
            (booked || is_late).then(of_abort)
        }
        (Want::Abort, Some(TransactionVerdict::Commit)) => {
            let detail = Some("It is committed.".to_owned());
            Some(refusal(row, Some(Code::TransactionDecided), detail))
        }
        (_, Some(_)) if booked => reply(true),
        (_, Some(_)) => otherwise(),
        (Want::Round(round), None) => match refused_round(row, round) {
            Some((code, detail)) => {
                (is_taken_back(row, known) || is_late).then(|| refusal(row, code, Some(detail)))
            }
            None if rests(row, round) => reply(true),
            None => otherwise(),
        },
        (Want::Rest, None) if rests(row, row.rounds) && is_taken_back(row, known) => reply(true),
        // The wish has ended without its decision: another round has come.
        (Want::Commit, None) if wish.is_none() && row.state == TransactionState::Open => {
            let untried = || refusal(row, Some(Code::TransactionUntried), None);
            Some(may_commit(row, None).err().map_or_else(untried, Err))
        }
        (Want::Rest | Want::Commit | Want::Abort, None) => otherwise(),
    }
}

/// Whether nothing goes on without the caller: this round is tried or refused, and the decision is
/// the caller's.
fn rests(row: &TransactionRow, round: u8) -> bool {
    let last = row.branches.iter().any(|branch| branch.last);
    let waits = match row.decider {
        Decider::Caller => true,
        Decider::Last => !last,
        Decider::Coordinator => false,
    };
    let over = is_round_tried(row, round) || super::rounds::is_used_up(row, round);
    row.state == TransactionState::Open && waits && over
}

/// The refusal of a round that has used up its number.
fn refused_round(row: &TransactionRow, round: u8) -> Option<(Option<Code>, String)> {
    let refused = |branch: &&crate::transaction::Branch| {
        branch.round == round && branch.state == crate::transaction::BranchState::Refused
    };
    let branch = row.branches.iter().find(refused)?;
    let passage = step::refused(branch);
    Some((branch.code, passage.detail.unwrap_or_default()))
}

#[cfg(test)]
mod tests;
