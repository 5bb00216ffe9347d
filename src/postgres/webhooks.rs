//! Events on their way to endpoints: read from the journal, with the tries of each, and the dead letters.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::error;

use super::columns::{self, Id, bigint};
use super::database::{TRANSFER_COLUMNS, TRANSFER_COLUMNS_COUNT};
use super::events::{UserEvent, event_from_row, fenced};
use super::flight::entries::Entry;
use super::flight::recharged::RechargeChange;
use super::flights::FlightRow;
use super::journal::{self, DamagedRow};
use super::pin::Pin;
use super::reads::Reads;
use super::reads::transactions::{TRANSACTIONS_OF_EVENTS, events_of};
use super::recharge_events;
use super::transactions::rows::{transactions_from_rows, with_branches};
use super::watermark::milliseconds;
use super::{Address, Error, Limits, connect, connect_by_keys};
use crate::recharge::{PaymentId, RechargeId};
use crate::transaction::TransactionState;
use domain::asset::Catalog;
use domain::transfer::State;

/// Where what follows the event begins.
const MORE_FROM: usize = TRANSFER_COLUMNS_COUNT + 3;
/// The `kind` of a delivery.
const OF_TRANSFER: i16 = 1;
/// The same of a transaction.
const OF_TRANSACTION: i16 = 2;
/// The same of a recharge.
const OF_RECHARGE: i16 = 3;
/// Rows of the journal that are read at once, of each shard. A row has up to a few hundred events.
const ROWS_MAX: usize = 64;
/// Dead letters that are counted; with more, there are at least so many.
const DEAD_COUNTED_MAX: i64 = 10_000;

