//! Lists of transfers for operators, newest first, a page at a time.
//!
//! No index names `state`, so nothing here looks for a state among all rows. Transfers that are not terminal are found by the
//! order numbers that the coordinator has under way, of which there are few; those that are, among the newest
//! `ROWS_PER_PAGE` before the page's beginning.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use tracing::error;

use super::{Passed, Reads, history, snapshot};
use crate::account::UserId;
use crate::postgres::Error;
use crate::postgres::database::{TRANSFER_COLUMNS, decision, transfer_from_row};
use crate::postgres::store::Transfer;
use crate::transfer::{Decision, Op, ReqId, State};

/// Terminal rows looked at for one page.
const ROWS_PER_PAGE: i64 = 10_000;

/// What follows [`TRANSFER_COLUMNS`] in a list.
const LISTED_COLUMNS: &str =
    "next_retry_at, (extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint";
/// Where it begins.
const LISTED_FROM: usize = 15;

/// A transfer in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// As PostgreSQL has it.
    pub transfer: Transfer,
    /// When it is tried again, where a try has failed.
    pub next_retry_at: Option<Timestamp>,
    /// How long ago it was accepted, milliseconds, by PostgreSQL's clock.
    pub age_ms: u64,
}

/// Which transfers.
#[derive(Clone, Copy, Debug)]
pub struct Filter {
    /// In this state; `None`: every one that is not terminal.
    pub state: Option<State>,
    /// Of this user.
    pub user: Option<UserId>,
    /// Accepted so long ago, milliseconds.
    pub older_ms: Option<u64>,
    /// With a smaller order number.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// Newest first.
    pub transfers: Vec<Listed>,
    /// The order number before which the next page begins, `None` at the end.
    pub next: Option<u64>,
}

/// A Funding operation as it is recorded.
#[derive(Clone, Debug)]
pub struct Posted {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// What was decided.
    pub decision: Decision,
    /// Decimal text.
    pub amount: String,
    /// The Funding balance afterwards, decimal text; of a success only.
    pub balance_after: Option<String>,
    /// When, by PostgreSQL's clock.
    pub at: Timestamp,
}

/// Everything that PostgreSQL has of one transfer.
#[derive(Clone, Debug)]
pub struct Dossier {
    /// The transfer.
    pub listed: Listed,
    /// Every state it has passed through, in order.
    pub history: Vec<Passed>,
    /// Its Funding operations.
    pub operations: Vec<Posted>,
}

impl Reads {
    /// One page of a list. `under_way`: the order numbers of everything that is not terminal, and of whatever else.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn list(&self, filter: Filter, under_way: &[u64]) -> Result<ListPage, Error> {
        let client = self.pool.get().await?;
        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let before = filter.before.map_or(i64::MAX, number);
        let user = filter.user.map(|user| user.bigint());
        let state = filter.state.map(State::number);
        let older_ms = filter.older_ms.map(number);
        let limit = i64::from(filter.limit);
        let under_way: Vec<i64> = under_way.iter().map(|n| number(*n)).collect();
        let terminal = filter.state.is_some_and(State::is_terminal);
        let mut bounds: Vec<&(dyn ToSql + Sync)> = vec![&before];
        let of_user = match &user {
            Some(user) => {
                bounds.push(user);
                "AND user_id = $2"
            }
            None => "",
        };
        let rows = format!(
            "SELECT order_number FROM transfers_tb WHERE order_number < $1 {of_user} \
             ORDER BY order_number DESC LIMIT {ROWS_PER_PAGE}"
        );
        let (count, first) = match terminal {
            true => {
                let ends = format!("SELECT count(*), min(order_number) FROM ({rows}) AS page");
                let row = client.query_one(&ends, &bounds).await?;
                (row.try_get(0)?, row.try_get::<_, Option<i64>>(1)?.unwrap_or(0))
            }
            false => (0, 0),
        };
        let (among, numbers) = match terminal {
            true => ("order_number >= $6", &first as &(dyn ToSql + Sync)),
            false => ("order_number = ANY($6)", &under_way as &(dyn ToSql + Sync)),
        };
        let states = match filter.state {
            Some(_) => "state = $2",
            None => "$2::smallint IS NULL AND state NOT IN (40, -10, -30)",
        };
        let select = format!(
            "SELECT {TRANSFER_COLUMNS}, {LISTED_COLUMNS} FROM transfers_tb \
             WHERE order_number < $1 AND {among} AND {states} \
               AND ($3::bigint IS NULL OR user_id = $3) \
               AND ($4::bigint IS NULL \
                    OR created_at <= clock_timestamp() - $4 * interval '1 millisecond') \
             ORDER BY order_number DESC LIMIT $5"
        );
        let values = [&before as &(dyn ToSql + Sync), &state, &user, &older_ms, &limit, numbers];
        let found = client.query(&select, &values).await?;
        let full = i64::try_from(found.len()).is_ok_and(|found| found == limit);
        let next = match found.last() {
            Some(last) if full => Some(last.try_get::<_, i64>(1)?),
            _ if count == ROWS_PER_PAGE => Some(first),
            _ => None,
        };
        let next = next.and_then(|next| u64::try_from(next).ok());
        let mut transfers = Vec::with_capacity(found.len());
        for row in &found {
            match self.listed(row) {
                Ok(listed) => transfers.push(listed),
                // One bad row must not hide the others.
                Err(error) => error!(%error, "a transfer cannot be read and is left out"),
            }
        }
        Ok(ListPage { transfers, next })
    }

    /// Everything that PostgreSQL has of one transfer, at one moment.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or a row cannot be read.
    pub async fn dossier(&self, req_id: ReqId) -> Result<Option<Dossier>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let transfer = format!(
            "SELECT {TRANSFER_COLUMNS}, {LISTED_COLUMNS} FROM transfers_tb WHERE req_id = $1"
        );
        let name = req_id.to_string();
        let Some(row) = transaction.query_opt(&transfer, &[&name]).await? else {
            return Ok(None);
        };
        let listed = self.listed(&row)?;
        let history = history(&transaction, req_id).await?;
        let operations = "SELECT op, code, amount::text, balance_after::text, at \
                          FROM transfer_operations WHERE req_id = $1 ORDER BY at, op";
        let mut posted = Vec::new();
        for row in transaction.query(operations, &[&name]).await? {
            let op = u8::try_from(row.try_get::<_, i16>(0)?).ok().and_then(Op::from_number);
            let bad = || Error::Row { table: "transfer_operations", what: format!("{name}: op") };
            posted.push(Posted {
                op: op.ok_or_else(bad)?,
                decision: decision(&row, 1)?,
                amount: row.try_get(2)?,
                balance_after: row.try_get(3)?,
                at: row.try_get(4)?,
            });
        }
        transaction.commit().await?;
        Ok(Some(Dossier { listed, history, operations: posted }))
    }

    fn listed(&self, row: &Row) -> Result<Listed, Error> {
        Ok(Listed {
            transfer: transfer_from_row(row, &self.catalog.load())?,
            next_retry_at: row.try_get(LISTED_FROM)?,
            // A clock that went back makes nobody older.
            age_ms: u64::try_from(row.try_get::<_, i64>(LISTED_FROM + 1)?).unwrap_or(0),
        })
    }
}
