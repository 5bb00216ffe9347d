//! The one decision about a transaction: a fact and the row give the next row and its effects. Pure
//! and total: run, recovered and simulated alike.
//!
//! A step is written before its effects are carried out. So nothing leaves that is not stored, and
//! each step may be lost before its write. The caller keeps the durations of the row
//! (`sent_since`) fresh, and hands in only facts that it believes.
//!
//! In reading order: `signed` (attempts and their prices), `answered` (the answers of
//! endpoints), `mined` (receipts and ends), `wished` (cancel and fill), `due` (resends).

mod answered;
mod due;
mod mined;
mod signed;
mod wished;

use std::time::Duration;

use alloy_primitives::{B256, Bytes};

use crate::class::SendClass;
use crate::fee::{GasCaps, GasMarket, GasPrice};
use crate::state::{AttemptKind, TxEvent, TxState};
use crate::tx::{Attempt, FailCode, SubState, Tx, TxReceipt, Wish};
use crate::view::Confirmed;

/// An attempt that is signed and not stored yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// Its purpose.
    pub kind: AttemptKind,
    /// The signed bytes.
    pub raw: Bytes,
    /// Their hash.
    pub hash: B256,
    /// Its prices.
    pub price: GasPrice,
    /// Its gas limit.
    pub gas: u64,
}

/// The answer of one endpoint to a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointAnswer {
    /// The endpoint's name.
    pub endpoint: String,
    /// The class.
    pub class: SendClass,
    /// The words, cut to 200 bytes; empty if accepted.
    pub text: String,
}

/// A fact about a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxFact {
    /// Before a nonce: it is not affordable now, or its signer is suspended.
    ///
    /// ALLOCATED takes WAITING_TURN and WAITING_FUNDS.
    Delayed(SubState),
    /// Before a nonce: it is refused for good, with the name of this code.
    Refused(String),
    /// Before a nonce: its deadline has passed.
    Expired,
    /// It is its turn: its nonce is inside the window and its signer may sign. Or its balance
    /// suffices again. Or a new owner takes it up: bytes that no endpoint has acknowledged are
    /// sent again.
    Turn,
    /// It is signed.
    Signed(Signed),
    /// Its signer does not answer, or refuses.
    Unsigned,
    /// The endpoints answered to the send of an attempt.
    Answered {
        /// The attempt.
        attempt: u32,
        /// All answers; empty: no endpoint was reached.
        answers: Vec<EndpointAnswer>,
    },
    /// An attempt was found by its hash at an endpoint.
    Found {
        /// The attempt.
        attempt: u32,
    },
    /// An endpoint lacks this nonce while it has or expects an earlier one.
    Missing,
    /// A receipt that is believed.
    Mined(TxReceipt),
    /// The receipt is gone, or its block has left the view.
    Unmined,
    /// The confirmations grew, or are others.
    Confirmed(Confirmed),
    /// The block of the receipt is final by the policy.
    Final,
    /// The tag `finalized` is past the block of the receipt of a terminal row, or the row was
    /// looked at for long enough. It is not looked at any more.
    Past,
    /// The nonce is below the final count, and no attempt has a receipt.
    Unaccounted,
    /// The final count is at or below the nonce again: it was too high.
    Unspent,
    /// A final transaction that is not ours has the nonce, on a quorum of endpoints, and pays
    /// another payload.
    Taken(B256),
    /// A final transaction with the nonce, on a quorum of endpoints, pays the payload: an attempt
    /// that an older copy of the rows lacks.
    Forgotten(Signed),
    /// The time of its next resend has come. `is_lowest`: of its signer's unmined nonces.
    Due {
        /// Whether no lower nonce is unmined.
        is_lowest: bool,
    },
    /// It has been without a receipt for too long. Its resend has a time of its own.
    Stale,
    /// Its client or an operator wants it cancelled. The caller refuses a client's wish while the
    /// signer is suspended.
    Cancel,
    /// An operator, or the time, wants its nonce filled. While the signer is suspended: operators
    /// alone, the caller checks.
    Fill,
    /// An operator wants its newest bytes sent now.
    Resubmit,
    /// Two operators end an unproven one.
    Resolve {
        /// Whether it counts as paid.
        is_paid: bool,
    },
}

