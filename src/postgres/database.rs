//! The journal of flights in PostgreSQL: one flight is one statement, and so one transaction.

mod found;
mod held;
pub(super) mod receivables;
pub(super) mod recharges;
mod rows;

use std::cmp::Ordering;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::{Either, select};
use jiff::Timestamp;
use tokio::sync::OnceCell;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row, Statement};
use tracing::{error, info};

use self::found::{Reads, read};
use self::held::{GONE, blocked_by, blockers, held};
use self::rows::Rows;
use super::columns::{self, bigint};
use super::flight::{Compared, Flight, Found, Journal, Last, Stopped, Wanted};
use super::flights::FlightRow;
use super::store::{Failure, Page, Transfer, Unfinished, fingerprint};
use super::{Address, Error, Limits, Verdict, connect_by_keys, is_going_away, verdict};
use crate::telemetry;
use domain::asset::Catalog;
use domain::transfer::{Cid, Decision, Direction, Intent, State};

/// The columns [`transfer_from_row`] reads, in its order.
pub(super) const TRANSFER_COLUMNS: &str = "order_number, req_id, cid, user_id, asset_id, amount, direction, \
     state, code, attempts, log_sequence, created_at, updated_at, \
     funding_at IS NOT NULL AS decided, funding_code, refund_at IS NOT NULL AS refunded";
/// How many they are.
pub(super) const TRANSFER_COLUMNS_COUNT: usize = 16;

/// The part of the time limit for locks after which the blockers are looked for.
const LOOK_PART: u32 = 4;

/// The unique keys of names and order numbers, which only this process gives.
const OURS: [&str; 3] =
    ["transfers_tb_pkey", "transfers_tb_req_id_key", "external_operations_order_number_key"];

/// The writer of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Writer {
    /// This process's incarnation.
    pub incarnation: u64,
    /// The shard of accounts.
    pub shard: u32,
}

impl Writer {
    /// The shard as the journal has it.
    fn shard_number(self) -> i32 {
        i32::try_from(self.shard).expect("one a worker and a few")
    }
}

/// One worker's connection. Opened when needed, dropped after anything unclear.
pub struct Database {
    config: Address,
    limits: Limits,
    writer: Writer,
    actor: String,
    catalog: Arc<ArcSwap<Catalog>>,
    session: Option<Session>,
    /// A flight may be committed and not noted.
    flies: bool,
}

struct Session {
    client: Client,
    /// The backend's process number, by which PostgreSQL names who blocks it.
    pid: i32,
    flight: Statement,
    /// Of most flights: see [`plain`].
    plain: Statement,
    reads: Reads,
    /// Those of flights with recharges, prepared with the first one.
    recharging: OnceCell<Statement>,
    /// The same of flights that credit orders and do no more.
    crediting: OnceCell<Statement>,
}

impl Database {
    /// A journal that connects with the first call.
    pub fn new(
        config: Address,
        limits: Limits,
        writer: Writer,
        catalog: Arc<ArcSwap<Catalog>>,
    ) -> Database {
        let actor = format!("coordinator/{}/{}", writer.incarnation, writer.shard);
        Database { config, limits, writer, actor, catalog, session: None, flies: false }
    }

    /// See [`Pin::flies`](super::pin::Pin::flies).
    fn set_flies(&mut self, flies: bool) {
        if self.flies != flies
            && let Some(pin) = self.config.pin()
        {
            pin.flies(flies);
        }
        self.flies = flies;
    }

    /// Keeps a flight that PostgreSQL has committed, before anything of it is told.
    fn note(&self, Last { number, attempt }: Last) -> io::Result<()> {
        let Writer { incarnation, shard } = self.writer;
        let row = FlightRow { shard, flight: number, incarnation, attempt };
        self.config.pin().map_or(Ok(()), |pin| pin.answered(row))
    }

    /// The open session, or a new one.
    async fn session(&mut self) -> Result<Session, Failure> {
        match self.session.take() {
            Some(session) if !session.client.is_closed() => Ok(session),
            Some(_) | None => {
                let (open, limit) =
                    (Session::open(&self.config, &self.limits), self.flight_limit());
                let open = tokio::time::timeout(limit, open).await;
                open.unwrap_or_else(|_| Err(Failure::Unreachable(Error::Timeout(limit).into())))
            }
        }
    }

