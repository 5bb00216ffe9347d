//! Movements: every unit that a recharge moves has a debit and a credit account.

use std::fmt;

use jiff::civil::Date;

use super::returned::ReceivableEnd;
use super::{PaymentId, RechargeId, ReturnId};
use domain::account::UserId;
use domain::amount::Amount;
use domain::asset::AssetId;
use domain::hold::HoldKey;

/// The beginning of the key of a hold of a refund.
pub const RETURN_HOLD: &str = "return:";
/// The same of the bonus that goes with it.
pub const BONUS_HOLD: &str = "bonus:";

/// The longest key of a movement, bytes.
const KEY_BYTES_MAX: usize = 64;

/// An account of recharges. None has a balance row: credits share no hot row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerAccount {
    /// The Funding account of a user.
    User(UserId),
    /// The debt of a channel to us.
    Clearing(String),
    /// Money that a channel has brought, without an owner yet.
    Suspense(String),
    /// Money that users owe because a channel has taken it.
    Receivable(String),
    /// Money of a channel that is lost.
    Loss(String),
    /// The fees of a channel.
    Fees(String),
    /// Money of a channel that has reached the bank.
    Bank(String),
    /// A promotion.
    Promotion(String),
    /// Not ours.
    Outside,
}

impl fmt::Display for LedgerAccount {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LedgerAccount::User(user) => write!(out, "user/{user}"),
            LedgerAccount::Clearing(channel) => write!(out, "{channel}/clearing"),
            LedgerAccount::Suspense(channel) => write!(out, "{channel}/suspense"),
            LedgerAccount::Receivable(channel) => write!(out, "{channel}/receivable"),
            LedgerAccount::Loss(channel) => write!(out, "{channel}/loss"),
            LedgerAccount::Fees(channel) => write!(out, "{channel}/fees"),
            LedgerAccount::Bank(channel) => write!(out, "{channel}/bank"),
            LedgerAccount::Promotion(name) => write!(out, "promotion/{name}"),
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
    /// From a user, back through the channel.
    Refund = 5,
    /// Taken by the channel: from a user, or out of suspense.
    Taken = 6,
    /// Taken by the channel, and the user did not have it.
    Short = 7,
    /// Given back by the channel: to a user, or into suspense.
    GivenBack = 8,
    /// Given back by the channel: it closes a receivable.
    Closed = 9,
    /// A user has paid a receivable.
    Recovered = 10,
    /// A receivable is given up.
    WrittenOff = 11,
    /// The channel has moved money of a payment that has no owner here any more.
    Loss = 12,
    /// Out of a promotion, to a user.
    Bonus = 13,
    /// A bonus that goes with a refund, or with taken money.
    BonusBack = 14,
    /// Into a promotion, or out of it again.
    Funded = 15,
    /// The fees of a channel for one day.
    Fees = 16,
    /// Money of a channel that has reached the bank.
    Bank = 17,
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

/// The key of the bonus of an order.
pub fn recharge_bonus(id: RechargeId) -> String {
    format!("recharge/{}/bonus", id.ulid())
}

/// The key of the part of a bonus that goes with a return.
pub fn return_bonus(id: ReturnId) -> String {
    format!("return/{}/bonus", id.ulid())
}

/// The key of money that an operator puts into a promotion.
pub fn funded(idem_key: &str) -> String {
    format!("fund/{idem_key}")
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

/// The key of the part of a refused refund that the channel has taken meanwhile.
pub fn return_taken(id: ReturnId) -> String {
    format!("return/{}/taken", id.ulid())
}

/// The key of the part of a taking that its user did not have.
pub fn return_short(id: ReturnId) -> String {
    format!("return/{}/short", id.ulid())
}

/// The key of the part of a return that no user and no suspense stands for.
pub fn return_loss(id: ReturnId) -> String {
    format!("return/{}/loss", id.ulid())
}

/// The key of a part that is given back and closes a receivable, from 1.
pub fn return_closed(id: ReturnId, number: usize) -> String {
    format!("return/{}/receivable/{number}", id.ulid())
}

/// The key of an act on the receivable of a return, from 1.
pub fn receivable_act(id: ReturnId, end: ReceivableEnd, number: usize) -> String {
    let what = if end == ReceivableEnd::WrittenOff { "write-off" } else { "recover" };
    format!("return/{}/{what}/{number}", id.ulid())
}

/// The key of the fees of a channel for one day.
pub fn fees_key(channel: &str, day: Date) -> String {
    format!("fees/{channel}/{day}")
}

/// The key of money that has reached the bank; `None`: an operator's key is too long for it.
pub fn bank_key(idem_key: &str) -> Option<String> {
    let key = format!("bank/{idem_key}");
    (key.len() <= KEY_BYTES_MAX).then_some(key)
}

/// The hold of the bonus that goes with a refund.
pub fn bonus_hold(id: ReturnId, user: UserId, asset: AssetId) -> HoldKey {
    let key = format!("{BONUS_HOLD}{}:{user}:{}", id.ulid(), asset.0);
    HoldKey::new(&key).expect("6 + 26 + 20 + 11 characters of letters, digits and colons")
}

/// The hold of a refund. A key of a hold has no `/`.
pub fn return_hold(id: ReturnId, user: UserId, asset: AssetId) -> HoldKey {
    let key = format!("{RETURN_HOLD}{}:{user}:{}", id.ulid(), asset.0);
    HoldKey::new(&key).expect("7 + 26 + 20 + 11 characters of letters, digits and colons")
}
