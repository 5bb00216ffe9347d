//! A transaction of ours as its owner holds it: the row, and all of its attempts.

use std::fmt;
use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use uuid::Uuid;

use crate::class::SendClass;
use crate::fee::GasPrice;
use crate::named::named;
use crate::payload::{TRANSFER_GAS, TxPayload};
use crate::state::{AttemptKind, TxState};
use crate::view::BlockRef;

/// The id of a transaction: a UUID of version 7, made by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TxId(pub Uuid);

impl TxId {
    /// Above every other one.
    pub const MAX: TxId = TxId(Uuid::max());
}

impl fmt::Display for TxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The request of a client, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTx {
    /// The account that pays.
    pub signer: Address,
    /// The client's id: one row a signer and id, for ever.
    pub request_id: String,
    /// The purpose: one row over all signers.
    pub business_key: Option<String>,
    /// The wish.
    pub payload: TxPayload,
    /// The gas limit that was prepared; `None`: not prepared yet.
    pub gas: Option<u64>,
    /// Behind this time a transaction without a nonce ends EXPIRED; ms since 1970 by the store's
    /// clock.
    pub deadline_ms: Option<i64>,
}

/// The beginning of the ids of rows that fill a nonce which a jump passed over. Clients use none.
pub const FILL_PREFIX: &str = "fill/";

impl NewTx {
    /// The request of the row that fills a nonce: nothing, to the signer itself.
    pub fn fill(signer: Address, nonce: u64) -> NewTx {
        let payload =
            TxPayload { to: signer, value: U256::ZERO, data: Bytes::new(), token: None, gas: None };
        NewTx {
            signer,
            request_id: format!("{FILL_PREFIX}{nonce}"),
            business_key: None,
            payload,
            gas: Some(TRANSFER_GAS),
            deadline_ms: None,
        }
    }

    /// Whether its row only fills a nonce that a jump passed over.
    pub fn is_fill(&self) -> bool {
        self.request_id.starts_with(FILL_PREFIX)
    }
}

/// More about a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum SubState {
    /// The account cannot pay for it now.
    WaitingFunds = 1,
    /// Its signer is suspended.
    Suspended = 2,
    /// Earlier nonces fill the window.
    WaitingTurn = 3,
    /// No endpoint will take it; later nonces wait for a fill.
    Blocked = 4,
    /// In a pool, as far as is known.
    Pending = 5,
    /// Without a receipt for long.
    Stale = 6,
    /// A cap forbids a higher price.
    Underpriced = 7,
    /// Its receipt is in the view.
    Mined = 8,
    /// Its receipt was, and is not.
    Reorged = 9,
    /// A cancel is wanted. The payment may still win.
    Cancelling = 10,
    /// A fill is wanted.
    Filling = 11,
    /// Its nonce is mined, and by which transaction is not known.
    Unaccounted = 12,
    /// Mined with success, and without the payment's proof.
    Unproven = 13,
}

named!(SubState {
    WaitingFunds => "WAITING_FUNDS",
    Suspended => "SUSPENDED",
    WaitingTurn => "WAITING_TURN",
    Blocked => "BLOCKED",
    Pending => "PENDING",
    Stale => "STALE",
    Underpriced => "UNDERPRICED",
    Mined => "MINED",
    Reorged => "REORGED",
    Cancelling => "CANCELLING",
    Filling => "FILLING",
    Unaccounted => "UNACCOUNTED",
    Unproven => "UNPROVEN",
});

/// Why a transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum FailCode {
    /// Refused for good, before it had a nonce.
    Refused = 1,
    /// Its deadline passed before it had a nonce.
    Expired = 2,
    /// Its call failed on chain.
    Reverted = 3,
    /// Its cancel was mined.
    Cancelled = 4,
    /// Its fill was mined.
    Filled = 5,
    /// Another transaction has its nonce.
    NonceTaken = 6,
    /// Two operators ended it as unpaid.
    Unproven = 7,
}

named!(FailCode {
    Refused => "REFUSED",
    Expired => "EXPIRED",
    Reverted => "REVERTED",
    Cancelled => "CANCELLED",
    Filled => "FILLED",
    NonceTaken => "NONCE_TAKEN",
    Unproven => "UNPROVEN",
});

/// The operator's or client's wish about a transaction that has a nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Wish {
    /// To pay.
    Pay = 0,
    /// To pay nothing. The mined attempt decides.
    Cancel = 1,
    /// To make way for later nonces.
    Fill = 2,
}

