//! The relay: makes events from committed history, and sends them to the streams that follow.
//!
//! History rows are numbered when they are written, and a smaller number may be committed after a
//! larger one. The relay remembers the missing numbers, its holes, and looks for them again. A hole
//! is closed when every transaction that could have drawn its number has ended. Everything up to
//! the low water is copied; the next start begins there.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::{Either, select};
use tokio::sync::Notify;
use tracing::{debug, error};

use super::{Hub, outlast, within};
use crate::clock::Clock;
use crate::postgres::events::{Copied, Events, Look};
use crate::postgres::{Address, Error, Limits, Superseded};
use crate::telemetry;
use domain::asset::Catalog;

/// Rows after the last one that are copied in one transaction.
const ROWS_MAX: u32 = 1_000;
/// Events deleted in one transaction.
const PURGE_ROWS_MAX: u32 = 1_000;
/// Pause after each transaction, so that a busy service needs few: newer rows share the next one.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause without a signal: a commit with a lost answer sends none.
const LOOK: Duration = Duration::from_secs(5);
/// The same, while rows with a smaller number than the copied ones may still be committed.
const LOOK_SOON: Duration = Duration::from_millis(500);
/// Holes that are looked for one by one. With more, everything above the low water is read again.
const HOLES_MAX: usize = 10_000;
/// The pause between two deletions of old events: this part of their life, and at most a minute.
const PURGE_PART: u32 = 16;
const PURGE_MAX: Duration = Duration::from_secs(60);

/// The options of the relay.
#[derive(Clone)]
pub struct Options {
    /// PostgreSQL.
    pub target: Address,
    /// Its limits.
    pub limits: Limits,
    /// This process's incarnation.
    pub incarnation: u64,
    /// The endpoints of every event.
    pub endpoints: Vec<String>,
    /// The assets.
    pub catalog: Arc<ArcSwap<Catalog>>,
    /// The life of events and of delivered ones.
    pub keep: Duration,
    /// The life of dead letters.
    pub dead_keep: Duration,
}

/// The numbers of the history that the relay has seen.
#[derive(Debug, Default, PartialEq, Eq)]
struct Window {
    /// Everything up to here is copied, or will never be written.
    low_water: i64,
    /// PostgreSQL's low water.
    stored: i64,
    /// Every number up to here was looked for; `None`: begin after PostgreSQL's low water.
    after: Option<i64>,
    /// The numbers up to [`Window::after`] that were missing.
    holes: BTreeSet<i64>,
    /// The last drawn number, and a transaction number: each transaction that drew it, or a smaller
    /// one, began below.
    pending: Option<(i64, i64)>,
    /// Every transaction that drew a number up to this one has ended.
    over: i64,
}

impl Window {
    /// Takes in which transactions have ended.
    fn look(&mut self, look: Look) {
        if let Some((last, begun_below)) = self.pending
            && look.over_below >= begun_below
        {
            self.over = last;
            self.pending = None;
        }
        if self.pending.is_none() && look.last > self.over {
            self.pending = Some((look.last, look.begun_below));
        }
        // Too many holes to look for one by one: read everything above the low water again.
        if self.holes.len() > HOLES_MAX {
            self.holes.clear();
            self.after = Some(self.low_water);
        }
    }

    /// Whether there is nothing to look for up to this last number.
    fn is_done(&self, last: i64) -> bool {
        let seen = self.after.is_some_and(|after| after >= last) && self.holes.is_empty();
        seen && self.over <= self.low_water && self.low_water == self.stored
    }

    /// Whether PostgreSQL has recorded that everything up to this last number is copied.
    fn is_settled(&self, last: i64) -> bool {
        self.stored >= last
    }

    /// Takes in the result of a copy. `whole`: there were no further rows.
    fn copied(&mut self, copied: &Copied, whole: bool) {
        let mut after = copied.after;
        for seen in &copied.seen {
            self.holes.remove(seen);
        }
        let mut behind: Vec<i64> = copied.seen.iter().copied().filter(|n| *n > after).collect();
        behind.sort_unstable();
        for seen in behind {
            // The sequence bounds a gap. If it has too many holes, a later look begins again.
            let missing = (after + 1..seen).take(HOLES_MAX + 1);
            self.holes.extend(missing);
            after = seen;
        }
        self.stored = copied.low_water;
        self.low_water = self.low_water.max(copied.low_water);
        self.after = Some(after);
        // The copy has seen every row of a transaction that ended before it, as far as it came.
        let sure = if whole { self.over } else { self.over.min(after) };
        self.low_water = self.low_water.max(sure);
        if whole && self.over > after {
            self.after = Some(self.over);
        }
        self.holes = self.holes.split_off(&(self.low_water + 1));
        assert!(self.stored <= self.low_water, "PostgreSQL is not ahead of its only writer");
    }
}

