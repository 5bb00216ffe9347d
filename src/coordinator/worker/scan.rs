//! The search of the store for transfers that are not terminal, page by page.
//!
//! At the start it finds every transfer that an earlier process has left: it begins where that
//! process says, and reads the listed ones by their numbers. Later it finds stale ones: transfers
//! that have not moved for long and that no worker has in hand. The first of these later searches
//! begins at the watermark, below which every transfer has ended by all rows.

use std::sync::Arc;

use tracing::info;

use super::active::span_of;
use super::backoff::{Backoff, STORE_RETRY_MS_MAX};
use super::old::Split;
use super::{Doing, Done, Worker, ns};
use crate::adapters::Adapter;
use crate::alert::{Alert, alert, alert_about};
use crate::postgres::store::{Failure, Page, Stale, Store, Unfinished};
use crate::postgres::watermark::Open;
use crate::telemetry;

/// Between two pages of a later search, milliseconds. Commits go between them.
const PAUSE_MS: u64 = 100;

/// See the module.
#[derive(Debug)]
pub(super) struct Scan {
    /// Order numbers up to this one have been read in the present search.
    after: u64,
    /// Transfers at or below it that the first page has as well.
    listed: Arc<[u64]>,
    /// The second search begins behind this order number, if the first one has left some out.
    again_after: Option<u64>,
    /// When the next page is due, monotonic ns.
    due_ns: u64,
    failures: u32,
    /// Pages and commits take turns if both are due.
    has_turn: bool,
    /// Whether the first search has ended: every transfer of an earlier process is in hand.
    complete: bool,
}

impl Scan {
    /// A search from the watermark on, below which every transfer has ended, or from where `open`
    /// begins.
    pub(super) fn new(watermark: u64, open: &Open) -> Scan {
        let (from, listed) = (watermark.max(open.from), open.old.as_slice().into());
        let after = from.saturating_sub(1);
        let again_after = (from > watermark).then_some(watermark.saturating_sub(1));
        let (due_ns, failures, has_turn, complete) = (0, 0, true, false);
        Scan { after, listed, again_after, due_ns, failures, has_turn, complete }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// When the next page is due, monotonic ns.
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Whether the store should read a page now. `idle`: no call waits for a commit.
    pub(super) fn goes_first(&self, now: u64, idle: bool) -> bool {
        now >= self.due_ns && (self.has_turn || idle)
    }

    /// The next page. The next turn is a commit's.
    fn begin(&mut self, shard: u32, shards: u32, stale: Stale) -> Unfinished {
        self.has_turn = false;
        let stale = self.complete.then_some(stale);
        Unfinished { after: self.after, listed: Arc::clone(&self.listed), shard, shards, stale }
    }

    /// A commit has begun. The next turn is the search's.
    pub(super) fn commit_begins(&mut self) {
        self.has_turn = true;
    }

    /// A page was read. `after`: the end of the page, `None` after the last one. `low`: the next
    /// search begins with this order number, and `listed`.
    fn read(&mut self, after: Option<u64>, low: u64, listed: &[u64], now: u64, stale_ms: u64) {
        self.failures = 0;
        self.listed = [].into();
        match after {
            Some(after) => {
                assert!(after > self.after, "a page from {} ends at {after}", self.after);
                self.after = after;
                // Every client waits for the first search, and none for a later one.
                self.due_ns = now + if self.complete { ns(PAUSE_MS) } else { 0 };
            }
            None => {
                self.complete = true;
                self.due_ns = now + ns(stale_ms);
                self.listed = listed.into();
                self.after = self.again_after.take().unwrap_or(low.saturating_sub(1));
            }
        }
    }

    /// A page could not be read.
    fn failed(&mut self, now: u64, backoff: &mut Backoff) {
        self.failures = self.failures.saturating_add(1);
        let delay_ms = backoff.delay_ms(self.failures);
        let max_ms = if self.complete { u64::MAX } else { STORE_RETRY_MS_MAX };
        self.due_ns = now + ns(delay_ms.min(max_ms));
    }
}

impl<T: Adapter, F: Adapter> Worker<T, F> {
    /// Reads one page.
    pub(super) fn scan<S: Store>(&mut self, mut store: S) -> Doing<S> {
        let options = &self.parts.options;
        let shard = u32::try_from(self.shard).expect("at most 64");
        let (moved_ms, retry_cap_ms) = (options.stale_ms, options.backoff_cap_ms);
        let page = self.scan.begin(shard, self.shards, Stale { moved_ms, retry_cap_ms });
        Box::pin(async move {
            let found = store.unfinished(page).await;
            Done::Scanned(store, found)
        })
    }