/// One event that is due at an endpoint.
#[derive(Debug)]
pub struct Due {
    /// Its id.
    pub event_id: i64,
    /// The event, unless its row cannot be read.
    pub event: Result<UserEvent, Error>,
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

/// Puts the cursor of the deliveries where an incarnation begins, before its first flight. `endpoint`:
/// the one that is configured. Without one, the events until one is configured are not delivered.
///
/// # Errors
/// [`Error::Superseded`], or PostgreSQL is away.
pub async fn begin(
    config: &Address,
    limits: &Limits,
    incarnation: u64,
    endpoint: Option<&str>,
) -> Result<(), Error> {
    let (incarnation, endpoints) = (bigint(incarnation), Vec::from_iter(endpoint));
    let client = connect(config, limits).await?;
    let begin = "SELECT webhook_begin($1, $2)";
    client.execute(begin, &[&incarnation, &endpoints]).await.map_err(fenced)?;
    Ok(())
}

/// Events that were read from the journal.
#[derive(Clone, Debug)]
pub struct Collected {
    /// Events.
    pub events: usize,
    /// Those of them that are delivered: their transfers exist.
    pub found: u64,
    /// There may be more rows.
    pub more: bool,
    /// A row that cannot be read, with events that were sought among the transfers.
    pub damaged: Option<DamagedRow>,
}

/// The events of a row with damaged entries. They are sought among the first 100,000 transfers from
/// its `open_from` on, so that one that has been open for long does not make it a search without
/// end. At most one such row is worked on at a time.
const DAMAGED: &str = "SELECT e.event_id, e.order_number, e.states, e.at \
       FROM (SELECT order_number FROM transfers_tb WHERE order_number >= $1 \
              ORDER BY order_number LIMIT 100000) AS near \
      CROSS JOIN LATERAL (SELECT * FROM transfer_events e \
                           WHERE e.order_number = near.order_number \
                             AND e.event_id >= $2 AND e.event_id < $3 OFFSET 0) AS e \
      ORDER BY e.event_id";

/// The events of recharges in a row with damaged entries.
const DAMAGED_RECHARGES: &str = "SELECT event_id, COALESCE(recharge_id, payment_id), ARRAY[change], at FROM recharge_events \
      WHERE event_id >= $1 AND event_id < $2 ORDER BY event_id";

/// A row of the journal after the cursor.
struct Uncollected {
    shard: i32,
    flight: i64,
    /// The shard's cursor.
    from: i64,
    incarnation: i64,
    attempt: i64,
    events: Vec<Passed>,
}

/// An event on its way into a delivery.
struct Passed {
    id: i64,
    /// Of the transfer.
    order_number: i64,
    /// The recharge, or its payment if there is no order; `None`: the event is of a transfer.
    recharge: Option<Id>,
    /// An array as text: states, or the change of a recharge.
    states: String,
    at: Timestamp,
}

/// The rows that may be delivered now, of rows in the order of their shards and flights, and whether
/// there may be more. A user can have another shard in the next incarnation: while a shard may have
/// further rows of an incarnation, no row of a later one is taken. `left`: the lowest incarnation of
/// the rows that were read and wait for the next time.
fn in_turn(mut rows: Vec<Uncollected>, left: Option<i64>) -> (Vec<Uncollected>, bool) {
    let full = rows.chunk_by(|one, next| one.shard == next.shard).filter(|of| of.len() == ROWS_MAX);
    let full = full.filter_map(|of| of.last()).map(|last| last.incarnation);
    let bound = full.chain(left).min();
    if let Some(bound) = bound {
        rows.retain(|row| row.incarnation <= bound);
    }
    (rows, bound.is_some())
}

/// An array of states as text.
fn text(states: &[i16]) -> String {
    let states: Vec<String> = states.iter().map(i16::to_string).collect();
    format!("{{{}}}", states.join(","))
}

/// A connection of its own for deliveries to one endpoint. It ends with the first error.
pub struct Deliveries {
    client: Client,
    pin: Option<Arc<Pin>>,
    incarnation: i64,
    endpoint: String,
    catalog: Arc<ArcSwap<Catalog>>,
    journal: Statement,
    collect: Statement,
    due: Statement,
    transactions: Statement,
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
        let journal = format!(
            "SELECT j.shard, j.flight, j.entries, c.flight, j.incarnation, j.event_first, j.at, \
                    j.attempt, j.event_count, j.open_from FROM webhook_cursor c CROSS JOIN LATERAL \
                    (SELECT shard, flight, incarnation, attempt, event_first, event_count, at, \
                            open_from, CASE WHEN event_count > 0 THEN entries ELSE '' END AS entries \
                       FROM journal_tb WHERE shard = c.shard AND flight > c.flight \
                      ORDER BY flight LIMIT {ROWS_MAX}) AS j \
              ORDER BY j.incarnation, j.shard, j.flight"
        );
        let journal = client.prepare(&journal).await?;
        let collect = "SELECT webhook_collect($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let collect = client.prepare(collect).await?;
        // The transfer by its key, row after row, as for streams; NULL for any other event.
        let due = format!(
            "SELECT {TRANSFER_COLUMNS}, event_id, passed, event_at, tries, of_kind, of_req_id FROM \
             (SELECT event_id, req_id AS of_req_id, states AS passed, at AS event_at, \
                     attempts AS tries, kind AS of_kind, next_at AS due_at FROM \
              ((SELECT * FROM webhook_deliveries \
                WHERE endpoint = $1 AND next_at <= statement_timestamp() AND event_id <> ALL ($2) \
                ORDER BY next_at, event_id LIMIT $3) \
               UNION ALL \
               (SELECT * FROM webhook_deliveries \
                WHERE endpoint = $1 AND event_id <> ALL ($2) \
                  AND next_at > statement_timestamp() + $4::bigint * interval '1 millisecond' \
                ORDER BY next_at, event_id LIMIT $3)) AS due \
              ORDER BY next_at, event_id LIMIT $3) AS e \
             LEFT JOIN LATERAL (SELECT * FROM transfers_tb \
                                 WHERE req_id = e.of_req_id AND e.of_kind = {OF_TRANSFER} OFFSET 0) \
               AS t ON TRUE \
             ORDER BY due_at, event_id"
        );
        let due = client.prepare(&due).await?;
        let transactions = with_branches(TRANSACTIONS_OF_EVENTS, "ASC");
        let transactions = client.prepare(&transactions).await?;
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
        let incarnation = bigint(incarnation);
        Ok(Deliveries {
            client,
            pin: config.pin().cloned(),
            incarnation,
            endpoint,
            catalog,
            journal,
            collect,
            due,
            transactions,
            note,
            backlog,
        })
    }

