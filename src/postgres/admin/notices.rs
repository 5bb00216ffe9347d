//! Callbacks of payment channels as they came, for operators. They hold the channel's words, which
//! may name the payer: no log has them, and they are deleted in time.

use jiff::Timestamp;

use super::Admin;
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::recharge::PaymentId;

/// The most that are kept of one payment.
const OF_PAYMENT_MAX: i64 = 8;
/// The most that are kept at all. Beyond them the oldest go.
const KEPT_MAX: i64 = 10_000;

/// A callback to keep. It has no `Debug`: no log may have it.
pub struct NewNotice {
    /// By the service's clock.
    pub at: Timestamp,
    /// The payment that it is about; it may have no row.
    pub payment: PaymentId,
    /// The channel's name.
    pub channel: String,
    /// The channel's number of the payment.
    pub trade_no: String,
    /// HELD, MISSING or CONTRADICTION.
    pub outcome: &'static str,
    /// The headers of its signature, each `name: value`.
    pub head: Vec<String>,
    /// As it was signed.
    pub body: Vec<u8>,
}

impl Admin {
    /// Keeps a callback, if its payment has room and not the same one.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn keep_notice(&self, notice: &NewNotice) -> Result<(), Error> {
        let NewNotice { at, payment, channel, trade_no, outcome, head, body } = notice;
        let keep = format!(
            "INSERT INTO channel_notices (at, payment_id, channel, trade_no, outcome, head, body) \
             SELECT $1, $2, $3, $4, $5, $6, $7 \
              WHERE (SELECT count(*) FROM channel_notices WHERE payment_id = $2) < {OF_PAYMENT_MAX} \
                AND NOT EXISTS (SELECT FROM channel_notices WHERE payment_id = $2 AND body = $7)"
        );
        let oldest = format!(
            "DELETE FROM channel_notices WHERE notice_id <= \
             (SELECT notice_id FROM channel_notices ORDER BY notice_id DESC \
              OFFSET {KEPT_MAX} LIMIT 1)"
        );
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let id = Id(payment.number());
        transaction.execute(&keep, &[at, &id, channel, trade_no, outcome, head, body]).await?;
        transaction.execute(&oldest, &[]).await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes the callbacks from before a time. Returns how many.
    ///
    /// # Errors
    /// As [`Admin::keep_notice`].
    pub async fn forget_notices(&self, before: Timestamp) -> Result<u64, Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let forget = "DELETE FROM channel_notices WHERE at < $1";
        let gone = transaction.execute(forget, &[&before]).await?;
        transaction.commit().await?;
        Ok(gone)
    }
}
