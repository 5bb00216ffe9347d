//! The leases of a node.

use alloy_primitives::Address;
use tokio::sync::oneshot;

use crate::desk::TxRefusal;
use crate::seats::Seat;

/// A wish of the desk.
pub(crate) enum Ask {
    /// To own a signer.
    Acquire(Address, oneshot::Sender<Result<Seat, TxRefusal>>),
    /// There is work for a signer that is not owned here.
    Wake(Address),
}
