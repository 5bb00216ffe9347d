//! Carries out what the audit's repair has found to be proven: transfers that PostgreSQL has lost are written again, with
//! their Funding operations. All in one transaction, which no other process writes beside.

pub mod external;
mod hold;
pub mod transaction;

use std::fmt;
use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, GenericClient, Transaction};
use wal::{Identity, Sequence};

use self::external::ExternalRepair;
use self::transaction::TransactionRepair;
use super::admin::audit;
use super::columns::{self, Id, Numeric, amount_number, asset_number, bigint, code_number};
use super::cut::{CLOSED, CREDITED, THEN, other_cause};
use super::flight::tool::{Carried, ToolFlight};
use super::incarnation::{self, identity_text};
use super::{Address, Error, Limits, connect};
use crate::crash;
use domain::asset::Catalog;
use domain::code::Code;
use domain::transfer::op::Effect;
use domain::transfer::{Decision, Intent, Op, Participant, State};

/// Who repairs and why, as `admin_audit` has it.
#[derive(Clone, Copy, Debug)]
pub struct Author<'a> {
    /// Whoever may read the configuration, or two operators by name.
    pub actor: &'a str,
    /// Why.
    pub reason: &'a str,
}

impl Author<'_> {
    /// Writes the audit row of one repair.
    async fn audit(
        &self,
        transaction: &Transaction<'_>,
        subject: &str,
        detail: &str,
    ) -> Result<(), Error> {
        audit(transaction, self.actor, "repair", subject, detail, self.reason).await
    }
}

/// A Funding operation that is to be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posting {
    /// Which one.
    pub op: Op,
    /// What was decided.
    pub decision: Decision,
    /// Whether the balance follows. Not where a later posting takes it back.
    pub moves: bool,
}

/// One transfer that is to be written, or moved on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferRepair {
    /// What was asked.
    pub intent: Intent,
    /// Where PostgreSQL has it, `None` where it does not.
    pub from: Option<State>,
    /// Where it belongs.
    pub to: State,
    /// What is written with it.
    pub postings: Vec<Posting>,
    /// Why it failed or was rolled back.
    pub code: Option<Code>,
    /// The log's last record of it.
    pub log_sequence: Sequence,
}

impl fmt::Display for TransferRepair {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransferRepair { intent, from, to, postings, .. } = self;
        write!(
            out,
            "transfer {}, user {}, asset {}: ",
            intent.req_id, intent.user, intent.asset.0
        )?;
        match from {
            None => write!(out, "write it again as {}", to.name())?,
            Some(from) => write!(out, "move it from {} to {}", from.name(), to.name())?,
        }
        if *to == State::SourceDone {
            write!(out, "; ask Funding for its DEPOSIT")?;
        }
        for Posting { op, decision, moves } in postings {
            let decision = match (decision, moves) {
                (Decision::Success, true) => "carry out",
                (Decision::Success, false) => "write down, balanced by another,",
                (Decision::Refused(_), _) => "write down the refusal of",
            };
            write!(out, "; {decision} its {} on Funding", op.name())?;
        }
        Ok(())
    }
}

/// What became of a [`TransferRepair`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// It is done.
    Done,
    /// Funding has not got what it paid: nothing was changed for it.
    Short,
    /// Another transfer has its cid or its order number, or it has moved meanwhile: nothing was changed for it.
    Occupied,
}

/// A transfer of which PostgreSQL names a record of the log that is another one now, or none: the log was cut, and UBSCore
/// has decided again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renumbering {
    /// The transfer.
    pub intent: Intent,
    /// Where PostgreSQL has it.
    pub state: State,
    /// The record of UBSCore's last outcome for it.
    pub log_sequence: Sequence,
}

impl fmt::Display for Renumbering {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Intent { req_id, user, asset, .. } = &self.intent;
        let record = self.log_sequence;
        write!(
            out,
            "transfer {req_id}, user {user}, asset {}: write down its record, {record}",
            asset.0
        )
    }
}

