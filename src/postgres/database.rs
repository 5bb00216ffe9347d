//! The journal of flights in PostgreSQL: one flight is one statement, and so one transaction.

mod held;

use std::cmp::Ordering;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::{Either, select};
use jiff::Timestamp;
use rust_decimal::Decimal;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::{error, info};

use self::held::{GONE, blocked_by, blockers, held};
use super::columns::{self, asset_number, bigint};
use super::flight::{
    Balance, Compared, Decided, Flight, Found, Journal, Key, Last, Moved, Operation, Stopped,
    Wanted, Written, entries,
};
use super::flights::FlightRow;
use super::store::{External, Failure, Page, Transfer, Unfinished};
use super::{Address, Error, Limits, Verdict, connect_by_keys, is_going_away, verdict};
use crate::telemetry;
use domain::account::{AccountStatus, UserId};
use domain::amount::{Amount, units_from_text, units_text};
use domain::asset::{AssetId, Catalog};
use domain::code::Code;
use domain::transfer::{Cid, Decision, Direction, Intent, ReqId, State};

/// The columns [`transfer_from_row`] reads, in its order.
pub(super) const TRANSFER_COLUMNS: &str = "order_number AS transfer_id, order_number, req_id, cid, fingerprint, user_id, asset_id, amount, \
     transfer_type, state, error_code, retry_count, log_sequence, created_at, updated_at";

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

/// One worker's connection. Opened when needed, dropped after anything unclear.
pub struct Database {
    config: Address,
    limits: Limits,
    writer: Writer,
    actor: String,
    catalog: Arc<ArcSwap<Catalog>>,
    session: Option<Session>,
}

