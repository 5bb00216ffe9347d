//! The money that transactions have moved on Funding, and the transactions that a read of both
//! stores may see half booked.
//!
//! A transaction books its holds of Funding one after the other, and beside them its legs on Spot.
//! A leg between the stores, or from or to the outside of both, makes the parts of both stores
//! different from 0. Once all is booked, the change of Funding and the change of Spot together are the money
//! that came from outside of both, less that which went there. Money from and to the outside that
//! external operations have is in none of these sums.

use std::collections::BTreeMap;

use tokio_postgres::{GenericClient, Row};
use wal::Sequence;

use super::{Error, columns};
use domain::account::UserId;
use domain::asset::AssetId;
use domain::transfer::ReqId;

/// Sums of one asset over all transactions of a snapshot, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BookedSums {
    /// Brought less taken of all settled holds of Funding.
    pub funding: i128,
    /// From outside of both stores, by transactions that both stores have booked.
    pub deposited: u128,
    /// To the outside of both stores, by transactions that both stores have booked.
    pub withdrawn: u128,
}

/// One asset of a transaction that is being confirmed, or that Spot has booked behind a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookedPart {
    /// The transaction.
    pub transaction: ReqId,
    /// Its place in the order of accepts.
    pub order_number: u64,
    /// Both stores have booked it: its external money counts.
    pub done: bool,
    /// The asset.
    pub asset: AssetId,
    /// The change of Funding so far, smallest units.
    pub funding: i128,
    /// The change of all Spot balances once Spot has booked, smallest units.
    pub spot: i128,
    /// Of a done one: from outside of both stores less to it, smallest units.
    pub outside: i128,
}

impl BookedPart {
    /// The part that is in flight: it undoes all that is booked of a transaction that is not whole.
    /// Below 0 if more has come than gone. `None` if it does not fit.
    ///
    /// `settled`: the balances of Spot include its part.
    pub fn in_flight(&self, settled: bool) -> Option<i128> {
        let came = if self.done { self.outside } else { 0 };
        let spot = if settled { self.spot } else { 0 };
        came.checked_sub(self.funding)?.checked_sub(spot)
    }
}

/// One user's share of an asset in a transaction that may be half booked in a read of both stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserPart {
    /// The transaction.
    pub transaction: ReqId,
    /// Its place in the order of accepts.
    pub order_number: u64,
    /// The asset.
    pub asset: AssetId,
    /// The change of the user's Funding balance so far, smallest units.
    pub funding: i128,
    /// The change of the user's Spot balance once Spot has booked, smallest units; `None` if the
    /// transaction has no legs on Spot.
    pub spot: Option<i128>,
    /// Funding has booked all of the transaction.
    pub settled: bool,
}

impl UserPart {
    /// The money of the user that is in flight: it undoes all that is booked of a transaction that
    /// is not whole. Below 0 if more has come than gone. `None` if it does not fit.
    ///
    /// `on_spot`: the Spot balance includes its part.
    pub fn in_flight(&self, on_spot: bool) -> Option<i128> {
        if self.settled && (on_spot || self.spot.is_none()) {
            return Some(0);
        }
        let spot = self.spot.filter(|_| on_spot).unwrap_or(0);
        0_i128.checked_sub(self.funding)?.checked_sub(spot)
    }
}

/// The parts of one user in transactions that are being confirmed, or that Spot has booked behind
/// record `behind`, in the snapshot of the caller.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
pub(super) async fn parts_of(
    snapshot: &impl GenericClient,
    user: UserId,
    behind: Sequence,
) -> Result<Vec<UserPart>, Error> {
    let behind = i64::try_from(behind).unwrap_or(i64::MAX);
    let rows = "SELECT transaction_id, order_number, asset_id, funding, spot, settled \
                  FROM transaction_parts_of_user($1, $2)";
    let part = |row: &Row| -> Result<UserPart, Error> {
        Ok(UserPart {
            transaction: columns::req_id(row, 0)?.ok_or_else(|| bad("transaction_id"))?,
            order_number: columns::count(row, 1, "transactions_tb")?,
            asset: asset(row, 2)?,
            funding: signed(row, 3)?,
            spot: row.try_get::<_, Option<columns::Numeric>>(4)?.map(|units| units.0),
            settled: row.try_get(5)?,
        })
    };
    snapshot.query(rows, &[&user.bigint(), &behind]).await?.iter().map(part).collect()
}

/// The sums of each asset, in the snapshot of the caller.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or has a sum that cannot be read.
pub(super) async fn sums(
    snapshot: &impl GenericClient,
) -> Result<BTreeMap<AssetId, BookedSums>, Error> {
    let sums = "SELECT asset_id, sum(moved), sum(deposited), sum(withdrawn) FROM (\
          SELECT asset_id, transaction_brought - transaction_taken AS moved, \
                 transaction_deposited AS deposited, transaction_withdrawn AS withdrawn \
            FROM watermark_totals \
          UNION ALL \
          SELECT asset_id, brought::numeric - taken, 0, 0 FROM funding_holds \
           WHERE state = 40 AND order_number >= (SELECT watermark FROM engine_state) \
          UNION ALL \
          SELECT o.asset_id, 0, o.deposited, o.withdrawn FROM transactions_tb t \
           CROSS JOIN LATERAL transaction_outside(t.transaction_id) AS o \
           WHERE transaction_is_booked(t.state, t.stores_ended_at) \
             AND t.order_number >= (SELECT watermark FROM engine_state)\
        ) AS parts GROUP BY asset_id";
    let mut all = BTreeMap::new();
    for row in snapshot.query(sums, &[]).await? {
        let units = |column| columns::units(&row, column).ok_or_else(|| bad("a sum"));
        let (deposited, withdrawn) = (units(2)?, units(3)?);
        let booked = BookedSums { funding: signed(&row, 1)?, deposited, withdrawn };
        all.insert(asset(&row, 0)?, booked);
    }
    Ok(all)
}

/// The transactions that are being confirmed, and those that Spot has booked behind record
/// `behind`, in the snapshot of the caller.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
pub(super) async fn parts(
    snapshot: &impl GenericClient,
    behind: Sequence,
) -> Result<Vec<BookedPart>, Error> {
    let behind = i64::try_from(behind).unwrap_or(i64::MAX);
    let rows = "SELECT transaction_id, order_number, done, asset_id, funding, spot, outside \
                  FROM transaction_bookings($1)";
    snapshot.query(rows, &[&behind]).await?.iter().map(part).collect()
}

fn part(row: &Row) -> Result<BookedPart, Error> {
    Ok(BookedPart {
        transaction: columns::req_id(row, 0)?.ok_or_else(|| bad("transaction_id"))?,
        order_number: columns::count(row, 1, "transactions_tb")?,
        done: row.try_get(2)?,
        asset: asset(row, 3)?,
        funding: signed(row, 4)?,
        spot: signed(row, 5)?,
        outside: signed(row, 6)?,
    })
}

fn signed(row: &Row, column: usize) -> Result<i128, Error> {
    Ok(row.try_get::<_, columns::Numeric>(column)?.0)
}

fn asset(row: &Row, column: usize) -> Result<AssetId, Error> {
    let number: i32 = row.try_get(column)?;
    u32::try_from(number).map(AssetId).map_err(|_| bad("asset_id"))
}

fn bad(what: &str) -> Error {
    Error::Row { table: "transactions_tb", what: what.to_owned() }
}
