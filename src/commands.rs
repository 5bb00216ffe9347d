//! The subcommands, one file each.

use std::error::Error;
use std::io::{self, StdoutLock, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;

use serde::Serialize;

use crate::cli::{Cli, Command, EngineCommand};
use crate::clock::SystemClock;
use crate::config;
use crate::config::format::Format;
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
pub mod serve;
pub mod snapshot;
pub mod statement;
pub mod table;
pub mod token;
pub mod transfer;
pub mod verify;
pub mod wal;
pub mod webhook;

/// Where a command prints to whose action, if any, is done by then: that nobody reads it is no failure.
struct Out(StdoutLock<'static>);

/// Nobody reads what is printed any more, which is how `| head` ends.
#[derive(Debug, thiserror::Error)]
#[error("nobody reads the output any more")]
struct HungUp;

impl Out {
    fn lock() -> Out {
        Out(io::stdout().lock())
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(HungUp::tell)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(HungUp::tell)
    }
}

impl HungUp {
    /// Marks what stdout says, since a connection to a server may break like this too.
    fn tell(error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::BrokenPipe => io::Error::new(io::ErrorKind::BrokenPipe, HungUp),
            _ => error,
        }
    }

    /// Whether this is why a command has ended.
    fn is_cause_of(error: &anyhow::Error) -> bool {
        let inner = |cause: &(dyn Error + 'static)| {
            let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            inner.is_some_and(|inner| inner.is::<HungUp>())
        };
        error.chain().any(inner)
    }
}

/// Carries out one command line.
///
/// Returns 0 if it did what it was asked or nobody reads what it prints any more, 2 if the arguments or the configuration are
/// wrong, 3 if another operator has to approve it first, else 1; why it failed is on stderr, from the action to its causes.
pub fn run(cli: Cli) -> ExitCode {
    let (format, starts) = (cli.command.format(), matches!(cli.command, Command::Serve(_)));
    let mut ended = None;
    let done = match cli.command {
        Command::Restore(args) => return restore::run(&args, &mut io::stdout().lock()),
        Command::Repair(args) => return repair::run(&args, &mut io::stdout().lock()),
        Command::Engine(EngineCommand::Adopt(args)) => {
            return adopt::run(&args, &mut io::stdout().lock());
        }
        Command::Statement(args) => return statement::run(&args, &mut Out::lock()),
        Command::Doctor(args) => {
            return doctor::run(&args, &SystemClock::new(), &mut io::stdout().lock());
        }
        Command::Verify(args) => return verify::run(&args, &mut io::stdout().lock()),
        Command::Backup(args) => backup::run(&args, &SystemClock::new(), &mut io::stdout().lock()),
        Command::Token(args) => token::run(&args, &SystemClock::new(), &mut Out::lock()),
        Command::Load(args) => load::run(&args, &SystemClock::new(), &mut io::stdout().lock()),
        Command::Serve(args) => serve::run(&args).inspect_err(|error| {
            ended = serve::needs_person(error).then_some(Exit::Damage);
        }),
        Command::Snapshot(command) => match snapshot::run(&command, &mut io::stdout().lock()) {
            Ok(true) => return ExitCode::FAILURE,
            Ok(false) => Ok(()),
            Err(error) => Err(error.into()),
        },
        Command::Halt(args) => halt::halt(&args, &SystemClock::new(), &mut Out::lock()),
        Command::Resume(args) => halt::resume(&args, &SystemClock::new(), &mut Out::lock()),
        Command::Approval(command) => {
            approval::run(&command, &SystemClock::new(), &mut Out::lock())
        }
        Command::Pause(args) => pause::change(&args, true, &SystemClock::new(), &mut Out::lock()),
        Command::Unpause(args) => {
            pause::change(&args, false, &SystemClock::new(), &mut Out::lock())
        }
        Command::Pauses(access) => pause::list(&access, &SystemClock::new(), &mut Out::lock()),
        Command::Transfer(command) => {
            let (out, notes) = (&mut Out::lock(), &mut io::stderr());
            transfer::run(&command, &SystemClock::new(), out, notes)
        }
        Command::Webhook(command) => {
            let (out, notes) = (&mut Out::lock(), &mut io::stderr());
            webhook::run(&command, &SystemClock::new(), out, notes)
        }
        Command::Account(command) => account::run(&command, &SystemClock::new(), &mut Out::lock()),
        Command::Deposit(args) => external::run(&args, true, &SystemClock::new(), &mut Out::lock()),
        Command::Withdraw(args) => {
            external::run(&args, false, &SystemClock::new(), &mut Out::lock())
        }
        Command::Asset(command) => account::asset(&command, &SystemClock::new(), &mut Out::lock()),
        Command::Completions(args) => completions::run(&args, &mut Out::lock()),
        Command::Man(args) => man::run(&args, &mut Out::lock()),
        Command::Wal(command) => {
            let ink = wal::ink::Ink::choose(&io::stdout());
            let (out, notes) = (&mut io::stdout().lock(), &mut io::stderr());
            match wal::run(&command, out, notes, ink, &mut wal::pause) {
                Ok(code) => return code,
                Err(error) => Err(error.into()),
            }
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if HungUp::is_cause_of(&error) => ExitCode::SUCCESS,
        // Written out as an answer.
        Err(error) if error.is::<approval::Pending>() => Exit::Pending.into(),
        Err(error) => {
            complain(&error, format, starts.then(|| next::after(&error)));
            ended.unwrap_or_else(|| exit_of(&error)).into()
        }
    }
}

/// Writes to stderr why a command has failed, as text or as one JSON object. `next`: what a person does then.
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
            // If nobody reads stderr, the exit code alone tells it.
            writeln!(io::stderr(), "{line}").ok();
        }
    }
}

/// The URL of a listener, `tls`: if it speaks that.
fn url(listen: SocketAddr, tls: bool) -> String {
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", reachable(listen))
}

/// An address that everybody is listened to on is reached by loopback.
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
