//! All kinds of wrong input: bodies, amounts, connections, configuration, files, PostgreSQL. It is
//! refused with a clear error, and nothing is half done.

use std::fs;
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;

use serde_json::json;

use crate::harness::{
    Balance, COIN, Reply, Server, Site, Way, assert_refused, exchange, last_line, refused,
    send_text, token,
};

const USER: u64 = 1001;
/// The length of a segment's header, bytes.
const HEADER_BYTES: usize = 4096;
const POST: &str = "/api/v1/internal_transfer";

/// Posts a text as a JSON body.
fn post_text(server: &Server, body: &str) -> Reply {
    let headers = headers();
    send_text(server.http, "POST", POST, &headers, body).expect("an answer")
}

fn headers() -> String {
    format!("Authorization: Bearer {}\r\nContent-Type: application/json\r\n", token(USER, None))
}

/// Asserts that a server has accepted nothing and that all balances are the initial ones.
pub(crate) fn assert_nothing_done(site: &Site, server: &Server) {
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "0");
    let given = Balance { funding: Some(10_000 * COIN), spot: None, in_flight: 0 };
    assert_eq!(server.usdt(USER), given);
    site.assert_in_order(server);
}

#[test]
fn a_body_that_is_not_exactly_a_transfer_is_refused() {
    let site = Site::new();
    let server = site.start();
    let deep = "[".repeat(10_000);
    for body in [
        "",
        " ",
        "null",
        "1",
        "\"text\"",
        "[]",
        "{}",
        "{",
        "{\"from\":",
        deep.as_str(),
        r#"["FUNDING","SPOT","USDT","1"]"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1"}}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1"} {}"#,
        r#"{'from':'FUNDING','to':'SPOT','asset':'USDT','amount':'1'}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT"}"#,
        r#"{"to":"SPOT","asset":"USDT","amount":"1"}"#,
        r#"{"from":"FUNDING","from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","amount":"1"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","extra":true}"#,
        r#"{"From":"FUNDING","to":"SPOT","asset":"USDT","amount":"1"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":1}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":1.5}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":null}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":3,"amount":"1"}"#,
        r#"{"from":["FUNDING"],"to":"SPOT","asset":"USDT","amount":"1"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":7}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":""}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":"has space"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":"é"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","user_id":"1001"}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","user_id":-1}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","user_id":1001.0}"#,
        r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"\ud800"}"#,
    ] {
        let reply = post_text(&server, body);
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        assert_refused(&reply, 400, "INVALID_REQUEST");
    }
    let long = format!(
        r#"{{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":"{}"}}"#,
        "x".repeat(65)
    );
    assert_refused(&post_text(&server, &long), 400, "INVALID_REQUEST");
    // Not UTF-8.
    let mut request =
        format!("POST {POST} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n").into_bytes();
    request.extend_from_slice(headers().as_bytes());
    request.extend_from_slice(b"Content-Length: 12\r\n\r\n{\"from\":\"\xff\"}");
    assert_refused(&exchange(server.http, &request).expect("an answer"), 400, "INVALID_REQUEST");
    assert_nothing_done(&site, &server);
    // The longest allowed cid, and null for no cid.
    let body = Way::ToSpot.body_with_cid("USDT", "1", &"x".repeat(64));
    assert_eq!(server.post(USER, &body).status, 200);
    let null = r#"{"from":"FUNDING","to":"SPOT","asset":"USDT","amount":"1","cid":null}"#;
    assert_eq!(post_text(&server, null).status, 200);
    site.assert_verified();
}

