//! The checks. Each one takes the observations and returns its findings. No check does I/O.

use std::io;
use std::path::Path;
use std::time::Duration;

use engine::places::BALANCES_PER_ACCOUNT;

use super::channels::ChannelsSeen;
use super::finding::{Finding, Verdict};
use super::pair::Pair;
use super::seen::{Seen, Unasked};
use crate::config::Config;
use crate::config::engine::Wait;
use crate::config::snapshot::{KEEPS_POSTINGS, KEEPS_POSTINGS_CHANGE};
use crate::postgres::horizon::Holder;
use crate::postgres::recover::RECOVER_NEXT;
use crate::postgres::settings::Settings;

/// Every check, in the order of the report.
pub(super) const CHECKS: &[fn(&Seen) -> Vec<Finding>] = &[
    |seen| {
        let old = Duration::from_millis(seen.config.alert.old_snapshot_ms);
        postgres(seen.postgres.as_ref(), connections_needed(seen), old)
    },
    |seen| seen.pair.iter().map(pair).collect(),
    |seen| seen.pair.iter().filter_map(recharges).collect(),
    |seen| trades(seen).into_iter().collect(),
    |seen| vec![disk_sync(&seen.machine.syncs)],
    |seen| vec![file_system(seen.machine.mounts.as_deref(), &seen.machine.log_dir_resolved)],
    |seen| vec![space(seen)],
    |seen| vec![clocksource(seen.machine.clocksource.as_deref())],
    |seen| vec![clock_kept(&seen.machine.time_keepers)],
    |seen| vec![open_files(seen.machine.open_files, files_needed(seen))],
    |seen| vec![cpus(seen)],
    |seen| vec![core(seen)],
    |seen| vec![outcomes(&seen.config, seen.rate)],
    |seen| vec![memory(seen.machine.memory.as_deref(), memory_needed(seen))],
    |seen| vec![swap(seen.machine.swaps.as_deref(), seen.machine.service.as_deref())],
    |seen| vec![huge_pages(seen.machine.huge_pages.as_deref())],
    |seen| seen.channels.as_ref().map_or_else(Vec::new, ChannelsSeen::findings),
];

fn finding(
    check: &'static str,
    verdict: Verdict,
    found: impl Into<String>,
    change: impl Into<String>,
) -> Finding {
    let change = (verdict != Verdict::Ok).then(|| change.into());
    Finding { check, verdict, found: found.into(), change }
}

fn fine(check: &'static str, found: impl Into<String>) -> Finding {
    finding(check, Verdict::Ok, found, "")
}

fn recharges(seen: &Pair) -> Option<Finding> {
    let found = "the database was restored: recharges may be lost, and no refund is sent";
    seen.recover_needed.then(|| finding("recharges", Verdict::Bad, found, RECOVER_NEXT))
}

fn unseen(check: &'static str, what: &str) -> Finding {
    finding(check, Verdict::Warn, format!("cannot read {what}"), "check it by hand")
}

/// The oldest major version that is tested.
const POSTGRES_MAJOR_MIN: i32 = 14;
/// Connections of the service beside the pool for reads and one for each worker: Funding, the
/// audit, the audit's check, the watermark, retention, webhooks, the server's watch, and one
/// command. Each follower has one more.
const CONNECTIONS_BESIDE: u64 = 8;
/// The largest difference of the clocks that a slow answer explains, ms.
const CLOCKS_APART_MS: u64 = 250;
/// Above this difference the times in answers and in tokens disagree, ms.
const CLOCKS_FAR_APART_MS: u64 = 5_000;

fn connections_needed(seen: &Seen) -> i64 {
    let config = &seen.config;
    let ours = config.postgres.connections_max + config.coordinator.shards;
    // Looks at told payments have a pool of their own.
    let looks = if config.channels.is_empty() { 0 } else { 2 };
    let ours = ours + config.followers.len() + looks;
    i64::try_from(ours as u64 + CONNECTIONS_BESIDE).expect("some hundreds")
}

