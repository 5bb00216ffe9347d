//! The bytes of a signed transaction, put together from the fields that an endpoint shows of it. Not
//! every endpoint tells the bytes themselves. The caller compares their hash.

use alloy_primitives::{Bytes, Signature, U256};
use chain::fee::GasPrice;
use serde_json::Value;

use super::hex;
use crate::signer::{Unsigned, codec};

/// The bytes of a transaction of type 0 or 2; `None`: it is of another form than ours.
pub(super) fn bytes(value: &Value) -> Option<Bytes> {
    let part = |name: &str| value.get(name).filter(|value| !value.is_null());
    let is_legacy = match part("type").map(|kind| kind.as_str()) {
        None | Some(Some("0x0")) => true,
        Some(Some("0x2")) => false,
        Some(_) => return None,
    };
    let price = if is_legacy {
        let price = hex::u128(part("gasPrice")?)?;
        GasPrice { max_fee: price, max_tip: price }
    } else {
        let max_tip = hex::u128(part("maxPriorityFeePerGas")?)?;
        GasPrice { max_fee: hex::u128(part("maxFeePerGas")?)?, max_tip }
    };
    let unsigned = Unsigned {
        chain_id: hex::u64(part("chainId")?)?,
        signer: hex::address(part("from")?)?,
        nonce: hex::u64(part("nonce")?)?,
        to: hex::address(part("to")?)?,
        value: hex::u256(part("value")?)?,
        data: hex::data(part("input")?)?,
        gas: hex::u64(part("gas")?)?,
        price,
        is_legacy,
    };
    let parity = match hex::u64(part("v")?)? {
        // EIP-155: 35 and twice the chain id stand before it.
        v if is_legacy => v.checked_sub(35)?.checked_sub(unsigned.chain_id.checked_mul(2)?)?,
        v => v,
    };
    let is_odd = match parity {
        0 => false,
        1 => true,
        _ => return None,
    };
    let signature = Signature::new(number(part("r")?)?, number(part("s")?)?, is_odd);
    Some(codec::encode(&unsigned, signature))
}

/// A number of a signature: a quantity, or 32 bytes.
fn number(value: &Value) -> Option<U256> {
    hex::u256(value).or_else(|| hex::hash(value).map(|word| U256::from_be_bytes(word.0)))
}
