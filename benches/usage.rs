//! CPU time of the service, of PostgreSQL's backends by their work, and of the load.
//!
//! The scheduler's count of each process is read a few times a second, so that the time between any
//! two moments can be read afterwards: a load knows only at its end when its measurement began.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, ensure};
use procfs::process::Process;
use ubscore::clock::{Clock, SystemClock};
use ubscore::postgres::embedded::Embedded;

use crate::database::connect_postgres;

/// Time between two samples: each reads a file for every backend, of which there may be hundreds.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// The work of ubscore's backends, by a word of their statements; the first that fits decides.
const WORK: [(&str, &str); 6] = [
    ("INSERT INTO journal_tb", WORKER),
    ("events_", "events"),
    ("webhook_", "events"),
    ("audit_", "audit"),
    ("journal_tb", "audit"),
    ("watermark_", "watermark"),
];
const WORKER: &str = "worker";
/// The service's own process.
pub(crate) const SERVICE: &str = "service";
/// The process that makes the load.
pub(crate) const LOAD: &str = "load";
/// Backends of pgbench.
pub(crate) const CLIENTS: &str = "clients";
/// Backends of ubscore with other work than the above.
const READS: &str = "reads";
/// PostgreSQL's processes without a client, and the bench's own backends.
const BACKGROUND: &str = "background";

/// CPU time by part, ns.
pub(crate) type Usage = BTreeMap<&'static str, u64>;

/// Samples the processes of a bench until it is dropped.
pub(crate) struct Meter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
}

#[derive(Default)]
struct Shared {
    /// The process that makes the load, 0 if there is none.
    load: AtomicI32,
    ended: AtomicBool,
    /// Time since the Unix epoch, ns, and the CPU time of each part up to then.
    samples: Mutex<Vec<(u64, Usage)>>,
}

impl Meter {
    /// Samples the service with this process, and `postgres`.
    pub(crate) fn start(service: i32, postgres: &Embedded) -> anyhow::Result<Meter> {
        let shared = Arc::new(Shared::default());
        let (mut config, postmaster) = (postgres.config(), postgres.pid());
        // Its own commits are not counted as those of the measured database.
        config.dbname("postgres");
        let seen = Arc::clone(&shared);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::spawn(move || {
            let client = runtime.block_on(connect_postgres(&config))?;
            let mut processes = Processes { service, postmaster, ..Processes::default() };
            while !seen.ended.load(Ordering::Relaxed) {
                runtime.block_on(processes.learn(&client))?;
                let usage = processes.look(seen.load.load(Ordering::Relaxed))?;
                seen.samples.lock().expect("no panic").push((SystemClock::new().now_ns(), usage));
                thread::sleep(TICK);
            }
            anyhow::Ok(())
        });
        Ok(Meter { shared, thread: Some(thread) })
    }

    /// Counts this process as the load from now on.
    pub(crate) fn watch_load(&self, process: u32) -> anyhow::Result<()> {
        self.shared.load.store(i32::try_from(process)?, Ordering::Relaxed);
        Ok(())
    }

    /// The CPU time of each part between two times, ns since the Unix epoch.
    pub(crate) fn between(&self, from: u64, until: u64) -> anyhow::Result<Usage> {
        let samples = self.shared.samples.lock().expect("no panic");
        let (first, last) = (at(&samples, from)?, at(&samples, until)?);
        let used = last.into_iter().map(|(part, ns)| {
            let before = first.get(part).copied().unwrap_or(0);
            (part, ns.saturating_sub(before))
        });
        Ok(used.collect())
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        match self.thread.take().expect("once").join() {
            Ok(Ok(())) => {}
            ended => eprintln!("the CPU times are incomplete: {ended:?}"),
        }
    }
}

/// The usage up to a time between two samples, in proportion.
fn at(samples: &[(u64, Usage)], time: u64) -> anyhow::Result<Usage> {
    let behind = samples.partition_point(|(at, _)| *at <= time);
    let last = samples.last().context("no sample")?;
    ensure!(last.0 >= time, "the CPU times end too soon");
    let (Some((from, first)), (until, second)) =
        (behind.checked_sub(1).map(|i| &samples[i]), samples.get(behind).unwrap_or(last))
    else {
        anyhow::bail!("no sample before this time")
    };
    let (passed, step) = (u128::from(time - from), u128::from((until - from).max(1)));
    let between = second.iter().map(|(part, ns)| {
        let before = first.get(part).copied().unwrap_or(0);
        let more = u128::from(ns.saturating_sub(before)) * passed.min(step) / step;
        (*part, before + u64::try_from(more).expect("a part of a u64"))
    });
    Ok(between.collect())
}

/// The processes found so far.
#[derive(Default)]
struct Processes {
    service: i32,
    postmaster: i32,
    parts: HashMap<i32, &'static str>,
    /// The time of each process at the last look, ns.
    seen: HashMap<i32, u64>,
    /// The time of each part up to now, ns; that of a process that has ended stays.
    usage: Usage,
}

impl Processes {
    /// Learns the work of each backend.
    async fn learn(&mut self, client: &tokio_postgres::Client) -> anyhow::Result<()> {
        let backends = "SELECT pid, application_name, query FROM pg_stat_activity \
                        WHERE backend_type = 'client backend'";
        for row in client.query(backends, &[]).await? {
            let (pid, name, statement): (i32, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let work = || WORK.iter().find(|(word, _)| statement.contains(word));
            let part = match name {
                "pgbench" => CLIENTS,
                "ubscore" => match (work(), self.parts.get(&pid)) {
                    (Some((_, part)), _) => part,
                    (None, known) => known.copied().unwrap_or(READS),
                },
                _ => BACKGROUND,
            };
            self.parts.insert(pid, part);
        }
        Ok(())
    }

    /// The CPU time of each part up to now.
    fn look(&mut self, load: i32) -> anyhow::Result<Usage> {
        self.note(self.service, SERVICE);
        if load != 0 {
            self.note(load, LOAD);
        }
        let backends = Process::new(self.postmaster)?.task_main_thread()?.children()?;
        for pid in backends {
            let pid = i32::try_from(pid)?;
            self.note(pid, self.parts.get(&pid).copied().unwrap_or(BACKGROUND));
        }
        Ok(self.usage.clone())
    }

    /// Notes the time of all threads of a process; one that has ended meanwhile is left alone.
    fn note(&mut self, pid: i32, part: &'static str) {
        let Ok(tasks) = Process::new(pid).and_then(|process| process.tasks()) else { return };
        let times = tasks.filter_map(|task| task.ok()?.schedstat().ok());
        let ns: u64 = times.map(|times| times.sum_exec_runtime).sum();
        // A smaller time is that of a new process with an old number.
        let before = self.seen.insert(pid, ns).filter(|before| *before <= ns).unwrap_or(0);
        *self.usage.entry(part).or_default() += ns - before;
    }
}
