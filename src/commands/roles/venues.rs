//! The venues' sockets of the primary.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;

use super::process::{self, Process};
use crate::config::Config;
use crate::http::service::Service;
use crate::http::tls::Tls;
use crate::stream::socket::{Listener, Socket};
use crate::stream::{self, Options, SessionParts};

/// Binds the sockets that the configuration names.
///
/// # Errors
/// One cannot be bound.
pub(super) async fn listen(
    config: &Config,
    tls: Option<&Arc<Tls>>,
) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    if let Some(path) = &config.stream.socket {
        let socket = Socket::bind(path);
        let socket = socket.with_context(|| format!("stream.socket = {}", path.display()))?;
        listeners.push(Listener::Unix(socket));
    }
    if let Some(address) = config.stream.listen {
        let tls = tls.context("stream.listen needs a certificate")?;
        let listener = process::listen(address, "stream.listen").await?;
        listeners.push(Listener::Tls(listener, Arc::clone(tls)));
    }
    Ok(listeners)
}

/// Serves venues until the process stops. `halt` halts the service for a reason.
pub(super) fn serve(
    process: &mut Process,
    listeners: Vec<Listener>,
    engine: engine::Handle,
    service: &Service,
    halt: Box<dyn Fn(String) + Send + Sync>,
) {
    if listeners.is_empty() {
        return;
    }
    let parts = Arc::new(SessionParts {
        engine: Mutex::new(engine),
        verifier: Arc::clone(&service.intake.verifier),
        clock: Arc::clone(&process.clock),
        options: Options::from(&process.config),
        halt,
        silent: process.silent(),
    });
    let stopping = process.stopping();
    process.tasks.run("the venues' sockets", async move {
        stream::serve(listeners, parts, stopping).await;
        Ok(())
    });
}
