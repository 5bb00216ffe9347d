//! Promotions: the reserve of a bonus with its order, its way back, and the acts of operators.
//!
//! No flight touches the money of a promotion: it is one row for all workers. Each act here is one
//! fenced transaction of its own, and locks that row last or alone: with a reserve first, since no
//! other session has the new order yet.

pub mod remade;

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Transaction};

use super::admin::audit;
use super::columns::{self, Id, amount_number, asset_number, bigint};
use super::database::recharges::OrderRow;
use super::events::fenced;
use super::reads::Reads;
use super::{Error, sqlstate};
use crate::recharge::movement;
use crate::recharge::order::{BonusState, Recharge, RechargeState, RechargeStep};
use crate::recharge::promotion::{
    BonusTerms, NotApplicable, Promotion, PromotionAsk, PromotionStatus,
};
use domain::amount::Amount;
use domain::asset::Catalog;

const TABLE: &str = "promotions_tb";

/// The columns of a promotion, in the order of [`promotion_from_row`].
const COLUMNS: &str = "name, asset_id, min_amount, fixed, basis_points, bonus_max, per_user_max, \
                       starts_at, ends_at, status, available";

/// Money from outside goes into a promotion: units, asset, account and key.
const FUNDED: &str = "INSERT INTO recharge_movements (amount, at, asset_id, kind, debit, credit, \
                                                      movement_key) \
                      VALUES ($1, clock_timestamp(), $2, 15, 'outside', $3, $4)";

/// The end of a reserve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The order is made, and its bonus is set apart.
    Made(Box<Recharge>),
    /// Nothing was written: the promotion does not apply.
    Not(NotApplicable),
    /// Nothing was written: the user has too many open orders.
    TooManyOpen,
    /// Nothing was written: the key of the order is in use.
    KeyInUse,
}

/// What may change of a promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionChange {
    /// Whether it gives new bonuses.
    pub status: Option<PromotionStatus>,
    /// Its end.
    pub ends_at: Option<Timestamp>,
    /// The most orders of one user.
    pub per_user_max: Option<u32>,
}

/// The end of money that an operator puts into a promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromotionFunded {
    /// It is in. `replayed`: this key has put it in before.
    Done {
        /// The promotion as it stands.
        promotion: Promotion,
        /// Whether the act is a repeat.
        replayed: bool,
    },
    /// The key was used for another promotion or amount.
    Conflict,
    /// There is no promotion of this name, or it cannot hold so much.
    Unknown,
    /// No movement can have so long a key.
    LongKey,
}

/// Writes promotions, as one incarnation.
#[derive(Clone)]
pub struct Promotions {
    reads: Reads,
    incarnation: u64,
}

impl Promotions {
    /// Writes as `incarnation`, through the pool of `reads`.
    pub fn new(reads: Reads, incarnation: u64) -> Promotions {
        Promotions { reads, incarnation }
    }

    async fn fence(&self, transaction: &Transaction<'_>) -> Result<(), Error> {
        let fence = "SELECT fence_incarnation($1)";
        transaction.execute(fence, &[&bigint(self.incarnation)]).await.map_err(fenced)?;
        Ok(())
    }

