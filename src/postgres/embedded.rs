//! A PostgreSQL server for one machine, run as a child of ours.
//!
//! The cluster lives in `DATA_DIR/postgres` and outlives every process: a server that a killed
//! parent left behind is adopted by the next [`Embedded::start`]. It listens on a Unix socket in a
//! directory that only its user (and root) can enter, which is what makes `trust` safe there.
//!
//! The server gets its cluster as an open directory (descriptor 9), never as a path. So the data
//! directory may lie where the server's user cannot go (below a home directory of mode 0700), and
//! its path may be of any length.

pub mod programs;

mod cluster;
mod socket;
mod user;

use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal};
use tokio::process::Child;
use tokio::time::{sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use tracing::{debug, info, warn};

use self::cluster::{CLUSTER_ARGUMENT, child_command, open_directory};
use self::programs::{Binaries, find_binaries};
use self::socket::PORT;
use self::user::{ServerUser, change_owner};

/// The superuser role and the database that `start` provides.
const ROLE: &str = "postgres";
const DATABASE: &str = "ubscore";

/// Crash recovery of up to `max_wal_size` happens within this time on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(180);
/// A fast shutdown writes one checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// A server that was just born when its parent died has made its socket by then.
const SOCKET_LIMIT: Duration = Duration::from_secs(5);
/// Another process creating the cluster needs a few seconds.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The server itself waits seconds before it calls the template database in use.
const CREATE_ATTEMPTS_MAX: u32 = 5;
const POLL: Duration = Duration::from_millis(20);
/// Between two looks whether a server that is not our child still runs.
const LOOK: Duration = Duration::from_secs(1);

/// The server's log moves to `postgres.log.1` at the next start after it has grown this large.
const LOG_BYTES_MAX: u64 = 16 << 20;
/// How much of the log an error quotes.
const LOG_TAIL_BYTES: usize = 4096;

/// Server settings that do not depend on [`Options`]. They are given on the command line, so that
/// an existing cluster follows a newer binary of ours. Durability is spelled out: it is the point.
const SETTINGS: &[&str] = &[
    "fsync=on",
    "full_page_writes=on",
    "synchronous_commit=on",
    "wal_compression=on",
    // Fewer checkpoints, hence fewer full-page images; bounds the disk and the recovery time.
    "max_wal_size=2GB",
    "checkpoint_timeout=15min",
    "autovacuum=on",
    // Every statement of ours is short.
    "jit=off",
    "listen_addresses=",
    "unix_socket_permissions=0700",
    "logging_collector=off",
    "log_timezone=UTC",
    "timezone=UTC",
    "cluster_name=ubscore",
];

/// Why there is no server, or why it did not stop.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing on this machine looks like a PostgreSQL server. The user must install one.
    #[error("no PostgreSQL server (initdb, postgres) on this machine; install it: {install}")]
    Missing {
        /// The command that installs one here.
        install: String,
    },

    /// The folder the user named is not one with a server's programs.
    #[error(
        "{} does not hold working `initdb` and `postgres`; name another folder, or install them: \
         {install}", directory.display()
    )]
    NotBinaries {
        /// The folder.
        directory: PathBuf,
        /// The command that installs a server here.
        install: String,
    },

    /// The cluster needs another major version than any found. Nothing was touched.
    #[error(
        "the cluster was made by PostgreSQL {cluster_major}, and only {found:?} was found; install \
         version {cluster_major}, or name its folder"
    )]
    Version {
        /// The major version that made it.
        cluster_major: u32,
        /// The major versions on this machine.
        found: Vec<u32>,
    },

    /// A client's program is missing, or is older than the server.
    #[error(
        "no {program} of PostgreSQL {at_least} or later on this machine (found: {found:?}); install \
         it: {install}"
    )]
    Program {
        /// The program.
        program: &'static str,
        /// The major version that will do.
        at_least: u32,
        /// The major versions on this machine.
        found: Vec<u32>,
        /// The command that installs it here.
        install: String,
    },

    /// PostgreSQL refuses to run as root, and there is no user to run it as.
    #[error(
        "running as root, and /etc/passwd has neither `postgres` nor `nobody` to run PostgreSQL as"
    )]
    NoUser,

    /// The cluster belongs to another user, so its server cannot run as us.
    #[error("{} belongs to user {owner}, and this process is user {user}", cluster.display())]
    Owner {
        /// The cluster's folder.
        cluster: PathBuf,
        /// The numeric user that owns it.
        owner: u32,
        /// The numeric user we are.
        user: u32,
    },

    /// The socket's directory could be under somebody else's control. It must be removed.
    #[error(
        "refusing the socket directory {}: it has owner {owner} and mode {mode:04o}, and must \
         have owner {owner_expected} and mode 0700; remove it", directory.display()
    )]
    SocketDirectory {
        /// The directory.
        directory: PathBuf,
        /// Its numeric owner.
        owner: u32,
        /// Its permission bits.
        mode: u32,
        /// The numeric user the server runs as.
        owner_expected: u32,
    },

    /// Another process is creating or starting the same cluster. Try again later.
    #[error("another process is at work on {}", path.display())]
    Busy {
        /// The lock file, or the folder of the cluster to be.
        path: PathBuf,
    },

    /// A file operation failed.
    #[error("{action} {}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: io::Error,
    },

    /// A program could not be run at all.
    #[error("run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },

    /// `initdb` failed. No cluster is left behind.
    #[error("initdb: {status}\n{output}")]
    Initdb {
        /// How it ended.
        status: ExitStatus,
        /// The end of what it printed.
        output: String,
    },

    /// The server ended while starting. The cluster is untouched by us; the log says why.
    #[error("postgres ended while starting: {status}\n{log_tail}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The end of its log.
        log_tail: String,
    },

    /// The server does not answer yet. It is left running, since it may be recovering.
    #[error("postgres did not answer within {} s\n{log_tail}", limit.as_secs())]
    NotReady {
        /// How long we waited.
        limit: Duration,
        /// The end of its log.
        log_tail: String,
    },

    /// The database `ubscore` could not be created or reached.
    #[error("create database {DATABASE}")]
    Database(#[from] tokio_postgres::Error),

    /// The server could not be signalled. It still runs.
    #[error("signal postgres, process {pid}")]
    Signal {
        /// The server's process.
        pid: i32,
        /// Why.
        #[source]
        source: io::Error,
    },

    /// The server was told to stop and has not. It still runs, and will stop when it can.
    #[error("postgres, process {pid}, did not stop within {} s", limit.as_secs())]
    NotStopped {
        /// The server's process.
        pid: i32,
        /// How long we waited.
        limit: Duration,
    },
}

