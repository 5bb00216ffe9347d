//! The operators' view of the running process: log lines on stderr and Prometheus metrics.
//!
//! Every metric has its name, unit and help here, once. Other modules use the constants.

pub mod callbacks;
pub mod lines;
#[cfg(feature = "otel")]
pub mod otlp;
pub mod recharges;
pub mod txm;

use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, IsTerminal};
use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

use foldhash::fast::RandomState;
use metrics::{Counter, Histogram, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use parking_lot::RwLock;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use self::lines::WithoutPaths;
use crate::format::Format;
use crate::release;
pub use domain::chain::chain;
use domain::code::Code;
use domain::shortage::Shortage;

/// Counter: transfers that reached a final state, by `direction` and `state`.
pub const TRANSFERS_TOTAL: &str = "ubscore_transfers_total";
/// Histogram, s: from accept to the final state, by `direction`.
pub const TRANSFER_SECONDS: &str = "ubscore_transfer_seconds";
/// Histogram, s: one commit of a batch or one call of a participant, by `step`, see [`Step`].
pub const STEP_SECONDS: &str = "ubscore_step_seconds";
/// Gauge: transfers that are not final, by `state`.
pub const TRANSFERS_NONTERMINAL: &str = "ubscore_transfers_nonterminal";
/// Gauge, s: age of the oldest transfer that is not final; 0 if there is none.
pub const OLDEST_TRANSFER_AGE_SECONDS: &str = "ubscore_oldest_transfer_age_seconds";
/// Gauge: paid by the source and not yet given to the target, by `asset`, in whole units of it.
pub const IN_FLIGHT_AMOUNT: &str = "ubscore_in_flight_amount";
/// Gauge: orders in the ring.
pub const RING_DEPTH: &str = "ubscore_ring_depth";
/// Gauge: the depth of the ring at which orders are refused.
pub const RING_DEPTH_MAX: &str = "ubscore_ring_depth_max";
/// Gauge: slots of the ring.
pub const RING_SLOTS: &str = "ubscore_ring_slots";
/// Counter, bytes: records appended to the log since the start.
pub const WAL_WRITTEN_BYTES_TOTAL: &str = "ubscore_wal_written_bytes_total";
/// Gauge, bytes: the rows of Funding's journal that can be deleted.
pub const JOURNAL_BYTES: &str = "ubscore_journal_bytes";
/// Gauge, bytes: the log's files.
pub const WAL_BYTES: &str = "ubscore_wal_bytes";
/// Histogram, s: one sync of the log.
pub const WAL_SYNC_SECONDS: &str = "ubscore_wal_sync_seconds";
/// Gauge, s: how long the last replay took.
pub const REPLAY_SECONDS: &str = "ubscore_replay_seconds";
/// Gauge, bytes: free space on the log's file system.
pub const WAL_FREE_BYTES: &str = "ubscore_wal_free_bytes";
/// Gauge, s: how long the last snapshot took.
pub const SNAPSHOT_SECONDS: &str = "ubscore_snapshot_seconds";
/// Gauge, bytes: how large the last snapshot is.
pub const SNAPSHOT_BYTES: &str = "ubscore_snapshot_bytes";
/// Gauge: the sequence of the last snapshot.
pub const SNAPSHOT_SEQUENCE: &str = "ubscore_snapshot_sequence";
/// Gauge, s since the Unix epoch: when the last snapshot was made.
pub const SNAPSHOT_TIMESTAMP_SECONDS: &str = "ubscore_snapshot_timestamp_seconds";
/// Counter: segments of the log removed.
pub const SEGMENTS_REMOVED_TOTAL: &str = "ubscore_segments_removed_total";
/// Gauge: Spot accounts.
pub const ACCOUNTS: &str = "ubscore_accounts";
/// Gauge: Spot accounts that the table has room for.
pub const ACCOUNTS_MAX: &str = "ubscore_accounts_max";
/// Gauge: Spot balances.
pub const BALANCES: &str = "ubscore_balances";
/// Gauge: Spot balances that the table has room for.
pub const BALANCES_MAX: &str = "ubscore_balances_max";
/// Gauge: holds and freezes on Spot.
pub const HOLDS: &str = "ubscore_holds";
/// Gauge: holds and freezes that the table has room for.
pub const HOLDS_MAX: &str = "ubscore_holds_max";
/// Gauge: set apart by holds and freezes on Spot, by `asset`, in whole units of it.
pub const HELD: &str = "ubscore_held";
/// Gauge, s: age of the oldest hold, by `venue`; 0 without one.
pub const HOLD_OLDEST_SECONDS: &str = "ubscore_hold_oldest_seconds";
/// Gauge: the last number decided, by `venue`.
pub const VENUE_NUMBER: &str = "ubscore_venue_number";
/// Gauge: answers without an acknowledgement, by `venue`.
pub const VENUE_UNACKNOWLEDGED: &str = "ubscore_venue_unacknowledged";
/// Gauge: connections of venues at the sockets.
pub const STREAM_CONNECTIONS: &str = "ubscore_stream_connections";
/// Histogram, s: from a read of a venue's commands to the write of their answers. At most one
/// sample for the commands of one read in each write, so that a command costs little.
pub const STREAM_SECONDS: &str = "ubscore_stream_seconds";
/// Histogram, s: from the answers of a venue that leave to their write.
pub const STREAM_WRITE_SECONDS: &str = "ubscore_stream_write_seconds";
/// Histogram, s: from the read of a venue's command until the core takes it; one command in 64.
pub const POSTING_WAIT_SECONDS: &str = "ubscore_posting_wait_seconds";
/// Histogram, s: the decision of a venue's command on the core, without its sync; one in 64.
pub const POSTING_DECIDE_SECONDS: &str = "ubscore_posting_decide_seconds";
/// Counter: decided commands of venues, by `op` and `result`: success, refused.
pub const POSTINGS_TOTAL: &str = "ubscore_postings_total";
/// Gauge: outcomes in the engine's map.
pub const OUTCOMES: &str = "ubscore_outcomes";
/// Gauge: outcomes that the engine's map has room for.
pub const OUTCOMES_MAX: &str = "ubscore_outcomes_max";
/// Gauge: places of that map that are neither taken nor kept for a refund.
pub const OUTCOMES_LEFT: &str = "ubscore_outcomes_left";
/// Gauge: connections of the pool for reads that are in use.
pub const POSTGRES_POOL_IN_USE: &str = "ubscore_postgres_pool_in_use";
/// Gauge: the most connections that pool opens.
pub const POSTGRES_POOL_MAX: &str = "ubscore_postgres_pool_max";
/// Gauge: reads that wait for one of its connections.
pub const POSTGRES_POOL_WAITING: &str = "ubscore_postgres_pool_waiting";
/// Counter: writes that PostgreSQL refused because another process has taken over.
pub const FENCED_WRITES_TOTAL: &str = "ubscore_fenced_writes_total";
/// Gauge: the order number below which outcomes may be evicted.
pub const WATERMARK: &str = "ubscore_watermark";
/// Gauge, s: age of the oldest transfer that is not below the watermark.
pub const WATERMARK_OLDEST_SECONDS: &str = "ubscore_watermark_oldest_transfer_seconds";
/// Counter: steps that were retried after an unknown outcome.
pub const RETRIES_TOTAL: &str = "ubscore_retries_total";
/// Counter: HTTP requests answered, by `route` and `status`.
pub const HTTP_REQUESTS_TOTAL: &str = "ubscore_http_requests_total";
/// Counter: transfers refused at a limit of their user, by `limit`: second, day, amount.
pub const HTTP_LIMITED_TOTAL: &str = "ubscore_http_limited_total";
/// Counter: requests that were refused because the service took no new work, by `reason`: a
/// [`Shortage`], halted, paused, away.
pub const REFUSED_TOTAL: &str = "ubscore_refused_total";
/// Histogram, s: from the head of an HTTP request to its answer, by `route`.
pub const HTTP_REQUEST_SECONDS: &str = "ubscore_http_request_seconds";
/// Counter: alerts raised, by `alert`.
pub const ALERTS_TOTAL: &str = "ubscore_alerts_total";
/// Counter: rounds of the audit, by `result`: clean, mismatch, failed.
pub const CONSERVATION_RUNS_TOTAL: &str = "ubscore_conservation_runs_total";
/// Gauge, s since the Unix epoch: when the audit last found everything in order.
pub const CONSERVATION_LAST_SUCCESS: &str = "ubscore_conservation_last_success_timestamp_seconds";
/// Counter: alerts for the webhook, by `outcome`: delivered, failed, dropped.
pub const ALERTS_SENT_TOTAL: &str = "ubscore_alerts_sent_total";
/// Counter: events about transfers.
pub const EVENTS_TOTAL: &str = "ubscore_events_total";
/// Gauge: streams of events that are open.
pub const EVENT_STREAMS: &str = "ubscore_event_streams";
/// Counter: streams of events that were ended, by `reason`.
pub const EVENT_STREAMS_ENDED_TOTAL: &str = "ubscore_event_streams_ended_total";
/// Counter: tries of deliveries to a webhook endpoint, by `outcome`: delivered, failed, dead.
pub const WEBHOOK_DELIVERIES_TOTAL: &str = "ubscore_webhook_deliveries_total";
/// Gauge, s: age of the oldest event that is still to be delivered.
pub const WEBHOOK_OLDEST_SECONDS: &str = "ubscore_webhook_oldest_undelivered_seconds";
/// Gauge: dead letters.
pub const WEBHOOK_DEAD: &str = "ubscore_webhook_dead_letters";
/// Counter: calls to participants of transactions, by `participant`, `action`, and `outcome`: done,
/// refused, unknown.
pub const PARTICIPANT_REQUESTS_TOTAL: &str = "ubscore_participant_requests_total";
/// Counter: calls to payment channels, by `channel`, `call`, and `outcome`.
pub const CHANNEL_CALLS_TOTAL: &str = "ubscore_channel_calls_total";
/// Histogram, s: calls to payment channels, by `channel` and `call`.
pub const CHANNEL_CALL_SECONDS: &str = "ubscore_channel_call_seconds";
/// Gauge: transactions that are not final, by `state`.
pub const TRANSACTIONS: &str = "ubscore_transactions";
/// Counter: transactions that have ended, by `result`: DONE, CANCELLED.
pub const TRANSACTIONS_TOTAL: &str = "ubscore_transactions_total";
/// Histogram, s: from the accept of a transaction to its end.
pub const TRANSACTION_SECONDS: &str = "ubscore_transaction_seconds";
/// Gauge, s: age of the oldest transaction that is not final.
pub const TRANSACTION_OLDEST_SECONDS: &str = "ubscore_transaction_oldest_seconds";
/// Counter: commits of moves and rounds by the worker of transactions.
pub const TRANSACTION_COMMITS_TOTAL: &str = "ubscore_transaction_commits_total";
/// Counter: the moves and rounds in those commits.
pub const TRANSACTION_WRITES_TOTAL: &str = "ubscore_transaction_writes_total";
/// Gauge: special accounts below zero.
pub const SPECIAL_NEGATIVE: &str = "ubscore_special_negative";
/// Counter: log lines that were dropped, because the queue was full or stderr was gone.
pub const LOG_LINES_DROPPED_TOTAL: &str = "ubscore_log_lines_dropped_total";
/// Gauge: 1 while the service is halted, else 0.
pub const HALTED: &str = "ubscore_halted";
/// Gauge: 1 while new transfers are taken, else 0; see `/readyz`.
pub const READY: &str = "ubscore_ready";
/// Gauge: always 1; its labels `version` and `commit` name the running program.
pub const BUILD_INFO: &str = "ubscore_build_info";

/// The `route` of a request that no route answered. It is never a path: a client could invent any
/// number of paths, and each would stay in memory.
pub const ROUTE_NONE: &str = "none";

/// A reason of [`REFUSED_TOTAL`]: the service is halted.
pub const HALTED_REASON: &str = "halted";
/// A reason of [`REFUSED_TOTAL`]: an operator has paused the direction or the asset.
pub const PAUSED_REASON: &str = "paused";
/// A reason of [`REFUSED_TOTAL`]: PostgreSQL or UBSCore did not answer.
pub const AWAY_REASON: &str = "away";

/// The label `step` of [`STEP_SECONDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// A batch of calls in PostgreSQL, with Funding's part in them.
    Commit,
    /// A batch of orders to UBSCore, until all are durable.
    Spot,
    /// Calls of Funding outside of a commit.
    Funding,
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Commit => "commit",
            Step::Spot => "trading",
            Step::Funding => "funding",
        }
    }
}

