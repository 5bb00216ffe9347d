//! Alerts: what somebody must look at, as a log event and a metric.

use std::fmt;

use tracing::{error, warn};

use crate::telemetry;

/// Everything that can be alerted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alert {
    /// Refunds of a transfer keep ending unknown.
    CompensationFailing,
    /// Another process has taken over.
    Fenced,
    /// PostgreSQL does not answer.
    PostgresUnreachable,
    /// An operation was repeated with another body, or refunded without having been withdrawn.
    ProtocolViolation,
    /// A snapshot cannot be made, or what it covers cannot go: log and restart grow.
    SnapshotFailed,
    /// The log or a snapshot says another thing than UBSCore: the next start would refuse.
    SnapshotMismatch,
    /// The log's disk failed.
    WalSyncFailed,
    /// No segment could be prepared ahead.
    WalSpaceLow,
}

impl Alert {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Alert::CompensationFailing => "compensation_failing",
            Alert::Fenced => "fenced",
            Alert::PostgresUnreachable => "postgres_unreachable",
            Alert::ProtocolViolation => "protocol_violation",
            Alert::SnapshotFailed => "snapshot_failed",
            Alert::SnapshotMismatch => "snapshot_mismatch",
            Alert::WalSyncFailed => "wal_sync_failed",
            Alert::WalSpaceLow => "wal_space_low",
        }
    }

    /// Whether somebody is to be woken up.
    pub fn is_critical(self) -> bool {
        match self {
            Alert::CompensationFailing
            | Alert::Fenced
            | Alert::ProtocolViolation
            | Alert::SnapshotMismatch
            | Alert::WalSyncFailed => true,
            Alert::PostgresUnreachable | Alert::SnapshotFailed | Alert::WalSpaceLow => false,
        }
    }
}

/// Raises an alert.
pub fn alert(alert: Alert, what: fmt::Arguments<'_>) {
    metrics::counter!(telemetry::ALERTS_TOTAL, "alert" => alert.name()).increment(1);
    match alert.is_critical() {
        true => error!(alert = alert.name(), severity = "CRITICAL", "{what}"),
        false => warn!(alert = alert.name(), severity = "WARNING", "{what}"),
    }
}