/// Ends every process that still writes, so that what is read from now on stays. `incarnation`: the latest one that has
/// ever been. Returns the last record of the log that PostgreSQL knows to be durable.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to the commit was lost.
pub async fn fence(
    config: &Address,
    limits: &Limits,
    log: Identity,
    incarnation: u64,
) -> Result<Sequence, Error> {
    let mut client: Client = connect(config, limits).await?;
    let transaction = client.transaction().await?;
    supersede(&transaction, log, incarnation).await?;
    let claim = "SELECT COALESCE(max(durable), 0) AS durable FROM journal_last";
    let claim = columns::count(&transaction.query_one(claim, &[]).await?, 0, "journal_tb")?;
    transaction.commit().await?;
    Ok(claim)
}

/// How far the repair of every cut so far has come with this run.
#[derive(Clone, Copy, Debug)]
pub enum CutRepair<'a> {
    /// It is done.
    Done,
    /// Only credits are decided again, and venues must send before it ends.
    Credits {
        /// The reason of the halt in the data directory, if there is one.
        in_data_dir: Option<&'a str>,
        /// Venues may send although the halt has another cause beside the cut.
        although_halted: bool,
    },
}

/// Writes down where the log has these transfers now, and how far the repair has come. Returns the reason of the halt, if
/// venues must send: the data directory must have the same one.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to the commit was lost; another run finds out.
pub async fn renumber(
    config: &Address,
    limits: &Limits,
    log: Identity,
    incarnation: u64,
    (renumberings, repair): (&[Renumbering], CutRepair<'_>),
    author: Author<'_>,
) -> Result<Option<String>, Error> {
    let reason = author.reason;
    let mut client: Client = connect(config, limits).await?;
    let transaction = client.transaction().await?;
    supersede(&transaction, log, incarnation).await?;
    let mut flight = ToolFlight::begin(&transaction).await?;
    for renumbering in renumberings {
        let Renumbering { intent, state, log_sequence } = renumbering;
        let event_id = bigint(flight.passed(intent.order_number, intent.user, &[*state]));
        let (id, state) = (Id::of(intent.req_id), state.number());
        let log_sequence = bigint(*log_sequence);
        let update = "UPDATE transfers_tb SET log_sequence = $3, \
             history = history || ROW($5, clock_timestamp(), 0, ARRAY[state], 'repair', $4)::transfer_step \
             WHERE req_id = $1 AND state = $2";
        if transaction.execute(update, &[&id, &state, &log_sequence, &reason, &event_id]).await?
            == 0
        {
            // Nobody writes beside us. Whatever this is, another run looks at it.
            return Err(Error::Superseded);
        }
        let detail = format!("decided again on Spot; {renumbering}");
        author.audit(&transaction, &intent.req_id.to_string(), &detail).await?;
    }
    flight.write(&transaction).await?;
    let halted = match repair {
        CutRepair::Done => None,
        CutRepair::Credits { in_data_dir, although_halted } => {
            let reason = agree(&transaction, in_data_dir).await?;
            match other_cause(&reason).filter(|_| !although_halted) {
                Some(cause) => return Err(Error::OtherCause(cause.to_owned())),
                None => Some(reason),
            }
        }
    };
    let (action, detail) = match &halted {
        None => (CLOSED, ""),
        Some(halted) => (CREDITED, halted.as_str()),
    };
    audit(&transaction, author.actor, action, "log", detail, reason).await?;
    transaction.commit().await?;
    Ok(halted)
}

/// Refuses to let venues send if the halt has another cause beside cuts of the log.
///
/// # Errors
/// [`Error::OtherCause`]; PostgreSQL is away.
pub async fn refuse_other_cause(
    config: &Address,
    limits: &Limits,
    in_data_dir: Option<&str>,
) -> Result<(), Error> {
    let client = connect(config, limits).await?;
    match other_cause(&reason_of_both(&client, in_data_dir).await?) {
        Some(cause) => Err(Error::OtherCause(cause.to_owned())),
        None => Ok(()),
    }
}

/// The causes of the halt in PostgreSQL, and those that only the data directory has.
async fn reason_of_both(
    client: &impl GenericClient,
    in_data_dir: Option<&str>,
) -> Result<String, Error> {
    let known =
        "SELECT CASE WHEN halted THEN COALESCE(halt_reason, '') ELSE '' END FROM engine_state";
    let mut reason: String = client.query_one(known, &[]).await?.try_get(0)?;
    for cause in in_data_dir.into_iter().flat_map(|other| other.split(THEN)) {
        if reason.is_empty() {
            cause.clone_into(&mut reason);
        } else if !reason.split(THEN).any(|known| known == cause) {
            reason = format!("{reason}{THEN}{cause}");
        }
    }
    Ok(reason)
}

/// Halts for the reasons of both places. Returns them.
async fn agree(transaction: &Transaction<'_>, in_data_dir: Option<&str>) -> Result<String, Error> {
    let reason = reason_of_both(transaction, in_data_dir).await?;
    let halt = "UPDATE engine_state SET halted = TRUE, halt_reason = $1";
    transaction.execute(halt, &[&reason]).await?;
    Ok(reason)
}

/// Takes the next incarnation in a database that belongs to this log.
async fn supersede(
    transaction: &Transaction<'_>,
    log: Identity,
    incarnation: u64,
) -> Result<(), Error> {
    transaction.batch_execute("LOCK TABLE engine_state IN EXCLUSIVE MODE").await?;
    let number = bigint(incarnation);
    let end = "UPDATE engine_state SET incarnation = GREATEST(incarnation, $1) + 1";
    transaction.execute(end, &[&number]).await?;
    incarnation::fence(transaction).await?;
    let row = transaction.query_one("SELECT log_identity FROM engine_state", &[]).await?;
    match row.try_get::<_, Option<&str>>(0)? == Some(&*identity_text(log)) {
        true => Ok(()),
        false => Err(Error::Superseded),
    }
}

/// The repairs of one run.
#[derive(Clone, Copy, Debug)]
pub struct Repairs<'a> {
    /// Of transfers.
    pub transfers: &'a [TransferRepair],
    /// Of external operations.
    pub externals: &'a [ExternalRepair],
    /// Of transactions.
    pub transactions: &'a [TransactionRepair],
}

