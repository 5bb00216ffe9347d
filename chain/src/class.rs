//! The meaning of an endpoint's answer to a transaction that was sent to it.
//!
//! Nodes answer in texts of their own. The table of texts is data: fragments in lower case, in an
//! order that counts, each with its class. A text that is not in it is [`SendClass::Unknown`]: the
//! transaction may be on the network.

/// The class of one answer. The order is that in which the best of several endpoints counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendClass {
    /// In a pool, under our hash.
    Accepted,
    /// This very transaction is in a pool.
    Known,
    /// The nonce is mined: by an attempt of ours, or not. Neither success nor an end by itself.
    NonceTooLow,
    /// The pool has another transaction with this nonce.
    Replacement,
    /// No pool takes it at this price.
    Underpriced,
    /// The endpoint lacks earlier nonces.
    NonceTooHigh,
    /// The endpoint has no room now.
    PoolFull,
    /// The account cannot pay for it.
    Funds,
    /// It costs more than the endpoint itself allows.
    FeeCap,
    /// This attempt will never be taken, for want of gas.
    InvalidGas,
    /// This attempt will never be taken.
    Invalid,
    /// It may be on the network or not.
    Unknown,
}

/// Fragments of texts, in lower case. The first one that a text has decides: a text about a
/// replacement also has the words of a low price.
const TEXTS: [(&str, SendClass); 50] = [
    // "unknown transaction type" is no known transaction.
    ("unknown transaction", SendClass::Invalid),
    ("already known", SendClass::Known),
    ("alreadyknown", SendClass::Known),
    ("known transaction", SendClass::Known),
    ("already imported", SendClass::Known),
    ("replacement transaction underpriced", SendClass::Replacement),
    ("replacementnotallowed", SendClass::Replacement),
    ("ownnoncealreadyused", SendClass::Replacement),
    ("could not replace existing", SendClass::Replacement),
    ("nonce too low", SendClass::NonceTooLow),
    ("nonce is too low", SendClass::NonceTooLow),
    ("oldnonce", SendClass::NonceTooLow),
    ("invalid transaction nonce", SendClass::NonceTooLow),
    ("nonce too high", SendClass::NonceTooHigh),
    ("noncegap", SendClass::NonceTooHigh),
    ("gapped-nonce", SendClass::NonceTooHigh),
    ("too far in the future", SendClass::NonceTooHigh),
    ("noncetoofarinfuture", SendClass::NonceTooHigh),
    ("insufficient funds", SendClass::Funds),
    ("insufficientfunds", SendClass::Funds),
    ("doesn't have enough funds", SendClass::Funds),
    ("upfront cost exceeds", SendClass::Funds),
    ("exceeds the configured cap", SendClass::FeeCap),
    ("fee cap exceeded", SendClass::FeeCap),
    ("less than block base fee", SendClass::Underpriced),
    ("is too low for the next block", SendClass::Underpriced),
    ("below current base fee", SendClass::Underpriced),
    ("below configured minimum gas price", SendClass::Underpriced),
    ("feetoolow", SendClass::Underpriced),
    ("fee too low", SendClass::Underpriced),
    ("underpriced", SendClass::Underpriced),
    ("txpool is full", SendClass::PoolFull),
    ("pool is full", SendClass::PoolFull),
    ("queue full", SendClass::PoolFull),
    ("in-flight transaction limit reached", SendClass::PoolFull),
    ("account limit exceeded", SendClass::PoolFull),
    ("intrinsic gas too low", SendClass::InvalidGas),
    ("intrinsic gas exceeds", SendClass::InvalidGas),
    ("transaction requires at least", SendClass::InvalidGas),
    ("intrinsic gas too high", SendClass::Invalid),
    ("exceeds block gas limit", SendClass::Invalid),
    ("gaslimitexceeded", SendClass::Invalid),
    ("oversized data", SendClass::Invalid),
    ("invalid chain id", SendClass::Invalid),
    ("invalidtxchainid", SendClass::Invalid),
    ("invalid sender", SendClass::Invalid),
    ("invalidtxsignature", SendClass::Invalid),
    ("transaction type not supported", SendClass::Invalid),
    ("priority fee per gas higher than max fee", SendClass::Invalid),
    ("failed to decode", SendClass::Invalid),
];

