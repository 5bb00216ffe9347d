//! What the audit reads: one snapshot of PostgreSQL, and in it everything that is new since the last one.
//!
//! [`AuditReader::open`] begins the snapshot and reads; [`AuditReader::close`] keeps how far it came, or forgets it. Totals of all
//! operations are kept per account ([`Unbalanced`] is one whose balance differs); transfers are handed out with their
//! operations, for the audit to compare with UBSCore's.

mod externals;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use wal::{Identity, Sequence};

pub use self::externals::{Decided, EXTERNAL_COLUMNS, external_from_row};
use super::columns::{self, bigint};
use super::cut::Witness;
use super::database::{TRANSFER_COLUMNS, decision, transfer_from_row};
use super::incarnation::identity_from_text;
use super::rebase::rebase_if_foreign;
use super::store::Transfer;
use super::{Address, Error, Limits, connect};
use domain::account::UserId;
use domain::amount::{Amount, plain_text, units_from_text};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Decision, Op, ReqId};

/// Transfers read by one statement.
const TRANSFERS_PER_READ: usize = 5_000;
/// Accounts and transfers looked at in passing, beside what is new, in one opening.
const SWEEP_ROWS: i64 = 20_000;
/// So few external operations can all be added up again and again.
const EXTERNALS_FEW: i64 = 1_000_000;
/// Where there are more, that is done once in so many sweeps.
const SWEEPS_PER_EXTERNALS: u32 = 100;
/// The most unbalanced accounts reported by one opening.
const UNBALANCED_MAX: i64 = 100;

/// A Funding operation as recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which one.
    pub op: Op,
    /// What was decided.
    pub decision: Decision,
    /// Whose account.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
}

/// What PostgreSQL has of one transfer.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its name.
    pub req_id: ReqId,
    /// The transfer, `None` where there are only operations or nothing.
    pub transfer: Option<Transfer>,
    /// Its Funding operations.
    pub operations: Vec<Operation>,
    /// Why one of its rows cannot be read.
    pub unreadable: Option<String>,
}

/// An account whose balance is not what its operations add up to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unbalanced {
    /// Whose.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// What it has too many, or lacks, decimal text.
    pub difference: String,
    /// Which sums differ: `{}` stands for the difference in words.
    pub what: &'static str,
}

impl Unbalanced {
    /// What is wrong, with the difference: `Funding is 5 more than its operations`.
    pub fn sentence(&self) -> String {
        sentence(self.what, &self.difference)
    }
}

/// What one opening found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Everything new, named, or swept over.
    pub pages: Vec<Page>,
    /// Balances that do not add up.
    pub unbalanced: Vec<Unbalanced>,
    /// Rows that nobody but the service writes, and that it never would.
    pub strange: Vec<String>,
    /// Where the log had been compared up to by this PostgreSQL, which is not the one that was kept last.
    pub back_at: Option<Sequence>,
    /// Whether the sweep has come to the end of both tables, and begins anew with the next opening.
    pub swept: bool,
}

/// How an opening ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Keep how far the tables have come, and the log up to this record.
    Keep(Sequence),
    /// Keep nothing, so that the next opening finds the same again.
    Again,
    /// Keep nothing, and sweep on with the next opening.
    GoOn,
}

/// What has passed below the watermark on one account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Whose.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// What terminal states claim of UBSCore: withdrawals, deposits, refunds, smallest units.
    pub claimed: [u128; 3],
}

/// The audit's connection to PostgreSQL.
pub struct AuditReader {
    config: Address,
    limits: Limits,
    catalog: Arc<ArcSwap<Catalog>>,
    client: Option<Client>,
    /// Who keeps, 0 for nobody.
    incarnation: u64,
    /// What may stand in `audit_state`: what was kept last, and what may have been. Empty: anything.
    known: Vec<State>,
    /// Sweeps that have come to an end since it was begun anew.
    sweeps: u32,
    /// The last account, transfer and operation the sweep has passed.
    swept: (i64, i64, String),
    /// Where it will stand if this opening is kept.
    next: (i64, i64, String),
}

