//! The one decision about a transaction: from its row to the next steps. It is pure.
//!
//! ```text
//!   try of a round:  FUNDING --recorded--> SPOT --recorded--> services --recorded--> decision
//!   confirm:         FUNDING and SPOT --recorded--> services --recorded--> final
//!   cancel:          FUNDING --recorded--> SPOT --recorded--> services --recorded--> final
//! ```
//!
//! Nothing is asked before the answers of the group before it are in the row. So a branch of a
//! group that was not reached has never been asked. Both stores are one group in a confirm: it
//! stands behind the decision, and neither can refuse it or depends on the other.

use jiff::Timestamp;

use domain::code::Code;
use domain::transfer::Participant;

use super::rounds::is_used_up;
use crate::transaction::{
    Branch, BranchState, Decider, Party, TransactionRow, TransactionState, TransactionVerdict,
};

/// The author of a decision by the service itself.
pub const BY_COORDINATOR: &str = "coordinator";
/// The author of an abort because of the age.
pub const BY_AGE: &str = "age";

/// The answers that no branch state can hold. They are kept in memory: after a start the same
/// questions are asked again, and have the same answers. Once both stores have ended, the row says
/// so ([`TransactionRow::stores_ended`]). Then neither is asked again: the watermark may pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// A bit for each refused round with its holds of Funding set back.
    set_back: u16,
    /// Funding has ended every hold.
    released: bool,
}

impl Known {
    /// The holds of this refused round are set back.
    pub fn note_set_back(&mut self, round: u8) {
        self.set_back |= 1 << round;
    }

    /// Every hold of Funding is released, or settled.
    pub fn note_released(&mut self) {
        self.released = true;
    }

    fn is_set_back(self, round: u8) -> bool {
        self.set_back & (1 << round) != 0
    }
}

/// The word of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Word {
    /// Set apart all that this round needs.
    Try,
    /// Funding alone: the holds of a refused round go back to the rounds before.
    SetBack,
    /// Book.
    Confirm,
    /// Give back.
    Cancel,
    /// The last participant alone: decide.
    Commit,
}

impl Word {
    /// The name in logs and to services.
    pub fn name(self) -> &'static str {
        match self {
            Word::Try => "try",
            Word::SetBack => "set back",
            Word::Confirm => "confirm",
            Word::Cancel => "cancel",
            Word::Commit => "commit",
        }
    }
}

/// A question to one party.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The party.
    pub party: Party,
    /// The round; the last one, if a store ends all rounds at once.
    pub round: u8,
    /// The word.
    pub word: Word,
}

/// A passage of the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The next state.
    pub to: TransactionState,
    /// The author, if it is a decision.
    pub by: String,
    /// Of an abort.
    pub code: Option<Code>,
    /// For people.
    pub detail: Option<String>,
}

/// Something that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepWait {
    /// A further round or the decision; at the latest the age.
    Caller,
    /// A person: the row contradicts itself.
    Person,
}

/// A next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionStep {
    /// Ask, unless it is being asked.
    Ask(Question),
    /// Record that these branches are cancelled: they have never been asked.
    Close(Vec<(Party, u8)>),
    /// Record the passage.
    Pass(Passage),
    /// Record a commit behind the caller's, before anything is asked.
    Seal,
    /// Nothing to do.
    Wait(StepWait),
}

/// The next steps of a transaction, none if it is final. All of them may be done at once.
pub fn decide(row: &TransactionRow, known: Known, now: Timestamp) -> Vec<TransactionStep> {
    match row.state {
        TransactionState::Open => open(row, known, now),
        TransactionState::Deciding => deciding(row),
        TransactionState::Committed => committed(row, known),
        TransactionState::Aborted => aborted(row, known),
        TransactionState::Done | TransactionState::Cancelled => Vec::new(),
    }
}

/// The abort of an undecided transaction.
pub fn abort(by: &str, code: Code, detail: Option<String>) -> Passage {
    Passage { to: TransactionState::Aborted, by: by.to_owned(), code: Some(code), detail }
}

/// The commit of an undecided transaction.
pub fn commit(by: &str) -> Passage {
    let to = TransactionState::Committed;
    Passage { to, by: by.to_owned(), code: None, detail: None }
}

