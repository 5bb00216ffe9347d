//! The account statement of one user over both stores: every movement, in order, with the balance
//! after it.
//!
//! Funding comes from the journal in PostgreSQL. Spot comes from the log as far back as it reaches.
//! Before that it comes from the transfers, which PostgreSQL keeps for ever. Balances are added up
//! from zero, and compared with the balances that either store has recorded beside its operations.
//!
//! A settled hold of Funding is one line SETTLED. Money that a hold only sets apart is part of the
//! balance, and no line.
//!
//! Postings of venues and of services are in the log only. If its first records are removed and no
//! archive has them, one line per asset, EARLIER, is the sum of the postings up to the oldest
//! snapshot.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::Path;

use engine::entry::Entry;
use engine::named::Named;
use engine::order::Order;
use engine::posted::Posted;
use engine::snapshot::Snapshot;
use engine::snapshot::store::SnapshotStore;
use jiff::Timestamp;
use ulid::Ulid;
use wal::{Directory, Reader, Record, SegmentHeader, Sequence};

use super::error::Error;
use super::legs::{HoldOwners, LegShare, LegSums};
use crate::postgres::movements::{FundingMovement, Movements, SettledHold, TransferMoves};
use domain::account::UserId;
use domain::amount::{signed_text, units_text};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Claim, Decision, Op, Participant, ReqId};

/// Operations of one account with nearly equal times are sorted so that their balances fit. This
/// many are looked at.
const REORDER_MAX: usize = 64;

/// One line of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Movement {
    /// The time of the decision: by the service's clock.
    pub at: Timestamp,
    /// The account.
    pub account: Participant,
    /// The operation; `None` for the sum of earlier postings on Spot, and for a settled hold of
    /// Funding.
    pub op: Option<Op>,
    /// The asset.
    pub asset: AssetId,
    /// The change of the balance, with the held part, smallest units.
    pub effect: i128,
    /// The change of the held part, smallest units.
    pub held: i128,
    /// The balance that the store has recorded beside it, if any, smallest units.
    recorded: Option<i128>,
    /// The balance after it, smallest units.
    pub balance: i128,
    /// The transfer's req_id, the external operation's idem_key, the name of a posting, or the key
    /// of a hold with the amounts that it took and brought.
    pub reference: String,
    /// Its record in the log, while the log has it or PostgreSQL remembers its number.
    pub sequence: Option<Sequence>,
}

impl Movement {
    /// The name of the operation.
    pub fn name(&self) -> &'static str {
        match (self.op, self.account) {
            (Some(op), _) => op.name(),
            (None, Participant::Funding) => "SETTLED",
            (None, Participant::Spot) => "EARLIER",
        }
    }

    /// Whether it only moves money between the available and the held part of the balance.
    pub fn only_holds(&self) -> bool {
        self.effect == 0 && self.held != 0
    }
}

/// The balances of one asset at one moment, smallest units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balances {
    /// In PostgreSQL.
    pub funding: i128,
    /// In UBSCore.
    pub spot: i128,
    /// Taken from one and not yet in the other.
    pub in_flight: i128,
}

impl Balances {
    fn add(&mut self, movement: &Movement) {
        match movement.account {
            Participant::Funding => self.funding += movement.effect,
            Participant::Spot => self.spot += movement.effect,
        }
        // A movement that is not external comes from the money in flight, or goes there.
        if movement.op.is_some_and(|op| op.place_in_transfer().is_some()) {
            self.in_flight -= movement.effect;
        }
    }
}

/// A statement from the beginning. [`Statement::between`] returns a part of it.
#[derive(Clone, Debug, Default)]
pub struct Statement {
    /// By time, and on each account in the order of the decisions. With the time that sorts them.
    movements: Vec<(Timestamp, Movement)>,
    /// LegSums that do not add up, one sentence each.
    pub mismatches: Vec<String>,
    /// Operations on Spot after PostgreSQL was read: left out.
    pub newer: usize,
}

/// The movements of a period, and the balances before and after it.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// In order.
    pub movements: Vec<&'a Movement>,
    /// Before the first of them, by asset.
    pub opening: BTreeMap<AssetId, Balances>,
    /// After the last of them, by asset.
    pub closing: BTreeMap<AssetId, Balances>,
}

