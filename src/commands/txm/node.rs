//! The start and the stop of a node: the chain's identity, the database, the keys, and both
//! listeners.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use anyhow::{Context, anyhow, ensure};
use parking_lot::Mutex;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tracing::{info, warn};
use txm::node::Node;
use txm::rpc::Endpoint as _;
use txm::rpc::http::HttpEndpoint;
use txm::rpc::pool::Pool;
use txm::signer::Signer;

use super::keys::{NodeKeys, seal_memory};
use super::tls;
use crate::commands::roles::process::{Process, Serving, listen};
use crate::commands::roles::signals::notify_manager;
use crate::config::Config;
use crate::config::tls::TlsFiles;
use crate::entropy::SystemEntropy;
use crate::exit::Exit;
use crate::http::auth::Verifier;
use crate::http::rotation::Rotating;
use crate::http::service::{BodyLimits, Intake};
use crate::http::tls::{HTTP_1_1, Tls};
use crate::http::txm::desk::TxDesk;
use crate::http::txm::{self as listener, BODY_BYTES_MAX, TxmService};
use crate::postgres::Address;
use crate::postgres::txm::reads::TxmReads;
use crate::postgres::txm::schema;
use crate::postgres::txm::store::{NodeStart, TxmStore};
use crate::stores::postgres_limits;
use crate::telemetry;

/// The part of a request's time that is left behind its wait, to read and to answer.
const WAIT_GRACE: Duration = Duration::from_secs(2);
/// The time for the rest of the process to end behind the node.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Serves until a signal. `is_limited`: an asset without an outflow limit is not paid.
///
/// # Errors
/// The node cannot start: the chain, the database, a key or an address cannot be used.
pub(in crate::commands) async fn serve(
    mut process: Process,
    is_limited: bool,
) -> anyhow::Result<Exit> {
    let config = process.config.clone();
    telemetry::txm::describe();
    seal_memory()?;
    let keys = NodeKeys::open(&config.txm.signers)?;
    let verifier = Verifier::new(&config.txm.auth.auth());
    let verifier = Arc::new(verifier.context("read the keys of tokens, [txm.auth]")?);
    let tls = certificate(config.txm.tls_files())?;
    let clients = listen(config.txm.listen, "txm.listen").await?;
    let operators = listen(config.txm.ops_listen, "txm.ops_listen").await?;
    let addresses = (clients.local_addr()?, operators.local_addr()?);
    let mut rotating = vec![Arc::clone(&verifier) as Arc<dyn Rotating>];
    rotating.extend(tls.clone().map(|tls| tls as Arc<dyn Rotating>));
    process.keep_keys(rotating);

    let (address, is_tls) = (addresses.0, tls.is_some());
    let opening = Opening { config: &config, keys, address, is_tls, is_limited };
    let opened = tokio::select! {
        opened = opening.open() => opened?,
        name = process.signals.next() => {
            return Err(anyhow!("stopped by {name} before it was ready"));
        }
    };
    let (node, desk, reads) = opened;
    let service = Arc::new(service(&process, verifier, desk, reads));
    let mut stopping = process.stopping();
    process.tasks.run("the node", async move {
        node.run(async move { drop(stopping.changed().await) }).await;
        Ok(())
    });
    let serving = listeners(&mut process, (clients, operators), tls, &service);
    announce(addresses);
    notify_manager(NotifyState::Ready);
    if let Err(ended) = process.ended(std::future::pending()).await {
        process.end_at_once(&ended);
    }
    stop(process, service, serving).await
}

fn certificate(files: Option<TlsFiles>) -> anyhow::Result<Option<Arc<Tls>>> {
    let tls = files.map(|files| Tls::new(files, HTTP_1_1)).transpose();
    tls.context("read a certificate").map(|tls| tls.map(Arc::new))
}

/// A node that is not running yet.
struct Opening<'a> {
    config: &'a Config,
    keys: NodeKeys,
    address: SocketAddr,
    is_tls: bool,
    is_limited: bool,
}

