//! What PostgreSQL knows when the log is lost, and how it is bound to the log that is rebuilt from it.
//!
//! The rebuilt log has an identity of its own, which PostgreSQL knows before the log has a file: an old log that comes back,
//! on a disk that was only unmounted, is foreign from then on and cannot be opened.

use tokio_postgres::Client;
use wal::{Identity, Sequence};

use super::admin::audit;
use super::columns::{self, bigint};
use super::cut::CLOSED;
use super::incarnation::{self, identity_from_text, identity_text};
use super::repair_writer::Author;
use super::{Address, Error, Limits, connect};
use domain::transfer::ReqId;

/// The Spot sums of `watermark_totals` that a rebuild understands.
const SPOT_SUMS: &str = "'spot_withdrawn', 'spot_deposited', 'spot_refunded'";

/// Whose log the database belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The log, `None` where the database has never used one.
    pub log: Option<Identity>,
    /// Order numbers below it are over, and added up.
    pub watermark: u64,
    /// Whether that log is one that `ubscore engine adopt` has begun to rebuild, and has not finished.
    pub begun: bool,
    /// Whether the log has venues: only the log has their postings.
    pub posted: bool,
}

/// The binding of a database to a log that is rebuilt.
#[derive(Clone, Debug)]
pub struct Rebinding<'a> {
    /// The log that is lost.
    pub was: Identity,
    /// The log that is rebuilt.
    pub log: Identity,
    /// The new incarnation is above this one.
    pub latest: u64,
    /// What else is to be written down.
    pub detail: String,
    /// By whom, and why.
    pub author: Author<'a>,
}

/// A connection to ask on.
#[derive(Debug)]
pub struct Asked {
    client: Client,
}

impl Asked {
    /// Connects.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn connect(config: &Address, limits: &Limits) -> Result<Asked, Error> {
        Ok(Asked { client: connect(config, limits).await? })
    }

    /// Whose log the database belongs to.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn bound(&self) -> Result<Bound, Error> {
        let state = "SELECT log_identity, watermark, posted FROM engine_state";
        let row = self.client.query_one(state, &[]).await?;
        let log = row.try_get::<_, Option<&str>>(0)?.and_then(identity_from_text);
        let watermark = columns::count(&row, 1, "engine_state")?;
        let (begun, posted) = (is_begun(&self.client).await?, row.try_get(2)?);
        Ok(Bound { log, watermark, begun, posted })
    }

    /// The same, and the last record of its log that the database knows to have been durable; `None` where the database has
    /// not been prepared for ubscore.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn claimed(&self) -> Result<Option<(Bound, Sequence)>, Error> {
        let prepared = "SELECT to_regclass('engine_state') IS NOT NULL \
                        AND to_regclass('audit_state') IS NOT NULL";
        if !self.client.query_one(prepared, &[]).await?.try_get::<_, bool>(0)? {
            return Ok(None);
        }
        let claims = "SELECT GREATEST((SELECT COALESCE(max(durable), 0) FROM journal_last), \
                      (SELECT log_sequence FROM audit_state))";
        let row = self.client.query_one(claims, &[]).await?;
        Ok(Some((self.bound().await?, columns::count(&row, 0, "journal_tb")?)))
    }

    /// PostgreSQL's processes that serve other connections of ubscore to this database.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn others(&self) -> Result<Vec<i32>, Error> {
        let others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() \
                      AND application_name ~ '^ubscore( [0-9]+)?$' AND pid <> pg_backend_pid() ORDER BY pid";
        let rows = self.client.query(others, &[]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// Every transfer from this order number on, in their order.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or has a name that is none.
    pub async fn numbered_from(&self, order_number: u64) -> Result<Vec<ReqId>, Error> {
        let names =
            "SELECT req_id FROM transfers_tb WHERE order_number >= $1 ORDER BY order_number";
        let rows = self.client.query(names, &[&bigint(order_number)]).await?;
        let bad = || Error::Row { table: "transfers_tb", what: "req_id".to_owned() };
        rows.iter().map(|row| columns::req_id(row, 0)?.ok_or_else(bad)).collect()
    }

    /// What has moved Spot beside transfers between Funding and Spot, by name: a rebuild knows nothing of it.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn beside_transfers(&self) -> Result<Vec<String>, Error> {
        let beside = format!(
            "SELECT 'watermark_totals.' || column_name FROM information_schema.columns \
              WHERE table_schema = current_schema() AND table_name = 'watermark_totals' \
                AND column_name LIKE 'spot\\_%' AND column_name NOT IN ({SPOT_SUMS}) \
             UNION ALL SELECT 'transfers_tb, direction ' || direction FROM \
              (SELECT DISTINCT direction FROM transfers_tb WHERE direction NOT IN (1, 2)) AS t \
             UNION ALL SELECT 'external_operations, op ' || op FROM \
              (SELECT DISTINCT op FROM external_operations WHERE op NOT IN (4, 5)) AS e \
             UNION ALL SELECT 'engine_state.posted: venues have moved Spot, and only the log has \
              their postings' FROM engine_state WHERE posted"
        );
        let rows = self.client.query(&beside, &[]).await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }
}

