//! The lane of one channel: its rate, its part of the threads, and the turns of due rows.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::rate::Rate;
use crate::clock::Clock;
use crate::postgres::reads::recharges::{DueKind, DueOrder, DueReturn};

/// A due row of one channel.
pub(super) enum Due {
    /// An order.
    Order(DueKind, Box<DueOrder>),
    /// A return.
    Return(Box<DueReturn>),
    /// An order that is over, at a hint of its channel.
    Over(Box<DueOrder>),
}

impl Due {
    /// Creates before returns before closes before queries. A transfer to Spot asks no channel.
    pub(super) fn turn(&self) -> u8 {
        match self {
            Due::Order(DueKind::Create, _) => 0,
            Due::Return(_) => 1,
            Due::Order(DueKind::Close, _) => 2,
            Due::Order(DueKind::Query, _) | Due::Over(_) => 3,
            Due::Order(DueKind::Follow | DueKind::GiveBack, _) => 4,
        }
    }

    /// The requests that it may take; `None`: it asks no channel.
    fn calls(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(match self {
            Due::Order(DueKind::Create | DueKind::Query, _) | Due::Over(_) => 1,
            Due::Order(DueKind::Close, _) => 2,
            // It is looked for, asked for, and looked for again behind a refusal.
            Due::Return(_) => 3,
            Due::Order(DueKind::Follow | DueKind::GiveBack, _) => 0,
        })
    }
}

/// See the module.
pub(super) struct Lane {
    rate: Rate,
    /// The most jobs at once.
    threads: usize,
    /// Jobs in hand that ask the channel, and those that do not.
    in_hand: [usize; 2],
    /// In this pass a row found no room in the rate: none behind it is handed out.
    is_full: bool,
}

impl Lane {
    pub(super) fn new(threads: usize, per_second: NonZeroU32, clock: Arc<dyn Clock>) -> Lane {
        Lane { rate: Rate::new(per_second, clock), threads, in_hand: [0; 2], is_full: false }
    }

    /// The jobs that it has room for, of those that ask the channel or of those that do not.
    pub(super) fn room(&self, asks: bool) -> usize {
        self.threads.saturating_sub(self.in_hand[usize::from(!asks)])
    }

    /// Begins a pass over the due rows, which are in the order of turns.
    pub(super) fn pass(&mut self) {
        self.is_full = false;
    }

    /// Takes a place for a job. `Ok(None)`: there is none in this pass.
    ///
    /// # Errors
    /// The time until the rate has room: nothing is taken, and nothing behind it in this pass.
    pub(super) fn take(&mut self, due: &Due) -> Result<Option<Place>, Duration> {
        let calls = due.calls();
        if self.room(calls.is_some()) == 0 {
            return Ok(None);
        }
        if let Some(calls) = calls {
            if self.is_full {
                return Ok(None);
            }
            let taken = self.rate.take(calls);
            self.is_full = taken.is_err();
            taken?;
        }
        let place = Place { asks: calls.is_some() };
        self.in_hand[usize::from(!place.asks)] += 1;
        Ok(Some(place))
    }

    pub(super) fn give_back(&mut self, place: Place) {
        self.in_hand[usize::from(!place.asks)] -= 1;
    }
}

/// A place of a [`Lane`].
pub(super) struct Place {
    asks: bool,
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::clock::Sleep;
    use crate::recharge::decide::tests::{facts, order, recorded};
    use crate::recharge::payment::{Disposition, HeldCause};
    use crate::recharge::returned::{RechargeReturn, ReturnKind, ReturnState};
    use crate::recharge::{PaymentId, ReturnId};

    /// It goes on with each look at it.
    struct Running(AtomicU64);

    impl Clock for Running {
        fn now_ns(&self) -> u64 {
            self.monotonic_ns()
        }
        fn monotonic_ns(&self) -> u64 {
            self.0.fetch_add(100_000_000, Ordering::Relaxed)
        }
        fn sleep(&self, _duration: Duration) -> Sleep {
            Box::pin(std::future::ready(()))
        }
    }

    fn due(kind: DueKind) -> Due {
        Due::Order(kind, Box::new(DueOrder { order: order(), references: Vec::new() }))
    }

    fn back() -> Due {
        let cause = Some(HeldCause::Duplicate);
        let at = order().created_at;
        Due::Return(Box::new(DueReturn {
            back: RechargeReturn {
                id: ReturnId::new(5).expect("not zero"),
                payment: PaymentId::new(4).expect("not zero"),
                kind: ReturnKind::Refund,
                minor_units: 10_000,
                state: ReturnState::Ready,
                next_at: Some(at),
                created_at: at,
                updated_at: at,
                version: 1,
                idem_key: None,
                number: None,
                code: None,
                attempts: 0,
                bonus: 0,
            },
            payment: recorded(&facts(), Disposition::Returning, cause),
            asked: Some(10_000),
        }))
    }

    /// Goal: a return that waits for the rate gets it before any number of due queries.
    #[test]
    fn nothing_passes_a_row_that_waits_for_the_rate() {
        let clock = Arc::new(Running(AtomicU64::new(1_000_000_000)));
        let four = NonZeroU32::new(4).expect("not zero");
        let mut lane = Lane::new(100, four, clock as Arc<dyn Clock>);
        let mut sent = false;
        for pass in 0..20 {
            lane.pass();
            let taken = lane.take(&back());
            sent |= matches!(taken, Ok(Some(_))) && pass > 0;
            let waits = taken.is_err();
            for _ in 0..4 {
                let query = lane.take(&due(DueKind::Query));
                assert!(!waits || matches!(query, Ok(None)), "it passes a return");
            }
            assert!(matches!(lane.take(&due(DueKind::Follow)), Ok(Some(_))), "it asks no channel");
        }
        assert!(sent, "a return starves");
    }
}