#[test]
fn an_amount_is_a_plain_decimal_number_and_nothing_else() {
    let site = Site::new();
    let server = site.start();
    for (amount, code) in [
        ("-1", "INVALID_AMOUNT"),
        ("-0", "INVALID_AMOUNT"),
        ("0", "INVALID_AMOUNT"),
        ("0.00000000", "INVALID_AMOUNT"),
        ("", "INVALID_AMOUNT"),
        ("1e3", "INVALID_AMOUNT"),
        ("1E3", "INVALID_AMOUNT"),
        (".5", "INVALID_AMOUNT"),
        ("5.", "INVALID_AMOUNT"),
        (".", "INVALID_AMOUNT"),
        ("+1", "INVALID_AMOUNT"),
        (" 1", "INVALID_AMOUNT"),
        ("1 ", "INVALID_AMOUNT"),
        ("1\n", "INVALID_AMOUNT"),
        ("1,000", "INVALID_AMOUNT"),
        ("1_000", "INVALID_AMOUNT"),
        ("1.2.3", "INVALID_AMOUNT"),
        ("0x10", "INVALID_AMOUNT"),
        ("NaN", "INVALID_AMOUNT"),
        ("Infinity", "INVALID_AMOUNT"),
        ("--1", "INVALID_AMOUNT"),
        ("١", "INVALID_AMOUNT"),
        ("1'; DROP TABLE transfers_tb; --", "INVALID_AMOUNT"),
        ("0.000000001", "PRECISION_OVERFLOW"),
        ("1.000000000", "PRECISION_OVERFLOW"),
        ("99999999999999999999", "OVERFLOW"),
        ("18446744073709551616", "OVERFLOW"),
        ("184467440.73709552", "OVERFLOW"),
    ] {
        for way in Way::BOTH {
            let reply = server.transfer(USER, way, amount);
            assert_eq!(reply.refusal(), (400, code.to_owned()), "{amount:?}");
        }
    }
    let long = "1".repeat(10_000);
    assert_eq!(server.transfer(USER, Way::ToSpot, &long).refusal().0, 400);
    assert_nothing_done(&site, &server);
    for (amount, moved) in
        [("00000001.5", "1.5"), ("0.00000001", "0.00000001"), ("2.50000000", "2.5")]
    {
        let reply = server.transfer(USER, Way::ToSpot, amount);
        assert_eq!((reply.status, &reply.json()["amount"]), (200, &json!(moved)), "{reply:?}");
    }
    site.assert_verified();
}

/// Goal: an incomplete request has no effect. Method: bodies that stop in the middle, with the
/// connection closed or left open, and malformed heads.
#[test]
fn a_request_that_is_not_whole_does_nothing() {
    let site = Site::new().with("UBSCORE__HTTP__BODY_READ_TIMEOUT_MS", 300);
    let server = site.start();
    let body = Way::ToSpot.body("USDT", "1").to_string();
    let head = |length: usize| {
        format!("POST {POST} HTTP/1.1\r\nHost: x\r\n{}Content-Length: {length}\r\n\r\n", headers())
    };
    // A whole transfer, with a longer length announced.
    let half = format!("{}{body}", head(body.len() + 1));
    let mut closed = TcpStream::connect(server.http).expect("connected");
    closed.write_all(half.as_bytes()).expect("sent");
    closed.shutdown(Shutdown::Write).expect("shut");
    drop(closed);
    let mut stays = TcpStream::connect(server.http).expect("connected");
    stays.write_all(half.as_bytes()).expect("sent");
    let close = half.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let slow = exchange(server.http, close.as_bytes()).expect("an answer");
    assert_refused(&slow, 408, "INVALID_REQUEST");
    // A body above the limit, announced or found while reading.
    let large = exchange(server.http, head(1 << 30).as_bytes()).expect("an answer");
    assert_refused(&large, 413, "INVALID_REQUEST");
    let chunk = format!("4000\r\n{}\r\n", " ".repeat(0x4000));
    let chunked = format!(
        "POST {POST} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{}Transfer-Encoding: chunked\r\n\r\n\
         {chunk}{chunk}0\r\n\r\n",
        headers()
    );
    let reply = exchange(server.http, chunked.as_bytes()).expect("an answer");
    assert_refused(&reply, 413, "INVALID_REQUEST");
    for garbage in ["GARBAGE\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\0\0\0\0\r\n\r\n"] {
        let reply = exchange(server.http, garbage.as_bytes()).expect("an answer");
        assert_eq!(reply.status, 400, "{garbage:?}");
    }
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(exchange(server.http, long.as_bytes()).expect("an answer").status, 431);
    assert_nothing_done(&site, &server);
    drop(stays);
    server.stop();
}

