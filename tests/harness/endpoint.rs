//! Addresses that a server posts to.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use super::text;

/// The posted bodies, in order.
type Bodies = Mutex<Vec<Vec<u8>>>;

/// An address that alerts, or spans, are posted to.
pub(crate) struct Webhook {
    address: SocketAddr,
    bodies: Arc<Bodies>,
}

impl Webhook {
    /// An address that takes every post.
    pub(crate) fn start() -> Webhook {
        Webhook::listen(|stream, bodies: &Bodies| {
            let (_, body) = read_request(&stream)?;
            bodies.lock().expect("no panic in a webhook").push(body);
            (&stream)
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        })
    }

    /// An address that takes connections, and never answers.
    pub(crate) fn silent() -> Webhook {
        Webhook::listen(|stream, _| io::copy(&mut &stream, &mut io::sink()).map(drop))
    }

    fn listen(answer: fn(TcpStream, &Bodies) -> io::Result<()>) -> Webhook {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let bodies: Arc<Bodies> = Arc::default();
        let received = Arc::clone(&bodies);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let bodies = Arc::clone(&received);
                // A test may kill the caller during this call.
                thread::spawn(move || drop(answer(stream.expect("a connection"), &bodies)));
            }
        });
        Webhook { address, bodies }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/alerts", self.address)
    }

    /// Every posted body, in order.
    pub(crate) fn raw(&self) -> Vec<Vec<u8>> {
        self.bodies.lock().expect("no panic in a webhook").clone()
    }

    /// The same as JSON.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.raw().iter().map(|body| serde_json::from_slice(body).expect("JSON")).collect()
    }
}

/// One delivery of a webhook as received.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    /// `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    pub(crate) id: String,
    pub(crate) timestamp: String,
    pub(crate) signature: String,
    /// The body to the byte.
    pub(crate) body: String,
    /// The status of its answer.
    pub(crate) status: u16,
}

impl Delivered {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }

    /// The transfer of the event.
    pub(crate) fn req_id(&self) -> String {
        text(&self.json()["req_id"]).to_owned()
    }
}

/// An endpoint for events, on a fixed address.
pub(crate) struct Endpoint {
    address: SocketAddr,
    delivered: Arc<Mutex<Vec<Delivered>>>,
}

impl Endpoint {
    /// An endpoint that answers each delivery with the status from `answer`; 0: it takes the
    /// delivery, and closes without an answer.
    pub(crate) fn start(answer: impl Fn(&Delivered) -> u16 + Send + Sync + 'static) -> Endpoint {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let delivered: Arc<Mutex<Vec<Delivered>>> = Arc::default();
        let (received, answer) = (Arc::clone(&delivered), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (received, answer) = (Arc::clone(&received), Arc::clone(&answer));
                thread::spawn(move || {
                    let stream = stream.expect("a connection");
                    // A test may kill the caller during this call.
                    let Ok((head, body)) = read_request(&stream) else { return };
                    let body = String::from_utf8(body).expect("text");
                    let header = |name: &str| {
                        let named = |line: &&str| line.to_ascii_lowercase().starts_with(name);
                        let line = head.lines().find(named).unwrap_or_default();
                        line.split_once(": ")
                            .map_or_else(String::new, |(_, value)| value.to_owned())
                    };
                    let mut delivery = Delivered {
                        id: header("webhook-id"),
                        timestamp: header("webhook-timestamp"),
                        signature: header("webhook-signature"),
                        body,
                        status: 0,
                    };
                    delivery.status = answer(&delivery);
                    let status = delivery.status;
                    received.lock().expect("no panic in an endpoint").push(delivery);
                    if status > 0 {
                        let location = "Location: /elsewhere\r\n";
                        let said = format!(
                            "HTTP/1.1 {status} So\r\n{location}Content-Length: 0\r\nConnection: close\r\n\r\n"
                        );
                        drop((&stream).write_all(said.as_bytes()));
                    }
                });
            }
        });
        Endpoint { address, delivered }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    /// Every delivery, in the order of its answers.
    pub(crate) fn delivered(&self) -> Vec<Delivered> {
        self.delivered.lock().expect("no panic in an endpoint").clone()
    }
}

/// Head and body of one request with a length.
pub(crate) fn read_request(stream: impl Read) -> io::Result<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head += &line;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((head, body))
}
