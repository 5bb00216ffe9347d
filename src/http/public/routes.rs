//! The table of the public routes. [`super::super::openapi`] describes each row.

use std::sync::LazyLock;

use hyper::Method;

use crate::http::route::{Route, Routes};

/// The transactions of a service.
const TRANSACTIONS: &str = "/api/v1/transactions";

/// The public routes.
#[derive(Clone, Copy)]
pub(in crate::http) enum Public {
    Post,
    List,
    Get,
    Balances,
    Assets,
    Events,
    OpenApi,
    PostTransaction,
    ListTransactions,
    GetTransaction,
    Prepare,
    Commit,
    Abort,
}

impl Public {
    /// Whether services call it, and no user does.
    pub(super) fn is_of_services(self) -> bool {
        match self {
            Public::PostTransaction
            | Public::ListTransactions
            | Public::GetTransaction
            | Public::Prepare
            | Public::Commit
            | Public::Abort => true,
            Public::Post
            | Public::List
            | Public::Get
            | Public::Balances
            | Public::Assets
            | Public::Events
            | Public::OpenApi => false,
        }
    }
}

/// The table, by path and method.
pub(in crate::http) static ROUTES: LazyLock<Routes<Public>> = LazyLock::new(|| {
    static TABLE: &[Route<Public>] = &[
        Route { pattern: "/api/v1/internal_transfer", method: Method::POST, route: Public::Post },
        Route { pattern: "/api/v1/internal_transfers", method: Method::GET, route: Public::List },
        Route {
            pattern: "/api/v1/internal_transfer/{req_id}",
            method: Method::GET,
            route: Public::Get,
        },
        Route { pattern: "/api/v1/balances", method: Method::GET, route: Public::Balances },
        Route { pattern: "/api/v1/assets", method: Method::GET, route: Public::Assets },
        Route { pattern: "/api/v1/events", method: Method::GET, route: Public::Events },
        Route { pattern: TRANSACTIONS, method: Method::POST, route: Public::PostTransaction },
        Route { pattern: TRANSACTIONS, method: Method::GET, route: Public::ListTransactions },
        Route {
            pattern: "/api/v1/transactions/{tx_id}",
            method: Method::GET,
            route: Public::GetTransaction,
        },
        Route {
            pattern: "/api/v1/transactions/{tx_id}/prepare",
            method: Method::POST,
            route: Public::Prepare,
        },
        Route {
            pattern: "/api/v1/transactions/{tx_id}/commit",
            method: Method::POST,
            route: Public::Commit,
        },
        Route {
            pattern: "/api/v1/transactions/{tx_id}/abort",
            method: Method::POST,
            route: Public::Abort,
        },
        Route { pattern: "/openapi.json", method: Method::GET, route: Public::OpenApi },
    ];
    Routes::new(TABLE)
});
