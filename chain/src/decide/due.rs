//! Turns, resends and bumps. The plan of the next resend is in the step, so that it is written
//! before the send and no two owners both do it.

use super::answered::QUICK_RESENDS;
use super::signed::{self, Asker};
use super::{Effect, TxRules, TxStep, is_sent, newest};
use crate::class::SendClass;
use crate::state::TxState;
use crate::tx::{SubState, Tx, Wish};

/// It may be signed: the first attempt, or the one that a wish lacks. Bytes that no endpoint has
/// acknowledged, and those that waited for funds, are sent again.
pub(super) fn turn(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    match tx.state {
        TxState::Allocated => {
            signed::attempt(&mut step, rules, Asker::Program);
        }
        TxState::Submitted => again(&mut step, rules),
        TxState::Tracking if tx.sub == Some(SubState::WaitingFunds) || newest(tx).is_none() => {
            again(&mut step, rules);
        }
        _ => (),
    }
    step.done(tx)
}

/// Sends the newest bytes that the wish allows, or signs the first of them.
fn again(step: &mut TxStep, rules: &TxRules) {
    if step.tx.receipt.is_some() {
        return;
    }
    match newest(&step.tx).map(|attempt| attempt.number) {
        Some(attempt) => step.sends(attempt, rules),
        None => {
            signed::attempt(step, rules, Asker::Program);
        }
    }
}

/// An endpoint lacks this nonce: the stored bytes again, at once.
pub(super) fn missing(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    if is_sent(tx) {
        again(&mut step, rules);
    }
    step.done(tx)
}

/// An operator wants the bytes sent now.
pub(super) fn resubmit(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    if tx.state == TxState::Allocated { turn(tx, rules) } else { missing(tx, rules) }
}

/// Whether its sub state tells only that it waits, and it has waited for too long.
fn is_stale(tx: &Tx, rules: &TxRules) -> bool {
    let is_plain = matches!(tx.sub, None | Some(SubState::Pending | SubState::Reorged));
    let is_late = tx.sent_since.is_some_and(|since| since >= rules.stale);
    tx.state == TxState::Tracking && tx.wish == Wish::Pay && is_plain && is_late
}

/// It is shown as STALE. Nothing is sent: the time of its resend has not come.
pub(super) fn stale(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    if tx.receipt.is_none() && is_stale(tx, rules) {
        step.tx.sub = Some(SubState::Stale);
    }
    step.done(tx)
}

/// The time has come: a bump of the lowest nonce, else the same bytes.
pub(super) fn due(tx: &Tx, is_lowest: bool, rules: &TxRules) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    let is_stored = newest(tx).is_some();
    // An attempt that waits for the market alone is tried again sooner.
    let is_quick = rules.market.is_none() && !is_stored;
    let pause = if is_quick { rules.interval / (1 << QUICK_RESENDS) } else { rules.interval };
    if tx.state == TxState::Allocated {
        step.tx.resubmit_in = Some(pause);
        signed::attempt(&mut step, rules, Asker::Program);
        return resumed(step, tx);
    }
    if !is_sent(tx) {
        return None;
    }
    if tx.receipt.is_some() {
        step.tx.resubmit_in = None;
        return step.done(tx);
    }
    if is_stale(tx, rules) {
        step.tx.sub = Some(SubState::Stale);
    }
    step.tx.resubmit_in = Some(pause);
    // Switched off: bytes that an endpoint has are left alone. Others are sent until one has them,
    // and a wish gets its attempt.
    if tx.state == TxState::Tracking && !rules.is_resubmitted && is_stored {
        if step.tx.sub == Some(SubState::Stale) {
            step.tx.resubmit_in = None;
        }
        return resumed(step, tx);
    }
    if tx.sub == Some(SubState::Unaccounted) {
        step.effects.push(Effect::LookFor);
    }
    let wants = !is_stored || (rules.is_resubmitted && wants_bump(tx, is_lowest, rules));
    if wants && signed::attempt(&mut step, rules, Asker::Program) {
        return resumed(step, tx);
    }
    if let Some(attempt) = newest(tx).map(|attempt| attempt.number) {
        step.tx.resends = tx.resends.saturating_add(1);
        step.sends(attempt, rules);
    }
    resumed(step, tx)
}

/// A step that plans the next time anew is written, even if the plan reads the same.
fn resumed(mut step: TxStep, tx: &Tx) -> Option<TxStep> {
    step.tx.version = tx.version + 1;
    Some(step)
}

/// Whether a further attempt may help. By time, only the lowest nonce is bumped: no later one can
/// be mined before it.
fn wants_bump(tx: &Tx, is_lowest: bool, rules: &TxRules) -> bool {
    let Some(newest) = newest(tx) else { return false };
    let is_due = |more: u32| is_lowest && tx.resends >= rules.bump_after.saturating_add(more);
    match newest.class {
        _ if tx.sub == Some(SubState::Unaccounted) => false,
        Some(SendClass::Underpriced) => true,
        Some(SendClass::InvalidGas) => signed::wants_gas(tx),
        Some(SendClass::Accepted | SendClass::Known) => is_due(0),
        Some(SendClass::Replacement | SendClass::PoolFull) => is_due(0),
        // A pool had it: the last answer was lost.
        Some(SendClass::Unknown) if newest.was_in_pool => is_due(0),
        // An unknown text, or no answer: not before the quick resends are over.
        Some(SendClass::Unknown) => is_due(QUICK_RESENDS),
        // A higher price helps none of these.
        Some(
            SendClass::NonceTooLow
            | SendClass::NonceTooHigh
            | SendClass::Funds
            | SendClass::FeeCap
            | SendClass::Invalid,
        )
        | None => false,
    }
}