/// The findings about a PostgreSQL. `needed`: connections; `old`: the age of a snapshot that is
/// told.
pub(super) fn postgres(
    asked: Result<&Settings, &Unasked>,
    needed: i64,
    old: Duration,
) -> Vec<Finding> {
    let settings = match asked {
        Ok(settings) => settings,
        Err(Unasked::NotRunning) => {
            let found = "the embedded server does not run, so it was not checked";
            let change = "repeat the check while the service runs";
            return vec![finding("postgres", Verdict::Warn, found, change)];
        }
        Err(Unasked::Failed(why)) => {
            let change = "check that PostgreSQL runs and takes writes, and check postgres.url";
            return vec![finding("postgres", Verdict::Bad, why.clone(), change)];
        }
    };
    vec![
        postgres_version(settings),
        postgres_on("postgres fsync", "fsync", &settings.fsync),
        postgres_on("postgres full_page_writes", "full_page_writes", &settings.full_page_writes),
        synchronous_commit(settings),
        standbys(settings),
        wal_level(settings),
        connections(settings, needed),
        checksums(settings),
        snapshots(&settings.snapshot_holders, old),
        clocks(settings.clock_ahead_ms),
    ]
}

fn postgres_version(settings: &Settings) -> Finding {
    let verdict = if settings.major < POSTGRES_MAJOR_MIN { Verdict::Bad } else { Verdict::Ok };
    let change = format!("use PostgreSQL {POSTGRES_MAJOR_MIN} or later");
    finding("postgres version", verdict, settings.version.clone(), change)
}

fn postgres_on(check: &'static str, setting: &str, value: &str) -> Finding {
    let verdict = if value == "on" { Verdict::Ok } else { Verdict::Bad };
    let change = format!(
        "ALTER SYSTEM SET {setting} = on; SELECT pg_reload_conf(); without it a power cut loses \
         acknowledged transfers"
    );
    finding(check, verdict, value, change)
}

fn synchronous_commit(settings: &Settings) -> Finding {
    let check = "postgres synchronous_commit";
    match settings.synchronous_commit.as_str() {
        value @ ("on" | "remote_apply") => {
            fine(check, format!("{value} on the service's connections"))
        }
        value => {
            let change = "connect without a pooler that drops the startup option \
                          synchronous_commit=on";
            finding(check, Verdict::Bad, format!("{value} on the service's connections"), change)
        }
    }
}

fn standbys(settings: &Settings) -> Finding {
    let check = "postgres standbys";
    let names = &settings.synchronous_standby_names;
    match (names.is_empty(), settings.synchronous_standbys) {
        (true, _) => {
            let found =
                "no commit waits for a standby: acknowledged transfers are on one machine only";
            let change =
                "for a second copy: synchronous_standby_names = 'ANY 1 (a, b)' and two standbys";
            finding(check, Verdict::Warn, found, change)
        }
        (false, None) => {
            let found = format!("{names}; no right to read whether they are connected");
            let change = "GRANT pg_read_all_stats TO the service's role";
            finding(check, Verdict::Warn, found, change)
        }
        (false, Some(0)) => {
            let found = format!("{names}; none of them is connected, so no commit ends");
            let change = "start a standby, or remove it from synchronous_standby_names";
            finding(check, Verdict::Bad, found, change)
        }
        (false, Some(1)) => {
            let found = format!("{names}; one is connected: if it stops, no commit ends");
            finding(check, Verdict::Warn, found, "run a second standby")
        }
        (false, Some(count)) => fine(check, format!("{names}; {count} are connected")),
    }
}

fn wal_level(settings: &Settings) -> Finding {
    let (check, level) = ("postgres wal_level", settings.wal_level.as_str());
    match level {
        "minimal" => {
            let change = "ALTER SYSTEM SET wal_level = replica, and restart PostgreSQL: minimal allows \
                          neither a standby nor an archive";
            finding(check, Verdict::Warn, level, change)
        }
        level => fine(check, level),
    }
}

fn connections(settings: &Settings, needed: i64) -> Finding {
    let check = "postgres max_connections";
    let Settings { connections_max, connections_reserved, connections_of_others, .. } = settings;
    let free = connections_max - connections_reserved - connections_of_others;
    let found = format!(
        "{connections_max}: {connections_reserved} reserved, {connections_of_others} in use by other \
         programs; the service needs {needed}"
    );
    let want = connections_reserved + connections_of_others + 2 * needed;
    let change = format!("ALTER SYSTEM SET max_connections = {want}, and restart PostgreSQL");
    let verdict = match free {
        free if free < needed => Verdict::Bad,
        // During a takeover two processes hold their connections.
        free if free < 2 * needed => Verdict::Warn,
        _ => Verdict::Ok,
    };
    finding(check, verdict, found, change)
}

