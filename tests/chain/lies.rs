//! The endpoint: honest it is invisible, and each lie is the one that it is named after.

use std::io::Write;
use std::net::TcpStream;
use std::thread;

use alloy_primitives::{B256, hex, keccak256};
use serde_json::{Value, json};

use super::{PAYEE, SENDER, height_of, payment, receipt};
use crate::harness::{
    ANY, Chain, ChainProxy, Lie, Rpc, SEND, Sent, eventually, hash, hex_of, number, read_request,
};

/// A client of an endpoint.
struct Client(Rpc);

/// The parts of an answer that a lie changes: the status, and the body if it is JSON.
type Answer = Result<(u16, Option<Value>), ureq::Error>;

impl Client {
    fn of(proxy: &ChainProxy) -> Client {
        Client(Rpc::new(&proxy.url()))
    }

    fn post(&self, body: &Value) -> Answer {
        let (status, answer) = self.0.post(body.to_string().as_bytes())?;
        Ok((status, serde_json::from_slice(&answer).ok()))
    }

    fn send(&self, raw: &[u8]) -> Answer {
        self.post(&call(1, SEND, json!([hex::encode_prefixed(raw)])))
    }
}

fn call(id: u32, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// The JSON of an answer with status 200.
fn json_of(answer: Answer) -> Value {
    let (status, body) = answer.expect("an answer");
    assert_eq!(status, 200);
    body.expect("JSON")
}

#[test]
fn an_honest_endpoint_passes_calls_batches_and_connections_on() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let raw = payment(&chain, 0, 9);
    let batch = json!([
        call(1, "eth_chainId", json!([])),
        call(2, SEND, json!([hex::encode_prefixed(&raw)])),
        call(3, "no_such", json!([])),
        call(4, "eth_chainId", json!([])),
    ]);
    let answers = json_of(client.post(&batch));
    let ids: Vec<_> = (0..4).map(|index| answers[index]["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids, [1, 2, 3, 4]);
    assert_eq!(hash(&answers[1]["result"]), keccak256(&raw));
    assert_eq!(answers[2]["error"]["code"], -32_601);
    assert_eq!(proxy.sent(), [Sent { hash: keccak256(&raw), raw }]);
    assert_eq!([proxy.calls("eth_chainId"), proxy.calls(SEND)], [2, 1]);
    // Two requests on one connection, byte for byte.
    let address = proxy.url();
    let stream = TcpStream::connect(address.trim_start_matches("http://")).expect("a connection");
    let body = call(7, "eth_chainId", json!([])).to_string();
    for _ in 0..2 {
        let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
        (&stream).write_all((head + body.as_str()).as_bytes()).expect("written");
        let (head, answer) = read_request(&stream).expect("an answer");
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(answer, br#"{"jsonrpc":"2.0","id":7,"result":"0x7a69"}"#);
    }
    // The node's answer to nonsense.
    let (status, answer) = client.0.post(b"{").expect("an answer");
    assert!(
        status >= 400
            || serde_json::from_slice::<Value>(&answer).is_ok_and(|a| a["error"].is_object())
    );
}

/// Each lie before delivery leaves the node without the transaction; each other one leaves it
/// there. The endpoint has recorded the bytes in both cases.
#[test]
fn a_lie_delivers_or_does_not_as_it_says() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let said = || Lie::SayAfter { code: -32_000, message: "already known".to_owned() };
    let lies: [(Lie, bool); 13] = [
        (Lie::LoseRequest, false),
        (Lie::Status(429), false),
        (Lie::Status(502), false),
        (Lie::Html, false),
        (Lie::Redirect, false),
        (Lie::say("nonce too low"), false),
        (Lie::LoseAnswer, true),
        (Lie::StatusAfter(502), true),
        (said(), true),
        (Lie::Double, true),
        (Lie::SwapIds, true),
        (Lie::HalfAnswer, true),
        (Lie::LongAnswer, true),
    ];
    for (index, (lie, delivers)) in lies.into_iter().enumerate() {
        let raw = payment(&chain, index as u64, 1);
        proxy.lie_times(1, SEND, lie);
        // The client's side is in the next test.
        drop(client.send(&raw));
        let there = chain.transaction(keccak256(&raw)).is_some();
        assert_eq!(there, delivers, "lie {index}");
        if !delivers {
            chain.send(&raw).expect("the next nonce must follow");
        }
        assert_eq!(proxy.raws().len(), index + 1);
    }
    chain.mine(1);
    assert_eq!(chain.nonce(SENDER), 13);
}

#[test]
fn an_answer_is_lost_cut_replaced_or_too_long_as_the_lie_says() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let ask = |lie: Lie| {
        proxy.lie_times(1, "eth_blockNumber", lie);
        client.post(&call(5, "eth_blockNumber", json!([])))
    };
    let status = |lie: Lie| {
        let (status, body) = ask(lie).expect("an answer");
        assert_eq!(body, None, "no JSON");
        status
    };
    for lie in [Lie::LoseRequest, Lie::LoseAnswer, Lie::HalfAnswer] {
        assert!(ask(lie).is_err(), "no whole answer");
    }
    let codes = [Lie::Status(429), Lie::StatusAfter(502), Lie::Html, Lie::Redirect].map(status);
    assert_eq!(codes, [429, 502, 200, 307]);
    assert_eq!(proxy.redirects_followed(), 0);
    client.0.post(b"{}").expect("an answer");
    let followed = Rpc::new(&format!("{}/elsewhere", proxy.url()));
    followed.post(b"{}").expect("an answer");
    assert_eq!(proxy.redirects_followed(), 1);
    assert_eq!(json_of(ask(Lie::SwapIds))["id"], "a foreign id");
    assert!(json_of(ask(Lie::LongAnswer)).to_string().len() > 9 << 20);
    // This client has no decompressor; the header alone is the lie.
    assert_eq!(json_of(ask(Lie::Gzip))["result"], "0x0");
    let error = json_of(ask(Lie::say("txpool is full")))["error"].take();
    assert_eq!(error, json!({"code": -32_000, "message": "txpool is full"}));
    let after = Lie::SayAfter { code: -32_003, message: "late".to_owned() };
    assert_eq!(json_of(ask(after))["error"]["code"], -32_003);
    assert_eq!(json_of(ask(Lie::result(json!("0x1_0"))))["result"], "0x1_0");
    assert_eq!(json_of(client.post(&call(5, "eth_blockNumber", json!([]))))["result"], "0x0");
}

#[test]
fn the_ids_of_a_batch_are_exchanged() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    proxy.lie(ANY, Lie::SwapIds);
    let batch = json!([call(1, "eth_blockNumber", json!([])), call(2, "eth_chainId", json!([]))]);
    let answers = json_of(Client::of(&proxy).post(&batch));
    assert_eq!((&answers[0]["id"], &answers[0]["result"]), (&json!(2), &json!("0x0")));
    assert_eq!((&answers[1]["id"], &answers[1]["result"]), (&json!(1), &json!("0x7a69")));
}

