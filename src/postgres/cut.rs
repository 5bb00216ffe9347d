//! What PostgreSQL knows of a log whose end is to be given up, and what it is told once that has been done.
//!
//! PostgreSQL claims records of the log durable, and a start believes it. A cut takes some of them away on purpose, so the
//! claims are taken back in the transaction that writes down who did it and why, and that halts the service: what was lost
//! is for people and for `ubscore repair`, before any money moves.

use std::time::Duration;

use jiff::Timestamp;
use tokio_postgres::{Client, GenericClient, Row};
use wal::{Identity, Sequence};

use super::admin::audit;
use super::columns::{self, Id, bigint};
use super::database::{TRANSFER_COLUMNS, transfer_from_row};
use super::incarnation::{self, identity_from_text, identity_text};
use super::store::Transfer;
use super::{Address, Error, Limits, connect};
use domain::account::{AccountStatus, UserId};
use domain::asset::Catalog;
use domain::transfer::{Direction, Op, Participant, ReqId, State};

/// Who cuts, in `admin_audit`: whoever may write the data directory.
const ACTOR: &str = "ubscore wal repair";
/// What a repair notes in `admin_audit` once everything that a cut has lost is decided again or left.
pub(super) const CLOSED: &str = "cut repaired";
/// What it notes once the credits alone are decided again, because venues must send again before the debits.
pub(super) const CREDITED: &str = "cut credited";
/// What is noted of an Open of a venue while a cut is open, before its session begins.
pub(super) const VENUE_OPENS: &str = "venue session";

/// The reason of a halt for a cut: both with the first lost record between them.
const HALT: [&str; 2] =
    ["the log was cut from record ", " on, and what it held is lost: ubscore repair"];
/// Between the first cause of a halt and a later one.
pub const THEN: &str = "; then: ";
/// Between the reason of a cut and that of an earlier halt.
const BEFORE: &str = "; halted before: ";

/// A cause in the reason of a halt that is no cut.
pub(super) fn other_cause(reason: &str) -> Option<&str> {
    let is_cut = |cause: &str| cause.starts_with(HALT[0]) && cause.ends_with(HALT[1]);
    let mut causes = reason.split(THEN).flat_map(|part| part.split(BEFORE));
    causes.find(|cause| !cause.is_empty() && !is_cut(cause))
}

/// How far the repair of the last cut has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutState {
    /// There is no cut, or its repair is done.
    Closed,
    /// It is not repaired.
    Open,
    /// The credits are decided again, and the reason of the halt is still the one of then: venues may send again.
    Credited,
}

/// The state of the last cut.
///
/// # Errors
/// PostgreSQL is away.
pub(super) async fn state(client: &impl GenericClient) -> Result<CutState, Error> {
    match refuse_unrepaired(client).await {
        Err(Error::Unrepaired) => {}
        done => return done.map(|()| CutState::Closed),
    }
    let last = "SELECT action = $1 AND detail = (SELECT COALESCE(halt_reason, '') FROM engine_state WHERE halted) \
                FROM admin_audit WHERE action IN ('cut', $1) ORDER BY id DESC LIMIT 1";
    let row = client.query_one(last, &[&CREDITED]).await?;
    Ok(match row.try_get(0)? {
        Some(true) => CutState::Credited,
        Some(false) | None => CutState::Open,
    })
}

/// A venue, as PostgreSQL knows it since the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutVenue {
    /// Its number.
    pub id: u32,
    /// The highest answer that it has named at an Open since the cut, `None` without an Open.
    pub told: Option<u64>,
    /// An operator has closed it since the cut, and not opened it again.
    pub closed: bool,
}