/// Whether every branch of every round that counts is tried, and there is one: the one condition of
/// a commit, beside the answer of the last participant.
pub fn is_tried(row: &TransactionRow) -> bool {
    // Story: with its only round refused, nothing was left that is not tried.
    if refusal(row).is_some() || !row.branches.iter().any(|branch| counts(row, branch)) {
        return false;
    }
    let mut counting = row.branches.iter().filter(|branch| counts(row, branch) && !branch.last);
    counting.all(|branch| branch.state == BranchState::Tried)
}

/// Whether this round is tried.
pub fn is_round_tried(row: &TransactionRow, round: u8) -> bool {
    let mut branches = row.branches.iter().filter(|branch| branch.round == round && !branch.last);
    branches.all(|branch| branch.state == BranchState::Tried)
}

/// Whether both stores have carried out the decision: they have booked or given back.
pub fn is_booked(row: &TransactionRow, known: Known) -> bool {
    let stores = |branch: &&Branch| matches!(branch.party, Party::Store(_));
    let ended = row.branches.iter().filter(stores).all(|branch| branch.state.is_terminal());
    match row.state {
        TransactionState::Done | TransactionState::Cancelled => true,
        TransactionState::Committed | TransactionState::Aborted if row.stores_ended => true,
        TransactionState::Committed => ended && !owes_rest(row, known),
        TransactionState::Aborted => ended && !owes_release(row, known),
        TransactionState::Open | TransactionState::Deciding => false,
    }
}

/// Whether the row is to say now that both stores have ended. Then the watermark may pass it, while
/// services still owe their answers.
pub fn must_note_ended(row: &TransactionRow, known: Known) -> bool {
    // The mark must not be more durable than the decision.
    let is_proven = row.sealed || row.state != TransactionState::Committed;
    !row.stores_ended && is_proven && is_booked(row, known)
}

/// The branches that have never been asked, judged by the row before an abort.
pub fn unasked(row: &TransactionRow) -> Vec<(Party, u8)> {
    let trying = row.branches.iter().filter(|branch| branch.state == BranchState::Trying);
    let unasked = trying.filter(|branch| !may_be_asked(row, branch));
    unasked.map(|branch| (branch.party.clone(), branch.round)).collect()
}

/// Whether a trying branch may have been asked: the groups before it have tried.
fn may_be_asked(row: &TransactionRow, branch: &Branch) -> bool {
    if branch.last {
        return row.state == TransactionState::Deciding;
    }
    let before: &[Participant] = match branch.party {
        Party::Store(Participant::Funding) => &[],
        Party::Store(Participant::Spot) => &[Participant::Funding],
        Party::Service(_) => &[Participant::Funding, Participant::Spot],
    };
    before.iter().all(|store| {
        let earlier = store_branch(row, *store, branch.round);
        earlier.is_none_or(|earlier| earlier.state == BranchState::Tried)
    })
}

fn store_branch(row: &TransactionRow, store: Participant, round: u8) -> Option<&Branch> {
    let party = Party::Store(store);
    row.branches.iter().find(|branch| (&branch.party, branch.round) == (&party, round))
}

fn counts(row: &TransactionRow, branch: &Branch) -> bool {
    !is_used_up(row, branch.round)
}

/// The first refusal that ends the whole transaction. With the caller deciding, a refused round of
/// legs alone only uses up its number.
fn refusal(row: &TransactionRow) -> Option<&Branch> {
    let has_services = |round| {
        let mut here = row.branches.iter().filter(|branch| branch.round == round);
        here.any(|branch| matches!(branch.party, Party::Service(_)))
    };
    let ends = |branch: &&Branch| row.decider != Decider::Caller || has_services(branch.round);
    row.branches.iter().filter(|branch| branch.state == BranchState::Refused).find(ends)
}

/// The abort that follows from a refusal.
pub(super) fn refused(branch: &Branch) -> Passage {
    let code = branch.code.unwrap_or(Code::ParticipantRefused);
    let name = branch.party.name();
    let detail = match (&branch.participant_code, branch.leg) {
        (Some(code), _) => format!("{name} refused round {}: {code}", branch.round),
        (None, Some(leg)) => format!("{name} refused leg {leg} of round {}", branch.round),
        (None, None) => format!("{name} refused round {}", branch.round),
    };
    abort(name, code, Some(detail))
}