/// What the server is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// ubscore's data directory; made when absent. The cluster is `postgres` in it, the server's
    /// log `postgres.log`.
    pub data_dir: PathBuf,
    /// The folder with `initdb` and `postgres`; searched for when absent.
    pub postgres_bin: Option<PathBuf>,
    /// Connections the server admits, ours and those of people who look.
    pub connections_max: u16,
    /// The server's page cache, in MiB.
    pub shared_buffers_mib: u32,
}

impl Options {
    /// The defaults for one small machine: 50 connections, 128 MiB of shared buffers.
    pub fn new(data_dir: impl Into<PathBuf>) -> Options {
        Options {
            data_dir: data_dir.into(),
            postgres_bin: None,
            connections_max: 50,
            shared_buffers_mib: 128,
        }
    }
}

/// A server that runs and answers. Dropping it leaves the server running, as a kill of this
/// process would; [`Embedded::stop`] ends it.
#[derive(Debug)]
pub struct Embedded {
    pid: i32,
    socket_directory: PathBuf,
    cluster: PathBuf,
    /// Ours to reap; absent when the server was adopted.
    child: Option<Child>,
}

impl Embedded {
    /// Brings up the server of `options.data_dir`: creates the cluster when there is none, adopts
    /// the server when one runs with these options, restarts it when its options differ, and
    /// starts it otherwise. Returns when the database `ubscore` exists and can be reached.
    ///
    /// Must not be called while another ubscore uses the same data directory: it may restart the
    /// server under it.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::NotBinaries`], [`Error::Version`]: no suitable server is
    /// installed. [`Error::NoUser`], [`Error::Owner`], [`Error::SocketDirectory`]: refused, a
    /// person must decide. [`Error::Ended`], [`Error::Initdb`]: the server's own words say why.
    /// [`Error::NotReady`], [`Error::Busy`]: may be tried again. [`Error::File`],
    /// [`Error::Spawn`], [`Error::Signal`], [`Error::NotStopped`], [`Error::Database`]: our
    /// surroundings failed.
    pub async fn start(options: &Options) -> Result<Embedded, Error> {
        let data_dir = &options.data_dir;
        fs::create_dir_all(data_dir).map_err(file("create", data_dir))?;
        let data_dir = data_dir.canonicalize().map_err(file("resolve", data_dir))?;
        let cluster = data_dir.join("postgres");
        // First, since another user's lock and cluster could not be opened, and would say less.
        let user = ServerUser::choose(&cluster)?;
        // Two starts at once would both create the cluster. Released at return or death.
        let _lock = lock(&data_dir.join("postgres.lock")).await?;

        let cluster_major = cluster::major(&cluster)?;
        let binaries = find_binaries(options.postgres_bin.as_deref(), cluster_major).await?;
        if cluster_major.is_none() {
            cluster::create(&binaries, &data_dir, &cluster, user).await?;
        }
        let server = Server::new(options, binaries, data_dir, cluster, user)?;
        let embedded = server.bring_up().await?;
        create_database(&config(&embedded.socket_directory)).await?;
        Ok(embedded)
    }

