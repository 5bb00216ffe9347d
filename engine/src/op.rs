//! The commands of UBSCore, one file each.
//!
//! A file holds both halves of its command: `step` decides and changes nothing, `apply` carries out
//! the entry that the log holds. A new command is a new file and a line in each match of this one.
//! `posting` has the one judge and the one booking of all operations; a posting by number comes in
//! by `number`, one by name by `named`, and neither is copied whole.

mod asset;
mod carry;
mod external;
pub(crate) mod named;
pub(crate) mod number;
mod order;
mod posting;
mod refuse;
mod status;
mod venue;
mod watermark;

use crate::command::Command;
use crate::entry::Entry;
use crate::ledger::{Answer, Ledger, Step};

impl Ledger {
    /// Decides a command. Nothing changes.
    pub fn step(&self, command: &Command) -> Step {
        match *command {
            Command::Order(ref order) => order::step(self, order),
            Command::Refuse { ref order, code } => refuse::step(self, order, code),
            Command::External(ref external) => external::step(self, external),
            Command::SetStatus { user, status } => status::step(self, user, status),
            Command::RegisterAsset { asset, precision, symbol } => {
                asset::step(self, asset, precision, symbol)
            }
            Command::RaiseWatermark { order_number } => watermark::step(self, order_number),
            Command::CarryTotals { user, asset, totals } => {
                carry::step_totals(self, user, asset, totals)
            }
            Command::CarryOutside { asset, outside } => carry::step_outside(self, asset, outside),
            Command::AddVenue { id, name, posts } => venue::step_add(self, id, name, posts),
            Command::CloseVenue { id, closed } => venue::step_close(self, id, closed),
            Command::OpenVenue { id, epoch, told } => venue::step_open(self, id, epoch, told),
            Command::ReleaseHold { name, venue, hold } => {
                number::step_release(self, name, venue, hold)
            }
            Command::Digest => Step::Append(Entry::Digest { digest: self.digest() }),
            Command::ReadBalance { user, asset } => {
                let available = self.status(user).map(|_| self.available(user, asset));
                let (held, sequence) = (self.held(user, asset), self.sequence);
                Step::Known(Answer::Balance { available, held, sequence })
            }
            Command::ReadTotal { asset } => {
                let (units, held) = (self.total(asset), self.total_held(asset));
                let (crossed, sequence) = (self.crossed(asset), self.sequence);
                Step::Known(Answer::Total { units, held, crossed, sequence })
            }
            Command::Foresee(ref order) => {
                Step::Known(Answer::Foreseen(order::foresee(self, order)))
            }
            Command::ReadStatus { user } => Step::Known(Answer::Status(self.status(user))),
            Command::ReadWatermark => Step::Known(Answer::Watermark(self.watermark)),
            Command::Query { req_id, op } => {
                Step::Known(Answer::Query(self.outcomes.get(req_id, op)))
            }
            Command::QueryNamed { transaction, op, round } => {
                Step::Known(Answer::QueryNamed(named::query(self, transaction, op, round)))
            }
        }
    }

