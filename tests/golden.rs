//! This version reads the files of every earlier version, and refuses by name those of a later
//! version and those from before the schema began anew.
//!
//! Each folder of `tests/golden` holds the files of a version after a kill: its log and snapshots,
//! every row of its database, its answers, and a dump of its log to the byte. The folder of a
//! released version is never edited. A new one is added for each schema and each format, by
//! `UBSCORE_GOLDEN=schema-N cargo test --features crash --test main -- golden`. With the name
//! `venues-N` it holds venues with their holds, and few transfers; with `transactions-N` it holds
//! transactions in each state, and with `recharges-N` recharges in each state.

/// Recharges in each state.
mod recharges;

/// Transactions in each state.
mod transactions;

/// Venues, and what they leave behind.
mod venues;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use ubscore::postgres::flights;

use crate::harness::{
    Endpoint, Recharging, Server, Site, Way, block_on, eventually, external, force, forgetful,
    refused, segments, snapshots, wait_for_all_below,
};
use crate::operator::resolve_and_release;
use crate::schema::committed;

/// The user with every kind of transfer.
const USER: u64 = 1001;
/// A transfer changes its state.
const STATE: &str = "UPDATE OF state ON transfers_tb";
/// The user with a transfer under way at the kill.
const HELD: u64 = 1002;
/// Of the webhook endpoint.
const SECRET: &str = "whsec_YW4gZW5kcG9pbnQncyBzZWNyZXQsIDMyIGJ5dGVzLi4=";
/// Tables with rows that stay as they are over a start.
const STANDING: [&str; 8] = [
    "accounts_tb",
    "admin_audit",
    "approvals_tb",
    "assets_tb",
    "external_operations",
    "journal_tb",
    "pauses_tb",
    "webhook_deliveries",
];
/// The column of these tables that may change: an approval that was not decided in time ends.
const CHANGING: &str = "state";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden() -> Vec<PathBuf> {
    let folders = fs::read_dir(root().join("tests/golden")).expect("a folder");
    let folders = folders.map(|entry| entry.expect("an entry").path());
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders
}

