//! A listener of HTTP/1.1: connections, their limits, and a graceful stop.
//!
//! The handler that is passed in answers the requests. Every wait here has a limit: for headers,
//! bodies, answers, connections and the stop itself. Each limit has a stated answer.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::rt::{Sleep, Timer};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info, warn};

use super::answer::{Answer, Content};
use super::refusal::RETRY_AFTER_S;
use super::request_id::{X_REQUEST_ID, request_id};
use super::seats::{Place, Seats};
use super::tls::Tls;
use crate::config;
use crate::telemetry;
use domain::shortage::Shortage;

/// Connections over the limit that are answered 503 at the same time. Further ones are closed
/// without an answer, so that refusals use a bounded number of file descriptors.
const REFUSALS_MAX: usize = 64;

/// Time for a connection over the limit to send its request and read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Pause after a failed accept. The usual cause is a lack of file descriptors, and then the next
/// call fails as fast as this one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of one listener.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Request line and headers together, bytes; a larger header is answered 431.
    pub header_bytes_max: usize,
    /// Time for a complete header, and for a TLS handshake; then the connection is closed.
    pub header_read_timeout: Duration,
    /// Time for an answer to begin; then 503. A client that reads no bytes for this long is cut
    /// off.
    pub request_timeout: Duration,
    /// Connections at once. The next one replaces an idle one. If none is idle, it is answered 503.
    pub connections_max: usize,
    /// Connections of one address at once.
    pub connections_per_address_max: usize,
    /// Time for open requests when the stop begins; then their connections are cut.
    pub shutdown_timeout: Duration,
}

impl From<&config::http::Http> for Limits {
    fn from(http: &config::http::Http) -> Self {
        Self {
            header_bytes_max: http.header_bytes_max,
            header_read_timeout: Duration::from_millis(http.header_read_timeout_ms),
            request_timeout: Duration::from_millis(http.request_timeout_ms),
            connections_max: http.connections_max,
            connections_per_address_max: http.connections_per_address_max(),
            shutdown_timeout: Duration::from_millis(http.shutdown_timeout_ms),
        }
    }
}

/// The connections that were open when the stop began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Idle, or answered in time.
    pub finished: usize,
    /// Cut at the end of the time-out.
    pub cut: usize,
}

/// Serves connections until `shutdown` resolves, then lets those in flight finish.
///
/// `tls`: if given, secures every connection. `handler`: request in, response out. Its future is
/// dropped, at any await, when the client hangs up, when the request times out and when the stop's
/// time is over. Work that must go on belongs in a task of its own. A panic closes its own
/// connection and no other.
///
/// Returns when every connection has ended, at most `limits.shutdown_timeout` after `shutdown`.
pub async fn serve<H, F>(
    listener: TcpListener,
    limits: Limits,
    tls: Option<Arc<Tls>>,
    handler: H,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    serve_admitted(listener, limits, |_| true, tls, handler, shutdown).await
}

/// The same for the addresses that `admits` takes. A connection of another one is closed without
/// an answer.
pub async fn serve_admitted<H, F>(
    listener: TcpListener,
    limits: Limits,
    admits: impl Fn(IpAddr) -> bool,
    tls: Option<Arc<Tls>>,
    handler: H,
    shutdown: impl Future<Output = ()>,
) -> Drained
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let seats = Seats::new(limits.connections_max, limits.connections_per_address_max);
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let (stop, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut accept_fails = false;
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => {
                report(ended);
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Logged once: it repeats ten times a second while the cause lasts.
                if !accept_fails {
                    warn!(%error, "cannot accept connections; retrying");
                }
                accept_fails = true;
                time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        accept_fails = false;
        if !admits(peer.ip().to_canonical()) {
            debug!(%peer, "a connection of a network that is not admitted was closed");
            continue;
        }
        if let Err(error) = prepare(&stream, limits) {
            debug!(%error, "a connection ended before it began");
            continue;
        }
        let tls = tls.as_ref().map(|tls| tls.acceptor());
        if let Some(place) = seats.take(peer.ip()) {
            let place = Arc::new(place);
            let (handler, stopped) = (Seated::new(&handler, &place), stopped.clone());
            connections.spawn(async move {
                tokio::select! {
                    biased;
                    () = welcome(stream, tls, limits, handler, stopped) => {}
                    () = place.given_away() => debug!("an idle connection was closed for a new one"),
                }
            });
        } else if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
            let stopped = stopped.clone();
            connections.spawn(async move {
                refuse(stream, tls, limits, stopped).await;
                drop(permit);
            });
        }
        // Otherwise the stream is dropped here: closed without an answer.
    }
    // The closed port shows a load balancer, and the next process, that this one stops.
    drop(listener);
    while let Some(ended) = connections.try_join_next() {
        report(ended);
    }
    stop.send_replace(());
    drain(connections, limits.shutdown_timeout).await
}

