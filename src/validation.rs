//! Every check on a transfer, once, in the order of the codes.
//!
//! [`Draft::check`] turns a request's text into a [`Checked`] transfer. The coordinator, both
//! adapters and UBSCore repeat [`domain::form::check_form`], so that no layer trusts the one above
//! it. An asset's status and limits change with time: they are decided once, at accept.
//! [`transaction`] does the same for a round of a transaction, and [`recharge`] for a recharge.

pub mod recharge;
pub mod transaction;

use serde::Deserialize;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

use crate::pause::{Pauses, Scope};
use domain::account::AccountType;
use domain::amount::Amount;
use domain::asset::{Asset, AssetStatus, Catalog};
use domain::code::Code;
use domain::transfer::{Cid, Direction};

/// A transfer as a client writes it. An unknown, missing or repeated field and a wrong type are
/// refused.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TransferRequest)]
pub struct Draft {
    /// The account that pays.
    #[schema(schema_with = account_schema)]
    pub from: String,
    /// The account that is paid. Must differ from `from`.
    #[schema(schema_with = account_schema)]
    pub to: String,
    /// The asset's symbol.
    #[schema(min_length = 1, max_length = 16, example = "USDT")]
    pub asset: String,
    /// A plain decimal number above zero, with at most as many decimals as the asset.
    #[schema(
        pattern = r"^([0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]+\.[0-9]*[1-9][0-9]*)$",
        example = "100.00"
    )]
    pub amount: String,
    /// The client's idempotency key: requests with the same key are one transfer.
    #[serde(default)]
    #[schema(pattern = "^[A-Za-z0-9_.:-]{1,64}$", example = "order-1")]
    pub cid: Option<String>,
    /// If present, must be the token's user.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 9_223_372_036_854_775_807_i64)]
    pub user_id: Option<u64>,
}

/// The accounts that a transfer moves money between.
fn account_schema() -> Object {
    let accounts = [AccountType::Funding, AccountType::Spot].map(AccountType::name);
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(accounts)).build()
}

/// A draft that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// From which account to which.
    pub direction: Direction,
    /// The asset.
    pub asset: Asset,
    /// The amount.
    pub amount: Amount,
}

impl Draft {
    /// Reads a request body.
    ///
    /// # Errors
    /// The error of serde: not JSON, not an object, an unknown, missing or repeated field, a wrong
    /// type.
    pub fn parse(body: &[u8]) -> Result<Draft, serde_json::Error> {
        parse_object(body)
    }

    /// The client's idempotency key.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`]: present, and not a key.
    pub fn cid(&self) -> Result<Option<Cid>, Code> {
        self.cid.as_deref().map(|text| Cid::new(text).ok_or(Code::InvalidRequest)).transpose()
    }

    /// Checks account types, asset, pauses and amount, in this order. The first failing check
    /// answers.
    ///
    /// `units_max`: the largest amount in smallest units, `u64::MAX / amount.safety_factor`.
    ///
    /// # Errors
    /// The code of the first check that fails.
    pub fn check(
        &self,
        catalog: &Catalog,
        pauses: &Pauses,
        units_max: u64,
    ) -> Result<Checked, Code> {
        let direction = check_accounts(&self.from, &self.to)?;
        let asset = check_asset(catalog, &self.asset)?;
        if pauses.covering(direction, asset.id).is_some() {
            return Err(Code::TransferNotAllowed);
        }
        let amount = amount(&self.amount, asset.precision, units_max)?;
        debug_assert!(amount.units() <= units_max, "parsed with this bound");
        check_limits(asset, amount)?;
        Ok(Checked { direction, asset: asset.clone(), amount })
    }

    /// The amount without leading and trailing zeros, `None` if it is not an amount of a known
    /// asset. Two spellings of one amount are equal in this form.
    pub fn plain_amount(&self, catalog: &Catalog) -> Option<String> {
        let asset = catalog.by_symbol(&self.asset)?;
        let amount = amount(&self.amount, asset.precision, u64::MAX).ok()?;
        Some(amount.text(asset.precision))
    }

    /// The pause that [`Draft::check`] has refused this transfer for, if it was a pause.
    pub fn paused(&self, catalog: &Catalog, pauses: &Pauses) -> Option<Scope> {
        let direction = check_accounts(&self.from, &self.to).ok()?;
        let asset = check_asset(catalog, &self.asset).ok()?;
        pauses.covering(direction, asset.id)
    }
}

/// Reads an amount from outside: of a transfer, of an operator's request, of the configuration.
///
/// `precision`: the asset's decimals; `units_max`: the largest amount, smallest units.
///
/// # Errors
/// [`Code::InvalidAmount`], [`Code::PrecisionOverflow`] or [`Code::Overflow`].
pub fn amount(text: &str, precision: u8, units_max: u64) -> Result<Amount, Code> {
    Amount::parse(text, precision, units_max)
}

/// Reads a JSON object into a struct. serde alone would accept an array of the fields too.
///
/// # Errors
/// The error of serde.
pub fn parse_object<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, serde_json::Error> {
    if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
        return Err(serde::de::Error::custom("expected a JSON object"));
    }
    serde_json::from_slice(body)
}

