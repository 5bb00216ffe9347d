//! What operators see of the running process: log lines on stderr and Prometheus metrics.
//!
//! Every metric has its name, unit and help here, once; those who count use the constants.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::Duration;

use metrics::Unit;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::config::{Format, Log};

/// Counter: transfers that reached a final state, by `direction` and `state`.
pub const TRANSFERS_TOTAL: &str = "ubscore_transfers_total";
/// Histogram, s: from accept to the final state, by `direction`.
pub const TRANSFER_SECONDS: &str = "ubscore_transfer_seconds";
/// Histogram, s: one commit of a batch or one question to a participant, by `step`.
pub const STEP_SECONDS: &str = "ubscore_step_seconds";
/// Gauge: transfers that are not final, by `shard`.
pub const TRANSFERS_NONTERMINAL: &str = "ubscore_transfers_nonterminal";
/// Gauge: orders in the ring.
pub const RING_DEPTH: &str = "ubscore_ring_depth";
/// Gauge: slots of the ring.
pub const RING_SLOTS: &str = "ubscore_ring_slots";
/// Gauge, s: how long the last replay took.
pub const REPLAY_SECONDS: &str = "ubscore_replay_seconds";
/// Gauge, bytes: what is free on the log's file system.
pub const WAL_FREE_BYTES: &str = "ubscore_wal_free_bytes";
/// Gauge, s: how long the last snapshot took.
pub const SNAPSHOT_SECONDS: &str = "ubscore_snapshot_seconds";
/// Gauge, bytes: how large the last snapshot is.
pub const SNAPSHOT_BYTES: &str = "ubscore_snapshot_bytes";
/// Gauge: the record at which the last snapshot stands.
pub const SNAPSHOT_SEQUENCE: &str = "ubscore_snapshot_sequence";
/// Gauge, s since the Unix epoch: when the last snapshot was made.
pub const SNAPSHOT_TIMESTAMP_SECONDS: &str = "ubscore_snapshot_timestamp_seconds";
/// Counter: segments of the log removed.
pub const SEGMENTS_REMOVED_TOTAL: &str = "ubscore_segments_removed_total";
/// Gauge: outcomes in the engine's map.
pub const OUTCOMES: &str = "ubscore_outcomes";
/// Gauge: the order number below which outcomes may be forgotten.
pub const WATERMARK: &str = "ubscore_watermark";
/// Gauge, s: age of the oldest transfer that is not below the watermark.
pub const WATERMARK_OLDEST_SECONDS: &str = "ubscore_watermark_oldest_transfer_seconds";
/// Counter: steps whose outcome was unknown and that are tried again.
pub const RETRIES_TOTAL: &str = "ubscore_retries_total";
/// Counter: HTTP requests answered, by `route` and `status`.
pub const HTTP_REQUESTS_TOTAL: &str = "ubscore_http_requests_total";
/// Counter: alerts raised, by `alert`.
pub const ALERTS_TOTAL: &str = "ubscore_alerts_total";
/// Counter: rounds of the audit, by `result`: clean, mismatch, failed.
pub const CONSERVATION_RUNS_TOTAL: &str = "ubscore_conservation_runs_total";
/// Gauge, s since the Unix epoch: when the audit last found everything in order.
pub const CONSERVATION_LAST_SUCCESS: &str = "ubscore_conservation_last_success_timestamp_seconds";
/// Counter: alerts for the webhook, by `outcome`: delivered, failed, dropped.
pub const ALERTS_SENT_TOTAL: &str = "ubscore_alerts_sent_total";
/// Counter: events made of what became of transfers.
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
/// Gauge: 1 while the service is halted, else 0.
pub const HALTED: &str = "ubscore_halted";

/// The `route` of a request that no route answered. Never a path: a client could make up as many
/// as it likes, and each would stay in memory.
pub const ROUTE_NONE: &str = "none";

/// Bounds of every histogram of durations, s: from a quiet disk's sync to the longest a client
/// may wait, about three steps a decade.
const SECONDS_BUCKETS: [f64; 18] = [
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 5.0, 10.0, 30.0,
];

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// `Config::validate` was not asked, or it would have said so.
    #[error("log.filter")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The process logs already.
    #[error("start logging")]
    Twice(#[source] TryInitError),
}

