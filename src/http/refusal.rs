//! A refusal: why a request is not served, and the one body that says so.
//!
//! A handler returns [`Outcome`]. A refused one becomes an answer in one place,
//! [`Refusal::answer`].

use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use serde::Serialize;
use tracing::error;
use utoipa::ToSchema;

use super::answer::{Answer, json};
use super::schema::{CodeName, RechargeIdText, ReqIdText, ShortageName, StateName};
use super::transaction_body::TransactionBody;
use crate::coordinator::Rejection;
use crate::postgres;
use crate::quota::Refused;
use crate::recharge::RechargeId;
use crate::telemetry::{self, chain};
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::{ReqId, State};

/// `Retry-After` of a refusal without a time of its own, s.
pub(super) const RETRY_AFTER_S: u64 = 1;

/// `WWW-Authenticate` of a 401.
const CHALLENGE: &str = "Bearer realm=\"ubscore\"";

/// How a handler ends: an answer, or a refusal.
pub type Outcome = Result<Answer, Refusal>;

/// Why a request is refused.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {}", .code.name(), .message.as_deref().unwrap_or(.code.message()))]
pub struct Refusal {
    /// The code that the client acts on.
    pub code: Code,
    /// Replaces the code's own status.
    pub status: Option<StatusCode>,
    /// Replaces the code's own sentence.
    pub message: Option<String>,
    /// Whether the same request may succeed later; replaces the code's own answer.
    pub retryable: Option<bool>,
    /// The transfer, and its final state if it has one.
    pub transfer: Option<(ReqId, Option<State>)>,
    /// The transaction, if there is one.
    pub transaction: Option<Box<TransactionBody>>,
    /// The recharge, if there is one.
    pub recharge: Option<Box<RechargeId>>,
    /// The outcome is unknown: the request may have taken effect.
    pub unknown: bool,
    /// Seconds until a retry can succeed, if known.
    pub retry_after_s: Option<u64>,
    /// The resource that is short, if the code is OVERLOADED.
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
            transaction: None,
            recharge: None,
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
    /// A refusal with a sentence of its own.
    pub fn because(code: Code, message: impl Into<String>) -> Refusal {
        Refusal { message: Some(message.into()), ..Refusal::from(code) }
    }

    /// The same refusal with another status.
    pub fn with_status(self, status: StatusCode) -> Refusal {
        Refusal { status: Some(status), ..self }
    }

    /// A part of the service did not answer. The request has changed nothing.
    pub fn away(what: &str) -> Refusal {
        Refusal::because(Code::SystemError, format!("{what} does not answer. Try again."))
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
            transaction: self.transaction.as_deref(),
            recharge_id: self.recharge.as_ref().map(|id| id.to_string()),
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

/// Why a request is refused, or why a transfer failed.
#[derive(Serialize, ToSchema)]
#[schema(as = Error)]
pub struct RefusalBody<'a> {
    /// The code to act on.
    #[schema(value_type = CodeName)]
    code: &'a str,
    /// A sentence for people.
    message: &'a str,
    /// Whether the same request may succeed later.
    retryable: bool,
    /// The same as the header X-Request-Id.
    request_id: &'a str,
    /// The transfer, if there is one or may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ReqIdText>, nullable = false)]
    req_id: Option<String>,
    /// The state of a transfer that has ended or that cannot be resolved.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<StateName>, nullable = false)]
    state: Option<&'a str>,
    /// The transaction, if there is one: its branches say which participant refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<TransactionBody>, nullable = false)]
    transaction: Option<&'a TransactionBody>,
    /// The recharge, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RechargeIdText>, nullable = false)]
    recharge_id: Option<String>,
    /// Present if it is unknown whether the transfer was accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false, pattern = "^unknown$")]
    outcome: Option<&'a str>,
    /// The resource that is short, if the code is OVERLOADED.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ShortageName>, nullable = false)]
    reason: Option<&'a str>,
}

impl<'a> RefusalBody<'a> {
    /// A refusal as a part of another body.
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
            transaction: None,
            recharge_id: None,
            outcome: None,
            reason: shortage.map(Shortage::name),
        }
    }
}

/// INVALID_REQUEST with a sentence that names the error.
pub fn invalid(what: impl Into<String>) -> Refusal {
    Refusal::because(Code::InvalidRequest, what)
}

/// The refusal after a failed read of PostgreSQL.
pub fn postgres_away(failure: postgres::Error) -> Refusal {
    error!(error = chain(&failure), "a read failed");
    Refusal::away("PostgreSQL")
}
