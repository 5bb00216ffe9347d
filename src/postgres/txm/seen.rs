//! The database of nodes as `ubscore doctor` sees it. Nothing is changed.

use alloy_primitives::B256;

use super::schema;
use crate::postgres::{Address, Error, Limits, connect};

/// A table that a role may write to, other than a temporary one. A role owns, or was granted, or is
/// a superuser; catalogs need no privilege to be read here.
const WRITABLE: &str = "\
    SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c \
      JOIN pg_namespace n ON n.oid = c.relnamespace \
     WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema' \
       AND (n.nspname = 'txm') = $1 AND has_schema_privilege(n.oid, 'USAGE') \
       AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') \
     ORDER BY 1 LIMIT 1";

/// The schema `txm` in a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxmDatabase {
    /// The number of its last migration; `None`: the schema is not there yet.
    pub migration: Option<i32>,
    /// The chain and the hash of block 0 that it is bound to; `None`: to none yet.
    pub chain: Option<(u64, B256)>,
    /// The role that asked.
    pub role: String,
    /// A table outside of the schema that this role may write.
    pub outside: Option<String>,
}

/// The number of the last migration that this version knows.
pub fn last_migration() -> i32 {
    schema::last_migration()
}

impl TxmDatabase {
    /// Looks at the database of a node, with the node's role.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn look(address: &Address, limits: &Limits) -> Result<TxmDatabase, Error> {
        let client = connect(address, limits).await?;
        let there = "SELECT current_user::text, EXISTS (SELECT FROM pg_class c \
                     JOIN pg_namespace n ON n.oid = c.relnamespace \
                     WHERE n.nspname = 'txm' AND c.relname = 'settings')";
        let row = client.query_one(there, &[]).await?;
        let mut seen =
            TxmDatabase { migration: None, chain: None, role: row.try_get(0)?, outside: None };
        let outside = client.query_opt(WRITABLE, &[&false]).await?;
        seen.outside = outside.map(|row| row.try_get(0)).transpose()?;
        if row.try_get(1)? {
            let last = "SELECT max(version) FROM txm.migrations";
            seen.migration = client.query_one(last, &[]).await?.try_get(0)?;
            let bound = "SELECT chain_id, genesis_hash FROM txm.settings";
            if let Some(row) = client.query_opt(bound, &[]).await? {
                let (id, genesis): (i64, &[u8]) = (row.try_get(0)?, row.try_get(1)?);
                let genesis = B256::try_from(genesis).unwrap_or_default();
                seen.chain = Some((u64::try_from(id).unwrap_or_default(), genesis));
            }
        }
        Ok(seen)
    }
}

/// A table of the schema `txm` that the role of this address may write; `None`: there is none.
///
/// # Errors
/// [`Error`].
pub async fn writable_inside(address: &Address, limits: &Limits) -> Result<Option<String>, Error> {
    let client = connect(address, limits).await?;
    let row = client.query_opt(WRITABLE, &[&true]).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}
