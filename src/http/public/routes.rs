//! The table of the public routes. [`super::super::openapi`] describes each row.

use std::sync::LazyLock;

use hyper::Method;

use crate::http::route::{Route, Routes};

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
        Route { pattern: "/openapi.json", method: Method::GET, route: Public::OpenApi },
    ];
    Routes::new(TABLE)
});
