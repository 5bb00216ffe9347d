//! The clients' listener against its own description, by schemathesis.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::node::{Node, service};
use super::{SIGNER, pay, payment};
use crate::harness::{ACCOUNTS, Chain, Request, Site, send};
use crate::openapi::{as_described, schemathesis};

/// Generated requests per operation and phase: the whole takes some seconds.
const EXAMPLES_MAX: &str = "8";

/// A body may be as the document says and still be refused: the signer is another's (403), the name
/// was used (409), its data or token is not allowed (422), no transaction has the id (404), or the
/// address has a wrong checksum (400).
const CONFIG: &str = r#"
[auth.wfc]
path = "users.json"
user = "user"
peers = ["user", "other"]

[[operations]]
include-path-regex = "^/api/v1/"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 403, 404, 409, 422]
"#;

/// Goal: a node follows its description. Method: schemathesis with all its checks on a node that
/// owns its signer; small values, so that most requests can be paid. A signer that is suspended
/// answers 503, so the two routes that do it are asked once, by hand.
#[test]
fn a_node_is_as_its_description_says() {
    let (site, chain) = (Site::new(), Chain::start());
    // The longest wait is two seconds below this.
    let short = ("UBSCORE__HTTP__REQUEST_TIMEOUT_MS", "6100");
    let node = Node::start(&site, &chain, "txm-a", &[short]);
    let signer = format!("{SIGNER:#x}");
    assert_eq!(node.operate(&["signer", "add", &signer, "--reason", "a test"]).0, 0);
    assert_eq!(pay(&node, "a-1").status, 202);
    let reply = send(node.clients, &Request::new("", "GET", "/openapi.json")).expect("an answer");
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    let mut document = reply.json();
    let example = &document["paths"]["/api/v1/tx"]["post"]["requestBody"]["content"];
    let example = example["application/json"]["example"].clone();
    let token = service(&[SIGNER], None);
    assert_eq!(node.post(&token, "/api/v1/tx", &example).status, 202, "{example}");

    let schemas = &mut document["components"]["schemas"];
    for name in ["ChainTxRequest", "ChainTxName"] {
        schemas[name]["properties"]["signer"] = json!({"enum": [signer]});
        let id = &mut schemas[name]["properties"]["requestId"];
        *id = json!({"type": "string", "pattern": "^[a-z0-9]{1,8}$"});
    }
    let key = &mut schemas["ChainTxRequest"]["properties"]["businessKey"];
    *key = json!({"type": ["string", "null"], "pattern": "^[a-z0-9]{1,8}$"});
    let payload = &mut schemas["PayloadRequest"]["properties"];
    assert!(payload["value"].is_object() && payload["data"].is_object(), "{payload}");
    payload["value"] = json!({"type": "string", "pattern": "^[1-9][0-9]{0,3}$"});
    payload["data"] = json!({"enum": ["0x", "0x00ff", null]});

    let directory = site.fresh_path("schemathesis");
    fs::create_dir(&directory).expect("a directory");
    let caller = |name: &str, token: String| {
        let bearer = format!("Bearer {token}");
        json!({"name": name, "fixedHeaders": [{"name": "Authorization", "value": bearer}]})
    };
    let callers = [caller("user", token.clone()), caller("other", service(&[ACCOUNTS[1]], None))];
    let write = |name: &str, text: String| fs::write(directory.join(name), text).expect("written");
    write("users.json", json!({"auth": callers}).to_string());
    write("schemathesis.toml", CONFIG.to_owned());
    let judge = |document: &Value, arguments: &[&str]| {
        write("openapi.json", document.to_string());
        Command::new(schemathesis())
            .current_dir(&directory)
            .args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url"])
            .arg(format!("http://{}", node.clients))
            .args(["--generation-deterministic", "--no-color", "--continue-on-failure"])
            .args(["--request-timeout", "60"])
            .args(arguments)
            .output()
            .expect("schemathesis")
    };
    let all = ["--checks", "all", "--max-examples", EXAMPLES_MAX];
    let halts = ["--exclude-path-regex", "/(suspend|resume)$"];
    let phases = ["--phases", "examples,coverage,fuzzing"];
    as_described(&judge(&document, &[&all[..], &halts, &phases].concat()));
    // Two are made above.
    let made = site.sql_value("SELECT count(*) FROM txm.managed_tx");
    assert!(made.parse::<usize>().expect("a count") > 2, "only {made} requests were good");

    for (name, is_set) in [("suspend", true), ("resume", false)] {
        let path = format!("/api/v1/signers/{signer}/{name}");
        let done = node.post(&token, &path, &json!({"reason": "a test"})).json();
        assert_eq!((&done["suspended"], &done["changed"]), (&json!(is_set), &json!(true)));
    }
    assert_eq!(node.post(&token, "/api/v1/tx", &payment("a-1")).status, 200);

    document["components"]["schemas"]["Signer"]["properties"]["nextNonce"] =
        json!({"type": "string"});
    let one = ["--include-path", "/api/v1/signers", "--phases", "fuzzing", "--max-examples", "1"];
    let said = judge(&document, &one);
    let words = String::from_utf8_lossy(&said.stdout);
    assert!(said.status.code() == Some(1) && words.contains("nextNonce"), "{words}");
}
