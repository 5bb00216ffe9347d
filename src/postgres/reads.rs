//! Reads of PostgreSQL through a pool, for requests, limits and checks. Nothing here writes.
//! The writes of operators are in [`super::admin`].

pub mod accepted;
pub mod approvals;
pub mod assets;
pub mod channel_statement;
pub mod freezes;
pub mod holds;
pub mod lists;
pub mod notices;
pub mod own_recharges;
pub mod pauses;
pub mod receivables;
pub mod recharge_deliveries;
pub mod recharge_gauges;
pub mod recharge_search;
pub mod recharges;
pub mod special;
pub mod transactions;

use std::sync::Arc;

use arc_swap::ArcSwap;
use deadpool_postgres::Status;
use jiff::Timestamp;
use tokio_postgres::{IsolationLevel, Row};
use wal::Sequence;

use self::assets::Unreadable;
use self::special::KnownSpecial;
use super::booked::{self, UserPart};
use super::columns::{self, Id, bigint};
use super::database::{TRANSFER_COLUMNS, transfer_from_row};
use super::store::{Sought, Transfer};
use super::{Address, Connections, Error, Limits, pool_by_keys};
use crate::pause::Pauses;
use domain::account::{AccountStatus, UserId};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{ReqId, State};

/// One state a transfer has passed through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The state.
    pub state: State,
    /// When, by the service's clock.
    pub at: Timestamp,
    /// Tries before it.
    pub attempt: u32,
    /// Why, where there is more to say than the state's name.
    pub reason: Option<String>,
}

/// One user's Funding side at one moment.
#[derive(Clone, Debug, Default)]
pub struct FundingView {
    /// Whether the Funding account exists.
    pub exists: bool,
    /// Available and frozen smallest units by asset.
    pub balances: Vec<(AssetId, i128, u128)>,
    /// Transfers that may be counted differently by the two stores.
    pub transfers: Vec<Transfer>,
    /// The user's parts in transactions that may be half booked.
    pub parts: Vec<UserPart>,
}

/// The read side, and the catalog it keeps up to date.
#[derive(Clone)]
pub struct Reads {
    pub(super) pool: Connections,
    /// For looks that touch a few rows of large tables, again and again.
    by_keys: Connections,
    catalog: Arc<ArcSwap<Catalog>>,
    /// Rows of `assets_tb` that cannot be read in whole, as last read.
    unreadable: Arc<parking_lot::Mutex<Vec<Unreadable>>>,
    pauses: Arc<ArcSwap<Pauses>>,
    special: KnownSpecial,
}

/// How far a pool of connections is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUse {
    /// Connections that are lent out.
    pub in_use: usize,
    /// The most that are opened.
    pub max: usize,
    /// Those who wait for one.
    pub waiting: usize,
}

impl Reads {
    /// Reads through `pool`.
    pub fn new(pool: Connections, catalog: Arc<ArcSwap<Catalog>>) -> Reads {
        let (unreadable, pauses, special) =
            (Arc::default(), Arc::default(), KnownSpecial::default());
        let by_keys = pool.clone();
        Reads { pool, by_keys, catalog, unreadable, pauses, special }
    }

    /// The same with connections of their own for the looks that each payment needs: two, the
    /// second one in the place of one that does not answer.
    pub fn looking_by_keys(self, address: &Address, limits: &Limits) -> Reads {
        Reads { by_keys: pool_by_keys(address, limits, 2), ..self }
    }

    /// The assets as last read.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// How far the pool is used.
    pub fn pool_use(&self) -> PoolUse {
        let Status { max_size, size, available, waiting } = self.pool.status();
        // Not read at one moment.
        PoolUse { in_use: size.saturating_sub(available), max: max_size, waiting }
    }

    /// Whether PostgreSQL answers.
    ///
    /// # Errors
    /// [`Error`]: it does not.
    pub async fn ping(&self) -> Result<(), Error> {
        self.pool.get().await?.query_one("SELECT 1", &[]).await?;
        Ok(())
    }

