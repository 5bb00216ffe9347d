//! Callbacks of payment channels as they came, for operators.

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::recharge::PaymentId;

/// The most that are shown.
const SHOWN_MAX: i64 = 100;

/// A kept callback without its words.
#[derive(Clone, Debug)]
pub struct NoticeHead {
    /// Its number.
    pub id: i64,
    /// When it came, by the service's clock.
    pub at: Timestamp,
    /// The payment that it is about; it may have no row.
    pub payment: Option<PaymentId>,
    /// The channel's name.
    pub channel: String,
    /// The channel's number of the payment.
    pub trade_no: String,
    /// HELD, MISSING or CONTRADICTION.
    pub outcome: String,
    /// The length of its body.
    pub bytes: u32,
}

/// A kept callback. It has no `Debug`: no log may have it.
pub struct KeptNotice {
    /// All but its words.
    pub head: NoticeHead,
    /// The headers of its signature, each `name: value`.
    pub headers: Vec<String>,
    /// As it was signed.
    pub body: Vec<u8>,
}

/// The columns of a callback, in the order of [`head_from_row`].
const COLUMNS: &str = "notice_id, at, payment_id, channel, trade_no, outcome, octet_length(body)";

impl Reads {
    /// The kept callbacks of a payment, with their words, oldest first.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn kept_notices(&self, payment: PaymentId) -> Result<Vec<KeptNotice>, Error> {
        let all = format!(
            "SELECT {COLUMNS}, head, body FROM channel_notices WHERE payment_id = $1 \
              ORDER BY notice_id LIMIT {SHOWN_MAX}"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&all, &[&Id(payment.number())]).await?;
        self.pool.note(&client).await?;
        let kept = |row: &Row| {
            let (headers, body) = (row.try_get(7)?, row.try_get(8)?);
            Ok(KeptNotice { head: head_from_row(row)?, headers, body })
        };
        rows.iter().map(kept).collect()
    }
}

/// The kept callbacks of payments, oldest first.
pub(super) async fn of_payments(
    client: &impl GenericClient,
    payments: &[Id],
) -> Result<Vec<NoticeHead>, Error> {
    let all = format!(
        "SELECT {COLUMNS} FROM channel_notices WHERE payment_id = ANY ($1) \
          ORDER BY notice_id LIMIT {SHOWN_MAX}"
    );
    let rows = client.query(&all, &[&payments]).await?;
    rows.iter().map(head_from_row).collect()
}

/// Reads [`COLUMNS`].
fn head_from_row(row: &Row) -> Result<NoticeHead, Error> {
    let Id(payment) = row.try_get(2)?;
    let bytes: i32 = row.try_get(6)?;
    Ok(NoticeHead {
        id: row.try_get(0)?,
        at: row.try_get(1)?,
        payment: PaymentId::new(payment),
        channel: row.try_get(3)?,
        trade_no: row.try_get(4)?,
        outcome: row.try_get(5)?,
        bytes: u32::try_from(bytes).unwrap_or(0),
    })
}
