//! PostgreSQL's part of what there is of each asset: sums and what may be in flight, in one snapshot.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio_postgres::{Client, IsolationLevel, Row};
use wal::Sequence;

use super::booked::{self, BookedPart, BookedSums};
use super::connection::note;
use super::{Address, Error, Limits, columns, connect};
use domain::asset::AssetId;
use domain::transfer::{Direction, Op, ReqId};

/// What is not in flight, of one asset, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// All Funding balances, available and frozen. Special ones may be below zero.
    pub funding: i128,
    /// All successful external deposits, with those of transactions.
    pub deposited: u128,
    /// All successful external withdrawals, with those of transactions.
    pub withdrawn: u128,
    /// All transactions.
    pub booked: BookedSums,
}

/// A transfer that is not terminal, or whose last outcome on Spot was recorded behind a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moving {
    /// Its name.
    pub req_id: ReqId,
    /// Its place in the order of accepts.
    pub order_number: u64,
    /// Of what.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: u128,
    /// Which way.
    pub direction: Direction,
    /// Its successful operations on Funding.
    pub funding: Vec<Op>,
}

/// One snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// By asset; one that has never been on Funding is not there.
    pub sums: BTreeMap<AssetId, Sums>,
    /// Among those that were asked for.
    pub moving: Vec<Moving>,
    /// Transactions that may be half booked.
    pub parts: Vec<BookedPart>,
}

/// A connection of its own: it adds up whole tables, which takes longer than what users wait for.
pub struct Funds {
    config: Address,
    limits: Limits,
    /// Whose Spot this Funding is compared with.
    incarnation: u64,
    client: Option<Client>,
}

impl Funds {
    /// Connects when it is first asked. Statements may take `statement_timeout`. `incarnation`: the process's own.
    pub fn new(
        config: Address,
        limits: Limits,
        statement_timeout: Duration,
        incarnation: u64,
    ) -> Funds {
        let idle_in_transaction_timeout = statement_timeout;
        let limits = Limits { statement_timeout, idle_in_transaction_timeout, ..limits };
        Funds { config, limits, incarnation, client: None }
    }

    /// Makes sure of the connection, so that the snapshot that is to come is not late.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(&mut self) -> Result<(), Error> {
        let client = match self.client.take() {
            Some(client) if client.simple_query("").await.is_ok() => client,
            Some(_) | None => connect(&self.config, &self.limits).await?,
        };
        self.client = Some(client);
        Ok(())
    }

    /// One snapshot, which begins within this call: every sum, and every [`Moving`] transfer with the order number `next`, a
    /// higher one, or one of `under_way`. `behind`: the record that its last outcome on Spot came after, where it is terminal.
    /// Transactions are found by their state and by that record.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or holds what cannot be read. [`Error::Superseded`]: it is another process's by now, whose
    /// Spot we do not know.
    pub async fn view(
        &mut self,
        next: u64,
        under_way: &[u64],
        behind: Sequence,
    ) -> Result<View, Error> {
        // Kept only where nothing is left of it on the connection.
        let mut client = match self.client.take() {
            Some(client) => client,
            None => connect(&self.config, &self.limits).await?,
        };
        let (incarnation, view) = read(&mut client, next, under_way, behind).await?;
        note(self.config.pin(), &client).await?;
        self.client = Some(client);
        if incarnation == bigint(self.incarnation) { Ok(view) } else { Err(Error::Superseded) }
    }
}

