//! The table of operations: one row for each [`Op`], and nothing about an operation is written
//! anywhere else.
//!
//! | op | number | available | held | side | refusable | places | opens work | refusing accounts |
//! |---|---|---|---|---|---|---|---|---|
//! | WITHDRAW | 1 | less | | source | yes | 2 | yes | none, frozen, disabled |
//! | DEPOSIT | 2 | more | | target | yes | 1 | yes | none (Funding), disabled |
//! | REFUND | 3 | more | | source | no | 0 | no | |
//! | EXT_DEPOSIT | 4 | more | | outside | yes | 1 | no | disabled |
//! | EXT_WITHDRAW | 5 | less | | outside | yes | 1 | no | none, frozen, disabled |
//! | RESERVE | 6 | less | more | owner | yes | 0 | yes | none, frozen, disabled |
//! | SETTLE | 7 | | less | owner | yes | 0 | no | none |
//! | RELEASE | 8 | more | less | owner | yes | 0 | no | |
//! | POST | 9 | | | owner | yes | 0 | yes | payer: as RESERVE; payee: disabled |
//!
//! Each operation is a posting of the places in its columns `from` and `to`:
//!
//! | op | from | to |
//! |---|---|---|
//! | WITHDRAW, EXT_WITHDRAW | available | outside |
//! | DEPOSIT, REFUND, EXT_DEPOSIT | outside | available |
//! | RESERVE | available | hold |
//! | SETTLE | hold; available, as far as this posting has brought it there | available, hold |
//! | RELEASE | hold | available |
//! | POST | available, frozen | available, frozen |
//!
//! A RESERVE sets apart, a SETTLE books it, a RELEASE gives it back, and a POST needs no hold: the
//! column `step`, by which the protocol of postings by name tells them apart.
//!
//! [`Op::row`] is total: an op without a row does not compile. The ledger, the outcome map, the
//! adapters, the audits, the repair, the statement and the lists of the command line read the row.
//! The second table, [`super::claims`], has the claims of each state.
//!
//! Every operation is judged and booked leg by leg with these columns. UBSCore has one function for
//! each of the two, so nothing but the row tells operations apart.

use std::fmt;

use super::{Decision, Direction, Participant};
use crate::account::AccountStatus;
use crate::code::Code;
use crate::posting::{LEGS_MAX, PlaceKind};

listed! {
    /// An operation on one account. PostgreSQL and the log store its number, which is never reused.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum Op {
        /// Take the amount out of the account.
        Withdraw = 1,
        /// Put the amount into the account.
        Deposit = 2,
        /// Give back the amount that this transfer's withdraw took. It has no refusal.
        Refund = 3,
        /// Money that enters Funding from outside.
        ExtDeposit = 4,
        /// Money that leaves Funding to the outside.
        ExtWithdraw = 5,
        /// Set an amount apart in a hold.
        Reserve = 6,
        /// Move money out of holds.
        Settle = 7,
        /// Give a hold back to its owner.
        Release = 8,
        /// Move money among available and frozen amounts.
        Post = 9,
        /// An operation that only the test of this table has.
        Planted = 250 if "planted",
    }
}

/// The effect of an operation on an amount that an account holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The amount leaves.
    Less,
    /// Nothing changes.
    Same,
    /// The amount arrives.
    More,
}

impl Effect {
    /// -1, 0 or +1.
    #[inline]
    pub const fn sign(self) -> i128 {
        match self {
            Effect::Less => -1,
            Effect::Same => 0,
            Effect::More => 1,
        }
    }

    /// `held` after the operation, `None` below 0 or above a u128.
    #[inline]
    pub const fn of(self, held: u128, amount: u128) -> Option<u128> {
        match self {
            Effect::Less => held.checked_sub(amount),
            Effect::Same => Some(held),
            Effect::More => held.checked_add(amount),
        }
    }
}

/// The account that an operation changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The account that pays the transfer.
    Source,
    /// The account that the transfer pays.
    Target,
    /// The Funding account of an external operation. PostgreSQL decides it, and UBSCore records the
    /// decision.
    Outside,
    /// The Spot account of its owner: the operation belongs to no transfer.
    Owner,
}

