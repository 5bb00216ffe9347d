//! The routes of both listeners of a node.

use std::sync::LazyLock;

use hyper::Method;

use crate::http::route::{Route, Routes};

/// A route for clients.
#[derive(Clone, Copy, Debug)]
pub(super) enum ForClients {
    Create,
    List,
    Get,
    ByRequest,
    Query,
    Cancel,
    CancelByRequest,
    Events,
    Signers,
    Suspend,
    Resume,
    OpenApi,
}

/// A command of an operator about one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wished {
    Resubmit,
    Cancel,
    Fill,
}

/// A route for operators.
#[derive(Clone, Copy, Debug)]
pub(super) enum ForOperators {
    Signers,
    AddSigner,
    Suspend,
    Resume,
    Release,
    Adopt,
    Fill,
    Audit,
    List,
    Get,
    Command(Wished),
    Resolve,
}

const fn row<R>(method: Method, pattern: &'static str, route: R) -> Route<R> {
    Route { pattern, method, route }
}

/// The routes for clients. Rows of one pattern stand together.
#[rustfmt::skip]
const FOR_CLIENTS: &[Route<ForClients>] = &[
    row(Method::POST, "/api/v1/tx", ForClients::Create),
    row(Method::GET, "/api/v1/tx", ForClients::List),
    row(Method::GET, "/api/v1/tx/{tx_id}", ForClients::Get),
    row(Method::POST, "/api/v1/tx/{tx_id}/cancel", ForClients::Cancel),
    row(Method::GET, "/api/v1/tx/by-request", ForClients::ByRequest),
    row(Method::POST, "/api/v1/tx/query", ForClients::Query),
    row(Method::POST, "/api/v1/tx/cancel", ForClients::CancelByRequest),
    row(Method::GET, "/api/v1/tx/events", ForClients::Events),
    row(Method::GET, "/api/v1/signers", ForClients::Signers),
    row(Method::POST, "/api/v1/signers/{signer}/suspend", ForClients::Suspend),
    row(Method::POST, "/api/v1/signers/{signer}/resume", ForClients::Resume),
    row(Method::GET, "/openapi.json", ForClients::OpenApi),
];

/// The routes for operators, beside `/healthz`, `/readyz` and `/metrics`.
#[rustfmt::skip]
const FOR_OPERATORS: &[Route<ForOperators>] = &[
    row(Method::GET, "/admin/v1/signers", ForOperators::Signers),
    row(Method::POST, "/admin/v1/signers", ForOperators::AddSigner),
    row(Method::POST, "/admin/v1/signers/{signer}/suspend", ForOperators::Suspend),
    row(Method::POST, "/admin/v1/signers/{signer}/resume", ForOperators::Resume),
    row(Method::POST, "/admin/v1/signers/{signer}/release", ForOperators::Release),
    row(Method::POST, "/admin/v1/signers/{signer}/adopt", ForOperators::Adopt),
    row(Method::POST, "/admin/v1/signers/{signer}/fill", ForOperators::Fill),
    row(Method::GET, "/admin/v1/signers/{signer}/audit", ForOperators::Audit),
    row(Method::GET, "/admin/v1/tx", ForOperators::List),
    row(Method::GET, "/admin/v1/tx/{tx_id}", ForOperators::Get),
    row(Method::POST, "/admin/v1/tx/{tx_id}/resubmit", ForOperators::Command(Wished::Resubmit)),
    row(Method::POST, "/admin/v1/tx/{tx_id}/cancel", ForOperators::Command(Wished::Cancel)),
    row(Method::POST, "/admin/v1/tx/{tx_id}/fill", ForOperators::Command(Wished::Fill)),
    row(Method::POST, "/admin/v1/tx/{tx_id}/resolve", ForOperators::Resolve),
];

/// The table for clients.
pub(super) static CLIENT_ROUTES: LazyLock<Routes<ForClients>> =
    LazyLock::new(|| Routes::new(FOR_CLIENTS));
/// The table for operators.
pub(super) static OPERATOR_ROUTES: LazyLock<Routes<ForOperators>> =
    LazyLock::new(|| Routes::new(FOR_OPERATORS));

/// Every method and pattern of the clients' listener.
pub fn client_patterns() -> impl Iterator<Item = (&'static str, &'static str)> {
    FOR_CLIENTS.iter().map(|row| (row.method.as_str(), row.pattern))
}

/// Every method and pattern of the operators' listener that takes a token.
pub fn operator_patterns() -> impl Iterator<Item = (&'static str, &'static str)> {
    FOR_OPERATORS.iter().map(|row| (row.method.as_str(), row.pattern))
}
