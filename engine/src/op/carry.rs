//! Sums from before this log began: the earlier log was lost, and PostgreSQL has proved them.

use domain::account::{AccountStatus, UserId};

use crate::entry::Entry;
use crate::external::Outside;
use crate::ledger::{Answer, Ledger, Step};
use crate::places::ACCOUNTS_MAX;
use crate::totals::{TOTAL_MAX, Totals};

/// Decides [`Command::CarryTotals`](crate::command::Command::CarryTotals).
pub(super) fn step_totals(ledger: &Ledger, user: u64, asset: u32, totals: Totals) -> Step {
    if UserId::new(user).is_none() {
        return Step::Violation("no such user");
    }
    let Some(entry) = ledger.assets.get(&asset) else {
        return Step::Violation("no such asset");
    };
    let Some(available) = totals.available().filter(|_| totals.leave_room()) else {
        return Step::Violation("withdrawals exceed deposits, or a total is above every log's");
    };
    match ledger.totals(user, asset) {
        known if known == totals => return Step::Known(Answer::Done),
        known if known == Totals::default() => {}
        _ => return Step::Violation("the balance has moved already"),
    }
    if entry.total.checked_add(available).is_none_or(|total| total > TOTAL_MAX) {
        return Step::Violation("the asset's total is above every log's");
    }
    if ledger.lacks_account(user) || ledger.balances_left() == 0 {
        return Step::Full(ACCOUNTS_MAX);
    }
    Step::Append(Entry::Totals { user, asset, totals })
}

/// Decides [`Command::CarryOutside`](crate::command::Command::CarryOutside).
pub(super) fn step_outside(ledger: &Ledger, asset: u32, outside: Outside) -> Step {
    let Some(entry) = ledger.assets.get(&asset) else {
        return Step::Violation("no such asset");
    };
    if !outside.leave_room() {
        return Step::Violation("a sum is above every log's");
    }
    match entry.outside {
        known if known == outside => Step::Known(Answer::Done),
        known if known == Outside::default() => Step::Append(Entry::Outside { asset, outside }),
        _ => Step::Violation("external operations are recorded already"),
    }
}

/// Carries out [`Entry::Totals`].
pub(super) fn apply_totals(ledger: &mut Ledger, user: u64, asset: u32, totals: Totals) -> Answer {
    if ledger.status(user).is_none() {
        ledger.set_status(user, AccountStatus::Active);
    }
    let (before, after) = ledger.balances.set_totals(user, asset, |_| totals);
    assert_eq!(before, None, "nothing has moved this balance yet");
    ledger.exchange(None, after);
    let entry = ledger.assets.get_mut(&asset).expect("step_totals has found it");
    entry.total += totals.available().expect("step_totals has checked it");
    debug_assert!(entry.total <= TOTAL_MAX, "{}", entry.total);
    Answer::Done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::places::Places;
    use crate::text::Text;

    const USDT: u32 = 3;

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Places::of_transfers(2, 16));
        let symbol = Text::new("USDT").expect("short");
        apply(&mut ledger, &Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        ledger
    }

    fn apply(ledger: &mut Ledger, command: &Command) {
        let Step::Append(entry) = ledger.step(command) else { panic!("{command:?}") };
        ledger.apply(&entry, ledger.sequence() + 1, 0);
    }

    fn carry(user: u64, deposits: u128, withdrawals: u128) -> Command {
        let totals = Totals { deposits, withdrawals, refunds: 1 };
        Command::CarryTotals { user, asset: USDT, totals }
    }

    /// Goal: totals are carried once, to a balance without operations. Method: the same again,
    /// others, and totals that no history leaves.
    #[test]
    fn totals_begin_a_balance_and_change_none() {
        let mut ledger = ledger();
        apply(&mut ledger, &carry(7, 10, 4));
        assert_eq!(ledger.balances(), [(7, USDT, 7)]);
        assert_eq!(ledger.total(USDT), 7);
        assert_eq!(ledger.step(&carry(7, 10, 4)), Step::Known(Answer::Done));
        for refused in [carry(7, 11, 4), carry(8, 1, 3), carry(0, 1, 0), carry(8, u128::MAX, 0)] {
            assert!(matches!(ledger.step(&refused), Step::Violation(_)), "{refused:?}");
        }
        let unknown = Command::CarryTotals { user: 8, asset: 4, totals: Totals::default() };
        assert!(matches!(ledger.step(&unknown), Step::Violation(_)));
        apply(&mut ledger, &carry(8, 2, 0));
        assert_eq!(ledger.step(&carry(9, 2, 0)), Step::Full(ACCOUNTS_MAX));
        assert_eq!(ledger.total(USDT), 10);
    }
}
