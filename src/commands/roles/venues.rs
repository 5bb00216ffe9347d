//! The venues' sockets of the primary.

use std::sync::Arc;

use anyhow::Context;
use parking_lot::Mutex;
use tracing::warn;

use super::process::{self, Process};
use crate::audit::halt::Halt;
use crate::config::Config;
use crate::http::service::Service;
use crate::http::tls::Tls;
use crate::stream::ahead::Ahead;
use crate::stream::socket::{Listener, Socket};
use crate::stream::{self, Options, SessionParts};
use crate::telemetry::chain;

/// Opens the sessions of venues.
pub(super) fn ahead(flag: &Arc<Halt>) -> Arc<Ahead> {
    let (noting, halting, resending) = (Arc::clone(flag), Arc::clone(flag), Arc::clone(flag));
    let runtime = tokio::runtime::Handle::current();
    let spawning = runtime.clone();
    let note = move |venue, told| {
        if !noting.is_cut_open() {
            return true;
        }
        let noted = runtime.block_on(noting.note_venue(venue, told));
        if let Err(error) = &noted {
            warn!(venue, error = chain(error), "the last answer of a venue is not recorded");
        }
        noted.is_ok()
    };
    let halt = move |reason| halting.halt_for_venue(reason, &spawning);
    let resends = move || resending.resends();
    Arc::new(Ahead::new(Box::new(halt), Box::new(note), Box::new(resends)))
}

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

/// Serves venues until the process stops.
pub(super) fn serve(
    process: &mut Process,
    listeners: Vec<Listener>,
    engine: engine::Handle,
    service: &Service,
    ahead: Arc<Ahead>,
) {
    if listeners.is_empty() {
        return;
    }
    let parts = Arc::new(SessionParts {
        engine: Mutex::new(engine),
        verifier: Arc::clone(&service.intake.verifier),
        clock: Arc::clone(&process.clock),
        options: Options::from(&process.config),
        ahead,
        silent: process.silent(),
    });
    let stopping = process.stopping();
    process.tasks.run("the venues' sockets", async move {
        stream::serve(listeners, parts, stopping).await;
        Ok(())
    });
}