    /// Takes the transfers of a page in hand.
    pub(super) fn on_scanned(&mut self, found: Result<Page, Failure>) {
        let now = self.now();
        let page = match found {
            Ok(page) => page,
            Err(failure) => {
                // Commits go on meanwhile, if they can.
                self.scan.failed(now, &mut self.backoff);
                let why = telemetry::chain(&failure);
                let what =
                    format_args!("shard {}: look for unfinished transfers: {why}", self.shard);
                return match failure {
                    Failure::Retry(_) => alert(Alert::FundingBlocked, what),
                    _ => alert(Alert::PostgresUnreachable, what),
                };
            }
        };
        // In a later search they are stale, and no worker has them in hand.
        if let Some(number) = page.unreadable.first()
            && self.scan.is_complete()
            && !self.parts.gate.is_closed()
        {
            let others = page.unreadable.len() - 1;
            let what = format_args!("order {number} cannot be read, nor {others} others");
            alert_about(Alert::TransferStuck, number, what);
        }
        // Their states are unknown. While the rows are there, their numbers are in use.
        self.under_way.extend(page.unreadable);
        for transfer in page.transfers {
            if !self.active.contains_key(&transfer.intent.req_id) {
                let state = transfer.state.name();
                info!(req_id = %transfer.intent.req_id, state, "taking up");
                let span = span_of(&transfer);
                self.adopt(transfer, span, None, None);
            }
        }
        let Split { young, old } = self.old.split(&self.under_way);
        let low = young.unwrap_or_else(|| self.numbers.next());
        self.scan.read(page.after, low, &old, self.now(), self.parts.options.stale_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::super::backoff::tests::longest;
    use super::*;

    const STALE: Stale = Stale { moved_ms: 7, retry_cap_ms: 9 };

    /// The first search reads everything, page after page without a pause. A later one pauses
    /// between pages, reads only stale rows, and begins at the lowest number in use.
    #[test]
    fn the_first_search_reads_everything_and_later_ones_what_is_stale() {
        let mut scan = Scan::new(100, &Open::default());
        let page = scan.begin(1, 2, STALE);
        assert_eq!((page.after, page.shard, page.shards), (99, 1, 2));
        assert!(page.stale.is_none());
        scan.read(Some(150), 120, &[], 5, 1_000);
        assert_eq!((scan.due_ns(), scan.is_complete()), (5, false));
        assert_eq!(scan.begin(1, 2, STALE).after, 150);
        scan.read(None, 120, &[], 6, 1_000);
        assert_eq!((scan.due_ns(), scan.is_complete()), (6 + ns(1_000), true));
        let page = scan.begin(1, 2, STALE);
        assert_eq!((page.after, page.stale.map(|stale| stale.moved_ms)), (119, Some(7)));
        scan.read(Some(130), 125, &[], 8, 1_000);
        assert_eq!(scan.due_ns(), 8 + ns(PAUSE_MS));
    }

    /// Goal: an old transfer makes no start read everything since, and none is overlooked. Method:
    /// the listed ones are read with the first page, once; the second search begins at the
    /// watermark, and later ones behind what is listed then.
    #[test]
    fn listed_transfers_are_read_by_number_and_the_watermark_once() {
        let mut scan = Scan::new(100, &Open { from: 900, old: vec![120, 130] });
        for _ in 0..2 {
            let page = scan.begin(0, 1, STALE);
            assert_eq!((page.after, &*page.listed), (899, &[120, 130][..]), "also if it failed");
        }
        scan.read(Some(950), 900, &[120], 0, 10);
        assert!(scan.begin(0, 1, STALE).listed.is_empty());
        scan.read(None, 900, &[120], 0, 10);
        let page = scan.begin(0, 1, STALE);
        assert_eq!((page.after, page.stale.is_some()), (99, true));
        scan.read(None, 900, &[120], 0, 10);
        let page = scan.begin(0, 1, STALE);
        assert_eq!((page.after, &*page.listed), (899, &[120][..]));
    }

    #[test]
    fn pages_and_commits_take_turns() {
        let mut scan = Scan::new(0, &Open::default());
        assert!(scan.goes_first(0, false));
        scan.begin(0, 1, STALE);
        assert!(!scan.goes_first(0, false), "the turn of a commit");
        assert!(scan.goes_first(0, true), "there is nothing to commit");
        scan.commit_begins();
        assert!(scan.goes_first(0, false));
        scan.read(None, 1, &[], 0, 10);
        assert!(!scan.goes_first(ns(10) - 1, true), "not due");
    }

    #[test]
    fn a_failed_first_search_is_repeated_within_a_second() {
        let (mut scan, mut backoff) = (Scan::new(0, &Open::default()), longest(2_000, 1_000_000));
        scan.failed(3, &mut backoff);
        assert_eq!(scan.due_ns(), 3 + ns(STORE_RETRY_MS_MAX));
        scan.read(None, 1, &[], 3, 10);
        scan.failed(3, &mut backoff);
        assert_eq!(scan.due_ns(), 3 + ns(2_000), "no client waits for it");
        scan.failed(3, &mut backoff);
        assert_eq!(scan.due_ns(), 3 + ns(4_000));
    }
}
