//! One statement over the pool, and the meaning of its failure.

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use txm::store::StoreError;

use super::rows::RowError;
use crate::postgres::connection::within;
use crate::postgres::{Connections, Verdict, verdict};

/// The parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The meaning of an error for a statement that is a transaction of its own.
fn failure(error: &tokio_postgres::Error) -> StoreError {
    let words = match error.as_db_error() {
        Some(error) => format!("{}: {}", error.code().code(), error.message()),
        None => error.to_string(),
    };
    match verdict(error) {
        Verdict::Fenced => {
            let detail = error.as_db_error().and_then(|error| error.detail());
            StoreError::Fenced { found: detail.and_then(|detail| detail.parse().ok()) }
        }
        Verdict::Retry | Verdict::Violation | Verdict::Unavailable => StoreError::Away(words),
        // A broken constraint or a wrong value always ends its transaction.
        Verdict::Unknown if is_of_class(error, &["22", "23"]) => StoreError::Away(words),
        Verdict::Unknown => StoreError::Unknown(words),
    }
}

fn is_of_class(error: &tokio_postgres::Error, classes: &[&str]) -> bool {
    let code = error.code().map_or("", |code| code.code());
    classes.iter().any(|class| code.starts_with(class))
}

/// The error of a row that cannot be read: the statement may have written.
pub(super) fn unread(error: RowError) -> StoreError {
    StoreError::Unknown(error.to_string())
}

/// A column of a row.
pub(super) fn column<'a, T>(row: &'a Row, place: usize) -> Result<T, StoreError>
where
    T: tokio_postgres::types::FromSql<'a>,
{
    row.try_get(place).map_err(|error| StoreError::Unknown(error.to_string()))
}

/// A number of the process for PostgreSQL. None of ours is beyond its range, but a caller's may be.
pub(super) fn bigint(number: u64) -> Result<i64, StoreError> {
    i64::try_from(number).map_err(|_beyond| StoreError::Away(format!("{number} is beyond BIGINT")))
}

/// A number of PostgreSQL for the process.
pub(super) fn unsigned(number: i64) -> Result<u64, StoreError> {
    u64::try_from(number).map_err(|_below| StoreError::Unknown(format!("{number} is below 0")))
}

/// A connection of the pool that goes back only behind the end of its statement. A caller that is
/// dropped amid one closes the connection: the next one would wait for that statement.
struct Lent(Option<Object>);

impl Lent {
    fn client(&self) -> &Object {
        self.0.as_ref().expect("it is given back by value")
    }

    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

/// Runs one statement, and returns its rows.
///
/// # Errors
/// [`StoreError::Away`]: no connection, or refused. [`StoreError::Unknown`]: its answer is lost;
/// the connection is closed, because its statement may still run.
pub(super) async fn rows(
    pool: &Connections,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<Row>, StoreError> {
    let client = pool.get().await.map_err(|error| StoreError::Away(error.to_string()))?;
    let lent = Lent(Some(client));
    let call = async {
        let client = lent.client();
        // Plans grow with the tables: one for a small table may look a row up among all rows of its
        // signer.
        if Object::metrics(client).recycle_count.is_power_of_two() {
            let discarded = client.batch_execute("DISCARD PLANS").await;
            discarded.map_err(|error| StoreError::Away(error.to_string()))?;
        }
        let statement = client.prepare_cached(sql).await;
        // A statement that is not prepared was not run.
        let statement = statement.map_err(|error| StoreError::Away(error.to_string()))?;
        client.query(&statement, params).await.map_err(|error| failure(&error))
    };
    let answer = within(pool.limit(), call).await;
    let answer = answer.unwrap_or_else(|late| Err(StoreError::Unknown(late.to_string())));
    if !matches!(answer, Err(StoreError::Unknown(_))) {
        lent.give_back();
    }
    answer
}

/// Runs one statement that returns one row.
///
/// # Errors
/// As [`rows`].
pub(super) async fn row(
    pool: &Connections,
    sql: &str,
    params: Params<'_>,
) -> Result<Row, StoreError> {
    let row = rows(pool, sql, params).await?.into_iter().next();
    row.ok_or_else(|| StoreError::Unknown(format!("no row: {sql}")))
}
