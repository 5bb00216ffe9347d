//! What there is of each asset, on both sides and between them, against what has come from outside: exact at every read,
//! whatever moves meanwhile.
//!
//! # The reads, in this order
//!
//! ```text
//!   a  the coordinator     N: the next order number.  Then U0: the numbers that each worker has under way
//!   b  UBSCore             all Spot balances of each asset, up to record S of the log
//!   c  PostgreSQL          one snapshot P: all Funding balances, all that came from and went to the outside, and of the
//!                          transfers U (a number in U0, or N or above) those that may be counted differently by S and P
//!   d  UBSCore             what is recorded for these, each with its record
//! ```
//!
//! The view is made of P for Funding, and of the records up to S for Spot. Of a transfer in it, the amount is in flight that
//! has been withdrawn and neither deposited nor refunded.
//!
//! # Why it is exact
//!
//! If no money was made or lost, every balance is what its operations add up to. So Funding + Spot - deposits + withdrawals is
//! what the operations of transfers in the view add up to: for each, its amount once for a deposit or a refund, less once for a
//! withdraw. That is less what is in flight, if
//!
//! 1. a transfer outside U adds nothing to it, and
//! 2. one of U adds less what is in flight of it.
//!
//! **1.** A worker adds a number to those under way in the step in which it takes it, and after a start before the service is
//! ready; it answers between two steps. So a transfer with a number below N that is not in U0 was taken from it before its
//! worker answered. That happens where nothing of the accept was committed, nor ever will be (it was never begun, it was a
//! repeat of another's cid, or a later flight of the same worker, which no earlier one can overtake, did not find it); and
//! where the commit of its terminal state was answered, which is durable and so in P, with all its Funding operations, since
//! each is in the transaction of the state that it leads to. A state that depends on Spot is committed only after UBSCore has
//! answered, which it does when the record is durable; that record lies at or below S, as UBSCore answers b later. Behind a
//! terminal state nobody is asked for anything that is not recorded, and what is recorded is never done again. So both sides
//! of the transfer are whole in the view: it has moved nothing, or been withdrawn and either deposited or refunded.
//!
//! The same holds where P has a transfer of U in a terminal state and its last outcome on Spot at or below S, or none: PostgreSQL
//! keeps that outcome's record with the state. These are left out of c, and all others are in it.
//!
//! **2.** P comes behind S, and whoever is asked is asked after PostgreSQL has the intent. So a transfer to Spot that is
//! deposited in the view is withdrawn in it; a refund comes behind its withdraw on the same side. What is left is a transfer to
//! Funding whose deposit is in P and whose withdraw came behind S: it has added its amount to Funding, and Spot at S still has
//! it too. It is taken out of Spot. Spot can be short by that where the money had come in behind S as well; then
//! it is counted as in flight on its way there, and is taken out of that. At the time of P no Spot balance was below zero, so
//! neither sum is.
//!
//! UBSCore tells of each asset at a record of its own, in turn. S is the last of them; what has been done to an asset between
//! its own and S are operations of U, which d tells, and they are added.
//!
//! d comes behind P, and a deposit in P behind the record of its withdraw, so d has it, unless the watermark has risen over the
//! transfer in between and UBSCore has forgotten. Then everything is read again.
//!
//! # What is a difference
//!
//! Whatever is not proven above is not in flight: a deposit without a withdraw, a deposit and a refund, a balance that was
//! changed by hand, a transfer that one side has lost. It stands in [`Total::difference`] with its amount. Which user and
//! transfer it belongs to is for [`super::conservation`] to say.
//!
//! # What it costs
//!
//! PostgreSQL adds up its balances, the totals below the watermark and a day of external operations; UBSCore keeps its sums.
//! So one read is made at a time, on a connection of its own, and whoever asks meanwhile, or shortly after, is given the same.

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
use crate::postgres::funds::{Funds, Moving, Sums, View};
use domain::amount::PRECISION_MAX;
use domain::asset::{AssetId, Catalog};
use domain::transfer::{Decision, Direction, Op, ReqId};

/// So long a result is given to whoever asks, and [`REST`] times as long as it has taken where that is longer.
const FRESH: Duration = Duration::from_secs(1);
/// A read is followed by so many times its length without one.
const REST: u64 = 10;
/// Reads that the watermark may overtake, one after the other.
const READS_MAX: u32 = 5;