/// Bytes as text: the length first, then lines of sixteen bytes after their offset; lines of zeros
/// are left out.
fn to_hex(bytes: &[u8]) -> String {
    let mut text = format!("{}\n", bytes.len());
    for (index, row) in bytes.chunks(16).enumerate() {
        if row.iter().any(|byte| *byte != 0) {
            write!(text, "{:06x}:", index * 16).expect("a string takes everything");
            for byte in row {
                write!(text, " {byte:02x}").expect("a string takes everything");
            }
            text.push('\n');
        }
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let length = lines.next().and_then(|length| length.parse().ok()).expect("a length");
    let mut bytes = vec![0; length];
    for line in lines {
        let (offset, row) = line.split_once(':').expect("an offset");
        let offset = usize::from_str_radix(offset, 16).expect("hexadecimal");
        for (byte, digits) in bytes[offset..].iter_mut().zip(row.split_whitespace()) {
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal");
        }
    }
    bytes
}

/// A site with segments short enough to be kept as text.
fn site() -> Site {
    forgetful(Site::new())
        .with("UBSCORE__WAL__SEGMENT_BYTES", 1 << 16)
        .with("UBSCORE__SNAPSHOT__KEEP", 2)
        .with("UBSCORE__CONSERVATION__EVERY_MS", 100)
}

/// Posts and notes the answer.
fn post(server: &Server, user: u64, body: Value, answers: &mut Vec<Value>) {
    let reply = server.post(user, &body);
    answers
        .push(json!({"user": user, "body": body, "status": reply.status, "answer": reply.json()}));
}

/// A transfer of each kind of end.
fn one_of_each(server: &Server, name: &str, answers: &mut Vec<Value>) {
    let body = |way: Way, amount: &str, cid: &str| {
        way.body_with_cid("USDT", amount, &format!("{name}-{cid}"))
    };
    post(server, USER, body(Way::ToSpot, "100.25", "there"), answers);
    post(server, USER, body(Way::ToFunding, "0.00000001", "back"), answers);
    post(server, USER, body(Way::ToFunding, "9000", "refused"), answers);
    server.set_status(USER, "SPOT", "DISABLED");
    post(server, USER, body(Way::ToSpot, "7", "there-refunded"), answers);
    server.set_status(USER, "SPOT", "FROZEN");
    post(server, USER, body(Way::ToFunding, "1", "frozen"), answers);
    server.set_status(USER, "SPOT", "ACTIVE");
    server.set_status(USER, "FUNDING", "DISABLED");
    post(server, USER, body(Way::ToFunding, "3", "back-refunded"), answers);
    server.set_status(USER, "FUNDING", "ACTIVE");
}

/// Waits for a delivery of this status.
fn wait_for_delivery(site: &Site, status: u8) {
    let found = format!("SELECT count(*) FROM webhook_deliveries WHERE status = {status}");
    eventually("a delivery", || (site.sql_value(&found) != "0").then_some(()));
}

/// The records of operators: a halt, a pause, and an approval that waits for the second operator.
fn by_operators(server: &Server) {
    let reason = json!({"reason": "a look"});
    let paused =
        json!({"direction": "FUNDING_TO_SPOT", "asset": "ETH", "paused": true, "reason": "a test"});
    let deposit = external(USER, "BTC", "0.25", "waits");
    for (method, path, body, status) in [
        ("POST", "halt", &reason, 200),
        ("POST", "resume", &reason, 200),
        ("PUT", "pauses", &paused, 200),
        ("POST", "deposits", &deposit, 202),
    ] {
        let reply = server.admin(method, &format!("/admin/v1/{path}"), body);
        assert_eq!(reply.status, status, "{path}: {reply:?}");
    }
}

/// The files of a version, written by this one.
fn write(folder: &Path) {
    // The first events are delivered; later ones fail, without a second try at first.
    let failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&failing);
    let endpoint = Endpoint::start(move |_| if fails.load(Ordering::Relaxed) { 500 } else { 200 });
    let site = site()
        .with("UBSCORE__WEBHOOKS__URL", endpoint.url())
        .with("UBSCORE__WEBHOOKS__SECRET", SECRET)
        .with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 1);
    let mut answers = Vec::new();
    let server = site.start();
    server.deposit(USER, "BTC", "1.5");
    let withdrawal = external(USER, "BTC", "0.125", "out");
    let withdrawn = server.admin("POST", "/admin/v1/withdrawals", &withdrawal);
    assert_eq!(withdrawn.status, 200, "{withdrawn:?}");
    one_of_each(&server, "forgotten", &mut answers);
    wait_for_delivery(&site, 2);
    failing.store(true, Ordering::Relaxed);
    one_of_each(&server, "failed", &mut answers);
    wait_for_delivery(&site, 3);
    wait_for_all_below(&site);
    force(&site, &server);
    server.stop();
    // A server that keeps outcomes from here on, in a segment of its own. Deliveries stay open.
    let site = site
        .with("UBSCORE__OUTCOMES__KEEP_HOURS", 24)
        .with("UBSCORE__COORDINATOR__FUSE", false)
        .with("UBSCORE__WEBHOOKS__ATTEMPTS_MAX", 1_000)
        .with("UBSCORE__APPROVAL__REQUIRED", "external");
    let server = site.start();
    by_operators(&server);
    one_of_each(&server, "kept", &mut answers);
    let hold = site.hold(STATE, &format!("NEW.user_id = {USER} AND NEW.state = 30"));
    let body = Way::ToSpot.body_with_cid("USDT", "4", "resolved");
    let waiting = server.post(USER, &body);
    assert_eq!(waiting.status, 202, "{waiting:?}");
    let resolved = resolve_and_release(&server, &waiting.req_id(), hold).expect("an answer");
    assert_eq!(resolved.status, 200, "{resolved:?}");
    site.wait_for_rest();
    site.sql("DROP TRIGGER hold ON transfers_tb");
    post(&server, USER, body, &mut answers);
    force(&site, &server);
    post(
        &server,
        USER,
        Way::ToSpot.body_with_cid("BTC", "0.5", "behind-the-snapshot"),
        &mut answers,
    );
    wait_for_delivery(&site, 1);
    let remaining = told_balances(&server, USER);
    let hold = site.hold(STATE, &format!("NEW.user_id = {HELD} AND NEW.state = 40"));
    let under_way = Way::ToFunding.body_with_cid("USDT", "1", "under-way");
    let body = Way::ToSpot.body_with_cid("USDT", "5", "held");
    assert_eq!(server.post(HELD, &body).status, 200, "UBSCore's record proves it");
    assert_eq!(server.post(HELD, &under_way).status, 202);
    server.kill();
    hold.release();
    site.sql("DROP TRIGGER hold ON transfers_tb");
    answers.push(json!({"user": HELD, "body": body, "status": 200}));
    answers.push(json!({"user": HELD, "body": under_way, "status": 200}));

    let balances = json!({USER.to_string(): remaining});
    keep(folder, &site, &json!({"answers": answers, "balances": balances}));
}