fn checksums(settings: &Settings) -> Finding {
    let check = "postgres data_checksums";
    match settings.data_checksums.as_str() {
        "on" => fine(check, "on"),
        value => {
            let change = "stop PostgreSQL, and run pg_checksums --enable: without checksums a damaged \
                          page is not detected";
            finding(check, Verdict::Warn, value, change)
        }
    }
}

/// `old`: a snapshot is old after this time.
fn snapshots(holders: &[Holder], old: Duration) -> Finding {
    let check = "postgres snapshots";
    let is_old = |holder: &&Holder| {
        holder.abandoned || holder.held_s.is_some_and(|seconds| seconds > old.as_secs())
    };
    let name = |holder: &Holder| match holder.held_s {
        Some(seconds) => format!("{} for {seconds} s", holder.name),
        None => format!("{}, which has no consumer", holder.name),
    };
    let found: Vec<String> = holders.iter().filter(is_old).map(name).collect();
    match found.is_empty() {
        true => fine(check, format!("none is older than {} s", old.as_secs())),
        false => finding(
            check,
            Verdict::Warn,
            format!("vacuum is held back by {}", found.join(", ")),
            "end the transaction, or drop the slot: dead versions of rows pile up meanwhile",
        ),
    }
}

fn clocks(ahead_ms: i64) -> Finding {
    let apart_ms = ahead_ms.unsigned_abs();
    let word = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let found = format!("PostgreSQL's clock is {apart_ms} ms {word} this machine's");
    let verdict = if apart_ms <= CLOCKS_APART_MS {
        Verdict::Ok
    } else if apart_ms <= CLOCKS_FAR_APART_MS {
        Verdict::Warn
    } else {
        Verdict::Bad
    };
    finding("clocks", verdict, found, "use the same time servers on both machines")
}

fn pair(seen: &Pair) -> Finding {
    let check = "log and database";
    let bad =
        |found: String, next: &str| finding(check, Verdict::Bad, found, format!("next: {next}"));
    let Pair { database, log, .. } = seen;
    let bound = database.as_ref().and_then(|(bound, claimed)| Some((bound.log?, bound, *claimed)));
    let Some((database, bound, claimed)) = bound else {
        return match log.identity {
            Some(found) if log.last > 0 => bad(
                format!("the log is {found}, the database has never had one: they are not a pair"),
                "set postgres.url to the database of this log",
            ),
            _ => fine(check, "both are unused"),
        };
    };
    if bound.begun {
        return bad(
            format!("the rebuild of log {database} has begun and is not finished"),
            "ubscore engine adopt --apply --reason TEXT",
        );
    }
    match (log.identity, &log.unreadable) {
        (_, _) if !log.is_there => bad(
            format!("the database belongs to log {database}, and there is no log"),
            "mount or set the right data_dir; if the log is lost, ubscore restore --only-log with a \
             backup, or ubscore engine adopt --plan",
        ),
        (Some(found), _) if found != database => bad(
            format!(
                "the log is {found}, the database belongs to log {database}: they are not a pair"
            ),
            "set data_dir and postgres.url to a log and its database",
        ),
        (_, Some(why)) => bad(
            format!("log {database} cannot be read: {why}"),
            "ubscore wal repair; if it finds no beginning, ubscore engine adopt --plan",
        ),
        (None, None) => {
            bad(format!("no header of log {database} can be read"), "ubscore wal repair")
        }
        (Some(_), None) if log.last < claimed => bad(
            format!(
                "log {database} ends at record {}, but PostgreSQL recorded record {claimed} as durable",
                log.last
            ),
            "ubscore wal repair",
        ),
        (Some(_), None) => {
            fine(check, format!("a pair: log {database}, up to record {}", log.last))
        }
    }
}

/// The segments with postings of venues. No finding without a venue.
fn trades(seen: &Seen) -> Option<Finding> {
    let (bound, _) = seen.pair.as_ref()?.database.as_ref()?;
    let check = "trades";
    let snapshot = &seen.config.snapshot;
    bound.posted.then(|| match snapshot.keeps_postings() {
        true => finding(check, Verdict::Warn, KEEPS_POSTINGS, KEEPS_POSTINGS_CHANGE),
        false if snapshot.archive_command.is_empty() => {
            fine(check, "postings of venues are removed with their segments, as configured")
        }
        false => fine(check, "segments with postings are archived before they are removed"),
    })
}