    /// Keeps a flight that was read, before anything of it is sent.
    fn keep(&self, row: &Uncollected) -> Result<(), Error> {
        let Uncollected { shard, flight, incarnation, attempt, .. } = *row;
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        let [flight, incarnation, attempt] = [flight, incarnation, attempt].map(number);
        let shard = u32::try_from(shard).unwrap_or(u32::MAX);
        let row = FlightRow { shard, flight, incarnation, attempt };
        self.pin.as_ref().map_or(Ok(()), |pin| pin.answered(row)).map_err(Error::Unnoted)
    }

    /// The events of a row.
    fn events(row: &Row, entries: &[Entry]) -> Result<Vec<Passed>, Error> {
        let (first, at): (i64, Timestamp) = (row.try_get(5)?, row.try_get(6)?);
        let passed = entries.iter().filter_map(|entry| match entry {
            Entry::Passed { order_number, states, .. } => Some((*order_number, None, text(states))),
            Entry::Recharged { recharge: 0, payment, change, .. } => {
                Some((0, Some(Id(*payment)), text(&[i16::from(*change)])))
            }
            Entry::Recharged { recharge, change, .. } => {
                Some((0, Some(Id(*recharge)), text(&[i16::from(*change)])))
            }
            Entry::Posted { .. } | Entry::Held { .. } => None,
        });
        let event = |(id, (order_number, recharge, states))| Passed {
            id,
            order_number: bigint(order_number),
            recharge,
            states,
            at,
        };
        Ok((first..).zip(passed).map(event).collect())
    }

    /// The events of a row with damaged entries, from the transfers that were under way: nothing that
    /// a repair does brings entries back.
    async fn sought(&self, row: &Row) -> Result<Vec<Passed>, Error> {
        let (first, count): (i64, i32) = (row.try_get(5)?, row.try_get(8)?);
        let values: [&(dyn ToSql + Sync); 3] =
            [&row.try_get::<_, i64>(9)?, &first, &(first + i64::from(count))];
        let found = self.client.query(DAMAGED, &values).await?;
        let told = self.client.query(DAMAGED_RECHARGES, &values[1..]).await?;
        let both = found.len() + told.len();
        error!(events = count, found = both, "events are read from the transfers and recharges");
        let event = |row: &Row, order_number, recharge| {
            let states = text(row.try_get::<_, Vec<i16>>(2)?.as_slice());
            Ok(Passed { id: row.try_get(0)?, order_number, recharge, states, at: row.try_get(3)? })
        };
        let of_transfers = found.iter().map(|row| event(row, row.try_get(1)?, None));
        let of_recharges = told.iter().map(|row| event(row, 0, Some(row.try_get(1)?)));
        of_transfers.chain(of_recharges).collect()
    }

