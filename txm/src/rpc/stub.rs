//! A server over TCP that answers as a test wants it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// One answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// JSON with status 200; the connection stays.
    Json(Value),
    /// These bytes, and the connection is closed.
    Bytes(Vec<u8>),
    /// Nothing, and the connection stays.
    Silence,
}

/// The requests that came.
#[derive(Default)]
struct Seen {
    heads: Mutex<Vec<String>>,
    bodies: Mutex<Vec<Value>>,
    connections: AtomicUsize,
}

/// A server. It ends when it is dropped.
pub(crate) struct Stub {
    pub(crate) url: String,
    seen: Arc<Seen>,
    task: JoinHandle<()>,
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Answer = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;

impl Stub {
    pub(crate) async fn start(answer: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Stub {
        Stub::listen(answer, None).await
    }

    /// A server, over TLS if it has settings for it.
    pub(crate) async fn listen(
        answer: impl Fn(&Value) -> Reply + Send + Sync + 'static,
        tls: Option<ServerConfig>,
    ) -> Stub {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", listener.local_addr().expect("bound"));
        let acceptor = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
        let seen: Arc<Seen> = Arc::default();
        let (answer, shared): (Answer, _) = (Arc::new(answer), seen.clone());
        let task = tokio::spawn(async move {
            // They end with the server.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let (answer, shared) = (answer.clone(), shared.clone());
                match acceptor.clone() {
                    None => drop(connections.spawn(serve(stream, answer, shared))),
                    Some(acceptor) => drop(connections.spawn(async move {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            serve(stream, answer, shared).await;
                        }
                    })),
                }
            }
        });
        Stub { url, seen, task }
    }

    /// A server that answers each call, alone or in a list, with a result.
    pub(crate) async fn results(result: impl Fn(&Value) -> Value + Send + Sync + 'static) -> Stub {
        let one = move |call: &Value| json!({ "jsonrpc": "2.0", "id": call["id"], "result": result(call) });
        Stub::start(move |body| match body {
            Value::Array(calls) => Reply::Json(calls.iter().map(&one).collect()),
            call => Reply::Json(one(call)),
        })
        .await
    }

    /// The bodies of the requests.
    pub(crate) fn requests(&self) -> Vec<Value> {
        self.seen.bodies.lock().clone()
    }

    /// The heads of the requests, in lower case.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.seen.heads.lock().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }
}

/// Serves one connection until it is closed.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: Answer, seen: Arc<Seen>) {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        let (head, body, rest) = loop {
            if let Some(parts) = request(&buffer) {
                break parts;
            }
            let mut part = [0; 16 * 1024];
            match stream.read(&mut part).await {
                Ok(0) | Err(_) => return,
                Ok(length) => buffer.extend(&part[..length]),
            }
        };
        buffer = rest;
        seen.heads.lock().push(head);
        seen.bodies.lock().push(body.clone());
        let reply = match answer(&body) {
            Reply::Json(value) => {
                let body = value.to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
                (format!("{head}{}\r\n\r\n{body}", body.len()).into_bytes(), true)
            }
            Reply::Bytes(bytes) => (bytes, false),
            Reply::Silence => (Vec::new(), true),
        };
        if stream.write_all(&reply.0).await.is_err() || !reply.1 {
            return;
        }
    }
}

/// The head, the body and the rest behind one whole request.
fn request(buffer: &[u8]) -> Option<(String, Value, Vec<u8>)> {
    let end = buffer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&buffer[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
    let length: usize = length.trim().parse().ok()?;
    let body = buffer.get(end..end + length)?;
    let value = serde_json::from_slice(body).expect("the client sends JSON");
    Some((head, value, buffer[end + length..].to_vec()))
}
