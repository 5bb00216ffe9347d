//! The table of next steps, and laws over random ways.

use domain::transfer::Participant;
use proptest::prelude::*;

use super::*;
use crate::transactions::apply;
use crate::transactions::ask;
use crate::transactions::branches::Heard;
use crate::transactions::entry::Entry;
use crate::transactions::example::{branch, leg, row};

const FUNDING: Participant = Participant::Funding;
const SPOT: Participant = Participant::Spot;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

/// Funding, Spot, a service and, if it decides, the last one.
fn whole(decider: Decider) -> TransactionRow {
    let mut row = row(&[(FUNDING, 1, vec![leg(1, 2, 5)]), (SPOT, 1, vec![leg(2, 1, 5)])]);
    row.decider = decider;
    row.branches.push(branch(Party::Service("coupons".to_owned()), 1, Vec::new()));
    if decider == Decider::Last {
        let mut last = branch(Party::Service("bank".to_owned()), 1, Vec::new());
        last.last = true;
        row.branches.push(last);
    }
    row
}

fn with(
    mut row: TransactionRow,
    state: TransactionState,
    states: &[BranchState],
) -> TransactionRow {
    row.state = state;
    for (branch, state) in row.branches.iter_mut().zip(states) {
        branch.state = *state;
    }
    row
}

