//! Events on their way to endpoints: which are due, what became of each try, and the dead letters.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::events::{Event, event_from_row, fenced, with_transfers};
use super::reads::Reads;
use super::watermark::milliseconds;
use super::{Address, Error, Limits, connect_by_keys};
use domain::asset::Catalog;
use domain::transfer::State;

/// Where what follows the event begins.
const MORE_FROM: usize = 18;
/// Dead letters that are counted; with more, there are at least so many.
const DEAD_COUNTED_MAX: i64 = 10_000;

/// One event that is due at an endpoint.
#[derive(Debug)]
pub struct Due {
    /// Its id.
    pub event_id: i64,
    /// The event, unless its row cannot be read.
    pub event: Result<Event, Error>,
    /// Tries before this one.
    pub attempts: u32,
}

/// What one try came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Which event.
    pub event_id: i64,
    /// Why it was not taken, `None` where it was.
    pub error: Option<String>,
    /// Until the next try, milliseconds.
    pub delay_ms: u64,
}

/// How far deliveries are behind.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    /// Until the next one is due; `None` where there is none to wait for.
    pub next_due: Option<Duration>,
    /// Age of the oldest event that is still to be delivered.
    pub oldest: Duration,
    /// Dead letters.
    pub dead: u64,
}

/// A connection of its own for deliveries to one endpoint. It ends with the first error.
pub struct Deliveries {
    client: Client,
    incarnation: i64,
    endpoint: String,
    catalog: Arc<ArcSwap<Catalog>>,
    due: Statement,
    note: Statement,
    backlog: Statement,
}

impl Deliveries {
    /// Connects.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(
        config: &Address,
        limits: &Limits,
        incarnation: u64,
        endpoint: String,
        catalog: Arc<ArcSwap<Catalog>>,
    ) -> Result<Deliveries, Error> {
        let client = connect_by_keys(config, limits).await?;
        let due = with_transfers(
            "SELECT event_id, req_id AS of_req_id, states AS passed, at AS event_at, attempts FROM \
              ((SELECT * FROM webhook_deliveries \
                WHERE endpoint = $1 AND next_at <= statement_timestamp() AND event_id <> ALL ($2) \
                ORDER BY next_at, event_id LIMIT $3) \
               UNION ALL \
               (SELECT * FROM webhook_deliveries \
                WHERE endpoint = $1 AND event_id <> ALL ($2) \
                  AND next_at > statement_timestamp() + $4::bigint * interval '1 millisecond' \
                ORDER BY next_at, event_id LIMIT $3)) AS due \
             ORDER BY next_at, event_id LIMIT $3",
            ", attempts",
        );
        let due = client.prepare(&due).await?;
        let note = client.prepare("SELECT webhook_note($1, $2, $3, $4, $5, $6)").await?;
        let backlog = format!(
            "SELECT (SELECT extract(epoch FROM min(next_at) - clock_timestamp())::float8 \
                       FROM webhook_deliveries \
                      WHERE endpoint = $1 AND next_at IS NOT NULL AND event_id <> ALL ($2)), \
                    (SELECT extract(epoch FROM clock_timestamp() - at)::float8 \
                       FROM (SELECT at FROM webhook_deliveries WHERE ended_at IS NULL \
                              ORDER BY event_id LIMIT 1) AS oldest), \
                    (SELECT count(*) FROM (SELECT FROM webhook_deliveries WHERE status = 3 \
                                            LIMIT {DEAD_COUNTED_MAX}) AS dead)"
        );
        let backlog = client.prepare(&backlog).await?;
        let incarnation = i64::try_from(incarnation).expect("below INCARNATION_MAX");
        Ok(Deliveries { client, incarnation, endpoint, catalog, due, note, backlog })
    }

    /// What is due and not in hand: of each transfer the first event that has not been delivered or given up. A delivery
    /// whose turn is further ahead than `wait_max` is due too: PostgreSQL's clock has gone back.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn due(
        &self,
        in_hand: &[i64],
        limit: usize,
        wait_max: Duration,
    ) -> Result<Vec<Due>, Error> {
        assert!(limit > 0, "a free thread asks");
        let limit = i64::try_from(limit).expect("at most 64");
        let wait_max = milliseconds(wait_max);
        let values: [&(dyn ToSql + Sync); 4] = [&self.endpoint, &in_hand, &limit, &wait_max];
        let rows = self.client.query(&self.due, &values).await?;
        debug_assert!(
            rows.iter().all(|row| !in_hand.contains(&row.get(MORE_FROM - 3))),
            "an event is in one hand at a time"
        );
        let catalog = self.catalog.load();
        let due = rows.iter().map(|row| {
            let attempts = u32::try_from(row.try_get::<_, i32>(MORE_FROM)?).unwrap_or(0);
            let (event_id, event) = (row.try_get(MORE_FROM - 3)?, event_from_row(row, &catalog));
            Ok(Due { event_id, event, attempts })
        });
        due.collect()
    }

    /// Writes down what was tried; returns which are dead letters from now on.
    ///
    /// # Errors
    /// [`Error::Superseded`]: nothing was written. Otherwise PostgreSQL is away, and it may have been.
    pub async fn note(&self, tried: &[Tried], attempts_max: u32) -> Result<Vec<i64>, Error> {
        let event_ids: Vec<i64> = tried.iter().map(|tried| tried.event_id).collect();
        let errors: Vec<Option<&str>> = tried.iter().map(|tried| tried.error.as_deref()).collect();
        let delay = |tried: &Tried| i64::try_from(tried.delay_ms).unwrap_or(i64::MAX);
        let delays_ms: Vec<i64> = tried.iter().map(delay).collect();
        let attempts_max = i32::try_from(attempts_max).unwrap_or(i32::MAX);
        let values: [&(dyn ToSql + Sync); 6] =
            [&self.incarnation, &self.endpoint, &event_ids, &errors, &delays_ms, &attempts_max];
        let row = self.client.query_one(&self.note, &values).await.map_err(fenced)?;
        let dead: Vec<i64> = row.try_get(0)?;
        debug_assert!(dead.iter().all(|id| event_ids.contains(id)), "only what was tried is dead");
        Ok(dead)
    }

    /// How far deliveries are behind, and when one that is not in hand is due.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn backlog(&self, in_hand: &[i64]) -> Result<Backlog, Error> {
        let row = self.client.query_one(&self.backlog, &[&self.endpoint, &in_hand]).await?;
        // A time that has passed is less than nothing.
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        Ok(Backlog {
            next_due: row.try_get::<_, Option<f64>>(0)?.map(time),
            oldest: row.try_get::<_, Option<f64>>(1)?.map_or(Duration::ZERO, time),
            dead: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
        })
    }
}

