//! Orders and payments of recharges, for their handle: committed rows, without a flight.

use std::sync::Arc;

use deadpool_postgres::{ClientWrapper, Object};
use jiff::Timestamp;
use tokio_postgres::Row;

use super::Reads;
use crate::postgres::columns::{Id, Numeric};
use crate::postgres::connection::within;
use crate::postgres::database::receivables::receivable_by;
use crate::postgres::database::recharges::{
    ORDER_COLUMNS, ORDER_COLUMNS_COUNT, PAYMENT_COLUMNS, RETURN_COLUMNS, order_by, order_from_row,
    payment_behind, payment_from_row, return_by, return_from_row,
};
use crate::postgres::{Error, Verdict, is_going_away, verdict};
use crate::recharge::movement;
use crate::recharge::order::Recharge;
use crate::recharge::payment::RechargePayment;
use crate::recharge::returned::{Receivable, RechargeReturn};
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use domain::amount::Amount;
use domain::asset::AssetId;

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

    /// The names of all channels that were ever configured here.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn channel_names(&self) -> Result<Vec<String>, Error> {
        let client = self.pool.get().await?;
        let rows = client.query("SELECT name FROM channels_tb ORDER BY name", &[]).await?;
        self.pool.note(&client).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
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

    /// The payments and orders that verified facts name, in the places of `keys`, by one statement.
    /// A row that cannot be read here or by PostgreSQL is an error at its place.
    ///
    /// An open order whose payment is not recorded tells a channel nothing: the flight of its
    /// decision does. Anything else is noted first, since an answer may rest on it.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or does not answer in time.
    pub async fn matters(
        &self,
        keys: &[MatterKey],
    ) -> Result<Vec<Result<KnownMatter, Arc<Error>>>, Error> {
        let pool = &self.by_keys;
        let client = pool.get().await?;
        let found = within(pool.limit(), self.matters_over(&client, keys)).await;
        // Its statement may still run, and the next look would wait behind it.
        if found.is_err() {
            drop(Object::take(client));
        }
        found?
    }

    /// One statement, as long as no key makes it fail. Otherwise the keys are halved.
    async fn matters_over(
        &self,
        client: &ClientWrapper,
        keys: &[MatterKey],
    ) -> Result<Vec<Result<KnownMatter, Arc<Error>>>, Error> {
        let (mut found, mut parts) = (Vec::with_capacity(keys.len()), vec![keys]);
        while let Some(part) = parts.pop() {
            match self.matters_at_once(client, part).await {
                Ok(matters) => found.extend(matters.into_iter().map(|row| row.map_err(Arc::new))),
                Err(error) if !is_of_rows(&error) => return Err(error),
                Err(error) if part.len() == 1 => found.push(Err(Arc::new(error))),
                Err(_) => {
                    let (front, behind) = part.split_at(part.len() / 2);
                    parts.extend([behind, front]);
                }
            }
        }
        let is_told = |key: &MatterKey, matter: &Result<KnownMatter, Arc<Error>>| {
            let Ok(KnownMatter { order, payment }) = matter else { return false };
            let is_there = order.as_ref().is_some_and(|order| order.channel == key.channel);
            payment.is_some() || !is_there
        };
        let places = keys.iter().zip(&mut found);
        let told: Vec<_> = places.filter(|(key, matter)| is_told(key, matter)).collect();
        if !told.is_empty()
            && let Err(error) = self.by_keys.note(client).await
        {
            let error = Arc::new(error);
            for (_, matter) in told {
                *matter = Err(Arc::clone(&error));
            }
        }
        Ok(found)
    }

    async fn matters_at_once(
        &self,
        client: &ClientWrapper,
        keys: &[MatterKey],
    ) -> Result<Vec<Result<KnownMatter, Error>>, Error> {
        let select = format!(
            "SELECT {ORDER_COLUMNS}, {PAYMENT_COLUMNS} \
               FROM unnest($1::text[], $2::text[], $3::uuid[]) WITH ORDINALITY \
                 AS a (channel, trade_no, id, place) \
               LEFT JOIN LATERAL (SELECT * FROM recharges_tb \
                 WHERE recharge_id = a.id OFFSET 0) AS r ON true \
               LEFT JOIN LATERAL (SELECT * FROM channel_payments \
                 WHERE channel = a.channel AND trade_no = a.trade_no OFFSET 0) AS p ON true \
              ORDER BY place"
        );
        let channels: Vec<&str> = keys.iter().map(|key| key.channel.as_str()).collect();
        let trades: Vec<&str> = keys.iter().map(|key| key.trade_no.as_str()).collect();
        let orders: Vec<Option<Id>> =
            keys.iter().map(|key| key.order.map(|id| Id(id.number()))).collect();
        let statement = client.prepare_cached(&select).await?;
        let rows = client.query(&statement, &[&channels, &trades, &orders]).await?;
        if rows.len() != keys.len() {
            let what = format!("{} rows for {} unique keys", rows.len(), keys.len());
            return Err(Error::Row { table: "channel_payments", what });
        }
        let catalog = self.catalog();
        let matter = |row: &Row| -> Result<KnownMatter, Error> {
            let order: Option<Id> = row.try_get(0)?;
            let payment: Option<Id> = row.try_get(ORDER_COLUMNS_COUNT)?;
            let order = order.map(|_| order_from_row(row, &catalog)).transpose()?;
            let payment = payment.map(|_| payment_behind(row, ORDER_COLUMNS_COUNT, &catalog));
            Ok(KnownMatter { order, payment: payment.transpose()? })
        };
        Ok(rows.iter().map(matter).collect())
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
            "SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE payment_id = $1 \
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

    /// The accounts of each channel and asset. It adds up whole tables.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn channel_accounts(&self) -> Result<Vec<ChannelAccounts>, Error> {
        let accounts = "SELECT * FROM recharge_accounts() ORDER BY channel, asset_id";
        let client = self.pool.get().await?;
        let rows = client.query(accounts, &[]).await?;
        self.pool.note(&client).await?;
        rows.iter().map(accounts_from_row).collect()
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

    /// The sum that was credited for a PAID order, with its bonus; `None`: nothing was.
    ///
    /// # Errors
    /// As [`Reads::recharge`].
    pub async fn credited(&self, id: RechargeId) -> Result<Option<Amount>, Error> {
        let sum = "SELECT COALESCE(sum(amount), 0)::bigint FROM recharge_movements \
                    WHERE movement_key IN ($1, $2) AND credit LIKE 'user/%'";
        let client = self.pool.get().await?;
        let row = client
            .query_one(sum, &[&movement::recharge_credit(id), &movement::recharge_bonus(id)])
            .await?;
        self.pool.note(&client).await?;
        let units: i64 = row.try_get(0)?;
        Ok(u64::try_from(units).ok().and_then(Amount::new))
    }

    /// Orders that are due at `now`, the longest first in each lane. `besides`: orders that the
    /// caller has in hand. A row that cannot be read stands by its id.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn due_orders(
        &self,
        lanes: &[DueLane],
        now: Timestamp,
        besides: &[RechargeId],
    ) -> Result<Vec<(DueKind, RechargeId, Result<DueOrder, Error>)>, Error> {
        let select = format!(
            "SELECT {ORDER_COLUMNS}, l.kind, \
                    ARRAY(SELECT substr(s.reason, 11) FROM unnest(r.history) AS s \
                           WHERE s.reason LIKE 'reference %') \
               FROM unnest($1::text[], $2::int[], $3::bigint[]) AS l (channel, kind, room) \
              CROSS JOIN LATERAL (\
                SELECT * FROM recharges_tb \
                 WHERE channel = l.channel AND {DUE_KIND} = l.kind AND next_at <= $4 \
                   AND recharge_id <> ALL ($5) \
                 ORDER BY next_at LIMIT l.room) AS r"
        );
        let (names, kinds, rooms) = columns_of(lanes);
        let besides: Vec<Id> = besides.iter().map(|id| Id(id.number())).collect();
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(&select).await?;
        let rows = client.query(&statement, &[&names, &kinds, &rooms, &now, &besides]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let Id(number) = row.try_get(0)?;
            let kind = DueKind::from_number(row.try_get(29)?);
            let (Some(id), Some(kind)) = (RechargeId::new(number), kind) else { continue };
            let references: Vec<String> = row.try_get(30)?;
            let order = order_from_row(row, &catalog);
            let order = order.map(|order| DueOrder { references: all(&order, references), order });
            found.push((kind, id, order));
        }
        Ok(found)
    }

    /// Returns of one channel that are due at `now`, the longest first. `besides`: returns that the
    /// caller has in hand. A row that cannot be read stands by its id.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn due_returns(
        &self,
        channel: &str,
        now: Timestamp,
        besides: &[ReturnId],
        room: usize,
    ) -> Result<Vec<(ReturnId, Result<DueReturn, Error>)>, Error> {
        let select = format!(
            "SELECT {RETURN_COLUMNS}, r.minor_units, {PAYMENT_COLUMNS} FROM recharge_returns b \
               JOIN channel_payments p ON p.payment_id = b.payment_id AND p.channel = $1 \
               LEFT JOIN recharges_tb r ON r.recharge_id = p.recharge_id \
              WHERE b.next_at <= $2 AND b.return_id <> ALL ($3) AND b.state IN (10, 20) \
                AND b.kind = 1 \
              ORDER BY b.next_at LIMIT $4"
        );
        let besides: Vec<Id> = besides.iter().map(|id| Id(id.number())).collect();
        let room = i64::try_from(room).unwrap_or(i64::MAX);
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(&select).await?;
        let rows = client.query(&statement, &[&channel, &now, &besides, &room]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let Id(number) = row.try_get(0)?;
            let Some(id) = ReturnId::new(number) else { continue };
            let read = || {
                let payment = payment_behind(row, 15, &catalog)?;
                Ok(DueReturn { back: return_from_row(row)?, asked: row.try_get(14)?, payment })
            };
            found.push((id, read()));
        }
        Ok(found)
    }

    /// When the next order or return of these lanes is due behind `now`.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn next_due(
        &self,
        lanes: &[DueLane],
        now: Timestamp,
    ) -> Result<Option<Timestamp>, Error> {
        let select = format!(
            "SELECT min(next_at) FROM (\
               SELECT r.next_at FROM unnest($1::text[], $2::int[]) AS l (channel, kind) \
                CROSS JOIN LATERAL (\
                  SELECT next_at FROM recharges_tb \
                   WHERE channel = l.channel AND {DUE_KIND} = l.kind AND next_at > $3 \
                   ORDER BY next_at LIMIT 1) AS r \
               UNION ALL \
               (SELECT next_at FROM recharge_returns WHERE next_at > $3 \
                 ORDER BY next_at LIMIT 1)) AS due"
        );
        let (names, kinds, _) = columns_of(lanes);
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(&select).await?;
        let row = client.query_one(&statement, &[&names, &kinds, &now]).await?;
        self.pool.note(&client).await?;
        Ok(row.try_get(0)?)
    }
}

