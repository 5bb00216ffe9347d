//! A model of PostgreSQL as far as the coordinator relies on it: its schema in memory, one
//! transaction after the other, and a connection that loses, delays and doubles messages.
//!
//! A transaction is carried out at one moment, whole or not at all, whether or not its client still
//! listens. Row locks have the same effect for a client outside the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use domain::account::AccountStatus;
use domain::amount::Amount;
use domain::code::Code;
use domain::hold::{self, Hold, HoldAccount, HoldDecided, HoldOrder};
use domain::transfer::{
    Cid, Decision, Direction, Event, ExternalOperation, Intent, Op, ReqId, State,
};
use jiff::Timestamp;
use ubscore::postgres::flight::Acted;
use ubscore::postgres::store::{
    Call, External, Failure, FundingPart, Page, Reply, Sought, Transfer, TransitionPath, Unfinished,
};
use ubscore::postgres::watermark::Open;
use wal::Sequence;

use super::law::{Law, Side};
use super::transacted::Transacted;
use super::world::Bug;

/// Order numbers in one page of the search: few, so that there are several pages.
const PAGE_ROWS: usize = 5;
/// PostgreSQL's clock at the beginning of a run, seconds since the Unix epoch.
const EPOCH_S: i64 = 1_767_225_600;

/// The rows of the model, as queries on the server's tables.
pub(super) const TABLES: [&str; 10] = [
    "SELECT order_number, ulid_text(req_id), cid, user_id, asset_id, amount, direction, state, code_name(code), \
       attempts, next_retry_at IS NOT NULL, log_sequence FROM transfers_tb",
    "SELECT ulid_text(req_id), ordinality, array_to_string(step.states, ' '), step.attempt, step.reason \
       FROM transfers_tb CROSS JOIN LATERAL unnest(history) WITH ORDINALITY AS step",
    "SELECT ulid_text(req_id), op, code_name(code), user_id, asset_id, amount, balance_after \
       FROM transfer_decisions",
    "SELECT idem_key, op, code_name(code), user_id, asset_id, amount, balance_after, order_number \
       FROM external_operations",
    "SELECT user_id, status FROM accounts_tb",
    "SELECT user_id, asset_id, available, frozen FROM balances_tb",
    "SELECT shard, incarnation, durable FROM journal_last",
    "SELECT incarnation, watermark FROM engine_state",
    "SELECT hold_key, user_id, asset_id, state, amount, round, code_name(round_code), asked, pays, paid, \
       taken, brought, purpose, special, deposited, withdrawn FROM funding_holds",
    "SELECT user_id, asset_id, purpose, amount FROM freezes_tb",
];

/// The largest INTEGER.
const INTEGER_MAX: u32 = i32::MAX.unsigned_abs();

/// A table with the changes that restore its last commit.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    pub(super) rows: BTreeMap<K, V>,
    undo: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table { rows: BTreeMap::new(), undo: Vec::new() }
    }
}

impl<K: Ord + Clone, V: Clone> Table<K, V> {
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.rows.get(key)
    }

    pub(super) fn set(&mut self, key: K, row: V) {
        let before = self.rows.insert(key.clone(), row);
        self.undo.push((key, before));
    }

    fn end(&mut self, commit: bool) {
        for (key, before) in std::mem::take(&mut self.undo).into_iter().rev() {
            match before {
                _ if commit => {}
                Some(row) => drop(self.rows.insert(key, row)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }
}

/// An operation: user, asset, amount, and the code of its refusal.
pub(super) type Operation = (u64, u32, u64, Option<Code>);

/// A row of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) incarnation: u64,
    pub(super) attempt: u64,
    pub(super) durable: Sequence,
}

/// A row of a transfer's history.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) states: Vec<State>,
    pub(super) attempt: u32,
    pub(super) reason: Option<Code>,
}

/// An addition of a transaction to the journals.
#[derive(Debug)]
pub(super) enum Fact {
    Operation(u128, Op, Operation),
    Accepted(Intent),
    Passed(u128, Passed),
    External(u64, u32, i128),
    Balance(u64, u32),
    /// User, asset and purpose.
    Freeze(u64, u32, u16),
    Hold(Acted),
}

/// The server.
#[derive(Debug, Default)]
pub(super) struct Postgres {
    /// By order number.
    pub(super) transfers: Table<u64, (Transfer, Option<u64>)>,
    /// Order numbers by name.
    pub(super) names: Table<u128, u64>,
    /// Order numbers by user and cid.
    pub(super) cids: Table<(u64, String), u64>,
    pub(super) operations: Table<(u128, u8), Operation>,
    /// The balance behind each operation that succeeded.
    pub(super) behind: Table<(u128, u8), i128>,
    pub(super) externals: Table<String, (External, Option<Code>, i128)>,
    pub(super) accounts: Table<u64, AccountStatus>,
    /// Available, and the row's version.
    pub(super) balances: Table<(u64, u32), (i128, u64)>,
    /// The balances that may be below zero.
    pub(super) special: BTreeSet<(u64, u32)>,
    /// The frozen part of a balance, if it was ever changed.
    pub(super) frozen: Table<(u64, u32), u128>,
    pub(super) holds: Table<String, Hold>,
    /// By user, asset and purpose.
    pub(super) freezes: Table<(u64, u32, u16), u128>,
    /// Written outside of flights.
    pub(super) transacted: Transacted,
    /// By shard and flight.
    pub(super) journal: Table<(u32, u64), Row>,
    history: Vec<(u128, Passed)>,
    pub(super) incarnation: u64,
    pub(super) watermark: u64,
    /// `watermark_open`.
    open: Open,
    pub(super) facts: Vec<Fact>,
    /// Whether clients can connect.
    pub(super) up: bool,
    /// How often it has begun; messages of an earlier life are lost.
    pub(super) lives: u64,
    pub(super) now: Timestamp,
}

