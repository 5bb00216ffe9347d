//! The resident memory of this process, and of ledgers.

use std::fs;

use anyhow::Context;
use engine::ledger::Ledger;
use engine::places::Places;

/// The memory of an empty ledger, with all its places.
pub(crate) fn resident_of(places: Places) -> anyhow::Result<u64> {
    let before = resident()?;
    let mut ledger = Ledger::new(places);
    ledger.prefault();
    let after = resident()?;
    assert_eq!(ledger.outcome_count(), 0, "a new ledger");
    Ok(after.saturating_sub(before))
}

/// The process's resident bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes = line.trim().strip_suffix(" kB").context("VmRSS in another unit")?;
    Ok(kilobytes.parse::<u64>()? * 1_024)
}
