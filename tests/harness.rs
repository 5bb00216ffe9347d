//! The only helpers: one PostgreSQL per run, a database and a data directory per test, the real
//! binary, an HTTP client, and the sums to compare.
//!
//! No test is skipped because a part is missing: a missing PostgreSQL is a failure. No test waits
//! for a fixed time. To wait for a condition, a test polls it, and fails at [`PATIENCE`].

mod browser;
mod chain;
mod chain_judge;
mod chain_lie;
mod chain_pool;
mod chain_proxy;
mod client;
mod clock_shift;
mod cluster;
mod contract;
mod credentials;
mod door;
mod endpoint;
mod key_file;
mod load;
mod log;
mod money;
mod proxy;
mod recharging;
mod server;
mod signer_sim;
mod site;
mod store;
mod stream;
mod strike;
mod watermark;

use std::fs;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use engine::places::Places;
use serde_json::Value;
use tokio::runtime::Runtime;
use ubscore::postgres::embedded::{Embedded, Options};

pub(crate) use self::browser::{Browser, Screen};
pub(crate) use self::chain::{
    ACCOUNTS, CHAIN_ID, Chain, Draft, FIRST_BASE_FEE, KEYS, NodeError, Rpc, SLOTS_IN_AN_EPOCH,
    hash, hex_of, number,
};
pub(crate) use self::chain_judge::judge_chain;
pub(crate) use self::chain_lie::Lie;
pub(crate) use self::chain_pool::{BUMP_PERCENT, FULL, PENDING_MAX, QUEUED_MAX, REPLACEMENT};
pub(crate) use self::chain_proxy::{ANY, ChainProxy, SEND, Sent};
pub(crate) use self::client::{Reply, Request, assert_refused, exchange, send, send_text};
pub(crate) use self::clock_shift::{CLOCK_SHIFT, clock_library};
pub(crate) use self::cluster::Cluster;
pub(crate) use self::contract::{
    FALSE_TOKEN, FEE_TOKEN, OTHER_TOKEN, REVERTING, TOKEN, TRANSFER, TWICE_TOKEN, mint_data,
    token_balance, transfer_data,
};
pub(crate) use self::credentials::{Certificate, Issuer, curl, now_s, replace, token};
pub(crate) use self::door::Door;
pub(crate) use self::endpoint::{Delivered, Endpoint, Webhook, read_request};
pub(crate) use self::key_file::{write_key_file, write_private};
#[cfg(feature = "crash")]
pub(crate) use self::load::plan_of_round;
pub(crate) use self::load::{Planned, USERS, assert_kept, endow, plan, post_to};
pub(crate) use self::log::{force, numbered_files, segments, snapshots};
pub(crate) use self::money::{Balance, COIN, Way, external, signed_units, units};
pub(crate) use self::proxy::{COMMIT, Flights, Passing, Proxy, Speaker, place, tells_of_a_commit};
pub(crate) use self::recharging::{ChannelSim, Recharging, recharge};
pub(crate) use self::server::{Server, cli, cut_log, refused, repair, said};
pub(crate) use self::signer_sim::{Manner, SignerSim};
pub(crate) use self::site::{DECISION, Hold, Session, Site, decides, patient};
pub(crate) use self::store::{LIMITS, catalog, database, store_over};
pub(crate) use self::stream::{Follower, Part};
pub(crate) use self::strike::{Random, Strike};
pub(crate) use self::watermark::{forgetful, logged, wait_for_all_below, watermark};

/// How long a test polls for a condition. Far above the longest real duration, so that only a
/// missing condition reaches it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// The pause between two polls.
const POLL: Duration = Duration::from_millis(10);
/// The operator of all tests.
pub(crate) const ADMIN: u64 = 9_001;

/// Runs after the test process has ended, in any way. It ends every server of this run by its data
/// directory and every PostgreSQL by its pid file, and removes the run's directory. It holds only
/// the other end of a pipe.
const WATCHER: &str = r#"
read -r line
for process in /proc/[0-9]*; do
    grep -aqsF -- "$UBSCORE_TEST_RUN/" "$process/cmdline" && kill -KILL "${process#/proc/}"
