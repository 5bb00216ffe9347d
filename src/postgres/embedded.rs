//! A PostgreSQL server for one machine, run as a child of ours.
//!
//! The cluster lives in `DATA_DIR/postgres` and outlives every process: a server that a killed
//! parent left behind is adopted by the next [`Embedded::start`]. It listens on a Unix socket in a
//! directory that only its user (and root) can enter, which is what makes `trust` safe there.
//!
//! The server gets its cluster as an open directory (descriptor 9), never as a path. So the data
//! directory may lie where the server's user cannot go (below a home directory of mode 0700), and
//! its path may be of any length.

use std::{
    fs, io,
    io::{Read as _, Seek as _, SeekFrom},
    os::{
        fd::OwnedFd,
        unix::fs::{
            DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal},
};
use tokio::{
    process::{Child, Command},
    time::{sleep, timeout},
};
use tokio_postgres::{Client, NoTls, error::SqlState};
use tracing::{debug, info, warn};

/// The superuser role and the database that `start` provides.
const ROLE: &str = "postgres";
const DATABASE: &str = "ubscore";
/// Only names the socket file: the server has no TCP listener.
const PORT: u16 = 5432;

/// How the server names the open directory it inherits.
const CLUSTER_ARGUMENT: &str = "/proc/self/fd/9";
/// Moves the directory from standard input, the only descriptor the standard library passes on, to
/// one that neither `initdb` nor its children use for themselves.
const INHERIT_CLUSTER: &str = r#"exec 9<&0 </dev/null && exec "$@""#;

/// The kernel refuses a socket path of 108 bytes or more.
const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Where the socket's directory is made: short, and on every system.
const SOCKET_PARENT: &str = "/tmp";

/// Crash recovery of up to `max_wal_size` happens within this time on a slow disk.
const START_LIMIT: Duration = Duration::from_secs(180);
/// A fast shutdown writes one checkpoint.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// A server that was just born when its parent died has made its socket by then.
const SOCKET_LIMIT: Duration = Duration::from_secs(5);
/// Another process creating the cluster needs a few seconds.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// An `initdb` whose folder is being removed fails at its next file.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// The server itself waits seconds before it calls the template database in use.
const CREATE_ATTEMPTS_MAX: u32 = 5;
const POLL: Duration = Duration::from_millis(20);

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

/// Where systems put the server's programs: a folder, the prefix of an entry in it that ends with
/// the major version, and the folder inside that entry.
const VERSIONED_DIRECTORIES: &[(&str, &str, &str)] = &[
    ("/usr/lib/postgresql", "", "bin"),
    ("/usr", "pgsql-", "bin"),
    ("/usr/lib", "postgresql", "bin"),
    ("/usr/libexec", "postgresql", ""),
    ("/home/linuxbrew/.linuxbrew/opt", "postgresql@", "bin"),
    ("/opt/homebrew/opt", "postgresql@", "bin"),
];
const PLAIN_DIRECTORIES: &[&str] = &["/usr/local/pgsql/bin"];

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
    #[error("{deed} {}", path.display())]
    File {
        /// What was attempted.
        deed: &'static str,
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

        let cluster_major = cluster_major(&cluster)?;
        let binaries = find_binaries(options.postgres_bin.as_deref(), cluster_major).await?;
        if cluster_major.is_none() {
            create_cluster(&binaries, &data_dir, &cluster, user).await?;
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
        remove_socket_directory(&self.socket_directory);
        info!(pid, cluster = %self.cluster.display(), "embedded postgres stopped");
        Ok(())
    }
}

/// The programs of one PostgreSQL installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binaries {
    /// Their folder; absent where they are found by PATH.
    directory: Option<PathBuf>,
    /// The major version, such as 15.
    major: u32,
}

impl Binaries {
    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    fn program(&self, name: &str) -> PathBuf {
        program(self.directory.as_deref(), name)
    }
}

