//! The metrics of a run, counted by name and labels: alerts, refusals, answers to sends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;

/// The counters of a run.
#[derive(Default)]
pub(super) struct Tally(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

impl Tally {
    /// What was counted.
    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        let counters = self.0.lock();
        let counts = counters.iter().map(|(name, it)| (name.clone(), it.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    /// Counts an event.
    pub(super) fn note(&self, what: &str) {
        self.0.lock().entry(what.to_owned()).or_default().fetch_add(1, Ordering::Relaxed);
    }

    /// How often something was counted.
    pub(super) fn of(&self, what: &str) -> u64 {
        self.0.lock().get(what).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

impl Recorder for Tally {
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
