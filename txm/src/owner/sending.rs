//! Signing and sending. Only bytes that the store answered leave.

use std::collections::BTreeMap;

use alloy_primitives::{B256, Bytes, U256};
use chain::class::{SendClass, best};
use chain::decide::{EndpointAnswer, Signed, TxFact};
use chain::fee::GasPrice;
use chain::state::AttemptKind;
use chain::tx::{Tx, TxId};
use tokio::time::{Instant, timeout};

use super::book::back_off;
use super::{Heard, Owner};
use crate::crash;
use crate::policy;
use crate::rpc::Endpoint;
use crate::signer::{SignError, SignedBytes, Signer, Unsigned};
use crate::store::TxStore;

/// The most raw transactions of one call: a pool keeps so many of one account.
const SEND_MAX: usize = 16;
/// The gas of a transfer of nothing to the signer itself.
const NOTHING_GAS: u64 = chain::payload::TRANSFER_GAS;

/// The attempts that wait to be sent.
#[derive(Default)]
pub(super) struct Sending {
    /// By nonce and attempt, so that sends begin in ascending order.
    outbox: BTreeMap<(u64, u32), TxId>,
    under_way: usize,
    /// Sends to endpoints with an open breaker.
    beside: usize,
}

/// The answer of the signer.
pub(super) struct SignAnswer {
    id: TxId,
    kind: AttemptKind,
    price: GasPrice,
    gas: u64,
    signed: Result<SignedBytes, SignError>,
}

/// The answers to one call of sends.
pub(super) struct SendAnswer {
    sent: Vec<(TxId, u32)>,
    answers: Vec<Vec<EndpointAnswer>>,
}

/// The transaction of an attempt that is to be signed. `nonce`: its row's.
fn unsigned(
    tx: &Tx,
    nonce: u64,
    kind: AttemptKind,
    price: GasPrice,
    gas: u64,
    (chain_id, is_legacy): (u64, bool),
) -> Unsigned {
    let signer = tx.new.signer;
    let (to, value, data) = match kind.pays() {
        true => tx.new.payload.call(),
        false => (signer, U256::ZERO, Bytes::new()),
    };
    let gas = if kind.pays() { gas } else { gas.max(NOTHING_GAS) };
    Unsigned { chain_id, signer, nonce, to, value, data, gas, price, is_legacy }
}

impl<S: TxStore, E: Endpoint, K: Signer> Owner<S, E, K> {
    /// Gives rows their turn, as many as the window has room for.
    pub(super) fn hand_turns(&mut self, now: Instant) {
        if !self.book.is_waiting() {
            return;
        }
        let turns = self.book.turns(self.tools.options.in_flight_max);
        if turns.is_empty() || !self.has_market(now) {
            return;
        }
        for id in turns {
            self.tell_turn(id, now);
        }
    }

    /// Tells a row that its turn has come. If nothing comes of it, its turn comes again.
    pub(super) fn tell_turn(&mut self, id: TxId, now: Instant) {
        self.book.change(id, |row| {
            row.has_turn = true;
            row.retry = Some(now + back_off(row.failures));
            row.failures += 1;
        });
        self.book.tell_once(id, TxFact::Turn);
    }

    /// Begins a signature.
    pub(super) fn begin_sign(&mut self, id: TxId, kind: AttemptKind, price: GasPrice, gas: u64) {
        let Some(row) = self.book.row(id) else { return };
        // An attempt is signed once: while its bytes are on their way to the store, no further one.
        let is_signed = row.facts.iter().any(|told| matches!(told.fact, TxFact::Signed(_)));
        let Some(nonce) = row.tx.nonce.filter(|_| !row.is_signing && !is_signed) else { return };
        if kind.pays() && self.book.is_suspended() {
            return;
        }
        // Any node keeps a row, and the policy may have changed since: the one of this node counts.
        let policy = self.tools.policies.get(&row.tx.new.signer);
        let allowed = match kind.pays() {
            true => policy::allow(policy, &row.tx.new.payload),
            false => Ok(()),
        };
        let options = &self.tools.options;
        let chain = (options.chain_id, options.is_legacy);
        let unsigned = unsigned(&row.tx, nonce, kind, price, gas, chain);
        let (tools, limit) = (self.tools.clone(), options.sign_timeout);
        self.book.change(id, |row| (row.is_signing, row.has_turn) = (true, true));
        self.asks.push(Box::pin(async move {
            let signed = match allowed {
                Ok(()) => timeout(limit, tools.keys.sign(&unsigned)).await,
                Err(error) => Ok(Err(SignError::Policy(error.to_string()))),
            };
            let signed =
                signed.unwrap_or_else(|_| Err(SignError::Away("no answer in time".into())));
            Heard::Signed(SignAnswer { id, kind, price, gas: unsigned.gas, signed })
        }));
    }

    pub(super) fn heard_signed(&mut self, answer: SignAnswer) {
        let SignAnswer { id, kind, price, gas, signed } = answer;
        self.book.change(id, |row| row.is_signing = false);
        match signed {
            Ok(SignedBytes { raw, hash }) => {
                crash::point("txm_after_sign");
                self.book.change(id, |row| row.failures = 0);
                let signed = Signed { kind, raw, hash, price, gas };
                self.book.tell(id, TxFact::Signed(signed), None);
            }
            Err(error) => {
                match error {
                    SignError::Mismatch(_) => {
                        self.raise("signer_mismatch", &format!("{id}: {error}"));
                    }
                    SignError::Policy(_) => self.raise("signer_policy", &format!("{id}: {error}")),
                    SignError::Away(_) | SignError::NoKey => {
                        tracing::warn!(signer = %self.lease.signer, tx = %id, %error, "not signed");
                    }
                }
                self.book.change(id, |row| {
                    row.retry = Some(Instant::now() + back_off(row.failures));
                    row.failures += 1;
                });
                self.book.tell(id, TxFact::Unsigned, None);
            }
        }
    }

