//! The rows of a flight, in the form that its statement takes: each kind is one array of a
//! composite type of the schema.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use jiff::Timestamp;
use postgres_types::{IsNull, ToSql, Type, to_sql_checked};

use super::{Writer, precision};
use crate::postgres::columns::{asset_number, bigint};
use crate::postgres::flight::{Decided, Flight, Moved, Operation, Passed, Written, entries};
use crate::postgres::store::Transfer;
use domain::asset::{AssetId, Catalog};
use domain::code::Code;
use domain::transfer::Intent;

/// Smallest units as a NUMERIC of `scale` decimals, in PostgreSQL's binary form: digits to the base
/// 10,000. It holds more digits than `rust_decimal`.
#[derive(Clone, Copy, Debug)]
struct Numeric {
    units: u128,
    scale: u8,
}

impl ToSql for Numeric {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        const BASE: u128 = 10_000;
        const DIGIT_DECIMALS: u32 = 4;
        let coin = 10_u128.pow(self.scale.into());
        let fraction_digits = u32::from(self.scale).div_ceil(DIGIT_DECIMALS);
        let shift = 10_u128.pow(fraction_digits * DIGIT_DECIMALS - u32::from(self.scale));
        let parts = [(self.units / coin, None), (self.units % coin * shift, Some(fraction_digits))];
        let (mut digits, mut weight) = (Vec::with_capacity(12), -1_i16);
        for (mut part, count) in parts {
            let begin = digits.len();
            while count.map_or(part > 0, |count| digits.len() - begin < count as usize) {
                digits.push(i16::try_from(part % BASE)?);
                part /= BASE;
            }
            digits[begin..].reverse();
            if count.is_none() {
                weight += i16::try_from(digits.len())?;
            }
        }
        out.put_i16(i16::try_from(digits.len())?);
        out.put_i16(weight);
        out.put_i16(0); // the sign: positive
        out.put_i16(self.scale.into());
        digits.into_iter().for_each(|digit| out.put_i16(digit));
        Ok(IsNull::No)
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::NUMERIC
    }

    to_sql_checked!();
}

#[derive(Debug, ToSql)]
#[postgres(name = "transfer_step")]
struct Step<'a> {
    states: Vec<i16>,
    at: Timestamp,
    attempt: i32,
    actor: &'a str,
    reason: Option<&'static str>,
    event_id: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "transfers_tb")]
struct Accepted<'a> {
    order_number: i64,
    user_id: i64,
    created_at: Timestamp,
    asset_id: i32,
    transfer_type: i16,
    source_type: i16,
    req_id: String,
    cid: Option<&'a str>,
    fingerprint: &'a str,
    amount: Numeric,
    state: i16,
    retry_count: i32,
    updated_at: Timestamp,
    log_sequence: Option<i64>,
    next_retry_at: Option<Timestamp>,
    error_code: Option<&'static str>,
    error_message: Option<&'static str>,
    funding_at: Option<Timestamp>,
    funding_code: Option<&'static str>,
    funding_after: Option<Numeric>,
    refund_at: Option<Timestamp>,
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
    amount: Numeric,
    state: i16,
    error_code: Option<&'static str>,
    log_sequence: Option<i64>,
    retry_count: Option<i32>,
    next_retry_at: Option<Timestamp>,
    funding_at: Option<Timestamp>,
    funding_code: Option<&'static str>,
    funding_after: Option<Numeric>,
    refund_at: Option<Timestamp>,
    refund_after: Option<Numeric>,
    history: Vec<Step<'a>>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "flight_deferral")]
struct Deferral {
    req_id: String,
    state: i16,
    retry_count: i32,
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
    code: Option<&'static str>,
    user_id: i64,
    asset_id: i32,
    amount: Numeric,
    balance_after: Option<Numeric>,
    order_number: i64,
}

/// The outcomes of Funding's operations of one transfer that a flight decides.
#[derive(Default)]
struct Outcomes {
    funding_at: Option<Timestamp>,
    funding_code: Option<&'static str>,
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
}

/// Makes the rows of one flight.
struct Maker<'a> {
    flight: &'a Flight,
    actor: &'a str,
    catalog: &'a Catalog,
    /// Of the next element of history.
    event_id: i64,
}