/// The steps as words, in order.
fn steps(row: &TransactionRow, known: Known) -> String {
    let word = |next: &TransactionStep| match next {
        TransactionStep::Ask(question) => {
            format!("{} {} {}", question.word.name(), question.party.name(), question.round)
        }
        TransactionStep::Close(branches) => {
            let names = branches.iter().map(|(party, round)| format!("{} {round}", party.name()));
            format!("close {}", names.collect::<Vec<_>>().join(" "))
        }
        TransactionStep::Pass(passage) => match passage.code {
            Some(code) => format!("{} {code} by {}", passage.to.name(), passage.by),
            None => format!("{} by {}", passage.to.name(), passage.by),
        },
        TransactionStep::Seal => "seal".to_owned(),
        TransactionStep::Wait(StepWait::Caller) => "wait for the caller".to_owned(),
        TransactionStep::Wait(StepWait::Person) => "wait for a person".to_owned(),
    };
    decide(row, known, at(500)).iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Goal: the next steps of each state, written down a second time. The branches are Funding, Spot,
/// coupons, bank.
#[test]
fn the_next_steps_of_each_state_are_those_of_the_table() {
    use BranchState::{Cancelled as X, Confirmed as C, Refused as R, Tried as T, Trying as N};
    use TransactionState::{Aborted, Cancelled, Committed, Deciding, Done, Open};
    let table: &[(Decider, TransactionState, &[BranchState], &str)] = &[
        (Decider::Coordinator, Open, &[N, N, N], "try FUNDING 1"),
        (Decider::Coordinator, Open, &[T, N, N], "try SPOT 1"),
        (Decider::Coordinator, Open, &[T, T, N], "try coupons 1"),
        (Decider::Coordinator, Open, &[T, T, T], "COMMITTED by coordinator"),
        (Decider::Coordinator, Open, &[R, N, N], "ABORTED PARTICIPANT_REFUSED by FUNDING"),
        (Decider::Coordinator, Open, &[T, R, N], "ABORTED PARTICIPANT_REFUSED by SPOT"),
        (Decider::Caller, Open, &[T, T, R], "ABORTED PARTICIPANT_REFUSED by coupons"),
        (Decider::Caller, Open, &[T, T, T], "wait for the caller"),
        (Decider::Last, Open, &[T, T, N, N], "try coupons 1"),
        (Decider::Last, Open, &[T, T, T, N], "DECIDING by coordinator"),
        (Decider::Last, Deciding, &[T, T, T, N], "commit bank 1"),
        (Decider::Last, Deciding, &[T, T, T, C], "COMMITTED by bank"),
        (Decider::Last, Deciding, &[T, T, T, R], "ABORTED PARTICIPANT_REFUSED by bank"),
        (Decider::Last, Committed, &[T, T, T, C], "confirm FUNDING 1, confirm SPOT 1"),
        (Decider::Caller, Committed, &[T, C, T], "confirm FUNDING 1"),
        (Decider::Caller, Committed, &[C, T, T], "confirm SPOT 1"),
        (Decider::Caller, Committed, &[C, C, T], "confirm coupons 1"),
        (Decider::Caller, Committed, &[C, C, C], "DONE by coordinator"),
        (Decider::Caller, Aborted, &[N, X, X], "cancel FUNDING 1"),
        (Decider::Caller, Aborted, &[T, T, T], "cancel FUNDING 1"),
        (Decider::Caller, Aborted, &[R, X, X], "cancel FUNDING 1"),
        (Decider::Caller, Aborted, &[X, N, X], "cancel SPOT 1"),
        (Decider::Caller, Aborted, &[X, X, N], "cancel coupons 1"),
        (Decider::Caller, Aborted, &[X, R, X], "CANCELLED by coordinator"),
        (Decider::Caller, Done, &[C, C, C], ""),
        (Decider::Caller, Cancelled, &[X, X, X], ""),
    ];
    for (decider, state, states, want) in table {
        let mut row = with(whole(*decider), *state, states);
        row.sealed = true;
        let mut known = Known::default();
        if (*state, states.first()) == (Aborted, Some(&X)) {
            known.note_released();
        }
        assert_eq!(steps(&row, known), *want, "{decider:?} {state:?} {states:?}");
    }
    let unsealed = with(whole(Decider::Caller), Committed, &[T, T, T]);
    assert_eq!(steps(&unsealed, Known::default()), "seal", "the caller's commit may be lost");
    let mut known = Known::default();
    known.note_released();
    let refused = with(whole(Decider::Caller), Aborted, &[R, X, X]);
    assert_eq!(steps(&refused, known), "CANCELLED by coordinator");
    // A hold that was set back is not released yet, at both ends.
    let set_back = with(whole(Decider::Caller), Aborted, &[X, R, X]);
    assert_eq!(steps(&set_back, Known::default()), "cancel FUNDING 1");
    let mut spot_alone = row(&[(FUNDING, 1, vec![leg(1, 2, 5)]), (SPOT, 2, vec![leg(1, 2, 5)])]);
    spot_alone = with(spot_alone, Committed, &[R, T]);
    spot_alone.sealed = true;
    let mut known = Known::default();
    known.note_set_back(1);
    assert_eq!(steps(&spot_alone, known), "confirm FUNDING 2");
    known.note_released();
    assert_eq!(steps(&spot_alone, known), "confirm SPOT 2");
}

/// RCV-008. Goal: once the row says that both stores have ended, neither is asked, with nothing
/// known in memory. Method: rows in which a new process would ask again, without the mark and with
/// it.
#[test]
fn behind_the_mark_no_store_is_asked() {
    use BranchState::{Cancelled as X, Confirmed as C, Refused as R, Tried as T};
    use TransactionState::{Aborted, Committed};
    let funding = |round| (FUNDING, round, vec![leg(1, 2, 5)]);
    let coupons = || branch(Party::Service("coupons".to_owned()), 2, Vec::new());
    for (state, states, before, behind) in [
        (Committed, [R, C, T], "set back FUNDING 1", "confirm coupons 2"),
        (Aborted, [X, X, T], "cancel FUNDING 2", "cancel coupons 2"),
        (Aborted, [R, X, T], "cancel FUNDING 2", "cancel coupons 2"),
        (Committed, [C, C, C], "DONE by coordinator", "DONE by coordinator"),
    ] {
        let mut row = row(&[funding(1), (SPOT, 2, vec![leg(1, 2, 5)])]);
        row.branches.push(coupons());
        let mut row = with(row, state, &states);
        row.sealed = true;
        assert_eq!(steps(&row, Known::default()), before, "{state:?} {states:?}");
        row.stores_ended = true;
        assert_eq!(steps(&row, Known::default()), behind, "{state:?} {states:?}");
        assert!(is_booked(&row, Known::default()));
        assert!(!must_note_ended(&row, Known::default()), "it is noted");
    }
}

/// GTX-011. A refused round of legs alone is taken back, and leaves the rest to the caller.
#[test]
fn a_refused_round_of_legs_is_taken_back_alone() {
    let funding = |round| (FUNDING, round, vec![leg(1, 2, 5)]);
    let spot = |round| (SPOT, round, vec![leg(1, 2, 5)]);
    let mut row = row(&[funding(1), spot(1), funding(2), spot(2)]);
    use BranchState::{Cancelled as X, Refused as R, Tried as T, Trying as N};
    row = with(row, TransactionState::Open, &[T, T, R, N]);
    assert_eq!(steps(&row, Known::default()), "close SPOT 2, set back FUNDING 2");
    row = with(row, TransactionState::Open, &[T, T, R, X]);
    let mut known = Known::default();
    known.note_set_back(2);
    assert_eq!(steps(&row, known), "wait for the caller");
    row = with(row, TransactionState::Open, &[T, T, T, R]);
    assert_eq!(steps(&row, Known::default()), "set back FUNDING 2");
    row = with(row, TransactionState::Open, &[T, T, X, R]);
    assert_eq!(steps(&row, Known::default()), "wait for the caller");
    assert!(is_tried(&row), "round 1 is");
    let only = with(whole(Decider::Caller), TransactionState::Open, &[T, R, X]);
    assert!(!is_tried(&only), "nothing is tried");
}

#[test]
fn age_aborts_what_is_open_and_nothing_else() {
    let row = whole(Decider::Last);
    let late = |row: &TransactionRow| decide(row, Known::default(), at(1_001));
    assert_eq!(late(&row), [TransactionStep::Pass(abort(BY_AGE, Code::TransactionExpired, None))]);
    use BranchState::{Tried as T, Trying as N};
    let deciding = with(row, TransactionState::Deciding, &[T, T, T, N]);
    assert!(
        matches!(&late(&deciding)[..], [TransactionStep::Ask(question)] if question.word == Word::Commit)
    );
}

/// Goal: an abort closes exactly those branches that were never asked.
#[test]
fn a_branch_that_was_not_reached_is_closed_unasked() {
    use BranchState::{Tried as T, Trying as N};
    let names = |states: &[BranchState]| {
        let row = with(whole(Decider::Last), TransactionState::Open, states);
        let names = unasked(&row).into_iter().map(|(party, _)| party.name().to_owned());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(&[N, N, N, N]), "SPOT coupons bank");
    assert_eq!(names(&[T, N, N, N]), "coupons bank");
    assert_eq!(names(&[T, T, N, N]), "bank");
}

/// An answer, by chance.
fn answer(word: Word, number: u8) -> Heard {
    match (word, number % 10) {
        (Word::Try | Word::Commit, 0) => Heard::refused(Code::InsufficientBalance),
        _ => Heard::done(),
    }
}

proptest! {
    /// Goal: on every way a transaction has one verdict, ends, and asks in order. Method: random
    /// answers, times and decisions of the caller, one commit after the other.
    #[test]
    fn every_way_ends_with_one_verdict_and_asks_in_order(
        decider in 0..3_usize,
        numbers in prop::collection::vec(any::<u8>(), 64),
        fuse in any::<bool>(),
    ) {
        let mut entry = Entry::new(whole(Decider::ALL[decider]), 0);
        let mut verdicts = Vec::new();
        for (turn, number) in numbers.iter().enumerate() {
            let now = if number % 40 == 1 { at(2_000) } else { at(500) };
            if entry.row.state == TransactionState::Open
                && entry.row.decider == Decider::Caller
                && is_tried(&entry.row)
                && number % 3 == 0
            {
                // In SQL, without a seal.
                entry.row.state = TransactionState::Committed;
            }
            if let Some(moved) = entry.proposal(now, false, fuse) {
                apply::whole(&mut entry.row, &moved, now);
                entry.heard.clear();
                verdicts.extend(entry.row.state.verdict());
                continue;
            }
            entry.heard.clear();
            let nexts = decide(&entry.row, entry.known, now);
            prop_assert!(!nexts.is_empty() || entry.row.state.is_terminal(), "turn {}", turn);
            for next in nexts {
                let TransactionStep::Ask(question) = next else {
                    prop_assert_eq!(next, TransactionStep::Wait(StepWait::Caller));
                    continue;
                };
                check_order(&entry.row, &question)?;
                let heard = answer(question.word, *number);
                ask::moves(&entry.row, &mut entry.known, &question, &heard);
                entry.heard.push((question, heard));
            }
        }
        verdicts.dedup();
        prop_assert!(verdicts.len() <= 1, "{:?}", verdicts);
        let waits = entry.row.state == TransactionState::Open && decider == 1;
        prop_assert!(entry.row.state.is_terminal() || waits, "{:?}", entry.row);
    }
}

/// No word goes out before the recorded row allows it.
fn check_order(row: &TransactionRow, question: &Question) -> Result<(), TestCaseError> {
    let state = |store| {
        let party = Party::Store(store);
        row.branches.iter().find(|branch| branch.party == party).expect("a branch").state
    };
    let all = |store, states: &[BranchState]| states.contains(&state(store));
    let before: &[Participant] = match question.party {
        Party::Store(Participant::Funding) => &[],
        // Both stores are asked to confirm at once.
        Party::Store(Participant::Spot) if question.word == Word::Confirm => &[],
        Party::Store(Participant::Spot) => &[FUNDING],
        Party::Service(_) => &[FUNDING, SPOT],
    };
    for store in before {
        let recorded = match question.word {
            Word::Try | Word::Commit => all(*store, &[BranchState::Tried]),
            Word::Confirm => all(*store, &[BranchState::Confirmed]),
            Word::Cancel => all(*store, &[BranchState::Cancelled, BranchState::Refused]),
            Word::SetBack => true,
        };
        prop_assert!(recorded, "{:?} before {:?} has answered", question, store);
    }
    prop_assert!(is_awaited(row, question.word), "{:?} in {:?}", question, row.state);
    prop_assert!(question.word != Word::Confirm || row.sealed);
    Ok(())
}