/// Sends log lines to stderr from now on; stdout belongs to what a command was asked for.
///
/// # Errors
/// [`LogError`]: nothing was changed.
pub fn init_logging(log: &Log) -> Result<(), LogError> {
    let filter = EnvFilter::try_new(&log.filter).map_err(LogError::Filter)?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // A line that cannot be written is lost; saying so on the same stderr would panic.
        .log_internal_errors(false)
        .with_ansi(io::stderr().is_terminal());
    match log.format {
        Format::Text => lines.finish().try_init(),
        Format::Json => lines.json().finish().try_init(),
    }
    .map_err(LogError::Twice)
}

/// The process's metrics, as Prometheus reads them.
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Makes this process count; the first call decides, later ones return the same.
    ///
    /// # Panics
    /// If something else has made itself the process's recorder: then nothing that we count would
    /// be seen.
    pub fn install() -> &'static Self {
        static INSTALLED: OnceLock<Metrics> = OnceLock::new();
        INSTALLED.get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)
                .expect("there are buckets")
                .build_recorder();
            let metrics = Self(recorder.handle());
            metrics::set_global_recorder(recorder).expect("nobody else records metrics");
            describe();
            metrics
        })
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Notes the ring's size.
    pub fn sized(&self, ring_slots: usize) {
        metrics::gauge!(RING_SLOTS).set(ring_slots as f64);
    }

    /// Notes how long the log's replay took.
    pub fn replayed(&self, took: Duration) {
        metrics::gauge!(REPLAY_SECONDS).set(took.as_secs_f64());
    }

    /// Folds what histograms have collected into their buckets. Between two scrapes every sample
    /// is kept, so this must be called every few seconds whether anybody scrapes or not.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

/// Counts one answered request.
///
/// `route`: a route's pattern or [`ROUTE_NONE`], never the path itself.
pub fn count_http_request(route: &'static str, status: u16) {
    metrics::counter!(HTTP_REQUESTS_TOTAL, "route" => route, "status" => status.to_string())
        .increment(1);
}

/// Notes how long one commit of a batch, or one question to a participant, took.
pub fn step(step: &'static str, took_ns: u64) {
    let seconds = Duration::from_nanos(took_ns).as_secs_f64();
    metrics::histogram!(STEP_SECONDS, "step" => step).record(seconds);
}

/// Notes what is free on the log's file system.
pub fn wal_free(bytes: u64) {
    metrics::gauge!(WAL_FREE_BYTES).set(bytes as f64);
}

/// Notes a snapshot: how long it took, its length, the record at which it stands, and when it was made.
pub fn snapshot(took: Duration, bytes: u64, sequence: u64, now_s: u64) {
    metrics::gauge!(SNAPSHOT_SECONDS).set(took.as_secs_f64());
    metrics::gauge!(SNAPSHOT_BYTES).set(bytes as f64);
    metrics::gauge!(SNAPSHOT_SEQUENCE).set(sequence as f64);
    metrics::gauge!(SNAPSHOT_TIMESTAMP_SECONDS).set(now_s as f64);
}

/// Notes where the watermark stands, and what is above it.
pub fn watermark(order_number: u64, oldest: Duration) {
    metrics::gauge!(WATERMARK).set(order_number as f64);
    metrics::gauge!(WATERMARK_OLDEST_SECONDS).set(oldest.as_secs_f64());
}

/// Counts events made.
pub fn events_made(count: u64) {
    metrics::counter!(EVENTS_TOTAL).increment(count);
}

/// Notes how many streams of events are open.
pub fn event_streams(count: usize) {
    metrics::gauge!(EVENT_STREAMS).set(count as f64);
}

/// Counts a stream that was ended, and why.
pub fn event_stream_ended(reason: &'static str) {
    metrics::counter!(EVENT_STREAMS_ENDED_TOTAL, "reason" => reason).increment(1);
}

/// Counts tries of deliveries to a webhook endpoint.
pub fn webhook_deliveries(outcome: &'static str, count: u64) {
    metrics::counter!(WEBHOOK_DELIVERIES_TOTAL, "outcome" => outcome).increment(count);
}

/// Notes how far deliveries to webhook endpoints are behind, and how many were given up.
pub fn webhook_backlog(oldest: Duration, dead: u64) {
    metrics::gauge!(WEBHOOK_OLDEST_SECONDS).set(oldest.as_secs_f64());
    metrics::gauge!(WEBHOOK_DEAD).set(dead as f64);
}

/// Notes whether the service is halted.
pub fn halted(halted: bool) {
    metrics::gauge!(HALTED).set(f64::from(u8::from(halted)));
}