/// Whether a rebuild of the log has begun and is not finished.
///
/// # Errors
/// [`Error`]: PostgreSQL is away.
pub(super) async fn is_begun(client: &impl tokio_postgres::GenericClient) -> Result<bool, Error> {
    let begun = "SELECT 1 FROM admin_audit WHERE action = 'cut' AND detail LIKE '%adopted=%' \
                 AND id > COALESCE((SELECT max(id) FROM admin_audit WHERE action = $1), 0) LIMIT 1";
    Ok(client.query_opt(begun, &[&CLOSED]).await?.is_some())
}

/// Binds the database to the log that is rebuilt, takes back all claims of the lost one, halts the service, ends every
/// process that still writes, and writes down why: one transaction.
///
/// # Errors
/// [`Error::Superseded`]: the database belongs to another log. [`Error`]: nothing was changed, unless the answer to the
/// commit was lost.
pub async fn rebind(
    config: &Address,
    limits: &Limits,
    rebinding: &Rebinding<'_>,
) -> Result<(), Error> {
    let Rebinding { was, log, latest, detail, author } = rebinding;
    let mut client = connect(config, limits).await?;
    let transaction = client.transaction().await?;
    transaction.batch_execute("LOCK TABLE engine_state IN EXCLUSIVE MODE").await?;
    let state = "SELECT log_identity, CASE WHEN halted THEN halt_reason END, watermark \
                 FROM engine_state";
    let row = transaction.query_one(state, &[]).await?;
    if row.try_get::<_, Option<&str>>(0)? != Some(&*identity_text(*was)) {
        return Err(Error::Superseded);
    }
    let lost = "the log was lost and is rebuilt from PostgreSQL: ubscore engine adopt";
    let reason = match row.try_get::<_, Option<&str>>(1)? {
        Some(before) => format!("{lost}; halted before: {before}"),
        None => lost.to_owned(),
    };
    let bind = "UPDATE engine_state SET log_identity = $1, \
                incarnation = GREATEST(incarnation, $3) + 1, \
                halted = TRUE, halt_reason = $2";
    transaction.execute(bind, &[&identity_text(*log), &reason, &bigint(*latest)]).await?;
    incarnation::fence(&transaction).await?;
    for claim in ["UPDATE journal_tb SET durable = 0", "UPDATE audit_state SET log_sequence = 0"] {
        transaction.execute(claim, &[]).await?;
    }
    let watermark = columns::count(&row, 2, "engine_state")?;
    let detail = format!(
        "from=1 kept_until=-infinity adopted={} was={} carried={watermark} {detail}",
        identity_text(*log),
        identity_text(*was)
    );
    audit(&transaction, author.actor, "cut", "log", &detail, author.reason).await?;
    Ok(transaction.commit().await?)
}
