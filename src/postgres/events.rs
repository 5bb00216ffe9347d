//! Events as PostgreSQL keeps them: copied from the history behind its commits, and read by those who follow their transfers.
//!
//! `src/postgres/sql/events.sql` says how ids come to follow what is visible.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::database::{TRANSFER_COLUMNS, TRANSFER_COLUMNS_COUNT, transfer_from_row};
use super::reads::Reads;
use super::store::Transfer;
use super::watermark::milliseconds;
use super::{Address, Error, Limits, Verdict, connect_by_keys, verdict};
use domain::account::UserId;
use domain::asset::Catalog;
use domain::transfer::State;

/// Where what follows [`TRANSFER_COLUMNS`] begins.
const EVENT_FROM: usize = TRANSFER_COLUMNS_COUNT;

/// What one commit did to a transfer.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its place among all events; no event becomes visible behind one with a larger id.
    pub id: i64,
    /// When, by PostgreSQL's clock.
    pub at: Timestamp,
    /// The states passed, in order; the last one is where it stood then.
    pub states: Vec<State>,
    /// The transfer as it stood then, but for its times and its tries.
    pub transfer: Transfer,
}

/// The rows of a query for `event_id`, `of_req_id`, `passed` and `event_at`, each with its transfer.
pub(super) fn with_transfers(events: &str, more: &str) -> String {
    // The transfer by its key, row after row: no plan reads all transfers for a few events.
    format!(
        "SELECT {TRANSFER_COLUMNS}, event_id, passed, event_at{more} FROM ({events}) AS e \
         CROSS JOIN LATERAL (SELECT * FROM transfers_tb WHERE req_id = e.of_req_id OFFSET 0) AS t"
    )
}

/// The event in a row of [`with_transfers`].
pub(super) fn event_from_row(row: &Row, catalog: &Catalog) -> Result<Event, Error> {
    let mut transfer = transfer_from_row(row, catalog)?;
    let id: i64 = row.try_get(EVENT_FROM)?;
    let bad = |what: String| Error::Row { table: "events_tb", what: format!("event {id}: {what}") };
    let known = |number| State::from_number(number).ok_or_else(|| bad(format!("state {number}")));
    let states = row.try_get::<_, Vec<i16>>(EVENT_FROM + 1)?.into_iter().map(known);
    let states = states.collect::<Result<Vec<State>, Error>>()?;
    transfer.state = *states.last().ok_or_else(|| bad("no state".to_owned()))?;
    // Why it was refused stands in its row from the refusal on, and was not there before.
    transfer.code = transfer.code.filter(|_| transfer.state.has_refusal());
    Ok(Event { id, at: row.try_get(EVENT_FROM + 2)?, states, transfer })
}

/// Which transactions may still bring history that nobody has seen.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The last number that anybody has been given.
    pub last: i64,
    /// Every transaction with a smaller number is over.
    pub over_below: i64,
    /// Whoever had been given a number before this look has a smaller one: history is never a transaction's first action.
    pub begun_below: i64,
}

/// What one call of the relay has done.
#[derive(Clone, Debug)]
pub struct Copied {
    /// It has begun behind this number.
    pub after: i64,
    /// The numbers of the rows that it has looked at.
    pub seen: Vec<i64>,
    /// Events made.
    pub made: u64,
    /// Every row up to this number is copied, or will never be.
    pub low_water: i64,
    /// The last event there is.
    pub last_event_id: i64,
}

/// A connection of its own for the relay. It ends with the first error: what was in its hands may have been carried out.
pub struct Events {
    client: Client,
    incarnation: i64,
    endpoints: Vec<String>,
    catalog: Arc<ArcSwap<Catalog>>,
    last_number: Statement,
    numbers: Statement,
    relay: Statement,
    of_users: Statement,
    purge: Statement,
}

