//! Holds of Funding: money of one user and one asset that is set apart under a key.
//!
//! A hold takes from one place, gives back to it, and brings there: the available balance, or the
//! freeze of one purpose. All freezes of a user, asset and purpose are one amount. `frozen` of a
//! balance is the sum of its freezes and of its open holds.
//!
//! ```text
//!   none --Set--> HELD --Settle--> SETTLED
//!     |            |  `--Set--> HELD (a later round)
//!     |            `--Release--> RELEASED
//!     |--Settle--> SETTLED (only brings)
//!     `--Release--> RELEASED (empty: it shuts the door for a late Set)
//! ```
//!
//! [`decide`] is the one rule. It decides an act on the hold that is recorded, and on the account.
//! A decision is recorded with its effect, so a repeat is told the same. An end is always possible:
//! neither Settle nor Release is ever refused, in any state of the account.

use std::fmt;

use crate::account::{AccountStatus, UserId};
use crate::amount::UNITS_MAX;
use crate::asset::AssetId;
use crate::code::Code;
use crate::transfer::{Decision, Op, Participant};

/// The longest key, bytes.
pub const HOLD_KEY_BYTES_MAX: usize = 96;

/// The key of a hold, 1..=[`HOLD_KEY_BYTES_MAX`] bytes of `[A-Za-z0-9:._-]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldKey(String);

impl HoldKey {
    /// The key with this text, `None` when it is not one.
    pub fn new(text: &str) -> Option<HoldKey> {
        let sane = |b: u8| b.is_ascii_alphanumeric() || b":._-".contains(&b);
        ((1..=HOLD_KEY_BYTES_MAX).contains(&text.len()) && text.bytes().all(sane))
            .then(|| HoldKey(text.to_owned()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the external operation for the money that the Settle of this hold brings from
    /// outside. No request can have it: it has slashes.
    pub fn deposit(&self) -> String {
        format!("tx/{}/in", self.0)
    }

    /// The same for the money that it takes there.
    pub fn withdrawal(&self) -> String {
        format!("tx/{}/out", self.0)
    }

    /// The hold with an external operation of this key, `None` if it is none of a hold.
    pub fn of_external(idem_key: &str) -> Option<HoldKey> {
        let inner = idem_key.strip_prefix("tx/")?;
        HoldKey::new(inner.strip_suffix("/in").or_else(|| inner.strip_suffix("/out"))?)
    }
}

impl fmt::Display for HoldKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// Where a hold stands. The number is `state` in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum HoldState {
    /// Its amount is apart.
    Held = 10,
    /// The amount was taken, and another one may have come. Final.
    Settled = 40,
    /// The amount was given back. Final.
    Released = -20,
}

impl HoldState {
    /// The state with this number.
    pub fn from_number(number: i16) -> Option<HoldState> {
        match number {
            10 => Some(HoldState::Held),
            40 => Some(HoldState::Settled),
            -20 => Some(HoldState::Released),
            _ => None,
        }
    }

    /// The number in PostgreSQL.
    pub fn number(self) -> i16 {
        self as i16
    }
}

/// An act on a hold. Amounts are smallest units, at most [`UNITS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldAct {
    /// The hold is to have `amount` apart in all, so a repeat adds nothing.
    Set {
        /// Rises with each later Set of this hold.
        round: u8,
        /// In all. 0 is allowed: only the account is checked then.
        amount: u64,
        /// An increase needs the status of a payer: that of a WITHDRAW.
        pays: bool,
        /// The account needs the status of a payee, that of a DEPOSIT, unless the amount is
        /// lowered.
        paid: bool,
    },
    /// The amount apart leaves the user, and `brought` comes. Never refused.
    ///
    /// The amount apart is `taken + withdrawn - passed`; 0 without a hold. `brought + deposited -
    /// passed` is added to the available balance. Money from or to the outside of both stores is an
    /// external operation of its own.
    Settle {
        /// Leaves for other places. Of a special place it is any amount.
        taken: u64,
        /// Comes from other places. It makes a missing account, as an EXT_DEPOSIT does.
        brought: u64,
        /// Comes from outside: an EXT_DEPOSIT, see [`HoldKey::deposit`].
        deposited: u64,
        /// Leaves for the outside: an EXT_WITHDRAW, see [`HoldKey::withdrawal`].
        withdrawn: u64,
        /// The part of `taken` and `withdrawn` that comes by this Settle, and was never apart.
        passed: u64,
    },
    /// The amount apart is available again. Never refused.
    Release,
}

impl HoldAct {
    /// A Settle without money from or to the outside.
    pub fn settle(taken: u64, brought: u64) -> HoldAct {
        HoldAct::Settle { taken, brought, deposited: 0, withdrawn: 0, passed: 0 }
    }

