//! The audit's reads of PostgreSQL: new rows of the journal, and everything that they are compared
//! with.
//!
//! ```text
//!   journal rows behind audit_folded  -->  sums by account  -->  balances less audit_totals
//!        (a part in each round)        `-> transfers, with their operations
//! ```
//!
//! Every statement is short and has a snapshot of its own, because an old snapshot makes hot rows
//! expensive. A balance is read before the last rows of the journal, and its version names the
//! entries that it includes. A difference that is left is read again in one snapshot of these
//! accounts alone, and only this reading counts.
//!
//! [`AuditReader::open`] reads; [`AuditReader::close`] folds the rows that were read into the totals,
//! or forgets them.

mod externals;
mod recharges;
mod sums;
mod transactions;

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use wal::{Identity, Sequence};

pub use self::externals::{Decided, EXTERNAL_COLUMNS, external_from_row};
pub use self::recharges::{RechargesFrom, RechargesPage};
use self::sums::{Candidate, Columns, Flights, Part, Sum, Sums};
pub use self::transactions::SpotPart;
use self::transactions::{Recent, compare_transactions, next_transactions, spot_parts};
use super::columns::{self, Id, Numeric, bigint};
use super::connection::note;
use super::cut::Witness;
use super::database::{TRANSFER_COLUMNS, transfer_from_row};
use super::incarnation::identity_from_text;
use super::journal::{self, DamagedRow};
use super::store::Transfer;
use super::{Address, Error, Limits, connect, posted};
use domain::account::UserId;
use domain::amount::signed_text;
use domain::asset::{AssetId, Catalog};
use domain::transfer::ReqId;

/// Transfers read by one statement.
const TRANSFERS_PER_READ: usize = 5_000;
/// Accounts and transfers looked at in passing, beside what is new, in one opening.
const SWEEP_ROWS: i64 = 20_000;
/// So few external operations can all be added up again and again.
const EXTERNALS_FEW: i64 = 1_000_000;
/// Where there are more, that is done once in so many sweeps.
const SWEEPS_PER_EXTERNALS: u32 = 100;
/// The most unbalanced accounts reported by one opening.
const UNBALANCED_MAX: usize = 100;
/// A balance that differs from the rows of operations.
const MISCOUNTED: &str = "Funding is {} than all its operations";
/// Begins a transaction that reads in one snapshot.
const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";

/// What PostgreSQL has of one transfer.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its name.
    pub req_id: ReqId,
    /// The transfer, `None`: PostgreSQL has none.
    pub transfer: Option<Transfer>,
    /// Why its row cannot be read.
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

/// An account with a frozen part that is not the sum of its freezes and open holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misheld {
    /// The owner of the account.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// The amount that is frozen too much, or lacks, decimal text.
    pub difference: String,
    /// The key of its oldest open hold, `None`: there is none.
    pub hold: Option<String>,
}

impl Misheld {
    /// The finding as a sentence, with the difference and the hold.
    pub fn sentence(&self) -> String {
        let frozen =
            sentence("{} is frozen on Funding than its freezes and open holds", &self.difference);
        match &self.hold {
            Some(key) => format!("{frozen}; the oldest hold is {key}"),
            None => format!("{frozen}; there is no hold"),
        }
    }
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
    /// Frozen parts that are not the sum of freezes and open holds.
    pub misheld: Vec<Misheld>,
    /// The parts of Spot in transactions, to be compared with UBSCore.
    pub parts: Vec<SpotPart>,
    /// Rows that nobody but the service writes, and that it never would.
    pub strange: Vec<String>,
    /// Where the log had been compared up to by this PostgreSQL, which is not the one that was kept last.
    pub back_at: Option<Sequence>,
    /// Rows of the journal that no process writes: behind them nothing is compared.
    pub damaged: Vec<DamagedRow>,
    /// Whether the journal has more rows: balances are compared up to here only, and the sweep
    /// waits.
    pub behind: bool,
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
    /// The last account, transfer and transaction the sweep has passed.
    swept: (i64, i64, i64),
    /// Where it will stand if this opening is kept.
    next: (i64, i64, i64),
    /// The transactions that the next opening reads again, and those if this one is kept.
    recent: [Recent; 2],
    /// The rows of the journal that this opening has read.
    part: Part,
    /// The rows read so far, if nothing is kept.
    unkept: Unkept,
}

