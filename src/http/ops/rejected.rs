//! Refusals of the coordinator and of UBSCore, in words for operators.

use crate::adapters::spot::Unanswered;
use crate::coordinator::Rejection;
use crate::http::refusal::Refusal;
use domain::shortage::Shortage;

/// The refusal for a rejection. If the outcome is unknown, it names the next step.
pub(super) fn rejected(rejection: Rejection) -> Refusal {
    let unknown = rejection.unknown;
    let refusal = Refusal::from(rejection);
    match unknown {
        true => {
            let message = "It is not known whether this was done. Repeat the same request: its \
                           answer is the outcome.";
            Refusal { message: Some(message.to_owned()), ..refusal }
        }
        false => refusal,
    }
}

/// The refusal if UBSCore did not answer.
pub(super) fn unanswered(failure: Unanswered) -> Refusal {
    match failure {
        Unanswered::Overloaded => Shortage::Ring.into(),
        Unanswered::Silent | Unanswered::Violation(_) => {
            Refusal { unknown: true, ..Refusal::away("UBSCore") }
        }
    }
}