/// Bounds of every histogram of durations, s: from the sync of an idle disk to the longest wait of
/// a client, about three bounds for each power of ten.
const SECONDS_BUCKETS: [f64; 18] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];

/// Bounds of the histograms of a command on the core, s: most decisions take less than 1 us.
const CORE_BUCKETS: [f64; 15] = [
    0.000_000_2,
    0.000_000_5,
    0.000_001,
    0.000_002,
    0.000_005,
    0.000_01,
    0.000_02,
    0.000_05,
    0.000_1,
    0.000_2,
    0.000_5,
    0.001,
    0.01,
    0.1,
    1.0,
];

/// The settings of log lines and spans.
#[derive(Clone, Debug)]
pub struct Options {
    /// The filter of lines, in the syntax of [`EnvFilter`].
    pub filter: String,
    /// The format of a line.
    pub format: Format,
    /// URL with its path that spans are posted to as OTLP; `None`: spans are not sent.
    pub otlp_endpoint: Option<String>,
    /// The share of traces that is sent, 0 to 1, if the client has not decided.
    pub sample_ratio: f64,
}

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be parsed. `Config::validate` refuses such a filter.
    #[error("log.filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The process logs already.
    #[error("start logging")]
    Twice(#[source] TryInitError),
    /// This binary cannot send spans.
    #[error(
        "telemetry.otlp_endpoint is set, but this binary was built without the feature otel: remove \
         the key, or build with `cargo build --release --features otel`"
    )]
    NoTraces,
    /// The exporter of spans refuses the endpoint.
    #[cfg(feature = "otel")]
    #[error("telemetry.otlp_endpoint")]
    Endpoint(#[source] opentelemetry_otlp::ExporterBuildError),
}

