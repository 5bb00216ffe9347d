//! Amounts and balances as integers in an asset's smallest unit. Input text is parsed by
//! [`Amount::parse`] only; output text is made by [`units_text`] and its like.

use std::num::NonZeroU64;

use rust_decimal::Decimal;

use crate::code::Code;

/// The most decimals an asset can have.
pub const PRECISION_MAX: u8 = 8;

/// The largest amount, smallest units: PostgreSQL has amounts in a BIGINT.
pub const UNITS_MAX: u64 = i64::MAX as u64;

/// An amount of one asset in its smallest unit (1 = 0.00000001 BTC at 8 decimals).
/// Never zero, never negative, never a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Amount(NonZeroU64);

impl Amount {
    /// An amount of `units` smallest units, `None` for zero.
    #[inline]
    pub fn new(units: u64) -> Option<Amount> {
        NonZeroU64::new(units).map(Amount)
    }

    /// The number of smallest units, 1..=`u64::MAX`.
    pub fn units(self) -> u64 {
        self.0.get()
    }

    /// Reads a plain decimal number such as `100.00` for an asset of `precision` decimals.
    ///
    /// `units_max`: the largest number of smallest units that is accepted.
    ///
    /// # Errors
    /// [`Code::InvalidAmount`]: not `^[0-9]+(\.[0-9]+)?$` after an optional minus, zero, or
    /// negative. [`Code::PrecisionOverflow`]: more decimals than `precision`, trailing zeros
    /// included. [`Code::Overflow`]: more than `units_max` smallest units.
    pub fn parse(text: &str, precision: u8, units_max: u64) -> Result<Amount, Code> {
        assert!(precision <= PRECISION_MAX, "precision {precision}");
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return Err(Code::InvalidAmount);
        }
        let zero = unsigned.bytes().all(|b| b == b'0' || b == b'.');
        if zero || unsigned.len() != text.len() {
            return Err(Code::InvalidAmount);
        }
        if unsigned.contains('.') && fraction.len() > usize::from(precision) {
            return Err(Code::PrecisionOverflow);
        }
        // Leading zeros are harmless. A number that Decimal cannot hold is far above any u64.
        let significant = unsigned.trim_start_matches('0');
        let padded = format!("0{significant}");
        let mut decimal = Decimal::from_str_exact(&padded).map_err(|_| Code::Overflow)?;
        decimal.rescale(u32::from(precision));
        if decimal.scale() != u32::from(precision) {
            return Err(Code::Overflow);
        }
        let units = u64::try_from(decimal.mantissa()).map_err(|_| Code::Overflow)?;
        if units > units_max {
            return Err(Code::Overflow);
        }
        Amount::new(units).ok_or(Code::InvalidAmount)
    }

    /// Decimal text without trailing zeros, for example `100` or `0.5`.
    pub fn text(self, precision: u8) -> String {
        units_text(u128::from(self.units()), precision)
    }
}

/// Decimal text of a balance in smallest units, without trailing zeros.
pub fn units_text(units: u128, precision: u8) -> String {
    let mut text = String::new();
    push_units(&mut text, units, precision);
    text
}

/// The same for a number that may be negative: a difference, or the effect of a movement.
pub fn signed_text(units: i128, precision: u8) -> String {
    let sign = if units < 0 { "-" } else { "" };
    format!("{sign}{}", units_text(units.unsigned_abs(), precision))
}

/// Appends the text of [`units_text`].
pub fn push_units(text: &mut String, units: u128, precision: u8) {
    let mut digits = itoa::Buffer::new();
    // Numbers of 128 bits take several times as long, and nearly every amount has 64.
    let fraction = match u64::try_from(units) {
        Ok(units) => {
            let scale = 10u64.pow(u32::from(precision));
            text.push_str(digits.format(units / scale));
            units % scale
        }
        Err(_) => {
            let scale = 10u128.pow(u32::from(precision));
            text.push_str(digits.format(units / scale));
            u64::try_from(units % scale).expect("below the scale")
        }
    };
    if fraction > 0 {
        let digits = digits.format(fraction);
        text.push('.');
        text.push_str(&ZEROS[..usize::from(precision) - digits.len()]);
        text.push_str(digits.trim_end_matches('0'));
    }
}

/// The most zeros at the start of a fraction.
const ZEROS: &str = "00000000";

const _: () = assert!(ZEROS.len() == PRECISION_MAX as usize);

/// Smallest units of decimal text. `None` if it is negative,
/// has more nonzero decimals than `precision`, or does not fit.
pub fn units_from_text(text: &str, precision: u8) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let kept = fraction.trim_end_matches('0');
    if kept.len() > usize::from(precision) {
        return None;
    }
    let digits = format!("{whole}{kept:0<width$}", width = usize::from(precision));
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: u64 = u64::MAX / 1000;

    #[test]
    fn only_plain_decimals_are_amounts() {
        let cases = [
            ("100.00", Ok(10_000_000_000)),
            ("0.00000001", Ok(1)),
            ("000001", Ok(100_000_000)),
            ("184467440", Ok(18_446_744_000_000_000)),
            ("", Err(Code::InvalidAmount)),
            ("0", Err(Code::InvalidAmount)),
            ("0.000000000000", Err(Code::InvalidAmount)),
            ("-1", Err(Code::InvalidAmount)),
            ("-", Err(Code::InvalidAmount)),
            ("+1", Err(Code::InvalidAmount)),
            (" 1", Err(Code::InvalidAmount)),
            ("1 ", Err(Code::InvalidAmount)),
            ("1e3", Err(Code::InvalidAmount)),
            (".5", Err(Code::InvalidAmount)),
            ("5.", Err(Code::InvalidAmount)),
            ("1.2.3", Err(Code::InvalidAmount)),
            ("1,5", Err(Code::InvalidAmount)),
            ("٣", Err(Code::InvalidAmount)),
            ("0.000000001", Err(Code::PrecisionOverflow)),
            ("1.000000000", Err(Code::PrecisionOverflow)),
            ("18446744073709551616", Err(Code::Overflow)),
            ("99999999999999999999", Err(Code::Overflow)),
            ("184467440737.09551616", Err(Code::Overflow)),
        ];
        for (text, want) in cases {
            assert_eq!(Amount::parse(text, 8, MAX).map(Amount::units), want, "{text:?}");
        }
        let long = "9".repeat(10_000);
        assert_eq!(Amount::parse(&long, 8, MAX), Err(Code::Overflow));
    }

    #[test]
    fn text_has_no_trailing_zeros() {
        assert_eq!(units_text(10_000_000_000, 8), "100");
        assert_eq!(units_text(974_950_000_000, 8), "9749.5");
        assert_eq!(units_text(1, 8), "0.00000001");
        assert_eq!(units_text(0, 8), "0");
        assert_eq!(units_text(7, 0), "7");
        assert_eq!(signed_text(-50_000_000, 8), "-0.5");
        assert_eq!(signed_text(0, 8), "0");
    }

    proptest! {
        #[test]
        fn text_leads_back_to_the_same_amount(units in 1..=MAX, precision in 0..=PRECISION_MAX) {
            let amount = Amount::new(units).expect("not zero");
            let text = amount.text(precision);
            prop_assert_eq!(Amount::parse(&text, precision, MAX), Ok(amount));
            prop_assert_eq!(units_from_text(&text, precision), Some(u128::from(units)));
        }
    }
}
