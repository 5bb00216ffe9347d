//! What child processes get of our environment: what every program needs, and nothing else. Ours may hold secrets
//! (`UBSCORE__AUTH__SECRET`), and the processes of a user, or of a database's superuser, can read that of a child.

use std::env;
use std::process::Command;

/// What is passed on.
pub const KEPT: [&str; 4] = ["PATH", "HOME", "LANG", "TZ"];

/// Clears the environment that a child will have, but for [`KEPT`]. To be called before anything is added.
pub fn clean(command: &mut Command) -> &mut Command {
    command.env_clear();
    for name in KEPT {
        if let Some(value) = env::var_os(name) {
            command.env(name, value);
        }
    }
    command
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