/// The sender of spans, if a collector is configured.
#[must_use = "spans that are not sent before the end are lost"]
#[derive(Debug)]
pub struct Traces {
    #[cfg(feature = "otel")]
    provider: Option<opentelemetry_sdk::trace::SdkTracerProvider>,
}

impl Traces {
    /// Sends the remaining spans within `limit`, then stops sending.
    #[cfg_attr(not(feature = "otel"), expect(unused_variables))]
    pub fn stop(self, limit: Duration) {
        #[cfg(feature = "otel")]
        if let Some(provider) = self.provider {
            // An error means that the collector is unreachable, which was logged before.
            provider.shutdown_with_timeout(limit).ok();
        }
    }
}

/// Sends log lines to stderr from now on, through a queue that no thread waits for. Sends spans to
/// a collector if one is configured. Stdout is for the output of a command.
///
/// # Errors
/// [`LogError`]; then nothing has changed.
pub fn init_logging(options: &Options) -> Result<Traces, LogError> {
    #[cfg(feature = "otel")]
    if let Some(endpoint) = &options.otlp_endpoint {
        return init_traces(options, endpoint);
    }
    if options.otlp_endpoint.is_some() {
        return Err(LogError::NoTraces);
    }
    let filter = filter(options)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(lines::open(options.format))
        // A line that cannot be written is lost. Reporting it on the same stderr would panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    match options.format {
        Format::Text => lines.finish().try_init(),
        Format::Json => lines.json().map_event_format(WithoutPaths).finish().try_init(),
    }
    .map_err(LogError::Twice)?;
    Ok(Traces {
        #[cfg(feature = "otel")]
        provider: None,
    })
}

/// The filter of log lines. It silences the migrations' library, because `postgres::migrate` logs
/// each migration itself.
fn filter(options: &Options) -> Result<EnvFilter, LogError> {
    let quiet = "refinery_core=warn".parse().expect("a directive");
    Ok(EnvFilter::try_new(&options.filter).map_err(LogError::Filter)?.add_directive(quiet))
}

/// Starts logging with a collector. The collector gets every span of this program; the filter
/// applies to log lines.
#[cfg(feature = "otel")]
fn init_traces(options: &Options, endpoint: &str) -> Result<Traces, LogError> {
    use tracing_subscriber::filter::{LevelFilter, Targets};
    use tracing_subscriber::layer::{Layer, SubscriberExt};

    let filter = filter(options)?;
    let provider = otlp::provider(endpoint, options.sample_ratio).map_err(LogError::Endpoint)?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(lines::open(options.format))
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    let lines = match options.format {
        Format::Text => lines.boxed(),
        Format::Json => lines.json().map_event_format(WithoutPaths).boxed(),
    };
    let ours = Targets::new().with_target("ubscore", LevelFilter::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(otlp::tracer(&provider));
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans.with_filter(ours))
        .try_init()
        .map_err(LogError::Twice)?;
    Ok(Traces { provider: Some(provider) })
}

