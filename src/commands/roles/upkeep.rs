//! The upkeep of the primary: every few seconds it raises alerts before a shortage refuses a user.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use engine::venue::{RefusedEnd, VenueRow};
use tracing::{debug, warn};

use super::recharge_gauges;
use crate::alert::{Alert, alert, alert_about};
use crate::clock::NS_PER_S;
use crate::config::Config;
use crate::data_dir;
use crate::http::kept_notices::KeptNotices;
use crate::http::service::Service;
use crate::postgres::horizon::Holder;
use crate::postgres::reads::Reads;
use crate::postgres::reads::assets::Unreadable;
use crate::telemetry;
use domain::amount::signed_text;

/// Between two rounds of the upkeep.
const EVERY: Duration = Duration::from_secs(5);
/// A venue's window may be full for so long.
const BEHIND: Duration = Duration::from_secs(1);
/// Nanoseconds in a millisecond.
const NS_PER_MS: u64 = 1_000_000;
/// Milliseconds in a second.
const MS_PER_S: u64 = 1_000;
/// An alert comes when this part of a table's places is left, one in so many.
const LOW_PART: usize = 5;

/// Raises an alert for each asset with an invalid row.
pub(super) fn alert_unreadable(reads: &Reads) {
    for Unreadable { asset, what } in reads.unreadable() {
        alert_about(Alert::AssetUnreadable, &asset, format_args!("{asset}: {what}"));
    }
}

/// Reads the special accounts, and raises an alert for each one below zero.
async fn watch_special(reads: &Reads) {
    let found = match reads.load_special().await {
        Ok(found) => found,
        Err(error) => return debug!(%error, "the special accounts are not known"),
    };
    let catalog = reads.catalog();
    let below: Vec<_> = found.iter().filter(|account| account.available < 0).collect();
    telemetry::special_negative(below.len());
    for account in below {
        let (user, asset) = (account.user, account.asset);
        let symbol = catalog.by_id(asset).map_or("?", |asset| asset.symbol.as_str());
        let units = signed_text(account.available, catalog.precision(asset));
        let what = format_args!("the special account of user {user} has {units} {symbol}");
        alert_about(Alert::SpecialNegative, &format_args!("{user} {}", asset.0), what);
    }
}

/// Raises alerts: invalid assets, special accounts below zero, old snapshots of PostgreSQL, little
/// space for the log, little room in UBSCore's tables. It never ends.
pub(super) async fn keep_watch(service: Arc<Service>, config: Config, engine: engine::Handle) {
    let log_dir = data_dir::log(&config.data_dir);
    let clock = Arc::clone(&service.intake.clock);
    let reads = service.transfers.reads.clone();
    recharge_gauges::begin(&service);
    // Those of earlier times end while recharges are off, too.
    let keep = config.recharge.notices_keep_hours.duration();
    let kept = KeptNotices::new(service.transfers.admin.clone(), Arc::clone(&clock), keep);
    // The stop waits until the last reference is gone.
    let watched = Arc::downgrade(&service);
    drop(service);
    let mut snapshots = Snapshots::new(config.alert.old_snapshot_ms);
    loop {
        alert_unreadable(&reads);
        watch_special(&reads).await;
        // Only for its alerts, so that a shortage is known before a client meets it.
        if let Some(service) = watched.upgrade() {
            service.transfers.readiness().await;
            watch_venues(&service, &config).await;
            recharge_gauges::watch(&service).await;
        }
        kept.forget_old().await;
        watch_ends(&engine);
        match reads.snapshot_holders().await {
            Ok(holders) => snapshots.watch(holders, clock.monotonic_ns()),
            Err(error) => debug!(%error, "the snapshots of PostgreSQL are not known"),
        }
        watch_space(&log_dir, config.wal.space_low_bytes);
        watch_places("accounts", engine.accounts(), engine.accounts_left());
        watch_places("balances", engine.balances(), engine.balances_left());
        watch_places("holds", engine.holds(), engine.holds_max() - engine.holds());
        let (outcomes_max, left) = (config.engine.outcomes_max, engine.vacancy().outcomes);
        watch_places("outcomes", outcomes_max.saturating_sub(left), left);
        match files_bytes(&log_dir) {
            Ok(bytes) => telemetry::wal_bytes(bytes),
            Err(error) => warn!(%error, "the length of the log is unknown"),
        }
        clock.sleep(EVERY).await;
    }
}

/// The holders of snapshots without a recorded age, each with when it was first seen.
struct Snapshots {
    old_s: u64,
    /// By name and horizon; monotonic ns.
    seen: HashMap<(String, String), u64>,
}