    /// Longer than the server's own limits, so that the server speaks first wherever it can.
    fn flight_limit(&self) -> Duration {
        self.limits.statement_timeout + self.limits.lock_timeout
    }

    /// Runs reads on the session, and keeps it after a success.
    async fn reading<T>(
        &mut self,
        read: impl AsyncFnOnce(&Session) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let session = self.session().await?;
        let limit = self.flight_limit();
        let done = tokio::time::timeout(limit, read(&session));
        let (done, blockers) = watched((&self.config, &self.limits), session.pid, done).await;
        let done = done.unwrap_or(Err(Error::Timeout(limit)));
        let done = done.map_err(|error| unanswered(error, blockers))?;
        self.session = Some(session);
        Ok(done)
    }

    /// The incarnation that has written a flight of a shard; `None`: no row.
    async fn author(client: &Client, shard: i32, number: u64) -> Result<Option<u64>, Error> {
        let author = "SELECT incarnation FROM journal_tb WHERE shard = $1 AND flight = $2";
        let row = client.query_opt(author, &[&shard, &bigint(number)]).await?;
        row.map(|row| columns::count(&row, 0, "journal_tb")).transpose()
    }

    fn shard(&self) -> i32 {
        self.writer.shard_number()
    }

    /// The meaning of an error of a flight. The server's error message for the statement aborts its
    /// transaction, unless the server says that it is going away.
    async fn stopped(
        &self,
        session: &Session,
        flight: &Flight,
        blockers: String,
        error: tokio_postgres::Error,
    ) -> Stopped {
        let fatal = error.as_db_error().and_then(|error| error.parsed_severity());
        if is_going_away(&error) || matches!(fatal, Some(Severity::Fatal | Severity::Panic)) {
            return Stopped::Unknown(error.into());
        }
        match error.code().map_or("", SqlState::code) {
            "UB005" => return Stopped::Predecessor,
            "UB006" => return Stopped::Differs(Compared::Transfers),
            "UB007" => return Stopped::Differs(Compared::Accounts),
            "UB008" => return Stopped::Differs(Compared::Balances),
            "UB009" => return Stopped::Differs(Compared::Holds),
            "UB016" => return Stopped::Differs(Compared::Recharges),
            "UB013" => return Stopped::Differs(Compared::Freezes),
            "23505" => return self.taken(session, flight, error).await,
            "55P03" | "57014" | "40P01" => return held(session, flight, blockers, error).await,
            _ => {}
        }
        match verdict(&error) {
            Verdict::Fenced => Stopped::Superseded,
            Verdict::Violation => Stopped::Refused { violation: true, source: error.into() },
            // Such as a page that cannot be read: the other rows are there.
            Verdict::Retry => Stopped::Unnamed(error.into()),
            Verdict::Unavailable => Stopped::Unreachable(error.into()),
            Verdict::Unknown => Stopped::Refused { violation: false, source: error.into() },
        }
    }

    /// A unique key is in use.
    async fn taken(
        &self,
        session: &Session,
        flight: &Flight,
        error: tokio_postgres::Error,
    ) -> Stopped {
        match error.as_db_error().and_then(|error| error.constraint()) {
            Some("journal_tb_pkey") => {
                match Database::author(&session.client, self.shard(), flight.number).await {
                    Ok(Some(author)) if author != self.writer.incarnation => Stopped::Superseded,
                    Ok(_) => Stopped::Number,
                    Err(error) => Stopped::Unreachable(error.into()),
                }
            }
            Some("accounts_tb_pkey") => Stopped::Differs(Compared::Accounts),
            Some("balances_tb_pkey") => Stopped::Differs(Compared::Balances),
            Some("funding_holds_pkey") => Stopped::Differs(Compared::Holds),
            Some(key) if recharges::KEYS.contains(&key) => Stopped::Differs(Compared::Recharges),
            Some("freezes_tb_pkey") => Stopped::Differs(Compared::Freezes),
            constraint => {
                let ours = constraint.is_some_and(|constraint| OURS.contains(&constraint));
                Stopped::Taken { ours, source: error.into() }
            }
        }
    }
}