/// Slower syncs of the log dominate the time of a transfer, p50 and p99.
const SYNC_SLOW: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(20)];
/// A slower p50 delays every transfer noticeably.
const SYNC_BAD: Duration = Duration::from_millis(200);
/// No known medium makes a page durable faster than this.
const SYNC_UNLIKELY: Duration = Duration::from_micros(8);

fn disk_sync(syncs: &io::Result<Vec<Duration>>) -> Finding {
    let check = "disk sync";
    let syncs = match syncs {
        Ok(syncs) if !syncs.is_empty() => syncs,
        Ok(_) => return unseen(check, "the time of a sync"),
        Err(why) => {
            let change = "run this command as the service's user";
            return finding(check, Verdict::Warn, format!("not measured: {why}"), change);
        }
    };
    let [p50, p99] =
        [50, 99].map(|percent| syncs[(syncs.len() * percent / 100).min(syncs.len() - 1)]);
    let found = format!(
        "fdatasync of 4 KiB: p50 {} us, p99 {} us, of {}; expected below {} us and {} us",
        p50.as_micros(),
        p99.as_micros(),
        syncs.len(),
        SYNC_SLOW[0].as_micros(),
        SYNC_SLOW[1].as_micros(),
    );
    let faster = "put data_dir on its own disk with a cache that survives a power cut";
    if p50 > SYNC_BAD {
        finding(check, Verdict::Bad, found, faster)
    } else if p50 > SYNC_SLOW[0] || p99 > SYNC_SLOW[1] {
        finding(check, Verdict::Warn, found, faster)
    } else if p50 < SYNC_UNLIKELY {
        let change =
            "no disk is as fast: check that the disk and all layers above it honour a flush";
        finding(check, Verdict::Warn, found, change)
    } else {
        fine(check, found)
    }
}

/// The type of the file system of a path: the mount with the longest mount point above the path. Of
/// several mounts at one point the last one counts, because it covers the others.
///
/// Source: proc_pid_mountinfo(5).
fn file_system_type<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let of_line = |line: &'a str| {
        let (before, after) = line.split_once(" - ")?;
        // The kernel writes a blank as \040.
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        path.starts_with(&point).then(|| (point.len(), after.split(' ').next().unwrap_or("")))
    };
    mounts.lines().filter_map(of_line).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

fn file_system(mounts: Option<&str>, path: &Path) -> Finding {
    let check = "file system";
    let Some(kind) = mounts.and_then(|mounts| file_system_type(mounts, path)) else {
        return unseen(check, "its type");
    };
    let local = "put data_dir on a local file system, ext4 or xfs";
    let found = format!("{kind}, at {}", path.display());
    match kind {
        "tmpfs" | "ramfs" => {
            finding(check, Verdict::Bad, format!("{found}: lost at a power cut"), local)
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" => finding(
            check,
            Verdict::Bad,
            format!("{found}: locks and syncs go over a network"),
            local,
        ),
        "overlay" | "aufs" => {
            let found = format!("{found}: removed together with its container");
            finding(check, Verdict::Warn, found, "give the container a volume for data_dir")
        }
        kind if kind.starts_with("fuse") => finding(
            check,
            Verdict::Warn,
            format!("{found}: its program decides whether a sync is durable"),
            local,
        ),
        _ => fine(check, found),
    }
}

fn space(seen: &Seen) -> Finding {
    let check = "disk space";
    let Some(free) = seen.machine.free_bytes else { return unseen(check, "the free space") };
    let wal = &seen.config.wal;
    // The segment in use, the prepared segments, and a snapshot at least as large as a segment.
    let needed = wal.segment_bytes * (wal.spares_ready as u64 + 2);
    // Below 1 MiB in KiB, so that the text is never "0 MiB".
    let size = |bytes: u64| match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    };
    let found = format!("{} are free for {}", size(free), seen.machine.log_dir.display());
    let (verdict, want) = match free {
        free if free < needed => (Verdict::Bad, needed),
        free if free < wal.space_low_bytes => (Verdict::Warn, wal.space_low_bytes),
        _ => (Verdict::Ok, needed),
    };
    let change = format!("free at least {}: without room new transfers are refused", size(want));
    finding(check, verdict, found, change)
}

