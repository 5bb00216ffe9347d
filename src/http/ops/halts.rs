//! The halt: no new transfers and no progress, until an operator resumes.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::approvals;
use super::audit_note::{AuditNote, actor, check_reason};
use super::detached::detached;
use crate::adapters::spot::Spot;
use crate::approval::Action;
use crate::audit::halt::{Halt, Halted, NotResumed, Objection};
use crate::audit::lost_venues::awaited;
use crate::http::answer::{Answer, json};
use crate::http::refusal::{Outcome, Refusal, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use crate::postgres;
use crate::postgres::admin::Admin;
use crate::postgres::reads::Reads;
use crate::telemetry::chain;
use domain::code::Code;

/// A halt as it stands in a request to end it. The approval ends this halt and no other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SeenHalt {
    /// The last halt that PostgreSQL has recorded.
    pub(super) number: i64,
    /// The reason of the halt in force.
    pub(super) reason: Option<String>,
}

impl SeenHalt {
    /// The halt in force.
    pub(super) async fn now(halt: &Halt, reads: &Reads) -> Result<SeenHalt, postgres::Error> {
        let number = reads.last_halt().await?;
        Ok(SeenHalt { number, reason: halt.reason() })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HaltDraft {
    reason: String,
}

/// `POST /admin/v1/halt`: halts, even if the client hangs up.
pub(super) async fn halt(intake: &Intake, halt: &Arc<Halt>, spot: &Spot, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let HaltDraft { reason } = intake.json_body(call).await?;
    check_reason(&reason)?;
    let (flag, actor) = (Arc::clone(halt), actor(caller));
    let halted = detached(async move { Ok(flag.halt(&actor, &reason).await) }).await?;
    if !halted.in_data_dir && !halted.in_postgres {
        let message = "Halted, but neither the data directory nor PostgreSQL has recorded it: a restart \
                       would end the halt. Try again.";
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
    // An abandoned query may still be in the ring. A later query is answered after it.
    let quiet = quiet && spot.recorded(&[]).await.is_ok();
    let body = Body { halted: true, reason, in_data_dir, in_postgres, quiet };
    Ok(json(StatusCode::OK, &body, &request_id))
}

/// `POST /admin/v1/resume`: ends the halt, or asks for a second operator's approval.
pub(super) async fn resume(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let HaltDraft { reason } = service.intake.json_body(call).await?;
    check_reason(&reason)?;
    if service.approvals.need(Action::Resume) {
        if !service.transfers.halt.is_halted() {
            return Ok(resumed(&request_id, false));
        }
        let seen = SeenHalt::now(&service.transfers.halt, &service.transfers.reads)
            .await
            .map_err(postgres_away)?;
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
    resume_now(service, AuditNote { actor: actor(caller), reason, request_id }, None).await
}

/// Ends the halt, even if the client hangs up. `seen`: if given, no other halt is ended.
pub(super) async fn resume_now(
    service: &Service,
    note: AuditNote,
    seen: Option<SeenHalt>,
) -> Outcome {
    let AuditNote { actor, reason, request_id } = note;
    let was_halted = service.transfers.halt.is_halted();
    let (flag, check, reads) = (
        Arc::clone(&service.transfers.halt),
        service.operations.check.clone(),
        service.transfers.reads.clone(),
    );
    let (admin, spot) = (service.transfers.admin.clone(), Arc::clone(&service.spot));
    let resuming = async move {
        // The flag counts every halt so far before it asks for objections. A halt issued later
        // aborts this resume.
        let objection = async {
            if let Some(seen) = seen {
                refuse_other(&flag, &reads, seen).await?;
            }
            refuse_awaited(&admin, &spot).await?;
            check.objection(&reads.catalog()).await
        };
        Ok(flag.resume(&actor, &reason, objection).await)
    };
    detached(resuming).await?.map_err(|still| {
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

/// Objects while venues have not sent again the commands that a cut of the log has taken.
async fn refuse_awaited(admin: &Admin, spot: &Spot) -> Result<(), Objection> {
    let known = admin.cut_venues().await;
    let known = known.map_err(|_| Objection("PostgreSQL does not return the venues".to_owned()))?;
    let Some((known, any)) = known else { return Ok(()) };
    let venues = spot.venues().await;
    let venues = venues.map_err(|_| Objection("UBSCore does not return the venues".to_owned()))?;
    let awaited = awaited((&known, any), &venues);
    let awaited: Vec<_> = awaited.iter().map(ToString::to_string).collect();
    match awaited.is_empty() {
        true => Ok(()),
        false => Err(Objection(format!(
            "the log was cut, and it waits for venues: {}. A venue that does not come back: ubscore venue close. \
             Runbook, \"Venues after a cut\"",
            awaited.join("; ")
        ))),
    }
}

/// Objects if another halt is in force than the one that was seen.
async fn refuse_other(halt: &Halt, reads: &Reads, seen: SeenHalt) -> Result<(), Objection> {
    let object = |why: &str| Err(Objection(why.to_owned()));
    if !halt.is_written() {
        return object("PostgreSQL has not recorded the halt in force. Halt again, and ask again");
    }
    match SeenHalt::now(halt, reads).await {
        Ok(now) if now == seen => Ok(()),
        Ok(_) => object("the service was halted again after this request. Ask again"),
        Err(_) => object("PostgreSQL does not return the number of this halt"),
    }
}

/// The answer of a resume. `was_halted`: whether there was a halt to end.
fn resumed(request_id: &str, was_halted: bool) -> Answer {
    #[derive(Serialize)]
    struct Body {
        halted: bool,
        /// False if there was no halt; absent otherwise.
        #[serde(skip_serializing_if = "Option::is_none")]
        was_halted: Option<bool>,
    }
    let was_halted = (!was_halted).then_some(false);
    json(StatusCode::OK, &Body { halted: false, was_halted }, request_id)
}
