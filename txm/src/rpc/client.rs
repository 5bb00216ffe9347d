//! JSON over HTTP/1.1: one address, connections that are kept, and a bound on everything.

use std::error::Error as _;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use url::{Host, Url};

use super::RpcError;

/// The longest body of an answer, bytes. A longer one is dropped while it is read.
pub const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A connection without a call is closed behind this time, before usual servers close it.
const IDLE: Duration = Duration::from_secs(20);
/// The longest words about a failure, bytes.
const WORDS_BYTES_MAX: usize = 200;

/// Why an address is not used. The address itself is not told: it may have a key in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcUrlError {
    /// Not an address.
    #[error("it is not an absolute address with a host")]
    Form,
    /// Neither `http` nor `https`.
    #[error("its scheme is neither http nor https")]
    Scheme,
    /// `http` beyond this machine, where that is not allowed.
    #[error("plain http is allowed to this machine only")]
    Plain,
    /// A host that is not allowed.
    #[error("its host is not in the list of allowed hosts")]
    Host,
}

/// The client of one address.
pub struct RpcClient {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    uri: Uri,
    authorization: Option<HeaderValue>,
    name: String,
    is_plain: bool,
    is_local: bool,
    host: String,
    timeout: Duration,
    permits: Semaphore,
}

impl RpcClient {
    /// A client. `url` may have a user and a password, which are sent as basic authentication.
    /// `tls`: the roots, and this side's certificate if the other one asks for it; `None`: no
    /// certificate is trusted. `timeout`: of one call, the wait for a free place included.
    /// `calls_max`: the most calls under way.
    ///
    /// # Errors
    /// [`RpcUrlError`].
    pub fn new(
        url: &str,
        tls: Option<ClientConfig>,
        timeout: Duration,
        calls_max: usize,
    ) -> Result<RpcClient, RpcUrlError> {
        let mut url = Url::parse(url).map_err(|_| RpcUrlError::Form)?;
        let is_plain = match url.scheme() {
            "http" => true,
            "https" => false,
            _ => return Err(RpcUrlError::Scheme),
        };
        let is_local = match url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => return Err(RpcUrlError::Form),
        };
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().ok_or(RpcUrlError::Form)?;
        let authorization = basic(&url);
        url.set_username("").map_err(|()| RpcUrlError::Form)?;
        url.set_password(None).map_err(|()| RpcUrlError::Form)?;
        url.set_fragment(None);
        let uri: Uri = url.as_str().parse().map_err(|_| RpcUrlError::Form)?;
        let tls = tls.unwrap_or_else(untrusting);
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Ok(RpcClient {
            client,
            uri,
            authorization,
            name: format!("{host}:{port}"),
            is_plain,
            is_local,
            host,
            timeout,
            permits: Semaphore::new(calls_max.clamp(1, Semaphore::MAX_PERMITS)),
        })
    }

    /// Refuses an address that is not among `hosts`, or that is plain beyond this machine.
    ///
    /// # Errors
    /// [`RpcUrlError::Plain`] and [`RpcUrlError::Host`].
    pub fn restrict(&self, hosts: &[String]) -> Result<(), RpcUrlError> {
        if self.is_plain && !self.is_local {
            return Err(RpcUrlError::Plain);
        }
        let is_allowed = hosts.iter().any(|host| host.eq_ignore_ascii_case(&self.host));
        if is_allowed { Ok(()) } else { Err(RpcUrlError::Host) }
    }

    /// Host and port: logs and metrics may show them.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends JSON and reads JSON.
    ///
    /// # Errors
    /// [`RpcError::Unknown`] alone: the call may have arrived.
    pub async fn post(&self, body: &Value) -> Result<Value, RpcError> {
        let answer = tokio::time::timeout(self.timeout, self.exchange(body.to_string())).await;
        answer.unwrap_or_else(|_| Err(unknown("time-out")))
    }

    async fn exchange(&self, body: String) -> Result<Value, RpcError> {
        let _permit = self.permits.acquire().await.map_err(|_| unknown("closed"))?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.uri.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request = request.body(Full::new(Bytes::from(body))).map_err(|_| unknown("request"))?;
        let answer =
            self.client.request(request).await.map_err(|error| unknown(&causes(&error)))?;
        if answer.status() != StatusCode::OK {
            return Err(unknown(&format!("status {}", answer.status().as_u16())));
        }
        // Encodings are not asked for: a small body that unpacks to gigabytes would be one.
        if answer.headers().get(CONTENT_ENCODING).is_some_and(|coding| coding != "identity") {
            return Err(unknown("a content encoding"));
        }
        let limited = Limited::new(answer.into_body(), BODY_BYTES_MAX);
        let body = limited.collect().await.map_err(|_| unknown("half a body, or a longer one"))?;
        serde_json::from_slice(&body.to_bytes()).map_err(|_| unknown("not JSON"))
    }
}

/// The user and password of an address as basic authentication.
fn basic(url: &Url) -> Option<HeaderValue> {
    let password = url.password().unwrap_or_default();
    if url.username().is_empty() && password.is_empty() {
        return None;
    }
    let mut plain: Vec<u8> = percent_decode_str(url.username()).collect();
    plain.push(b':');
    plain.extend(percent_decode_str(password));
    let mut value = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(plain))).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A configuration that trusts no certificate.
fn untrusting() -> ClientConfig {
    let provider = tokio_rustls::rustls::crypto::ring::default_provider();
    ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("ring has the default protocol versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// An error with its causes. None of them names the path of the address.
fn causes(error: &hyper_util::client::legacy::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

fn unknown(words: &str) -> RpcError {
    RpcError::Unknown(words[..words.floor_char_boundary(WORDS_BYTES_MAX)].to_owned())
}