impl Statement {
    /// Movements from `since` on, and before `until`.
    pub fn between(&self, since: Timestamp, until: Timestamp) -> Part<'_> {
        let mut opening = BTreeMap::<AssetId, Balances>::new();
        let (before, rest) =
            self.movements.split_at(self.movements.partition_point(|(at, _)| *at < since));
        for (_, movement) in before {
            opening.entry(movement.asset).or_default().add(movement);
        }
        let mut closing = opening.clone();
        let movements = &rest[..rest.partition_point(|(at, _)| *at < until)];
        for (_, movement) in movements {
            opening.entry(movement.asset).or_default();
            closing.entry(movement.asset).or_default().add(movement);
        }
        let movements = movements.iter().map(|(_, movement)| movement).collect();
        Part { movements, opening, closing }
    }
}

/// The records of a user in the log.
#[derive(Debug, Default)]
pub struct UserRecords {
    /// Successes, each with the sequence and time of its record.
    operations: HashMap<(ReqId, Op), LoggedMovement>,
    /// The legs of postings, in order.
    legs: Vec<Movement>,
    /// The record of the snapshot that the legs begin with; 0 for the log's beginning.
    begun: Sequence,
    /// The first record of the log; none in an empty log.
    first: Option<Sequence>,
    /// The last record that a later record knows durable.
    durable: Sequence,
    /// Order numbers below it had ended before this log began: it holds only their totals. 0 for
    /// none.
    carried: u64,
}

#[derive(Clone, Copy, Debug)]
struct LoggedMovement {
    order: Order,
    balance_after: Option<u128>,
    sequence: Sequence,
    at: Timestamp,
}

/// The log of a statement.
#[derive(Clone, Copy, Debug)]
pub struct Logs<'a> {
    /// The directory of the log.
    pub log: &'a Path,
    /// The directory of its snapshots.
    pub snapshots: &'a Path,
    /// A directory with segments that are removed from the log, if any.
    pub archive: Option<&'a Path>,
}

/// Reads the archive and the log for the operations of one user. Call it after the read of
/// PostgreSQL: then the log has every operation that PostgreSQL claims.
///
/// # Errors
/// [`Error`]: the log cannot be read, or the archive does not continue in it.
pub fn read_log(logs: Logs<'_>, user: UserId) -> Result<UserRecords, Error> {
    let mut records = Reading { user: user.number(), ..Reading::default() };
    let mut next = 0;
    if let Some(archive) = logs.archive {
        let mut archived = Reader::<Directory>::open_path(archive, 0)?;
        let identity = Reader::<Directory>::open_path(logs.log, 0)?.identity();
        if archived.identity().is_some() && archived.identity() != identity {
            return Err(Error::ForeignArchive { path: archive.to_owned() });
        }
        records.begin(&archived, logs.snapshots)?;
        while let Some(record) = archived.next()? {
            records.take(&record)?;
            next = record.sequence + 1;
        }
    }
    let mut reader = Reader::<Directory>::open_path(logs.log, next)?;
    if next == 0 {
        records.begin(&reader, logs.snapshots)?;
    }
    while let Some(record) = reader.next()? {
        records.take(&record)?;
    }
    Ok(records.found)
}

/// The state of a read.
#[derive(Default)]
struct Reading {
    user: u64,
    found: UserRecords,
    /// An order was read.
    decided: bool,
    holds: HoldOwners,
    /// What postings had moved up to the snapshot, by asset.
    earlier: BTreeMap<AssetId, i128>,
}

