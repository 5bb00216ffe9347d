//! The store of transfers in PostgreSQL: a batch is one flight and one commit, of pipelined statements or of a single one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::poll;
use jiff::Timestamp;
use rust_decimal::Decimal;
use tokio_postgres::error::DbError;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tracing::{error, info, warn};
use wal::Sequence;

use super::columns::{self, asset_number, bigint};
use super::store::{
    BatchKey, Call, Failure, Page, Reply, Sought, Store, Transfer, TransitionPath, Unfinished,
};
use super::{Address, Error, Limits, Verdict, connect_by_keys, is_going_away, verdict};
use crate::telemetry::{self, chain};
use domain::amount::Amount;
use domain::asset::{AssetId, Catalog};
use domain::code::Code;
use domain::transfer::{Cid, Decision, Direction, Intent, ReqId, State};

/// The columns [`transfer_from_row`] reads, in its order.
pub(super) const TRANSFER_COLUMNS: &str = "transfer_id, order_number, req_id, cid, fingerprint, user_id, asset_id, amount, \
     transfer_type, state, error_code, retry_count, log_sequence, created_at, updated_at";

/// Who writes, and for which shard.
#[derive(Clone, Debug)]
pub struct Lease {
    /// This process's incarnation.
    pub incarnation: u64,
    /// The shard of accounts.
    pub shard: u32,
    /// How long the lease lasts from each commit on.
    pub duration: Duration,
}

/// One worker's connection. Opened when needed, dropped after anything unclear.
pub struct Database {
    config: Address,
    limits: Limits,
    lease: Lease,
    actor: String,
    catalog: Arc<ArcSwap<Catalog>>,
    session: Option<Session>,
    /// The number of the last flight; the fence lets none pass after a later one.
    flight: u64,
}

struct Session {
    client: Client,
    fence: Statement,
    /// What moves transfers as a flight of its own, and passes the fence itself.
    alone: Moves,
    /// The same behind the fence.
    together: Moves,
    defer: Statement,
    operate: Statement,
    refuse: Statement,
    query_operation: Statement,
    find: Statement,
    find_cid: Statement,
    external: Statement,
    find_external: Statement,
    set_status: Statement,
}

struct Moves {
    accept: Statement,
    accept_many: Statement,
    step: Statement,
    step_many: Statement,
    refuse: Statement,
}

impl Database {
    /// A store that connects with the first batch.
    pub fn new(
        config: Address,
        limits: Limits,
        lease: Lease,
        catalog: Arc<ArcSwap<Catalog>>,
    ) -> Database {
        let actor = format!("coordinator/{}/{}", lease.incarnation, lease.shard);
        Database { config, limits, lease, actor, catalog, session: None, flight: 0 }
    }

    /// The open session, or a new one.
    async fn session(&mut self) -> Result<Session, Error> {
        match self.session.take() {
            Some(session) if !session.client.is_closed() => Ok(session),
            Some(_) | None => {
                let (open, limit) =
                    (Session::open(&self.config, &self.limits), self.flight_limit());
                tokio::time::timeout(limit, open).await.unwrap_or(Err(Error::Timeout(limit)))
            }
        }
    }

    /// Longer than the server's own limits, so that the server speaks first wherever it can.
    fn flight_limit(&self) -> Duration {
        self.limits.statement_timeout + self.limits.lock_timeout
    }

    /// Carries out and commits, and reads what was answered. A failure comes with whether it is that of a statement for
    /// many calls, of which nothing was done.
    async fn try_commit(
        &mut self,
        durable: Sequence,
        runs: &[&[Call]],
    ) -> Result<Vec<Reply>, (Failure, bool)> {
        let whole = |failure| (failure, false);
        let session = self.session().await;
        let session = session.map_err(|error| whole(Failure::Unreachable(error.into())))?;
        let limit = self.flight_limit();
        let flight = tokio::time::timeout(limit, self.fly(&session, durable, runs)).await;
        // A flight given up still runs on the server: its connection is dropped, and what it did is unknown.
        let flight = flight.map_err(|_elapsed| whole(unknown(Error::Timeout(limit))))?;
        let rows = flight.map_err(|failure| of_call(failure, runs))?;
        self.session = Some(session);
        if let Some(pin) = self.config.pin() {
            pin.answered(self.lease.shard, self.flight);
        }
        let catalog = self.catalog.load();
        let replies = runs.iter().zip(&rows).flat_map(|(run, rows)| replies(run, rows, &catalog));
        Ok(replies.collect())
    }

