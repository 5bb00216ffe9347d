//! The table of claims: one for each state and each operation of its transfer.
//!
//! | state | WITHDRAW | DEPOSIT | REFUND | money |
//! |---|---|---|---|---|
//! | INIT, SOURCE_PENDING | undecided | undecided | undecided | at the source |
//! | SOURCE_DONE, TARGET_PENDING | succeeded | undecided | undecided | in flight |
//! | COMMITTED | succeeded | succeeded | undecided | at the target |
//! | FAILED | refused | undecided | undecided | at the source |
//! | COMPENSATING | succeeded | refused | undecided | in flight |
//! | ROLLED_BACK | succeeded | refused | succeeded | at the source |
//!
//! [`State::claim`] is total over states and operations: a new one of either does not compile
//! without its claims. The audit of both journals, the repair in both directions, the statement,
//! the balances and the answers of the API follow from it.
//!
//! A state makes its claim in the journal of one participant, the one that [`Op::participant`]
//! names. Funding decides in the same commit as the state changes. Spot decides before the state
//! changes: [`State::asks`].

use super::{Direction, Duty, Op, Participant, State};

/// The claim of a state about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// A success is recorded.
    Succeeded,
    /// A refusal is recorded.
    Refused,
    /// Nothing is recorded, apart from the decision of an operation that UBSCore is being asked
    /// for.
    Undecided,
}

/// The place of a transfer's money.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Money {
    /// The source has not paid, or has got its money back.
    AtSource,
    /// The source has paid; neither the target nor the source has got it.
    InFlight,
    /// The target has been paid.
    AtTarget,
}

impl State {
    /// The claim of this state about `op`.
    pub const fn claim(self, op: Op) -> Claim {
        use Claim::{Refused, Succeeded, Undecided};
        match op {
            Op::Withdraw => match self {
                State::Init | State::SourcePending => Undecided,
                State::SourceDone
                | State::TargetPending
                | State::Committed
                | State::Compensating
                | State::RolledBack => Succeeded,
                State::Failed => Refused,
            },
            Op::Deposit => match self {
                State::Init
                | State::SourcePending
                | State::SourceDone
                | State::TargetPending
                | State::Failed => Undecided,
                State::Committed => Succeeded,
                State::Compensating | State::RolledBack => Refused,
            },
            Op::Refund => match self {
                State::Init
                | State::SourcePending
                | State::SourceDone
                | State::TargetPending
                | State::Committed
                | State::Failed
                | State::Compensating => Undecided,
                State::RolledBack => Succeeded,
            },
            // They belong to no transfer.
            Op::ExtDeposit
            | Op::ExtWithdraw
            | Op::Reserve
            | Op::Settle
            | Op::Release
            | Op::Post => Undecided,
            #[cfg(feature = "planted-row")]
            Op::Planted => Undecided,
        }
    }

    /// The claim of this state about `op` in the journal of `at`. The other participant's
    /// operations are not recorded there.
    pub const fn claim_at(self, direction: Direction, at: Participant, op: Op) -> Claim {
        match (op.participant(direction), at) {
            (Participant::Funding, Participant::Funding)
            | (Participant::Spot, Participant::Spot) => self.claim(op),
            (Participant::Funding, Participant::Spot)
            | (Participant::Spot, Participant::Funding) => Claim::Undecided,
        }
    }

    /// The operations that this state claims to be decided in the journal of `at`, in the order of
    /// the decisions.
    pub fn decided_at(
        self,
        direction: Direction,
        at: Participant,
    ) -> impl Iterator<Item = (Op, Claim)> {
        let claimed = move |op| (op, self.claim_at(direction, at, op));
        Op::OF_TRANSFER.into_iter().map(claimed).filter(|(_, claim)| *claim != Claim::Undecided)
    }

    /// The operation that `at` is being asked for in this state. Spot may have decided it already.
    pub fn asks(self, direction: Direction, at: Participant) -> Option<Op> {
        match self.duty(direction) {
            Duty::Ask(asked, op) if asked == at => Some(op),
            Duty::Ask(..) | Duty::Proceed | Duty::Nothing => None,
        }
    }

    /// The place of the money, as this state claims it.
    pub fn money(self) -> Money {
        let succeeded = |op| self.claim(op) == Claim::Succeeded;
        match (succeeded(Op::Withdraw), succeeded(Op::Deposit), succeeded(Op::Refund)) {
            (true, false, false) => Money::InFlight,
            (true, true, _) => Money::AtTarget,
            (false, ..) | (true, false, true) => Money::AtSource,
        }
    }

    /// The place of the money, with a withdraw that the source has recorded before the state.
    pub fn money_with(self, withdrawn: bool) -> Money {
        match self == State::SourcePending && withdrawn {
            true => Money::InFlight,
            false => self.money(),
        }
    }

