//! The environment of child processes: only the variables that every program needs. This process's
//! environment may hold secrets (`UBSCORE__AUTH__SECRET`). Other processes of the same user, and a
//! superuser of the database, can read the environment of a child. And a path in this process's.

use std::env;
use std::path::PathBuf;
use std::process::Command;

/// The variables that are passed on.
pub const KEPT: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Clears the environment of a child except for [`KEPT`]. Must be called before variables are
/// added.
pub fn clean(command: &mut Command) -> &mut Command {
    command.env_clear();
    for name in KEPT {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    command
}

/// The path in a variable of this process; `None`: it is not set.
pub fn path(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_sees_what_is_kept_and_what_is_added() {
        let mut command = Command::new("env");
        command.env("UBSCORE__AUTH__SECRET", "hidden");
        clean(&mut command).env("PGAPPNAME", "child");
        let output = command.output().expect("env runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let name = line.split('=').next().expect("a name");
            assert!(KEPT.contains(&name) || name == "PGAPPNAME", "{line}");
        }
    }
}