    /// Carries out and commits, one statement a run. Returns each one's rows; an error names the run.
    async fn fly(
        &self,
        session: &Session,
        durable: Sequence,
        runs: &[&[Call]],
    ) -> Result<Vec<Vec<Row>>, Failure> {
        let durable = bigint(durable);
        let lease_ms = i32::try_from(self.lease.duration.as_millis()).expect("a lease of days");
        let incarnation = i64::try_from(self.lease.incarnation).expect("counted from 1");
        let shard = i32::try_from(self.lease.shard).expect("one a shard and a few");
        let flight = bigint(self.flight);
        let client = &session.client;
        // Plans grow with the tables: of two indexes, one made for a small table may have taken that of all rows of a user.
        if self.flight.is_power_of_two() {
            let discarded = client.batch_execute("DISCARD PLANS").await;
            discarded.map_err(|error| Failure::Unreachable(error.into()))?;
        }

        let catalog = self.catalog.load();
        let fence_arguments: [&(dyn ToSql + Sync); 5] =
            [&incarnation, &shard, &flight, &durable, &lease_ms];
        if let [run] = runs
            && let Some(Arguments { statement, values }) =
                Arguments::of_moves(run, &session.alone, &catalog, &self.actor)
        {
            let values = values.iter().map(|value| &**value as &(dyn ToSql + Sync));
            let values: Vec<_> = values.chain(fence_arguments).collect();
            // Its rows have come once it is committed: what ends them is the server's word that it is ready for more.
            let rows = client.query(statement, &values).await;
            return Ok(vec![rows.map_err(|error| {
                let index = blames_call(&error).then_some(0);
                failure(error, index)
            })?]);
        }

        let mut arguments = Vec::with_capacity(runs.len());
        for run in runs {
            arguments.push(Arguments::of(run, session, &catalog, &self.actor));
        }
        let begin = client.batch_execute("BEGIN");
        let fence = client.query(&session.fence, &fence_arguments);
        let borrowed: Vec<Vec<&(dyn ToSql + Sync)>> = arguments
            .iter()
            .map(|a| a.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect())
            .collect();
        let statements = arguments.iter().zip(&borrowed);
        let queries: Vec<_> =
            statements.map(|(a, values)| client.query(a.statement, values)).collect();
        let commit = client.batch_execute("COMMIT");

        // One flight: each future writes its message at its first poll, and answers come back in the same order.
        let (mut begin, mut fence) = (Box::pin(begin), Box::pin(fence));
        let mut queries: Vec<Pin<Box<_>>> = queries.into_iter().map(Box::pin).collect();
        let mut commit = Box::pin(commit);
        let begun = send(begin.as_mut()).await;
        let fenced = send(fence.as_mut()).await;
        let mut asked = Vec::with_capacity(queries.len());
        for query in &mut queries {
            asked.push(send(query.as_mut()).await);
        }
        let committed = send(commit.as_mut()).await;

        // Without its BEGIN, nothing behind it has written but the fence.
        begun.answer(begin).await.map_err(unknown)?;
        fenced.answer(fence).await.map_err(|error| failure(error, None))?;
        let mut rows = Vec::with_capacity(runs.len());
        for (index, (sent, query)) in asked.into_iter().zip(queries).enumerate() {
            rows.push(sent.answer(query).await.map_err(|e| failure(e, Some(index)))?);
        }
        // Reached only when every statement succeeded, so this COMMIT cannot have been turned into a ROLLBACK.
        committed.answer(commit).await.map_err(unknown)?;
        Ok(rows)
    }
}

