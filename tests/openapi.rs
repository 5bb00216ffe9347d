//! The public API against its own description, by schemathesis: requests made from the document,
//! good ones and bad ones, each answer compared with the document.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use ubscore::http::auth::{Owner, Role};

use crate::harness::{Recharging, Request, Server, Site, Way, send, text, token};

const USER: u64 = 1001;
const OTHER: u64 = 1002;
const EVENTS: &str = "/api/v1/events";
/// Generated requests per operation and phase.
const EXAMPLES_MAX: &str = "15";

/// The settings of schemathesis beside its arguments. No check is left out.
const CONFIG: &str = r#"
# Two users, so that each is also tried on what is the other's.
[auth.wfc]
path = "users.json"
user = "user"
peers = ["user", "other"]

# A body may be as the document says and still be refused: from and to are the same (400), user_id is another's (403), the cid
# was used with another body (409), the balance is too small or the asset does not move (422).
[[operations]]
include-name = "POST /api/v1/internal_transfer"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 403, 409, 422]

# The same of a transaction: a participant or a follower that is not configured (400), an unknown tx_id (404), one with another
# body or decided (409), a leg that is refused (422).
[[operations]]
include-path-regex = "^/api/v1/transactions"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 404, 409, 422]

# The same of a recharge: no key or a promotion (400, 422), another's user_id (403), an unknown one (404), a key with another body
# or a paid order (409).
[[operations]]
include-path-regex = "^/api/v1/recharge"
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 403, 404, 409, 422]
"#;
/// The paths that are there only where recharges are on.
const OF_RECHARGES: &str = "^/api/v1/(recharge|channels)";

/// The install path of `make test`, unless the environment names another.
pub(crate) fn schemathesis() -> PathBuf {
    let fixed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/schemathesis/bin/st");
    let path = env::var_os("SCHEMATHESIS").map_or_else(fixed, PathBuf::from);
    let place = path.display();
    assert!(path.is_file(), "schemathesis is missing at {place}: `make test` installs it there");
    path
}

/// The server's document, without a token.
fn document(server: &Server) -> Value {
    let reply = send(server.http, &Request::new("", "GET", "/openapi.json")).expect("an answer");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/json"));
    reply.json()
}

/// The document with the data that it cannot know: the existing assets, with their decimals, and
/// the token's user. Without it, nearly all generated requests are refused for the same few
/// reasons.
fn narrowed(mut document: Value, assets: &Value) -> Value {
    let rows = assets["assets"].as_array().expect("an array").iter();
    let symbols: Vec<&Value> = rows.map(|row| &row["symbol"]).collect();
    let request = &mut document["components"]["schemas"]["TransferRequest"]["properties"];
    for field in ["amount", "asset", "user_id"] {
        assert!(request[field].is_object(), "{field}: {request}");
    }
    request["amount"]["pattern"] = json!(r"^[1-9][0-9]{0,2}(\.[0-9]{1,8})?$");
    request["asset"]["enum"] = json!(symbols);
    request["user_id"]["enum"] = json!([USER, null]);
    let schemas = &mut document["components"]["schemas"];
    let leg = &mut schemas["TransactionLeg"]["properties"];
    leg["amount"]["pattern"] = json!(r"^[1-9](\.[0-9]{1,8})?$");
    leg["asset"]["enum"] = json!(symbols);
    // Most legs can be booked; the others are refused by name.
    let place = |account: &str, user: u64| json!({"account": account, "user_id": user});
    leg["from"] = json!({"enum": [place("SPOT", USER), place("FUNDING", USER)]});
    leg["to"] = json!({"enum": [place("SPOT", OTHER), place("FUNDING", OTHER), "OUTSIDE"]});
    for path in ["/api/v1/internal_transfers", "/api/v1/balances"] {
        let parameters = document["paths"][path]["get"]["parameters"].as_array_mut();
        let mut parameters = parameters.expect("an array").iter_mut();
        let asset = parameters.find(|parameter| parameter["name"] == "asset").expect(path);
        asset["schema"]["enum"] = json!(symbols);
    }
    document
}

/// Writes the two callers: name, user and role of each.
fn callers(directory: &Path, callers: [(&str, u64, Option<Role>); 2]) {
    let callers = callers.map(|(name, user, role)| {
        let bearer = format!("Bearer {}", token(user, role));
        json!({"name": name, "fixedHeaders": [{"name": "Authorization", "value": bearer}]})
    });
    fs::write(directory.join("users.json"), json!({"auth": callers}).to_string()).expect("written");
}

/// The report of a run that has found nothing.
pub(crate) fn as_described(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}{why}");
    println!("{said}");
    said
}

/// Has schemathesis compare a server with a document.
fn judge(directory: &Path, server: &Server, document: &Value, arguments: &[&str]) -> Output {
    let path = directory.join("openapi.json");
    fs::write(&path, document.to_string()).expect("written");
    Command::new(schemathesis())
        .current_dir(directory)
        .args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url"])
        .arg(format!("http://{}", server.http))
        .args(["--generation-deterministic", "--no-color", "--continue-on-failure"])
        .args(["--request-timeout", "60"])
        .args(arguments)
        .output()
        .expect("schemathesis")
}