/// The fate of each of [`Repairs`], in the order given.
#[derive(Clone, Debug, Default)]
pub struct Fates {
    /// Of transfers.
    pub transfers: Vec<Repaired>,
    /// Of external operations.
    pub externals: Vec<Repaired>,
    /// Of transactions.
    pub transactions: Vec<Repaired>,
}

/// Carries out all repairs, or none where PostgreSQL fails; each that cannot be is left
/// out. No earlier process can write any more. `log`: the one that proves them. `incarnation`: the latest one that has ever
/// been. Returns the fate of each mending, in the order given.
///
/// # Errors
/// [`Error`]: nothing was changed, unless the answer to the commit was lost; another run finds out.
pub async fn carry_out(
    config: &Address,
    limits: &Limits,
    catalog: &Catalog,
    log: Identity,
    incarnation: u64,
    Repairs { transfers: repairs, externals, transactions }: Repairs<'_>,
    author: Author<'_>,
) -> Result<Fates, Error> {
    // The totals of the audit are counted anew, which takes its time.
    let limits = Limits { statement_timeout: Duration::ZERO, ..*limits };
    let mut client: Client = connect(config, &limits).await?;
    let mut transaction = client.transaction().await?;
    supersede(&transaction, log, incarnation).await?;
    let (transfers, outside) = (repairs.len(), externals.len());
    let count = match outside {
        0 => format!("{transfers} transfers"),
        _ => format!("{transfers} transfers, {outside} external operations"),
    };
    let count = match transactions.len() {
        0 => count,
        more => format!("{count}, {more} transactions"),
    };
    author.audit(&transaction, "PostgreSQL", &count).await?;
    let mut flight = ToolFlight::begin(&transaction).await?;
    let mut all = vec![Repaired::Short; repairs.len()];
    let mut all_outside = vec![Repaired::Short; externals.len()];
    // What one brings another may need: until none of them has enough.
    loop {
        let mut progress = false;
        for (repair, repaired) in repairs.iter().zip(&mut all) {
            if *repaired != Repaired::Short {
                continue;
            }
            if catalog.by_id(repair.intent.asset).is_none() {
                let what = format!("asset {}", repair.intent.asset.0);
                return Err(Error::Row { table: "assets_tb", what });
            }
            let (mark, mut savepoint) = (flight.mark(), transaction.transaction().await?);
            *repaired = write_repair((&mut savepoint, &mut flight), repair, author).await?;
            match repaired {
                Repaired::Done => savepoint.commit().await?,
                Repaired::Short | Repaired::Occupied => {
                    flight.roll_back(mark);
                    savepoint.rollback().await?;
                }
            }
            progress |= *repaired == Repaired::Done;
        }
        for (repair, repaired) in externals.iter().zip(&mut all_outside) {
            if *repaired != Repaired::Short {
                continue;
            }
            let (mark, mut savepoint) = (flight.mark(), transaction.transaction().await?);
            *repaired =
                external::write_repair((&mut savepoint, &mut flight), repair, catalog, author)
                    .await?;
            match repaired {
                Repaired::Done => savepoint.commit().await?,
                Repaired::Short | Repaired::Occupied => {
                    flight.roll_back(mark);
                    savepoint.rollback().await?;
                }
            }
            progress |= *repaired == Repaired::Done;
        }
        if !progress {
            break;
        }
    }
    let mut all_transactions = Vec::with_capacity(transactions.len());
    for repair in transactions {
        // A caller may have decided its row since the plan: then nothing of the repair stays.
        let savepoint = transaction.transaction().await?;
        let repaired = transaction::write_repair(&savepoint, repair, author).await?;
        match repaired {
            Repaired::Done => savepoint.commit().await?,
            Repaired::Short | Repaired::Occupied => savepoint.rollback().await?,
        }
        all_transactions.push(repaired);
        crash::point("repair_amid_rows");
    }
    flight.write(&transaction).await?;
    // A row of an operation may have been deleted and written again. Its totals would count twice.
    transaction.execute("SELECT audit_begin_anew()", &[]).await?;
    transaction.commit().await?;
    Ok(Fates { transfers: all, externals: all_outside, transactions: all_transactions })
}