/// The handler of one connection. Not a closure that returns a future: each layer of a future that
/// is passed on, and not called where it is awaited, doubles the future's size.
struct Seated<H> {
    handler: H,
    /// `None` for a connection that is refused.
    place: Option<Arc<Place>>,
}

impl<H, F> Seated<H>
where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    fn new(handler: &H, place: &Arc<Place>) -> Seated<H> {
        Seated { handler: handler.clone(), place: Some(Arc::clone(place)) }
    }

    /// Answers a request, and marks the connection's place as busy meanwhile.
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        if self.place.as_ref().is_some_and(|place| !place.begin()) {
            // The connection is being closed: this request must not begin.
            return std::future::pending().await;
        }
        let answer = (self.handler)(request).await;
        if let (Some(place), Content::Left(_)) = (&self.place, answer.body()) {
            // A stream stays busy until it ends.
            place.end();
        }
        answer
    }
}

/// Sets the socket options of a connection.
fn prepare(stream: &TcpStream, limits: Limits) -> io::Result<()> {
    // An answer is one small write: waiting for more data only delays it.
    stream.set_nodelay(true)?;
    // Hyper waits forever for a client that does not read its answer. The kernel closes it.
    let timeout_ms = u32::try_from(limits.request_timeout.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(stream, timeout_ms)?;
    Ok(())
}

fn builder(limits: Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(Spare::default())
        .header_read_timeout(limits.header_read_timeout)
        .max_header_size(limits.header_bytes_max)
        // A header at its limit, and requests that were pipelined after it in the same read.
        .max_buf_size(limits.header_bytes_max.saturating_mul(2));
    builder
}

/// The timer that the last wait of a connection has left, if there is one.
///
/// Each request begins two waits, for its header and for its answer, and nearly all end long before
/// their time. To make and to drop a timer passes twice through the lock of all timers of the
/// process; to move one to a later time takes a compare-and-swap. A timer without a waiter may
/// wake its connection once, which then finds nothing to do.
#[derive(Clone, Debug, Default)]
struct Spare(Arc<Mutex<Option<Pin<Box<time::Sleep>>>>>);

/// A wait. It leaves its timer when it is dropped.
struct Wait {
    timer: Option<Pin<Box<time::Sleep>>>,
    spare: Spare,
}

impl Spare {
    /// A wait of this length.
    fn wait(&self, length: Duration) -> Wait {
        self.until(self.now() + length)
    }

    fn until(&self, end: Instant) -> Wait {
        let timer = match self.0.lock().take() {
            Some(mut timer) => {
                timer.as_mut().reset(end.into());
                timer
            }
            None => Box::pin(time::sleep_until(end.into())),
        };
        Wait { timer: Some(timer), spare: self.clone() }
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().expect("kept until the drop").as_mut().poll(context)
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        *self.spare.0.lock() = self.timer.take();
    }
}

impl Sleep for Wait {}

impl Timer for Spare {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.wait(duration))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(self.until(deadline))
    }
}

/// Secures a connection if the listener has TLS, and serves it.
async fn welcome<H, F>(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    handler: Seated<H>,
    mut stopped: watch::Receiver<()>,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let Some(acceptor) = tls else {
        return converse(stream, limits, handler, stopped).await;
    };
    let handshake = time::timeout(limits.header_read_timeout, acceptor.accept(stream));
    let secured = tokio::select! {
        secured = handshake => secured,
        _ = stopped.changed() => return,
    };
    match secured {
        Ok(Ok(stream)) => converse(stream, limits, handler, stopped).await,
        // Plain HTTP, no common protocol, or an untrusted certificate: an error of the client.
        Ok(Err(error)) => debug!(%error, "a TLS handshake failed"),
        Err(_) => debug!("a TLS handshake took too long"),
    }
}

