//! Tells the binary which commit it is built from; `src/release.rs` reads it.
//!
//! It runs again only when its output may have changed, so that a test run without changes compiles
//! nothing. A debug build has no commit, because each commit would recompile everything.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of the binary. Only a change to these makes it differ from the commit.
const SOURCES: [&str; 13] = [
    "src",
    "chain",
    "domain",
    "engine",
    "stream",
    "txm",
    "wal",
    "bell",
    "config/migrations",
    "config/migrations-txm",
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
];
/// Names the commit in a build without git: in a container or from a source archive.
const GIVEN: &str = "UBSCORE_COMMIT";
/// The commit's name in a debug build.
const DEBUG: &str = "development";

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-env-changed={GIVEN}");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var(GIVEN).ok().filter(|given| !given.is_empty());
    let commit = match given {
        Some(given) => given,
        None if env::var("PROFILE").is_ok_and(|profile| profile == "debug") => DEBUG.to_owned(),
        None => committed(&root).unwrap_or_else(|| "unknown".to_owned()),
    };
    println!("cargo::rustc-env=UBSCORE_BUILT_FROM={commit}");
}

/// The short hash, with `-dirty` if the sources differ from it.
fn committed(root: &Path) -> Option<String> {
    // An archive may be unpacked inside of another repository, which is not its own.
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    // Git writes this file when HEAD moves. The index is also written by commands that only read.
    let moves = root.join(git(root, &["rev-parse", "--git-path", "logs/HEAD"])?);
    if moves.exists() {
        println!("cargo::rerun-if-changed={}", moves.display());
    }
    let hash = git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--"];
    status.extend(SOURCES);
    let dirty = if git(root, &status)?.is_empty() { "" } else { "-dirty" };
    Some(hash + dirty)
}

/// The output of git; `None` if there is no git, or if it fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let printed = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| printed.trim_end().to_owned())
}
