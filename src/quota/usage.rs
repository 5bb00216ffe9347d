//! The usage of one user's day. Pure, so that a test can compare it with a model.
//!
//! A transfer belongs to the UTC day of its accept, by the service's clock. Its share is *open*
//! from before the transfer is sent until its accept is decided. An open share counts in every day,
//! so no day exceeds its limit whether an accept commits before or after midnight.
//!
//! Each day has its own sums. So the clock may run ahead over midnight and back again, and no sum
//! changes. A day exceeds its limit only by shares that are open when the clock enters it a second
//! time.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use domain::asset::AssetId;

/// Seconds in a day.
const DAY_S: i64 = 86_400;
/// Days with sums. A clock that runs ahead needs a second one. Beyond, the oldest is dropped.
const DAYS_MAX: usize = 4;

/// A day of UTC: days since 1970-01-01.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day(i64);

impl Day {
    /// The day of a moment.
    pub fn of(moment: Timestamp) -> Day {
        Day(moment.as_second().div_euclid(DAY_S))
    }

    /// The day of a moment in whole seconds since the Unix epoch.
    pub fn of_second(second: u64) -> Day {
        Day(i64::try_from(second).expect("2^63 seconds").div_euclid(DAY_S))
    }

    /// The time of its beginning.
    pub fn start(self) -> Timestamp {
        Timestamp::from_second(self.0 * DAY_S).expect("the day of a timestamp")
    }

    /// Seconds from a moment to the end of the day, at least one.
    pub fn left_s(self, now_s: u64) -> u64 {
        let end = u64::try_from((self.0 + 1) * DAY_S).expect("after 1970");
        end.saturating_sub(now_s).max(1)
    }
}

/// The limits of every user's day.
#[derive(Clone, Debug, Default)]
pub struct DayMax {
    /// Accepted transfers.
    pub transfers: Option<u64>,
    /// Smallest units by asset. A transfer that ends FAILED or ROLLED_BACK uses none.
    pub amounts: HashMap<AssetId, u64>,
}

impl DayMax {
    /// Whether there is no limit.
    pub fn is_off(&self) -> bool {
        self.transfers.is_none() && self.amounts.is_empty()
    }
}

/// The usage of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The asset.
    pub asset: AssetId,
    /// Smallest units; 0 if the asset has no limit.
    pub units: u64,
}

/// Transfers and smallest units by asset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The number of transfers.
    pub transfers: u64,
    /// Smallest units by asset.
    pub amounts: HashMap<AssetId, u128>,
}

impl Sums {
    /// Smallest units of one asset.
    pub fn units(&self, asset: AssetId) -> u128 {
        self.amounts.get(&asset).copied().unwrap_or(0)
    }

    /// Counts a transfer.
    pub fn add(&mut self, share: Share) {
        self.transfers += 1;
        if share.units > 0 {
            *self.amounts.entry(share.asset).or_default() += u128::from(share.units);
        }
    }

    fn remove(&mut self, share: Share) {
        assert!(self.transfers > 0, "a share is released or accepted once");
        self.transfers -= 1;
        self.remove_units(share);
    }

    fn remove_units(&mut self, share: Share) {
        // While a clock jumped, the day may have been dropped and begun again: then the sum is
        // smaller than the share.
        match self.units(share.asset).saturating_sub(u128::from(share.units)) {
            0 => drop(self.amounts.remove(&share.asset)),
            left => drop(self.amounts.insert(share.asset, left)),
        }
    }
}

/// The limit of a day that leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The number of transfers.
    Transfers,
    /// The amount of the asset.
    Amount,
}

/// Whether there is room for one more transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// There is room, and the share is taken.
    Taken,
    /// There is none today.
    None(Limit),
    /// It depends on open shares.
    Perhaps,
}

/// The usage of one user.
#[derive(Debug)]
pub struct Usage {
    /// The last known day.
    day: Day,
    /// By day; a day without an entry has no usage.
    used: BTreeMap<Day, Sums>,
    open: Sums,
}

impl Usage {
    /// A user with this usage of each day and no open share. PostgreSQL is in `day`.
    pub fn new(day: Day, used: BTreeMap<Day, Sums>) -> Usage {
        let mut usage = Usage { day, used, open: Sums::default() };
        usage.forget();
        usage
    }

    /// The last known day.
    pub fn day(&self) -> Day {
        self.day
    }

    /// Sets the day. It is an earlier one if the clock went back. Every accept of both
    /// days had a share here, so nothing has to be read.
    pub fn seen(&mut self, day: Day) {
        self.day = day;
    }

    /// The usage of a day.
    pub fn used(&self, day: Day) -> Sums {
        self.used.get(&day).cloned().unwrap_or_default()
    }

    /// Keeps the sums of the latest days and of this day.
    fn forget(&mut self) {
        while self.used.len() > DAYS_MAX {
            let oldest = self.used.keys().copied().find(|day| *day != self.day);
            self.used.remove(&oldest.expect("more than one"));
        }
        debug_assert!(self.used.len() <= DAYS_MAX, "bounded");
    }

