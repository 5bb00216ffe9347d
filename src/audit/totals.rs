//! The sums of each asset, on both sides and in flight, against the external deposits and
//! withdrawals: exact at every read, while transfers move.
//!
//! # The reads, in this order
//!
//! ```text
//!   a  the coordinator     N: the next order number.  Then U0: the numbers under way
//!   b  UBSCore             all Spot balances of each asset, up to record S of the log
//!   c  PostgreSQL          one snapshot P: all Funding balances, all external deposits and
//!                          withdrawals, and of the transfers U (a number in U0, or N or
//!                          above) those that S and P may count differently; and of the
//!                          transactions those that may be half booked
//!   d  UBSCore             the recorded outcomes of these, each with its record
//! ```
//!
//! The view is P for Funding, and the records up to S for Spot. A transfer in the view is in flight
//! if it has been withdrawn and neither deposited nor refunded.
//!
//! # Why it is exact
//!
//! If no money was made or lost, every balance is the sum of its operations. Transactions change
//! balances too: see below. Without them Funding + Spot - deposits + withdrawals is the sum of
//! the operations of transfers in the view: plus the amount for a deposit or a refund, minus the
//! amount for a withdraw. That sum is minus the amount in flight, if
//!
//! 1. a transfer outside U adds nothing to it, and
//! 2. a transfer of U adds minus its amount in flight.
//!
//! **1.** A worker adds a number to those under way in the same step in which it takes it. After a
//! start it does so before the service is ready. It answers between two steps. So if a transfer has
//! a number below N and is not in U0, its worker had removed it before the answer. There are two
//! cases.
//!
//! - Nothing of its accept was committed, nor ever will be. It was never begun, or it repeated the
//!   cid of another, or a later flight of the same worker did not find it. No earlier flight can
//!   overtake a later one.
//! - The commit of its terminal state was answered. That commit is durable and so in P, with all
//!   Funding operations of the transfer, since each is in the transaction of its state. A state
//!   that depends on Spot is committed after UBSCore has answered, and UBSCore answers when the
//!   record is durable. That record is at or below S, because UBSCore answers b later. After a
//!   terminal state only recorded operations are asked for, and a recorded one is never done again.
//!
//! So both sides of the transfer are complete in the view. It has moved nothing, or it was
//! withdrawn and then either deposited or refunded.
//!
//! The same holds for a transfer of U in a terminal state in P, if its last outcome on Spot is at
//! or below S, or if it has none. PostgreSQL keeps the record number of that outcome with the
//! state. These are left out of c, and all others are in it.
//!
//! **2.** P is read after S, and a participant is asked only after PostgreSQL has the intent. So a
//! transfer to Spot that is deposited in the view is withdrawn in it. A refund comes after its
//! withdraw on the same side. One case is left: a transfer to Funding with its deposit in P and its
//! withdraw after S. It has added its amount to Funding, and Spot at S still has it too, so the
//! amount is taken out of Spot. Spot can be short of it if that money came in after S as well. Then
//! the money is counted as in flight to Spot, and the amount is taken out of that. At the time of P
//! no Spot balance was below zero, so neither sum is.
//!
//! UBSCore returns the sum of each asset at a record of its own, in turn. S is the last of them.
//! Operations on an asset between its own record and S belong to U, so d returns them, and they are
//! added.
//!
//! d is read after P, and a deposit in P comes after the record of its withdraw, so d has that
//! record. The exception is a watermark that has passed the transfer in between, so that UBSCore
//! has forgotten it. Then everything is read again.
//!
//! # Transactions
//!
//! A settled hold changes a Funding balance by its brought less its taken amount, and P has the sum
//! of these. A SETTLE changes Spot by its legs from and to its outside, and UBSCore keeps that sum
//! beside the sum of each asset, so S has it. For a transaction that is booked as a whole the two
//! are the money from outside of both stores less that to it, as far as no external operation has
//! it. P counts that once the transaction is DONE. A Settle that meets the outside has external
//! operations in its own commit, and neither its brought nor its taken amount has their money: P
//! has both sides of it or none. The legs that P counts are those of holds that a version before
//! V11 has settled, and the side of a leg between the stores that a repair could not restore.
//!
//! A transaction may be half booked in the view if it is COMMITTED in P, or DONE with a SETTLE
//! behind the record of an asset. No other one is: nothing is booked before the decision is in
//! PostgreSQL, P is read after S, and a transaction is DONE after both stores have answered. Each
//! of these has its part in flight, which undoes its bookings in the view. The part is below zero
//! if the payee has its money first. The rest is then [`Total::transactions`]: money that
//! transactions have made or lost.
//!
//! # Differences
//!
//! Only the cases above are in flight. A deposit without a withdraw, a deposit with a refund, a
//! balance that was changed by hand, a transfer that one side has lost: each is in
//! [`Total::difference`] with its amount. [`super::conservation`] finds its user and transfer.
//!
//! # Cost
//!
//! PostgreSQL adds up its balances, the totals below the watermark and a day of external
//! operations; UBSCore keeps its sums. So one read runs at a time, on a connection of its own, and
//! other callers meanwhile or shortly after share its result.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use tokio::sync::Mutex;
use wal::Sequence;

