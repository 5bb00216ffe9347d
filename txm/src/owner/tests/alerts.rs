//! The alerts that owners raise, counted by name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;

/// The counters of one test, for `metrics::set_default_local_recorder`.
#[derive(Default)]
pub(super) struct Alerts(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Alerts {
    /// How often an alert was raised.
    pub(super) fn of(&self, alert: &str) -> u64 {
        let name = format!("ubscore_tx_alert_total {alert}");
        self.0.lock().get(&name).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl Recorder for Alerts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<&str> = key.labels().map(metrics::Label::value).collect();
        let name = [&[key.name()][..], &labels[..]].concat().join(" ");
        Counter::from_arc(Arc::clone(self.0.lock().entry(name).or_default()))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
