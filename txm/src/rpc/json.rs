//! Calls as JSON-RPC 2.0, and their answers read back strictly. An answer of a wrong shape, or of
//! another thing than was asked, is [`RpcError::Unknown`].

use std::collections::HashMap;

use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use chain::view::BlockRef;
use serde_json::{Map, Value, json};

use super::{
    Block, BlockAt, ReceiptLog, ReceiptRead, RpcCall, RpcError, RpcValue, TransactionRead, hex,
};

/// The selector of `balanceOf(address)`.
const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
/// The last blocks that an endpoint is asked for tips of.
const TIP_BLOCKS: u64 = 10;
/// The most topics of a log, by the EVM.
const TOPICS_MAX: usize = 4;

impl RpcCall {
    /// The method's name.
    pub fn method(&self) -> &'static str {
        match self {
            RpcCall::ChainId => "eth_chainId",
            RpcCall::Block(BlockAt::Hash(_)) => "eth_getBlockByHash",
            RpcCall::Block(_) => "eth_getBlockByNumber",
            RpcCall::Count(..) => "eth_getTransactionCount",
            RpcCall::Send(_) => "eth_sendRawTransaction",
            RpcCall::Receipt(_) => "eth_getTransactionReceipt",
            RpcCall::Transaction(_) | RpcCall::Raw(_) => "eth_getTransactionByHash",
            RpcCall::BySenderAndNonce(..) => "eth_getTransactionBySenderAndNonce",
            RpcCall::Estimate { .. } => "eth_estimateGas",
            RpcCall::Balance(_) => "eth_getBalance",
            RpcCall::TokenBalance { .. } => "eth_call",
            RpcCall::CodeLength(_) => "eth_getCode",
            RpcCall::Tip => "eth_feeHistory",
        }
    }

    fn params(&self) -> Value {
        match self {
            RpcCall::ChainId => json!([]),
            RpcCall::Block(BlockAt::Hash(hash)) => json!([hash.to_string(), false]),
            RpcCall::Block(at) => json!([block_name(*at), false]),
            RpcCall::Count(account, at) => json!([account_text(account), block_name(*at)]),
            RpcCall::Send(raw) => json!([raw.to_string()]),
            RpcCall::Receipt(hash) | RpcCall::Transaction(hash) | RpcCall::Raw(hash) => {
                json!([hash.to_string()])
            }
            RpcCall::BySenderAndNonce(account, nonce) => {
                json!([account_text(account), quantity(*nonce)])
            }
            RpcCall::Estimate { from, to, value, data } => json!([{
                "from": account_text(from),
                "to": account_text(to),
                "value": format!("{value:#x}"),
                "data": data.to_string(),
            }]),
            RpcCall::Balance(account) | RpcCall::CodeLength(account) => {
                json!([account_text(account), "latest"])
            }
            RpcCall::TokenBalance { contract, account } => {
                let data = [BALANCE_OF.as_slice(), account.into_word().as_slice()].concat();
                let data = alloy_primitives::hex::encode_prefixed(data);
                json!([{ "to": account_text(contract), "data": data }, "latest"])
            }
            RpcCall::Tip => json!([quantity(TIP_BLOCKS), "latest", [50]]),
        }
    }

    /// The request with an id.
    pub(super) fn request(&self, id: u64) -> Value {
        request(id, self.method(), self.params())
    }

    /// Reads the result of this call.
    fn read(&self, result: &Value) -> Result<RpcValue, RpcError> {
        let read = match self {
            RpcCall::ChainId | RpcCall::Count(..) | RpcCall::Estimate { .. } => {
                hex::u64(result).map(RpcValue::Number)
            }
            RpcCall::Block(at) => optional(result, |value| block(value, *at)).map(RpcValue::Block),
            RpcCall::Send(_) => hex::hash(result).map(RpcValue::Hash),
            RpcCall::Receipt(hash) => receipt(result, *hash).map(RpcValue::Receipt),
            RpcCall::Transaction(hash) => {
                let fits = |read: &TransactionRead| read.hash == *hash;
                optional(result, |value| transaction(value).filter(fits)).map(RpcValue::Transaction)
            }
            RpcCall::Raw(_) if result.is_null() => Some(RpcValue::Transaction(None)),
            RpcCall::Raw(hash) => {
                // Bytes with another hash tell nothing: a field was not shown as it is.
                let fits = |raw: &Bytes| keccak256(raw) == *hash;
                super::raw::bytes(result)
                    .filter(|raw| raw.as_ref().is_none_or(fits))
                    .map(RpcValue::Raw)
            }
            RpcCall::BySenderAndNonce(from, nonce) => {
                let fits = |read: &TransactionRead| read.from == *from && read.nonce == *nonce;
                optional(result, |value| transaction(value).filter(fits)).map(RpcValue::Transaction)
            }
            RpcCall::Balance(_) => hex::u256(result).map(RpcValue::Amount),
            RpcCall::TokenBalance { .. } => {
                hex::hash(result).map(|word| RpcValue::Amount(U256::from_be_bytes(word.0)))
            }
            RpcCall::CodeLength(_) => {
                let length = hex::data(result).and_then(|code| u64::try_from(code.len()).ok());
                length.map(RpcValue::Number)
            }
            RpcCall::Tip => tip(result).map(RpcValue::Amount),
        };
        read.ok_or_else(|| unknown(format!("{} answered what it does not mean", self.method())))
    }
}

