//! Transactions in PostgreSQL: each flight is one statement, and so one commit and one round trip.
//! It begins with the fence, and compares the states that it goes from.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::error::Severity;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::info;

use super::columns::{RoundColumns, expiry, micros, moves_text, sayable};
use super::held::holder;
use super::judged::{judged, new_row, out_of_form, refused};
use super::rows::{readable, with_branches};
use super::{
    Accepted, Found, Landed, MoveResult, RoundAccept, TransactionError, TransactionMove,
    TransactionStore, UnfinishedPage, UnreadableRow,
};
use crate::postgres::columns::{Id, bigint, code_number};
use crate::postgres::connection::within;
use crate::postgres::flight::EventIds;
use crate::postgres::{Address, Error, Limits, Verdict, connect_by_keys, is_going_away, verdict};
use crate::telemetry;
use crate::transaction::{TransactionName, TransactionRow, TransactionState};
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
    told: TransactionTold,
    session: Option<Session>,
}

/// The events that are written with the end of a transaction.
#[derive(Clone, Debug)]
pub struct TransactionTold {
    /// Their ids, shared with the flights of this process.
    pub ids: Arc<EventIds>,
    /// The endpoints that are told of each transaction, beside its followers.
    pub endpoints: Vec<String>,
}

struct Session {
    client: Client,
    flight: Statement,
    cancel: Statement,
    find: Statement,
    unfinished: Statement,
    decided: Statement,
}

impl Session {
    async fn open(config: &Address, limits: &Limits) -> Result<Session, Error> {
        let client = connect_by_keys(config, limits).await?;
        let values = |from: usize, to: usize| {
            let values: Vec<String> = (from..=to).map(|place| format!("${place}")).collect();
            values.join(", ")
        };
        let flight = format!(
            "SELECT moved, accepted FROM transaction_flight($1, $2, $3::text::jsonb, {})",
            values(4, 20)
        );
        let flight = client.prepare(&flight).await?;
        let cancel = format!("SELECT transaction_cancel_unknown({})", values(1, 11));
        let cancel = client.prepare(&cancel).await?;
        let find = "SELECT t.* FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::text[])) \
                           AS n (owner, tx_id) \
                      JOIN transactions_tb t ON (t.owner, t.tx_id) = (n.owner, n.tx_id)";
        let find = client.prepare(&with_branches(find, "ASC")).await?;
        let unfinished = "SELECT * FROM transactions_tb \
                           WHERE state NOT IN (40, -20) AND order_number > $1 \
                           ORDER BY order_number LIMIT $2";
        let unfinished = client.prepare(&with_branches(unfinished, "ASC")).await?;
        let decided = "SELECT transaction_id FROM transactions_tb \
                        WHERE state = 30 AND NOT sealed ORDER BY order_number";
        let decided = client.prepare(decided).await?;
        Ok(Session { client, flight, cancel, find, unfinished, decided })
    }
}

impl TransactionDatabase {
    /// Connects with the first call.
    pub fn new(
        config: Address,
        limits: Limits,
        incarnation: u64,
        told: TransactionTold,
    ) -> TransactionDatabase {
        let limits = Limits { lock_timeout: limits.lock_timeout.min(LOCK_TIMEOUT), ..limits };
        let incarnation = bigint(incarnation);
        TransactionDatabase { config, limits, incarnation, told, session: None }
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
                let opened = within(limit, Session::open(&self.config, &self.limits)).await;
                opened.unwrap_or_else(Err).map_err(not_begun)?
            }
        };
        let done = match within(limit, call(&session)).await {
            Ok(done) => done.map_err(failure),
            Err(late) => Err(TransactionError::Unknown(telemetry::chain(&late).to_string())),
        };
        // A statement that PostgreSQL has refused leaves nothing behind.
        if !matches!(done, Err(TransactionError::Unknown(_))) {
            self.session = Some(session);
        }
        done
    }

    /// Writes a flight. Returns the letters of the moves and the words of the rounds.
    async fn write(
        &mut self,
        moves: &[TransactionMove],
        accepts: &[&RoundAccept],
        at: Timestamp,
    ) -> Result<(String, Vec<String>), TransactionError> {
        if moves.is_empty() && accepts.is_empty() {
            return Ok((String::new(), Vec::new()));
        }
        let (words, columns) = (moves_text(moves), RoundColumns::of(accepts));
        let (incarnation, at) = (self.incarnation, micros(at));
        let done = moves.iter().filter(|one| one.to == TransactionState::Done).count();
        let TransactionTold { ids, endpoints } = self.told.clone();
        let event_first = bigint(ids.take(done));
        let (letters, answers) = self
            .over(async |session| {
                let mut values: Vec<&(dyn ToSql + Sync)> = vec![&incarnation, &at, &words];
                values.extend(columns.values());
                values.extend::<[&(dyn ToSql + Sync); 2]>([&event_first, &endpoints]);
                let row = session.client.query_one(&session.flight, &values).await?;
                Ok((row.try_get::<_, String>(0)?, row.try_get::<_, Vec<String>>(1)?))
            })
            .await?;
        if (letters.len(), answers.len()) != (moves.len(), accepts.len()) {
            let (found, asked) = (letters.len() + answers.len(), moves.len() + accepts.len());
            return Err(TransactionError::Unknown(format!("{found} results for {asked} words")));
        }
        Ok((letters, answers))
    }

    /// The answers to rounds that were written or met a row. One read finds all rows.
    async fn answers(
        &mut self,
        accepts: &[&RoundAccept],
        words: &[String],
    ) -> Vec<Result<Accepted, TransactionError>> {
        let is_known = |word: &&String| !matches!(word.as_str(), "new" | "number");
        let met = accepts.iter().zip(words).filter(|(_, word)| is_known(word));
        let names: Vec<&TransactionName> = met.map(|(accept, _)| &accept.round.name).collect();
        // The rounds may be written: no failure of this read is a refusal.
        let mut rows = self.find_all(&names).await.map_err(maybe_written).map(Vec::into_iter);
        let mut answers = Vec::with_capacity(accepts.len());
        for (accept, word) in accepts.iter().zip(words) {
            let row = match (word.as_str(), &mut rows) {
                ("new", _) => {
                    let row = Box::new(new_row(accept));
                    answers.push(Ok(Accepted::Taken { row, replayed: false }));
                    continue;
                }
                ("number", _) => {
                    answers.push(Err(useless(accept.order_number)));
                    continue;
                }
                (_, Ok(rows)) => rows.next().expect("one a name"),
                (_, Err(error)) => Err(TransactionError::Unknown(error.to_string())),
            };
            answers.push(match row {
                Ok(row) => {
                    let held = match (&row, word.as_str()) {
                        (Some(row), "held") => Some(self.holder(row.id).await),
                        _ => None,
                    };
                    judged(word, &accept.round, row, held)
                }
                Err(error) => Err(error),
            });
        }
        answers
    }
}

