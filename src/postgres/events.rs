//! Events in PostgreSQL: the ones that a stream has missed, and how long they are kept.
//!
//! `src/postgres/sql/events.sql` says where they stand, and which ids are known.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::columns::bigint;
use super::database::{TRANSFER_COLUMNS, TRANSFER_COLUMNS_COUNT, transfer_from_row};
use super::flight::TOOL_ATTEMPT;
use super::flight::entries::Entry;
use super::flight::tool::ENTRIES_PER_ROW;
use super::pin::Pin;
use super::reads::Reads;
use super::recharge_events::{self, RechargeEvent};
use super::store::Transfer;
use super::watermark::milliseconds;
use super::{Address, Error, Limits, Verdict, columns, connect_by_keys, journal, verdict};
use crate::transaction::TransactionRow;
use domain::account::UserId;
use domain::asset::Catalog;
use domain::transfer::State;

/// The column after [`TRANSFER_COLUMNS`].
const EVENT_FROM: usize = TRANSFER_COLUMNS_COUNT;
/// Ids that are read at once: 16 bytes each. The transfers of a user are searched once for so many.
const IDS_MAX: usize = 10_000;

/// In the place of an order number: the event is of a recharge.
const OF_RECHARGE: i64 = 0;

/// What one commit did to a transfer.
#[derive(Clone, Debug)]
pub struct Event {
    /// It rises with each event of a user.
    pub id: i64,
    /// The time of the commit, by the process's clock.
    pub at: Timestamp,
    /// The states passed, in order; the last one is where it stood then.
    pub states: Vec<State>,
    /// The transfer as it stood then, but for its times and its tries.
    pub transfer: Transfer,
}

impl Event {
    /// The event of a commit that took `transfer` through `states`. `transfer` may be from a later
    /// time.
    pub fn new(id: i64, at: Timestamp, states: Vec<State>, mut transfer: Transfer) -> Event {
        transfer.state = *states.last().expect("an event has a state");
        // The row has the code from the refusal on.
        transfer.code = transfer.code.filter(|_| transfer.state.has_refusal());
        Event { id, at, states, transfer }
    }
}

/// The end of a transaction: it is DONE or CANCELLED.
#[derive(Clone, Debug)]
pub struct TransactionEvent {
    /// From the same counter as [`Event::id`]. It rises with the commits of all transactions.
    pub id: i64,
    /// The time of the commit, by the process's clock.
    pub at: Timestamp,
    /// The transaction. It does not change any more.
    pub transaction: TransactionRow,
}

/// An event, as streams and endpoints get it.
#[derive(Clone, Debug)]
pub enum UserEvent {
    /// Of a transfer.
    Transfer(Event),
    /// Of a transaction.
    Transaction(TransactionEvent),
    /// Of a recharge.
    Recharge(Box<RechargeEvent>),
}

impl UserEvent {
    /// Its id.
    pub fn id(&self) -> i64 {
        match self {
            UserEvent::Transfer(event) => event.id,
            UserEvent::Transaction(event) => event.id,
            UserEvent::Recharge(event) => event.id,
        }
    }
}

/// How far a stream is. All events have ids of one counter. Those of transfers and of recharges
/// are of the same flights, in the order of their ids. Those of transactions have commits of their
/// own, so that neither number says how far the other kind is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCursor {
    /// The last event of a transfer or of a recharge, 0 before the first.
    pub transfer: i64,
    /// The last event of a transaction, 0 before the first.
    pub transaction: i64,
}

/// As streams write it: `transfer`, or `transfer.transaction`.
impl fmt::Display for EventCursor {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transaction {
            0 => write!(out, "{}", self.transfer),
            transaction => write!(out, "{}.{transaction}", self.transfer),
        }
    }
}

/// The rows of a query for `event_id`, `passed` and `event_at`, each with its transfer, which a
/// column of the query names by a `key`.
fn with_transfers(events: &str, key: &str) -> String {
    // The transfer by its key, row after row: no plan reads all transfers for a few events.
    format!(
        "SELECT {TRANSFER_COLUMNS}, event_id, passed, event_at FROM ({events}) AS e \
         CROSS JOIN LATERAL (SELECT * FROM transfers_tb WHERE {key} OFFSET 0) AS t"
    )
}