/// Finds `initdb` and `postgres`: in `postgres_bin` alone when given, else in the folder that
/// `pg_config` names, by PATH, then in the usual folders, newest first.
///
/// `cluster_major`: the version of an existing cluster, which only the same one can open.
///
/// # Errors
/// [`Error::NotBinaries`]: `postgres_bin` has none. [`Error::Missing`]: there are none, and how to
/// install them. [`Error::Version`]: none of the right version.
pub async fn find_binaries(
    postgres_bin: Option<&Path>,
    cluster_major: Option<u32>,
) -> Result<Binaries, Error> {
    let candidates = match postgres_bin {
        Some(directory) => {
            // The children run elsewhere, so a relative folder would not be found again.
            vec![Some(directory.canonicalize().unwrap_or_else(|_| directory.to_owned()))]
        }
        None => candidate_directories().await,
    };
    let mut found = Vec::new();
    for directory in candidates {
        let Some(major) = probe(directory.as_deref()).await else { continue };
        if cluster_major.is_none_or(|wanted| wanted == major) {
            return Ok(Binaries { directory, major });
        }
        found.push(major);
    }
    found.sort_unstable();
    found.dedup();
    match (cluster_major, postgres_bin) {
        (Some(cluster_major), _) if !found.is_empty() => {
            Err(Error::Version { cluster_major, found })
        }
        (_, Some(directory)) => Err(Error::NotBinaries {
            directory: directory.to_owned(),
            install: install_here(Package::Server),
        }),
        (_, None) => Err(Error::Missing { install: install_here(Package::Server) }),
    }
}

/// Finds a client's program, such as `pg_dump`: of this major version, or else the next later one, since none can read what
/// is newer than itself. Looks where [`find_binaries`] does.
///
/// # Errors
/// [`Error::Program`]: there is none, and how to install it.
pub async fn find_program(
    program: &'static str,
    postgres_bin: Option<&Path>,
    at_least: u32,
) -> Result<PathBuf, Error> {
    let candidates = match postgres_bin {
        Some(directory) => vec![Some(directory.to_owned())],
        None => candidate_directories().await,
    };
    let (mut best, mut found) = (None, Vec::new());
    for directory in candidates {
        let path = self::program(directory.as_deref(), program);
        let Some(major) = output_of(&path, "--version").await.as_deref().and_then(major_of) else {
            continue;
        };
        found.push(major);
        if major >= at_least && best.as_ref().is_none_or(|(other, _)| major < *other) {
            best = Some((major, path));
        }
    }
    found.sort_unstable();
    found.dedup();
    let install = || install_here(Package::Client { major: at_least });
    best.map(|(_, path)| path).ok_or_else(|| Error::Program {
        program,
        at_least,
        found,
        install: install(),
    })
}

/// Folders to look in, best first; `None` stands for PATH.
async fn candidate_directories() -> Vec<Option<PathBuf>> {
    let mut candidates = Vec::new();
    if let Some(bindir) = output_of(Path::new("pg_config"), "--bindir").await {
        candidates.push(Some(PathBuf::from(bindir.trim_end())));
    }
    candidates.push(None);
    for (parent, prefix, inner) in VERSIONED_DIRECTORIES {
        let entries = fs::read_dir(parent).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        for name in newest_first(names, prefix) {
            candidates.push(Some(Path::new(parent).join(name).join(inner)));
        }
    }
    candidates.extend(PLAIN_DIRECTORIES.iter().map(|directory| Some(PathBuf::from(directory))));
    candidates
}

/// The names that are `prefix` and a version number, the highest number first.
fn newest_first(names: impl Iterator<Item = String>, prefix: &str) -> Vec<String> {
    let mut versioned: Vec<(u32, String)> =
        names.filter_map(|name| Some((name.strip_prefix(prefix)?.parse().ok()?, name))).collect();
    versioned.sort_unstable_by(|a, b| b.cmp(a));
    versioned.into_iter().map(|(_, name)| name).collect()
}

