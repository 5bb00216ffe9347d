//! Roles of PostgreSQL that may commit the transactions of an owner in a local transaction of their
//! own. A role is made by the database's administrator, never here.

use tokio_postgres::Transaction;

use super::{Admin, audit};
use crate::postgres::Error;

/// A function by its name, with its arguments as `GRANT` takes them.
const FUNCTION: &str = "SELECT p.oid::regprocedure::text, quote_ident($1::text), \
            quote_ident(current_schema()), \
            has_schema_privilege($1::text::name, current_schema(), 'USAGE') \
       FROM pg_proc p WHERE p.proname = 'transaction_commit' \
        AND p.pronamespace = current_schema()::regnamespace";

impl Admin {
    /// Lets a role commit the transactions of an owner. A repeat changes nothing and gets an audit
    /// row too.
    ///
    /// # Errors
    /// [`Error::UnknownRole`]: nothing was changed. Otherwise PostgreSQL is away, or this process
    /// has been superseded; the outcome may be unknown, and a repeat is harmless.
    pub async fn grant_caller(
        &self,
        role: &str,
        owner: &str,
        actor: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        if !exists(&transaction, role).await? {
            return Err(Error::UnknownRole(role.to_owned()));
        }
        let insert = "INSERT INTO transaction_grants (role_name, owner) \
                      VALUES ($1::text::name, $2) ON CONFLICT DO NOTHING";
        transaction.execute(insert, &[&role, &owner]).await?;
        let row = transaction.query_one(FUNCTION, &[&role]).await?;
        let (function, quoted, schema): (&str, &str, &str) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let mut grants = format!("GRANT EXECUTE ON FUNCTION {function} TO {quoted}");
        if !row.try_get::<_, bool>(3)? {
            grants.push_str(&format!("; GRANT USAGE ON SCHEMA {schema} TO {quoted}"));
        }
        transaction.batch_execute(&grants).await?;
        audit(&transaction, actor, "transaction grant", role, owner, reason).await?;
        Ok(transaction.commit().await?)
    }

    /// Takes that back. Returns false if the role had no grant for this owner. A local transaction
    /// that has called the function already can still commit.
    ///
    /// # Errors
    /// As [`Admin::grant_caller`], but a role that was dropped is no error.
    pub async fn revoke_caller(
        &self,
        role: &str,
        owner: &str,
        actor: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let delete = "DELETE FROM transaction_grants \
                      WHERE role_name = $1::text::name AND owner = $2";
        if transaction.execute(delete, &[&role, &owner]).await? == 0 {
            return Ok(false);
        }
        let left = "SELECT 1 FROM transaction_grants WHERE role_name = $1::text::name LIMIT 1";
        let others = transaction.query_opt(left, &[&role]).await?.is_some();
        if !others && exists(&transaction, role).await? {
            let row = transaction.query_one(FUNCTION, &[&role]).await?;
            let (function, quoted): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            let revoke = format!("REVOKE EXECUTE ON FUNCTION {function} FROM {quoted}");
            transaction.batch_execute(&revoke).await?;
        }
        audit(&transaction, actor, "transaction revoke", role, owner, reason).await?;
        transaction.commit().await?;
        Ok(true)
    }
}

/// Whether PostgreSQL has the role. The word PUBLIC names none.
async fn exists(transaction: &Transaction<'_>, role: &str) -> Result<bool, Error> {
    let find = "SELECT 1 FROM pg_roles WHERE rolname::text = $1::text";
    Ok(transaction.query_opt(find, &[&role]).await?.is_some())
}