/// An event that was given up.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Which event.
    pub event_id: i64,
    /// To whom.
    pub endpoint: String,
    /// Of which transfer.
    pub req_id: String,
    /// Where it stood.
    pub state: State,
    /// When that was.
    pub at: Timestamp,
    /// Tries.
    pub attempts: u32,
    /// Why the last one failed.
    pub last_error: Option<String>,
    /// When it was given up.
    pub died_at: Timestamp,
}

impl Reads {
    /// Dead letters, oldest first, behind an event and its endpoint.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or holds what this version cannot read.
    pub async fn dead_letters(
        &self,
        after: (i64, &str),
        limit: u32,
    ) -> Result<Vec<DeadLetter>, Error> {
        let client = self.pool.get().await?;
        let dead = "SELECT event_id, endpoint, req_id, states[cardinality(states)], at, attempts, \
                       last_error, ended_at FROM webhook_deliveries \
                     WHERE status = 3 AND (event_id, endpoint) > ($1, $2) \
                     ORDER BY event_id, endpoint LIMIT $3";
        let (event_id, endpoint) = after;
        let rows = client.query(dead, &[&event_id, &endpoint, &i64::from(limit)]).await?;
        let letter = |row: &tokio_postgres::Row| {
            let event_id: i64 = row.try_get(0)?;
            let number: i16 = row.try_get(3)?;
            let state = State::from_number(number).ok_or_else(|| Error::Row {
                table: "webhook_deliveries",
                what: format!("event {event_id}: state {number}"),
            })?;
            Ok(DeadLetter {
                event_id,
                endpoint: row.try_get(1)?,
                req_id: row.try_get(2)?,
                state,
                at: row.try_get(4)?,
                attempts: u32::try_from(row.try_get::<_, i32>(5)?).unwrap_or(0),
                last_error: row.try_get(6)?,
                died_at: row.try_get(7)?,
            })
        };
        rows.iter().map(letter).collect()
    }
}