/// Runs work on the backend `pid`. If the work takes a good part of the time limit for locks, looks
/// over another connection for the sessions that block it. Returns them as text.
async fn watched<T>(
    (config, limits): (&Address, &Limits),
    pid: i32,
    work: impl Future<Output = T>,
) -> (T, String) {
    let look = async {
        tokio::time::sleep(limits.lock_timeout / LOOK_PART).await;
        let found = blockers(config, limits, pid);
        let found = tokio::time::timeout(limits.lock_timeout, found).await;
        found.unwrap_or(Err(Error::Timeout(limits.lock_timeout)))
    };
    match select(pin!(work), pin!(look)).await {
        Either::Left((done, _)) => (done, GONE.to_owned()),
        Either::Right((Ok(found), work)) => (work.await, found),
        Either::Right((Err(error), work)) => {
            (work.await, format!("sessions that could not be looked for ({error})"))
        }
    }
}

/// A connection or a read that failed. Nothing was written. If the server has answered, other rows
/// may be readable. A read waits only for a table, which all reads wait for.
fn unanswered(error: Error, blockers: String) -> Failure {
    let Error::Query(cause) = &error else { return Failure::Unreachable(error.into()) };
    match (cause.code().map_or("", SqlState::code), verdict(cause)) {
        _ if is_going_away(cause) => Failure::Unreachable(error.into()),
        (_, Verdict::Unavailable) => Failure::Unreachable(error.into()),
        ("55P03" | "57014" | "40P01", _) => Failure::Retry(blocked_by(blockers, error.into())),
        _ => Failure::Split(error.into()),
    }
}

impl Journal for Database {
    async fn last(&mut self) -> Result<Option<Last>, Failure> {
        let (shard, ours) = (self.shard(), self.writer.incarnation);
        let row = self
            .reading(async |Session { client, .. }| {
                let last = "SELECT flight, incarnation, attempt FROM journal_tb WHERE shard = $1 \
                            ORDER BY flight DESC LIMIT 1";
                Ok(client.query_opt(last, &[&shard]).await?)
            })
            .await?;
        let unreachable = |error: Error| Failure::Unreachable(error.into());
        let missing = |what: String| unreachable(unreadable("journal_tb", what));
        let Some(row) = row else { return Err(missing(format!("no row of shard {shard}"))) };
        let [number, author, attempt] =
            [0, 1, 2].map(|column| columns::count(&row, column, "journal_tb").map_err(unreachable));
        let (number, author, attempt) = (number?, author?, attempt?);
        match author.cmp(&ours) {
            Ordering::Equal => {
                let last = Last { number, attempt };
                self.note(last).map_err(|error| Failure::Unreachable(error.into()))?;
                // It is asked for where an earlier flight has this number, or none can have it.
                self.set_flies(false);
                Ok(Some(last))
            }
            Ordering::Greater => {
                telemetry::count_fenced_write();
                Ok(None)
            }
            // PostgreSQL has gone back: the next connection closes the gate.
            Ordering::Less => {
                Err(missing(format!("no row of shard {shard} is of incarnation {ours}")))
            }
        }
    }

