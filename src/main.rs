//! The binary: reads the command line and runs one subcommand.

use std::process::ExitCode;

use clap::Parser;
use mimalloc::MiMalloc;
use ubscore::cli::Cli;
use ubscore::commands;

/// Requests and answers are short-lived and are freed on other threads than they were allocated on.
/// There the C library's allocator takes a sixth of the server's time. The engine allocates once.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    commands::run(Cli::parse())
}
