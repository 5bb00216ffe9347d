//! Rows to values and back. A row comes and goes as JSON, because one statement takes a whole batch
//! of them.

use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256};
use chain::class::SendClass;
use chain::decide::{EndpointAnswer, TxStep};
use chain::fee::GasPrice;
use chain::payload::{TokenTransfer, TxPayload, address_text};
use chain::state::{AttemptKind, TxState};
use chain::tx::{Attempt, FailCode, NewTx, Proof, SubState, Tx, TxId, TxReceipt, Wish};
use chain::view::BlockRef;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use txm::store::{CommandWish, TxCommand};
use uuid::Uuid;

use super::details::{AttemptDetails, TxDetails, TxImport, TxPassage};

/// A row that this version cannot read.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    /// Not in the form of its function.
    #[error("a row of the manager: {0}")]
    Json(#[from] serde_json::Error),
    /// A column holds a value that is none of its own.
    #[error("a row of the manager has no such {0}: {1}")]
    Value(&'static str, String),
}

const SUBS: [SubState; 13] = [
    SubState::WaitingFunds,
    SubState::Suspended,
    SubState::WaitingTurn,
    SubState::Blocked,
    SubState::Pending,
    SubState::Stale,
    SubState::Underpriced,
    SubState::Mined,
    SubState::Reorged,
    SubState::Cancelling,
    SubState::Filling,
    SubState::Unaccounted,
    SubState::Unproven,
];
const CODES: [FailCode; 7] = [
    FailCode::Refused,
    FailCode::Expired,
    FailCode::Reverted,
    FailCode::Cancelled,
    FailCode::Filled,
    FailCode::NonceTaken,
    FailCode::Unproven,
];
const WISHES: [Wish; 3] = [Wish::Pay, Wish::Cancel, Wish::Fill];
const PROOFS: [Proof; 4] = [Proof::Paid, Proof::Reverted, Proof::Unproven, Proof::Nothing];

/// The value with a number, of all values of a column.
fn numbered<T: Copy>(
    all: &[T],
    number: impl Fn(T) -> i16,
    what: &'static str,
    found: i16,
) -> Result<T, RowError> {
    let one = all.iter().copied().find(|one| number(*one) == found);
    one.ok_or_else(|| RowError::Value(what, found.to_string()))
}

fn sub(number: i16) -> Result<SubState, RowError> {
    numbered(&SUBS, |one| one as i16, "sub state", number)
}

fn code(number: i16) -> Result<FailCode, RowError> {
    numbered(&CODES, |one| one as i16, "code", number)
}

fn state(number: i16) -> Result<TxState, RowError> {
    numbered(&TxState::ALL, TxState::number, "state", number)
}

fn class(name: &str) -> Result<SendClass, RowError> {
    let found = SendClass::ALL.into_iter().find(|class| class.name() == name);
    found.ok_or_else(|| RowError::Value("class", name.to_owned()))
}

fn parsed<T: std::str::FromStr>(what: &'static str, text: &str) -> Result<T, RowError> {
    text.parse().map_err(|_unread| RowError::Value(what, text.to_owned()))
}

#[derive(Deserialize)]
struct TokenRow {
    contract: String,
    amount: String,
}

#[derive(Deserialize)]
struct PayloadRow {
    to: String,
    value: String,
    data: String,
    token: Option<TokenRow>,
    gas: Option<u64>,
}

#[derive(Deserialize)]
struct AttemptRow {
    number: u32,
    kind: i16,
    raw: String,
    hash: String,
    max_fee: String,
    max_tip: String,
    gas: u64,
    class: Option<String>,
    was_in_pool: bool,
}

#[derive(Deserialize)]
struct ReceiptRow {
    attempt: u32,
    hash: String,
    block_number: u64,
    block_hash: String,
    proof: i16,
    gas_used: u64,
    gas_price: String,
}

#[derive(Deserialize)]
struct BlockRow {
    number: u64,
    hash: String,
    parent: String,
}

#[derive(Deserialize)]
struct TxRow {
    id: IdText,
    signer: String,
    request_id: String,
    business_key: Option<String>,
    payload: PayloadRow,
    gas: Option<u64>,
    deadline_ms: Option<i64>,
    nonce: Option<u64>,
    state: i16,
    sub: Option<i16>,
    code: Option<i16>,
    refusal: Option<String>,
    wish: i16,
    version: u64,
    resends: u32,
    resubmit_in_ms: Option<u64>,
    sent_since_ms: Option<u64>,
    receipt: Option<ReceiptRow>,
    fork: u32,
    blocks: Vec<BlockRow>,
    cost: Option<String>,
    is_final: bool,
    attempts: Vec<AttemptRow>,
}

/// A UUID as text: the crate's own feature for serde is not built.
#[derive(Deserialize)]
#[serde(transparent)]
struct IdText(String);

/// The id in a text.
pub(super) fn tx_id(text: &str) -> Result<TxId, RowError> {
    Ok(TxId(parsed::<Uuid>("id", text)?))
}

/// The account in a text.
pub(super) fn account(text: &str) -> Result<Address, RowError> {
    parsed("address", text)
}

impl PayloadRow {
    fn payload(self) -> Result<TxPayload, RowError> {
        let token = self.token.map(|token| {
            let contract = account(&token.contract)?;
            Ok::<_, RowError>(TokenTransfer { contract, amount: parsed("amount", &token.amount)? })
        });
        Ok(TxPayload {
            to: account(&self.to)?,
            value: parsed::<U256>("value", &self.value)?,
            data: parsed::<Bytes>("data", &self.data)?,
            token: token.transpose()?,
            gas: self.gas,
        })
    }
}

impl AttemptRow {
    fn attempt(self) -> Result<Attempt, RowError> {
        let kind = numbered(&AttemptKind::ALL, AttemptKind::number, "kind", self.kind)?;
        let max_fee = parsed("price", &self.max_fee)?;
        Ok(Attempt {
            number: self.number,
            kind,
            raw: parsed("raw", &self.raw)?,
            hash: parsed("hash", &self.hash)?,
            price: GasPrice { max_fee, max_tip: parsed("price", &self.max_tip)? },
            gas: self.gas,
            class: self.class.as_deref().map(class).transpose()?,
            was_in_pool: self.was_in_pool,
        })
    }
}

impl ReceiptRow {
    fn receipt(self) -> Result<TxReceipt, RowError> {
        Ok(TxReceipt {
            attempt: self.attempt,
            hash: parsed("hash", &self.hash)?,
            block_number: self.block_number,
            block_hash: parsed("hash", &self.block_hash)?,
            proof: numbered(&PROOFS, |one| one as i16, "proof", self.proof)?,
            gas_used: self.gas_used,
            gas_price: parsed("price", &self.gas_price)?,
        })
    }
}

/// The receipt in a member of a body; null: there is none.
pub(super) fn receipt(member: &Value) -> Result<Option<TxReceipt>, RowError> {
    Option::<ReceiptRow>::deserialize(member)?.map(ReceiptRow::receipt).transpose()
}

impl BlockRow {
    fn block(self) -> Result<BlockRef, RowError> {
        let hash: B256 = parsed("hash", &self.hash)?;
        Ok(BlockRef { number: self.number, hash, parent: parsed("hash", &self.parent)? })
    }
}

impl TxRow {
    fn tx(self) -> Result<Tx, RowError> {
        let new = NewTx {
            signer: account(&self.signer)?,
            request_id: self.request_id,
            business_key: self.business_key,
            payload: self.payload.payload()?,
            gas: self.gas,
            deadline_ms: self.deadline_ms,
        };
        Ok(Tx {
            id: tx_id(&self.id.0)?,
            new,
            nonce: self.nonce,
            state: state(self.state)?,
            sub: self.sub.map(sub).transpose()?,
            code: self.code.map(code).transpose()?,
            refusal: self.refusal,
            wish: numbered(&WISHES, |one| one as i16, "wish", self.wish)?,
            version: self.version,
            attempts: self
                .attempts
                .into_iter()
                .map(AttemptRow::attempt)
                .collect::<Result<_, _>>()?,
            resends: self.resends,
            resubmit_in: self.resubmit_in_ms.map(Duration::from_millis),
            sent_since: self.sent_since_ms.map(Duration::from_millis),
            receipt: self.receipt.map(ReceiptRow::receipt).transpose()?,
            fork: self.fork,
            told: self.blocks.into_iter().map(BlockRow::block).collect::<Result<_, _>>()?,
            cost: self.cost.as_deref().map(|cost| parsed("cost", cost)).transpose()?,
            is_final: self.is_final,
        })
    }
}

/// The transaction in the text of `txm.tx_json`.
pub(super) fn tx(text: &str) -> Result<Tx, RowError> {
    serde_json::from_str::<TxRow>(text)?.tx()
}

#[derive(Deserialize)]
struct SaidRow {
    class: String,
    text: String,
}

#[derive(Deserialize)]
struct AttemptDetailsRow {
    signed_ms: i64,
    answered_ms: Option<i64>,
    answers: std::collections::BTreeMap<String, SaidRow>,
}

impl AttemptDetailsRow {
    fn details(self) -> Result<AttemptDetails, RowError> {
        let answers = self.answers.into_iter().map(|(endpoint, said)| {
            Ok(EndpointAnswer { endpoint, class: class(&said.class)?, text: said.text })
        });
        Ok(AttemptDetails {
            signed_ms: self.signed_ms,
            answered_ms: self.answered_ms,
            answers: answers.collect::<Result<_, RowError>>()?,
        })
    }
}

#[derive(Deserialize)]
struct PassageRow {
    from: Option<i16>,
    to: i16,
    sub: Option<i16>,
    code: Option<i16>,
    attempts: u32,
    at_ms: i64,
    node: String,
    token: u64,
}

impl PassageRow {
    fn passage(self) -> Result<TxPassage, RowError> {
        Ok(TxPassage {
            from: self.from.map(state).transpose()?,
            to: state(self.to)?,
            sub: self.sub.map(sub).transpose()?,
            code: self.code.map(code).transpose()?,
            attempts: self.attempts,
            at_ms: self.at_ms,
            node: self.node,
            token: self.token,
        })
    }
}

#[derive(Deserialize)]
struct DetailsRow {
    tx: TxRow,
    created_ms: i64,
    updated_ms: i64,
    confirmed_ms: Option<i64>,
    final_ms: Option<i64>,
    attempts: Vec<AttemptDetailsRow>,
    history: Vec<PassageRow>,
}

/// The transaction in the text of `txm.details_json`.
pub(super) fn details(text: &str) -> Result<TxDetails, RowError> {
    let row: DetailsRow = serde_json::from_str(text)?;
    let attempts = row.attempts.into_iter().map(AttemptDetailsRow::details);
    Ok(TxDetails {
        tx: row.tx.tx()?,
        created_ms: row.created_ms,
        updated_ms: row.updated_ms,
        confirmed_ms: row.confirmed_ms,
        final_ms: row.final_ms,
        attempts: attempts.collect::<Result<_, _>>()?,
        history: row.history.into_iter().map(PassageRow::passage).collect::<Result<_, _>>()?,
    })
}

#[derive(Deserialize)]
struct CommandRow {
    id: u64,
    tx: Option<String>,
    what: String,
    body: Value,
}

/// The command in the text of `txm.command_json`; `None`: it is not for an owner.
pub(super) fn command(text: &str) -> Result<Option<TxCommand>, RowError> {
    let row: CommandRow = serde_json::from_str(text)?;
    let wish = match row.what.as_str() {
        "resubmit" => CommandWish::Resubmit,
        "cancel" => CommandWish::Cancel,
        "fill" => CommandWish::Fill,
        "release" => CommandWish::Release,
        "fill-jumped" => match row.body["nonce"].as_u64() {
            Some(nonce) => CommandWish::FillJumped { nonce },
            None => return Err(RowError::Value("nonce", row.body.to_string())),
        },
        "hash" => {
            let hash = row.body["hash"].as_str().unwrap_or("");
            CommandWish::ResolveHash(parsed("hash", hash)?)
        }
        "resolve" => match row.body["is_paid"].as_bool() {
            Some(is_paid) => CommandWish::Resolve { is_paid },
            None => return Err(RowError::Value("verdict", row.body.to_string())),
        },
        _ => return Ok(None),
    };
    let tx = row.tx.as_deref().map(tx_id).transpose()?;
    Ok(Some(TxCommand { id: row.id, tx, wish }))
}

/// The name and the body under which a command is stored.
pub(super) fn command_parts(wish: &CommandWish) -> (&'static str, Value) {
    match wish {
        CommandWish::Resubmit => ("resubmit", json!({})),
        CommandWish::Cancel => ("cancel", json!({})),
        CommandWish::Fill => ("fill", json!({})),
        CommandWish::Release => ("release", json!({})),
        CommandWish::FillJumped { nonce } => ("fill-jumped", json!({ "nonce": nonce })),
        CommandWish::ResolveHash(hash) => ("hash", json!({ "hash": format!("{hash:#x}") })),
        CommandWish::Resolve { is_paid } => ("resolve", json!({ "is_paid": is_paid })),
    }
}

/// A request as `txm.create` and `txm.keep` take it.
pub(super) fn request(new: &NewTx) -> Value {
    let TxPayload { to, value, data, token, gas } = &new.payload;
    let token = token.as_ref().map(|token| {
        json!({ "contract": address_text(&token.contract), "amount": token.amount.to_string() })
    });
    json!({
        "request_id": new.request_id,
        "business_key": new.business_key,
        "fingerprint": new.payload.fingerprint(),
        "gas": new.gas,
        "deadline_ms": new.deadline_ms,
        "payload": {
            "to": address_text(to),
            "value": value.to_string(),
            "data": data.to_string(),
            "token": token,
            "gas": gas,
        },
    })
}

/// A mined transaction as `txm.imported` takes it.
pub(super) fn import(import: &TxImport) -> Value {
    let TxImport { new, raw, hash, price } = import;
    let mut row = request(new);
    row["attempt"] = json!({
        "raw": raw.to_string(),
        "hash": format!("{hash:#x}"),
        "max_fee": price.max_fee.to_string(),
        "max_tip": price.max_tip.to_string(),
    });
    row
}

fn attempt_json(attempt: &Attempt) -> Value {
    json!({
        "number": attempt.number,
        "kind": attempt.kind.number(),
        "raw": attempt.raw.to_string(),
        "hash": format!("{:#x}", attempt.hash),
        "max_fee": attempt.price.max_fee.to_string(),
        "max_tip": attempt.price.max_tip.to_string(),
        "gas": attempt.gas,
        "was_in_pool": attempt.was_in_pool,
    })
}

fn receipt_json(receipt: &TxReceipt) -> Value {
    json!({
        "attempt": receipt.attempt,
        "hash": format!("{:#x}", receipt.hash),
        "block_number": receipt.block_number,
        "block_hash": format!("{:#x}", receipt.block_hash),
        "proof": receipt.proof as i16,
        "gas_used": receipt.gas_used,
        "gas_price": receipt.gas_price.to_string(),
    })
}

fn block_json(block: &BlockRef) -> Value {
    json!({
        "number": block.number,
        "hash": format!("{:#x}", block.hash),
        "parent": format!("{:#x}", block.parent),
    })
}

/// A foreign text without control characters. PostgreSQL refuses a zero byte, and one answer of an
/// endpoint must not keep a step from being written.
pub(super) fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).collect()
}

