//! Each input that is refused, row by row.

use std::os::unix::fs::PermissionsExt;

use alloy_primitives::U256;
use serde_json::{Value, json};

use super::node::{Node, command, service};
use super::{PAYEE, SIGNER, payment, place};
use crate::harness::{
    ACCOUNTS, Chain, ChainProxy, Lie, REVERTING, Site, assert_refused, eventually, hex_of, refused,
    send_text,
};

/// Goal: no input out of its form makes a row. Method: the table of the specification, each over
/// HTTP; at the end there is no row and no nonce.
#[test]
fn each_wrong_input_is_refused_and_makes_no_row() {
    let (site, _chain, node) = place();
    let token = service(&[SIGNER, ACCOUNTS[8]], None);
    let with = |pointer: &str, value: Value| {
        let mut body = payment("a-1");
        *body.pointer_mut(pointer).expect("a field") = value;
        body
    };
    let beside = |name: &str, value: Value| {
        let mut body = payment("a-1");
        body[name] = value;
        body
    };
    let in_payload = |name: &str, value: Value| {
        let mut body = payment("a-1");
        body["payload"][name] = value;
        body
    };
    let without = |pointer: &str| {
        let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
        let mut body = payment("a-1");
        let parent = body.pointer_mut(parent).and_then(Value::as_object_mut).expect("an object");
        parent.remove(name).expect("a field");
        body
    };
    let of_token = |token: Value| {
        let mut body = without("/payload/value");
        body["payload"]["token"] = token;
        body
    };
    let payee = format!("{PAYEE:#x}");
    let mixed = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92267";
    let beyond = format!("{}0", U256::MAX);
    let rows = [
        (with("/signer", json!("me")), 400, "INVALID_ADDRESS"),
        (with("/signer", json!("0x12")), 400, "INVALID_ADDRESS"),
        (with("/signer", json!(mixed)), 400, "INVALID_ADDRESS"),
        (with("/payload/to", json!("0x12")), 400, "INVALID_ADDRESS"),
        (with("/signer", json!(format!("{:#x}", ACCOUNTS[8]))), 422, "SIGNER_UNKNOWN"),
        (with("/signer", json!(format!("{:#x}", ACCOUNTS[1]))), 403, "FORBIDDEN"),
        (without("/requestId"), 400, "INVALID_REQUEST"),
        (without("/signer"), 400, "INVALID_REQUEST"),
        (without("/payload/to"), 400, "INVALID_REQUEST"),
        (without("/payload/value"), 400, "INVALID_REQUEST"),
        (with("/requestId", json!("")), 400, "INVALID_REQUEST"),
        (with("/requestId", json!("a".repeat(129))), 400, "INVALID_REQUEST"),
        (with("/requestId", json!("a b")), 400, "INVALID_REQUEST"),
        (with("/requestId", json!("fill/7")), 400, "INVALID_REQUEST"),
        (with("/requestId", json!("withdrawal/7")), 403, "FORBIDDEN"),
        (with("/requestId", json!(7)), 400, "INVALID_REQUEST"),
        (beside("businessKey", json!("withdrawal/7")), 403, "FORBIDDEN"),
        (beside("unknown", json!(1)), 400, "INVALID_REQUEST"),
        (beside("nonce", json!(7)), 400, "INVALID_REQUEST"),
        (beside("nonce", json!("0")), 400, "INVALID_REQUEST"),
        (beside("deadline", json!("soon")), 400, "INVALID_REQUEST"),
        (beside("deadline", json!("1969-12-31T23:59:59Z")), 400, "INVALID_REQUEST"),
        (beside("deadline", json!("-000001-01-01T00:00:00Z")), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!(1)), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!("-1")), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!("1.5")), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!("1e18")), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!(1.5)), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!(beyond)), 400, "INVALID_REQUEST"),
        (with("/payload/value", json!(format!("0x1{}", "0".repeat(64)))), 400, "INVALID_REQUEST"),
        (with("/payload/to", Value::Null), 400, "INVALID_REQUEST"),
        (in_payload("data", json!("0x0")), 400, "INVALID_REQUEST"),
        (in_payload("data", json!(format!("0x{}", "00".repeat(32_769)))), 400, "INVALID_REQUEST"),
        (in_payload("gas", json!(20_999)), 400, "INVALID_REQUEST"),
        (in_payload("gas", json!(1_000_001)), 400, "INVALID_REQUEST"),
        (in_payload("gas", json!("21000")), 400, "INVALID_REQUEST"),
        (in_payload("token", json!({"contract": payee, "amount": "1"})), 400, "INVALID_REQUEST"),
        (of_token(json!({"contract": payee, "amount": "0"})), 400, "INVALID_AMOUNT"),
        (of_token(json!({"contract": payee, "amount": "-1"})), 400, "INVALID_REQUEST"),
        (of_token(json!({"contract": "0x12", "amount": "1"})), 400, "INVALID_ADDRESS"),
        (of_token(json!({"contract": mixed, "amount": "1"})), 400, "INVALID_ADDRESS"),
        (of_token(json!({"contract": payee, "amount": "1"})), 422, "SIGNER_POLICY"),
        (in_payload("data", json!("0x00")), 422, "SIGNER_POLICY"),
    ];
    for (body, status, code) in &rows {
        let reply = node.post(&token, "/api/v1/tx", body);
        println!("{body}");
        assert_refused(&reply, *status, code);
    }
    let head = format!("Authorization: Bearer {token}\r\nContent-Type: application/json\r\n");
    let doubled = payment("a-1").to_string().replacen('{', r#"{"requestId":"b","#, 1);
    for (body, status) in [(doubled.as_str(), 400), ("[]", 400), ("{", 400), ("", 400)] {
        let reply = send_text(node.clients, "POST", "/api/v1/tx", &head, body).expect("an answer");
        assert_refused(&reply, status, "INVALID_REQUEST");
    }
    let other = format!("Authorization: Bearer {token}\r\nContent-Type: text/plain\r\n");
    let reply = send_text(node.clients, "POST", "/api/v1/tx", &other, "{}").expect("an answer");
    assert_refused(&reply, 415, "INVALID_REQUEST");
    refuse_each_wrong_read(&node, &token);
    assert_eq!(site.sql_value("SELECT count(*) FROM txm.managed_tx"), "0");
    let cursor = "SELECT next_nonce FROM txm.signer_nonce_cursor";
    assert_eq!(site.sql_value(cursor), "0");
}

