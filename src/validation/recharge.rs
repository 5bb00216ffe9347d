//! The checks on a wish to recharge, once, in the order of the codes.
//!
//! A channel and an asset change with time: they are decided once, when the order is made. The rate
//! and the open orders of the user are bounded behind these checks.

use serde::Deserialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use super::{amount, check_active, check_limits};
use crate::recharge::order::{Recharge, RechargeTarget};
use crate::recharge::terms::ChannelTerms;
use domain::account::AccountType;
use domain::amount::Amount;
use domain::asset::Catalog;
use domain::code::Code;

/// A recharge as a client asks for it. An unknown, missing or repeated field and a wrong type are
/// refused.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RechargeRequest {
    /// The asset's symbol.
    #[schema(min_length = 1, max_length = 16, example = "CNY")]
    pub asset: String,
    /// A plain decimal number above zero: a multiple of the channel's step.
    #[schema(
        pattern = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)$",
        example = "100.00"
    )]
    pub amount: String,
    /// The channel's name.
    #[schema(pattern = "^[a-z0-9-]{1,16}$", example = "wechat")]
    pub channel: String,
    /// The client's idempotency key: requests with the same key are one order. Required here or as
    /// the header Idempotency-Key.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z0-9_.:-]{1,64}$", example = "topup-1")]
    pub idem_key: Option<String>,
    /// The account that the money is meant for: FUNDING, where it arrives, or SPOT.
    #[serde(default)]
    #[schema(schema_with = target_schema)]
    pub to: Option<String>,
    /// The promotion that adds a bonus.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 16)]
    pub promotion: Option<String>,
    /// If present, must be the token's user.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 9_223_372_036_854_775_807_i64)]
    pub user_id: Option<u64>,
}

fn target_schema() -> Object {
    let targets = [RechargeTarget::Funding, RechargeTarget::Spot].map(RechargeTarget::name);
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(targets)).build()
}

/// The channel that a request names.
#[derive(Clone, Copy, Debug)]
pub struct ChannelOffer<'a> {
    /// The terms of its payments.
    pub terms: &'a ChannelTerms,
    /// The smallest order.
    pub amount_min: Amount,
    /// The largest one.
    pub amount_max: Amount,
    /// It takes no new orders.
    pub paused: bool,
}

impl RechargeRequest {
    /// The account that the money is meant for.
    ///
    /// # Errors
    /// [`Code::InvalidAccountType`]; [`Code::UnsupportedAccountType`].
    pub fn target(&self) -> Result<RechargeTarget, Code> {
        let Some(name) = &self.to else { return Ok(RechargeTarget::Funding) };
        match AccountType::from_name(name).ok_or(Code::InvalidAccountType)? {
            AccountType::Funding => Ok(RechargeTarget::Funding),
            AccountType::Spot => Ok(RechargeTarget::Spot),
            _ => Err(Code::UnsupportedAccountType),
        }
    }

    /// The body in a form that compares as a value: of [`Recharge::fingerprint_of`]. A part that
    /// cannot be read stands as it is written.
    pub fn fingerprint(&self, catalog: &Catalog) -> String {
        let asset = catalog.by_symbol(&self.asset);
        let plain = asset.and_then(|asset| {
            let amount = amount(&self.amount, asset.precision, u64::MAX).ok()?;
            Some(amount.text(asset.precision))
        });
        let text = plain.as_deref().unwrap_or(&self.amount);
        let target = self.target().unwrap_or(RechargeTarget::Funding);
        let promotion = self.promotion.as_deref();
        Recharge::fingerprint_of(&self.asset, text, &self.channel, target, promotion)
    }

