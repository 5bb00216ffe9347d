//! One test's place: its database, its data directory, and the invariants of both.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use domain::transfer::Op;
use rustix::process::Pid;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use ubscore::clock::SystemClock;
use ubscore::postgres::incarnation::{self, Incarnation, Start};
use ubscore::postgres::{Address, Limits, flights};

use super::{
    Cluster, PATIENCE, POLL, Server, block_on, copy_files, eventually, refused, run, unique, units,
};

/// The timeouts of a test's servers, milliseconds: a disk or a machine that stands still for
/// seconds is not a failure of the tested code. A test about a slow store or client sets its own.
const PATIENT: [(&str, u32); 8] = [
    ("UBSCORE__POSTGRES__CONNECT_TIMEOUT_MS", 30_000),
    ("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 20_000),
    ("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 10_000),
    ("UBSCORE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT_MS", 20_000),
    ("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 20_000),
    ("UBSCORE__HTTP__TRANSFER_WAIT_MS", 15_000),
    ("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 60_000),
    ("UBSCORE__HTTP__BODY_READ_TIMEOUT_MS", 60_000),
];

/// Gives a command the long timeouts of a [`Site`]'s servers, if it does not run on one.
pub(crate) fn patient(command: &mut Command) -> &mut Command {
    command.envs(PATIENT.map(|(name, wait_ms)| (name, wait_ms.to_string())))
}

/// The event of a decision of Funding, for [`Site::hold`].
pub(crate) const DECISION: &str = "INSERT OR UPDATE ON transfers_tb";

/// The condition of a decision of Funding about this operation, for [`Site::hold`].
pub(crate) fn decides(op: Op) -> &'static str {
    match op {
        Op::Withdraw => {
            "NEW.direction = 1 AND OLD.funding_at IS NULL AND NEW.funding_at IS NOT NULL"
        }
        Op::Deposit => {
            "NEW.direction = 2 AND OLD.funding_at IS NULL AND NEW.funding_at IS NOT NULL"
        }
        Op::Refund => "OLD.refund_at IS NULL AND NEW.refund_at IS NOT NULL",
        other => panic!("{other} is of no transfer"),
    }
}

/// The transfers that are not terminal.
const UNDER_WAY: &str =
    "SELECT req_id, state, attempts FROM transfers WHERE state NOT IN (40, -10, -30)";

/// One test's database and data directory, and the configuration of its servers.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) database: String,
    pub(crate) data_dir: PathBuf,
    environment: Vec<(String, String)>,
    /// The place of the database, if not in the one that all tests share.
    cluster: Option<Arc<Cluster>>,
    kept: Kept,
}

/// A session that [`Site::sql`] has left unchanged.
type Kept = Arc<Mutex<Option<Session>>>;

impl Site {
    /// A fresh database and a fresh data directory. Segments are small and tries close together, so
    /// that a test meets many of both. Memory is taken for few accounts, because many servers run
    /// at once.
    pub(crate) fn new() -> Site {
        Site::on(None)
    }

    /// The same on a PostgreSQL of its own, which the test may kill and stop.
    pub(crate) fn on_its_own_cluster() -> (Site, Arc<Cluster>) {
        let cluster = Arc::new(Cluster::start());
        (Site::on(Some(Arc::clone(&cluster))), cluster)
    }

    fn on(cluster: Option<Arc<Cluster>>) -> Site {
        let database = format!("test_{}", unique());
        let data_dir = run().directory.join(format!("data-{}", unique()));
        let site =
            Site { database, data_dir, environment: Vec::new(), cluster, kept: Kept::default() };
        site.create_database("");
        let patient = PATIENT.iter().fold(site, |site, (name, wait_ms)| site.with(name, wait_ms));
        patient
            .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 20)
            .with("UBSCORE__ENGINE__ACCOUNTS_MAX", 10_000)
            .with("UBSCORE__ENGINE__OUTCOMES_MAX", 100_000)
            .with("UBSCORE__COORDINATOR__BACKOFF_BASE_MS", 20)
            .with("UBSCORE__COORDINATOR__BACKOFF_CAP_MS", 500)
    }

    /// The same with transitions sharing commits or not.
    pub(crate) fn fused(fuse: bool) -> Site {
        Site::new().with("UBSCORE__COORDINATOR__FUSE", fuse)
    }

    /// One more variable in the environment of its servers; the last one of a name counts.
    pub(crate) fn with(mut self, name: &str, value: impl ToString) -> Site {
        self.environment.retain(|(other, _)| other != name);
        self.environment.push((name.to_owned(), value.to_string()));
        self
    }

    /// A fresh database and a fresh data directory, on the PostgreSQL that all tests share, with
    /// this site's configuration.
    pub(crate) fn elsewhere(&self) -> Site {
        Site { cluster: None, ..self.clone() }.with_fresh_database().with_fresh_data_dir()
    }

    /// A directory of its own that does not exist yet.
    pub(crate) fn fresh_path(&self, name: &str) -> PathBuf {
        run().directory.join(format!("{name}-{}", unique()))
    }

    /// The same data directory with a fresh database.
    pub(crate) fn with_fresh_database(&self) -> Site {
        self.with_database("")
    }

    /// The same data directory with a copy of the database; no connection to it may be open.
    pub(crate) fn with_copied_database(&self) -> Site {
        drop(self.kept.lock().expect("not poisoned").take());
        self.with_database(&format!("TEMPLATE {}", self.database))
    }

    fn with_database(&self, options: &str) -> Site {
        let database = format!("test_{}", unique());
        let site = Site { database, kept: Kept::default(), ..self.clone() };
        site.create_database(options);
        site
    }

    /// The same database with a fresh data directory.
    pub(crate) fn with_fresh_data_dir(&self) -> Site {
        self.with_data_dir(&run().directory.join(format!("data-{}", unique())))
    }

    /// The same database with another data directory.
    pub(crate) fn with_data_dir(&self, data_dir: &Path) -> Site {
        Site { data_dir: data_dir.to_owned(), ..self.clone() }
    }

    fn create_database(&self, options: &str) {
        let statement = format!("CREATE DATABASE {} {options}", self.database);
        block_on(async { connect(&self.cluster_url()).await.batch_execute(&statement).await })
            .expect("a database");
    }

    /// A session; `None` if PostgreSQL takes no more.
    pub(crate) fn try_session(&self) -> Option<Session> {
        let config: tokio_postgres::Config = self.url().parse().expect("our own URL");
        let (client, connection) = block_on(config.connect(NoTls)).ok()?;
        run().runtime.spawn(async move { drop(connection.await) });
        Some(Session { client })
    }

    /// The PostgreSQL, by the database that every cluster has.
    fn cluster_url(&self) -> String {
        match &self.cluster {
            Some(cluster) => cluster.url.clone(),
            None => run().postgres.url(),
        }
    }

    /// The database, as `--postgres` takes it.
    pub(crate) fn url(&self) -> String {
        self.cluster_url().replacen("/ubscore?", &format!("/{}?", self.database), 1)
    }

    /// The database, as the program takes it.
    pub(crate) fn target(&self) -> Address {
        Address::parse(&self.url()).expect("our own URL")
    }

    /// The directory of the log.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.data_dir.join("wal")
    }

    /// The directory of snapshots.
    pub(crate) fn snapshot_dir(&self) -> PathBuf {
        self.data_dir.join("snapshots")
    }

    /// The file of answered flights.
    pub(crate) fn flights(&self) -> PathBuf {
        self.data_dir.join(flights::FILE)
    }

    /// The binary with this site's arguments: `serve --dev` on free ports.
    pub(crate) fn command(&self) -> Command {
        self.serve("127.0.0.1:0", "127.0.0.1:0", &self.url())
    }

    /// The same on given addresses.
    pub(crate) fn command_on(&self, http: &str, ops: &str) -> Command {
        self.serve(http, ops, &self.url())
    }

    /// The same with another PostgreSQL, or `embedded`.
    pub(crate) fn command_with(&self, postgres: &str) -> Command {
        self.serve("127.0.0.1:0", "127.0.0.1:0", postgres)
    }

    fn serve(&self, http: &str, ops: &str, postgres: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["serve", "--dev", "--listen", http, "--ops-listen", ops]);
        command.arg("--data-dir").arg(&self.data_dir).args(["--postgres", postgres]);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts a server and waits until it is ready.
    pub(crate) fn start(&self) -> Server {
        Server::start(self.command())
    }

    /// Starts a server that must end by itself; returns its exit code and stderr.
    pub(crate) fn start_refused(&self) -> (i32, String) {
        refused(self.command())
    }

    /// Runs SQL in a session without a lasting state; rows as text, NULL as "".
    pub(crate) fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        // A backend of its own for each query would take most of a run's time.
        let kept = self.kept.lock().expect("not poisoned").take();
        let session = kept.filter(|kept| kept.does("")).unwrap_or_else(|| self.session());
        let rows = session.sql(statements);
        if session.does("DISCARD ALL") {
            *self.kept.lock().expect("not poisoned") = Some(session);
        }
        rows
    }

    /// The first column of the first row.
    pub(crate) fn sql_value(&self, statement: &str) -> String {
        let rows = self.sql(statement);
        rows.first().unwrap_or_else(|| panic!("no row: {statement}"))[0].clone()
    }

    /// A session that stays open.
    pub(crate) fn session(&self) -> Session {
        Session::of(&self.url())
    }

    /// Locks these users' USDT in Funding until the session rolls back.
    pub(crate) fn lock_usdt(&self, users: &[u64]) -> Session {
        let session = self.session();
        session.sql(&format!(
            "BEGIN; SELECT FROM balances_tb \
             WHERE user_id = ANY (ARRAY{users:?}::bigint[]) AND asset_id = 3 FOR UPDATE"
        ));
        session
    }

    /// Takes the next incarnation with all shards, as the start of another process does.
    pub(crate) fn take_over(&self) {
        self.sql(
            "UPDATE engine_state SET incarnation = incarnation + 1; \
             SELECT journal_fence(incarnation, 0) FROM engine_state",
        );
    }

    /// The start of a process with `shards`, as far as PostgreSQL sees it.
    pub(crate) fn begin(&self, limits: &Limits, shards: u32) -> Incarnation {
        let fence_wait = Duration::from_secs(60);
        let bound = self.sql_value("SELECT COALESCE(log_identity, '') FROM engine_state");
        let log = incarnation::identity_from_text(&bound);
        let start = Start { log, shards, answered: &flights::Answered::default(), fence_wait };
        let (target, clock) = (self.target(), SystemClock::new());
        let begun = incarnation::begin(&target, limits, &start, None, &clock);
        block_on(begun).expect("a new incarnation")
    }

    /// Copies the log, the snapshots and the answered flights to another site.
    pub(crate) fn copy_data(&self, to: &Site) {
        copy_files(&self.log_dir(), &to.log_dir());
        if self.snapshot_dir().is_dir() {
            copy_files(&self.snapshot_dir(), &to.snapshot_dir());
        }
        if self.flights().is_file() {
            fs::copy(self.flights(), to.flights()).expect("copied");
        }
    }

    /// Ends every connection of a server to this database; returns how many there were.
    pub(crate) fn cut_connections(&self) -> usize {
        let database = &self.database;
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = '{database}' AND application_name ~ '^ubscore( [0-9]+)?$'"
        );
        self.sql(&cut).len()
    }

    /// Waits until PostgreSQL has ended each connection of a server that is dead: the last
    /// statement of one may still commit.
    pub(crate) fn wait_for_disconnected(&self) {
        eventually("the end of a dead server's connections", || {
            self.connection_pids().is_empty().then_some(())
        });
    }

    /// PostgreSQL's processes that serve a server's connections to this database.
    pub(crate) fn connection_pids(&self) -> Vec<Pid> {
        let database = &self.database;
        let rows = self.sql(&format!(
            "SELECT pid FROM pg_stat_activity \
             WHERE datname = '{database}' AND application_name ~ '^ubscore( [0-9]+)?$'"
        ));
        let pid = |row: &Vec<String>| Pid::from_raw(row[0].parse().expect("a number"));
        rows.iter().filter_map(pid).collect()
    }

    /// Whether PostgreSQL takes any connection to this database.
    pub(crate) fn admit_connections(&self, admit: bool) {
        let name = &self.database;
        let statement = format!("ALTER DATABASE {name} ALLOW_CONNECTIONS {admit}");
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        block_on(async {
            let client = connect(&self.cluster_url()).await;
            client.batch_execute(&statement).await.expect("altered");
            if !admit {
                client.batch_execute(&cut).await.expect("cut");
            }
        });
    }

    /// Makes each row's `event`, such as `UPDATE OF state ON transfers_tb`, wait if `condition`
    /// holds.
    pub(crate) fn hold(&self, event: &str, condition: &str) -> Hold {
        let (session, name) = (self.session(), format!("hold_{}", unique()));
        session.sql(&format!(
            "CREATE FUNCTION {name}() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN \
             IF {condition} THEN PERFORM pg_advisory_xact_lock(7); END IF; RETURN NEW; END $$; \
             CREATE TRIGGER hold BEFORE {event} FOR EACH ROW EXECUTE FUNCTION {name}(); \
             SELECT pg_advisory_lock(7)"
        ));
        Hold(session)
    }

    /// Makes each decision of Funding about this operation wait.
    pub(crate) fn hold_decision(&self, op: Op) -> Hold {
        self.hold(DECISION, decides(op))
    }

    /// Waits until a statement waits for [`Site::hold`].
    pub(crate) fn wait_for_held(&self) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
                       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        let session = self.session();
        eventually("a statement that waits", || (session.sql(waiting)[0][0] != "0").then_some(()));
    }

    /// Waits until every transfer is terminal.
    pub(crate) fn wait_for_rest(&self) {
        let session = self.session();
        let began = Instant::now();
        loop {
            let rows = session.sql(UNDER_WAY);
            if rows.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "not at rest within {PATIENCE:?}: {rows:?}");
            thread::sleep(POLL);
        }
    }

    /// Whether every transfer is terminal.
    #[cfg(feature = "crash")]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.sql(UNDER_WAY).is_empty()
    }

    /// Every user that ever had money from outside.
    fn users(&self) -> Vec<u64> {
        let rows = self.sql("SELECT DISTINCT user_id FROM externals ORDER BY 1");
        rows.iter().map(|row| row[0].parse().expect("a number")).collect()
    }

    /// External deposits less external withdrawals of one user, by symbol, smallest units.
    fn outside_balance(&self, user: u64) -> BTreeMap<String, u128> {
        let statement = format!(
            "SELECT symbol, sum(CASE op WHEN 4 THEN amount ELSE -amount END) \
             FROM externals JOIN assets_tb USING (asset_id) \
             WHERE outcome = 1 AND user_id = {user} GROUP BY symbol"
        );
        let rows = self.sql(&statement);
        rows.into_iter().map(|row| (row[0].clone(), units(&row[1]))).collect()
    }

    /// Asserts law L1 for every user and asset: Funding + Spot + in flight = deposits -
    /// withdrawals.
    pub(crate) fn assert_conserved(&self, server: &Server) {
        for user in self.users() {
            let mut want = self.outside_balance(user);
            for (symbol, balance) in server.balances(user) {
                let want = want.remove(&symbol).unwrap_or(0);
                assert_eq!(balance.sum(), want, "user {user} {symbol}: {balance:?}");
            }
            assert_eq!(want, BTreeMap::new(), "user {user}: assets without a balance");
        }
    }

    /// Asserts that `ubscore verify` finds nothing, with or without a running server.
    pub(crate) fn assert_verified(&self) {
        Site::assert_verified_by(&mut self.verify());
    }

    /// The same for a [`Site::verify`] with special arguments.
    pub(crate) fn assert_verified_by(verify: &mut Command) {
        let output = verify.output().expect("the binary");
        let said = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}{why}");
        assert!(said.starts_with("ok "), "{said}");
    }

    /// `ubscore verify` on this site.
    pub(crate) fn verify(&self) -> Command {
        self.tool(["verify"])
    }

    /// A subcommand with the places of both stores.
    pub(crate) fn tool(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        self.tool_with(arguments, &self.url())
    }

    /// The same with another PostgreSQL, or `embedded`.
    pub(crate) fn tool_with(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        postgres: &str,
    ) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(arguments).args(["--dev", "--postgres", postgres]);
        command.arg("--data-dir").arg(&self.data_dir);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Asserts, with every transfer terminal, that `ubscore verify` finds nothing, and
    /// [`Site::assert_balances`].
    pub(crate) fn assert_in_order(&self, server: &Server) {
        self.assert_verified();
        self.assert_balances(server);
    }

    /// Asserts, with every transfer terminal, that each balance is the sum of the terminal states,
    /// on each side, in answers as in PostgreSQL's rows.
    pub(crate) fn assert_balances(&self, server: &Server) {
        self.assert_conserved(server);
        // One statement for all users: a long run leaves millions of rows.
        let sums = "SELECT user_id, symbol, direction, sum(amount) \
             FROM transfers JOIN assets_tb USING (asset_id) WHERE state = 40 GROUP BY 1, 2, 3";
        let moved: BTreeMap<String, u128> =
            self.sql(sums).into_iter().map(|row| (row[..3].join(" "), units(&row[3]))).collect();
        let moved = |user: u64, symbol: &str, kind: u8| {
            moved.get(&format!("{user} {symbol} {kind}")).copied().unwrap_or(0)
        };
        for user in self.users() {
            let outside = self.outside_balance(user);
            for (symbol, balance) in server.balances(user) {
                let there = moved(user, &symbol, 1);
                let back = moved(user, &symbol, 2);
                let given = outside.get(&symbol).copied().unwrap_or(0);
                assert_eq!(balance.in_flight, 0, "user {user} {symbol}: {balance:?}");
                let spot = balance.spot.unwrap_or(0);
                assert_eq!(spot + back, there, "user {user} {symbol}: {balance:?}");
                let funding = balance.funding.unwrap_or(0);
                assert_eq!(funding + there, given + back, "user {user} {symbol}: {balance:?}");
                let row = format!(
                    "SELECT COALESCE(sum(available + frozen), 0) FROM balances \
                     JOIN assets_tb USING (asset_id) \
                     WHERE user_id = {user} AND symbol = '{symbol}'"
                );
                assert_eq!(units(&self.sql_value(&row)), funding, "user {user} {symbol}");
            }
        }
        // Every operation of Funding belongs to a transfer in a state that claims it, and the
        // reverse.
        let strays = self.sql(
            "SELECT t.req_id, t.state, o.op, o.outcome FROM transfers t \
             FULL JOIN transfer_operations o ON o.req_id = t.req_id \
             WHERE t.req_id IS NULL \
                OR (t.direction = 1 AND o.op IS NULL) \
                OR (t.state = 40 AND o.outcome IS DISTINCT FROM 1) \
                OR (t.state = -10 AND o.outcome = 1)",
        );
        assert_eq!(strays, Vec::<Vec<String>>::new());
    }

    /// The states a transfer passed, one list a commit.
    pub(crate) fn commits(&self, req_id: &str) -> Vec<String> {
        let statement = format!(
            "SELECT array_to_string(states, ' ') FROM transfer_history \
             WHERE req_id = '{req_id}' ORDER BY event_id"
        );
        self.sql(&statement).into_iter().map(|row| row[0].clone()).collect()
    }
}