/// Calls for which one statement costs less than one each.
const SET_CALLS_MIN: usize = 4;

/// Cuts a batch into what is done by one statement each: neighbours of one batch key, from `least` on, or one call.
fn runs(calls: &[Call], least: usize) -> Vec<&[Call]> {
    let batch_key = calls
        .chunk_by(|one, next| one.batch_key().is_some() && one.batch_key() == next.batch_key());
    batch_key.flat_map(|run| run.chunks(if run.len() < least { 1 } else { run.len() })).collect()
}

/// A future after its first poll.
enum Sent<T> {
    Answered(T),
    Waiting,
}

async fn send<F: Future>(future: Pin<&mut F>) -> Sent<F::Output> {
    match poll!(future) {
        std::task::Poll::Ready(output) => Sent::Answered(output),
        std::task::Poll::Pending => Sent::Waiting,
    }
}

impl<T> Sent<T> {
    async fn answer(self, future: Pin<Box<impl Future<Output = T>>>) -> T {
        match self {
            Sent::Answered(output) => output,
            Sent::Waiting => future.await,
        }
    }
}

/// What an error of a statement (`index`: of which call) means for the whole batch. The transaction is aborted by an
/// error message of the server for a statement, unless the server says that it is going away.
fn failure(error: tokio_postgres::Error, index: Option<usize>) -> Failure {
    if is_going_away(&error) {
        return Failure::Unknown(error.into());
    }
    match (verdict(&error), index) {
        (Verdict::Fenced, _) => {
            telemetry::count_fenced_write();
            Failure::Fenced
        }
        (Verdict::Retry, index) => Failure::Retry { index, source: error.into() },
        (Verdict::Unavailable, _) => Failure::Unreachable(error.into()),
        (verdict, Some(index)) => {
            let violation = verdict == Verdict::Violation;
            Failure::Refused { index, violation, source: error.into() }
        }
        (Verdict::Violation | Verdict::Unknown, None) => Failure::Unknown(error.into()),
    }
}

/// Whether an error of a flight of one statement is that of the call in it, and neither the fence's nor the commit's: the
/// server then says in which function, and it is not the fence. What is not known to be the call's counts for the flight.
fn blames_call(error: &tokio_postgres::Error) -> bool {
    let place = error.as_db_error().and_then(DbError::where_);
    place.is_some_and(|place| !place.contains(" fence("))
}

/// A failure that names a run as one that names a call, and whether the run has several.
fn of_call(failure: Failure, runs: &[&[Call]]) -> (Failure, bool) {
    let shared = |run: usize| runs[run].len() > 1;
    let first = |run: usize| runs[..run].iter().map(|run| run.len()).sum();
    match failure {
        Failure::Refused { index, violation, source } => {
            (Failure::Refused { index: first(index), violation, source }, shared(index))
        }
        Failure::Retry { index: Some(index), source } => {
            (Failure::Retry { index: Some(first(index)), source }, shared(index))
        }
        failure => (failure, false),
    }
}

fn unknown(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::Unknown(error.into())
}

impl Store for Database {
    async fn commit(&mut self, durable: Sequence, calls: &[Call]) -> Result<Vec<Reply>, Failure> {
        self.flight += 1;
        match self.try_commit(durable, &runs(calls, SET_CALLS_MIN)).await {
            // Nothing was done. One at a time the rest of the set may succeed, and the failure gets the name of a call.
            Err((failure, true)) => {
                warn!(why = chain(&failure), "a statement for many failed; one at a time now");
                let singly = self.try_commit(durable, &runs(calls, usize::MAX)).await;
                singly.map_err(|(failure, _)| failure)
            }
            done => done.map_err(|(failure, _)| failure),
        }
    }

