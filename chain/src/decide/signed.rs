//! Attempts: the kind, the gas and the price of the next one, and the storing of a signed one.

use std::time::Duration;

use super::{Effect, Signed, TxRules, TxStep, is_sent};
use crate::class::SendClass;
use crate::fee::{self, GasPrice};
use crate::payload::TRANSFER_GAS;
use crate::state::{AttemptKind, TxEvent, TxState};
use crate::tx::{Attempt, SubState, Tx, Wish};

/// The one that asks for an attempt. While a signer is suspended, only operators get one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asker {
    /// A timer, an answer, a turn.
    Program,
    /// A command.
    Command,
}

/// The next attempt.
pub(super) enum Further {
    /// This is signed.
    Sign(Effect),
    /// A cap or the count of attempts forbids it.
    Capped,
    /// Not now: the signer is suspended, or the market is not known.
    NotNow,
}

/// The kind of the next attempt.
fn kind(tx: &Tx) -> AttemptKind {
    match (tx.wish, tx.attempts.is_empty()) {
        (Wish::Pay, true) => AttemptKind::Pay,
        (Wish::Pay, false) => AttemptKind::Bump,
        (Wish::Cancel, false) => AttemptKind::Cancel,
        // A cancelled row without an attempt has nothing to take back: its nonce is filled.
        (Wish::Cancel, true) | (Wish::Fill, _) => AttemptKind::Fill,
    }
}

/// The highest gas limit of the attempts that pay, or of those that do not.
fn highest_gas(tx: &Tx, pays: bool) -> Option<u64> {
    tx.attempts.iter().filter(|it| it.kind.pays() == pays).map(|it| it.gas).max()
}

/// The gas limit of attempts of a kind, before an endpoint wanted more; `None`: not prepared.
fn prepared_gas(tx: &Tx, pays: bool) -> Option<u64> {
    if pays { tx.new.gas } else { Some(TRANSFER_GAS) }
}

/// Whether the newest attempt was refused for want of gas, and no attempt had more yet.
pub(super) fn wants_gas(tx: &Tx) -> bool {
    let newest = super::newest(tx).filter(|it| it.class == Some(SendClass::InvalidGas));
    newest.is_some_and(|it| prepared_gas(tx, it.kind.pays()).is_some_and(|gas| it.gas <= gas))
}

/// The gas limit of the next attempt: as prepared, or half as much more once.
fn gas(tx: &Tx, kind: AttemptKind) -> Option<u64> {
    let prepared = prepared_gas(tx, kind.pays())?;
    let gas = highest_gas(tx, kind.pays()).map_or(prepared, |highest| highest.max(prepared));
    let refused = super::newest(tx).is_some_and(|it| it.kind.pays() == kind.pays());
    if refused && wants_gas(tx) { gas.checked_add(gas.div_ceil(2)) } else { Some(gas) }
}

fn prices(tx: &Tx) -> Vec<GasPrice> {
    tx.attempts.iter().map(|attempt| attempt.price).collect()
}

/// Whether the most PAY and BUMP attempts are stored.
fn is_exhausted(tx: &Tx, rules: &TxRules) -> bool {
    let most = usize::try_from(rules.attempts_max).unwrap_or(usize::MAX);
    most > 0 && tx.attempts.iter().filter(|attempt| attempt.kind.pays()).count() >= most
}

/// The next attempt of a row. Its price is a step above the highest that was ever stored.
pub(super) fn further(tx: &Tx, rules: &TxRules, asker: Asker) -> Further {
    let kind = kind(tx);
    // A wish that lacks its attempt is still the command's: it was admitted, while the signer is
    // suspended from an operator alone, and only its signature failed. So timers try it until it is
    // stored. Its further attempts are the program's.
    let is_command = asker == Asker::Command || super::newest(tx).is_none();
    if rules.is_suspended && (kind.pays() || !is_command) {
        return Further::NotNow;
    }
    let (Some(market), Some(gas)) = (rules.market, gas(tx, kind)) else { return Further::NotNow };
    if kind.pays() && is_exhausted(tx, rules) {
        return Further::Capped;
    }
    match fee::next(&prices(tx), market, &rules.caps, rules.bump_percent, gas) {
        Some(price) => Further::Sign(Effect::Sign { kind, price, gas }),
        None => Further::Capped,
    }
}

/// Adds the next attempt to a step, or the sub state that says why there is none. Returns whether
/// one is signed.
pub(super) fn attempt(step: &mut TxStep, rules: &TxRules, asker: Asker) -> bool {
    match further(&step.tx, rules, asker) {
        Further::Sign(effect) => {
            step.effects.push(effect);
            return true;
        }
        Further::Capped => step.turns(SubState::Underpriced, Some("tx_underpriced")),
        Further::NotNow => (),
    }
    false
}

/// Stores a signed attempt, and sends it. The decision to sign it is checked again: the row may
/// have changed meanwhile. An attempt that is not stored never leaves.
pub(super) fn signed(tx: &Tx, signed: &Signed, rules: &TxRules) -> Option<TxStep> {
    let is_first = tx.state == TxState::Allocated && tx.attempts.is_empty();
    let is_further = is_sent(tx)
        && tx.receipt.is_none()
        && fee::replaces(signed.price, &prices(tx), rules.bump_percent);
    let fits = signed.kind == kind(tx)
        && Some(signed.gas) == gas(tx, signed.kind)
        && rules.caps.admit(signed.price, signed.gas)
        && tx.attempts.iter().all(|attempt| attempt.hash != signed.hash);
    if !fits || !(is_first || is_further) || (rules.is_suspended && signed.kind.pays()) {
        return None;
    }
    let mut step = TxStep::of(tx);
    if is_first {
        step.passes(TxEvent::Stored)?;
        step.tx.sub = None;
    }
    match step.tx.wish {
        Wish::Pay => (),
        _ if tx.sub == Some(SubState::Unaccounted) => (),
        Wish::Cancel => step.tx.sub = Some(SubState::Cancelling),
        Wish::Fill => step.tx.sub = Some(SubState::Filling),
    }
    let number = add(&mut step, signed, false);
    step.tx.resends = 0;
    step.tx.sent_since = tx.sent_since.or(Some(Duration::ZERO));
    step.sends(number, rules);
    step.done(tx)
}

/// Adds an attempt that is to be stored, and returns its number.
pub(super) fn add(step: &mut TxStep, signed: &Signed, was_in_pool: bool) -> u32 {
    let number = step.tx.attempts.last().map_or(1, |last| last.number + 1);
    let Signed { kind, raw, hash, price, gas } = signed.clone();
    let class = None;
    step.tx.attempts.push(Attempt { number, kind, raw, hash, price, gas, class, was_in_pool });
    step.is_new_attempt = true;
    number
}

/// A signer that is away leaves ALLOCATED; the next try is planned. Stored bytes have their plan.
pub(super) fn unsigned(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    if tx.state != TxState::Allocated {
        return None;
    }
    let mut step = TxStep::of(tx);
    step.tx.resubmit_in = tx.resubmit_in.or(Some(rules.interval));
    step.done(tx)
}