/// The running sum of a Spot balance that an operation adds to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// Of the withdrawals.
    Withdrawals,
    /// Of the deposits.
    Deposits,
    /// Of the refunds.
    Refunds,
}

/// What each status of the account answers: `None` admits the operation, a code refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Funding has no account of the user.
    pub without_funding: Option<Code>,
    /// Spot has no account of the user.
    pub without_spot: Option<Code>,
    /// The account is ACTIVE.
    pub active: Option<Code>,
    /// The account is FROZEN.
    pub frozen: Option<Code>,
    /// The account is DISABLED.
    pub disabled: Option<Code>,
}

impl Admission {
    /// An account that pays.
    const PAYER: Admission = Admission {
        without_funding: Some(Code::SourceAccountNotFound),
        without_spot: Some(Code::SourceAccountNotFound),
        active: None,
        frozen: Some(Code::AccountFrozen),
        disabled: Some(Code::AccountDisabled),
    };

    /// An account that is paid. A Spot account is made where none is.
    const PAYEE: Admission = Admission {
        without_funding: Some(Code::TargetAccountNotFound),
        without_spot: None,
        active: None,
        frozen: None,
        disabled: Some(Code::AccountDisabled),
    };

    /// An account that is paid, and is made where none is.
    const MADE: Admission = Admission { without_funding: None, ..Admission::PAYEE };

    /// Any account, with any status.
    const ANY: Admission = Admission { disabled: None, ..Admission::MADE };

    /// An account that is there, with any status: it is paid.
    const THERE: Admission = Admission {
        without_funding: Some(Code::TargetAccountNotFound),
        without_spot: Some(Code::TargetAccountNotFound),
        ..Admission::ANY
    };

    /// An account that is there, with any status: it pays.
    const PAYS_ON: Admission = Admission {
        without_funding: Some(Code::SourceAccountNotFound),
        without_spot: Some(Code::SourceAccountNotFound),
        ..Admission::ANY
    };

    /// The refusal of an account with this status, `None` if it admits the operation.
    #[inline]
    const fn refusal(&self, at: Participant, status: Option<AccountStatus>) -> Option<Code> {
        match (status, at) {
            (None, Participant::Funding) => self.without_funding,
            (None, Participant::Spot) => self.without_spot,
            (Some(AccountStatus::Active), _) => self.active,
            (Some(AccountStatus::Frozen), _) => self.frozen,
            (Some(AccountStatus::Disabled), _) => self.disabled,
        }
    }
}

/// The step of a posting in the life of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldStep {
    /// It sets amounts apart. A later one may set others apart instead.
    SetApart,
    /// It books the amounts apart. Of a transaction it is an end: nothing stays apart.
    Book,
    /// It gives them back. Of a transaction it is an end.
    GiveBack,
    /// It books at once, without a hold.
    AtOnce,
}

/// The kinds of places that one end of a leg may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kinds(u8);

impl Kinds {
    const OUTSIDE: Kinds = Kinds::of(&[PlaceKind::Outside]);
    const AVAILABLE: Kinds = Kinds::of(&[PlaceKind::Available]);
    const HOLD: Kinds = Kinds::of(&[PlaceKind::Hold]);
    const HOLD_OR_AVAILABLE: Kinds = Kinds::of(&[PlaceKind::Hold, PlaceKind::Available]);
    const AVAILABLE_OR_FROZEN: Kinds = Kinds::of(&[PlaceKind::Available, PlaceKind::Frozen]);

    const fn of(kinds: &[PlaceKind]) -> Kinds {
        let (mut bits, mut index) = (0, 0);
        while index < kinds.len() {
            bits |= 1 << kinds[index] as u8;
            index += 1;
        }
        Kinds(bits)
    }

    /// Whether `kind` is one of them.
    #[inline]
    pub const fn has(self, kind: PlaceKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }
}