    async fn unfinished(&mut self, filter: Unfinished) -> Result<Page, Failure> {
        let session = self.session().await.map_err(|error| Failure::Unreachable(error.into()))?;
        let limit = self.flight_limit();
        let page = tokio::time::timeout(limit, read_page(&session.client, filter)).await;
        let (rows, after) =
            page.map_err(|_elapsed| unknown(Error::Timeout(limit)))?.map_err(unknown)?;
        self.session = Some(session);
        let catalog = self.catalog.load();
        let mut page = Page { after, ..Page::default() };
        for row in rows {
            match transfer_from_row(&row, &catalog) {
                Ok(transfer) => page.transfers.push(transfer),
                // One bad row must not hide the others.
                Err(error) => {
                    let number = row.try_get::<_, i64>(1).map_err(unknown)?;
                    let req_id = row.try_get::<_, &str>(2).ok();
                    error!(req_id, order_number = number, %error, "a transfer cannot be read and is left alone");
                    page.unreadable.extend(u64::try_from(number));
                }
            }
        }
        Ok(page)
    }
}

/// Order numbers in one page of the search, terminal ones included: a page must end long before the statement's limit.
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

impl Moves {
    /// `actor`: what stands where the function takes who acts, from the number of its first parameter.
    async fn prepare(
        client: &Client,
        actor: impl Fn(u32) -> String,
    ) -> Result<Moves, tokio_postgres::Error> {
        let columns = TRANSFER_COLUMNS;
        let (ten, thirteen) = (actor(10), actor(13));
        let accept = "$1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12";
        let step = "$1, $2, $3, $4, $5, $6, $7, $8, $9";
        let moves = [
            format!("transfer_accept({accept}, {thirteen})"),
            format!("transfers_accept({accept}, {thirteen})"),
            format!("transfer_step({step}, {ten}, NULL)"),
            format!("transfers_step({step}, {ten})"),
            format!("transfer_refuse({step}, {ten}, NULL)"),
        ];
        let [accept, accept_many, step, step_many, refuse] =
            moves.map(|call| format!("SELECT {columns} FROM {call}"));
        Ok(Moves {
            accept: client.prepare(&accept).await?,
            accept_many: client.prepare(&accept_many).await?,
            step: client.prepare(&step).await?,
            step_many: client.prepare(&step_many).await?,
            refuse: client.prepare(&refuse).await?,
        })
    }
}

impl Session {
    async fn open(config: &Address, limits: &Limits) -> Result<Session, Error> {
        let client = connect_by_keys(config, limits).await?;
        let find = |by: &str| format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE {by}");
        let session = Session {
            fence: client.prepare("SELECT fence($1, $2, $3, $4, $5)").await?,
            alone: Moves::prepare(&client, |actor| {
                let [p1, p2, p3, p4, p5] = [1, 2, 3, 4, 5].map(|place| actor + place);
                format!("fenced(${actor}, ${p1}, ${p2}, ${p3}, ${p4}, ${p5})")
            })
            .await?,
            together: Moves::prepare(&client, |actor| format!("in_flight(${actor})")).await?,
            defer: client.prepare("SELECT transfer_defer(in_flight($1), $2, $3, $4)").await?,
            find: client.prepare(&find("req_id = $1")).await?,
            find_cid: client.prepare(&find("user_id = $1 AND cid = $2")).await?,
            operate: client
                .prepare("SELECT TRUE, funding_operate(in_flight($1), $2, $3, $4, $5)")
                .await?,
            refuse: client
                .prepare("SELECT TRUE, funding_refuse(in_flight($1), $2, $3, $4, $5)")
                .await?,
            query_operation: client
                .prepare(
                    "SELECT COALESCE(BOOL_OR(TRUE), FALSE), MAX(code) FROM transfer_operations \
                     WHERE req_id = $1 AND op = $2",
                )
                .await?,
            external: client
                .prepare(
                    "SELECT o_code, o_after, o_conflict, o_order \
                     FROM external_operate(in_flight($1), $2, $3, $4, $5, $6, $7)",
                )
                .await?,
            find_external: client
                .prepare(
                    "SELECT code, balance_after::text, \
                       (op, user_id, asset_id, amount) IS DISTINCT FROM \
                       ($2::smallint, $3::bigint, $4::integer, $5::numeric), order_number \
                     FROM external_operations WHERE idem_key = $1",
                )
                .await?,
            set_status: client
                .prepare("SELECT account_set_status($1, $2, in_flight($3), $4)")
                .await?,
            client,
        };
        info!("connected to PostgreSQL");
        Ok(session)
    }
}