async fn read(
    client: &mut Client,
    next: u64,
    under_way: &[u64],
    behind: Sequence,
) -> Result<(i64, View), Error> {
    let builder = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    let snapshot = builder.read_only(true).start().await?;
    let incarnation = snapshot.query_one("SELECT incarnation FROM engine_state", &[]).await?;
    let incarnation = incarnation.try_get(0)?;
    let mut view = View::default();
    let balances = "SELECT asset_id, sum(available + frozen) FROM balances_tb GROUP BY asset_id";
    for row in snapshot.query(balances, &[]).await? {
        let bad = || Error::Row { table: "balances_tb", what: "a sum".to_owned() };
        let funding = columns::signed(&row, 1).ok_or_else(bad)?;
        view.sums.entry(asset(&row, 0)?).or_default().funding = funding;
    }
    // At any moment the totals below the watermark and the rows above it are everything (see `watermark_totals` in the schema); there are
    // as many totals as balances, and as many rows as come in a day.
    let outside = "SELECT asset_id, sum(deposited), sum(withdrawn) FROM (\
          SELECT asset_id, external_deposited AS deposited, external_withdrawn AS withdrawn \
            FROM watermark_totals \
          UNION ALL \
          SELECT asset_id, CASE op WHEN 4 THEN amount ELSE 0 END, CASE op WHEN 5 THEN amount ELSE 0 END \
            FROM external_operations \
           WHERE code IS NULL \
             AND COALESCE(order_number >= (SELECT watermark FROM engine_state), TRUE)\
        ) AS outside GROUP BY asset_id";
    for row in snapshot.query(outside, &[]).await? {
        let sums = view.sums.entry(asset(&row, 0)?).or_default();
        (sums.deposited, sums.withdrawn) = (sum(&row, 1)?, sum(&row, 2)?);
    }
    for (asset, booked) in booked::sums(&snapshot).await? {
        let sums = view.sums.entry(asset).or_default();
        let too_large = || Error::Row { table: "a sum", what: format!("asset {}", asset.0) };
        let add = |sum: u128, more: u128| sum.checked_add(more).ok_or_else(too_large);
        sums.deposited = add(sums.deposited, booked.deposited)?;
        sums.withdrawn = add(sums.withdrawn, booked.withdrawn)?;
        sums.booked = booked;
    }
    view.parts = booked::parts(&snapshot, behind).await?;
    let moving = "SELECT req_id, order_number, asset_id, amount, direction, \
          funding_operations(direction, funding_at, funding_code, refund_at) \
        FROM transfers_tb \
        WHERE (order_number >= $1 OR order_number = ANY ($2)) \
          AND (state NOT IN (40, -10, -30) OR log_sequence > $3)";
    let numbers: Vec<i64> = under_way.iter().copied().map(bigint).collect();
    for row in snapshot.query(moving, &[&bigint(next), &numbers, &bigint(behind)]).await? {
        view.moving.push(moving_from_row(&row)?);
    }
    snapshot.commit().await?;
    Ok((incarnation, view))
}

fn moving_from_row(row: &Row) -> Result<Moving, Error> {
    let order_number: i64 = row.try_get(1)?;
    let bad = || Error::Row { table: "transfers_tb", what: order_number.to_string() };
    let direction = u8::try_from(row.try_get::<_, i16>(4)?).ok().and_then(Direction::from_number);
    let funding: Vec<i16> = row.try_get(5)?;
    let funding = funding.into_iter().map(|op| u8::try_from(op).ok().and_then(Op::from_number));
    Ok(Moving {
        req_id: columns::req_id(row, 0)?.ok_or_else(bad)?,
        order_number: u64::try_from(order_number).map_err(|_| bad())?,
        asset: asset(row, 2)?,
        amount: columns::amount(row, 3)?.ok_or_else(bad)?.units().into(),
        direction: direction.ok_or_else(bad)?,
        funding: funding.collect::<Option<_>>().ok_or_else(bad)?,
    })
}

fn asset(row: &Row, column: usize) -> Result<AssetId, Error> {
    let number: i32 = row.try_get(column)?;
    let bad = || Error::Row { table: "assets_tb", what: format!("asset {number}") };
    u32::try_from(number).map(AssetId).map_err(|_| bad())
}

fn sum(row: &Row, column: usize) -> Result<u128, Error> {
    let bad = || Error::Row { table: "a sum", what: row.columns()[column].name().to_owned() };
    columns::units(row, column).ok_or_else(bad)
}

/// As PostgreSQL's BIGINT; what is above is above every one.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