/// The balances of a user in both stores, as the answers tell them.
fn told_balances(server: &Server, user: u64) -> Value {
    let sums = |(symbol, balance): (String, crate::harness::Balance)| {
        let (funding, spot) = (balance.funding, balance.spot);
        (symbol, json!([funding, spot].map(|side| side.map(|units| units.to_string()))))
    };
    server.balances(user).into_iter().map(sums).collect()
}

/// Keeps all files and rows of a site without a server, and what its clients were told.
fn keep(folder: &Path, site: &Site, told: &Value) {
    fs::create_dir(folder).expect("a new folder");
    let files = segments(site).into_iter().chain(snapshots(site));
    for path in files.map(|(_, path)| path).chain([site.flights()]) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        let bytes = fs::read(&path).expect("readable");
        fs::write(folder.join(format!("{name}.hex")), to_hex(&bytes)).expect("written");
    }
    fs::write(folder.join("dump.txt"), dump(site)).expect("written");
    let text = serde_json::to_string_pretty(told).expect("JSON");
    fs::write(folder.join("told.json"), text + "\n").expect("written");
    let tables = site.sql(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename",
    );
    let mut rows = String::new();
    for table in tables.iter().map(|row| &row[0]) {
        for row in site.sql(&format!("SELECT row_to_json(t) FROM {table} t ORDER BY t::text")) {
            writeln!(rows, "{table} {}", row[0]).expect("a string takes everything");
        }
    }
    fs::write(folder.join("database.txt"), rows).expect("written");
}

/// The log, a line a record.
fn dump(site: &Site) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubscore"));
    command.args(["wal", "dump"]).arg(site.log_dir());
    let output = command.output().expect("the binary");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// A site with the files of a version, and with tables made by that version's own migrations. The
/// files hold no functions, so the start applies its own.
fn restore(folder: &Path, site: Site) -> Site {
    let (log, snapshots) = (site.log_dir(), site.snapshot_dir());
    for directory in [&log, &snapshots] {
        fs::create_dir_all(directory).expect("a directory");
    }
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        let Some(name) = name.strip_suffix(".hex") else { continue };
        let directory = match name {
            flights::FILE => &site.data_dir,
            name if name.ends_with(".wal") => &log,
            _ => &snapshots,
        };
        let text = fs::read_to_string(&path).expect("text");
        fs::write(directory.join(name), from_hex(&text)).expect("written");
    }
    let rows = fs::read_to_string(folder.join("database.txt")).expect("text");
    let rows: Vec<(&str, &str)> =
        rows.lines().map(|line| line.split_once(' ').expect("a table and a row")).collect();
    let history = "refinery_schema_history";
    site.sql(&format!(
        "CREATE TABLE {history} (version INT4 PRIMARY KEY, name VARCHAR(255), applied_on VARCHAR(255), \
         checksum VARCHAR(255))"
    ));
    let schema = rows.iter().filter(|(table, _)| *table == history);
    let mut schema: Vec<Value> =
        schema.map(|(_, row)| serde_json::from_str(row).expect("JSON")).collect();
    // The versions are stored as text, where 10 sorts before 2.
    schema.sort_by_key(|row| row["version"].as_u64());
    for row in schema {
        let file = format!("V{}__{}.sql", row["version"], row["name"].as_str().expect("a name"));
        let migration = root().join("config/migrations").join(&file);
        site.sql(&fs::read_to_string(migration).expect(&file));
    }
    let (client, connection) =
        block_on(site.target().config().connect(tokio_postgres::NoTls)).expect("a server");
    let fill = async {
        let mut tables: Vec<&str> = rows.iter().map(|(table, _)| *table).collect();
        tables.dedup();
        client.batch_execute("SET session_replication_role = replica").await?;
        for table in tables {
            client.batch_execute(&format!("TRUNCATE {table}")).await?;
        }
        for (table, row) in &rows {
            client.execute(&insert(table, row), &[row]).await?;
        }
        client
            .batch_execute(
                "SELECT setval(pg_get_serial_sequence('admin_audit', 'id'), max(id)) FROM admin_audit; \
                 UPDATE engine_state SET functions_hash = NULL",
            )
            .await
    };
    let driven = async {
        tokio::select! {
            filled = fill => filled,
            ended = connection => panic!("the connection ended: {ended:?}"),
        }
    };
    block_on(driven).expect("its rows");
    site
}

