//! The duties of a participant, as one table of calls and their allowed outcomes.

use crate::config::participants::ParticipantKind;
use crate::participant::{ParticipantAction, ParticipantOutcome};

/// The width of the column of names.
pub(super) const NAME_WIDTH: usize = 16;

/// One duty: calls on one fresh branch, in this order.
pub(super) struct Duty {
    /// Its name in answers and in `docs/transactions.md`.
    pub(super) name: &'static str,
    /// The rule.
    pub(super) demand: &'static str,
    /// The change that a participant needs if it fails.
    pub(super) change: &'static str,
    /// The calls.
    pub(super) steps: &'static [Step],
}

/// One call.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) action: ParticipantAction,
    /// The round, 1 or 2: each has a branch of its own.
    pub(super) round: u16,
    pub(super) ask: Ask,
    pub(super) expected: Expected,
}

/// How a call is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ask {
    /// As the service makes it.
    Plain,
    /// With another payload under the same branch.
    OtherPayload,
    /// With the payload that the participant refuses.
    Refusable,
    /// With the signature of another key.
    Unsigned,
    /// Twice at the same time.
    Twice,
}

/// The outcomes that a step allows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Expected {
    Done,
    Refused,
    /// The outcome of the first call of the same action.
    Same,
    /// No outcome: an error status, or no answer.
    NoOutcome,
    /// Anything but done.
    NotDone,
}

impl Expected {
    /// Whether an outcome is allowed. `earlier`: the first outcome of the same action.
    pub(super) fn holds(
        self,
        outcome: &ParticipantOutcome,
        earlier: Option<&ParticipantOutcome>,
    ) -> bool {
        match (self, outcome) {
            (Expected::Done, ParticipantOutcome::Done)
            | (Expected::Refused, ParticipantOutcome::Refused { .. })
            | (Expected::NoOutcome, ParticipantOutcome::Unknown { .. })
            | (
                Expected::NotDone,
                ParticipantOutcome::Refused { .. } | ParticipantOutcome::Unknown { .. },
            ) => true,
            (Expected::Same, outcome) => earlier == Some(outcome),
            _ => false,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Expected::Done => "done",
            Expected::Refused => "refused",
            Expected::Same => "the same again",
            Expected::NoOutcome => "an error without an outcome",
            Expected::NotDone => "refused, or an error",
        }
    }
}

impl Step {
    /// The call in a sentence.
    pub(super) fn words(&self) -> String {
        let action = self.action.name();
        let action = match self.round {
            1 => action.to_owned(),
            round => format!("{action} in round {round}"),
        };
        match self.ask {
            Ask::Plain => action,
            Ask::OtherPayload => format!("{action} with another payload"),
            Ask::Refusable => format!("{action} with the refused payload"),
            Ask::Unsigned => format!("{action} signed by another key"),
            Ask::Twice => format!("{action} twice at once"),
        }
    }
}

/// The duties of a kind, in the order of the check. The first one needs an answer at all.
pub(super) fn of(kind: ParticipantKind) -> &'static [Duty] {
    match kind {
        ParticipantKind::Veto => VETO,
        ParticipantKind::Last => LAST,
    }
}

const fn step(action: ParticipantAction, ask: Ask, expected: Expected) -> Step {
    Step { action, round: 1, ask, expected }
}

/// The same call in round 2 of the transaction.
const fn second(step: Step) -> Step {
    Step { round: 2, ..step }
}

const TRY: Step = step(ParticipantAction::Try, Ask::Plain, Expected::Done);
const TRY_AGAIN: Step = step(ParticipantAction::Try, Ask::Plain, Expected::Same);
const TRY_LATE: Step = step(ParticipantAction::Try, Ask::Plain, Expected::Refused);
const CONFIRM: Step = step(ParticipantAction::Confirm, Ask::Plain, Expected::Done);
const CANCEL: Step = step(ParticipantAction::Cancel, Ask::Plain, Expected::Done);
const COMMIT: Step = step(ParticipantAction::Commit, Ask::Plain, Expected::Done);
const COMMIT_AGAIN: Step = step(ParticipantAction::Commit, Ask::Plain, Expected::Same);
const COMMIT_LATE: Step = step(ParticipantAction::Commit, Ask::Plain, Expected::Refused);

const RECORD: &str = "record each action under its branch_id, in the transaction of its effect, and \
    answer a repeat from that record";
const VERIFY: &str = "verify webhook-signature over the body before anything else, and answer 401";
const OTHER: &str = "keep the payload, or its hash, with the record; answer 409 if it differs";
const BRANCH: &str =
    "record by branch_id, which holds the round, and not by transaction_id or tx_id";
const CODES: &str = "record the code of a refusal, and answer a repeat with it";
const AT_ONCE: &str = "make branch_id and action the primary key of the record, and lock before the \
    look";

