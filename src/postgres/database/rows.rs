//! The rows of a flight, in the form that its statement takes: each kind is one array of a
//! composite type of the schema.

use jiff::Timestamp;
use postgres_types::ToSql;

use super::Writer;
use super::receivables::ReceivableRow;
use super::recharges::{Movement, OrderRow, PaymentRow, ReturnRow};
use crate::postgres::columns::{
    Id, Numeric, amount_number, asset_number, bigint, code_number, numeric,
};
use crate::postgres::flight::{
    BalanceRow, Decided, Flight, FreezeRow, HoldRow, Moved, Operation, Passed, Written, entries,
};
use crate::postgres::recharge_events::{self, EventRow};
use crate::postgres::store::Transfer;
use crate::recharge::movement::{BONUS_HOLD, RETURN_HOLD};
use domain::code::Code;

#[derive(Debug, ToSql)]
#[postgres(name = "transfer_step")]
struct Step<'a> {
    event_id: i64,
    at: Timestamp,
    attempt: i32,
    states: Vec<i16>,
    actor: &'a str,
    reason: Option<&'static str>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "transfers_tb")]
struct Accepted<'a> {
    order_number: i64,
    user_id: i64,
    amount: i64,
    created_at: Timestamp,
    req_id: Id,
    asset_id: i32,
    direction: i16,
    cid: Option<&'a str>,
    state: i16,
    updated_at: Timestamp,
    log_sequence: Option<i64>,
    next_retry_at: Option<Timestamp>,
    funding_at: Option<Timestamp>,
    refund_at: Option<Timestamp>,
    attempts: i32,
    code: Option<i16>,
    funding_code: Option<i16>,
    error_message: Option<&'static str>,
    funding_after: Option<Numeric>,
    refund_after: Option<Numeric>,
    history: Vec<Step<'a>>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_move")]
struct Move<'a> {
    order_number: i64,
    before: i16,
    user_id: i64,
    asset_id: i32,
    amount: i64,
    state: i16,
    code: Option<i16>,
    log_sequence: Option<i64>,
    attempts: Option<i32>,
    next_retry_at: Option<Timestamp>,
    funding_at: Option<Timestamp>,
    funding_code: Option<i16>,
    funding_after: Option<Numeric>,
    refund_at: Option<Timestamp>,
    refund_after: Option<Numeric>,
    history: Vec<Step<'a>>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_deferral")]
struct Deferral {
    req_id: Id,
    state: i16,
    attempts: i32,
    next_retry_at: Timestamp,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_account")]
struct Account {
    user_id: i64,
    before: Option<i16>,
    after: Option<i16>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_balance")]
struct BalanceChange {
    user_id: i64,
    asset_id: i32,
    before: Option<Numeric>,
    frozen: Option<Numeric>,
    version: Option<i64>,
    after: Option<Numeric>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_note")]
struct Note<'a> {
    actor: &'a str,
    action: &'a str,
    subject: &'a str,
    detail: &'a str,
    reason: &'a str,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_external")]
struct ExternalRow<'a> {
    idem_key: &'a str,
    op: i16,
    code: Option<i16>,
    user_id: i64,
    asset_id: i32,
    amount: i64,
    balance_after: Option<Numeric>,
    order_number: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_hold")]
struct HoldChange<'a> {
    order_number: i64,
    user_id: i64,
    asset_id: i32,
    hold_key: &'a str,
    was_state: Option<i16>,
    was_round: Option<i16>,
    was_amount: Option<i64>,
    state: i16,
    amount: i64,
    round: i16,
    round_code: Option<i16>,
    asked: i64,
    pays: bool,
    paid: bool,
    taken: i64,
    brought: i64,
    reason: i16,
    settled_after: Option<Numeric>,
    purpose: i32,
    special: bool,
    deposited: i64,
    withdrawn: i64,
}

/// The frozen part of a balance that holds change.
#[derive(Debug, ToSql)]
#[postgres(name = "flight_frozen")]
struct Frozen {
    user_id: i64,
    asset_id: i32,
    frozen: Numeric,
}

/// The freeze of a purpose that holds change.
#[derive(Debug, ToSql)]
#[postgres(name = "flight_freeze")]
struct Freeze {
    user_id: i64,
    asset_id: i32,
    purpose: i32,
    before: Option<Numeric>,
    after: Numeric,
}

/// `funding_holds.reason` of a transaction.
const TRANSACTION: i16 = 1;
/// The same of a return: the watermark does not wait for it.
const RETURN: i16 = 2;

/// The outcomes of Funding's operations of one transfer that a flight decides.
#[derive(Default)]
struct Outcomes {
    funding_at: Option<Timestamp>,
    funding_code: Option<i16>,
    funding_after: Option<Numeric>,
    refund_at: Option<Timestamp>,
    refund_after: Option<Numeric>,
}

/// The values of the statement.
pub(super) struct Rows<'a> {
    shard: i32,
    number: i64,
    incarnation: i64,
    at: Timestamp,
    durable: i64,
    attempt: i64,
    open_from: i64,
    event_first: i64,
    event_count: i32,
    entries: Vec<u8>,
    /// The lowest new order number; `None`: there is none.
    lowest: Option<i64>,
    accepted: Vec<Accepted<'a>>,
    moved: Vec<Move<'a>>,
    deferred: Vec<Deferral>,
    accounts: Vec<Account>,
    balances: Vec<BalanceChange>,
    notes: Vec<Note<'a>>,
    externals: Vec<ExternalRow<'a>>,
    holds: Vec<HoldChange<'a>>,
    frozen: Vec<Frozen>,
    orders: Vec<OrderRow<'a>>,
    payments: Vec<PaymentRow<'a>>,
    returns: Vec<ReturnRow<'a>>,
    movements: Vec<Movement<'a>>,
    told: Vec<EventRow>,
    receivables: Vec<ReceivableRow>,
    freezes: Vec<Freeze>,
}

/// Makes the rows of one flight.
struct Maker<'a> {
    flight: &'a Flight,
    actor: &'a str,
    /// Of the next element of history.
    event_id: i64,
}

