//! Answers behind the seal of a decision.

use domain::code::Code;
use domain::transfer::Participant;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::{Entry, Waiter, Want};
use crate::transaction::{BranchState, Decider, Did, Party, TransactionState};
use crate::transactions::Abandon;
use crate::transactions::TransactionAnswer;
use crate::transactions::abandon::Abandoning;
use crate::transactions::apply;
use crate::transactions::branches::Heard;
use crate::transactions::example::{branch, leg, row};
use crate::transactions::step::{Question, TransactionStep, Word};

/// Waits for the row until 10, and for the store until 20.
fn wait(entry: &mut Entry, want: Want) -> oneshot::Receiver<TransactionAnswer> {
    let (reply, answer) = oneshot::channel();
    entry.waiters.push(Waiter { want, until_ns: 10, late_ns: 20, replayed: false, reply });
    answer
}

/// A transaction that a session of its caller has committed.
fn decided_in_sql() -> Entry {
    let mut row = row(&[(Participant::Funding, 1, vec![leg(1, 2, 5)])]);
    row.branches[0].state = BranchState::Tried;
    row.state = TransactionState::Committed;
    Entry::new(row, 0)
}

const WANTS: [Want; 4] = [Want::Round(1), Want::Commit, Want::Abort, Want::Rest];

/// Goal: a decision that a crash can take back is told to no caller. Method: every kind of waiter
/// of a commit by SQL, late and too late, without a seal; then with it.
#[test]
fn a_commit_is_told_behind_its_seal() {
    for want in WANTS {
        let mut entry = decided_in_sql();
        let mut early = wait(&mut entry, want);
        for now_ns in [0, 10, 19] {
            entry.answer_waiters(now_ns);
            assert!(early.try_recv().is_err(), "{want:?} at {now_ns}");
        }
        entry.answer_waiters(20);
        let refusal = early.try_recv().expect("too late").expect_err("no proof");
        assert_eq!((refusal.code, refusal.unknown), (Code::SystemError, true), "{want:?}");
        assert!(refusal.row.is_none(), "{want:?}");
        let mut behind = wait(&mut entry, want);
        entry.row.sealed = true;
        entry.answer_waiters(10);
        let told = behind.try_recv().expect("sealed");
        match want {
            Want::Abort => {
                let refusal = told.expect_err("committed");
                assert_eq!((refusal.code, refusal.unknown), (Code::TransactionDecided, false));
            }
            _ => assert_eq!(told.expect("a row").row.state, TransactionState::Committed),
        }
    }
}

/// Goal: a halt does not keep the seal back, and nothing but the seal is recorded then.
#[test]
fn a_seal_is_recorded_while_halted() {
    let mut entry = decided_in_sql();
    let moved = entry.proposal(Timestamp::UNIX_EPOCH, true, true).expect("a seal");
    assert!(moved.seal && moved.from == moved.to && moved.branches.is_empty(), "{moved:?}");
    entry.row.sealed = true;
    assert_eq!(entry.proposal(Timestamp::UNIX_EPOCH, true, true), None);
}

/// Goal: a caller is answered once both stores have booked, and both answers share one commit.
/// Method: the confirms of both, one after the other.
#[test]
fn a_commit_is_answered_once_both_stores_have_booked() {
    let legs = vec![leg(1, 2, 5)];
    let stores = [Participant::Spot, Participant::Funding];
    let mut row = row(&stores.map(|store| (store, 1, legs.clone())));
    row.branches.iter_mut().for_each(|branch| branch.state = BranchState::Tried);
    (row.state, row.sealed) = (TransactionState::Committed, true);
    let mut entry = Entry::new(row, 0);
    let mut waiting = wait(&mut entry, Want::Commit);
    entry.asking.extend(stores.map(|store| (Party::Store(store), 0)));
    for store in stores {
        entry.answer_waiters(0);
        assert!(waiting.try_recv().is_err(), "before {store:?} has answered");
        let party = Party::Store(store);
        entry.asking.remove(&(party.clone(), 0));
        entry.heard.push((Question { party, round: 1, word: Word::Confirm }, Heard::done()));
        assert_eq!(entry.is_half_confirmed(), store == Participant::Spot);
    }
    entry.answer_waiters(0);
    let reply = waiting.try_recv().expect("booked").expect("committed");
    assert_eq!((reply.row.state, reply.settled), (TransactionState::Committed, true));
    let moved = entry.proposal(Timestamp::UNIX_EPOCH, false, true).expect("the end");
    assert_eq!((moved.to, moved.branches.len()), (TransactionState::Done, 2));
}

