//! Two operators for one action, if the configuration requires it. The request of the first is
//! recorded instead of carried out; another operator approves or rejects it.
//!
//! The request that approves an action carries it out (`approved`) and records that afterwards. If
//! the process dies in between, the approval stays approved. Until it expires, approving it again
//! carries it out again. That is still one action, since each is idempotent: a transfer is resolved
//! once, an idem_key moves money once, and a resume ends only the halt of its request.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::warn;
use ulid::Ulid;

use super::audit_note::check_reason;
use crate::approval::{Action, State};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Caller, Intake, Service, Transfers};
use crate::http::wire::ApprovalBody;
use crate::postgres::admin::Admin;
use crate::postgres::admin::approvals::{Undecided, Vote, Wish};
use crate::postgres::reads::Reads;
use crate::postgres::reads::approvals::Approval;
use domain::code::Code;

/// An action that waits for another operator.
pub(super) struct Wanted<'a> {
    pub(super) action: Action,
    /// The transfer, idem_key or halt.
    pub(super) subject: &'a str,
    /// All that carrying it out needs, as JSON.
    pub(super) request: String,
    pub(super) caller: Caller,
    pub(super) reason: &'a str,
    pub(super) request_id: &'a str,
}

/// Records an action, and answers that it waits for another operator. A repeat is answered by the
/// same approval.
pub(super) async fn ask(service: &Service, wanted: Wanted<'_>) -> Outcome {
    let Wanted { action, subject, request, caller, reason, request_id } = wanted;
    let random = service.intake.entropy.lock().u128();
    let approval_id =
        Ulid::from_parts(service.transfers.clock.now_ns() / 1_000_000, random).to_string();
    let wish = Wish {
        approval_id: &approval_id,
        action,
        subject,
        request: &request,
        maker: caller.user,
        reason,
        expires_after: service.approvals.expires_after,
    };
    let approval = service.transfers.admin.ask_approval(wish).await.map_err(postgres_away)?;
    let is_keyed = matches!(action, Action::External | Action::Hold);
    if is_keyed && approval.request != request {
        return Err(Code::IdemKeyConflict.into());
    }
    if action == Action::Transaction && approval.request != request {
        let message = format!("Your other request about it waits: {}.", approval.approval_id);
        return Err(
            Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT)
        );
    }
    let (approval_id, maker) = (&approval.approval_id, caller.user);
    warn!(approval_id, action = action.name(), subject, %maker, "an action waits for an approval");
    Ok(json(StatusCode::ACCEPTED, &ApprovalBody::from(approval), request_id))
}

/// `GET /admin/v1/approvals`: the newest approvals, or those in one state.
pub(super) async fn list(intake: &Intake, reads: &Reads, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    let state = query(call, "state")?.map(|name| {
        let names = State::ALL.map(State::name).join(", ");
        let invalid = || invalid(format!("state must be one of {names}."));
        State::from_name(name.as_ref()).ok_or_else(invalid)
    });
    let approvals = reads.approvals(state.transpose()?).await.map_err(postgres_away)?;
    #[derive(Serialize)]
    struct Body {
        approvals: Vec<ApprovalBody>,
    }
    let body = Body { approvals: approvals.into_iter().map(ApprovalBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionDraft {
    reason: String,
}

/// An operator's decision.
pub(super) struct Decided {
    pub(super) approval_id: String,
    pub(super) caller: Caller,
    pub(super) reason: String,
    pub(super) request_id: String,
}

impl Decided {
    /// Reads the decision from a request.
    pub(super) async fn read(
        intake: &Intake,
        approval_id: &str,
        call: Call,
    ) -> Result<Decided, Refusal> {
        let (request_id, caller) = (call.request_id.clone(), intake.authenticate_admin(&call)?);
        query(&call, "")?;
        let DecisionDraft { reason } = intake.json_body(call).await?;
        check_reason(&reason)?;
        let approval_id = Ulid::from_string(approval_id).map_err(|_| unknown())?.to_string();
        Ok(Decided { approval_id, caller, reason, request_id })
    }

    /// Records the decision, and returns the approval.
    pub(super) async fn keep(&self, admin: &Admin, vote: Vote) -> Result<Approval, Refusal> {
        let Decided { approval_id, caller, reason, .. } = self;
        let decided = admin.decide_approval(approval_id, vote, caller.user, reason);
        decided.await.map_err(postgres_away)?.map_err(|undecided| match undecided {
            Undecided::Unknown => unknown(),
            Undecided::Own => {
                let message = "This is your own request: another operator has to approve it.";
                Refusal::because(Code::Forbidden, message)
            }
            Undecided::Closed(approval) => {
                let stands = match approval.expired && approval.state == State::Approved {
                    true => "was approved, and the time to carry it out is over".to_owned(),
                    false => format!("is {}", approval.state.name()),
                };
                let message = format!("The approval {stands}: nothing was done.");
                Refusal::because(Code::InvalidRequest, message).with_status(StatusCode::CONFLICT)
            }
        })
    }
}

fn unknown() -> Refusal {
    Refusal::because(Code::NotFound, "There is no such approval.")
}

/// `POST …/reject`: the action will never be carried out. The requester may withdraw it
/// so.
pub(super) async fn reject(
    intake: &Intake,
    transfers: &Transfers,
    approval_id: &str,
    call: Call,
) -> Outcome {
    let decided = Decided::read(intake, approval_id, call).await?;
    let approval = decided.keep(&transfers.admin, Vote::Reject).await?;
    transfers.coordinator.cover().await;
    Ok(json(StatusCode::OK, &ApprovalBody::from(approval), &decided.request_id))
}
