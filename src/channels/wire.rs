//! HTTP below the channels: one host, no redirects, bounded answers. A simulation stands here in
//! place of the network.

use std::io::{self, Read};
use std::net::IpAddr;
use std::time::Duration;

use hyper::{HeaderMap, Method, Uri};

use crate::endpoint;
use crate::recharge::answers::ChannelDoubt;

/// The longest answer to a call, bytes. A bill is longer, and is read as a stream.
pub const WIRE_BYTES_MAX: u64 = 1 << 20;

/// The longest bill, bytes: 10 million lines.
pub const WIRE_BILL_BYTES_MAX: u64 = 4 << 30;

/// The longest time of a bill, with that of writing its lines down. A silence ends it far earlier.
pub const BILL_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// One request to the host of a channel.
#[derive(Clone, Debug)]
pub struct WireCall {
    /// GET or POST.
    pub method: Method,
    /// Path and query, beginning with `/`.
    pub target: String,
    /// The headers beside those of the connection.
    pub headers: Vec<(&'static str, String)>,
    /// The body; empty for GET.
    pub body: Vec<u8>,
    /// Whether the answer is a bill, which takes longer.
    pub is_bill: bool,
}

/// The answer to a call: status, headers and the body as a stream.
pub struct WireStream {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub head: HeaderMap,
    /// The body, of at most [`WIRE_BILL_BYTES_MAX`].
    pub body: Box<dyn Read + Send>,
}

/// The answer to a call, read to its end.
#[derive(Clone, Debug)]
pub struct WireAnswer {
    /// The HTTP status.
    pub status: u16,
    /// The headers.
    pub head: HeaderMap,
    /// The body, to the byte.
    pub body: Vec<u8>,
}

/// No whole answer came. The request may have arrived.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// Nothing came, or not in time.
    #[error("{0}")]
    Unanswered(String),
    /// The answer ended early.
    #[error("its answer was cut off")]
    Cut(#[source] io::Error),
    /// The answer is longer than [`WIRE_BYTES_MAX`].
    #[error("its answer is too long")]
    TooLong,
}

impl From<WireError> for ChannelDoubt {
    fn from(error: WireError) -> ChannelDoubt {
        ChannelDoubt::Unanswered(error.to_string())
    }
}

/// The network of one channel.
pub trait Wire: Send + Sync {
    /// Sends one request and returns its answer, with a body that is not read yet.
    ///
    /// # Errors
    /// [`WireError`]: nothing is known.
    fn open(&self, call: &WireCall) -> Result<WireStream, WireError>;

    /// The path and query of a URL on the channel's own host; `None`: it is on another one.
    fn own_target(&self, url: &str) -> Option<String>;
}

/// Sends one request and reads its answer of at most [`WIRE_BYTES_MAX`].
///
/// # Errors
/// [`WireError`]: nothing is known.
pub fn fetch(wire: &dyn Wire, call: &WireCall) -> Result<WireAnswer, WireError> {
    let WireStream { status, head, body } = wire.open(call)?;
    let mut bytes = Vec::new();
    body.take(WIRE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(WireError::Cut)?;
    if bytes.len() as u64 > WIRE_BYTES_MAX {
        return Err(WireError::TooLong);
    }
    Ok(WireAnswer { status, head, body: bytes })
}

impl WireCall {
    /// A GET.
    pub fn get(target: String) -> WireCall {
        let (headers, body) = (Vec::new(), Vec::new());
        WireCall { method: Method::GET, target, headers, body, is_bill: false }
    }

    /// A POST.
    pub fn post(target: String, content_type: &str, body: Vec<u8>) -> WireCall {
        let headers = vec![("content-type", content_type.to_owned())];
        WireCall { method: Method::POST, target, headers, body, is_bill: false }
    }

    /// The same with one more header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> WireCall {
        self.headers.push((name, value.into()));
        self
    }
}

/// The address of a channel cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BaseUrlError {
    /// No `scheme://host[:port]`.
    #[error("must be https://host, without a path, a query or a user")]
    Form,
    /// Plain HTTP to another machine.
    #[error("must be https, unless the host is this machine")]
    Plain,
}

/// HTTP/1.1 to one host.
pub struct HttpWire {
    /// `scheme://host[:port]`.
    base: String,
    calls: ureq::Agent,
    bills: ureq::Agent,
}

