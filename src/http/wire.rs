//! JSON as the outside sees it: the one place where amounts, states and errors become text.

use std::convert::Infallible;

use bytes::Bytes;
use engine::recorded::Recorded;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Either, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::X_REQUEST_ID;
use super::openapi::{
    AccountName, AmountText, AssetStatusName, CodeName, PENDING, ReqIdText, ShortageName,
    StateName, ToldState,
};
use crate::coordinator::Rejection;
use crate::coordinator::balances::Balance;
use crate::coordinator::hand::LastError;
use crate::pause::{Pause, Scope};
use crate::postgres::events::Event;
use crate::postgres::reads::Passed;
use crate::postgres::reads::approvals::Approval;
use crate::postgres::reads::lists::{Listed, Posted};
use crate::postgres::store::Transfer;
use crate::quota::{Refused, Standing};
use crate::telemetry;
use domain::amount::{plain_text, units_text};
use domain::asset::{Asset, Catalog};
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Decision, Direction, Money, Op, Participant, ReqId, State};

/// What `Retry-After` says where a retry can help, s.
const RETRY_AFTER_S: u64 = 1;

/// What a 401 asks for.
const CHALLENGE: &str = "Bearer realm=\"ubscore\"";

/// What is allowed, and of which window.
const RATELIMIT_POLICY: &str = "ratelimit-policy";
/// What is left of it, and until when.
const RATELIMIT: &str = "ratelimit";
/// The largest whole number in a structured field (RFC 9651, 3.3.1): of more there is at least so much.
const STRUCTURED_INTEGER_MAX: u64 = 999_999_999_999_999;

/// What an answer holds: nearly always what is known whole, and otherwise what comes as it happens.
pub type Content = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

/// An answer.
pub type Answer = Response<Content>;

/// What a request is answered with when it is refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// Another status than the code's own.
    pub status: Option<StatusCode>,
    /// Another sentence than the code's own.
    pub message: Option<String>,
    /// Whether the same request may succeed later, where it is not the code that decides.
    pub retryable: Option<bool>,
    /// The transfer, and where it ended.
    pub transfer: Option<(ReqId, Option<State>)>,
    /// It may have been done.
    pub unknown: bool,
    /// When another try can succeed, s, where that is known.
    pub retry_after_s: Option<u64>,
    /// The thing that has no room.
    pub shortage: Option<Shortage>,
}

impl From<Shortage> for Refusal {
    fn from(shortage: Shortage) -> Refusal {
        let message = shortage.message().to_owned();
        Refusal {
            shortage: Some(shortage),
            message: Some(message),
            ..Refusal::from(Code::Overloaded)
        }
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Refusal {
        let Rejection { code, detail, unknown, shortage } = rejection;
        match shortage {
            Some(shortage) => shortage.into(),
            None => Refusal { message: detail, unknown, ..code.into() },
        }
    }
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Refusal {
        Refusal {
            code,
            status: None,
            message: None,
            retryable: None,
            transfer: None,
            unknown: false,
            retry_after_s: None,
            shortage: None,
        }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        let Refused { code, retry_after_s, retryable } = refused;
        if code == Code::Overloaded {
            return Shortage::Limits.into();
        }
        Refusal { retry_after_s, retryable: Some(retryable), ..Refusal::from(code) }
    }
}

impl Refusal {
    /// A refusal that says more than its code.
    pub fn because(code: Code, message: impl Into<String>) -> Refusal {
        Refusal { message: Some(message.into()), ..Refusal::from(code) }
    }

    /// The same with another status.
    pub fn with_status(self, status: StatusCode) -> Refusal {
        Refusal { status: Some(status), ..self }
    }

    /// A part of the service did not answer; nothing was changed by this request.
    pub fn away(what: &str) -> Refusal {
        Refusal::because(Code::SystemError, format!("{what} does not answer; try again."))
    }

    /// The refusal as an answer.
    pub fn answer(&self, request_id: &str) -> Answer {
        let status = self.status.unwrap_or_else(|| {
            StatusCode::from_u16(self.code.http_status()).expect("the table holds HTTP statuses")
        });
        if let Some(shortage) = self.shortage {
            telemetry::refused(shortage.name());
        }
        let body = RefusalBody {
            code: self.code.name(),
            message: self.message.as_deref().unwrap_or(self.code.message()),
            retryable: self.retryable.unwrap_or(self.code.retryable()),
            request_id,
            req_id: self.transfer.map(|(req_id, _)| req_id.to_string()),
            state: self.transfer.and_then(|(_, state)| state).map(State::name),
            outcome: self.unknown.then_some("unknown"),
            reason: self.shortage.map(Shortage::name),
        };
        let mut answer = json(status, &body, request_id);
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            let retry_after_s = self.retry_after_s.unwrap_or(RETRY_AFTER_S);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after_s));
        }
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110, 15.5.2: a 401 names the scheme that is accepted.
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(CHALLENGE));
        }
        answer
    }
}

