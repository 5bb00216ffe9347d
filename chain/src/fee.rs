//! Prices of gas, in wei: the first price of an attempt, and the step of each further one.
//!
//! A pool takes a replacement only if both of its prices rise by 10 %. So both rise, each by whole
//! wei rounded up, from the highest that was ever stored for the nonce. A step that a cap forbids
//! is not taken at all: half a step is refused by every pool.

/// The two prices of an attempt, wei per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasPrice {
    /// The most that is paid, base fee and tip together.
    pub max_fee: u128,
    /// The most that the block's proposer gets. At most `max_fee`.
    pub max_tip: u128,
}

/// The market, as the view's head and the endpoints show it, wei per gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasMarket {
    /// The base fee of the head.
    pub base_fee: u128,
    /// The tip that is usual now.
    pub tip: u128,
}

/// The bounds of prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GasCaps {
    /// The highest `max_fee`, wei per gas.
    pub max_fee: u128,
    /// The highest tip of a first price, wei per gas. A replacement may need more.
    pub tip: u128,
    /// The most that one transaction may cost in gas, wei.
    pub cost: u128,
}

impl GasCaps {
    /// Whether a price is within the caps for `gas`.
    pub fn admit(&self, price: GasPrice, gas: u64) -> bool {
        let cost = price.max_fee.checked_mul(u128::from(gas));
        price.max_tip <= price.max_fee
            && price.max_fee <= self.max_fee
            && cost.is_some_and(|cost| cost <= self.cost)
    }
}

impl GasMarket {
    /// Today's price: twice the base fee, so that six full blocks do not reach it, and the tip.
    /// `None`: the market is beyond numbers.
    pub fn price(&self, caps: &GasCaps) -> Option<GasPrice> {
        let max_tip = self.tip.min(caps.tip);
        let max_fee = self.base_fee.checked_mul(2)?.checked_add(max_tip)?;
        Some(GasPrice { max_fee, max_tip })
    }
}

/// The price of the first attempt of a nonce; `None`: a cap forbids it, and nothing is signed.
pub fn first(market: GasMarket, caps: &GasCaps, gas: u64) -> Option<GasPrice> {
    market.price(caps).filter(|price| caps.admit(*price, gas))
}

/// The price of a further attempt; `None`: a cap forbids the whole step, and nothing is signed.
///
/// `stored`: the prices of all attempts of this nonce. `percent`: the step of both prices.
pub fn next(
    stored: &[GasPrice],
    market: GasMarket,
    caps: &GasCaps,
    percent: u64,
    gas: u64,
) -> Option<GasPrice> {
    let today = market.price(caps)?;
    let highest = |part: fn(&GasPrice) -> u128| stored.iter().map(part).max();
    let (Some(fee), Some(tip)) = (highest(|it| it.max_fee), highest(|it| it.max_tip)) else {
        return first(market, caps, gas);
    };
    let max_fee = raised(fee, percent)?.max(today.max_fee);
    let max_tip = raised(tip, percent)?.max(today.max_tip);
    let price = GasPrice { max_fee: max_fee.max(max_tip), max_tip };
    caps.admit(price, gas).then_some(price)
}

/// Whether a price is a whole step above each stored one, so that every pool takes it in their
/// place.
pub fn replaces(price: GasPrice, stored: &[GasPrice], percent: u64) -> bool {
    stored.iter().all(|old| {
        raised(old.max_fee, percent).is_some_and(|fee| price.max_fee >= fee)
            && raised(old.max_tip, percent).is_some_and(|tip| price.max_tip >= tip)
    })
}

/// A price that is `percent` higher in whole wei, rounded up, and at least 1 wei.
fn raised(wei: u128, percent: u64) -> Option<u128> {
    let more = wei.checked_mul(u128::from(percent))?.div_ceil(100).max(1);
    wei.checked_add(more)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GWEI: u128 = 1_000_000_000;

    fn caps() -> GasCaps {
        GasCaps { max_fee: 500 * GWEI, tip: 5 * GWEI, cost: 100_000_000 * GWEI }
    }

    #[test]
    fn both_prices_rise_from_the_highest_that_was_ever_stored() {
        let quiet = GasMarket { base_fee: GWEI, tip: GWEI };
        let first = first(quiet, &caps(), 21_000).expect("within the caps");
        assert_eq!(first, GasPrice { max_fee: 3 * GWEI, max_tip: GWEI });
        // The newest is not the highest: a cancel was dearer.
        let stored = [first, GasPrice { max_fee: 10 * GWEI + 1, max_tip: 3 }, first];
        let price = next(&stored, quiet, &caps(), 12, 21_000).expect("within the caps");
        assert_eq!(price.max_fee, 11_200_000_002, "rounded up");
        assert_eq!(price.max_tip, 1_120_000_000);
        let dear = GasMarket { base_fee: 100 * GWEI, tip: 9 * GWEI };
        let price = next(&stored, dear, &caps(), 12, 21_000).expect("within the caps");
        assert_eq!(price, GasPrice { max_fee: 205 * GWEI, max_tip: 5 * GWEI });
        assert_eq!(raised(0, 12), Some(1));
        assert_eq!(raised(1, 12), Some(2));
        assert_eq!(raised(u128::MAX, 12), None);
    }

    #[test]
    fn a_step_that_a_cap_forbids_is_not_taken_at_all() {
        let market = GasMarket { base_fee: 0, tip: 1 };
        let at = |max_fee| GasPrice { max_fee, max_tip: 1 };
        assert!(next(&[at(446 * GWEI)], market, &caps(), 12, 21_000).is_some());
        assert_eq!(next(&[at(447 * GWEI)], market, &caps(), 12, 21_000), None);
        assert_eq!(next(&[at(100 * GWEI)], market, &caps(), 12, 1_000_000), None, "its cost");
        let storm = GasMarket { base_fee: u128::MAX / 2, tip: 1 };
        assert_eq!(first(storm, &caps(), 21_000), None);
    }

    proptest! {
        /// No price is above a cap, and a replacement is one that every pool takes.
        #[test]
        fn a_price_is_within_the_caps_and_a_step_is_whole(
            stored in prop::collection::vec((1..600 * GWEI, 0..20 * GWEI), 0..6),
            (base_fee, tip) in (0..900 * GWEI, 0..20 * GWEI),
            (percent, gas) in (10_u64..50, 21_000_u64..5_000_000),
        ) {
            let stored: Vec<GasPrice> = stored
                .into_iter()
                .map(|(max_fee, tip)| GasPrice { max_fee, max_tip: tip.min(max_fee) })
                .collect();
            if let Some(price) = next(&stored, GasMarket { base_fee, tip }, &caps(), percent, gas) {
                prop_assert!(caps().admit(price, gas));
                prop_assert!(price.max_fee * u128::from(gas) <= caps().cost);
                prop_assert!(replaces(price, &stored, percent));
                for old in &stored {
                    prop_assert!(price.max_fee * 100 >= old.max_fee * (100 + u128::from(percent)));
                    prop_assert!(price.max_tip * 100 >= old.max_tip * (100 + u128::from(percent)));
                    prop_assert!(price.max_fee > old.max_fee && price.max_tip > old.max_tip);
                }
            }
        }
    }
}