/// Every venue that was ever added, and those with an Open since the last cut, by number; and whether a venue was ever
/// added, also by a process that has named none here.
///
/// It is exact: its rows are only added, and those of a cut and of an Open take the fence. So their ids have the order of
/// their commits, and no process from before the cut adds one behind it. A resume ends no open cut; `ubscore repair` does,
/// while no service runs. One thing is not known here: a venue that neither store names, beside services that post. Its next
/// Open is refused.
///
/// # Errors
/// PostgreSQL is away, or has a row that cannot be read.
pub(super) async fn venues(client: &impl GenericClient) -> Result<(Vec<CutVenue>, bool), Error> {
    // Services post as well. A venue that neither store names, beside them, is found at its Open.
    let posted = "SELECT posted AND NOT EXISTS (SELECT FROM transaction_branches \
                                                 WHERE participant = 'SPOT') FROM engine_state";
    let any = client.query_one(posted, &[]).await?.try_get(0)?;
    let venues = "SELECT substring(subject FROM '^venue ([0-9]+)$')::bigint, \
                    (max(substring(detail FROM '^answers=([0-9]+)$')::numeric) \
                      FILTER (WHERE action = $1 AND is_later))::text, \
                    COALESCE((array_agg(action = 'venue close' AND is_later ORDER BY id DESC) \
                      FILTER (WHERE action IN ('venue close', 'venue open')))[1], FALSE) \
                  FROM (SELECT *, id > COALESCE((SELECT max(id) FROM admin_audit WHERE action = 'cut'), 0) AS is_later \
                          FROM admin_audit \
                         WHERE action IN ('venue add', 'venue close', 'venue open', $1)) AS changes \
                 GROUP BY 1 ORDER BY 1";
    let rows = client.query(venues, &[&VENUE_OPENS]).await?;
    Ok((rows.iter().map(cut_venue_from_row).collect::<Result<_, _>>()?, any))
}

/// The last answer of a venue that is recorded since the last cut, `None` without one.
///
/// # Errors
/// PostgreSQL is away, or has a row that cannot be read.
pub(super) async fn noted(client: &impl GenericClient, venue: u32) -> Result<Option<u64>, Error> {
    let (venues, _) = venues(client).await?;
    Ok(venues.into_iter().find(|row| row.id == venue).and_then(|row| row.told))
}

fn cut_venue_from_row(row: &Row) -> Result<CutVenue, Error> {
    let bad = |what: &str| Error::Row { table: "admin_audit", what: what.to_owned() };
    let id = row.try_get::<_, Option<i64>>(0)?.and_then(|id| u32::try_from(id).ok());
    let told = row.try_get::<_, Option<String>>(1)?.map(|told| told.parse()).transpose();
    let told = told.map_err(|_| bad("the last answer of a venue"))?;
    Ok(CutVenue { id: id.ok_or_else(|| bad("a venue"))?, told, closed: row.try_get(2)? })
}

/// Refuses where a cut of the log has been followed by no repair. Nothing but the log and its repair knows of a status that
/// was lost, so no check of the money would object.
///
/// # Errors
/// [`Error::Unrepaired`]; PostgreSQL is away.
pub(super) async fn refuse_unrepaired(client: &impl GenericClient) -> Result<(), Error> {
    let open = "SELECT 1 FROM admin_audit WHERE action = 'cut' \
                AND id > COALESCE((SELECT max(id) FROM admin_audit WHERE action = $1), 0) LIMIT 1";
    match client.query_opt(open, &[&CLOSED]).await? {
        Some(_) => Err(Error::Unrepaired),
        None => Ok(()),
    }
}

/// What PostgreSQL claims of the log.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// The log it belongs to, `None` where it has never used one.
    pub log: Option<Identity>,
    /// The highest record that a process has seen durable.
    pub durable: Sequence,
    /// The record up to which it has been compared with the log.
    pub audited: Sequence,
}

impl Claims {
    /// The last record that it claims to have been durable.
    pub fn last(&self) -> Sequence {
        self.durable.max(self.audited)
    }
}

/// What is known of every cut that there has been.
#[derive(Clone, Debug)]
pub struct Past {
    /// The first record that any of them has taken.
    pub from: Sequence,
    /// When the last one was made, by PostgreSQL's clock.
    pub until: Timestamp,
    /// Spot accounts whose status was set after the last record before it, or shortly before, by user.
    pub statuses: Vec<LostStatus>,
    /// Whether no repair has carried out what there is to be done about the last one.
    pub open: bool,
}

/// A Spot account's status that a cut may have taken.
#[derive(Clone, Debug)]
pub struct LostStatus {
    /// Whose.
    pub user: UserId,
    /// What was set last.
    pub status: AccountStatus,
    /// By whom.
    pub actor: String,
    /// When, by PostgreSQL's clock.
    pub at: Timestamp,
    /// Whether it was ACTIVE at some time since the cut.
    pub was_active: bool,
}

/// What has been given up.
#[derive(Clone, Debug)]
pub struct Loss {
    /// Of which log.
    pub log: Identity,
    /// The first record that is gone.
    pub from: Sequence,
    /// When the last record that is left was written, as PostgreSQL reads a time.
    pub kept_until: String,
    /// What else is to be written down.
    pub detail: String,
    /// Why.
    pub reason: String,
}

/// A connection to ask on.
#[derive(Debug)]
pub struct Witness {
    client: Client,
}

