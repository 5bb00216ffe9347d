//! The laws of section 2 of the specification, and a judge that uses nothing else.
//!
//! The judge gets each durable change of either store at its moment, each request, and each answer
//! to a caller; it adds up by itself. It never reads the state of the coordinator or of UBSCore.
//! The first broken law ends a run.

mod transactions;

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use domain::account::AccountStatus;
use domain::code::Code;
use domain::hold::{HoldAct, HoldKey, HoldOrder};
use domain::transfer::{Decision, Direction, ExternalOperation, Intent, Op};
use engine::entry::Entry;
use ubscore::postgres::flight::{Acted, Flight};

use self::transactions::SeenTransactions;

/// The states by their numbers, and the next states of each.
const TABLE: [(i16, &[i16]); 8] = [
    (0, &[10]),
    (10, &[20, -10]),
    (20, &[30]),
    (30, &[40, -20]),
    (40, &[]),
    (-10, &[]),
    (-20, &[-30]),
    (-30, &[]),
];

/// The operations of each terminal state: withdrawn, deposited, refunded.
const TERMINAL: [(i16, [bool; 3]); 3] =
    [(40, [true, true, false]), (-10, [false, false, false]), (-30, [true, false, true])];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Side {
    Funding,
    Spot,
}

/// A broken law, with the details.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) law: &'static str,
    pub(super) what: String,
}

#[derive(Debug)]
struct Seen {
    intent: Intent,
    states: Vec<i16>,
    /// By op: whether it is durably recorded, and whether it was a success.
    recorded: [Option<bool>; 3],
    answered: Option<i16>,
}

impl Seen {
    fn applied(&self) -> [bool; 3] {
        self.recorded.map(|recorded| recorded == Some(true))
    }

    fn state(&self) -> Option<i16> {
        self.states.last().copied()
    }

    /// The side of an operation.
    fn side(&self, op: Op) -> Side {
        let of_source = matches!(op, Op::Withdraw | Op::Refund);
        match (self.intent.direction == Direction::FundingToSpot) == of_source {
            true => Side::Funding,
            false => Side::Spot,
        }
    }

    /// Why the durable records forbid a terminal `state` of this transfer; `None` if they allow it.
    fn objection(&self, state: i16) -> Option<String> {
        let (_, triple) = TERMINAL.iter().find(|row| row.0 == state)?;
        let refused = match state {
            -10 => self.recorded[0] == Some(false),
            -30 => self.recorded[1] == Some(false),
            _ => true,
        };
        (self.applied() != *triple || !refused).then(|| {
            format!(
                "state {state}, but withdraw, deposit, refund are recorded as {:?}",
                self.recorded
            )
        })
    }
}

/// The judge.
#[derive(Debug, Default)]
pub(super) struct Law {
    transfers: BTreeMap<u128, Seen>,
    /// The sums of the journals.
    balances: BTreeMap<(Side, u64, u32), i128>,
    /// Deposits less withdrawals.
    external: BTreeMap<(u64, u32), i128>,
    /// The durable records of the log: kind and payload.
    log: Vec<(u8, Vec<u8>)>,
    /// The last flight by incarnation and shard.
    flights: BTreeMap<(u64, u32), u64>,
    /// Committed flights of the latest incarnation with events that are not sent yet, by shard.
    unsent: BTreeMap<u32, VecDeque<(u64, u64)>>,
    /// The last event that was sent of each user.
    sent: BTreeMap<u64, u64>,
    latest: u64,
    /// The transfer of each user's cid.
    cids: BTreeMap<(u64, String), u128>,
    /// Transfers that a caller was answered are not accepted.
    denied: BTreeMap<u128, ()>,
    idem_keys: BTreeMap<String, Decision>,
    /// External operations in the log.
    externals: BTreeMap<String, Decision>,
    /// Answered statuses without a change under way.
    statuses: BTreeMap<(Side, u64), AccountStatus>,
    /// How many resolves of a transfer may still take effect.
    resolving: BTreeMap<u128, u32>,
    /// The answers to operators' resolves: the state, and whether the operator caused it.
    resolved: BTreeMap<u128, (i16, bool)>,
    watermark: u64,
    /// Holds of Funding by key.
    holds: BTreeMap<String, SeenHold>,
    /// The sums of the freezes and of the open holds.
    apart: BTreeMap<(u64, u32), i128>,
    /// What holds have left in each freeze, by user, asset and purpose.
    freezes: BTreeMap<(u64, u32, u16), i128>,
    /// Balances that may be below zero.
    pub(super) special: BTreeSet<(u64, u32)>,
    /// What was available of each of them behind the last commit.
    special_left: BTreeMap<(u64, u32), i128>,
    /// Those that an end of a transaction has lowered in this commit.
    special_paid: BTreeSet<(u64, u32)>,
    transactions: SeenTransactions,
    broken: Option<Broken>,
}

