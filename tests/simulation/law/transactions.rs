//! The laws of transactions (L12 to L14 of chapter 14). The judge gets each committed row, each
//! durable record of Spot, and each record of a service; it adds up by itself.

use std::collections::{BTreeMap, BTreeSet};

use domain::asset::AssetId;
use domain::hold::{HoldAct, HoldOrder};
use domain::posting::{Breakdown, Leg};
use domain::transfer::{Decision, Op, Participant, ReqId};
use engine::named::Named;
use ubscore::transaction::{
    Branch, BranchState, Decider, LegPlace, Party, TransactionName, TransactionRow,
    TransactionState, TransactionVerdict,
};
use ubscore::transactions::step::Word;

use super::super::parties::ServiceRecord;
use super::super::special::{agrees, funding_legs, special_places};
use super::{Law, Side};

/// The states by their numbers, and the next states of each.
const TABLE: [(i16, &[i16]); 6] =
    [(0, &[20, 30, -10]), (20, &[30, -10]), (30, &[40]), (40, &[]), (-10, &[-20]), (-20, &[])];

/// The changes of users' sums: smallest units by user and asset.
type Effect = BTreeMap<(u64, u32), i128>;

/// All transactions.
#[derive(Debug, Default)]
pub(super) struct SeenTransactions {
    rows: BTreeMap<ReqId, Seen>,
    names: BTreeMap<TransactionName, ReqId>,
    /// The durable records of Spot, by transaction.
    spot: BTreeMap<u128, SeenOnSpot>,
    services: BTreeMap<String, ServiceRecord>,
    /// The verdicts that callers were told.
    told: BTreeMap<TransactionName, TransactionVerdict>,
}

/// One transaction, as it was committed last.
#[derive(Debug)]
struct Seen {
    row: TransactionRow,
    /// It was DECIDING once.
    deciding: bool,
}

/// One transaction on Spot.
#[derive(Debug, Default)]
struct SeenOnSpot {
    /// The rounds, and whether each succeeded.
    tried: BTreeMap<u8, bool>,
    apart: Effect,
    /// The last accepted legs, as they are booked.
    legs: Vec<Leg>,
    effect: Effect,
    settled: bool,
    released: bool,
}

fn leads(from: i16, to: i16) -> bool {
    let nexts = TABLE.iter().find(|row| row.0 == from).map_or(&[][..], |row| row.1);
    nexts.iter().any(|next| *next == to || leads(*next, to))
}

/// Whether a round was refused: its legs count no more.
fn is_used_up(row: &TransactionRow, round: u8) -> bool {
    row.branches.iter().any(|branch| branch.round == round && branch.state == BranchState::Refused)
}

/// The accepted legs of one store, as changes of users' sums.
fn effect_of(row: &TransactionRow, store: Participant) -> Effect {
    let mut effect = Effect::new();
    let party = Party::Store(store);
    let counts = |branch: &&Branch| branch.party == party && !is_used_up(row, branch.round);
    for leg in row.branches.iter().filter(counts).flat_map(|branch| &branch.legs) {
        for (place, sign) in [(leg.from, -1), (leg.to, 1)] {
            let Some(user) = place.user_in(store) else { continue };
            *effect.entry((user.number(), leg.asset.0)).or_default() +=
                sign * i128::from(leg.amount);
        }
    }
    effect.retain(|_, change| *change != 0);
    effect
}