/// Each read that is out of its form, or of nothing.
fn refuse_each_wrong_read(node: &Node, token: &str) {
    for (path, status, code) in [
        ("/api/v1/tx/7", 404, "TX_NOT_FOUND"),
        ("/api/v1/tx/00000000-0000-7000-8000-000000000000", 404, "TX_NOT_FOUND"),
        ("/api/v1/tx/by-request?signer=me&requestId=a", 400, "INVALID_ADDRESS"),
        ("/api/v1/tx/by-request?requestId=a", 400, "INVALID_REQUEST"),
        ("/api/v1/tx/by-request?signer=SIGNER&requestId=a%20b", 400, "INVALID_REQUEST"),
        ("/api/v1/tx/by-request?signer=SIGNER&requestId=a", 404, "TX_NOT_FOUND"),
        ("/api/v1/tx/events?after=7", 400, "INVALID_REQUEST"),
        ("/api/v1/tx/events?after=1.1.9223372036854775808", 400, "INVALID_REQUEST"),
        ("/api/v1/tx/events?waitMs=30001", 400, "INVALID_REQUEST"),
        ("/api/v1/tx?signer=me", 400, "INVALID_ADDRESS"),
        ("/api/v1/tx", 400, "INVALID_REQUEST"),
        ("/api/v1/tx?unknown=1", 400, "INVALID_REQUEST"),
        ("/api/v1/nothing", 404, "NOT_FOUND"),
    ] {
        let path = path.replace("SIGNER", &format!("{SIGNER:#x}"));
        println!("{path}");
        assert_refused(&node.get(token, &path), status, code);
    }
}

/// Goal: the first nonce of a signer is not that of an endpoint alone. Method: two endpoints, one
/// of which does not answer; then both. A signer that is there already tells its stored nonce.
#[test]
fn a_signer_is_added_by_the_word_of_every_endpoint() {
    let (site, chain) = (Site::new(), Chain::start());
    let urls = format!("{},http://127.0.0.1:1", chain.url());
    let urls = ("UBSCORE__TXM__CHAIN__RPC_URLS", urls.as_str());
    let node = Node::start(&site, &chain, "txm-a", &[urls]);
    let signer = format!("{SIGNER:#x}");
    let add = ["signer", "add", &signer, "--reason", "a test"];
    let (exit, _, why) = node.operate(&add);
    assert!(exit == 1 && why.contains("1 of 2 endpoints"), "{why}");
    drop(node);
    let node = Node::start(&site, &chain, "txm-a", &[]);
    assert_eq!(node.operate(&add).0, 0);
    site.sql("UPDATE txm.signer_nonce_cursor SET next_nonce = 7");
    let (exit, out, _) = node.operate(&[&add[..], &["--format", "json"]].concat());
    let said: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((exit, &said["nextNonce"], &said["added"]), (0, &json!(7), &json!(false)), "{out}");
}

