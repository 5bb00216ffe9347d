//! The memory of this process.

use std::fs;

use anyhow::Context;

/// The process's resident bytes.
pub(crate) fn resident() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kilobytes = line.trim().strip_suffix(" kB").context("VmRSS in another unit")?;
    Ok(kilobytes.parse::<u64>()? * 1_024)
}
