//! Promotions: the bonus of an order, and whether an order gets it. Pure.
//!
//! A promotion has terms that never change, and money that operators have put in. A bonus leaves
//! that money when its order is made, and comes back when the order ends without it.

use std::cmp::min;

use jiff::Timestamp;

use domain::account::UserId;
use domain::amount::{Amount, UNITS_MAX};
use domain::asset::AssetId;

/// The most bytes of a name.
pub const PROMOTION_NAME_BYTES_MAX: usize = 16;
/// The whole of an amount, in basis points.
const WHOLE: u128 = 10_000;

/// Whether a text can be the name of a promotion: 1 to 16 of `[a-z0-9-]`.
pub fn is_promotion_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=PROMOTION_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// How large a bonus is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BonusTerms {
    /// The same for each order, smallest units.
    Fixed(Amount),
    /// A part of the amount of the order.
    Part {
        /// Ten thousandths of the amount.
        basis_points: u32,
        /// The most, smallest units.
        max: Amount,
    },
}

impl BonusTerms {
    /// The bonus of an amount, floored to the smallest unit. `None`: it is less than one unit.
    pub fn of(self, amount: Amount) -> Option<Amount> {
        match self {
            BonusTerms::Fixed(bonus) => Some(bonus),
            BonusTerms::Part { basis_points, max } => {
                let part = u128::from(amount.units()) * u128::from(basis_points) / WHOLE;
                let part = u64::try_from(part).unwrap_or(u64::MAX);
                Amount::new(min(part, max.units()))
            }
        }
    }

    /// The largest bonus of one order.
    pub fn max(self) -> Amount {
        match self {
            BonusTerms::Fixed(bonus) => bonus,
            BonusTerms::Part { max, .. } => max,
        }
    }
}

/// Whether a promotion gives new bonuses. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum PromotionStatus {
    /// It does.
    Active = 1,
    /// It does not. Reserved bonuses are given all the same.
    Stopped = 2,
}

impl PromotionStatus {
    /// Every status.
    pub const ALL: [PromotionStatus; 2] = [PromotionStatus::Active, PromotionStatus::Stopped];

    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }

    /// The status with this number.
    pub fn from_number(number: i16) -> Option<PromotionStatus> {
        PromotionStatus::ALL.into_iter().find(|status| status.number() == number)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            PromotionStatus::Active => "ACTIVE",
            PromotionStatus::Stopped => "STOPPED",
        }
    }

    /// The status with this name.
    pub fn from_name(name: &str) -> Option<PromotionStatus> {
        PromotionStatus::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// A promotion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Its name.
    pub name: String,
    /// The asset of its orders and its bonuses.
    pub asset: AssetId,
    /// The smallest order, smallest units.
    pub min_amount: Amount,
    /// How large a bonus is.
    pub bonus: BonusTerms,
    /// The most orders of one user that have a bonus, or had one.
    pub per_user_max: u32,
    /// The first time of an order.
    pub starts_at: Timestamp,
    /// Orders from then on have no bonus.
    pub ends_at: Timestamp,
    /// Whether it gives new bonuses.
    pub status: PromotionStatus,
    /// The money that is neither reserved nor given, smallest units.
    pub available: u64,
}

/// An order that asks for the bonus of a promotion.
#[derive(Clone, Copy, Debug)]
pub struct PromotionAsk {
    /// The owner.
    pub user: UserId,
    /// Its asset.
    pub asset: AssetId,
    /// Its amount.
    pub amount: Amount,
    /// Orders of the user with a reserved or a given bonus of this promotion.
    pub used: u64,
    /// The time.
    pub now: Timestamp,
}

/// Why an order gets no bonus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotApplicable {
    /// It does not exist.
    #[error("there is none of this name")]
    Unknown,
    /// An operator has stopped it.
    #[error("it is stopped")]
    Stopped,
    /// It begins later.
    #[error("it has not begun")]
    NotBegun,
    /// Its time has passed.
    #[error("it is over")]
    Over,
    /// The order is of another asset.
    #[error("it is for another asset")]
    Asset,
    /// The amount is below its minimum.
    #[error("the amount is below its minimum")]
    BelowMinimum,
    /// The bonus would be less than the smallest unit.
    #[error("the amount is too small for a bonus")]
    TooSmall,
    /// The user has had as many bonuses as one may have.
    #[error("this user has used it up")]
    UsedUp,
    /// Its money does not suffice for this bonus.
    #[error("it has no money left for this bonus")]
    Empty,
}

impl Promotion {
    /// The bonus of an order, or why there is none.
    ///
    /// # Errors
    /// [`NotApplicable`]: the first reason that fits.
    pub fn applies(&self, ask: &PromotionAsk) -> Result<Amount, NotApplicable> {
        if self.status != PromotionStatus::Active {
            return Err(NotApplicable::Stopped);
        }
        if ask.now < self.starts_at {
            return Err(NotApplicable::NotBegun);
        }
        if ask.now >= self.ends_at {
            return Err(NotApplicable::Over);
        }
        if ask.asset != self.asset {
            return Err(NotApplicable::Asset);
        }
        if ask.amount < self.min_amount {
            return Err(NotApplicable::BelowMinimum);
        }
        let bonus = self.bonus.of(ask.amount).ok_or(NotApplicable::TooSmall)?;
        if ask.used >= u64::from(self.per_user_max) {
            return Err(NotApplicable::UsedUp);
        }
        if bonus.units() > self.available {
            return Err(NotApplicable::Empty);
        }
        Ok(bonus)
    }