/// Goal: a node that could harm refuses the start and names the key. Method: each wrong setting.
#[test]
fn a_start_with_a_wrong_setting_is_refused_with_its_key() {
    let (site, chain) = (Site::new(), Chain::start());
    let rows = [
        (("UBSCORE__TXM__CHAIN__QUORUM", "2"), 2, "txm.chain.quorum = 2"),
        (("UBSCORE__TXM__LEASE__SKEW_MS", "250"), 2, "txm.lease.skew_ms = 250"),
        (("UBSCORE__TXM__LEASE__RENEW_INTERVAL_MS", "500"), 2, "txm.lease.renew_interval_ms"),
        (("UBSCORE__TXM__OPS_LISTEN", "0.0.0.0:0"), 2, "txm.ops_listen = 0.0.0.0:0"),
        (("UBSCORE__TXM__CHAIN__RPC_URLS", ""), 2, "txm.chain.rpc_urls is missing"),
        (("UBSCORE__TXM__CHAIN__CHAIN_ID", "1"), 1, "txm.chain.chain_id = 1"),
    ];
    for ((name, value), code, words) in rows {
        let mut command = command(&site, &chain, "txm-a");
        command.env(name, value);
        let (exit, said) = refused(command);
        assert!(exit == code && said.contains(words), "{name} = {value}: {exit}: {said}");
    }
}

/// Goal: a transfer of a token that cannot be paid spends no nonce. Method: an allowed token that
/// has no code, and one that reverts each call, also `balanceOf`.
#[test]
fn a_token_that_cannot_be_paid_would_revert() {
    let (site, chain) = (Site::new(), Chain::start());
    let (token, reverting) = (format!("{:#x}", ACCOUNTS[7]), hex_of(chain.deploy(REVERTING)));
    let tokens = [token.as_str(), reverting.as_str()].join(",");
    let allow = ("UBSCORE__TXM__SIGNERS__ALLOW", tokens.as_str());
    let node = Node::start(&site, &chain, "txm-a", &[allow]);
    let signer = format!("{SIGNER:#x}");
    assert_eq!(node.operate(&["signer", "add", &signer, "--reason", "a test"]).0, 0);
    let mut body = payment("a-1");
    body["payload"] =
        json!({"to": format!("{PAYEE:#x}"), "token": {"contract": token, "amount": "1"}});
    let by = service(&[SIGNER], None);
    let reply = eventually("an answer that is not retryable", || {
        let reply = node.post(&by, "/api/v1/tx", &body);
        Some(reply).filter(|reply| reply.status < 500)
    });
    assert_refused(&reply, 422, "TX_WOULD_REVERT");
    // Only the tokens are allowed.
    assert_refused(&node.post(&by, "/api/v1/tx", &payment("a-2")), 422, "SIGNER_POLICY");
    body["requestId"] = json!("a-3");
    body["nonce"] = json!("later");
    body["payload"]["token"]["contract"] = json!(reverting);
    assert_eq!(node.post(&by, "/api/v1/tx", &body).status, 202);
    let path = format!("/api/v1/tx/by-request?signer={signer}&requestId=a-3&waitMs=1000");
    let ended = eventually("its end", || {
        Some(node.get(&by, &path).json()).filter(|row| row["final"] == true)
    });
    let end = (&ended["state"], &ended["code"], &ended["refusal"], &ended["nonce"]);
    let expected = (&json!("FAILED"), &json!("REFUSED"), &json!("TX_WOULD_REVERT"), &Value::Null);
    assert_eq!(end, expected, "{ended}");
    assert_eq!(site.sql_value("SELECT next_nonce FROM txm.signer_nonce_cursor"), "0");
}