/// Whether a statement may have failed because of one of its keys or rows. Otherwise it fails for
/// each of them: the connection is lost, a lock or a limit of time is met, or nothing is left.
fn is_of_rows(error: &Error) -> bool {
    let Error::Query(query) = error else { return matches!(error, Error::Row { .. }) };
    // "42": the statement itself is wrong here.
    let is_wrong = query.code().is_some_and(|state| state.code().starts_with("42"));
    let is_server = is_going_away(query) || verdict(query) == Verdict::Unavailable;
    !is_server && !is_wrong && !error.is_late()
}

/// The names of a verified payment and of its order.
#[derive(Clone, Debug)]
pub struct MatterKey {
    /// The channel's name.
    pub channel: String,
    /// The channel's own number.
    pub trade_no: String,
    /// The order; `None`: the merchant's number is none of ours.
    pub order: Option<RechargeId>,
}

/// The rows of a [`MatterKey`].
#[derive(Clone, Debug, Default)]
pub struct KnownMatter {
    /// The order, of any channel; `None`: there is none.
    pub order: Option<Recharge>,
    /// The payment; `None`: it is not recorded.
    pub payment: Option<RechargePayment>,
}

/// The accounts of one channel and asset, smallest units. Clearing, the channel's debt to us, is
/// `paid - returned - taken + given_back - fees - bank`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelAccounts {
    /// The channel's name.
    pub channel: String,
    /// The asset.
    pub asset: AssetId,
    /// Payments.
    pub paid: i128,
    /// Refunds that are done.
    pub returned: i128,
    /// Money that the channel has taken.
    pub taken: i128,
    /// Taken money that the channel has given back.
    pub given_back: i128,
    /// The channel's debt to us.
    pub clearing: i128,
    /// Payments without an owner yet.
    pub suspense: i128,
    /// The debts of users.
    pub receivable: i128,
    /// Money that is lost.
    pub loss: i128,
    /// The channel's fees.
    pub fees: i128,
    /// Money that has reached the bank.
    pub bank: i128,
}