impl<'a> Rows<'a> {
    /// The rows of `flight`; `actor`: for its history.
    pub(super) fn of(flight: &'a Flight, writer: Writer, actor: &'a str) -> Rows<'a> {
        let event_id = bigint(flight.event_first);
        let mut maker = Maker { flight, actor, event_id };
        // In the order of their events.
        let moved = flight.moved.iter().map(|moved| maker.moved(moved)).collect();
        let accepted = flight.accepted.iter().map(|row| maker.accepted(row)).collect();
        let event_count = i32::try_from(flight.event_count()).expect("a few for each call");
        let told = recharge_events::rows_of(flight);
        let of_transfers = i64::from(event_count) - told.len() as i64;
        assert_eq!(maker.event_id, event_id + of_transfers, "an id for each element");
        let new = flight.accepted.iter().map(|row| row.transfer.intent.order_number);
        let outside = flight.externals.iter().map(|row| row.external.order_number);
        let apart = flight.holds.iter().filter(|row| row.before.is_none());
        let apart = apart.map(|row| row.after.order_number);
        let lowest = new.chain(outside).chain(apart).min().map(bigint);
        let entries = entries::encode(writer.shard, flight.number, &entries::of(flight));
        let deferred = flight.deferred.iter().map(|row| Deferral {
            req_id: Id::of(row.req_id),
            state: row.state.number(),
            attempts: count(row.retry_count),
            next_retry_at: row.next_retry_at,
        });
        let accounts = flight.accounts.iter().map(|row| Account {
            user_id: row.user.bigint(),
            before: row.before.map(|status| i16::from(status as u8)),
            after: row.after.map(|status| i16::from(status as u8)),
        });
        let balances = flight.balances.iter().map(|row| BalanceChange {
            user_id: row.user.bigint(),
            asset_id: asset_number(row.asset),
            before: row.before.map(|balance| Numeric(balance.available)),
            frozen: row.before.map(|balance| numeric(balance.frozen)),
            version: row.before.map(|balance| bigint(balance.version)),
            after: row.after.map(|balance| Numeric(balance.available)),
        });
        let notes = flight.audited.iter().map(|note| Note {
            actor: &note.actor,
            action: note.action,
            subject: &note.subject,
            detail: &note.detail,
            reason: &note.reason,
        });
        let externals = flight.externals.iter().map(|row| {
            let Decided { external, decision, balance_after } = row;
            ExternalRow {
                idem_key: &external.idem_key,
                op: i16::from(external.op.number()),
                code: decision.code().map(code_number),
                user_id: external.user.bigint(),
                asset_id: asset_number(external.asset),
                amount: amount_number(external.amount),
                balance_after: balance_after.map(Numeric),
                order_number: bigint(external.order_number),
            }
        });
        Rows {
            shard: writer.shard_number(),
            number: bigint(flight.number),
            incarnation: bigint(writer.incarnation),
            at: flight.at,
            durable: bigint(flight.durable),
            attempt: bigint(flight.attempt),
            open_from: bigint(flight.open_from),
            event_first: event_id,
            event_count,
            entries,
            lowest,
            accepted,
            moved,
            deferred: deferred.collect(),
            accounts: accounts.collect(),
            balances: balances.collect(),
            notes: notes.collect(),
            externals: externals.collect(),
            holds: flight.holds.iter().map(hold).collect(),
            frozen: flight.balances.iter().filter_map(frozen).collect(),
            orders: flight
                .recharged
                .orders
                .iter()
                .map(|(order, steps)| OrderRow::of(order, steps, flight.at))
                .collect(),
            payments: flight.recharged.payments.iter().map(PaymentRow::of).collect(),
            returns: flight.recharged.returns.iter().map(ReturnRow::of).collect(),
            movements: flight
                .recharged
                .movements
                .iter()
                .map(|row| Movement::of(row, flight.at))
                .collect(),
            told,
            receivables: flight
                .recharged
                .receivables
                .iter()
                .map(|(row, acts)| ReceivableRow::of(row, acts))
                .collect(),
            freezes: flight.freezes.iter().map(freeze).collect(),
        }
    }

    /// Whether it has only rows of a plain flight: see the statement.
    pub(super) fn are_plain(&self) -> bool {
        self.externals.is_empty() && !self.have_recharges() && self.move_only()
    }

    /// Whether its rows of recharges are those of credits, and its others those of a plain flight:
    /// see the statement.
    pub(super) fn are_credits(&self) -> bool {
        self.have_recharges()
            && self.orders.iter().all(|row| !row.is_new())
            && self.payments.iter().all(PaymentRow::is_new)
            && self.returns.is_empty()
            && self.receivables.is_empty()
            && self.move_only()
    }

    /// Whether accounts stand, balances change, nothing is set apart, and nothing is audited.
    fn move_only(&self) -> bool {
        let stands =
            |account: &Account| account.before.is_some() && account.after == account.before;
        let changes = |row: &BalanceChange| row.before.is_some() && row.after.is_some();
        self.deferred.is_empty()
            && self.notes.is_empty()
            && self.holds.is_empty()
            && self.frozen.is_empty()
            && self.freezes.is_empty()
            && self.accounts.iter().all(stands)
            && self.balances.iter().all(changes)
    }

    /// Whether it has rows of recharges.
    pub(super) fn have_recharges(&self) -> bool {
        !(self.orders.is_empty()
            && self.payments.is_empty()
            && self.returns.is_empty()
            && self.movements.is_empty()
            && self.told.is_empty()
            && self.receivables.is_empty())
    }

    /// In the order of the statement's parameters. `credits`: [`Rows::are_credits`].
    pub(super) fn values(&self, credits: bool) -> Vec<&(dyn ToSql + Sync)> {
        let mut values: Vec<&(dyn ToSql + Sync)> = vec![
            &self.shard,
            &self.number,
            &self.incarnation,
            &self.at,
            &self.durable,
            &self.attempt,
            &self.open_from,
            &self.event_first,
            &self.event_count,
            &self.entries,
            &self.lowest,
            &self.accepted,
            &self.moved,
            &self.accounts,
            &self.balances,
        ];
        if credits {
            let (outside, nothing): (&(dyn ToSql + Sync), &(dyn ToSql + Sync)) =
                (&self.externals, &None::<i32>);
            values.extend([nothing, outside, nothing, nothing, nothing, nothing]);
            values.extend([&self.orders as &(dyn ToSql + Sync), &self.payments, nothing]);
            values.extend([&self.movements as &(dyn ToSql + Sync), &self.told]);
            return values;
        }
        if !self.are_plain() {
            let beside: [&(dyn ToSql + Sync); 6] = [
                &self.deferred,
                &self.externals,
                &self.notes,
                &self.holds,
                &self.frozen,
                &self.freezes,
            ];
            values.extend(beside);
        }
        if self.have_recharges() {
            let recharges: [&(dyn ToSql + Sync); 6] = [
                &self.orders,
                &self.payments,
                &self.returns,
                &self.movements,
                &self.told,
                &self.receivables,
            ];
            values.extend(recharges);
        }
        values
    }
}