type Value = Box<dyn ToSql + Sync + Send>;

/// One statement and its values.
struct Arguments<'a> {
    statement: &'a Statement,
    values: Vec<Value>,
}

impl<'a> Arguments<'a> {
    fn of(run: &[Call], session: &'a Session, catalog: &Catalog, actor: &str) -> Arguments<'a> {
        let moves = Arguments::of_moves(run, &session.together, catalog, actor);
        moves.unwrap_or_else(|| Arguments::of_other(&run[0], session, catalog))
    }

    /// `None` for a call that moves no transfer.
    fn of_moves(
        run: &[Call],
        moves: &'a Moves,
        catalog: &Catalog,
        actor: &str,
    ) -> Option<Arguments<'a>> {
        match run {
            [call] => Arguments::of_move(call, moves, catalog, actor),
            run => Some(Arguments::of_many(run, moves, catalog, actor)),
        }
    }

    fn of_many(run: &[Call], moves: &'a Moves, catalog: &Catalog, actor: &str) -> Arguments<'a> {
        match run[0].batch_key().expect("one statement has one batch key") {
            BatchKey::Accept(direction, transition) => {
                let mut rows = Accepts::default();
                for call in run {
                    let Call::Accept { intent, fingerprint, .. } = call else {
                        unreachable!("one batch key")
                    };
                    rows.req_ids.push(intent.req_id.to_string());
                    rows.cids.push(intent.cid.as_ref().map(|cid| cid.as_str().to_owned()));
                    rows.fingerprints.push(fingerprint.clone());
                    rows.users.push(intent.user.bigint());
                    rows.assets.push(asset_number(intent.asset));
                    rows.amounts.push(decimal(catalog, intent.asset, intent.amount));
                    rows.orders.push(bigint(intent.order_number));
                }
                let (op, success, refused) = funding_part(transition);
                let values: Vec<Value> = vec![
                    Box::new(rows.req_ids),
                    Box::new(rows.cids),
                    Box::new(rows.fingerprints),
                    Box::new(rows.users),
                    Box::new(rows.assets),
                    Box::new(rows.amounts),
                    Box::new(rows.orders),
                    Box::new(i16::from(direction as u8)),
                    Box::new(numbers(&transition.path)),
                    Box::new(op),
                    Box::new(success),
                    Box::new(refused),
                    Box::new(actor.to_owned()),
                ];
                Arguments { statement: &moves.accept_many, values }
            }
            BatchKey::Step(from, transition) => {
                let mut rows = Steps::default();
                for call in run {
                    let Call::Step { transfer, code, log_sequence, attempt, .. } = call else {
                        unreachable!("one batch key")
                    };
                    rows.req_ids.push(transfer.intent.req_id.to_string());
                    rows.codes.push(code.map(Code::name));
                    rows.log_sequences.push(log_sequence.map(bigint));
                    rows.attempts.push(count(*attempt));
                }
                let (op, success, refused) = funding_part(transition);
                let values: Vec<Value> = vec![
                    Box::new(rows.req_ids),
                    Box::new(rows.codes),
                    Box::new(rows.log_sequences),
                    Box::new(rows.attempts),
                    Box::new(from.number()),
                    Box::new(numbers(&transition.path)),
                    Box::new(op),
                    Box::new(success),
                    Box::new(refused),
                    Box::new(actor.to_owned()),
                ];
                Arguments { statement: &moves.step_many, values }
            }
        }
    }

    fn of_move(
        call: &Call,
        moves: &'a Moves,
        catalog: &Catalog,
        actor: &str,
    ) -> Option<Arguments<'a>> {
        let (statement, values): (_, Vec<Value>) = match call {
            Call::Accept { intent, fingerprint, transition } => {
                let (op, success, refused) = funding_part(transition);
                let values: Vec<Value> = vec![
                    Box::new(intent.req_id.to_string()),
                    Box::new(intent.cid.as_ref().map(|cid| cid.as_str().to_owned())),
                    Box::new(fingerprint.clone()),
                    Box::new(intent.user.bigint()),
                    Box::new(asset_number(intent.asset)),
                    Box::new(decimal(catalog, intent.asset, intent.amount)),
                    Box::new(i16::from(intent.direction as u8)),
                    Box::new(bigint(intent.order_number)),
                    Box::new(numbers(&transition.path)),
                    Box::new(op),
                    Box::new(success),
                    Box::new(refused),
                    Box::new(actor.to_owned()),
                ];
                (&moves.accept, values)
            }
            Call::Step { transfer, transition, code, log_sequence, attempt } => {
                let (op, success, refused) = funding_part(transition);
                let values: Vec<Value> = vec![
                    Box::new(transfer.intent.req_id.to_string()),
                    Box::new(transfer.state.number()),
                    Box::new(numbers(&transition.path)),
                    Box::new(op),
                    Box::new(success),
                    Box::new(refused),
                    Box::new(code.map(Code::name)),
                    Box::new(log_sequence.map(bigint)),
                    Box::new(count(*attempt)),
                    Box::new(actor.to_owned()),
                ];
                let statement = if transition.refuses() { &moves.refuse } else { &moves.step };
                (statement, values)
            }
            _ => return None,
        };
        Some(Arguments { statement, values })
    }

