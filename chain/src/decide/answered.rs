//! The answers of endpoints to a send: the table of section 9. An answer never ends a row.

use std::time::Duration;

use super::signed::{self, Asker, Further};
use super::{Effect, EndpointAnswer, TxRules, TxStep, is_sent, newest};
use crate::class::{self, SendClass};
use crate::state::{TxEvent, TxState};
use crate::tx::{Attempt, SubState, Tx, Wish};

/// The resends that come sooner than the interval, while no endpoint has acknowledged.
pub(super) const QUICK_RESENDS: u32 = 4;

/// Whether an endpoint has ever had an attempt of this nonce. Then no refusal of one counts.
fn was_in_pool(tx: &Tx) -> bool {
    tx.receipt.is_some() || tx.attempts.iter().any(|attempt| attempt.was_in_pool)
}

fn numbered(tx: &mut Tx, number: u32) -> Option<&mut Attempt> {
    tx.attempts.iter_mut().find(|attempt| attempt.number == number)
}

/// Stores the answers, takes the best class, and does as the class says.
pub(super) fn answered(
    tx: &Tx,
    number: u32,
    answers: &[EndpointAnswer],
    rules: &TxRules,
) -> Option<TxStep> {
    if !is_sent(tx) {
        return None;
    }
    let mut step = TxStep::of(tx);
    let attempt = numbered(&mut step.tx, number)?;
    let classes: Vec<SendClass> = answers.iter().map(|answer| answer.class).collect();
    let class = class::best(&classes, was_in_pool(tx));
    let is_known = attempt.was_in_pool;
    if !answers.is_empty() {
        attempt.class = Some(class);
        attempt.was_in_pool |= class.is_in_pool();
        step.answers = Some((number, answers.to_vec()));
    }
    if class.is_in_pool() {
        acknowledged(&mut step, is_known)?;
    } else if tx.receipt.is_none() && newest(tx).is_some_and(|newest| newest.number == number) {
        refused(&mut step, class, rules);
    } else if class == SendClass::NonceTooLow && tx.receipt.is_none() {
        step.effects.push(Effect::Receipts);
    }
    step.done(tx)
}

/// An endpoint has an attempt: TRACKING. `is_known`: it had this one before, so that the sub state
/// is about something else.
fn acknowledged(step: &mut TxStep, is_known: bool) -> Option<()> {
    if step.tx.state == TxState::Submitted {
        step.passes(TxEvent::Acknowledged)?;
    }
    let pending = match step.tx.wish {
        Wish::Pay => SubState::Pending,
        Wish::Cancel => SubState::Cancelling,
        Wish::Fill => SubState::Filling,
    };
    let sub = match step.tx.sub {
        None | Some(SubState::WaitingTurn | SubState::WaitingFunds | SubState::Blocked) => pending,
        Some(SubState::Underpriced) if !is_known => pending,
        // The others are about receipts, time, wishes and caps.
        Some(other) => other,
    };
    step.tx.sub = Some(sub);
    Some(())
}

/// The newest attempt is not in a pool, as far as is known.
fn refused(step: &mut TxStep, class: SendClass, rules: &TxRules) {
    match class {
        SendClass::Accepted | SendClass::Known => (),
        // Mined: by an attempt of ours, or not. The receipts of all attempts tell.
        SendClass::NonceTooLow => step.effects.push(Effect::Receipts),
        SendClass::Replacement => {
            // Another attempt of ours, or the key is used elsewhere.
            if !step.tx.attempts.iter().any(|attempt| attempt.was_in_pool) {
                step.effects.push(Effect::LookFor);
                let is_news = !step.tx.new.is_fill();
                step.effects.extend(is_news.then_some(Effect::Raise("nonce_unaccounted")));
            }
        }
        SendClass::Underpriced => match signed::further(&step.tx, rules, Asker::Program) {
            // Due now: raised once the market of after the refusal is known.
            Further::Sign(_) if rules.is_resubmitted => {
                step.tx.resubmit_in = Some(Duration::ZERO);
            }
            Further::NotNow if rules.is_resubmitted => (),
            _ => step.turns(SubState::Underpriced, Some("tx_underpriced")),
        },
        SendClass::NonceTooHigh => {
            step.tx.resubmit_in = soon(&step.tx, rules);
            step.effects.push(Effect::Gap);
        }
        SendClass::Funds => step.turns(SubState::WaitingFunds, Some("signer_funds_low")),
        SendClass::InvalidGas if signed::wants_gas(&step.tx) => {
            signed::attempt(step, rules, Asker::Program);
        }
        SendClass::FeeCap | SendClass::InvalidGas | SendClass::Invalid => {
            step.turns(SubState::Blocked, Some("tx_blocked"));
        }
        SendClass::PoolFull | SendClass::Unknown => step.tx.resubmit_in = soon(&step.tx, rules),
    }
}

/// The time until the next resend: sooner at first, while no endpoint has acknowledged, then the
/// interval.
fn soon(tx: &Tx, rules: &TxRules) -> Option<Duration> {
    if was_in_pool(tx) || tx.resends >= QUICK_RESENDS {
        return tx.resubmit_in.or(Some(rules.interval));
    }
    Some(rules.interval / (1 << (QUICK_RESENDS - tx.resends)))
}

/// An endpoint knows an attempt by its hash.
pub(super) fn found(tx: &Tx, number: u32) -> Option<TxStep> {
    if !is_sent(tx) {
        return None;
    }
    let mut step = TxStep::of(tx);
    let attempt = numbered(&mut step.tx, number)?;
    let is_known = attempt.was_in_pool;
    acknowledged(&mut step, is_known)?;
    if step.tx == *tx {
        return None;
    }
    if let Some(attempt) = numbered(&mut step.tx, number) {
        attempt.class = Some(SendClass::Known);
        attempt.was_in_pool = true;
    }
    step.done(tx)
}