    /// Opens a share, if there is room for it.
    pub fn take(&mut self, max: &DayMax, share: Share) -> Room {
        let none = Sums::default();
        let (used, open) = (self.used.get(&self.day).unwrap_or(&none), &self.open);
        let counts =
            (Limit::Transfers, max.transfers, used.transfers.into(), open.transfers.into(), 1);
        let of_asset = max.amounts.get(&share.asset).copied();
        let units = (used.units(share.asset), open.units(share.asset));
        let amounts = (Limit::Amount, of_asset, units.0, units.1, share.units);
        for (limit, max, used, open, more) in [counts, amounts] {
            let Some(max) = max.map(u128::from) else { continue };
            let with_this = used + u128::from(more);
            if with_this > max {
                return Room::None(limit);
            }
            if with_this + open > max {
                return Room::Perhaps;
            }
        }
        self.open.add(share);
        debug_assert!(self.open.transfers > 0, "taken");
        Room::Taken
    }

    /// Releases an open share: its transfer was not accepted.
    pub fn release(&mut self, share: Share) {
        self.open.remove(share);
    }

    /// Turns an open share into usage: its transfer was accepted in this day.
    pub fn accept(&mut self, share: Share, day: Day) {
        debug_assert!(self.open.units(share.asset) >= u128::from(share.units), "an open share");
        self.open.remove(share);
        // An answer may arrive before that of an earlier day.
        self.day = self.day.max(day);
        self.used.entry(day).or_default().add(share);
        self.forget();
    }

    /// Gives back the amount of a transfer that was accepted in this day and failed. It still
    /// counts as a transfer.
    pub fn restore(&mut self, share: Share, day: Day) {
        if let Some(used) = self.used.get_mut(&day) {
            debug_assert!(used.transfers > 0, "the transfer counts on this day");
            used.remove_units(share);
        }
    }

    /// The rest of each limit of the day: transfers, and smallest units of one asset.
    pub fn left(&self, max: &DayMax, asset: AssetId) -> (Option<u64>, Option<u64>) {
        let used = self.used(self.day);
        let taken = used.transfers + self.open.transfers;
        let units = used.units(asset) + self.open.units(asset);
        let units_left = |max: u64| {
            let left = u128::from(max).saturating_sub(units);
            u64::try_from(left).expect("at most the limit")
        };
        let transfers = max.transfers.map(|max| max.saturating_sub(taken));
        (transfers, max.amounts.get(&asset).copied().map(units_left))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const ASSETS: [AssetId; 2] = [AssetId(1), AssetId(2)];

    #[test]
    fn a_day_begins_and_ends_at_midnight() {
        let at = |text: &str| -> Timestamp { text.parse().expect("a timestamp") };
        let day = Day::of(at("2026-03-01T23:59:59.999Z"));
        assert_eq!(day.start(), at("2026-03-01T00:00:00Z"));
        assert_eq!(Day::of(day.start()), day);
        assert!(Day::of(at("2026-03-02T00:00:00Z")) > day);
        let end = u64::try_from(at("2026-03-02T00:00:00Z").as_second()).expect("after 1970");
        assert_eq!((day.left_s(end - 1), day.left_s(end - 60)), (1, 60));
        assert_eq!(day.left_s(end + 5), 1, "the clock is ahead");
        assert_eq!(Day::of_second(end - 1), day);
    }

    /// What may happen to a user, as a generator makes it up.
    #[derive(Clone, Debug)]
    enum UsageStep {
        Ask(usize, u64),
        /// Of an open share, by its place: its accept has come to nothing.
        Release(usize),
        /// PostgreSQL has stamped and committed its row.
        Stamp(usize),
        /// Its accept is answered.
        Accept(usize),
        /// Of an accepted transfer, by its place: it has moved nothing.
        Restore(usize),
        /// A day passes in PostgreSQL, and no read has shown it yet.
        Midnight,
        /// A read shows the day of PostgreSQL.
        See,
        /// PostgreSQL's clock steps so many days ahead, or back, which the service sees.
        Step(i64),
        /// The process dies: everything is read from PostgreSQL.
        Reload,
    }

    fn step() -> impl Strategy<Value = UsageStep> {
        prop_oneof![
            6 => (0..2usize, 1..40u64).prop_map(|(asset, units)| UsageStep::Ask(asset, units)),
            1 => (0..8usize).prop_map(UsageStep::Release),
            2 => (0..8usize).prop_map(UsageStep::Stamp),
            4 => (0..8usize).prop_map(UsageStep::Accept),
            2 => (0..8usize).prop_map(UsageStep::Restore),
            1 => Just(UsageStep::Midnight),
            1 => Just(UsageStep::See),
            1 => (1..400i64).prop_map(UsageStep::Step),
            2 => (-400..0i64).prop_map(UsageStep::Step),
            1 => Just(UsageStep::Reload),
        ]
    }

    /// One row of PostgreSQL's, in the model.
    struct Row {
        share: Share,
        day: Day,
        answered: bool,
        moved: bool,
    }

    fn sums<'a>(rows: impl IntoIterator<Item = &'a Row>, day: Day) -> Sums {
        let mut sums = Sums::default();
        for row in rows.into_iter().filter(|row| row.day == day) {
            sums.add(row.share);
            if !row.moved {
                sums.remove_units(row.share);
            }
        }
        sums
    }

