//! Funding: operations on PostgreSQL balances. Within a transfer they share the coordinator's
//! transaction; a single operation is a transaction of its own. Either way the decision is recorded
//! once, with its effect.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Mutex;

use super::{Adapter, Answer, Ask, Outcome, Reason, Route, check_ask};
use crate::postgres::store::{Call, Failure, Reply, Standing, Store};
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::{Op, ReqId};

/// The Funding participant over a store of its own.
pub struct Funding<S> {
    store: Mutex<S>,
    catalog: Arc<ArcSwap<Catalog>>,
}

impl<S: Store> Funding<S> {
    /// Funding over `store`; `catalog`: the assets PostgreSQL knows.
    pub fn new(store: S, catalog: Arc<ArcSwap<Catalog>>) -> Funding<S> {
        Funding { store: Mutex::new(store), catalog }
    }

    async fn commit(&self, call: Call) -> Answer {
        let reply = self.store.lock().await.commit(Standing::default(), &[call]).await;
        let outcome = match reply.as_deref() {
            Ok([Reply::Operation(Some(decision))]) => Outcome::from(*decision),
            Ok([Reply::Operation(None)]) => Outcome::Unknown(Reason::NotRecorded),
            Ok(_) => Outcome::Unknown(Reason::Mismatched),
            Err(Failure::Unreachable(_)) => Outcome::NetworkError,
            Err(Failure::Retry(_) | Failure::Blocked { .. }) => Outcome::Pending,
            Err(Failure::Refused { violation: true, .. }) => Outcome::Unknown(Reason::Violation),
            Err(Failure::Refused { .. } | Failure::Split(_) | Failure::Contradicted(_)) => {
                Outcome::Unknown(Reason::Refused)
            }
            Err(Failure::Fenced) => Outcome::Unknown(Reason::Fenced),
            Err(Failure::Unknown(_)) => Outcome::Unknown(Reason::CommitLost),
        };
        Answer::without_record(outcome)
    }
}

impl<S: Store> Adapter for Funding<S>
where
    S: Sync,
{
    const ROUTE: Route = Route::Together;

    fn check(&self, ask: &Ask) -> Result<(), Code> {
        check_ask(ask, self.catalog.load().by_id(ask.intent.asset).is_some())
    }

    async fn ask(&self, asks: Vec<Ask>) -> Vec<Answer> {
        self.decide(asks, false).await
    }

    async fn refuse(&self, asks: Vec<Ask>) -> Vec<Answer> {
        self.decide(asks, true).await
    }

    async fn query(&self, req_id: ReqId, op: Op) -> Answer {
        self.commit(Call::QueryOperation { req_id, op }).await
    }
}

impl<S: Store> Funding<S>
where
    S: Sync,
{
    /// Decides operations, by their accounts or as refusals.
    async fn decide(&self, asks: Vec<Ask>, refuse: bool) -> Vec<Answer> {
        let mut answers = Vec::with_capacity(asks.len());
        for ask in asks {
            answers.push(match self.check(&ask) {
                // Nothing is recorded, so this is no refusal.
                Err(_) => Answer::without_record(Outcome::Unknown(Reason::Malformed)),
                Ok(()) => {
                    let Ask { op, intent } = ask;
                    self.commit(Call::Operate { op, intent, refuse }).await
                }
            });
        }
        answers
    }
}