/// Why a transaction is rolled back.
enum Refusal {
    FenceHeld,
    Fenced,
    NoShard,
    /// UB002 or UB003, of this call.
    Violation(usize),
    /// An error without a meaning in the protocol, at this call.
    Unforeseen(usize),
}

/// `transfer_state_admits`: whether a path leads from one state to the other. A row that keeps its
/// state meets no guard.
pub(super) fn admits(from: State, to: State) -> bool {
    let mut nexts = Event::ALL.into_iter().filter_map(|event| from.next(event));
    from == to || nexts.any(|next| admits(next, to))
}

pub(super) fn said(what: &str) -> Box<dyn std::error::Error + Send + Sync> {
    what.into()
}

impl Postgres {
    pub(super) fn new() -> Postgres {
        Postgres { up: true, ..Postgres::default() }
    }

    /// A start: the next incarnation with its shards; returns it, the highest log sequence known
    /// durable, the watermark, and where open transfers are.
    pub(super) fn begin(&mut self, shards: u32) -> (u64, Sequence, u64, Open) {
        for (number, (transfer, _)) in &self.transfers.rows {
            let found = *number >= self.open.from || self.open.old.contains(number);
            assert!(found || transfer.state.is_terminal(), "{number} is not in {:?}", self.open);
        }
        self.incarnation += 1;
        let shards: BTreeSet<u32> = self.shards().into_iter().chain(0..shards).collect();
        for shard in shards {
            let (flight, Row { durable, .. }) = self.last(shard);
            let row = Row { incarnation: self.incarnation, attempt: 0, durable };
            self.journal.set((shard, flight + 1), row);
        }
        self.journal.end(true);
        let claim = self.journal.rows.values().map(|row| row.durable).max();
        (self.incarnation, claim.unwrap_or(0), self.watermark, self.open.clone())
    }

    /// `watermark_note_open`.
    pub(super) fn note_open(&mut self, incarnation: u64, open: Open) {
        if incarnation == self.incarnation {
            self.open = open;
        }
    }

    /// The shards that the journal knows.
    fn shards(&self) -> BTreeSet<u32> {
        self.journal.rows.keys().map(|(shard, _)| *shard).collect()
    }

    /// A shard's last flight, with its row.
    pub(super) fn last(&self, shard: u32) -> (u64, Row) {
        let mut rows = self.journal.rows.range((shard, 0)..=(shard, u64::MAX));
        rows.next_back().map_or((0, Row::default()), |((_, flight), row)| (*flight, *row))
    }

    /// `journal_trim`: deletes an unbroken low end of each shard, and never its last `keep` rows.
    pub(super) fn trim(&mut self, keep: u64, bug: Option<Bug>) {
        for shard in self.shards() {
            let (last, _) = self.last(shard);
            let rows = self.journal.rows.range((shard, 0)..=(shard, last));
            let old = rows.take_while(|((_, flight), _)| flight + keep <= last);
            let old: Vec<(u32, u64)> = match bug {
                Some(Bug::JournalEndDeleted) => vec![(shard, last)],
                Some(Bug::JournalHole) => {
                    old.map(|(key, _)| *key).filter(|(_, flight)| flight % 2 == 0).collect()
                }
                _ => old.map(|(key, _)| *key).collect(),
            };
            for key in old {
                self.journal.rows.remove(&key);
            }
        }
    }

    /// Another session changes a balance, and raises its version.
    pub(super) fn change_from_outside(&mut self, user: u64, asset: u32, units: u64, law: &mut Law) {
        if let Some(&(available, _)) = self.balances.get(&(user, asset)) {
            self.facts.push(Fact::External(user, asset, units.into()));
            self.set_balance(user, asset, available + i128::from(units));
            self.end(true);
            self.show_facts(law);
        }
    }