impl Snapshots {
    fn new(old_ms: u64) -> Snapshots {
        Snapshots { old_s: old_ms / MS_PER_S, seen: HashMap::new() }
    }

    /// Alerts about each holder that is old.
    fn watch(&mut self, holders: Vec<Holder>, now_ns: u64) {
        for (name, held_s) in self.old(holders, now_ns) {
            let what = format_args!("{name} has held back vacuum for {held_s} s");
            alert_about(Alert::OldSnapshot, &name, what);
        }
    }

    /// The old ones, with the time that they have been held, seconds. `now_ns`: monotonic.
    fn old(&mut self, holders: Vec<Holder>, now_ns: u64) -> Vec<(String, u64)> {
        let mut seen = HashMap::new();
        let mut old = Vec::new();
        for Holder { name, horizon, held_s, .. } in holders {
            let key = (name.clone(), horizon);
            let since_ns = self.seen.get(&key).copied().unwrap_or(now_ns);
            let held_s = held_s.unwrap_or((now_ns - since_ns) / NS_PER_S);
            seen.insert(key, since_ns);
            if held_s > self.old_s {
                old.push((name, held_s));
            }
        }
        self.seen = seen;
        old
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
    if taken > 0 && taken >= left.saturating_mul(LOW_PART - 1) {
        let places = taken + left;
        let what = format_args!("{taken} of {places} places for {table} are taken");
        alert_about(Alert::PlacesLow, &table, what);
    }
}

/// Alerts about each refused end of a hold.
fn watch_ends(engine: &engine::Handle) {
    while let Some(RefusedEnd { venue, number, op, code, leg }) = engine.refused_end() {
        let (op, code) = (op.name(), code.name());
        let what = format_args!("venue {venue} #{number}: {op} is refused at leg {leg}: {code}");
        alert_about(Alert::SettleRefused, &format_args!("venue {venue}"), what);
    }
}

/// Alerts about venues with a full window for a second, and about old holds.
async fn watch_venues(service: &Service, config: &Config) {
    let (spot, clock) = (&service.spot, &service.intake.clock);
    if config.engine.venues_max == 0 {
        return;
    }
    let Ok(venues) = spot.venues().await else { return };
    let stuck_ns = config.alert.hold_stuck_ms.saturating_mul(NS_PER_MS);
    for venue in venues.iter().filter(|_| stuck_ns > 0) {
        let Some((number, made_ns)) = venue.oldest else { continue };
        let age_ns = clock.now_ns().saturating_sub(made_ns);
        if age_ns > stuck_ns {
            let (id, age_s) = (venue.id, age_ns / NS_PER_S);
            let what = format_args!("venue {id}: hold {id}:{number} is {age_s} s old");
            alert_about(Alert::HoldStuck, &format_args!("venue {id}"), what);
        }
    }
    let window = config.engine.window as u64;
    let full = |venue: &&VenueRow| venue.last - venue.acknowledged >= window;
    let before: Vec<VenueRow> = venues.iter().filter(full).copied().collect();
    if before.is_empty() {
        return;
    }
    clock.sleep(BEHIND).await;
    let Ok(venues) = spot.venues().await else { return };
    for venue in venues.iter().filter(full) {
        let &VenueRow { id, acknowledged, last, .. } = venue;
        if before.iter().any(|known| (known.id, known.acknowledged) == (id, acknowledged)) {
            let waiting = last - acknowledged;
            let what = format_args!(
                "venue {id} has acknowledged {acknowledged}, and {waiting} answers wait for it"
            );
            alert_about(Alert::VenueBehind, &format_args!("venue {id}"), what);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A holder without an age is old if it was seen for long enough with the same horizon. One
    /// that moves on is not.
    #[test]
    fn a_holder_without_an_age_is_watched() {
        let mut snapshots = Snapshots::new(10_000);
        let holder = |name: &str, horizon: &str, held_s| Holder {
            name: name.to_owned(),
            horizon: horizon.to_owned(),
            held_s,
            abandoned: false,
        };
        let round = |moved: &str| {
            vec![
                holder("slot", "5", None),
                holder("standby", moved, None),
                holder("a", "4", Some(11)),
            ]
        };
        let mut old = |moved, now_s: u64| snapshots.old(round(moved), now_s * NS_PER_S);
        let session = || ("a".to_owned(), 11);
        assert_eq!(old("6", 100), [session()]);
        assert_eq!(old("7", 110), [session()], "as long as allowed");
        assert_eq!(old("8", 111), [("slot".to_owned(), 11), session()]);
        assert_eq!(snapshots.old(Vec::new(), 112 * NS_PER_S), []);
        assert_eq!(snapshots.old(round("9"), 200 * NS_PER_S), [session()], "it was gone");
    }
}
