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
    PostRecharge,
    GetRecharge,
    RechargeHistory,
    CancelRecharge,
    ListRecharges,
    RechargeTotals,
    Channels,
}

impl Public {
    /// Whether services call it, and no user does.
    pub(super) fn is_of_services(self) -> bool {
        matches!(
            self,
            Public::PostTransaction
                | Public::ListTransactions
                | Public::GetTransaction
                | Public::Prepare
                | Public::Commit
                | Public::Abort
        )
    }

    /// Whether it is there only where recharges are on.
    pub(super) fn is_of_recharges(self) -> bool {
        match self {
            Public::PostRecharge
            | Public::GetRecharge
            | Public::RechargeHistory
            | Public::CancelRecharge
            | Public::ListRecharges
            | Public::RechargeTotals
            | Public::Channels => true,
            Public::Post
            | Public::List
            | Public::Get
            | Public::Balances
            | Public::Assets
            | Public::Events
            | Public::OpenApi
            | Public::PostTransaction
            | Public::ListTransactions
            | Public::GetTransaction
            | Public::Prepare
            | Public::Commit
            | Public::Abort => false,
        }
    }
}

/// The table, by path and method.
pub(in crate::http) static ROUTES: LazyLock<Routes<Public>> = LazyLock::new(|| Routes::new(TABLE));

/// The table where recharges are off: their paths are unknown.
pub(in crate::http) static ROUTES_WITHOUT_RECHARGES: LazyLock<Routes<Public>> =
    LazyLock::new(|| {
        let (others, _) = TABLE.split_at(TABLE.len() - RECHARGE_ROUTES);
        assert!(others.iter().all(|row| !row.route.is_of_recharges()), "they stand at the end");
        Routes::new(others)
    });

/// The routes of recharges: the last ones of the table.
const RECHARGE_ROUTES: usize = 7;

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
    Route { pattern: "/api/v1/recharge", method: Method::POST, route: Public::PostRecharge },
    Route { pattern: "/api/v1/recharge/{id}", method: Method::GET, route: Public::GetRecharge },
    Route {
        pattern: "/api/v1/recharge/{id}/history",
        method: Method::GET,
        route: Public::RechargeHistory,
    },
    Route {
        pattern: "/api/v1/recharge/{id}/cancel",
        method: Method::POST,
        route: Public::CancelRecharge,
    },
    Route { pattern: "/api/v1/recharges", method: Method::GET, route: Public::ListRecharges },
    Route {
        pattern: "/api/v1/recharges/totals",
        method: Method::GET,
        route: Public::RechargeTotals,
    },
    Route { pattern: "/api/v1/channels", method: Method::GET, route: Public::Channels },
];