fn accounts_from_row(row: &Row) -> Result<ChannelAccounts, Error> {
    let units = |column: &str| Ok::<_, Error>(row.try_get::<_, Numeric>(column)?.0);
    let number: i32 = row.try_get("asset_id")?;
    let asset = u32::try_from(number).map(AssetId).map_err(|_| Error::Row {
        table: "recharge_movements",
        what: format!("asset_id {number}"),
    })?;
    Ok(ChannelAccounts {
        channel: row.try_get("channel")?,
        asset,
        paid: units("paid")?,
        returned: units("returned")?,
        taken: units("taken")?,
        given_back: units("given_back")?,
        clearing: units("clearing")?,
        suspense: units("suspense")?,
        receivable: units("receivable")?,
        loss: units("loss")?,
        fees: units("fees")?,
        bank: units("bank")?,
    })
}

/// The kind of a row that is due, as the index `recharges_due` has it, to the letter.
pub const DUE_KIND: &str = "(CASE WHEN bonus_state = 1 AND state IN (40, -10) THEN 5 \
                              WHEN state = 40 THEN 4 \
                              WHEN state = -10 OR held > 0 THEN 0 \
                              WHEN closing IS NOT NULL THEN 2 \
                              WHEN state = 0 THEN 1 \
                              ELSE 3 END)";

