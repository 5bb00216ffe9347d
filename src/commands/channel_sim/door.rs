//! HTTP of the simulator: each request in full, and answers that may be cut or never come.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::task;

/// A request.
pub(super) struct Asked {
    pub(super) method: Method,
    /// Path and query.
    pub(super) target: String,
    pub(super) head: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// An answer.
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

/// The manner of an answer.
pub(super) enum Manner {
    Whole(Reply),
    /// The first half of the body, then the end of the connection.
    Half(Reply),
    /// The end of the connection.
    Closed,
    /// Nothing, for ever.
    Never,
}

impl Asked {
    pub(super) fn path(&self) -> &str {
        self.target.split('?').next().expect("a first part")
    }

    /// The parts of the path.
    pub(super) fn parts(&self) -> Vec<&str> {
        self.path().trim_matches('/').split('/').collect()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.head.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The body as JSON; null: it is none.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A field of the query or of a posted form, decoded.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        let body = String::from_utf8_lossy(&self.body);
        let decode = |text: &str| {
            let text = text.replace('+', " ");
            percent_encoding::percent_decode_str(&text).decode_utf8_lossy().into_owned()
        };
        let fields = query.split('&').chain(body.split('&'));
        let mut pairs = fields.filter_map(|field| field.split_once('='));
        pairs.find(|(key, _)| decode(key) == name).map(|(_, value)| decode(value))
    }
}

impl Reply {
    pub(super) fn json(status: u16, body: &Value) -> Reply {
        let headers = vec![("content-type", "application/json".to_owned())];
        Reply { status, headers, body: body.to_string().into_bytes() }
    }
}

/// A body, whole or cut.
struct Piece {
    bytes: Option<Bytes>,
    is_cut: bool,
}

impl Body for Piece {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let is_cut = self.is_cut;
        Poll::Ready(match self.bytes.take() {
            Some(bytes) => Some(Ok(Frame::data(bytes))),
            None if is_cut => Some(Err(io::Error::other("cut on purpose"))),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_none() && !self.is_cut
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.bytes.as_ref().map_or(0, Bytes::len) as u64;
        if self.is_cut { SizeHint::new() } else { SizeHint::with_exact(length) }
    }
}

/// Serves until the process ends. `answer` may block.
///
/// # Errors
/// The listener or the runtime cannot be used.
pub(super) fn serve(
    listener: TcpListener,
    answer: impl Fn(&Asked) -> Manner + Send + Sync + 'static,
) -> io::Result<Infallible> {
    let answer = Arc::new(answer);
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let answer = Arc::clone(&answer);
            let one = service_fn(move |request| reply(request, Arc::clone(&answer)));
            tokio::spawn(async move {
                // Its client may go away at any time.
                http1::Builder::new().serve_connection(TokioIo::new(stream), one).await.ok();
            });
        }
    })
}

async fn reply<A>(request: Request<Incoming>, answer: Arc<A>) -> io::Result<Response<Piece>>
where
    A: Fn(&Asked) -> Manner + Send + Sync + 'static,
{
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let asked = Asked { method: head.method, target, head: head.headers, body };
    let manner = task::spawn_blocking(move || answer(&asked)).await.map_err(io::Error::other)?;
    let (reply, is_cut) = match manner {
        Manner::Whole(reply) => (reply, false),
        Manner::Half(reply) => (reply, true),
        Manner::Closed => return Err(io::Error::other("closed on purpose")),
        Manner::Never => std::future::pending().await,
    };
    let kept = if is_cut { reply.body.len() / 2 } else { reply.body.len() };
    let bytes = Bytes::copy_from_slice(&reply.body[..kept]);
    let bytes = Some(bytes).filter(|bytes| !bytes.is_empty());
    let mut response = Response::builder().status(reply.status);
    for (name, value) in reply.headers {
        response = response.header(name, value);
    }
    response.body(Piece { bytes, is_cut }).map_err(io::Error::other)
}