impl Opening<'_> {
    /// Compares chain and database, and makes the node.
    async fn open(
        self,
    ) -> anyhow::Result<(Node<TxmStore, HttpEndpoint, NodeKeys>, Arc<dyn TxDesk>, TxmReads)> {
        let (config, options) = (&self.config.txm, self.config.txm.options());
        let mut endpoints = Vec::new();
        let tls = tls::client(config.chain.ca_file.as_deref(), None)?;
        for url in &config.chain.rpc_urls {
            let endpoint = HttpEndpoint::new(url.expose(), Some(tls.clone()), &options);
            let endpoint = endpoint.context("txm.chain.rpc_urls")?;
            telemetry::txm::expect_endpoint(endpoint.name());
            endpoints.push(endpoint);
        }
        let pool = Pool::new(endpoints, &options);
        let genesis = identity(&pool, options.chain_id).await?;
        let url = self.config.txm_postgres_url()?;
        let address = Address::parse(url.expose()).context("the URL of PostgreSQL")?;
        let limits = postgres_limits(self.config);
        schema::migrate(&address, &limits).await.context("migrate the schema txm")?;
        let policy = config.signers.policy()?;
        let signers = self.keys.addresses();
        let policies = signers.iter().map(|signer| (*signer, policy.clone())).collect();
        let scheme = if self.is_tls { "https" } else { "http" };
        let url = config.url.clone().unwrap_or_else(|| format!("{scheme}://{}", self.address));
        let start = NodeStart {
            node: config.node_id.clone(),
            url,
            signers,
            policies,
            is_limited: self.is_limited,
            queue_max: options.queue_max,
            chain_id: options.chain_id,
            genesis,
            lease_duration: options.lease_duration,
            lease_skew: options.lease_skew,
        };
        let connections = self.config.postgres.connections_max;
        let store = TxmStore::start(&address, &limits, connections, &start).await?;
        let store = store.witnessed(&self.config.data_dir).await?;
        info!(node = start.node, incarnation = store.incarnation(), "begun");
        let reads = TxmReads::start(&address, &limits, connections);
        let (policies, name) = (start.policies, start.node);
        let (node, desk) = Node::start(store, pool, self.keys, options, policies, name);
        Ok((node, Arc::new(desk), reads))
    }
}

/// The hash of block 0 of the configured chain.
async fn identity(pool: &Pool<HttpEndpoint>, chain_id: u64) -> anyhow::Result<B256> {
    let (found, genesis) = pool.identity().await.context("ask txm.chain.rpc_urls for the chain")?;
    ensure!(found == chain_id, "txm.chain.chain_id = {chain_id}: the endpoints say {found}");
    Ok(genesis)
}

fn service(
    process: &Process,
    verifier: Arc<Verifier>,
    desk: Arc<dyn TxDesk>,
    reads: TxmReads,
) -> TxmService {
    let (config, clock) = (&process.config, &process.clock);
    let read_timeout = Duration::from_millis(config.http.body_read_timeout_ms);
    let request_timeout = Duration::from_millis(config.http.request_timeout_ms);
    TxmService {
        intake: Intake {
            verifier,
            clock: Arc::clone(clock),
            entropy: Mutex::new(Box::new(SystemEntropy::default())),
            limits: BodyLimits { bytes_max: BODY_BYTES_MAX, read_timeout },
        },
        desk,
        reads,
        clock: Arc::clone(clock),
        stopping: process.stopping(),
        gas_max: config.txm.gas.max,
        wait_max: request_timeout.saturating_sub(WAIT_GRACE),
    }
}

/// Serves both listeners.
fn listeners(
    process: &mut Process,
    (clients, operators): (TcpListener, TcpListener),
    tls: Option<Arc<Tls>>,
    service: &Arc<TxmService>,
) -> [Serving; 2] {
    let (for_clients, for_operators) = (Arc::clone(service), Arc::clone(service));
    let clients = process.serve("the listener", clients, tls.clone(), move |request| {
        listener::answer(Arc::clone(&for_clients), request)
    });
    let operators = process.serve("the operators' listener", operators, tls, move |request| {
        listener::answer_operator(Arc::clone(&for_operators), request)
    });
    [clients, operators]
}

fn announce((clients, operators): (SocketAddr, SocketAddr)) {
    let mut out = std::io::stdout().lock();
    // If stdout is closed, the node goes on.
    drop(writeln!(out, "ubscore ready txm={clients} ops={operators}"));
    drop(out.flush());
}

/// Stops in order: listeners and owners, then the leases.
async fn stop(
    mut process: Process,
    service: Arc<TxmService>,
    serving: [Serving; 2],
) -> anyhow::Result<Exit> {
    let clock = Arc::clone(&process.clock);
    let limit = Duration::from_millis(process.config.txm.shutdown_timeout_ms);
    process.stop();
    drop(service);
    let tasks = std::mem::take(&mut process.tasks);
    let at_rest = async {
        for listener in serving {
            listener.drained().await?;
        }
        tasks.join().await;
        anyhow::Ok(())
    };
    tokio::select! {
        biased;
        ended = at_rest => ended?,
        () = clock.sleep(limit + STOP_GRACE) => warn!("requests are still under way"),
    }
    info!("stopped; the rows go on with their next owner");
    Ok(process.finish())
}
