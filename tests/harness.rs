//! The only helpers: one PostgreSQL a run, a database and a data directory a test, the real binary, an HTTP client, and
//! the sums that must come out.
//!
//! Nothing here is skipped when something is missing: no PostgreSQL is a failure. No test waits for a fixed time; where
//! one has to wait for something, it looks until it is there, and fails at [`PATIENCE`].

mod browser;
mod load;
mod log;
mod proxy;
mod watermark;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{DecodingKey, EncodingKey};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519,
};
use rsa::RsaPrivateKey;
use rsa::pkcs1::EncodeRsaPrivateKey;
use rsa::pkcs8::{EncodePublicKey, LineEnding};
use rsa::rand_core::OsRng;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};
use ubscore::amount::units_from_text;
use ubscore::config::auth::{Auth, DEVELOPMENT_SECRET};
use ubscore::config::secret::Secret;
use ubscore::engine;
use ubscore::engine::ledger::Places;
use ubscore::http::auth::{self, Role};
use ubscore::postgres::embedded::{Embedded, Options};

pub(crate) use self::browser::{Browser, Screen};
#[cfg(feature = "crash")]
pub(crate) use self::load::plan_of_round;
pub(crate) use self::load::{Planned, USERS, assert_kept, endow, plan, post_to};
pub(crate) use self::log::{force, numbered_files, segments, snapshots};
pub(crate) use self::proxy::{COMMIT, Passing, Proxy, Speaker, place, tells_of_a_commit};
pub(crate) use self::watermark::{forgetful, logged, wait_for_all_below, watermark};

/// How long a test looks for what must come. Far above what anything takes, so that it is met only by what never comes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// What a server of a test waits for, milliseconds: a disk or a machine that stands still for seconds is no failure of what is
/// tested. Who tests what comes of a slow store says how long it may be slow.
const PATIENT: [(&str, u32); 6] = [
    ("UBSCORE__POSTGRES__CONNECT_TIMEOUT_MS", 30_000),
    ("UBSCORE__POSTGRES__STATEMENT_TIMEOUT_MS", 20_000),
    ("UBSCORE__POSTGRES__LOCK_TIMEOUT_MS", 10_000),
    ("UBSCORE__POSTGRES__IDLE_IN_TRANSACTION_TIMEOUT_MS", 20_000),
    ("UBSCORE__COORDINATOR__ADAPTER_TIMEOUT_MS", 20_000),
    ("UBSCORE__HTTP__TRANSFER_WAIT_MS", 15_000),
];
/// Between two looks.
const POLL: Duration = Duration::from_millis(10);
/// The operator of all tests.
pub(crate) const ADMIN: u64 = 9_001;
/// Decimals of every development asset.
const PRECISION: u8 = 8;
/// One coin of every development asset, smallest units.
pub(crate) const COIN: u128 = 100_000_000;

/// Runs when the test process is gone, however it went: ends every server of this run by its data directory, every
/// PostgreSQL by its pid file, and removes the run's directory. It holds nothing but the other end of a pipe.
const WATCHER: &str = r#"
read -r line
for process in /proc/[0-9]*; do
    grep -aqsF -- "$UBSCORE_TEST_RUN/" "$process/cmdline" && kill -KILL "${process#/proc/}"
