//! The body of a transaction, as its client asks for it: addresses, values and data, checked and in
//! one form, so that a repeat of it compares as a value.

use alloy_primitives::{Address, B256, Bytes, U256};

/// The longest data of a transaction, bytes.
pub const DATA_BYTES_MAX: usize = 32 * 1024;
/// The gas of a plain transfer to an account without code.
pub const TRANSFER_GAS: u64 = 21_000;

/// A text that is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Not `0x` and 40 hexadecimal digits.
    #[error("an address is 0x and 40 hexadecimal digits")]
    Form,
    /// Letters of both cases, and they are not its checksum (EIP-55).
    #[error("its mixed case is not the checksum of EIP-55")]
    Checksum,
}

/// Reads an address: in one case, or in mixed case with a right checksum.
///
/// # Errors
/// [`AddressError`].
pub fn address(text: &str) -> Result<Address, AddressError> {
    let digits = text.strip_prefix("0x").ok_or(AddressError::Form)?;
    let plain = digits.len() == 40 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let read = text.parse::<Address>().ok().filter(|_| plain).ok_or(AddressError::Form)?;
    let lower = digits.bytes().any(|byte| byte.is_ascii_lowercase());
    let upper = digits.bytes().any(|byte| byte.is_ascii_uppercase());
    if lower && upper && read.to_checksum(None) != text {
        return Err(AddressError::Checksum);
    }
    Ok(read)
}

/// The form in which an address is stored and compared: lower case.
pub fn address_text(address: &Address) -> String {
    format!("{address:#x}")
}

/// A number that is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a value is a whole number below 2^256, in decimal digits or in hexadecimal ones behind 0x"
)]
pub struct ValueError;

/// Reads a value in wei or in a token's smallest units: decimal, or `0x` and hexadecimal digits.
///
/// # Errors
/// [`ValueError`]: a sign, a fraction, an exponent, or beyond 256 bits.
pub fn value(text: &str) -> Result<U256, ValueError> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let plain = !digits.is_empty() && digits.bytes().all(|byte| char::from(byte).is_digit(radix));
    U256::from_str_radix(digits, u64::from(radix)).ok().filter(|_| plain).ok_or(ValueError)
}

/// A transfer of a token (ERC-20).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenTransfer {
    /// The token.
    pub contract: Address,
    /// How much, in the token's smallest units. Above 0.
    pub amount: U256,
}

/// The wish of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxPayload {
    /// The payee.
    pub to: Address,
    /// Wei. 0 with a token.
    pub value: U256,
    /// The data of a call; empty with a token.
    pub data: Bytes,
    /// The transfer of a token to the payee.
    pub token: Option<TokenTransfer>,
    /// The gas limit; `None`: estimated.
    pub gas: Option<u64>,
}

/// The selector of `transfer(address,uint256)`.
const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb];
/// The selector of `balanceOf(address)`.
pub const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];

impl TxPayload {
    /// The address, value and data of its transaction.
    pub fn call(&self) -> (Address, U256, Bytes) {
        match &self.token {
            None => (self.to, self.value, self.data.clone()),
            Some(token) => {
                let mut data = Vec::with_capacity(68);
                data.extend(TRANSFER);
                data.extend(self.to.into_word());
                data.extend(token.amount.to_be_bytes::<32>());
                (token.contract, U256::ZERO, data.into())
            }
        }
    }

    /// The question for an account's balance of a token, as a call.
    pub fn of_balance(contract: Address, account: Address) -> TxPayload {
        let data = [BALANCE_OF.as_slice(), account.into_word().as_slice()].concat();
        TxPayload { to: contract, value: U256::ZERO, data: data.into(), token: None, gas: None }
    }

