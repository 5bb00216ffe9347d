//! Orders and payments of recharges, for their handle: committed rows, without a flight.

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::postgres::database::recharges::{PAYMENT_COLUMNS, order_by, payment_from_row};
use crate::recharge::order::Recharge;
use crate::recharge::payment::RechargePayment;
use crate::recharge::{PaymentId, RechargeId};

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
}