/// The event in a row with the columns of a transfer, and behind them its id, states and time.
pub(super) fn event_from_row(row: &Row, catalog: &Catalog) -> Result<Event, Error> {
    let transfer = transfer_from_row(row, catalog)?;
    let id: i64 = row.try_get(EVENT_FROM)?;
    let bad = |what: String| Error::Row { table: "an event", what: format!("{id}: {what}") };
    let known = |number| State::from_number(number).ok_or_else(|| bad(format!("state {number}")));
    let states = row.try_get::<_, Vec<i16>>(EVENT_FROM + 1)?.into_iter().map(known);
    let states = states.collect::<Result<Vec<State>, Error>>()?;
    match states.is_empty() {
        true => Err(bad("no state".to_owned())),
        false => Ok(Event::new(id, row.try_get(EVENT_FROM + 2)?, states, transfer)),
    }
}

/// The result of a deletion.
#[derive(Clone, Copy, Debug)]
pub struct Purged {
    /// There may be more to delete.
    pub more: bool,
    /// The journal is above its bound, and the next call may delete more of it.
    pub shrinks: bool,
    /// The rows of the journal that are left, but for those that are never deleted, bytes.
    pub bytes: u64,
}

/// A connection for the deletion of old events. It ends with the first error: the deletion may have
/// been carried out.
pub struct Retention {
    client: Client,
    incarnation: i64,
    purge: Statement,
    pin: Option<Arc<Pin>>,
}

impl Retention {
    /// Connects.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(
        config: &Address,
        limits: &Limits,
        incarnation: u64,
    ) -> Result<Retention, Error> {
        let client = connect_by_keys(config, limits).await?;
        let purge =
            "SELECT o_changed, o_trimmed, o_bytes FROM events_purge($1, $2, $3, $4, $5, $6)";
        let purge = client.prepare(purge).await?;
        let pin = config.pin().cloned();
        Ok(Retention { client, incarnation: bigint(incarnation), purge, pin })
    }

    /// Deletes journal rows and deliveries older than `keep`, and dead letters older than
    /// `dead_keep`: at most `rows` of a kind. Their age is time that processes have lived; `lived`:
    /// this process so far. If the journal has more than `bytes_max`, its oldest rows are deleted
    /// before their time.
    ///
    /// # Errors
    /// [`Error::Superseded`]: nothing was done. Otherwise PostgreSQL is away, and it may have been
    /// done.
    pub async fn purge(
        &self,
        lived: Duration,
        keep: Duration,
        dead_keep: Duration,
        bytes_max: u64,
        rows: u32,
    ) -> Result<Purged, Error> {
        assert!(rows > 0, "a call that deletes no row would report more for ever");
        // After a power cut, the file of answered flights must name rows that are kept.
        if let Some(pin) = self.pin.clone() {
            tokio::task::spawn_blocking(move || pin.sync_flights()).await.ok();
        }
        let [lived, keep, dead_keep] = [lived, keep, dead_keep].map(milliseconds);
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let values: [&(dyn ToSql + Sync); 6] =
            [&self.incarnation, &lived, &keep, &dead_keep, &rows, &bigint(bytes_max)];
        let row = self.client.query_one(&self.purge, &values).await.map_err(fenced)?;
        let (changed, trimmed): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        let bytes = columns::count(&row, 2, "journal_tb")?;
        let shrinks = bytes > bytes_max && trimmed > 0;
        Ok(Purged { more: changed >= i64::from(rows) || shrinks, shrinks, bytes })
    }
}

/// The error of a fenced statement.
pub(super) fn fenced(error: tokio_postgres::Error) -> Error {
    match verdict(&error) {
        Verdict::Fenced => Error::Superseded,
        Verdict::Retry | Verdict::Violation | Verdict::Unavailable | Verdict::Unknown => {
            Error::Query(error)
        }
    }
}

