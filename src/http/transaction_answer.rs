//! Answers of the worker of transactions, as HTTP gives them.

use hyper::StatusCode;

use super::answer::{Answer, json, mark_replayed};
use super::refusal::{Refusal, invalid};
use super::transaction_body::TransactionBody;
use crate::transaction::{BranchState, TransactionRow, TransactionState, TransactionVerdict};
use crate::transactions::{TransactionRefusal, TransactionReply};
use crate::validation::transaction::RoundError;
use domain::code::Code;
use domain::shortage::Shortage;

impl From<RoundError> for Refusal {
    fn from(error: RoundError) -> Refusal {
        let RoundError { code, detail } = error;
        Refusal::because(code, detail)
    }
}

impl From<TransactionRefusal> for Refusal {
    fn from(refusal: TransactionRefusal) -> Refusal {
        let TransactionRefusal { code, detail, row, unknown } = refusal;
        // A decision stays: the same request gets this answer for ever.
        let ended = row.is_some() && code.http_status() == 422;
        // The worker says it in words.
        let short = |shortage: &Shortage| detail.as_deref() == Some(shortage.message());
        let shortage = (code == Code::Overloaded)
            .then(|| Shortage::ALL.into_iter().find(short).unwrap_or(Shortage::Worker));
        Refusal {
            shortage,
            message: detail,
            unknown,
            transaction: row.map(|row| Box::new(TransactionBody::from(&*row))),
            retryable: ended.then_some(false),
            ..code.into()
        }
    }
}

/// A transaction as POST answers it: 200 if the awaited thing has happened, else 202. With `round`,
/// the refusal of that round, or of the whole, is 422.
pub(super) fn told(reply: &TransactionReply, round: Option<u8>, request_id: &str) -> Answer {
    let TransactionReply { row, replayed, settled } = reply;
    let mut answer = match round.and_then(|round| refused(row, round)) {
        Some(refusal) => refusal.answer(request_id),
        None => {
            let status = if *settled { StatusCode::OK } else { StatusCode::ACCEPTED };
            json(status, &TransactionBody::from(row), request_id)
        }
    };
    if *replayed {
        mark_replayed(&mut answer);
    }
    answer
}

/// The refusal of a round, `None` while there is none.
fn refused(row: &TransactionRow, round: u8) -> Option<Refusal> {
    let branch = row
        .branches
        .iter()
        .find(|branch| branch.round == round && branch.state == BranchState::Refused);
    let aborted = row.state.verdict() == Some(TransactionVerdict::Abort);
    let code = match branch {
        Some(branch) => branch.code.or(row.code),
        None if aborted => row.code,
        None => return None,
    };
    let code = code.unwrap_or(Code::TransactionAborted);
    let detail = match branch {
        Some(branch) => {
            let code_of = branch.participant_code.as_deref();
            let why = code_of.map_or_else(String::new, |code| format!(" ({code})"));
            let leg = branch.leg.map_or_else(String::new, |leg| format!(", leg {leg}"));
            Some(format!("{}{leg}: {}{why}", branch.party.name(), code.message()))
        }
        None => row.detail.clone(),
    };
    let row = Some(Box::new(row.clone()));
    Some(TransactionRefusal { code, detail, row, unknown: false }.into())
}

/// The state with this name.
pub(super) fn transaction_state(name: &str) -> Result<TransactionState, Refusal> {
    TransactionState::from_name(name).ok_or_else(|| {
        let names = TransactionState::ALL.map(TransactionState::name).join(", ");
        invalid(format!("state must be one of {names}."))
    })
}

/// The order number in a cursor.
pub(super) fn position(text: &str) -> Result<u64, Refusal> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let position = if digits { text.parse().ok() } else { None };
    position.ok_or_else(|| invalid("cursor must be the next_cursor of an earlier answer."))
}
