//! PostgreSQL's own load generator, for base cases.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

/// The folder of the base cases.
pub(crate) fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches").join("pgbench")
}

/// The program, beside its server.
pub(crate) fn pgbench() -> anyhow::Result<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok();
    let given = output.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let candidates = given.into_iter().chain(debian.map(|entry| entry.path().join("bin")));
    let found = candidates.map(|bin| bin.join("pgbench")).find(|path| path.is_file());
    found.context("pgbench is not there; on Debian it comes with the package postgresql")
}

/// A whole number of its report, behind the words `name`.
pub(crate) fn figure(said: &str, name: &str) -> Option<u64> {
    let line = said.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim_start().split(['.', ' ', '/']).next()?.parse().ok()
}
