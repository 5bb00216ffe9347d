//! A transaction that PostgreSQL has lost is written again from the postings by name in the log, or
//! one that it has undecided is decided as the log proves.

use std::fmt;

use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;
use wal::Sequence;

use super::{Author, Repaired};
use crate::postgres::Error;
use crate::postgres::columns::{Id, bigint, code_number};
use crate::transaction::{Party, REPAIRED, TransactionLeg, TransactionState, write_legs};
use domain::code::Code;
use domain::transfer::{Participant, ReqId};

/// The repair of one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRepair {
    /// Its name.
    pub transaction: ReqId,
    /// As the log has recorded it.
    pub order_number: u64,
    /// The name that its service gave it.
    pub tx_id: String,
    /// How.
    pub bring: Bring,
    /// The highest round in the log.
    pub rounds: u8,
    /// The last round that set something apart on Spot, 0 for none.
    pub round: u8,
    /// Legs of Spot that PostgreSQL lacks.
    pub legs: Vec<TransactionLeg>,
    /// Rounds that Spot has refused.
    pub refused: Vec<i16>,
    /// Rounds that Funding has set apart, while its branch is TRYING.
    pub tried: Vec<i16>,
    /// The last record of it.
    pub log_sequence: Sequence,
    /// When its first record was written, ns since the Unix epoch.
    pub time_ns: u64,
    /// Parts that only people can end, a sentence each.
    pub looks: Vec<String>,
}

/// How a transaction is brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bring {
    /// A new row: Spot has booked it.
    Done,
    /// A new row: Spot has something apart, which the service releases.
    Aborted,
    /// A new row: Spot has nothing of it.
    Cancelled,
    /// The row is undecided, and Spot has booked it.
    Commit,
    /// The row is undecided, and Funding has booked money from or to the outside behind the
    /// decision.
    Confirm,
    /// The row is undecided, and Spot has released it, or lacks a round of it.
    Abort,
}

impl Bring {
    /// The state that is written.
    fn state(self) -> TransactionState {
        match self {
            Bring::Done => TransactionState::Done,
            Bring::Aborted | Bring::Abort => TransactionState::Aborted,
            Bring::Cancelled => TransactionState::Cancelled,
            Bring::Commit | Bring::Confirm => TransactionState::Committed,
        }
    }

    fn code(self) -> Option<i16> {
        match self {
            Bring::Done | Bring::Commit | Bring::Confirm => None,
            _ => Some(code_number(Code::TransactionAborted)),
        }
    }

    /// The state of Spot's branch that is written.
    fn branch(self) -> i16 {
        match self {
            Bring::Done | Bring::Commit => 40,
            Bring::Aborted | Bring::Abort | Bring::Cancelled | Bring::Confirm => 20,
        }
    }
}

impl fmt::Display for TransactionRepair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransactionRepair { transaction, tx_id, bring, .. } = self;
        let state = bring.state().name();
        write!(out, "transaction {transaction}, tx_id {tx_id}: ")?;
        match bring {
            Bring::Done | Bring::Cancelled => write!(out, "write it again as {state}"),
            Bring::Aborted => {
                write!(out, "write it again as {state}; the service releases its holds on Spot")
            }
            Bring::Commit | Bring::Confirm => {
                write!(out, "move it to {state}; the service confirms the rest")
            }
            Bring::Abort => write!(out, "move it to {state}; the service releases its holds"),
        }
    }
}

/// Carries one repair out, inside a savepoint of the caller.
pub(super) async fn write_repair(
    transaction: &Transaction<'_>,
    repair: &TransactionRepair,
    author: Author<'_>,
) -> Result<Repaired, Error> {
    let rows = match repair.bring {
        Bring::Done | Bring::Aborted | Bring::Cancelled => insert(transaction, repair).await?,
        Bring::Commit | Bring::Confirm | Bring::Abort => {
            decide(transaction, repair, author.reason).await?
        }
    };
    if rows != 1 {
        return Ok(Repaired::Occupied);
    }
    let subject = repair.transaction.to_string();
    author.audit(transaction, &subject, &repair.to_string()).await?;
    for look in &repair.looks {
        author.audit(transaction, &subject, look).await?;
    }
    Ok(Repaired::Done)
}

/// The passage of a decision, and of its end.
const PASSAGES: &str = "transaction_passage(CASE $3::smallint WHEN 40 THEN 30 WHEN -20 THEN -10 \
       ELSE $3::smallint END::smallint, clock_timestamp(), 'repair', $2::text) \
    || CASE WHEN $3::smallint IN (40, -20) \
            THEN transaction_passage($3::smallint, clock_timestamp(), 'repair', $2::text) \
            ELSE '[]'::jsonb END";

/// Writes the event for the users of its legs. They may have had it before. Endpoints get none: the
/// ids of this process are those of its flights.
const TELL: &str = "SELECT transaction_tell($1, \
       GREATEST((SELECT incarnation << 40 FROM engine_state), \
                (SELECT max(event_id) + 1 FROM transaction_events)), clock_timestamp(), '{}')";

