//! One user's accounts: their statuses and balances.

use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};

use super::audit_note::{actor, check_reason};
use super::rejected::{rejected, unanswered};
use crate::adapters::spot::Spot;
use crate::http::answer::json;
use crate::http::auth::user_id;
use crate::http::balances::balances;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service, Transfers};
use crate::http::wire::BalancesBody;
use domain::account::{AccountStatus, AccountType, UserId};
use domain::asset::Asset;
use domain::code::Code;

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

/// `GET /admin/v1/accounts/{user_id}`: both statuses (null without an account) and the balances. A
/// user without accounts is answered too.
pub(super) async fn show(
    intake: &Intake,
    transfers: &Transfers,
    spot: &Spot,
    user: &str,
    call: &Call,
) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    let user = user_of_path(user)?;
    let catalog = transfers.reads.catalog();
    let assets: Vec<Asset> = catalog.all().into_iter().cloned().collect();
    // Read before the statuses: an account with a balance here has a status then.
    let balances = balances(transfers, user, &assets).await?;
    let funding = transfers.reads.funding_status(user).await.map_err(postgres_away)?;
    let spot = spot.status(user).await.map_err(|_| Refusal::away("UBSCore"))?;
    let account = |account: AccountType, status: Option<AccountStatus>| AccountBody {
        account_type: account.name(),
        status: status.map(AccountStatus::name),
    };
    let accounts = [account(AccountType::Funding, funding), account(AccountType::Spot, spot)];
    let body = Body { user_id: user.number(), accounts, balances };
    Ok(json(StatusCode::OK, &body, &call.request_id))
}

/// The user of a path.
fn user_of_path(text: &str) -> Result<UserId, Refusal> {
    let user = user_id(text).and_then(UserId::new);
    user.ok_or_else(|| Refusal::because(Code::InvalidRequest, "The path names no user."))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StatusDraft {
    status: String,
    reason: String,
    /// Whether a user without accounts gets them.
    #[serde(default)]
    create: bool,
}

/// `PUT /admin/v1/accounts/{user_id}/{account_type}/status`.
pub(super) async fn set_status(
    service: Arc<Service>,
    parameters: Vec<String>,
    call: Call,
) -> Outcome {
    let Service { intake, transfers, spot, .. } = &*service;
    let [user, account] = parameters.as_slice() else { unreachable!("the pattern has two") };
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let user = user_of_path(user)?;
    let account = AccountType::from_name(account).ok_or(Code::InvalidAccountType)?;
    let draft: StatusDraft = intake.json_body(call).await?;
    let status = AccountStatus::from_name(&draft.status)
        .ok_or_else(|| invalid("status must be ACTIVE, FROZEN or DISABLED."))?;
    check_reason(&draft.reason)?;
    if !draft.create && matches!(account, AccountType::Funding | AccountType::Spot) {
        refuse_unknown(transfers, spot, user).await?;
    }
    match account {
        AccountType::Funding => {
            let (actor, reason) = (actor(caller), draft.reason);
            let set = transfers.coordinator.set_funding_status(user, status, actor, reason);
            set.await.map_err(rejected)?;
        }
        AccountType::Spot => {
            let subject = format!("{user} SPOT");
            let (actor, reason) = (actor(caller), draft.reason);
            // The intent first: no change of UBSCore may be without its author.
            let audit =
                transfers.admin.audit(&actor, "account status", &subject, status.name(), &reason);
            audit.await.map_err(postgres_away)?;
            spot.set_status(user, status).await.map_err(unanswered)?;
        }
        AccountType::Future | AccountType::Margin => {
            return Err(Code::UnsupportedAccountType.into());
        }
    }
    #[derive(Serialize)]
    struct Body {
        user_id: u64,
        account_type: &'static str,
        status: &'static str,
    }
    let body = Body { user_id: user.number(), account_type: account.name(), status: status.name() };
    Ok(json(StatusCode::OK, &body, &request_id))
}

/// Refuses a user without an account in either store. More often the number is mistyped than the
/// status is meant to be set before the first deposit.
async fn refuse_unknown(transfers: &Transfers, spot: &Spot, user: UserId) -> Result<(), Refusal> {
    if spot.status(user).await.map_err(unanswered)?.is_some()
        || transfers.reads.funding_status(user).await.map_err(postgres_away)?.is_some()
    {
        return Ok(());
    }
    let message = format!(
        "User {user} has no account. To create the accounts with this status, add \"create\": true \
         (--create)."
    );
    Err(Refusal::because(Code::NotFound, message))
}
