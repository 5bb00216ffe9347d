//! An endpoint before a chain's node. It counts the calls, adds a latency to each request, and says
//! when a send was answered and when a block was first shown.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alloy_consensus::{Transaction, TxEnvelope};
use alloy_eips::Decodable2718;
use alloy_primitives::hex;
use anyhow::Context;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use ubscore::commands::load::client::Client;

/// The method that lets a transaction out.
const SEND: &str = "eth_sendRawTransaction";

/// The log of an endpoint.
#[derive(Default)]
struct Log {
    requests: u64,
    calls: BTreeMap<String, u64>,
    /// When the first send began, since the log was cleared.
    first_send: Option<Instant>,
    /// Acknowledged sends, by payer.
    acknowledged: BTreeMap<u64, u64>,
    /// Answers about blocks, while they are kept.
    blocks: Option<Vec<(Instant, String)>>,
}

struct Inner {
    node: String,
    latency: Duration,
    log: Mutex<Log>,
    sent: Notify,
    acknowledged: watch::Sender<()>,
}

/// An endpoint, until the runtime ends.
#[derive(Clone)]
pub(crate) struct Endpoint {
    inner: Arc<Inner>,
    url: String,
}

impl Endpoint {
    /// An endpoint before the node at `node`, with a latency for each request.
    pub(crate) async fn start(node: &str, latency: Duration) -> anyhow::Result<Endpoint> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let inner = Arc::new(Inner {
            node: node.to_owned(),
            latency,
            log: Mutex::default(),
            sent: Notify::new(),
            acknowledged: watch::Sender::new(()),
        });
        let behind = Arc::clone(&inner);
        // It ends with the runtime.
        drop(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(tokio::spawn(serve(Arc::clone(&behind), stream)));
            }
        }));
        Ok(Endpoint { inner, url })
    }

    /// Its `http://` URL.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Forgets all counts.
    pub(crate) fn clear(&self) {
        *self.inner.log.lock() = Log::default();
    }

    /// The requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.inner.log.lock().requests
    }

    /// The calls so far, by method.
    pub(crate) fn calls(&self) -> BTreeMap<String, u64> {
        self.inner.log.lock().calls.clone()
    }

    /// Waits for the first send since the last [`Endpoint::clear`]: when it came.
    pub(crate) async fn first_send(&self) -> Instant {
        loop {
            let sent = self.inner.sent.notified();
            if let Some(at) = self.inner.log.lock().first_send {
                return at;
            }
            sent.await;
        }
    }

    /// Waits until so many sends of a payer are acknowledged. A payer pays its own number, below
    /// 1,000, beside thousands of wei.
    pub(crate) async fn acknowledged(&self, payer: u64, count: u64) -> anyhow::Result<()> {
        let mut seen = self.inner.acknowledged.subscribe();
        while self.inner.log.lock().acknowledged.get(&payer).is_none_or(|sent| *sent < count) {
            seen.changed().await.context("the endpoint ended")?;
        }
        Ok(())
    }

    /// Keeps the answers about blocks from now on.
    pub(crate) fn keep_blocks(&self) {
        self.inner.log.lock().blocks = Some(Vec::new());
    }

    /// When an answer about a block first had this text, of those that were kept.
    pub(crate) fn shown(&self, text: &str) -> Option<Instant> {
        let log = self.inner.log.lock();
        let mut blocks = log.blocks.iter().flatten();
        blocks.find(|(_, body)| body.contains(text)).map(|(at, _)| *at)
    }
}

async fn serve(inner: Arc<Inner>, stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let node = Arc::new(tokio::sync::Mutex::new(Client::connect(&inner.node).await?));
    let service = service_fn(move |request| {
        let (inner, node) = (Arc::clone(&inner), Arc::clone(&node));
        async move {
            let answer = answer(&inner, &node, request).await;
            let (status, body) = answer.unwrap_or((StatusCode::BAD_GATEWAY, String::new()));
            let mut answer = Response::new(Full::new(Bytes::from(body)));
            *answer.status_mut() = status;
            answer.headers_mut().insert(CONTENT_TYPE, "application/json".parse().expect("ASCII"));
            Ok::<_, Infallible>(answer)
        }
    });
    http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?;
    Ok(())
}

async fn answer(
    inner: &Inner,
    node: &tokio::sync::Mutex<Client>,
    request: Request<Incoming>,
) -> anyhow::Result<(StatusCode, String)> {
    let body = request.into_body().collect().await?.to_bytes();
    let text = String::from_utf8(body.to_vec())?;
    let calls = match serde_json::from_str(&text)? {
        Value::Array(calls) => calls,
        call => vec![call],
    };
    let payers: Vec<u64> = calls.iter().filter_map(payer).collect();
    {
        let mut log = inner.log.lock();
        log.requests += 1;
        for call in &calls {
            *log.calls.entry(call["method"].as_str().unwrap_or("").to_owned()).or_default() += 1;
        }
        if !payers.is_empty() {
            log.first_send.get_or_insert_with(Instant::now);
            inner.sent.notify_waiters();
        }
    }
    if !inner.latency.is_zero() {
        tokio::time::sleep(inner.latency).await;
    }
    let (status, answer) = node.lock().await.send(Method::POST, "/", "", text).await?;
    let mut log = inner.log.lock();
    if calls.iter().any(|call| call["method"] == "eth_getBlockByNumber")
        && let Some(blocks) = &mut log.blocks
    {
        blocks.push((Instant::now(), answer.clone()));
    }
    if !payers.is_empty() && !answer.contains("\"error\"") {
        for payer in payers {
            *log.acknowledged.entry(payer).or_default() += 1;
        }
        inner.acknowledged.send_replace(());
    }
    Ok((status, answer))
}

/// The payer of a send, by the last digits of its value.
fn payer(call: &Value) -> Option<u64> {
    let raw = call["params"][0].as_str().filter(|_| call["method"] == SEND)?;
    let sent = TxEnvelope::decode_2718_exact(&hex::decode(raw).ok()?).ok()?;
    u64::try_from(sent.value()).ok().map(|value| value % 1_000)
}