impl HttpWire {
    /// The host of `base_url`. A call ends within `call_timeout`. A bill that is silent for
    /// `bill_silence` ends, and each within [`BILL_TIMEOUT`].
    ///
    /// # Errors
    /// [`BaseUrlError`].
    pub fn new(
        base_url: &str,
        call_timeout: Duration,
        bill_silence: Duration,
    ) -> Result<HttpWire, BaseUrlError> {
        let url: Uri = base_url.parse().map_err(|_| BaseUrlError::Form)?;
        let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(BaseUrlError::Form);
        };
        let bare = url.query().is_none() && ["", "/"].contains(&url.path());
        if !bare || authority.as_str().contains('@') {
            return Err(BaseUrlError::Form);
        }
        let host = authority.host().trim_matches(['[', ']']);
        let here = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
        match scheme {
            "https" => {}
            "http" if here => {}
            "http" => return Err(BaseUrlError::Plain),
            _ => return Err(BaseUrlError::Form),
        }
        Ok(HttpWire {
            base: format!("{scheme}://{authority}"),
            calls: endpoint::agent(call_timeout),
            bills: endpoint::patient_agent(bill_silence, BILL_TIMEOUT),
        })
    }
}

impl Wire for HttpWire {
    fn open(&self, call: &WireCall) -> Result<WireStream, WireError> {
        assert!(call.target.starts_with('/'), "a target is a path of the channel's own host");
        let url = format!("{}{}", self.base, call.target);
        let mut request = hyper::Request::builder().method(call.method.clone()).uri(url);
        for (name, value) in &call.headers {
            request = request.header(*name, value);
        }
        let unsent = |error: &ureq::http::Error| WireError::Unanswered(error.to_string());
        let agent = if call.is_bill { &self.bills } else { &self.calls };
        let sent = if call.method == Method::GET {
            agent.run(request.body(()).map_err(|error| unsent(&error))?)
        } else {
            agent.run(request.body(call.body.as_slice()).map_err(|error| unsent(&error))?)
        };
        let answer = sent.map_err(|error| WireError::Unanswered(endpoint::reason(&error)))?;
        let (head, body) = answer.into_parts();
        Ok(WireStream {
            status: head.status.as_u16(),
            head: head.headers,
            body: Box::new(body.into_reader().take(WIRE_BILL_BYTES_MAX)),
        })
    }

    fn own_target(&self, url: &str) -> Option<String> {
        let rest = url.strip_prefix(self.base.as_str())?;
        let plain = rest.bytes().all(|byte| byte.is_ascii_graphic());
        (rest.starts_with('/') && plain).then(|| rest.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn wire(base: &str) -> Result<HttpWire, BaseUrlError> {
        HttpWire::new(base, Duration::from_secs(1), Duration::from_secs(1))
    }

    #[test]
    fn plain_http_stays_on_this_machine() {
        for good in ["https://api.mch.weixin.qq.com", "http://127.0.0.1:1", "http://[::1]:1/"] {
            assert!(wire(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "api.stripe.com",
            "http://api.stripe.com",
            "http://128.0.0.1:1",
            "https://u:p@h",
            "https://h/path",
            "https://h?q",
            "ftp://127.0.0.1",
        ] {
            assert!(wire(bad).is_err(), "{bad}");
        }
    }

    /// Goal: a bill may take longer than the longest silence, as long as PostgreSQL alone is slow;
    /// a channel that falls silent ends it. Method: all of an answer but its end is there at once.
    #[test]
    fn a_bill_ends_by_silence_and_not_by_the_time_of_its_reader() {
        const SILENCE: Duration = Duration::from_secs(2);
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let base = format!("http://{}", listener.local_addr().expect("bound"));
        let (let_go, held) = mpsc::channel::<()>();
        let channel = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a call");
            let mut asked = [0; 4096];
            assert!(stream.read(&mut asked).expect("a request") > 0);
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 65536\r\n\r\n";
            stream.write_all(head.as_bytes()).expect("sent");
            stream.write_all(&[b'x'; 65_535]).expect("sent");
            held.recv().expect("the test lets go");
        });
        let wire = HttpWire::new(&base, SILENCE, SILENCE).expect("a base");
        let call = WireCall { is_bill: true, ..WireCall::get("/bill".to_owned()) };
        let mut bill = wire.open(&call).expect("an answer").body;
        let mut first = [0];
        bill.read_exact(&mut first).expect("the first byte");
        // Lines are written down meanwhile.
        thread::sleep(SILENCE + Duration::from_millis(200));
        let mut rest = vec![0; 65_534];
        bill.read_exact(&mut rest).expect("the others");
        let ended = bill.read_exact(&mut first).expect_err("the channel is silent");
        assert!(ended.to_string().contains("timeout"), "{ended}");
        let_go.send(()).expect("the channel waits");
        channel.join().expect("no panic");
    }

    /// An answer names the address of a bill. It may not lead to another host.
    #[test]
    fn a_url_of_another_host_has_no_target() {
        let wire = wire("https://h:1").expect("a base");
        assert_eq!(wire.own_target("https://h:1/a?b=c"), Some("/a?b=c".to_owned()));
        for other in ["https://h:12/a", "https://h:1", "http://h:1/a", "https://h:1@x/a", "/a"] {
            assert_eq!(wire.own_target(other), None, "{other}");
        }
    }
}