/// The statement that inserts a row, which is its parameter. A JSON column that is `null` is not
/// NULL in its table.
fn insert(table: &str, row: &str) -> String {
    let row: Value = serde_json::from_str(row).expect("JSON");
    let columns: Vec<String> =
        row.as_object().expect("a row").keys().map(|name| format!("\"{name}\"")).collect();
    let read = |name: &String| match (table, name.as_str()) {
        ("transaction_branches", "\"payload\"") => format!("COALESCE({name}, 'null')"),
        _ => name.clone(),
    };
    let (names, values) = (columns.join(", "), columns.iter().map(read).collect::<Vec<_>>());
    let row_of = format!("json_populate_record(NULL::{table}, $1::text::json)");
    format!("INSERT INTO {table} ({names}) SELECT {} FROM {row_of}", values.join(", "))
}

/// A row without the columns that may change.
fn standing(row: &str) -> Value {
    let mut row: Value = serde_json::from_str(row).expect("JSON");
    let columns = row.as_object_mut().expect("a row");
    columns.retain(|name, _| name != CHANGING);
    row
}

/// Asserts that every row of a version is still there, in each table of [`STANDING`].
fn assert_rows(site: &Site, folder: &Path) {
    let rows = fs::read_to_string(folder.join("database.txt")).expect("text");
    for table in STANDING {
        let found = site.sql(&format!("SELECT row_to_json(t) FROM {table} t"));
        let found: Vec<Value> = found.iter().map(|row| standing(&row[0])).collect();
        let kept = rows.lines().filter_map(|line| line.strip_prefix(&format!("{table} ")));
        let kept: Vec<Value> = kept.map(standing).collect();
        let small = [venues::TOLD, transactions::TOLD, recharges::TOLD];
        let is_small = small.iter().any(|file| folder.join(file).exists());
        assert!(is_small || !kept.is_empty(), "{} holds no row of {table}", folder.display());
        for row in kept {
            // A later version may have given the table more columns.
            let stands = |found: &Value| {
                row.as_object().expect("a row").iter().all(|(name, value)| found[name] == *value)
            };
            assert!(found.iter().any(stands), "{table} has lost {row}");
        }
    }
}

/// RCV-010 and RCH-043. Goal: an upgrade reads everything. Method: the files of each earlier
/// version after a kill, with a transfer under way; the dump to the byte; a start, which migrates;
/// rest; the balances, every answer once more, and every row; the sums of both stores; new
/// transfers; another start.
#[test]
fn what_any_version_left_behind_is_read_for_ever() {
    if let Ok(version) = std::env::var("UBSCORE_GOLDEN") {
        let folder = root().join("tests/golden").join(&version);
        match version.split('-').next() {
            Some("venues") => venues::write(&folder),
            Some("transactions") => transactions::write(&folder),
            Some("recharges") => recharges::write(&folder),
            _ => write(&folder),
        }
    }
    for folder in golden() {
        let (site, socket) = venues::with_socket(site());
        let has_transactions = folder.join(transactions::TOLD).exists();
        let site = if has_transactions { transactions::with_services(site) } else { site };
        let site = site.with("UBSCORE__OUTCOMES__KEEP_HOURS", 24);
        let has_recharges = folder.join(recharges::TOLD).exists();
        let desk = has_recharges.then(|| recharges::desk(&folder, site.clone()));
        let site = desk.as_ref().map_or(site, |desk| desk.site.clone());
        let site = restore(&folder, site);
        let text = |name: &str| fs::read_to_string(folder.join(name)).expect("text");
        assert_eq!(dump(&site), text("dump.txt"), "{}", folder.display());
        let kept: Value = serde_json::from_str(&text("told.json")).expect("JSON");

        if let Some(desk) = &desk {
            recharges::pay(&folder, desk);
        }
        let server = desk.as_ref().map_or_else(|| site.start(), Recharging::start);
        site.wait_for_rest();
        if let Some(desk) = &desk {
            recharges::assert_ends(&folder, desk, &server);
        }
        if has_transactions {
            transactions::assert_ends(&folder, &site, &server);
        }
        for (user, balances) in kept["balances"].as_object().expect("users") {
            let now = told_balances(&server, user.parse().expect("a number"));
            for (symbol, sums) in balances.as_object().expect("assets") {
                assert_eq!(now[symbol], *sums, "{symbol}");
            }
        }
        for answer in kept["answers"].as_array().expect("answers") {
            let user = answer["user"].as_u64().expect("a user");
            let again = server.post(user, &answer["body"]);
            assert_eq!(json!(again.status), answer["status"], "{again:?}");
            assert_eq!(again.header("idempotent-replayed"), Some("true"), "{again:?}");
            let (mut now, mut then) = (again.json(), answer["answer"].clone());
            for object in [&mut now, &mut then] {
                object.as_object_mut().map(|object| object.remove("request_id"));
            }
            assert!(then.is_null() || now == then, "{now} is not {then}");
        }
        assert_rows(&site, &folder);
        let has_venues = folder.join(venues::TOLD).exists();
        match has_venues {
            true => venues::assert_kept(&folder, &server, &socket),
            false if has_transactions || has_recharges => venues::assert_whole(&site, &server),
            false => site.assert_in_order(&server),
        }
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
        site.wait_for_rest();
        server.kill();
        let server = site.start();
        match has_venues || has_transactions || has_recharges {
            true => venues::assert_whole(&site, &server),
            false => site.assert_in_order(&server),
        }
    }
}

