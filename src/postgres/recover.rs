//! The need to recover recharges behind a restore: the mark of a database that may lack what its
//! channels know, and the keys that a repair has brought back before their orders.

use jiff::Timestamp;

use super::admin::{Admin, audit};
use super::columns::{self, asset_number};
use super::database::recharges::{PAYMENT_COLUMNS, payment_from_row};
use super::reads::Reads;
use super::{Address, Error, Limits, connect};
use crate::recharge::payment::RechargePayment;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::Op;

/// The operator's next step while the mark stands.
pub const RECOVER_NEXT: &str = "stop the service, then \
                                `ubscore recharge recover --since DAY --apply --reason TEXT`";

/// A database that was restored, or that has lost commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The last time. Rows of recharges from before may lack what came behind them.
    pub at: Timestamp,
    /// Whether `ubscore recharge recover` has not run since. No refund is sent meanwhile.
    pub needs_recover: bool,
}

/// An external operation of recharges without its movement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostKey {
    /// Its key.
    pub key: String,
    /// EXT_DEPOSIT or EXT_WITHDRAW.
    pub op: Op,
    /// The user.
    pub user: UserId,
    /// The asset.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
}

/// Marks a database that a tool has restored or repaired. `enabled`: recharges are on; otherwise it
/// is marked only if they ever were.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn mark(config: &Address, limits: &Limits, enabled: bool) -> Result<(), Error> {
    let client = connect(config, limits).await?;
    let mark = "UPDATE engine_state SET recover_needed = TRUE, restored_at = clock_timestamp() \
                 WHERE $1 OR EXISTS (SELECT FROM channels_tb)";
    client.execute(mark, &[&enabled]).await?;
    Ok(())
}

/// Whether the mark stands, for the doctor; `false` for a schema without it.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub async fn is_marked(config: &Address, limits: &Limits) -> Result<bool, Error> {
    let client = connect(config, limits).await?;
    let known = "SELECT EXISTS (SELECT FROM pg_attribute \
                  WHERE attrelid = to_regclass('engine_state') AND attname = 'recover_needed')";
    if !client.query_one(known, &[]).await?.try_get(0)? {
        return Ok(false);
    }
    Ok(client.query_one("SELECT recover_needed FROM engine_state", &[]).await?.try_get(0)?)
}

impl Reads {
    /// The last restore, if there was one.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn restored(&self) -> Result<Option<Restored>, Error> {
        let client = self.pool.get().await?;
        let row = client.query_one("SELECT restored_at, recover_needed FROM engine_state", &[]);
        let row = row.await?;
        self.pool.note(&client).await?;
        let (at, needs_recover): (Option<Timestamp>, _) = (row.try_get(0)?, row.try_get(1)?);
        Ok(at.map(|at| Restored { at, needs_recover }))
    }

    /// The external operations of recharges without a movement, by key.
    ///
    /// # Errors
    /// As [`Reads::restored`]; a row that cannot be read.
    pub async fn lost_keys(&self) -> Result<Vec<LostKey>, Error> {
        // The index that finds them has these words.
        let keys = "SELECT x.user_id, x.asset_id, x.amount, x.op, x.idem_key::text \
                      FROM external_operations x \
                     WHERE (x.idem_key LIKE 'recharge/%' OR x.idem_key LIKE 'payment/%' \
                            OR x.idem_key LIKE 'return/%') AND x.code IS NULL \
                       AND NOT EXISTS (SELECT FROM recharge_movements m \
                                        WHERE m.movement_key = x.idem_key) \
                     ORDER BY x.order_number";
        let client = self.pool.get().await?;
        let rows = client.query(keys, &[]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let read = |row: &tokio_postgres::Row| {
            let key: String = row.try_get(4)?;
            let bad = |what: &str| Error::Row {
                table: "external_operations",
                what: format!("{key}: {what}"),
            };
            Ok(LostKey {
                op: columns::op(row, 3)?.ok_or_else(|| bad("op"))?,
                user: columns::user(row, 0)?.ok_or_else(|| bad("user_id"))?,
                asset: columns::asset(row, 1, &catalog)?.ok_or_else(|| bad("asset_id"))?.id,
                amount: columns::amount(row, 2)?.ok_or_else(|| bad("amount"))?,
                key,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Whether a key of recharges is an external operation without a movement.
    ///
    /// # Errors
    /// As [`Reads::restored`].
    pub async fn is_lost_key(&self, key: &str) -> Result<bool, Error> {
        let lost = "SELECT EXISTS (SELECT FROM external_operations x \
                      WHERE x.idem_key = $1 AND x.code IS NULL \
                        AND NOT EXISTS (SELECT FROM recharge_movements m \
                                         WHERE m.movement_key = x.idem_key))";
        let client = self.pool.get().await?;
        let row = client.query_one(lost, &[&key]).await?;
        self.pool.note(&client).await?;
        Ok(row.try_get(0)?)
    }

    /// The payments of one asset that a user was credited with. It reads the whole table.
    ///
    /// # Errors
    /// As [`Reads::lost_keys`].
    pub async fn credited_to(
        &self,
        user: UserId,
        asset: AssetId,
    ) -> Result<Vec<RechargePayment>, Error> {
        let payments = format!(
            "SELECT {PAYMENT_COLUMNS} FROM channel_payments p \
              WHERE p.user_id = $1 AND p.asset_id = $2 AND p.disposition = 40 ORDER BY p.at"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&payments, &[&user.bigint(), &asset_number(asset)]).await?;
        self.pool.note(&client).await?;
        rows.iter().map(|row| payment_from_row(row, &self.catalog())).collect()
    }
}

impl Admin {
    /// Ends the need to recover, with its audit row. The time of the restore stays.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn recovered(&self, actor: &str, detail: &str, reason: &str) -> Result<(), Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let ended = "UPDATE engine_state SET recover_needed = FALSE WHERE recover_needed";
        if transaction.execute(ended, &[]).await? > 0 {
            audit(&transaction, actor, "recover", "recharges", detail, reason).await?;
        }
        Ok(transaction.commit().await?)
    }
}
