//! Everything that PostgreSQL knows to have moved on one user's accounts, read in one snapshot: what a statement is
//! made of.

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio_postgres::{Client, Row};

use super::columns::{self, Id};
use super::database::{TRANSFER_COLUMNS, transfer_from_row};
use super::store::Transfer;
use super::{Address, Error, Limits, connect};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Op, State};

/// A hold of Funding that was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledHold {
    /// When, by the service's clock.
    pub at: Timestamp,
    /// Of what.
    pub asset: AssetId,
    /// The amount that left the user, smallest units.
    pub taken: u64,
    /// The amount that came, smallest units.
    pub brought: u64,
    /// The balance afterwards, available and frozen, smallest units.
    pub balance_after: i128,
    /// The key of the hold.
    pub key: String,
}

/// A successful operation on Funding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FundingMovement {
    /// When, by the service's clock.
    pub at: Timestamp,
    /// Which one.
    pub op: Op,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// The balance afterwards, smallest units; `None` where a repair has written it down without moving anything.
    pub balance_after: Option<i128>,
    /// The transfer's req_id, or the external operation's idem_key.
    pub reference: String,
}

/// A transfer, and when it passed its states.
#[derive(Clone, Debug)]
pub struct TransferMoves {
    /// As it stands.
    pub transfer: Transfer,
    /// In order, by the service's clock.
    pub passed: Vec<(State, Timestamp)>,
}

/// One user's whole life in PostgreSQL.
#[derive(Clone, Debug, Default)]
pub struct Movements {
    /// On Funding, by time.
    pub funding: Vec<FundingMovement>,
    /// In the order of their accepts.
    pub transfers: Vec<TransferMoves>,
    /// Settled holds, by time.
    pub holds: Vec<SettledHold>,
    /// Funding balances now, available and frozen, smallest units.
    pub balances: Vec<(AssetId, i128)>,
}

/// Reads it all. External operations have no index by user: where there are many, it takes a while.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or holds what this version cannot read.
pub async fn read(
    config: &Address,
    limits: &Limits,
    catalog: &ArcSwap<Catalog>,
    user: UserId,
) -> Result<Movements, Error> {
    let client = connect(config, limits).await?;
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
    client.batch_execute(begin).await?;
    let catalog = catalog.load();
    let funding = funding(&client, &catalog, user).await?;
    let transfers = transfers(&client, &catalog, user).await?;
    let holds = holds(&client, &catalog, user).await?;
    let statement = "SELECT asset_id, available + frozen FROM balances_tb \
                     WHERE user_id = $1 ORDER BY asset_id";
    let mut balances = Vec::new();
    for row in client.query(statement, &[&user.bigint()]).await? {
        let asset = asset(&row, 0, "balances_tb", &catalog)?;
        let bad = || bad("balances_tb", "available");
        balances.push((asset, columns::signed(&row, 1).ok_or_else(bad)?));
    }
    client.batch_execute("COMMIT").await?;
    Ok(Movements { funding, transfers, holds, balances })
}

async fn funding(
    client: &Client,
    catalog: &Catalog,
    user: UserId,
) -> Result<Vec<FundingMovement>, Error> {
    // All operations of one flight have its time. Their events have their order.
    let statement = "SELECT at, op, asset_id, amount, balance_after, req_id, NULL, \
                (SELECT min(s.event_id) FROM transfers_tb t CROSS JOIN LATERAL unnest(t.history) AS s \
                  WHERE t.order_number = d.order_number AND s.at = d.at) \
           FROM transfer_decisions d WHERE user_id = $1 AND code IS NULL \
         UNION ALL SELECT at, op, asset_id, amount, balance_after, NULL, idem_key, NULL \
           FROM external_operations WHERE user_id = $1 AND code IS NULL \
         ORDER BY 1, 8, 7, 2";
    let table = "transfers_tb or external_operations";
    let rows = client.query(statement, &[&user.bigint()]).await?;
    let movement = |row: &Row| {
        let balance_after = columns::signed_or_null(row, 4);
        let name = row.try_get::<_, Option<Id>>(5)?.and_then(Id::req_id);
        Ok(FundingMovement {
            at: row.try_get(0)?,
            op: columns::op(row, 1)?.ok_or_else(|| bad(table, "op"))?,
            asset: asset(row, 2, table, catalog)?,
            amount: columns::amount(row, 3)?.ok_or_else(|| bad(table, "amount"))?,
            balance_after: balance_after.ok_or_else(|| bad(table, "balance_after"))?,
            reference: name.map_or_else(|| row.try_get(6), |name| Ok(name.to_string()))?,
        })
    };
    rows.iter().map(movement).collect()
}

/// Settled holds that moved money. What they brought from outside, or took there, is an external
/// operation.
async fn holds(
    client: &Client,
    catalog: &Catalog,
    user: UserId,
) -> Result<Vec<SettledHold>, Error> {
    const TABLE: &str = "funding_holds";
    let statement = "SELECT updated_at, asset_id, taken, brought, settled_after, hold_key \
           FROM funding_holds \
          WHERE user_id = $1 AND state = 40 AND (taken > 0 OR brought > 0) \
          ORDER BY updated_at, order_number, hold_key";
    let rows = client.query(statement, &[&user.bigint()]).await?;
    let settled = |row: &Row| {
        Ok(SettledHold {
            at: row.try_get(0)?,
            asset: asset(row, 1, TABLE, catalog)?,
            taken: columns::count(row, 2, TABLE)?,
            brought: columns::count(row, 3, TABLE)?,
            balance_after: columns::signed(row, 4).ok_or_else(|| bad(TABLE, "settled_after"))?,
            key: row.try_get(5)?,
        })
    };
    rows.iter().map(settled).collect()
}

async fn transfers(
    client: &Client,
    catalog: &Catalog,
    user: UserId,
) -> Result<Vec<TransferMoves>, Error> {
    let statement = format!(
        "SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE user_id = $1 ORDER BY order_number"
    );
    let mut passages = Vec::new();
    for row in client.query(&statement, &[&user.bigint()]).await? {
        let transfer = transfer_from_row(&row, catalog)?;
        passages.push(TransferMoves { transfer, passed: Vec::new() });
    }
    let history = "SELECT order_number, step.states, step.at \
                     FROM transfers_tb CROSS JOIN LATERAL unnest(history) WITH ORDINALITY AS step \
                    WHERE user_id = $1 ORDER BY order_number, ordinality";
    for row in client.query(history, &[&user.bigint()]).await? {
        let order_number = columns::count(&row, 0, "transfers_tb")?;
        let number = |moves: &TransferMoves| moves.transfer.intent.order_number;
        // Of the same snapshot, so it is there.
        let Ok(index) = passages.binary_search_by_key(&order_number, number) else { continue };
        let at: Timestamp = row.try_get(2)?;
        let states: Vec<i16> = row.try_get(1)?;
        for number in states {
            let state = State::from_number(number).ok_or_else(|| bad("transfers_tb", "history"));
            passages[index].passed.push((state?, at));
        }
    }
    Ok(passages)
}

/// An asset's number in this column.
fn asset(
    row: &Row,
    column: usize,
    table: &'static str,
    catalog: &Catalog,
) -> Result<AssetId, Error> {
    let asset = columns::asset(row, column, catalog)?.ok_or_else(|| bad(table, "asset_id"))?;
    Ok(asset.id)
}

fn bad(table: &'static str, what: &str) -> Error {
    Error::Row { table, what: what.to_owned() }
}
