//! Rows of recharges: as a flight writes them, and as they are read.

use jiff::Timestamp;
use postgres_types::ToSql;
use tokio_postgres::{Client, GenericClient, Row};

use super::{receivables, unreadable};
use crate::postgres::Error;
use crate::postgres::columns::{self, Id, amount_number, asset_number, bigint, code_number};
use crate::postgres::flight::recharged::RechargeKey;
use crate::postgres::flight::{Found, Key};
use crate::recharge::movement::RechargeMovement;
use crate::recharge::order::{
    BonusState, ClosingWish, Follow, FollowState, Recharge, RechargeState, RechargeStep,
    RechargeTarget,
};
use crate::recharge::payment::{Disposition, HeldCause, RechargePayment, SeenBy};
use crate::recharge::returned::{RechargeReturn, ReturnKind, ReturnState};
use crate::recharge::{PaymentId, RechargeId, ReturnId};
use domain::account::UserId;
use domain::asset::Catalog;
use domain::transfer::ReqId;

/// The unique keys of recharges. A row that meets one is there, and the process did not know it.
pub(super) const KEYS: [&str; 10] = [
    "recharges_tb_pkey",
    "recharges_tb_user_id_idem_key_key",
    "channel_payments_pkey",
    "channel_payments_payment_id_key",
    "channel_payments_recharge_id_ordinal_key",
    "recharge_returns_pkey",
    "recharge_movements_pkey",
    "recharge_returns_idem_key_key",
    "recharge_returns_of_channel_key",
    "receivables_tb_pkey",
];

const ORDERS: &str = "recharges_tb";
const PAYMENTS: &str = "channel_payments";
const RETURNS: &str = "recharge_returns";

#[derive(Debug, ToSql)]
#[postgres(name = "recharge_step")]
struct Step<'a> {
    at: Timestamp,
    state: i16,
    actor: &'a str,
    reason: Option<&'a str>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "recharges_tb")]
pub(in crate::postgres) struct OrderRow<'a> {
    user_id: i64,
    amount: i64,
    bonus: i64,
    minor_units: i64,
    version: i64,
    created_at: Timestamp,
    expires_at: Timestamp,
    updated_at: Timestamp,
    paid_at: Option<Timestamp>,
    next_at: Option<Timestamp>,
    recharge_id: Id,
    asset_id: i32,
    payments: i32,
    held: i32,
    attempts: i32,
    state: i16,
    target: i16,
    closing: Option<i16>,
    code: Option<i16>,
    channel: &'a str,
    promotion: Option<&'a str>,
    idem_key: &'a str,
    fingerprint: &'a str,
    reference: Option<&'a str>,
    pay: Option<&'a str>,
    history: Vec<Step<'a>>,
    follow_req_id: Option<Id>,
    follow_state: i16,
    follow_code: Option<i16>,
    bonus_state: Option<i16>,
}

impl<'a> OrderRow<'a> {
    /// Whether a flight makes it; otherwise it changes it.
    pub(super) fn is_new(&self) -> bool {
        self.version == 1
    }

    pub(in crate::postgres) fn of(
        order: &'a Recharge,
        steps: &'a [RechargeStep],
        at: Timestamp,
    ) -> Self {
        let step = |step: &'a RechargeStep| Step {
            at,
            state: step.state.number(),
            actor: &step.actor,
            reason: step.reason.as_deref(),
        };
        OrderRow {
            user_id: order.user.bigint(),
            amount: amount_number(order.amount),
            bonus: bigint(order.bonus),
            minor_units: order.minor_units,
            version: bigint(order.version),
            created_at: order.created_at,
            expires_at: order.expires_at,
            updated_at: order.updated_at,
            paid_at: order.paid_at,
            next_at: order.next_at,
            recharge_id: Id(order.id.number()),
            asset_id: asset_number(order.asset),
            payments: small(order.payments),
            held: small(order.held),
            attempts: small(order.attempts),
            state: order.state.number(),
            target: order.target.number(),
            closing: order.closing.map(ClosingWish::number),
            code: order.code.map(code_number),
            channel: &order.channel,
            promotion: order.promotion.as_deref(),
            idem_key: &order.idem_key,
            fingerprint: &order.fingerprint,
            reference: order.reference.as_deref(),
            pay: order.pay.as_deref(),
            history: steps.iter().map(step).collect(),
            follow_req_id: order.follow.req_id.map(Id::of),
            follow_state: order.follow.state.number(),
            follow_code: order.follow.code.map(code_number),
            bonus_state: order.bonus_state.map(BonusState::number),
        }
    }
}

