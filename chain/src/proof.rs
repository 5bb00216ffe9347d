//! The success criterion: the proof of a payment in a receipt.
//!
//! A status of 1 proves a payment of the chain's own coin. It does not prove one of a token: some
//! tokens answer false instead of failing, or keep a part. So exactly the wanted transfer must be
//! in the logs.

use alloy_primitives::{Address, B256, b256};

use crate::payload::TxPayload;
use crate::state::AttemptKind;
use crate::tx::Proof;

/// The first topic of `Transfer(address,address,uint256)`.
pub const TRANSFER_TOPIC: B256 =
    b256!("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");

/// A log of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProofLog<'log> {
    /// The contract that emitted it.
    pub contract: Address,
    /// Its topics.
    pub topics: &'log [B256],
    /// Its data.
    pub data: &'log [u8],
}

/// The proof in the receipt of an attempt.
///
/// `kind`: of the attempt that was mined. `signer`: the account that pays. `is_success`: whether
/// the status is 1. `logs`: all logs of the receipt.
pub fn proof<'log>(
    kind: AttemptKind,
    signer: Address,
    payload: &TxPayload,
    is_success: bool,
    logs: impl IntoIterator<Item = ProofLog<'log>>,
) -> Proof {
    if !kind.pays() {
        return Proof::Nothing;
    }
    if !is_success {
        return Proof::Reverted;
    }
    let Some(token) = &payload.token else { return Proof::Paid };
    let amount = token.amount.to_be_bytes::<32>();
    let topics = [TRANSFER_TOPIC, signer.into_word(), payload.to.into_word()];
    let is_wanted = |log: &ProofLog<'_>| {
        log.contract == token.contract && log.topics == topics && log.data == amount
    };
    // A second one would pay twice: a person looks at it.
    match logs.into_iter().filter(is_wanted).count() {
        1 => Proof::Paid,
        _ => Proof::Unproven,
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Bytes, U256, keccak256};

    use super::*;
    use crate::payload::TokenTransfer;

    const SIGNER: Address = Address::repeat_byte(1);
    const PAYEE: Address = Address::repeat_byte(2);
    const TOKEN: Address = Address::repeat_byte(3);
    const OTHER: Address = Address::repeat_byte(4);

    fn payload(token: Option<u64>) -> TxPayload {
        let token =
            token.map(|amount| TokenTransfer { contract: TOKEN, amount: U256::from(amount) });
        TxPayload { to: PAYEE, value: U256::ZERO, data: Bytes::new(), token, gas: None }
    }

    #[test]
    fn a_status_proves_a_payment_of_the_chains_coin_and_nothing_else() {
        let of = |kind, token, is_success| proof(kind, SIGNER, &payload(token), is_success, []);
        for kind in [AttemptKind::Pay, AttemptKind::Bump] {
            assert_eq!(of(kind, None, true), Proof::Paid);
            assert_eq!(of(kind, None, false), Proof::Reverted);
            assert_eq!(of(kind, Some(5), true), Proof::Unproven, "answered false");
            assert_eq!(of(kind, Some(5), false), Proof::Reverted);
        }
        for kind in [AttemptKind::Cancel, AttemptKind::Fill] {
            for is_success in [true, false] {
                assert_eq!(of(kind, None, is_success), Proof::Nothing);
                assert_eq!(of(kind, Some(5), is_success), Proof::Nothing);
            }
        }
    }

    #[test]
    fn a_tokens_transfer_is_proven_by_exactly_its_log() {
        assert_eq!(TRANSFER_TOPIC, keccak256("Transfer(address,address,uint256)"));
        let word = |number: u64| U256::from(number).to_be_bytes::<32>();
        let (five, four) = (word(5), word(4));
        let topics =
            |from: Address, to: Address| vec![TRANSFER_TOPIC, from.into_word(), to.into_word()];
        let (right, back, away) =
            (topics(SIGNER, PAYEE), topics(PAYEE, SIGNER), topics(SIGNER, OTHER));
        let approval = vec![B256::repeat_byte(9), SIGNER.into_word(), PAYEE.into_word()];
        let log = |contract, topics, data| ProofLog { contract, topics, data };
        let of = |logs: &[ProofLog<'_>]| {
            proof(AttemptKind::Pay, SIGNER, &payload(Some(5)), true, logs.iter().copied())
        };
        let wanted = log(TOKEN, &right, &five);
        assert_eq!(of(&[wanted]), Proof::Paid);
        assert_eq!(of(&[log(TOKEN, &approval, &five), wanted]), Proof::Paid);
        assert_eq!(of(&[log(TOKEN, &away, &four), wanted]), Proof::Paid, "a part for another");
        for logs in [
            vec![],
            vec![wanted, wanted],
            vec![log(OTHER, &right, &five)],
            vec![log(TOKEN, &right, &four)],
            vec![log(TOKEN, &right, &five[1..])],
            vec![log(TOKEN, &back, &five)],
            vec![log(TOKEN, &away, &five)],
            vec![log(TOKEN, &right[..2], &five)],
            vec![log(TOKEN, &approval, &five)],
        ] {
            assert_eq!(of(&logs), Proof::Unproven, "{logs:?}");
        }
    }
}
