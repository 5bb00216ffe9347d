//! Whether the process lives, whether it takes new transfers, and its metrics.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use tracing::debug;

use super::console;
use crate::adapters::spot::{Spot, Unanswered};
use crate::http::answer::{Answer, text};
use crate::http::readiness::Readiness;
use crate::http::refusal::Refusal;
use crate::http::request::Call;
use crate::http::request_id::{X_REQUEST_ID, request_id};
use crate::http::service::{Operations, Service, Transfers};
use crate::postgres::reads::PoolUse;
use crate::telemetry;
use domain::amount::units_text;
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::State;

/// The longest wait for UBSCore's sums: a scrape must also come through while its disk hangs.
const VENUES_MAX: Duration = Duration::from_millis(500);

const PLAIN: &str = "text/plain; charset=utf-8";
/// Prometheus' text format; every newer version accepts it.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers a request of the operators' listener before there is a service: the process lives, and
/// is not ready. The console shows that.
pub fn starting(request: &Request<Incoming>) -> Answer {
    let given = request_id(request.headers().get(X_REQUEST_ID));
    let request_id = given.unwrap_or("starting");
    match (request.method(), request.uri().path()) {
        (&Method::GET, path) if let Some(file) = console::file(path, request_id) => file,
        _ => alone(request, request_id, &Readiness::starting()),
    }
}

/// Answers a request of a role without a service: health, readiness and metrics.
pub fn health(request: &Request<Incoming>, readiness: &Readiness) -> Answer {
    let given = request_id(request.headers().get(X_REQUEST_ID));
    alone(request, given.unwrap_or("health"), readiness)
}

fn alone(request: &Request<Incoming>, request_id: &str, readiness: &Readiness) -> Answer {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, PLAIN, "ok\n".into(), request_id),
        (&Method::GET, "/metrics") => {
            let metrics = telemetry::Metrics::install().render();
            text(StatusCode::OK, EXPOSITION, metrics.into(), request_id)
        }
        (&Method::GET, "/readyz") => readiness.answer(request_id),
        _ => match readiness.problem().and_then(|part| part.why.clone()) {
            Some(why) => Refusal::because(Code::SystemError, why).answer(request_id),
            None => Refusal::from(Code::NotFound).answer(request_id),
        },
    }
}

/// `GET /healthz`.
pub(super) fn alive(call: &Call) -> Answer {
    text(StatusCode::OK, PLAIN, Bytes::from_static(b"ok\n"), &call.request_id)
}

/// `GET /readyz`.
pub(super) async fn ready(transfers: &Transfers, call: &Call) -> Answer {
    transfers.readiness().await.answer(&call.request_id)
}

/// `GET /metrics`.
pub(super) async fn metrics(service: &Service, call: &Call) -> Answer {
    let Service { transfers, operations, spot, .. } = service;
    // Sets the metric of readiness.
    transfers.readiness().await;
    tokio::select! {
        set = set_venues(transfers, spot) => {
            if let Err(error) = set {
                debug!(%error, "the metrics of venues are old");
            }
        }
        () = transfers.clock.sleep(VENUES_MAX) => debug!("the metrics of venues are old"),
    }
    let metrics = render(transfers, operations).into();
    text(StatusCode::OK, EXPOSITION, metrics, &call.request_id)
}

/// Sets the metrics of venues and of held amounts.
async fn set_venues(transfers: &Transfers, spot: &Spot) -> Result<(), Unanswered> {
    let now_ns = transfers.clock.now_ns();
    for venue in spot.venues().await? {
        let made_ns = venue.oldest.map_or(now_ns, |(_, time_ns)| time_ns);
        let oldest = Duration::from_nanos(now_ns.saturating_sub(made_ns));
        telemetry::venue(venue.id, venue.last, venue.last - venue.acknowledged, oldest);
    }
    let catalog = transfers.reads.catalog();
    let assets = catalog.all();
    let ids: Vec<AssetId> = assets.iter().map(|asset| asset.id).collect();
    for (asset, total) in assets.iter().zip(spot.totals(&ids).await?) {
        telemetry::held(&asset.symbol, &units_text(total.held, asset.precision));
    }
    Ok(())
}

fn render(transfers: &Transfers, operations: &Operations) -> String {
    let engine = operations.engine.lock();
    // A float holds each of these exactly: they are far below 2^53.
    metrics::gauge!(telemetry::RING_DEPTH).set(engine.in_flight() as f64);
    metrics::gauge!(telemetry::OUTCOMES).set(engine.outcomes() as f64);
    metrics::gauge!(telemetry::OUTCOMES_LEFT).set(engine.vacancy().outcomes as f64);
    let (accounts, balances) = (engine.accounts(), engine.balances());
    metrics::gauge!(telemetry::ACCOUNTS).set(accounts as f64);
    metrics::gauge!(telemetry::ACCOUNTS_MAX).set((accounts + engine.accounts_left()) as f64);
    metrics::gauge!(telemetry::BALANCES).set(balances as f64);
    metrics::gauge!(telemetry::BALANCES_MAX).set((balances + engine.balances_left()) as f64);
    metrics::gauge!(telemetry::HOLDS).set(engine.holds() as f64);
    metrics::gauge!(telemetry::HOLDS_MAX).set(engine.holds_max() as f64);
    for (op, successes, refusals) in engine.postings() {
        telemetry::postings(op.name(), successes, refusals);
    }
    while let Some(timed) = engine.timed() {
        telemetry::posting_times(timed.wait, timed.decide);
    }
    metrics::counter!(telemetry::SEGMENTS_REMOVED_TOTAL).absolute(engine.segments_removed());
    metrics::counter!(telemetry::WAL_WRITTEN_BYTES_TOTAL).absolute(engine.log_bytes());
    drop(engine);
    let in_hand = transfers.coordinator.in_hand();
    for state in State::ALL.into_iter().filter(|state| !state.is_terminal()) {
        let count = in_hand.by_state.get(&state).copied().unwrap_or(0);
        telemetry::nonterminal(state.name(), count);
    }
    // Two clocks: if PostgreSQL's is ahead, the age is zero.
    let age = in_hand.oldest.map_or(0, |oldest| {
        i128::from(transfers.clock.now_ns()).saturating_sub(oldest.as_nanosecond())
    });
    telemetry::oldest_transfer(Duration::from_nanos(u64::try_from(age).unwrap_or(0)));
    for asset in transfers.reads.catalog().all() {
        let units = in_hand.in_flight.get(&asset.id).copied().unwrap_or(0);
        telemetry::in_flight(&asset.symbol, &units_text(units, asset.precision));
    }
    let PoolUse { in_use, max, waiting } = transfers.reads.pool_use();
    telemetry::pool(in_use, max, waiting);
    operations.metrics.render()
}