/// One asset, everywhere; 10^-8 of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Total {
    /// Which.
    pub asset: AssetId,
    /// All Funding balances.
    pub funding: i128,
    /// All Spot balances.
    pub spot: i128,
    /// Withdrawn on one side, and neither deposited on the other nor given back.
    pub in_flight: i128,
    /// What has ever come from outside.
    pub deposited: i128,
    /// What has ever gone to the outside.
    pub withdrawn: i128,
}

impl Total {
    /// Money that was made, or lost where it is negative.
    pub fn difference(&self) -> i128 {
        let Total { funding, spot, in_flight, deposited, withdrawn, .. } = self;
        funding + spot + in_flight - deposited + withdrawn
    }
}

/// All assets, at one moment.
#[derive(Clone, Debug)]
pub struct Totals {
    /// When Spot was read, ns since the Unix epoch.
    pub at_ns: u64,
    /// The last record of the log that Spot includes.
    pub sequence: Sequence,
    /// In the order of their numbers.
    pub assets: Vec<Total>,
}

/// What the coordinator has under way. See the module's documentation: `next` is read first.
#[derive(Clone, Debug)]
pub struct UnderWay {
    /// Every transfer that is accepted later has this order number or a higher one.
    pub next: u64,
    /// The order numbers of all others that are not terminal in PostgreSQL.
    pub numbers: Vec<u64>,
}

/// Totals that cannot be told now. Nothing is guessed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The coordinator.
    #[error("the coordinator does not say what is under way")]
    Coordinator,
    /// UBSCore.
    #[error("read Spot")]
    Spot(#[from] Unanswered),
    /// PostgreSQL.
    #[error("read Funding")]
    Postgres(#[from] postgres::Error),
    /// Again and again the watermark rose over a transfer while it was looked at.
    #[error("the read takes longer than UBSCore keeps outcomes")]
    Late,
    /// PostgreSQL, most likely, does not come to an end.
    #[error("the read was given up after {0:?}")]
    Slow(Duration),
    /// More than 128 bits.
    #[error("a sum is out of range")]
    Range,
}

/// What a read came to, for everybody who waits for it.
pub type Read = Result<Arc<Totals>, Arc<Error>>;

struct Last {
    read: Read,
    /// Monotonic ns.
    ended_ns: u64,
    took_ns: u64,
}

/// The way to the totals.
pub struct Reader {
    spot: Arc<Spot>,
    clock: Arc<dyn Clock>,
    /// The longest that a read may take.
    limit: Duration,
    /// Held while a read is made.
    shared: Mutex<(Funds, Option<Last>)>,
}

impl Reader {
    /// Reads Spot through `spot`, and Funding through `funds`. What takes longer than `limit` is given up.
    pub fn new(spot: Arc<Spot>, clock: Arc<dyn Clock>, funds: Funds, limit: Duration) -> Reader {
        Reader { spot, clock, limit, shared: Mutex::new((funds, None)) }
    }

    /// The totals of every asset that there is, at most a second old, or ten times as old as they took to be read: a snapshot
    /// that is always open keeps PostgreSQL from clearing up. To be driven to its end, though nobody may wait for it any more,
    /// so that a read that takes long is of use to the next who asks.
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
            // A failure too: what was given up for its length would only be given up again.
            let fresh = begun_ns - last.ended_ns < fresh_ns;
            // What ended while we waited for it is as good for us, a failure too.
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
            let at_ns = self.clock.now_ns();
            let low = spot.iter().map(|total| total.sequence).min().unwrap_or(0);
            let view = funds.view(next, &numbers, low).await?;
            let Some(spot_operations) = self.recorded(&view.moving).await? else { continue };
            let spot = spot.into_iter().zip(&assets).map(|(total, id)| {
                let precision = catalog.by_id(*id).map_or(PRECISION_MAX, |asset| asset.precision);
                (*id, scaled(total, precision))
            });
            let spot: BTreeMap<AssetId, SpotTotal> = spot.collect();
            let sequence = spot.values().map(|total| total.sequence).max().unwrap_or(0);
            let assets = add_up(&spot, &view, &spot_operations).ok_or(Error::Range)?;
            return Ok(Totals { at_ns, sequence, assets });
        }
        Err(Error::Late)
    }

    /// The successful operations on Spot of each transfer, with their records; `None` where one may have been forgotten.
    async fn recorded(&self, moving: &[Moving]) -> Result<Option<Vec<Vec<Done>>>, Error> {
        let mut asked: Vec<(usize, ReqId, Op)> = Vec::new();
        for (index, transfer) in moving.iter().enumerate() {
            let ops = [Op::Withdraw, Op::Deposit, Op::Refund].into_iter();
            let ops = ops.filter(|op| transfer.direction.is_on_spot(*op));
            asked.extend(ops.map(|op| (index, transfer.req_id, op)));
        }
        let names: Vec<(ReqId, Op)> = asked.iter().map(|(_, req_id, op)| (*req_id, *op)).collect();
        let (found, watermark) = self.spot.recorded(&names).await?;
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
}