    /// One transfer with every state it has passed through, in order, at one moment.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn transfer_with_history(
        &self,
        req_id: ReqId,
    ) -> Result<Option<(Transfer, Vec<Passed>)>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let transfer = format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE req_id = $1");
        let statement = transaction.prepare_cached(&transfer).await?;
        let Some(row) = transaction.query_opt(&statement, &[&Id::of(req_id)]).await? else {
            return Ok(None);
        };
        let transfer = transfer_from_row(&row, &self.catalog.load())?;
        let passed = history(&transaction, req_id).await?;
        transaction.commit().await?;
        self.pool.note(&client).await?;
        Ok(Some((transfer, passed)))
    }

    /// A transfer as it is committed. `None` says little: one may be on its way.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn transfer(&self, sought: &Sought) -> Result<Option<Transfer>, Error> {
        let find = |by: &str| format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE {by}");
        let client = self.pool.get().await?;
        let row = match sought {
            Sought::ReqId(req_id) => {
                let statement = client.prepare_cached(&find("req_id = $1")).await?;
                client.query_opt(&statement, &[&Id::of(*req_id)]).await?
            }
            Sought::Cid(user, cid) => {
                let statement = client.prepare_cached(&find("user_id = $1 AND cid = $2")).await?;
                client.query_opt(&statement, &[&user.bigint(), &cid.as_str()]).await?
            }
        };
        self.pool.note(&client).await?;
        row.map(|row| transfer_from_row(&row, &self.catalog.load())).transpose()
    }

    /// A user's Funding balances, and in the same snapshot every transfer from `order_number_min` on that is not
    /// terminal or whose Spot outcome came after `sequence`.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn funding_view(
        &self,
        user: UserId,
        order_number_min: u64,
        sequence: Sequence,
    ) -> Result<FundingView, Error> {
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let catalog = self.catalog.load();
        let mut view = FundingView::default();
        let account = "SELECT 1 FROM accounts_tb WHERE user_id = $1";
        view.exists = transaction.query_opt(account, &[&user.bigint()]).await?.is_some();
        let balances = "SELECT asset_id, available, frozen, special FROM balances_tb \
                        WHERE user_id = $1";
        for row in transaction.query(balances, &[&user.bigint()]).await? {
            view.balances.push(balance_from_row(&row, &catalog)?);
        }
        let transfers = format!(
            "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
             WHERE user_id = $1 AND order_number >= $2 \
               AND (state NOT IN (40, -10, -30) OR log_sequence > $3)"
        );
        let order_number = bigint(order_number_min);
        let (behind, sequence) = (sequence, bigint(sequence));
        for row in
            transaction.query(&transfers, &[&user.bigint(), &order_number, &sequence]).await?
        {
            view.transfers.push(transfer_from_row(&row, &catalog)?);
        }
        view.parts = booked::parts_of(&*transaction, user, behind).await?;
        transaction.commit().await?;
        self.pool.note(&client).await?;
        Ok(view)
    }

    /// A Funding account's status, `None` where there is no account.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a status that is none.
    pub async fn funding_status(&self, user: UserId) -> Result<Option<AccountStatus>, Error> {
        let client = self.pool.get().await?;
        let status = "SELECT status FROM accounts_tb WHERE user_id = $1";
        let Some(row) = client.query_opt(status, &[&user.bigint()]).await? else { return Ok(None) };
        self.pool.note(&client).await?;
        let number: i16 = row.try_get(0)?;
        let status = columns::account_status(number);
        let what = || format!("user {user}: status {number}");
        status.map(Some).ok_or_else(|| Error::Row { table: "accounts_tb", what: what() })
    }
}

/// Every state that a transfer has passed through, in order.
async fn history(
    transaction: &deadpool_postgres::Transaction<'_>,
    req_id: ReqId,
) -> Result<Vec<Passed>, Error> {
    // In the order of the commits, whatever any clock did.
    let history = "SELECT step.states, step.at, step.attempt, step.reason \
                     FROM transfers_tb CROSS JOIN LATERAL unnest(history) WITH ORDINALITY AS step \
                    WHERE req_id = $1 ORDER BY ordinality";
    let statement = transaction.prepare_cached(history).await?;
    let mut passed = Vec::new();
    for row in transaction.query(&statement, &[&Id::of(req_id)]).await? {
        for number in row.try_get::<_, Vec<i16>>(0)? {
            let state = State::from_number(number).ok_or_else(|| Error::Row {
                table: "transfers_tb",
                what: format!("{req_id}: state {number}"),
            })?;
            let attempt = u32::try_from(row.try_get::<_, i32>(2)?).unwrap_or(0);
            let (at, reason) = (row.try_get(1)?, row.try_get(3)?);
            passed.push(Passed { state, at, attempt, reason });
        }
    }
    Ok(passed)
}

/// Everything read in it is of one moment.
async fn snapshot(
    client: &mut deadpool_postgres::Client,
) -> Result<deadpool_postgres::Transaction<'_>, Error> {
    let builder = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
    Ok(builder.read_only(true).start().await?)
}

fn balance_from_row(row: &Row, catalog: &Catalog) -> Result<(AssetId, i128, u128), Error> {
    let number: i32 = row.try_get(0)?;
    let bad = |what: &str| Error::Row { table: "balances_tb", what: format!("{number}: {what}") };
    let asset = columns::asset(row, 0, catalog)?.ok_or_else(|| bad("asset_id"))?;
    // Only a special one may be below zero.
    let special: bool = row.try_get(3)?;
    let available = columns::signed(row, 1).filter(|available| special || *available >= 0);
    let available = available.ok_or_else(|| bad("balance"))?;
    let frozen = columns::units(row, 2).ok_or_else(|| bad("balance"))?;
    Ok((asset.id, available, frozen))
}
