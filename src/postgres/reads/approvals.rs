//! Approvals, as PostgreSQL keeps them: the request of one operator, and the decision of another.

use jiff::Timestamp;
use tokio_postgres::Row;

use super::Reads;
use crate::approval::{Action, State};
use crate::postgres::Error;

/// The most approvals in a list.
const LISTED_MAX: i64 = 200;

/// A pending one that has expired is told to be so, before anybody has written it down.
pub(in crate::postgres) const COLUMNS: &str = "approval_id, action, subject, request, \
    CASE WHEN state = 1 AND expires_at <= clock_timestamp() THEN 4::smallint ELSE state END, \
    expires_at <= clock_timestamp(), maker, reason, created_at, expires_at, decider, decider_reason, decided_at, \
    carried_out_at";

/// An approval as it stands.
#[derive(Clone, Debug)]
pub struct Approval {
    /// Its name.
    pub approval_id: String,
    /// What is to be done.
    pub action: Action,
    /// What it is about.
    pub subject: String,
    /// All that is needed to do it, JSON.
    pub request: String,
    /// Where it stands.
    pub state: State,
    /// Its time is over, by PostgreSQL's clock.
    pub expired: bool,
    /// Who has asked.
    pub maker: u64,
    /// Why.
    pub reason: String,
    /// When.
    pub created_at: Timestamp,
    /// Until when it may be approved and carried out.
    pub expires_at: Timestamp,
    /// Who has decided it, and why.
    pub decider: Option<(u64, String)>,
    /// When.
    pub decided_at: Option<Timestamp>,
    /// When it was carried out, where that has been written down.
    pub carried_out_at: Option<Timestamp>,
}

impl Reads {
    /// The newest approvals, newest first, or those in one state.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn approvals(&self, state: Option<State>) -> Result<Vec<Approval>, Error> {
        let list = format!(
            "SELECT {COLUMNS} FROM approvals_tb \
             WHERE $1::smallint IS NULL OR $1 = CASE WHEN state = 1 AND expires_at <= clock_timestamp() \
                                                     THEN 4 ELSE state END \
             ORDER BY created_at DESC LIMIT $2"
        );
        let client = self.pool.get().await?;
        let state = state.map(|state| state as i16);
        let rows = client.query(&list, &[&state, &LISTED_MAX]).await?;
        rows.iter().map(approval_from_row).collect()
    }

    /// The number of the last halt that PostgreSQL has been told of, 0 for none.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn last_halt(&self) -> Result<i64, Error> {
        let last = "SELECT COALESCE(max(id), 0) FROM admin_audit WHERE action = 'halt'";
        Ok(self.pool.get().await?.query_one(last, &[]).await?.try_get(0)?)
    }

    /// Whether an external operation is recorded: then nothing can come of the same idem_key any more.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn external_is_recorded(&self, idem_key: &str) -> Result<bool, Error> {
        let find = "SELECT 1 FROM external_operations WHERE idem_key = $1";
        Ok(self.pool.get().await?.query_opt(find, &[&idem_key]).await?.is_some())
    }
}

pub(in crate::postgres) fn approval_from_row(row: &Row) -> Result<Approval, Error> {
    let approval_id: String = row.try_get(0)?;
    let bad =
        |what: &str| Error::Row { table: "approvals_tb", what: format!("{approval_id}: {what}") };
    let unsigned = |number: i64| u64::try_from(number).map_err(|_| bad("a user"));
    let decider = row.try_get::<_, Option<i64>>(10)?.map(unsigned).transpose()?;
    Ok(Approval {
        action: Action::from_name(row.try_get(1)?).ok_or_else(|| bad("action"))?,
        subject: row.try_get(2)?,
        request: row.try_get(3)?,
        state: State::from_number(row.try_get(4)?).ok_or_else(|| bad("state"))?,
        expired: row.try_get(5)?,
        maker: unsigned(row.try_get(6)?)?,
        reason: row.try_get(7)?,
        created_at: row.try_get(8)?,
        expires_at: row.try_get(9)?,
        decider: decider.zip(row.try_get::<_, Option<String>>(11)?),
        decided_at: row.try_get(12)?,
        carried_out_at: row.try_get(13)?,
        approval_id,
    })
}
