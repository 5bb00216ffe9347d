//! Decisions of two operators. The request, the decision and its carrying out are recorded with
//! their reasons, each with its audit row in the same transaction.

use std::time::Duration;

use super::{Admin, audit};
use crate::approval::{Action, State};
use crate::postgres::Error;
use crate::postgres::reads::approvals::{Approval, COLUMNS, approval_from_row};
use domain::account::UserId;

/// A request for an approval.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// Its id, if it is a new one.
    pub approval_id: &'a str,
    /// The action.
    pub action: Action,
    /// The transfer, idem_key or halt. A repeat with the same maker, action and subject gets the
    /// same approval.
    pub subject: &'a str,
    /// All that carrying it out needs, as JSON.
    pub request: &'a str,
    /// The operator that asks.
    pub maker: UserId,
    /// Why.
    pub reason: &'a str,
    /// The time in which it may be approved.
    pub expires_after: Duration,
}

/// The decision of the second operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// The action may be carried out.
    Approve,
    /// It never will be.
    Reject,
}

/// Why nothing was decided.
#[derive(Clone, Debug)]
pub enum Undecided {
    /// There is no such approval.
    Unknown,
    /// The maker cannot approve the own request.
    Own,
    /// It is decided the other way, or has expired.
    Closed(Box<Approval>),
}

impl Admin {
    /// Records a request. If the same one of this maker is pending, that one is returned, with
    /// the text of its first call.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. The outcome may be unknown; a repeat is harmless.
    pub async fn ask_approval(&self, wish: Wish<'_>) -> Result<Approval, Error> {
        let Wish { approval_id, action, subject, request, maker, reason, expires_after } = wish;
        let (action, maker) = (action.name(), maker.bigint());
        let expires_ms = i64::try_from(expires_after.as_millis()).expect("a bounded time");
        let mut client = self.pool().get().await?;
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
        debug_assert_eq!(approval.maker, wish.maker.number(), "the maker's own request");
        transaction.commit().await?;
        Ok(approval)
    }

    /// Decides a request once: the first decision counts, and a repeat of it gets the same answer.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. The outcome may be unknown; a repeat returns it.
    pub async fn decide_approval(
        &self,
        approval_id: &str,
        vote: Vote,
        decider: UserId,
        reason: &str,
    ) -> Result<Result<Approval, Undecided>, Error> {
        let mut client = self.pool().get().await?;
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
                // The action may now be carried out for this operator.
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

    /// Records that the action of an approval has been carried out.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, and the approval stays without that time.
    pub async fn approval_carried_out(&self, approval_id: &str) -> Result<(), Error> {
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        self.fence(&transaction).await?;
        let update = "UPDATE approvals_tb SET carried_out_at = clock_timestamp() \
                      WHERE approval_id = $1 AND carried_out_at IS NULL";
        transaction.execute(update, &[&approval_id]).await?;
        Ok(transaction.commit().await?)
    }
}
