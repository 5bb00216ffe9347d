//! Transactions in PostgreSQL: each write is one statement, and so one commit. It begins with the
//! fence, and compares the state that it goes from.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::time::timeout;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::info;

use super::held::holder;
use super::rows::{transactions_from_rows, with_branches};
use super::{
    Accepted, MoveResult, RoundAccept, TransactionError, TransactionMove, TransactionStore,
};
use crate::postgres::columns::{Id, bigint, code_number};
use crate::postgres::{Address, Error, Limits, Verdict, connect_by_keys, is_going_away, verdict};
use crate::telemetry;
use crate::transaction::{
    Branch, Decider, ROUNDS_MAX, TransactionName, TransactionPassage, TransactionRound,
    TransactionRow, TransactionState,
};
use domain::code::Code;
use domain::transfer::ReqId;

/// How long a statement waits for a row or a table. The worker looks again at its next tick.
const LOCK_TIMEOUT: Duration = Duration::from_millis(50);

type Values<'a> = [&'a (dyn ToSql + Sync)];

/// The connection of the transactions' worker. Opened when needed, dropped after anything unclear.
pub struct TransactionDatabase {
    config: Address,
    limits: Limits,
    incarnation: i64,
    session: Option<Session>,
}

struct Session {
    client: Client,
    accept: Statement,
    record: Statement,
    cancel: Statement,
    find: Statement,
    unfinished: Statement,
    decided: Statement,
}

impl Session {
    async fn open(config: &Address, limits: &Limits) -> Result<Session, Error> {
        let client = connect_by_keys(config, limits).await?;
        let call = |name: &str, count: usize| {
            let values: Vec<String> = (1..=count).map(|place| format!("${place}")).collect();
            format!("SELECT {name}({})", values.join(", "))
        };
        let accept = client.prepare(&call("transaction_accept", 14)).await?;
        let record = "SELECT transaction_record($1, $2, $3::text::jsonb)";
        let record = client.prepare(record).await?;
        let cancel = client.prepare(&call("transaction_cancel_unknown", 11)).await?;
        let find = "SELECT * FROM transactions_tb WHERE owner = $1 AND tx_id = $2";
        let find = client.prepare(&with_branches(find, "ASC")).await?;
        let unfinished = "SELECT * FROM transactions_tb \
                           WHERE state NOT IN (40, -20) AND order_number > $1 \
                           ORDER BY order_number LIMIT $2";
        let unfinished = client.prepare(&with_branches(unfinished, "ASC")).await?;
        let decided = "SELECT transaction_id FROM transactions_tb \
                        WHERE state = 30 AND NOT sealed ORDER BY order_number";
        let decided = client.prepare(decided).await?;
        Ok(Session { client, accept, record, cancel, find, unfinished, decided })
    }
}

impl TransactionDatabase {
    /// Connects with the first call.
    pub fn new(config: Address, limits: Limits, incarnation: u64) -> TransactionDatabase {
        let limits = Limits { lock_timeout: limits.lock_timeout.min(LOCK_TIMEOUT), ..limits };
        TransactionDatabase { config, limits, incarnation: bigint(incarnation), session: None }
    }

