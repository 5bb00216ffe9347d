//! Operators make an account special, and end that.

use super::{Admin, audit};
use crate::postgres::Error;
use crate::postgres::columns::asset_number;
use domain::account::UserId;
use domain::asset::AssetId;

/// A change of a special account.
#[derive(Clone, Copy, Debug)]
pub struct SpecialChange<'a> {
    /// The user.
    pub user: UserId,
    /// The asset.
    pub asset: AssetId,
    /// The asset's symbol, for the audit row.
    pub symbol: &'a str,
    /// Whether it is to be special.
    pub special: bool,
    /// The author.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

/// The result of a [`SpecialChange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialChanged {
    /// Changed now.
    Changed,
    /// It was so before.
    Same,
    /// Nothing was changed: the user has no account on Funding.
    Unknown,
    /// Nothing was changed: the balance is below zero.
    Negative,
    /// Nothing was changed: a transaction that is not over books it as special.
    Named,
}

impl Admin {
    /// Changes whether a balance of Funding is special. A change gets an audit row.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded; the outcome may be
    /// unknown, and a repeat is harmless.
    pub async fn change_special(&self, change: SpecialChange<'_>) -> Result<SpecialChanged, Error> {
        let SpecialChange { user, asset, symbol, special, actor, reason } = change;
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let function = if special { "special_set" } else { "special_unset" };
        let statement = format!("SELECT {function}($1, $2)");
        let row =
            transaction.query_one(&statement, &[&user.bigint(), &asset_number(asset)]).await?;
        let changed = match row.try_get::<_, &str>(0)? {
            "changed" => SpecialChanged::Changed,
            "same" => SpecialChanged::Same,
            "unknown" => SpecialChanged::Unknown,
            "negative" => SpecialChanged::Negative,
            "named" => SpecialChanged::Named,
            other => {
                let what = format!("{function} answers {other}");
                return Err(Error::Row { table: "balances_tb", what });
            }
        };
        if changed == SpecialChanged::Changed {
            let (subject, detail) =
                (format!("{user} {symbol}"), if special { "SPECIAL" } else { "PLAIN" });
            audit(&transaction, actor, "account special", &subject, detail, reason).await?;
        }
        transaction.commit().await?;
        Ok(changed)
    }
}
