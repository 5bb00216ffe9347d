//! Transactions for operators and for their owners: one, and lists, newest first, a page at a time.
//!
//! A page begins below an order number, so a transaction that comes meanwhile is on no later page.
//! A caller's decision that is not sealed may be lost in a crash: see
//! [`TransactionRow::sealed`].

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::{Id, bigint};
use crate::postgres::events::TransactionEvent;
use crate::postgres::transactions::rows::{transactions_from_rows, with_branches};
use crate::transaction::{TransactionName, TransactionRow, TransactionState};
use domain::account::UserId;
use domain::transfer::ReqId;

/// Which transactions.
#[derive(Clone, Debug, Default)]
pub struct TransactionFilter {
    /// Of this owner.
    pub owner: Option<String>,
    /// With this name, which other owners may have given too.
    pub tx_id: Option<String>,
    /// In this state.
    pub state: Option<TransactionState>,
    /// Only unfinished ones.
    pub unfinished: bool,
    /// Only unfinished ones that are undecided beyond their age, or decided and unchanged, for so
    /// long, milliseconds, by PostgreSQL's clock.
    pub stuck_ms: Option<u64>,
    /// Accepted then or later.
    pub since: Option<Timestamp>,
    /// Accepted earlier.
    pub until: Option<Timestamp>,
    /// With a smaller order number: the cursor.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// A part of a list of transactions.
#[derive(Clone, Debug)]
pub struct TransactionPage {
    /// Newest first.
    pub transactions: Vec<TransactionRow>,
    /// The order number below which the next page begins; `None` at the end.
    pub next: Option<u64>,
}

/// A role of PostgreSQL that may commit the transactions of an owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallerGrant {
    /// The role's name.
    pub role: String,
    /// The owner: `sub` of its token.
    pub owner: String,
    /// Since when, by PostgreSQL's clock.
    pub at: Timestamp,
}

/// The transactions with these ids: $1.
pub(in crate::postgres) const TRANSACTIONS_OF_EVENTS: &str =
    "SELECT * FROM transactions_tb WHERE transaction_id = ANY ($1)";

/// Events in their order, each with its transaction.
///
/// # Errors
/// A transaction is gone.
pub(in crate::postgres) fn events_of(
    events: &[(i64, Id)],
    rows: Vec<TransactionRow>,
) -> Result<Vec<TransactionEvent>, Error> {
    let rows: BTreeMap<Id, TransactionRow> =
        rows.into_iter().map(|row| (Id::of(row.id), row)).collect();
    let event = |(id, of): &(i64, Id)| match rows.get(of) {
        Some(row) => Ok(TransactionEvent { id: *id, at: row.updated_at, transaction: row.clone() }),
        None => {
            let what = format!("the transaction of event {id} is gone");
            Err(Error::Row { table: "transactions_tb", what })
        }
    };
    events.iter().map(event).collect()
}