async fn write_repair(
    (transaction, flight): (&mut Transaction<'_>, &mut ToolFlight),
    repair: &TransferRepair,
    author: Author<'_>,
) -> Result<Repaired, Error> {
    let reason = author.reason;
    let TransferRepair { intent, from, to, postings, code, log_sequence } = repair;
    let (id, user) = (Id::of(intent.req_id), intent.user.bigint());
    let amount = amount_number(intent.amount);
    let code = code.map(code_number);
    let log_sequence = bigint(*log_sequence);
    // Its caller rolls this back if nothing is written.
    let event_id = bigint(flight.passed(intent.order_number, intent.user, &[*to]));
    let written = match from {
        None => {
            let order_number = bigint(intent.order_number);
            let cid = intent.cid.as_ref().map(|cid| cid.as_str());
            let insert = "INSERT INTO transfers_tb (order_number, req_id, cid, user_id, asset_id, amount, \
                 direction, state, code, log_sequence, history) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, \
                 ARRAY[ROW($12, clock_timestamp(), 0, ARRAY[$8::smallint], 'repair', $11)::transfer_step]) \
                 ON CONFLICT DO NOTHING";
            let kind = i16::from(intent.direction as u8);
            let asset = asset_number(intent.asset);
            transaction
                .execute(
                    insert,
                    &[
                        &order_number,
                        &id,
                        &cid,
                        &user,
                        &asset,
                        &amount,
                        &kind,
                        &to.number(),
                        &code,
                        &log_sequence,
                        &reason,
                        &event_id,
                    ],
                )
                .await?
        }
        Some(from) => {
            let update = "UPDATE transfers_tb SET state = $3, code = COALESCE(code, $4), \
                 log_sequence = $5, next_retry_at = NULL, updated_at = clock_timestamp(), \
                 history = history || ROW($7, clock_timestamp(), 0, ARRAY[$3::smallint], 'repair', $6)::transfer_step \
                 WHERE req_id = $1 AND state = $2";
            transaction
                .execute(
                    update,
                    &[&id, &from.number(), &to.number(), &code, &log_sequence, &reason, &event_id],
                )
                .await?
        }
    };
    if written == 0 {
        return Ok(Repaired::Occupied);
    }
    for posting in postings {
        let posted = post((transaction, flight), intent, posting, amount).await?;
        if posted != Repaired::Done {
            return Ok(posted);
        }
    }
    if *to == State::SourceDone {
        let decided = decide_deposit((transaction, flight), repair, reason).await?;
        if decided != Repaired::Done {
            return Ok(decided);
        }
    }
    author.audit(transaction, &intent.req_id.to_string(), &repair.to_string()).await?;
    Ok(Repaired::Done)
}

/// Writes one Funding operation, and its change of the balance.
async fn post(
    (transaction, flight): (&Transaction<'_>, &mut ToolFlight),
    intent: &Intent,
    Posting { op, decision, moves }: &Posting,
    amount: i64,
) -> Result<Repaired, Error> {
    let (id, user) = (Id::of(intent.req_id), intent.user.bigint());
    let function = match op.row().available {
        Effect::Less => "SELECT funding_debit($1, $2, $3)",
        Effect::More => "SELECT funding_credit($1, $2, $3)",
        Effect::Same => "SELECT NULL::numeric, $1, $2, $3",
    };
    let function = if *moves { function } else { "SELECT NULL::numeric, $1, $2, $3" };
    let types = [Type::INT8, Type::INT4, Type::INT8];
    let statement = transaction.prepare_typed(function, &types).await?;
    let asset_id = asset_number(intent.asset);
    let row = transaction.query_one(&statement, &[&user, &asset_id, &amount]).await?;
    let after: Option<Numeric> = row.try_get(0)?;
    if *moves && after.is_none() {
        return Ok(Repaired::Short);
    }
    let code = decision.code().map(code_number);
    // A decision that is there stands.
    let (update, values): (&str, &[&(dyn ToSql + Sync)]) = match op {
        Op::Refund => (
            "UPDATE transfers_tb SET refund_at = clock_timestamp(), refund_after = $2 \
              WHERE req_id = $1 AND refund_at IS NULL",
            &[&id, &after],
        ),
        _ => (
            "UPDATE transfers_tb \
                SET funding_at = clock_timestamp(), funding_after = $2, funding_code = $3 \
              WHERE req_id = $1 AND funding_at IS NULL",
            &[&id, &after, &code],
        ),
    };
    if transaction.execute(update, values).await? == 0 {
        return Ok(Repaired::Occupied);
    }
    flight.posted(transaction, carried(intent, *op, *decision, *moves)).await?;
    Ok(Repaired::Done)
}

/// Decides the DEPOSIT of a transfer at SOURCE_DONE, as the service would, so that another repair can
/// take the amount from there.
async fn decide_deposit(
    (transaction, flight): (&Transaction<'_>, &mut ToolFlight),
    TransferRepair { intent, log_sequence, .. }: &TransferRepair,
    reason: &str,
) -> Result<Repaired, Error> {
    let status = "SELECT status FROM accounts_tb WHERE user_id = $1";
    let row = transaction.query_opt(status, &[&intent.user.bigint()]).await?;
    let number: Option<i16> = row.map(|row| row.try_get(0)).transpose()?;
    let status = match number {
        None => None,
        Some(number) => Some(columns::account_status(number).ok_or_else(|| Error::Row {
            table: "accounts_tb",
            what: format!("user {}: status {number}", intent.user),
        })?),
    };
    let verdict = Op::Deposit.verdict(Participant::Funding, status, true);
    let decision = verdict.map_or_else(Decision::Refused, |()| Decision::Success);
    let end = if verdict.is_ok() { State::Committed } else { State::Compensating };
    let states = [State::TargetPending, end];
    let event_id = bigint(flight.passed(intent.order_number, intent.user, &states));
    let code = verdict.err().map(code_number);
    let step = "UPDATE transfers_tb SET state = $2, code = COALESCE(code, $3), log_sequence = $4, attempts = 0, \
                next_retry_at = NULL, updated_at = clock_timestamp(), \
                history = history || ROW($6, clock_timestamp(), 0, $7::smallint[], 'repair', $5)::transfer_step \
                WHERE req_id = $1";
    let (id, numbers) = (Id::of(intent.req_id), states.map(State::number).to_vec());
    let values: &[&(dyn ToSql + Sync)] =
        &[&id, &end.number(), &code, &bigint(*log_sequence), &reason, &event_id, &numbers];
    transaction.execute(step, values).await?;
    let posting = Posting { op: Op::Deposit, decision, moves: verdict.is_ok() };
    post((transaction, flight), intent, &posting, amount_number(intent.amount)).await
}

/// An operation of a transfer as an entry of the journal.
fn carried(intent: &Intent, op: Op, decision: Decision, moves: bool) -> Carried {
    let available = if moves { op.effect(decision, intent.amount.units()) } else { 0 };
    let Intent { order_number, user, asset, .. } = *intent;
    Carried { order_number, op, user, asset, decision, available }
}