/// A request of JSON-RPC 2.0.
pub(crate) fn request(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

/// The answers to calls with the ids from `first` up, from the body of one response: an object for
/// one call, a list in any order for more.
pub(super) fn answers(
    calls: &[RpcCall],
    first: u64,
    body: Value,
) -> Vec<Result<RpcValue, RpcError>> {
    let mut by_id: HashMap<u64, Result<Value, RpcError>> = HashMap::new();
    let told = match body {
        Value::Array(told) if calls.len() != 1 => told,
        one @ Value::Object(_) if calls.len() == 1 => vec![one],
        _ => Vec::new(),
    };
    for answer in told {
        let Some((id, outcome)) = outcome(answer) else { continue };
        let doubled = || Err(unknown(format!("two answers have the id {id}")));
        by_id.entry(id).and_modify(|known| *known = doubled()).or_insert(outcome);
    }
    let ids = (0_u64..).map(|index| first.wrapping_add(index));
    let answer = |(call, id): (&RpcCall, u64)| {
        let missing = || unknown("no answer has this call's id".to_owned());
        call.read(&by_id.remove(&id).ok_or_else(missing)??)
    };
    calls.iter().zip(ids).map(answer).collect()
}

/// The id and the result, or the error, of one answer; `None`: it has no id of ours.
pub(crate) fn outcome(answer: Value) -> Option<(u64, Result<Value, RpcError>)> {
    let Value::Object(mut answer) = answer else { return None };
    let id = answer.get("id")?.as_u64()?;
    let version = answer.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    let error = answer.remove("error").filter(|error| !error.is_null());
    let result = answer.remove("result");
    let outcome = match (result, error) {
        _ if !version => Err(unknown("not JSON-RPC 2.0".to_owned())),
        (Some(result), None) => Ok(result),
        (None | Some(Value::Null), Some(error)) => Err(said(&error)),
        (Some(_), Some(_)) => Err(unknown("a result and an error".to_owned())),
        (None, None) => Err(unknown("neither a result nor an error".to_owned())),
    };
    Some((id, outcome))
}

/// An error that was said. Its data is a text, or an object with a text.
fn said(error: &Value) -> RpcError {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let code = error.get("code").and_then(Value::as_i64);
    let message = error.get("message").and_then(text);
    let (Some(code), Some(message)) = (code, message) else {
        return unknown("an error without a number or words".to_owned());
    };
    let data = error.get("data");
    let data = data.and_then(|data| text(data).or_else(|| data.get("message").and_then(text)));
    RpcError::Said { code, message, data }
}

fn unknown(words: String) -> RpcError {
    RpcError::Unknown(words)
}

fn account_text(account: &Address) -> String {
    chain::payload::address_text(account)
}

pub(crate) fn quantity(number: u64) -> String {
    format!("{number:#x}")
}

fn block_name(at: BlockAt) -> Value {
    match at {
        BlockAt::Latest => json!("latest"),
        BlockAt::Pending => json!("pending"),
        BlockAt::Safe => json!("safe"),
        BlockAt::Finalized => json!("finalized"),
        BlockAt::Number(number) => json!(quantity(number)),
        // A block that has left the chain must be an error: its count would be another chain's.
        BlockAt::Hash(hash) => {
            json!({ "blockHash": hash.to_string(), "requireCanonical": true })
        }
    }
}

/// Null is nothing; anything else must be read.
fn optional<T>(value: &Value, read: impl FnOnce(&Value) -> Option<T>) -> Option<Option<T>> {
    if value.is_null() { Some(None) } else { read(value).map(Some) }
}

fn block(value: &Value, asked: BlockAt) -> Option<Block> {
    let number = hex::u64(value.get("number")?)?;
    let hash = hex::hash(value.get("hash")?)?;
    let parent = hex::hash(value.get("parentHash")?)?;
    // Chains from before EIP-1559 have no base fee.
    let base_fee = value.get("baseFeePerGas").filter(|fee| !fee.is_null());
    let base_fee = base_fee.map_or(Some(0), hex::u128)?;
    let fits = match asked {
        BlockAt::Number(at) => at == number,
        BlockAt::Hash(at) => at == hash,
        BlockAt::Latest | BlockAt::Pending | BlockAt::Safe | BlockAt::Finalized => true,
    };
    let at = BlockRef { number, hash, parent };
    (fits && parent != hash).then_some(Block { at, base_fee })
}

fn receipt(value: &Value, asked: B256) -> Option<Option<Box<ReceiptRead>>> {
    // Some endpoints show a receipt without a block for a transaction of their pool.
    if value.is_null() || value.get("blockHash").is_some_and(Value::is_null) {
        return Some(None);
    }
    let hash = hex::hash(value.get("transactionHash")?).filter(|hash| *hash == asked)?;
    let block_hash = hex::hash(value.get("blockHash")?)?;
    let is_success = match value.get("status")?.as_str()? {
        "0x1" => true,
        "0x0" => false,
        _ => return None,
    };
    let logs = value.get("logs")?.as_array()?;
    let logs = logs.iter().map(|value| log(value, hash, block_hash)).collect::<Option<Vec<_>>>()?;
    Some(Some(Box::new(ReceiptRead {
        hash,
        from: hex::address(value.get("from")?)?,
        block_number: hex::u64(value.get("blockNumber")?)?,
        block_hash,
        is_success,
        gas_used: hex::u64(value.get("gasUsed")?)?,
        gas_price: hex::u128(value.get("effectiveGasPrice")?)?,
        logs,
    })))
}

/// A log. One of another transaction or block, or one that was taken back, spoils its receipt.
fn log(value: &Value, transaction: B256, block: B256) -> Option<ReceiptLog> {
    let is =
        |name: &str, hash: B256| value.get(name).is_none_or(|value| hex::hash(value) == Some(hash));
    let removed = value.get("removed").and_then(Value::as_bool).unwrap_or(false);
    if removed || !is("transactionHash", transaction) || !is("blockHash", block) {
        return None;
    }
    let topics = value.get("topics")?.as_array()?;
    let topics = topics.iter().map(hex::hash).collect::<Option<Vec<_>>>()?;
    (topics.len() <= TOPICS_MAX).then_some(ReceiptLog {
        contract: hex::address(value.get("address")?)?,
        topics,
        data: hex::data(value.get("data")?)?,
    })
}

fn transaction(value: &Value) -> Option<TransactionRead> {
    let object: &Map<String, Value> = value.as_object()?;
    let part = |name: &str| object.get(name).filter(|value| !value.is_null());
    let block = match (part("blockNumber"), part("blockHash")) {
        (None, None) => None,
        (Some(number), Some(hash)) => Some((hex::u64(number)?, hex::hash(hash)?)),
        _ => return None,
    };
    Some(TransactionRead {
        hash: hex::hash(part("hash")?)?,
        from: hex::address(part("from")?)?,
        nonce: hex::u64(part("nonce")?)?,
        block,
    })
}

/// The middle one of the blocks' middle tips.
fn tip(value: &Value) -> Option<U256> {
    let blocks = value.get("reward")?.as_array()?.iter();
    let tips = blocks.map(|block| hex::u128(block.as_array()?.first()?));
    super::look::median(tips.collect::<Option<Vec<_>>>()?).map(U256::from)
}