    fn of_other(call: &Call, session: &'a Session, catalog: &Catalog) -> Arguments<'a> {
        let decimal = |asset: AssetId, amount: Amount| decimal(catalog, asset, amount);
        let (statement, values): (_, Vec<Value>) = match call {
            Call::Accept { .. } | Call::Step { .. } => unreachable!("it moves a transfer"),
            Call::Defer { req_id, state, retry_count, delay_ms, .. } => {
                let values: Vec<Value> = vec![
                    Box::new(req_id.to_string()),
                    Box::new(state.number()),
                    Box::new(count(*retry_count)),
                    Box::new(i64::try_from(*delay_ms).expect("a bounded back-off")),
                ];
                (&session.defer, values)
            }
            Call::Operate { op, intent, refuse } => {
                let values: Vec<Value> = vec![
                    Box::new(intent.req_id.to_string()),
                    Box::new(i16::from(*op as u8)),
                    Box::new(intent.user.bigint()),
                    Box::new(asset_number(intent.asset)),
                    Box::new(decimal(intent.asset, intent.amount)),
                ];
                (if *refuse { &session.refuse } else { &session.operate }, values)
            }
            Call::QueryOperation { req_id, op } => {
                let values: Vec<Value> =
                    vec![Box::new(req_id.to_string()), Box::new(i16::from(*op as u8))];
                (&session.query_operation, values)
            }
            Call::Find(Sought::ReqId(req_id)) => {
                (&session.find, vec![Box::new(req_id.to_string())])
            }
            Call::Find(Sought::Cid(user, cid)) => {
                let values: Vec<Value> =
                    vec![Box::new(user.bigint()), Box::new(cid.as_str().to_owned())];
                (&session.find_cid, values)
            }
            Call::External(external) => {
                let values: Vec<Value> = vec![
                    Box::new(external.idem_key.clone()),
                    Box::new(i16::from(external.op as u8)),
                    Box::new(external.user.bigint()),
                    Box::new(asset_number(external.asset)),
                    Box::new(decimal(external.asset, external.amount)),
                    Box::new(external.actor.clone()),
                    Box::new(bigint(external.order_number)),
                ];
                (&session.external, values)
            }
            Call::FindExternal(external) => {
                let values: Vec<Value> = vec![
                    Box::new(external.idem_key.clone()),
                    Box::new(i16::from(external.op as u8)),
                    Box::new(external.user.bigint()),
                    Box::new(asset_number(external.asset)),
                    Box::new(decimal(external.asset, external.amount)),
                ];
                (&session.find_external, values)
            }
            Call::SetFundingStatus { user, status, actor, reason } => {
                let values: Vec<Value> = vec![
                    Box::new(user.bigint()),
                    Box::new(i16::from(*status as u8)),
                    Box::new(actor.clone()),
                    Box::new(reason.clone()),
                ];
                (&session.set_status, values)
            }
        };
        Arguments { statement, values }
    }
}

/// The columns of accepts that share a statement.
#[derive(Default)]
struct Accepts {
    req_ids: Vec<String>,
    cids: Vec<Option<String>>,
    fingerprints: Vec<String>,
    users: Vec<i64>,
    assets: Vec<i32>,
    amounts: Vec<Decimal>,
    orders: Vec<i64>,
}

/// The columns of steps that share a statement.
#[derive(Default)]
struct Steps {
    req_ids: Vec<String>,
    codes: Vec<Option<&'static str>>,
    log_sequences: Vec<Option<i64>>,
    attempts: Vec<i32>,
}

fn decimal(catalog: &Catalog, asset: AssetId, amount: Amount) -> Decimal {
    let asset = catalog.by_id(asset).expect("checked at accept; assets are never removed");
    amount.decimal(asset.precision)
}

fn numbers(states: &[State]) -> Vec<i16> {
    states.iter().map(|state| state.number()).collect()
}

fn funding_part(transition: &TransitionPath) -> (Option<i16>, Vec<i16>, Vec<i16>) {
    match &transition.funding {
        None => (None, Vec::new(), Vec::new()),
        Some(part) => {
            (Some(i16::from(part.op as u8)), numbers(&part.on_success), numbers(&part.on_refused))
        }
    }
}

fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The answers to a run. It is committed, and one bad row must not hide the others.
fn replies(run: &[Call], rows: &[Row], catalog: &Catalog) -> Vec<Reply> {
    let answer = |(call, rows): (&Call, &[Row])| {
        reply(call, rows, catalog).unwrap_or_else(|error| Reply::Unreadable(error.to_string()))
    };
    match run {
        [call] => vec![answer((call, rows))],
        run if rows.len() == run.len() => run.iter().zip(rows.chunks(1)).map(answer).collect(),
        run => {
            let what = format!("{} rows for {} calls", rows.len(), run.len());
            vec![Reply::Unreadable(what); run.len()]
        }
    }
}

fn reply(call: &Call, rows: &[Row], catalog: &Catalog) -> Result<Reply, Error> {
    if let (Call::Find(_) | Call::FindExternal(_), []) = (call, rows) {
        return Ok(Reply::Found(None));
    }
    let [row] = rows else { return Err(unreadable("reply", format!("{} rows", rows.len()))) };
    Ok(match call {
        Call::Accept { .. } | Call::Step { .. } => {
            Reply::Transfer(Box::new(transfer_from_row(row, catalog)?))
        }
        Call::Find(_) => Reply::Found(Some(Box::new(transfer_from_row(row, catalog)?))),
        Call::Defer { .. } | Call::SetFundingStatus { .. } => Reply::Done,
        Call::Operate { .. } | Call::QueryOperation { .. } => {
            let recorded: bool = row.try_get(0)?;
            Reply::Operation(if recorded { Some(decision(row, 1)?) } else { None })
        }
        Call::External(_) | Call::FindExternal(_) => Reply::External {
            decision: decision(row, 0)?,
            balance_after: row.try_get(1)?,
            conflict: row.try_get(2)?,
            order_number: match row.try_get::<_, Option<i64>>(3)? {
                Some(number) => {
                    let bad = || unreadable("external_operations", format!("order {number}"));
                    Some(u64::try_from(number).map_err(|_| bad())?)
                }
                None => None,
            },
        },
    })
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
