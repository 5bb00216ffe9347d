//! The operators' routes: health, metrics, external money, accounts, assets; those about transfers are in `transfers.rs`,
//! those about pauses in `pauses.rs`, a look at one user's accounts in `accounts.rs`, the list of assets and new ones in
//! `assets.rs`, what needs two operators in `approvals.rs`, the caller's own token in `session.rs`, what there is of each asset
//! in `totals.rs`, and the page that asks all of them in `console.rs`.

mod accounts;
mod approvals;
mod assets;
mod console;
mod pauses;
mod session;
mod totals;
mod transfers;
mod webhooks;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::{Instrument, error};

use self::approvals::SeenHalt;
use super::api::{away, replayed_before};
use super::idempotency;
use super::readiness::Readiness;
use super::service::{Call, Caller, Matched, Outcome, Route, Routes, Service, invalid, query};
use super::wire::{self, Answer, AssetBody, Refusal, json, text};
use crate::adapters::spot::Unanswered;
use crate::approval::Action;
use crate::audit::halt::{self as flag, Halted, NotResumed, Objection};
use crate::audit::mismatch::Mismatch;
use crate::coordinator::Rejection;
use crate::postgres::reads::PoolUse;
use crate::postgres::reads::assets::AssetChange;
use crate::postgres::{self, store};
use crate::telemetry::{self, chain};
use domain::account::{AccountStatus, AccountType, UserId};
use domain::amount::{Amount, units_text};
use domain::asset::{AssetId, AssetStatus};
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{Cid, Decision, Op, State};

#[derive(Clone, Copy)]
enum Ops {
    Health,
    Ready,
    Metrics,
    Console,
    ConsoleFile,
    Deposit,
    Withdraw,
    Accounts,
    AccountStatus,
    Asset,
    Assets,
    AddAsset,
    Transfers,
    Transfer,
    Retry,
    Resolve,
    Conservation,
    Snapshot,
    Pauses,
    Pause,
    Approvals,
    Approve,
    Reject,
    Halt,
    Resume,
    DeadLetters,
    Resend,
    Session,
    Totals,
}

static ROUTES: LazyLock<Routes<Ops>> = LazyLock::new(|| {
    static TABLE: &[Route<Ops>] = &[
        Route { pattern: "/healthz", method: Method::GET, route: Ops::Health },
        Route { pattern: "/readyz", method: Method::GET, route: Ops::Ready },
        Route { pattern: "/metrics", method: Method::GET, route: Ops::Metrics },
        Route { pattern: console::PATH, method: Method::GET, route: Ops::Console },
        Route { pattern: "/console/{file}", method: Method::GET, route: Ops::ConsoleFile },
        Route { pattern: "/admin/v1/deposits", method: Method::POST, route: Ops::Deposit },
        Route { pattern: "/admin/v1/withdrawals", method: Method::POST, route: Ops::Withdraw },
        Route {
            pattern: "/admin/v1/accounts/{user_id}",
            method: Method::GET,
            route: Ops::Accounts,
        },
        Route {
            pattern: "/admin/v1/accounts/{user_id}/{account_type}/status",
            method: Method::PUT,
            route: Ops::AccountStatus,
        },
        Route { pattern: "/admin/v1/assets", method: Method::GET, route: Ops::Assets },
        Route { pattern: "/admin/v1/assets", method: Method::POST, route: Ops::AddAsset },
        Route { pattern: "/admin/v1/assets/{symbol}", method: Method::PUT, route: Ops::Asset },
        Route { pattern: "/admin/v1/transfers", method: Method::GET, route: Ops::Transfers },
        Route {
            pattern: "/admin/v1/transfers/{req_id}",
            method: Method::GET,
            route: Ops::Transfer,
        },
        Route {
            pattern: "/admin/v1/transfers/{req_id}/retry",
            method: Method::POST,
            route: Ops::Retry,
        },
        Route {
            pattern: "/admin/v1/transfers/{req_id}/resolve",
            method: Method::POST,
            route: Ops::Resolve,
        },
        Route { pattern: "/admin/v1/conservation", method: Method::GET, route: Ops::Conservation },
        Route { pattern: "/admin/v1/snapshot", method: Method::POST, route: Ops::Snapshot },
        Route { pattern: "/admin/v1/pauses", method: Method::GET, route: Ops::Pauses },
        Route { pattern: "/admin/v1/pauses", method: Method::PUT, route: Ops::Pause },
        Route { pattern: "/admin/v1/approvals", method: Method::GET, route: Ops::Approvals },
        Route {
            pattern: "/admin/v1/approvals/{approval_id}/approve",
            method: Method::POST,
            route: Ops::Approve,
        },
        Route {
            pattern: "/admin/v1/approvals/{approval_id}/reject",
            method: Method::POST,
            route: Ops::Reject,
        },
        Route { pattern: "/admin/v1/halt", method: Method::POST, route: Ops::Halt },
        Route { pattern: "/admin/v1/resume", method: Method::POST, route: Ops::Resume },
        Route { pattern: "/admin/v1/webhooks/dead", method: Method::GET, route: Ops::DeadLetters },
        Route {
            pattern: "/admin/v1/webhooks/{event_id}/resend",
            method: Method::POST,
            route: Ops::Resend,
        },
        Route { pattern: "/admin/v1/session", method: Method::GET, route: Ops::Session },
        Route { pattern: "/admin/v1/totals", method: Method::GET, route: Ops::Totals },
    ];
    Routes::new(TABLE)
});

