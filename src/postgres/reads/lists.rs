//! Lists of transfers for operators and for their owners, newest first, a page at a time.
//!
//! No index names `state`, so nothing here looks for a state among all rows. An operator's transfers that are not terminal are
//! found by the order numbers that the coordinator has under way, of which there are few; those in one terminal state, and
//! everything an owner looks for, among the newest `ROWS_PER_PAGE` before the page's beginning. A cid, and all that one user
//! has, are found by an index each.
//!
//! A page begins below an order number. What comes in later has a higher one, so no later page skips or repeats for it. Only
//! what is not terminal can be had the other way round, oldest first: whatever ends meanwhile leaves the later pages.

use jiff::Timestamp;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use tracing::error;

use super::{Passed, Reads, history, snapshot};
use crate::postgres::Error;
use crate::postgres::columns::{self, Id};
use crate::postgres::database::{
    TRANSFER_COLUMNS, TRANSFER_COLUMNS_COUNT, decision, transfer_from_row,
};
use crate::postgres::store::Transfer;
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::transfer::{Cid, Decision, Direction, Op, ReqId, State};

/// Rows looked at for one page.
const ROWS_PER_PAGE: i64 = 10_000;

/// What follows [`TRANSFER_COLUMNS`] in a list.
const LISTED_COLUMNS: &str =
    "next_retry_at, (extract(epoch FROM clock_timestamp() - created_at) * 1000)::bigint";
/// Where it begins.
const LISTED_FROM: usize = TRANSFER_COLUMNS_COUNT;

/// A transfer in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// As PostgreSQL has it.
    pub transfer: Transfer,
    /// When it is tried again, where a try has failed.
    pub next_retry_at: Option<Timestamp>,
    /// How long ago it was accepted, milliseconds, by PostgreSQL's clock.
    pub age_ms: u64,
}

/// In which states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// In any.
    Anywhere,
    /// In one that is not terminal.
    UnderWay,
    /// In this one.
    In(State),
}

impl Stands {
    /// Whether a transfer that has ended may be among them.
    pub fn may_have_ended(self) -> bool {
        match self {
            Stands::Anywhere => true,
            Stands::UnderWay => false,
            Stands::In(state) => state.is_terminal(),
        }
    }

    fn states(self) -> Option<Vec<i16>> {
        let all = State::ALL.into_iter();
        match self {
            Stands::Anywhere => None,
            Stands::UnderWay => {
                Some(all.filter(|state| !state.is_terminal()).map(State::number).collect())
            }
            Stands::In(state) => Some(vec![state.number()]),
        }
    }
}

/// Which transfers. Everything that may have ended is of one state, of a user or of a cid.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Where they stand.
    pub stands: Stands,
    /// Of this user.
    pub user: Option<UserId>,
    /// With this idempotency key: one of each user at most.
    pub cid: Option<Cid>,
    /// Accepted so long ago, milliseconds.
    pub older_ms: Option<u64>,
    /// Oldest first; of what is not terminal only.
    pub oldest_first: bool,
    /// Behind this order number, in the order of the list.
    pub behind: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// Which of one user's transfers.
#[derive(Clone, Debug)]
pub struct OwnFilter {
    /// Whose.
    pub user: UserId,
    /// In this state, or in one that UBSCore's record may have ended with it: see [`Reads::own_list`].
    pub state: Option<State>,
    /// Of this asset.
    pub asset: Option<AssetId>,
    /// In this direction.
    pub direction: Option<Direction>,
    /// With this idempotency key.
    pub cid: Option<Cid>,
    /// Accepted then or later.
    pub since: Option<Timestamp>,
    /// Accepted earlier.
    pub until: Option<Timestamp>,
    /// With a smaller order number.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: u32,
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct ListPage<T> {
    /// Newest first, where nobody asked for the other way round.
    pub transfers: Vec<T>,
    /// The order number behind which the next page begins, `None` at the end.
    pub next: Option<u64>,
}

/// The rows that one page looks at: all of the list's below its beginning and from `first` on.
struct Window {
    /// The lowest order number.
    first: i64,
    /// There may be rows below it.
    more: bool,
}

/// The window that ends nowhere.
const EVERYTHING: Window = Window { first: 0, more: false };

impl Window {
    /// The newest rows below `before`, of one user or of all.
    async fn find(client: &Client, before: i64, user: Option<i64>) -> Result<Window, Error> {
        let mut bounds: Vec<&(dyn ToSql + Sync)> = vec![&before];
        let of_user = match &user {
            Some(user) => {
                bounds.push(user);
                "AND user_id = $2"
            }
            None => "",
        };
        let ends = format!(
            "SELECT count(*), min(order_number) FROM (\
               SELECT order_number FROM transfers_tb WHERE order_number < $1 {of_user} \
               ORDER BY order_number DESC LIMIT {ROWS_PER_PAGE}\
             ) AS page"
        );
        let row = client.query_one(&ends, &bounds).await?;
        let count: i64 = row.try_get(0)?;
        let first = row.try_get::<_, Option<i64>>(1)?.unwrap_or(0);
        Ok(Window { first, more: count == ROWS_PER_PAGE })
    }