    /// Raises the watermark as far as `target` and every row allow; `None` if the caller is
    /// superseded.
    pub(super) fn raise_watermark(
        &mut self,
        incarnation: u64,
        target: u64,
        keep: Duration,
        bug: Option<Bug>,
    ) -> Option<u64> {
        if incarnation != self.incarnation {
            return None;
        }
        let low = self.transacted.low(self.watermark, self.now, keep);
        let keep = i64::try_from(keep.as_nanos()).expect("seconds");
        let now = self.now.as_nanosecond();
        let holds = |(transfer, _): &&(Transfer, Option<u64>)| {
            let age = now - transfer.updated_at.as_nanosecond();
            !transfer.state.is_terminal() || (0..i128::from(keep)).contains(&age)
        };
        // Rows below have ended, at any age.
        let held = self.transfers.rows.range(self.watermark..).map(|(_, row)| row).find(holds);
        let held = held.map_or(u64::MAX, |(transfer, _)| transfer.intent.order_number);
        let end = self.transfers.rows.keys().next_back().map_or(0, |last| last + 1);
        let target = match bug {
            Some(Bug::ForgottenEarly) => end,
            _ => target.min(held).min(low),
        };
        self.watermark = self.watermark.max(target);
        Some(self.watermark)
    }

    /// A transfer, as a reader finds it.
    pub(super) fn read(&self, req_id: u128) -> Option<Transfer> {
        let number = self.names.get(&req_id)?;
        self.transfers.get(number).map(|(transfer, _)| transfer.clone())
    }

    /// Whether an external operation has been decided.
    pub(super) fn has_external(&self, idem_key: &str) -> bool {
        self.externals.rows.contains_key(idem_key)
    }

    /// All decided external operations.
    pub(super) fn externals(&self) -> Vec<ExternalOperation> {
        let operation = |(external, code, after): &(External, Option<Code>, i128)| {
            let External { idem_key, op, user, asset, amount, order_number, .. } = external;
            ExternalOperation {
                op: *op,
                idem_key: Cid::of_operation(idem_key).expect("a key"),
                user: *user,
                asset: *asset,
                amount: *amount,
                order_number: *order_number,
                decision: code.map_or(Decision::Success, Decision::Refused),
                balance_after: match code {
                    None => u128::try_from(*after).unwrap_or(0),
                    Some(_) => 0,
                },
            }
        };
        self.externals.rows.values().map(operation).collect()
    }

    /// The state of every transfer.
    pub(super) fn states(&self) -> BTreeMap<u128, i16> {
        let transfers = self.transfers.rows.values();
        transfers.map(|(t, _)| (t.intent.req_id.number(), t.state.number())).collect()
    }

    /// All rows of the tables, in the form that [`TABLES`] reads from the server.
    pub(super) fn rows(&self) -> [Vec<String>; TABLES.len()] {
        fn text<T: ToString>(value: Option<T>) -> String {
            value.map(|value| value.to_string()).unwrap_or_default()
        }
        let name = |number: u128| ReqId::new(number).expect("not zero");
        let transfers = self.transfers.rows.iter().map(|(number, (transfer, next_retry_ms))| {
            let Transfer { intent, state, code, retry_count, log_sequence, .. } = transfer;
            let cid = intent.cid.as_ref().map(Cid::as_str);
            let (user, asset) = (intent.user, intent.asset.0);
            let (amount, way) = (intent.amount.units(), intent.direction as u8);
            let (state, code, sequence) = (state.number(), text(*code), text(*log_sequence));
            let deferred = if next_retry_ms.is_some() { "t" } else { "f" };
            format!(
                "{number}|{}|{}|{user}|{asset}|{amount}|{way}|{state}|{code}|\
                 {retry_count}|{deferred}|{sequence}",
                intent.req_id,
                text(cid),
            )
        });
        let mut paths = BTreeMap::<u128, u32>::new();
        let history = self.history.iter().map(|(req_id, Passed { states, attempt, reason })| {
            let nth = paths.entry(*req_id).or_default();
            *nth += 1;
            let states: Vec<String> = states.iter().map(|s| s.number().to_string()).collect();
            let attempt = (*attempt).min(INTEGER_MAX);
            format!("{}|{nth}|{}|{attempt}|{}", name(*req_id), states.join(" "), text(*reason))
        });
        let operations = self.operations.rows.iter().map(|((req_id, op), row)| {
            let &(user, asset, amount, code) = row;
            let behind = text(self.behind.get(&(*req_id, *op)));
            let (name, code) = (name(*req_id), text(code));
            format!("{name}|{op}|{code}|{user}|{asset}|{amount}|{behind}")
        });
        let externals = self.externals.rows.iter().map(|(key, (external, code, after))| {
            let External { op, user, asset, amount, order_number, .. } = external;
            let after = text(code.is_none().then_some(*after));
            let (op, amount) = (*op as u8, amount.units());
            let (asset, code) = (asset.0, text(*code));
            format!("{key}|{op}|{code}|{user}|{asset}|{amount}|{after}|{order_number}")
        });
        let accounts = self.accounts.rows.iter();
        let accounts = accounts.map(|(user, status)| format!("{user}|{}", *status as i16));
        let balances = self.balances.rows.iter();
        let balances = balances.map(|((user, asset), units)| {
            format!("{user}|{asset}|{}|{}", units.0, self.frozen_of(*user, *asset))
        });
        let flag = |flag: bool| if flag { "t" } else { "f" };
        let holds = self.holds.rows.iter().map(|(key, hold)| {
            let Hold { user, asset, state, amount, round, round_code, asked, .. } = hold;
            let Hold { pays, paid, taken, brought, purpose, special, deposited, withdrawn, .. } =
                hold;
            let (asset, state, code) = (asset.0, state.number(), text(*round_code));
            let (pays, paid, special) = (flag(*pays), flag(*paid), flag(*special));
            format!(
                "{key}|{user}|{asset}|{state}|{amount}|{round}|{code}|{asked}|{pays}|{paid}|\
                 {taken}|{brought}|{purpose}|{special}|{deposited}|{withdrawn}"
            )
        });
        let freezes = self.freezes.rows.iter();
        let freezes = freezes
            .map(|((user, asset, purpose), units)| format!("{user}|{asset}|{purpose}|{units}"));
        let journal = self.shards().into_iter().map(|shard| {
            let (_, Row { incarnation, durable, .. }) = self.last(shard);
            format!("{shard}|{incarnation}|{durable}")
        });
        [
            transfers.collect(),
            history.collect(),
            operations.collect(),
            externals.collect(),
            accounts.collect(),
            balances.collect(),
            journal.collect(),
            vec![format!("{}|{}", self.incarnation, self.watermark)],
            holds.collect(),
            freezes.collect(),
        ]
    }

