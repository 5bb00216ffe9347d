//! The model of PostgreSQL's tables of transactions against the real ones.
//!
//! Both get the same calls from one seed, through the seam of the worker: rounds, moves that the
//! worker makes and moves that it must never make, ends of unknown names, calls of a superseded
//! process, and callers that decide in sessions of their own. The test compares every answer, and
//! at intervals all rows.
//!
//! Not compared: texts for people, and the times of a decision in SQL, which are PostgreSQL's own.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::account::{AccountStatus, UserId};
use domain::asset::AssetId;
use domain::code::Code;
use domain::transfer::{Cid, Participant, ReqId};
use jiff::Timestamp;
use serde_json::{Value, json};
use ubscore::postgres::flight::EventIds;
use ubscore::postgres::incarnation::ORDER_NUMBER_BITS;
use ubscore::postgres::transactions::database::{TransactionDatabase, TransactionTold};
use ubscore::postgres::transactions::{
    Accepted, BranchMove, Landed, MoveResult, RoundAccept, TransactionError, TransactionMove,
    TransactionNote, TransactionStore, UnfinishedPage,
};
use ubscore::transaction::{
    BranchState, Decider, LegPlace, Party, TransactionLeg, TransactionName, TransactionRound,
    TransactionRow, TransactionState,
};

use super::chance::Chance;
use super::law::Law;
use super::number;
use super::postgres::Postgres;
use crate::harness::{LIMITS, Session, Site, block_on, eventually, soak_rounds};
use crate::schema::committed::fresh;

/// Calls of one seed.
const CALLS: u64 = 400;
/// Calls between two comparisons of all rows.
const CALLS_PER_LOOK: u64 = 40;
/// Seeds that `make test` runs.
const SEEDS: u64 = 4;
/// So few that calls meet, and so many that some are open to the end.
const NAMES: u64 = 40;
const OWNER: &str = "shop";
/// The asset of all legs.
const ASSET: u32 = 3;
/// Microseconds since the Unix epoch at the first call.
const EPOCH_US: i64 = 1_767_225_600_000_000;

type Done<T> = Result<T, TransactionError>;

/// The answer of either side, without the parts for people.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Taken(TransactionRow, bool),
    Refused(Code, Option<TransactionRow>),
    Moves(Vec<char>),
    Row(Option<TransactionRow>),
    Rows(Vec<TransactionRow>),
    Ids(Vec<ReqId>),
    Flight(Vec<Told>),
    Superseded,
    NotWritten,
}

/// A row without the times of a decision in SQL.
fn timeless(mut row: TransactionRow) -> TransactionRow {
    let mut by_caller = false;
    for passage in row.history.iter_mut().filter(|passage| passage.by.starts_with("caller:")) {
        passage.at = Timestamp::UNIX_EPOCH;
        by_caller = true;
    }
    if by_caller && row.state == TransactionState::Committed {
        row.updated_at = Timestamp::UNIX_EPOCH;
    }
    row
}

impl Told {
    fn of<T>(done: Result<T, TransactionError>, told: impl FnOnce(T) -> Told) -> Told {
        match done {
            Ok(value) => told(value),
            Err(TransactionError::Superseded) => Told::Superseded,
            Err(TransactionError::Refused(_)) => Told::NotWritten,
            Err(error) => panic!("nothing is lost here: {error}"),
        }
    }

    fn accepted(done: Result<Accepted, TransactionError>) -> Told {
        Told::of(done, |accepted| match accepted {
            Accepted::Taken { row, replayed } => Told::Taken(timeless(*row), replayed),
            Accepted::Refused { code, row, .. } => {
                Told::Refused(code, row.map(|row| timeless(*row)))
            }
        })
    }

    fn moved(done: Result<Vec<MoveResult>, TransactionError>) -> Told {
        let letter = |result: &MoveResult| match result {
            MoveResult::Moved => 'm',
            MoveResult::Changed => 'c',
            MoveResult::Held(_) => 'h',
        };
        Told::of(done, |results| Told::Moves(results.iter().map(letter).collect()))
    }

    fn row(done: Result<TransactionRow, TransactionError>) -> Told {
        Told::of(done, |row| Told::Row(Some(timeless(row))))
    }

