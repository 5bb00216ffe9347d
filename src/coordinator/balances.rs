//! The money of one user at one moment, added up over two stores without a common clock.
//!
//! First Spot is read at a point of the log, then PostgreSQL in one snapshot. Then UBSCore returns
//! the recorded outcomes of the few transfers that the two reads may count differently. An
//! operation on Spot counts if its record is at or below the point of the first read. Everything
//! else about a transfer comes from the snapshot. So the sum is exact while transfers move.
//!
//! A transaction books its holds of Funding and its legs on Spot one beside the other. While a read
//! has one part of it and not the rest, the part of this user is in flight, which undoes it: below
//! zero if money has come and its payer still has it.
//!
//! A venue may pay the user after the first read, and the user may move that money to Funding
//! before the second one. Then Spot lacks it, and everything is read again.

use wal::Sequence;

use super::Coordinator;
use crate::adapters::spot::{Spot, SpotBalance, Unanswered};
use crate::adapters::{Adapter, Outcome};
use crate::postgres::booked::UserPart;
use crate::postgres::reads::Reads;
use domain::account::UserId;
use domain::asset::{Asset, AssetId};
use domain::transfer::{Decision, Direction, Op, Participant, ReqId};

/// Reads in a row that venues may overtake.
const READS_MAX: u32 = 3;

/// One asset of one user. `None`: the account does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balance {
    /// The asset.
    pub asset: Asset,
    /// Available and frozen, smallest units. Only a special balance may be below zero.
    pub funding: Option<(i128, u128)>,
    /// Available, and held or frozen, smallest units.
    pub spot: Option<(u128, u128)>,
    /// Taken from one account and not yet in the other, smallest units. It also undoes the
    /// bookings of a transaction that is not whole, so it may be below zero.
    pub in_flight: i128,
}

