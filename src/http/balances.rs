//! A user's balances, for the user and for operators.

use tracing::error;

use super::refusal::Refusal;
use super::service::Transfers;
use super::wire::{BalanceBody, BalancesBody};
use crate::telemetry::chain;
use domain::account::UserId;
use domain::asset::Asset;

/// A user's balances in these assets.
///
/// # Errors
/// SYSTEM_ERROR: one of the two stores does not answer.
pub(super) async fn balances(
    transfers: &Transfers,
    user: UserId,
    assets: &[Asset],
) -> Result<BalancesBody, Refusal> {
    let balances = transfers.coordinator.balances(&transfers.reads, user, assets).await;
    let balances = balances.map_err(|error| {
        error!(error = chain(&error), "balances cannot be read");
        Refusal::away("A part of the service")
    })?;
    debug_assert_eq!(balances.len(), assets.len(), "one balance for each asset");
    Ok(BalancesBody { balances: balances.into_iter().map(BalanceBody::from).collect() })
}
