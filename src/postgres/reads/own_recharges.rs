//! A user's own recharges: one by its key, a page of them, their payments and returns, and sums.
//!
//! A page begins below an id, and ids rise with time, so an order that comes meanwhile is on no
//! later page. A page looks at no more than `ROWS_PER_PAGE` rows.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::{self, Id, bigint};
use crate::postgres::database::recharges::{
    ORDER_COLUMNS, PAYMENT_COLUMNS, RETURN_COLUMNS, order_from_row, payment_from_row,
    return_from_row,
};
use crate::recharge::order::{Recharge, RechargeState};
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::RechargeReturn;
use crate::recharge::{PaymentId, RechargeId};
use domain::account::UserId;
use domain::asset::AssetId;

/// Rows that one page looks at.
const ROWS_PER_PAGE: i64 = 10_000;

/// Which of one user's orders.
#[derive(Clone, Debug)]
pub struct OwnRecharges {
    /// The owner.
    pub user: UserId,
    /// In this state.
    pub state: Option<RechargeState>,
    /// Of this channel.
    pub channel: Option<String>,
    /// Made then or later.
    pub since: Option<Timestamp>,
    /// Made earlier.
    pub until: Option<Timestamp>,
    /// With a smaller id: the cursor.
    pub before: Option<RechargeId>,
    /// At most so many.
    pub limit: u32,
}

/// A part of a list of orders.
#[derive(Clone, Debug)]
pub struct RechargePage {
    /// Newest first.
    pub orders: Vec<Recharge>,
    /// The id below which the next page begins; `None` at the end.
    pub next: Option<RechargeId>,
}

/// A step of an order's history, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeStepRow {
    /// By the service's clock.
    pub at: Timestamp,
    /// The state afterwards.
    pub state: RechargeState,
    /// Why, if the state does not say it.
    pub reason: Option<String>,
}

/// The sums of a user's recharges in one asset, smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RechargeTotal {
    /// The asset.
    pub asset: AssetId,
    /// Credited payments.
    pub recharged: u128,
    /// Out of promotions.
    pub bonus: u128,
    /// Given back to their payers, by us or by the channel, less what it has given back again.
    pub returned: u128,
    /// The number of credited payments.
    pub count: u64,
}

