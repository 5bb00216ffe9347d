//! `GET /api/v1/balances`.

use hyper::StatusCode;

use crate::http::answer::json;
use crate::http::balances::balances;
use crate::http::refusal::Outcome;
use crate::http::request::{Call, query};
use crate::http::service::{Caller, Transfers};
use domain::asset::Asset;
use domain::code::Code;

/// The caller's balances, of one asset or of all.
pub(super) async fn get(transfers: &Transfers, caller: Caller, call: &Call) -> Outcome {
    let symbol = query(call, "asset")?;
    let catalog = transfers.reads.catalog();
    let assets: Vec<Asset> = match symbol {
        Some(symbol) => vec![catalog.by_symbol(&symbol).ok_or(Code::InvalidAsset)?.clone()],
        None => catalog.all().into_iter().cloned().collect(),
    };
    let body = balances(transfers, caller.user, &assets).await?;
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
