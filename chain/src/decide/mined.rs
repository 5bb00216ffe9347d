//! Receipts, confirmations and ends: only the chain ends a row that has a nonce.

use alloy_primitives::{B256, U256};

use super::signed::{self, Asker};
use super::{Effect, Signed, TxRules, TxStep, is_sent, newest};
use crate::state::{AttemptKind, TxEvent, TxState};
use crate::tx::{Attempt, FailCode, Proof, SubState, Tx, TxReceipt, Wish};
use crate::view::{BlockRef, Confirmed};

/// The attempt of a receipt, by number and hash, if its proof is one of the attempt's kind.
fn attempt_of<'tx>(tx: &'tx Tx, receipt: &TxReceipt) -> Option<&'tx Attempt> {
    tx.attempts.iter().find(|attempt| {
        attempt.number == receipt.attempt
            && attempt.hash == receipt.hash
            && attempt.kind.pays() == (receipt.proof != Proof::Nothing)
    })
}

/// A receipt of any attempt: resends stop. It ends nothing before it is final.
pub(super) fn mined(tx: &Tx, receipt: TxReceipt) -> Option<TxStep> {
    attempt_of(tx, &receipt)?;
    let mut step = TxStep::of(tx);
    if tx.state.is_terminal() {
        let told = |it: &TxReceipt| (it.attempt, it.proof);
        if tx.receipt.as_ref().map(told) != Some(told(&receipt)) {
            step.effects.push(Effect::Raise("reorg_after_final"));
        }
        return step.done(tx);
    }
    if !is_sent(tx) || tx.receipt == Some(receipt) {
        return None;
    }
    if tx.state == TxState::Submitted {
        step.passes(TxEvent::Acknowledged)?;
    }
    let block = |it: &TxReceipt| (it.block_number, it.block_hash);
    if tx.receipt.as_ref().map(block) != Some(block(&receipt)) {
        forget_told(&mut step.tx);
    }
    step.tx.receipt = Some(receipt);
    step.tx.sub = Some(SubState::Mined);
    step.tx.resubmit_in = None;
    step.done(tx)
}

/// The list that was told is of a block that has left. The next one replaces it.
fn forget_told(tx: &mut Tx) {
    if !tx.told.is_empty() {
        tx.told.clear();
        tx.fork += 1;
    }
}

/// The receipt is gone. The bytes that were mined and the newest ones are sent again at once.
pub(super) fn unmined(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    let receipt = tx.receipt.as_ref()?;
    let mut step = TxStep::of(tx);
    if tx.state.is_terminal() {
        step.effects.push(Effect::Raise("reorg_after_final"));
        // Behind a FAILED its money may be given back already: no payment is sent again.
        let again = |it: &&Attempt| tx.state == TxState::Confirmed || !it.kind.pays();
        let attempt = attempt_of(tx, receipt).filter(again);
        step.effects.extend(attempt.map(|it| Effect::Send { attempt: it.number }));
        return step.done(tx);
    }
    forget_told(&mut step.tx);
    step.tx.receipt = None;
    step.tx.sub = Some(SubState::Reorged);
    // Until something is sent: the next look at it.
    step.tx.resubmit_in = Some(rules.interval);
    let allowed = |it: &&Attempt| tx.wish == Wish::Pay || !it.kind.pays();
    let was_mined = attempt_of(tx, receipt).filter(allowed).map(|it| it.number);
    let last = newest(tx).map(|it| it.number);
    for attempt in was_mined.filter(|it| Some(*it) != last).into_iter().chain(last) {
        step.sends(attempt, rules);
    }
    if last.is_none() {
        signed::attempt(&mut step, rules, Asker::Program);
    }
    step.done(tx)
}

/// New confirmations. A list that is not the receipt's, or does not link, is not used.
pub(super) fn confirmed(tx: &Tx, confirmed: &Confirmed) -> Option<TxStep> {
    if tx.state != TxState::Tracking {
        return None;
    }
    let receipt = tx.receipt.as_ref()?;
    let mut step = TxStep::of(tx);
    let told = if confirmed.new_fork { Vec::new() } else { tx.told.clone() };
    let told = [told, confirmed.blocks.clone()].concat();
    let first = told.first()?;
    let is_whole = (first.number, first.hash) == (receipt.block_number, receipt.block_hash)
        && told.windows(2).all(|pair| links(&pair[0], &pair[1]));
    // A list that ends sooner says less, and nothing else.
    if !is_whole || tx.told.starts_with(&told) {
        return None;
    }
    let new_fork = tx.told.is_empty() || !told.starts_with(&tx.told);
    let known = if new_fork { 0 } else { tx.told.len() };
    if new_fork && !tx.told.is_empty() {
        step.tx.fork += 1;
    }
    step.confirmed = Some(Confirmed { new_fork, blocks: told[known..].to_vec() });
    step.tx.told = told;
    step.done(tx)
}

fn links(below: &BlockRef, block: &BlockRef) -> bool {
    block.parent == below.hash && Some(block.number) == below.number.checked_add(1)
}

