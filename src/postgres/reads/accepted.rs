//! What a user has had accepted since a moment, for the limits of a day.

use jiff::{SignedDuration, Timestamp};

use super::Reads;
use crate::postgres::{Error, columns};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::State;

/// Rows read at once.
const ROWS_PER_PAGE: i64 = 4_096;
/// A user's rows lie in the order of their stamps but for what one batch commits together and what waits for its turn:
/// seconds. The search ends with a page whose last row is older by this much; a clock that went back for a moment has
/// stamped rows of an earlier day among later ones.
const DISORDER: SignedDuration = SignedDuration::from_secs(60);

/// A transfer that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// When, by the service's clock.
    pub at: Timestamp,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// Where it stands.
    pub state: State,
}

impl Reads {
    /// Tells `each` of every transfer of a user's that was accepted since a moment, newest first, as long as it says
    /// that it wants more. Those behind recharges do not count: the user has not asked for them by themselves. It reads those and little more, however many the user has ever had.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or a row cannot be read.
    pub async fn accepted_since(
        &self,
        user: UserId,
        since: Timestamp,
        mut each: impl FnMut(Accepted) -> bool,
    ) -> Result<(), Error> {
        let select = "SELECT order_number, created_at, asset_id, amount, state FROM transfers_tb \
                      WHERE user_id = $1 AND order_number < $2 \
                        AND (cid IS NULL OR cid NOT LIKE 'recharge/%') \
                      ORDER BY order_number DESC LIMIT $3";
        let client = self.pool.get().await?;
        let statement = client.prepare_cached(select).await?;
        let catalog = self.catalog();
        let mut before = i64::MAX;
        loop {
            let rows = client.query(&statement, &[&user.bigint(), &before, &ROWS_PER_PAGE]).await?;
            let mut ended = false;
            for row in &rows {
                let number: i64 = row.try_get(0)?;
                debug_assert!(number < before, "newest first: each page ends further back");
                before = number;
                let at: Timestamp = row.try_get(1)?;
                ended = at + DISORDER < since;
                if at < since {
                    continue;
                }
                let bad =
                    |what| Error::Row { table: "transfers_tb", what: format!("{before}: {what}") };
                let asset = columns::asset(row, 2, &catalog)?.ok_or_else(|| bad("asset_id"))?;
                let accepted = Accepted {
                    at,
                    asset: asset.id,
                    amount: columns::amount(row, 3)?.ok_or_else(|| bad("amount"))?,
                    state: State::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?,
                };
                if !each(accepted) {
                    return Ok(());
                }
            }
            if ended || i64::try_from(rows.len()).is_ok_and(|count| count < ROWS_PER_PAGE) {
                return Ok(());
            }
        }
    }
}
