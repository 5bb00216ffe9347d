//! The endpoint over TCP, with a server that lies.

use std::time::Duration;

use alloy_primitives::{Address, B256, Bytes, U256, address};
use chain::view::BlockRef;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::rpc::client::BODY_BYTES_MAX;
use crate::rpc::stub::{Reply, Stub};
use crate::rpc::{Block, BlockAt, ReceiptRead, TransactionRead};

const ACCOUNT: Address = address!("f39fd6e51aad88f6f4ce6ab8827279cfffb92266");
const TEXT: &str = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";

fn endpoint(url: &str) -> HttpEndpoint {
    let client = RpcClient::new(url, None, Duration::from_secs(20), 4).expect("an address");
    HttpEndpoint { client, next: AtomicU64::new(1) }
}

fn is_unknown(answer: &Result<RpcValue, RpcError>) -> bool {
    matches!(answer, Err(RpcError::Unknown(_)))
}

fn hash(byte: u8) -> B256 {
    B256::repeat_byte(byte)
}

fn block() -> Value {
    json!({
        "number": "0x10", "hash": hash(2).to_string(), "parentHash": hash(1).to_string(),
        "baseFeePerGas": "0x7",
    })
}

fn receipt() -> Value {
    json!({
        "transactionHash": hash(9).to_string(), "from": TEXT, "blockNumber": "0x10",
        "blockHash": hash(2).to_string(), "status": "0x1", "gasUsed": "0x5208",
        "effectiveGasPrice": "0x3", "logs": [{
            "address": TEXT, "topics": [hash(4).to_string()], "data": "0x01",
            "transactionHash": hash(9).to_string(), "blockHash": hash(2).to_string(),
            "removed": false,
        }],
    })
}

fn transaction() -> Value {
    json!({
        "hash": hash(9).to_string(), "from": TEXT, "nonce": "0x5", "blockNumber": "0x10",
        "blockHash": hash(2).to_string(), "gas": "0x5208",
    })
}

/// Each call with its parameters, a result, and its value.
fn table() -> Vec<(RpcCall, Value, Value, RpcValue)> {
    let at = BlockRef { number: 16, hash: hash(2), parent: hash(1) };
    let block_read = RpcValue::Block(Some(Block { at, base_fee: 7 }));
    let read =
        TransactionRead { hash: hash(9), from: ACCOUNT, nonce: 5, block: Some((16, hash(2))) };
    let receipt_read = ReceiptRead {
        hash: hash(9),
        from: ACCOUNT,
        block_number: 16,
        block_hash: hash(2),
        is_success: true,
        gas_used: 21_000,
        gas_price: 3,
        logs: vec![crate::rpc::ReceiptLog {
            contract: ACCOUNT,
            topics: vec![hash(4)],
            data: Bytes::from_static(&[1]),
        }],
    };
    let estimate = RpcCall::Estimate {
        from: ACCOUNT,
        to: ACCOUNT,
        value: U256::from(255),
        data: Bytes::from_static(&[1]),
    };
    let wish = json!([{ "from": TEXT, "to": TEXT, "value": "0xff", "data": "0x01" }]);
    let by_hash = json!([TEXT, { "blockHash": hash(2).to_string(), "requireCanonical": true }]);
    let data = format!("0x70a08231{:0>64}", &TEXT[2..]);
    let word = format!("0x{:0>64}", "ff");
    let send = RpcCall::Send(Bytes::from_static(&[2, 0xab]));
    let token = RpcCall::TokenBalance { contract: ACCOUNT, account: ACCOUNT };
    let tips = json!({ "reward": [["0x5"], ["0x1"], ["0x9"]] });
    let nine = json!([hash(9).to_string()]);
    vec![
        (RpcCall::ChainId, json!([]), json!("0x7a69"), RpcValue::Number(31_337)),
        (RpcCall::Block(BlockAt::Latest), json!(["latest", false]), block(), block_read.clone()),
        (RpcCall::Block(BlockAt::Number(16)), json!(["0x10", false]), block(), block_read.clone()),
        (
            RpcCall::Block(BlockAt::Hash(hash(2))),
            json!([hash(2).to_string(), false]),
            block(),
            block_read,
        ),
        (
            RpcCall::Count(ACCOUNT, BlockAt::Pending),
            json!([TEXT, "pending"]),
            json!("0x0"),
            RpcValue::Number(0),
        ),
        (
            RpcCall::Count(ACCOUNT, BlockAt::Hash(hash(2))),
            by_hash,
            json!("0x5"),
            RpcValue::Number(5),
        ),
        (send, json!(["0x02ab"]), json!(hash(9).to_string()), RpcValue::Hash(hash(9))),
        (
            RpcCall::Receipt(hash(9)),
            nine.clone(),
            receipt(),
            RpcValue::Receipt(Some(Box::new(receipt_read))),
        ),
        (RpcCall::Transaction(hash(9)), nine, transaction(), RpcValue::Transaction(Some(read))),
        (
            RpcCall::BySenderAndNonce(ACCOUNT, 5),
            json!([TEXT, "0x5"]),
            transaction(),
            RpcValue::Transaction(Some(read)),
        ),
        (estimate, wish, json!("0x5208"), RpcValue::Number(21_000)),
        (
            RpcCall::Balance(ACCOUNT),
            json!([TEXT, "latest"]),
            json!("0xff"),
            RpcValue::Amount(U256::from(255)),
        ),
        (
            token,
            json!([{ "to": TEXT, "data": data }, "latest"]),
            json!(word),
            RpcValue::Amount(U256::from(255)),
        ),
        (
            RpcCall::CodeLength(ACCOUNT),
            json!([TEXT, "latest"]),
            json!("0x6001"),
            RpcValue::Number(2),
        ),
        (RpcCall::Tip, json!(["0xa", "latest", [50]]), tips, RpcValue::Amount(U256::from(5))),
    ]
}