    fn name(&self) -> String {
        match self {
            Told::Taken(_, replayed) => format!("taken {replayed}"),
            Told::Refused(code, _) => code.name().to_owned(),
            Told::Moves(letters) => letters.iter().collect::<String>(),
            Told::Row(row) => format!("row {}", row.is_some()),
            Told::Rows(rows) => format!("rows {}", !rows.is_empty()),
            Told::Ids(ids) => format!("ids {}", !ids.is_empty()),
            Told::Flight(_) => "landed".to_owned(),
            Told::Superseded => "superseded".to_owned(),
            Told::NotWritten => "not written".to_owned(),
        }
    }
}

/// The store of a process.
fn store_of(site: &Site, incarnation: u64) -> TransactionDatabase {
    let ids = Arc::new(EventIds::new(incarnation));
    let told = TransactionTold { ids, endpoints: vec!["default".to_owned()] };
    TransactionDatabase::new(site.target(), LIMITS, incarnation, told)
}

/// Both sides and the state of the test.
struct Desk {
    site: Site,
    store: TransactionDatabase,
    model: Postgres,
    role: String,
    /// A caller's session with a row, and whether its decision counts.
    caller: Option<(Session, TransactionName)>,
    incarnation: u64,
    orders: u64,
    clock_us: i64,
    chance: Chance,
    counts: BTreeMap<String, u64>,
}

impl Desk {
    fn new(seed: u64) -> Desk {
        let site = fresh();
        let role = site.sql_value("SELECT session_user");
        site.sql(&format!(
            "INSERT INTO transaction_grants (role_name, owner) VALUES ('{role}', '{OWNER}')"
        ));
        let store = store_of(&site, 0);
        let mut desk = Desk {
            store,
            site,
            model: Postgres::new(),
            role,
            caller: None,
            incarnation: 0,
            orders: 0,
            clock_us: EPOCH_US,
            chance: Chance::new(seed),
            counts: BTreeMap::new(),
        };
        // User 7 has no account.
        desk.site.sql("INSERT INTO accounts_tb (user_id) SELECT generate_series(1, 6)");
        for user in 1..=6 {
            desk.model.open_account(user, AccountStatus::Active);
        }
        desk.begin();
        desk
    }

    /// The next incarnation on both sides.
    fn begin(&mut self) {
        let begun = self.site.begin(&LIMITS, 1);
        let (number, ..) = self.model.begin(1);
        assert_eq!(begun.number, number);
        self.incarnation = number;
        self.orders = number << ORDER_NUMBER_BITS;
        self.store = store_of(&self.site, number);
    }

    fn now(&mut self) -> Timestamp {
        self.clock_us += 1_003;
        Timestamp::from_microsecond(self.clock_us).expect("a time")
    }

    fn same(&mut self, what: &str, real: Told, modeled: Told) {
        assert_eq!(real, modeled, "PostgreSQL, and the model, of {what}");
        let kind = what.split(' ').next().unwrap_or_default();
        *self.counts.entry(format!("{kind}: {}", real.name())).or_default() += 1;
        if real == Told::NotWritten {
            self.wait_for_locks();
        }
    }

    /// A statement that was refused holds its rows for a moment longer.
    fn wait_for_locks(&self) {
        let held = usize::from(self.caller.is_some());
        let all = self.site.sql("SELECT FROM transactions_tb").len();
        eventually("free rows", || {
            let free = "SELECT FROM transactions_tb FOR UPDATE SKIP LOCKED";
            (self.site.sql(free).len() + held == all).then_some(())
        });
    }

    /// The name that a session of a caller holds, if this is to meet it.
    fn held(&mut self) -> Option<TransactionName> {
        let name = self.caller.as_ref().map(|(_, name)| name.clone());
        name.filter(|_| self.chance.one_in(4))
    }

    fn name(&mut self) -> TransactionName {
        if let Some(held) = self.held() {
            return held;
        }
        let tx_id = format!("tx-{}", self.chance.below(NAMES));
        TransactionName { owner: OWNER.to_owned(), tx_id: Cid::new(&tx_id).expect("a name") }
    }

