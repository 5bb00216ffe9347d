//! Approvals, as PostgreSQL keeps them: what one operator asks for, and what another one decides. Both are written down with
//! their reasons, each in the transaction of what they have done.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::Row;

use super::{Reads, audit};
use crate::approval::{Action, State};
use crate::postgres::Error;
use domain::account::UserId;

/// The most approvals in a list.
const LISTED_MAX: i64 = 200;

/// A pending one that has expired is told to be so, before anybody has written it down.
const COLUMNS: &str = "approval_id, action, subject, request, \
    CASE WHEN state = 1 AND expires_at <= clock_timestamp() THEN 4::smallint ELSE state END, \
    expires_at <= clock_timestamp(), maker, reason, created_at, expires_at, decider, decider_reason, decided_at, \
    carried_out_at";

/// What somebody wants to be approved.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Its name, if it is a new one.
    pub approval_id: &'a str,
    /// What is to be done.
    pub action: Action,
    /// What it is about; who asks for the same action about the same is given the same approval.
    pub subject: &'a str,
    /// All that is needed to do it, JSON.
    pub request: &'a str,
    /// Who asks.
    pub maker: UserId,
    /// Why.
    pub reason: &'a str,
    /// How long it may be approved.
    pub expires_after: Duration,
}

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

/// What somebody decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// It may be carried out.
    Approve,
    /// It never will be.
    Reject,
}

/// Why nothing was decided.
#[derive(Clone, Debug)]
pub enum Undecided {
    /// There is no such approval.
    Unknown,
    /// Whoever has asked cannot approve.
    Own,
    /// It is decided the other way, or its time is over.
    Closed(Box<Approval>),
}

impl Reads {
    /// Writes down what somebody wants, unless they have asked for the same before and nobody has decided it: then that is
    /// returned, whatever it was asked with.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. Whether it was done may be unknown; the same again is harmless.
    pub async fn ask_approval(&self, wish: Wish<'_>) -> Result<Approval, Error> {
        let Wish { approval_id, action, subject, request, maker, reason, expires_after } = wish;
        let (action, maker) = (action.name(), maker.bigint());
        let expires_ms = i64::try_from(expires_after.as_millis()).expect("a bounded time");
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let over = "UPDATE approvals_tb SET state = 4 \
                    WHERE maker = $1 AND action = $2 AND subject = $3 AND state = 1 \
                    AND expires_at <= clock_timestamp()";
        transaction.execute(over, &[&maker, &action, &subject]).await?;
        let insert = "INSERT INTO approvals_tb \
             (approval_id, action, subject, request, maker, reason, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp() + $7::bigint * interval '1 millisecond') \
             ON CONFLICT (maker, action, subject) WHERE state = 1 DO NOTHING";
        let new = transaction
            .execute(
                insert,
                &[&approval_id, &action, &subject, &request, &maker, &reason, &expires_ms],
            )
            .await?;
        if new > 0 {
            let (actor, detail) = (format!("admin/{maker}"), format!("{approval_id} {request}"));
            let what = format!("{action} {subject}");
            audit(&transaction, &actor, "approval asked", &what, &detail, reason).await?;
        }
        let find = format!(
            "SELECT {COLUMNS} FROM approvals_tb \
             WHERE maker = $1 AND action = $2 AND subject = $3 AND state = 1"
        );
        let row = transaction.query_one(&find, &[&maker, &action, &subject]).await?;
        let approval = approval_from_row(&row)?;
        transaction.commit().await?;
        Ok(approval)
    }

    /// Decides one, once: of several at once the first counts, and whoever decides the same later is told that it is so.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. Whether it was done may be unknown; the same again is told.
    pub async fn decide_approval(
        &self,
        approval_id: &str,
        vote: Vote,
        decider: UserId,
        reason: &str,
    ) -> Result<Result<Approval, Undecided>, Error> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let find = format!("SELECT {COLUMNS} FROM approvals_tb WHERE approval_id = $1");
        let lock = format!("{find} FOR UPDATE");
        let Some(row) = transaction.query_opt(&lock, &[&approval_id]).await? else {
            return Ok(Err(Undecided::Unknown));
        };
        let found = approval_from_row(&row)?;
        let (word, state) = match vote {
            Vote::Approve if found.maker == decider.number() => return Ok(Err(Undecided::Own)),
            Vote::Approve => ("approval approved", State::Approved),
            Vote::Reject => ("approval rejected", State::Rejected),
        };
        if found.state == state && !(state == State::Approved && found.expired) {
            let first = found.decider.as_ref().is_some_and(|(first, _)| *first == decider.number());
            if state == State::Approved && found.carried_out_at.is_none() && !first {
                // It may be done for this one.
                let (actor, detail) = (format!("admin/{decider}"), approval_id.to_owned());
                let what = format!("{} {}", found.action.name(), found.subject);
                audit(&transaction, &actor, "approval approved again", &what, &detail, reason)
                    .await?;
                transaction.commit().await?;
            }
            return Ok(Ok(found));
        }
        if found.state != State::Pending {
            return Ok(Err(Undecided::Closed(Box::new(found))));
        }
        let update = "UPDATE approvals_tb SET state = $2, decider = $3, decider_reason = $4, \
                      decided_at = clock_timestamp() WHERE approval_id = $1";
        transaction
            .execute(update, &[&approval_id, &(state as i16), &decider.bigint(), &reason])
            .await?;
        let (actor, detail) =
            (format!("admin/{decider}"), format!("{approval_id} of admin/{}", found.maker));
        let what = format!("{} {}", found.action.name(), found.subject);
        audit(&transaction, &actor, word, &what, &detail, reason).await?;
        let decided = approval_from_row(&transaction.query_one(&find, &[&approval_id]).await?)?;
        transaction.commit().await?;
        Ok(Ok(decided))
    }

    /// Writes down that one has been carried out.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, and nobody is told when it was.
    pub async fn approval_carried_out(&self, approval_id: &str) -> Result<(), Error> {
        let mut client = self.pool.get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let update = "UPDATE approvals_tb SET carried_out_at = clock_timestamp() \
                      WHERE approval_id = $1 AND carried_out_at IS NULL";
        transaction.execute(update, &[&approval_id]).await?;
        Ok(transaction.commit().await?)
    }

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

fn approval_from_row(row: &Row) -> Result<Approval, Error> {
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