done
for file in "$UBSCORE_TEST_RUN"/*/postgres/postmaster.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    socket_directory=$(sed -n 5p "$file")
    grep -aqsF cluster_name=ubscore "/proc/$pid/cmdline" || continue
    kill -INT "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rmdir -- "$socket_directory"
done
rm -rf -- "$UBSCORE_TEST_RUN"
"#;

/// The transfers that are not terminal.
const UNDER_WAY: &str =
    "SELECT req_id, state, retry_count FROM transfers_tb WHERE state NOT IN (40, -10, -30)";

/// What all tests of a run share.
struct Run {
    directory: PathBuf,
    runtime: Runtime,
    postgres: Embedded,
    /// Waits for the other end of its standard input to close, which the end of this process does.
    _watcher: Child,
}

fn run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        // A failure is told when it happens: the runner keeps what a test has said until the end, which a run that is cut off
        // does not reach.
        let keep = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            keep(panic);
            let test = thread::current().name().unwrap_or("a thread").to_owned();
            writeln!(io::stderr(), "{test}: {panic}").ok();
        }));
        let prefix = "ubscore-test-";
        let directory = tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory");
        let directory = directory.keep();
        let watcher = Command::new("sh")
            .args(["-c", WATCHER])
            .env("UBSCORE_TEST_RUN", &directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C on the terminal ends the tests, and must not end it.
            .process_group(0)
            .spawn()
            .expect("sh");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let options = Options {
            connections_max: 300,
            shared_buffers_mib: 32,
            ..Options::new(directory.join("shared"))
        };
        let postgres = runtime.block_on(Embedded::start(&options));
        let postgres = postgres.unwrap_or_else(|error| panic!("PostgreSQL: {error}"));
        Run { directory, runtime, postgres, _watcher: watcher }
    })
}

/// A number no other caller in this run gets.
fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Waits for a future on the runtime of the harness.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    run().runtime.block_on(future)
}

/// Looks until `look` finds something.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(POLL);
    }
}

/// Asks for what counts once however often it is asked for, and again, as a client does it, while PostgreSQL is too slow to
/// take it: where locks are given up soon, a disk or a busy machine may be.
fn taken(ask: impl Fn() -> Reply) -> Reply {
    eventually("it to be taken", || Some(ask()).filter(|reply| reply.status != 503))
}

/// A PostgreSQL that one test has for itself.
pub(crate) struct Cluster {
    options: Options,
    url: String,
    server: Mutex<Option<Embedded>>,
}

impl Cluster {
    fn start() -> Cluster {
        let directory = run().directory.join(format!("cluster-{}", unique()));
        let options =
            Options { connections_max: 40, shared_buffers_mib: 32, ..Options::new(directory) };
        let server = block_on(Embedded::start(&options)).expect("PostgreSQL");
        Cluster { options, url: server.url(), server: Mutex::new(Some(server)) }
    }

    /// Every process of it: the first, and those that it has started.
    fn pids(&self) -> Vec<Pid> {
        let server = self.server.lock().expect("not poisoned");
        let first = server.as_ref().expect("it runs").pid();
        let is_child = |stat: &str| {
            let parent = stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse::<i32>().ok()?;
            (parent == first).then_some(())
        };
        let process = |entry: io::Result<fs::DirEntry>| {
            let pid = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            if pid != first {
                is_child(&stat)?;
            }
            Pid::from_raw(pid)
        };
        fs::read_dir("/proc").expect("processes").filter_map(process).collect()
    }

    /// Sends a signal to all of it.
    pub(crate) fn signal(&self, signal: Signal) {
        for pid in self.pids() {
            // Some may have ended.
            kill_process(pid, signal).ok();
        }
    }

    /// SIGKILL, all of it at once; returns when it is gone.
    pub(crate) fn kill(&self) {
        let pids = self.pids();
        self.signal(Signal::KILL);
        drop(self.server.lock().expect("not poisoned").take());
        // Those whose parent has died are reaped by the first process of the system.
        let alive = |pid: &Pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
            stat.is_ok_and(|stat| !stat.contains(") Z "))
        };
        eventually("PostgreSQL to be gone", || (!pids.iter().any(alive)).then_some(()));
    }

    /// A copy of its files as a crash at this moment would leave them, or an asynchronous replica that is not far behind.
    pub(crate) fn copy_files(&self) -> PathBuf {
        let copy = run().directory.join(format!("replica-{}", unique()));
        self.signal(Signal::STOP);
        let copied = Command::new("cp").arg("-a").arg(&self.options.data_dir).arg(&copy).status();
        self.signal(Signal::CONT);
        assert!(copied.expect("cp").success());
        copy
    }

    /// Puts a copy in the place of its files, after [`Cluster::kill`], and starts it.
    pub(crate) fn take_over(&self, copy: &Path) {
        // The directory itself stays: the socket is found by it.
        let entries = |directory: &Path| {
            let entries = fs::read_dir(directory.join("postgres")).expect("a cluster");
            entries.map(|entry| entry.expect("an entry").path()).collect::<Vec<_>>()
        };
        for entry in entries(&self.options.data_dir) {
            let removed =
                if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
            removed.expect("removed");
        }
        for entry in entries(copy) {
            let name = entry.file_name().expect("a name");
            let place = self.options.data_dir.join("postgres").join(name);
            fs::rename(&entry, place).expect("renamed");
        }
        self.restart();
    }

    /// Starts it again after [`Cluster::kill`].
    pub(crate) fn restart(&self) {
        let server = block_on(Embedded::start(&self.options)).expect("PostgreSQL");
        assert_eq!(server.url(), self.url, "it is found where it was");
        *self.server.lock().expect("not poisoned") = Some(server);
    }
}

/// One test's database and data directory, and how its servers are configured.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) database: String,
    pub(crate) data_dir: PathBuf,
    environment: Vec<(String, String)>,
    /// Where the database is, if not in the one that all tests share.
    cluster: Option<Arc<Cluster>>,
}

impl Site {
    /// A fresh database and a fresh data directory. Segments are small and tries close together, so that a test sees
    /// many of both; memory is taken for few accounts, since many servers run at once.
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
        let site = Site { database, data_dir, environment: Vec::new(), cluster };
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

    /// A fresh database and a fresh data directory, on the PostgreSQL that all tests share, configured as this one.
    pub(crate) fn elsewhere(&self) -> Site {
        Site { cluster: None, ..self.clone() }.with_fresh_database().with_fresh_data_dir()
    }

    /// A directory of its own that is not there yet.
    pub(crate) fn fresh_path(&self, name: &str) -> PathBuf {
        run().directory.join(format!("{name}-{}", unique()))
    }

    /// The same data directory with a fresh database.
    pub(crate) fn with_fresh_database(&self) -> Site {
        let site = Site { database: format!("test_{}", unique()), ..self.clone() };
        site.create_database("");
        site
    }

    /// The same data directory with a copy of the database, which nobody may be connected to.
    pub(crate) fn with_copied_database(&self) -> Site {
        let site = Site { database: format!("test_{}", unique()), ..self.clone() };
        site.create_database(&format!("TEMPLATE {}", self.database));
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

    /// A session, `None` where PostgreSQL takes no more.
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

    /// The database, as tokio-postgres takes it.
    pub(crate) fn target(&self) -> tokio_postgres::Config {
        self.url().parse().expect("our own URL")
    }

    /// The directory of the log.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.data_dir.join("wal")
    }

    /// The directory of snapshots.
    pub(crate) fn snapshot_dir(&self) -> PathBuf {
        self.data_dir.join("snapshots")
    }

    /// The binary as this site runs it: `serve --dev` on free ports.
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

    /// Runs SQL in a session of its own; rows as text, NULL as "".
    pub(crate) fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        self.session().sql(statements)
    }

    /// The first column of the first row.
    pub(crate) fn sql_value(&self, statement: &str) -> String {
        let rows = self.sql(statement);
        rows.first().unwrap_or_else(|| panic!("no row: {statement}"))[0].clone()
    }

    /// A session that stays open.
    pub(crate) fn session(&self) -> Session {
        Session { client: block_on(connect(&self.url())) }
    }

    /// Ends every connection of a server to this database; returns how many there were.
    pub(crate) fn cut_connections(&self) -> usize {
        let database = &self.database;
        let cut = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = '{database}' AND application_name = 'ubscore'"
        );
        self.sql(&cut).len()
    }

    /// PostgreSQL's processes that serve a server's connections to this database.
    pub(crate) fn connection_pids(&self) -> Vec<Pid> {
        let database = &self.database;
        let rows = self.sql(&format!(
            "SELECT pid FROM pg_stat_activity \
             WHERE datname = '{database}' AND application_name = 'ubscore'"
        ));
        let pid = |row: &Vec<String>| Pid::from_raw(row[0].parse().expect("a number"));
        rows.iter().filter_map(pid).collect()
    }

    /// Whether PostgreSQL takes connections to this database, from anybody.
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

    /// Makes each row's `event`, such as `UPDATE OF state ON transfers_tb`, wait where `condition` holds.
    pub(crate) fn hold(&self, event: &str, condition: &str) -> Hold {
        let session = self.session();
        session.sql(&format!(
            "CREATE OR REPLACE FUNCTION hold() RETURNS TRIGGER LANGUAGE plpgsql AS $$ \
             BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NEW; END $$; \
             CREATE TRIGGER hold BEFORE {event} FOR EACH ROW WHEN ({condition}) \
             EXECUTE FUNCTION hold(); \
             SELECT pg_advisory_lock(7)"
        ));
        Hold(session)
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
        let rows = self.sql("SELECT DISTINCT user_id FROM external_operations ORDER BY 1");
        rows.iter().map(|row| row[0].parse().expect("a number")).collect()
    }

    /// What came from outside less what went there, of one user, by symbol, smallest units.
    fn outside_balance(&self, user: u64) -> BTreeMap<String, u128> {
        let statement = format!(
            "SELECT symbol, sum(CASE op WHEN 4 THEN amount ELSE -amount END) \
             FROM external_operations JOIN assets_tb USING (asset_id) \
             WHERE outcome = 1 AND user_id = {user} GROUP BY symbol"
        );
        let rows = self.sql(&statement);
        rows.into_iter().map(|row| (row[0].clone(), units(&row[1]))).collect()
    }

    /// Asserts law L1 for every user and asset: Funding + Spot + in flight = deposits - withdrawals.
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

    /// The same for a [`Site::verify`] that is run in a special way.
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

    /// A subcommand that is told where both stores are.
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

    /// Asserts, with every transfer terminal, that `ubscore verify` finds nothing, and [`Site::assert_balances`].
    pub(crate) fn assert_books(&self, server: &Server) {
        self.assert_verified();
        self.assert_balances(server);
    }

    /// Asserts, with every transfer terminal, that each balance is what the terminal states add up to, on each side, in
    /// answers as in PostgreSQL's rows.
    pub(crate) fn assert_balances(&self, server: &Server) {
        self.assert_conserved(server);
        let moved = |user: u64, symbol: &str, kind: u8| {
            let statement = format!(
                "SELECT COALESCE(sum(amount), 0) FROM transfers_tb JOIN assets_tb USING (asset_id) \
                 WHERE state = 40 AND user_id = {user} AND symbol = '{symbol}' \
                 AND transfer_type = {kind}"
            );
            units(&self.sql_value(&statement))
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
                    "SELECT COALESCE(sum(available + frozen), 0) FROM balances_tb \
                     JOIN assets_tb USING (asset_id) \
                     WHERE user_id = {user} AND symbol = '{symbol}'"
                );
                assert_eq!(units(&self.sql_value(&row)), funding, "user {user} {symbol}");
            }
        }
        // Every operation that Funding carried out belongs to a transfer whose state claims it, and the reverse.
        let strays = self.sql(
            "SELECT t.req_id, t.state, o.op, o.outcome FROM transfers_tb t \
             FULL JOIN transfer_operations o ON o.req_id = t.req_id \
             WHERE t.req_id IS NULL \
                OR (t.transfer_type = 1 AND o.op IS NULL) \
                OR (t.state = 40 AND o.outcome IS DISTINCT FROM 1) \
                OR (t.state = -10 AND o.outcome = 1)",
        );
        assert_eq!(strays, Vec::<Vec<String>>::new());
    }

    /// The states a transfer passed, one list a commit.
    pub(crate) fn commits(&self, req_id: &str) -> Vec<String> {
        let statement = format!(
            "SELECT array_to_string(states, ' ') FROM transfer_history \
             WHERE req_id = '{req_id}' ORDER BY at"
        );
        self.sql(&statement).into_iter().map(|row| row[0].clone()).collect()
    }
}

/// Statements that wait, from [`Site::hold`] until this is released or dropped.
pub(crate) struct Hold(Session);

impl Hold {
    /// Lets them go on.
    pub(crate) fn release(self) {
        self.0.sql("SELECT pg_advisory_unlock(7)");
    }
}

async fn connect(target: &str) -> Client {
    let config: tokio_postgres::Config = target.parse().expect("our own URL");
    let (client, connection) = config.connect(NoTls).await.expect("PostgreSQL");
    // Whoever uses the client is told of its end.
    tokio::spawn(async move { drop(connection.await) });
    client
}

/// An open connection to a test's database.
pub(crate) struct Session {
    client: Client,
}

impl Session {
    /// Runs SQL; rows as text, NULL as "".
    pub(crate) fn sql(&self, statements: &str) -> Vec<Vec<String>> {
        let messages = block_on(self.client.simple_query(statements));
        let messages = messages.unwrap_or_else(|error| panic!("{error:?}: {statements}"));
        let mut rows = Vec::new();
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                let column = |index| row.get(index).unwrap_or("").to_owned();
                rows.push((0..row.len()).map(column).collect());
            }
        }
        rows
    }

    /// Runs SQL that must be refused; returns the SQLSTATE.
    pub(crate) fn sql_refused(&self, statement: &str) -> String {
        let refused = block_on(self.client.simple_query(statement)).expect_err(statement);
        refused.code().expect("the server said so").code().to_owned()
    }
}

/// A decimal text as smallest units.
pub(crate) fn units(text: &str) -> u128 {
    units_from_text(text, PRECISION).unwrap_or_else(|| panic!("{text:?} is no amount"))
}

/// Looks for the last words of a process that has ended.
const LAST_LOOKS: u32 = 100;

/// Runs a command that must end by itself; returns its exit code and stderr.
pub(crate) fn refused(mut command: Command) -> (i32, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary");
    let said = drain(child.stderr.take().expect("piped"));
    let status = wait_for_exit(&mut child, &said);
    // On a busy machine the reader comes late. A PostgreSQL that was left behind may hold the pipe open for ever.
    for _ in 0..LAST_LOOKS {
        if Arc::strong_count(&said) == 1 {
            break;
        }
        thread::sleep(POLL);
    }
    let said = said.lock().expect("no panic in the reader").clone();
    (status.code().unwrap_or_else(|| panic!("{status}: {said}")), said)
}

/// The last lines of what a server said.
fn tail(said: &str) -> String {
    const LINES: usize = 25;
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

/// The last line that says something.
pub(crate) fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or("")
}

/// Reads a pipe to its end on a thread of its own.
fn drain(mut pipe: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let text = Arc::new(Mutex::new(String::new()));
    let written = Arc::clone(&text);
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let part = String::from_utf8_lossy(&buffer[..count]);
            written.lock().expect("no panic in a reader").push_str(&part);
        }
    });
    text
}

fn wait_for_exit(child: &mut Child, said: &Mutex<String>) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("our own child") {
            // Its last words may still be in the pipe.
            thread::sleep(POLL * 2);
            return status;
        }
        if began.elapsed() > PATIENCE {
            child.kill().expect("our own child");
            let said = said.lock().expect("no panic in a reader");
            panic!("it did not end within {PATIENCE:?}; it said:\n{said}");
        }
        thread::sleep(POLL);
    }
}

/// Runs `ubscore repair` on a site.
pub(crate) fn repair(site: &Site, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.arg("repair").args(arguments).args(["--dev", "--postgres", &site.url()]);
    command.arg("--data-dir").arg(&site.data_dir);
    command.envs(site.verify().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let std::process::Output { status, stdout, stderr } = command.output().expect("the binary");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

/// Runs `ubscore` as an operator would.
pub(crate) fn cli(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_ubscore")).args(arguments).output().expect("the binary")
}

/// Its exit code, what it printed and what it said.
pub(crate) fn said(output: &std::process::Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (output.status.code().expect("an exit code"), text(&output.stdout), text(&output.stderr))
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    child: Child,
    said: Arc<Mutex<String>>,
    pub(crate) http: SocketAddr,
    pub(crate) ops: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("the server, process {}, said last:\n{}", self.pid(), tail(&self.said()));
        }
        // It may have ended before, which is as good.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    /// Runs `command` and waits until it says that it is ready. It is started again, as systemd does it, while PostgreSQL is too
    /// slow for its start.
    pub(crate) fn start(mut command: Command) -> Server {
        eventually("a start", || match Server::launch(&mut command, Stdio::piped()) {
            Ok(server) => Some(server),
            Err((status, said)) => {
                let slow = ["PostgreSQL did not answer", "no connection to PostgreSQL: Timeout"];
                let slow = slow.iter().any(|words| said.contains(words));
                assert!(
                    slow && status.code() == Some(1),
                    "the server ended before it was ready, {status}; it said:\n{said}"
                );
                None
            }
        })
    }

    /// Runs `command` until it is ready or has ended; `Err`: how it ended, and its stderr.
    pub(crate) fn try_start(mut command: Command) -> Result<Server, (ExitStatus, String)> {
        Server::launch(&mut command, Stdio::piped())
    }

    /// Runs `command` with nobody at the other end of its stderr.
    pub(crate) fn start_unheard(mut command: Command) -> Server {
        let (nobody, stderr) = io::pipe().expect("a pipe");
        drop(nobody);
        Server::launch(&mut command, stderr.into()).expect("it starts")
    }

    fn launch(command: &mut Command, stderr: Stdio) -> Result<Server, (ExitStatus, String)> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .expect("the binary");
        let said = child.stderr.take().map_or_else(Arc::default, drain);
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let (sender, ready) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some(addresses) = parse_ready(&line) {
                    // Nobody waits any more once the test has given up.
                    sender.send(addresses).ok();
                }
            }
        });
        match ready.recv_timeout(PATIENCE) {
            Ok((http, ops)) => Ok(Server { child, said, http, ops }),
            Err(_) => {
                let status = wait_for_exit(&mut child, &said);
                let said = said.lock().expect("no panic in a reader").clone();
                Err((status, said))
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has said this on stderr: a line may be read behind the answer that followed it.
    pub(crate) fn says(&self, words: &str) {
        eventually(words, || self.said().contains(words).then_some(()));
    }

    /// Everything it has said on stderr, as far as it has been read.
    pub(crate) fn said(&self) -> String {
        self.said.lock().expect("no panic in a reader").clone()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("our own child, not waited for yet");
    }

    /// SIGSTOP, and waits until no thread of it runs any more.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let stands = |task: io::Result<fs::DirEntry>| {
            let stat = fs::read_to_string(task.expect("an entry").path().join("stat"));
            // One that has ended meanwhile does not run either.
            stat.map_or(true, |stat| {
                stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T"))
            })
        };
        eventually("all threads to stand still", || {
            fs::read_dir(&tasks).expect("our own child").all(stands).then_some(())
        });
    }

    /// Whether it has ended.
    #[cfg(feature = "crash")]
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child").is_some()
    }

    /// Sends a signal, unless it has ended.
    #[cfg(feature = "crash")]
    pub(crate) fn signal_if_alive(&mut self, signal: Signal) {
        if !self.has_ended() {
            self.signal(signal);
        }
    }

    /// Waits for its end; returns its status and stderr.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let status = wait_for_exit(&mut self.child, &self.said);
        (status, self.said())
    }

    /// SIGKILL, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.signal(Signal::KILL);
        let (status, said) = self.wait();
        assert_eq!(status.signal(), Some(9), "{said}");
    }

    /// SIGTERM, and waits for the exit in order.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        let (status, said) = self.wait();
        assert_eq!(status.code(), Some(0), "{said}");
    }

    /// Sends a request to the public listener as a user.
    pub(crate) fn ask(&self, user: u64, method: &str, path: &str, body: Option<&Value>) -> Reply {
        self.try_ask(user, method, path, body).expect("an answer")
    }

    /// The same, where the server may die over it.
    pub(crate) fn try_ask(
        &self,
        user: u64,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> io::Result<Reply> {
        send(self.http, &Request { body, ..Request::new(&token(user, None), method, path) })
    }

    /// GET as a user.
    pub(crate) fn get(&self, user: u64, path: &str) -> Reply {
        self.ask(user, "GET", path, None)
    }

    /// Every metric, as Prometheus reads it.
    pub(crate) fn metrics(&self) -> String {
        let reply = send(self.ops, &Request::new(&token(ADMIN, None), "GET", "/metrics"));
        reply.expect("an answer").body
    }

    /// A request of the operator's.
    pub(crate) fn admin(&self, method: &str, path: &str, body: &Value) -> Reply {
        let token = token(ADMIN, Some(Role::Admin));
        let request = Request { body: Some(body), ..Request::new(&token, method, path) };
        send(self.ops, &request).expect("an answer")
    }

    /// An operator wants a halt to end.
    pub(crate) fn resume(&self, reason: &str) -> Reply {
        self.admin("POST", "/admin/v1/resume", &json!({ "reason": reason }))
    }

    /// Whether the audit has called this transfer by its name.
    pub(crate) fn has_named(&self, reply: &Reply) -> bool {
        let named =
            |line: &str| line.contains("conservation_violated") && line.contains(&reply.req_id());
        self.said().lines().any(named)
    }

    /// GET on the operator's listener, as an operator.
    pub(crate) fn admin_get(&self, path: &str) -> Reply {
        let token = token(ADMIN, Some(Role::Admin));
        send(self.ops, &Request::new(&token, "GET", path)).expect("an answer")
    }

    /// A stream of a user's events, behind an event's id.
    pub(crate) fn follow(&self, user: u64, after: Option<&str>) -> Follower {
        Follower::open(self.http, &token(user, None), after)
    }

    /// The number of a metric's line, 0 where there is none.
    pub(crate) fn metric(&self, series: &str) -> u64 {
        let value = |line: &str| line.strip_prefix(series)?.trim().parse().ok();
        self.metrics().lines().find_map(value).unwrap_or(0)
    }

    /// The status of `/readyz`.
    pub(crate) fn ready(&self) -> u16 {
        self.admin_get("/readyz").status
    }

    /// Posts a transfer of USDT, without a cid.
    pub(crate) fn transfer(&self, user: u64, way: Way, amount: &str) -> Reply {
        self.post(user, &way.body("USDT", amount))
    }

    /// Posts a transfer of USDT that must not be refused; it may be under way still, however little the server waits.
    pub(crate) fn transfer_accepted(&self, user: u64, way: Way, amount: &str) {
        self.post_taken(user, &way.body_with_cid("USDT", amount, &format!("some-{}", unique())));
    }

    /// Posts a transfer of USDT that must come to a good end, in the answer or after it.
    pub(crate) fn transfer_committed(&self, user: u64, way: Way, amount: &str) {
        let body = way.body_with_cid("USDT", amount, &format!("some-{}", unique()));
        let reply = self.post_taken(user, &body);
        let now = eventually("its end", || {
            let now = self.look(user, &reply.req_id());
            (now["final"] == json!(true)).then_some(now)
        });
        assert_eq!(now["state"], json!("COMMITTED"), "{now}");
    }

    /// Posts a body as a transfer.
    pub(crate) fn post(&self, user: u64, body: &Value) -> Reply {
        self.ask(user, "POST", "/api/v1/internal_transfer", Some(body))
    }

    /// Posts a transfer with a cid that must not be refused.
    fn post_taken(&self, user: u64, body: &Value) -> Reply {
        assert!(body["cid"].is_string(), "{body}");
        let reply = taken(|| self.post(user, body));
        assert!([200, 202].contains(&reply.status), "{reply:?}");
        reply
    }

    /// The same with one that something holds up, so that it is under way when it is answered.
    pub(crate) fn post_pending(&self, user: u64, body: &Value) -> Reply {
        let reply = self.post_taken(user, body);
        assert_eq!(reply.status, 202, "{reply:?}");
        reply
    }

    /// GET of one transfer by its owner.
    pub(crate) fn look(&self, user: u64, req_id: &str) -> Value {
        let reply = self.get(user, &format!("/api/v1/internal_transfer/{req_id}"));
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()
    }

    /// Every balance of a user, by symbol.
    pub(crate) fn balances(&self, user: u64) -> BTreeMap<String, Balance> {
        let reply = self.get(user, "/api/v1/balances");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.balances()
    }

    /// The USDT balance of a user.
    pub(crate) fn usdt(&self, user: u64) -> Balance {
        self.balances(user)["USDT"]
    }

    /// Gives a user money from outside.
    pub(crate) fn deposit(&self, user: u64, asset: &str, amount: &str) {
        let idem_key = format!("deposit-{}", unique());
        let body = external(user, asset, amount, &idem_key);
        let reply = taken(|| self.admin("POST", "/admin/v1/deposits", &body));
        assert_eq!((reply.status, &reply.json()["outcome"]), (200, &json!("SUCCESS")), "{reply:?}");
    }

    /// Sets an account's status.
    pub(crate) fn set_status(&self, user: u64, account: &str, status: &str) {
        let path = format!("/admin/v1/accounts/{user}/{account}/status");
        let body = json!({"status": status, "reason": "a test"});
        let reply = taken(|| self.admin("PUT", &path, &body));
        assert_eq!(reply.status, 200, "{reply:?}");
    }

    /// Changes an asset.
    pub(crate) fn change_asset(&self, symbol: &str, mut change: Value) {
        change["reason"] = json!("a test");
        let reply = self.admin("PUT", &format!("/admin/v1/assets/{symbol}"), &change);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn parse_ready(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let addresses = line.strip_prefix("ubscore ready http=")?;
    let (http, ops) = addresses.split_once(" ops=")?;
    Some((http.parse().ok()?, ops.parse().ok()?))
}

/// The body of an external operation.
pub(crate) fn external(user: u64, asset: &str, amount: &str, idem_key: &str) -> Value {
    json!({"user_id": user, "asset": asset, "amount": amount, "idem_key": idem_key})
}

/// What a user has of one asset, smallest units; `None`: no such account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Balance {
    pub(crate) funding: Option<u128>,
    pub(crate) spot: Option<u128>,
    pub(crate) in_flight: u128,
}

impl Balance {
    pub(crate) fn sum(&self) -> u128 {
        self.funding.unwrap_or(0) + self.spot.unwrap_or(0) + self.in_flight
    }

    /// Nothing in flight, and coins on both sides.
    pub(crate) fn at_rest(funding: u128, spot: u128) -> Balance {
        Balance { funding: Some(funding), spot: Some(spot), in_flight: 0 }
    }
}

/// Which way a transfer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToSpot,
    ToFunding,
}

impl Way {
    pub(crate) const BOTH: [Way; 2] = [Way::ToSpot, Way::ToFunding];

    /// Source and target, as the API names them.
    pub(crate) fn accounts(self) -> (&'static str, &'static str) {
        match self {
            Way::ToSpot => ("FUNDING", "SPOT"),
            Way::ToFunding => ("SPOT", "FUNDING"),
        }
    }

    /// The body of a transfer.
    pub(crate) fn body(self, asset: &str, amount: &str) -> Value {
        let (from, to) = self.accounts();
        json!({"from": from, "to": to, "asset": asset, "amount": amount})
    }

    /// The same with a cid.
    pub(crate) fn body_with_cid(self, asset: &str, amount: &str, cid: &str) -> Value {
        let mut body = self.body(asset, amount);
        body["cid"] = json!(cid);
        body
    }
}

/// A certificate and its private key, as files of a test; and who vouches for it.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The certificate to trust.
    pub(crate) issuer: PathBuf,
}

impl Certificate {
    /// One for loopback that an authority of its own has issued.
    pub(crate) fn issued(site: &Site) -> Certificate {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Of two of one name, a client would try the wrong one.
        let name = format!("authority {}", unique());
        authority.distinguished_name.push(DnType::CommonName, name);
        let authority_key = KeyPair::generate().expect("a pair of keys");
        let issuer_pem = authority.self_signed(&authority_key).expect("a certificate").pem();
        let issuer = rcgen::Issuer::new(authority, authority_key);
        let key = KeyPair::generate().expect("a pair of keys");
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let leaf = CertificateParams::new(names).expect("names");
        let leaf = leaf.signed_by(&key, &issuer).expect("a certificate").pem();
        Certificate::write(site, &leaf, &key.serialize_pem(), &issuer_pem)
    }

    /// One for loopback that vouches for itself.
    pub(crate) fn self_signed(site: &Site) -> Certificate {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let pem = made.cert.pem();
        Certificate::write(site, &pem, &made.signing_key.serialize_pem(), &pem)
    }

    fn write(site: &Site, certificate: &str, key: &str, issuer: &str) -> Certificate {
        let file = |name, content| {
            let path = site.fresh_path(name);
            fs::write(&path, content).expect("written");
            path
        };
        Certificate {
            certificate: file("certificate", certificate),
            key: file("key", key),
            issuer: file("issuer", issuer),
        }
    }

    /// Puts another one's content in the place of this one's files.
    pub(crate) fn replace_by(&self, other: &Certificate) {
        for (path, other) in [(&self.certificate, &other.certificate), (&self.key, &other.key)] {
            replace(path, &fs::read_to_string(other).expect("our own file"));
        }
    }
}

/// What curl is told, by a server whose certificate one issuer vouches for: its exit code and all it was told.
pub(crate) fn curl(issuer: &Path, arguments: &[&str]) -> (i32, String) {
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "60", "--noproxy", "*", "--cacert"])
        .arg(issuer)
        .args(arguments)
        .output()
        .expect("curl");
    let (code, out, err) = said(&output);
    (code, out + err.as_str())
}

/// A pair of keys that sign tokens.
pub(crate) struct Issuer {
    algorithm: jsonwebtoken::Algorithm,
    key: EncodingKey,
    public_pem: String,
}

impl Issuer {
    /// A new pair for EdDSA, ES256 or RS256.
    pub(crate) fn new(algorithm: jsonwebtoken::Algorithm) -> Issuer {
        let pair = |kind| KeyPair::generate_for(kind).expect("a pair of keys");
        let (key, public_pem) = match algorithm {
            jsonwebtoken::Algorithm::EdDSA => {
                let pair = pair(&PKCS_ED25519);
                (EncodingKey::from_ed_der(pair.serialized_der()), pair.public_key_pem())
            }
            jsonwebtoken::Algorithm::ES256 => {
                let pair = pair(&PKCS_ECDSA_P256_SHA256);
                (EncodingKey::from_ec_der(pair.serialized_der()), pair.public_key_pem())
            }
            jsonwebtoken::Algorithm::RS256 => {
                const BITS: usize = 2_048;
                let pair = RsaPrivateKey::new(&mut OsRng, BITS).expect("a pair of keys");
                let private = pair.to_pkcs1_der().expect("DER");
                let public = pair.to_public_key().to_public_key_pem(LineEnding::LF).expect("PEM");
                (EncodingKey::from_rsa_der(private.as_bytes()), public)
            }
            other => panic!("{other:?} is not served"),
        };
        Issuer { algorithm, key, public_pem }
    }

    /// The public key as PEM.
    pub(crate) fn public_pem(&self) -> &str {
        &self.public_pem
    }

    /// The public key as a member of a JWK Set.
    pub(crate) fn jwk(&self, kid: &str) -> Value {
        let pem = self.public_pem.as_bytes();
        let key = match self.algorithm {
            jsonwebtoken::Algorithm::EdDSA => DecodingKey::from_ed_pem(pem),
            jsonwebtoken::Algorithm::ES256 => DecodingKey::from_ec_pem(pem),
            _ => DecodingKey::from_rsa_pem(pem),
        };
        let key = Jwk::from_decoding_key(&key.expect("our own key"), Some(self.algorithm));
        let mut jwk = serde_json::to_value(key.expect("a JWK")).expect("JSON");
        jwk["kid"] = json!(kid);
        jwk
    }

    /// A token, good for an hour.
    pub(crate) fn token(&self, kid: Option<&str>, user: u64) -> String {
        let mut header = jsonwebtoken::Header::new(self.algorithm);
        header.kid = kid.map(str::to_owned);
        let claims = json!({"sub": user.to_string(), "exp": now_s() + 3_600});
        jsonwebtoken::encode(&header, &claims, &self.key).expect("a token")
    }
}

/// Puts a file in the place of another, so that nobody reads half of it.
pub(crate) fn replace(path: &Path, content: &str) {
    let next = path.with_extension("next");
    fs::write(&next, content).expect("written");
    fs::rename(&next, path).expect("renamed");
}

/// A token that the development secret signs, good for an hour.
pub(crate) fn token(user: u64, role: Option<Role>) -> String {
    let secret = Some(Secret::new(DEVELOPMENT_SECRET));
    let auth = Auth { secret, ..Auth::default() };
    auth::sign(&auth, user, role, Duration::from_secs(3_600), now_s()).expect("a token")
}

/// Seconds since the Unix epoch.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs()
}

/// A JSON string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

/// A request with one token and, where there is one, a JSON body.
pub(crate) struct Request<'a> {
    pub(crate) token: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: Option<&'a Value>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(token: &'a str, method: &'a str, path: &'a str) -> Request<'a> {
        Request { token, method, path, headers: &[], body: None }
    }
}

/// Sends one request on a connection of its own.
pub(crate) fn send(address: SocketAddr, request: &Request<'_>) -> io::Result<Reply> {
    let mut head = format!("Authorization: Bearer {}\r\n", request.token);
    for (name, value) in request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if request.body.is_some() {
        head += "Content-Type: application/json\r\n";
    }
    let body = request.body.map(Value::to_string);
    send_text(address, request.method, request.path, &head, body.as_deref().unwrap_or(""))
}

/// Sends headers and a body as they are, with the body's length.
pub(crate) fn send_text(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Reply> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n{headers}\r\n"
    );
    exchange(address, format!("{head}{body}").as_bytes())
}

/// Sends bytes and reads the answer.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The server may answer and close before it has read everything.
    let written = stream.write_all(bytes);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    match Reply::parse(&answer) {
        Some(reply) => Ok(reply),
        None => {
            written?;
            read?;
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no whole answer"))
        }
    }
}

/// An answer.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.status, self.body)
    }
}

impl Reply {
    /// A whole answer, `None` for less.
    fn parse(bytes: &[u8]) -> Option<Reply> {
        let answer = std::str::from_utf8(bytes).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers: Vec<_> = lines.filter_map(header).collect();
        let reply = Reply { status, headers, body: body.to_owned() };
        let length = reply.header("content-length").and_then(|length| length.parse().ok());
        (length.is_none_or(|length: usize| length == body.len())).then_some(reply)
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body's req_id.
    pub(crate) fn req_id(&self) -> String {
        text(&self.json()["req_id"]).to_owned()
    }

    /// The body as balances, by symbol.
    pub(crate) fn balances(&self) -> BTreeMap<String, Balance> {
        let side = |value: &Value| {
            (!value.is_null())
                .then(|| units(text(&value["available"])) + units(text(&value["frozen"])))
        };
        let balance = |row: &Value| Balance {
            funding: side(&row["funding"]),
            spot: side(&row["spot"]),
            in_flight: units(text(&row["in_flight"])),
        };
        let json = self.json();
        let rows = json["balances"].as_array().expect("an array");
        rows.iter().map(|row| (text(&row["asset"]).to_owned(), balance(row))).collect()
    }

    /// Status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let json = self.json();
        let code = json["code"].as_str().unwrap_or_else(|| panic!("no refusal: {self:?}"));
        (self.status, code.to_owned())
    }
}

/// What was posted, in its order.
type Bodies = Mutex<Vec<Vec<u8>>>;

/// An address that alerts, or spans, are posted to.
pub(crate) struct Webhook {
    address: SocketAddr,
    bodies: Arc<Bodies>,
}

impl Webhook {
    /// One that takes everything.
    pub(crate) fn start() -> Webhook {
        Webhook::listen(|stream, bodies: &Bodies| {
            let (_, body) = read_request(&stream)?;
            bodies.lock().expect("no panic in a webhook").push(body);
            (&stream)
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        })
    }

    /// One that takes connections, and answers nobody.
    pub(crate) fn silent() -> Webhook {
        Webhook::listen(|stream, _| io::copy(&mut &stream, &mut io::sink()).map(drop))
    }

    fn listen(answer: fn(TcpStream, &Bodies) -> io::Result<()>) -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let bodies: Arc<Bodies> = Arc::default();
        let received = Arc::clone(&bodies);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let bodies = Arc::clone(&received);
                // A caller who is killed over it is what a test may want.
                thread::spawn(move || drop(answer(stream.expect("a connection"), &bodies)));
            }
        });
        Webhook { address, bodies }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/alerts", self.address)
    }

    /// Everything that was posted, in its order.
    pub(crate) fn raw(&self) -> Vec<Vec<u8>> {
        self.bodies.lock().expect("no panic in a webhook").clone()
    }

    /// The same as JSON.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.raw().iter().map(|body| serde_json::from_slice(body).expect("JSON")).collect()
    }
}

/// One delivery of a webhook as it came.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signature: String,
    /// The body to the byte.
    pub(crate) body: String,
    /// The status that it was answered with.
    pub(crate) status: u16,
}

impl Delivered {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// The transfer that it tells of.
    pub(crate) fn req_id(&self) -> String {
        text(&self.json()["req_id"]).to_owned()
    }
}

/// An endpoint that events are posted to, on a fixed address.
pub(crate) struct Endpoint {
    address: SocketAddr,
    delivered: Arc<Mutex<Vec<Delivered>>>,
}

impl Endpoint {
    /// One that answers each delivery with the status that `answer` gives it; 0: it takes it, and closes without a word.
    pub(crate) fn start(answer: impl Fn(&Delivered) -> u16 + Send + Sync + 'static) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let delivered: Arc<Mutex<Vec<Delivered>>> = Arc::default();
        let (received, answer) = (Arc::clone(&delivered), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (received, answer) = (Arc::clone(&received), Arc::clone(&answer));
                thread::spawn(move || {
                    let stream = stream.expect("a connection");
                    // A caller who is killed over it is what a test may want.
                    let Ok((head, body)) = read_request(&stream) else { return };
                    let body = String::from_utf8(body).expect("text");
                    let header = |name: &str| {
                        let named = |line: &&str| line.to_ascii_lowercase().starts_with(name);
                        let line = head.lines().find(named).unwrap_or_default();
                        line.split_once(": ")
                            .map_or_else(String::new, |(_, value)| value.to_owned())
                    };
                    let mut delivery = Delivered {
                        id: header("webhook-id"),
                        timestamp: header("webhook-timestamp"),
                        signature: header("webhook-signature"),
                        body,
                        status: 0,
                    };
                    delivery.status = answer(&delivery);
                    let status = delivery.status;
                    received.lock().expect("no panic in an endpoint").push(delivery);
                    if status > 0 {
                        let location = "Location: /elsewhere\r\n";
                        let said = format!(
                            "HTTP/1.1 {status} So\r\n{location}Content-Length: 0\r\nConnection: close\r\n\r\n"
                        );
                        drop((&stream).write_all(said.as_bytes()));
                    }
                });
            }
        });
        Endpoint { address, delivered }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    /// Everything that was posted, in the order of its answers.
    pub(crate) fn delivered(&self) -> Vec<Delivered> {
        self.delivered.lock().expect("no panic in an endpoint").clone()
    }
}

/// Head and body of one request with a length.
fn read_request(stream: &TcpStream) -> io::Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        head += &line;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((head, body))
}

/// What a stream of events says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    /// An id without an event.
    Position(String),
    /// An event.
    Event { id: String, kind: String, data: Value },
    /// It is alive.
    Beat,
    /// Its end, in order or not.
    End { clean: bool },
}

/// A stream of events, read by a thread of its own until it is dropped.
pub(crate) struct Follower {
    stream: TcpStream,
    told: mpsc::Receiver<Told>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The server may have closed it before.
        drop(self.stream.shutdown(std::net::Shutdown::Both));
    }
}

impl Follower {
    /// Opens a stream behind an event's id, with a token; panics where it is refused.
    pub(crate) fn open(address: SocketAddr, token: &str, after: Option<&str>) -> Follower {
        let stream = Follower::ask(address, token, after);
        let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let count = reader.read_line(&mut head).expect("a head");
            assert_ne!(count, 0, "closed after {head:?}");
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        let (sender, told) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let clean = loop {
                match read_chunk(&mut reader) {
                    Ok(chunk) if chunk.is_empty() => break true,
                    Ok(chunk) => text += &chunk,
                    Err(_) => break false,
                }
                while let Some((block, rest)) = text.split_once("\n\n") {
                    let (said, rest) = (parse_block(block), rest.to_owned());
                    // The test may have heard enough.
                    sender.send(said).ok();
                    text = rest;
                }
            };
            sender.send(Told::End { clean }).ok();
        });
        Follower { stream, told }
    }

    /// Asks for a stream, and reads nothing.
    pub(crate) fn ask(address: SocketAddr, token: &str, after: Option<&str>) -> TcpStream {
        let stream = TcpStream::connect(address).expect("a connection");
        let after = after.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {token}\r\n{after}\r\n"
        );
        (&stream).write_all(request.as_bytes()).expect("sent");
        stream
    }

    /// What it says next.
    pub(crate) fn next(&self) -> Told {
        self.told.recv_timeout(PATIENCE).expect("the stream says something")
    }

    /// The next event: its id, its kind and its data. Heart-beats and positions are passed over.
    pub(crate) fn event(&self) -> (String, String, Value) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "it is alive, and tells no event");
            match self.next() {
                Told::Event { id, kind, data } => return (id, kind, data),
                Told::Beat | Told::Position(_) => {}
                end @ Told::End { .. } => panic!("no event, but {end:?}"),
            }
        }
    }

    /// The next event, which must tell of a transfer: its id and its data.
    pub(crate) fn transfer(&self) -> (String, Value) {
        let (id, kind, data) = self.event();
        assert_eq!((kind.as_str(), &data["event_id"]), ("transfer", &json!(id)), "{data}");
        (id, data)
    }

    /// Everything that it has said and nobody has heard, up to its end where it has one.
    pub(crate) fn rest(&self) -> Vec<Told> {
        self.told.try_iter().collect()
    }
}

/// One chunk of a body, empty at its end.
fn read_chunk(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    String::from_utf8(chunk).map_err(io::Error::other)
}

/// One block of a stream: its fields up to an empty line.
fn parse_block(block: &str) -> Told {
    let field = |name: &str| {
        let start = format!("{name}: ");
        block.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    match (field("event"), field("id"), field("data")) {
        (Some(kind), id, Some(data)) => {
            let data = serde_json::from_str(&data).expect("JSON");
            Told::Event { id: id.unwrap_or_default(), kind, data }
        }
        (None, Some(id), None) => Told::Position(id),
        (None, None, None) if block.starts_with(':') => Told::Beat,
        _ => panic!("no block of a stream: {block:?}"),
    }
}

/// Asserts a refusal.
#[track_caller]
pub(crate) fn assert_refused(reply: &Reply, status: u16, code: &str) {
    let json = reply.json();
    assert_eq!((reply.status, json["code"].as_str()), (status, Some(code)), "{reply:?}");
    for field in ["message", "request_id"] {
        assert!(json[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {reply:?}");
    }
    assert!(json["retryable"].is_boolean(), "{reply:?}");
    assert_eq!(reply.header("x-request-id"), json["request_id"].as_str(), "{reply:?}");
}

/// Runs `work` for each number below `count`, all at once, and returns what each made, in order.
pub(crate) fn crowd<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic in the crowd")).collect()
    })
}

/// The options of an engine with few places, in a data directory.
pub(crate) fn small_engine(data_dir: &Path) -> engine::Options {
    engine::Options {
        log_dir: data_dir.join("wal"),
        snapshot_dir: data_dir.join("snapshots"),
        segment_bytes: 1 << 20,
        spares_ready: 1,
        busy: false,
        cpu: None,
        ring_slots: 64,
        in_flight_max: 32,
        places: Places { accounts_max: 64, outcomes_max: 1_024 },
        idle_mark: Duration::from_millis(10),
    }
}

/// Copies a directory of files.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}

/// Runs `look` again and again on `readers` threads while `work` runs.
pub(crate) fn while_watched<T>(
    readers: usize,
    look: impl Fn() + Sync,
    work: impl FnOnce() -> T,
) -> T {
    /// Set however `work` ends: a reader must not outlive a panic.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    let (look, ended) = (&look, &done);
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    look();
                }
            });
        }
        let _done = Done(&done);
        work()
    })
}

/// Rounds of a test that `make soak` repeats, where it has asked for a number.
pub(crate) fn soak_rounds() -> Option<usize> {
    let rounds = std::env::var("UBSCORE_SOAK_ROUNDS").ok()?;
    Some(rounds.parse().expect("a number of rounds"))
}

/// SplitMix64: the next state's number, mixed; every state is a good one.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