#[test]
fn a_wrong_configuration_is_refused_by_its_key_before_anything_is_touched() {
    let site = Site::new();
    for (name, value, key) in [
        ("UBSCORE__HTTP__LISTN", "127.0.0.1:1", "http.listn"),
        ("UBSCORE__HTPP__LISTEN", "127.0.0.1:1", "htpp"),
        ("UBSCORE__COORDINATOR__SHARDS", "65", "coordinator.shards"),
        ("UBSCORE__COORDINATOR__SHARDS", "many", "coordinator.shards"),
        ("UBSCORE__COORDINATOR__FUSE", "perhaps", "coordinator.fuse"),
        ("UBSCORE__WAL__SEGMENT_BYTES", "65537", "wal.segment_bytes"),
        ("UBSCORE__AUTH__SECRET", "short", "auth.secret"),
        ("UBSCORE__LOG__FILTER", "=", "log.filter"),
    ] {
        let (code, said) = site.clone().with(name, value).start_refused();
        assert_eq!(code, 2, "{name}={value}: {said}");
        assert!(last_line(&said).contains(key), "{key}: {said}");
        assert!(!said.contains("short"), "a secret is quoted: {said}");
    }
    fs::create_dir_all(&site.data_dir).expect("a directory");
    let file = site.data_dir.join("ubscore.toml");
    for (text, names) in [
        ("[http]\nlisten_on = \"127.0.0.1:1\"\n", "http.listen_on"),
        ("[coordinator]\nshards = \"4\"\n", "coordinator.shards"),
        ("[http\n", "line 1"),
    ] {
        fs::write(&file, text).expect("written");
        let mut command = site.command();
        command.arg("--config").arg(&file);
        let (code, said) = refused(command);
        assert_eq!(code, 2, "{text}: {said}");
        assert!(last_line(&said).contains(names), "{names}: {said}");
    }
    let mut command = site.command();
    command.arg("--fast");
    assert_eq!(refused(command).0, 2);
    assert!(!site.log_dir().exists(), "nothing was touched");
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named() {
    let site = Site::new();
    fs::write(&site.data_dir, "a file").expect("written");
    for data_dir in
        [site.data_dir.clone(), site.data_dir.join("below"), PathBuf::from("/proc/nowhere")]
    {
        let (code, said) = site.with_data_dir(&data_dir).start_refused();
        assert_eq!(code, 1, "{said}");
        let name = data_dir.display().to_string();
        assert!(last_line(&said).contains(&name), "{name}: {said}");
    }
    // If the log's directory could not be made, no statement reached PostgreSQL.
    let tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(site.sql_value(tables), "0");
}

#[test]
fn an_occupied_port_is_named_with_its_holder() {
    let site = Site::new();
    let held = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = held.local_addr().expect("bound").to_string();
    for (http, ops) in [(address.as_str(), "127.0.0.1:0"), ("127.0.0.1:0", address.as_str())] {
        let (code, said) = refused(site.command_on(http, ops));
        assert_eq!(code, 1, "{said}");
        let pid = std::process::id().to_string();
        for name in [&address, &pid] {
            assert!(last_line(&said).contains(name.as_str()), "{name}: {said}");
        }
    }
    site.start().stop();
}

/// Goal: damage that a crash cannot cause is refused, and no record is skipped. Method: one byte of
/// an early record is flipped, in several places; each start names file, offset and sequence; after
/// the byte is restored, all records are there.
#[test]
fn a_log_that_is_damaged_in_the_middle_is_refused_by_place() {
    let site = Site::new();
    let server = site.start();
    for _ in 0..20 {
        assert_eq!(server.transfer(USER, Way::ToSpot, "1").status, 200);
    }
    site.wait_for_rest();
    server.kill();
    let first = site.log_dir().join("segment-0000000000000001.wal");
    let whole = fs::read(&first).expect("the first segment");
    for at in [HEADER_BYTES, HEADER_BYTES + 8, HEADER_BYTES + 45, HEADER_BYTES + 300] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&first, &damaged).expect("written");
        let (code, said) = site.start_refused();
        assert_eq!(code, 70, "byte {at}: {said}");
        let why = last_line(&said);
        assert!(why.contains("segment-0000000000000001.wal"), "byte {at}: {said}");
        assert!(why.contains("offset") && why.contains("sequence"), "byte {at}: {said}");
        assert_eq!(fs::read(&first).expect("read"), damaged, "a refused start changes nothing");
    }
    fs::write(&first, &whole).expect("written");
    let server = site.start();
    assert_eq!(server.usdt(USER), Balance::at_rest(9_980 * COIN, 20 * COIN));
    site.assert_in_order(&server);
}