#[tokio::test]
async fn each_call_is_asked_and_read() {
    let table = table();
    let results: Vec<Value> = table.iter().map(|row| row.2.clone()).collect();
    let stub = Stub::results(move |call| {
        let id = call["id"].as_u64().expect("a number");
        results[usize::try_from(id - 1).expect("small") % results.len()].clone()
    })
    .await;
    let endpoint = endpoint(&stub.url);
    let calls: Vec<RpcCall> = table.iter().map(|row| row.0.clone()).collect();
    let expected: Vec<Result<RpcValue, RpcError>> =
        table.iter().map(|row| Ok(row.3.clone())).collect();
    assert_eq!(endpoint.calls(&calls).await, expected, "in one list");
    for (index, call) in calls.iter().enumerate() {
        assert_eq!(
            endpoint.calls(std::slice::from_ref(call)).await,
            expected[index..=index],
            "{call:?}"
        );
        let request = &stub.requests()[index + 1];
        assert_eq!(request["method"], call.method());
        assert_eq!(request["params"], table[index].1, "{call:?}");
        assert_eq!(request["jsonrpc"], "2.0");
    }
    assert_eq!(endpoint.calls(&[]).await, []);
    assert_eq!(stub.connections(), 1, "the connection is kept");
}

/// Goal: a result that is not the call's meaning is no answer. Method: each result of the table
/// with one part changed.
#[test]
fn a_result_of_another_shape_is_unknown() {
    let read = |call: &RpcCall, result: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "result": result });
        json::answers(std::slice::from_ref(call), 1, body).remove(0)
    };
    let (receipts, blocks) = (RpcCall::Receipt(hash(9)), RpcCall::Block(BlockAt::Latest));
    let changed = |mut value: Value, path: &str, part: Value| {
        *value.pointer_mut(path).expect("it is there") = part;
        value
    };
    let other = json!(hash(7).to_string());
    let bad = [
        (&receipts, changed(receipt(), "/status", json!("0x2"))),
        (&receipts, changed(receipt(), "/status", json!("0x01"))),
        (&receipts, changed(receipt(), "/status", json!(1))),
        (&receipts, changed(receipt(), "/transactionHash", other.clone())),
        (&receipts, changed(receipt(), "/blockNumber", json!("0x10000000000000000"))),
        (&receipts, changed(receipt(), "/gasUsed", json!(21_000))),
        (&receipts, changed(receipt(), "/from", json!("0x00"))),
        (&receipts, changed(receipt(), "/logs", json!(null))),
        (&receipts, changed(receipt(), "/logs/0/removed", json!(true))),
        (&receipts, changed(receipt(), "/logs/0/transactionHash", other.clone())),
        (&receipts, changed(receipt(), "/logs/0/blockHash", other.clone())),
        (&receipts, changed(receipt(), "/logs/0/topics", json!(vec![other.clone(); 5]))),
        (&receipts, json!("0x1")),
        (&blocks, changed(block(), "/parentHash", json!(hash(2).to_string()))),
        (&blocks, changed(block(), "/number", json!("0x010"))),
        (&blocks, changed(block(), "/hash", json!(null))),
        (&blocks, changed(block(), "/baseFeePerGas", json!(format!("0x1{}", "0".repeat(32))))),
        (&RpcCall::Block(BlockAt::Number(17)), block()),
        (&RpcCall::Block(BlockAt::Hash(hash(3))), block()),
        (&RpcCall::Transaction(hash(8)), transaction()),
        (&RpcCall::BySenderAndNonce(ACCOUNT, 6), transaction()),
        (&RpcCall::BySenderAndNonce(Address::ZERO, 5), transaction()),
        (&RpcCall::Transaction(hash(9)), changed(transaction(), "/blockHash", json!(null))),
        (&RpcCall::ChainId, json!(null)),
        (&RpcCall::Send(Bytes::new()), json!("0x1234")),
        (&RpcCall::Send(Bytes::new()), json!(null)),
        (&RpcCall::TokenBalance { contract: ACCOUNT, account: ACCOUNT }, json!("0x")),
        (&RpcCall::Tip, json!({ "reward": [] })),
        (&RpcCall::Tip, json!({ "reward": null })),
    ];
    for (call, result) in bad {
        let answer = read(call, result.clone());
        assert!(is_unknown(&answer), "{call:?} {result} {answer:?}");
    }
    assert_eq!(read(&receipts, json!(null)), Ok(RpcValue::Receipt(None)));
    let pooled = changed(receipt(), "/blockHash", json!(null));
    assert_eq!(read(&receipts, pooled), Ok(RpcValue::Receipt(None)));
    assert_eq!(read(&blocks, json!(null)), Ok(RpcValue::Block(None)));
    let pooled = changed(transaction(), "/blockHash", json!(null));
    let pooled = changed(pooled, "/blockNumber", json!(null));
    let read = read(&RpcCall::Transaction(hash(9)), pooled);
    let Ok(RpcValue::Transaction(Some(read))) = read else { panic!("{read:?}") };
    assert_eq!(read.block, None);
}

