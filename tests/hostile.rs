//! Malicious clients, and clients that behave like them. Under all their requests, others are
//! served, and no money moves without a valid request.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::harness::{PATIENCE, Server, Site, Way, crowd, split_mix, token};

const USER: u64 = 1001;
const POST: &str = "/api/v1/internal_transfer";

/// A connection that sends many requests before it reads their answers.
struct Pipeline {
    stream: BufReader<TcpStream>,
    headers: String,
}

impl Pipeline {
    fn open(address: SocketAddr) -> Pipeline {
        let stream = TcpStream::connect(address).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        let token = token(USER, None);
        let headers = format!(
            "Host: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        );
        Pipeline { stream: BufReader::new(stream), headers }
    }

    fn post(&self, body: &[u8]) -> Vec<u8> {
        let length = body.len();
        let head =
            format!("POST {POST} HTTP/1.1\r\n{}Content-Length: {length}\r\n\r\n", self.headers);
        [head.as_bytes(), body].concat()
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("sent");
    }

    /// Status and body of the next answer.
    fn answer(&mut self) -> io::Result<(u16, String)> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            if line == "\r\n" {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok((status, String::from_utf8(body).expect("text")))
    }
}

/// A pseudorandom number per salt.
fn random(mut salt: u64) -> u64 {
    split_mix(&mut salt)
}

/// A transfer body with one or more faults.
fn broken_body(number: u64) -> Vec<u8> {
    let draw = |salt: u64, below: usize| {
        usize::try_from(random(number * 100 + salt) % below as u64).expect("small")
    };
    let body = Way::BOTH[draw(0, 2)].body("USDT", "0.5").to_string().into_bytes();
    match draw(1, 6) {
        // Noise.
        0 => (0..draw(2, 200))
            .map(|at| random(number * 1_000 + at as u64).to_le_bytes()[0])
            .collect(),
        1 => body[..draw(2, body.len())].to_vec(),
        // One byte or a few changed.
        2 | 3 => {
            let mut body = body;
            for salt in 0..1 + draw(3, 4) as u64 {
                let at = draw(4 + salt, body.len());
                body[at] = random(number * 10 + salt).to_le_bytes()[0];
            }
            body
        }
        // A field of another type.
        4 => {
            let values = [
                json!(null),
                json!(-1),
                json!(1e308),
                json!([]),
                json!({}),
                json!(""),
                json!("-1"),
                json!("1e9"),
                json!("٣"),
                json!("0x10"),
                json!(true),
                json!("9".repeat(5_000)),
                json!("\u{0}"),
                json!([[[[]]]]),
            ];
            let fields = ["from", "to", "asset", "amount", "cid", "user_id", "from"];
            let mut body = Way::ToSpot.body("USDT", "0.5");
            body[fields[draw(2, fields.len())]] = values[draw(3, values.len())].clone();
            body.to_string().into_bytes()
        }
        // Deeply nested, or doubled.
        _ => match draw(2, 2) {
            0 => "[".repeat(5_000).into_bytes(),
            _ => [body.as_slice(), body.as_slice()].concat(),
        },
    }
}

/// Resident memory of a server, bytes.
fn resident(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("alive");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Goal: no body makes the service fail or grow, or moves money without a valid request. Method:
/// ten thousand bodies from broken to nearly right, in pipelines; each is answered, in order, and
/// none by a 5xx; at the end both stores add up.
#[test]
fn ten_thousand_broken_bodies_are_each_answered_and_none_by_a_failure() {
    const BODIES: u64 = 10_000;
    const PIPELINED: u64 = 50;
    let site = Site::new();
    let server = site.start();
    let batches = BODIES / PIPELINED;
    let accepted = Mutex::new(BTreeSet::new());
    let send = |batch: u64| {
        let mut pipeline = Pipeline::open(server.http);
        let bodies: Vec<_> =
            (0..PIPELINED).map(|index| broken_body(batch * PIPELINED + index)).collect();
        let requests: Vec<_> = bodies.iter().map(|body| pipeline.post(body)).collect();
        pipeline.send(&requests.concat());
        for body in &bodies {
            let (status, answer) = pipeline.answer().expect("an answer");
            let body = String::from_utf8_lossy(body);
            assert!(status < 500, "{status} {answer} to {body}");
            if status >= 300 {
                assert!(answer.starts_with("{\"code\":\""), "{status} {answer} to {body}");
            } else {
                let answer: Value = serde_json::from_str(&answer).expect("JSON");
                accepted.lock().expect("not poisoned").insert(answer["req_id"].to_string());
            }
        }
    };
    (0..batches / 10).for_each(send);
    let before = resident(&server);
    crowd(4, |caller| (batches / 10..batches).skip(caller).step_by(4).for_each(send));
    let after = resident(&server);
    assert!(after < before + (32 << 20), "memory grew from {before} to {after} bytes");
    site.wait_for_rest();
    let moved = site.sql("SELECT req_id FROM transfers WHERE state = 40");
    let accepted = accepted.into_inner().expect("not poisoned");
    let moved: BTreeSet<_> = moved.iter().map(|row| format!("\"{}\"", row[0])).collect();
    assert_eq!(moved, accepted);
    assert_eq!(server.usdt(USER).sum(), 10_000 * crate::harness::COIN);
    site.assert_in_order(&server);
}

/// Goal: each request of a pipeline is answered in its place, and requests after an unreadable one
/// are not carried out. Method: transfers with cids in one write, with an unreadable one in their
/// middle.
#[test]
fn a_pipeline_is_answered_in_order() {
    let site = Site::new();
    let server = site.start();
    let mut pipeline = Pipeline::open(server.http);
    let bodies: Vec<_> = (0..100)
        .map(|index| {
            Way::ToSpot.body_with_cid("USDT", "0.25", &format!("piped-{index}")).to_string()
        })
        .collect();
    let mut requests: Vec<_> = bodies.iter().map(|body| pipeline.post(body.as_bytes())).collect();
    requests.insert(50, b"GET /healthz HTTP/9.9\r\n\r\n".to_vec());
    pipeline.send(&requests.concat());
    for index in 0..50 {
        let (status, answer) = pipeline.answer().expect("an answer");
        assert!((200..300).contains(&status), "{status} {answer}");
        assert!(answer.contains(&format!("\"piped-{index}\"")), "{index}: {answer}");
    }
    assert_eq!(pipeline.answer().expect("an answer").0, 400);
    assert!(pipeline.answer().is_err(), "closed behind what cannot be read");
    site.wait_for_rest();
    assert_eq!(site.sql_value("SELECT count(*) FROM transfers"), "50");
    site.assert_in_order(&server);
}

/// Goal: clients that send a byte now and then, or nothing, or half a request, use one connection
/// each and delay no other client. Method: hundreds of each kind while others transfer; each is
/// closed at its time limit.
#[test]
fn slow_and_silent_clients_hold_up_nobody() {
    let site = Site::new()
        .with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 1_000)
        .with("UBSCORE__HTTP__BODY_READ_TIMEOUT_MS", 1_000);
    let server = site.start();
    let connect = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(server.http).expect("connected");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        stream.write_all(bytes).expect("sent");
        stream
    };
    let head = format!("POST {POST} HTTP/1.1\r\nHost: x\r\n");
    let body = format!("{head}Content-Length: 100\r\n\r\n{{\"from\":");
    let half = |_| {
        let stream = connect(head.as_bytes());
        stream.shutdown(Shutdown::Write).expect("shut");
        stream
    };
    let mut all: Vec<TcpStream> = (0..150).map(|_| connect(b"")).collect();
    all.extend((0..150).map(|_| connect(body.as_bytes())));
    all.extend((0..150).map(half));
    let mut drips: Vec<TcpStream> = (0..150).map(|_| connect(head.as_bytes())).collect();
    for round in 0..4 {
        for stream in &mut drips {
            // The server may have closed it.
            stream.write_all(b"X").ok();
        }
        assert_eq!(server.transfer(USER, Way::BOTH[round % 2], "1").status, 200);
    }
    for way in Way::BOTH {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    for mut stream in all.into_iter().chain(drips) {
        let mut rest = Vec::new();
        // A reset is an end as well.
        stream.read_to_end(&mut rest).ok();
    }
    site.wait_for_rest();
    site.assert_in_order(&server);
}

/// Goal: thousands of idle connections do not affect other clients; above the limit, idle ones are
/// closed for clients that send requests. Method: five thousand connections that send nothing,
/// transfers beside them; then more than the limit.
#[test]
fn five_thousand_idle_connections_are_held_and_others_are_served() {
    const IDLE: usize = 5_000;
    let site = Site::new()
        .with("UBSCORE__HTTP__CONNECTIONS_MAX", IDLE + 16)
        .with("UBSCORE__HTTP__CONNECTIONS_PER_ADDRESS_MAX", IDLE + 16)
        .with("UBSCORE__HTTP__HEADER_READ_TIMEOUT_MS", 60_000);
    let server = site.start();
    let connect = || TcpStream::connect(server.http).expect("connected");
    let mut idle: Vec<TcpStream> = (0..IDLE).map(|_| connect()).collect();
    for way in [Way::ToSpot, Way::ToFunding] {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    idle.extend((0..200).map(|_| connect()));
    for way in [Way::ToSpot, Way::ToFunding] {
        assert_eq!(server.transfer(USER, way, "1").status, 200);
    }
    drop(idle);
    site.wait_for_rest();
    site.assert_in_order(&server);
}
