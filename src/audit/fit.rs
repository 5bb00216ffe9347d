//! Whether the state of a transfer fits the operations that both journals hold for it: one table,
//! no I/O.
//!
//! PostgreSQL is read in one snapshot, the outcomes of UBSCore before and after it. An operation
//! that the state claims must be in a journal afterwards. An operation that it denies must not have
//! been there before. So a transfer that moves meanwhile is never misread.

use domain::amount::Amount;
use domain::transfer::{Claim, Decision, Direction, Op, Participant, State};

/// The decisions of one journal for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Below the watermark UBSCore may have forgotten it. The totals prove it.
    Forgotten,
    /// The decision before the snapshot of PostgreSQL, and the decision now.
    At {
        /// Before the snapshot.
        before: Option<Decision>,
        /// After the snapshot.
        after: Option<Decision>,
    },
}

impl Seen {
    /// A decision that the snapshot itself holds.
    pub fn in_snapshot(decision: Option<Decision>) -> Seen {
        Seen::At { before: decision, after: decision }
    }

    fn succeeded(self) -> bool {
        matches!(self, Seen::At { after: Some(Decision::Success), .. })
    }
}

/// One entry for each operation of a transfer, in the order of [`Op::OF_TRANSFER`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations([Seen; Op::OF_TRANSFER.len()]);

impl Operations {
    /// The entries that `seen` returns for each operation.
    pub fn of(seen: impl FnMut(Op) -> Seen) -> Operations {
        Operations(Op::OF_TRANSFER.map(seen))
    }

    fn iter(self) -> impl Iterator<Item = (Op, Seen)> {
        Op::OF_TRANSFER.into_iter().zip(self.0)
    }
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Terminal, and every operation is as claimed.
    Settled,
    /// Under way, and nothing contradicts it.
    Open,
    /// The journals contradict the state in this operation.
    Broken {
        /// The operation.
        op: Op,
        /// Smallest units that the user has too many; negative if some are missing.
        difference: i128,
    },
}

