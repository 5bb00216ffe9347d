//! The listeners of a node of the transaction manager: clients on one, operators on the other.
//!
//! Reads are answered on any node, from the rows. A new transaction is taken by the owner of its
//! signer, or by any node if it gets its nonce later. A command is a row: any node takes it, and
//! the owner carries it out.

mod adoption;
mod audit;
mod body;
mod commands;
pub mod desk;
mod feed;
mod openapi;
mod routes;
mod shown;
mod signers;
mod token;
mod transactions;

use std::sync::Arc;
use std::time::Duration;

use chain::tx::TxId;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use tokio::sync::watch;
use tracing::error;
use txm::store::StoreError;
use uuid::Uuid;

use self::desk::TxDesk;
use self::routes::{CLIENT_ROUTES, ForClients, ForOperators, OPERATOR_ROUTES};
use super::answer::{Answer, json};
use super::ops::health;
use super::readiness::{Part, Readiness};
use super::refusal::{Outcome, Refusal};
use super::request::{Call, query};
use super::route::Matched;
use super::service::Intake;
use crate::clock::Clock;
use crate::postgres::txm::reads::TxmReads;
use domain::code::Code;

pub use self::routes::{client_patterns, operator_patterns};
pub use self::token::X_APPROVER;

/// The largest body of a client, bytes: the longest data of a call as hexadecimal digits, and the
/// fields around it.
pub const BODY_BYTES_MAX: usize = 131_072;
/// The largest body of an adoption, bytes: some 6,000 imports, which have to be named in one call.
const ADOPTION_BYTES_MAX: usize = 1_048_576;

/// Between two looks at a row that a request waits for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest wait for PostgreSQL; then it counts as not answering.
const PING_MAX: Duration = Duration::from_secs(2);

/// Everything behind the listeners of a node.
pub struct TxmService {
    /// Receives requests.
    pub intake: Intake,
    /// Takes new transactions.
    pub desk: Arc<dyn TxDesk>,
    /// The rows.
    pub reads: TxmReads,
    /// Time of waits.
    pub clock: Arc<dyn Clock>,
    /// Changes, or loses its sender, when the node stops.
    pub stopping: watch::Receiver<()>,
    /// The highest gas limit of a request.
    pub gas_max: u64,
    /// The longest wait of a request for a change.
    pub wait_max: Duration,
}

/// Answers one request of the clients' listener.
pub async fn answer(service: Arc<TxmService>, request: Request<Incoming>) -> Answer {
    let call = service.intake.receive(request);
    let handler = |matched: Matched<ForClients>, call: Call| async move {
        let parameters = matched.parameters;
        match matched.route {
            ForClients::Create => transactions::create(&service, call).await,
            ForClients::List => transactions::list(&service, &call).await,
            ForClients::Get => transactions::get(&service, &parameters[0], &call).await,
            ForClients::ByRequest => transactions::by_request(&service, &call).await,
            ForClients::Query => transactions::query_many(&service, call).await,
            ForClients::Cancel => transactions::cancel(&service, &parameters[0], &call).await,
            ForClients::CancelByRequest => transactions::cancel_by_request(&service, call).await,
            ForClients::Events => feed::read(&service, &call).await,
            ForClients::Signers => signers::list(&service, &call).await,
            ForClients::Suspend => signers::halt(&service, true, &parameters[0], call).await,
            ForClients::Resume => signers::halt(&service, false, &parameters[0], call).await,
            ForClients::OpenApi => described(&call),
        }
    };
    CLIENT_ROUTES.answer(call, handler).await
}

/// Answers the description of the clients' listener.
fn described(call: &Call) -> Outcome {
    query(call, "")?;
    Ok(json(StatusCode::OK, &openapi::document(), &call.request_id))
}

/// Answers one request of the operators' listener.
pub async fn answer_operator(service: Arc<TxmService>, request: Request<Incoming>) -> Answer {
    let path = request.uri().path();
    if ["/metrics", "/healthz", "/readyz"].contains(&path) {
        // Asked for by machines: no token, and no line in the log.
        let readiness = service.readiness().await;
        return health(&request, &readiness);
    }
    let call = service.intake.receive(request);
    let handler = |matched: Matched<ForOperators>, call: Call| async move {
        let parameters = matched.parameters;
        match matched.route {
            ForOperators::Signers => signers::list(&service, &call).await,
            ForOperators::AddSigner => signers::add(&service, call).await,
            ForOperators::Suspend => signers::suspend(&service, &parameters[0], call).await,
            ForOperators::Resume => signers::resume(&service, &parameters[0], call).await,
            ForOperators::Release => commands::release(&service, &parameters[0], call).await,
            ForOperators::Fill => commands::fill(&service, &parameters[0], call).await,
            ForOperators::Audit => audit::read(&service, &parameters[0], &call).await,
            ForOperators::Adopt => signers::adopt(&service, &parameters[0], call).await,
            ForOperators::List => transactions::list(&service, &call).await,
            ForOperators::Get => transactions::get(&service, &parameters[0], &call).await,
            ForOperators::Command(wish) => {
                commands::command(&service, wish, &parameters[0], call).await
            }
            ForOperators::Resolve => commands::resolve(&service, &parameters[0], call).await,
        }
    };
    OPERATOR_ROUTES.answer(call, handler).await
}

impl TxmService {
    /// The parts that new work needs: PostgreSQL, a view of the chain, and a key.
    pub async fn readiness(&self) -> Readiness {
        let postgres = tokio::select! {
            // No row has this id: the answer alone counts.
            pong = self.reads.get(TxId(Uuid::nil())) => pong.is_ok(),
            () = self.clock.sleep(PING_MAX) => false,
        };
        let problem = |is_there: bool, why: &str| (!is_there).then(|| why.to_owned());
        let postgres = problem(postgres, "PostgreSQL does not answer. Try again.");
        let chain = problem(self.desk.head().is_some(), "No endpoint shows the chain's head.");
        let keys = problem(!self.desk.keys().is_empty(), "There is no key of a signer here.");
        Readiness::of(vec![
            Part::new("postgres", Code::SystemError, postgres),
            Part::new("chain", Code::SystemError, chain),
            Part::new("keys", Code::SystemError, keys),
        ])
    }

    /// Waits until the next look, or until the node stops; `false`: it stops.
    async fn pause(&self) -> bool {
        let mut stopping = self.stopping.clone();
        tokio::select! {
            biased;
            // Changed or gone: the node stops.
            _ = stopping.changed() => false,
            () = self.clock.sleep(LOOK_EVERY) => true,
        }
    }
}

/// The refusal behind a call of the store that failed.
fn store_away(failure: StoreError) -> Refusal {
    error!(error = %failure, "a call of the store failed");
    let away = Refusal::away("PostgreSQL");
    match failure {
        StoreError::Unknown(_) => Refusal { unknown: true, ..away },
        StoreError::Away(_)
        | StoreError::Fenced { .. }
        | StoreError::Suspended
        | StoreError::Overloaded => away,
    }
}
