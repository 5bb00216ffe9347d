//! Payments that are being decided, so that a payment told several times at once is decided by one
//! of the callers. The others look at its rows again behind that. A failure is theirs too: each of
//! them would meet it again, one after the other.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::coordinator::Rejection;

/// Channel and trade_no, and whether an operator has it decided again: a refusal of that is none
/// for its channel.
type Key = (String, String, bool);

/// The end of another caller's turn.
pub(super) type TurnEnd = watch::Receiver<Option<Rejection>>;

/// See the module. Its entries save work alone: the flight compares the rows of each decision.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<Key, watch::Sender<Option<Rejection>>>>);

/// The right to have a payment decided, until it is dropped.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    key: Key,
    failed: Option<Rejection>,
}

impl Turns {
    /// The turn of a payment.
    ///
    /// # Errors
    /// Another caller has it: see [`ended`].
    pub(super) fn begin(&self, key: Key) -> Result<Turn<'_>, TurnEnd> {
        match self.0.lock().entry(key.clone()) {
            Entry::Occupied(under_way) => Err(under_way.get().subscribe()),
            Entry::Vacant(free) => {
                free.insert(watch::Sender::new(None));
                Ok(Turn { turns: self, key, failed: None })
            }
        }
    }
}

impl Turn<'_> {
    /// Ends it with this failure: the callers that wait get it at once.
    pub(super) fn fail(mut self, rejection: Rejection) {
        self.failed = Some(rejection);
    }
}

/// Waits until the turn of another caller has ended.
///
/// # Errors
/// The failure of that caller.
pub(super) async fn ended(mut turn: TurnEnd) -> Result<(), Rejection> {
    // An error says that the turn was dropped without a failure.
    match turn.wait_for(Option::is_some).await {
        Ok(failed) => failed.clone().map_or(Ok(()), Err),
        Err(_) => Ok(()),
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let under_way = self.turns.0.lock().remove(&self.key);
        if let (Some(under_way), Some(failed)) = (under_way, self.failed.take()) {
            under_way.send_replace(Some(failed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;
    use domain::code::Code;

    #[test]
    fn a_payment_has_one_turn_at_a_time_and_the_others_wait_for_its_end() {
        let (turns, key) = (Turns::default(), || ("card".to_owned(), "t1".to_owned(), false));
        let Ok(turn) = turns.begin(key()) else { panic!("it is free") };
        let Err(other) = turns.begin(key()) else { panic!("it is taken") };
        assert!(
            turns.begin(("card".to_owned(), "t2".to_owned(), false)).is_ok(),
            "another payment"
        );
        let mut waits = pin!(ended(other));
        assert_eq!(waits.as_mut().now_or_never(), None);
        drop(turn);
        assert_eq!(waits.now_or_never(), Some(Ok(())));
        assert!(turns.begin(key()).is_ok());
        assert!(turns.0.lock().is_empty());
    }

    /// Goal: a payment that fails holds each of its callers for one failure, not for all of them.
    #[test]
    fn a_failure_ends_the_wait_of_all() {
        let (turns, key) = (Turns::default(), || ("card".to_owned(), "t1".to_owned(), false));
        let Ok(turn) = turns.begin(key()) else { panic!("it is free") };
        let waits = [turns.begin(key()), turns.begin(key())].map(|it| it.err().expect("taken"));
        turn.fail(Rejection::of(Code::SystemError));
        for wait in waits {
            let end = ended(wait).now_or_never();
            assert_eq!(end, Some(Err(Rejection::of(Code::SystemError))));
        }
        assert!(turns.begin(key()).is_ok(), "the next caller tries again");
    }
}