    /// How to connect: the socket, the superuser `postgres`, the database `ubscore`.
    pub fn config(&self) -> tokio_postgres::Config {
        let mut config = config(&self.socket_directory);
        config.dbname(DATABASE);
        config
    }

    /// The same as a URL, for people, `psql` and tests.
    pub fn url(&self) -> String {
        // The directory's name is ours: a slash, letters, digits and hyphens need no escape.
        format!("postgresql:///{DATABASE}?host={}&user={ROLE}", self.socket_directory.display())
    }

    /// The server's process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the server was already running. A command that only looks must then leave it so.
    pub fn is_adopted(&self) -> bool {
        self.child.is_none()
    }

    /// Returns when the server's process has ended by itself, with how.
    pub async fn died(&mut self) -> String {
        match &mut self.child {
            Some(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
            None => {
                while is_running(self.pid, &self.socket_directory) {
                    sleep(LOOK).await;
                }
                "it was no child of ours".to_owned()
            }
        }
    }

    /// Stops the server: open transactions are rolled back, connections closed, a checkpoint
    /// written. Returns when its process has ended; a server that has died before is fine.
    ///
    /// # Errors
    /// [`Error::Signal`]: it could not be told. [`Error::NotStopped`]: it was told, and had not
    /// stopped after a minute.
    pub async fn stop(mut self) -> Result<(), Error> {
        let pid = self.pid;
        match &mut self.child {
            Some(child) => {
                let ended = |source| Error::Signal { pid, source };
                if let Some(status) = child.try_wait().map_err(ended)? {
                    // Its pid may be somebody else's by now: send nothing.
                    warn!(pid, %status, "the embedded postgres had already ended");
                } else {
                    interrupt(pid)?;
                    timeout(STOP_LIMIT, child.wait())
                        .await
                        .map_err(|_| Error::NotStopped { pid, limit: STOP_LIMIT })?
                        .map_err(ended)?;
                }
            }
            None => stop_process(pid, &self.socket_directory).await?,
        }
        socket::remove_directory(&self.socket_directory);
        info!(pid, cluster = %self.cluster.display(), "embedded postgres stopped");
        Ok(())
    }
}

/// A server that may or may not run: what it is to be run with.
struct Server {
    binaries: Binaries,
    cluster: PathBuf,
    user: ServerUser,
    log: PathBuf,
    socket_directory: PathBuf,
    /// Everything after the program's name.
    arguments: Vec<String>,
}

/// What the cluster's pid file says.
#[derive(Debug)]
enum Holder {
    /// No server, or one PostgreSQL itself will see to be dead, or one that is not ours to judge.
    Unknown,
    /// The number is a zombie's or some other program's: left by a crash, and in PostgreSQL's way.
    Stale,
    /// Our server runs.
    Ours { pid: i32, same_arguments: bool },
}

impl Server {
    fn new(
        options: &Options,
        binaries: Binaries,
        data_dir: PathBuf,
        cluster: PathBuf,
        user: ServerUser,
    ) -> Result<Server, Error> {
        let metadata = fs::metadata(&cluster).map_err(file("inspect", &cluster))?;
        if user.drop && metadata.uid() != user.user {
            change_owner(&cluster, user)?;
        }
        let socket_directory = socket::directory(&metadata, user);
        let mut settings: Vec<String> =
            SETTINGS.iter().map(|setting| (*setting).to_owned()).collect();
        settings.push(format!("port={PORT}"));
        settings.push(socket::setting(&socket_directory));
        settings.push(format!("max_connections={}", options.connections_max));
        settings.push(format!("shared_buffers={}MB", options.shared_buffers_mib));
        let mut arguments = vec!["-D".to_owned(), CLUSTER_ARGUMENT.to_owned()];
        arguments.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        let log = data_dir.join("postgres.log");
        Ok(Server { binaries, cluster, user, log, socket_directory, arguments })
    }