#[test]
fn answers_belong_to_ids_in_any_order() {
    let calls = vec![RpcCall::ChainId; 4];
    let one = |id: Value, result: &str| json!({ "jsonrpc": "2.0", "id": id, "result": result });
    let body = json!([
        one(json!(13), "0xd"),
        one(json!(11), "0xb"),
        one(json!(10), "0xa"),
        one(json!(10), "0xa"),
        one(json!(99), "0x1"),
        one(json!("12"), "0x1"),
        one(json!(null), "0x1"),
        7,
    ]);
    let answers = json::answers(&calls, 10, body);
    assert!(is_unknown(&answers[0]), "doubled");
    assert_eq!(answers[1], Ok(RpcValue::Number(11)));
    assert!(is_unknown(&answers[2]), "missing");
    assert_eq!(answers[3], Ok(RpcValue::Number(13)));
    // One error for the whole list belongs to no call.
    let whole = json!({
        "jsonrpc": "2.0", "id": null, "error": { "code": -32600, "message": "nonce too low" },
    });
    assert!(json::answers(&calls, 10, whole).iter().all(is_unknown));
    let alone = json!([one(json!(10), "0xa")]);
    assert!(is_unknown(&json::answers(&calls[..1], 10, alone)[0]));
}

#[test]
fn an_error_has_its_number_words_and_data() {
    let read = |error: Value| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "error": error });
        json::answers(&[RpcCall::ChainId], 1, body).remove(0)
    };
    let said = |data: Option<&str>| {
        let message = "nonce too low".to_owned();
        Err(RpcError::Said { code: -32000, message, data: data.map(str::to_owned) })
    };
    let error = |data: Value| json!({ "code": -32000, "message": "nonce too low", "data": data });
    assert_eq!(read(error(json!(null))), said(None));
    assert_eq!(read(error(json!("more"))), said(Some("more")));
    assert_eq!(read(error(json!({ "message": "more", "x": 1 }))), said(Some("more")));
    assert_eq!(read(error(json!([1]))), said(None));
    for bad in [json!("nonce too low"), json!({ "code": "1", "message": "" }), json!({}), json!(1)]
    {
        assert!(is_unknown(&read(bad.clone())), "{bad}");
    }
    let answer = |body: Value| json::answers(&[RpcCall::ChainId], 1, body).remove(0);
    let both = json!({ "jsonrpc": "2.0", "id": 1, "result": "0x1", "error": error(json!(null)) });
    assert!(is_unknown(&answer(both)));
    assert!(is_unknown(&answer(json!({ "jsonrpc": "2.0", "id": 1 }))));
    assert!(is_unknown(&answer(json!({ "id": 1, "result": "0x1" }))));
}

