//! Rounds of orders with a sum known beforehand.

use domain::transfer::{Direction, Op};
use engine::command::Command;
use engine::ledger::Answer;
use engine::order::Order;
use engine::text::Text;

use crate::caller::Caller;

const ASSET: u32 = 1;
/// The amount of a deposit, smallest units.
const DEPOSIT: u64 = 2;
/// The amount of a withdrawal, smallest units.
const WITHDRAWAL: u64 = 1;

/// The commands before any order.
pub(crate) fn asset() -> Command {
    Command::RegisterAsset { asset: ASSET, precision: 8, symbol: Text::EMPTY }
}

/// A user's order of a round, counted from 0: deposits in even rounds, withdrawals in odd ones.
pub(crate) fn order(user: u64, round: u64) -> Command {
    let (op, amount, direction) = match round.is_multiple_of(2) {
        true => (Op::Deposit, DEPOSIT, Direction::FundingToSpot),
        false => (Op::Withdraw, WITHDRAWAL, Direction::SpotToFunding),
    };
    let req_id = (u128::from(user) << u64::BITS) | u128::from(round);
    let cid = Text::EMPTY;
    Command::Order(Order {
        op,
        req_id,
        cid,
        user,
        asset: ASSET,
        amount,
        direction,
        order_number: round,
    })
}

/// A user's balance after this many rounds, smallest units.
pub(crate) fn balance_after(rounds: u64) -> u128 {
    u128::from(rounds.div_ceil(2) * DEPOSIT - rounds / 2 * WITHDRAWAL)
}

/// A user's balance, smallest units; `None` if there is no account.
pub(crate) fn balance(caller: &mut Caller, user: u64) -> Option<u128> {
    match caller.ask(Command::ReadBalance { user, asset: ASSET }) {
        Answer::Balance { available, .. } => available,
        other => panic!("a balance was requested, not {other:?}"),
    }
}
