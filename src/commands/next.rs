//! The operator's next step after a refused start, and whether an operator must act before a
//! restart.

use std::error::Error;
use std::io;

use engine::snapshot;

use crate::channels::keyed::ChannelOpenError;
use crate::config;
use crate::data_dir;
use crate::http::auth::keys::KeyError;
use crate::http::tls::TlsError;
use crate::postgres;
use crate::postgres::flights;
use crate::postgres::incarnation::Refusal;

/// The operator's next step after a start that failed. Chapters are those of `docs/runbook.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The configuration is wrong.
    Configuration,
    /// Another process holds the log.
    Locked,
    /// A disk is full.
    DiskFull,
    /// A record or a segment is damaged or missing.
    DamagedRecord,
    /// The log contradicts itself or UBSCore's rules.
    DamagedLog,
    /// A snapshot cannot be used.
    Snapshot,
    /// The log is missing, or it has no usable beginning.
    LogLost,
    /// The system cannot start a thread.
    Machine,
    /// The log and the database are not a pair.
    OtherPair,
    /// A rebuild of the log is not finished.
    Rebuild,
    /// A restore is not finished.
    Restore,
    /// The log was cut and not repaired since.
    Repair,
    /// The file of answered flights is missing or damaged.
    Flights,
    /// PostgreSQL has gone back in time.
    GoneBack,
    /// Other sessions hold a table.
    Held,
    /// The schema has another version.
    Upgrade,
    /// The database was made before the schema began anew.
    NewDatabase,
    /// Another process has taken over.
    Superseded,
    /// PostgreSQL cannot be reached or fails.
    Postgres,
    /// A port is taken.
    Port,
    /// The user of the process may not read or write a file.
    Permission,
    /// Any other error of the log.
    Log,
    /// Any other error.
    Unknown,
}

impl Next {
    /// The next step after a start that failed with `error`.
    pub fn after(error: &anyhow::Error) -> Next {
        error.chain().find_map(of_cause).unwrap_or(Next::Unknown)
    }

    /// The step, for people.
    pub fn text(self) -> &'static str {
        match self {
            Next::Configuration => "correct the configuration, then run ubscore doctor",
            Next::Locked => "stop the process that holds the log, or leave it running",
            Next::DiskFull => "runbook, \"The disk fills\"",
            Next::DamagedRecord => {
                "ubscore wal verify DATA_DIR, then runbook, \"The log is damaged\""
            }
            Next::DamagedLog => "runbook, \"The log is damaged\"",
            Next::Snapshot => {
                "ubscore snapshot inspect DATA_DIR, then runbook, \"The log is damaged\""
            }
            Next::LogLost => {
                "mount or name the right data_dir; if the log is lost, ubscore engine adopt --plan and \
                 runbook, \"The log is lost\""
            }
            Next::Machine => "ubscore doctor",
            Next::OtherPair => {
                "ubscore doctor, then runbook, \"PostgreSQL is lost, or older than the log\""
            }
            Next::Rebuild => "ubscore engine adopt --apply --reason TEXT",
            Next::Restore => "ubscore restore with the same backup",
            Next::Repair => "ubscore repair --plan",
            Next::Flights => {
                "ubscore repair --plan, then ubscore repair --apply --reason TEXT, which writes it anew"
            }
            Next::GoneBack => "ubscore repair --plan, then runbook, \"After a failover\"",
            Next::Held => "end these sessions in PostgreSQL, then start again",
            Next::Upgrade => "runbook, \"Upgrading\"",
            Next::NewDatabase => {
                "name a new database and an empty data_dir, then runbook, \"Upgrading\""
            }
            Next::Superseded => "make sure that only one service is started",
            Next::Postgres => "ubscore doctor, then runbook, \"PostgreSQL is away\"",
            Next::Port => "stop the other process, or give another address",
            Next::Permission => "run as the user of the service, then ubscore doctor",
            Next::Log => "ubscore doctor, then runbook, \"The process has ended\"",
            Next::Unknown => "runbook, \"The process has ended\"",
        }
    }
}