    /// Runs a call over the session. A call of unknown end, or one that was given up, ends it.
    async fn over<T>(
        &mut self,
        call: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, TransactionError> {
        // Longer than the server's own limits, so that the server speaks first if it can.
        let limit = self.limits.statement_timeout + self.limits.lock_timeout;
        let session = match self.session.take() {
            Some(session) if !session.client.is_closed() => session,
            Some(_) | None => {
                let limit = limit + self.limits.connect_timeout;
                let opened = timeout(limit, Session::open(&self.config, &self.limits)).await;
                let opened = opened.unwrap_or(Err(Error::Timeout(limit)));
                opened.map_err(not_begun)?
            }
        };
        let done = match timeout(limit, call(&session)).await {
            Ok(done) => done.map_err(failure),
            Err(_elapsed) => Err(TransactionError::Unknown(format!("no answer in {limit:?}"))),
        };
        // A statement that PostgreSQL has refused leaves nothing behind.
        if !matches!(done, Err(TransactionError::Unknown(_))) {
            self.session = Some(session);
        }
        done
    }

    async fn found(
        session: &Session,
        name: &TransactionName,
    ) -> Result<Option<TransactionRow>, Error> {
        let values: [&(dyn ToSql + Sync); 2] = [&name.owner, &name.tx_id.as_str()];
        let rows = session.client.query(&session.find, &values).await?;
        Ok(transactions_from_rows(&rows)?.pop())
    }
}

impl TransactionStore for TransactionDatabase {
    async fn accept(&mut self, accept: &RoundAccept) -> Result<Accepted, TransactionError> {
        let round = &accept.round;
        let branches = round.branches();
        if let Some(detail) = out_of_form(round, &branches) {
            return Ok(refused(Code::InvalidRequest, detail, None));
        }
        let incarnation = self.incarnation;
        let answer = self.over(async |session| write_round(session, incarnation, accept).await);
        let answer = answer.await?;
        if answer == "new" {
            return Ok(Accepted::Taken { row: Box::new(new_row(accept)), replayed: false });
        }
        if answer == "number" {
            return Err(useless(accept.order_number));
        }
        let name = &round.name;
        let found = self.over(async |session| {
            let row = Self::found(session, name).await?;
            let held = match (&row, answer.as_str()) {
                (Some(row), "held") => Some(holder(&session.client, row.id).await?),
                _ => None,
            };
            Ok((row, held))
        });
        // The round may be written: no failure of this read is a refusal.
        let (row, held) = found.await.map_err(maybe_written)?;
        judged(&answer, round, row, held)
    }

    async fn record(
        &mut self,
        moves: &[TransactionMove],
        at: Timestamp,
    ) -> Result<Vec<MoveResult>, TransactionError> {
        if moves.is_empty() {
            return Ok(Vec::new());
        }
        let words: Vec<MoveWords> = moves.iter().map(MoveWords::of).collect();
        let words = serde_json::to_string(&words).expect("plain words");
        let incarnation = self.incarnation;
        let letters = self.over(async |session| {
            let values: [&(dyn ToSql + Sync); 3] = [&incarnation, &micros(at), &words];
            let row = session.client.query_one(&session.record, &values).await?;
            Ok(row.try_get::<_, String>(0)?)
        });
        let letters = letters.await?;
        if letters.len() != moves.len() {
            let what = format!("{} results for {} moves", letters.len(), moves.len());
            return Err(TransactionError::Unknown(what));
        }
        let mut results = Vec::with_capacity(moves.len());
        for (letter, one) in letters.chars().zip(moves) {
            results.push(match letter {
                'm' => MoveResult::Moved,
                'h' => MoveResult::Held(self.holder(one.id).await),
                _ => MoveResult::Changed,
            });
        }
        Ok(results)
    }

    async fn cancel_unknown(
        &mut self,
        accept: &RoundAccept,
        by: &str,
        reason: Option<&str>,
    ) -> Result<TransactionRow, TransactionError> {
        let RoundAccept { round, id, order_number, at } = accept;
        let incarnation = self.incarnation;
        let (expires_at, reason) = (expiry(*at, round.ttl_ms), reason.map(sayable));
        let cancelled = self.over(async |session| {
            let values: &Values<'_> = &[
                &incarnation,
                &Id::of(*id),
                &bigint(*order_number),
                &round.name.owner,
                &round.name.tx_id.as_str(),
                &round.decider.number(),
                &micros(*at),
                &expires_at,
                &code_number(Code::TransactionAborted),
                &by,
                &reason,
            ];
            session.client.query_one(&session.cancel, values).await?;
            Ok(())
        });
        cancelled.await?;
        let found = self.find(&round.name).await.map_err(maybe_written)?;
        found.ok_or_else(|| useless(*order_number))
    }