#[derive(Debug, ToSql)]
#[postgres(name = "channel_payments")]
pub(super) struct PaymentRow<'a> {
    minor_units: i64,
    amount: Option<i64>,
    version: i64,
    user_id: Option<i64>,
    paid_at: Timestamp,
    at: Timestamp,
    updated_at: Timestamp,
    payment_id: Id,
    recharge_id: Option<Id>,
    asset_id: i32,
    ordinal: Option<i32>,
    disposition: i16,
    cause: Option<i16>,
    seen_by: i16,
    channel: &'a str,
    currency: &'a str,
    merchant_no: &'a str,
    trade_no: &'a str,
}

impl<'a> PaymentRow<'a> {
    /// Whether a flight makes it; otherwise it changes it.
    pub(super) fn is_new(&self) -> bool {
        self.version == 1
    }

    pub(super) fn of(payment: &'a RechargePayment) -> Self {
        PaymentRow {
            minor_units: payment.minor_units,
            amount: payment.amount.map(amount_number),
            version: bigint(payment.version),
            user_id: payment.user.map(UserId::bigint),
            paid_at: payment.paid_at,
            at: payment.at,
            updated_at: payment.updated_at,
            payment_id: Id(payment.id.number()),
            recharge_id: payment.recharge.map(|id| Id(id.number())),
            asset_id: asset_number(payment.asset),
            ordinal: payment.ordinal.map(small),
            disposition: payment.disposition.number(),
            cause: payment.cause.map(HeldCause::number),
            seen_by: payment.seen_by.number(),
            channel: &payment.channel,
            currency: &payment.currency,
            merchant_no: &payment.merchant_no,
            trade_no: &payment.trade_no,
        }
    }
}

#[derive(Debug, ToSql)]
#[postgres(name = "recharge_returns")]
pub(super) struct ReturnRow<'a> {
    minor_units: i64,
    bonus: i64,
    version: i64,
    next_at: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    return_id: Id,
    payment_id: Id,
    kind: i16,
    state: i16,
    idem_key: Option<&'a str>,
    channel_return_no: Option<&'a str>,
    code: Option<i16>,
    attempts: i32,
}

impl<'a> ReturnRow<'a> {
    pub(super) fn of(row: &'a RechargeReturn) -> Self {
        ReturnRow {
            minor_units: row.minor_units,
            bonus: bigint(row.bonus),
            version: bigint(row.version),
            next_at: row.next_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            return_id: Id(row.id.number()),
            payment_id: Id(row.payment.number()),
            kind: row.kind.number(),
            state: row.state.number(),
            idem_key: row.idem_key.as_deref(),
            channel_return_no: row.number.as_deref(),
            code: row.code.map(code_number),
            attempts: small(row.attempts),
        }
    }
}

#[derive(Debug, ToSql)]
#[postgres(name = "recharge_movements")]
pub(super) struct Movement<'a> {
    amount: i64,
    at: Timestamp,
    recharge_id: Option<Id>,
    payment_id: Id,
    asset_id: i32,
    kind: i16,
    debit: String,
    credit: String,
    movement_key: &'a str,
}

impl<'a> Movement<'a> {
    pub(super) fn of(row: &'a RechargeMovement, at: Timestamp) -> Self {
        Movement {
            amount: amount_number(row.amount),
            at,
            recharge_id: row.recharge.map(|id| Id(id.number())),
            payment_id: Id(row.payment.number()),
            asset_id: asset_number(row.asset),
            kind: row.kind.number(),
            debit: row.debit.to_string(),
            credit: row.credit.to_string(),
            movement_key: &row.key,
        }
    }
}

