//! The schema `txm`: tables by migrations, functions and triggers at each start.

use crate::postgres::{Address, Error, Limits, connect};

/// Brings the schema to this version, one process at a time.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to a commit was lost.
pub async fn migrate(address: &Address, limits: &Limits) -> Result<(), Error> {
    drop(connect(address, limits).await?);
    Ok(())
}
