//! The subcommands, one file each.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use self::next::Next;
use self::output::{HungUp, Out};
use self::roles::primary;
use crate::channels::keyed::ChannelOpenError;
use crate::cli::{
    ChainTxCommand, Cli, Command, EngineCommand, RechargeCommand, RecoverArgs, WalCommand,
};
use crate::clock::SystemClock;
use crate::config;
use crate::exit::Exit;
use crate::format::Format;
use crate::http::auth::keys::KeyError;
use crate::http::tls::TlsError;
use crate::postgres::development;
use crate::telemetry::lines::last_words;

pub mod account;
pub mod adopt;
pub mod approval;
pub mod backup;
pub mod channel;
pub mod channel_sim;
pub mod completions;
mod configured;
pub mod dev;
pub mod doctor;
pub mod external;
pub mod halt;
pub mod hold;
pub mod journal;
mod listing;
pub mod load;
pub mod man;
pub mod next;
pub mod ops;
mod output;
pub mod participant;
pub mod pause;
pub mod promotion;
pub mod recharge;
mod recover;
pub mod repair;
pub mod restore;
pub mod roles;
pub mod snapshot;
pub mod statement;
pub mod table;
pub mod token;
pub mod transaction;
pub mod transfer;
pub mod txm;
pub mod venue;
pub mod verify;
pub mod wal;
pub mod webhook;

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
            Command::Serve(_) | Command::Txm(_) => Meaning::Start,
            Command::Restore(_)
            | Command::Repair(_)
            | Command::Engine(_)
            | Command::Statement(_)
            | Command::Doctor(_)
            | Command::Journal(_)
            | Command::Verify(_)
            | Command::Participant(_)
            | Command::Tx(ChainTxCommand::Audit(_))
            | Command::Recharge(RechargeCommand::Recover(RecoverArgs { id: None, .. }))
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
        Command::Journal(command) => journal::run(&command, &mut Out::lock()),
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
        Command::Participant(command) => participant::run(&command, &mut stdout()),
        Command::Venue(command) => venue::run(&command, clock, &mut Out::lock()),
        Command::Transaction(command) => transaction::run(&command, clock, &mut Out::lock(), notes),
        Command::Recharge(command) => recharge::run(&command, clock, &mut Out::lock(), notes),
        Command::Promotion(command) => promotion::run(&command, clock, &mut Out::lock()),
        Command::Txm(command) => txm::run(&command),
        Command::Signer(command) => txm::signer::run(&command, clock, &mut Out::lock()),
        Command::Tx(command) => txm::tx::run(&command, clock, &mut Out::lock(), notes),
        Command::Channel(command) => channel::run(&command, clock, &mut Out::lock(), notes),
        Command::Hold(command) => hold::run(&command, clock, &mut Out::lock(), notes),
        Command::Asset(command) => account::asset(&command, clock, &mut Out::lock()),
        Command::ChannelSim(args) => channel_sim::run(&args, &mut stdout()),
        Command::Completions(args) => completions::run(&args, &mut Out::lock()),
        Command::Man(args) => man::run(&args, &mut Out::lock()),
        Command::Wal(command) => {
            let ink = wal::ink::Ink::choose(&io::stdout());
            wal::run(&command, &mut stdout(), notes, ink, &mut wal::pause)
        }
    }
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

fn exit_of(error: &anyhow::Error) -> Exit {
    let configuration = error.chain().any(|cause| {
        cause.is::<config::Error>()
            || cause.is::<KeyError>()
            || cause.is::<TlsError>()
            || cause.is::<ChannelOpenError>()
            || cause.is::<development::Refusal>()
    });
    let path = error.downcast_ref().is_some_and(wal::error::Error::is_about_arguments)
        || error.downcast_ref().is_some_and(snapshot::error::Error::is_about_arguments)
        || error.downcast_ref::<backup::Occupied>().is_some();
    if configuration || path { Exit::Arguments } else { Exit::Failed }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_wrong_configuration_exits_like_a_wrong_argument() {
        let wrong = config::Error::Missing { key: "auth.secret".into(), advice: "give it" };
        let error = anyhow::Result::<()>::Err(wrong.into()).context("load").expect_err("wrong");
        assert_eq!(exit_of(&error), Exit::Arguments);
        assert_eq!(exit_of(&anyhow::anyhow!("the disk is gone")), Exit::Failed);
    }
}