fn clocksource(name: Option<&str>) -> Finding {
    let check = "clocksource";
    match name {
        None => unseen(check, "the kernel's clocksource"),
        Some(slow @ ("hpet" | "acpi_pm" | "jiffies" | "pit" | "refined-jiffies")) => {
            let change = "boot with clocksource=tsc if the CPU's TSC is constant: reading this clock is slow";
            finding(check, Verdict::Warn, slow, change)
        }
        Some(name) => fine(check, name),
    }
}

fn clock_kept(keepers: &[String]) -> Finding {
    let check = "clock";
    match keepers {
        [] => {
            let found = "no time service is visible from here";
            let change = "run chronyd or systemd-timesyncd, or check the container's host";
            finding(check, Verdict::Warn, found, change)
        }
        keepers => fine(check, format!("kept by {}", keepers.join(", "))),
    }
}

/// Open files beside the connections of clients: segments, snapshots, PostgreSQL, pipes.
const FILES_BESIDE: u64 = 256;

fn files_needed(seen: &Seen) -> u64 {
    let config = &seen.config;
    // The operators' listener may hold as many connections.
    2 * config.http.connections_max as u64 + config.postgres.connections_max as u64 + FILES_BESIDE
}

fn open_files(limit: Option<u64>, needed: u64) -> Finding {
    let check = "open files";
    let Some(limit) = limit else { return fine(check, "no limit") };
    let found = format!("the limit is {limit}; http.connections_max needs {needed}");
    let verdict = if limit < needed { Verdict::Bad } else { Verdict::Ok };
    let change =
        format!("set LimitNOFILE={needed} in the service's unit, or lower http.connections_max");
    finding(check, verdict, found, change)
}

fn cpus(seen: &Seen) -> Finding {
    let check = "cpus";
    let (count, shards) = (seen.machine.cpus.len(), seen.config.coordinator.shards);
    if count == 0 {
        return unseen(check, "the CPUs of this process");
    }
    let busy = seen.config.engine.wait == Wait::Busy;
    let word = if busy { "busy" } else { "adaptive" };
    let found = format!("{count} CPUs, engine.wait = {word}, coordinator.shards = {shards}");
    if busy && count < 3 {
        let change =
            "set engine.wait = \"adaptive\": a spinning thread leaves too little for the others";
        return finding(check, Verdict::Bad, found, change);
    }
    if shards > count {
        let change = format!(
            "set coordinator.shards = {count}: more workers than CPUs only make batches smaller"
        );
        return finding(check, Verdict::Warn, found, change);
    }
    if count < 2 {
        return finding(
            check,
            Verdict::Warn,
            found,
            "use two or more CPUs: UBSCore needs one of its own",
        );
    }
    fine(check, found)
}

/// Whether a list of CPUs in the kernel's format, such as `2-5,8`, contains this one.
fn lists(list: &str, cpu: usize) -> bool {
    let holds = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse().ok().zip(last.trim().parse().ok());
        range.is_some_and(|(first, last): (usize, usize)| (first..=last).contains(&cpu))
    };
    list.split(',').any(holds)
}

fn core(seen: &Seen) -> Finding {
    let check = "engine core";
    let busy = seen.config.engine.wait == Wait::Busy;
    let Some(cpu) = seen.config.engine.core.and_then(|cpu| usize::try_from(cpu).ok()) else {
        let found = "engine.core is not set: the kernel chooses";
        return match busy {
            true => finding(
                check,
                Verdict::Warn,
                found,
                "set engine.core to a reserved CPU, because engine.wait = \"busy\"",
            ),
            false => fine(check, found),
        };
    };
    let found = format!("engine.core = {cpu}");
    if !seen.machine.cpus.contains(&cpu) {
        let cpus = &seen.machine.cpus;
        let change = format!(
            "choose one of {cpus:?}, or allow this CPU to the service: now the thread runs unpinned"
        );
        return finding(check, Verdict::Bad, found, change);
    }
    if busy && !seen.machine.isolated.as_deref().is_some_and(|list| lists(list, cpu)) {
        let found = format!("{found}; other processes are scheduled on this CPU too");
        let change = format!("boot with isolcpus={cpu}, or reserve the CPU with cpusets");
        return finding(check, Verdict::Warn, found, change);
    }
    fine(check, found)
}