/// The relay's task.
pub struct Relay {
    options: Options,
    hub: Arc<Hub>,
    clock: Arc<dyn Clock>,
    /// Monotonic ns.
    born_ns: u64,
    committed: Arc<Notify>,
    /// The last event that was sent to streams; `None` before the first look.
    sent: Option<i64>,
    purge_due_ns: u64,
    failures: u32,
}

impl Relay {
    /// A relay that `committed` wakes.
    pub fn new(
        options: Options,
        hub: Arc<Hub>,
        clock: Arc<dyn Clock>,
        committed: Arc<Notify>,
    ) -> Relay {
        let born_ns = clock.monotonic_ns();
        Relay { options, hub, clock, born_ns, committed, sent: None, purge_due_ns: 0, failures: 0 }
    }

    /// Runs until the hub is closed. A failure is retried forever.
    ///
    /// # Errors
    /// [`Superseded`]: the process must end.
    pub async fn run(mut self) -> Result<(), Superseded> {
        let (clock, closing) = (Arc::clone(&self.clock), self.hub.closing());
        let work = async {
            loop {
                // A session only ends with an error. The next one begins at PostgreSQL's low water.
                let Err(failure) = self.session().await;
                outlast("the relay of events", &failure, &mut self.failures, &*clock).await?;
            }
        };
        // A copy may be cut anywhere: the next start finds the copied rows.
        match select(pin!(work), pin!(closing)).await {
            Either::Left((ended, _)) => ended,
            Either::Right(((), _)) => Ok(()),
        }
    }

    async fn session(&mut self) -> Result<std::convert::Infallible, Error> {
        let Options { target, limits, incarnation, endpoints, catalog, .. } = self.options.clone();
        let events = Events::connect(&target, &limits, incarnation, endpoints, catalog).await?;
        let mut window = Window::default();
        loop {
            let next = self.round(&events, &mut window).await?;
            self.failures = 0;
            self.purge(&events).await?;
            self.clock.sleep(PAUSE).await;
            select(pin!(self.committed.notified()), self.clock.sleep(next)).await;
        }
    }

    /// Copies new rows, up to a bound. Returns the longest pause before the next look.
    async fn round(&mut self, events: &Events, window: &mut Window) -> Result<Duration, Error> {
        // Read before the first copy: streams that follow by now must get its events.
        if self.sent.is_none() {
            self.sent = Some(within(&*self.clock, &self.options.limits, events.last()).await?);
        }
        let look = events.look(window.over);
        let look = within(&*self.clock, &self.options.limits, look).await?;
        window.look(look);
        let soon = if window.is_settled(look.last) { LOOK } else { LOOK_SOON };
        if window.is_done(look.last) {
            return Ok(soon);
        }
        let holes: Vec<i64> = window.holes.iter().copied().collect();
        let floor = self.sent.unwrap_or(0);
        let relay = events.relay(window.low_water, window.after, &holes, ROWS_MAX, floor);
        let copied = within(&*self.clock, &self.options.limits, relay).await?;
        let behind = copied.seen.iter().filter(|number| **number > copied.after).count();
        let whole = behind < usize::try_from(ROWS_MAX).expect("a thousand");
        window.copied(&copied, whole);
        if copied.made > 0 {
            debug!(made = copied.made, last = copied.last_event_id, "events made");
            telemetry::events_made(copied.made);
            self.hub.ring_for_deliveries();
        }
        self.send(events, copied.last_event_id).await?;
        Ok(if whole { soon } else { Duration::ZERO })
    }