impl Reading {
    /// Without record 1, the holds and the sums of postings come from the oldest snapshot.
    fn begin(&mut self, reader: &Reader<Directory>, snapshots: &Path) -> Result<(), Error> {
        if reader.headers().next().is_none_or(|head| SegmentHeader::first(head) <= 1) {
            return Ok(());
        }
        let named = SnapshotStore::at(snapshots).named().map_err(Box::new)?;
        for (sequence, path) in named.into_iter().rev() {
            match Snapshot::open(&path).and_then(|snapshot| LegSums::of_snapshot(&snapshot)) {
                Ok(sums) => {
                    self.found.begun = sequence;
                    self.earlier = sums.traded(self.user);
                    self.holds = sums.into_holds();
                    return Ok(());
                }
                Err(error) if error.is_damage() => {}
                Err(error) => return Err(Box::new(error).into()),
            }
        }
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), Error> {
        let (sequence, time_ns) = (record.sequence, record.time_ns);
        let Reading { user, found, decided, holds, earlier } = self;
        found.first.get_or_insert(sequence);
        found.durable = found.durable.max(record.durable);
        let entry = Entry::decode(record.kind, record.payload)
            .map_err(|source| Error::Record { sequence, source })?;
        match entry {
            // A rebuilt log has all totals, then the watermark, and only then orders.
            Entry::Watermark { order_number } if !*decided => found.carried = order_number,
            Entry::Order { .. } => *decided = true,
            _ => {}
        }
        let at = Timestamp::from_nanosecond(time_ns.into()).expect("any u64 of ns is in range");
        if sequence == found.begun {
            let earlier = std::mem::take(earlier).into_iter().filter(|(_, traded)| *traded != 0);
            found.legs.extend(earlier.map(|(asset, effect)| Movement {
                at,
                account: Participant::Spot,
                op: None,
                asset,
                effect,
                held: 0,
                recorded: None,
                balance: 0,
                reference: format!("postings up to record {sequence}"),
                sequence: Some(sequence),
            }));
        }
        match entry {
            Entry::Order { order, decision: Decision::Success, balance_after, .. }
                if order.user == *user =>
            {
                let Some(req_id) = ReqId::new(order.req_id) else { return Ok(()) };
                // Up to the snapshot the sum of the postings has no place among the orders.
                let balance_after = (sequence > found.begun).then_some(balance_after);
                let movement = LoggedMovement { order, balance_after, sequence, at };
                found.operations.insert((req_id, order.op), movement);
            }
            Entry::Posting(ref posted) if sequence > found.begun => {
                holds.book(posted, |share| {
                    if share.user == Some(*user) {
                        found.legs.push(leg_movement(posted, &share, sequence, at));
                    }
                });
            }
            Entry::Named(ref named) if sequence > found.begun => {
                holds.book_named(named, |share| {
                    if share.user == Some(*user) {
                        let name = named_reference(named);
                        found.legs.push(movement_of(named.op, name, &share, sequence, at));
                    }
                });
            }
            _ => {}
        }
        Ok(())
    }
}

/// The name of a posting by name in a statement.
fn named_reference(named: &Named) -> String {
    let Named { transaction, round, ref tx_id, .. } = *named;
    format!("transaction {} round {round} tx_id {}", Ulid(transaction), tx_id.as_str())
}

fn leg_movement(posted: &Posted, share: &LegShare, sequence: Sequence, at: Timestamp) -> Movement {
    let Posted { venue, number, operator, reference, op, .. } = *posted;
    let mut name = match operator {
        0 => format!("venue {venue} #{number}"),
        name => format!("venue {venue} operator {}", Ulid(name)),
    };
    if reference != 0 {
        name.push_str(&format!(" reference {reference}"));
    }
    movement_of(op, name, share, sequence, at)
}

fn movement_of(
    op: Op,
    reference: String,
    share: &LegShare,
    sequence: Sequence,
    at: Timestamp,
) -> Movement {
    Movement {
        at,
        account: Participant::Spot,
        op: Some(op),
        asset: AssetId(share.asset),
        effect: share.owned,
        held: share.held,
        recorded: None,
        balance: 0,
        reference,
        sequence: Some(sequence),
    }
}

