//! Answers behind the seal of a decision.

use domain::code::Code;
use domain::transfer::Participant;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::{Entry, Waiter, Want};
use crate::transaction::{BranchState, Party, TransactionState};
use crate::transactions::TransactionAnswer;
use crate::transactions::branches::Heard;
use crate::transactions::example::{leg, row};
use crate::transactions::step::{Question, Word};

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
