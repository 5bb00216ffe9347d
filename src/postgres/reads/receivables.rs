//! Receivables, for operators: a page of them, the oldest first.

use jiff::Timestamp;

use super::Reads;
use super::recharge_search::{Conditions, cut};
use crate::postgres::Error;
use crate::postgres::columns::Id;
use crate::postgres::database::receivables::{RECEIVABLE_COLUMNS, receivable_from_row};
use crate::recharge::ReturnId;
use crate::recharge::returned::Receivable;
use domain::account::UserId;

/// Which receivables.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivableSearch {
    /// Of this user.
    pub user: Option<UserId>,
    /// Only those of which a part is still owed.
    pub open: bool,
    /// Behind this one: the cursor.
    pub after: Option<(Timestamp, ReturnId)>,
    /// At most so many.
    pub limit: u32,
}

/// A page of receivables.
#[derive(Clone, Debug)]
pub struct ReceivablesFound {
    /// Oldest first: the longest debt stands on top.
    pub receivables: Vec<Receivable>,
    /// The receivable that the next page begins behind; `None` at the end.
    pub next: Option<(Timestamp, ReturnId)>,
}

impl Reads {
    /// A page of receivables.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn search_receivables(
        &self,
        search: &ReceivableSearch,
    ) -> Result<ReceivablesFound, Error> {
        let user = search.user.map(UserId::bigint);
        let after = search.after.map(|(at, id)| (at, Id(id.number())));
        let mut conditions = Conditions::default();
        if search.open {
            // As the index of open ones has it.
            conditions.plain("recovered + written_off < amount");
        }
        if let Some(user) = &user {
            conditions.and("user_id = ?", user);
        }
        if let Some((at, id)) = &after {
            conditions.behind("at, return_id", at, id);
        }
        let page = format!(
            "SELECT {RECEIVABLE_COLUMNS} FROM receivables_tb WHERE {} \
              ORDER BY at, return_id LIMIT {}",
            conditions.text(),
            u64::from(search.limit) + 1
        );
        let client = self.pool.get().await?;
        let rows = client.query(&page, conditions.values()).await?;
        self.pool.note(&client).await?;
        let catalog = self.catalog();
        let receivables = rows.iter().map(|row| receivable_from_row(row, &catalog));
        let mut receivables = receivables.collect::<Result<Vec<Receivable>, Error>>()?;
        let more = cut(&mut receivables, search.limit);
        let next = receivables.last().filter(|_| more).map(|one| (one.at, one.id));
        Ok(ReceivablesFound { receivables, next })
    }
}