use crate::adapters::spot::{Spot, SpotTotal, Unanswered};
use crate::clock::Clock;
use crate::postgres;
use crate::postgres::booked::BookedPart;
use crate::postgres::funds::{Funds, Moving, Sums, View};
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Decision, Direction, Op, ReqId};

/// A result is shared this long, or [`REST`] times as long as its read took, if that is longer.
const FRESH: Duration = Duration::from_secs(1);
/// Pause after a read, in multiples of its length.
const REST: u64 = 10;
/// Reads in a row that the watermark may overtake.
const READS_MAX: u32 = 5;

/// The sums of one asset, smallest units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total {
    /// The asset.
    pub asset: AssetId,
    /// All Funding balances.
    pub funding: i128,
    /// All Spot balances.
    pub spot: i128,
    /// Withdrawn on one side, and neither deposited on the other nor refunded; and the amounts
    /// that undo transactions that are booked in part, which may be below zero.
    pub in_flight: i128,
    /// All external deposits, with those of transactions.
    pub deposited: i128,
    /// All external withdrawals, with those of transactions.
    pub withdrawn: i128,
    /// Money that transactions have made, below zero if they have lost it. 0 if every one is booked
    /// whole or under way.
    pub transactions: i128,
}

impl Total {
    /// Money that was made; negative if it was lost.
    pub fn difference(&self) -> i128 {
        let Total { funding, spot, in_flight, deposited, withdrawn, transactions, .. } = self;
        funding + spot + in_flight - deposited + withdrawn - transactions
    }
}

/// The sums of all assets at one moment.
#[derive(Clone, Debug)]
pub struct Totals {
    /// When Spot was read, ns since the Unix epoch.
    pub at_ns: u64,
    /// The last record of the log that Spot includes.
    pub sequence: Sequence,
    /// In the order of their numbers.
    pub assets: Vec<Total>,
}

/// Transfers under way in the coordinator. See the module's documentation: `next` is read first.
#[derive(Clone, Debug)]
pub struct UnderWay {
    /// Every later accept has this order number or a higher one.
    pub next: u64,
    /// The order numbers of all others that are not terminal in PostgreSQL.
    pub numbers: Vec<u64>,
}