/// A successful operation on Spot, and its record.
type Done = (Op, Sequence);

/// A sum of Spot's in 10^-8 instead of the asset's smallest unit; what is out of range stays so.
fn scaled(total: SpotTotal, precision: u8) -> SpotTotal {
    let scale = 10_u128.pow(u32::from(PRECISION_MAX - precision));
    SpotTotal { units: total.units.saturating_mul(scale), ..total }
}

/// The view, added up; `None` where a sum has more than 128 bits. `spot_operations`: of each transfer of the view, at any time.
fn add_up(
    spot: &BTreeMap<AssetId, SpotTotal>,
    view: &View,
    spot_operations: &[Vec<Done>],
) -> Option<Vec<Total>> {
    let signed = |units: u128| i128::try_from(units).ok();
    let mut totals = BTreeMap::<AssetId, Total>::new();
    let moving = view.moving.iter().map(|transfer| &transfer.asset);
    for &asset in spot.keys().chain(view.sums.keys()).chain(moving) {
        let Sums { funding, deposited, withdrawn } =
            view.sums.get(&asset).copied().unwrap_or_default();
        let (funding, deposited) = (signed(funding)?, signed(deposited)?);
        let spot = signed(spot.get(&asset).map_or(0, |total| total.units))?;
        let withdrawn = signed(withdrawn)?;
        let total = Total { asset, funding, spot, in_flight: 0, deposited, withdrawn };
        totals.insert(asset, total);
    }
    let last = spot.values().map(|total| total.sequence).max().unwrap_or(0);
    for (transfer, done) in view.moving.iter().zip(spot_operations) {
        let Moving { asset, direction, ref funding, .. } = *transfer;
        let amount = signed(transfer.amount)?;
        let total = totals.get_mut(&asset).expect("made above");
        // What was done behind the asset's own record is brought up to the common one.
        let own = spot.get(&asset).map_or(last, |total| total.sequence);
        for (op, _) in done.iter().filter(|(_, record)| (own + 1..=last).contains(record)) {
            let moved = if *op == Op::Withdraw { -amount } else { amount };
            total.spot = total.spot.checked_add(moved)?;
        }
        let in_view = |op: Op| match direction.is_on_spot(op) {
            true => done.iter().any(|(found, record)| *found == op && *record <= last),
            false => funding.contains(&op),
        };
        let arrived = in_view(Op::Deposit) || in_view(Op::Refund);
        let paid_later = direction == Direction::SpotToFunding
            && done.iter().any(|(op, record)| *op == Op::Withdraw && *record > last);
        match (in_view(Op::Withdraw), arrived) {
            (true, false) => total.in_flight = total.in_flight.checked_add(amount)?,
            (false, true) if paid_later => total.spot = total.spot.checked_sub(amount)?,
            // Whole, or not begun; or money from nothing, which is a difference.
            (true, true) | (false, _) => {}
        }
    }
    for total in totals.values_mut() {
        // What Spot did not hold yet is counted as on its way there.
        let short = total.spot.min(0);
        (total.spot, total.in_flight) = (total.spot - short, total.in_flight.checked_add(short)?);
        // So that no difference overflows.
        let parts = [total.funding, total.spot, total.in_flight, total.deposited, total.withdrawn];
        parts.into_iter().try_fold(0_i128, i128::checked_add)?;
    }
    Some(totals.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASSET: AssetId = AssetId(3);
    /// Of which there is nothing: it is read at another record.
    const NOTHING: AssetId = AssetId(4);

    fn moving(direction: Direction, funding: &[Op]) -> Moving {
        let req_id = ReqId::new(1).expect("not zero");
        let funding = funding.to_vec();
        Moving { req_id, order_number: 1, asset: ASSET, amount: 10, direction, funding }
    }

    /// The one asset that there is something of. `spot`: units, and the record they include. `last`: the common record.
    fn total(
        sums: Sums,
        spot: (u128, Sequence),
        last: Sequence,
        transfers: Vec<(Moving, Vec<Done>)>,
    ) -> Total {
        let (units, sequence) = spot;
        let spot = BTreeMap::from([
            (ASSET, SpotTotal { units, sequence }),
            (NOTHING, SpotTotal { units: 0, sequence: last }),
        ]);
        let (moving, done): (Vec<_>, Vec<_>) = transfers.into_iter().unzip();
        let view = View { sums: BTreeMap::from([(ASSET, sums)]), moving };
        let totals = add_up(&spot, &view, &done).expect("in range");
        assert_eq!(totals[1].difference(), 0);
        totals[0]
    }

    /// Goal: whatever the reads saw of a transfer, nothing is missing and nothing is below zero. Method: for each order of
    /// operations, every triple of cuts that the order of reads allows, and Spot told at each record up to the common one.
    #[test]
    fn every_order_of_cuts_adds_up() {
        for direction in [Direction::FundingToSpot, Direction::SpotToFunding] {
            for last_op in [Op::Deposit, Op::Refund] {
                let ops = [Op::Withdraw, last_op];
                let signed = |op: Op| if op == Op::Withdraw { -10_i64 } else { 10 };
                // What is done in order by the cut, on one side.
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
                                let funds = units(funding_cut, false);
                                let sums = Sums { funding: funds, deposited: 250, withdrawn: 50 };
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
        let sums = Sums { funding: 10, deposited: 10, withdrawn: 0 };
        let there = (moving(Direction::FundingToSpot, &[Op::Withdraw]), vec![(Op::Deposit, 21)]);
        let back = (moving(Direction::SpotToFunding, &[Op::Deposit]), vec![(Op::Withdraw, 22)]);
        let total = total(sums, (0, 20), 20, vec![there, back]);
        assert_eq!((total.spot, total.in_flight, total.difference()), (0, 0, 0));
    }

    /// Goal: nothing that is wrong is taken for money on its way. Method: each way to make or to lose money, with its amount.
    #[test]
    fn what_is_made_or_lost_is_a_difference() {
        let sums = |funding| Sums { funding, deposited: 200, withdrawn: 0 };
        let (to_spot, to_funding) = (Direction::FundingToSpot, Direction::SpotToFunding);
        let none: &[Done] = &[];
        for (direction, funding, spot, held, want) in [
            // Deposited, and never withdrawn.
            (to_spot, &[][..], &[(Op::Deposit, 10)][..], (100, 110), 10),
            (to_funding, &[Op::Deposit], none, (110, 100), 10),
            // Deposited and given back.
            (to_spot, &[Op::Withdraw, Op::Refund], &[(Op::Deposit, 10)], (100, 110), 10),
            (to_funding, &[Op::Deposit], &[(Op::Withdraw, 9), (Op::Refund, 10)], (110, 100), 10),
            // Given back, and never withdrawn.
            (to_spot, &[Op::Refund], none, (110, 100), 10),
            // Withdrawn: on its way, and so no loss.
            (to_spot, &[Op::Withdraw], none, (90, 100), 0),
            // A balance that somebody has changed.
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

    #[test]
    fn a_sum_that_is_out_of_range_is_not_told() {
        let add = |funding: u128, units: u128| {
            let spot = BTreeMap::from([(ASSET, SpotTotal { units, sequence: 1 })]);
            let sums = Sums { funding, ..Sums::default() };
            let view = View { sums: BTreeMap::from([(ASSET, sums)]), moving: Vec::new() };
            add_up(&spot, &view, &[])
        };
        assert!(add(1 << 126, 1 << 125).is_some());
        for (funding, units) in [(u128::MAX, 0), (0, u128::MAX), (1 << 126, 1 << 126)] {
            assert_eq!(add(funding, units), None);
        }
    }
}
