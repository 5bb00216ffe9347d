//! Growth: a service under a steady load keeps its memory, its outcome map and every table but the
//! rows of transfers within bounds that do not depend on time. The test prints what a transfer
//! leaves behind.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

use crate::harness::{Cluster, Server, Session, Site, eventually, soak_minutes, watermark};

/// Rows that stay for ever; every other table must stop to grow.
const KEPT_FOR_EVER: [&str; 3] = ["transfers_tb", "external_operations", "admin_audit"];
/// Places of the outcome map in the short form, which takes them several times.
const PLACES: u64 = 4_096;
/// Its rate, transfers per second: the map carries it, and a busy machine as well.
const RATE: &str = "400";
/// The short form ends once this many times as many transfers have passed.
const MAPS: u64 = 2;
/// The anonymous memory of the service may grow by this between the middle and the end: the
/// allocator keeps the most that each thread has used, and threads come late.
const MEMORY_GROWTH_MAX_KIB: u64 = 128 << 10;
/// A table that must stop to grow may have twice the rows that it had by the middle, and these: the
/// journal keeps 1,000 rows of each shard in any case.
const ROWS_BESIDE: u64 = 5_000;
const CONNECTIONS: &str = "64";

/// The shape of a run.
struct Plan {
    /// One period of load, with a sample at its end.
    period: &'static str,
    users: &'static str,
    /// `None`: until [`MAPS`] maps of transfers have passed.
    periods: Option<usize>,
    /// Transfers per second; `None`: the best rate.
    rate: Option<&'static str>,
    keep_minutes: f64,
    evict_every_ms: u64,
    places: u64,
    events_keep_hours: f64,
}

impl Plan {
    /// Each keep time passes many times in a run.
    fn new() -> Plan {
        match soak_minutes() {
            Some(minutes) => Plan {
                period: "55s",
                users: "1000",
                periods: Some(minutes),
                rate: None,
                keep_minutes: 1.0,
                evict_every_ms: 5_000,
                places: 2_500_000,
                events_keep_hours: 0.02,
            },
            None => Plan {
                period: "5s",
                users: "50",
                periods: None,
                rate: Some(RATE),
                keep_minutes: 0.05,
                evict_every_ms: 200,
                places: PLACES,
                events_keep_hours: 0.000_3,
            },
        }
    }

    /// Places of the outcome map for new work: some are kept for the ends of transactions.
    fn places_for_work(&self) -> u64 {
        self.places - (self.places / 16).min(1_000)
    }

    fn site(&self) -> (Site, Arc<Cluster>) {
        let (site, cluster) = Site::on_its_own_cluster();
        let site = site
            .with("UBSCORE__OUTCOMES__KEEP_MINUTES", self.keep_minutes)
            .with("UBSCORE__OUTCOMES__EVICT_EVERY_MS", self.evict_every_ms)
            .with("UBSCORE__ENGINE__OUTCOMES_MAX", self.places)
            .with("UBSCORE__EVENTS__KEEP_HOURS", self.events_keep_hours)
            .with("UBSCORE__LOG__FILTER", "warn");
        let long = self.periods.is_some();
        let site = match long {
            true => site.with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 26),
            false => site.with("UBSCORE__SNAPSHOT__EVERY_RECORDS", 5_000),
        };
        (site, cluster)
    }
}

/// A table with all that belongs to it.
#[derive(Clone, Default)]
struct Table {
    heap_bytes: u64,
    index_bytes: u64,
    dead: u64,
    autovacuums: u64,
    /// Counted only where they must be bounded.
    rows: u64,
}

/// The state at the end of a period.
struct Sample {
    /// Committed so far.
    transfers: u64,
    rate: u64,
    turned_away: u64,
    p50_us: u64,
    p99_us: u64,
    places_taken: u64,
    service_kib: u64,
    postgres_kib: u64,
    wal_bytes: u64,
    log_bytes: u64,
    tables: BTreeMap<String, Table>,
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// The memory of a process that no file backs, KiB; 0 if it has ended.
fn anonymous_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.map_or(0, |line| number(line.trim().trim_end_matches(" kB")))
}

