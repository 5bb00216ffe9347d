//! The operators' listener: health, metrics, money from and to the outside, accounts, assets,
//! transfers, transactions, recharges, venues, holds, pauses, approvals, the halt, and the console.
//!
//! The table of routes is in `routes`. Each subject has a file of its own, and its handlers take
//! the parts of the service that they use. Two kinds of handlers take the whole service: those that
//! go on if the client hangs up, as tasks of their own, and actions that may need an approval.

mod accounts;
mod approvals;
mod approved;
mod assets;
mod audit_note;
mod bills;
mod channel_statement;
mod conservation;
mod console;
mod detached;
mod external;
mod freezes;
mod grants;
mod halts;
mod health;
mod held_payments;
mod holds;
mod notices;
mod page;
mod pauses;
mod promotions;
mod receivables;
mod recharge_shown;
mod recharges;
mod refunds;
mod rejected;
mod routes;
mod session;
mod settlements;
mod snapshots;
mod specials;
mod takings;
mod totals;
mod transactions;
mod transfers;
mod venues;
mod webhooks;

use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;

use self::detached::detached;
use self::routes::{Ops, ROUTES, RechargeOps};
use super::answer::Answer;
use super::refusal::Outcome;
use super::request::Call;
use super::route::Matched;
use super::service::Service;
use domain::code::Code;
use domain::transfer::Op;

pub use self::health::{health, starting};
pub use self::routes::patterns;
pub use self::venues::add as add_venue;

/// Answers one request of the operators' listener.
pub async fn answer(service: Arc<Service>, request: Request<Incoming>) -> Answer {
    let call = service.intake.receive(request);
    let handler = |matched: Matched<Ops>, call: Call| async move {
        let parameters = matched.parameters;
        let Service { intake, transfers, streams, approvals, spot, operations, .. } = &*service;
        let (reads, admin) = (&transfers.reads, &transfers.admin);
        match matched.route {
            Ops::Health => Ok(health::alive(&call)),
            Ops::Ready => Ok(health::ready(transfers, &call).await),
            Ops::Metrics => Ok(health::metrics(&service, &call).await),
            Ops::Console | Ops::ConsoleFile => {
                console::file(call.request.uri().path(), &call.request_id)
                    .ok_or_else(|| Code::NotFound.into())
            }
            Ops::Deposit => external::external(&service, Op::ExtDeposit, call).await,
            Ops::Withdraw => external::external(&service, Op::ExtWithdraw, call).await,
            Ops::Accounts => accounts::show(intake, transfers, spot, &parameters[0], &call).await,
            Ops::AccountStatus => {
                let setting = accounts::set_status(service, parameters, call);
                detached(setting).await
            }
            Ops::Asset => detached(assets::change(service, parameters, call)).await,
            Ops::Assets => assets::list(intake, reads, &call),
            Ops::AddAsset => detached(assets::add(service, call)).await,
            Ops::Transfers => transfers::list(intake, transfers, &call).await,
            Ops::Transfer => transfers::show(intake, transfers, spot, &parameters[0], &call).await,
            Ops::Retry => detached(transfers::retry(service, parameters, call)).await,
            Ops::Resolve => detached(transfers::resolve(service, parameters, call)).await,
            Ops::Conservation => {
                conservation::check(intake, transfers, &operations.check, &call).await
            }
            Ops::Snapshot => snapshots::ask(intake, admin, operations, call).await,
            Ops::Pauses => pauses::list(intake, reads, &call),
            Ops::Pause => detached(pauses::change(service, call)).await,
            Ops::Approvals => approvals::list(intake, reads, &call).await,
            Ops::Approve => detached(approved::approve(service, parameters, call)).await,
            Ops::Reject => approvals::reject(intake, transfers, &parameters[0], call).await,
            Ops::Halt => halts::halt(intake, &transfers.halt, spot, call).await,
            Ops::Resume => halts::resume(&service, call).await,
            Ops::DeadLetters => webhooks::dead(intake, reads, &call).await,
            Ops::Resend => {
                let hub = streams.hub.as_deref();
                webhooks::resend(intake, transfers, hub, &parameters[0], call).await
            }
            Ops::Session => {
                let recharges = service.recharges.is_some();
                session::show(intake, transfers, approvals, operations, recharges, &call).await
            }
            Ops::Totals => detached(totals::show(service, call)).await,
            Ops::Venues => venues::list(intake, spot, &call).await,
            Ops::Holds => holds::list(intake, transfers, spot, &call).await,
            Ops::Hold => holds::show(intake, transfers, spot, &parameters[0], &call).await,
            Ops::ReleaseHold => detached(holds::release(service, parameters, call)).await,
            Ops::Specials => specials::list(intake, transfers, &call).await,
            Ops::Special => detached(specials::change(service, call)).await,
            Ops::Freezes => {
                freezes::list(intake, transfers, &service.transactions.purposes, &call).await
            }
            Ops::Freeze => detached(freezes::change(service, true, call)).await,
            Ops::Unfreeze => detached(freezes::change(service, false, call)).await,
            Ops::Transactions => transactions::list(intake, transfers, &call).await,
            Ops::Transaction => transactions::show(intake, transfers, &parameters[0], &call).await,
            Ops::RetryTransaction => detached(transactions::retry(service, parameters, call)).await,
            Ops::AbortTransaction => detached(transactions::abort(service, parameters, call)).await,
            Ops::ResolveTransaction => {
                detached(transactions::resolve(service, parameters, call)).await
            }
            Ops::AbandonBranch => detached(transactions::abandon(service, parameters, call)).await,
            Ops::Grants => grants::list(intake, reads, &call).await,
            Ops::Grant => detached(grants::change(service, true, call)).await,
            Ops::Revoke => detached(grants::change(service, false, call)).await,
            Ops::Recharging(route) => of_recharges(service, route, parameters, call).await,
            Ops::AddVenue | Ops::CloseVenue | Ops::OpenVenue => {
                let change = match matched.route {
                    Ops::AddVenue => venues::Change::Add,
                    Ops::CloseVenue => venues::Change::Close,
                    _ => venues::Change::Open,
                };
                detached(venues::change(service, change, parameters[0].clone(), call)).await
            }
        }
    };
    ROUTES.answer(call, handler).await
}

/// Answers one request about recharges.
async fn of_recharges(
    service: Arc<Service>,
    route: RechargeOps,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    match route {
        RechargeOps::List => recharges::list(&service, &call).await,
        RechargeOps::Show => detached(recharges::show(service, parameters, call)).await,
        RechargeOps::Query => detached(recharges::query_now(service, parameters, call)).await,
        RechargeOps::Close => detached(recharges::close(service, parameters, call)).await,
        RechargeOps::Refund => detached(refunds::refund(service, parameters, call)).await,
        RechargeOps::Receivables => receivables::list(&service, &call).await,
        RechargeOps::EndReceivable(how) => {
            detached(receivables::end(service, how, parameters, call)).await
        }
        RechargeOps::Notices => notices::show(&service, &parameters[0], &call).await,
        RechargeOps::Take => detached(takings::take(service, parameters, call)).await,
        RechargeOps::End(how) => detached(held_payments::end(service, how, parameters, call)).await,
        RechargeOps::Channels => recharges::channels(&service, &call),
        RechargeOps::Statement => channel_statement::show(&service, &parameters[0], &call).await,
        RechargeOps::Promotion(act) => promotions::answer(service, act, parameters, call).await,
        RechargeOps::OfBills(what) => bills::answer(service, what, parameters, call).await,
        RechargeOps::PauseChannel(paused) => {
            detached(recharges::pause(service, paused, parameters, call)).await
        }
    }
}