    /// Makes deliveries of the next rows of the journal.
    ///
    /// # Errors
    /// [`Error::Superseded`]: nothing was written. Otherwise PostgreSQL is away, and it may have been
    /// written.
    pub async fn collect(&self) -> Result<Collected, Error> {
        let (mut rows, mut left, mut damaged) = (Vec::new(), None::<i64>, None);
        for row in &self.client.query(&self.journal, &[]).await? {
            let incarnation = row.try_get(4)?;
            let entries = journal::entries(row)?;
            // At most one search in a call. The rows after it wait for the next call. The rows come by
            // incarnation, so that those before it can be taken.
            if left.is_some() || damaged.is_some() && entries.is_err() {
                left = left.into_iter().chain([incarnation]).min();
                continue;
            }
            let events = match entries {
                Ok(entries) => Self::events(row, &entries)?,
                Err(row_damaged) => {
                    damaged = Some(row_damaged);
                    self.sought(row).await?
                }
            };
            rows.push(Uncollected {
                shard: row.try_get(0)?,
                flight: row.try_get(1)?,
                from: row.try_get(3)?,
                incarnation,
                attempt: row.try_get(7)?,
                events,
            });
        }
        rows.sort_unstable_by_key(|row| (row.shard, row.flight));
        let (rows, more) = in_turn(rows, left);
        if rows.is_empty() {
            return Ok(Collected { events: 0, found: 0, more, damaged });
        }
        let (mut shards, mut from, mut until) = (Vec::new(), Vec::new(), Vec::new());
        for of_shard in rows.chunk_by(|one, next| one.shard == next.shard) {
            let (first, last) = (&of_shard[0], &of_shard[of_shard.len() - 1]);
            let mut before = first.from;
            for Uncollected { shard, flight, .. } in of_shard {
                if *flight > before + 1 {
                    error!(shard, before, flight, "no event of the missing flights is delivered");
                }
                before = *flight;
            }
            self.keep(last)?;
            shards.push(first.shard);
            from.push(first.from);
            until.push(last.flight);
        }
        let (mut ids, mut numbers) = (Vec::new(), Vec::new());
        let (mut states, mut times, mut recharges) = (Vec::new(), Vec::new(), Vec::new());
        for passed in rows.iter().flat_map(|row| &row.events) {
            ids.push(passed.id);
            numbers.push(passed.order_number);
            states.push(passed.states.as_str());
            times.push(passed.at);
            recharges.push(passed.recharge);
        }
        let endpoints = [self.endpoint.as_str()];
        let endpoints = endpoints.as_slice();
        let values: [&(dyn ToSql + Sync); 10] = [
            &self.incarnation,
            &endpoints,
            &shards,
            &from,
            &until,
            &ids,
            &numbers,
            &states,
            &times,
            &recharges,
        ];
        let row = self.client.query_one(&self.collect, &values).await.map_err(fenced)?;
        let found = columns::count(&row, 0, "webhook_deliveries")?;
        Ok(Collected { events: ids.len(), found, more, damaged })
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
        let catalog = self.catalog.load_full();
        let mut due = Vec::with_capacity(rows.len());
        for row in &rows {
            let attempts = u32::try_from(row.try_get::<_, i32>(MORE_FROM)?).unwrap_or(0);
            let event_id: i64 = row.try_get(MORE_FROM - 3)?;
            let event = match row.try_get(MORE_FROM + 1)? {
                OF_TRANSFER => event_from_row(row, &catalog).map(UserEvent::Transfer),
                OF_RECHARGE => self.recharge(event_id, &catalog).await?,
                _ => self.transaction(event_id, row.try_get(MORE_FROM + 2)?).await?,
            };
            due.push(Due { event_id, event, attempts });
        }
        Ok(due)
    }

    /// The event of a transaction. The outer error: PostgreSQL is away.
    async fn transaction(
        &self,
        event_id: i64,
        id: columns::Id,
    ) -> Result<Result<UserEvent, Error>, Error> {
        let rows = self.client.query(&self.transactions, &[&vec![id]]).await?;
        let read = || events_of(&[(event_id, id)], transactions_from_rows(&rows)?);
        Ok(read().map(|mut events| UserEvent::Transaction(events.remove(0))))
    }