impl SendClass {
    /// Every class.
    pub const ALL: [SendClass; 12] = [
        SendClass::Accepted,
        SendClass::Known,
        SendClass::NonceTooLow,
        SendClass::Replacement,
        SendClass::Underpriced,
        SendClass::NonceTooHigh,
        SendClass::PoolFull,
        SendClass::Funds,
        SendClass::FeeCap,
        SendClass::InvalidGas,
        SendClass::Invalid,
        SendClass::Unknown,
    ];

    /// The class of an error of JSON-RPC: its message, and the text in its `data`.
    pub fn of_error(message: &str, data: Option<&str>) -> SendClass {
        let found = [Some(message), data].into_iter().flatten().find_map(|text| {
            let text = text.to_lowercase();
            TEXTS.iter().find(|(fragment, _)| text.contains(fragment)).map(|(_, class)| *class)
        });
        found.unwrap_or(SendClass::Unknown)
    }

    /// The name in metrics, rows and answers.
    pub fn name(self) -> &'static str {
        match self {
            SendClass::Accepted => "ACCEPTED",
            SendClass::Known => "KNOWN",
            SendClass::NonceTooLow => "NONCE_TOO_LOW",
            SendClass::Replacement => "REPLACEMENT",
            SendClass::Underpriced => "UNDERPRICED",
            SendClass::NonceTooHigh => "NONCE_TOO_HIGH",
            SendClass::PoolFull => "POOL_FULL",
            SendClass::Funds => "FUNDS",
            SendClass::FeeCap => "FEE_CAP",
            SendClass::InvalidGas => "INVALID_GAS",
            SendClass::Invalid => "INVALID",
            SendClass::Unknown => "UNKNOWN",
        }
    }

    /// Whether a pool has this very transaction.
    pub fn is_in_pool(self) -> bool {
        matches!(self, SendClass::Accepted | SendClass::Known)
    }

    /// Whether the refusal counts only if every endpoint that answered says so.
    fn needs_all(self) -> bool {
        matches!(
            self,
            SendClass::Funds | SendClass::FeeCap | SendClass::InvalidGas | SendClass::Invalid
        )
    }
}

/// The class of the answers of all endpoints. `was_in_pool`: an earlier answer about this nonce was
/// ACCEPTED or KNOWN, so that no refusal of the attempt counts.
pub fn best(answers: &[SendClass], was_in_pool: bool) -> SendClass {
    let Some(best) = answers.iter().copied().min() else { return SendClass::Unknown };
    if !best.needs_all() {
        return best;
    }
    // An endpoint that did not answer says nothing.
    let mut said = answers.iter().filter(|class| **class != SendClass::Unknown);
    if was_in_pool || said.any(|class| *class != best) { SendClass::Unknown } else { best }
}

#[cfg(test)]
mod tests {
    use super::SendClass::{
        FeeCap, Funds, Invalid, InvalidGas, Known, NonceTooHigh, NonceTooLow, PoolFull,
        Replacement, Underpriced, Unknown,
    };
    use super::*;