    /// Makes an order INIT and takes its bonus out of the money of its promotion, in one
    /// transaction. `asked`: the order without its bonus. `actor`: of its history.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown, and the order's key tells it.
    pub async fn reserve(
        &self,
        asked: &Recharge,
        name: &str,
        open_max: usize,
        actor: &str,
    ) -> Result<Reserved, Error> {
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let promotion = format!("SELECT {COLUMNS} FROM promotions_tb WHERE name = $1 FOR UPDATE");
        let Some(row) = transaction.query_opt(&promotion, &[&name]).await? else {
            return Ok(Reserved::Not(NotApplicable::Unknown));
        };
        let promotion = promotion_from_row(&row, &self.reads.catalog())?;
        let uses = "SELECT count(*) FROM recharges_tb \
                     WHERE promotion = $1 AND user_id = $2 AND bonus_state IN (1, 3)";
        let used = transaction.query_one(uses, &[&name, &asked.user.bigint()]).await?;
        let ask = PromotionAsk {
            user: asked.user,
            asset: asked.asset,
            amount: asked.amount,
            used: columns::count(&used, 0, "recharges_tb")?,
            now: asked.created_at,
        };
        let bonus = match promotion.applies(&ask) {
            Ok(bonus) => bonus,
            Err(why) => return Ok(Reserved::Not(why)),
        };
        let open = "SELECT count(*) FROM recharges_tb WHERE user_id = $1 AND state IN (0, 10)";
        let open = transaction.query_one(open, &[&asked.user.bigint()]).await?;
        let open = usize::try_from(columns::count(&open, 0, "recharges_tb")?);
        if open.unwrap_or(usize::MAX) >= open_max {
            return Ok(Reserved::TooManyOpen);
        }
        let take = "UPDATE promotions_tb \
                       SET available = available - $2, updated_at = clock_timestamp() \
                     WHERE name = $1";
        transaction.execute(take, &[&name, &amount_number(bonus)]).await?;
        let order = Recharge {
            bonus: bonus.units(),
            bonus_state: Some(BonusState::Reserved),
            next_at: Some(asked.created_at),
            ..asked.clone()
        };
        let (state, actor) = (RechargeState::Init, actor.to_owned());
        let steps = [RechargeStep { state, actor, reason: None }];
        let row = OrderRow::of(&order, &steps, order.created_at);
        let insert = "INSERT INTO recharges_tb SELECT ($1::recharges_tb).*";
        match transaction.execute(insert, &[&row]).await {
            Ok(_) => {}
            Err(error) if sqlstate(&error).as_deref() == Some("23505") => {
                return Ok(Reserved::KeyInUse);
            }
            Err(error) => return Err(error.into()),
        }
        transaction.commit().await?;
        Ok(Reserved::Made(Box::new(order)))
    }

    /// Gives the bonus of an order that is over back to its promotion, if the order is as the
    /// caller has read it. Returns whether it did.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown, and the row of the order tells it.
    pub async fn give_back(&self, order: &Recharge) -> Result<bool, Error> {
        let client = self.reads.pool.get().await?;
        let back = "SELECT promotion_give_back($1, $2, $3)";
        let (id, version) = (Id(order.id.number()), bigint(order.version));
        let row = client.query_one(back, &[&bigint(self.incarnation), &id, &version]).await;
        Ok(row.map_err(fenced)?.try_get(0)?)
    }

    /// Makes a promotion, with its audit row. Returns `false` if the name is in use: then nothing
    /// is written.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown.
    pub async fn create(
        &self,
        promotion: &Promotion,
        actor: &str,
        reason: &str,
    ) -> Result<bool, Error> {
        let Promotion { name, asset, min_amount, bonus, per_user_max, .. } = promotion;
        let (fixed, basis_points, bonus_max) = match *bonus {
            BonusTerms::Fixed(bonus) => (Some(amount_number(bonus)), None, None),
            BonusTerms::Part { basis_points, max } => {
                (None, Some(number(basis_points)), Some(amount_number(max)))
            }
        };
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let insert = "INSERT INTO promotions_tb (name, asset_id, min_amount, fixed, basis_points, \
                          bonus_max, per_user_max, starts_at, ends_at, status) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING";
        let made = transaction
            .execute(
                insert,
                &[
                    name,
                    &asset_number(*asset),
                    &amount_number(*min_amount),
                    &fixed,
                    &basis_points,
                    &bonus_max,
                    &number(*per_user_max),
                    &promotion.starts_at,
                    &promotion.ends_at,
                    &promotion.status.number(),
                ],
            )
            .await?;
        if made == 0 {
            return Ok(false);
        }
        audit(&transaction, actor, "promotion create", name, "", reason).await?;
        transaction.commit().await?;
        Ok(true)
    }

