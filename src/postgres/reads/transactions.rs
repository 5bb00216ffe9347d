//! Transactions for their owners and for operators, newest first, a page at a time.

use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::{Id, bigint};
use crate::postgres::transactions::rows::{transactions_from_rows, with_branches};
use crate::transaction::{TransactionRow, TransactionState};
use domain::transfer::ReqId;

/// Some transactions.
#[derive(Clone, Debug, Default)]
pub struct TransactionFilter {
    /// Only of this owner.
    pub owner: Option<String>,
    /// Only with this name, which another owner may have given too.
    pub tx_id: Option<String>,
    /// Only in one of these states; empty: in any.
    pub states: Vec<TransactionState>,
    /// Undecided and expired, or decided and without a change, since then.
    pub stuck_since: Option<Timestamp>,
    /// Accepted then or later.
    pub since: Option<Timestamp>,
    /// Accepted earlier.
    pub until: Option<Timestamp>,
    /// With a smaller order number.
    pub before: Option<u64>,
    /// At most this many, above 0.
    pub limit: u32,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct TransactionPage {
    /// Newest first.
    pub transactions: Vec<TransactionRow>,
    /// The order number below which the next page begins, `None` at the end.
    pub next: Option<u64>,
}

/// A role of PostgreSQL that may commit the transactions of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionGrant {
    /// The role.
    pub role: String,
    /// The owner.
    pub owner: String,
    /// Since when.
    pub at: Timestamp,
}

impl Reads {
    /// One page of a list.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transactions(&self, filter: &TransactionFilter) -> Result<TransactionPage, Error> {
        assert!(filter.limit > 0, "a page has room");
        let (limit, before) = (i64::from(filter.limit), filter.before.map(bigint));
        let states: Vec<i16> = filter.states.iter().map(|state| state.number()).collect();
        let states = (!states.is_empty()).then_some(&states);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&limit];
        let mut conditions = vec!["TRUE".to_owned()];
        let wanted: [(&str, Option<&(dyn ToSql + Sync)>); 7] = [
            ("owner = $?", filter.owner.as_ref().map(|owner| owner as _)),
            ("tx_id = $?", filter.tx_id.as_ref().map(|tx_id| tx_id as _)),
            ("state = ANY ($?)", states.map(|states| states as _)),
            (
                "CASE WHEN state IN (0, 20) THEN expires_at WHEN state IN (30, -10) THEN updated_at \
                 END <= $?",
                filter.stuck_since.as_ref().map(|since| since as _),
            ),
            ("created_at >= $?", filter.since.as_ref().map(|since| since as _)),
            ("created_at < $?", filter.until.as_ref().map(|until| until as _)),
            ("order_number < $?", before.as_ref().map(|before| before as _)),
        ];
        // Only what is asked for is named, so that the planner sees which index leads there.
        for (condition, value) in wanted {
            let Some(value) = value else { continue };
            values.push(value);
            conditions.push(condition.replace("$?", &format!("${}", values.len())));
        }
        if filter.stuck_since.is_some() {
            // The condition of the index of unfinished ones.
            conditions.push("state NOT IN (40, -20)".to_owned());
        }
        let chosen = format!(
            "SELECT * FROM transactions_tb WHERE {} ORDER BY order_number DESC LIMIT $1",
            conditions.join(" AND ")
        );
        let client = self.pool.get().await?;
        let rows = client.query(&with_branches(&chosen, "DESC"), &values).await?;
        self.pool.note(&client).await?;
        let transactions = transactions_from_rows(&rows)?;
        let full = i64::try_from(transactions.len()).is_ok_and(|found| found == limit);
        let next = transactions.last().filter(|_| full).map(|row| row.order_number);
        Ok(TransactionPage { transactions, next })
    }

    /// One transaction.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or the row cannot be read.
    pub async fn transaction(&self, id: ReqId) -> Result<Option<TransactionRow>, Error> {
        let chosen = "SELECT * FROM transactions_tb WHERE transaction_id = $1";
        let client = self.pool.get().await?;
        let rows = client.query(&with_branches(chosen, "ASC"), &[&Id::of(id)]).await?;
        self.pool.note(&client).await?;
        Ok(transactions_from_rows(&rows)?.pop())
    }

    /// All grants, by role and owner.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn transaction_grants(&self) -> Result<Vec<TransactionGrant>, Error> {
        let all = "SELECT role_name::text, owner, at FROM transaction_grants ORDER BY 1, 2";
        let rows = self.pool.get().await?.query(all, &[]).await?;
        let grant = |row: &tokio_postgres::Row| {
            Ok(TransactionGrant {
                role: row.try_get(0)?,
                owner: row.try_get(1)?,
                at: row.try_get(2)?,
            })
        };
        rows.iter().map(grant).collect()
    }
}