/// Whether the outcome map is large enough for the measured `rate`, transfers per second.
fn outcomes(config: &Config, rate: Option<u64>) -> Finding {
    let check = "outcome map";
    let (places, keep) = (config.engine.outcomes_max, config.outcomes.keep());
    let rate_max = config.outcomes.rate_max(places);
    let lately = rate.map_or_else(String::new, |rate| format!("; lately {rate} transfers/s"));
    let found = format!("{places} places and {keep:?} carry {rate_max} transfers/s{lately}");
    match rate {
        Some(rate) if rate > rate_max => {
            let change = "raise engine.outcomes_max, or lower outcomes.keep_minutes: a full map \
                          refuses transfers";
            finding(check, Verdict::Warn, found, change)
        }
        Some(_) | None => fine(check, found),
    }
}

/// Memory of an account and of an outcome, bytes, as `config/ubscore.toml` states them.
const ACCOUNT_BYTES: u64 = 200;
const OUTCOME_BYTES: u64 = 100;
/// Memory of a hold, of a balance's sums, and of an answer of a venue, bytes.
const HOLD_BYTES: u64 = 100;
const SUMS_BYTES: u64 = 48;
const ANSWER_BYTES: u64 = 24;
/// Memory of the rest of the process, bytes.
const BESIDE_BYTES: u64 = 256 << 20;

fn memory_needed(seen: &Seen) -> u64 {
    let engine = &seen.config.engine;
    let venues = match engine.venues_max as u64 {
        0 => 0,
        venues => {
            let balances = (engine.accounts_max * BALANCES_PER_ACCOUNT) as u64;
            let answers = venues * engine.window as u64;
            engine.holds_max as u64 * HOLD_BYTES + balances * SUMS_BYTES + answers * ANSWER_BYTES
        }
    };
    let accounts = engine.accounts_max as u64 * ACCOUNT_BYTES;
    let state = accounts + engine.outcomes_max as u64 * OUTCOME_BYTES + venues;
    // During a snapshot a second copy is in memory.
    2 * state + BESIDE_BYTES
}

/// A line `Name:   123 kB`, bytes.
///
/// Source: proc_meminfo(5), proc_pid_status(5).
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

fn memory(text: Option<&str>, needed: u64) -> Finding {
    let check = "memory";
    let Some(total) = text.and_then(|text| kilobytes(text, "MemTotal")) else {
        return unseen(check, "the size of the memory");
    };
    let mib = |bytes: u64| bytes >> 20;
    let found = format!("{} MiB; the service needs at most {} MiB", mib(total), mib(needed));
    let change = "lower engine.accounts_max or engine.outcomes_max, or add memory";
    let verdict = match total {
        total if total < needed => Verdict::Bad,
        total if total / 2 < needed => Verdict::Warn,
        _ => Verdict::Ok,
    };
    finding(check, verdict, found, change)
}

/// `swaps`: in the format of proc_swaps(5), a line of names and one line for each device.
/// `service`: the status of the running service.
fn swap(swaps: Option<&str>, service: Option<&str>) -> Finding {
    let check = "swap";
    let Some(swaps) = swaps else { return unseen(check, "the swap devices") };
    let swapped = service.and_then(|status| kilobytes(status, "VmSwap")).unwrap_or(0);
    if swapped > 0 {
        let found = format!("{} KiB of the running service are swapped out", swapped >> 10);
        let change = "swapoff -a, and restart the service: UBSCore stops all transfers while it reads \
                      a page from disk";
        return finding(check, Verdict::Bad, found, change);
    }
    match swaps.lines().count().saturating_sub(1) {
        0 => fine(check, "none"),
        devices => {
            let found = format!("the machine uses {devices} swap devices, the service none");
            let change = "set MemorySwapMax=0 in the service's unit, or swapoff -a";
            finding(check, Verdict::Warn, found, change)
        }
    }
}

