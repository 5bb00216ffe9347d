//! The cumulative operations of one balance.

use domain::transfer::Op;
use domain::transfer::op::Sum;

/// The largest sum that a log may lead to, smallest units: 2^62 more of the largest amounts still
/// fit into a u128. A larger sum in a file was written by no ledger.
pub(crate) const TOTAL_MAX: u128 = 1 << 126;

/// All operations that have ever moved one balance, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Successful deposits.
    pub deposits: u128,
    /// Successful withdrawals.
    pub withdrawals: u128,
    /// Successful refunds.
    pub refunds: u128,
}

impl Totals {
    /// The resulting balance; `None` if it would be negative or does not fit into a u128.
    pub fn available(&self) -> Option<u128> {
        self.deposits.checked_add(self.refunds)?.checked_sub(self.withdrawals)
    }

    /// The total of one operation; 0 for the external operations.
    pub fn of(&self, op: Op) -> u128 {
        match op.row().sum {
            Some(Sum::Deposits) => self.deposits,
            Some(Sum::Withdrawals) => self.withdrawals,
            Some(Sum::Refunds) => self.refunds,
            None => 0,
        }
    }

    /// Whether every total is at most [`TOTAL_MAX`].
    pub(crate) fn leave_room(&self) -> bool {
        [self.deposits, self.withdrawals, self.refunds].iter().all(|&total| total <= TOTAL_MAX)
    }

    /// The difference to `part`; `None` if `part` is larger.
    pub(crate) fn without(&self, part: Totals) -> Option<Totals> {
        Some(Totals {
            deposits: self.deposits.checked_sub(part.deposits)?,
            withdrawals: self.withdrawals.checked_sub(part.withdrawals)?,
            refunds: self.refunds.checked_sub(part.refunds)?,
        })
    }

    /// One more success. A u128 holds 2^64 of the largest amounts, so no legal sequence overflows.
    pub(crate) fn with(self, op: Op, amount: u64) -> Totals {
        let grown = |total: u128| {
            let sum = total.checked_add(u128::from(amount));
            sum.unwrap_or_else(|| panic!("{amount} more than {self:?}"))
        };
        match op.row().sum {
            Some(Sum::Deposits) => Totals { deposits: grown(self.deposits), ..self },
            Some(Sum::Withdrawals) => Totals { withdrawals: grown(self.withdrawals), ..self },
            Some(Sum::Refunds) => Totals { refunds: grown(self.refunds), ..self },
            None => unreachable!("no balance has a sum of {op}"),
        }
    }
}