    /// Changes a promotion, with its audit row; `None`: there is none of this name.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown; the same change again is harmless.
    pub async fn change(
        &self,
        name: &str,
        change: &PromotionChange,
        actor: &str,
        reason: &str,
    ) -> Result<Option<Promotion>, Error> {
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let update = format!(
            "UPDATE promotions_tb \
                SET status = COALESCE($2, status), ends_at = COALESCE($3, ends_at), \
                    per_user_max = COALESCE($4, per_user_max), updated_at = clock_timestamp() \
              WHERE name = $1 RETURNING {COLUMNS}"
        );
        let status = change.status.map(PromotionStatus::number);
        let per_user_max = change.per_user_max.map(number);
        let values: [&(dyn ToSql + Sync); 4] = [&name, &status, &change.ends_at, &per_user_max];
        let Some(row) = transaction.query_opt(&update, &values).await? else { return Ok(None) };
        let promotion = promotion_from_row(&row, &self.reads.catalog())?;
        let detail = format!(
            "{} until {}, {} a user",
            promotion.status.name(),
            promotion.ends_at,
            promotion.per_user_max
        );
        audit(&transaction, actor, "promotion change", name, &detail, reason).await?;
        transaction.commit().await?;
        Ok(Some(promotion))
    }

    /// Puts money from outside into a promotion, once for its idempotency key, with its movement
    /// and its audit row.
    ///
    /// # Errors
    /// [`Error`]: the end may be unknown; the same call again tells it.
    pub async fn fund(
        &self,
        name: &str,
        amount: Amount,
        idem_key: &str,
        (actor, reason): (&str, &str),
    ) -> Result<PromotionFunded, Error> {
        let Some(key) = movement::funded(idem_key) else { return Ok(PromotionFunded::LongKey) };
        let account = format!("promotion/{name}");
        let mut client = self.reads.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let locked = format!("SELECT {COLUMNS} FROM promotions_tb WHERE name = $1 FOR UPDATE");
        let Some(row) = transaction.query_opt(&locked, &[&name]).await? else {
            return Ok(PromotionFunded::Unknown);
        };
        let promotion = promotion_from_row(&row, &self.reads.catalog())?;
        let before = "SELECT credit = $2 AND amount = $3 FROM recharge_movements \
                       WHERE movement_key = $1";
        let units = amount_number(amount);
        if let Some(row) = transaction.query_opt(before, &[&key, &account, &units]).await? {
            return Ok(match row.try_get(0)? {
                true => PromotionFunded::Done { promotion, replayed: true },
                false => PromotionFunded::Conflict,
            });
        }
        let fits = promotion.available.checked_add(amount.units());
        let Some(available) = fits.filter(|units| *units <= domain::amount::UNITS_MAX) else {
            return Ok(PromotionFunded::Unknown);
        };
        let asset = asset_number(promotion.asset);
        match transaction.execute(FUNDED, &[&units, &asset, &account, &key]).await {
            Ok(_) => {}
            // Another promotion has had this key at the same time.
            Err(error) if sqlstate(&error).as_deref() == Some("23505") => {
                return Ok(PromotionFunded::Conflict);
            }
            Err(error) => return Err(error.into()),
        }
        let put = "UPDATE promotions_tb SET available = $2, updated_at = clock_timestamp() \
                    WHERE name = $1";
        transaction.execute(put, &[&name, &bigint(available)]).await?;
        let detail = format!("{amount} units, key {idem_key}", amount = amount.units());
        audit(&transaction, actor, "promotion fund", name, &detail, reason).await?;
        transaction.commit().await?;
        let promotion = Promotion { available, ..promotion };
        Ok(PromotionFunded::Done { promotion, replayed: false })
    }
}