    /// The payload of a call that is known by its address, value and data. A transfer of a token is
    /// read as one, with its payee; the gas limit is left to the caller.
    pub fn of_call(contract: Address, value: U256, data: Bytes) -> TxPayload {
        let plain = TxPayload { to: contract, value, data, token: None, gas: None };
        let transfer = |data: &Bytes| {
            let words = data.strip_prefix(&TRANSFER).filter(|words| words.len() == 64)?;
            let to = Address::from_word(B256::from_slice(&words[..32]));
            let amount = U256::from_be_slice(&words[32..]);
            let token = Some(TokenTransfer { contract, amount });
            let read = TxPayload { to, value, data: Bytes::new(), token, gas: None };
            // Bits beyond an address would be lost.
            (!amount.is_zero() && value.is_zero() && read.call().2 == *data).then_some(read)
        };
        transfer(&plain.data).unwrap_or(plain)
    }

    /// One text for each body: a repeat of a request must equal it.
    pub fn fingerprint(&self) -> String {
        let TxPayload { to, value, data, token, gas } = self;
        let token = token.as_ref().map_or(String::new(), |token| {
            format!("{}:{}", address_text(&token.contract), token.amount)
        });
        let gas = gas.map_or(String::new(), |gas| gas.to_string());
        format!("{}|{value}|{data}|{token}|{gas}", address_text(to))
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::hex;

    use super::*;

    const LOWER: &str = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    const MIXED: &str = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed";

    #[test]
    fn a_call_is_read_as_the_payload_that_makes_it() {
        let to = Address::repeat_byte(2);
        let plain =
            TxPayload { to, value: U256::from(5), data: Bytes::new(), token: None, gas: None };
        let token = TokenTransfer { contract: Address::repeat_byte(3), amount: U256::from(7) };
        let token = TxPayload { value: U256::ZERO, token: Some(token), ..plain.clone() };
        for payload in [plain, token.clone()] {
            let (to, value, data) = payload.call();
            assert_eq!(TxPayload::of_call(to, value, data), payload);
        }
        // Not exactly a transfer: the data stay as they are.
        let (contract, _, data) = token.call();
        let longer: Bytes = [&data[..], &[0]].concat().into();
        let mut dirty = data.to_vec();
        dirty[4] = 1;
        for (value, data) in [(0, longer), (0, dirty.into()), (1, data)] {
            let read = TxPayload::of_call(contract, U256::from(value), data.clone());
            assert_eq!((read.token, read.to, read.data), (None, contract, data));
        }
    }

    #[test]
    fn an_address_is_read_in_one_case_or_with_its_checksum() {
        let read = address(LOWER).expect("an address");
        assert_eq!(address(MIXED), Ok(read));
        assert_eq!(address(&format!("0x{}", LOWER[2..].to_uppercase())), Ok(read));
        assert_eq!(address_text(&read), LOWER);
        assert_eq!(address(&MIXED.replace("aA", "Aa")), Err(AddressError::Checksum));
        for bad in ["", "0x", &LOWER[2..], &LOWER[..41], &format!("{LOWER}0"), "0xg"] {
            assert_eq!(address(bad), Err(AddressError::Form), "{bad}");
        }
    }

    #[test]
    fn a_value_is_a_whole_number_of_256_bits() {
        assert_eq!(value("0"), Ok(U256::ZERO));
        assert_eq!(value("0xff"), Ok(U256::from(255)));
        assert_eq!(value(&U256::MAX.to_string()), Ok(U256::MAX));
        let beyond = format!("{}0", U256::MAX);
        for bad in ["", "0x", "-1", "+1", "1.0", "1e3", "1_0", " 1", "0xgg", &beyond] {
            assert_eq!(value(bad), Err(ValueError), "{bad}");
        }
    }

    #[test]
    fn a_token_is_a_call_of_its_contract() {
        let (to, contract) = (address(MIXED).expect("one"), Address::repeat_byte(7));
        let token = Some(TokenTransfer { contract, amount: U256::from(5) });
        let payload =
            TxPayload { to, value: U256::ZERO, data: Bytes::new(), token, gas: Some(60_000) };
        let (called, value, data) = payload.call();
        assert_eq!((called, value), (contract, U256::ZERO));
        let expected = format!("a9059cbb{:0>64}{:0>64}", &LOWER[2..], "5");
        assert_eq!(hex::encode(data), expected);
        let plain = TxPayload { token: None, ..payload.clone() };
        assert_ne!(plain.fingerprint(), payload.fingerprint());
        assert_eq!(plain.call().0, to);
    }
}