/// Joins both stores. `catalog`: symbols and decimals for the mismatches.
pub fn statement(movements: Movements, logged: UserRecords, catalog: &Catalog) -> Statement {
    let mut statement = Statement::default();
    let mut accounts = BTreeMap::<(Participant, AssetId), Vec<Movement>>::new();
    for movement in movements.funding {
        let movement = funding_movement(movement);
        accounts.entry((movement.account, movement.asset)).or_default().push(movement);
    }
    for settled in movements.holds {
        let movement = hold_movement(settled, catalog);
        accounts.entry((movement.account, movement.asset)).or_default().push(movement);
    }
    for ((account, _), found) in &mut accounts {
        assert_eq!(*account, Participant::Funding, "the log is read below");
        found.sort_by_key(|movement| movement.at);
    }
    let UserRecords { mut operations, mut legs, begun: _, first, durable, carried } = logged;
    let first = first.unwrap_or(1);
    for moves in &movements.transfers {
        let claimed = claimed(moves);
        let is_carried = moves.transfer.intent.order_number < carried;
        for op in Op::OF_TRANSFER {
            let claim = claimed.iter().find(|(claimed, _)| *claimed == op).map(|(_, at)| *at);
            // A statement is never taken back: a record counts if a later record knows it durable,
            // or if PostgreSQL has its result.
            let logged = operations
                .remove(&(moves.transfer.intent.req_id, op))
                .filter(|logged| claim.is_some() || logged.sequence <= durable);
            let mut movement = match (logged, claim) {
                (Some(logged), _) => spot_movement(moves, op, Some(&logged), logged.at),
                (None, Some(at)) => spot_movement(moves, op, None, at),
                (None, None) => continue,
            };
            if is_carried && logged.is_none() {
                // PostgreSQL names a record of the log before this one.
                movement.sequence = None;
            }
            // If no store has its record number, only a log with its first record must have it.
            let missed = logged.is_none() && !is_carried;
            if missed && movement.sequence.unwrap_or(1) >= first {
                let (name, reference) = (op.name(), &movement.reference);
                statement.mismatches.push(format!(
                    "PostgreSQL has a {name} of {reference} on Spot, the log has none"
                ));
            }
            accounts.entry((movement.account, movement.asset)).or_default().push(movement);
        }
    }
    let newer = operations.values().filter(|logged| logged.sequence <= durable);
    // The legs after a transfer that is left out would be added to a balance without it.
    let end = newer.clone().map(|logged| logged.sequence).min().unwrap_or(durable + 1);
    statement.newer = newer.count();
    let kept = legs.partition_point(|leg| leg.sequence.is_some_and(|sequence| sequence < end));
    statement.newer += legs.split_off(kept).len();
    for leg in legs {
        accounts.entry((leg.account, leg.asset)).or_default().push(leg);
    }
    for (asset, _) in &movements.balances {
        accounts.entry((Participant::Funding, *asset)).or_default();
    }
    for ((account, asset), found) in accounts {
        let mut latest = Timestamp::MIN;
        let chained = match account {
            Participant::Funding => chain(found),
            Participant::Spot => chain(in_log_order(found)),
        };
        let sum = chained.last().map_or(0, |movement| movement.balance);
        let now = movements.balances.iter().find(|(of, _)| *of == asset);
        let now = now.map_or(0, |(_, now)| *now);
        if account == Participant::Funding && sum != now {
            let (symbol, precision) = named(catalog, asset);
            let word = if now > sum { "more" } else { "less" };
            let by = units_text(now.abs_diff(sum), precision);
            let [now, sum] = [now, sum].map(|units| signed_text(units, precision));
            statement.mismatches.push(format!(
                "{symbol}: Funding is {by} {word} than its operations ({now} against {sum})"
            ));
        }
        for movement in chained {
            if let Some(recorded) = movement.recorded.filter(|r| *r != movement.balance) {
                let (name, Movement { reference, balance, .. }) = (movement.name(), &movement);
                let (symbol, precision) = named(catalog, asset);
                let [recorded, balance] =
                    [recorded, *balance].map(|units| signed_text(units, precision));
                statement.mismatches.push(format!(
                    "{}, {symbol}: the balance recorded after the {} of {reference} is {recorded}, \
                     its operations add up to {balance}",
                    account.account(),
                    name
                ));
            }
            // The order of one account stands even if a clock went back.
            latest = latest.max(movement.at);
            statement.movements.push((latest, movement));
        }
    }
    // Stable: movements of the same moment stay in the order of their account, Funding first.
    statement.movements.sort_by_key(|(at, _)| *at);
    statement
}

/// The symbol and decimals of an asset; its number and smallest units if the catalog does not have
/// it.
fn named(catalog: &Catalog, asset: AssetId) -> (String, u8) {
    match catalog.by_id(asset) {
        Some(known) => (known.symbol.clone(), known.precision),
        None => (format!("asset {}, in smallest units", asset.0), 0),
    }
}

/// The successes on Spot that a transfer's state claims, and when PostgreSQL recorded them.
fn claimed(moves: &TransferMoves) -> Vec<(Op, Timestamp)> {
    let transfer = &moves.transfer;
    let at = |op: Op| {
        let claiming = moves.passed.iter().find(|(state, _)| state.claim(op) == Claim::Succeeded);
        claiming.map_or(transfer.updated_at, |(_, at)| *at)
    };
    let decided = transfer.state.decided_at(transfer.intent.direction, Participant::Spot);
    decided.filter(|(_, claim)| *claim == Claim::Succeeded).map(|(op, _)| (op, at(op))).collect()
}

