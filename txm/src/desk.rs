//! The place where requests come in: each is answered once its row is durable, or refused.

use std::collections::BTreeSet;
use std::sync::Arc;

use alloy_primitives::Address;
use chain::tx::{NewTx, Tx};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::lease_keeper::Ask;
use crate::owner::Order;
use crate::prepare::prepare;
use crate::rpc::Endpoint;
use crate::seats::{Seat, Seats};
use crate::signer::Signer;
use crate::store::{Created, Lease, OtherOwner, SignerOwner, StoreError, Suspension, TxStore};
use crate::tools::Tools;

/// Why a request has no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TxRefusal {
    /// Another process owns the signer, or none does yet. The same request again, there.
    #[error("another node owns the signer: {}", .0.node)]
    NotLeader(OtherOwner),
    /// The id was used with another body, or the business key by another request: the names of the
    /// fields.
    #[error("the request is known with other fields: {}", .0.join(", "))]
    Duplicate(Vec<String>),
    /// The chain would take it and not do it.
    #[error("the call would fail: {0}")]
    WouldRevert(String),
    /// The store does not know the signer.
    #[error("the signer is not known")]
    SignerUnknown,
    /// The signer signs nothing now.
    #[error("the signer is suspended")]
    SignerSuspended(Vec<Suspension>),
    /// The signer may not sign this.
    #[error("the policy forbids it: {0}")]
    SignerPolicy(String),
    /// Too many rows of the signer are open.
    #[error("the signer has too many open transactions")]
    Overloaded,
    /// The signer cannot pay for it beside its open rows.
    #[error("the signer cannot pay for it")]
    Unfunded,
    /// The store or the chain does not answer. It may be done: the same request again.
    #[error("not now: {0}")]
    Away(String),
}

impl TxRefusal {
    /// Whether no repeat of the request can succeed. A row without a nonce ends by it.
    pub fn is_for_good(&self) -> bool {
        matches!(
            self,
            TxRefusal::Duplicate(_) | TxRefusal::WouldRevert(_) | TxRefusal::SignerPolicy(_)
        )
    }

    /// The name of its code.
    pub fn name(&self) -> &'static str {
        match self {
            TxRefusal::NotLeader(_) => "NOT_LEADER",
            TxRefusal::Duplicate(_) => "DUPLICATE_REQUEST",
            TxRefusal::WouldRevert(_) => "TX_WOULD_REVERT",
            TxRefusal::SignerUnknown => "SIGNER_UNKNOWN",
            TxRefusal::SignerSuspended(_) => "SIGNER_SUSPENDED",
            TxRefusal::SignerPolicy(_) => "SIGNER_POLICY",
            TxRefusal::Overloaded => "OVERLOADED",
            TxRefusal::Unfunded => "WAITING_FUNDS",
            TxRefusal::Away(_) => "UNAVAILABLE",
        }
    }

    /// A process that owns nothing, and does not know the owner.
    pub(crate) fn no_owner() -> TxRefusal {
        TxRefusal::NotLeader(OtherOwner { node: String::new(), url: String::new() })
    }
}

impl From<StoreError> for TxRefusal {
    fn from(error: StoreError) -> TxRefusal {
        match error {
            StoreError::Fenced { .. } => TxRefusal::no_owner(),
            StoreError::Overloaded => TxRefusal::Overloaded,
            StoreError::Suspended => TxRefusal::SignerSuspended(Vec::new()),
            StoreError::Unknown(_) | StoreError::Away(_) => TxRefusal::Away(error.to_string()),
        }
    }
}

/// The desk of a node. A clone is the same desk.
pub struct Desk<S, E, K> {
    tools: Arc<Tools<S, E, K>>,
    seats: Arc<Seats>,
    asks: mpsc::Sender<Ask>,
    arrivals: Arc<Notify>,
    keys: Arc<BTreeSet<Address>>,
}

impl<S, E, K> Clone for Desk<S, E, K> {
    fn clone(&self) -> Self {
        Desk {
            tools: Arc::clone(&self.tools),
            seats: Arc::clone(&self.seats),
            asks: self.asks.clone(),
            arrivals: Arc::clone(&self.arrivals),
            keys: Arc::clone(&self.keys),
        }
    }
}

impl<S: TxStore, E: Endpoint, K: Signer> Desk<S, E, K> {
    pub(crate) fn new(
        tools: Arc<Tools<S, E, K>>,
        seats: Arc<Seats>,
        asks: mpsc::Sender<Ask>,
        arrivals: Arc<Notify>,
    ) -> Desk<S, E, K> {
        let keys = Arc::new(tools.keys.addresses().into_iter().collect());
        Desk { tools, seats, asks, arrivals, keys }
    }

