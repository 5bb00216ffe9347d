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
}

impl Due {
    /// Creates before returns before closes before queries. A transfer to Spot asks no channel.
    pub(super) fn turn(&self) -> u8 {
        match self {
            Due::Order(DueKind::Create, _) => 0,
            Due::Return(_) => 1,
            Due::Order(DueKind::Close, _) => 2,
            Due::Order(DueKind::Query, _) => 3,
            Due::Order(DueKind::Follow, _) => 4,
        }
    }

    /// The requests that it may take; `None`: it asks no channel.
    fn calls(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(match self {
            Due::Order(DueKind::Create | DueKind::Query, _) => 1,
            Due::Order(DueKind::Close, _) => 2,
            // It is looked for, asked for, and looked for again behind a refusal.
            Due::Return(_) => 3,
            Due::Order(DueKind::Follow, _) => 0,
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
}

impl Lane {
    pub(super) fn new(threads: usize, per_second: NonZeroU32, clock: Arc<dyn Clock>) -> Lane {
        Lane { rate: Rate::new(per_second, clock), threads, in_hand: [0; 2] }
    }

    /// The jobs that it has room for, of those that ask the channel or of those that do not.
    pub(super) fn room(&self, asks: bool) -> usize {
        self.threads.saturating_sub(self.in_hand[usize::from(!asks)])
    }

    /// Takes a place for a job. `Ok(None)`: there is none.
    ///
    /// # Errors
    /// The time until the rate has room: nothing is taken.
    pub(super) fn take(&mut self, due: &Due) -> Result<Option<Place>, Duration> {
        let calls = due.calls();
        if self.room(calls.is_some()) == 0 {
            return Ok(None);
        }
        if let Some(calls) = calls {
            self.rate.take(calls)?;
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