impl Law {
    /// A row of a transaction was committed.
    pub(in super::super) fn transaction(&mut self, row: &TransactionRow) {
        let what = || format!("{row:?}");
        let state = row.state.number();
        let known = *self.transactions.names.entry(row.name.clone()).or_insert(row.id);
        self.claim(known == row.id, "L2 accepted once", what);
        let before = self.transactions.rows.get(&row.id);
        let was = before.map(|seen| (seen.row.state, seen.deciding));
        match was {
            None => {
                let below = row.order_number < self.watermark;
                self.claim(!below, "the watermark passes only ended transfers", what);
                self.claim(matches!(state, 0 | -20), "the table of transitions", what);
            }
            Some((from, _)) => {
                let stands = from.verdict().is_none() || from.verdict() == row.state.verdict();
                self.claim(stands, "L14 a decision stands", || format!("{from:?}, {row:?}"));
                let legal = from.number() == state || leads(from.number(), state);
                self.claim(legal, "the table of transitions", || format!("{from:?}, {row:?}"));
                self.claim(!from.is_terminal(), "L6 terminal is final", what);
            }
        }
        let deciding = row.state == TransactionState::Deciding || was.is_some_and(|was| was.1);
        let undecided = was.is_none_or(|(from, _)| from.verdict().is_none());
        match row.state.verdict().filter(|_| undecided) {
            Some(TransactionVerdict::Commit) => self.committed_whole(row),
            Some(TransactionVerdict::Abort) => self.aborted_by(row, deciding),
            None => {}
        }
        if row.state.is_terminal() {
            self.ended_whole(row);
        } else {
            self.special_stays(row);
        }
        self.transactions.rows.insert(row.id, Seen { row: row.clone(), deciding });
    }

    /// A transaction that is not over books its special places as such in all rounds, and they are
    /// special.
    fn special_stays(&mut self, row: &TransactionRow) {
        let named = special_places(funding_legs(row));
        let stands = named.iter().all(|key| self.special.contains(key));
        let legs: Vec<_> = funding_legs(row).collect();
        let agree = agrees(legs.into_iter());
        self.claim(stands && agree, "a place stays special", || format!("{row:?}"));
    }

    /// A balance is special no longer.
    pub(in super::super) fn special_ended(&mut self, key: (u64, u32)) {
        self.special.remove(&key);
        let mut open = self.transactions.rows.values().map(|seen| &seen.row);
        let named = open.find(|row| {
            !row.state.is_terminal() && special_places(funding_legs(row)).contains(&key)
        });
        let named = named.map(|row| row.id);
        let left = self.available(key);
        self.claim(named.is_none(), "a place stays special", || format!("{key:?}: {named:?}"));
        self.claim(left >= 0, "L1 conservation", || format!("{key:?}: {left}"));
    }

    /// A crash of PostgreSQL has taken back a commit: the row is this one again.
    pub(in super::super) fn transaction_lost(&mut self, before: &TransactionRow) {
        let Some(seen) = self.transactions.rows.get_mut(&before.id) else { return };
        let sealed = seen.row.sealed;
        seen.row = before.clone();
        self.claim(!sealed, "L3 durable is durable", || format!("{before:?} was sealed"));
    }

    /// A decision to commit: each party of each round that counts has recorded its try.
    fn committed_whole(&mut self, row: &TransactionRow) {
        let counts = |branch: &&Branch| !is_used_up(row, branch.round);
        let mut untried = Vec::new();
        for branch in row.branches.iter().filter(counts) {
            let tried = match &branch.party {
                Party::Store(Participant::Funding) => self.is_set_apart(row, branch),
                Party::Store(Participant::Spot) => {
                    let spot = self.transactions.spot.get(&row.id.number());
                    spot.is_some_and(|spot| spot.tried.get(&branch.round) == Some(&true))
                }
                Party::Service(_) => {
                    let record = self.transactions.services.get(&row.branch_id(branch));
                    let wanted = match branch.last {
                        true => ServiceRecord::Confirmed,
                        false => ServiceRecord::Tried,
                    };
                    record == Some(&wanted)
                }
            };
            if !tried {
                untried.push(row.branch_id(branch));
            }
        }
        let any = row.branches.iter().any(|branch| counts(&branch));
        self.claim(any && untried.is_empty(), "L14 a commit has tried its branches", || {
            format!("{untried:?} of {row:?}")
        });
        let vetoed = row.branches.iter().any(|branch| {
            let service = matches!(branch.party, Party::Service(_));
            branch.state == BranchState::Refused && (service || row.decider != Decider::Caller)
        });
        self.claim(!vetoed, "a refusal of a service aborts", || format!("{row:?}"));
    }

