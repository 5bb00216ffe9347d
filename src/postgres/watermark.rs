//! The watermark as PostgreSQL keeps it: raised here first, and only as far as every row allows.

use std::time::Duration;

use tokio_postgres::{Client, Statement};

use super::columns::bigint;
use super::{Address, Error, Limits, Verdict, connect, verdict};
use crate::telemetry;

/// See [`Watermark::ahead`]. 1,000 rows at each end cost a millisecond.
const AHEAD: &str = "SELECT extract(epoch FROM max(updated_at) - clock_timestamp())::float8 FROM \
     ((SELECT updated_at FROM transfers_tb ORDER BY order_number DESC LIMIT 1000) \
      UNION ALL \
      (SELECT updated_at FROM transfers_tb \
        WHERE order_number >= (SELECT watermark FROM engine_state) \
        ORDER BY order_number LIMIT 1000)) AS ends";

/// Transfers per second between the kept sightings of the latest incarnation.
const RATE: &str = "SELECT (max(order_number) - min(order_number)) * 1000 \
                           / NULLIF(max(seen_ms) - min(seen_ms), 0) \
     FROM watermark_sightings \
    WHERE order_number >> 40 = (SELECT max(order_number) >> 40 FROM watermark_sightings)";

/// How far a watermark stands, and what is above it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Raised {
    /// Order numbers below it may leave UBSCore's outcome map. Durable.
    pub watermark: u64,
    /// A further call would find more to do.
    pub more: bool,
    /// Age of the oldest transfer above it.
    pub oldest: Duration,
}

/// Where the transfers are that are under way: each has the order number `from` or a higher one, or is
/// in `old`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// The lowest order number of those that are not in `old`, or a lower one.
    pub from: u64,
    /// Order numbers of transfers that have been under way for many flights.
    pub old: Vec<u64>,
}

/// A connection of its own for the one who raises the watermark. Opened when needed, dropped after any error.
pub struct Watermark {
    config: Address,
    limits: Limits,
    incarnation: i64,
    session: Option<Session>,
}

struct Session {
    client: Client,
    observe: Statement,
    note_open: Statement,
    raise: Statement,
    ahead: Statement,
    trim_holds: Statement,
}

impl Watermark {
    /// Connects with the first call.
    pub fn new(config: Address, limits: Limits, incarnation: u64) -> Watermark {
        // Whoever waits behind us for the same lock must not be timed out by our waiting.
        let limits = Limits { lock_timeout: limits.lock_timeout / 2, ..limits };
        let incarnation = i64::try_from(incarnation).expect("below INCARNATION_MAX");
        Watermark { config, limits, incarnation, session: None }
    }