    /// What a Settle brings from outside and takes there, smallest units; 0 for any other act.
    pub fn outside(self) -> (u64, u64) {
        match self {
            HoldAct::Settle { deposited, withdrawn, .. } => (deposited, withdrawn),
            HoldAct::Set { .. } | HoldAct::Release => (0, 0),
        }
    }

    /// Its number in the journal.
    pub fn number(self) -> u8 {
        match self {
            HoldAct::Set { .. } => 1,
            HoldAct::Settle { .. } => 2,
            HoldAct::Release => 3,
        }
    }

    /// The name of the act with this number, `None` if there is none.
    pub fn name_of(number: u8) -> Option<&'static str> {
        match number {
            1 => Some("SET"),
            2 => Some("SETTLE"),
            3 => Some("RELEASE"),
            _ => None,
        }
    }

    /// Whether every amount fits the columns of PostgreSQL.
    pub fn fits(self) -> bool {
        match self {
            HoldAct::Set { amount, .. } => amount <= UNITS_MAX,
            HoldAct::Settle { taken, brought, deposited, withdrawn, passed } => {
                [taken, brought, deposited, withdrawn, passed].iter().all(|sum| *sum <= UNITS_MAX)
            }
            HoldAct::Release => true,
        }
    }
}

/// An act on the hold with this key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldOrder {
    /// The hold.
    pub key: HoldKey,
    /// The number of the transaction that the hold belongs to. The watermark waits for it.
    pub order_number: u64,
    /// The owner of the money.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// Its place: the freeze of this purpose, 0 for the available balance.
    pub purpose: u16,
    /// Its place is special: nothing is apart, and a Settle may take the balance below zero.
    pub special: bool,
    /// The act.
    pub act: HoldAct,
    /// Order numbers for the deposit and the withdrawal of a Settle, see [`HoldAct::outside`].
    /// Given by the worker; 0 before.
    pub outside_numbers: [u64; 2],
}

/// A hold as it is recorded. Amounts are smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// See [`HoldOrder::order_number`].
    pub order_number: u64,
    /// The owner of the money.
    pub user: UserId,
    /// Of what.
    pub asset: AssetId,
    /// See [`HoldOrder::purpose`].
    pub purpose: u16,
    /// See [`HoldOrder::special`].
    pub special: bool,
    /// Where it stands.
    pub state: HoldState,
    /// The amount that is apart, or was at its end.
    pub amount: u64,
    /// The newest round that was decided, 0: none.
    pub round: u8,
    /// The amount that this round asked for.
    pub asked: u64,
    /// See [`HoldAct::Set`], of this round.
    pub pays: bool,
    /// See [`HoldAct::Set`], of this round.
    pub paid: bool,
    /// Why this round was refused.
    pub round_code: Option<Code>,
    /// What its Settle took.
    pub taken: u64,
    /// What its Settle brought.
    pub brought: u64,
    /// What its Settle brought from outside. 0 in a hold that a version before V11 settled: there
    /// `brought` has it, and `taken` has the other.
    pub deposited: u64,
    /// What its Settle took there.
    pub withdrawn: u64,
}

impl Hold {
    /// The hold before its first act.
    pub fn new(order: &HoldOrder) -> Hold {
        Hold {
            order_number: order.order_number,
            user: order.user,
            asset: order.asset,
            purpose: order.purpose,
            special: order.special,
            state: HoldState::Held,
            amount: 0,
            round: 0,
            asked: 0,
            pays: false,
            paid: false,
            round_code: None,
            taken: 0,
            brought: 0,
            deposited: 0,
            withdrawn: 0,
        }
    }

    /// The part of `frozen` that is this hold, smallest units.
    pub fn apart(&self) -> u64 {
        if self.state == HoldState::Held { self.amount } else { 0 }
    }

    /// The change of the user's sum, available and frozen, by this hold so far, without its
    /// external operations.
    pub fn effect(&self) -> i128 {
        i128::from(self.brought) - i128::from(self.taken)
    }
}

