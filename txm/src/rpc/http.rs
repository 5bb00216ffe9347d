//! An endpoint over HTTP.

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use tokio::time::Instant;
use tokio_rustls::rustls::ClientConfig;

use super::client::{RpcClient, RpcUrlError};
use super::{Endpoint, RpcCall, RpcError, RpcValue, json};
use crate::options::TxmOptions;

/// An endpoint over HTTP.
pub struct HttpEndpoint {
    client: RpcClient,
    /// The id of the next call. Ids are not used twice, so that no late answer fits another call.
    next: AtomicU64,
}

impl HttpEndpoint {
    /// An endpoint. See [`RpcClient::new`].
    ///
    /// # Errors
    /// [`RpcUrlError`].
    pub fn new(
        url: &str,
        tls: Option<ClientConfig>,
        options: &TxmOptions,
    ) -> Result<HttpEndpoint, RpcUrlError> {
        let client = RpcClient::new(url, tls, options.rpc_timeout, options.calls_in_flight_max)?;
        Ok(HttpEndpoint { client, next: AtomicU64::new(1) })
    }

    fn measure(&self, calls: &[RpcCall], begun: Instant) {
        for call in calls {
            let labels =
                [("endpoint", self.client.name().to_owned()), ("method", call.method().to_owned())];
            metrics::counter!("ubscore_rpc_calls_total", &labels).increment(1);
        }
        let endpoint = self.client.name().to_owned();
        metrics::histogram!("ubscore_rpc_seconds", "endpoint" => endpoint)
            .record(begun.elapsed().as_secs_f64());
    }
}

impl Endpoint for HttpEndpoint {
    fn name(&self) -> &str {
        self.client.name()
    }

    async fn calls(&self, calls: &[RpcCall]) -> Vec<Result<RpcValue, RpcError>> {
        let begun = Instant::now();
        let first = self.next.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let requests = calls.iter().zip(first..).map(|(call, id)| call.request(id));
        let body = match calls {
            [] => return Vec::new(),
            // Some endpoints take no lists.
            [call] => call.request(first),
            _ => Value::Array(requests.collect()),
        };
        let answer = self.client.post(&body).await;
        self.measure(calls, begun);
        match answer {
            Ok(body) => json::answers(calls, first, body),
            Err(error) => vec![Err(error); calls.len()],
        }
    }
}

#[cfg(test)]
mod tests;
