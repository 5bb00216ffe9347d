//! The totals of each asset, and whether they add up; beside them the accounts of payment channels.

use std::sync::Arc;

use futures_util::FutureExt;
use hyper::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use tracing::{error, warn};

use crate::audit::totals::{Total, UnderWay};
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal};
use crate::http::request::{Call, query};
use crate::http::service::Service;
use crate::postgres::reads::recharges::ChannelAccounts;
use crate::telemetry::chain;
use domain::amount::signed_text;
use domain::asset::{AssetId, Catalog};

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
        let precision = catalog.precision(total.asset);
        let text = |units: i128| signed_text(units, precision);
        AssetTotals {
            asset: symbol(total.asset, catalog),
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

/// The accounts of one channel and asset. `clearing`, the channel's debt to us, is
/// `paid - returned - taken + given_back - fees - bank`.
#[derive(Serialize)]
struct ChannelTotals {
    channel: String,
    asset: String,
    paid: String,
    returned: String,
    taken: String,
    given_back: String,
    fees: String,
    bank: String,
    clearing: String,
    suspense: String,
    receivable: String,
    loss: String,
}

impl ChannelTotals {
    fn new(sums: &ChannelAccounts, catalog: &Catalog) -> ChannelTotals {
        let precision = catalog.precision(sums.asset);
        let text = |units: i128| signed_text(units, precision);
        ChannelTotals {
            channel: sums.channel.clone(),
            asset: symbol(sums.asset, catalog),
            paid: text(sums.paid),
            returned: text(sums.returned),
            taken: text(sums.taken),
            given_back: text(sums.given_back),
            fees: text(sums.fees),
            bank: text(sums.bank),
            clearing: text(sums.clearing),
            suspense: text(sums.suspense),
            receivable: text(sums.receivable),
            loss: text(sums.loss),
        }
    }
}

/// The symbol. An asset whose row was deleted by hand is named by its number.
fn symbol(asset: AssetId, catalog: &Catalog) -> String {
    let known = catalog.by_id(asset).map(|asset| asset.symbol.clone());
    known.unwrap_or_else(|| format!("#{}", asset.0))
}

#[derive(Serialize)]
struct Body {
    at: Timestamp,
    sequence: u64,
    assets: Vec<AssetTotals>,
    /// Empty while recharges are off; null: they cannot be added up now.
    channels: Option<Vec<ChannelTotals>>,
}

/// The accounts of the channels.
async fn channels(service: &Service, catalog: &Catalog) -> Option<Vec<ChannelTotals>> {
    let Some(desk) = &service.recharges else { return Some(Vec::new()) };
    let reads = service.transfers.reads.clone();
    let sum = async move { reads.channel_accounts().await };
    match desk.sums.read(&service.intake.clock, sum).await {
        Ok(all) => Some(all.iter().map(|sums| ChannelTotals::new(sums, catalog)).collect()),
        Err(error) => {
            warn!(%error, "the accounts of channels cannot be added up");
            None
        }
    }
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
    let channels = channels(&service, &catalog).await;
    let body = Body { at, sequence: totals.sequence, assets, channels };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
