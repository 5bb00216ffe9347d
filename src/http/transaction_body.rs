//! JSON of transactions: as their owners and as operators see them.

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{BranchStateName, CodeName, TransactionIdText, TransactionStateName, TxIdText};
use crate::transaction::{
    Branch, BranchState, Party, TransactionLeg, TransactionPassage, TransactionRow,
    TransactionState,
};
use domain::amount::units_text;
use domain::asset::Catalog;
use domain::transfer::Participant;

/// A transaction as its owner sees it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Transaction)]
pub struct TransactionBody {
    /// The name that ubscore gave.
    #[schema(value_type = TransactionIdText)]
    transaction_id: String,
    /// The name that its owner gave.
    #[schema(value_type = TxIdText)]
    tx_id: String,
    /// The state.
    #[schema(value_type = TransactionStateName)]
    state: &'static str,
    /// Whether the state is final: nothing is under way any more.
    #[serde(rename = "final")]
    is_final: bool,
    /// The author of the decision: `coordinator`, `caller` and a role of PostgreSQL, `age`, an
    /// operator, a participant; null without one.
    #[schema(required = true)]
    decided_by: Option<String>,
    /// Why it is aborted; null if it is not.
    #[schema(required = true, value_type = Option<CodeName>)]
    code: Option<&'static str>,
    /// The branches: by round, and each round in the order FUNDING, SPOT, services by name.
    branches: Vec<BranchBody>,
    /// Each state that it has passed, in order; also each branch that operators have ended.
    history: Vec<PassageBody>,
}

/// The part of one participant in one round.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TransactionBranch)]
pub struct BranchBody {
    /// FUNDING, SPOT, or the name of a service.
    participant: String,
    /// From 1.
    round: u8,
    /// The state.
    #[schema(value_type = BranchStateName)]
    state: &'static str,
    /// Why it refused; null if it did not.
    #[schema(required = true, value_type = Option<CodeName>)]
    code: Option<&'static str>,
    /// The code that a service gave with its refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    participant_code: Option<String>,
    /// The first leg that failed, from 0, among those of this branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    leg: Option<u8>,
}

/// A state that a transaction has passed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TransactionPassage)]
pub struct PassageBody {
    /// The state.
    #[schema(value_type = TransactionStateName)]
    state: String,
    /// The time.
    at: Timestamp,
    /// The author.
    by: String,
    /// For people; null if there is no more to say.
    #[schema(required = true)]
    reason: Option<String>,
}