fn open(row: &TransactionRow, known: Known, now: Timestamp) -> Vec<TransactionStep> {
    if let Some(branch) = refusal(row) {
        return vec![TransactionStep::Pass(refused(branch))];
    }
    if row.expires_at < now {
        return vec![TransactionStep::Pass(abort(BY_AGE, Code::TransactionExpired, None))];
    }
    let back = take_back(row, known);
    if !back.is_empty() {
        return back;
    }
    let trying = row.branches.iter().filter(|branch| {
        branch.state == BranchState::Trying && !branch.last && may_be_asked(row, branch)
    });
    let asks: Vec<TransactionStep> = trying.map(|branch| ask(branch, Word::Try)).collect();
    if !asks.is_empty() {
        return asks;
    }
    let last = row.branches.iter().any(|branch| branch.last && counts(row, branch));
    match row.decider {
        Decider::Coordinator if is_tried(row) => {
            vec![TransactionStep::Pass(commit(BY_COORDINATOR))]
        }
        Decider::Last if is_tried(row) && last => {
            let (to, by) = (TransactionState::Deciding, BY_COORDINATOR.to_owned());
            vec![TransactionStep::Pass(Passage { to, by, code: None, detail: None })]
        }
        _ => vec![TransactionStep::Wait(StepWait::Caller)],
    }
}

/// The rest of rounds that were refused: branches without a question are closed, and Funding sets
/// its holds back.
fn take_back(row: &TransactionRow, known: Known) -> Vec<TransactionStep> {
    if row.stores_ended {
        return Vec::new();
    }
    let mut nexts = Vec::new();
    let of_used_up = || row.branches.iter().filter(|branch| !counts(row, branch));
    let closing = of_used_up().filter(|branch| branch.state == BranchState::Trying);
    let closing: Vec<_> = closing.map(|branch| (branch.party.clone(), branch.round)).collect();
    if !closing.is_empty() {
        nexts.push(TransactionStep::Close(closing));
    }
    let funding = |branch: &&Branch| branch.party == Party::Store(Participant::Funding);
    let due = |branch: &&Branch| match branch.state {
        BranchState::Tried => true,
        BranchState::Refused => !known.is_set_back(branch.round),
        _ => false,
    };
    let back = of_used_up().filter(funding).filter(due);
    nexts.extend(back.map(|branch| ask(branch, Word::SetBack)));
    nexts
}

/// Whether nothing is left to do for the refused rounds.
pub fn is_taken_back(row: &TransactionRow, known: Known) -> bool {
    take_back(row, known).is_empty()
}

fn deciding(row: &TransactionRow) -> Vec<TransactionStep> {
    let Some(last) = row.branches.iter().find(|branch| branch.last && counts(row, branch)) else {
        return match refusal(row) {
            Some(branch) => vec![TransactionStep::Pass(refused(branch))],
            None => vec![TransactionStep::Wait(StepWait::Person)],
        };
    };
    match last.state {
        BranchState::Trying => vec![ask(last, Word::Commit)],
        BranchState::Confirmed => vec![TransactionStep::Pass(commit(last.party.name()))],
        BranchState::Tried | BranchState::Refused | BranchState::Cancelled => {
            vec![TransactionStep::Wait(StepWait::Person)]
        }
    }
}

fn committed(row: &TransactionRow, known: Known) -> Vec<TransactionStep> {
    if !row.sealed {
        return vec![TransactionStep::Seal];
    }
    let back = take_back(row, known);
    if !back.is_empty() {
        return back;
    }
    // Booking an untried round would make money. No decision is made like that.
    let is_untried = |branch: &Branch| {
        let is_store = matches!(branch.party, Party::Store(_));
        is_store && branch.state == BranchState::Trying && counts(row, branch)
    };
    if row.branches.iter().any(is_untried) {
        return vec![TransactionStep::Wait(StepWait::Person)];
    }
    if owes_rest(row, known) {
        return vec![ask_store(row, Participant::Funding, Word::Confirm)];
    }
    let is_open = |branch: &&Branch| !branch.state.is_terminal();
    let asks = by_group(row, is_open, Word::Confirm);
    if !asks.is_empty() {
        return asks;
    }
    if row.branches.iter().any(|branch| !branch.state.is_terminal()) {
        return vec![TransactionStep::Wait(StepWait::Person)];
    }
    vec![final_passage(TransactionState::Done)]
}

