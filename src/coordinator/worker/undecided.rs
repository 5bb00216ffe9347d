//! The cids of accepts that are not decided. PostgreSQL may still commit one, though a read finds
//! nothing now.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use domain::account::UserId;
use domain::transfer::Cid;

type Key = (UserId, Cid);

/// The accepts of one worker that have no answer from its store yet, queued ones included.
#[derive(Clone, Debug, Default)]
pub(super) struct Undecided(Arc<Mutex<HashMap<Key, usize>>>);

/// One accept that is not decided. It is dropped with the decision.
#[derive(Debug)]
pub(super) struct Claim {
    undecided: Undecided,
    key: Key,
}

impl Undecided {
    /// Notes an accept under this cid.
    pub(super) fn claim(&self, user: UserId, cid: Cid) -> Claim {
        let key = (user, cid);
        *self.0.lock().entry(key.clone()).or_default() += 1;
        Claim { undecided: self.clone(), key }
    }

    /// Whether an accept under this cid may still be committed.
    pub(super) fn holds(&self, user: UserId, cid: &Cid) -> bool {
        self.0.lock().contains_key(&(user, cid.clone()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claims = self.undecided.0.lock();
        if let Some(count) = claims.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                claims.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cid_is_undecided_until_its_last_accept_is_decided() {
        let (user, cid) = (UserId::new(7).expect("an id"), Cid::new("one").expect("a cid"));
        let undecided = Undecided::default();
        let (first, second) =
            (undecided.claim(user, cid.clone()), undecided.claim(user, cid.clone()));
        drop(first);
        assert!(undecided.holds(user, &cid));
        assert!(!undecided.holds(user, &Cid::new("other").expect("a cid")));
        drop(second);
        assert!(!undecided.holds(user, &cid));
        assert!(undecided.0.lock().is_empty());
    }
}