    /// The row of a name that has one, mostly open.
    fn row(&mut self) -> Option<TransactionRow> {
        if let Some(held) = self.held() {
            return self.model.transacted.find(&held).cloned();
        }
        let rows: Vec<TransactionRow> = self.model.transacted.all().cloned().collect();
        let open = |row: &&TransactionRow| !row.state.is_terminal();
        let open: Vec<&TransactionRow> = rows.iter().filter(open).collect();
        match open.is_empty() || self.chance.one_in(6) {
            true if rows.is_empty() => None,
            true => Some(self.chance.pick(&rows.iter().collect::<Vec<_>>()).clone()),
            false => Some(self.chance.pick(&open).clone()),
        }
    }

    fn legs(&mut self) -> Vec<TransactionLeg> {
        let place = |chance: &mut Chance, (least, most)| {
            let store = chance.pick(&[Participant::Funding, Participant::Spot]);
            let user = UserId::new(chance.between(least, most)).expect("a user");
            match chance.below(8) {
                0 => LegPlace::Frozen { store, user, purpose: 7 },
                1 if store == Participant::Funding => LegPlace::Special { user },
                _ => LegPlace::Available { store, user },
            }
        };
        let leg = |chance: &mut Chance| TransactionLeg {
            from: place(chance, (1, 3)),
            to: match chance.below(8) {
                0 => LegPlace::Outside,
                _ => place(chance, (4, 6)),
            },
            asset: AssetId(ASSET),
            amount: chance.between(1, 1_000),
        };
        (0..self.chance.below(4)).map(|_| leg(&mut self.chance)).collect()
    }

    fn round(&mut self) -> TransactionRound {
        let name = self.name();
        let there = self.model.transacted.find(&name).map(|row| row.rounds);
        let next = there.unwrap_or(0).saturating_add(1);
        let round = self.chance.pick(&[next, next, next, next, next.saturating_sub(1), 1, 9, 0]);
        let payload = |chance: &mut Chance| {
            let payloads = [json!(null), json!({"a": 1e2, "b": [null]}), json!("text")];
            let index = chance.below(3);
            payloads[usize::try_from(index).expect("small")].clone()
        };
        let mut services: Vec<(String, Value)> = Vec::new();
        for service in ["bank", "coupons"] {
            if self.chance.one_in(3) {
                services.push((service.to_owned(), payload(&mut self.chance)));
            }
        }
        let decider = self.chance.pick(&[
            Decider::Caller,
            Decider::Caller,
            Decider::Caller,
            Decider::Coordinator,
            Decider::Last,
        ]);
        let last = (decider == Decider::Last).then(|| ("archive".to_owned(), json!({"x": "y"})));
        let legs = self.legs();
        let followers = Vec::from_iter(self.chance.one_in(3).then(|| "ledger".to_owned()));
        // Few, so that some repeats are the same.
        let body = u8::try_from(self.chance.below(2)).expect("small");
        TransactionRound {
            name,
            round,
            decider,
            ttl_ms: self.chance.between(1, 100_000),
            legs,
            services,
            last,
            followers,
            fingerprint: [body; 16],
        }
    }

    /// A round with its numbers; rarely with one that is in use.
    fn asked(&mut self, round: TransactionRound) -> RoundAccept {
        self.orders += 1;
        let known = self.row().map(|row| (row.id, row.order_number));
        let id = ReqId::new(u128::from(self.orders) << 20).expect("not zero");
        let (id, order_number) = match known.filter(|_| self.chance.one_in(30)) {
            Some((known, _)) if self.chance.one_in(2) => (known, self.orders),
            Some((_, number)) => (id, number),
            None => (id, self.orders),
        };
        RoundAccept { round, id, order_number, at: self.now() }
    }

    fn accept(&mut self) {
        let round = self.round();
        let accept = self.asked(round);
        let real = Told::accepted(block_on(self.store.accept(&accept)));
        let modeled = Told::accepted(self.modeled_accept(self.incarnation, &accept));
        self.same(&format!("accept {accept:?}"), real, modeled);
    }

    fn modeled_accept(&mut self, incarnation: u64, accept: &RoundAccept) -> Done<Accepted> {
        let accepts = std::slice::from_ref(accept);
        let landed = self.model.fly_transactions(incarnation, (&[], accepts), accept.at, None)?;
        landed.accepted.into_iter().next().expect("one result a round")
    }

