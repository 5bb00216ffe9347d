//! The flight of a tool: journal rows of a transaction that no worker makes.
//!
//! A repair changes balances and moves transfers while no process serves. Its transaction writes
//! the entries of these changes behind its own fence rows, so that the audit and the events find
//! them as they find those of a worker.
//!
//! All rows are of shard 0, with ids of events of the tool's own incarnation.

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;

use super::entries::{Entry, encode};
use super::{EventIds, TOOL_ATTEMPT};
use crate::postgres::columns::{asset_number, bigint, count};
use crate::postgres::{Error, incarnation, journal};
use domain::account::UserId;
use domain::asset::AssetId;
use domain::hold::HoldOrder;
use domain::transfer::{Decision, Op, State};

/// The shard of all rows.
const SHARD: u32 = 0;
/// Entries of one row: about those of a large flight of a worker.
pub(crate) const ENTRIES_PER_ROW: usize = 1_000;

/// Entries that are written as one or more rows.
#[derive(Debug)]
pub(crate) struct ToolFlight {
    incarnation: u64,
    /// The number of the shard's last flight.
    last: u64,
    open_from: u64,
    event_first: u64,
    entries: Vec<Entry>,
}

/// How far a [`ToolFlight`] had come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(usize);

/// An operation of Funding that a tool has carried out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// Of the transfer, or of the external operation.
    pub(crate) order_number: u64,
    /// Which one.
    pub(crate) op: Op,
    /// The account.
    pub(crate) user: UserId,
    /// Of what.
    pub(crate) asset: AssetId,
    /// The decision.
    pub(crate) decision: Decision,
    /// The change of the available balance, smallest units.
    pub(crate) available: i128,
}

impl ToolFlight {
    /// Begins a flight in a transaction that has raised the incarnation and fenced every shard.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub(crate) async fn begin(transaction: &Transaction<'_>) -> Result<ToolFlight, Error> {
        let last = "SELECT e.incarnation, COALESCE(flight, 0), COALESCE(open_from, 0), \
                      COALESCE(event_first + event_count, 0) \
                    FROM engine_state e LEFT JOIN journal_last l ON shard = $1";
        let row = transaction.query_one(last, &[&journal::number(SHARD)]).await?;
        let incarnation = count(&row, 0, "engine_state")?;
        let event_first = EventIds::new(incarnation).take(0).max(count(&row, 3, "journal_tb")?);
        assert_eq!(incarnation::of_order_number(event_first), incarnation, "its own ids");
        Ok(ToolFlight {
            incarnation,
            last: count(&row, 1, "journal_tb")?,
            open_from: count(&row, 2, "journal_tb")?,
            event_first,
            entries: Vec::new(),
        })
    }

    /// Adds states that a transfer was taken through. Returns the id of this event.
    pub(crate) fn passed(&mut self, order_number: u64, user: UserId, states: &[State]) -> u64 {
        if !states.last().is_some_and(|state| state.is_terminal()) {
            self.open_from = self.open_from.min(order_number);
        }
        let id = self.event_next();
        let states = states.iter().map(|state| state.number()).collect();
        self.entries.push(Entry::Passed { order_number, user: user.number(), states });
        id
    }

    /// The id of the next event.
    pub(crate) fn event_next(&self) -> u64 {
        self.event_first + event_count(&self.entries)
    }

    /// Adds an operation that this transaction has carried out, with the version of its balance.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub(crate) async fn posted(
        &mut self,
        transaction: &Transaction<'_>,
        carried: Carried,
    ) -> Result<(), Error> {
        let Carried { order_number, op, user, asset, decision, available } = carried;
        let version = "SELECT version FROM balances_tb WHERE user_id = $1 AND asset_id = $2";
        let row = transaction.query_opt(version, &[&user.bigint(), &asset_number(asset)]).await?;
        let version = row.map_or(Ok(0), |row| count(&row, 0, "balances_tb"))?;
        self.entries.push(Entry::Posted {
            order_number,
            op: op.number(),
            user: user.number(),
            asset: asset.0,
            available,
            frozen: 0,
            version,
            code: decision.code().map(|code| code as u16),
        });
        Ok(())
    }

    /// Adds a Settle that this transaction has carried out. `available`, `frozen`: the changes of
    /// the balance, smallest units; `version`: of it afterwards.
    pub(crate) fn settled(
        &mut self,
        order: &HoldOrder,
        (available, frozen): (i128, i128),
        version: u64,
    ) {
        self.entries.push(Entry::Held {
            order_number: order.order_number,
            key: order.key.as_str().to_owned(),
            act: order.act.number(),
            user: order.user.number(),
            asset: order.asset.0,
            available,
            frozen,
            version,
            code: None,
        });
    }

    /// How far it has come.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.entries.len())
    }

    /// Drops the entries behind a mark, for changes that were rolled back.
    pub(crate) fn roll_back(&mut self, Mark(length): Mark) {
        self.entries.truncate(length);
    }

    /// Writes the rows: none if there is no entry. The next start looks for open transfers from the
    /// watermark on.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub(crate) async fn write(self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let ToolFlight { incarnation, last, open_from, mut event_first, entries } = self;
        // The tool may have moved any transfer: the next start looks from the watermark on.
        let open = "UPDATE watermark_open SET open_from = 0, open_old = '{}'";
        transaction.execute(open, &[]).await?;
        let insert = "INSERT INTO journal_tb (shard, flight, incarnation, attempt, at, durable, \
                        open_from, event_first, event_count, entries, bytes) \
                      SELECT $1, $2::bigint, $3, $4, clock_timestamp(), \
                        COALESCE((SELECT durable FROM journal_tb \
                                   WHERE shard = $1 AND flight = $2::bigint - 1), 0), $5, $6, $7, $8, \
                        COALESCE((SELECT journal_behind(bytes, entries) FROM journal_tb \
                                   WHERE shard = $1 AND flight = $2::bigint - 1), 0)";
        for (place, entries) in (1..).zip(entries.chunks(ENTRIES_PER_ROW)) {
            let (flight, events) = (last + place, event_count(entries));
            let bytes = encode(SHARD, flight, entries);
            let count = i32::try_from(events).expect("at most ENTRIES_PER_ROW");
            let [flight, incarnation, attempt, open, first] =
                [flight, incarnation, TOOL_ATTEMPT + place, open_from, event_first].map(bigint);
            let values: [&(dyn ToSql + Sync); 8] = [
                &journal::number(SHARD),
                &flight,
                &incarnation,
                &attempt,
                &open,
                &first,
                &count,
                &bytes,
            ];
            transaction.execute(insert, &values).await?;
            event_first += events;
        }
        Ok(())
    }
}

fn event_count(entries: &[Entry]) -> u64 {
    entries.iter().filter(|entry| entry.is_event()).count() as u64
}