#[rustfmt::skip]
const VETO: &[Duty] = &[
    Duty {
        name: "confirm", demand: "a tried branch is confirmed, and never refused",
        change: "check and lock in try; do only locked work in confirm. If the try fails: give a fitting --payload",
        steps: &[TRY, CONFIRM],
    },
    Duty {
        name: "cancel", demand: "a tried branch is canceled, and never refused",
        change: "unlock in cancel, without a condition", steps: &[TRY, CANCEL],
    },
    Duty { name: "try-repeats", demand: "a repeated try has its first outcome", change: RECORD, steps: &[TRY, TRY_AGAIN, CANCEL] },
    Duty {
        name: "try-at-once", demand: "two tries at once have one outcome", change: AT_ONCE,
        steps: &[step(ParticipantAction::Try, Ask::Twice, Expected::Done), TRY_AGAIN, CANCEL],
    },
    Duty { name: "confirm-repeats", demand: "a repeated confirm is done", change: RECORD, steps: &[TRY, CONFIRM, CONFIRM] },
    Duty { name: "cancel-repeats", demand: "a repeated cancel is done", change: RECORD, steps: &[TRY, CANCEL, CANCEL] },
    Duty { name: "never-forgets", demand: "a try that comes late again has its first outcome", change: RECORD, steps: &[TRY, CONFIRM, TRY_AGAIN, CONFIRM] },
    Duty {
        name: "cancel-unknown", demand: "a cancel of an unknown branch is done",
        change: "record the cancel, although there is nothing to unlock", steps: &[CANCEL, CANCEL],
    },
    Duty {
        name: "late-try", demand: "a try after its cancel is refused",
        change: "look for a recorded cancel in the transaction of the try, and refuse if there is one", steps: &[CANCEL, TRY_LATE],
    },
    Duty { name: "refusal-repeats", demand: "a repeated refusal has its first code", change: CODES, steps: &[CANCEL, TRY_LATE, TRY_AGAIN] },
    Duty {
        name: "rounds", demand: "a canceled round leaves the next round alone", change: BRANCH,
        steps: &[CANCEL, second(TRY), second(CANCEL)],
    },
    Duty {
        name: "own-refusal", demand: "a refused try repeats its code, and is canceled", change: CODES,
        steps: &[
            step(ParticipantAction::Try, Ask::Refusable, Expected::Refused),
            step(ParticipantAction::Try, Ask::Refusable, Expected::Same),
            step(ParticipantAction::Cancel, Ask::Refusable, Expected::Done),
        ],
    },
    Duty {
        name: "payload", demand: "another payload under the same branch has no outcome", change: OTHER,
        steps: &[TRY, step(ParticipantAction::Try, Ask::OtherPayload, Expected::NoOutcome), TRY_AGAIN, CANCEL],
    },
    Duty {
        name: "signature", demand: "a call with a wrong signature has no outcome", change: VERIFY,
        steps: &[step(ParticipantAction::Try, Ask::Unsigned, Expected::NoOutcome)],
    },
    Duty {
        name: "kind", demand: "a commit is not done, because only a last participant commits",
        change: "accept only try, confirm and cancel, or set kind = \"last\"",
        steps: &[step(ParticipantAction::Commit, Ask::Plain, Expected::NotDone)],
    },
];

#[rustfmt::skip]
const LAST: &[Duty] = &[
    Duty { name: "commit", demand: "a commit with a fitting payload is done", change: "give a fitting --payload", steps: &[COMMIT] },
    Duty { name: "commit-repeats", demand: "a repeated commit has its first outcome", change: RECORD, steps: &[COMMIT, COMMIT_AGAIN] },
    Duty {
        name: "commit-at-once", demand: "two commits at once have one outcome", change: AT_ONCE,
        steps: &[step(ParticipantAction::Commit, Ask::Twice, Expected::Done), COMMIT_AGAIN],
    },
    Duty {
        name: "cancel-unknown", demand: "a cancel of an unknown branch is done, and repeats",
        change: "record the cancel, although there is nothing to undo", steps: &[CANCEL, CANCEL],
    },
    Duty {
        name: "late-commit", demand: "a commit after its cancel is refused",
        change: "look for a recorded cancel in the transaction of the commit, and refuse if there is one", steps: &[CANCEL, COMMIT_LATE],
    },
    Duty { name: "refusal-repeats", demand: "a repeated refusal has its first code", change: CODES, steps: &[CANCEL, COMMIT_LATE, COMMIT_AGAIN] },
    Duty {
        name: "never-undone", demand: "a cancel after the commit is done and undoes nothing",
        change: "in cancel, leave a branch alone that has a recorded commit", steps: &[COMMIT, CANCEL, COMMIT_AGAIN],
    },
    Duty {
        name: "rounds", demand: "a canceled round leaves the next round alone", change: BRANCH,
        steps: &[CANCEL, second(COMMIT)],
    },
    Duty {
        name: "own-refusal", demand: "a refused commit repeats its code", change: CODES,
        steps: &[
            step(ParticipantAction::Commit, Ask::Refusable, Expected::Refused),
            step(ParticipantAction::Commit, Ask::Refusable, Expected::Same),
        ],
    },
    Duty {
        name: "payload", demand: "another payload under the same branch has no outcome", change: OTHER,
        steps: &[COMMIT, step(ParticipantAction::Commit, Ask::OtherPayload, Expected::NoOutcome), COMMIT_AGAIN],
    },
    Duty {
        name: "signature", demand: "a call with a wrong signature has no outcome", change: VERIFY,
        steps: &[step(ParticipantAction::Commit, Ask::Unsigned, Expected::NoOutcome)],
    },
    Duty {
        name: "kind", demand: "a try is not done, because a last participant only commits",
        change: "accept only commit and cancel, or set kind = \"veto\"",
        steps: &[step(ParticipantAction::Try, Ask::Plain, Expected::NotDone)],
    },
];
