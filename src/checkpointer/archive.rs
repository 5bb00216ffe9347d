//! The archive hook: an operator's shell command, run for each closed segment before its removal.
//!
//! It works like PostgreSQL's `archive_command`: `%p` is the segment's path, `%f` its file name,
//! `%%` a percent sign. Exit code 0 means that the segment is archived. After a crash a segment may
//! be archived twice, so a command must accept the same file again.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use wal::segment_name;

use crate::environment;

/// Between two checks whether the command has ended.
const LOOK: Duration = Duration::from_millis(10);
/// A command is killed if it has not ended after this many checks: ten minutes.
const LOOKS_MAX: u32 = 60_000;

/// A segment that may not be removed yet.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("stopped")]
    Stopped,
    #[error("run {command:?}")]
    Run {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("{command:?} ended with {status}")]
    Refused { command: String, status: ExitStatus },
    #[error("{command:?} did not end within ten minutes, and was killed")]
    Late { command: String },
}

/// Runs the command for one segment of the log in `log_dir` and waits for its end. `stopped` kills
/// it.
///
/// # Errors
/// [`Error`]: the segment must stay.
pub(super) fn run(
    template: &str,
    log_dir: &Path,
    segment: u64,
    stopped: &impl Fn() -> bool,
) -> Result<(), Error> {
    let name = segment_name(segment);
    let failed = |command: &str, source| Error::Run { command: command.to_owned(), source };
    let directory = std::path::absolute(log_dir).map_err(|source| failed(template, source))?;
    let command = fill_in(template, &directory.join(&name).to_string_lossy(), &name);
    let mut shell = Command::new("sh");
    let mut child = environment::clean(&mut shell)
        .args(["-c", &command])
        .stdin(Stdio::null())
        // Stdout is for the output of this process's own command.
        .stdout(Stdio::null())
        // Its own process group: it is killed with its children, and Ctrl-C in the terminal does
        // not reach it.
        .process_group(0)
        .spawn()
        .map_err(|source| failed(&command, source))?;
    for _ in 0..LOOKS_MAX {
        match child.try_wait().map_err(|source| failed(&command, source))? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(Error::Refused { command, status }),
            None if stopped() => {
                end(&mut child);
                return Err(Error::Stopped);
            }
            None => thread::sleep(LOOK),
        }
    }
    end(&mut child);
    Err(Error::Late { command })
}

fn end(child: &mut Child) {
    // An error means that the command has ended meanwhile.
    kill_process_group(Pid::from_child(child), Signal::KILL).ok();
    child.wait().ok();
}

fn fill_in(template: &str, path: &str, name: &str) -> String {
    let mut command = String::new();
    let mut rest = template.chars();
    while let Some(next) = rest.next() {
        if next != '%' {
            command.push(next);
            continue;
        }
        match rest.next() {
            Some('p') => command.push_str(path),
            Some('f') => command.push_str(name),
            Some('%') => command.push('%'),
            Some(other) => command.extend(['%', other]),
            None => command.push('%'),
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(template: &str, log_dir: &Path) -> Result<(), Error> {
        run(template, log_dir, 7, &|| false)
    }

    #[test]
    fn a_command_gets_path_and_name() {
        let filled = fill_in("cp %p /far/%f; echo 100%% %d %", "/log/segment-7", "segment-7");
        assert_eq!(filled, "cp /log/segment-7 /far/segment-7; echo 100% %d %");
    }

    #[test]
    fn only_exit_code_0_says_that_a_segment_is_safe() {
        let here = tempfile::tempdir().expect("a directory");
        std::fs::write(here.path().join(segment_name(7)), "bytes").expect("written");
        archive("cp %p %p.copy", here.path()).expect("copied");
        let copy = here.path().join(format!("{}.copy", segment_name(7)));
        assert_eq!(std::fs::read(copy).expect("there"), b"bytes");
        for refused in ["exit 3", "kill -9 $$", "/no/such/program %p"] {
            let error = archive(refused, here.path()).expect_err(refused);
            assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        }
    }

    #[test]
    fn a_stop_ends_a_command_that_does_not_end() {
        let here = tempfile::tempdir().expect("a directory");
        let ended = run("sleep 1000 & wait", here.path(), 7, &|| true);
        assert!(matches!(ended, Err(Error::Stopped)), "{ended:?}");
    }
}
