//! The exit codes of the binary, in one table. The README's table and the systemd unit are held against it by tests.

/// Why the process ends. The value is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did its work, or the service was stopped.
    Done = 0,
    /// Something stands in the way that may pass: PostgreSQL is away, a port is taken, an operator's command was refused.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Arguments = 2,
    /// A second operator has to approve first.
    Pending = 3,
    /// The disk failed, files are damaged, or the log and the database are no pair: a start would only end the same way.
    Damage = 70,
    /// A part of the service ended: a task broke, or the embedded PostgreSQL died. A start goes on with everything.
    Broken = 71,
    /// Another process has taken over the database.
    Superseded = 75,
}

impl Exit {
    /// Every code.
    pub const ALL: [Exit; 7] = [
        Exit::Done,
        Exit::Failed,
        Exit::Arguments,
        Exit::Pending,
        Exit::Damage,
        Exit::Broken,
        Exit::Superseded,
    ];

    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Whether a supervisor may start the service again by itself. Otherwise a person has to look first.
    pub fn may_restart(self) -> bool {
        match self {
            Exit::Failed | Exit::Broken | Exit::Superseded => true,
            Exit::Done | Exit::Arguments | Exit::Pending | Exit::Damage => false,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> std::process::ExitCode {
        std::process::ExitCode::from(exit.code())
    }
}
