//! Whether new transfers are taken, part by part. `/readyz`, the metric, the console and alerts
//! share this one answer.

use std::time::Duration;

use hyper::StatusCode;
use serde::Serialize;

use super::answer::{Answer, json};
use super::refusal::RefusalBody;
use super::service::Transfers;
use crate::coordinator::alert_shortage;
use crate::telemetry;
use domain::code::Code;
use domain::shortage::Shortage;
use domain::transfer::Direction;

/// The longest wait for PostgreSQL; then it counts as not answering.
const PING_MAX: Duration = Duration::from_secs(2);

/// One part that a new transfer needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name.
    pub part: &'static str,
    /// Whether it takes new transfers.
    pub ready: bool,
    /// The problem; null if the part is ready.
    pub why: Option<String>,
    #[serde(skip)]
    code: Code,
    #[serde(skip)]
    shortage: Option<Shortage>,
}

impl Part {
    fn new(part: &'static str, code: Code, why: Option<String>) -> Part {
        Part { part, ready: why.is_none(), why, code, shortage: None }
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

    /// Checks every part, and sets the metric. A lasting shortage raises an alert.
    pub async fn look(transfers: &Transfers) -> Readiness {
        let halt = transfers.halt.reason().map(|reason| format!("Halted: {reason}"));
        let postgres = tokio::select! {
            pong = transfers.reads.ping() => pong.is_ok(),
            () = transfers.clock.sleep(PING_MAX) => false,
        };
        let postgres = (!postgres).then(|| "PostgreSQL does not answer. Try again.".to_owned());
        let shortage = transfers.coordinator.shortage();
        let mut parts = vec![
            Part::new("recovery", Code::SystemError, None),
            Part::new("halt", Code::ServiceHalted, halt),
            Part::new("postgres", Code::SystemError, postgres),
        ];
        for lasting in Shortage::ALL.into_iter().filter(|shortage| shortage.is_lasting()) {
            let short = shortage.filter(|short| *short == lasting);
            let why = short.map(|short| short.message().to_owned());
            let part = Part::new(lasting.name(), Code::Overloaded, why);
            parts.push(Part { shortage: short, ..part });
        }
        parts.push(Part::new("pauses", Code::TransferNotAllowed, all_paused(transfers)));
        if let Some(shortage) = shortage {
            alert_shortage(shortage);
        }
        let readiness = Readiness { parts };
        telemetry::ready(readiness.problem().is_none());
        readiness
    }

    /// The first part that takes no new transfers.
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

/// The problem if pauses refuse every transfer.
fn all_paused(transfers: &Transfers) -> Option<String> {
    let (catalog, pauses) = (transfers.reads.catalog(), transfers.reads.pauses());
    let assets = catalog.all();
    let paused =
        |direction| assets.iter().all(|asset| pauses.covering(direction, asset.id).is_some());
    let all = !assets.is_empty() && Direction::ALL.into_iter().all(paused);
    all.then(|| "Every direction of every asset is paused.".to_owned())
}