    /// Texts as the clients send them.
    const SAID: [(&str, &str, SendClass); 44] = [
        ("geth", "already known", Known),
        ("geth", "nonce too low: next nonce 5, tx nonce 3", NonceTooLow),
        ("geth", "replacement transaction underpriced", Replacement),
        ("geth", "transaction underpriced: gas tip cap 0, minimum needed 1", Underpriced),
        ("geth", "max fee per gas less than block base fee: address 0x1", Underpriced),
        ("geth", "txpool is full", PoolFull),
        ("geth", "in-flight transaction limit reached for delegated accounts", PoolFull),
        ("geth", "gapped-nonce tx from delegated accounts", NonceTooHigh),
        ("geth", "insufficient funds for gas * price + value: balance 0", Funds),
        ("geth", "tx fee (1.10 ether) exceeds the configured cap (1.00 ether)", FeeCap),
        ("geth", "intrinsic gas too low: gas 20000, minimum needed 21000", InvalidGas),
        ("geth", "exceeds block gas limit", Invalid),
        ("geth", "invalid chain id for signer: have 1 want 2", Invalid),
        ("geth", "invalid sender", Invalid),
        ("reth", "already known", Known),
        ("reth", "nonce too low: next nonce 5, tx nonce 3", NonceTooLow),
        ("reth", "transaction underpriced", Underpriced),
        ("erigon", "could not replace existing tx", Replacement),
        ("erigon", "fee too low", Underpriced),
        ("erigon", "pending sub-pool is full", PoolFull),
        ("besu", "Nonce too low", NonceTooLow),
        ("besu", "Known transaction", Known),
        ("besu", "Transaction nonce is too far in the future", NonceTooHigh),
        ("besu", "Upfront cost exceeds account balance", Funds),
        ("besu", "Intrinsic gas exceeds gas limit", InvalidGas),
        ("besu", "Gas price below configured minimum gas price", Underpriced),
        ("besu", "Transaction fee cap exceeded", FeeCap),
        ("nethermind", "AlreadyKnown", Known),
        ("nethermind", "OldNonce, Current nonce: 5, nonce of tx: 3", NonceTooLow),
        ("nethermind", "OwnNonceAlreadyUsed", Replacement),
        ("nethermind", "ReplacementNotAllowed", Replacement),
        ("nethermind", "FeeTooLow, MaxFeePerGas too low", Underpriced),
        ("nethermind", "NonceGap, Future nonce. Expected nonce: 3", NonceTooHigh),
        ("nethermind", "InsufficientFunds, Account balance: 0", Funds),
        ("anvil", "transaction already imported", Known),
        ("anvil", "Insufficient funds for gas * price + value", Funds),
        ("anvil", "intrinsic gas too high -- call gas cost exceeds the limit", Invalid),
        ("anvil", "Failed to decode transaction", Invalid),
        ("hardhat", "Known transaction: 0xab", Known),
        ("hardhat", "Replacement transaction underpriced. A gasPrice of at least 1", Replacement),
        ("hardhat", "Nonce too low. Expected nonce to be at least 1 but got 0.", NonceTooLow),
        ("hardhat", "Sender doesn't have enough funds to send tx.", Funds),
        ("hardhat", "Transaction requires at least 21000 gas but got 20000", InvalidGas),
        ("hardhat", "maxFeePerGas (1) is too low for the next block", Underpriced),
    ];

    #[test]
    fn each_clients_text_has_its_class() {
        for (client, text, class) in SAID {
            assert_eq!(SendClass::of_error(text, None), class, "{client}: {text}");
            assert_eq!(SendClass::of_error("execution failed", Some(text)), class, "{client}");
        }
        for text in ["", "header not found", "rate limit", "internal error", "timeout"] {
            assert_eq!(SendClass::of_error(text, None), Unknown, "{text}");
        }
        assert_eq!(SendClass::of_error("unknown transaction type", None), Invalid);
    }

    /// A fragment behind another one that it contains would never decide.
    #[test]
    fn no_fragment_hides_a_later_one() {
        for (index, (fragment, _)) in TEXTS.iter().enumerate() {
            assert_eq!(*fragment, fragment.to_lowercase());
            let hidden = TEXTS[..index].iter().find(|(earlier, _)| fragment.contains(earlier));
            assert_eq!(hidden, None, "{fragment}");
        }
    }

    #[test]
    fn a_refusal_counts_if_all_say_so() {
        use SendClass::Accepted;
        assert_eq!(best(&[], false), Unknown);
        assert_eq!(best(&[Unknown, Accepted], false), Accepted);
        assert_eq!(best(&[NonceTooLow, Known], false), Known);
        for class in [Funds, FeeCap, InvalidGas, Invalid] {
            assert_eq!(best(&[class, class], false), class);
            assert_eq!(best(&[class, Unknown], false), class);
            assert_eq!(best(&[class, class], true), Unknown);
        }
        assert_eq!(best(&[Funds, Invalid], false), Unknown);
        assert_eq!(best(&[PoolFull, Invalid], false), PoolFull);
    }
}