/// The place of a reader of events.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The last event of the user's shard, and the last one of the user's transactions.
    pub last: EventCursor,
    /// Whether every event after the id that was asked for is kept.
    pub known: bool,
}

/// The events of a user that a stream has missed, read in pages.
#[derive(Debug)]
pub struct Missed {
    user: UserId,
    shard: usize,
    /// The last events that were read.
    last: EventCursor,
    /// Ids of the next events, with the order numbers of their transfers; 0: of a recharge.
    ahead: VecDeque<(i64, i64)>,
    /// There are more ids than these.
    more: bool,
    /// There may be more events of transactions, which are read behind those of transfers.
    more_transactions: bool,
}

impl Missed {
    /// The events of a user of this shard after `last`.
    pub fn after(user: UserId, shard: usize, last: EventCursor) -> Missed {
        let ahead = VecDeque::new();
        Missed { user, shard, last, ahead, more: true, more_transactions: true }
    }

    /// The events of transactions alone.
    pub fn transactions_after(user: UserId, shard: usize, last: EventCursor) -> Missed {
        Missed { more: false, ..Missed::after(user, shard, last) }
    }
}

impl Reads {
    /// The last events of a user of this shard, and whether events of transfers can be told after
    /// `after`. Events of transactions are never deleted.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn position(
        &self,
        user: UserId,
        shard: usize,
        after: Option<i64>,
    ) -> Result<Position, Error> {
        let client = self.pool.get().await?;
        let position = "SELECT COALESCE((SELECT event_first + event_count - 1 FROM journal_tb \
                                          WHERE shard = $1 ORDER BY flight DESC LIMIT 1), 0), \
                               COALESCE((SELECT o_known FROM events_position($1, $2)), FALSE), \
                               transaction_events_last($3)";
        let statement = client.prepare_cached(position).await?;
        let values: [&(dyn ToSql + Sync); 3] =
            [&number(shard), &after.unwrap_or(0), &user.bigint()];
        let row = client.query_one(&statement, &values).await?;
        // The id of an event tells of its flight, also without the event.
        self.pool.note(&client).await?;
        let last = EventCursor { transfer: row.try_get(0)?, transaction: row.try_get(2)? };
        Ok(Position { last, known: after.is_some() && row.try_get(1)? })
    }

    /// The next events, at most `rows`. `None`: there are no more.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, has a row that cannot be read, or keeps the events no longer.
    pub async fn missed(
        &self,
        missed: &mut Missed,
        rows: usize,
    ) -> Result<Option<Vec<UserEvent>>, Error> {
        if let Some(events) = self.missed_of_flights(missed, rows).await? {
            return Ok(Some(events));
        }
        if !missed.more_transactions {
            return Ok(None);
        }
        let events = self.transaction_events(missed.user, missed.last.transaction, rows).await?;
        missed.more_transactions = events.len() == rows;
        let Some(last) = events.last() else { return Ok(None) };
        missed.last.transaction = last.id;
        Ok(Some(events.into_iter().map(UserEvent::Transaction).collect()))
    }

    /// The next events of transfers and recharges.
    async fn missed_of_flights(
        &self,
        missed: &mut Missed,
        rows: usize,
    ) -> Result<Option<Vec<UserEvent>>, Error> {
        if missed.ahead.is_empty() && !missed.more {
            return Ok(None);
        }
        let client = self.pool.get().await?;
        if missed.ahead.is_empty() && missed.more {
            missed.ahead = ahead(&client, missed).await?;
            missed.more = missed.ahead.len() == IDS_MAX;
        }
        if missed.ahead.is_empty() {
            return Ok(None);
        }
        let page: Vec<(i64, i64)> = missed.ahead.iter().take(rows).copied().collect();
        let (of_transfers, of_recharges): (Vec<_>, Vec<_>) =
            page.iter().copied().partition(|(_, order_number)| *order_number != OF_RECHARGE);
        let (ids, numbers): (Vec<i64>, Vec<i64>) = of_transfers.into_iter().unzip();
        let of_recharges: Vec<i64> = of_recharges.into_iter().map(|(id, _)| id).collect();
        let events = with_transfers(
            "SELECT a.event_id, a.order_number AS of_number, e.states AS passed, \
                    e.at AS event_at \
               FROM unnest($1::bigint[], $2::bigint[]) AS a (event_id, order_number) \
              CROSS JOIN LATERAL (SELECT states, at FROM transfer_events e \
                                   WHERE e.order_number = a.order_number \
                                     AND e.event_id = a.event_id OFFSET 0) AS e",
            "order_number = e.of_number",
        );
        let statement = client.prepare_cached(&format!("{events} ORDER BY event_id")).await?;
        let found = client.query(&statement, &[&ids, &numbers]).await?;
        let catalog = self.catalog();
        let recharges = recharge_events::events_by(&client, &of_recharges, &catalog).await?;
        self.pool.note(&client).await?;
        let events = found.iter().map(|row| event_from_row(row, &catalog));
        let events = events.collect::<Result<Vec<Event>, Error>>()?;
        let mut all: Vec<UserEvent> = events.into_iter().map(UserEvent::Transfer).collect();
        all.extend(recharges.into_iter().map(Box::new).map(UserEvent::Recharge));
        all.sort_unstable_by_key(UserEvent::id);
        // After all that can fail: the same page is read again.
        missed.last.transfer = page.last().expect("not empty").0;
        missed.ahead.drain(..page.len());
        Ok(Some(all))
    }
}