/// The process's metrics, as Prometheus reads them.
pub struct Metrics(PrometheusHandle);

static INSTALLED: OnceLock<Metrics> = OnceLock::new();

/// Registered metrics by their labels. The recorder builds, hashes and compares a name and its
/// labels for each look-up, which costs more than the sample. `K` is of a fixed set: a series stays
/// in memory for ever.
struct Registered<K, H>(RwLock<HashMap<K, H, RandomState>>);

impl<K: Eq + Hash, H> Registered<K, H> {
    fn new() -> Self {
        Self(RwLock::default())
    }

    /// Uses the metrics of these labels. `register`: looks them up for the first time.
    fn with(&self, key: K, register: impl FnOnce() -> H, sample: impl FnOnce(&H)) {
        if let Some(known) = self.0.read().get(&key) {
            return sample(known);
        }
        // Before the recorder is installed a handle leads nowhere, and must not be kept.
        let lasts = INSTALLED.get().is_some();
        let handle = register();
        sample(&handle);
        if lasts {
            self.0.write().insert(key, handle);
        }
    }
}

impl Metrics {
    /// Installs the recorder of this process. Later calls return the same.
    ///
    /// # Panics
    /// If another recorder is installed in this process: then no metric would be visible.
    pub fn install() -> &'static Self {
        INSTALLED.get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
                .expect("there are buckets")
                .set_buckets_for_metric(
                    Matcher::Prefix("ubscore_posting_".to_owned()),
                    &CORE_BUCKETS,
                )
                .expect("there are buckets")
                .build_recorder();
            let metrics = Self(recorder.handle());
            metrics::set_global_recorder(recorder).expect("no other recorder of metrics");
            describe();
            metrics_process::Collector::default().describe();
            begin();
            metrics
        })
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        metrics_process::Collector::default().collect();
        metrics::counter!(LOG_LINES_DROPPED_TOTAL).absolute(lines::dropped());
        self.0.render()
    }

    /// Sets the engine's limits: the ring's slots, the depth at which orders are refused, and the
    /// room for outcomes.
    pub fn sized(&self, ring_slots: usize, ring_depth_max: usize, outcomes_max: usize) {
        metrics::gauge!(RING_SLOTS).set(ring_slots as f64);
        metrics::gauge!(RING_DEPTH_MAX).set(ring_depth_max as f64);
        metrics::gauge!(OUTCOMES_MAX).set(outcomes_max as f64);
    }

    /// Sets the duration of the log's replay.
    pub fn replayed(&self, took: Duration) {
        metrics::gauge!(REPLAY_SECONDS).set(took.as_secs_f64());
    }

    /// Sorts the samples of histograms into their buckets. Samples stay in memory until then, so
    /// this must be called every few seconds, also without scrapes.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Starts series at zero: Prometheus sees no increase if a counter begins with its first event.
fn begin() {
    metrics::gauge!(BUILD_INFO, "version" => release::VERSION, "commit" => release::COMMIT)
        .set(1.0);
    ready(false);
    for name in [RETRIES_TOTAL, FENCED_WRITES_TOTAL, SEGMENTS_REMOVED_TOTAL] {
        metrics::counter!(name).increment(0);
    }
    for result in ["clean", "mismatch", "failed"] {
        metrics::counter!(CONSERVATION_RUNS_TOTAL, "result" => result).increment(0);
    }
    for outcome in ["delivered", "failed", "dropped"] {
        metrics::counter!(ALERTS_SENT_TOTAL, "outcome" => outcome).increment(0);
    }
    for outcome in ["delivered", "failed", "dead"] {
        webhook_deliveries(outcome, 0);
    }
    webhook_backlog(Duration::ZERO, 0);
    for limit in ["second", "day", "amount"] {
        metrics::counter!(HTTP_LIMITED_TOTAL, "limit" => limit).increment(0);
    }
    let shortages = Shortage::ALL.map(Shortage::name);
    for reason in shortages.into_iter().chain([HALTED_REASON, PAUSED_REASON, AWAY_REASON]) {
        metrics::counter!(REFUSED_TOTAL, "reason" => reason).increment(0);
    }
    events(0);
    event_streams(0);
    stream_connections(0.0);
}

/// Starts the series of a final state at zero, before the first transfer reaches it.
pub fn expect_transfers(direction: &'static str, state: &'static str) {
    metrics::counter!(TRANSFERS_TOTAL, "direction" => direction, "state" => state).increment(0);
}

/// Starts the series of an alert at zero, before it is raised for the first time.
pub fn expect_alert(alert: &'static str) {
    metrics::counter!(ALERTS_TOTAL, "alert" => alert).increment(0);
}

/// Counts a transfer that reached a final state. `seconds`: time since it was accepted.
pub fn transfer(direction: &'static str, state: &'static str, seconds: f64) {
    type Ended = Registered<(&'static str, &'static str), (Counter, Histogram)>;
    static ENDED: LazyLock<Ended> = LazyLock::new(Registered::new);
    let register = || {
        let total = metrics::counter!(TRANSFERS_TOTAL, "direction" => direction, "state" => state);
        (total, metrics::histogram!(TRANSFER_SECONDS, "direction" => direction))
    };
    ENDED.with((direction, state), register, |(total, time)| {
        total.increment(1);
        time.record(seconds);
    });
}

