//! The payloads that a signer may sign. Pure.

use chain::payload::TxPayload;

use crate::options::SignerPolicy;

/// A payload that the policy of its signer does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A payment of the chain's own coin.
    #[error("this signer may not pay the chain's own coin")]
    Native,
    /// A transfer of a token.
    #[error("this signer may not transfer this token")]
    Token,
    /// A call with data of its own.
    #[error("this signer may not make calls")]
    Call,
    /// A payment that alone is more than its signer's hour.
    #[error("its amount alone is above the signer's limit of an hour")]
    Amount,
    /// The signer has no policy.
    #[error("this signer has no policy at this node")]
    Absent,
}

/// Checks a payload. A token's transfer that is written as data is a call, and needs that right.
///
/// # Errors
/// [`PolicyError`]: it must not be signed.
pub fn allow(policy: Option<&SignerPolicy>, payload: &TxPayload) -> Result<(), PolicyError> {
    let policy = policy.ok_or(PolicyError::Absent)?;
    if policy.is_any_allowed {
        return Ok(());
    }
    match &payload.token {
        Some(token) if policy.tokens.contains(&token.contract) => Ok(()),
        Some(_) => Err(PolicyError::Token),
        None if !payload.data.is_empty() => Err(PolicyError::Call),
        None if policy.is_native_allowed => Ok(()),
        None => Err(PolicyError::Native),
    }
}

/// Checks an amount against the limit of an hour. An asset without a limit has none to pass.
///
/// # Errors
/// [`PolicyError::Amount`]: no hour has room for it, so its first attempt would be refused for ever.
pub fn fits_an_hour(policy: &SignerPolicy, payload: &TxPayload) -> Result<(), PolicyError> {
    let (asset, amount) = match &payload.token {
        Some(token) => (Some(token.contract), token.amount),
        None => (None, payload.value),
    };
    let limits = &policy.outflow_per_hour_max;
    match limits.iter().any(|(limited, most)| *limited == asset && amount > *most) {
        true => Err(PolicyError::Amount),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, Bytes, U256};
    use chain::payload::TokenTransfer;

    use super::*;

    #[test]
    fn a_signer_signs_only_the_payloads_that_are_listed() {
        let token = Address::repeat_byte(7);
        let none = SignerPolicy {
            is_native_allowed: false,
            tokens: Vec::new(),
            is_any_allowed: false,
            outflow_per_hour_max: Vec::new(),
        };
        let native = SignerPolicy { is_native_allowed: true, ..none.clone() };
        let tokens = SignerPolicy { tokens: vec![token], ..none.clone() };
        let any = SignerPolicy { is_any_allowed: true, ..none.clone() };
        let pay = TxPayload {
            to: Address::repeat_byte(1),
            value: U256::from(1),
            data: Bytes::new(),
            token: None,
            gas: None,
        };
        let transfer = |contract| TxPayload {
            value: U256::ZERO,
            token: Some(TokenTransfer { contract, amount: U256::from(1) }),
            ..pay.clone()
        };
        let (own, other) = (transfer(token), transfer(Address::repeat_byte(8)));
        // The same transfer as data goes around the list of tokens.
        let call = TxPayload { to: token, data: own.call().2, ..pay.clone() };
        use PolicyError::{Absent, Call, Native, Token};
        for (policy, want) in [
            (&none, [Err(Native), Err(Token), Err(Token), Err(Call)]),
            (&native, [Ok(()), Err(Token), Err(Token), Err(Call)]),
            (&tokens, [Err(Native), Ok(()), Err(Token), Err(Call)]),
            (&any, [Ok(()); 4]),
        ] {
            let found = [&pay, &own, &other, &call].map(|payload| allow(Some(policy), payload));
            assert_eq!(found, want, "{policy:?}");
        }
        assert_eq!(allow(None, &pay), Err(Absent));
    }

    #[test]
    fn an_amount_above_the_hour_of_its_asset_is_refused() {
        let token = Address::repeat_byte(7);
        let policy = SignerPolicy {
            is_native_allowed: true,
            tokens: vec![token],
            is_any_allowed: true,
            outflow_per_hour_max: vec![(None, U256::from(5)), (Some(token), U256::from(9))],
        };
        let pay = |value: u64| TxPayload {
            to: Address::repeat_byte(1),
            value: U256::from(value),
            data: Bytes::new(),
            token: None,
            gas: None,
        };
        let transfer = |contract, amount: u64| {
            let amount = U256::from(amount);
            TxPayload { token: Some(TokenTransfer { contract, amount }), ..pay(0) }
        };
        for (payload, want) in [
            (pay(5), Ok(())),
            (pay(6), Err(PolicyError::Amount)),
            (transfer(token, 9), Ok(())),
            (transfer(token, 10), Err(PolicyError::Amount)),
            (transfer(Address::repeat_byte(8), 99), Ok(())),
        ] {
            assert_eq!(fits_an_hour(&policy, &payload), want, "{payload:?}");
        }
    }
}
