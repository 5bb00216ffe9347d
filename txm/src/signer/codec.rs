//! Transactions as bytes: type 2 (EIP-1559), or type 0 with EIP-155, and the check of each answer
//! of a signer.
//!
//! A signer is not believed, not even our own: its bytes are decoded and compared field by field
//! with the wish, and the sender is recovered.

use alloy_consensus::transaction::SignerRecoverable as _;
use alloy_consensus::{
    EthereumTxEnvelope, SignableTransaction, Signed, Transaction as _, TxEip1559, TxEip4844Variant,
    TxLegacy,
};
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use alloy_primitives::{B256, Bytes, Signature, TxKind};
use chain::fee::GasPrice;

use super::{SignError, SignedBytes, Unsigned};

/// The types that a node of the network reads.
type Envelope = EthereumTxEnvelope<TxEip4844Variant>;

fn type_2(unsigned: &Unsigned) -> TxEip1559 {
    TxEip1559 {
        chain_id: unsigned.chain_id,
        nonce: unsigned.nonce,
        gas_limit: unsigned.gas,
        max_fee_per_gas: unsigned.price.max_fee,
        max_priority_fee_per_gas: unsigned.price.max_tip,
        to: TxKind::Call(unsigned.to),
        value: unsigned.value,
        access_list: Default::default(),
        input: unsigned.data.clone(),
    }
}

fn type_0(unsigned: &Unsigned) -> TxLegacy {
    TxLegacy {
        chain_id: Some(unsigned.chain_id),
        nonce: unsigned.nonce,
        gas_price: unsigned.price.max_fee,
        gas_limit: unsigned.gas,
        to: TxKind::Call(unsigned.to),
        value: unsigned.value,
        input: unsigned.data.clone(),
    }
}

/// The hash that the key signs.
pub fn signature_hash(unsigned: &Unsigned) -> B256 {
    if unsigned.is_legacy {
        type_0(unsigned).signature_hash()
    } else {
        type_2(unsigned).signature_hash()
    }
}

/// The bytes of a transaction with its signature. They are not checked.
pub fn encode(unsigned: &Unsigned, signature: Signature) -> Bytes {
    let envelope: Envelope = if unsigned.is_legacy {
        Envelope::Legacy(type_0(unsigned).into_signed(signature))
    } else {
        Envelope::Eip1559(type_2(unsigned).into_signed(signature))
    };
    envelope.encoded_2718().into()
}

/// Checks the answer of a signer: each field, the type, the sender, a low s, and nothing behind it.
///
/// # Errors
/// [`SignError::Mismatch`] names the first part that differs.
pub fn check(raw: &[u8], unsigned: &Unsigned) -> Result<SignedBytes, SignError> {
    let mut rest = raw;
    let envelope = Envelope::decode_2718(&mut rest)
        .map_err(|error| SignError::Mismatch(format!("no transaction: {error}")))?;
    if !rest.is_empty() || envelope.encoded_2718() != raw {
        return differs("encoding");
    }
    match &envelope {
        Envelope::Legacy(signed) if unsigned.is_legacy => {
            same_type_0(signed.tx(), &type_0(unsigned))?;
            sender(signed, unsigned)?;
        }
        Envelope::Eip1559(signed) if !unsigned.is_legacy => {
            same_type_2(signed.tx(), &type_2(unsigned))?;
            sender(signed, unsigned)?;
        }
        _ => return differs("type"),
    }
    Ok(SignedBytes { raw: raw.to_vec().into(), hash: *envelope.tx_hash() })
}

/// The transaction in signed bytes, with the sender that its signature tells.
///
/// # Errors
/// [`SignError::Mismatch`] names the part that is none of ours: another type, an access list, a
/// contract creation, no chain id, a wrong encoding or signature.
pub fn read(raw: &[u8]) -> Result<Unsigned, SignError> {
    let mut rest = raw;
    let envelope = Envelope::decode_2718(&mut rest)
        .map_err(|error| SignError::Mismatch(format!("no transaction: {error}")))?;
    let is_legacy = matches!(envelope, Envelope::Legacy(_));
    let (TxKind::Call(to), Some(chain_id)) = (envelope.kind(), envelope.chain_id()) else {
        return differs("to, or the chain id");
    };
    let Ok(signer) = envelope.recover_signer() else { return differs("signature") };
    let max_fee = envelope.max_fee_per_gas();
    let unsigned = Unsigned {
        chain_id,
        signer,
        nonce: envelope.nonce(),
        to,
        value: envelope.value(),
        data: envelope.input().clone(),
        gas: envelope.gas_limit(),
        price: GasPrice {
            max_fee,
            max_tip: envelope.max_priority_fee_per_gas().unwrap_or(max_fee),
        },
        is_legacy,
    };
    check(raw, &unsigned)?;
    Ok(unsigned)
}

