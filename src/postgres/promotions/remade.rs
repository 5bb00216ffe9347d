//! Behind a restore: a lost order is made again with the bonus that it had.
//!
//! A restore may also have lost money that was put into its promotion. The part that lacks is put
//! in here, under a key of its own: the promotion has given that bonus, or has promised it.

use super::{COLUMNS, FUNDED, Promotions, promotion_from_row};
use crate::postgres::admin::audit;
use crate::postgres::columns::{amount_number, asset_number, bigint};
use crate::postgres::database::recharges::{OrderRow, order_by};
use crate::postgres::{Error, sqlstate};
use crate::recharge::RechargeId;
use crate::recharge::movement;
use crate::recharge::order::{BonusState, Recharge, RechargeState, RechargeStep};
use domain::amount::Amount;

/// The end of an order that is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remade {
    /// It is made.
    Made {
        /// The part of its bonus that its promotion did not have, and that was put in.
        lacked: Option<Amount>,
    },
    /// It is here already, and nothing was written.
    Found,
    /// Its promotion is not here, or is one of another asset, and nothing was written.
    NoPromotion,
}

/// The idempotency key of money that a recovery puts into a promotion, for one order.
pub fn recovered_key(id: RechargeId) -> String {
    format!("recovered-{}", id.ulid())
}

impl Promotions {
    /// Makes a lost order again as PAYING, with its bonus RESERVED out of the money of its
    /// promotion, in one transaction. `by`: actor and reason.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown; the same call again tells it.
    pub async fn remake(
        &self,
        lost: &Recharge,
        (actor, reason): (&str, &str),
    ) -> Result<Remade, Error> {
        let (Some(name), Some(bonus)) = (lost.promotion.as_deref(), Amount::new(lost.bonus)) else {
            return Ok(Remade::NoPromotion);
        };
        let catalog = self.reads.catalog();
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        if order_by(&*transaction, lost.id, &catalog).await?.is_some() {
            return Ok(Remade::Found);
        }
        let locked = format!("SELECT {COLUMNS} FROM promotions_tb WHERE name = $1 FOR UPDATE");
        let Some(row) = transaction.query_opt(&locked, &[&name]).await? else {
            return Ok(Remade::NoPromotion);
        };
        let promotion = promotion_from_row(&row, &catalog)?;
        if promotion.asset != lost.asset {
            return Ok(Remade::NoPromotion);
        }
        let lacked = Amount::new(bonus.units().saturating_sub(promotion.available));
        if let Some(amount) = lacked {
            let (key, account) = (recovered_key(lost.id), format!("promotion/{name}"));
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [
                &amount_number(amount),
                &asset_number(promotion.asset),
                &account,
                &movement::funded(&key).expect("a ULID is short"),
            ];
            transaction.execute(FUNDED, &values).await?;
            let detail = format!("{} units, key {key}", amount.units());
            audit(&transaction, actor, "promotion fund", name, &detail, reason).await?;
        }
        let left = promotion.available.saturating_sub(bonus.units());
        let put = "UPDATE promotions_tb SET available = $2, updated_at = clock_timestamp() \
                    WHERE name = $1";
        transaction.execute(put, &[&name, &bigint(left)]).await?;
        let (state, bonus_state) = (RechargeState::Paying, Some(BonusState::Reserved));
        let order = Recharge { state, bonus_state, version: 1, ..lost.clone() };
        let step = |state| RechargeStep { state, actor: actor.to_owned(), reason: None };
        let steps = [RechargeState::Init, RechargeState::Paying].map(step);
        let row = OrderRow::of(&order, &steps, order.updated_at);
        let insert = "INSERT INTO recharges_tb SELECT ($1::recharges_tb).*";
        match transaction.execute(insert, &[&row]).await {
            Ok(_) => {}
            Err(error) if sqlstate(&error).as_deref() == Some("23505") => return Ok(Remade::Found),
            Err(error) => return Err(error.into()),
        }
        transaction.commit().await?;
        Ok(Remade::Made { lacked })
    }
}
