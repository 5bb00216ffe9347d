//! Assets: the list in force, a changed one, and a new one without a restart.

use std::pin::Pin;
use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::audit_note::{actor, check_reason};
use crate::adapters::spot::Unanswered;
use crate::http::answer::json;
use crate::http::refusal::{Outcome, Refusal, invalid, postgres_away};
use crate::http::request::{Call, query};
use crate::http::service::{Intake, Service};
use crate::http::wire::AssetBody;
use crate::postgres;
use crate::postgres::admin::assets::{AssetChange, Learned, NewAsset, NotAdded};
use crate::postgres::reads::Reads;
use crate::telemetry::chain;
use crate::validation;
use domain::amount::PRECISION_MAX;
use domain::asset::{Asset, AssetId, AssetStatus, is_symbol};
use domain::code::Code;

const MIN_ABOVE_MAX: &str = "min must not be above max.";

/// An asset as operators read it.
#[derive(Serialize)]
struct Numbered {
    id: u32,
    #[serde(flatten)]
    asset: AssetBody,
}

impl From<&Asset> for Numbered {
    fn from(asset: &Asset) -> Numbered {
        Numbered { id: asset.id.0, asset: AssetBody::from(asset) }
    }
}

/// `GET /admin/v1/assets`: the assets in force, and the rows that are not readable in full.
pub(super) fn list(intake: &Intake, reads: &Reads, call: &Call) -> Outcome {
    intake.authenticate_viewer(call)?;
    query(call, "")?;
    #[derive(Serialize)]
    struct Body {
        assets: Vec<Numbered>,
        unreadable: Vec<String>,
    }
    let assets = reads.catalog().all().into_iter().map(Numbered::from).collect();
    let unreadable = reads.unreadable().into_iter();
    let unreadable = unreadable.map(|row| format!("{}: {}", row.asset, row.what)).collect();
    Ok(json(StatusCode::OK, &Body { assets, unreadable }, &call.request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Draft {
    symbol: String,
    #[serde(default)]
    id: Option<u32>,
    precision: u8,
    min: String,
    max: String,
    #[serde(default)]
    transfer_enabled: Option<bool>,
    reason: String,
}

impl Draft {
    /// Checks all that needs no store.
    fn check(&self, units_max: u64) -> Result<NewAsset, Refusal> {
        if !is_symbol(&self.symbol) {
            return Err(invalid("symbol must be 1 to 16 of A-Z a-z 0-9 _ . -"));
        }
        if self.id.is_some_and(|id| id == 0 || i32::try_from(id).is_err()) {
            return Err(invalid(format!("id must be 1 to {}.", i32::MAX)));
        }
        if self.precision > PRECISION_MAX {
            return Err(invalid(format!("precision must be 0 to {PRECISION_MAX}.")));
        }
        let amount = |name: &str, text: &str| {
            validation::amount(text, self.precision, units_max).map_err(|code| {
                let decimals = self.precision;
                let what = format!(
                    "{name} {text} is not an amount of {decimals} decimals: {}",
                    code.message()
                );
                Refusal::because(code, what)
            })
        };
        let (transfer_min, transfer_max) = (amount("min", &self.min)?, amount("max", &self.max)?);
        if transfer_min > transfer_max {
            return Err(invalid(MIN_ABOVE_MAX));
        }
        check_reason(&self.reason)?;
        Ok(NewAsset {
            id: self.id.map(AssetId),
            symbol: self.symbol.clone(),
            precision: self.precision,
            transfer_enabled: self.transfer_enabled.unwrap_or(true),
            transfer_min,
            transfer_max,
        })
    }
}

/// `POST /admin/v1/assets`: adds an asset. UBSCore registers it before a transfer of it is
/// accepted.
pub(super) async fn add(service: Arc<Service>, call: Call) -> Outcome {
    let Service { intake, transfers, spot, .. } = &*service;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: Draft = intake.json_body(call).await?;
    let wanted = draft.check(transfers.limits.units_max)?;
    let learn = |asset: Asset| -> Pin<Box<dyn Future<Output = Learned> + Send>> {
        let spot = Arc::clone(spot);
        Box::pin(async move {
            match spot.register(&asset).await {
                Ok(()) => Learned::Done,
                Err(Unanswered::Violation(_)) => Learned::Contradicted,
                Err(Unanswered::Overloaded | Unanswered::Silent) => Learned::Unanswered,
            }
        })
    };
    let actor = actor(caller);
    let added = transfers.admin.add_asset(&wanted, &learn, &actor, &draft.reason).await;
    let asset = added.map_err(|not_added| {
        error!(symbol = wanted.symbol, why = %not_added, "an asset is not added");
        match not_added {
            NotAdded::Unanswered => Refusal::away("UBSCore"),
            NotAdded::Postgres(failure) => unwritten(failure),
            taken => Refusal::because(Code::InvalidRequest, format!("{taken}.")),
        }
    })?;
    transfers.coordinator.cover().await;
    Ok(json(StatusCode::CREATED, &Numbered::from(&asset), &request_id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Change {
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    transfer_enabled: Option<bool>,
    #[serde(default)]
    min: Option<String>,
    #[serde(default)]
    max: Option<String>,
    reason: String,
}

/// `PUT /admin/v1/assets/{symbol}`: changes status and limits of an asset.
pub(super) async fn change(service: Arc<Service>, parameters: Vec<String>, call: Call) -> Outcome {
    let Service { intake, transfers, .. } = &*service;
    let request_id = call.request_id.clone();
    let caller = intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: Change = intake.json_body(call).await?;
    let catalog = transfers.reads.catalog();
    let asset = catalog.by_symbol(&parameters[0]).ok_or(Code::InvalidAsset)?;
    let status = draft.status.map(|name| {
        AssetStatus::from_name(&name).ok_or_else(|| invalid("status must be ACTIVE or SUSPENDED."))
    });
    let amount = |text: Option<String>| {
        text.map(|text| validation::amount(&text, asset.precision, transfers.limits.units_max))
            .transpose()
    };
    let change = AssetChange {
        status: status.transpose()?,
        transfer_enabled: draft.transfer_enabled,
        transfer_min: amount(draft.min)?,
        transfer_max: amount(draft.max)?,
    };
    let (min, max) = (
        change.transfer_min.unwrap_or(asset.transfer_min),
        change.transfer_max.unwrap_or(asset.transfer_max),
    );
    if min > max {
        return Err(invalid(MIN_ABOVE_MAX));
    }
    check_reason(&draft.reason)?;
    let actor = actor(caller);
    let changed = transfers.admin.change_asset(asset, change, &actor, &draft.reason);
    let asset = changed.await.map_err(unwritten)?;
    transfers.coordinator.cover().await;
    Ok(json(StatusCode::OK, &AssetBody::from(&asset), &request_id))
}

/// The refusal if an asset's row was not written.
fn unwritten(failure: postgres::Error) -> Refusal {
    match failure.broken_check() {
        Some(rule) => Refusal::because(
            Code::InvalidRequest,
            format!(
                "PostgreSQL refuses the row by {rule}. Set both min and max: each has at most as many \
                 decimals as the asset, and min is not above max."
            ),
        ),
        None if matches!(failure, postgres::Error::Row { .. }) => {
            error!(error = chain(&failure), "an asset was not changed");
            Refusal::because(Code::SystemError, format!("{failure}."))
        }
        None => postgres_away(failure),
    }
}