/// Compares. `state`: `None` if PostgreSQL has no such transfer.
pub fn fit(
    state: Option<State>,
    direction: Direction,
    amount: Amount,
    operations: Operations,
) -> Fit {
    for (op, seen) in operations.iter() {
        // Spot decides before the state changes. Funding decides in the same commit as the state.
        let is_asked = |state: State| state.asks(direction, Participant::Spot) == Some(op);
        let claim = state.map_or(Claim::Undecided, |state| state.claim(op));
        let fits = match (seen, claim) {
            (Seen::Forgotten, _) => true,
            (Seen::At { after, .. }, Claim::Succeeded) => after == Some(Decision::Success),
            (Seen::At { after, .. }, Claim::Refused) => {
                matches!(after, Some(Decision::Refused(_)))
            }
            (Seen::At { before, .. }, Claim::Undecided) => {
                before.is_none() || state.is_some_and(is_asked)
            }
        };
        if !fits {
            let units = amount.units();
            let succeeded = operations.iter().filter(|(_, seen)| seen.succeeded());
            let held: i128 = succeeded.map(|(op, _)| op.effect(Decision::Success, units)).sum();
            let in_flight = state.is_some_and(State::is_in_flight);
            let claimed = if in_flight { -i128::from(units) } else { 0 };
            return Fit::Broken { op, difference: held - claimed };
        }
    }
    match state {
        Some(state) if state.is_terminal() => Fit::Settled,
        Some(_) | None => Fit::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::code::Code;
    use domain::transfer::{Duty, Event};

    const REFUSED: Decision = Decision::Refused(Code::AccountFrozen);

    fn amount() -> Amount {
        Amount::new(10).expect("not zero")
    }

    /// Every history of a transfer as steps. Each step is one decision of a participant or one
    /// transition. Spot decides before the state follows, Funding together with it.
    fn histories(direction: Direction) -> Vec<Vec<(State, [Option<Decision>; 3])>> {
        let mut histories = Vec::new();
        for refused in [None, Some(Op::Withdraw), Some(Op::Deposit)] {
            let (mut state, mut decided) = (State::Init, [None; 3]);
            let mut history = vec![(state, decided)];
            loop {
                let event = match state.duty(direction) {
                    Duty::Nothing => break,
                    Duty::Proceed => Event::Proceed,
                    Duty::Ask(participant, op) => {
                        let decision =
                            if refused == Some(op) { REFUSED } else { Decision::Success };
                        decided[usize::from(op as u8) - 1] = Some(decision);
                        if participant == Participant::Spot {
                            history.push((state, decided));
                        }
                        decision.event()
                    }
                };
                state = state.next(event).expect("the table admits it");
                history.push((state, decided));
            }
            histories.push(history);
        }
        histories
    }

    /// The account of an operation by the documents: those of Funding are in the snapshot of
    /// PostgreSQL.
    fn is_spot(direction: Direction, op: Op) -> bool {
        (direction == Direction::FundingToSpot) == (op == Op::Deposit)
    }

    fn operations(
        direction: Direction,
        at: [Option<Decision>; 3],
        before: [Option<Decision>; 3],
        after: [Option<Decision>; 3],
    ) -> Operations {
        let seen = |op: Op| {
            let index = usize::from(op as u8) - 1;
            match is_spot(direction, op) {
                true => Seen::At { before: before[index], after: after[index] },
                false => Seen::in_snapshot(at[index]),
            }
        };
        Operations::of(seen)
    }

    /// Goal: no legal history is ever called broken, however it runs on between the three reads.
    /// Method: every history and every three moments of it in order.
    #[test]
    fn no_legal_history_is_broken_at_any_three_moments() {
        for direction in Direction::ALL {
            for history in histories(direction) {
                for before in 0..history.len() {
                    for snapshot in before..history.len() {
                        for after in snapshot..history.len() {
                            let (state, at) = history[snapshot];
                            let (before, after) = (history[before].1, history[after].1);
                            let seen = operations(direction, at, before, after);
                            let want = match state.is_terminal() {
                                true => Fit::Settled,
                                false => Fit::Open,
                            };
                            assert_eq!(fit(Some(state), direction, amount(), seen), want);
                        }
                    }
                }
            }
        }
    }

    /// Goal: every operation that is removed from, added to or changed in a journal of a settled
    /// transfer is found.
    #[test]
    fn every_changed_operation_of_a_settled_transfer_is_broken() {
        for direction in Direction::ALL {
            for history in histories(direction) {
                let &(state, decided) = history.last().expect("not empty");
                for index in 0..3 {
                    for other in [None, Some(Decision::Success), Some(REFUSED)] {
                        if other == decided[index] {
                            continue;
                        }
                        let mut changed = decided;
                        changed[index] = other;
                        let seen = operations(direction, changed, changed, changed);
                        let found = fit(Some(state), direction, amount(), seen);
                        assert!(matches!(found, Fit::Broken { .. }), "{state:?} {changed:?}");
                    }
                }
                if decided != [None; 3] {
                    let seen = operations(direction, decided, decided, decided);
                    let found = fit(None, direction, amount(), seen);
                    assert!(matches!(found, Fit::Broken { .. }), "{decided:?} without a transfer");
                }
            }
        }
    }

    #[test]
    fn the_difference_is_what_the_user_has_too_many_or_lacks() {
        let decided = |withdraw, deposit| {
            Operations(
                [withdraw, deposit, false]
                    .map(|yes: bool| Seen::in_snapshot(yes.then_some(Decision::Success))),
            )
        };
        let direction = Direction::FundingToSpot;
        let broken = |state, withdraw, deposit| match fit(
            state,
            direction,
            amount(),
            decided(withdraw, deposit),
        ) {
            Fit::Broken { difference, .. } => difference,
            other => panic!("{other:?}"),
        };
        assert_eq!(broken(Some(State::Committed), true, false), -10);
        assert_eq!(broken(Some(State::Committed), false, true), 10);
        assert_eq!(broken(Some(State::SourcePending), false, true), 10);
        assert_eq!(broken(Some(State::SourceDone), true, true), 10);
        assert_eq!(broken(None, false, true), 10);
    }
}