/// The rules of the configuration and of the hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxRules {
    /// Whether resends and bumps by time are on.
    pub is_resubmitted: bool,
    /// Between two resends.
    pub interval: Duration,
    /// Resends before a bump.
    pub bump_after: u32,
    /// The most PAY and BUMP attempts by time; 0: the caps alone.
    pub attempts_max: u32,
    /// The step of both prices.
    pub bump_percent: u64,
    /// Without a receipt for so long it is STALE.
    pub stale: Duration,
    /// Confirmations on top of the receipt's block. No row ends before so many were told.
    pub required: usize,
    /// Whether a row that ends is still looked at: the policy of finality is weaker than the tag
    /// `finalized`.
    pub is_watched: bool,
    /// The caps.
    pub caps: GasCaps,
    /// The market now; `None`: unknown, and nothing new is signed.
    pub market: Option<GasMarket>,
    /// Whether the signer is suspended: no PAY and no BUMP.
    pub is_suspended: bool,
}

/// An effect, carried out behind the write of its step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Sign this, and come back with [`TxFact::Signed`].
    Sign {
        /// Its purpose.
        kind: AttemptKind,
        /// Its prices.
        price: GasPrice,
        /// Its gas limit.
        gas: u64,
    },
    /// Send the stored bytes of an attempt to every endpoint.
    Send {
        /// The attempt.
        attempt: u32,
    },
    /// Ask for the receipts of all attempts.
    Receipts,
    /// Look for each attempt by its hash, and for the transaction with this signer and nonce.
    LookFor,
    /// Ask the chain for the signer's counts, and send again what endpoints lack.
    Gap,
    /// Suspend the signer for this reason.
    Suspend(&'static str),
    /// Raise the alert of this name.
    Raise(&'static str),
}

/// The next row, and its effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxStep {
    /// The row behind the step. Its version is one more, unless there is nothing to write (see
    /// [`TxStep::is_written`]). If `is_new_attempt`, the last attempt is new. Its `resubmit_in`
    /// counts from the write on.
    pub tx: Tx,
    /// Whether the last attempt is to be stored.
    pub is_new_attempt: bool,
    /// Whether its last submit is now.
    pub submits: bool,
    /// The answers to be stored beside an attempt.
    pub answers: Option<(u32, Vec<EndpointAnswer>)>,
    /// The confirmations to be stored and told.
    pub confirmed: Option<Confirmed>,
    /// In their order.
    pub effects: Vec<Effect>,
}

impl TxStep {
    /// A step that changes nothing yet.
    fn of(tx: &Tx) -> TxStep {
        TxStep {
            tx: tx.clone(),
            is_new_attempt: false,
            submits: false,
            answers: None,
            confirmed: None,
            effects: Vec::new(),
        }
    }

    /// Whether the step changes the row `before`, or stores something beside it. If not, it is
    /// only effects: they sign, ask, raise, or send the bytes of a terminal row again. The store
    /// does not see it.
    pub fn is_written(&self, before: &Tx) -> bool {
        self.tx.version != before.version
    }

    /// Takes the state that the event leads to; `None`: the table does not admit it.
    fn passes(&mut self, event: TxEvent) -> Option<()> {
        self.tx.state = self.tx.state.next(event)?;
        Some(())
    }

    /// Ends the row: without a plan, for good.
    fn ends(&mut self, event: TxEvent, code: Option<FailCode>) -> Option<()> {
        self.passes(event)?;
        self.tx.sub = None;
        self.tx.code = code;
        self.tx.is_final = true;
        self.tx.resubmit_in = None;
        Some(())
    }

    /// Takes a sub state, and raises its alert if it is new.
    fn turns(&mut self, sub: SubState, alert: Option<&'static str>) {
        if self.tx.sub != Some(sub) {
            self.tx.sub = Some(sub);
            self.effects.extend(alert.map(Effect::Raise));
        }
    }

