//! The tick: rows that callers have decided, what is due, metrics, and stuck transactions.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Work, Worker, ns};
use crate::alert::{Alert, alert_about};
use crate::clock::NS_PER_S;
use crate::postgres::transactions::TransactionStore;
use crate::telemetry;
use crate::transaction::{TransactionRow, TransactionState};
use crate::transactions::branches::Branches;
use crate::transactions::entry::Entry;

/// An undecided transaction is stuck if its age has not ended it for this long, milliseconds.
const UNENDED_MS: u64 = 60_000;

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    pub(super) fn tick(&mut self) {
        self.answer_late();
        if !self.loaded {
            return;
        }
        let is_asked = |work: &Work| matches!(work, Work::Decided);
        if !self.work.iter().any(is_asked) {
            self.work.push_back(Work::Decided);
        }
        // Every transaction: its age may have ended it, and nothing is lost for want of a wake-up.
        self.wake_all();
        self.measure();
        self.look_for_stuck();
    }

    fn measure(&self) {
        let mut by_state: BTreeMap<TransactionState, u64> = BTreeMap::new();
        for state in TransactionState::ALL.into_iter().filter(|state| !state.is_terminal()) {
            by_state.insert(state, 0);
        }
        let mut oldest: Option<Timestamp> = None;
        for entry in self.entries.values() {
            *by_state.entry(entry.row.state).or_default() += 1;
            let created = entry.row.created_at;
            oldest = Some(oldest.map_or(created, |oldest| oldest.min(created)));
        }
        for (state, count) in by_state {
            telemetry::transactions(state.name(), count);
        }
        let age = oldest.map(|oldest| self.now().duration_since(oldest).unsigned_abs());
        telemetry::oldest_transaction(age.unwrap_or_default());
    }

    /// Counts a transaction that has ended.
    pub(super) fn count_final(&self, row: &TransactionRow) {
        let took = row.updated_at.duration_since(row.created_at).unsigned_abs();
        telemetry::transaction(row.state.name(), took);
    }

    /// Alerts about each transaction that does not reach its end. The alert names the parties that
    /// are asked, or the session that holds the row.
    fn look_for_stuck(&self) {
        if self.parts.gate.is_closed() {
            return;
        }
        let (now, now_ns) = (self.now(), self.now_ns());
        for (id, entry) in &self.entries {
            let Some(since) = self.stuck_for(entry, now, now_ns) else { continue };
            let (state, seconds) = (entry.row.state.name(), since / NS_PER_S);
            let tx_id = entry.row.name.tx_id.as_str();
            let what = format_args!(
                "transaction {tx_id} of {} ({id}) is {state} and stuck for {seconds} s: {}",
                entry.row.name.owner,
                obstacle(entry)
            );
            alert_about(Alert::TransactionStuck, id, what);
        }
    }

    /// For how long a transaction has been stuck, ns.
    fn stuck_for(&self, entry: &Entry, now: Timestamp, now_ns: u64) -> Option<u64> {
        let known_ns = now_ns.saturating_sub(entry.since_ns.max(self.resumed_ns));
        if entry.row.state == TransactionState::Open {
            let beyond = now.duration_since(entry.row.expires_at);
            let is_late = beyond.is_positive()
                && beyond.unsigned_abs().as_nanos() > u128::from(ns(UNENDED_MS));
            let known_ns = known_ns.min(now_ns.saturating_sub(self.resumed_ns));
            return (is_late && known_ns > ns(UNENDED_MS)).then_some(known_ns);
        }
        (known_ns > ns(self.parts.options.stuck_ms)).then_some(known_ns)
    }
}

/// Why a transaction does not go on.
fn obstacle(entry: &Entry) -> String {
    if let Some(session) = &entry.held {
        return format!("{session} holds its row");
    }
    if let Some((_, trouble)) = &entry.trouble {
        return trouble.clone();
    }
    let asked: Vec<&str> = entry.asking.iter().map(|(party, _)| party.name()).collect();
    match asked.is_empty() {
        true => "PostgreSQL has not taken its last step".to_owned(),
        false => format!("{} asked and silent", asked.join(", ")),
    }
}
