//! JSON of chain transactions and signers, in the spelling of clients: camel case, values in wei as
//! text, times as in RFC 3339.

use alloy_primitives::U256;
use chain::decide::EndpointAnswer;
use chain::payload::{TxPayload, address_text};
use chain::tx::{FailCode, SubState, Tx, TxReceipt};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use txm::store::Suspension;
use utoipa::ToSchema;

use crate::http::schema::{
    AttemptKindName, ChainAccountText, ChainHashText, ChainKeyText, ChainStateName, ChainTxIdText,
    SendClassName, WeiText,
};
use crate::postgres::txm::details::{
    AttemptDetails, FeedCursor, FeedEvent, SignerRow, TxDetails, TxPassage,
};

/// A transaction in short: the answer to POST.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChainTx)]
pub(super) struct TxBody {
    #[schema(value_type = ChainTxIdText)]
    tx_id: String,
    nonce: Option<u64>,
    #[schema(value_type = ChainStateName)]
    state: &'static str,
    sub_state: Option<&'static str>,
    #[schema(value_type = Option<ChainHashText>)]
    tx_hash: Option<String>,
    attempts: usize,
    code: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    #[serde(rename = "final")]
    is_final: bool,
}

impl TxBody {
    /// A row in short.
    pub(super) fn new(tx: &Tx) -> TxBody {
        TxBody {
            tx_id: tx.id.to_string(),
            nonce: tx.nonce,
            state: tx.state.name(),
            sub_state: tx.sub.map(SubState::name),
            tx_hash: hash(tx),
            attempts: tx.attempts.len(),
            code: tx.code.map(FailCode::name),
            refusal: tx.refusal.clone(),
            is_final: tx.state.is_terminal(),
        }
    }
}

/// The hash that was mined, else that of the newest attempt.
fn hash(tx: &Tx) -> Option<String> {
    let mined = tx.receipt.map(|receipt| receipt.hash);
    mined.or(tx.attempts.last().map(|attempt| attempt.hash)).map(|hash| hash.to_string())
}

/// A transaction with everything that is kept of it.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChainTxDetail)]
pub(super) struct TxDetailBody {
    #[schema(value_type = ChainTxIdText)]
    tx_id: String,
    #[schema(value_type = ChainAccountText)]
    signer: String,
    #[schema(value_type = ChainKeyText)]
    request_id: String,
    #[schema(value_type = Option<ChainKeyText>)]
    business_key: Option<String>,
    payload: PayloadBody,
    gas: Option<u64>,
    nonce: Option<u64>,
    #[schema(value_type = ChainStateName)]
    state: &'static str,
    sub_state: Option<&'static str>,
    #[schema(value_type = Option<ChainHashText>)]
    tx_hash: Option<String>,
    code: Option<&'static str>,
    refusal: Option<String>,
    wish: &'static str,
    #[serde(rename = "final")]
    is_final: bool,
    attempts: Vec<AttemptBody>,
    receipt: Option<ReceiptBody>,
    fork: u32,
    confirmations: Vec<BlockBody>,
    #[schema(value_type = Option<WeiText>)]
    cost_wei: Option<String>,
    deadline: Option<Timestamp>,
    created_at: Timestamp,
    updated_at: Timestamp,
    confirmed_at: Option<Timestamp>,
    final_at: Option<Timestamp>,
    history: Vec<PassageBody>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Payload)]
struct PayloadBody {
    #[schema(value_type = ChainAccountText)]
    to: String,
    #[schema(value_type = WeiText)]
    value: String,
    data: String,
    gas: Option<u64>,
    token: Option<TokenBody>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = TokenTransfer)]
struct TokenBody {
    #[schema(value_type = ChainAccountText)]
    contract: String,
    #[schema(value_type = WeiText)]
    amount: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Attempt)]
struct AttemptBody {
    attempt: u32,
    #[schema(value_type = AttemptKindName)]
    kind: &'static str,
    #[schema(value_type = ChainHashText)]
    hash: String,
    #[schema(value_type = WeiText)]
    max_fee_per_gas: String,
    #[schema(value_type = WeiText)]
    max_priority_fee_per_gas: String,
    gas: u64,
    #[schema(value_type = Option<SendClassName>)]
    class: Option<&'static str>,
    in_pool: bool,
    signed_at: Option<Timestamp>,
    answered_at: Option<Timestamp>,
    answers: Vec<AnswerBody>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = EndpointAnswer)]
struct AnswerBody {
    endpoint: String,
    #[schema(value_type = SendClassName)]
    class: &'static str,
    text: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Receipt)]
