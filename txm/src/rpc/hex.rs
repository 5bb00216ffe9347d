//! The two forms of hexadecimal text in JSON-RPC: quantities and data. Read strictly.

use alloy_primitives::{Address, B256, Bytes, U256};
use serde_json::Value;

/// A quantity of at most `bits` bits: `0x` and hexadecimal digits without leading zeros.
fn quantity(value: &Value, bits: usize) -> Option<U256> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    // 64 digits are 256 bits. A longer text would be cut by the parser of some versions.
    let short = digits.len() <= 64 && (digits == "0" || !digits.starts_with('0'));
    let read = U256::from_str_radix(digits, 16).ok().filter(|_| plain && short)?;
    (read.bit_len() <= bits).then_some(read)
}

pub(crate) fn u64(value: &Value) -> Option<u64> {
    quantity(value, 64)?.try_into().ok()
}

pub(crate) fn u128(value: &Value) -> Option<u128> {
    quantity(value, 128)?.try_into().ok()
}

pub(crate) fn u256(value: &Value) -> Option<U256> {
    quantity(value, 256)
}

/// Whole bytes: `0x` and an even number of digits.
pub(crate) fn data(value: &Value) -> Option<Bytes> {
    let digits = value.as_str()?.strip_prefix("0x")?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !plain {
        return None;
    }
    alloy_primitives::hex::decode(digits).ok().map(Bytes::from)
}

/// A hash: 32 bytes.
pub(crate) fn hash(value: &Value) -> Option<B256> {
    B256::try_from(data(value)?.as_ref()).ok()
}

/// An address: 20 bytes, in any case, since endpoints differ in it.
pub(crate) fn address(value: &Value) -> Option<Address> {
    Address::try_from(data(value)?.as_ref()).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_quantity_is_whole_plain_and_fits() {
        assert_eq!(u64(&json!("0x0")), Some(0));
        assert_eq!(u64(&json!("0xffffffffffffffff")), Some(u64::MAX));
        assert_eq!(u128(&json!(format!("0x{}", "f".repeat(32)))), Some(u128::MAX));
        assert_eq!(u256(&json!(format!("0x{}", "f".repeat(64)))), Some(U256::MAX));
        let bad = ["", "0", "0x", "0x00", "0x01", "0X1", "0x-1", "0x+1", "0x1_0", "0x 1", "0xg"];
        for text in bad {
            assert_eq!(u256(&json!(text)), None, "{text}");
        }
        assert_eq!(u64(&json!("0x10000000000000000")), None);
        assert_eq!(u128(&json!(format!("0x1{}", "0".repeat(32)))), None);
        assert_eq!(u256(&json!(format!("0x1{}", "0".repeat(64)))), None);
        for value in [json!(1), json!(null), json!(["0x1"]), json!({ "x": "0x1" }), json!(true)] {
            assert_eq!(u64(&value), None);
        }
    }

    #[test]
    fn data_is_whole_bytes() {
        assert_eq!(data(&json!("0x")), Some(Bytes::new()));
        assert_eq!(data(&json!("0x0aFF")), Some(Bytes::from(vec![10, 255])));
        for text in ["", "0a", "0xa", "0x0x0a", "0xzz"] {
            assert_eq!(data(&json!(text)), None, "{text}");
        }
        assert_eq!(hash(&json!(format!("0x{}", "1".repeat(62)))), None);
        assert_eq!(address(&json!(format!("0x{}", "1".repeat(42)))), None);
        assert!(address(&json!(format!("0x{}", "aB".repeat(20)))).is_some());
    }
}
