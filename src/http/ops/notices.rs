//! Callbacks of a payment as they came, with their words: for admins alone, since they may name the
//! payer.

use hyper::StatusCode;
use serde::Serialize;

use super::recharge_shown::NoticeHeadBody;
use super::recharges::desk;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::Service;
use crate::postgres::reads::notices::KeptNotice;
use crate::recharge::PaymentId;
use domain::code::Code;

#[derive(Serialize)]
struct NoticeBody {
    #[serde(flatten)]
    head: NoticeHeadBody,
    /// Those of its signature, each `name: value`.
    headers: Vec<String>,
    /// As it was signed.
    body: String,
}

impl From<&KeptNotice> for NoticeBody {
    fn from(kept: &KeptNotice) -> NoticeBody {
        NoticeBody {
            head: NoticeHeadBody::from(&kept.head),
            headers: kept.headers.clone(),
            // A message that is believed is JSON, so it is UTF-8.
            body: String::from_utf8_lossy(&kept.body).into_owned(),
        }
    }
}

#[derive(Serialize)]
struct Body {
    notices: Vec<NoticeBody>,
}

/// `GET /admin/v1/payments/{payment_id}/notices`: oldest first. A payment without a row has some
/// too: one of a taking that came before it.
pub(super) async fn show(service: &Service, id: &str, call: &Call) -> Outcome {
    service.intake.authenticate_admin(call)?;
    query(call, "")?;
    desk(service)?;
    let none = || Refusal::because(Code::NotFound, "There is no such payment.");
    let id = PaymentId::parse(id).ok_or_else(none)?;
    let kept = service.transfers.reads.kept_notices(id).await.map_err(postgres_away)?;
    let body = Body { notices: kept.iter().map(NoticeBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