    /// When each transfer was last touched, by its name.
    pub(super) fn touched(&self) -> BTreeMap<String, String> {
        let transfers = self.transfers.rows.values();
        transfers.map(|(t, _)| (t.intent.req_id.to_string(), t.updated_at.to_string())).collect()
    }

    pub(super) fn all_terminal(&self) -> bool {
        self.transfers.rows.values().all(|(transfer, _)| transfer.state.is_terminal())
    }

    pub(super) fn show_balances(&self, law: &mut Law) {
        for (&(user, asset), &units) in &self.balances.rows {
            let frozen = self.frozen_of(user, asset);
            law.balance(Side::Funding, user, asset, units.0 + signed(frozen));
            law.frozen(user, asset, frozen);
        }
        for (&place, &units) in &self.freezes.rows {
            law.freeze(place, units);
        }
    }

    pub(super) fn frozen_of(&self, user: u64, asset: u32) -> u128 {
        self.frozen.get(&(user, asset)).copied().unwrap_or(0)
    }

    fn fence(&mut self, flight: &Flight, fate: Fate) -> Result<(), Refusal> {
        let (number, last) = self.last(flight.shard);
        if last.incarnation > flight.incarnation {
            return Err(Refusal::Fenced);
        }
        if last.incarnation == 0 {
            return Err(Refusal::NoShard);
        }
        if fate == Fate::FenceHeld {
            return Err(Refusal::FenceHeld);
        }
        assert_eq!(last.incarnation, flight.incarnation, "it has begun");
        let row = Row { durable: last.durable.max(flight.durable), ..last };
        self.journal.set((flight.shard, number + 1), row);
        Ok(())
    }

    /// Ends a transaction.
    pub(super) fn end(&mut self, commit: bool) {
        self.transfers.end(commit);
        self.names.end(commit);
        self.cids.end(commit);
        self.operations.end(commit);
        self.behind.end(commit);
        self.externals.end(commit);
        self.accounts.end(commit);
        self.balances.end(commit);
        self.frozen.end(commit);
        self.holds.end(commit);
        self.freezes.end(commit);
        self.journal.end(commit);
        if commit {
            self.transacted.synced();
        }
    }

    /// Shows the judge what was committed. Balances last: they are the result of the whole.
    pub(super) fn show_facts(&mut self, law: &mut Law) {
        let facts = std::mem::take(&mut self.facts);
        let (balances, facts): (Vec<Fact>, Vec<Fact>) = facts
            .into_iter()
            .partition(|fact| matches!(fact, Fact::Balance(..) | Fact::Freeze(..)));
        for fact in facts.into_iter().chain(balances) {
            self.show(fact, law);
        }
        law.committed();
    }

    /// Carries out a transaction, and rolls it back at the end if its fate demands it. Committed
    /// changes are shown to the judge.
    pub(super) fn transact(
        &mut self,
        flight: &Flight,
        law: &mut Law,
        fate: Fate,
    ) -> Result<Vec<Reply>, Failure> {
        let done = self.fence(flight, fate).and_then(|()| {
            let calls = flight.calls.iter().enumerate();
            calls.map(|(index, call)| self.carry_out(index, call)).collect()
        });
        let aborts = matches!(fate, Fate::HeldUp | Fate::Refused);
        let commit = done.is_ok() && !aborts;
        self.end(commit);
        let last = flight.calls.len() - 1;
        match commit {
            true => self.show_facts(law),
            false => self.facts.clear(),
        }
        match done {
            Ok(replies) if commit => Ok(replies),
            Ok(_) => Err(match fate {
                Fate::HeldUp => {
                    let indices = vec![last];
                    Failure::Blocked { indices, changed: false, source: said("lock timeout") }
                }
                _ => {
                    let source = said("out of range");
                    Failure::Refused { index: last, violation: false, source }
                }
            }),
            Err(Refusal::FenceHeld) => Err(Failure::Retry(said("lock timeout"))),
            Err(Refusal::Fenced) => Err(Failure::Fenced),
            Err(Refusal::NoShard) => Err(Failure::Unreachable(said("no row of the shard"))),
            Err(refusal @ (Refusal::Violation(index) | Refusal::Unforeseen(index))) => {
                let violation = matches!(refusal, Refusal::Violation(_));
                Err(Failure::Refused { index, violation, source: said("against the rules") })
            }
        }
    }