impl Reads {
    /// The order of a user's idempotency key.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn recharge_of_key(
        &self,
        user: UserId,
        idem_key: &str,
    ) -> Result<Option<Recharge>, Error> {
        let order = format!(
            "SELECT {ORDER_COLUMNS} FROM recharges_tb r WHERE r.user_id = $1 AND r.idem_key = $2"
        );
        let client = self.pool.get().await?;
        let row = client.query_opt(&order, &[&user.bigint(), &idem_key]).await?;
        self.pool.note(&client).await?;
        row.map(|row| order_from_row(&row, &self.catalog())).transpose()
    }

    /// The number of open orders of all users, up to `max`.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn open_recharges(&self, max: u64) -> Result<u64, Error> {
        let open = "SELECT count(*) FROM (\
                      SELECT FROM recharges_tb WHERE state IN (0, 10) LIMIT $1) AS open";
        let client = self.pool.get().await?;
        let row = client.query_one(open, &[&bigint(max.min(i64::MAX as u64))]).await?;
        columns::count(&row, 0, "recharges_tb")
    }

    /// A page of a user's orders.
    ///
    /// # Errors
    /// As [`Reads::recharge_of_key`].
    pub async fn own_recharges(&self, filter: &OwnRecharges) -> Result<RechargePage, Error> {
        let OwnRecharges { user, state, channel, since, until, before, limit } = filter;
        let user = user.bigint();
        let before = Id(before.map_or(u128::MAX, RechargeId::number));
        let state = state.map(RechargeState::number);
        let asked = usize::try_from(*limit).unwrap_or(usize::MAX);
        let more = i64::from(*limit) + 1;
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&user, &before, &more];
        let mut parts = vec!["TRUE".to_owned()];
        let mut part = |condition: &str, value| {
            values.push(value);
            parts.push(format!("{condition} ${}", values.len()));
        };
        if let Some(state) = &state {
            part("r.state =", state);
        }
        if let Some(channel) = channel {
            part("r.channel =", channel);
        }
        if let Some(since) = since {
            part("r.created_at >=", since);
        }
        if let Some(until) = until {
            part("r.created_at <", until);
        }
        let newest = format!(
            "SELECT * FROM recharges_tb WHERE user_id = $1 AND recharge_id < $2 \
              ORDER BY recharge_id DESC LIMIT {ROWS_PER_PAGE}"
        );
        let page = format!(
            "SELECT {ORDER_COLUMNS} FROM ({newest}) AS r WHERE {} \
              ORDER BY r.recharge_id DESC LIMIT $3",
            parts.join(" AND ")
        );
        let client = self.pool.get().await?;
        let rows = client.query(&page, &values).await?;
        let catalog = self.catalog();
        let orders = rows.iter().map(|row| order_from_row(row, &catalog));
        let mut orders = orders.collect::<Result<Vec<Recharge>, Error>>()?;
        let next = match orders.len() > asked {
            true => {
                orders.truncate(asked);
                orders.last().map(|last| last.id)
            }
            // The rows that were looked at may not be all.
            false => {
                let last = "SELECT recharge_id FROM recharges_tb \
                             WHERE user_id = $1 AND recharge_id < $2 \
                             ORDER BY recharge_id DESC OFFSET $3 LIMIT 1";
                let last = client.query_opt(last, &[&user, &before, &(ROWS_PER_PAGE - 1)]).await?;
                let last = last.map(|row| row.try_get::<_, Id>(0)).transpose()?;
                last.and_then(|Id(number)| RechargeId::new(number))
            }
        };
        self.pool.note(&client).await?;
        Ok(RechargePage { orders, next })
    }

    /// The payments of orders, in the order in which they came.
    ///
    /// # Errors
    /// As [`Reads::recharge_of_key`].
    pub async fn payments_of(&self, orders: &[RechargeId]) -> Result<Vec<RechargePayment>, Error> {
        if orders.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Id> = orders.iter().map(|id| Id(id.number())).collect();
        let rows = format!(
            "SELECT {PAYMENT_COLUMNS} FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL \
             (SELECT * FROM channel_payments WHERE recharge_id = a.id OFFSET 0) AS p \
              ORDER BY p.recharge_id, p.ordinal"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&rows, &[&ids]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        rows.iter().map(|row| payment_from_row(row, &catalog)).collect()
    }

    /// The returns of payments that were asked for, oldest first: no takings of the channel.
    ///
    /// # Errors
    /// As [`Reads::recharge_of_key`].
    pub async fn returns_of(&self, payments: &[PaymentId]) -> Result<Vec<RechargeReturn>, Error> {
        if payments.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<Id> = payments.iter().map(|id| Id(id.number())).collect();
        let rows = format!(
            "SELECT {RETURN_COLUMNS} FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL \
             (SELECT * FROM recharge_returns WHERE payment_id = a.id OFFSET 0) AS b \
              WHERE b.kind = 1 ORDER BY created_at, return_id"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&rows, &[&ids]).await?;
        self.pool.note(&client).await?;
        rows.iter().map(return_from_row).collect()
    }

    /// The history of an order.
    ///
    /// # Errors
    /// As [`Reads::recharge_of_key`].
    pub async fn recharge_steps(&self, id: RechargeId) -> Result<Vec<RechargeStepRow>, Error> {
        let steps = "SELECT s.at, s.state, s.reason FROM recharges_tb r \
                      CROSS JOIN unnest(r.history) WITH ORDINALITY \
                              AS s (at, state, actor, reason, place) \
                      WHERE r.recharge_id = $1 ORDER BY s.place";
        let client = self.pool.get().await?;
        let rows = client.query(steps, &[&Id(id.number())]).await?;
        self.pool.note(&client).await?;
        let step = |row: &Row| {
            let number: i16 = row.try_get(1)?;
            let state = RechargeState::from_number(number).ok_or_else(|| Error::Row {
                table: "recharges_tb",
                what: format!("{id}: state {number} in its history"),
            })?;
            Ok(RechargeStepRow { at: row.try_get(0)?, state, reason: row.try_get(2)? })
        };
        rows.iter().map(step).collect()
    }

    /// The sums of a user's recharges, by asset: of the payments that the user was told of.
    ///
    /// # Errors
    /// As [`Reads::recharge_of_key`].
    pub async fn recharge_totals(&self, user: UserId) -> Result<Vec<RechargeTotal>, Error> {
        // The changes: 2 PAID, 5 PAYMENT_CREDITED, 6 RETURNED, 8 TAKEN. Returns count as they are
        // recorded, by the measure of their payment, and credits by their movements: a payment has
        // an event for each of its returns.
        let sums = "SELECT p.asset_id, COALESCE(sum(c.units), 0)::text, \
                COALESCE(sum(r.bonus), 0)::text, COALESCE(sum(b.units), 0)::text, \
                COALESCE(sum(c.credits), 0)::bigint \
           FROM (SELECT payment_id, \
                        (array_agg(recharge_id) FILTER (WHERE change = 2))[1] AS paid \
                   FROM recharge_events \
                  WHERE user_id = $1 AND change IN (2, 5, 6, 8) GROUP BY payment_id) AS e \
          CROSS JOIN LATERAL (SELECT * FROM channel_payments \
                               WHERE payment_id = e.payment_id OFFSET 0) AS p \
           LEFT JOIN LATERAL (SELECT bonus FROM recharges_tb \
                               WHERE recharge_id = e.paid AND bonus_state = 3 OFFSET 0) \
                AS r ON TRUE \
          CROSS JOIN LATERAL (\
                SELECT sum(amount) AS units, count(*) AS credits FROM recharge_movements \
                 WHERE payment_id = p.payment_id AND kind = 1 AND credit = 'user/' || $1) AS c \
          CROSS JOIN LATERAL (\
                SELECT sum(CASE kind WHEN 3 THEN -minor_units ELSE minor_units END) \
                       * div(p.amount, p.minor_units) AS units FROM recharge_returns \
                 WHERE payment_id = p.payment_id AND state = 40) AS b \
          GROUP BY p.asset_id ORDER BY p.asset_id";
        let client = self.pool.get().await?;
        let rows = client.query(sums, &[&user.bigint()]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let total = |row: &Row| {
            let bad = |what: &str| Error::Row { table: "channel_payments", what: what.to_owned() };
            let asset = columns::asset(row, 0, &catalog)?.ok_or_else(|| bad("asset_id"))?;
            let sum = |column| {
                let text: String = row.try_get(column)?;
                text.parse::<u128>().map_err(|_| bad("a sum"))
            };
            Ok(RechargeTotal {
                asset: asset.id,
                recharged: sum(1)?,
                bonus: sum(2)?,
                returned: sum(3)?,
                count: columns::count(row, 4, "channel_payments")?,
            })
        };
        rows.iter().map(total).collect()
    }
}