impl Witness {
    /// Connects.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(config: &Address, limits: &Limits) -> Result<Witness, Error> {
        // It reads whole tables, which takes its time.
        let limits = Limits { statement_timeout: Duration::ZERO, ..*limits };
        Ok(Witness { client: connect(config, &limits).await? })
    }

    /// What it claims of the log.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn claims(&self) -> Result<Claims, Error> {
        let claims = "SELECT log_identity, (SELECT COALESCE(max(durable), 0) FROM journal_last) AS durable, \
                      (SELECT log_sequence FROM audit_state) FROM engine_state";
        let row = self.client.query_one(claims, &[]).await?;
        let log = row.try_get::<_, Option<&str>>(0)?.and_then(identity_from_text);
        let durable = columns::count(&row, 1, "journal_tb")?;
        Ok(Claims { log, durable, audited: columns::count(&row, 2, "audit_state")? })
    }

    /// What it knows of cuts of its log, `None` where there was none.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn past(&self) -> Result<Option<Past>, Error> {
        // The two clocks that a record and a row have their times from may differ by a little.
        // What a repair has closed has its statuses again: later ones count, also where PostgreSQL has forgotten them.
        let cuts = "SELECT min(substring(detail FROM 'from=([0-9]+)')::bigint), max(at), \
                      (min(substring(detail FROM 'kept_until=([^ ]+)')::timestamptz) FILTER (WHERE open) \
                        - interval '1 minute')::text, \
                      COALESCE(bool_or(open), FALSE) \
                    FROM (SELECT *, id > COALESCE((SELECT max(id) FROM admin_audit WHERE action = $1), 0) AS open \
                            FROM admin_audit WHERE action = 'cut') AS cuts";
        let row = self.client.query_one(cuts, &[&CLOSED]).await?;
        // The time of the last cut, if there has been any.
        let Some(until) = row.try_get(1)? else { return Ok(None) };
        let from = columns::count(&row, 0, "admin_audit")?;
        let (since, open): (Option<&str>, bool) = (row.try_get(2)?, row.try_get(3)?);
        let statuses = self.statuses(since.unwrap_or("infinity"), Some(until)).await?;
        Ok(Some(Past { from, until, statuses, open }))
    }

    /// The last status of every Spot account whose status was set since `since`, as PostgreSQL reads a time, and at least
    /// once until `until`, now by default; in the order of users.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn statuses(
        &self,
        since: &str,
        until: Option<Timestamp>,
    ) -> Result<Vec<LostStatus>, Error> {
        // What has been set since the cut is in the log, and counts.
        let statuses = "SELECT * FROM (SELECT DISTINCT ON (subject) subject, detail, actor, at, \
                            bool_or(detail = 'ACTIVE') OVER (PARTITION BY subject), \
                            bool_or(at <= COALESCE($2, clock_timestamp())) OVER (PARTITION BY subject) AS lost \
                          FROM admin_audit WHERE action = 'account status' AND subject LIKE '% SPOT' \
                            AND at >= $1::text::timestamptz ORDER BY subject, id DESC) AS last \
                        WHERE lost";
        let rows = self.client.query(statuses, &[&since, &until]).await?;
        let mut statuses = rows.iter().map(status_from_row).collect::<Result<Vec<_>, _>>()?;
        statuses.sort_by_key(|lost| lost.user);
        Ok(statuses)
    }

    /// The state of the last cut.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn state(&self) -> Result<CutState, Error> {
        state(&self.client).await
    }

    /// The venues that must send again after the last cut, and whether there were any.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn venues(&self) -> Result<(Vec<CutVenue>, bool), Error> {
        venues(&self.client).await
    }

    /// Every transfer that waits for an answer by which Spot is paid.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transfers_paying_spot(&self, catalog: &Catalog) -> Result<Vec<Transfer>, Error> {
        let pairs = Direction::ALL.into_iter().flat_map(|way| State::ALL.map(|state| (way, state)));
        let pays = |(way, state): &(Direction, State)| {
            state.asks(*way, Participant::Spot).is_some_and(Op::pays)
        };
        let mut all = Vec::new();
        for (direction, state) in pairs.filter(pays) {
            let query = format!(
                "SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE direction = $1 AND state = $2 ORDER BY order_number"
            );
            let values = (i16::from(direction as u8), state.number());
            for row in self.client.query(&query, &[&values.0, &values.1]).await? {
                all.push(transfer_from_row(&row, catalog)?);
            }
        }
        Ok(all)
    }

    /// Those of these transfers that it has.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transfers(
        &self,
        names: &[ReqId],
        catalog: &Catalog,
    ) -> Result<Vec<Transfer>, Error> {
        let names = Id::all(names);
        let query = format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE req_id = ANY($1)");
        let rows = self.client.query(&query, &[&names]).await?;
        rows.iter().map(|row| transfer_from_row(row, catalog)).collect()
    }

    /// Every transfer whose last outcome on Spot has, as PostgreSQL knows it, the record `from` or a later one, in the order
    /// of these records; of those accepted until `until`, where that is given. Transfers whose totals a rebuilt log carries
    /// are left out: they name records of the log before it.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a row that cannot be read.
    pub async fn transfers_from(
        &self,
        from: Sequence,
        until: Option<Timestamp>,
        catalog: &Catalog,
    ) -> Result<Vec<Transfer>, Error> {
        let query = format!(
            "SELECT {TRANSFER_COLUMNS} FROM transfers_tb \
             WHERE log_sequence >= $1 AND ($2::timestamptz IS NULL OR created_at <= $2) \
               AND order_number >= COALESCE((SELECT max(substring(detail FROM 'carried=([0-9]+)')::bigint) \
                                               FROM admin_audit WHERE action = 'cut'), 0) \
             ORDER BY log_sequence, order_number"
        );
        let rows = self.client.query(&query, &[&bigint(from), &until]).await?;
        rows.iter().map(|row| transfer_from_row(row, catalog)).collect()
    }
}