/// Says on an answer how each limit stands, where there is one.
///
/// Source: draft-ietf-httpapi-ratelimit-headers-10: two lists of structured fields (RFC 9651). An amount is counted in its
/// asset's smallest units.
pub fn tell_limits(answer: &mut Answer, standings: &[Standing]) {
    if standings.is_empty() {
        return;
    }
    let whole = |number: u64| number.min(STRUCTURED_INTEGER_MAX);
    let (mut policies, mut limits) = (Vec::new(), Vec::new());
    for standing in standings {
        let Standing { name, units, max, window_s, left, reset_s } = standing;
        let unit = if *units { ";qu=\"smallest-units\"" } else { "" };
        policies.push(format!("{name:?};q={}{unit};w={window_s}", whole(*max)));
        limits.push(format!("{name:?};r={};t={reset_s}", whole(*left)));
    }
    for (header, values) in [(RATELIMIT_POLICY, policies), (RATELIMIT, limits)] {
        // A symbol is whatever an operator has called an asset.
        if let Ok(value) = HeaderValue::from_str(&values.join(", ")) {
            answer.headers_mut().insert(header, value);
        }
    }
}

/// Why a request is refused, or how a transfer ended that did not succeed.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub struct RefusalBody<'a> {
    /// What to act on.
    #[schema(value_type = CodeName)]
    code: &'a str,
    /// A sentence for people.
    message: &'a str,
    /// Whether the very same request may succeed later.
    retryable: bool,
    /// As in the header X-Request-Id.
    request_id: &'a str,
    /// The transfer, where there is one or may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReqIdText>, nullable = false)]
    req_id: Option<String>,
    /// Where it stands, of a transfer that has ended or that is not to be resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateName>, nullable = false)]
    state: Option<&'a str>,
    /// Whether the transfer was accepted is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, pattern = "^unknown$")]
    outcome: Option<&'a str>,
    /// The thing that has no room, of OVERLOADED.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ShortageName>, nullable = false)]
    reason: Option<&'a str>,
}

impl<'a> RefusalBody<'a> {
    /// A refusal that is told beside other things.
    pub fn new(
        code: Code,
        message: &'a str,
        request_id: &'a str,
        shortage: Option<Shortage>,
    ) -> RefusalBody<'a> {
        RefusalBody {
            code: code.name(),
            message,
            retryable: true,
            request_id,
            req_id: None,
            state: None,
            outcome: None,
            reason: shortage.map(Shortage::name),
        }
    }
}

/// A JSON answer.
pub fn json(status: StatusCode, body: &impl Serialize, request_id: &str) -> Answer {
    let bytes = serde_json::to_vec(body).expect("our own structures have no failing serializer");
    text(status, "application/json", bytes.into(), request_id)
}

