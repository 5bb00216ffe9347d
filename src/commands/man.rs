//! `ubscore man`: the manual pages, from the definition of the command line.

use std::fs;
use std::io::Write;

use anyhow::Context;
use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::exit::Exit;

/// Writes the page of the program to `out`, or the pages of all commands into a directory.
///
/// # Errors
/// They cannot be written.
pub fn run(args: &ManArgs, out: &mut impl Write) -> anyhow::Result<Exit> {
    // `help` adds nothing to the pages.
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    match &args.directory {
        Some(directory) => {
            let what = || format!("write the pages into {}", directory.display());
            fs::create_dir_all(directory).with_context(what)?;
            clap_mangen::generate_to(command, directory).with_context(what)?;
        }
        None => {
            let mut page = Vec::new();
            Man::new(command).render(&mut page)?;
            out.write_all(&page).and_then(|()| out.flush()).context("write the page")?;
        }
    }
    Ok(Exit::Done)
}