/// RCV-010. Goal: a version never continues with files that it cannot read, and names them. Method:
/// a log, a snapshot and a database in the form of a later version; a start is refused by name;
/// nothing is changed, so that the right version can continue.
#[test]
fn what_a_later_version_left_behind_is_refused_by_name() {
    let site = site();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    force(&site, &server);
    site.wait_for_rest();
    server.stop();
    let (_, snapshot) = snapshots(&site).remove(0);
    let (_, segment) = segments(&site).pop().expect("a segment");
    let versions: [(&Path, usize, &[u8], &str); 2] = [
        (&segment, 12, &[2, 0, 0, 0], "unknown version 2 at"),
        (&snapshot, 8, &[7, 0, 0, 0], "has version 7, and this program reads 1 to 6"),
    ];
    for (path, at, later, want) in versions {
        let before = fs::read(path).expect("readable");
        let mut bytes = before.clone();
        bytes[at..at + later.len()].copy_from_slice(later);
        if path == snapshot {
            let end = bytes.len() - 4;
            let crc = crc32fast::hash(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
        }
        fs::write(path, &bytes).expect("written");
        let (code, said) = refused(site.command());
        assert_eq!(code, 70, "{said}");
        let name = path.file_name().and_then(|name| name.to_str()).expect("text");
        assert!(said.contains(want) && said.contains(name), "{said}");
        assert_eq!(fs::read(path).expect("readable"), bytes);
        fs::write(path, before).expect("written");
    }
    let later = "INSERT INTO refinery_schema_history \
                 SELECT 999, 'later', applied_on, checksum FROM refinery_schema_history LIMIT 1";
    site.sql(later);
    let (code, said) = refused(site.command());
    assert_eq!(code, 70, "{said}");
    assert!(said.contains("was it used by a newer one?") && said.contains("V999__later"), "{said}");
    site.sql("DELETE FROM refinery_schema_history WHERE version = 999");
    let server = site.start();
    site.assert_in_order(&server);
}

/// The first migrations of the development versions.
const DEVELOPMENT: &str = "CREATE TABLE IF NOT EXISTS refinery_schema_history (version INT4 PRIMARY KEY, \
       name VARCHAR(255), applied_on VARCHAR(255), checksum VARCHAR(255)); \
     DELETE FROM refinery_schema_history; \
     INSERT INTO refinery_schema_history \
     VALUES (1, 'transfers', '2026-11-01T00:00:00Z', '4711'), (2, 'watermark', '2026-11-01T00:00:00Z', '12')";

/// Goal: a database from before the schema began anew is refused by name, and nothing is changed.
/// Method: its history of migrations, over a used database with its log, over the tables of an
/// early version, which have other columns, and over a history without any table.
#[test]
fn what_a_development_version_left_behind_is_refused_by_name() {
    let used = site();
    let server = used.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    used.wait_for_rest();
    server.stop();
    used.sql(DEVELOPMENT);
    let older = Site::new();
    older.sql(
        "CREATE TABLE engine_state (singleton BOOLEAN PRIMARY KEY DEFAULT TRUE, \
           log_identity VARCHAR(32), incarnation BIGINT NOT NULL DEFAULT 0); \
         INSERT INTO engine_state DEFAULT VALUES",
    );
    older.sql(DEVELOPMENT);
    let begun = Site::new();
    begun.sql(DEVELOPMENT);
    for site in [used, older, begun] {
        let state = || (committed::text(&site), site.sql("SELECT * FROM refinery_schema_history"));
        let (before, incarnation) = (state(), "SELECT max(incarnation) FROM engine_state");
        let has_state = before.0.contains("CREATE TABLE engine_state");
        let taken = has_state.then(|| site.sql_value(incarnation));
        let (code, said) = site.start_refused();
        assert_eq!(code, 70, "{said}");
        for words in
            ["made by a development version", "V1__transfers", "new database", "make reset"]
        {
            assert!(said.contains(words), "{said}");
        }
        assert_eq!(state(), before);
        assert_eq!(has_state.then(|| site.sql_value(incarnation)), taken);
    }
}