/// RCV-008. Goal: the move that ends the last store says so, and none before it does. Method: the
/// answers of Funding and Spot, fused and not; then a service that owes its confirm.
#[test]
fn the_end_of_the_last_store_is_noted_with_its_answer() {
    for fuse in [true, false] {
        let stores = [Participant::Funding, Participant::Spot];
        let mut row = row(&stores.map(|store| (store, 1, vec![leg(1, 2, 5)])));
        row.branches.push(branch(Party::Service("coupons".to_owned()), 1, Vec::new()));
        row.branches.iter_mut().for_each(|branch| branch.state = BranchState::Tried);
        (row.state, row.sealed) = (TransactionState::Committed, true);
        let mut entry = Entry::new(row, 0);
        for (store, ends) in stores.into_iter().zip([false, true]) {
            let (party, word) = (Party::Store(store), Word::Confirm);
            entry.heard.push((Question { party, round: 1, word }, Heard::done()));
            let moved = entry.proposal(Timestamp::UNIX_EPOCH, false, fuse).expect("an answer");
            assert_eq!(moved.stores_ended, ends, "{store:?}");
            apply::whole(&mut entry.row, &moved, Timestamp::UNIX_EPOCH);
            entry.heard.clear();
        }
        assert!(entry.row.stores_ended);
        assert_eq!(entry.proposal(Timestamp::UNIX_EPOCH, false, fuse), None, "it is noted once");
    }
    // Without a part of a store nothing of a store has to end.
    let mut row = row(&[]);
    row.branches.push(branch(Party::Service("coupons".to_owned()), 1, Vec::new()));
    (row.branches[0].state, row.decider) = (BranchState::Tried, Decider::Coordinator);
    let moved = Entry::new(row, 0).proposal(Timestamp::UNIX_EPOCH, false, true).expect("a commit");
    assert!(moved.stores_ended && moved.to == TransactionState::Committed, "{moved:?}");
}

/// Funding has tried, and the last participant is asked.
fn deciding() -> Entry {
    let mut row = row(&[(Participant::Funding, 1, vec![leg(1, 2, 5)])]);
    row.branches[0].state = BranchState::Tried;
    let mut bank = branch(Party::Service("bank".to_owned()), 1, Vec::new());
    bank.last = true;
    row.branches.push(bank);
    (row.state, row.decider) = (TransactionState::Deciding, Decider::Last);
    Entry::new(row, 0)
}

/// Goal: the word of operators about a last participant is one move with the decision; not while
/// the participant is being asked, and not while halted. Method: both words, fused and not.
#[test]
fn the_word_of_operators_decides_in_one_move() {
    let now = Timestamp::UNIX_EPOCH;
    for (did, to) in
        [(Did::Committed, TransactionState::Committed), (Did::Refused, TransactionState::Aborted)]
    {
        let mut entry = deciding();
        let (by, reason) = ("admin/1, approved by admin/2".to_owned(), "gone".to_owned());
        let (participant, did) = ("bank".to_owned(), Some(did));
        let abandon = Abandon { participant, round: 1, did, by: by.clone(), reason };
        let (reply, mut answer) = oneshot::channel();
        entry.abandoning = Some(Abandoning { abandon, until_ns: 10, reply });
        entry.asking.insert((Party::Service("bank".to_owned()), 1));
        assert_eq!(entry.proposal(now, false, true), None, "its own answer may come");
        entry.asking.clear();
        assert_eq!(entry.proposal(now, true, true), None, "halted");
        let moved = entry.proposal(now, false, true).expect("a move");
        assert_eq!(entry.proposal(now, false, false).as_ref(), Some(&moved));
        assert_eq!((moved.to, &moved.by, moved.branches.len()), (to, &by, 1));
        let note = moved.note.as_ref().expect("a note");
        assert!(note.text.contains(&format!("abandoned by {by}: gone")), "{note:?}");
        entry.settle_abandoning(9);
        assert!(answer.try_recv().is_err(), "nothing is recorded yet");
        apply::whole(&mut entry.row, &moved, now);
        entry.settle_abandoning(9);
        let reply = answer.try_recv().expect("recorded").expect("it is ended");
        assert_eq!(reply.row.state, to);
        assert!(entry.abandoning.is_none());
    }
}

/// To resolve is one cancel in the place of the commit. It decides nothing.
#[test]
fn to_resolve_asks_the_last_participant_to_cancel() {
    let mut entry = deciding();
    let words = |entry: &Entry| -> Vec<Word> {
        let nexts = entry.nexts(&entry.row, entry.known, Timestamp::UNIX_EPOCH).into_iter();
        let ask = |next| match next {
            TransactionStep::Ask(question) => Some(question.word),
            _ => None,
        };
        nexts.filter_map(ask).collect()
    };
    assert_eq!(words(&entry), [Word::Commit]);
    entry.resolving = true;
    assert_eq!(words(&entry), [Word::Cancel]);
    let (party, word) = (Party::Service("bank".to_owned()), Word::Cancel);
    entry.heard.push((Question { party, round: 1, word }, Heard::done()));
    assert_eq!(entry.proposal(Timestamp::UNIX_EPOCH, false, true), None);
}
