//! The answers to rounds, from the words of `transaction_accept`.

use super::columns::{expiry, micros};
use super::{Accepted, RoundAccept, TransactionError};
use crate::transaction::{
    Branch, Decider, ROUNDS_MAX, TransactionPassage, TransactionRound, TransactionRow,
    TransactionState,
};
use domain::code::Code;

/// Why a round cannot be written at all.
pub(super) fn out_of_form(round: &TransactionRound, branches: &[Branch]) -> Option<String> {
    let number = round.round;
    if !(1..=ROUNDS_MAX).contains(&number) {
        return Some(format!("round {number}: a transaction has rounds 1 to {ROUNDS_MAX}"));
    }
    branches.is_empty().then(|| format!("round {number} has no leg and no participant"))
}

pub(super) fn refused(code: Code, detail: String, row: Option<TransactionRow>) -> Accepted {
    Accepted::Refused { code, detail, row: row.map(Box::new) }
}

/// The answer to a round that met a row.
pub(super) fn judged(
    answer: &str,
    round: &TransactionRound,
    row: Option<TransactionRow>,
    held: Option<String>,
) -> Result<Accepted, TransactionError> {
    let number = round.round;
    // An operator has changed it just now.
    let special = "an operator has just changed whether an account of it is special: send it again";
    let Some(row) = row else {
        return match answer {
            "special" => Ok(refused(Code::Overloaded, special.to_owned(), None)),
            "order" => {
                let detail = format!("round {number} of a transaction without a first round");
                Ok(refused(Code::InvalidRequest, detail, None))
            }
            "repaired" => {
                let detail = "a transaction with this tx_id was written again from the log, which \
                              does not name owners: ask an operator";
                Ok(refused(Code::TxIdConflict, detail.to_owned(), None))
            }
            // Its row is never deleted.
            _ => Err(TransactionError::Unknown("a row was there, and is gone".to_owned())),
        };
    };
    let next = row.rounds + 1;
    let (code, detail) = match answer {
        "taken" => return Ok(Accepted::Taken { row: Box::new(row), replayed: false }),
        "repeated" => return Ok(Accepted::Taken { row: Box::new(row), replayed: true }),
        "conflict" => (Code::TxIdConflict, differing(&row, round)),
        "decided" => (Code::TransactionDecided, format!("it is {}", row.state.name())),
        "aborted" => match row.code {
            Some(Code::TransactionExpired) => {
                (Code::TransactionExpired, "it was aborted for its age".to_owned())
            }
            _ => (Code::TransactionAborted, format!("it is {}", row.state.name())),
        },
        "rounds" => {
            let decider = row.decider.name();
            let caller = Decider::Caller.name();
            let detail =
                format!("it is decided by {decider}: only with {caller} there is round {number}");
            (Code::InvalidRequest, detail)
        }
        "order" => (Code::InvalidRequest, format!("round {number}, and the next one is {next}")),
        "untried" => {
            (Code::TransactionUntried, format!("a round before round {number} is being tried"))
        }
        "special" => (Code::Overloaded, special.to_owned()),
        "held" => {
            let held = held.unwrap_or_default();
            (Code::Overloaded, format!("a session of the caller holds the transaction: {held}"))
        }
        other => return Err(TransactionError::Unknown(format!("the answer {other:?}"))),
    };
    Ok(refused(code, detail, Some(row)))
}

/// The fields in which a round differs from the one that was accepted, for people.
fn differing(row: &TransactionRow, round: &TransactionRound) -> String {
    let there: Vec<&Branch> =
        row.branches.iter().filter(|branch| branch.round == round.round).collect();
    let asked = round.branches();
    let mut fields = Vec::new();
    let first = round.round == 1;
    let ttl = row.expires_at.duration_since(row.created_at).as_millis();
    if first && row.decider != round.decider {
        fields.push("decide".to_owned());
    }
    if first && u128::from(round.ttl_ms) != ttl.unsigned_abs() {
        fields.push("ttl_ms".to_owned());
    }
    for branch in &asked {
        match there.iter().find(|other| other.party == branch.party) {
            Some(other) if other.legs != branch.legs => {
                fields.push(format!("legs of {}", branch.party.name()));
            }
            Some(other) if other.payload != branch.payload || other.last != branch.last => {
                fields.push(format!("participant {}", branch.party.name()));
            }
            Some(_) => {}
            None => fields.push(format!("{} is new", branch.party.name())),
        }
    }
    let missing = there.iter().filter(|other| !asked.iter().any(|one| one.party == other.party));
    fields.extend(missing.map(|other| format!("{} is missing", other.party.name())));
    match fields.is_empty() {
        true => format!("round {} was accepted with another body", round.round),
        false => {
            format!("round {} was accepted with another body: {}", round.round, fields.join(", "))
        }
    }
}

/// A new transaction as PostgreSQL has it, times to the microsecond.
pub(super) fn new_row(accept: &RoundAccept) -> TransactionRow {
    let RoundAccept { round, id, order_number, at } = accept;
    let at = micros(*at);
    let passage = TransactionPassage {
        state: TransactionState::Open.name().to_owned(),
        at,
        by: round.name.owner.clone(),
        reason: None,
    };
    TransactionRow {
        id: *id,
        order_number: *order_number,
        name: round.name.clone(),
        state: TransactionState::Open,
        decider: round.decider,
        decided_by: None,
        expires_at: expiry(at, round.ttl_ms),
        rounds: 1,
        code: None,
        detail: None,
        sealed: false,
        stores_ended: false,
        branches: round.branches(),
        history: vec![passage],
        created_at: at,
        updated_at: at,
    }
}