/// A kill leaves a torn tail, which is not damage: the records that were never acknowledged are
/// cut.
#[test]
fn zeros_and_rubbish_after_the_last_record_are_cut_off() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "7").status, 200);
    site.wait_for_rest();
    server.stop();
    let first = site.log_dir().join("segment-0000000000000001.wal");
    let mut bytes = fs::read(&first).expect("the first segment");
    // Each record has its length at its fifth byte, and begins at a multiple of 8; a length of 0 is
    // the end.
    let length = |at: usize| u32::from_le_bytes(bytes[at + 4..at + 8].try_into().expect("four"));
    let mut tail = HEADER_BYTES;
    while length(tail) > 0 {
        tail += usize::try_from(length(tail)).expect("small").next_multiple_of(8);
    }
    bytes[tail..tail + 100].fill(0xAB);
    fs::write(&first, &bytes).expect("written");
    let server = site.start();
    server.says("torn");
    assert_eq!(server.usdt(USER), Balance::at_rest(9_993 * COIN, 7 * COIN));
    assert_eq!(server.transfer(USER, Way::ToFunding, "7").status, 200);
    site.wait_for_rest();
    site.assert_in_order(&server);
}

#[test]
fn postgresql_that_is_not_there_or_says_nothing_is_a_clear_end() {
    let site = Site::new().with("UBSCORE__POSTGRES__CONNECT_TIMEOUT_MS", 500);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent_port = silent.local_addr().expect("bound").port();
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port");
    let gone_port = gone.local_addr().expect("bound").port();
    drop(gone);
    for url in [
        format!("postgres://postgres@127.0.0.1:{silent_port}/ubscore"),
        format!("postgres://postgres@127.0.0.1:{gone_port}/ubscore"),
        "postgresql:///ubscore?host=/nowhere&user=postgres".to_owned(),
        site.url().replacen(&site.database, "no_such_database", 1),
    ] {
        let (code, said) = refused(site.command_with(&url));
        assert_eq!(code, 1, "{url}: {said}");
        assert!(last_line(&said).contains("PostgreSQL"), "{url}: {said}");
    }
    let (code, said) = refused(site.command_with("no-url-at-all"));
    assert_eq!(code, 2, "{said}");
    assert!(last_line(&said).contains("postgres.url"), "{said}");
    site.start().stop();
}

#[test]
fn a_schema_of_a_later_version_is_left_alone() {
    let site = Site::new();
    let server = site.start();
    assert_eq!(server.transfer(USER, Way::ToSpot, "7").status, 200);
    server.stop();
    let later = "INSERT INTO refinery_schema_history SELECT 999, 'later', applied_on, '1' \
                 FROM refinery_schema_history WHERE version = 1";
    site.sql(later);
    let incarnation = site.sql_value("SELECT incarnation FROM engine_state");
    let (code, said) = site.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(last_line(&said).contains("newer"), "{said}");
    assert_eq!(site.sql_value("SELECT incarnation FROM engine_state"), incarnation);
    site.sql("DELETE FROM refinery_schema_history WHERE version = 999");
    // A migration that was changed by hand is refused as well.
    site.sql("UPDATE refinery_schema_history SET checksum = '1' WHERE version = 1");
    let (code, said) = site.start_refused();
    assert_eq!(code, 70, "{said}");
    assert!(last_line(&said).contains("schema"), "{said}");
    assert_eq!(site.sql_value("SELECT incarnation FROM engine_state"), incarnation);
}