    /// Makes the row of a request, or finds it. `later`: any node stores it, and the signer's owner
    /// gives it a nonce later.
    ///
    /// # Errors
    /// [`TxRefusal`]. A known request is never refused, but for `Duplicate`.
    pub async fn create(&self, request: NewTx, later: bool) -> Result<Created, TxRefusal> {
        let (signer, id) = (request.signer, request.request_id.clone());
        let answer = match later {
            true => self.keep(&request).await,
            false => self.number(&request).await,
        };
        match answer {
            Ok(Created::Conflict(fields)) => Err(TxRefusal::Duplicate(fields)),
            Ok(created) => Ok(created),
            // The owner finds a known request by itself. So only a refusal needs a look.
            Err(refusal) => match self.tools.store.find(signer, &id).await {
                Ok(Some(tx)) => known(tx, &request),
                Ok(None) => Err(refusal),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// Finds the row of a request.
    ///
    /// # Errors
    /// [`TxRefusal::Away`].
    pub async fn find(&self, signer: Address, request_id: &str) -> Result<Option<Tx>, TxRefusal> {
        Ok(self.tools.store.find(signer, request_id).await?)
    }

    /// Looks for new rows and commands of a signer at once. If no node owns it, this node tries to.
    pub fn wake(&self, signer: Address) {
        if self.seats.get(signer).is_some() {
            self.arrivals.notify_one();
        } else if self.keys.contains(&signer) {
            // A full queue has asks enough, and the next tick finds the signer too.
            drop(self.asks.try_send(Ask::Wake(signer)));
        }
    }

    /// The leases of this node, by signer.
    pub fn owned(&self) -> Vec<Lease> {
        self.seats.all().iter().map(|seat| seat.lease).collect()
    }

    /// The parts of this node.
    pub fn tools(&self) -> &Arc<Tools<S, E, K>> {
        &self.tools
    }

    async fn keep(&self, request: &NewTx) -> Result<Created, TxRefusal> {
        let store = &self.tools.store;
        let kept = match store.keep(request).await {
            // By its key the same request again is the same row.
            Err(StoreError::Unknown(_)) => store.keep(request).await,
            kept => kept,
        };
        match kept {
            Ok(created) => {
                self.wake(request.signer);
                Ok(created)
            }
            Err(error) => match store.owner_of(request.signer).await {
                Ok(SignerOwner::Unknown) => Err(TxRefusal::SignerUnknown),
                Ok(_) | Err(_) => Err(error.into()),
            },
        }
    }

    async fn number(&self, request: &NewTx) -> Result<Created, TxRefusal> {
        let seat = self.seat(request.signer).await?;
        let prepared = prepare(&self.tools, request).await?;
        let request = NewTx { gas: Some(prepared.gas), ..request.clone() };
        let (reply, answer) = oneshot::channel();
        seat.orders.try_send(Order::Create(request, reply)).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => TxRefusal::Overloaded,
            mpsc::error::TrySendError::Closed(_) => TxRefusal::no_owner(),
        })?;
        // An owner that ended without an answer may have written the row: the caller looks.
        let answer = answer.await.unwrap_or_else(|_| Err(TxRefusal::no_owner()));
        drop(prepared.hold);
        answer
    }

    /// The owner of a signer here. If no live process owns it, this node acquires it.
    async fn seat(&self, signer: Address) -> Result<Seat, TxRefusal> {
        if self.seats.is_stopping() {
            return Err(TxRefusal::no_owner());
        }
        if let Some(seat) = self.seats.get(signer) {
            return Ok(seat);
        }
        if !self.keys.contains(&signer) {
            return Err(match self.tools.store.owner_of(signer).await? {
                SignerOwner::Unknown => TxRefusal::SignerUnknown,
                SignerOwner::Free => TxRefusal::no_owner(),
                SignerOwner::Node(other) => TxRefusal::NotLeader(other),
            });
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.asks.send(Ask::Acquire(signer, reply)).await;
        sent.map_err(|_| TxRefusal::no_owner())?;
        answer.await.unwrap_or_else(|_| Err(TxRefusal::no_owner()))
    }
}

/// The answer to a repeat of a request.
fn known(tx: Tx, request: &NewTx) -> Result<Created, TxRefusal> {
    // A cancel that came before its request has no body to compare.
    let came_first = tx.state.is_terminal() && tx.nonce.is_none() && tx.new.payload.to.is_zero();
    let fields = differences(&tx.new, request);
    match came_first || fields.is_empty() {
        true => Ok(Created::Known(Box::new(tx))),
        false => Err(TxRefusal::Duplicate(fields)),
    }
}

/// The names of the fields in which two requests of one id differ. A gas limit that the node
/// prepared, and the deadline, are no part of a request's body.
pub fn differences(kept: &NewTx, asked: &NewTx) -> Vec<String> {
    let (a, b) = (&kept.payload, &asked.payload);
    let fields = [
        ("businessKey", kept.business_key == asked.business_key),
        ("to", a.to == b.to),
        ("value", a.value == b.value),
        ("data", a.data == b.data),
        ("token", a.token == b.token),
        ("gas", a.gas == b.gas),
    ];
    fields.into_iter().filter(|field| !field.1).map(|field| field.0.to_owned()).collect()
}