#[test]
fn a_receipt_is_changed_field_by_field_and_other_calls_are_not() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let sent = chain.send(&payment(&chain, 0, 1)).expect("taken");
    chain.mine(1);
    let method = "eth_getTransactionReceipt";
    let batch = json!([
        call(1, method, json!([hex_of(sent)])),
        call(2, "eth_getTransactionByHash", json!([hex_of(sent)])),
    ]);
    let truth = json_of(client.post(&batch));
    let other = hex_of(B256::repeat_byte(7));
    for (field, value) in [
        ("status", json!("0x2")),
        ("transactionHash", json!(other)),
        ("blockHash", json!(other)),
        ("blockNumber", json!("0x1ffffffffffffffff")),
    ] {
        proxy.lie(method, Lie::field(field, value.clone()));
        let mut lied = json_of(client.post(&batch));
        assert_eq!(lied[0]["result"][field].take(), value);
        let mut expected = truth.clone();
        expected[0]["result"][field].take();
        assert_eq!(lied, expected, "nothing but {field}");
        proxy.honest();
        assert_eq!(json_of(client.post(&batch)), truth);
    }
    proxy.lie(method, Lie::change(|result| *result = Value::Null));
    assert!(json_of(client.post(&batch))[0]["result"].is_null());
}

#[test]
fn a_text_answers_every_send_until_the_endpoint_is_honest() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let raw = payment(&chain, 0, 1);
    proxy.say("insufficient funds for gas * price + value");
    for _ in 0..2 {
        let answer = json_of(client.send(&raw));
        assert_eq!(answer["error"]["message"], "insufficient funds for gas * price + value");
    }
    // The other call of a batch is answered truly.
    let batch = json!([
        call(1, SEND, json!([hex::encode_prefixed(&raw)])),
        call(2, "eth_chainId", json!([])),
    ]);
    let answers = json_of(client.post(&batch));
    assert!(answers[0]["error"].is_object() && answers[1]["result"] == "0x7a69");
    proxy.honest();
    assert_eq!(hash(&json_of(client.send(&raw))["result"]), keccak256(&raw));
    assert_eq!(proxy.raws(), vec![raw; 4]);
}