/// What the till does with an order that is due. The order of the kinds is that of their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum DueKind {
    /// Make it at the channel.
    Create = 1,
    /// End it.
    Close = 2,
    /// Ask for its state.
    Query = 3,
    /// Send its money on.
    Follow = 4,
    /// Give its bonus back to its promotion.
    GiveBack = 5,
}

impl DueKind {
    /// Every kind.
    pub const ALL: [DueKind; 5] =
        [DueKind::Create, DueKind::Close, DueKind::Query, DueKind::Follow, DueKind::GiveBack];

    /// Whether the till asks the channel about it.
    pub fn asks(self) -> bool {
        !matches!(self, DueKind::Follow | DueKind::GiveBack)
    }

    fn from_number(number: i32) -> Option<DueKind> {
        DueKind::ALL.into_iter().find(|kind| *kind as i32 == number)
    }
}

/// Due rows of one channel and kind.
#[derive(Clone, Debug)]
pub struct DueLane {
    /// The channel's name.
    pub channel: String,
    /// The kind.
    pub kind: DueKind,
    /// The most rows.
    pub room: usize,
}

/// An order that is due.
#[derive(Clone, Debug)]
pub struct DueOrder {
    /// The order.
    pub order: Recharge,
    /// Every number that its channel has given it.
    pub references: Vec<String>,
}

/// A return that is due.
#[derive(Clone, Debug)]
pub struct DueReturn {
    /// The return.
    pub back: RechargeReturn,
    /// Its payment.
    pub payment: RechargePayment,
    /// The price of the payment's order, in minor units; `None`: there is no order.
    pub asked: Option<i64>,
}

/// The numbers of an order, each once: the first in its column, and each further one in its history.
fn all(order: &Recharge, further: Vec<String>) -> Vec<String> {
    let mut all: Vec<String> = order.reference.iter().cloned().collect();
    for reference in further {
        if !all.contains(&reference) {
            all.push(reference);
        }
    }
    all
}

fn columns_of(lanes: &[DueLane]) -> (Vec<&str>, Vec<i32>, Vec<i64>) {
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    for lane in lanes {
        columns.0.push(lane.channel.as_str());
        columns.1.push(lane.kind as i32);
        columns.2.push(i64::try_from(lane.room).unwrap_or(i64::MAX));
    }
    columns
}
