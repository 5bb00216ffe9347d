//! Flights that other sessions stop: which rows those sessions hold, and which sessions they are.

use jiff::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};
use tracing::info;

use super::super::columns::{Id, asset_number};
use super::super::flight::{Flight, Source, Stopped};
use super::super::{Address, Error, Limits, connect};
use super::Session;
use domain::account::UserId;
use domain::transfer::ReqId;

/// A wait for a lock that the server has ended, with the sessions that held the lock.
#[derive(Debug, thiserror::Error)]
#[error("blocked by {blockers}")]
struct Blocked {
    blockers: String,
    #[source]
    source: Source,
}

/// The error of a wait for a lock, with the sessions that held the lock.
pub(super) fn blocked_by(blockers: String, source: Source) -> Source {
    Blocked { blockers, source }.into()
}

/// The most blockers in a text.
const BLOCKERS_NAMED: usize = 5;
/// Blockers that were looked for and not found.
pub(super) const GONE: &str = "sessions that were gone when they were looked for";

/// The sessions that block the backend `pid`, as text.
pub(super) async fn blockers(config: &Address, limits: &Limits, pid: i32) -> Result<String, Error> {
    let client = connect(config, limits).await?;
    // A prepared transaction has the pid 0.
    let blocking = "SELECT DISTINCT b.pid, a.application_name, a.state, a.query_start \
                    FROM unnest(pg_blocking_pids($1)) AS b (pid) \
                    LEFT JOIN pg_stat_activity a USING (pid) ORDER BY pid LIMIT $2";
    let most = i64::try_from(BLOCKERS_NAMED).expect("a few");
    let mut named = Vec::new();
    for row in client.query(blocking, &[&pid, &most]).await? {
        let pid: i32 = row.try_get(0)?;
        let (application, state): (Option<&str>, Option<&str>) = (row.try_get(1)?, row.try_get(2)?);
        let since: Option<Timestamp> = row.try_get(3)?;
        named.push(match (pid, since) {
            (0, _) => "a prepared transaction (pg_prepared_xacts)".to_owned(),
            (pid, None) => format!("pid {pid}"),
            (pid, Some(since)) => {
                let (application, state) = (application.unwrap_or(""), state.unwrap_or(""));
                format!("pid {pid} ({application:?}, {state}, query started at {since})")
            }
        });
    }
    Ok(if named.is_empty() { GONE.to_owned() } else { named.join(", ") })
}

/// Finds out which rows of a flight other sessions hold.
///
/// If none can be named, PostgreSQL's context of the error shows whether the flight waited inside a
/// row, such as for a key that another session inserts. Then smaller flights find its call. A wait
/// for a table has no context. It stops every flight, and smaller ones would all wait as long.
pub(super) async fn held(
    session: &Session,
    flight: &Flight,
    blockers: String,
    source: tokio_postgres::Error,
) -> Stopped {
    let context = source.as_db_error().and_then(|error| error.where_()).unwrap_or("");
    // The earlier copy of a flight holds the key of the journal.
    let in_a_row = source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
        && !context.is_empty()
        && !context.contains("journal_tb");
    let source = blocked_by(blockers, source.into());
    match look_for_held(&session.client, flight).await {
        Ok((users, req_ids)) if users.is_empty() && req_ids.is_empty() => match in_a_row {
            true => Stopped::Unnamed(source),
            false => Stopped::Blocked(source),
        },
        Ok((users, req_ids)) => Stopped::Held { users, req_ids, source },
        Err(probe) => {
            info!(%probe, "the held rows of a flight are not known");
            Stopped::Blocked(source)
        }
    }
}

/// Of some rows those that other sessions hold: they exist, and cannot be locked at once.
const HELD: [&str; 3] = [
    "WITH free AS (SELECT user_id FROM accounts_tb WHERE user_id = ANY ($1) \
       FOR NO KEY UPDATE SKIP LOCKED) \
     SELECT user_id FROM accounts_tb WHERE user_id = ANY ($1) \
       AND user_id NOT IN (SELECT user_id FROM free)",
    "WITH sought AS (SELECT * FROM unnest($1::bigint[], $2::integer[]) AS s (user_id, asset_id)), \
     free AS (SELECT user_id, asset_id FROM sought CROSS JOIN LATERAL (\
       SELECT FROM balances_tb b WHERE b.user_id = sought.user_id \
         AND b.asset_id = sought.asset_id \
         FOR NO KEY UPDATE SKIP LOCKED) AS locked) \
     SELECT user_id FROM sought CROSS JOIN LATERAL (\
       SELECT FROM balances_tb b WHERE b.user_id = sought.user_id \
         AND b.asset_id = sought.asset_id OFFSET 0) AS there \
      WHERE (user_id, asset_id) NOT IN (SELECT user_id, asset_id FROM free)",
    "WITH free AS (SELECT req_id FROM transfers_tb WHERE req_id = ANY ($1) \
       FOR NO KEY UPDATE SKIP LOCKED) \
     SELECT req_id FROM transfers_tb WHERE req_id = ANY ($1) \
       AND req_id NOT IN (SELECT req_id FROM free)",
];

/// The users and transfers of a flight whose rows other sessions hold.
async fn look_for_held(
    client: &Client,
    flight: &Flight,
) -> Result<(Vec<UserId>, Vec<ReqId>), tokio_postgres::Error> {
    // Each statement is a transaction of its own, so its locks are gone when it returns. It waits
    // for a table no longer than any other statement.
    let changed =
        flight.accounts.iter().filter(|row| row.before.is_some() && row.after != row.before);
    let changed: Vec<UserId> = changed.map(|row| row.user).collect();
    let numbers: Vec<i64> = changed.iter().map(|user| user.bigint()).collect();
    let mut held: Vec<i64> = firsts(client.query(HELD[0], &[&numbers]).await?)?;

    let booked = flight.balances.iter().filter(|row| row.before.is_some() && row.after.is_some());
    let booked: Vec<_> = booked.map(|row| (row.user, row.asset)).collect();
    let numbers: (Vec<i64>, Vec<i32>) =
        booked.iter().map(|(user, asset)| (user.bigint(), asset_number(*asset))).unzip();
    held.extend(firsts::<i64>(client.query(HELD[1], &[&numbers.0, &numbers.1]).await?)?);
    let users = changed.into_iter().chain(booked.into_iter().map(|(user, _)| user));
    let users = users.filter(|user| held.contains(&user.bigint())).collect();

    let moved = flight.moved.iter().map(|moved| moved.to.transfer.intent.req_id);
    let moved: Vec<ReqId> = moved.chain(flight.deferred.iter().map(|row| row.req_id)).collect();
    let names = Id::all(&moved);
    let held: Vec<Id> = firsts(client.query(HELD[2], &[&names]).await?)?;
    let held = moved.into_iter().zip(names).filter(|(_, name)| held.contains(name));
    Ok((users, held.map(|(req_id, _)| req_id).collect()))
}

fn firsts<T: for<'a> FromSql<'a>>(rows: Vec<Row>) -> Result<Vec<T>, tokio_postgres::Error> {
    rows.iter().map(|row| row.try_get(0)).collect()
}
