//! The bodies that clients and operators of a node send, read strictly: an unknown or repeated
//! field, a number in the place of a text, and every value out of its form is refused.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, Bytes, U256, hex};
use chain::payload::{self, DATA_BYTES_MAX, TRANSFER_GAS, TokenTransfer, TxPayload};
use chain::tx::{FILL_PREFIX, NewTx};
use jiff::Timestamp;
use serde::Deserialize;
use utoipa::ToSchema;

use crate::http::refusal::{Refusal, invalid};
use crate::http::schema::{ChainAccountText, ChainKeyText, ChainValueText};
use crate::postgres::txm::details::Verdict;
use crate::postgres::txm::reads::QUERY_MAX;
use domain::code::Code;

/// The longest requestId and businessKey, bytes.
const KEY_BYTES_MAX: usize = 128;
/// The beginning of the ids of the program's own rows.
const OWN_PREFIX: &str = FILL_PREFIX;
/// The deadlines that every reader of times takes, ms: the years 1970 to 9999, in UTC.
const DEADLINES_MS: std::ops::Range<i64> = 0..253_402_300_800_000;
/// The word for a transaction that gets its nonce later.
const LATER: &str = "later";

/// The body of `POST /api/v1/tx`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = ChainTxRequest)]
pub(super) struct TxDraft {
    #[schema(value_type = ChainAccountText)]
    signer: String,
    #[schema(value_type = ChainKeyText)]
    request_id: String,
    payload: PayloadDraft,
    #[schema(value_type = Option<ChainKeyText>)]
    business_key: Option<String>,
    #[schema(pattern = "^later$")]
    nonce: Option<String>,
    #[schema(format = DateTime)]
    deadline: Option<String>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PayloadRequest)]
struct PayloadDraft {
    #[schema(value_type = ChainAccountText)]
    to: String,
    #[schema(value_type = Option<ChainValueText>)]
    value: Option<String>,
    #[schema(max_length = 65538, pattern = "^0x([0-9a-fA-F]{2})*$")]
    data: Option<String>,
    #[schema(minimum = 21000)]
    gas: Option<u64>,
    token: Option<TokenDraft>,
}

#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TokenRequest)]
struct TokenDraft {
    #[schema(value_type = ChainAccountText)]
    contract: String,
    #[schema(value_type = ChainValueText)]
    amount: String,
}

/// The name of a request: the body of a cancel, and an element of a query.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = ChainTxName)]
pub(super) struct RequestDraft {
    #[schema(value_type = ChainAccountText)]
    signer: String,
    #[schema(value_type = ChainKeyText)]
    request_id: String,
}

/// The body of `POST /api/v1/tx/query`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChainTxNames)]
pub(super) struct QueryDraft {
    #[schema(min_items = 1, max_items = 100)]
    requests: Vec<RequestDraft>,
}

/// The body of an operator's command.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Reason)]
pub(super) struct ReasonDraft {
    /// For the audit.
    #[schema(min_length = 1, max_length = 500, pattern = "^[ -~]+$")]
    pub(super) reason: String,
}

/// The body of `resolve`: a hash to look at, or a verdict.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ResolveDraft {
    /// For the audit.
    pub(super) reason: String,
    /// The transaction that may have the nonce.
    pub(super) hash: Option<String>,
    /// Whether an unproven one counts as paid.
    pub(super) paid: Option<bool>,
}

/// The body of `suspend` and `resume`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuspensionDraft {
    /// For the audit.
    pub(super) reason: String,
    /// The suspension; absent: the operators' own.
    pub(super) suspension: Option<String>,
}

/// The body of `adopt`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdoptDraft {
    /// For the audit.
    pub(super) reason: String,
    #[serde(default)]
    foreign: BTreeMap<String, String>,
    /// The transactions that get their rows.
    #[serde(default)]
    pub(super) import: Vec<ImportDraft>,
    /// The requests without a nonce that are paid.
    #[serde(default)]
    pub(super) pay: Vec<String>,
    /// Those that are ended.
    #[serde(default)]
    pub(super) drop: Vec<String>,
    /// The verdict on the others.
    pub(super) rest: Option<Verdict>,
}