    /// Carries out an entry of the log. `sequence` and `time_ns` are the record's own.
    ///
    /// Panics if [`Ledger::step`] could not have decided the entry in this state: replay compares
    /// both first.
    pub fn apply(&mut self, entry: &Entry, sequence: wal::Sequence, time_ns: u64) -> Answer {
        assert_eq!(sequence, self.sequence + 1, "records are applied in order");
        self.sequence = sequence;
        match *entry {
            Entry::Order { ref order, decision, balance_after, imposed: _ } => {
                order::apply(self, order, decision, balance_after, time_ns)
            }
            Entry::External(ref external) => external::apply(self, external, time_ns),
            Entry::AccountStatus { user, status } => {
                self.set_status(user, status);
                Answer::Done
            }
            Entry::Asset { asset, precision, symbol } => {
                asset::apply(self, asset, precision, symbol)
            }
            Entry::Watermark { order_number } => watermark::apply(self, order_number),
            Entry::Totals { user, asset, totals } => carry::apply_totals(self, user, asset, totals),
            Entry::Outside { asset, outside } => {
                self.set_outside(asset, outside);
                Answer::Done
            }
            Entry::Venue(ref entry) => venue::apply(self, entry),
            Entry::Posting(ref posted) => number::apply_release(self, posted, sequence, time_ns),
            Entry::Named(_) => unreachable!("carried out with its parts"),
            Entry::Mark | Entry::Digest { .. } => Answer::Done,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use domain::account::AccountStatus;
    use domain::code::Code;
    use domain::transfer::{Decision, Direction, Op};
    use proptest::prelude::*;

    use super::*;
    use crate::builder::Builder;
    use crate::external::{External, Outside};
    use crate::fact::Fact;
    use crate::ledger::ORDER_NUMBER_MAX;
    use crate::order::Order;
    use crate::places::{Places, STATUS_ACCOUNTS_MIN};
    use crate::text::Text;
    use crate::totals::Totals;

    const USDT: u32 = 3;

    fn order(op: Op, req_id: u128, user: u64, amount: u64) -> Order {
        let direction = Direction::FundingToSpot;
        let cid = Text::EMPTY;
        Order { op, req_id, cid, user, asset: USDT, amount, direction, order_number: 1 }
    }

    fn refusal(order: Order) -> Command {
        Command::Refuse { order, code: Code::ResolvedByOperator }
    }

    fn run(ledger: &mut Ledger, command: Command) -> Answer {
        match ledger.step(&command) {
            Step::Append(entry) => ledger.apply(&entry, ledger.sequence + 1, 0),
            Step::Known(answer) => answer,
            Step::Violation(why) => Answer::Violation(why),
            Step::Full(_) => Answer::Overloaded,
            Step::Forgotten => Answer::Forgotten,
        }
    }

    fn ledger() -> Ledger {
        let mut ledger = Ledger::new(Places::of_transfers(100, 1_000));
        let symbol = Text::new("USDT").expect("short");
        run(&mut ledger, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        ledger
    }

    fn decide(ledger: &mut Ledger, order: Order) -> Decision {
        match run(ledger, Command::Order(order)) {
            Answer::Decided(recorded) => recorded.decision,
            other => panic!("{other:?}"),
        }
    }

    fn balance(ledger: &mut Ledger, user: u64) -> Option<u128> {
        match run(ledger, Command::ReadBalance { user, asset: USDT }) {
            Answer::Balance { available, .. } => available,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_operation_is_decided_once_and_repeats_get_the_decision() {
        let mut ledger = ledger();
        assert_eq!(balance(&mut ledger, 1), None);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 10, 1, 100)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 10, 1, 100)), Decision::Success);
        assert_eq!(balance(&mut ledger, 1), Some(100));
        let refused = Decision::Refused(Code::InsufficientBalance);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 11, 1, 101)), refused);
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 12, 1, 900)), Decision::Success);
        // The balance suffices now, but the refusal stands.
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 11, 1, 101)), refused);
        assert_eq!(balance(&mut ledger, 1), Some(1000));
    }

    /// Found by a fuzz target: a log with a larger number was replayed, and its start failed when
    /// it looked for the next number.
    #[test]
    fn an_order_number_that_postgres_cannot_hold_is_no_order() {
        let mut ledger = ledger();
        let deposit = order(Op::Deposit, 10, 1, 100);
        let last = Order { order_number: ORDER_NUMBER_MAX, ..deposit };
        assert_eq!(decide(&mut ledger, last), Decision::Success);
        assert_eq!(ledger.order_numbers_end(), ORDER_NUMBER_MAX + 1);
        let beyond = Order { req_id: 11, order_number: ORDER_NUMBER_MAX + 1, ..deposit };
        let violation = Step::Violation("order number out of range");
        assert_eq!(ledger.step(&Command::Order(beyond)), violation);
    }

    #[test]
    fn a_refund_has_the_withdraws_name_and_is_no_repeat_of_it() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 300));
        run(&mut ledger, Command::SetStatus { user: 7, status: AccountStatus::Disabled });
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 300)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 300)), Decision::Success);
        assert_eq!(balance(&mut ledger, 7), Some(500));
    }

    /// Goal: after an operator's refusal the operation is never decided otherwise, an earlier
    /// decision stands, and a refund is never refused.
    #[test]
    fn an_operators_refusal_closes_the_door_and_changes_nothing_that_is_decided() {
        let refuse = |ledger: &mut Ledger, order| run(ledger, refusal(order));
        let answered = |answer| match answer {
            Answer::Decided(recorded) => (recorded.decision, recorded.balance_after),
            other => panic!("{other:?}"),
        };
        let resolved = Decision::Refused(Code::ResolvedByOperator);
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 100));
        decide(&mut ledger, order(Op::Withdraw, 3, 7, 900));
        // With and without the balance for it.
        for (op, req_id, amount) in
            [(Op::Withdraw, 4, 50), (Op::Withdraw, 5, 9_000), (Op::Deposit, 6, 50)]
        {
            let late = order(op, req_id, 7, amount);
            assert_eq!(answered(refuse(&mut ledger, late)), (resolved, 400));
            let recorded = ledger.sequence();
            assert_eq!(decide(&mut ledger, late), resolved, "a late call gets it");
            assert_eq!(answered(refuse(&mut ledger, late)), (resolved, 400), "and a repeat");
            assert_eq!(ledger.sequence(), recorded);
        }
        // A refusal makes no account.
        assert_eq!(answered(refuse(&mut ledger, order(Op::Deposit, 7, 8, 50))), (resolved, 0));
        assert_eq!(balance(&mut ledger, 8), None);
        // An earlier decision stands.
        let short = Decision::Refused(Code::InsufficientBalance);
        for (op, req_id, amount, want) in [
            (Op::Deposit, 1, 500, Decision::Success),
            (Op::Withdraw, 2, 100, Decision::Success),
            (Op::Withdraw, 3, 900, short),
        ] {
            assert_eq!(answered(refuse(&mut ledger, order(op, req_id, 7, amount))).0, want);
        }
        let recorded = ledger.sequence();
        for bad in [
            order(Op::Refund, 2, 7, 100),
            order(Op::Deposit, 1, 7, 501),
            order(Op::Deposit, 1, 8, 500),
            order(Op::ExtDeposit, 9, 7, 1),
            Order { order_number: u64::MAX, ..order(Op::Deposit, 9, 7, 1) },
        ] {
            let answer = refuse(&mut ledger, bad);
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        // A refused withdraw has no refund.
        let answer = run(&mut ledger, Command::Order(order(Op::Refund, 4, 7, 50)));
        assert!(matches!(answer, Answer::Violation(_)), "{answer:?}");
        run(&mut ledger, Command::RaiseWatermark { order_number: 2 });
        assert_eq!(refuse(&mut ledger, order(Op::Deposit, 9, 7, 1)), Answer::Forgotten);
        assert_eq!(ledger.sequence(), recorded + 1);
        assert_eq!(balance(&mut ledger, 7), Some(400));
        // The refusal needs a place, as every outcome does.
        let mut small = Ledger::new(Places::of_transfers(1, 1));
        refuse(&mut small, order(Op::Deposit, 1, 7, 1));
        assert_eq!(refuse(&mut small, order(Op::Deposit, 2, 7, 1)), Answer::Overloaded);
    }

    #[test]
    fn violations_change_and_record_nothing() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        for bad in [
            order(Op::Deposit, 1, 8, 500),
            order(Op::Deposit, 1, 7, 501),
            Order { asset: 4, ..order(Op::Deposit, 1, 7, 500) },
            order(Op::Refund, 1, 7, 500),
            order(Op::Refund, 99, 7, 500),
            order(Op::ExtDeposit, 98, 7, 500),
        ] {
            let answer = run(&mut ledger, Command::Order(bad));
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        assert_eq!(ledger.outcome_count(), 1);
        assert_eq!(balance(&mut ledger, 7), Some(500));
    }

    #[test]
    fn ubscore_checks_what_reaches_it_for_itself() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        let refused = Decision::Refused;
        for (id, bad, want) in [
            (20, order(Op::Withdraw, 20, 7, 0), Code::InvalidAmount),
            (21, order(Op::Deposit, 21, 0, 5), Code::InvalidRequest),
            (22, order(Op::Deposit, 22, u64::MAX, 5), Code::InvalidRequest),
            (23, Order { asset: 9, ..order(Op::Deposit, 23, 7, 5) }, Code::InvalidAsset),
            (24, order(Op::Withdraw, 24, 9, 5), Code::SourceAccountNotFound),
            (0, order(Op::Withdraw, 0, 7, 5), Code::InvalidRequest),
        ] {
            assert_eq!(decide(&mut ledger, bad), refused(want), "{id}");
        }
        let frozen = Command::SetStatus { user: 7, status: AccountStatus::Frozen };
        run(&mut ledger, frozen);
        let withdraw = order(Op::Withdraw, 30, 7, 5);
        assert_eq!(decide(&mut ledger, withdraw), refused(Code::AccountFrozen));
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 31, 7, 5)), Decision::Success);
        run(&mut ledger, Command::SetStatus { user: 7, status: AccountStatus::Disabled });
        let deposit = order(Op::Deposit, 32, 7, 5);
        assert_eq!(decide(&mut ledger, deposit), refused(Code::AccountDisabled));
        let withdraw = order(Op::Withdraw, 33, 7, 5);
        assert_eq!(decide(&mut ledger, withdraw), refused(Code::AccountDisabled));
    }

    #[test]
    fn a_full_map_refuses_new_transfers_but_never_a_refund() {
        let mut ledger = Ledger::new(Places::of_transfers(1, 4));
        let symbol = Text::new("USDT").expect("short");
        run(&mut ledger, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 100));
        // Three places are taken: the deposit, the withdraw, and the refund that may come.
        let again = Command::Order(order(Op::Withdraw, 3, 7, 100));
        assert_eq!(run(&mut ledger, again), Answer::Overloaded);
        decide(&mut ledger, order(Op::Deposit, 4, 7, 1));
        let more = Command::Order(order(Op::Deposit, 5, 7, 1));
        assert_eq!(run(&mut ledger, more), Answer::Overloaded);
        assert_eq!(decide(&mut ledger, order(Op::Refund, 2, 7, 100)), Decision::Success);
        assert_eq!(ledger.outcome_count(), 4);
    }

    #[test]
    fn below_the_watermark_nothing_is_decided() {
        let mut ledger = ledger();
        let numbered = |op, req_id, amount, order_number| {
            Command::Order(Order { order_number, ..order(op, req_id, 7, amount) })
        };
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        decide(&mut ledger, order(Op::Withdraw, 2, 7, 200));
        run(&mut ledger, numbered(Op::Deposit, 3, 50, 5));
        assert_eq!(run(&mut ledger, Command::RaiseWatermark { order_number: 5 }), Answer::Done);
        let raised = ledger.sequence();
        assert_eq!(run(&mut ledger, Command::RaiseWatermark { order_number: 4 }), Answer::Done);
        // Not evicted yet: a repeat gets its decision, under its own number only.
        assert_eq!(decide(&mut ledger, order(Op::Deposit, 1, 7, 500)), Decision::Success);
        for number in [0, 2, 5, 9] {
            let answer = run(&mut ledger, numbered(Op::Deposit, 1, 500, number));
            assert!(matches!(answer, Answer::Violation(_)), "{number} {answer:?}");
        }
        // Not decided yet, and now too late.
        assert_eq!(run(&mut ledger, numbered(Op::Refund, 2, 200, 1)), Answer::Forgotten);
        assert_eq!(run(&mut ledger, numbered(Op::Deposit, 9, 1, 4)), Answer::Forgotten);
        ledger.forget_all();
        for late in [
            numbered(Op::Deposit, 1, 500, 1),
            numbered(Op::Withdraw, 2, 200, 1),
            numbered(Op::Refund, 2, 200, 1),
        ] {
            assert_eq!(run(&mut ledger, late), Answer::Forgotten);
        }
        assert_eq!(ledger.sequence(), raised, "nothing has been recorded");
        assert_eq!((ledger.outcome_count(), ledger.places_left()), (1, 999));
        let totals = Totals { deposits: 550, withdrawals: 200, refunds: 0 };
        assert_eq!(ledger.totals(7, USDT), totals);
        assert_eq!(
            ledger.settled(ledger.watermark()).expect("known")[&(7, USDT)],
            Totals { deposits: 500, ..totals }
        );
        assert_eq!(balance(&mut ledger, 7), Some(350));
    }

    #[test]
    fn f05_without_a_place_for_an_account_or_a_balance_a_deposit_is_refused_for_good() {
        let mut ledger = Ledger::new(Places::of_transfers(1, 100));
        for asset in 1..=3 {
            let symbol = Text::new("USDT").expect("short");
            run(&mut ledger, Command::RegisterAsset { asset, precision: 8, symbol });
        }
        let deposit = |req_id, user, asset| Order { asset, ..order(Op::Deposit, req_id, user, 9) };
        let foreseen = |ledger: &mut Ledger, order| run(ledger, Command::Foresee(order));
        assert_eq!(foreseen(&mut ledger, deposit(1, 7, 1)), Answer::Foreseen(Ok(())));
        decide(&mut ledger, deposit(1, 7, 1));
        let overloaded = Decision::Refused(Code::Overloaded);
        let no_place = Answer::Foreseen(Err(Code::Overloaded));
        assert_eq!(foreseen(&mut ledger, deposit(2, 8, 1)), no_place);
        let step = ledger.step(&Command::Order(deposit(2, 8, 1)));
        let refuse = Command::Refuse { order: deposit(2, 8, 1), code: Code::Overloaded };
        // Replay decides so from the record, with any number of places.
        assert_eq!(step, ledger.step(&refuse));
        let large = Ledger::new(Places::of_transfers(100, 100));
        assert_eq!(step, large.step(&refuse));
        assert_eq!(decide(&mut ledger, deposit(2, 8, 1)), overloaded);
        assert_eq!(balance(&mut ledger, 8), None, "no account was made");
        let set =
            |ledger: &mut Ledger, user, status| run(ledger, Command::SetStatus { user, status });
        assert_eq!(set(&mut ledger, 8, AccountStatus::Active), Answer::Overloaded);
        // An operator can stop and release users without an account, up to a bound.
        for user in 8..8 + STATUS_ACCOUNTS_MIN as u64 {
            assert_eq!(set(&mut ledger, user, AccountStatus::Frozen), Answer::Done, "{user}");
        }
        assert_eq!(set(&mut ledger, 8, AccountStatus::Active), Answer::Done);
        assert_eq!(set(&mut ledger, 1_000, AccountStatus::Frozen), Answer::Overloaded);
        assert_eq!(decide(&mut ledger, deposit(2, 8, 1)), overloaded, "the door is closed");
        // There are two balances per account.
        decide(&mut ledger, deposit(3, 7, 2));
        assert_eq!(decide(&mut ledger, deposit(4, 7, 3)), overloaded);
        // Orders without a new place continue, and so do refusals.
        decide(&mut ledger, deposit(5, 7, 1));
        let refused = Decision::Refused(Code::SourceAccountNotFound);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 6, 1_000, 9)), refused);
    }

    /// Goal: every command other than an order is decided by its table. Method: the table, written
    /// down a second time.
    #[test]
    fn commands_are_decided_by_this_table() {
        use AccountStatus::{Active, Frozen};
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        run(&mut ledger, Command::RaiseWatermark { order_number: 5 });
        let [usdt, usdc] = ["USDT", "USDC"].map(|text| Text::new(text).expect("short"));
        let register =
            |asset, precision, symbol| Command::RegisterAsset { asset, precision, symbol };
        let new =
            |asset, precision, symbol| Step::Append(Entry::Asset { asset, precision, symbol });
        let status = |user, status| Command::SetStatus { user, status };
        let raise = |order_number| Command::RaiseWatermark { order_number };
        let read = |user, asset| Command::ReadBalance { user, asset };
        let known = |available| {
            let sequence = ledger.sequence();
            Step::Known(Answer::Balance { available, held: 0, sequence })
        };
        let total = |units| {
            let sequence = ledger.sequence();
            Step::Known(Answer::Total { units, held: 0, crossed: 0, sequence })
        };
        let query = |req_id, op| Command::Query { req_id, op };
        let recorded = ledger.outcomes.get(1, Op::Deposit);
        assert!(recorded.is_some());
        let done = || Step::Known(Answer::Done);
        for (command, want) in [
            (status(7, Active), done()),
            (status(7, Frozen), Step::Append(Entry::AccountStatus { user: 7, status: Frozen })),
            (status(8, Active), Step::Append(Entry::AccountStatus { user: 8, status: Active })),
            (register(USDT, 8, usdt), done()),
            (register(9, 8, usdc), new(9, 8, usdc)),
            (register(9, 0, usdc), new(9, 0, usdc)),
            (raise(4), done()),
            (raise(5), done()),
            (raise(6), Step::Append(Entry::Watermark { order_number: 6 })),
            (Command::ReadWatermark, Step::Known(Answer::Watermark(5))),
            (Command::Digest, Step::Append(Entry::Digest { digest: ledger.digest() })),
            (read(7, USDT), known(Some(500))),
            (read(7, 9), known(Some(0))),
            (read(8, USDT), known(None)),
            (Command::ReadTotal { asset: USDT }, total(500)),
            (Command::ReadTotal { asset: 9 }, total(0)),
            (Command::ReadStatus { user: 7 }, Step::Known(Answer::Status(Some(Active)))),
            (Command::ReadStatus { user: 8 }, Step::Known(Answer::Status(None))),
            (query(1, Op::Deposit), Step::Known(Answer::Query(recorded))),
            (query(1, Op::Withdraw), Step::Known(Answer::Query(None))),
            (query(2, Op::Deposit), Step::Known(Answer::Query(None))),
        ] {
            assert_eq!(ledger.step(&command), want, "{command:?}");
        }
        for command in [
            status(0, Active),
            status(u64::MAX, Active),
            register(USDT, 7, usdt),
            register(USDT, 8, usdc),
            register(9, 9, usdc),
        ] {
            let step = ledger.step(&command);
            assert!(matches!(step, Step::Violation(_)), "{command:?}: {step:?}");
        }
    }

    /// Goal: UBSCore records an external operation of PostgreSQL once, and moves nothing. Method:
    /// deposits, a withdrawal and a refusal; repeats, contradictions, bad forms, the watermark, a
    /// full map.
    #[test]
    fn an_external_operation_is_recorded_once_and_moves_nothing() {
        let external = |op, idem_key: &str, amount, order_number| External {
            op,
            idem_key: Text::new(idem_key).expect("short"),
            user: 7,
            asset: USDT,
            amount,
            order_number,
            decision: Decision::Success,
            balance_after: 9,
        };
        let mut ledger = ledger();
        let deposit = external(Op::ExtDeposit, "d1", 500, 1);
        let refused = Decision::Refused(Code::InsufficientBalance);
        let refusal = External { decision: refused, ..external(Op::ExtWithdraw, "w2", 900, 3) };
        for external in [deposit, external(Op::ExtWithdraw, "w1", 200, 2), refusal] {
            for _ in 0..2 {
                let answer = run(&mut ledger, Command::External(external));
                let Answer::Decided(recorded) = answer else { panic!("{answer:?}") };
                assert_eq!(recorded.decision, external.decision);
                let query = Command::Query { req_id: external.key(), op: external.op };
                assert_eq!(run(&mut ledger, query), Answer::Query(Some(recorded)));
            }
        }
        assert_eq!((ledger.sequence(), ledger.outcome_count()), (4, 3));
        assert_eq!(balance(&mut ledger, 7), None, "no Spot account");
        for bad in [
            External { amount: 501, ..deposit },
            External { user: 8, ..deposit },
            External { order_number: 4, ..deposit },
            External { decision: refused, ..deposit },
            External { balance_after: 8, ..deposit },
            External { idem_key: Text::EMPTY, ..deposit },
            external(Op::Deposit, "d3", 5, 5),
            external(Op::ExtDeposit, "d4", 0, 5),
            External { user: 0, ..external(Op::ExtDeposit, "d5", 5, 5) },
            External { asset: 9, ..external(Op::ExtDeposit, "d6", 5, 5) },
            external(Op::ExtDeposit, "d7", 5, u64::MAX),
        ] {
            let answer = run(&mut ledger, Command::External(bad));
            assert!(matches!(answer, Answer::Violation(_)), "{bad:?} {answer:?}");
        }
        let all = Outside { deposits: 1, deposited: 500, withdrawals: 2, withdrawn: 200 };
        let one = Outside { withdrawals: 1, ..all };
        assert_eq!(ledger.outside(3), Some(BTreeMap::from([(USDT, one)])));
        run(&mut ledger, Command::RaiseWatermark { order_number: 4 });
        ledger.forget_all();
        assert_eq!((ledger.outcome_count(), ledger.outside(3)), (0, None));
        assert_eq!(ledger.outside(4), Some(BTreeMap::from([(USDT, all)])));
        assert_eq!(run(&mut ledger, Command::External(deposit)), Answer::Forgotten);
        let mut small = Ledger::new(Places::of_transfers(1, 1));
        let symbol = Text::new("USDT").expect("short");
        run(&mut small, Command::RegisterAsset { asset: USDT, precision: 8, symbol });
        run(&mut small, Command::External(deposit));
        let more = external(Op::ExtDeposit, "d2", 5, 5);
        assert_eq!(run(&mut small, Command::External(more)), Answer::Overloaded);
    }

    /// The last unit can be withdrawn, and not one more.
    #[test]
    fn a_balance_can_be_emptied_and_not_overdrawn() {
        let mut ledger = ledger();
        decide(&mut ledger, order(Op::Deposit, 1, 7, 500));
        let refused = Decision::Refused(Code::InsufficientBalance);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 2, 7, 501)), refused);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 3, 7, 500)), Decision::Success);
        assert_eq!(decide(&mut ledger, order(Op::Withdraw, 4, 7, 1)), refused);
        assert_eq!(balance(&mut ledger, 7), Some(0));
        assert_eq!(ledger.balances(), [(7, USDT, 0)]);
    }

    /// Order numbers from [`Ledger::order_numbers_end`] on are free, also after the last outcome is
    /// evicted. The operations below a number are known from the watermark on.
    #[test]
    fn order_numbers_end_behind_the_last_and_settle_from_the_watermark_on() {
        let mut ledger = ledger();
        assert_eq!(ledger.order_numbers_end(), 0);
        for (req_id, op, order_number) in
            [(1, Op::Deposit, 3), (2, Op::Deposit, 9), (3, Op::Withdraw, 4), (4, Op::Withdraw, 10)]
        {
            // The last one is refused.
            let amount = if req_id == 4 { 1_000 } else { 100 };
            let order = Order { order_number, ..order(op, req_id, 7, amount) };
            run(&mut ledger, Command::Order(order));
        }
        assert_eq!(ledger.order_numbers_end(), 11);
        run(&mut ledger, Command::RaiseWatermark { order_number: 4 });
        assert_eq!(ledger.order_numbers_end(), 11);
        assert_eq!(ledger.settled(3), None);
        for (below, deposits, withdrawals) in
            [(4, 100, 0), (5, 100, 100), (9, 100, 100), (10, 200, 100), (11, 200, 100)]
        {
            let totals = Totals { deposits, withdrawals, refunds: 0 };
            let settled = ledger.settled(below).expect("at or above the watermark");
            assert_eq!(settled, BTreeMap::from([((7, USDT), totals)]), "below {below}");
        }
        run(&mut ledger, Command::RaiseWatermark { order_number: 20 });
        ledger.forget_all();
        assert_eq!((ledger.order_numbers_end(), ledger.outcome_count()), (20, 0));
        // The watermark's own number is not below it.
        let first = Order { order_number: 20, ..order(Op::Deposit, 5, 7, 1) };
        assert_eq!(decide(&mut ledger, first), Decision::Success);
        assert_eq!((ledger.order_numbers_end(), ledger.outcome_count()), (21, 1));
    }

    /// The digest is the sum of the facts after every change and every eviction.
    #[test]
    fn the_digest_is_the_sum_of_the_facts() {
        let mut ledger = ledger();
        let sum = |ledger: &Ledger| -> u128 {
            let add = |sum: u128, fact: Fact| sum.wrapping_add(fact.digest());
            ledger.facts().fold(0, add)
        };
        let mut seen = vec![Ledger::new(Places::of_transfers(1, 1)).digest()];
        for command in [
            Command::Order(order(Op::Deposit, 1, 7, 500)),
            Command::Order(order(Op::Withdraw, 2, 7, 100)),
            Command::Order(order(Op::Withdraw, 3, 7, 900)),
            Command::SetStatus { user: 7, status: AccountStatus::Frozen },
            Command::SetStatus { user: 8, status: AccountStatus::Active },
            Command::RaiseWatermark { order_number: 2 },
        ] {
            assert_eq!(ledger.digest(), sum(&ledger), "before {command:?}");
            assert!(!seen.contains(&ledger.digest()), "nothing has changed before {command:?}");
            seen.push(ledger.digest());
            run(&mut ledger, command);
        }
        let before = ledger.digest();
        ledger.forget_all();
        assert_eq!((ledger.digest(), sum(&ledger)), (before, before));
    }

    /// The sum of each asset, counted balance by balance.
    fn recounted(ledger: &Ledger) -> BTreeMap<u32, u128> {
        let mut totals = BTreeMap::new();
        for (_, asset, units) in ledger.balances() {
            *totals.entry(asset).or_default() += units;
        }
        totals
    }

    proptest! {
        /// Goal: an asset's total is the sum of its balances, also after a replay of the log and
        /// after a restore from the facts of a snapshot. Method: random orders of few names, users
        /// and assets.
        #[test]
        fn a_total_is_what_the_balances_add_up_to(
            orders in prop::collection::vec((0..5u8, 1..12u128, 1..4u64, 1..4u32, 1..50u64), 1..200)
        ) {
            let empty = || Ledger::new(Places::of_transfers(100, 1_000 ));
            let (mut ledger, mut replayed) = (empty(), empty());
            let mut builder = Builder::new(empty());
            let symbol = Text::new("USDT").expect("short");
            let register = |asset| Command::RegisterAsset { asset, precision: 8, symbol };
            let mut commands: Vec<Command> = (1..4).map(register).collect();
            for (step, req_id, user, asset, amount) in orders {
                let op = [Op::Withdraw, Op::Deposit, Op::Refund][usize::from(step % 3)];
                let order = Order { asset, ..order(op, req_id, user, amount) };
                commands.push(if step > 2 { refusal(order) } else { Command::Order(order) });
            }
            for command in commands {
                if let Step::Append(entry) = ledger.step(&command) {
                    let sequence = ledger.sequence + 1;
                    ledger.apply(&entry, sequence, 0);
                    replayed.apply(&entry, sequence, 0);
                }
                for (asset, units) in recounted(&ledger) {
                    prop_assert_eq!(ledger.total(asset), units);
                }
            }
            for fact in ledger.facts() {
                builder.add(fact).expect("its own facts");
            }
            let restored = builder.finish(ledger.sequence(), ledger.digest()).expect("its own facts");
            for asset in 1..4 {
                let total = ledger.total(asset);
                prop_assert_eq!(recounted(&ledger).get(&asset).copied().unwrap_or(0), total);
                prop_assert_eq!([replayed.total(asset), restored.total(asset)], [total; 2]);
            }
        }

        /// Goal: no sequence of orders makes or loses money. Method: random orders with few names
        /// and users, added up from the answers.
        #[test]
        fn balances_are_what_the_successes_add_up_to(
            orders in prop::collection::vec((0..5u8, 1..12u128, 1..4u64, 1..50u64), 1..200)
        ) {
            let mut ledger = ledger();
            let mut sum = HashMap::<u64, i128>::new();
            for (step, req_id, user, amount) in orders {
                let op = [Op::Withdraw, Op::Deposit, Op::Refund][usize::from(step % 3)];
                let before = ledger.sequence();
                let order = order(op, req_id, user, amount);
                let refuse = step > 2;
                let command = if refuse { refusal(order) } else { Command::Order(order) };
                let answer = run(&mut ledger, command);
                if let Answer::Decided(recorded) = answer
                    && recorded.decision == Decision::Success
                    && ledger.sequence() > before
                {
                    let sign = if op == Op::Withdraw { -1 } else { 1 };
                    *sum.entry(user).or_default() += sign * i128::from(amount);
                }
            }
            for (user, want) in sum {
                let have = balance(&mut ledger, user).expect("has an account");
                prop_assert_eq!(i128::try_from(have).expect("small"), want);
            }
        }
    }
}