    async fn fly(&mut self, flight: &Flight) -> Result<(), Stopped> {
        let session = self.session().await.map_err(|failure| match failure {
            Failure::Retry(source) | Failure::Split(source) => Stopped::Blocked(source),
            failure => Stopped::Unreachable(failure.into()),
        })?;
        let limit = self.flight_limit();
        let elapsed = || Error::Timeout(limit);
        // Plans grow with the tables: a plan for a small table may use the index of all rows of a
        // user.
        if flight.number.is_power_of_two() {
            let discarded =
                tokio::time::timeout(limit, session.client.batch_execute("DISCARD PLANS"));
            let discarded = discarded.await.map_err(|_| Stopped::Unreachable(elapsed().into()))?;
            discarded.map_err(|error| Stopped::Unreachable(error.into()))?;
        }
        let flew = self.flies;
        self.set_flies(true);
        let writer = self.writer;
        let rows = Rows::of(flight, writer, &self.actor);
        let credits = rows.are_credits();
        let statement = match (rows.are_plain(), rows.have_recharges()) {
            (true, _) => &session.plain,
            (false, false) => &session.flight,
            (false, true) => match session.recharging(credits, limit).await {
                Ok(statement) => statement,
                Err(error) => {
                    self.set_flies(flew);
                    // A table of recharges may be locked: the calls without them go on.
                    return Err(match session.client.is_closed() {
                        true => Stopped::Unreachable(error.into()),
                        false => Stopped::Unnamed(error.into()),
                    });
                }
            },
        };
        let values = rows.values(credits);
        let flown = tokio::time::timeout(limit, session.client.query(statement, &values));
        let (flown, blockers) = watched((&self.config, &self.limits), session.pid, flown).await;
        match flown {
            // The rows end when the server is ready for the next statement, which is after the
            // commit.
            Ok(Ok(_)) => {
                self.session = Some(session);
                let last = Last { number: flight.number, attempt: flight.attempt };
                self.note(last).map_err(|error| Stopped::Unknown(error.into()))?;
                self.set_flies(false);
                Ok(())
            }
            Ok(Err(error)) => {
                // Nothing was written, or the answer needs no question.
                let stopped = self.stopped(&session, flight, blockers, error);
                let stopped = tokio::time::timeout(limit, stopped).await;
                let stopped = stopped.unwrap_or_else(|_| Stopped::Unreachable(elapsed().into()));
                if !matches!(stopped, Stopped::Unknown(_)) {
                    self.set_flies(flew);
                }
                match &stopped {
                    Stopped::Superseded => telemetry::count_fenced_write(),
                    // The next connection is compared with the server of the process's pin.
                    Stopped::Predecessor | Stopped::Unreachable(_) | Stopped::Unknown(_) => {}
                    _ => self.session = Some(session),
                }
                Err(stopped)
            }
            // A flight given up still runs on the server: its end is unknown.
            Err(_) => Err(Stopped::Unknown(elapsed().into())),
        }
    }

    async fn read(&mut self, wanted: &Wanted) -> Result<Found, Failure> {
        let catalog = self.catalog.load_full();
        self.reading(async |Session { client, reads, .. }| {
            read(client, reads, wanted, &catalog).await
        })
        .await
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        let (rows, after) =
            self.reading(async |session| Ok(read_page(&session.client, &filter).await?)).await?;
        let catalog = self.catalog.load();
        let mut page = Page { after, ..Page::default() };
        for row in rows {
            match transfer_from_row(&row, &catalog) {
                Ok(transfer) => page.transfers.push(transfer),
                // One bad row must not hide the others.
                Err(error) => {
                    let number = row.try_get::<_, i64>(0);
                    let number = number.map_err(|error| Failure::Unknown(error.into()))?;
                    let req_id =
                        columns::req_id(&row, 1).ok().flatten().map(|name| name.to_string());
                    error!(req_id, order_number = number, %error, "a transfer cannot be read and is left alone");
                    page.unreadable.extend(u64::try_from(number));
                }
            }
        }
        Ok(page)
    }
}

impl Session {
    async fn open(config: &Address, limits: &Limits) -> Result<Session, Failure> {
        let connected = async {
            let client = connect_by_keys(config, limits).await?;
            let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?;
            Ok((client, pid))
        };
        let (client, pid) = connected.await.map_err(|error| unanswered(error, GONE.to_owned()))?;
        // Also the plan of a statement waits for its tables.
        let prepare = async {
            let usual = without(FLIGHT, ["--{\n", "--}\n"]);
            let flight = client.prepare(&usual).await?;
            let plain = client.prepare(&without(&usual, ["--[\n", "--]\n"])).await?;
            Ok((flight, plain, Reads::prepare(&client).await?))
        };
        let (prepared, blockers) = watched((config, limits), pid, prepare).await;
        let (flight, plain, reads) = prepared.map_err(|error| unanswered(error, blockers))?;
        info!("connected to PostgreSQL");
        let (recharging, crediting) = (OnceCell::new(), OnceCell::new());
        Ok(Session { client, pid, flight, plain, reads, recharging, crediting })
    }

