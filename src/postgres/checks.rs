//! Checks of rows that a migration has added as NOT VALID, so that it holds its tables for a moment
//! only. A start validates them behind the migrations: PostgreSQL reads the table, and rows change
//! meanwhile.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tracing::{info, warn};

use super::Error;

/// Tables with their checks.
const ADDED: [(&str, &str); 8] = [
    ("balances_tb", "balances_special_check"),
    ("funding_holds", "funding_holds_purpose_check"),
    ("funding_holds", "funding_holds_special_check"),
    ("funding_holds", "funding_holds_outside_check"),
    ("funding_holds", "funding_holds_settled_check"),
    ("recharge_movements", "recharge_movements_kind_check"),
    ("recharge_movements", "recharge_movements_of_payment_check"),
    ("recharges_tb", "recharges_bonus_check"),
];

/// Validates those that are not valid yet. A row that breaks one is older than it, and only warned
/// of: the start is no worse than before.
///
/// # Errors
/// [`Error`]: PostgreSQL is away. A repeat goes on.
pub(super) async fn validate(client: &Client) -> Result<(), Error> {
    let open = "SELECT EXISTS (SELECT FROM pg_constraint \
                 WHERE conrelid = to_regclass($1) AND conname = $2 AND NOT convalidated)";
    for (table, check) in ADDED {
        if !client.query_one(open, &[&table, &check]).await?.try_get::<_, bool>(0)? {
            continue;
        }
        let validate = format!("ALTER TABLE {table} VALIDATE CONSTRAINT {check}");
        match client.batch_execute(&validate).await {
            Ok(()) => info!(table, check, "check validated"),
            Err(error) if error.code() == Some(&SqlState::CHECK_VIOLATION) => {
                warn!(table, check, %error, "a row breaks a check");
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
