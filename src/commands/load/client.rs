//! One connection to a listener, kept alive.

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A connection that stays open.
pub struct Client {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Client {
    /// Connects to `host`, a name or an address with a port.
    ///
    /// # Errors
    /// The connection is refused or times out.
    pub async fn connect(host: &str) -> anyhow::Result<Client> {
        let stream =
            TcpStream::connect(host).await.with_context(|| format!("connect to {host}"))?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        // The task ends with the sender. An error reaches the sender's next request.
        drop(tokio::spawn(connection));
        Ok(Client { sender, host: host.to_owned() })
    }

    /// Sends a request with a token and a JSON body; returns the answer's status and body.
    ///
    /// # Errors
    /// The connection broke. Whether the request was carried out is unknown.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        token: &str,
        body: String,
    ) -> anyhow::Result<(StatusCode, String)> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, &self.host)
            .header(AUTHORIZATION, format!("Bearer {token}"))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