/// The ids of the next events, with the order numbers of their transfers. One statement reads both
/// kinds: what one snapshot lacks comes behind all that it has.
async fn ahead(client: &Client, missed: &Missed) -> Result<VecDeque<(i64, i64)>, Error> {
    let Missed { user, shard, last, .. } = *missed;
    let last = last.transfer;
    let position = "SELECT COALESCE(o_known, FALSE), COALESCE(o_open_from, 0) \
                    FROM events_position($1, $2)";
    let row = client.query_one(position, &[&number(shard), &last]).await?;
    if !row.try_get::<_, bool>(0)? {
        let what = format!("event {last} is kept no longer");
        return Err(Error::Row { table: "journal_tb", what });
    }
    let open_from = moved_by_tools(client, user, last).await?;
    let open_from = open_from.map_or(i64::MAX, bigint).min(row.try_get(1)?);
    let events = "SELECT event_id, order_number FROM events_after($1, $2, $3, $4) \
                  UNION ALL SELECT event_id, 0 FROM recharge_events_after($1, $2, $4) \
                  ORDER BY 1 LIMIT $4";
    let rows = i32::try_from(IDS_MAX).expect("ten thousand");
    let values: [&(dyn ToSql + Sync); 4] = [&user.bigint(), &last, &open_from, &rows];
    let rows = client.query(events, &values).await?;
    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
}

/// A shard as `journal_tb` has it.
fn number(shard: usize) -> i32 {
    i32::try_from(shard).expect("one a worker and a few")
}

/// The lowest order number among the transfers of a user that tools have moved after an event. They
/// may have ended long before it.
async fn moved_by_tools(client: &Client, user: UserId, last: i64) -> Result<Option<u64>, Error> {
    let rows = "SELECT shard, flight, entries FROM journal_tb \
                WHERE attempt >= $1 AND event_count > 0 AND event_first > $2::bigint - $3 \
                  AND event_first + event_count - 1 > $2::bigint";
    let most = i64::try_from(ENTRIES_PER_ROW).expect("small");
    let mut lowest: Option<u64> = None;
    for row in client.query(rows, &[&bigint(TOOL_ATTEMPT), &last, &most]).await? {
        let entries = journal::entries(&row)?
            .map_err(|damaged| Error::Row { table: "journal_tb", what: damaged.to_string() })?;
        let of_user = entries.into_iter().filter(|entry| entry.user() == Some(user));
        let of_user = of_user.filter(|entry| !matches!(entry, Entry::Recharged { .. }));
        lowest = of_user.map(|entry| entry.order_number()).chain(lowest).min();
    }
    Ok(lowest)
}
