//! JSON of the answers: the one place where amounts, states and errors become text.

use engine::recorded::Recorded;
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{
    AccountName, AmountText, AssetStatusName, CodeName, PENDING, RepliedState, ReqIdText,
    SignedAmountText, StateName,
};
use crate::coordinator::balances::Balance;
use crate::coordinator::hand::LastError;
use crate::pause::{Pause, Scope};
use crate::postgres::events::Event;
use crate::postgres::reads::Passed;
use crate::postgres::reads::approvals::Approval;
use crate::postgres::reads::lists::{Listed, Posted};
use crate::postgres::store::Transfer;
use domain::amount::{signed_text, units_text};
use domain::asset::{Asset, Catalog};
use domain::code::Code;
use domain::transfer::{Decision, Direction, Money, Op, Participant, State};

/// The place of a transfer's money, from recorded operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FundsAt {
    /// The source account: not paid, or refunded.
    Source,
    /// Neither account: the source has paid, the target has not credited.
    InFlight,
    /// The target account.
    Target,
}

impl FundsAt {
    /// The place in a state. `withdrawn`: the source has paid, though the state does not show it
    /// yet.
    pub fn of(state: State, withdrawn: bool) -> FundsAt {
        match state.money_with(withdrawn) {
            Money::AtSource => FundsAt::Source,
            Money::InFlight => FundsAt::InFlight,
            Money::AtTarget => FundsAt::Target,
        }
    }
}

/// A transfer as POST answers it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Transfer)]
pub struct TransferBody {
    /// The transfer's number.
    transfer_id: u64,
    /// The name of the transfer.
    #[schema(value_type = ReqIdText)]
    req_id: String,
    /// The account that pays.
    #[schema(value_type = AccountName)]
    from: &'static str,
    /// The account that is paid.
    #[schema(value_type = AccountName)]
    to: &'static str,
    /// The asset's symbol.
    asset: String,
    /// Without trailing zeros.
    #[schema(value_type = AmountText)]
    amount: String,
    /// The state.
    #[schema(value_type = RepliedState)]
    state: &'static str,
    /// The place of the money.
    funds_at: FundsAt,
    /// Whether the state is final.
    #[serde(rename = "final")]
    is_final: bool,
    /// The client's idempotency key.
    #[schema(required = true)]
    cid: Option<String>,
    /// A sentence for people.
    message: &'static str,
}

impl TransferBody {
    /// The body of POST: every state that is not final is PENDING.
    pub fn posted(transfer: &Transfer, funds_at: FundsAt, catalog: &Catalog) -> TransferBody {
        let state = match transfer.state.is_terminal() {
            true => transfer.state.name(),
            false => PENDING,
        };
        TransferBody { state, ..TransferBody::read(transfer, funds_at, catalog) }
    }

    /// The body of GET, with the state's own name.
    pub fn read(transfer: &Transfer, funds_at: FundsAt, catalog: &Catalog) -> TransferBody {
        let intent = &transfer.intent;
        let asset = catalog.by_id(intent.asset).expect("read with this catalog or an older one");
        let (from, to) = intent.direction.accounts();
        TransferBody {
            transfer_id: transfer.intent.order_number,
            req_id: intent.req_id.to_string(),
            from,
            to,
            asset: asset.symbol.clone(),
            amount: intent.amount.text(asset.precision),
            state: transfer.state.name(),
            funds_at,
            is_final: transfer.state.is_terminal(),
            cid: intent.cid.as_ref().map(|cid| cid.as_str().to_owned()),
            message: transfer.state.message(),
        }
    }
}

/// Why a transfer failed, as a part of its body.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferError)]
pub struct ErrorBody {
    /// The code to act on.
    #[schema(value_type = CodeName)]
    code: &'static str,
    /// A sentence for people.
    message: &'static str,
}

impl From<Code> for ErrorBody {
    fn from(code: Code) -> ErrorBody {
        ErrorBody { code: code.name(), message: code.message() }
    }
}

/// A state that a transfer has passed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PassedState)]
pub struct PassedBody {
    /// The state.
    #[schema(value_type = StateName)]
    state: &'static str,
    /// The time.
    at: Timestamp,
    /// Attempts before it.
    attempt: u32,
    /// The reason; null if the state needs none.
    #[schema(required = true)]
    reason: Option<String>,
}

impl From<Passed> for PassedBody {
    fn from(passed: Passed) -> PassedBody {
        let Passed { state, at, attempt, reason } = passed;
        PassedBody { state: state.name(), at, attempt, reason }
    }
}

