//! Limits of one user.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::bound::{Bound, bound};

/// The section `[limits]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UserLimits {
    /// The most transfers posted by one user in a second; 0: no limit.
    pub user_requests_per_second_max: u32,
    /// The most transfers accepted from one user in a day of UTC; 0: no limit.
    pub user_transfers_per_day_max: u64,
    /// The largest amounts transferred by one user in a day of UTC, by asset.
    pub user_amounts_per_day_max: AmountsBySymbol,
}

/// Amounts of assets, as `SYMBOL=AMOUNT, SYMBOL=AMOUNT`: symbol and decimal text, each symbol once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AmountsBySymbol(pub Vec<(String, String)>);

impl<'de> Deserialize<'de> for AmountsBySymbol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut amounts: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.trim().is_empty()) {
            let pair = part.split_once('=').map(|(symbol, amount)| (symbol.trim(), amount.trim()));
            let Some((symbol, amount)) = pair.filter(|(symbol, _)| !symbol.is_empty()) else {
                let problem = format!("{part:?} is not SYMBOL=AMOUNT");
                return Err(D::Error::custom(problem));
            };
            if amounts.iter().any(|(other, _)| other == symbol) {
                return Err(D::Error::custom(format!("{symbol} stands twice")));
            }
            amounts.push((symbol.to_owned(), amount.to_owned()));
        }
        Ok(AmountsBySymbol(amounts))
    }
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            user_requests_per_second_max: 10,
            user_transfers_per_day_max: 100,
            user_amounts_per_day_max: AmountsBySymbol::default(),
        }
    }
}

/// The bounds of its whole numbers.
#[rustfmt::skip]
pub(super) const BOUNDS: &[Bound] = &[
    bound("limits.user_requests_per_second_max", |c| Some(c.limits.user_requests_per_second_max.into()), 0, 10_000, "requests"),
    bound("limits.user_transfers_per_day_max", |c| Some(c.limits.user_transfers_per_day_max), 0, 1_000_000, "transfers"),
];

#[cfg(test)]
mod tests {
    use crate::config::tests::load;

    #[test]
    fn amounts_by_symbol_are_read_from_one_text() {
        let amounts = |text: &str| {
            let given = [("UBSCORE__LIMITS__USER_AMOUNTS_PER_DAY_MAX", text)];
            load("", &given).map(|config| config.limits.user_amounts_per_day_max.0)
        };
        let pair = |symbol: &str, amount: &str| (symbol.to_owned(), amount.to_owned());
        assert_eq!(amounts(" ").expect("none"), []);
        assert_eq!(amounts("5=7").expect("one"), [pair("5", "7")]);
        let two = amounts("USDT=100000, BTC = 2.5").expect("two");
        assert_eq!(two, [pair("USDT", "100000"), pair("BTC", "2.5")]);
        for (text, problem) in [
            ("USDT", "\"USDT\" is not SYMBOL=AMOUNT"),
            ("USDT=1,", "\"\" is not SYMBOL=AMOUNT"),
            ("=1", "\"=1\" is not SYMBOL=AMOUNT"),
            ("BTC=1, BTC=2", "BTC stands twice"),
        ] {
            let said = amounts(text).expect_err(text).to_string();
            assert!(said.starts_with("limits.user_amounts_per_day_max: "), "{said}");
            assert!(said.contains(problem), "{said}");
        }
    }
}
