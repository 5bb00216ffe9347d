//! Roles of PostgreSQL that may commit the transactions of an owner in transactions of their own.

use super::{Admin, audit};
use crate::postgres::Error;

/// A role gets or loses the right to commit the transactions of an owner.
#[derive(Clone, Copy, Debug)]
pub struct GrantChange<'a> {
    /// The role of PostgreSQL.
    pub role: &'a str,
    /// The owner.
    pub owner: &'a str,
    /// It gets the right.
    pub granted: bool,
}

impl Admin {
    /// Changes a grant, with its audit row. Returns whether there is such a role; without one
    /// nothing is granted. A repeat changes nothing.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away or refuses, or this process has been superseded.
    pub async fn change_grant(
        &self,
        change: GrantChange<'_>,
        actor: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        let GrantChange { role, owner, granted } = change;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let known = "SELECT 1 FROM pg_roles WHERE rolname = $1::text";
        let known = transaction.query_opt(known, &[&role]).await?.is_some();
        if !known && granted {
            return Ok(false);
        }
        let write = match granted {
            true => {
                "INSERT INTO transaction_grants (role_name, owner) VALUES ($1::text, $2) \
                 ON CONFLICT DO NOTHING"
            }
            false => "DELETE FROM transaction_grants WHERE role_name = $1::text AND owner = $2",
        };
        transaction.execute(write, &[&role, &owner]).await?;
        let left = "SELECT EXISTS (SELECT FROM transaction_grants WHERE role_name = $1::text)";
        let may: bool = transaction.query_one(left, &[&role]).await?.try_get(0)?;
        if known {
            // The function checks the owner; without a grant it cannot even be called.
            let form = if may { "GRANT EXECUTE %s TO %I" } else { "REVOKE EXECUTE %s FROM %I" };
            let statement = "SELECT format($1, 'ON FUNCTION transaction_commit', $2::text)";
            let row = transaction.query_one(statement, &[&form, &role]).await?;
            transaction.batch_execute(row.try_get(0)?).await?;
        }
        let action = if granted { "transaction grant" } else { "transaction revoke" };
        audit(&transaction, actor, action, owner, role, reason).await?;
        transaction.commit().await?;
        Ok(known)
    }
}