/// Writes a row for a transaction that has none. Returns the number of rows.
async fn insert(transaction: &Transaction<'_>, repair: &TransactionRepair) -> Result<u64, Error> {
    let TransactionRepair { bring, time_ns, .. } = repair;
    let (id, state) = (Id::of(repair.transaction), bring.state().number());
    let why = "written again from the log";
    let seconds = std::time::Duration::from_nanos(*time_ns).as_secs_f64();
    let insert = format!(
        "INSERT INTO transactions_tb (transaction_id, order_number, owner, tx_id, state, decide, \
           rounds, code, sealed, incarnation, created_at, updated_at, expires_at, decided_by, \
           decided_at, finished_at, detail, history) \
         SELECT $1::uuid, $4::bigint, $5::text, \
           CASE WHEN EXISTS (SELECT FROM transactions_tb WHERE owner = $5::text AND tx_id = $6::text) \
                THEN ulid_text($1::uuid) ELSE $6::text END, \
           $3::smallint, 1, $7::smallint, $8::smallint, TRUE, \
           (SELECT incarnation FROM engine_state), to_timestamp($9::double precision), \
           clock_timestamp(), to_timestamp($9::double precision), 'repair', clock_timestamp(), \
           CASE WHEN $3::smallint IN (40, -20) THEN clock_timestamp() END, \
           $2::text || ', tx_id ' || $6::text, {PASSAGES} \
         ON CONFLICT DO NOTHING"
    );
    let (number, rounds, code) =
        (bigint(repair.order_number), i16::from(repair.rounds), bring.code());
    let values: &[&(dyn ToSql + Sync)] =
        &[&id, &why, &state, &number, &REPAIRED, &repair.tx_id, &rounds, &code, &seconds];
    let rows = transaction.execute(&insert, values).await?;
    if rows == 1 {
        write_branch(transaction, repair).await?;
        if repair.bring == Bring::Done {
            transaction.execute(TELL, &[&id]).await?;
        }
    }
    Ok(rows)
}

/// Writes Spot's branch with the legs that PostgreSQL lacks, if there are any.
async fn write_branch(
    transaction: &Transaction<'_>,
    repair: &TransactionRepair,
) -> Result<(), Error> {
    if repair.legs.is_empty() {
        return Ok(());
    }
    let branch = "INSERT INTO transaction_branches (updated_at, log_sequence, transaction_id, \
           round, state, last, participant, fingerprint, legs, payload) \
         VALUES (clock_timestamp(), $1, $2, $3, $4, FALSE, 'SPOT', \
           decode(repeat('00', 16), 'hex'), $5::text::jsonb, 'null'::json)";
    let legs = write_legs(&Party::Store(Participant::Spot), &repair.legs);
    let (sequence, id) = (bigint(repair.log_sequence), Id::of(repair.transaction));
    let (round, state) = (i16::from(repair.round), repair.bring.branch());
    transaction.execute(branch, &[&sequence, &id, &round, &state, &legs]).await?;
    Ok(())
}

/// Decides an undecided row. Returns the number of rows.
///
/// A commit: Spot's branches have booked if the log says so, services are confirmed, and Funding keeps what it has
/// tried. A round that Funding has not tried, or that Spot has refused, is refused there: the
/// service sets its holds back.
async fn decide(
    transaction: &Transaction<'_>,
    repair: &TransactionRepair,
    reason: &str,
) -> Result<u64, Error> {
    let TransactionRepair { bring, refused, tried, log_sequence, .. } = repair;
    let (id, sequence) = (Id::of(repair.transaction), bigint(*log_sequence));
    if matches!(bring, Bring::Commit | Bring::Confirm) {
        // Without a SETTLE in the log the service asks Spot for it.
        let of_spot = bring.branch();
        let code = code_number(Code::TransactionAborted);
        let of_refused = "UPDATE transaction_branches \
             SET state = -10, code = $3, updated_at = clock_timestamp(), \
                 log_sequence = CASE WHEN participant = 'SPOT' THEN $4 ELSE log_sequence END \
             WHERE transaction_id = $1 AND participant IN ('FUNDING', 'SPOT') AND state = 10 \
               AND round = ANY($2)";
        transaction.execute(of_refused, &[&id, refused, &code, &sequence]).await?;
        let branches = "UPDATE transaction_branches AS b \
             SET state = CASE WHEN participant = 'FUNDING' AND state = 10 AND round <> ALL($4) \
                              THEN -10 \
                              WHEN participant = 'FUNDING' THEN 20 \
                              WHEN participant = 'SPOT' THEN $5::smallint WHEN last THEN 40 ELSE 20 END, \
                 code = CASE WHEN participant = 'FUNDING' AND state = 10 AND round <> ALL($4) \
                             THEN $2 ELSE code END, \
                 log_sequence = CASE WHEN participant = 'SPOT' AND $5::smallint = 40 THEN $3 \
                                     ELSE log_sequence END, \
                 updated_at = clock_timestamp() \
             WHERE transaction_id = $1 AND state IN (10, 20) \
               AND NOT EXISTS (SELECT FROM transaction_branches o \
                                WHERE o.transaction_id = $1 AND o.round = b.round AND o.state = -10)";
        let values: &[&(dyn ToSql + Sync)] = &[&id, &code, &sequence, tried, &of_spot];
        transaction.execute(branches, values).await?;
    }
    write_branch(transaction, repair).await?;
    let update = format!(
        "UPDATE transactions_tb \
         SET state = $3::smallint, code = $4, sealed = TRUE, decided_by = 'repair', \
             decided_at = clock_timestamp(), updated_at = clock_timestamp(), \
             rounds = GREATEST(rounds, $5::smallint), detail = 'decided as the log proves', \
             incarnation = (SELECT incarnation FROM engine_state), history = history || {PASSAGES} \
         WHERE transaction_id = $1 AND state IN (0, 20)"
    );
    let (state, code, rounds) = (bring.state().number(), bring.code(), i16::from(repair.rounds));
    let values: &[&(dyn ToSql + Sync)] = &[&id, &reason, &state, &code, &rounds];
    Ok(transaction.execute(&update, values).await?)
}