    /// The event of a recharge. The outer error: PostgreSQL is away.
    async fn recharge(
        &self,
        event_id: i64,
        catalog: &Catalog,
    ) -> Result<Result<UserEvent, Error>, Error> {
        match recharge_events::events_by(&self.client, &[event_id], catalog).await {
            Ok(mut events) => Ok(match events.pop() {
                Some(event) => Ok(UserEvent::Recharge(Box::new(event))),
                None => {
                    let what = format!("event {event_id} is gone");
                    Err(Error::Row { table: "recharge_events", what })
                }
            }),
            Err(unreadable @ Error::Row { .. }) => Ok(Err(unreadable)),
            Err(away) => Err(away),
        }
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

/// The kind of the subject of a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterSubject {
    /// A transfer.
    Transfer,
    /// A transaction.
    Transaction,
    /// A recharge.
    Recharge,
}

/// An event that was given up.
#[derive(Clone, Debug)]
pub struct DeadLetter {
    /// Which event.
    pub event_id: i64,
    /// To whom.
    pub endpoint: String,
    /// Its subject, as text: a transfer's name, a transaction's, or that of a recharge or a payment
    /// with its prefix.
    pub req_id: String,
    /// The kind of its subject.
    pub about: LetterSubject,
    /// The name of the state in which it stood, or of the change of a recharge.
    pub state: &'static str,
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
                       last_error, ended_at, kind, \
                       EXISTS (SELECT FROM recharge_events e WHERE kind = 3 \
                                  AND e.event_id = webhook_deliveries.event_id \
                                  AND e.recharge_id IS NULL) \
                      FROM webhook_deliveries \
                     WHERE status = 3 AND (event_id, endpoint) > ($1, $2) \
                     ORDER BY event_id, endpoint LIMIT $3";
        let (event_id, endpoint) = after;
        let rows = client.query(dead, &[&event_id, &endpoint, &i64::from(limit)]).await?;
        let letter = |row: &tokio_postgres::Row| {
            let event_id: i64 = row.try_get(0)?;
            let number: i16 = row.try_get(3)?;
            let bad = |what: String| Error::Row {
                table: "webhook_deliveries",
                what: format!("event {event_id}: {what}"),
            };
            let (about, state) = match row.try_get(8)? {
                OF_TRANSACTION => {
                    let state = TransactionState::from_number(number);
                    (LetterSubject::Transaction, state.map(TransactionState::name))
                }
                OF_RECHARGE => {
                    let change = u8::try_from(number).ok().and_then(RechargeChange::name_of);
                    (LetterSubject::Recharge, change)
                }
                _ => (LetterSubject::Transfer, State::from_number(number).map(State::name)),
            };
            let state = state.ok_or_else(|| bad(format!("state {number}")))?;
            let req_id = columns::req_id(row, 2)?.ok_or_else(|| bad("req_id 0".to_owned()))?;
            let req_id = match about {
                LetterSubject::Recharge if row.try_get(9)? => {
                    format!("{}{req_id}", PaymentId::PREFIX)
                }
                LetterSubject::Recharge => format!("{}{req_id}", RechargeId::PREFIX),
                LetterSubject::Transfer | LetterSubject::Transaction => req_id.to_string(),
            };
            Ok(DeadLetter {
                event_id,
                endpoint: row.try_get(1)?,
                req_id,
                about,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: no event of a user is delivered before an earlier one of their former shard. Method:
    /// shard 1 has more rows than are read at once, and shard 0 is already in a later incarnation.
    #[test]
    fn rows_of_a_later_incarnation_wait_for_a_shard_with_more_rows() {
        let row = |shard, flight, incarnation| {
            let (from, attempt, events) = (0, 0, Vec::new());
            Uncollected { shard, flight, from, incarnation, attempt, events }
        };
        let rows = || vec![row(0, 1, 5), row(0, 2, 6)];
        let (taken, more) = in_turn(rows(), None);
        assert_eq!((taken.len(), more), (2, false));
        let long = (1..).take(ROWS_MAX).map(|flight| row(1, flight, 5));
        let (taken, more) = in_turn(rows().into_iter().chain(long).collect(), None);
        assert_eq!((taken.len(), more), (1 + ROWS_MAX, true), "all but the later one");
        let (taken, more) = in_turn(rows(), Some(5));
        assert_eq!((taken.len(), more), (1, true), "a row that was read waits");
    }
}
