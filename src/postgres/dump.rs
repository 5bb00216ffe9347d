//! PostgreSQL's own programs: `pg_dump` writes a snapshot, `pg_restore` reads it again.
//!
//! What they write and read goes through a pipe of ours, so that they end with us: a `pg_restore` whose parent was killed
//! finds no end of its input, and rolls back.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use tokio_postgres::config::Host;

use super::export::Place;
use super::{Address, Limits, connect};
use crate::environment;

/// How much of what a program said an error quotes, bytes.
const SAID_BYTES_MAX: u64 = 4_096;

/// What the server calls a session of these programs.
pub const APPLICATION: &str = "ubscore dump or restore";

/// A program that did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be run at all.
    #[error("run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It ended otherwise than it should.
    #[error("{} ended with {status}: {said}", program.display())]
    Ended {
        /// The program.
        program: PathBuf,
        /// How.
        status: ExitStatus,
        /// What it said.
        said: String,
    },
    /// What it wrote could not be kept, or what it reads could not be read.
    #[error("pass on what {} reads or writes", program.display())]
    Pipe {
        /// The program.
        program: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// How these programs find a database. The password is in their environment, where other users do not see it.
pub struct Connection {
    database: String,
    environment: Vec<(&'static str, OsString)>,
}

impl Connection {
    /// To where `address` leads, which is `place`.
    pub fn new(address: &Address, place: &Place) -> Connection {
        let config = address.config();
        let list = |texts: Vec<OsString>| texts.join(std::ffi::OsStr::new(","));
        let hosts = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => OsString::from(name),
            Host::Unix(path) => path.clone().into_os_string(),
        });
        let addresses = config.get_hostaddrs().iter().map(|address| address.to_string().into());
        let ports = config.get_ports().iter().map(|port| port.to_string().into());
        let (hosts, addresses, ports): (Vec<_>, Vec<OsString>, Vec<OsString>) =
            (hosts.collect(), addresses.collect(), ports.collect());
        let mut environment = Vec::new();
        for (name, values) in [("PGHOST", hosts), ("PGHOSTADDR", addresses), ("PGPORT", ports)] {
            if !values.is_empty() {
                environment.push((name, list(values)));
            }
        }
        environment.push(("PGUSER", config.get_user().unwrap_or(&place.user).into()));
        environment.push(("PGDATABASE", OsString::from(&place.database)));
        environment.push(("PGTARGETSESSIONATTRS", "read-write".into()));
        environment.push(("PGAPPNAME", APPLICATION.into()));
        let (mode, root) = address.tls();
        environment.push(("PGSSLMODE", mode.into()));
        environment.extend(root.map(|root| ("PGSSLROOTCERT", root.into())));
        if let Some(password) = config.get_password() {
            let password = String::from_utf8_lossy(password).into_owned();
            environment.push(("PGPASSWORD", password.into()));
        }
        // Behind the operator's own, so that ours hold.
        let options = format!("{} -c synchronous_commit=on", config.get_options().unwrap_or(""));
        environment.push(("PGOPTIONS", options.trim_start().into()));
        Connection { database: place.database.clone(), environment }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        environment::clean(&mut command).arg("--no-password");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stderr(Stdio::piped());
        command
    }
}

/// Writes everything that the snapshot of this name holds to `to`.
///
/// # Errors
/// [`Error`]: what was written is of no use.
pub fn dump(
    program: &Path,
    connection: &Connection,
    snapshot: &str,
    to: &mut impl Write,
) -> Result<(), Error> {
    let mut command = connection.command(program);
    command.arg("--format=custom").arg(format!("--snapshot={snapshot}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let work = |child: &mut Child| {
        let mut from = child.stdout.take().expect("piped");
        io::copy(&mut from, to).map(drop)
    };
    run(program, command, work)
}

/// Makes everything that `from` holds, all of it or nothing.
///
/// Who owned it and who else may use it is not taken over: the roles may not exist here.
///
/// # Errors
/// [`Error`]: nothing was made, unless the answer to the commit was lost.
pub fn restore(program: &Path, connection: &Connection, from: &mut impl Read) -> Result<(), Error> {
    let mut command = connection.command(program);
    command.args(["--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges"]);
    command.args(["--no-publications", "--no-subscriptions"]);
    command.arg(format!("--dbname={}", connection.database));
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let work = |child: &mut Child| {
        // Dropped at its end, which is how the program learns of it.
        let mut to = child.stdin.take().expect("piped");
        io::copy(from, &mut to).map(drop)
    };
    run(program, command, work)
}

fn run(
    program: &Path,
    mut command: Command,
    work: impl FnOnce(&mut Child) -> io::Result<()>,
) -> Result<(), Error> {
    let program = program.to_owned();
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(source) => return Err(Error::Spawn { program, source }),
    };
    let mut stderr = child.stderr.take().expect("piped");
    let said = thread::spawn(move || {
        let mut said = Vec::new();
        // What is beyond is read all the same: a full pipe would hold the program up.
        let read = stderr.by_ref().take(SAID_BYTES_MAX).read_to_end(&mut said);
        let rest = io::copy(&mut stderr, &mut io::sink());
        let whole = read.is_ok() && rest.is_ok();
        let text = String::from_utf8_lossy(&said).trim_end().to_owned();
        if whole { text } else { format!("{text} (and more that cannot be read)") }
    });
    let piped = work(&mut child);
    if piped.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        // Ended before it can take what it has for the whole.
        child.kill().ok();
    }
    let status = child.wait();
    let said = said.join().unwrap_or_else(|_| "(nothing that can be told)".to_owned());
    match (status, piped) {
        (Err(source), _) => Err(Error::Pipe { program, source }),
        (Ok(_), Err(source)) if source.kind() != io::ErrorKind::BrokenPipe => {
            Err(Error::Pipe { program, source })
        }
        (Ok(status), _) if !status.success() => Err(Error::Ended { program, status, said }),
        // It did not want the rest, and is content.
        (Ok(_), _) => Ok(()),
    }
}

/// Gives the planner statistics of restored tables.
///
/// # Errors
/// [`Error`](super::Error): PostgreSQL is away. The same call again does it.
pub async fn analyze(address: &Address, limits: &Limits) -> Result<(), super::Error> {
    // It reads a part of every table, which takes time.
    let limits = Limits { statement_timeout: Duration::ZERO, ..*limits };
    Ok(connect(address, &limits).await?.batch_execute("ANALYZE").await?)
}