    async fn find(
        &mut self,
        name: &TransactionName,
    ) -> Result<Option<TransactionRow>, TransactionError> {
        self.over(async |session| Self::found(session, name).await).await
    }

    async fn unfinished(
        &mut self,
        above: u64,
        limit: usize,
    ) -> Result<Vec<TransactionRow>, TransactionError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.over(async |session| {
            let values: [&(dyn ToSql + Sync); 2] = [&bigint(above), &limit];
            transactions_from_rows(&session.client.query(&session.unfinished, &values).await?)
        })
        .await
    }

    async fn decided(&mut self) -> Result<Vec<ReqId>, TransactionError> {
        self.over(async |session| {
            let rows = session.client.query(&session.decided, &[]).await?;
            let id = |row: &Row| Ok(row.try_get::<_, Id>(0)?.req_id());
            let ids = rows.iter().map(id).collect::<Result<Vec<_>, Error>>()?;
            Ok(ids.into_iter().flatten().collect())
        })
        .await
    }
}

impl TransactionDatabase {
    /// The session that holds a row, for people. The moves are written: nothing fails here.
    async fn holder(&mut self, id: ReqId) -> String {
        let holder = self.over(async |session| Ok(holder(&session.client, id).await?));
        holder.await.unwrap_or_else(|error| format!("a session that cannot be named: {error}"))
    }
}

/// Writes a round. Returns the word of `transaction_accept`.
async fn write_round(
    session: &Session,
    incarnation: i64,
    accept: &RoundAccept,
) -> Result<String, Error> {
    let RoundAccept { round, id, order_number, at } = accept;
    let branches = round.branches();
    let json = |legs| serde_json::to_string(legs).expect("plain numbers");
    let parties: Vec<&str> = branches.iter().map(|branch| branch.party.name()).collect();
    let last: Vec<bool> = branches.iter().map(|branch| branch.last).collect();
    let legs: Vec<String> = branches.iter().map(|branch| json(&branch.legs)).collect();
    let payloads: Vec<String> = branches.iter().map(|branch| branch.payload.to_string()).collect();
    let values: &Values<'_> = &[
        &incarnation,
        &Id::of(*id),
        &bigint(*order_number),
        &round.name.owner,
        &round.name.tx_id.as_str(),
        &i16::from(round.round),
        &round.decider.number(),
        &micros(*at),
        &expiry(*at, round.ttl_ms),
        &round.fingerprint.as_slice(),
        &parties,
        &last,
        &legs,
        &payloads,
    ];
    Ok(session.client.query_one(&session.accept, values).await?.try_get(0)?)
}

/// The failure of a call behind a write that was committed.
fn maybe_written(error: TransactionError) -> TransactionError {
    match error {
        TransactionError::Refused(why) => TransactionError::Unknown(why),
        TransactionError::Superseded | TransactionError::Unknown(_) => error,
    }
}

/// An order number that was not written.
fn useless(order_number: u64) -> TransactionError {
    let what = format!("order number {order_number} is below the watermark, or in use");
    TransactionError::Refused(what)
}

/// Why a round cannot be written at all.
fn out_of_form(round: &TransactionRound, branches: &[Branch]) -> Option<String> {
    let number = round.round;
    if !(1..=ROUNDS_MAX).contains(&number) {
        return Some(format!("round {number}: a transaction has rounds 1 to {ROUNDS_MAX}"));
    }
    branches.is_empty().then(|| format!("round {number} has no leg and no participant"))
}

fn refused(code: Code, detail: String, row: Option<TransactionRow>) -> Accepted {
    Accepted::Refused { code, detail, row: row.map(Box::new) }
}

