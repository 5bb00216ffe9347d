//! Observations of the machine: texts of the kernel, unchanged, and a measurement of the log's
//! disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::clock::Clock;

/// Number of syncs to measure, unless they take too long.
const SYNCS: usize = 200;
/// The least number of syncs to measure.
const SYNCS_MIN: usize = 20;
/// Time limit of the measurement.
const SYNCS_TIME: Duration = Duration::from_secs(3);
/// Bytes that each sync writes: a page.
const SYNC_BYTES: usize = 4_096;
/// The longest kernel text that is read, bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Observations of the machine. `None`: the machine does not show it.
pub(super) struct Machine {
    /// The log's directory, or the nearest existing directory above it.
    pub(super) log_dir: PathBuf,
    /// The same without links, as `/proc/self/mountinfo` names it.
    pub(super) log_dir_resolved: PathBuf,
    /// How long each sync took, sorted; or why it was not measured.
    pub(super) syncs: io::Result<Vec<Duration>>,
    /// Free space for this process on the log's file system, bytes.
    pub(super) free_bytes: Option<u64>,
    /// `/proc/self/mountinfo`.
    pub(super) mounts: Option<String>,
    /// `/proc/swaps`.
    pub(super) swaps: Option<String>,
    /// `/proc/meminfo`.
    pub(super) memory: Option<String>,
    /// `/proc/PID/status` of the service that has the log open.
    pub(super) service: Option<String>,
    /// The clock source that the kernel reads.
    pub(super) clocksource: Option<String>,
    /// The time services: names of their processes, or of a file that one of them wrote.
    pub(super) time_keepers: Vec<String>,
    /// The file `enabled` of transparent huge pages.
    pub(super) huge_pages: Option<String>,
    /// CPUs that the scheduler leaves alone, as the file `isolated` lists them.
    pub(super) isolated: Option<String>,
    /// CPUs that this process may run on, by index.
    pub(super) cpus: Vec<usize>,
    /// The hard limit of open files; `None`: no limit.
    pub(super) open_files: Option<u64>,
}

impl Machine {
    /// Collects the observations. The measurement writes one file in `log_dir` and removes it
    /// again.
    pub(super) fn look(log_dir: &Path, clock: &impl Clock) -> Machine {
        let system = Path::new("/sys/devices/system");
        let mut syncs = measure(log_dir, clock);
        if let Ok(syncs) = &mut syncs {
            syncs.sort_unstable();
        }
        let found = rustix::fs::statvfs(log_dir).ok();
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        Machine {
            log_dir: log_dir.to_owned(),
            log_dir_resolved: log_dir.canonicalize().unwrap_or_default(),
            syncs,
            free_bytes: found.map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
            mounts: text(Path::new("/proc/self/mountinfo")),
            swaps: text(Path::new("/proc/swaps")),
            memory: text(Path::new("/proc/meminfo")),
            service: service(log_dir),
            clocksource: text(&system.join("clocksource/clocksource0/current_clocksource")),
            time_keepers: time_keepers(),
            huge_pages: text(Path::new("/sys/kernel/mm/transparent_hugepage/enabled")),
            isolated: text(&system.join("cpu/isolated")),
            cpus: cores.into_iter().map(|core| core.id).collect(),
            open_files: getrlimit(Resource::Nofile).maximum,
        }
    }
}

/// A small text file of the kernel.
fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

/// A file that is removed on drop, so also when the measurement fails.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // An error means that the directory was removed with the file.
        fs::remove_file(&self.0).ok();
    }
}

/// The times of repeated syncs of one page, sorted. The log waits for such a sync.
fn measure(directory: &Path, clock: &impl Clock) -> io::Result<Vec<Duration>> {
    // The log ignores a file with this name.
    let scratch = Scratch(directory.join(format!(".doctor-{}", std::process::id())));
    let mut file = OpenOptions::new().write(true).create_new(true).open(&scratch.0)?;
    // Allocated before the measurement, like the log's segments: so the file does not grow.
    let page = [0x5a; SYNC_BYTES];
    for _ in 0..SYNCS {
        file.write_all(&page)?;
    }
    file.sync_all()?;
    io::Seek::rewind(&mut file)?;
    let (mut syncs, began) = (Vec::with_capacity(SYNCS), clock.monotonic_ns());
    while syncs.len() < SYNCS {
        let before = clock.monotonic_ns();
        file.write_all(&page)?;
        file.sync_data()?;
        let now = clock.monotonic_ns();
        syncs.push(Duration::from_nanos(now - before));
        if syncs.len() >= SYNCS_MIN && Duration::from_nanos(now - began) > SYNCS_TIME {
            break;
        }
    }
    Ok(syncs)
}

/// The status of the process that has the log open, by the pid in the log's lock file. The lock
/// itself is not taken.
fn service(log_dir: &Path) -> Option<String> {
    let pid: u32 = text(&log_dir.join("lock"))?.parse().ok()?;
    let status = text(Path::new(&format!("/proc/{pid}/status")))?;
    // By now another process may have this pid.
    status.starts_with("Name:\tubscore\n").then_some(status)
}

/// Time services, by the process names that the kernel cuts after 15 characters.
const TIME_KEEPERS: [&str; 6] =
    ["chronyd", "ntpd", "openntpd", "systemd-timesyn", "ptp4l", "phc2sys"];

fn time_keepers() -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten();
    let name = |entry: io::Result<fs::DirEntry>| text(&entry.ok()?.path().join("comm"));
    let mut names: Vec<String> =
        processes.filter_map(name).filter(|name| TIME_KEEPERS.contains(&name.as_str())).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() && Path::new("/run/systemd/timesync/synchronized").exists() {
        names.push("systemd-timesyncd".to_owned());
    }
    names
}
