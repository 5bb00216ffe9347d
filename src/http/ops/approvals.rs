//! Two people for one action, where the configuration asks for it: an operator's request is written down instead of carried
//! out, and another operator approves or rejects it.
//!
//! What is approved is carried out in the request that approves it, and only then is that written down. A process that dies
//! in between leaves an approval that stands and may not be carried out: approving it again, until it expires, carries it out.
//! That is one action still, since each of them is idempotent: a transfer is resolved once, an idem_key moves money once, and
//! a resume ends only the halt that it was asked for.

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::{error, info, warn};
use ulid::Ulid;

use super::{Decree, External, check_reason, resume_now, transfers};
use crate::approval::{Action, State};
use crate::audit::halt::Halt;
use crate::crash;
use crate::http::api::away;
use crate::http::service::{Call, Caller, Outcome, Service, invalid, parse, query};
use crate::http::wire::{ApprovalBody, Refusal, json};
use crate::postgres;
use crate::postgres::reads::Reads;
use crate::postgres::reads::approvals::{Approval, Undecided, Vote, Wish};
use crate::telemetry::chain;
use domain::account::UserId;
use domain::code::Code;

/// What is written down of a halt that somebody wants to end, so that no other one is ended in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenHalt {
    /// The last one that PostgreSQL has been told of.
    pub(super) number: i64,
    /// Why it is halted, where it is.
    pub(super) reason: Option<String>,
}

impl SeenHalt {
    /// The halt in force.
    pub(super) async fn now(halt: &Halt, reads: &Reads) -> Result<SeenHalt, postgres::Error> {
        let number = reads.last_halt().await?;
        Ok(SeenHalt { number, reason: halt.reason() })
    }
}

/// What somebody wants to be done, once somebody else approves.
pub(super) struct Wanted<'a> {
    pub(super) action: Action,
    /// What it is about.
    pub(super) subject: &'a str,
    /// Everything that is needed to do it.
    pub(super) request: String,
    pub(super) caller: Caller,
    pub(super) reason: &'a str,
    pub(super) request_id: &'a str,
}

/// Writes down what is wanted, and answers that it waits for another operator. Who asks again is told of the same approval.
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
    let approval = service.transfers.reads.ask_approval(wish).await.map_err(away)?;
    if action == Action::External && approval.request != request {
        return Err(Code::IdemKeyConflict.into());
    }
    let (approval_id, maker) = (&approval.approval_id, caller.user);
    warn!(approval_id, action = action.name(), subject, %maker, "an approval is waited for");
    Ok(json(StatusCode::ACCEPTED, &ApprovalBody::from(approval), request_id))
}

/// `GET /admin/v1/approvals`: the newest ones, or those in one state.
pub(super) async fn list(service: &Service, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    let state = query(&call, "state")?.map(|name| {
        let names = State::ALL.map(State::name).join(", ");
        let invalid = || invalid(format!("state must be one of {names}."));
        State::from_name(name.as_ref()).ok_or_else(invalid)
    });
    let approvals = service.transfers.reads.approvals(state.transpose()?).await.map_err(away)?;
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

/// A decision as somebody has sent it.
struct Decided {
    approval_id: String,
    caller: Caller,
    reason: String,
    request_id: String,
}

impl Decided {
    async fn read(service: &Service, approval_id: &str, call: Call) -> Result<Decided, Refusal> {
        let (request_id, caller) =
            (call.request_id.clone(), service.intake.authenticate_admin(&call)?);
        query(&call, "")?;
        let DecisionDraft { reason } = service.intake.json_body(call).await?;
        check_reason(&reason)?;
        let approval_id = Ulid::from_string(approval_id).map_err(|_| unknown())?.to_string();
        Ok(Decided { approval_id, caller, reason, request_id })
    }

    async fn keep(&self, service: &Service, vote: Vote) -> Result<Approval, Refusal> {
        let Decided { approval_id, caller, reason, .. } = self;
        let decided =
            service.transfers.reads.decide_approval(approval_id, vote, caller.user, reason);
        decided.await.map_err(away)?.map_err(|undecided| match undecided {
            Undecided::Unknown => unknown(),
            Undecided::Own => {
                let message =
                    "You have asked for this yourself: another operator has to approve it.";
                Refusal::because(Code::Forbidden, message)
            }
            Undecided::Closed(approval) => {
                let stands = match approval.expired && approval.state == State::Approved {
                    true => "was approved, and its time to be carried out is over".to_owned(),
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

/// `POST …/approve`: carries out what was asked for, and answers as that does.
pub(super) async fn approve(service: &Service, approval_id: &str, call: Call) -> Outcome {
    let decided = Decided::read(service, approval_id, call).await?;
    // One at a time, so that two who approve the same do it one after the other.
    let _one = service.approvals.carrying_out.lock().await;
    let approval = decided.keep(service, Vote::Approve).await?;
    crash::point("approval_after_approve");
    let answer = carry_out(service, &approval, decided).await?;
    crash::point("approval_after_deed");
    let approval_id = &approval.approval_id;
    info!(approval_id, action = approval.action.name(), subject = approval.subject, "carried out");
    if let Err(failure) = service.transfers.reads.approval_carried_out(approval_id).await {
        // It is: whoever looks for it finds what was done by its subject.
        error!(error = chain(&failure), approval_id, "not written down that it was carried out");
    }
    Ok(answer)
}

/// `POST …/reject`: it never will be carried out. Whoever has asked may take it back so.
pub(super) async fn reject(service: &Service, approval_id: &str, call: Call) -> Outcome {
    let decided = Decided::read(service, approval_id, call).await?;
    let approval = decided.keep(service, Vote::Reject).await?;
    Ok(json(StatusCode::OK, &ApprovalBody::from(approval), &decided.request_id))
}

/// Does what was asked for, in the name of both.
async fn carry_out(service: &Service, approval: &Approval, decided: Decided) -> Outcome {
    let maker = UserId::new(approval.maker).ok_or(Code::SystemError)?;
    // Who has approved it first, where it is done for somebody who has approved it again.
    let approver = approval.decider.as_ref().map_or(decided.caller.user.number(), |by| by.0);
    let decree = Decree {
        actor: format!("admin/{maker}, approved by admin/{approver}"),
        reason: approval.reason.clone(),
        request_id: decided.request_id,
    };
    match approval.action {
        Action::Resolve => transfers::resolve_now(service, &approval.subject, decree).await,
        Action::External => {
            let external: External = parse(approval.request.as_bytes())?;
            external.carry_out(service, decree).await
        }
        Action::Resume => {
            let seen: SeenHalt = parse(approval.request.as_bytes())?;
            resume_now(service, decree, Some(seen)).await
        }
        // For a database without a service; no request of ours.
        Action::Repair => Err(Code::SystemError.into()),
    }
}