/// Goal: of any bytes that are no answer the call is unknown, and the next call on a new connection
/// is answered.
#[tokio::test]
async fn half_answers_and_answers_that_are_none_are_unknown() {
    let text = |head: &str, body: &str| {
        format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    };
    let good = r#"{"jsonrpc":"2.0","id":1,"result":"0x1"}"#;
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"result":"0x{}"}}"#, "1".repeat(BODY_BYTES_MAX));
    let replies = [
        text("429 Too Many Requests", good),
        text("502 Bad Gateway", "<html>"),
        text("500 Internal Server Error", good),
        text("200 OK\r\ncontent-type: text/html", "<html><body>captive</body></html>"),
        text("302 Found\r\nlocation: /other", ""),
        text("307 Temporary Redirect\r\nlocation: /other", ""),
        text("200 OK\r\ncontent-encoding: gzip", good),
        text("200 OK", &long),
        text("200 OK", &good[..20]),
        text("200 OK", ""),
        text("200 OK", "\u{0}"),
        text("204 No Content", ""),
        b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{\"jsonrpc\"".to_vec(),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{".to_vec(),
        b"\x16\x03\x01".to_vec(),
        Vec::new(),
    ];
    for bytes in replies {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let count = AtomicU64::new(0);
        let stub = Stub::start(move |body| match count.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::Bytes(bytes.clone()),
            _ => Reply::Json(json!({ "jsonrpc": "2.0", "id": body["id"], "result": "0x2" })),
        })
        .await;
        let endpoint = endpoint(&stub.url);
        let answers = endpoint.calls(&[RpcCall::ChainId]).await;
        assert!(is_unknown(&answers[0]), "{shown}: {answers:?}");
        assert_eq!(stub.requests().len(), 1, "{shown}: asked once, no redirect");
        let next = endpoint.calls(&[RpcCall::ChainId]).await;
        assert_eq!(next, [Ok(RpcValue::Number(2))], "{shown}");
    }
}

#[tokio::test]
async fn silence_ends_with_the_time_limit() {
    let stub = Stub::start(|_| Reply::Silence).await;
    let limit = Duration::from_millis(50);
    let client = RpcClient::new(&stub.url, None, limit, 4).expect("an address");
    let endpoint = HttpEndpoint { client, next: AtomicU64::new(1) };
    let answers = endpoint.calls(&[RpcCall::ChainId, RpcCall::Tip]).await;
    assert_eq!(answers, vec![Err(RpcError::Unknown("time-out".to_owned())); 2]);
    // Nothing listens there any more.
    let url = stub.url.clone();
    drop(stub);
    let client = RpcClient::new(&url, None, Duration::from_secs(20), 4).expect("an address");
    let endpoint = HttpEndpoint { client, next: AtomicU64::new(1) };
    assert!(is_unknown(&endpoint.calls(&[RpcCall::ChainId]).await[0]));
}

#[tokio::test]
async fn a_password_is_sent_and_never_shown() {
    let stub = Stub::results(|_| json!("0x1")).await;
    let url = stub.url.replace("http://", "http://user:p%40ss@") + "/v3/secret?key=secret";
    let endpoint = endpoint(&url);
    assert_eq!(endpoint.calls(&[RpcCall::ChainId]).await, [Ok(RpcValue::Number(1))]);
    let head = stub.heads().remove(0);
    assert!(head.starts_with("post /v3/secret?key=secret http/1.1"), "{head}");
    assert!(head.contains(&"authorization: Basic dXNlcjpwQHNz".to_lowercase()), "{head}");
    assert_eq!(format!("http://{}", endpoint.name()), stub.url);
    drop(stub);
    let answers = endpoint.calls(&[RpcCall::ChainId]).await;
    let Err(error) = &answers[0] else { panic!("{answers:?}") };
    assert!(!error.to_string().contains("secret") && !error.to_string().contains("p@ss"));
    for bad in ["", "localhost:8545", "ws://localhost", "http://", "https://:1"] {
        assert!(RpcClient::new(bad, None, Duration::from_secs(1), 1).is_err(), "{bad}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "(0x)?[0-9a-f]{0,70}".prop_map(Value::from),
        Just(json!("0x1")),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let key = "(id|result|error|code|message|data|jsonrpc|number|hash|parentHash|status|logs|\
            reward|from|nonce|blockHash|blockNumber|topics|transactionHash)";
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    /// No JSON makes the reader panic, and each call has one answer.
    #[test]
    fn any_json_is_read(body in any_json(), result in any_json()) {
        let calls: Vec<RpcCall> = table().into_iter().map(|row| row.0).collect();
        prop_assert_eq!(json::answers(&calls, 1, body.clone()).len(), calls.len());
        for call in &calls {
            let one = std::slice::from_ref(call);
            let wrapped = json!({ "jsonrpc": "2.0", "id": 1, "result": &result });
            prop_assert_eq!(json::answers(one, 1, wrapped).len(), 1);
            prop_assert_eq!(json::answers(one, 1, body.clone()).len(), 1);
        }
    }
}