impl AuditReader {
    /// Books that connect when they are first opened. Statements may take `statement_timeout`.
    pub fn new(
        config: Address,
        limits: Limits,
        statement_timeout: Duration,
        catalog: Arc<ArcSwap<Catalog>>,
    ) -> AuditReader {
        let limits =
            Limits { statement_timeout, idle_in_transaction_timeout: statement_timeout, ..limits };
        let start = beginning();
        let (swept, next) = (start.clone(), start);
        let (client, incarnation, known, sweeps) = (None, 0, Vec::new(), 0);
        AuditReader { config, limits, catalog, client, incarnation, known, sweeps, swept, next }
    }

    /// Books of the same database, with a connection of their own.
    pub fn another(&self) -> AuditReader {
        let statement_timeout = self.limits.statement_timeout;
        AuditReader::new(
            self.config.clone(),
            self.limits,
            statement_timeout,
            Arc::clone(&self.catalog),
        )
    }

    /// Takes the tables over at a start, so that no process before us keeps anything any more. They may have come from
    /// another cluster, whose transactions have other numbers.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn take_over(&mut self, incarnation: u64) -> Result<(), Error> {
        assert!(self.incarnation <= incarnation, "no process goes back to an earlier one");
        // Numbering every operation anew takes its time.
        let limits = Limits { statement_timeout: Duration::ZERO, ..self.limits };
        let client = connect(&self.config, &limits).await?;
        rebase_if_foreign(&client).await?;
        let take = "UPDATE audit_state SET incarnation = $1 WHERE incarnation <= $1 \
                    RETURNING snapshot, log_sequence";
        let row = client.query_opt(take, &[&bigint(incarnation)]).await?;
        let row = row.ok_or(Error::Superseded)?;
        (self.incarnation, self.known) = (incarnation, vec![state_from_row(&row)?]);
        Ok(())
    }

    /// The assets as they are known now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// A connection to ask what PostgreSQL knows of a log that was cut.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn witness(&self) -> Result<Witness, Error> {
        Witness::connect(&self.config, &self.limits).await
    }

    /// Up to where the log has been compared.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn log_sequence(&mut self) -> Result<Sequence, Error> {
        let client = self.client().await?;
        let row = client.query_one("SELECT log_sequence FROM audit_state", &[]).await?;
        self.client = Some(client);
        columns::count(&row, 0, "audit_state")
    }

    /// The log that the database belongs to, `None` where it has never used one, and the last incarnation it has given.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn owner(&mut self) -> Result<(Option<Identity>, u64), Error> {
        let client = self.client().await?;
        let owner = "SELECT log_identity, incarnation FROM engine_state";
        let row = client.query_one(owner, &[]).await?;
        self.client = Some(client);
        let identity = row.try_get::<_, Option<&str>>(0)?.and_then(identity_from_text);
        Ok((identity, columns::count(&row, 1, "engine_state")?))
    }

    /// Begins the sweep anew.
    pub fn rewind(&mut self) {
        (self.swept, self.sweeps) = (beginning(), 0);
    }

    async fn client(&mut self) -> Result<Client, Error> {
        match self.client.take() {
            Some(client) if !client.is_closed() => Ok(client),
            Some(_) | None => connect(&self.config, &self.limits).await,
        }
    }

    /// Begins a snapshot and reads what is new, `named`, and the next part of the sweep.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. Nothing is kept.
    pub async fn open(&mut self, named: &BTreeSet<ReqId>) -> Result<Findings, Error> {
        let client = self.client().await?;
        let findings = self.read(&client, named).await?;
        self.client = Some(client);
        Ok(findings)
    }

    async fn read(&mut self, client: &Client, named: &BTreeSet<ReqId>) -> Result<Findings, Error> {
        client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
        let row = client.query_one("SELECT snapshot, log_sequence FROM audit_state", &[]).await?;
        let state = state_from_row(&row)?;
        let snapshot = state.snapshot.clone();
        let mut findings = Findings::default();
        if !self.known.is_empty() && !self.known.contains(&state) {
            findings.back_at = Some(state.log_sequence);
            self.known = vec![state];
        }

        let mut names: BTreeSet<String> = named.iter().map(ToString::to_string).collect();
        for row in client.query("SELECT audit_transfers_since($1)", &[&snapshot]).await? {
            names.insert(row.try_get(0)?);
        }
        let (mut last_user, mut last_number, mut last_operation) = self.swept.clone();

        // Accounts: those with something new, and the next ones in their order. A page that is full of one table ends at
        // its last user, so that the other's rows up to there are looked at as well.
        let until = "SELECT max(user_id), count(*) FROM \
             (SELECT user_id FROM balances_tb WHERE user_id > $1 ORDER BY user_id LIMIT $2) AS page \
             UNION ALL SELECT max(user_id), count(*) FROM \
             (SELECT user_id FROM audit_totals WHERE user_id > $1 ORDER BY user_id LIMIT $2) AS page";
        let (mut until_user, mut user_rows) = (i64::MAX, 0);
        for page in client.query(until, &[&last_user, &SWEEP_ROWS]).await? {
            let (last, rows): (Option<i64>, i64) = (page.try_get(0)?, page.try_get(1)?);
            if rows == SWEEP_ROWS {
                until_user = until_user.min(last.unwrap_or(i64::MAX));
            }
            user_rows = user_rows.max(rows);
        }
        let unbalanced = "SELECT user_id, asset_id, difference::text \
                          FROM audit_unbalanced($1, $2, $3) LIMIT $4";
        let rows = client
            .query(unbalanced, &[&snapshot, &last_user, &until_user, &UNBALANCED_MAX])
            .await?;
        let what = "Funding is {} than its operations";
        findings.add_unbalanced(&rows, what)?;
        last_user = until_user;

        // Transfers in the order of their accepts, and operations in that of their names: each may lack the other.
        let page = "SELECT req_id, order_number FROM transfers_tb \
                    WHERE order_number > $1 ORDER BY order_number LIMIT $2";
        let rows = client.query(page, &[&last_number, &SWEEP_ROWS]).await?;
        let number_rows = i64::try_from(rows.len()).expect("a page");
        for row in &rows {
            names.insert(row.try_get(0)?);
            last_number = row.try_get(1)?;
        }
        let page = "SELECT DISTINCT req_id FROM transfer_operations \
                    WHERE req_id > $1 ORDER BY req_id LIMIT $2";
        let rows = client.query(page, &[&last_operation, &SWEEP_ROWS]).await?;
        let operation_rows = i64::try_from(rows.len()).expect("a page");
        for row in &rows {
            last_operation = row.try_get(0)?;
            names.insert(last_operation.clone());
        }

        findings.swept = [user_rows, number_rows, operation_rows].iter().all(|n| *n < SWEEP_ROWS);
        self.next = match findings.swept {
            true => beginning(),
            false => (last_user, last_number, last_operation),
        };
        if findings.swept {
            let last = "SELECT reltuples::bigint FROM pg_class \
                        WHERE oid = 'external_operations'::regclass";
            let last: i64 = client.query_one(last, &[]).await?.try_get(0)?;
            // It reads all of them: where they are many, not every time.
            if last < EXTERNALS_FEW || self.sweeps.is_multiple_of(SWEEPS_PER_EXTERNALS) {
                let changes = "SELECT user_id, asset_id, difference::text \
                               FROM audit_external_changes($1) LIMIT $2";
                let rows = client.query(changes, &[&snapshot, &UNBALANCED_MAX]).await?;
                let what = "its external operations add up to {} than before";
                findings.add_unbalanced(&rows, what)?;
            }
            self.sweeps = self.sweeps.wrapping_add(1);
        }
        let names: Vec<String> = names.into_iter().collect();
        for names in names.chunks(TRANSFERS_PER_READ) {
            self.read_pages(client, names, &mut findings).await?;
        }
        Ok(findings)
    }

    async fn read_pages(
        &self,
        client: &Client,
        names: &[String],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let Findings { pages, strange, .. } = findings;
        let first = pages.len();
        let mut known = Vec::with_capacity(names.len());
        for name in names {
            let Some(req_id) = ReqId::parse(name) else {
                strange.push(format!("a row is named {name}, which is no transfer"));
                continue;
            };
            let (transfer, operations, unreadable) = (None, Vec::new(), None);
            pages.push(Page { req_id, transfer, operations, unreadable });
            known.push(name);
        }
        let pages = &mut pages[first..];
        // Sorted, as the names came out of a set.
        let at = |name: &str| known.binary_search_by(|known| known.as_str().cmp(name)).ok();
        let catalog = self.catalog.load();
        let transfers =
            format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE req_id = ANY($1)");
        for row in client.query(&transfers, &[&names]).await? {
            let Some(index) = at(row.try_get(2)?) else { continue };
            match transfer_from_row(&row, &catalog) {
                Ok(transfer) => pages[index].transfer = Some(transfer),
                Err(error) => pages[index].unreadable = Some(error.to_string()),
            }
        }
        let operations = "SELECT req_id, op, code, user_id, asset_id, amount \
                          FROM transfer_operations WHERE req_id = ANY($1)";
        for row in client.query(operations, &[&names]).await? {
            let Some(index) = at(row.try_get(0)?) else { continue };
            match operation_from_row(&row, &catalog) {
                Ok(operation) => pages[index].operations.push(operation),
                Err(error) => pages[index].unreadable = Some(error.to_string()),
            }
        }
        Ok(())
    }

    /// The watermark, and what has passed below it.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn passed(&mut self) -> Result<(u64, Vec<Passed>), Error> {
        let client = self.client().await?;
        // One statement is one snapshot: the two rise together.
        let passed = "SELECT e.watermark, t.user_id, t.asset_id, spot_withdrawn::text, \
                        spot_deposited::text, spot_refunded::text \
                      FROM engine_state e LEFT JOIN watermark_totals t ON TRUE";
        let rows = client.query(passed, &[]).await?;
        self.client = Some(client);
        let catalog = self.catalog.load();
        let (mut watermark, mut all) = (0, Vec::new());
        for row in rows {
            let bad = |what: &str| Error::Row { table: "watermark_totals", what: what.to_owned() };
            watermark = columns::count(&row, 0, "engine_state")?;
            let Some(user) = row.try_get::<_, Option<i64>>(1)? else { continue };
            let user = u64::try_from(user).ok().and_then(UserId::new);
            let asset = columns::asset(&row, 2, &catalog)?.ok_or_else(|| bad("asset_id"))?;
            let units = |column: usize| -> Result<u128, Error> {
                let text = row.try_get(column)?;
                units_from_text(text, asset.precision).ok_or_else(|| bad("a sum"))
            };
            let claimed = [units(3)?, units(4)?, units(5)?];
            let user = user.ok_or_else(|| bad("user_id"))?;
            all.push(Passed { user, asset: asset.id, claimed });
        }
        Ok((watermark, all))
    }

    /// Drops the connection, and with it whatever it was in the middle of.
    pub fn abandon(&mut self) {
        self.client = None;
    }

    /// Ends the snapshot.
    ///
    /// # Errors
    /// [`Error`]: it may not have been kept; the next opening begins where the last one that was kept ended.
    pub async fn close(&mut self, ending: Ending) -> Result<(), Error> {
        let Some(client) = self.client.take() else { return Ok(()) };
        let Ending::Keep(log_sequence) = ending else {
            client.batch_execute("ROLLBACK").await?;
            if ending == Ending::GoOn {
                self.swept = self.next.clone();
            }
            self.client = Some(client);
            return Ok(());
        };
        assert!(self.incarnation > 0, "only the process that has taken over keeps");
        client.execute("SELECT audit_add(snapshot) FROM audit_state", &[]).await?;
        // Of two audits that add the same, this update lets one commit, and none of a process before us.
        let keep = "UPDATE audit_state SET snapshot = pg_current_snapshot()::text, log_sequence = $1 \
                    WHERE incarnation = $2 RETURNING snapshot, log_sequence";
        let values: [&(dyn ToSql + Sync); 2] = [&bigint(log_sequence), &bigint(self.incarnation)];
        let row = client.query_opt(keep, &values).await?.ok_or(Error::Superseded)?;
        let kept = state_from_row(&row)?;
        // The answer to the commit may be lost.
        self.known.push(kept.clone());
        client.batch_execute("COMMIT").await?;
        self.known = vec![kept];
        self.swept = self.next.clone();
        self.client = Some(client);
        Ok(())
    }

    /// What can only be counted again over all rows, and is not in [`AuditReader::open`]: balances and the totals below the
    /// watermark against every operation and every transfer there is.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn recount(&mut self) -> Result<Findings, Error> {
        let client = self.client().await?;
        let mut findings = Findings::default();
        for (statement, what) in [
            ("audit_recount()", "Funding is {} than all its operations"),
            ("watermark_recount()", "the totals below the watermark are {} than their rows"),
        ] {
            let all =
                format!("SELECT user_id, asset_id, difference::text FROM {statement} LIMIT $1");
            let rows = client.query(&all, &[&UNBALANCED_MAX]).await?;
            findings.add_unbalanced(&rows, what)?;
        }
        self.client = Some(client);
        Ok(findings)
    }
}

