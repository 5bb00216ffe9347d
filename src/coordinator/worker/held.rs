//! Withdrawals to the outside that wait for a clean round of the audit, if the configuration asks
//! for it.
//!
//! A PostgreSQL that has gone back in time shows money that the user has already moved elsewhere. A
//! round that began after the user's last movement compares that movement with PostgreSQL. So the
//! worker remembers the last movement of each of its users. A withdrawal is carried out only after
//! such a round. Until then the store only searches for its idem_key, so that a repeat is answered.

use std::collections::HashMap;

use super::Worker;
use super::queue::Queued;
use crate::adapters::Adapter;
use crate::gate::CleanRounds;
use crate::postgres::store::Call;
use domain::account::UserId;

/// Users remembered. At the bound, the users from before the last clean round are forgotten. If
/// all are later, every user counts as having moved money now.
const USERS_MAX: usize = 100_000;

/// The last movement of each user, monotonic ns.
#[derive(Debug, Default)]
pub(super) struct Moved {
    users: HashMap<UserId, u64>,
    /// For users that are not remembered.
    others_ns: u64,
}

impl Moved {
    fn note(&mut self, user: UserId, now: u64, clean: &CleanRounds, users_max: usize) {
        if self.users.len() >= users_max {
            self.users.retain(|_, at| !clean.has_one_after(*at));
        }
        if self.users.len() >= users_max {
            self.users.clear();
            self.others_ns = now;
        }
        self.users.insert(user, now);
    }

    /// Whether no clean round has begun since the user's last movement.
    fn is_newer_than(&self, clean: &CleanRounds, user: UserId) -> bool {
        let moved_ns = self.users.get(&user).copied().unwrap_or(self.others_ns);
        !clean.has_one_after(moved_ns)
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Marks a call as held if it is a withdrawal that has to wait. Returns the search that the
    /// store gets instead.
    pub(super) fn hold_back(&self, queued: &mut Queued) -> Option<Call> {
        let Call::External(external) = &queued.call else { return None };
        let held = |clean| external.op.takes() && self.moved.is_newer_than(clean, external.user);
        queued.ticket.held = self.parts.clean.as_deref().is_some_and(held);
        queued.ticket.held.then(|| Call::FindExternal(external.clone()))
    }

    /// A commit is answered: its user has moved money, or may have.
    pub(super) fn note_commit(&mut self, queued: &Queued) {
        match &queued.call {
            Call::Accept { .. } | Call::Step { .. } | Call::Operate { .. } | Call::Hold(_) => {}
            Call::Recharge(_) => {}
            Call::External(_) if !queued.ticket.held => {}
            _ => return,
        }
        if let Some(user) = queued.call.user() {
            self.note_moved(user);
        }
    }

    /// The user has moved money, or may have.
    pub(super) fn note_moved(&mut self, user: UserId) {
        let now = self.now();
        if let Some(clean) = &self.parts.clean {
            self.moved.note(user, now, clean, USERS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: u64) -> UserId {
        UserId::new(number).expect("an id")
    }

    #[test]
    fn a_user_waits_for_a_round_that_began_after_its_last_movement() {
        let (mut moved, clean) = (Moved::default(), CleanRounds::default());
        assert!(moved.is_newer_than(&clean, user(1)), "no round yet");
        clean.ended(10);
        assert!(!moved.is_newer_than(&clean, user(1)));
        moved.note(user(1), 10, &clean, 9);
        assert!(moved.is_newer_than(&clean, user(1)), "at the same moment");
        assert!(!moved.is_newer_than(&clean, user(2)));
        clean.ended(11);
        assert!(!moved.is_newer_than(&clean, user(1)));
    }

    /// At its bound the memory forgets only users that a clean round has covered. If there are
    /// none, every user waits for a round from now on.
    #[test]
    fn a_full_memory_lets_no_user_pass_too_early() {
        let (mut moved, clean) = (Moved::default(), CleanRounds::default());
        moved.note(user(1), 5, &clean, 2);
        moved.note(user(2), 15, &clean, 2);
        clean.ended(10);
        moved.note(user(3), 16, &clean, 2);
        assert_eq!(moved.users.len(), 2, "user 1 is forgotten");
        assert_eq!(
            [1, 2, 3, 4].map(|n| moved.is_newer_than(&clean, user(n))),
            [false, true, true, false]
        );
        moved.note(user(4), 17, &clean, 2);
        assert!([1, 2, 3, 4, 5].iter().all(|n| moved.is_newer_than(&clean, user(*n))));
        clean.ended(17);
        let newer = [1, 4].map(|n| moved.is_newer_than(&clean, user(n)));
        assert_eq!(newer, [true, true], "17 is not after 17");
        clean.ended(18);
        assert!([1, 2, 3, 4, 5].iter().all(|n| !moved.is_newer_than(&clean, user(*n))));
    }
}
