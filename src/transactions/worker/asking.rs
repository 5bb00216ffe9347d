//! Questions to the parties, and their answers. Each question is a future of its own: a party that
//! is slow or that panics stops no other one.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::FutureExt;
use jiff::Timestamp;
use tracing::{debug, error, info};

use super::{Worker, ns};
use crate::alert::{Alert, alert_about};
use crate::crash;
use crate::postgres::transactions::TransactionStore;
use crate::transaction::Party;
use crate::transactions::ask::{self, ask, words};
use crate::transactions::branches::{Branches, Heard};
use crate::transactions::entry::Tries;
use crate::transactions::step::{Question, TransactionStep, Word};
use domain::transfer::ReqId;

/// A question under way.
pub(super) type Asking = Pin<Box<dyn Future<Output = (ReqId, Question, Heard)> + Send>>;

/// Questions to one store at once.
const ASKED_OF_STORE_MAX: usize = 256;
/// Calls to one service at once: each has a thread.
const ASKED_OF_SERVICE_MAX: usize = 32;
/// So many unknown confirms or cancels of a service in a row raise the alert.
const DOUBTS_MAX: u32 = 3;

/// The questions under way by party, and the transactions that wait for a place.
#[derive(Debug, Default)]
pub(super) struct Crowds(BTreeMap<Party, (usize, VecDeque<ReqId>)>);

impl Crowds {
    /// Whether another question has a place; otherwise the transaction waits for one.
    fn enter(&mut self, party: &Party, id: ReqId) -> bool {
        let (asked, waiting) = self.0.entry(party.clone()).or_default();
        let most = match party {
            Party::Store(_) => ASKED_OF_STORE_MAX,
            Party::Service(_) => ASKED_OF_SERVICE_MAX,
        };
        if *asked >= most {
            if !waiting.contains(&id) {
                waiting.push_back(id);
            }
            return false;
        }
        *asked += 1;
        true
    }

    /// A question has ended. The next one in line.
    fn leave(&mut self, party: &Party) -> Option<ReqId> {
        let (asked, waiting) = self.0.get_mut(party)?;
        *asked -= 1;
        waiting.pop_front()
    }
}

/// Unknown confirms and cancels of each service in a row.
#[derive(Debug, Default)]
pub(super) struct Doubts(BTreeMap<String, u32>);

impl<S: TransactionStore, B: Branches> Worker<S, B> {
    /// Asks every question that this transaction needs now.
    pub(super) fn ask(&mut self, id: ReqId, now: Timestamp) {
        let now_ns = self.now_ns();
        let Some(entry) = self.entries.get(&id) else { return };
        let nexts = entry.nexts(&entry.row, entry.known, now).into_iter();
        let questions: Vec<Question> = nexts
            .filter_map(|next| if let TransactionStep::Ask(q) = next { Some(q) } else { None })
            .collect();
        for question in questions {
            let Some(entry) = self.entries.get_mut(&id) else { return };
            let place = place(&question);
            let is_early = |tries: &Tries| tries.due_ns > now_ns;
            if entry.asking.contains(&place) || entry.tries.get(&question).is_some_and(is_early) {
                continue;
            }
            if !self.crowds.enter(&question.party, id) {
                continue;
            }
            // Behind the places: a pass must not be kept by a question that waits.
            let Some(pass) = self.parts.gate.pass() else {
                self.woken.extend(self.crowds.leave(&question.party));
                return;
            };
            entry.asking.insert(place);
            let words = words(&entry.row, &question);
            let branches = Arc::clone(&self.parts.branches);
            let word = question.word;
            debug!(transaction = %id, party = question.party.name(), word = word.name(), "asked");
            self.questions.push(Box::pin(async move {
                let _moving = pass;
                crash::point("transaction_before_ask");
                let asked = AssertUnwindSafe(ask(&*branches, words, word)).catch_unwind().await;
                let heard = asked.unwrap_or_else(|_panic| {
                    error!(transaction = %id, word = word.name(), "a question panicked");
                    Heard::Unknown { why: "the question panicked".to_owned() }
                });
                crash::point("transaction_after_ask");
                (id, question, heard)
            }));
        }
    }

    /// A party has answered, or the question has ended without an answer.
    pub(super) fn on_heard(&mut self, id: ReqId, question: Question, heard: Heard) {
        let now_ns = self.now_ns();
        if let Some(next) = self.crowds.leave(&question.party) {
            self.woken.insert(next);
        }
        self.note_doubt(&question, &heard);
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.asking.remove(&place(&question));
        if question.word == Word::Cancel {
            // To resolve is to ask for the cancel once. A participant that cannot is asked on for
            // its commit.
            entry.resolving = false;
        }
        self.woken.insert(id);
        if let Heard::Unknown { why } = &heard {
            let count = entry.tries.get(&question).map_or(0, |tries| tries.count) + 1;
            let due_ns = now_ns + ns(self.backoff.delay_ms(count));
            let (party, word) = (question.party.name(), question.word.name());
            info!(transaction = %id, party, word, count, why, "no answer; it is asked again");
            let trouble = format!("{party} to {word}: {why}");
            entry.trouble = Some((Some(question.party.clone()), trouble));
            entry.tries.insert(question, Tries { count, due_ns });
            self.wake_at(due_ns, id);
            return;
        }
        entry.tries.remove(&question);
        // The trouble of the other store stays: both are asked at once.
        let of_other = |(party, _): &(Option<Party>, String)| {
            party.as_ref().is_some_and(|party| *party != question.party)
        };
        entry.trouble = entry.trouble.take().filter(of_other);
        // Answers without a state of their own are known at once.
        ask::moves(&entry.row, &mut entry.known, &question, &heard);
        entry.heard.push((question, heard));
    }

    fn note_doubt(&mut self, question: &Question, heard: &Heard) {
        let Party::Service(name) = &question.party else { return };
        if !matches!(heard, Heard::Unknown { .. }) {
            self.doubts.0.remove(name);
            return;
        }
        if !matches!(question.word, Word::Confirm | Word::Cancel) {
            return;
        }
        let doubts = self.doubts.0.entry(name.clone()).or_default();
        *doubts = doubts.saturating_add(1);
        if let (true, Heard::Unknown { why }) = (*doubts >= DOUBTS_MAX, heard) {
            let word = question.word.name();
            let what = format_args!(
                "participant {name} has not answered {doubts} confirms or cancels in a row; the \
                 last one, to {word}: {why}"
            );
            alert_about(Alert::ParticipantFailing, name, what);
        }
    }
}

/// The place of a question: a party answers one question of a transaction at a time, a service one
/// of each branch.
fn place(question: &Question) -> (Party, u8) {
    let round = match question.party {
        Party::Store(_) => 0,
        Party::Service(_) => question.round,
    };
    (question.party.clone(), round)
}