/// A hold by its recorded acts.
#[derive(Debug, Default)]
struct SeenHold {
    apart: i128,
    ended: bool,
    /// Brought less taken.
    effect: i128,
    /// The recorded decision of each act.
    recorded: BTreeMap<String, Decision>,
    /// The answers.
    answered: BTreeMap<String, Decision>,
}

impl Law {
    pub(super) fn broken(&self) -> Option<&Broken> {
        self.broken.as_ref()
    }

    pub(super) fn breach(&mut self, law: &'static str, what: String) {
        self.broken.get_or_insert(Broken { law, what });
    }

    pub(super) fn panicked(&mut self, payload: &(dyn Any + Send)) {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        self.breach("nothing panics", text.unwrap_or("a panic without a text").to_owned());
    }

    pub(super) fn claim(&mut self, holds: bool, law: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.breach(law, what());
        }
    }

    /// A batch of this incarnation was committed after `latest` had begun: the `flight`th of its
    /// shard.
    pub(super) fn wrote(&mut self, incarnation: u64, latest: u64, shard: u32, flight: u64) {
        self.claim(incarnation == latest, "L11 one incarnation writes", || {
            format!("incarnation {incarnation} wrote after {latest} had begun")
        });
        let last = self.flights.insert((incarnation, shard), flight).unwrap_or(0);
        self.claim(flight > last, "a flight that was given up never commits", || {
            format!("flight {flight} of shard {shard} after {last}")
        });
    }

    /// An incarnation begins. Streams read the unsent events of those before it.
    pub(super) fn begun(&mut self, incarnation: u64) {
        self.latest = incarnation;
        self.unsent.clear();
    }

    /// A flight with events was committed.
    pub(super) fn expect_flight(&mut self, shard: u32, flight: &Flight) {
        if flight.events().next().is_some() {
            let unsent = self.unsent.entry(shard).or_default();
            unsent.push_back((flight.number, flight.attempt));
        }
    }

    /// The events of a flight were sent to streams.
    pub(super) fn sent(&mut self, incarnation: u64, shard: u32, flight: &Flight) {
        if flight.events().next().is_none() || incarnation < self.latest {
            return;
        }
        let next = self.unsent.get_mut(&shard).and_then(VecDeque::pop_front);
        self.claim(
            next == Some((flight.number, flight.attempt)),
            "each committed flight is sent once, in order",
            || format!("flight {} of shard {shard}, and the next is {next:?}", flight.number),
        );
        for (id, _, transfer) in flight.events() {
            let last = self.sent.insert(transfer.intent.user.number(), id).unwrap_or(0);
            self.claim(last < id, "event ids of a user rise", || format!("{id} after {last}"));
        }
    }

    /// Whether every event of the latest incarnation was sent.
    pub(super) fn has_sent(&self) -> bool {
        self.unsent.values().all(VecDeque::is_empty)
    }

    /// A commit holds a new transfer.
    pub(super) fn accepted(&mut self, intent: &Intent) {
        let seen = Seen {
            intent: intent.clone(),
            states: Vec::new(),
            recorded: [None; 3],
            answered: None,
        };
        let below = intent.order_number < self.watermark;
        self.claim(!below, "the watermark passes only ended transfers", || format!("{intent:?}"));
        let before = self.transfers.insert(intent.req_id.number(), seen);
        self.claim(before.is_none(), "L2 accepted once", || format!("{intent:?} again"));
    }

    /// A commit took a transfer through `states`. Its operations were shown before.
    pub(super) fn passed(&mut self, req_id: u128, states: &[i16]) {
        let Some(seen) = self.transfers.get_mut(&req_id) else {
            return self.breach("L5 persisted first", format!("{req_id:032x} moved, not accepted"));
        };
        let mut wrong = None;
        for &state in states {
            let legal = match seen.state() {
                None => state == 0,
                Some(from) => TABLE.iter().any(|(s, next)| *s == from && next.contains(&state)),
            };
            if !legal {
                let from = seen.state();
                let terminal = from.is_some_and(|from| TERMINAL.iter().any(|row| row.0 == from));
                let law =
                    if terminal { "L6 terminal is final" } else { "the table of transitions" };
                wrong = Some((law, format!("{req_id:032x}: from {from:?} to {state}")));
            }
            seen.states.push(state);
            let proven = match state {
                20 => seen.recorded[0] == Some(true),
                -20 => seen.recorded[1] == Some(false),
                _ => true,
            };
            let objection = match proven {
                true => seen.objection(state),
                false => Some(format!("state {state}, recorded {:?}", seen.recorded)),
            };
            if let Some(objection) = objection {
                wrong = wrong.or(Some((
                    "L4 only a recorded decision moves a state",
                    format!("{req_id:032x}: {objection}"),
                )));
            }
        }
        if let Some((law, what)) = wrong {
            self.breach(law, what);
        }
    }

    /// A participant is asked.
    pub(super) fn asked(&mut self, req_id: u128, op: Op) {
        let wanted = match op {
            Op::Withdraw => 10,
            Op::Deposit => 30,
            _ => -20,
        };
        let durable = self.transfers.get(&req_id).is_some_and(|seen| seen.states.contains(&wanted));
        self.claim(durable, "L5 persisted first", || {
            format!("{} of {req_id:032x} asked, its state {wanted} is not durable", op.name())
        });
    }

    /// An operation was recorded, durably.
    pub(super) fn recorded(
        &mut self,
        side: Side,
        (req_id, op): (u128, Op),
        (user, asset, amount): (u64, u32, u64),
        decision: Decision,
    ) {
        let success = decision == Decision::Success;
        let resolved = decision == Decision::Refused(Code::ResolvedByOperator);
        let wanted = !resolved || self.resolving.get(&req_id).is_some_and(|tries| *tries > 0);
        let place = usize::from(op as u8) - 1;
        let Some(seen) = self.transfers.get_mut(&req_id) else {
            return self.breach("L5 persisted first", format!("{req_id:032x} is in no transfer"));
        };
        let intent = &seen.intent;
        let same = (intent.user.number(), intent.asset.0, intent.amount.units())
            == (user, asset, amount)
            && seen.side(op) == side;
        let again = seen.recorded[place].is_some();
        seen.recorded[place] = Some(success);
        let [withdrawn, deposited, refunded] = seen.applied();
        let sound = u8::from(deposited) + u8::from(refunded) <= u8::from(withdrawn);
        let status = self.statuses.get(&(side, user)).copied();
        let forbidden = matches!(
            (op, status),
            (Op::Withdraw, Some(AccountStatus::Frozen | AccountStatus::Disabled))
                | (Op::Deposit, Some(AccountStatus::Disabled))
        );
        let allowed = !success || !forbidden;
        let what = || format!("{} of {req_id:032x} on {side:?}, success {success}", op.name());
        self.claim(same, "an operation is the transfer's own", what);
        self.claim(wanted, "an operator refuses only resolved transfers", what);
        self.claim(!again, "L2 one decision per operation", what);
        self.claim(sound, "D + R <= W <= 1", what);
        self.claim(allowed, "an answered status holds", what);
        self.claim(op != Op::Refund || success, "a refund is never refused", what);
        if success {
            let sign = if op == Op::Withdraw { -1 } else { 1 };
            let balance = self.balances.entry((side, user, asset)).or_default();
            *balance += sign * i128::from(amount);
            let left = *balance;
            if side == Side::Spot {
                self.claim(left >= 0, "L1 conservation", || format!("Spot of {user}: {left}"));
                self.nothing_held_is_used(user, asset);
            }
        }
    }

    /// All of a commit of Funding has been shown. Its parts are shown by kind, and not in the order
    /// of the flight: a withdrawal may rest on a deposit from outside of the same flight.
    pub(super) fn committed(&mut self) {
        let funding = self.balances.iter().filter(|((side, user, asset), _)| {
            *side == Side::Funding && !self.special.contains(&(*user, *asset))
        });
        let mut left = funding.map(|(&(_, user, asset), sum)| {
            (user, sum - self.apart.get(&(user, asset)).copied().unwrap_or(0))
        });
        if let Some((user, left)) = left.find(|(_, left)| *left < 0) {
            self.breach("L1 conservation", format!("Funding of {user}: {left}"));
        }
        if let Some((place, left)) = self.freezes.iter().find(|(_, left)| **left < 0) {
            let what = format!("freeze {place:?}: {left}");
            self.breach("L1 conservation", what);
        }
        let paid = std::mem::take(&mut self.special_paid);
        for key in self.special.clone() {
            let left = self.available(key);
            let before = self.special_left.insert(key, left).unwrap_or(0);
            let lawful = left >= before.min(0) || paid.contains(&key);
            self.claim(lawful, "only a confirm takes a special account below zero", || {
                format!("{key:?}: {before}, now {left}")
            });
        }
    }

    /// The available balance of a user on Funding.
    fn available(&self, (user, asset): (u64, u32)) -> i128 {
        let sum = self.balances.get(&(Side::Funding, user, asset)).copied().unwrap_or(0);
        sum - self.apart.get(&(user, asset)).copied().unwrap_or(0)
    }

    /// An act on a hold was recorded, durably.
    pub(super) fn acted(&mut self, acted: &Acted) {
        let Acted { order, decision, available, frozen } = acted;
        let HoldOrder { key, user, asset, purpose, special, act, .. } = order;
        let account = (user.number(), asset.0);
        let success = *decision == Decision::Success;
        let hold = self.holds.entry(key.as_str().to_owned()).or_default();
        let (ended, before) = (hold.ended, hold.apart);
        let (moved, effect) = match *act {
            HoldAct::Set { .. } if !success => ((0, 0), 0),
            HoldAct::Set { amount, .. } => {
                let more = i128::from(amount) - before;
                ((-more, more), 0)
            }
            // The outside is in the external operations of the same flight. Nothing of a special
            // place was apart.
            HoldAct::Settle { taken, brought, .. } => {
                let effect = i128::from(brought) - i128::from(taken);
                if *special && effect < 0 {
                    self.special_paid.insert(account);
                }
                ((effect + before, -before), effect)
            }
            HoldAct::Release => ((before, -before), 0),
        };
        let (place, apart) = moved;
        // Money apart out of a freeze stays frozen.
        let moved = if *purpose == 0 { moved } else { (0, place + apart) };
        hold.apart += apart;
        hold.effect += effect;
        let ends = !matches!(act, HoldAct::Set { .. });
        hold.ended |= ends;
        let again = hold.recorded.insert(format!("{act:?}"), *decision).is_some();
        let rest = hold.apart;
        let status = self.statuses.get(&(Side::Funding, account.0)).copied();
        let allowed = match (*act, status) {
            (HoldAct::Set { amount, pays: true, .. }, Some(AccountStatus::Frozen)) => {
                !success || i128::from(amount) <= before
            }
            (HoldAct::Set { amount, pays, paid, .. }, Some(AccountStatus::Disabled)) => {
                let more = i128::from(amount) > before;
                !success || !(pays && more || paid && i128::from(amount) >= before)
            }
            _ => true,
        };
        let what = || format!("{acted:?}, behind {before} apart");
        self.claim(!ended, "a hold ends once", what);
        self.claim(!again, "L2 one decision per operation", what);
        self.claim((*available, *frozen) == moved, "a hold moves what it says", what);
        self.claim(!ends || success && rest == 0, "L13 an end is always possible", what);
        self.claim(allowed, "an answered status holds", what);
        *self.balances.entry((Side::Funding, account.0, account.1)).or_default() +=
            available + frozen;
        *self.apart.entry(account).or_default() += frozen;
        if *purpose != 0 {
            *self.freezes.entry((account.0, account.1, *purpose)).or_default() += place;
        }
        *self.external.entry(account).or_default() += effect;
    }

    /// A freeze of Funding, by user, asset and purpose.
    pub(super) fn freeze(&mut self, place: (u64, u32, u16), units: u128) {
        let left = self.freezes.get(&place).copied().unwrap_or(0);
        let same = i128::try_from(units) == Ok(left);
        self.claim(same, "a freeze has what its holds have left", || {
            format!("{units} in {place:?}: its holds have left {left}")
        });
    }

    /// The frozen part of a balance of Funding.
    pub(super) fn frozen(&mut self, user: u64, asset: u32, units: u128) {
        let holds = self.apart.get(&(user, asset)).copied().unwrap_or(0);
        self.claim(i128::try_from(units) == Ok(holds), "frozen is the sum of the holds", || {
            format!("{units} of {user}, asset {asset}: its holds have {holds}")
        });
    }

    /// A caller was answered with the decision of an act on a hold.
    pub(super) fn hold_answered(&mut self, order: &HoldOrder, decision: Decision) {
        let (key, act) = (order.key.as_str().to_owned(), format!("{:?}", order.act));
        let hold = self.holds.entry(key).or_default();
        let recorded = hold.recorded.get(&act).copied();
        // A round behind a later one, or behind the end, is told so, and that is not recorded.
        let late = match decision.code() {
            Some(Code::TransactionAborted) => Some(hold.ended),
            Some(Code::TransactionDecided) => Some(hold.recorded.len() > 1),
            _ => None,
        };
        let known = match late {
            Some(_) => decision,
            None => *hold.answered.entry(act).or_insert(decision),
        };
        let what = || format!("{order:?}: {known:?}, {decision:?}, recorded {recorded:?}");
        self.claim(late != Some(false), "a late round is behind another act", what);
        self.claim(known == decision, "L2 one decision per operation", what);
        let durable = recorded == Some(decision) || late.is_some();
        self.claim(durable, "L3 answered is durable", what);
        let (deposited, withdrawn) = order.act.outside();
        for (key, units) in [(order.key.deposit(), deposited), (order.key.withdrawal(), withdrawn)]
        {
            let logged = units == 0 || self.externals.contains_key(&key);
            self.claim(logged, "a leg of the outside has its record", || key.clone());
        }
    }

    /// All holds of a transaction were settled.
    pub(super) fn transaction_settled(&mut self, keys: &[&HoldKey]) {
        let holds = keys.iter().filter_map(|key| self.holds.get(key.as_str()));
        let sum: i128 = holds.map(|hold| hold.effect).sum();
        self.claim(sum == 0, "a transaction makes no money", || format!("{keys:?}: {sum}"));
    }

    /// Money entered or left Funding, durably.
    pub(super) fn external(&mut self, user: u64, asset: u32, change: i128) {
        *self.external.entry((user, asset)).or_default() += change;
        *self.balances.entry((Side::Funding, user, asset)).or_default() += change;
    }

    /// A balance in its store.
    pub(super) fn balance(&mut self, side: Side, user: u64, asset: u32, units: i128) {
        let journal = self.balances.get(&(side, user, asset)).copied().unwrap_or(0);
        self.claim(units == journal, "balances equal the journals", || {
            format!("{side:?} of {user}, asset {asset}: {units}, the journal has {journal}")
        });
    }

    /// Records known durable.
    pub(super) fn log_len(&self) -> u64 {
        self.log.len() as u64
    }

    /// A record of the log that has become durable, or that has survived a crash.
    pub(super) fn logged(&mut self, record: &wal::Record<'_>) {
        let bytes = (record.kind, record.payload.to_vec());
        let place = usize::try_from(record.sequence - 1).expect("few");
        if let Some(known) = self.log.get(place) {
            let same = *known == bytes;
            return self.claim(same, "L3 durable is durable", || {
                format!("record {} is another after a crash", record.sequence)
            });
        }
        self.claim(place == self.log.len(), "L7 no gap", || format!("record {}", record.sequence));
        self.log.push(bytes);
        match Entry::decode(record.kind, record.payload) {
            Ok(Entry::Order { order, decision, .. }) => self.recorded(
                Side::Spot,
                (order.req_id, order.op),
                (order.user, order.asset, order.amount),
                decision,
            ),
            Ok(Entry::External(external)) => {
                let idem_key = external.idem_key.as_str().to_owned();
                let before = self.externals.insert(idem_key, external.decision);
                self.claim(before.is_none(), "L2 one decision per operation", || {
                    format!("{external:?} is recorded twice")
                });
            }
            Ok(Entry::Named(named)) => self.posted(&named),
            Ok(_) => {}
            Err(error) => self.breach("L7 the log can be read", error.to_string()),
        }
    }

    /// Recovery has read this many records.
    pub(super) fn recovered(&mut self, records: u64) {
        let durable = self.log_len();
        self.claim(records == durable, "L3 durable is durable", || {
            format!("{records} records recovered, {durable} were durable")
        });
    }

    /// A caller reads a transfer's state.
    pub(super) fn answered(&mut self, req_id: u128, state: i16) {
        let Some(seen) = self.transfers.get_mut(&req_id) else {
            return self
                .breach("L3 answered is durable", format!("{req_id:032x} answered, not there"));
        };
        let before = seen.answered;
        let terminal = TERMINAL.iter().any(|row| row.0 == state);
        let objection = seen.objection(state);
        if terminal {
            seen.answered = Some(state);
        }
        self.claim(before.is_none_or(|earlier| earlier == state), "L6 answered is final", || {
            format!("{req_id:032x}: {state} after {before:?}")
        });
        if let Some(objection) = objection {
            self.breach("L3 answered is durable", format!("{req_id:032x}: {objection}"));
        }
    }

    /// A caller was answered that a transfer was not accepted.
    pub(super) fn denied(&mut self, req_id: u128) {
        self.denied.insert(req_id, ());
    }

    /// An operator resolves a transfer.
    pub(super) fn resolve_begun(&mut self, req_id: u128) {
        *self.resolving.entry(req_id).or_default() += 1;
    }

    /// The operator was answered that it was not done and never will be.
    pub(super) fn resolve_denied(&mut self, req_id: u128) {
        *self.resolving.entry(req_id).or_default() -= 1;
    }

    /// The operator was answered that no decision is pending. `by_operator`: the resolve made the
    /// decision.
    pub(super) fn resolve_answered(&mut self, req_id: u128, state: i16, by_operator: bool) {
        let decided = !matches!(state, 0 | 10 | 20 | 30);
        self.claim(decided, "a resolved transfer is decided", || format!("{req_id:032x}: {state}"));
        let objection = match self.transfers.get(&req_id) {
            None => Some("it is not there".to_owned()),
            Some(seen) if by_operator && !seen.recorded[..2].contains(&Some(false)) => {
                Some(format!("resolved, recorded {:?}", seen.recorded))
            }
            Some(seen) => seen.objection(state),
        };
        if let Some(objection) = objection {
            self.breach("L3 answered is durable", format!("{req_id:032x}: {objection}"));
        }
        // Concurrent readers may be answered later, with the state at their request.
        let before = self.resolved.insert(req_id, (state, by_operator));
        let same = before.is_none_or(|(earlier, doing)| {
            doing == by_operator && (earlier == state || (earlier, state) == (-20, -30))
        });
        self.claim(same, "a resolve is answered the same again", || {
            format!("{req_id:032x}: {before:?}, then {state} {by_operator}")
        });
    }

    /// A caller was answered that this is the transfer of a cid.
    pub(super) fn named(&mut self, user: u64, cid: &str, req_id: u128) {
        let known = *self.cids.entry((user, cid.to_owned())).or_insert(req_id);
        self.claim(known == req_id, "same cid, same answer", || format!("cid {cid} of {user}"));
    }

    /// A caller was answered with the decision on an external operation.
    pub(super) fn external_answered(&mut self, idem_key: &str, decision: Decision) {
        let known = *self.idem_keys.entry(idem_key.to_owned()).or_insert(decision);
        self.claim(known == decision, "L2 one decision per operation", || {
            format!("{idem_key}: {known:?}, then {decision:?}")
        });
        let recorded = self.externals.get(idem_key).copied();
        self.claim(recorded == Some(decision), "L3 answered is durable", || {
            format!("external {idem_key}: answered {decision:?}, the log has {recorded:?}")
        });
    }

    /// Whether the log has a record of each of these external operations.
    pub(super) fn has_recorded(&self, rows: &[ExternalOperation]) -> bool {
        rows.iter().all(|row| self.externals.contains_key(row.idem_key.as_str()))
    }

    /// At rest: the external operations in PostgreSQL.
    pub(super) fn externals_at_rest(&mut self, rows: &[ExternalOperation]) {
        let decisions: BTreeMap<String, Decision> =
            rows.iter().map(|row| (row.idem_key.as_str().to_owned(), row.decision)).collect();
        let recorded = std::mem::take(&mut self.externals);
        self.claim(decisions == recorded, "every external operation is recorded", || {
            format!("PostgreSQL has {decisions:?}, the log {recorded:?}")
        });
        self.externals = recorded;
    }

    /// A status is being changed: either may hold.
    pub(super) fn status_begun(&mut self, side: Side, user: u64) {
        self.statuses.remove(&(side, user));
    }

    /// The change was answered.
    pub(super) fn status_answered(&mut self, side: Side, user: u64, status: AccountStatus) {
        self.statuses.insert((side, user), status);
    }

    /// Outcomes of smaller order numbers may be forgotten.
    pub(super) fn watermark(&mut self, order_number: u64) {
        self.watermark = self.watermark.max(order_number);
        let open = self.transfers.values().find(|seen| {
            seen.intent.order_number < order_number
                && !seen.state().is_some_and(|state| TERMINAL.iter().any(|row| row.0 == state))
        });
        let open = open.map(|seen| seen.intent.req_id);
        self.claim(open.is_none(), "the watermark passes only ended transfers", || {
            format!("{open:?} is below {order_number}")
        });
    }

    /// Whether the outcomes of a transfer may have been forgotten.
    pub(super) fn may_be_forgotten(&self, intent: &Intent) -> bool {
        intent.order_number < self.watermark
    }

    /// The number of transfers that operators were answered to have resolved.
    pub(super) fn resolved(&self) -> u64 {
        self.resolved.values().map(|(_, by_operator)| u64::from(*by_operator)).sum()
    }

    /// Transfers seen, by their last state.
    pub(super) fn endings(&self) -> BTreeMap<i16, u64> {
        let mut endings = BTreeMap::new();
        for seen in self.transfers.values() {
            *endings.entry(seen.state().unwrap_or(0)).or_default() += 1;
        }
        endings
    }

    /// The end of a run: the states in PostgreSQL.
    pub(super) fn rest(&mut self, rows: &BTreeMap<u128, i16>) {
        let mut wrong = Vec::new();
        for (req_id, seen) in &self.transfers {
            let state = rows.get(req_id).copied();
            let terminal = state.is_some_and(|s| TERMINAL.iter().any(|row| row.0 == s));
            if state != seen.state() {
                wrong.push(("L6 terminal is final", format!("{req_id:032x} is in {state:?}")));
            } else if !terminal {
                wrong.push(("everything ends terminal", format!("{req_id:032x} in {state:?}")));
            } else if seen.answered.is_some() && seen.answered != state {
                let what =
                    format!("{req_id:032x}: answered {:?}, ended in {state:?}", seen.answered);
                wrong.push(("L6 answered is final", what));
            } else if let Some(objection) = state.and_then(|state| seen.objection(state)) {
                wrong.push(("L1 a terminal state fixes the triple", objection));
            }
            if let Some(&(before, by_operator)) = self.resolved.get(req_id)
                && (state != Some(if before == -20 { -30 } else { before })
                    || by_operator && state == Some(40))
            {
                let what =
                    format!("{req_id:032x} was answered resolved in {before}, ends in {state:?}");
                wrong.push(("a refusal closes the door", what));
            }
            if self.denied.contains_key(req_id) {
                wrong.push(("denied is not done", format!("{req_id:032x} was accepted")));
            }
        }
        // Funding + Spot + in flight = deposits - withdrawals, by user and asset.
        let mut sums = self.external.clone();
        for ((_, user, asset), units) in &self.balances {
            *sums.entry((*user, *asset)).or_default() -= units;
        }
        for seen in self.transfers.values() {
            let [withdrawn, deposited, refunded] = seen.applied().map(i128::from);
            let key = (seen.intent.user.number(), seen.intent.asset.0);
            let amount = i128::from(seen.intent.amount.units());
            *sums.entry(key).or_default() -= amount * (withdrawn - deposited - refunded);
        }
        if let Some((account, difference)) = sums.iter().find(|(_, sum)| **sum != 0) {
            wrong.push(("L1 conservation", format!("{account:?}: {difference} too few")));
        }
        if let Some((law, what)) = wrong.into_iter().next() {
            self.breach(law, what);
        }
    }
}