    /// Sends every event up to `last` to the streams, in order. Each of them is durable.
    async fn send(&mut self, events: &Events, last: i64) -> Result<(), Error> {
        let mut sent = self.sent.unwrap_or(last);
        while sent < last {
            // A stream that begins to follow from here on reads these events in PostgreSQL.
            let followed = self.hub.followed();
            if followed.is_empty() {
                break;
            }
            let page = within(
                &*self.clock,
                &self.options.limits,
                events.of_users(sent, &followed, ROWS_MAX),
            )
            .await?;
            let full = page.len() >= usize::try_from(ROWS_MAX).expect("a thousand");
            let end = page.last().map_or(last, |(id, _)| *id);
            let readable = page.into_iter().filter_map(|(event_id, event)| match event {
                Ok(event) => Some(event),
                Err(error) => {
                    // One bad row must not stop every stream.
                    error!(event_id, %error, "an event cannot be read and is not sent");
                    None
                }
            });
            self.hub.publish(readable.collect());
            sent = if full { end } else { last.max(end) };
            self.sent = Some(sent);
        }
        self.sent = Some(sent.max(last));
        Ok(())
    }

    /// Deletes old events, if the next deletion is due.
    async fn purge(&mut self, events: &Events) -> Result<(), Error> {
        if self.clock.monotonic_ns() < self.purge_due_ns {
            return Ok(());
        }
        let Options { keep, dead_keep, .. } = self.options;
        let set_due = |relay: &mut Relay, pause: Duration| {
            let pause_ns = u64::try_from(pause.as_nanos()).expect("a minute at most");
            relay.purge_due_ns = relay.clock.monotonic_ns() + pause_ns;
        };
        let pause = (keep / PURGE_PART).min(PURGE_MAX);
        // Set before the call: a deletion that fails repeatedly must not stop new events.
        set_due(self, pause);
        let lived = Duration::from_nanos(self.clock.monotonic_ns() - self.born_ns);
        let more = within(
            &*self.clock,
            &self.options.limits,
            events.purge(lived, keep, dead_keep, PURGE_ROWS_MAX),
        )
        .await?;
        if more {
            // The next batch comes with the next round.
            set_due(self, PAUSE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(last: i64, over_below: i64, begun_below: i64) -> Look {
        Look { last, over_below, begun_below }
    }

    fn copied(after: i64, seen: &[i64], low_water: i64) -> Copied {
        Copied { after, seen: seen.to_vec(), made: 0, low_water, last_event_id: 0 }
    }

    /// Goal: no number is passed over while it may still be committed. Method: of 1 to 5, 2 and
    /// 4 are not there yet; 2 comes late, 4 never.
    #[test]
    fn a_number_is_given_up_only_when_nobody_can_have_it_any_more() {
        let mut window = Window::default();
        window.look(look(5, 100, 104));
        window.copied(&copied(0, &[1, 3, 5], 0), true);
        assert_eq!((window.after, window.low_water), (Some(5), 0));
        assert_eq!(Vec::from_iter(window.holes.clone()), [2, 4]);
        // Transaction 100 is under way still.
        window.look(look(5, 100, 104));
        window.copied(&copied(5, &[2], 0), true);
        assert_eq!((window.low_water, Vec::from_iter(window.holes.clone())), (0, vec![4]));
        assert!(!window.is_done(5));
        // All that were under way at the first look are over; what they have left is seen by the
        // call behind this look.
        window.look(look(6, 104, 107));
        window.copied(&copied(5, &[6], 0), true);
        assert_eq!((window.low_water, window.holes.len()), (5, 0));
        assert!(!window.is_done(6), "PostgreSQL does not know yet");
        window.look(look(6, 107, 108));
        window.copied(&copied(6, &[], 5), true);
        assert_eq!((window.low_water, window.stored), (6, 5));
    }

    #[test]
    fn what_does_not_fit_in_one_call_is_not_over() {
        let mut window = Window::default();
        window.look(look(9, 100, 104));
        window.copied(&copied(0, &[1, 2], 0), false);
        window.look(look(9, 110, 110));
        window.copied(&copied(2, &[3, 4], 0), false);
        assert_eq!((window.after, window.low_water), (Some(4), 4), "and that is sure");
        window.copied(&copied(4, &[9], 0), true);
        assert_eq!((window.after, window.low_water), (Some(9), 9));
    }

    #[test]
    fn too_many_holes_begin_again_at_the_low_water() {
        let mut window = Window::default();
        window.copied(&copied(7, &[1_000_000], 7), true);
        assert!(window.holes.len() > HOLES_MAX);
        window.look(look(1_000_000, 100, 104));
        assert_eq!((window.after, window.holes.len()), (Some(7), 0));
    }
}