/// One period of load; returns its report.
fn load(server: &Server, plan: &Plan) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["load", "--dev", "--format", "json", "--warm-up", "0s"]);
    command.args(["--connections", CONNECTIONS, "--users", plan.users, "--duration", plan.period]);
    command.args(plan.rate.iter().flat_map(|rate| ["--rate", rate]));
    command.arg("--url").arg(format!("http://{}", server.http));
    command.arg("--ops").arg(format!("http://{}", server.ops));
    let output = command.output().expect("the binary");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn tables(session: &Session) -> BTreeMap<String, Table> {
    let rows = session.sql(
        "SELECT relname, pg_table_size(relid), pg_indexes_size(relid), n_dead_tup, autovacuum_count \
           FROM pg_stat_user_tables",
    );
    let table = |row: &Vec<String>| {
        let name = row[0].clone();
        let rows = match KEPT_FOR_EVER.contains(&&*name) {
            true => 0,
            false => number(&session.sql(&format!("SELECT count(*) FROM {name}"))[0][0]),
        };
        let [heap_bytes, index_bytes, dead, autovacuums] = [1, 2, 3, 4].map(|at| number(&row[at]));
        (name, Table { heap_bytes, index_bytes, dead, autovacuums, rows })
    };
    rows.iter().map(table).collect()
}

impl Sample {
    fn take(
        plan: &Plan,
        report: &Value,
        before: u64,
        server: &Server,
        cluster: &Cluster,
        session: &Session,
    ) -> Sample {
        let row = &report["rows"][0];
        let count = |key: &str| row[key].as_u64().expect("a count");
        let quantile = |name: &str| {
            let found = row["latency_us"].as_array().expect("quantiles").iter();
            let found = found.filter(|pair| pair[0] == name).find_map(|pair| pair[1].as_u64());
            found.expect("a latency")
        };
        let wal = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')";
        Sample {
            transfers: before + count("committed"),
            rate: count("achieved"),
            turned_away: count("turned_away") + count("refused") + count("lost"),
            p50_us: quantile("p50"),
            p99_us: quantile("p99"),
            places_taken: plan.places_for_work() - server.metric("ubscore_outcomes_left"),
            service_kib: anonymous_kib(server.pid()),
            postgres_kib: cluster.process_ids().into_iter().map(anonymous_kib).sum(),
            wal_bytes: number(&session.sql(wal)[0][0]),
            log_bytes: server.metric("ubscore_wal_written_bytes_total"),
            tables: tables(session),
        }
    }

    fn print(&self) {
        let journal = &self.tables["journal_tb"];
        let dead: u64 = self.tables.values().map(|table| table.dead).sum();
        let vacuums: u64 = self.tables.values().map(|table| table.autovacuums).sum();
        println!(
            "{:>10}{:>8}{:>9}{:>9}{:>9}{:>11}{:>9}{:>9}{:>9}{:>9}{:>10}{:>8}",
            self.transfers,
            self.rate,
            self.p50_us,
            self.p99_us,
            self.turned_away,
            self.places_taken,
            self.service_kib >> 10,
            self.postgres_kib >> 10,
            journal.rows,
            (journal.heap_bytes + journal.index_bytes) >> 20,
            dead,
            vacuums
        );
    }
}

fn print_head() {
    println!(
        "{:>10}{:>8}{:>9}{:>9}{:>9}{:>11}{:>9}{:>9}{:>9}{:>9}{:>10}{:>8}",
        "transfers",
        "done/s",
        "p50 us",
        "p99 us",
        "refused",
        "places",
        "serve MB",
        "PG MB",
        "journal",
        "its MB",
        "dead",
        "vacuums"
    );
}

/// Prints the growth between two samples, bytes a transfer.
fn print_growth(from: &Sample, to: &Sample) {
    let transfers = to.transfers - from.transfers;
    let each =
        |to: u64, from: u64| i128::from(to).wrapping_sub(from.into()) / i128::from(transfers);
    println!("\nbytes a transfer, of {transfers}      heap   indexes");
    let mut sums = [0; 2];
    for (name, table) in &to.tables {
        let before = from.tables.get(name).cloned().unwrap_or_default();
        let grown = [
            each(table.heap_bytes, before.heap_bytes),
            each(table.index_bytes, before.index_bytes),
        ];
        if grown != [0, 0] {
            println!("{name:<28}{:>10}{:>10}", grown[0], grown[1]);
        }
        sums = [sums[0] + grown[0], sums[1] + grown[1]];
    }
    println!("{:<28}{:>10}{:>10}", "all tables", sums[0], sums[1]);
    println!("{:<28}{:>10}", "PostgreSQL's log", each(to.wal_bytes, from.wal_bytes));
    println!("{:<28}{:>10}", "UBSCore's log", each(to.log_bytes, from.log_bytes));
}

