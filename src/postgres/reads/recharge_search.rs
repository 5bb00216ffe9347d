//! Recharges for operators: orders and payments by any known detail, and one order with everything
//! that belongs to it. A page is bounded, and each search has its index.

use jiff::Timestamp;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::notices::{self, NoticeHead};
use super::recharge_deliveries::{RechargeEventRow, events_of};
use super::{Reads, snapshot};
use crate::postgres::Error;
use crate::postgres::columns::{self, Id};
use crate::postgres::database::receivables::of_payments;
use crate::postgres::database::recharges::{
    ORDER_COLUMNS, PAYMENT_COLUMNS, RETURN_COLUMNS, order_by, order_from_row, payment_from_row,
    return_from_row,
};
use crate::recharge::order::{Recharge, RechargeState, RechargeStep};
use crate::recharge::payment::{HeldCause, RechargePayment};
use crate::recharge::returned::{Receivable, RechargeReturn};
use crate::recharge::{PaymentId, RechargeId};
use domain::account::UserId;
use domain::asset::{AssetId, Catalog};

/// The most payments that are shown of one order.
const SHOWN_MAX: i64 = 100;

/// Which orders.
#[derive(Clone, Debug, Default)]
pub struct RechargeSearch {
    /// Of this user.
    pub user: Option<UserId>,
    /// On this channel.
    pub channel: Option<String>,
    /// Only those that are PAYING, and older than this time.
    pub overdue: Option<Timestamp>,
    /// Made earlier than this one: the cursor.
    pub before: Option<RechargeId>,
    /// At most so many.
    pub limit: u32,
}

/// A page of orders.
#[derive(Clone, Debug)]
pub struct RechargesFound {
    /// Newest first.
    pub orders: Vec<Recharge>,
    /// The order that the next page begins below; `None` at the end.
    pub next: Option<RechargeId>,
}

/// Which payments.
#[derive(Clone, Debug, Default)]
pub struct PaymentSearch {
    /// Only those that are HELD.
    pub held: bool,
    /// Only those with this cause.
    pub cause: Option<HeldCause>,
    /// Of an order of this user, or credited to this user.
    pub user: Option<UserId>,
    /// On one of these channels; none: on all.
    pub channels: Vec<String>,
    /// With this number of the channel.
    pub trade_no: Option<String>,
    /// Behind this payment: the cursor.
    pub after: Option<(Timestamp, PaymentId)>,
    /// At most so many.
    pub limit: u32,
}

/// A payment with the owner of its order.
#[derive(Clone, Debug)]
pub struct PaymentFound {
    /// The payment.
    pub payment: RechargePayment,
    /// The owner of its order; `None`: it has none.
    pub owner: Option<UserId>,
}

/// A page of payments.
#[derive(Clone, Debug)]
pub struct PaymentsFound {
    /// Oldest first: the longest wait stands on top.
    pub payments: Vec<PaymentFound>,
    /// The payment that the next page begins behind; `None` at the end.
    pub next: Option<(Timestamp, PaymentId)>,
}

/// A step of an order with its time.
#[derive(Clone, Debug)]
pub struct RechargePassage {
    /// When, by the service's clock.
    pub at: Timestamp,
    /// The step.
    pub step: RechargeStep,
}

/// A movement as it is recorded.
#[derive(Clone, Debug)]
pub struct MovementRow {
    /// Its key.
    pub key: String,
    /// The account that it came from.
    pub debit: String,
    /// The account that it went to.
    pub credit: String,
    /// The asset.
    pub asset: AssetId,
    /// How much, smallest units.
    pub amount: u64,
    /// When, by the service's clock.
    pub at: Timestamp,
}

/// All about one order, or about a payment without an order, at one moment.
#[derive(Clone, Debug, Default)]
pub struct WholeRecharge {
    /// The order.
    pub order: Option<Recharge>,
    /// Its states, in their order.
    pub history: Vec<RechargePassage>,
    /// Its payments, in their order.
    pub payments: Vec<RechargePayment>,
    /// Their returns, in the order of their making.
    pub returns: Vec<RechargeReturn>,
    /// The receivables of these, in the order of their making.
    pub receivables: Vec<Receivable>,
    /// Their movements, in the order of their making.
    pub movements: Vec<MovementRow>,
    /// The events that its user has of it, in the order of their ids.
    pub events: Vec<RechargeEventRow>,
    /// The kept callbacks of its payments, oldest first, without their words.
    pub notices: Vec<NoticeHead>,
}

/// Conditions of a statement, with their values.
#[derive(Default)]
pub(super) struct Conditions<'a> {
    parts: Vec<String>,
    values: Vec<&'a (dyn ToSql + Sync)>,
}

impl<'a> Conditions<'a> {
    /// Adds a condition without a value.
    pub(super) fn plain(&mut self, part: &str) {
        self.parts.push(part.to_owned());
    }