impl Reads {
    /// The transaction with this id.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transaction(&self, id: ReqId) -> Result<Option<TransactionRow>, Error> {
        let chosen = "SELECT * FROM transactions_tb WHERE transaction_id = $1";
        Ok(self.chosen(chosen, &[&Id::of(id)]).await?.pop())
    }

    /// The transaction with this name.
    ///
    /// # Errors
    /// As [`Reads::transaction`].
    pub async fn transaction_named(
        &self,
        name: &TransactionName,
    ) -> Result<Option<TransactionRow>, Error> {
        let chosen = "SELECT * FROM transactions_tb WHERE owner = $1 AND tx_id = $2";
        Ok(self.chosen(chosen, &[&name.owner, &name.tx_id.as_str()]).await?.pop())
    }

    /// A page of transactions.
    ///
    /// # Errors
    /// As [`Reads::transaction`].
    pub async fn transactions(&self, filter: &TransactionFilter) -> Result<TransactionPage, Error> {
        let TransactionFilter { owner, tx_id, stuck_ms, since, until, before, limit, .. } = filter;
        let state = filter.state.map(TransactionState::number);
        let stuck = stuck_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX));
        let before = before.map_or(i64::MAX, bigint);
        let more = i64::from(*limit) + 1;
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&before, &more];
        let mut parts = vec!["order_number < $1".to_owned()];
        // Only what is asked for, so that PostgreSQL finds the index of it.
        if let Some(owner) = owner {
            values.push(owner);
            parts.push(format!("owner = ${}", values.len()));
        }
        if let Some(tx_id) = tx_id {
            values.push(tx_id);
            parts.push(format!("tx_id = ${}", values.len()));
        }
        if filter.unfinished {
            parts.push("state NOT IN (40, -20)".to_owned());
        }
        if let Some(state) = &state {
            values.push(state);
            parts.push(format!("state = ${}", values.len()));
        }
        if let Some(stuck) = &stuck {
            values.push(stuck);
            parts.push(format!(
                "state NOT IN (40, -20) \
                 AND CASE WHEN state IN (0, 20) THEN expires_at ELSE updated_at END \
                     < clock_timestamp() - ${}::bigint * interval '1 millisecond'",
                values.len()
            ));
        }
        if let Some(since) = since {
            values.push(since);
            parts.push(format!("created_at >= ${}", values.len()));
        }
        if let Some(until) = until {
            values.push(until);
            parts.push(format!("created_at < ${}", values.len()));
        }
        let chosen = format!(
            "SELECT * FROM transactions_tb WHERE {} ORDER BY order_number DESC LIMIT $2",
            parts.join(" AND ")
        );
        let mut transactions = self.chosen_in(&chosen, "DESC", &values).await?;
        let asked = usize::try_from(*limit).unwrap_or(usize::MAX);
        let more = transactions.len() > asked;
        transactions.truncate(asked);
        let next = transactions.last().filter(|_| more).map(|last| last.order_number);
        Ok(TransactionPage { transactions, next })
    }

    /// The roles that may commit transactions in SQL, by role and owner.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn callers(&self) -> Result<Vec<CallerGrant>, Error> {
        let all = "SELECT role_name, owner, at FROM transaction_grants ORDER BY 1, 2";
        let rows = self.pool.get().await?.query(all, &[]).await?;
        let grant = |row: &tokio_postgres::Row| {
            Ok(CallerGrant { role: row.try_get(0)?, owner: row.try_get(1)?, at: row.try_get(2)? })
        };
        rows.iter().map(grant).collect()
    }

    /// The next events of a user's transactions after an event, at most `rows`, in the order of
    /// their ids.
    ///
    /// # Errors
    /// As [`Reads::transaction`].
    pub async fn transaction_events(
        &self,
        user: UserId,
        after: i64,
        rows: usize,
    ) -> Result<Vec<TransactionEvent>, Error> {
        let limit = i32::try_from(rows).unwrap_or(i32::MAX);
        let events = "SELECT event_id, transaction_id FROM transaction_events_after($1, $2, $3)";
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(events).await?;
        let found = client.query(&statement, &[&user.bigint(), &after, &limit]).await?;
        drop(client);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let named = found.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
        let named = named.collect::<Result<Vec<(i64, Id)>, Error>>()?;
        let ids: Vec<Id> = named.iter().map(|(_, id)| *id).collect();
        let rows = self.chosen(TRANSACTIONS_OF_EVENTS, &[&ids]).await?;
        events_of(&named, rows)
    }

    async fn chosen(
        &self,
        chosen: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<TransactionRow>, Error> {
        self.chosen_in(chosen, "ASC", values).await
    }

    async fn chosen_in(
        &self,
        chosen: &str,
        order: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<TransactionRow>, Error> {
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(&with_branches(chosen, order)).await?;
        let rows = client.query(&statement, values).await?;
        self.pool.note(&client).await?;
        transactions_from_rows(&rows)
    }
}