/// Counts a request that was refused because the service took no new work.
pub fn refused(reason: &'static str) {
    metrics::counter!(REFUSED_TOTAL, "reason" => reason).increment(1);
}

/// Sets whether transfers are taken.
pub fn ready(ready: bool) {
    metrics::gauge!(READY).set(f64::from(u8::from(ready)));
}

/// Sets the number of transfers in a state.
pub fn nonterminal(state: &'static str, count: u64) {
    metrics::gauge!(TRANSFERS_NONTERMINAL, "state" => state).set(count as f64);
}

/// Sets the age of the oldest transfer that is not final.
pub fn oldest_transfer(age: Duration) {
    metrics::gauge!(OLDEST_TRANSFER_AGE_SECONDS).set(age.as_secs_f64());
}

/// Sets the amount of an asset in flight. `amount`: decimal text; the gauge rounds it.
pub fn in_flight(symbol: &str, amount: &str) {
    let rounded = amount.parse::<f64>().expect("decimal text");
    metrics::gauge!(IN_FLIGHT_AMOUNT, "asset" => symbol.to_owned()).set(rounded);
}

/// Sets the amount of an asset that is held. `amount`: decimal text; the gauge rounds it.
pub fn held(symbol: &str, amount: &str) {
    let rounded = amount.parse::<f64>().expect("decimal text");
    metrics::gauge!(HELD, "asset" => symbol.to_owned()).set(rounded);
}

/// Sets the gauges of a venue. `oldest`: the age of its oldest hold.
pub fn venue(id: u32, number: u64, unacknowledged: u64, oldest: Duration) {
    let id = id.to_string();
    metrics::gauge!(VENUE_NUMBER, "venue" => id.clone()).set(number as f64);
    metrics::gauge!(VENUE_UNACKNOWLEDGED, "venue" => id.clone()).set(unacknowledged as f64);
    metrics::gauge!(HOLD_OLDEST_SECONDS, "venue" => id).set(oldest.as_secs_f64());
}

/// Changes the number of connections of venues.
pub fn stream_connections(change: f64) {
    metrics::gauge!(STREAM_CONNECTIONS).increment(change);
}

/// The histogram of the answers' times. Each session keeps it, so that a sample needs no lookup.
pub fn stream_times() -> Histogram {
    metrics::histogram!(STREAM_SECONDS)
}

/// The histogram of the answers' writes. See [`stream_times`].
pub fn stream_writes() -> Histogram {
    metrics::histogram!(STREAM_WRITE_SECONDS)
}

/// Notes the times of one command of a venue: on the ring, and in its decision.
pub fn posting_times(wait: Duration, decide: Duration) {
    metrics::histogram!(POSTING_WAIT_SECONDS).record(wait.as_secs_f64());
    metrics::histogram!(POSTING_DECIDE_SECONDS).record(decide.as_secs_f64());
}

/// Sets the counters of an operation of venues.
pub fn postings(op: &'static str, successes: u64, refusals: u64) {
    for (result, count) in [("success", successes), ("refused", refusals)] {
        metrics::counter!(POSTINGS_TOTAL, "op" => op, "result" => result).absolute(count);
    }
}

/// Sets the use of the pool for reads.
pub fn pool(in_use: usize, max: usize, waiting: usize) {
    metrics::gauge!(POSTGRES_POOL_IN_USE).set(in_use as f64);
    metrics::gauge!(POSTGRES_POOL_MAX).set(max as f64);
    metrics::gauge!(POSTGRES_POOL_WAITING).set(waiting as f64);
}

/// The histogram of the log's syncs. The syncing thread keeps it, so that a sample needs no lookup.
pub fn wal_syncs() -> metrics::Histogram {
    metrics::histogram!(WAL_SYNC_SECONDS)
}

/// Counts a write that was refused because another process has taken over.
pub fn count_fenced_write() {
    metrics::counter!(FENCED_WRITES_TOTAL).increment(1);
}