/// The totals cannot be read now. Nothing is estimated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The coordinator.
    #[error("the coordinator did not return the transfers under way")]
    Coordinator,
    /// UBSCore.
    #[error("read Spot")]
    Spot(#[from] Unanswered),
    /// PostgreSQL.
    #[error("read Funding")]
    Postgres(#[from] postgres::Error),
    /// The watermark overtook every read.
    #[error("the read takes longer than UBSCore keeps outcomes")]
    Late,
    /// Most likely PostgreSQL does not finish.
    #[error("the read was given up after {0:?}")]
    Slow(Duration),
    /// More than 128 bits.
    #[error("a sum is out of range")]
    Range,
}

/// The result of a read, shared by all its waiters.
pub type Read = Result<Arc<Totals>, Arc<Error>>;

struct Last {
    read: Read,
    /// Monotonic ns.
    ended_ns: u64,
    took_ns: u64,
}

/// Reads the totals.
pub struct Reader {
    spot: Arc<Spot>,
    clock: Arc<dyn Clock>,
    /// The longest time that a read may take.
    limit: Duration,
    /// Held during a read.
    shared: Mutex<(Funds, Option<Last>)>,
}

impl Reader {
    /// Reads Spot through `spot`, and Funding through `funds`. A read longer than `limit` is given
    /// up.
    pub fn new(spot: Arc<Spot>, clock: Arc<dyn Clock>, funds: Funds, limit: Duration) -> Reader {
        Reader { spot, clock, limit, shared: Mutex::new((funds, None)) }
    }

    /// The totals of every asset, at most a second old, or ten times as old as their read took: a
    /// snapshot that is always open would keep PostgreSQL from vacuuming. Poll it to its end even
    /// if the caller has gone: the next caller shares the result.
    ///
    /// # Errors
    /// [`Error`]: a store does not answer.
    pub async fn read<'a>(
        &self,
        catalog: &Catalog,
        under_way: impl Fn() -> BoxFuture<'a, Option<UnderWay>> + Sync,
    ) -> Read {
        let asked_ns = self.clock.monotonic_ns();
        let mut shared = self.shared.lock().await;
        let (funds, last) = &mut *shared;
        let begun_ns = self.clock.monotonic_ns();
        if let Some(last) = last {
            let rest_ns = last.took_ns.saturating_mul(REST);
            let fresh_ns = u64::try_from(FRESH.as_nanos()).expect("short").max(rest_ns);
            // Also after a failure: a read that timed out would only time out again.
            let fresh = begun_ns - last.ended_ns < fresh_ns;
            // A read that ended while this call waited is as good, also a failure.
            if fresh || last.ended_ns >= asked_ns {
                return last.read.clone();
            }
        }
        let looking = pin!(self.look(funds, catalog, under_way));
        let looked = match select(looking, self.clock.sleep(self.limit)).await {
            Either::Left((looked, _)) => looked,
            Either::Right(_) => Err(Error::Slow(self.limit)),
        };
        let read = looked.map(Arc::new).map_err(Arc::new);
        let ended_ns = self.clock.monotonic_ns();
        *last = Some(Last { read: read.clone(), ended_ns, took_ns: ended_ns - begun_ns });
        read
    }

    async fn look<'a>(
        &self,
        funds: &mut Funds,
        catalog: &Catalog,
        under_way: impl Fn() -> BoxFuture<'a, Option<UnderWay>> + Sync,
    ) -> Result<Totals, Error> {
        funds.connect().await?;
        let assets: Vec<AssetId> = catalog.all().iter().map(|asset| asset.id).collect();
        for _ in 0..READS_MAX {
            let UnderWay { next, numbers } = under_way().await.ok_or(Error::Coordinator)?;
            let spot = self.spot.totals(&assets).await?;
            assert_eq!(spot.len(), assets.len(), "one sum an asset");
            let at_ns = self.clock.now_ns();
            let low = spot.iter().map(|total| total.sequence).min().unwrap_or(0);
            let view = funds.view(next, &numbers, low).await?;
            let Some(spot_operations) = self.recorded(&view.moving).await? else { continue };
            let settled = self.settled(&view.parts).await?;
            let spot: BTreeMap<AssetId, SpotTotal> = assets.iter().copied().zip(spot).collect();
            let sequence = spot.values().map(|total| total.sequence).max().unwrap_or(0);
            let assets = add_up(&spot, &view, &spot_operations, &settled).ok_or(Error::Range)?;
            return Ok(Totals { at_ns, sequence, assets });
        }
        Err(Error::Late)
    }

    /// The successful operations on Spot of each transfer, with their records; `None` if one may
    /// have been forgotten.
    async fn recorded(&self, moving: &[Moving]) -> Result<Option<Vec<Vec<Done>>>, Error> {
        let mut asked: Vec<(usize, ReqId, Op)> = Vec::new();
        for (index, transfer) in moving.iter().enumerate() {
            let ops = Op::OF_TRANSFER.into_iter().filter(|op| transfer.direction.is_on_spot(*op));
            asked.extend(ops.map(|op| (index, transfer.req_id, op)));
        }
        let names: Vec<(ReqId, Op)> = asked.iter().map(|(_, req_id, op)| (*req_id, *op)).collect();
        let (found, watermark) = self.spot.recorded(&names).await?;
        assert_eq!(found.len(), names.len(), "one outcome a question");
        let mut done = vec![Vec::new(); moving.len()];
        for ((index, _, op), found) in asked.into_iter().zip(found) {
            match found {
                Some(recorded) if recorded.decision == Decision::Success => {
                    done[index].push((op, recorded.sequence));
                }
                None if moving[index].order_number < watermark => return Ok(None),
                Some(_) | None => {}
            }
        }
        Ok(Some(done))
    }

    /// The record of the SETTLE of each part, 0 if it was forgotten. UBSCore names it: after a cut
    /// of the log PostgreSQL has another record of a SETTLE that was decided again.
    async fn settled(&self, parts: &[BookedPart]) -> Result<Vec<Option<Sequence>>, Error> {
        let names: Vec<ReqId> = parts.iter().map(|part| part.transaction).collect();
        let (mut found, watermark) = self.spot.settled(&names).await?;
        assert_eq!(found.len(), names.len(), "one record a question");
        for (part, record) in parts.iter().zip(&mut found) {
            // The watermark passes a transaction long after both stores have booked.
            if record.is_none() && part.order_number < watermark {
                *record = Some(0);
            }
        }
        Ok(found)
    }
}