/// Everything that distinguishes an operation from the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The name in logs and dumps.
    pub name: &'static str,
    /// The effect of a success on the available balance.
    pub available: Effect,
    /// The effect of a success on the amount set apart.
    pub held: Effect,
    /// The account that it changes.
    pub side: Side,
    /// The operation of the same transfer that it undoes. It succeeds only after a success of that
    /// one.
    pub undoes: Option<Op>,
    /// The operation that can undo its success.
    pub undone_by: Option<Op>,
    /// Whether it can be refused: by the account, and by an operator that ends a transfer.
    pub refusable: bool,
    /// Places that its success takes in the outcome map: its own, and one for the operation that
    /// can undo it. An operation that undoes another one finds that place free.
    pub places: u8,
    /// Whether it begins work that may need the log again. Such orders wait when the log is nearly
    /// full.
    pub opens_work: bool,
    /// The sum of a Spot balance that its success adds to.
    pub sum: Option<Sum>,
    /// The most legs of its posting.
    pub legs_max: usize,
    /// The places that its legs may leave.
    pub from: Kinds,
    /// The places that its legs may enter.
    pub to: Kinds,
    /// Whether a leg out of an available balance may spend only what this posting has brought
    /// there.
    pub spends_arrived: bool,
    /// Whether the payee is the owner of the hold that pays, in the hold's asset: no caller names
    /// them.
    pub pays_owner: bool,
    /// The step in the life of a hold; `None` of an operation that is no posting of its own.
    pub step: Option<HoldStep>,
    /// The statuses of an account whose available balance pays.
    pub payer: Admission,
    /// The statuses of an account whose available balance is paid.
    pub payee: Admission,
}

impl Row {
    const WITHDRAW: Row = Row {
        name: "WITHDRAW",
        available: Effect::Less,
        held: Effect::Same,
        side: Side::Source,
        undoes: None,
        undone_by: Some(Op::Refund),
        refusable: true,
        places: 2,
        opens_work: true,
        sum: Some(Sum::Withdrawals),
        legs_max: 1,
        from: Kinds::AVAILABLE,
        to: Kinds::OUTSIDE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::PAYER,
        payee: Admission::ANY,
    };

    const DEPOSIT: Row = Row {
        name: "DEPOSIT",
        available: Effect::More,
        held: Effect::Same,
        side: Side::Target,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 1,
        opens_work: true,
        sum: Some(Sum::Deposits),
        legs_max: 1,
        from: Kinds::OUTSIDE,
        to: Kinds::AVAILABLE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::ANY,
        payee: Admission::PAYEE,
    };

    const REFUND: Row = Row {
        name: "REFUND",
        available: Effect::More,
        held: Effect::Same,
        side: Side::Source,
        undoes: Some(Op::Withdraw),
        undone_by: None,
        refusable: false,
        places: 0,
        opens_work: false,
        sum: Some(Sum::Refunds),
        legs_max: 1,
        from: Kinds::OUTSIDE,
        to: Kinds::AVAILABLE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::ANY,
        payee: Admission::ANY,
    };

    const EXT_DEPOSIT: Row = Row {
        name: "EXT_DEPOSIT",
        available: Effect::More,
        held: Effect::Same,
        side: Side::Outside,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 1,
        opens_work: false,
        sum: None,
        legs_max: 1,
        from: Kinds::OUTSIDE,
        to: Kinds::AVAILABLE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::ANY,
        payee: Admission::MADE,
    };

    const EXT_WITHDRAW: Row = Row {
        name: "EXT_WITHDRAW",
        available: Effect::Less,
        held: Effect::Same,
        side: Side::Outside,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 1,
        opens_work: false,
        sum: None,
        legs_max: 1,
        from: Kinds::AVAILABLE,
        to: Kinds::OUTSIDE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::PAYER,
        payee: Admission::ANY,
    };

    const RESERVE: Row = Row {
        name: "RESERVE",
        available: Effect::Less,
        held: Effect::More,
        side: Side::Owner,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 0,
        opens_work: true,
        sum: None,
        legs_max: 1,
        from: Kinds::AVAILABLE,
        to: Kinds::HOLD,
        spends_arrived: false,
        pays_owner: false,
        step: Some(HoldStep::SetApart),
        payer: Admission::PAYER,
        payee: Admission::ANY,
    };

    const SETTLE: Row = Row {
        name: "SETTLE",
        available: Effect::Same,
        held: Effect::Less,
        side: Side::Owner,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 0,
        opens_work: false,
        sum: None,
        legs_max: LEGS_MAX,
        from: Kinds::HOLD_OR_AVAILABLE,
        to: Kinds::HOLD_OR_AVAILABLE,
        spends_arrived: true,
        pays_owner: false,
        step: Some(HoldStep::Book),
        payer: Admission::PAYS_ON,
        payee: Admission::THERE,
    };

