//! The binary: reads the command line and runs one subcommand.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use ubscore::cli::Cli;
use ubscore::commands;

/// Requests and their answers live short and end on other threads than they began on, where the C library's allocator takes a
/// sixth of the server's time. What the engine keeps is allocated once.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    commands::run(Cli::parse())
}