/// Goal: a request that its client has given up arrives late. Method: two requests wait, one of
/// them before its delivery.
#[test]
fn a_delayed_request_waits_for_its_release() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let raws = [payment(&chain, 0, 1), payment(&chain, 1, 1)];
    let there = |index: usize| chain.transaction(keccak256(&raws[index])).is_some();
    thread::scope(|scope| {
        proxy.lie_times(1, SEND, Lie::DelayAnswer);
        let answered = scope.spawn(|| Client::of(&proxy).send(&raws[0]));
        eventually("the answer waits", || (proxy.waiting() == 1).then_some(()));
        proxy.lie_times(1, SEND, Lie::Delay);
        let delivered = scope.spawn(|| Client::of(&proxy).send(&raws[1]));
        eventually("the request waits", || (proxy.waiting() == 2).then_some(()));
        assert_eq!((there(0), there(1)), (true, false));
        // Others pass meanwhile.
        json_of(Client::of(&proxy).post(&call(1, "eth_chainId", json!([]))));
        proxy.release();
        for sender in [answered, delivered] {
            json_of(sender.join().expect("no panic"));
        }
    });
    assert_eq!((there(0), there(1), proxy.waiting()), (true, true, 0));
    // Its client leaves, and the request still arrives.
    let late = payment(&chain, 2, 1);
    proxy.lie_times(1, SEND, Lie::Delay);
    let body = call(1, SEND, json!([hex::encode_prefixed(&late)])).to_string();
    let stream = TcpStream::connect(proxy.url().trim_start_matches("http://")).expect("connected");
    let head = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
    (&stream).write_all((head + body.as_str()).as_bytes()).expect("written");
    eventually("the request waits", || (proxy.waiting() == 1).then_some(()));
    drop(stream);
    proxy.release();
    eventually("it arrives late", || chain.transaction(keccak256(&late)));
}

#[test]
fn an_old_head_has_nothing_of_later_blocks() {
    let chain = Chain::start();
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let raws = [payment(&chain, 0, 1), payment(&chain, 1, 1)];
    let mut sent = Vec::new();
    for raw in &raws {
        sent.push(chain.send(raw).expect("taken"));
        chain.mine(5);
    }
    let second = height_of(&receipt(&chain, sent[1]));
    let ask = |method: &str, params: Value| {
        json_of(client.post(&call(1, method, params)))["result"].take()
    };
    proxy.serve_old_head(5);
    assert_eq!(ask("eth_blockNumber", json!([])), "0x5");
    let tagged = |tag: &str| number(&ask("eth_getBlockByNumber", json!([tag, false]))["number"]);
    assert_eq!(["latest", "safe", "finalized"].map(tagged), [5, 3, 1]);
    let block = |height: u64| ask("eth_getBlockByNumber", json!([hex_of(height), false]));
    assert_eq!((block(5)["hash"].is_null(), block(6)), (false, Value::Null));
    let later = hex_of(chain.block_hash(second));
    assert!(ask("eth_getBlockByHash", json!([later, false])).is_null());
    for tag in ["latest", "pending"] {
        assert_eq!(ask("eth_getTransactionCount", json!([hex_of(SENDER), tag])), "0x1");
        assert_eq!(ask("eth_getBalance", json!([hex_of(PAYEE), tag])), "0x1");
    }
    let receipts = sent.iter().map(|sent| ask("eth_getTransactionReceipt", json!([hex_of(*sent)])));
    assert_eq!(receipts.map(|found| found.is_null()).collect::<Vec<_>>(), [false, true]);
    assert_eq!(ask("eth_getBlockReceipts", json!([hex_of(second)])), json!([]));
    proxy.honest();
    assert_eq!(ask("eth_blockNumber", json!([])), "0xa");
}

#[test]
fn an_endpoint_refuses_comes_back_and_changes_its_node() {
    let chain = Chain::start();
    chain.mine(2);
    let fork = chain.second();
    fork.mine(1);
    let proxy = ChainProxy::start(&chain);
    let client = Client::of(&proxy);
    let height = || client.post(&call(1, "eth_blockNumber", json!([])));
    assert_eq!(json_of(height())["result"], "0x2");
    proxy.refuse();
    assert!(height().is_err());
    proxy.come_back();
    assert_eq!(json_of(height())["result"], "0x2");
    proxy.leads_to(&fork);
    assert_eq!(json_of(height())["result"], "0x3");
    assert_ne!(fork.url(), chain.url());
    let raw = payment(&fork, 0, 1);
    drop(fork);
    assert!(height().is_err(), "no node behind it");
    for _ in 0..2 {
        assert!(client.send(&raw).is_err(), "nor for a send");
    }
}