/// Counts one answered request with its duration.
pub fn time_http_request(route: &'static str, status: u16, took: Duration) {
    type Answered = Registered<(&'static str, u16), (Counter, Histogram)>;
    static ANSWERED: LazyLock<Answered> = LazyLock::new(Registered::new);
    let time = || metrics::histogram!(HTTP_REQUEST_SECONDS, "route" => route);
    let register = || (http_requests(route, status), time());
    ANSWERED.with((route, status), register, |(total, time)| {
        total.increment(1);
        time.record(took.as_secs_f64());
    });
}

fn http_requests(route: &'static str, status: u16) -> Counter {
    metrics::counter!(HTTP_REQUESTS_TOTAL, "route" => route, "status" => status.to_string())
}

/// Counts one answered request.
///
/// `route`: a route's pattern or [`ROUTE_NONE`], never the path itself.
pub fn count_http_request(route: &'static str, status: u16) {
    debug_assert!(route == ROUTE_NONE || route.starts_with('/'), "{route} is no pattern");
    http_requests(route, status).increment(1);
}

/// Counts a refused transfer if it was refused at a limit.
pub fn count_limited(code: Code) {
    let limit = match code {
        Code::RateLimitExceeded => "second",
        Code::DailyLimitExceeded => "day",
        Code::DailyAmountExceeded => "amount",
        _ => return,
    };
    metrics::counter!(HTTP_LIMITED_TOTAL, "limit" => limit).increment(1);
}

/// Records the duration of one commit of a batch or of one call of a participant.
pub fn step(step: Step, took_ns: u64) {
    static TIMES: LazyLock<Registered<Step, Histogram>> = LazyLock::new(Registered::new);
    let seconds = Duration::from_nanos(took_ns).as_secs_f64();
    let register = || metrics::histogram!(STEP_SECONDS, "step" => step.name());
    TIMES.with(step, register, |time| time.record(seconds));
}

/// Sets the free space on the log's file system.
pub fn wal_free(bytes: u64) {
    metrics::gauge!(WAL_FREE_BYTES).set(bytes as f64);
}

/// Sets the length of Funding's journal.
pub fn journal_bytes(bytes: u64) {
    metrics::gauge!(JOURNAL_BYTES).set(bytes as f64);
}

/// Sets the total length of the log's files.
pub fn wal_bytes(bytes: u64) {
    metrics::gauge!(WAL_BYTES).set(bytes as f64);
}

/// Sets the last snapshot: its duration, its length, its sequence and its time.
pub fn snapshot(took: Duration, bytes: u64, sequence: u64, now_s: u64) {
    debug_assert!(bytes > 0 && sequence > 0, "a snapshot has a header and covers a record");
    metrics::gauge!(SNAPSHOT_SECONDS).set(took.as_secs_f64());
    metrics::gauge!(SNAPSHOT_BYTES).set(bytes as f64);
    metrics::gauge!(SNAPSHOT_SEQUENCE).set(sequence as f64);
    metrics::gauge!(SNAPSHOT_TIMESTAMP_SECONDS).set(now_s as f64);
}

/// Sets the watermark, and the age of the oldest transfer above it.
pub fn watermark(order_number: u64, oldest: Duration) {
    metrics::gauge!(WATERMARK).set(order_number as f64);
    metrics::gauge!(WATERMARK_OLDEST_SECONDS).set(oldest.as_secs_f64());
}

/// Counts events of committed flights.
pub fn events(count: usize) {
    metrics::counter!(EVENTS_TOTAL).increment(count as u64);
}

/// Sets the number of open streams of events.
pub fn event_streams(count: usize) {
    metrics::gauge!(EVENT_STREAMS).set(count as f64);
}

/// Counts a stream that was ended, by reason.
pub fn event_stream_ended(reason: &'static str) {
    metrics::counter!(EVENT_STREAMS_ENDED_TOTAL, "reason" => reason).increment(1);
}

/// Counts tries of deliveries to a webhook endpoint.
pub fn webhook_deliveries(outcome: &'static str, count: u64) {
    metrics::counter!(WEBHOOK_DELIVERIES_TOTAL, "outcome" => outcome).increment(count);
}

/// Sets the age of the oldest undelivered event, and the number of dead letters.
pub fn webhook_backlog(oldest: Duration, dead: u64) {
    metrics::gauge!(WEBHOOK_OLDEST_SECONDS).set(oldest.as_secs_f64());
    metrics::gauge!(WEBHOOK_DEAD).set(dead as f64);
}

/// Counts a call to a participant. `participant`: a name of the configuration or of a stored
/// branch.
pub fn participant_request(participant: &str, action: &'static str, outcome: &'static str) {
    let participant = participant.to_owned();
    metrics::counter!(PARTICIPANT_REQUESTS_TOTAL, "participant" => participant, "action" => action, "outcome" => outcome)
        .increment(1);
}

/// Counts a call to a payment channel with its duration. `channel`: a name of the configuration.
pub fn channel_call(channel: &str, call: &'static str, outcome: &'static str, took: Duration) {
    let channel = channel.to_owned();
    metrics::counter!(CHANNEL_CALLS_TOTAL, "channel" => channel.clone(), "call" => call, "outcome" => outcome)
        .increment(1);
    metrics::histogram!(CHANNEL_CALL_SECONDS, "channel" => channel, "call" => call)
        .record(took.as_secs_f64());
}

/// Sets the number of transactions in a state.
pub fn transactions(state: &'static str, count: u64) {
    metrics::gauge!(TRANSACTIONS, "state" => state).set(count as f64);
}

/// Counts a transaction that has ended.
pub fn transaction(result: &'static str, took: Duration) {
    metrics::counter!(TRANSACTIONS_TOTAL, "result" => result).increment(1);
    metrics::histogram!(TRANSACTION_SECONDS).record(took.as_secs_f64());
}

/// Counts a commit with so many moves and rounds.
pub fn transaction_commit(writes: usize) {
    metrics::counter!(TRANSACTION_COMMITS_TOTAL).increment(1);
    metrics::counter!(TRANSACTION_WRITES_TOTAL).increment(writes as u64);
}

/// Makes the counter of ended transactions visible before the first one.
pub fn expect_transactions(result: &'static str) {
    metrics::counter!(TRANSACTIONS_TOTAL, "result" => result).increment(0);
}

/// Sets the age of the oldest transaction that is not final.
pub fn oldest_transaction(age: Duration) {
    metrics::gauge!(TRANSACTION_OLDEST_SECONDS).set(age.as_secs_f64());
}

/// Sets the number of special accounts below zero.
pub fn special_negative(accounts: usize) {
    metrics::gauge!(SPECIAL_NEGATIVE).set(accounts as f64);
}

/// Sets whether the service is halted.
pub fn halted(halted: bool) {
    metrics::gauge!(HALTED).set(f64::from(u8::from(halted)));
}

/// Registers the help and the unit of each metric; [`Metrics::install`] calls it.
#[rustfmt::skip]
pub fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};

    recharges::describe();
    describe_counter!(TRANSFERS_TOTAL, Unit::Count, "Transfers that reached a final state.");
    describe_histogram!(TRANSFER_SECONDS, Unit::Seconds, "Time from accept to the final state.");
    describe_histogram!(STEP_SECONDS, Unit::Seconds, "Time of one step of a transfer.");
    describe_gauge!(TRANSFERS_NONTERMINAL, Unit::Count, "Transfers that are not final.");
    describe_gauge!(OLDEST_TRANSFER_AGE_SECONDS, Unit::Seconds, "Age of the oldest transfer that is not final.");
    describe_gauge!(IN_FLIGHT_AMOUNT, Unit::Count, "Paid by the source and not yet given to the target.");
    describe_gauge!(RING_DEPTH, Unit::Count, "Orders in the ring.");
    describe_gauge!(RING_DEPTH_MAX, Unit::Count, "Depth of the ring at which orders are refused.");
    describe_counter!(WAL_WRITTEN_BYTES_TOTAL, Unit::Bytes, "Records appended to the log.");
    describe_gauge!(JOURNAL_BYTES, Unit::Bytes, "Rows of Funding's journal that can be deleted.");
    describe_gauge!(WAL_BYTES, Unit::Bytes, "Length of the files of the log.");
    describe_histogram!(WAL_SYNC_SECONDS, Unit::Seconds, "Time of one sync of the log.");
    describe_gauge!(OUTCOMES_MAX, Unit::Count, "Outcomes that the engine's map has room for.");
    describe_gauge!(POSTGRES_POOL_IN_USE, Unit::Count, "Connections of the pool for reads that are in use.");
    describe_gauge!(POSTGRES_POOL_MAX, Unit::Count, "The most connections that the pool for reads opens.");
    describe_gauge!(POSTGRES_POOL_WAITING, Unit::Count, "Reads that wait for a connection of the pool.");
    describe_counter!(FENCED_WRITES_TOTAL, Unit::Count, "Writes refused because another process has taken over.");
    describe_histogram!(HTTP_REQUEST_SECONDS, Unit::Seconds, "Time from a request to its answer.");
    describe_gauge!(READY, Unit::Count, "Whether transfers are taken.");
    describe_gauge!(BUILD_INFO, Unit::Count, "The running version and commit.");
    describe_gauge!(RING_SLOTS, Unit::Count, "Slots of the ring.");
    describe_gauge!(REPLAY_SECONDS, Unit::Seconds, "Time that the last replay took.");
    describe_gauge!(WAL_FREE_BYTES, Unit::Bytes, "Free space on the file system of the log.");
    describe_gauge!(SNAPSHOT_SECONDS, Unit::Seconds, "Time that the last snapshot took.");
    describe_gauge!(SNAPSHOT_BYTES, Unit::Bytes, "Length of the last snapshot.");
    describe_gauge!(SNAPSHOT_SEQUENCE, Unit::Count, "Sequence of the last snapshot.");
    describe_gauge!(SNAPSHOT_TIMESTAMP_SECONDS, Unit::Seconds, "When the last snapshot was made.");
    describe_counter!(SEGMENTS_REMOVED_TOTAL, Unit::Count, "Segments of the log removed.");
    describe_gauge!(ACCOUNTS, Unit::Count, "Spot accounts.");
    describe_gauge!(ACCOUNTS_MAX, Unit::Count, "Spot accounts that the table has room for.");
    describe_gauge!(BALANCES, Unit::Count, "Spot balances.");
    describe_gauge!(BALANCES_MAX, Unit::Count, "Spot balances that the table has room for.");
    describe_gauge!(HOLDS, Unit::Count, "Holds and freezes on Spot.");
    describe_gauge!(HOLDS_MAX, Unit::Count, "Holds and freezes that the table has room for.");
    describe_gauge!(HELD, Unit::Count, "Set apart by holds and freezes on Spot.");
    describe_gauge!(HOLD_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest hold of a venue.");
    describe_gauge!(VENUE_NUMBER, Unit::Count, "Last number decided of a venue.");
    describe_gauge!(VENUE_UNACKNOWLEDGED, Unit::Count, "Answers that a venue has not acknowledged.");
    describe_gauge!(STREAM_CONNECTIONS, Unit::Count, "Connections of venues.");
    describe_histogram!(STREAM_SECONDS, Unit::Seconds, "Time from a read of a venue's commands to the write of their answers.");
    describe_histogram!(STREAM_WRITE_SECONDS, Unit::Seconds, "Time from a venue's durable answers to their write.");
    describe_histogram!(POSTING_WAIT_SECONDS, Unit::Seconds, "Time that a venue's command waits for the core.");
    describe_histogram!(POSTING_DECIDE_SECONDS, Unit::Seconds, "Time of the decision of a venue's command.");
    describe_counter!(POSTINGS_TOTAL, Unit::Count, "Decided commands of venues.");
    describe_gauge!(OUTCOMES, Unit::Count, "Outcomes in the engine's map.");
    describe_gauge!(OUTCOMES_LEFT, Unit::Count, "Places for outcomes that are neither taken nor kept for a refund.");
    describe_gauge!(WATERMARK, Unit::Count, "Order number below which outcomes may be evicted.");
    describe_gauge!(WATERMARK_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest transfer not below the watermark.");
    describe_counter!(RETRIES_TOTAL, Unit::Count, "Steps that were retried.");
    describe_counter!(HTTP_REQUESTS_TOTAL, Unit::Count, "HTTP requests answered.");
    describe_counter!(HTTP_LIMITED_TOTAL, Unit::Count, "Transfers refused at a limit of their user.");
    describe_counter!(REFUSED_TOTAL, Unit::Count, "Requests refused because the service took no new work.");
    describe_counter!(ALERTS_TOTAL, Unit::Count, "Alerts raised.");
    describe_counter!(CONSERVATION_RUNS_TOTAL, Unit::Count, "Rounds of the audit.");
    describe_gauge!(CONSERVATION_LAST_SUCCESS, Unit::Seconds, "When the audit was last clean.");
    describe_counter!(ALERTS_SENT_TOTAL, Unit::Count, "Alerts for the webhook.");
    describe_counter!(EVENTS_TOTAL, Unit::Count, "Events about transfers.");
    describe_gauge!(EVENT_STREAMS, Unit::Count, "Streams of events that are open.");
    describe_counter!(EVENT_STREAMS_ENDED_TOTAL, Unit::Count, "Streams of events that were ended.");
    describe_counter!(WEBHOOK_DELIVERIES_TOTAL, Unit::Count, "Tries of deliveries to a webhook endpoint.");
    describe_gauge!(TRANSACTIONS, Unit::Count, "Transactions that are not final.");
    describe_counter!(TRANSACTIONS_TOTAL, Unit::Count, "Transactions that have ended.");
    describe_counter!(TRANSACTION_COMMITS_TOTAL, Unit::Count, "Commits of moves and rounds of transactions.");
    describe_counter!(TRANSACTION_WRITES_TOTAL, Unit::Count, "Moves and rounds of transactions.");
    describe_histogram!(TRANSACTION_SECONDS, Unit::Seconds, "Time from the accept of a transaction to its end.");
    describe_gauge!(TRANSACTION_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest transaction that is not final.");
    describe_gauge!(SPECIAL_NEGATIVE, Unit::Count, "Special accounts below zero.");
    describe_gauge!(WEBHOOK_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest event still to be delivered.");
    describe_gauge!(WEBHOOK_DEAD, Unit::Count, "Dead letters of webhook endpoints.");
    describe_counter!(PARTICIPANT_REQUESTS_TOTAL, Unit::Count, "Calls to participants of transactions.");
    describe_counter!(CHANNEL_CALLS_TOTAL, Unit::Count, "Calls to payment channels.");
    describe_histogram!(CHANNEL_CALL_SECONDS, Unit::Seconds, "Time of one call to a payment channel.");
    describe_counter!(LOG_LINES_DROPPED_TOTAL, Unit::Count, "Log lines dropped.");
    describe_gauge!(HALTED, Unit::Count, "Whether the service is halted.");
    callbacks::describe();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: Prometheus reads the counted values. One test, because the process has one recorder
    /// and other tests of the process may count at the same time.
    #[test]
    fn what_is_counted_is_rendered_with_help_type_and_buckets() {
        let metrics = Metrics::install();
        metrics::counter!(ALERTS_TOTAL, "alert" => "telemetry_test").increment(2);
        metrics::gauge!(RING_SLOTS).set(4096.0);
        metrics::histogram!(STEP_SECONDS, "step" => "telemetry_test").record(0.003);
        count_http_request("/telemetry/test", 404);
        for _ in 0..2 {
            time_http_request("/telemetry/test", 200, Duration::from_millis(3));
            time_http_request("/telemetry/test", 202, Duration::from_millis(3));
            transfer("telemetry_test", "ENDED", 0.003);
        }
        metrics.upkeep();
        let text = Metrics::install().render();
        for line in [
            "# HELP ubscore_alerts_total Alerts raised.",
            "# TYPE ubscore_alerts_total counter",
            "ubscore_alerts_total{alert=\"telemetry_test\"} 2",
            "# TYPE ubscore_ring_slots gauge",
            "ubscore_ring_slots 4096",
            "# TYPE ubscore_step_seconds histogram",
            "ubscore_step_seconds_bucket{step=\"telemetry_test\",le=\"0.002\"} 0",
            "ubscore_step_seconds_bucket{step=\"telemetry_test\",le=\"0.005\"} 1",
            "ubscore_step_seconds_bucket{step=\"telemetry_test\",le=\"+Inf\"} 1",
            "ubscore_http_requests_total{route=\"/telemetry/test\",status=\"404\"} 1",
            "ubscore_http_requests_total{route=\"/telemetry/test\",status=\"200\"} 2",
            "ubscore_http_requests_total{route=\"/telemetry/test\",status=\"202\"} 2",
            "ubscore_http_request_seconds_count{route=\"/telemetry/test\"} 4",
            "ubscore_transfers_total{direction=\"telemetry_test\",state=\"ENDED\"} 2",
            "ubscore_transfer_seconds_count{direction=\"telemetry_test\"} 2",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    /// Goal: a sample before the recorder is installed is lost alone, not with all later ones.
    #[test]
    fn a_handle_without_a_recorder_is_not_kept() {
        let registered = Registered::<u8, u8>::new();
        let installed = INSTALLED.get().is_some();
        registered.with(1, || 7, |seven| assert_eq!(*seven, 7));
        assert!(installed || registered.0.read().is_empty() || INSTALLED.get().is_some());
        Metrics::install();
        let mut times = 0;
        for _ in 0..3 {
            registered.with(2, || 8, |_| times += 1);
        }
        registered.with(2, || unreachable!("it is known"), |eight| assert_eq!(*eight, 8));
        assert_eq!(times, 3);
    }

    fn options(filter: &str, endpoint: Option<&str>) -> Options {
        let (filter, otlp_endpoint) = (filter.to_owned(), endpoint.map(str::to_owned));
        Options { filter, format: Format::Text, otlp_endpoint, sample_ratio: 1.0 }
    }

    #[test]
    fn a_filter_that_cannot_be_read_changes_nothing() {
        let found = init_logging(&options("ubscore=loud", None));
        assert!(matches!(found, Err(LogError::Filter(_))));
    }

    #[test]
    #[cfg(not(feature = "otel"))]
    fn a_collector_that_this_binary_cannot_tell_is_refused_by_name() {
        let options = options("info", Some("http://127.0.0.1:4318/v1/traces"));
        let refused = init_logging(&options).expect_err("no such feature");
        assert!(refused.to_string().contains("without the feature otel"), "{refused}");
    }
}