/// A balance that cannot be read now.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// UBSCore.
    #[error("read a Spot balance")]
    Spot(#[from] Unanswered),
    /// PostgreSQL.
    #[error("read the Funding balances")]
    Postgres(#[from] crate::postgres::Error),
    /// It took longer than outcomes are kept, so that missing ones may have been forgotten.
    #[error("the read took longer than UBSCore keeps outcomes")]
    Late,
    /// The two stores contradict each other.
    #[error("user {user}, asset {asset:?}: the stores do not add up")]
    Mismatch {
        /// The user.
        user: UserId,
        /// The asset.
        asset: AssetId,
    },
}

/// A transfer in one cut over both stores: true for every operation in the cut.
#[derive(Clone, Copy, Debug)]
struct Moved {
    direction: Direction,
    amount: u128,
    withdrawn: bool,
    deposited: bool,
    refunded: bool,
}

impl<F: Adapter> Coordinator<Spot, F> {
    /// Every balance of `user` in `assets`.
    ///
    /// # Errors
    /// [`Error`]: a store does not answer. Nothing is estimated.
    pub async fn balances(
        &self,
        reads: &Reads,
        user: UserId,
        assets: &[Asset],
    ) -> Result<Vec<Balance>, Error> {
        for _ in 1..READS_MAX {
            match self.read_balances(reads, user, assets).await {
                Err(Error::Mismatch { .. }) => {}
                read => return read,
            }
        }
        self.read_balances(reads, user, assets).await
    }

    async fn read_balances(
        &self,
        reads: &Reads,
        user: UserId,
        assets: &[Asset],
    ) -> Result<Vec<Balance>, Error> {
        // Taken before any read: every transfer under way from now on has this number or a higher
        // one.
        let order_number_low = self.order_number_low(user);
        let mut spots = Vec::with_capacity(assets.len());
        for asset in assets {
            spots.push(self.spot.balance(user, asset.id).await?);
        }
        let sequence_low = spots.iter().map(|spot| spot.sequence).min().unwrap_or(0);
        let view = reads.funding_view(user, order_number_low, sequence_low).await?;
        let settled = self.settles(&view.parts).await?;
        let mut balances = Vec::with_capacity(assets.len());
        for (asset, spot) in assets.iter().zip(spots) {
            let spot_at = spot.sequence;
            let mut moved = Vec::new();
            for transfer in &view.transfers {
                if transfer.intent.asset == asset.id {
                    let direction = transfer.intent.direction;
                    let amount = u128::from(transfer.intent.amount.units());
                    let req_id = transfer.intent.req_id;
                    let mut has = [false; Op::OF_TRANSFER.len()];
                    for (has, op) in has.iter_mut().zip(Op::OF_TRANSFER) {
                        *has = match op.participant(direction) {
                            Participant::Spot => self.in_cut(req_id, op, spot.sequence).await?,
                            Participant::Funding => {
                                transfer.on_funding(op) == Some(Decision::Success)
                            }
                        };
                    }
                    let [withdrawn, deposited, refunded] = has;
                    moved.push(Moved { direction, amount, withdrawn, deposited, refunded });
                }
            }
            let held = view.balances.iter().find(|(id, _, _)| *id == asset.id);
            let held = held.map_or((0, 0), |(_, available, frozen)| (*available, *frozen));
            let (spot, in_flight) =
                add_up(spot, &moved).ok_or(Error::Mismatch { user, asset: asset.id })?;
            let undone = in_flight_of(asset.id, &view.parts, &settled, spot_at);
            let in_flight = i128::try_from(in_flight).ok().zip(undone);
            let in_flight = in_flight.and_then(|(moving, undone)| moving.checked_add(undone));
            let in_flight = in_flight.ok_or(Error::Mismatch { user, asset: asset.id })?;
            let funding = view.exists.then_some(held);
            balances.push(Balance { asset: asset.clone(), funding, spot, in_flight });
        }
        // All queried outcomes have this number or a higher one.
        if self.numbers.forgotten_below() > order_number_low {
            return Err(Error::Late);
        }
        Ok(balances)
    }

    /// The record of the SETTLE of each part, 0 if it was forgotten.
    async fn settles(&self, parts: &[UserPart]) -> Result<Vec<Option<Sequence>>, Unanswered> {
        if parts.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<ReqId> = parts.iter().map(|part| part.transaction).collect();
        let (mut found, watermark) = self.spot.settled(&names).await?;
        for (part, record) in parts.iter().zip(&mut found) {
            // The watermark passes a transaction long after both stores have booked.
            if record.is_none() && part.order_number < watermark {
                *record = Some(0);
            }
        }
        Ok(found)
    }

    /// Whether a Spot operation succeeded at or before `sequence`.
    async fn in_cut(&self, req_id: ReqId, op: Op, sequence: Sequence) -> Result<bool, Unanswered> {
        let answer = self.spot.query(req_id, op).await;
        if answer.outcome == Outcome::Timeout {
            return Err(Unanswered::Silent);
        }
        Ok(answer.outcome == Outcome::Success
            && answer.log_sequence.is_some_and(|recorded| recorded <= sequence))
    }
}

/// The amount of an asset that undoes transactions which are not whole, smallest units; `None` if
/// it does not fit. `settled`: the record of the SETTLE of each part. `spot_at`: the record of the
/// Spot balance.
fn in_flight_of(
    asset: AssetId,
    parts: &[UserPart],
    settled: &[Option<Sequence>],
    spot_at: Sequence,
) -> Option<i128> {
    let of_asset = parts.iter().zip(settled).filter(|(part, _)| part.asset == asset);
    let mut undone =
        of_asset.map(|(part, settle)| part.in_flight(settle.is_some_and(|at| at <= spot_at)));
    undone.try_fold(0_i128, |sum, part| sum.checked_add(part?))
}

/// Available and held on Spot, smallest units; `None` without an account.
type OnSpot = Option<(u128, u128)>;

/// Spot and in flight of one asset; `None` if the two stores contradict each other.
fn add_up(spot: SpotBalance, moved: &[Moved]) -> Option<(OnSpot, u128)> {
    let (mut in_flight, mut left) = (0_u128, 0_u128);
    for transfer in moved {
        let out = transfer.deposited || transfer.refunded;
        match (transfer.withdrawn, out) {
            (true, false) => in_flight = in_flight.checked_add(transfer.amount)?,
            (true, true) | (false, false) => {}
            // PostgreSQL, read later, has money from a Spot withdraw after our point of the log.
            // That money has left Spot.
            (false, true) if transfer.direction == Direction::SpotToFunding => {
                left = left.checked_add(transfer.amount)?;
            }
            (false, true) => return None,
        }
    }
    let owned = spot.available.unwrap_or(0).checked_add(spot.held)?;
    let exists = spot.available.is_some() || left > 0;
    // Money that was not available at our point came from money that still counts as in flight to
    // Spot, or was released from a hold.
    let mut parts = [spot.available.unwrap_or(0), in_flight, spot.held];
    let mut rest = left;
    for part in &mut parts {
        let taken = rest.min(*part);
        (*part, rest) = (*part - taken, rest - taken);
    }
    let [available, in_flight_left, held] = parts;
    if rest > 0 {
        return None;
    }
    let (before, after) = (owned.wrapping_add(in_flight), available.wrapping_add(held));
    assert_eq!(after.wrapping_add(in_flight_left).wrapping_add(left), before, "{spot:?} {moved:?}");
    Some((exists.then_some((available, held)), in_flight_left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(direction: Direction, flags: [bool; 3]) -> Moved {
        let [withdrawn, deposited, refunded] = flags;
        Moved { direction, amount: 10, withdrawn, deposited, refunded }
    }

    /// Goal: the user's money adds up for every pair of cuts. Method: for each order of operations,
    /// every pair of cuts that the order of reads allows.
    #[test]
    fn every_pair_of_cuts_adds_up() {
        for direction in Direction::ALL {
            for last in [Op::Deposit, Op::Refund] {
                // Operations done when Spot was read, and when PostgreSQL was read: never fewer.
                for spot_cut in 0..=2_usize {
                    for funding_cut in spot_cut..=2 {
                        let funding_side = |op| match direction {
                            Direction::FundingToSpot => op != Op::Deposit,
                            Direction::SpotToFunding => op == Op::Deposit,
                        };
                        let done = |op: Op| {
                            let at = if op == Op::Withdraw { 0 } else { 1 };
                            let cut = if funding_side(op) { funding_cut } else { spot_cut };
                            (op == Op::Withdraw || op == last) && cut > at
                        };
                        let flags = [done(Op::Withdraw), done(Op::Deposit), done(Op::Refund)];
                        let (mut funding, mut spot) = (100_i64, 100_i64);
                        for op in [Op::Withdraw, Op::Deposit, Op::Refund] {
                            let sign = if op == Op::Withdraw { -10 } else { 10 };
                            if done(op) {
                                *(if funding_side(op) { &mut funding } else { &mut spot }) += sign;
                            }
                        }
                        let spot = u128::try_from(spot).expect("not negative");
                        let read = SpotBalance { available: Some(spot), held: 0, sequence: 1 };
                        let (spot, in_flight) =
                            add_up(read, &[moved(direction, flags)]).expect("no contradiction");
                        let sum = spot.expect("exists").0 + in_flight;
                        let sum = i64::try_from(sum).expect("small") + funding;
                        assert_eq!(sum, 200, "{direction:?} {last:?} {spot_cut} {funding_cut}");
                    }
                }
            }
        }
    }

    /// Story: Spot was read empty, then money came in and went out again before PostgreSQL was
    /// read. The second transfer's withdraw was compared with the empty balance, and a legal
    /// history was called a contradiction.
    #[test]
    fn money_that_passed_through_spot_between_the_reads_adds_up() {
        let through = [
            moved(Direction::FundingToSpot, [true, false, false]),
            moved(Direction::SpotToFunding, [false, true, false]),
        ];
        for available in [None, Some(0)] {
            let read = SpotBalance { available, held: 0, sequence: 1 };
            assert_eq!(add_up(read, &through), Some((Some((0, 0)), 0)));
        }
    }

    /// Goal: what is held counts, also if it was released and has left between the reads.
    #[test]
    fn a_released_hold_that_has_left_adds_up() {
        let left = [moved(Direction::SpotToFunding, [false, true, false])];
        let read = |available, held| SpotBalance { available: Some(available), held, sequence: 1 };
        assert_eq!(add_up(read(30, 5), &left), Some((Some((20, 5)), 0)));
        assert_eq!(add_up(read(4, 26), &left), Some((Some((0, 20)), 0)));
        // A venue has paid the rest after the read of Spot.
        assert_eq!(add_up(read(4, 5), &left), None);
    }

    /// Goal: the user's money changes once by a transaction, for every pair of cuts, and not before
    /// it is whole. Method: the parts of payer and payee, with each side booked or not.
    #[test]
    fn a_transaction_counts_once_it_is_whole() {
        let number = |number| ReqId::new(number).expect("not zero");
        let asset = AssetId(3);
        for (funding, spot, others) in
            [(-5, Some(5), true), (7, Some(0), true), (7, None, true), (-5, Some(2), false)]
        {
            for (on_funding, on_spot) in
                [(true, true), (true, false), (false, true), (false, false)]
            {
                let part = UserPart {
                    transaction: number(9),
                    order_number: 1,
                    asset,
                    funding: if on_funding { funding } else { 0 },
                    spot,
                    settled: on_funding && others,
                };
                let settle = [on_spot.then_some(4)];
                let in_flight = in_flight_of(asset, &[part], &settle, 4).expect("small");
                let booked = part.funding + if on_spot { spot.unwrap_or(0) } else { 0 };
                let is_whole = part.settled && (on_spot || spot.is_none());
                let want = if is_whole { funding + spot.unwrap_or(0) } else { 0 };
                assert_eq!(booked + in_flight, want, "{part:?} {on_spot}");
                assert_eq!(in_flight_of(AssetId(4), &[part], &settle, 4), Some(0));
            }
        }
    }

    #[test]
    fn money_from_nothing_is_a_contradiction() {
        let read = SpotBalance { available: Some(5), held: 0, sequence: 1 };
        let paid = moved(Direction::FundingToSpot, [false, true, false]);
        assert_eq!(add_up(read, &[paid]), None);
    }
}