fn differs<T>(part: &str) -> Result<T, SignError> {
    Err(SignError::Mismatch(part.to_owned()))
}

/// The fields of both types are taken apart, so that a field of a later version of the type does
/// not pass unseen.
fn same_type_2(found: &TxEip1559, wanted: &TxEip1559) -> Result<(), SignError> {
    let TxEip1559 {
        chain_id,
        nonce,
        gas_limit,
        max_fee_per_gas,
        max_priority_fee_per_gas,
        to,
        value,
        access_list,
        input,
    } = found;
    same(&[
        ("chain id", *chain_id == wanted.chain_id),
        ("nonce", *nonce == wanted.nonce),
        ("gas", *gas_limit == wanted.gas_limit),
        ("max fee", *max_fee_per_gas == wanted.max_fee_per_gas),
        ("max tip", *max_priority_fee_per_gas == wanted.max_priority_fee_per_gas),
        ("to", *to == wanted.to),
        ("value", *value == wanted.value),
        ("access list", access_list.is_empty()),
        ("data", *input == wanted.input),
    ])
}

fn same_type_0(found: &TxLegacy, wanted: &TxLegacy) -> Result<(), SignError> {
    let TxLegacy { chain_id, nonce, gas_price, gas_limit, to, value, input } = found;
    same(&[
        ("chain id", *chain_id == wanted.chain_id),
        ("nonce", *nonce == wanted.nonce),
        ("gas", *gas_limit == wanted.gas_limit),
        ("gas price", *gas_price == wanted.gas_price),
        ("to", *to == wanted.to),
        ("value", *value == wanted.value),
        ("data", *input == wanted.input),
    ])
}

fn same(parts: &[(&str, bool)]) -> Result<(), SignError> {
    match parts.iter().find(|(_, is_same)| !is_same) {
        Some((part, _)) => differs(part),
        None => Ok(()),
    }
}