    /// Adds a condition in which `?` is the value.
    pub(super) fn and(&mut self, part: &str, value: &'a (dyn ToSql + Sync)) {
        self.values.push(value);
        self.parts.push(part.replace('?', &format!("${}", self.values.len())));
    }

    /// Adds the place of a cursor: behind these values of two columns.
    pub(super) fn behind(
        &mut self,
        columns: &str,
        first: &'a (dyn ToSql + Sync),
        second: &'a (dyn ToSql + Sync),
    ) {
        self.values.extend([first, second]);
        let place = self.values.len();
        self.parts.push(format!("({columns}) > (${}, ${place})", place - 1));
    }

    /// The values, in the order of their numbers.
    pub(super) fn values(&self) -> &[&'a (dyn ToSql + Sync)] {
        &self.values
    }

    pub(super) fn text(&self) -> String {
        if self.parts.is_empty() { "TRUE".to_owned() } else { self.parts.join(" AND ") }
    }
}

impl Reads {
    /// A page of orders.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn search_recharges(&self, search: &RechargeSearch) -> Result<RechargesFound, Error> {
        let user = search.user.map(UserId::bigint);
        let before = search.before.map(|id| Id(id.number()));
        let mut conditions = Conditions::default();
        if let Some(user) = &user {
            conditions.and("r.user_id = ?", user);
        }
        if let Some(channel) = &search.channel {
            conditions.and("r.channel = ?", channel);
        }
        if let Some(since) = &search.overdue {
            // The index of open orders has no other state.
            conditions.and("r.state IN (0, 10) AND r.state = 10 AND r.created_at < ?", since);
        }
        if let Some(before) = &before {
            conditions.and("r.recharge_id < ?", before);
        }
        let page = format!(
            "SELECT {ORDER_COLUMNS} FROM recharges_tb r WHERE {} \
              ORDER BY r.recharge_id DESC LIMIT {}",
            conditions.text(),
            u64::from(search.limit) + 1
        );
        let client = self.pool.get().await?;
        let rows = client.query(&page, conditions.values()).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let orders = rows.iter().map(|row| order_from_row(row, &catalog));
        let mut orders = orders.collect::<Result<Vec<Recharge>, Error>>()?;
        let more = cut(&mut orders, search.limit);
        let next = orders.last().filter(|_| more).map(|last| last.id);
        Ok(RechargesFound { orders, next })
    }

    /// A page of payments.
    ///
    /// # Errors
    /// As [`Reads::search_recharges`].
    pub async fn search_payments(&self, search: &PaymentSearch) -> Result<PaymentsFound, Error> {
        let user = search.user.map(UserId::bigint);
        let cause = search.cause.map(HeldCause::number);
        let after = search.after.map(|(at, id)| (at, Id(id.number())));
        let mut conditions = Conditions::default();
        if search.held {
            // The index of held payments has those on their way back too.
            conditions.plain("p.disposition IN (10, 20) AND p.disposition = 10");
        }
        if let Some(cause) = &cause {
            conditions.and("p.cause = ?", cause);
        }
        if !search.channels.is_empty() {
            conditions.and("p.channel = ANY (?)", &search.channels);
        }
        if let Some(trade_no) = &search.trade_no {
            conditions.and("p.trade_no = ?", trade_no);
        }
        if let Some(user) = &user {
            conditions.and("COALESCE(r.user_id, p.user_id) = ?", user);
        }
        if let Some((at, id)) = &after {
            conditions.behind("p.at, p.payment_id", at, id);
        }
        let page = format!(
            "SELECT {PAYMENT_COLUMNS}, r.user_id FROM channel_payments p \
               LEFT JOIN recharges_tb r ON r.recharge_id = p.recharge_id \
              WHERE {} ORDER BY p.at, p.payment_id LIMIT {}",
            conditions.text(),
            u64::from(search.limit) + 1
        );
        let client = self.pool.get().await?;
        let rows = client.query(&page, conditions.values()).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let found = rows.iter().map(|row| {
            let payment = payment_from_row(row, &catalog)?;
            let owner: Option<i64> = row.try_get(row.len() - 1)?;
            let owner = owner.and_then(|user| u64::try_from(user).ok()).and_then(UserId::new);
            Ok(PaymentFound { payment, owner })
        });
        let mut payments = found.collect::<Result<Vec<PaymentFound>, Error>>()?;
        let more = cut(&mut payments, search.limit);
        let next = payments.last().filter(|_| more).map(|one| (one.payment.at, one.payment.id));
        Ok(PaymentsFound { payments, next })
    }

    /// Everything about an order; `None`: there is none.
    ///
    /// # Errors
    /// As [`Reads::search_recharges`].
    pub async fn whole_recharge(&self, id: RechargeId) -> Result<Option<WholeRecharge>, Error> {
        let catalog = self.catalog();
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let Some(order) = order_by(&*transaction, id, &catalog).await? else { return Ok(None) };
        let steps = "SELECT s.at, s.state, s.actor, s.reason FROM recharges_tb r \
                      CROSS JOIN LATERAL unnest(r.history) WITH ORDINALITY AS s \
                      WHERE r.recharge_id = $1 ORDER BY s.ordinality";
        let rows = transaction.query(steps, &[&Id(id.number())]).await?;
        let history = rows.iter().map(|row| passage_from_row(row, id));
        let history = history.collect::<Result<Vec<RechargePassage>, Error>>()?;
        let of = format!(
            "SELECT {PAYMENT_COLUMNS} FROM channel_payments p WHERE p.recharge_id = $1 \
              ORDER BY p.ordinal LIMIT {SHOWN_MAX}"
        );
        let rows = transaction.query(&of, &[&Id(id.number())]).await?;
        let payments = rows.iter().map(|row| payment_from_row(row, &catalog));
        let payments = payments.collect::<Result<Vec<RechargePayment>, Error>>()?;
        let parts = parts_of(&transaction, &payments, &catalog).await?;
        let events = events_of(&*transaction, order.user, id.number()).await?;
        transaction.commit().await?;
        self.pool.note(&client).await?;
        Ok(Some(WholeRecharge { order: Some(order), history, payments, events, ..parts }))
    }

    /// Everything about a payment, and about its order if it has one; `None`: there is none.
    ///
    /// # Errors
    /// As [`Reads::search_recharges`].
    pub async fn whole_payment(&self, id: PaymentId) -> Result<Option<WholeRecharge>, Error> {
        let Some(payment) = self.payment(id).await? else { return Ok(None) };
        if let Some(order) = payment.recharge {
            return self.whole_recharge(order).await;
        }
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let user = payment.user;
        let payments = vec![payment];
        let parts = parts_of(&transaction, &payments, &self.catalog()).await?;
        let events = match user {
            Some(user) => events_of(&*transaction, user, id.number()).await?,
            None => Vec::new(),
        };
        transaction.commit().await?;
        Ok(Some(WholeRecharge { payments, events, ..parts }))
    }
}

