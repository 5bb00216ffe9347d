//! One user's accounts, as operators see them.

use hyper::StatusCode;
use serde::Serialize;

use super::user_of_path;
use crate::http::api::{away, balances};
use crate::http::service::{Call, Outcome, Service, query};
use crate::http::wire::{BalancesBody, Refusal, json};
use domain::account::{AccountStatus, AccountType};
use domain::asset::Asset;

#[derive(Serialize)]
struct AccountBody {
    account_type: &'static str,
    status: Option<&'static str>,
}

#[derive(Serialize)]
struct Body {
    user_id: u64,
    accounts: [AccountBody; 2],
    #[serde(flatten)]
    balances: BalancesBody,
}

/// `GET /admin/v1/accounts/{user_id}`: both statuses, null where there is no account, and the balances. A user who has never
/// been heard of is answered too.
pub(super) async fn show(service: &Service, user: &str, call: Call) -> Outcome {
    service.intake.authenticate_viewer(&call)?;
    query(&call, "")?;
    let user = user_of_path(user)?;
    let catalog = service.transfers.reads.catalog();
    let assets: Vec<Asset> = catalog.all().into_iter().cloned().collect();
    // Before the statuses: an account that has a balance here has a status too.
    let balances = balances(service, user, &assets).await?;
    let funding = service.transfers.reads.funding_status(user).await.map_err(away)?;
    let spot = service.spot.status(user).await.map_err(|_| Refusal::away("UBSCore"))?;
    let account = |account: AccountType, status: Option<AccountStatus>| AccountBody {
        account_type: account.name(),
        status: status.map(AccountStatus::name),
    };
    let accounts = [account(AccountType::Funding, funding), account(AccountType::Spot, spot)];
    let body = Body { user_id: user.number(), accounts, balances };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}