fn aborted(row: &TransactionRow, known: Known) -> Vec<TransactionStep> {
    if owes_release(row, known) {
        return vec![ask_store(row, Participant::Funding, Word::Cancel)];
    }
    let is_open = |branch: &&Branch| !branch.state.is_terminal();
    let asks = by_group(row, is_open, Word::Cancel);
    if !asks.is_empty() {
        return asks;
    }
    vec![final_passage(TransactionState::Cancelled)]
}

/// Whether Funding may have something apart that nothing but a release gives back.
fn owes_release(row: &TransactionRow, known: Known) -> bool {
    let funding = Party::Store(Participant::Funding);
    let mut branches = row.branches.iter().filter(|branch| branch.party == funding);
    if row.stores_ended {
        return false;
    }
    branches.any(|branch| match branch.state {
        BranchState::Trying | BranchState::Tried => true,
        // A hold that was set back is there, with 0.
        BranchState::Refused | BranchState::Cancelled => !known.released,
        BranchState::Confirmed => false,
    })
}

/// The same of a committed transaction with no round of Funding left to confirm: a confirm would
/// have ended the holds of refused rounds too.
fn owes_rest(row: &TransactionRow, known: Known) -> bool {
    let funding = Party::Store(Participant::Funding);
    let mut branches = row.branches.iter().filter(|branch| branch.party == funding).peekable();
    let over =
        |branch: &Branch| matches!(branch.state, BranchState::Refused | BranchState::Cancelled);
    let has_rounds = branches.peek().is_some();
    !row.stores_ended && !known.released && has_rounds && branches.all(over)
}

/// The questions of the first group that has open branches.
fn by_group(
    row: &TransactionRow,
    is_open: impl Fn(&&Branch) -> bool,
    word: Word,
) -> Vec<TransactionStep> {
    let is_due = |store: &Participant| {
        let party = Party::Store(*store);
        row.branches.iter().filter(&is_open).any(|branch| branch.party == party)
    };
    let due = [Participant::Funding, Participant::Spot].into_iter().filter(is_due);
    let most = if word == Word::Confirm { 2 } else { 1 };
    let stores: Vec<_> = due.take(most).map(|store| ask_store(row, store, word)).collect();
    if !stores.is_empty() {
        return stores;
    }
    // Only a tried branch is confirmed.
    let can = |branch: &&Branch| word == Word::Cancel || branch.state == BranchState::Tried;
    row.branches.iter().filter(is_open).filter(can).map(|branch| ask(branch, word)).collect()
}

fn ask(branch: &Branch, word: Word) -> TransactionStep {
    TransactionStep::Ask(Question { party: branch.party.clone(), round: branch.round, word })
}

/// A question about all rounds of a store.
fn ask_store(row: &TransactionRow, store: Participant, word: Word) -> TransactionStep {
    TransactionStep::Ask(Question { party: Party::Store(store), round: row.rounds, word })
}

fn final_passage(to: TransactionState) -> TransactionStep {
    let by = BY_COORDINATOR.to_owned();
    TransactionStep::Pass(Passage { to, by, code: None, detail: None })
}

/// Whether the row is in the state in which an answer to this word has a meaning. A late answer has
/// none: the question behind it covers it.
pub fn is_awaited(row: &TransactionRow, word: Word) -> bool {
    match word {
        Word::Try => row.state == TransactionState::Open,
        Word::SetBack => row.state.verdict() != Some(TransactionVerdict::Abort),
        Word::Commit => row.state == TransactionState::Deciding,
        Word::Confirm => row.state == TransactionState::Committed,
        Word::Cancel => row.state == TransactionState::Aborted,
    }
}

#[cfg(test)]
mod tests;