    const RELEASE: Row = Row {
        name: "RELEASE",
        available: Effect::More,
        held: Effect::Less,
        side: Side::Owner,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 0,
        opens_work: false,
        sum: None,
        legs_max: 1,
        from: Kinds::HOLD,
        to: Kinds::AVAILABLE,
        spends_arrived: false,
        pays_owner: true,
        step: Some(HoldStep::GiveBack),
        payer: Admission::ANY,
        payee: Admission::ANY,
    };

    const POST: Row = Row {
        name: "POST",
        available: Effect::Same,
        held: Effect::Same,
        side: Side::Owner,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 0,
        opens_work: true,
        sum: None,
        legs_max: LEGS_MAX,
        from: Kinds::AVAILABLE_OR_FROZEN,
        to: Kinds::AVAILABLE_OR_FROZEN,
        spends_arrived: false,
        pays_owner: false,
        step: Some(HoldStep::AtOnce),
        payer: Admission::PAYER,
        payee: Admission::PAYEE,
    };

    #[cfg(feature = "planted-row")]
    const PLANTED: Row = Row {
        name: "PLANTED",
        available: Effect::Less,
        held: Effect::Same,
        side: Side::Owner,
        undoes: None,
        undone_by: None,
        refusable: true,
        places: 1,
        opens_work: true,
        sum: Some(Sum::Withdrawals),
        legs_max: 1,
        from: Kinds::AVAILABLE,
        to: Kinds::OUTSIDE,
        spends_arrived: false,
        pays_owner: false,
        step: None,
        payer: Admission::PAYER,
        payee: Admission::ANY,
    };

    /// Whether its legs leave or enter holds.
    #[inline]
    pub const fn touches_holds(&self) -> bool {
        self.from.has(PlaceKind::Hold) || self.to.has(PlaceKind::Hold)
    }
}

/// The operations of a transfer are three, in the order in which they are decided.
const OF_TRANSFER: usize = 3;

impl Op {
    /// The operations of a transfer: those on the side of its source or its target.
    pub const OF_TRANSFER: [Op; OF_TRANSFER] = Op::of_transfer();

    /// The row of this operation, by value: a compiler that inlines it reads each column as a
    /// constant or a comparison.
    #[inline(always)]
    pub const fn row(self) -> Row {
        match self {
            Op::Withdraw => Row::WITHDRAW,
            Op::Deposit => Row::DEPOSIT,
            Op::Refund => Row::REFUND,
            Op::ExtDeposit => Row::EXT_DEPOSIT,
            Op::ExtWithdraw => Row::EXT_WITHDRAW,
            Op::Reserve => Row::RESERVE,
            Op::Settle => Row::SETTLE,
            Op::Release => Row::RELEASE,
            Op::Post => Row::POST,
            #[cfg(feature = "planted-row")]
            Op::Planted => Row::PLANTED,
        }
    }

