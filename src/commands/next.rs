//! What comes next for a person whose start was refused: a command, or a chapter of the runbook.

use std::error::Error;
use std::io;

use crate::config;
use crate::http::auth::keys::KeyError;
use crate::http::tls::TlsError;
use crate::postgres;
use crate::postgres::incarnation::Refusal;

/// The next step after a start that failed with `error`. Chapters are those of `docs/runbook.md`.
pub fn after(error: &anyhow::Error) -> &'static str {
    let text = format!("{error:#}");
    let own = error.chain().find_map(of_cause);
    match own {
        Some(next) => next,
        None if text.contains("not a pair") || text.contains("belongs to log") => OTHER_PAIR,
        None => "runbook, \"The process has ended\"",
    }
}

/// The database and the log have different identities.
const OTHER_PAIR: &str =
    "ubscore doctor, then runbook, \"PostgreSQL is lost, or older than the log\"";

/// The log is not there, or nothing of it is left to begin with.
const LOG_LOST: &str = "mount or name the right data_dir; if the log is lost, ubscore engine adopt --plan and runbook, \
                        \"The log is lost\"";

/// The next step where one of the causes is known by its type.
fn of_cause(cause: &(dyn Error + 'static)) -> Option<&'static str> {
    if cause.is::<config::Error>() || cause.is::<KeyError>() || cause.is::<TlsError>() {
        return Some("correct the configuration, then run ubscore doctor");
    }
    if let Some(error) = cause.downcast_ref::<wal::Error>() {
        return Some(of_log(error));
    }
    if let Some(error) = cause.downcast_ref::<engine::Error>() {
        return match error {
            // The source says more.
            engine::Error::Log { .. } => None,
            engine::Error::Replay(_) => Some("runbook, \"The log is damaged\""),
            engine::Error::NoSnapshot { .. } => Some(LOG_LOST),
            engine::Error::Thread(_) => Some("ubscore doctor"),
            _ => Some("ubscore snapshot inspect DATA_DIR, then runbook, \"The log is damaged\""),
        };
    }
    if let Some(Refusal::LogMissing { .. }) = cause.downcast_ref() {
        return Some(LOG_LOST);
    }
    let inner = match cause.downcast_ref() {
        Some(Refusal::Postgres(error)) => Some(error),
        _ => None,
    };
    if let Some(error) = cause.downcast_ref::<postgres::Error>().or(inner) {
        return match error {
            postgres::Error::Unadopted => Some("ubscore engine adopt --apply --reason TEXT"),
            postgres::Error::Unrepaired => Some("ubscore repair --plan"),
            postgres::Error::Migration(_) => Some("runbook, \"Upgrading\""),
            postgres::Error::Superseded => Some("make sure that only one service is started"),
            _ => Some("ubscore doctor, then runbook, \"PostgreSQL is away\""),
        };
    }
    let io = cause.downcast_ref::<io::Error>()?;
    match io.kind() {
        io::ErrorKind::AddrInUse => Some("stop the other process, or give another address"),
        io::ErrorKind::StorageFull => Some("runbook, \"The disk fills\""),
        io::ErrorKind::PermissionDenied => {
            Some("run as the user of the service, then ubscore doctor")
        }
        _ => None,
    }
}

fn of_log(error: &wal::Error) -> &'static str {
    match error {
        wal::Error::Locked { .. } => "stop the process that holds the log, or leave it running",
        wal::Error::Space { .. } => "runbook, \"The disk fills\"",
        wal::Error::Damaged { .. } | wal::Error::Missing { .. } => {
            "ubscore wal verify DATA_DIR, then runbook, \"The log is damaged\""
        }
        _ => "ubscore doctor, then runbook, \"The process has ended\"",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_found_below_its_context() {
        let locked = Err::<(), _>(wal::Error::Locked { pid: 7 });
        let error = locked.context("open the log").expect_err("locked");
        assert!(after(&error).starts_with("stop the process"), "{}", after(&error));
        let missing = config::Error::Missing { key: "auth.secret", advice: "give it" };
        let error = Err::<(), _>(missing).context("load").expect_err("missing");
        assert!(after(&error).starts_with("correct"), "{}", after(&error));
        assert!(after(&anyhow::anyhow!("other")).starts_with("runbook"));
    }

    /// Every chapter that is named is one.
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