/// Statements that wait, from [`Site::hold`] until this is released or dropped.
pub(crate) struct Hold(Session);

impl Hold {
    /// Releases them.
    pub(crate) fn release(self) {
        self.0.sql("SELECT pg_advisory_unlock(7)");
    }
}

pub(super) async fn connect(target: &str) -> Client {
    let config: tokio_postgres::Config = target.parse().expect("our own URL");
    let (client, connection) = config.connect(NoTls).await.expect("PostgreSQL");
    // The client's own calls return the error at its end.
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// The rows of all statements as text, NULL as "".
fn rows(messages: Vec<SimpleQueryMessage>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for message in messages {
        if let SimpleQueryMessage::Row(row) = message {
            let column = |index| row.get(index).unwrap_or("").to_owned();
            rows.push((0..row.len()).map(column).collect());
        }
    }
    rows
}

/// An open connection to a test's database.
pub(crate) struct Session {
    client: Client,
}

impl Session {
    /// Whether a statement can be run.
    pub(crate) fn does(&self, statement: &str) -> bool {
        block_on(self.client.batch_execute(statement)).is_ok()
    }

    /// A session with this database.
    pub(crate) fn of(url: &str) -> Session {
        Session { client: block_on(connect(url)) }
    }

    /// Runs SQL; rows as text, NULL as "".
    pub(crate) fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        let messages = block_on(self.client.simple_query(statements));
        rows(messages.unwrap_or_else(|error| panic!("{error:?}: {statements}")))
    }

    /// The same while PostgreSQL may go away. `Err`: the SQLSTATE of a refusal; `None`: no answer.
    pub(crate) fn try_sql(&self, statements: &str) -> Result<Vec<Vec<String>>, Option<String>> {
        let messages = block_on(self.client.simple_query(statements));
        messages.map(rows).map_err(|error| error.code().map(|code| code.code().to_owned()))
    }

    /// Runs SQL that must be refused; returns the SQLSTATE.
    pub(crate) fn sql_refused(&self, statement: &str) -> String {
        let refused = block_on(self.client.simple_query(statement)).expect_err(statement);
        refused.code().expect("the server said so").code().to_owned()
    }
}