/// The class and the answers of each attempt. An attempt whose class was never told is left out.
fn classes_json(step: &TxStep) -> Vec<Value> {
    let told = |attempt: &&Attempt| {
        let answered = step.answers.as_ref().is_some_and(|(number, _)| *number == attempt.number);
        answered || attempt.class.is_some() || attempt.was_in_pool
    };
    let row = |attempt: &Attempt| {
        let mut row = json!({
            "number": attempt.number,
            "class": attempt.class.map(SendClass::name),
            "was_in_pool": attempt.was_in_pool,
        });
        if let Some((number, answers)) = &step.answers
            && *number == attempt.number
        {
            let said = answers.iter().map(|answer| {
                let said = json!({ "class": answer.class.name(), "text": printable(&answer.text) });
                (printable(&answer.endpoint), said)
            });
            row["answers"] = Value::Object(said.collect::<Map<_, _>>());
        }
        row
    };
    step.tx.attempts.iter().filter(told).map(row).collect()
}

/// A step as `txm.write` takes it.
pub(super) fn step(step: &TxStep) -> Value {
    let tx = &step.tx;
    let newest = tx.attempts.last();
    let hash = tx.receipt.map(|receipt| receipt.hash).or(newest.map(|attempt| attempt.hash));
    let attempt = newest.filter(|_| step.is_new_attempt).map(attempt_json);
    let confirmed = step.confirmed.as_ref().map(|confirmed| {
        let blocks: Vec<Value> = confirmed.blocks.iter().map(block_json).collect();
        json!({ "new_fork": confirmed.new_fork, "blocks": blocks })
    });
    json!({
        "id": tx.id.to_string(),
        "version": tx.version.saturating_sub(1),
        "state": tx.state.number(),
        "sub": tx.sub.map(|sub| sub as i16),
        "code": tx.code.map(|code| code as i16),
        "refusal": tx.refusal.as_deref().map(printable),
        "wish": tx.wish as i16,
        "resends": tx.resends,
        "resubmit_in_ms": tx.resubmit_in.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        "submits": step.submits,
        "receipt": tx.receipt.as_ref().map(receipt_json),
        "fork": tx.fork,
        "cost": tx.cost.map(|cost| cost.to_string()),
        "is_final": tx.is_final,
        "tx_hash": hash.map(|hash| format!("{hash:#x}")),
        "attempts": tx.attempts.len(),
        "attempt": attempt,
        "classes": classes_json(step),
        "confirmed": confirmed,
    })
}
