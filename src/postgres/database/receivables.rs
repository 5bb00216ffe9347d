//! Rows of receivables: as a flight writes them, and as they are read.

use jiff::Timestamp;
use postgres_types::{FromSql, ToSql};
use tokio_postgres::{GenericClient, Row};

use super::unreadable;
use crate::postgres::Error;
use crate::postgres::columns::{self, Id, amount_number, asset_number, bigint};
use crate::recharge::returned::{Receivable, ReceivableAct, ReceivableEnd};
use crate::recharge::{PaymentId, ReturnId};
use domain::amount::Amount;
use domain::asset::Catalog;

const TABLE: &str = "receivables_tb";

#[derive(Debug, ToSql, FromSql)]
#[postgres(name = "receivable_act")]
struct Act {
    at: Timestamp,
    kind: i16,
    amount: i64,
    idem_key: String,
    actor: String,
}

#[derive(Debug, ToSql)]
#[postgres(name = "receivables_tb")]
pub(super) struct ReceivableRow {
    user_id: i64,
    amount: i64,
    recovered: i64,
    written_off: i64,
    version: i64,
    at: Timestamp,
    return_id: Id,
    asset_id: i32,
    updated_at: Timestamp,
    payment_id: Id,
    acts: Vec<Act>,
}

impl ReceivableRow {
    /// A receivable as it stands, with the acts of this flight alone.
    pub(super) fn of(row: &Receivable, acts: &[ReceivableAct]) -> ReceivableRow {
        let act = |act: &ReceivableAct| Act {
            at: act.at,
            kind: act.end.number(),
            amount: amount_number(act.amount),
            idem_key: act.idem_key.clone(),
            actor: act.actor.clone(),
        };
        ReceivableRow {
            user_id: row.user.bigint(),
            amount: amount_number(row.amount),
            recovered: bigint(row.recovered),
            written_off: bigint(row.written_off),
            version: bigint(row.version),
            at: row.at,
            return_id: Id(row.id.number()),
            asset_id: asset_number(row.asset),
            updated_at: row.updated_at,
            payment_id: Id(row.payment.number()),
            acts: acts.iter().map(act).collect(),
        }
    }
}

/// The columns of a receivable, in the order of [`receivable_from_row`].
pub(in crate::postgres) const RECEIVABLE_COLUMNS: &str = "return_id, payment_id, user_id, asset_id, amount, recovered, written_off, \
                       acts, at, updated_at, version";

/// Reads [`RECEIVABLE_COLUMNS`].
pub(in crate::postgres) fn receivable_from_row(
    row: &Row,
    catalog: &Catalog,
) -> Result<Receivable, Error> {
    let (Id(id), Id(payment)) = (row.try_get(0)?, row.try_get(1)?);
    let id = ReturnId::new(id).ok_or_else(|| unreadable(TABLE, "return_id"))?;
    let bad = |what: &str| unreadable(TABLE, format!("{id}: {what}"));
    let asset = columns::asset(row, 3, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let acts: Vec<Act> = row.try_get(7)?;
    let act = |act: Act| {
        let amount = u64::try_from(act.amount).ok().and_then(Amount::new);
        Ok(ReceivableAct {
            at: act.at,
            end: ReceivableEnd::from_number(act.kind).ok_or_else(|| bad("acts"))?,
            amount: amount.ok_or_else(|| bad("acts"))?,
            idem_key: act.idem_key,
            actor: act.actor,
        })
    };
    Ok(Receivable {
        id,
        payment: PaymentId::new(payment).ok_or_else(|| bad("payment_id"))?,
        user: columns::user(row, 2)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        amount: columns::amount(row, 4)?.ok_or_else(|| bad("amount"))?,
        recovered: columns::count(row, 5, TABLE)?,
        written_off: columns::count(row, 6, TABLE)?,
        acts: acts.into_iter().map(act).collect::<Result<_, Error>>()?,
        at: row.try_get(8)?,
        updated_at: row.try_get(9)?,
        version: columns::count(row, 10, TABLE)?,
    })
}

/// The receivables of payments.
pub(in crate::postgres) async fn of_payments(
    client: &impl GenericClient,
    payments: &[Id],
    catalog: &Catalog,
) -> Result<Vec<Receivable>, Error> {
    let rows =
        format!("SELECT {RECEIVABLE_COLUMNS} FROM receivables_tb WHERE payment_id = ANY ($1)");
    let rows = client.query(&rows, &[&payments]).await?;
    rows.iter().map(|row| receivable_from_row(row, catalog)).collect()
}

/// The receivable of a return, for readers.
pub(in crate::postgres) async fn receivable_by(
    client: &impl GenericClient,
    id: ReturnId,
    catalog: &Catalog,
) -> Result<Option<Receivable>, Error> {
    let row = format!("SELECT {RECEIVABLE_COLUMNS} FROM receivables_tb WHERE return_id = $1");
    let row = client.query_opt(&row, &[&Id(id.number())]).await?;
    row.map(|row| receivable_from_row(&row, catalog)).transpose()
}