    /// Whether Funding has recorded the try of this round for each of its users.
    fn is_set_apart(&self, row: &TransactionRow, branch: &Branch) -> bool {
        let round = 2 * branch.round - 1;
        let set = format!("Set {{ round: {round},");
        let sides = branch.legs.iter().flat_map(|leg| [(leg.from, leg.asset), (leg.to, leg.asset)]);
        let own = |(place, asset): (LegPlace, AssetId)| {
            let user = place.user_in(Participant::Funding)?;
            let key = format!("{}:{}:{}", row.id, user.number(), asset.0);
            Some(match place {
                LegPlace::Frozen { purpose, .. } => format!("{key}:{purpose}"),
                LegPlace::Available { .. } | LegPlace::Special { .. } | LegPlace::Outside => key,
            })
        };
        sides.filter_map(own).all(|key| {
            let hold = self.holds.get(&key);
            hold.is_some_and(|hold| {
                let mut acts = hold.recorded.iter();
                acts.any(|(act, made)| act.starts_with(&set) && *made == Decision::Success)
            })
        })
    }

    /// A decision to abort: by the caller, by age, or by a refusal that is recorded. Silence of the
    /// last participant decides nothing.
    fn aborted_by(&mut self, row: &TransactionRow, deciding: bool) {
        let by = row.decided_by.as_deref().unwrap_or_default();
        let late = by != "age" || row.rounds == 0 || row.updated_at > row.expires_at;
        self.claim(late, "L14 an age ends what is older", || format!("{row:?}"));
        let last = row.branches.iter().find(|branch| branch.last);
        if let Some(last) = last.filter(|_| deciding) {
            let record = self.transactions.services.get(&row.branch_id(last));
            let refused = record == Some(&ServiceRecord::Refused);
            self.claim(refused, "L14 silence decides nothing", || format!("{row:?}"));
        }
    }

    /// L12: a transaction has ended at all of its parties, with all of its legs or with none.
    fn ended_whole(&mut self, row: &TransactionRow) {
        let done = row.state == TransactionState::Done;
        let prefix = format!("{}:", row.id);
        let holds = self.holds.iter().filter(|(key, _)| key.starts_with(&prefix));
        let (mut funding, mut apart) = (Effect::new(), Vec::new());
        for (key, hold) in holds {
            if hold.apart != 0 || !hold.ended {
                apart.push(key.clone());
            }
            let mut parts = key[prefix.len()..].split(':');
            let user = parts.next().and_then(|user| user.parse().ok()).expect("our own key");
            let asset = parts.next().and_then(|asset| asset.parse().ok()).expect("our own key");
            // One for each place: of its available balance, and of its freezes.
            *funding.entry((user, asset)).or_default() += hold.effect;
        }
        funding.retain(|_, change| *change != 0);
        let spot = self.transactions.spot.get(&row.id.number());
        let held = spot.is_some_and(|spot| spot.apart.values().any(|units| *units != 0));
        let on_spot = spot.map(|spot| spot.effect.clone()).unwrap_or_default();
        let nothing_apart = apart.is_empty() && !held;
        self.claim(nothing_apart, "no hold without its transaction", || {
            format!("{apart:?}, on Spot {held}, of {row:?}")
        });
        let whole = |store, effect: &Effect| match done {
            true => effect_of(row, store) == *effect,
            false => effect.is_empty(),
        };
        let is_whole = whole(Participant::Funding, &funding) && whole(Participant::Spot, &on_spot);
        self.claim(is_whole, "L12 a set is one", || {
            format!("Funding {funding:?}, Spot {on_spot:?}, of {row:?}")
        });
        for branch in &row.branches {
            let Party::Service(_) = branch.party else { continue };
            let record = self.transactions.services.get(&row.branch_id(branch)).copied();
            let fits = match done && !is_used_up(row, branch.round) {
                true => record == Some(ServiceRecord::Confirmed),
                false => {
                    matches!(record, None | Some(ServiceRecord::Refused | ServiceRecord::Cancelled))
                }
            };
            let what = || format!("{} is {record:?}, of {row:?}", row.branch_id(branch));
            self.claim(fits, "L12 a set is one", what);
        }
    }

