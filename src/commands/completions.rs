//! `ubscore completions`: a shell's completion script, from the definition of the command line.

use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs};
use crate::exit::Exit;

/// Writes the script to `out`.
///
/// # Errors
/// It cannot be written.
pub fn run(args: &CompletionsArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "ubscore", &mut script);
    out.write_all(&script).and_then(|()| out.flush()).context("write the script")?;
    Ok(Exit::Done)
}