/// The account of the user, and the place of the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldAccount {
    /// `None`: there is no account.
    pub status: Option<AccountStatus>,
    /// The available balance, 0 if it is below zero, or the freeze of the hold's purpose, smallest
    /// units.
    pub available: u128,
}

/// The decision of an act, and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldDecided {
    /// Nothing changes: it was decided before, or comes too late to be recorded.
    Told(Decision),
    /// The hold is recorded as `hold`. The changes leave out the external operations of a Settle:
    /// its deposit comes before them, its withdrawal behind.
    Recorded {
        /// The decision.
        decision: Decision,
        /// The hold behind the act.
        hold: Hold,
        /// The change of the available balance, smallest units.
        available: i128,
        /// The change of the freeze of the hold's purpose, smallest units.
        freeze: i128,
        /// The change of the frozen balance, the freeze included, smallest units.
        frozen: i128,
        /// The act makes the missing account.
        opens: bool,
    },
}

/// An act that breaks the rules of holds. Nothing of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldViolation {
    /// The key belongs to another transaction, user, asset, purpose or kind of place.
    #[error("the key belongs to another transaction, user, asset, purpose or kind of place")]
    Foreign,
    /// The round was decided with another amount, or another side.
    #[error("the round was decided with another body")]
    OtherRound,
    /// Another amount is apart than is to be taken.
    #[error("another amount is apart than is to be taken")]
    OtherAmount,
    /// It was settled with other amounts.
    #[error("the hold was settled with other amounts")]
    OtherSettle,
    /// A Settle behind a Release.
    #[error("the hold was released, and cannot be settled")]
    IsReleased,
    /// A Release behind a Settle.
    #[error("the hold was settled, and cannot be released")]
    IsSettled,
    /// Something of a special place is to be apart, or it has a purpose.
    #[error("a special place has nothing apart, and no purpose")]
    Special,
    /// Money that passes through a place does not come, or a purpose meets the outside.
    #[error("the amounts of the settle do not fit each other")]
    Amounts,
    /// An amount is above [`UNITS_MAX`].
    #[error("an amount is too large")]
    Range,
}

/// Decides an act. `hold`: as it is recorded; `None`: there is none.
///
/// # Errors
/// [`HoldViolation`]: the caller breaks the rules, and nothing may be done.
pub fn decide(
    hold: Option<&Hold>,
    order: &HoldOrder,
    holder: HoldAccount,
) -> Result<HoldDecided, HoldViolation> {
    if !order.act.fits() {
        return Err(HoldViolation::Range);
    }
    let apart = matches!(order.act, HoldAct::Set { amount: 1.., .. });
    if order.special && (apart || order.purpose != 0) {
        return Err(HoldViolation::Special);
    }
    let same = |hold: &Hold| {
        let of_order = (order.order_number, order.user, order.asset, order.purpose, order.special);
        (hold.order_number, hold.user, hold.asset, hold.purpose, hold.special) == of_order
    };
    if hold.is_some_and(|hold| !same(hold)) {
        return Err(HoldViolation::Foreign);
    }
    let stands = hold.copied().unwrap_or_else(|| Hold::new(order));
    let recorded = |hold: Hold, place: i128| {
        let apart = i128::from(hold.apart()) - i128::from(stands.apart());
        changed(Decision::Success, hold, place, apart)
    };
    match (order.act, stands.state) {
        (HoldAct::Set { .. }, HoldState::Settled | HoldState::Released) => {
            Ok(HoldDecided::Told(Decision::Refused(Code::TransactionAborted)))
        }
        (HoldAct::Set { round, amount, pays, paid }, HoldState::Held) => {
            set(hold, stands, (round, amount, pays, paid), holder)
        }
        (HoldAct::Settle { .. }, HoldState::Held) => settle(stands, order, holder),
        (HoldAct::Settle { .. }, HoldState::Settled) => match is_settled_as(&stands, order.act) {
            true => Ok(HoldDecided::Told(Decision::Success)),
            false => Err(HoldViolation::OtherSettle),
        },
        (HoldAct::Settle { .. }, HoldState::Released) => Err(HoldViolation::IsReleased),
        (HoldAct::Release, HoldState::Held) => {
            let back = i128::from(stands.amount);
            Ok(recorded(Hold { state: HoldState::Released, ..stands }, back))
        }
        (HoldAct::Release, HoldState::Released) => Ok(HoldDecided::Told(Decision::Success)),
        (HoldAct::Release, HoldState::Settled) => Err(HoldViolation::IsSettled),
    }
}

