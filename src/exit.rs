//! The exit codes of the binary, in one table. Tests compare the README's table and the systemd
//! unit with it.

/// Why the process ends. The value is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command did its work, or the service was stopped.
    Done = 0,
    /// A failure that may pass: PostgreSQL is away, a port is taken, an operator's command was
    /// refused.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Arguments = 2,
    /// A second operator must approve first.
    Pending = 3,
    /// The disk failed, files are damaged, or the log and the database are not a pair. Another
    /// start would end the same way.
    Damage = 70,
    /// A part of the service ended: a task failed, or the embedded PostgreSQL died. Another start
    /// continues all transfers.
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

    /// Whether a supervisor may start the service again. Otherwise an operator must act first.
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