struct ReceiptBody {
    attempt: u32,
    #[schema(value_type = ChainHashText)]
    tx_hash: String,
    block_number: u64,
    #[schema(value_type = ChainHashText)]
    block_hash: String,
    proof: &'static str,
    gas_used: u64,
    #[schema(value_type = WeiText)]
    effective_gas_price: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Block)]
struct BlockBody {
    number: u64,
    #[schema(value_type = ChainHashText)]
    hash: String,
}

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Passage)]
struct PassageBody {
    #[schema(value_type = Option<ChainStateName>)]
    from: Option<&'static str>,
    #[schema(value_type = ChainStateName)]
    to: &'static str,
    sub_state: Option<&'static str>,
    code: Option<&'static str>,
    attempts: u32,
    at: Timestamp,
    node: String,
    token: u64,
}

/// A time of the store's clock.
fn time(ms: i64) -> Timestamp {
    // The store's times are those of PostgreSQL, which are within jiff's.
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MAX)
}

impl TxDetailBody {
    /// A row with all that is kept of it.
    pub(super) fn new(details: TxDetails) -> TxDetailBody {
        let tx = details.tx;
        let known = details.attempts.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        TxDetailBody {
            tx_id: tx.id.to_string(),
            signer: address_text(&tx.new.signer),
            tx_hash: hash(&tx),
            request_id: tx.new.request_id,
            business_key: tx.new.business_key,
            payload: PayloadBody::new(&tx.new.payload),
            gas: tx.new.gas,
            nonce: tx.nonce,
            state: tx.state.name(),
            sub_state: tx.sub.map(SubState::name),
            code: tx.code.map(FailCode::name),
            refusal: tx.refusal,
            wish: tx.wish.name(),
            is_final: tx.state.is_terminal(),
            attempts: tx.attempts.iter().zip(known).map(AttemptBody::new).collect(),
            receipt: tx.receipt.map(ReceiptBody::new),
            fork: tx.fork,
            confirmations: tx
                .told
                .iter()
                .map(|block| BlockBody { number: block.number, hash: block.hash.to_string() })
                .collect(),
            cost_wei: tx.cost.map(|cost: U256| cost.to_string()),
            deadline: tx.new.deadline_ms.map(time),
            created_at: time(details.created_ms),
            updated_at: time(details.updated_ms),
            confirmed_at: details.confirmed_ms.map(time),
            final_at: details.final_ms.map(time),
            history: details.history.into_iter().map(PassageBody::new).collect(),
        }
    }
}

impl PayloadBody {
    fn new(payload: &TxPayload) -> PayloadBody {
        PayloadBody {
            to: address_text(&payload.to),
            value: payload.value.to_string(),
            data: payload.data.to_string(),
            gas: payload.gas,
            token: payload.token.as_ref().map(|token| TokenBody {
                contract: address_text(&token.contract),
                amount: token.amount.to_string(),
            }),
        }
    }
}

impl AttemptBody {
    fn new((attempt, known): (&chain::tx::Attempt, Option<AttemptDetails>)) -> AttemptBody {
        let answer = |answer: EndpointAnswer| AnswerBody {
            endpoint: answer.endpoint,
            class: answer.class.name(),
            text: answer.text,
        };
        AttemptBody {
            attempt: attempt.number,
            kind: attempt.kind.name(),
            hash: attempt.hash.to_string(),
            max_fee_per_gas: attempt.price.max_fee.to_string(),
            max_priority_fee_per_gas: attempt.price.max_tip.to_string(),
            gas: attempt.gas,
            class: attempt.class.map(chain::class::SendClass::name),
            in_pool: attempt.was_in_pool,
            signed_at: known.as_ref().map(|known| time(known.signed_ms)),
            answered_at: known.as_ref().and_then(|known| known.answered_ms.map(time)),
            answers: known
                .map(|known| known.answers.into_iter().map(answer).collect())
                .unwrap_or_default(),
        }
    }
}

impl ReceiptBody {
    fn new(receipt: TxReceipt) -> ReceiptBody {
        ReceiptBody {
            attempt: receipt.attempt,
            tx_hash: receipt.hash.to_string(),
            block_number: receipt.block_number,
            block_hash: receipt.block_hash.to_string(),
            proof: receipt.proof.name(),
            gas_used: receipt.gas_used,
            effective_gas_price: receipt.gas_price.to_string(),
        }
    }
}

impl PassageBody {
    fn new(passage: TxPassage) -> PassageBody {
        PassageBody {
            from: passage.from.map(chain::state::TxState::name),
            to: passage.to.name(),
            sub_state: passage.sub.map(SubState::name),
            code: passage.code.map(FailCode::name),
            attempts: passage.attempts,
            at: time(passage.at_ms),
            node: passage.node,
            token: passage.token,
        }
    }
}