/// The direction between two account types.
fn check_accounts(from: &str, to: &str) -> Result<Direction, Code> {
    if from == to {
        return Err(Code::SameAccount);
    }
    let source = AccountType::from_name(from).ok_or(Code::InvalidAccountType)?;
    let target = AccountType::from_name(to).ok_or(Code::InvalidAccountType)?;
    match (source, target) {
        (AccountType::Funding, AccountType::Spot) => Ok(Direction::FundingToSpot),
        (AccountType::Spot, AccountType::Funding) => Ok(Direction::SpotToFunding),
        _ => Err(Code::UnsupportedAccountType),
    }
}

/// An asset that is known, active and transferable.
fn check_asset<'a>(catalog: &'a Catalog, symbol: &str) -> Result<&'a Asset, Code> {
    let asset = known_asset(catalog, symbol)?;
    check_active(asset)?;
    if !asset.transfer_enabled {
        return Err(Code::TransferNotAllowed);
    }
    Ok(asset)
}

fn known_asset<'a>(catalog: &'a Catalog, symbol: &str) -> Result<&'a Asset, Code> {
    catalog.by_symbol(symbol).ok_or(Code::InvalidAsset)
}

fn check_active(asset: &Asset) -> Result<(), Code> {
    if asset.status == AssetStatus::Active { Ok(()) } else { Err(Code::AssetSuspended) }
}

/// Checks an amount against the limits of one transfer of the asset.
fn check_limits(asset: &Asset, amount: Amount) -> Result<(), Code> {
    if amount < asset.transfer_min {
        return Err(Code::AmountTooSmall);
    }
    if amount > asset.transfer_max {
        return Err(Code::AmountTooLarge);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::asset::AssetId;

    const UNITS_MAX: u64 = u64::MAX / 1000;

    fn asset(id: u32, symbol: &str) -> Asset {
        Asset {
            id: AssetId(id),
            symbol: symbol.to_owned(),
            precision: 8,
            status: AssetStatus::Active,
            transfer_enabled: true,
            transfer_min: Amount::new(100).expect("not zero"),
            transfer_max: Amount::new(1_000_000_000_000).expect("not zero"),
        }
    }

    fn catalog() -> Catalog {
        let suspended = Asset { status: AssetStatus::Suspended, ..asset(4, "SUSP") };
        let fixed = Asset { transfer_enabled: false, ..asset(5, "NOXFER") };
        Catalog::new([asset(3, "USDT"), suspended, fixed])
    }

    fn draft(from: &str, to: &str, asset: &str, amount: &str) -> Draft {
        Draft {
            from: from.to_owned(),
            to: to.to_owned(),
            asset: asset.to_owned(),
            amount: amount.to_owned(),
            cid: None,
            user_id: None,
        }
    }

    #[test]
    fn the_first_failing_check_answers() {
        let cases = [
            (draft("SPOT", "SPOT", "NONE", "-1"), Code::SameAccount),
            (draft("INVALID", "INVALID", "NONE", "-1"), Code::SameAccount),
            (draft("INVALID", "SPOT", "NONE", "-1"), Code::InvalidAccountType),
            (draft("funding", "SPOT", "NONE", "-1"), Code::InvalidAccountType),
            (draft("FUNDING", "FUTURE", "NONE", "-1"), Code::UnsupportedAccountType),
            (draft("MARGIN", "SPOT", "NONE", "-1"), Code::UnsupportedAccountType),
            (draft("FUNDING", "SPOT", "NONE", "-1"), Code::InvalidAsset),
            (draft("FUNDING", "SPOT", "usdt", "-1"), Code::InvalidAsset),
            (draft("FUNDING", "SPOT", "SUSP", "-1"), Code::AssetSuspended),
            (draft("FUNDING", "SPOT", "NOXFER", "-1"), Code::TransferNotAllowed),
            (draft("FUNDING", "SPOT", "USDT", "-1"), Code::InvalidAmount),
            (draft("FUNDING", "SPOT", "USDT", "0.000000001"), Code::PrecisionOverflow),
            (draft("FUNDING", "SPOT", "USDT", "99999999999999999999"), Code::Overflow),
            (draft("FUNDING", "SPOT", "USDT", "0.00000001"), Code::AmountTooSmall),
            (draft("FUNDING", "SPOT", "USDT", "10000.00000001"), Code::AmountTooLarge),
        ];
        for (draft, want) in cases {
            assert_eq!(
                draft.check(&catalog(), &Pauses::default(), UNITS_MAX),
                Err(want),
                "{draft:?}"
            );
        }
        let good = draft("SPOT", "FUNDING", "USDT", "100.00");
        let good = good.check(&catalog(), &Pauses::default(), UNITS_MAX);
        assert_eq!(good.map(|checked| checked.direction), Ok(Direction::SpotToFunding));
    }

    #[test]
    fn unknown_missing_doubled_and_mistyped_fields_are_refused() {
        let good = r#"{"from":"A","to":"B","asset":"C","amount":"1"}"#;
        assert!(Draft::parse(good.as_bytes()).is_ok());
        for bad in [
            r#"{"from":"A","to":"B","asset":"C"}"#,
            r#"{"from":"A","to":"B","asset":"C","amount":1}"#,
            r#"{"from":"A","from":"A","to":"B","asset":"C","amount":"1"}"#,
            r#"{"from":"A","to":"B","asset":"C","amount":"1","extra":0}"#,
            r#"{"from":"A","to":"B","asset":"C","amount":"1","user_id":"1"}"#,
            r#"{"from":"A","to":"B","asset":"C","amount":"1","user_id":-1}"#,
            r#"["A","B","C","1"]"#,
        ] {
            assert!(Draft::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
