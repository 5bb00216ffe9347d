//! A stream of events as read by a client.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};

use super::PATIENCE;

/// One part of a stream of events.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part {
    /// An id without an event.
    Position(String),
    /// An event.
    Event { id: String, kind: String, data: Value },
    /// A heart-beat.
    Beat,
    /// The end, in order or not.
    End { clean: bool },
}

/// A stream of events, read by a thread of its own until it is dropped.
pub(crate) struct Follower {
    stream: TcpStream,
    parts: mpsc::Receiver<Part>,
}

impl Drop for Follower {
    fn drop(&mut self) {
        // The server may have closed it before.
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

impl Follower {
    /// Opens a stream behind an event's id, with a token; panics if it is refused.
    pub(crate) fn open(address: SocketAddr, token: &str, after: Option<&str>) -> Follower {
        let stream = Follower::ask(address, token, after);
        let mut reader = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let count = reader.read_line(&mut head).expect("a head");
            assert_ne!(count, 0, "closed after {head:?}");
        }
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        let (sender, parts) = mpsc::channel();
        thread::spawn(move || {
            let mut text = String::new();
            let clean = loop {
                match read_chunk(&mut reader) {
                    Ok(chunk) if chunk.is_empty() => break true,
                    Ok(chunk) => text += &chunk,
                    Err(_) => break false,
                }
                while let Some((block, rest)) = text.split_once("\n\n") {
                    let (said, rest) = (parse_block(block), rest.to_owned());
                    // The test may have dropped its end.
                    sender.send(said).ok();
                    text = rest;
                }
            };
            sender.send(Part::End { clean }).ok();
        });
        Follower { stream, parts }
    }

    /// Requests a stream, and reads nothing.
    pub(crate) fn ask(address: SocketAddr, token: &str, after: Option<&str>) -> TcpStream {
        let stream = TcpStream::connect(address).expect("a connection");
        let after = after.map_or_else(String::new, |id| format!("Last-Event-ID: {id}\r\n"));
        let request = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\n\
             Authorization: Bearer {token}\r\n{after}\r\n"
        );
        (&stream).write_all(request.as_bytes()).expect("sent");
        stream
    }

    /// The next part.
    pub(crate) fn next(&self) -> Part {
        self.parts.recv_timeout(PATIENCE).expect("the stream sends a part")
    }

    /// The next event: its id, its kind and its data. Heart-beats and positions are skipped.
    pub(crate) fn event(&self) -> (String, String, Value) {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < PATIENCE, "heart-beats only, no event");
            match self.next() {
                Part::Event { id, kind, data } => return (id, kind, data),
                Part::Beat | Part::Position(_) => {}
                end @ Part::End { .. } => panic!("no event, but {end:?}"),
            }
        }
    }

    /// The next event, which must be about a transfer: its id and its data.
    pub(crate) fn transfer(&self) -> (String, Value) {
        let (id, kind, data) = self.event();
        assert_eq!((kind.as_str(), &data["event_id"]), ("transfer", &json!(id)), "{data}");
        (id, data)
    }

    /// The next event, `None` at the end of the stream.
    #[cfg(feature = "crash")]
    pub(crate) fn transfer_or_end(&self) -> Option<(String, Value)> {
        loop {
            match self.next() {
                Part::Event { id, kind, data } if kind == "transfer" => return Some((id, data)),
                Part::End { .. } => return None,
                _ => {}
            }
        }
    }

    /// All parts not taken yet, up to the end if it has one.
    pub(crate) fn rest(&self) -> Vec<Part> {
        self.parts.try_iter().collect()
    }
}

/// One chunk of a body, empty at its end.
fn read_chunk(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
    let mut chunk = vec![0; length + 2];
    reader.read_exact(&mut chunk)?;
    chunk.truncate(length);
    String::from_utf8(chunk).map_err(io::Error::other)
}

/// One block of a stream: its fields up to an empty line.
fn parse_block(block: &str) -> Part {
    let field = |name: &str| {
        let start = format!("{name}: ");
        block.lines().find_map(|line| line.strip_prefix(&start)).map(str::to_owned)
    };
    match (field("event"), field("id"), field("data")) {
        (Some(kind), id, Some(data)) => {
            let data = serde_json::from_str(&data).expect("JSON");
            Part::Event { id: id.unwrap_or_default(), kind, data }
        }
        (None, Some(id), None) => Part::Position(id),
        (None, None, None) if block.starts_with(':') => Part::Beat,
        _ => panic!("no block of a stream: {block:?}"),
    }
}
