//! The one decision about a transaction: a fact and the row give the next row and its effects. Pure
//! and total: run, recovered and simulated alike.
//!
//! A step is written before its effects are carried out. So nothing leaves that is not stored, and
//! each step may be lost before its write.

use std::time::Duration;

use alloy_primitives::{B256, Bytes};

use crate::class::SendClass;
use crate::fee::{GasCaps, GasMarket, GasPrice};
use crate::state::AttemptKind;
use crate::tx::{Tx, TxReceipt};
use crate::view::Confirmed;

/// An attempt that is signed and not stored yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// What it does.
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
    Delayed(crate::tx::SubState),
    /// Before a nonce: it is refused for good, with the name of this code.
    Refused(String),
    /// Before a nonce: its deadline has passed.
    Expired,
    /// It is its turn: its nonce is inside the window and its signer may sign. Or its balance
    /// suffices again.
    Turn,
    /// It is signed.
    Signed(Signed),
    /// Its signer does not answer, or refuses.
    Unsigned,
    /// The endpoints answered to the send of an attempt.
    Answered {
        /// The attempt.
        attempt: u32,
        /// All answers; empty: nobody was reached.
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
    /// The nonce is below the final count, and no attempt has a receipt.
    Unaccounted,
    /// A final transaction that is not ours has the nonce, on a quorum of endpoints.
    Taken(B256),
    /// The time of its next resend has come. `is_lowest`: of its signer's unmined nonces.
    Due {
        /// Whether no lower nonce is unmined.
        is_lowest: bool,
    },
    /// Its client or an operator wants it cancelled.
    Cancel,
    /// An operator, or the time, wants its nonce filled.
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
        /// What it does.
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
    /// Look for the transaction with this signer and nonce.
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
    /// The row behind the step. Its version is one more. If `is_new_attempt`, the last attempt is
    /// new. Its `resubmit_in` counts from the write on.
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
