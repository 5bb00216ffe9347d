//! The public listener: a user's transfers, recharges, balances and events, the assets, and
//! transactions of services.
//!
//! The table of routes is in `routes`. Each handler has a file of its own and takes the parts of
//! the service that it uses.

mod balances;
pub(super) mod events;
pub(super) mod get;
pub(super) mod list;
pub mod post;
mod recharges;
pub(super) mod routes;
pub(super) mod transactions;

use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use self::routes::{Public, ROUTES, ROUTES_WITHOUT_RECHARGES};
use super::answer::{Answer, json, text};
use super::openapi;
use super::refusal::Outcome;
use super::request::{Call, query};
use super::route::Matched;
use super::service::Service;
use super::wire::{AssetBody, AssetsBody};
use crate::postgres::reads::Reads;

pub use self::get::END_WAIT_GRACE;

/// Answers one request of the public listener.
pub async fn answer(service: Arc<Service>, request: Request<Incoming>) -> Answer {
    let call = service.intake.receive(request);
    let routes = match service.recharges {
        Some(_) => &ROUTES,
        None => &ROUTES_WITHOUT_RECHARGES,
    };
    let handler = |matched: Matched<Public>, call: Call| async move {
        let Service { intake, transfers, streams, .. } = &*service;
        if let Public::OpenApi = matched.route {
            return get_openapi(&call);
        }
        if matched.route.is_of_services() {
            let tx_id = matched.parameters.first().map(String::as_str);
            // On the heap: it is larger than the part of a transfer.
            return Box::pin(transactions::answer(&service, matched.route, tx_id, call)).await;
        }
        let caller = intake.authenticate(&call)?;
        if matched.route.is_of_recharges() {
            let id = matched.parameters.first().map(String::as_str);
            return Box::pin(recharges::answer(&service, caller, matched.route, id, call)).await;
        }
        match matched.route {
            Public::Post => post::post(intake, transfers, caller, call).await,
            // On the heap: they are larger than the part of a transfer.
            Public::List => Box::pin(list::list(transfers, caller, &call)).await,
            Public::Get => {
                Box::pin(get::get(transfers, caller, &call, &matched.parameters[0])).await
            }
            Public::Balances => Box::pin(balances::get(transfers, caller, &call)).await,
            Public::Assets => get_assets(&transfers.reads, &call),
            Public::Events => Box::pin(events::follow(streams, caller, call)).await,
            _ => unreachable!("answered before, without a user"),
        }
    };
    routes.answer(call, handler).await
}

fn get_assets(reads: &Reads, call: &Call) -> Outcome {
    query(call, "")?;
    let catalog = reads.catalog();
    let body = AssetsBody { assets: catalog.all().into_iter().map(AssetBody::from).collect() };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// The document is the same for every caller. It needs no token, so that a client can be generated
/// without one.
fn get_openapi(call: &Call) -> Outcome {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| openapi::document().to_json().expect("strings and numbers").into());
    query(call, "")?;
    Ok(text(StatusCode::OK, "application/json", DOCUMENT.clone(), &call.request_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most bytes of an answer on its way. It is moved several times before it begins, and lies
    /// in memory that was used for something else.
    const BYTES_MAX: usize = 5_120;

    /// A layer that takes a future, instead of calling for it where it awaits it, doubles this.
    #[test]
    fn an_answer_on_its_way_is_small() {
        fn size<F>(_answer: fn(Arc<Service>, Request<Incoming>) -> F) -> usize {
            size_of::<F>()
        }
        let bytes = size(answer);
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }
}