    fn show(&mut self, fact: Fact, law: &mut Law) {
        match fact {
            Fact::Operation(req_id, op, (user, asset, amount, code)) => {
                let decision = code.map_or(Decision::Success, Decision::Refused);
                law.recorded(Side::Funding, (req_id, op), (user, asset, amount), decision)
            }
            Fact::Accepted(intent) => law.accepted(&intent),
            Fact::Passed(req_id, passed) => {
                let numbers: Vec<i16> = passed.states.iter().map(|state| state.number()).collect();
                law.passed(req_id, &numbers);
                self.history.push((req_id, passed));
            }
            Fact::External(user, asset, change) => law.external(user, asset, change),
            Fact::Balance(user, asset) => {
                let units = self.balances.get(&(user, asset)).map_or(0, |(units, _)| *units);
                let frozen = self.frozen_of(user, asset);
                law.balance(Side::Funding, user, asset, units + signed(frozen));
                law.frozen(user, asset, frozen);
            }
            Fact::Freeze(user, asset, purpose) => {
                let place = (user, asset, purpose);
                law.freeze(place, self.freezes.get(&place).copied().unwrap_or(0));
            }
            Fact::Hold(acted) => law.acted(&acted),
        }
    }

    fn carry_out(&mut self, index: usize, call: &Call) -> Result<Reply, Refusal> {
        Ok(match call {
            Call::Accept { intent, fingerprint, transition } => {
                Reply::Transfer(Box::new(self.accept(index, intent, fingerprint, transition)?))
            }
            Call::Step { transfer: held, transition, code, log_sequence, attempt } => {
                let req_id = held.intent.req_id.number();
                let transfer = self.read(req_id).ok_or(Refusal::Violation(index))?;
                if transfer.state != held.state {
                    return Ok(Reply::Transfer(Box::new(transfer)));
                }
                let log_sequence = log_sequence.or(transfer.log_sequence);
                let transfer = Transfer { log_sequence, ..transfer };
                let moved = self.pass(index, transfer, transition, *code, *attempt)?;
                Reply::Transfer(Box::new(moved))
            }
            Call::Defer { req_id, state, retry_count, delay_ms, .. } => {
                if let Some(mut transfer) = self.read(req_id.number())
                    && transfer.state == *state
                {
                    transfer.retry_count = (*retry_count).min(INTEGER_MAX);
                    let next = self.now_ms().saturating_add(*delay_ms);
                    self.transfers.set(transfer.intent.order_number, (transfer, Some(next)));
                }
                Reply::Done
            }
            Call::Operate { op, intent, refuse } => {
                let found = self.read(intent.req_id.number());
                let found = found.filter(|found| found.intent == *intent);
                let mut transfer = found.ok_or(Refusal::Violation(index))?;
                let decided = self.operations.get(&(intent.req_id.number(), *op as u8)).is_some();
                let code = self.operate(index, (*op, *refuse), intent)?;
                if !decided {
                    transfer.updated_at = self.now;
                    let (_, next) = self.transfers.get(&intent.order_number).expect("read above");
                    self.keep(transfer, *next);
                }
                Reply::Operation(Some(code.map_or(Decision::Success, Decision::Refused)))
            }
            Call::QueryOperation { req_id, op } => {
                let recorded = self.operations.get(&(req_id.number(), *op as u8));
                let decision =
                    |code: Option<Code>| code.map_or(Decision::Success, Decision::Refused);
                Reply::Operation(recorded.map(|(.., code)| decision(*code)))
            }
            Call::Find(Sought::ReqId(req_id)) => {
                Reply::Found(self.read(req_id.number()).map(Box::new))
            }
            Call::Find(Sought::Cid(user, cid)) => {
                let number = self.cids.get(&(user.number(), cid.as_str().to_owned()));
                let found = number.and_then(|number| self.transfers.get(number));
                Reply::Found(found.map(|(transfer, _)| Box::new(transfer.clone())))
            }
            Call::External(external) => self.external(external),
            Call::FindExternal(external) => match self.externals.get(&external.idem_key) {
                None => Reply::Found(None),
                Some(found) => external_reply(found, external),
            },
            Call::Hold(order) => {
                let decision = self.hold(index, order)?;
                self.settled(order, decision)
            }
            Call::Recharge(call) | Call::FindRecharge(call) => {
                unreachable!("no recharge is drawn: {call:?}")
            }
            Call::FindHold(order) => {
                let found = self.holds.get(&order.key.as_str().to_owned());
                match found.map(|found| hold::recorded(found, order)) {
                    Some(Ok(Some(decision))) => self.settled(order, decision),
                    Some(Ok(None) | Err(_)) | None => Reply::Found(None),
                }
            }
            Call::SetFundingStatus { user, status, .. } => {
                self.accounts.set(user.number(), *status);
                Reply::Done
            }
        })
    }