/// An answer of any kind.
pub fn text(status: StatusCode, kind: &'static str, body: Bytes, request_id: &str) -> Answer {
    let mut answer = Response::new(Content::Left(Full::new(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    let request_id = HeaderValue::from_str(request_id).expect("made by us or found sane");
    answer.headers_mut().insert(X_REQUEST_ID, request_id);
    answer
}

/// Where a transfer's money is, from recorded operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FundsAt {
    /// Not taken, or given back.
    Source,
    /// Taken, and not yet given.
    InFlight,
    /// Given.
    Target,
}

impl FundsAt {
    /// Where it is in a state; `withdrawn`: the source has paid, though the state does not say so yet.
    pub fn of(state: State, withdrawn: bool) -> FundsAt {
        match state.money_with(withdrawn) {
            Money::AtSource => FundsAt::Source,
            Money::InFlight => FundsAt::InFlight,
            Money::AtTarget => FundsAt::Target,
        }
    }
}

/// A transfer without what only GET tells.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Transfer)]
pub struct TransferBody {
    /// The transfer's number.
    transfer_id: i64,
    /// The transfer's name.
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
    /// Where it stands.
    #[schema(value_type = ToldState)]
    state: &'static str,
    /// Where the money is.
    funds_at: FundsAt,
    /// Whether nothing can change any more.
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
            transfer_id: transfer.transfer_id,
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

/// Why a transfer ended, inside a transfer's body.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferError)]
pub struct ErrorBody {
    /// What to act on.
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

/// One state of a transfer's past.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PassedState)]
pub struct PassedBody {
    /// The state.
    #[schema(value_type = StateName)]
    state: &'static str,
    /// When.
    at: Timestamp,
    /// Tries before it.
    attempt: u32,
    /// Why, where there is more to say than the state's name.
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
    /// When it was accepted.
    created_at: Timestamp,
    /// When PostgreSQL last wrote a state of it.
    updated_at: Timestamp,
    /// Why it ended, where it did not succeed.
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
    /// Newest first. Filters that seldom match make pages short, or empty, that are not the last.
    pub transfers: Vec<SummaryBody>,
    /// The next page's cursor, null at the end.
    #[schema(required = true)]
    pub next_cursor: Option<String>,
}

/// A transfer in full.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferDetail)]
pub struct DetailBody {
    #[serde(flatten)]
    transfer: SummaryBody,
    /// Every state that PostgreSQL has seen it pass, in order.
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

/// Whose decision a transfer waits for.
#[derive(Debug, Serialize)]
struct WaitsFor {
    account: &'static str,
    op: &'static str,
}

/// What one commit did to a transfer, as streams and webhooks tell it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TransferEvent)]
pub struct EventBody {
    /// Text: it is more than a number of JSON keeps everywhere.
    event_id: String,
    /// Whose transfer it is.
    user_id: u64,
    /// When the commit was made.
    at: Timestamp,
    /// Every state that it passed in this commit, in order.
    #[schema(value_type = Vec<StateName>)]
    states: Vec<&'static str>,
    #[serde(flatten)]
    transfer: TransferBody,
    /// Why it ended, where it did not succeed.
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

    /// The same as JSON text, which is the same whenever it is asked for.
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
    /// The body of a route that attends to it.
    pub fn new(transfer: &Transfer, funds_at: FundsAt, catalog: &Catalog) -> OperatorBody {
        let waits_for = transfer.state.waits_for(transfer.intent.direction);
        let waits_for =
            waits_for.map(|(who, op)| WaitsFor { account: who.account(), op: op.name() });
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

/// A transfer in a list.
#[derive(Debug, Serialize)]
pub struct ListedBody {
    #[serde(flatten)]
    transfer: OperatorBody,
    next_retry_at: Option<Timestamp>,
    age_ms: u64,
    last_error: Option<LastErrorBody>,
}

/// Why the last try of a transfer came to nothing.
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
    /// One row of the list. `last_error`: since it last moved.
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

/// What a participant has recorded for one operation.
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
    fn new(who: Participant, op: Op, decision: Decision) -> OperationBody {
        let (outcome, code) = match decision {
            Decision::Success => ("SUCCESS", None),
            Decision::Refused(code) => ("REFUSED", Some(code.name())),
        };
        let (account, op) = (who.account(), op.name());
        let (amount, balance_after, at, log_sequence) = (String::new(), None, None, None);
        OperationBody { account, op, outcome, code, amount, balance_after, at, log_sequence }
    }

    /// Funding's.
    pub fn funding(posted: Posted) -> OperationBody {
        let Posted { op, decision, amount, balance_after, at } = posted;
        let balance_after = balance_after.as_deref().map(plain);
        let (amount, at) = (plain(&amount), Some(at));
        let body = OperationBody::new(Participant::Funding, op, decision);
        OperationBody { amount, balance_after, at, ..body }
    }

    /// UBSCore's, of an asset with this many decimals.
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

/// Decimal text without trailing zeros.
pub fn plain(text: &str) -> String {
    plain_text(text)
}

/// Everything that is known of a transfer.
#[derive(Debug, Serialize)]
pub struct ShownBody {
    /// As in a list.
    #[serde(flatten)]
    pub transfer: ListedBody,
    /// Every state it has passed.
    pub history: Vec<PassedBody>,
    /// What both participants have recorded for it, in the order in which it was decided.
    pub operations: Vec<OperationBody>,
    /// Whether UBSCore has said what it has recorded.
    pub spot_answered: bool,
    /// UBSCore may have recorded something, so long ago that it has forgotten it.
    pub spot_forgotten: bool,
}

/// One side of a balance.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Side)]
struct SideBody {
    /// What can be moved.
    #[schema(value_type = AmountText)]
    available: String,
    /// What cannot.
    #[schema(value_type = AmountText)]
    frozen: String,
}

/// One asset of one user.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Balance)]
pub struct BalanceBody {
    /// The asset's symbol.
    asset: String,
    /// The Funding account, null where there is none.
    #[schema(required = true)]
    funding: Option<SideBody>,
    /// The Spot account, null where there is none.
    #[schema(required = true)]
    spot: Option<SideBody>,
    /// What has left one account and not reached the other.
    #[schema(value_type = AmountText)]
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
        let side =
            |(available, frozen)| SideBody { available: text(available), frozen: text(frozen) };
        BalanceBody {
            funding: balance.funding.map(side),
            spot: balance.spot.map(|available| side((available, 0))),
            in_flight: text(balance.in_flight),
            asset: balance.asset.symbol,
        }
    }
}

/// The transfers that a pause is about, for people.
pub fn paused(scope: Scope, catalog: &Catalog) -> String {
    let mut text = "Transfers".to_owned();
    if let Some(asset) = scope.asset() {
        // One that somebody has removed from PostgreSQL by hand is named by its number.
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

/// What one operator has asked for, and what another one has decided.
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
            // Somebody's own row, if it is none: shown as it is.
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
    /// Its name.
    symbol: String,
    /// Decimals of its smallest unit.
    precision: u8,
    /// Whether it moves.
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
