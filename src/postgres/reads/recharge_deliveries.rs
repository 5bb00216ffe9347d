//! The events of a recharge with their deliveries, for operators.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio_postgres::{GenericClient, Row};

use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::postgres::flight::recharged::RechargeChange;
use crate::recharge::PaymentId;
use domain::account::UserId;

/// The most events that are shown.
const SHOWN_MAX: i64 = 100;

/// An event that the user of a recharge has, or will have.
#[derive(Clone, Debug)]
pub struct RechargeEventRow {
    /// From the counter of all events.
    pub id: i64,
    /// The time of the commit, by the service's clock.
    pub at: Timestamp,
    /// The change.
    pub change: RechargeChange,
    /// The payment, if the event is of one.
    pub payment: Option<PaymentId>,
    /// On their way to an endpoint, or ended. None: without an endpoint, and once they are deleted.
    pub deliveries: Vec<RechargeDelivery>,
}

/// The delivery of an event to one endpoint.
#[derive(Clone, Debug)]
pub struct RechargeDelivery {
    /// The endpoint.
    pub endpoint: String,
    /// PENDING, DELIVERED or DEAD.
    pub state: &'static str,
    /// Tries so far.
    pub attempts: u32,
    /// The next try; `None`: it has ended, or waits for an earlier one.
    pub next_at: Option<Timestamp>,
    /// Of the last try that failed.
    pub last_error: Option<String>,
}

/// The newest events of an order, or of a payment without one, in the order of their ids. `subject`:
/// the id of the order; without one, of the payment.
pub(super) async fn events_of(
    client: &impl GenericClient,
    user: UserId,
    subject: u128,
) -> Result<Vec<RechargeEventRow>, Error> {
    // The index of a user's events: there is none of an order's.
    let events = format!(
        "SELECT event_id, at, change, payment_id FROM recharge_events \
          WHERE user_id = $1 AND COALESCE(recharge_id, payment_id) = $2 \
          ORDER BY event_id DESC LIMIT {SHOWN_MAX}"
    );
    let rows = client.query(&events, &[&user.bigint(), &Id(subject)]).await?;
    let deliveries = "SELECT event_id, endpoint, status, attempts, next_at, last_error \
                        FROM webhook_deliveries WHERE req_id = $1 AND kind = 3 \
                       ORDER BY event_id, endpoint";
    let mut by_event: BTreeMap<i64, Vec<RechargeDelivery>> = BTreeMap::new();
    for row in &client.query(deliveries, &[&Id(subject)]).await? {
        by_event.entry(row.try_get(0)?).or_default().push(delivery_from_row(row)?);
    }
    let event = |row: &Row| {
        let id: i64 = row.try_get(0)?;
        let change = u8::try_from(row.try_get::<_, i16>(2)?).ok();
        let payment: Option<Id> = row.try_get(3)?;
        Ok(RechargeEventRow {
            id,
            at: row.try_get(1)?,
            change: change.and_then(RechargeChange::from_number).ok_or_else(|| Error::Row {
                table: "recharge_events",
                what: format!("event {id}: change"),
            })?,
            payment: payment.and_then(|Id(number)| PaymentId::new(number)),
            deliveries: by_event.remove(&id).unwrap_or_default(),
        })
    };
    rows.iter().rev().map(event).collect()
}

fn delivery_from_row(row: &Row) -> Result<RechargeDelivery, Error> {
    let bad = |what: &str| {
        let event: i64 = row.try_get(0).unwrap_or_default();
        Error::Row { table: "webhook_deliveries", what: format!("event {event}: {what}") }
    };
    let state = match row.try_get::<_, i16>(2)? {
        1 => "PENDING",
        2 => "DELIVERED",
        3 => "DEAD",
        _ => return Err(bad("status")),
    };
    Ok(RechargeDelivery {
        endpoint: row.try_get(1)?,
        state,
        attempts: u32::try_from(row.try_get::<_, i32>(3)?).map_err(|_| bad("attempts"))?,
        next_at: row.try_get(4)?,
        last_error: row.try_get(5)?,
    })
}