fn huge_pages(enabled: Option<&str>) -> Finding {
    let check = "huge pages";
    let Some(enabled) = enabled else { return unseen(check, "transparent_hugepage/enabled") };
    let chosen = enabled.split(['[', ']']).nth(1).unwrap_or("");
    match chosen {
        "never" => {
            let change = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: UBSCore's tables use \
                          huge pages";
            finding(check, Verdict::Warn, chosen, change)
        }
        chosen => fine(check, chosen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            version: "17.2".to_owned(),
            major: 17,
            fsync: "on".to_owned(),
            full_page_writes: "on".to_owned(),
            synchronous_commit: "on".to_owned(),
            synchronous_standby_names: "ANY 1 (a, b)".to_owned(),
            synchronous_standbys: Some(2),
            wal_level: "replica".to_owned(),
            connections_max: 100,
            connections_reserved: 3,
            connections_of_others: 7,
            data_checksums: "on".to_owned(),
            clock_ahead_ms: 0,
            snapshot_holders: Vec::new(),
        }
    }

    fn holder(held_s: Option<u64>, abandoned: bool) -> Holder {
        Holder { name: "pid 7".to_owned(), horizon: "5".to_owned(), held_s, abandoned }
    }

    #[test]
    fn a_young_snapshot_and_a_slot_in_use_are_fine() {
        let holders = [holder(Some(600), false), holder(None, false)];
        let finding = snapshots(&holders, Duration::from_secs(600));
        assert_eq!(finding.verdict, Verdict::Ok, "{finding:?}");
    }

    /// The findings about settings that are not ok.
    fn verdicts(settings: &Settings, needed: i64) -> Vec<(&'static str, Verdict)> {
        let findings = postgres(Ok(settings), needed, Duration::from_secs(600));
        let odd = findings.into_iter().filter(|finding| finding.verdict != Verdict::Ok);
        odd.map(|finding| {
            assert!(finding.change.is_some(), "{finding:?}");
            (finding.check, finding.verdict)
        })
        .collect()
    }

    #[test]
    fn each_setting_of_postgresql_is_judged_alone() {
        use Verdict::{Bad, Warn};
        assert_eq!(verdicts(&settings(), 15), []);
        let text = |text: &str| text.to_owned();
        for (settings, needed, want) in [
            (Settings { fsync: text("off"), ..settings() }, 15, ("postgres fsync", Bad)),
            (
                Settings { full_page_writes: text("off"), ..settings() },
                15,
                ("postgres full_page_writes", Bad),
            ),
            (
                Settings { synchronous_commit: text("local"), ..settings() },
                15,
                ("postgres synchronous_commit", Bad),
            ),
            (
                Settings { synchronous_standby_names: text(""), ..settings() },
                15,
                ("postgres standbys", Warn),
            ),
            (
                Settings { synchronous_standbys: Some(0), ..settings() },
                15,
                ("postgres standbys", Bad),
            ),
            (
                Settings { synchronous_standbys: None, ..settings() },
                15,
                ("postgres standbys", Warn),
            ),
            (
                Settings { wal_level: text("minimal"), ..settings() },
                15,
                ("postgres wal_level", Warn),
            ),
            (Settings { major: 12, ..settings() }, 15, ("postgres version", Bad)),
            (settings(), 46, ("postgres max_connections", Warn)),
            (settings(), 91, ("postgres max_connections", Bad)),
            (
                Settings { data_checksums: text("off"), ..settings() },
                15,
                ("postgres data_checksums", Warn),
            ),
            (
                Settings { snapshot_holders: vec![holder(Some(601), false)], ..settings() },
                15,
                ("postgres snapshots", Warn),
            ),
            (
                Settings { snapshot_holders: vec![holder(None, true)], ..settings() },
                15,
                ("postgres snapshots", Warn),
            ),
            (Settings { clock_ahead_ms: -251, ..settings() }, 15, ("clocks", Warn)),
            (Settings { clock_ahead_ms: 5_001, ..settings() }, 15, ("clocks", Bad)),
        ] {
            assert_eq!(verdicts(&settings, needed), [want], "{settings:?}");
        }
        let away = Unasked::Failed("no route".to_owned());
        for (why, want) in [(Unasked::NotRunning, Warn), (away, Bad)] {
            let found = postgres(Err(&why), 15, Duration::from_secs(600));
            assert_eq!(found.iter().map(|found| found.verdict).collect::<Vec<_>>(), [want]);
        }
    }

    #[test]
    fn a_disk_is_judged_by_its_syncs() {
        for (p50_us, p99_us, want) in [
            (100, 900, Verdict::Ok),
            (4_000, 5_000, Verdict::Warn),
            (100, 30_000, Verdict::Warn),
            (300_000, 300_000, Verdict::Bad),
            (2, 3, Verdict::Warn),
        ] {
            let mut syncs = vec![Duration::from_micros(p50_us); 98];
            syncs.extend([Duration::from_micros(p99_us); 2]);
            let found = disk_sync(&Ok(syncs));
            assert_eq!(found.verdict, want, "{found:?}");
            assert!(
                found.found.contains(&format!("p50 {p50_us} us, p99 {p99_us} us")),
                "{found:?}"
            );
        }
        assert_eq!(disk_sync(&Err(io::ErrorKind::PermissionDenied.into())).verdict, Verdict::Warn);
    }

    #[test]
    fn a_path_is_on_the_file_system_mounted_nearest_above_it() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      30 22 0:26 / /data rw - xfs /dev/sdb rw\n\
                      31 22 0:27 / /data\\040disk rw - nfs4 host:/x rw\n\
                      32 30 0:28 / /data/wal rw - zfs tank rw\n\
                      33 32 0:29 / /data/wal rw shared:7 master:2 - tmpfs tmpfs rw\n";
        for (path, want) in [
            ("/home", "ext4"),
            ("/data", "xfs"),
            ("/database", "ext4"),
            ("/data disk/x", "nfs4"),
            ("/data/wal/x", "tmpfs"),
        ] {
            assert_eq!(file_system_type(mounts, Path::new(path)), Some(want), "{path}");
        }
        assert_eq!(file_system_type("", Path::new("/")), None);
        let judged = |path: &str| file_system(Some(mounts), Path::new(path)).verdict;
        assert_eq!(judged("/data"), Verdict::Ok);
        assert_eq!((judged("/data/wal"), judged("/data disk")), (Verdict::Bad, Verdict::Bad));
    }

    #[test]
    fn swap_is_judged_by_the_machine_and_by_the_service() {
        let none = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority";
        let some = format!("{none}\n/swap.img file 2097148 0 -2");
        let status = |kilobytes| format!("Name:\tubscore\nVmSwap:\t  {kilobytes} kB\nThreads:\t9");
        for (swaps, service, want) in [
            (none, None, Verdict::Ok),
            (none, Some(status(0)), Verdict::Ok),
            (&*some, Some(status(0)), Verdict::Warn),
            (&*some, None, Verdict::Warn),
            (&*some, Some(status(12)), Verdict::Bad),
        ] {
            assert_eq!(swap(Some(swaps), service.as_deref()).verdict, want, "{swaps} {service:?}");
        }
    }

    #[test]
    fn what_the_kernel_writes_is_read() {
        let text = "MemTotal:        8167848 kB\nMemFree:          123 kB\nHugePages_Total:    7";
        assert_eq!(kilobytes(text, "MemTotal"), Some(8_167_848 << 10));
        assert_eq!(kilobytes(text, "Mem"), None);
        assert_eq!(kilobytes(text, "HugePages_Total"), None);
        for (list, cpu, want) in [
            ("", 0, false),
            ("3", 3, true),
            ("2-5,8", 8, true),
            ("2-5,8", 6, false),
            ("x", 0, false),
        ] {
            assert_eq!(lists(list, cpu), want, "{list} {cpu}");
        }
        for (enabled, want) in
            [("always [madvise] never", Verdict::Ok), ("always madvise [never]", Verdict::Warn)]
        {
            assert_eq!(huge_pages(Some(enabled)).verdict, want);
        }
        let config = Config::default();
        for (rate, want) in
            [(None, Verdict::Ok), (Some(9_000), Verdict::Ok), (Some(90_000), Verdict::Warn)]
        {
            assert_eq!(outcomes(&config, rate).verdict, want, "{rate:?}");
        }
        assert_eq!(clocksource(Some("tsc")).verdict, Verdict::Ok);
        assert_eq!(clocksource(Some("hpet")).verdict, Verdict::Warn);
        assert_eq!(open_files(Some(1_024), 2_312).verdict, Verdict::Bad);
        assert_eq!(open_files(None, 2_312).verdict, Verdict::Ok);
        assert_eq!(memory(Some(text), 3 << 30).verdict, Verdict::Ok);
        assert_eq!(memory(Some(text), 5 << 30).verdict, Verdict::Warn);
        assert_eq!(memory(Some(text), 9 << 30).verdict, Verdict::Bad);
    }
}
