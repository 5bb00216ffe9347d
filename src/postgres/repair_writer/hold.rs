//! A hold that PostgreSQL has lost the end of is settled again, as the rows of its transaction say
//! and the records of its external operations in the log prove.

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;

use super::Repaired;
use crate::postgres::Error;
use crate::postgres::columns::{self, Numeric, asset_number, bigint, numeric};
use crate::postgres::flight::tool::ToolFlight;
use domain::hold::{HoldAct, HoldOrder, HoldState};

/// Settles a hold, inside a savepoint of the caller, without its external operations. A hold that
/// is settled stays as it is.
pub(super) async fn settle(
    (transaction, flight): (&Transaction<'_>, &mut ToolFlight),
    order: &HoldOrder,
) -> Result<Repaired, Error> {
    let HoldAct::Settle { taken, brought, deposited, withdrawn, passed } = order.act else {
        unreachable!("planned with a Settle: {order:?}")
    };
    let key = order.key.as_str();
    let held = "SELECT state, amount FROM funding_holds WHERE hold_key = $1 FOR UPDATE";
    let amount = match transaction.query_opt(held, &[&key]).await? {
        None => 0,
        Some(row) => match HoldState::from_number(row.try_get(0)?) {
            Some(HoldState::Held) => columns::count(&row, 1, "funding_holds")?,
            Some(HoldState::Settled) => return Ok(Repaired::Done),
            Some(HoldState::Released) | None => return Ok(Repaired::Occupied),
        },
    };
    // What a special place pays was not apart. What a refused round has apart too goes back.
    let paid = u128::from(taken) + u128::from(withdrawn);
    if !order.special && paid > u128::from(amount) + u128::from(passed) {
        return Ok(Repaired::Occupied);
    }
    let apart = i128::from(amount);
    let available = i128::from(brought) - i128::from(taken) + apart;
    let (user, asset) = (order.user.bigint(), asset_number(order.asset));
    let begin = "INSERT INTO balances_tb (user_id, asset_id, available) VALUES ($1, $2, 0) \
                 ON CONFLICT DO NOTHING";
    transaction.execute(begin, &[&user, &asset]).await?;
    let change = "UPDATE balances_tb \
             SET available = available + $3, frozen = frozen - $4, version = version + 1 \
           WHERE user_id = $1 AND asset_id = $2 AND (special OR available + $3 >= 0) \
             AND frozen >= $4 \
           RETURNING available + frozen, version";
    let values: &[&(dyn ToSql + Sync)] =
        &[&user, &asset, &Numeric(available), &numeric(amount.into())];
    let Some(row) = transaction.query_opt(change, values).await? else {
        return Ok(Repaired::Short);
    };
    let (after, version): (Numeric, _) = (row.try_get(0)?, columns::count(&row, 1, "balances_tb")?);
    // 10 and 0: as a hold without a round.
    let none = "INSERT INTO funding_holds (order_number, user_id, amount, asked, taken, brought, \
           created_at, updated_at, asset_id, state, round, reason, pays, paid, hold_key, \
           special) \
         VALUES ($1, $2, 0, 0, 0, 0, clock_timestamp(), clock_timestamp(), $3, 10, 0, 1, FALSE, \
           FALSE, $4, $5) ON CONFLICT DO NOTHING";
    let number = bigint(order.order_number);
    transaction.execute(none, &[&number, &user, &asset, &key, &order.special]).await?;
    let end = "UPDATE funding_holds \
           SET state = 40, taken = $2, brought = $3, deposited = $4, withdrawn = $5, \
               settled_after = $6, updated_at = clock_timestamp(), amount = $11 \
         WHERE hold_key = $1 AND order_number = $7 AND user_id = $8 AND asset_id = $9 \
           AND purpose = 0 AND special = $10";
    let kept = if order.special { 0 } else { paid.saturating_sub(passed.into()) };
    let kept =
        bigint(u64::try_from(kept).expect("at most the amount apart, which fits its column"));
    let amounts = [taken, brought, deposited, withdrawn].map(bigint);
    let values: &[&(dyn ToSql + Sync)] = &[
        &key,
        &amounts[0],
        &amounts[1],
        &amounts[2],
        &amounts[3],
        &after,
        &number,
        &user,
        &asset,
        &order.special,
        &kept,
    ];
    if transaction.execute(end, values).await? != 1 {
        return Ok(Repaired::Occupied);
    }
    flight.settled(order, (available, -apart), version);
    Ok(Repaired::Done)
}