fn hold(row: &HoldRow) -> HoldChange<'_> {
    let HoldRow { key, before, after, settled_after } = row;
    HoldChange {
        order_number: bigint(after.order_number),
        user_id: after.user.bigint(),
        asset_id: asset_number(after.asset),
        hold_key: key.as_str(),
        was_state: before.map(|hold| hold.state.number()),
        was_round: before.map(|hold| hold.round.into()),
        was_amount: before.map(|hold| bigint(hold.amount)),
        state: after.state.number(),
        amount: bigint(after.amount),
        round: after.round.into(),
        round_code: after.round_code.map(code_number),
        asked: bigint(after.asked),
        pays: after.pays,
        paid: after.paid,
        taken: bigint(after.taken),
        brought: bigint(after.brought),
        reason: match [RETURN_HOLD, BONUS_HOLD].iter().any(|of| key.as_str().starts_with(of)) {
            true => RETURN,
            false => TRANSACTION,
        },
        settled_after: settled_after.map(Numeric),
        purpose: after.purpose.into(),
        special: after.special,
        deposited: bigint(after.deposited),
        withdrawn: bigint(after.withdrawn),
    }
}

fn freeze(row: &FreezeRow) -> Freeze {
    let FreezeRow { user, asset, purpose, before, after } = *row;
    Freeze {
        user_id: user.bigint(),
        asset_id: asset_number(asset),
        purpose: purpose.into(),
        before: before.map(numeric),
        after: numeric(after),
    }
}