    /// Whether its money does not suffice for one more bonus of the largest size.
    pub fn is_low(&self) -> bool {
        self.status == PromotionStatus::Active && self.available < self.bonus.max().units()
    }
}

/// The part of a bonus that goes back when `gone` of `amount` have gone back, rounded up.
pub fn bonus_share(bonus: u64, gone: u64, amount: Amount) -> u64 {
    let whole = u128::from(amount.units());
    let share = (u128::from(bonus) * u128::from(min(gone, amount.units()))).div_ceil(whole);
    u64::try_from(share).unwrap_or(u64::MAX).min(UNITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(units: u64) -> Amount {
        Amount::new(units).expect("not zero")
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn promotion() -> Promotion {
        Promotion {
            name: "spring".to_owned(),
            asset: AssetId(6),
            min_amount: units(100),
            bonus: BonusTerms::Part { basis_points: 333, max: units(50) },
            per_user_max: 2,
            starts_at: at(1_000),
            ends_at: at(2_000),
            status: PromotionStatus::Active,
            available: 40,
        }
    }

    fn ask(amount: u64) -> PromotionAsk {
        let user = UserId::new(7).expect("an id");
        PromotionAsk { user, asset: AssetId(6), amount: units(amount), used: 0, now: at(1_500) }
    }

    /// Goal: a bonus is floored to the smallest unit, never above its maximum, and never wraps.
    #[test]
    fn rch_028_a_bonus_is_exact_to_the_unit() {
        let part = |basis_points, max, amount| {
            let terms = BonusTerms::Part { basis_points, max: units(max) };
            terms.of(units(amount)).map(Amount::units)
        };
        assert_eq!(part(333, 50, 100), Some(3));
        assert_eq!(part(333, 50, 1_000), Some(33));
        assert_eq!(part(333, 50, 10_000), Some(50));
        assert_eq!(part(1, 50, 9_999), None);
        assert_eq!(part(1, 50, 10_000), Some(1));
        assert_eq!(part(1_000_000, UNITS_MAX, UNITS_MAX), Some(UNITS_MAX));
        assert_eq!(BonusTerms::Fixed(units(9)).of(units(1)), Some(units(9)));
    }

    /// Goal: each reason for no bonus has its name, the first one that fits.
    #[test]
    fn rch_028_each_refusal_has_its_reason() {
        use NotApplicable::{
            Asset, BelowMinimum, Empty, NotBegun, Over, Stopped, TooSmall, UsedUp,
        };
        let promotion = promotion();
        assert_eq!(promotion.applies(&ask(1_000)), Ok(units(33)));
        let stopped = Promotion { status: PromotionStatus::Stopped, ..promotion.clone() };
        assert_eq!(stopped.applies(&ask(1)), Err(Stopped));
        let says = |ask: PromotionAsk| promotion.applies(&ask).expect_err("a reason");
        assert_eq!(says(PromotionAsk { now: at(999), ..ask(1_000) }), NotBegun);
        assert_eq!(says(PromotionAsk { now: at(2_000), ..ask(1_000) }), Over);
        assert_eq!(says(PromotionAsk { asset: AssetId(3), ..ask(1_000) }), Asset);
        assert_eq!(says(ask(99)), BelowMinimum);
        assert_eq!(says(PromotionAsk { used: 2, ..ask(1_000) }), UsedUp);
        assert_eq!(says(ask(10_000)), Empty);
        let small = Promotion { min_amount: units(1), ..promotion.clone() };
        assert_eq!(small.applies(&ask(30)), Err(TooSmall));
        let first = promotion.applies(&PromotionAsk { now: at(1_000), ..ask(1_000) });
        assert_eq!(first, Ok(units(33)));
    }

    /// Goal: parts that go back one by one take all of a bonus and no more, rounded up.
    #[test]
    fn rch_031_a_bonus_goes_back_in_proportion_rounded_up() {
        let share = |gone| bonus_share(10, gone, units(30));
        assert_eq!([0, 1, 10, 11, 29, 30, 99].map(share), [0, 1, 4, 4, 10, 10, 10]);
        assert_eq!(bonus_share(UNITS_MAX, UNITS_MAX, units(UNITS_MAX)), UNITS_MAX);
        for name in ["a", "spring-2026", "0123456789abcdef"] {
            assert!(is_promotion_name(name), "{name}");
        }
        for name in ["", "Spring", "a.b", "a/b", "0123456789abcdefg", "é"] {
            assert!(!is_promotion_name(name), "{name}");
        }
    }
}