/// A mined transaction of ours that no row has, and the request that it pays.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ImportDraft {
    hash: String,
    request_id: String,
    business_key: Option<String>,
    /// The request named its gas limit. It is the transaction's.
    #[serde(default)]
    pub(super) gas: bool,
    /// The request named the data of a token's transfer instead of the token.
    #[serde(default)]
    pub(super) data: bool,
}

impl ImportDraft {
    /// The hash, the client's id, and the business key.
    ///
    /// # Errors
    /// INVALID_REQUEST.
    pub(super) fn names(&self) -> Result<(B256, String, Option<String>), Refusal> {
        let hash = self.hash.parse::<B256>();
        let hash = hash.map_err(|_| invalid("import.hash is not 0x and 64 digits."))?;
        let business = self.business_key.clone();
        let business = business.map(|text| key("import.businessKey", text)).transpose()?;
        Ok((hash, request_id(self.request_id.clone())?, business))
    }
}

/// The body of `fill` of a signer: a nonce that a jump passed over.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FillDraft {
    /// For the audit.
    pub(super) reason: String,
    /// The nonce.
    pub(super) nonce: u64,
}

impl AdoptDraft {
    /// Each nonce that no row has, with the hash of its transaction.
    ///
    /// # Errors
    /// INVALID_REQUEST.
    pub(super) fn foreign(&self) -> Result<BTreeMap<u64, B256>, Refusal> {
        let pair =
            |(nonce, hash): (&String, &String)| Some((nonce.parse().ok()?, hash.parse().ok()?));
        let pairs: Option<BTreeMap<u64, B256>> = self.foreign.iter().map(pair).collect();
        pairs.ok_or_else(|| invalid("foreign must be hashes by nonce."))
    }
}

/// The body of `POST /admin/v1/signers`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignerDraft {
    /// Its address.
    pub(super) signer: String,
    /// `keystore` or `remote`.
    pub(super) kind: String,
    /// For the audit.
    pub(super) reason: String,
}

impl TxDraft {
    /// The request, and whether it gets its nonce later. `gas_max`: the highest gas limit.
    ///
    /// # Errors
    /// INVALID_ADDRESS, INVALID_AMOUNT, INVALID_REQUEST; the sentence names the field.
    pub(super) fn read(self, gas_max: u64) -> Result<(NewTx, bool), Refusal> {
        let signer = address("signer", &self.signer)?;
        let request_id = request_id(self.request_id)?;
        let business_key = self.business_key.map(|text| key("businessKey", text)).transpose()?;
        let later = match self.nonce.as_deref() {
            None => false,
            Some(LATER) => true,
            Some(_) => return Err(invalid("nonce must be \"later\", or absent.")),
        };
        let deadline = self.deadline.map(|text| text.parse::<Timestamp>()).transpose();
        let deadline = deadline.map_err(|_| {
            invalid("deadline must be a time as in RFC 3339, such as 2026-01-31T12:00:00Z.")
        })?;
        let deadline_ms = deadline.map(Timestamp::as_millisecond);
        if deadline_ms.is_some_and(|ms| !DEADLINES_MS.contains(&ms)) {
            return Err(invalid("deadline must be in the years 1970 to 9999."));
        }
        let payload = self.payload.read(gas_max)?;
        Ok((NewTx { signer, request_id, business_key, payload, gas: None, deadline_ms }, later))
    }
}

impl PayloadDraft {
    fn read(self, gas_max: u64) -> Result<TxPayload, Refusal> {
        let to = address("payload.to", &self.to)?;
        let value = match (&self.value, &self.token) {
            (Some(text), _) => wei("payload.value", text)?,
            (None, Some(_)) => U256::ZERO,
            (None, None) => return Err(invalid("payload.value is missing.")),
        };
        let data = self.data.map_or(Ok(Bytes::new()), |text| data(&text))?;
        let token = self.token.map(TokenDraft::read).transpose()?;
        if token.is_some() && (!value.is_zero() || !data.is_empty()) {
            return Err(invalid("With payload.token neither a value nor data may be given."));
        }
        if let Some(gas) = self.gas.filter(|gas| !(TRANSFER_GAS..=gas_max).contains(gas)) {
            return Err(invalid(format!(
                "payload.gas is {gas}; it must be {TRANSFER_GAS} to {gas_max}."
            )));
        }
        Ok(TxPayload { to, value, data, token, gas: self.gas })
    }
}