/// A transfer in its owner's list.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferSummary)]
pub struct SummaryBody {
    #[serde(flatten)]
    transfer: TransferBody,
    /// The time of the accept.
    created_at: Timestamp,
    /// The time of the last state that PostgreSQL has.
    updated_at: Timestamp,
    /// Why it failed; null if it did not.
    #[schema(required = true)]
    error: Option<ErrorBody>,
}

impl SummaryBody {
    /// One row of the list, with the state's own name.
    pub fn new(transfer: &Transfer, funds_at: FundsAt, catalog: &Catalog) -> SummaryBody {
        SummaryBody {
            transfer: TransferBody::read(transfer, funds_at, catalog),
            created_at: transfer.created_at,
            updated_at: transfer.updated_at,
            error: transfer.code.map(ErrorBody::from),
        }
    }
}

/// A page of a user's transfers.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferList)]
pub struct SummariesBody {
    /// Newest first. With filters that seldom match, a page may be short or empty and not the last.
    pub transfers: Vec<SummaryBody>,
    /// The cursor of the next page; null at the end.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// A transfer in full.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferDetail)]
pub struct DetailBody {
    #[serde(flatten)]
    transfer: SummaryBody,
    /// Every state that PostgreSQL has recorded, in order.
    history: Vec<PassedBody>,
}

impl DetailBody {
    /// The body of GET.
    pub fn new(
        transfer: &Transfer,
        funds_at: FundsAt,
        history: Vec<Passed>,
        catalog: &Catalog,
    ) -> DetailBody {
        DetailBody {
            transfer: SummaryBody::new(transfer, funds_at, catalog),
            history: history.into_iter().map(PassedBody::from).collect(),
        }
    }
}

/// The decision that a transfer waits for.
#[derive(Debug, Serialize)]
struct WaitsFor {
    account: &'static str,
    op: &'static str,
}

/// The effect of one commit on a transfer, as streams and webhooks send it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferEvent)]
pub struct EventBody {
    /// Text: many JSON readers lose digits of a number this large.
    event_id: String,
    /// The transfer's user.
    user_id: u64,
    /// The time of the commit.
    at: Timestamp,
    /// Every state of this commit, in order.
    #[schema(value_type = Vec<StateName>)]
    states: Vec<&'static str>,
    #[serde(flatten)]
    transfer: TransferBody,
    /// Why it failed; null if it did not.
    #[schema(required = true)]
    error: Option<ErrorBody>,
}

impl EventBody {
    /// The body of one event.
    pub fn new(event: &Event, catalog: &Catalog) -> EventBody {
        let transfer = &event.transfer;
        EventBody {
            event_id: event.id.to_string(),
            user_id: transfer.intent.user.number(),
            at: event.at,
            states: event.states.iter().map(|state| state.name()).collect(),
            transfer: TransferBody::read(transfer, FundsAt::of(transfer.state, false), catalog),
            error: transfer.code.map(ErrorBody::from),
        }
    }