/// The answer to a round that met a row.
fn judged(
    answer: &str,
    round: &TransactionRound,
    row: Option<TransactionRow>,
    held: Option<String>,
) -> Result<Accepted, TransactionError> {
    let number = round.round;
    let Some(row) = row else {
        return match answer {
            "order" => {
                let detail = format!("round {number} of a transaction without a first round");
                Ok(refused(Code::InvalidRequest, detail, None))
            }
            "repaired" => {
                let detail = "a transaction with this tx_id was written again from the log, which \
                              does not name owners: ask an operator";
                Ok(refused(Code::TxIdConflict, detail.to_owned(), None))
            }
            // Its row is never deleted.
            _ => Err(TransactionError::Unknown("a row was there, and is gone".to_owned())),
        };
    };
    let next = row.rounds + 1;
    let (code, detail) = match answer {
        "taken" => return Ok(Accepted::Taken { row: Box::new(row), replayed: false }),
        "repeated" => return Ok(Accepted::Taken { row: Box::new(row), replayed: true }),
        "conflict" => (Code::TxIdConflict, differing(&row, round)),
        "decided" => (Code::TransactionDecided, format!("it is {}", row.state.name())),
        "aborted" => match row.code {
            Some(Code::TransactionExpired) => {
                (Code::TransactionExpired, "it was aborted for its age".to_owned())
            }
            _ => (Code::TransactionAborted, format!("it is {}", row.state.name())),
        },
        "rounds" => {
            let decider = row.decider.name();
            let caller = Decider::Caller.name();
            let detail =
                format!("it is decided by {decider}: only with {caller} there is round {number}");
            (Code::InvalidRequest, detail)
        }
        "order" => (Code::InvalidRequest, format!("round {number}, and the next one is {next}")),
        "untried" => {
            (Code::TransactionUntried, format!("a round before round {number} is being tried"))
        }
        "held" => {
            let held = held.unwrap_or_default();
            (Code::Overloaded, format!("a session of the caller holds the transaction: {held}"))
        }
        other => return Err(TransactionError::Unknown(format!("the answer {other:?}"))),
    };
    Ok(refused(code, detail, Some(row)))
}

/// The fields in which a round differs from the one that was accepted, for people.
fn differing(row: &TransactionRow, round: &TransactionRound) -> String {
    let there: Vec<&Branch> =
        row.branches.iter().filter(|branch| branch.round == round.round).collect();
    let asked = round.branches();
    let mut fields = Vec::new();
    let first = round.round == 1;
    let ttl = row.expires_at.duration_since(row.created_at).as_millis();
    if first && row.decider != round.decider {
        fields.push("decide".to_owned());
    }
    if first && u128::from(round.ttl_ms) != ttl.unsigned_abs() {
        fields.push("ttl_ms".to_owned());
    }
    for branch in &asked {
        match there.iter().find(|other| other.party == branch.party) {
            Some(other) if other.legs != branch.legs => {
                fields.push(format!("legs of {}", branch.party.name()));
            }
            Some(other) if other.payload != branch.payload || other.last != branch.last => {
                fields.push(format!("participant {}", branch.party.name()));
            }
            Some(_) => {}
            None => fields.push(format!("{} is new", branch.party.name())),
        }
    }
    let missing = there.iter().filter(|other| !asked.iter().any(|one| one.party == other.party));
    fields.extend(missing.map(|other| format!("{} is missing", other.party.name())));
    match fields.is_empty() {
        true => format!("round {} was accepted with another body", round.round),
        false => {
            format!("round {} was accepted with another body: {}", round.round, fields.join(", "))
        }
    }
}