    /// Puts an attempt in the outbox.
    pub(super) fn queue_send(&mut self, id: TxId, attempt: u32) {
        let nonce = self.book.row(id).and_then(|row| row.tx.nonce);
        if let Some(nonce) = nonce {
            self.sending.outbox.insert((nonce, attempt), id);
        }
    }

    /// Begins sends, ascending, at most 16 a call, never behind the deadline.
    pub(super) fn begin_sends(&mut self, now: Instant) {
        let most = self.tools.options.calls_in_flight_max.max(1);
        while self.sending.under_way < most && !self.sending.outbox.is_empty() {
            if now >= *self.deadline.borrow() {
                return;
            }
            let mut sent = Vec::new();
            let mut raws: Vec<(B256, Bytes)> = Vec::new();
            while raws.len() < SEND_MAX {
                let Some(((_, attempt), id)) = self.sending.outbox.pop_first() else { break };
                let attempts = self.book.row(id).map(|row| &row.tx.attempts);
                let stored = attempts
                    .and_then(|attempts| attempts.iter().find(|stored| stored.number == attempt));
                let Some(stored) = stored else { continue };
                raws.push((stored.hash, stored.raw.clone()));
                sent.push((id, attempt));
            }
            self.sending.under_way += 1;
            let (well, shut) = self.tools.pool.halves();
            // A full line of them: an endpoint that is back is sent to by its counts.
            if !shut.is_empty() && self.sending.beside < most {
                self.sending.beside += 1;
                let (tools, sent, raws) = (self.tools.clone(), sent.clone(), raws.clone());
                self.asks.push(Box::pin(async move {
                    let answers = tools.pool.send_to_those(&shut, &raws).await;
                    Heard::SentBeside(SendAnswer { sent, answers })
                }));
            }
            let tools = self.tools.clone();
            self.asks.push(Box::pin(async move {
                let answers = tools.pool.send_to_those(&well, &raws).await;
                crash::point("txm_after_send");
                Heard::Sent(SendAnswer { sent, answers })
            }));
        }
    }

    pub(super) fn heard_sent(&mut self, answer: SendAnswer) {
        crash::point("txm_after_answer");
        self.sending.under_way -= 1;
        let now = Instant::now();
        let mut answers = answer.answers.into_iter();
        for (id, attempt) in answer.sent {
            self.book.change(id, |row| row.sent = Some(now));
            let answers = answers.next().unwrap_or_default();
            let classes: Vec<SendClass> = answers.iter().map(|answer| answer.class).collect();
            let class = best(&classes, false);
            metrics::counter!("ubscore_tx_submit_total", "result" => class.name()).increment(1);
            match class {
                SendClass::NonceTooLow | SendClass::NonceTooHigh => {
                    self.following.wants_counts = true;
                }
                SendClass::Replacement => self.ask_known(id),
                // Raised by the market that is known, it would spend all its attempts on prices of
                // before the refusal.
                SendClass::Underpriced => self.following.is_refused = true,
                _ => {}
            }
            self.book.tell(id, TxFact::Answered { attempt, answers }, None);
            // A chain that builds blocks at once may have it already, in a block of the next look.
            if self.tools.options.is_receipt_asked_at_once && class.is_in_pool() {
                self.following.entered.insert(id);
            }
        }
    }

    /// Answers of endpoints with an open breaker. Those of the others have decided already: only an
    /// endpoint that has the attempt says more.
    pub(super) fn heard_beside(&mut self, answer: SendAnswer) {
        self.sending.beside -= 1;
        for ((id, attempt), answers) in answer.sent.into_iter().zip(answer.answers) {
            if answers.iter().any(|answer| answer.class.is_in_pool()) {
                self.book.tell(id, TxFact::Answered { attempt, answers }, None);
            }
        }
    }

    /// Asks whether a pool has one of the row's attempts: another one of its nonce is there.
    fn ask_known(&mut self, id: TxId) {
        let Some(row) = self.book.row(id) else { return };
        let attempts = row.tx.attempts.iter().map(|attempt| (attempt.number, attempt.hash));
        let (tools, hashes) = (self.tools.clone(), attempts.collect::<Vec<_>>());
        self.asks.push(Box::pin(async move {
            let mut known = Vec::with_capacity(hashes.len());
            for (number, hash) in hashes {
                known.push((number, tools.pool.has(hash).await));
            }
            Heard::Known(id, known)
        }));
    }

    pub(super) fn heard_known(&mut self, id: TxId, known: Vec<(u32, bool)>) {
        match known.iter().rev().find(|(_, is_known)| *is_known) {
            Some((attempt, _)) => self.book.tell_once(id, TxFact::Found { attempt: *attempt }),
            None => {
                // No end: the receipts of all attempts tell, or the lookup by sender and nonce. The
                // nonce of a fill may be another wallet's.
                if self.book.row(id).is_some_and(|row| !row.tx.new.is_fill()) {
                    self.raise("tx_replaced_elsewhere", &id.to_string());
                }
                self.want_receipts(id);
            }
        }
    }
}