/// A successful operation on Spot, and its record.
type Done = (Op, Sequence);

/// Adds up the view; `None` if a sum has more than 128 bits. `spot_operations`: those of each
/// transfer of the view, at any time. `settled`: the record of the SETTLE of each part.
fn add_up(
    spot: &BTreeMap<AssetId, SpotTotal>,
    view: &View,
    spot_operations: &[Vec<Done>],
    settled: &[Option<Sequence>],
) -> Option<Vec<Total>> {
    assert_eq!(view.moving.len(), spot_operations.len(), "one list a transfer");
    assert_eq!(view.parts.len(), settled.len(), "one record a part");
    let signed = |units: u128| i128::try_from(units).ok();
    let mut totals = BTreeMap::<AssetId, Total>::new();
    let moving = view.moving.iter().map(|transfer| &transfer.asset);
    let moving = moving.chain(view.parts.iter().map(|part| &part.asset));
    for &asset in spot.keys().chain(view.sums.keys()).chain(moving) {
        let Sums { funding, deposited, withdrawn, booked } =
            view.sums.get(&asset).copied().unwrap_or_default();
        let deposited = signed(deposited)?;
        let crossed = spot.get(&asset).map_or(0, |total| total.crossed);
        let spot = signed(spot.get(&asset).map_or(0, |total| total.units))?;
        let withdrawn = signed(withdrawn)?;
        let came = signed(booked.deposited)?.checked_sub(signed(booked.withdrawn)?)?;
        let transactions = booked.funding.checked_add(crossed)?.checked_sub(came)?;
        let total =
            Total { asset, funding, spot, in_flight: 0, deposited, withdrawn, transactions };
        totals.insert(asset, total);
    }
    let last = spot.values().map(|total| total.sequence).max().unwrap_or(0);
    for (transfer, done) in view.moving.iter().zip(spot_operations) {
        let Moving { asset, direction, ref funding, .. } = *transfer;
        let amount = signed(transfer.amount)?;
        let total = totals.get_mut(&asset).expect("made above");
        // Operations after the asset's own record, up to the common one.
        let own = spot.get(&asset).map_or(last, |total| total.sequence);
        for (op, _) in done.iter().filter(|(_, record)| (own + 1..=last).contains(record)) {
            let moved = op.row().available.sign() * amount;
            total.spot = total.spot.checked_add(moved)?;
        }
        let in_view = |op: Op| match direction.is_on_spot(op) {
            true => done.iter().any(|(found, record)| *found == op && *record <= last),
            false => funding.contains(&op),
        };
        let left = Op::OF_TRANSFER.into_iter().any(|op| op.takes() && in_view(op));
        let arrived = Op::OF_TRANSFER.into_iter().any(|op| op.pays() && in_view(op));
        let paid_later = direction == Direction::SpotToFunding
            && done.iter().any(|(op, record)| op.takes() && *record > last);
        match (left, arrived) {
            (true, false) => total.in_flight = total.in_flight.checked_add(amount)?,
            (false, true) if paid_later => total.spot = total.spot.checked_sub(amount)?,
            // Complete, or not begun; or money from nothing, which is a difference.
            (true, true) | (false, _) => {}
        }
    }
    for (part, settled) in view.parts.iter().zip(settled) {
        let total = totals.get_mut(&part.asset).expect("made above");
        let own = spot.get(&part.asset).map_or(last, |total| total.sequence);
        let undone = part.in_flight(settled.is_some_and(|record| record <= own))?;
        total.in_flight = total.in_flight.checked_add(undone)?;
        total.transactions = total.transactions.checked_add(undone)?;
    }
    for total in totals.values_mut() {
        // Spot lacks money that is counted as in flight to it.
        let short = total.spot.min(0);
        (total.spot, total.in_flight) = (total.spot - short, total.in_flight.checked_add(short)?);
        // So that no difference overflows.
        let size = |units: i128| i128::try_from(units.unsigned_abs()).ok();
        let apart = size(total.transactions)?.checked_add(size(total.in_flight)?)?;
        let parts = [size(total.funding)?, total.spot, total.deposited, total.withdrawn];
        parts.into_iter().try_fold(apart, i128::checked_add)?;
        assert!(total.spot >= 0, "{total:?} is short of {short}");
    }
    Some(totals.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::booked::BookedSums;

    const ASSET: AssetId = AssetId(3);
    /// An asset without any money, read at another record.
    const NOTHING: AssetId = AssetId(4);

    fn moving(direction: Direction, funding: &[Op]) -> Moving {
        let req_id = ReqId::new(1).expect("not zero");
        let funding = funding.to_vec();
        Moving { req_id, order_number: 1, asset: ASSET, amount: 10, direction, funding }
    }

    /// The totals of the one asset with money. `spot`: units, and the record that they include.
    /// `last`: the common record.
    fn total(
        sums: Sums,
        spot: (u128, Sequence),
        last: Sequence,
        transfers: Vec<(Moving, Vec<Done>)>,
    ) -> Total {
        let (units, sequence) = spot;
        let spot = BTreeMap::from([
            (ASSET, SpotTotal { units, held: 0, crossed: 0, sequence }),
            (NOTHING, SpotTotal { units: 0, held: 0, crossed: 0, sequence: last }),
        ]);
        let (moving, done): (Vec<_>, Vec<_>) = transfers.into_iter().unzip();
        let view = View { sums: BTreeMap::from([(ASSET, sums)]), moving, parts: Vec::new() };
        let totals = add_up(&spot, &view, &done, &[]).expect("in range");
        assert_eq!(totals[1].difference(), 0);
        totals[0]
    }

    /// Goal: no order of reads loses a transfer, and no sum is below zero. Method: for each order
    /// of operations, every triple of cuts that the order of reads allows, with Spot at each record
    /// up to the common one.
    #[test]
    fn every_order_of_cuts_adds_up() {
        for direction in [Direction::FundingToSpot, Direction::SpotToFunding] {
            for last_op in [Op::Deposit, Op::Refund] {
                let ops = [Op::Withdraw, last_op];
                let signed = |op: Op| if op == Op::Withdraw { -10_i64 } else { 10 };
                // The operations of one side before the cut, in order.
                let by = |cut: usize, on_spot: bool| {
                    let done = ops.into_iter().take(cut);
                    done.filter(move |op| direction.is_on_spot(*op) == on_spot)
                };
                for spot_cut in 0..=2_usize {
                    for own_cut in 0..=spot_cut {
                        for funding_cut in spot_cut..=2 {
                            for late_cut in funding_cut..=2 {
                                let record =
                                    |cut: usize| 5 + 10 * u64::try_from(cut).expect("small");
                                let units = |cut, on_spot| -> u128 {
                                    let moved: i64 = by(cut, on_spot).map(signed).sum();
                                    u128::try_from(100 + moved).expect("not negative")
                                };
                                let at = |op| if op == Op::Withdraw { 10 } else { 20 };
                                let done = by(late_cut, true).map(|op| (op, at(op))).collect();
                                let funding: Vec<Op> = by(funding_cut, false).collect();
                                let funds = units(funding_cut, false).cast_signed();
                                let (deposited, withdrawn) = (250, 50);
                                let outside = Sums { deposited, withdrawn, ..Sums::default() };
                                let sums = Sums { funding: funds, ..outside };
                                let total = total(
                                    sums,
                                    (units(own_cut, true), record(own_cut)),
                                    record(spot_cut),
                                    vec![(moving(direction, &funding), done)],
                                );
                                let cuts = (own_cut, spot_cut, funding_cut, late_cut);
                                let case = format!("{direction:?} {last_op:?} {cuts:?} {total:?}");
                                assert_eq!(total.difference(), 0, "{case}");
                                assert!(total.spot >= 0 && total.in_flight >= 0, "{case}");
                            }
                        }
                    }
                }
            }
        }
    }

    /// Spot was read empty; then money came in and went out again before PostgreSQL was read.
    #[test]
    fn money_that_passes_through_spot_between_the_reads_is_not_below_zero() {
        let sums = Sums { funding: 10, deposited: 10, ..Sums::default() };
        let there = (moving(Direction::FundingToSpot, &[Op::Withdraw]), vec![(Op::Deposit, 21)]);
        let back = (moving(Direction::SpotToFunding, &[Op::Deposit]), vec![(Op::Withdraw, 22)]);
        let total = total(sums, (0, 20), 20, vec![there, back]);
        assert_eq!((total.spot, total.in_flight, total.difference()), (0, 0, 0));
    }

    /// Goal: a wrong sum is never taken for money in flight. Method: each way to make or to lose
    /// money, with its amount.
    #[test]
    fn what_is_made_or_lost_is_a_difference() {
        let sums = |funding| Sums { funding, deposited: 200, ..Sums::default() };
        let (to_spot, to_funding) = (Direction::FundingToSpot, Direction::SpotToFunding);
        let none: &[Done] = &[];
        for (direction, funding, spot, held, want) in [
            // Deposited, and never withdrawn.
            (to_spot, &[][..], &[(Op::Deposit, 10)][..], (100, 110), 10),
            (to_funding, &[Op::Deposit], none, (110, 100), 10),
            // Deposited and refunded.
            (to_spot, &[Op::Withdraw, Op::Refund], &[(Op::Deposit, 10)], (100, 110), 10),
            (to_funding, &[Op::Deposit], &[(Op::Withdraw, 9), (Op::Refund, 10)], (110, 100), 10),
            // Refunded, and never withdrawn.
            (to_spot, &[Op::Refund], none, (110, 100), 10),
            // Withdrawn: in flight, and so no loss.
            (to_spot, &[Op::Withdraw], none, (90, 100), 0),
            // A balance that was changed by hand.
            (to_spot, &[], none, (107, 100), 7),
            (to_funding, &[], none, (100, 93), -7),
        ] {
            let transfer = (moving(direction, funding), spot.to_vec());
            let (funds, units) = held;
            let total = total(sums(funds), (units, 15), 15, vec![transfer]);
            assert_eq!(total.difference(), want, "{direction:?} {funding:?} {spot:?}");
            assert!(total.in_flight == 0 || want == 0, "{total:?}");
        }
    }

    /// A balance that is not the sum of the holds is a difference. A hold that belongs to no
    /// transaction is money that transactions have made or lost.
    #[test]
    fn the_settled_holds_are_no_difference() {
        for (funding, moved, want) in [(93, -7, 0), (100, 0, 0), (93, 0, -7), (100, 7, -7)] {
            let booked = BookedSums { funding: moved, ..BookedSums::default() };
            let sums = Sums { funding, deposited: 100, booked, ..Sums::default() };
            let total = total(sums, (0, 5), 5, Vec::new());
            assert_eq!((total.difference(), total.transactions), (want, moved));
        }
    }

    /// GTX-013, GTX-020. Goal: every read of a transaction with legs that cross adds up, with any
    /// part of it in the view, and money that one store has lost is never in flight. Method: user A
    /// pays 10 out, 30 come from outside to B, and 7 cross from Funding to Spot, or back. Each cut
    /// of the holds and of Spot, COMMITTED and DONE; then without the booking of one store.
    #[test]
    fn every_cut_of_a_transaction_adds_up() {
        const RECORD: Sequence = 9;
        for crosses in [7_i128, -7] {
            let holds = [-10, 30, -crosses];
            for (settled, own, done) in [
                (0, 5, false),
                (1, 5, false),
                (2, 5, false),
                (3, 5, false),
                (3, RECORD, false),
                (3, 12, false),
                (3, 5, true),
                (3, RECORD, true),
            ] {
                let moved: i128 = holds[..settled].iter().sum();
                let in_view = own >= RECORD;
                let crossed = if in_view { crosses } else { 0 };
                let (deposited, withdrawn) = if done { (30, 10) } else { (0, 0) };
                let booked = BookedSums { funding: moved, deposited, withdrawn };
                let unsigned = |units: i128| u128::try_from(units).expect("not negative");
                let part = BookedPart {
                    transaction: ReqId::new(7).expect("not zero"),
                    order_number: 1,
                    done,
                    asset: ASSET,
                    funding: moved,
                    spot: crosses,
                    outside: 20,
                };
                let add = |funding: i128, spot: i128, counted: i128| {
                    let sums = Sums { funding, deposited: 200 + deposited, withdrawn, booked };
                    let spot = SpotTotal {
                        units: unsigned(spot),
                        held: 0,
                        crossed: counted,
                        sequence: own,
                    };
                    let view = View {
                        sums: BTreeMap::from([(ASSET, sums)]),
                        moving: Vec::new(),
                        parts: vec![part],
                    };
                    // The record is known, in the view or not.
                    let spot = BTreeMap::from([(ASSET, spot)]);
                    add_up(&spot, &view, &[], &[Some(RECORD)]).expect("in range").remove(0)
                };
                let case = (crosses, settled, own, done);
                let whole = add(100 + moved, 100 + crossed, crossed);
                assert_eq!((whole.difference(), whole.transactions), (0, 0), "{case:?}: {whole:?}");
                if done && in_view {
                    assert_eq!(whole.in_flight, 0, "{case:?}");
                }
                // The record has been decided, and Spot has lost its money.
                if in_view {
                    let lost = add(100 + moved, 100, crosses);
                    assert_eq!(lost.difference(), -crosses, "{case:?}: {lost:?}");
                    let lost = add(100 + moved, 100, 0);
                    assert_eq!(lost.transactions, -crosses, "{case:?}: {lost:?}");
                }
                let short = add(99 + moved, 100 + crossed, crossed);
                assert_eq!(short.difference(), -1, "{case:?}: {short:?}");
            }
        }
    }

    #[test]
    fn a_sum_that_is_out_of_range_is_not_shown() {
        let add = |funding: i128, units: u128| {
            let total = SpotTotal { units, held: 0, crossed: 0, sequence: 1 };
            let spot = BTreeMap::from([(ASSET, total)]);
            let sums = Sums { funding, ..Sums::default() };
            let view = View { sums: BTreeMap::from([(ASSET, sums)]), ..View::default() };
            add_up(&spot, &view, &[], &[])
        };
        assert!(add(1 << 126, 1 << 125).is_some());
        for (funding, units) in
            [(i128::MAX, 1), (i128::MIN, 0), (0, u128::MAX), (1 << 126, 1 << 126)]
        {
            assert_eq!(add(funding, units), None);
        }
    }
}
