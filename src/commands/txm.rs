//! `ubscore txm serve`: a node of the transaction manager. Its operators use `ubscore signer` and
//! `ubscore tx`.

pub(super) mod keys;
pub(super) mod node;
pub mod signer;
pub(super) mod tls;
pub mod tx;

use std::io;
use std::thread;

use anyhow::Context;
use rustix::process::{Signal, getpid, kill_process};

use crate::cli::TxmCommand;
use crate::commands::roles::process;
use crate::commands::roles::signals::Signals;
use crate::config::Config;
use crate::exit::Exit;

/// Runs a node to its end.
///
/// # Errors
/// The configuration is wrong, or the node cannot start.
pub fn run(command: &TxmCommand) -> anyhow::Result<Exit> {
    let TxmCommand::Serve(args) = command;
    let config = Config::load_txm(args.config.as_deref(), args.dev, true);
    let mut config = config.context("load the configuration")?;
    config.txm.listen = args.listen.unwrap_or(config.txm.listen);
    config.txm.ops_listen = args.ops_listen.unwrap_or(config.txm.ops_listen);
    config.txm.keep_public_tokens_at_home()?;
    config.txm.has_url()?;
    if args.until_stdin_ends {
        stop_with_stdin().context("start a thread")?;
    }
    process::run(config, Signals::new, async |process| node::serve(process, !args.dev).await)
}

/// Stops this process in order when standard input ends.
fn stop_with_stdin() -> io::Result<()> {
    let watch = || {
        // An error is an end as well.
        drop(io::copy(&mut io::stdin().lock(), &mut io::sink()));
        kill_process(getpid(), Signal::TERM).expect("this process");
    };
    thread::Builder::new().name("parent".to_owned()).spawn(watch).map(drop)
}