/// As an INTEGER holds it.
fn small(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The columns of an order, in the order of [`order_from_row`].
pub(in crate::postgres) const ORDER_COLUMNS: &str = "\
    r.recharge_id, r.user_id, r.idem_key, r.fingerprint, r.channel, r.asset_id, r.amount, \
    r.minor_units, r.bonus, r.promotion, r.target, r.state, r.closing, r.code, r.reference, r.pay, \
    r.payments, r.held, r.attempts, r.next_at, r.created_at, r.expires_at, r.updated_at, \
    r.paid_at, r.version, r.follow_state, r.follow_req_id, r.follow_code, r.bonus_state";

/// How many they are.
pub(in crate::postgres) const ORDER_COLUMNS_COUNT: usize = 29;

/// The columns of a return, in the order of [`return_from_row`].
pub(in crate::postgres) const RETURN_COLUMNS: &str = "\
    b.return_id, b.payment_id, b.kind, b.minor_units, b.state, b.next_at, b.created_at, \
    b.updated_at, b.version, b.attempts, b.idem_key, b.channel_return_no, b.code, b.bonus";

/// The columns of a payment, in the order of [`payment_from_row`].
pub(in crate::postgres) const PAYMENT_COLUMNS: &str = "\
    p.payment_id, p.channel, p.trade_no, p.merchant_no, p.recharge_id, p.ordinal, p.user_id, \
    p.minor_units, p.currency, p.asset_id, p.amount, p.disposition, p.cause, p.seen_by, p.paid_at, \
    p.at, p.updated_at, p.version";

/// Reads [`ORDER_COLUMNS`].
pub(in crate::postgres) fn order_from_row(row: &Row, catalog: &Catalog) -> Result<Recharge, Error> {
    let Id(number) = row.try_get(0)?;
    let id = RechargeId::new(number).ok_or_else(|| unreadable(ORDERS, "recharge_id"))?;
    let bad = |what: &str| unreadable(ORDERS, format!("{id}: {what}"));
    let asset = columns::asset(row, 5, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let closing: Option<i16> = row.try_get(12)?;
    let bonus: Option<i16> = row.try_get(28)?;
    let count = |column, what| count(row, column)?.ok_or_else(|| bad(what));
    Ok(Recharge {
        id,
        user: columns::user(row, 1)?.ok_or_else(|| bad("user_id"))?,
        idem_key: row.try_get(2)?,
        fingerprint: row.try_get(3)?,
        channel: row.try_get(4)?,
        asset: asset.id,
        amount: columns::amount(row, 6)?.ok_or_else(|| bad("amount"))?,
        minor_units: row.try_get(7)?,
        bonus: columns::count(row, 8, ORDERS)?,
        promotion: row.try_get(9)?,
        target: RechargeTarget::from_number(row.try_get(10)?).ok_or_else(|| bad("target"))?,
        state: RechargeState::from_number(row.try_get(11)?).ok_or_else(|| bad("state"))?,
        closing: closing
            .map(|number| ClosingWish::from_number(number).ok_or_else(|| bad("closing")))
            .transpose()?,
        code: columns::code(row, 13, ORDERS)?,
        reference: row.try_get(14)?,
        pay: row.try_get(15)?,
        payments: count(16, "payments")?,
        held: count(17, "held")?,
        attempts: count(18, "attempts")?,
        next_at: row.try_get(19)?,
        created_at: row.try_get(20)?,
        expires_at: row.try_get(21)?,
        updated_at: row.try_get(22)?,
        paid_at: row.try_get(23)?,
        version: columns::count(row, 24, ORDERS)?,
        follow: Follow {
            state: FollowState::from_number(row.try_get(25)?).ok_or_else(|| bad("follow_state"))?,
            req_id: follow_req_id(row, 26)?,
            code: columns::code(row, 27, ORDERS)?,
        },
        bonus_state: bonus
            .map(|number| BonusState::from_number(number).ok_or_else(|| bad("bonus_state")))
            .transpose()?,
    })
}

/// The transfer of an order; `None`: NULL.
fn follow_req_id(row: &Row, column: usize) -> Result<Option<ReqId>, Error> {
    let number: Option<Id> = row.try_get(column)?;
    Ok(number.and_then(|Id(number)| ReqId::new(number)))
}

/// Reads [`PAYMENT_COLUMNS`].
pub(in crate::postgres) fn payment_from_row(
    row: &Row,
    catalog: &Catalog,
) -> Result<RechargePayment, Error> {
    payment_behind(row, 0, catalog)
}

/// Reads [`PAYMENT_COLUMNS`] behind `first` other columns.
pub(in crate::postgres) fn payment_behind(
    row: &Row,
    first: usize,
    catalog: &Catalog,
) -> Result<RechargePayment, Error> {
    let Id(number) = row.try_get(first)?;
    let id = PaymentId::new(number).ok_or_else(|| unreadable(PAYMENTS, "payment_id"))?;
    let bad = |what: &str| unreadable(PAYMENTS, format!("{id}: {what}"));
    let asset = columns::asset(row, first + 9, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let recharge: Option<Id> = row.try_get(first + 4)?;
    let user: Option<i64> = row.try_get(first + 6)?;
    let amount: Option<i64> = row.try_get(first + 10)?;
    let cause: Option<i16> = row.try_get(first + 12)?;
    let (user, amount) = (
        user.map(|_| columns::user(row, first + 6)?.ok_or_else(|| bad("user_id"))).transpose()?,
        amount
            .map(|_| columns::amount(row, first + 10)?.ok_or_else(|| bad("amount")))
            .transpose()?,
    );
    let cause = cause
        .map(|number| HeldCause::from_number(number).ok_or_else(|| bad("cause")))
        .transpose()?;
    Ok(RechargePayment {
        id,
        channel: row.try_get(first + 1)?,
        trade_no: row.try_get(first + 2)?,
        merchant_no: row.try_get(first + 3)?,
        recharge: recharge.and_then(|Id(number)| RechargeId::new(number)),
        ordinal: count(row, first + 5)?,
        user,
        minor_units: row.try_get(first + 7)?,
        currency: row.try_get(first + 8)?,
        asset: asset.id,
        amount,
        disposition: Disposition::from_number(row.try_get(first + 11)?)
            .ok_or_else(|| bad("disposition"))?,
        cause,
        seen_by: SeenBy::from_number(row.try_get(first + 13)?).ok_or_else(|| bad("seen_by"))?,
        paid_at: row.try_get(first + 14)?,
        at: row.try_get(first + 15)?,
        updated_at: row.try_get(first + 16)?,
        version: columns::count(row, first + 17, PAYMENTS)?,
    })
}

/// A count in an INTEGER; `None`: NULL, or it is none.
fn count(row: &Row, column: usize) -> Result<Option<u32>, Error> {
    let number: Option<i32> = row.try_get(column)?;
    Ok(number.and_then(|number| u32::try_from(number).ok()))
}

/// Reads [`RETURN_COLUMNS`].
pub(in crate::postgres) fn return_from_row(row: &Row) -> Result<RechargeReturn, Error> {
    let (Id(id), Id(payment)) = (row.try_get(0)?, row.try_get(1)?);
    let bad = |what: &str| unreadable(RETURNS, what.to_owned());
    let kind: i16 = row.try_get(2)?;
    let kind = ReturnKind::ALL.into_iter().find(|known| known.number() == kind);
    Ok(RechargeReturn {
        id: ReturnId::new(id).ok_or_else(|| bad("return_id"))?,
        payment: PaymentId::new(payment).ok_or_else(|| bad("payment_id"))?,
        kind: kind.ok_or_else(|| bad("kind"))?,
        minor_units: row.try_get(3)?,
        state: ReturnState::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?,
        next_at: row.try_get(5)?,
        created_at: row.try_get(6)?,
        updated_at: row.try_get(7)?,
        version: columns::count(row, 8, RETURNS)?,
        attempts: count(row, 9)?.ok_or_else(|| bad("attempts"))?,
        idem_key: row.try_get(10)?,
        number: row.try_get(11)?,
        code: columns::code(row, 12, RETURNS)?,
        bonus: columns::count(row, 13, RETURNS)?,
    })
}

/// Reads rows of recharges by their keys, one statement a kind.
pub(super) async fn read(
    client: &Client,
    keys: &[RechargeKey],
    catalog: &Catalog,
    found: &mut Found,
) -> Result<(), Error> {
    let (mut ids, mut idems, mut payments, mut returns) =
        (Vec::new(), (Vec::new(), Vec::new()), (Vec::new(), Vec::new()), Vec::new());
    let (mut refunds, mut of_payments, mut movements) = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        match key {
            RechargeKey::Order(id) => ids.push(Id(id.number())),
            RechargeKey::Idem(user, idem_key) => {
                idems.0.push(user.bigint());
                idems.1.push(idem_key.as_str());
            }
            RechargeKey::Payment(channel, trade_no) => {
                payments.0.push(channel.as_str());
                payments.1.push(trade_no.as_str());
            }
            RechargeKey::Return(id) => returns.push(Id(id.number())),
            RechargeKey::Refund(idem_key) => refunds.push(idem_key.as_str()),
            RechargeKey::Returns(payment) => of_payments.push(Id(payment.number())),
            RechargeKey::Movement(key) => movements.push(key.as_str()),
        }
    }
    found.recharges.read.extend(keys.iter().cloned());
    if !ids.is_empty() {
        let orders =
            format!("SELECT {ORDER_COLUMNS} FROM recharges_tb r WHERE r.recharge_id = ANY ($1)");
        for row in client.query(&orders, &[&ids]).await? {
            let Id(number) = row.try_get(0)?;
            let key = |_: &Row| RechargeId::new(number).map(RechargeKey::Order);
            found.order(&row, catalog, key);
        }
    }
    if !idems.0.is_empty() {
        read_idems(client, idems, catalog, found).await?;
    }
    if !payments.0.is_empty() {
        let rows = format!(
            "SELECT {PAYMENT_COLUMNS} FROM unnest($1::text[], $2::text[]) AS a (name, number) \
             CROSS JOIN LATERAL (SELECT * FROM channel_payments \
               WHERE channel = a.name AND trade_no = a.number OFFSET 0) AS p"
        );
        for row in client.query(&rows, &[&payments.0, &payments.1]).await? {
            let key = (row.try_get(1)?, row.try_get(2)?);
            match payment_from_row(&row, catalog) {
                Ok(payment) => drop(found.recharges.payments.insert(key, payment)),
                Err(error) => found.refuse(RechargeKey::Payment(key.0, key.1), &error),
            }
        }
    }
    if !(returns.is_empty() && refunds.is_empty() && of_payments.is_empty()) {
        let rows = format!(
            "SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE return_id = ANY ($1) \
             UNION ALL SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE idem_key = ANY ($2) \
             UNION ALL SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE payment_id = ANY ($3)"
        );
        for row in client.query(&rows, &[&returns, &refunds, &of_payments]).await? {
            let row = return_from_row(&row)?;
            found.recharges.returns.insert(row.id, row);
        }
    }
    if !movements.is_empty() {
        let there =
            "SELECT movement_key::text FROM recharge_movements WHERE movement_key = ANY ($1)";
        for row in client.query(there, &[&movements]).await? {
            found.recharges.moved.insert(row.try_get(0)?);
        }
    }
    if !of_payments.is_empty() {
        let rows = receivables::of_payments(client, &of_payments, catalog).await?;
        found.recharges.receivables.extend(rows.into_iter().map(|row| (row.id, row)));
    }
    Ok(())
}

/// Reads the orders of idempotency keys, and the numbers of open orders of their users.
async fn read_idems(
    client: &Client,
    (users, names): (Vec<i64>, Vec<&str>),
    catalog: &Catalog,
    found: &mut Found,
) -> Result<(), Error> {
    let orders = format!(
        "SELECT {ORDER_COLUMNS} FROM unnest($1::bigint[], $2::text[]) AS a (owner, name) \
         CROSS JOIN LATERAL (SELECT * FROM recharges_tb \
           WHERE user_id = a.owner AND idem_key = a.name OFFSET 0) AS r"
    );
    for row in client.query(&orders, &[&users, &names]).await? {
        let (user, name): (i64, String) = (row.try_get(1)?, row.try_get(2)?);
        let user = u64::try_from(user).ok().and_then(UserId::new);
        found.order(&row, catalog, |_| user.map(|user| RechargeKey::Idem(user, name.clone())));
    }
    let open = "SELECT user_id, count(*) FROM recharges_tb \
                 WHERE user_id = ANY ($1) AND state IN (0, 10) GROUP BY user_id";
    for row in client.query(open, &[&users]).await? {
        let Some(user) = columns::user(&row, 0)? else { continue };
        let count = usize::try_from(columns::count(&row, 1, ORDERS)?).unwrap_or(usize::MAX);
        found.recharges.open.insert(user, count);
    }
    Ok(())
}

impl Found {
    fn order(&mut self, row: &Row, catalog: &Catalog, key: impl Fn(&Row) -> Option<RechargeKey>) {
        match order_from_row(row, catalog) {
            Ok(order) => self.recharges.order(order),
            Err(error) => {
                if let Some(key) = key(row) {
                    self.refuse(key, &error);
                }
            }
        }
    }

    fn refuse(&mut self, key: RechargeKey, error: &Error) {
        self.unreadable.push((Key::Recharge(key), error.to_string()));
    }
}

/// A return, for readers.
pub(in crate::postgres) async fn return_by(
    client: &impl GenericClient,
    id: ReturnId,
) -> Result<Option<RechargeReturn>, Error> {
    let row = format!("SELECT {RETURN_COLUMNS} FROM recharge_returns b WHERE b.return_id = $1");
    let row = client.query_opt(&row, &[&Id(id.number())]).await?;
    row.map(|row| return_from_row(&row)).transpose()
}

/// One order, for readers.
pub(in crate::postgres) async fn order_by(
    client: &impl GenericClient,
    id: RechargeId,
    catalog: &Catalog,
) -> Result<Option<Recharge>, Error> {
    let order = format!("SELECT {ORDER_COLUMNS} FROM recharges_tb r WHERE r.recharge_id = $1");
    let row = client.query_opt(&order, &[&Id(id.number())]).await?;
    row.map(|row| order_from_row(&row, catalog)).transpose()
}