    fn of_days(rows: &[Row]) -> BTreeMap<Day, Sums> {
        let days: BTreeSet<Day> = rows.iter().map(|row| row.day).collect();
        days.into_iter().map(|day| (day, sums(rows, day))).collect()
    }

    proptest! {
        /// Goal: no day has more than its limits, and no user is refused for the day while there is
        /// room. Method: the table against a list of rows with their days, which is added up anew
        /// each time.
        #[test]
        fn no_day_has_more_than_its_limits_and_nobody_is_refused_who_has_room(
            steps in proptest::collection::vec(step(), 1..200),
            transfers in proptest::option::of(1..8u64),
            units in proptest::option::of(1..100u64),
        ) {
            let amounts = units.map(|units| (ASSETS[0], units)).into_iter().collect();
            let max = DayMax { transfers, amounts };
            let mut today = Day(20_000);
            let mut rows: Vec<Row> = Vec::new();
            // Each with its row, once there is one.
            let mut open: Vec<(Share, Option<usize>)> = Vec::new();
            let mut usage = Usage::new(today, BTreeMap::new());
            for step in steps {
                match step {
                    UsageStep::Ask(asset, units) => {
                        let share = Share { asset: ASSETS[asset], units };
                        let used = sums(rows.iter().filter(|row| row.answered), usage.day());
                        let fits = |used: u128, more: u64, max: Option<u64>| {
                            max.is_none_or(|max| used + u128::from(more) <= u128::from(max))
                        };
                        let transfers = fits(used.transfers.into(), 1, max.transfers);
                        let limit = max.amounts.get(&share.asset).copied();
                        let amount = fits(used.units(share.asset), units, limit);
                        match usage.take(&max, share) {
                            Room::Taken => {
                                prop_assert!(transfers && amount);
                                open.push((share, None));
                            }
                            Room::None(Limit::Transfers) => prop_assert!(!transfers),
                            Room::None(Limit::Amount) => prop_assert!(!amount),
                            Room::Perhaps => prop_assert!(!open.is_empty()),
                        }
                    }
                    UsageStep::Release(place) => {
                        let unstamped = open.iter().position(|(_, row)| row.is_none());
                        if let Some(first) = unstamped && place > 0 {
                            usage.release(open.swap_remove(first).0);
                        }
                    }
                    UsageStep::Stamp(place) if !open.is_empty() => {
                        let place = place % open.len();
                        let (share, number) = &mut open[place];
                        if number.is_none() {
                            *number = Some(rows.len());
                            rows.push(Row { share: *share, day: today, answered: false, moved: true });
                        }
                    }
                    UsageStep::Accept(place) if !open.is_empty() => {
                        let place = place % open.len();
                        let (share, number) = open.swap_remove(place);
                        let number = number.unwrap_or_else(|| {
                            rows.push(Row { share, day: today, answered: false, moved: true });
                            rows.len() - 1
                        });
                        rows[number].answered = true;
                        usage.accept(share, rows[number].day);
                    }
                    UsageStep::Restore(place) if !rows.is_empty() => {
                        let place = place % rows.len();
                        if rows[place].answered && std::mem::take(&mut rows[place].moved) {
                            usage.restore(rows[place].share, rows[place].day);
                        }
                    }
                    UsageStep::Stamp(_) | UsageStep::Accept(_) | UsageStep::Restore(_) => {}
                    UsageStep::Midnight => {
                        let next = Day(today.0 + 1);
                        let again = rows.iter().any(|row| row.day == next);
                        if !again || open.is_empty() {
                            today = next;
                        }
                        if again && open.is_empty() {
                            usage.seen(today);
                        }
                    }
                    UsageStep::See => usage.seen(today),
                    // Open shares may fall into either day; and the sums of a few days are kept.
                    UsageStep::Step(days) if open.is_empty() && usage.used.len() < DAYS_MAX => {
                        today = Day((today.0 + days).max(20_000));
                        usage.seen(today);
                    }
                    UsageStep::Step(_) => {}
                    UsageStep::Reload => {
                        open.clear();
                        rows.iter_mut().for_each(|row| row.answered = true);
                        usage = Usage::new(today, of_days(&rows));
                    }
                }
                let days: BTreeSet<Day> = rows.iter().map(|row| row.day).collect();
                for day in days {
                    let used = sums(&rows, day);
                    prop_assert!(max.transfers.is_none_or(|max| used.transfers <= max));
                    for (asset, max) in &max.amounts {
                        prop_assert!(used.units(*asset) <= u128::from(*max));
                    }
                }
                let answered = rows.iter().filter(|row| row.answered);
                prop_assert_eq!(usage.used(usage.day()), sums(answered, usage.day()));
            }
        }
    }
}
