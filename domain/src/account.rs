//! Users and their accounts.

use std::fmt;

/// The largest user id: PostgreSQL's BIGINT holds no more.
pub const USER_ID_MAX: u64 = i64::MAX as u64;

/// A user: 1..=2^63-1, as PostgreSQL stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId(u64);

impl UserId {
    /// The user with this number, `None` outside 1..=2^63-1.
    #[inline]
    pub fn new(number: u64) -> Option<UserId> {
        (number >= 1 && i64::try_from(number).is_ok()).then_some(UserId(number))
    }

    /// The number.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The number as PostgreSQL's BIGINT.
    pub fn bigint(self) -> i64 {
        i64::try_from(self.0).expect("checked by new")
    }
}

impl fmt::Display for UserId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A kind of account. FUTURE and MARGIN are known by name only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum AccountType {
    /// In PostgreSQL.
    Funding = 1,
    /// In UBSCore.
    Spot = 2,
    /// Not supported yet.
    Future = 3,
    /// Not supported yet.
    Margin = 4,
}

impl AccountType {
    /// The type with this name on the wire.
    pub fn from_name(name: &str) -> Option<AccountType> {
        match name {
            "FUNDING" => Some(AccountType::Funding),
            "SPOT" => Some(AccountType::Spot),
            "FUTURE" => Some(AccountType::Future),
            "MARGIN" => Some(AccountType::Margin),
            _ => None,
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AccountType::Funding => "FUNDING",
            AccountType::Spot => "SPOT",
            AccountType::Future => "FUTURE",
            AccountType::Margin => "MARGIN",
        }
    }
}

/// The operations that an account accepts. The number is what PostgreSQL and the log store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AccountStatus {
    /// Everything.
    Active = 1,
    /// Accepts deposits and refunds, refuses withdrawals.
    Frozen = 2,
    /// Accepts refunds only.
    Disabled = 3,
}

impl AccountStatus {
    /// The status with this number.
    pub fn from_number(number: u8) -> Option<AccountStatus> {
        match number {
            1 => Some(AccountStatus::Active),
            2 => Some(AccountStatus::Frozen),
            3 => Some(AccountStatus::Disabled),
            _ => None,
        }
    }

    /// The status with this name on the wire.
    pub fn from_name(name: &str) -> Option<AccountStatus> {
        match name {
            "ACTIVE" => Some(AccountStatus::Active),
            "FROZEN" => Some(AccountStatus::Frozen),
            "DISABLED" => Some(AccountStatus::Disabled),
            _ => None,
        }
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            AccountStatus::Active => "ACTIVE",
            AccountStatus::Frozen => "FROZEN",
            AccountStatus::Disabled => "DISABLED",
        }
    }
}