    /// The op with this number.
    #[inline]
    pub fn from_number(number: u8) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.number() == number)
    }

    /// The op with this name.
    pub fn from_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }

    /// The number that PostgreSQL and the log store.
    #[inline]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The name in logs and dumps.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// See [`Row::step`].
    #[inline]
    pub const fn step(self) -> Option<HoldStep> {
        self.row().step
    }

    /// Whether it moves money between Funding and the outside. PostgreSQL decides it; UBSCore
    /// records the decision.
    #[inline]
    pub const fn is_external(self) -> bool {
        matches!(self.row().side, Side::Outside)
    }

    /// Whether its success lowers the available balance.
    #[inline]
    pub const fn takes(self) -> bool {
        matches!(self.row().available, Effect::Less)
    }

    /// Whether its success raises the available balance.
    #[inline]
    pub const fn pays(self) -> bool {
        matches!(self.row().available, Effect::More)
    }

    /// What `decision` adds to the available balance, smallest units; below 0 if it takes them
    /// away.
    #[inline]
    pub const fn effect(self, decision: Decision, units: u64) -> i128 {
        match decision {
            Decision::Success => self.row().available.sign() * (units as i128),
            Decision::Refused(_) => 0,
        }
    }

    /// The participant that decides it for a transfer of this direction.
    #[inline]
    pub const fn participant(self, direction: Direction) -> Participant {
        match self.row().side {
            Side::Source => direction.source(),
            Side::Target => direction.target(),
            Side::Outside => Participant::Funding,
            Side::Owner => Participant::Spot,
        }
    }

    /// Places that `decision` takes in the outcome map. A refusal keeps no place for an operation
    /// that undoes it.
    #[inline]
    pub const fn places(self, decision: Decision) -> usize {
        let row = self.row();
        match decision {
            Decision::Refused(_) if row.undone_by.is_some() => row.places as usize - 1,
            Decision::Success | Decision::Refused(_) => row.places as usize,
        }
    }

    /// The index of an operation of a transfer in [`Op::OF_TRANSFER`].
    pub fn place_in_transfer(self) -> Option<usize> {
        Op::OF_TRANSFER.into_iter().position(|op| op == self)
    }

    /// Whether an account with this status lets the operation pass, and if not, the refusal.
    /// `status` is `None` where `at` has no account of the user, `enough` means that the available
    /// balance is not below the amount.
    ///
    /// The form of a command is checked before, and so is the success of the operation that this
    /// one undoes.
    ///
    /// # Errors
    /// The code of the refusal.
    #[inline]
    pub const fn verdict(
        self,
        at: Participant,
        status: Option<AccountStatus>,
        enough: bool,
    ) -> Result<(), Code> {
        let row = self.row();
        let admission = if self.takes() { row.payer } else { row.payee };
        match admission.refusal(at, status) {
            Some(code) => Err(code),
            None if !enough && self.takes() => Err(Code::InsufficientBalance),
            None => Ok(()),
        }
    }

    /// Whether a Spot account with this status may pay out of its available balance in a leg of
    /// this operation.
    ///
    /// # Errors
    /// The code of the refusal.
    #[inline]
    pub const fn admits_payer(self, status: Option<AccountStatus>) -> Result<(), Code> {
        match self.row().payer.refusal(Participant::Spot, status) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Whether a Spot account with this status may be paid in a leg of this operation.
    ///
    /// # Errors
    /// The code of the refusal.
    #[inline]
    pub const fn admits_payee(self, status: Option<AccountStatus>) -> Result<(), Code> {
        match self.row().payee.refusal(Participant::Spot, status) {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }

    /// Whether a venue may send it: its records are postings by number.
    #[inline]
    pub const fn is_posting(self) -> bool {
        matches!(self.row().side, Side::Owner) && self.row().sum.is_none()
    }

    const fn of_transfer() -> [Op; OF_TRANSFER] {
        let (mut found, mut count, mut index) = ([Op::ALL[0]; OF_TRANSFER], 0, 0);
        while index < Op::ALL.len() {
            match Op::ALL[index].row().side {
                Side::Source | Side::Target => {
                    found[count] = Op::ALL[index];
                    count += 1;
                }
                Side::Outside | Side::Owner => {}
            }
            index += 1;
        }
        assert!(count == OF_TRANSFER, "a transfer has three operations");
        found
    }
}

impl fmt::Display for Op {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

// Checked where the table is compiled: the columns of a row agree.
const _: () = {
    let mut index = 0;
    while index < Op::ALL.len() {
        let row = Op::ALL[index].row();
        let kept = row.undone_by.is_some() as u8;
        let own = row.undoes.is_none() && !Op::ALL[index].is_posting();
        assert!(row.places == kept + own as u8, "its own place and a kept one");
        assert!(!(row.undoes.is_some() && row.refusable), "an undoing operation is never refused");
        let grows = match row.sum {
            Some(Sum::Withdrawals) => matches!(row.available, Effect::Less),
            Some(Sum::Deposits | Sum::Refunds) => matches!(row.available, Effect::More),
            // PostgreSQL keeps the sums of the outside. A posting moves money inside of Spot.
            None => matches!(row.side, Side::Outside | Side::Owner),
        };
        assert!(grows, "a change of a Spot balance adds to the sum of its direction");
        let apart = matches!(row.held, Effect::Same) || Op::ALL[index].is_posting();
        assert!(apart, "only a posting sets an amount apart");
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    const STATUSES: [Option<AccountStatus>; 4] = [
        None,
        Some(AccountStatus::Active),
        Some(AccountStatus::Frozen),
        Some(AccountStatus::Disabled),
    ];

    /// Goal: every cell of operation, status and balance agrees with the specification. Method: the
    /// cells that refuse, written down a second time; every other cell admits.
    #[test]
    fn every_cell_of_the_verdict_is_the_specifications() {
        use AccountStatus::{Disabled, Frozen};
        use Participant::{Funding, Spot};
        let refusing = [
            (Op::Withdraw, Funding, None, Code::SourceAccountNotFound),
            (Op::Withdraw, Spot, None, Code::SourceAccountNotFound),
            (Op::Withdraw, Funding, Some(Frozen), Code::AccountFrozen),
            (Op::Withdraw, Spot, Some(Frozen), Code::AccountFrozen),
            (Op::Withdraw, Funding, Some(Disabled), Code::AccountDisabled),
            (Op::Withdraw, Spot, Some(Disabled), Code::AccountDisabled),
            (Op::Deposit, Funding, None, Code::TargetAccountNotFound),
            (Op::Deposit, Funding, Some(Disabled), Code::AccountDisabled),
            (Op::Deposit, Spot, Some(Disabled), Code::AccountDisabled),
            (Op::ExtDeposit, Funding, Some(Disabled), Code::AccountDisabled),
            (Op::ExtWithdraw, Funding, None, Code::SourceAccountNotFound),
            (Op::ExtWithdraw, Funding, Some(Frozen), Code::AccountFrozen),
            (Op::ExtWithdraw, Funding, Some(Disabled), Code::AccountDisabled),
        ];
        let places =
            [Op::OF_TRANSFER.map(|op| (op, Funding)), Op::OF_TRANSFER.map(|op| (op, Spot))];
        let outside = [(Op::ExtDeposit, Funding), (Op::ExtWithdraw, Funding)];
        for (op, at) in places.into_iter().flatten().chain(outside) {
            for status in STATUSES {
                for enough in [true, false] {
                    let code =
                        refusing.iter().find(|row| (row.0, row.1, row.2) == (op, at, status));
                    let code = code.map(|row| row.3);
                    let short = !enough && [Op::Withdraw, Op::ExtWithdraw].contains(&op);
                    let code = code.or(short.then_some(Code::InsufficientBalance));
                    let want = code.map_or(Ok(()), Err);
                    assert_eq!(op.verdict(at, status, enough), want, "{op} {at:?} {status:?}");
                }
            }
        }
    }

    /// An operation is refusable if a status or a balance refuses it.
    #[test]
    fn the_columns_of_each_row_agree() {
        for op in Op::ALL {
            let row = op.row();
            let refused = STATUSES.into_iter().any(|status| {
                let at = [Participant::Funding, Participant::Spot];
                at.into_iter().any(|at| op.verdict(at, status, false).is_err())
            });
            // A posting is also refused by its form and by its holds.
            assert_eq!(row.refusable, refused || op.is_posting(), "{op}");
            let pair = |other: &Op| other.row().undoes == Some(op);
            assert_eq!(row.undone_by, Op::ALL.into_iter().find(pair), "{op}");
            assert_eq!(op.place_in_transfer().is_some(), Op::OF_TRANSFER.contains(&op), "{op}");
            let moves = op.effect(Decision::Success, 7);
            assert_eq!((op.takes(), op.pays()), (moves == -7, moves == 7), "{op}");
            assert_eq!(op.effect(Decision::Refused(Code::AccountFrozen), 7), 0, "{op}");
        }
    }

    #[test]
    fn a_transfer_has_three_operations() {
        assert_eq!(Op::OF_TRANSFER, [Op::Withdraw, Op::Deposit, Op::Refund]);
    }

    /// A success of a withdraw takes its own place and that of its refund.
    #[test]
    fn a_refund_finds_its_place_free() {
        let refused = Decision::Refused(Code::AccountFrozen);
        let places = |op: Op| (op.places(Decision::Success), op.places(refused));
        assert_eq!(Op::OF_TRANSFER.map(places), [(2, 1), (1, 1), (0, 0)]);
        assert_eq!(places(Op::ExtDeposit), (1, 1));
        assert_eq!(places(Op::ExtWithdraw), (1, 1));
    }
}
