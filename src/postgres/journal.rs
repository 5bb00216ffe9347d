//! The rows of journal_tb, read by key range, and the faults that a damaged row shows.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::{Client, Row};

use super::Error;
use super::columns::bigint;
use super::flight::entries::{self, Damaged, Entry};

/// The columns of a [`JournalRow`].
const COLUMNS: &str = "flight, incarnation, attempt, at, durable, open_from, event_first, \
                       event_count::bigint, entries, (SELECT incarnation FROM engine_state)";

/// One row, as it stands in the table.
#[derive(Clone, Debug)]
pub struct JournalRow {
    /// The number of the flight in its shard.
    pub flight: u64,
    /// Of the process that wrote it.
    pub incarnation: i64,
    /// See [`Flight::attempt`](super::flight::Flight::attempt).
    pub attempt: i64,
    /// When, by the clock of that process.
    pub at: Timestamp,
    /// The highest log sequence that was seen durable.
    pub durable: i64,
    /// See [`Standing::open_from`](super::store::Standing::open_from).
    pub open_from: i64,
    /// The id of its first event, or of the next one.
    pub event_first: i64,
    /// Its events.
    pub event_count: i64,
    /// The bytes of its entries.
    pub entries: Vec<u8>,
    /// The latest incarnation, in the snapshot that the row was read in.
    pub latest: i64,
}

/// A row that no process writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Rows are missing.
    #[error("the flights from {first} to {last} are missing")]
    Hole {
        /// The first flight without a row.
        first: u64,
        /// The last one.
        last: u64,
    },
    /// The rows that the audit has read before are gone.
    #[error("the last row is that of flight {last}, and flight {folded} has been read before")]
    Ended {
        /// The last row, 0 if there is none.
        last: u64,
        /// The last flight in the totals.
        folded: u64,
    },
    /// An incarnation writes behind a later one, or no process has it.
    #[error("incarnation {found} cannot follow incarnation {before}")]
    Incarnation {
        /// Of the row before it, or the latest one.
        before: i64,
        /// Of the row.
        found: i64,
    },
    /// The ids of its events were given before, or are more or fewer than its events.
    #[error("the ids of its events do not follow those of the rows before it, or its entries")]
    Events,
    /// The bytes.
    #[error(transparent)]
    Entries(#[from] Damaged),
}

/// A damaged row: it is named by shard and flight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the journal of Funding is damaged: {}: {fault}", self.place())]
pub struct DamagedRow {
    /// The shard.
    pub shard: u32,
    /// The flight: of the row, or the first one that is missing.
    pub flight: u64,
    /// The fault.
    pub fault: Fault,
}

impl DamagedRow {
    /// The subject of alerts about it.
    pub fn place(&self) -> String {
        format!("shard {}, flight {}", self.shard, self.flight)
    }
}

/// The rows of a shard from the flight `from` on, at most `limit`, in their order.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn page(
    client: &Client,
    shard: u32,
    from: u64,
    limit: usize,
) -> Result<Vec<JournalRow>, Error> {
    let page = format!(
        "SELECT {COLUMNS} FROM journal_tb WHERE shard = $1 AND flight >= $2 \
         ORDER BY flight LIMIT $3"
    );
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = client.query(&page, &[&number(shard), &bigint(from), &limit]).await?;
    rows.iter().map(row).collect()
}

/// The entries of a row that begins with its shard, its number and its entries.
pub(super) fn entries(row: &Row) -> Result<Result<Vec<Entry>, DamagedRow>, Error> {
    let (shard, flight) = (shard(row)?, unsigned(row, 1)?);
    let entries = entries::decode(shard, flight, row.try_get(2)?);
    Ok(entries.map_err(|why| DamagedRow { shard, flight, fault: why.into() }))
}

/// Every shard of the journal, with its first and its last flight.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn shards(client: &Client) -> Result<BTreeMap<u32, (u64, u64)>, Error> {
    let shards = "SELECT l.shard, f.flight, l.flight FROM journal_last l CROSS JOIN LATERAL ( \
                      SELECT flight FROM journal_tb j WHERE j.shard = l.shard \
                       ORDER BY flight LIMIT 1) AS f";
    let mut all = BTreeMap::new();
    for row in client.query(shards, &[]).await? {
        let shard = shard(&row)?;
        all.insert(shard, (unsigned(&row, 1)?, unsigned(&row, 2)?));
    }
    Ok(all)
}

/// Checks the rows of one shard in their order.
#[derive(Clone, Copy, Debug)]
pub struct Checker {
    shard: u32,
    /// The last flight that was found in order.
    flight: u64,
    incarnation: i64,
    event_next: i64,
}

impl Checker {
    /// Begins behind a flight, the last one that is known to be in order.
    pub fn behind(shard: u32, flight: u64) -> Checker {
        Checker { shard, flight, incarnation: 0, event_next: 0 }
    }

    /// The last flight that was found in order.
    pub fn flight(&self) -> u64 {
        self.flight
    }

    /// Goes on with the row of this flight, behind missing ones.
    pub fn skip_to(&mut self, flight: u64) {
        self.flight = flight - 1;
    }

    /// Takes the row at which the checks begin for the one before the next.
    pub fn precede(&mut self, row: &JournalRow) {
        (self.flight, self.incarnation) = (row.flight, row.incarnation);
        self.event_next = row.event_first.saturating_add(row.event_count);
    }

    /// The entries of the next row.
    ///
    /// # Errors
    /// [`DamagedRow`]: the row cannot follow, or has no entries that can be read.
    pub fn next(&mut self, row: &JournalRow) -> Result<Vec<Entry>, DamagedRow> {
        let due = self.flight + 1;
        let damaged = |flight, fault| DamagedRow { shard: self.shard, flight, fault };
        if row.flight != due {
            let fault = Fault::Hole { first: due, last: row.flight - 1 };
            return Err(damaged(due, fault));
        }
        let damaged = |fault| damaged(row.flight, fault);
        let found = row.incarnation;
        if found < self.incarnation || found > row.latest {
            let before = if found > row.latest { row.latest } else { self.incarnation };
            return Err(damaged(Fault::Incarnation { before, found }));
        }
        let entries = entries::decode(self.shard, row.flight, &row.entries);
        let entries = entries.map_err(|why| damaged(why.into()))?;
        let events = entries.iter().filter(|entry| entry.is_event()).count();
        if row.event_first < self.event_next || usize::try_from(row.event_count) != Ok(events) {
            return Err(damaged(Fault::Events));
        }
        self.precede(row);
        Ok(entries)
    }
}

fn row(row: &Row) -> Result<JournalRow, Error> {
    Ok(JournalRow {
        flight: unsigned(row, 0)?,
        incarnation: row.try_get(1)?,
        attempt: row.try_get(2)?,
        at: row.try_get(3)?,
        durable: row.try_get(4)?,
        open_from: row.try_get(5)?,
        event_first: row.try_get(6)?,
        event_count: row.try_get(7)?,
        entries: row.try_get(8)?,
        latest: row.try_get(9)?,
    })
}

fn unsigned(row: &Row, column: usize) -> Result<u64, Error> {
    super::columns::count(row, column, "journal_tb")
}

/// The shard in the first column.
pub(super) fn shard(row: &Row) -> Result<u32, Error> {
    let number: i32 = row.try_get(0)?;
    let bad = |_| Error::Row { table: "journal_tb", what: format!("shard {number}") };
    u32::try_from(number).map_err(bad)
}

/// A shard as an INTEGER.
pub(super) fn number(shard: u32) -> i32 {
    i32::try_from(shard).expect("read from an INTEGER, or one for each worker and a few")
}