/// The frozen part of a balance, if it changes; a new row begins with none.
fn frozen(row: &BalanceRow) -> Option<Frozen> {
    let after = row.after?;
    let before = row.before.map_or(0, |before| before.frozen);
    let (user_id, asset_id) = (row.user.bigint(), asset_number(row.asset));
    let frozen = numeric(after.frozen);
    (before != after.frozen).then_some(Frozen { user_id, asset_id, frozen })
}

impl<'a> Maker<'a> {
    fn accepted(&mut self, row: &'a Written) -> Accepted<'a> {
        let Written { transfer, next_retry_at, .. } = row;
        let Transfer { intent, state, code, .. } = transfer;
        let outcomes = self.outcomes(row);
        Accepted {
            order_number: bigint(intent.order_number),
            user_id: intent.user.bigint(),
            amount: amount_number(intent.amount),
            created_at: self.flight.at,
            req_id: Id::of(intent.req_id),
            asset_id: asset_number(intent.asset),
            direction: i16::from(intent.direction as u8),
            cid: intent.cid.as_ref().map(|cid| cid.as_str()),
            state: state.number(),
            updated_at: self.flight.at,
            log_sequence: transfer.log_sequence.map(bigint),
            next_retry_at: *next_retry_at,
            funding_at: outcomes.funding_at,
            refund_at: outcomes.refund_at,
            attempts: count(transfer.retry_count),
            code: code.map(code_number),
            funding_code: outcomes.funding_code,
            error_message: None,
            funding_after: outcomes.funding_after,
            refund_after: outcomes.refund_after,
            history: self.history(row),
        }
    }

    fn moved(&mut self, Moved { from, to, tries }: &'a Moved) -> Move<'a> {
        let Transfer { intent, state, code, log_sequence, .. } = &to.transfer;
        let outcomes = self.outcomes(to);
        Move {
            order_number: bigint(intent.order_number),
            before: from.number(),
            user_id: intent.user.bigint(),
            asset_id: asset_number(intent.asset),
            amount: amount_number(intent.amount),
            state: state.number(),
            code: code.map(code_number),
            log_sequence: log_sequence.map(bigint),
            attempts: tries.then(|| count(to.transfer.retry_count)),
            next_retry_at: to.next_retry_at,
            funding_at: outcomes.funding_at,
            funding_code: outcomes.funding_code,
            funding_after: outcomes.funding_after,
            refund_at: outcomes.refund_at,
            refund_after: outcomes.refund_after,
            history: self.history(to),
        }
    }

    fn outcomes(&self, row: &Written) -> Outcomes {
        let mut outcomes = Outcomes::default();
        for Operation { op, decision, balance_after } in &row.operations {
            let at = Some(self.flight.at);
            let after = balance_after.map(Numeric);
            match op.row().undoes {
                Some(_) => (outcomes.refund_at, outcomes.refund_after) = (at, after),
                None => {
                    (outcomes.funding_at, outcomes.funding_after) = (at, after);
                    outcomes.funding_code = decision.code().map(code_number);
                }
            }
        }
        outcomes
    }

    fn history(&mut self, row: &Written) -> Vec<Step<'a>> {
        let step = |passed: &Passed| {
            let event_id = self.event_id;
            self.event_id += 1;
            Step {
                event_id,
                at: self.flight.at,
                attempt: count(passed.attempt),
                states: passed.states.iter().map(|state| state.number()).collect(),
                actor: self.actor,
                reason: passed.reason.map(Code::name),
            }
        };
        row.passed.iter().map(step).collect()
    }
}

/// As an INTEGER holds it.
fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