/// Takes back what PostgreSQL claims of the records that are gone, halts the service, ends every process that still writes,
/// and writes down why: one transaction. The same again does no harm.
///
/// # Errors
/// [`Error::Superseded`]: the database belongs to another log. [`Error`]: nothing was changed, unless the answer to the
/// commit was lost.
pub async fn record(config: &Address, limits: &Limits, loss: &Loss) -> Result<(), Error> {
    let mut client = connect(config, limits).await?;
    let transaction = client.transaction().await?;
    transaction.batch_execute("LOCK TABLE engine_state IN EXCLUSIVE MODE").await?;
    let row = transaction
        .query_one(
            "SELECT log_identity, CASE WHEN halted THEN halt_reason END FROM engine_state",
            &[],
        )
        .await?;
    if row.try_get::<_, Option<&str>>(0)? != Some(&*identity_text(loss.log)) {
        return Err(Error::Superseded);
    }
    let [begin, end] = HALT;
    let cut = format!("{begin}{}{end}", loss.from);
    let halted: Option<String> = row.try_get(1)?;
    let reason = match halted {
        // A repeat.
        Some(before) if before.starts_with(&cut) => before,
        Some(before) => format!("{cut}{BEFORE}{before}"),
        None => cut,
    };
    let halt =
        "UPDATE engine_state SET incarnation = incarnation + 1, halted = TRUE, halt_reason = $1";
    transaction.execute(halt, &[&reason]).await?;
    incarnation::fence(&transaction).await?;
    let kept = bigint(loss.from - 1);
    for claim in [
        "UPDATE journal_tb SET durable = $1 WHERE durable > $1",
        "UPDATE audit_state SET log_sequence = $1 WHERE log_sequence > $1",
    ] {
        transaction.execute(claim, &[&kept]).await?;
    }
    let detail = format!("from={} kept_until={} {}", loss.from, loss.kept_until, loss.detail);
    audit(&transaction, ACTOR, "cut", "log", &detail, &loss.reason).await?;
    Ok(transaction.commit().await?)
}

fn status_from_row(row: &Row) -> Result<LostStatus, Error> {
    let (subject, detail): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
    let bad = || Error::Row { table: "admin_audit", what: format!("{subject}: {detail}") };
    let user = subject.split(' ').next().and_then(|user| user.parse().ok()).and_then(UserId::new);
    Ok(LostStatus {
        user: user.ok_or_else(bad)?,
        status: AccountStatus::from_name(detail).ok_or_else(bad)?,
        actor: row.try_get(2)?,
        at: row.try_get(3)?,
        was_active: row.try_get(4)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_beside_cuts_is_named() {
        let cut = |from: u64| format!("{}{from}{}", HALT[0], HALT[1]);
        let (first, last) = (cut(7), cut(5));
        for (reason, want) in [
            (first.clone(), None),
            (format!("{last}{BEFORE}{first}"), None),
            (format!("{first}{THEN}suspicious"), Some("suspicious")),
            (format!("{last}{BEFORE}the sums differ{THEN}more"), Some("the sums differ")),
        ] {
            assert_eq!(other_cause(&reason), want, "{reason}");
        }
    }
}