/// Rows of the journal that were read and are not folded.
#[derive(Debug, Default)]
struct Unkept {
    /// The flights that were folded.
    folded: Flights,
    /// The flights up to which they were read.
    read: Flights,
    sums: Sums,
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
        let (swept, next) = (start, start);
        let (client, incarnation, known, sweeps) = (None, 0, Vec::new(), 0);
        let (part, unkept) = (Part::default(), Unkept::default());
        let recent = [Recent::default(), Recent::default()];
        AuditReader {
            config,
            limits,
            catalog,
            client,
            incarnation,
            known,
            sweeps,
            swept,
            next,
            recent,
            part,
            unkept,
        }
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

    /// Takes the totals over at a start, so that no process before us folds anything any more.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn take_over(&mut self, incarnation: u64) -> Result<(), Error> {
        assert!(self.incarnation <= incarnation, "no process goes back to an earlier one");
        let client = self.client().await?;
        let take = "UPDATE audit_state SET incarnation = $1 WHERE incarnation <= $1";
        if client.execute(take, &[&bigint(incarnation)]).await? == 0 {
            return Err(Error::Superseded);
        }
        // Behind the update: a process before us may have folded until then.
        (self.incarnation, self.known) = (incarnation, vec![state(&client).await?]);
        self.client = Some(client);
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

    /// Whether the database has the mark of [`super::admin::Admin::mark_posted`].
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away, or this process has been superseded.
    pub async fn is_posted(&mut self) -> Result<bool, Error> {
        let client = self.client().await?;
        let read = posted::read(&client, bigint(self.incarnation)).await?;
        self.client = Some(client);
        Ok(read)
    }