    /// Adopts, restarts or starts the server, and waits until it answers.
    async fn bring_up(&self) -> Result<Embedded, Error> {
        socket::make_directory(&self.socket_directory, self.user)?;
        let log_start = self.rotate_log()?;
        timeout(START_LIMIT, self.bring_up_without_limit(log_start)).await.unwrap_or_else(|_| {
            Err(Error::NotReady { limit: START_LIMIT, log_tail: self.log_since(log_start) })
        })
    }

    async fn bring_up_without_limit(&self, log_start: u64) -> Result<Embedded, Error> {
        // Bounded by the caller. Each further turn means that another server of this cluster was
        // in the way and has been stopped, is ending, or is to be adopted.
        loop {
            match self.holder()? {
                Holder::Ours { pid, same_arguments: true } if self.socket_appears().await => {
                    if self.wait_ready(|| Ok(is_running(pid, &self.socket_directory))).await? {
                        info!(pid, "adopted the embedded postgres that was running");
                        return Ok(self.embedded(pid, None));
                    }
                    continue;
                }
                Holder::Ours { pid, same_arguments } => {
                    info!(pid, same_arguments, "restarting the embedded postgres");
                    stop_process(pid, &self.socket_directory).await?;
                }
                Holder::Stale => self.clear_stale()?,
                Holder::Unknown => {}
            }
            let (mut child, pid) = self.spawn()?;
            let signal = |source| Error::Signal { pid, source };
            let ready = self.wait_ready(|| Ok(child.try_wait().map_err(signal)?.is_none())).await?;
            // A server that was just born when its parent died may have won the race for the pid
            // file: then it is the one that answers, and ours ends by itself.
            if let Holder::Ours { pid: winner, .. } = self.holder()?
                && winner != pid
            {
                continue;
            }
            if ready {
                info!(pid, cluster = %self.cluster.display(), "embedded postgres started");
                return Ok(self.embedded(pid, Some(child)));
            }
            let log_tail = self.log_since(log_start);
            // The children of a killed server take a moment to notice.
            if !log_tail.contains("pre-existing shared memory block") {
                socket::remove_directory(&self.socket_directory);
                let status = child.wait().await.map_err(signal)?;
                return Err(Error::Ended { status, log_tail });
            }
            sleep(POLL * 10).await;
        }
    }

    fn embedded(&self, pid: i32, child: Option<Child>) -> Embedded {
        Embedded {
            pid,
            socket_directory: self.socket_directory.clone(),
            cluster: self.cluster.clone(),
            child,
        }
    }

    fn spawn(&self) -> Result<(Child, i32), Error> {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(&self.log)
            .map_err(file("open", &self.log))?;
        let postgres = self.binaries.program("postgres");
        let cluster = open_directory(&self.cluster, OFlags::empty())?;
        let child = child_command(&postgres, cluster, self.user)
            // `-D` is there already.
            .args(&self.arguments[2..])
            // A Ctrl-C in the terminal is for us; we stop the server after our last commit.
            .process_group(0)
            .stdout(log.try_clone().map_err(file("open", &self.log))?)
            .stderr(log)
            .spawn()
            .map_err(|source| Error::Spawn { program: postgres, source })?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        Ok((child, pid.expect("a child nobody has waited for has a number")))
    }

