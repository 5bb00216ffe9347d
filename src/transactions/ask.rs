//! One question: its words from the row, the asking, and the branch states that follow from the
//! answer.

use domain::code::Code;
use domain::posting::Posting;
use domain::transfer::Participant;
use futures_util::future::join_all;

use super::branches::{Branches, Heard, ServiceWord, SpotWord};
use super::rounds::{self, HoldWord};
use super::step::{Known, Question, Word, is_awaited};
use crate::postgres::transactions::BranchMove;
use crate::transaction::{Branch, BranchState, Party, TransactionRow};

/// The words of a question.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Words {
    /// The rounds themselves refuse it: no party is asked.
    Refused(Code),
    /// Holds of Funding.
    Holds(Vec<HoldWord>),
    /// Spot, with the number of legs of earlier rounds.
    Spot(Box<SpotWord>, u8),
    /// A service.
    Service(ServiceWord),
}

/// The words of a question about this row.
pub(super) fn words(row: &TransactionRow, question: &Question) -> Words {
    let &Question { ref party, round, word } = question;
    match party {
        Party::Store(Participant::Funding) => match word {
            Word::Try => rounds::set(row, round).map_or_else(Words::Refused, Words::Holds),
            Word::SetBack => Words::Holds(rounds::set_back(row, round)),
            Word::Confirm | Word::Commit => Words::Holds(rounds::settle(row)),
            Word::Cancel => Words::Holds(rounds::release(row)),
        },
        Party::Store(Participant::Spot) => spot(row, round, word),
        Party::Service(name) => {
            let same = |branch: &&Branch| (&branch.party, branch.round) == (party, round);
            let branch = row.branches.iter().find(same).expect("a question is about a branch");
            Words::Service(ServiceWord {
                name: name.clone(),
                word,
                transaction: row.id,
                tx_id: row.name.tx_id.clone(),
                branch_id: row.branch_id(branch),
                round,
                payload: branch.payload.clone(),
            })
        }
    }
}

fn spot(row: &TransactionRow, round: u8, word: Word) -> Words {
    let (legs, earlier, round) = match word {
        Word::Try | Word::SetBack => match rounds::spot(row, round) {
            Ok((legs, earlier)) => (legs, earlier, round),
            Err(code) => return Words::Refused(code),
        },
        Word::Confirm | Word::Commit => {
            let (legs, round) = rounds::spot_end(row);
            (legs, 0, round)
        }
        Word::Cancel => (Posting::new(), 0, rounds::spot_end(row).1),
    };
    let (transaction, order_number) = (row.id, row.order_number);
    let tx_id = row.name.tx_id.clone();
    let spot = SpotWord { word, transaction, order_number, round, tx_id, legs };
    Words::Spot(Box::new(spot), earlier)
}

/// Asks, and returns the answer of all words together.
pub(super) async fn ask<B: Branches>(branches: &B, words: Words, word: Word) -> Heard {
    match words {
        Words::Refused(code) => Heard::refused(code),
        Words::Holds(holds) => {
            let orders = holds.iter().map(|hold| branches.hold(hold.order.clone()));
            let mut heard = join_all(orders).await;
            ask_alone(branches, &holds, &mut heard).await;
            together(word, heard, &holds)
        }
        Words::Spot(spot, earlier) => match branches.spot(*spot).await {
            Heard::Refused { code, leg, participant_code } if word == Word::Try => {
                let leg = leg.map(|leg| leg.saturating_sub(earlier));
                Heard::Refused { code, leg, participant_code }
            }
            heard => unrefused(word, heard),
        },
        Words::Service(service) => unrefused(word, branches.service(service).await),
    }
}

/// Asks again, one by one, for the holds without an answer, until one has none again.
///
/// Story: where a user's worker had its hands full, the last of several holds always waited behind
/// its siblings for longer than a call may, so the question as a whole never had an answer.
async fn ask_alone<B: Branches>(branches: &B, holds: &[HoldWord], heard: &mut [Heard]) {
    if heard.iter().any(|heard| matches!(heard, Heard::Refused { .. })) {
        return;
    }
    let is_unknown = |heard: &Heard| matches!(heard, Heard::Unknown { .. });
    // None has an answer: Funding is away.
    if heard.iter().all(is_unknown) {
        return;
    }
    for (hold, heard) in holds.iter().zip(heard).filter(|(_, heard)| is_unknown(heard)) {
        *heard = branches.hold(hold.order.clone()).await;
        if is_unknown(heard) {
            return;
        }
    }
}

