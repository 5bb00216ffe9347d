//! The limits of one user, from the configuration and the assets.

use std::num::NonZeroU32;

use domain::asset::Catalog;

use super::Options;
use super::usage::DayMax;
use crate::config::{self, Config};
use crate::validation;

impl Options {
    /// The configured limits, with amounts in smallest units of `assets`.
    ///
    /// # Errors
    /// [`config::Error::Range`]: an amount is of no asset, or is no amount of it.
    pub fn new(config: &Config, assets: &Catalog) -> Result<Options, config::Error> {
        let limits = &config.limits;
        let key = "limits.user_amounts_per_day_max";
        let amount = |(symbol, text): &(String, String)| {
            let wrong = |allowed: String| {
                let value = format!("{symbol}={text}");
                config::Error::Range { key: key.into(), value, allowed }
            };
            let asset = assets.by_symbol(symbol);
            let asset = asset.ok_or_else(|| wrong("of an asset that exists".to_owned()))?;
            let amount = validation::amount(text, asset.precision, u64::MAX).map_err(|_| {
                let decimals = asset.precision;
                wrong(format!("a number above 0 with at most {decimals} decimals, 64 bits in all"))
            })?;
            Ok((asset.id, amount.units()))
        };
        let amounts = limits.user_amounts_per_day_max.0.iter().map(amount);
        let transfers = limits.user_transfers_per_day_max;
        Ok(Options {
            requests_per_second: NonZeroU32::new(limits.user_requests_per_second_max),
            day: DayMax {
                transfers: (transfers > 0).then_some(transfers),
                amounts: amounts.collect::<Result<_, config::Error>>()?,
            },
        })
    }
}
