//! Assets: the list in force, and a new one, in force without a restart.

use std::pin::Pin;
use std::sync::Arc;

use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::error;

use super::{actor, check_reason, unwritten};
use crate::adapters::spot::Unanswered;
use crate::http::service::{Call, Outcome, Service, query};
use crate::http::wire::{AssetBody, Refusal, json};
use crate::postgres::reads::assets::{Learned, NewAsset, NotAdded};
use domain::amount::{Amount, PRECISION_MAX};
use domain::asset::{Asset, AssetId, SYMBOL_BYTES_MAX};
use domain::code::Code;

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

/// `GET /admin/v1/assets`: the assets in force, and the rows that cannot be read in whole.
pub(super) fn list(service: &Service, call: &Call) -> Outcome {
    service.intake.authenticate_viewer(call)?;
    query(call, "")?;
    #[derive(Serialize)]
    struct Body {
        assets: Vec<Numbered>,
        unreadable: Vec<String>,
    }
    let assets = service.transfers.reads.catalog().all().into_iter().map(Numbered::from).collect();
    let unreadable = service.transfers.reads.unreadable().into_iter();
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
    /// Checks everything that needs no store.
    fn check(&self, units_max: u64) -> Result<NewAsset, Refusal> {
        let invalid = |what: String| Refusal::because(Code::InvalidRequest, what);
        let sane = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        let length = self.symbol.len();
        if !(1..=SYMBOL_BYTES_MAX).contains(&length) || !self.symbol.bytes().all(sane) {
            return Err(invalid("symbol must be 1 to 16 of A-Z a-z 0-9 _ . -".to_owned()));
        }
        if self.id.is_some_and(|id| id == 0 || i32::try_from(id).is_err()) {
            return Err(invalid(format!("id must be 1 to {}.", i32::MAX)));
        }
        if self.precision > PRECISION_MAX {
            return Err(invalid(format!("precision must be 0 to {PRECISION_MAX}.")));
        }
        let amount = |name: &str, text: &str| {
            Amount::parse(text, self.precision, units_max).map_err(|code| {
                let decimals = self.precision;
                let what = format!(
                    "{name} {text} is no amount of {decimals} decimals: {}",
                    code.message()
                );
                Refusal::because(code, what)
            })
        };
        let (transfer_min, transfer_max) = (amount("min", &self.min)?, amount("max", &self.max)?);
        if transfer_min > transfer_max {
            return Err(invalid("min must not be above max.".to_owned()));
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

/// `POST /admin/v1/assets`: adds an asset. UBSCore has learned it before a transfer of it is accepted.
pub(super) async fn add(service: &Service, call: Call) -> Outcome {
    let request_id = call.request_id.clone();
    let caller = service.intake.authenticate_admin(&call)?;
    query(&call, "")?;
    let draft: Draft = service.intake.json_body(call).await?;
    let wanted = draft.check(service.transfers.limits.units_max)?;
    let learn = |asset: Asset| -> Pin<Box<dyn Future<Output = Learned> + Send>> {
        let spot = Arc::clone(&service.spot);
        Box::pin(async move {
            match spot.register(&asset).await {
                Ok(()) => Learned::Done,
                Err(Unanswered::Violation(_)) => Learned::Contradicted,
                Err(Unanswered::Overloaded | Unanswered::Silent) => Learned::Unanswered,
            }
        })
    };
    let actor = actor(caller);
    let added = service.transfers.reads.add_asset(&wanted, &learn, &actor, &draft.reason).await;
    let asset = added.map_err(|not_added| {
        error!(symbol = wanted.symbol, why = %not_added, "an asset is not added");
        match not_added {
            NotAdded::Unanswered => Refusal::away("UBSCore"),
            NotAdded::Postgres(failure) => unwritten(failure),
            taken => Refusal::because(Code::InvalidRequest, format!("{taken}.")),
        }
    })?;
    Ok(json(StatusCode::CREATED, &Numbered::from(&asset), &request_id))
}
