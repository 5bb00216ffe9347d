//! Cancel and fill. Both are wishes: the chain decides which attempt is mined.

use std::time::Duration;

use super::signed::{self, Asker};
use super::{TxRules, TxStep, dropped, newest};
use crate::state::TxState;
use crate::tx::{FailCode, SubState, Tx, Wish};

/// Wants a row cancelled or filled. The first wish stays; a repeat signs an attempt that is not
/// stored yet.
pub(super) fn wished(tx: &Tx, wish: Wish, rules: &TxRules) -> Option<TxStep> {
    match tx.state {
        TxState::Created if wish == Wish::Cancel => {
            return dropped(tx, FailCode::Refused, Some("CANCELLED"));
        }
        TxState::Created | TxState::Confirmed | TxState::Failed => return None,
        TxState::Allocated | TxState::Submitted | TxState::Tracking => (),
    }
    if tx.sub == Some(SubState::Unproven) {
        return None;
    }
    let mut step = TxStep::of(tx);
    if tx.wish == Wish::Pay {
        step.tx.wish = wish;
    }
    // Mined: the wish waits for a reorganization. Mined by an unknown one: nothing can replace it.
    let is_mined = tx.receipt.is_some() || tx.sub == Some(SubState::Unaccounted);
    // Of a suspended signer the program raises no price: an operator does, by the same wish again.
    let is_raised = rules.is_suspended && tx.wish == wish;
    if is_mined || newest(&step.tx).is_some() && !is_raised {
        return step.done(tx);
    }
    if tx.state != TxState::Allocated {
        step.tx.sub = Some(match step.tx.wish {
            Wish::Pay | Wish::Cancel => SubState::Cancelling,
            Wish::Fill => SubState::Filling,
        });
    }
    let is_signed = signed::attempt(&mut step, rules, Asker::Command);
    // The next try, if its signature fails. A new owner does not know the market yet: the look by
    // time asks for it first.
    step.tx.resubmit_in = match rules.market {
        None if !is_signed => Some(Duration::ZERO),
        _ => tx.resubmit_in.or(Some(rules.interval)),
    };
    step.done(tx)
}