fn funding_movement(movement: FundingMovement) -> Movement {
    let FundingMovement { at, op, asset, amount, balance_after, reference } = movement;
    let effect = op.effect(Decision::Success, amount.units());
    let (recorded, account) = (balance_after, Participant::Funding);
    let (op, held, balance, sequence) = (Some(op), 0, 0, None);
    Movement { at, account, op, asset, effect, held, recorded, balance, reference, sequence }
}

/// One line for a settled hold: what it brought less what it took.
fn hold_movement(settled: SettledHold, catalog: &Catalog) -> Movement {
    let SettledHold { at, asset, taken, brought, balance_after, key } = settled;
    let (_, precision) = named(catalog, asset);
    let [took, gave] = [taken, brought].map(|units| units_text(units.into(), precision));
    Movement {
        at,
        account: Participant::Funding,
        op: None,
        asset,
        effect: i128::from(brought) - i128::from(taken),
        held: 0,
        recorded: Some(balance_after),
        balance: 0,
        reference: format!("{key} taken {took} brought {gave}"),
        sequence: None,
    }
}

fn spot_movement(
    moves: &TransferMoves,
    op: Op,
    logged: Option<&LoggedMovement>,
    at: Timestamp,
) -> Movement {
    let transfer = &moves.transfer;
    // PostgreSQL keeps only the record of the last outcome.
    let last = transfer
        .log_sequence
        .filter(|_| !(op.row().undone_by.is_some() && transfer.state.goes_back()));
    Movement {
        at,
        account: Participant::Spot,
        op: Some(op),
        held: 0,
        asset: logged.map_or(transfer.intent.asset, |logged| AssetId(logged.order.asset)),
        effect: op.effect(
            Decision::Success,
            logged.map_or(transfer.intent.amount.units(), |logged| logged.order.amount),
        ),
        recorded: logged.and_then(|logged| logged.balance_after).map(signed),
        balance: 0,
        reference: transfer.intent.req_id.to_string(),
        sequence: logged.map(|logged| logged.sequence).or(last),
    }
}

/// A balance is the sum of less than 2^63 amounts of less than 2^64.
fn signed(units: u128) -> i128 {
    i128::try_from(units).expect("below 2^127")
}

/// By record number; movements without one are inserted by time.
fn in_log_order(movements: Vec<Movement>) -> Vec<Movement> {
    let (mut placed, mut lost): (Vec<_>, Vec<_>) =
        movements.into_iter().partition(|movement| movement.sequence.is_some());
    let count = placed.len() + lost.len();
    placed.sort_by_key(|movement| movement.sequence);
    lost.sort_by_key(|movement| movement.at);
    for movement in lost {
        let place = placed.iter().position(|other| other.at > movement.at);
        placed.insert(place.unwrap_or(placed.len()), movement);
    }
    assert_eq!(placed.len(), count, "a movement is lost");
    placed
}

/// Adds up from zero. Movements close together are taken in the order in which the recorded
/// balances fit: a time is taken before the lock of the row, so two that waited for each other may
/// be in the wrong order, and all movements of a flight have one time. Where a balance stood twice,
/// the first walk may pass a circle of movements; it is inserted where its balance stood.
fn chain(movements: Vec<Movement>) -> Vec<Movement> {
    let mut rest = VecDeque::from(movements);
    let sum: i128 = rest.iter().map(|movement| movement.effect).sum();
    let mut chained = Vec::with_capacity(rest.len());
    walk(&mut rest, 0, &mut chained);
    while !rest.is_empty() {
        if !insert_circle(&mut rest, &mut chained) {
            // It fits nowhere. It is added up all the same, and is a mismatch.
            let balance = chained.last().map_or(0, |last: &Movement| last.balance);
            let movement = rest.pop_front().expect("not empty");
            let balance = balance + movement.effect;
            chained.push(Movement { balance, ..movement });
            walk(&mut rest, balance, &mut chained);
        }
    }
    let balance = chained.last().map_or(0, |last| last.balance);
    assert_eq!(balance, sum, "the order changes no sum");
    chained
}

