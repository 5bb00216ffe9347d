//! The upkeep of the primary: every few seconds it raises alerts before a shortage refuses a user.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use crate::alert::{Alert, alert, alert_about};
use crate::config::Config;
use crate::data_dir;
use crate::http::service::Service;
use crate::postgres::reads::Reads;
use crate::postgres::reads::assets::Unreadable;
use crate::telemetry;

/// Between two rounds of the upkeep.
const EVERY: Duration = Duration::from_secs(5);
/// An alert comes when this part of a table's places is left, one in so many.
const LOW_PART: usize = 5;

/// Raises an alert for each asset with an invalid row.
pub(super) fn alert_unreadable(reads: &Reads) {
    for Unreadable { asset, what } in reads.unreadable() {
        alert_about(Alert::AssetUnreadable, &asset, format_args!("{asset}: {what}"));
    }
}

/// Raises alerts: invalid assets, little space for the log, little room in
/// UBSCore's tables. It never ends.
pub(super) async fn keep_watch(service: Arc<Service>, config: Config, engine: engine::Handle) {
    let log_dir = data_dir::log(&config.data_dir);
    let clock = Arc::clone(&service.intake.clock);
    let reads = service.transfers.reads.clone();
    // The stop waits until the last reference is gone.
    let watched = Arc::downgrade(&service);
    drop(service);
    loop {
        alert_unreadable(&reads);
        // Only for its alerts, so that a shortage is known before a client meets it.
        if let Some(service) = watched.upgrade() {
            service.transfers.readiness().await;
        }
        watch_space(&log_dir, config.wal.space_low_bytes);
        watch_places("accounts", engine.accounts(), engine.accounts_left());
        watch_places("balances", engine.balances(), engine.balances_left());
        let (outcomes_max, left) = (config.engine.outcomes_max, engine.vacancy().outcomes);
        watch_places("outcomes", outcomes_max.saturating_sub(left), left);
        match files_bytes(&log_dir) {
            Ok(bytes) => telemetry::wal_bytes(bytes),
            Err(error) => warn!(%error, "the length of the log is unknown"),
        }
        clock.sleep(EVERY).await;
    }
}

/// Alerts if less than `low` bytes are free for the log.
fn watch_space(log_dir: &Path, low: u64) {
    match rustix::fs::statvfs(log_dir) {
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            telemetry::wal_free(free);
            if free < low {
                let path = log_dir.display();
                alert(
                    Alert::WalSpaceLow,
                    format_args!("{free} bytes are free for {path}, less than {low}"),
                );
            }
        }
        Err(error) => warn!(%error, "the free space for the log is unknown"),
    }
}

/// Alerts when four fifths of a table of UBSCore are taken.
fn watch_places(table: &'static str, taken: usize, left: usize) {
    if taken >= left.saturating_mul(LOW_PART - 1) {
        let places = taken + left;
        let what = format_args!("{taken} of {places} places for {table} are taken");
        alert_about(Alert::PlacesLow, &table, what);
    }
}

/// The length of all files of a directory, bytes.
fn files_bytes(directory: &Path) -> std::io::Result<u64> {
    let mut bytes: u64 = 0;
    for entry in std::fs::read_dir(directory)? {
        match entry?.metadata() {
            Ok(found) => bytes = bytes.saturating_add(found.len()),
            // Renamed or removed in between.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
