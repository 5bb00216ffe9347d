//! A transfer as UBSCore's record has it.
//!
//! PostgreSQL may lag behind UBSCore's record: a worker writes the final state some time after the
//! client has its answer. Every route answers the settled transfer, so no answer steps back behind
//! an earlier one.

use tracing::error;

use super::refusal::Refusal;
use super::wire::FundsAt;
use crate::adapters::funding::Funding;
use crate::adapters::spot::Spot;
use crate::coordinator::Coordinator;
use crate::postgres::database::Database;
use crate::postgres::flight_store::FlightStore;
use crate::postgres::store::Transfer;

/// A transfer as UBSCore's record has it, and where its money is.
///
/// # Errors
/// SYSTEM_ERROR with the transfer's name: UBSCore did not return the recorded outcome.
pub(super) async fn settle(
    coordinator: &Coordinator<Spot, Funding<FlightStore<Database>>>,
    transfer: Transfer,
) -> Result<(Transfer, FundsAt), Refusal> {
    let (req_id, before) = (transfer.intent.req_id, transfer.state);
    let settled = coordinator.settled(transfer).await.map_err(|silent| {
        error!(%req_id, "{silent}");
        Refusal { transfer: Some((req_id, None)), ..Refusal::away("UBSCore") }
    })?;
    let after = &settled.transfer;
    debug_assert_eq!(after.intent.req_id, req_id, "the same transfer comes back");
    debug_assert!(!before.is_terminal() || after.state == before, "a final state stays");
    let funds_at = FundsAt::of(settled.transfer.state, settled.withdrawn);
    Ok((settled.transfer, funds_at))
}