    /// Whether the source has paid and neither the target nor the source has got the money.
    pub fn is_in_flight(self) -> bool {
        self.money() == Money::InFlight
    }

    /// Whether the transfer has ended and the money is where it was.
    pub fn is_undone(self) -> bool {
        self.is_terminal() && self.money() == Money::AtSource
    }

    /// Whether a participant has refused.
    pub fn has_refusal(self) -> bool {
        Op::OF_TRANSFER.into_iter().any(|op| self.claim(op) == Claim::Refused)
    }

    /// Whether the target has refused, so that the source gets its money back.
    pub fn goes_back(self) -> bool {
        self.claim(Op::Deposit) == Claim::Refused
    }

    /// The message of the API for a transfer in this state.
    pub const fn message(self) -> &'static str {
        match self {
            State::Init
            | State::SourcePending
            | State::SourceDone
            | State::TargetPending
            | State::Compensating => "Transfer in progress",
            State::Committed => "Transfer successful",
            State::Failed => "Transfer refused; nothing moved",
            State::RolledBack => "Transfer refused by the target; the source was refunded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::*;

    /// Goal: a state claims the decisions on the way to it. Method: every history of a transfer,
    /// step by step; the claims of each state are the decisions made so far.
    #[test]
    fn a_state_claims_what_was_decided_on_the_way_to_it() {
        for direction in Direction::ALL {
            for refused in [None, Some(Op::Withdraw), Some(Op::Deposit)] {
                let (mut state, mut decided) = (State::Init, [Claim::Undecided; 3]);
                loop {
                    assert_eq!(Op::OF_TRANSFER.map(|op| state.claim(op)), decided, "{state:?}");
                    let event = match state.duty(direction) {
                        Duty::Nothing => break,
                        Duty::Proceed => Event::Proceed,
                        Duty::Ask(participant, op) => {
                            assert_eq!(op.participant(direction), participant, "{state:?}");
                            assert_eq!(state.asks(direction, participant), Some(op));
                            let is_refused = refused == Some(op);
                            let index = op.place_in_transfer().expect("of a transfer");
                            decided[index] =
                                if is_refused { Claim::Refused } else { Claim::Succeeded };
                            if is_refused { Event::ExplicitFail } else { Event::Success }
                        }
                    };
                    state = state.next(event).expect("the table of transitions admits it");
                }
            }
        }
    }

    /// Goal: a later state takes back no claim. Method: every event from every state.
    #[test]
    fn a_transition_keeps_every_claim() {
        for state in State::ALL {
            for next in Event::ALL.into_iter().filter_map(|event| state.next(event)) {
                for op in Op::ALL {
                    let (before, after) = (state.claim(op), next.claim(op));
                    let keeps = before == Claim::Undecided || before == after;
                    assert!(keeps, "{state:?} to {next:?}: {op}");
                }
            }
        }
    }

    #[test]
    fn the_money_is_where_the_specification_puts_it() {
        use Money::{AtSource, AtTarget, InFlight};
        for (state, money, undone, refusal, back) in [
            (State::Init, AtSource, false, false, false),
            (State::SourcePending, AtSource, false, false, false),
            (State::SourceDone, InFlight, false, false, false),
            (State::TargetPending, InFlight, false, false, false),
            (State::Committed, AtTarget, false, false, false),
            (State::Failed, AtSource, true, true, false),
            (State::Compensating, InFlight, false, true, true),
            (State::RolledBack, AtSource, true, true, true),
        ] {
            assert_eq!(state.money(), money, "{state:?}");
            assert_eq!(state.is_in_flight(), money == InFlight, "{state:?}");
            let said = (state.is_undone(), state.has_refusal(), state.goes_back());
            assert_eq!(said, (undone, refusal, back), "{state:?}");
        }
        assert_eq!(State::SourcePending.money_with(true), InFlight);
        assert_eq!(State::RolledBack.money_with(true), AtSource);
        assert_eq!(State::Committed.money_with(true), AtTarget);
    }

    /// Nothing is claimed in a journal that does not hold the operation.
    #[test]
    fn a_claim_stands_in_one_journal() {
        for direction in Direction::ALL {
            for state in State::ALL {
                for op in Op::ALL {
                    let at = op.participant(direction);
                    let other = match at {
                        Participant::Funding => Participant::Spot,
                        Participant::Spot => Participant::Funding,
                    };
                    assert_eq!(
                        state.claim_at(direction, at, op),
                        state.claim(op),
                        "{state:?} {op}"
                    );
                    assert_eq!(state.claim_at(direction, other, op), Claim::Undecided);
                }
            }
        }
    }
}