    /// The statement of a flight with recharges. Nothing is prepared for it while there is none.
    /// `credits`: it has only credits of orders.
    async fn recharging(&self, credits: bool, limit: Duration) -> Result<&Statement, Error> {
        let prepare = async {
            if !credits {
                return self.recharging.get_or_try_init(|| self.client.prepare(FLIGHT)).await;
            }
            let prepare = async || {
                let statement = without(FLIGHT, CREDITS_LACK);
                self.client.prepare_typed(&statement, &credit_parameters()).await
            };
            self.crediting.get_or_try_init(prepare).await
        };
        let prepared = tokio::time::timeout(limit, prepare).await;
        Ok(prepared.map_err(|_| Error::Timeout(limit))??)
    }
}

/// The statement of a flight with everything.
const FLIGHT: &str = include_str!("flight/flight.sql");

/// The marks of the parts that a flight of credits lacks.
const CREDITS_LACK: [&str; 2] = ["--(\n", "--)\n"];

/// The parameters of the statement of credits, in their order. PostgreSQL finds the types of those
/// that it has; the others, which stand in missing parts, are NULL.
fn credit_parameters() -> Vec<Type> {
    const MISSING: [usize; 6] = [16, 18, 19, 20, 21, 24];
    let of = |number| if MISSING.contains(&number) { Type::INT4 } else { Type::UNKNOWN };
    (1..=26).map(of).collect()
}

/// A statement without the parts between two marks: those that only other flights have.
fn without(flight: &str, [open, close]: [&str; 2]) -> String {
    let mut parts = flight.split(open);
    let begin = parts.next().expect("a text has a begin").to_owned();
    parts.fold(begin, |text, part| text + part.split_once(close).expect("a part has an end").1)
}

/// Order numbers in one page of the search, terminal ones included. A page must end long before the
/// statement's limit.
const PAGE_ROWS: i64 = 50_000;

/// The transfers of one page, and where the next one begins.
async fn read_page(
    client: &Client,
    filter: &Unfinished,
) -> Result<(Vec<Row>, Option<u64>), tokio_postgres::Error> {
    let after = bigint(filter.after);
    let bounds = "SELECT count(*), max(order_number) FROM (SELECT order_number FROM transfers_tb \
                  WHERE order_number > $1 ORDER BY order_number LIMIT $2) AS page";
    let row = client.query_one(bounds, &[&after, &PAGE_ROWS]).await?;
    let (count, last): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let number = |n: u64| i64::try_from(n).expect("a configured time or number");
    let stale = match filter.stale {
        None => "TRUE".to_owned(),
        Some(stale) => format!(
            "(updated_at <= clock_timestamp() - {} * interval '1 millisecond' \
              OR updated_at > clock_timestamp() + {} * interval '1 millisecond' \
              OR next_retry_at > clock_timestamp() + {} * interval '1 millisecond')",
            stale.moved_ms, stale.moved_ms, stale.retry_cap_ms,
        ),
    };
    let open = format!(
        "user_id % $3 = $4 AND state NOT IN (40, -10, -30) AND {stale} ORDER BY order_number"
    );
    let (shards, shard) = (number(filter.shards.into()), number(filter.shard.into()));
    let mut rows = Vec::new();
    if !filter.listed.is_empty() {
        let listed: Vec<i64> = filter.listed.iter().copied().map(bigint).collect();
        let transfers = format!(
            "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
             WHERE order_number = ANY ($2) AND order_number <= $1 AND {open}"
        );
        rows = client.query(&transfers, &[&after, &listed, &shards, &shard]).await?;
    }
    let Some(last) = last else { return Ok((rows, None)) };
    let transfers = format!(
        "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
         WHERE order_number > $1 AND order_number <= $2 AND {open}"
    );
    rows.extend(client.query(&transfers, &[&after, &last, &shards, &shard]).await?);
    let next = (count == PAGE_ROWS).then(|| u64::try_from(last).expect("counted from 0"));
    Ok((rows, next))
}

