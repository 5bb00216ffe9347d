//! Assets, development money, files and directories.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};
use ubscore::alert::Alert;

use crate::harness::{
    self, Balance, COIN, Server, Site, Way, assert_refused, eventually, force, segments,
};
use crate::{alerts, runbook};

const USER: u64 = 1001;

fn set_asset(server: &Server, symbol: &str, change: &Value) -> (u16, Value) {
    let mut body = change.clone();
    body["reason"] = json!("a test");
    let reply = server.admin("PUT", &format!("/admin/v1/assets/{symbol}"), &body);
    (reply.status, reply.json())
}

/// Goal: no change of a precision makes money. Method: the DBA's statement of the finding, refused;
/// then carried out with the trigger disabled, followed by the routine change of an asset that put
/// it in force before.
#[test]
fn f02_a_precision_never_changes() {
    let (site, webhook) = alerts::site();
    let server = site.start();
    server.transfer_committed(USER, Way::ToSpot, "100");
    site.wait_for_rest();
    let precision =
        "UPDATE assets_tb SET precision = 6, min_transfer_amount = 1000000 WHERE symbol = 'USDT'";
    let session = site.session();
    for statement in [
        precision,
        "UPDATE assets_tb SET asset_id = 9 WHERE symbol = 'USDT'",
        "UPDATE assets_tb SET symbol = 'USDX' WHERE symbol = 'USDT'",
        "DELETE FROM assets_tb WHERE symbol = 'USDT'",
        "TRUNCATE assets_tb",
    ] {
        assert_eq!(session.sql_refused(statement), "UB003", "{statement}");
    }
    session.sql("UPDATE assets_tb SET min_transfer_amount = 1000000 WHERE symbol = 'USDT'");

    session.sql("ALTER TABLE assets_tb DISABLE TRIGGER USER");
    session.sql(precision);
    session.sql("UPDATE assets_tb SET status = 2 WHERE symbol = 'ETH'");
    let (status, btc) = set_asset(&server, "BTC", &json!({"max": "5"}));
    assert_eq!((status, &btc["max"]), (200, &json!("5")), "{btc}");
    // The change of one asset puts nothing of another one in force.
    let assets = server.get(USER, "/api/v1/assets").json();
    assert_eq!((&assets["assets"][1]["status"]), &json!("ACTIVE"), "{assets}");
    assert_eq!(assets["assets"][2]["precision"], json!(8), "{assets}");
    let had = Balance::at_rest(9_900 * COIN, 100 * COIN);
    assert_eq!(server.usdt(USER), had);
    let (status, usdt) = set_asset(&server, "USDT", &json!({"min": "0.1"}));
    assert_eq!(
        (status, &usdt["precision"], &usdt["status"]),
        (200, &json!(8), &json!("SUSPENDED"))
    );
    let raised = alerts::assert_raised(&server, &webhook, Alert::AssetUnreadable);
    assert!(
        raised["message"].as_str().expect("text").contains("asset 3 USDT: its precision"),
        "{raised}"
    );
    assert_eq!(server.usdt(USER), had);
    assert_refused(&server.transfer(USER, Way::ToFunding, "10000"), 422, "ASSET_SUSPENDED");

    session.sql("UPDATE assets_tb SET precision = 8 WHERE symbol = 'USDT'");
    session.sql("ALTER TABLE assets_tb ENABLE TRIGGER USER");
    let (status, usdt) = set_asset(&server, "USDT", &json!({"status": "ACTIVE"}));
    assert_eq!((status, &usdt["status"]), (200, &json!("ACTIVE")), "{usdt}");
    server.transfer_committed(USER, Way::ToFunding, "100");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: one bad row disables no control. Method: rows as a DBA may have left them; another asset
/// is suspended, and the service started again.
#[test]
fn f08_one_bad_row_disarms_nothing() {
    let (site, webhook) = alerts::site();
    let server = site.start();
    let session = site.session();
    // Its minimum is rounded to 0.
    let ten = "INSERT INTO assets_tb VALUES (9, 'TEN', 2, 1, TRUE, 0.001, 10000)";
    assert_eq!(session.sql_refused(ten), "23514");
    // Rows of a database without the rules.
    let positive = "ALTER TABLE assets_tb DROP CONSTRAINT assets_tb_min_transfer_amount_check";
    session.sql(positive);
    session.sql("ALTER TABLE assets_tb DROP CONSTRAINT assets_tb_precision_check");
    session.sql(ten);
    session.sql("INSERT INTO assets_tb VALUES (10, 'NINE', 9, 1, TRUE, 1, 100)");
    let rule = "ALTER TABLE assets_tb ADD CONSTRAINT assets_units_check CHECK (\
                  min_transfer_amount > 0) NOT VALID";
    session.sql(rule);
    for status in ["SUSPENDED", "ACTIVE", "SUSPENDED"] {
        let (code, btc) = set_asset(&server, "BTC", &json!({"status": status}));
        assert_eq!((code, &btc["status"]), (200, &json!(status)), "{btc}");
    }
    let btc = Way::ToSpot.body_with_cid("BTC", "1", "btc");
    assert_refused(&server.post(USER, &btc), 422, "ASSET_SUSPENDED");
    server.stop();

    let server = site.start();
    alerts::assert_raised(&server, &webhook, Alert::AssetUnreadable);
    for line in [
        "asset 9 TEN: min_transfer_amount 0 is no amount in smallest units; the asset is suspended",
        "asset 10 NINE: its precision cannot be read; the asset is left out",
    ] {
        server.says(line);
    }
    assert_refused(&server.post(USER, &btc), 422, "ASSET_SUSPENDED");
    server.change_asset("BTC", json!({"status": "ACTIVE"}));
    assert_eq!(server.post_ended(USER, &btc).status, 200);
    assert_refused(&server.post(USER, &Way::ToSpot.body("TEN", "1")), 422, "ASSET_SUSPENDED");
    assert_refused(&server.post(USER, &Way::ToSpot.body("NINE", "1")), 400, "INVALID_ASSET");
    // The fault is reported, and it is repaired in the same way.
    let (code, said) = set_asset(&server, "TEN", &json!({"max": "50"}));
    let message = said["message"].as_str().expect("text");
    assert_eq!((code, &said["code"]), (400, &json!("INVALID_REQUEST")), "{said}");
    assert!(message.contains("assets_units_check"), "{said}");
    let (code, ten) = set_asset(&server, "TEN", &json!({"min": "0.01"}));
    assert_eq!((code, &ten["status"]), (200, &json!("ACTIVE")), "{ten}");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

fn said(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A configuration of production beside a site: `serve --config` on its database and data
/// directory.
fn production(site: &Site) -> (std::path::PathBuf, Command) {
    let file = site.fresh_path("production.toml");
    let text = format!(
        "data_dir = \"{}\"\n[http]\nlisten = \"127.0.0.1:0\"\n[ops]\nlisten = \"127.0.0.1:0\"\n\
         [auth]\nsecret = \"a secret of production, of 32 bytes and more\"\n\
         [postgres]\nurl = \"{}\"\n[engine]\naccounts_max = 10000\noutcomes_max = 100000\n\
         [wal]\nsegment_bytes = 1048576\n",
        site.data_dir.display(),
        site.url()
    );
    fs::write(&file, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["serve", "--config"]).arg(&file);
    (file, command)
}

/// Goal: development money is made only on a database that `--dev` made. Method: a database that
/// was used without it, started with it, and under a load.
#[test]
fn f03_development_money_stays_on_a_database_of_development() {
    let site = Site::new();
    Server::start(production(&site).1).stop();
    site.wait_for_disconnected();
    site.sql("INSERT INTO assets_tb VALUES (7, 'EUR', 2, 1, TRUE, 1, 100000)");
    let rows = || {
        ["assets_tb", "external_operations", "engine_state", "accounts_tb"]
            .map(|table| site.sql(&format!("TABLE {table} ORDER BY 1, 2")))
    };
    let before = rows();
    let (code, why) = site.start_refused();
    assert_eq!(code, 2, "{why}");
    let named = format!("the database {} was not made by `serve --dev`", site.database);
    assert!(why.contains(&named), "{why}");
    assert_eq!(rows(), before);

    let (config, command) = production(&site);
    let server = Server::start(command);
    let load = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
        command.args(["load", "--users", "2", "--duration", "100ms", "--warm-up", "10ms"]);
        command.args(["--asset", "EUR", "--connections", "2", "--rate", "20", "--amount", "0.01"]);
        command.args(["--url", &format!("http://{}", server.http)]);
        command.args(["--ops", &format!("http://{}", server.ops)]);
        said(&command.arg("--config").arg(&config).args(more).output().expect("the binary"))
    };
    let (code, why) = load(&[]);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains(&format!("repeat with --mint-on {}", site.database)), "{why}");
    let (code, why) = load(&["--mint-on", "another"]);
    assert_eq!(code, Some(1), "{why}");
    assert!(why.contains("and not another"), "{why}");
    assert_eq!(site.sql("SELECT FROM externals"), Vec::<Vec<String>>::new());
    let (code, why) = load(&["--mint-on", &site.database]);
    assert_eq!(code, Some(0), "{why}");
    server.stop();

    // A start with --dev may die between the schema and the mark; the next one continues.
    let site = Site::new();
    site.start().stop();
    assert_eq!(site.sql_value("SELECT development FROM engine_state"), "t");
    let server = site.start();
    assert_eq!(server.usdt(USER).funding, Some(10_000 * COIN));
}

/// Goal: an alert goes to its address and nowhere else. Method: an address that redirects every
/// request.
#[test]
fn f19_an_alert_follows_no_redirect() {
    let site = Site::new();
    site.start().stop();
    site.sql(
        "ALTER TABLE assets_tb DROP CONSTRAINT assets_tb_min_transfer_amount_check; \
         INSERT INTO assets_tb VALUES (9, 'TEN', 2, 1, TRUE, 0, 10000)",
    );
    let elsewhere = TcpListener::bind("127.0.0.1:0").expect("a port");
    elsewhere.set_nonblocking(true).expect("set");
    let redirecting = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = redirecting.local_addr().expect("an address");
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: http://{}/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        elsewhere.local_addr().expect("an address")
    );
    thread::spawn(move || {
        for stream in redirecting.incoming() {
            let mut stream = stream.expect("a call");
            let mut request = [0; 4096];
            let mut length = 0;
            while !request[..length].ends_with(b"}") {
                length += stream.read(&mut request[length..]).expect("a request");
            }
            stream.write_all(answer.as_bytes()).ok();
        }
    });
    let site = site.with("UBSCORE__ALERT__WEBHOOK_URL", format!("http://{address}/hook"));
    let server = site.start();
    let failed = "ubscore_alerts_sent_total{outcome=\"failed\"}";
    eventually("the alert to be given up", || (server.metric(failed) >= 1).then_some(()));
    server.says("it answered 302");
    assert_eq!(server.metric("ubscore_alerts_sent_total{outcome=\"delivered\"}"), 0);
    let called = elsewhere.accept().map(drop).map_err(|error| error.kind());
    assert_eq!(called, Err(ErrorKind::WouldBlock));
}

