//! The bytes of a signed transaction, put together from the fields that an endpoint shows of it.
//! Not every endpoint tells the bytes themselves. The caller compares their hash.

use alloy_primitives::{Bytes, Signature, U256};
use chain::fee::GasPrice;
use serde_json::Value;

use super::hex;
use crate::signer::{Unsigned, codec};

/// The bytes of a transaction of type 0 or 2; `Some(None)`: it is of another form than ours, by its
/// type, its access list, a contract creation, or no chain id. `None`: a field is missing or cannot
/// be read, which tells nothing of its form.
pub(super) fn bytes(value: &Value) -> Option<Option<Bytes>> {
    let part = |name: &str| value.get(name).filter(|value| !value.is_null());
    let is_legacy = match part("type").map(|kind| kind.as_str()) {
        None | Some(Some("0x0")) => true,
        Some(Some("0x2")) => false,
        Some(_) => return Some(None),
    };
    let accesses = part("accessList").and_then(Value::as_array);
    let is_creation = value.get("to").is_some_and(Value::is_null);
    let v = part("yParity").filter(|_| !is_legacy).or_else(|| part("v"));
    let v = hex::u64(v?)?;
    if is_creation
        || accesses.is_some_and(|all| !all.is_empty())
        || is_legacy && matches!(v, 27 | 28)
    {
        return Some(None);
    }
    let price = if is_legacy {
        let price = hex::u128(part("gasPrice")?)?;
        GasPrice { max_fee: price, max_tip: price }
    } else {
        let max_tip = hex::u128(part("maxPriorityFeePerGas")?)?;
        GasPrice { max_fee: hex::u128(part("maxFeePerGas")?)?, max_tip }
    };
    // EIP-155: 35 and twice the chain id stand before the parity.
    let chain_id = match part("chainId") {
        None if is_legacy => v.checked_sub(35)? / 2,
        id => hex::u64(id?)?,
    };
    let unsigned = Unsigned {
        chain_id,
        signer: hex::address(part("from")?)?,
        nonce: hex::u64(part("nonce")?)?,
        to: hex::address(part("to")?)?,
        value: hex::u256(part("value")?)?,
        data: hex::data(part("input")?)?,
        gas: hex::u64(part("gas")?)?,
        price,
        is_legacy,
    };
    let parity = match is_legacy {
        true => v.checked_sub(35)?.checked_sub(chain_id.checked_mul(2)?)?,
        false => v,
    };
    let is_odd = match parity {
        0 => false,
        1 => true,
        _ => return None,
    };
    let signature = Signature::new(number(part("r")?)?, number(part("s")?)?, is_odd);
    Some(Some(codec::encode(&unsigned, signature)))
}

/// A number of a signature: a quantity, or 32 bytes.
fn number(value: &Value) -> Option<U256> {
    hex::u256(value).or_else(|| hex::hash(value).map(|word| U256::from_be_bytes(word.0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The transaction of EIP-155, as an endpoint shows it.
    fn example() -> Value {
        json!({
            "type": "0x0", "chainId": "0x1", "from": "0x9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f",
            "nonce": "0x9", "gasPrice": "0x4a817c800", "gas": "0x5208",
            "to": format!("0x{}", "35".repeat(20)), "value": "0xde0b6b3a7640000", "input": "0x",
            "v": "0x25",
            "r": "0x28ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276",
            "s": "0x67cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83",
        })
    }

    #[test]
    fn the_fields_of_a_transaction_are_its_bytes() {
        let raw = bytes(&example()).flatten().expect("one of ours");
        let read = codec::read(&raw).expect("one of ours");
        assert_eq!((read.nonce, read.gas, read.is_legacy), (9, 21_000, true));
        assert_eq!(hex::address(&example()["from"]), Some(read.signer));
        // A changed field is another transaction, of another sender.
        let mut other = example();
        other["value"] = json!("0x1");
        let raw = bytes(&other).flatten().expect("a form of ours");
        let is_ours =
            codec::read(&raw).is_ok_and(|it| Some(it.signer) == hex::address(&other["from"]));
        assert!(!is_ours);
    }

    /// The example with another field.
    fn with(name: &str, field: Value) -> Value {
        let mut other = example();
        other[name] = field;
        other
    }

    #[test]
    fn another_form_is_none_of_ours() {
        for (name, field) in [
            ("type", json!("0x1")),
            ("type", json!("0x3")),
            ("to", Value::Null),
            ("accessList", json!([{ "address": example()["to"], "storageKeys": [] }])),
            ("v", json!("0x1b")),
        ] {
            assert_eq!(bytes(&with(name, field)), Some(None), "{name}");
        }
    }

    #[test]
    fn a_field_that_is_missing_tells_nothing_of_the_form() {
        for (name, field) in [
            ("v", Value::Null),
            ("v", json!("0x29")),
            ("r", json!("0xzz")),
            ("gas", Value::Null),
            ("type", json!("0x2")),
        ] {
            assert_eq!(bytes(&with(name, field)), None, "{name}");
        }
        assert_eq!(bytes(&Value::Null), None);
        // Type 0 has its chain in `v`; type 2 may have its parity alone.
        assert_eq!(bytes(&with("chainId", Value::Null)), bytes(&example()));
        let mut of_type_2 = with("type", json!("0x2"));
        for (name, field) in [
            ("maxFeePerGas", json!("0x2")),
            ("maxPriorityFeePerGas", json!("0x1")),
            ("v", json!("0x1")),
            ("accessList", json!([])),
        ] {
            of_type_2[name] = field;
        }
        let whole = bytes(&of_type_2);
        assert!(matches!(whole, Some(Some(_))));
        (of_type_2["v"], of_type_2["yParity"]) = (Value::Null, json!("0x1"));
        assert_eq!(bytes(&of_type_2), whole);
    }
}