impl Findings {
    /// Rows of user, asset and difference.
    fn add_unbalanced(&mut self, rows: &[Row], what: &'static str) -> Result<(), Error> {
        for row in rows {
            let (user, asset): (i64, i32) = (row.try_get(0)?, row.try_get(1)?);
            let difference: String = row.try_get(2)?;
            match (u64::try_from(user).ok().and_then(UserId::new), u32::try_from(asset)) {
                (Some(user), Ok(asset)) => {
                    let asset = AssetId(asset);
                    self.unbalanced.push(Unbalanced { user, asset, difference, what });
                }
                _ => self.strange.push(format!(
                    "user {user}, asset {asset}: {}, and there is no such account",
                    sentence(what, &difference)
                )),
            }
        }
        Ok(())
    }
}

/// `what` with a difference, decimal text, in the place of `{}`.
fn sentence(what: &str, difference: &str) -> String {
    let difference = plain_text(difference);
    let words = match difference.strip_prefix('-') {
        Some(lacking) => format!("{lacking} less"),
        None => format!("{difference} more"),
    };
    what.replace("{}", &words)
}

/// Before every account, transfer and operation, whatever their numbers.
fn beginning() -> (i64, i64, String) {
    (i64::MIN, i64::MIN, String::new())
}

/// What is kept between two rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    snapshot: String,
    log_sequence: Sequence,
}

fn state_from_row(row: &Row) -> Result<State, Error> {
    let log_sequence = columns::count(row, 1, "audit_state")?;
    Ok(State { snapshot: row.try_get(0)?, log_sequence })
}

fn operation_from_row(row: &Row, catalog: &Catalog) -> Result<Operation, Error> {
    let name: &str = row.try_get(0)?;
    let bad =
        |what: &str| Error::Row { table: "transfer_operations", what: format!("{name}: {what}") };
    let asset = columns::asset(row, 4, catalog)?.ok_or_else(|| bad("asset_id"))?;
    let amount = Amount::from_decimal(row.try_get(5)?, asset.precision);
    Ok(Operation {
        op: columns::op(row, 1)?.ok_or_else(|| bad("op"))?,
        decision: decision(row, 2)?,
        user: columns::user(row, 3)?.ok_or_else(|| bad("user_id"))?,
        asset: asset.id,
        amount: amount.ok_or_else(|| bad("amount"))?,
    })
}