/// Goal: users and amounts are readable by the service's user alone. Method: a start under a umask
/// of 0.
#[test]
fn f20_log_and_snapshots_are_private() {
    let site = Site::new();
    let inner = site.command();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\""]).arg(inner.get_program());
    command.args(inner.get_args());
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::start(command);
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    force(&site, &server);
    assert_eq!(server.admin("POST", "/admin/v1/halt", &json!({"reason": "a test"})).status, 200);
    let mut places = vec![site.data_dir.clone()];
    let mut files = 0;
    while let Some(place) = places.pop() {
        let found = fs::metadata(&place).expect("the file exists");
        let mode = found.permissions().mode() & 0o777;
        assert_eq!(mode, if found.is_dir() { 0o700 } else { 0o600 }, "{}", place.display());
        if found.is_dir() {
            let entries = fs::read_dir(&place).expect("a directory");
            places.extend(entries.map(|entry| entry.expect("an entry").path()));
        } else {
            files += 1;
        }
    }
    assert!(files >= 4, "lock, segment, snapshot, halted: {files}");
}

/// Goal: one process has the log, even if the lock's file is lost. Method: the file removed as
/// "stale".
#[test]
fn f21_a_removed_lock_file_opens_nothing() {
    let site = Site::new();
    let server = site.start();
    fs::remove_file(site.log_dir().join("lock")).expect("a lock");
    let before = segments(&site).len();
    let (code, why) = site.start_refused();
    assert_ne!(code, 0, "{why}");
    assert!(why.contains(&server.pid().to_string()), "it does not name the holder: {why}");
    assert_eq!(segments(&site).len(), before);
    assert!(!site.log_dir().join("lock").exists(), "the refused start wrote a file");
    server.transfer_committed(USER, Way::ToSpot, "1");
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// The result of `ubscore asset`: exit code, stdout and stderr.
fn asset(server: &Server, arguments: &[&str]) -> (i32, String, String) {
    let ops = format!("http://{}", server.ops);
    let mut words = vec!["asset"];
    words.extend(arguments);
    words.extend(["--dev", "--ops", &ops]);
    harness::said(&harness::cli(&words))
}

/// Goal: an asset is added in force, once, and refused by name otherwise. Method: a good one, each
/// bad one, and rows before and after; a death between UBSCore and PostgreSQL, and between
/// PostgreSQL and UBSCore.
#[test]
fn an_added_asset_is_in_force_and_a_bad_one_changes_nothing() {
    let site = Site::new();
    let server = site.start();
    let add = |server: &Server, words: &str| {
        let mut words: Vec<&str> = words.split(' ').collect();
        words.insert(0, "add");
        words.extend(["--reason", "a test", "--as", "7"]);
        asset(server, &words)
    };
    let (code, out, why) = add(&server, "EUR --precision 2 --min 0.01 --max 1000");
    assert_eq!(
        (code, out.as_str()),
        (0, "EUR: ACTIVE, transfers enabled, 0.01 to 1000 at a time\n"),
        "{why}"
    );
    server.deposit(USER, "EUR", "10.50");
    assert_eq!(server.post_ended(USER, &Way::ToSpot.body_with_cid("EUR", "3.25", "e")).status, 200);
    let audit = "SELECT actor, subject, reason FROM admin_audit WHERE action = 'asset add'";
    assert_eq!(site.sql(audit), [["admin/7", "EUR", "a test"]]);
    let rows = || site.sql("TABLE assets_tb ORDER BY 1");
    let before = rows();
    for (words, said) in [
        ("EUR --precision 2 --min 0.01 --max 1000", "symbol EUR is taken by asset 7 EUR"),
        ("EUR --id 9 --precision 2 --min 0.01 --max 1000", "symbol EUR is taken by asset 7 EUR"),
        ("GBP --id 7 --precision 2 --min 0.01 --max 1000", "id 7 is taken by asset 7 EUR"),
        ("GBP --precision 2 --min 0.001 --max 1000", "min 0.001 is not an amount of 2 decimals"),
        ("GBP --precision 2 --min 0.01 --max 10.001", "max 10.001 is not an amount of 2 decimals"),
        ("GBP --precision 2 --min 10 --max 1", "min must not be above max"),
        ("GBP --precision 2 --min 0 --max 1", "min 0 is not an amount"),
        ("GBP --precision 8 --min 1 --max 99999999999", "max 99999999999 is not an amount"),
        ("GBP --precision 9 --min 1 --max 2", "9"),
        ("GBP --precision 2 --min 1 --max 2 --id 0", "0"),
    ] {
        let (code, out, why) = add(&server, words);
        assert_ne!(code, 0, "{words}: {out}");
        assert!(why.contains(said), "{words}: {why}");
    }
    let body = json!({"symbol": "GBP", "precision": 9, "min": "1", "max": "2", "reason": "a test"});
    assert_refused(&server.admin("POST", "/admin/v1/assets", &body), 400, "INVALID_REQUEST");
    assert_eq!(rows(), before);

    // A death after UBSCore's record: PostgreSQL has no row, and the number belongs to that symbol.
    let hold = site.hold("INSERT ON assets_tb", "NEW.symbol = 'GBP'");
    let ops = server.ops;
    let asking = thread::spawn(move || {
        let body =
            json!({"symbol": "GBP", "precision": 2, "min": "1", "max": "2", "reason": "a test"});
        let token = harness::token(7, Some(ubscore::http::auth::Role::Admin));
        let request = harness::Request {
            body: Some(&body),
            ..harness::Request::new(&token, "POST", "/admin/v1/assets")
        };
        harness::send(ops, &request).is_ok()
    });
    site.wait_for_held();
    server.kill();
    asking.join().expect("no panic");
    hold.release();
    // And one in PostgreSQL but not in UBSCore: the next start adds it there.
    site.sql("INSERT INTO assets_tb VALUES (20, 'CHF', 2, 1, TRUE, 1, 100000)");
    let server = site.start();
    server.deposit(USER, "CHF", "5");
    assert_eq!(server.post_ended(USER, &Way::ToSpot.body_with_cid("CHF", "1", "c")).status, 200);
    let (code, _, why) = add(&server, "JPY --id 8 --precision 0 --min 1 --max 1000");
    assert_eq!(code, 1, "{why}");
    assert!(why.contains("knows asset 8 with another symbol"), "{why}");
    // Added by SQL during service: the same by the command puts it in force.
    site.sql("INSERT INTO assets_tb VALUES (30, 'SEK', 2, 1, TRUE, 100, 100000)");
    assert_eq!(add(&server, "SEK --precision 2 --min 1 --max 1000").0, 0);
    assert_eq!(add(&server, "GBP --id 8 --precision 2 --min 1 --max 2").0, 0);
    let (_, out, _) = asset(&server, &["list"]);
    for symbol in ["EUR", "GBP", "CHF", "SEK", "USDT"] {
        assert!(out.contains(symbol), "{out}");
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: a production install moves money by the chapter alone. Method: its commands unchanged, by
/// bash, with the paths of a directory of the test, and without systemd: the service is started by
/// its command line.
#[test]
fn the_install_chapter_moves_money() {
    let (site, _cluster) = Site::on_its_own_cluster();
    let desk = site.fresh_path("desk");
    let (etc, bin, data) = (desk.join("etc"), desk.join("bin"), desk.join("data"));
    for directory in [&etc, &bin] {
        fs::create_dir_all(directory).expect("made");
    }
    let program = |name: &str, text: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    };
    program("sudo", "shift 2; exec \"$@\"");
    program("chgrp", "exit 0");
    let url = site.url();
    let socket = url.split("host=").nth(1).expect("a socket").split('&').next().expect("a path");
    // The cluster of the tests has a database of that name.
    let session = site.session();
    session.sql("DROP DATABASE ubscore WITH (FORCE)");
    let ports: Vec<String> = (0..2)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect::<Vec<_>>()
        .iter()
        .map(|listener| listener.local_addr().expect("an address").to_string())
        .collect();
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/ubscore.toml");
    let config = fs::read_to_string(packaged).expect("text");
    let here = |text: &str| {
        let connection = format!("postgresql:///ubscore?host={socket}&user=ubscore\"");
        text.replace("postgres://ubscore:$PASSWORD@127.0.0.1:5432/ubscore\"", &connection)
            .replace("/etc/ubscore", &etc.display().to_string())
            .replace("/var/lib/ubscore", &data.display().to_string())
            .replace("127.0.0.1:8080", &ports[0])
    };
    let (http, ops) = (&ports[0], &ports[1]);
    let listen = format!("\n[http]\nlisten = \"{http}\"\n[ops]\nlisten = \"{ops}\"\n");
    let engine = "[engine]\naccounts_max = 10000\noutcomes_max = 100000\n";
    let config = format!("{}{listen}{engine}", here(&config));
    fs::write(etc.join("ubscore.toml"), config).expect("written");
    let own = Path::new(env!("CARGO_BIN_EXE_ubscore")).parent().expect("a directory");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", bin.display(), own.display());
    let environment = [
        ("PATH", path.as_str()),
        ("PGHOST", socket),
        ("PGUSER", "postgres"),
        ("UBSCORE_CONFIG", &etc.join("ubscore.toml").display().to_string()),
    ]
    .map(|(name, value)| (name, value.to_owned()));

    let blocks = runbook::blocks("docs/install.md");
    let mut blocks = blocks.iter().filter(|block| block.chapter == "The first transfer").peekable();
    let (mut server, mut commands) = (None, 0);
    while let Some(block) = blocks.next() {
        if block.mark == "sh serves" {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
            command.arg("serve").envs(environment.clone());
            server = Some(Server::start(command));
            continue;
        }
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", &here(&block.text)]).envs(environment.clone());
        let (code, out, why) = harness::said(&command.output().expect("bash"));
        assert_eq!(code, 0, "{}\n{out}{why}", block.text);
        runbook::assert_printed(blocks.next_if(|block| block.mark == "text"), &out, &out);
        commands += 1;
    }
    assert_eq!(commands, 6);
    server.expect("it was started").stop();
}
