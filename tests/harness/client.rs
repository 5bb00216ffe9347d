//! An HTTP client that can also send invalid requests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::{Balance, PATIENCE, signed_units, text, units};

/// A request with one token and, if given, a JSON body.
pub(crate) struct Request<'a> {
    pub(crate) token: &'a str,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: Option<&'a Value>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(token: &'a str, method: &'a str, path: &'a str) -> Request<'a> {
        Request { token, method, path, headers: &[], body: None }
    }
}

/// Sends one request on a connection of its own.
pub(crate) fn send(address: SocketAddr, request: &Request<'_>) -> io::Result<Reply> {
    let mut head = format!("Authorization: Bearer {}\r\n", request.token);
    for (name, value) in request.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if request.body.is_some() {
        head += "Content-Type: application/json\r\n";
    }
    let body = request.body.map(Value::to_string);
    send_text(address, request.method, request.path, &head, body.as_deref().unwrap_or(""))
}

/// Sends headers and a body unchanged, with the body's length.
pub(crate) fn send_text(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Reply> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {length}\r\n{headers}\r\n"
    );
    exchange(address, format!("{head}{body}").as_bytes())
}

/// Sends bytes and reads the answer.
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // The server may answer and close before it has read everything.
    let written = stream.write_all(bytes);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    match Reply::parse(&answer) {
        Some(reply) => Ok(reply),
        None => {
            written?;
            read?;
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no whole answer"))
        }
    }
}

/// An answer.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.status, self.body)
    }
}

impl Reply {
    /// A whole answer; `None` for less.
    fn parse(bytes: &[u8]) -> Option<Reply> {
        let answer = std::str::from_utf8(bytes).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let header = |line: &str| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        };
        let headers: Vec<_> = lines.filter_map(header).collect();
        let reply = Reply { status, headers, body: body.to_owned() };
        let length = reply.header("content-length").and_then(|length| length.parse().ok());
        (length.is_none_or(|length: usize| length == body.len())).then_some(reply)
    }

    /// A header's value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body's req_id.
    pub(crate) fn req_id(&self) -> String {
        text(&self.json()["req_id"]).to_owned()
    }

    /// The body as balances, by symbol.
    pub(crate) fn balances(&self) -> BTreeMap<String, Balance> {
        let side = |value: &Value| {
            (!value.is_null())
                .then(|| units(text(&value["available"])) + units(text(&value["frozen"])))
        };
        let balance = |row: &Value| Balance {
            funding: side(&row["funding"]),
            spot: side(&row["spot"]),
            in_flight: signed_units(text(&row["in_flight"])),
        };
        let json = self.json();
        let rows = json["balances"].as_array().expect("an array");
        rows.iter().map(|row| (text(&row["asset"]).to_owned(), balance(row))).collect()
    }

    /// Status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        let json = self.json();
        let code = json["code"].as_str().unwrap_or_else(|| panic!("no refusal: {self:?}"));
        (self.status, code.to_owned())
    }
}

/// Asserts a refusal.
#[track_caller]
pub(crate) fn assert_refused(reply: &Reply, status: u16, code: &str) {
    let json = reply.json();
    assert_eq!((reply.status, json["code"].as_str()), (status, Some(code)), "{reply:?}");
    for field in ["message", "request_id"] {
        assert!(json[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {reply:?}");
    }
    assert!(json["retryable"].is_boolean(), "{reply:?}");
    assert_eq!(reply.header("x-request-id"), json["request_id"].as_str(), "{reply:?}");
}