done
for file in "$UBSCORE_TEST_RUN"/*/postgres/postmaster.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    socket_directory=$(sed -n 5p "$file")
    grep -aqsF cluster_name=ubscore "/proc/$pid/cmdline" || continue
    kill -INT "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    rmdir -- "$socket_directory"
done
rm -rf -- "$UBSCORE_TEST_RUN"
"#;

/// The shared state of all tests of a run.
struct Run {
    directory: PathBuf,
    runtime: Runtime,
    postgres: Embedded,
    /// Waits for the other end of its standard input to close, which happens when this process
    /// ends.
    _watcher: Child,
}

fn run() -> &'static Run {
    static RUN: OnceLock<Run> = OnceLock::new();
    RUN.get_or_init(|| {
        // A failure is printed when it happens. The runner keeps a test's output until the end, and
        // a run that is cut off does not reach the end.
        let keep = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            keep(panic);
            let test = thread::current().name().unwrap_or("a thread").to_owned();
            writeln!(io::stderr(), "{test}: {panic}").ok();
        }));
        let prefix = "ubscore-test-";
        let directory = tempfile::Builder::new().prefix(prefix).tempdir().expect("a directory");
        let directory = directory.keep();
        let watcher = Command::new("sh")
            .args(["-c", WATCHER])
            .env("UBSCORE_TEST_RUN", &directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A Ctrl-C on the terminal ends the tests, and must not end the watcher.
            .process_group(0)
            .spawn()
            .expect("sh");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let options = Options {
            connections_max: 300,
            shared_buffers_mib: 32,
            ..Options::new(directory.join("shared"))
        };
        let postgres = runtime.block_on(Embedded::start(&options));
        let postgres = postgres.unwrap_or_else(|error| panic!("PostgreSQL: {error}"));
        // Autovacuum visits each database once per this interval, and a run has hundreds, most of
        // them no longer needed.
        runtime.block_on(async {
            let client = site::connect(&postgres.url()).await;
            for statement in
                ["ALTER SYSTEM SET autovacuum_naptime = '1h'", "SELECT pg_reload_conf()"]
            {
                client.batch_execute(statement).await.expect("configured");
            }
        });
        Run { directory, runtime, postgres, _watcher: watcher }
    })
}

/// A number that no other caller in this run gets.
pub(crate) fn unique() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A directory of this run for a process: the run's watcher ends that process by its name.
pub(crate) fn run_directory(name: &str) -> PathBuf {
    run().directory.join(format!("{name}-{}", unique()))
}

/// Waits for a future on the runtime of the harness.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    run().runtime.block_on(future)
}

/// Polls until `look` returns a value.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(POLL);
    }
}

/// The last line that is not empty.
pub(crate) fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or("")
}

/// A JSON string.
pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no string"))
}

/// Sets a flag when dropped, at a panic as well: threads that run until the flag is set would
/// otherwise run for ever, and the test would never fail.
pub(crate) struct SetAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` for each number below `count`, all at once, and returns the results in order.
pub(crate) fn crowd<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic in the crowd")).collect()
    })
}

/// The options of an engine with few places, in a data directory.
pub(crate) fn small_engine(data_dir: &Path) -> engine::Options {
    engine::Options {
        log_dir: data_dir.join("wal"),
        snapshot_dir: data_dir.join("snapshots"),
        segment_bytes: 1 << 20,
        spares_ready: 1,
        busy: false,
        cpu: None,
        ring_slots: 64,
        in_flight_max: 32,
        places: Places::of_transfers(64, 1_024),
        ends_kept: 0,
        idle_mark: Duration::from_millis(10),
        now: ubscore::clock::system_ns,
        notify: ubscore::last_words::notice,
    }
}

/// Copies a directory of files.
pub(crate) fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, to.join(path.file_name().expect("a name"))).expect("copied");
    }
}

/// Runs `look` again and again on `readers` threads while `work` runs.
pub(crate) fn while_watched<T>(
    readers: usize,
    look: impl Fn() + Sync,
    work: impl FnOnce() -> T,
) -> T {
    let done = AtomicBool::new(false);
    let (look, ended) = (&look, &done);
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    look();
                }
            });
        }
        let _done = SetAtEnd(&done);
        work()
    })
}

/// The number of rounds for the tests that `make soak` repeats; `None` if it is not set.
pub(crate) fn soak_rounds() -> Option<usize> {
    let rounds = std::env::var("UBSCORE_SOAK_ROUNDS").ok()?;
    Some(rounds.parse().expect("a number of rounds"))
}

/// The number of broken connections that `make soak FAMILY=trades` makes; `None` if it is not set.
pub(crate) fn soak_connections() -> Option<usize> {
    let connections = std::env::var("UBSCORE_SOAK_CONNECTIONS").ok()?;
    Some(connections.parse().expect("a number of connections"))
}

/// The minutes of a load that `make soak FAMILY=growth` runs; `None` if it is not set.
pub(crate) fn soak_minutes() -> Option<usize> {
    let minutes = std::env::var("UBSCORE_SOAK_MINUTES").ok()?;
    Some(minutes.parse().expect("a number of minutes"))
}

/// SplitMix64: the next state's number, mixed; every state is a valid seed.
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