/// Every method and pattern of the operators' listener.
pub fn patterns() -> impl Iterator<Item = (&'static Method, &'static str)> {
    ROUTES.rows().iter().map(|row| (&row.method, row.pattern))
}

/// Answers one request of the operators' listener.
pub async fn answer(service: Arc<Service>, request: Request<Incoming>) -> Answer {
    let call = service.intake.receive(request);
    let handler = |matched: Matched<Ops>, call: Call| async move {
        match matched.route {
            Ops::Health => Ok(plain("ok\n".into(), &call)),
            Ops::Ready => Ok(Readiness::look(&service).await.answer(&call.request_id)),
            Ops::Metrics => {
                // Noted in the metrics.
                Readiness::look(&service).await;
                let metrics = metrics(&service).into();
                Ok(text(StatusCode::OK, EXPOSITION, metrics, &call.request_id))
            }
            Ops::Console | Ops::ConsoleFile => {
                console::file(call.request.uri().path(), &call.request_id)
                    .ok_or_else(|| Code::NotFound.into())
            }
            Ops::Deposit => external(&service, Op::ExtDeposit, call).await,
            Ops::Withdraw => external(&service, Op::ExtWithdraw, call).await,
            Ops::Accounts => accounts::show(&service, &matched.parameters[0], call).await,
            Ops::AccountStatus => {
                to_the_end(async move {
                    let parameters = &matched.parameters;
                    set_status(&service, &parameters[0], &parameters[1], call).await
                })
                .await
            }
            Ops::Asset => {
                let changing =
                    async move { change_asset(&service, &matched.parameters[0], call).await };
                to_the_end(changing).await
            }
            Ops::Assets => assets::list(&service, &call),
            Ops::AddAsset => to_the_end(async move { assets::add(&service, call).await }).await,
            Ops::Transfers => transfers::list(&service, call).await,
            Ops::Transfer => transfers::show(&service, &matched.parameters[0], call).await,
            Ops::Retry => {
                to_the_end(
                    async move { transfers::retry(&service, &matched.parameters[0], call).await },
                )
                .await
            }
            Ops::Resolve => {
                to_the_end(async move {
                    transfers::resolve(&service, &matched.parameters[0], call).await
                })
                .await
            }
            Ops::Conservation => conservation(&service, call).await,
            Ops::Snapshot => snapshot(&service, call).await,
            Ops::Pauses => pauses::list(&service, &call),
            Ops::Pause => to_the_end(async move { pauses::change(&service, call).await }).await,
            Ops::Approvals => approvals::list(&service, call).await,
            Ops::Approve => {
                to_the_end(async move {
                    approvals::approve(&service, &matched.parameters[0], call).await
                })
                .await
            }
            Ops::Reject => approvals::reject(&service, &matched.parameters[0], call).await,
            Ops::Halt => halt(&service, call).await,
            Ops::Resume => resume(&service, call).await,
            Ops::DeadLetters => webhooks::dead(&service, call).await,
            Ops::Resend => webhooks::resend(&service, &matched.parameters[0], call).await,
            Ops::Session => session::show(&service, &call).await,
            Ops::Totals => to_the_end(async move { totals::show(&service, &call).await }).await,
        }
    };
    ROUTES.answer(call, handler).await
}