    fn holder(&self) -> Result<Holder, Error> {
        let path = self.cluster.join("postmaster.pid");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Holder::Unknown),
            Err(error) => return Err(file("read", &path)(error)),
        };
        let Some(pid) = text.lines().next().and_then(|line| line.trim().parse().ok()) else {
            return Ok(Holder::Unknown);
        };
        let Some(arguments) = process_arguments(pid) else { return Ok(Holder::Unknown) };
        if is_ours(&arguments, &self.socket_directory) {
            let same_arguments = arguments.get(1..) == Some(&self.arguments[..]);
            return Ok(Holder::Ours { pid, same_arguments });
        }
        // Somebody may run this very cluster by hand: then PostgreSQL must refuse, not we decide.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if arguments.is_empty() || name.trim_end() != "postgres" {
            return Ok(Holder::Stale);
        }
        let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
        let cluster = identity(&self.cluster).map_err(file("inspect", &self.cluster))?;
        match identity(Path::new(&format!("/proc/{pid}/cwd"))) {
            Ok(directory) if directory != cluster => Ok(Holder::Stale),
            _ => Ok(Holder::Unknown),
        }
    }

    /// Removes what a dead server left and PostgreSQL takes for a living one.
    fn clear_stale(&self) -> Result<(), Error> {
        let socket = socket::path(&self.socket_directory);
        let socket_lock = socket.with_extension(format!("{PORT}.lock"));
        for path in [self.cluster.join("postmaster.pid"), socket_lock, socket] {
            match fs::remove_file(&path) {
                Ok(()) => warn!(path = %path.display(), "removed what a dead postgres left"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(file("remove", &path)(error)),
            }
        }
        Ok(())
    }

    async fn socket_appears(&self) -> bool {
        let socket = socket::path(&self.socket_directory);
        timeout(SOCKET_LIMIT, async {
            while !socket.exists() {
                sleep(POLL).await;
            }
        })
        .await
        .is_ok()
    }

    /// Connects until that succeeds (`true`) or `is_alive` says no (`false`). A server that
    /// recovers refuses connections until it is done.
    async fn wait_ready(
        &self,
        mut is_alive: impl FnMut() -> Result<bool, Error>,
    ) -> Result<bool, Error> {
        let mut config = config(&self.socket_directory);
        config.dbname("postgres");
        while is_alive()? {
            match connect(&config).await {
                Ok(_) => return Ok(true),
                Err(error) => debug!(%error, "the embedded postgres does not answer yet"),
            }
            sleep(POLL).await;
        }
        Ok(false)
    }

    /// Moves a large log aside; returns where what is written from now on begins, in bytes.
    fn rotate_log(&self) -> Result<u64, Error> {
        let length = match fs::metadata(&self.log) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(file("inspect", &self.log)(error)),
        };
        if length < LOG_BYTES_MAX {
            return Ok(length);
        }
        // A server we are about to adopt goes on writing to the renamed file, which is harmless.
        let old = self.log.with_extension("log.1");
        fs::rename(&self.log, &old).map_err(file("move the log to", &old))?;
        Ok(0)
    }

    /// The end of what was logged after byte `start`, for an error's text.
    fn log_since(&self, start: u64) -> String {
        let read = || {
            let mut bytes = Vec::new();
            let mut log = fs::File::open(&self.log)?;
            log.seek(SeekFrom::Start(start))?;
            log.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(tail(&bytes))
        };
        read().unwrap_or_else(|error| format!("(log {} unreadable: {error})", self.log.display()))
    }
}

fn config(socket_directory: &Path) -> tokio_postgres::Config {
    let mut config = tokio_postgres::Config::new();
    config.host_path(socket_directory).port(PORT).user(ROLE).connect_timeout(CONNECT_LIMIT);
    config
}

async fn connect(config: &tokio_postgres::Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "connection to the embedded postgres ended");
        }
    });
    Ok(client)
}