named!(Wish {
    Pay => "PAY",
    Cancel => "CANCEL",
    Fill => "FILL",
});

/// One signed transaction of a nonce. Written once; only its answers change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// From 1 on.
    pub number: u32,
    /// Its purpose.
    pub kind: AttemptKind,
    /// The bytes that leave.
    pub raw: Bytes,
    /// Their hash.
    pub hash: B256,
    /// Its prices.
    pub price: GasPrice,
    /// Its gas limit.
    pub gas: u64,
    /// The best class of its last answers.
    pub class: Option<SendClass>,
    /// Whether an endpoint ever had it in its pool.
    pub was_in_pool: bool,
}

/// The proof in a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i16)]
pub enum Proof {
    /// Of a payment: status 1, and for a token exactly its transfer in the logs.
    Paid = 1,
    /// Of none: status 0.
    Reverted = 2,
    /// Status 1, and of a token without its transfer.
    Unproven = 3,
    /// Of none: a cancel or a fill.
    Nothing = 4,
}

named!(Proof {
    Paid => "PAID",
    Reverted => "REVERTED",
    Unproven => "UNPROVEN",
    Nothing => "NOTHING",
});

/// A receipt that is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxReceipt {
    /// The attempt that was mined.
    pub attempt: u32,
    /// The hash of that attempt.
    pub hash: B256,
    /// The height of its block.
    pub block_number: u64,
    /// The hash of its block.
    pub block_hash: B256,
    /// The proof in it.
    pub proof: Proof,
    /// The gas that was used.
    pub gas_used: u64,
    /// The price of each gas, wei.
    pub gas_price: u128,
}

/// A transaction of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tx {
    /// Its id.
    pub id: TxId,
    /// The request. `gas` is set once it has a nonce.
    pub new: NewTx,
    /// Its nonce, for ever.
    pub nonce: Option<u64>,
    /// Where it stands.
    pub state: TxState,
    /// More about that.
    pub sub: Option<SubState>,
    /// Why it failed.
    pub code: Option<FailCode>,
    /// The name of the code of an answer that refused it for good.
    pub refusal: Option<String>,
    /// The wish about it.
    pub wish: Wish,
    /// Rises by one with each write.
    pub version: u64,
    /// The first one first.
    pub attempts: Vec<Attempt>,
    /// The resends of the newest attempt.
    pub resends: u32,
    /// The time until the next resend, when this was read; `None`: none is planned.
    pub resubmit_in: Option<Duration>,
    /// The time since its first attempt was sent, when this was read.
    pub sent_since: Option<Duration>,
    /// The receipt that is believed now.
    pub receipt: Option<TxReceipt>,
    /// Rises with each list of confirmations that replaces another one.
    pub fork: u32,
    /// The list of this fork, the block of the receipt first.
    pub told: Vec<BlockRef>,
    /// The cost in gas once it is final, wei.
    pub cost: Option<U256>,
    /// Whether no owner looks at it any more. A terminal row without it may still be taken back.
    pub is_final: bool,
}

impl Tx {
    /// A row as it is stored first: ALLOCATED with a nonce, CREATED without one.
    pub fn stored(id: TxId, new: NewTx, nonce: Option<u64>) -> Tx {
        Tx {
            id,
            wish: if new.is_fill() { Wish::Fill } else { Wish::Pay },
            new,
            nonce,
            state: if nonce.is_some() { TxState::Allocated } else { TxState::Created },
            sub: None,
            code: None,
            refusal: None,
            version: 1,
            attempts: Vec::new(),
            resends: 0,
            resubmit_in: None,
            sent_since: None,
            receipt: None,
            fork: 0,
            told: Vec::new(),
            cost: None,
            is_final: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_and_each_name_is_of_one_variant() {
        fn held(numbers: &[i16], names: &[&str]) {
            for (index, (number, name)) in numbers.iter().zip(names).enumerate() {
                assert!(!numbers[..index].contains(number), "{number}");
                assert!(!names[..index].contains(name), "{name}");
            }
        }
        macro_rules! each {
            ($($of:ident),+) => { $(
                held(&$of::ALL.map($of::number), &$of::ALL.map($of::name));
                for it in $of::ALL {
                    assert_eq!($of::from_number(it.number()), Some(it), "{}", it.name());
                }
                assert_eq!($of::from_number(99), None);
            )+ };
        }
        each!(SubState, FailCode, Wish, Proof);
    }
}