    /// The body as JSON text. The same event gives the same text every time.
    pub fn json(event: &Event, catalog: &Catalog) -> String {
        let body = EventBody::new(event, catalog);
        serde_json::to_string(&body).expect("our own structures have no failing serializer")
    }
}

/// A transfer as operators see it.
#[derive(Debug, Serialize)]
pub struct OperatorBody {
    #[serde(flatten)]
    transfer: TransferBody,
    user_id: u64,
    created_at: Timestamp,
    updated_at: Timestamp,
    error: Option<ErrorBody>,
    retry_count: u32,
    waits_for: Option<WaitsFor>,
}

impl OperatorBody {
    /// The body of an operator's action.
    pub fn new(transfer: &Transfer, funds_at: FundsAt, catalog: &Catalog) -> OperatorBody {
        let waits_for = transfer.state.waits_for(transfer.intent.direction);
        let waits_for = waits_for.map(|(by, op)| WaitsFor { account: by.account(), op: op.name() });
        OperatorBody {
            transfer: TransferBody::read(transfer, funds_at, catalog),
            user_id: transfer.intent.user.number(),
            created_at: transfer.created_at,
            updated_at: transfer.updated_at,
            error: transfer.code.map(ErrorBody::from),
            retry_count: transfer.retry_count,
            waits_for,
        }
    }
}

/// A transfer in the operators' list.
#[derive(Debug, Serialize)]
pub struct ListedBody {
    #[serde(flatten)]
    transfer: OperatorBody,
    next_retry_at: Option<Timestamp>,
    age_ms: u64,
    last_error: Option<LastErrorBody>,
}

/// The error of a transfer's last attempt.
#[derive(Debug, Serialize)]
struct LastErrorBody {
    class: &'static str,
    sqlstate: Option<String>,
    message: String,
    at: Timestamp,
}

impl From<LastError> for LastErrorBody {
    fn from(error: LastError) -> LastErrorBody {
        let LastError { class, sqlstate, text: message, at_ns } = error;
        let at = Timestamp::from_nanosecond(i128::from(at_ns)).unwrap_or(Timestamp::MAX);
        LastErrorBody { class, sqlstate, message, at }
    }
}

impl ListedBody {
    /// One row of the list. `last_error`: the last one since its last state.
    pub fn new(
        listed: &Listed,
        funds_at: FundsAt,
        catalog: &Catalog,
        last_error: Option<LastError>,
    ) -> ListedBody {
        ListedBody {
            transfer: OperatorBody::new(&listed.transfer, funds_at, catalog),
            next_retry_at: listed.next_retry_at,
            age_ms: listed.age_ms,
            last_error: last_error.map(LastErrorBody::from),
        }
    }
}

/// A participant's record of one operation.
#[derive(Debug, Serialize)]
pub struct OperationBody {
    account: &'static str,
    op: &'static str,
    outcome: &'static str,
    code: Option<&'static str>,
    amount: String,
    balance_after: Option<String>,
    at: Option<Timestamp>,
    log_sequence: Option<u64>,
}

impl OperationBody {
    fn new(participant: Participant, op: Op, decision: Decision) -> OperationBody {
        let (outcome, code) = match decision {
            Decision::Success => ("SUCCESS", None),
            Decision::Refused(code) => ("REFUSED", Some(code.name())),
        };
        let (account, op) = (participant.account(), op.name());
        let (amount, balance_after, at, log_sequence) = (String::new(), None, None, None);
        OperationBody { account, op, outcome, code, amount, balance_after, at, log_sequence }
    }

    /// Funding's record, of an asset with this many decimals.
    pub fn funding(posted: Posted, precision: u8) -> OperationBody {
        let Posted { op, decision, amount, balance_after, at } = posted;
        let balance_after = balance_after.map(|units| signed_text(units, precision));
        let (amount, at) = (amount.text(precision), Some(at));
        let body = OperationBody::new(Participant::Funding, op, decision);
        OperationBody { amount, balance_after, at, ..body }
    }

