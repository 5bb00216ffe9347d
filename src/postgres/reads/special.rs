//! Special accounts: balances of Funding that may be below zero.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns;
use domain::account::UserId;
use domain::asset::AssetId;

/// The special accounts as they were read last.
#[derive(Clone, Default)]
pub(super) struct KnownSpecial {
    set: Arc<ArcSwap<BTreeSet<(UserId, AssetId)>>>,
    /// Held from a read to its end, so that no older one replaces it.
    reading: Arc<tokio::sync::Mutex<()>>,
}

/// A special account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpecialAccount {
    /// The user.
    pub user: UserId,
    /// The asset.
    pub asset: AssetId,
    /// The available balance, smallest units.
    pub available: i128,
}

impl Reads {
    /// Whether the balance of a user on Funding was special when it was read last.
    pub fn is_special(&self, user: UserId, asset: AssetId) -> bool {
        self.special.set.load().contains(&(user, asset))
    }

    /// Reads all special accounts, by user and asset.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn load_special(&self) -> Result<Vec<SpecialAccount>, Error> {
        let _one = self.special.reading.lock().await;
        let client = self.pool.get().await?;
        let all = "SELECT user_id, asset_id, available FROM balances_tb \
                    WHERE special ORDER BY user_id, asset_id";
        let mut found = Vec::new();
        for row in client.query(all, &[]).await? {
            let bad = |what: &str| Error::Row { table: "balances_tb", what: what.to_owned() };
            let user = columns::user(&row, 0)?.ok_or_else(|| bad("user_id"))?;
            let number: i32 = row.try_get(1)?;
            let asset = u32::try_from(number).map_err(|_| bad("asset_id"))?;
            let available = columns::signed(&row, 2).ok_or_else(|| bad("available"))?;
            found.push(SpecialAccount { user, asset: AssetId(asset), available });
        }
        self.pool.note(&client).await?;
        self.special.set.store(Arc::new(found.iter().map(|row| (row.user, row.asset)).collect()));
        Ok(found)
    }
}