impl<'a> Rows<'a> {
    /// The rows of `flight`; `actor`: for its history.
    pub(super) fn of(
        flight: &'a Flight,
        writer: Writer,
        actor: &'a str,
        catalog: &'a Catalog,
    ) -> Rows<'a> {
        let event_id = bigint(flight.event_first);
        let mut maker = Maker { flight, actor, catalog, event_id };
        // In the order of their events.
        let moved = flight.moved.iter().map(|moved| maker.moved(moved)).collect();
        let accepted = flight.accepted.iter().map(|row| maker.accepted(row)).collect();
        let event_count = i32::try_from(flight.events().count()).expect("a few for each call");
        assert_eq!(maker.event_id, event_id + i64::from(event_count), "an id for each element");
        let new = flight.accepted.iter().map(|row| row.transfer.intent.order_number);
        let outside = flight.externals.iter().map(|row| row.external.order_number);
        let lowest = new.chain(outside).min().map(bigint);
        let entries = entries::encode(writer.shard, flight.number, &entries::of(flight));
        let deferred = flight.deferred.iter().map(|row| Deferral {
            req_id: row.req_id.to_string(),
            state: row.state.number(),
            retry_count: count(row.retry_count),
            next_retry_at: row.next_retry_at,
        });
        let accounts = flight.accounts.iter().map(|row| Account {
            user_id: row.user.bigint(),
            before: row.before.map(|status| i16::from(status as u8)),
            after: row.after.map(|status| i16::from(status as u8)),
        });
        let balances = flight.balances.iter().map(|row| {
            let numeric = |units| maker.numeric(row.asset, units);
            BalanceChange {
                user_id: row.user.bigint(),
                asset_id: asset_number(row.asset),
                before: row.before.map(|balance| numeric(balance.available)),
                frozen: row.before.map(|balance| numeric(balance.frozen)),
                version: row.before.map(|balance| bigint(balance.version)),
                after: row.after.map(|balance| numeric(balance.available)),
            }
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
            let numeric = |units| maker.numeric(external.asset, units);
            ExternalRow {
                idem_key: &external.idem_key,
                op: i16::from(external.op.number()),
                code: decision.code().map(Code::name),
                user_id: external.user.bigint(),
                asset_id: asset_number(external.asset),
                amount: numeric(external.amount.units().into()),
                balance_after: balance_after.map(numeric),
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
        }
    }

    /// Whether it has only rows of a plain flight: see the statement.
    pub(super) fn are_plain(&self) -> bool {
        let stands =
            |account: &Account| account.before.is_some() && account.after == account.before;
        let changes = |row: &BalanceChange| row.before.is_some() && row.after.is_some();
        self.deferred.is_empty()
            && self.externals.is_empty()
            && self.notes.is_empty()
            && self.accounts.iter().all(stands)
            && self.balances.iter().all(changes)
    }

    /// In the order of the statement's parameters.
    pub(super) fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
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
        if !self.are_plain() {
            let beside: [&(dyn ToSql + Sync); 3] = [&self.deferred, &self.externals, &self.notes];
            values.extend(beside);
        }
        values
    }
}

impl<'a> Maker<'a> {
    fn accepted(&mut self, row: &'a Written) -> Accepted<'a> {
        let Written { transfer, next_retry_at, .. } = row;
        let Transfer { intent, fingerprint, state, code, .. } = transfer;
        let direction = i16::from(intent.direction as u8);
        let outcomes = self.outcomes(row);
        Accepted {
            order_number: bigint(intent.order_number),
            user_id: intent.user.bigint(),
            created_at: self.flight.at,
            asset_id: asset_number(intent.asset),
            transfer_type: direction,
            source_type: direction,
            req_id: intent.req_id.to_string(),
            cid: intent.cid.as_ref().map(|cid| cid.as_str()),
            fingerprint,
            amount: self.amount(intent),
            state: state.number(),
            retry_count: count(transfer.retry_count),
            updated_at: self.flight.at,
            log_sequence: transfer.log_sequence.map(bigint),
            next_retry_at: *next_retry_at,
            error_code: code.map(Code::name),
            error_message: None,
            funding_at: outcomes.funding_at,
            funding_code: outcomes.funding_code,
            funding_after: outcomes.funding_after,
            refund_at: outcomes.refund_at,
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
            amount: self.amount(intent),
            state: state.number(),
            error_code: code.map(Code::name),
            log_sequence: log_sequence.map(bigint),
            retry_count: tries.then(|| count(to.transfer.retry_count)),
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
            let asset = row.transfer.intent.asset;
            let at = Some(self.flight.at);
            let after = balance_after.map(|units| self.numeric(asset, units));
            match op.row().undoes {
                Some(_) => (outcomes.refund_at, outcomes.refund_after) = (at, after),
                None => {
                    (outcomes.funding_at, outcomes.funding_after) = (at, after);
                    outcomes.funding_code = decision.code().map(Code::name);
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
                states: passed.states.iter().map(|state| state.number()).collect(),
                at: self.flight.at,
                attempt: count(passed.attempt),
                actor: self.actor,
                reason: passed.reason.map(Code::name),
                event_id,
            }
        };
        row.passed.iter().map(step).collect()
    }

    fn amount(&self, intent: &Intent) -> Numeric {
        self.numeric(intent.asset, intent.amount.units().into())
    }

    fn numeric(&self, asset: AssetId, units: u128) -> Numeric {
        Numeric { units, scale: precision(self.catalog, asset) }
    }
}

/// As an INTEGER holds it.
fn count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