/// Does what has several parts to the end, though the client hangs up or has waited for long enough.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::spawn(work.in_current_span()).await.map_err(|_broken| Code::SystemError)?
}

/// Answers a request of the operators' listener before there is a service: it lives, and is not ready.
pub fn starting(request: &Request<Incoming>) -> Answer {
    let given = super::request_id(request.headers().get(super::X_REQUEST_ID));
    let request_id = given.unwrap_or("starting");
    let plain = |body: Bytes| text(StatusCode::OK, PLAIN, body, request_id);
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => plain("ok\n".into()),
        (&Method::GET, "/metrics") => {
            let metrics = telemetry::Metrics::install().render();
            text(StatusCode::OK, EXPOSITION, metrics.into(), request_id)
        }
        (&Method::GET, "/readyz") => Readiness::starting().answer(request_id),
        (&Method::GET, path) if let Some(file) = console::file(path, request_id) => file,
        _ => Refusal::because(Code::SystemError, "The service is starting.").answer(request_id),
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";
/// Prometheus' text format, by which newer versions of it go.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

fn plain(body: Bytes, call: &Call) -> Answer {
    text(StatusCode::OK, PLAIN, body, &call.request_id)
}

fn metrics(service: &Service) -> String {
    let engine = service.operations.engine.lock();
    // Gauges lose no meaning in a float: they are far below 2^53.
    metrics::gauge!(telemetry::RING_DEPTH).set(engine.in_flight() as f64);
    metrics::gauge!(telemetry::OUTCOMES).set(engine.outcomes() as f64);
    let (accounts, balances) = (engine.accounts(), engine.balances());
    metrics::gauge!(telemetry::ACCOUNTS).set(accounts as f64);
    metrics::gauge!(telemetry::ACCOUNTS_MAX).set((accounts + engine.accounts_left()) as f64);
    metrics::gauge!(telemetry::BALANCES).set(balances as f64);
    metrics::gauge!(telemetry::BALANCES_MAX).set((balances + engine.balances_left()) as f64);
    metrics::counter!(telemetry::SEGMENTS_REMOVED_TOTAL).absolute(engine.segments_removed());
    metrics::counter!(telemetry::WAL_WRITTEN_BYTES_TOTAL).absolute(engine.log_bytes());
    drop(engine);
    let in_hand = service.transfers.coordinator.in_hand();
    for state in State::ALL.into_iter().filter(|state| !state.is_terminal()) {
        let count = in_hand.by_state.get(&state).copied().unwrap_or(0);
        telemetry::nonterminal(state.name(), count);
    }
    // Two clocks: where PostgreSQL's is ahead, nothing is younger than new.
    let age = in_hand.oldest.map_or(0, |oldest| {
        i128::from(service.transfers.clock.now_ns()).saturating_sub(oldest.as_nanosecond())
    });
    telemetry::oldest_transfer(Duration::from_nanos(u64::try_from(age).unwrap_or(0)));
    for asset in service.transfers.reads.catalog().all() {
        let units = in_hand.in_flight.get(&asset.id).copied().unwrap_or(0);
        telemetry::in_flight(&asset.symbol, &units_text(units, asset.precision));
    }
    let PoolUse { in_use, max, waiting } = service.transfers.reads.pool_use();
    telemetry::pool(in_use, max, waiting);
    service.operations.metrics.render()
}

/// One thing that does not add up. What a finder cannot name is null.
#[derive(Serialize)]
struct MismatchBody {
    user_id: Option<u64>,
    asset: Option<String>,
    difference: String,
    req_id: Option<String>,
    what: String,
}

/// Checks everything now, and answers what was found.
async fn conservation(service: &Service, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    query(&call, "")?;
    let found = service.operations.check.now().await.map_err(|unchecked| {
        error!(error = telemetry::chain(&unchecked), "a check was not made");
        Refusal::because(Code::SystemError, format!("{unchecked}."))
    })?;
    let catalog = service.transfers.reads.catalog();
    let body = |mismatch: Mismatch| MismatchBody {
        user_id: mismatch.user.map(|user| user.number()),
        asset: mismatch.asset.and_then(|id| Some(catalog.by_id(id)?.symbol.clone())),
        difference: mismatch.difference(),
        req_id: mismatch.req_id.map(|req_id| req_id.to_string()),
        what: mismatch.what(),
    };
    #[derive(Serialize)]
    struct Body {
        ok: bool,
        at: Timestamp,
        mismatches: Vec<MismatchBody>,
    }
    let at = i128::from(service.transfers.clock.now_ns());
    let at = Timestamp::from_nanosecond(at).expect("before the year 2262");
    let mismatches: Vec<MismatchBody> = found.into_iter().map(body).collect();
    let body = Body { ok: mismatches.is_empty(), at, mismatches };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// In whose name something is done, why, and in which request.
struct Decree {
    actor: String,
    reason: String,
    request_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalDraft {
    user_id: u64,
    asset: String,
    amount: String,
    #[serde(default)]
    idem_key: Option<String>,
    #[serde(default)]
    reason: Option<String>,
}

/// The reason of an approval whose external operation came without one.
const NO_REASON: &str = "no reason given";

async fn external(service: &Service, op: Op, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    let header = idempotency::key(&call)?;
    let draft: ExternalDraft = service.intake.json_body(call).await?;
    let ExternalDraft { user_id, asset, amount, idem_key, reason } = draft;
    let idem_key = idempotency::one_key(header, "idem_key", idem_key)?;
    let idem_key = idem_key.ok_or_else(|| {
        let header = idempotency::HEADER;
        invalid(format!("A key is required: the field idem_key, or the header {header}."))
    })?;
    reason.as_deref().map_or(Ok(()), check_reason)?;
    let external = External { op: op.name().to_owned(), user_id, asset, amount, idem_key };
    // A known idem_key is told what was decided; the coordinator, which has the order of things, looks for it.
    let known = external.known(service)?;
    let replayed =
        service.transfers.reads.external_is_recorded(&external.idem_key).await.map_err(away)?;
    if service.approvals.need(Action::External) && !replayed {
        if service.transfers.halt.is_halted() {
            return Err(Code::ServiceHalted.into());
        }
        // In one spelling, so that the same again is the same.
        let external = External { amount: known.amount.text(known.precision), ..external };
        let request = serde_json::to_string(&external).expect("plain values");
        let wanted = approvals::Wanted {
            action: Action::External,
            subject: &external.idem_key,
            request,
            caller,
            reason: reason.as_deref().unwrap_or(NO_REASON),
            request_id: &request_id,
        };
        return approvals::ask(service, wanted).await;
    }
    let actor = actor(caller);
    if let Some(reason) =
        reason.as_deref().filter(|_| !replayed && !service.transfers.halt.is_halted())
    {
        // The intent first: PostgreSQL's own row of the operation has no place for a reason.
        let action = if op.pays() { "deposit asked" } else { "withdrawal asked" };
        let detail = format!("{} {} of user {user_id}", external.amount, external.asset);
        let audit =
            service.transfers.reads.audit(&actor, action, &external.idem_key, &detail, reason);
        audit.await.map_err(away)?;
    }
    let decree = Decree { actor, reason: String::new(), request_id };
    let mut answer = external.carry_out(service, decree).await?;
    if replayed {
        replayed_before(&mut answer);
    }
    Ok(answer)
}

/// Money that is to enter or leave, as it was asked for.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct External {
    op: String,
    user_id: u64,
    asset: String,
    amount: String,
    idem_key: String,
}

/// What an [`External`] means.
struct Known {
    op: Op,
    user: UserId,
    asset: AssetId,
    precision: u8,
    amount: Amount,
}

impl External {
    fn known(&self, service: &Service) -> Result<Known, Refusal> {
        let invalid = |what: &str| Refusal::because(Code::InvalidRequest, what.to_owned());
        let op = Op::from_name(&self.op).ok_or_else(|| invalid("There is no such operation."))?;
        let user = UserId::new(self.user_id).ok_or_else(|| invalid("There is no such user_id."))?;
        if Cid::new(&self.idem_key).is_none() {
            return Err(invalid("idem_key must be 1 to 64 of A-Z a-z 0-9 _ . : -"));
        }
        let catalog = service.transfers.reads.catalog();
        let money = catalog.by_symbol(&self.asset).ok_or(Code::InvalidAsset).and_then(|asset| {
            let amount =
                Amount::parse(&self.amount, asset.precision, service.transfers.limits.units_max)?;
            Ok(Known { op, user, asset: asset.id, precision: asset.precision, amount })
        });
        match money {
            Err(_) if service.transfers.halt.is_halted() => Err(Code::ServiceHalted.into()),
            money => Ok(money?),
        }
    }

    async fn carry_out(self, service: &Service, decree: Decree) -> Outcome {
        let Known { op, user, asset, amount, .. } = self.known(service)?;
        let (Decree { actor, request_id, .. }, idem_key) = (decree, self.idem_key);
        let (idem_key_asked, order_number) = (idem_key.clone(), 0);
        let external = store::External {
            idem_key: idem_key_asked,
            op,
            user,
            asset,
            amount,
            actor,
            order_number,
        };
        let decided = service.transfers.coordinator.external(external).await.map_err(refuse)?;
        #[derive(Serialize)]
        struct Body {
            idem_key: String,
            outcome: &'static str,
            code: Option<&'static str>,
            balance_after: Option<String>,
        }
        let (outcome, code) = match decided.decision {
            Decision::Success => ("SUCCESS", None),
            Decision::Refused(code) => ("REFUSED", Some(code.name())),
        };
        let balance_after = decided.balance_after.as_deref().map(wire::plain);
        let body = Body { idem_key, outcome, code, balance_after };
        Ok(json(StatusCode::OK, &body, &request_id))
    }
}

fn user_of_path(text: &str) -> Result<UserId, Refusal> {
    let user = super::auth::user_id(text).and_then(UserId::new);
    user.ok_or_else(|| Refusal::because(Code::InvalidRequest, "The path names no user."))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusDraft {
    status: String,
    reason: String,
    /// Whether the accounts of a user without any may be made.
    #[serde(default)]
    create: bool,
}

async fn set_status(service: &Service, user: &str, account: &str, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let invalid = |what: &str| Refusal::because(Code::InvalidRequest, what.to_owned());
    let user = user_of_path(user)?;
    let account = AccountType::from_name(account).ok_or(Code::InvalidAccountType)?;
    let draft: StatusDraft = service.intake.json_body(call).await?;
    let status = AccountStatus::from_name(&draft.status)
        .ok_or_else(|| invalid("status must be ACTIVE, FROZEN or DISABLED."))?;
    check_reason(&draft.reason)?;
    if !draft.create && matches!(account, AccountType::Funding | AccountType::Spot) {
        refuse_unknown(service, user).await?;
    }
    match account {
        AccountType::Funding => {
            let (actor, reason) = (actor(caller), draft.reason);
            let set = service.transfers.coordinator.set_funding_status(user, status, actor, reason);
            set.await.map_err(refuse)?;
        }
        AccountType::Spot => {
            let subject = format!("{user} SPOT");
            let (actor, reason) = (actor(caller), draft.reason);
            // The intent first: what UBSCore has done must not be without its author.
            let audit = service.transfers.reads.audit(
                &actor,
                "account status",
                &subject,
                status.name(),
                &reason,
            );
            audit.await.map_err(away)?;
            service.spot.set_status(user, status).await.map_err(unanswered)?;
        }
        AccountType::Future | AccountType::Margin => {
            return Err(Code::UnsupportedAccountType.into());
        }
    }
    #[derive(Serialize)]
    struct Body {
        user_id: u64,
        account_type: &'static str,
        status: &'static str,
    }
    let body = Body { user_id: user.number(), account_type: account.name(), status: status.name() };
    Ok(json(StatusCode::OK, &body, &request_id))
}

/// Refuses a user without an account in either store: more often a mistyped number than a status before the first deposit.
async fn refuse_unknown(service: &Service, user: UserId) -> Result<(), Refusal> {
    if service.spot.status(user).await.map_err(unanswered)?.is_some()
        || service.transfers.reads.funding_status(user).await.map_err(away)?.is_some()
    {
        return Ok(());
    }
    let message = format!(
        "User {user} has no account. \"create\": true (--create) makes the accounts with this status."
    );
    Err(Refusal::because(Code::NotFound, message))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AssetDraft {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    transfer_enabled: Option<bool>,
    #[serde(default)]
    min: Option<String>,
    #[serde(default)]
    max: Option<String>,
    reason: String,
}

async fn change_asset(service: &Service, symbol: &str, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: AssetDraft = service.intake.json_body(call).await?;
    let invalid = |what: &str| Refusal::because(Code::InvalidRequest, what.to_owned());
    let catalog = service.transfers.reads.catalog();
    let asset = catalog.by_symbol(symbol).ok_or(Code::InvalidAsset)?;
    let status = draft.status.map(|name| {
        AssetStatus::from_name(&name).ok_or_else(|| invalid("status must be ACTIVE or SUSPENDED."))
    });
    let amount = |text: Option<String>| {
        text.map(|text| Amount::parse(&text, asset.precision, service.transfers.limits.units_max))
            .transpose()
    };
    let change = AssetChange {
        status: status.transpose()?,
        transfer_enabled: draft.transfer_enabled,
        transfer_min: amount(draft.min)?,
        transfer_max: amount(draft.max)?,
    };
    let (min, max) = (
        change.transfer_min.unwrap_or(asset.transfer_min),
        change.transfer_max.unwrap_or(asset.transfer_max),
    );
    if min > max {
        return Err(invalid("min must not be above max."));
    }
    check_reason(&draft.reason)?;
    let actor = actor(caller);
    let changed = service.transfers.reads.change_asset(asset, change, &actor, &draft.reason);
    let asset = changed.await.map_err(unwritten)?;
    Ok(json(StatusCode::OK, &AssetBody::from(&asset), &request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotDraft {
    reason: String,
}

/// Asks for a snapshot, and does not wait for it: a large one takes longer than a request may.
async fn snapshot(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: SnapshotDraft = service.intake.json_body(call).await?;
    check_reason(&draft.reason)?;
    let after = service.operations.engine.lock().durable();
    let (actor, subject) = (actor(caller), format!("log {after}"));
    service
        .transfers
        .reads
        .audit(&actor, "snapshot", &subject, "", &draft.reason)
        .await
        .map_err(away)?;
    service.operations.snapshots.ask();
    #[derive(Serialize)]
    struct Body {
        /// It will stand behind this record.
        after: u64,
    }
    Ok(json(StatusCode::ACCEPTED, &Body { after }, &request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HaltDraft {
    reason: String,
}

/// Halts, whatever becomes of the connection meanwhile.
async fn halt(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let HaltDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    let (flag, actor) = (Arc::clone(&service.transfers.halt), actor(caller));
    let halted = to_the_end(async move { Ok(flag.halt(&actor, &reason).await) }).await?;
    if !halted.in_data_dir && !halted.in_postgres {
        let message = "Halted, but neither the data directory nor PostgreSQL could be told: a restart would not know.                        Try again.";
        return Err(Refusal::because(Code::SystemError, message));
    }
    #[derive(Serialize)]
    struct Body {
        halted: bool,
        reason: String,
        in_data_dir: bool,
        in_postgres: bool,
        quiet: bool,
    }
    let Halted { reason, in_data_dir, in_postgres, quiet } = halted;
    // A question that was given up on may lie in the ring still: what is answered behind it comes after it.
    let quiet = quiet && service.spot.recorded(&[]).await.is_ok();
    let body = Body { halted: true, reason, in_data_dir, in_postgres, quiet };
    Ok(json(StatusCode::OK, &body, &request_id))
}

async fn resume(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let HaltDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    if service.approvals.need(Action::Resume) {
        if !service.transfers.halt.is_halted() {
            return Ok(resumed(&request_id, false));
        }
        let seen =
            SeenHalt::now(&service.transfers.halt, &service.transfers.reads).await.map_err(away)?;
        let wanted = approvals::Wanted {
            action: Action::Resume,
            subject: &format!("halt {}", seen.number),
            request: serde_json::to_string(&seen).expect("plain values"),
            caller,
            reason: &reason,
            request_id: &request_id,
        };
        return approvals::ask(service, wanted).await;
    }
    resume_now(service, Decree { actor: actor(caller), reason, request_id }, None).await
}

/// Goes on, whatever becomes of the connection meanwhile. `seen`: the only halt that is to be ended.
async fn resume_now(service: &Service, decree: Decree, seen: Option<SeenHalt>) -> Outcome {
    let Decree { actor, reason, request_id } = decree;
    let was_halted = service.transfers.halt.is_halted();
    let (flag, check, reads) = (
        Arc::clone(&service.transfers.halt),
        service.operations.check.clone(),
        service.transfers.reads.clone(),
    );
    let resuming = async move {
        // Asked once the flag has taken note of every halt so far: a later one stands against this resume by itself.
        let objection = async {
            if let Some(seen) = seen {
                if !flag.is_written() {
                    let why =
                        "PostgreSQL does not know of the halt in force: halt again, and ask anew";
                    return Err(Objection(why.to_owned()));
                }
                let now = SeenHalt::now(&flag, &reads).await;
                let now = now.map_err(|_| {
                    Objection("PostgreSQL does not say which halt this is".to_owned())
                })?;
                if now != seen {
                    let why = "it has been halted again since this was asked for; ask again";
                    return Err(Objection(why.to_owned()));
                }
            }
            check.objection(&reads.catalog()).await
        };
        Ok(flag.resume(&actor, &reason, objection).await)
    };
    to_the_end(resuming).await?.map_err(|still| {
        error!(why = chain(&still), "not resumed");
        let next = match still {
            NotResumed::Objection(_) => "ubscore verify; ubscore repair --plan",
            _ => "the same command again",
        };
        let message = format!("Still halted: {}. Next: {next}", chain(&still));
        match still {
            NotResumed::Objection(_) | NotResumed::HaltedAgain => {
                Refusal::because(Code::ServiceHalted, message)
            }
            NotResumed::Postgres(_) | NotResumed::DataDir(_) => {
                Refusal::because(Code::SystemError, message)
            }
        }
    })?;
    Ok(resumed(&request_id, was_halted))
}

/// `was_halted`: whether there was a halt to end.
fn resumed(request_id: &str, was_halted: bool) -> Answer {
    #[derive(Serialize)]
    struct Body {
        halted: bool,
        /// False where there was nothing to do.
        #[serde(skip_serializing_if = "Option::is_none")]
        was_halted: Option<bool>,
    }
    let was_halted = (!was_halted).then_some(false);
    json(StatusCode::OK, &Body { halted: false, was_halted }, request_id)
}

fn check_reason(reason: &str) -> Result<(), Refusal> {
    if flag::check_reason(reason) {
        return Ok(());
    }
    Err(Refusal::because(Code::InvalidRequest, "reason must be 1 to 500 printable characters."))
}

fn actor(caller: Caller) -> String {
    format!("admin/{}", caller.user)
}

fn refuse(rejection: Rejection) -> Refusal {
    let unknown = rejection.unknown;
    let refusal = Refusal::from(rejection);
    match unknown {
        true => {
            let message = "Whether it was done is not known; the same request again is told.";
            Refusal { message: Some(message.to_owned()), ..refusal }
        }
        false => refusal,
    }
}

/// Why an asset's row was not written, where PostgreSQL has answered.
fn unwritten(failure: postgres::Error) -> Refusal {
    match failure.broken_check() {
        Some(rule) => Refusal::because(
            Code::InvalidRequest,
            format!(
                "PostgreSQL refuses the row by {rule}: min and max have at most as many decimals as \
                 the asset, and min is not above max. Give both."
            ),
        ),
        None if matches!(failure, postgres::Error::Row { .. }) => {
            error!(error = chain(&failure), "an asset is not changed");
            Refusal::because(Code::SystemError, format!("{failure}."))
        }
        None => away(failure),
    }
}

fn unanswered(failure: Unanswered) -> Refusal {
    match failure {
        Unanswered::Overloaded => Shortage::Ring.into(),
        Unanswered::Silent | Unanswered::Violation(_) => {
            Refusal { unknown: true, ..Refusal::away("UBSCore") }
        }
    }
}
