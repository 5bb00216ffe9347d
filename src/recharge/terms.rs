//! The terms that payments of one channel are decided under.

use domain::amount::{Amount, UNITS_MAX};
use domain::asset::AssetId;

/// The fixed part of a channel: see `[channels.NAME]` in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelTerms {
    /// Its name, which belongs to one merchant for ever.
    pub name: String,
    /// The asset that its payments become.
    pub asset: AssetId,
    /// ISO 4217, upper case.
    pub currency: String,
    /// Decimals of its minor unit: 2 for fen.
    pub minor_digits: u8,
}

impl ChannelTerms {
    /// The amount of so many minor units, for an asset of `precision` decimals. `None`: not above
    /// 0, or no amount can hold it.
    pub fn amount(&self, minor_units: i64, precision: u8) -> Option<Amount> {
        let digits = precision.checked_sub(self.minor_digits)?;
        let factor = 10_u64.checked_pow(digits.into())?;
        let units = u64::try_from(minor_units).ok()?.checked_mul(factor)?;
        Amount::new(units).filter(|amount| amount.units() <= UNITS_MAX)
    }

    /// The minor units of an amount. `None`: it is no multiple of one, or too large.
    pub fn minor_units(&self, amount: Amount, precision: u8) -> Option<i64> {
        let digits = precision.checked_sub(self.minor_digits)?;
        let factor = 10_u64.checked_pow(digits.into())?;
        let whole = amount.units().is_multiple_of(factor);
        whole.then(|| i64::try_from(amount.units() / factor).ok()).flatten()
    }
}

/// A rule of the configuration for payments beside the usual one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentRule {
    /// Credited as paid.
    Credit,
    /// Sent back.
    Return,
    /// Held for an operator.
    Hold,
}

impl PaymentRule {
    /// The rule with this name in the configuration.
    pub fn from_name(name: &str) -> Option<PaymentRule> {
        match name {
            "credit" => Some(PaymentRule::Credit),
            "return" => Some(PaymentRule::Return),
            "hold" => Some(PaymentRule::Hold),
            _ => None,
        }
    }
}

/// The rules of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RechargePolicy {
    /// Another amount than that of the order: Hold or Credit.
    pub differing: PaymentRule,
    /// A second payment of an order that is PAID: Return or Hold. Credit is not built, and holds.
    pub duplicate: PaymentRule,
    /// A payment of an order that is CLOSED.
    pub late: PaymentRule,
}

impl Default for RechargePolicy {
    fn default() -> Self {
        let (differing, duplicate) = (PaymentRule::Hold, PaymentRule::Return);
        RechargePolicy { differing, duplicate, late: PaymentRule::Credit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(minor_digits: u8) -> ChannelTerms {
        let (name, currency) = ("wechat".to_owned(), "CNY".to_owned());
        ChannelTerms { name, asset: AssetId(4), currency, minor_digits }
    }

    /// Goal: no conversion rounds, wraps or makes an amount of nothing.
    #[test]
    fn minor_units_convert_exactly_or_not_at_all() {
        let fen = terms(2);
        let units = |minor, precision| fen.amount(minor, precision).map(Amount::units);
        assert_eq!(units(10_000, 6), Some(100_000_000));
        assert_eq!(units(1, 2), Some(1));
        for (minor, precision) in [(0, 6), (-1, 6), (i64::MAX, 6), (1, 1), (i64::MAX, 3)] {
            assert_eq!(units(minor, precision), None, "{minor} {precision}");
        }
        assert_eq!(units(i64::MAX, 2), Some(UNITS_MAX));
        let back = |units| fen.minor_units(Amount::new(units).expect("not zero"), 6);
        assert_eq!(back(100_000_000), Some(10_000));
        assert_eq!(back(100_000_001), None);
    }
}