/// The sender, recovered from the signature. A high s is refused: every pool refuses it, while the
/// recovery takes it as the low one.
fn sender<T: SignableTransaction<Signature>>(
    signed: &Signed<T>,
    unsigned: &Unsigned,
) -> Result<(), SignError> {
    if signed.signature().normalize_s().is_some() {
        return differs("signature");
    }
    match signed.recover_signer() {
        Ok(sender) if sender == unsigned.signer => Ok(()),
        Ok(_) => differs("sender"),
        Err(_) => differs("signature"),
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{Address, U256, address, b256, hex};
    use k256::ecdsa::SigningKey;

    use super::*;

    /// The private key of the example of EIP-155.
    fn key() -> SigningKey {
        SigningKey::from_slice(&[0x46; 32]).expect("a key")
    }

    const SENDER: Address = address!("9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f");
    /// The signed transaction of EIP-155.
    const EXAMPLE: [u8; 110] = hex!(
        "f86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a0"
        "28ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a0"
        "67cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
    );

    fn unsigned(is_legacy: bool) -> Unsigned {
        let gwei = 1_000_000_000_u64;
        Unsigned {
            chain_id: 1,
            signer: SENDER,
            nonce: 9,
            to: Address::repeat_byte(0x35),
            value: U256::from(gwei) * U256::from(gwei),
            data: Bytes::new(),
            gas: 21_000,
            price: GasPrice { max_fee: 20 * u128::from(gwei), max_tip: u128::from(gwei) },
            is_legacy,
        }
    }

    fn sign(unsigned: &Unsigned) -> Bytes {
        let hash = signature_hash(unsigned);
        let signature = key().sign_prehash_recoverable(hash.as_slice()).expect("signed");
        encode(unsigned, signature.into())
    }

    #[test]
    fn the_example_of_eip_155_is_encoded_and_read() {
        let unsigned = unsigned(true);
        let hash = b256!("daf5a779ae972f972197303d7b574746c7ef83eadac0f2791ad23db92e4c8e53");
        assert_eq!(signature_hash(&unsigned), hash);
        assert_eq!(sign(&unsigned)[..], EXAMPLE);
        let signed = check(&EXAMPLE, &unsigned).expect("as wished");
        assert_eq!(signed.raw[..], EXAMPLE);
        assert_eq!(signed.hash, alloy_primitives::keccak256(EXAMPLE));
        let read = read(&EXAMPLE).expect("one of ours");
        assert_eq!((read.signer, read.nonce, read.is_legacy), (SENDER, 9, true));
    }

    #[test]
    fn type_2_is_encoded_as_eip_1559_says() {
        let unsigned = Unsigned { data: Bytes::from_static(&[1, 2, 3]), ..unsigned(false) };
        let raw = sign(&unsigned);
        assert_eq!(raw[0], 2);
        // 0x02 || rlp([chain id, nonce, tip, fee, gas, to, value, data, access list, y, r, s])
        let head = hex!("f872 01 09 843b9aca00 8504a817c800 825208 94");
        assert_eq!(raw[3..3 + head.len() - 2], head[2..], "{}", hex::encode(&raw));
        let signed = check(&raw, &unsigned).expect("as wished");
        assert_eq!(signed.hash, alloy_primitives::keccak256(&raw));
        assert_eq!(read(&raw), Ok(unsigned));
        assert!(read(&raw[..raw.len() - 1]).is_err());
    }

    /// A wish that differs in one part. The second is signed in place of the first.
    fn others(wish: &Unsigned) -> Vec<(&'static str, Unsigned)> {
        let with = |change: fn(&mut Unsigned)| {
            let mut other = wish.clone();
            change(&mut other);
            other
        };
        vec![
            ("chain id", with(|it| it.chain_id += 1)),
            ("nonce", with(|it| it.nonce += 1)),
            ("gas", with(|it| it.gas += 1)),
            (
                if wish.is_legacy { "gas price" } else { "max fee" },
                with(|it| it.price.max_fee += 1),
            ),
            ("to", with(|it| it.to = SENDER)),
            ("value", with(|it| it.value += U256::from(1))),
            ("data", with(|it| it.data = Bytes::from_static(&[0]))),
            ("type", with(|it| it.is_legacy = !it.is_legacy)),
        ]
    }

    fn refusal(raw: &[u8], wish: &Unsigned) -> String {
        match check(raw, wish) {
            Err(SignError::Mismatch(part)) => part,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_that_differs_in_any_part_is_refused() {
        for is_legacy in [true, false] {
            let wish = unsigned(is_legacy);
            for (part, other) in others(&wish) {
                assert_eq!(refusal(&sign(&other), &wish), part);
            }
            let foreign = Unsigned { signer: Address::repeat_byte(1), ..wish.clone() };
            assert_eq!(refusal(&sign(&wish), &foreign), "sender");
            let trailing = [&sign(&wish)[..], &[0]].concat();
            assert!(check(&trailing, &wish).is_err());
            assert!(check(&[], &wish).is_err());
        }
        let wish = unsigned(false);
        let mut tip = wish.clone();
        tip.price.max_tip += 1;
        assert_eq!(refusal(&sign(&tip), &wish), "max tip");
        // Without a chain id it is good on every chain.
        let mut old = type_0(&unsigned(true));
        old.chain_id = None;
        let signature = key().sign_prehash_recoverable(old.signature_hash().as_slice());
        let envelope = Envelope::Legacy(old.into_signed(signature.expect("signed").into()));
        assert_eq!(refusal(&envelope.encoded_2718(), &unsigned(true)), "chain id");
        let mut listed = type_2(&wish);
        listed.access_list.0.push(Default::default());
        let signature = key().sign_prehash_recoverable(listed.signature_hash().as_slice());
        let envelope = Envelope::Eip1559(listed.into_signed(signature.expect("signed").into()));
        assert_eq!(refusal(&envelope.encoded_2718(), &wish), "access list");
    }

    #[test]
    fn a_high_s_is_refused() {
        for is_legacy in [true, false] {
            let wish = unsigned(is_legacy);
            let hash = signature_hash(&wish);
            let low: Signature =
                key().sign_prehash_recoverable(hash.as_slice()).expect("signed").into();
            assert!(low.normalize_s().is_none(), "the key signs low");
            let order = U256::from_be_bytes(hex!(
                "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"
            ));
            let high = Signature::new(low.r(), order - low.s(), !low.v());
            assert_eq!(refusal(&encode(&wish, high), &wish), "signature");
        }
    }

    /// Goal: no byte of an answer may change unseen. Method: flip each bit of it.
    #[test]
    fn no_flipped_bit_passes() {
        for is_legacy in [true, false] {
            let wish = unsigned(is_legacy);
            let raw = sign(&wish);
            for bit in 0..raw.len() * 8 {
                let mut flipped = raw.to_vec();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(check(&flipped, &wish).is_err(), "bit {bit}");
            }
        }
    }
}