/// One answer of Funding from those of its holds. A refusal of one hold is final, so it counts
/// before an unknown answer of another: the words behind it cover that one too.
fn together(word: Word, heard: Vec<Heard>, holds: &[HoldWord]) -> Heard {
    let mut refused: Option<(u8, Code)> = None;
    let mut unknown = None;
    for (heard, hold) in heard.into_iter().zip(holds) {
        match heard {
            Heard::Done { .. } => {}
            // A later word has been recorded already: the hold needs no set-back.
            Heard::Refused { .. } if word == Word::SetBack => {}
            // Recorded behind a later word: this answer belongs to no round.
            Heard::Refused {
                code: Code::TransactionAborted | Code::TransactionDecided, ..
            } => {
                unknown = Some(Heard::Unknown { why: "Funding knows a later word".to_owned() });
            }
            Heard::Refused { code, .. } if word == Word::Try => {
                if refused.is_none_or(|(leg, _)| hold.leg < leg) {
                    refused = Some((hold.leg, code));
                }
            }
            heard => unknown = Some(unrefused(word, heard)),
        }
    }
    match (refused, unknown) {
        (Some((leg, code)), _) => Heard::Refused { code, leg: Some(leg), participant_code: None },
        (None, Some(unknown)) => unknown,
        (None, None) => Heard::done(),
    }
}

/// A refusal of a word that cannot be refused is no answer.
fn unrefused(word: Word, heard: Heard) -> Heard {
    match (word, heard) {
        (Word::Confirm | Word::Cancel | Word::SetBack, Heard::Refused { code, .. }) => {
            Heard::Unknown { why: format!("it refused to {}: {code}", word.name()) }
        }
        (_, heard) => heard,
    }
}

/// The branch states that follow from an answer, none if it comes late. Answers without a state of
/// their own are noted in `known`.
pub(super) fn moves(
    row: &TransactionRow,
    known: &mut Known,
    question: &Question,
    heard: &Heard,
) -> Vec<BranchMove> {
    let &Question { ref party, round, word } = question;
    let is_store = matches!(party, Party::Store(_));
    let mine = |branch: &&Branch| &branch.party == party && (is_store || branch.round == round);
    let here = |branch: &&Branch| mine(branch) && branch.round == round;
    let mine_of = |states: &'static [BranchState]| {
        row.branches.iter().filter(mine).filter(|branch| states.contains(&branch.state))
    };
    if matches!(heard, Heard::Unknown { .. }) || !is_awaited(row, word) {
        return Vec::new();
    }
    let trying = row.branches.iter().filter(here).filter(|b| b.state == BranchState::Trying);
    match (word, heard) {
        (Word::Try, Heard::Done { .. }) => {
            trying.map(|branch| to(branch, BranchState::Tried, heard)).collect()
        }
        (Word::Commit, Heard::Done { .. }) => {
            trying.map(|branch| to(branch, BranchState::Confirmed, heard)).collect()
        }
        (Word::Try | Word::Commit, _) => {
            trying.map(|branch| to(branch, BranchState::Refused, heard)).collect()
        }
        (Word::SetBack, _) => {
            known.note_set_back(round);
            let tried = row.branches.iter().filter(here).filter(|b| b.state == BranchState::Tried);
            tried.map(|branch| to(branch, BranchState::Cancelled, heard)).collect()
        }
        (Word::Confirm, _) => {
            if *party == Party::Store(Participant::Funding) {
                known.note_released();
            }
            mine_of(&[BranchState::Tried])
                .filter(|branch| !rounds::is_used_up(row, branch.round))
                .map(|branch| to(branch, BranchState::Confirmed, heard))
                .collect()
        }
        (Word::Cancel, _) => {
            if *party == Party::Store(Participant::Funding) {
                known.note_released();
            }
            mine_of(&[BranchState::Trying, BranchState::Tried])
                .map(|branch| to(branch, BranchState::Cancelled, heard))
                .collect()
        }
    }
}

fn to(branch: &Branch, to: BranchState, heard: &Heard) -> BranchMove {
    let mut passage = BranchMove {
        party: branch.party.clone(),
        round: branch.round,
        from: branch.state,
        to,
        code: None,
        leg: None,
        participant_code: None,
        log_sequence: None,
    };
    match heard {
        Heard::Done { log_sequence } => passage.log_sequence = *log_sequence,
        Heard::Refused { code, leg, participant_code } => {
            passage.code = Some(*code);
            passage.leg = *leg;
            passage.participant_code = participant_code.clone();
        }
        Heard::Unknown { .. } => unreachable!("an unknown answer moves nothing"),
    }
    passage
}
