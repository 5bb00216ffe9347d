//! What there is of each asset, and whether it adds up.

use futures_util::FutureExt;
use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use tracing::error;

use crate::audit::totals::{Total, UnderWay};
use crate::http::service::{Call, Outcome, Service, query};
use crate::http::wire::{Refusal, json};
use crate::telemetry::chain;
use domain::amount::{PRECISION_MAX, units_text};
use domain::asset::Catalog;

#[derive(Serialize)]
struct AssetTotals {
    asset: String,
    funding: String,
    spot: String,
    in_flight: String,
    deposited: String,
    withdrawn: String,
    difference: String,
}

impl AssetTotals {
    fn new(total: &Total, catalog: &Catalog) -> AssetTotals {
        let symbol = catalog.by_id(total.asset).map(|asset| asset.symbol.clone());
        let text = |units: i128| {
            let sign = if units < 0 { "-" } else { "" };
            format!("{sign}{}", units_text(units.unsigned_abs(), PRECISION_MAX))
        };
        AssetTotals {
            // One that somebody has removed from PostgreSQL by hand is named by its number.
            asset: symbol.unwrap_or_else(|| format!("#{}", total.asset.0)),
            funding: text(total.funding),
            spot: text(total.spot),
            in_flight: text(total.in_flight),
            deposited: text(total.deposited),
            withdrawn: text(total.withdrawn),
            difference: text(total.difference()),
        }
    }
}

#[derive(Serialize)]
struct Body {
    at: Timestamp,
    sequence: u64,
    assets: Vec<AssetTotals>,
}

/// `GET /admin/v1/totals`: as they were at `at`, which is not long ago. Whoever asks at the same time is told the same.
pub(super) async fn show(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    let catalog = service.transfers.reads.catalog();
    let under_way = || {
        let looking = async {
            let next = service.transfers.coordinator.order_number_next();
            let numbers = service.transfers.coordinator.under_way().await.ok()?;
            Some(UnderWay { next, numbers })
        };
        looking.boxed()
    };
    let mut stopping = service.transfers.stopping.clone();
    let read = tokio::select! {
        read = service.operations.totals.read(&catalog, under_way) => read,
        // Changed or gone: the server stops.
        _ = stopping.changed() => return Err(Refusal::away("The service")),
    };
    let totals = read.map_err(|failure| {
        error!(error = chain(&*failure), "the totals cannot be read");
        Refusal::away("A part of the service")
    })?;
    let at = Timestamp::from_nanosecond(totals.at_ns.into()).expect("before the year 2262");
    let assets = totals.assets.iter().map(|total| AssetTotals::new(total, &catalog)).collect();
    let body = Body { at, sequence: totals.sequence, assets };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