/// The block of the receipt is final: the one end by the chain. All confirmations were told before.
pub(super) fn ended(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    if tx.state != TxState::Tracking || tx.told.len() <= rules.required {
        return None;
    }
    let receipt = tx.receipt.as_ref()?;
    let attempt = attempt_of(tx, receipt)?;
    let mut step = TxStep::of(tx);
    match (attempt.kind, receipt.proof) {
        (AttemptKind::Cancel, _) => step.ends(TxEvent::Unpaid, Some(FailCode::Cancelled))?,
        (AttemptKind::Fill, _) => step.ends(TxEvent::Unpaid, Some(FailCode::Filled))?,
        (AttemptKind::Pay | AttemptKind::Bump, Proof::Paid) => step.ends(TxEvent::Paid, None)?,
        (AttemptKind::Pay | AttemptKind::Bump, Proof::Reverted) => {
            step.ends(TxEvent::Unpaid, Some(FailCode::Reverted))?;
        }
        (AttemptKind::Pay | AttemptKind::Bump, Proof::Unproven | Proof::Nothing) => {
            step.turns(SubState::Unproven, Some("tx_unproven"));
            return step.done(tx);
        }
    }
    step.tx.cost = Some(cost(receipt));
    step.tx.is_final = !rules.is_watched;
    step.done(tx)
}

/// The chain cannot take a terminal row back any more, or no owner looks at it any more.
pub(super) fn past(tx: &Tx) -> Option<TxStep> {
    let mut step = TxStep::of(tx);
    step.tx.is_final = tx.state.is_terminal();
    step.done(tx)
}

fn cost(receipt: &TxReceipt) -> U256 {
    U256::from(receipt.gas_used).saturating_mul(U256::from(receipt.gas_price))
}

/// The nonce is mined for good, and by none of ours as far as is known: looked for, no end.
pub(super) fn unaccounted(tx: &Tx) -> Option<TxStep> {
    if !is_sent(tx) || tx.receipt.is_some() {
        return None;
    }
    let mut step = TxStep::of(tx);
    // The nonce of a fill may be another wallet's: no payment of ours is in doubt.
    step.turns(SubState::Unaccounted, (!tx.new.is_fill()).then_some("nonce_unaccounted"));
    step.effects.push(Effect::LookFor);
    step.done(tx)
}

/// The nonce is not mined for good after all: the row is as any other that was sent.
pub(super) fn unspent(tx: &Tx, rules: &TxRules) -> Option<TxStep> {
    if !is_sent(tx) || tx.sub != Some(SubState::Unaccounted) {
        return None;
    }
    let mut step = TxStep::of(tx);
    step.tx.sub = match (tx.wish, tx.state) {
        (Wish::Cancel, _) => Some(SubState::Cancelling),
        (Wish::Fill, _) => Some(SubState::Filling),
        (Wish::Pay, TxState::Tracking) => Some(SubState::Pending),
        (Wish::Pay, _) => None,
    };
    step.tx.resubmit_in = tx.resubmit_in.or(Some(rules.interval));
    step.done(tx)
}

/// A final transaction that is not ours has the nonce: the key is used elsewhere. A fill that
/// loses to it is no news: the jump over its nonce has shown that use.
pub(super) fn taken(tx: &Tx, hash: B256) -> Option<TxStep> {
    let is_ours = tx.attempts.iter().any(|attempt| attempt.hash == hash);
    if is_ours || tx.receipt.is_some() {
        return None;
    }
    let mut step = TxStep::of(tx);
    step.ends(TxEvent::Taken, Some(FailCode::NonceTaken))?;
    if !tx.new.is_fill() {
        step.effects.push(Effect::Suspend("NONCE_TAKEN"));
    }
    step.done(tx)
}

/// An attempt that an older copy of the rows lacks has paid. It is stored as one, and its receipt
/// ends the row: NONCE_TAKEN would say that nothing was paid. It is on the chain, and not sent.
pub(super) fn forgotten(tx: &Tx, found: &Signed) -> Option<TxStep> {
    let is_known = tx.attempts.iter().any(|attempt| attempt.hash == found.hash);
    if !is_sent(tx) || is_known || tx.receipt.is_some() {
        return None;
    }
    let mut step = TxStep::of(tx);
    if tx.state == TxState::Submitted {
        step.passes(TxEvent::Acknowledged)?;
    }
    signed::add(&mut step, found, true);
    step.effects.extend([Effect::Raise("tx_attempt_forgotten"), Effect::Receipts]);
    step.done(tx)
}

/// Two operators end a row that is mined for good and not proven.
pub(super) fn resolved(tx: &Tx, is_paid: bool, rules: &TxRules) -> Option<TxStep> {
    let receipt = tx.receipt.as_ref().filter(|_| tx.sub == Some(SubState::Unproven))?;
    let mut step = TxStep::of(tx);
    if is_paid {
        step.ends(TxEvent::Paid, None)?;
    } else {
        step.ends(TxEvent::Unpaid, Some(FailCode::Unproven))?;
    }
    step.tx.cost = Some(cost(receipt));
    step.tx.is_final = !rules.is_watched;
    step.done(tx)
}