/// A page of transactions.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ChainTxs)]
pub(super) struct TxListBody {
    pub(super) transactions: Vec<TxDetailBody>,
    #[serde(rename = "next_cursor")]
    pub(super) next_cursor: Option<String>,
}

/// The answers to a query, in the order of its requests; null: unknown.
#[derive(Serialize, ToSchema)]
#[schema(as = FoundChainTxs)]
pub(super) struct TxQueryBody {
    pub(super) transactions: Vec<Option<TxDetailBody>>,
}

/// A signer.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Signer)]
pub(super) struct SignerBody {
    #[schema(value_type = ChainAccountText)]
    signer: String,
    kind: &'static str,
    status: &'static str,
    suspensions: Vec<SuspensionBody>,
    owner_node: Option<String>,
    owner_url: Option<String>,
    fencing_token: u64,
    next_nonce: u64,
    jumped_nonces: u64,
    open_rows: u64,
    oldest_at: Option<Timestamp>,
    #[schema(value_type = Option<WeiText>)]
    balance_wei: Option<String>,
    added_at: Timestamp,
}

#[derive(Serialize, ToSchema)]
#[schema(as = Suspension)]
struct SuspensionBody {
    reason: String,
    actor: String,
}

/// All signers.
#[derive(Serialize, ToSchema)]
#[schema(as = Signers)]
pub(super) struct SignersBody {
    pub(super) signers: Vec<SignerBody>,
}

impl SignerBody {
    /// A signer and its balance; `None`: no endpoint answered.
    pub(super) fn new(row: SignerRow, balance: Option<U256>) -> SignerBody {
        let suspension = |it: Suspension| SuspensionBody { reason: it.reason, actor: it.actor };
        SignerBody {
            signer: address_text(&row.signer),
            kind: row.kind.name(),
            status: if row.suspensions.is_empty() { "ACTIVE" } else { "SUSPENDED" },
            suspensions: row.suspensions.into_iter().map(suspension).collect(),
            owner_node: row.owner,
            owner_url: row.owner_url,
            fencing_token: row.token,
            next_nonce: row.cursor,
            jumped_nonces: row.jumped,
            open_rows: row.open_rows,
            oldest_at: row.oldest_ms.map(time),
            balance_wei: balance.map(|wei| wei.to_string()),
            added_at: time(row.added_ms),
        }
    }
}

/// A part of the feed.
#[derive(Serialize, ToSchema)]
#[schema(as = Feed)]
pub(super) struct FeedBody {
    pub(super) events: Vec<EventBody>,
    /// The `after` of the next part.
    pub(super) next: String,
}

/// An event of the feed.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = FeedEvent)]
pub(super) struct EventBody {
    cursor: String,
    #[schema(value_type = ChainTxIdText)]
    tx_id: String,
    #[schema(value_type = ChainAccountText)]
    signer: String,
    #[schema(value_type = ChainKeyText)]
    request_id: String,
    seq: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    new_fork: bool,
    #[schema(value_type = Object)]
    body: serde_json::Value,
    at: Timestamp,
}

impl EventBody {
    /// An event. Its receipt is that of [`TxDetailBody`].
    pub(super) fn new(mut event: FeedEvent) -> EventBody {
        if let Some(receipt) = event.receipt {
            event.body["receipt"] = json!(ReceiptBody::new(receipt));
        }
        EventBody {
            cursor: cursor_text(event.cursor),
            tx_id: event.tx.to_string(),
            signer: address_text(&event.signer),
            request_id: event.request_id,
            seq: event.seq,
            kind: event.kind.name(),
            new_fork: event.new_fork,
            body: event.body,
            at: time(event.at_ms),
        }
    }
}

/// A place in the feed as text.
pub(super) fn cursor_text(cursor: FeedCursor) -> String {
    format!("{}.{}.{}", cursor.epoch, cursor.xid, cursor.event)
}

/// The place of a text of [`cursor_text`]. Its numbers are those of PostgreSQL, below 2^63.
pub(super) fn cursor(text: &str) -> Option<FeedCursor> {
    let mut parts = text.split('.').map(|part| {
        let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<u64>().ok().filter(|number| digits && i64::try_from(*number).is_ok())
    });
    let cursor = FeedCursor { epoch: parts.next()??, xid: parts.next()??, event: parts.next()?? };
    parts.next().is_none().then_some(cursor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_the_feed_is_read_as_it_was_written() {
        let place = FeedCursor { epoch: 1, xid: 7, event: u64::MAX / 2 };
        assert_eq!(cursor(&cursor_text(place)), Some(place));
        for bad in ["", "1", "1.2", "1.2.3.4", "1.2.+3", "1.2.", "a.b.c", "1.2.9223372036854775808"]
        {
            assert_eq!(cursor(bad), None, "{bad}");
        }
    }
}
