//! Movements: every unit that a recharge moves has a debit and a credit account.

use std::fmt;

use super::{PaymentId, RechargeId, ReturnId};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;

/// An account of recharges. None has a balance row: credits share no hot row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerAccount {
    /// The Funding account of a user.
    User(UserId),
    /// The debt of a channel to us.
    Clearing(String),
    /// Money that a channel has brought, without an owner yet.
    Suspense(String),
    /// Not ours.
    Outside,
}

impl fmt::Display for LedgerAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerAccount::User(user) => write!(out, "user/{user}"),
            LedgerAccount::Clearing(channel) => write!(out, "{channel}/clearing"),
            LedgerAccount::Suspense(channel) => write!(out, "{channel}/suspense"),
            LedgerAccount::Outside => out.write_str("outside"),
        }
    }
}

/// Why money moved. PostgreSQL stores the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum MovementKind {
    /// To a user.
    Credit = 1,
    /// Into suspense.
    Suspense = 2,
    /// Out of suspense: it is not ours.
    Dismiss = 3,
    /// Out of suspense, back through the channel.
    Return = 4,
}

impl MovementKind {
    /// The number that PostgreSQL stores.
    pub fn number(self) -> i16 {
        self as i16
    }
}

/// One movement. A row is written once and stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RechargeMovement {
    /// Its key: also that of the external operation, if one side is a user's.
    pub key: String,
    /// Why.
    pub kind: MovementKind,
    /// Where it came from.
    pub debit: LedgerAccount,
    /// Where it went.
    pub credit: LedgerAccount,
    /// The asset.
    pub asset: AssetId,
    /// How much.
    pub amount: Amount,
    /// The order, if there is one.
    pub recharge: Option<RechargeId>,
    /// The payment.
    pub payment: PaymentId,
}

/// The key of the credit that makes an order PAID.
pub fn recharge_credit(id: RechargeId) -> String {
    format!("recharge/{}/credit", id.ulid())
}

/// The key of any other credit.
pub fn payment_credit(id: PaymentId) -> String {
    format!("payment/{}/credit", id.ulid())
}

/// The key of the movement into suspense.
pub fn payment_suspense(id: PaymentId) -> String {
    format!("payment/{}/suspense", id.ulid())
}

/// The key of the movement out of suspense that is not ours.
pub fn payment_dismiss(id: PaymentId) -> String {
    format!("payment/{}/dismiss", id.ulid())
}

/// The key of a return.
pub fn return_key(id: ReturnId) -> String {
    format!("return/{}", id.ulid())
}