impl TokenDraft {
    fn read(self) -> Result<TokenTransfer, Refusal> {
        let contract = address("payload.token.contract", &self.contract)?;
        let amount = wei("payload.token.amount", &self.amount)?;
        if amount.is_zero() {
            let message = "payload.token.amount must be above 0.";
            return Err(Refusal::because(Code::InvalidAmount, message));
        }
        Ok(TokenTransfer { contract, amount })
    }
}

impl RequestDraft {
    /// The signer and the id.
    ///
    /// # Errors
    /// INVALID_ADDRESS, INVALID_REQUEST.
    pub(super) fn read(self) -> Result<(Address, String), Refusal> {
        Ok((address("signer", &self.signer)?, request_id(self.request_id)?))
    }
}

impl QueryDraft {
    /// The names, in their order.
    ///
    /// # Errors
    /// As [`RequestDraft::read`]; INVALID_REQUEST: none, or too many.
    pub(super) fn read(self) -> Result<Vec<(Address, String)>, Refusal> {
        if !(1..=QUERY_MAX).contains(&self.requests.len()) {
            return Err(invalid(format!("requests must be 1 to {QUERY_MAX}.")));
        }
        self.requests.into_iter().map(RequestDraft::read).collect()
    }
}

/// An address of a field.
///
/// # Errors
/// INVALID_ADDRESS, naming the field.
pub(super) fn address(field: &str, text: &str) -> Result<Address, Refusal> {
    payload::address(text)
        .map_err(|why| Refusal::because(Code::InvalidAddress, format!("{field}: {why}.")))
}

/// A client's id: 1 to 128 of `A-Za-z0-9_.:/-`, and not one of the program's own.
///
/// # Errors
/// INVALID_REQUEST.
pub(super) fn request_id(text: String) -> Result<String, Refusal> {
    let id = key("requestId", text)?;
    match id.starts_with(OWN_PREFIX) {
        true => Err(invalid(format!("requestId must not begin with {OWN_PREFIX}."))),
        false => Ok(id),
    }
}

/// A key of a client: 1 to 128 of `A-Za-z0-9_.:/-`.
///
/// # Errors
/// INVALID_REQUEST, naming the field.
pub(super) fn key(field: &str, text: String) -> Result<String, Refusal> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
    if (1..=KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text);
    }
    Err(invalid(format!("{field} must be 1 to {KEY_BYTES_MAX} of A-Z a-z 0-9 _ . : / -")))
}

fn wei(field: &str, text: &str) -> Result<U256, Refusal> {
    payload::value(text).map_err(|why| invalid(format!("{field}: {why}.")))
}