    /// A party is asked about a transaction.
    pub(in super::super) fn transaction_asked(&mut self, id: ReqId, word: Word, round: u8) {
        let seen = self.transactions.rows.get(&id);
        let (law, allowed) = match word {
            Word::Try | Word::SetBack => {
                ("L5 persisted first", seen.is_some_and(|seen| seen.row.rounds >= round))
            }
            Word::Commit => ("L5 persisted first", seen.is_some_and(|seen| seen.deciding)),
            Word::Confirm => {
                let verdict = seen.and_then(|seen| seen.row.state.verdict());
                let sealed = seen.is_some_and(|seen| seen.row.sealed);
                let committed = verdict == Some(TransactionVerdict::Commit);
                ("nothing leaves before the seal", committed && sealed)
            }
            Word::Cancel => {
                let verdict = seen.and_then(|seen| seen.row.state.verdict());
                ("L14 decided, never presumed", verdict == Some(TransactionVerdict::Abort))
            }
        };
        if !allowed {
            let what = format!("{} of round {round} of {id}: {seen:?}", word.name());
            self.breach(law, what);
        }
    }

    /// Funding is asked to act on a hold of a transaction.
    pub(in super::super) fn hold_asked(&mut self, order: &HoldOrder) {
        let mut ids = self.transactions.rows.keys().copied();
        let id = ids.find(|id| order.key.as_str().starts_with(&format!("{id}:")));
        let Some(id) = id else {
            return self.breach("L5 persisted first", format!("{order:?} of no transaction"));
        };
        match order.act {
            HoldAct::Set { round, .. } => {
                self.transaction_asked(id, Word::Try, round.div_ceil(2));
            }
            HoldAct::Settle { .. } => self.transaction_asked(id, Word::Confirm, 0),
            // A hold of refused rounds alone is released by a commit too.
            HoldAct::Release => {
                let row = &self.transactions.rows[&id].row;
                let word = match row.state.verdict() {
                    Some(TransactionVerdict::Commit) => Word::Confirm,
                    _ => Word::Cancel,
                };
                self.transaction_asked(id, word, 0);
            }
        }
    }

    /// A service has recorded a word.
    pub(in super::super) fn served(&mut self, branch_id: &str, record: ServiceRecord) {
        self.transactions.services.insert(branch_id.to_owned(), record);
    }

    /// A caller was answered with this row.
    pub(in super::super) fn transaction_told(&mut self, row: &TransactionRow) {
        let Some(verdict) = row.state.verdict() else { return };
        let seen = self.transactions.rows.get(&row.id).map(|seen| &seen.row);
        let durable = seen.is_some_and(|seen| {
            seen.state.verdict() == Some(verdict)
                && (seen.sealed || verdict == TransactionVerdict::Abort)
        });
        self.claim(durable, "L3 answered is durable", || format!("{row:?}"));
        let told = *self.transactions.told.entry(row.name.clone()).or_insert(verdict);
        self.claim(told == verdict, "L6 answered is final", || format!("{told:?}, then {row:?}"));
    }

