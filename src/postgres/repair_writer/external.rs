//! An external operation that PostgreSQL has lost is written again from its record in the log: the row, the Funding balance,
//! and what the audit and the watermark remember of the account.

use std::fmt;

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::{Author, Repaired};
use crate::postgres::Error;
use crate::postgres::columns::{
    Numeric, amount_number, asset_number, bigint, code_number, numeric,
};
use crate::postgres::flight::tool::{Carried, ToolFlight};
use domain::asset::Catalog;
use domain::hold::HoldOrder;
use domain::transfer::op::Effect;
use domain::transfer::{Decision, ExternalOperation};

/// What brings one external operation back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalRepair {
    /// As the log has recorded it.
    pub operation: ExternalOperation,
    /// When it was recorded, ns since the Unix epoch, by the service's clock.
    pub time_ns: u64,
    /// How.
    pub way: Way,
    /// The Settle of the hold that it belongs to, if the hold is not settled any more: the money is
    /// apart, and its service has booked all of it.
    pub hold: Option<Box<HoldOrder>>,
    /// The part that only people can end, a sentence.
    pub look: Option<String>,
}

/// How an external operation is brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The row is written, and the balance follows.
    Carry,
    /// The row is written. The balance has it still.
    WriteDown,
    /// PostgreSQL has decided the same again: the row gets the order number that is recorded.
    Renumber,
}

impl fmt::Display for ExternalRepair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExternalOperation { op, idem_key, user, asset, decision, .. } = &self.operation;
        let (op, name) = (op.name(), idem_key.as_str());
        write!(out, "{op} {name}, user {user}, asset {}: ", asset.0)?;
        if self.hold.is_some() {
            return write!(out, "write it again, and settle its hold on Funding");
        }
        match (self.way, decision) {
            (Way::Renumber, _) => write!(out, "give its row the recorded order number"),
            (_, Decision::Refused(code)) => write!(out, "write its refusal again ({code})"),
            (Way::Carry, _) => write!(out, "write it again and change the Funding balance"),
            (Way::WriteDown, _) => write!(out, "write it again; the Funding balance has it"),
        }
    }
}