    fn accept(
        &mut self,
        index: usize,
        intent: &Intent,
        fingerprint: &str,
        transition: &TransitionPath,
    ) -> Result<Transfer, Refusal> {
        if let Some(transfer) = self.read(intent.req_id.number()) {
            return Ok(transfer);
        }
        let user = intent.user.number();
        if let Some(cid) = &intent.cid {
            let key = (user, cid.as_str().to_owned());
            if let Some(number) = self.cids.get(&key) {
                return Ok(self.transfers.get(number).expect("named by its cid").0.clone());
            }
            self.cids.set(key, intent.order_number);
        }
        let state = *transition.path.last().ok_or(Refusal::Unforeseen(index))?;
        let taken = self.transfers.get(&intent.order_number).is_some();
        self.names.set(intent.req_id.number(), intent.order_number);
        let transfer = Transfer::new(intent.clone(), fingerprint.to_owned(), state, self.now);
        self.facts.push(Fact::Accepted(intent.clone()));
        // Funding takes part before the row is inserted.
        let transfer = self.pass(index, transfer, transition, None, 0)?;
        // The unique keys come before a trigger that runs after the statement.
        match taken {
            true => Err(Refusal::Unforeseen(index)),
            false if intent.order_number < self.watermark => Err(Refusal::Violation(index)),
            false => Ok(transfer),
        }
    }

    /// Through the states of a transition, with Funding's part.
    fn pass(
        &mut self,
        index: usize,
        mut transfer: Transfer,
        transition: &TransitionPath,
        code: Option<Code>,
        attempt: u32,
    ) -> Result<Transfer, Refusal> {
        let mut states = transition.path.clone();
        let mut refused = None;
        if let Some(FundingPart { op, on_success, on_refused, refuse }) = &transition.funding {
            refused = self.operate(index, (*op, *refuse), &transfer.intent)?;
            states.extend(if refused.is_none() { on_success } else { on_refused });
        }
        let state = *states.last().ok_or(Refusal::Unforeseen(index))?;
        if !admits(transfer.state, state) {
            return Err(Refusal::Violation(index));
        }
        transfer.state = state;
        transfer.code = transfer.code.or(code).or(refused);
        transfer.retry_count = 0;
        transfer.updated_at = self.now;
        let passed = Passed { states, attempt, reason: code.or(refused) };
        self.facts.push(Fact::Passed(transfer.intent.req_id.number(), passed));
        Ok(self.keep(transfer, None))
    }

    /// Writes the row of a transfer, with the decisions that stand.
    pub(super) fn keep(&mut self, mut transfer: Transfer, next: Option<u64>) -> Transfer {
        let Intent { req_id, direction, order_number, .. } = transfer.intent;
        let decision = |op: Op| {
            let code = self.operations.get(&(req_id.number(), op as u8)).map(|row| row.3);
            code.map(|code| code.map_or(Decision::Success, Decision::Refused))
        };
        transfer.funding = match direction {
            Direction::FundingToSpot => decision(Op::Withdraw),
            Direction::SpotToFunding => decision(Op::Deposit),
        };
        transfer.refunded = decision(Op::Refund).is_some();
        self.transfers.set(order_number, (transfer.clone(), next));
        transfer
    }

    /// Decides an operation of Funding, once.
    fn operate(
        &mut self,
        index: usize,
        (op, refuse): (Op, bool),
        intent: &Intent,
    ) -> Result<Option<Code>, Refusal> {
        let (user, asset, amount) = (intent.user.number(), intent.asset.0, intent.amount.units());
        let key = (intent.req_id.number(), op as u8);
        let to_spot = intent.direction == Direction::FundingToSpot;
        let here = if to_spot { op != Op::Deposit } else { op == Op::Deposit };
        if !here || refuse && !matches!(op, Op::Withdraw | Op::Deposit) {
            return Err(Refusal::Violation(index));
        }
        if let Some(&(.., code)) = self.operations.get(&key) {
            return Ok(code);
        }
        let withdrawn = self.operations.get(&(key.0, Op::Withdraw as u8)).copied();
        let status = self.accounts.get(&user).copied();
        let balance = self.balance(user, asset);
        let amount_units = i128::from(amount);
        let (code, after) = match op {
            _ if refuse => (Some(Code::ResolvedByOperator), balance),
            Op::Withdraw => {
                let code = match status {
                    None => Some(Code::SourceAccountNotFound),
                    Some(AccountStatus::Frozen) => Some(Code::AccountFrozen),
                    Some(AccountStatus::Disabled) => Some(Code::AccountDisabled),
                    Some(AccountStatus::Active) if balance < amount_units => {
                        Some(Code::InsufficientBalance)
                    }
                    Some(AccountStatus::Active) => None,
                };
                (code, balance - amount_units)
            }
            Op::Deposit => {
                let code = match status {
                    None => Some(Code::TargetAccountNotFound),
                    Some(AccountStatus::Disabled) => Some(Code::AccountDisabled),
                    Some(AccountStatus::Active | AccountStatus::Frozen) => None,
                };
                (code, balance + amount_units)
            }
            _ => match withdrawn {
                Some(paid) if paid == (user, asset, amount, None) => (None, balance + amount_units),
                _ => return Err(Refusal::Violation(index)),
            },
        };
        if code.is_none() {
            self.set_balance(user, asset, after);
            self.behind.set(key, after + signed(self.frozen_of(user, asset)));
        }
        let row = (user, asset, amount, code);
        self.operations.set(key, row);
        self.facts.push(Fact::Operation(key.0, op, row));
        Ok(code)
    }