fn unreadable(table: &'static str, what: impl Into<String>) -> Error {
    Error::Row { table, what: what.into() }
}

/// A column that holds no code for a success.
pub(super) fn decision(row: &Row, column: usize) -> Result<Decision, Error> {
    let code = columns::code(row, column, "transfers_tb")?;
    Ok(code.map_or(Decision::Success, Decision::Refused))
}

/// Reads [`TRANSFER_COLUMNS`].
pub(super) fn transfer_from_row(row: &Row, catalog: &Catalog) -> Result<Transfer, Error> {
    let order_number = columns::count(row, 0, "transfers_tb")?;
    let bad = |what: &str| unreadable("transfers_tb", format!("{order_number}: {what}"));
    let req_id = columns::req_id(row, 1)?.ok_or_else(|| bad("req_id"))?;
    let bad = |what: &str| unreadable("transfers_tb", format!("{req_id}: {what}"));
    let asset = columns::asset(row, 4, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let cid = row.try_get::<_, Option<&str>>(2)?;
    let direction = u8::try_from(row.try_get::<_, i16>(6)?).ok().and_then(Direction::from_number);
    let intent = Intent {
        req_id,
        // One of our own has a `/`.
        cid: cid.map(|text| Cid::of_operation(text).ok_or_else(|| bad("cid"))).transpose()?,
        user: columns::user(row, 3)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        amount: columns::amount(row, 5)?.ok_or_else(|| bad("amount"))?,
        direction: direction.ok_or_else(|| bad("direction"))?,
        order_number,
    };
    let log_sequence = row.try_get::<_, Option<i64>>(10)?;
    let log_sequence = log_sequence.map(u64::try_from).transpose();
    let funding = match row.try_get(13)? {
        true => Some(decision(row, 14)?),
        false => None,
    };
    let (source, target) = intent.direction.accounts();
    let amount = intent.amount.text(asset.precision);
    Ok(Transfer {
        fingerprint: fingerprint(source, target, &asset.symbol, &amount),
        intent,
        state: State::from_number(row.try_get(7)?).ok_or_else(|| bad("state"))?,
        code: columns::code(row, 8, "transfers_tb")?,
        retry_count: u32::try_from(row.try_get::<_, i32>(9)?).map_err(|_| bad("attempts"))?,
        log_sequence: log_sequence.map_err(|_| bad("log_sequence"))?,
        funding,
        refunded: row.try_get(15)?,
        created_at: row.try_get::<_, Timestamp>(11)?,
        updated_at: row.try_get::<_, Timestamp>(12)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a flight without recharges costs as much as before them. Method: the statements of
    /// such flights have no name of a part, a table or a function of recharges, and no parameter.
    #[test]
    fn rch_044_a_flight_without_recharges_has_nothing_of_them() {
        let usual = without(FLIGHT, ["--{\n", "--}\n"]);
        let plain = without(&usual, ["--[\n", "--]\n"]);
        for statement in [usual, plain] {
            let text: String =
                statement.lines().filter(|line| !line.trim().starts_with("--")).collect();
            for word in ["recharge", "channel_payments", "movements", "$22", "$26"] {
                assert!(!text.contains(word), "{word}");
            }
        }
        assert!(FLIGHT.contains("$26::recharge_events[]"));
    }

    /// Goal: the statement of credits has each of its parameters, and none that it lacks.
    #[test]
    fn a_flight_of_credits_has_no_part_that_it_does_not_need() {
        let statement = without(FLIGHT, CREDITS_LACK);
        for (number, type_) in (1..).zip(credit_parameters()) {
            let is_there = statement.contains(&format!("${number}::"))
                || statement.contains(&format!("cardinality(${number})"));
            assert_eq!(is_there, type_ == Type::UNKNOWN, "${number}");
        }
        for word in ["funding_holds", "freezes_tb", "admin_audit", "receivables", "returns"] {
            assert!(!statement.contains(word), "{word}");
        }
    }
}
