//! The files in a data directory: segments of the log, and snapshots.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{Server, Site, eventually};

/// All snapshots as (sequence, path), newest first.
pub(crate) fn snapshots(site: &Site) -> Vec<(u64, PathBuf)> {
    let mut found: Vec<_> = numbered_files(&site.snapshot_dir(), "snapshot-", ".snap");
    found.reverse();
    found
}

/// All segments as (number, path), oldest first.
pub(crate) fn segments(site: &Site) -> Vec<(u64, PathBuf)> {
    numbered_files(&site.log_dir(), "segment-", ".wal")
}

/// Files with a number in their names, as written by the log, as (number, path), the smallest
/// first.
pub(crate) fn numbered_files(directory: &Path, prefix: &str, suffix: &str) -> Vec<(u64, PathBuf)> {
    let number = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(prefix)?.strip_suffix(suffix)?;
        Some((u64::from_str_radix(name, 16).ok()?, path.clone()))
    };
    let entries = fs::read_dir(directory).expect("a directory");
    let mut found: Vec<_> =
        entries.filter_map(|entry| number(entry.expect("an entry").path())).collect();
    found.sort();
    found
}

/// Requests a snapshot and waits until it exists; returns its sequence.
pub(crate) fn force(site: &Site, server: &Server) -> u64 {
    let reply = server.admin("POST", "/admin/v1/snapshot", &json!({"reason": "a test"}));
    assert_eq!(reply.status, 202, "{reply:?}");
    let after = reply.json()["after"].as_u64().expect("a number");
    eventually("a snapshot", || {
        let newest = snapshots(site).first()?.0;
        (newest > after).then_some(newest)
    })
}
