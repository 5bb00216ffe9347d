//! Counts the transfers of each user, to log an abnormal frequency. It refuses no transfer.

use std::collections::HashMap;

use domain::account::UserId;

/// The most users counted at once, about 10 MB. Further users are not counted before the next
/// minute. Such a flood of users shows in every other metric.
const USERS_MAX: usize = 100_000;
const MINUTE_NS: u64 = 60_000_000_000;

/// Transfers by user in this minute and the one before.
///
/// The number of the last sixty seconds is estimated from both, as if the transfers of the last
/// minute were spread evenly. That is exact enough for a warning, at two numbers a user.
#[derive(Debug)]
pub struct Frequency {
    per_minute_max: u64,
    users_max: usize,
    minute: u64,
    now: HashMap<UserId, u64>,
    before: HashMap<UserId, u64>,
}

impl Frequency {
    /// `per_minute_max`: more transfers of one user within sixty seconds are abnormal.
    pub fn new(per_minute_max: u64) -> Frequency {
        Frequency {
            per_minute_max,
            users_max: USERS_MAX,
            minute: 0,
            now: HashMap::new(),
            before: HashMap::new(),
        }
    }

    /// Counts one transfer. Returns the number of the last sixty seconds if it is abnormal.
    ///
    /// `now_ns`: monotonic.
    pub fn count(&mut self, user: UserId, now_ns: u64) -> Option<u64> {
        let minute = now_ns / MINUTE_NS;
        if minute != self.minute {
            let last = std::mem::take(&mut self.now);
            self.before = if minute == self.minute + 1 { last } else { HashMap::new() };
            self.minute = minute;
        }
        if self.now.len() >= self.users_max && !self.now.contains_key(&user) {
            return None;
        }
        let count = self.now.entry(user).or_default();
        *count += 1;
        let left_ns = MINUTE_NS - now_ns % MINUTE_NS;
        let before = self.before.get(&user).copied().unwrap_or(0);
        let recent = *count + before.saturating_mul(left_ns) / MINUTE_NS;
        assert!(self.now.len() <= self.users_max, "{} users are counted", self.now.len());
        (recent > self.per_minute_max).then_some(recent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: u64 = 1_000_000_000;

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("in range")
    }

    #[test]
    fn a_user_is_abnormal_from_one_above_the_maximum_on_and_no_longer_than_that_lasts() {
        let mut frequency = Frequency::new(3);
        for _ in 0..3 {
            assert_eq!(frequency.count(user(1), 5 * ONE), None);
        }
        assert_eq!(frequency.count(user(2), 5 * ONE), None, "another user");
        assert_eq!(frequency.count(user(1), 6 * ONE), Some(4));
        // A quarter into the next minute three quarters of the four still count.
        assert_eq!(frequency.count(user(1), 75 * ONE), Some(4));
        assert_eq!(frequency.count(user(1), 119 * ONE), None);
        // Two minutes on, nothing does.
        assert_eq!(frequency.count(user(1), 300 * ONE), None);
    }

    #[test]
    fn no_more_users_are_kept_than_there_are_places() {
        let mut frequency = Frequency { users_max: 2, ..Frequency::new(1) };
        for number in 1..=9 {
            assert_eq!(frequency.count(user(number), 0), None);
        }
        assert_eq!((frequency.now.len(), frequency.before.len()), (2, 0));
        assert_eq!(frequency.count(user(9), 0), None, "no place");
        assert_eq!(frequency.count(user(1), 0), Some(2));
        assert_eq!(frequency.count(user(9), 60 * ONE), None, "counted from here on");
        assert_eq!(frequency.count(user(9), 60 * ONE), Some(2));
    }
}