    /// Moves and rounds in one commit; some are of the same transaction.
    fn fly(&mut self) {
        let moves: Vec<TransactionMove> = self.a_move().into_iter().collect();
        let count = self.chance.between(1, 4);
        let mut accepts = Vec::new();
        for _ in 0..count {
            let round = self.round();
            accepts.push(self.asked(round));
        }
        let at = self.now();
        let sent: Vec<&RoundAccept> = accepts.iter().collect();
        let real = block_on(self.store.flight(&moves, &sent, at));
        let modeled = self.model.fly_transactions(self.incarnation, (&moves, &accepts), at, None);
        let told = |landed: Landed| {
            let mut told = vec![Told::moved(Ok(landed.moved))];
            told.extend(landed.accepted.into_iter().map(Told::accepted));
            Told::Flight(told)
        };
        let (real, modeled) = (Told::of(real, told), Told::of(modeled, told));
        self.same(&format!("flight {moves:?} {accepts:?}"), real, modeled);
    }

    fn cancel_unknown(&mut self) {
        let round = TransactionRound { name: self.name(), ..self.round() };
        let accept = self.asked(round);
        let reason = self.chance.pick(&[None, Some("given up")]);
        let real = Told::row(block_on(self.store.cancel_unknown(&accept, "by", reason)));
        let modeled = self.model.cancel_unknown(self.incarnation, &accept, ("by", reason), None);
        self.same(&format!("cancel {accept:?}"), real, Told::row(modeled));
    }

    /// A move, mostly one that the tables of states have.
    fn a_move(&mut self) -> Option<TransactionMove> {
        let row = self.row()?;
        let mut branches = Vec::new();
        for branch in &row.branches {
            if self.chance.one_in(3) {
                continue;
            }
            let usual: &[BranchState] = match branch.state {
                BranchState::Trying => &[
                    BranchState::Tried,
                    BranchState::Tried,
                    BranchState::Tried,
                    BranchState::Refused,
                    BranchState::Cancelled,
                ],
                BranchState::Tried => &[BranchState::Confirmed, BranchState::Cancelled],
                _ => continue,
            };
            let any = self.chance.pick(&BranchState::ALL);
            let to = if self.chance.one_in(40) { any } else { self.chance.pick(usual) };
            let wrong = self.chance.one_in(30);
            let from = if wrong { self.chance.pick(&BranchState::ALL) } else { branch.state };
            let refused = to == BranchState::Refused;
            branches.push(BranchMove {
                party: branch.party.clone(),
                round: branch.round,
                from,
                to,
                code: refused.then_some(Code::InsufficientBalance),
                leg: (refused && self.chance.one_in(2)).then_some(1),
                participant_code: (refused && self.chance.one_in(2)).then(|| "NO".to_owned()),
                log_sequence: (branch.party == Party::Store(Participant::Spot))
                    .then(|| self.chance.below(1_000)),
            });
        }
        let any = self.chance.pick(&TransactionState::ALL);
        let from = if self.chance.one_in(25) { any } else { row.state };
        let nexts = row.state.nexts();
        let to = match self.chance.below(12) {
            0..7 => row.state,
            7 => self.chance.pick(&TransactionState::ALL),
            _ if nexts.is_empty() => row.state,
            _ => self.chance.pick(nexts),
        };
        let off = self.chance.one_in(25);
        Some(TransactionMove {
            id: row.id,
            rounds: if off { row.rounds.wrapping_add(1) % 9 } else { row.rounds },
            from,
            to,
            by: self.chance.pick(&["coordinator", "age", "bank"]).to_owned(),
            code: self.chance.pick(&[None, Some(Code::TransactionExpired)]),
            detail: self.chance.pick(&[None, Some("so it is")]).map(str::to_owned),
            seal: self.chance.one_in(8),
            stores_ended: self.chance.one_in(4),
            note: self
                .chance
                .one_in(8)
                .then(|| TransactionNote { by: "admin/1".to_owned(), text: "gone".to_owned() }),
            branches,
        })
    }