/// The major version of the installation in `directory` (PATH when absent), if both programs run.
async fn probe(directory: Option<&Path>) -> Option<u32> {
    output_of(&program(directory, "initdb"), "--version").await?;
    major_of(&output_of(&program(directory, "postgres"), "--version").await?)
}

/// What a program prints, if it runs and succeeds; one that does not is one that is not there.
async fn output_of(program: &Path, argument: &str) -> Option<String> {
    let output = Command::new(program)
        .arg(argument)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The major version in, for example, `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn major_of(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?;
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

fn program(directory: Option<&Path>, name: &str) -> PathBuf {
    directory.map_or_else(|| PathBuf::from(name), |directory| directory.join(name))
}

/// What is to be installed.
#[derive(Clone, Copy)]
enum Package {
    Server,
    /// The programs of this major version that connect to a server.
    Client {
        major: u32,
    },
}

fn install_here(package: Package) -> String {
    let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    install_command(&os_release, rustix::process::geteuid().is_root(), package)
}

/// The command that installs a package on the system that `os_release` (os-release(5)) describes.
fn install_command(os_release: &str, root: bool, package: Package) -> String {
    let mut names = Vec::new();
    for line in os_release.lines() {
        let value = line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE="));
        names.extend(value.unwrap_or_default().trim_matches(['"', '\'']).split_whitespace());
    }
    let command = names.iter().find_map(|name| match (*name, package) {
        ("debian" | "ubuntu", Package::Server) => Some("apt-get install postgresql".to_owned()),
        ("debian" | "ubuntu", Package::Client { major }) => {
            Some(format!("apt-get install postgresql-client-{major}"))
        }
        ("fedora" | "rhel" | "centos", Package::Server) => {
            Some("dnf install postgresql-server".to_owned())
        }
        ("fedora" | "rhel" | "centos", Package::Client { .. }) => {
            Some("dnf install postgresql".to_owned())
        }
        ("arch", _) => Some("pacman -S postgresql".to_owned()),
        ("alpine", Package::Server) => Some("apk add postgresql".to_owned()),
        ("alpine", Package::Client { major }) => Some(format!("apk add postgresql{major}-client")),
        ("suse" | "opensuse", Package::Server) => {
            Some("zypper install postgresql-server".to_owned())
        }
        ("suse" | "opensuse", Package::Client { major }) => {
            Some(format!("zypper install postgresql{major}"))
        }
        _ => None,
    });
    match (command, package) {
        (Some(command), _) if root => command,
        (Some(command), _) => format!("sudo {command}"),
        (None, Package::Server) => "the PostgreSQL server package of this system".to_owned(),
        (None, Package::Client { major }) => {
            format!("the client package of PostgreSQL {major} of this system")
        }
    }
}

/// Who the server runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ServerUser {
    user: u32,
    group: u32,
    /// We are root and must become this user for the child.
    drop: bool,
}

impl ServerUser {
    /// The owner of an existing cluster; else `postgres` or `nobody` when we are root; else us.
    fn choose(cluster: &Path) -> Result<ServerUser, Error> {
        let user = rustix::process::geteuid();
        let owner = match fs::metadata(cluster) {
            Ok(metadata) => Some((metadata.uid(), metadata.gid())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(file("inspect", cluster)(error)),
        };
        match owner {
            _ if !user.is_root() => {
                let user = user.as_raw();
                if let Some((owner, _)) = owner.filter(|(owner, _)| *owner != user) {
                    return Err(Error::Owner { cluster: cluster.to_owned(), owner, user });
                }
                let group = rustix::process::getegid().as_raw();
                Ok(ServerUser { user, group, drop: false })
            }
            // The owner stays what it was when, say, a package has since brought `postgres`.
            Some((user, group)) if user != 0 => Ok(ServerUser { user, group, drop: true }),
            _ => {
                let path = Path::new("/etc/passwd");
                let passwd = fs::read_to_string(path).map_err(file("read", path))?;
                ["postgres", "nobody"]
                    .iter()
                    .find_map(|name| user_in(&passwd, name))
                    .map(|(user, group)| ServerUser { user, group, drop: true })
                    .ok_or(Error::NoUser)
            }
        }
    }
}

/// The user and group numbers of `name` in the text of passwd(5). Root is nobody's answer.
fn user_in(passwd: &str, name: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == name).then_some(())?;
        let user: u32 = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (user != 0).then_some((user, group))
    })
}

/// The major version that made the cluster; `None` where there is no cluster yet.
fn cluster_major(cluster: &Path) -> Result<Option<u32>, Error> {
    let path = cluster.join("PG_VERSION");
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map(Some).map_err(|error| {
            file("understand", &path)(io::Error::new(io::ErrorKind::InvalidData, error))
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file("read", &path)(error)),
    }
}

/// Runs `initdb` beside the cluster's place and moves the result there: a kill in between leaves a
/// folder that the next start removes, never half a cluster.
async fn create_cluster(
    binaries: &Binaries,
    data_dir: &Path,
    cluster: &Path,
    user: ServerUser,
) -> Result<(), Error> {
    let staging = data_dir.join("postgres.new");
    remove_staging(&staging).await?;
    info!(cluster = %cluster.display(), major = binaries.major, "creating the embedded cluster");
    fs::DirBuilder::new().mode(0o700).create(&staging).map_err(file("create", &staging))?;
    if user.drop {
        std::os::unix::fs::chown(&staging, Some(user.user), Some(user.group))
            .map_err(file("change the owner of", &staging))?;
    }
    let initdb = binaries.program("initdb");
    let output = child_command(&initdb, open_directory(&staging, OFlags::empty())?, user)
        .args(["--username", ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"])
        .arg("--data-checksums")
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| Error::Spawn { program: initdb, source })?;
    if !output.status.success() {
        remove_staging(&staging).await?;
        let printed = [output.stdout, output.stderr].concat();
        return Err(Error::Initdb { status: output.status, output: tail(&printed) });
    }
    fs::rename(&staging, cluster).map_err(file("move the new cluster to", cluster))?;
    fs::File::open(data_dir)
        .and_then(|directory| directory.sync_all())
        .map_err(file("sync", data_dir))
}

/// Removes what an interrupted creation left. An `initdb` that outlived its killed parent may still
/// be writing there: it ends when its folder is gone, and until then it adds files to be removed.
async fn remove_staging(staging: &Path) -> Result<(), Error> {
    let removed = timeout(REMOVE_LIMIT, async {
        loop {
            match fs::remove_dir_all(staging) {
                Ok(()) => return Ok(()),
                Err(_) if !staging.exists() => return Ok(()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotFound
                    ) =>
                {
                    sleep(POLL).await;
                }
                Err(error) => return Err(file("remove", staging)(error)),
            }
        }
    });
    removed.await.map_err(|_| Error::Busy { path: staging.to_owned() })?
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
        // Named by the folder's identity, not its path: a server whose data directory was removed
        // keeps its inode, and so cannot be in the way of the next one at the same path.
        let socket_directory = Path::new(SOCKET_PARENT).join(format!(
            "ubscore-{}-{:x}-{:x}",
            user.user,
            metadata.dev(),
            metadata.ino()
        ));
        let mut settings: Vec<String> =
            SETTINGS.iter().map(|setting| (*setting).to_owned()).collect();
        settings.push(format!("port={PORT}"));
        settings.push(socket_setting(&socket_directory));
        settings.push(format!("max_connections={}", options.connections_max));
        settings.push(format!("shared_buffers={}MB", options.shared_buffers_mib));
        let mut arguments = vec!["-D".to_owned(), CLUSTER_ARGUMENT.to_owned()];
        arguments.extend(settings.into_iter().flat_map(|setting| ["-c".to_owned(), setting]));
        let log = data_dir.join("postgres.log");
        Ok(Server { binaries, cluster, user, log, socket_directory, arguments })
    }

    /// Adopts, restarts or starts the server, and waits until it answers.
    async fn bring_up(&self) -> Result<Embedded, Error> {
        make_socket_directory(&self.socket_directory, self.user)?;
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
                remove_socket_directory(&self.socket_directory);
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
        let socket = socket_path(&self.socket_directory);
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
        let socket = socket_path(&self.socket_directory);
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

/// A child that finds `directory` as [`CLUSTER_ARGUMENT`], as `user`, in no folder of ours.
fn child_command(program: &Path, directory: OwnedFd, user: ServerUser) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", INHERIT_CLUSTER, "sh"]).arg(program).args(["-D", CLUSTER_ARGUMENT]);
    command.current_dir("/").stdin(Stdio::from(directory));
    // The server would take these from our environment as its defaults.
    for name in ["PGDATA", "PGPORT", "PGDATESTYLE", "PGTZ", "PGCLIENTENCODING", "PGOPTIONS"] {
        command.env_remove(name);
    }
    if user.drop {
        // The standard library drops the supplementary groups with the user.
        command.uid(user.user).gid(user.group);
    }
    command
}

fn open_directory(path: &Path, flags: OFlags) -> Result<OwnedFd, Error> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|error| file("open", path)(error.into()))
}

/// Makes the socket's directory, or makes sure that the one there was made by us or the server's
/// user and that no other can enter it: anyone may plant one where it lies.
fn make_socket_directory(directory: &Path, user: ServerUser) -> Result<(), Error> {
    let socket_bytes = socket_path(directory).as_os_str().len();
    assert!(socket_bytes <= SOCKET_PATH_BYTES_MAX, "{} bytes: {directory:?}", socket_bytes);
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(file("create", directory)(error));
        }
        _ => {}
    }
    let found = fs::File::from(open_directory(directory, OFlags::NOFOLLOW)?);
    let metadata = found.metadata().map_err(file("inspect", directory))?;
    let (owner, mode) = (metadata.uid(), metadata.permissions().mode() & 0o7777);
    let us = rustix::process::geteuid().as_raw();
    if (owner != user.user && owner != us) || mode & 0o077 != 0 {
        let directory = directory.to_owned();
        return Err(Error::SocketDirectory { directory, owner, mode, owner_expected: user.user });
    }
    // Ours, just made or left so by a crash at this point.
    if owner != user.user {
        std::os::unix::fs::fchown(&found, Some(user.user), Some(user.group))
            .map_err(file("change the owner of", directory))?;
    }
    found
        .set_permissions(fs::Permissions::from_mode(0o700))
        .map_err(file("set the mode of", directory))
}

/// Leaves nothing in the shared folder. A directory that stays is found, checked and used again.
fn remove_socket_directory(directory: &Path) {
    if let Err(error) = fs::remove_dir(directory) {
        debug!(directory = %directory.display(), %error, "the socket directory stays");
    }
}

/// Gives the cluster and all in it to the server's user, after a copy by root for example.
fn change_owner(path: &Path, user: ServerUser) -> Result<(), Error> {
    let metadata = fs::symlink_metadata(path).map_err(file("inspect", path))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(file("list", path))? {
            change_owner(&entry.map_err(file("list", path))?.path(), user)?;
        }
    }
    // The folder last: until then the next start sees root as its owner and does this again.
    std::os::unix::fs::lchown(path, Some(user.user), Some(user.group))
        .map_err(file("change the owner of", path))
}

fn socket_path(directory: &Path) -> PathBuf {
    directory.join(format!(".s.PGSQL.{PORT}"))
}

fn socket_setting(directory: &Path) -> String {
    format!("unix_socket_directories={}", directory.display())
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
    arguments.contains(&socket_setting(socket_directory))
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

/// Names the deed and the path of a failed file operation.
fn file(deed: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::File { deed, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
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
        assert!(matches!(error, Error::File { deed: "open", .. }), "{error:?}");
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

    #[tokio::test]
    async fn a_folder_without_the_programs_gives_the_install_command() {
        let empty = tempfile::tempdir().expect("a temporary folder");
        let error = find_binaries(Some(empty.path()), None).await.expect_err("nothing is there");
        assert!(error.to_string().contains("install"), "{error}");
        assert!(error.to_string().contains(&install_here(Package::Server)), "{error}");
        let error = find_program("pg_dump", Some(empty.path()), 15).await.expect_err("nothing");
        let install = install_here(Package::Client { major: 15 });
        assert!(error.to_string().contains(&install), "{error}");
    }

    #[tokio::test]
    async fn a_client_program_that_is_older_than_the_server_is_not_used() {
        let path = find_program("pg_dump", None, 7).await.expect("one is here");
        let here = output_of(&path, "--version").await.as_deref().and_then(major_of);
        let major = here.expect("it says so");
        assert_eq!(find_program("pg_dump", None, major).await.expect("the same"), path);
        let error = find_program("pg_dump", None, 999).await.expect_err("nobody has version 999");
        assert!(
            matches!(&error, Error::Program { found, .. } if found.contains(&major)),
            "{error}"
        );
        assert!(error.to_string().contains("999"), "{error}");
    }

    #[tokio::test]
    async fn a_cluster_of_another_version_is_left_alone() {
        let error = find_binaries(None, Some(7)).await.expect_err("nobody has version 7");
        assert!(matches!(error, Error::Version { cluster_major: 7, .. }), "{error:?}");
    }

    #[test]
    fn the_install_command_fits_the_system() {
        let debian = "PRETTY_NAME=\"Debian GNU/Linux 12\"\nVERSION_ID=\"12\"\nID=debian\n";
        assert_eq!(install_command(debian, true, Package::Server), "apt-get install postgresql");
        assert_eq!(
            install_command(debian, false, Package::Server),
            "sudo apt-get install postgresql"
        );
        let mint = "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n";
        assert_eq!(install_command(mint, true, Package::Server), "apt-get install postgresql");
        let rocky = "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n";
        assert_eq!(install_command(rocky, true, Package::Server), "dnf install postgresql-server");
        let client = Package::Client { major: 16 };
        assert_eq!(install_command(debian, true, client), "apt-get install postgresql-client-16");
        assert_eq!(install_command(rocky, false, client), "sudo dnf install postgresql");
        assert!(install_command("", true, client).contains("PostgreSQL 16"));
        assert!(install_command("", true, Package::Server).contains("PostgreSQL server package"));
    }

    #[test]
    fn versions_are_read_and_ordered_as_numbers() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 18beta2\n"), Some(18));
        assert_eq!(major_of("busybox"), None);
        let names = ["9", "16", "10", "common"].map(str::to_owned);
        assert_eq!(newest_first(names.into_iter(), ""), ["16", "10", "9"]);
        let names = ["pgsql-9.6", "lib", "pgsql-15"].map(str::to_owned);
        assert_eq!(newest_first(names.into_iter(), "pgsql-"), ["pgsql-15"]);
    }

    #[test]
    fn a_server_user_is_never_root() {
        let passwd = "root:x:0:0::/root:/bin/sh\npostgres:x:101:104::/var:/bin/sh\ntoor:x:0:0:::\n";
        assert_eq!(user_in(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_in(passwd, "toor"), None);
        assert_eq!(user_in(passwd, "nobody"), None);
    }

    #[test]
    fn an_error_quotes_the_end_of_a_log_by_whole_lines() {
        assert_eq!(tail(b"one\ntwo\n"), "one\ntwo");
        let long = format!("{}\nlast\n", "x".repeat(LOG_TAIL_BYTES));
        assert_eq!(tail(long.as_bytes()), "last");
    }
}