async fn create_database(server: &tokio_postgres::Config) -> Result<(), Error> {
    let mut config = server.clone();
    let client = connect(config.dbname("postgres")).await?;
    let known = "SELECT FROM pg_database WHERE datname = $1";
    // The statement of a killed parent runs on without it. Ours then waits for that one or is
    // refused, and finds the database at the next look.
    let mut attempts_left = CREATE_ATTEMPTS_MAX;
    while client.query_opt(known, &[&DATABASE]).await?.is_none() {
        match client.batch_execute(&format!("CREATE DATABASE {DATABASE}")).await {
            Err(error) if attempts_left > 0 && is_creation_race(&error) => {
                attempts_left -= 1;
                sleep(POLL).await;
            }
            done => return Ok(done?),
        }
    }
    Ok(())
}

/// Whether another session is creating the same database, or has just done so.
fn is_creation_race(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        [SqlState::DUPLICATE_DATABASE, SqlState::UNIQUE_VIOLATION, SqlState::OBJECT_IN_USE]
            .contains(code)
    })
}

/// A process's command line, empty for a zombie; `None` when there is no such process. Unlike its
/// working directory, it may be read without the right to trace it, which root in a container lacks.
fn process_arguments(pid: i32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8_lossy(&text);
    Some(text.split_terminator('\0').map(str::to_owned).collect())
}

/// How to connect to the server of a data directory, if one runs. Starts nothing, and changes nothing.
pub fn running(data_dir: &Path) -> Option<tokio_postgres::Config> {
    let text = fs::read_to_string(data_dir.join("postgres").join("postmaster.pid")).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    // The fifth line, as PostgreSQL writes it.
    let socket_directory = PathBuf::from(lines.nth(3)?);
    is_running(pid, &socket_directory).then(|| {
        let mut config = config(&socket_directory);
        config.dbname(DATABASE);
        config
    })
}

/// Whether a process with these arguments is the server of the cluster with this socket directory,
/// whose name no other cluster has.
fn is_ours(arguments: &[String], socket_directory: &Path) -> bool {
    arguments.contains(&socket::setting(socket_directory))
}

fn is_running(pid: i32, socket_directory: &Path) -> bool {
    process_arguments(pid).is_some_and(|arguments| is_ours(&arguments, socket_directory))
}

/// Stops a server that is not our child, and waits for its end.
async fn stop_process(pid: i32, socket_directory: &Path) -> Result<(), Error> {
    if is_running(pid, socket_directory) {
        interrupt(pid)?;
    }
    timeout(STOP_LIMIT, async {
        while is_running(pid, socket_directory) {
            sleep(POLL).await;
        }
    })
    .await
    .map_err(|_| Error::NotStopped { pid, limit: STOP_LIMIT })
}

/// Asks for PostgreSQL's "fast" shutdown. A process that is gone has nothing left to do.
fn interrupt(pid: i32) -> Result<(), Error> {
    let Some(process) = Pid::from_raw(pid) else { return Ok(()) };
    match rustix::process::kill_process(process, Signal::INT) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(Error::Signal { pid, source: error.into() }),
    }
}

async fn lock(path: &Path) -> Result<fs::File, Error> {
    let held = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(file("open", path))?;
    let locked = timeout(LOCK_LIMIT, async {
        loop {
            match held.try_lock() {
                Ok(()) => return Ok(()),
                Err(fs::TryLockError::WouldBlock) => sleep(POLL).await,
                Err(fs::TryLockError::Error(error)) => return Err(file("lock", path)(error)),
            }
        }
    });
    locked.await.map_err(|_| Error::Busy { path: path.to_owned() })??;
    Ok(held)
}

/// The last [`LOG_TAIL_BYTES`] of a text, from a line's begin.
fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(LOG_TAIL_BYTES);
    let text = String::from_utf8_lossy(&bytes[start..]);
    let whole_lines = match text.split_once('\n') {
        Some((_, rest)) if start > 0 => rest,
        _ => &text,
    };
    whole_lines.trim_end().to_owned()
}