/// Cuts a page to its limit. Returns whether there is more.
pub(super) fn cut<T>(rows: &mut Vec<T>, limit: u32) -> bool {
    let asked = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = rows.len() > asked;
    rows.truncate(asked);
    more
}

/// The returns, receivables and movements of payments, without the rest.
async fn parts_of(
    transaction: &deadpool_postgres::Transaction<'_>,
    payments: &[RechargePayment],
    catalog: &Catalog,
) -> Result<WholeRecharge, Error> {
    let ids: Vec<Id> = payments.iter().map(|payment| Id(payment.id.number())).collect();
    let returns = format!(
        "SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE payment_id = ANY ($1) \
          ORDER BY created_at, return_id LIMIT {SHOWN_MAX}"
    );
    let rows = transaction.query(&returns, &[&ids]).await?;
    let returns = rows.iter().map(return_from_row).collect::<Result<Vec<_>, Error>>()?;
    let mut receivables = of_payments(&**transaction, &ids, catalog).await?;
    receivables.sort_by_key(|row| (row.at, row.id));
    let movements = format!(
        "SELECT movement_key, debit, credit, asset_id, amount, at FROM recharge_movements \
          WHERE payment_id = ANY ($1) ORDER BY at, movement_key LIMIT {SHOWN_MAX}"
    );
    let rows = transaction.query(&movements, &[&ids]).await?;
    let movement = |row: &Row| {
        let key: String = row.try_get(0)?;
        let bad =
            |what: &str| Error::Row { table: "recharge_movements", what: format!("{key}: {what}") };
        let asset = columns::asset(row, 3, catalog)?.ok_or_else(|| bad("asset_id"))?.id;
        let amount = columns::count(row, 4, "recharge_movements")?;
        let (debit, credit, at) = (row.try_get(1)?, row.try_get(2)?, row.try_get(5)?);
        Ok(MovementRow { key, debit, credit, asset, amount, at })
    };
    let movements = rows.iter().map(movement).collect::<Result<Vec<_>, Error>>()?;
    let notices = notices::of_payments(&**transaction, &ids).await?;
    Ok(WholeRecharge { returns, receivables, movements, notices, ..WholeRecharge::default() })
}

fn passage_from_row(row: &Row, id: RechargeId) -> Result<RechargePassage, Error> {
    let number: i16 = row.try_get(1)?;
    let state = RechargeState::from_number(number).ok_or_else(|| Error::Row {
        table: "recharges_tb",
        what: format!("{id}: state {number} in its history"),
    })?;
    let step = RechargeStep { state, actor: row.try_get(2)?, reason: row.try_get(3)? };
    Ok(RechargePassage { at: row.try_get(0)?, step })
}
