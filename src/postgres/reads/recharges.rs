//! Orders and payments of recharges, for their handle: committed rows, without a flight.

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::postgres::database::receivables::receivable_by;
use crate::postgres::database::recharges::{
    PAYMENT_COLUMNS, RETURN_COLUMNS, order_by, payment_from_row, return_by, return_from_row,
};
use crate::recharge::order::Recharge;
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::{Receivable, RechargeReturn};
use crate::recharge::{PaymentId, RechargeId, ReturnId};

impl Reads {
    /// An order.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn recharge(&self, id: RechargeId) -> Result<Option<Recharge>, Error> {
        let client = self.pool.get().await?;
        let order = order_by(&**client, id, &self.catalog()).await?;
        self.pool.note(&client).await?;
        Ok(order)
    }

    /// The payment of a channel's own number.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn channel_payment(
        &self,
        channel: &str,
        trade_no: &str,
    ) -> Result<Option<RechargePayment>, Error> {
        let payment = format!(
            "SELECT {PAYMENT_COLUMNS} FROM channel_payments p \
              WHERE p.channel = $1 AND p.trade_no = $2"
        );
        let client = self.pool.get().await?;
        let row = client.query_opt(&payment, &[&channel, &trade_no]).await?;
        self.pool.note(&client).await?;
        row.map(|row| payment_from_row(&row, &self.catalog())).transpose()
    }

    /// A payment by its id.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn payment(&self, id: PaymentId) -> Result<Option<RechargePayment>, Error> {
        let payment =
            format!("SELECT {PAYMENT_COLUMNS} FROM channel_payments p WHERE p.payment_id = $1");
        let client = self.pool.get().await?;
        let row = client.query_opt(&payment, &[&Id(id.number())]).await?;
        self.pool.note(&client).await?;
        row.map(|row| payment_from_row(&row, &self.catalog())).transpose()
    }

    /// A return by its id.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn recharge_return(&self, id: ReturnId) -> Result<Option<RechargeReturn>, Error> {
        let client = self.pool.get().await?;
        let row = return_by(&**client, id).await?;
        self.pool.note(&client).await?;
        Ok(row)
    }

    /// The returns of a payment, the oldest first.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn recharge_returns(&self, payment: PaymentId) -> Result<Vec<RechargeReturn>, Error> {
        let rows = format!(
            "SELECT {RETURN_COLUMNS} FROM recharge_returns WHERE payment_id = $1 \
              ORDER BY created_at, return_id"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&rows, &[&Id(payment.number())]).await?;
        self.pool.note(&client).await?;
        rows.iter().map(return_from_row).collect()
    }

    /// The receivable of a return.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn receivable(&self, id: ReturnId) -> Result<Option<Receivable>, Error> {
        let client = self.pool.get().await?;
        let row = receivable_by(&**client, id, &self.catalog()).await?;
        self.pool.note(&client).await?;
        Ok(row)
    }

    /// Whether an order has this number of its channel.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn has_reference(&self, channel: &str, reference: &str) -> Result<bool, Error> {
        let order = "SELECT EXISTS (SELECT FROM recharges_tb \
                                     WHERE reference = $2 AND channel = $1)";
        let client = self.pool.get().await?;
        let found = client.query_one(order, &[&channel, &reference]).await?.try_get(0)?;
        self.pool.note(&client).await?;
        Ok(found)
    }
}