/// Goal: the server follows its description, in every operation, parameter, body, status, header
/// and schema, and does nothing else. Method: schemathesis with all its checks, the same requests
/// each time; and once more with a false description, which must be found.
#[test]
fn the_server_is_as_its_description_says() {
    let site = Site::new();
    let server = site.start();
    let directory = site.fresh_path("schemathesis");
    fs::create_dir(&directory).expect("a directory");
    let users = [("user", USER, None), ("other", OTHER, None)];
    callers(&directory, users);
    fs::write(directory.join("schemathesis.toml"), CONFIG).expect("written");

    // Enough on both sides for the coming requests.
    for asset in ["BTC", "ETH", "USDT"] {
        server.deposit(USER, asset, "200000");
        assert_eq!(server.post(USER, &Way::ToSpot.body(asset, "100000")).status, 200);
    }
    let assets = server.get(USER, "/api/v1/assets").json();
    let mut document = narrowed(document(&server), &assets);
    // A stream has no end to wait for: `events` tests it.
    let all = ["--checks", "all", "--max-examples", EXAMPLES_MAX, "--exclude-path", EVENTS];
    // A user may use no route of services: the services below do. Recharges are off.
    let of_services = "^/api/v1/transactions";
    let beside = format!("{of_services}|{OF_RECHARGES}");
    let output = judge(
        &directory,
        &server,
        &document,
        &[&all[..], &["--exclude-path-regex", &beside]].concat(),
    );
    let said = as_described(&output);
    for phase in ["Examples", "Coverage", "Fuzzing", "Stateful"] {
        assert!(said.contains(&format!("✅ {phase}")), "{phase} was left out: {said}");
    }
    let service = |name: &str| Owner::new(name).map(Role::Service);
    callers(&directory, [("user", USER, service("shop")), ("other", OTHER, service("desk"))]);
    let output = judge(
        &directory,
        &server,
        &document,
        &[&all[..], &["--include-path-regex", of_services]].concat(),
    );
    as_described(&output);
    let done = "SELECT count(*) > 0 FROM transactions_tb WHERE state = 40";
    assert_eq!(site.sql_value(done), "t", "no transaction was booked");
    let moved = "SELECT count(*) > 10 FROM transfers WHERE state = 40";
    assert_eq!(site.sql_value(moved), "t", "it has moved too little: {said}");

    callers(&directory, users);
    document["components"]["schemas"]["Asset"]["properties"]["precision"] =
        json!({"type": "string"});
    let one = ["--include-path", "/api/v1/assets", "--phases", "fuzzing", "--max-examples", "1"];
    let output = judge(&directory, &server, &document, &one);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("precision"), "{said}");
    site.wait_for_rest();
    // Transactions have moved money between users, so their sums are those of all.
    site.assert_verified();
}

/// Goal: the same of the routes of recharges, where they are on.
#[test]
fn recharges_are_as_their_description_says() {
    let site = Site::new().with("UBSCORE__RECHARGE__USER_OPEN_MAX", 1_000);
    let desk = Recharging::on(site);
    let server = desk.start();
    let directory = desk.site.fresh_path("schemathesis");
    fs::create_dir(&directory).expect("a directory");
    callers(&directory, [("user", USER, None), ("other", OTHER, None)]);
    fs::write(directory.join("schemathesis.toml"), CONFIG).expect("written");
    let mut document = document(&server);
    let example = &document["paths"]["/api/v1/recharge"]["post"]["requestBody"]["content"];
    let made = server.recharge(USER, &example["application/json"]["example"]);
    assert_eq!(made.status, 201, "{made:?}");
    // Known names, so that most wishes are no mistakes.
    let request = &mut document["components"]["schemas"]["RechargeRequest"]["properties"];
    request["amount"]["pattern"] = json!(r"^[1-9][0-9]{0,2}(\.[0-9]{1,2})?$");
    request["asset"]["enum"] = json!(["CNY"]);
    request["channel"]["enum"] = json!(["wechat", "card"]);
    request["user_id"]["enum"] = json!([USER, null]);
    // A wait for an order that stays PAYING takes as long as it asks for.
    let waits = ["--max-response-time", "50"];
    let all = ["--checks", "all", "--max-examples", EXAMPLES_MAX];
    let only = [&all[..], &waits, &["--include-path-regex", OF_RECHARGES]].concat();
    as_described(&judge(&directory, &server, &document, &only));
    let made = "SELECT count(*) > 3 FROM recharges_tb";
    assert_eq!(desk.site.sql_value(made), "t", "too few wishes were good");
}

/// Each example in the document can be sent to `serve --dev` unchanged.
#[test]
fn the_documents_examples_work() {
    let site = Site::new();
    let server = site.start();
    let document = document(&server);
    let operation = &document["paths"]["/api/v1/internal_transfer"]["post"];
    let example = &operation["requestBody"]["content"]["application/json"]["example"];
    let first = server.post(USER, example);
    assert_eq!((first.status, &first.json()["state"]), (200, &json!("COMMITTED")), "{first:?}");
    let again = server.post(USER, example);
    assert_eq!((again.status, again.header("idempotent-replayed")), (200, Some("true")));
    let fields = &document["components"]["schemas"]["TransferRequest"]["properties"];
    for field in ["asset", "amount", "cid"] {
        assert_eq!(fields[field]["example"], example[field], "{field}");
    }
    let asset = text(&example["asset"]);
    assert_eq!(server.get(USER, &format!("/api/v1/balances?asset={asset}")).status, 200);
    site.assert_verified();
}
