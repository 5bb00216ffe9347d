//! The halt of the service, as PostgreSQL keeps it over a restart.

use super::{Admin, audit};
use crate::postgres::Error;
use crate::postgres::cut::refuse_unrepaired;

/// A change of `engine_state.halted`.
#[derive(Clone, Copy, Debug)]
pub enum HaltChange<'a> {
    /// The service is halted.
    Halt {
        /// The operator, or the part of the service that halts.
        actor: &'a str,
        /// Why this call halts.
        reason: &'a str,
        /// The reason in force: of the first halt since the last resume.
        in_force: &'a str,
    },
    /// The service is no longer halted.
    Resume {
        /// The operator.
        actor: &'a str,
        /// Why.
        reason: &'a str,
    },
}

impl Admin {
    /// Records a halt or a resume, with its audit row. Each transaction that passed the fence
    /// before has ended when this returns.
    ///
    /// # Errors
    /// [`Error::Unrepaired`]: the service stays halted. Otherwise PostgreSQL is away, or this
    /// process has been superseded. The outcome may be unknown; a repeat is harmless.
    pub async fn change_halt(&self, change: HaltChange<'_>) -> Result<(), Error> {
        let (actor, action, in_force, reason) = match change {
            HaltChange::Halt { actor, reason, in_force } => (actor, "halt", Some(in_force), reason),
            HaltChange::Resume { actor, reason } => (actor, "resume", None, reason),
        };
        let mut client = self.pool().get().await?;
        let transaction = client.transaction().await?;
        // Fence and change in one: the update waits for each lock on the incarnation's row.
        let update = "UPDATE engine_state SET halted = $2, halt_reason = $3 WHERE incarnation = $1";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.incarnation(), &in_force.is_some(), &in_force];
        if transaction.execute(update, &values).await? == 0 {
            return Err(Error::Superseded);
        }
        if in_force.is_none() {
            refuse_unrepaired(&*transaction).await?;
        }
        audit(&transaction, actor, action, "service", in_force.unwrap_or(""), reason).await?;
        Ok(transaction.commit().await?)
    }
}