/// The gauge of how many transfers the worker of a shard has in hand.
pub fn nonterminal(shard: usize) -> metrics::Gauge {
    metrics::gauge!(TRANSFERS_NONTERMINAL, "shard" => shard.to_string())
}

/// Registers what each metric means; [`Metrics::install`] has called it.
#[rustfmt::skip]
pub fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};

    describe_counter!(TRANSFERS_TOTAL, Unit::Count, "Transfers that reached a final state.");
    describe_histogram!(TRANSFER_SECONDS, Unit::Seconds, "Time from accept to the final state.");
    describe_histogram!(STEP_SECONDS, Unit::Seconds, "Time of one step of a transfer.");
    describe_gauge!(TRANSFERS_NONTERMINAL, Unit::Count, "Transfers that are not final.");
    describe_gauge!(RING_DEPTH, Unit::Count, "Orders in the ring.");
    describe_gauge!(RING_SLOTS, Unit::Count, "Slots of the ring.");
    describe_gauge!(REPLAY_SECONDS, Unit::Seconds, "Time that the last replay took.");
    describe_gauge!(WAL_FREE_BYTES, Unit::Bytes, "Free on the file system of the log.");
    describe_gauge!(SNAPSHOT_SECONDS, Unit::Seconds, "Time that the last snapshot took.");
    describe_gauge!(SNAPSHOT_BYTES, Unit::Bytes, "Length of the last snapshot.");
    describe_gauge!(SNAPSHOT_SEQUENCE, Unit::Count, "Record at which the last snapshot stands.");
    describe_gauge!(SNAPSHOT_TIMESTAMP_SECONDS, Unit::Seconds, "When the last snapshot was made.");
    describe_counter!(SEGMENTS_REMOVED_TOTAL, Unit::Count, "Segments of the log removed.");
    describe_gauge!(OUTCOMES, Unit::Count, "Outcomes in the engine's map.");
    describe_gauge!(WATERMARK, Unit::Count, "Order number below which outcomes may be forgotten.");
    describe_gauge!(WATERMARK_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest transfer not below the watermark.");
    describe_counter!(RETRIES_TOTAL, Unit::Count, "Steps tried again.");
    describe_counter!(HTTP_REQUESTS_TOTAL, Unit::Count, "HTTP requests answered.");
    describe_counter!(ALERTS_TOTAL, Unit::Count, "Alerts raised.");
    describe_counter!(CONSERVATION_RUNS_TOTAL, Unit::Count, "Rounds of the audit.");
    describe_gauge!(CONSERVATION_LAST_SUCCESS, Unit::Seconds, "When the audit was last clean.");
    describe_counter!(ALERTS_SENT_TOTAL, Unit::Count, "Alerts for the webhook.");
    describe_counter!(EVENTS_TOTAL, Unit::Count, "Events made of what became of transfers.");
    describe_gauge!(EVENT_STREAMS, Unit::Count, "Streams of events that are open.");
    describe_counter!(EVENT_STREAMS_ENDED_TOTAL, Unit::Count, "Streams of events that were ended.");
    describe_counter!(WEBHOOK_DELIVERIES_TOTAL, Unit::Count, "Tries of deliveries to a webhook endpoint.");
    describe_gauge!(WEBHOOK_OLDEST_SECONDS, Unit::Seconds, "Age of the oldest event still to be delivered.");
    describe_gauge!(WEBHOOK_DEAD, Unit::Count, "Dead letters of webhook endpoints.");
    describe_gauge!(HALTED, Unit::Count, "Whether the service is halted.");
}

/// An error and its sources in one line, for logs.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is counted is what Prometheus reads. One test, since the recorder is the
    /// process's: others of this process may count at the same time.
    #[test]
    fn what_is_counted_is_rendered_with_help_type_and_buckets() {
        let metrics = Metrics::install();
        metrics::counter!(ALERTS_TOTAL, "alert" => "telemetry_test").increment(2);
        metrics::gauge!(RING_SLOTS).set(4096.0);
        metrics::histogram!(STEP_SECONDS, "step" => "telemetry_test").record(0.003);
        count_http_request("/telemetry/test", 404);
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
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_changes_nothing() {
        let log = Log { filter: "ubscore=loud".to_owned(), ..Log::default() };
        assert!(matches!(init_logging(&log), Err(LogError::Filter(_))));
    }
}
