//! The subcommands, one file each.

use std::error::Error;
use std::io::{self, StdoutLock, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use self::next::Next;
use self::roles::primary;

use crate::cli::{Cli, Command, EngineCommand, StoreArgs, WalCommand};
use crate::clock::SystemClock;
use crate::config::format::Format;
use crate::config::{self, Config};
use crate::exit::Exit;
use crate::http::auth::keys::KeyError;
use crate::http::tls::TlsError;
use crate::postgres::development;
use crate::telemetry::lines::last_words;

pub mod account;
pub mod adopt;
pub mod approval;
pub mod backup;
pub mod completions;
pub mod dev;
pub mod doctor;
pub mod external;
pub mod halt;
pub mod load;
pub mod man;
pub mod next;
pub mod ops;
pub mod pause;
pub mod repair;
pub mod restore;
pub mod roles;
pub mod snapshot;
pub mod statement;
pub mod table;
pub mod token;
pub mod transfer;
pub mod verify;
pub mod wal;
pub mod webhook;

/// The output of a command. A closed reader is not a failure, because the command's action is done
/// by then.
struct Out(StdoutLock<'static>);

/// The reader of the output has closed it, as `| head` does.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
struct HungUp;

impl Out {
    fn lock() -> Out {
        Out(io::stdout().lock())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(HungUp::mark)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(HungUp::mark)
    }
}

impl HungUp {
    /// Marks errors of stdout, because a connection to a server may break with the same kind of
    /// error.
    fn mark(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, HungUp),
            _ => error,
        }
    }

    /// Whether the closed output is the cause of an error.
    fn is_cause_of(error: &anyhow::Error) -> bool {
        let inner = |cause: &(dyn Error + 'static)| {
            let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            inner.is_some_and(|inner| inner.is::<HungUp>())
        };
        error.chain().any(inner)
    }
}

/// Runs one command line and returns the exit code.
///
/// 0: the command is done, or the reader of its output has closed it. 2: the arguments or the
/// configuration are wrong. 3: another operator must approve it first. Else 1 or the codes of a
/// failed start. An error is written to stderr, from the failed step to its causes.
pub fn run(cli: Cli) -> ExitCode {
    let (format, meaning) = (cli.command.format(), Meaning::of(&cli.command));
    match carry_out(cli.command) {
        Ok(exit) => exit.into(),
        Err(error) if HungUp::is_cause_of(&error) => Exit::Done.into(),
        // Written to stdout already.
        Err(error) if error.is::<approval::Pending>() => Exit::Pending.into(),
        Err(error) => {
            let next = meaning == Meaning::Start;
            complain(&error, format, next.then(|| Next::after(&error).text()));
            meaning.exit(&error).into()
        }
    }
}

/// How the errors of a command become exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// A start: some errors need an operator.
    Start,
    /// A comparison or a repair, where 1 means that a difference is left: it cannot run.
    CannotRun,
    /// Any other command.
    Failed,
}

impl Meaning {
    fn of(command: &Command) -> Meaning {
        match command {
            Command::Serve(_) => Meaning::Start,
            Command::Restore(_)
            | Command::Repair(_)
            | Command::Engine(_)
            | Command::Statement(_)
            | Command::Doctor(_)
            | Command::Verify(_)
            | Command::Wal(WalCommand::Repair(_)) => Meaning::CannotRun,
            _ => Meaning::Failed,
        }
    }

    fn exit(self, error: &anyhow::Error) -> Exit {
        match self {
            Meaning::Start if next::needs_person(error) => Exit::Damage,
            Meaning::Start | Meaning::Failed => exit_of(error),
            Meaning::CannotRun => Exit::Arguments,
        }
    }
}