    /// Sets that mark, also on a server that is under comparison.
    ///
    /// # Errors
    /// As [`AuditReader::is_posted`].
    pub async fn mark_posted(&mut self) -> Result<(), Error> {
        let client = self.client().await?;
        posted::set(&client, bigint(self.incarnation)).await?;
        self.client = Some(client);
        Ok(())
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

    /// Reads the next rows of the journal, `named`, and the next part of the sweep.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away. Nothing is kept.
    pub async fn open(&mut self, named: &BTreeSet<ReqId>) -> Result<Findings, Error> {
        let client = self.client().await?;
        let findings = self.read(&client, named).await?;
        note(self.config.pin(), &client).await?;
        self.client = Some(client);
        Ok(findings)
    }

    async fn read(&mut self, client: &Client, named: &BTreeSet<ReqId>) -> Result<Findings, Error> {
        let state = state(client).await?;
        let mut findings = Findings::default();
        if !self.known.is_empty() && !self.known.contains(&state) {
            findings.back_at = Some(state.log_sequence);
            self.known = vec![state.clone()];
        }
        if self.unkept.folded != state.folded {
            // A running service has folded them meanwhile.
            let (folded, read) = (state.folded.clone(), state.folded.clone());
            self.unkept = Unkept { folded, read, sums: Sums::default() };
        }
        self.part = sums::part(client, &self.unkept.read).await?;
        findings.damaged = mem::take(&mut self.part.damaged);
        findings.behind = self.part.behind;
        if !findings.damaged.is_empty() && self::state(client).await?.folded != state.folded {
            // It has deleted them as well, in the middle of our reading.
            self.part = Part::default();
            return Ok(Findings { behind: true, damaged: Vec::new(), ..findings });
        }

        self.recent[1] = self.recent[0].clone();
        let mut names = named.clone();
        self.name_transfers(client, &mut names, &mut findings).await?;
        let (last_user, mut last_number, mut last_transaction) = self.swept;
        let (mut until_user, mut user_rows) = (last_user, SWEEP_ROWS);
        if !findings.behind {
            (until_user, user_rows) = next_users(client, last_user).await?;
        }
        if findings.damaged.is_empty() {
            self.compare_balances(client, (last_user, until_user), &mut findings).await?;
        }
        if !findings.behind {
            let users = (last_user, until_user);
            miscounted(client, users, &mut findings, &self.catalog()).await?;
            misheld(client, users, &mut findings, &self.catalog()).await?;
            let transfers;
            (last_number, transfers) =
                next_names(client, last_number, &mut names, &mut findings).await?;
            let (until, transactions) = next_transactions(client, last_transaction).await?;
            compare_transactions(client, (last_transaction, until), &mut findings).await?;
            let chosen = spot_parts(client, &self.recent[0], (last_transaction, until)).await?;
            (findings.parts, self.recent[1]) = chosen;
            last_transaction = until;
            let rows = [user_rows, transfers, transactions];
            findings.swept = rows.iter().all(|rows| *rows < SWEEP_ROWS);
        }
        self.next = match findings.swept {
            true => beginning(),
            false => (until_user, last_number, last_transaction),
        };
        if findings.swept && findings.damaged.is_empty() {
            self.compare_externals(client, &mut findings).await?;
            self.sweeps = self.sweeps.wrapping_add(1);
        }
        let names: Vec<ReqId> = names.into_iter().collect();
        for names in names.chunks(TRANSFERS_PER_READ) {
            self.read_pages(client, names, &mut findings).await?;
        }
        Ok(findings)
    }

    /// Adds the transfers of the new rows of the journal.
    async fn name_transfers(
        &self,
        client: &Client,
        names: &mut BTreeSet<ReqId>,
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let numbers: Vec<i64> = self.part.transfers.iter().copied().map(bigint).collect();
        for numbers in numbers.chunks(TRANSFERS_PER_READ) {
            let named =
                "SELECT order_number, req_id FROM transfers_tb WHERE order_number = ANY($1)";
            let mut found = BTreeSet::new();
            for row in client.query(named, &[&numbers]).await? {
                found.insert(row.try_get::<_, i64>(0)?);
                findings.add_name(columns::req_id(&row, 1)?, names);
            }
            let lost = numbers.iter().filter(|number| !found.contains(number));
            findings.strange.extend(lost.map(|number| {
                format!(
                    "the journal has order number {number}, and transfers_tb has no such transfer"
                )
            }));
        }
        Ok(())
    }

    /// Compares the balances of the accounts with new entries, and of the users in between.
    async fn compare_balances(
        &self,
        client: &Client,
        users: (i64, i64),
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let catalog = self.catalog.load_full();
        let mut sums = self.unkept.sums.between(users, &self.part.sums);
        sums.merge(&self.part.sums);
        let mut candidates = unbalanced(client, users, &sums.columns(|sum| sum.all)).await?;
        let open = match findings.behind {
            true => {
                candidates.retain(|one| self.part.is_last(one));
                candidates.iter().map(|one| one.account).collect()
            }
            false if candidates.is_empty() => Vec::new(),
            false => self.part.unexplained(client, candidates).await?,
        };
        if open.is_empty() {
            return Ok(());
        }
        client.batch_execute(SNAPSHOT).await?;
        let folded = state(client).await?.folded;
        let sums = sums::sums_behind(client, &folded, Some(&open)).await?;
        let found = unbalanced(client, (0, 0), &sums.columns(|sum| sum.all)).await?;
        client.batch_execute("COMMIT").await?;
        for Candidate { account, difference, .. } in found.into_iter().take(UNBALANCED_MAX) {
            let what = "Funding is {} than its operations";
            findings.add_unbalanced(account, difference, what, &catalog);
        }
        Ok(())
    }

    /// Compares the external operations of all accounts, in one snapshot. It reads all of them: if
    /// they are many, not at the end of every sweep.
    async fn compare_externals(
        &self,
        client: &Client,
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let rows = "SELECT reltuples::bigint FROM pg_class \
                    WHERE oid = 'external_operations'::regclass";
        let rows: i64 = client.query_one(rows, &[]).await?.try_get(0)?;
        if rows >= EXTERNALS_FEW && !self.sweeps.is_multiple_of(SWEEPS_PER_EXTERNALS) {
            return Ok(());
        }
        client.batch_execute(SNAPSHOT).await?;
        let folded = state(client).await?.folded;
        let sums = sums::sums_behind(client, &folded, None).await?;
        let Columns { users, assets, sums } = sums.columns(|sum| sum.external);
        let changes = "SELECT user_id, asset_id, difference \
                       FROM audit_external_changes($1, $2, $3) LIMIT $4";
        let limit = i64::try_from(UNBALANCED_MAX).expect("small");
        let rows = client.query(changes, &[&users, &assets, &sums, &limit]).await?;
        client.batch_execute("COMMIT").await?;
        findings.add_rows(
            &rows,
            "its external operations add up to {} than before",
            &self.catalog(),
        )
    }

    async fn read_pages(
        &self,
        client: &Client,
        names: &[ReqId],
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let Findings { pages, .. } = findings;
        let first = pages.len();
        for &req_id in names {
            pages.push(Page { req_id, transfer: None, unreadable: None });
        }
        let pages = &mut pages[first..];
        // Sorted, as the names came out of a set.
        let at = |name: ReqId| names.binary_search(&name).ok();
        let catalog = self.catalog.load();
        let transfers =
            format!("SELECT {TRANSFER_COLUMNS} FROM transfers_tb WHERE req_id = ANY($1)");
        for row in client.query(&transfers, &[&Id::all(names)]).await? {
            let Some(index) = columns::req_id(&row, 1)?.and_then(at) else { continue };
            match transfer_from_row(&row, &catalog) {
                Ok(transfer) => pages[index].transfer = Some(transfer),
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
        let passed = "SELECT e.watermark, t.user_id, t.asset_id, spot_withdrawn, \
                        spot_deposited, spot_refunded \
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
            let units = |column| columns::units(&row, column).ok_or_else(|| bad("a sum"));
            let claimed = [units(3)?, units(4)?, units(5)?];
            let user = user.ok_or_else(|| bad("user_id"))?;
            all.push(Passed { user, asset: asset.id, claimed });
        }
        Ok((watermark, all))
    }

    /// Drops the connection, and the statement that may be under way on it.
    pub fn abandon(&mut self) {
        self.client = None;
    }

    /// Ends a round.
    ///
    /// # Errors
    /// [`Error`]: it may not have been kept. The next opening begins behind the last one that was.
    pub async fn close(&mut self, ending: Ending) -> Result<(), Error> {
        let part = mem::take(&mut self.part);
        match ending {
            Ending::Again => {}
            Ending::GoOn => {
                self.pass();
                self.unkept.sums.merge(&part.sums);
                self.unkept.read = part.to;
            }
            Ending::Keep(log_sequence) => {
                let client = self.client().await?;
                self.fold(&client, &part, log_sequence).await?;
                self.pass();
                self.client = Some(client);
            }
        }
        Ok(())
    }

    /// The next opening goes on behind this one.
    fn pass(&mut self) {
        self.swept = self.next;
        self.recent[0] = self.recent[1].clone();
    }

    /// Adds rows of the journal to the totals, in one statement and so in one transaction.
    async fn fold(
        &mut self,
        client: &Client,
        part: &Part,
        log_sequence: Sequence,
    ) -> Result<(), Error> {
        assert!(self.incarnation > 0, "only the process that has taken over keeps");
        let external = part.sums.columns(|sum| sum.external).sums;
        let Columns { users, assets, sums } = part.sums.columns(|sum: &Sum| sum.all);
        let (mut shards, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
        for (&shard, &flight) in &part.to {
            let before = part.from.get(&shard).copied().unwrap_or(0);
            if flight > before {
                shards.push(journal::number(shard));
                from.push(bigint(before));
                to.push(bigint(flight));
            }
        }
        // The answer to the commit may be lost.
        let kept = State { log_sequence, folded: part.to.clone() };
        self.known.push(kept.clone());
        let fold = "SELECT audit_fold($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let (incarnation, sequence) = (bigint(self.incarnation), bigint(log_sequence));
        let values: [&(dyn ToSql + Sync); 9] =
            [&incarnation, &sequence, &shards, &from, &to, &users, &assets, &sums, &external];
        if !client.query_one(fold, &values).await?.try_get::<_, bool>(0)? {
            return Err(Error::Superseded);
        }
        self.known = vec![kept];
        Ok(())
    }

    /// What can only be counted again over all rows, and is not in [`AuditReader::open`]: balances, and the totals below the
    /// watermark, against every operation and every transfer there is.
    ///
    /// # Errors
    /// [`Error`]: PostgreSQL is away.
    pub async fn recount(&mut self) -> Result<[Findings; 2], Error> {
        let client = self.client().await?;
        let mut both = [Findings::default(), Findings::default()];
        for (findings, (statement, what)) in both.iter_mut().zip([
            ("audit_recount()", MISCOUNTED),
            ("watermark_recount()", "the totals below the watermark are {} than their rows"),
        ]) {
            let all = format!("SELECT user_id, asset_id, difference FROM {statement} LIMIT $1");
            let limit = i64::try_from(UNBALANCED_MAX).expect("small");
            let rows = client.query(&all, &[&limit]).await?;
            findings.add_rows(&rows, what, &self.catalog())?;
        }
        self.client = Some(client);
        Ok(both)
    }
}

impl Findings {
    /// Adds the name of a row.
    fn add_name(&mut self, name: Option<ReqId>, names: &mut BTreeSet<ReqId>) {
        match name {
            Some(name) => drop(names.insert(name)),
            None => self.strange.push("a row of transfers_tb has the req_id 0".to_owned()),
        }
    }

    /// Rows of user, asset and difference.
    fn add_rows(
        &mut self,
        rows: &[Row],
        what: &'static str,
        catalog: &Catalog,
    ) -> Result<(), Error> {
        for row in rows {
            let Numeric(difference) = row.try_get(2)?;
            self.add_unbalanced((row.try_get(0)?, row.try_get(1)?), difference, what, catalog);
        }
        Ok(())
    }

    fn add_unbalanced(
        &mut self,
        (user, asset): (i64, i32),
        difference: i128,
        what: &'static str,
        catalog: &Catalog,
    ) {
        let known = u32::try_from(asset).map(|asset| catalog.precision(AssetId(asset)));
        let difference = signed_text(difference, known.unwrap_or(0));
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
}

/// `what` with a difference, decimal text, in the place of `{}`.
fn sentence(what: &str, difference: &str) -> String {
    let words = match difference.strip_prefix('-') {
        Some(lacking) => format!("{lacking} less"),
        None => format!("{difference} more"),
    };
    what.replace("{}", &words)
}

/// Before every account, transfer and transaction, whatever their numbers.
fn beginning() -> (i64, i64, i64) {
    (i64::MIN, i64::MIN, i64::MIN)
}

/// The progress that is kept between two rounds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    log_sequence: Sequence,
    /// The last folded flight of each shard.
    folded: Flights,
}

async fn state(client: &Client) -> Result<State, Error> {
    let state = "SELECT f.shard, f.flight, a.log_sequence \
                 FROM audit_state a LEFT JOIN audit_folded f ON TRUE";
    let rows = client.query(state, &[]).await?;
    let empty = || Error::Row { table: "audit_state", what: "no row".to_owned() };
    let log_sequence = columns::count(rows.first().ok_or_else(empty)?, 2, "audit_state")?;
    let mut folded = Flights::new();
    for row in &rows {
        if row.try_get::<_, Option<i32>>(0)?.is_some() {
            folded.insert(journal::shard(row)?, columns::count(row, 1, "audit_folded")?);
        }
    }
    Ok(State { log_sequence, folded })
}

/// The users of the next part of the sweep: the last one, and the rows of the longer table. A page
/// that is full of one table ends at its last user, so that the other's rows up to there are read.
async fn next_users(client: &Client, after: i64) -> Result<(i64, i64), Error> {
    let until = "SELECT max(user_id), count(*) FROM \
         (SELECT user_id FROM balances_tb WHERE user_id > $1 ORDER BY user_id LIMIT $2) AS page \
         UNION ALL SELECT max(user_id), count(*) FROM \
         (SELECT user_id FROM audit_totals WHERE user_id > $1 ORDER BY user_id LIMIT $2) AS page";
    let (mut until_user, mut user_rows) = (i64::MAX, 0);
    for page in client.query(until, &[&after, &SWEEP_ROWS]).await? {
        let (last, rows): (Option<i64>, i64) = (page.try_get(0)?, page.try_get(1)?);
        if rows == SWEEP_ROWS {
            until_user = until_user.min(last.unwrap_or(i64::MAX));
        }
        user_rows = user_rows.max(rows);
    }
    Ok((until_user, user_rows))
}

/// The next part of the sweep: transfers in the order of their accepts. Returns the last one, and
/// how many there were.
async fn next_names(
    client: &Client,
    mut last_number: i64,
    names: &mut BTreeSet<ReqId>,
    findings: &mut Findings,
) -> Result<(i64, i64), Error> {
    let page = "SELECT req_id, order_number FROM transfers_tb \
                WHERE order_number > $1 ORDER BY order_number LIMIT $2";
    let rows = client.query(page, &[&last_number, &SWEEP_ROWS]).await?;
    for row in &rows {
        findings.add_name(columns::req_id(row, 0)?, names);
        last_number = row.try_get(1)?;
    }
    Ok((last_number, i64::try_from(rows.len()).expect("a page")))
}

/// Compares the balances of these users with their rows, in one snapshot.
async fn miscounted(
    client: &Client,
    (after, until): (i64, i64),
    findings: &mut Findings,
    catalog: &Catalog,
) -> Result<(), Error> {
    let miscounted = "SELECT user_id, asset_id, difference FROM audit_miscounted($1, $2) LIMIT $3";
    let limit = i64::try_from(UNBALANCED_MAX).expect("small");
    let rows = client.query(miscounted, &[&after, &until, &limit]).await?;
    let mut found = Findings::default();
    found.add_rows(&rows, MISCOUNTED, catalog)?;
    // The sums of the journal have named these.
    let named = |one: &Unbalanced| {
        findings.unbalanced.iter().any(|known| (known.user, known.asset) == (one.user, one.asset))
    };
    found.unbalanced.retain(|one| !named(one));
    findings.unbalanced.append(&mut found.unbalanced);
    findings.strange.append(&mut found.strange);
    Ok(())
}

/// Compares the frozen parts of the balances of these users with their freezes and open holds, and
/// the freezes with the holds of their purposes, in one snapshot.
async fn misheld(
    client: &Client,
    (after, until): (i64, i64),
    findings: &mut Findings,
    catalog: &Catalog,
) -> Result<(), Error> {
    let misheld =
        "SELECT user_id, asset_id, difference, hold_key FROM audit_misheld($1, $2) LIMIT $3";
    let limit = i64::try_from(UNBALANCED_MAX).expect("small");
    for row in client.query(misheld, &[&after, &until, &limit]).await? {
        let asset = u32::try_from(row.try_get::<_, i32>(1)?).map(AssetId).ok();
        let Numeric(difference) = row.try_get(2)?;
        let precision = asset.map_or(0, |asset| catalog.precision(asset));
        let (difference, hold) = (signed_text(difference, precision), row.try_get(3)?);
        match columns::user(&row, 0)?.zip(asset) {
            Some((user, asset)) => {
                findings.misheld.push(Misheld { user, asset, difference, hold });
            }
            None => findings.strange.push(format!("frozen {difference} of no user")),
        }
    }
    let misfrozen = "SELECT user_id, asset_id, purpose, frozen, counted \
                     FROM audit_misfrozen($1, $2) LIMIT $3";
    for row in client.query(misfrozen, &[&after, &until, &limit]).await? {
        let (user, asset, purpose): (i64, i32, i32) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (Numeric(frozen), Numeric(counted)) = (row.try_get(3)?, row.try_get(4)?);
        findings.strange.push(format!(
            "freeze of user {user}, asset {asset}, purpose {purpose}: it has {frozen} smallest \
             units, and its holds add up to {counted}"
        ));
    }
    Ok(())
}

/// The accounts of these users, and those in `sums`, whose balances are not equal to their totals
/// and sums together.
async fn unbalanced(
    client: &Client,
    (after, until): (i64, i64),
    Columns { users, assets, sums }: &Columns,
) -> Result<Vec<Candidate>, Error> {
    let unbalanced = "SELECT user_id, asset_id, difference, version \
                      FROM audit_unbalanced($1, $2, $3, $4, $5)";
    let rows = client.query(unbalanced, &[&after, &until, users, assets, sums]).await?;
    let candidate = |row: &Row| {
        let account = (row.try_get(0)?, row.try_get(1)?);
        let Numeric(difference) = row.try_get(2)?;
        Ok(Candidate { account, difference, version: row.try_get(3)? })
    };
    rows.iter().map(candidate).collect()
}