/// A page of an owner's transactions.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransactionList)]
pub struct TransactionsBody {
    /// Newest first.
    pub transactions: Vec<TransactionBody>,
    /// The cursor of the next page; null at the end.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

impl From<&TransactionRow> for TransactionBody {
    fn from(row: &TransactionRow) -> TransactionBody {
        TransactionBody {
            transaction_id: row.id.to_string(),
            tx_id: row.name.tx_id.as_str().to_owned(),
            state: row.state.name(),
            is_final: row.state.is_terminal(),
            decided_by: row.decided_by.clone(),
            code: row.code.map(domain::code::Code::name),
            branches: row.branches.iter().map(BranchBody::from).collect(),
            history: row.history.iter().map(PassageBody::from).collect(),
        }
    }
}

impl From<&Branch> for BranchBody {
    fn from(branch: &Branch) -> BranchBody {
        BranchBody {
            participant: branch.party.name().to_owned(),
            round: branch.round,
            state: branch.state.name(),
            code: branch.code.map(domain::code::Code::name),
            participant_code: branch.participant_code.clone(),
            leg: branch.leg,
        }
    }
}

impl From<&TransactionPassage> for PassageBody {
    fn from(passage: &TransactionPassage) -> PassageBody {
        let TransactionPassage { state, at, by, reason } = passage.clone();
        PassageBody { state, at, by, reason }
    }
}

/// A transaction as operators see it.
#[derive(Debug, Serialize)]
pub struct TransactionOperatorBody {
    #[serde(flatten)]
    transaction: TransactionBody,
    owner: String,
    order_number: u64,
    decide: &'static str,
    rounds: u8,
    detail: Option<String>,
    sealed: bool,
    /// Funding and Spot have carried out the decision.
    stores_ended: bool,
    expires_at: Timestamp,
    created_at: Timestamp,
    updated_at: Timestamp,
    age_ms: u64,
    stuck: bool,
    /// The parties that have not answered, or the caller.
    waits_for: Vec<String>,
}

impl TransactionOperatorBody {
    /// One row of the list. `now`: the service's clock; `stuck_ms`: a transaction that is decided,
    /// or beyond its age, for longer is stuck.
    pub fn new(row: &TransactionRow, now: Timestamp, stuck_ms: u64) -> TransactionOperatorBody {
        let age = now.duration_since(row.created_at).as_millis();
        TransactionOperatorBody {
            transaction: TransactionBody::from(row),
            owner: row.name.owner.clone(),
            order_number: row.order_number,
            decide: row.decider.name(),
            rounds: row.rounds,
            detail: row.detail.clone(),
            sealed: row.sealed,
            stores_ended: row.stores_ended,
            expires_at: row.expires_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            age_ms: u64::try_from(age).unwrap_or(0),
            stuck: is_stuck(row, now, stuck_ms),
            waits_for: waits_for(row),
        }
    }
}

/// A transaction in full, for operators.
#[derive(Debug, Serialize)]
pub struct TransactionShownBody {
    #[serde(flatten)]
    transaction: TransactionOperatorBody,
    /// The legs and payloads of each branch, in the order of `branches`.
    parts: Vec<PartBody>,
}

/// The words for one participant in one round.
#[derive(Debug, Serialize)]
struct PartBody {
    branch_id: String,
    last: bool,
    log_sequence: Option<u64>,
    legs: Vec<LegBody>,
    payload: serde_json::Value,
}

#[derive(Debug, Serialize)]
struct LegBody {
    /// A user of the branch's own store, or a named place.
    from: serde_json::Value,
    to: serde_json::Value,
    asset: String,
    amount: String,
}

impl TransactionShownBody {
    /// The body of one transaction. For `now` and `stuck_ms` see [`TransactionOperatorBody::new`].
    pub fn new(
        row: &TransactionRow,
        now: Timestamp,
        stuck_ms: u64,
        catalog: &Catalog,
    ) -> TransactionShownBody {
        let part = |branch: &Branch| PartBody {
            branch_id: row.branch_id(branch),
            last: branch.last,
            log_sequence: branch.log_sequence,
            legs: legs_of(branch, catalog),
            payload: branch.payload.clone(),
        };
        TransactionShownBody {
            transaction: TransactionOperatorBody::new(row, now, stuck_ms),
            parts: row.branches.iter().map(part).collect(),
        }
    }
}

/// The legs of a branch. A service has none.
fn legs_of(branch: &Branch, catalog: &Catalog) -> Vec<LegBody> {
    let Party::Store(store) = branch.party else { return Vec::new() };
    branch.legs.iter().map(|leg| LegBody::new(leg, store, catalog)).collect()
}

impl LegBody {
    fn new(leg: &TransactionLeg, store: Participant, catalog: &Catalog) -> LegBody {
        let symbol = catalog.by_id(leg.asset).map(|asset| asset.symbol.clone());
        LegBody {
            from: leg.from.value(store),
            to: leg.to.value(store),
            // An asset without a row, deleted by hand, is named by its number.
            asset: symbol.unwrap_or_else(|| format!("#{}", leg.asset.0)),
            amount: units_text(leg.amount.into(), catalog.precision(leg.asset)),
        }
    }
}

/// Whether a transaction is undecided beyond its age, or decided and unfinished, for too long.
fn is_stuck(row: &TransactionRow, now: Timestamp, stuck_ms: u64) -> bool {
    let since = match row.state {
        TransactionState::Done | TransactionState::Cancelled => return false,
        TransactionState::Open | TransactionState::Deciding => row.expires_at,
        TransactionState::Committed | TransactionState::Aborted => row.updated_at,
    };
    u64::try_from(now.duration_since(since).as_millis()).is_ok_and(|ms| ms >= stuck_ms)
}

/// The parties that have to answer next; the caller, if only its decision is missing.
fn waits_for(row: &TransactionRow) -> Vec<String> {
    if row.state.is_terminal() {
        return Vec::new();
    }
    let decided = row.state.verdict().is_some();
    let waits = |branch: &&Branch| match decided {
        true => !branch.state.is_terminal(),
        false => branch.state == BranchState::Trying,
    };
    let mut parties: Vec<String> =
        row.branches.iter().filter(waits).map(|branch| branch.party.name().to_owned()).collect();
    parties.dedup();
    if parties.is_empty() && row.state == TransactionState::Open {
        parties.push(row.decider.name().to_owned());
    }
    parties
}
