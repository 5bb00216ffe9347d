//! The backlog of recharges, for metrics and alerts: a few indexed reads with a bound.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::Reads;
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::recharge::payment::HeldCause;
use crate::recharge::{RechargeId, ReturnId};

/// The most rows that are counted; with more, there are at least so many.
const COUNTED_MAX: i64 = 10_000;

/// The `kind` of a delivery of an event about a recharge.
const OF_RECHARGE: i16 = 3;

/// The times that the backlog is measured by.
#[derive(Clone, Copy, Debug)]
pub struct BacklogSince {
    /// An order that is PAYING since before is overdue.
    pub overdue: Timestamp,
    /// A return, or a close behind the end of payment, from before is stuck.
    pub stuck: Timestamp,
    /// A transfer to Spot that follows from before is failing.
    pub follow: Timestamp,
}

/// How far recharges are behind.
#[derive(Clone, Debug, Default)]
pub struct RechargeBacklog {
    /// Orders that are overdue.
    pub overdue: u64,
    /// HELD payments by cause.
    pub held: Vec<(HeldCause, u64)>,
    /// Receivables of which a part is owed.
    pub receivables: u64,
    /// Credited orders with a transfer to Spot that does not end.
    pub following: u64,
    /// Events that are not delivered, among the oldest undelivered ones of all kinds.
    pub events_pending: u64,
    /// Events that an endpoint did not take, among the oldest of all kinds.
    pub dead_letters: u64,
    /// The oldest order that does not close, if one is stuck.
    pub stuck_order: Option<RechargeId>,
    /// The oldest return that does not end, if one is stuck.
    pub stuck_return: Option<ReturnId>,
}

impl Reads {
    /// Measures the backlog.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn recharge_backlog(&self, since: BacklogSince) -> Result<RechargeBacklog, Error> {
        let BacklogSince { overdue, stuck, follow } = since;
        let client = self.pool.get().await?;
        let orders = format!(
            "SELECT (SELECT count(*) FROM (SELECT FROM recharges_tb WHERE state IN (0, 10) \
                       AND state = 10 AND created_at < $1 LIMIT {COUNTED_MAX}) AS late), \
                    (SELECT count(*) FROM (SELECT FROM recharges_tb WHERE next_at IS NOT NULL \
                       AND state = 40 AND paid_at < $2 LIMIT {COUNTED_MAX}) AS going), \
                    (SELECT recharge_id FROM recharges_tb WHERE state IN (0, 10) AND held = 0 \
                       AND expires_at < $3 ORDER BY expires_at LIMIT 1), \
                    (SELECT return_id FROM recharge_returns WHERE next_at IS NOT NULL \
                       AND state IN (0, 10, 20) AND created_at < $3 ORDER BY created_at LIMIT 1), \
                    (SELECT count(*) FROM (SELECT FROM receivables_tb \
                       WHERE recovered + written_off < amount LIMIT {COUNTED_MAX}) AS owed)"
        );
        let row = client.query_one(&orders, &[&overdue, &follow, &stuck]).await?;
        let stuck_order: Option<Id> = row.try_get(2)?;
        let stuck_return: Option<Id> = row.try_get(3)?;
        let held = format!(
            "SELECT cause, count(*) FROM (SELECT cause FROM channel_payments \
               WHERE disposition IN (10, 20) AND disposition = 10 LIMIT {COUNTED_MAX}) AS held \
              GROUP BY cause"
        );
        let causes = client.query(&held, &[]).await?;
        let deliveries = format!(
            "SELECT (SELECT count(*) FILTER (WHERE kind = $1) FROM (SELECT kind \
                       FROM webhook_deliveries WHERE ended_at IS NULL \
                       ORDER BY event_id LIMIT {COUNTED_MAX}) AS waits), \
                    (SELECT count(*) FILTER (WHERE kind = $1) FROM (SELECT kind \
                       FROM webhook_deliveries WHERE status = 3 \
                       ORDER BY event_id LIMIT {COUNTED_MAX}) AS dead)"
        );
        let told = client.query_one(&deliveries, &[&OF_RECHARGE]).await?;
        self.pool.note(&client).await?;
        Ok(RechargeBacklog {
            overdue: count(&row, 0)?,
            held: held_from_rows(&causes)?,
            receivables: count(&row, 4)?,
            following: count(&row, 1)?,
            events_pending: count(&told, 0)?,
            dead_letters: count(&told, 1)?,
            stuck_order: stuck_order.and_then(|Id(number)| RechargeId::new(number)),
            stuck_return: stuck_return.and_then(|Id(number)| ReturnId::new(number)),
        })
    }
}

fn count(row: &Row, column: usize) -> Result<u64, Error> {
    let count: i64 = row.try_get(column)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// The causes with their numbers. A cause that a newer version wrote is left out.
fn held_from_rows(rows: &[Row]) -> Result<Vec<(HeldCause, u64)>, Error> {
    let mut held = Vec::new();
    for row in rows {
        let cause: Option<i16> = row.try_get(0)?;
        if let Some(cause) = cause.and_then(HeldCause::from_number) {
            held.push((cause, count(row, 1)?));
        }
    }
    Ok(held)
}