fn carry_out(command: Command) -> anyhow::Result<Exit> {
    let (clock, notes) = (&SystemClock::new(), &mut io::stderr());
    // Commands with an effect of their own report a closed stdout as an error. The others end
    // quietly.
    let stdout = || io::stdout().lock();
    match command {
        Command::Serve(args) => primary::run(&args),
        Command::Restore(args) => restore::run(&args, &mut stdout()),
        Command::Repair(args) => repair::run(&args, &mut stdout()),
        Command::Engine(EngineCommand::Adopt(args)) => adopt::run(&args, &mut stdout()),
        Command::Statement(args) => statement::run(&args, &mut Out::lock()),
        Command::Doctor(args) => doctor::run(&args, clock, &mut stdout()),
        Command::Verify(args) => verify::run(&args, &mut stdout()),
        Command::Backup(args) => backup::run(&args, clock, &mut stdout()),
        Command::Token(args) => token::run(&args, clock, &mut Out::lock()),
        Command::Load(args) => load::run(&args, clock, &mut stdout()),
        Command::Snapshot(command) => snapshot::run(&command, &mut stdout()),
        Command::Halt(args) => halt::halt(&args, clock, &mut Out::lock()),
        Command::Resume(args) => halt::resume(&args, clock, &mut Out::lock()),
        Command::Approval(command) => approval::run(&command, clock, &mut Out::lock()),
        Command::Pause(args) => pause::change(&args, true, clock, &mut Out::lock()),
        Command::Unpause(args) => pause::change(&args, false, clock, &mut Out::lock()),
        Command::Pauses(access) => pause::list(&access, clock, &mut Out::lock()),
        Command::Transfer(command) => transfer::run(&command, clock, &mut Out::lock(), notes),
        Command::Webhook(command) => webhook::run(&command, clock, &mut Out::lock(), notes),
        Command::Account(command) => account::run(&command, clock, &mut Out::lock()),
        Command::Deposit(args) => external::run(&args, true, clock, &mut Out::lock()),
        Command::Withdraw(args) => external::run(&args, false, clock, &mut Out::lock()),
        Command::Asset(command) => account::asset(&command, clock, &mut Out::lock()),
        Command::Completions(args) => completions::run(&args, &mut Out::lock()),
        Command::Man(args) => man::run(&args, &mut Out::lock()),
        Command::Wal(command) => {
            let ink = wal::ink::Ink::choose(&io::stdout());
            wal::run(&command, &mut stdout(), notes, ink, &mut wal::pause)
        }
    }
}

/// The configuration of a command that uses both stores.
fn load_config(args: &StoreArgs) -> anyhow::Result<Config> {
    Config::load(args.config.as_deref(), args.overrides(), args.dev)
        .context("load the configuration")
}

/// Writes an error to stderr, as text or as one JSON object. `next`: the operator's next step.
fn complain(error: &anyhow::Error, format: Format, next: Option<&str>) {
    #[derive(Serialize)]
    struct Complaint<'a> {
        error: String,
        /// The code of a refusal by the service.
        code: Option<&'a str>,
        next: Option<&'a str>,
    }
    match format {
        Format::Text => {
            let next = next.map_or(String::new(), |next| format!("; next: {next}"));
            last_words("error", &format!("{error:#}{next}"));
        }
        Format::Json => {
            let code = error.downcast_ref::<ops::Refused>().map(|refused| refused.code.as_str());
            let complaint = Complaint { error: format!("{error:#}"), code, next };
            let line = serde_json::to_string(&complaint).expect("plain values");
            // If stderr is closed, the exit code remains.
            writeln!(io::stderr(), "{line}").ok();
        }
    }
}

/// The URL of a listener. `tls`: whether it uses TLS.
fn url(listen: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(listen))
}

/// The address to reach a listener at: loopback for one that listens on every address.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

fn exit_of(error: &anyhow::Error) -> Exit {
    let configuration = error.chain().any(|cause| {
        cause.is::<config::Error>()
            || cause.is::<KeyError>()
            || cause.is::<TlsError>()
            || cause.is::<development::Refusal>()
    });
    let path = error.downcast_ref().is_some_and(wal::Error::is_about_arguments)
        || error.downcast_ref().is_some_and(snapshot::Error::is_about_arguments)
        || error.downcast_ref::<backup::Occupied>().is_some();
    if configuration || path { Exit::Arguments } else { Exit::Failed }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn an_address_for_everybody_is_reached_by_loopback() {
        for (listen, want) in [
            ("0.0.0.0:9090", "127.0.0.1:9090"),
            ("[::]:9090", "[::1]:9090"),
            ("10.1.2.3:80", "10.1.2.3:80"),
        ] {
            let listen: SocketAddr = listen.parse().expect("an address");
            assert_eq!(reachable(listen).to_string(), want);
        }
    }

    #[test]
    fn a_wrong_configuration_exits_like_a_wrong_argument() {
        let wrong = config::Error::Missing { key: "auth.secret", advice: "give it" };
        let error = anyhow::Result::<()>::Err(wrong.into()).context("load").expect_err("wrong");
        assert_eq!(exit_of(&error), Exit::Arguments);
        assert_eq!(exit_of(&anyhow::anyhow!("the disk is gone")), Exit::Failed);
    }
}