impl Events {
    /// Connects. `endpoints`: to whom every new event is to be delivered.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(
        config: &Address,
        limits: &Limits,
        incarnation: u64,
        endpoints: Vec<String>,
        catalog: Arc<ArcSwap<Catalog>>,
    ) -> Result<Events, Error> {
        let client = connect_by_keys(config, limits).await?;
        let last_number = "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END \
                           FROM transfer_history_history_id_seq";
        let last_number = client.prepare(last_number).await?;
        let numbers = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, \
                              pg_current_xact_id()::text::bigint";
        let numbers = client.prepare(numbers).await?;
        let relay = "SELECT o_after, o_seen, o_made, o_low_water, o_last_event_id \
                     FROM events_relay($1, $2, $3, $4, $5, $6, $7)";
        let relay = client.prepare(relay).await?;
        let of_users = with_transfers(
            "SELECT event_id, req_id AS of_req_id, states AS passed, at AS event_at FROM \
             (SELECT * FROM events_tb WHERE event_id > $1 ORDER BY event_id OFFSET 0) AS new \
             WHERE user_id = ANY ($2) ORDER BY event_id LIMIT $3",
            "",
        );
        let of_users = client.prepare(&format!("{of_users} ORDER BY event_id")).await?;
        let purge = client.prepare("SELECT events_purge($1, $2, $3, $4, $5)").await?;
        let incarnation = i64::try_from(incarnation).expect("below INCARNATION_MAX");
        Ok(Events {
            client,
            incarnation,
            endpoints,
            catalog,
            last_number,
            numbers,
            relay,
            of_users,
            purge,
        })
    }

    /// Looks which transactions are under way. `over`: the last number of which that is known.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn look(&self, over: i64) -> Result<Look, Error> {
        // In this order, in two statements: whoever takes a number after the first is no concern of this look, and whoever
        // took one before it has its own transaction's number by now, which is smaller than the one that the second
        // statement is given behind its snapshot. A snapshot's own end would not do: it knows of those that are over only.
        let last = self.client.query_one(&self.last_number, &[]).await?.try_get(0)?;
        if last <= over {
            // An idle service uses up no transaction's number.
            return Ok(Look { last, over_below: i64::MIN, begun_below: i64::MAX });
        }
        let row = self.client.query_one(&self.numbers, &[]).await?;
        Ok(Look { last, over_below: row.try_get(0)?, begun_below: row.try_get(1)? })
    }

    /// The last event there is, 0 before the first.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn last(&self) -> Result<i64, Error> {
        let last = "SELECT last_event_id FROM events_cursor";
        Ok(self.client.query_one(last, &[]).await?.try_get(0)?)
    }

    /// Makes events of history, see `events_relay`. `rows`: of those behind `after`, at most.
    ///
    /// # Errors
    /// [`Error::Superseded`]: nothing was done. Otherwise PostgreSQL is away, and it may have been done.
    pub async fn relay(
        &self,
        low_water: i64,
        after: Option<i64>,
        holes: &[i64],
        rows: u32,
        floor: i64,
    ) -> Result<Copied, Error> {
        assert!(rows > 0, "a call that looks at no row makes no progress");
        debug_assert!(holes.iter().all(|hole| *hole > low_water), "a hole is not copied yet");
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let values: [&(dyn ToSql + Sync); 7] =
            [&self.incarnation, &low_water, &after, &holes, &rows, &floor, &self.endpoints];
        let row = self.client.query_one(&self.relay, &values).await.map_err(fenced)?;
        Ok(Copied {
            after: row.try_get(0)?,
            seen: row.try_get(1)?,
            made: u64::try_from(row.try_get::<_, i64>(2)?).unwrap_or(0),
            low_water: row.try_get(3)?,
            last_event_id: row.try_get(4)?,
        })
    }

    /// The first events behind `after` of any of these users, each by its id, unless its row cannot be read.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn of_users(
        &self,
        after: i64,
        users: &[i64],
        rows: u32,
    ) -> Result<Vec<(i64, Result<Event, Error>)>, Error> {
        let values: [&(dyn ToSql + Sync); 3] = [&after, &users, &i64::from(rows)];
        let limit = rows as usize;
        let rows = self.client.query(&self.of_users, &values).await?;
        debug_assert!(rows.len() <= limit, "the statement has a LIMIT");
        let catalog = self.catalog.load();
        let event = |row: &Row| Ok((row.try_get(EVENT_FROM)?, event_from_row(row, &catalog)));
        rows.iter().map(event).collect()
    }

    /// Deletes events older than `keep`, and dead letters older than `dead_keep`; returns whether there may be more. Their
    /// age is time that processes have lived; `lived`: this process so far.
    ///
    /// # Errors
    /// As [`Events::relay`].
    pub async fn purge(
        &self,
        lived: Duration,
        keep: Duration,
        dead_keep: Duration,
        rows: u32,
    ) -> Result<bool, Error> {
        assert!(rows > 0, "a call that deletes no row would report more for ever");
        let [lived, keep, dead_keep] = [lived, keep, dead_keep].map(milliseconds);
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let values: [&(dyn ToSql + Sync); 5] =
            [&self.incarnation, &lived, &keep, &dead_keep, &rows];
        let row = self.client.query_one(&self.purge, &values).await.map_err(fenced)?;
        Ok(row.try_get::<_, i64>(0)? >= i64::from(rows))
    }
}

/// A superseded process must be told so.
pub(super) fn fenced(error: tokio_postgres::Error) -> Error {
    match verdict(&error) {
        Verdict::Fenced => Error::Superseded,
        Verdict::Retry | Verdict::Violation | Verdict::Unavailable | Verdict::Unknown => {
            Error::Query(error)
        }
    }
}

/// Where a reader of events stands.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The last event there is, of whomever.
    pub last: i64,
    /// Whether the id that was asked for is one behind which every event is still here.
    pub known: bool,
}

impl Reads {
    /// Where the events end, and whether they can be gone on with behind `after`.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn position(&self, after: Option<i64>) -> Result<Position, Error> {
        let client = self.pool.get().await?;
        // Whoever was told an id was told it of an event, and events go in their order.
        let position = "SELECT last_event_id, COALESCE(kept_after = $1 \
                            OR EXISTS (SELECT FROM events_tb WHERE event_id = $1), FALSE) \
                        FROM events_cursor";
        let statement = client.prepare_cached(position).await?;
        let row = client.query_one(&statement, &[&after]).await?;
        Ok(Position { last: row.try_get(0)?, known: row.try_get(1)? })
    }

    /// The first events of a user behind `after`.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or holds what this version cannot read.
    pub async fn events(&self, user: UserId, after: i64, rows: u32) -> Result<Vec<Event>, Error> {
        let client = self.pool.get().await?;
        let events = with_transfers(
            "SELECT event_id, req_id AS of_req_id, states AS passed, at AS event_at FROM events_tb \
             WHERE user_id = $1 AND event_id > $2 ORDER BY event_id LIMIT $3",
            "",
        );
        let statement = client.prepare_cached(&format!("{events} ORDER BY event_id")).await?;
        let rows = client.query(&statement, &[&user.bigint(), &after, &i64::from(rows)]).await?;
        let catalog = self.catalog();
        rows.iter().map(|row| event_from_row(row, &catalog)).collect()
    }
}