    /// A balance that may be below zero from now on, as an operator makes it.
    pub(super) fn make_special(&mut self, user: u64, asset: u32, law: &mut Law) {
        self.special.insert((user, asset));
        if self.balances.get(&(user, asset)).is_none() {
            self.balances.set((user, asset), (0, 1));
            self.end(true);
        }
        law.special.insert((user, asset));
    }

    /// An account that was there before the run.
    pub(super) fn open_account(&mut self, user: u64, status: AccountStatus) {
        self.accounts.set(user, status);
        self.end(true);
    }

    fn balance(&self, user: u64, asset: u32) -> i128 {
        self.balances.get(&(user, asset)).map_or(0, |(units, _)| *units)
    }

    pub(super) fn set_balance(&mut self, user: u64, asset: u32, units: i128) {
        let version = self.balances.get(&(user, asset)).map_or(0, |(_, version)| *version);
        self.balances.set((user, asset), (units, version + 1));
        self.facts.push(Fact::Balance(user, asset));
    }

    fn external(&mut self, external: &External) -> Reply {
        if let Some(found) = self.externals.get(&external.idem_key) {
            return external_reply(found, external);
        }
        let (user, asset) = (external.user.number(), external.asset.0);
        let amount = i128::from(external.amount.units());
        let deposit = external.op == Op::ExtDeposit;
        if deposit && self.accounts.get(&user).is_none() {
            self.accounts.set(user, AccountStatus::Active);
        }
        let balance = self.balance(user, asset);
        let code = match self.accounts.get(&user) {
            None => Some(Code::SourceAccountNotFound),
            Some(AccountStatus::Disabled) => Some(Code::AccountDisabled),
            Some(AccountStatus::Frozen) if !deposit => Some(Code::AccountFrozen),
            Some(_) if !deposit && balance < amount => Some(Code::InsufficientBalance),
            Some(_) => None,
        };
        let mut after = balance;
        if code.is_none() {
            after = if deposit { balance + amount } else { balance - amount };
            self.set_balance(user, asset, after);
            let change = if deposit { amount } else { -amount };
            self.facts.push(Fact::External(user, asset, change));
        }
        let row = (external.clone(), code, after + signed(self.frozen_of(user, asset)));
        let reply = external_reply(&row, external);
        self.externals.set(external.idem_key.clone(), row);
        reply
    }

    /// Books one side of a Settle with the outside.
    fn cross(&mut self, order: &HoldOrder, op: Op) {
        let ((deposited, withdrawn), [first, second]) =
            (order.act.outside(), order.outside_numbers);
        let (idem_key, units, order_number) = match op {
            Op::ExtDeposit => (order.key.deposit(), deposited, first),
            _ => (order.key.withdrawal(), withdrawn, second),
        };
        let Some(amount) = Amount::new(units) else { return };
        let (user, asset) = (order.user.number(), order.asset.0);
        let change = op.effect(Decision::Success, units);
        let after = self.balance(user, asset).checked_add(change).expect("small");
        assert!(after >= 0 || order.special, "a Settle takes what is there");
        self.set_balance(user, asset, after);
        self.facts.push(Fact::External(user, asset, change));
        let (user, actor) = (order.user, "transaction".to_owned());
        let key = idem_key.clone();
        let external =
            External { idem_key, op, user, asset: order.asset, amount, actor, order_number };
        let after = after + signed(self.frozen_of(user.number(), asset));
        self.externals.set(key, (external, None, after));
    }

    /// The answer to an act on a hold, with its external operations.
    fn settled(&self, order: &HoldOrder, decision: Decision) -> Reply {
        let (deposited, withdrawn) = order.act.outside();
        let both = [(order.key.deposit(), deposited), (order.key.withdrawal(), withdrawn)];
        let named = both.iter().filter(|(_, units)| *units > 0);
        let operations: Vec<_> = named
            .filter_map(|(key, _)| {
                let (external, _, balance_after) = self.externals.get(key)?;
                Some(ExternalOperation {
                    op: external.op,
                    idem_key: Cid::of_operation(key).expect("a key"),
                    user: external.user,
                    asset: external.asset,
                    amount: external.amount,
                    order_number: external.order_number,
                    decision: Decision::Success,
                    // As in the log, which has no sign.
                    balance_after: u128::try_from(*balance_after).unwrap_or(0),
                })
            })
            .collect();
        match operations.is_empty() {
            true => Reply::Hold(decision),
            false => Reply::Settled(operations),
        }
    }