/// Serves one connection until either side closes it, or the stop comes.
async fn converse<H, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    limits: Limits,
    handler: Seated<H>,
    mut stopped: watch::Receiver<()>,
) where
    H: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let (handler, timer) = (Arc::new(handler), Spare::default());
    let service = service_fn(move |request: Request<Incoming>| {
        let (handler, late) = (Arc::clone(&handler), timer.wait(limits.request_timeout));
        async move {
            let id = request.headers().get(X_REQUEST_ID).cloned();
            Ok::<_, Infallible>(tokio::select! {
                biased;
                answer = handler.answer(request) => answer,
                () = late => timed_out(id.as_ref(), limits.request_timeout),
            })
        }
    });
    let mut connection = pin!(builder(limits).serve_connection(TokioIo::new(stream), service));
    let result = tokio::select! {
        biased;
        result = connection.as_mut() => result,
        // An error: the sender is gone, and no task waits for this connection.
        _ = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        // Invalid requests, time-outs and clients that hang up: errors of the client.
        debug!(%error, "a connection ended early");
    }
}

/// Answers the first request of a connection over the limit, and closes it.
async fn refuse(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    stopped: watch::Receiver<()>,
) {
    let handler = |request: Request<Incoming>| async move {
        let id = request.headers().get(X_REQUEST_ID);
        let shortage = Some(Shortage::Connections);
        let message = Shortage::Connections.message();
        let status = StatusCode::SERVICE_UNAVAILABLE;
        answer_without_route(status, "OVERLOADED", message, shortage, id)
    };
    let handler = Seated { handler, place: None };
    let connection = welcome(stream, tls, limits, handler, stopped);
    if time::timeout(REFUSAL_TIMEOUT, connection).await.is_err() {
        debug!("a connection over the limit sent no request in time");
    }
}

fn timed_out(id: Option<&HeaderValue>, timeout: Duration) -> Answer {
    let message = "No answer in time. It is not known whether the request took effect.";
    let response =
        answer_without_route(StatusCode::SERVICE_UNAVAILABLE, "SYSTEM_ERROR", message, None, id);
    let request_id = response.headers().get(X_REQUEST_ID);
    warn!(?request_id, timeout_ms = timeout.as_millis(), "a request timed out");
    response
}