/// Names the action and the path of a failed file operation.
fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { action, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustix::fs::Mode;

    use super::*;

    /// A folder of mode 0700, as a home directory is, and a data directory in it whose path is
    /// longer than a socket's may be.
    fn private_deep_data_dir() -> (tempfile::TempDir, Options) {
        let home = tempfile::tempdir().expect("a temporary folder");
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o700)).expect("ours");
        let data_dir = home.path().join("d".repeat(75)).join("e".repeat(75));
        let options = Options { shared_buffers_mib: 8, ..Options::new(data_dir) };
        (home, options)
    }

    async fn start(options: &Options) -> Embedded {
        Embedded::start(options).await.unwrap_or_else(|error| panic!("{error}: {error:?}"))
    }

    async fn client(embedded: &Embedded) -> Client {
        connect(&embedded.config()).await.expect("the server answers")
    }

    async fn rows(embedded: &Embedded) -> i64 {
        let query = "SELECT count(*) FROM kept";
        client(embedded).await.query_one(query, &[]).await.expect("the table is there").get(0)
    }

    /// Goal: the cluster outlives its parent, and a server that is there is used. Method: start,
    /// write, forget the handle as a kill would, start again, stop, start again.
    #[tokio::test]
    async fn a_server_is_adopted_after_a_kill_and_started_after_a_stop() {
        let (_home, mut options) = private_deep_data_dir();
        let first = start(&options).await;
        assert!(!first.is_adopted());
        let pid = first.pid();
        let write = "CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)";
        client(&first).await.batch_execute(write).await.expect("the database is writable");
        std::mem::forget(first);

        let second = start(&options).await;
        assert!(second.is_adopted());
        assert_eq!(second.pid(), pid);
        assert_eq!(rows(&second).await, 1);
        let parsed: tokio_postgres::Config = second.url().parse().expect("the URL is one");
        connect(&parsed).await.expect("the URL leads to the server");

        // Another option: the server must not go on with the old one.
        options.connections_max = 40;
        let third = start(&options).await;
        assert!(!third.is_adopted());
        let shown = client(&third).await.query_one("SHOW max_connections", &[]).await;
        assert_eq!(shown.expect("SHOW works").get::<_, &str>(0), "40");

        let socket_directory = third.socket_directory.clone();
        third.stop().await.expect("it stops");
        assert!(!socket_directory.exists());
        let fourth = start(&options).await;
        assert!(!fourth.is_adopted());
        assert_eq!(rows(&fourth).await, 1);
        std::mem::forget(fourth);
        // An adopted server stops too, though nobody reaps it here: it stays as a zombie.
        start(&options).await.stop().await.expect("an adopted server stops");
    }

    /// Goal: neither a crash of the server nor the removal of its data keeps the next one from
    /// starting. Method: kill it with its pid file in place (its zombie keeps the number in use);
    /// lose its socket; remove the data directory under a running server.
    #[tokio::test]
    async fn remains_of_a_dead_server_are_not_in_the_way() {
        let (home, options) = private_deep_data_dir();
        let first = start(&options).await;
        client(&first).await.batch_execute("CREATE TABLE kept (n int)").await.expect("writable");
        let kill = |embedded: &Embedded| {
            let pid = Pid::from_raw(embedded.pid()).expect("a process");
            rustix::process::kill_process(pid, Signal::KILL).expect("it runs");
        };
        kill(&first);
        std::mem::forget(first);
        let second = start(&options).await;
        assert!(!second.is_adopted());
        assert_eq!(rows(&second).await, 0);

        fs::remove_dir_all(&second.socket_directory).expect("the directory is there");
        let second_pid = second.pid();
        std::mem::forget(second);
        let third = start(&options).await;
        assert_ne!(third.pid(), second_pid);
        assert_eq!(rows(&third).await, 0);

        fs::remove_dir_all(&options.data_dir).expect("the data is there");
        let fourth = start(&options).await;
        let known = "SELECT to_regclass('kept') IS NULL";
        let fresh = client(&fourth).await.query_one(known, &[]).await.expect("it answers");
        assert!(fresh.get::<_, bool>(0));
        fourth.stop().await.expect("it stops");
        kill(&third);
        fs::remove_dir_all(&third.socket_directory).expect("the directory is there");
        drop(home);
    }

    /// Goal: a first start that was killed does not spoil the second, though its children live on.
    /// Method: play the `initdb` that still writes and the `CREATE DATABASE` that still runs.
    /// Story: kills at many moments of a first start once gave "directory not empty" and
    /// "duplicate key".
    #[tokio::test]
    async fn a_killed_first_start_is_done_over() {
        let (_home, options) = private_deep_data_dir();
        let staging = options.data_dir.join("postgres.new").join("base");
        fs::create_dir_all(&staging).expect("the name is free");
        let orphan = std::thread::spawn(move || {
            let folder = open_directory(&staging, OFlags::empty()).expect("it is there");
            let flags = OFlags::CREATE | OFlags::WRONLY;
            let mut files = 0_u32;
            // As a server does that makes its files; without the sync no removal could keep up.
            while let Ok(file) = rustix::fs::openat(&folder, files.to_string(), flags, Mode::RUSR)
                && rustix::fs::fsync(file).is_ok()
            {
                files += 1;
            }
            files
        });
        let embedded = start(&options).await;
        assert!(orphan.join().expect("it ends when its folder is gone") > 0);

        let server = config(&embedded.socket_directory);
        let other = connect(server.clone().dbname("postgres")).await.expect("it answers");
        other.batch_execute("DROP DATABASE ubscore").await.expect("nobody is in it");
        let creations = tokio::join!(create_database(&server), create_database(&server));
        creations.0.expect("either creates it");
        creations.1.expect("or finds it");
        client(&embedded).await;
        embedded.stop().await.expect("it stops");
    }

    /// Goal: nobody can have the server listen where others can enter. Method: learn the
    /// directory's name, open it to others while the server is down.
    #[tokio::test]
    async fn a_planted_socket_directory_is_refused() {
        let (_home, options) = private_deep_data_dir();
        let first = start(&options).await;
        let planted = first.socket_directory.clone();
        first.stop().await.expect("it stops");
        fs::create_dir(&planted).expect("the name is free");
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o777)).expect("it is ours");
        let error = Embedded::start(&options).await.expect_err("refused");
        assert!(matches!(error, Error::SocketDirectory { mode: 0o777, .. }), "{error:?}");
        fs::remove_dir(&planted).expect("it is empty");
        std::os::unix::fs::symlink("/", &planted).expect("the name is free");
        let error = Embedded::start(&options).await.expect_err("refused");
        assert!(matches!(error, Error::File { action: "open", .. }), "{error:?}");
        fs::remove_file(&planted).expect("it is a link");
    }

    #[tokio::test]
    async fn the_words_of_a_failing_initdb_and_postgres_reach_the_error() {
        let (home, mut options) = private_deep_data_dir();
        options.connections_max = 0;
        let error = Embedded::start(&options).await.expect_err("no server has 0 connections");
        assert!(matches!(error, Error::Ended { .. }), "{error:?}");
        assert!(error.to_string().contains("max_connections"), "{error}");

        let bin = home.path().join("bin");
        fs::create_dir(&bin).expect("the name is free");
        for (name, script) in [
            ("postgres", "echo 'postgres (PostgreSQL) 15.1'"),
            ("initdb", "[ \"$1\" = --version ] || { echo disk on fire >&2; exit 3; }"),
        ] {
            let path = bin.join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("writable");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        }
        // The server's user must reach the programs, unlike the cluster.
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o711)).expect("ours");
        let options =
            Options { postgres_bin: Some(bin), ..Options::new(home.path().join("another")) };
        let error = Embedded::start(&options).await.expect_err("initdb fails");
        assert!(
            matches!(&error, Error::Initdb { output, .. } if output == "disk on fire"),
            "{error}"
        );
        assert!(!options.data_dir.join("postgres").exists());
        assert!(!options.data_dir.join("postgres.new").exists());
    }

    #[test]
    fn an_error_quotes_the_end_of_a_log_by_whole_lines() {
        assert_eq!(tail(b"one\ntwo\n"), "one\ntwo");
        let long = format!("{}\nlast\n", "x".repeat(LOG_TAIL_BYTES));
        assert_eq!(tail(long.as_bytes()), "last");
    }
}