/// The data of a call: `0x` and an even number of hexadecimal digits.
fn data(text: &str) -> Result<Bytes, Refusal> {
    let wrong = || invalid("payload.data must be 0x and an even number of hexadecimal digits.");
    let digits = text.strip_prefix("0x").ok_or_else(wrong)?;
    if digits.len() / 2 > DATA_BYTES_MAX {
        return Err(invalid(format!("payload.data must be at most {DATA_BYTES_MAX} bytes.")));
    }
    hex::decode(digits).map(Bytes::from).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::request::parse;

    const SIGNER: &str = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
    const GAS_MAX: u64 = 1_000_000;

    fn read(body: &str) -> Result<(NewTx, bool), Refusal> {
        parse::<TxDraft>(body.as_bytes())?.read(GAS_MAX)
    }

    fn code(body: &str) -> Code {
        read(body).expect_err(body).code
    }

    /// A body with these fields of the payload, and these behind it.
    fn body(payload: &str, rest: &str) -> String {
        format!(
            r#"{{"signer":"{SIGNER}","requestId":"a/1","payload":{{"to":"{SIGNER}",{payload}}}{rest}}}"#
        )
    }

    #[test]
    fn a_whole_body_is_read() {
        let rest = r#","businessKey":"w/1","nonce":"later","deadline":"2026-01-31T12:00:00Z""#;
        let (request, later) = read(&body(r#""value":"0xff","data":"0x00ff""#, rest)).expect("one");
        assert!(later);
        assert_eq!((request.request_id.as_str(), request.gas), ("a/1", None));
        assert_eq!(request.business_key.as_deref(), Some("w/1"));
        assert_eq!(request.deadline_ms, Some(1_769_860_800_000));
        assert_eq!(request.payload.value, U256::from(255));
        assert_eq!(request.payload.data[..], [0, 255]);
        let token = format!(r#""gas":21000,"token":{{"contract":"{SIGNER}","amount":"5"}}"#);
        let (request, later) = read(&body(&token, "")).expect("one");
        assert!(!later && request.payload.token.is_some());
        assert_eq!(request.payload.gas, Some(21_000));
        // A deadline needs no later nonce.
        let rest = r#","deadline":"1970-01-01T00:00:00Z""#;
        let (request, later) = read(&body(r#""value":"1""#, rest)).expect("one");
        assert_eq!((request.deadline_ms, later), (Some(0), false));
    }

    #[test]
    fn each_wrong_field_is_refused() {
        let value = r#""value":"1""#;
        let long = "a".repeat(129);
        let other = |id: &str| body(value, "").replace("a/1", id);
        for bad in [
            other(""),
            other(&long),
            other("a b"),
            other("é"),
            other("fill/7"),
            body(value, r#","unknown":1"#),
            body(value, r#","requestId":"b""#),
            body(r#""value":"1","value":"1""#, ""),
            body(value, r#","nonce":7"#),
            body(value, r#","nonce":"7""#),
            body(value, r#","deadline":1"#),
            body(value, r#","deadline":"tomorrow""#),
            body(value, r#","deadline":"1969-12-31T23:59:59.999Z""#),
            body(value, r#","deadline":"-000001-01-01T00:00:00Z""#),
            body(value, r#","deadline":"9999-12-31T23:59:59-01:00""#),
            body(value, r#","businessKey":"""#),
            body(r#""value":1"#, ""),
            body(r#""value":"-1""#, ""),
            body(r#""value":"1.5""#, ""),
            body(r#""value":"1e18""#, ""),
            body(&format!(r#""value":"{}0""#, U256::MAX), ""),
            body(r#""value":"1","data":"0x0""#, ""),
            body(r#""value":"1","data":"00""#, ""),
            body(r#""value":"1","data":"0xzz""#, ""),
            body(&format!(r#""value":"1","data":"0x{}""#, "00".repeat(DATA_BYTES_MAX + 1)), ""),
            body(r#""value":"1","gas":20999"#, ""),
            body(r#""value":"1","gas":1000001"#, ""),
            body(r#""value":"1","gas":"21000""#, ""),
            body(r#""value":"1","gas":21000.5"#, ""),
            body(&format!(r#""value":"1","token":{{"contract":"{SIGNER}","amount":"5"}}"#), ""),
            body(&format!(r#""token":{{"contract":"{SIGNER}","amount":"-5"}}"#), ""),
            format!(r#"{{"signer":"{SIGNER}","requestId":"a","payload":{{"value":"1"}}}}"#),
            format!(r#"{{"signer":"{SIGNER}","payload":{{"to":"{SIGNER}","value":"1"}}}}"#),
            body(r#""gas":21000"#, ""),
            "[]".to_owned(),
            "{".to_owned(),
        ] {
            assert_eq!(code(&bad), Code::InvalidRequest, "{bad}");
        }
        let zero = format!(r#""token":{{"contract":"{SIGNER}","amount":"0"}}"#);
        assert_eq!(code(&body(&zero, "")), Code::InvalidAmount);
        for (from, to) in
            [(SIGNER, "0x1"), (SIGNER, "me"), ("0x5aae", "0x5AaE"), ("\"to\":\"0x", "\"to\":\"0X")]
        {
            let bad = body(value, "").replace(from, to);
            assert_eq!(code(&bad), Code::InvalidAddress, "{bad}");
        }
    }

    #[test]
    fn a_query_names_a_hundred_requests_at_most() {
        let one = format!(r#"{{"signer":"{SIGNER}","requestId":"a"}}"#);
        let of =
            |count: usize| format!(r#"{{"requests":[{}]}}"#, vec![one.as_str(); count].join(","));
        let read = |count| parse::<QueryDraft>(of(count).as_bytes()).expect("JSON").read();
        assert_eq!(read(QUERY_MAX).expect("read").len(), QUERY_MAX);
        assert!(read(0).is_err() && read(QUERY_MAX + 1).is_err());
    }
}