/// Decides a Settle of a hold that has no end.
fn settle(
    stands: Hold,
    order: &HoldOrder,
    holder: HoldAccount,
) -> Result<HoldDecided, HoldViolation> {
    let HoldAct::Settle { taken, brought, deposited, withdrawn, passed } = order.act else {
        unreachable!("the caller has a Settle")
    };
    let sum = |one: u64, other: u64| u128::from(one) + u128::from(other);
    // What a special place pays was not apart.
    if !order.special && sum(taken, withdrawn) != sum(stands.amount, passed) {
        return Err(HoldViolation::OtherAmount);
    }
    let outside = (deposited, withdrawn) != (0, 0);
    let only_outside = order.purpose == 0 || !outside;
    let may_pass = outside && !order.special;
    let passes = u128::from(passed) <= sum(brought, deposited) && (may_pass || passed == 0);
    if !only_outside || !passes {
        return Err(HoldViolation::Amounts);
    }
    let state = HoldState::Settled;
    let hold = Hold { state, taken, brought, deposited, withdrawn, ..stands };
    let apart = i128::from(stands.amount);
    let place = i128::from(brought) - i128::from(taken) + apart;
    let mut decided = changed(Decision::Success, hold, place, -apart);
    if let HoldDecided::Recorded { opens, .. } = &mut decided {
        *opens = sum(brought, deposited) > 0 && holder.status.is_none();
    }
    Ok(decided)
}

/// Whether a hold was settled by this act. An earlier version has settled it without telling the
/// outside apart: then the sums of both are the same.
fn is_settled_as(hold: &Hold, act: HoldAct) -> bool {
    let HoldAct::Settle { taken, brought, deposited, withdrawn, passed } = act else {
        return false;
    };
    let here = (hold.taken, hold.brought, hold.deposited, hold.withdrawn);
    let before = |here: u64, one: u64, other: u64| {
        u128::from(here) + u128::from(passed) == u128::from(one) + u128::from(other)
    };
    here == (taken, brought, deposited, withdrawn)
        || (hold.deposited, hold.withdrawn) == (0, 0)
            && before(hold.taken, taken, withdrawn)
            && before(hold.brought, brought, deposited)
}

/// `place`: the change of the place of the hold, `apart`: of the amount apart.
fn changed(decision: Decision, hold: Hold, place: i128, apart: i128) -> HoldDecided {
    let (available, freeze) = if hold.purpose == 0 { (place, 0) } else { (0, place) };
    let frozen = freeze + apart;
    HoldDecided::Recorded { decision, hold, available, freeze, frozen, opens: false }
}

/// The decision that is recorded for an act, without a look at the account. `None`: the act is not
/// decided yet.
///
/// # Errors
/// [`HoldViolation`]: the caller breaks the rules.
pub fn recorded(hold: &Hold, order: &HoldOrder) -> Result<Option<Decision>, HoldViolation> {
    let holder = HoldAccount { status: None, available: 0 };
    Ok(match decide(Some(hold), order, holder)? {
        HoldDecided::Told(decision) => Some(decision),
        HoldDecided::Recorded { .. } => None,
    })
}

/// Decides a round of a hold that has no end.
fn set(
    hold: Option<&Hold>,
    stands: Hold,
    (round, amount, pays, paid): (u8, u64, bool, bool),
    holder: HoldAccount,
) -> Result<HoldDecided, HoldViolation> {
    if hold.is_some() && round < stands.round {
        return Ok(HoldDecided::Told(Decision::Refused(Code::TransactionDecided)));
    }
    if hold.is_some() && round == stands.round {
        let same = (stands.asked, stands.pays, stands.paid) == (amount, pays, paid);
        let decision = stands.round_code.map_or(Decision::Success, Decision::Refused);
        return if same { Ok(HoldDecided::Told(decision)) } else { Err(HoldViolation::OtherRound) };
    }
    let more = amount.saturating_sub(stands.amount);
    let less = amount < stands.amount;
    let code = refusal(more, less, &stands, (pays, paid), holder);
    let held = if code.is_none() { amount } else { stands.amount };
    let change = i128::from(held) - i128::from(stands.amount);
    let round_of = Hold { round, asked: amount, pays, paid, round_code: code, ..stands };
    let decision = code.map_or(Decision::Success, Decision::Refused);
    Ok(changed(decision, Hold { amount: held, ..round_of }, -change, change))
}