    /// A posting by name was recorded on Spot, durably.
    pub(super) fn posted(&mut self, named: &Named) {
        let what = || format!("{named:?}");
        let seen = self.transactions.spot.entry(named.transaction).or_default();
        let success = named.decision == Decision::Success;
        let over = seen.settled || seen.released;
        let again = match named.op {
            Op::Reserve => seen.tried.insert(named.round, success).is_some(),
            Op::Settle => std::mem::replace(&mut seen.settled, true),
            _ => std::mem::replace(&mut seen.released, true),
        };
        let mut moved = Effect::new();
        match named.op {
            Op::Reserve if success => {
                let parts = Breakdown::of(&named.legs, |_| true);
                seen.apart.clear();
                for part in parts.iter().filter(|part| part.apart > 0) {
                    let user = part.place.user().expect("available or frozen");
                    let units = i128::try_from(part.apart).expect("64 bits");
                    *seen.apart.entry((user, part.asset)).or_default() += units;
                }
                seen.legs = named.legs.to_vec();
            }
            Op::Settle => {
                for leg in &named.legs {
                    for (place, sign) in [(leg.from, -1), (leg.to, 1)] {
                        let Some(user) = place.user() else { continue };
                        *moved.entry((user, leg.asset)).or_default() +=
                            sign * i128::from(leg.amount);
                    }
                }
                moved.retain(|_, change| *change != 0);
                seen.apart.clear();
            }
            Op::Release => seen.apart.clear(),
            _ => {}
        }
        seen.effect.clone_from(&moved);
        let tried = seen.legs == named.legs.to_vec();
        let ends = named.op != Op::Reserve;
        self.claim(!again, "L2 one decision per operation", what);
        self.claim(!ends || success, "L13 an end is always possible", what);
        self.claim(!(over && success), "a hold ends once", what);
        self.claim(named.op != Op::Settle || tried, "a settle books what was tried", what);
        for ((user, asset), change) in moved {
            *self.balances.entry((Side::Spot, user, asset)).or_default() += change;
            *self.external.entry((user, asset)).or_default() += change;
        }
        for part in Breakdown::of(&named.legs, |_| true).iter() {
            self.nothing_held_is_used(part.place.user().expect("of a user"), part.asset);
        }
    }

    /// Money that is apart on Spot is in its owner's sum, and no other operation uses it.
    pub(super) fn nothing_held_is_used(&mut self, user: u64, asset: u32) {
        let seen = self.transactions.spot.values();
        let held: i128 = seen.filter_map(|seen| seen.apart.get(&(user, asset))).sum();
        let sum = self.balances.get(&(Side::Spot, user, asset)).copied().unwrap_or(0);
        self.claim(sum >= held, "L1 conservation", || {
            format!("Spot of {user}: {sum}, and {held} are held")
        });
    }

    /// The transactions that have ended, by their last state.
    pub(in super::super) fn transactions_ended(&self) -> BTreeMap<i16, u64> {
        let mut ended = BTreeMap::new();
        for seen in self.transactions.rows.values().filter(|seen| seen.row.state.is_terminal()) {
            *ended.entry(seen.row.state.number()).or_default() += 1;
        }
        ended
    }

    /// The end of a run. `business`: the transactions with a row of the caller's own.
    pub(in super::super) fn transactions_at_rest(&mut self, business: &BTreeSet<TransactionName>) {
        let mut wrong = Vec::new();
        for Seen { row, .. } in self.transactions.rows.values() {
            if !row.state.is_terminal() {
                wrong.push(("everything ends terminal", format!("{row:?}")));
            }
            let by_sql = row.decided_by.as_ref().is_some_and(|by| by.starts_with("caller:"));
            let done = row.state == TransactionState::Done;
            let written = business.contains(&row.name);
            if written && !done || by_sql && !written {
                wrong.push(("a caller's row is in the same commit", format!("{row:?}")));
            }
            let told = self.transactions.told.get(&row.name);
            if told.is_some_and(|told| Some(*told) != row.state.verdict()) {
                wrong.push(("L6 answered is final", format!("{told:?}, {row:?}")));
            }
        }
        let mut on_spot = self.transactions.spot.iter();
        if let Some((id, _)) = on_spot.find(|(_, seen)| seen.apart.values().any(|units| *units > 0))
        {
            wrong.push(("no hold without its transaction", format!("{id:032x} on Spot")));
        }
        let open = self.transactions.rows.keys().any(|id| {
            let prefix = format!("{id}:");
            let mut holds = self.holds.iter().filter(|(key, _)| key.starts_with(&prefix));
            holds.any(|(_, hold)| hold.apart != 0)
        });
        if open {
            wrong.push(("no hold without its transaction", "on Funding".to_owned()));
        }
        if let Some((law, what)) = wrong.into_iter().next() {
            self.breach(law, what);
        }
    }
}
