//! The totals of each asset, and whether they add up.

use std::sync::Arc;

use futures_util::FutureExt;
use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use tracing::error;

use crate::audit::totals::{Total, UnderWay};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal};
use crate::http::request::{Call, query};
use crate::http::service::Service;
use crate::telemetry::chain;
use domain::amount::signed_text;
use domain::asset::Catalog;

#[derive(Serialize)]
struct AssetTotals {
    asset: String,
    funding: String,
    spot: String,
    in_flight: String,
    deposited: String,
    withdrawn: String,
    transactions: String,
    difference: String,
}

impl AssetTotals {
    fn new(total: &Total, catalog: &Catalog) -> AssetTotals {
        let symbol = catalog.by_id(total.asset).map(|asset| asset.symbol.clone());
        let precision = catalog.precision(total.asset);
        let text = |units: i128| signed_text(units, precision);
        AssetTotals {
            // An asset whose row was deleted by hand is named by its number, in smallest units.
            asset: symbol.unwrap_or_else(|| format!("#{}", total.asset.0)),
            funding: text(total.funding),
            spot: text(total.spot),
            in_flight: text(total.in_flight),
            deposited: text(total.deposited),
            withdrawn: text(total.withdrawn),
            transactions: text(total.transactions),
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

/// `GET /admin/v1/totals`: the totals at a recent time `at`. Requests at the same time share one
/// answer.
pub(super) async fn show(service: Arc<Service>, call: Call) -> Outcome {
    let Service { intake, transfers, operations, .. } = &*service;
    intake.authenticate_viewer(&call)?;
    query(&call, "")?;
    let catalog = transfers.reads.catalog();
    let under_way = || {
        let looking = async {
            let next = transfers.coordinator.order_number_next();
            let numbers = transfers.coordinator.under_way().await.ok()?;
            Some(UnderWay { next, numbers })
        };
        looking.boxed()
    };
    let mut stopping = transfers.stopping.clone();
    let read = tokio::select! {
        read = operations.totals.read(&catalog, under_way) => read,
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