/// Prints what autovacuum has cost by PostgreSQL's own log: runs, and CPU time.
fn print_autovacuum(log: &str, transfers: u64) {
    // By table: runs, and hundredths of a second, as the log has them.
    let mut cost: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    let mut table = None;
    for line in log.lines() {
        if let Some(rest) = line.split("automatic ").nth(1) {
            let name = rest.split('"').nth(1).unwrap_or(rest);
            table = Some(name.rsplit('.').next().unwrap_or(name));
        }
        let hundredths = |word: &str| {
            let seconds = line.split(word).nth(1)?.split_whitespace().next()?;
            seconds.replace('.', "").parse::<u64>().ok()
        };
        if let (Some(table), Some(user), Some(system)) =
            (table, hundredths("user: "), hundredths("system: "))
        {
            let (runs, spent) = cost.entry(table).or_default();
            (*runs, *spent) = (*runs + 1, *spent + user + system);
        }
    }
    println!("\nautovacuum and autoanalyze      runs    CPU ms");
    for (table, (runs, spent)) in &cost {
        println!("{table:<28}{runs:>8}{:>10}", spent * 10);
    }
    let spent: u64 = cost.values().map(|(_, spent)| spent * 10).sum();
    println!("{:<36}{spent:>10}, {} us a transfer", "all", spent * 1_000 / transfers);
}

/// Asserts the bounds over all samples.
fn assert_bounded(plan: &Plan, samples: &[Sample]) {
    let (early, late) = samples.split_at(samples.len() / 2);
    let (middle, last) = (early.last().expect("a sample"), late.last().expect("a sample"));
    let grown = last.service_kib.saturating_sub(middle.service_kib);
    assert!(grown <= MEMORY_GROWTH_MAX_KIB, "the service grew by {grown} KiB");
    for sample in samples {
        assert!(sample.places_taken <= plan.places, "{} places", sample.places_taken);
        if plan.periods.is_some() {
            assert_eq!(sample.turned_away, 0, "after {} transfers", sample.transfers);
            let most = plan.places * 4 / 5;
            assert!(sample.places_taken <= most, "{} of {most} places", sample.places_taken);
        }
    }
    for (name, table) in &last.tables {
        let before = early.iter().filter_map(|sample| sample.tables.get(name));
        let most = before.map(|table| table.rows).max().unwrap_or(0);
        assert!(table.rows <= 2 * most + ROWS_BESIDE, "{name}: {} rows, {most} before", table.rows);
    }
}

/// Goal: hours at the best rate cost disk for the rows of transfers, and nothing else. Method: a
/// load without pauses on a PostgreSQL with its default autovacuum, and keep times so short that
/// each passes many times; a sample after each period. `make soak FAMILY=growth MINUTES=60` runs
/// so many periods of a minute, with a map for the best rate; the short form runs until its small
/// map was taken twice at least.
#[test]
fn a_steady_load_leaves_rows_of_transfers_and_nothing_else() {
    let plan = Plan::new();
    let (site, cluster) = plan.site();
    site.sql("ALTER SYSTEM SET log_autovacuum_min_duration = 0");
    site.sql("SELECT pg_reload_conf()");
    let server = site.start();
    let session = site.session();
    print_head();
    let mut samples: Vec<Sample> = Vec::new();
    loop {
        let before = samples.last().map_or(0, |sample| sample.transfers);
        let report = load(&server, &plan);
        let sample = Sample::take(&plan, &report, before, &server, &cluster, &session);
        sample.print();
        let passed = sample.transfers;
        samples.push(sample);
        let enough = plan.periods.map(|periods| samples.len() >= periods);
        if enough.unwrap_or(passed >= MAPS * PLACES) {
            break;
        }
    }
    let (first, last) = (&samples[samples.len() / 4], samples.last().expect("a sample"));
    print_growth(first, last);
    print_autovacuum(&cluster.log(), last.transfers);
    assert_bounded(&plan, &samples);
    // Everything leaves the map, however long the run was.
    site.wait_for_rest();
    eventually("an empty map", || (server.metric("ubscore_outcomes") == 0).then_some(()));
    assert_eq!(server.metric("ubscore_outcomes_left"), plan.places_for_work());
    assert!(watermark(&site) > 0, "it has risen");
    site.assert_in_order(&server);
}
