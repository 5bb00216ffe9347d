//! Carries out an action that a second operator approves.

use std::sync::Arc;

use tracing::{error, info};

use super::approvals::Decided;
use super::audit_note::AuditNote;
use super::external::External;
use super::freezes::OperatorFreeze;
use super::halts::{SeenHalt, resume_now};
use super::held_payments::{self, EndWanted};
use super::promotions::FundWanted;
use super::receivables::ReceivableWanted;
use super::refunds::RefundWanted;
use super::settlements::SettleWanted;
use super::specials::SpecialWish;
use super::takings::TakenWanted;
use super::transactions::Attended;
use super::{holds, transactions, transfers};
use crate::approval::{Action, State};
use crate::crash;
use crate::http::refusal::Outcome;
use crate::http::request::{Call, parse};
use crate::http::service::Service;
use crate::postgres::admin::approvals::Vote;
use crate::postgres::reads::approvals::Approval;
use crate::telemetry::chain;
use domain::account::UserId;
use domain::code::Code;

/// `POST …/approve`: carries out the action, and answers as the action does.
pub(super) async fn approve(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let admin = &service.transfers.admin;
    let decided = Decided::read(&service.intake, &parameters[0], call).await?;
    // One at a time: two approvals of one action are carried out one after the other.
    let _one = service.approvals.carrying_out.lock().await;
    let approval = decided.keep(admin, Vote::Approve).await?;
    debug_assert_eq!(approval.state, State::Approved, "recorded before it is carried out");
    crash::point("approval_after_approve");
    let answer = carry_out(&service, &approval, decided).await?;
    crash::point("approval_after_action");
    let approval_id = &approval.approval_id;
    info!(approval_id, action = approval.action.name(), subject = approval.subject, "carried out");
    if let Err(failure) = admin.approval_carried_out(approval_id).await {
        // It is carried out. Its effect can be found by its subject.
        error!(
            error = chain(&failure),
            approval_id, "an action was carried out, but that is not recorded"
        );
    }
    Ok(answer)
}

/// Carries out an action in the name of both operators.
async fn carry_out(service: &Service, approval: &Approval, decided: Decided) -> Outcome {
    let maker = UserId::new(approval.maker).ok_or(Code::SystemError)?;
    // The first approver, if another operator has approved it again.
    let approver = approval.decider.as_ref().map_or(decided.caller.user.number(), |by| by.0);
    let note = AuditNote {
        actor: format!("admin/{maker}, approved by admin/{approver}"),
        reason: approval.reason.clone(),
        request_id: decided.request_id,
    };
    match approval.action {
        Action::Resolve => {
            transfers::resolve_now(&service.transfers, &approval.subject, note).await
        }
        Action::External if approval.subject.starts_with(SpecialWish::SUBJECT) => {
            let wish: SpecialWish = parse(approval.request.as_bytes())?;
            wish.carry_out(service, note).await
        }
        Action::External if held_payments::is_about(&approval.subject) => {
            let wanted: EndWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External if approval.subject.starts_with(RefundWanted::SUBJECT) => {
            let wanted: RefundWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External if approval.subject.starts_with(TakenWanted::SUBJECT) => {
            let wanted: TakenWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External if approval.subject.starts_with(FundWanted::SUBJECT) => {
            let wanted: FundWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External if approval.subject.starts_with(ReceivableWanted::SUBJECT) => {
            let wanted: ReceivableWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External if approval.subject.starts_with(SettleWanted::SUBJECT) => {
            let wanted: SettleWanted = parse(approval.request.as_bytes())?;
            wanted.carry_out(service, note).await
        }
        Action::External => {
            let external: External = parse(approval.request.as_bytes())?;
            external.carry_out(&service.transfers, note).await
        }
        Action::Transaction => {
            let wanted: Attended = parse(approval.request.as_bytes())?;
            transactions::carry_out(service, &approval.subject, wanted, note).await
        }
        Action::Hold if approval.request == "{}" => {
            holds::release_now(service, &approval.subject, note).await
        }
        Action::Hold => {
            let freeze: OperatorFreeze = parse(approval.request.as_bytes())?;
            freeze.carry_out(service, note).await
        }
        Action::Resume => {
            let seen: SeenHalt = parse(approval.request.as_bytes())?;
            resume_now(service, note, Some(seen)).await
        }
        // Only `ubscore repair` asks for it, while no service runs.
        Action::Repair => Err(Code::SystemError.into()),
    }
}