    fn record(&mut self) {
        let count = self.chance.pick(&[1, 1, 2, 4]);
        let mut moves: Vec<TransactionMove> = (0..count).filter_map(|_| self.a_move()).collect();
        if self.chance.one_in(20) {
            let unknown = ReqId::new(7).expect("not zero");
            moves.extend(moves.first().cloned().map(|one| TransactionMove { id: unknown, ..one }));
        }
        let at = self.now();
        let real = Told::moved(block_on(self.store.record(&moves, at)));
        let modeled = self.model.fly_transactions(self.incarnation, (&moves, &[]), at, None);
        let modeled = Told::moved(modeled.map(|landed| landed.moved));
        self.same(&format!("record {moves:?}"), real, modeled);
    }

    fn reads(&mut self) {
        let name = self.name();
        let row = |row: Option<TransactionRow>| Told::Row(row.map(timeless));
        let real = Told::of(block_on(self.store.find(&name)), row);
        let modeled = row(self.model.transacted.find(&name).cloned());
        self.same("find", real, modeled);
        let rows = |rows: Vec<TransactionRow>| Told::Rows(rows.into_iter().map(timeless).collect());
        let above = self.row().map_or(0, |row| row.order_number);
        let limit = self.chance.pick(&[1, 3, 100]);
        let page = |page: UnfinishedPage| {
            assert_eq!(page.unreadable, []);
            let last = page.rows.last().map(|row| row.order_number);
            assert_eq!(page.next, last.filter(|_| page.rows.len() == limit));
            rows(page.rows)
        };
        let real = Told::of(block_on(self.store.unfinished(above, limit)), page);
        let modeled = rows(self.model.unfinished_transactions(above, limit));
        self.same("unfinished", real, modeled);
        let real = Told::of(block_on(self.store.decided()), Told::Ids);
        let modeled = Told::Ids(self.model.unsealed());
        self.same("decided", real, modeled);
    }

    /// A caller decides in a session that stays open, or ends one.
    fn call_by_sql(&mut self) {
        if let Some((session, name)) = self.caller.take() {
            let commits = !self.chance.one_in(3);
            let sync = self.chance.one_in(2);
            session.sql(if commits { "COMMIT" } else { "ROLLBACK" });
            assert!(self.model.end_session(&name, commits, sync));
            let end = if commits { "caller: COMMIT" } else { "caller: ROLLBACK" };
            *self.counts.entry(end.to_owned()).or_default() += 1;
            if self.chance.one_in(2) {
                // Mostly a decision without a seal.
                self.reads();
            }
            return;
        }
        let Some(row) = self.row() else { return };
        let unknown = self.chance.one_in(20);
        let name = if unknown { self.name() } else { row.name };
        let rounds = if self.chance.one_in(8) { 2 } else { row.rounds };
        let session = self.site.session();
        let call = format!(
            "BEGIN; SELECT transaction_commit('{OWNER}', '{}', {rounds})",
            name.tx_id.as_str()
        );
        let real = session.try_sql(&call).map(drop).map_err(|code| code.expect("a code"));
        let modeled = self.model.sql_commit(&self.role, &name, rounds, None);
        assert_eq!(real, modeled.map_err(str::to_owned), "{call}, {row:?}", row = self.row());
        let answer = real.as_ref().map_or_else(Clone::clone, |()| "decided".to_owned());
        *self.counts.entry(format!("caller: {answer}")).or_default() += 1;
        match real {
            Ok(()) => self.caller = Some((session, name)),
            Err(_) => drop(session.sql("ROLLBACK")),
        }
    }

    /// Another process takes over, and the one before it still sends.
    fn supersede(&mut self) {
        let before = self.incarnation;
        let mut old = store_of(&self.site, before);
        self.begin();
        let round = self.round();
        let accept = self.asked(round);
        let real = Told::accepted(block_on(old.accept(&accept)));
        let modeled = Told::accepted(self.modeled_accept(before, &accept));
        self.same("accept of a superseded process", real, modeled);
        let moves: Vec<TransactionMove> = self.a_move().into_iter().collect();
        let at = self.now();
        if !moves.is_empty() {
            let real = Told::moved(block_on(old.record(&moves, at)));
            let modeled = self.model.fly_transactions(before, (&moves, &[]), at, None);
            let modeled = Told::moved(modeled.map(|landed| landed.moved));
            self.same("record of a superseded process", real, modeled);
        }
        let real = Told::row(block_on(old.cancel_unknown(&accept, "by", None)));
        let modeled = Told::row(self.model.cancel_unknown(before, &accept, ("by", None), None));
        self.same("cancel of a superseded process", real, modeled);
    }