    /// Checks target, channel, asset and amount, in this order. The first failing check answers. A
    /// promotion is checked where its money is. `offer`: the channel; `None`: there is none of this
    /// name. `units_max`: the largest amount, smallest units.
    ///
    /// # Errors
    /// The code of the first check that fails.
    pub fn check(
        &self,
        catalog: &Catalog,
        offer: Option<ChannelOffer<'_>>,
        units_max: u64,
    ) -> Result<(RechargeTarget, Amount), Code> {
        let target = self.target()?;
        let ChannelOffer { terms, amount_min, amount_max, paused } =
            offer.ok_or(Code::InvalidChannel)?;
        let asset = catalog.by_symbol(&self.asset);
        if asset.is_some_and(|asset| asset.id != terms.asset) {
            return Err(Code::InvalidChannel);
        }
        if paused {
            return Err(Code::ChannelSuspended);
        }
        let asset = asset.ok_or(Code::InvalidAsset)?;
        check_active(asset)?;
        if target == RechargeTarget::Spot && !asset.transfer_enabled {
            return Err(Code::TransferNotAllowed);
        }
        let amount = amount(&self.amount, asset.precision, units_max)?;
        if terms.minor_units(amount, asset.precision).is_none() {
            return Err(Code::PrecisionOverflow);
        }
        if amount < amount_min {
            return Err(Code::AmountTooSmall);
        }
        if amount > amount_max {
            return Err(Code::AmountTooLarge);
        }
        if target == RechargeTarget::Spot {
            check_limits(asset, amount)?;
        }
        Ok((target, amount))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_object;
    use super::*;
    use domain::asset::{Asset, AssetId, AssetStatus};

    const UNITS_MAX: u64 = u64::MAX / 1000;

    fn units(units: u64) -> Amount {
        Amount::new(units).expect("not zero")
    }

    /// CNY has 6 decimals, and its transfers are limited to 5 to 50.
    fn catalog(change: impl Fn(&mut Asset)) -> Catalog {
        let asset = |id, symbol: &str| Asset {
            id: AssetId(id),
            symbol: symbol.to_owned(),
            precision: 6,
            status: AssetStatus::Active,
            transfer_enabled: true,
            transfer_min: units(5_000_000),
            transfer_max: units(50_000_000),
        };
        let mut cny = asset(6, "CNY");
        change(&mut cny);
        Catalog::new([asset(3, "USDT"), cny])
    }

    fn request(asset: &str, amount: &str, to: Option<&str>) -> RechargeRequest {
        RechargeRequest {
            asset: asset.to_owned(),
            amount: amount.to_owned(),
            channel: "wechat".to_owned(),
            idem_key: Some("topup-1".to_owned()),
            to: to.map(str::to_owned),
            promotion: None,
            user_id: None,
        }
    }

    /// Checks at a channel of CNY that takes 1 to 100.
    fn check(request: &RechargeRequest, paused: bool, catalog: &Catalog) -> Result<u64, Code> {
        let (name, currency) = ("wechat".to_owned(), "CNY".to_owned());
        let terms = ChannelTerms { name, asset: AssetId(6), currency, minor_digits: 2 };
        let (amount_min, amount_max) = (units(1_000_000), units(100_000_000));
        let offer = ChannelOffer { terms: &terms, amount_min, amount_max, paused };
        let offer = (request.channel == "wechat").then_some(offer);
        request.check(catalog, offer, UNITS_MAX).map(|(_, amount)| amount.units())
    }

    /// Goal: each line of the table of bad input has its code, and the first failing check answers.
    #[test]
    fn the_first_failing_check_answers() {
        let plain = catalog(|_| {});
        let elsewhere = RechargeRequest { channel: "card".to_owned(), ..request("?", "-1", None) };
        assert_eq!(check(&elsewhere, true, &plain), Err(Code::InvalidChannel));
        for (request, want) in [
            (request("?", "-1", Some("MINE")), Code::InvalidAccountType),
            (request("?", "-1", Some("FUTURE")), Code::UnsupportedAccountType),
            (request("USDT", "-1", None), Code::InvalidChannel),
            (request("?", "-1", None), Code::InvalidAsset),
            (request("CNY", "-1", None), Code::InvalidAmount),
            (request("CNY", "0", None), Code::InvalidAmount),
            (request("CNY", "1.0000001", None), Code::PrecisionOverflow),
            (request("CNY", "1.001", None), Code::PrecisionOverflow),
            (request("CNY", "99999999999999", None), Code::Overflow),
            (request("CNY", "0.99", None), Code::AmountTooSmall),
            (request("CNY", "100.01", None), Code::AmountTooLarge),
            (request("CNY", "4.99", Some("SPOT")), Code::AmountTooSmall),
            (request("CNY", "50.01", Some("SPOT")), Code::AmountTooLarge),
        ] {
            assert_eq!(check(&request, false, &plain), Err(want), "{request:?}");
        }
        let good = request("CNY", "100.00", None);
        assert_eq!(check(&good, false, &plain), Ok(100_000_000));
        assert_eq!(check(&good, true, &plain), Err(Code::ChannelSuspended));
        let suspended = catalog(|asset| asset.status = AssetStatus::Suspended);
        assert_eq!(check(&good, false, &suspended), Err(Code::AssetSuspended));
        let fixed = catalog(|asset| asset.transfer_enabled = false);
        assert_eq!(check(&good, false, &fixed), Ok(100_000_000));
        let on = request("CNY", "50", Some("SPOT"));
        assert_eq!(check(&on, false, &fixed), Err(Code::TransferNotAllowed));
        let promoted = RechargeRequest { promotion: Some("spring".to_owned()), ..good };
        assert_eq!(check(&promoted, false, &plain), Ok(100_000_000), "its transaction checks it");
        let small = RechargeRequest {
            promotion: Some("spring".to_owned()),
            ..request("CNY", "0.99", None)
        };
        assert_eq!(check(&small, false, &plain), Err(Code::AmountTooSmall));
    }

    /// Goal: the client names no bonus, no tenant and no state.
    #[test]
    fn unknown_missing_and_mistyped_fields_are_refused() {
        let parse = |body: &str| parse_object::<RechargeRequest>(body.as_bytes());
        let with = |more: &str| {
            format!(r#"{{"asset":"CNY","amount":"1","channel":"wechat","idem_key":"a"{more}}}"#)
        };
        assert!(parse(&with("")).is_ok());
        assert!(parse(&with(r#","to":"SPOT","promotion":"spring","user_id":7"#)).is_ok());
        for more in [
            r#","bonus":"20""#,
            r#","tenant_id":1"#,
            r#","state":"PAID""#,
            r#","total":"1""#,
            r#","amount":"2""#,
            r#","to":1"#,
            r#","user_id":"7""#,
        ] {
            assert!(parse(&with(more)).is_err(), "{more}");
        }
        assert!(parse(r#"{"asset":"CNY","amount":1,"channel":"wechat"}"#).is_err());
        assert!(parse(r#"{"asset":"CNY","amount":"1"}"#).is_err());
    }

    /// Goal: two spellings of one request are one, and the names of differing fields are told.
    #[test]
    fn a_fingerprint_compares_as_a_value() {
        let catalog = catalog(|_| {});
        let print = |request: &RechargeRequest| request.fingerprint(&catalog);
        let one = print(&request("CNY", "100", None));
        assert_eq!(one, print(&request("CNY", "00100.00", Some("FUNDING"))));
        assert_eq!(
            one,
            Recharge::fingerprint_of("CNY", "100", "wechat", RechargeTarget::Funding, None)
        );
        assert_ne!(one, print(&request("CNY", "100.01", None)));
        assert_ne!(one, print(&request("CNY", "100", Some("SPOT"))));
    }
}
