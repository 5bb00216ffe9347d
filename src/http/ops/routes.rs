//! The table of the operators' routes.

use std::sync::LazyLock;

use hyper::Method;

use super::bills::BillsRoute;
use super::console::PATH;
use super::held_payments::PaymentEnd;
use super::promotions::PromotionAct;
use super::receivables::ReceivableWay;
use crate::http::route::{Route, Routes};

/// Grants to commit transactions in SQL.
const GRANTS: &str = "/admin/v1/transactions/grants";

/// The operators' routes.
#[derive(Clone, Copy)]
pub(super) enum Ops {
    Health,
    Ready,
    Metrics,
    Console,
    ConsoleFile,
    Deposit,
    Withdraw,
    Accounts,
    AccountStatus,
    Asset,
    Assets,
    AddAsset,
    Transfers,
    Transfer,
    Retry,
    Resolve,
    Conservation,
    Snapshot,
    Pauses,
    Pause,
    Approvals,
    Approve,
    Reject,
    Halt,
    Resume,
    DeadLetters,
    Resend,
    Session,
    Totals,
    Venues,
    AddVenue,
    CloseVenue,
    OpenVenue,
    Holds,
    Hold,
    ReleaseHold,
    Specials,
    Special,
    Freezes,
    Freeze,
    Unfreeze,
    Transactions,
    Transaction,
    RetryTransaction,
    AbortTransaction,
    ResolveTransaction,
    AbandonBranch,
    Grants,
    Grant,
    Revoke,
    Recharging(RechargeOps),
}

/// Those of recharges.
#[derive(Clone, Copy)]
pub(super) enum RechargeOps {
    List,
    Show,
    Query,
    Close,
    Refund,
    Receivables,
    EndReceivable(ReceivableWay),
    Notices,
    Take,
    End(PaymentEnd),
    Promotion(PromotionAct),
    Channels,
    Statement,
    OfBills(BillsRoute),
    /// Whether it is paused from then on.
    PauseChannel(bool),
}