/// Why a round is refused. `more`: the increase. `less`: whether the amount is lowered, which is
/// always possible. A special place needs its statuses, and no balance.
fn refusal(
    more: u64,
    less: bool,
    hold: &Hold,
    (pays, paid): (bool, bool),
    holder: HoldAccount,
) -> Option<Code> {
    if less {
        return None;
    }
    let enough = holder.available >= u128::from(more);
    let payer = match pays && (more > 0 || hold.special) {
        true => Op::Withdraw.verdict(Participant::Funding, holder.status, true).err(),
        false => None,
    };
    let payee = match paid {
        true => Op::Deposit.verdict(Participant::Funding, holder.status, true).err(),
        false => None,
    };
    let short = match hold.purpose {
        0 => Code::InsufficientBalance,
        _ => Code::InsufficientFrozen,
    };
    payer.or(payee).or((!enough).then_some(short))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ACTIVE: HoldAccount = HoldAccount { status: Some(AccountStatus::Active), available: 100 };

    fn order(act: HoldAct) -> HoldOrder {
        HoldOrder {
            key: HoldKey::new("01K:7:3").expect("a key"),
            order_number: 9,
            user: UserId::new(7).expect("a user"),
            asset: AssetId(3),
            purpose: 0,
            special: false,
            act,
            outside_numbers: [0, 0],
        }
    }

    fn set(round: u8, amount: u64) -> HoldAct {
        HoldAct::Set { round, amount, pays: true, paid: false }
    }

    fn settle(taken: u64, brought: u64) -> HoldAct {
        HoldAct::settle(taken, brought)
    }

    /// The hold behind these acts, each on the same account.
    fn behind(acts: &[HoldAct], holder: HoldAccount) -> Option<Hold> {
        acts.iter().fold(None, |hold, act| {
            match decide(hold.as_ref(), &order(*act), holder).expect("within the rules") {
                HoldDecided::Told(_) => hold,
                HoldDecided::Recorded { hold, .. } => Some(hold),
            }
        })
    }

    #[test]
    fn a_key_is_checked() {
        for good in ["a", "01KABC:12:3", "a.b_c-d", &"x".repeat(96)] {
            assert!(HoldKey::new(good).is_some(), "{good}");
        }
        for bad in ["", "a b", "ä", "a/b", &"x".repeat(97)] {
            assert!(HoldKey::new(bad).is_none(), "{bad}");
        }
    }

    /// Goal: every passage and every refusal of the table. Each row: the acts before, the act, its
    /// answer, the change of available and frozen.
    #[test]
    fn acts_are_decided_by_the_table() {
        use Decision::{Refused, Success};
        type Case<'a> = (&'a [HoldAct], HoldAct, bool, Decision, i128, i128);
        let (done, told) = (true, false);
        let rows: &[Case] = &[
            (&[], set(1, 60), done, Success, -60, 60),
            (&[], set(1, 101), done, Refused(Code::InsufficientBalance), 0, 0),
            (&[], set(1, 0), done, Success, 0, 0),
            (&[set(1, 60)], set(1, 60), told, Success, 0, 0),
            (&[set(1, 101)], set(1, 101), told, Refused(Code::InsufficientBalance), 0, 0),
            (&[set(1, 60)], set(3, 70), done, Success, -10, 10),
            (&[set(1, 60)], set(3, 160), done, Success, -100, 100),
            (&[set(1, 60)], set(3, 161), done, Refused(Code::InsufficientBalance), 0, 0),
            (&[set(1, 60)], set(2, 20), done, Success, 40, -40),
            (&[set(3, 60)], set(2, 20), told, Refused(Code::TransactionDecided), 0, 0),
            (&[set(1, 60)], settle(60, 0), done, Success, 0, -60),
            (&[set(1, 60)], settle(60, 5), done, Success, 5, -60),
            (&[], settle(0, 5), done, Success, 5, 0),
            (&[set(1, 60), settle(60, 5)], settle(60, 5), told, Success, 0, 0),
            (&[set(1, 60)], HoldAct::Release, done, Success, 60, -60),
            (&[], HoldAct::Release, done, Success, 0, 0),
            (&[HoldAct::Release], HoldAct::Release, told, Success, 0, 0),
            (&[HoldAct::Release], set(1, 1), told, Refused(Code::TransactionAborted), 0, 0),
            (&[settle(0, 1)], set(1, 1), told, Refused(Code::TransactionAborted), 0, 0),
        ];
        for (before, act, is_done, decision, available, frozen) in rows {
            let hold = behind(before, ACTIVE);
            let decided = decide(hold.as_ref(), &order(*act), ACTIVE).expect("within the rules");
            let (found, changes, recorded) = match decided {
                HoldDecided::Told(decision) => (decision, (0, 0), false),
                HoldDecided::Recorded { decision, available, frozen, .. } => {
                    (decision, (available, frozen), true)
                }
            };
            let want = (*decision, (*available, *frozen), *is_done);
            assert_eq!((found, changes, recorded), want, "{before:?} {act:?}");
        }
    }

    /// Goal: a hold of a purpose takes from its freeze, gives back to it and brings there. Money
    /// apart stays frozen, and no more is taken than is frozen.
    #[test]
    fn a_hold_of_a_purpose_takes_from_its_freeze() {
        let of_purpose = |act| HoldOrder { purpose: 7, ..order(act) };
        let set = |round, amount| HoldAct::Set { round, amount, pays: false, paid: false };
        let mut hold = None;
        for (act, code, change) in [
            (set(1, 101), Some(Code::InsufficientFrozen), (0, 0)),
            (set(3, 60), None, (-60, 0)),
            (set(4, 20), None, (40, 0)),
            (settle(20, 5), None, (5, -15)),
        ] {
            let decided = decide(hold.as_ref(), &of_purpose(act), ACTIVE).expect("by the rules");
            let HoldDecided::Recorded { decision, hold: after, available, freeze, frozen, .. } =
                decided
            else {
                panic!("{decided:?}")
            };
            assert_eq!((decision.code(), available), (code, 0), "{act:?}");
            assert_eq!((freeze, frozen), change, "{act:?}");
            hold = Some(after);
        }
        let released = decide(None, &of_purpose(set(1, 30)), ACTIVE).expect("by the rules");
        let HoldDecided::Recorded { hold, .. } = released else { panic!("{released:?}") };
        let back = decide(Some(&hold), &of_purpose(HoldAct::Release), ACTIVE);
        let is_back =
            matches!(back, Ok(HoldDecided::Recorded { available: 0, freeze: 30, frozen: 0, .. }));
        assert!(is_back, "{back:?}");
        // The key is that of another place.
        let foreign = decide(Some(&hold), &order(HoldAct::Release), ACTIVE);
        assert_eq!(foreign, Err(HoldViolation::Foreign));
    }

    /// GTX-014. Goal: a special place sets nothing apart and needs no balance, but the statuses of
    /// payer and payee. Its Settle pays and brings, and its Release moves nothing.
    #[test]
    fn a_special_place_is_booked_at_the_end_alone() {
        let of_special = |act| HoldOrder { special: true, ..order(act) };
        let poor = HoldAccount { available: 0, ..ACTIVE };
        let mut hold = None;
        for (act, change) in [(set(1, 0), 0), (set(3, 0), 0), (settle(170, 20), -150)] {
            let decided = decide(hold.as_ref(), &of_special(act), poor).expect("by the rules");
            let HoldDecided::Recorded { decision, hold: after, available, frozen, .. } = decided
            else {
                panic!("{decided:?}")
            };
            assert_eq!((decision, available, frozen), (Decision::Success, change, 0), "{act:?}");
            hold = Some(after);
        }
        assert_eq!(hold.expect("recorded").effect(), -150);
        let again = decide(hold.as_ref(), &of_special(settle(170, 20)), poor);
        assert_eq!(again, Ok(HoldDecided::Told(Decision::Success)));
        let frozen = HoldAccount { status: Some(AccountStatus::Frozen), ..poor };
        let refused = decide(None, &of_special(set(1, 0)), frozen).expect("by the rules");
        let code = Decision::Refused(Code::AccountFrozen);
        assert!(matches!(refused, HoldDecided::Recorded { decision, .. } if decision == code));
        let apart = decide(None, &of_special(set(1, 1)), ACTIVE);
        assert_eq!(apart, Err(HoldViolation::Special));
        let begun = behind(&[set(1, 0)], ACTIVE);
        let other = decide(begun.as_ref(), &of_special(settle(0, 1)), ACTIVE);
        assert_eq!(other, Err(HoldViolation::Foreign), "it was not special before");
    }

    /// GTX-013. Goal: a Settle leaves out its money from and to the outside, the amount apart must
    /// be exact, and a hold that an earlier version settled is told. Method: 60 apart; 20 come from
    /// outside, 50 go there, 25 to others, and 15 of it pass through.
    #[test]
    fn a_settle_keeps_the_outside_apart() {
        let act = |taken, brought, deposited, withdrawn, passed| HoldAct::Settle {
            taken,
            brought,
            deposited,
            withdrawn,
            passed,
        };
        let whole = act(25, 0, 20, 50, 15);
        let hold = behind(&[set(1, 60)], ACTIVE);
        let decided = decide(hold.as_ref(), &order(whole), ACTIVE).expect("by the rules");
        let HoldDecided::Recorded { hold: settled, available, frozen, .. } = decided else {
            panic!("{decided:?}")
        };
        // With 20 that came and 50 that went it is 5 and -60: 15 of 20 pass through.
        assert_eq!((available, frozen, settled.effect()), (35, -60, -25));
        assert_eq!(recorded(&settled, &order(whole)), Ok(Some(Decision::Success)));
        let other = order(act(25, 0, 20, 51, 16));
        assert_eq!(recorded(&settled, &other), Err(HoldViolation::OtherSettle));
        // As a version without these amounts has it.
        let before = behind(&[set(1, 60), settle(60, 5)], ACTIVE).expect("settled");
        assert_eq!(recorded(&before, &order(whole)), Ok(Some(Decision::Success)));
        for (wrong, why) in [
            (act(25, 0, 20, 50, 14), HoldViolation::OtherAmount),
            (act(30, 0, 20, 51, 21), HoldViolation::Amounts),
            (act(70, 80, 0, 0, 10), HoldViolation::Amounts),
        ] {
            assert_eq!(decide(hold.as_ref(), &order(wrong), ACTIVE), Err(why), "{wrong:?}");
        }
        let of_purpose = HoldOrder { purpose: 7, ..order(act(0, 0, 9, 0, 0)) };
        assert_eq!(decide(None, &of_purpose, ACTIVE), Err(HoldViolation::Amounts));
        let opened =
            decide(None, &order(act(0, 0, 9, 0, 0)), HoldAccount { status: None, available: 0 });
        assert!(matches!(opened, Ok(HoldDecided::Recorded { opens: true, available: 0, .. })));
    }

    /// Goal: the keys of the external operations of a hold lead back to it, and no request has one.
    #[test]
    fn the_outside_has_keys_that_no_request_can_have() {
        use crate::transfer::Cid;
        let longest = format!("{}:{}:{}", "7".repeat(26), i64::MAX, u32::MAX);
        let hold = HoldKey::new(&longest).expect("a key");
        for key in [hold.deposit(), hold.withdrawal()] {
            assert_eq!(HoldKey::of_external(&key).as_ref(), Some(&hold));
            assert!(Cid::of_operation(&key).is_some() && Cid::new(&key).is_none(), "{key}");
        }
        for other in ["tx/a", "a/in", "recharge/a/in", "tx//in"] {
            assert_eq!(HoldKey::of_external(other), None, "{other}");
        }
    }

    #[test]
    fn violations_are_named() {
        let other = HoldAct::Set { round: 1, amount: 60, pays: true, paid: true };
        for (before, act, why) in [
            (&[set(1, 60)][..], set(1, 61), HoldViolation::OtherRound),
            (&[set(1, 60)], other, HoldViolation::OtherRound),
            (&[set(1, 60)], settle(59, 0), HoldViolation::OtherAmount),
            (&[], settle(1, 0), HoldViolation::OtherAmount),
            (&[settle(0, 5)], settle(0, 6), HoldViolation::OtherSettle),
            (&[HoldAct::Release], settle(0, 0), HoldViolation::IsReleased),
            (&[settle(0, 5)], HoldAct::Release, HoldViolation::IsSettled),
            (&[], set(1, UNITS_MAX + 1), HoldViolation::Range),
        ] {
            let hold = behind(before, ACTIVE);
            assert_eq!(decide(hold.as_ref(), &order(act), ACTIVE), Err(why), "{act:?}");
        }
        let hold = behind(&[set(1, 1)], ACTIVE);
        let strange = HoldOrder { asset: AssetId(4), ..order(HoldAct::Release) };
        assert_eq!(decide(hold.as_ref(), &strange, ACTIVE), Err(HoldViolation::Foreign));
    }

    /// Goal: the statuses of a payer and of a payee. A lowered amount, a Settle and a Release pass
    /// with every status.
    #[test]
    fn a_status_refuses_a_round_and_never_an_end() {
        use AccountStatus::{Disabled, Frozen};
        let act = |amount, pays, paid| HoldAct::Set { round: 3, amount, pays, paid };
        for (status, act, code) in [
            (None, act(70, true, false), Some(Code::SourceAccountNotFound)),
            (None, act(60, false, true), Some(Code::TargetAccountNotFound)),
            (Some(Frozen), act(70, true, false), Some(Code::AccountFrozen)),
            (Some(Frozen), act(60, true, true), None),
            (Some(Disabled), act(60, false, true), Some(Code::AccountDisabled)),
            (Some(Disabled), act(70, true, true), Some(Code::AccountDisabled)),
            (Some(Disabled), act(59, true, true), None),
            (None, settle(60, 1), None),
            (Some(Disabled), settle(60, 1), None),
            (Some(Disabled), HoldAct::Release, None),
        ] {
            let hold = behind(&[set(1, 60)], ACTIVE);
            let holder = HoldAccount { status, available: 100 };
            let decided = decide(hold.as_ref(), &order(act), holder).expect("within the rules");
            let HoldDecided::Recorded { decision, opens, .. } = decided else {
                panic!("{decided:?}")
            };
            assert_eq!(decision.code(), code, "{status:?} {act:?}");
            assert_eq!(opens, status.is_none() && act == settle(60, 1));
        }
    }

    fn any_act() -> impl Strategy<Value = HoldAct> {
        let set = (1..6_u8, 0..150_u64, any::<(bool, bool)>());
        prop_oneof![
            3 => set.prop_map(|(round, amount, (pays, paid))| {
                HoldAct::Set { round, amount, pays, paid }
            }),
            1 => (0..150_u64, 0..50_u64).prop_map(|(taken, brought)| settle(taken, brought)),
            1 => Just(HoldAct::Release),
        ]
    }

    fn any_status() -> impl Strategy<Value = Option<AccountStatus>> {
        (0..4_u8).prop_map(AccountStatus::from_number)
    }

    proptest! {
        /// Goal: money is conserved, no balance is below zero, an end is always possible, and a
        /// repeat is told the same.
        #[test]
        fn money_is_conserved_and_an_end_is_always_possible(
            acts in proptest::collection::vec((any_act(), any_status()), 1..20),
        ) {
            let (mut available, mut frozen) = (100_i128, 0_i128);
            let mut hold: Option<Hold> = None;
            for (act, status) in acts {
                let units = u128::try_from(available).expect("not below zero");
                let holder = HoldAccount { status, available: units };
                let order = order(act);
                let Ok(decided) = decide(hold.as_ref(), &order, holder) else { continue };
                let HoldDecided::Recorded { decision, hold: after, available: a, frozen: f, .. } =
                    decided
                else {
                    continue;
                };
                (available, frozen) = (available + a, frozen + f);
                prop_assert!(available >= 0 && frozen >= 0);
                prop_assert_eq!(frozen, i128::from(after.apart()));
                prop_assert_eq!(available + frozen, 100 + after.effect());
                if decision != Decision::Success {
                    prop_assert_eq!((a, f), (0, 0));
                }
                prop_assert_eq!(recorded(&after, &order), Ok(Some(decision)));
                hold = Some(after);
            }
            let apart = hold.as_ref().map_or(0, Hold::apart);
            let nobody = HoldAccount { status: None, available: 0 };
            let is_open = hold.is_none_or(|hold| hold.state == HoldState::Held);
            for act in [settle(apart, 7), HoldAct::Release] {
                let ended = decide(hold.as_ref(), &order(act), nobody);
                let succeeds = matches!(
                    ended,
                    Ok(HoldDecided::Recorded { decision: Decision::Success, .. })
                );
                prop_assert!(!is_open || succeeds, "{:?}", ended);
            }
        }
    }
}