impl Reads {
    /// Every promotion by name, with the sums of its bonuses.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn promotions(&self, name: Option<&str>) -> Result<Vec<PromotionUse>, Error> {
        let rows = format!(
            "SELECT {COLUMNS}, u.reserved, u.given, u.orders FROM promotions_tb p \
              CROSS JOIN LATERAL (\
                SELECT COALESCE(sum(bonus) FILTER (WHERE bonus_state = 1), 0)::bigint AS reserved, \
                       COALESCE(sum(bonus) FILTER (WHERE bonus_state = 3), 0)::bigint AS given, \
                       count(*) FILTER (WHERE bonus_state IN (1, 3)) AS orders \
                  FROM recharges_tb r WHERE r.promotion = p.name) AS u \
              WHERE $1::text IS NULL OR p.name = $1 ORDER BY p.name"
        );
        let client = self.pool.get().await?;
        let rows = client.query(&rows, &[&name]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let read = |row: &Row| {
            Ok(PromotionUse {
                promotion: promotion_from_row(row, &catalog)?,
                reserved: columns::count(row, 11, TABLE)?,
                given: columns::count(row, 12, TABLE)?,
                orders: columns::count(row, 13, TABLE)?,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Whether a key has put money into a promotion.
    ///
    /// # Errors
    /// As [`Reads::promotions`].
    pub async fn is_funded(&self, idem_key: &str) -> Result<bool, Error> {
        let Some(key) = movement::funded(idem_key) else { return Ok(false) };
        let found = "SELECT EXISTS (SELECT FROM recharge_movements WHERE movement_key = $1)";
        let client = self.pool.get().await?;
        let row = client.query_one(found, &[&key]).await?;
        self.pool.note(&client).await?;
        Ok(row.try_get(0)?)
    }

    /// The promotions, without the sums of their orders.
    ///
    /// # Errors
    /// As [`Reads::promotions`].
    pub async fn promotion_rows(&self) -> Result<Vec<Promotion>, Error> {
        let rows = format!("SELECT {COLUMNS} FROM promotions_tb ORDER BY name");
        let client = self.pool.get().await?;
        let rows = client.query(&rows, &[]).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        rows.iter().map(|row| promotion_from_row(row, &catalog)).collect()
    }
}

/// A promotion, and the sums of its orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotionUse {
    /// The promotion.
    pub promotion: Promotion,
    /// Bonuses of open orders, smallest units.
    pub reserved: u64,
    /// Bonuses that users have got, smallest units.
    pub given: u64,
    /// Orders with such a bonus.
    pub orders: u64,
}

/// As an INTEGER holds it.
fn number(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// Reads [`COLUMNS`].
fn promotion_from_row(row: &Row, catalog: &Catalog) -> Result<Promotion, Error> {
    let name: String = row.try_get(0)?;
    let bad = |what: &str| Error::Row { table: TABLE, what: format!("{name}: {what}") };
    let amount = |column, what| columns::amount(row, column)?.ok_or_else(|| bad(what));
    let (basis_points, per_user_max): (Option<i32>, i32) = (row.try_get(4)?, row.try_get(6)?);
    let bonus = match basis_points {
        None => BonusTerms::Fixed(amount(3, "fixed")?),
        Some(points) => BonusTerms::Part {
            basis_points: u32::try_from(points).map_err(|_| bad("basis_points"))?,
            max: amount(5, "bonus_max")?,
        },
    };
    Ok(Promotion {
        asset: columns::asset(row, 1, catalog)?.ok_or_else(|| bad("asset_id"))?.id,
        min_amount: amount(2, "min_amount")?,
        bonus,
        per_user_max: u32::try_from(per_user_max).map_err(|_| bad("per_user_max"))?,
        starts_at: row.try_get(7)?,
        ends_at: row.try_get(8)?,
        status: PromotionStatus::from_number(row.try_get(9)?).ok_or_else(|| bad("status"))?,
        available: columns::count(row, 10, TABLE)?,
        name,
    })
}