impl TransactionStore for TransactionDatabase {
    async fn flight(
        &mut self,
        moves: &[TransactionMove],
        accepts: &[&RoundAccept],
        at: Timestamp,
    ) -> Result<Landed, TransactionError> {
        let bad = |accept: &&RoundAccept| out_of_form(&accept.round, &accept.round.branches());
        let (mut sent, mut unsent) = (Vec::new(), Vec::new());
        for (place, accept) in accepts.iter().enumerate() {
            match bad(accept) {
                None => sent.push(*accept),
                Some(detail) => unsent.push((place, refused(Code::InvalidRequest, detail, None))),
            }
        }
        let (letters, words) = self.write(moves, &sent, at).await?;
        let mut accepted = self.answers(&sent, &words).await;
        for (place, refused) in unsent {
            accepted.insert(place, Ok(refused));
        }
        let mut moved = Vec::with_capacity(moves.len());
        for (letter, one) in letters.chars().zip(moves) {
            moved.push(match letter {
                'm' => MoveResult::Moved,
                'h' => MoveResult::Held(self.holder(one.id).await),
                _ => MoveResult::Changed,
            });
        }
        Ok(Landed { moved, accepted })
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

    async fn find_all(
        &mut self,
        names: &[&TransactionName],
    ) -> Result<Vec<Found>, TransactionError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let owners: Vec<&str> = names.iter().map(|name| name.owner.as_str()).collect();
        let tx_ids: Vec<&str> = names.iter().map(|name| name.tx_id.as_str()).collect();
        let rows = self.over(async |session| {
            let values: [&(dyn ToSql + Sync); 2] = [&owners, &tx_ids];
            Ok(session.client.query(&session.find, &values).await?)
        });
        let rows = rows.await?;
        let page = readable(&rows).map_err(failure)?;
        let found: HashMap<&TransactionName, &TransactionRow> =
            page.rows.iter().map(|row| (&row.name, row)).collect();
        let unreadable: HashMap<(&str, &str), &UnreadableRow> = page
            .unreadable
            .iter()
            .map(|bad| ((bad.owner.as_str(), bad.tx_id.as_str()), bad))
            .collect();
        let one = |name: &&TransactionName| match found.get(name) {
            Some(row) => Ok(Some((*row).clone())),
            None => match unreadable.get(&(name.owner.as_str(), name.tx_id.as_str())) {
                Some(bad) => Err(TransactionError::Unreadable(bad.what.clone())),
                None => Ok(None),
            },
        };
        Ok(names.iter().map(one).collect())
    }

    async fn unfinished(
        &mut self,
        above: u64,
        limit: usize,
    ) -> Result<UnfinishedPage, TransactionError> {
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        self.over(async |session| {
            let values: [&(dyn ToSql + Sync); 2] = [&bigint(above), &most];
            let mut page = readable(&session.client.query(&session.unfinished, &values).await?)?;
            let last = page.rows.iter().map(|row| row.order_number);
            let last = last.chain(page.unreadable.iter().map(|row| row.order_number)).max();
            let is_full = page.rows.len() + page.unreadable.len() >= limit;
            page.next = last.filter(|_| is_full);
            Ok(page)
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

/// The failure of a call behind a write that was committed.
fn maybe_written(error: TransactionError) -> TransactionError {
    match error {
        TransactionError::Refused(why) => TransactionError::Unknown(why),
        TransactionError::Superseded
        | TransactionError::Unknown(_)
        | TransactionError::Unreadable(_) => error,
    }
}

/// An order number that was not written.
fn useless(order_number: u64) -> TransactionError {
    let what = format!("order number {order_number} is below the watermark, or in use");
    TransactionError::Refused(what)
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