/// The table, by path and method.
pub(super) static ROUTES: LazyLock<Routes<Ops>> = LazyLock::new(|| {
    static TABLE: &[Route<Ops>] = &[
        Route { pattern: "/healthz", method: Method::GET, route: Ops::Health },
        Route { pattern: "/readyz", method: Method::GET, route: Ops::Ready },
        Route { pattern: "/metrics", method: Method::GET, route: Ops::Metrics },
        Route { pattern: PATH, method: Method::GET, route: Ops::Console },
        Route { pattern: "/console/{file}", method: Method::GET, route: Ops::ConsoleFile },
        Route { pattern: "/admin/v1/deposits", method: Method::POST, route: Ops::Deposit },
        Route { pattern: "/admin/v1/withdrawals", method: Method::POST, route: Ops::Withdraw },
        Route {
            pattern: "/admin/v1/accounts/{user_id}",
            method: Method::GET,
            route: Ops::Accounts,
        },
        Route {
            pattern: "/admin/v1/accounts/{user_id}/{account_type}/status",
            method: Method::PUT,
            route: Ops::AccountStatus,
        },
        Route { pattern: "/admin/v1/assets", method: Method::GET, route: Ops::Assets },
        Route { pattern: "/admin/v1/assets", method: Method::POST, route: Ops::AddAsset },
        Route { pattern: "/admin/v1/assets/{symbol}", method: Method::PUT, route: Ops::Asset },
        Route { pattern: "/admin/v1/transfers", method: Method::GET, route: Ops::Transfers },
        Route {
            pattern: "/admin/v1/transfers/{req_id}",
            method: Method::GET,
            route: Ops::Transfer,
        },
        Route {
            pattern: "/admin/v1/transfers/{req_id}/retry",
            method: Method::POST,
            route: Ops::Retry,
        },
        Route {
            pattern: "/admin/v1/transfers/{req_id}/resolve",
            method: Method::POST,
            route: Ops::Resolve,
        },
        Route { pattern: "/admin/v1/conservation", method: Method::GET, route: Ops::Conservation },
        Route { pattern: "/admin/v1/snapshot", method: Method::POST, route: Ops::Snapshot },
        Route { pattern: "/admin/v1/pauses", method: Method::GET, route: Ops::Pauses },
        Route { pattern: "/admin/v1/pauses", method: Method::PUT, route: Ops::Pause },
        Route { pattern: "/admin/v1/approvals", method: Method::GET, route: Ops::Approvals },
        Route {
            pattern: "/admin/v1/approvals/{approval_id}/approve",
            method: Method::POST,
            route: Ops::Approve,
        },
        Route {
            pattern: "/admin/v1/approvals/{approval_id}/reject",
            method: Method::POST,
            route: Ops::Reject,
        },
        Route { pattern: "/admin/v1/halt", method: Method::POST, route: Ops::Halt },
        Route { pattern: "/admin/v1/resume", method: Method::POST, route: Ops::Resume },
        Route { pattern: "/admin/v1/webhooks/dead", method: Method::GET, route: Ops::DeadLetters },
        Route {
            pattern: "/admin/v1/webhooks/{event_id}/resend",
            method: Method::POST,
            route: Ops::Resend,
        },
        Route { pattern: "/admin/v1/session", method: Method::GET, route: Ops::Session },
        Route { pattern: "/admin/v1/totals", method: Method::GET, route: Ops::Totals },
        Route { pattern: "/admin/v1/venues", method: Method::GET, route: Ops::Venues },
        Route { pattern: "/admin/v1/venues/{venue}", method: Method::PUT, route: Ops::AddVenue },
        Route {
            pattern: "/admin/v1/venues/{venue}/close",
            method: Method::POST,
            route: Ops::CloseVenue,
        },
        Route {
            pattern: "/admin/v1/venues/{venue}/open",
            method: Method::POST,
            route: Ops::OpenVenue,
        },
        Route { pattern: "/admin/v1/holds", method: Method::GET, route: Ops::Holds },
        Route { pattern: "/admin/v1/holds/{hold}", method: Method::GET, route: Ops::Hold },
        Route {
            pattern: "/admin/v1/holds/{hold}/release",
            method: Method::POST,
            route: Ops::ReleaseHold,
        },
        Route { pattern: "/admin/v1/specials", method: Method::GET, route: Ops::Specials },
        Route { pattern: "/admin/v1/specials", method: Method::POST, route: Ops::Special },
        Route { pattern: "/admin/v1/freezes", method: Method::GET, route: Ops::Freezes },
        Route { pattern: "/admin/v1/freezes", method: Method::POST, route: Ops::Freeze },
        Route { pattern: "/admin/v1/unfreezes", method: Method::POST, route: Ops::Unfreeze },
        Route { pattern: "/admin/v1/transactions", method: Method::GET, route: Ops::Transactions },
        Route { pattern: GRANTS, method: Method::GET, route: Ops::Grants },
        Route { pattern: GRANTS, method: Method::POST, route: Ops::Grant },
        Route {
            pattern: "/admin/v1/transactions/grants/revoke",
            method: Method::POST,
            route: Ops::Revoke,
        },
        Route {
            pattern: "/admin/v1/transactions/{transaction_id}",
            method: Method::GET,
            route: Ops::Transaction,
        },
        Route {
            pattern: "/admin/v1/transactions/{transaction_id}/retry",
            method: Method::POST,
            route: Ops::RetryTransaction,
        },
        Route {
            pattern: "/admin/v1/transactions/{transaction_id}/abort",
            method: Method::POST,
            route: Ops::AbortTransaction,
        },
        Route {
            pattern: "/admin/v1/transactions/{transaction_id}/resolve",
            method: Method::POST,
            route: Ops::ResolveTransaction,
        },
        Route {
            pattern: "/admin/v1/transactions/{transaction_id}/abandon",
            method: Method::POST,
            route: Ops::AbandonBranch,
        },
        Route {
            pattern: "/admin/v1/recharges",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::List),
        },
        Route {
            pattern: "/admin/v1/recharges/{recharge_id}",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Show),
        },
        Route {
            pattern: "/admin/v1/recharges/{recharge_id}/query",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::Query),
        },
        Route {
            pattern: "/admin/v1/recharges/{recharge_id}/close",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::Close),
        },
        Route {
            pattern: "/admin/v1/recharges/{recharge_id}/refund",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::Refund),
        },
        Route {
            pattern: "/admin/v1/receivables",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Receivables),
        },
        Route {
            pattern: "/admin/v1/receivables/{return_id}/recover",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::EndReceivable(ReceivableWay::Recover)),
        },
        Route {
            pattern: "/admin/v1/receivables/{return_id}/write-off",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::EndReceivable(ReceivableWay::WriteOff)),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/credit",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::End(PaymentEnd::Credit)),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/return",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::End(PaymentEnd::Return)),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/dismiss",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::End(PaymentEnd::Dismiss)),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/rematch",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::End(PaymentEnd::Rematch)),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/notices",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Notices),
        },
        Route {
            pattern: "/admin/v1/payments/{payment_id}/taken",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::Take),
        },
        Route {
            pattern: "/admin/v1/channels",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Channels),
        },
        Route {
            pattern: "/admin/v1/channels/{channel}/statement",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Statement),
        },
        Route {
            pattern: "/admin/v1/promotions",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Promotion(PromotionAct::List)),
        },
        Route {
            pattern: "/admin/v1/promotions/{promotion}",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::Promotion(PromotionAct::Show)),
        },
        Route {
            pattern: "/admin/v1/promotions/{promotion}",
            method: Method::PUT,
            route: Ops::Recharging(RechargeOps::Promotion(PromotionAct::Set)),
        },
        Route {
            pattern: "/admin/v1/promotions/{promotion}/fund",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::Promotion(PromotionAct::Fund)),
        },
        Route {
            pattern: "/admin/v1/channels/{channel}/pause",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::PauseChannel(true)),
        },
        Route {
            pattern: "/admin/v1/channels/{channel}/unpause",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::PauseChannel(false)),
        },
        Route {
            pattern: "/admin/v1/channels/{channel}/reconcile",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::OfBills(BillsRoute::Reconcile)),
        },
        Route {
            pattern: "/admin/v1/channels/{channel}/settle",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::OfBills(BillsRoute::Settle)),
        },
        Route {
            pattern: "/admin/v1/bills",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::OfBills(BillsRoute::Bills)),
        },
        Route {
            pattern: "/admin/v1/findings",
            method: Method::GET,
            route: Ops::Recharging(RechargeOps::OfBills(BillsRoute::Findings)),
        },
        Route {
            pattern: "/admin/v1/findings/{finding_id}/dismiss",
            method: Method::POST,
            route: Ops::Recharging(RechargeOps::OfBills(BillsRoute::Dismiss)),
        },
    ];
    Routes::new(TABLE)
});

/// Every method and pattern of the operators' listener.
pub fn patterns() -> impl Iterator<Item = (&'static Method, &'static str)> {
    ROUTES.rows().iter().map(|row| (&row.method, row.pattern))
}