struct Session {
    client: Client,
    /// The backend's process number, by which PostgreSQL names who blocks it.
    pid: i32,
    flight: Statement,
    reads: Reads,
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
        Database { config, limits, writer, actor, catalog, session: None }
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
        i32::try_from(self.writer.shard).expect("one a worker and a few")
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
        let columns = Columns::of(flight, &self.catalog.load());
        let (shard, number) = (self.shard(), bigint(flight.number));
        let (incarnation, durable) = (bigint(self.writer.incarnation), bigint(flight.durable));
        let head: [&(dyn ToSql + Sync); 5] = [&shard, &number, &incarnation, &flight.at, &durable];
        let entries = entries::encode(self.writer.shard, flight.number, &entries::of(flight));
        let [attempt, open_from, event_first] =
            [flight.attempt, flight.open_from, flight.event_first].map(bigint);
        let event_count = i32::try_from(flight.passed.len()).expect("a few for each call");
        let mut values = columns.values(head, &self.actor);
        let journal: [&(dyn ToSql + Sync); 5] =
            [&attempt, &open_from, &event_first, &event_count, &entries];
        values.extend(journal);
        let flown = tokio::time::timeout(limit, session.client.query(&session.flight, &values));
        let (flown, blockers) = watched((&self.config, &self.limits), session.pid, flown).await;
        match flown {
            // The rows end when the server is ready for the next statement, which is after the
            // commit.
            Ok(Ok(_)) => {
                self.session = Some(session);
                let last = Last { number: flight.number, attempt: flight.attempt };
                self.note(last).map_err(|error| Stopped::Unknown(error.into()))
            }
            Ok(Err(error)) => {
                // Nothing was written, or the answer needs no question.
                let stopped = self.stopped(&session, flight, blockers, error);
                let stopped = tokio::time::timeout(limit, stopped).await;
                let stopped = stopped.unwrap_or_else(|_| Stopped::Unreachable(elapsed().into()));
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
        self.reading(async |session| read(session, wanted, &catalog).await).await
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        let (rows, after) =
            self.reading(async |session| Ok(read_page(&session.client, filter).await?)).await?;
        let catalog = self.catalog.load();
        let mut page = Page { after, ..Page::default() };
        for row in rows {
            match transfer_from_row(&row, &catalog) {
                Ok(transfer) => page.transfers.push(transfer),
                // One bad row must not hide the others.
                Err(error) => {
                    let number = row.try_get::<_, i64>(1);
                    let number = number.map_err(|error| Failure::Unknown(error.into()))?;
                    let req_id = row.try_get::<_, &str>(2).ok();
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
            let flight = client.prepare(include_str!("flight/flight.sql")).await?;
            Ok((flight, Reads::prepare(&client).await?))
        };
        let (prepared, blockers) = watched((config, limits), pid, prepare).await;
        let (flight, reads) = prepared.map_err(|error| unanswered(error, blockers))?;
        info!("connected to PostgreSQL");
        Ok(Session { client, pid, flight, reads })
    }
}

/// Order numbers in one page of the search, terminal ones included. A page must end long before the
/// statement's limit.
const PAGE_ROWS: i64 = 50_000;

/// The transfers of one page, and where the next one begins.
async fn read_page(
    client: &Client,
    filter: Unfinished,
) -> Result<(Vec<Row>, Option<u64>), tokio_postgres::Error> {
    let after = bigint(filter.after);
    let bounds = "SELECT count(*), max(order_number) FROM (SELECT order_number FROM transfers_tb \
                  WHERE order_number > $1 ORDER BY order_number LIMIT $2) AS page";
    let row = client.query_one(bounds, &[&after, &PAGE_ROWS]).await?;
    let (count, last): (i64, Option<i64>) = (row.try_get(0)?, row.try_get(1)?);
    let Some(last) = last else { return Ok((Vec::new(), None)) };
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
    let transfers = format!(
        "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
         WHERE order_number > $1 AND order_number <= $2 AND user_id % $3 = $4 \
           AND state NOT IN (40, -10, -30) AND {stale} ORDER BY order_number"
    );
    let (shards, shard) = (number(filter.shards.into()), number(filter.shard.into()));
    let rows = client.query(&transfers, &[&after, &last, &shards, &shard]).await?;
    let next = (count == PAGE_ROWS).then(|| u64::try_from(last).expect("counted from 0"));
    Ok((rows, next))
}

/// A flight as the columns of its statement.
#[derive(Default)]
struct Columns {
    accepted: Accepted,
    moved: MovedColumns,
    deferred: DeferredColumns,
    passed: PassedColumns,
    operations: OperationColumns,
    externals: ExternalColumns,
    accounts: AccountColumns,
    balances: BalanceColumns,
    audited: AuditedColumns,
    /// The lowest new order number; `None`: there is none.
    lowest: Option<i64>,
}

/// Declares a struct of columns, each a vector. `values` borrows them in their order.
macro_rules! columns {
    ($name:ident { $($column:ident: $of:ty,)* }) => {
        #[derive(Default)]
        struct $name { $($column: Vec<$of>,)* }

        impl $name {
            fn push(&mut self, ($($column,)*): ($($of,)*)) {
                $(self.$column.push($column);)*
            }

            fn values(&self) -> [&(dyn ToSql + Sync); columns!(@count $($column)*)] {
                [$(&self.$column),*]
            }
        }
    };
    (@count) => { 0 };
    (@count $head:ident $($tail:ident)*) => { 1 + columns!(@count $($tail)*) };
}

columns!(Accepted {
    order_number: i64,
    req_id: String,
    cid: Option<String>,
    fingerprint: String,
    user: i64,
    asset: i32,
    amount: Decimal,
    direction: i16,
    state: i16,
    code: Option<&'static str>,
    log_sequence: Option<i64>,
    retry_count: i32,
    next_retry_at: Option<Timestamp>,
});
columns!(MovedColumns {
    req_id: String,
    before: i16,
    user: i64,
    asset: i32,
    amount: Decimal,
    state: i16,
    code: Option<&'static str>,
    log_sequence: Option<i64>,
    retry_count: i32,
    next_retry_at: Option<Timestamp>,
});
columns!(DeferredColumns {
    req_id: String,
    state: i16,
    retry_count: i32,
    next_retry_at: Timestamp,
});
columns!(PassedColumns {
    req_id: String,
    states: String,
    attempt: i32,
    reason: Option<&'static str>,
});
columns!(OperationColumns {
    req_id: String,
    op: i16,
    code: Option<&'static str>,
    user: i64,
    asset: i32,
    amount: Decimal,
    balance_after: Option<String>,
});
columns!(ExternalColumns {
    idem_key: String,
    op: i16,
    code: Option<&'static str>,
    user: i64,
    asset: i32,
    amount: Decimal,
    balance_after: Option<String>,
    order_number: i64,
});
columns!(AccountColumns { user: i64, before: Option<i16>, after: Option<i16>, });
columns!(BalanceColumns {
    user: i64,
    asset: i32,
    before: Option<String>,
    frozen: Option<String>,
    version: Option<i64>,
    after: Option<String>,
});
columns!(AuditedColumns {
    actor: String,
    action: &'static str,
    subject: String,
    detail: String,
    reason: String,
});

impl Columns {
    fn of(flight: &Flight, catalog: &Catalog) -> Columns {
        let mut columns = Columns::default();
        let amount = |asset, amount: Amount| amount.decimal(precision(catalog, asset));
        let text = |asset, units: u128| units_text(units, precision(catalog, asset));
        for Written { transfer, next_retry_at } in &flight.accepted {
            let Transfer { intent, fingerprint, state, code, .. } = transfer;
            columns.accepted.push((
                bigint(intent.order_number),
                intent.req_id.to_string(),
                intent.cid.as_ref().map(|cid| cid.as_str().to_owned()),
                fingerprint.clone(),
                intent.user.bigint(),
                asset_number(intent.asset),
                amount(intent.asset, intent.amount),
                i16::from(intent.direction as u8),
                state.number(),
                code.map(Code::name),
                transfer.log_sequence.map(bigint),
                count(transfer.retry_count),
                *next_retry_at,
            ));
        }
        for Moved { from, to } in &flight.moved {
            let Transfer { intent, state, code, log_sequence, retry_count, .. } = &to.transfer;
            columns.moved.push((
                intent.req_id.to_string(),
                from.number(),
                intent.user.bigint(),
                asset_number(intent.asset),
                amount(intent.asset, intent.amount),
                state.number(),
                code.map(Code::name),
                log_sequence.map(bigint),
                count(*retry_count),
                to.next_retry_at,
            ));
        }
        for row in &flight.deferred {
            let (state, retry_count) = (row.state.number(), count(row.retry_count));
            columns.deferred.push((row.req_id.to_string(), state, retry_count, row.next_retry_at));
        }
        for row in &flight.passed {
            let states: Vec<String> = row.states.iter().map(|s| s.number().to_string()).collect();
            columns.passed.push((
                row.req_id.to_string(),
                format!("{{{}}}", states.join(",")),
                count(row.attempt),
                row.reason.map(Code::name),
            ));
        }
        for row in &flight.operations {
            columns.operations.push((
                row.req_id.to_string(),
                i16::from(row.op.number()),
                row.decision.code().map(Code::name),
                row.user.bigint(),
                asset_number(row.asset),
                amount(row.asset, row.amount),
                row.balance_after.map(|units| text(row.asset, units)),
            ));
        }
        for Decided { external, decision, balance_after } in &flight.externals {
            columns.externals.push((
                external.idem_key.clone(),
                i16::from(external.op.number()),
                decision.code().map(Code::name),
                external.user.bigint(),
                asset_number(external.asset),
                amount(external.asset, external.amount),
                balance_after.map(|units| text(external.asset, units)),
                bigint(external.order_number),
            ));
        }
        for row in &flight.accounts {
            let status =
                |status: Option<AccountStatus>| status.map(|status| i16::from(status as u8));
            columns.accounts.push((row.user.bigint(), status(row.before), status(row.after)));
        }
        for row in &flight.balances {
            columns.balances.push((
                row.user.bigint(),
                asset_number(row.asset),
                row.before.map(|balance| text(row.asset, balance.available)),
                row.before.map(|balance| text(row.asset, balance.frozen)),
                row.before.map(|balance| bigint(balance.version)),
                row.after.map(|balance| text(row.asset, balance.available)),
            ));
        }
        for row in &flight.audited {
            columns.audited.push((
                row.actor.clone(),
                row.action,
                row.subject.clone(),
                row.detail.clone(),
                row.reason.clone(),
            ));
        }
        let accepted = columns.accepted.order_number.iter();
        columns.lowest = accepted.chain(&columns.externals.order_number).min().copied();
        columns
    }

    /// The values of the statement, in the order of its parameters.
    fn values<'a>(
        &'a self,
        head: [&'a (dyn ToSql + Sync); 5],
        actor: &'a String,
    ) -> Vec<&'a (dyn ToSql + Sync)> {
        let mut values: Vec<&(dyn ToSql + Sync)> = head.to_vec();
        values.extend(self.accepted.values());
        values.extend(self.moved.values());
        values.extend(self.deferred.values());
        values.push(actor);
        values.extend(self.passed.values());
        values.extend(self.operations.values());
        values.extend(self.externals.values());
        values.extend(self.accounts.values());
        values.extend(self.balances.values());
        values.extend(self.audited.values());
        values.push(&self.lowest);
        values
    }
}

fn precision(catalog: &Catalog, asset: AssetId) -> u8 {
    catalog.by_id(asset).expect("checked at accept; assets are never removed").precision
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The statements of [`read`]. All but the first return the place of the wanted row.
struct Reads {
    accounts: Statement,
    balances: Statement,
    transfers: Statement,
    cids: Statement,
    operations: Statement,
    externals: Statement,
}

impl Reads {
    async fn prepare(client: &Client) -> Result<Reads, tokio_postgres::Error> {
        Ok(Reads {
            accounts: client.prepare("SELECT user_id, status FROM accounts_tb \
                         WHERE user_id = ANY ($1) AND account_type = 1").await?,
            balances: client.prepare("SELECT place, available::text, frozen::text, version \
             FROM unnest($1::bigint[], $2::integer[]) WITH ORDINALITY AS a (user_id, asset_id, place) \
             CROSS JOIN LATERAL (SELECT available, frozen, version FROM balances_tb b \
               WHERE b.user_id = a.user_id AND b.asset_id = a.asset_id AND b.account_type = 1 OFFSET 0) AS b").await?,
            transfers: client.prepare(&format!(
            "SELECT {TRANSFER_COLUMNS}, place FROM unnest($1::text[]) WITH ORDINALITY AS a (name, place) \
             CROSS JOIN LATERAL (SELECT * FROM transfers_tb WHERE req_id = a.name OFFSET 0) AS t"
            )).await?,
            cids: client.prepare(&format!(
            "SELECT {TRANSFER_COLUMNS}, place \
             FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS a (owner, name, place) \
             CROSS JOIN LATERAL (SELECT * FROM transfers_tb \
               WHERE user_id = a.owner AND cid = a.name OFFSET 0) AS t"
            )).await?,
            operations: client.prepare("SELECT place, o.code, o.user_id, o.asset_id, o.amount \
             FROM unnest($1::text[], $2::smallint[]) WITH ORDINALITY AS a (name, op, place) \
             CROSS JOIN LATERAL (SELECT code, user_id, asset_id, amount FROM transfer_operations \
               WHERE req_id = a.name AND op = a.op OFFSET 0) AS o").await?,
            externals: client.prepare("SELECT place, x.code, x.user_id, x.asset_id, x.amount, x.op, x.order_number, \
               x.balance_after::text \
             FROM unnest($1::text[]) WITH ORDINALITY AS a (name, place) \
             CROSS JOIN LATERAL (SELECT code, user_id, asset_id, amount, op, order_number, balance_after \
               FROM external_operations WHERE idem_key = a.name OFFSET 0) AS x").await?,
        })
    }
}

/// Reads the wanted rows.
async fn read(session: &Session, wanted: &Wanted, catalog: &Catalog) -> Result<Found, Error> {
    let Session { client, reads, .. } = session;
    let mut found = Found::default();
    if !wanted.accounts.is_empty() {
        let users: Vec<i64> = wanted.accounts.iter().map(|user| user.bigint()).collect();
        for row in client.query(&reads.accounts, &[&users]).await? {
            let Some(user) = columns::user(&row, 0)? else { continue };
            let number: i16 = row.try_get(1)?;
            match u8::try_from(number).ok().and_then(AccountStatus::from_number) {
                Some(status) => found.accounts.push((user, status)),
                None => {
                    let what = format!("account of {user}: status {number}");
                    found.unreadable.push((Key::Account(user), what));
                }
            }
        }
    }
    if !wanted.balances.is_empty() {
        let users: Vec<i64> = wanted.balances.iter().map(|(user, _)| user.bigint()).collect();
        let assets: Vec<i32> =
            wanted.balances.iter().map(|(_, asset)| asset_number(*asset)).collect();
        for row in client.query(&reads.balances, &[&users, &assets]).await? {
            let (user, asset) = wanted.balances[place(&row)?];
            match balance(&row, precision(catalog, asset))? {
                Some(balance) => found.balances.push((user, asset, balance)),
                None => {
                    let what = format!("balance of {user} in asset {}", asset.0);
                    found.unreadable.push((Key::Balance(user, asset), what));
                }
            }
        }
    }
    if !wanted.transfers.is_empty() {
        let names: Vec<String> = wanted.transfers.iter().map(ReqId::to_string).collect();
        for row in client.query(&reads.transfers, &[&names]).await? {
            let key = |place: usize| Key::ReqId(wanted.transfers[place]);
            found.transfer(&row, catalog, key)?;
        }
    }
    if !wanted.cids.is_empty() {
        let users: Vec<i64> = wanted.cids.iter().map(|(user, _)| user.bigint()).collect();
        let cids: Vec<&str> = wanted.cids.iter().map(|(_, cid)| cid.as_str()).collect();
        for row in client.query(&reads.cids, &[&users, &cids]).await? {
            let key = |place: usize| {
                let (user, cid) = &wanted.cids[place];
                Key::Cid(*user, cid.clone())
            };
            found.transfer(&row, catalog, key)?;
        }
    }
    if !wanted.operations.is_empty() {
        let names: Vec<String> =
            wanted.operations.iter().map(|(name, _)| name.to_string()).collect();
        let ops: Vec<i16> =
            wanted.operations.iter().map(|(_, op)| i16::from(op.number())).collect();
        for row in client.query(&reads.operations, &[&names, &ops]).await? {
            let (req_id, op) = wanted.operations[place(&row)?];
            let (decision, user, asset, amount) = match entry(&row, catalog) {
                Ok(entry) => entry,
                Err(error) => {
                    found.unreadable.push((Key::Operation(req_id, op), error.to_string()));
                    continue;
                }
            };
            let (balance_after, order_number) = (None, 0);
            let row = Operation {
                req_id,
                order_number,
                op,
                user,
                asset,
                amount,
                decision,
                balance_after,
            };
            found.operations.push(row);
        }
    }
    if !wanted.externals.is_empty() {
        for row in client.query(&reads.externals, &[&wanted.externals]).await? {
            let idem_key = &wanted.externals[place(&row)?];
            match decided(&row, idem_key, catalog) {
                Ok(decided) => found.externals.push(decided),
                Err(error) => {
                    found.unreadable.push((Key::External(idem_key.clone()), error.to_string()));
                }
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Adds a row of [`TRANSFER_COLUMNS`] and its place.
    fn transfer(
        &mut self,
        row: &Row,
        catalog: &Catalog,
        key: impl Fn(usize) -> Key,
    ) -> Result<(), Error> {
        match transfer_from_row(row, catalog) {
            Ok(transfer) => self.transfers.push(transfer),
            Err(error) => {
                let place: i64 = row.try_get("place")?;
                let place = usize::try_from(place).expect("counted from 1") - 1;
                self.unreadable.push((key(place), error.to_string()));
            }
        }
        Ok(())
    }
}

/// The first column: the place of the wanted row, from 0.
fn place(row: &Row) -> Result<usize, Error> {
    let place: i64 = row.try_get(0)?;
    Ok(usize::try_from(place).expect("counted from 1") - 1)
}

/// A balance behind its place; `None`: it is no whole number of units.
fn balance(row: &Row, precision: u8) -> Result<Option<Balance>, Error> {
    let available = units_from_text(row.try_get(1)?, precision);
    let frozen = units_from_text(row.try_get(2)?, precision);
    let version = u64::try_from(row.try_get::<_, i64>(3)?).ok();
    let all = available.zip(frozen).zip(version);
    Ok(all.map(|((available, frozen), version)| Balance { available, frozen, version }))
}

/// Decision, user, asset and amount behind a place.
fn entry(row: &Row, catalog: &Catalog) -> Result<(Decision, UserId, AssetId, Amount), Error> {
    let bad = |what: &str| unreadable("transfer_operations", what);
    let asset = columns::asset(row, 3, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let user = columns::user(row, 2)?.ok_or_else(|| bad("user_id"))?;
    let amount = Amount::from_decimal(row.try_get(4)?, asset.precision);
    Ok((decision(row, 1)?, user, asset.id, amount.ok_or_else(|| bad("amount"))?))
}

/// An external operation behind a place.
fn decided(row: &Row, idem_key: &str, catalog: &Catalog) -> Result<Decided, Error> {
    let bad = |what: &str| unreadable("external_operations", format!("{idem_key}: {what}"));
    let (decision, user, asset, amount) = entry(row, catalog)?;
    let op = columns::op(row, 5)?.ok_or_else(|| bad("op"))?;
    let order_number = columns::count(row, 6, "external_operations")?;
    let after = row.try_get::<_, Option<&str>>(7)?;
    let after = after.map(|text| {
        units_from_text(text, precision(catalog, asset)).ok_or_else(|| bad("balance_after"))
    });
    let (idem_key, actor) = (idem_key.to_owned(), String::new());
    let external = External { idem_key, op, user, asset, amount, actor, order_number };
    Ok(Decided { external, decision, balance_after: after.transpose()? })
}

fn unreadable(table: &'static str, what: impl Into<String>) -> Error {
    Error::Row { table, what: what.into() }
}

/// A column that holds no code for a success.
pub(super) fn decision(row: &Row, column: usize) -> Result<Decision, Error> {
    Ok(match row.try_get::<_, Option<&str>>(column)? {
        None => Decision::Success,
        Some(name) => Decision::Refused(known_code(name)?),
    })
}

fn known_code(name: &str) -> Result<Code, Error> {
    Code::from_name(name).ok_or_else(|| unreadable("transfers_tb", format!("code {name}")))
}

/// Reads [`TRANSFER_COLUMNS`].
pub(super) fn transfer_from_row(row: &Row, catalog: &Catalog) -> Result<Transfer, Error> {
    let req_id: &str = row.try_get(2)?;
    let bad = |what: &str| unreadable("transfers_tb", format!("{req_id}: {what}"));
    let unsigned = |column: usize, what: &str| -> Result<u64, Error> {
        u64::try_from(row.try_get::<_, i64>(column)?).map_err(|_| bad(what))
    };
    let asset = columns::asset(row, 6, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let cid = row.try_get::<_, Option<&str>>(3)?;
    let direction = u8::try_from(row.try_get::<_, i16>(8)?).ok().and_then(Direction::from_number);
    let intent = Intent {
        req_id: ReqId::parse(req_id).ok_or_else(|| bad("req_id"))?,
        cid: cid.map(|text| Cid::new(text).ok_or_else(|| bad("cid"))).transpose()?,
        user: columns::user(row, 5)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        amount: Amount::from_decimal(row.try_get(7)?, asset.precision)
            .ok_or_else(|| bad("amount"))?,
        direction: direction.ok_or_else(|| bad("transfer_type"))?,
        order_number: unsigned(1, "order_number")?,
    };
    let log_sequence = row.try_get::<_, Option<i64>>(12)?;
    let log_sequence = log_sequence.map(u64::try_from).transpose();
    Ok(Transfer {
        transfer_id: row.try_get(0)?,
        intent,
        fingerprint: row.try_get(4)?,
        state: State::from_number(row.try_get(9)?).ok_or_else(|| bad("state"))?,
        code: row.try_get::<_, Option<&str>>(10)?.map(known_code).transpose()?,
        retry_count: u32::try_from(row.try_get::<_, i32>(11)?).map_err(|_| bad("retry_count"))?,
        log_sequence: log_sequence.map_err(|_| bad("log_sequence"))?,
        created_at: row.try_get::<_, Timestamp>(13)?,
        updated_at: row.try_get::<_, Timestamp>(14)?,
    })
}
