//! Payments that are being decided, so that a payment told several times at once is decided by one
//! of the callers. The others look at its rows again behind that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Channel and trade_no.
type Key = (String, String);

/// See the module. Its entries save work alone: the flight compares the rows of each decision.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Key, watch::Sender<()>>>);

/// The right to have a payment decided, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    key: Key,
}

impl Turns {
    /// The turn of a payment.
    ///
    /// # Errors
    /// Another caller has it: see [`ended`].
    pub(super) fn begin(&self, key: Key) -> Result<Turn<'_>, watch::Receiver<()>> {
        match self.0.lock().entry(key.clone()) {
            Entry::Occupied(under_way) => Err(under_way.get().subscribe()),
            Entry::Vacant(free) => {
                free.insert(watch::Sender::new(()));
                Ok(Turn { turns: self, key })
            }
        }
    }
}

/// Waits until the turn of another caller has ended.
pub(super) async fn ended(mut turn: watch::Receiver<()>) {
    // Nothing is sent: an error says that the turn was dropped.
    while turn.changed().await.is_ok() {}
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.0.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_payment_has_one_turn_at_a_time_and_the_others_wait_for_its_end() {
        let (turns, key) = (Turns::default(), || ("card".to_owned(), "t1".to_owned()));
        let Ok(turn) = turns.begin(key()) else { panic!("it is free") };
        let Err(other) = turns.begin(key()) else { panic!("it is taken") };
        assert!(turns.begin(("card".to_owned(), "t2".to_owned())).is_ok(), "another payment");
        let mut waits = pin!(ended(other));
        assert_eq!(waits.as_mut().now_or_never(), None);
        drop(turn);
        assert_eq!(waits.now_or_never(), Some(()));
        assert!(turns.begin(key()).is_ok());
        assert!(turns.0.lock().is_empty());
    }
}