/// The next step, if one of the causes is known by its type.
fn of_cause(cause: &(dyn Error + 'static)) -> Option<Next> {
    if cause.is::<config::Error>()
        || cause.is::<KeyError>()
        || cause.is::<TlsError>()
        || cause.is::<ChannelOpenError>()
    {
        return Some(Next::Configuration);
    }
    if let Some(error) = cause.downcast_ref::<wal::Error>() {
        return Some(of_log(error));
    }
    if let Some(data_dir::Error::UnfinishedRestore(_)) = cause.downcast_ref() {
        return Some(Next::Restore);
    }
    if let Some(flights::Error::Missing(_) | flights::Error::Damaged { .. }) = cause.downcast_ref()
    {
        return Some(Next::Flights);
    }
    if let Some(error) = cause.downcast_ref::<engine::Error>() {
        return match error {
            // Its source is more precise.
            engine::Error::Log { .. } => None,
            engine::Error::Replay(_) => Some(Next::DamagedLog),
            engine::Error::NoSnapshot { .. } => Some(Next::LogLost),
            engine::Error::Thread(_) => Some(Next::Machine),
            _ => Some(Next::Snapshot),
        };
    }
    let inner = match cause.downcast_ref() {
        Some(Refusal::Foreign { .. } | Refusal::Unused { .. }) => return Some(Next::OtherPair),
        Some(Refusal::LogMissing { .. }) => return Some(Next::LogLost),
        Some(Refusal::GoneBack { .. }) => return Some(Next::GoneBack),
        Some(Refusal::Held { .. }) => return Some(Next::Held),
        Some(Refusal::Postgres(error)) => Some(error),
        Some(Refusal::Exhausted(_)) | None => None,
    };
    if let Some(error) = cause.downcast_ref::<postgres::Error>().or(inner) {
        return Some(match error {
            postgres::Error::Unadopted => Next::Rebuild,
            postgres::Error::Unrepaired => Next::Repair,
            // It names the next step itself.
            postgres::Error::OtherCause(_) => return None,
            postgres::Error::Migration(_) => Next::Upgrade,
            postgres::Error::Unreleased(_) => Next::NewDatabase,
            postgres::Error::Superseded => Next::Superseded,
            _ => Next::Postgres,
        });
    }
    match cause.downcast_ref::<io::Error>()?.kind() {
        io::ErrorKind::AddrInUse => Some(Next::Port),
        io::ErrorKind::StorageFull => Some(Next::DiskFull),
        io::ErrorKind::PermissionDenied => Some(Next::Permission),
        _ => None,
    }
}

fn of_log(error: &wal::Error) -> Next {
    match error {
        wal::Error::Locked { .. } => Next::Locked,
        wal::Error::Space { .. } => Next::DiskFull,
        wal::Error::Damaged { .. } | wal::Error::Missing { .. } => Next::DamagedRecord,
        _ => Next::Log,
    }
}

/// Whether the next start would meet the same error, so that an operator must act first.
pub fn needs_person(error: &anyhow::Error) -> bool {
    error.chain().any(is_lasting)
}

fn is_lasting(cause: &(dyn Error + 'static)) -> bool {
    use wal::Error as Log;
    let log = matches!(
        cause.downcast_ref(),
        Some(
            Log::Damaged { .. }
                | Log::Missing { .. }
                | Log::Header { .. }
                | Log::Version { .. }
                | Log::Foreign { .. }
                | Log::Order { .. }
                | Log::Unfinished { .. }
                | Log::Chain { .. }
                | Log::Sync { .. }
                | Log::Poisoned
        )
    );
    let pair = match cause.downcast_ref() {
        Some(Refusal::Postgres(error)) => {
            error.is_of_other_version() || matches!(error, postgres::Error::Unadopted)
        }
        Some(Refusal::Held { .. }) | None => false,
        Some(_) => true,
    };
    let flights = matches!(
        cause.downcast_ref(),
        Some(flights::Error::Missing(_) | flights::Error::Damaged { .. })
    );
    let state = matches!(
        cause.downcast_ref(),
        Some(
            engine::Error::ForeignSnapshot { .. }
                | engine::Error::SnapshotAhead { .. }
                | engine::Error::NoSnapshot { .. }
        )
    );
    let restore = matches!(cause.downcast_ref(), Some(data_dir::Error::UnfinishedRestore(_)));
    let snapshot =
        cause.downcast_ref().is_some_and(|error| !matches!(error, snapshot::Error::Io { .. }));
    log || pair || flights || state || restore || snapshot || cause.is::<engine::replay::Error>()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_found_below_its_context() {
        let locked = Err::<(), _>(wal::Error::Locked { pid: 7 });
        let error = locked.context("open the log").expect_err("locked");
        assert_eq!(Next::after(&error), Next::Locked);
        let missing = config::Error::Missing { key: "auth.secret".into(), advice: "give it" };
        let error = Err::<(), _>(missing).context("load").expect_err("missing");
        assert_eq!(Next::after(&error), Next::Configuration);
        assert_eq!(Next::after(&anyhow::anyhow!("other")), Next::Unknown);
        let foreign = Refusal::Foreign { log: "1".to_owned(), database: "2".to_owned() };
        let error = Err::<(), _>(foreign).context("prepare PostgreSQL").expect_err("foreign");
        assert_eq!(Next::after(&error), Next::OtherPair);
        assert!(needs_person(&error));
    }

    /// Every named chapter exists.
    #[test]
    fn chapters_are_in_the_runbook() {
        let runbook = include_str!("../../docs/runbook.md");
        let source = include_str!("next.rs");
        let source = source.split("#[cfg(test)]").next().expect("code");
        for part in source.split("runbook, \\\"").skip(1) {
            let chapter = part.split("\\\"").next().expect("a name");
            assert!(runbook.contains(&format!("\n## {chapter}\n")), "{chapter}");
        }
    }
}