    /// Compares all rows.
    fn look(&mut self) {
        let rows: Vec<TransactionRow> = self.model.transacted.all().cloned().collect();
        let count = self.site.sql_value("SELECT count(*) FROM transactions_tb");
        assert_eq!(count, rows.len().to_string());
        for row in rows {
            let real = block_on(self.store.find(&row.name)).expect("an answer");
            assert_eq!(real.map(timeless), Some(timeless(row)));
        }
    }

    /// An operator makes an account special, or ends that; a transaction may have taken it below
    /// zero, or brought it back.
    fn change_special(&mut self) {
        let user = self.chance.between(1, 7);
        let (set, law) = (self.chance.one_in(2), &mut Law::default());
        if self.model.special.contains(&(user, ASSET)) {
            let available = i128::from(self.chance.below(3)) - 1;
            self.site.sql(&format!(
                "UPDATE balances_tb SET available = {available} \
                  WHERE user_id = {user} AND asset_id = {ASSET}"
            ));
            self.model.set_balance(user, ASSET, available);
        }
        let function = if set { "special_set" } else { "special_unset" };
        let real = self.site.sql_value(&format!("SELECT {function}({user}, {ASSET})"));
        let modeled = match set {
            true => self.model.special_set(user, ASSET, law),
            false => self.model.special_unset(user, ASSET, law, None),
        };
        assert_eq!(real, modeled, "{function} of {user}");
        *self.counts.entry(format!("{function}: {real}")).or_default() += 1;
    }

    fn play(&mut self) {
        if self.chance.one_in(10) {
            self.change_special();
        }
        match self.chance.below(40) {
            0..11 => self.accept(),
            11..16 => self.fly(),
            16..30 => self.record(),
            30 => self.cancel_unknown(),
            31..34 => self.reads(),
            34..39 => self.call_by_sql(),
            _ => self.supersede(),
        }
    }
}

/// Events that must occur, or the test proves less than its name.
const MUST: &[&str] = &[
    "accept: taken false",
    "accept: taken true",
    "accept: TX_ID_CONFLICT",
    "accept: TRANSACTION_DECIDED",
    "accept: TRANSACTION_ABORTED",
    "accept: TRANSACTION_EXPIRED",
    "accept: TRANSACTION_UNTRIED",
    "accept: INVALID_REQUEST",
    "accept: OVERLOADED",
    "accept: not written",
    "accept: superseded",
    "cancel: row true",
    "cancel: superseded",
    "record: m",
    "record: c",
    "record: h",
    "record: mm",
    "record: not written",
    "record: superseded",
    "flight: landed",
    "flight: not written",
    "find: row true",
    "find: row false",
    "unfinished: rows true",
    "decided: ids true",
    "caller: decided",
    "caller: COMMIT",
    "caller: ROLLBACK",
    "caller: UB010",
    "caller: UB011",
    "special_set: changed",
    "special_set: same",
    "special_set: unknown",
    "special_unset: changed",
    "special_unset: same",
    "special_unset: negative",
    "special_unset: named",
];

/// RCV-009. Goal: the model of transactions answers and stores the same as PostgreSQL. Method:
/// random calls from a seed to both, every answer compared, and all rows at intervals; every event
/// of [`MUST`] occurs.
#[test]
fn the_model_of_transactions_is_postgresql_as_far_as_its_store_can_tell() {
    let rounds = soak_rounds().map_or(SEEDS, |rounds| u64::try_from(rounds).expect("few"));
    let one = number("UBSCORE_SIM_SEED");
    let mut counts = BTreeMap::new();
    for seed in one.map_or(0..rounds, |seed| seed..seed + 1) {
        println!("seed {seed}");
        let mut desk = Desk::new(seed);
        for call in 1..=CALLS {
            desk.play();
            if call % CALLS_PER_LOOK == 0 {
                desk.look();
            }
        }
        for (what, count) in std::mem::take(&mut desk.counts) {
            *counts.entry(what).or_insert(0) += count;
        }
    }
    println!("{counts:?}");
    let missing: Vec<_> = MUST.iter().filter(|what| !counts.contains_key(**what)).collect();
    assert!(missing.is_empty() || one.is_some(), "never: {missing:?}");
}
