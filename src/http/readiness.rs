//! Whether a process takes new work, part by part. The role hands in its parts; `/readyz`, the
//! metric, the console and alerts share the one answer.

use hyper::StatusCode;
use serde::Serialize;

use super::answer::{Answer, json};
use super::refusal::RefusalBody;
use crate::telemetry;
use domain::code::Code;
use domain::shortage::Shortage;

/// One part that new work needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name.
    pub part: &'static str,
    /// Whether it takes new work.
    pub ready: bool,
    /// The problem; null if the part is ready.
    pub why: Option<String>,
    #[serde(skip)]
    code: Code,
    #[serde(skip)]
    shortage: Option<Shortage>,
}

impl Part {
    /// A part that is ready, unless `why` names its problem. `code`: of the refusal then.
    pub fn new(part: &'static str, code: Code, why: Option<String>) -> Part {
        Part { part, ready: why.is_none(), why, code, shortage: None }
    }

    /// The part of a lasting shortage. `short`: it lasts now.
    pub fn of_shortage(lasting: Shortage, short: bool) -> Part {
        assert!(lasting.is_lasting(), "a passing shortage makes no process unready: {lasting:?}");
        let why = short.then(|| lasting.message().to_owned());
        let part = Part::new(lasting.name(), Code::Overloaded, why);
        Part { shortage: short.then_some(lasting), ..part }
    }
}

/// Every part, the most important first.
#[derive(Clone, Debug)]
pub struct Readiness {
    parts: Vec<Part>,
}

impl Readiness {
    /// Before there is a service.
    pub fn starting() -> Readiness {
        let why = Some("The service is starting.".to_owned());
        Readiness { parts: vec![Part::new("recovery", Code::SystemError, why)] }
    }

    /// The answer of these parts, the most important first. Sets the metric.
    pub fn of(parts: Vec<Part>) -> Readiness {
        debug_assert!(!parts.is_empty(), "a role has a part that new work needs");
        let readiness = Readiness { parts };
        telemetry::ready(readiness.problem().is_none());
        readiness
    }

    /// The first part that takes no new work.
    pub fn problem(&self) -> Option<&Part> {
        self.parts.iter().find(|part| !part.ready)
    }

    /// The answer of `/readyz`: 200, or 503 with the first problem as an error.
    pub fn answer(&self, request_id: &str) -> Answer {
        #[derive(Serialize)]
        struct Body<'a> {
            ready: bool,
            parts: &'a [Part],
            #[serde(flatten)]
            refusal: Option<RefusalBody<'a>>,
        }
        let problem = self.problem();
        let refusal = problem.map(|part| {
            let message = part.why.as_deref().unwrap_or(part.code.message());
            RefusalBody::new(part.code, message, request_id, part.shortage)
        });
        let status = match problem {
            Some(_) => StatusCode::SERVICE_UNAVAILABLE,
            None => StatusCode::OK,
        };
        let body = Body { ready: problem.is_none(), parts: &self.parts, refusal };
        json(status, &body, request_id)
    }
}