    /// Sends the bytes of an attempt. The plan of the next send is written before this one.
    fn sends(&mut self, attempt: u32, rules: &TxRules) {
        self.submits = true;
        self.tx.resubmit_in = Some(rules.interval);
        self.effects.push(Effect::Send { attempt });
    }

    /// The step as it is handed out; `None`: there is nothing to do.
    fn done(mut self, before: &Tx) -> Option<TxStep> {
        let is_stored = self.is_new_attempt
            || self.submits
            || self.answers.is_some()
            || self.confirmed.is_some();
        if is_stored || self.tx != *before {
            self.tx.version = before.version + 1;
        } else if self.effects.is_empty() {
            return None;
        }
        Some(self)
    }
}

/// Decides about a transaction; `None`: the fact changes nothing here.
///
/// No fact ends a row that has a nonce, but `Final`, `Resolve` and `Taken`. No step changes a
/// terminal row, except that `Past` marks it as final.
pub fn decide(tx: &Tx, fact: &TxFact, rules: &TxRules) -> Option<TxStep> {
    match fact {
        TxFact::Delayed(sub) => delayed(tx, *sub),
        TxFact::Refused(code) => dropped(tx, FailCode::Refused, Some(code)),
        TxFact::Expired => dropped(tx, FailCode::Expired, None),
        TxFact::Turn => due::turn(tx, rules),
        TxFact::Signed(signed) => signed::signed(tx, signed, rules),
        TxFact::Unsigned => signed::unsigned(tx, rules),
        TxFact::Answered { attempt, answers } => answered::answered(tx, *attempt, answers, rules),
        TxFact::Found { attempt } => answered::found(tx, *attempt),
        TxFact::Missing => due::missing(tx, rules),
        TxFact::Mined(receipt) => mined::mined(tx, *receipt),
        TxFact::Unmined => mined::unmined(tx, rules),
        TxFact::Confirmed(confirmed) => mined::confirmed(tx, confirmed),
        TxFact::Final => mined::ended(tx, rules),
        TxFact::Past => mined::past(tx),
        TxFact::Unaccounted => mined::unaccounted(tx),
        TxFact::Unspent => mined::unspent(tx, rules),
        TxFact::Taken(hash) => mined::taken(tx, *hash),
        TxFact::Forgotten(found) => mined::forgotten(tx, found),
        TxFact::Due { is_lowest } => due::due(tx, *is_lowest, rules),
        TxFact::Stale => due::stale(tx, rules),
        TxFact::Cancel => wished::wished(tx, Wish::Cancel, rules),
        TxFact::Fill => wished::wished(tx, Wish::Fill, rules),
        TxFact::Resubmit => due::resubmit(tx, rules),
        TxFact::Resolve { is_paid } => mined::resolved(tx, *is_paid, rules),
    }
}

fn delayed(tx: &Tx, sub: SubState) -> Option<TxStep> {
    let fits = match tx.state {
        TxState::Created => matches!(sub, SubState::WaitingFunds | SubState::Suspended),
        TxState::Allocated => matches!(sub, SubState::WaitingFunds | SubState::WaitingTurn),
        _ => false,
    };
    let mut step = TxStep::of(tx);
    step.tx.sub = Some(sub);
    if fits { step.done(tx) } else { None }
}

/// Ends a row without a nonce. The table admits it of no other row.
fn dropped(tx: &Tx, code: FailCode, refusal: Option<&str>) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    step.ends(TxEvent::Dropped, Some(code))?;
    step.tx.refusal = refusal.map(str::to_owned);
    step.done(tx)
}

/// Whether it has attempts that may be on the network, and no end.
fn is_sent(tx: &Tx) -> bool {
    matches!(tx.state, TxState::Submitted | TxState::Tracking)
}

/// The attempt that is sent again: the newest one that the wish allows. Once a cancel or a fill is
/// wanted, no payment is sent again.
fn newest(tx: &Tx) -> Option<&Attempt> {
    tx.attempts.iter().rev().find(|attempt| tx.wish == Wish::Pay || !attempt.kind.pays())
}

#[cfg(test)]
mod tests;
