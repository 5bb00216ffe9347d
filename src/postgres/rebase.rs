//! Tables that have come from another cluster: their transactions' numbers mean nothing here, and the audit begins anew with
//! what they hold.

use std::time::Duration;

use tokio_postgres::GenericClient;
use tracing::warn;

use super::{Address, Error, Limits, connect};

/// Begins the audit anew, if the tables have come from another cluster.
///
/// # Errors
/// [`Error`]: PostgreSQL is away. Nothing was changed, or everything.
pub async fn rebase_if_foreign(client: &impl GenericClient) -> Result<(), Error> {
    let row = client.query_one("SELECT audit_is_foreign()", &[]).await?;
    if row.try_get(0)? {
        warn!("the tables come from another PostgreSQL: the audit begins with what they hold");
        client.execute("SELECT audit_rebase()", &[]).await?;
    }
    Ok(())
}

/// Makes tables that were just restored this cluster's own, and has the planner know them.
///
/// # Errors
/// [`Error`]: PostgreSQL is away; the same call again does it.
pub async fn settle(config: &Address, limits: &Limits) -> Result<(), Error> {
    // Numbering every operation anew takes its time.
    let limits = Limits { statement_timeout: Duration::ZERO, ..*limits };
    let client = connect(config, &limits).await?;
    rebase_if_foreign(&client).await?;
    Ok(client.batch_execute("ANALYZE").await?)
}
