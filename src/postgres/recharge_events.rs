//! Events of recharges: each entry of the journal that a user is told, as a stream that follows
//! gets it from its flight, and as it is read later.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::{Client, Row};

use super::Error;
use super::columns::{self, Id, bigint};
use super::database::recharges::{
    ORDER_COLUMNS, PAYMENT_COLUMNS, order_from_row, payment_from_row,
};
use super::flight::Flight;
use super::flight::recharged::{RechargeChange, RechargeNotice};
use crate::recharge::order::{Recharge, RechargeState};
use crate::recharge::payment::{HeldCause, RechargePayment};
use domain::account::UserId;
use domain::asset::Catalog;

const TABLE: &str = "recharge_events";

/// The columns of an event, in the order of [`Named::of`].
const COLUMNS: &str = "event_id, user_id, at, recharge_id, payment_id, change, state, cause";

/// A change of a recharge, as its user is told. The order and the payment may be from a later time:
/// only their parts that never change are told.
#[derive(Clone, Debug)]
pub struct RechargeEvent {
    /// From the counter of all events. It rises with each event of a user's flights.
    pub id: i64,
    /// The time of the commit, by the process's clock.
    pub at: Timestamp,
    /// The user.
    pub user: UserId,
    /// The change.
    pub change: RechargeChange,
    /// Where the order stood then; `None`: there is no order.
    pub state: Option<RechargeState>,
    /// Why the payment was held, of such an event.
    pub cause: Option<HeldCause>,
    /// The order, if there is one.
    pub order: Option<Recharge>,
    /// The payment, if the event is of one.
    pub payment: Option<RechargePayment>,
}

/// A row of `recharge_events`, as a flight writes it.
#[derive(Debug, ToSql)]
#[postgres(name = "recharge_events")]
pub(super) struct EventRow {
    event_id: i64,
    user_id: i64,
    at: Timestamp,
    recharge_id: Option<Id>,
    payment_id: Option<Id>,
    change: i16,
    state: Option<i16>,
    cause: Option<i16>,
}

/// The notices of a flight with the ids of their events, behind those of its transfers.
fn numbered(flight: &Flight) -> impl Iterator<Item = (i64, &RechargeNotice)> {
    let first = bigint(flight.event_first) + flight.events().count() as i64;
    (first..).zip(&flight.recharged.notices)
}

/// The rows of a flight's events.
pub(super) fn rows_of(flight: &Flight) -> Vec<EventRow> {
    let named = |number: u128| (number != 0).then_some(Id(number));
    let row = |(event_id, notice): (i64, &RechargeNotice)| EventRow {
        event_id,
        user_id: notice.user.bigint(),
        at: flight.at,
        recharge_id: named(notice.recharge),
        payment_id: named(notice.payment),
        change: notice.change as i16,
        state: notice.state.map(RechargeState::number),
        cause: notice.cause.map(HeldCause::number),
    };
    numbered(flight).map(row).collect()
}

/// The events of a committed flight, in the order of their ids. The orders and payments that they
/// are about are among its rows, or beside them.
pub fn events_of(flight: &Flight) -> impl Iterator<Item = RechargeEvent> {
    let rows = &flight.recharged;
    numbered(flight).map(|(id, notice)| {
        let orders = rows.orders.iter().map(|(order, _)| order).chain(&rows.beside.orders);
        let order = orders.into_iter().find(|order| order.id.number() == notice.recharge);
        let payments = rows.payments.iter().chain(&rows.beside.payments);
        let payment = payments.into_iter().find(|row| row.id.number() == notice.payment);
        debug_assert_eq!(order.is_some(), notice.recharge != 0, "its flight has the order");
        debug_assert_eq!(payment.is_some(), notice.payment != 0, "its flight has the payment");
        let RechargeNotice { change, user, state, cause, .. } = *notice;
        let (order, payment) = (order.cloned(), payment.cloned());
        RechargeEvent { id, at: flight.at, user, change, state, cause, order, payment }
    })
}

