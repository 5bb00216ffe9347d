//! The refusals of requests.

use crate::store::{OtherOwner, StoreError, Suspension};

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