    /// Takes down that everything below `number` is terminal (`None`: not known), `lived` into the life of this
    /// process; returns the largest number of which that was so `keep` ago, 0 for none.
    ///
    /// # Errors
    /// [`Error`]; the same call again counts nothing twice.
    pub async fn observe(
        &mut self,
        number: Option<u64>,
        lived: Duration,
        keep: Duration,
    ) -> Result<u64, Error> {
        let session = self.session().await?;
        let number = number.map(bigint);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&self.incarnation, &number, &milliseconds(lived), &milliseconds(keep)];
        let row = session.client.query_one(&session.observe, &values).await.map_err(failure)?;
        let ripe = unsigned(row.try_get(0)?)?;
        self.session = Some(session);
        Ok(ripe)
    }

    /// Notes where the next start finds the transfers that are under way.
    ///
    /// # Errors
    /// [`Error`]; the note before stays true.
    pub async fn note_open(&mut self, open: &Open) -> Result<(), Error> {
        let session = self.session().await?;
        let old: Vec<i64> = open.old.iter().copied().map(bigint).collect();
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.incarnation, &bigint(open.from), &old];
        session.client.execute(&session.note_open, &values).await.map_err(failure)?;
        self.session = Some(session);
        Ok(())
    }

    /// Raises the watermark towards `target`, over `rows` transfers at most, with the totals of what it passes.
    ///
    /// # Errors
    /// [`Error`]; whether it was raised may be unknown, and the next call goes on from where it stands.
    pub async fn raise(&mut self, target: u64, keep: Duration, rows: u32) -> Result<Raised, Error> {
        let session = self.session().await?;
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&self.incarnation, &bigint(target), &milliseconds(keep), &rows];
        let row = session.client.query_one(&session.raise, &values).await.map_err(failure)?;
        let watermark = unsigned(row.try_get(0)?)?;
        let more = row.try_get(1)?;
        let oldest = row.try_get::<_, Option<f64>>(2)?.unwrap_or(0.0);
        // A clock that went back makes an age of less than nothing.
        let oldest = Duration::try_from_secs_f64(oldest).unwrap_or(Duration::ZERO);
        self.session = Some(session);
        Ok(Raised { watermark, more, oldest })
    }

    /// Deletes holds below the watermark that have ended and moved nothing, at most `rows`.
    /// Returns how many.
    ///
    /// # Errors
    /// [`Error`]; the next call goes on.
    pub async fn trim_holds(&mut self, rows: u32) -> Result<u64, Error> {
        let session = self.session().await?;
        let rows = i32::try_from(rows).unwrap_or(i32::MAX);
        let row = session.client.query_one(&session.trim_holds, &[&rows]).await.map_err(failure)?;
        let gone = unsigned(row.try_get(0)?)?;
        self.session = Some(session);
        Ok(gone)
    }

    /// How far the latest stamp of the transfers that it looks at lies ahead of PostgreSQL's clock; zero where none does. It
    /// looks at some of the newest transfers, and at those that the watermark passes next.
    ///
    /// # Errors
    /// [`Error`]; nothing is changed.
    pub async fn ahead(&mut self) -> Result<Duration, Error> {
        let session = self.session().await?;
        let row = session.client.query_one(&session.ahead, &[]).await.map_err(failure)?;
        let ahead = row.try_get::<_, Option<f64>>(0)?.unwrap_or(0.0);
        self.session = Some(session);
        Ok(Duration::try_from_secs_f64(ahead).unwrap_or(Duration::ZERO))
    }

    /// Transfers accepted per second in about the last keep time; `None` if it is not known.
    ///
    /// # Errors
    /// [`Error`]; nothing is changed.
    pub async fn rate(&mut self) -> Result<Option<u64>, Error> {
        let session = self.session().await?;
        let row = session.client.query_one(RATE, &[]).await.map_err(failure)?;
        let rate = row.try_get::<_, Option<i64>>(0)?;
        self.session = Some(session);
        Ok(rate.and_then(|rate| u64::try_from(rate).ok()))
    }

    /// Longer than the server's own limits, so that the server speaks first wherever it can.
    pub fn call_limit(&self) -> Duration {
        self.limits.connect_timeout + self.limits.statement_timeout + self.limits.lock_timeout
    }

    /// The open session, or a new one. Whoever takes it puts it back after a success.
    async fn session(&mut self) -> Result<Session, Error> {
        match self.session.take() {
            Some(session) if !session.client.is_closed() => Ok(session),
            Some(_) | None => {
                let client = connect(&self.config, &self.limits).await?;
                let observe = client.prepare("SELECT watermark_observe($1, $2, $3, $4)").await?;
                let note_open = "SELECT watermark_note_open($1, $2, $3)";
                let note_open = client.prepare(note_open).await?;
                let raise = "SELECT o_watermark, o_more, o_oldest_s \
                             FROM watermark_raise($1, $2, $3, $4)";
                let raise = client.prepare(raise).await?;
                let ahead = client.prepare(AHEAD).await?;
                let trim_holds = client.prepare("SELECT holds_trim($1)").await?;
                Ok(Session { client, observe, note_open, raise, ahead, trim_holds })
            }
        }
    }
}

fn failure(error: tokio_postgres::Error) -> Error {
    match verdict(&error) {
        Verdict::Fenced => {
            telemetry::count_fenced_write();
            Error::Superseded
        }
        Verdict::Retry | Verdict::Violation | Verdict::Unavailable | Verdict::Unknown => {
            Error::Query(error)
        }
    }
}

fn unsigned(order_number: i64) -> Result<u64, Error> {
    u64::try_from(order_number).map_err(|_| Error::Row {
        table: "engine_state",
        what: format!("order number {order_number}"),
    })
}

pub(super) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