/// Carries one mending out, inside a savepoint of the caller.
pub(super) async fn write_repair(
    (transaction, flight): (&mut Transaction<'_>, &mut ToolFlight),
    repair: &ExternalRepair,
    catalog: &Catalog,
    author: Author<'_>,
) -> Result<Repaired, Error> {
    let ExternalRepair { operation, way, hold, look, .. } = repair;
    // Money that goes is apart before, and money that comes may go on.
    if let Some(order) = hold.as_deref().filter(|_| operation.op.takes()) {
        let settled = super::hold::settle((&*transaction, &mut *flight), order).await?;
        if settled != Repaired::Done {
            return Ok(settled);
        }
    }
    let (user, asset) = (operation.user.bigint(), asset_number(operation.asset));
    let repaired = match way {
        Way::Renumber => {
            let repaired = renumber(transaction, operation).await?;
            // The new number may be on the other side of the watermark.
            recount_below(transaction, user, asset).await?;
            repaired
        }
        Way::Carry | Way::WriteDown => {
            let repaired = write(transaction, repair, catalog).await?;
            recount_below(transaction, user, asset).await?;
            repaired
        }
    };
    if repaired == Repaired::Done {
        if *way != Way::Renumber {
            let ExternalOperation { order_number, op, user, asset, decision, .. } = *operation;
            let available = match way {
                Way::Carry => op.effect(decision, operation.amount.units()),
                Way::WriteDown | Way::Renumber => 0,
            };
            let carried = Carried { order_number, op, user, asset, decision, available };
            flight.posted(transaction, carried).await?;
        }
        let detail = repair.to_string();
        author.audit(transaction, operation.idem_key.as_str(), &detail).await?;
        if let Some(look) = look {
            author.audit(transaction, operation.idem_key.as_str(), look).await?;
        }
        if let Some(order) = hold.as_deref().filter(|_| !operation.op.takes()) {
            return super::hold::settle((&*transaction, &mut *flight), order).await;
        }
    }
    Ok(repaired)
}

async fn renumber(
    transaction: &Transaction<'_>,
    operation: &ExternalOperation,
) -> Result<Repaired, Error> {
    // The journal's guard lets no row change. What was decided stays; the balance is what the first caller was told.
    let guard = "external_operations_guard";
    let alter = |word| format!("ALTER TABLE external_operations {word} TRIGGER {guard}");
    transaction.batch_execute(&alter("DISABLE")).await?;
    // The log has 0 for a balance below zero.
    let update = "UPDATE external_operations SET order_number = $2, \
                    balance_after = CASE WHEN $3 = 0 AND balance_after < 0 THEN balance_after \
                                         ELSE $3 END \
                  WHERE idem_key = $1";
    let (name, number) = (operation.idem_key.as_str(), bigint(operation.order_number));
    let after = told(operation);
    let rows = transaction.execute(update, &[&name, &number, &after]).await?;
    transaction.batch_execute(&alter("ENABLE")).await?;
    Ok(if rows == 1 { Repaired::Done } else { Repaired::Occupied })
}

async fn write(
    transaction: &Transaction<'_>,
    repair: &ExternalRepair,
    catalog: &Catalog,
) -> Result<Repaired, Error> {
    let ExternalRepair { operation, time_ns, way, .. } = repair;
    let ExternalOperation { op, idem_key, user, asset, amount, .. } = operation;
    if catalog.by_id(*asset).is_none() {
        return Err(Error::Row { table: "assets_tb", what: format!("asset {}", asset.0) });
    }
    let amount = amount_number(*amount);
    let (user, asset) = (user.bigint(), asset_number(*asset));
    if operation.decision == Decision::Success && op.pays() {
        let account = "INSERT INTO accounts_tb (user_id) VALUES ($1) \
                       ON CONFLICT DO NOTHING";
        transaction.execute(account, &[&user]).await?;
    }
    if operation.decision == Decision::Success && *way == Way::Carry {
        let function = match op.row().available {
            Effect::More => "SELECT funding_credit($1, $2, $3)",
            // As its decision: it takes a special balance below zero, and no transfer does.
            Effect::Less => {
                "UPDATE balances_tb SET available = available - $3, version = version + 1 \
                  WHERE user_id = $1 AND asset_id = $2 AND (special OR available >= $3) \
                 RETURNING available"
            }
            Effect::Same => "SELECT NULL::numeric, $1, $2, $3",
        };
        let types = [Type::INT8, Type::INT4, Type::INT8];
        let statement = transaction.prepare_typed(function, &types).await?;
        let row = transaction.query_opt(&statement, &[&user, &asset, &amount]).await?;
        let after = row.map(|row| row.try_get::<_, Option<Numeric>>(0)).transpose()?;
        if after.flatten().is_none() {
            return Ok(Repaired::Short);
        }
    }
    let code = operation.decision.code().map(code_number);
    let after = told(operation);
    // The log has 0 for a balance below zero.
    let insert = "INSERT INTO external_operations (idem_key, op, code, user_id, asset_id, amount, \
           balance_after, at, order_number) \
         VALUES ($1, $2, $3, $4, $5, $6, \
           CASE WHEN $7::numeric = 0 \
                THEN COALESCE((SELECT LEAST(available + frozen, 0) FROM balances_tb \
                                WHERE user_id = $4 AND asset_id = $5), 0) \
                ELSE $7::numeric END, \
           to_timestamp($8::double precision), $9) \
         ON CONFLICT DO NOTHING";
    let seconds = std::time::Duration::from_nanos(*time_ns).as_secs_f64();
    let (name, op) = (idem_key.as_str(), i16::from(*op as u8));
    let number = bigint(operation.order_number);
    let values: &[&(dyn ToSql + Sync)] =
        &[&name, &op, &code, &user, &asset, &amount, &after, &seconds, &number];
    let rows = transaction.execute(insert, values).await?;
    Ok(if rows == 1 { Repaired::Done } else { Repaired::Occupied })
}

/// The balance that the caller was told, and is told again; of a success only.
fn told(operation: &ExternalOperation) -> Option<Numeric> {
    let success = operation.decision == Decision::Success;
    success.then(|| numeric(operation.balance_after))
}

/// Adds up the account's rows below the watermark: a row that is written again counts once.
async fn recount_below(transaction: &Transaction<'_>, user: i64, asset: i32) -> Result<(), Error> {
    let recount = "INSERT INTO watermark_totals (user_id, asset_id, external_deposited, external_withdrawn) \
          SELECT $1, $2, COALESCE(sum(amount) FILTER (WHERE op = 4), 0), \
                 COALESCE(sum(amount) FILTER (WHERE op = 5), 0) \
            FROM external_operations x \
           WHERE x.user_id = $1 AND x.asset_id = $2 AND x.code IS NULL \
             AND x.order_number < (SELECT watermark FROM engine_state) \
          ON CONFLICT (user_id, asset_id) DO UPDATE \
          SET external_deposited = EXCLUDED.external_deposited, \
              external_withdrawn = EXCLUDED.external_withdrawn";
    transaction.execute(recount, &[&user, &asset]).await?;
    Ok(())
}