    fn hold(&mut self, index: usize, order: &HoldOrder) -> Result<Decision, Refusal> {
        let (user, asset) = (order.user.number(), order.asset.0);
        let key = order.key.as_str().to_owned();
        let status = self.accounts.get(&user).copied();
        let freeze_key = (user, asset, order.purpose);
        let available = match order.purpose {
            0 => u128::try_from(self.balance(user, asset)).unwrap_or(0),
            _ => self.freezes.get(&freeze_key).copied().unwrap_or(0),
        };
        let account = HoldAccount { status, available };
        let decided = hold::decide(self.holds.get(&key), order, account);
        match decided.map_err(|_| Refusal::Violation(index))? {
            HoldDecided::Told(decision) => Ok(decision),
            HoldDecided::Recorded { decision, hold, available, freeze, frozen, opens } => {
                if opens {
                    self.accounts.set(user, AccountStatus::Active);
                }
                self.cross(order, Op::ExtDeposit);
                if (available, frozen) != (0, 0) {
                    let apart = self.frozen_of(user, asset).checked_add_signed(frozen);
                    self.frozen.set((user, asset), apart.expect("the sum of the holds"));
                    let left = self.balance(user, asset) + available;
                    assert!(left >= 0 || order.special, "enough");
                    self.set_balance(user, asset, left);
                }
                if freeze != 0 {
                    let left = account.available.checked_add_signed(freeze);
                    self.freezes.set(freeze_key, left.expect("enough"));
                    self.facts.push(Fact::Freeze(user, asset, order.purpose));
                }
                self.holds.set(key, hold);
                self.cross(order, Op::ExtWithdraw);
                let order = order.clone();
                self.facts.push(Fact::Hold(Acted { order, decision, available, frozen }));
                Ok(decision)
            }
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        u64::try_from(self.now.as_millisecond()).expect("after 1970")
    }

    pub(super) fn set_time(&mut self, now_ns: u64) {
        let now_ns = i128::from(now_ns) + i128::from(EPOCH_S) * 1_000_000_000;
        self.now = Timestamp::from_nanosecond(now_ns).expect("in range");
    }

    pub(super) fn page(&self, filter: Unfinished) -> Page {
        let rows = self.transfers.rows.range(filter.after.saturating_add(1)..).take(PAGE_ROWS);
        let listed: BTreeSet<u64> =
            filter.listed.iter().copied().filter(|number| *number <= filter.after).collect();
        let listed = listed.iter().filter_map(|number| self.transfers.rows.get_key_value(number));
        let is_sought = |(_, (transfer, next_retry_ms)): &(&u64, &(Transfer, Option<u64>))| {
            let stale = filter.stale.is_none_or(|stale| {
                let moved_ms = transfer.updated_at.as_millisecond();
                let idle_ms = self.now_ms().saturating_sub(u64::try_from(moved_ms).unwrap_or(0));
                let ahead_ms = next_retry_ms.unwrap_or(0).saturating_sub(self.now_ms());
                let moved_ahead_ms =
                    u64::try_from(moved_ms).unwrap_or(0).saturating_sub(self.now_ms());
                idle_ms >= stale.moved_ms
                    || moved_ahead_ms > stale.moved_ms
                    || ahead_ms > stale.retry_cap_ms
            });
            let user = transfer.intent.user.number();
            user % u64::from(filter.shards) == u64::from(filter.shard)
                && !transfer.state.is_terminal()
                && stale
        };
        let after = (rows.clone().count() == PAGE_ROWS).then(|| rows.clone().last());
        let transfers = listed.chain(rows).filter(is_sought).map(|(_, (row, _))| row.clone());
        Page {
            transfers: transfers.collect(),
            after: after.flatten().map(|(number, _)| *number),
            ..Page::default()
        }
    }
}

/// A sum of amounts of 64 bits.
fn signed(units: u128) -> i128 {
    i128::try_from(units).expect("below 2^127")
}

fn external_reply(found: &(External, Option<Code>, i128), asked: &External) -> Reply {
    let (known, code, after) = found;
    let conflict = (known.op, known.user, known.asset, known.amount)
        != (asked.op, asked.user, asked.asset, asked.amount);
    Reply::External {
        decision: code.map_or(Decision::Success, Decision::Refused),
        balance_after: code.is_none().then_some(*after),
        conflict,
        order_number: known.order_number,
    }
}

/// A batch as the server once decided it: one transaction.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) incarnation: u64,
    pub(super) shard: u32,
    pub(super) durable: Sequence,
    pub(super) calls: Vec<Call>,
}

/// The fate of a flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    /// The connection is refused.
    NoConnection,
    /// The connection breaks before the server has read it.
    Lost,
    /// It is carried out, and the connection breaks.
    AnswerLost,
    /// It is carried out after its client has stopped waiting.
    Late,
    /// The network brings it twice.
    Doubled,
    /// The fence waits too long for a process that begins: rolled back, with that error.
    FenceHeld,
    /// One call of the batch waits too long for a lock, or for ever: rolled back, with that error.
    HeldUp,
    /// One call of the batch meets an unforeseen error.
    Refused,
}