/// A new transaction as PostgreSQL has it, times to the microsecond.
fn new_row(accept: &RoundAccept) -> TransactionRow {
    let RoundAccept { round, id, order_number, at } = accept;
    let at = micros(*at);
    let passage = TransactionPassage {
        state: TransactionState::Open.name().to_owned(),
        at,
        by: round.name.owner.clone(),
        reason: None,
    };
    TransactionRow {
        id: *id,
        order_number: *order_number,
        name: round.name.clone(),
        state: TransactionState::Open,
        decider: round.decider,
        decided_by: None,
        expires_at: expiry(at, round.ttl_ms),
        rounds: 1,
        code: None,
        detail: None,
        sealed: false,
        stores_ended: false,
        branches: round.branches(),
        history: vec![passage],
        created_at: at,
        updated_at: at,
    }
}

/// A time as PostgreSQL keeps it.
fn micros(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).expect("it is one")
}

/// The time beyond which an undecided transaction is aborted.
fn expiry(at: Timestamp, ttl_ms: u64) -> Timestamp {
    let ttl = SignedDuration::from_millis(i64::try_from(ttl_ms).unwrap_or(i64::MAX));
    micros(at).checked_add(ttl).unwrap_or(Timestamp::MAX)
}

/// Text that PostgreSQL can keep: it has no zero byte.
fn sayable(text: &str) -> String {
    text.replace('\0', "\u{FFFD}")
}

/// A [`TransactionMove`] as `transaction_record` reads it.
#[derive(Serialize)]
struct MoveWords {
    id: String,
    rounds: u8,
    before: i16,
    after: i16,
    author: String,
    code: Option<i16>,
    detail: Option<String>,
    seal: bool,
    stores_ended: bool,
    note_by: Option<String>,
    note: Option<String>,
    branches: Vec<BranchWords>,
}

#[derive(Serialize)]
struct BranchWords {
    party: String,
    round: u8,
    before: i16,
    after: i16,
    code: Option<i16>,
    leg: Option<u8>,
    participant_code: Option<String>,
    log_sequence: Option<u64>,
}

impl MoveWords {
    fn of(one: &TransactionMove) -> MoveWords {
        let branches = one.branches.iter().map(|branch| BranchWords {
            party: branch.party.name().to_owned(),
            round: branch.round,
            before: branch.from.number(),
            after: branch.to.number(),
            code: branch.code.map(code_number),
            leg: branch.leg,
            participant_code: branch.participant_code.as_deref().map(sayable),
            log_sequence: branch.log_sequence,
        });
        MoveWords {
            id: format!("{:032x}", one.id.number()),
            rounds: one.rounds,
            before: one.from.number(),
            after: one.to.number(),
            author: sayable(&one.by),
            code: one.code.map(code_number),
            detail: one.detail.as_deref().map(sayable),
            seal: one.seal,
            stores_ended: one.stores_ended,
            note_by: one.note.as_ref().map(|note| sayable(&note.by)),
            note: one.note.as_ref().map(|note| sayable(&note.text)),
            branches: branches.collect(),
        }
    }
}

/// The meaning of an error before anything was sent.
fn not_begun(error: Error) -> TransactionError {
    match error {
        Error::Superseded => TransactionError::Superseded,
        other => TransactionError::Refused(telemetry::chain(&other).to_string()),
    }
}

/// The meaning of an error of one statement. PostgreSQL's own word about a statement is that it was
/// rolled back, unless the connection ends with it.
fn failure(error: Error) -> TransactionError {
    let text = telemetry::chain(&error).to_string();
    let error = match error {
        Error::Query(error) => error,
        Error::Superseded => return TransactionError::Superseded,
        // The statement was carried out, and its answer cannot be read.
        _ => return TransactionError::Unknown(text),
    };
    let severity = error.as_db_error().and_then(|error| error.parsed_severity());
    match (verdict(&error), severity) {
        (Verdict::Fenced, _) => {
            telemetry::count_fenced_write();
            TransactionError::Superseded
        }
        (_, Some(Severity::Error)) if !is_going_away(&error) => {
            info!(error = text, "PostgreSQL has refused a statement about transactions");
            TransactionError::Refused(text)
        }
        _ => TransactionError::Unknown(text),
    }
}
