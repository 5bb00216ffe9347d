//! The binary: reads the command line and runs one subcommand.

use std::process::ExitCode;

use clap::Parser;
use ubscore::cli::Cli;
use ubscore::commands;

fn main() -> ExitCode {
    commands::run(Cli::parse())
}