/// Goal: a node with another database or with open keys refuses the start. Method: the binding
/// of the database is changed, another node keeps its lease, a key file is open to others; then all
/// is well again, and the name of a node that runs is a warning.
#[test]
fn a_start_on_anothers_database_or_with_open_keys_is_refused() {
    let (site, chain, node) = place();
    let lease = [
        ("UBSCORE__TXM__LEASE__DURATION_MS", "2000"),
        ("UBSCORE__TXM__LEASE__RENEW_INTERVAL_MS", "400"),
    ];
    assert_eq!(super::pay(&node, "a-1").status, 202);
    let mut other = command(&site, &chain, "txm-b");
    let (exit, said) = refused({
        other.envs(lease);
        other
    });
    assert!(exit == 1 && said.contains("lease: it has duration"), "{exit}: {said}");
    assert_eq!(node.terminate(), Some(0));
    let was = "SELECT chain_id || '/' || encode(genesis_hash, 'hex') FROM txm.settings";
    let kept = site.sql_value(was);
    for change in ["chain_id = 1", "genesis_hash = sha256(genesis_hash)"] {
        site.sql(&format!("UPDATE txm.settings SET {change}"));
        let (exit, said) = refused(command(&site, &chain, "txm-a"));
        assert!(exit == 1 && said.contains("chain: it has chain"), "{change}: {exit}: {said}");
        let (id, genesis) = kept.split_once('/').expect("two parts");
        let set = format!("chain_id = {id}, genesis_hash = decode('{genesis}', 'hex')");
        site.sql(&format!("UPDATE txm.settings SET {set}"));
    }
    let opened = command(&site, &chain, "txm-a");
    let named = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
        (name == "UBSCORE__TXM__SIGNERS__KEYSTORE_DIR").then(|| value.map(std::path::PathBuf::from))
    };
    let keys = opened.get_envs().find_map(named).flatten().expect("a directory of keys");
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(keys.join("one"), open).expect("our own file");
    let (exit, said) = refused(opened);
    assert!(exit == 1 && said.contains("mode 644"), "{exit}: {said}");
    let node = Node::start(&site, &chain, "txm-a", &[]);
    assert_eq!(super::pay(&node, "a-1").status, 200);
    let second = Node::start(&site, &chain, "txm-a", &[]);
    assert_eq!(super::pay(&second, "a-1").status, 200, "incarnations tell them apart");
}

/// Goal: no lie about blocks ends a row, or the node. Method: the endpoint changes each block, or
/// its answer; a payment is mined meanwhile; then the truth.
#[test]
fn lies_about_blocks_end_nothing() {
    let (site, chain) = (Site::new(), Chain::start());
    let proxy = ChainProxy::start(&chain);
    let url = proxy.url();
    let node = Node::start(&site, &chain, "txm-a", &[("UBSCORE__TXM__CHAIN__RPC_URLS", &url)]);
    let signer = format!("{SIGNER:#x}");
    assert_eq!(node.operate(&["signer", "add", &signer, "--reason", "a test"]).0, 0);
    assert_eq!(super::pay(&node, "a-1").status, 202);
    let method = "eth_getBlockByNumber";
    let itself = chain.block_hash(chain.height()).to_string();
    let by = service(&[SIGNER], None);
    let path = format!("/api/v1/tx/by-request?signer={signer}&requestId=a-1");
    let lies = [
        ("a number above 2^64", Lie::field("number", json!("0x10000000000000000"))),
        ("a head that falls", Lie::field("number", json!("0x0"))),
        ("one hash for all", Lie::field("hash", json!(itself))),
        ("no parent", Lie::field("parentHash", Value::Null)),
        ("no block", Lie::result(Value::Null)),
        ("a word", Lie::result(json!("0x1"))),
        ("a page", Lie::Html),
        ("half an answer", Lie::HalfAnswer),
        ("9 MiB", Lie::LongAnswer),
        ("a compressed answer", Lie::Gzip),
        ("a redirect", Lie::Redirect),
        ("another id", Lie::SwapIds),
    ];
    for (name, lie) in lies {
        proxy.lie(method, lie);
        let before = proxy.calls(method);
        chain.mine(1);
        eventually(name, || (proxy.calls(method) >= before + 3).then_some(()));
        let row = node.get(&by, &path).json();
        assert_ne!(row["final"], true, "{name}: {row}");
        proxy.honest();
    }
    let ended = eventually("its end", || {
        chain.mine(1);
        Some(node.get(&by, &path).json()).filter(|row| row["final"] == true)
    });
    assert_eq!(ended["state"], "CONFIRMED", "{ended}");
    assert_eq!(proxy.redirects_followed(), 0);
}