/// Moves the movements that fit, one behind the other from `balance` on, to the end of `chained`.
fn walk(rest: &mut VecDeque<Movement>, mut balance: i128, chained: &mut Vec<Movement>) {
    loop {
        let fits =
            |movement: &Movement| movement.recorded.is_none_or(|r| r == balance + movement.effect);
        let Some(next) = rest.iter().take(REORDER_MAX).position(fits) else { return };
        let movement = rest.remove(next).expect("in range");
        balance += movement.effect;
        chained.push(Movement { balance, ..movement });
    }
}

/// Inserts movements of `rest` that lead from a balance of the last ones back to it. Returns
/// whether there were any.
fn insert_circle(rest: &mut VecDeque<Movement>, chained: &mut Vec<Movement>) -> bool {
    for index in 0..rest.len().min(REORDER_MAX) {
        let Some(recorded) = rest[index].recorded else { continue };
        let before = recorded - rest[index].effect;
        let earliest = chained.len().saturating_sub(REORDER_MAX);
        let stood = chained[earliest..].iter().rposition(|movement| movement.balance == before);
        let Some(place) = stood.map(|place| earliest + place + 1) else { continue };
        let (mut left, mut circle) = (rest.clone(), Vec::new());
        walk(&mut left, before, &mut circle);
        if circle.last().is_some_and(|last| last.balance == before) {
            *rest = left;
            chained.splice(place..place, circle);
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn movement(second: i64, effect: i128, recorded: i128) -> Movement {
        Movement {
            at: at(second),
            account: Participant::Funding,
            op: Some(if effect > 0 { Op::Deposit } else { Op::Withdraw }),
            asset: AssetId(3),
            effect,
            held: 0,
            recorded: Some(recorded),
            balance: 0,
            reference: second.to_string(),
            sequence: None,
        }
    }

    #[test]
    fn what_was_written_down_in_one_moment_stands_as_the_balances_fit() {
        // The third took its time before the second, and its lock after it.
        let found = vec![movement(1, 10, 10), movement(2, -4, 16), movement(3, 10, 20)];
        let balances: Vec<i128> = chain(found).iter().map(|movement| movement.balance).collect();
        assert_eq!(balances, [10, 20, 16]);
    }

    #[test]
    fn a_circle_that_the_first_walk_passed_is_inserted() {
        // All of one flight. The walk goes from 9 to 5 at once, and leaves 9, 8, 9 behind.
        let found = vec![
            movement(1, 10, 10),
            movement(2, -1, 9),
            movement(2, -4, 5),
            movement(2, 1, 9),
            movement(2, -1, 8),
        ];
        let balances: Vec<i128> = chain(found).iter().map(|movement| movement.balance).collect();
        assert_eq!(balances, [10, 9, 8, 9, 5]);
    }

    #[test]
    fn what_fits_nowhere_is_added_up_all_the_same() {
        let found = vec![movement(1, 10, 10), movement(2, 5, 99)];
        let chained = chain(found);
        assert_eq!((chained[1].balance, chained[1].recorded), (15, Some(99)));
    }

    #[test]
    fn a_place_that_nobody_remembers_is_found_by_time() {
        let placed = |second, sequence| Movement {
            sequence: Some(sequence),
            recorded: None,
            ..movement(second, 1, 0)
        };
        let lost = Movement { recorded: None, ..movement(5, 1, 0) };
        let order = in_log_order(vec![placed(7, 9), lost, placed(4, 8)]);
        let times: Vec<i64> = order.iter().map(|movement| movement.at.as_second()).collect();
        assert_eq!(times, [4, 5, 7]);
    }

    #[test]
    fn a_part_begins_with_what_was_there_before() {
        let found = chain(vec![movement(1, 10, 10), movement(2, -4, 6), movement(3, 1, 7)]);
        let movements = found.into_iter().map(|movement| (movement.at, movement)).collect();
        let statement = Statement { movements, ..Statement::default() };
        let part = statement.between(at(2), at(3));
        assert_eq!(part.movements.len(), 1);
        let funding = |balances: &BTreeMap<AssetId, Balances>| balances[&AssetId(3)].funding;
        assert_eq!((funding(&part.opening), funding(&part.closing)), (10, 6));
        assert_eq!(part.closing[&AssetId(3)].in_flight, -6);
    }
}