    /// UBSCore's record.
    pub fn spot(op: Op, recorded: &Recorded, precision: u8) -> OperationBody {
        let at = Timestamp::from_nanosecond(recorded.time_ns.into()).ok();
        OperationBody {
            amount: units_text(recorded.amount.into(), precision),
            balance_after: Some(units_text(recorded.balance_after, precision)),
            at,
            log_sequence: Some(recorded.sequence),
            ..OperationBody::new(Participant::Spot, op, recorded.decision)
        }
    }
}

/// All that both participants know of a transfer.
#[derive(Debug, Serialize)]
pub struct ShownBody {
    /// The row of the list.
    #[serde(flatten)]
    pub transfer: ListedBody,
    /// Every state that it has passed.
    pub history: Vec<PassedBody>,
    /// The records of both participants, in the order of the decisions.
    pub operations: Vec<OperationBody>,
    /// Whether UBSCore has answered.
    pub spot_answered: bool,
    /// Whether the transfer is so old that UBSCore may have forgotten its record.
    pub spot_forgotten: bool,
}

/// One side of a balance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Side)]
struct SideBody {
    /// Units that can be moved. Only of a special account on Funding they may be below zero.
    #[schema(value_type = SignedAmountText)]
    available: String,
    /// Units that cannot.
    #[schema(value_type = AmountText)]
    frozen: String,
}

/// One asset of one user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Balance)]
pub struct BalanceBody {
    /// The asset's symbol.
    asset: String,
    /// The Funding account; null if there is none.
    #[schema(required = true)]
    funding: Option<SideBody>,
    /// The Spot account; null if there is none.
    #[schema(required = true)]
    spot: Option<SideBody>,
    /// Units that have left one account and not reached the other. Below zero while a transaction
    /// has brought some that its payer still has.
    #[schema(value_type = SignedAmountText)]
    in_flight: String,
}

/// One user's balances.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BalanceList)]
pub struct BalancesBody {
    /// In the order of the assets' numbers.
    pub balances: Vec<BalanceBody>,
}

impl From<Balance> for BalanceBody {
    fn from(balance: Balance) -> BalanceBody {
        let text = |units| units_text(units, balance.asset.precision);
        let signed = |units| signed_text(units, balance.asset.precision);
        let funding =
            |(available, frozen)| SideBody { available: signed(available), frozen: text(frozen) };
        let spot =
            |(available, frozen)| SideBody { available: text(available), frozen: text(frozen) };
        BalanceBody {
            funding: balance.funding.map(funding),
            spot: balance.spot.map(spot),
            in_flight: signed_text(balance.in_flight, balance.asset.precision),
            asset: balance.asset.symbol,
        }
    }
}

/// The transfers that a pause refuses, as text.
pub fn paused(scope: Scope, catalog: &Catalog) -> String {
    let mut text = "Transfers".to_owned();
    if let Some(asset) = scope.asset() {
        // An asset whose row was deleted by hand is named by its number.
        let symbol = catalog.by_id(asset).map(|asset| asset.symbol.clone());
        text += &format!(" of {}", symbol.unwrap_or_else(|| format!("asset {}", asset.0)));
    }
    if let Some(direction) = scope.direction() {
        let (from, to) = direction.accounts();
        text += &format!(" from {from} to {to}");
    }
    text
}

/// A pause.
#[derive(Debug, Serialize)]
pub struct PauseBody {
    direction: Option<&'static str>,
    asset: Option<String>,
    at: Timestamp,
    actor: String,
    reason: String,
}

impl PauseBody {
    /// One row of the list.
    pub fn new(pause: &Pause, catalog: &Catalog) -> PauseBody {
        let asset = pause.scope.asset().map(|id| {
            let symbol = catalog.by_id(id).map(|asset| asset.symbol.clone());
            symbol.unwrap_or_else(|| format!("#{}", id.0))
        });
        PauseBody {
            direction: pause.scope.direction().map(Direction::wire_name),
            asset,
            at: pause.at,
            actor: pause.actor.clone(),
            reason: pause.reason.clone(),
        }
    }
}

/// An operator's request, and the decision of another operator.
#[derive(Debug, Serialize)]
pub struct ApprovalBody {
    approval_id: String,
    action: &'static str,
    subject: String,
    request: serde_json::Value,
    state: &'static str,
    maker: u64,
    reason: String,
    created_at: Timestamp,
    expires_at: Timestamp,
    decider: Option<u64>,
    decider_reason: Option<String>,
    decided_at: Option<Timestamp>,
    carried_out_at: Option<Timestamp>,
}

impl From<Approval> for ApprovalBody {
    fn from(approval: Approval) -> ApprovalBody {
        let (decider, decider_reason) = approval.decider.unzip();
        ApprovalBody {
            approval_id: approval.approval_id,
            action: approval.action.name(),
            subject: approval.subject,
            // A row that was written by hand may hold no JSON: shown as it is.
            request: serde_json::from_str(&approval.request)
                .unwrap_or(serde_json::Value::String(approval.request)),
            state: approval.state.name(),
            maker: approval.maker,
            reason: approval.reason,
            created_at: approval.created_at,
            expires_at: approval.expires_at,
            decider,
            decider_reason,
            decided_at: approval.decided_at,
            carried_out_at: approval.carried_out_at,
        }
    }
}

/// An asset.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Asset)]
pub struct AssetBody {
    /// The symbol.
    symbol: String,
    /// Decimals of its smallest unit.
    precision: u8,
    /// Whether it can be moved.
    #[schema(value_type = AssetStatusName)]
    status: &'static str,
    /// The smallest amount of one transfer.
    #[schema(value_type = AmountText)]
    min: String,
    /// The largest amount of one transfer.
    #[schema(value_type = AmountText)]
    max: String,
    /// Whether internal transfers of it are enabled.
    transfer_enabled: bool,
}

/// All assets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AssetList)]
pub struct AssetsBody {
    /// In the order of their numbers.
    pub assets: Vec<AssetBody>,
}

impl From<&Asset> for AssetBody {
    fn from(asset: &Asset) -> AssetBody {
        AssetBody {
            symbol: asset.symbol.clone(),
            precision: asset.precision,
            status: asset.status.name(),
            min: asset.transfer_min.text(asset.precision),
            max: asset.transfer_max.text(asset.precision),
            transfer_enabled: asset.transfer_enabled,
        }
    }
}