/// An event as it is read, with the names of its subjects.
struct Named {
    event: RechargeEvent,
    recharge: Option<Id>,
    payment: Option<Id>,
}

impl Named {
    /// Reads [`COLUMNS`].
    fn of(row: &Row) -> Result<Named, Error> {
        let id: i64 = row.try_get(0)?;
        let bad = |what: &str| Error::Row { table: TABLE, what: format!("event {id}: {what}") };
        let (state, cause): (Option<i16>, Option<i16>) = (row.try_get(6)?, row.try_get(7)?);
        let state =
            state.map(|number| RechargeState::from_number(number).ok_or_else(|| bad("state")));
        let cause = cause.map(|number| HeldCause::from_number(number).ok_or_else(|| bad("cause")));
        let change = u8::try_from(row.try_get::<_, i16>(5)?).ok();
        let change = change.and_then(RechargeChange::from_number);
        let event = RechargeEvent {
            id,
            at: row.try_get(2)?,
            user: columns::user(row, 1)?.ok_or_else(|| bad("user_id"))?,
            change: change.ok_or_else(|| bad("change"))?,
            state: state.transpose()?,
            cause: cause.transpose()?,
            order: None,
            payment: None,
        };
        Ok(Named { event, recharge: row.try_get(3)?, payment: row.try_get(4)? })
    }
}

/// The events with these ids, in the order of their ids, each with its order and its payment.
///
/// # Errors
/// [`Error`]: PostgreSQL is away, or a row cannot be read or is missing.
pub(super) async fn events_by(
    client: &Client,
    ids: &[i64],
    catalog: &Catalog,
) -> Result<Vec<RechargeEvent>, Error> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    // By its key, row after row: the statistics say nothing of the newest rows.
    let events = format!(
        "SELECT {COLUMNS} FROM unnest($1::bigint[]) AS a (id) CROSS JOIN LATERAL \
         (SELECT * FROM recharge_events WHERE event_id = a.id OFFSET 0) AS e ORDER BY event_id"
    );
    let rows = client.query(&events, &[&ids]).await?;
    let named = rows.iter().map(Named::of).collect::<Result<Vec<Named>, Error>>()?;
    let orders: Vec<Id> = named.iter().filter_map(|named| named.recharge).collect();
    let payments: Vec<Id> = named.iter().filter_map(|named| named.payment).collect();
    let rows = format!(
        "SELECT {ORDER_COLUMNS} FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL \
         (SELECT * FROM recharges_tb WHERE recharge_id = a.id OFFSET 0) AS r"
    );
    let mut orders_by: BTreeMap<u128, Recharge> = BTreeMap::new();
    if !orders.is_empty() {
        for row in client.query(&rows, &[&orders]).await? {
            let order = order_from_row(&row, catalog)?;
            orders_by.insert(order.id.number(), order);
        }
    }
    let rows = format!(
        "SELECT {PAYMENT_COLUMNS} FROM unnest($1::uuid[]) AS a (id) CROSS JOIN LATERAL \
         (SELECT * FROM channel_payments WHERE payment_id = a.id OFFSET 0) AS p"
    );
    let mut payments_by: BTreeMap<u128, RechargePayment> = BTreeMap::new();
    if !payments.is_empty() {
        for row in client.query(&rows, &[&payments]).await? {
            let payment = payment_from_row(&row, catalog)?;
            payments_by.insert(payment.id.number(), payment);
        }
    }
    let whole = |Named { event, recharge, payment }: Named| {
        let gone = |what: &str| {
            let what = format!("the {what} of event {} is gone", event.id);
            Error::Row { table: TABLE, what }
        };
        let order = recharge.map(|Id(id)| orders_by.get(&id).ok_or_else(|| gone("order")));
        let paid = payment.map(|Id(id)| payments_by.get(&id).ok_or_else(|| gone("payment")));
        let (order, payment) = (order.transpose()?.cloned(), paid.transpose()?.cloned());
        Ok(RechargeEvent { order, payment, ..event })
    };
    named.into_iter().map(whole).collect()
}