/// The error body for a request that no route answered. It ends the connection.
fn answer_without_route(
    status: StatusCode,
    code: &str,
    message: &str,
    shortage: Option<Shortage>,
    id: Option<&HeaderValue>,
) -> Answer {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let id = match request_id(id) {
        Some(id) => id.to_owned(),
        // Relaxed: the numbers only have to differ.
        None => format!("edge-{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
    };
    telemetry::count_http_request(telemetry::ROUTE_NONE, status.as_u16());
    let mut body = serde_json::json!({
        "code": code,
        "message": message,
        "retryable": shortage.is_some(),
        "request_id": id,
    });
    if let Some(shortage) = shortage {
        telemetry::refused(shortage.name());
        body["reason"] = shortage.name().into();
    }
    let mut response = Response::new(Content::Left(Full::new(body.to_string().into())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    headers.insert(X_REQUEST_ID, HeaderValue::try_from(id).expect("sane ids are header values"));
    response
}

/// Waits for the connections that the stop found open, and cuts those that take too long.
async fn drain(mut connections: JoinSet<()>, timeout: Duration) -> Drained {
    let open = connections.len();
    let all_ended = time::timeout(timeout, async {
        while let Some(ended) = connections.join_next().await {
            report(ended);
        }
    });
    let in_time = all_ended.await.is_ok();
    let cut = connections.len();
    if !in_time {
        warn!(cut, timeout_ms = timeout.as_millis(), "connections did not finish in time");
        connections.shutdown().await;
    }
    assert!(cut <= open, "no connection is accepted after the stop");
    let drained = Drained { finished: open - cut, cut };
    info!(finished = drained.finished, cut, "stopped listening");
    drained
}

/// Logs a panic of a handler. A connection's task ends in no other error.
fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "a handler panicked; its connection was closed");
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::sync::mpsc;
    use std::thread;
    use tokio::runtime::Runtime;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::http::request::{BodyError, DISCARD_BYTES_MAX, read_body};

    /// Longest that a test waits for anything; reached only when it fails.
    const PATIENCE: Duration = Duration::from_secs(10);

    const LIMITS: Limits = Limits {
        header_bytes_max: 16_384,
        header_read_timeout: PATIENCE,
        request_timeout: PATIENCE,
        connections_max: 16,
        connections_per_address_max: 16,
        shutdown_timeout: PATIENCE,
    };

    const BODY_BYTES_MAX: usize = 1_024;
    const BODY_TIMEOUT: Duration = Duration::from_secs(1);
    const LARGE_BYTES: usize = 64 << 20;

    struct Server {
        runtime: Runtime,
        address: SocketAddr,
        stop: Option<oneshot::Sender<()>>,
        served: JoinHandle<Drained>,
        /// One message for each request to `/hang` that has begun.
        hanging: mpsc::Receiver<()>,
        /// One message for each request to `/hang` with a dropped future.
        dropped: mpsc::Receiver<()>,
    }

    struct Tells(mpsc::Sender<()>);

    impl Drop for Tells {
        fn drop(&mut self) {
            // The test may be over already.
            self.0.send(()).ok();
        }
    }

    impl Server {
        fn start(limits: Limits) -> Self {
            let runtime = Runtime::new().expect("a runtime");
            let listener = runtime
                .block_on(TcpListener::bind(("127.0.0.1", 0)))
                .expect("a port of the kernel's choice");
            let address = listener.local_addr().expect("an address");
            let (stop, stopping) = oneshot::channel();
            let (begins, hanging) = mpsc::channel();
            let (ends, dropped) = mpsc::channel();
            let handler = move |request: Request<Incoming>| {
                let (begins, ends) = (begins.clone(), ends.clone());
                async move {
                    match request.uri().path() {
                        "/hang" => {
                            let _tells = Tells(ends);
                            begins.send(()).expect("the test listens");
                            std::future::pending().await
                        }
                        "/slow" => {
                            begins.send(()).expect("the test listens");
                            time::sleep(Duration::from_millis(300)).await;
                        }
                        "/panic" => panic!("a handler's bug"),
                        "/large" => {
                            let large = Full::new(vec![b'x'; LARGE_BYTES].into());
                            return Response::new(Content::Left(large));
                        }
                        _ => {}
                    }
                    let path = request.uri().path().to_owned();
                    let text =
                        match read_body(request.into_body(), BODY_BYTES_MAX, BODY_TIMEOUT).await {
                            Ok(body) => format!("{path} {} bytes", body.len()),
                            Err(BodyError::TooLarge { .. }) => "too large".to_owned(),
                            Err(BodyError::Aborted(_)) => "aborted".to_owned(),
                            Err(BodyError::Timeout) => "timeout".to_owned(),
                        };
                    Response::new(Content::Left(Full::new(text.into())))
                }
            };
            let served = runtime.spawn(serve(listener, limits, None, handler, async {
                // A dropped sender stops the server as well.
                stopping.await.ok();
            }));
            Self { runtime, address, stop: Some(stop), served, hanging, dropped }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(self.address).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
            stream
        }

        /// Sends `request` and returns all that comes until the server closes.
        fn exchange(&self, request: &str) -> String {
            let mut stream = self.connect();
            stream.write_all(request.as_bytes()).expect("sent");
            read_all(&mut stream)
        }

        fn is_alive(&self) -> bool {
            self.exchange(&get("/alive", "Connection: close\r\n")).contains("/alive 0 bytes")
        }

        fn begin_stop(&mut self) {
            self.stop.take().expect("stopped once").send(()).expect("the server runs");
        }

        fn stop(mut self) -> Drained {
            if self.stop.is_some() {
                self.begin_stop();
            }
            self.runtime
                .block_on(async { time::timeout(PATIENCE, self.served).await })
                .expect("in time")
                .expect("ran")
        }
    }

    fn get(path: &str, headers: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n")
    }

    /// All that the server says; a reset ends it like a close.
    fn read_all(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        match stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{bytes:?}"),
        }
        String::from_utf8(bytes).expect("text")
    }

    /// Reads up to the end of one small answer of the test's handler.
    fn read_answer(stream: &mut TcpStream) -> String {
        let mut bytes = Vec::new();
        let mut buffer = [0; 4_096];
        while !bytes.ends_with(b"bytes") {
            let count = stream.read(&mut buffer).expect("an answer");
            assert_ne!(count, 0, "closed after {:?}", String::from_utf8_lossy(&bytes));
            bytes.extend_from_slice(&buffer[..count]);
        }
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn pipelined_requests_are_answered_in_order_on_one_connection() {
        let server = Server::start(LIMITS);
        let requests = [get("/1", ""), get("/2", ""), get("/3", "Connection: close\r\n")].concat();
        let said = server.exchange(&requests);
        let paths: Vec<&str> = said.lines().filter(|line| line.ends_with("bytes")).collect();
        // A body ends without a line break, so that the next status line follows on its line.
        assert_eq!(said.matches("HTTP/1.1 200 OK").count(), 3, "{said}");
        assert!(said.find("/1 0") < said.find("/2 0") && said.find("/2 0") < said.find("/3 0"));
        assert_eq!(paths, ["/3 0 bytes"]);
    }

    #[test]
    fn a_header_over_the_limit_is_answered_431() {
        let server = Server::start(LIMITS);
        let long = |bytes| get("/", &format!("X: {}\r\nConnection: close\r\n", "x".repeat(bytes)));
        assert!(server.exchange(&long(LIMITS.header_bytes_max - 100)).contains(" 200 OK"));
        assert!(server.exchange(&long(LIMITS.header_bytes_max)).starts_with("HTTP/1.1 431 "));
        assert!(server.exchange("what is this\r\n\r\n").starts_with("HTTP/1.1 400 "));
        assert!(server.is_alive());
    }

    #[test]
    fn a_header_that_never_ends_is_given_up() {
        let limits = Limits { header_read_timeout: Duration::from_millis(200), ..LIMITS };
        let server = Server::start(limits);
        for begun in ["", "GET / HT", "GET / HTTP/1.1\r\nHost: test\r\nX: y\r\n"] {
            assert_eq!(server.exchange(begun), "", "{begun:?}");
        }
        // So is a connection that asks once and then keeps its place.
        let mut stream = server.connect();
        stream.write_all(get("/once", "").as_bytes()).expect("sent");
        assert!(read_all(&mut stream).ends_with("/once 0 bytes"));
    }

    #[test]
    fn a_request_without_an_answer_is_answered_503() {
        let limits = Limits { request_timeout: Duration::from_millis(200), ..LIMITS };
        let server = Server::start(limits);
        let said = server.exchange(&get("/hang", "X-Request-Id: mine-1\r\n"));
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        assert!(said.contains("x-request-id: mine-1\r\n"), "{said}");
        assert!(said.contains("retry-after: 1\r\n"), "{said}");
        let (_, body) = said.split_once("\r\n\r\n").expect("a body");
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body["code"], "SYSTEM_ERROR");
        assert_eq!(body["request_id"], "mine-1");
        server.dropped.recv_timeout(PATIENCE).expect("the handler's future was dropped");
        let said = server.exchange(&get("/hang", "X-Request-Id: two words\r\n"));
        assert!(said.contains("x-request-id: edge-"), "{said}");
    }

    #[test]
    fn a_connection_over_the_limit_is_refused_and_a_freed_place_is_given_again() {
        let server = Server::start(Limits { connections_max: 2, ..LIMITS });
        let mut held = [server.connect(), server.connect()];
        for stream in &mut held {
            stream.write_all(get("/hang", "").as_bytes()).expect("sent");
            server.hanging.recv_timeout(PATIENCE).expect("the request has begun");
        }
        let said = server.exchange(&get("/third", ""));
        assert!(said.starts_with("HTTP/1.1 503 "), "{said}");
        assert!(said.contains("retry-after: 1\r\n"), "{said}");
        assert!(said.contains(r#""code":"OVERLOADED""#), "{said}");
        assert!(said.contains(r#""retryable":true"#), "{said}");
        drop(held);
        let begun = Instant::now();
        while !server.is_alive() {
            assert!(begun.elapsed() < PATIENCE, "the places were not given again");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_crowd_that_says_nothing_is_closed_and_costs_no_more_than_its_limit() {
        let server = Server::start(Limits { connections_max: 2, ..LIMITS });
        let mut held = server.connect();
        held.write_all(get("/held", "").as_bytes()).expect("sent");
        assert!(read_answer(&mut held).contains("200 OK"));
        let mut crowd: Vec<TcpStream> = (0..2 * REFUSALS_MAX).map(|_| server.connect()).collect();
        let begun = Instant::now();
        // Each leaves for the next one; the one that has asked stays.
        crowd.pop();
        for stream in &mut crowd {
            assert_eq!(read_all(stream), "");
        }
        assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
        held.write_all(get("/held", "").as_bytes()).expect("sent");
        assert!(read_answer(&mut held).contains("200 OK"));
    }

    /// Goal: a stop takes back nothing that was begun. Method: one request in flight, one idle
    /// connection, one that never spoke; all end well, and the port is closed at once.
    #[test]
    fn a_stop_finishes_what_is_in_flight_and_closes_the_rest() {
        let mut server = Server::start(LIMITS);
        let mut silent = server.connect();
        let mut idle = server.connect();
        idle.write_all(get("/idle", "").as_bytes()).expect("sent");
        assert!(read_answer(&mut idle).contains("200 OK"));
        let mut busy = server.connect();
        busy.write_all(get("/slow", "").as_bytes()).expect("sent");
        server.hanging.recv_timeout(PATIENCE).expect("the request has begun");

        server.begin_stop();
        assert_eq!(read_all(&mut idle), "");
        assert_eq!(read_all(&mut silent), "");
        let refused = TcpStream::connect(server.address).expect_err("the port is closed");
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let said = read_all(&mut busy);
        assert!(said.contains("200 OK") && said.contains("connection: close"), "{said}");
        assert_eq!(server.stop(), Drained { finished: 3, cut: 0 });
    }

    #[test]
    fn a_stop_ends_in_time_even_if_a_handler_does_not() {
        let timeout = Duration::from_millis(200);
        let server = Server::start(Limits { shutdown_timeout: timeout, ..LIMITS });
        let mut stream = server.connect();
        stream.write_all(get("/hang", "").as_bytes()).expect("sent");
        server.hanging.recv_timeout(PATIENCE).expect("the request has begun");
        assert_eq!(server.stop(), Drained { finished: 0, cut: 1 });
        assert_eq!(read_all(&mut stream), "");
    }

    #[test]
    fn a_panic_closes_its_connection_and_no_other() {
        let server = Server::start(LIMITS);
        let mut other = server.connect();
        other.write_all(get("/other", "").as_bytes()).expect("sent");
        read_answer(&mut other);
        assert_eq!(server.exchange(&get("/panic", "")), "");
        other.write_all(get("/other", "").as_bytes()).expect("sent");
        assert!(read_answer(&mut other).contains("/other 0 bytes"));
        assert!(server.is_alive());
        assert_eq!(server.stop().cut, 0);
    }

    #[test]
    fn a_client_that_hangs_up_drops_its_handler_and_nothing_else() {
        let server = Server::start(LIMITS);
        let mut stream = server.connect();
        stream.write_all(get("/hang", "").as_bytes()).expect("sent");
        server.hanging.recv_timeout(PATIENCE).expect("the request has begun");
        drop(stream);
        server.dropped.recv_timeout(PATIENCE).expect("the handler's future was dropped");
        assert!(server.is_alive());
    }

    #[test]
    fn a_client_that_asks_and_does_not_read_is_cut_off() {
        let limits =
            Limits { request_timeout: Duration::from_millis(500), connections_max: 1, ..LIMITS };
        let server = Server::start(limits);
        let mut stuck = server.connect();
        stuck.write_all(get("/large", "").as_bytes()).expect("sent");
        let begun = Instant::now();
        while !server.is_alive() {
            assert!(begun.elapsed() < PATIENCE, "it holds its place for ever");
            thread::sleep(Duration::from_millis(50));
        }
    }

    #[test]
    fn a_body_is_read_up_to_its_limit() {
        let server = Server::start(LIMITS);
        let sized = |bytes: usize| {
            let body = "x".repeat(bytes);
            let length = format!("Content-Length: {bytes}\r\nConnection: close\r\n");
            format!("POST /body HTTP/1.1\r\nHost: test\r\n{length}\r\n{body}")
        };
        let chunked = |chunks: &[usize]| {
            let chunks: String = chunks
                .iter()
                .map(|bytes| format!("{bytes:x}\r\n{}\r\n", "x".repeat(*bytes)))
                .collect();
            let headers = "Transfer-Encoding: chunked\r\nConnection: close\r\n";
            format!("POST /body HTTP/1.1\r\nHost: test\r\n{headers}\r\n{chunks}0\r\n\r\n")
        };
        for (request, expected) in [
            (sized(0), "/body 0 bytes"),
            (sized(BODY_BYTES_MAX), "/body 1024 bytes"),
            (sized(BODY_BYTES_MAX + 1), "too large"),
            // Sent whole before the answer is read: the answer must get through.
            (sized(DISCARD_BYTES_MAX), "too large"),
            (chunked(&[1, 2, 1_021]), "/body 1024 bytes"),
            (chunked(&[1, 2, 1_022]), "too large"),
            (chunked(&[1_025, 1]), "too large"),
        ] {
            let said = server.exchange(&request);
            assert!(said.ends_with(expected), "{expected}: {said}");
        }
    }

    #[test]
    fn a_body_somewhat_over_its_limit_does_not_cost_the_connection() {
        let server = Server::start(LIMITS);
        let body = "x".repeat(DISCARD_BYTES_MAX);
        let length = format!("Content-Length: {DISCARD_BYTES_MAX}\r\n");
        let large = format!("POST /body HTTP/1.1\r\nHost: test\r\n{length}\r\n{body}");
        let said = server.exchange(&(large + get("/next", "Connection: close\r\n").as_str()));
        assert!(said.contains("too large") && said.ends_with("/next 0 bytes"), "{said}");
    }

    #[test]
    fn a_body_far_over_its_limit_is_refused_unread() {
        let server = Server::start(LIMITS);
        let headers = "Content-Length: 1000000000\r\nExpect: 100-continue\r\n";
        let said = server.exchange(&format!("POST /body HTTP/1.1\r\nHost: test\r\n{headers}\r\n"));
        assert!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("too large"), "{said}");
    }

    #[test]
    fn a_body_that_stops_coming_is_given_up() {
        let server = Server::start(LIMITS);
        let begun = "POST /body HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhalf";
        assert!(server.exchange(begun).ends_with("timeout"));
        let broken =
            "POST /body HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n";
        assert!(server.exchange(broken).ends_with("aborted"));
        // Half a body and half a connection: no client is left to answer.
        let mut stream = server.connect();
        stream.write_all(begun.as_bytes()).expect("sent");
        stream.shutdown(Shutdown::Write).expect("half closed");
        read_all(&mut stream);
        assert!(server.is_alive());
    }

    /// Goal: a wait ends at its own time and not before, after any earlier wait. Method: a long
    /// wait is given up; then come a shorter one, longer ones, and one that is over.
    #[test]
    fn a_timer_that_is_used_again_ends_at_its_new_time() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let spare = Spare::default();
            let after = |ms| Instant::now() + Duration::from_millis(ms);
            tokio::select! {
                biased;
                () = spare.until(after(3_600_000)) => panic!("an hour too soon"),
                () = std::future::ready(()) => {}
            }
            assert!(spare.0.lock().is_some(), "the timer is left");
            for ms in [5, 10, 0, 20] {
                let end = after(ms);
                spare.until(end).await;
                assert!(Instant::now() >= end, "{ms} ms");
            }
        });
    }
}