    /// The order number behind which the next page begins, after this one has `found` at most `limit` rows.
    fn next(&self, found: &[Row], limit: i64) -> Result<Option<u64>, Error> {
        let full = i64::try_from(found.len()).is_ok_and(|found| found == limit);
        debug_assert!(found.len() as u64 <= limit.unsigned_abs(), "the statement has a LIMIT");
        let next = match found.last() {
            Some(last) if full => Some(last.try_get::<_, i64>(0)?),
            _ if self.more => Some(self.first),
            _ => None,
        };
        Ok(next.and_then(|next| u64::try_from(next).ok()))
    }
}

/// An order number as PostgreSQL's BIGINT; what is above is above every one.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What can be read of the rows.
fn readable<T>(rows: &[Row], read: impl Fn(&Row) -> Result<T, Error>) -> Vec<T> {
    let mut transfers = Vec::with_capacity(rows.len());
    for row in rows {
        match read(row) {
            Ok(transfer) => transfers.push(transfer),
            // One bad row must not hide the others.
            Err(error) => error!(%error, "a transfer cannot be read and is left out"),
        }
    }
    transfers
}

/// The states that a row may have whose transfer is in `state` for everybody who asks: UBSCore's record may have ended it.
fn stored_as(state: State) -> Vec<i16> {
    let may_be =
        |stored: &State| *stored == state || (state.is_terminal() && !stored.is_terminal());
    State::ALL.into_iter().filter(may_be).map(State::number).collect()
}

/// A Funding operation as it is recorded.
#[derive(Clone, Debug)]
pub struct Posted {
    /// WITHDRAW, DEPOSIT or REFUND.
    pub op: Op,
    /// What was decided.
    pub decision: Decision,
    /// How much.
    pub amount: Amount,
    /// The Funding balance afterwards, smallest units; of a success only.
    pub balance_after: Option<i128>,
    /// When, by the service's clock.
    pub at: Timestamp,
}

/// Everything that PostgreSQL has of one transfer.
#[derive(Clone, Debug)]
pub struct Dossier {
    /// The transfer.
    pub listed: Listed,
    /// Every state it has passed through, in order.
    pub history: Vec<Passed>,
    /// Its Funding operations.
    pub operations: Vec<Posted>,
}

impl Reads {
    /// One page of a list. `under_way`: the order numbers of everything that is not terminal, and of whatever else.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn list(
        &self,
        filter: &Filter,
        under_way: &[u64],
    ) -> Result<ListPage<Listed>, Error> {
        assert!(filter.limit > 0, "a page has room");
        assert!(
            !(filter.oldest_first && filter.stands.may_have_ended()),
            "no index leads from the oldest of what has ended"
        );
        let client = self.pool.get().await?;
        let user = filter.user.map(UserId::bigint);
        let cid = filter.cid.as_ref().map(Cid::as_str);
        let behind = filter.behind.map(bigint);
        let limit = i64::from(filter.limit);
        let window = match filter.stands {
            Stands::In(state) if state.is_terminal() && cid.is_none() => {
                Some(Window::find(&client, behind.unwrap_or(i64::MAX), user).await?)
            }
            _ => None,
        };
        let numbers = (cid.is_none() && !filter.stands.may_have_ended())
            .then(|| under_way.iter().copied().map(bigint).collect::<Vec<i64>>());
        let first = window.as_ref().map(|window| window.first);
        let states = filter.stands.states();
        let older_ms = filter.older_ms.map(bigint);
        let (order, beyond) = match filter.oldest_first {
            true => ("ASC", "order_number > $?"),
            false => ("DESC", "order_number < $?"),
        };
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&limit];
        let mut conditions = vec!["TRUE".to_owned()];
        let wanted = [
            (beyond, behind.as_ref().map(|behind| behind as &(dyn ToSql + Sync))),
            ("order_number >= $?", first.as_ref().map(|first| first as _)),
            ("order_number = ANY ($?)", numbers.as_ref().map(|numbers| numbers as _)),
            ("state = ANY ($?)", states.as_ref().map(|states| states as _)),
            ("user_id = $?", user.as_ref().map(|user| user as _)),
            (
                "created_at <= clock_timestamp() - $?::bigint * interval '1 millisecond'",
                older_ms.as_ref().map(|older_ms| older_ms as _),
            ),
        ];
        // Only what is asked for is named, so that the planner sees which index leads there.
        for (condition, value) in wanted {
            let Some(value) = value else { continue };
            values.push(value);
            conditions.push(condition.replace("$?", &format!("${}", values.len())));
        }
        let rows = match &cid {
            // By its index, however tempting it looks to walk through the newest rows until one has it. It is unique for a user only:
            // of a cid that is everybody's, such as "1", some are enough.
            Some(cid) => {
                values.push(cid);
                let mut found = format!("cid = ${}", values.len());
                if let Some(user) = &user {
                    values.push(user);
                    found = format!("{found} AND user_id = ${}", values.len());
                }
                format!("(SELECT * FROM transfers_tb WHERE {found} LIMIT {ROWS_PER_PAGE}) AS t")
            }
            None => "transfers_tb".to_owned(),
        };
        let select = format!(
            "SELECT {TRANSFER_COLUMNS}, {LISTED_COLUMNS} FROM {rows} WHERE {} \
             ORDER BY order_number {order} LIMIT $1",
            conditions.join(" AND ")
        );
        let found = client.query(&select, &values).await?;
        self.pool.note(&client).await?;
        let next = window.unwrap_or(EVERYTHING).next(&found, limit)?;
        Ok(ListPage { transfers: readable(&found, |row| self.listed(row)), next })
    }

    /// One page of a user's transfers. Where a terminal state is asked for, those that are not terminal in PostgreSQL are
    /// among them, since UBSCore's record may have ended them: whoever asks has to look there and to leave out the others.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn own_list(&self, filter: &OwnFilter) -> Result<ListPage<Transfer>, Error> {
        assert!(filter.limit > 0, "a page has room");
        let client = self.pool.get().await?;
        let (user, limit) = (filter.user.bigint(), i64::from(filter.limit));
        let before = filter.before.map_or(i64::MAX, bigint);
        let window = match filter.cid {
            // It names one transfer, which an index finds.
            Some(_) => EVERYTHING,
            None => Window::find(&client, before, Some(user)).await?,
        };
        let states = filter.state.map(stored_as);
        let asset = filter.asset.map(|asset| i32::try_from(asset.0).expect("from an INTEGER"));
        let direction = filter.direction.map(|direction| i16::from(direction as u8));
        let cid = filter.cid.as_ref().map(Cid::as_str);
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![&user, &before, &window.first, &limit];
        let mut conditions = String::new();
        let wanted = [
            ("state = ANY", states.as_ref().map(|states| states as &(dyn ToSql + Sync))),
            ("asset_id =", asset.as_ref().map(|asset| asset as _)),
            ("direction =", direction.as_ref().map(|direction| direction as _)),
            ("cid =", cid.as_ref().map(|cid| cid as _)),
            ("created_at >=", filter.since.as_ref().map(|since| since as _)),
            ("created_at <", filter.until.as_ref().map(|until| until as _)),
        ];
        // Only what is asked for is named, so that the planner sees which index leads there.
        for (condition, value) in wanted {
            let Some(value) = value else { continue };
            values.push(value);
            conditions += &format!(" AND {condition} (${})", values.len());
        }
        let select = format!(
            "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
             WHERE user_id = $1 AND order_number < $2 AND order_number >= $3{conditions} \
             ORDER BY order_number DESC LIMIT $4"
        );
        let found = client.query(&select, &values).await?;
        self.pool.note(&client).await?;
        let next = window.next(&found, limit)?;
        let catalog = self.catalog.load();
        Ok(ListPage { transfers: readable(&found, |row| transfer_from_row(row, &catalog)), next })
    }

    /// Everything that PostgreSQL has of one transfer, at one moment.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or a row cannot be read.
    pub async fn dossier(&self, req_id: ReqId) -> Result<Option<Dossier>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = snapshot(&mut client).await?;
        let transfer = format!(
            "SELECT {TRANSFER_COLUMNS}, {LISTED_COLUMNS} FROM transfers_tb WHERE req_id = $1"
        );
        let id = Id::of(req_id);
        let Some(row) = transaction.query_opt(&transfer, &[&id]).await? else {
            return Ok(None);
        };
        let listed = self.listed(&row)?;
        let history = history(&transaction, req_id).await?;
        let operations = "SELECT op, code, amount, balance_after, at \
                          FROM transfer_decisions WHERE req_id = $1 ORDER BY at, op";
        let mut posted = Vec::new();
        for row in transaction.query(operations, &[&id]).await? {
            let bad = |what: &str| Error::Row {
                table: "transfers_tb",
                what: format!("{req_id}: {what}"),
            };
            posted.push(Posted {
                op: columns::op(&row, 0)?.ok_or_else(|| bad("op"))?,
                decision: decision(&row, 1)?,
                amount: columns::amount(&row, 2)?.ok_or_else(|| bad("amount"))?,
                balance_after: columns::signed_or_null(&row, 3).ok_or_else(|| bad("a balance"))?,
                at: row.try_get(4)?,
            });
        }
        transaction.commit().await?;
        self.pool.note(&client).await?;
        Ok(Some(Dossier { listed, history, operations: posted }))
    }

    fn listed(&self, row: &Row) -> Result<Listed, Error> {
        Ok(Listed {
            transfer: transfer_from_row(row, &self.catalog.load())?,
            next_retry_at: row.try_get(LISTED_FROM)?,
            // A clock that went back makes nobody older.
            age_ms: u64::try_from(row.try_get::<_, i64>(LISTED_FROM + 1)?).unwrap_or(0),
        })
    }
}
